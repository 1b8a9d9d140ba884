/* Requests that come early: this coordinator has just started, and what it would answer depends on shards
 * that have not come back to it, or have not told what they hold. They wait until all have, or for one lease,
 * by which a shard that lives is back; then they are judged by who is there. Without this a job whose parts
 * are parked would be called unparked, a plan would leave out the shards that are a moment late, and after a
 * store was lost there would be nothing to adopt. */
#ifndef CAIRN_COORDINATOR_EARLY_H
#define CAIRN_COORDINATOR_EARLY_H

#include "proto/wire/frame.h"
#include "server/coordinator/base/names.h"

struct cairn_cluster_early {
    struct cairn_cluster_early *next;
    struct cairn_cluster_session *session; /* borrowed: forgotten with it */
    struct cairn_frame frame;              /* its payload is `bytes` */
    uint8_t bytes[];
};

/* The cluster's early requests. */
struct cairn_cluster_earlies {
    struct cairn_cluster_early *list; /* owned, the oldest first */
    uint32_t count;
    bool over; /* nothing is early any more */
};

/* True: the request waits, or was refused since too many do. */
bool cairn_cluster_early_hold(struct cairn_cluster_session *session,
                              const struct cairn_frame *frame);
/* The oldest that need not wait any more, the caller's to free; NULL: there is none. */
struct cairn_cluster_early *cairn_cluster_early_take(struct cairn_cluster *cluster);
void cairn_cluster_early_forget(struct cairn_cluster *cluster,
                                const struct cairn_cluster_session *session);

#endif
