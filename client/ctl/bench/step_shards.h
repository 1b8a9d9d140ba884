/* What the shards of a step do, and what all take of memory: figures of a cluster of the bench's own. */
#ifndef CAIRN_CTL_BENCH_STEP_SHARDS_H
#define CAIRN_CTL_BENCH_STEP_SHARDS_H

#include <jansson.h>

#include "client/ctl/bench/crew.h"

/* Adds to `parts`, of the slowest shard, the medians of its phases over all rounds but the first; and the
 * memory that a shard and a worker have now, the greatest of each, in bytes. */
void step_shards_report(const struct local *local, const struct cairn_bench_crew *crew,
                        json_t *parts);

#endif
