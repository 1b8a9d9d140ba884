/* Taking what the shards hold into the store, by the operator's word. */
#ifndef CAIRN_COORDINATOR_RESTORE_ADOPT_H
#define CAIRN_COORDINATOR_RESTORE_ADOPT_H

#include "server/coordinator/base/names.h"

/* Begins one, or only plans it; the session is answered. */
void cairn_cluster_adopt(struct cairn_cluster_session *session, uint32_t request,
                         const Cairn__ClusterAdopt *message);
/* Part, or one of its Pages, of a shard. */
void cairn_cluster_adopt_on_part(struct cairn_cluster_session *session, uint32_t request,
                                 const Cairn__Part *part);
void cairn_cluster_adopt_on_page(struct cairn_cluster_session *session, uint32_t request,
                                 const Cairn__Page *page);
void cairn_cluster_adopt_forget(struct cairn_cluster *cluster,
                                const struct cairn_cluster_session *session);
/* It does not wait for ever. */
void cairn_cluster_adopt_tick(struct cairn_cluster *cluster);
/* With the cluster, whose threads have ended. */
void cairn_cluster_adopt_close(struct cairn_cluster *cluster);

#endif
