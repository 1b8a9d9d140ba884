/* An amendment changes a job's hyper-parameters, schedules, clip norm, the choice of frozen groups
 * and tensors, and each field whose row in spec_fields.h allows amendments. The amended spec is
 * judged like the spec of a new job, made durable, and sent to the shards. The core uses the
 * amended spec from the next round that opens. A round that is open already ends by the terms with
 * which it began. The request is answered when all shards have the amended spec. Tensors,
 * optimizers and planes stay as they are, unless the amendment makes a new generation (below). Only
 * one amendment of a job is being stored at a time. Meanwhile the amendments of other workers wait,
 * because each amendment is judged by the spec that the earlier amendments have left.
 *
 * A worker may attach with the spec as it was before any of the last amendments, because no
 * amendment changes the worker's script. So a job's spec keeps the hashes of its earlier states. */
#include <inttypes.h>
#include <stdlib.h>

#include "proto/plan/plan.h"
#include "server/coordinator/cluster.h"

/* ==== a new generation ==== */

/* An amendment may give a job a new generation at the same step. The new generation has other
 * tensors (added, tied, or trained although they were declared frozen) or other terms (fields whose
 * row in spec_fields.h is REOPENED). Such an amendment is made at a step boundary, while no round
 * may open:
 *
 *   await    the gate of the core is shut; an open round ends, or becomes void if it would wait for
 *            the worker that amends
 *   make     every shard makes its new part from its present part (JobCreate with `extend`), and
 *            keeps both parts
 *   store    the new spec, layout and generation become durable, in one write. From here on the
 *            new generation is the job
 *   switch   the shards drop their old parts; members are expelled, and open the job again
 *
 * If anything fails before `store`, the new parts are dropped, and the job continues as it was. If
 * the coordinator dies, the next incarnation goes by its store. It tells a shard that reports two
 * generations which of the two the store has. */

/* True if the staged job belongs to the amendment with this key. */
static bool extend_is(const struct coord_job *job, uint64_t key)
{
    return job->amends.extension.staged_job != NULL &&
           job->amends.extension.staged_job->spec.amend_key == key;
}

static void switch_all(const struct coord_job *job, uint64_t generation)
{
    CAIRN_EACH_SHARD (job, i) coord_job_send_switch(job, job->shards[i].entry, generation);
}

/* ---- the end ---- */

static const char *doing(const struct coord_job *job)
{
    return job->amends.extension.goes_back ? "taken back" : "amended";
}

static cairn_status refuse_other(const struct coord_job *job, struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_BUSY, "job %s is being %s: ask again when that has ended",
                     job->spec.name, doing(job));
}

static void fail_waiting(struct coord_job *job, cairn_status status, const char *text)
{
    if (job->amends.extension.goes_back) {
        coord_waiters_fail(&job->amends.rollbacks, status, text);
        return;
    }
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        coord_amend_failed(m, status, text);
    coord_waiters_fail(&job->amends.waiters, status, text);
}

static void release_extension(struct coord_job *job)
{
    struct coord_job *staged = job->amends.extension.staged_job;
    (void)coord_steps_cancel(&job->amends.extension.steps);
    job->amends.extension = (struct coord_extension) { .staged_job = NULL };
    if (staged != NULL) coord_job_free(staged);
}

static void lose_extension(struct coord_job *job)
{
    struct sentence why;
    if (job->amends.extension.staged_job == NULL) return;
    sentence_set(&why, "job %s was not %s, and is %s", job->spec.name, doing(job),
                 job->loss.why.text);
    fail_waiting(job, CAIRN_ERR_JOB_LOST, why.text);
    release_extension(job);
}

/* Ends the amendment; the job continues as it was. */
static void give_up(struct coord_steps *steps, cairn_status status, const char *text)
{
    struct coord_job *job = steps->job;
    struct sentence why;
    sentence_set(&why, "job %s was not %s, it goes on as it was: %s", job->spec.name, doing(job),
                 text);
    log_fields(CAIRN_LOG_WARN, CAIRN_FIELDS({ "job", job->spec.name, 0 }), "%s", why.text);
    // To a worker, CLOSED would mean that the worker's own connection was lost.
    if (status == CAIRN_ERR_CLOSED) status = CAIRN_ERR_NOT_READY;
    fail_waiting(job, status, why.text);
    switch_all(job, job->generation);
    release_extension(job);
    coord_gate_update(job); // opens the gate
    coord_openings_advance(job->cluster);
}

/* Expels all members. A member that is still opening the job gets CAIRN_ERR_BUSY, and will try
 * again. Any other member has the old spec, so it gets CAIRN_ERR_REOPEN; or what it computes begins from a
 * version that the job has given up, so it gets CAIRN_ERR_ROLLED_BACK. */
static void expel_all(struct coord_job *job, const struct coord_extension *extension)
{
    const uint64_t revision = extension->staged_job->spec.revision;
    const cairn_status status = extension->goes_back ? CAIRN_ERR_ROLLED_BACK : CAIRN_ERR_REOPEN;
    struct sentence text;
    if (extension->goes_back)
        sentence_set(&text,
                     "job %s was taken back to step %" PRIu64 " of generation %" PRIu64
                     ": close it and open it again",
                     job->spec.name, extension->back_to.step, extension->back_to.generation);
    else
        sentence_set(&text,
                     "job %s was amended, revision %" PRIu64
                     ": its tensors or terms have changed; close it and open it again, with the "
                     "old spec or the new one",
                     job->spec.name, revision);
    while (job->members.list != NULL) {
        struct coord_member *m = job->members.list;
        coord_member_expel(m, m->open_request != 0 ? CAIRN_ERR_BUSY : status, text.text);
    }
}

