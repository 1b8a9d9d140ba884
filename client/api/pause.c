/* Pauses: this worker is at work on something else, and the others wait. */
#include <stdio.h>

#include "client/api/api.h"
#include "client/ask.h"
#include "proto/base/text.h"

#define AT_MOST_MS 86400000

/* Told again after an attach: a new coordinator knows of none. */
static void note(struct job *job, const char *what, uint64_t ends_ms)
{
    pthread_mutex_lock(&job->session->lock);
    snprintf(job->pause.what, sizeof job->pause.what, "%s", what);
    job->pause.ends_ms = ends_ms;
    pthread_mutex_unlock(&job->session->lock);
}

static cairn_status tell(struct job *job, const char *what, int at_most_ms, uint64_t deadline_ms)
{
    Cairn__Pause message = CAIRN__PAUSE__INIT;
    message.at_most_ms = (uint32_t)at_most_ms;
    message.what = (char *)(uintptr_t)what;
    note(job, what, at_most_ms > 0 ? cairn_client_now_ms() + (uint64_t)at_most_ms : 0);
    const cairn_status status = cairn_ask(job, CAIRN_MSG_PAUSE, &message.base, CAIRN_MSG_DONE,
                                          deadline_ms, NULL);
    if (status != CAIRN_OK) note(job, "", 0); // who was told that it failed will not end it
    return status;
}

static cairn_status judge(const struct job *job, const char *what, int at_most_ms, int timeout_ms)
{
    if (job->member.role != CAIRN_WORKER)
        return cairn_client_fail(CAIRN_ERR_REFUSED, "a reader takes no part in rounds");
    struct cairn_sentence why = { "" };
    if (cairn_text_check("what", what, sizeof job->pause.what - 1, &why) != CAIRN_OK)
        return cairn_client_fail(CAIRN_ERR_INVALID, "%s", why.text);
    if (at_most_ms >= 1 && at_most_ms <= AT_MOST_MS && timeout_ms >= 0) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_INVALID,
                             "at_most_ms is %d, timeout_ms %d; allowed: 1 to %d, and 0 or more",
                             at_most_ms, timeout_ms, AT_MOST_MS);
}

cairn_status cairn_pause(cairn_job *handle, const char *what, int at_most_ms, int timeout_ms)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = judge(job, what, at_most_ms, timeout_ms);
    if (status == CAIRN_OK) status = tell(job, what, at_most_ms, cairn_api_deadline(timeout_ms));
    return cairn_api_leave(handle, status);
}

cairn_status cairn_pause_end(cairn_job *handle, int timeout_ms)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = judge(job, "-", 1, timeout_ms);
    if (status == CAIRN_OK) status = tell(job, "", 0, cairn_api_deadline(timeout_ms));
    return cairn_api_leave(handle, status);
}
