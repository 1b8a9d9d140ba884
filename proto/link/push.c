#include "proto/link/push.h"

#include <assert.h>
#include <string.h>

#include "proto/base/mutant.h"

#define NONE UINT32_MAX

enum kind { CHUNK, MICRO_END, COMMIT };

struct entry {
    /* neighbours in the shard's queue; `next` also in the free list; NONE: there is none */
    uint32_t prev, next;
    uint32_t serial; /* the number of this use of the entry, never 0: the upper half of `request` */
    uint32_t shard;
    uint32_t micro;
    uint32_t chunk; /* for an end: how many chunks the shard gets in the micro-batch */
    uint8_t kind;
    uint8_t lies; /* enum push_lies */
    bool is_small;
    bool sent;     /* sent, and not answered */
    bool in_place; /* sent to be read in place */
    /* sent to be received: the shard may have a slot with memory for this chunk */
    bool lands;
    uint64_t cookie;
    uint64_t weight;
};

struct shard {
    uint32_t head, tail;          /* of the queue, oldest first */
    struct push_window window;    /* chunks 0: no GRANT */
    uint32_t unanswered;          /* chunks that are not read in place */
    uint32_t unanswered_small;    /* the small chunks among `unanswered` */
    uint32_t unanswered_in_place; /* chunks that are read in place */
    /* the entry where pump continues: every entry before it is sent; NONE: all entries are sent */
    uint32_t next;
    bool next_behind_end; /* an unanswered end is before `next` */
    uint32_t filled;      /* chunks queued in the micro-batch that is being filled */
    uint32_t chunks;      /* chunks in the queue, sent or not */
    uint64_t endpoint; /* the `sent` entries will be answered on this endpoint, or on a later one */
    /* the newest known endpoint: if it is higher than `endpoint`, answers may be lost */
    uint64_t newest;
    bool absent;      /* the shard does not exist: nothing in a round is for this shard */
    bool sends_again; /* entries with `lands` must be sent again, ahead of all others */
};

struct push_round {
    struct shard *shards;  /* [shard_count] */
    struct entry *entries; /* [queue_max] */
    uint32_t shard_count;
    uint32_t present; /* shards that exist */
    uint32_t queue_max;
    uint32_t free_head;
    uint32_t free_count;
    uint32_t serial;
    uint32_t micro; /* the micro-batch being filled */
    bool committed;
    bool voided;
};

static bool config_ok(const struct push_config *config)
{
    return config->shard_count >= 1 && config->queue_max / 2 >= config->shard_count &&
           config->queue_max < UINT32_MAX / 2;
}

size_t push_actions_max(const struct push_config *config)
{
    return (size_t)config->queue_max + 2 * (size_t)config->shard_count + 2;
}

size_t push_bytes(const struct push_config *config)
{
    if (!config_ok(config)) return 0;
    return sizeof(struct push_round) + config->queue_max * sizeof(struct entry) +
           config->shard_count * sizeof(struct shard);
}

struct push_round *push_init(void *memory, const struct push_config *config)
{
    assert(config_ok(config));
    struct push_round *push = memory;
    memset(push, 0, push_bytes(config));
    push->entries = (struct entry *)(push + 1);
    push->shards = (struct shard *)(push->entries + config->queue_max);
    push->shard_count = push->present = config->shard_count;
    push->queue_max = config->queue_max;
    push->free_count = config->queue_max;
    for (uint32_t i = 0; i < config->queue_max; i++)
        push->entries[i].next = i + 1 < config->queue_max ? i + 1 : NONE;
    for (uint32_t s = 0; s < config->shard_count; s++)
        push->shards[s].head = push->shards[s].tail = push->shards[s].next = NONE;
    return push;
}

void push_absent(struct push_round *push, uint32_t shard)
{
    assert(shard < push->shard_count && push->free_count == push->queue_max && push->micro == 0);
    if (push->shards[shard].absent || MUTANT(76)) return;
    push->shards[shard].absent = true;
    push->present--;
}

/* True if there is a round, and the shard exists. */
static bool has_shard(const struct push_round *push, uint32_t shard)
{
    return push != NULL && shard < push->shard_count && !push->shards[shard].absent;
}

static struct push_action *act(struct push_actions *actions, enum push_action_kind kind,
                               uint32_t shard)
{
    assert(actions->count < actions->capacity);
    struct push_action *action = &actions->list[actions->count++];
    memset(action, 0, sizeof *action);
    action->kind = kind;
    action->shard = shard;
    return action;
}

