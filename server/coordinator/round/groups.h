/* Reduce groups: the workers of a host contribute together, through shards of their host
 * (the shard's side is server/shard/relay/relay.h).
 *
 * If a job's spec says so, a round of steps is opened in groups: a host with two or more
 * contributors and a shard of the job is a group, and its shards are the relays; every other worker
 * contributes by itself. Each relay serves some owners: itself, and those shards of other hosts
 * whose index falls to it. An owner is told of its relays as of workers (MemberJoin: one member a
 * relay, whose rank is the group's least), and a relay is told of its workers and owners
 * (RelaySet). Then comes RoundOpen, made for each shard: its contributors, by least rank, are the
 * relays that serve it and the workers that are alone. Workers are told nothing.
 *
 * Shards keep these groups for the rounds that follow, until a contributor or a shard comes or
 * goes. Then the groups are formed again, and if they are others, or a shard has forgotten them,
 * all of it is taken back and told anew, with new numbers. Relays are no members of the job: they
 * are not counted, leased or stored, and a new incarnation forms its own.
 *
 * The bits of a step depend on the groups, so they are logged when they change, shown, and stand
 * in the manifest of a snapshot. */
#ifndef CAIRN_COORDINATOR_ROUND_GROUPS_H
#define CAIRN_COORDINATOR_ROUND_GROUPS_H

#include "proto/spec/rank_groups.h"
#include "server/coordinator/base/names.h"

/* ---- groups_form.c: pure ---- */

#define CAIRN_GROUPS_ALONE UINT32_MAX

struct cairn_groups_plan {
    /* owned: freed by cairn_groups_plan_release */
    uint32_t *group_of; /* [worker_count] groups are numbered by their least rank */
    uint32_t *first;    /* [group_count] its worker of least rank */
    uint32_t *relays;   /* [relay_count] shards, ascending in a group, group behind group */
    uint32_t *ends;     /* [group_count] of each group's relays, one behind its last; none: alone */
    uint32_t worker_count, group_count, relay_count;
};

/* Contributors by rank and shards, each by the name of its host ("": not known, or a shard that is away).
 * CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_groups_plan_make(const char *const *worker_hosts, uint32_t worker_count,
                                    const char *const *shard_hosts, uint32_t shard_count,
                                    struct cairn_groups_plan *plan_out) CAIRN_MUST_CHECK;
void cairn_groups_plan_release(struct cairn_groups_plan *plan);
bool cairn_groups_plan_equal(const struct cairn_groups_plan *a, const struct cairn_groups_plan *b);
/* Which of plan->relays serves the owner in that group; CAIRN_GROUPS_ALONE: its worker does. */
uint32_t cairn_groups_relay_of(const struct cairn_groups_plan *plan, uint32_t group,
                               uint32_t owner);

/* ---- what a job keeps of them ---- */

struct cairn_group_relay {
    uint64_t number, token; /* as a member of owners */
    uint32_t shard, group;
};

struct cairn_cluster_groups {
    /* owned: of the last round of steps that opened */
    uint64_t *members; /* [plan.worker_count] by rank */
    struct cairn_groups_plan plan;
    struct cairn_group_relay *relays; /* [plan.relay_count], as plan.relays */
    uint32_t *relay_of; /* [shard_room] place in relays; CAIRN_GROUPS_ALONE: it does not relay */
    char **names;       /* [now.group_count] "s0, s1"; NULL: not known, or no relay */
    uint64_t *opened;   /* [plan.group_count] for cairn_cluster_groups_fill */
    /* owned: who is added up together; before: in the last step that others than `now` made */
    struct cairn_rank_groups now, before;
    bool made_step; /* `now` made the last one */
    /* owned: of shards */
    bool *knows;     /* [shard_room] its connection is the one on which it was told */
    bool *may_relay; /* [shard_room] it may have a RelaySet, of this incarnation or another */

    bool stale;                    /* somebody went: look again */
    bool tiled;                    /* the workers held tiles */
    struct cairn_sentence refused; /* by a shard: no groups; empty: none did */
    struct cairn_sentence off;     /* why there are none; empty: there are */
    struct cairn_sentence told;    /* of the last log line */
};

/* ---- groups_tell.c ---- */
/* The owners forget the relays. */
void cairn_cluster_groups_take_back(struct cairn_cluster_job *job);
/* Gives the relays numbers, and tells owners and relays; whoever may relay and is none is told that. */
void cairn_cluster_groups_tell(struct cairn_cluster_job *job);

/* ---- groups.c ---- */

/* A job that was in the store: its shards may relay for what an incarnation before this one told them. */
cairn_status cairn_cluster_groups_doubt(struct cairn_cluster_job *job) CAIRN_MUST_CHECK;
/* A snapshot became the job: these groups made its last step. */
cairn_status cairn_cluster_groups_restored(struct cairn_cluster_job *job,
                                           const struct cairn_rank_groups *groups) CAIRN_MUST_CHECK;
void cairn_cluster_groups_free(struct cairn_cluster_job *job);
/* The shards have dropped what they were told: another generation of the job. */
void cairn_cluster_groups_forget(struct cairn_cluster_job *job);
/* Another layout comes: relays end, and owners forget them; the next round forms the groups anew. */
void cairn_cluster_groups_forget_told(struct cairn_cluster_job *job);
/* A member left: the next round looks again. */
void cairn_cluster_groups_member_gone(struct cairn_cluster_job *job);
/* The shard's connection ended: it forgets members that it is not told of again. */
void cairn_cluster_groups_shard_gone(struct cairn_cluster_job *job, uint32_t shard);

/* A round of steps opens: forms the groups, and tells the shards what they do not know yet. False: there
 * are none in it, every shard is opened alike. */
bool cairn_cluster_groups_open(struct cairn_cluster_job *job, uint64_t round,
                               const uint64_t *members, uint32_t member_count);
/* The open round is decided: it is a step. */
void cairn_cluster_groups_stepped(struct cairn_cluster_job *job);
/* The contributors of that round at a shard, and as what it relays; borrowed until the next call. */
void cairn_cluster_groups_fill(const struct cairn_cluster_job *job, uint32_t shard,
                               Cairn__RoundOpen *open);
/* A shard cannot do with that relay: true if it is one. There are no groups then until somebody comes or
 * goes, and the open round is void. */
bool cairn_cluster_groups_fault(struct cairn_cluster_job *job, uint64_t member, const char *text);

/* ---- what there is ---- */

/* Said wherever workers hold tiles in a job that wants groups. */
#define CAIRN_GROUPS_NOT_OF_TILES "the workers hold tiles"

#define CAIRN_GROUPS_SHOWN 64
struct cairn_groups_view {
    Cairn__ReduceGroup groups[CAIRN_GROUPS_SHOWN];
    Cairn__ReduceGroup *list[CAIRN_GROUPS_SHOWN];
};
/* Shows the groups of the last round that opened, borrowed from the job. If workers hold tiles,
 * there are none. */
void cairn_cluster_groups_show(const struct cairn_cluster_job *job, struct cairn_groups_view *view,
                               Cairn__JobStatus *out);
/* Copies the groups of the round that made the present version. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_cluster_groups_record(const struct cairn_cluster_job *job,
                                         struct cairn_rank_groups *out) CAIRN_MUST_CHECK;

#endif
