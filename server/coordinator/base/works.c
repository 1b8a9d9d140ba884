#include "server/coordinator/base/works.h"

#include <stdlib.h>

#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"

#define SMALL_BYTES 32768

static void on_run(uv_work_t *req)
{
    struct cairn_cluster_work *work = req->data;
    work->run(work);
}

static void on_back(uv_work_t *req, int uv_status)
{
    struct cairn_cluster_work *work = req->data;
    struct cairn_cluster *cluster = work->cluster;
    (void)uv_status; // nothing is ever canceled
    struct cairn_cluster_work **at = &cluster->works;
    while (*at != work) at = &(*at)->next;
    *at = work->next;
    if (work->session != NULL) work->session->wait_count--;
    work->done(work); // frees it
    if (cluster->closing) cairn_cluster_close_step(cluster);
}

bool cairn_cluster_work_start(struct cairn_cluster_work *work, struct cairn_cluster *cluster,
                              struct cairn_cluster_session *session, uint32_t request)
{
    if (session != NULL && session->wait_count >= CAIRN_SESSION_WAITS_MAX) return false;
    work->cluster = cluster;
    work->session = session;
    work->request = request;
    work->req.data = work;
    if (uv_queue_work(cluster->loop, &work->req, on_run, on_back) != 0) return false;
    if (session != NULL) session->wait_count++;
    work->next = cluster->works;
    cluster->works = work;
    return true;
}

bool cairn_cluster_work_do(struct cairn_cluster_work *work, struct cairn_cluster *cluster,
                           struct cairn_cluster_session *session, uint32_t request, size_t bytes)
{
    if (bytes > SMALL_BYTES) return cairn_cluster_work_start(work, cluster, session, request);
    work->cluster = cluster;
    work->session = session;
    work->request = request;
    work->run(work);
    work->done(work);
    return true;
}

/* ---- freed ---- */

struct freeing {
    struct cairn_cluster_work work;
    void (*free_it)(void *what);
    void *what; /* owned */
};

static void run_freeing(struct cairn_cluster_work *work)
{
    const struct freeing *freeing = (struct freeing *)work;
    freeing->free_it(freeing->what);
}

static void done_freeing(struct cairn_cluster_work *work)
{
    free(work);
}

void cairn_cluster_free_by(struct cairn_cluster *cluster, void (*free_it)(void *what), void *what,
                           size_t bytes)
{
    struct freeing *freeing = cluster->closing ? NULL : calloc(1, sizeof *freeing);
    if (freeing != NULL) {
        freeing->work.run = run_freeing;
        freeing->work.done = done_freeing;
        freeing->free_it = free_it;
        freeing->what = what;
        if (cairn_cluster_work_do(&freeing->work, cluster, NULL, 0, bytes)) return;
    }
    free(freeing);
    free_it(what);
}

void cairn_cluster_works_forget(struct cairn_cluster *cluster,
                                const struct cairn_cluster_session *session)
{
    for (struct cairn_cluster_work *w = cluster->works; w != NULL; w = w->next) {
        if (w->session == session) w->session = NULL;
    }
}

/* ---- those who wait ---- */

bool cairn_cluster_waiters_add(struct cairn_cluster_waiter **list,
                               struct cairn_cluster_session *session, uint32_t request)
{
    if (session->wait_count >= CAIRN_SESSION_WAITS_MAX) return false;
    struct cairn_cluster_waiter *waiter = calloc(1, sizeof *waiter);
    if (waiter == NULL) return false;
    session->wait_count++;
    *waiter = (struct cairn_cluster_waiter) { *list, session, request };
    *list = waiter;
    return true;
}

void cairn_cluster_waiters_forget(struct cairn_cluster_waiter **list,
                                  const struct cairn_cluster_session *session)
{
    while (*list != NULL) {
        struct cairn_cluster_waiter *waiter = *list;
        if (waiter->session != session) {
            list = &waiter->next;
            continue;
        }
        *list = waiter->next;
        free(waiter);
    }
}

void cairn_cluster_waiters_release(struct cairn_cluster_waiter **list)
{
    while (*list != NULL) {
        struct cairn_cluster_waiter *waiter = *list;
        *list = waiter->next;
        free(waiter);
    }
}

void cairn_cluster_waiters_answer(struct cairn_cluster_waiter **list, uint16_t type,
                                  const ProtobufCMessage *message)
{
    while (*list != NULL) {
        struct cairn_cluster_waiter *waiter = *list;
        *list = waiter->next;
        waiter->session->wait_count--;
        cairn_cluster_session_send(waiter->session, type, waiter->request, message);
        free(waiter);
    }
}

void cairn_cluster_waiters_fail(struct cairn_cluster_waiter **list, cairn_status status,
                                const char *text)
{
    Cairn__Error error = CAIRN__ERROR__INIT;
    error.status = (int32_t)status;
    error.text = (char *)(uintptr_t)text;
    cairn_cluster_waiters_answer(list, CAIRN_MSG_ERROR, &error.base);
}
