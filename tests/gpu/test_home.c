/* A home on a card does what the host's does, to the bit: lists of every kind of work, of sizes that are cut
 * and that are not, with memory of the card, pinned and not.
 *
 * On the card of this machine, or what the environment's CAIRN_CUDA_DRIVER names (CTest: an emulated one). */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/gpu/home_scene.h"

#define WORLD_BYTES ((size_t)16 << 20)
#define HOST_BYTES  ((size_t)8 << 20)
#define WORKS_MAX   400
#define SOURCES_MAX 6

/* Places of memory, each with a twin that the host's home works on. */
enum place { PLANE, PINNED, PAGEABLE, PLACES };

struct world {
    struct home *home;
    struct home_stream *stream, *host_stream;
    struct home_memory plane;
    uint8_t *at[PLACES], *twin[PLACES];
    size_t bytes[PLACES], used[PLACES];
    uint64_t random;
    /* what works point to; [0]: of the card, [1]: of the host */
    struct home_work works[2][WORKS_MAX];
    struct fold_source sources[2][WORKS_MAX][SOURCES_MAX];
    struct geometry geometry[WORKS_MAX];
    struct group_scalars scalars[WORKS_MAX];
    struct sums sums[2][WORKS_MAX];
    uint64_t nonfinite[2][WORKS_MAX];
    size_t count;
};

static uint64_t next(struct world *w)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return w->random >> 32;
}

static uint64_t below(struct world *w, uint64_t limit)
{
    return next(w) % limit;
}

/* Small numbers as bf16 and as f32; some subnormal, or zero of either sign; and a few that are the largest,
 * infinite or NaN. */
static void fill(struct world *w, uint8_t *to, size_t bytes)
{
    static const uint16_t odd[] = { 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc1, 0xff81 };
    uint16_t *words = (uint16_t *)to;
    for (size_t i = 0; i < bytes / sizeof *words; i++) {
        const uint64_t x = next(w), chance = below(w, 16384);
        words[i] = (uint16_t)((x & 0x807f) | (100 + (x >> 16) % 30) << 7);
        if (chance < 500) words[i] &= 0x807f;
        if (chance < 250) words[i] &= 0x8000;
        if (chance < 125 && i % 2 == 1) words[i - 1] = 0; // f32, too
        if (chance >= 500 && chance < 500 + sizeof odd / sizeof odd[0])
            words[i] = odd[chance - 500];
    }
}

static struct world *open_world(uint64_t seed)
{
    struct world *w = calloc(1, sizeof *w);
    ck_assert_ptr_nonnull(w);
    w->random = seed;
    must(home_open_cuda(getenv("CAIRN_TEST_CARD"), &w->home, &why));
    must(home_memory_open(w->home, "a plane", WORLD_BYTES, &w->plane, &why));
    must(home_stream_open(w->home, &w->stream, &why));
    must(home_stream_open(home_host(), &w->host_stream, &why));
    for (int p = 0; p < PLACES; p++) {
        w->bytes[p] = p == PLANE ? WORLD_BYTES : HOST_BYTES;
        w->twin[p] = malloc(w->bytes[p]);
        w->at[p] = p == PLANE ? w->plane.base : malloc(w->bytes[p]);
        ck_assert(w->twin[p] != NULL && w->at[p] != NULL);
        fill(w, w->twin[p], w->bytes[p]);
        if (p != PLANE) memcpy(w->at[p], w->twin[p], w->bytes[p]);
    }
    must(home_pin(w->home, w->at[PINNED], HOST_BYTES, &why));
    struct home_work copy = copy_work(w->at[PLANE], w->twin[PLANE], WORLD_BYTES);
    must(home_run(w->stream, &copy, 1, &why));
    return w;
}

static void close_world(struct world *w)
{
    home_unpin(w->home, w->at[PINNED], HOST_BYTES);
    home_stream_close(w->stream);
    home_stream_close(w->host_stream);
    home_memory_close(&w->plane);
    home_close(w->home);
    for (int p = 0; p < PLACES; p++) {
        free(w->twin[p]);
        if (p != PLANE) free(w->at[p]);
    }
    free(w);
}

/* ---- comparing ---- */

static bool is_nan(uint32_t u, unsigned mantissa_bits)
{
    const uint32_t infinity = 0xffu << mantissa_bits;
    return (u & (infinity << 1 | infinity) & ((2u << (mantissa_bits + 7)) - 1)) > infinity ||
           ((u & ((1u << (mantissa_bits + 8)) - 1)) > infinity);
}

