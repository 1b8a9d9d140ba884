/* A restore under way. restore.c runs the restore, makes the job on the shards, and reports how the restore
 * ended. Before anything is changed, snapshot_read.c reads the snapshot on other threads: it chooses the
 * newest one, and proves that its state is the state that was saved. */
#ifndef CAIRN_COORDINATOR_RESTORE_H
#define CAIRN_COORDINATOR_RESTORE_H

#include "proto/snapshot/snapshot.h"
#include "server/base/daemon.h"
#include "server/coordinator/base.h"
#include "server/coordinator/job.h"
#include "server/coordinator/snapshot.h"
#include "server/coordinator/store.h"
#include "server/core/standing.h"

struct coord_restore;
typedef void (*cluster_restored_fn)(const struct coord_restore *restore, cairn_status status,
                                    const char *text);

/* The worker that wants a job's newest snapshot restored. */
struct coord_resumer {
    struct coord_tenant maker;
    struct identity who;
};

/* A restore of the newest complete snapshot (restore.c), which usually no admin asked for. */
struct restore_latest {
    /* called at the end, and then NULL; NULL also if an admin asked for the restore */
    cluster_restored_fn ended;
    bool is_resumed; /* true: a worker wants it, whom `who` names */
    /* id of the lost job that is restored; 0: the job of that name, whichever it is */
    uint64_t of_job;
    struct cairn_version newest; /* no snapshot of a later version is taken */
    /* true: `origin` and `turns` are those of the lost job, and no snapshot from which the lost job turned
     * away is taken. false: the origin of the newest snapshot is used */
    bool has_origin;
    struct origin origin;
    struct turns turns;
    /* only a snapshot older than this place is taken. After a snapshot was chosen, this is the place of
     * that snapshot */
    struct snapshot_place behind;
    bool none_found; /* true: there is no complete snapshot */
    /* says which newest snapshot was passed over, and why; empty: none was */
    struct sentence passed;
};

/* The generation that the restored job gets. */
struct restore_generation {
    uint64_t chosen; /* 0: not chosen yet */
    uint64_t last;   /* the highest generation in the names of the job's snapshots */
    uint64_t old_id; /* the job in whose row `chosen` is reserved; 0: none */
    bool reserves;   /* true: `chosen` is still to be reserved in the store */
};

/* steps.status and steps.why are used by the thread, and have the first failure of a part that the shards
 * loaded. */
struct coord_restore {
    struct coord_steps steps;
    struct coord_restore *next;  /* in the cluster's list */
    struct coord_waiters waiter; /* the admin who asked */
    struct coord_tenant maker;   /* who asked; empty: the lost job restores itself */
    struct identity who;         /* the admin's or tenant's, if `waiter` waits, or who resumes */
    bool plan;                   /* true: the restore only reports what would be done */
    /* true: the request named the snapshot by its id, so the snapshot is in the folder of snapshots */
    bool is_stored;
    bool fallback; /* true: if the snapshot is damaged, an older one is taken */
    struct restore_latest latest;
    struct key_ring ring;       /* the keys that were trusted when the restore began */
    struct trust_waiver waiver; /* the checks of trust that are waived */
    /* progress */
    /* true: the other thread has read the manifest and the files, and will not choose another folder */
    bool checked;
    /* true: a shard does not find the snapshot, so its storage is not the storage that was checked */
    bool unseen;
    /* the restored job */
    uint64_t job_id; /* set once the job is linked */
    struct restore_generation generation;
    bool is_its_own; /* true: the restored snapshot is one of the job's snapshots */
    bool plans;      /* true: the job is still to be planned, or compared with new openers' specs */
    uint64_t number; /* number of the SnapshotParts that report digests of the loaded state */
    /* replaces: the restore replaces a job. replaced: describes this job; the texts in it are borrowed */
    bool replaces;
    Cairn__ReplacedJob replaced;
    /* owned */
    /* folder of the snapshot, used by the checking thread until the check is done; NULL: the newest
     * snapshot is not found yet */
    char *folder;
    /* the folder as the request names it, which may be another path to `folder`; "": the newest snapshot
     * was asked for */
    char *asked;
    char *job_name; /* name of the restored job; NULL: the job has the name in the snapshot */
    /* settings in which the job is to differ from the snapshot; NULL: none */
    Cairn__SnapshotRestore *settings;
    /* the job's spec, if it differs from the manifest's spec; else empty */
    struct job_spec_data spec;
    struct manifest manifest;
    struct coord_draft draft; /* draft of the job, made before the existing job is given up */
    /* verdicts on the specs of the openers that ask for the restore, one for each distinct spec */
    struct coord_verdict *verdicts;
    /* [shard_count of the job], enum part_state; NULL: nothing is being loaded */
    uint8_t *parts;
    struct coord_digests digests;
};

