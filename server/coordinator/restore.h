/* A restore under way. restore.c runs it, makes the job on the shards, and reports how the restore ended.
 * Before anything is changed, snapshot_read.c reads on other threads: it chooses the newest snapshot, and
 * proves that the state is the state that was saved. */
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

/* A restore of the newest complete snapshot (restore.c), which usually no admin asked for. */
struct restore_latest {
    /* called at the end; NULL: an admin asked for the restore, or `ended` was called already */
    cluster_restored_fn ended;
    uint64_t of_job;             /* the lost job that is restored; 0: whichever job has the name */
    struct cairn_version newest; /* no snapshot ahead of this version is taken */
    /* has_origin: `origin` is that of the lost job, and no snapshot from which that job turned away is
     * taken. Otherwise the origin of the newest snapshot is used */
    bool has_origin;
    struct origin origin;
    /* only a snapshot older than this place is taken; once a snapshot is chosen, this is its place */
    struct snapshot_place behind;
    bool none_found; /* there is no complete snapshot */
    /* the newest snapshot that was passed over, and why */
    struct sentence passed;
};

struct coord_restore {
    struct coord_work work;
    struct coord_restore *next; /* in the cluster's list */
    struct coord *cluster;
    struct coord_waiters waiter; /* the admin who asked */
    bool plan;                   /* true: the restore only reports what would be done */
    /* true: the snapshot was asked for by its id, so it is in the folder of the snapshots */
    bool is_stored;
    bool fallback; /* true: if that snapshot is damaged, an older one is taken */
    struct restore_latest latest;
    struct key_ring ring;       /* the keys that were trusted when the restore began */
    struct trust_waiver waiver; /* the checks of trust that are waived */
    /* progress */
    /* true: the other thread has read manifest and files, and will choose no other folder */
    bool checked;
    bool made; /* true: all shards have made the job, and said Done */
    /* true: a shard does not find the snapshot, so its storage is not the storage that was checked */
    bool unseen;
    cairn_status status;
    struct sentence why;
    /* the restored job */
    uint64_t job_id;     /* set once the job is linked */
    uint64_t generation; /* 0: not chosen yet */
    /* the highest generation in the names of the job's snapshots; is_its_own: the restored snapshot is one
     * of these snapshots */
    uint64_t last_generation;
    bool is_its_own;
    uint64_t old_id; /* the job in whose row the generation is reserved; 0: none */
    bool reserving;  /* the store is being asked to reserve the generation */
    uint64_t number; /* number of the SnapshotParts that report digests of the loaded state */
    /* the restore replaces a job, which `replaced` describes; its texts are borrowed */
    bool replaces;
    Cairn__ReplacedJob replaced;
    /* owned */
    /* used by the checking thread until the check is done; NULL: the newest snapshot is not found yet */
    char *folder;
    /* the folder as named in the request, perhaps by another path; "": the newest snapshot was asked for */
    char *asked;
    char *job_name; /* name of the restored job; NULL: the snapshot's */
    /* settings in which the job is to differ from the snapshot; NULL: none */
    Cairn__SnapshotRestore *settings;
    /* the job's spec, if it differs from the manifest's; else empty */
    struct job_spec_data spec;
    struct manifest manifest;
    struct coord_draft draft; /* draft of the job, made before the existing job is given up */
    /* verdicts on the specs of the openers that ask for the restore, each spec once */
    struct coord_verdict *verdicts;
    /* [shard_count of the job], enum part_state; NULL: nothing is being loaded */
    uint8_t *parts;
    struct coord_digests digests;
};

/* ---- for those who ask for one ---- */

void coord_restore_begin(struct coord_session *session, uint32_t request,
                         const Cairn__SnapshotRestore *message);
/* Called without an admin: restores the newest snapshot of the job that is older than `behind`. At the end
 * restore->latest.behind is the place of the chosen snapshot.
 *   of_job  the lost job that is to be restored (else CAIRN_ERR_CANCELED); no snapshot ahead of where that
 *           job was is taken, because it belongs to another job that had the name. 0: any lost job of that
 *           name, or a name that no job has (else CAIRN_ERR_EXISTS).
 * A lost job keeps its policy and its bounds of workers. `ended` is called once, at the end, unless the
 * cluster closes before. False: the restore was not begun. */
bool coord_restore_latest(struct coord *cluster, const char *job, uint64_t of_job,
                          const struct snapshot_place *behind, cluster_restored_fn ended);

/* Returns true if the snapshot itself is at fault, so that the previous snapshot may be good. */
bool coord_restore_is_damage(cairn_status status);
/* Called when the cluster is closed: nobody is told. */
void coord_restores_close(struct coord *cluster);
/* Takes a SnapshotPart. Returns true if the part belongs to the state that a restore has loaded. */
bool coord_restore_on_part(struct coord_session *session, const Cairn__SnapshotPart *part);
/* The shard is gone: the restores that were loading on it fail. */
void coord_restores_shard_gone(struct coord *cluster, const struct coord_shard_entry *entry);

/* ---- snapshot_read.c: but for the first two on another thread ---- */

/* Returns the name that the restored job has, or will have. */
const char *coord_restore_job_name(const struct coord_restore *restore);
/* Warns about a snapshot that no trusted key has signed, or whose manifest has no hash over itself. */
void coord_restore_warn(const struct coord_restore *restore);
/* Reads manifest and files of the folder, whether it was asked for or chosen. Moves the manifest into the
 * restore. */
