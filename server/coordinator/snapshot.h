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

/* The committed snapshots in the store folder: for lists, and for a restore of the newest. */

#define CAIRN_FOUND_MAX 1000 /* more are not looked at: the oldest */

/* Where a snapshot stands among all of its job, also when it is gone: by version, since no job takes a
 * generation that lies in the folder of its name already (openings.c, restore.c). */
struct snapshot_place {
    struct cairn_version version;
    char id[CAIRN_SNAPSHOT_ID_BYTES]; /* empty: before all of them */
};
struct found_snapshot {
    bool is_left; /* its job turned away from it: it went back, or another one began (find_line) */
    struct snapshot_place place;
    char *folder; /* owned */
    struct manifest manifest;
    char signature[128]; /* for people; empty: nobody has looked at it */
};
struct coord_found {
    struct found_snapshot *list; /* owned: [count], the newest first */
    size_t count;
    struct sentence unread; /* which folders could not be read; empty: none */
};

/* Finds the snapshots of `job` (NULL = of all jobs), or only the one of that id (NULL = all).
 * Blocks: for another thread than the loop's. A snapshot whose manifest cannot be read is left
 * out, but is the failure if `id` asks for it. Release `out` in any case. CAIRN_ERR_IO: this is
 * not the folder that snapshots were written to (store.h). */
cairn_status coord_find_snapshots(const struct coord *cluster, const char *job, const char *id,
                                  struct coord_found *out, struct sentence *why) CAIRN_MUST_CHECK;
/* Which of one job's snapshots its present does not follow, when it last went back, or began, at `origin`;
 * NULL: as the newest says. Each that it does follow says which older ones it follows itself. */
void find_line(struct coord_found *found, const struct origin *origin);
/* `a` is the older one. */
bool snapshot_place_behind(const struct snapshot_place *a, const struct snapshot_place *b);
void coord_found_release(struct coord_found *found);

/* ---- keep.c ---- */

void coord_snapshot_remove(struct coord_session *session, uint32_t request,
                           const Cairn__SnapshotRemove *message);
/* The folder of a snapshot is being removed. */
bool coord_snapshot_removing(const struct coord *cluster, const char *folder);

/* ==== cost ==== */

/* The cost of a job's snapshots: by how much its steps took longer while a snapshot was written.
 * It is counted with each step, in memory alone: a new incarnation of the coordinator begins
 * anew. Loop thread only. */

struct coord_snapshot;

enum {
    CAIRN_COST_SNAPSHOTS = 8, /* the last so many count */
    CAIRN_COST_STEPS = 8      /* without a snapshot, before one can be compared with them */
};

/* A job's costs. Zero: nothing was measured. */
struct coord_cost {
    struct coord_pace plain; /* steps without a snapshot; seen stays unused */
    /* of the snapshot that is being taken, or ended within the open step */
    bool is_counting, has_ended, is_committed;
    uint64_t number;            /* the snapshot's */
    int64_t extra_us, usual_us; /* usual_us 0: there was nothing to compare with */
    uint64_t write_us;
    /* of the last that were committed */
    uint32_t extras_us[CAIRN_COST_SNAPSHOTS], writes_us[CAIRN_COST_SNAPSHOTS];
    uint32_t next, count;
};

/* A step of the job has ended, and took job->pace.last_us; before anybody begins a snapshot at its
 * version. */
void coord_cost_note_step(struct coord_job *job);
/* The snapshot has ended, well or not. */
void coord_cost_ended(const struct coord_snapshot *snapshot);

/* ==== snapshots that are taken ==== */

/* Cuts of jobs, for those who ask for one and those who tell of its shards. The section
 * "a snapshot" (below) says what one is. */

enum snapshot_cause {
    CAIRN_SNAPSHOT_ASKED,
    CAIRN_SNAPSHOT_PERIODIC /* below */,
    CAIRN_SNAPSHOT_PARTING /* below */
};

/* Begins one; `has_files` false: a digest. The session is answered later. A snapshot that is asked for
 * while a periodic one is being taken begins behind it. */
cairn_status coord_snapshot_begin(struct coord_job *job, bool has_files,
                                  struct coord_session *session, uint32_t request, bool wait,
                                  struct sentence *why) CAIRN_MUST_CHECK;
