/* Every instruction set gives the bits of the plain one, for every kernel, any length and alignment. One that
 * this CPU lacks is skipped, and said to be. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"
#include "tests/support/suite.h"

#define ELEMS   ((size_t)(3 * CAIRN_LEAF_ELEMS + 77))
#define SOURCES 5
#define OFFSETS 9 /* elements: rarely on a line's beginning */
#define ROOM    (ELEMS + 64)
#define LENGTHS 7

static const size_t lengths[LENGTHS] = { 0, 1, 31, 32, 33, 4096, ELEMS };

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state ^ *state >> 16;
}

/* Any exponent, subnormals and both zeros among them; every 512th is infinite or NaN if `odd`. */
static void fill(float *out, size_t elems, uint32_t seed, bool odd)
{
    for (size_t i = 0; i < elems; i++) {
        uint32_t bits = next_random(&seed);
        if ((bits & 0x7f800000) == 0x7f800000) bits ^= 0x40000000;
        if (bits % 17 == 0) bits &= 0x80000000;
        if (bits % 19 == 0) bits &= 0x807fffff;
        if (odd && bits % 512 == 0) bits = bits % 1024 == 0 ? 0x7fc00001 : 0xff800000;
        out[i] = f32_from_bits(bits);
    }
}

/* NaN payloads and signs are not promised. */
static void check_f32(const char *what, const char *isa, const float *a, const float *b,
                      size_t elems)
{
    for (size_t i = 0; i < elems; i++) {
        if (isnan(a[i]) && isnan(b[i])) continue;
        if (f32_bits(a[i]) == f32_bits(b[i])) continue;
        ck_abort_msg("%s of %s, element %zu of %zu: %a, %a", what, isa, i, elems, (double)a[i],
                     (double)b[i]);
    }
}

static const struct backend *plain(void)
{
    return backend_host_at(0);
}

/* NULL: skipped, and said. */
static const struct backend *other(int isa)
{
    const struct backend *backend = backend_host_at((uint32_t)isa);
    if (backend == NULL) printf("SKIPPED: this CPU has no %s\n", backend_host_isa((uint32_t)isa));
    return backend;
}

/* ---- folds ---- */

struct contributions {
    float f32[SOURCES][ROOM];
    uint16_t bf16[SOURCES][ROOM];
};

/* f32, bf16, or by turns; `offset` elements in. */
static void set_sources(const struct contributions *c, int mix, size_t offset,
                        struct fold_source out[SOURCES])
{
    for (int s = 0; s < SOURCES; s++) {
        const bool is_f32 = mix == 0 || (mix == 2 && s % 3 == 0);
        out[s] = is_f32 ? (struct fold_source) { c->f32[s] + offset, CAIRN_F32 }
                        : (struct fold_source) { c->bf16[s] + offset, CAIRN_BF16 };
    }
}

static struct contributions *make_contributions(void)
{
    struct contributions *c = malloc(sizeof *c);
    ck_assert_ptr_nonnull(c);
    for (int s = 0; s < SOURCES; s++) {
        fill(c->f32[s], ROOM, (uint32_t)s + 1, true);
        plain()->convert(c->bf16[s], CAIRN_BF16, c->f32[s], CAIRN_F32, ROOM);
    }
    return c;
}

TEST_EACH(folds_have_the_bits_of_the_plain_ones, 1, CAIRN_HOST_ISA_COUNT)
{
    const struct backend *host = other(_i);
    static float a[ROOM], b[ROOM];
    if (host == NULL) return;
    struct contributions *c = make_contributions();
    struct fold_source sources[SOURCES];
    for (int mix = 0; mix < 3; mix++)
        for (size_t count = 0; count <= SOURCES; count++)
            for (int l = 0; l < LENGTHS; l++)
                for (int first = 0; first < 2; first++) {
                    const size_t offset = (size_t)(l + mix) % OFFSETS;
                    set_sources(c, mix, offset, sources);
                    fill(a, ROOM, 99, true);
                    memcpy(b, a, sizeof a);
                    plain()->fold(a + offset, sources, count, first == 1, lengths[l]);
                    host->fold(b + offset, sources, count, first == 1, lengths[l]);
                    check_f32("fold", host->isa, a, b, ROOM);
                }
    free(c);
}