/* A re-sharding may have been asked for while the new parts were made. It goes on in the new generation. */
static void take_weights(const struct coord_job *job, struct coord_job *staged)
{
    CAIRN_EACH_SHARD (staged, i)
        if (i < job->shard_count && job->shards[i].entry == staged->shards[i].entry)
            staged->shards[i].weight = job->shards[i].weight;
}

/* Gives the job the staged job's shape, and the staged job the job's. */
static void swap_in_staged_job(struct coord_job *job, struct coord_job *staged)
{
    take_weights(job, staged);
    const struct coord_shape was = job->shape;
    job->shape = staged->shape;
    staged->shape = was;
    job->origin = staged->origin;
    job->turns = staged->turns;
    job->reserved.generation = staged->reserved.generation;
    job->members.read_bytes = 0;
}

/* Says that the job is amended, or was taken back, and answers who asked for it. */
static void tell_switched(struct coord_job *job, const struct coord_extension *was)
{
    if (was->goes_back) {
        Cairn__JobRolledBack done = CAIRN__JOB_ROLLED_BACK__INIT;
        log_info("job %s: taken back from version %" PRIu64 ".%" PRIu64 " to %" PRIu64 ".%" PRIu64
                 ", as generation %" PRIu64,
                 job->spec.name, was->made_at.generation, was->made_at.step,
                 was->back_to.generation, was->back_to.step, job->generation);
        coord_event_note(job->cluster, CAIRN_EVENT_ROLLED_BACK, job->spec.name, NULL,
                         "from step %" PRIu64 " to step %" PRIu64 " of generation %" PRIu64
                         ", as generation %" PRIu64,
                         was->made_at.step, was->back_to.step, was->back_to.generation,
                         job->generation);
        done.name = job->spec.name;
        done.generation = job->generation;
        done.step = job->base_step;
        if (coord_logs_wanted(job))
            done.note = wire_text("its logs begin anew: they protect it as soon as they stand on "
                                  "the next snapshot, which is taken now (`cairn job show`)");
        coord_waiters_answer(&job->amends.rollbacks, CAIRN_MSG_JOB_ROLLED_BACK, &done.base);
        return;
    }
    log_info("job %s: amended, revision %" PRIu64 ", version %" PRIu64 ".%" PRIu64 ": %zu tensors",
             job->spec.name, job->spec.revision, job->generation, job->base_step,
             job->spec.tensor_count);
    coord_event_note(job->cluster, CAIRN_EVENT_AMENDED, job->spec.name, NULL,
                     "revision %" PRIu64 ", generation %" PRIu64, job->spec.revision,
                     job->generation);
    Cairn__JobAmended amended = CAIRN__JOB_AMENDED__INIT;
    amended.revision = job->spec.revision;
    coord_waiters_answer(&job->amends.waiters, CAIRN_MSG_JOB_AMENDED, &amended.base);
}

/* A shard whose process began after its new part was asked for has told what it has while the job was the old
 * one. It comes again, and tells it anew. */
static void hear_anew(const struct coord_job *job)
{
    CAIRN_EACH_SHARD (job, i) {
        struct coord_session *session = job->shards[i].entry->session;
        if (job->shards[i].up || session == NULL) continue;
        coord_session_put_out(session, CAIRN_ERR_BUSY, "a job got a new generation meanwhile");
    }
}

/* The amendment is durable: the job becomes what the staged job is, and the old state is freed. */
static void switch_over(struct coord_steps *steps)
{
    struct coord_job *job = steps->job;
    const struct coord_extension was = job->amends.extension;
    struct coord_job *staged = was.staged_job;
    struct sentence why;
    job->amends.extension = (struct coord_extension) { .staged_job = NULL };
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        coord_amend_done(m, staged->spec.revision);
    expel_all(job, &was);
    switch_all(job, staged->generation);
    coord_groups_forget(job);
    coord_job_core_close(job);
    coord_reshard_close(job);
    coord_layouts_release(job);
    job->layouts = (struct coord_layouts) { .before = NULL };
    coord_tiles_release(job);
    job->tiles = (struct coord_tiles) { 0 };
    swap_in_staged_job(job, staged);
    job->init.source.known = false; // it was of the tensors that the job had
    coord_job_free(staged);
    sentence_set(&job->rounds.epoch_reason, "the job was %s",
                 was.goes_back ? "taken back" : "amended");
    const cairn_status opened = coord_job_core_open(job, &why);
    if (opened != CAIRN_OK) coord_job_lose(job, false, "%s", why.text);
    tell_switched(job, &was);
    if (opened == CAIRN_OK) hear_anew(job);
    coord_reshard_go_on(job);
    coord_openings_advance(job->cluster);
}