/* A snapshot that nobody waits for. CAIRN_ERR_BUSY: one is being taken. */
cairn_status coord_snapshot_begin_unasked(struct coord_job *job, enum snapshot_cause cause,
                                          struct sentence *why) CAIRN_MUST_CHECK;
/* For whom the job's snapshot waits; empty: for nobody. True: for somebody who is not there. */
bool coord_snapshot_waiting(const struct coord_job *job, struct sentence *out);
/* Which is being taken, for how long, and for whom it waits; empty: none is. */
void coord_snapshot_show(const struct coord_job *job, struct sentence *out);
/* One is there, and waits for whom: CAIRN_ERR_BUSY. */
cairn_status coord_snapshot_refuse(const struct coord_job *job,
                                   struct sentence *why) CAIRN_MUST_CHECK;
/* Gives up the one of that id, or with "" whichever there is; answered when it has ended.
 * CAIRN_ERR_NOT_FOUND, CAIRN_ERR_BUSY. */
cairn_status coord_snapshot_cancel(struct coord_job *job, const char *id,
                                   struct coord_session *session, uint32_t request,
                                   struct sentence *why) CAIRN_MUST_CHECK;
void coord_snapshot_on_pin(struct coord_job *job, uint64_t number, struct cairn_version version);
void coord_snapshot_on_part(struct coord_job *job, uint32_t shard, const Cairn__SnapshotPart *part);
/* Takes note of what a shard's heartbeat says about snapshots. */
void coord_snapshot_on_progress(struct coord *cluster, const struct coord_shard_entry *entry,
                                const Cairn__Heartbeat *message);
/* How far the shards of the job's snapshot are together, as they told last. */
struct snapshot_progress {
    uint64_t done_bytes, total_bytes;
    /* the longest that updates of a shard waited for its staging, threads added up */
    uint64_t waited_ms;
    uint64_t bytes_per_s;
    uint64_t left_s; /* if it goes on like that */
};
/* False: there is no snapshot, or nobody has told yet. */
bool coord_snapshot_progress(const struct coord_job *job, struct snapshot_progress *out);
void coord_snapshot_shard_gone(struct coord_job *job, uint32_t shard);
/* The shard came without its part of the job: nothing will be pinned. */
void coord_snapshot_part_missed(struct coord_job *job, uint32_t shard);

/* The layout may stand still again, or a step has ended: a snapshot that waited for that is pinned; not if it
 * awaits the next step. One that is pinned between two steps gives shards the longest time to copy what the
 * next update overwrites. */
void coord_snapshot_resume(struct coord_job *job, bool awaits_step);
/* One by steps is due in so many: shards prepare it, if that is soon. */
void coord_snapshot_prepare_ahead(struct coord_job *job, uint64_t steps);
/* None is due any more: what was prepared goes. */
void coord_snapshot_unprepare(struct coord_job *job);
/* One that waits for a shard in vain for longer than a lease is given up. */
void coord_snapshot_tick(struct coord_job *job);
/* The job is lost or to be dropped: it ends as soon as its thread has ended. */
void coord_snapshot_abort(struct coord_job *job, const char *reason);
/* The job is freed now: it has no snapshot after this, and who waited for one has heard why. */
void coord_snapshot_orphan(struct coord_job *job, const char *reason);
/* With the cluster. */
void coord_snapshot_close(struct coord_job *job);

/* ==== digests ==== */

/* The digests that shards send of a job's state, and the content root that they come to: of a snapshot, and
 * of what a restore has loaded. */

#define CAIRN_DIGESTS_MAX ((size_t)16 << 20)

struct coord_digest {
    uint32_t tensor, plane;
    struct tree_node node;
};

/* All zero: empty. */
struct coord_digests {
    struct coord_digest *list; /* owned: [count] */
    size_t count, capacity;
};
void coord_digests_release(struct coord_digests *digests);

/* Adds what a shard sent of a job of so many tensors. CAIRN_ERR_PROTOCOL: not of its planes, or too many.
 * CAIRN_ERR_NO_MEMORY. */
cairn_status coord_digests_take(struct coord_digests *digests, size_t tensor_count,
                                const Cairn__SnapshotPart *part,
                                struct sentence *why) CAIRN_MUST_CHECK;
