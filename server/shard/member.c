/* The members of a job: who they are, and the connections to them.
 *
 * A connection is made when a member joins. When it goes down it is made again with the member's next
 * message, and, if the member was heard on it, after a moment: so a dead worker costs one try, and one that
 * is back is connected by its own HELLO. Not at once: UCX 1.13 aborts when the other end is just dying
 * (tcp_ep.c:478), and when both ends of a broken connection begin anew together (tcp_cm.c:519). By what is
 * made again the member is greeted: so it learns that what was sent on the one before may be lost
 * (proto/wire/chunk.h). By the first one nothing is sent before the member's own HELLO: two that begin to
 * speak at once are what UCX is bad at. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/relay.h"
#include "server/shard/shard.h"

/* In which a killed process is gone whole, and one that lives has spoken first. */
#define AGAIN_MS 40

/* ---- the table: open addressing, a power of two, at most half full ---- */

static size_t home_of(const struct cairn_shard_job *job, uint64_t number)
{
    return (size_t)((number * 0x9e3779b97f4a7c15ull) >> 32) & (job->member_capacity - 1);
}

/* Where the member of that number stands, or would stand. */
static size_t place_of(const struct cairn_shard_job *job, uint64_t number)
{
    size_t i = home_of(job, number);
    while (job->members[i] != NULL && job->members[i]->number != number)
        i = (i + 1) & (job->member_capacity - 1);
    return i;
}

struct cairn_member *cairn_member_find(const struct cairn_shard_job *job, uint64_t number)
{
    return job->member_capacity == 0 ? NULL : job->members[place_of(job, number)];
}

static cairn_status grow(struct cairn_shard_job *job)
{
    if (job->member_count * 2 < job->member_capacity) return CAIRN_OK;
    const size_t old_capacity = job->member_capacity;
    const size_t capacity = old_capacity == 0 ? 16 : old_capacity * 2;
    struct cairn_member **old = job->members;
    struct cairn_member **members = calloc(capacity, sizeof *members);
    if (members == NULL) return CAIRN_ERR_NO_MEMORY;
    job->members = members;
    job->member_capacity = capacity;
    for (size_t i = 0; i < old_capacity; i++) {
        if (old[i] != NULL) job->members[place_of(job, old[i]->number)] = old[i];
    }
    free(old);
    return CAIRN_OK;
}

/* Takes the member out; those behind it in its run may have to move up. */
static void take_out(struct cairn_shard_job *job, const struct cairn_member *member)
{
    size_t i = place_of(job, member->number);
    assert(job->members[i] == member);
    job->members[i] = NULL;
    job->member_count--;
    for (;;) {
        i = (i + 1) & (job->member_capacity - 1);
        struct cairn_member *moved = job->members[i];
        if (moved == NULL) return;
        job->members[i] = NULL;
        job->members[place_of(job, moved->number)] = moved;
    }
}

/* ---- connections ---- */

static void tell_core(struct cairn_member *member, enum cairn_step_event_kind kind)
{
    if (member->role != CAIRN_ROLE_WIRE_WORKER) return;
    cairn_shard_job_step(member->job,
                         &(struct cairn_step_event) { .kind = kind, .member = member->number });
    cairn_relay_on_peer(member, kind);
}

static void on_down(void *arg, struct cairn_fabric_peer *peer, cairn_status why);

uint64_t cairn_member_way(const struct cairn_member *member)
{
    return CAIRN_CHUNK_WAY(member->endpoint, member->connection);
}

static void greet(struct cairn_member *member)
{
    struct cairn_chunk_header hello = { .kind = CAIRN_CHUNK_HELLO,
                                        .request = cairn_member_way(member) };
    cairn_member_send(member, &hello);
}

static void connect_member(struct cairn_member *member)
{
    assert(member->peer == NULL);
    member->heard = member->again = false;
    member->endpoint = ++member->job->shard->endpoints_made;
    cairn_status status = cairn_fabric_connect(member->job->shard->fabric, member->address,
                                               member->address_bytes, on_down, member,
                                               &member->peer);
    if (status != CAIRN_OK) {
        member->peer = NULL;
        cairn_log_limited(&member->refusals, CAIRN_LOG_WARN, "cannot reach %s of job %s: %s",
                          member->name, member->job->spec.name, cairn_status_text((int)status));
        return;
    }
    cairn_published_show(member);
}

