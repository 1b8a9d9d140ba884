#ifndef CAIRN_COORDINATOR_SNAPSHOT_H
#define CAIRN_COORDINATOR_SNAPSHOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "control.pb-c.h"
#include "proto/snapshot/digest_tree.h"
#include "proto/snapshot/snapshot.h"
#include "proto/snapshot_io/snapshot_io.h"
#include "proto/spec/spec.h"
#include "server/coordinator/base.h"
#include "server/coordinator/operations.h"
#include "server/coordinator/round.h"
#include "server/coordinator/store.h"
#include "server/core/decision.h"

/* ==== find ==== */

/* Finds the committed snapshots in the folder of snapshots. A list shows them, and a restore takes the
 * newest one. */

/* the most snapshots that are read; if there are more, the newest are read */
#define CAIRN_FOUND_MAX 1000

/* The place of a snapshot among all snapshots of its job. The place stays valid when the snapshot is
 * removed. Places are ordered by version. This is possible because no job uses a generation of which the
 * folder of the job's name already has a snapshot (openings.c, restore.c). */
struct snapshot_place {
    struct cairn_version version;
    char id[CAIRN_SNAPSHOT_ID_BYTES]; /* empty: the place before all snapshots */
};
struct found_snapshot {
    /* true: the job has turned away from this snapshot, because the job went back, or a new job of the name
     * began (find_line) */
    bool is_left;
    struct snapshot_place place;
    char *folder; /* owned */
    struct manifest manifest;
    char signature[128]; /* the state of the signature, in words; empty: not checked */
};
struct coord_found {
    struct found_snapshot *list; /* owned: [count], the newest first */
    size_t count;
    struct sentence unread; /* the folders that could not be read; empty: none */
    /* the newest one whose manifest could not be read, and why; id "": there is none */
    struct snapshot_place damaged;
    struct sentence damage;
};

/* Finds the snapshots of `job` (NULL: of all jobs). With an `id` that is not NULL, finds only the snapshot
 * with this id. Blocks: call it on another thread than the loop's. A snapshot whose manifest cannot be read
 * is left out; if `id` asks for such a snapshot, the call fails. Release `out` in any case. CAIRN_ERR_IO:
 * this is not the folder that snapshots were written to (store.h). */
cairn_status coord_find_snapshots(const struct coord *cluster, const char *job, const char *id,
                                  struct coord_found *out, struct sentence *why) CAIRN_MUST_CHECK;
/* Writes the owner that the manifest of the snapshot `id` says; NULL: of the job's newest snapshot. "": it
 * says none. If the newest manifest is damaged, writes the owner on whom all others of the name agree.
 * Blocks. CAIRN_ERR_NOT_FOUND: there is no such snapshot. An error of coord_restore_is_damage: it is
 * damaged, and by `id`, or without another that can be read, nobody else says whose it is. Any other
 * error: it is not known. */
cairn_status coord_snapshot_owner(const struct coord *cluster, const char *job, const char *id,
                                  char owner_out[CAIRN_OWNER_BYTES],
                                  struct sentence *why) CAIRN_MUST_CHECK;
/* Does what snapshot_words_load does, confined to the folder of snapshots. Blocks. */
cairn_status coord_snapshot_words(const struct coord *cluster, const char *job,
                                  struct snapshot_words *out,
                                  struct sentence *why) CAIRN_MUST_CHECK;
/* Sets is_left in each snapshot from which the job's present state does not descend. All snapshots must be
 * of one job. `origin` is where the job last went back or began; NULL: the origin of the newest snapshot is
 * used. The present state descends from a line of snapshots: the origin of each snapshot on the line tells
 * which older snapshots are on the line, too. `turns`, which may be NULL: the job's turns before `origin`;
 * only of generations before these the snapshots are asked. */
void find_line(struct coord_found *found, const struct origin *origin, const struct turns *turns);
/* True: `a` is older than `b`. */
bool snapshot_place_behind(const struct snapshot_place *a, const struct snapshot_place *b);
void coord_found_release(struct coord_found *found);

/* ---- keep.c ---- */

/* True: the snapshot in that folder is being removed. */
bool coord_snapshot_removing(const struct coord *cluster, const char *folder);

/* ==== cost ==== */

/* The cost of a job's snapshots: how much longer the job's steps took while a snapshot was written. The
 * cost is measured with each step, and kept only in memory: a new incarnation of the coordinator starts
 * without any measurements. Loop thread only. */

