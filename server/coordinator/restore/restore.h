/* A restore under way: restore.c runs it, check.c reads before anything is touched, latest.c chooses the
 * newest snapshot, replace.c makes the job on the shards, proof.c proves that what was loaded is what was
 * saved. */
#ifndef CAIRN_COORDINATOR_RESTORE_RESTORE_H
#define CAIRN_COORDINATOR_RESTORE_RESTORE_H

#include "proto/snapshot/manifest_trust.h"
#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/names.h"
#include "server/coordinator/cut/cut.h"
#include "server/coordinator/job/jobs.h"
#include "server/coordinator/snapshot/find.h"

struct cairn_cluster_restore;
typedef void (*cairn_cluster_restored_fn)(const struct cairn_cluster_restore *restore,
                                          cairn_status status, const char *text);

/* A restore that no admin asked for: of the newest whole snapshot (latest.c). */
struct cairn_restore_latest {
    cairn_cluster_restored_fn ended; /* hears of the end; NULL: an admin asked, or it was told */
    uint64_t of_job;                 /* the lost job that comes back; 0: whichever has the name */
    struct cairn_version newest;     /* no snapshot ahead of this */
    /* of the job that is lost: none that it turned away from is taken. Without: as the newest says */
    bool has_origin;
    struct cairn_origin origin;
    /* a snapshot older than this; once one is chosen, that one */
    struct cairn_snapshot_place behind;
    bool none_found; /* there is no whole one */
    /* the newest that was passed over for what stands in its manifest, and why */
    struct cairn_sentence passed;
};

struct cairn_cluster_restore {
    struct cairn_cluster_work work;
    struct cairn_cluster_restore *next; /* of the cluster's list */
    struct cairn_cluster *cluster;
    struct cairn_cluster_waiter *waiter; /* the admin who asked */
    bool plan;                           /* nothing is done, but said */
    bool is_stored; /* asked for by its id: it is in the folder of the snapshots */
    bool fallback;  /* where that is damaged an older one is taken */
    struct cairn_restore_latest latest;
    struct cairn_key_ring ring;       /* whose signatures are trusted, when it was begun */
    struct cairn_trust_waiver waiver; /* what is taken all the same */
    /* how far it is */
    bool checked; /* the other thread has read manifest and files, and chooses no other folder */
    bool made;    /* all shards said Done */
    bool unseen;  /* a shard does not find it: its storage is not the one that was checked */
    cairn_status status;
    struct cairn_sentence why;
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
    struct cairn_job_spec_data spec;
    struct cairn_manifest manifest;
    struct cairn_cluster_draft draft; /* of the job, before the one that is there goes */
    /* of the openers that wish it, each once */
    struct cairn_cluster_verdict *verdicts;
    /* [shard_count of the job], enum cairn_part_state; NULL: it is not being loaded */
    uint8_t *parts;
    struct cairn_cluster_digests digests;
};

/* ---- for those who ask for one ---- */

void cairn_cluster_restore_begin(struct cairn_cluster_session *session, uint32_t request,
                                 const Cairn__SnapshotRestore *message);
/* Without an admin: restores the newest snapshot of the job that is older than `behind`; at the end
 * restore->latest.behind is the one that was chosen.
 *   of_job  the lost job that is to come back (else CAIRN_ERR_CANCELED); no snapshot ahead of where it was is
 *           taken: that is of another job that had the name. 0: any lost job of that name, or none
 *           that is there (else CAIRN_ERR_EXISTS).
 * A lost job keeps its policy and its bounds of workers. `ended` hears of the end, once, unless the cluster
 * closes before. False: the restore was not begun. */
bool cairn_cluster_restore_latest(struct cairn_cluster *cluster, const char *job, uint64_t of_job,
                                  const struct cairn_snapshot_place *behind,
                                  cairn_cluster_restored_fn ended);
