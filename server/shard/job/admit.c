/* Which memory is taken when: a job's state, published copies and buffers of puts when it is created, the
 * landing slots and the reply of a worker when it joins; they are given back when it has left. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/job/admit.h"
#include "server/shard/job/create.h"
#include "server/shard/job/members.h"
#include "server/shard/job/open.h"
#include "server/shard/job/update.h"
#include "server/shard/shard.h"
#include "server/shard/state/extend.h"
#include "server/shard/state/origin.h"
#include "server/shard/state/restore.h"

/* ---- a job ---- */

static cairn_status add_state(struct cairn_reserve *reserve, struct cairn_shard_job *job)
{
    const struct cairn_arena *whole[] = { &job->versions.copies[0].wire,
                                          &job->versions.copies[1].wire, &job->puts.arena };
    cairn_status status = cairn_planes_reserve(&job->planes, reserve);
    for (size_t i = 0; i < sizeof whole / sizeof *whole && status == CAIRN_OK; i++)
        status = cairn_reserve_add(reserve, whole[i], 0, whole[i]->bytes);
    return status;
}

static void await_puts(struct cairn_shard_job *job)
{
    job->state = CAIRN_JOB_INITIALIZING;
    cairn_session_answer(job->shard, &job->load.asked, CAIRN_OK, NULL);
}

/* Loads or makes its state; or it is to be put. */
static cairn_status begin_state(struct cairn_shard_job *job, struct cairn_sentence *why)
{
    if (job->load.joins) {
        cairn_pass_seal(job);
        return CAIRN_OK;
    }
    if (job->staged)
        return cairn_extend_begin(job, cairn_shard_job_find(job->shard, job->number), why);
    if (job->load.path[0] != '\0') return cairn_restore_begin(job, why);
    if (cairn_origin_wanted(job)) return cairn_origin_begin(job, why);
    await_puts(job);
    return CAIRN_OK;
}

static void give_up(struct cairn_shard_job *job, cairn_status status,
                    const struct cairn_sentence *why)
{
    cairn_session_answer(job->shard, &job->load.asked, status, why);
    cairn_shard_job_leave(job);
}

/* There is room: what is read of a snapshot goes where pages are already. */
static void on_state_judged(const struct cairn_reserve_request *request)
{
    struct cairn_shard_job *job = request->job;
    struct cairn_sentence why;
    const bool reads = !job->load.joins && !job->staged && job->load.path[0] != '\0';
    if (job->state != CAIRN_JOB_LOADING || !reads) return;
    job->load.begun = cairn_restore_begin(job, &why) ==
                      CAIRN_OK; // else once more, behind the pages
}

static void on_took(struct cairn_shard_job *job, const void *at, uint64_t bytes)
{
    cairn_taken_add(&job->load.taken, at, bytes);
}

static void on_state_taken(const struct cairn_reserve_request *request, cairn_status status,
                           const struct cairn_sentence *why)
{
    struct cairn_shard_job *job = request->job;
    struct cairn_sentence failure = *why;
    cairn_taken_end(&job->load.taken, status == CAIRN_OK);
    if (job->state != CAIRN_JOB_LOADING) return; // it leaves, and that was answered
    if (status == CAIRN_OK) {
        cairn_log_info("holding job %s, generation %llu: its memory is there", job->spec.name,
                       (unsigned long long)job->generation);
        job->load.pages_there = true;
        if (!job->load.begun)
            status = begin_state(job, &failure);
        else if (job->load.loaded)
            cairn_pass_seal(job);
    }
    if (status == CAIRN_OK) return;
    cairn_log_error("cannot hold job %s: %s", job->spec.name, failure.text);
    give_up(job, status, &failure);
}