/* ---- the queues ---- */

/* Makes pump start from the oldest entry again, because sent entries must be sent again, or an end was
 * answered. */
static void look_again(struct shard *shard)
{
    shard->next = shard->head;
    shard->next_behind_end = false;
}

static struct entry *append(struct push_round *push, uint32_t shard_index, enum kind kind)
{
    struct shard *shard = &push->shards[shard_index];
    const uint32_t index = push->free_head;
    struct entry *e = &push->entries[index];
    push->free_head = e->next;
    push->free_count--;
    *e = (struct entry) { .prev = shard->tail, .next = NONE, .kind = (uint8_t)kind };
    e->serial = ++push->serial != 0 ? push->serial : ++push->serial;
    e->shard = shard_index;
    e->micro = push->micro;
    if (shard->tail != NONE)
        push->entries[shard->tail].next = index;
    else
        shard->head = index;
    shard->tail = index;
    if (shard->next == NONE) shard->next = index;
    shard->chunks += kind == CHUNK;
    return e;
}

static void count_unanswered(struct shard *shard, const struct entry *e, bool more)
{
    const uint32_t change = more ? 1u : -1u;
    if (e->kind != CHUNK) return;
    if (e->in_place) {
        shard->unanswered_in_place += change;
        return;
    }
    shard->unanswered += change;
    if (e->is_small) shard->unanswered_small += change;
}

static void unlink_entry(struct push_round *push, struct shard *shard, uint32_t index)
{
    struct entry *e = &push->entries[index];
    if (e->sent) count_unanswered(shard, e, false);
    if (shard->next == index) shard->next = e->next;
    if (e->prev != NONE)
        push->entries[e->prev].next = e->next;
    else
        shard->head = e->next;
    if (e->next != NONE)
        push->entries[e->next].prev = e->prev;
    else
        shard->tail = e->prev;
    shard->chunks -= e->kind == CHUNK;
    if (e->kind == MICRO_END) look_again(shard);
    e->serial = 0;
    e->next = push->free_head;
    push->free_head = index;
    push->free_count++;
}

/* Removes the entry and, if it is a chunk, releases the chunk's buffer. */
static void finish_entry(struct push_round *push, uint32_t shard_index, uint32_t index,
                         cairn_status status, struct push_actions *actions)
{
    const struct entry *e = &push->entries[index];
    if (e->kind == CHUNK) {
        struct push_action *action = act(actions, CAIRN_PUSH_RELEASED, shard_index);
        action->cookie = e->cookie;
        action->micro = e->micro;
        action->chunk = e->chunk;
        action->status = status;
    }
    unlink_entry(push, &push->shards[shard_index], index);
}

/* True if the entry counts as a chunk that the shard reads in place. */
static bool is_in_place(const struct shard *shard, const struct entry *e)
{
    if (shard->window.in_place == 0 || e->lands) return false;
    return e->lies ==
           (e->chunk < shard->window.on_card ? CAIRN_PUSH_LIES_CARD : CAIRN_PUSH_LIES_HOST);
}

static void send_entry(struct push_round *push, uint32_t shard_index, uint32_t index,
                       struct push_actions *actions)
{
    static const enum push_action_kind kinds[] = {
        [CHUNK] = CAIRN_PUSH_SEND_CHUNK,
        [MICRO_END] = CAIRN_PUSH_SEND_MICRO_END,
        [COMMIT] = CAIRN_PUSH_SEND_COMMIT,
    };
    struct entry *e = &push->entries[index];
    e->sent = true;
    // In a void round a chunk is sent again by the same connection, in the same way as before.
    if (!push->voided) e->in_place = is_in_place(&push->shards[shard_index], e);
    e->lands = !e->in_place && !MUTANT(85);
    count_unanswered(&push->shards[shard_index], e, true);
    struct push_action *action = act(actions, kinds[e->kind], shard_index);
    action->micro = e->micro;
    action->chunk = e->chunk;
    action->sent = e->chunk;
    action->cookie = e->cookie;
    action->weight = e->weight;
    action->request = (uint64_t)e->serial << 32 | (index + 1);
    action->in_place = e->in_place;
}

