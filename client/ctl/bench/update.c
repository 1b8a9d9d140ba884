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
#include "client/ctl/bench/bench.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"
#include "proto/fabric/backend.h"

#define CHUNK_LEAVES        64
#define CHUNK_ELEMS         ((size_t)CHUNK_LEAVES * CAIRN_LEAF_ELEMS)
#define SOURCES             2
#define LIST_CHUNKS_MAX     1024
#define FILL_WORKS          (SOURCES + 1)
#define PASSES_MAX          2
#define PARAMS_DEFAULT      ((uint64_t)64 << 20)
#define THREADS_OF_DEVICE   2 /* one thread waits for its list while the other's list runs */
#define BYTES_MAX           (SOURCES * 4 + 5 * 4) /* per element, over all arrays */
#define BYTES_MAX_OF_DEVICE (2 * BYTES_MAX)       /* the arrays and their copies */

/* The arrays, in the home, and how a shard has them. */
enum { SOURCE, SOURCE_2, SUM, PARAM, EXP_AVG, EXP_AVG_SQ, WIRE, ARRAYS };
static const struct {
    size_t stream;      /* decides its begin in a page (proto/fabric/backend.h) */
    bool has_wire_type; /* otherwise fp32 */
} kinds[ARRAYS] = {
    [SOURCE] = { 0, true },
    [SOURCE_2] = { 1, true },
    [SUM] = { CAIRN_STREAM_SUM, false },
    [PARAM] = { CAIRN_STREAM_PARAM, false },
    [EXP_AVG] = { CAIRN_STREAM_EXP_AVG, false },
    [EXP_AVG_SQ] = { CAIRN_STREAM_EXP_AVG_SQ, false },
    [WIRE] = { CAIRN_STREAM_WIRE, true },
};

/* The part of an update that --only selects. */
enum only {
    ALL,   /* fold and update, like a shard */
    ADAMW, /* the update of an fp32 gradient, without a published copy */
    ZEROS, /* like ADAMW, with gradients and moments that are and remain 0 */
    FOLD,
    HASH, /* the leaf hashes of a plane */
    COPY, /* a plane into a device and back */
    ONLIES
};

/* The data that the work items of one chunk point to while they run. */
struct slot {
    struct fold_source sources[SOURCES];
    struct sums sums;
    uint64_t nonfinite;
    struct hash hashes[CHUNK_LEAVES];
};

/* A thread of a pass. It has a fixed part of the chunks, and was the first to touch these chunks. */
struct part {
    struct home_stream *stream;
    struct slot *slots; /* [list_chunks] */
    /* [list_chunks], but at least as many as the filling of a chunk needs */
    struct home_work *works;
    float *values; /* [chunk] host memory, the source for filling */
    /* about the last pass */
    double cpu; /* seconds of processor time that the thread used */
    cairn_status status;
    struct sentence why;
};

struct update_bench;
/* Returns the work item of one chunk. */
typedef struct home_work work_fn(const struct update_bench *u, size_t chunk, struct slot *slot);
/* Processes chunks [first, first + count); `count` is at most list_chunks. */
typedef cairn_status list_fn(struct update_bench *u, struct part *part, size_t first, size_t count);

struct update_bench {
    struct bench b;
    struct home *home;
    struct geometry geometry;
    struct group_scalars scalars;
    cairn_dtype wire_dtype;
    uint64_t only;                  /* enum only */
    size_t elems;                   /* a multiple of the chunk size */
    char *arrays[ARRAYS];           /* addresses in the home; NULL: not used by this bench */
    size_t array_count, bytes_each; /* bytes_each: per element, over all arrays */
    float *host;                    /* [elems] pinned host memory, for COPY; in large pages */
    bool is_pinned;
    char *copies;       /* on a device: memory for a copy of all arrays; NULL for the host */
    size_t list_chunks; /* work items that a thread submits at once */
    uint32_t threads;
    struct part parts[BENCH_THREADS_MAX];
    /* of the pass that runs, with `run_chunks` chunks at once; work_of: for work_list */
    list_fn *run;
    work_fn *work_of;
    size_t run_chunks;
    double best[PASSES_MAX]; /* seconds of each pass */
    uint64_t launches;       /* kernel launches of a device, for one run of all passes */
    /* processor time of all runs; their ratio is valid even on a machine whose cores are shared */
    double subject_cpu, reference_cpu;
};

