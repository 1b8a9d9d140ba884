/* Answers an admin's questions about snapshots, both committed ones and those being taken. */
#ifndef CAIRN_COORDINATOR_CUT_LIST_H
#define CAIRN_COORDINATOR_CUT_LIST_H

#include "server/coordinator/base/names.h"

void cairn_cluster_snapshots_list(struct cairn_cluster_session *session, uint32_t request,
                                  const char *job);
void cairn_cluster_snapshots_show(struct cairn_cluster_session *session, uint32_t request,
                                  const char *job, const char *id);

#endif
