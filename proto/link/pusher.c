#include "proto/link/pusher.h"

#include <assert.h>
#include <stdlib.h>

#define WINDOW_MAX 1024

/* ---- what the machine says ---- */

static struct cairn_chunk_header header_of(const struct cairn_pusher *pusher, uint8_t kind,
                                           const struct cairn_push_action *action)
{
    return (struct cairn_chunk_header) {
        .kind = kind,
        .epoch = pusher->epoch,
        .round = pusher->round,
        .micro = action->micro,
    };
}

static void send_chunk(struct cairn_pusher *pusher, const struct cairn_push_action *action)
{
    struct cairn_chunk_header header = header_of(pusher, CAIRN_CHUNK_PUSH, action);
    header.request = action->request;
    header.value = action->in_place;
    if (pusher->hands->send_chunk(pusher, action, &header) != CAIRN_OK)
        pusher->hands->link_failed(pusher, pusher->hands->link(pusher, action->shard));
}

static uint32_t mark_of(const struct cairn_pusher *pusher, const struct cairn_push_action *action)
{
    return pusher->hands->mark != NULL ? pusher->hands->mark(pusher, action->shard) : 0;
}

/* The list of absent tensors, on loan to the fabric. */
struct note {
    struct cairn_chunk_link *link; /* borrowed */
    uint32_t tensors[];
};

static void on_note_sent(void *arg, cairn_status status)
{
    struct note *note = arg;
    struct cairn_chunk_link *link = note->link;
    free(note);
    cairn_chunk_link_sent(link, status);
}

static void send_micro_end(struct cairn_pusher *pusher, const struct cairn_push_action *action)
{
    const size_t max = pusher->hands->absent_max(pusher, action->shard);
    struct cairn_chunk_link *link = pusher->hands->link(pusher, action->shard);
    struct cairn_chunk_header header = header_of(pusher, CAIRN_CHUNK_MICRO_END, action);
    struct note *note = malloc(sizeof *note + (max + 1) * sizeof *note->tensors);
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    header.tensor = mark_of(pusher, action);
    header.value = action->sent;
    if (note == NULL) {
        cairn_chunk_link_note_memory(link, status, max * sizeof *note->tensors);
    } else {
        note->link = link;
        cairn_chunk_link_note_memory(link, CAIRN_OK, max * sizeof *note->tensors);
        const size_t count = pusher->hands->absent(pusher, action->shard, action->micro,
                                                   note->tensors);
        status = cairn_chunk_link_send(link, &header, count > 0 ? note->tensors : NULL,
                                       count * sizeof *note->tensors, on_note_sent, note);
    }
    if (status == CAIRN_OK) return;
    free(note);
    pusher->hands->link_failed(pusher, link);
}

static void send_commit(struct cairn_pusher *pusher, const struct cairn_push_action *action)
{
    struct cairn_chunk_link *link = pusher->hands->link(pusher, action->shard);
    struct cairn_chunk_header header = header_of(pusher, CAIRN_CHUNK_COMMIT, action);
    header.tensor = mark_of(pusher, action);
    header.value = action->weight;
    if (cairn_chunk_link_send(link, &header, NULL, 0, NULL, NULL) != CAIRN_OK)
        pusher->hands->link_failed(pusher, link);
}

/* Does what the machine said, and empties the list. */
static void act(struct cairn_pusher *pusher)
{
    for (size_t i = 0; i < pusher->actions.count; i++) {
        const struct cairn_push_action *action = &pusher->actions.list[i];
        switch (action->kind) {
        case CAIRN_PUSH_SEND_CHUNK: send_chunk(pusher, action); break;
        case CAIRN_PUSH_SEND_MICRO_END: send_micro_end(pusher, action); break;
        case CAIRN_PUSH_SEND_COMMIT: send_commit(pusher, action); break;
        case CAIRN_PUSH_RELEASED: pusher->hands->released(pusher, action); break;
        case CAIRN_PUSH_VOID: // how the round ended is the coordinator's to say
            if (pusher->hands->refused != NULL) pusher->hands->refused(pusher, action);
            break;
        }
    }
    pusher->actions.count = 0;
}

/* ---- a round ---- */

cairn_status cairn_pusher_open(struct cairn_pusher *pusher, const struct cairn_pusher_hands *hands,
                               const struct cairn_push_config *config)
{
    const size_t bytes = cairn_push_bytes(config), capacity = cairn_push_actions_max(config);
    if (bytes == 0) return CAIRN_ERR_NO_MEMORY;
    pusher->hands = hands;
    pusher->config = *config;
    pusher->memory = malloc(bytes);
    pusher->actions.list = calloc(capacity, sizeof *pusher->actions.list);
    pusher->actions.capacity = capacity;
    if (pusher->memory != NULL && pusher->actions.list != NULL) return CAIRN_OK;
    cairn_pusher_close(pusher);
    return CAIRN_ERR_NO_MEMORY;
}

