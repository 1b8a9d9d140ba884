#include "server/shard/state/load.h"

#include <stdlib.h>
#include <string.h>

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