static bool is_host(const struct update_bench *u)
{
    return home_info(u->home)->is_host;
}

/* Returns the bytes of an element of the array. */
static size_t bytes_of(const struct update_bench *u, int array)
{
    return kinds[array].has_wire_type ? dtype_size((int)u->wire_dtype) : sizeof(float);
}

/* Returns the array from this chunk on; NULL: this bench does not use the array. */
static void *at(const struct update_bench *u, int array, size_t chunk)
{
    if (u->arrays[array] == NULL) return NULL;
    return u->arrays[array] + chunk * CHUNK_ELEMS * bytes_of(u, array);
}

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

/* The reference on the host: adds 0 to the elements of every array, side by side. This reads and writes
 * the elements without changing them. Uses the widest instruction set that the CPU has. */
static cairn_status touch_list(struct update_bench *u, struct part *part, size_t first,
                               size_t count)
{
    static volatile uint32_t zero; // unknown to the compiler, so the additions are executed
    const add_fn add_to = choose_add();
    (void)part;
    for (size_t start = 0; start < count * CHUNK_ELEMS; start += BURST_ELEMS)
        for (int a = 0; a < ARRAYS; a++) {
            if (u->arrays[a] == NULL) continue;
            char *burst = (char *)at(u, a, first) + start * bytes_of(u, a);
            add_to((uint32_t *)(void *)burst, BURST_ELEMS * bytes_of(u, a) / sizeof(uint32_t),
                   zero);
        }
    return CAIRN_OK;
}

/* ==== lists of work items ==== */

static struct home_work fold_of(const struct update_bench *u, size_t chunk, struct slot *slot)
{
    memset(&slot->sums, 0, sizeof slot->sums);
    for (int s = 0; s < SOURCES; s++)
        slot->sources[s] = (struct fold_source) { .data = at(u, SOURCE + s, chunk),
                                                  .dtype = u->wire_dtype };
    return (struct home_work) { .kind = CAIRN_WORK_FOLD_SUMS,
                                .fold_sums = { .acc = at(u, SUM, chunk),
                                               .sources = slot->sources,
                                               .source_count = SOURCES,
                                               .first = true,
                                               .far = true,
                                               .geometry = &u->geometry,
                                               .first_leaf = chunk * CHUNK_LEAVES,
                                               .leaf_count = CHUNK_LEAVES,
                                               .sums = &slot->sums } };
}

static struct home_work update_of(const struct update_bench *u, size_t chunk, struct slot *slot)
{
    return (struct home_work) { .kind = CAIRN_WORK_UPDATE,
                                .update = { .planes = { .grad = at(u, SUM, chunk),
                                                        .param = at(u, PARAM, chunk),
                                                        .exp_avg = at(u, EXP_AVG, chunk),
                                                        .exp_avg_sq = at(u, EXP_AVG_SQ, chunk),
                                                        .wire = at(u, WIRE, chunk),
                                                        .wire_dtype = u->wire_dtype,
                                                        .elems = CHUNK_ELEMS,
                                                        .far = true },
                                            .scalars = &u->scalars,
                                            .nonfinite = &slot->nonfinite } };
}

static struct home_work hash_of(const struct update_bench *u, size_t chunk, struct slot *slot)
{
    return (struct home_work) { .kind = CAIRN_WORK_HASH,
                                .hash = { .plane = at(u, PARAM, chunk),
                                          .dtype = CAIRN_F32,
                                          .geometry = &u->geometry,
                                          .first_leaf = chunk * CHUNK_LEAVES,
                                          .leaf_count = CHUNK_LEAVES,
                                          .hashes = slot->hashes } };
}

