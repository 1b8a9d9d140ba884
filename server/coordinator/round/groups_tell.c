/* Tells shards of reduce groups, and takes that back. */
#include <sodium.h>
#include <stdlib.h>

#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/round/groups.h"

/* NULL: it is away, and forgets. */
static struct cairn_cluster_session *session_of(const struct cairn_cluster_job *job, uint32_t shard)
{
    const struct cairn_cluster_job_shard *s = &job->shards[shard];
    return s->up && s->seat->session != NULL && !s->seat->session->closing ? s->seat->session
                                                                           : NULL;
}

static bool serves(const struct cairn_cluster_groups *groups, uint32_t relay, uint32_t owner)
{
    return cairn_groups_relay_of(&groups->plan, groups->relays[relay].group, owner) == relay;
}

/* ---- what a shard answers ---- */

/* A MemberJoin or a RelaySet; about the relay's number. Told anew when a shard that went away is back. */
static void on_told(struct cairn_cluster_job *job, const void *about, cairn_status status,
                    const char *why)
{
    if (status != CAIRN_OK && status != CAIRN_ERR_CLOSED)
        (void)cairn_cluster_groups_fault(job, *(const uint64_t *)about, why);
}

/* A question to the shard, of that relay. The request to ask it with; 0: it cannot be asked. */
static uint32_t ask(struct cairn_cluster_job *job, uint32_t shard, uint64_t number,
                    struct cairn_cluster_gather **gather_out)
{
    struct cairn_cluster_gather *gather = cairn_cluster_gather_open_job(job, on_told, &number,
                                                                        sizeof number);
    if (gather == NULL) {
        (void)cairn_cluster_groups_fault(job, number, "the coordinator is out of memory");
        return 0;
    }
    *gather_out = gather;
    return cairn_cluster_gather_ask(gather, job->shards[shard].seat);
}

/* ---- members of the owners ---- */

/* "relay s0 (ranks 0-3)" */
static void name_relay(const struct cairn_cluster_job *job, const struct cairn_group_relay *relay,
                       struct cairn_sentence *out)
{
    uint32_t count;
    const uint32_t *ranks = cairn_rank_groups_at(&job->groups->now, relay->group, &count);
    cairn_sentence_set(out, "relay %s (ranks ", job->shards[relay->shard].seat->name);
    cairn_ranks_add_text(ranks, count, out);
    cairn_sentence_add(out, ")");
}

static void join_at(struct cairn_cluster_job *job, const struct cairn_group_relay *relay,
                    uint32_t owner, char *name)
{
    struct cairn_cluster_session *session = session_of(job, owner);
    const struct cairn_cluster_seat *seat = job->shards[relay->shard].seat;
    if (session == NULL) return;
    struct cairn_cluster_gather *gather = NULL;
    const uint32_t request = ask(job, owner, relay->number, &gather);
    if (gather == NULL) return;
    Cairn__MemberJoin join = CAIRN__MEMBER_JOIN__INIT;
    join.job = job->id;
    join.member = relay->number;
    join.token = relay->token;
    join.rank = *cairn_rank_groups_at(&job->groups->now, relay->group, &(uint32_t) { 0 });
    join.role = CAIRN_ROLE_WIRE_WORKER;
    join.relay = true;
    join.name = name;
    join.fabric_address = (ProtobufCBinaryData) { seat->fabric_address_bytes,
                                                  seat->fabric_address };
    cairn_cluster_session_send(session, CAIRN_MSG_MEMBER_JOIN, request, &join.base);
    cairn_cluster_gather_start(gather);
}

static void leave_at(struct cairn_cluster_job *job, uint64_t number, uint32_t owner)
{
    struct cairn_cluster_session *session = session_of(job, owner);
    Cairn__MemberLeave leave = CAIRN__MEMBER_LEAVE__INIT;
    if (session == NULL || !job->groups->knows[owner]) return;
    leave.job = job->id;
    leave.member = number;
    cairn_cluster_session_send(session, CAIRN_MSG_MEMBER_LEAVE, 0, &leave.base);
}

/* ---- relays ---- */

/* No relay any more, if it may be one. */
static void release_relay(struct cairn_cluster_job *job, uint32_t shard)
{
    struct cairn_cluster_session *session = session_of(job, shard);
    Cairn__RelaySet set = CAIRN__RELAY_SET__INIT;
    if (session == NULL || !job->groups->may_relay[shard]) return;
    set.job = job->id;
    cairn_cluster_session_send(session, CAIRN_MSG_RELAY_SET, 0, &set.base);
    job->groups->may_relay[shard] = false;
}

