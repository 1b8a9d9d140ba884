/* A worker's side of one round: which message to send to which shard next, and when a buffer belongs to the
 * caller again. Pure, as server/core/step.h: calls return actions; no clock, socket, thread or allocation.
 * The library drives a machine over the fabric, the simulator over its own network.
 *
 *  - Each shard has a queue: chunks of micro-batch 0, its end, chunks of 1, its end, ..., the commit. They
 *    are sent in that order; at most `window` chunks are unanswered (where the GRANT has a window for small
 *    chunks, or for chunks that the shard reads in place, these are counted separately); chunks
 *    of m+1 wait for the shard's MICRO_ACK of m. The end is sent behind the chunks and the commit behind
 *    the last end, without waiting: the shard puts them in order.
 *  - Nothing is sent to a shard before its GRANT for this round. A lost connection makes everything
 *    unanswered unsent again; the next GRANT sends it again, oldest first.
 *  - A shard's endpoint to us can be lost alone, and answers with it. Each endpoint has a number (HELLO and
 *    GRANT of proto/wire/wire.h); a GRANT with a higher number than before sends everything unanswered
 *    again, oldest first. In a void round a GRANT may never arrive: there a HELLO with a higher number does
 *    the same, and so does any later GRANT, since before that GRANT the shard may have dropped repeated
 *    chunks as duplicates of chunks that it was still reading.
 *  - A chunk that was sent to be received may hold a slot of the shard's until it is answered, whatever was
 *    lost since: so it is sent to be received again, and such chunks are sent first. A chunk that was to be
 *    read in place is sent to be received if the path no longer shares memory, or if the shard cannot read
 *    it there; it waits until the window has room.
 *  - A buffer is released by the shard's ACK; after the round is void, by any answer or by the loss of the
 *    connection; when the round is committed, at once. RELEASED says that no shard will read the buffer;
 *    the caller that handed it to the fabric waits for the fabric's own completion, too.
 *  - VOID says that shards accept no more of this round. Only the coordinator knows how it ended: ask.
 *
 * GRANTs may arrive before the coordinator's WORKER_OPENED: keep the last one of each shard, and give it
 * to the machine when it is created. A message of another round is not for this machine: check the round
 * first. One thread at a time. */
#ifndef CAIRN_LINK_PUSH_H
#define CAIRN_LINK_PUSH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"

struct push_config {
    uint32_t shard_count; /* at least 1 */
    uint32_t queue_max;   /* chunks, ends and commits not answered yet; at least 2 * shard_count */
};

enum push_action_kind {
    CAIRN_PUSH_SEND_CHUNK,     /* shard, micro, chunk, request, cookie, in_place */
    CAIRN_PUSH_SEND_MICRO_END, /* shard, micro, sent: chunks pushed to it in this micro-batch */
    CAIRN_PUSH_SEND_COMMIT,    /* shard, micro = the last one, weight */
    CAIRN_PUSH_RELEASED,       /* cookie, status: OK = folded; CAIRN_ERR_EPOCH_CHANGED = void */
    CAIRN_PUSH_VOID, /* once; shard, status. STALE, FENCED: ask the coordinator. Others: a fault */
};

struct push_action {
    enum push_action_kind kind;
    uint32_t shard, micro, chunk, sent;
    uint64_t request; /* not 0; sent with the chunk, and returned in its ACK or REFUSE */
    bool in_place;    /* sent with the chunk, too: it is counted among the chunks read in place */
    uint64_t cookie;
    uint64_t weight;
    cairn_status status;
};

/* New actions are appended from index count on; the machine asserts that they fit. */
struct push_actions {
    struct push_action *list; /* [capacity] */
    size_t count, capacity;
};
/* No call returns more actions than this. */
size_t push_actions_max(const struct push_config *config);

struct push_round;

/* Returns the bytes of memory for a machine; 0 if the configuration is not valid or overflows. */
size_t push_bytes(const struct push_config *config);
/* Creates a machine for one round in `memory` (aligned as by malloc; borrowed until the machine is dropped;
 * nothing to release). */
struct push_round *push_init(void *memory, const struct push_config *config);

/* The shard does not exist, so nothing is owed to it. Call it before anything else. */
void push_absent(struct push_round *push, uint32_t shard);

