/* A generation of a job, made of the one that serves: tensors that both have are copied, those that are
 * new begin by their initializer, moments that there were none of at 0. On the compute pool, a chunk an item.
 *
 * No table changes for a tensor that stays (proto/wire/plan.h), so each extent has one to be copied from,
 * or is of a new tensor. The coordinator opens no round meanwhile; a version that changed is noticed. */
#include "server/shard/extend.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/initializer.h"

#define NEW UINT32_MAX

struct cairn_extend {
    struct cairn_task task;
    struct cairn_shard_job *job;  /* borrowed */
    struct cairn_shard_job *from; /* borrowed; kept by being busy */
    struct cairn_version version; /* of `from` */
    atomic_bool canceled;
    uint32_t source[]; /* [job->map.extent_count] an extent of `from`, or NEW */
};

static bool same_form(const struct cairn_tensor_spec *a, const struct cairn_tensor_spec *b)
{
    return a->shape.rank == b->shape.rank && a->master == b->master &&
           memcmp(a->shape.dim, b->shape.dim, a->shape.rank * sizeof *a->shape.dim) == 0;
}

/* The extent of `from` that has the elements of the job's extent i. */
static cairn_status find_source(struct cairn_extend *extend, size_t i, struct cairn_sentence *why)
{
    const struct cairn_shard_job *job = extend->job, *from = extend->from;
    const struct cairn_local_extent *extent = &job->map.extents[i];
    const struct cairn_tensor_spec *tensor = &job->spec.tensors[extent->tensor];
    const size_t was = cairn_spec_find_tensor(&from->spec, tensor->name);
    extend->source[i] = NEW;
    if (was == SIZE_MAX && tensor->init.kind != CAIRN_INIT_NONE) return CAIRN_OK;
    if (was == SIZE_MAX)
        return cairn_fail(why, CAIRN_ERR_INVALID, "tensor %s is new and has no initializer",
                          tensor->name);
    const struct cairn_local_extent *old = cairn_shard_map_find(&from->map, (uint32_t)was,
                                                                extent->first_leaf);
    if (old == NULL || old->first_elem != extent->first_elem ||
        old->elem_count != extent->elem_count || !same_form(tensor, &from->spec.tensors[was]))
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "tensor %s stands elsewhere than it did: nothing is moved", tensor->name);
    extend->source[i] = (uint32_t)(old - from->map.extents);
    return CAIRN_OK;
}

static bool at_version(const struct cairn_shard_job *from, const struct cairn_version *version)
{
    const struct cairn_version now = cairn_step_version(from->step);
    return from->state == CAIRN_JOB_SERVING && !from->updating &&
           now.generation == version->generation && now.step == version->step;
}

static cairn_status judge(struct cairn_extend *extend, struct cairn_sentence *why)
{
    const struct cairn_version next = cairn_step_version(extend->job->step);
    const struct cairn_version *now = &extend->version;
    if (!at_version(extend->from, now) || now->step != next.step ||
        now->generation >= next.generation)
        return cairn_fail(why, CAIRN_ERR_NOT_READY,
                          "job %s is at version %llu.%llu here, or changing: not to be extended to "
                          "%llu.%llu",
                          extend->job->spec.name, (unsigned long long)now->generation,
                          (unsigned long long)now->step, (unsigned long long)next.generation,
                          (unsigned long long)next.step);
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < extend->job->map.extent_count && status == CAIRN_OK; i++)
        status = find_source(extend, i, why);
    return status;
}

/* ---- on the compute pool ---- */

static void copy_chunk(const struct cairn_extend *extend, uint32_t part, uint64_t local_elem,
                       uint64_t elems)
{
    const struct cairn_shard_job *job = extend->job, *from = extend->from;
    const uint32_t source = extend->source[part];
    const uint64_t old_elem = from->map.extents[source].local_elem +
                              (local_elem - job->map.extents[part].local_elem);
    const struct {
        uint32_t plane;
        const struct cairn_arena *to, *from;
    } planes[] = { { CAIRN_PLANE_PARAM, &job->param, &from->param },
                   { CAIRN_PLANE_EXP_AVG, &job->exp_avg, &from->exp_avg },
                   { CAIRN_PLANE_EXP_AVG_SQ, &job->exp_avg_sq, &from->exp_avg_sq } };
    const uint32_t kept = 1u << CAIRN_PLANE_PARAM |
                          (job->parts[part].planes & from->parts[source].planes);
    const size_t bytes = (size_t)elems * cairn_dtype_bytes((int)job->parts[part].master);
    for (size_t p = 0; p < sizeof planes / sizeof planes[0]; p++) {
        if ((kept & 1u << planes[p].plane) == 0) continue;
        memcpy(planes[p].to->base + cairn_shard_job_plane_byte(job, part, local_elem),
               planes[p].from->base + cairn_shard_job_plane_byte(from, source, old_elem), bytes);
    }
}

static void run_extend(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    (void)thread;
    struct cairn_extend *extend = (struct cairn_extend *)task;
    const struct cairn_shard_job *job = extend->job;
    if (atomic_load(&extend->canceled)) return;
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->map, item);
    const struct cairn_tensor_spec *tensor = &job->spec.tensors[place.tensor];
    const uint32_t part = job->chunk_part[item];
    if (extend->source[part] == NEW)
        cairn_init_fill(&tensor->init, tensor->name, place.first_elem, place.elem_count,
                        (float *)job->param.base + place.local_elem);
    else
        copy_chunk(extend, part, place.local_elem, place.elem_count);
}

/* ---- begin and end ---- */

static void extend_done(struct cairn_task *task)
{
    struct cairn_extend *extend = (struct cairn_extend *)task;
    struct cairn_shard_job *job = extend->job, *from = extend->from;
    const bool good = at_version(from, &extend->version);
    cairn_extend_release(job);
    if (job->state == CAIRN_JOB_LOADING && good) {
        cairn_round_seal(job);
    } else if (job->state == CAIRN_JOB_LOADING) {
        struct cairn_sentence why;
        cairn_sentence_set(&why, "job %s changed while it was extended", job->spec.name);
        cairn_session_answer(job->shard, &job->creating, CAIRN_ERR_NOT_READY, &why);
        cairn_shard_job_leave(job);
    }
    cairn_shard_job_idle(job);
    cairn_shard_job_idle(from);
}

cairn_status cairn_extend_begin(struct cairn_shard_job *job, struct cairn_shard_job *from,
                                struct cairn_sentence *why)
{
    if (from == NULL)
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "shard %s holds no part of job %s to extend",
                          job->shard->name, job->spec.name);
    struct cairn_extend *extend = calloc(1, sizeof *extend +
                                                job->map.extent_count * sizeof extend->source[0]);
    if (extend == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to extend a job");
    extend->job = job;
    extend->from = from;
    extend->version = cairn_step_version(from->step);
    job->extend = extend;
    const cairn_status status = judge(extend, why);
    if (status != CAIRN_OK) return status; // the job leaves, and frees it
    job->state = CAIRN_JOB_LOADING;
    cairn_shard_job_busy(job);
    cairn_shard_job_busy(from);
    extend->task = (struct cairn_task) { .run = run_extend,
                                         .done = extend_done,
                                         .item_count = (uint32_t)job->map.chunk_count };
    cairn_pool_submit(job->shard->compute, &extend->task);
    return CAIRN_OK;
}

void cairn_extend_cancel(struct cairn_shard_job *job)
{
    if (job->extend != NULL) atomic_store(&job->extend->canceled, true);
}

void cairn_extend_release(struct cairn_shard_job *job)
{
    free(job->extend);
    job->extend = NULL;
}