/* The same of one plane's tree, or a part of it. */
cairn_status coord_digests_add(struct coord_digests *digests, uint32_t tensor, enum plane plane,
                               const struct hash_tree *tree, struct sentence *why) CAIRN_MUST_CHECK;

/* Copies what tensors have missed from the manifest's payload into the manifest's own fields.
 * CAIRN_ERR_NO_MEMORY. Any thread. */
cairn_status coord_note_missed(struct manifest *manifest) CAIRN_MUST_CHECK;
/* The content root of a state of which `manifest` has the spec, the step and the payload; of its loss scale
 * and its root nothing is read. *loss_scale_out is the one in force. Sorts the digests. Any thread.
 * CAIRN_ERR_PROTOCOL: they are not the whole of it, each part once. CAIRN_ERR_NO_MEMORY. */
cairn_status coord_content_root(const struct manifest *manifest, struct coord_digests *digests,
                                struct hash *root_out, double *loss_scale_out,
                                struct sentence *why) CAIRN_MUST_CHECK;

/* ==== a snapshot ==== */

/* A snapshot: every shard's state of a job at one version, as digests and as files. One without files
 * (`has_files`) is a digest, in all else the same.
 *
 *   begin → the core's PIN → PINNED: Pin to all shards, between the same two decisions on each
 *         → another thread makes the folder, whose name has the step; PinFolder to all shards
 *         → all parts in → WORKING (another thread): content root; manifest, last of all → answer
 *
 * One a job at a time. A part that fails, a shard that goes away, or an operator's word fails the set: the
 * others are told to stop, the folder is removed when they have, and training never notices. */

enum coord_snapshot_stage { CAIRN_SNAPSHOT_PINNING, CAIRN_SNAPSHOT_PINNED, CAIRN_SNAPSHOT_WORKING };

/* The state of a shard's part; BEGUN when its first message is in and more are to come. */
enum part_state { CAIRN_PART_NONE, CAIRN_PART_AWAITED, CAIRN_PART_BEGUN, CAIRN_PART_IN };
static inline bool part_is_open(uint8_t part)
{
    return part == CAIRN_PART_AWAITED || part == CAIRN_PART_BEGUN;
}

/* Who hears of it when it has begun, and when it has ended. */
struct coord_snapshot_waiters {
    struct coord_waiters at_begin, at_end;
};

struct coord_snapshot {
    struct coord_work work;
    struct coord_job *job; /* borrowed: not restored while a snapshot runs; NULL: it was freed */
    uint64_t number;
    uint64_t job_id; /* the job's own number */
    bool has_files;
    enum snapshot_cause cause;
    enum coord_snapshot_stage stage;
    bool is_ready; /* the shards have made memory for it, or it is not awaited */
    bool is_asked; /* the core has been told to pin it */
    bool making_folder;
    struct cairn_version version;
    uint64_t begun_ms;   /* of the loop's clock */
    uint64_t stuck_ms;   /* coord_now_ms: since when it waits in vain; 0: it does not */
    cairn_status status; /* the first failure */
    struct sentence why;
    /* of the thread that makes the folder, until that is done */
    cairn_status folder_status;
    struct sentence folder_why;
    char id[CAIRN_SNAPSHOT_ID_BYTES];
    uint64_t bytes;   /* of all files */
    bool has_payload; /* the manifest has one: of the first part that came */

    /* owned */
    char *folder;   /* NULL in a digest */
    uint8_t *parts; /* [shard_count], enum part_state */
    struct snapshot_progress
        *progress; /* [shard_count], of each the bytes and the wait; 0: untold */
    struct coord_digests digests;
    struct manifest manifest; /* of a digest too: content root, version, payload */
    struct coord_snapshot_waiters now;
    /* of a periodic one: they want one of their own, behind it */
    struct coord_snapshot_waiters next;
    struct coord_waiters at_cancel;
};

/* The id of the snapshot; empty while it has none. */
static inline const char *coord_snapshot_id(const struct coord_snapshot *snapshot)
{
    return snapshot->making_folder ? "" : snapshot->id; // the other thread writes it
}