static cairn_status judge_made(struct coord_steps *steps, cairn_status status, struct sentence *why)
{
    const struct coord_job *job = steps->job;
    const struct coord_job *staged = job->amends.extension.staged_job;
    const struct cairn_version now = coord_job_version(job);
    if (status != CAIRN_OK) return status;
    // the shard may have dropped its new part
    if (steps->lacks_shard) return fail_with(why, CAIRN_ERR_CLOSED, "a shard went away; ask again");
    // Only a safeguard: the gate was shut and no shard went away, so the job cannot have changed.
    if (round_stage_of(job->core) != CAIRN_ROUND_STEADY ||
        version_compare(now, job->amends.extension.made_at) != 0)
        return fail_with(why, CAIRN_ERR_NOT_READY, "the job changed meanwhile; ask again");
    return coord_job_judge_shards(staged, why);
}

static void on_put_back(const struct coord_saved *saved)
{
    if (saved->status != CAIRN_OK)
        log_error("job %016" PRIx64 ": the store keeps the amendment: %s", saved->job, saved->why);
}

/* The amendment was given up while it was being stored, and has become durable nevertheless. Stores
 * the job as it is without the amendment, and makes sure that the amendment's generation is never
 * used again. */
static void put_back(struct coord_job *job, uint64_t generation)
{
    struct sentence why;
    if (job->reserved.generation < generation) job->reserved.generation = generation;
    if (job->state == CAIRN_CLUSTER_JOB_CREATING) return; // the job is being restored or dropped
    if (coord_save_job(job, CAIRN_STORE_JOB, NULL, 0, on_put_back, &why) != CAIRN_OK)
        log_error("job %s: the store keeps the amendment: %s", job->spec.name, why.text);
}

/* Called when the staged job is durable, or could not be stored. An amendment that is durable and
 * was not given up takes effect, whatever has become of the job's shards. */
static void on_stored_of_extend(const struct coord_saved *saved)
{
    if (coord_steps_stored(saved, on_stored_of_extend)) return;
    struct coord_job *job = coord_job_by_id(saved->cluster, saved->job);
    if (job != NULL && saved->status == CAIRN_OK) put_back(job, saved->number);
}

static cairn_status store_staged_job(struct coord_steps *steps, struct sentence *why)
{
    const struct coord_job *job = steps->job;
    struct coord_job *staged = job->amends.extension.staged_job;
    staged->epoch = job->epoch;
    staged->tenant = job->tenant;
    staged->reserved.round = job->reserved.round;
    staged->reserved.generation = job->reserved.generation > staged->generation
                                      ? job->reserved.generation
                                      : staged->generation;
    return coord_steps_save_as(steps, staged, CAIRN_STORE_JOB, staged->generation,
                               on_stored_of_extend, why);
}

/* ---- the beginning ---- */

static cairn_status plan_layout(const struct coord_job *job, struct coord_job *staged)
{
    const uint32_t count = (uint32_t)staged->spec.tensor_count;
    struct layout_tensor *tensors = plan_tensors(&staged->spec);
    uint32_t *was = calloc((size_t)count + 1, sizeof *was);
    uint32_t *weights = calloc((size_t)job->layout->shard_count + 1, sizeof *weights);
    cairn_status status = tensors == NULL || was == NULL || weights == NULL ? CAIRN_ERR_NO_MEMORY
                                                                            : CAIRN_OK;
    for (uint32_t i = 0; i < job->layout->shard_count && status == CAIRN_OK; i++) {
        const struct coord_shard_entry *entry = job->shards[i].entry;
        const bool is_closed = entry == NULL || entry->leaving ||
                               (coord_shard_unfit(entry) && job->spec.offload_fraction < 1);
        weights[i] = is_closed ? 0 : 1;
    }
    for (uint32_t t = 0; t < count && status == CAIRN_OK; t++) {
        const size_t from = spec_find_tensor(&job->spec, staged->spec.tensors[t].name);
        // An alias has no elements and no extents. So a tensor that becomes an alias is planned as
        // if the old tensor were gone.
        const bool kept = from != SIZE_MAX && (job->spec.tensors[from].alias_of == NULL &&
                                               staged->spec.tensors[t].alias_of == NULL);
        was[t] = kept ? (uint32_t)from : CAIRN_TENSOR_NEW;
    }
    const struct plan_request request = { .tensors = tensors,
                                          .tensor_count = count,
                                          .shard_count = job->layout->shard_count,
                                          .weights = weights,
                                          .spread = staged->spec.spread,
                                          .held = job->layout,
                                          .free = CAIRN_FREE_NEW,
                                          .was = was };
    if (status == CAIRN_OK) status = plan_make(&request, &staged->layout, NULL);
    free(tensors);
    free(was);
    free(weights);
    if (status != CAIRN_OK) return status;
    staged->planned.layout = packed_layout(staged->layout);
    return staged->planned.layout != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

/* Copies the job's present shards and their weights to the staged job. */
static cairn_status take_entries(const struct coord_job *job, struct coord_job *staged)
{
    free(staged->shards);
    staged->shard_count = staged->entry_count = 0;
    if (!coord_job_shards_init(staged, job->shard_room)) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < job->shard_count; i++) {
        coord_job_set_shard(staged, i, job->shards[i].entry);
        staged->shards[i].weight = job->shards[i].weight;
    }
    return CAIRN_OK;
}

/* If a slice of a re-sharding ended after the amendment was planned, plans the amendment anew, on
 * the layout that this slice has left. */
