/* Messages from the fabric: each one is judged, then received, answered or dropped. Loop thread. */
#ifndef CAIRN_SHARD_LANDING_H
#define CAIRN_SHARD_LANDING_H

#include "proto/fabric/fabric.h"

void cairn_landing_on_message(void *shard, const void *header, size_t header_bytes,
                              size_t payload_bytes, struct cairn_fabric_message *message);

#endif
