/* This file makes and frees the jobs of a shard. It judges a JobCreate, takes the job's memory and
 * begins the job's state. */
#include <inttypes.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/geometry/layout.h"
#include "proto/plan/plan.h"
#include "server/shard/jobs.h"
#include "server/shard/memory.h"
#include "server/shard/part.h"
#include "server/shard/read.h"
#include "server/shard/relay.h"
#include "server/shard/shard.h"
#include "server/shard/state.h"

static void on_memory_back(struct shard_daemon *shard);

/* ---- what it is ---- */

cairn_status shard_job_layout(const struct shard_job *job, const struct paged *bytes,
                              struct layout **layout_out, struct sentence *why)
{
    const cairn_status status = plan_job_decode(&job->spec, bytes->bytes, bytes->have_bytes,
                                                layout_out);
    if (status != CAIRN_OK) {
        return fail_with(why, status, "the layout of %zu bytes does not fit the job's tensors: %s",
                         bytes->have_bytes, status_text((int)status));
    }
    return CAIRN_OK;
}

static cairn_status decode(struct shard_job *job, const Cairn__JobCreate *message,
                           const struct paged *spec, const struct paged *layout, struct need *need,
                           struct sentence *why)
{
    struct layout *decoded = NULL;
    CAIRN_TRY(spec_unpack(spec->bytes, spec->have_bytes, optimizer_names(), &job->spec, why));
    job->terms.revision = job->spec.revision;
    CAIRN_TRY(shard_job_layout(job, layout, &decoded, why));
    return shard_view_open(job, decoded, message->shard_index, message->member_max, &job->view,
                           need, why);
}

static void say_offload(const struct shard_job *job, const struct need *need)
{
    if (job->spec.offload_fraction <= 0) return;
    if (job->shard->device.home == NULL)
        log_info("job %s: offload_fraction %g means nothing here: all state lies in host memory",
                 job->spec.name, job->spec.offload_fraction);
    else
        log_info(
            "job %s: offload_fraction %g: %" PRIu64 " of %" PRIu64 " elements lie in host memory",
            job->spec.name, job->spec.offload_fraction,
            (job->view->table.map.elem_count - need->host_from), job->view->table.map.elem_count);
}

static void set_sizes(struct shard_job *job, struct need *need)
{
    if (need->host_from > 0) job->compute = &job->shard->device;
    say_offload(job, need);
    need->step.folds_wanted = shard_job_folds_wanted(job, &job->view->table.map, need->host_from);
    job->landing.window = need->step.window;
    job->landing.small = need->step.small;
    job->landing.in_place = need->step.in_place;
    job->landing.slot_bytes = need->slot_bytes;
    job->landing.small_bytes = need->small_bytes;
    job->puts.max = need->put_max;
    job->puts.bytes = need->put_bytes;
    job->replies.bytes = need->reply_bytes;
}