static cairn_status plan_anew(const struct coord_job *job, struct coord_job *staged)
{
    if (staged->layout->version == job->layout->version + 1) return CAIRN_OK;
    layout_close(staged->layout);
    packed_release(staged->planned.layout);
    staged->layout = NULL;
    staged->planned.layout = NULL;
    const cairn_status status = take_entries(job, staged);
    return status == CAIRN_OK ? plan_layout(job, staged) : status;
}

/* The job's owner must be allowed as many bytes more as the amendment adds. */
static cairn_status judge_growth(struct coord_job *job, struct coord_job *staged,
                                 struct sentence *why)
{
    const uint64_t was = coord_job_state_bytes(job), is = coord_job_state_bytes(staged);
    const struct quota more = { .bytes = is > was ? is - was : 0 };
    CAIRN_TRY(coord_quota_judge(job->cluster, job->tenant.owner, &more, why));
    return coord_quota_judge_workers(job, quota_in_flight(staged), why);
}

/* Fills the staged job. If this succeeds, `next` belongs to the staged job. */
static cairn_status make_staged_job(struct coord_job *job, struct job_spec_data *next,
                                    struct coord_job *staged, struct sentence *why)
{
    staged->cluster = job->cluster;
    staged->id = job->id;
    staged->state = CAIRN_CLUSTER_JOB_CREATING;
    staged->initialized = true;
    staged->spec = *next; // borrowed until everything has succeeded
    cairn_status status = take_entries(job, staged);
    if (status == CAIRN_OK) staged->planned.spec = packed_spec(&staged->spec);
    if (staged->planned.spec == NULL) status = CAIRN_ERR_NO_MEMORY;
    if (status == CAIRN_OK) status = plan_layout(job, staged);
    staged->tenant = job->tenant;
    sentence_set(why, "planning job %s: %s", job->spec.name, status_text((int)status));
    if (status == CAIRN_OK) status = coord_judge_packed(job->spec.name, staged->planned.spec, why);
    if (status == CAIRN_OK)
        status = coord_judge_packed(job->spec.name, staged->planned.layout, why);
    if (status == CAIRN_OK) status = judge_growth(job, staged, why);
    if (status != CAIRN_OK) spec_init(&staged->spec);
    return status;
}

/* ---- the steps ---- */

static bool may_extend(const struct coord_steps *steps)
{
    return coord_operation_may_begin_at_rest(steps->job, CAIRN_OPERATION_EXTEND);
}

/* Asks all shards for their part of the job as it was at the former version. The shards have the decision of
 * then. */
static void make_former(struct coord_steps *steps, struct coord_job *staged)
{
    const struct cairn_version back_to = steps->job->amends.extension.back_to;
    staged->base_step = back_to.step;
    staged->origin = (struct origin) { staged->generation, back_to };
    line_turn(&steps->job->origin, &steps->job->turns, back_to, &staged->turns);
    const struct coord_create load = { .extend = true,
                                       .back = true,
                                       .back_generation = back_to.generation,
                                       .version = { staged->generation, back_to.step } };
    coord_job_send_create(staged, &load, steps->gather);
}

/* Asks all shards for their part of the staged job. */
static cairn_status make_parts(struct coord_steps *steps, struct sentence *why)
{
    struct coord_job *job = steps->job, *staged = job->amends.extension.staged_job;
    const struct cairn_version now = coord_job_version(job);
    const cairn_status planned = plan_anew(job, staged);
    if (planned != CAIRN_OK) return fail_with(why, planned, "%s", status_text((int)planned));
    staged->generation = now.generation + 1;
    job->amends.extension.made_at = now;
    if (job->amends.extension.goes_back) {
        make_former(steps, staged);
        return CAIRN_OK;
    }
    staged->base_step = now.step;
    staged->turns = job->turns;
    staged->origin = job->origin;                  // the job continues at the same step
    struct decision last = *round_last(job->core); // the schedule and the loss scale continue
    last.kind = CAIRN_DECISION_NONE;
    last.version_after = (struct cairn_version) { staged->generation, staged->base_step };
    uint8_t *with_missed = NULL, *with_terms = NULL;
    cairn_status status = coord_missed_extend(job, &staged->spec, &last, &with_missed, why);
    if (status == CAIRN_OK)
        status = coord_settings_payload(&job->spec, &staged->spec, &last, &with_terms, why);
    const struct coord_create load = { .extend = true,
                                       .version = last.version_after,
                                       .last = &last };
    if (status == CAIRN_OK) coord_job_send_create(staged, &load, steps->gather);
    free(with_missed);
    free(with_terms);
    return status;
}

static const struct coord_step extend_steps[] = {
    { CAIRN_STEP_WAIT, CAIRN_STAGE_EXTENDING, .is_ready = may_extend },
    { CAIRN_STEP_ASK, CAIRN_STAGE_EXTEND_MAKING, .begin = make_parts, .end = judge_made },
    { CAIRN_STEP_STORE, CAIRN_STAGE_EXTEND_MAKING, "the store's disk", .begin = store_staged_job },
    { .kind = CAIRN_STEP_LAST },
};

static const struct coord_operation_plan extend_plan = { extend_steps, .done = switch_over,
                                                         .failed = give_up };

/* ---- as an operation ---- */

static struct coord_steps *steps_of_extension(struct coord_job *job)
{
    return &job->amends.extension.steps;
}

