#include "client/ctl/bench/snapshot/figures.h"

#include <stdlib.h>
#include <string.h>

#include "client/ctl/bench/bench.h"

bool cairn_bench_interval_add(struct cairn_bench_interval *interval, double seconds)
{
    if (interval->count == interval->capacity) {
        const uint32_t capacity = interval->capacity > 0 ? 2 * interval->capacity : 256;
        double *steps = realloc(interval->steps, capacity * sizeof *steps);
        if (steps == NULL) return false;
        interval->steps = steps;
        interval->capacity = capacity;
    }
    interval->steps[interval->count++] = seconds;
    return true;
}

/* All steps of one kind, of all pairs. */
struct gathered {
    double *steps; /* owned */
    uint32_t count;
    double mean, worst;
};

static bool gather(const struct cairn_bench_interval (*pairs)[2], uint32_t pair_count, int kind,
                   struct gathered *out)
{
    *out = (struct gathered) { .count = 0 };
    for (uint32_t p = 0; p < pair_count; p++) out->count += pairs[p][kind].count;
    out->steps = malloc(out->count * sizeof *out->steps);
    if (out->steps == NULL) return false;
    double *to = out->steps;
    for (uint32_t p = 0; p < pair_count; p++) {
        const struct cairn_bench_interval *interval = &pairs[p][kind];
        memcpy(to, interval->steps, interval->count * sizeof *to);
        to += interval->count;
    }
    for (uint32_t i = 0; i < out->count; i++) {
        out->mean += out->steps[i] / out->count;
        if (out->steps[i] > out->worst) out->worst = out->steps[i];
    }
    return true;
}

static double memory_added(const struct cairn_bench_interval (*pairs)[2], uint32_t pair_count)
{
    double worst = 0;
    for (uint32_t p = 0; p < pair_count; p++)
        for (size_t s = 0; s < sizeof pairs[p][0].shard_bytes / sizeof(uint64_t); s++) {
            const double added = (double)pairs[p][1].shard_bytes[s] -
                                 (double)pairs[p][0].shard_bytes[s];
            if (added > worst) worst = added;
        }
    return worst;
}

bool cairn_bench_slowdown_of(const struct cairn_bench_interval (*pairs)[2], uint32_t pair_count,
                             struct cairn_bench_slowdown *out)
{
    struct gathered without, with = { .steps = NULL };
    const bool is_there = gather(pairs, pair_count, 0, &without) &&
                          gather(pairs, pair_count, 1, &with);
    if (is_there) {
        const double median = cairn_bench_spread_of(without.steps, without.count).median;
        *out = (struct cairn_bench_slowdown) {
            .steps = without.count < with.count ? without.count : with.count,
            .mean_without = without.mean,
            .mean_with = with.mean,
            .slowdown = (with.mean - without.mean) / without.mean,
            .median = median,
            .worst_without = without.worst,
            .worst_with = with.worst,
            .worst_over_median = with.worst / median,
            .worst_added = with.worst - median,
            .memory_added = memory_added(pairs, pair_count),
        };
    }
    free(without.steps);
    free(with.steps);
    return is_there;
}