/* A fold with sums is a fold and then the sums, around the cache or through it. */
TEST_EACH(folds_with_sums_have_the_bits_of_plain_folds_and_then_sums, 0, CAIRN_HOST_ISA_COUNT)
{
    const struct backend *host = other(_i);
    static float a[ROOM] __attribute__((aligned(64))), b[ROOM] __attribute__((aligned(64)));
    if (host == NULL) return;
    const struct shape shape = { .rank = 1, .dim = { ELEMS } };
    const struct geometry geometry = geometry_of(&shape);
    struct contributions *c = make_contributions();
    struct fold_source sources[SOURCES];
    for (int turn = 0; turn < 3 * SOURCES * 4; turn++) {
        const size_t count = 1 + (size_t)turn % SOURCES,
                     offset = turn % 4 < 2 ? 0 : (size_t)turn % OFFSETS;
        set_sources(c, turn / SOURCES % 3, (size_t)turn % OFFSETS, sources);
        fill(a, ROOM, 99, false);
        memcpy(b, a, sizeof a);
        struct sums apart = { 0 }, together = { 0 };
        plain()->fold(a + offset, sources, count, turn % 2 == 0, ELEMS);
        plain()->sum_leaves(a + offset, &geometry, 0, geometry.leaf_count, &apart);
        host->fold_leaves(&(struct leaf_fold) { .acc = b + offset,
                                                .sources = sources,
                                                .source_count = count,
                                                .first = turn % 2 == 0,
                                                .far = turn % 4 < 2,
                                                .geometry = &geometry,
                                                .leaf_count = geometry.leaf_count,
                                                .sums = &together });
        check_f32("fold with sums", host->isa, a, b, ROOM);
        ck_assert_mem_eq(&apart.sum_squares, &together.sum_squares, sizeof apart.sum_squares);
        ck_assert_uint_eq(apart.nonfinite, together.nonfinite);
    }
    free(c);
}

TEST_EACH(sums_of_leaves_have_the_bits_of_the_plain_ones, 1, CAIRN_HOST_ISA_COUNT)
{
    const struct backend *host = other(_i);
    static float g[ROOM];
    if (host == NULL) return;
    for (uint32_t seed = 0; seed < 40; seed++) {
        const struct shape shape = { .rank = 1, .dim = { ELEMS - seed * 211 } };
        const struct geometry geometry = geometry_of(&shape);
        struct sums a = { 0 }, b = { 0 };
        fill(g, ROOM, seed, seed % 2 == 1);
        plain()->sum_leaves(g + seed % OFFSETS, &geometry, 0, geometry.leaf_count, &a);
        host->sum_leaves(g + seed % OFFSETS, &geometry, 0, geometry.leaf_count, &b);
        ck_assert_mem_eq(&a.sum_squares, &b.sum_squares, sizeof a.sum_squares);
        ck_assert_uint_eq(a.nonfinite, b.nonfinite);
        ck_assert(seed % 2 == 0 || a.nonfinite > 0);
    }
}

/* ---- updates ---- */

struct planes {
    float grad[ROOM], param[ROOM], exp_avg[ROOM], exp_avg_sq[ROOM], ema[ROOM];
    float wire[ROOM] __attribute__((aligned(64)));
};

