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
#include "server/coordinator/round.h"
#include "server/core/decision.h"

/* ==== find ==== */

/* The committed snapshots in the folder of snapshots: for lists, and for a restore of the newest. */

#define CAIRN_FOUND_MAX 1000 /* the most snapshots that are read: the newest ones */

/* The place of a snapshot among all snapshots of its job, valid even after the snapshot is removed. Places
 * are ordered by version, since no job uses a generation that already has a snapshot in the folder of the
 * job's name (openings.c, restore.c). */
struct snapshot_place {
    struct cairn_version version;
    char id[CAIRN_SNAPSHOT_ID_BYTES]; /* empty: the place before all snapshots */
};
struct found_snapshot {
    /* true: the job turned away from this snapshot: the job went back, or a new job of the name began
     * (find_line) */
    bool is_left;
    struct snapshot_place place;
    char *folder; /* owned */
    struct manifest manifest;
    char signature[128]; /* in words; empty: not checked */
};
struct coord_found {
    struct found_snapshot *list; /* owned: [count], the newest first */
    size_t count;
    struct sentence unread; /* the folders that could not be read; empty: none */
};

/* Finds the snapshots of `job` (NULL = all jobs), or only the snapshot with that id (NULL = all snapshots).
 * Blocks: call it on another thread than the loop's. A snapshot whose manifest cannot be read is left out;
 * if `id` asks for such a snapshot, the call fails. Release `out` in any case. CAIRN_ERR_IO: this is not
 * the folder that snapshots were written to (store.h). */
cairn_status coord_find_snapshots(const struct coord *cluster, const char *job, const char *id,
                                  struct coord_found *out, struct sentence *why) CAIRN_MUST_CHECK;
/* Marks some of one job's snapshots with is_left: those from which the job's present state does not
 * descend. The job last went back, or began, at `origin`; NULL: the origin of the newest snapshot is used.
 * The origin of each snapshot on the line tells from which older snapshots it descends. */
void find_line(struct coord_found *found, const struct origin *origin);
/* True: `a` is older than `b`. */
bool snapshot_place_behind(const struct snapshot_place *a, const struct snapshot_place *b);
void coord_found_release(struct coord_found *found);

/* ---- keep.c ---- */

void coord_snapshot_remove(struct coord_session *session, uint32_t request,
                           const Cairn__SnapshotRemove *message);
/* True: the snapshot in that folder is being removed. */
bool coord_snapshot_removing(const struct coord *cluster, const char *folder);

/* ==== cost ==== */

/* The cost of a job's snapshots: how much longer its steps took while a snapshot was written. The cost is
 * measured with each step, and kept only in memory: a new incarnation of the coordinator starts without any
 * measurements. Loop thread only. */

struct coord_snapshot;

enum {
    CAIRN_COST_SNAPSHOTS = 8, /* only this many of the last snapshots count */
    CAIRN_COST_STEPS = 8      /* steps without a snapshot that are needed for a comparison */
};

/* A job's costs. Zero: nothing was measured. */
struct coord_cost {
    struct coord_pace plain; /* steps without a snapshot; `seen` is not used */
    /* the next fields are for the snapshot that is being taken, or that ended within the open step */
    bool is_counting, has_ended, is_committed;
    uint64_t number;            /* number of the snapshot */
    int64_t extra_us, usual_us; /* usual_us 0: there were no steps to compare with */
    uint64_t write_us;
    /* the next fields are for the last snapshots that were committed */
    uint32_t extras_us[CAIRN_COST_SNAPSHOTS], writes_us[CAIRN_COST_SNAPSHOTS];
    uint32_t next, count;
};

/* A step of the job has ended, and took job->pace.last_us. Called before a snapshot begins at the step's
 * version. */
void coord_cost_note_step(struct coord_job *job);
/* The snapshot has ended, with success or not. */
void coord_cost_ended(const struct coord_snapshot *snapshot);