static cairn_status make_tables(struct shard_job *job, struct sentence *why)
{
    job->puts.have = calloc((size_t)job->view->table.map.chunk_count + 1, sizeof *job->puts.have);
    if (job->puts.have == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the chunks of a job");
    return shard_view_number(job->view, &job->spec, why);
}

/* ---- its memory ---- */

static cairn_status open_arenas(struct shard_job *job, const struct need *need,
                                struct sentence *why)
{
    cairn_status status = job->kept.from != NULL
                              ? kept_open_planes(job, need, why)
                              : planes_open(&job->planes, &job->view->table.map, job->view->forms,
                                            need->host_from, need->room_elems, why);
    job->versions.room_bytes = need->room_wire_bytes;
    if (status != CAIRN_OK) return status;
    CAIRN_TRY(arena_open_scratch("puts", (uint64_t)job->puts.max * job->puts.bytes,
                                 &job->puts.arena, why));
    CAIRN_TRY(arena_open_scratch("landing", landing_at(&job->landing, need->slot_count),
                                 &job->landing.arena, why));
    return need->memory.former > 0 ? former_open(job, why) : CAIRN_OK;
}

/* Opens the memory that only the loop thread may open: device memory, and memory that the fabric
 * shows. */
static cairn_status open_shown(struct shard_job *job, const struct need *need, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    if (need->host_from > 0) status = compute_begin(&job->shard->device, why);
    if (status == CAIRN_OK && need->host_from > 0)
        status = shard_view_place(job, job->view, NULL, why);
    job->planes.places = job->view->places;
    return status == CAIRN_OK ? published_open(job, why) : status;
}

static cairn_status frozen_init(struct frozen *frozen, const struct job_spec_data *spec)
{
    frozen->groups = calloc(spec->group_count + 1, sizeof *frozen->groups);
    frozen->tensors = calloc(spec->tensor_count + 1, sizeof *frozen->tensors);
    frozen->group_of = calloc(spec->tensor_count + 1, sizeof *frozen->group_of);
    if (frozen->groups == NULL || frozen->tensors == NULL || frozen->group_of == NULL)
        return CAIRN_ERR_NO_MEMORY;
    for (size_t t = 0; t < spec->tensor_count; t++) {
        const struct tensor_spec *tensor = &spec->tensors[t];
        if (tensor->kind == CAIRN_TRAINED)
            frozen->group_of[t] = (uint32_t)spec_find_group(spec, tensor->group);
    }
    return CAIRN_OK;
}

/* Makes the small arrays of a round. */
static cairn_status make_round(struct shard_job *job, struct sentence *why)
{
    cairn_status status = pass_open(job, &job->view->table);
    if (status == CAIRN_OK) status = tiles_open(job, &job->view->table);
    if (status == CAIRN_OK) status = frozen_init(&job->frozen, &job->spec);
    if (status == CAIRN_OK) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the rounds of a job");
}

/* ---- freed ---- */

/* Frees a job's tables, which the loop, the fabric and the budget no longer use. Runs on another
 * thread, because freeing a million tensors takes a quarter of a second. */
static void free_tables(void *arg)
{
    struct shard_job *job = arg;
    collector_close(&job->collector);
    free(job->pass.actions.list);
    pass_close(job);
    free(job->puts.have);
    former_close(&job->former, (uint32_t)job->spec.policy.keep_versions);
    free(job->frozen.groups);
    free(job->frozen.tensors);
    free(job->frozen.group_of);
    shard_view_unref(job->view);
    paged_release(&job->terms.amended, 1);
    free(job->stopped);
    spec_release(&job->spec);
    free(job);
}

/* Frees a job that is in no list. The budget counts its memory until the memory is unmapped; then
 * `request` (may be NULL) is answered. */
static void free_body(struct shard_job *job, const struct request *request)
{
    struct shard_daemon *shard = job->shard;
    tiles_close(job);
    collector_leave(&job->collector);
    planes_release(&job->planes, shard);
    arena_release(shard, &job->landing.arena);
    arena_release(shard, &job->puts.arena);
    arena_release(shard, &job->former.room);
    published_close(job);
    const uint64_t bytes = memory_sum(&job->memory);
    release_by(shard, free_tables, job);
    release_bytes(shard, bytes, request);
}

/* ---- the draft ---- */

/* A job that is being created, and is not in shard->jobs yet. */
struct shard_draft {
    struct shard_job *job; /* owned */
    struct need need;
    bool is_made;
};

static struct shard_job *new_job(struct shard_daemon *shard, const Cairn__JobCreate *message)
{
    struct shard_job *job = calloc(1, sizeof *job);
    if (job == NULL) return NULL;
    job->shard = shard;
    job->compute = &shard->host;
    job->number = message->job;
    job->generation = message->generation;
    job->base_step = message->step;
    job->staged = message->extend;
    job->state = CAIRN_JOB_INITIALIZING;
    job->landing.arena = job->puts.arena = job->former.room = CAIRN_ARENA_NONE;
    made_pages_open(&job->load.made);
    job->versions.writing = CAIRN_PUBLISHED_NONE;
    spec_init(&job->spec);
    return job;
}

/* Makes the draft of a job from a JobCreate whose spec and layout have arrived. Runs on any thread,
 * because a million tensors take seconds. CAIRN_ERR_MALFORMED, _INVALID, _UNSUPPORTED: the spec or
 * the layout is wrong. CAIRN_ERR_NO_MEMORY. */
static cairn_status draft_open(struct shard_daemon *shard, const Cairn__JobCreate *message,
                               const struct paged *spec, const struct paged *layout,
                               struct shard_draft **draft_out, struct sentence *why)
{
    struct shard_draft *draft = calloc(1, sizeof *draft);
    struct shard_job *job = draft != NULL ? new_job(shard, message) : NULL;
    if (job == NULL) {
        free(draft);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a job");
    }
    leaf_hash(spec->bytes, spec->have_bytes, &job->terms.digest);
    const cairn_status status = decode(job, message, spec, layout, &draft->need, why);
    terms_want(job, &job->spec.policy);
    if (status != CAIRN_OK) {
        free_tables(job);
        free(draft);
        return status;
    }
    draft->job = job;
    *draft_out = draft;
    return CAIRN_OK;
}

/* Closes a draft, and gives back the memory that was admitted for the draft. */
static void draft_close(void *made)
{
    struct shard_draft *draft = made;
    if (draft->job->staged) journal_resumed_free(draft->job->journal.from);
    free_body(draft->job, NULL);
    free(draft);
}

static bool draft_has_layout(const struct shard_draft *draft, const struct layout *layout)
{
    return memcmp(draft->job->view->layout->hash, layout->hash, CAIRN_LAYOUT_HASH_BYTES) == 0;
}

static cairn_status judge_create(const struct shard_draft *draft, const Cairn__JobCreate *message,
                                 struct sentence *why)
{
    const struct shard_job *job = draft->job;
    if (message->last != NULL && message->last->payload.len > draft->need.step.payload_bytes_max)
        return fail_with(why, CAIRN_ERR_INVALID, "a last decision of %zu bytes, at most %zu",
                         message->last->payload.len, draft->need.step.payload_bytes_max);
    if (job->spec.policy.audit_every != 0 && draft->need.host_from != 0)
        return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                         "job %s has audit_every = %" PRIu64
                         ", and its state would lie on a device of shard %s, which cannot be "
                         "audited: leave audit_every out, or set offload_fraction = 1",
                         job->spec.name, job->spec.policy.audit_every, job->shard->name);
    if (job->spec.policy.keep_versions != 0 && draft->need.host_from != 0)
        return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                         "job %s has keep_versions = %" PRIu64
                         ", and its state would lie on a device of "
                         "shard %s, where no former version is kept: leave keep_versions out, or "
                         "set offload_fraction = 1",
                         job->spec.name, job->spec.policy.keep_versions, job->shard->name);
    if (message->joins && !message->mirror && job->view->table.map.elem_count > 0)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "a part that joins must own nothing yet, but has %" PRIu64
                         " elements in layout %" PRIu64,
                         job->view->table.map.elem_count, job->view->layout->version);
    return CAIRN_OK;
}