/* The workers of the relay's group, by rank. Returns how many. */
static size_t list_workers(const struct cairn_cluster_groups *groups, uint32_t group, uint64_t *out)
{
    size_t count = 0;
    for (uint32_t w = 0; w < groups->plan.worker_count; w++)
        if (groups->plan.group_of[w] == group) out[count++] = groups->members[w];
    return count;
}

static size_t list_owners(const struct cairn_cluster_job *job, uint32_t relay,
                          const struct cairn_cluster_shard_infos *infos, Cairn__ShardInfo **out)
{
    size_t count = 0;
    CAIRN_EACH_SHARD (job, i)
        if (serves(job->groups, relay, i)) out[count++] = &infos->infos[i];
    return count;
}

static void send_relay(struct cairn_cluster_job *job, uint32_t shard, const Cairn__RelaySet *set)
{
    struct cairn_cluster_gather *gather = NULL;
    const uint32_t request = ask(job, shard, set->relay, &gather);
    if (gather == NULL) return;
    cairn_cluster_session_send(session_of(job, shard), CAIRN_MSG_RELAY_SET, request, &set->base);
    cairn_cluster_gather_start(gather);
    job->groups->may_relay[shard] = true;
}

static void set_relay(struct cairn_cluster_job *job, uint32_t relay,
                      const struct cairn_cluster_shard_infos *infos)
{
    const struct cairn_cluster_groups *groups = job->groups;
    const struct cairn_group_relay *r = &groups->relays[relay];
    Cairn__RelaySet set = CAIRN__RELAY_SET__INIT;
    if (session_of(job, r->shard) == NULL) return;
    uint64_t *members = calloc(groups->plan.worker_count, sizeof *members);
    Cairn__ShardInfo **owners = calloc(job->shard_count, sizeof *owners);
    if (members != NULL && owners != NULL) {
        set.job = job->id;
        set.relay = r->number;
        set.token = r->token;
        set.members = members;
        set.n_members = list_workers(groups, r->group, members);
        set.owners = owners;
        set.n_owners = list_owners(job, relay, infos, owners);
        send_relay(job, r->shard, &set);
    } else {
        (void)cairn_cluster_groups_fault(job, r->number, "the coordinator is out of memory");
    }
    free(members);
    free(owners);
}

/* ---- all of it ---- */

void cairn_cluster_groups_take_back(struct cairn_cluster_job *job)
{
    struct cairn_cluster_groups *groups = job->groups;
    for (uint32_t r = 0; r < groups->plan.relay_count; r++)
        CAIRN_EACH_SHARD (job, i)
            if (serves(groups, r, i)) leave_at(job, groups->relays[r].number, i);
}

static void tell_owners(struct cairn_cluster_job *job, uint32_t relay)
{
    struct cairn_sentence name;
    name_relay(job, &job->groups->relays[relay], &name);
    name.text[CAIRN_NAME_MAX] = '\0';
    CAIRN_EACH_SHARD (job, i)
        if (serves(job->groups, relay, i)) join_at(job, &job->groups->relays[relay], i, name.text);
}

void cairn_cluster_groups_tell(struct cairn_cluster_job *job)
{
    struct cairn_cluster_groups *groups = job->groups;
    struct cairn_cluster_shard_infos infos;
    CAIRN_EACH_SHARD (job, i) {
        if (groups->relay_of[i] == CAIRN_GROUPS_ALONE) release_relay(job, i);
        groups->knows[i] = session_of(job, i) != NULL;
    }
    if (groups->plan.relay_count == 0) return;
    if (!cairn_cluster_shard_infos_init(&infos, job, job->layout->shard_count)) {
        (void)cairn_cluster_groups_fault(job, groups->relays[0].number,
                                         "the coordinator is out of memory");
        return;
    }
    for (uint32_t r = 0; r < groups->plan.relay_count; r++) {
        // They are drawn, not counted: an incarnation before this one may have given any.
        randombytes_buf(&groups->relays[r].number, sizeof groups->relays[r].number);
        randombytes_buf(&groups->relays[r].token, sizeof groups->relays[r].token);
        groups->relays[r].number |= 1; // never 0
        tell_owners(job, r);
    }
    for (uint32_t r = 0; r < groups->plan.relay_count; r++) set_relay(job, r, &infos);
    cairn_cluster_shard_infos_release(&infos);
}
