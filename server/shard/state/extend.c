/* Makes a generation of a job from the one that serves: tensors that both have are copied, new
 * tensors begin by their initializers, and moments that did not exist before begin at 0. This is
 * done by works on the planes, one item for each chunk.
 *
 * No table changes for a tensor that stays (proto/plan/plan.h), so each extent has one to be copied
 * from, or is of a new tensor. The coordinator opens no round meanwhile; a version that changed all
 * the same is noticed. */
#include "server/shard/state/extend.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define NEW UINT32_MAX

struct cairn_extend {
    struct cairn_loader loader;   /* first */
    struct cairn_shard_job *from; /* borrowed; busy meanwhile */
    struct cairn_version version; /* of `from` */
    uint32_t source[]; /* [job->view->table.map.extent_count] an extent of `from`, or NEW */
};

/* The extent of `from` that has the elements of the job's extent i. */
static cairn_status find_source(struct cairn_extend *extend, size_t i, struct cairn_sentence *why)
{
    const struct cairn_shard_job *job = extend->loader.job, *from = extend->from;
    const struct cairn_local_extent *extent = &job->view->table.map.extents[i];
    const struct cairn_tensor_spec *tensor = &job->spec.tensors[extent->tensor];
    const size_t was = cairn_spec_find_tensor(&from->spec, tensor->name);
    extend->source[i] = NEW;
    if (was == SIZE_MAX && tensor->init.kind != CAIRN_INIT_NONE) return CAIRN_OK;
    if (was == SIZE_MAX)
        return cairn_fail(why, CAIRN_ERR_INVALID, "tensor %s is new and has no initializer",
                          tensor->name);
    const struct cairn_local_extent *old = cairn_shard_map_find(&from->view->table.map,
                                                                (uint32_t)was, extent->first_leaf);
    if (old == NULL || old->first_elem != extent->first_elem ||
        old->elem_count != extent->elem_count ||
        !cairn_load_same_form(tensor, &from->spec.tensors[was]))
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "tensor %s stands elsewhere than it did: nothing is moved", tensor->name);
    extend->source[i] = (uint32_t)(old - from->view->table.map.extents);
    return CAIRN_OK;
}

static bool at_version(const struct cairn_shard_job *from, const struct cairn_version *version)
{
    return from->state == CAIRN_JOB_SERVING && !from->pass.updating && !from->park.is_under_way &&
           cairn_version_compare(cairn_step_version(from->collector.step), *version) == 0;
}

static cairn_status judge(struct cairn_extend *extend, struct cairn_sentence *why)
{
    const struct cairn_version next = cairn_step_version(extend->loader.job->collector.step);
    const struct cairn_version *now = &extend->version;
    if (!at_version(extend->from, now) || now->step != next.step ||
        now->generation >= next.generation)
        return cairn_fail(
            why, CAIRN_ERR_NOT_READY,
            "job %s is at version %llu.%llu here, or changing: not to be extended to %llu.%llu",
            extend->loader.job->spec.name, (unsigned long long)now->generation,
            (unsigned long long)now->step, (unsigned long long)next.generation,
            (unsigned long long)next.step);
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < extend->loader.job->view->table.map.extent_count && status == CAIRN_OK;
         i++)
        status = find_source(extend, i, why);
    return status;
}

/* ---- on the compute threads ---- */

static void copy_chunk(struct cairn_works *works, const struct cairn_extend *extend,
                       uint32_t extent, uint64_t local_elem, uint64_t elems)
{
    const struct cairn_shard_job *job = extend->loader.job, *from = extend->from;
    const uint32_t source = extend->source[extent];
    const uint64_t old_elem = from->view->table.map.extents[source].local_elem +
                              (local_elem - job->view->table.map.extents[extent].local_elem);
    cairn_planes_copy(works, &job->planes, extent, local_elem, &from->planes, source, old_elem,
                      elems);
}

static bool describe(struct cairn_run *run, uint32_t chunk, uint32_t stage,
                     struct cairn_works *works)
{
    const struct cairn_extend *extend = (struct cairn_extend *)cairn_loader_of(run);
    const struct cairn_shard_job *job = extend->loader.job;
    const uint32_t extent = job->view->table.extent_of[chunk];
    (void)stage;
    if (atomic_load(&extend->loader.canceled)) return false;
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->view->table.map, chunk);
    if (extend->source[extent] == NEW)
        cairn_load_init_chunk(works, job, chunk);
    else
        copy_chunk(works, extend, extent, place.local_elem, place.elem_count);
    return false;
}

/* ---- begin and end ---- */

static void extend_done(struct cairn_loader *loader)
{
    struct cairn_extend *extend = (struct cairn_extend *)loader;
    struct cairn_shard_job *from = extend->from;
    if (loader->status == CAIRN_OK && !at_version(from, &extend->version))
        extend->loader.status = cairn_fail(&extend->loader.why, CAIRN_ERR_NOT_READY,
                                           "job %s changed while it was extended", from->spec.name);
    cairn_loader_end(&extend->loader);
    cairn_shard_job_idle(from);
}

cairn_status cairn_extend_begin(struct cairn_shard_job *job, struct cairn_shard_job *from,
                                struct cairn_sentence *why)
{
    if (from == NULL)
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "shard %s holds no part of job %s to extend",
                          job->shard->name, job->spec.name);
    struct cairn_extend *extend = calloc(1, sizeof *extend + job->view->table.map.extent_count *
                                                                 sizeof extend->source[0]);
    if (extend == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to extend a job");
    extend->loader.job = job;
    extend->from = from;
    extend->version = cairn_step_version(from->collector.step);
    const cairn_status status = judge(extend, why);
    if (status != CAIRN_OK) {
        free(extend);
        return status;
    }
    cairn_shard_job_busy(from);
    cairn_loader_begin(&extend->loader, job);
    cairn_loader_fill(&extend->loader, describe, extend_done);
    return CAIRN_OK;
}
