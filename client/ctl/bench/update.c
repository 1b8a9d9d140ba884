/* cairn bench update: what a shard does with the gradients of a step, by the kernels and in the passes of
 * server/shard/job/update.c, without the messages: two contributions are folded and summed, then AdamW
 * updates and publishes. Counted bytes an element, with bf16 on the wire (fp32):
 *
 *   fold      reads 2 contributions of 2 (4), writes the sum 4                          8  (12)
 *   update    reads the sum 4, reads and writes parameter and two moments 24,
 *             writes the published copy 2 (4)                                          30  (32)
 *
 * What the hardware adds (it reads a line before it writes a part of it) is not counted. The reference
 * updates the same seven arrays in place: each is read and written, 38 bytes an element (48).
 * --only adamw: the update of one fp32 gradient without a published copy, as an optimizer in the trainer
 * has it: 28 bytes against four arrays in place. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/streams.h"
#include "gpu/gpu.h"
#include "proto/fabric/pages.h"
#include "proto/fabric/stagger.h"

#define CHUNK_LEAVES   64
#define CHUNK_ELEMS    ((size_t)CHUNK_LEAVES * CAIRN_LEAF_ELEMS)
#define SOURCES        2
#define PARAMS_DEFAULT ((uint64_t)64 << 20)
#define THREADS_MAX    64
#define BYTES_MAX      (SOURCES * 4 + 5 * 4) /* an element, of all arrays */

struct update_bench;
typedef void (*chunk_fn)(struct update_bench *bench, size_t chunk, uint32_t thread);

struct update_bench {
    const struct cairn_backend *backend;
    struct cairn_geometry geometry;
    struct cairn_group_scalars scalars;
    cairn_dtype wire_dtype;
    bool only_adamw;
    size_t elems; /* whole chunks */
    uint32_t threads;
    /* owned: mapped by make_arrays; NULL: not of this bench */
    void *sources[SOURCES], *wire; /* [elems] wire_dtype */
    float *sum, *param, *exp_avg, *exp_avg_sq;
    struct cairn_bench_stream streams[CAIRN_BENCH_STREAMS_MAX]; /* the same arrays */
    struct map {
        void *at;
        size_t bytes;
    } maps[CAIRN_BENCH_STREAMS_MAX]; /* owned: of the same */
    size_t stream_count;
    size_t streams_bytes; /* an element: of all of them */
    struct cairn_sums sums[THREADS_MAX];
    double fold_best, update_best; /* seconds */
    /* processor time of all runs: their ratio stands on a machine whose cores others use, too */
    double subject_cpu, reference_cpu;
};

/* ---- what is done to a chunk ---- */

static void fold_chunk(struct update_bench *bench, size_t chunk, uint32_t thread)
{
    const size_t first = chunk * CHUNK_ELEMS;
    struct cairn_source sources[SOURCES];
    for (int s = 0; s < SOURCES; s++)
        sources[s] = (struct cairn_source) {
            .data = (char *)bench->sources[s] + first * cairn_dtype_bytes((int)bench->wire_dtype),
            .dtype = bench->wire_dtype
        };
    bench->backend->fold_leaves(&(struct cairn_leaf_fold) { .acc = bench->sum + first,
                                                            .sources = sources,
                                                            .source_count = SOURCES,
                                                            .first = true,
                                                            .far = true,
                                                            .geometry = &bench->geometry,
                                                            .first_leaf = chunk * CHUNK_LEAVES,
                                                            .leaf_count = CHUNK_LEAVES,
                                                            .sums = &bench->sums[thread] });
}

static void update_chunk(struct update_bench *bench, size_t chunk, uint32_t thread)
{
    (void)thread;
    const size_t first = chunk * CHUNK_ELEMS;
    char *wire = bench->wire;
    const struct cairn_update update = {
        .grad = bench->sum + first,
        .param = bench->param + first,
        .exp_avg = bench->exp_avg + first,
        .exp_avg_sq = bench->exp_avg_sq + first,
        .wire = wire != NULL ? wire + first * cairn_dtype_bytes((int)bench->wire_dtype) : NULL,
        .wire_dtype = bench->wire_dtype,
        .elems = CHUNK_ELEMS,
        .far = true,
    };
    bench->backend->update[CAIRN_OPTIMIZER_ADAMW](&update, &bench->scalars);
}

static void touch_chunk(struct update_bench *bench, size_t chunk, uint32_t thread)
{
    (void)thread;
    cairn_bench_streams_touch(bench->streams, bench->stream_count, chunk * CHUNK_ELEMS,
                              CHUNK_ELEMS);
}

/* ---- threads ---- */

struct pass_thread {
    struct update_bench *bench;
    chunk_fn run;
    uint32_t number;
    double cpu; /* seconds of the core that it took */
};

