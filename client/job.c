#include "client/job.h"

void cairn_job_ref(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    job->refs++;
    pthread_mutex_unlock(&job->session->lock);
}

void cairn_job_unref(struct job *job)
{
    if (job == NULL) return;
    struct session *s = job->session;
    pthread_mutex_lock(&s->lock);
    const uint32_t left = --job->refs;
    pthread_mutex_unlock(&s->lock);
    if (left == 0) job->on_last_unref(job);
}

void cairn_job_note_clip_norm(struct job *job, double clip_norm)
{
    pthread_mutex_lock(&job->session->lock);
    job->known.clip_norm = clip_norm;
    pthread_mutex_unlock(&job->session->lock);
}
