/* cairn bench update: measures a shard's work on the gradients of a step, with the kernels and passes of
 * server/shard/update.c, but without messages. Two contributions are folded and summed; then AdamW updates
 * the parameters, and they are published. Counted bytes per element, with bf16 on the wire (fp32 in
 * parentheses):
 *
 *   fold      reads 2 contributions of 2 (4), writes the sum 4                          8  (12)
 *   update    reads the sum 4, reads and writes parameter and two moments 24,
 *             writes the published copy 2 (4)                                          30  (32)
 *
 * Additional traffic of the hardware, which reads a line before it writes a part of the line, is
 * not counted. The reference updates the same seven arrays in place: each array is read and
 * written, which makes 38 bytes per element (48). With --backend cuda the arrays are on the device,
 * and the reference copies as many bytes there.
 *
 * --only adamw measures the update of one fp32 gradient without a published copy, like an optimizer
 * in the trainer: 28 bytes against four arrays in place. --only zeros measures the same update with
 * gradients and moments of 0, like rows that are never used, because a device's square root and
 * division have a slow path for zero. --only fold measures the first row above. --only hash
 * measures the leaf hashes of an fp32 plane, 4 bytes, against those of libsodium. --only copy
 * copies such a plane from pinned host memory into a device, and back, 8 bytes. */
#include <inttypes.h>
#include <assert.h>
#include <jansson.h>
#include <pthread.h>
#include <sodium.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "client/ctl/bench/bench.h"
#include "gpu/gpu.h"
#include "proto/base/machine.h"
#include "proto/fabric/backend.h"

#define BENCH_STREAMS_MAX 8

struct bench_stream {
    void *data;
    size_t bytes_per_elem; /* 2 or 4 */
};

/* ==== update ==== */

#define UPDATE_CHUNK_LEAVES 64
#define UPDATE_CHUNK_ELEMS  ((size_t)UPDATE_CHUNK_LEAVES * CAIRN_LEAF_ELEMS)
#define UPDATE_SOURCES      2
#define UPDATE_THREADS_MAX  64

/* The part of an update that --only selects. */
enum update_only {
    UPDATE_ALL,   /* fold and update, like a shard */
    UPDATE_ADAMW, /* the update of an fp32 gradient, without a published copy */
    UPDATE_ZEROS, /* like UPDATE_ADAMW, with gradients and moments that are and remain 0 */
    UPDATE_FOLD,
    UPDATE_HASH, /* the leaf hashes of a plane */
    UPDATE_COPY, /* a plane into a device and back */
    UPDATE_ONLIES
};

/* The data that the work items of one chunk point to while they run. */
struct update_slot {
    struct fold_source sources[UPDATE_SOURCES];
    struct sums sums;
    uint64_t nonfinite;
    struct hash hashes[UPDATE_CHUNK_LEAVES];
};

/* The data of one thread, owned. */
struct update_thread {
    struct home_stream *stream;
    struct update_slot *slots; /* [list_chunks] */
    /* [list_chunks], but at least as many as the filling of a chunk needs */
    struct home_work *works;
    float *values; /* [chunk] host memory, the source for filling */
};

struct update_arrays {
    /* set by the caller before update_arrays_open */
    struct home *home; /* borrowed */
    struct geometry geometry;
    struct group_scalars scalars;
    cairn_dtype wire_dtype;
    enum update_only only;
    size_t elems; /* a multiple of the chunk size */
    uint32_t threads;
    /* owned: addresses in the home; NULL: not used by this bench */
    void *sources[UPDATE_SOURCES], *wire; /* [elems] wire_dtype */
    float *sum, *param, *exp_avg, *exp_avg_sq;
    float *host; /* [elems] pinned host memory, for UPDATE_COPY; in large pages */
    bool is_pinned;
    void *copies; /* on a device: memory for a copy of all arrays; NULL for the host */
    struct bench_stream streams[BENCH_STREAMS_MAX]; /* the arrays above, as streams */
    struct update_map {
        struct home_memory memory; /* on a device */
        void *map;                 /* on the host, in large pages */
        size_t bytes;
    } maps[BENCH_STREAMS_MAX + 2]; /* maps of the arrays above, of `copies`, and of `host` */
    size_t stream_count, map_count;
    size_t streams_bytes; /* per element, over all arrays */
    size_t list_chunks;   /* work items that a thread submits at once */
    struct update_thread thread[UPDATE_THREADS_MAX];
};

/* ==== streams ==== */

/* A burst is a page of an fp32 stream, or half a page of a 16-bit stream. Bursts of these sizes
 * suit prefetchers and memory. */
#define BURST_ELEMS ((size_t)1024)

typedef void (*add_fn)(uint32_t *data, size_t words, uint32_t increment);

