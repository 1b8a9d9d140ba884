/* Passes the sums of a relay on to an owner, by the worker's push machine (proto/link/push.h).
 *
 * A round is over for the machine as soon as it is void or resolved. Buffers that the fabric then
 * still has on loan come back by themselves, and nobody waits for answers. */
#include <stdlib.h>
#include <string.h>

#include "server/shard/relay/relay.h"

#define MICROS_AHEAD 4096 /* micro-batches by which workers may be ahead of an owner */

static uint64_t cookie_of(uint32_t buffer)
{
    return (uint64_t)buffer + 1;
}

static uint32_t buffer_of(uint64_t cookie)
{
    return (uint32_t)(cookie - 1);
}

static struct cairn_relay_owner *owner_of(const struct cairn_pusher *pusher)
{
    return (struct cairn_relay_owner *)((char *)pusher -
                                        offsetof(struct cairn_relay_owner, forward.pusher));
}

static struct cairn_relay_owner *owner_of_buffer(const struct cairn_buffer *buffer)
{
    return (struct cairn_relay_owner *)((char *)buffer->owner -
                                        offsetof(struct cairn_relay_owner, buffers));
}

/* ---- hands of the pusher ---- */

static struct cairn_chunk_link *link_to(struct cairn_pusher *pusher, uint32_t shard)
{
    (void)shard;
    return &owner_of(pusher)->link;
}

static void link_failed(struct cairn_pusher *pusher, struct cairn_chunk_link *link)
{
    (void)link;
    cairn_relay_link_close(owner_of(pusher));
}

static void on_chunk_sent(void *arg, cairn_status status)
{
    struct cairn_buffer *buffer = arg;
    struct cairn_relay_owner *owner = owner_of_buffer(buffer);
    struct cairn_relay *relay = owner->relay;
    cairn_buffer_pool_return(&relay->sums.pool, (uint32_t)(buffer - relay->sums.pool.buffers));
    if (!relay->job->shard->closing) cairn_relay_sums_advance(relay);
    cairn_chunk_link_sent(&owner->link, status);
}

static cairn_status send_chunk(struct cairn_pusher *pusher, const struct cairn_push_action *action,
                               struct cairn_chunk_header *header)
{
    struct cairn_relay_owner *owner = owner_of(pusher);
    struct cairn_relay *relay = owner->relay;
    const uint32_t number = buffer_of(action->cookie);
    const struct cairn_chunk_place place = cairn_chunk_table_place(&owner->table, action->chunk);
    header->dtype = CAIRN_F32;
    header->tensor = place.tensor;
    header->first_leaf = place.first_leaf;
    header->leaf_count = (uint32_t)place.leaf_count;
    header->table_hash = CAIRN_TABLE_HASH_WHOLE;
    cairn_buffer_pool_loan(&relay->sums.pool, number);
    const cairn_status status = cairn_chunk_link_send(
        &owner->link, header, cairn_relay_buffer_at(relay, number),
        (size_t)place.elem_count * sizeof(float), on_chunk_sent, &relay->sums.pool.buffers[number]);
    if (status != CAIRN_OK) cairn_buffer_pool_return(&relay->sums.pool, number);
    return status;
}

static size_t absent_max(const struct cairn_pusher *pusher, uint32_t shard)
{
    (void)shard;
    return owner_of(pusher)->table.map.extent_count;
}

static size_t absent(const struct cairn_pusher *pusher, uint32_t shard, uint32_t micro,
                     uint32_t *tensors_out)
{
    const struct cairn_relay_note *note = owner_of(pusher)->forward.notes;
    (void)shard;
    while (note != NULL && note->micro != micro) note = note->next;
    if (note == NULL) return 0; // it had something of every tensor
    memcpy(tensors_out, note->tensors, note->count * sizeof *tensors_out);
    return note->count;
}

static void released(struct cairn_pusher *pusher, const struct cairn_push_action *action)
{
    cairn_buffer_pool_end(&owner_of(pusher)->relay->sums.pool, buffer_of(action->cookie));
}

/* The coordinator knows by itself that a round is void; what else an owner refuses is a fault of one of
 * us. */
static void refused(struct cairn_pusher *pusher, const struct cairn_push_action *action)
{
    const struct cairn_relay_owner *owner = owner_of(pusher);
    if (action->status == CAIRN_ERR_STALE || action->status == CAIRN_ERR_FENCED) return;
    cairn_relay_give_up(owner->relay, "shard %s refuses what is relayed in round %llu: %s",
                        owner->name, (unsigned long long)pusher->round,
                        cairn_status_text((int)action->status));
}

static const struct cairn_pusher_hands hands = {
    .link = link_to,
    .link_failed = link_failed,
    .send_chunk = send_chunk,
    .absent_max = absent_max,
    .absent = absent,
    .released = released,
    .refused = refused,
};

/* ---- a round ---- */

cairn_status cairn_relay_forward_open(struct cairn_relay_owner *owner)
{
    const uint32_t chunks = owner->table.trained_count;
    if (chunks > UINT32_MAX / 8) return CAIRN_ERR_NO_MEMORY;
    owner->forward.sent = calloc((size_t)chunks + 1, sizeof *owner->forward.sent);
    if (owner->forward.sent == NULL) return CAIRN_ERR_NO_MEMORY;
    return cairn_pusher_open(
        &owner->forward.pusher, &hands,
        &(struct cairn_push_config) { .shard_count = 1, .queue_max = 2 * chunks + MICROS_AHEAD });
}