/* True if the window for chunks of this entry's kind is full. */
static bool is_full(const struct shard *shard, const struct entry *e)
{
    const struct push_window *window = &shard->window;
    const uint32_t small = window->small > 0 ? shard->unanswered_small : 0;
    if (MUTANT(7)) return false;
    if (is_in_place(shard, e)) return shard->unanswered_in_place >= window->in_place;
    if (window->small > 0 && e->is_small) return small >= window->small;
    return shard->unanswered - small >= window->chunks;
}

static void send_lands_again(struct push_round *push, uint32_t shard_index,
                             struct push_actions *actions)
{
    struct shard *shard = &push->shards[shard_index];
    if (!shard->sends_again) return;
    shard->sends_again = false;
    for (uint32_t i = shard->head; i != NONE; i = push->entries[i].next) {
        const struct entry *e = &push->entries[i];
        if (e->kind == CHUNK && e->lands && !e->sent && !is_full(shard, e))
            send_entry(push, shard_index, i, actions);
    }
}

/* Sends the entries that may be sent, in the queue's order. A commit may pass an unanswered end, but a
 * chunk may not. */
static void pump(struct push_round *push, uint32_t shard_index, struct push_actions *actions)
{
    struct shard *shard = &push->shards[shard_index];
    if (push->voided || shard->window.chunks == 0) return;
    send_lands_again(push, shard_index, actions);
    for (; shard->next != NONE; shard->next = push->entries[shard->next].next) {
        const struct entry *e = &push->entries[shard->next];
        if (!e->sent) {
            if (e->kind == CHUNK && (shard->next_behind_end || is_full(shard, e))) return;
            if (e->kind == MICRO_END && shard->next_behind_end) return;
            send_entry(push, shard_index, shard->next, actions);
        }
        shard->next_behind_end = shard->next_behind_end || e->kind == MICRO_END;
    }
}

/* ---- the caller's side ---- */

static cairn_status judge_push(const struct push_round *push, uint32_t micro, uint32_t entries)
{
    if (push->voided) return CAIRN_ERR_EPOCH_CHANGED;
    if (push->committed || micro != push->micro) return CAIRN_ERR_INVALID;
    return entries > push->free_count ? CAIRN_ERR_BUSY : CAIRN_OK;
}

cairn_status push_chunk(struct push_round *push, uint32_t shard, uint32_t micro,
                        struct push_chunk chunk, struct push_actions *actions)
{
    if (!has_shard(push, shard)) return CAIRN_ERR_INVALID;
    CAIRN_TRY(judge_push(push, micro, 1));
    struct entry *e = append(push, shard, CHUNK);
    e->chunk = chunk.chunk;
    e->is_small = chunk.is_small;
    e->lies = (uint8_t)chunk.lies;
    e->cookie = chunk.cookie;
    push->shards[shard].filled++;
    pump(push, shard, actions);
    return CAIRN_OK;
}

cairn_status push_micro_end(struct push_round *push, uint32_t micro, struct push_actions *actions)
{
    CAIRN_TRY(judge_push(push, micro, push->present));
    for (uint32_t s = 0; s < push->shard_count; s++) {
        if (!has_shard(push, s)) continue;
        append(push, s, MICRO_END)->chunk = push->shards[s].filled;
        push->shards[s].filled = 0;
        pump(push, s, actions);
    }
    push->micro++;
    return CAIRN_OK;
}

static bool filling(const struct push_round *push)
{
    for (uint32_t s = 0; s < push->shard_count; s++)
        if (push->shards[s].filled > 0) return true;
    return false;
}

cairn_status push_commit(struct push_round *push, uint64_t weight, struct push_actions *actions)
{
    CAIRN_TRY(judge_push(push, push->micro, push->present));
    if (push->micro == 0 || filling(push)) return CAIRN_ERR_INVALID;
    push->committed = true;
    for (uint32_t s = 0; s < push->shard_count; s++) {
        if (!has_shard(push, s)) continue;
        struct entry *e = append(push, s, COMMIT);
        e->micro = push->micro - 1;
        e->weight = weight;
        pump(push, s, actions);
    }
    return CAIRN_OK;
}

/* ---- answers of shards ---- */

