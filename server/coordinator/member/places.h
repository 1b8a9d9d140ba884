/* Where the shards' data comes to, for workers that have to choose a device before they say where theirs
 * comes to (Welcome.places). */
#ifndef CAIRN_COORDINATOR_MEMBER_PLACES_H
#define CAIRN_COORDINATOR_MEMBER_PLACES_H

#include "proto/fabric/where.h"
#include "server/coordinator/base/names.h"

#define CAIRN_CLUSTER_PLACES_MAX 64 /* enough to know the networks by */

struct cairn_cluster_places {
    char texts[CAIRN_CLUSTER_PLACES_MAX][CAIRN_PLACE_BYTES];
    char *list[CAIRN_CLUSTER_PLACES_MAX]; /* for a message's field */
    size_t count;
};

/* Each once, of the shards that are there; of those that are away if none is. */
void cairn_cluster_places_find(const struct cairn_cluster *cluster,
                               struct cairn_cluster_places *out);

#endif
