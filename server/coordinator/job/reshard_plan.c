/* Plans a re-sharding: its target, and whether the run is possible. See reshard.h. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "proto/plan/plan_job.h"
#include "proto/plan/reshard.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/member/standing.h"

#define SLICE_BYTES_MAX ((uint64_t)64 << 20)
#define SLICE_PART_MAX  0.02 /* of what the shard owns, where that is more */

/* ---- may it be? ---- */

static cairn_status judge_stage_0(const struct cairn_cluster_job *job,
                                  const struct cairn_cluster_reshard_wish *wish,
                                  struct cairn_sentence *why)
{
    const uint32_t owners = cairn_cluster_reshard_wish_owners(wish);
    if (job->spec.stage != 0 || owners == 1) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_INVALID,
                      "job %s has stage 0: one shard has all of its state, and it cannot be spread "
                      "over %" PRIu32
                      "; it can move to another one, or be made with stage 1 or more",
                      job->spec.name, owners);
}

static cairn_status judge(const struct cairn_cluster_job *job,
                          const struct cairn_cluster_reshard_wish *wish, struct cairn_sentence *why)
{
    if (job->state == CAIRN_CLUSTER_JOB_LOST)
        return cairn_fail(why, CAIRN_ERR_JOB_LOST, "job %s is %s", job->spec.name,
                          job->loss.why.text);
    if (job->state != CAIRN_CLUSTER_JOB_RUNNING || !job->initialized || job->core == NULL)
        return cairn_fail(why, CAIRN_ERR_NOT_READY, "job %s is %s: ask again when it runs",
                          job->spec.name, cairn_cluster_job_state_name(job));
    if (cairn_cluster_job_has_device(job) && job->spec.offload_fraction > 0)
        return cairn_fail(why, CAIRN_ERR_UNSUPPORTED,
                          "job %s has offload_fraction %g: what lies partly on devices cannot move "
                          "while it goes on: save it and restore it over the shards that it is to "
                          "have (`cairn snapshot create %s`, `cairn snapshot restore %s latest`)",
                          job->spec.name, job->spec.offload_fraction, job->spec.name,
                          job->spec.name);
    if (wish->count > job->shard_room)
        return cairn_fail(why, CAIRN_ERR_REFUSED,
                          "%d shards have joined job %s since the coordinator started, which are "
                          "the most: start the coordinator again, or restore a snapshot of the job",
                          CAIRN_JOB_JOINS_MAX, job->spec.name);
    for (uint32_t i = 0; i < wish->count; i++) {
        if (wish->shards[i].seat == NULL || cairn_cluster_seat_obeys(wish->shards[i].seat))
            continue;
        return cairn_fail(why, CAIRN_ERR_NOT_READY,
                          "shard %s is away: a re-sharding begins when all shards of it are here",
                          wish->shards[i].seat->name);
    }
    return judge_stage_0(job, wish, why);
}

static bool is_of(const Cairn__MemoryTold *told, const struct cairn_cluster_job *job)
{
    return told->job == job->id;
}

static uint64_t beside_state(const Cairn__MemoryTold *told)
{
    return told->landing + told->staging + told->tables;
}

/* The memory that a joining shard will need beside its state: as much as the most that one of
 * the job's other shards has. */
static uint64_t beside_state_max(const struct cairn_cluster_job *job)
{
    uint64_t most = 0;
    CAIRN_EACH_SHARD (job, s) {
        const struct cairn_cluster_seat *seat = job->shards[s].seat;
        for (size_t i = 0; seat != NULL && i < seat->memory_count; i++)
            if (is_of(&seat->memory[i], job) && beside_state(&seat->memory[i]) > most)
                most = beside_state(&seat->memory[i]);
    }
    return most;
}

/* The bytes of its device that a shard may use for state of the job, if room for a slice stays
 * free; 0: it keeps none there. */
static uint64_t device_capacity_of(const struct cairn_cluster_job *job,
                                   const struct cairn_cluster_seat *seat, uint64_t slice_bytes)
{
    const struct cairn_cluster_session *session = seat != NULL ? seat->session : NULL;
    if (session == NULL || session->home == NULL || session->home->total_bytes == 0 ||
        job->spec.offload_fraction > 0)
        return 0;
    uint64_t taken = session->home->taken_bytes + slice_bytes;
    for (size_t i = 0; i < seat->memory_count; i++)
        if (!is_of(&seat->memory[i], job)) taken += seat->memory[i].device;
    return taken < session->home->total_bytes ? session->home->total_bytes - taken : 1;
}