static cairn_status judge_count(const struct shard_daemon *shard, struct sentence *why)
{
    size_t count = 0;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next) count++;
    if (count < CAIRN_SHARD_JOBS_MAX) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NO_MEMORY, "shard %s holds %zu jobs, the most it can",
                     shard->name, count);
}

/* Judges a create, and takes the job's memory from the budget for the draft. CAIRN_ERR_NO_MEMORY:
 * the job does not fit, and `why` has the numbers. CAIRN_ERR_INVALID. */
static cairn_status draft_admit(struct shard_draft *draft, const Cairn__JobCreate *message,
                                struct sentence *why)
{
    struct shard_job *job = draft->job;
    cairn_status status = judge_count(job->shard, why);
    if (status == CAIRN_OK) status = judge_create(draft, message, why);
    if (status != CAIRN_OK) return status;
    set_sizes(job, &draft->need);
    if (message->back) draft->need.memory.former = 0; // it takes over the room of the part before
    return admit_part(job, &draft->need, why);
}

/* Reads the log out of which a job that goes back is made, if it is made out of one. */
static cairn_status read_log(struct shard_job *job, size_t payload_max, struct sentence *why)
{
    struct journal_resumed *from = job->journal.from;
    if (from == NULL) return CAIRN_OK;
    CAIRN_TRY(journal_back_read(from, why));
    if (from->plan.step.last.payload_bytes <= payload_max) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID, "a last decision of %zu bytes, at most %zu",
                     from->plan.step.last.payload_bytes, payload_max);
}

/* Makes the tables of a draft that was admitted. Any thread. CAIRN_ERR_NO_MEMORY; and what reading a log
 * fails with. */
static cairn_status draft_make(struct shard_draft *draft, const Cairn__JobCreate *message,
                               struct sentence *why)
{
    struct shard_job *job = draft->job;
    struct step_config step = draft->need.step;
    step.joins = message->joins;
    cairn_status status = job->staged ? read_log(job, step.payload_bytes_max, why) : CAIRN_OK;
    // a worker determines the shapes, and so the size of the tables
    if (status == CAIRN_OK) status = make_tables(job, why);
    if (status == CAIRN_OK) status = open_arenas(job, &draft->need, why);
    if (status == CAIRN_OK) status = own_open(job, &step, message, why);
    if (status == CAIRN_OK) status = make_round(job, why);
    draft->is_made = status == CAIRN_OK;
    return status;
}

/* Takes over a draft that is made, and adds its job to the shard's jobs. After CAIRN_ERR_NO_MEMORY
 * or CAIRN_ERR_IO the draft is closed. */
static cairn_status job_open(struct shard_daemon *shard, struct shard_draft *draft,
                             struct shard_job **job_out, struct sentence *why)
{
    struct shard_job *job = draft->job;
    cairn_status status = judge_count(shard, why);
    if (status == CAIRN_OK) status = open_shown(job, &draft->need, why);
    if (status != CAIRN_OK) {
        draft_close(draft);
        return status;
    }
    free(draft);
    job->next = shard->jobs;
    shard->jobs = job;
    // A device copies these two in every round, or once for every chunk; it touches no planes in host memory.
    arena_pins_for(&job->landing.arena, job->compute->home);
    arena_pins_for(&job->puts.arena, job->compute->home);
    *job_out = job;
    return CAIRN_OK;
}