static inline __attribute__((always_inline)) void add_words(uint32_t *data, size_t words,
                                                            uint32_t increment)
{
    for (size_t i = 0; i < words; i++) data[i] += increment;
}

static void add_plain(uint32_t *data, size_t words, uint32_t increment)
{
    add_words(data, words, increment);
}

#if defined(__x86_64__)
#if defined(__clang__)
#define WITH_AVX512 __attribute__((target("avx512f"), min_vector_width(512)))
#else
#define WITH_AVX512 __attribute__((target("avx512f,prefer-vector-width=512")))
#endif

static __attribute__((target("avx2"))) void add_avx2(uint32_t *data, size_t words,
                                                     uint32_t increment)
{
    add_words(data, words, increment);
}

WITH_AVX512 static void add_avx512(uint32_t *data, size_t words, uint32_t increment)
{
    add_words(data, words, increment);
}
#endif

static add_fn choose_add(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return add_avx512;
    if (__builtin_cpu_supports("avx2")) return add_avx2;
#endif
    return add_plain;
}

/* Adds 0 to elements [first, first + elems) of every stream, side by side. This reads and writes
 * the elements without changing them. first and elems are multiples of 2048. Uses the widest
 * instruction set that the CPU has. */
static void streams_touch(const struct bench_stream *streams, size_t stream_count, size_t first,
                          size_t elems)
{
    static volatile uint32_t zero; // unknown to the compiler, so the additions are executed
    const add_fn add_to = choose_add();
    assert(stream_count <= BENCH_STREAMS_MAX && elems % BURST_ELEMS == 0);
    for (size_t start = first; start < first + elems; start += BURST_ELEMS)
        for (size_t s = 0; s < stream_count; s++) {
            uint8_t *at = (uint8_t *)streams[s].data + start * streams[s].bytes_per_elem;
            add_to((uint32_t *)(void *)at,
                   BURST_ELEMS * streams[s].bytes_per_elem / sizeof(uint32_t), zero);
        }
}

/* ==== pass ==== */

/* Passes of cairn bench update. Every thread has a fixed part of the chunks, and was the first to
 * touch these chunks. The thread submits as many chunks at once to its home as home_info.works_best
 * says. */

#define CHUNK_ELEMS UPDATE_CHUNK_ELEMS

struct pass_thread;
/* Processes chunks [first, first + count); `count` is at most list_chunks. */
typedef cairn_status list_fn(struct pass_thread *thread, size_t first, size_t count);

struct pass_thread {
    struct update_arrays *arrays;
    struct update_thread *own;
    list_fn *run;
    uint32_t number;
    size_t list_chunks;
    double cpu; /* seconds of processor time that the thread used */
    cairn_status status;
    struct sentence why;
};

static char *at(void *array, size_t chunk, size_t bytes_per_elem)
{
    return (char *)array + chunk * CHUNK_ELEMS * bytes_per_elem;
}

/* ---- lists of work items ---- */

static struct home_work fold_of(const struct update_arrays *arrays, size_t chunk,
                                struct update_slot *slot)
{
    const size_t wire = dtype_size((int)arrays->wire_dtype);
    memset(&slot->sums, 0, sizeof slot->sums);
    for (int s = 0; s < UPDATE_SOURCES; s++)
        slot->sources[s] = (struct fold_source) { .data = at(arrays->sources[s], chunk, wire),
                                                  .dtype = arrays->wire_dtype };
    return (struct home_work) { .kind = CAIRN_WORK_FOLD_SUMS,
                                .fold_sums = { .acc = arrays->sum + chunk * CHUNK_ELEMS,
                                               .sources = slot->sources,
                                               .source_count = UPDATE_SOURCES,
                                               .first = true,
                                               .far = true,
                                               .geometry = &arrays->geometry,
                                               .first_leaf = chunk * UPDATE_CHUNK_LEAVES,
                                               .leaf_count = UPDATE_CHUNK_LEAVES,
                                               .sums = &slot->sums } };
}

static struct home_work update_of(const struct update_arrays *arrays, size_t chunk,
                                  struct update_slot *slot)
{
    const size_t first = chunk * CHUNK_ELEMS, wire = dtype_size((int)arrays->wire_dtype);
    return (struct home_work) {
        .kind = CAIRN_WORK_UPDATE,
        .update = { .planes = { .grad = arrays->sum + first,
                                .param = arrays->param + first,
                                .exp_avg = arrays->exp_avg + first,
                                .exp_avg_sq = arrays->exp_avg_sq + first,
                                .wire = arrays->wire != NULL ? at(arrays->wire, chunk, wire) : NULL,
                                .wire_dtype = arrays->wire_dtype,
                                .elems = CHUNK_ELEMS,
                                .far = true },
                    .scalars = &arrays->scalars,
                    .nonfinite = &slot->nonfinite }
    };
}