/* Says for whom the job waits while it goes back. */
static void say_back(const struct coord_job *job, struct sentence *out)
{
    const struct coord_job_shard *slowest = NULL;
    uint64_t most = 0;
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_log *log = &job->shards[i].log;
        if (log->again_done >= log->again_total || log->again_total - log->again_done <= most)
            continue;
        most = log->again_total - log->again_done;
        slowest = &job->shards[i];
    }
    sentence_set(out, "the shards to go back to step %" PRIu64, job->amends.extension.back_to.step);
    if (slowest != NULL)
        sentence_add(out, ", of which %s has done %" PRIu64 " of %" PRIu64 " steps again",
                     slowest->entry->name, slowest->log.again_done, slowest->log.again_total);
}

/* True while the shards make their parts. */
static bool extension_waiting(const struct coord_job *job, struct sentence *out)
{
    const struct coord_extension *extension = &job->amends.extension;
    if (extension->steps.gather == NULL) return false;
    if (extension->goes_back)
        say_back(job, out);
    else
        sentence_set(out, "the shards to amend the job");
    return true;
}

const struct coord_operation coord_extending = {
    .steps = steps_of_extension,
    .lost = lose_extension,
    .release = release_extension,
    .waiting = extension_waiting,
    .refuse = refuse_other,
    .until = "until the job is amended",
};

static cairn_status judge_begin(const struct coord_job *job, struct sentence *why)
{
    if (!job->initialized || job->state != CAIRN_CLUSTER_JOB_RUNNING)
        return fail_with(why, CAIRN_ERR_NOT_READY,
                         "job %s is %s: open it with the tensors and the terms that it is to have",
                         job->spec.name, coord_job_state_name(job));
    CAIRN_TRY(coord_operation_judge(job, CAIRN_OPERATION_EXTEND, why));
    if (!round_pin_pending(job->core)) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_BUSY, "job %s is being saved: ask again when that has ended",
                     job->spec.name);
}

/* Gives up the open round, if the member contributes to it, because of what epoch_reason says. */
static bool give_round_up(struct coord_job *job, const struct coord_member *member)
{
    if (round_stage_of(job->core) != CAIRN_ROUND_OPEN || !round_contributes(job->core, member->id))
        return false;
    const struct round_event event = { .kind = CAIRN_ROUND_WORKER_ABANDON,
                                       .member = member->id,
                                       .round = round_open_round(job->core) };
    coord_job_event(job, &event);
    return true;
}

/* If `member`, the worker that amends the job, contributes to the open round, abandons the round
 * for this worker. If the round stayed open, it would wait for the worker, which waits for the
 * amendment. A job that goes back does so at once: what is being computed is not wanted. */
static void give_round_up_for(struct coord_job *job, const struct coord_member *member)
{
    if (member != NULL) {
        sentence_set(&job->rounds.epoch_reason, "worker %s (rank %" PRIu32 ") amends the job",
                     member->session->name, member->rank);
        (void)give_round_up(job, member);
    } else if (job->amends.extension.goes_back) {
        sentence_set(&job->rounds.epoch_reason, "the job is being taken back");
        const struct coord_member *m = job->members.list;
        while (m != NULL && !give_round_up(job, m)) m = m->next_of_job;
    }
}

/* Begins an amendment that makes a new generation. `next` is the amended spec, which was judged,
 * and which this function takes. When the amendment ends, job->amends.waiters and the members whose
 * amend.request is set are answered. `member` is the worker that amends the job (NULL: an admin
 * does). If this worker contributes to the open round, the round becomes void. back_to: the new
 * generation is the job as it was at that former version; NULL: as it is now. If the function
 * fails with CAIRN_ERR_BUSY, CAIRN_ERR_NOT_READY, CAIRN_ERR_NO_MEMORY or CAIRN_ERR_INVALID (spec or
 * layout is too large), no amendment was begun, and `next` was not taken. */
static cairn_status extend_begin(struct coord_job *job, struct coord_member *member,
                                 struct job_spec_data *next, const struct cairn_version *back_to,
                                 struct sentence *why)
{
    CAIRN_TRY(judge_begin(job, why));
    // The staged parts need the memory that the shards have prepared for a snapshot.
    coord_snapshot_unprepare(job);
    struct coord_job *staged = calloc(1, sizeof *staged);
    cairn_status status = staged == NULL ? fail_with(why, CAIRN_ERR_NO_MEMORY,
                                                     "the coordinator is out of memory")
                                         : make_staged_job(job, next, staged, why);
    if (status != CAIRN_OK) {
        if (staged != NULL) coord_job_free(staged);
        return status;
    }
    job->amends.extension.staged_job = staged;
    job->amends.extension.goes_back = back_to != NULL;
    if (back_to != NULL) job->amends.extension.back_to = *back_to;
    coord_steps_start(&job->amends.extension.steps, &extend_plan, job->cluster, job);
    if (member != NULL)
        log_info("job %s: %s (rank %" PRIu32 ") amends it, in a new generation", job->spec.name,
                 member->session->name, member->rank);
    coord_gate_update(job); // shuts the gate
    give_round_up_for(job, member);
    coord_steps_advance(&job->amends.extension.steps);
    return CAIRN_OK;
}

