/* The coordinator. Its struct is the one to read first.
 *
 *   cluster ── entries      the shards by name, connected or away (members.h)
 *     │  └──── sessions   the connections that said Hello, each with the members that it opened
 *     │                       (base.h)
 *     └─────── jobs       each with its core, its shards, its members, at most one snapshot (or
 *                         digest) and at most one restore (job.h)
 *
 * The headers, from the ground up. No header includes another that is listed after it (tests/tree/tidy.py
 * checks this).
 *
 *   access.h    what an identity may do, and to which jobs
 *   base.h      what all others use: names, entries, sessions, questions to shards, work on other threads
 *   store.h     what is durable: SQLite, and the one thread that writes it; events, backups, trusted keys
 *   roster.h    who may connect: tokens, the coordinator's key, the keys of nodes
 *   operations.h  operations as tables of steps: ask shards, store, work on a thread, wait
 *   round.h     the core of a job and its inputs: terms, reduce groups, what halts it
 *   reshard.h   changes of a running job: re-sharding, amendments, parking, drains
 *   snapshot.h  snapshots that are being taken, and the folder of committed snapshots
 *   members.h   workers, readers and shards: how they join, what they wait for, which tiles they hold
 *   tenants.h   whose the jobs are, and how much an owner may have
 *   job.h       how jobs are opened, created, lost, dropped
 *   cluster.h   the coordinator as a whole: how it is opened, ticks, and is closed
 *   restore.h   how jobs are restored from snapshots, and how a lost store is made anew from the shards
 *   lead.h      a shared store in etcd, and which of its coordinators leads
 *
 * The files, from the ground up. No file calls another that is listed after it, with four exceptions
 * (tests/tree/numbers counts them).
 *
 *   access         who may do what
 *   base           calls, waits, answers, the clock, the list of jobs
 *   job            a job's state, and its parts on shards
 *   terms          the terms of a job, and which shards know these terms
 *   store_shared, store, events, roster, roster_asked, keys, standing, round
 *   operations     carries out operations, and knows which are under way
 *   groups, leases, members, tiles (with the initial state, which ranks put)
 *   tenants        whose the jobs are, and how much an owner may have
 *   digests        a snapshot's contents, and how the last snapshots ended
 *   keep, snapshot_read, snapshot
 *   waiting, loss (with a job's recovery), reshard_plan, reshard
 *   openings, jobs, restore, drain, amend, adopt
 *   reshard_asked, status
 *   parts          the core's actions; shards that connect and disconnect
 *   messages, sessions, cluster, etcd, lead, main
 *
 * Callbacks do whatever must follow an event of a core, or the loss of a job: see coord_callbacks
 * (round.h), which parts.c fills in.
 *
 * Decisions: the core alone decides a job's rounds and epochs (server/core/round.h). jobs.c and restore.c
 * decide jobs, layouts and generations, and make these durable before anyone is told of them. sessions.c
 * decides whether a peer is alive: a peer is dead when its connection has ended or its lease has run out.
 *
 * Memory: every list belongs to a connection or to a job, and has a bound, which is an option or a
 * constant. Threads: everything runs on the loop's thread, except the store's writes (store.h) and the work
 * that base.c sends to libuv's threads. The loop's thread touches no file while the loop runs. */
#ifndef CAIRN_COORDINATOR_CLUSTER_H
#define CAIRN_COORDINATOR_CLUSTER_H

#include <uv.h>

#include "proto/wire/wire.h"
#include "server/base/listener.h"
#include "server/base/log.h"
#include "server/coordinator/access.h"
#include "server/coordinator/base.h"
#include "server/coordinator/job.h"
#include "server/coordinator/members.h"
#include "server/coordinator/store.h"
#include "server/coordinator/tenants.h"

/* ==== early ==== */

/* Early requests arrive when this coordinator has just started, and their answers depend on shards that
 * have not reconnected yet, or have not reported what they hold. The requests wait until all shards have
 * reconnected and reported, but no longer than one lease, because by then every live shard is back. Then
 * the coordinator judges the requests, with the shards that are connected. If it judged them at once, it
 * would call a job unparked although the job's parts are parked, a plan would leave out the shards that are
 * a moment late, and after the loss of a store there would be nothing to adopt. */

/* The cluster's early requests. */
struct coord_earlies {
    struct coord_early *list; /* owned, the oldest first */
    uint32_t count;
    bool over; /* no further request is early */
};

/* ==== cluster ==== */

