/* Connections to the shards of a job, and what comes over them. Loop thread. */
#ifndef CAIRN_CLIENT_LOOP_LINK_H
#define CAIRN_CLIENT_LOOP_LINK_H

#include <stddef.h>
#include <stdint.h>

struct cairn_fabric_message;
struct job;
struct shard_link;

/* Of a new one. */
void cairn_link_open(struct shard_link *link, struct job *job, uint32_t index);
void cairn_link_tick(struct shard_link *link, uint64_t now_ms);
/* cairn_fabric_options.on_message */
void cairn_link_on_message(void *session, const void *header, size_t header_bytes,
                           size_t payload_bytes, struct cairn_fabric_message *message);

#endif
