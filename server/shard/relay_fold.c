/* The sums of a relay: buffers for them, and the folds that make them on the compute threads. */
#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>

#include "server/base/guard.h"
#include "server/shard/relay.h"

/* The first ones are reserved with the relay. Beyond those that are wanted one is taken only when waiting
 * for one could last for ever: what completes the sums may be behind the contribution that waits. That is
 * judged by owner. What is being sent to one may have to wait there for another host, which waits for
 * what this one has not passed on to another owner yet; of one owner all that waits here is of the
 * micro-batch at hand, and what is being sent of that one or of those before. */
#define BUFFERS_WANTED_MIN 16
#define BUFFERS_WANTED_MAX 256
#define STUCK_MAX_MS       2000 /* without room, before it is given up */

/* ---- buffers ---- */

float *cairn_relay_buffer_at(const struct cairn_relay *relay, uint32_t buffer)
{
    return (float *)(relay->sums.base + (size_t)buffer * relay->buffer_bytes);
}

static bool is_held(enum cairn_relay_buffer_state state)
{
    return state == CAIRN_RELAY_SUMMING || state == CAIRN_RELAY_SENDING;
}

static void set_state(struct cairn_relay_buffer *buffer, enum cairn_relay_buffer_state state)
{
    struct cairn_relay_owner *owner = buffer->owner;
    owner->held = owner->held - is_held(buffer->state) + is_held(state);
    owner->sending -= buffer->state == CAIRN_RELAY_SENDING;
    owner->sending += state == CAIRN_RELAY_SENDING;
    buffer->state = state;
}

void cairn_relay_buffer_end(struct cairn_relay *relay, uint32_t number)
{
    struct cairn_relay_buffer *buffer = &relay->buffers[number];
    set_state(buffer, buffer->on_loan > 0 ? CAIRN_RELAY_ENDING : CAIRN_RELAY_FREE);
}

void cairn_relay_buffer_sent(struct cairn_relay *relay, uint32_t number)
{
    set_state(&relay->buffers[number], CAIRN_RELAY_SENDING);
}

void cairn_relay_buffer_returned(struct cairn_relay *relay, uint32_t number)
{
    struct cairn_relay_buffer *buffer = &relay->buffers[number];
    assert(buffer->on_loan > 0);
    buffer->on_loan--;
    if (buffer->on_loan == 0 && buffer->state == CAIRN_RELAY_ENDING)
        set_state(buffer, CAIRN_RELAY_FREE);
}

static cairn_status count_another(struct cairn_relay *relay, struct cairn_sentence *why)
{
    struct cairn_shard_job *job = relay->job;
    uint64_t *kind = &job->memory.staging;
    const bool is_counted = relay->buffers_counted < relay->buffers_reserved;
    cairn_status status = CAIRN_OK;
    if (!is_counted)
        status = cairn_shard_job_take(job, kind, relay->buffer_bytes, "a sum to relay", why);
    if (status != CAIRN_OK) return status;
    const uint64_t at = (uint64_t)relay->buffers_counted * relay->buffer_bytes;
    if (cairn_arena_hold(&relay->sums, at, relay->buffer_bytes) == CAIRN_OK) return CAIRN_OK;
    if (!is_counted) cairn_shard_job_give(job, kind, relay->buffer_bytes);
    return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "The host is out of memory.");
}

/* The next one in memory that was not touched yet; NONE: there is none, or no room. */
static uint32_t touch_another(struct cairn_relay *relay)
{
    struct cairn_sentence why;
    if (relay->buffers_counted == relay->buffer_count) return CAIRN_RELAY_NONE;
    if (count_another(relay, &why) == CAIRN_OK) return relay->buffers_counted++;
    cairn_log_limited(&relay->starving, CAIRN_LOG_WARN,
                      "job %s: the relay waits for room: its workers push in orders that are far "
                      "apart. %s",
                      relay->job->spec.name, why.text);
    return CAIRN_RELAY_NONE;
}