/* Returns the chunk that `request` names; NONE if it is answered already, or if the number is invented. */
static uint32_t find_chunk(const struct push_round *push, uint32_t shard, uint64_t request)
{
    const uint32_t index = (uint32_t)request - 1;
    const uint32_t serial = (uint32_t)(request >> 32);
    if (index >= push->queue_max || serial == 0) return NONE;
    const struct entry *e = &push->entries[index];
    return e->serial == serial && e->kind == CHUNK && e->shard == shard ? index : NONE;
}

static void unsend(struct push_round *push, struct shard *shard)
{
    shard->unanswered = shard->unanswered_small = 0;
    if (!MUTANT(84)) shard->unanswered_in_place = 0;
    shard->sends_again = true;
    look_again(shard);
    for (uint32_t i = shard->head; i != NONE; i = push->entries[i].next)
        push->entries[i].sent = false;
}

/* In a void round chunks are sent again only to get their answers, because only an answer, or the loss of
 * our own connection, says that nobody reads the buffer. */
static void send_all_again(struct push_round *push, uint32_t shard_index,
                           struct push_actions *actions)
{
    struct shard *shard = &push->shards[shard_index];
    if (MUTANT(20)) return;
    shard->endpoint = shard->newest;
    unsend(push, shard);
    for (uint32_t i = shard->head; i != NONE; i = push->entries[i].next)
        send_entry(push, shard_index, i, actions);
}

static void ask_again_void(struct push_round *push, uint32_t shard_index,
                           struct push_actions *actions)
{
    const struct shard *shard = &push->shards[shard_index];
    if (shard->newest > shard->endpoint) send_all_again(push, shard_index, actions);
}

/* A shard that was still receiving a chunk on its lost endpoint dropped the repeated chunk as a duplicate,
 * and its answer to the first copy was lost. The shard's GRANT says that this receive has ended. */
static void on_grant_void(struct push_round *push, uint32_t shard_index, uint64_t endpoint,
                          struct push_actions *actions)
{
    struct shard *shard = &push->shards[shard_index];
    if (endpoint < shard->newest) return;
    shard->newest = endpoint;
    send_all_again(push, shard_index, actions);
}

void push_on_hello(struct push_round *push, uint32_t shard, uint64_t endpoint,
                   struct push_actions *actions)
{
    if (!has_shard(push, shard)) return;
    if (endpoint > push->shards[shard].newest) push->shards[shard].newest = endpoint;
    if (push->voided) ask_again_void(push, shard, actions);
}

void push_on_grant(struct push_round *push, uint32_t shard_index, uint64_t endpoint,
                   struct push_window window, struct push_actions *actions)
{
    if (!has_shard(push, shard_index) || window.chunks == 0) return;
    struct shard *shard = &push->shards[shard_index];
    if (push->voided) {
        on_grant_void(push, shard_index, endpoint, actions);
        return;
    }
    push_on_hello(push, shard_index, endpoint, actions);
    if (endpoint < shard->endpoint) return;
    if (endpoint > shard->endpoint && !MUTANT(12) && !MUTANT(19)) unsend(push, shard);
    shard->endpoint = endpoint;
    shard->window = window;
    pump(push, shard_index, actions);
}

void push_on_ack(struct push_round *push, uint32_t shard, uint64_t request,
                 struct push_actions *actions)
{
    if (!has_shard(push, shard)) return;
    const uint32_t index = find_chunk(push, shard, request);
    if (index == NONE) return;
    // A chunk that is not yet sent again is done, too: the ACK answers an earlier sending.
    finish_entry(push, shard, index, push->voided ? CAIRN_ERR_EPOCH_CHANGED : CAIRN_OK, actions);
    pump(push, shard, actions);
}

void push_on_micro_ack(struct push_round *push, uint32_t shard, uint32_t micro,
                       struct push_actions *actions)
{
    if (!has_shard(push, shard)) return;
    for (uint32_t i = push->shards[shard].head; i != NONE; i = push->entries[i].next) {
        const struct entry *e = &push->entries[i];
        if (e->kind != MICRO_END) continue;
        if (e->micro == micro) finish_entry(push, shard, i, CAIRN_OK, actions);
        break; // only the oldest end can be answered
    }
    pump(push, shard, actions);
}

/* Releases the entries that shards do not hold: in a void round all entries except sent chunks, in a
 * resolved round all entries. */
