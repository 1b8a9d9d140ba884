/* What comes from the fabric: judged, then told to the core, or to those who put and fetch.
 *
 * A header is nobody's until its job, member and token agree; such strangers are dropped and counted.
 * What a member sends and is not right is answered by a NAK. Nothing is received before it is judged, so
 * a wrong message changes nothing. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/capability.h"
#include "server/shard/relay.h"
#include "server/shard/shard.h"

static void drop(struct cairn_fabric_message *message)
{
    if (message != NULL) cairn_fabric_drop(message);
}

/* ---- contributions ---- */

cairn_status cairn_landing_judge_push(const struct cairn_member *member,
                                      const struct cairn_chunk_header *header, uint32_t *chunk_out,
                                      struct cairn_piece *piece_out, struct cairn_sentence *why)
{
    const struct cairn_shard_job *job = member->job;
    if (header->tensor >= job->spec.tensor_count) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "tensor %u of %zu", header->tensor,
                          job->spec.tensor_count);
    }
    const struct cairn_tensor_spec *tensor = &job->spec.tensors[header->tensor];
    if (tensor->kind != CAIRN_TRAINED) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "tensor %s is %s: it takes no gradient",
                          tensor->name,
                          cairn_capability_name(CAIRN_CAPABILITY_KIND, (int)tensor->kind));
    }
    if (header->dtype != CAIRN_F32 && header->dtype != CAIRN_BF16) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED,
                          "tensor %s: a contribution in %s, not f32 or bf16", tensor->name,
                          cairn_dtype_name(header->dtype));
    }
    uint64_t chunk;
    cairn_status status = cairn_shard_map_chunk_number(
        &job->map, header->tensor, header->first_leaf, header->leaf_count, &chunk);
    if (status != CAIRN_OK) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED,
                          "tensor %s: leaves %llu + %u are not a chunk of shard %s", tensor->name,
                          (unsigned long long)header->first_leaf, header->leaf_count,
                          job->shard->name);
    }
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->map, chunk);
    status = cairn_tiles_piece(member, header, chunk, &place, piece_out, why);
    if (status != CAIRN_OK) return status;
    const uint64_t bytes = piece_out->count * cairn_dtype_bytes(header->dtype);
    if (header->payload_bytes != bytes) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "tensor %s: a payload of %llu bytes, not %llu",
                          tensor->name, (unsigned long long)header->payload_bytes,
                          (unsigned long long)bytes);
    }
    const uint32_t part = job->chunk_part[chunk];
    if (header->round == job->frozen_round && job->frozen[job->parts[part].group]) {
        return cairn_fail(why, CAIRN_ERR_REFUSED,
                          "tensor %s: its group %s is frozen in round %llu and takes no gradient",
                          tensor->name, tensor->group, (unsigned long long)header->round);
    }
    if (header->round == job->frozen_round && job->frozen_tensors[header->tensor]) {
        return cairn_fail(why, CAIRN_ERR_REFUSED,
                          "tensor %s is frozen in round %llu and takes no gradient", tensor->name,
                          (unsigned long long)header->round);
    }
    *chunk_out = (uint32_t)(job->parts[part].grad_chunk +
                            (chunk - job->map.extents[part].first_chunk));
    return CAIRN_OK;
}

static void note_refusal(struct cairn_member *member, const struct cairn_chunk_header *header,
                         const char *why)
{
    member->job->shard->stats.chunks_refused++;
    cairn_log_limited(&member->refusals, CAIRN_LOG_WARN, "refused %s of job %s from %s: %s",
                      cairn_chunk_kind_name(header->kind), member->job->spec.name, member->name,
                      why);
}

static void refuse(struct cairn_member *member, const struct cairn_chunk_header *header,
                   cairn_status status, const char *why)
{
    note_refusal(member, header, why);
    cairn_member_refuse(member, header, status);
}