/* The lowest free one, or another if waiting could last for ever. An owner has no more than it has
 * chunks: so all together they never have those that another one needs. */
static uint32_t find_buffer(struct cairn_relay *relay, const struct cairn_relay_owner *owner)
{
    if (owner->held >= owner->grad_chunk_count) return CAIRN_RELAY_NONE;
    for (uint32_t i = 0; i < relay->buffers_counted; i++)
        if (relay->buffers[i].state == CAIRN_RELAY_FREE) return i;
    if (relay->buffers_counted >= relay->buffers_wanted && owner->sending > 0)
        return CAIRN_RELAY_NONE;
    return touch_another(relay);
}

/* ---- folds ---- */

static void fold_sources(void *arg)
{
    const struct cairn_relay_fold *fold = arg;
    const struct cairn_relay_owner *owner = fold->owner;
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&owner->map,
                                                                 owner->grad_chunks[fold->chunk]);
    owner->relay->job->shard->backend->fold(cairn_relay_buffer_at(owner->relay, fold->buffer),
                                            fold->sources, fold->source_count, fold->first,
                                            (size_t)place.elem_count);
}

static void run_fold(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    struct cairn_relay_fold *fold = (struct cairn_relay_fold *)task;
    (void)item;
    (void)thread;
    if (fold->viewed)
        fold->failed_at = cairn_guard_run(fold_sources, fold);
    else
        fold_sources(fold);
}

/* The sum is wrong for good: it must not be passed on. */
static void spoil(const struct cairn_relay_fold *fold)
{
    struct cairn_relay_owner *owner = fold->owner;
    bool is_ours = true;
    owner->spoiled_round = owner->round;
    for (uint32_t i = 0; i < fold->source_count; i++) {
        const struct cairn_relay_slot *slot = &owner->slots[fold->slots[i]];
        const uintptr_t from = (uintptr_t)slot->view, at = (uintptr_t)fold->failed_at;
        if (slot->view == NULL || at - from >= slot->payload_bytes) continue;
        is_ours = false;
        cairn_member_unreadable(owner->relay->job, slot->member);
    }
    if (is_ours)
        cairn_relay_give_up(owner->relay, "this host has no page for a sum: it is out of memory");
}

/* It was done, or is not to be done any more. */
static void end_fold(struct cairn_relay_fold *fold)
{
    struct cairn_relay_owner *owner = fold->owner;
    struct cairn_relay *relay = owner->relay;
    const uint32_t chunk = fold->chunk;
    for (uint32_t i = 0; i < fold->source_count; i++) {
        owner->slots[fold->slots[i]].folding = false;
        cairn_relay_slot_release(&owner->slots[fold->slots[i]]);
    }
    fold->next = relay->folds_free;
    relay->folds_free = fold;
    cairn_relay_step(owner,
                     &(struct cairn_step_event) { .kind = CAIRN_STEP_FOLDED, .chunk = chunk });
    cairn_shard_job_settle(relay->job);
}

static void fold_done(struct cairn_task *task)
{
    struct cairn_relay_fold *fold = (struct cairn_relay_fold *)task;
    struct cairn_relay *relay = fold->owner->relay;
    if (fold->failed_at != NULL) spoil(fold);
    cairn_relay_buffer_returned(relay, fold->buffer);
    end_fold(fold);
    cairn_relay_folds_advance(relay);
    cairn_relay_idle(relay);
}

static void submit(struct cairn_relay_fold *fold)
{
    struct cairn_relay *relay = fold->owner->relay;
    relay->buffers[fold->buffer].on_loan++;
    cairn_relay_busy(relay);
    cairn_pool_submit(relay->job->shard->compute, &fold->task);
}