static void release_entries(struct push_round *push, uint32_t shard_index, bool sent_too,
                            cairn_status status, struct push_actions *actions)
{
    for (uint32_t i = push->shards[shard_index].head, next; i != NONE; i = next) {
        next = push->entries[i].next;
        const struct entry *e = &push->entries[i];
        if (e->kind != CHUNK || !e->sent || sent_too)
            finish_entry(push, shard_index, i, status, actions);
    }
}

void push_on_void(struct push_round *push, struct push_actions *actions)
{
    push->voided = true;
    for (uint32_t s = 0; s < push->shard_count; s++) {
        release_entries(push, s, false, CAIRN_ERR_EPOCH_CHANGED, actions);
        ask_again_void(push, s, actions);
    }
}

void push_on_result(struct push_round *push, struct push_actions *actions)
{
    push->voided = true;
    for (uint32_t s = 0; s < push->shard_count; s++)
        release_entries(push, s, true, CAIRN_OK, actions);
}

/* Sends a refused chunk again, in a void round, too: the refusal may be a late answer to an earlier
 * sending, while the shard reads the chunk of the last sending. Only ACK and the other refusals say that
 * the shard will not read the buffer any more. */
static void send_again(struct push_round *push, uint32_t shard, uint32_t index, cairn_status status,
                       struct push_actions *actions)
{
    struct entry *e = &push->entries[index];
    if (!e->sent) return;
    e->sent = false;
    count_unanswered(&push->shards[shard], e, false);
    if (status == CAIRN_ERR_BUSY) {
        e->lies = CAIRN_PUSH_LIES_APART;
        e->in_place = false;
    }
    // This chunk is sent ahead of others, since an earlier sending of the chunk may hold a slot.
    if (e->lands) push->shards[shard].sends_again = true;
    look_again(&push->shards[shard]);
    if (push->voided)
        send_entry(push, shard, index, actions);
    else
        pump(push, shard, actions);
}

/* Sends the oldest end again. Only one end is under way at a time, and in a void round nobody waits for an
 * end. */
static void end_again(struct push_round *push, uint32_t shard, struct push_actions *actions)
{
    uint32_t i = push->shards[shard].head;
    while (i != NONE && push->entries[i].kind != MICRO_END) i = push->entries[i].next;
    if (i == NONE || !push->entries[i].sent || push->voided || MUTANT(33)) return;
    push->entries[i].sent = false;
    look_again(&push->shards[shard]);
    pump(push, shard, actions);
}

void push_on_refuse(struct push_round *push, uint32_t shard, uint64_t request, cairn_status status,
                    struct push_actions *actions)
{
    if (!has_shard(push, shard)) return;
    const uint32_t index = find_chunk(push, shard, request);
    if (status == CAIRN_ERR_BUSY || status == CAIRN_ERR_CHECKSUM) {
        if (index != NONE) send_again(push, shard, index, status, actions);
        if (request == 0) end_again(push, shard, actions);
        return;
    }
    if (index != NONE && push->voided)
        finish_entry(push, shard, index, CAIRN_ERR_EPOCH_CHANGED, actions);
    if (push->voided) return;
    if (index == NONE && request != 0) return; // the sending was answered since
    struct push_action *action = act(actions, CAIRN_PUSH_VOID, shard);
    action->status = status;
    if (index != NONE) finish_entry(push, shard, index, CAIRN_ERR_EPOCH_CHANGED, actions);
    push_on_void(push, actions);
}

void push_on_lost(struct push_round *push, uint32_t shard_index, struct push_actions *actions)
{
    if (!has_shard(push, shard_index)) return;
    struct shard *shard = &push->shards[shard_index];
    shard->window = (struct push_window) { 0 };
    // the next GRANT, from whatever endpoint, sends everything again
    shard->endpoint = shard->newest = 0;
    if (push->voided) {
        release_entries(push, shard_index, true, CAIRN_ERR_EPOCH_CHANGED, actions);
        return;
    }
    if (!MUTANT(12)) unsend(push, shard);
}

/* ---- questions ---- */

bool push_voided(const struct push_round *push)
{
    return push->voided;
}

bool push_idle(const struct push_round *push)
{
    for (uint32_t s = 0; s < push->shard_count; s++)
        if (push->shards[s].chunks > 0) return false;
    return true;
}

bool push_waits(const struct push_round *push, uint32_t shard)
{
    if (!has_shard(push, shard)) return false;
    const uint32_t head = push->shards[shard].head;
    return head != NONE && push->entries[head].kind != COMMIT;
}
