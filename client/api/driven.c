/* Driven groups: their learning rates are the trainer's, and go with each commit. */
#include <math.h>
#include <stdlib.h>

#include "client/api/api.h"

#define RATE_MAX 1e18 // as every hyper-parameter

static bool is_driven(const struct job *job, size_t group)
{
    return job->spec.groups[group].schedule.kind == CAIRN_SCHEDULE_DRIVEN;
}

static cairn_status set_rate(struct job *job, const char *name, double lr)
{
    if (name == NULL) name = "default";
    if (job->member.role != CAIRN_WORKER)
        return cairn_client_fail(CAIRN_ERR_REFUSED, "a reader gives no learning rate");
    if (!(lr >= 0 && lr <= RATE_MAX))
        return cairn_client_fail(CAIRN_ERR_INVALID, "group %.64s: lr is %g; allowed: 0 to %g", name,
                                 lr, RATE_MAX);
    const size_t group = cairn_spec_find_group(&job->spec, name);
    if (group == SIZE_MAX)
        return cairn_client_fail(CAIRN_ERR_NOT_FOUND, "job %s has no group \"%.64s\"", job->name,
                                 name);
    if (!is_driven(job, group))
        return cairn_client_fail(CAIRN_ERR_REFUSED,
                                 "group %s is not driven: the servers have its schedule, %s; "
                                 "change it by cairn_job_amend, or declare CAIRN_SCHEDULE_DRIVEN",
                                 name,
                                 cairn_schedule_name((int)job->spec.groups[group].schedule.kind));
    pthread_mutex_lock(&job->session->lock);
    job->filling.rates[group] = lr;
    pthread_mutex_unlock(&job->session->lock);
    return CAIRN_OK;
}

cairn_status cairn_group_lr(cairn_job *handle, const char *group, double lr)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = set_rate(job, group, lr);
    return cairn_api_leave(handle, status);
}

cairn_status cairn_driven_take(struct job *job, double *room, double **driven_out)
{
    size_t missing = SIZE_MAX;
    *driven_out = NULL;
    pthread_mutex_lock(&job->session->lock);
    for (size_t g = 0; g < job->spec.group_count; g++) {
        room[g] = is_driven(job, g) ? job->filling.rates[g] : 0;
        if (is_driven(job, g)) *driven_out = room;
        if (isnan(room[g]) && missing == SIZE_MAX) missing = g;
    }
    pthread_mutex_unlock(&job->session->lock);
    if (missing == SIZE_MAX) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_INVALID,
                             "group %s is driven, and has no learning rate yet: every worker calls "
                             "cairn_group_lr before its first commit",
                             job->spec.groups[missing].name);
}
