/* A restore under way. restore.c runs it, makes the job on the shards, and says how it ended.
 * snapshot_read.c reads on other threads, before anything is touched, chooses the newest snapshot, and
 * proves that the state is the one that was saved. */
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

/* A restore that no admin asked for: of the newest whole snapshot (restore.c). */
struct restore_latest {
    cluster_restored_fn ended;   /* hears of the end; NULL: an admin asked, or it was told */
    uint64_t of_job;             /* the lost job that comes back; 0: whichever has the name */
    struct cairn_version newest; /* no snapshot ahead of this */
    /* of the job that is lost: none that it turned away from is taken. Without: as the newest says */
    bool has_origin;
    struct origin origin;
    /* a snapshot older than this; once one is chosen, that one */
    struct snapshot_place behind;
    bool none_found; /* there is no whole one */
    /* the newest that was passed over for what stands in its manifest, and why */
    struct sentence passed;
};

struct coord_restore {
    struct coord_work work;
    struct coord_restore *next; /* of the cluster's list */
    struct coord *cluster;
    struct coord_waiters waiter; /* the admin who asked */
    bool plan;                   /* nothing is done, but said */
    bool is_stored;              /* asked for by its id: it is in the folder of the snapshots */
    bool fallback;               /* where that is damaged an older one is taken */
    struct restore_latest latest;
    struct key_ring ring;       /* whose signatures are trusted, when it was begun */
    struct trust_waiver waiver; /* what is taken all the same */
    /* how far it is */
    bool checked; /* the other thread has read manifest and files, and chooses no other folder */
    bool made;    /* all shards said Done */
    bool unseen;  /* a shard does not find it: its storage is not the one that was checked */
    cairn_status status;
    struct sentence why;
    /* the restored job */
    uint64_t job_id;     /* once it is linked */
    uint64_t generation; /* 0: not chosen yet */
    /* highest in the names of the snapshots of the job it will be; what was restored is one of these */
    uint64_t last_generation;
    bool is_its_own;
    uint64_t old_id; /* the generation is reserved of this job; 0: of none */
    bool reserving;  /* the store is asked to reserve it */
    uint64_t number; /* of the SnapshotParts of what was loaded */
    bool replaces;   /* a job, and `replaced` says what that was; its texts are borrowed */
    Cairn__ReplacedJob replaced;
    /* owned */
    char *folder; /* the thread's that checks it, until it has; NULL: the newest is not found yet */
    char *asked;  /* the folder as it was asked for, perhaps by another name; "": the newest */
    char *job_name; /* under which name; NULL: the snapshot's */
    /* what the job is to have otherwise than the snapshot says; NULL: nothing */
    Cairn__SnapshotRestore *settings;
    /* of the job, where it is another one than the manifest's; else empty */
    struct job_spec_data spec;
    struct manifest manifest;
    struct coord_draft draft; /* of the job, before the one that is there goes */
    /* of the openers that wish it, each once */
    struct coord_verdict *verdicts;
    /* [shard_count of the job], enum part_state; NULL: it is not being loaded */
    uint8_t *parts;
    struct coord_digests digests;
};

/* ---- for those who ask for one ---- */

void coord_restore_begin(struct coord_session *session, uint32_t request,
                         const Cairn__SnapshotRestore *message);
/* Without an admin: restores the newest snapshot of the job that is older than `behind`; at the end
 * restore->latest.behind is the one that was chosen.
 *   of_job  the lost job that is to come back (else CAIRN_ERR_CANCELED); no snapshot ahead of where it was is
 *           taken: that is of another job that had the name. 0: any lost job of that name, or none
 *           that is there (else CAIRN_ERR_EXISTS).
 * A lost job keeps its policy and its bounds of workers. `ended` hears of the end, once, unless the cluster
 * closes before. False: the restore was not begun. */
bool coord_restore_latest(struct coord *cluster, const char *job, uint64_t of_job,
                          const struct snapshot_place *behind, cluster_restored_fn ended);

/* The snapshot is to blame: the one before it may be whole. */
bool coord_restore_is_damage(cairn_status status);
/* With the cluster: nobody is told. */
void coord_restores_close(struct coord *cluster);
/* True: it is of what a restore has loaded. */
bool coord_restore_on_part(struct coord_session *session, const Cairn__SnapshotPart *part);
/* The shard is gone: what it was loading will not come. */
void coord_restores_shard_gone(struct coord *cluster, const struct coord_shard_entry *entry);

/* ---- snapshot_read.c: but for the first two on another thread ---- */

/* Under which name it is, or will be, a job. */
const char *coord_restore_job_name(const struct coord_restore *restore);
/* Tells of one that no trusted key has signed, or whose manifest has no hash over itself. */
void coord_restore_warn(const struct coord_restore *restore);
/* Reads manifest and files of the folder that was asked for, or chosen, and moves the manifest here. */
void coord_restore_check(struct coord_work *work);
/* Proves the files before a job is given up for them; an older folder may be chosen if they are damaged. */
void coord_restore_prove(struct coord_work *work);
/* Compares the content root of what the shards told with the manifest's. */
void coord_restore_prove_loaded(struct coord_work *work);

