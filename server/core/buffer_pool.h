/* The buffer pool of a relay (server/shard/relay.h): which buffer a fold that begins a chunk's sum gets,
 * which folds wait for a buffer, and when waiting is given up. Pure: no clock, socket, file, thread or
 * allocation. The caller owns all memory, and is asked before a buffer's memory is used for the first time
 * (touched).
 *
 *          a claim that begins       _final              _end
 *   FREE ──────────────────► SUMMING ──────► SENDING ────────► FREE, or ENDING while it is on loan
 *                               └─────────────────── _void ──► the same
 *
 *  - The lowest free buffer is taken, so memory grows with the number of sums under way. Up to `wanted`
 *    buffers, another buffer is touched when none is free.
 *  - Beyond `wanted` another buffer is touched only when waiting could last for ever: the contributions
 *    that complete the sums may be behind the contribution that waits. This is judged for each owner alone.
 *    A sum that is being sent to one owner may have to wait there for another host, and that host may wait
 *    for a sum that this relay has not passed on to another owner yet. For one owner, all claims that wait
 *    here belong to the current micro-batch, and all sums that are being sent belong to it or to earlier
 *    ones.
 *  - An owner holds no more buffers than it has chunks, and there is a buffer for each chunk of all owners:
 *    so the other owners together can never hold all the buffers that an owner needs.
 *  - Claims of one owner are served oldest first. Owners are offered free buffers in turns (round robin).
 *
 * The caller may read all fields, and sets those marked "given", once, at the start. */
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
    CAIRN_BUFFER_ENDING /* nobody needs the sum: the buffer is FREE when it is no longer on loan */
};

/* Room for a chunk's sum. */
struct buffer {
    enum buffer_state state;
    struct buffer_owner *owner; /* borrowed: the owner of the sum in it */
    uint32_t chunk;             /* the core's number */
    /* the number of readers and writers of its memory: sends, and a fold */
    uint32_t on_loan;
};

/* A fold that needs a buffer. */
struct buffer_claim {
    /* given */
    struct buffer_owner *owner;
    uint32_t chunk;
    bool begins; /* it begins the chunk's sum; otherwise it continues the existing sum */

    uint32_t buffer;           /* the buffer that the fold has on loan */
    struct buffer_claim *next; /* while the claim waits, and in a list that is returned */
};

/* A shard to which the relay passes sums on. */
struct buffer_owner {
    /* given */
    /* [chunk_count] borrowed: the buffer of a chunk's sum; CAIRN_BUFFER_NONE: the sum has no buffer */
    uint32_t *sums;
    uint32_t chunk_count;

    uint32_t held;    /* its buffers that are SUMMING or SENDING */
    uint32_t sending; /* of these, the buffers that are SENDING */
    /* since when only more room can help this owner; 0: something else may help */
    uint64_t stuck_since_ms;
    struct buffer_claim *waiting, **waiting_end; /* oldest first */
    struct buffer_owner *next;                   /* in the ring in which owners take turns */
};

/* Asks whether the memory of buffer number pool->touched may be used from now on. False: there is no room
 * for it now. */
typedef bool (*buffer_touch_fn)(struct buffer_pool *pool);

struct buffer_pool {
    /* given */
    struct buffer *buffers; /* [count] borrowed: all FREE */
    uint32_t count;         /* as many as the owners have chunks */
    /* beyond this number a buffer is touched only for an owner that has none SENDING */
    uint32_t wanted;
    uint64_t stuck_max_ms; /* the longest time without room before the owner counts as stuck */
    buffer_touch_fn touch;

    uint32_t touched;          /* the number of buffers used so far, which are the first ones */
    struct buffer_owner *turn; /* the next owner to be offered a free buffer (round robin) */
};

/* Adds the owner. Its given fields must be set, and its other fields zero. */
void buffer_pool_add(struct buffer_pool *pool, struct buffer_owner *owner);

/* True: the claim has its buffer, on loan. False: the claim waits, and belongs to the pool until _advance
 * or _void returns the claim. A claim that does not begin a sum never waits. */
bool buffer_pool_claim(struct buffer_pool *pool, struct buffer_claim *claim);
/* Call when a buffer may be free, or may be touched. Returns the claims that now have their buffers, linked
 * by `next`. */
struct buffer_claim *buffer_pool_advance(struct buffer_pool *pool);
/* Call when the round is void: gives up all sums and claims. Returns the claims that waited, linked by
 * `next`. */
struct buffer_claim *buffer_pool_void(struct buffer_pool *pool);

/* Call when the chunk's sum is final. Returns the sum's buffer, which is SENDING now. */
uint32_t buffer_pool_final(struct buffer_pool *pool, struct buffer_owner *owner, uint32_t chunk);
/* Call when nobody needs the buffer's sum any longer: the owner has folded it, or it cannot be sent. */
void buffer_pool_end(struct buffer_pool *pool, uint32_t buffer);
/* Ends all buffers that are SENDING to the owner. */
void buffer_pool_end_sending(struct buffer_pool *pool, struct buffer_owner *owner);
/* Call buffer_pool_loan when a send begins to read the buffer's memory, and buffer_pool_return when a send
 * or fold of the buffer ended. */
void buffer_pool_loan(struct buffer_pool *pool, uint32_t buffer);
void buffer_pool_return(struct buffer_pool *pool, uint32_t buffer);

/* True if the owner's claims have waited for stuck_max_ms and only more room can help. Then no answer of
 * the owner will free a buffer, and the owner's core takes no more contributions that might complete a sum.
 * Call this function regularly: time counts from call to call. */
bool buffer_pool_is_stuck(const struct buffer_pool *pool, struct buffer_owner *owner,
                          bool may_receive, uint64_t now_ms);

#endif