static void on_push(struct cairn_member *member, const struct cairn_chunk_header *header,
                    struct cairn_fabric_message *message)
{
    struct cairn_shard_job *job = member->job;
    struct cairn_sentence why;
    struct cairn_piece piece;
    uint32_t chunk;
    if (cairn_relay_on_push(member, header, message)) return;
    cairn_status status = cairn_landing_judge_push(member, header, &chunk, &piece, &why);
    if (status != CAIRN_OK) {
        refuse(member, header, status, why.text);
        drop(message);
        return;
    }
    job->waiting = message;
    job->waiting_header = *header;
    job->waiting_piece = piece;
    struct cairn_step_event event = cairn_step_event_of(header);
    event.chunk = chunk;
    cairn_shard_job_step(job, &event);
    cairn_landing_discard(job); // if a fault came before the core's word
}

void cairn_landing_discard(struct cairn_shard_job *job)
{
    drop(job->waiting);
    job->waiting = NULL;
}

static void slot_landed(struct cairn_slot *slot, cairn_status status)
{
    struct cairn_shard_job *job = slot->job;
    if (status != CAIRN_OK && status != CAIRN_ERR_CHECKSUM) {
        // The worker is not answered, so its connection must be lost if it is not.
        struct cairn_member *member = cairn_member_find(job, slot->member);
        if (member != NULL && member->peer != NULL && status != CAIRN_ERR_CLOSED) {
            member->cut = job->members_cut = true;
        }
        status = CAIRN_ERR_CLOSED;
    }
    slot->status = status;
    slot->next_landed = job->landed;
    job->landed = slot;
}

static void on_landed(void *arg, cairn_status status)
{
    struct cairn_slot *slot = arg;
    struct cairn_shard_job *job = slot->job;
    const uint8_t *payload = job->landing.base + (size_t)(slot - job->slots) * job->slot_bytes;
    if (status == CAIRN_OK) {
        cairn_bytes_pushed(job, slot->member, slot->payload_bytes, slot->way);
        if (cairn_chunk_checksum(payload, slot->payload_bytes) != slot->checksum)
            status = CAIRN_ERR_CHECKSUM;
    }
    slot_landed(slot, status);
    cairn_shard_job_settle(job);
    cairn_shard_job_idle(job);
}

void cairn_landing_release(struct cairn_slot *slot)
{
    // The fabric of a shard that is closed has dropped its messages.
    if (slot->message != NULL && !slot->job->shard->closing) cairn_fabric_drop(slot->message);
    slot->message = NULL;
    slot->view = NULL;
}

void cairn_landing_release_all(struct cairn_shard_job *job)
{
    for (uint32_t i = 0; i < job->slot_count; i++)
        if (job->slots[i].message != NULL && !job->slots[i].folding)
            cairn_landing_release(&job->slots[i]);
}

/* The payload is read where it lies: there is nothing to wait for, and no way on which it was damaged. */
static void land_view(struct cairn_slot *slot, struct cairn_fabric_message *message)
{
    slot->message = message;
    slot->view = cairn_fabric_message_view(message);
    cairn_bytes_pushed(slot->job, slot->member, slot->payload_bytes, CAIRN_WAY_SHARED);
    slot_landed(slot, CAIRN_OK); // told to the core when its actions are done
}

void cairn_landing_receive(struct cairn_shard_job *job, uint32_t number, uint32_t chunk)
{
    struct cairn_slot *slot = &job->slots[number];
    struct cairn_fabric_message *message = job->waiting;
    const struct cairn_chunk_header *header = &job->waiting_header;
    assert(message != NULL && number < job->slot_count && slot->message == NULL);
    assert(header->payload_bytes <= job->slot_bytes);
    job->waiting = NULL;
    slot->chunk = chunk;
    slot->piece = job->waiting_piece;
    slot->member = header->member;
    slot->dtype = (cairn_dtype)header->dtype;
    slot->payload_bytes = (size_t)header->payload_bytes;
    slot->checksum = header->checksum;
    slot->way = cairn_way_of(cairn_fabric_message_path(message));
    if (cairn_fabric_message_view(message) != NULL) {
        land_view(slot, message);
        return;
    }
    cairn_status status = cairn_fabric_receive(message,
                                               job->landing.base + (size_t)number * job->slot_bytes,
                                               job->slot_bytes, on_landed, slot);
    if (status == CAIRN_OK) {
        cairn_shard_job_busy(job);
        return;
    }
    cairn_fabric_drop(message);
    slot_landed(slot, status); // told to the core when its actions are done
}