static cairn_status run_works(struct pass_thread *thread,
                              struct home_work (*work_of)(const struct update_arrays *arrays,
                                                          size_t chunk, struct update_slot *slot),
                              size_t first, size_t count)
{
    struct update_thread *own = thread->own;
    for (size_t i = 0; i < count; i++)
        own->works[i] = work_of(thread->arrays, first + i, &own->slots[i]);
    return home_run(own->stream, own->works, count, &thread->why);
}

static cairn_status fold_list(struct pass_thread *thread, size_t first, size_t count)
{
    return run_works(thread, fold_of, first, count);
}

static cairn_status update_list(struct pass_thread *thread, size_t first, size_t count)
{
    return run_works(thread, update_of, first, count);
}

static struct home_work hash_of(const struct update_arrays *arrays, size_t chunk,
                                struct update_slot *slot)
{
    return (struct home_work) { .kind = CAIRN_WORK_HASH,
                                .hash = { .plane = arrays->param + chunk * CHUNK_ELEMS,
                                          .dtype = CAIRN_F32,
                                          .geometry = &arrays->geometry,
                                          .first_leaf = chunk * UPDATE_CHUNK_LEAVES,
                                          .leaf_count = UPDATE_CHUNK_LEAVES,
                                          .hashes = slot->hashes } };
}

static cairn_status hash_list(struct pass_thread *thread, size_t first, size_t count)
{
    return run_works(thread, hash_of, first, count);
}

/* Hashes one leaf after the other. */
static cairn_status libsodium_list(struct pass_thread *thread, size_t first, size_t count)
{
    struct update_thread *own = thread->own;
    for (size_t i = 0; i < count; i++) {
        const struct home_work work = hash_of(thread->arrays, first + i, &own->slots[i]);
        backend_host_at(0)->hash_each(work.hash.plane, work.hash.dtype, work.hash.geometry,
                                      work.hash.first_leaf, work.hash.leaf_count, work.hash.hashes);
    }
    return CAIRN_OK;
}

static cairn_status copy_list(struct pass_thread *thread, float *to, const float *from,
                              size_t first, size_t count)
{
    struct update_thread *own = thread->own;
    for (size_t i = 0; i < count; i++) {
        const size_t at = (first + i) * CHUNK_ELEMS;
        own->works[i] = (struct home_work) {
            .kind = CAIRN_WORK_COPY,
            .copy = { .to = to + at, .from = from + at, .bytes = CHUNK_ELEMS * sizeof(float) }
        };
    }
    return home_run(own->stream, own->works, count, &thread->why);
}

static cairn_status in_list(struct pass_thread *thread, size_t first, size_t count)
{
    return copy_list(thread, thread->arrays->param, thread->arrays->host, first, count);
}

static cairn_status out_list(struct pass_thread *thread, size_t first, size_t count)
{
    return copy_list(thread, thread->arrays->host, thread->arrays->param, first, count);
}

/* Used only by the reference pass on the host. */
static cairn_status touch_list(struct pass_thread *thread, size_t first, size_t count)
{
    streams_touch(thread->arrays->streams, thread->arrays->stream_count, first * CHUNK_ELEMS,
                  count * CHUNK_ELEMS);
    return CAIRN_OK;
}

static cairn_status fill_list(struct pass_thread *thread, size_t first, size_t count)
{
    const struct update_arrays *arrays = thread->arrays;
    struct update_thread *own = thread->own;
    const size_t wire = dtype_size((int)arrays->wire_dtype);
    uint32_t state = (uint32_t)first * 2654435761u + 1;
    size_t works = 0;
    for (size_t i = 0; i < CHUNK_ELEMS; i++) {
        state = state * 1664525u + 1013904223u;
        own->values[i] = arrays->only == UPDATE_ZEROS
                             ? 0
                             : ((float)(state >> 8) - 8388608.0f) * 0x1p-30f;
    }
    float *plain = arrays->sum != NULL ? arrays->sum : arrays->param;
    own->works[works++] = (struct home_work) { .kind = CAIRN_WORK_COPY,
                                               .copy = { .to = plain + first * CHUNK_ELEMS,
                                                         .from = own->values,
                                                         .bytes = CHUNK_ELEMS * sizeof(float) } };
    for (int s = 0; s < UPDATE_SOURCES && arrays->sources[s] != NULL; s++)
        own->works[works++] =
            (struct home_work) { .kind = CAIRN_WORK_CONVERT,
                                 .convert = { .dst = at(arrays->sources[s], first, wire),
                                              .dst_dtype = arrays->wire_dtype,
                                              .src = own->values,
                                              .src_dtype = CAIRN_F32,
                                              .elems = CHUNK_ELEMS } };
    const cairn_status status = home_run(own->stream, own->works, works, &thread->why);
    if (status != CAIRN_OK || arrays->exp_avg == NULL) return status;
    return update_list(thread, first, count);
}

