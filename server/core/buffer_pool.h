/* The buffer pool of a relay (server/shard/relay.h): it decides which buffer is given to a fold that begins
 * a chunk's sum, which folds wait for a buffer, and when waiting is given up. The pool is pure: it uses no
 * clock, socket, file, thread or allocation. The caller owns all memory. The pool asks the caller before it
 * touches a buffer, which means that it uses the buffer's memory for the first time.
 *
 *          a claim that begins       _final              _end
 *   FREE ──────────────────► SUMMING ──────► SENDING ────────► FREE, or ENDING while it is on loan
 *                               └─────────────────── _void ──► the same
 *
 *  - A fold gets the free buffer with the lowest number, so memory grows only with the number of sums under
 *    way. While fewer than `wanted` buffers are touched, the pool touches another one when no buffer is
 *    free.
 *  - Beyond `wanted` the pool touches another buffer only when waiting could last for ever, because the
 *    contributions that complete the sums may be behind the contribution that waits. This is judged for
 *    each owner alone. A sum that is sent to one owner may wait there for another host, and that host may
 *    wait for a sum that this relay has not passed on to another owner yet. For one owner, all waiting
 *    claims belong to the current micro-batch, and all sums that are being sent belong to this micro-batch
 *    or to earlier ones.
 *  - An owner holds no more buffers than it has chunks, and there is a buffer for each chunk of all owners:
 *    so the other owners can never hold so many buffers that none is left for an owner that needs one.
 *  - The claims of one owner are served oldest first. The owners take turns in getting free buffers.
 *
 * The caller may read all fields. At the start it sets the fields marked "given", and never changes
 * them. */
#ifndef CAIRN_CORE_BUFFER_POOL_H
#define CAIRN_CORE_BUFFER_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct buffer_owner;
struct buffer_pool;

enum { CAIRN_BUFFER_NONE = UINT32_MAX };

enum buffer_state {
    CAIRN_BUFFER_FREE = 0,
    CAIRN_BUFFER_SUMMING, /* in owner->sums */
    CAIRN_BUFFER_SENDING, /* final: the owner has not folded the sum yet */
    /* nobody needs the sum any longer; the buffer is FREE as soon as it is not on loan */
    CAIRN_BUFFER_ENDING
};

/* Room for a chunk's sum. */
struct buffer {
    enum buffer_state state;
    struct buffer_owner *owner; /* borrowed: the owner of the sum in the buffer */
    uint32_t chunk;             /* the number of the chunk, as the owner's core counts */
    /* the number of sends and folds that use the buffer's memory now */
    uint32_t on_loan;
};

/* A fold that needs a buffer. */
struct buffer_claim {
    /* given */
    struct buffer_owner *owner;
    uint32_t chunk;
    bool begins; /* true: the fold begins the chunk's sum; false: it continues the sum */

    uint32_t buffer;           /* the buffer that the fold has on loan */
    struct buffer_claim *next; /* links claims that wait, and claims that a function returns */
};

/* A shard to which the relay passes sums on. */
struct buffer_owner {
    /* given */
    /* [chunk_count] borrowed: for each chunk, the buffer that is SUMMING its sum; CAIRN_BUFFER_NONE: there
     * is none */
    uint32_t *sums;
    uint32_t chunk_count;

    uint32_t held;    /* the number of the owner's buffers that are SUMMING or SENDING */
    uint32_t sending; /* the number of the owner's buffers that are SENDING */
    /* since this time only more room can help the owner; 0: something else may help */
    uint64_t stuck_since_ms;
    struct buffer_claim *waiting, **waiting_end; /* oldest first */
    struct buffer_owner *next;                   /* the next owner in the ring of all owners */
};

/* Asks the caller whether the memory of buffer pool->touched may be used from now on. False: there is no
 * memory for the buffer now. */
typedef bool (*buffer_touch_fn)(struct buffer_pool *pool);

struct buffer_pool {
    /* given */
    struct buffer *buffers; /* [count] borrowed; at the start all are FREE */
    uint32_t count;         /* the number of chunks of all owners */
    /* when so many are touched, another one is touched only for an owner that has no buffer SENDING */
    uint32_t wanted;
    /* an owner that waits longer than this, while only more room can help, is stuck */
    uint64_t stuck_max_ms;
    buffer_touch_fn touch;

    uint32_t touched;          /* the first `touched` buffers have been used */
    struct buffer_owner *turn; /* the owner that is offered a free buffer next */
};

/* Adds an owner, whose given fields are set, and whose other fields are zero. */
void buffer_pool_add(struct buffer_pool *pool, struct buffer_owner *owner);

/* Returns true if the claim has its buffer, on loan. Otherwise the claim waits, and belongs to the pool
 * until buffer_pool_advance or buffer_pool_void returns it. A claim that does not begin a sum never
 * waits. */
bool buffer_pool_claim(struct buffer_pool *pool, struct buffer_claim *claim);
/* Call when a buffer may have become FREE, or when the caller may allow to touch one. Returns the claims
 * that now have their buffers, linked by `next`. */
struct buffer_claim *buffer_pool_advance(struct buffer_pool *pool);
/* Call when the round is void: gives up all sums and claims. Returns the claims that waited, linked by
 * `next`. */
struct buffer_claim *buffer_pool_void(struct buffer_pool *pool);

/* Call when the chunk's sum is final. Returns the sum's buffer, which is SENDING now. */
uint32_t buffer_pool_final(struct buffer_pool *pool, struct buffer_owner *owner, uint32_t chunk);
/* Call when nobody needs the buffer's sum any longer, because the owner has folded the sum, or because the
 * sum cannot be sent. */
void buffer_pool_end(struct buffer_pool *pool, uint32_t buffer);
/* Ends all buffers that are SENDING to the owner. */
void buffer_pool_end_sending(struct buffer_pool *pool, struct buffer_owner *owner);
/* Call buffer_pool_loan when a send begins to read the buffer's memory, and buffer_pool_return when a send
 * or fold of the buffer ended. */
void buffer_pool_loan(struct buffer_pool *pool, uint32_t buffer);
void buffer_pool_return(struct buffer_pool *pool, uint32_t buffer);

/* True if the owner is stuck: its claims have waited for stuck_max_ms, and only more room can help. Only
 * more room can help if no sum is being sent to the owner, so that no answer of it frees a buffer, and if
 * `may_receive` is false: its core takes no contribution that might complete a sum. Call this function
 * regularly, because the waiting time begins at a call. */
bool buffer_pool_is_stuck(const struct buffer_pool *pool, struct buffer_owner *owner,
                          bool may_receive, uint64_t now_ms);

#endif
