/* The end of a shard that gives up first what it holds: it asks the coordinator to bring it to other shards
 * (DrainMe), and ends when that is done, cannot be, takes too long, or nobody is there to ask; or when the
 * coordinator, by an operator's word, says that it holds nothing and is to end (MemberEnd). Loop thread. */
#ifndef CAIRN_SHARD_DRAIN_H
#define CAIRN_SHARD_DRAIN_H

#include <uv.h>

#include "proto/wire/messages.h"

struct cairn_shard;
struct cairn_frame;

struct cairn_drain {
    uv_timer_t timer; /* the end of the time that there is */
    uint64_t due_ms;  /* uv_now of that */
    bool is_wanted;
    uint64_t asked; /* session.serial when the coordinator was asked; 0: it was not */
};

/* Once. shard->events.on_drained follows, perhaps at once: its parts are elsewhere, or `seconds` (at least
 * 1) have passed, or the coordinator refused. */
void cairn_shard_drain(struct cairn_shard *shard, uint32_t seconds);
/* A session began: a coordinator that was not asked is. */
void cairn_drain_on_welcome(struct cairn_shard *shard);
/* It ended, though it was welcome: for the next one it is waited for two leases. */
void cairn_drain_on_lost(struct cairn_shard *shard);
/* A frame of the coordinator. True: it was the answer to DrainMe, or MemberEnd; the shard may be closed. */
bool cairn_drain_on_message(struct cairn_shard *shard, const struct cairn_frame *frame,
                            const ProtobufCMessage *message);

#endif
