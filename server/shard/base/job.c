#include <assert.h>

#include "server/shard/shard.h"

struct cairn_shard_job *cairn_shard_job_find(struct cairn_shard *shard, uint64_t number)
{
    struct cairn_shard_job *job = shard->jobs;
    while (job != NULL && (job->number != number || job->state == CAIRN_JOB_LEAVING || job->staged))
        job = job->next;
    return job;
}

size_t cairn_shard_payload_max(const struct cairn_shard_job *job)
{
    return CAIRN_PAYLOAD_MAX(job->spec.group_count, job->spec.tensor_count,
                             job->spec.client_state_max);
}

struct cairn_compute *cairn_shard_job_home(const struct cairn_shard_job *job, uint64_t local_elem)
{
    const bool is_on_device = !job->planes.parked && local_elem < job->planes.host_from;
    return is_on_device ? &job->shard->device : &job->shard->host;
}

void cairn_shard_job_busy(struct cairn_shard_job *job)
{
    job->busy++;
}

void cairn_shard_job_idle(struct cairn_shard_job *job)
{
    assert(job->busy > 0);
    if (--job->busy == 0) job->shard->up->unused(job);
}

void cairn_shard_job_settle(struct cairn_shard_job *job)
{
    job->shard->up->settle(job);
}

void cairn_shard_job_fault(struct cairn_shard_job *job, const char *why)
{
    job->shard->up->fault(job, why);
}

bool cairn_shard_job_failed(struct cairn_shard_job *job, cairn_status status,
                            const struct cairn_sentence *why)
{
    if (status == CAIRN_OK) return false;
    const bool all = cairn_home_has_failed(job->compute->home);
    for (struct cairn_shard_job *other = job->shard->jobs; other != NULL; other = other->next) {
        const bool is_hit = other == job || (all && other->compute == job->compute);
        if (is_hit && other->state != CAIRN_JOB_LOADING) cairn_shard_job_fault(other, why->text);
    }
    return true;
}

bool cairn_shard_job_run_failed(struct cairn_shard_job *job, const struct cairn_run *run)
{
    struct cairn_sentence why;
    if (run->status == CAIRN_OK) return false;
    cairn_compute_why(run->compute, &why);
    return cairn_shard_job_failed(job, run->status, &why);
}