struct coord_snapshot;

enum {
    CAIRN_COST_SNAPSHOTS = 8, /* number of the last snapshots that count */
    CAIRN_COST_STEPS = 8      /* number of steps without a snapshot that a comparison needs */
};

/* A job's costs. Zero: nothing was measured. */
struct coord_cost {
    struct coord_pace plain; /* pace of the steps without a snapshot; `seen` in it is not used */
    /* the next fields are for the snapshot that is being taken, or that has ended during the open step */
    bool is_counting, has_ended, is_committed;
    uint64_t number; /* number of the snapshot */
    /* extra_us: how much longer the steps took, in sum. usual_us: what a step takes without a snapshot; 0:
     * not known */
    int64_t extra_us, usual_us;
    uint64_t write_us;
    /* the next fields are for the last snapshots that were committed */
    uint32_t extras_us[CAIRN_COST_SNAPSHOTS], writes_us[CAIRN_COST_SNAPSHOTS];
    uint32_t next, count;
};

/* A step of the job has ended, and has taken job->rounds.pace.last_us. Must be called before a snapshot of
 * the step's version begins. */
void coord_cost_note_step(struct coord_job *job);
/* The snapshot has ended, with success or not: notes its cost and, by its cause, how it ended. */
void coord_snapshot_note_end(const struct coord_snapshot *snapshot);

/* ==== snapshots that are taken ==== */

/* Snapshots that are being taken: functions for those who ask for a snapshot, and for the reports of shards
 * about one. The section "a snapshot" (below) says what a snapshot is. */

enum snapshot_cause {
    CAIRN_SNAPSHOT_ASKED,
    CAIRN_SNAPSHOT_PERIODIC /* below */,
    CAIRN_SNAPSHOT_PARTING, /* below */
    CAIRN_SNAPSHOT_LOG      /* periodic, for a log to stand on (logs.c) */
};
static inline bool snapshot_cause_is_periodic(enum snapshot_cause cause)
{
    return cause == CAIRN_SNAPSHOT_PERIODIC || cause == CAIRN_SNAPSHOT_LOG;
}

/* Begins a snapshot, or a digest if `has_files` is false. The session is answered later. If a periodic
 * snapshot is being taken, the new one begins after it. */
cairn_status coord_snapshot_begin(struct coord_job *job, bool has_files,
                                  struct coord_session *session, uint32_t request, bool wait,
                                  struct sentence *why) CAIRN_MUST_CHECK;
/* Writes for whom the job's snapshot waits; empty: for nobody. Returns true if the snapshot waits and a
 * shard of the job is away. */
bool coord_snapshot_waiting(const struct coord_job *job, struct sentence *out);
/* Writes which snapshot is being taken, since when, and for whom it waits; empty: no snapshot is being
 * taken. */
void coord_snapshot_show(const struct coord_job *job, struct sentence *out);
/* Gives up the running snapshot if it has that id, or ("") any running snapshot. The session is answered
 * when the snapshot has ended. CAIRN_ERR_NOT_FOUND, CAIRN_ERR_BUSY. */
cairn_status coord_snapshot_cancel(struct coord_job *job, const char *id,
                                   struct coord_session *session, uint32_t request,
                                   struct sentence *why) CAIRN_MUST_CHECK;
void coord_snapshot_on_pin(struct coord_job *job, uint64_t number, struct cairn_version version);
void coord_snapshot_on_part(struct coord_job *job, uint32_t shard, const Cairn__SnapshotPart *part);
/* Notes what a shard's heartbeat says about snapshots. */
void coord_snapshot_on_progress(struct coord *cluster, const struct coord_shard_entry *entry,
                                const Cairn__Heartbeat *message);
/* The progress of a job's snapshot, added up from the last reports of all shards. */
struct snapshot_progress {
    uint64_t done_bytes, total_bytes;
    /* time, added up over all threads of a shard, for which the shard's updates waited for its staging;
     * this is the greatest of all shards */
    uint64_t waited_ms;
    uint64_t bytes_per_s;
    uint64_t left_s; /* time until all bytes are done, at the present rate */
};
/* Returns false if there is no snapshot, or no shard has reported yet. */
bool coord_snapshot_progress(const struct coord_job *job, struct snapshot_progress *out);
/* The shard has connected without its part of the job: if the snapshot is not pinned yet, it fails. */
void coord_snapshot_part_missed(struct coord_job *job, uint32_t shard);