/* ---- threads ---- */

static void *pass_main(void *argument)
{
    struct pass_thread *thread = argument;
    const double begin = bench_clock(CLOCK_THREAD_CPUTIME_ID);
    const size_t chunks = thread->arrays->elems / CHUNK_ELEMS;
    const size_t end = chunks * (thread->number + 1) / thread->arrays->threads;
    size_t c = chunks * thread->number / thread->arrays->threads;
    while (c < end && thread->status == CAIRN_OK) {
        const size_t count = end - c < thread->list_chunks ? end - c : thread->list_chunks;
        thread->status = thread->run(thread, c, count);
        c += count;
    }
    thread->cpu = bench_clock(CLOCK_THREAD_CPUTIME_ID) - begin;
    return NULL;
}

/* Returns the elapsed seconds; 0: the pass failed. *cpu_sum receives the processor seconds of all
 * threads. */
static double run_pass(struct update_arrays *arrays, list_fn *run, size_t list_chunks,
                       double *cpu_sum, struct sentence *why)
{
    static struct pass_thread threads[UPDATE_THREADS_MAX];
    pthread_t ids[UPDATE_THREADS_MAX];
    uint32_t started = 1;
    int failed = 0;
    const double begin = bench_now();
    for (uint32_t i = 0; i < arrays->threads; i++) {
        threads[i] = (struct pass_thread) { .arrays = arrays, .run = run, .number = i };
        threads[i].own = &arrays->thread[i];
        threads[i].list_chunks = list_chunks;
    }
    for (; started < arrays->threads && failed == 0; started += failed == 0)
        failed = pthread_create(&ids[started], NULL, pass_main, &threads[started]);
    pass_main(&threads[0]);
    for (uint32_t i = 1; i < started; i++) pthread_join(ids[i], NULL);
    const double seconds = bench_now() - begin;
    for (uint32_t i = 0; i < started; i++) {
        *cpu_sum += threads[i].cpu;
        if (threads[i].status == CAIRN_OK) continue;
        *why = threads[i].why;
        return 0;
    }
    if (failed == 0) return seconds;
    sentence_set(why, "cannot start thread %u of %u: %s", started + 1, arrays->threads,
                 strerror(failed));
    return 0;
}

/* Copies all arrays by one list, which the device receives at once. */
static double copy_all(struct update_arrays *arrays, struct sentence *why)
{
    struct home_work works[BENCH_STREAMS_MAX];
    char *to = arrays->copies;
    for (size_t s = 0; s < arrays->stream_count; s++) {
        const size_t bytes = arrays->elems * arrays->streams[s].bytes_per_elem;
        works[s] = (struct home_work) { .kind = CAIRN_WORK_COPY,
                                        .copy = { to, arrays->streams[s].data, bytes } };
        to += bytes;
    }
    const double begin = bench_now();
    if (home_run(arrays->thread[0].stream, works, arrays->stream_count, why) != CAIRN_OK) return 0;
    return bench_now() - begin;
}

/* Reads all arrays once and writes the same number of bytes: in place on the host, as a copy on a
 * device. */
static double pass_reference(struct update_arrays *arrays, double *cpu_sum, struct sentence *why)
{
    if (arrays->copies != NULL) return copy_all(arrays, why);
    return run_pass(arrays, touch_list, 1, cpu_sum, why);
}

/* ==== arrays ==== */

/* The arrays of cairn bench update, placed where a shard of that home has them. */

#define LIST_CHUNKS_MAX 1024
#define FILL_WORKS      (UPDATE_SOURCES + 1)

static bool is_host(const struct update_arrays *arrays)
{
    return home_info(arrays->home)->is_host;
}

/* ---- memory ---- */