/* ---- for those who ask for a restore ---- */

/* Called without an admin: restores the newest snapshot of the job that is older than `behind`. At the end
 * restore->latest.behind is the place of the chosen snapshot.
 *   of_job  the lost job that is to be restored (else CAIRN_ERR_CANCELED); no snapshot of a later version
 *           than this job's is taken, because such a snapshot belongs to another job that had the name. 0:
 *           any lost job of that name, or a name that no job has (else CAIRN_ERR_EXISTS).
 * A lost job keeps its policy and its least and greatest number of workers. At the end, `ended` is called
 * once, unless the cluster is closed before. `by` says who wants a job that may not be there, and is
 * judged by the snapshot's owner; NULL: the lost job restores itself. False: the restore was not begun. */
bool coord_restore_latest(struct coord *cluster, const char *job, uint64_t of_job,
                          const struct snapshot_place *behind, const struct coord_resumer *by,
                          cluster_restored_fn ended);

/* Returns true if the restore failed because the snapshot itself is damaged. An older snapshot may then be
 * good. */
static inline bool coord_restore_is_damage(cairn_status status)
{
    return status == CAIRN_ERR_CHECKSUM || status == CAIRN_ERR_CORRUPT ||
           status == CAIRN_ERR_MALFORMED || status == CAIRN_ERR_VERSION ||
           status == CAIRN_ERR_NOT_FOUND;
}
/* Called when the cluster is closed: nobody is told. */
void coord_restores_close(struct coord *cluster);
/* Takes a SnapshotPart, if it reports state that a restore has loaded. Otherwise returns false. */
bool coord_restore_on_part(struct coord_session *session, const Cairn__SnapshotPart *part);
/* The shard is gone: the restores that were loading on it fail. */
void coord_restores_shard_gone(struct coord *cluster, const struct coord_shard_entry *entry);

/* ---- snapshot_read.c: all but the first two run on another thread ---- */

/* Returns the name that the restored job has, or will have. */
const char *coord_restore_job_name(const struct coord_restore *restore);
/* Warns if no trusted key has signed the snapshot, or its manifest has no hash of itself. */
void coord_restore_warn(const struct coord_restore *restore);
/* Reads the manifest and the files of the folder that was asked for or chosen. Moves the manifest into the
 * restore. */
cairn_status coord_restore_check(struct coord_steps *steps, struct sentence *why);
/* Proves the files, before an existing job is given up. If the files are damaged, an older folder may be
 * chosen. */
cairn_status coord_restore_prove(struct coord_steps *steps, struct sentence *why);
/* Compares the content root made from the shards' reports with the manifest's content root. */
cairn_status coord_restore_prove_loaded(struct coord_steps *steps, struct sentence *why);

/* ---- the report on a restore ---- */

/* The restore is done. `damaged` says which newest snapshot was passed over, and why; the job's status
 * shows this text. Empty: no snapshot was passed over. */
void coord_restore_passed_over(const struct coord_restore *restore, const struct sentence *damaged);

/* ==== recovery ==== */