/* ---- the end ---- */

static void free_job(struct shard_job *job, const struct request *request)
{
    struct shard_job **link = &job->shard->jobs;
    while (*link != job) link = &(*link)->next;
    *link = job->next;

    shard_tell(job, SHARD_JOB_FREED);
    free_body(job, request);
}

void shard_job_free(struct shard_job *job)
{
    free_job(job, NULL);
}

/* Frees a job that is LEAVING. Called when nothing refers to the job any longer. */
static void job_unused(struct shard_job *job)
{
    struct shard_daemon *shard = job->shard;
    if (job->state != CAIRN_JOB_LEAVING || shard->closing) return; // shard_close frees the job
    log_info("dropped job %s, generation %" PRIu64 ": %" PRIu64 " bytes are being freed",
             job->spec.name, job->generation, memory_sum(&job->memory));
    const struct request dropping = job->dropping;
    free_job(job, &dropping);
    on_memory_back(shard);
}

void shard_job_leave(struct shard_job *job)
{
    assert(job->state != CAIRN_JOB_LEAVING);
    struct sentence why;
    sentence_set(&why, "job %s was dropped before it was ready", job->spec.name);
    if (job->load.asked.session != 0) {
        session_answer(job->shard, &job->load.asked, CAIRN_ERR_CANCELED, &why);
    }
    shard_job_busy(job); // keeps the job until this function ends
    job->state = CAIRN_JOB_LEAVING;
    shard_tell(job, SHARD_JOB_STOPS);
    shard_tell(job, SHARD_JOB_CANCELS);
    shard_tell(job, SHARD_JOB_LEAVES);
    collector_leave(&job->collector);
    shard_job_idle(job);
}

/* The function behind shard_job_fault. */
static void stop_job(struct shard_job *job, const char *why)
{
    if (job->state == CAIRN_JOB_FAULTED || job->state == CAIRN_JOB_LEAVING) return;
    job->state = CAIRN_JOB_FAULTED;
    job->stopped = strdup(why); // without memory the coordinator hears no reason
    collector_leave(&job->collector);
    shard_tell(job, SHARD_JOB_STOPS);
    log_error("job %s is stopped here, at version %" PRIu64 ".%" PRIu64 ": %s; restore a snapshot",
              job->spec.name, job->generation, step_version(job->collector.step).step, why);
    // The Hello of the next session does not name the job, so the coordinator sees that the job is
    // lost here.
    session_refuse(job->shard, CAIRN_ERR_PROTOCOL, "job %s on shard %s: %s", job->spec.name,
                   job->shard->name, why);
}

/* ==== admit ==== */

/* Memory is taken at two times. When a job is created, it gets its state, published copies and
 * buffers for puts. When a worker joins, it gets its landing slots and reply, which are given back
 * when it has left. */

static cairn_status add_state(struct reserve *reserve, struct shard_job *job)
{
    const struct arena *whole[] = { &job->versions.copies[0].wire, &job->versions.copies[1].wire,
                                    &job->puts.arena, &job->former.room };
    // what was kept has its pages
    cairn_status status = job->kept.from != NULL ? CAIRN_OK : planes_reserve(&job->planes, reserve);
    for (size_t i = 0; i < sizeof whole / sizeof *whole && status == CAIRN_OK; i++)
        status = reserve_add(reserve, whole[i], 0, whole[i]->bytes);
    return status;
}

static void await_puts(struct shard_job *job)
{
    job->state = CAIRN_JOB_INITIALIZING;
    session_answer(job->shard, &job->load.asked, CAIRN_OK, NULL);
}

/* True if the job names weights, or if a tensor here has an initializer. */
static bool origin_wanted(const struct shard_job *job)
{
    if (job->spec.init_from != NULL) return true;
    for (size_t i = 0; i < job->view->table.map.extent_count; i++) {
        const uint32_t tensor = job->view->table.map.extents[i].tensor;
        if (job->spec.tensors[tensor].init.kind != CAIRN_INIT_NONE) return true;
    }
    return false;
}

/* Loads or makes the job's state, or lets members put the state. */
static cairn_status begin_state(struct shard_job *job, struct sentence *why)
{
    if (job->kept.from != NULL) return pass_resume(job, why);
    if (job->load.joins) {
        pass_seal(job);
        return CAIRN_OK;
    }
    if (job->staged && job->journal.from == NULL)
        return extend_begin(job, shard_job_find(job->shard, job->number), why);
    if (job->load.path[0] != '\0') return restore_begin(job, why);
    if (origin_wanted(job)) return origin_begin(job, why);
    await_puts(job);
    return CAIRN_OK;
}

