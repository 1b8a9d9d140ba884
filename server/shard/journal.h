#ifndef CAIRN_SHARD_JOURNAL_H
#define CAIRN_SHARD_JOURNAL_H

#include <pthread.h>

#include "proto/spec/spec.h"
#include "server/base/daemon.h"
#include "server/core/step.h"
#include "server/shard/journal_file.h"

/* The log of a job's part (durability = log): all memory of all hosts may be lost, and no step is. In the
 * code it is called the journal, because the log is what a daemon writes for people.
 *
 *   REDUCE ─► the sums are on disk (ROUND) ─► REDUCED is reported
 *   UPDATE ─► the decision is on disk (DECISION) ─► the update begins ─► PUBLISHED
 *
 *   none ─► SHARD_JOB_CHANGED: files, START ─► entries ─► a snapshot of a version since START: the base
 *     ▲                                       │         ─► segments before the newest base are removed
 *     └── another layout, a write of a member, a failure
 *
 *   the next process ─► journals_open: reads the entries ─► looks for the base ─► a job is made, and loads it
 *       ─► the updates are done again, one after the other ─► the part serves, and the shard connects; or it
 *       connects again, if it did not wait for the base because that was not there
 *
 * The bits are the same, because an update depends on the sums, the decision and the state alone. A round
 * without its sums on disk is as if it never was: workers compute it again. A decision to skip is on disk
 * before it is reported as PUBLISHED.
 *
 * A part that a keeper had may be ahead of its journal: by the decision that was being written. So nobody is
 * told of the part's version before the START of the next segment, which has it, is on disk.
 *
 * A journal ends before the state changes otherwise than by its entries: from then on no process makes a
 * part of the older state. A disk that fails ends it, too, and is tried again after a while with new files:
 * never by a second sync of the same ones. While there is no journal with a base, the job is less safe than
 * it asks for, and the heartbeats say why.
 *
 * All writes are made by threads of their own; one operation of a job at a time. Loop thread, except where
 * it says so. */

#define JOURNAL_THREADS 4

struct journal_op;
struct journal_resumed;
struct shard_job;
struct journal_scan;

/* Operations that wait until the one before has ended; bits. */
enum journal_want {
    JOURNAL_WANT_END = 1,
    JOURNAL_WANT_BEGIN = 2,
    JOURNAL_WANT_ROUND = 4,
    JOURNAL_WANT_DECISION = 8,
    JOURNAL_WANT_BASE = 16,
    JOURNAL_WANT_PART = 32,
};

/* The part, as its keeper had it, may be ahead of the log that a process before left. The newest Fence waits
 * meanwhile. */
struct journal_lag {
    bool is_there;
    uint64_t epoch, layout; /* of the Fence; 0: none waits */
    void (*fence)(struct shard_job *job, uint64_t epoch, uint64_t layout);
};

struct job_journal {
    bool wanted;  /* by the newest terms */
    bool is_open; /* there are files, which the next process would use */
    bool is_based;
    unsigned wants;        /* bits of enum journal_want */
    struct journal_op *op; /* owned: under way; NULL: none */
    char *folder;          /* owned: of this journal; NULL: there never was one */
    uint64_t log;          /* its number */
    uint64_t revision;     /* of the spec that is written in it */
    uint64_t entry, round; /* the number of the next entry; the round of the last ROUND */
    struct cairn_version base;
    struct journal_segment segment;
    struct journal_kept_segment *segments; /* owned: [segment_count], the last one is written */
    size_t segment_count;
    uint64_t budget_bytes;
    struct log_base next_base; /* owned: of the LogBase that arrived last */
    struct step_sums sums;     /* of the round that waits to be SUMMED */
    bool skips;                /* a skip is being written, and this PUBLISHED_REPORT waits for it */
    struct step_action skip;
    struct sentence why;   /* why there is no journal, or none with a base; empty: there is */
    struct sentence waits; /* why a round waits now; empty: it does not */
    uint64_t retry_ms;     /* uv_now: nothing is begun before */
    uint64_t full_ms;      /* uv_now + 1: since then a round waits for room; 0: none does */
    uint64_t again_ms;     /* uv_now: what failed, and is wanted still, is not tried before */
    bool lacks_room;       /* the disk had none for the next segment */
    bool end_fails;        /* it could not be ended: no round may go on before it is */
    struct journal_lag lag;
    struct journal_resumed *from; /* owned: what the part is being made from again */
    /* borrowed: out of this log a former version is being made, so its files stay; NULL: none is */
    struct journal_resumed *read_by;
    struct log_limit slow_said;
};

