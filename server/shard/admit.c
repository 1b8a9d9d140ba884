/* Which memory is taken when: a job's state, published copies and buffers of puts when it is created, the
 * landing slots of a worker when it joins; they are given back when it has left. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/extend.h"
#include "server/shard/shard.h"

/* ---- a job ---- */

/* An array of the state, without the gaps where the job keeps nothing of it. */
struct plane {
    const struct cairn_arena *arena;
    uint32_t kept; /* 1u << CAIRN_PLANE_..., of extents that have it; 0: of all that are trained */
};

static uint64_t bytes_kept(const struct plane *plane, const struct cairn_part *part,
                           uint64_t elem_count)
{
    if (plane->kept == 1u << CAIRN_PLANE_PARAM)
        return elem_count * cairn_dtype_bytes((int)part->master);
    const bool keeps = plane->kept == 0 ? part->trained : (part->planes & plane->kept) != 0;
    return keeps ? elem_count * sizeof(float) : 0;
}

static cairn_status add_plane(struct cairn_reserve *reserve, const struct cairn_shard_job *job,
                              const struct plane *plane)
{
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; i < job->map.extent_count && status == CAIRN_OK; i++) {
        const struct cairn_local_extent *extent = &job->map.extents[i];
        status = cairn_reserve_add(reserve, plane->arena, extent->local_elem * sizeof(float),
                                   bytes_kept(plane, &job->parts[i], extent->elem_count));
    }
    return status;
}

static cairn_status add_state(struct cairn_reserve *reserve, struct cairn_shard_job *job)
{
    const struct plane planes[] = { { &job->param, 1u << CAIRN_PLANE_PARAM },
                                    { &job->exp_avg, 1u << CAIRN_PLANE_EXP_AVG },
                                    { &job->exp_avg_sq, 1u << CAIRN_PLANE_EXP_AVG_SQ },
                                    { &job->acc, 0 } };
    const struct cairn_arena *whole[] = { &job->published[0].wire, &job->published[1].wire,
                                          &job->putting };
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < sizeof planes / sizeof *planes && status == CAIRN_OK; i++)
        if (planes[i].arena->base != NULL) status = add_plane(reserve, job, &planes[i]);
    for (size_t i = 0; i < sizeof whole / sizeof *whole && status == CAIRN_OK; i++)
        status = cairn_reserve_add(reserve, whole[i], 0, whole[i]->bytes);
    return status;
}

/* Loads or makes its state; or it is to be put. */
static cairn_status begin_state(struct cairn_shard_job *job, struct cairn_sentence *why)
{
    if (job->staged)
        return cairn_extend_begin(job, cairn_shard_job_find(job->shard, job->number), why);
    if (job->snapshot_path[0] != '\0')
        return cairn_restore_begin(job, job->snapshot_path, job->snapshot_digest, why);
    if (cairn_origin_wanted(job)) return cairn_origin_begin(job, why);
    job->state = CAIRN_JOB_INITIALIZING;
    cairn_session_answer(job->shard, &job->creating, CAIRN_OK, NULL);
    return CAIRN_OK;
}

static void on_state_taken(const struct cairn_reserve_request *request, cairn_status status,
                           const struct cairn_sentence *why)
{
    struct cairn_shard_job *job = request->job;
    struct cairn_sentence failure = *why;
    if (job->state != CAIRN_JOB_LOADING) return; // it leaves, and that was answered
    if (status == CAIRN_OK) {
        cairn_log_info("holding job %s, generation %llu: its memory is there", job->spec.name,
                       (unsigned long long)job->generation);
        status = begin_state(job, &failure);
    }
    if (status == CAIRN_OK) return;
    cairn_log_error("cannot hold job %s: %s", job->spec.name, failure.text);
    cairn_session_answer(job->shard, &job->creating, status, &failure);
    cairn_shard_job_leave(job);
}