static void give_up(struct shard_job *job, cairn_status status, const struct sentence *why)
{
    session_answer(job->shard, &job->load.asked, status, why);
    shard_job_leave(job);
}

/* Begins to read a snapshot as soon as the memory is admitted. The snapshot is read into pages as
 * they are made. */
static void on_state_judged(const struct reserve_request *request)
{
    struct shard_job *job = request->job;
    struct sentence why;
    const bool reads = !job->load.joins && job->load.path[0] != '\0';
    if (job->state != CAIRN_JOB_LOADING || !reads) return;
    // if this failed, the reading begins when all pages are made
    job->load.begun = restore_begin(job, &why) == CAIRN_OK;
}

static void on_took(struct shard_job *job, const void *at, uint64_t bytes)
{
    made_pages_add(&job->load.made, at, bytes);
}

static void on_state_taken(const struct reserve_request *request, cairn_status status,
                           const struct sentence *why)
{
    struct shard_job *job = request->job;
    struct sentence failure = *why;
    made_pages_end(&job->load.made, status == CAIRN_OK);
    if (job->state != CAIRN_JOB_LOADING) return; // the job is leaving, and the request was answered
    if (status == CAIRN_OK) {
        log_info("holding job %s, generation %" PRIu64 ": its memory is there", job->spec.name,
                 job->generation);
        job->load.pages_there = true;
        if (!job->load.begun)
            status = begin_state(job, &failure);
        else if (job->load.loaded)
            journal_replay(job);
    }
    if (status == CAIRN_OK) return;
    log_error("cannot hold job %s: %s", job->spec.name, failure.text);
    give_up(job, status, &failure);
}

/* Seals the job, awaits puts, or makes the job leave, because the load has ended. */
static void on_loaded(struct shard_job *job, cairn_status status, const struct sentence *why,
                      bool puts_follow)
{
    if (status != CAIRN_OK)
        give_up(job, status, why);
    else if (!job->load.pages_there)
        job->load.loaded = true; // the job is sealed when the pages are made
    else if (puts_follow)
        await_puts(job);
    else
        journal_replay(job);
}

static void on_job_seal(struct shard_job *job, struct request asked, const void *seal)
{
    struct sentence why;
    const bool is_put = job->state == CAIRN_JOB_INITIALIZING,
               serves = job->state == CAIRN_JOB_SERVING;
    const cairn_status status = put_judge_seal(job, ((const Cairn__JobSeal *)seal)->moments_of,
                                               &why);
    if (status != CAIRN_OK || serves) {
        session_answer(job->shard, &asked, status, &why);
        return;
    }
    job->load.asked = asked; // the request is answered when LOADING or SEALING is done
    if (is_put) pass_seal(job);
}

/* Makes a job that was just opened LOADING. The job's memory is taken, then its state is loaded,
 * made or awaited (begin_state). At the end job->load.asked is answered by Done, or by an error,
 * after which the job leaves. */