/* ---- ends of micro-batches ---- */

/* In the name of the shard that it is meant for. */
static void refuse_end(struct cairn_member *member, const struct cairn_chunk_header *header,
                       cairn_status status, const char *why)
{
    const struct cairn_shard_job *job = member->job;
    note_refusal(member, header, why);
    struct cairn_chunk_header nak = *header;
    nak.kind = CAIRN_CHUNK_NAK;
    nak.value = (uint64_t)status;
    nak.payload_bytes = nak.checksum = 0;
    cairn_member_send_for(member, &nak, header->tensor != 0 ? header->tensor - 1 : job->map.shard);
}

/* A micro-batch's end whose list of untouched tensors is being received. */
struct note {
    struct cairn_shard_job *job; /* borrowed */
    struct cairn_chunk_header header;
    size_t count;
    uint32_t tensors[]; /* [count] */
};

/* How many chunks here the member sends nothing of: those of the listed tensors, and those that it holds
 * nothing of. False if the list is not ascending, or names a tensor that takes no gradient. */
static bool count_absent(const struct cairn_member *member, const uint32_t *tensors, size_t count,
                         uint32_t *absent_out)
{
    const struct cairn_shard_job *job = member->job;
    uint64_t absent = member->untouched;
    for (size_t i = 0; i < count; i++) {
        if (tensors[i] >= job->spec.tensor_count) return false;
        if (i > 0 && tensors[i] <= tensors[i - 1]) return false;
        if (job->spec.tensors[tensors[i]].kind != CAIRN_TRAINED) return false;
        absent += cairn_tiles_touched(member, tensors[i]);
    }
    *absent_out = (uint32_t)absent; // at most grad_chunk_count
    return true;
}

static void tell_micro_end(struct cairn_member *member, const struct cairn_chunk_header *header,
                           const uint32_t *tensors, size_t count, uint32_t absent)
{
    if (header->tensor != 0) { // of the shard of that index
        cairn_relay_on_micro_end(member, header, tensors, count);
        return;
    }
    struct cairn_step_event event = cairn_step_event_of(header);
    event.absent = absent;
    cairn_shard_job_step(member->job, &event);
}

static void on_note(void *arg, cairn_status status)
{
    struct note *note = arg;
    struct cairn_shard_job *job = note->job;
    const struct cairn_chunk_header *header = &note->header;
    struct cairn_member *member = cairn_member_find(job, header->member);
    if (member != NULL && member->notes > 0) member->notes--;
    if (status == CAIRN_OK && member != NULL && job->state == CAIRN_JOB_SERVING) {
        uint32_t absent;
        if (cairn_chunk_checksum(note->tensors, (size_t)header->payload_bytes) != header->checksum)
            refuse_end(member, header, CAIRN_ERR_CHECKSUM, "its checksum does not match");
        else if (!count_absent(member, note->tensors, note->count, &absent))
            refuse_end(member, header, CAIRN_ERR_MALFORMED,
                       "its list of untouched tensors is wrong");
        else
            tell_micro_end(member, header, note->tensors, note->count, absent);
    }
    free(note);
    cairn_shard_job_settle(job);
    cairn_shard_job_idle(job);
}

static void receive_note(struct cairn_member *member, const struct cairn_chunk_header *header,
                         struct cairn_fabric_message *message)
{
    const size_t bytes = (size_t)header->payload_bytes;
    struct note *note = NULL;
    if (member->notes < CAIRN_SHARD_NOTES_MAX) note = malloc(sizeof *note + bytes);
    if (note == NULL) {
        refuse_end(member, header, CAIRN_ERR_BUSY, "too many ends at a time");
        drop(message);
        return;
    }
    note->job = member->job;
    note->header = *header;
    note->count = bytes / sizeof *note->tensors;
    cairn_status status = cairn_fabric_receive(message, note->tensors, bytes, on_note, note);
    if (status != CAIRN_OK) {
        refuse_end(member, header, CAIRN_ERR_BUSY, cairn_status_text((int)status));
        drop(message);
        free(note);
        return;
    }
    member->notes++;
    cairn_shard_job_busy(member->job);
}

