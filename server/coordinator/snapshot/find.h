/* The committed snapshots in the store folder: for lists, and for a restore of the newest. */
#ifndef CAIRN_COORDINATOR_SNAPSHOT_FIND_H
#define CAIRN_COORDINATOR_SNAPSHOT_FIND_H

#include "proto/snapshot/manifest.h"
#include "proto/snapshot/snapshot_file.h"
#include "server/coordinator/base/names.h"

#define CAIRN_FOUND_MAX 1000 /* more are not looked at: the oldest */

/* Where a snapshot stands among all of its job, also when it is gone: by version, since no job takes a
 * generation that lies in the folder of its name already (job/first.h, restore/replace.c). */
struct cairn_snapshot_place {
    struct cairn_version version;
    char id[CAIRN_SNAPSHOT_ID_BYTES]; /* empty: before all of them */
};
struct cairn_found_snapshot {
    bool
        is_left; /* its job turned away from it: it went back, or another one began (cairn_find_line) */
    struct cairn_snapshot_place place;
    char *folder; /* owned */
    struct cairn_manifest manifest;
    char signature[128]; /* for people; empty: nobody has looked at it */
};
struct cairn_cluster_found {
    struct cairn_found_snapshot *list; /* owned: [count], the newest first */
    size_t count;
    struct cairn_sentence unread; /* which folders could not be read; empty: none */
};

/* Finds the snapshots of `job` (NULL = of all jobs), or only the one of that id (NULL = all).
 * Blocks: for another thread than the loop's. A snapshot whose manifest cannot be read is left
 * out, but is the failure if `id` asks for it. Release `out` in any case. CAIRN_ERR_IO: this is
 * not the folder that snapshots were written to (store/storage.h). */
cairn_status cairn_cluster_find_snapshots(const struct cairn_cluster *cluster, const char *job,
                                          const char *id, struct cairn_cluster_found *out,
                                          struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Which of one job's snapshots its present does not follow, when it last went back, or began, at `origin`;
 * NULL: as the newest says. Each that it does follow says which older ones it follows itself. */
void cairn_find_line(struct cairn_cluster_found *found, const struct cairn_origin *origin);
/* `a` is the older one. */
bool cairn_snapshot_place_behind(const struct cairn_snapshot_place *a,
                                 const struct cairn_snapshot_place *b);
void cairn_cluster_found_release(struct cairn_cluster_found *found);

/* ---- remove.c ---- */

void cairn_cluster_snapshot_remove(struct cairn_cluster_session *session, uint32_t request,
                                   const Cairn__SnapshotRemove *message);
/* The folder of a snapshot is being removed. */
bool cairn_cluster_snapshot_removing(const struct cairn_cluster *cluster, const char *folder);

#endif
