/* A cut: every shard's state of a job at one version, as digests and, for a snapshot, as files.
 *
 *   begin → the core's PIN → PINNED: Pin to all shards, between the same two decisions on each
 *         → another thread makes the folder, whose name has the step; PinFolder to all shards
 *         → all parts in → WORKING (another thread): content root; manifest, last of all → answer
 *
 * One a job at a time. A part that fails, a shard that goes away, or an operator's word fails the set: the
 * others are told to stop, the folder is removed when they have, and training never notices. */
#ifndef CAIRN_COORDINATOR_CUT_CUT_H
#define CAIRN_COORDINATOR_CUT_CUT_H

#include "proto/snapshot/manifest.h"
#include "proto/snapshot/snapshot_file.h"
#include "proto/spec/results.h"
#include "server/coordinator/base/names.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/cut/digests.h"

enum cairn_cluster_cut_stage { CAIRN_CUT_PINNING, CAIRN_CUT_PINNED, CAIRN_CUT_WORKING };

/* The state of a shard's part; BEGUN when its first message is in and more are to come. */
enum cairn_part_state { CAIRN_PART_NONE, CAIRN_PART_AWAITED, CAIRN_PART_BEGUN, CAIRN_PART_IN };
static inline bool cairn_part_is_open(uint8_t part)
{
    return part == CAIRN_PART_AWAITED || part == CAIRN_PART_BEGUN;
}

/* Who hears of it when it has begun, and when it has ended. */
struct cairn_cluster_cut_waiters {
    struct cairn_cluster_waiter *at_begin, *at_end;
};

struct cairn_cluster_cut {
    struct cairn_cluster_work work;
    struct cairn_cluster_job *job; /* borrowed: not restored while a cut runs; NULL: it was freed */
    uint64_t number;
    uint64_t job_id; /* the job's own number */
    bool is_snapshot;
    enum cairn_cut_cause cause;
    enum cairn_cluster_cut_stage stage;
    bool is_ready; /* the shards have made memory for it, or it is not awaited */
    bool is_asked; /* the core has been told to pin it */
    bool making_folder;
    struct cairn_version version;
    uint64_t begun_ms;   /* of the loop's clock */
    uint64_t stuck_ms;   /* cairn_cluster_now_ms: since when it waits in vain; 0: it does not */
    cairn_status status; /* the first failure */
    struct cairn_sentence why;
    /* of the thread that makes the folder, until that is done */
    cairn_status folder_status;
    struct cairn_sentence folder_why;
    char id[CAIRN_SNAPSHOT_ID_BYTES];
    uint64_t bytes;   /* of all files */
    bool has_payload; /* the manifest has one: of the first part that came */

    /* owned */
    char *folder;   /* NULL in a digest */
    uint8_t *parts; /* [shard_count], enum cairn_part_state */
    struct cairn_cut_progress
        *progress; /* [shard_count], of each the bytes and the wait; 0: untold */
    struct cairn_cluster_digests digests;
    struct cairn_manifest manifest; /* of a digest too: content root, version, payload */
    struct cairn_cluster_cut_waiters now;
    /* of a periodic one: they want one of their own, behind it */
    struct cairn_cluster_cut_waiters next;
    struct cairn_cluster_waiter *at_cancel;
};

/* ---- prepare.c ---- */
/* Returns a new number, never 0, by which shards refer to a snapshot when they report hashes. */
uint64_t cairn_cluster_cut_number(void);
/* Gives it a number, that of one which was prepared ahead if there is one; else asks the shards for memory.
 * False: that is not waited for. */
bool cairn_cluster_cut_prepare(struct cairn_cluster_cut *cut);

/* At a tick: what was prepared ahead goes where no step comes, or the memory has another use. */
void cairn_cluster_cut_look_behind(struct cairn_cluster_job *job);

/* ---- cut.c ---- */
/* May one be begun, but for a cut that runs? */
cairn_status cairn_cluster_cut_judge(const struct cairn_cluster_job *job, bool is_snapshot,
                                     struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* One has ended: takes those who wait for the next. */
void cairn_cluster_cut_follow(struct cairn_cluster_job *job,
                              struct cairn_cluster_cut_waiters waiters);

/* ---- progress.c ---- */
/* For people, behind what the sentence says: bytes, rate, seconds left; nothing if nobody has told. */
void cairn_cluster_cut_add_progress(const struct cairn_cluster_job *job,
                                    struct cairn_sentence *out);

struct cairn_snapshot_view;
/* Describes a snapshot that is being taken, without its progress. `view` borrows from `cut` and
 * `state`. */
void cairn_cluster_cut_to_view(const struct cairn_cluster_cut *cut, const char *state,
                               struct cairn_snapshot_view *view);
/* The same for a list, with how far it is. False: the job has no snapshot under way. */
bool cairn_cluster_cut_running(const struct cairn_cluster_job *job,
                               struct cairn_snapshot_view *view);

/* ---- end.c ---- */
/* The first failure counts; the shards that are at work are told to stop. */
void cairn_cluster_cut_fail(struct cairn_cluster_cut *cut, cairn_status status, const char *name,
                            const char *text);
/* To the other thread, if all parts are in or will never come. */
void cairn_cluster_cut_advance(struct cairn_cluster_cut *cut);
/* The id of the snapshot; empty while it has none. */
const char *cairn_cluster_cut_id(const struct cairn_cluster_cut *cut);
/* PinFolder to the shards that are at work; path "": what they do is of no use. */
void cairn_cluster_cut_tell_folder(const struct cairn_cluster_cut *cut, const char *path);
/* Answers nobody. */
void cairn_cluster_cut_free(struct cairn_cluster_cut *cut);

/* ---- work.c ---- */
/* Makes the folder, and the id. Any thread, as the next one; touches, too, what is constant of the cluster.
 * */
void cairn_cluster_cut_make_folder(struct cairn_cluster_work *work);
/* The content root of what the parts said, into the manifest, and for a snapshot the manifest onto
 * storage; on failure the folder is removed. Any thread: touches the cut alone, and its copy of the spec. */
void cairn_cluster_cut_work(struct cairn_cluster_work *work);
/* A shard's SnapshotPart was taken: it is asked for the next one of it. */
void cairn_cluster_part_next(const struct cairn_cluster_seat *seat,
                             const Cairn__SnapshotPart *part);
/* Its own failure, as a status. */
cairn_status cairn_cluster_part_failed(const Cairn__SnapshotPart *part, struct cairn_sentence *why);
/* A status message with the texts that are made for it; the others are borrowed. */
struct cairn_snapshot_view {
    Cairn__SnapshotStatus status;
    char nonfinite[CAIRN_RESULTS_BYTES];
};
/* Says what of the saved version is not finite. */
void cairn_cluster_snapshot_nonfinite(const struct cairn_manifest *manifest,
                                      struct cairn_snapshot_view *view);
/* Describes a committed snapshot. `view` borrows from `manifest`, `id` and `folder`. */
void cairn_cluster_manifest_to_view(const struct cairn_manifest *manifest, const char *id,
                                    const char *folder, struct cairn_snapshot_view *view);

#endif
