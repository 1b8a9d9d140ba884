/* A copy of the store, by the operator's word. */
#ifndef CAIRN_COORDINATOR_STORE_BACKUP_H
#define CAIRN_COORDINATOR_STORE_BACKUP_H

#include "server/coordinator/base/names.h"

void cairn_cluster_backup_begin(struct cairn_cluster_session *session, uint32_t request,
                                const Cairn__ClusterBackup *message);
void cairn_cluster_backup_forget(struct cairn_cluster *cluster,
                                 const struct cairn_cluster_session *session);
/* With the cluster, whose threads have ended. */
void cairn_cluster_backup_close(struct cairn_cluster *cluster);

#endif
