/* The committed snapshots in the store folder: for lists, for periodic.c, and for a restore of the newest. */
#ifndef CAIRN_COORDINATOR_SNAPSHOT_FIND_H
#define CAIRN_COORDINATOR_SNAPSHOT_FIND_H

#include "proto/wire/manifest.h"

#define CAIRN_FOUND_MAX 1000 /* more are not looked at: the oldest */

struct cairn_found_snapshot {
    char *id, *folder; /* owned */
    struct cairn_manifest manifest;
};
struct cairn_cluster_found {
    struct cairn_found_snapshot *list; /* owned: [count], the newest first */
    size_t count;
};

/* Of `job` (NULL = of all), the one of that id (NULL = all). Blocks: for another thread than the loop's. One
 * whose manifest cannot be read is left out, or with an id is the failure. Release it in any case. */
cairn_status cairn_cluster_find_snapshots(const char *root, const char *job, const char *id,
                                          struct cairn_cluster_found *out,
                                          struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_cluster_found_release(struct cairn_cluster_found *found);

#endif