/* ==== snapshots that are taken ==== */

/* Snapshots being taken: the calls for those who ask for a snapshot, and for the reports of its shards. The
 * section "a snapshot" (below) says what a snapshot is. */

enum snapshot_cause {
    CAIRN_SNAPSHOT_ASKED,
    CAIRN_SNAPSHOT_PERIODIC /* below */,
    CAIRN_SNAPSHOT_PARTING /* below */
};

/* Begins a snapshot, or a digest if `has_files` is false. The session is answered later. If a periodic
 * snapshot is being taken, the new snapshot begins afterwards. */
cairn_status coord_snapshot_begin(struct coord_job *job, bool has_files,
                                  struct coord_session *session, uint32_t request, bool wait,
                                  struct sentence *why) CAIRN_MUST_CHECK;
/* Begins a snapshot that nobody waits for. CAIRN_ERR_BUSY: another one is being taken. */
cairn_status coord_snapshot_begin_unasked(struct coord_job *job, enum snapshot_cause cause,
                                          struct sentence *why) CAIRN_MUST_CHECK;
/* Writes for whom the job's snapshot waits; empty: for nobody. Returns true if the snapshot waits and a
 * shard of the job is away. */
bool coord_snapshot_waiting(const struct coord_job *job, struct sentence *out);
/* Writes which snapshot is being taken, for how long already, and for whom it waits; empty: no snapshot is
 * being taken. */
void coord_snapshot_show(const struct coord_job *job, struct sentence *out);
/* Gives up the running snapshot if it has that id; with "", whatever its id is. The session is answered
 * when the snapshot has ended. CAIRN_ERR_NOT_FOUND, CAIRN_ERR_BUSY. */
cairn_status coord_snapshot_cancel(struct coord_job *job, const char *id,
                                   struct coord_session *session, uint32_t request,
                                   struct sentence *why) CAIRN_MUST_CHECK;
void coord_snapshot_on_pin(struct coord_job *job, uint64_t number, struct cairn_version version);
void coord_snapshot_on_part(struct coord_job *job, uint32_t shard, const Cairn__SnapshotPart *part);
/* Takes note of what a shard's heartbeat says about snapshots. */
void coord_snapshot_on_progress(struct coord *cluster, const struct coord_shard_entry *entry,
                                const Cairn__Heartbeat *message);
/* The progress of all shards of the job's snapshot together, as they last reported. */
struct snapshot_progress {
    uint64_t done_bytes, total_bytes;
    /* the longest time that a shard's updates waited for its staging, summed over its threads */
    uint64_t waited_ms;
    uint64_t bytes_per_s;
    uint64_t left_s; /* at the present rate */
};
/* Returns false if there is no snapshot, or no shard has reported yet. */
bool coord_snapshot_progress(const struct coord_job *job, struct snapshot_progress *out);
/* The shard connected without its part of the job: the snapshot fails if it is not pinned yet. */
void coord_snapshot_part_missed(struct coord_job *job, uint32_t shard);

/* The layout may be stable again, or a step has ended: pins a snapshot that waited for either, unless
 * awaits_step is set. Pinning right after a step gives shards the longest time to copy what the next update
 * overwrites. */
void coord_snapshot_resume(struct coord_job *job, bool awaits_step);
/* A snapshot is due in `steps` steps. If this is soon, shards prepare the snapshot. */
void coord_snapshot_prepare_ahead(struct coord_job *job, uint64_t steps);
/* No snapshot is due any more: drops what was prepared. */
void coord_snapshot_unprepare(struct coord_job *job);
/* The job is lost or is to be dropped: its snapshot ends as soon as the snapshot's thread has ended. */
void coord_snapshot_abort(struct coord_job *job, const char *reason);
/* The job is about to be freed: fails the waiting requests with `reason`, and detaches the snapshot from
 * the job. */
void coord_snapshot_orphan(struct coord_job *job, const char *reason);

/* ==== digests ==== */

