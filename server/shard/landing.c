/* Messages from the fabric: each is judged, then told to the core, or to the functions that put and
 * fetch.
 *
 * A header belongs to no member until its job, member and token agree; a stranger's message is
 * dropped and counted. A member's wrong message is answered by a NAK. Nothing is received before it
 * is judged, so a wrong message changes nothing. */
#include <stdlib.h>

#include "server/shard/job/members.h"
#include "server/shard/job/own.h"
#include "server/shard/landing.h"
#include "server/shard/move/take.h"
#include "server/shard/read/fetch.h"
#include "server/shard/relay/relay.h"
#include "server/shard/shard.h"

/* ---- contributions ---- */

static void refuse(struct cairn_member *member, const struct cairn_chunk_header *header,
                   cairn_status status, const char *why)
{
    cairn_member_note_refusal(member, header, why);
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
    cairn_status status = cairn_collector_judge(&job->collector, member, header, &chunk, &piece,
                                                &why);
    if (status != CAIRN_OK) {
        refuse(member, header, status, why.text);
        cairn_fabric_drop(message);
        return;
    }
    cairn_collector_push(&job->collector, header, chunk, &piece, message);
    cairn_shard_job_settle(job);
}

/* ---- ends of micro-batches ---- */

/* In the name of the shard that it is meant for. */
static void refuse_end(struct cairn_member *member, const struct cairn_chunk_header *header,
                       cairn_status status, const char *why)
{
    const struct cairn_shard_job *job = member->job;
    cairn_member_note_refusal(member, header, why);
    cairn_member_refuse_for(member, header, status,
                            header->tensor != 0 ? header->tensor - 1 : job->view->table.map.shard);
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
    *absent_out = (uint32_t)absent; // at most table.trained_count
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
    cairn_own_step(member->job, &event);
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
        cairn_fabric_drop(message);
        return;
    }
    note->job = member->job;
    note->header = *header;
    note->count = bytes / sizeof *note->tensors;
    cairn_status status = cairn_fabric_receive(message, note->tensors, bytes, on_note, note);
    if (status != CAIRN_OK) {
        refuse_end(member, header, CAIRN_ERR_BUSY, cairn_status_text((int)status));
        cairn_fabric_drop(message);
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
        cairn_fabric_drop(message);
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
    cairn_own_step(member->job, &event);
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
    cairn_fabric_drop(message);
}

/* The chunk is of another shard's part. */
static bool is_of_another(const struct cairn_member *member,
                          const struct cairn_chunk_header *header)
{
    return !cairn_fetch_is_here(member, header) &&
           cairn_layout_find(member->job->view->layout, header->tensor, header->first_leaf) != NULL;
}

static void on_member_message(struct cairn_member *member, const struct cairn_chunk_header *header,
                              struct cairn_fabric_message *message)
{
    if (header->kind == CAIRN_CHUNK_HELLO) {
        cairn_member_hello(member, header->request);
        cairn_fabric_drop(message);
        return;
    }
    cairn_member_heard(member);
    switch (header->kind) {
    case CAIRN_CHUNK_PUSH:
    case CAIRN_CHUNK_PUT:
    case CAIRN_CHUNK_MICRO_END:
    case CAIRN_CHUNK_COMMIT: on_round_message(member, header, message); return;
    case CAIRN_CHUNK_FETCH:
        if (is_of_another(member, header))
            cairn_relay_fetch(member, header, message);
        else
            cairn_fetch_on_message(member, header, message);
        return;
    default: refuse(member, header, CAIRN_ERR_PROTOCOL, "it is not for a shard");
    }
    cairn_fabric_drop(message);
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
    if (status == CAIRN_OK && cairn_take_on_message(shard, &header, message)) return;
    if (status == CAIRN_OK) member = find_sender(shard, &header);
    if (member == NULL) {
        shard->stats.chunks_refused++;
        cairn_log_limited(&shard->strangers, CAIRN_LOG_WARN,
                          "dropped a message of %zu + %zu bytes: %s", header_size, payload_bytes,
                          status == CAIRN_OK ? "no member has that job, session and token"
                                             : cairn_status_text((int)status));
        cairn_fabric_drop(message);
        return;
    }
    struct cairn_shard_job *job = member->job;
    cairn_shard_job_busy(job);
    on_member_message(member, &header, message);
    cairn_shard_job_idle(job);
}