/* Maps memory in large pages, like a shard's arenas. */
static void *map_host(struct update_map *map, size_t bytes)
{
    char *at = pages_map(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (at == MAP_FAILED) return NULL;
    madvise(at, bytes, MADV_HUGEPAGE);
    map->map = at;
    map->bytes = bytes;
    return at;
}

static void *make_memory(struct update_arrays *arrays, size_t bytes, struct sentence *why)
{
    struct update_map *map = &arrays->maps[arrays->map_count];
    void *base = NULL;
    if (is_host(arrays)) {
        base = map_host(map, bytes);
        if (base == NULL) sentence_set(why, "out of memory for %zu parameters", arrays->elems);
    } else if (home_memory_open(arrays->home, "bench", bytes, &map->memory, why) == CAIRN_OK) {
        base = map->memory.base;
    }
    if (base != NULL) arrays->map_count++;
    return base;
}

/* Places an array. `begin` is the array's offset in a page, as in a shard (proto/fabric/backend.h). */
static void *make_array(struct update_arrays *arrays, size_t stream, size_t bytes_per_elem,
                        struct sentence *why)
{
    const size_t begin = is_host(arrays) ? stagger_begin(stream) : 0;
    char *base = make_memory(arrays, begin + arrays->elems * bytes_per_elem, why);
    if (base == NULL) return NULL;
    arrays->streams[arrays->stream_count++] = (struct bench_stream) { base + begin,
                                                                      bytes_per_elem };
    arrays->streams_bytes += bytes_per_elem;
    return base + begin;
}

/* Maps host memory, and pins it like a shard's landing area. If pinning fails, copies are slower but
 * correct. */
static bool make_host(struct update_arrays *arrays, struct sentence *why)
{
    const size_t bytes = arrays->elems * sizeof *arrays->host;
    struct sentence unpinned;
    arrays->host = map_host(&arrays->maps[arrays->map_count], bytes);
    if (arrays->host == NULL) {
        sentence_set(why, "out of memory for %zu parameters", arrays->elems);
        return false;
    }
    arrays->map_count++;
    memset(arrays->host, 0, bytes);
    arrays->is_pinned = home_pin(arrays->home, arrays->host, bytes, &unpinned) == CAIRN_OK;
    return true;
}

static bool make_arrays(struct update_arrays *a, struct sentence *why)
{
    const size_t wire = dtype_size((int)a->wire_dtype);
    const bool is_all = a->only == UPDATE_ALL;
    const bool updates = is_all || a->only == UPDATE_ADAMW || a->only == UPDATE_ZEROS;
    const bool folds = is_all || a->only == UPDATE_FOLD;
    bool ok = true;
    for (size_t s = 0; s < UPDATE_SOURCES && folds; s++)
        ok = ok && (a->sources[s] = make_array(a, s, wire, why)) != NULL;
    if (folds || updates) ok = ok && (a->sum = make_array(a, CAIRN_STREAM_SUM, 4, why)) != NULL;
    if (updates || !folds)
        ok = ok && (a->param = make_array(a, CAIRN_STREAM_PARAM, 4, why)) != NULL;
    if (updates) {
        ok = ok && (a->exp_avg = make_array(a, CAIRN_STREAM_EXP_AVG, 4, why)) != NULL;
        ok = ok && (a->exp_avg_sq = make_array(a, CAIRN_STREAM_EXP_AVG_SQ, 4, why)) != NULL;
    }
    if (is_all) ok = ok && (a->wire = make_array(a, CAIRN_STREAM_WIRE, wire, why)) != NULL;
    if (!is_host(a))
        ok = ok && (a->copies = make_memory(a, a->elems * a->streams_bytes, why)) != NULL;
    return ok && (a->only != UPDATE_COPY || make_host(a, why));
}

/* ---- threads ---- */

static bool make_thread(struct update_arrays *arrays, struct update_thread *thread,
                        struct sentence *why)
{
    const size_t works = arrays->list_chunks > FILL_WORKS ? arrays->list_chunks : FILL_WORKS;
    if (home_stream_open(arrays->home, &thread->stream, why) != CAIRN_OK) return false;
    thread->slots = calloc(arrays->list_chunks, sizeof *thread->slots);
    thread->works = calloc(works, sizeof *thread->works);
    thread->values = calloc(UPDATE_CHUNK_ELEMS, sizeof *thread->values);
    if (thread->slots != NULL && thread->works != NULL && thread->values != NULL) return true;
    sentence_set(why, "out of memory for the works of a thread");
    return false;
}

/* Allocates the arrays and fills them: gradients have the magnitude of gradients in training, or
 * are zeros for UPDATE_ZEROS; parameters and moments have seen one update. False: `why` has the
 * reason, and update_arrays_close frees everything. */
static bool update_arrays_open(struct update_arrays *arrays, struct sentence *why)
{
    const uint32_t best = home_info(arrays->home)->works_best;
    arrays->list_chunks = best < 1 ? 1 : best < LIST_CHUNKS_MAX ? best : LIST_CHUNKS_MAX;
    if (!make_arrays(arrays, why)) return false;
    for (uint32_t i = 0; i < arrays->threads; i++)
        if (!make_thread(arrays, &arrays->thread[i], why)) return false;
    double unused = 0;
    return run_pass(arrays, fill_list, 1, &unused, why) > 0;
}

static void update_arrays_close(struct update_arrays *arrays)
{
    for (uint32_t i = 0; i < UPDATE_THREADS_MAX; i++) {
        home_stream_close(arrays->thread[i].stream);
        free(arrays->thread[i].slots);
        free(arrays->thread[i].works);
        free(arrays->thread[i].values);
    }
    if (arrays->is_pinned)
        home_unpin(arrays->home, arrays->host, arrays->elems * sizeof *arrays->host);
    for (size_t m = 0; m < arrays->map_count; m++) {
        home_memory_close(&arrays->maps[m].memory);
        if (arrays->maps[m].map != NULL) munmap(arrays->maps[m].map, arrays->maps[m].bytes);
    }
}

/* ==== hash ==== */

/* Measures for cairn bench update --only hash: one thread hashes a plane with each instruction set that
 * this CPU has, in turn; "plain" is libsodium, which hashes one leaf after the other. Seconds are the
 * thread's processor time, since other processes may use the cores, too. */

#define ROUNDS      9
#define ROUND_ELEMS ((size_t)4 << 20)

static double by_set(const struct update_arrays *arrays, size_t elems, const struct backend *host)
{
    struct hash hashes[UPDATE_CHUNK_LEAVES];
    const double start = bench_clock(CLOCK_THREAD_CPUTIME_ID);
    for (size_t i = 0; i < elems; i += UPDATE_CHUNK_ELEMS)
        host->hash_each(arrays->param + i, CAIRN_F32, &arrays->geometry, i / CAIRN_LEAF_ELEMS,
                        UPDATE_CHUNK_LEAVES, hashes);
    const double seconds = bench_clock(CLOCK_THREAD_CPUTIME_ID) - start;
    return (double)(elems * sizeof(float)) / seconds * 1e-9;
}

static void set_median(json_t *parts, const char *set, const char *what, double *values)
{
    char key[32];
    snprintf(key, sizeof key, "%s_%s", set, what);
    json_object_set_new(parts, key, json_real(bench_spread_of(values, ROUNDS).median));
}

static void hash_sets(const struct update_arrays *arrays, json_t *parts)
{
    double rate[CAIRN_HOST_ISA_COUNT][ROUNDS];
    double ratio[CAIRN_HOST_ISA_COUNT][ROUNDS];
    const size_t elems = arrays->elems < ROUND_ELEMS ? arrays->elems : ROUND_ELEMS;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t isa = 0; isa < CAIRN_HOST_ISA_COUNT; isa++) {
            const struct backend *host = backend_host_at(isa);
            if (host == NULL) continue;
            rate[isa][round] = by_set(arrays, elems, host);
            ratio[isa][round] = rate[isa][round] / rate[0][round];
        }
    }
    for (uint32_t isa = 0; isa < CAIRN_HOST_ISA_COUNT; isa++) {
        if (backend_host_at(isa) == NULL) continue;
        set_median(parts, backend_host_isa(isa), "gbps", rate[isa]);
        set_median(parts, backend_host_isa(isa), "ratio", ratio[isa]);
    }
}

