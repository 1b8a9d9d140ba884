/* How far the shards of a cluster of the bench's own got with each round, and when: out of their logs, which
 * say it at level debug (server/shard/job/times.c). */
#ifndef CAIRN_CTL_BENCH_TIMES_H
#define CAIRN_CTL_BENCH_TIMES_H

#include "client/ctl/local/local.h"

/* Times: microseconds of CLOCK_MONOTONIC; 0: it did not come to that. */
struct cairn_bench_times {
    uint64_t round;
    uint64_t grant, receive, fold; /* the first of each */
    uint64_t reduce, reduced;      /* everything is in and folded; the sums are known */
    uint64_t update, published;    /* the decision is here; the new version is readable */
    /* Counters of the shard's device, since it was opened: launches of kernels, bytes copied to it
     * and from it */
    uint64_t launches, in_bytes, out_bytes;
};

/* Reads the log of shard-`number`, from 1. *out is freed by the caller; rounds ascend. False: there is
 * none. */
bool cairn_bench_times_read(const struct local *local, int number, struct cairn_bench_times **out,
                            size_t *count_out);

#endif