/* The digests of a job's state that shards send, and the content root that is made from these digests. Both
 * are used for a snapshot, and for the state that a restore has loaded. */

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

/* Adds the digests that a shard sent, for a job of tensor_count tensors. CAIRN_ERR_PROTOCOL: some digests
 * are not of the job's planes, or there are too many. CAIRN_ERR_NO_MEMORY. */
cairn_status coord_digests_take(struct coord_digests *digests, size_t tensor_count,
                                const Cairn__SnapshotPart *part,
                                struct sentence *why) CAIRN_MUST_CHECK;
/* Adds the digests of one plane's tree, or of a part of the tree. */
cairn_status coord_digests_add(struct coord_digests *digests, uint32_t tensor, enum plane plane,
                               const struct hash_tree *tree, struct sentence *why) CAIRN_MUST_CHECK;

/* Copies the steps that tensors have missed from the manifest's payload into the manifest's own fields.
 * CAIRN_ERR_NO_MEMORY. Any thread. */
cairn_status coord_note_missed(struct manifest *manifest) CAIRN_MUST_CHECK;
/* Computes the content root of a state. `manifest` has the state's spec, step and payload; the manifest's
 * loss scale and root are not read. *loss_scale_out is the loss scale in force. Sorts the digests. Any
 * thread. CAIRN_ERR_PROTOCOL: the digests do not cover each part of the state exactly once.
 * CAIRN_ERR_NO_MEMORY. */
cairn_status coord_content_root(const struct manifest *manifest, struct coord_digests *digests,
                                struct hash *root_out, double *loss_scale_out,
                                struct sentence *why) CAIRN_MUST_CHECK;

/* ==== a snapshot ==== */

/* A snapshot: every shard's state of a job at one version, as digests and as files. A snapshot without
 * files (`has_files` false) is called a digest; everything else is the same.
 *
 *   begin → the core's PIN → PINNED: Pin to all shards, between the same two decisions on each
 *         → another thread makes the folder, whose name has the step; PinFolder to all shards
 *         → all parts in → WORKING (another thread): content root; manifest, last of all → answer
 *
 * A job has at most one at a time. A part that fails, a shard that goes away, or an operator's cancel fails
 * the whole snapshot: the other shards are told to stop, the folder is removed when they have stopped, and
 * training is not disturbed. */

enum coord_snapshot_stage { CAIRN_SNAPSHOT_PINNING, CAIRN_SNAPSHOT_PINNED, CAIRN_SNAPSHOT_WORKING };

/* The state of a shard's part. BEGUN: the first message of the part has arrived, and more will follow. */
enum part_state { CAIRN_PART_NONE, CAIRN_PART_AWAITED, CAIRN_PART_BEGUN, CAIRN_PART_IN };
static inline bool part_is_open(uint8_t part)
{
    return part == CAIRN_PART_AWAITED || part == CAIRN_PART_BEGUN;
}

/* The requests that are answered when the snapshot has begun, and when it has ended. */
struct coord_snapshot_waiters {
    struct coord_waiters at_begin, at_end;
};

struct coord_snapshot {
    struct coord_work work;
    /* borrowed: the job is not restored while a snapshot runs; NULL: it was freed */
    struct coord_job *job;
    uint64_t number;
    uint64_t job_id; /* the job's own number */
    bool has_files;
    enum snapshot_cause cause;
    enum coord_snapshot_stage stage;
    /* true: the shards have allocated memory for the snapshot, or it does not wait for this */
    bool is_ready;
    bool is_asked; /* true: the core has been told to pin the snapshot */
    bool making_folder;
    struct cairn_version version;
    uint64_t begun_ms; /* on the loop's clock */
    /* coord_now_ms + 1: since when the snapshot has waited for a shard that may never answer; 0: it does
     * not wait for one */
    uint64_t stuck_ms;
    cairn_status status; /* the first failure */
    struct sentence why;
    /* the next fields are used by the thread that makes the folder, until the folder is made */
    cairn_status folder_status;
    struct sentence folder_why;
    char id[CAIRN_SNAPSHOT_ID_BYTES];
    uint64_t bytes;   /* bytes of all files */
    bool has_payload; /* true: the manifest has a payload; it was in the first part that arrived */