/* ==== bench ==== */

#define PARAMS_DEFAULT      ((uint64_t)64 << 20)
#define THREADS_OF_DEVICE   2 /* one thread waits for its list while the other's list runs */
#define PASSES_MAX          2
#define BYTES_MAX           (UPDATE_SOURCES * 4 + 5 * 4) /* per element, over all arrays */
#define BYTES_MAX_OF_DEVICE (2 * BYTES_MAX)              /* the arrays and their copies */

struct update_bench {
    struct bench b;
    struct update_arrays arrays;
    double best[PASSES_MAX]; /* seconds of each pass */
    uint64_t launches;       /* kernel launches of a device, for one run of all passes */
    /* processor time of all runs; their ratio is valid even on a machine whose cores are shared */
    double subject_cpu, reference_cpu;
    struct sentence why;
};

/* ---- the two runs ---- */

/* Indexed by enum update_only: --only NAME, its passes, and the counted bytes per element: `bytes`, plus
 * `wires` times the size of the wire type. */
static const struct subject {
    const char *name;
    struct {
        const char *part;
        list_fn *list;
    } passes[PASSES_MAX];
    size_t bytes, wires;
} subjects[UPDATE_ONLIES] = {
    [UPDATE_ALL] = { "",
                     { { "fold_s", fold_list }, { "update_s", update_list } },
                     4 + 28,
                     UPDATE_SOURCES + 1 },
    [UPDATE_ADAMW] = { "adamw", { { "update_s", update_list } }, 28, 0 },
    [UPDATE_ZEROS] = { "zeros", { { "update_s", update_list } }, 28, 0 },
    [UPDATE_FOLD] = { "fold", { { "fold_s", fold_list } }, 4, UPDATE_SOURCES },
    [UPDATE_HASH] = { "hash", { { "hash_s", hash_list } }, 4, 0 },
    [UPDATE_COPY] = { "copy", { { "in_s", in_list }, { "out_s", out_list } }, 8, 0 },
};

static size_t counted_bytes(const struct update_arrays *arrays)
{
    const struct subject *subject = &subjects[arrays->only];
    return subject->bytes + subject->wires * dtype_size((int)arrays->wire_dtype);
}