void cairn_admit_loaded(struct cairn_shard_job *job, cairn_status status,
                        const struct cairn_sentence *why, bool puts_follow)
{
    if (status != CAIRN_OK)
        give_up(job, status, why);
    else if (!job->load.pages_there)
        job->load.loaded = true; // it is sealed when they are
    else if (puts_follow)
        await_puts(job);
    else
        cairn_pass_seal(job);
}

cairn_status cairn_admit_job(struct cairn_shard_job *job, const Cairn__JobCreate *create,
                             struct cairn_sentence *why)
{
    job->load.digest = create->digest;
    job->load.joins = create->joins;
    job->load.path = strdup(create->snapshot_path);
    if (job->load.path == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    job->state = CAIRN_JOB_LOADING;
    const struct cairn_reserve_request request = { .job = job,
                                                   .what = "the state",
                                                   .prepare = add_state,
                                                   .prepares_on_thread = true,
                                                   .judged = on_state_judged,
                                                   .took = on_took,
                                                   .done = on_state_taken };
    return cairn_reserve_begin(&request, why);
}

/* ---- members ---- */

uint64_t cairn_landing_at(const struct cairn_landing *landing, uint32_t slot)
{
    const uint32_t have = landing->window - landing->in_place, large = have - landing->small;
    const uint32_t before = slot % landing->window, k = before < have ? before : have;
    const uint64_t window_bytes = large * (uint64_t)landing->slot_bytes +
                                  landing->small * (uint64_t)landing->small_bytes;
    return slot / landing->window * window_bytes +
           (k < large ? k : large) * (uint64_t)landing->slot_bytes +
           (k > large ? k - large : 0) * (uint64_t)landing->small_bytes;
}

static uint64_t bytes_between(const struct cairn_shard_job *job, uint32_t from, uint32_t to)
{
    return cairn_landing_at(&job->landing, to) - cairn_landing_at(&job->landing, from);
}

/* A round's n-th worker has the n-th window of slots: server/core/step.h. */
static uint32_t slots_wanted(const struct cairn_shard_job *job)
{
    uint64_t workers = 0;
    for (size_t i = 0; i < job->members.capacity; i++)
        workers += job->members.list[i] != NULL &&
                   job->members.list[i]->role == CAIRN_ROLE_WIRE_WORKER;
    const uint64_t slots = workers * job->landing.window;
    return slots < job->collector.slot_count ? (uint32_t)slots : job->collector.slot_count;
}

static cairn_status count_slots(struct cairn_shard_job *job, struct cairn_sentence *why)
{
    const uint32_t wanted = slots_wanted(job);
    char what[CAIRN_NAME_MAX + 64];
    if (wanted <= job->landing.counted) return CAIRN_OK;
    const uint64_t bytes = bytes_between(job, job->landing.counted, wanted);
    snprintf(what, sizeof what, "landing memory of one more worker of job %s", job->spec.name);
    const cairn_status status = cairn_shard_job_take(job, &job->memory.landing, bytes, what, why);
    if (status == CAIRN_OK) job->landing.counted = wanted;
    return status;
}

/* For all that joined by now: whoever comes after finds it done. */
static cairn_status add_slots(struct cairn_reserve *reserve, struct cairn_shard_job *job)
{
    job->landing.asked = slots_wanted(job);
    if (job->landing.asked <= job->landing.taken) return CAIRN_OK;
    return cairn_reserve_add(reserve, &job->landing.arena,
                             cairn_landing_at(&job->landing, job->landing.taken),
                             bytes_between(job, job->landing.taken, job->landing.asked));
}

static void on_slots_taken(const struct cairn_reserve_request *request, cairn_status status,
                           const struct cairn_sentence *why)
{
    struct cairn_shard_job *job = request->job;
    struct cairn_request answered = request->answer;
    const struct cairn_member *member = cairn_member_find(job, request->member);
    if (status == CAIRN_OK && job->landing.asked > job->landing.taken)
        job->landing.taken = job->landing.asked;
    job->landing.asked = job->landing.taken;
    if (status != CAIRN_OK && member != NULL) {
        cairn_log_warn("member %s of job %s refused: %s", member->name, job->spec.name, why->text);
        cairn_member_leave(job, request->member);
        job->landing.extra = true;
    }
    if (job->landing.extra)
        cairn_admit_left(job); // this one's, or those of others that left meanwhile
    cairn_session_answer(job->shard, &answered, status, why);
}

void cairn_admit_member(struct cairn_shard_job *job, uint64_t member, struct cairn_request answer)
{
    const struct cairn_reserve_request request = { .job = job,
                                                   .what = "landing memory of the workers",
                                                   .prepare = add_slots,
                                                   .done = on_slots_taken,
                                                   .member = member,
                                                   .answer = answer };
    struct cairn_sentence why;
    cairn_status status = count_slots(job, &why);
    if (status == CAIRN_OK) status = cairn_reply_keep(cairn_member_find(job, member), &why);
    if (status == CAIRN_OK && slots_wanted(job) > job->landing.taken) {
        status = cairn_reserve_begin(&request, &why);
        if (status == CAIRN_OK) return;
    }
    if (status != CAIRN_OK) {
        cairn_log_warn("a member of job %s refused: %s", job->spec.name, why.text);
        cairn_member_leave(job, member);
        cairn_admit_left(job);
    }
    cairn_session_answer(job->shard, &answer, status, &why);
}

/* Nothing lands or is folded, and no page is being made: a round has the windows from the lowest on. */
static bool landing_rests(const struct cairn_shard_job *job)
{
    return cairn_step_phase_of(job->collector.step) == CAIRN_STEP_IDLE &&
           cairn_step_slots_used(job->collector.step) == 0 &&
           job->landing.asked <= job->landing.taken;
}

static void on_turn(uv_timer_t *timer)
{
    struct cairn_shard *shard = timer->data;
    shard->memory.given_bytes = 0;
    for (struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next)
        if (job->landing.extra) cairn_admit_left(job);
    cairn_create_on_memory_back(shard);
}

/* How many slots this turn of the loop may give back: the last ones of those behind `keep`, as far
 * as the turn's bytes go, but at least one a turn. */
static uint32_t slots_of_turn(const struct cairn_shard_job *job, uint32_t keep)
{
    const struct cairn_shard *shard = job->shard;
    const uint32_t extra = job->landing.counted - keep;
    if (shard->memory.given_bytes >= shard->memory.give_max_bytes) return 0;
    const uint64_t room = shard->memory.give_max_bytes - shard->memory.given_bytes;
    uint32_t slots = 0;
    while (slots < extra &&
           bytes_between(job, job->landing.counted - slots - 1, job->landing.counted) <= room)
        slots++;
    return slots == 0 && shard->memory.given_bytes == 0 ? 1 : slots;
}

static void give_slots(struct cairn_shard_job *job, uint32_t keep)
{
    struct cairn_shard *shard = job->shard;
    const uint64_t bytes = bytes_between(job, keep, job->landing.counted);
    if (keep < job->landing.taken) {
        cairn_arena_give(&job->landing.arena, cairn_landing_at(&job->landing, keep),
                         bytes_between(job, keep, job->landing.taken));
        job->landing.taken = job->landing.asked = keep;
    }
    cairn_shard_job_give(job, &job->memory.landing, bytes);
    job->landing.counted = keep;
    shard->memory.given_bytes += bytes;
    uv_timer_start(&shard->memory.give_timer, on_turn, 0, 0);
}

void cairn_admit_left(struct cairn_shard_job *job)
{
    const uint32_t keep = slots_wanted(job);
    job->landing.extra = keep < job->landing.counted;
    if (!job->landing.extra || !landing_rests(job)) return;
    const uint32_t slots = slots_of_turn(job, keep);
    if (slots > 0) give_slots(job, job->landing.counted - slots);
    job->landing.extra = keep < job->landing.counted;
}