/* False: it has to wait for a buffer. */
static bool begin(struct cairn_relay_fold *fold)
{
    struct cairn_relay_owner *owner = fold->owner;
    struct cairn_relay *relay = owner->relay;
    if (fold->first) {
        fold->buffer = find_buffer(relay, owner);
        if (fold->buffer == CAIRN_RELAY_NONE) return false;
        struct cairn_relay_buffer *buffer = &relay->buffers[fold->buffer];
        buffer->owner = owner;
        buffer->chunk = fold->chunk;
        set_state(buffer, CAIRN_RELAY_SUMMING);
        owner->sums[fold->chunk] = fold->buffer;
    }
    fold->buffer = owner->sums[fold->chunk];
    submit(fold);
    return true;
}

void cairn_relay_fold(struct cairn_relay_owner *owner, const struct cairn_step_action *action)
{
    struct cairn_relay *relay = owner->relay;
    struct cairn_relay_fold *fold = relay->folds_free;
    assert(fold != NULL); // one fold a chunk, and each has a slot
    relay->folds_free = fold->next;
    *fold = (struct cairn_relay_fold) {
        .task = { .run = run_fold, .done = fold_done, .item_count = 1 },
        .owner = owner,
        .source_count = action->count,
        .chunk = action->chunk,
        .buffer = CAIRN_RELAY_NONE,
        .first = action->first,
    };
    for (uint32_t i = 0; i < action->count; i++) {
        struct cairn_relay_slot *slot = &owner->slots[action->slots[i]];
        slot->folding = true;
        fold->sources[i] = (struct cairn_source) { .data = slot->view, .dtype = slot->dtype };
        fold->slots[i] = action->slots[i];
        fold->viewed = fold->viewed || slot->message != NULL;
    }
    // One that goes on has its buffer.
    if ((owner->folds_waiting == NULL || !fold->first) && begin(fold)) return;
    *owner->folds_waiting_end = fold;
    owner->folds_waiting_end = &fold->next;
    cairn_relay_wake(relay->job->shard);
}

static struct cairn_relay_fold *take_waiting(struct cairn_relay_owner *owner)
{
    struct cairn_relay_fold *fold = owner->folds_waiting;
    owner->folds_waiting = fold->next;
    if (fold->next == NULL) owner->folds_waiting_end = &owner->folds_waiting;
    fold->next = NULL;
    return fold;
}

void cairn_relay_folds_advance(struct cairn_relay *relay)
{
    for (uint32_t i = 0; i < relay->owner_count; i++) {
        struct cairn_relay_owner *owner =
            &relay->owners[(relay->buffers_turn + i) % relay->owner_count];
        while (owner->folds_waiting != NULL && begin(owner->folds_waiting))
            (void)take_waiting(owner);
    }
    relay->buffers_turn = (relay->buffers_turn + 1) % relay->owner_count;
}

/* Its folds wait for room, no answer of the owner gives any, and the workers have sent all that they may. */
static bool is_stuck(const struct cairn_relay_owner *owner)
{
    return owner->folds_waiting != NULL && owner->sending == 0 &&
           !cairn_step_may_receive(owner->step);
}

void cairn_relay_folds_tick(struct cairn_relay_owner *owner, uint64_t now_ms)
{
    struct cairn_relay *relay = owner->relay;
    if (!is_stuck(owner)) {
        owner->stuck_since_ms = 0;
    } else if (owner->stuck_since_ms == 0) {
        owner->stuck_since_ms = now_ms;
    } else if (now_ms - owner->stuck_since_ms >= relay->stuck_max_ms) {
        cairn_relay_give_up(relay,
                            "there is no room for sums to shard %s, and its workers push in "
                            "orders that are far apart: raise memory.limit of shard %s, give its "
                            "host more memory, or push in one order",
                            owner->name, relay->job->shard->name);
    }
}

