/* What the coordinator holds, for the files of this folder: connections, members, jobs, the cluster. Its
 * picture, and the calls, are in cluster.h. */
#ifndef CAIRN_COORDINATOR_STATE_H
#define CAIRN_COORDINATOR_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "proto/wire/layout.h"
#include "proto/wire/messages.h"
#include "proto/wire/spec.h"
#include "proto/wire/tiles.h"
#include "server/base/listener.h"
#include "server/base/log.h"
#include "server/coordinator/store.h"
#include "server/coordinator/commits.h"
#include "server/coordinator/seats.h"
#include "server/coordinator/times.h"
#include "server/coordinator/version_waits.h"
#include "server/core/round.h"
#include "server/core/standing.h"

struct cairn_cluster;
struct cairn_cluster_options;

#define CAIRN_SEATS_MAX           4096 /* shards that are known by name */
#define CAIRN_JOBS_MAX            1024
#define CAIRN_SESSION_MEMBERS_MAX 64  /* jobs that one connection has open */
#define CAIRN_SESSION_WAITS_MAX   16  /* answers of cuts and restores it waits for */
#define CAIRN_SESSION_PAGED_MAX   4   /* specs that are on their way on one connection */
#define CAIRN_MEMBER_BUCKETS      512 /* of a job's index of its members; their ids are random */
#define CAIRN_MISMATCH_LINES_MAX  10
#define CAIRN_MEMBER_PAUSE_BYTES  64

/* A connection that said a good Hello. */
struct cairn_cluster_session {
    struct cairn_cluster_session *next;
    struct cairn_cluster *cluster;
    struct cairn_peer *peer; /* borrowed from the listener */
    uint32_t role;           /* enum cairn_role_wire */
    char *name;              /* owned */
    uint64_t incarnation;
    uint32_t without;        /* of a shard: bits of enum cairn_without */
    uint8_t *fabric_address; /* owned */
    size_t fabric_address_bytes;
    uint64_t last_frame_ms, since_ms;
    struct cairn_cluster_member *members; /* list by next_of_session */
    struct cairn_cluster_seat *seat;      /* of a shard, while it holds it */
    uint32_t member_count, wait_count;
    bool closing; /* was asked to go: its frames are dropped */
};

enum cairn_cluster_member_phase {
    CAIRN_MEMBER_PAGES,    /* its spec is on its way */
    CAIRN_MEMBER_WAITING,  /* for the job to be made or restored */
    CAIRN_MEMBER_JOINING,  /* the shards are told of it */
    CAIRN_MEMBER_ATTACHED, /* a worker: known to the core */
};

#define CAIRN_INIT_DIGEST_BYTES 32
/* What a rank says of the initial state it has. */
struct cairn_init_digest {
    bool known;
    uint8_t bytes[CAIRN_INIT_DIGEST_BYTES];
    uint32_t rank;
};

/* A worker or reader and a job. Owned by its session. A request that waits is its request id; 0 =
 * none: one slot each, so that a peer cannot pile them up. */
struct cairn_cluster_member {
    struct cairn_cluster_member *next_of_session, *next_of_job, *next_of_bucket;
    struct cairn_cluster_session *session;
    struct cairn_cluster_job *job; /* while JOINING or ATTACHED */
    enum cairn_cluster_member_phase phase;
    uint64_t id, token, job_id;
    uint32_t role, rank;
    uint32_t launch, start_wait_ms;  /* JobOpen.world: it came with others; 0: not said */
    char *job_name;                  /* owned */
    struct cairn_paged pages;        /* owned; in PAGES */
    struct cairn_job_spec_data spec; /* owned; until ATTACHED; a reader's has no name */
    uint8_t *known_to;               /* owned, [shard_count]: enum member_known in members.c */
    uint8_t *tiles_known_to;         /* [shard_count], behind known_to: the same of its tiles */
    uint32_t tiles_knowing;          /* shards that know its tiles */
    uint32_t tiles_serial;           /* counts what is told of its tiles */
    uint32_t tiles_request;          /* TilesDeclare: its pages arrive, or it waits for TilesSet */
    uint32_t tiles_world;            /* of that TilesDeclare */
    struct cairn_paged tiles_pages;  /* owned; while tiles_arriving */
    bool tiles_arriving, tiles_declared;
    uint64_t
        pause_ends_ms; /* cairn_cluster_now_ms: it is at work on something else; 0: it is not */
    char pause[CAIRN_MEMBER_PAUSE_BYTES]; /* then: what */
    uint64_t attached_id; /* of the job that it was a member of already; 0: of none */
    bool must_exist;      /* it begins no job */
    bool resumes;         /* without the job it wants the newest snapshot restored */
    uint64_t
        amend_revision; /* of amend_request, once it is in the store: answered when all shards have it */
    uint32_t open_request, init_request, begin_request, write_request, amend_request;
    struct cairn_cluster_commit
        commits[CAIRN_MEMBER_COMMITS_MAX]; /* [commit_count], oldest first */
    uint32_t commit_count;
    Cairn__JobAmend
        *amend_waits;    /* owned: of amend_request, while another is on its way to the store */
    bool write_reserves; /* its write_request waits for generations that are durable */
    /* [wait_count], oldest first; one too many only while it is judged */
    struct cairn_cluster_version_wait waits[CAIRN_MEMBER_WAITS_MAX + 1];
    uint32_t wait_count;
    uint64_t read_bytes;                  /* of published memory, by itself: as it told last */
    struct cairn_step_ring times;         /* of a worker */
    struct cairn_init_digest init_digest; /* of what it put */
    uint8_t *init_held; /* owned: InitDone.held, [tensor_count]; NULL: not to be compared */
};

