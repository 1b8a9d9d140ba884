/* The storage of the snapshots, looked at when the coordinator is joined, on a thread of its own: it may
 * hang, and then the shard serves on, says so, and ends without it. What is wrong goes with the heartbeats;
 * it is looked at again until it is right. Loop thread. */
#ifndef CAIRN_SHARD_STORAGE_H
#define CAIRN_SHARD_STORAGE_H

#include "server/base/pool.h"

struct cairn_shard;
struct cairn_storage_look;

struct cairn_shard_storage {
    struct cairn_pool *thread; /* owned */
    char *path;                /* owned; NULL: not told */
    uint64_t token;
    struct cairn_storage_look *look; /* owned; while is_looking the thread's */

    struct cairn_sentence said; /* the last one; empty: nothing is wrong, or not known yet */
    uint64_t since_ms;          /* of the loop's clock: when it was begun, or ended */
    bool is_looking;
};

CAIRN_MUST_CHECK cairn_status cairn_shard_storage_open(struct cairn_shard *shard,
                                                       struct cairn_sentence *why);
/* False: it is not open, and on_closed does not come. */
bool cairn_shard_storage_close(struct cairn_shard *shard, void (*on_closed)(void *context));
void cairn_shard_storage_free(struct cairn_shard *shard);

/* Welcome came: path "" or token 0: there is nothing to look at. */
void cairn_shard_storage_told(struct cairn_shard *shard, const char *path, uint64_t token);
/* Before each heartbeat: looks again, or says that it hangs. */
void cairn_shard_storage_tick(struct cairn_shard *shard);

#endif
