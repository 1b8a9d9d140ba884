#include "server/shard/job/create.h"

#include <stdlib.h>
#include <string.h>

#include "server/shard/job/admit.h"
#include "server/shard/job/members.h"
#include "server/shard/job/open.h"
#include "server/shard/shard.h"

static const struct cairn_arriving_kind create_kind;

static const Cairn__JobCreate *create_message(const struct cairn_arriving *create)
{
    return (const Cairn__JobCreate *)create->message;
}

/* The job of that number; without it one that is staged, without that one that is LEAVING. */
static struct cairn_shard_job *held_job(struct cairn_shard *shard, uint64_t number)
{
    struct cairn_shard_job *held = cairn_shard_job_find(shard, number);
    for (struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next) {
        if (job->number != number) continue;
        if (held == NULL || held->state == CAIRN_JOB_LEAVING) held = job;
    }
    return held;
}

static uint64_t newest_held(const struct cairn_shard *shard, uint64_t number)
{
    uint64_t newest = 0;
    for (const struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next) {
        if (job->number == number && job->generation > newest) newest = job->generation;
    }
    return newest;
}

/* Makes the generations of the job up to generation_max leave, except `but`. When one of them is
 * freed, a create that waited may make a newer one. True if any left. */
static bool leave_all(struct cairn_shard *shard, uint64_t number, uint64_t generation_max,
                      const struct cairn_shard_job *but)
{
    bool left = false;
    struct cairn_shard_job *job = shard->jobs;
    while (job != NULL) {
        const bool leaves = job->number == number && job->generation <= generation_max &&
                            job != but && job->state != CAIRN_JOB_LEAVING;
        if (leaves) cairn_shard_job_leave(job);
        left |= leaves;
        job = leaves ? shard->jobs : job->next; // it may be freed
    }
    return left;
}

/* A create that was dropped has what was admitted of it until its thread is through. */
static bool memory_comes_back(const struct cairn_shard *shard)
{
    return shard->memory.releases != NULL || shard->memory.given_bytes > 0 ||
           cairn_arriving_lingers(shard, &create_kind);
}

/* There is room for the job: a thread makes its tables, and the create is whole once more. */
static void create_admit(struct cairn_shard *shard, struct cairn_arriving *create)
{
    struct cairn_sentence why;
    const cairn_status status = cairn_shard_draft_admit(cairn_arriving_made(create),
                                                        create_message(create), &why);
    if (status == CAIRN_OK)
        cairn_arriving_make(create);
    else
        cairn_arriving_end(shard, create, status, &why);
}

/* Nothing of the job's number is held, or what is held stays beside it: makes it, or says why not; when what
 * is being given back is there. */
static void create_open(struct cairn_shard *shard, struct cairn_arriving *create)
{
    if (memory_comes_back(shard)) return;
    if (!cairn_shard_draft_is_made(cairn_arriving_made(create))) {
        create_admit(shard, create);
        return;
    }
    struct cairn_shard_job *job;
    struct cairn_sentence why;
    cairn_status status = cairn_shard_job_open(shard, cairn_arriving_take(create), &job, &why);
    if (status != CAIRN_OK) {
        cairn_arriving_end(shard, create, status, &why);
        return;
    }
    cairn_log_info(
        "making room for job %s, generation %llu: %llu elements in %zu extents, %llu bytes",
        job->spec.name, (unsigned long long)job->generation,
        (unsigned long long)job->view->table.map.elem_count, job->view->table.map.extent_count,
        (unsigned long long)cairn_memory_sum(&job->memory));
    status = cairn_admit_job(job, create_message(create), &why);
    if (status != CAIRN_OK) {
        cairn_arriving_end(shard, create, status, &why);
        cairn_shard_job_leave(job);
        return;
    }
    job->load.asked = cairn_session_request(shard, create->request); // Done follows
    cairn_arriving_drop(shard, create);
}

/* Creates a new generation beside the one that it extends, which goes on serving. A generation that
 * was given up earlier may still be there: it leaves first. */
static void create_beside(struct cairn_shard *shard, struct cairn_arriving *create)
{
    const uint64_t number = create_message(create)->job;
    const struct cairn_shard_job *from = cairn_shard_job_find(shard, number);
    if (from == NULL) {
        struct cairn_sentence why;
        cairn_sentence_set(&why, "shard %s holds no part of job %016llx to extend", shard->name,
                           (unsigned long long)number);
        cairn_arriving_end(shard, create, CAIRN_ERR_NOT_FOUND, &why);
        return;
    }
    // Freed at once or later: the create goes on then, and may be gone by now.
    if (!leave_all(shard, number, newest_held(shard, number), from)) create_open(shard, create);
}