/* Returns true if the reference is libsodium, with the same threads, as for hashing on the host.
 * Every other subject is compared with memory traffic. */
static bool is_by_libsodium(const struct update_arrays *arrays)
{
    return arrays->only == UPDATE_HASH && home_info(arrays->home)->is_host;
}

static size_t reference_bytes(const struct update_arrays *arrays)
{
    return is_by_libsodium(arrays) ? counted_bytes(arrays) : 2 * arrays->streams_bytes;
}

static double rate(const struct update_arrays *arrays, size_t bytes_per_elem, double seconds)
{
    return (double)bytes_per_elem * (double)arrays->elems / seconds * 1e-9;
}

static double fail_run(const struct update_bench *u)
{
    ctl_fail(CAIRN_ERR_IO, "%s", u->why.text);
    return 0;
}

static double run_subject(void *bench)
{
    struct update_bench *u = bench;
    struct update_arrays *arrays = &u->arrays;
    const struct subject *subject = &subjects[arrays->only];
    double all = 0;
    const uint64_t launches = home_use(arrays->home).launches;
    for (int p = 0; p < PASSES_MAX && subject->passes[p].list != NULL; p++) {
        const double seconds = run_pass(arrays, subject->passes[p].list, arrays->list_chunks,
                                        &u->subject_cpu, &u->why);
        if (!(seconds > 0)) return fail_run(u);
        if (u->best[p] == 0 || seconds < u->best[p]) u->best[p] = seconds;
        all += seconds;
    }
    u->launches = home_use(arrays->home).launches - launches;
    return rate(arrays, counted_bytes(arrays), all);
}

static double run_reference(void *bench)
{
    struct update_bench *u = bench;
    struct update_arrays *arrays = &u->arrays;
    const double seconds = is_by_libsodium(arrays)
                               ? run_pass(arrays, libsodium_list, arrays->list_chunks,
                                          &u->reference_cpu, &u->why)
                               : pass_reference(arrays, &u->reference_cpu, &u->why);
    return seconds > 0 ? rate(&u->arrays, reference_bytes(&u->arrays), seconds) : fail_run(u);
}

/* ---- the options ---- */

static bool only_of(const char *name, enum update_only *out)
{
    for (int i = UPDATE_ALL + 1; i < UPDATE_ONLIES; i++) {
        if (strcmp(name, subjects[i].name) != 0) continue;
        *out = (enum update_only)i;
        return true;
    }
    return false;
}

/* Returns -1 to continue, else the exit status. */
static int check_words(const struct ctl *ctl, struct update_arrays *arrays)
{
    const char *wire = ctl->bench.wire, *only = ctl->bench.only, *backend = ctl->bench.backend;
    const bool is_host = backend == NULL || strcmp(backend, "host") == 0;
    if (only != NULL && !only_of(only, &arrays->only))
        return ctl_usage_fail(ctl, "--only %s: adamw, zeros, fold, hash and copy are allowed",
                              only);
    if (is_host && arrays->only == UPDATE_COPY)
        return ctl_usage_fail(ctl, "--only copy is for a device; give --backend cuda");
    if (ctl->bench.device != NULL && is_host)
        return ctl_usage_fail(ctl, "--device %s: the host has none; give --backend cuda, too",
                              ctl->bench.device);
    arrays->wire_dtype = wire != NULL && strcmp(wire, "f32") == 0 ? CAIRN_F32 : CAIRN_BF16;
    return -1;
}

static int open_home(struct update_bench *u)
{
    const struct ctl_bench *asked = &u->b.ctl->bench;
    u->arrays.home = home_host();
    if (asked->backend == NULL || strcmp(asked->backend, "host") == 0) return -1;
    const cairn_status status = home_open_cuda(asked->device, &u->arrays.home, &u->why);
    return status == CAIRN_OK ? -1 : ctl_fail(status, "%s", u->why.text);
}

static int check_size(const struct ctl *ctl, struct update_arrays *arrays)
{
    const bool is_host = home_info(arrays->home)->is_host;
    const uint64_t room = is_host ? bench_memory_bytes() / 2 / BYTES_MAX
                                  : home_free_bytes(arrays->home) / 10 * 9 / BYTES_MAX_OF_DEVICE;
    const uint64_t wanted = ctl->bench.params > 0 ? ctl->bench.params : PARAMS_DEFAULT;
    if (ctl->bench.params > room)
        return ctl_usage_fail(ctl, "--params %" PRIu64 ": %s holds %" PRIu64, wanted,
                              is_host ? "half of the memory that is free"
                                      : "what is free of the device, with room for a copy,",
                              room);
    arrays->elems = (size_t)(wanted < room ? wanted : room) / UPDATE_CHUNK_ELEMS *
                    UPDATE_CHUNK_ELEMS;
    if (arrays->elems == 0) arrays->elems = UPDATE_CHUNK_ELEMS;
    const uint32_t threads = is_host ? bench_core_count() : THREADS_OF_DEVICE;
    arrays->threads = ctl->bench.threads > 0 ? ctl->bench.threads : threads;
    if (arrays->threads > UPDATE_THREADS_MAX) arrays->threads = UPDATE_THREADS_MAX;
    return -1;
}