cairn_status coord_extend_back(struct coord_job *job, struct cairn_version version,
                               struct sentence *why)
{
    struct job_spec_data same;
    if (spec_copy(&job->spec, &same) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the job's spec");
    const cairn_status status = extend_begin(job, NULL, &same, &version, why);
    if (status != CAIRN_OK) spec_release(&same);
    return status;
}

/* ==== an amendment ==== */

static bool changes_tensors(const Cairn__JobAmend *amend)
{
    return amend->n_freeze_tensors > 0 || amend->n_unfreeze_tensors > 0 || amend->n_add > 0 ||
           amend->n_ties > 0;
}

static cairn_status judge_state(const struct coord_job *job, const Cairn__JobAmend *amend,
                                struct sentence *why)
{
    CAIRN_TRY(coord_operation_judge(job, CAIRN_OPERATION_AMEND, why));
    if (amend->revision != 0 && amend->revision != job->spec.revision)
        return fail_with(why, CAIRN_ERR_STALE,
                         "job %s is at revision %" PRIu64 ", the amendment is of revision %" PRIu64
                         ": look at the job and decide again",
                         job->spec.name, job->spec.revision, amend->revision);
    const bool terms = amend->n_groups > 0 || amend->n_freeze > 0 || amend->n_unfreeze > 0 ||
                       amend->n_settings > 0;
    if (amend->key == 0 || (!terms && !changes_tensors(amend)))
        return fail_with(why, CAIRN_ERR_INVALID, "the amendment of job %s changes nothing",
                         job->spec.name);
    return CAIRN_OK;
}

/* ---- to the store ---- */

/* Answers the worker that amends. A failure is answered at once, a success when all shards have the
 * spec that is in the store. */
static void answer_amender(struct coord_member *member, cairn_status status, const char *text)
{
    struct coord_job *job = member->job;
    member->amend.revision = job->spec.revision;
    if (status == CAIRN_OK) {
        coord_terms_advance(job);
        return;
    }
    coord_amend_failed(member, status, text);
}

static void on_worker_amends(struct coord_member *member, uint32_t request, const void *any);

/* Begins the waiting amendments, one after another, until one of them is being stored. */
static void take_waiting(struct coord_job *job)
{
    struct coord_member *m = job->members.list;
    while (m != NULL && job->amends.amending == NULL) {
        Cairn__JobAmend *amend = m->amend.later;
        if (amend == NULL) {
            m = m->next_of_job;
            continue;
        }
        m->amend.later = NULL;
        if (m->amend.request != 0) on_worker_amends(m, m->amend.request, amend);
        cairn__job_amend__free_unpacked(amend, NULL);
        m = job->members.list; // the amendment may have expelled some members
    }
}

/* The job is LOST: fails the admin's request that waits until the job's shards have the
 * amendment. */
static void fail_amenders(struct coord_job *job)
{
    struct sentence why;
    if (job->amends.revision == 0) return; // the amendment is still being stored
    sentence_set(&why, "the amendment is stored, but not on all shards, and the job is %s",
                 job->loss.why.text);
    coord_waiters_fail(&job->amends.waiters, CAIRN_ERR_JOB_LOST, why.text);
}

/* Answers the admin that waits, if there is one. The amendment that was stored is this admin's own,
 * because an admin is refused while another amendment is under way. A success is answered when all
 * shards have the spec. */
static void answer_admins(struct coord_job *job, cairn_status status, const char *why)
{
    if (LIST_EMPTY(&job->amends.waiters) || job->amends.revision != 0) return;
    if (status != CAIRN_OK) {
        coord_waiters_fail(&job->amends.waiters, status, why);
        return;
    }
    job->amends.revision = job->spec.revision;
    coord_terms_advance(job);
    if (job->state == CAIRN_CLUSTER_JOB_LOST) fail_amenders(job);
}

/* The job takes the terms. The core uses these terms from the next round on. */
static void replace_terms(struct coord_job *job, struct coord_terms *terms)
{
    // Only the terms in force and the newest terms are still read. No round uses the terms between
    // these two, so they are freed.
    struct coord_terms **at = &job->rounds.terms;
    while (*at != NULL && (*at)->core.groups != round_terms_of(job->core)->groups) {
        struct coord_terms *gone = *at;
        *at = gone->older;
        gone->older = NULL;
        coord_terms_free(gone);
    }
    if (job->rounds.terms != NULL) {
        coord_terms_free(job->rounds.terms->older);
        job->rounds.terms->older = NULL;
    }
    terms->older = job->rounds.terms;
    job->rounds.terms = terms;
    const struct round_event amend = { .kind = CAIRN_ROUND_AMEND, .terms = &terms->core };
    coord_job_event(job, &amend);
}

static void free_amending(struct coord_amending *amending)
{
    if (amending == NULL) return;
    spec_release(&amending->next);
    coord_terms_free(amending->terms);
    packed_release(amending->spec_packed);
    free(amending);
}

static cairn_status save_amended(struct coord_steps *steps, struct sentence *why)
{
    struct packed *packed = steps->job->amends.amending->spec_packed;
    return coord_steps_save(steps, steps->job, CAIRN_STORE_JOB, packed, 0, why);
}

/* The amendment is stored, or could not be stored: answers those who asked for it, and begins the next
 * one. */
static void end_amendment(struct coord_job *job, cairn_status status, const char *why)
{
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->amend.request != 0 && m->amend.revision == 0 && m->amend.later == NULL)
            answer_amender(m, status, why);
    answer_admins(job, status, why);
    take_waiting(job);
}

