/* What a relay passes on to an owner: the worker's push machine (proto/wire/push.h), with sums for chunks.
 *
 * A round is over for the machine as soon as it is void or resolved; what the fabric has on loan then is
 * given back by itself, and nobody waits for answers. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/relay.h"

#define MICROS_AHEAD 4096 /* that workers may be before an owner: its ends wait in the machine */

static uint64_t cookie_of(uint32_t buffer)
{
    return (uint64_t)buffer + 1;
}

static uint32_t buffer_of(uint64_t cookie)
{
    return (uint32_t)(cookie - 1);
}

/* ---- what the machine says ---- */

static struct cairn_chunk_header header_of(const struct cairn_relay_owner *owner, uint8_t kind,
                                           uint32_t micro)
{
    return (struct cairn_chunk_header) {
        .kind = kind,
        .epoch = owner->epoch,
        .round = owner->round,
        .micro = micro,
        .table_hash = kind == CAIRN_CHUNK_PUSH ? CAIRN_TABLE_HASH_WHOLE : 0,
    };
}

static void on_chunk_sent(void *arg, cairn_status status)
{
    struct cairn_relay_buffer *buffer = arg;
    struct cairn_relay_owner *owner = buffer->owner;
    struct cairn_relay *relay = owner->relay;
    (void)status; // whether it arrived, an answer says
    cairn_relay_buffer_returned(relay, (uint32_t)(buffer - relay->buffers));
    if (!relay->job->shard->closing) cairn_relay_folds_advance(relay);
    cairn_relay_link_loan_back(owner);
}

static void send_chunk(struct cairn_relay_owner *owner, const struct cairn_push_action *action)
{
    struct cairn_relay *relay = owner->relay;
    const uint32_t number = buffer_of(action->cookie);
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&owner->map,
                                                                 owner->grad_chunks[action->chunk]);
    struct cairn_chunk_header header = header_of(owner, CAIRN_CHUNK_PUSH, action->micro);
    header.dtype = CAIRN_F32;
    header.tensor = place.tensor;
    header.first_leaf = place.first_leaf;
    header.leaf_count = (uint32_t)place.leaf_count;
    header.request = action->request;
    relay->buffers[number].on_loan++;
    const cairn_status status = cairn_relay_link_send(
        owner, &header, cairn_relay_buffer_at(relay, number),
        (size_t)place.elem_count * sizeof(float), on_chunk_sent, &relay->buffers[number]);
    if (status == CAIRN_OK) return;
    cairn_relay_buffer_returned(relay, number);
    cairn_relay_link_close(owner); // whatever refuses it, a new connection sends it again
}

static void free_note(struct cairn_relay_note *note)
{
    struct cairn_relay_note **at = &note->owner->notes;
    while (*at != note) at = &(*at)->next;
    *at = note->next;
    free(note);
}

static void on_note_sent(void *arg, cairn_status status)
{
    struct cairn_relay_note *note = arg;
    struct cairn_relay_owner *owner = note->owner;
    (void)status;
    if (--note->on_loan == 0 && note->is_over) free_note(note);
    cairn_relay_link_loan_back(owner);
}

static struct cairn_relay_note *note_of(struct cairn_relay_owner *owner, uint32_t micro)
{
    struct cairn_relay_note *note = owner->notes;
    while (note != NULL && (note->is_over || note->micro != micro)) note = note->next;
    return note;
}

static void send_micro_end(struct cairn_relay_owner *owner, const struct cairn_push_action *action)
{
    struct cairn_relay_note *note = note_of(owner, action->micro);
    struct cairn_chunk_header header = header_of(owner, CAIRN_CHUNK_MICRO_END, action->micro);
    header.value = action->sent;
    cairn_status status;
    if (note == NULL) { // it had something of every tensor
        status = cairn_relay_link_send(owner, &header, NULL, 0, NULL, NULL);
    } else {
        note->on_loan++;
        status = cairn_relay_link_send(owner, &header, note->tensors,
                                       note->count * sizeof *note->tensors, on_note_sent, note);
        if (status != CAIRN_OK) note->on_loan--;
    }
    if (status != CAIRN_OK) cairn_relay_link_close(owner);
}

static void send_commit(struct cairn_relay_owner *owner, const struct cairn_push_action *action)
{
    struct cairn_chunk_header header = header_of(owner, CAIRN_CHUNK_COMMIT, action->micro);
    header.value = action->weight;
    if (cairn_relay_link_send(owner, &header, NULL, 0, NULL, NULL) != CAIRN_OK)
        cairn_relay_link_close(owner);
}

/* The coordinator knows by itself that a round is void; what else an owner refuses is a fault of one of
 * us. */