/* The logs of a shard. */
struct shard_journals {
    char *folder; /* owned: log.path/NAME; NULL: the shard has none */
    uint64_t budget_bytes;
    int lock_fd;           /* owned; -1: none */
    bool was_empty;        /* no log was in the folder when this process began */
    struct sentence lacks; /* why it can have none; empty: it can, or no path is configured */
    struct pool *pool;     /* owned */
    uint8_t *blocks[JOURNAL_THREADS]; /* owned: [JOURNAL_RUN_BYTES] of each thread */
    struct journal_scan *scan;        /* owned: the search for parts; NULL: none is under way */
    struct journal_resumed *found;    /* owned: of jobs that a keeper had, until they serve */
    struct journal_resumed *awaiting; /* owned: whose snapshots are not there yet */
    uv_timer_t timer;                 /* looks for these */
};

struct shard_options;
struct shard_daemon;
/* Locks the folder, and begins to look for parts that a process before left, unless their jobs are kept.
 * The shard does not connect before it is over. A folder that cannot be used is waited for; but not if a
 * keeper has parts: then they go on without logs, and `lacks` says why. */
CAIRN_MUST_CHECK cairn_status journals_open(struct shard_daemon *shard,
                                            const struct shard_options *options,
                                            struct sentence *why);
/* Ends the threads. Returns how often on_closed is called. */
int journals_close(struct shard_daemon *shard, void (*on_closed)(void *context), void *context);
void journals_release(struct shard_daemon *shard);

/* The newest terms want a journal, or none. */
void journal_want(struct shard_job *job, bool wanted);
/* The part gets another layout. */
void journal_leaves_layout(struct shard_job *job);

/* The sums of a round are there. True: SUMMED follows when they are on disk. */
bool journal_takes_round(struct shard_job *job, const struct step_sums *sums);
/* A Fence has come, whose answer tells how far the part is. True: the log does not have all of that yet, and
 * `fence` is called when it has, or when it has ended. */
bool journal_takes_fence(struct shard_job *job, uint64_t epoch, uint64_t layout,
                         void (*fence)(struct shard_job *job, uint64_t epoch, uint64_t layout));
/* An update, or a write, was decided. */
void journal_decided(struct shard_job *job, const struct decision *decision);
/* A PUBLISHED_REPORT is due. True: it follows when the skip of the round that it reports is on disk. */
bool journal_takes_skip(struct shard_job *job, const struct step_action *action);
/* True if the update may not begin yet; begin_when_unsent is called again. */
bool journal_holds_update(const struct shard_job *job);

/* True if the part is made again from its log, if all memory is lost now. */
bool journal_is_based(const struct shard_job *job);
/* The bytes of its segments. */
uint64_t journal_bytes(const struct job_journal *journal);
/* Fills in what the heartbeat says of the logs that jobs want, and of those whose bases are not there: at
 * most CAIRN_SHARD_JOBS_MAX. Returns how many these are. */
size_t journals_tell(const struct shard_daemon *shard, Cairn__LogTold *out);

/* ---- journal_scan.c ---- */

/* A part that is not made yet, because the snapshot on which its log stands is not there, or memory lacks. */
struct journal_wait {
    struct pool *looks; /* owned: the thread that looks for the snapshot */
    bool is_looking;
    bool holds;              /* the shard does not connect before it has looked once */
    bool is_void;            /* the job was dropped: the log ends */
    struct sentence looked;  /* why the snapshot is not there */
    struct sentence waits;   /* for what the part waits, as is told; empty: it does not */
    uint64_t need_bytes;     /* of memory.limit, for its job; 0: not known */
    uint64_t promised_bytes; /* of these, what nobody else gets meanwhile */
    bool yields;             /* the job is made otherwise, and has the memory */
    uint32_t failures;       /* how often memory lacked for its job */
    uint64_t again_ms;       /* uv_now: it is not looked for before */
};

/* A former version that is made beside the part that serves, out of its log. */
struct journal_back {
    struct shard_job *serves; /* borrowed: it writes the log; NULL: no version is gone back to */
    struct cairn_version to;
    uint64_t log;
    bool begun; /* the base is loaded, and the updates are done again */
    uint64_t said_ms;
};