enum cairn_cluster_job_state {
    CAIRN_CLUSTER_JOB_CREATING, /* shards make room, or are to give it back (dropping); no core */
    CAIRN_CLUSTER_JOB_INITIALIZING, /* the source puts */
    CAIRN_CLUSTER_JOB_RUNNING,
    CAIRN_CLUSTER_JOB_LOST, /* `lost` says why, and until when */
};

struct cairn_cluster_job_shard {
    struct cairn_cluster_seat *seat;
    bool up;               /* as the core knows it */
    uint64_t incarnation;  /* of the shard when JobCreate was sent */
    uint64_t address_told; /* hash of the fabric address that members know; 0 = none yet */
    size_t tiling_bytes;   /* of MemberTiles on their way to it */
    struct cairn_cluster_member
        *tiles_next;      /* whose tiles it is told of next, if it does not know them */
    uint64_t missed_ms;   /* cairn_cluster_now_ms: its shard came without the part; 0: it did not */
    uint64_t patience_ms; /* until the job is LOST */
    uint64_t away_ms;     /* likewise: since when it is away, as recovery.c saw it; 0: it is not */
    bool newer;           /* it has a staged generation beside ours: the same */
    uint64_t revision;    /* of the spec that it has; 0: not known */
    struct cairn_step_ring times;
};

/* Who holds which boxes of the tensors: tiles.c. */
struct cairn_cluster_tiles {
    uint32_t world;                           /* the ranks 0, ..., world - 1 declare; 0: no tiles */
    struct cairn_cluster_tile_list **of_rank; /* owned: [world]; NULL: not declared */
    struct cairn_cluster_tile_list *lists;    /* owned: the different ones */
    bool known;     /* this incarnation was told, by a worker or a shard */
    bool telling;   /* shards may know of tiles: every worker's are told, also that it has none */
    bool covered;   /* the lists of all ranks make up the tensors */
    bool changed;   /* members came or went in an event of the core */
    bool gate_shut; /* as the core knows it */
    uint32_t gate_world;
};

/* What the core borrows of a spec; see terms.c. */
struct cairn_cluster_terms {
    struct cairn_cluster_terms *older; /* the core may still go by them */
    struct cairn_job_spec_data own;    /* owned: the groups, for their points */
    struct cairn_round_terms core;     /* its arrays are owned */
    uint32_t *frozen_tensors;          /* owned: [frozen_tensor_count], by index */
    size_t frozen_tensor_count;
    uint32_t *still; /* owned: [group_count], applied steps in a row with a learning rate of 0 */
};

/* Of recovery.h. */
struct cairn_cluster_recovery {
    uint32_t restores; /* begun without a step applied in between */
    uint32_t skip;     /* so many of the newest snapshots are damaged */
    uint64_t retry_ms; /* cairn_cluster_now_ms: not before */
    char why[300];     /* the job was lost */
    bool running, gave_up;
    bool waited; /* it was pending with the last tick */
};

struct cairn_cluster_job {
    struct cairn_cluster_job *next; /* of the cluster's list, by name */
    struct cairn_cluster *cluster;
    uint64_t id;
    enum cairn_cluster_job_state state;
    struct cairn_sentence lost;
    bool may_return; /* LOST for want of parts only: the core lives */
    bool behind;     /* LOST, since our store is an older copy: until it is adopted */
    uint64_t generation, generation_reserved, epoch, round_reserved, base_step;
    bool initialized;

    /* owned */
    struct cairn_job_spec_data spec;
    struct cairn_packed *spec_packed, *layout_packed; /* held */
    struct cairn_layout *layout;
    double heaviest_over_mean;
    struct cairn_cluster_job_shard *shards; /* [layout->shard_count], by index in the layout */
    struct cairn_cluster_terms *terms;      /* of the spec, the newest first; NULL: no core */
    void *core_memory;
    struct cairn_round_actions actions;

