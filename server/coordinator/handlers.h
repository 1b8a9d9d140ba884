/* Judged frames of each role. Each returns false if the role may not say that. */
#ifndef CAIRN_COORDINATOR_HANDLERS_H
#define CAIRN_COORDINATOR_HANDLERS_H

#include "server/coordinator/base/names.h"

bool cairn_cluster_handle_worker(struct cairn_cluster_session *session,
                                 const struct cairn_frame *frame, const ProtobufCMessage *message);
bool cairn_cluster_handle_shard(struct cairn_cluster_session *session,
                                const struct cairn_frame *frame, const ProtobufCMessage *message);
bool cairn_cluster_handle_admin(struct cairn_cluster_session *session,
                                const struct cairn_frame *frame, const ProtobufCMessage *message);
/* cluster_status.c: ClusterStatus, at once. */
void cairn_cluster_status_answer(struct cairn_cluster_session *session, uint32_t request);

#endif