static void refused(const struct cairn_relay_owner *owner, const struct cairn_push_action *action)
{
    if (action->status == CAIRN_ERR_STALE || action->status == CAIRN_ERR_FENCED) return;
    cairn_relay_give_up(owner->relay, "shard %s refuses what is relayed in round %llu: %s",
                        owner->name, (unsigned long long)owner->round,
                        cairn_status_text((int)action->status));
}

/* Does what the machine said, and empties the list. */
static void act(struct cairn_relay_owner *owner)
{
    for (size_t i = 0; i < owner->push_actions.count; i++) {
        const struct cairn_push_action *action = &owner->push_actions.list[i];
        switch (action->kind) {
        case CAIRN_PUSH_SEND_CHUNK: send_chunk(owner, action); break;
        case CAIRN_PUSH_SEND_MICRO_END: send_micro_end(owner, action); break;
        case CAIRN_PUSH_SEND_COMMIT: send_commit(owner, action); break;
        case CAIRN_PUSH_RELEASED:
            cairn_relay_buffer_end(owner->relay, buffer_of(action->cookie));
            break;
        case CAIRN_PUSH_VOID: refused(owner, action); break;
        }
    }
    owner->push_actions.count = 0;
}

/* ---- a round ---- */

static struct cairn_push_config push_config(const struct cairn_relay_owner *owner)
{
    return (struct cairn_push_config) { .shard_count = 1,
                                        .queue_max = 2 * owner->grad_chunk_count + MICROS_AHEAD };
}

cairn_status cairn_relay_send_open(struct cairn_relay_owner *owner)
{
    if (owner->grad_chunk_count > UINT32_MAX / 8) return CAIRN_ERR_NO_MEMORY;
    const struct cairn_push_config config = push_config(owner);
    const size_t bytes = cairn_push_bytes(&config), capacity = cairn_push_actions_max(&config);
    owner->push_actions.list = calloc(capacity, sizeof *owner->push_actions.list);
    owner->push_actions.capacity = capacity;
    owner->push_memory = bytes > 0 ? malloc(bytes) : NULL;
    return owner->push_memory != NULL && owner->push_actions.list != NULL ? CAIRN_OK
                                                                          : CAIRN_ERR_NO_MEMORY;
}

static void give_grant(struct cairn_relay_owner *owner)
{
    const struct cairn_chunk_header *grant = &owner->grant;
    if (owner->push == NULL || grant->kind == 0 || grant->round != owner->round) return;
    const uint32_t window = grant->value >= 1 && grant->value <= 1024 ? (uint32_t)grant->value : 1;
    cairn_push_on_grant(owner->push, 0, grant->request, window, &owner->push_actions);
    act(owner);
}

void cairn_relay_send_begin(struct cairn_relay_owner *owner)
{
    const struct cairn_push_config config = push_config(owner);
    assert(owner->push == NULL);
    owner->push_actions.count = 0;
    owner->push = cairn_push_init(owner->push_memory, &config);
    give_grant(owner); // it may have come before the coordinator's word
}

void cairn_relay_send_end(struct cairn_relay_owner *owner)
{
    struct cairn_relay *relay = owner->relay;
    owner->push = NULL;
    for (uint32_t i = 0; i < relay->buffers_counted; i++) {
        const struct cairn_relay_buffer *buffer = &relay->buffers[i];
        if (buffer->owner == owner && buffer->state == CAIRN_RELAY_SENDING)
            cairn_relay_buffer_end(relay, i);
    }
    for (struct cairn_relay_note *note = owner->notes, *next; note != NULL; note = next) {
        next = note->next;
        note->is_over = true;
        if (note->on_loan == 0) free_note(note);
    }
    memset(owner->forwarded, 0, owner->grad_chunk_count * sizeof *owner->forwarded);
}

/* ---- what the core says ---- */

/* More than the machine's queue takes, or no memory: the round cannot end here. */
static void judge_queued(struct cairn_relay_owner *owner, cairn_status status)
{
    if (status == CAIRN_ERR_BUSY)
        cairn_relay_give_up(owner->relay,
                            "its workers are more than %d micro-batches before shard %s",
                            MICROS_AHEAD, owner->name);
    else if (status != CAIRN_OK && status != CAIRN_ERR_EPOCH_CHANGED)
        cairn_relay_give_up(owner->relay, "what is for shard %s cannot be passed on: %s",
                            owner->name, cairn_status_text((int)status));
    if (status != CAIRN_OK) owner->spoiled_round = owner->round;
    act(owner);
    cairn_relay_wake(owner->relay->job->shard);
}

static bool is_sent(const struct cairn_relay_owner *owner)
{
    return owner->push != NULL && owner->spoiled_round != owner->round;
}

