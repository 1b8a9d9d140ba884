/* Memory that a job takes for long: admitted first, then its pages are really made, on threads of their own,
 * so that a job never dies of them later, and heartbeats go on meanwhile.
 *
 *   cairn_reserve_begin ─► waits for its turn on this shard ─► prepare: which bytes of which arenas
 *       ─► the host's lock; is there room? (server/base/headroom.h) ─► pages ─► done, the lock is free
 *
 * The shards of a host do this one at a time: what one was admitted for is in use before the next looks.
 * Loop thread; the job is kept (busy) until `done`. */
#ifndef CAIRN_SHARD_MEMORY_RESERVE_H
#define CAIRN_SHARD_MEMORY_RESERVE_H

#include <uv.h>

#include "server/shard/base/session.h"
#include "server/shard/memory/arena.h"
#include "server/shard/memory/budget.h"

struct cairn_pool;
struct cairn_release;
struct cairn_reserve;
struct cairn_shard;
struct cairn_shard_job;

/* A shard's memory. */
struct cairn_shard_memory {
    char *lock, *host_root; /* owned: as of cairn_shard_options */
    struct cairn_budget budget;
    struct cairn_pool *pool;        /* owned: makes pages */
    struct cairn_pool *toucher;     /* owned: makes those that nobody waits for, and gives way */
    struct cairn_reserve *reserves; /* what takes memory, one at a time */
    struct cairn_pool *releaser;    /* owned */
    struct cairn_release *releases; /* what is being unmapped: release.c */
    uv_timer_t give_timer;          /* the next turn of the loop, while given_bytes > 0: admit.c */
    uint64_t given_bytes;           /* landing pages that this turn gave back */
    uint64_t give_max_bytes;        /* of a turn; CAIRN_GIVE_MAX_BYTES */
};

/* A request for memory, by one job. The callbacks run on the loop thread, except for `took`, and
 * for `prepare` if prepares_on_thread. */
struct cairn_reserve_request {
    struct cairn_shard_job *job; /* borrowed */
    const char *what;            /* "the state": static; the job's name follows it in a refusal */
    /* Its turn came: adds what it needs, or nothing. CAIRN_ERR_NO_MEMORY */
    cairn_status (*prepare)(struct cairn_reserve *reserve, struct cairn_shard_job *job);
    /* `prepare` runs on a thread: what it reads does not change, and may be a million extents */
    bool prepares_on_thread;
    /* There is room for it, and pages begin to be made; `done` follows. May be NULL. */
    void (*judged)(const struct cairn_reserve_request *request);
    /* So many bytes have their pages now. Any thread. May be NULL. */
    void (*took)(struct cairn_shard_job *job, const void *at, uint64_t bytes);
    /* CAIRN_ERR_NO_MEMORY, with the numbers; CAIRN_ERR_BUSY: another process kept the lock;
     * CAIRN_ERR_CANCELED: the job leaves. Then nothing may be counted on. Once; not after the shard was
     * closed. */
    void (*done)(const struct cairn_reserve_request *request, cairn_status status,
                 const struct cairn_sentence *why);
    /* for `done`, if it wants them */
    uint64_t member;
    struct cairn_request answer;
};

/* CAIRN_ERR_NO_MEMORY: not begun. */
CAIRN_MUST_CHECK cairn_status cairn_reserve_begin(const struct cairn_reserve_request *request,
                                                  struct cairn_sentence *why);
/* Within `prepare`: these bytes of an arena, which stays as it is until `done`. Neighbours become one. */
CAIRN_MUST_CHECK cairn_status cairn_reserve_add(struct cairn_reserve *reserve,
                                                const struct cairn_arena *arena, uint64_t from,
                                                uint64_t bytes);
/* Bytes of shared memory that nobody uses any more. */
struct cairn_span {
    void *at; /* at the beginning of a page */
    size_t bytes;
};
/* The pages of these go back to the system, when what was asked for before is made: who asks later may have
 * the same places. Takes the list, malloc'ed memory. They stay if there is no memory to do it. */
void cairn_reserve_give(struct cairn_shard_job *job, struct cairn_span *spans, size_t span_count);
/* The job leaves: its `done` follows soon. */
void cairn_reserve_cancel(struct cairn_shard_job *job);
/* Before the shard's pool is closed, and after it. */
void cairn_reserves_stop(struct cairn_shard *shard);
void cairn_reserves_free(struct cairn_shard *shard);

#endif
