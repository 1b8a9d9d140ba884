/* Pauses: this worker is at work on something else, and the others wait; and how long a call waits for a
 * worker that said so. */
#include <stdio.h>
#include <string.h>

#include "client/api.h"
#include "client/handle.h"
#include "client/pause.h"

#define SAY_MS     60000
#define AT_MOST_MS 86400000

/* ---- here ---- */

/* Told again after an attach: a new coordinator knows of none. */
static void note(struct job *job, const char *what, uint64_t ends_ms)
{
    pthread_mutex_lock(&job->session->lock);
    snprintf(job->pause, sizeof job->pause, "%s", what);
    job->pause_ends_ms = ends_ms;
    pthread_mutex_unlock(&job->session->lock);
}

static cairn_status tell(struct job *job, const char *what, int at_most_ms, uint64_t deadline_ms)
{
    Cairn__Pause message = CAIRN__PAUSE__INIT;
    ProtobufCMessage *reply;
    message.at_most_ms = (uint32_t)at_most_ms;
    message.what = (char *)(uintptr_t)what;
    note(job, what, at_most_ms > 0 ? cairn_client_now_ms() + (uint64_t)at_most_ms : 0);
    const cairn_status status = cairn_control_ask(job->session, job, CAIRN_MSG_PAUSE, &message.base,
                                                  CAIRN_MSG_DONE, deadline_ms, &reply);
    if (status == CAIRN_OK)
        cairn_message_free(reply);
    else
        note(job, "", 0); // who was told that it failed will not end it
    return status;
}

void cairn_client_pause_again(struct job *job)
{
    struct session *s = job->session;
    const uint64_t now_ms = cairn_client_now_ms();
    Cairn__Pause message = CAIRN__PAUSE__INIT;
    char what[sizeof job->pause];
    pthread_mutex_lock(&s->lock);
    memcpy(what, job->pause, sizeof what);
    const uint64_t left_ms = job->pause_ends_ms > now_ms ? job->pause_ends_ms - now_ms : 0;
    pthread_mutex_unlock(&s->lock);
    if (left_ms == 0) return;
    message.job = job->id;
    message.at_most_ms = (uint32_t)left_ms;
    message.what = what;
    cairn_control_send(s, CAIRN_MSG_PAUSE, ++s->next_request, &message.base);
}

static cairn_status judge(const struct job *job, const char *what, int at_most_ms, int timeout_ms)
{
    if (job->role != CAIRN_WORKER)
        return cairn_client_fail(CAIRN_ERR_REFUSED, "a reader takes no part in rounds");
    if (what == NULL || what[0] == 0 || strlen(what) >= sizeof job->pause)
        return cairn_client_fail(CAIRN_ERR_INVALID, "what must be given, in 1 to %zu bytes",
                                 sizeof job->pause - 1);
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
    cairn_handle_put(handle);
    return status;
}

cairn_status cairn_pause_end(cairn_job *handle, int timeout_ms)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = judge(job, "-", 1, timeout_ms);
    if (status == CAIRN_OK) status = tell(job, "", 0, cairn_api_deadline(timeout_ms));
    cairn_handle_put(handle);
    return status;
}

/* ---- there ---- */

struct patience cairn_client_patience(struct job *job, uint64_t deadline_ms)
{
    const uint64_t now_ms = cairn_client_now_ms();
    return (struct patience) { .job = job,
                               .span_ms = deadline_ms > now_ms ? deadline_ms - now_ms : 0 };
}

/* False: the caller waits no longer. */
static bool say(struct patience *p, const char *text, uint32_t paused_ms)
{
    const struct session *s = p->job->session;
    const uint64_t now_ms = cairn_client_now_ms();
    if (s->on_wait != NULL)
        return s->on_wait(s->on_wait_context, p->job->name, text, (int)paused_ms);
    if (now_ms < p->say_ms) return true;
    p->say_ms = now_ms + SAY_MS;
    fprintf(stderr, "cairn: job %s waits for %s\n", p->job->name, text);
    return true;
}

bool cairn_client_waits_on(struct patience *p, const Cairn__Awaited *awaited, uint64_t *deadline_ms)
{
    const uint32_t paused_ms = awaited != NULL ? awaited->paused_ms : 0;
    const bool was_paused = p->paused;
    if (p->span_ms == 0) return false; // it was to be looked at only
    p->paused = paused_ms > 0;
    if (!p->paused && !was_paused) return false;
    if (p->paused && !say(p, awaited->text, paused_ms)) return false;
    // Behind a pause the caller's own time begins again: nobody knows how long it is over.
    *deadline_ms = cairn_client_now_ms() +
                   (p->span_ms < SAY_MS || !p->paused ? p->span_ms : SAY_MS);
    return true;
}
