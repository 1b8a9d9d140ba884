/* A job: its shards, its members, its core (server/core/round.h), at most one cut and at most one
 * restore.
 *
 * State that one module alone reads and writes is a struct of that module's header. A job is the
 * sum of these structs, so this header includes those headers. */
#ifndef CAIRN_COORDINATOR_BASE_JOB_H
#define CAIRN_COORDINATOR_BASE_JOB_H

#include "proto/geometry/layout.h"
#include "proto/snapshot/manifest.h"
#include "server/coordinator/base/names.h"
#include "server/coordinator/cut/parting.h"
#include "server/coordinator/cut/periodic.h"
#include "server/coordinator/job/amend.h"
#include "server/coordinator/job/extend.h"
#include "server/coordinator/job/init.h"
#include "server/coordinator/job/loss.h"
#include "server/coordinator/job/park.h"
#include "server/coordinator/job/reshard.h"
#include "server/coordinator/member/layouts.h"
#include "server/coordinator/member/leases.h"
#include "server/coordinator/member/members.h"
#include "server/coordinator/member/tiles.h"
#include "server/coordinator/round/core.h"
#include "server/coordinator/round/halts.h"
#include "server/coordinator/round/pace.h"
#include "server/coordinator/round/straggler.h"
#include "server/coordinator/round/times.h"

struct cairn_cluster_groups;
struct cairn_round;

/* The initial state is missing until INITIALIZING ends; `restoring` and `dropping` say more of CREATING. */
enum cairn_cluster_job_state {
    CAIRN_CLUSTER_JOB_CREATING, /* shards make room, or are to give it back (dropping); no core */
    CAIRN_CLUSTER_JOB_INITIALIZING, /* the source puts */
    CAIRN_CLUSTER_JOB_RUNNING,
    CAIRN_CLUSTER_JOB_LOST, /* `loss` says why, and until when */
};

/* A shard's part of a job. */
struct cairn_cluster_job_shard {
    struct cairn_cluster_seat *seat; /* NULL: a hole, see CAIRN_EACH_SHARD */
    bool up;                         /* as the core knows it */
    uint64_t incarnation;            /* of the shard when JobCreate was sent */
    uint64_t address_told;           /* hash of the fabric address that members know; 0: none yet */
    uint64_t missed_ms;   /* cairn_cluster_now_ms: its shard came without the part; 0: it did not */
    uint64_t patience_ms; /* the part may be missed for so long; then the job is LOST */
    /* cairn_cluster_now_ms: since then restore/recovery.c sees it away; 0: it is not */
    uint64_t away_ms;
    bool newer;        /* the shard has a staged generation beside ours */
    uint64_t revision; /* of the spec that the shard has; 0: not known */
    /* The job's version when the shard's first layout came into force: of that and older ones it has nothing.
     * 0.0: it was there from the beginning. */
    struct cairn_version joined_at;
    struct cairn_step_ring times;
    struct cairn_cluster_part_tiles tiles;
    struct cairn_cluster_part_results results;
    double weight; /* of the re-sharding under way; 0: all goes off it */
    bool lost;     /* in the slice under way: the way back leaves it out */
};

/* Numbers that are durable before they are used, so that no restart or restore takes one again. */
struct cairn_cluster_reserved {
    uint64_t generation; /* generations up to this one may have been used */
    uint64_t round;      /* round numbers likewise */
    /* member/writes.c: generations up to this one are on their way to the store; 0: none */
    uint64_t asked;
};

/* The spec and the layout that the planner made, in their packed form, as sent to shards and
 * members. */
struct cairn_cluster_planned {
    struct cairn_packed *spec, *layout; /* held */
    double heaviest_over_mean;          /* of the bytes of the shards */
    uint64_t *shard_bytes; /* owned: [layout->shard_count] of state; NULL: not counted yet */
};

struct cairn_cluster_job {
    struct cairn_cluster_job *next; /* of the cluster's list, by name */
    struct cairn_cluster *cluster;
    uint64_t id;
    enum cairn_cluster_job_state state;
    bool restoring; /* CREATING from a snapshot */
    bool dropping;  /* CREATING, and on its way out of the store: then its shards hear of it, too */
    bool stored;    /* in the store, or on its way there */
    bool initialized;     /* the initial state is there, and durable */
    bool version_unknown; /* the job comes from the store, and its shards were not heard yet */
    uint64_t generation, epoch;
    uint64_t base_step; /* at which the generation began */
    struct cairn_origin origin;
    char made_by[CAIRN_NAME_MAX + 16]; /* until the event of its creation says it */
    struct cairn_cluster_reserved reserved;

    struct cairn_job_spec_data spec; /* owned */
    struct cairn_layout *layout;     /* owned */
    /* owned: [shard_room], by index in the layout; behind those of the layout stand the ones that join */
    struct cairn_cluster_job_shard *shards;
    uint32_t shard_count,
        shard_room;      /* that there are, and may ever be: nobody's index is given anew */
    uint32_t seat_count; /* without holes */
    struct cairn_cluster_planned planned;