cairn_status cairn_admit_job(struct cairn_shard_job *job, const Cairn__JobCreate *create,
                             struct cairn_sentence *why)
{
    job->snapshot_digest = create->digest;
    job->snapshot_path = strdup(create->snapshot_path);
    if (job->snapshot_path == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    job->state = CAIRN_JOB_LOADING;
    const struct cairn_reserve_request request = {
        .job = job, .what = "the state", .prepare = add_state, .done = on_state_taken
    };
    return cairn_reserve_begin(&request, why);
}

/* ---- members ---- */

/* A round's n-th worker has the n-th window of slots: server/core/step.h. */
static uint32_t slots_wanted(const struct cairn_shard_job *job)
{
    uint64_t workers = 0;
    for (size_t i = 0; i < job->member_capacity; i++)
        workers += job->members[i] != NULL && job->members[i]->role == CAIRN_ROLE_WIRE_WORKER;
    const uint64_t slots = workers * job->spec.window;
    return slots < job->slot_count ? (uint32_t)slots : job->slot_count;
}

static cairn_status count_slots(struct cairn_shard_job *job, struct cairn_sentence *why)
{
    const uint32_t wanted = slots_wanted(job);
    char what[CAIRN_NAME_MAX + 64];
    if (wanted <= job->slots_counted) return CAIRN_OK;
    const uint64_t bytes = (uint64_t)(wanted - job->slots_counted) * job->slot_bytes;
    snprintf(what, sizeof what, "landing memory of one more worker of job %s", job->spec.name);
    const cairn_status status = cairn_shard_job_take(job, &job->memory.landing, bytes, what, why);
    if (status == CAIRN_OK) job->slots_counted = wanted;
    return status;
}

/* For all that joined by now: whoever comes after finds it done. */
static cairn_status add_slots(struct cairn_reserve *reserve, struct cairn_shard_job *job)
{
    job->slots_asked = slots_wanted(job);
    if (job->slots_asked <= job->slots_taken) return CAIRN_OK;
    return cairn_reserve_add(reserve, &job->landing, (uint64_t)job->slots_taken * job->slot_bytes,
                             (uint64_t)(job->slots_asked - job->slots_taken) * job->slot_bytes);
}

static void on_slots_taken(const struct cairn_reserve_request *request, cairn_status status,
                           const struct cairn_sentence *why)
{
    struct cairn_shard_job *job = request->job;
    struct cairn_request answered = request->answer;
    const struct cairn_member *member = cairn_member_find(job, request->member);
    if (status == CAIRN_OK && job->slots_asked > job->slots_taken)
        job->slots_taken = job->slots_asked;
    job->slots_asked = job->slots_taken;
    if (status != CAIRN_OK && member != NULL) {
        cairn_log_warn("member %s of job %s refused: %s", member->name, job->spec.name, why->text);
        cairn_member_leave(job, request->member);
        job->landing_extra = true;
    }
    if (job->landing_extra)
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
    if (status == CAIRN_OK && slots_wanted(job) > job->slots_taken) {
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
    return cairn_step_phase_of(job->step) == CAIRN_STEP_IDLE &&
           cairn_step_slots_used(job->step) == 0 && job->slots_asked <= job->slots_taken;
}

void cairn_admit_left(struct cairn_shard_job *job)
{
    const uint32_t keep = slots_wanted(job);
    const bool is_extra = keep < job->slots_counted;
    job->landing_extra = is_extra && !landing_rests(job);
    if (!is_extra || job->landing_extra) return;
    if (keep < job->slots_taken) {
        cairn_arena_give(&job->landing, (uint64_t)keep * job->slot_bytes,
                         (uint64_t)(job->slots_taken - keep) * job->slot_bytes);
        job->slots_taken = job->slots_asked = keep;
    }
    cairn_shard_job_give(job, &job->memory.landing,
                         (uint64_t)(job->slots_counted - keep) * job->slot_bytes);
    job->slots_counted = keep;
}