static cairn_status admit_job(struct shard_job *job, const Cairn__JobCreate *create,
                              struct sentence *why)
{
    job->load.digest = create->digest;
    job->load.joins = create->joins;
    job->load.goes_back = create->back;
    job->load.back_to = (struct cairn_version) { create->back_generation, create->step };
    job->mirrors.is_mirror = create->mirror;
    const struct journal_resumed *from = job->journal.from;
    job->load.path = strdup(from != NULL ? from->base.path : create->snapshot_path);
    if (job->load.path == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    job->state = CAIRN_JOB_LOADING;
    const struct reserve_request request = { .job = job,
                                             .what = "the state",
                                             .prepare = add_state,
                                             .prepares_on_thread = true,
                                             .judged = on_state_judged,
                                             .took = on_took,
                                             .done = on_state_taken };
    return reserve_begin(&request, why);
}

/* ==== resume ==== */

/* Makes a job from a part that was kept (kept.h), or from its journal. If the status is CAIRN_OK the job has
 * taken it, and may have given it up already. The statuses of a JobCreate. */
static cairn_status resume_job(struct shard_daemon *shard, const struct kept_create *create,
                               struct kept_part *part, struct journal_resumed *journal,
                               struct sentence *why)
{
    struct shard_draft *draft;
    struct shard_job *job;
    CAIRN_TRY(draft_open(shard, &create->message, &create->spec, &create->layout, &draft, why));
    if (part != NULL) kept_take_part(draft->job, part);
    draft->job->journal.from = journal;
    cairn_status status = part != NULL ? kept_place(draft->job, why)
                                       : journal_take_terms(draft->job, why);
    if (status == CAIRN_OK) status = draft_admit(draft, &create->message, why);
    if (status == CAIRN_OK) status = draft_make(draft, &create->message, why);
    if (status != CAIRN_OK) {
        kept_leave_part(draft->job);
        draft->job->journal.from = NULL;
        draft_close(draft);
        return status;
    }
    CAIRN_TRY(job_open(shard, draft, &job, why));
    kept_is_pending(job);
    status = admit_job(job, &create->message, why);
    if (status == CAIRN_OK) return CAIRN_OK;
    log_error("cannot hold job %s, which a process before held: %s", job->spec.name, why->text);
    shard_job_leave(job);
    return CAIRN_OK;
}

static cairn_status resume_bytes(struct shard_daemon *shard, const struct kept_create *create,
                                 uint64_t *bytes_out, struct sentence *why)
{
    struct shard_draft *draft;
    CAIRN_TRY(draft_open(shard, &create->message, &create->spec, &create->layout, &draft, why));
    *bytes_out = admit_least_bytes(draft->job, &draft->need);
    draft_close(draft);
    return CAIRN_OK;
}

/* ==== create ==== */

static const struct arriving_kind create_kind;

static const Cairn__JobCreate *create_message(const struct arriving *create)
{
    return (const Cairn__JobCreate *)create->message;
}

/* Returns a job with that number, or NULL. Prefers a job that is not staged and not LEAVING, then a
 * staged job, then a job that is LEAVING. */
static struct shard_job *held_job(struct shard_daemon *shard, uint64_t number)
{
    struct shard_job *held = shard_job_find(shard, number);
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next) {
        if (job->number != number) continue;
        if (held == NULL || held->state == CAIRN_JOB_LEAVING) held = job;
    }
    return held;
}

static uint64_t newest_held(const struct shard_daemon *shard, uint64_t number)
{
    uint64_t newest = 0;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next) {
        if (job->number == number && job->generation > newest) newest = job->generation;
    }
    return newest;
}

/* Makes all generations of a job up to generation_max leave, except `but` (may be NULL). When a
 * generation is freed, a create that waited for this may make a newer generation. Returns true if
 * any generation left. */
static bool leave_all(struct shard_daemon *shard, uint64_t number, uint64_t generation_max,
                      const struct shard_job *but)
{
    bool left = false;
    struct shard_job *job = shard->jobs;
    while (job != NULL) {
        const bool leaves = job->number == number && job->generation <= generation_max &&
                            job != but && job->state != CAIRN_JOB_LEAVING;
        if (leaves) shard_job_leave(job);
        left |= leaves;
        job = leaves ? shard->jobs : job->next; // the job may have been freed
    }
    return left;
}

/* True if a message of this kind was dropped while a thread still works on it. */
static bool arriving_lingers(const struct shard_daemon *shard, const struct arriving_kind *kind)
{
    const struct arriving *arriving;
    TAILQ_FOREACH (arriving, &shard->arriving_dropped, link)
        if (arriving->kind == kind) break;
    return arriving != NULL;
}

/* True if memory is being given back. A dropped create also gives back memory, when the thread that
 * works on it has ended. */
static bool memory_comes_back(const struct shard_daemon *shard)
{
    return !LIST_EMPTY(&shard->memory.releases) || shard->memory.given_bytes > 0 ||
           arriving_lingers(shard, &create_kind);
}

/* Admits the create if there is room for the job. A thread then makes the job's tables; after that,
 * create_advance is called again. */
static void create_admit(struct shard_daemon *shard, struct arriving *create)
{
    struct sentence why;
    journals_yield(shard, create_message(create)->job);
    const cairn_status status = draft_admit(create->made, create_message(create), &why);
    if (status == CAIRN_OK)
        arriving_make(create);
    else
        arriving_end(shard, create, status, &why);
}

/* Takes the result of `prepare` and `make`, which then belongs to the caller. */
static void *arriving_take(struct arriving *arriving)
{
    void *made = arriving->made;
    arriving->made = NULL;
    return made;
}

/* Makes the job, or answers why it cannot be made. Waits until no memory is being given back.
 * Either no other job with this number is held, or the held job stays beside the new job. */