/* The bytes of its memory that a shard may use for state of the job, if room for a slice stays
 * free; 0: not known. A shard that has just come has not yet said what is taken, so all of its
 * memory counts. */
static uint64_t capacity_of(const struct cairn_cluster_job *job,
                            const struct cairn_cluster_seat *seat, uint64_t slice_bytes)
{
    uint64_t taken = slice_bytes;
    bool has_part = false;
    const uint64_t device = device_capacity_of(job, seat, slice_bytes);
    if (device > 0) return device;
    if (seat == NULL || seat->memory_bytes == 0) return 0;
    for (size_t i = 0; i < seat->memory_count; i++) {
        const Cairn__MemoryTold *told = &seat->memory[i];
        taken += beside_state(told);
        if (is_of(told, job))
            has_part = true;
        else
            taken += told->state + told->published;
    }
    if (!has_part) taken += beside_state_max(job);
    return taken < seat->memory_bytes ? seat->memory_bytes - taken : 1;
}

/* ---- the target ---- */

static uint64_t bytes_of(const struct cairn_cluster_job *job)
{
    uint64_t bytes = 0;
    for (size_t e = 0; e < job->layout->extent_count; e++)
        bytes += cairn_plan_extent_bytes(&job->spec, job->layout, &job->layout->extents[e]);
    return bytes;
}

/* A shard of it is being stopped, and ends in some seconds whatever has moved: no more than must moves. */
static int is_in_haste(const struct cairn_cluster_reshard_wish *wish)
{
    for (uint32_t i = 0; i < wish->count; i++)
        if (wish->shards[i].seat != NULL && wish->shards[i].seat->drain.request != 0) return 1;
    return 0;
}

/* The arrays about the shards that the planner asks for: [count] each, owned. */
struct asked {
    double *weights;
    uint64_t *capacities;
    const char **names;
};

static void asked_release(struct asked *asked)
{
    free(asked->weights);
    free(asked->capacities);
    free(asked->names);
}

static bool asked_init(struct asked *asked, const struct cairn_cluster_job *job,
                       const struct cairn_cluster_reshard_wish *wish)
{
    asked->weights = calloc((size_t)wish->count + 1, sizeof *asked->weights);
    asked->capacities = calloc((size_t)wish->count + 1, sizeof *asked->capacities);
    asked->names = calloc((size_t)wish->count + 1, sizeof *asked->names);
    if (asked->weights == NULL || asked->capacities == NULL || asked->names == NULL) {
        asked_release(asked);
        return false;
    }
    const uint64_t all = bytes_of(job);
    const uint64_t slice_bytes = all < SLICE_BYTES_MAX ? all : SLICE_BYTES_MAX;
    for (uint32_t i = 0; i < wish->count; i++) {
        const struct cairn_cluster_seat *seat = wish->shards[i].seat;
        asked->weights[i] = seat != NULL ? wish->shards[i].weight : 0;
        asked->capacities[i] = capacity_of(job, seat, slice_bytes);
        asked->names[i] = seat != NULL ? seat->name : "";
    }
    return true;
}

/* The most that a slice takes or gives at each shard, in bytes; [shard_count], malloc'ed. NULL: no memory. */
static uint64_t *limits_of(const struct cairn_cluster_job *job, uint32_t shard_count, uint64_t most)
{
    uint64_t *limits = calloc((size_t)shard_count + 1, sizeof *limits);
    if (limits == NULL) return NULL;
    for (size_t e = 0; e < job->layout->extent_count; e++) {
        const struct cairn_extent *extent = &job->layout->extents[e];
        limits[extent->shard] += cairn_plan_extent_bytes(&job->spec, job->layout, extent);
    }
    for (uint32_t i = 0; i < shard_count; i++) {
        const uint64_t part = (uint64_t)((double)limits[i] * SLICE_PART_MAX);
        const uint64_t top = part > SLICE_BYTES_MAX ? part : SLICE_BYTES_MAX;
        limits[i] = most < top ? most : top;
    }
    return limits;
}