void cairn_relay_folds_void(struct cairn_relay *relay)
{
    for (uint32_t i = 0; i < relay->buffers_counted; i++) {
        struct cairn_relay_buffer *buffer = &relay->buffers[i];
        if (buffer->state != CAIRN_RELAY_SUMMING) continue;
        buffer->owner->sums[buffer->chunk] = CAIRN_RELAY_NONE;
        cairn_relay_buffer_end(relay, i);
    }
    for (uint32_t i = 0; i < relay->owner_count; i++)
        while (relay->owners[i].folds_waiting != NULL) end_fold(take_waiting(&relay->owners[i]));
}

/* ---- open and close ---- */

static uint32_t clamp(uint64_t value, uint32_t low, uint32_t high)
{
    return value < low ? low : value > high ? high : (uint32_t)value;
}

static void share(struct cairn_relay *relay)
{
    if (relay->sums.base == NULL || fcntl(relay->sums.fd, F_ADD_SEALS, CAIRN_FABRIC_SEALS) != 0 ||
        cairn_fabric_region_add(relay->job->shard->fabric, relay->sums.base, relay->sums.bytes,
                                relay->sums.fd, NULL, 0, &relay->region) != CAIRN_OK)
        relay->region = NULL; // what goes to this host is copied, then
}

cairn_status cairn_relay_folds_open(struct cairn_relay *relay, struct cairn_sentence *why)
{
    uint64_t chunks = 0, slots = 0;
    for (uint32_t i = 0; i < relay->owner_count; i++) {
        struct cairn_relay_owner *owner = &relay->owners[i];
        chunks += owner->grad_chunk_count;
        slots += owner->slot_count;
        owner->folds_waiting_end = &owner->folds_waiting;
    }
    const uint64_t folds = chunks < slots ? chunks : slots;
    if (chunks >= UINT32_MAX) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "too many chunks");
    relay->buffer_count = (uint32_t)chunks;
    relay->buffer_bytes = (size_t)(relay->job->spec.chunk_leaves * (uint64_t)CAIRN_LEAF_ELEMS *
                                   sizeof(float));
    relay->buffers_wanted = clamp((uint64_t)2 * relay->job->spec.window * relay->owner_count,
                                  BUFFERS_WANTED_MIN, BUFFERS_WANTED_MAX);
    relay->stuck_max_ms = STUCK_MAX_MS;
    relay->buffers = calloc((size_t)chunks + 1, sizeof *relay->buffers);
    relay->folds = calloc((size_t)folds + 1, sizeof *relay->folds);
    if (relay->buffers == NULL || relay->folds == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the folds of a relay");
    for (uint64_t i = 0; i < folds; i++) {
        relay->folds[i].next = relay->folds_free;
        relay->folds_free = &relay->folds[i];
    }
    const uint32_t reserved = clamp(chunks, 0, BUFFERS_WANTED_MIN);
    cairn_status status = cairn_arena_open_state("cairn-relay", chunks * relay->buffer_bytes,
                                                 CAIRN_STREAM_WIRE, &relay->sums, why);
    if (status == CAIRN_OK)
        status = cairn_shard_job_take(relay->job, &relay->job->memory.staging,
                                      (uint64_t)reserved * relay->buffer_bytes, "a relay", why);
    if (status != CAIRN_OK) return status;
    relay->buffers_reserved = reserved;
    share(relay);
    return CAIRN_OK;
}

void cairn_relay_folds_close(struct cairn_relay *relay)
{
    struct cairn_shard *shard = relay->job->shard;
    // The fabric of a shard that is closed has dropped its regions.
    if (relay->region != NULL && !shard->closing) cairn_fabric_region_drop(relay->region);
    const uint32_t taken = relay->buffers_counted > relay->buffers_reserved
                               ? relay->buffers_counted
                               : relay->buffers_reserved;
    cairn_shard_job_give(relay->job, &relay->job->memory.staging,
                         (uint64_t)taken * relay->buffer_bytes);
    cairn_release(shard, &relay->sums); // counted back already: the next relay takes the bytes
    free(relay->buffers);
    free(relay->folds);
}