/* A new endpoint to a member that was heard: what was sent on the one before may be lost. */
static void connect_again(struct cairn_member *member)
{
    connect_member(member);
    if (member->peer == NULL) return;
    greet(member);
    tell_core(member, CAIRN_STEP_PEER_UP);
}

void cairn_member_down(struct cairn_member *member)
{
    if (member->peer == NULL) return;
    cairn_fabric_peer_close(member->peer);
    member->peer = NULL;
    member->cut = false;
    tell_core(member, CAIRN_STEP_PEER_DOWN);
}

static void on_down(void *arg, struct cairn_fabric_peer *peer, cairn_status why)
{
    struct cairn_member *member = arg;
    assert(peer == member->peer);
    (void)peer;
    cairn_log_info("%s of job %s is gone: %s", member->name, member->job->spec.name,
                   cairn_status_text((int)why));
    const bool again = member->heard;
    cairn_member_down(member);
    if (!again) return;
    member->again = true;
    uv_timer_t *timer = &member->job->shard->again;
    if (!uv_is_active((uv_handle_t *)timer))
        uv_timer_start(timer, cairn_members_connect_again, AGAIN_MS, 0);
}

void cairn_members_connect_again(uv_timer_t *timer)
{
    const struct cairn_shard *shard = timer->data;
    for (struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next) {
        for (size_t i = 0; i < job->member_capacity; i++) {
            struct cairn_member *member = job->members[i];
            if (member == NULL || !member->again) continue;
            member->again = false;
            if (member->peer == NULL) connect_again(member);
        }
    }
}

void cairn_member_heard(struct cairn_member *member)
{
    if (member->peer != NULL) {
        member->heard = true;
        return;
    }
    connect_again(member);
    member->heard = member->peer != NULL;
}

void cairn_member_hello(struct cairn_member *member, uint64_t connection)
{
    const bool connected = member->peer != NULL;
    if (connection > member->connection) member->connection = (uint32_t)connection;
    cairn_member_heard(member);
    if (!connected) return; // it was greeted and told of by the connection that was made
    greet(member);
    tell_core(member, CAIRN_STEP_PEER_UP);
}

/* ---- join and leave ---- */

static void member_free(struct cairn_member *member)
{
    cairn_tiles_forget(member);
    cairn_fabric_peer_close(member->peer);
    free(member);
}

static cairn_status judge_join(const struct cairn_shard_job *job, const Cairn__MemberJoin *message,
                               struct cairn_sentence *why)
{
    if (message->role != CAIRN_ROLE_WIRE_WORKER && message->role != CAIRN_ROLE_WIRE_READER) {
        return cairn_fail(why, CAIRN_ERR_INVALID, "role %u is not worker or reader", message->role);
    }
    if (message->fabric_address.len > CAIRN_FABRIC_ADDRESS_MAX) {
        return cairn_fail(why, CAIRN_ERR_INVALID, "a fabric address of %zu bytes, at most %d",
                          message->fabric_address.len, CAIRN_FABRIC_ADDRESS_MAX);
    }
    if (job->member_count >= CAIRN_SHARD_MEMBERS_MAX) {
        return cairn_fail(why, CAIRN_ERR_BUSY, "job %s has %zu members, the most a shard takes",
                          job->spec.name, job->member_count);
    }
    return CAIRN_OK;
}

/* A new coordinator tells again of members that never left. They keep their endpoints: closing one and
 * making another to the same living worker takes UCX a keepalive round (measured: 16 s without a
 * message between 1.13.1 and itself over tcp). */
static bool is_here(struct cairn_shard_job *job, const Cairn__MemberJoin *message)
{
    struct cairn_member *member = cairn_member_find(job, message->member);
    const bool same = member != NULL && member->peer != NULL && member->token == message->token &&
                      member->rank == message->rank && member->role == message->role &&
                      member->address_bytes == message->fabric_address.len &&
                      memcmp(member->address, message->fabric_address.data,
                             member->address_bytes) == 0;
    if (same) member->told = job->shard->session.serial;
    return same;
}