static void give_grant(struct cairn_relay_owner *owner)
{
    cairn_pusher_on_grant(&owner->forward.pusher, 0, &owner->forward.grant, owner->link.way);
}

void cairn_relay_forward_begin(struct cairn_relay_owner *owner, uint64_t epoch, uint64_t round)
{
    cairn_pusher_begin(&owner->forward.pusher, epoch, round);
    give_grant(owner); // it may have come before the coordinator's word
}

static void free_notes(struct cairn_relay_forward *forward)
{
    while (forward->notes != NULL) {
        struct cairn_relay_note *note = forward->notes;
        forward->notes = note->next;
        free(note);
    }
}

void cairn_relay_forward_end(struct cairn_relay_owner *owner)
{
    cairn_pusher_end(&owner->forward.pusher);
    cairn_buffer_pool_end_sending(&owner->relay->sums.pool, &owner->buffers);
    free_notes(&owner->forward);
    memset(owner->forward.sent, 0, owner->table.trained_count * sizeof *owner->forward.sent);
}

void cairn_relay_forward_close(struct cairn_relay_owner *owner)
{
    free_notes(&owner->forward);
    free(owner->forward.sent);
    cairn_pusher_close(&owner->forward.pusher);
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
    if (status != CAIRN_OK) owner->collector.spoiled_round = owner->forward.pusher.round;
    cairn_relay_wake(owner->relay->job->shard);
}

static bool is_sent(const struct cairn_relay_owner *owner)
{
    return owner->forward.pusher.push != NULL &&
           owner->collector.spoiled_round != owner->forward.pusher.round;
}

void cairn_relay_forward_chunk(struct cairn_relay_owner *owner, uint32_t chunk, uint32_t micro)
{
    struct cairn_buffer_pool *pool = &owner->relay->sums.pool;
    const uint32_t buffer = cairn_buffer_pool_final(pool, &owner->buffers, chunk);
    owner->forward.sent[chunk] = true;
    cairn_status status = CAIRN_ERR_EPOCH_CHANGED;
    if (is_sent(owner)) {
        const uint64_t elems = cairn_chunk_table_place(&owner->table, chunk).elem_count;
        const struct cairn_push_chunk next = {
            .chunk = chunk,
            .is_small = elems * sizeof(float) <= CAIRN_CHUNK_SMALL,
            .cookie = cookie_of(buffer),
        };
        status = cairn_pusher_chunk(&owner->forward.pusher, 0, micro, next);
    }
    if (status != CAIRN_OK) cairn_buffer_pool_end(pool, buffer);
    judge_queued(owner, status);
}

/* Notes the tensors there that nothing was forwarded of. False: no memory. */
static bool note_absent(struct cairn_relay_owner *owner, uint32_t micro)
{
    const struct cairn_shard_map *map = &owner->table.map;
    const struct cairn_job_spec_data *spec = &owner->relay->job->spec;
    struct cairn_relay_note *note = malloc(sizeof *note +
                                           (map->extent_count + 1) * sizeof *note->tensors);
    if (note == NULL) return false;
    *note = (struct cairn_relay_note) { .next = owner->forward.notes, .micro = micro };
    for (size_t i = 0; i < map->extent_count; i++) {
        const struct cairn_local_extent *extent = &map->extents[i];
        if (spec->tensors[extent->tensor].kind != CAIRN_TRAINED || extent->chunk_count == 0)
            continue;
        if (owner->forward.sent[owner->table.first[i]])
            continue; // of a tensor all is pushed, or nothing
        if (note->count == 0 || note->tensors[note->count - 1] != extent->tensor)
            note->tensors[note->count++] = extent->tensor;
    }
    if (note->count == 0)
        free(note);
    else
        owner->forward.notes = note;
    return true;
}

void cairn_relay_forward_micro_end(struct cairn_relay_owner *owner, uint32_t micro)
{
    cairn_status status = CAIRN_ERR_EPOCH_CHANGED;
    if (is_sent(owner))
        status = note_absent(owner, micro) ? cairn_pusher_micro_end(&owner->forward.pusher, micro)
                                           : CAIRN_ERR_NO_MEMORY;
    memset(owner->forward.sent, 0, owner->table.trained_count * sizeof *owner->forward.sent);
    judge_queued(owner, status);
}

void cairn_relay_forward_commit(struct cairn_relay_owner *owner, uint64_t weight)
{
    cairn_status status = CAIRN_ERR_EPOCH_CHANGED;
    if (is_sent(owner)) status = cairn_pusher_commit(&owner->forward.pusher, weight);
    judge_queued(owner, status);
}

/* ---- what the owner says ---- */

void cairn_relay_forward_on_answer(struct cairn_relay_owner *owner,
                                   const struct cairn_chunk_header *header)
{
    if (header->kind == CAIRN_CHUNK_GRANT) {
        if (!cairn_grant_is_newer(&owner->forward.grant, header)) return;
        owner->forward.grant = *header;
        give_grant(owner);
        return;
    }
    cairn_pusher_on_answer(&owner->forward.pusher, 0, header);
    cairn_relay_sums_advance(owner->relay);
}
