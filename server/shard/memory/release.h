/* Memory goes back to the system on another thread. Loop thread. */
#ifndef CAIRN_SHARD_MEMORY_RELEASE_H
#define CAIRN_SHARD_MEMORY_RELEASE_H

#include "server/shard/memory/reserve.h"

/* The arena becomes CAIRN_ARENA_NONE: nobody touches that memory any more. */
void cairn_release(struct cairn_shard *shard, struct cairn_arena *arena);
/* `free_it` frees `what` on that thread: nobody else knows of it any more. */
void cairn_release_by(struct cairn_shard *shard, void (*free_it)(void *what), void *what);
/* When all that were released before are unmapped, the budget has the bytes again, and the request (may be
 * NULL) is answered. */
void cairn_release_bytes(struct cairn_shard *shard, uint64_t budget_bytes,
                         const struct cairn_request *request);
/* With the shard, behind its pools. */
void cairn_release_close(struct cairn_shard *shard);

#endif