static struct home_work copy_of(void *to, const void *from, size_t bytes)
{
    return (struct home_work) { .kind = CAIRN_WORK_COPY,
                                .copy = { .to = to, .from = from, .bytes = bytes } };
}

static struct home_work in_of(const struct update_bench *u, size_t chunk, struct slot *slot)
{
    (void)slot;
    return copy_of(at(u, PARAM, chunk), u->host + chunk * CHUNK_ELEMS, CHUNK_ELEMS * 4);
}

static struct home_work out_of(const struct update_bench *u, size_t chunk, struct slot *slot)
{
    (void)slot;
    return copy_of(u->host + chunk * CHUNK_ELEMS, at(u, PARAM, chunk), CHUNK_ELEMS * 4);
}

static cairn_status run_works(struct update_bench *u, struct part *part, work_fn *work_of,
                              size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++) part->works[i] = work_of(u, first + i, &part->slots[i]);
    return home_run(part->stream, part->works, count, &part->why);
}

static cairn_status work_list(struct update_bench *u, struct part *part, size_t first, size_t count)
{
    return run_works(u, part, u->work_of, first, count);
}

/* Hashes one leaf after the other. */
static cairn_status libsodium_list(struct update_bench *u, struct part *part, size_t first,
                                   size_t count)
{
    for (size_t i = first; i < first + count; i++)
        backend_host_at(0)->hash_each(at(u, PARAM, i), CAIRN_F32, &u->geometry, i * CHUNK_LEAVES,
                                      CHUNK_LEAVES, part->slots[i - first].hashes);
    return CAIRN_OK;
}

/* Fills a chunk: gradients have the magnitude of gradients in training, or are zeros for ZEROS; parameters
 * and moments have seen one update. */
static cairn_status fill_list(struct update_bench *u, struct part *part, size_t first, size_t count)
{
    uint32_t state = (uint32_t)first * 2654435761u + 1;
    size_t works = 0;
    for (size_t i = 0; i < CHUNK_ELEMS; i++) {
        state = state * 1664525u + 1013904223u;
        part->values[i] = u->only == ZEROS ? 0 : ((float)(state >> 8) - 8388608.0f) * 0x1p-30f;
    }
    part->works[works++] = copy_of(at(u, u->arrays[SUM] != NULL ? SUM : PARAM, first), part->values,
                                   CHUNK_ELEMS * sizeof(float));
    for (int s = 0; s < SOURCES && u->arrays[SOURCE] != NULL; s++)
        part->works[works++] = (struct home_work) { .kind = CAIRN_WORK_CONVERT,
                                                    .convert = { .dst = at(u, SOURCE + s, first),
                                                                 .dst_dtype = u->wire_dtype,
                                                                 .src = part->values,
                                                                 .src_dtype = CAIRN_F32,
                                                                 .elems = CHUNK_ELEMS } };
    const cairn_status status = home_run(part->stream, part->works, works, &part->why);
    if (status != CAIRN_OK || u->arrays[EXP_AVG] == NULL) return status;
    return run_works(u, part, update_of, first, count);
}

/* ==== passes ==== */

static void run_part(void *bench, uint32_t number)
{
    struct update_bench *u = bench;
    struct part *part = &u->parts[number];
    const double begin = bench_clock(CLOCK_THREAD_CPUTIME_ID);
    const size_t chunks = u->elems / CHUNK_ELEMS;
    const size_t end = chunks * (number + 1) / u->threads;
    size_t c = chunks * number / u->threads;
    part->status = CAIRN_OK;
    while (c < end && part->status == CAIRN_OK) {
        const size_t count = end - c < u->run_chunks ? end - c : u->run_chunks;
        part->status = u->run(u, part, c, count);
        c += count;
    }
    part->cpu = bench_clock(CLOCK_THREAD_CPUTIME_ID) - begin;
}

/* Runs a pass over all chunks by all threads, which submit `chunks` of them at once. Returns the elapsed
 * seconds; 0 after printing the error. *cpu_sum receives the processor seconds of all threads. */
