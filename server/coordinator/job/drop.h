/* A job is dropped by the operator's word. */
#ifndef CAIRN_COORDINATOR_JOB_DROP_H
#define CAIRN_COORDINATOR_JOB_DROP_H

#include "server/coordinator/base/names.h"

void cairn_cluster_job_remove(struct cairn_cluster_session *session, uint32_t request,
                              const Cairn__JobRemove *message);
void cairn_cluster_drops_forget(struct cairn_cluster *cluster,
                                const struct cairn_cluster_session *session);
/* Behind the sessions and the saves: nothing comes back to those that are left. */
void cairn_cluster_drops_close(struct cairn_cluster *cluster);

#endif