static void fill_planes(struct planes *planes)
{
    static struct planes filled;
    static bool is_filled;
    if (is_filled) {
        *planes = filled;
        return;
    }
    fill(planes->grad, ROOM, 5, true);
    fill(planes->param, ROOM, 6, false);
    fill(planes->exp_avg, ROOM, 7, false);
    fill(planes->exp_avg_sq, ROOM, 8, false);
    fill(planes->wire, ROOM, 9, false);
    fill(planes->ema, ROOM, 10, false);
    for (size_t i = 0; i < ROOM; i++) planes->exp_avg_sq[i] = fabsf(planes->exp_avg_sq[i]);
    filled = *planes;
    is_filled = true;
}

/* What the kernel is to return of the elements at `offset`: counted out of what it left. */
static uint64_t count_nonfinite(const struct update *u, bool has_m, bool has_v)
{
    uint64_t count = 0;
    for (size_t i = 0; i < u->elems; i++) {
        float wire = 0;
        if (u->wire != NULL)
            backend_host_at(0)->convert(&wire, CAIRN_F32,
                                        (char *)u->wire + i * dtype_size((int)u->wire_dtype),
                                        u->wire_dtype, 1);
        count += !isfinite(u->param[i]) || (has_m && !isfinite(u->exp_avg[i])) ||
                 (has_v && !isfinite(u->exp_avg_sq[i])) ||
                 (u->ema != NULL && !isfinite(u->ema[i])) || !isfinite(wire);
    }
    return count;
}

static void run_counted(const struct backend *host, const struct update *u,
                        const struct group_scalars *scalars)
{
    const bool is_sgd = scalars->optimizer == CAIRN_OPTIMIZER_SGD;
    const bool has_m = !is_sgd || (scalars->flags & CAIRN_SCALAR_MOMENTUM) != 0;
    const uint64_t counted = host->update[scalars->optimizer](u, scalars);
    ck_assert_uint_eq(counted, count_nonfinite(u, has_m, !is_sgd));
}

static void update(const struct backend *host, struct planes *planes,
                   const struct group_scalars *given, int turn, size_t elems)
{
    // no average, a slow one, a fast one, and the first update's
    static const float weights[4] = { 0, 0.001f, 0.75f, 1 };
    struct group_scalars of_turn = *given, *scalars = &of_turn;
    of_turn.ema_weight = f32_bits(weights[turn / 3]);
    const bool is_bf16 = turn % 3 == 1;
    const size_t offset = turn % 4 < 2 ? 0 : (size_t)turn % OFFSETS;
    const struct update u = {
        .grad = planes->grad + offset,
        .param = planes->param + offset,
        .exp_avg = planes->exp_avg + offset,
        .exp_avg_sq = planes->exp_avg_sq + offset,
        .ema = turn < 3 ? NULL : planes->ema + offset,
        .wire = turn % 3 == 2 ? NULL
                : is_bf16     ? (void *)((uint16_t *)(void *)planes->wire + offset)
                              : (void *)(planes->wire + offset),
        .wire_dtype = is_bf16 ? CAIRN_BF16 : CAIRN_F32,
        .elems = elems,
        .far = turn % 2 == 0,
    };
    fill_planes(planes);
    run_counted(host, &u, scalars);
}

static void check_update(const struct backend *host, const struct group_scalars *scalars)
{
    static struct planes a, b;
    for (int turn = 0; turn < 12; turn++)
        for (int l = 0; l < LENGTHS; l++) {
            update(plain(), &a, scalars, turn, lengths[l]);
            update(host, &b, scalars, turn, lengths[l]);
            check_f32("param", host->isa, a.param, b.param, ROOM);
            check_f32("exp_avg", host->isa, a.exp_avg, b.exp_avg, ROOM);
            check_f32("exp_avg_sq", host->isa, a.exp_avg_sq, b.exp_avg_sq, ROOM);
            check_f32("ema", host->isa, a.ema, b.ema, ROOM);
            if (turn % 3 == 1) // casts emit one NaN
                ck_assert_mem_eq(a.wire, b.wire, sizeof a.wire);
            else
                check_f32("wire", host->isa, a.wire, b.wire, ROOM);
        }
}

