#include "client/push/fail.h"

#include "client/job.h"
#include "client/push/transfer.h"

void cairn_fail_calls(struct job *job, cairn_status status, const char *text)
{
    struct session *s = job->session;
    pthread_mutex_lock(&s->lock);
    if (job->failure.status == CAIRN_OK) {
        job->failure.status = status;
        cairn_sentence_set(&job->failure.why, "%s", text);
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void cairn_fail_parcels(struct job *job, cairn_status status)
{
    cairn_attachment_lost(job);
    cairn_pushes_drop(job, status);
    cairn_transfer_fail_all(job, status);
}

void cairn_job_fail(struct job *job, cairn_status status, const char *text)
{
    cairn_fail_calls(job, status, text);
    cairn_fail_parcels(job, status);
    cairn_session_kick(job->session);
}