/* ---- the row ---- */

/* Returns the reference's name. The arrays must be allocated. */
static const char *reference_name(const struct update_arrays *arrays)
{
    static char name[48];
    if (is_by_libsodium(arrays)) return "libsodium, a leaf after the other";
    if (!home_info(arrays->home)->is_host) return "copy of the same arrays on the device";
    snprintf(name, sizeof name, "in-place update of %zu stream%s", arrays->stream_count,
             arrays->stream_count == 1 ? "" : "s");
    return name;
}

static int open_arrays(struct update_bench *u)
{
    const struct group_hyper hyper = { .optimizer = CAIRN_OPTIMIZER_ADAMW,
                                       .lr = 1e-3,
                                       .beta1 = 0.9,
                                       .beta2 = 0.999,
                                       .eps = 1e-8,
                                       .weight_decay = 0.01 };
    const struct shape shape = { .rank = 1, .dim = { u->arrays.elems } };
    u->arrays.geometry = geometry_of(&shape);
    if (group_scalars_of(&hyper, 1, f32_bits(0.5f), &u->arrays.scalars) != CAIRN_OK)
        return ctl_fail(CAIRN_ERR_INVALID, "no scalars of the first step");
    if (!update_arrays_open(&u->arrays, &u->why))
        return ctl_fail(CAIRN_ERR_NO_MEMORY, "%s", u->why.text);
    u->b.result.reference_name = reference_name(&u->arrays);
    return -1;
}

static int prepare_update(void *bench)
{
    struct update_bench *u = bench;
    int done = check_words(u->b.ctl, &u->arrays);
    if (done < 0 && sodium_init() < 0) // without this call libsodium uses its portable code
        done = ctl_fail(CAIRN_ERR_INTERNAL, "libsodium does not start");
    if (done < 0) done = open_home(u);
    if (done < 0) done = check_size(u->b.ctl, &u->arrays);
    return done < 0 ? open_arrays(u) : done;
}

static void tell_update(struct update_bench *u)
{
    const struct update_arrays *arrays = &u->arrays;
    const struct home_info *home = home_info(arrays->home);
    if (home->driver[0] != 0) json_object_set_new(u->b.params, "driver", json_string(home->driver));
    if (arrays->only == UPDATE_COPY)
        json_object_set_new(u->b.params, "pinned", json_boolean(arrays->is_pinned));
    bench_add_params(&u->b,
                     json_pack("{s:I, s:I, s:s, s:I, s:I, s:s, s:s}", "params",
                               (json_int_t)arrays->elems, "threads", (json_int_t)arrays->threads,
                               "wire", arrays->wire_dtype == CAIRN_F32 ? "f32" : "bf16",
                               "bytes_per_param", (json_int_t)counted_bytes(arrays),
                               "reference_bytes_per_param", (json_int_t)reference_bytes(arrays),
                               "backend", home->backend, "device", home->device));
}

static int report_update(void *bench)
{
    struct update_bench *u = bench;
    const struct update_arrays *arrays = &u->arrays;
    const size_t counted = counted_bytes(arrays), reference = reference_bytes(arrays);
    const struct subject *subject = &subjects[arrays->only];
    tell_update(u);
    for (int p = 0; p < PASSES_MAX && subject->passes[p].list != NULL; p++)
        BENCH_PARTS(&u->b, { subject->passes[p].part, u->best[p] });
    if (!home_info(arrays->home)->is_host) {
        bench_add_count(&u->b, "launches", u->launches);
        return -1;
    }
    if (arrays->only == UPDATE_HASH) hash_sets(arrays, u->b.parts);
    BENCH_PARTS(&u->b, { "cpu_ratio", (double)counted / u->subject_cpu /
                                          ((double)reference / u->reference_cpu) });
    return -1;
}

static void close_update(void *bench)
{
    struct update_bench *u = bench;
    if (u->arrays.home == NULL) return;
    update_arrays_close(&u->arrays);
    home_close(u->arrays.home);
}

const struct bench_row bench_update = {
    .name = "update",
    .unit = "GB/s",
    .bytes = sizeof(struct update_bench),
    .prepare = prepare_update,
    .run = run_subject,
    .reference = run_reference,
    .report = report_update,
    .close = close_update,
};