/* ---- for those who ask for one: what is said of it ---- */

/* It is done; `damaged` is the newest that was not taken for it: its job says so. Empty: there is none. */
void coord_restore_passed_over(const struct coord_restore *restore, const struct sentence *damaged);

/* ==== recovery ==== */

/* A job whose shard has lost its part restores its newest whole snapshot by itself, if its on_shard_loss
 * says so: what the sentence of a lost job advises, without the operator.
 *
 *   a part is missed   its shard came without it (parts.c), or is away for shard_loss_wait_s
 *     → LOST           members are put out with ROLLED_BACK; who opens the job waits
 *     → restore        of the newest snapshot, or, if that is damaged, of the one before, as soon as there
 *                      are shards enough (restore.c); a part that comes back first ends it
 *     → running        in a new generation, at the snapshot's step, with the policy and the bounds of workers
 *                      that the job had
 *
 * A restore that an operator or a worker asked for, and that ended for another cause than its snapshot (a
 * shard died), is tried again in the same way, with the settings that were asked for.
 *
 * A snapshot that a shard does not see is not damaged: that shard's storage is waited for, however long.
 *
 * A snapshot ahead of where the job was is not its own, but of one that had the name before it.
 *
 * At most CAIRN_RESTORES_MAX times without a step that is applied in between, while this coordinator lives;
 * then the job waits, and says so. */

void coord_recovery_tick(struct coord_job *job);

/* ==== resume ==== */

/* Workers that open a job with the wish that its newest snapshot is restored. */

/* Looks for snapshots of the job, and restores the newest that is whole, if that is not under way; then those
 * who wait for it go on (coord_openers_resumed). False: no memory. */
bool coord_resume_begin(struct coord *cluster, const char *job);
bool coord_resuming(const struct coord *cluster, const char *job);
/* With the cluster, whose threads have ended: nobody is told. */
void coord_resumes_close(struct coord *cluster);

/* ==== adopt ==== */

/* Taking what the shards hold into the store, by the operator's word. */

/* Begins one, or only plans it; the session is answered. */
void coord_adopt(struct coord_session *session, uint32_t request,
                 const Cairn__ClusterAdopt *message);
/* Part, or one of its Pages, of a shard. */
void coord_adopt_on_part(struct coord_session *session, uint32_t request, const Cairn__Part *part);
void coord_adopt_on_page(struct coord_session *session, uint32_t request, const Cairn__Page *page);
/* It does not wait for ever. */
void coord_adopt_tick(struct coord *cluster);
/* With the cluster, whose threads have ended. */
void coord_adopt_close(struct coord *cluster);

/* ==== adopt private ==== */

/* An adoption on its way: adopt.c asks the shards, adopt.c judges what they hold, adopt.c puts it
 * into the store and goes on by it. */

/* A job that is to be adopted; what points into parts is good until the next HeldJobs. */
struct coord_adoptee {
    Cairn__HeldJob *best;           /* borrowed: of the newest spec */
    struct coord_shard_entry *from; /* who has it */
    struct marks marks;             /* the highest of all */
    uint64_t generation, below;     /* the one that is judged; it is older than that */
    uint64_t version_generation, step, lowest_step;
    struct sentence refused; /* empty: it is whole */
    /* owned */
    char *name;
    struct stored_shard
        *shards; /* [CAIRN_SHARD_ENTRIES_MAX], shard_count of them; names borrowed of the entries */
    uint32_t shard_count;
    struct paged spec, layout;
    uint64_t id, base_step;
    uint32_t request; /* of its PartGet; 0: not asked, or its pages are here */
};

struct coord_adoption {
    struct task task;
    struct coord *cluster;
    struct coord_waiters waiter;
    struct coord_gather *gather; /* borrowed: what is asked; NULL: it is being written */
    uint32_t number;             /* of no other adoption */
    bool plan;
    uint64_t began_ms;          /* what is asked */
    struct coord_adoptee *jobs; /* owned: [job_count] */
    size_t job_count;
    size_t asked_count; /* of the jobs: their parts were asked for, or they are refused */
    char **
        silent; /* owned: [silent_count], names borrowed of the entries: they did not say what they hold */
    size_t silent_count;
    struct stored_job *rows; /* owned: [row_count] */
    size_t row_count;
    struct trusted_key keys[CAIRN_KEYS_MAX]; /* [key_count]: who has what is adopted trusts them */
    size_t key_count;
    uint64_t former; /* the store that they were of; 0: of several, or of ours */
    uint64_t incarnation;
    cairn_status status;
    struct sentence why;
};

#endif