/* The amendment is durable. */
static void take_amended(struct coord_steps *steps)
{
    struct coord_job *job = steps->job;
    struct coord_amending *amending = job->amends.amending;
    job->amends.amending = NULL;
    if (job->core != NULL) {
        spec_release(&job->spec);
        packed_release(job->planned.spec);
        job->spec = amending->next;
        job->planned.spec = amending->spec_packed;
        coord_terms_tell_all(job);
        replace_terms(job, amending->terms);
        log_info("job %s: amended, revision %" PRIu64, job->spec.name, job->spec.revision);
        coord_event_note(job->cluster, CAIRN_EVENT_AMENDED, job->spec.name, NULL,
                         "revision %" PRIu64, job->spec.revision);
        free(amending);
    } else {
        free_amending(amending);
    }
    end_amendment(job, CAIRN_OK, "");
}

/* The amendment could not be stored: the job stays as it was. */
static void fail_amended(struct coord_steps *steps, cairn_status status, const char *why)
{
    struct coord_job *job = steps->job;
    free_amending(job->amends.amending);
    job->amends.amending = NULL;
    end_amendment(job, status, why);
}

static const struct coord_step amend_steps[] = {
    { CAIRN_STEP_STORE, CAIRN_STAGE_AMENDING, .begin = save_amended },
    { .kind = CAIRN_STEP_LAST },
};

static const struct coord_operation_plan amend_plan = { amend_steps, .done = take_amended,
                                                        .failed = fail_amended };

/* Stores an amendment that changes only the terms. On success the function has taken `next`, and
 * the write has begun. */
static cairn_status store_terms(struct coord_job *job, struct job_spec_data *next,
                                struct sentence *why)
{
    struct coord_amending *amending = calloc(1, sizeof *amending);
    if (amending == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to amend it");
    spec_init(&amending->next);
    cairn_status status = coord_terms_make(next, &amending->terms, why);
    if (status == CAIRN_OK) {
        sentence_set(why, "out of memory for the amended spec");
        amending->spec_packed = packed_spec(next);
        if (amending->spec_packed == NULL) status = CAIRN_ERR_NO_MEMORY;
    }
    if (status == CAIRN_OK) status = coord_judge_packed(next->name, amending->spec_packed, why);
    if (status != CAIRN_OK) {
        free_amending(amending);
        return status;
    }
    amending->next = *next;
    job->amends.amending = amending;
    coord_steps_start(&job->amends.steps, &amend_plan, job->cluster, job);
    coord_steps_advance(&job->amends.steps);
    return CAIRN_OK;
}

/* ---- the request ---- */

/* Refuses a workers_max below the number of attached workers, because the operator must decide
 * which workers to end. */
static cairn_status judge_bounds(const struct coord_job *job, const struct job_spec_data *next,
                                 struct sentence *why)
{
    const uint32_t count = job->core != NULL ? round_worker_count(job->core) : 0;
    const bool same = next->workers_max == job->spec.workers_max;
    if (!same && next->workers_max != 0 && next->workers_max < count)
        return fail_with(why, CAIRN_ERR_BUSY,
                         "workers_max is %" PRIu32 ", and job %s has %" PRIu32
                         " workers: end some of them first",
                         next->workers_max, job->spec.name, count);
    return coord_judge_workers(job->cluster, next, why);
}

/* State on a device is not audited, and nobody may believe that it is. */
static cairn_status judge_audits(const struct coord_job *job, const struct job_spec_data *next,
                                 struct sentence *why)
{
    CAIRN_EACH_SHARD (job, s) {
        const struct coord_shard_entry *entry = job->shards[s].entry;
        for (size_t i = 0; next->policy.audit_every != 0 && i < entry->told.memory_count; i++)
            if (entry->told.memory[i].job == job->id && entry->told.memory[i].device > 0)
                return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                                 "job %s has state on a device of shard %s, which cannot be "
                                 "audited: leave audit_every at 0, or have all of it in host "
                                 "memory (offload_fraction = 1)",
                                 job->spec.name, entry->name);
    }
    return CAIRN_OK;
}

/* `member` is the worker that amends the job; NULL: an admin does. */
static cairn_status amend_job(struct coord_job *job, struct coord_member *member,
                              const Cairn__JobAmend *amend, struct sentence *why)
{
    struct job_spec_data next;
    bool extends = false;
    CAIRN_TRY(judge_state(job, amend, why));
    cairn_status status = spec_copy(&job->spec, &next);
    if (status != CAIRN_OK) return fail_with(why, status, "out of memory for the amended spec");
    status = coord_spec_amend(&next, amend, &extends, why);
    if (status == CAIRN_OK)
        status = coord_settings_judge_planes(&job->spec, &next, CAIRN_SETTINGS_AMEND, why);
    if (status == CAIRN_OK) status = judge_bounds(job, &next, why);
    if (status == CAIRN_OK) status = judge_audits(job, &next, why);
    if (status == CAIRN_OK && next.policy.durability != job->spec.policy.durability)
        status = coord_durability_may(job, &next, why);
    if (status == CAIRN_OK && !extends)
        status = coord_quota_judge_workers(job, quota_in_flight_if(job, &next, job->entry_count),
                                           why);
    if (status == CAIRN_OK) status = coord_missed_judge(job, &next, why);
    if (status == CAIRN_OK && changes_tensors(amend) && member == NULL)
        status = fail_with(why, CAIRN_ERR_REFUSED, "only a worker may amend tensors");
    if (status == CAIRN_OK)
        status = extends ? extend_begin(job, member, &next, NULL, why)
                         : store_terms(job, &next, why);
    if (status != CAIRN_OK) spec_release(&next);
    return status;
}

