#include "server/shard/state/load.h"

#include <stdlib.h>
#include <string.h>

#include "proto/spec/initializer.h"
#include "server/shard/shard.h"

static void loader_free(struct cairn_loader *loader)
{
    if (loader->release != NULL) loader->release(loader);
    free(loader);
}

void cairn_loader_begin(struct cairn_loader *loader, struct cairn_shard_job *job)
{
    loader->job = job;
    job->load.at_work = loader;
    job->state = CAIRN_JOB_LOADING;
    cairn_shard_job_busy(job);
}

struct cairn_loader *cairn_loader_of(struct cairn_run *run)
{
    return (struct cairn_loader *)((char *)run - offsetof(struct cairn_loader, run));
}

static void run_done(struct cairn_run *run)
{
    struct cairn_loader *loader = cairn_loader_of(run);
    if (run->status != CAIRN_OK) cairn_compute_why(run->compute, &loader->why);
    loader->status = run->status;
    (void)cairn_shard_job_run_failed(loader->job, run);
    loader->filled(loader);
}

void cairn_loader_fill(struct cairn_loader *loader,
                       bool (*describe)(struct cairn_run *run, uint32_t chunk, uint32_t stage,
                                        struct cairn_works *works),
                       void (*done)(struct cairn_loader *loader))
{
    loader->filled = done;
    loader->run = (struct cairn_run) { .compute = loader->job->compute,
                                       .item_count = (uint32_t)loader->job->table.map.chunk_count,
                                       .describe = describe,
                                       .done = run_done };
    cairn_compute_submit(&loader->run);
}

void cairn_loader_end(struct cairn_loader *loader)
{
    struct cairn_shard_job *job = loader->job;
    const cairn_status status = loader->status;
    const struct cairn_sentence why = loader->why;
    const bool puts_follow = loader->puts_follow;
    job->load.at_work = NULL;
    loader_free(loader);
    if (job->state == CAIRN_JOB_LOADING) job->shard->up->loaded(job, status, &why, puts_follow);
    cairn_shard_job_idle(job);
}

void cairn_load_cancel(struct cairn_shard_job *job)
{
    if (job->load.at_work != NULL) atomic_store(&job->load.at_work->canceled, true);
}

void cairn_load_release(struct cairn_shard_job *job)
{
    if (job->load.at_work != NULL) loader_free(job->load.at_work);
    free(job->load.path);
}

bool cairn_load_same_form(const struct cairn_tensor_spec *a, const struct cairn_tensor_spec *b)
{
    return a->shape.rank == b->shape.rank && a->master == b->master &&
           memcmp(a->shape.dim, b->shape.dim, a->shape.rank * sizeof *a->shape.dim) == 0;
}

void cairn_load_init_chunk(struct cairn_works *works, const struct cairn_shard_job *job,
                           uint64_t chunk)
{
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->table.map, chunk);
    const struct cairn_tensor_spec *tensor = &job->spec.tensors[place.tensor];
    float *param = cairn_planes_at(&job->planes, CAIRN_PLANE_PARAM, job->table.extent_of[chunk],
                                   place.local_elem);
    struct cairn_work *work = cairn_works_add(works, CAIRN_WORK_INIT);
    work->init.out = param;
    work->init.source = cairn_init_source_of(&tensor->init, tensor->name);
    work->init.first_elem = place.first_elem;
    work->init.elems = (size_t)place.elem_count;
}
