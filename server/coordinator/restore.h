/* A restore under way: restore.c runs it, restore_proof.c proves that what was loaded is what was saved. */
#ifndef CAIRN_COORDINATOR_RESTORE_H
#define CAIRN_COORDINATOR_RESTORE_H

#include "server/coordinator/cut.h"
#include "server/coordinator/requests.h"

struct cairn_cluster_restore {
    struct cairn_cluster_work work;
    struct cairn_cluster *cluster;
    struct cairn_cluster_waiter *waiter;
    uint64_t job_id;     /* once it is linked */
    uint64_t generation; /* of the restored job; 0: not chosen yet */
    uint64_t old_id;     /* the job of which it is reserved; 0: of none */
    bool reserving;
    cairn_status status;
    struct cairn_sentence why;
    struct cairn_cluster_restore *next;
    uint64_t number; /* of the SnapshotParts of what was loaded */
    bool plan;       /* nothing is done, but said */
    bool replaces;   /* a job: `replaced` is what it was, its texts borrowed */
    Cairn__ReplacedJob replaced;
    bool made; /* all shards said Done */
    bool checked;
    /* without an admin: cairn_cluster_restore_latest */
    cairn_cluster_restored_fn ended; /* NULL: an admin asks, or it was told */
    uint64_t of_job;
    struct cairn_version newest; /* none ahead of it, neither by generation nor by step */
    size_t skip;
    bool none_found; /* there are not more than `skip` */
    /* owned */
    char *folder; /* the thread's that checks it, until it has; NULL: the newest is not found yet */
    char *asked;  /* the same as it was asked for, perhaps by another name; "": the newest */
    char *job_name; /* under which name; NULL = the snapshot's */
    struct cairn_manifest manifest;
    uint8_t
        *parts; /* [shard_count of the job], enum cairn_part_state; NULL: it is not being loaded */
    struct cairn_cluster_digests digests;
};

/* restore_told.c */
/* Under which name it is, or will be, a job. */
const char *cairn_cluster_restore_job_name(const struct cairn_cluster_restore *restore);
/* Notes what the job is that goes for it. */
void cairn_cluster_restore_replaces(struct cairn_cluster_restore *restore,
                                    const struct cairn_cluster_job *old);
/* It is done, or planned: who asked hears of it. */
void cairn_cluster_restore_answer(struct cairn_cluster_restore *restore);

/* restore_proof.c */
/* On another thread: the content root of the files, which were verified, against the manifest's. */
void cairn_cluster_restore_prove_files(struct cairn_cluster_work *work);
/* On another thread: that of what the shards told. */
void cairn_cluster_restore_prove_loaded(struct cairn_cluster_work *work);

/* restore.c: a part came, or will not come. */
void cairn_cluster_restore_advance(struct cairn_cluster_restore *restore);

#endif