    struct cairn_round *core; /* NULL in CREATING; dead in LOST, unless loss.may_return */
    /* each is its module's own */
    struct cairn_cluster_rounds rounds;
    struct cairn_cluster_halts halts;
    struct cairn_cluster_straggler straggler;
    struct cairn_cluster_pace pace;
    struct cairn_cluster_groups *groups; /* owned; NULL: there were none */
    struct cairn_cluster_job_members members;
    struct cairn_cluster_tiles tiles;
    struct cairn_cluster_leases leases;
    struct cairn_cluster_snapshots snapshots;
    struct cairn_cluster_parting parting;
    struct cairn_cluster_init init;
    struct cairn_cluster_amends amends;
    struct cairn_cluster_extension extension;
    struct cairn_cluster_park park;
    struct cairn_cluster_layouts layouts;
    struct cairn_cluster_reshard reshard;
    struct cairn_cluster_loss loss;
};

/* Shards that may join a job from when it is made, or found in the store, until the next restore or start. */
#define CAIRN_JOB_JOINS_MAX 1024
/* Room for so many shards in all. False: no memory. */
bool cairn_cluster_job_shards_init(struct cairn_cluster_job *job, uint32_t shard_room);
/* A shard takes its place in the job, or (NULL) leaves a hole. */
void cairn_cluster_job_set_seat(struct cairn_cluster_job *job, uint32_t shard,
                                struct cairn_cluster_seat *seat);
/* Each shard of the job by its index: those of the layout in force and those that join. A shard that was
 * drained leaves a hole, which owns nothing and has no seat; it is passed over. */
#define CAIRN_EACH_SHARD(job, i)                                                      \
    for (uint32_t i = cairn_cluster_job_shard_from((job), 0); i < (job)->shard_count; \
         i = cairn_cluster_job_shard_from((job), i + 1))
/* The first that has a seat, from `index` on; shard_count: there is none. */
uint32_t cairn_cluster_job_shard_from(const struct cairn_cluster_job *job, uint32_t index);
/* A bit for each hole among the first shard_count shards (server/core/holes.h), malloc'ed. NULL: no
 * memory. */
uint8_t *cairn_cluster_holes(const struct cairn_cluster_job *job, uint32_t shard_count);
/* The layout in force has that shard: rounds count on it. */
bool cairn_cluster_job_in_force(const struct cairn_cluster_job *job, uint32_t shard);

/* NULL: there is none. */
struct cairn_cluster_job *cairn_cluster_job_find(struct cairn_cluster *cluster, const char *name);
struct cairn_cluster_job *cairn_cluster_job_by_id(const struct cairn_cluster *cluster, uint64_t id);
/* Into the list of the cluster's jobs, and out of it. */
void cairn_cluster_job_link(struct cairn_cluster_job *job);
void cairn_cluster_job_unlink(struct cairn_cluster_job *job);
const char *cairn_cluster_job_state_name(const struct cairn_cluster_job *job);
struct cairn_version cairn_cluster_job_version(const struct cairn_cluster_job *job);
/* LOST, and a restore alone ends it. */
bool cairn_cluster_job_dead(const struct cairn_cluster_job *job);
struct cairn_cluster_member *cairn_cluster_job_member(struct cairn_cluster_job *job, uint64_t id);
/* The job has a part on that seat, or is to have one. */
bool cairn_cluster_job_has_seat(const struct cairn_cluster_job *job,
                                const struct cairn_cluster_seat *seat);
/* A layout is on its way or not settled: what needs one that stands still waits. */
bool cairn_cluster_job_moves(const struct cairn_cluster_job *job);
/* In what the newest version is published when the next layout is in force, which it is to be at `now`:
 * *shards_out of its shards; NULL: that one itself. Borrowed. */
struct cairn_packed *cairn_cluster_job_before_next(const struct cairn_cluster_job *job,
                                                   struct cairn_version now, uint32_t *shards_out);
bool cairn_cluster_job_shards_up(const struct cairn_cluster_job *job);
/* The shard is back: has it another address than the members were told? Notes the present one. */
bool cairn_cluster_job_shard_moved(struct cairn_cluster_job_shard *shard);

/* To all shards of the layout in force that are up. */
void cairn_cluster_job_send_all(struct cairn_cluster_job *job, uint16_t type,
                                const ProtobufCMessage *message);
/* JobDrop, whose Done nobody waits for. */
void cairn_cluster_job_send_drop(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                                 uint64_t job_id);
/* Where the shards are, as messages; the addresses are borrowed from the seats. */
struct cairn_cluster_shard_infos {
    Cairn__ShardInfo *infos; /* owned, [shard_count], by index */
    Cairn__ShardInfo **list; /* owned, [count], without holes */
    size_t count;
};
/* Lists the shards whose index is below shard_count. False: no memory. */
bool cairn_cluster_shard_infos_init(struct cairn_cluster_shard_infos *infos,
                                    const struct cairn_cluster_job *job, uint32_t shard_count);
void cairn_cluster_shard_infos_release(struct cairn_cluster_shard_infos *infos);

#endif