static void create_open(struct shard_daemon *shard, struct arriving *create)
{
    if (memory_comes_back(shard)) return;
    if (!((const struct shard_draft *)create->made)->is_made) {
        create_admit(shard, create);
        return;
    }
    struct shard_job *job;
    struct sentence why;
    cairn_status status = job_open(shard, arriving_take(create), &job, &why);
    if (status != CAIRN_OK) {
        arriving_end(shard, create, status, &why);
        return;
    }
    log_info("making room for job %s, generation %" PRIu64 ": %" PRIu64
             " elements in %zu extents, %" PRIu64 " bytes",
             job->spec.name, job->generation, job->view->table.map.elem_count,
             job->view->table.map.extent_count, memory_sum(&job->memory));
    status = admit_job(job, create_message(create), &why);
    if (status != CAIRN_OK) {
        arriving_end(shard, create, status, &why);
        shard_job_leave(job);
        return;
    }
    job->load.asked = session_request(shard, create->request); // answered later, by Done or Error
    arriving_drop(shard, create);
}

/* A create that goes back has the payload of the version that the serving part has kept; or it is made out of
 * that part's log. */
static cairn_status take_former(struct shard_job *from, struct arriving *create,
                                struct sentence *why)
{
    Cairn__JobCreate *message = (Cairn__JobCreate *)create->message;
    const struct cairn_version version = { message->back_generation, message->step };
    struct shard_job *job = ((struct shard_draft *)create->made)->job;
    uint32_t index;
    if (!message->back || message->last != NULL || job->journal.from != NULL) return CAIRN_OK;
    if (former_find(from, version, &index, why) != CAIRN_OK)
        return journal_back_open(from, version, &job->journal.from, why);
    if (former_give_payload(from, index, message) == CAIRN_OK) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to go back");
}

/* True if the create may be made out of the serving part's log, whose files change just now. */
static bool awaits_log(struct shard_daemon *shard, const struct arriving *create)
{
    const struct shard_job *from = shard_job_find(shard, create_message(create)->job);
    return create_message(create)->back && from != NULL && from->journal.op != NULL;
}

/* Creates a generation of a job beside the generation that it extends, which continues to serve. If
 * another generation that was given up earlier still exists, that one must leave first. */
static void create_beside(struct shard_daemon *shard, struct arriving *create)
{
    const uint64_t number = create_message(create)->job;
    struct shard_job *from = shard_job_find(shard, number);
    if (from == NULL) {
        struct sentence why;
        sentence_set(&why, "shard %s holds no part of job %016" PRIx64 " to extend", shard->name,
                     number);
        arriving_end(shard, create, CAIRN_ERR_NOT_FOUND, &why);
        return;
    }
    if (awaits_log(shard, create)) return; // op_done goes on
    // If other generations leave, the create resumes when they are freed. This may happen within
    // leave_all, so `create` may not be used afterwards.
    if (leave_all(shard, number, newest_held(shard, number), from)) return;
    struct sentence why;
    const cairn_status status = take_former(from, create, &why);
    if (status == CAIRN_OK)
        create_open(shard, create);
    else
        arriving_end(shard, create, status, &why);
}

/* Continues with a create that is complete, in a way that depends on the jobs that are held under
 * its number. */
static void create_advance(struct shard_daemon *shard, struct arriving *create)
{
    const Cairn__JobCreate *message = create_message(create);
    struct shard_job *held = held_job(shard, message->job);
    if (message->extend) {
        create_beside(shard, create);
        return;
    }
    if (held == NULL) {
        create_open(shard, create);
        return;
    }
    if (held->state == CAIRN_JOB_LEAVING) return; // the create resumes when the held job is freed
    if (message->generation > held->generation) {
        log_info("job %s: generation %" PRIu64 " replaces %" PRIu64, held->spec.name,
                 message->generation, held->generation);
        // The create resumes when the older generations are freed, which may happen within
        // leave_all.
        leave_all(shard, message->job, message->generation - 1, NULL);
        return;
    }
    if (message->generation == held->generation && held->state != CAIRN_JOB_FAULTED &&
        draft_has_layout(create->made, held->view->layout)) {
        // The coordinator lost the connection, and asks for the same job again.
        if (held->state == CAIRN_JOB_LOADING || held->state == CAIRN_JOB_SEALING) {
            held->load.asked = session_request(shard, create->request);
            arriving_drop(shard, create);
        } else {
            arriving_end(shard, create, CAIRN_OK, NULL);
        }
        return;
    }
    struct sentence why;
    sentence_set(&why,
                 "shard %s holds job %016" PRIx64 " in generation %" PRIu64
                 " already: only a higher one "
                 "replaces it, not %" PRIu64,
                 shard->name, message->job, held->generation, message->generation);
    arriving_end(shard, create, CAIRN_ERR_EXISTS, &why);
}

/* Makes the draft, and frees the pages. The pages are freed here, because freeing tens of MiB on
 * the loop thread would take milliseconds. */
