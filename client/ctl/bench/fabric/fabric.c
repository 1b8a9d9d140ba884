/* cairn bench fabric: what the fabric makes of the bytes of pushes and fetches, with all that client and
 * shard do to a chunk on its way (ends.h), against what moves as many and does nothing else:
 *
 *   --path ucx        ucx_perftest -t ucp_am_bw -E sleep -e with chunks, window, header and settings of the
 *                     fabric (raw TCP where it is not installed)
 *   --path one-sided  the same; chunks are read by their receiver, over TCP emulated by UCX
 *   --path mapped     memcpy
 *
 * A run pushes RUN_BYTES and fetches as many; its figure is all of it by the time of both.
 *
 * perftest sends one buffer, in the cache, again and again, and looks at no byte. So a run on the path "ucx"
 * has three turns more, which say what of the difference is whose: without checksums (and received as UCX
 * does it by itself), of one chunk, and both, which is what perftest does. */
#include <stdlib.h>
#include <string.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/fabric/ends.h"
#include "client/ctl/bench/fabric/reference.h"
#include "proto/geometry/tensor.h"

#define RUN_BYTES     ((uint64_t)128 << 20)
#define PERFTEST_RUNS 4
#define CHUNK_DEFAULT ((uint64_t)1 << 20)
#define CHUNK_MAX     ((uint64_t)4 << 20) /* as chunks of a layout */

/* A run's other turns, of half as many chunks. */
static const struct {
    unsigned less;
    const char *name, *ratio_name;
} turns[] = {
    { CAIRN_BENCH_UNCHECKED, "unchecked_GB/s", "unchecked_ratio" },
    { CAIRN_BENCH_ONE_CHUNK, "one_chunk_GB/s", "one_chunk_ratio" },
    { CAIRN_BENCH_UNCHECKED | CAIRN_BENCH_ONE_CHUNK, "one_chunk_unchecked_GB/s",
      "one_chunk_unchecked_ratio" },
};
enum { TURNS = sizeof turns / sizeof *turns };

struct fabric_bench {
    struct cairn_bench_ends *ends;
    size_t chunk_bytes;
    uint64_t chunks; /* of a run, each way */
    const char *path;
    bool is_mapped, has_perftest;
    uint32_t runs;
    /* [runs] */
    double pushes[CAIRN_BENCH_RUNS_MAX + 1], fetches[CAIRN_BENCH_RUNS_MAX + 1];
    double push_cpu[CAIRN_BENCH_RUNS_MAX + 1], fetch_cpu[CAIRN_BENCH_RUNS_MAX + 1];
    double turns[TURNS][CAIRN_BENCH_RUNS_MAX + 1];
};

static bool run_turns(struct fabric_bench *bench, uint32_t number)
{
    const uint64_t chunks = (bench->chunks + 1) / 2;
    const double gigabytes = (double)(chunks * bench->chunk_bytes) * 1e-9;
    for (int i = 0; i < TURNS && !bench->is_mapped; i++) {
        const unsigned less = turns[i].less;
        const double push = cairn_bench_ends_push(bench->ends, chunks, less);
        const double fetch = push > 0 ? cairn_bench_ends_fetch(bench->ends, chunks, less) : 0;
        if (!(fetch > 0)) return false;
        bench->turns[i][number] = 2 * gigabytes / (push + fetch);
    }
    return true;
}

static double run_fabric(void *context)
{
    struct fabric_bench *bench = context;
    const double gigabytes = (double)(bench->chunks * bench->chunk_bytes) * 1e-9;
    const uint32_t i = bench->runs++;
    const double before = cairn_bench_ends_cpu(bench->ends);
    const double push = cairn_bench_ends_push(bench->ends, bench->chunks, 0);
    const double between = cairn_bench_ends_cpu(bench->ends);
    const double fetch = push > 0 ? cairn_bench_ends_fetch(bench->ends, bench->chunks, 0) : 0;
    if (!(fetch > 0)) return 0;
    bench->pushes[i] = gigabytes / push;
    bench->fetches[i] = gigabytes / fetch;
    bench->push_cpu[i] = (between - before) / gigabytes;
    bench->fetch_cpu[i] = (cairn_bench_ends_cpu(bench->ends) - between) / gigabytes;
    return run_turns(bench, i) ? 2 * gigabytes / (push + fetch) : 0;
}

