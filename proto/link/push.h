/* A worker's side of one round: the machine decides which message to send to which shard next, and when a
 * buffer belongs to the caller again. The machine is pure, like server/core/step.h: calls return actions,
 * and there is no clock, socket, thread or allocation. The library drives a machine over the fabric, the
 * simulator over its own network.
 *
 *  - Each shard has a queue: the chunks of micro-batch 0, the end of micro-batch 0, the chunks of
 *    micro-batch 1, its end, ..., the commit. The queue is sent in this order. At most `window` chunks are
 *    unanswered; if the GRANT has a window for small chunks, or for chunks that the shard reads in place,
 *    such chunks are counted separately. The chunks of micro-batch m+1 wait for the shard's MICRO_ACK of
 *    micro-batch m. An end is sent behind its chunks, and the commit behind the last end, without waiting:
 *    the shard puts all these messages in order.
 *  - Nothing is sent to a shard before its GRANT for this round. After a lost connection, everything
 *    unanswered counts as unsent, and the next GRANT sends it again, oldest first.
 *  - A shard's endpoint to us can be lost while our connection stays, and answers are lost with the
 *    endpoint. Each endpoint has a number (HELLO and GRANT of proto/wire/wire.h). After a GRANT with a
 *    higher number than before, everything unanswered is sent again, oldest first. In a void round a GRANT
 *    may never arrive, so there a HELLO with a higher number has the same effect. Any later GRANT has this
 *    effect once more, since the shard may have dropped the repeated chunks as duplicates of chunks that it
 *    was still reading.
 *  - A chunk is sent to be received or to be read in place. A chunk that was sent to be received may hold
 *    one of the shard's slots until it is answered, whatever was lost since. So it is sent to be received
 *    again, ahead of all other chunks. A chunk that was to be read in place is sent to be received if the
 *    path no longer shares memory, or if the shard cannot read the chunk in place; the chunk then waits
 *    until the window has room.
 *  - The shard's ACK releases a buffer. In a void round the loss of the connection and every other answer,
 *    except BUSY and CHECKSUM, release it, too. When the round is resolved, all buffers are released at
 *    once. RELEASED says that no shard will read the buffer; a caller that has handed the buffer to the
 *    fabric must wait for the fabric's own completion, too.
 *  - VOID says that shards accept no more of this round. Only the coordinator knows how the round ended:
 *    ask the coordinator.
 *
 * GRANTs may arrive before the coordinator's WORKER_OPENED: keep each shard's last GRANT, and give it to
 * the machine when the machine is created. A message of another round is not for this machine: check the
 * round first. One thread at a time. */
#ifndef CAIRN_LINK_PUSH_H
#define CAIRN_LINK_PUSH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"

struct push_config {
    uint32_t shard_count; /* at least 1 */
    /* the most chunks, ends and commits that are not answered yet; at least 2 * shard_count */
    uint32_t queue_max;
};

enum push_action_kind {
    CAIRN_PUSH_SEND_CHUNK, /* shard, micro, chunk, request, cookie, in_place */
    /* shard, micro, sent (how many chunks the shard gets in this micro-batch) */
    CAIRN_PUSH_SEND_MICRO_END,
    CAIRN_PUSH_SEND_COMMIT, /* shard, micro (the last micro-batch), weight */
    CAIRN_PUSH_RELEASED,    /* cookie, status (OK: folded; CAIRN_ERR_EPOCH_CHANGED: void) */
    /* shard, status; at most once. STALE or FENCED: ask the coordinator; any other status: a fault */
    CAIRN_PUSH_VOID,
};

