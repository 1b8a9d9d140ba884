/* The connections to the members of a job.
 *
 * A connection is made when a member joins. When it goes down it is made again with the member's
 * next message, and, if the member was heard on it, after a moment: so a dead worker costs one try,
 * and one that is back is connected by its own HELLO. Not at once: UCX 1.13 aborts when the other
 * end is just dying (tcp_ep.c:478), and when both ends of a broken connection begin anew together
 * (tcp_cm.c:519). On a connection that is made again the shard greets the member, which so learns
 * that messages on the connection before may be lost (proto/wire/chunk.h). On the first connection
 * the shard sends nothing before the member's own HELLO, since UCX is bad at two ends that begin to
 * speak at once. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/fabric/where.h"
#include "server/shard/job/admit.h"
#include "server/shard/job/members.h"
#include "server/shard/job/own.h"
#include "server/shard/relay/fetch.h"
#include "server/shard/relay/relay.h"
#include "server/shard/shard.h"

/* In which a killed process is gone whole, and one that lives has spoken first. */
#define AGAIN_MS 40

/* ---- connections ---- */

static void tell_core(struct cairn_member *member, enum cairn_step_event_kind kind)
{
    if (member->role != CAIRN_ROLE_WIRE_WORKER) return;
    cairn_own_step(member->job,
                   &(struct cairn_step_event) { .kind = kind, .member = member->number });
    cairn_relay_on_peer(member, kind);
}

static void on_down(void *arg, struct cairn_fabric_peer *peer, cairn_status why);

static void greet(struct cairn_member *member)
{
    struct cairn_chunk_header hello = { .kind = CAIRN_CHUNK_HELLO,
                                        .request = cairn_member_way(member),
                                        .value = CAIRN_CHUNK_UNSUMMED };
    cairn_member_send(member, &hello);
}

static void say_unreachable(struct cairn_member *member, cairn_status status)
{
    char here[CAIRN_PLACE_BYTES], there[CAIRN_PLACE_BYTES];
    size_t bytes;
    if (status == CAIRN_ERR_NO_MEMORY) {
        cairn_log_limited(
            &member->refusals, CAIRN_LOG_WARN,
            "no memory to connect to %s of job %s: raise the limits of this process (ulimit "
            "-v, memory.max, vm.max_map_count); tried again when it speaks",
            member->name, member->job->spec.name);
        return;
    }
    const void *address = cairn_fabric_address(member->job->shard->fabric, &bytes);
    cairn_fabric_address_print_places(address, bytes, here);
    cairn_fabric_address_print_places(member->address, member->address_bytes, there);
    const bool is_networked = here[0] != '\0' && there[0] != '\0';
    cairn_log_limited(&member->refusals, CAIRN_LOG_WARN,
                      "cannot reach %s of job %s, from here (%s) to it (%s): %s; if it runs, %s "
                      "set fabric.device here and CAIRN_FABRIC_DEVICE there to devices of one "
                      "network",
                      member->name, member->job->spec.name, here[0] != '\0' ? here : "no network",
                      there[0] != '\0' ? there : "no network", cairn_status_text((int)status),
                      is_networked ? "look for a firewall on the way, in both directions, or"
                                   : "and is on another host,");
}

static void connect_member(struct cairn_member *member)
{
    assert(member->peer == NULL);
    member->heard = member->again = false;
    member->endpoint = ++member->job->shard->connects.made;
    const cairn_status status = cairn_fabric_connect(member->job->shard->fabric, member->address,
                                                     member->address_bytes, on_down, member,
                                                     &member->peer);
    if (status != CAIRN_OK) {
        member->peer = NULL;
        say_unreachable(member, status);
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

/* shard->connects.again: connects members that went down and have not spoken since. */
static void on_again(uv_timer_t *timer)
{
    const struct cairn_shard *shard = timer->data;
    for (struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next) {
        for (size_t i = 0; i < job->members.capacity; i++) {
            struct cairn_member *member = job->members.list[i];
            if (member == NULL || !member->again) continue;
            member->again = false;
            if (member->peer == NULL) connect_again(member);
        }
    }
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
    uv_timer_t *timer = &member->job->shard->connects.again;
    if (!uv_is_active((uv_handle_t *)timer)) uv_timer_start(timer, on_again, AGAIN_MS, 0);
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
    cairn_reply_forget(member);
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
    if (job->members.count >= CAIRN_SHARD_MEMBERS_MAX) {
        return cairn_fail(why, CAIRN_ERR_BUSY, "job %s has %zu members, the most a shard takes",
                          job->spec.name, job->members.count);
    }
    return CAIRN_OK;
}

/* A new coordinator tells again of members that never left. They keep their connections, and what is under
 * way on these goes on. */
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
    if (member == NULL || cairn_members_make_room(job) != CAIRN_OK) {
        free(member);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a member");
    }
    member->job = job;
    member->tiles_hash = CAIRN_TABLE_HASH_WHOLE;
    struct cairn_member *before = cairn_member_find(job, message->member);
    member->bytes.steps = job->bytes.steps;
    if (before != NULL) {
        cairn_tiles_move(before, member);
        if (before->role == message->role) cairn_reply_move(before, member);
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
    cairn_members_add(job, member);
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
    cairn_members_take_out(job, member);
    member_free(member);
}

void cairn_members_forget_untold(struct cairn_shard_job *job)
{
    size_t i = 0;
    while (i < job->members.capacity) {
        const struct cairn_member *member = job->members.list[i];
        if (member == NULL || member->is_mover || member->told == job->shard->session.serial) {
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
    for (size_t i = 0; i < job->members.capacity; i++) {
        if (job->members.list[i] == NULL) continue;
        // A closed fabric has freed the peers.
        if (job->shard->closing) job->members.list[i]->peer = NULL;
        member_free(job->members.list[i]);
    }
    free(job->members.list);
    job->members.list = NULL;
    job->members.count = job->members.capacity = 0;
}