static double run_reference(void *context)
{
    const struct fabric_bench *bench = context;
    if (bench->is_mapped)
        return cairn_bench_memcpy(CAIRN_BENCH_AREA_BYTES, bench->chunk_bytes, bench->chunks);
    if (bench->has_perftest) // of more: it calls sent what lies in the sockets
        return cairn_bench_perftest(bench->chunk_bytes, PERFTEST_RUNS * bench->chunks);
    return cairn_bench_raw_tcp(bench->chunk_bytes, bench->chunks);
}

/* -1: go on; else the exit status. */
static int judge(const struct ctl *ctl, struct fabric_bench *bench)
{
    const char *path = ctl->path != NULL ? ctl->path : "ucx";
    const uint64_t chunk = ctl->bench.chunk > 0 ? ctl->bench.chunk : CHUNK_DEFAULT;
    bench->is_mapped = strcmp(path, "mapped") == 0;
    bench->path = path;
    if (!bench->is_mapped && strcmp(path, "ucx") != 0 && strcmp(path, "one-sided") != 0)
        return cairn_ctl_usage_fail(ctl, "--path %s: ucx, one-sided and mapped are allowed", path);
    if (chunk > CHUNK_MAX || chunk % sizeof(float) != 0)
        return cairn_ctl_usage_fail(ctl, "--chunk %llu: 4 to %llu bytes, in fours, are allowed",
                                    (unsigned long long)chunk, (unsigned long long)CHUNK_MAX);
    bench->chunk_bytes = (size_t)chunk;
    bench->chunks = RUN_BYTES / chunk;
    if (bench->chunks > 65536) bench->chunks = 65536; // of small ones it is their number that costs
    bench->has_perftest = !bench->is_mapped && cairn_bench_perftest_is_there();
    return -1;
}

static void describe(struct fabric_bench *bench, struct cairn_bench_result *result)
{
    const uint32_t count = bench->runs - 1; // the first was not measured
    const double push = cairn_bench_spread_of(bench->pushes + 1, count).median;
    const double fetch = cairn_bench_spread_of(bench->fetches + 1, count).median;
    result->params = json_pack("{s:s, s:I, s:I, s:I, s:s}", "path", bench->path, "chunk_bytes",
                               (json_int_t)bench->chunk_bytes, "window",
                               (json_int_t)CAIRN_BENCH_WINDOW, "chunks", (json_int_t)bench->chunks,
                               "fabric", cairn_bench_ends_describe(bench->ends));
    result->parts = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:f}", "push_GB/s", push, "fetch_GB/s", fetch, "push_ratio",
        push / result->reference.median, "fetch_ratio", fetch / result->reference.median,
        "push_cpu_s/GB", cairn_bench_spread_of(bench->push_cpu + 1, count).median, "fetch_cpu_s/GB",
        cairn_bench_spread_of(bench->fetch_cpu + 1, count).median);
    for (int i = 0; i < TURNS && !bench->is_mapped; i++) {
        const double value = cairn_bench_spread_of(bench->turns[i] + 1, count).median;
        json_object_set_new(result->parts, turns[i].name, json_real(value));
        json_object_set_new(result->parts, turns[i].ratio_name,
                            json_real(value / result->reference.median));
    }
}

int cairn_bench_fabric(struct ctl *ctl)
{
    static struct fabric_bench bench;
    int done = judge(ctl, &bench);
    if (done >= 0) return done;
    bench.ends = cairn_bench_ends_open(bench.path, bench.chunk_bytes);
    if (bench.ends == NULL) return 1;
    struct cairn_bench_result result = {
        .bench = "fabric",
        .unit = "GB/s",
        .reference_name = bench.is_mapped      ? "memcpy"
                          : bench.has_perftest ? "ucx_perftest -t ucp_am_bw -E sleep -e"
                                               : "raw TCP over loopback",
    };
    done = cairn_bench_alternate(&result, ctl->bench.seconds, run_fabric, run_reference, &bench);
    if (done < 0) describe(&bench, &result);
    if (done < 0) done = cairn_bench_print(&result, ctl);
    cairn_bench_ends_close(bench.ends);
    return done;
}
