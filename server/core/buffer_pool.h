/* The buffer pool of a relay (server/shard/relay.h): which buffer a fold gets that begins a chunk's
 * sum, who waits for one, and when waiting is given up. Pure: no clock, socket, file, thread or allocation.
 * The caller owns all memory, and is asked before a buffer's memory is used for the first time (touched).
 *
 *          a claim that begins       _final              _end
 *   FREE ──────────────────► SUMMING ──────► SENDING ────────► FREE, or ENDING while it is on loan
 *                               └─────────────────── _void ──► the same
 *
 *  - The lowest free buffer is taken, so memory goes with what is under way. Up to `wanted` another one is
 *    touched when none is free.
 *  - Beyond `wanted` another one is touched only when waiting could last for ever: what completes
 *    the sums may be behind the contribution that waits. Whether it could is judged for each owner
 *    alone. A sum that is being sent to one owner may have to wait there for another host, and that
 *    host may wait for a sum that this relay has not passed on to another owner yet. For one owner,
 *    all that waits here is of the micro-batch at hand, and all that is being sent is of that one
 *    or of those before.
 *  - An owner holds no more buffers than it has chunks, and there is a buffer for each chunk of all owners:
 *    so all together never hold those that another owner needs.
 *  - Claims of one owner are served oldest first. Owners are offered free buffers in turns (round robin).
 *
 * The caller may read all fields, and writes those that are given, once, at the start. */
#ifndef CAIRN_CORE_BUFFER_POOL_H
#define CAIRN_CORE_BUFFER_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct buffer_owner;
struct buffer_pool;

enum { CAIRN_BUFFER_NONE = UINT32_MAX };

enum buffer_state {
    CAIRN_BUFFER_FREE = 0,
    CAIRN_BUFFER_SUMMING, /* of owner->sums */
    CAIRN_BUFFER_SENDING, /* final: the owner has not folded it yet */
    CAIRN_BUFFER_ENDING   /* nobody needs it: free when it is no longer on loan */
};

/* Room for a chunk's sum. */
struct buffer {
    enum buffer_state state;
    struct buffer_owner *owner; /* borrowed: whose sum is in it */
    uint32_t chunk;             /* the core's number */
    uint32_t on_loan;           /* who reads or writes its memory: sends, and a fold */
};

/* A fold that needs a buffer. */
struct buffer_claim {
    /* given */
    struct buffer_owner *owner;
    uint32_t chunk;
    bool begins; /* the chunk's sum; else it goes on with the sum of before */

    uint32_t buffer;           /* the buffer that it has on loan */
    struct buffer_claim *next; /* while it waits, and in a list that is returned */
};

/* A shard to which the relay passes on. */
struct buffer_owner {
    /* given */
    /* [chunk_count] borrowed: the buffer of a chunk's sum; CAIRN_BUFFER_NONE: it has none */
    uint32_t *sums;
    uint32_t chunk_count;

    uint32_t held;           /* buffers of it that are SUMMING or SENDING */
    uint32_t sending;        /* those that are SENDING */
    uint64_t stuck_since_ms; /* since then only room lets it go on; 0: something else may */
    struct buffer_claim *waiting, **waiting_end; /* oldest first */
    struct buffer_owner *next;                   /* the ring in which owners take turns */
};

/* May the memory of buffer number pool->touched be used from now on? False: there is no room for it now. */
typedef bool (*buffer_touch_fn)(struct buffer_pool *pool);

struct buffer_pool {
    /* given */
    struct buffer *buffers; /* [count] borrowed: all FREE */
    uint32_t count;         /* as many as the owners have chunks */
    uint32_t wanted;        /* more are touched only for an owner of which none is SENDING */
    uint64_t stuck_max_ms;  /* without room, before it is given up */
    buffer_touch_fn touch;

    uint32_t touched;          /* the lowest so many were used */
    struct buffer_owner *turn; /* the next owner to be offered a free buffer (round robin) */
};

/* The owner, whose given fields are set and the rest zero, takes part. */
void buffer_pool_add(struct buffer_pool *pool, struct buffer_owner *owner);

/* True: the claim has its buffer, on loan. False: it waits, and is the pool's until _advance or _void returns
 * it. One that does not begin a sum never waits. */
bool buffer_pool_claim(struct buffer_pool *pool, struct buffer_claim *claim);
/* A buffer may be free now, or may be touched. Returns the claims that have their buffers now, linked by
 * `next`. */
struct buffer_claim *buffer_pool_advance(struct buffer_pool *pool);
/* The round is void: gives up all sums and claims. Returns the claims that waited, linked by `next`. */
struct buffer_claim *buffer_pool_void(struct buffer_pool *pool);

/* The chunk's sum is final. Returns its buffer, which is SENDING now. */
uint32_t buffer_pool_final(struct buffer_pool *pool, struct buffer_owner *owner, uint32_t chunk);
/* Nobody needs the buffer's sum any more: the owner has folded it, or it cannot be sent. */
void buffer_pool_end(struct buffer_pool *pool, uint32_t buffer);
/* The same of all buffers that are SENDING to the owner. */
void buffer_pool_end_sending(struct buffer_pool *pool, struct buffer_owner *owner);
/* A send begins to read the buffer's memory; a send or a fold of it ended. */
void buffer_pool_loan(struct buffer_pool *pool, uint32_t buffer);
void buffer_pool_return(struct buffer_pool *pool, uint32_t buffer);

/* True: the owner's claims have waited for stuck_max_ms for what only room would give. No answer of the owner
 * gives any, and its core takes no more contributions, which might complete a sum. Asked every now and
 * then: time counts from call to call. */
bool buffer_pool_is_stuck(const struct buffer_pool *pool, struct buffer_owner *owner,
                          bool may_receive, uint64_t now_ms);

#endif
