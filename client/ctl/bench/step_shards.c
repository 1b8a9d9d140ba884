#include "client/ctl/bench/step_shards.h"

#include <stdlib.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/card.h"
#include "client/ctl/bench/times.h"

enum { RECEIVE_FOLD, SUMS, UPDATE_PUBLISH, PHASES };

static double between(uint64_t from_us, uint64_t to_us)
{
    return from_us != 0 && to_us > from_us ? (double)(to_us - from_us) * 1e-6 : 0;
}

static double phase_of(const struct cairn_bench_times *t, int phase)
{
    switch (phase) {
    case RECEIVE_FOLD: return between(t->receive, t->reduce);
    case SUMS: return between(t->reduce, t->reduced);
    default: return between(t->update, t->published);
    }
}

/* medians[PHASES], of one shard; false: its log has no second round. */
static bool read_shard(const struct local *local, int number, double *medians)
{
    struct cairn_bench_times *times = NULL;
    size_t count = 0;
    if (!cairn_bench_times_read(local, number, &times, &count)) return false;
    double *values = count > 1 ? calloc(count - 1, sizeof *values) : NULL;
    for (int phase = 0; phase < PHASES && values != NULL; phase++) {
        for (size_t i = 1; i < count; i++) values[i - 1] = phase_of(&times[i], phase);
        medians[phase] = cairn_bench_spread_of(values, (uint32_t)(count - 1)).median;
    }
    free(times);
    const bool is_read = values != NULL;
    free(values);
    return is_read;
}

static void add_phases(const struct local *local, json_t *parts)
{
    static const char *const names[PHASES] = { "shard_receive_fold_s", "shard_sums_s",
                                               "shard_update_publish_s" };
    double slowest[PHASES] = { 0 }, medians[PHASES];
    for (int s = 1; s < local->daemon_count; s++) {
        if (!read_shard(local, s, medians)) return;
        for (int p = 0; p < PHASES; p++)
            if (medians[p] > slowest[p]) slowest[p] = medians[p];
    }
    for (int p = 0; p < PHASES; p++) json_object_set_new(parts, names[p], json_real(slowest[p]));
}

void step_shards_report(const struct local *local, const struct cairn_bench_crew *crew,
                        json_t *parts)
{
    uint64_t shard = 0, worker = 0;
    add_phases(local, parts);
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
