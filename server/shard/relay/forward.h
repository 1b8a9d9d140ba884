/* Passes sums, ends of micro-batches and commits of a relay on to an owner. */
#ifndef CAIRN_SHARD_RELAY_FORWARD_H
#define CAIRN_SHARD_RELAY_FORWARD_H

#include "proto/link/pusher.h"

struct cairn_relay_owner;

/* Which tensors a micro-batch had nothing of, as its end says. Kept until the round is over. */
struct cairn_relay_note {
    struct cairn_relay_note *next;
    uint32_t micro;
    size_t count;
    uint32_t tensors[]; /* [count] ascending */
};

struct cairn_relay_forward {
    struct cairn_pusher pusher;
    struct cairn_chunk_header grant; /* the owner's last one; kind 0: none on this connection */
    bool *sent; /* owned: [table.trained_count] chunks forwarded in the micro-batch at hand */
    struct cairn_relay_note *notes; /* owned */
};

/* The machine's memory. CAIRN_ERR_NO_MEMORY: too many chunks, too. */
CAIRN_MUST_CHECK cairn_status cairn_relay_forward_open(struct cairn_relay_owner *owner);
void cairn_relay_forward_close(struct cairn_relay_owner *owner);
/* A round opened. */
void cairn_relay_forward_begin(struct cairn_relay_owner *owner, uint64_t epoch, uint64_t round);
/* The round is void, or resolved. */
void cairn_relay_forward_end(struct cairn_relay_owner *owner);
/* The chunk's sum is final: its buffer, by owner->buffers.sums, is sent. */
void cairn_relay_forward_chunk(struct cairn_relay_owner *owner, uint32_t chunk, uint32_t micro);
void cairn_relay_forward_micro_end(struct cairn_relay_owner *owner, uint32_t micro);
void cairn_relay_forward_commit(struct cairn_relay_owner *owner, uint64_t weight);
/* GRANT, ACK, NAK, MICRO_ACK. */
void cairn_relay_forward_on_answer(struct cairn_relay_owner *owner,
                                   const struct cairn_chunk_header *header);

#endif
