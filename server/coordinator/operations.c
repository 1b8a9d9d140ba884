/* Carries out operations step by step, and asks or tells every operation of a job something. See
 * operations.h. */
#include "server/coordinator/operations.h"

#include <stddef.h>

#include "server/coordinator/cluster.h"

/* ==== steps ==== */

static void go_on(struct coord_steps *steps);

/* ---- a step's outcome ---- */

/* The operation ends, or its memory is free to go: nothing of it is under way any more. */
static void leave(struct coord_steps *steps)
{
    steps->at = NULL;
    steps->gather = NULL;
    steps->is_begun = steps->rests = steps->lacks_shard = false;
}

/* Takes the outcome of the present step. False: the operation has ended, and may be freed, or it rests. */
static bool conclude(struct coord_steps *steps, cairn_status status, struct sentence *why)
{
    const struct coord_operation_plan *plan = steps->plan;
    const struct coord_step *step = steps->at++;
    steps->gather = NULL;
    // `end` may cause an event of the core. The step counts as begun until then, so that the event
    // does not begin the next one.
    if (step->end != NULL) status = step->end(steps, status, why);
    steps->is_begun = false;
    if (status == CAIRN_OK) return !steps->rests;
    leave(steps);
    plan->failed(steps, status, why->text);
    return false;
}

/* Takes an outcome that was awaited, and goes on. */
static void take_outcome(struct coord_steps *steps, cairn_status status, const char *text)
{
    struct sentence why;
    sentence_set(&why, "%s", text);
    if (conclude(steps, status, &why)) go_on(steps);
}

/* The coordinator closes: no further step begins. */
static void close_steps(struct coord_steps *steps)
{
    leave(steps);
    if (steps->plan->release != NULL) steps->plan->release(steps);
}

/* ---- shards ---- */

static void on_answered(void *context, cairn_status status, const char *why)
{
    struct coord_steps *steps = context;
    if (steps->cluster->closing)
        close_steps(steps);
    else
        take_outcome(steps, status, why);
}

/* How a step begins. */
enum begun {
    AWAITS,    /* its outcome comes later, or has come and was taken */
    HAS_ENDED, /* the outcome is there */
    PUT_OFF,   /* it could not begin, and the next event or tick tries again */
    FAILS,     /* it could not begin, and nothing would try again */
};

