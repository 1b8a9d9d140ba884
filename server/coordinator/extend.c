/* A new generation of a job at the same step, with other tensors (added, tied, trained where they were
 * declared frozen) or other terms (rows of spec_fields.h that are REOPENED). In two phases, at a step
 * boundary while no round may open:
 *
 *   await    the gate of the core is shut; an open round ends, or is void if it would wait for the worker
 *            that amends
 *   make     every shard makes its part of the part that it has (JobCreate with `extend`) and keeps both
 *   store    spec, layout and generation become durable, in one write: from here on the new one is the job
 *   switch   the shards drop the old one; members are expelled, and open the job again
 *
 * What fails before `store` drops what was made, and the job goes on as it was. A coordinator that dies
 * leaves its store to the next: a shard that says it holds two generations is told which one that has. */
#include <inttypes.h>
#include <stdlib.h>

#include "proto/plan/plan.h"
#include "server/coordinator/job.h"
#include "server/coordinator/store.h"

bool coord_extend_is(const struct coord_job *job, uint64_t key)
{
    return job->extension.staged_job != NULL && job->extension.staged_job->spec.amend_key == key;
}

static void switch_all(const struct coord_job *job, uint64_t generation)
{
    CAIRN_EACH_SHARD (job, i) coord_job_send_switch(job, job->shards[i].entry, generation);
}

/* ---- the end ---- */

static void fail_waiting(struct coord_job *job, cairn_status status, const char *text)
{
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        coord_amend_failed(m, status, text);
    coord_waiters_fail(&job->amends.waiters, status, text);
}

void coord_extend_lost(struct coord_job *job)
{
    struct sentence why;
    if (job->extension.staged_job == NULL) return;
    sentence_set(&why, "job %s was not amended, and is %s", job->spec.name, job->loss.why.text);
    fail_waiting(job, CAIRN_ERR_JOB_LOST, why.text);
    coord_extension_release(job);
}

/* The job goes on as it was. */
static void give_up(struct coord_job *job, cairn_status status, const char *text)
{
    struct sentence why;
    sentence_set(&why, "job %s was not amended, it goes on as it was: %s", job->spec.name, text);
    log_fields(CAIRN_LOG_WARN, CAIRN_FIELDS({ "job", job->spec.name, 0 }), "%s", why.text);
    // To a worker CLOSED would mean that its own connection was lost.
    if (status == CAIRN_ERR_CLOSED) status = CAIRN_ERR_NOT_READY;
    fail_waiting(job, status, why.text);
    switch_all(job, job->generation);
    coord_extension_release(job);
    coord_gate_update(job); // opens the gate
    coord_openings_advance(job->cluster);
}

/* Joining members will retry with the new spec. Attached members have the old spec, so they must
 * leave. */
static void expel_all(struct coord_job *job, uint64_t revision)
{
    struct sentence text;
    sentence_set(&text,
                 "job %s was amended, revision %" PRIu64
                 ": its tensors or terms are others now; close it and open it again, with "
                 "the spec as it was or as it is",
                 job->spec.name, revision);
    while (job->members.list != NULL) {
        struct coord_member *m = job->members.list;
        coord_member_expel(m, m->open_request != 0 ? CAIRN_ERR_BUSY : CAIRN_ERR_REOPEN, text.text);
    }
}

/* Spec, layout and shards change places with those of the staged job. */
static void swap_in_staged_job(struct coord_job *job, struct coord_job *staged)
{
    const struct coord_job was = *job;
    job->spec = staged->spec;
    job->planned = staged->planned;
    job->layout = staged->layout;
    job->shards = staged->shards;
    job->shard_count = staged->shard_count;
    job->generation = staged->generation;
    job->reserved.generation = staged->reserved.generation;
    job->base_step = staged->base_step;
    job->members.read_bytes = 0;
    staged->spec = was.spec;
    staged->planned = was.planned;
    staged->layout = was.layout;
    staged->shards = was.shards;
}