static double run_pass(struct update_bench *u, list_fn *run, size_t chunks, double *cpu_sum)
{
    u->run = run;
    u->run_chunks = chunks;
    const double begin = bench_now();
    const int failed = bench_threads_run(u->threads, run_part, u);
    const double seconds = bench_now() - begin;
    if (failed != 0) {
        (void)ctl_fail(CAIRN_ERR_IO, "cannot start %u threads: %s", u->threads, strerror(failed));
        return 0;
    }
    for (uint32_t i = 0; i < u->threads; i++) {
        *cpu_sum += u->parts[i].cpu;
        if (u->parts[i].status == CAIRN_OK) continue;
        (void)ctl_fail(CAIRN_ERR_IO, "%s", u->parts[i].why.text);
        return 0;
    }
    return seconds;
}

/* The reference on a device: copies all arrays by one list, which the device receives at once. Returns as
 * run_pass does. */
static double copy_all(struct update_bench *u)
{
    struct home_work works[ARRAYS];
    struct sentence why;
    char *to = u->copies;
    size_t count = 0;
    for (int a = 0; a < ARRAYS; a++) {
        const size_t bytes = u->elems * bytes_of(u, a);
        if (u->arrays[a] == NULL) continue;
        works[count++] = copy_of(to, u->arrays[a], bytes);
        to += bytes;
    }
    const double begin = bench_now();
    if (home_run(u->parts[0].stream, works, count, &why) == CAIRN_OK) return bench_now() - begin;
    (void)ctl_fail(CAIRN_ERR_IO, "%s", why.text);
    return 0;
}

/* ==== the two runs ==== */

#define BIT(array) (1u << (array))
#define FOLDED     (BIT(SOURCE) | BIT(SOURCE_2) | BIT(SUM))
#define UPDATED    (BIT(SUM) | BIT(PARAM) | BIT(EXP_AVG) | BIT(EXP_AVG_SQ))
#define ONLY_NAMES "adamw|zeros|fold|hash|copy"

/* Indexed by enum only: the arrays, the passes, and the counted bytes per element: `bytes`, plus `wires`
 * times the size of the wire type. */
static const struct subject {
    unsigned arrays;
    struct {
        const char *part;
        work_fn *work_of;
    } passes[PASSES_MAX];
    size_t bytes, wires;
} subjects[ONLIES] = {
    [ALL] = { FOLDED | UPDATED | BIT(WIRE),
              { { "fold_s", fold_of }, { "update_s", update_of } },
              4 + 28,
              SOURCES + 1 },
    [ADAMW] = { UPDATED, { { "update_s", update_of } }, 28, 0 },
    [ZEROS] = { UPDATED, { { "update_s", update_of } }, 28, 0 },
    [FOLD] = { FOLDED, { { "fold_s", fold_of } }, 4, SOURCES },
    [HASH] = { BIT(PARAM), { { "hash_s", hash_of } }, 4, 0 },
    [COPY] = { BIT(PARAM), { { "in_s", in_of }, { "out_s", out_of } }, 8, 0 },
};

static size_t counted_bytes(const struct update_bench *u)
{
    const struct subject *subject = &subjects[u->only];
    return subject->bytes + subject->wires * dtype_size((int)u->wire_dtype);
}

/* Returns true if the reference is libsodium, with the same threads, as for hashing on the host.
 * Every other subject is compared with memory traffic. */
static bool is_by_libsodium(const struct update_bench *u)
{
    return u->only == HASH && is_host(u);
}

static size_t reference_bytes(const struct update_bench *u)
{
    return is_by_libsodium(u) ? counted_bytes(u) : 2 * u->bytes_each;
}

/* Returns GB/s; 0 if the pass failed. */
static double rate(const struct update_bench *u, size_t bytes_per_elem, double seconds)
{
    return seconds > 0 ? (double)bytes_per_elem * (double)u->elems / seconds * 1e-9 : 0;
}