/* A journal that was read. All is owned. */
struct journal_resumed {
    struct journal_resumed *next;
    struct shard_job *job; /* borrowed: that is made from it */
    char *folder;
    struct journal_part *part;
    struct journal_entries entries;
    struct journal_plan plan;
    struct log_base base;
    struct sentence why;        /* why no part can be made of it; empty: one can */
    size_t at;                  /* the step of the plan that is done next */
    struct shard_daemon *shard; /* borrowed */
    struct journal_wait wait;
    struct journal_back back;
    /* the sums that are being read; see journal_replay.c. The look for its base, too */
    struct task task;
    int fd;
    size_t reads; /* the entry */
    pthread_mutex_t lock;
    cairn_status status;
};
/* The one whose `task` it is. */
static inline struct journal_resumed *journal_resumed_of(struct task *task)
{
    return (struct journal_resumed *)((char *)task - offsetof(struct journal_resumed, task));
}
struct journal_resumed *journal_resumed_new(void);       /* NULL: no memory */
void journal_resumed_free(struct journal_resumed *from); /* NULL is fine */
static inline bool journal_has_base(const struct journal_resumed *from)
{
    return from->base.path != NULL;
}
/* How far the machine was, and whom the shard obeyed. */
static inline const struct kept_outcome *journal_last(const struct journal_resumed *from)
{
    return &from->entries.list[from->plan.last].head.outcome;
}

/* Has the search end soon. */
void journal_scan_cancel(struct shard_daemon *shard);
/* True if what a process before left is not known yet. */
bool journal_is_scanning(const struct shard_daemon *shard);
/* Takes what was read of a journal of the job; NULL: there is none. *is_of_job: it is of the state that the
 * job has. */
struct journal_resumed *journal_find(struct shard_daemon *shard, struct shard_job *job,
                                     bool *is_of_job);

/* ---- journal_resume.c ---- */

/* Describes the job's part for its journal; malloc'ed, the caller's. NULL: no memory. */
struct journal_part *journal_part_of(const struct shard_job *job);
/* Has the job made of what was found, when its base is there. Takes what was found. */
void journal_resumed_go(struct shard_daemon *shard, struct journal_resumed *from);
/* Ends the looks for bases. Returns how often on_closed is called. */
int journals_looks_close(struct shard_daemon *shard, void (*on_closed)(void *context),
                         void *context);
/* Fills in what the heartbeat says of a part that is not made yet. */
void journal_resumed_tell(const struct journal_resumed *from, Cairn__LogTold *out);
/* The same of all whose bases are not there, at most `most`. Returns how many these are. */
size_t journals_awaiting_tell(const struct shard_daemon *shard, Cairn__LogTold *out, size_t most);
/* The job is dropped: its log ends whose base is not there. */
void journals_drop(struct shard_daemon *shard, uint64_t job);
/* Says which logs whose bases are away are of another store than the one that the shard obeys now. */
void journals_say_strange(const struct shard_daemon *shard, uint64_t store);
/* The job is made otherwise: it gets the memory that is promised to the part that is awaited. */
void journals_yield(struct shard_daemon *shard, uint64_t job);
/* The bytes of memory.limit that are promised to parts that are awaited. */
uint64_t journals_promised(const struct shard_daemon *shard);
/* The jobs whose parts are not there yet, because their bases are not, or updates are being done again:
 * at most CAIRN_SHARD_JOBS_MAX. */
size_t journals_awaited(const struct shard_daemon *shard, uint64_t *jobs_out);

/* ---- a job that is made from its journal, as from a kept part (kept.h) ---- */

CAIRN_MUST_CHECK cairn_status journal_take_terms(struct shard_job *job, struct sentence *why);
/* The round machine continues from there. */
struct step_kept journal_step_kept(const struct shard_job *job);
/* The load of the job has ended: if it was that of a base, the updates are done again. Then the part is
 * sealed. */
void journal_replay(struct shard_job *job);
/* An update was done again. */
void journal_replayed(struct shard_job *job);

/* ---- a job that goes back: its version is made from the log of the part that serves, which goes on ---- */

/* Holds the log for the version `to`. CAIRN_ERR_VERSION_GONE: the log does not come by it, and why that is so
 * was added to `why`. CAIRN_ERR_BUSY, CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status journal_back_open(struct shard_job *serves, struct cairn_version to,
                                                struct journal_resumed **from_out,
                                                struct sentence *why);
/* Reads it, as journal_read does. Any thread. */
CAIRN_MUST_CHECK cairn_status journal_back_read(struct journal_resumed *from, struct sentence *why);

#endif