/* It is durable. */
static void switch_over(struct coord_job *job)
{
    struct coord_job *staged = job->extension.staged_job;
    struct sentence why;
    job->extension = (struct coord_extension) { .staged_job = NULL };
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        coord_amend_done(m, staged->spec.revision);
    expel_all(job, staged->spec.revision);
    switch_all(job, staged->generation);
    coord_groups_forget(job);
    coord_job_core_close(job);
    coord_reshard_close(job);
    coord_layouts_release(job);
    job->layouts = (struct coord_layouts) { .before = NULL };
    coord_tiles_release(job);
    job->tiles = (struct coord_tiles) { 0 };
    job->gate = (struct coord_gate) { 0 };
    swap_in_staged_job(job, staged);
    coord_job_free(staged);
    log_info("job %s: amended, revision %" PRIu64 ", version %" PRIu64 ".%" PRIu64 ": %zu tensors",
             job->spec.name, job->spec.revision, job->generation, job->base_step,
             job->spec.tensor_count);
    coord_event_note(job->cluster, CAIRN_EVENT_AMENDED, job->spec.name, NULL,
                     "revision %" PRIu64 ", generation %" PRIu64, job->spec.revision,
                     job->generation);
    sentence_set(&job->rounds.epoch_reason, "the job was amended");
    if (coord_job_core_open(job, &why) != CAIRN_OK) coord_job_lose(job, false, "%s", why.text);
    Cairn__JobAmended amended = CAIRN__JOB_AMENDED__INIT;
    amended.revision = job->spec.revision;
    coord_waiters_answer(&job->amends.waiters, CAIRN_MSG_JOB_AMENDED, &amended.base);
    coord_reshard_go_on(job);
    coord_openings_advance(job->cluster);
}

static cairn_status judge_made(const struct coord_job *job, struct sentence *why)
{
    const struct coord_job *staged = job->extension.staged_job;
    const struct cairn_version now = coord_job_version(job);
    if (job->extension.broken)
        return fail_with(why, CAIRN_ERR_CLOSED, "a shard went away; amend it again");
    // The gate is shut and the shards were there: nothing can have happened.
    if (round_stage_of(job->core) != CAIRN_ROUND_STEADY || now.step != staged->base_step ||
        now.generation >= staged->generation)
        return fail_with(why, CAIRN_ERR_NOT_READY, "the job changed meanwhile; amend it again");
    return coord_job_judge_shards(staged, why);
}

static void on_put_back(const struct coord_saved *saved)
{
    if (saved->status != CAIRN_OK)
        log_error("job %016" PRIx64 ": the store has it as amended: %s", saved->job, saved->why);
}

/* It was lost before it became durable: it is what it was, and takes that generation no more. */
static void put_back(struct coord_job *job, uint64_t generation)
{
    struct sentence why;
    if (job->reserved.generation < generation) job->reserved.generation = generation;
    if (job->state == CAIRN_CLUSTER_JOB_CREATING) return; // restored, or dropped
    if (coord_save_job(job, CAIRN_STORE_JOB, NULL, 0, on_put_back, &why) != CAIRN_OK)
        log_error("job %s: the store has it as amended: %s", job->spec.name, why.text);
}

/* Durable: it is the job, whatever has become of its shards. */
static void on_stored(const struct coord_saved *saved)
{
    struct coord_job *job = coord_job_by_id(saved->cluster, saved->job);
    if (job == NULL) return;
    const bool ours = job->extension.staged_job != NULL &&
                      job->extension.staged_job->generation == saved->number;
    if (!ours && saved->status == CAIRN_OK) put_back(job, saved->number);
    if (ours && saved->status == CAIRN_OK) switch_over(job);
    if (ours && saved->status != CAIRN_OK) give_up(job, saved->status, saved->why);
}

static cairn_status store_staged_job(struct coord_job *job, struct sentence *why)
{
    struct coord_job *staged = job->extension.staged_job;
    staged->epoch = job->epoch;
    staged->reserved.round = job->reserved.round;
    staged->reserved.generation = job->reserved.generation > staged->generation
                                      ? job->reserved.generation
                                      : staged->generation;
    return coord_save_job(staged, CAIRN_STORE_JOB, NULL, staged->generation, on_stored, why);
}