    /* owned */
    char *folder;                       /* NULL in a digest */
    uint8_t *parts;                     /* [shard_count], enum part_state */
    struct snapshot_progress *progress; /* [shard_count], bytes and wait by shard; 0: none yet */
    struct coord_digests digests;
    struct manifest manifest; /* a digest has one, too: content root, version, payload */
    struct coord_snapshot_waiters now;
    /* requests that arrived during a periodic snapshot, and wait for the snapshot after it */
    struct coord_snapshot_waiters next;
    struct coord_waiters at_cancel;
};

/* Returns the id of the snapshot; empty while it has none. */
static inline const char *coord_snapshot_id(const struct coord_snapshot *snapshot)
{
    return snapshot->making_folder ? "" : snapshot->id; // the other thread is writing it
}

/* Returns a new number, never 0, by which shards refer to a snapshot when they report hashes. */
uint64_t coord_snapshot_number(void);

struct snapshot_view;

/* Describes the running snapshot for a list, with its progress. False: the job has no snapshot under
 * way. */
bool coord_snapshot_running(const struct coord_job *job, struct snapshot_view *view);

/* A shard's SnapshotPart was taken: asks the shard for the next one. */
void coord_part_next(const struct coord_shard_entry *entry, const Cairn__SnapshotPart *part);
/* Returns the failure that a shard reports in its part, as a status. */
cairn_status coord_part_failed(const Cairn__SnapshotPart *part, struct sentence *why);
/* A status message, with the texts that are made for the message. Its other texts are borrowed. */
struct snapshot_view {
    Cairn__SnapshotStatus status;
    char nonfinite[CAIRN_RESULTS_BYTES];
};

/* Describes which elements of the saved version are not finite. */
void coord_nonfinite_to_view(const struct manifest *manifest, struct snapshot_view *view);
/* Describes a committed snapshot. `view` borrows from `manifest`, `id` and `folder`. */
void coord_manifest_to_view(const struct manifest *manifest, const char *id, const char *folder,
                            struct snapshot_view *view);

/* ==== list ==== */

/* Answers an admin's questions about snapshots, both committed ones and those being taken. */

void coord_snapshots_list(struct coord_session *session, uint32_t request, const char *job);
void coord_snapshots_show(struct coord_session *session, uint32_t request, const char *job,
                          const char *id);

/* ==== parting ==== */

/* Saves the state of a shard that ends before its state has moved to other shards (reshard.h): the
 * coordinator itself begins a snapshot of each of the shard's jobs. If several shards end together, one
 * snapshot of a job serves them all. Training continues meanwhile; steps after the snapshot are lost with
 * the shard. */

/* A job's parting snapshot. */
struct coord_parting {
    enum {
        CAIRN_PARTING_NONE,
        CAIRN_PARTING_WANTED, /* the snapshot will be taken as soon as nothing prevents it */
        CAIRN_PARTING_TAKEN,  /* the snapshot is under way */
        CAIRN_PARTING_ENDED,
    } state;
    bool is_saved;                /* ENDED with success: the state is saved, .. */
    struct cairn_version version; /* .. as this version */
    /* in words: the snapshot that has the state, or why the state is not saved */
    struct sentence outcome;
};

/* Takes the next step of the parting snapshot. Returns true if the snapshot has ended. */
bool coord_parting_advance(struct coord_job *job);
/* The snapshot is a parting one, and has ended, with success or not. */
void coord_parting_snapshot_ended(const struct coord_snapshot *snapshot);

/* ==== periodic ==== */