cairn_status cairn_member_join(struct cairn_shard_job *job, const Cairn__MemberJoin *message,
                               struct cairn_sentence *why)
{
    cairn_status status = judge_join(job, message, why);
    if (status != CAIRN_OK) return status;
    if (is_here(job, message)) return CAIRN_OK;
    const size_t bytes = message->fabric_address.len;
    struct cairn_member *member = calloc(1, sizeof *member + bytes);
    if (member == NULL || grow(job) != CAIRN_OK) {
        free(member);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a member");
    }
    member->job = job;
    member->tiles_hash = CAIRN_TABLE_HASH_WHOLE;
    struct cairn_member *before = cairn_member_find(job, message->member);
    member->bytes.steps_before = job->steps;
    if (before != NULL) {
        cairn_tiles_move(before, member);
        member->bytes = before->bytes;
    }
    cairn_member_leave(job, message->member); // it is replaced
    member->number = message->member;
    member->token = message->token;
    member->told = job->shard->session.serial;
    member->rank = message->rank;
    member->role = message->role;
    member->is_relay = message->relay;
    snprintf(member->name, sizeof member->name, "%s", message->name);
    member->address_bytes = bytes;
    if (bytes > 0) memcpy(member->address, message->fabric_address.data, bytes);
    job->members[place_of(job, member->number)] = member;
    job->member_count++;
    connect_member(member);
    if (member->peer != NULL) tell_core(member, CAIRN_STEP_PEER_UP);
    cairn_log_info("%s %s (rank %u) joined job %s", cairn_role_name(member->role), member->name,
                   member->rank, job->spec.name);
    return CAIRN_OK;
}

void cairn_member_leave(struct cairn_shard_job *job, uint64_t number)
{
    struct cairn_member *member = cairn_member_find(job, number);
    if (member == NULL) return;
    cairn_log_info("%s left job %s", member->name, job->spec.name);
    if (cairn_relay_of(job) != NULL) cairn_relay_fetch_forget(cairn_relay_of(job), number);
    cairn_member_down(member);
    take_out(job, member);
    member_free(member);
}

void cairn_members_forget_untold(struct cairn_shard_job *job)
{
    size_t i = 0;
    while (i < job->member_capacity) {
        const struct cairn_member *member = job->members[i];
        if (member == NULL || member->told == job->shard->session.serial) {
            i++;
            continue;
        }
        cairn_member_leave(job, member->number);
        i = 0; // those behind it moved up
    }
    cairn_admit_left(job);
}

void cairn_members_release(struct cairn_shard_job *job)
{
    for (size_t i = 0; i < job->member_capacity; i++) {
        if (job->members[i] == NULL) continue;
        // A closed fabric has freed the peers.
        if (job->shard->closing) job->members[i]->peer = NULL;
        member_free(job->members[i]);
    }
    free(job->members);
    job->members = NULL;
    job->member_count = job->member_capacity = 0;
}

void cairn_member_unreadable(struct cairn_shard_job *job, uint64_t number)
{
    const struct cairn_member *member = cairn_member_find(job, number);
    struct cairn_sentence why;
    if (member == NULL) return; // it left meanwhile, and its round is void
    cairn_sentence_set(
        &why,
        "the shared memory of %s (rank %u) cannot be read by shard %s: its host has no "
        "page for it (out of memory, or at the limit of its control group); give the "
        "trainer more memory, or touch what cairn_alloc gave before pushing from it",
        member->name, member->rank, job->shard->name);
    cairn_log_error("job %s: %s", job->spec.name, why.text);
    Cairn__MemberFault fault = CAIRN__MEMBER_FAULT__INIT;
    fault.job = job->number;
    fault.member = number;
    fault.text = why.text;
    cairn_session_send(job->shard, CAIRN_MSG_MEMBER_FAULT, 0, &fault.base);
}

/* ---- sending ---- */

void cairn_member_send(struct cairn_member *member, struct cairn_chunk_header *header)
{
    cairn_member_send_for(member, header, member->job->map.shard);
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
    member->job->members_cut = true;
}

void cairn_member_refuse(struct cairn_member *member, const struct cairn_chunk_header *header,
                         cairn_status status)
{
    struct cairn_chunk_header nak = *header;
    nak.kind = CAIRN_CHUNK_NAK;
    nak.value = (uint64_t)status;
    nak.payload_bytes = 0;
    nak.checksum = 0;
    cairn_member_send(member, &nak);
}
