/* The members of a job: the table of them, and what is sent to one. */
#include <assert.h>
#include <stdlib.h>

#include "server/shard/shard.h"

/* ---- the table: open addressing, a power of two, at most half full ---- */

static size_t home_of(const struct cairn_shard_job *job, uint64_t number)
{
    return (size_t)((number * 0x9e3779b97f4a7c15ull) >> 32) & (job->members.capacity - 1);
}

/* Where the member of that number stands, or would stand. */
static size_t place_of(const struct cairn_shard_job *job, uint64_t number)
{
    size_t i = home_of(job, number);
    while (job->members.list[i] != NULL && job->members.list[i]->number != number)
        i = (i + 1) & (job->members.capacity - 1);
    return i;
}

struct cairn_member *cairn_member_find(const struct cairn_shard_job *job, uint64_t number)
{
    return job->members.capacity == 0 ? NULL : job->members.list[place_of(job, number)];
}

cairn_status cairn_members_make_room(struct cairn_shard_job *job)
{
    if (job->members.count * 2 < job->members.capacity) return CAIRN_OK;
    const size_t old_capacity = job->members.capacity;
    const size_t capacity = old_capacity == 0 ? 16 : old_capacity * 2;
    struct cairn_member **old = job->members.list;
    struct cairn_member **members = calloc(capacity, sizeof *members);
    if (members == NULL) return CAIRN_ERR_NO_MEMORY;
    job->members.list = members;
    job->members.capacity = capacity;
    for (size_t i = 0; i < old_capacity; i++) {
        if (old[i] != NULL) job->members.list[place_of(job, old[i]->number)] = old[i];
    }
    free(old);
    return CAIRN_OK;
}

void cairn_members_add(struct cairn_shard_job *job, struct cairn_member *member)
{
    job->members.list[place_of(job, member->number)] = member;
    job->members.count++;
}

/* Takes the member out of the hash table. The members behind it in its run may have to move up, so
 * that a search still finds them. */
void cairn_members_take_out(struct cairn_shard_job *job, const struct cairn_member *member)
{
    size_t i = place_of(job, member->number);
    assert(job->members.list[i] == member);
    job->members.list[i] = NULL;
    job->members.count--;
    for (;;) {
        i = (i + 1) & (job->members.capacity - 1);
        struct cairn_member *moved = job->members.list[i];
        if (moved == NULL) return;
        job->members.list[i] = NULL;
        job->members.list[place_of(job, moved->number)] = moved;
    }
}

/* ---- sending ---- */

uint64_t cairn_member_way(const struct cairn_member *member)
{
    return CAIRN_CHUNK_WAY(member->endpoint, member->connection);
}

void cairn_member_cut(struct cairn_shard_job *job, uint64_t number)
{
    struct cairn_member *member = cairn_member_find(job, number);
    if (member != NULL && member->peer != NULL) member->cut = job->members.cut = true;
}

void cairn_member_send(struct cairn_member *member, struct cairn_chunk_header *header)
{
    cairn_member_send_for(member, header, member->job->view->table.map.shard);
}

void cairn_member_send_for(struct cairn_member *member, struct cairn_chunk_header *header,
                           uint32_t shard)
{
    if (member->peer == NULL || member->cut) return;
    header->job = member->job->number;
    header->member = member->number;
    header->token = member->token;
    header->tile = shard; // who speaks, see proto/wire/chunk.h
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    cairn_chunk_encode(header, bytes);
    cairn_status status = cairn_fabric_send(member->peer, bytes, sizeof bytes, NULL, 0, NULL, NULL);
    if (status == CAIRN_OK || status == CAIRN_ERR_CLOSED) return;
    // An answer that is left out would be waited for: the connection is the unit of loss.
    cairn_log_limited(&member->refusals, CAIRN_LOG_WARN, "cutting %s of job %s: %s", member->name,
                      member->job->spec.name, cairn_status_text((int)status));
    member->cut = true;
    member->job->members.cut = true;
}

void cairn_member_refuse(struct cairn_member *member, const struct cairn_chunk_header *header,
                         cairn_status status)
{
    cairn_member_refuse_for(member, header, status, member->job->view->table.map.shard);
}

void cairn_member_refuse_for(struct cairn_member *member, const struct cairn_chunk_header *header,
                             cairn_status status, uint32_t shard)
{
    struct cairn_chunk_header nak = *header;
    nak.kind = CAIRN_CHUNK_NAK;
    nak.value = (uint64_t)status;
    nak.payload_bytes = nak.checksum = 0;
    cairn_member_send_for(member, &nak, shard);
}

void cairn_member_note_refusal(struct cairn_member *member, const struct cairn_chunk_header *header,
                               const char *why)
{
    member->job->shard->stats.chunks_refused++;
    cairn_log_limited(&member->refusals, CAIRN_LOG_WARN, "refused %s of job %s from %s: %s",
                      cairn_chunk_kind_name(header->kind), member->job->spec.name, member->name,
                      why);
}

void cairn_member_unreadable(struct cairn_shard_job *job, uint64_t number)
{
    const struct cairn_member *member = cairn_member_find(job, number);
    struct cairn_sentence why;
    if (member == NULL) return; // it left meanwhile, and its round is void
    cairn_sentence_set(
        &why,
        "the shared memory of %s (rank %u) cannot be read by shard %s: its host has no page for it "
        "(out of memory, or at the limit of its control group); give the trainer more memory, or "
        "touch what cairn_alloc gave before pushing from it",
        member->name, member->rank, job->shard->name);
    cairn_log_error("job %s: %s", job->spec.name, why.text);
    Cairn__MemberFault fault = CAIRN__MEMBER_FAULT__INIT;
    fault.job = job->number;
    fault.member = number;
    fault.text = why.text;
    cairn_session_send(job->shard, CAIRN_MSG_MEMBER_FAULT, 0, &fault.base);
}
