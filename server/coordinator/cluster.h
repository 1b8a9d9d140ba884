/* The coordinator: the struct to read first.
 *
 *   cluster ── seats      the shards by name, there or away (members.h)
 *     │  └──── sessions   the connections that said Hello; each has the members it opened (base.h)
 *     └─────── jobs       each with its core, its shards, its members, at most one cut (a snapshot or a
 *                         digest) and at most one restore (job.h, job.h)
 *
 * The rooms, each of which calls those above it and never those below (tests/tree/tidy.py holds that):
 *
 *   base/      what all stand on: sessions, questions to shards (base.h), work on other threads (base.h)
 *   store/     what is durable: SQLite, and the one thread that writes it (store.h)
 *   round/     the core of a job and what it goes by: terms, reduce groups, what halts it
 *   member/    workers, readers and shards: how they join, what they wait for, which tiles they hold
 *   snapshot/  cuts, periodic snapshots, the folder of those that are committed
 *   job/       jobs are opened, made, amended, lost, dropped; what a core says is done (parts.c)
 *   restore/   jobs come back from snapshots, and the store from shards
 *   .          who speaks (sessions.c), who is answered later (cluster.c), who sits where
 * (sessions.c), what
 *              each role may say (handlers_*.c)
 *
 * Who decides what: the core alone decides a job's rounds and epochs (server/core/round.h). jobs.c and
 * restore.c decide jobs, layouts and generations, which are durable before anyone hears of them.
 * sessions.c decides whether a peer is alive: by the end of its connection, or a lease that ran out.
 *
 * Memory: every list hangs on a connection or on a job, and an option or a constant bounds it. Threads:
 * everything runs on the loop's thread, but for the store's writes (store.h) and what calls.c sends to
 * libuv's threads. The loop's thread touches no file once it runs. */
#ifndef CAIRN_COORDINATOR_CLUSTER_H
#define CAIRN_COORDINATOR_CLUSTER_H

#include <uv.h>

#include "proto/wire/messages.h"
#include "server/base/listener.h"
#include "server/base/log.h"
#include "server/coordinator/base.h"
#include "server/coordinator/job.h"
#include "server/coordinator/members.h"
#include "server/coordinator/store.h"

/* ==== early ==== */

/* Requests that come early: this coordinator has just started, and what it would answer depends on shards
 * that have not come back to it, or have not told what they hold. They wait until all have, or for one lease,
 * by which a shard that lives is back; then they are judged by who is there. Without this a job whose parts
 * are parked would be called unparked, a plan would leave out the shards that are a moment late, and after a
 * store was lost there would be nothing to adopt. */

struct cairn_cluster_early {
    struct cairn_cluster_early *next;
    struct cairn_cluster_session *session; /* borrowed: forgotten with it */
    struct cairn_frame frame;              /* its payload is `bytes` */
    uint8_t bytes[];
};

/* The cluster's early requests. */
struct cairn_cluster_earlies {
    struct cairn_cluster_early *list; /* owned, the oldest first */
    uint32_t count;
    bool over; /* nothing is early any more */
};

/* True: the request waits, or was refused since too many do. */
bool cairn_cluster_early_hold(struct cairn_cluster_session *session,
                              const struct cairn_frame *frame);
/* The oldest that need not wait any more, the caller's to free; NULL: there is none. */
struct cairn_cluster_early *cairn_cluster_early_take(struct cairn_cluster *cluster);
void cairn_cluster_early_forget(struct cairn_cluster *cluster,
                                const struct cairn_cluster_session *session);

/* ==== cluster ==== */

struct cairn_cluster_restore;
struct cairn_cluster_work;
struct cairn_cluster_resume;
struct cairn_cluster_drop;
struct cairn_cluster_first;
struct cairn_cluster_reshard_asked;
struct cairn_cluster_removal;
struct cairn_cluster_adoption;
struct cairn_cluster_backup;
struct cairn_cluster_keys;
struct cairn_cluster_scrub;
struct cairn_store;
struct cairn_listener;
struct cairn_option;

