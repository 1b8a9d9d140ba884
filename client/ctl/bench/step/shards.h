/* Reports what the shards of a step do, and how much memory shards and workers take, in a cluster
 * of the bench's own. */
#ifndef CAIRN_CTL_BENCH_STEP_SHARDS_H
#define CAIRN_CTL_BENCH_STEP_SHARDS_H

#include <jansson.h>

#include "client/ctl/bench/crew.h"

/* Adds to `parts` the medians over all rounds but the first of what a shard's phases took, and of what its
 * device did: launches, bytes copied to it and from it; and the memory that a shard and a worker have now, in
 * bytes. With several shards, or workers, each figure is the greatest. */
void step_shards_report(const struct local *local, const struct cairn_bench_crew *crew,
                        json_t *parts);

#endif