/* Periodic snapshots, which the coordinator itself begins. With snapshot_every, each version whose step is
 * a multiple of that number is saved. With snapshot_every_s, the first version is saved once that many
 * seconds have passed since a snapshot was last due. In a job with buffers_every the saved version is the
 * one that a write makes after the step, because it has the buffers, too.
 *
 * The manifest of a periodic snapshot says that it is periodic, and has the number of the job. The count
 * thus continues after a restart, and snapshots that somebody asked for, or that belong to another job of
 * the name, are never removed. Old periodic snapshots are removed only when a newer one is committed. If a
 * periodic snapshot fails, or is due while another snapshot runs, this is reported, and the next one is
 * tried at its step. While results of the job are not finite (round.h) no periodic snapshot is taken.
 * Training does not wait for any of this. */

/* A job's snapshots: the one under way, and when the next is due. */
struct coord_snapshots {
    struct coord_snapshot *running; /* the snapshot or digest under way; NULL: none is (above) */
    struct cairn_version stepped;   /* the version at the last event */
    /* the number of the next snapshot, if shards were asked to prepare it; else 0 */
    uint64_t ahead;
    bool awaits_write; /* buffers_every: a step was due, and the write after it is still to come */
    uint64_t due_ms;   /* snapshot_every_s: coord_now_ms + 1 when one was due; 0: not yet */
    struct coord_cost cost;
    /* why the last periodic snapshot failed, for status; empty: it did not fail */
    struct sentence failed;
    struct sentence passed_over; /* set by restore.c, until a snapshot is taken; for status */
};

/* ---- digests.c ---- */

/* The periodic snapshot of that step failed, or was not begun. Status and log say this, and when the next
 * one is due. */
void coord_periodic_failed(struct coord_job *job, uint64_t step, const char *why);
/* damaged: the job is damaged, so no periodic snapshot is taken. undamaged: the job is sound again. */
void coord_periodic_damaged(struct coord_job *job);
void coord_periodic_undamaged(struct coord_job *job);
/* The snapshot is a periodic one, and has ended, with success or not. */
void coord_periodic_ended(const struct coord_snapshot *snapshot);
/* Reports that at present only older snapshots of the job are durable. */
void coord_parting_unsaved(struct coord_job *job, const char *why);

/* ==== keep ==== */

/* The fate of committed snapshots: which snapshot `latest` names, which snapshots have a tag, which are
 * kept.
 *
 * `latest` names the newest snapshot that is complete and has finite results. It names a snapshot from the
 * commit on, once the headers have been read again. If the snapshot is later read in full and found
 * damaged, `latest` goes back to the newest verified snapshot. A snapshot that was read and found good
 * (scrub, below) is recorded as such (proto/snapshot_io/snapshot_io.h). Then the snapshots that no rule of
 * the job keeps (retention, below) are removed, each on a thread of its own (keep.c). The leftovers of a
 * coordinator that died are removed, too: snapshots of this job that the dead coordinator had begun and not
 * committed, or had begun to remove.
 *
 * Nothing is removed if the folder is not the one that snapshots were written to, or if a tag cannot be
 * read. Training does not wait for any of this. */

/* The snapshot is committed, and its files exist with their sizes and headers: makes `latest` name the
 * snapshot, if it is newer, so that a client that waited for the snapshot restores it. This function and
 * the next one block: call both on another thread than the loop's. Such records are written one at a
 * time. */
cairn_status coord_snapshot_note_latest(const struct coord *cluster, const char *job,
                                        const char *id, struct sentence *why) CAIRN_MUST_CHECK;
/* The snapshot was read in full: records whether it is good or damaged. CAIRN_ERR_NOT_FOUND: it was removed
 * meanwhile, which is no damage; nothing is recorded. */
cairn_status coord_snapshot_note_check(const struct coord *cluster, const char *job, const char *id,
                                       bool is_good, struct sentence *why) CAIRN_MUST_CHECK;
/* A snapshot of the job was recorded as good: removes the snapshots that need not be kept any longer. Loop
 * thread. */
