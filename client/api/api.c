/* The steps that all calls of a job share: see api.h. */
#include "client/api/api.h"

#include "client/base/handle.h"

struct job *cairn_api_job(const cairn_job *handle)
{
    struct job *job = cairn_handle_get(CAIRN_HANDLE_JOB, handle);
    if (job == NULL) cairn_handle_fail(handle, "job");
    return job;
}

cairn_status cairn_api_leave(const cairn_job *handle, cairn_status status)
{
    cairn_handle_put(handle);
    return status;
}

uint64_t cairn_api_deadline(int timeout_ms)
{
    return cairn_client_now_ms() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0);
}

cairn_status cairn_api_judge_call(const char *out_name, const void *out, int timeout_ms)
{
    if (out_name != NULL && out == NULL)
        return cairn_client_fail(CAIRN_ERR_INVALID, "%s is NULL", out_name);
    if (timeout_ms >= 0) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_INVALID, "timeout_ms is %d; give 0 or more", timeout_ms);
}

cairn_status cairn_api_await_none(struct job *job, const uint64_t *open, const char *what,
                                  uint64_t deadline_ms)
{
    struct session *s = job->session;
    struct patience patience = cairn_client_patience(job, deadline_ms);
    for (;;) {
        const uint64_t until_ms = cairn_client_says_at(&patience, deadline_ms);
        pthread_mutex_lock(&s->lock);
        while (*open > 0 && cairn_session_sleep(s, until_ms)) {}
        const uint64_t left = *open;
        pthread_mutex_unlock(&s->lock);
        if (left == 0) return CAIRN_OK;
        struct cairn_sentence text;
        cairn_sentence_set(&text, "%llu %s of job %s still wait for shards",
                           (unsigned long long)left, what, job->name);
        if (cairn_client_now_ms() >= deadline_ms)
            return cairn_client_fail(CAIRN_ERR_TIMEOUT, "%s", text.text);
        cairn_client_say_wait(&patience, text.text);
    }
}

cairn_status cairn_api_check(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    const cairn_status failed = job->failure.status;
    if (failed != CAIRN_OK) cairn_client_fail(failed, "%s", job->failure.why.text);
    pthread_mutex_unlock(&job->session->lock);
    return failed;
}
