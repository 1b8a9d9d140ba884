/* Computes from the times of steps how much a snapshot slows them down: pure. Times are seconds of
 * cairn_bench_now. */
#ifndef CAIRN_CTL_BENCH_SNAPSHOT_FIGURES_H
#define CAIRN_CTL_BENCH_SNAPSHOT_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

struct cairn_bench_interval {
    double *steps; /* owned by who has the interval: [count], each above 0 */
    uint32_t count, capacity;
    double begin;                        /* when the first step began */
    double snapshot_begin, snapshot_end; /* 0: there was none */
    uint64_t shard_bytes[64];            /* the most that shard i had resident; 0: no such shard */
};

struct cairn_bench_slowdown {
    uint32_t steps;                 /* without, or with, whichever are fewer */
    double mean_without, mean_with; /* of all steps */
    double slowdown;                /* (with - without) / without */
    double median;                  /* of the steps without */
    double worst_without, worst_with;
    double worst_over_median; /* of those with */
    double worst_added;       /* worst_with - median */
    double memory_added;      /* of the shard that is worst: bytes at most with - without */
};

/* Compares pairs[pair_count] of intervals that followed each other, [0] without and [1] with a
 * snapshot; every interval has steps, whose order stays. False: there is no memory. */
bool cairn_bench_slowdown_of(const struct cairn_bench_interval (*pairs)[2], uint32_t pair_count,
                             struct cairn_bench_slowdown *out);
/* Adds one more step. False: there is no memory. */
bool cairn_bench_interval_add(struct cairn_bench_interval *interval, double seconds);

#endif
