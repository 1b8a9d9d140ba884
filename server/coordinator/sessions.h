/* Connections: Hello, frames, leases. */
#ifndef CAIRN_COORDINATOR_SESSIONS_H
#define CAIRN_COORDINATOR_SESSIONS_H

#include "server/coordinator/base/names.h"

void cairn_cluster_session_on_frame(struct cairn_peer *peer, const struct cairn_frame *frame,
                                    void *context);
void cairn_cluster_session_on_gone(struct cairn_peer *peer, cairn_status status, const char *why,
                                   void *context);
/* Handles the requests that came early and need not wait any more (early.h). */
void cairn_cluster_sessions_take_early(struct cairn_cluster *cluster);
void cairn_cluster_sessions_tick(struct cairn_cluster *cluster, uint64_t now_ms, uint64_t away_ms);

#endif