/* Begins a snapshot for which nobody waits. CAIRN_ERR_BUSY: another one is being taken. */
cairn_status coord_snapshot_begin_unasked(struct coord_job *job, enum snapshot_cause cause,
                                          struct sentence *why) CAIRN_MUST_CHECK;

/* The layout may be stable again, or a step has ended: pins a snapshot that has waited for one of these.
 * With awaits_step, the snapshot keeps waiting for the end of a step: if it is pinned right after a step,
 * shards have the longest time to copy the state that the next update overwrites. */
void coord_snapshot_resume(struct coord_job *job, bool awaits_step);
/* No snapshot is due any more: has the shards drop what they have prepared. */
void coord_snapshot_unprepare(struct coord_job *job);
/* The job is lost or is to be dropped: its snapshot ends as soon as the snapshot's thread has ended. */
void coord_snapshot_abort(struct coord_job *job, const char *reason);
/* The job is about to be freed: fails the waiting requests with `reason`. */
void coord_snapshot_orphan(struct coord_job *job, const char *reason);

/* ==== digests ==== */

/* The digests of a job's state, which shards send, and the content root, which is made from these digests.
 * A snapshot has both, and a restore compares both for the state that it has loaded. */

#define CAIRN_DIGESTS_MAX ((size_t)16 << 20)

struct coord_digest {
    uint32_t tensor, plane;
    struct tree_node node;
};

/* A list of digests; all zero: empty. */
struct coord_digests {
    struct coord_digest *list; /* owned: [count] */
    size_t count, capacity;
};
void coord_digests_release(struct coord_digests *digests);

/* Adds the digests that a shard sent for a job of tensor_count tensors. CAIRN_ERR_PROTOCOL: there are too
 * many digests, or some are for planes that the job does not have. CAIRN_ERR_NO_MEMORY. */
cairn_status coord_digests_take(struct coord_digests *digests, size_t tensor_count,
                                const Cairn__SnapshotPart *part,
                                struct sentence *why) CAIRN_MUST_CHECK;
/* Adds the digests of one plane, from its tree or from a part of its tree. */
cairn_status coord_digests_add(struct coord_digests *digests, uint32_t tensor, enum plane plane,
                               const struct hash_tree *tree, struct sentence *why) CAIRN_MUST_CHECK;

/* Reads from the manifest's payload how many steps each tensor has missed, and fills in the fields of the
 * manifest for this. CAIRN_ERR_NO_MEMORY. Any thread. */
cairn_status coord_note_missed(struct manifest *manifest) CAIRN_MUST_CHECK;
/* Computes the content root of a state. `manifest` has the spec, step and payload of the state; its loss
 * scale and its root are not read. Sets *loss_scale_out to the loss scale in force. Sorts the digests. Any
 * thread. CAIRN_ERR_PROTOCOL: the digests do not cover each part of the state exactly once.
 * CAIRN_ERR_NO_MEMORY. */
cairn_status coord_content_root(const struct manifest *manifest, struct coord_digests *digests,
                                struct hash *root_out, double *loss_scale_out,
                                struct sentence *why) CAIRN_MUST_CHECK;

/* ==== a snapshot ==== */

/* A snapshot: the state of a job at one version, from all shards, as digests and as files. A snapshot
 * without files (`has_files` is false) is called a digest, and is taken in the same way.
 *
 *   begin → the core's PIN → PINNED: Pin to all shards, between the same two decisions on each
 *         → another thread makes the folder, whose name has the step; PinFolder to all shards
 *         → all parts in → WORKING (another thread): content root; manifest, last of all → answer
 *
 * A job has at most one snapshot at a time. The whole snapshot fails if a part fails, a shard goes away, or
 * an operator cancels it. In that case the other shards are told to stop, the folder is removed when all of
 * them have stopped, and training is not disturbed. */

enum coord_snapshot_step {
    CAIRN_SNAPSHOT_PREPARES, /* the shards allocate memory */
    CAIRN_SNAPSHOT_READY,    /* no other operation may be in the way */
    CAIRN_SNAPSHOT_PINS,     /* the core was told to pin a version */
    CAIRN_SNAPSHOT_MAKES_FOLDER,
    CAIRN_SNAPSHOT_GETS_PARTS,
    CAIRN_SNAPSHOT_COMMITS,
    CAIRN_SNAPSHOT_OVER
};