static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Every thread has its part of the chunks, always the same, and has touched it first. */
static void *pass_main(void *argument)
{
    struct pass_thread *thread = argument;
    struct update_bench *bench = thread->bench;
    const double begin = cpu_now();
    const size_t chunks = bench->elems / CHUNK_ELEMS;
    const size_t end = chunks * (thread->number + 1) / bench->threads;
    for (size_t c = chunks * thread->number / bench->threads; c < end; c++)
        thread->run(bench, c, thread->number);
    thread->cpu = cpu_now() - begin;
    return NULL;
}

/* The seconds it took, and of all cores in *cpu_sum; 0: a thread could not be started, which is said. */
static double run_pass(struct update_bench *bench, chunk_fn run, double *cpu_sum)
{
    struct pass_thread threads[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    uint32_t started = 1;
    int failed = 0;
    const double begin = cairn_bench_now();
    for (uint32_t i = 0; i < bench->threads; i++)
        threads[i] = (struct pass_thread) { .bench = bench, .run = run, .number = i };
    for (; started < bench->threads && failed == 0; started += failed == 0)
        failed = pthread_create(&ids[started], NULL, pass_main, &threads[started]);
    pass_main(&threads[0]);
    for (uint32_t i = 1; i < started; i++) pthread_join(ids[i], NULL);
    const double seconds = cairn_bench_now() - begin;
    for (uint32_t i = 0; i < started; i++) *cpu_sum += threads[i].cpu;
    if (failed == 0) return seconds;
    cairn_ctl_fail(CAIRN_ERR_NO_MEMORY, "cannot start thread %u of %u: %s", started + 1,
                   bench->threads, strerror(failed));
    return 0;
}

/* ---- the two runs ---- */

static size_t counted_bytes(const struct update_bench *bench)
{
    const size_t wire = cairn_dtype_bytes((int)bench->wire_dtype);
    return bench->only_adamw ? 28 : SOURCES * wire + 4 + 28 + wire;
}

static double rate(const struct update_bench *bench, size_t bytes_per_elem, double seconds)
{
    return (double)bytes_per_elem * (double)bench->elems / seconds * 1e-9;
}

static double run_subject(void *context)
{
    struct update_bench *bench = context;
    memset(bench->sums, 0, sizeof bench->sums);
    const double fold = bench->only_adamw ? 0 : run_pass(bench, fold_chunk, &bench->subject_cpu);
    if (!bench->only_adamw && !(fold > 0)) return 0;
    const double update = run_pass(bench, update_chunk, &bench->subject_cpu);
    if (!(update > 0)) return 0;
    if (bench->fold_best == 0 || fold < bench->fold_best) bench->fold_best = fold;
    if (bench->update_best == 0 || update < bench->update_best) bench->update_best = update;
    return rate(bench, counted_bytes(bench), fold + update);
}

static double run_reference(void *context)
{
    struct update_bench *bench = context;
    const double seconds = run_pass(bench, touch_chunk, &bench->reference_cpu);
    return seconds > 0 ? rate(bench, 2 * bench->streams_bytes, seconds) : 0;
}

/* ---- the arrays ---- */

/* `begin`: where a shard has it in a page, proto/fabric/stagger.h. */
static void *make_array(struct update_bench *bench, size_t begin, size_t bytes_per_elem)
{
    const size_t bytes = begin + bench->elems * bytes_per_elem;
    char *map = cairn_pages_map(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (map == MAP_FAILED) return NULL;
    madvise(map, bytes, MADV_HUGEPAGE);
    bench->maps[bench->stream_count] = (struct map) { map, bytes };
    bench->streams[bench->stream_count++] = (struct cairn_bench_stream) { map + begin,
                                                                          bytes_per_elem };
    bench->streams_bytes += bytes_per_elem;
    return map + begin;
}

/* Of an update, as a shard's arenas are. */
static void *make_stream(struct update_bench *bench, enum cairn_update_stream stream,
                         size_t bytes_per_elem)
{
    return make_array(bench, cairn_stagger_begin(stream), bytes_per_elem);
}

/* Gradients of about the size that a step has; parameters and moments begin as 0. */
static void fill_chunk(struct update_bench *bench, size_t chunk, uint32_t thread)
{
    const size_t first = chunk * CHUNK_ELEMS, wire = cairn_dtype_bytes((int)bench->wire_dtype);
    float *sum = bench->sum + first;
    uint32_t state = (uint32_t)chunk * 2654435761u + 1;
    for (size_t i = 0; i < CHUNK_ELEMS; i++) {
        state = state * 1664525u + 1013904223u;
        sum[i] = ((float)(state >> 8) - 8388608.0f) * 0x1p-30f;
    }
    for (int s = 0; s < SOURCES && bench->sources[s] != NULL; s++)
        bench->backend->convert((char *)bench->sources[s] + first * wire, bench->wire_dtype, sum,
                                CAIRN_F32, CHUNK_ELEMS);
    update_chunk(bench, chunk, thread);
}

static bool make_arrays(struct update_bench *bench)
{
    const size_t wire = cairn_dtype_bytes((int)bench->wire_dtype);
    bool ok = true;
    for (int s = 0; s < SOURCES && !bench->only_adamw; s++)
        ok = ok &&
             (bench->sources[s] = make_array(bench, cairn_stagger_begin((size_t)s), wire)) != NULL;
    ok = ok && (bench->sum = make_stream(bench, CAIRN_STREAM_SUM, 4)) != NULL;
    ok = ok && (bench->param = make_stream(bench, CAIRN_STREAM_PARAM, 4)) != NULL;
    ok = ok && (bench->exp_avg = make_stream(bench, CAIRN_STREAM_EXP_AVG, 4)) != NULL;
    ok = ok && (bench->exp_avg_sq = make_stream(bench, CAIRN_STREAM_EXP_AVG_SQ, 4)) != NULL;
    if (!bench->only_adamw)
        ok = ok && (bench->wire = make_stream(bench, CAIRN_STREAM_WIRE, wire)) != NULL;
    return ok;
}

static void drop_arrays(struct update_bench *bench)
{
    for (size_t s = 0; s < bench->stream_count; s++)
        munmap(bench->maps[s].at, bench->maps[s].bytes);
}

/* ---- the bench ---- */

/* -1: go on; else the exit status. */
static int judge(const struct ctl *ctl, struct update_bench *bench)
{
    const char *wire = ctl->bench.wire, *only = ctl->bench.only;
    const uint64_t room = cairn_bench_memory_bytes() / 2 / BYTES_MAX;
    const uint64_t wanted = ctl->bench.params > 0 ? ctl->bench.params : PARAMS_DEFAULT;
    if (only != NULL && strcmp(only, "adamw") != 0)
        return cairn_ctl_usage_fail(ctl, "--only %s: adamw is allowed", only);
    if (ctl->bench.params > room)
        return cairn_ctl_usage_fail(ctl,
                                    "--params %llu: half of the memory that is free holds %llu",
                                    (unsigned long long)wanted, (unsigned long long)room);
    bench->only_adamw = only != NULL;
    bench->wire_dtype = wire != NULL && strcmp(wire, "f32") == 0 ? CAIRN_F32 : CAIRN_BF16;
    bench->elems = (size_t)(wanted < room ? wanted : room) / CHUNK_ELEMS * CHUNK_ELEMS;
    if (bench->elems == 0) bench->elems = CHUNK_ELEMS;
    bench->threads = ctl->bench.threads > 0 ? ctl->bench.threads : cairn_bench_core_count();
    if (bench->threads > THREADS_MAX) bench->threads = THREADS_MAX;
    return -1;
}

static void describe(const struct update_bench *bench, struct cairn_bench_result *result)
{
    result->params = json_pack("{s:I, s:I, s:s, s:I, s:I}", "params", (json_int_t)bench->elems,
                               "threads", (json_int_t)bench->threads, "wire",
                               bench->wire_dtype == CAIRN_F32 ? "f32" : "bf16", "bytes_per_param",
                               (json_int_t)counted_bytes(bench), "reference_bytes_per_param",
                               (json_int_t)(2 * bench->streams_bytes));
    const double cpu_ratio = (double)counted_bytes(bench) / bench->subject_cpu /
                             ((double)(2 * bench->streams_bytes) / bench->reference_cpu);
    result->parts = json_pack("{s:f, s:f}", "update_s", bench->update_best, "cpu_ratio", cpu_ratio);
    if (!bench->only_adamw)
        json_object_set_new(result->parts, "fold_s", json_real(bench->fold_best));
}

int cairn_bench_update(struct ctl *ctl)
{
    static struct update_bench bench;
    const struct cairn_group_hyper hyper = { .optimizer = CAIRN_OPTIMIZER_ADAMW,
                                             .lr = 1e-3,
                                             .beta1 = 0.9,
                                             .beta2 = 0.999,
                                             .eps = 1e-8,
                                             .weight_decay = 0.01 };
    int done = judge(ctl, &bench);
    if (done >= 0) return done;
    const struct cairn_shape shape = { .rank = 1, .dim = { bench.elems } };
    bench.backend = cairn_backend_host();
    bench.geometry = cairn_geometry_of(&shape);
    if (cairn_group_scalars_of(&hyper, 1, cairn_f32_bits(0.5f), &bench.scalars) != CAIRN_OK ||
        !make_arrays(&bench)) {
        drop_arrays(&bench);
        return cairn_ctl_fail(CAIRN_ERR_NO_MEMORY, "no memory for %zu parameters", bench.elems);
    }
    struct cairn_bench_result result = {
        .bench = bench.only_adamw ? "update.adamw" : "update",
        .unit = "GB/s",
        .reference_name = bench.only_adamw ? "in-place update of 4 streams"
                                           : "in-place update of 7 streams",
    };
    double unused = 0;
    done = run_pass(&bench, fill_chunk, &unused) > 0 ? -1 : 1;
    if (done < 0)
        done = cairn_bench_alternate(&result, ctl->bench.seconds, run_subject, run_reference,
                                     &bench);
    if (done < 0) describe(&bench, &result);
    drop_arrays(&bench);
    return done < 0 ? cairn_bench_print(&result, ctl) : done;
}