static double run_subject(void *bench)
{
    struct update_bench *u = bench;
    const struct subject *subject = &subjects[u->only];
    double all = 0;
    const uint64_t launches = home_use(u->home).launches;
    for (int p = 0; p < PASSES_MAX && subject->passes[p].work_of != NULL; p++) {
        u->work_of = subject->passes[p].work_of;
        const double seconds = run_pass(u, work_list, u->list_chunks, &u->subject_cpu);
        if (!(seconds > 0)) return 0;
        if (u->best[p] == 0 || seconds < u->best[p]) u->best[p] = seconds;
        all += seconds;
    }
    u->launches = home_use(u->home).launches - launches;
    return rate(u, counted_bytes(u), all);
}

/* Reads all arrays once and writes the same number of bytes, in place on the host and as a copy on a
 * device; or hashes by libsodium. */
static double run_reference(void *bench)
{
    struct update_bench *u = bench;
    double seconds;
    if (is_by_libsodium(u))
        seconds = run_pass(u, libsodium_list, u->list_chunks, &u->reference_cpu);
    else if (is_host(u))
        seconds = run_pass(u, touch_list, 1, &u->reference_cpu);
    else
        seconds = copy_all(u);
    return rate(u, reference_bytes(u), seconds);
}

/* ==== memory ==== */

/* Returns memory where a shard of that home has it; NULL after printing the error. */
static char *make_memory(struct update_bench *u, size_t bytes)
{
    struct home_memory memory;
    struct sentence why;
    if (is_host(u)) return bench_memory_map(bytes, BENCH_LARGE);
    if (home_memory_open(u->home, "bench", bytes, &memory, &why) == CAIRN_OK) return memory.base;
    (void)ctl_fail(CAIRN_ERR_NO_MEMORY, "%s", why.text);
    return NULL;
}

/* Returns false after printing the error. */
static bool make_arrays(struct update_bench *u)
{
    for (int a = 0; a < ARRAYS; a++) {
        if ((subjects[u->only].arrays & BIT(a)) == 0) continue;
        const size_t begin = is_host(u) ? stagger_begin(kinds[a].stream) : 0;
        char *base = make_memory(u, begin + u->elems * bytes_of(u, a));
        if (base == NULL) return false;
        u->arrays[a] = base + begin;
        u->array_count++;
        u->bytes_each += bytes_of(u, a);
    }
    if (is_host(u)) return true;
    u->copies = make_memory(u, u->elems * u->bytes_each);
    return u->copies != NULL;
}

/* Maps host memory, and pins it like a shard's landing area. If pinning fails, copies are slower but
 * correct. Returns false after printing the error. */
static bool make_host(struct update_bench *u)
{
    const size_t bytes = u->elems * sizeof *u->host;
    struct sentence unpinned;
    u->host = bench_memory_map(bytes, BENCH_LARGE);
    if (u->host == NULL) return false;
    memset(u->host, 0, bytes);
    u->is_pinned = home_pin(u->home, u->host, bytes, &unpinned) == CAIRN_OK;
    return true;
}

/* Returns false after printing the error. */
static bool make_part(struct update_bench *u, struct part *part)
{
    const size_t works = u->list_chunks > FILL_WORKS ? u->list_chunks : FILL_WORKS;
    const cairn_status status = home_stream_open(u->home, &part->stream, &part->why);
    part->slots = calloc(u->list_chunks, sizeof *part->slots);
    part->works = calloc(works, sizeof *part->works);
    part->values = calloc(CHUNK_ELEMS, sizeof *part->values);
    if (status != CAIRN_OK)
        (void)ctl_fail(status, "%s", part->why.text);
    else if (part->slots == NULL || part->works == NULL || part->values == NULL)
        (void)ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the works of a thread");
    else
        return true;
    return false;
}

/* ==== the options ==== */

/* Returns -1 to continue, else the exit status. */
static int check_words(struct update_bench *u)
{
    const struct ctl *ctl = u->b.ctl;
    if (ctl->bench.only != NULL) {
        const int done = ctl_parse_choice("only", ONLY_NAMES, ctl->bench.only, &u->only);
        if (done >= 0) return done;
        u->only += ALL + 1;
    }
    if (u->only == COPY && !bench_is_on_card(ctl))
        return ctl_usage_fail(ctl, "--only copy is for a device; give --backend cuda");
    return bench_check_device(ctl);
}