void coord_snapshot_keep(struct coord *cluster, const char *job);

/* Why a snapshot is removed; the cause decides, at the time of the removal, whether it may be. */
enum removal_cause {
    CAIRN_REMOVAL_ASKED,  /* a snapshot with a tag stays, and so does the only verified one */
    CAIRN_REMOVAL_FORCED, /* it is removed together with its tags */
    /* no rule keeps it: it is removed if it has no tag and another snapshot is verified */
    CAIRN_REMOVAL_RETIRED,
    /* a dead coordinator had begun it, or had begun to remove it: it is removed unless it is committed */
    CAIRN_REMOVAL_LEFT
};
/* The first step of a removal. CAIRN_ERR_REFUSED: the snapshot may not be removed. Otherwise it ceases to
 * be a snapshot, and `latest` no longer names it; its files still exist. Later decisions do not count this
 * snapshot. Blocks: call it on another thread than the loop's. */
cairn_status coord_snapshot_release(const struct coord *cluster, const char *job, const char *id,
                                    enum removal_cause cause, struct snapshot_removed *removed_out,
                                    struct sentence *why) CAIRN_MUST_CHECK;

/* Lock and unlock around code that reads tags and decides by these tags: no snapshot is released meanwhile.
 * Blocks. */
void coord_snapshot_words_lock(void);
void coord_snapshot_words_unlock(void);

/* ---- what an admin asks ---- */

void coord_snapshot_prune(struct coord_session *session, uint32_t request,
                          const Cairn__SnapshotPrune *message);
void coord_snapshot_tag(struct coord_session *session, uint32_t request,
                        const Cairn__SnapshotTag *message);

/* ==== retention ==== */

/* Decides which of a job's snapshots are kept, and why: pure, by the rules of its policy
 * (proto/spec/spec.h).
 *
 * A periodic snapshot of the job is kept if any of keep_last, keep_every and keep_within names it; without
 * these rules all are kept. While the snapshots of the job together have more than max_bytes, the oldest
 * snapshot that keep_every does not name is removed. Whatever the rules say, these are kept:
 *   - snapshots of another job of the same name, those that somebody asked for, and those with a tag
 *   - the newest verified one, the one that `latest` names, and all that have no newer verified one
 *
 * The caller sorts the snapshots by version: a higher version is newer. The wall clock is used only for
 * keep_within, and can only keep a snapshot longer. A snapshot counts as being as young as the next newer
 * one if its time is in the future, or earlier than the time of an older snapshot. If the clock's last jump
 * is younger than keep_within, nothing is removed by age. */

/* how far in the future a snapshot's time may be, since the clocks of hosts differ */
#define CAIRN_RETENTION_SKEW_S 60

struct retention_clock {
    uint64_t now_unix_s;
    /* seconds since the clock jumped (server/base/log.h); UINT64_MAX: it never jumped */
    uint64_t sound_s;
};

/* The rules of a policy; a value of 0 means that there is no such rule. */
struct retention_rules {
    uint64_t keep_last, keep_every, keep_within_s, max_bytes;
};

enum retention_fate {
    CAIRN_RETENTION_LAST,   /* it is among the newest keep_last */
    CAIRN_RETENTION_EVERY,  /* it is the first of keep_every steps */
    CAIRN_RETENTION_WITHIN, /* it is younger than keep_within_s */
    CAIRN_RETENTION_NO_RULE,
    CAIRN_RETENTION_OTHERS, /* it belongs to another job of the name */
    CAIRN_RETENTION_ASKED,
    CAIRN_RETENTION_TAGGED,
    CAIRN_RETENTION_LATEST,
    CAIRN_RETENTION_VERIFIED, /* it is the newest verified one */
    CAIRN_RETENTION_NEEDED,   /* no newer one is verified */
    CAIRN_RETENTION_CLOCK,    /* its age is not known, because the clock has jumped */
    CAIRN_RETENTION_GOES,     /* no rule names it */
    CAIRN_RETENTION_TOO_MUCH  /* it is removed: over max_bytes */
};