struct push_action {
    enum push_action_kind kind;
    uint32_t shard, micro, chunk, sent;
    uint64_t request; /* not 0; sent with the chunk, and returned in the chunk's ACK or NAK */
    /* sent with the chunk, too; true: the chunk is counted among the chunks read in place */
    bool in_place;
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

/* Tells the machine that the shard does not exist, so that nothing is owed to the shard. Call this before
 * anything else. */
void push_absent(struct push_round *push, uint32_t shard);

/* ---- the caller's side. CAIRN_ERR_BUSY: the queue is full, try again after the next RELEASED or
 * MICRO_ACK. CAIRN_ERR_EPOCH_CHANGED: the round is void. CAIRN_ERR_INVALID: the micro-batch is not the one
 * being filled, the round is already committed, or there is no such shard. If the status is not OK, nothing
 * changed. ---- */

/* Says where a payload lies: a shard reads the payload in place if it can. */
enum push_lies {
    CAIRN_PUSH_LIES_APART, /* in memory that no shard reads: the payload is copied, or sent */
    CAIRN_PUSH_LIES_HOST,  /* in host memory that is shared with shards */
    CAIRN_PUSH_LIES_CARD   /* in memory of a card that is shared with shards */
};

/* One chunk of a push. */
struct push_chunk {
    uint32_t chunk; /* the number by which the shard knows the chunk */
    bool is_small;  /* decided by the payload's size: proto/wire/wire.h */
    enum push_lies lies;
    uint64_t cookie;
};
/* Queues one chunk for a shard, at most once per micro-batch. RELEASED returns the chunk's cookie. */
cairn_status push_chunk(struct push_round *push, uint32_t shard, uint32_t micro,
                        struct push_chunk chunk, struct push_actions *actions) CAIRN_MUST_CHECK;
/* Ends micro-batch `micro` on all shards; micro + 1 is filled next. */
cairn_status push_micro_end(struct push_round *push, uint32_t micro,
                            struct push_actions *actions) CAIRN_MUST_CHECK;
/* Commits the round. At least one micro-batch must have ended, and the micro-batch being filled must be
 * empty. */
cairn_status push_commit(struct push_round *push, uint64_t weight,
                         struct push_actions *actions) CAIRN_MUST_CHECK;

/* ---- shards. `request` and `micro` come from the network: unknown ones change nothing. If `push` is NULL,
 * there is no round, and nothing changes ---- */

/* How many chunks may be unanswered. */
struct push_window {
    uint32_t chunks; /* at least 1, or 0: not connected */
    uint32_t small;  /* small chunks; 0: small chunks are counted among the others */
    /* in_place: how many chunks the shard may read in place by this path; 0: none. Chunks with
     * numbers below `on_card` are read in place if they lie on a card, the others if they lie in memory of
     * the host. */
    uint32_t in_place;
    uint64_t on_card;
};
/* Handles a GRANT of this round from the shard's endpoint with the number `endpoint`. A second GRANT from
 * the same endpoint only sets the window; a GRANT from an earlier endpoint was overtaken and changes
 * nothing. */
void push_on_grant(struct push_round *push, uint32_t shard, uint64_t endpoint,
                   struct push_window window, struct push_actions *actions);
/* Handles a HELLO: the shard now has this endpoint, and the shard's answers on earlier endpoints may be
 * lost. */
void push_on_hello(struct push_round *push, uint32_t shard, uint64_t endpoint,
                   struct push_actions *actions);
void push_on_ack(struct push_round *push, uint32_t shard, uint64_t request,
                 struct push_actions *actions);
/* BUSY and CHECKSUM send the chunk again, in a void round too, until the shard gives another answer; after
 * BUSY the chunk is sent to be received. All other statuses make the round void. If `request` is 0, the
 * shard refuses an end or a commit. With BUSY or CHECKSUM the shard refuses an end, which is sent again. */
void push_on_refuse(struct push_round *push, uint32_t shard, uint64_t request, cairn_status status,
                    struct push_actions *actions);
void push_on_micro_ack(struct push_round *push, uint32_t shard, uint32_t micro,
                       struct push_actions *actions);
/* Call this when the connection is gone, every send on the connection has ended, and nothing more arrives
 * by the connection. */
void push_on_lost(struct push_round *push, uint32_t shard, struct push_actions *actions);

/* ---- the coordinator's decision ---- */

/* Call this when the round is void. Unanswered chunks stay on loan until they are answered, or lost. */
void push_on_void(struct push_round *push, struct push_actions *actions);
/* Call this when the round is resolved by APPLY or SKIP, which means that everything was folded. Releases
 * all buffers. */
void push_on_result(struct push_round *push, struct push_actions *actions);

/* ---- questions ---- */
bool push_voided(const struct push_round *push);
/* True if no buffer is on loan: then the machine may be dropped when the round has ended. Only the
 * simulator and tests call this; a pusher counts its loans itself. */
bool push_idle(const struct push_round *push);
/* True if the shard owes a GRANT, or the answer to a chunk or to an end. (A commit has no answer.) False if
 * `push` is NULL. */
bool push_waits(const struct push_round *push, uint32_t shard);

#endif