/* Returns a new number, never 0, by which shards refer to a snapshot when they report hashes. */
uint64_t coord_snapshot_number(void);

struct snapshot_view;

/* The same for a list, with how far it is. False: the job has no snapshot under way. */
bool coord_snapshot_running(const struct coord_job *job, struct snapshot_view *view);

/* A shard's SnapshotPart was taken: it is asked for the next one of it. */
void coord_part_next(const struct coord_shard_entry *entry, const Cairn__SnapshotPart *part);
/* Its own failure, as a status. */
cairn_status coord_part_failed(const Cairn__SnapshotPart *part, struct sentence *why);
/* A status message with the texts that are made for it; the others are borrowed. */
struct snapshot_view {
    Cairn__SnapshotStatus status;
    char nonfinite[CAIRN_RESULTS_BYTES];
};

/* Says what of the saved version is not finite. */
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

/* Saves the state of a shard that ends before other shards hold it (reshard.h): the
 * coordinator itself begins a snapshot of each of the shard's jobs, one for all shards that end
 * together. Training goes on meanwhile; steps after the snapshot are lost with the shard. */

/* A job's parting snapshot. */
struct coord_parting {
    enum {
        CAIRN_PARTING_NONE,
        CAIRN_PARTING_WANTED, /* what stands in its way passes by itself */
        CAIRN_PARTING_TAKEN,  /* the snapshot is under way */
        CAIRN_PARTING_ENDED,
    } state;
    bool is_saved;                /* ENDED, and well: */
    struct cairn_version version; /* as this one */
    struct sentence outcome;      /* for people: saved as what, or why not */
};

/* The next step. True: it has ended. */
bool coord_parting_advance(struct coord_job *job);
/* The snapshot is of one, and has ended, well or not. */
void coord_parting_snapshot_ended(const struct coord_snapshot *snapshot);

/* ==== periodic ==== */

/* Periodic snapshots: of each version whose step is a multiple of the job's snapshot_every, or of the first
 * one when snapshot_every_s have passed since one was due, begun by the coordinator itself. In a job with
 * buffers_every the version is the one that a write makes after the step, which has the buffers, too.
 *
 * Which are periodic is in their manifests, with the number of the job, so that the count goes on after a
 * restart, and neither what somebody asked for nor what another job of the name has left is ever removed.
 * Old ones go when a newer one is committed, never before. One that fails, or is due while another snapshot
 * runs, is said, and the next is tried at its step. While results of the job are not finite (round.h) none
 * is taken. Training waits for none of it. */

/* A job's snapshots: the one under way, and when the next is due. */
struct coord_snapshots {
    struct coord_snapshot *running; /* a snapshot or a digest on its way; NULL: none is (above) */
    struct cairn_version stepped;   /* the version at the last event */
    /* the number of the next snapshot, which shards were asked to prepare; 0: they were not */
    uint64_t ahead;
    bool awaits_write; /* buffers_every: a step was due, and the write after it is still to come */
    uint64_t due_ms;   /* snapshot_every_s: coord_now_ms + 1 when one was due; 0: not yet */
    struct coord_cost cost;
    struct sentence failed;      /* the last periodic one; empty: it did not; for status */
    struct sentence passed_over; /* restore.c, until a snapshot is taken; for status */
};

/* ---- digests.c ---- */

/* A periodic one failed, or was not begun, of that step: status and log say so, and when the next is due. */
void coord_periodic_failed(struct coord_job *job, uint64_t step, const char *why);
/* None is taken while the job is damaged; or again. */
void coord_periodic_damaged(struct coord_job *job);
void coord_periodic_undamaged(struct coord_job *job);
/* The snapshot is a periodic one, and has ended, well or not. */
void coord_periodic_ended(const struct coord_snapshot *snapshot);
/* Nothing durable is left of the job but older snapshots, as things are. */
void coord_parting_unsaved(struct coord_job *job, const char *why);

/* ---- parts.c ---- */

/* ==== keep ==== */

