/* A prepared layout comes into force, and what comes with it is taken. Loop thread. */
#ifndef CAIRN_SHARD_MOVE_FORCE_H
#define CAIRN_SHARD_MOVE_FORCE_H

#include <stdbool.h>
#include <stdint.h>

struct cairn_shard_job;

/* A Fence of a new epoch; layout 0: the one in force. The layout is forgotten that it does not name, and
 * the one prepared that it names comes into force, if the collector rests, or when it does: then all that
 * the Fence brings follows from here. False: the layout stays as it is, the caller tells the core. */
bool cairn_move_on_fence(struct cairn_shard_job *job, uint64_t epoch, uint64_t layout);
/* The core was told: all shards go by the layout in force. */
void cairn_move_on_resolve(struct cairn_shard_job *job, uint64_t epoch);
/* Of shard->up: the collector may rest, and a Fence waits for it. */
void cairn_move_rests(struct cairn_shard_job *job);

#endif
