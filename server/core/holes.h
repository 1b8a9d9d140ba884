/* Shards keep their numbers. So when a shard leaves a job, there is a hole among the numbers. */
#ifndef CAIRN_CORE_HOLES_H
#define CAIRN_CORE_HOLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True if a layout of shard_count shards does not have this shard. gone: [(shard_count + 7) / 8]; if bit s
 * % 8 of byte s / 8 is set, s is a hole; NULL: there are no holes. */
static inline bool layout_is_hole(const uint8_t *gone, uint32_t shard_count, uint32_t shard)
{
    if (shard >= shard_count) return true;
    return gone != NULL && (gone[shard / 8] >> shard % 8 & 1) != 0;
}

#endif