/* The options from the configuration; strings are borrowed for the cluster's life. */
struct coord_options {
    char *name;
    int64_t shards; /* the number of shards that a job is spread over */
    /* When a job has been lost for shards_wait_ms, shards_min shards are enough for its automatic restore;
     * 0: as many as `shards`. */
    int64_t shards_min, shards_wait_ms;
    int64_t standby_after_ms; /* how long a shard may be away before its standby takes its place */
    char *store_path;
    char *store_url; /* "": store_path has the rows; the next five are for a url (lead.h) */
    char *store_credentials, *store_ca, *store_from;
    bool store_trust;
    int64_t store_lease_ms;
    struct backing *backing; /* what has the rows of a shared store; NULL: store_path has them */
    char *snapshots_path;
    char *snapshots_trust; /* "signed", "any" */
    bool snapshots_foreign;
    struct listener_options network;
    /* who may do what over the Unix socket; NULL: as ""; access.h */
    char *admin_group, *socket_roles;
    int64_t heartbeat_ms, lease_timeout_ms, step_deadline_ms;
    int64_t workers_max; /* the most workers of a job */
    int64_t lease_ttl_max_ms, lease_versions_max;
    char *reshard; /* "manual", "on_join" */
    /* a job is spread anew if its heaviest shard has more than this many thousandths of its share */
    int64_t rebalance_above;
    char *quota_others, *quota_owners; /* tenants.h */
    struct log_options log;
    const char *build; /* the name of this program's build; NULL: the build has only a version */
};

/* Checks that no two options contradict each other, which the table of options cannot check.
 * CAIRN_ERR_CONFIG. */
cairn_status coord_options_judge(const struct coord_options *options,
                                 struct sentence *why) CAIRN_MUST_CHECK;

/* The clock of leases and deadlines, which does not run while this process is stopped. */
struct coord_clock {
    uv_timer_t tick;
    uint64_t last_tick_ms, started_ms; /* on the loop's clock */
    uint64_t stopped_ms;               /* total time for which this process was stopped */
    struct wall wall;                  /* says whether the wall clock may be believed */
};

#define CAIRN_DRAINED_MAX 64

/* The last processes that were drained, and told to end (drain.c). */
struct coord_drained {
    uint64_t incarnations[CAIRN_DRAINED_MAX];
    size_t count; /* how many were drained since the start */
};

/* Owned: lists of the operations under way. NULL: there is no operation of that kind. */
struct coord_under_way {
    struct coord_restore *restores;    /* restore.h */
    struct coord_resume *resumes;      /* restore.h */
    struct coord_adoption *adoption;   /* restore.h */
    struct coord_backup *backup;       /* store.h */
    struct coord_drop *drops;          /* job.h */
    struct coord_first *firsts;        /* job.h */
    struct coord_reshard_asked *asked; /* reshard_plan.c */
    struct coord_removal *removals;    /* snapshot.h */
    struct coord_work *works;          /* base.h */
};

/* How a cluster ends. */
struct coord_ending {
    int handles_open; /* libuv handles; all are closed before the cluster is freed */
    /* Called, while the cluster closes, whenever one more of its parts is closed or a work has ended. The
     * last call frees the cluster. */
    void (*step)(struct coord *cluster);
    void (*on_closed)(void *context);
    void *context;
};

struct coord {
    /* borrowed */
    const struct coord_callbacks *callbacks; /* round.h */
    const struct coord_options *options;
    uv_loop_t *loop;
    /* owned */
    struct listener *listener;
    struct access_rules rules; /* access.h */
    struct coord_store *store;
    struct coord_keys *keys;     /* store.h */
    struct coord_roster *roster; /* roster.h */
    struct coord_scrub *scrub;   /* snapshot.h */
    struct coord_shard_entry *shards;
    struct coord_session *sessions;
    struct coord_job *jobs;
    struct coord_under_way under_way;
    /* each is used by its module alone */
    struct coord_saves saves;
    struct coord_events events;
    struct coord_audit audit;
    struct coord_storage storage;
    struct coord_identity identity;
    struct coord_tenants tenants;
    struct coord_openings openings;
    struct coord_earlies earlies;
    uint32_t next_request; /* base.c */
    uint64_t arrivals;     /* how often a shard connected */
    struct coord_drained drained;
    struct coord_clock clock;
    bool closing;
    /* Ends a session at once, and says why: coord_session_put_out. */
    void (*put_out)(struct coord_session *session, cairn_status status, const char *why);
    struct coord_ending ending;
};

/* Locks and opens the data folder, loads the jobs, and begins to listen. The caller must then run the
 * loop. */
cairn_status coord_open(const struct coord_options *options, uv_loop_t *loop,
                        struct coord **cluster_out, struct sentence *why) CAIRN_MUST_CHECK;
/* Closes connections, waits for the work on other threads, frees the cluster, then calls on_closed (may be
 * NULL). No peer is told anything, just as if the process had been killed. */
void coord_close(struct coord *cluster, void (*on_closed)(void *context), void *context);
/* Returns the coordinator's address, such as "/run/cairn/coordinator.sock", or its addresses, separated by
 * blanks. */
const char *coord_address(const struct coord *cluster);
/* For tests: rows written to the store since it was opened. */
uint64_t coord_store_writes(const struct coord *cluster);

/* ---- for the files of this folder ---- */

/* Returns the time between two ticks of the timer. If a tick is later than CAIRN_LATE_TICKS of these times,
 * this process was stopped. */
uint64_t coord_tick_ms(const struct coord *cluster);
#define CAIRN_LATE_TICKS 4
/* Returns the time of the clock of leases and deadlines. */
uint64_t coord_now_ms(const struct coord *cluster);
/* Checks whether the wall clock has jumped since the last check, and reports a jump. */
void coord_clock_look(struct coord *cluster);

#endif
