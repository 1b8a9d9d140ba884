/* The folder of the snapshots, known by its token (proto/store/storage_token.h). The store
 * remembers the token once there is something in the folder: if the storage is not mounted, the
 * path leads to another folder, and nothing may be written to that folder or be missed in it. A
 * folder belongs to one cluster, by the identity of its store. Another cluster's folder is not
 * written to either, until it is taken (snapshots.foreign) or that cluster's jobs are
 * (cairn_cluster_storage_adopted). Complaints about the folder are in storage.watch.said; it is
 * looked at again until the token is there. */
#ifndef CAIRN_COORDINATOR_STORE_STORAGE_H
#define CAIRN_COORDINATOR_STORE_STORAGE_H

#include "server/base/storage_watch.h"
#include "server/coordinator/base/names.h"

/* The cluster's folder of snapshots. */
struct cairn_cluster_storage {
    char *path;      /* owned: absolute; constant while the cluster is open, as the token */
    uint64_t token;  /* in the folder; 0: there is none */
    bool remembered; /* by the store, or on its way there */
    /* as which the folder is ours: any thread */
    _Atomic uint64_t store, former;
    struct cairn_storage_watch watch;
};

/* Sets path and token; makes the folder and its token if the store remembers none. Behind
 * the store; may block. */
cairn_status cairn_cluster_storage_open(struct cairn_cluster *cluster,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* It is the folder that has the token, and ours. Blocks: for another thread than the loop's. CAIRN_ERR_IO;
 * CAIRN_ERR_REFUSED: another cluster's. */
cairn_status cairn_cluster_storage_seen(const struct cairn_cluster *cluster,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Tells that the store has a new identity and has taken over the jobs of the store `former`: a
 * folder of that store is ours, too. */
void cairn_cluster_storage_adopted(struct cairn_cluster *cluster, uint64_t former);
/* A snapshot begins in it: the store remembers it. */
void cairn_cluster_storage_used(struct cairn_cluster *cluster);

#endif