/* A whole create meets what is held of its number. */
static void create_advance(struct cairn_shard *shard, struct cairn_arriving *create)
{
    const Cairn__JobCreate *message = create_message(create);
    struct cairn_shard_job *held = held_job(shard, message->job);
    if (message->extend) {
        create_beside(shard, create);
        return;
    }
    if (held == NULL) {
        create_open(shard, create);
        return;
    }
    if (held->state == CAIRN_JOB_LEAVING) return; // goes on when it is freed
    if (message->generation > held->generation) {
        cairn_log_info("job %s: generation %llu replaces %llu", held->spec.name,
                       (unsigned long long)message->generation,
                       (unsigned long long)held->generation);
        // The create goes on when they are freed: now, or later.
        leave_all(shard, message->job, message->generation - 1, NULL);
        return;
    }
    if (message->generation == held->generation && held->state != CAIRN_JOB_FAULTED &&
        cairn_shard_draft_has_layout(cairn_arriving_made(create), held->view->layout)) {
        // Asked again after a lost connection.
        if (held->state == CAIRN_JOB_LOADING || held->state == CAIRN_JOB_SEALING) {
            held->load.asked = cairn_session_request(shard, create->request);
            cairn_arriving_drop(shard, create);
        } else {
            cairn_arriving_end(shard, create, CAIRN_OK, NULL);
        }
        return;
    }
    struct cairn_sentence why;
    cairn_sentence_set(&why,
                       "shard %s holds job %016llx in generation %llu already: only a higher one "
                       "replaces it, not %llu",
                       shard->name, (unsigned long long)message->job,
                       (unsigned long long)held->generation,
                       (unsigned long long)message->generation);
    cairn_arriving_end(shard, create, CAIRN_ERR_EXISTS, &why);
}

/* The pages go here, too: tens of MiB take the loop milliseconds. */
static cairn_status create_prepare(struct cairn_arriving *create, void **made_out,
                                   struct cairn_sentence *why)
{
    struct cairn_shard_draft *draft = NULL;
    const cairn_status status = cairn_shard_draft_open(
        create->shard, create_message(create), &create->paged[CAIRN_CREATE_SPEC],
        &create->paged[CAIRN_CREATE_LAYOUT], &draft, why);
    if (status == CAIRN_OK) *made_out = draft;
    for (int i = 0; i < CAIRN_ARRIVING_PAGED; i++) cairn_paged_release(&create->paged[i]);
    return status;
}

static cairn_status create_make(const struct cairn_arriving *create, void *made,
                                struct cairn_sentence *why)
{
    return cairn_shard_draft_make(made, create_message(create), why);
}

static void create_unmake(void *made)
{
    cairn_shard_draft_close(made);
}

static const struct cairn_arriving_kind create_kind = {
    .name = "a job",
    .prepare = create_prepare,
    .make = create_make,
    .unmake = create_unmake,
    .what = { [CAIRN_CREATE_SPEC] = CAIRN_PAGE_SPEC, [CAIRN_CREATE_LAYOUT] = CAIRN_PAGE_LAYOUT },
    .whole = create_advance,
};

void cairn_create_on_memory_back(struct cairn_shard *shard)
{
    struct cairn_arriving *create = shard->arriving;
    while (create != NULL && !memory_comes_back(shard)) {
        const bool is_one = create->kind == &create_kind && cairn_arriving_whole(create);
        const bool goes_on = is_one && (create_message(create)->extend ||
                                        held_job(shard, create_message(create)->job) == NULL);
        if (goes_on) create_advance(shard, create);
        create = goes_on ? shard->arriving : create->next; // the list changed
    }
}

void cairn_create_on_message(struct cairn_shard *shard, uint32_t request, Cairn__JobCreate *message)
{
    const uint64_t bytes[] = {
        [CAIRN_CREATE_SPEC] = message->spec_bytes, [CAIRN_CREATE_LAYOUT] = message->layout_bytes
    };
    cairn_arriving_begin(shard, &create_kind, request, &message->base, bytes);
}

/* Ends the creates of that job that wait, or whose pages are on their way. */
static void end_creates(struct cairn_shard *shard, uint64_t number)
{
    struct cairn_sentence why;
    cairn_sentence_set(&why, "the job was dropped before it was made");
    for (struct cairn_arriving *create = shard->arriving, *next; create != NULL; create = next) {
        next = create->next;
        if (create->kind == &create_kind && create_message(create)->job == number)
            cairn_arriving_end(shard, create, CAIRN_ERR_CANCELED, &why);
    }
}

void cairn_create_on_drop(struct cairn_shard *shard, uint32_t request,
                          const Cairn__JobDrop *message)
{
    struct cairn_request answered = cairn_session_request(shard, request);
    end_creates(shard, message->job);
    struct cairn_shard_job *job = held_job(shard, message->job);
    if (job == NULL) {
        cairn_session_answer(shard, &answered, CAIRN_OK, NULL);
        return;
    }
    job->dropping = answered; // answered when its memory is back
    const uint64_t newest = newest_held(shard, message->job);
    leave_all(shard, message->job, newest, NULL);
}

void cairn_create_on_switch(struct cairn_shard *shard, const Cairn__JobSwitch *message)
{
    struct cairn_shard_job *stays = shard->jobs;
    while (stays != NULL &&
           (stays->number != message->job || stays->generation != message->generation ||
            stays->state == CAIRN_JOB_LEAVING))
        stays = stays->next;
    if (stays == NULL) {
        cairn_log_warn("job %016llx is not held in generation %llu: nothing is switched",
                       (unsigned long long)message->job, (unsigned long long)message->generation);
        return;
    }
    leave_all(shard, message->job, newest_held(shard, message->job), stays);
    stays->terms.settled = true;
    if (!stays->staged) return;
    stays->staged = false;
    cairn_log_info("job %s: generation %llu serves", stays->spec.name,
                   (unsigned long long)stays->generation);
}
