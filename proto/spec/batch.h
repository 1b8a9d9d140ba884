/* A step of `total` micro-batches, whoever is there (global_batch), and how its workers deal them: the one
 * of rank r among W has r, r + W, r + 2 W, ... below the total. The j-th of its own is its micro-batch j on
 * the wire, and a shard folds in the order of (micro-batch, rank): which is that of the numbers, for any W.
 * So the bits of a step do not depend on how many computed it. A rank from the total on has none: it is
 * surplus.
 *
 * Pure; no floating point. */
#ifndef CAIRN_SPEC_BATCH_H
#define CAIRN_SPEC_BATCH_H

#include <stdbool.h>
#include <stdint.h>

struct cairn_batch {
    uint32_t total; /* 0: the job has none, each worker has micro-batches of its own */
    uint32_t rank;  /* dense, among the contributors; of a surplus worker at least their number */
    uint32_t world; /* contributors, at least 1 */
};

/* How many of them are the rank's. */
uint32_t cairn_batch_count(const struct cairn_batch *batch);
/* The number, in the step, of the rank's micro-batch `place`; without a total the place itself. */
uint32_t cairn_batch_number(const struct cairn_batch *batch, uint32_t place);
/* The way back; false: the number is another rank's, or none. */
bool cairn_batch_place(const struct cairn_batch *batch, uint32_t number, uint32_t *place_out);

/* The seed of micro-batch `number` of the batch `index` (steps and skips before it), below 2^63:
 * with splitmix64's mix(x), mix(mix(mix(seed) ^ index) ^ number) >> 1. The seed is the same whoever
 * computes it, and when it is computed again. */
uint64_t cairn_batch_seed(uint64_t seed, uint64_t index, uint64_t number);

#endif