/* If a shard has lost its part of a job, and the job's on_shard_loss says so, the coordinator itself
 * restores the job's newest complete snapshot. Without this, the status of a lost job advises an operator
 * to do so.
 *
 *   a part is missed   the part's shard has connected without it (parts.c), or is away for
 *                      shard_loss_wait_s
 *     → LOST           members are put out with ROLLED_BACK, and members that open the job wait
 *     → restore        the newest snapshot, or, if this one is damaged, the one before, is restored as soon
 *                      as enough shards are connected (restore.c). If the part comes back earlier, the job
 *                      is not restored
 *     → running        the job has a new generation, at the snapshot's step, and keeps its policy and its
 *                      least and greatest number of workers
 *
 * A restore that an operator or a worker asked for may fail although its snapshot is good, for example
 * because a shard died. Such a restore is tried again in the same way, with the settings that were asked
 * for.
 *
 * If a shard does not see a snapshot, the snapshot is not taken as damaged. Instead, the coordinator waits
 * without a time limit for the shard's storage.
 *
 * A snapshot with a later version than the lost job belongs to an earlier job of that name.
 *
 * If no step is applied in between, a coordinator restores a job at most CAIRN_RESTORES_MAX times. After
 * that the job waits, which its status says. */

/* Takes the next step. Returns true if nobody waits for a restore any longer, because the job's parts are
 * back, or no further restore is tried: its openers may go on. */
bool coord_recovery_tick(struct coord_job *job);

/* ==== resume ==== */

/* For workers that open a job and ask that the job's newest snapshot be restored. */

/* The restore has ended. CAIRN_OK: the job exists, or there is no snapshot to restore it from. */
typedef void (*cluster_resumed_fn)(struct coord *cluster, const char *job, cairn_status status,
                                   const char *text);
/* Looks for snapshots of the job, and restores the newest complete one, unless such a restore is under way
 * already. After that, `ended` is told. If the job is not there, its snapshot says whose it will be, and `by`
 * must be its owner or an admin. Returns false if there is no memory. */
bool coord_resume_begin(struct coord *cluster, const char *job, const struct coord_resumer *by,
                        cluster_resumed_fn ended);
bool coord_resuming(const struct coord *cluster, const char *job);
/* Called when the cluster is closed, after its threads have ended: nobody is told. */
void coord_resumes_close(struct coord *cluster);

/* ==== adopt ==== */

/* Adoption: an operator has the jobs that the shards hold put into the store. */

/* Ends an adoption that has waited too long. */
void coord_adopt_tick(struct coord *cluster);
/* Called when the cluster is closed, after its threads have ended. */
void coord_adopt_close(struct coord *cluster);

/* ==== adopt private ==== */

/* An adoption under way: adopt.c asks the shards which parts they hold, judges the parts, puts the jobs
 * into the store, and loads the jobs from there. */

/* A job that is to be adopted. `best` is valid until its shard sends the next HeldJobs. */
struct coord_adoptee {
    Cairn__HeldJob *best;           /* borrowed: the part with the newest layout and spec */
    struct coord_shard_entry *from; /* the shard that holds `best` */
    struct marks marks;             /* the highest marks of all parts */
    /* generation: the one that is being judged. below: `generation` is the highest one below this bound */
    uint64_t generation, below;
    uint64_t version_generation, step, lowest_step;
    struct sentence refused; /* why the job cannot be adopted; empty: it is complete */
    /* owned */
    char *name;
    /* [CAIRN_SHARD_ENTRIES_MAX], of which shard_count are used; the names are borrowed from the entries */
    struct stored_shard *shards;
    uint32_t shard_count;
    struct paged parts[CAIRN_PARTS];
    uint64_t id, base_step;
    uint32_t request; /* id of the PartGet for `best`; 0: not sent, or its pages have arrived */
};

struct coord_adoption {
    struct coord_steps steps;
    struct coord_waiters waiter;
    bool plan;
    uint64_t began_ms;          /* when the question began */
    struct coord_adoptee *jobs; /* owned: [job_count] */
    size_t job_count;
    /* number of jobs that are refused already, or whose spec and layout were asked for */
    size_t asked_count;
    /* owned: [silent_count]: names of the shards that did not say which parts they hold; each name is
     * borrowed from its entry */
    char **silent;
    size_t silent_count;
    struct stored_job *rows; /* owned: [row_count] */
    size_t row_count;
    /* [key_count]: the keys that shards had kept with their parts; the store will trust these keys */
    struct trusted_key keys[CAIRN_KEYS_MAX];
    size_t key_count;
    /* the store to which the parts belonged before; 0: several stores, or our own */
    uint64_t former;
    uint64_t incarnation;
};

#endif
