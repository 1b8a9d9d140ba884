#include "client/ctl/bench/step/shards.h"

#include <stdlib.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/card.h"
#include "client/ctl/bench/times.h"

/* The figures of a shard in one round, measured from the round before it where they are
 * counters. */
enum { RECEIVE_FOLD, SUMS, UPDATE_PUBLISH, LAUNCHES, IN_BYTES, OUT_BYTES, FIGURES };
static const char *const names[FIGURES] = { "shard_receive_fold_s",   "shard_sums_s",
                                            "shard_update_publish_s", "shard_launches",
                                            "shard_in_bytes",         "shard_out_bytes" };

static double seconds(uint64_t from_us, uint64_t to_us)
{
    return from_us != 0 && to_us > from_us ? (double)(to_us - from_us) * 1e-6 : 0;
}

static double figure_of(const struct cairn_bench_times *t, int figure)
{
    const struct cairn_bench_times *before = t - 1;
    switch (figure) {
    case RECEIVE_FOLD: return seconds(t->receive, t->reduce);
    case SUMS: return seconds(t->reduce, t->reduced);
    case UPDATE_PUBLISH: return seconds(t->update, t->published);
    case LAUNCHES: return (double)(t->launches - before->launches);
    case IN_BYTES: return (double)(t->in_bytes - before->in_bytes);
    default: return (double)(t->out_bytes - before->out_bytes);
    }
}

/* medians[FIGURES], of one shard; false: its log has no second round. */
static bool read_shard(const struct local *local, int number, double *medians)
{
    struct cairn_bench_times *times = NULL;
    size_t count = 0;
    if (!cairn_bench_times_read(local, number, &times, &count)) return false;
    double *values = count > 1 ? calloc(count - 1, sizeof *values) : NULL;
    for (int f = 0; f < FIGURES && values != NULL; f++) {
        for (size_t i = 1; i < count; i++) values[i - 1] = figure_of(&times[i], f);
        medians[f] = cairn_bench_spread_of(values, (uint32_t)(count - 1)).median;
    }
    free(times);
    const bool is_read = values != NULL;
    free(values);
    return is_read;
}

static void add_figures(const struct local *local, json_t *parts)
{
    double greatest[FIGURES] = { 0 }, medians[FIGURES];
    for (int s = 1; s < local->daemon_count; s++) {
        if (!read_shard(local, s, medians)) return;
        for (int f = 0; f < FIGURES; f++)
            if (medians[f] > greatest[f]) greatest[f] = medians[f];
    }
    for (int f = 0; f < FIGURES; f++) json_object_set_new(parts, names[f], json_real(greatest[f]));
}

void step_shards_report(const struct local *local, const struct cairn_bench_crew *crew,
                        json_t *parts)
{
    uint64_t shard = 0, worker = 0;
    add_figures(local, parts);
    for (int s = 1; s < local->daemon_count; s++) {
        const uint64_t bytes = cairn_bench_process_bytes(local->daemons[s].pid);
        if (bytes > shard) shard = bytes;
    }
    for (uint32_t w = 0; w < crew->count; w++) {
        const uint64_t bytes = cairn_bench_process_bytes(crew->pids[w]);
        if (bytes > worker) worker = bytes;
    }
    json_object_set_new(parts, "shard_resident_bytes", json_integer((json_int_t)shard));
    json_object_set_new(parts, "worker_resident_bytes", json_integer((json_int_t)worker));
}