    struct cairn_round
        *core;            /* in core_memory; NULL in CREATING; dead in LOST, unless it may_return */
    bool in_event;        /* the core is not entered twice */
    bool heard;           /* the shards have told this core the job's version */
    bool version_unknown; /* it comes from the store, and was not heard yet */
    bool persist_waits;   /* the core waits until epoch and round_reserved are durable */
    bool persist_failed;  /* they are to be stored again, by the tick */
    struct cairn_log_limit persist_failures, skips_said;
    struct cairn_version stepped;       /* of periodic.c: as it was at the last event */
    struct cairn_version version_told;  /* readers were told that it is there */
    struct cairn_sentence epoch_reason; /* why the last epoch changed, for logs and workers */
    struct cairn_sentence
        snapshot_failed; /* the last periodic one; empty: it did not; for status */
    /* Of those who were put out for a restore, and come back when that is over. */
    uint64_t pause_ends_ms; /* cairn_cluster_now_ms: of the longest pause; 0: of none */
    char pause[CAIRN_MEMBER_PAUSE_BYTES];
    struct cairn_sentence put_out;        /* who was, last, at the step's deadline; for status */
    struct cairn_cluster_member *members; /* list by next_of_job */
    struct cairn_cluster_member *members_by_id[CAIRN_MEMBER_BUCKETS]; /* by next_of_bucket */
    uint32_t member_count;
    uint64_t read_bytes;            /* the same of members that have left, in this generation */
    bool seal_wanted, seal_running; /* the source said InitDone */
    /* While this coordinator lives: what the source put, and what the callers gave. */
    struct cairn_init_digest init_source, init_given;
    bool init_sourced;         /* a source said InitDone; with tiles the others put theirs, too */
    bool restoring;            /* CREATING from a snapshot */
    bool stored;               /* in the store, or on its way there */
    bool dropping;             /* on its way out of it, CREATING: then its shards hear of it, too */
    uint64_t generation_asked; /* being reserved for writes; 0: none */
    struct cairn_cluster_amending *amending; /* owned; amend.c: what is on its way to the store */
    struct cairn_cluster_recovery recovery;
    struct cairn_cluster_waiter *amenders; /* admins, of the one amendment that is theirs */
    uint64_t amenders_revision;            /* of it, once it is in the store; else 0 */
    struct cairn_cluster_tiles tiles;
    struct cairn_cluster_cut *cut;
    struct cairn_cluster_lease *leases;        /* owned; leases.h */
    struct cairn_cluster_kept *kept;           /* owned; the versions of them */
    struct cairn_cluster_extension *extension; /* owned; NULL: its tensors stay what they are */
    struct cairn_cluster_groups *groups;       /* owned; groups.h; NULL: there were none */
};

struct cairn_cluster {
    /* borrowed */
    const struct cairn_cluster_options *options;
    uv_loop_t *loop;
    /* owned */
    struct cairn_listener *listener;
    struct cairn_store *store;
    struct cairn_pool *saver;         /* the store's thread */
    struct cairn_cluster_save *saves; /* on their way */
    uint64_t store_writes;            /* rows written, of the saves that ended */
    int lock_fd;
    struct cairn_cluster_seat *seats;
    struct cairn_cluster_session *sessions;
    struct cairn_cluster_job *jobs;
    struct cairn_cluster_restore *restores; /* restore.c's, running ones */
    struct cairn_cluster_resume *resumes;   /* resume.c's, likewise */
    struct cairn_cluster_drop *drops;       /* drop.c's, the same */
    struct cairn_cluster_removal *removals; /* snapshot_remove.c's, the same */
    char *snapshots_path;                   /* absolute */
    uint64_t storage_token;                 /* in it (proto/wire/storage.h); 0: there is none */
    uv_timer_t tick;
    uint64_t last_tick_ms, started_ms;
    uint64_t stopped_ms;            /* how long this process was stopped, in all */
    struct cairn_coordinator_id id; /* of this process, and of its store */
    uint64_t *dropped;              /* owned, [dropped_count]: as cairn_store_dropped has them */
    size_t dropped_count;
    struct cairn_cluster_adoption *adoption; /* owned; adopt.c; NULL: none runs */
    struct cairn_cluster_backup *backup;     /* owned; backup.c; the same */
    uint32_t next_request;
    struct cairn_cluster_work *works; /* on their way */
    bool advancing, advance_again;    /* cairn_cluster_openings_advance runs: not entered twice */
    bool closing;
    int handles_open;
    void (*on_closed)(void *context);
    void *on_closed_context;
};

#endif
