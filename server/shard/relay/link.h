/* Connections of a relay to the owners (proto/link/chunk_link.h); an owner may be this very shard. */
#ifndef CAIRN_SHARD_RELAY_LINK_H
#define CAIRN_SHARD_RELAY_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/wire/chunk.h"

struct cairn_relay_owner;

void cairn_relay_link_open(struct cairn_relay_owner *owner);
/* Connects, retries, breaks a silence; tells forward.c and ask.c of a loss. */
void cairn_relay_link_tick(struct cairn_relay_owner *owner, uint64_t now_ms);
/* A HELLO that was judged to be from that owner. */
void cairn_relay_link_on_hello(struct cairn_relay_owner *owner,
                               const struct cairn_chunk_header *header);
/* The owner has not answered something. */
bool cairn_relay_link_waits(const struct cairn_relay_owner *owner);
void cairn_relay_link_close(struct cairn_relay_owner *owner);

#endif
