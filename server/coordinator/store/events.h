/* The cluster's events: who came, went, moved, was put out, with time and cause, for `cairn
 * cluster events`. The newest CAIRN_STORE_EVENTS_MAX are in memory and, a moment later, in the
 * store, so that a new incarnation has them, too. Nobody waits until they are stored:
 * a commit of them waits for no disk, and those of the last moment before power is lost may be missing. Loop
 * thread only. */
#ifndef CAIRN_COORDINATOR_STORE_EVENTS_H
#define CAIRN_COORDINATOR_STORE_EVENTS_H

#include "server/coordinator/base/names.h"

/* kind | its name */
#define CAIRN_EVENTS(X)                                                           \
    X(STARTED, "started") /* the coordinator */                                   \
    X(UP, "up")           /* a shard's process that was not there before */       \
    X(BACK, "back")       /* one whose connection was lost */                     \
    X(AWAY, "away")                                                               \
    X(CLAIMED, "claimed")     /* a second process of its name came, and waits */  \
    X(FORGOTTEN, "forgotten") /* by an operator */                                \
    X(ATTACHED, "attached")   /* a worker or reader to a job */                   \
    X(LEFT, "left")           /* by itself */                                     \
    X(LOST, "lost")           /* without a word */                                \
    X(PUT_OUT, "put-out")                                                         \
    X(FENCED, "fenced") /* another one took its place */                          \
    X(EPOCH, "epoch")   /* of a job, and why */                                   \
    X(CREATED, "job-created")                                                     \
    X(AMENDED, "job-amended")                                                     \
    X(HALTED, "job-halted")                                                       \
    X(JOB_LOST, "job-lost")                                                       \
    X(RESTORED, "job-restored")                                                   \
    X(DROPPED, "job-dropped")                                                     \
    X(PARKED, "job-parked")                                                       \
    X(UNPARKED, "job-unparked")                                                   \
    X(SNAPSHOT, "snapshot-committed")                                             \
    X(SNAPSHOT_FAILED, "snapshot-failed")                                         \
    X(RESHARD, "reshard-begun")                                                   \
    X(RESHARD_ENDED, "reshard-ended")                                             \
    X(SHARD_JOINED, "shard-joined")                                               \
    X(SHARD_LEFT, "shard-left")                                                   \
    X(DRAIN, "drain-begun")                                                       \
    X(DRAINED, "drain-ended")                                                     \
    X(PATH_CUT, "path-cut") /* a data path, as who does not hear somebody says */ \
    X(PATH_WHOLE, "path-whole")                                                   \
    X(KEY, "key") /* trusted, not any more, or made anew */                       \
    X(DAMAGED, "snapshot-damaged")                                                \
    X(ASKED, "asked")           /* by an operator: whatever changes something */  \
    X(STORAGE, "storage-taken") /* the snapshots' folder, from another cluster */ \
    X(CLOCK, "clock-jumped")    /* of the coordinator's host */

enum cairn_event_kind {
#define X(kind, name) CAIRN_EVENT_##kind,
    CAIRN_EVENTS(X)
#undef X
        CAIRN_EVENT_KINDS
};

struct cairn_stored_event;

/* The events that this process has in memory. */
struct cairn_cluster_events {
    struct cairn_stored_event **ring; /* owned: [CAIRN_STORE_EVENTS_MAX], by number */
    uint64_t first, next;             /* numbers: of the oldest, and of the one to come */
    uint64_t began;                   /* the first that this process gave */
    uint64_t saved;                   /* those below are in the store, or on their way there */
    bool saving;
    bool failed; /* the last that was tried, which was said */
};

/* Notes that it happened, now. job: its name; who: "worker w3 (rank 2)", "shard s1"; NULL: of none. The
 * sentence says the cause. Copies all. */
void cairn_cluster_event_note(struct cairn_cluster *cluster, enum cairn_event_kind kind,
                              const char *job, const char *who, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Notes an event of the shard of that name. */
void cairn_cluster_event_note_shard(struct cairn_cluster *cluster, enum cairn_event_kind kind,
                                    const char *job, const char *name, const char *text);
/* Reads those of former incarnations; before the store's thread begins. */
cairn_status cairn_cluster_events_open(struct cairn_cluster *cluster,
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Sends what is new to the store. */
void cairn_cluster_events_tick(struct cairn_cluster *cluster);
/* Writes what is new; the store's thread has ended, and the store is still open. */
void cairn_cluster_events_close(struct cairn_cluster *cluster);
/* When the newest was noted, by the wall clock of then; 0: there is none. */
uint64_t cairn_cluster_events_last_ms(const struct cairn_cluster *cluster);
/* Who made the job, by the newest event of that: "worker w3"; "": it is forgotten. */
void cairn_cluster_events_maker(const struct cairn_cluster *cluster, const char *job,
                                struct cairn_sentence *out);
/* Faults that are seen in them: shards of the cluster that went away, workers of the job that were lost. */
struct cairn_event_faults {
    uint64_t shards, workers;
    uint64_t observed_ms; /* since the job was created, or the oldest event that is there */
};
void cairn_cluster_events_faults(const struct cairn_cluster *cluster, const char *job,
                                 struct cairn_event_faults *out);
void cairn_cluster_events_answer(struct cairn_cluster_session *session, uint32_t request,
                                 const Cairn__EventsGet *get);

#endif
