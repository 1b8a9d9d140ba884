#include "client/loop/again.h"

#include <string.h>

#include "client/ask.h"
#include "client/job.h"
#include "client/push/fail.h"

void cairn_again_tiles(struct job *job)
{
    const struct declared *declared = job->tiles.declared; // changed by this thread only
    if (declared == NULL || declared->world == 0) return;
    Cairn__TilesDeclare message = cairn_client_tiles_message(declared);
    message.job = job->attachment.job;
    job->tiles.request = ++job->session->control.last_request;
    cairn_control_send(job->session, CAIRN_MSG_TILES_DECLARE, job->tiles.request, &message.base);
    cairn_control_send_pages(job->session, job->tiles.request, CAIRN_PAGE_TILES, declared->packed);
}

/* Is it the reply to the call that waits now? Under the lock. */
static bool is_awaited(const struct job *job, uint32_t request)
{
    const struct ask *ask = job->session->asks;
    while (ask != NULL && (ask->job != job || ask->type != CAIRN_MSG_TILES_DECLARE))
        ask = ask->next;
    return ask != NULL && ask->request == request;
}

void cairn_again_on_tiles_set(struct job *job, uint32_t request)
{
    if (request == job->tiles.request) {
        job->tiles.request = 0;
        return;
    }
    struct declared *former = NULL;
    pthread_mutex_lock(&job->session->lock);
    if (is_awaited(job, request)) {
        former = job->tiles.declared;
        job->tiles.declared = job->tiles.declaring;
        job->tiles.declaring_holds = true;
    }
    pthread_mutex_unlock(&job->session->lock);
    cairn_client_tiles_free(former);
}

bool cairn_again_on_error(struct session *s, uint32_t request, cairn_status status,
                          const char *text)
{
    struct job *job = s->jobs;
    while (job != NULL && job->tiles.request != request && job->pause.request != request)
        job = job->next;
    if (job == NULL) return false;
    if (job->tiles.request == request) job->tiles.request = 0;
    if (job->pause.request == request) job->pause.request = 0;
    cairn_job_fail(job, status, text);
    return true;
}

void cairn_again_pause(struct job *job)
{
    struct session *s = job->session;
    const uint64_t now_ms = cairn_client_now_ms();
    Cairn__Pause message = CAIRN__PAUSE__INIT;
    char what[sizeof job->pause.what];
    pthread_mutex_lock(&s->lock);
    memcpy(what, job->pause.what, sizeof what);
    const uint64_t left_ms = job->pause.ends_ms > now_ms ? job->pause.ends_ms - now_ms : 0;
    pthread_mutex_unlock(&s->lock);
    if (left_ms == 0) return;
    message.job = job->attachment.job;
    message.at_most_ms = (uint32_t)left_ms;
    message.what = what;
    job->pause.request = ++s->control.last_request;
    cairn_control_send(s, CAIRN_MSG_PAUSE, job->pause.request, &message.base);
}

void cairn_again_ask_round(struct job *job)
{
    Cairn__RoundCommit ask = CAIRN__ROUND_COMMIT__INIT;
    if (job->pushing.pusher.push == NULL) return;
    ask.job = job->attachment.job;
    ask.round = job->pushing.pusher.round;
    cairn_control_send(job->session, CAIRN_MSG_ROUND_COMMIT, ++job->session->control.last_request,
                       &ask.base);
}

void cairn_again_give_up(struct job *job)
{
    Cairn__RoundCommit message = CAIRN__ROUND_COMMIT__INIT;
    message.job = job->attachment.job;
    message.round = job->pushing.gives_up;
    message.abandon = true;
    job->pushing.gives_up = 0;
    cairn_control_send(job->session, CAIRN_MSG_ROUND_COMMIT, ++job->session->control.last_request,
                       &message.base);
}