/* Keeps a copy of the amendment until the amendment that is being stored is done. */
static cairn_status wait_for_another(struct coord_member *member, const Cairn__JobAmend *amend)
{
    uint8_t *bytes = malloc(cairn__job_amend__get_packed_size(amend) + 1);
    // frees an earlier request, which this one replaces
    cairn__job_amend__free_unpacked(member->amend.later, NULL);
    member->amend.later = NULL;
    if (bytes != NULL)
        member->amend.later = cairn__job_amend__unpack(NULL, cairn__job_amend__pack(amend, bytes),
                                                       bytes);
    free(bytes);
    return member->amend.later != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

/* With whom a job is shared trains it, and does not change it. */
static cairn_status judge_amender(const struct coord_member *member, struct sentence *why)
{
    const struct coord_session *session = member->session;
    const cairn_status status = coord_job_judge_access(coord_who(session), member->job,
                                                       CAIRN_ACCESS_OWN, why);
    if (status != CAIRN_OK)
        coord_audit_refused_peer(session->cluster, session->peer, "amend a job", why->text);
    return status;
}

/* Judges a worker's amendment, and begins it. The job changes as soon as the amendment is durable,
 * and the worker is answered after that. */
static void on_worker_amends(struct coord_member *member, uint32_t request, const void *any)
{
    const Cairn__JobAmend *amend = any;
    struct coord_job *job = member->job;
    const struct coord_amending *amending = job->amends.amending;
    struct sentence why = { "out of memory to amend it" };
    const bool again = amend->key != 0 && amend->key == job->spec.amend_key;
    member->amend.request = request;
    member->amend.revision = 0;
    if (extend_is(job, amend->key)) return; // the member has asked again, after a reconnect
    if (amending != NULL && amending->next.amend_key == amend->key) return;
    const cairn_status may = again ? CAIRN_OK : judge_amender(member, &why);
    const cairn_status status = may != CAIRN_OK || again ? may
                                : amending != NULL       ? wait_for_another(member, amend)
                                                         : amend_job(job, member, amend, &why);
    // An amendment that has begun, or waits, is answered when it is done.
    if (again || status != CAIRN_OK) answer_amender(member, status, why.text);
    // If a repeated request still waits, a shard lacks the spec, for example because it had no
    // room. So the shards are told again.
    if (again && member->amend.request != 0) coord_terms_tell_all(job);
}

/* ---- by an admin ---- */

static cairn_status judge_admin(const struct coord_job *job, struct sentence *why)
{
    if (job->state != CAIRN_CLUSTER_JOB_INITIALIZING && job->state != CAIRN_CLUSTER_JOB_RUNNING)
        return fail_with(why, CAIRN_ERR_NOT_READY, "job %s is %s: `cairn job show` says more",
                         job->spec.name, coord_job_state_name(job));
    if (job->amends.amending != NULL || !LIST_EMPTY(&job->amends.waiters))
        return fail_with(why, CAIRN_ERR_BUSY, "job %s is being amended; amend it when that is over",
                         job->spec.name);
    return CAIRN_OK;
}

/* Does for an admin what on_worker_amends does for a worker. */
static cairn_status on_job_amend(struct coord_session *session, uint32_t request, const void *any,
                                 struct sentence *why)
{
    const Cairn__JobAmend *amend = any;
    struct coord_job *job = coord_job_named(session->cluster, amend->name, why);
    if (job == NULL) return CAIRN_ERR_NOT_FOUND;
    CAIRN_TRY(judge_admin(job, why));
    CAIRN_TRY(coord_waiters_add(&job->amends.waiters, session, request, why));
    job->amends.revision = 0;
    const cairn_status status = amend_job(job, NULL, amend, why);
    if (status != CAIRN_OK) coord_waiters_fail(&job->amends.waiters, status, why->text);
    return CAIRN_OK;
}

/* ---- as an operation ---- */

static struct coord_steps *steps_of_amendment(struct coord_job *job)
{
    return &job->amends.steps;
}

static void release_amendment(struct coord_job *job)
{
    free_amending(job->amends.amending);
    coord_waiters_fail(&job->amends.waiters, CAIRN_ERR_CLOSED, "the job is another one now");
    coord_waiters_fail(&job->amends.rollbacks, CAIRN_ERR_CLOSED, "the job is another one now");
}

const struct coord_operation coord_amending = {
    .steps = steps_of_amendment,
    .lost = fail_amenders,
    .release = release_amendment,
    .being = "amended",
    .until = "until the amendment is stored",
};

/* ==== messages ==== */

const struct coord_row coord_amend_rows[] = {
    { CAIRN_MSG_JOB_AMEND, CAIRN_FROM_ADMIN, .asks = on_job_amend, .verb = "job amend",
      .awaits = CAIRN_AWAITS_REPORTS, .job = "name", .wants = CAIRN_ACCESS_OWN },
    { CAIRN_MSG_JOB_AMEND, CAIRN_FROM_WORKER, .by_member = on_worker_amends,
      .awaits = CAIRN_AWAITS_REPORTS },
    { 0 },
};