/* The same, but for what NaN is made of, which nobody promises. */
static bool is_same(uint32_t a, uint32_t b)
{
    if (a == b || (is_nan(a, 23) && is_nan(b, 23))) return true;
    for (int half = 0; half < 2; half++, a >>= 16, b >>= 16)
        if ((a & 0xffff) != (b & 0xffff) && !(is_nan(a & 0xffff, 7) && is_nan(b & 0xffff, 7)))
            return false;
    return true;
}

static void check_memory(const char *what, const uint8_t *a, const uint8_t *b, size_t bytes)
{
    if (memcmp(a, b, bytes) == 0) return;
    for (size_t i = 0; i < bytes / 4; i++) {
        uint32_t x, y;
        memcpy(&x, a + 4 * i, 4);
        memcpy(&y, b + 4 * i, 4);
        if (!is_same(x, y))
            ck_abort_msg("%s: at byte %zu %08x, and %08x of the host", what, 4 * i, x, y);
    }
}

static void check_world(struct world *w)
{
    uint8_t *seen = malloc(WORLD_BYTES);
    ck_assert_ptr_nonnull(seen);
    struct home_work copy = copy_work(seen, w->at[PLANE], WORLD_BYTES);
    must(home_run(w->stream, &copy, 1, &why));
    check_memory("the plane", seen, w->twin[PLANE], WORLD_BYTES);
    check_memory("pinned memory", w->at[PINNED], w->twin[PINNED], HOST_BYTES);
    check_memory("pageable memory", w->at[PAGEABLE], w->twin[PAGEABLE], HOST_BYTES);
    for (size_t i = 0; i < w->count; i++) {
        ck_assert_uint_eq(w->nonfinite[0][i], w->nonfinite[1][i]);
        ck_assert_int_eq(memcmp(&w->sums[0][i], &w->sums[1][i], sizeof w->sums[0][i]), 0);
    }
    // What NaN is made of is the same from here on: the next list may hash it as another dtype.
    for (int p = 0; p < PLACES; p++) memcpy(w->twin[p], p == PLANE ? seen : w->at[p], w->bytes[p]);
    free(seen);
}

static void run_both(struct world *w)
{
    must(home_run(w->host_stream, w->works[1], w->count, &why));
    must(home_run(w->stream, w->works[0], w->count, &why));
    check_world(w);
    w->count = 0;
    memset(w->used, 0, sizeof w->used);
}

/* ---- making ---- */

/* Bytes of a place, aligned to `align`: the card's address, and the twin's. False: it is full. */
static bool take(struct world *w, enum place place, size_t bytes, size_t align, void *at[2])
{
    size_t *used = &w->used[place];
    *used = (*used + align - 1) / align * align;
    if (bytes > w->bytes[place] - *used) return false;
    at[0] = w->at[place] + *used;
    at[1] = w->twin[place] + *used;
    *used += bytes;
    return true;
}

static size_t some_elems(struct world *w)
{
    switch (below(w, 12)) {
    case 0: return 0;
    case 1: return 1;
    case 2: return 4095 + below(w, 3);
    case 3: return below(w, 600000);
    case 4: return below(w, 20) == 0 ? below(w, 3000000) : below(w, 100);
    default: return below(w, 20000);
    }
}

static enum place some_place(struct world *w)
{
    return (enum place)below(w, PLACES);
}

static cairn_dtype some_dtype(struct world *w)
{
    return below(w, 2) == 0 ? CAIRN_F32 : CAIRN_BF16;
}

static bool make_sources(struct world *w, size_t elems, size_t count)
{
    for (size_t s = 0; s < count; s++) {
        void *at[2];
        const cairn_dtype dtype = some_dtype(w);
        const size_t bytes = dtype_size((int)dtype);
        if (!take(w, some_place(w), elems * bytes, below(w, 2) == 0 ? 16 : bytes, at)) return false;
        for (int t = 0; t < 2; t++)
            w->sources[t][w->count][s] = (struct fold_source) { at[t], dtype };
    }
    return true;
}

