/* What workers contribute by way of a relay: judged, told to the owner's core, received. As landing.c
 * does it for the shard's own part; what is judged here is judged by the owner again.
 *
 * Payloads are read where they lie. One that came another way than through memory of this host is
 * received into memory of its own, if the shard's budget has it; else it is asked for again (BUSY). */
#include <assert.h>
#include <stdlib.h>

#include "server/shard/relay.h"

static void drop(struct cairn_fabric_message *message)
{
    if (message != NULL) cairn_fabric_drop(message);
}

static void refuse(struct cairn_member *member, const struct cairn_chunk_header *header,
                   const struct cairn_relay_owner *owner, cairn_status status, const char *why)
{
    member->job->shard->stats.chunks_refused++;
    cairn_log_limited(
        &member->refusals, CAIRN_LOG_WARN, "refused to relay %s of job %s from %s: %s",
        cairn_chunk_kind_name(header->kind), member->job->spec.name, member->name, why);
    struct cairn_chunk_header nak = *header;
    nak.kind = CAIRN_CHUNK_NAK;
    nak.value = (uint64_t)status;
    nak.tensor = header->kind == CAIRN_CHUNK_PUSH ? header->tensor : 0;
    nak.payload_bytes = nak.checksum = 0;
    cairn_member_send_for(member, &nak, owner != NULL ? owner->index : member->job->map.shard);
}

/* ---- contributions ---- */

static bool is_frozen(const struct cairn_relay *relay, const struct cairn_chunk_header *header)
{
    const struct cairn_shard_job *job = relay->job;
    if (header->round != job->frozen_round) return false;
    return job->frozen_tensors[header->tensor] || job->frozen[relay->tensor_group[header->tensor]];
}

/* Of a trained tensor of the job (the owner was found by it). CAIRN_OK: *chunk_out is the core's number. */
static cairn_status judge_push(const struct cairn_relay_owner *owner,
                               const struct cairn_chunk_header *header, uint32_t *chunk_out,
                               struct cairn_sentence *why)
{
    const struct cairn_tensor_spec *tensor = &owner->relay->job->spec.tensors[header->tensor];
    uint64_t chunk;
    if (header->dtype != CAIRN_F32 && header->dtype != CAIRN_BF16) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED,
                          "tensor %s: a contribution in %s, not f32 or bf16", tensor->name,
                          cairn_dtype_name(header->dtype));
    }
    if (header->tile != CAIRN_TILE_WHOLE || header->table_hash != CAIRN_TABLE_HASH_WHOLE) {
        return cairn_fail(why, CAIRN_ERR_MISMATCH,
                          "tensor %s: workers that hold parts of tensors push to the owners",
                          tensor->name);
    }
    if (cairn_shard_map_chunk_number(&owner->map, header->tensor, header->first_leaf,
                                     header->leaf_count, &chunk) != CAIRN_OK) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED,
                          "tensor %s: leaves %llu + %u are not a chunk of shard %s", tensor->name,
                          (unsigned long long)header->first_leaf, header->leaf_count, owner->name);
    }
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&owner->map, chunk);
    const uint64_t bytes = place.elem_count * cairn_dtype_bytes(header->dtype);
    if (header->payload_bytes != bytes) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "tensor %s: a payload of %llu bytes, not %llu",
                          tensor->name, (unsigned long long)header->payload_bytes,
                          (unsigned long long)bytes);
    }
    if (is_frozen(owner->relay, header)) {
        return cairn_fail(why, CAIRN_ERR_REFUSED,
                          "tensor %s is frozen in round %llu and takes no gradient", tensor->name,
                          (unsigned long long)header->round);
    }
    const struct cairn_local_extent *extent = cairn_shard_map_find(&owner->map, header->tensor,
                                                                   header->first_leaf);
    *chunk_out = owner->grad_first[extent - owner->map.extents] +
                 (uint32_t)(chunk - extent->first_chunk);
    return CAIRN_OK;
}