/* The fate of committed snapshots: which one `latest` names, which have a tag, which stay.
 *
 * `latest` names the newest snapshot that is whole and has finite results. It does so from the
 * commit on, when the headers have been read again, until all of the snapshot is read and found
 * damaged; then `latest` goes back to the newest that is verified. A snapshot that was read and
 * found good (scrub, below) is noted so (proto/snapshot_io/snapshot_io.h). Then snapshots that no
 * rule of the job keeps (retention, below) are removed, each on a thread of its own (keep.c), and
 * so are the leftovers of a coordinator that died: snapshots of this job that it had begun and not
 * committed, or begun to remove.
 *
 * Nothing is removed if the folder is not the one that snapshots were written to, or if a tag
 * cannot be read. Training waits for none of this. */

/* It is committed, and its files are there with their sizes and headers: `latest` names it, if it is newer,
 * so that whoever waited for it restores it. Blocks, as the next one: another thread than the loop's; one
 * word is written at a time. */
cairn_status coord_snapshot_note_latest(const struct coord *cluster, const char *job,
                                        const char *id, struct sentence *why) CAIRN_MUST_CHECK;
/* All of it was read, and is good, or damaged. CAIRN_ERR_NOT_FOUND: it is gone meanwhile, which is no damage;
 * nothing is noted. */
cairn_status coord_snapshot_note_check(const struct coord *cluster, const char *job, const char *id,
                                       bool is_good, struct sentence *why) CAIRN_MUST_CHECK;
/* One of the job was noted as good, on the loop: removes what may go now. */
void coord_snapshot_keep(struct coord *cluster, const char *job);

/* Why a snapshot goes, by which is judged whether it may, as things are when it does. */
enum removal_cause {
    CAIRN_REMOVAL_ASKED,  /* not one with a tag, nor the only verified one */
    CAIRN_REMOVAL_FORCED, /* its tags go with it */
    CAIRN_REMOVAL_RETIRED, /* nothing keeps it: nor one with a tag, and while another one is verified */
    CAIRN_REMOVAL_LEFT /* begun, or begun to be removed, by one who died: not if it is committed */
};
/* The first of a removal: if it may go (CAIRN_ERR_REFUSED: it may not) it is no snapshot any more, and
 * `latest` is off it; its files are still there. Whoever asks next does not count on it. Blocks; another
 * thread than the loop's. */
cairn_status coord_snapshot_release(const struct coord *cluster, const char *job, const char *id,
                                    enum removal_cause cause, struct snapshot_removed *removed_out,
                                    struct sentence *why) CAIRN_MUST_CHECK;

/* Around what is read and then decided by tags: nothing is released meanwhile. Blocks. */
void coord_snapshot_words_lock(void);
void coord_snapshot_words_unlock(void);

/* ---- what an admin asks ---- */

void coord_snapshot_prune(struct coord_session *session, uint32_t request,
                          const Cairn__SnapshotPrune *message);
void coord_snapshot_tag(struct coord_session *session, uint32_t request,
                        const Cairn__SnapshotTag *message);

/* ==== retention ==== */

/* Which of a job's snapshots stay, and why: pure, by the rules of its policy (proto/spec/spec.h).
 *
 * A periodic snapshot of the job stays that any of keep_last, keep_every and keep_within names; without these
 * rules all do. While the snapshots of the job together have more than max_bytes, the oldest goes that
 * keep_every does not name. Whatever the rules say these stay:
 *   - what is not the job's, though it has its name, what somebody asked for, and what has a tag
 *   - the newest verified one, what `latest` names, and all that no newer verified one stands for
 *
 * Which is newer the caller says, by version. The wall clock is asked for keep_within alone, and can only
 * keep one for longer: a snapshot whose time lies in the future, or before that of an older one, is as young
 * as the next newer one; and while a jump of the clock is younger than keep_within, nothing goes by age. */

#define CAIRN_RETENTION_SKEW_S 60 /* so far in the future a snapshot may be: hosts differ */

struct retention_clock {
    uint64_t now_unix_s;
    uint64_t sound_s; /* since it jumped (server/base/log.h); UINT64_MAX: it did not */
};

/* 0: no such rule. */
struct retention_rules {
    uint64_t keep_last, keep_every, keep_within_s, max_bytes;
};