/* The state of a shard's part. BEGUN: the first message of the part has arrived, and others will follow. */
enum part_state { CAIRN_PART_NONE, CAIRN_PART_AWAITED, CAIRN_PART_BEGUN, CAIRN_PART_IN };
static inline bool part_is_open(uint8_t part)
{
    return part == CAIRN_PART_AWAITED || part == CAIRN_PART_BEGUN;
}

/* at_begin: the requests that are answered when the snapshot has begun. at_end: those that are answered
 * when it has ended. */
struct coord_snapshot_waiters {
    struct coord_waiters at_begin, at_end;
};

struct coord_snapshot {
    struct coord_steps steps;
    /* borrowed; NULL: the job was freed. The job is not restored while a snapshot of it runs */
    struct coord_job *job;
    uint64_t number;
    uint64_t job_id; /* id of the job */
    bool has_files;
    enum snapshot_cause cause;
    bool is_pinned; /* true: `version` is known, and the shards were told of it */
    struct cairn_version version;
    uint64_t begun_ms; /* on the loop's clock */
    /* coord_now_ms + 1: since when the snapshot has waited for a shard that may never answer; 0: it does
     * not wait for such a shard */
    uint64_t stuck_ms;
    cairn_status status; /* the first failure */
    struct sentence why;
    /* used by the thread that makes the folder, until the folder is made */
    char id[CAIRN_SNAPSHOT_ID_BYTES];
    uint64_t bytes; /* bytes of all files */
    /* true: the manifest has a payload, which came with the first part that arrived */
    bool has_payload;

    /* owned */
    char *folder;   /* NULL in a digest */
    uint8_t *parts; /* [shard_count], enum part_state */
    /* [shard_count]: bytes and waited time of each shard; 0: not reported yet */
    struct snapshot_progress *progress;
    struct coord_digests digests;
    /* a digest has a manifest, too, with content root, version and payload */
    struct manifest manifest;
    struct coord_snapshot_waiters now;
    /* [has_files]: requests that arrived during a periodic snapshot, and wait for the next digest or the
     * next snapshot, in this order */
    struct coord_snapshot_waiters next[2];
    struct coord_waiters at_cancel;
};

/* Returns the id of the snapshot; "": it has none yet. */
static inline const char *coord_snapshot_id(const struct coord_snapshot *snapshot)
{
    // "": the other thread is writing the id
    return coord_steps_at(&snapshot->steps) == CAIRN_SNAPSHOT_MAKES_FOLDER ? "" : snapshot->id;
}

/* Returns a new number, never 0. Shards refer to a snapshot by its number when they report hashes. */
uint64_t coord_snapshot_number(void);

struct snapshot_view;

/* Describes the running snapshot for a list, with its progress. False: the job has no snapshot under
 * way. */
bool coord_snapshot_running(const struct coord_job *job, struct snapshot_view *view);

/* Called when a SnapshotPart was taken: asks the shard for its next one. */
void coord_part_next(const struct coord_shard_entry *entry, const Cairn__SnapshotPart *part);
/* Returns, as a status, the failure that a shard reports in its part. */
cairn_status coord_part_failed(const Cairn__SnapshotPart *part, struct sentence *why);
/* A status message, and the texts that are made for the message. All other texts in the message are
 * borrowed. */
struct snapshot_view {
    Cairn__SnapshotStatus status;
    char nonfinite[CAIRN_RESULTS_BYTES];
};

/* Describes a snapshot that is being taken, without its progress. `view` borrows from `snapshot` and
 * `state`. */
void coord_snapshot_to_view(const struct coord_snapshot *snapshot, const char *state,
                            struct snapshot_view *view);
/* Describes a committed snapshot. `view` borrows from `manifest`, `id` and `folder`. */
void coord_manifest_to_view(const struct manifest *manifest, const char *id, const char *folder,
                            struct snapshot_view *view);

/* ==== parting ==== */

/* If a shard ends before its state has moved to other shards (reshard.h), the state is saved: the
 * coordinator itself begins a snapshot of each job that has a part on the shard. If several shards end
 * together, one snapshot of a job serves them all. Training continues meanwhile, and the steps after the
 * snapshot are lost with the shard. */

/* A job's parting snapshot. */
struct coord_parting {
    enum {
        CAIRN_PARTING_NONE,
        CAIRN_PARTING_WANTED, /* the snapshot will be taken as soon as nothing prevents it */
        CAIRN_PARTING_TAKEN,  /* the snapshot is under way */
        CAIRN_PARTING_ENDED,
    } state;
    bool is_saved;                /* true: ENDED with success, so the state is saved, .. */
    struct cairn_version version; /* .. as this version */
    /* in words: which snapshot has the state, or why the state is not saved */
    struct sentence outcome;
};