enum { KINDS = 4 }; /* of an optimizer: decay; momentum, Nesterov's; the first step */

static struct group_scalars scalars_of(uint32_t id, int kind, float scale)
{
    const bool is_sgd = id == CAIRN_OPTIMIZER_SGD;
    const struct group_hyper hyper = {
        .optimizer = id,
        .lr = 1e-2,
        .beta1 = is_sgd ? 0 : 0.9,
        .beta2 = is_sgd ? 0 : 0.999,
        .eps = is_sgd ? 0 : 1e-8,
        .weight_decay = kind % 2 == 0 ? 0.01 : 0,
        .momentum = is_sgd && kind > 0 ? 0.9 : 0,
        .nesterov = is_sgd && kind == 2 ? 1 : 0,
    };
    struct group_scalars scalars;
    ck_assert_int_eq(group_scalars_of(&hyper, kind == 3 ? 1 : 7, f32_bits(scale), &scalars),
                     CAIRN_OK);
    return scalars;
}

TEST_EACH(updates_have_the_bits_of_the_plain_ones, 1, CAIRN_HOST_ISA_COUNT)
{
    const struct backend *host = other(_i);
    if (host == NULL) return;
    for (uint32_t id = 1; id < CAIRN_OPTIMIZER_COUNT; id++)
        for (int kind = 0; kind < KINDS; kind++) {
            const struct group_scalars scalars = scalars_of(id, kind, 0.125f);
            check_update(host, &scalars);
        }
}

/* Of one element, after an update of `elems` of which it is the one at `at`, all others 1. */
static uint64_t spoil(const struct backend *host, const struct group_scalars *scalars,
                      cairn_dtype wire, size_t elems, size_t at, float grad, float param)
{
    static struct planes p;
    for (size_t i = 0; i < elems; i++) {
        p.grad[i] = i == at ? grad : 1;
        p.param[i] = i == at ? param : 1;
        p.exp_avg[i] = p.exp_avg_sq[i] = 1;
    }
    const struct update u = { .grad = p.grad,
                              .param = p.param,
                              .exp_avg = p.exp_avg,
                              .exp_avg_sq = p.exp_avg_sq,
                              .wire = p.wire,
                              .wire_dtype = wire,
                              .elems = elems };
    const uint64_t counted = host->update[scalars->optimizer](&u, scalars);
    if (scalars->optimizer != CAIRN_OPTIMIZER_SGD && grad > 1e30f && isinf(p.exp_avg_sq[at]))
        ck_assert(isfinite(p.param[at])); // it stands still, and nobody would see it
    return counted;
}

TEST_EACH(of_finite_gradients_every_result_that_is_not_finite_is_counted, 0, CAIRN_HOST_ISA_COUNT)
{
    const struct backend *host = backend_host_at((uint32_t)_i);
    if (host == NULL) return;
    for (uint32_t id = 1; id < CAIRN_OPTIMIZER_COUNT; id++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int l = 0; l < LENGTHS; l++) {
                const struct group_scalars s = scalars_of(id, kind, 1);
                const size_t n = lengths[l];
                for (size_t at = 0; at < n; at += 1 + n / 7) {
                    // SGD takes the parameter beyond what fp32 has, the others the second moment.
                    const float edge = id == CAIRN_OPTIMIZER_SGD ? -FLT_MAX : 1;
                    ck_assert_uint_eq(spoil(host, &s, CAIRN_F32, n, at, 1, 1), 0);
                    ck_assert_uint_eq(spoil(host, &s, CAIRN_F32, n, at, FLT_MAX, edge), 1);
                    ck_assert_uint_eq(spoil(host, &s, CAIRN_F32, n, at, 1, NAN), 1);
                    if (kind % 2 == 0) continue; // the decay of what is as large overflows, too
                    ck_assert_uint_eq(spoil(host, &s, CAIRN_F32, n, at, 1, FLT_MAX), 0);
                    ck_assert_uint_eq(spoil(host, &s, CAIRN_BF16, n, at, 1, FLT_MAX), 1);
                }
            }
}

