/* The sums of a relay: memory for the buffers that buffer_pool.h gives out, and the folds that make them on
 * the compute threads. */
#include <stdlib.h>

#include "server/shard/relay/relay.h"

#define BUFFERS_WANTED_MIN 16 /* the first ones are reserved with the relay */
#define BUFFERS_WANTED_MAX 256
#define STUCK_MAX_MS       2000 /* without room, before it is given up */

/* ---- buffers ---- */

float *cairn_relay_buffer_at(const struct cairn_relay *relay, uint32_t buffer)
{
    return (float *)(relay->sums.arena.base + (size_t)buffer * relay->sums.buffer_bytes);
}

static cairn_status count_another(struct cairn_relay *relay, struct cairn_sentence *why)
{
    struct cairn_shard_job *job = relay->job;
    struct cairn_relay_sums *sums = &relay->sums;
    uint64_t *kind = &job->memory.staging;
    const bool is_counted = sums->pool.touched < sums->reserved;
    cairn_status status = CAIRN_OK;
    if (!is_counted)
        status = cairn_shard_job_take(job, kind, sums->buffer_bytes, "a sum to relay", why);
    if (status != CAIRN_OK) return status;
    const uint64_t at = (uint64_t)sums->pool.touched * sums->buffer_bytes;
    if (cairn_arena_take(&sums->arena, at, sums->buffer_bytes) == CAIRN_OK) return CAIRN_OK;
    if (!is_counted) cairn_shard_job_give(job, kind, sums->buffer_bytes);
    return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "The host is out of memory.");
}

/* The pool's question. */
static bool touch_another(struct cairn_buffer_pool *pool)
{
    struct cairn_relay *relay = (struct cairn_relay *)((char *)pool -
                                                       offsetof(struct cairn_relay, sums.pool));
    struct cairn_sentence why;
    if (count_another(relay, &why) == CAIRN_OK) return true;
    cairn_log_limited(
        &relay->sums.starving, CAIRN_LOG_WARN,
        "job %s: the relay waits for room: its workers push in orders that are far apart. %s",
        relay->job->spec.name, why.text);
    return false;
}

/* ---- folds ---- */

bool cairn_relay_fold(const struct cairn_fold *fold, uint32_t stage, struct cairn_works *works)
{
    const struct cairn_relay_owner *owner = cairn_relay_owner_of(fold->collector);
    const struct cairn_chunk_place place = cairn_chunk_table_place(&owner->table, fold->chunk);
    (void)stage;
    cairn_works_fold(works, cairn_relay_buffer_at(owner->relay, fold->claim.buffer), fold->sources,
                     fold->source_count, fold->first, (size_t)place.elem_count);
    return false;
}

void cairn_relay_fold_done(struct cairn_fold *fold)
{
    cairn_buffer_pool_return(&cairn_relay_owner_of(fold->collector)->relay->sums.pool,
                             fold->claim.buffer);
}

bool cairn_relay_fold_place(struct cairn_fold *fold)
{
    struct cairn_relay_owner *owner = cairn_relay_owner_of(fold->collector);
    struct cairn_relay *relay = owner->relay;
    fold->claim = (struct cairn_buffer_claim) { .owner = &owner->buffers,
                                                .chunk = fold->chunk,
                                                .begins = fold->first };
    if (cairn_buffer_pool_claim(&relay->sums.pool, &fold->claim)) return true;
    cairn_relay_wake(relay->job->shard);
    return false;
}

/* Calls `what` for the fold of each claim in the list. */
static void for_folds(struct cairn_buffer_claim *claims, void (*what)(struct cairn_fold *fold))
{
    while (claims != NULL) {
        struct cairn_buffer_claim *claim = claims;
        claims = claim->next;
        what((struct cairn_fold *)((char *)claim - offsetof(struct cairn_fold, claim)));
    }
}

