/* Shards that say nothing to this one over the data path, though something of them is awaited: those that
 * give it state (move/take.h), and those that it relays to or reads from (relay/relay.h). Its heartbeats
 * name them, as a worker's do. Loop thread. */
#ifndef CAIRN_SHARD_UNHEARD_H
#define CAIRN_SHARD_UNHEARD_H

#include <stddef.h>

#define CAIRN_UNHEARD_MAX 16

struct cairn_shard;

struct cairn_unheard {
    char *names[CAIRN_UNHEARD_MAX]; /* borrowed, each once */
    size_t count;
};

void cairn_unheard_list(const struct cairn_shard *shard, struct cairn_unheard *list_out);

#endif
