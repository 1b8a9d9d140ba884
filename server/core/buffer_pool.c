#include "server/core/buffer_pool.h"

#include <assert.h>
#include <stddef.h>

#include "proto/base/mutant.h"

void buffer_pool_add(struct buffer_pool *pool, struct buffer_owner *owner)
{
    for (uint32_t c = 0; c < owner->chunk_count; c++) owner->sums[c] = CAIRN_BUFFER_NONE;
    owner->waiting_end = &owner->waiting;
    if (pool->turn == NULL) pool->turn = owner;
    struct buffer_owner *last = pool->turn;
    while (last->next != NULL && last->next != pool->turn) last = last->next;
    last->next = owner;
    owner->next = pool->turn;
}

/* ---- a buffer's states ---- */

static bool is_held(enum buffer_state state)
{
    return state == CAIRN_BUFFER_SUMMING || state == CAIRN_BUFFER_SENDING;
}

static void set_state(struct buffer *buffer, enum buffer_state state)
{
    struct buffer_owner *owner = buffer->owner;
    owner->held = owner->held - is_held(buffer->state) + is_held(state);
    owner->sending -= buffer->state == CAIRN_BUFFER_SENDING;
    owner->sending += state == CAIRN_BUFFER_SENDING;
    buffer->state = state;
}

uint32_t buffer_pool_final(struct buffer_pool *pool, struct buffer_owner *owner, uint32_t chunk)
{
    const uint32_t number = owner->sums[chunk];
    assert(number != CAIRN_BUFFER_NONE);
    owner->sums[chunk] = CAIRN_BUFFER_NONE;
    set_state(&pool->buffers[number], CAIRN_BUFFER_SENDING);
    return number;
}

void buffer_pool_end(struct buffer_pool *pool, uint32_t number)
{
    struct buffer *buffer = &pool->buffers[number];
    assert(is_held(buffer->state));
    const bool is_on_loan = buffer->on_loan > 0 && !MUTANT(56);
    set_state(buffer, is_on_loan ? CAIRN_BUFFER_ENDING : CAIRN_BUFFER_FREE);
}

void buffer_pool_end_sending(struct buffer_pool *pool, struct buffer_owner *owner)
{
    for (uint32_t i = 0; i < pool->touched; i++) {
        const struct buffer *buffer = &pool->buffers[i];
        if (buffer->owner == owner && buffer->state == CAIRN_BUFFER_SENDING)
            buffer_pool_end(pool, i);
    }
}

void buffer_pool_loan(struct buffer_pool *pool, uint32_t number)
{
    pool->buffers[number].on_loan++;
}

void buffer_pool_return(struct buffer_pool *pool, uint32_t number)
{
    struct buffer *buffer = &pool->buffers[number];
    assert(buffer->on_loan > 0);
    buffer->on_loan--;
    if (buffer->on_loan == 0 && buffer->state == CAIRN_BUFFER_ENDING)
        set_state(buffer, CAIRN_BUFFER_FREE);
}

/* ---- claims ---- */

/* True if waiting ends: an answer of the owner will free a buffer. */
static bool may_wait(const struct buffer_pool *pool, const struct buffer_owner *owner)
{
    bool is_sending = owner->sending > 0 || MUTANT(53);
    for (uint32_t i = 0; MUTANT(55) && i < pool->touched; i++)
        is_sending = is_sending || pool->buffers[i].state == CAIRN_BUFFER_SENDING;
    return is_sending;
}

/* Returns the free buffer with the lowest number, or touches another buffer if that is allowed. Returns
 * CAIRN_BUFFER_NONE if the claim has to wait. */
static uint32_t find_buffer(struct buffer_pool *pool, const struct buffer_owner *owner)
{
    if (owner->held >= owner->chunk_count && !MUTANT(54)) return CAIRN_BUFFER_NONE;
    for (uint32_t i = 0; i < pool->touched; i++)
        if (pool->buffers[i].state == CAIRN_BUFFER_FREE) return i;
    if (pool->touched >= pool->wanted && may_wait(pool, owner)) return CAIRN_BUFFER_NONE;
    if (pool->touched == pool->count || !pool->touch(pool)) return CAIRN_BUFFER_NONE;
    return pool->touched++;
}

/* Lends the claim a buffer. Returns false if the claim has to wait for one. */
static bool find_place(struct buffer_pool *pool, struct buffer_claim *claim)
{
    struct buffer_owner *owner = claim->owner;
    if (claim->begins) {
        const uint32_t number = find_buffer(pool, owner);
        if (number == CAIRN_BUFFER_NONE) return false;
        pool->buffers[number].owner = owner;
        pool->buffers[number].chunk = claim->chunk;
        set_state(&pool->buffers[number], CAIRN_BUFFER_SUMMING);
        owner->sums[claim->chunk] = number;
    }
    claim->buffer = owner->sums[claim->chunk];
    assert(claim->buffer != CAIRN_BUFFER_NONE);
    buffer_pool_loan(pool, claim->buffer);
    return true;
}

bool buffer_pool_claim(struct buffer_pool *pool, struct buffer_claim *claim)
{
    struct buffer_owner *owner = claim->owner;
    claim->next = NULL;
    if ((owner->waiting == NULL || !claim->begins) && find_place(pool, claim)) return true;
    if (MUTANT(57)) owner->waiting_end = &owner->waiting;
    *owner->waiting_end = claim;
    owner->waiting_end = &claim->next;
    return false;
}

/* Moves the owner's oldest waiting claim to the end of a list. Returns the new end. */
static struct buffer_claim **take_waiting(struct buffer_owner *owner, struct buffer_claim **end)
{
    struct buffer_claim *claim = owner->waiting;
    owner->waiting = claim->next;
    if (claim->next == NULL) owner->waiting_end = &owner->waiting;
    claim->next = NULL;
    *end = claim;
    return &claim->next;
}

struct buffer_claim *buffer_pool_advance(struct buffer_pool *pool)
{
    struct buffer_claim *placed = NULL, **end = &placed;
    struct buffer_owner *owner = pool->turn;
    do {
        while (owner->waiting != NULL && find_place(pool, owner->waiting))
            end = take_waiting(owner, end);
        owner = owner->next;
    } while (owner != pool->turn);
    pool->turn = pool->turn->next;
    return placed;
}

struct buffer_claim *buffer_pool_void(struct buffer_pool *pool)
{
    for (uint32_t i = 0; i < pool->touched; i++) {
        const struct buffer *buffer = &pool->buffers[i];
        if (buffer->state != CAIRN_BUFFER_SUMMING) continue;
        buffer->owner->sums[buffer->chunk] = CAIRN_BUFFER_NONE;
        buffer_pool_end(pool, i);
    }
    struct buffer_claim *dropped = NULL, **end = &dropped;
    struct buffer_owner *owner = pool->turn;
    do {
        while (owner->waiting != NULL) end = take_waiting(owner, end);
        owner = owner->next;
    } while (owner != pool->turn);
    return dropped;
}

/* ---- without room ---- */

bool buffer_pool_is_stuck(const struct buffer_pool *pool, struct buffer_owner *owner,
                          bool may_receive, uint64_t now_ms)
{
    const bool needs_room = owner->waiting != NULL && owner->sending == 0 && !may_receive;
    if (!needs_room && !MUTANT(58))
        owner->stuck_since_ms = 0;
    else if (owner->stuck_since_ms == 0)
        owner->stuck_since_ms = now_ms;
    else
        return now_ms - owner->stuck_since_ms >= pool->stuck_max_ms;
    return false;
}