void cairn_relay_sums_advance(struct cairn_relay *relay)
{
    for_folds(cairn_buffer_pool_advance(&relay->sums.pool), cairn_fold_submit);
}

void cairn_relay_sums_tick(struct cairn_relay_owner *owner, uint64_t now_ms)
{
    struct cairn_relay *relay = owner->relay;
    const bool may_receive = cairn_step_may_receive(owner->collector.step);
    if (cairn_buffer_pool_is_stuck(&relay->sums.pool, &owner->buffers, may_receive, now_ms))
        cairn_relay_give_up(relay,
                            "there is no room for sums to shard %s, and its workers push in orders "
                            "that are far apart: raise memory.limit of shard %s, give its host "
                            "more memory, or push in one order",
                            owner->name, relay->job->shard->name);
}

void cairn_relay_sums_void(struct cairn_relay *relay)
{
    for_folds(cairn_buffer_pool_void(&relay->sums.pool), cairn_fold_drop);
}

/* ---- open and close ---- */

static uint32_t clamp(uint64_t value, uint32_t low, uint32_t high)
{
    return value < low ? low : value > high ? high : (uint32_t)value;
}

static cairn_status open_pool(struct cairn_relay *relay, struct cairn_sentence *why)
{
    struct cairn_buffer_pool *pool = &relay->sums.pool;
    uint64_t chunks = 0;
    for (uint32_t i = 0; i < relay->owner_count; i++)
        chunks += relay->owners[i].buffers.chunk_count;
    if (chunks >= UINT32_MAX) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "too many chunks");
    *pool = (struct cairn_buffer_pool) {
        .buffers = calloc((size_t)chunks + 1, sizeof *pool->buffers),
        .count = (uint32_t)chunks,
        .wanted = clamp((uint64_t)2 * relay->job->spec.window * relay->owner_count,
                        BUFFERS_WANTED_MIN, BUFFERS_WANTED_MAX),
        .stuck_max_ms = STUCK_MAX_MS,
        .touch = touch_another,
    };
    if (pool->buffers == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the folds of a relay");
    for (uint32_t i = 0; i < relay->owner_count; i++)
        cairn_buffer_pool_add(pool, &relay->owners[i].buffers);
    return CAIRN_OK;
}

cairn_status cairn_relay_sums_open(struct cairn_relay *relay, struct cairn_sentence *why)
{
    struct cairn_shard_job *job = relay->job;
    struct cairn_relay_sums *sums = &relay->sums;
    cairn_status status = open_pool(relay, why);
    if (status != CAIRN_OK) return status;
    sums->buffer_bytes = (size_t)(job->spec.chunk_leaves * (uint64_t)CAIRN_LEAF_ELEMS *
                                  sizeof(float));
    const uint64_t chunks = sums->pool.count;
    const uint32_t reserved = clamp(chunks, 0, BUFFERS_WANTED_MIN);
    status = cairn_arena_open_shared(cairn_home_host(), "cairn-relay", chunks * sums->buffer_bytes,
                                     &sums->arena, why);
    if (status == CAIRN_OK)
        status = cairn_shard_job_take(job, &job->memory.staging,
                                      (uint64_t)reserved * sums->buffer_bytes, "a relay", why);
    if (status != CAIRN_OK) return status;
    sums->reserved = reserved;
    (void)cairn_arena_share(&sums->arena, job->shard->fabric, NULL); // else it is copied
    return CAIRN_OK;
}

void cairn_relay_sums_close(struct cairn_relay *relay)
{
    struct cairn_shard_job *job = relay->job;
    struct cairn_relay_sums *sums = &relay->sums;
    const uint32_t touched = sums->pool.touched;
    const uint32_t taken = touched > sums->reserved ? touched : sums->reserved;
    cairn_shard_job_give(job, &job->memory.staging, (uint64_t)taken * sums->buffer_bytes);
    cairn_release(job->shard, &sums->arena); // counted back already: the next relay takes the bytes
    free(sums->pool.buffers);
}
