/* Connections to the shards of a job, and what comes over them. Loop thread. */
#ifndef CAIRN_CLIENT_LOOP_LINK_H
#define CAIRN_CLIENT_LOOP_LINK_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"

struct cairn_fabric_message;
struct job;
struct shard_link;

/* There are so many, at least: those of shards that were not heard of have no address yet. */
cairn_status cairn_links_add(struct job *job, uint32_t count) CAIRN_MUST_CHECK;
void cairn_links_release(struct job *job); /* nothing of them is on loan */
void cairn_link_tick(struct shard_link *link, uint64_t now_ms);
/* cairn_fabric_options.on_message */
void cairn_link_on_message(void *session, const void *header, size_t header_bytes,
                           size_t payload_bytes, struct cairn_fabric_message *message);

#endif