/* Takes the next step of the parting snapshot. Returns true if the snapshot has ended. */
bool coord_parting_advance(struct coord_job *job);

/* ==== periodic ==== */

/* Periodic snapshots, which the coordinator itself begins. With snapshot_every, each version whose step is
 * a multiple of this number is saved. With snapshot_every_s, a snapshot becomes due when this many seconds
 * have passed since one was last due, and the next version is saved. In a job with buffers_every, a write
 * follows the step, and the version that the write makes is saved, because only this version has the
 * buffers, too.
 *
 * The manifest of a periodic snapshot says that the snapshot is periodic, and has the id of the job. The
 * schedule thus continues after a restart, and a snapshot that somebody asked for, or that belongs to
 * another job of the name, is never removed. Old periodic snapshots are removed only when a newer one is
 * committed. If a periodic snapshot fails, or another snapshot runs when it is due, this is reported, and
 * the next one is tried when that one is due. While results of the job are not finite (round.h), no
 * periodic snapshot is taken. Training does not wait for any of this. */

#define CAIRN_FOR_LOGS_MAX 16

/* A job's snapshots: the snapshot under way, and when the next one is due. */
struct coord_snapshots {
    struct coord_snapshot *running; /* the snapshot or digest under way; NULL: there is none */
    struct cairn_version stepped;   /* the version at the last event */
    /* the number of the next snapshot, if shards were asked to prepare it; else 0 */
    uint64_t ahead;
    /* buffers_every: the version of a step was due, and the write after this step is still to come */
    bool awaits_write;
    /* coord_now_ms + 1 at the time from which snapshot_every_s counts, which is when a snapshot was last
     * due or, before that, when the first step was seen; 0: no step was seen */
    uint64_t due_ms;
    struct coord_cost cost;
    /* why the last periodic snapshot failed, for status; empty: it did not fail */
    struct sentence failed;
    /* for status: which snapshot a restore passed over, set by restore.c; empty after the next snapshot */
    struct sentence passed_over;
    struct coord_parting parting;
    /* logs.c: the newest that was committed since this process began. NULL: there was none */
    struct cairn_version newest;
    struct hash newest_root; /* its content root */
    char *newest_folder;     /* owned */
    uint64_t log_next_ms;    /* coord_now_ms: no snapshot is taken for a log before */
    uint32_t log_failures;   /* of those that were taken for a log, in a row */
    /* a ring of the versions that this process saved for logs alone: each goes when no log stands on it */
    struct cairn_version for_logs[CAIRN_FOR_LOGS_MAX];
    uint64_t for_log_count;
};

/* ---- digests.c ---- */

/* The periodic snapshot of that step has failed, or was not begun: status and log then say this, and say
 * when the next one is due. */
void coord_periodic_failed(struct coord_job *job, uint64_t step, const char *why);
/* coord_periodic_damaged: the job is damaged, so no periodic snapshot is taken. coord_periodic_undamaged:
 * the job is sound again. */
void coord_periodic_damaged(struct coord_job *job);
void coord_periodic_undamaged(struct coord_job *job);
/* Reports that the job's state was not saved, and that only older snapshots of the job are durable. */
void coord_parting_unsaved(struct coord_job *job, const char *why);

/* ==== keep ==== */

/* Decides about committed snapshots: which one `latest` names, which ones have tags, and which ones are
 * kept.
 *
 * `latest` names the newest snapshot that is complete and has finite results. At a snapshot's commit the
 * headers are read again, and then `latest` names this snapshot. If the snapshot is later read in full and
 * found damaged, `latest` again names the newest verified snapshot. If a snapshot is read in full (scrub,
 * below) and found good, it is recorded as verified (proto/snapshot_io/snapshot_io.h). After that the
 * snapshots that no rule of the job keeps (retention, below) are removed, each on a thread of its own
 * (keep.c). If a coordinator dies, it may leave snapshots of the job that it had begun but not committed,
 * or had begun to remove. These are removed, too.
 *
 * Nothing is removed if a tag cannot be read, or if the folder is another than the one that the snapshots
 * were written to. Training does not wait for any of this. */

