/* Work that blocks, on libuv's threads, and the sessions that wait for its outcome. Writes to
 * the store do not come here (store/saves.h), so that a hung folder of snapshots does not hold
 * them up. */
#ifndef CAIRN_COORDINATOR_BASE_WORKS_H
#define CAIRN_COORDINATOR_BASE_WORKS_H

#include <uv.h>

#include "server/coordinator/base/names.h"

#define CAIRN_SESSION_WAITS_MAX 16 /* answers that one connection waits for */

/* A request that waits for a cut, a restore, an amendment ...; forgotten when its session goes. */
struct cairn_cluster_waiter {
    struct cairn_cluster_waiter *next;
    struct cairn_cluster_session *session;
    uint32_t request;
};

/* Work for one of libuv's threads; the first member of what it works on. */
struct cairn_cluster_work {
    uv_work_t req;
    struct cairn_cluster_work *next; /* of the cluster's list */
    struct cairn_cluster *cluster;
    struct cairn_cluster_session *session; /* who is answered; NULL: nobody, or it went */
    uint32_t request;
    void (*run)(struct cairn_cluster_work *work);  /* on another thread */
    void (*done)(struct cairn_cluster_work *work); /* on the loop; frees it */
};

/* False if the session waits for too much, or there is no thread: nothing was begun. */
bool cairn_cluster_work_start(struct cairn_cluster_work *work, struct cairn_cluster *cluster,
                              struct cairn_cluster_session *session, uint32_t request);
/* The same of work on so many bytes; on few it is done at once, sooner than a thread is told of it: `done`
 * has run then. */
bool cairn_cluster_work_do(struct cairn_cluster_work *work, struct cairn_cluster *cluster,
                           struct cairn_cluster_session *session, uint32_t request, size_t bytes);
/* `free_it` frees `what`, of which nobody else knows, and which was made of so many bytes: likewise. */
void cairn_cluster_free_by(struct cairn_cluster *cluster, void (*free_it)(void *what), void *what,
                           size_t bytes);
void cairn_cluster_works_forget(struct cairn_cluster *cluster,
                                const struct cairn_cluster_session *session);
/* False: the session waits for too much. */
bool cairn_cluster_waiters_add(struct cairn_cluster_waiter **list,
                               struct cairn_cluster_session *session, uint32_t request);
void cairn_cluster_waiters_forget(struct cairn_cluster_waiter **list,
                                  const struct cairn_cluster_session *session);
/* Who still waits when the coordinator stops: the connections end, that is answer enough. */
void cairn_cluster_waiters_release(struct cairn_cluster_waiter **list);
/* Answers all of the list, which is empty then. */
void cairn_cluster_waiters_answer(struct cairn_cluster_waiter **list, uint16_t type,
                                  const ProtobufCMessage *message);
void cairn_cluster_waiters_fail(struct cairn_cluster_waiter **list, cairn_status status,
                                const char *text);

#endif