static int open_home(struct update_bench *u)
{
    const struct ctl *ctl = u->b.ctl;
    struct sentence why;
    u->home = home_host();
    if (!bench_is_on_card(ctl)) return -1;
    const cairn_status status = home_open_cuda(ctl->bench.device, &u->home, &why);
    return status == CAIRN_OK ? -1 : ctl_fail(status, "%s", why.text);
}

static int check_size(struct update_bench *u)
{
    const struct ctl_bench *asked = &u->b.ctl->bench;
    const uint64_t room = is_host(u) ? bench_memory_bytes() / 2 / BYTES_MAX
                                     : home_free_bytes(u->home) / 10 * 9 / BYTES_MAX_OF_DEVICE;
    const uint64_t wanted = asked->params > 0 ? asked->params : PARAMS_DEFAULT;
    if (asked->params > room)
        return ctl_usage_fail(u->b.ctl, "--params %" PRIu64 ": %s holds %" PRIu64, wanted,
                              is_host(u) ? "half of the memory that is free"
                                         : "what is free of the device, with room for a copy,",
                              room);
    u->elems = (size_t)(wanted < room ? wanted : room) / CHUNK_ELEMS * CHUNK_ELEMS;
    if (u->elems == 0) u->elems = CHUNK_ELEMS;
    const uint32_t threads = is_host(u) ? bench_core_count() : THREADS_OF_DEVICE;
    u->threads = asked->threads > 0 ? asked->threads : threads;
    if (u->threads > BENCH_THREADS_MAX) u->threads = BENCH_THREADS_MAX;
    return -1;
}

/* ==== the row ==== */

/* Allocates the arrays and fills them. Returns -1 to continue, else the exit status. */
static int open_arrays(struct update_bench *u)
{
    const struct group_hyper hyper = { .optimizer = CAIRN_OPTIMIZER_ADAMW,
                                       .lr = 1e-3,
                                       .beta1 = 0.9,
                                       .beta2 = 0.999,
                                       .eps = 1e-8,
                                       .weight_decay = 0.01 };
    const struct shape shape = { .rank = 1, .dim = { u->elems } };
    const uint32_t best = home_info(u->home)->works_best;
    double unused = 0;
    u->geometry = geometry_of(&shape);
    u->list_chunks = best < 1 ? 1 : best < LIST_CHUNKS_MAX ? best : LIST_CHUNKS_MAX;
    if (group_scalars_of(&hyper, 1, f32_bits(0.5f), &u->scalars) != CAIRN_OK)
        return ctl_fail(CAIRN_ERR_INVALID, "no scalars of the first step");
    if (!make_arrays(u) || (u->only == COPY && !make_host(u))) return 1;
    for (uint32_t i = 0; i < u->threads; i++)
        if (!make_part(u, &u->parts[i])) return 1;
    return run_pass(u, fill_list, 1, &unused) > 0 ? -1 : 1;
}

/* Returns the reference's name. The arrays must be allocated. */
static const char *reference_name(const struct update_bench *u)
{
    static char name[48];
    if (is_by_libsodium(u)) return "libsodium, a leaf after the other";
    if (!is_host(u)) return "copy of the same arrays on the device";
    snprintf(name, sizeof name, "in-place update of %zu stream%s", u->array_count,
             u->array_count == 1 ? "" : "s");
    return name;
}

static int prepare_update(void *bench)
{
    struct update_bench *u = bench;
    const char *wire = u->b.ctl->bench.wire;
    u->wire_dtype = wire != NULL && strcmp(wire, "f32") == 0 ? CAIRN_F32 : CAIRN_BF16;
    int done = check_words(u);
    if (done < 0 && sodium_init() < 0) // without this call libsodium uses its portable code
        done = ctl_fail(CAIRN_ERR_INTERNAL, "libsodium does not start");
    if (done < 0) done = open_home(u);
    if (done < 0) done = check_size(u);
    if (done < 0) done = open_arrays(u);
    if (done < 0) u->b.result.reference_name = reference_name(u);
    return done;
}