/* Called when the snapshot is committed, and its files exist with their sizes and headers. Makes `latest`
 * name this snapshot if it is newer, so that a client that has waited for the snapshot can restore
 * `latest`. This function and the next one block, so both must be called on another thread than the loop's.
 * They write one record at a time. */
cairn_status coord_snapshot_note_latest(const struct coord *cluster, const char *job,
                                        const char *id, struct sentence *why) CAIRN_MUST_CHECK;
/* Called when the snapshot was read in full: records whether it is good or damaged. CAIRN_ERR_NOT_FOUND:
 * the snapshot was removed meanwhile, which is no damage, so nothing is recorded. */
cairn_status coord_snapshot_note_check(const struct coord *cluster, const char *job, const char *id,
                                       bool is_good, struct sentence *why) CAIRN_MUST_CHECK;
/* Called when a snapshot of the job was recorded as good: removes the snapshots that need not be kept any
 * longer. Loop thread. */
void coord_snapshot_keep(struct coord *cluster, const char *job);

/* Why a snapshot is to be removed. When the removal begins, the cause decides whether the snapshot may be
 * removed. */
enum removal_cause {
    /* somebody asked: the snapshot stays if it has a tag, or is the only verified one */
    CAIRN_REMOVAL_ASKED,
    CAIRN_REMOVAL_FORCED, /* somebody insists: the snapshot is removed together with its tags */
    /* no rule keeps the snapshot: it is removed if it has no tag and another snapshot is verified */
    CAIRN_REMOVAL_RETIRED,
    /* a dead coordinator left the snapshot behind, unfinished or partly removed: it is removed unless it is
     * committed */
    CAIRN_REMOVAL_LEFT
};
/* The first step of a removal. CAIRN_ERR_REFUSED: the snapshot may not be removed. Otherwise the folder is
 * no snapshot any more, and `latest` no longer names it, but its files still exist. Later decisions do not
 * count this snapshot. Blocks: call it on another thread than the loop's. */
cairn_status coord_snapshot_release(const struct coord *cluster, const char *job, const char *id,
                                    enum removal_cause cause, struct snapshot_removed *removed_out,
                                    struct sentence *why) CAIRN_MUST_CHECK;

/* Code that reads tags, and decides by them, must stand between these two calls: no snapshot is released
 * meanwhile. The lock blocks. */
void coord_snapshot_words_lock(void);
void coord_snapshot_words_unlock(void);

/* ==== retention ==== */

/* Decides which snapshots of a job are kept, and why, by the rules of the job's policy (proto/spec/spec.h).
 * The functions are pure.
 *
 * A periodic snapshot of the job is kept if any of keep_last, keep_every and keep_within names it. If there
 * is none of these rules, all periodic snapshots are kept. As long as the job's snapshots together have
 * more than max_bytes, the oldest one that keep_every does not name is removed. The following are kept in
 * any case:
 *   - snapshots of another job of the same name, those that somebody asked for, and those with a tag
 *   - the newest verified snapshot, the one that `latest` names, and all that are newer than every verified
 *     one
 *   - those on which a log of the job stands
 * A snapshot that was taken for a log alone counts for no rule, and goes when nothing of this keeps it.
 *
 * The caller sorts the snapshots by version: a higher version is newer. The wall clock is used only for
 * keep_within, and can only keep a snapshot longer. A snapshot's time is implausible if it is in the
 * future, or earlier than the time of an older snapshot. In that case the time of the next newer snapshot
 * that has a plausible time is used instead. If the clock's last jump is younger than keep_within, nothing
 * is removed by age. */

/* how far in the future a snapshot's time may be, because the clocks of hosts differ */
#define CAIRN_RETENTION_SKEW_S 60

struct retention_clock {
    uint64_t now_unix_s;
    /* seconds since the clock jumped (server/base/log.h); UINT64_MAX: the clock never jumped */
    uint64_t sound_s;
};

/* The rules of a policy; a value of 0 means that there is no such rule. */
struct retention_rules {
    uint64_t keep_last, keep_every, keep_within_s, max_bytes;
};