/* About the amendment's key: the job may be under another one by then. */
static void on_made(struct coord_job *job, const void *about, cairn_status status, const char *text)
{
    struct sentence why;
    if (!coord_extend_is(job, *(const uint64_t *)about)) return;
    sentence_set(&why, "%s", text);
    if (status == CAIRN_OK) status = judge_made(job, &why);
    if (status == CAIRN_OK) status = store_staged_job(job, &why);
    if (status != CAIRN_OK) give_up(job, status, why.text);
}

/* ---- the beginning ---- */

static cairn_status plan_layout(const struct coord_job *job, struct coord_job *staged)
{
    const uint32_t count = (uint32_t)staged->spec.tensor_count;
    struct layout_tensor *tensors = plan_tensors(&staged->spec);
    uint32_t *was = calloc((size_t)count + 1, sizeof *was);
    uint8_t *closed = calloc((size_t)job->layout->shard_count + 1, sizeof *closed);
    cairn_status status = tensors == NULL || was == NULL || closed == NULL ? CAIRN_ERR_NO_MEMORY
                                                                           : CAIRN_OK;
    for (uint32_t i = 0; i < job->layout->shard_count && status == CAIRN_OK; i++)
        closed[i] = job->shards[i].entry == NULL || job->shards[i].entry->leaving ||
                    (coord_shard_unfit(job->shards[i].entry) && job->spec.offload_fraction < 1);
    for (uint32_t t = 0; t < count && status == CAIRN_OK; t++) {
        const size_t from = spec_find_tensor(&job->spec, staged->spec.tensors[t].name);
        // Aliases have no elements and no extents: what becomes one is as if it was gone.
        const bool kept = from != SIZE_MAX && (job->spec.tensors[from].alias_of == NULL &&
                                               staged->spec.tensors[t].alias_of == NULL);
        was[t] = kept ? (uint32_t)from : CAIRN_TENSOR_NEW;
    }
    if (status == CAIRN_OK)
        status = plan_extend(tensors, count, job->layout, was, closed, staged->spec.spread,
                             &staged->layout);
    free(tensors);
    free(was);
    free(closed);
    if (status != CAIRN_OK) return status;
    staged->planned.layout = packed_layout(staged->layout);
    return staged->planned.layout != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

/* The shards of the job as they are now. */
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

/* A slice of a re-sharding went before it: it is planned on what that came to. */
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

/* Takes `next` if it can. */
static cairn_status make_staged_job(const struct coord_job *job, struct job_spec_data *next,
                                    struct coord_job *staged, struct sentence *why)
{
    staged->cluster = job->cluster;
    staged->id = job->id;
    staged->state = CAIRN_CLUSTER_JOB_CREATING;
    staged->initialized = true;
    staged->spec = *next; // borrowed until the end
    cairn_status status = take_entries(job, staged);
    if (status == CAIRN_OK) staged->planned.spec = packed_spec(&staged->spec);
    if (staged->planned.spec == NULL) status = CAIRN_ERR_NO_MEMORY;
    if (status == CAIRN_OK) status = plan_layout(job, staged);
    sentence_set(why, "planning job %s: %s", job->spec.name, status_text((int)status));
    if (status == CAIRN_OK) status = coord_judge_packed(job->spec.name, staged->planned.spec, why);
    if (status == CAIRN_OK)
        status = coord_judge_packed(job->spec.name, staged->planned.layout, why);
    if (status != CAIRN_OK) spec_init(&staged->spec);
    return status;
}

/* ---- make ---- */

/* Asks all shards for their part of the staged job. */
static cairn_status send_make(struct coord_job *job, struct coord_job *staged,
                              const struct decision *last, struct sentence *why)
{
    const struct coord_create load = { .extend = true,
                                       .version = last->version_after,
                                       .last = last };
    const uint64_t key = staged->spec.amend_key;
    struct coord_gather *gather = coord_gather_open_job(job, on_made, &key, sizeof key);
    if (gather == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    coord_job_send_create(staged, &load, gather);
    job->extension.making = true;
    coord_gather_start(gather);
    return CAIRN_OK;
}

static void make_parts(struct coord_job *job)
{
    struct coord_job *staged = job->extension.staged_job;
    const struct cairn_version now = coord_job_version(job);
    const cairn_status planned = plan_anew(job, staged);
    if (planned != CAIRN_OK) {
        give_up(job, planned, status_text((int)planned));
        return;
    }
    staged->generation = now.generation + 1;
    staged->base_step = now.step;
    staged->origin = job->origin;                  // it goes on, with no step back
    struct decision last = *round_last(job->core); // schedule and loss scale go on
    last.kind = CAIRN_DECISION_NONE;
    last.version_after = (struct cairn_version) { staged->generation, staged->base_step };
    struct sentence why;
    uint8_t *with_missed = NULL, *with_terms = NULL;
    cairn_status told = coord_missed_extend(job, &staged->spec, &last, &with_missed, &why);
    if (told == CAIRN_OK)
        told = coord_settings_payload(&job->spec, &staged->spec, &last, &with_terms, &why);
    if (told == CAIRN_OK) told = send_make(job, staged, &last, &why);
    free(with_missed);
    free(with_terms);
    if (told != CAIRN_OK) give_up(job, told, why.text);
}

void coord_extend_advance(struct coord_job *job)
{
    if (job->extension.staged_job == NULL || job->extension.making || job->rounds.in_event ||
        coord_job_moves(job) || job->core == NULL ||
        round_stage_of(job->core) != CAIRN_ROUND_STEADY)
        return;
    CAIRN_EACH_SHARD (job, i)
        if (!job->shards[i].up || job->shards[i].entry->session == NULL) return;
    make_parts(job);
}

static cairn_status judge_begin(const struct coord_job *job, struct sentence *why)
{
    if (!job->initialized || job->state != CAIRN_CLUSTER_JOB_RUNNING)
        return fail_with(why, CAIRN_ERR_NOT_READY,
                         "job %s is %s: open it with the tensors and the terms that it is to have",
                         job->spec.name, coord_job_state_name(job));
    if (job->park.shut)
        return fail_with(why, CAIRN_ERR_NOT_READY,
                         "job %s is parked: `cairn job unpark %s`, and amend it then",
                         job->spec.name, job->spec.name);
    if (job->extension.staged_job != NULL || job->snapshots.running != NULL ||
        round_pin_pending(job->core))
        return fail_with(why, CAIRN_ERR_BUSY, "job %s is being %s; amend it when that is over",
                         job->spec.name, job->extension.staged_job != NULL ? "amended" : "saved");
    return CAIRN_OK;
}

/* The worker waits for the amendment, and would let the round that is open wait for itself. */
static void give_round_up(struct coord_job *job, const struct coord_member *member)
{
    if (member == NULL || round_stage_of(job->core) != CAIRN_ROUND_OPEN ||
        !round_contributes(job->core, member->id))
        return;
    sentence_set(&job->rounds.epoch_reason, "worker %s (rank %" PRIu32 ") amends the job",
                 member->session->name, member->rank);
    const struct round_event event = { .kind = CAIRN_ROUND_WORKER_ABANDON,
                                       .member = member->id,
                                       .round = round_open_round(job->core) };
    coord_job_event(job, &event);
}

cairn_status coord_extend_begin(struct coord_job *job, struct coord_member *member,
                                struct job_spec_data *next, struct sentence *why)
{
    CAIRN_TRY(judge_begin(job, why));
    coord_snapshot_unprepare(job); // the staged job needs the memory
    struct coord_job *staged = calloc(1, sizeof *staged);
    cairn_status status = staged == NULL ? fail_with(why, CAIRN_ERR_NO_MEMORY,
                                                     "the coordinator is out of memory")
                                         : make_staged_job(job, next, staged, why);
    if (status != CAIRN_OK) {
        if (staged != NULL) coord_job_free(staged);
        return status;
    }
    job->extension.staged_job = staged;
    if (member != NULL)
        log_info("job %s: %s (rank %" PRIu32 ") amends it, in a new generation", job->spec.name,
                 member->session->name, member->rank);
    coord_gate_update(job); // shuts the gate
    give_round_up(job, member);
    coord_extend_advance(job);
    return CAIRN_OK;
}
