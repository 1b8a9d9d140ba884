/* A job is lost, or behind its shards: why, and what comes next. */
#ifndef CAIRN_COORDINATOR_JOB_LOSS_H
#define CAIRN_COORDINATOR_JOB_LOSS_H

#include "server/coordinator/base/names.h"
#include "server/coordinator/snapshot/find.h"

#define CAIRN_RESTORES_MAX 3

/* How a lost job is being restored by itself: see restore/recovery.h. */
struct cairn_cluster_recovery {
    uint32_t restores;                  /* begun without a step applied in between */
    struct cairn_snapshot_place behind; /* the oldest that was found damaged */
    uint64_t retry_ms;                  /* cairn_cluster_now_ms: not before */
    uint64_t lost_ms;                   /* cairn_cluster_now_ms: the job was */
    char why[300];                      /* the job was lost */
    struct cairn_sentence damaged;      /* the newest of those, and how; while behind.id says one */
    bool running, gave_up;
    bool passed; /* gave_up: there are snapshots, of which none may be taken unasked */
    bool begun;  /* one has replaced the job: no part comes back by itself */
    bool unseen; /* a shard did not see the snapshot: its storage is waited for */
    bool waited; /* it was pending with the last tick */
};

/* A job's loss, and its recovery. */
struct cairn_cluster_loss {
    struct cairn_sentence why; /* "lost: ...", "behind: ..." */
    bool may_return;           /* LOST for want of parts only: the core lives */
    bool behind;               /* LOST, since our store is an older copy: until it is adopted */
    struct cairn_cluster_recovery recovery;
};

/* Its members are expelled. may_return: its core goes on hearing of shards, for the parts may come back. */
void cairn_cluster_job_lose(struct cairn_cluster_job *job, bool may_return, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A shard, or a member ("worker"), has seen more of it than our store knows of, in `what`: nothing is done
 * until it is adopted. */
void cairn_cluster_job_behind(struct cairn_cluster_job *job, const char *kind, const char *name,
                              const char *what);

/* ---- on_shard_loss ---- */

/* Its on_shard_loss says so. */
bool cairn_cluster_recovery_wanted(const struct cairn_cluster_job *job);
/* Over so many shards at least: cluster.shards, less those that it was moved off; after cluster.shards_wait
 * as many as are here, at least cluster.shards_min. */
uint32_t cairn_cluster_recovery_shards(const struct cairn_cluster_job *job);
/* The job is LOST, and will be restored by itself: nobody need give it up yet. */
bool cairn_cluster_recovery_pending(const struct cairn_cluster_job *job);
/* Says what comes next for a job that is LOST, or what an operator is to do. The text follows
 * "lost: WHY; ". */
void cairn_cluster_recovery_advise(const struct cairn_cluster_job *job, struct cairn_sentence *out);

#endif