/* Memory for a payload that does not lie in this host's shared memory. */
static bool take_memory(struct cairn_relay *relay, size_t bytes)
{
    struct cairn_shard_job *job = relay->job;
    struct cairn_shard *shard = job->shard;
    struct cairn_sentence why;
    uint64_t *kind = &job->memory.staging;
    if (cairn_shard_job_take(job, kind, bytes, "a payload to relay", &why) == CAIRN_OK) {
        relay->waiting_memory = malloc(bytes);
        if (relay->waiting_memory == NULL) cairn_shard_job_give(job, kind, bytes);
    }
    const uint64_t now_ms = uv_now(shard->loop);
    if (relay->waiting_memory != NULL)
        relay->roomless_since_ms = 0;
    else if (relay->roomless_since_ms == 0)
        relay->roomless_since_ms = now_ms;
    else if (now_ms - relay->roomless_since_ms >= relay->stuck_max_ms)
        cairn_relay_give_up(relay,
                            "there is no memory for what workers push by another way than memory "
                            "of this host: raise memory.limit of shard %s",
                            shard->name);
    return relay->waiting_memory != NULL;
}

static void give_memory(struct cairn_relay *relay, void **memory, size_t bytes)
{
    if (*memory == NULL) return;
    free(*memory);
    *memory = NULL;
    cairn_shard_job_give(relay->job, &relay->job->memory.staging, bytes);
}

void cairn_relay_discard(struct cairn_relay *relay)
{
    drop(relay->waiting);
    relay->waiting = NULL;
    give_memory(relay, &relay->waiting_memory, (size_t)relay->waiting_header.payload_bytes);
}

static void on_push(struct cairn_relay *relay, struct cairn_member *member,
                    const struct cairn_chunk_header *header, struct cairn_fabric_message *message)
{
    struct cairn_sentence why;
    uint32_t chunk = 0;
    struct cairn_relay_owner *owner = cairn_relay_owner_of_chunk(relay, header->tensor,
                                                                 header->first_leaf);
    cairn_status status = CAIRN_ERR_MALFORMED;
    if (owner == NULL)
        cairn_sentence_set(&why, "tensor %u, leaf %llu is of no shard that is relayed to",
                           header->tensor, (unsigned long long)header->first_leaf);
    else
        status = judge_push(owner, header, &chunk, &why);
    relay->waiting_header = *header;
    if (status == CAIRN_OK && cairn_fabric_message_view(message) == NULL &&
        !take_memory(relay, (size_t)header->payload_bytes))
        status = cairn_fail(&why, CAIRN_ERR_BUSY,
                            "it does not come through memory of this host, and there is no room");
    if (status != CAIRN_OK) {
        refuse(member, header, owner, status, why.text);
        drop(message);
        return;
    }
    relay->waiting = message;
    struct cairn_step_event event = cairn_step_event_of(header);
    event.chunk = chunk;
    cairn_relay_step(owner, &event);
    cairn_relay_discard(relay); // if a fault came before the core's word
}

/* ---- receiving ---- */

void cairn_relay_slot_release(struct cairn_relay_slot *slot)
{
    // The fabric of a shard that is closed has dropped its messages.
    if (slot->message != NULL && !slot->owner->relay->job->shard->closing)
        cairn_fabric_drop(slot->message);
    slot->message = NULL;
    slot->view = NULL;
    give_memory(slot->owner->relay, &slot->memory, slot->payload_bytes);
}

void cairn_relay_slots_leave(struct cairn_relay_owner *owner)
{
    for (uint32_t i = 0; i < owner->slot_count; i++)
        if (!owner->slots[i].folding && !owner->slots[i].receiving)
            cairn_relay_slot_release(&owner->slots[i]);
}

static void landed(struct cairn_relay_slot *slot, cairn_status status)
{
    struct cairn_shard_job *job = slot->owner->relay->job;
    if (status != CAIRN_OK && status != CAIRN_ERR_CHECKSUM) {
        // The worker is not answered, so its connection must be lost if it is not.
        struct cairn_member *member = cairn_member_find(job, slot->member);
        if (member != NULL && member->peer != NULL && status != CAIRN_ERR_CLOSED)
            member->cut = job->members_cut = true;
        status = CAIRN_ERR_CLOSED;
    }
    slot->status = status;
    slot->next_landed = slot->owner->landed;
    slot->owner->landed = slot;
}

static void on_received(void *arg, cairn_status status)
{
    struct cairn_relay_slot *slot = arg;
    struct cairn_relay *relay = slot->owner->relay;
    slot->view = slot->memory;
    slot->receiving = false;
    if (status == CAIRN_OK) {
        cairn_bytes_pushed(relay->job, slot->member, slot->payload_bytes, slot->way);
        if (cairn_chunk_checksum(slot->memory, slot->payload_bytes) != slot->checksum)
            status = CAIRN_ERR_CHECKSUM;
    }
    if (status != CAIRN_OK || relay->leaving) cairn_relay_slot_release(slot);
    landed(slot, status);
    cairn_relay_settle(slot->owner);
    cairn_shard_job_settle(relay->job);
    cairn_relay_idle(relay);
}