/* The most that a slice brings any of them. */
static uint64_t largest_slice(const struct cairn_cluster_job *job, uint32_t shard_count)
{
    const uint64_t all = bytes_of(job);
    uint64_t *limits = limits_of(job, shard_count, all);
    uint64_t largest = limits == NULL ? all : 0;
    for (uint32_t i = 0; limits != NULL && i < shard_count; i++)
        if (limits[i] > largest) largest = limits[i];
    free(limits);
    return largest;
}

static cairn_status count_slices(const struct cairn_cluster_job *job,
                                 struct cairn_layout_tensor *tensors,
                                 struct cairn_cluster_reshard_target *target)
{
    uint64_t *limits = limits_of(job, target->layout->shard_count,
                                 cairn_cluster_reshard_slice_most(job));
    struct cairn_slice_left left = { 0 };
    if (limits == NULL) return CAIRN_ERR_NO_MEMORY;
    const struct cairn_slice_request request = { .tensors = tensors,
                                                 .tensor_count = (uint32_t)job->spec.tensor_count,
                                                 .current = job->layout,
                                                 .target = target->layout,
                                                 .limit_bytes = limits,
                                                 .chunk_leaves = job->spec.chunk_leaves };
    const cairn_status status = cairn_plan_slices_left(&request, &left);
    free(limits);
    target->slices = left.slices;
    return status;
}

void cairn_cluster_reshard_target_release(struct cairn_cluster_reshard_target *target)
{
    cairn_layout_close(target->layout);
    if (target->report != NULL) cairn_reshard_report_release(target->report);
    free(target->report);
    target->layout = NULL;
    target->report = NULL;
}

cairn_status cairn_cluster_reshard_plan(const struct cairn_cluster_job *job,
                                        const struct cairn_cluster_reshard_wish *wish,
                                        struct cairn_cluster_reshard_target *target_out,
                                        struct cairn_sentence *why)
{
    struct asked asked;
    struct cairn_cluster_reshard_target target = { NULL, NULL, 0 };
    cairn_status status = judge(job, wish, why);
    if (status != CAIRN_OK) return status;
    struct cairn_layout_tensor *tensors = cairn_plan_tensors(&job->spec);
    target.report = calloc(1, sizeof *target.report);
    if (tensors == NULL || target.report == NULL || !asked_init(&asked, job, wish)) {
        free(tensors);
        free(target.report);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    }
    const struct cairn_reshard_request request = {
        .tensors = tensors,
        .tensor_count = (uint32_t)job->spec.tensor_count,
        .current = job->layout,
        .shard_count = wish->count,
        .weights = asked.weights,
        .capacity_bytes = asked.capacities,
        .slice_bytes = largest_slice(job, wish->count),
        .least = is_in_haste(wish),
        .names = asked.names,
        .spread = job->spec.spread,
    };
    struct cairn_sentence reason = { "" };
    status = cairn_plan_reshard(&request, &target.layout, target.report, &reason);
    if (status == CAIRN_OK) status = count_slices(job, tensors, &target);
    free(tensors);
    asked_release(&asked);
    if (status == CAIRN_OK) {
        *target_out = target;
        return CAIRN_OK;
    }
    cairn_cluster_reshard_target_release(&target);
    return cairn_fail(why, status, "job %s cannot be spread so: %s", job->spec.name,
                      reason.text[0] != '\0' ? reason.text : cairn_status_text((int)status));
}

cairn_status cairn_cluster_reshard_slice(const struct cairn_cluster_job *job,
                                         struct cairn_layout **next_out, uint64_t *bytes_out)
{
    struct cairn_layout_tensor *tensors = cairn_plan_tensors(&job->spec);
    uint64_t *limits = limits_of(job, job->reshard.target->shard_count,
                                 cairn_cluster_reshard_slice_most(job));
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    *next_out = NULL;
    *bytes_out = 0;
    if (tensors != NULL && limits != NULL) {
        const struct cairn_slice_request request = {
            .tensors = tensors,
            .tensor_count = (uint32_t)job->spec.tensor_count,
            .current = job->layout,
            .target = job->reshard.target,
            .limit_bytes = limits,
            .chunk_leaves = job->spec.chunk_leaves,
        };
        status = cairn_plan_slice(&request, next_out, bytes_out);
    }
    free(tensors);
    free(limits);
    return status;
}
