/* A worker's side of one round: what to send to which shard next, and when a buffer is the caller's
 * again. Pure, as server/core/step.h: calls give actions; no clock, socket, thread or allocation. The
 * library drives one over the fabric, the simulator over its own network.
 *
 *  - Each shard has a queue: chunks of micro-batch 0, its end, chunks of 1, its end, ..., the commit. They
 *    go out in that order; at most `window` chunks are unanswered (and, where the GRANT has a window for
 *    small ones, or for those that the shard reads where they lie, these are counted for themselves); chunks
 *    of m+1 wait for the shard's MICRO_ACK of m. The end goes out behind the chunks and the commit behind
 *    the last end, without waiting: the shard puts them in order.
 *  - Nothing is sent to a shard before its GRANT for this round. A lost connection makes everything
 *    unanswered unsent again; the next GRANT sends it again, oldest first.
 *  - A shard's endpoint to us can be lost alone, and answers with it. Each has a number (HELLO and GRANT of
 *    proto/wire/wire.h); a GRANT with a higher one than before sends everything unanswered again, oldest
 *    first. In a void round there may come no GRANT: a HELLO with a higher one does so, too, and then any
 *    GRANT, before which the shard may have taken what came for a duplicate of what it was still reading.
 *  - A chunk that was sent to be received may hold a slot of the shard's until it is answered, whatever was
 *    lost since: so it is sent so again, and such chunks go first. One that was to be read where it lies is
 *    sent to be received where the way shares no memory any more, or the shard cannot read it there; it waits
 *    until the window has room.
 *  - A buffer is released by the shard's ACK; after the round is void, by any answer or by the loss of the
 *    connection; when the round is committed, at once. RELEASED says that no shard will read it; whoever
 *    handed it to the fabric waits for the fabric's own completion, too.
 *  - VOID says that shards take no more of this round. Only the coordinator knows how it ended: ask.
 *
 * GRANTs may come before the coordinator's WORKER_OPENED: keep the last one of each shard, and give it
 * to the machine when it is made. A message of another round is not for this machine: judge the round
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
    uint64_t request; /* not 0; goes with the chunk, and comes back in its ACK or REFUSE */
    bool in_place;    /* goes with the chunk, too: it is counted among those read where they lie */
    uint64_t cookie;
    uint64_t weight;
    cairn_status status;
};

/* Filled from count on; the machine asserts that it fits. */
struct push_actions {
    struct push_action *list; /* [capacity] */
    size_t count, capacity;
};
/* No call gives more actions than this. */
size_t push_actions_max(const struct push_config *config);

struct push_round;

/* Bytes of memory for a machine; 0 if the configuration is not valid or overflows. */
size_t push_bytes(const struct push_config *config);
/* A machine for one round in `memory` (aligned as by malloc; borrowed until it is dropped; nothing to
 * release). */
struct push_round *push_init(void *memory, const struct push_config *config);

/* There is no such shard: it is owed nothing. Before anything else is called. */
void push_absent(struct push_round *push, uint32_t shard);

/* ---- the caller's side. CAIRN_ERR_BUSY: the queue is full, try again after the next RELEASED or
 * MICRO_ACK. CAIRN_ERR_EPOCH_CHANGED: the round is void. CAIRN_ERR_INVALID: not the micro-batch that is
 * being filled, or already committed; no such shard. Not OK: nothing changed. ---- */

/* Where a payload lies, for a shard that reads it there if it can. */
enum push_lies {
    CAIRN_PUSH_LIES_APART, /* it is copied, or sent */
    CAIRN_PUSH_LIES_HOST,  /* in memory of the host that is shared with shards */
    CAIRN_PUSH_LIES_CARD   /* the same of a card */
};

/* One chunk of a push. */
struct push_chunk {
    uint32_t chunk; /* the shard's number of it */
    bool is_small;  /* by its bytes: proto/wire/wire.h */
    enum push_lies lies;
    uint64_t cookie;
};
/* One chunk for a shard; at most once a micro-batch. Its cookie comes back in RELEASED. */
cairn_status push_chunk(struct push_round *push, uint32_t shard, uint32_t micro,
                        struct push_chunk chunk, struct push_actions *actions) CAIRN_MUST_CHECK;
/* Ends micro-batch `micro` on all shards; micro + 1 is filled next. */
cairn_status push_micro_end(struct push_round *push, uint32_t micro,
                            struct push_actions *actions) CAIRN_MUST_CHECK;
/* The round is complete; at least one micro-batch was ended, and the one being filled is empty. */
cairn_status push_commit(struct push_round *push, uint64_t weight,
                         struct push_actions *actions) CAIRN_MUST_CHECK;

/* ---- shards. `request` and `micro` come from the network: unknown ones change nothing ---- */

/* How many chunks may be unanswered. */
struct push_window {
    uint32_t chunks; /* at least 1; 0: not connected */
    uint32_t small;  /* small ones; 0: they are counted among the others */
    /* Chunks that the shard reads where they lie; 0: it reads none there, by this way. Chunks with
     * numbers below `on_card` are read there if they lie on a card, the others if they lie in
     * memory of the host. */
    uint32_t in_place;
    uint64_t on_card;
};
/* GRANT of this round, from the shard's endpoint of that number. A second one of the same endpoint only
 * sets the window; one of an earlier endpoint was overtaken and changes nothing. */
void push_on_grant(struct push_round *push, uint32_t shard, uint64_t endpoint,
                   struct push_window window, struct push_actions *actions);
/* HELLO: the shard has this endpoint now; what it answered on earlier ones may be lost. */
void push_on_hello(struct push_round *push, uint32_t shard, uint64_t endpoint,
                   struct push_actions *actions);
void push_on_ack(struct push_round *push, uint32_t shard, uint64_t request,
                 struct push_actions *actions);
/* BUSY and CHECKSUM send the chunk again, in a void round too, until it is answered by something else; after
 * BUSY it is to be received. All others make the round void. request 0: of an end or a commit; BUSY and
 * CHECKSUM are of an end, which is sent again. */
void push_on_refuse(struct push_round *push, uint32_t shard, uint64_t request, cairn_status status,
                    struct push_actions *actions);
void push_on_micro_ack(struct push_round *push, uint32_t shard, uint32_t micro,
                       struct push_actions *actions);
/* The connection is gone, every send on it has ended, and nothing that was under way on it arrives. */
void push_on_lost(struct push_round *push, uint32_t shard, struct push_actions *actions);

/* ---- the coordinator's word ---- */

/* The round is void. Unanswered chunks stay on loan until they are answered, or lost. */
void push_on_void(struct push_round *push, struct push_actions *actions);
/* The round is resolved by APPLY or SKIP: everything was folded. Releases all. */
void push_on_result(struct push_round *push, struct push_actions *actions);

/* ---- questions ---- */
bool push_voided(const struct push_round *push);
/* No buffer is on loan: the machine may be dropped once the round has ended. The simulator and tests ask; a
 * pusher counts its loans itself. */
bool push_idle(const struct push_round *push);
/* The shard owes something: a GRANT, or the answer to a chunk or to an end. (A commit has none.) */
bool push_waits(const struct push_round *push, uint32_t shard);

#endif