static enum begun begin_question(struct coord_steps *steps, cairn_status *status,
                                 struct sentence *why)
{
    struct coord_gather *gather = coord_gather_open(steps->cluster, on_answered, steps);
    if (gather == NULL) {
        *status = fail_with(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
        return steps->job != NULL ? PUT_OFF : FAILS;
    }
    steps->gather = gather;
    steps->lacks_shard = false;
    *status = steps->at->begin(steps, why);
    if (*status == CAIRN_OK) {
        coord_gather_start(gather);
        return AWAITS;
    }
    coord_gather_drop(gather);
    return HAS_ENDED;
}

void coord_steps_give_question_up(struct coord_steps *steps, cairn_status status, const char *why)
{
    coord_gather_drop(steps->gather);
    take_outcome(steps, status, why);
}

void coord_steps_ask_all(struct coord_steps *steps, uint16_t type, const ProtobufCMessage *message)
{
    CAIRN_EACH_SHARD (steps->job, i)
        (void)coord_gather_send(steps->gather, steps->job->shards[i].entry, type, message);
}

/* ---- the store ---- */

static void forget_stored(struct coord_steps *steps)
{
    struct coord_steps **at = &steps->cluster->saves.steps;
    while (*at != NULL && *at != steps) at = &(*at)->next_stored;
    if (*at != NULL) *at = steps->next_stored;
    steps->stored = NULL;
}

bool coord_steps_stored(const struct coord_saved *saved, cluster_saved_fn stored)
{
    struct coord_steps *steps = saved->cluster->saves.steps;
    while (steps != NULL &&
           (steps->stored != stored || steps->stored_job != saved->job ||
            steps->stored_change != saved->change || steps->stored_number != saved->number))
        steps = steps->next_stored;
    if (steps == NULL) return false;
    forget_stored(steps);
    take_outcome(steps, saved->status, saved->why);
    return true;
}

static void on_stored(const struct coord_saved *saved)
{
    (void)coord_steps_stored(saved, on_stored);
}

static cairn_status save(struct coord_steps *steps, struct coord_job *job, enum store_change change,
                         struct packed *spec, uint64_t number, cluster_saved_fn stored,
                         struct sentence *why)
{
    CAIRN_TRY(coord_save_job(job, change, spec, number, stored, why));
    steps->stored = stored;
    steps->stored_job = job->id;
    steps->stored_change = change;
    steps->stored_number = number;
    steps->next_stored = steps->cluster->saves.steps;
    steps->cluster->saves.steps = steps;
    return CAIRN_OK;
}

cairn_status coord_steps_save(struct coord_steps *steps, struct coord_job *job,
                              enum store_change change, struct packed *spec, uint64_t number,
                              struct sentence *why)
{
    if (number == 0) number = coord_request_new(steps->cluster);
    return save(steps, job, change, spec, number, on_stored, why);
}

cairn_status coord_steps_save_as(struct coord_steps *steps, struct coord_job *job,
                                 enum store_change change, uint64_t number, cluster_saved_fn stored,
                                 struct sentence *why)
{
    return save(steps, job, change, NULL, number, stored, why);
}

/* ---- threads ---- */

static void run_step(struct coord_steps *steps)
{
    steps->status = steps->run(steps, &steps->why);
}

static void on_back(struct coord_steps *steps)
{
    const struct sentence why = steps->why;
    steps->has_thread = false;
    if (steps->at == NULL || steps->cluster->closing)
        close_steps(steps);
    else
        take_outcome(steps, steps->status, why.text);
}

static void run_work(struct coord_work *work)
{
    run_step((struct coord_steps *)work);
}

static void done_work(struct coord_work *work)
{
    on_back((struct coord_steps *)work);
}

static struct coord_steps *steps_of_task(struct task *task)
{
    return (struct coord_steps *)(void *)((char *)task - offsetof(struct coord_steps, task));
}

static void run_task(struct task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    run_step(steps_of_task(task));
}

static void done_task(struct task *task)
{
    on_back(steps_of_task(task));
}

/* Has `run` of the present step run on a thread: the store's, or any. */
static enum begun begin_thread(struct coord_steps *steps, cairn_status *status,
                               struct sentence *why)
{
    const struct coord_step *step = steps->at;
    if (steps->status == CAIRN_OK) steps->why.text[0] = '\0';
    steps->run = step->run;
    steps->has_thread = true;
    if (step->kind == CAIRN_STEP_STORE) {
        steps->task = (struct task) { .run = run_task, .done = done_task, .item_count = 1 };
        pool_submit(steps->cluster->saves.pool, &steps->task);
        return AWAITS;
    }
    const size_t bytes = step->bytes != NULL ? step->bytes(steps) : SIZE_MAX;
    steps->work.run = run_work;
    steps->work.done = done_work;
    if (coord_work_do(&steps->work, steps->cluster, NULL, 0, bytes)) return AWAITS;
    steps->has_thread = false;
    *status = fail_with(why, CAIRN_ERR_NO_MEMORY, "no thread for it");
    return HAS_ENDED;
}

/* ---- one step after another ---- */

static enum begun begin_step(struct coord_steps *steps, cairn_status *status, struct sentence *why)
{
    const struct coord_step *step = steps->at;
    steps->is_begun = true;
    if (step->kind == CAIRN_STEP_ASK) return begin_question(steps, status, why);
    *status = step->begin != NULL ? step->begin(steps, why) : CAIRN_OK;
    if (*status != CAIRN_OK || step->kind == CAIRN_STEP_DO) return HAS_ENDED;
    return step->run != NULL ? begin_thread(steps, status, why) : AWAITS;
}

/* Chooses the first step that need not be waited for. False: the operation waits. */
static bool find_step(struct coord_steps *steps)
{
    for (;; steps->at++) {
        const struct coord_step *step = steps->at;
        if (step->is_needed != NULL && !step->is_needed(steps)) continue;
        if (step->kind != CAIRN_STEP_WAIT) return true;
        if (step->is_ready == NULL || !step->is_ready(steps)) return false;
    }
}

/* Carries out steps until one has to be awaited. Whoever calls this must not use the operation
 * afterwards, because it may have ended. */
static void go_on(struct coord_steps *steps)
{
    const struct coord_operation_plan *plan = steps->plan;
    struct sentence why;
    cairn_status status;
    steps->rests = false;
    while (find_step(steps)) {
        if (steps->at->kind == CAIRN_STEP_LAST) {
            leave(steps);
            plan->done(steps);
            return;
        }
        why.text[0] = '\0';
        const enum begun begun = begin_step(steps, &status, &why);
        if (begun == AWAITS) return;
        if (begun == PUT_OFF) {
            steps->is_begun = false;
            return;
        }
        if (begun == FAILS) {
            leave(steps);
            plan->failed(steps, status, why.text);
            return;
        }
        if (!conclude(steps, status, &why)) return;
    }
}

/* ---- for the operations ---- */

void coord_steps_start(struct coord_steps *steps, const struct coord_operation_plan *plan,
                       struct coord *cluster, struct coord_job *job)
{
    steps->plan = plan;
    steps->cluster = cluster;
    steps->job = job;
    steps->at = plan->list;
}

void coord_steps_advance(struct coord_steps *steps)
{
    if (steps->at != NULL && !steps->is_begun) go_on(steps);
}

void coord_steps_go(struct coord_steps *steps, size_t step, bool rests)
{
    steps->at = &steps->plan->list[step];
    steps->rests = rests;
}

bool coord_steps_cancel(struct coord_steps *steps)
{
    if (steps->gather != NULL) coord_gather_drop(steps->gather);
    if (steps->stored != NULL) forget_stored(steps);
    leave(steps);
    return !steps->has_thread;
}

size_t coord_steps_at(const struct coord_steps *steps)
{
    return steps->at != NULL ? (size_t)(steps->at - steps->plan->list) : SIZE_MAX;
}

/* ==== the operations of a job ==== */

static const struct coord_operation *const operations[CAIRN_OPERATIONS] = {
    [CAIRN_OPERATION_MAKE] = &coord_making,           [CAIRN_OPERATION_RESTORE] = &coord_restoring,
    [CAIRN_OPERATION_DROP] = &coord_dropping,         [CAIRN_OPERATION_ADOPT] = &coord_adopting,
    [CAIRN_OPERATION_AMEND] = &coord_amending,        [CAIRN_OPERATION_EXTEND] = &coord_extending,
    [CAIRN_OPERATION_PARK] = &coord_parking,          [CAIRN_OPERATION_RESHARD] = &coord_resharding,
    [CAIRN_OPERATION_SNAPSHOT] = &coord_snapshotting,
};

/* ---- what is under way ---- */

/* Returns the operation's steps if it is under way by steps, else NULL. */
static struct coord_steps *steps_of(const struct coord_job *job, enum operation operation)
{
    const struct coord_operation *o = operations[operation];
    if (o->steps == NULL) return NULL;
    struct coord_steps *steps = o->steps((struct coord_job *)(uintptr_t)job);
    return steps != NULL && steps->at != NULL ? steps : NULL;
}

enum operation_stage coord_stage(const struct coord_job *job, enum operation operation)
{
    const struct coord_operation *o = operations[operation];
    if (o->stage != NULL) return o->stage(job);
    const struct coord_steps *steps = steps_of(job, operation);
    return steps != NULL ? steps->at->stage : CAIRN_STAGE_NONE;
}

const char *coord_job_state_name(const struct coord_job *job)
{
    switch (job->state) {
    case CAIRN_CLUSTER_JOB_CREATING:
        if (coord_stage(job, CAIRN_OPERATION_DROP) != CAIRN_STAGE_NONE) return "dropping";
        return coord_stage(job, CAIRN_OPERATION_RESTORE) != CAIRN_STAGE_NONE ? "restoring"
                                                                             : "creating";
    case CAIRN_CLUSTER_JOB_INITIALIZING: return "initializing";
    case CAIRN_CLUSTER_JOB_RUNNING:
        if (job->version_unknown) return "waiting";
        if (coord_stage(job, CAIRN_OPERATION_PARK) != CAIRN_STAGE_NONE) return "parked";
        return job->core != NULL && round_halted(job->core) ? "halted" : "running";
    case CAIRN_CLUSTER_JOB_LOST: return job->loss.behind ? "behind" : "lost";
    }
    return "?";
}

cairn_status coord_job_fail_not_running(const struct coord_job *job, struct sentence *why)
{
    if (job->state == CAIRN_CLUSTER_JOB_LOST)
        return fail_with(why, CAIRN_ERR_JOB_LOST, "job %s is %s", job->spec.name,
                         job->loss.why.text);
    return fail_with(why, CAIRN_ERR_NOT_READY, "job %s is %s: ask again when it runs",
                     job->spec.name, coord_job_state_name(job));
}

static struct operations stages_of(const struct coord_job *job)
{
    struct operations all;
    for (enum operation i = 0; i < CAIRN_OPERATIONS; i++) all.at[i] = coord_stage(job, i);
    return all;
}

unsigned coord_operations_hold(const struct coord_job *job)
{
    const struct operations all = stages_of(job);
    return operations_hold(&all);
}

cairn_status coord_operation_judge(const struct coord_job *job, enum operation asked,
                                   struct sentence *why)
{
    const struct operations all = stages_of(job);
    const enum operation other = operations_refuse(&all, asked);
    if (other == CAIRN_OPERATIONS) return CAIRN_OK;
    if (operations[other]->refuse != NULL) return operations[other]->refuse(job, why);
    return fail_with(why, CAIRN_ERR_BUSY, "job %s is being %s: ask again when that has ended",
                     job->spec.name, operations[other]->being);
}

bool coord_operation_may_begin(const struct coord_job *job, enum operation waiting)
{
    const struct operations all = stages_of(job);
    return job->core != NULL && operations_block(&all, waiting) == CAIRN_OPERATIONS;
}

bool coord_operation_may_begin_at_rest(const struct coord_job *job, enum operation waiting)
{
    if (job->rounds.in_event || !coord_operation_may_begin(job, waiting) ||
        round_stage_of(job->core) != CAIRN_ROUND_STEADY)
        return false;
    CAIRN_EACH_SHARD (job, i)
        if (!job->shards[i].up || job->shards[i].entry->session == NULL) return false;
    return true;
}

const char *coord_operation_waits(const struct coord_job *job, enum operation waiting)
{
    const struct operations all = stages_of(job);
    const enum operation other = operations_block(&all, waiting);
    return other != CAIRN_OPERATIONS ? operations[other]->until : NULL;
}

bool coord_operations_waiting(const struct coord_job *job, struct sentence *out)
{
    for (enum operation i = 0; i < CAIRN_OPERATIONS; i++) {
        const struct coord_steps *steps = steps_of(job, i);
        if (steps != NULL && steps->at->doing != NULL) {
            sentence_set(out, "%s", steps->at->doing);
            return true;
        }
        if (operations[i]->waiting != NULL && operations[i]->waiting(job, out)) return true;
    }
    return false;
}

/* ---- what happens to them ---- */

#define EACH_WITH(function)                               \
    for (enum operation i = 0; i < CAIRN_OPERATIONS; i++) \
        if (operations[i]->function != NULL) operations[i]->function

static void advance_one(struct coord_job *job, enum operation operation)
{
    const struct coord_operation *o = operations[operation];
    struct coord_steps *steps = steps_of(job, operation);
    if (steps != NULL) coord_steps_advance(steps);
    if (o->advance != NULL) o->advance(job);
}

void coord_operations_advance(struct coord_job *job)
{
    for (enum operation i = 0; i < CAIRN_OPERATIONS; i++) advance_one(job, i);
}

void coord_operations_tick(struct coord_job *job)
{
    for (enum operation i = 0; i < CAIRN_OPERATIONS; i++)
        if (operations[i]->tick != NULL)
            operations[i]->tick(job);
        else
            advance_one(job, i);
}

void coord_operations_stepped(struct coord_job *job)
{
    EACH_WITH(stepped)(job);
}

void coord_operations_shard_up(struct coord_job *job, const Cairn__HeldJob *part)
{
    EACH_WITH(shard_up)(job, part);
}

void coord_operations_shard_down(struct coord_job *job, uint32_t shard)
{
    for (enum operation i = 0; i < CAIRN_OPERATIONS; i++) {
        struct coord_steps *steps = steps_of(job, i);
        if (steps != NULL) steps->lacks_shard = true;
        if (operations[i]->shard_down != NULL) operations[i]->shard_down(job, shard);
    }
}

void coord_operations_lost(struct coord_job *job)
{
    EACH_WITH(lost)(job);
}

void coord_operations_release(struct coord_job *job)
{
    for (enum operation i = 0; i < CAIRN_OPERATIONS; i++) {
        struct coord_steps *steps = steps_of(job, i);
        if (steps != NULL && coord_steps_cancel(steps) && steps->plan->release != NULL)
            steps->plan->release(steps);
        if (operations[i]->release != NULL) operations[i]->release(job);
    }
}