/* From the configuration; strings are borrowed for the cluster's life. */
struct cairn_cluster_options {
    char *name;
    int64_t shards; /* a job is spread over so many */
    /* so many are enough for a lost job that restores itself, shards_wait_ms after it was; 0: `shards` */
    int64_t shards_min, shards_wait_ms;
    char *store_path;
    char *snapshots_path;
    char *snapshots_trust; /* "signed", "any" */
    bool snapshots_foreign;
    struct cairn_listener_options network;
    int64_t heartbeat_ms, lease_timeout_ms, step_deadline_ms;
    int64_t workers_max; /* of a job */
    int64_t lease_ttl_max_ms, lease_versions_max;
    char *reshard;           /* "manual", "on_join" */
    int64_t rebalance_above; /* thousandths of a share */
    struct cairn_log_options log;
    const char *build; /* what this program calls its build; NULL: the version alone */
};

/* Checks what the table cannot: values that contradict each other. CAIRN_ERR_CONFIG. */
cairn_status cairn_cluster_options_judge(const struct cairn_cluster_options *options,
                                         struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* The clock of leases and deadlines stands while this process is stopped. */
struct cairn_cluster_clock {
    uv_timer_t tick;
    uint64_t last_tick_ms, started_ms; /* of the loop's clock */
    uint64_t stopped_ms;               /* how long this process was stopped, in all */
    struct cairn_wall wall;            /* whether the other one may be believed */
};

#define CAIRN_DRAINED_MAX 64

struct cairn_cluster {
    /* borrowed */
    const struct cairn_cluster_options *options;
    uv_loop_t *loop;
    /* owned */
    struct cairn_listener *listener;
    struct cairn_store *store;
    int lock_fd;                       /* of the store's folder */
    struct cairn_cluster_keys *keys;   /* store.h */
    struct cairn_cluster_scrub *scrub; /* snapshot.h */
    struct cairn_cluster_seat *seats;
    struct cairn_cluster_session *sessions;
    struct cairn_cluster_job *jobs;
    /* owned: what is under way; NULL: nothing is */
    struct cairn_cluster_restore *restores;    /* restore.h */
    struct cairn_cluster_resume *resumes;      /* restore.h */
    struct cairn_cluster_adoption *adoption;   /* restore.h */
    struct cairn_cluster_backup *backup;       /* store.h */
    struct cairn_cluster_drop *drops;          /* job.h */
    struct cairn_cluster_first *firsts;        /* job.h */
    struct cairn_cluster_reshard_asked *asked; /* reshard_plan.c */
    struct cairn_cluster_removal *removals;    /* snapshot.h */
    struct cairn_cluster_work *works;          /* base.h */
    /* each is its module's own */
    struct cairn_cluster_saves saves;
    struct cairn_cluster_events events;
    struct cairn_cluster_storage storage;
    struct cairn_cluster_identity identity;
    struct cairn_cluster_openings openings;
    struct cairn_cluster_earlies earlies;
    uint32_t next_request; /* calls.c */
    uint64_t seats_taken;  /* how often a shard sat down */
    struct {               /* processes that were told to end (drain.c): the newest ones */
        uint64_t incarnations[CAIRN_DRAINED_MAX];
        size_t count; /* ever */
    } drained;

    struct cairn_cluster_clock clock;
    bool closing;
    int handles_open; /* they are closed before the cluster is freed */
    void (*on_closed)(void *context);
    void *on_closed_context;
};

/* Locks and opens the data folder, loads the jobs, listens. The loop must run then. */
cairn_status cairn_cluster_open(const struct cairn_cluster_options *options, uv_loop_t *loop,
                                struct cairn_cluster **cluster_out,
                                struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Closes connections, waits for work of other threads, frees itself, then calls on_closed (may be
 * NULL). Nothing is told to anyone: it is the same as being killed, only tidier. */
void cairn_cluster_close(struct cairn_cluster *cluster, void (*on_closed)(void *context),
                         void *context);
/* "/run/cairn/coordinator.sock"; of several, blanks between */
const char *cairn_cluster_address(const struct cairn_cluster *cluster);
/* For tests: rows written to the store since it was opened. */
uint64_t cairn_cluster_store_writes(const struct cairn_cluster *cluster);

/* ---- for the files of this folder ---- */

/* The clock of leases and deadlines. */
uint64_t cairn_cluster_now_ms(const struct cairn_cluster *cluster);
/* Whether the wall clock has jumped since the last look, which is said. */
void cairn_cluster_clock_look(struct cairn_cluster *cluster);
/* One of its parts is closed; frees the cluster after the last. */
void cairn_cluster_close_step(struct cairn_cluster *cluster);

#endif