static bool make_fold(struct world *w, struct home_work *work[2])
{
    void *acc[2];
    const size_t elems = some_elems(w), count = below(w, SOURCES_MAX + 1);
    const bool first = below(w, 2) == 0;
    if (!take(w, PLANE, elems * 4, 4, acc) || !make_sources(w, elems, count)) return false;
    for (int t = 0; t < 2; t++) {
        work[t]->fold.acc = acc[t];
        work[t]->fold.sources = w->sources[t][w->count];
        work[t]->fold.source_count = count;
        work[t]->fold.first = first;
        work[t]->fold.elems = elems;
    }
    return true;
}

/* Some leaves of a tensor of some shape; the number of their elements. */
static size_t make_leaves(struct world *w, uint64_t *first_out, uint64_t *count_out)
{
    struct geometry *geometry = &w->geometry[w->count];
    const struct shape shape = { .rank = 2, .dim = { 1 + below(w, 200), 1 + below(w, 9000) } };
    *geometry = geometry_of(&shape);
    *first_out = below(w, geometry->leaf_count);
    *count_out = 1 + below(w, geometry->leaf_count - *first_out);
    return (size_t)(leaf_start(geometry, *first_out + *count_out) -
                    leaf_start(geometry, *first_out));
}

static bool make_fold_sums(struct world *w, struct home_work *work[2])
{
    void *acc[2];
    uint64_t first, leaves;
    const size_t elems = make_leaves(w, &first, &leaves), count = below(w, SOURCES_MAX + 1);
    const bool is_first = below(w, 2) == 0;
    if (!take(w, PLANE, elems * 4, 4, acc) || !make_sources(w, elems, count)) return false;
    for (int t = 0; t < 2; t++) {
        w->sums[t][w->count] = (struct sums) { .nonfinite = 3 }; // it is added to
        work[t]->fold_sums = (struct leaf_fold) { .acc = acc[t],
                                                  .sources = w->sources[t][w->count],
                                                  .source_count = count,
                                                  .first = is_first,
                                                  .geometry = &w->geometry[w->count],
                                                  .first_leaf = first,
                                                  .leaf_count = leaves,
                                                  .sums = &w->sums[t][w->count] };
    }
    return true;
}

static void make_scalars(struct world *w, struct group_scalars *scalars)
{
    const struct group_hyper hyper = {
        .optimizer = 1 + (uint32_t)below(w, CAIRN_OPTIMIZER_COUNT - 1), .lr = 1e-3
    };
    struct group_hyper h = hyper;
    if (hyper.optimizer == CAIRN_OPTIMIZER_SGD) {
        h.momentum = below(w, 2) == 0 ? 0 : 0.9;
    } else {
        h.beta1 = 0.9;
        h.beta2 = 0.999;
        h.eps = 1e-8;
    }
    h.weight_decay = below(w, 2) == 0 ? 0 : 0.01;
    h.ema = below(w, 2) == 0 ? 0 : 0.75;
    h.ema_schedule = h.ema > 0 ? (double)below(w, 2) : 0;
    const cairn_status status = group_scalars_of(&h, 1 + below(w, 5), 0x3f000000, scalars);
    ck_assert_int_eq(status, CAIRN_OK);
}

static bool make_update(struct world *w, struct home_work *work[2])
{
    void *at[5][2], *wire[2] = { NULL, NULL };
    const size_t elems = some_elems(w);
    const cairn_dtype dtype = some_dtype(w);
    const size_t bytes = dtype_size((int)dtype);
    for (int i = 0; i < 5; i++)
        if (!take(w, PLANE, elems * 4, 4, at[i])) return false;
    if (below(w, 4) > 0 && !take(w, some_place(w), elems * bytes, bytes, wire)) return false;
    make_scalars(w, &w->scalars[w->count]);
    for (int t = 0; t < 2; t++) {
        work[t]->update.planes = (struct update) { .grad = at[0][t],
                                                   .param = at[1][t],
                                                   .exp_avg = at[2][t],
                                                   .exp_avg_sq = at[3][t],
                                                   .ema = at[4][t],
                                                   .wire = wire[t],
                                                   .wire_dtype = dtype,
                                                   .elems = elems };
        work[t]->update.scalars = &w->scalars[w->count];
        w->nonfinite[t][w->count] = 77; // it is set
        work[t]->update.nonfinite = &w->nonfinite[t][w->count];
    }
    return true;
}

