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
    return ((struct cairn_loader_part *)run)->loader;
}

static void part_done(struct cairn_run *run)
{
    struct cairn_loader *loader = cairn_loader_of(run);
    if (run->status != CAIRN_OK) {
        cairn_compute_why(run->compute, &loader->why);
        loader->status = run->status;
    }
    (void)cairn_shard_job_run_failed(loader->job, run);
    if (--loader->parts_left == 0) loader->filled(loader);
}

void cairn_loader_fill(struct cairn_loader *loader,
                       bool (*describe)(struct cairn_run *run, uint32_t chunk, uint32_t stage,
                                        struct cairn_works *works),
                       void (*done)(struct cairn_loader *loader))
{
    const struct cairn_shard_job *job = loader->job;
    const uint32_t cut = job->pass.host.first; // the chunks before it lie on the device
    const struct cairn_run run = { .describe = describe, .done = part_done };
    loader->filled = done;
    loader->status = CAIRN_OK;
    loader->parts_left = cut > 0 ? 2 : 1;
    loader->device = (struct cairn_loader_part) { run, loader };
    loader->device.run.compute = &job->shard->device;
    loader->device.run.item_count = cut;
    loader->host = (struct cairn_loader_part) { run, loader };
    loader->host.run.compute = &job->shard->host;
    loader->host.run.item_count = (uint32_t)job->view->table.map.chunk_count - cut;
    loader->host.run.item_first = cut;
    if (cut > 0) cairn_compute_submit(&loader->device.run);
    cairn_compute_submit(&loader->host.run); // of nothing, too: its end follows
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
    cairn_taken_end(&job->load.taken, false);
}

void cairn_load_release(struct cairn_shard_job *job)
{
    if (job->load.at_work != NULL) loader_free(job->load.at_work);
    free(job->load.path);
    cairn_taken_close(&job->load.taken);
}

bool cairn_load_same_form(const struct cairn_tensor_spec *a, const struct cairn_tensor_spec *b)
{
    return a->shape.rank == b->shape.rank && a->master == b->master &&
           memcmp(a->shape.dim, b->shape.dim, a->shape.rank * sizeof *a->shape.dim) == 0;
}

void cairn_load_init_chunk(struct cairn_works *works, const struct cairn_shard_job *job,
                           uint64_t chunk)
{
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->view->table.map, chunk);
    const struct cairn_tensor_spec *tensor = &job->spec.tensors[place.tensor];
    float *param = cairn_planes_at(&job->planes, CAIRN_PLANE_PARAM,
                                   job->view->table.extent_of[chunk], place.local_elem);
    struct cairn_work *work = cairn_works_add(works, CAIRN_WORK_INIT);
    work->init.out = param;
    work->init.source = cairn_init_source_of(&tensor->init, tensor->name);
    work->init.first_elem = place.first_elem;
    work->init.elems = (size_t)place.elem_count;
}