/* ---- the caller's side. CAIRN_ERR_BUSY: the queue is full, try again after the next RELEASED or
 * MICRO_ACK. CAIRN_ERR_EPOCH_CHANGED: the round is void. CAIRN_ERR_INVALID: not the micro-batch that is
 * being filled, or already committed; no such shard. Not OK: nothing changed. ---- */

/* Where a payload lies, for a shard that reads it in place if it can. */
enum push_lies {
    CAIRN_PUSH_LIES_APART, /* in memory that no shard reads: it is copied, or sent */
    CAIRN_PUSH_LIES_HOST,  /* in host memory that is shared with shards */
    CAIRN_PUSH_LIES_CARD   /* in memory of a card that is shared with shards */
};

/* One chunk of a push. */
struct push_chunk {
    uint32_t chunk; /* the shard's number of the chunk */
    bool is_small;  /* decided by its bytes: proto/wire/wire.h */
    enum push_lies lies;
    uint64_t cookie;
};
/* Queues one chunk for a shard; at most once a micro-batch. Its cookie is returned in RELEASED. */
cairn_status push_chunk(struct push_round *push, uint32_t shard, uint32_t micro,
                        struct push_chunk chunk, struct push_actions *actions) CAIRN_MUST_CHECK;
/* Ends micro-batch `micro` on all shards; micro + 1 is filled next. */
cairn_status push_micro_end(struct push_round *push, uint32_t micro,
                            struct push_actions *actions) CAIRN_MUST_CHECK;
/* Commits the round; at least one micro-batch was ended, and the one being filled is empty. */
cairn_status push_commit(struct push_round *push, uint64_t weight,
                         struct push_actions *actions) CAIRN_MUST_CHECK;

/* ---- shards. `request` and `micro` come from the network: unknown ones change nothing ---- */

/* How many chunks may be unanswered. */
struct push_window {
    uint32_t chunks; /* at least 1; 0: not connected */
    uint32_t small;  /* small ones; 0: they are counted among the others */
    /* Chunks that the shard reads in place; 0: it reads none in place by this path. Chunks with
     * numbers below `on_card` are read in place if they lie on a card, the others if they lie in
     * memory of the host. */
    uint32_t in_place;
    uint64_t on_card;
};
/* GRANT of this round, from the shard's endpoint of that number. A second GRANT from the same endpoint only
 * sets the window; a GRANT from an earlier endpoint was overtaken and changes nothing. */
void push_on_grant(struct push_round *push, uint32_t shard, uint64_t endpoint,
                   struct push_window window, struct push_actions *actions);
/* HELLO: the shard has this endpoint now; its answers on earlier endpoints may be lost. */
void push_on_hello(struct push_round *push, uint32_t shard, uint64_t endpoint,
                   struct push_actions *actions);
void push_on_ack(struct push_round *push, uint32_t shard, uint64_t request,
                 struct push_actions *actions);
/* BUSY and CHECKSUM send the chunk again, in a void round too, until it is answered otherwise; after
 * BUSY it is sent to be received. All other statuses make the round void. request 0: the refusal is of an
 * end or a commit; BUSY and CHECKSUM refer to an end, which is sent again. */
void push_on_refuse(struct push_round *push, uint32_t shard, uint64_t request, cairn_status status,
                    struct push_actions *actions);
void push_on_micro_ack(struct push_round *push, uint32_t shard, uint32_t micro,
                       struct push_actions *actions);
/* The connection is gone, every send on it has ended, and nothing more arrives by it. */
void push_on_lost(struct push_round *push, uint32_t shard, struct push_actions *actions);

/* ---- the coordinator's decision ---- */

/* The round is void. Unanswered chunks stay on loan until they are answered, or lost. */
void push_on_void(struct push_round *push, struct push_actions *actions);
/* The round is resolved by APPLY or SKIP: everything was folded. Releases all buffers. */
void push_on_result(struct push_round *push, struct push_actions *actions);

/* ---- questions ---- */
bool push_voided(const struct push_round *push);
/* True: no buffer is on loan, so the machine may be dropped once the round has ended. The simulator and
 * tests ask this; a pusher counts its loans itself. */
bool push_idle(const struct push_round *push);
/* True: the shard owes something: a GRANT, or the answer to a chunk or to an end. (A commit has none.) */
bool push_waits(const struct push_round *push, uint32_t shard);

#endif