struct retention_item {
    uint64_t created_unix_s, step, bytes;
    bool is_periodic; /* it is a periodic one of this very job */
    bool is_others;
    bool is_tagged, is_latest;
    bool is_verified;
    bool is_damaged; /* it counts for no rule */
    /* the job turned away from it; no other snapshot is removed because of this one */
    bool is_left;
    enum retention_fate fate; /* result */
};

/* Sets the fate of each item; the newest must be the first. At most 1,000 items: the running time grows
 * with the square of their number, or with the cube if all their times are odd. */
void retention_judge(const struct retention_rules *rules, const struct retention_clock *clock,
                     struct retention_item *items, size_t count);
static inline bool retention_goes(enum retention_fate fate)
{
    return fate >= CAIRN_RETENTION_GOES;
}
/* Returns the reason in words, such as "of the newest kept". */
const char *retention_reason(enum retention_fate fate);

/* ==== scrub ==== */

/* Reads snapshots again, so that damage is known before anybody needs them: each one after its commit, and
 * then as often as the job's snapshot_scrub_every_s says. One snapshot at a time is read, past the page
 * cache, on a separate thread that yields to all others and works at most half of the time.
 *
 * Each result is kept in checks/ID beside the snapshots (proto/snapshot_io/snapshot_io.h), so that a
 * coordinator that starts again knows when each snapshot was last read. Damage is reported as an event and
 * in the log. Loop thread only. */

cairn_status coord_scrub_open(struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
/* Gives up the snapshot that is being read, and waits a moment for the thread. on_closed is called if the
 * scrub was open. */
void coord_scrub_close(struct coord *cluster, void (*on_closed)(void *context), void *context);
/* Frees the scrub, when the cluster is freed and its handles are closed. Returns false if the scrub's
 * thread hangs in the storage. The thread may read the cluster's `storage` when it continues, so `storage`
 * must not be freed before the process ends. */
bool coord_scrub_free(struct coord *cluster) CAIRN_MUST_CHECK;
/* Asks that the job's snapshot be read before those that are due. If more than 64 snapshots are asked for
 * at a time, the others are read only when they are due. */
void coord_scrub_want(struct coord *cluster, const char *job, const char *id);
/* Begins to read the next snapshot, if any is due. */
void coord_scrub_tick(struct coord *cluster);

/* ==== advise ==== */

/* How often a job should take a snapshot: `cairn snapshot advise`.
 *
 * The answer is Young's rule (J. W. Young, "A first order approximation to the optimum checkpoint
 * interval", Communications of the ACM 17(9), 1974): the total loss, from the cost of snapshots and from
 * steps that are repeated after a fault, is least at an interval of sqrt(2 * MTBF * cost). The rule holds
 * while the cost is small against the MTBF. The cost is measured (above), and so is the time between faults
 * (the cluster's events), unless it is given. */

struct advise_given {
    double mtbf_s;  /* mean time between faults */
    double cost_s;  /* cost of a snapshot, in training time; 0: too small to be measured */
    double write_s; /* time from a snapshot's start to its commit, which is the least interval */
    double step_s;  /* 0: not known */
};
struct advise_found {
    uint32_t interval_s;     /* at least 1, at most CAIRN_SPEC_SNAPSHOT_S_MAX */
    uint64_t interval_steps; /* at least 1; 0: not known */
    bool by_write;           /* Young's interval would be shorter than a snapshot takes */
};
/* Applies the rule to the given values. Pure. */
struct advise_found coord_advise(const struct advise_given *given);

/* Answers the session. CAIRN_ERR_NOT_FOUND: there is no such job. Loop thread. */
void coord_snapshot_advise(struct coord_session *session, uint32_t request,
                           const Cairn__SnapshotAdvise *message);

#endif