void cairn_pusher_close(struct cairn_pusher *pusher)
{
    free(pusher->memory);
    free(pusher->actions.list);
    *pusher = (struct cairn_pusher) { 0 };
}

void cairn_pusher_begin(struct cairn_pusher *pusher, uint64_t epoch, uint64_t round)
{
    assert(pusher->push == NULL);
    pusher->actions.count = 0;
    pusher->epoch = epoch;
    pusher->round = round;
    pusher->push = cairn_push_init(pusher->memory, &pusher->config);
}

void cairn_pusher_absent(struct cairn_pusher *pusher, uint32_t shard)
{
    cairn_push_absent(pusher->push, shard);
}

void cairn_pusher_end(struct cairn_pusher *pusher)
{
    pusher->push = NULL;
}

cairn_status cairn_pusher_chunk(struct cairn_pusher *pusher, uint32_t shard, uint32_t micro,
                                struct cairn_push_chunk chunk)
{
    const cairn_status status = cairn_push_chunk(pusher->push, shard, micro, chunk,
                                                 &pusher->actions);
    act(pusher);
    return status;
}

cairn_status cairn_pusher_micro_end(struct cairn_pusher *pusher, uint32_t micro)
{
    const cairn_status status = cairn_push_micro_end(pusher->push, micro, &pusher->actions);
    act(pusher);
    return status;
}

cairn_status cairn_pusher_commit(struct cairn_pusher *pusher, uint64_t weight)
{
    const cairn_status status = cairn_push_commit(pusher->push, weight, &pusher->actions);
    act(pusher);
    return status;
}

void cairn_pusher_resolved(struct cairn_pusher *pusher)
{
    cairn_push_on_result(pusher->push, &pusher->actions);
    act(pusher);
}

/* ---- the shards ---- */

/* Others come and go: what they say is not for this machine. */
static bool is_its(const struct cairn_pusher *pusher, uint32_t shard)
{
    return pusher->push != NULL && shard < pusher->config.shard_count;
}

bool cairn_grant_is_newer(const struct cairn_chunk_header *last,
                          const struct cairn_chunk_header *grant)
{
    if (grant->round != last->round) return grant->round > last->round;
    return last->kind == 0 || (grant->tensor == last->tensor && grant->request >= last->request);
}

void cairn_pusher_on_grant(struct cairn_pusher *pusher, uint32_t shard,
                           const struct cairn_chunk_header *grant, uint64_t way)
{
    if (!is_its(pusher, shard) || grant->kind == 0 || grant->round != pusher->round) return;
    const bool is_window = grant->value >= 1 && grant->value <= WINDOW_MAX;
    const bool reads = cairn_chunk_link_shares(pusher->hands->link(pusher, shard));
    const struct cairn_push_window window = {
        .chunks = is_window ? (uint32_t)grant->value : 1,
        .small = grant->leaf_count <= WINDOW_MAX ? grant->leaf_count : 0,
        .in_place = reads && grant->micro <= WINDOW_MAX ? grant->micro : 0,
        .on_card = grant->first_leaf,
    };
    cairn_push_on_grant(pusher->push, shard, grant->request, window, &pusher->actions);
    act(pusher);
    cairn_pusher_on_hello(pusher, shard, way);
}

void cairn_pusher_on_hello(struct cairn_pusher *pusher, uint32_t shard, uint64_t way)
{
    if (!is_its(pusher, shard)) return;
    cairn_push_on_hello(pusher->push, shard, way, &pusher->actions);
    act(pusher);
}

void cairn_pusher_on_answer(struct cairn_pusher *pusher, uint32_t shard,
                            const struct cairn_chunk_header *header)
{
    if (!is_its(pusher, shard) || header->round != pusher->round) return;
    if (header->kind == CAIRN_CHUNK_MICRO_ACK)
        cairn_push_on_micro_ack(pusher->push, shard, header->micro, &pusher->actions);
    else if (header->kind == CAIRN_CHUNK_ACK)
        cairn_push_on_ack(pusher->push, shard, header->request, &pusher->actions);
    else
        cairn_push_on_refuse(pusher->push, shard, header->request,
                             header->value <= CAIRN_ERR_INTERNAL ? (cairn_status)header->value
                                                                 : CAIRN_ERR_PROTOCOL,
                             &pusher->actions);
    act(pusher);
}

void cairn_pusher_on_lost(struct cairn_pusher *pusher, uint32_t shard)
{
    if (!is_its(pusher, shard)) return;
    cairn_push_on_lost(pusher->push, shard, &pusher->actions);
    act(pusher);
}

bool cairn_pusher_waits(const struct cairn_pusher *pusher, uint32_t shard)
{
    return is_its(pusher, shard) && cairn_push_waits(pusher->push, shard);
}