void cairn_relay_send_chunk(struct cairn_relay_owner *owner, uint32_t chunk, uint32_t micro)
{
    struct cairn_relay *relay = owner->relay;
    const uint32_t buffer = owner->sums[chunk];
    assert(buffer != CAIRN_RELAY_NONE);
    owner->sums[chunk] = CAIRN_RELAY_NONE;
    owner->forwarded[chunk] = true;
    cairn_relay_buffer_sent(relay, buffer);
    cairn_status status = CAIRN_ERR_EPOCH_CHANGED;
    if (is_sent(owner))
        status = cairn_push_chunk(owner->push, 0, micro, chunk, cookie_of(buffer),
                                  &owner->push_actions);
    if (status != CAIRN_OK) cairn_relay_buffer_end(relay, buffer);
    judge_queued(owner, status);
}

/* Notes the tensors there that nothing was forwarded of. False: no memory. */
static bool note_absent(struct cairn_relay_owner *owner, uint32_t micro)
{
    struct cairn_relay_note *note = malloc(sizeof *note +
                                           (owner->map.extent_count + 1) * sizeof(uint32_t));
    if (note == NULL) return false;
    *note = (struct cairn_relay_note) { .next = owner->notes, .owner = owner, .micro = micro };
    owner->notes = note;
    const struct cairn_job_spec_data *spec = &owner->relay->job->spec;
    for (size_t i = 0; i < owner->map.extent_count; i++) {
        const struct cairn_local_extent *extent = &owner->map.extents[i];
        if (spec->tensors[extent->tensor].kind != CAIRN_TRAINED || extent->chunk_count == 0)
            continue;
        if (owner->forwarded[owner->grad_first[i]])
            continue; // of a tensor all is pushed, or nothing
        if (note->count == 0 || note->tensors[note->count - 1] != extent->tensor)
            note->tensors[note->count++] = extent->tensor;
    }
    if (note->count == 0) free_note(note);
    return true;
}

void cairn_relay_send_micro_end(struct cairn_relay_owner *owner, uint32_t micro)
{
    cairn_status status = CAIRN_ERR_EPOCH_CHANGED;
    if (is_sent(owner))
        status = note_absent(owner, micro)
                     ? cairn_push_micro_end(owner->push, micro, &owner->push_actions)
                     : CAIRN_ERR_NO_MEMORY;
    memset(owner->forwarded, 0, owner->grad_chunk_count * sizeof *owner->forwarded);
    judge_queued(owner, status);
}

void cairn_relay_send_commit(struct cairn_relay_owner *owner, uint64_t weight)
{
    cairn_status status = CAIRN_ERR_EPOCH_CHANGED;
    if (is_sent(owner)) status = cairn_push_commit(owner->push, weight, &owner->push_actions);
    judge_queued(owner, status);
}

/* ---- what the owner says ---- */

/* Rounds grow, and so do the numbers of ways: one that was overtaken changes nothing. */
static void take_grant(struct cairn_relay_owner *owner, const struct cairn_chunk_header *header)
{
    if (header->round < owner->grant.round ||
        (header->round == owner->grant.round && header->request < owner->grant.request))
        return;
    owner->grant = *header;
    give_grant(owner);
}

void cairn_relay_send_on_answer(struct cairn_relay_owner *owner,
                                const struct cairn_chunk_header *header)
{
    if (header->kind == CAIRN_CHUNK_GRANT) {
        take_grant(owner, header);
        return;
    }
    if (owner->push == NULL || header->round != owner->round) return;
    if (header->kind == CAIRN_CHUNK_MICRO_ACK)
        cairn_push_on_micro_ack(owner->push, 0, header->micro, &owner->push_actions);
    else if (header->kind == CAIRN_CHUNK_ACK)
        cairn_push_on_ack(owner->push, 0, header->request, &owner->push_actions);
    else
        cairn_push_on_refuse(owner->push, 0, header->request,
                             header->value <= CAIRN_ERR_INTERNAL ? (cairn_status)header->value
                                                                 : CAIRN_ERR_PROTOCOL,
                             &owner->push_actions);
    act(owner);
    cairn_relay_folds_advance(owner->relay);
}

void cairn_relay_send_on_hello(struct cairn_relay_owner *owner, uint64_t way)
{
    if (owner->push == NULL) return;
    cairn_push_on_hello(owner->push, 0, way, &owner->push_actions);
    act(owner);
}

void cairn_relay_send_lost(struct cairn_relay_owner *owner)
{
    if (owner->push == NULL) return;
    cairn_push_on_lost(owner->push, 0, &owner->push_actions);
    act(owner);
}

bool cairn_relay_send_waits(const struct cairn_relay_owner *owner)
{
    return owner->push != NULL && cairn_push_waits(owner->push, 0);
}