/* ---- checksums ---- */

TEST_EACH(checksums_are_those_of_the_plain_one, 1, CAIRN_HOST_ISA_COUNT)
{
    const struct backend *host = other(_i);
    static float in[ROOM];
    if (host == NULL) return;
    fill(in, ROOM, 3, true);
    for (size_t bytes = 0; bytes < 700; bytes++)
        for (size_t offset = 0; offset < OFFSETS; offset++)
            ck_assert_uint_eq(host->check((const uint8_t *)in + offset, bytes),
                              plain()->check((const uint8_t *)in + offset, bytes));
    ck_assert_uint_eq(host->check(in, sizeof in), plain()->check(in, sizeof in));
}

TEST(no_bit_of_a_leaf_flips_unseen_alone_or_with_another_one)
{
    static uint8_t leaf[CAIRN_LEAF_ELEMS * sizeof(float)];
    const size_t bits = 8 * sizeof leaf;
    uint32_t seed = 5;
    for (int kind = 0; kind < 2; kind++) { // of zeros, and of any values
        if (kind == 1) fill((float *)(void *)leaf, CAIRN_LEAF_ELEMS, 11, false);
        const uint64_t is = backend_host()->check(leaf, sizeof leaf);
        for (size_t bit = 0; bit < bits; bit++) {
            const size_t another = kind == 0 ? bit ^ 64u * 16 : next_random(&seed) % bits;
            leaf[bit / 8] ^= (uint8_t)(1u << bit % 8);
            ck_assert_uint_ne(backend_host()->check(leaf, sizeof leaf), is);
            leaf[another / 8] ^= (uint8_t)(1u << another % 8);
            if (another != bit) ck_assert_uint_ne(backend_host()->check(leaf, sizeof leaf), is);
            leaf[another / 8] ^= (uint8_t)(1u << another % 8);
            leaf[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

/* ---- casts ---- */

TEST_EACH(casts_have_the_bits_of_the_plain_ones, 1, CAIRN_HOST_ISA_COUNT)
{
    const struct backend *host = other(_i);
    static float in[ROOM], wide_a[ROOM], wide_b[ROOM];
    static uint16_t a[ROOM], b[ROOM];
    if (host == NULL) return;
    for (int l = 0; l < LENGTHS; l++) {
        const size_t offset = (size_t)l % OFFSETS, n = lengths[l];
        fill(in, ROOM, (uint32_t)l, true);
        plain()->convert(a + offset, CAIRN_BF16, in, CAIRN_F32, n);
        host->convert(b + offset, CAIRN_BF16, in, CAIRN_F32, n);
        ck_assert_mem_eq(a, b, sizeof a);
        plain()->convert(wide_a, CAIRN_F32, a + offset, CAIRN_BF16, n);
        host->convert(wide_b, CAIRN_F32, b + offset, CAIRN_BF16, n);
        ck_assert_mem_eq(wide_a, wide_b, sizeof wide_a);
    }
}

TEST(the_one_that_is_used_is_the_widest_or_the_one_that_was_asked_for)
{
    const struct backend *widest = NULL, *wanted = NULL;
    const char *name = getenv("CAIRN_HOST_ISA");
    for (uint32_t isa = 0; isa < CAIRN_HOST_ISA_COUNT; isa++) {
        const struct backend *at = backend_host_at(isa);
        if (at == NULL) continue;
        ck_assert_str_eq(at->isa, backend_host_isa(isa));
        widest = at;
        if (name != NULL && strcmp(name, at->isa) == 0) wanted = at;
    }
    ck_assert_ptr_eq(backend_host(), wanted != NULL ? wanted : widest);
}

SUITE(60);