/* May it be taken, by who signed it? Any thread. CAIRN_ERR_REFUSED, CAIRN_ERR_CHECKSUM. */
cairn_status cairn_cluster_restore_judge_signature(const struct cairn_cluster_restore *restore,
                                                   const struct cairn_manifest *manifest,
                                                   const char *folder,
                                                   struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Does it read that folder of the job, or may it choose to? While its thread looks for one: any of them. */
bool cairn_cluster_restore_reads(const struct cairn_cluster_restore *restore, const char *job,
                                 const char *folder);
/* The snapshot is to blame: the one before it may be whole. */
bool cairn_cluster_restore_is_damage(cairn_status status);
void cairn_cluster_restores_forget(struct cairn_cluster *cluster,
                                   const struct cairn_cluster_session *session);
/* With the cluster: nobody is told. */
void cairn_cluster_restores_close(struct cairn_cluster *cluster);
/* True: it is of what a restore has loaded. */
bool cairn_cluster_restore_on_part(struct cairn_cluster_session *session,
                                   const Cairn__SnapshotPart *part);
/* The shard is gone: what it was loading will not come. */
void cairn_cluster_restores_seat_gone(struct cairn_cluster *cluster,
                                      const struct cairn_cluster_seat *seat);

/* ---- for its own files ---- */

/* check.c; on another thread */
/* Reads manifest and files of the folder that was asked for, or chosen, and moves the manifest here. */
void cairn_cluster_restore_check(struct cairn_cluster_work *work);
/* Proves the files before a job is given up for them; an older folder may be chosen if they are
 * damaged. */
void cairn_cluster_restore_prove(struct cairn_cluster_work *work);
/* On the loop: tells of one that no trusted key has signed, or whose manifest has no hash over itself. */
void cairn_cluster_restore_warn(const struct cairn_cluster_restore *restore);

/* replace.c */
/* Above all that the job has used, or may use by what is durable of it, and above all that lie in the folder
 * of its name. */
uint64_t cairn_cluster_restore_next_generation(const struct cairn_cluster_restore *restore,
                                               const struct cairn_cluster_job *old);
/* old: the job of that name; NULL: there is none. May it go for the snapshot now? */
cairn_status cairn_cluster_restore_judge_replace(const struct cairn_cluster_restore *restore,
                                                 const struct cairn_cluster_job *old,
                                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The job `old` is gone, and the one of the snapshot is being made; `on_made` hears, with the restore. A
 * failure leaves `old` as it was, but for one of memory. */
cairn_status cairn_cluster_restore_replace(struct cairn_cluster_restore *restore,
                                           struct cairn_cluster_job *old,
                                           cairn_cluster_gather_fn on_made,
                                           struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* latest.c; on the other thread. */
/* The one that was asked for by its id is damaged, as restore->why says: with `fallback` the newest that is
 * older is to be tried in its place, which is then restore->folder (true); else `why` names it. */
bool cairn_cluster_restore_fall_back(struct cairn_cluster_restore *restore);

/* answer.c: who asked is told */
/* Under which name it is, or will be, a job. */
const char *cairn_cluster_restore_job_name(const struct cairn_cluster_restore *restore);
/* The spec of the job that is made: the manifest's, or with the settings that were asked for. */
const struct cairn_job_spec_data *
cairn_cluster_restore_spec(const struct cairn_cluster_restore *restore);
/* Notes what the job is that goes for it. */
void cairn_cluster_restore_replaces(struct cairn_cluster_restore *restore,
                                    const struct cairn_cluster_job *old);
/* It is done, or planned: who asked hears of it. */
void cairn_cluster_restore_answer(struct cairn_cluster_restore *restore);

/* proof.c */
/* On another thread: the content root of the files, which were verified, against the manifest's. */
void cairn_cluster_restore_prove_files(struct cairn_cluster_work *work);
/* On another thread: that of what the shards told. */
void cairn_cluster_restore_prove_loaded(struct cairn_cluster_work *work);

/* latest.c */
/* On another thread, the folder of a restore that has none. */
void cairn_cluster_restore_find_latest(struct cairn_cluster_restore *restore);
/* The snapshot that was chosen is damaged, by `text`: which, and how. */
void cairn_cluster_restore_say_damaged(const struct cairn_cluster_restore *restore,
                                       const char *text, struct cairn_sentence *out);
/* It is done; `damaged` is the newest that was not taken for it: its job says so. Empty: there is none. */
void cairn_cluster_restore_passed_over(const struct cairn_cluster_restore *restore,
                                       const struct cairn_sentence *damaged);

/* restore.c */
/* In the cluster's list, its work not started yet. NULL: no memory. */
struct cairn_cluster_restore *cairn_cluster_restore_new(struct cairn_cluster *cluster);
/* Who began it without an admin hears that it was given up, unless that one was told of its end. */
void cairn_cluster_restore_free(struct cairn_cluster_restore *restore);
/* A part came, or will not come. */
void cairn_cluster_restore_advance(struct cairn_cluster_restore *restore);

#endif