static cairn_status create_prepare(struct arriving *create, void **made_out, struct sentence *why)
{
    struct shard_draft *draft = NULL;
    const cairn_status status = draft_open(create->shard, create_message(create),
                                           &create->paged[CAIRN_CREATE_SPEC],
                                           &create->paged[CAIRN_CREATE_LAYOUT], &draft, why);
    if (status == CAIRN_OK) *made_out = draft;
    paged_release(create->paged, CAIRN_ARRIVING_PAGED);
    return status;
}

static cairn_status create_make(const struct arriving *create, void *made, struct sentence *why)
{
    return draft_make(made, create_message(create), why);
}

static const struct arriving_kind create_kind = {
    .name = "a job",
    .prepare = create_prepare,
    .make = create_make,
    .unmake = draft_close,
    .what = { [CAIRN_CREATE_SPEC] = CAIRN_PAGE_SPEC, [CAIRN_CREATE_LAYOUT] = CAIRN_PAGE_LAYOUT },
    .bytes_at = { [CAIRN_CREATE_SPEC] = offsetof(Cairn__JobCreate, spec_bytes),
                  [CAIRN_CREATE_LAYOUT] = offsetof(Cairn__JobCreate, layout_bytes) },
    .whole = create_advance,
};

/* Continues creates that wait, if no more memory is being given back. Called when memory was given
 * back, or a job was freed. */
static void on_memory_back(struct shard_daemon *shard)
{
    struct arriving *create = TAILQ_FIRST(&shard->arriving);
    while (create != NULL && !memory_comes_back(shard)) {
        const bool is_one = create->kind == &create_kind && arriving_whole(create);
        const bool goes_on = is_one && !awaits_log(shard, create) &&
                             (create_message(create)->extend ||
                              held_job(shard, create_message(create)->job) == NULL);
        if (goes_on) create_advance(shard, create);
        create = goes_on ? TAILQ_FIRST(&shard->arriving)
                         : TAILQ_NEXT(create, link); // the list may have changed
    }
}

/* Ends all creates of the job that wait, or whose pages are still being received. */
static void end_creates(struct shard_daemon *shard, uint64_t number)
{
    struct sentence why;
    sentence_set(&why, "the job was dropped before it was made");
    for (struct arriving *create = TAILQ_FIRST(&shard->arriving), *next; create != NULL;
         create = next) {
        next = TAILQ_NEXT(create, link);
        if (create->kind == &create_kind && create_message(create)->job == number)
            arriving_end(shard, create, CAIRN_ERR_CANCELED, &why);
    }
}

static void on_drop(struct shard_daemon *shard, struct request asked, const void *body)
{
    const Cairn__JobDrop *message = body;
    end_creates(shard, message->job);
    journals_drop(shard, message->job);
    struct shard_job *job = held_job(shard, message->job);
    if (job == NULL) {
        session_answer(shard, &asked, CAIRN_OK, NULL);
        return;
    }
    job->dropping = asked; // the request is answered when the job's memory is given back
    const uint64_t newest = newest_held(shard, message->job);
    leave_all(shard, message->job, newest, NULL);
}

static void on_switch(struct shard_daemon *shard, const void *body)
{
    const Cairn__JobSwitch *message = body;
    struct shard_job *stays = shard->jobs;
    while (stays != NULL &&
           (stays->number != message->job || stays->generation != message->generation ||
            stays->state == CAIRN_JOB_LEAVING))
        stays = stays->next;
    if (stays == NULL) {
        log_warn("job %016" PRIx64 " is not held in generation %" PRIu64 ": nothing is switched",
                 message->job, message->generation);
        return;
    }
    struct shard_job *from = shard_job_find(shard, message->job);
    const bool was_staged = stays->staged;
    if (was_staged && stays->load.goes_back) former_hand_over(from, stays);
    stays->terms.settled = true;
    stays->staged = false;
    if (was_staged) kept_begin(stays); // before the other is forgotten, so that there is always one
    leave_all(shard, message->job, newest_held(shard, message->job), stays);
    if (was_staged)
        log_info("job %s: generation %" PRIu64 " serves", stays->spec.name, stays->generation);
}

static const struct shard_message messages[] = { { CAIRN_MSG_JOB_CREATE, .pages = &create_kind },
                                                 { CAIRN_MSG_JOB_DROP, .ask_shard = on_drop },
                                                 { CAIRN_MSG_JOB_SEAL, .ask_job = on_job_seal },
                                                 { CAIRN_MSG_JOB_SWITCH, .on_shard = on_switch },
                                                 { 0 } };
const struct shard_module create_module = { .messages = messages };

const struct shard_up shard_job_up = {
    .unused = job_unused,
    .fault = stop_job,
    .settle = own_settle,
    .loaded = on_loaded,
    .memory_back = on_memory_back,
    .resume = resume_job,
    .resume_bytes = resume_bytes,
    .resumed = connection_begin,
};