static bool make_convert(struct world *w, struct home_work *work[2])
{
    void *src[2], *dst[2];
    const cairn_dtype from = some_dtype(w), to = some_dtype(w);
    const size_t elems = some_elems(w), from_bytes = dtype_size((int)from),
                 to_bytes = dtype_size((int)to);
    if (!take(w, some_place(w), elems * from_bytes, from_bytes, src) ||
        !take(w, some_place(w), elems * to_bytes, to_bytes, dst))
        return false;
    for (int t = 0; t < 2; t++) {
        work[t]->convert.src = src[t];
        work[t]->convert.dst = dst[t];
        work[t]->convert.src_dtype = from;
        work[t]->convert.dst_dtype = to;
        work[t]->convert.elems = elems;
    }
    return true;
}

static bool make_copy(struct world *w, struct home_work *work[2])
{
    void *from[2], *to[2];
    const size_t bytes = 3 * some_elems(w) + below(w, 4);
    if (!take(w, some_place(w), bytes, 1, from) || !take(w, some_place(w), bytes, 1, to))
        return false;
    for (int t = 0; t < 2; t++) {
        work[t]->copy.from = from[t];
        work[t]->copy.to = to[t];
        work[t]->copy.bytes = bytes;
    }
    return true;
}

static bool make_zero(struct world *w, struct home_work *work[2])
{
    void *at[2];
    const size_t bytes = some_elems(w);
    if (!take(w, PLANE, bytes, 1, at)) return false;
    for (int t = 0; t < 2; t++) {
        work[t]->zero.at = at[t];
        work[t]->zero.bytes = bytes;
    }
    return true;
}

static bool make_hash(struct world *w, struct home_work *work[2])
{
    static const cairn_dtype dtypes[] = { CAIRN_F32, CAIRN_BF16, CAIRN_F16, CAIRN_F64, CAIRN_U8 };
    void *at[2], *hashes[2];
    uint64_t first, leaves;
    const cairn_dtype dtype = dtypes[below(w, 5)];
    const size_t elems = make_leaves(w, &first, &leaves), bytes = dtype_size((int)dtype);
    if (!take(w, PLANE, elems * bytes, 8, at) ||
        !take(w, below(w, 2) == 0 ? PINNED : PAGEABLE, leaves * sizeof(struct hash), 8, hashes))
        return false;
    for (int t = 0; t < 2; t++) {
        work[t]->hash.plane = at[t];
        work[t]->hash.dtype = dtype;
        work[t]->hash.geometry = &w->geometry[w->count];
        work[t]->hash.first_leaf = first;
        work[t]->hash.leaf_count = leaves;
        work[t]->hash.hashes = hashes[t];
    }
    return true;
}

static bool make_init(struct world *w, struct home_work *work[2])
{
    static const cairn_init_kind kinds[] = { CAIRN_INIT_ZEROS, CAIRN_INIT_ONES, CAIRN_INIT_CONSTANT,
                                             CAIRN_INIT_UNIFORM, CAIRN_INIT_NORMAL };
    const struct cairn_init init = { kinds[below(w, 5)], -1.5, 0.25, next(w) };
    void *out[2];
    const size_t elems = some_elems(w);
    const uint64_t first = below(w, 3) == 0 ? next(w) << 16 : below(w, 9);
    if (!take(w, PLANE, elems * 4, 4, out)) return false;
    for (int t = 0; t < 2; t++) {
        work[t]->init.out = out[t];
        work[t]->init.source = init_source_of(&init, "layer.0.weight");
        work[t]->init.first_elem = first;
        work[t]->init.elems = elems;
    }
    return true;
}

/* A box of a plane: packed where one side is not in the home; now and then of runs that no plan holds. */
static bool make_runs(struct world *w, struct home_work *work[2])
{
    void *to[2], *from[2];
    const size_t bytes = below(w, 30) == 0 ? ((size_t)1 << 20) + below(w, 99) : 1 + below(w, 900);
    const uint64_t count = bytes > 9999 ? 1 + below(w, 3) : below(w, 400);
    const enum place places[2] = { some_place(w), some_place(w) };
    const bool packs = (places[0] == PLANE) != (places[1] == PLANE);
    uint64_t strides[2];
    for (int i = 0; i < 2; i++)
        strides[i] = packs && places[i] != PLANE ? bytes : bytes + below(w, 700);
    if (!take(w, places[0], count * strides[0], 1, to) ||
        !take(w, places[1], count * strides[1], 1, from))
        return false;
    for (int t = 0; t < 2; t++) {
        work[t]->runs.to = to[t];
        work[t]->runs.from = from[t];
        work[t]->runs.run_bytes = bytes;
        work[t]->runs.run_count = count;
        work[t]->runs.to_stride = strides[0];
        work[t]->runs.from_stride = strides[1];
    }
    return true;
}