enum retention_fate {
    CAIRN_RETENTION_LAST,   /* kept: it is among the newest keep_last */
    CAIRN_RETENTION_EVERY,  /* kept: it is the first of keep_every steps */
    CAIRN_RETENTION_WITHIN, /* kept: it is younger than keep_within_s */
    CAIRN_RETENTION_NO_RULE,
    CAIRN_RETENTION_OTHERS, /* kept: it belongs to another job of the name */
    CAIRN_RETENTION_ASKED,
    CAIRN_RETENTION_TAGGED,
    CAIRN_RETENTION_BASE, /* kept: a log stands on it */
    CAIRN_RETENTION_LATEST,
    CAIRN_RETENTION_VERIFIED, /* kept: it is the newest verified one */
    CAIRN_RETENTION_NEEDED,   /* kept: no newer one is verified */
    CAIRN_RETENTION_CLOCK,    /* kept: its age is not known, because the clock has jumped */
    CAIRN_RETENTION_GOES,     /* removed: no rule names it */
    CAIRN_RETENTION_TOO_MUCH  /* removed: there are more than max_bytes */
};

struct retention_item {
    uint64_t created_unix_s, step, bytes;
    bool is_periodic; /* the snapshot is periodic, and of this very job */
    bool is_others;
    bool is_tagged, is_latest;
    bool is_verified;
    bool is_damaged; /* the snapshot counts for no rule */
    bool is_base, is_for_log;
    /* the job has turned away from the snapshot, so no other snapshot is removed because of this one */
    bool is_left;
    enum retention_fate fate; /* result */
};

/* Sets the fate of each item; the newest must be the first. There may be at most 1,000 items, because the
 * running time grows with the square of their number, or with its cube if the times of all items are
 * implausible. */
void retention_judge(const struct retention_rules *rules, const struct retention_clock *clock,
                     struct retention_item *items, size_t count);
static inline bool retention_goes(enum retention_fate fate)
{
    return fate >= CAIRN_RETENTION_GOES;
}
/* Returns the reason in words, such as "of the newest kept". */
const char *retention_reason(enum retention_fate fate);

/* ==== scrub ==== */

/* Reads snapshots again, so that damage is known before anybody needs them. Each snapshot is read after its
 * commit, and again whenever the job's snapshot_scrub_every_s has passed. One snapshot at a time is read,
 * past the page cache. The thread that reads gives way to all others, and works at most half of the time.
 *
 * Each result is kept in checks/ID beside the snapshots (proto/snapshot_io/snapshot_io.h), so that a
 * coordinator knows after a restart when each snapshot was last read. Damage is reported as an event and in
 * the log. Loop thread only. */

cairn_status coord_scrub_open(struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
/* Gives up the snapshot that is being read, and waits a moment for the thread. on_closed is called if the
 * scrub was open. */
void coord_scrub_close(struct coord *cluster, void (*on_closed)(void *context), void *context);
/* Frees the scrub, when the cluster is freed and its handles are closed. Returns false if the scrub's
 * thread hangs in the storage. The thread may read the cluster's `storage` when it continues, so `storage`
 * must not be freed before the process ends. */
bool coord_scrub_free(struct coord *cluster) CAIRN_MUST_CHECK;
/* Asks that the job's snapshot be read before those that are due. At most 64 snapshots can be asked for at
 * a time; any other is read when it is due. */
void coord_scrub_want(struct coord *cluster, const char *job, const char *id);
/* Begins to read the next snapshot, if any is due. */
void coord_scrub_tick(struct coord *cluster);

/* ==== advise ==== */

/* How often a job should take a snapshot: `cairn snapshot advise`.
 *
 * The answer is given by Young's rule (J. W. Young, "A first order approximation to the optimum checkpoint
 * interval", Communications of the ACM 17(9), 1974): time is lost by snapshots, and by steps that are
 * repeated after a fault, and the total loss is least at an interval of sqrt(2 * MTBF * cost). The rule
 * holds as long as the cost is small against the MTBF (mean time between faults). The cost is measured
 * (above). The MTBF is given by the operator, or computed from the cluster's events. */

struct advise_given {
    double mtbf_s; /* mean time between faults */
    double cost_s; /* cost of a snapshot, in training time; 0: too small to be measured */
    /* time from a snapshot's start to its commit; no interval is shorter than this */
    double write_s;
    double step_s; /* 0: not known */
};
struct advise_found {
    uint32_t interval_s;     /* at least 1, at most CAIRN_SPEC_SNAPSHOT_S_MAX */
    uint64_t interval_steps; /* at least 1; 0: not known */
    /* true: a snapshot takes longer than Young's interval, so the interval is write_s */
    bool by_write;
};
/* Applies the rule to the given values. Pure. */
struct advise_found coord_advise(const struct advise_given *given);

#endif