void cairn_relay_receive(struct cairn_relay_owner *owner, uint32_t number, uint32_t chunk)
{
    struct cairn_relay *relay = owner->relay;
    struct cairn_relay_slot *slot = &owner->slots[number];
    struct cairn_fabric_message *message = relay->waiting;
    const struct cairn_chunk_header *header = &relay->waiting_header;
    assert(message != NULL && number < owner->slot_count && slot->view == NULL);
    relay->waiting = NULL;
    slot->chunk = chunk;
    slot->member = header->member;
    slot->dtype = (cairn_dtype)header->dtype;
    slot->payload_bytes = (size_t)header->payload_bytes;
    slot->checksum = header->checksum;
    slot->way = cairn_way_of(cairn_fabric_message_path(message));
    if (relay->waiting_memory == NULL) {
        slot->message = message;
        slot->view = cairn_fabric_message_view(message);
        cairn_bytes_pushed(relay->job, slot->member, slot->payload_bytes, CAIRN_WAY_SHARED);
        landed(slot, CAIRN_OK); // told to the core when its actions are done
        return;
    }
    slot->memory = relay->waiting_memory;
    relay->waiting_memory = NULL;
    const cairn_status status = cairn_fabric_receive(message, slot->memory, slot->payload_bytes,
                                                     on_received, slot);
    slot->receiving = status == CAIRN_OK;
    if (status == CAIRN_OK) {
        cairn_relay_busy(relay);
        return;
    }
    cairn_fabric_drop(message);
    cairn_relay_slot_release(slot);
    landed(slot, status);
}

/* ---- ends ---- */

/* Whom of ours an end or a commit is meant for; NULL: nobody, and that was answered. */
static struct cairn_relay_owner *owner_of_end(struct cairn_member *member,
                                              const struct cairn_chunk_header *header)
{
    struct cairn_relay *relay = cairn_relay_of(member->job);
    struct cairn_relay_owner *owner = NULL;
    if (relay != NULL) owner = cairn_relay_owner_find(relay, header->tensor - 1);
    if (owner == NULL)
        refuse(member, header, NULL, CAIRN_ERR_STALE, "nothing is relayed to that shard any more");
    return owner;
}

/* How many chunks of the owner the member sends nothing of. */
static uint32_t count_absent(const struct cairn_relay_owner *owner, const uint32_t *tensors,
                             size_t count)
{
    uint64_t absent = 0;
    for (size_t i = 0; i < count; i++) absent += cairn_relay_owner_chunks(owner, tensors[i]);
    return (uint32_t)absent; // at most grad_chunk_count
}

void cairn_relay_on_micro_end(struct cairn_member *member, const struct cairn_chunk_header *header,
                              const uint32_t *tensors, size_t count)
{
    struct cairn_relay_owner *owner = owner_of_end(member, header);
    if (owner == NULL) return;
    struct cairn_relay *relay = owner->relay;
    cairn_relay_busy(relay);
    struct cairn_step_event event = cairn_step_event_of(header);
    event.absent = count_absent(owner, tensors, count);
    cairn_relay_step(owner, &event);
    cairn_relay_idle(relay);
}

void cairn_relay_on_commit(struct cairn_member *member, const struct cairn_chunk_header *header)
{
    struct cairn_relay_owner *owner = owner_of_end(member, header);
    if (owner == NULL) return;
    struct cairn_relay *relay = owner->relay;
    cairn_relay_busy(relay);
    const struct cairn_step_event event = cairn_step_event_of(header);
    cairn_relay_step(owner, &event);
    cairn_relay_idle(relay);
}

static bool is_ours(const struct cairn_relay *relay, uint64_t member)
{
    for (uint32_t i = 0; i < relay->member_count; i++)
        if (relay->members[i] == member) return true;
    return false;
}

bool cairn_relay_on_push(struct cairn_member *member, const struct cairn_chunk_header *header,
                         struct cairn_fabric_message *message)
{
    struct cairn_relay *relay = cairn_relay_of(member->job);
    if (relay == NULL || relay->round == 0 || message == NULL || !is_ours(relay, member->number))
        return false;
    cairn_relay_busy(relay);
    on_push(relay, member, header, message);
    cairn_relay_idle(relay);
    return true;
}