/* ---- hashes by instruction set ---- */

/* One thread hashes a plane with each instruction set that this CPU has, in turn; "plain" is libsodium,
 * which hashes one leaf after the other. Seconds are the thread's processor time, since other processes may
 * use the cores, too. */

#define ROUNDS      9
#define ROUND_ELEMS ((size_t)4 << 20)

/* Returns GB/s. */
static double rate_by(const struct update_bench *u, size_t elems, const struct backend *host)
{
    struct hash hashes[CHUNK_LEAVES];
    const double start = bench_clock(CLOCK_THREAD_CPUTIME_ID);
    for (size_t c = 0; c < elems / CHUNK_ELEMS; c++)
        host->hash_each(at(u, PARAM, c), CAIRN_F32, &u->geometry, c * CHUNK_LEAVES, CHUNK_LEAVES,
                        hashes);
    const double seconds = bench_clock(CLOCK_THREAD_CPUTIME_ID) - start;
    return (double)(elems * sizeof(float)) / seconds * 1e-9;
}

static void report_hashes(struct update_bench *u)
{
    double rates[CAIRN_HOST_ISA_COUNT][ROUNDS], ratios[CAIRN_HOST_ISA_COUNT][ROUNDS];
    const size_t elems = u->elems < ROUND_ELEMS ? u->elems : ROUND_ELEMS;
    for (uint32_t round = 0; round < ROUNDS; round++)
        for (uint32_t isa = 0; isa < CAIRN_HOST_ISA_COUNT; isa++) {
            if (backend_host_at(isa) == NULL) continue;
            rates[isa][round] = rate_by(u, elems, backend_host_at(isa));
            ratios[isa][round] = rates[isa][round] / rates[0][round];
        }
    for (uint32_t isa = 0; isa < CAIRN_HOST_ISA_COUNT; isa++) {
        char rate_name[32], ratio_name[32];
        if (backend_host_at(isa) == NULL) continue;
        snprintf(rate_name, sizeof rate_name, "%s_gbps", backend_host_isa(isa));
        snprintf(ratio_name, sizeof ratio_name, "%s_ratio", backend_host_isa(isa));
        BENCH_PARTS(&u->b, { rate_name, bench_spread_of(rates[isa], ROUNDS).median },
                    { ratio_name, bench_spread_of(ratios[isa], ROUNDS).median });
    }
}

static int report_update(void *bench)
{
    struct update_bench *u = bench;
    const size_t counted = counted_bytes(u), reference = reference_bytes(u);
    const struct subject *subject = &subjects[u->only];
    const struct home_info *home = home_info(u->home);
    if (home->driver[0] != 0) json_object_set_new(u->b.params, "driver", json_string(home->driver));
    if (u->only == COPY) json_object_set_new(u->b.params, "pinned", json_boolean(u->is_pinned));
    bench_add_params(
        &u->b, json_pack("{s:I, s:I, s:s, s:I, s:I, s:s, s:s}", "params", (json_int_t)u->elems,
                         "threads", (json_int_t)u->threads, "wire", bench_wire_name(u->wire_dtype),
                         "bytes_per_param", (json_int_t)counted, "reference_bytes_per_param",
                         (json_int_t)reference, "backend", home->backend, "device", home->device));
    for (int p = 0; p < PASSES_MAX && subject->passes[p].work_of != NULL; p++)
        BENCH_PARTS(&u->b, { subject->passes[p].part, u->best[p] });
    if (!is_host(u)) {
        bench_add_count(&u->b, "launches", u->launches);
        return -1;
    }
    if (u->only == HASH) report_hashes(u);
    BENCH_PARTS(&u->b, { "cpu_ratio", (double)counted / u->subject_cpu /
                                          ((double)reference / u->reference_cpu) });
    return -1;
}

const struct bench_row bench_update = {
    .name = "update",
    .unit = "GB/s",
    .bytes = sizeof(struct update_bench),
    .prepare = prepare_update,
    .run = run_subject,
    .reference = run_reference,
    .report = report_update,
};