static void on_micro_end(struct cairn_member *member, const struct cairn_chunk_header *header,
                         struct cairn_fabric_message *message)
{
    const uint64_t bytes_max = member->job->spec.tensor_count * sizeof(uint32_t);
    if (header->value > UINT32_MAX || header->payload_bytes > bytes_max ||
        header->payload_bytes % sizeof(uint32_t) != 0) {
        refuse_end(member, header, CAIRN_ERR_MALFORMED, "its count or its list is too long");
        drop(message);
    } else if (message != NULL) {
        receive_note(member, header, message);
    } else {
        tell_micro_end(member, header, NULL, 0, (uint32_t)member->untouched);
    }
}

static void on_commit(struct cairn_member *member, const struct cairn_chunk_header *header)
{
    if (header->tensor != 0) {
        cairn_relay_on_commit(member, header);
        return;
    }
    const struct cairn_step_event event = cairn_step_event_of(header);
    cairn_shard_job_step(member->job, &event);
}

/* ---- all messages ---- */

static void on_round_message(struct cairn_member *member, const struct cairn_chunk_header *header,
                             struct cairn_fabric_message *message)
{
    if (member->role != CAIRN_ROLE_WIRE_WORKER) {
        refuse(member, header, CAIRN_ERR_REFUSED, "a reader only fetches");
    } else if (header->kind == CAIRN_CHUNK_PUT) {
        cairn_put_on_message(member, header, message);
        return;
    } else if (member->job->state != CAIRN_JOB_SERVING) {
        refuse(member, header, CAIRN_ERR_NOT_READY, "the job is not ready");
    } else if (header->kind == CAIRN_CHUNK_PUSH) {
        on_push(member, header, message);
        return;
    } else if (header->kind == CAIRN_CHUNK_MICRO_END) {
        on_micro_end(member, header, message);
        return;
    } else {
        on_commit(member, header);
    }
    drop(message);
}

static void on_member_message(struct cairn_member *member, const struct cairn_chunk_header *header,
                              struct cairn_fabric_message *message)
{
    if (header->kind == CAIRN_CHUNK_HELLO) {
        cairn_member_hello(member, header->request);
        drop(message);
        return;
    }
    cairn_member_heard(member);
    switch (header->kind) {
    case CAIRN_CHUNK_PUSH:
    case CAIRN_CHUNK_PUT:
    case CAIRN_CHUNK_MICRO_END:
    case CAIRN_CHUNK_COMMIT: on_round_message(member, header, message); return;
    case CAIRN_CHUNK_FETCH: cairn_fetch_on_message(member, header, message); return;
    default: refuse(member, header, CAIRN_ERR_PROTOCOL, "it is not for a shard");
    }
    drop(message);
}

/* Whose message it is; NULL if nobody's. */
static struct cairn_member *find_sender(struct cairn_shard *shard,
                                        const struct cairn_chunk_header *header)
{
    struct cairn_shard_job *job = cairn_shard_job_find(shard, header->job);
    if (job == NULL || job->state == CAIRN_JOB_FAULTED) return NULL;
    struct cairn_member *member = cairn_member_find(job, header->member);
    return member != NULL && member->token == header->token ? member : NULL;
}

void cairn_landing_on_message(void *arg, const void *header_bytes, size_t header_size,
                              size_t payload_bytes, struct cairn_fabric_message *message)
{
    struct cairn_shard *shard = arg;
    struct cairn_chunk_header header;
    cairn_status status = cairn_chunk_decode(header_bytes, header_size, payload_bytes, &header);
    struct cairn_member *member = NULL;
    if (status == CAIRN_OK && cairn_relay_on_message(shard, &header, message)) return;
    if (status == CAIRN_OK) member = find_sender(shard, &header);
    if (member == NULL) {
        shard->stats.chunks_refused++;
        cairn_log_limited(&shard->strangers, CAIRN_LOG_WARN,
                          "dropped a message of %zu + %zu bytes: %s", header_size, payload_bytes,
                          status == CAIRN_OK ? "no member has that job, session and token"
                                             : cairn_status_text((int)status));
        drop(message);
        return;
    }
    struct cairn_shard_job *job = member->job;
    cairn_shard_job_busy(job);
    on_member_message(member, &header, message);
    cairn_shard_job_idle(job);
}
