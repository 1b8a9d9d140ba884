/* An owner, as its relay sees it: its part of the job, the collector for it, and the machine that
 * passes the sums on. */
#ifndef CAIRN_SHARD_RELAY_OWNER_H
#define CAIRN_SHARD_RELAY_OWNER_H

#include "proto/link/asker.h"
#include "proto/link/chunk_link.h"
#include "server/core/buffer_pool.h"
#include "server/shard/collect/chunk_table.h"
#include "server/shard/collect/collector.h"
#include "server/shard/relay/forward.h"

struct cairn_relay;

/* A shard to which we pass on. */
struct cairn_relay_owner {
    struct cairn_relay *relay; /* borrowed */
    uint32_t index;            /* in the relay's layout */
    char name[64];
    struct cairn_chunk_table table; /* owned: its part */

    uint8_t *address; /* owned */
    size_t address_bytes;
    struct cairn_chunk_link link;
    struct cairn_asker asker; /* while relay->fetches is there: its requests are the cache's */

    struct cairn_collector collector;
    struct cairn_buffer_owner buffers; /* of the sums; buffers.sums is owned */
    struct cairn_relay_forward forward;
};

CAIRN_MUST_CHECK cairn_status cairn_relay_owner_open(struct cairn_relay *relay,
                                                     struct cairn_relay_owner *owner,
                                                     const Cairn__ShardInfo *info,
                                                     struct cairn_sentence *why);
void cairn_relay_owner_close(struct cairn_relay_owner *owner);

#endif