static bool (*const makers[CAIRN_WORK_KINDS])(struct world *w, struct home_work *work[2]) = {
    [CAIRN_WORK_FOLD] = make_fold,     [CAIRN_WORK_FOLD_SUMS] = make_fold_sums,
    [CAIRN_WORK_UPDATE] = make_update, [CAIRN_WORK_CONVERT] = make_convert,
    [CAIRN_WORK_COPY] = make_copy,     [CAIRN_WORK_ZERO] = make_zero,
    [CAIRN_WORK_HASH] = make_hash,     [CAIRN_WORK_INIT] = make_init,
    [CAIRN_WORK_RUNS] = make_runs,
};

/* False: a place is full. */
static bool make(struct world *w, enum work_kind kind)
{
    struct home_work *work[2] = { &w->works[0][w->count], &w->works[1][w->count] };
    memset(work[0], 0, sizeof *work[0]);
    memset(work[1], 0, sizeof *work[1]);
    work[0]->kind = work[1]->kind = kind;
    if (!makers[kind](w, work)) return false;
    w->count++;
    return true;
}

/* ---- tests ---- */

TEST_EACH(a_list_of_one_kind_has_the_bits_of_the_host, 0, CAIRN_WORK_KINDS)
{
    struct world *w = open_world(1 + (uint64_t)_i);
    while (w->count < 40 && make(w, (enum work_kind)_i)) continue;
    ck_assert_uint_gt(w->count, 1);
    run_both(w);
    close_world(w);
}

TEST_EACH(works_one_by_one_have_the_bits_of_the_host, 0, CAIRN_WORK_KINDS)
{
    struct world *w = open_world(100 + (uint64_t)_i);
    for (int i = 0; i < 3; i++) {
        ck_assert(make(w, (enum work_kind)_i));
        run_both(w);
    }
    close_world(w);
}

TEST_EACH(a_long_list_of_all_kinds_has_the_bits_of_the_host, 0, 4)
{
    struct world *w = open_world(1000 + (uint64_t)_i);
    for (int list = 0; list < 2; list++) {
        while (w->count < WORKS_MAX && make(w, (enum work_kind)below(w, CAIRN_WORK_KINDS)))
            continue;
        run_both(w);
    }
    close_world(w);
}

TEST(info_says_which_card_and_driver)
{
    struct world *w = open_world(1);
    const struct home_info *info = home_info(w->home);
    ck_assert_str_eq(info->backend, "cuda");
    ck_assert_ptr_nonnull(strstr(info->device, "-"));
    ck_assert_ptr_nonnull(strstr(info->driver, "CUDA driver "));
    ck_assert(!info->is_host && info->works_best > 1 && info->total_bytes >= WORLD_BYTES);
    ck_assert_uint_lt(home_free_bytes(w->home), info->total_bytes);
    close_world(w);
}

TEST(memory_is_zero_again_and_again)
{
    struct world *w = open_world(3);
    const size_t bytes = CAIRN_SEGMENT_BYTES + 1;
    uint8_t *seen = malloc(bytes);
    ck_assert_ptr_nonnull(seen);
    for (int i = 0; i < 3; i++) {
        struct home_memory memory;
        must(home_memory_open(w->home, "a plane", bytes, &memory, &why));
        struct home_work copy = copy_work(seen, memory.base, bytes);
        must(home_run(w->stream, &copy, 1, &why));
        ck_assert(seen[0] == 0 && memcmp(seen, seen + 1, bytes - 1) == 0);
        memset(seen, 1, bytes);
        copy = copy_work(memory.base, seen, bytes);
        must(home_run(w->stream, &copy, 1, &why));
        home_memory_close(&memory);
        home_memory_close(&memory);
    }
    free(seen);
    close_world(w);
}

SUITE(120);

/* In a process of its own: a driver does not survive fork. */
static bool has_card(void)
{
    const pid_t child = fork();
    int status = 1;
    if (child == 0) {
        if (home_open_cuda(getenv("CAIRN_TEST_CARD"), &home, &why) == CAIRN_OK) _exit(0);
        printf("skip: %s\n", why.text);
        fflush(stdout);
        _exit(1);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main(void)
{
    return getenv("CAIRN_CUDA_DRIVER") != NULL || has_card() ? suite_main() : SUITE_SKIPPED;
}