void coord_restore_check(struct coord_work *work);
/* Proves the files before an existing job is given up. If they are damaged, an older folder may be
 * chosen. */
void coord_restore_prove(struct coord_work *work);
/* Compares the content root made from the shards' reports with the manifest's content root. */
void coord_restore_prove_loaded(struct coord_work *work);

/* ---- for those who ask for one: what is said of it ---- */

/* The restore is done. `damaged` says which newest snapshot was passed over, and why; the job's status
 * shows this text. Empty: no snapshot was passed over. */
void coord_restore_passed_over(const struct coord_restore *restore, const struct sentence *damaged);

/* ==== recovery ==== */

/* If a shard has lost its part of a job, and the job's on_shard_loss says so, the coordinator restores the
 * job's newest complete snapshot by itself. It thus does, without the operator, what the text of a lost job
 * advises.
 *
 *   a part is missed   its shard connected without it (parts.c), or is away for shard_loss_wait_s
 *     → LOST           members are put out with ROLLED_BACK; those that open the job wait
 *     → restore        of the newest snapshot, or, if that is damaged, of the one before, as soon as
 *                      enough shards are connected (restore.c); if the part comes back first, the job is
 *                      not restored
 *     → running        in a new generation, at the snapshot's step, with the policy and the bounds of
 *                      workers that the job had
 *
 * If a restore that an operator or a worker asked for fails, and its snapshot is not the cause (a shard
 * died), it is tried again in the same way, with the settings that were asked for.
 *
 * A snapshot that a shard does not see is not damaged: the coordinator waits for that shard's storage
 * without a time limit.
 *
 * A snapshot with a later version than the lost job belongs to an earlier job of that name.
 *
 * This coordinator restores a job at most CAIRN_RESTORES_MAX times without an applied step in between. Then
 * the job waits, and its status says so. */

void coord_recovery_tick(struct coord_job *job);

/* ==== resume ==== */

/* Workers that open a job and ask that its newest snapshot be restored. */

/* Looks for snapshots of the job, and restores the newest complete one, unless this is under way already.
 * Then the waiting openers continue (coord_openers_resumed). Returns false if there is no memory. */
bool coord_resume_begin(struct coord *cluster, const char *job);
bool coord_resuming(const struct coord *cluster, const char *job);
/* Called when the cluster is closed, after its threads have ended: nobody is told. */
void coord_resumes_close(struct coord *cluster);

/* ==== adopt ==== */

/* Adoption: takes the jobs that the shards hold into the store, because an operator asks for this. */

/* Begins an adoption, or only plans it; the session is answered. */
void coord_adopt(struct coord_session *session, uint32_t request,
                 const Cairn__ClusterAdopt *message);
/* Takes a shard's Part, or one of its Pages. */
void coord_adopt_on_part(struct coord_session *session, uint32_t request, const Cairn__Part *part);
void coord_adopt_on_page(struct coord_session *session, uint32_t request, const Cairn__Page *page);
/* Ends an adoption that has waited too long. */
void coord_adopt_tick(struct coord *cluster);
/* Called when the cluster is closed, after its threads have ended. */
void coord_adopt_close(struct coord *cluster);

/* ==== adopt private ==== */

/* An adoption under way: adopt.c asks the shards, judges the parts that they hold, puts the jobs into the
 * store and loads them from there. */

/* A job that is to be adopted. Pointers into parts are valid until the next HeldJobs. */
struct coord_adoptee {
    Cairn__HeldJob *best;           /* borrowed: the part with the newest layout and spec */
    struct coord_shard_entry *from; /* the shard that holds `best` */
    struct marks marks;             /* the highest marks of all parts */
    /* the generation that is being judged, and the bound below which this generation was chosen */
    uint64_t generation, below;
    uint64_t version_generation, step, lowest_step;
    struct sentence refused; /* why the job cannot be adopted; empty: it is complete */
    /* owned */
    char *name;
    /* [CAIRN_SHARD_ENTRIES_MAX], shard_count of them used; names are borrowed from the entries */
    struct stored_shard *shards;
    uint32_t shard_count;
    struct paged spec, layout;
    uint64_t id, base_step;
    uint32_t request; /* id of its PartGet; 0: not sent, or the pages have arrived */
};

struct coord_adoption {
    struct task task;
    struct coord *cluster;
    struct coord_waiters waiter;
    /* borrowed: the question under way; NULL: the adoption is being written */
    struct coord_gather *gather;
    uint32_t number; /* unique number of this adoption */
    bool plan;
    uint64_t began_ms;          /* when the question began */
    struct coord_adoptee *jobs; /* owned: [job_count] */
    size_t job_count;
    size_t asked_count; /* number of jobs that are refused, or whose parts were asked for */
    /* owned: [silent_count]: the names of shards that did not say what they hold; the names are borrowed
     * from the entries */
    char **silent;
    size_t silent_count;
    struct stored_job *rows; /* owned: [row_count] */
    size_t row_count;
    /* [key_count]: keys that the shards with the adopted parts trust */
    struct trusted_key keys[CAIRN_KEYS_MAX];
    size_t key_count;
    uint64_t former; /* the store that the parts belonged to; 0: several, or ours */
    uint64_t incarnation;
    cairn_status status;
    struct sentence why;
};

#endif