enum retention_fate {
    CAIRN_RETENTION_LAST,   /* of the newest keep_last */
    CAIRN_RETENTION_EVERY,  /* the first of keep_every steps */
    CAIRN_RETENTION_WITHIN, /* younger than keep_within_s */
    CAIRN_RETENTION_NO_RULE,
    CAIRN_RETENTION_OTHERS, /* another job's of the name */
    CAIRN_RETENTION_ASKED,
    CAIRN_RETENTION_TAGGED,
    CAIRN_RETENTION_LATEST,
    CAIRN_RETENTION_VERIFIED, /* the newest that is */
    CAIRN_RETENTION_NEEDED,   /* no newer one is verified */
    CAIRN_RETENTION_CLOCK,    /* how old it is cannot be told: the clock has jumped */
    CAIRN_RETENTION_GOES,     /* no rule names it */
    CAIRN_RETENTION_TOO_MUCH  /* goes: over max_bytes */
};

struct retention_item {
    uint64_t created_unix_s, step, bytes;
    bool is_periodic; /* of this very job */
    bool is_others;
    bool is_tagged, is_latest;
    bool is_verified;
    bool is_damaged;          /* it counts for no rule */
    bool is_left;             /* the job turned away from it: none of the others goes for it */
    enum retention_fate fate; /* out */
};

/* The newest is the first. At most 1,000: it takes the cube of their number where all
 * times are odd, and their square else. */
void retention_judge(const struct retention_rules *rules, const struct retention_clock *clock,
                     struct retention_item *items, size_t count);
static inline bool retention_goes(enum retention_fate fate)
{
    return fate >= CAIRN_RETENTION_GOES;
}
/* "of the newest kept", for people. */
const char *retention_reason(enum retention_fate fate);

/* ==== scrub ==== */

/* Reads snapshots again, so that damage is known before anybody needs them: each when it has been
 * committed, and then as often as the job's snapshot_scrub_every_s says. One snapshot at a time is
 * read, past the page cache, on a thread of its own that yields to all others and works no more
 * than half of the time.
 *
 * Each result stands in checks/ID beside the snapshots (proto/snapshot_io/snapshot_io.h), so that a
 * coordinator that starts again knows when each was read last; damage is an event and a line of
 * the log. Loop thread only. */

cairn_status coord_scrub_open(struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
/* Gives up what is being read, and waits for its thread a moment; on_closed follows if it was open. */
void coord_scrub_close(struct coord *cluster, void (*on_closed)(void *context), void *context);
/* Frees it; with the cluster, whose handles are closed. False: its thread hangs in the storage, and may read
 * the cluster's `storage` when it comes back: that stays, until the process ends. */
bool coord_scrub_free(struct coord *cluster) CAIRN_MUST_CHECK;
/* The snapshot of the job is to be read, before those whose time has come. More than 64 at a time are left to
 * these. */
void coord_scrub_want(struct coord *cluster, const char *job, const char *id);
/* Begins the next one, if there is one. */
void coord_scrub_tick(struct coord *cluster);

/* ==== advise ==== */

/* How often a job should take a snapshot: `cairn snapshot advise`.
 *
 * The answer is Young's rule (J. W. Young, "A first order approximation to the optimum
 * checkpoint interval", Communications of the ACM 17(9), 1974): the loss, as snapshots' cost and
 * as steps that are done again after a fault, is least at an interval of sqrt(2 * MTBF * cost).
 * The rule holds while the cost is small against the MTBF. The cost is measured (above),
 * and so is the time between faults (the cluster's events), unless it is given. */

struct advise_given {
    double mtbf_s;  /* mean time between faults */
    double cost_s;  /* of a snapshot, in time of training; 0: it was not to be seen */
    double write_s; /* from its begin until it is committed: no more often than that */
    double step_s;  /* 0: not known */
};
struct advise_found {
    uint32_t interval_s;     /* at least 1, at most CAIRN_SPEC_SNAPSHOT_S_MAX */
    uint64_t interval_steps; /* at least 1; 0: not known */
    bool by_write;           /* Young's would be shorter than a snapshot takes */
};
/* Pure. */
struct advise_found coord_advise(const struct advise_given *given);

/* CAIRN_ERR_NOT_FOUND: there is no such job. Loop thread. */
void coord_snapshot_advise(struct coord_session *session, uint32_t request,
                           const Cairn__SnapshotAdvise *message);

#endif
