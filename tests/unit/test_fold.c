/* The fold of contributions and the sums of squares: the same bits however the work is cut. */
#include <check.h>
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"
#include "tests/support/suite.h"

#define ELEMS   ((size_t)10007) // no multiple of a vector or a block
#define SOURCES 5

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state ^ *state >> 16;
}

/* Any exponent, subnormals and both zeros among them; every 64th is infinite or NaN if `odd`. */
static float random_float(uint32_t *state, bool odd)
{
    uint32_t bits = next_random(state);
    if ((bits & 0x7f800000) == 0x7f800000) bits ^= 0x40000000;
    if (bits % 17 == 0) bits &= 0x80000000;
    if (bits % 19 == 0) bits &= 0x807fffff;
    if (odd && bits % 64 == 0) bits = bits % 128 == 0 ? 0x7fc00001 : 0xff800000;
    return f32_from_bits(bits);
}

struct contributions {
    float f32[SOURCES][ELEMS];
    uint16_t bf16[SOURCES][ELEMS];
    struct fold_source source[SOURCES]; /* f32 and bf16 by turns */
};

static struct contributions *make_contributions(bool odd)
{
    struct contributions *c = malloc(sizeof *c);
    uint32_t state = 42;
    ck_assert_ptr_nonnull(c);
    for (int s = 0; s < SOURCES; s++) {
        for (size_t i = 0; i < ELEMS; i++) c->f32[s][i] = random_float(&state, odd);
        backend_host()->convert(c->bf16[s], CAIRN_BF16, c->f32[s], CAIRN_F32, ELEMS);
        c->source[s].dtype = s % 2 == 0 ? CAIRN_F32 : CAIRN_BF16;
        c->source[s].data = s % 2 == 0 ? (void *)c->f32[s] : (void *)c->bf16[s];
    }
    return c;
}

static float element(const struct contributions *c, int s, size_t i)
{
    if (c->source[s].dtype == CAIRN_F32) return c->f32[s][i];
    return f32_from_bits((uint32_t)c->bf16[s][i] << 16);
}

/* NaN payloads are not promised. */
static void check_same(const float *a, const float *b, size_t elems)
{
    for (size_t i = 0; i < elems; i++) {
        if (isnan(a[i]) && isnan(b[i])) continue;
        if (f32_bits(a[i]) == f32_bits(b[i])) continue;
        ck_abort_msg("element %zu: %a and %a", i, (double)a[i], (double)b[i]);
    }
}

TEST_EACH(a_fold_is_the_left_fold_of_its_sources, 0, 2)
{
    struct contributions *c = make_contributions(_i == 1);
    static float acc[ELEMS], slow[ELEMS];
    backend_host()->fold(acc, c->source, SOURCES, true, ELEMS);
    for (size_t i = 0; i < ELEMS; i++) {
        volatile float sum = element(c, 0, i);
        for (int s = 1; s < SOURCES; s++) sum = sum + element(c, s, i);
        slow[i] = sum;
    }
    check_same(acc, slow, ELEMS);
    free(c);
}

TEST(sources_folded_together_or_one_by_one_give_the_same_bits)
{
    const struct backend *host = backend_host();
    struct contributions *c = make_contributions(true);
    static float together[ELEMS], apart[ELEMS], twos[ELEMS];
    host->fold(together, c->source, SOURCES, true, ELEMS);
    for (int s = 0; s < SOURCES; s++) host->fold(apart, &c->source[s], 1, s == 0, ELEMS);
    host->fold(twos, c->source, 2, true, ELEMS);
    host->fold(twos, c->source + 2, SOURCES - 2, false, ELEMS);
    check_same(together, apart, ELEMS);
    check_same(together, twos, ELEMS);
    free(c);
}

TEST(elements_folded_in_ranges_at_any_offset_give_the_same_bits)
{
    const struct backend *host = backend_host();
    struct contributions *c = make_contributions(true);
    static float whole[ELEMS], ranges[ELEMS];
    host->fold(whole, c->source, SOURCES, true, ELEMS);
    uint32_t state = 3;
    for (size_t start = 0; start < ELEMS;) {
        size_t n = next_random(&state) % 300;
        if (n > ELEMS - start) n = ELEMS - start;
        struct fold_source at[SOURCES];
        for (int s = 0; s < SOURCES; s++) {
            at[s] = c->source[s];
            at[s].data = (const char *)at[s].data + start * dtype_size((int)at[s].dtype);
        }
        host->fold(ranges + start, at, SOURCES, true, n);
        start += n;
    }
    check_same(whole, ranges, ELEMS);
    free(c);
}

TEST(the_first_contribution_is_copied_so_that_minus_zero_stays)
{
    const float minus_zero[1] = { -0.0f };
    const uint16_t minus_zero_bf16[1] = { 0x8000 };
    const struct fold_source sources[2] = { { minus_zero, CAIRN_F32 },
                                            { minus_zero_bf16, CAIRN_BF16 } };
    float acc[1];
    for (size_t count = 1; count <= 2; count++) {
        acc[0] = NAN; // what the accumulator held before must not matter
        backend_host()->fold(acc, sources, count, true, 1);
        ck_assert_uint_eq(f32_bits(acc[0]), 0x80000000);
    }
}

TEST(no_contribution_at_all_is_plus_zero)
{
    float acc[3] = { NAN, -1, -0.0f };
    const float zero[3] = { 0 };
    backend_host()->fold(acc, NULL, 0, true, 3);
    ck_assert_mem_eq(acc, zero, sizeof acc);
    acc[1] = 7;
    backend_host()->fold(acc, NULL, 0, false, 3);
    ck_assert(acc[1] == 7);
}

/* A tensor whose quanta end in short leaves: 9 rows of 1500 elements, three a quantum. */
static struct geometry short_leaves(void)
{
    const struct shape shape = { .rank = 2, .dim = { 9, 1500 } };
    return geometry_of(&shape);
}

/* The documented order, written once more and with nothing to vectorize. */
static double slow_leaf_sum(const float *g, size_t elems)
{
    volatile double lane[32] = { 0 };
    for (size_t i = 0; i < elems; i++) lane[i % 32] = lane[i % 32] + (double)g[i] * (double)g[i];
    for (size_t w = 16; w > 0; w /= 2) {
        for (size_t k = 0; k < w; k++) lane[k] = lane[k] + lane[k + w];
    }
    return lane[0];
}

static float *random_gradients(size_t elems)
{
    float *g = malloc(elems * sizeof *g);
    uint32_t state = 11;
    ck_assert_ptr_nonnull(g);
    for (size_t i = 0; i < elems; i++) g[i] = random_float(&state, false);
    return g;
}

TEST(leaf_sums_follow_the_lane_tree_and_add_exactly)
{
    const struct geometry geometry = short_leaves();
    float *g = random_gradients(geometry.elems);
    struct sums sums = { 0 };
    struct exact slow = { 0 };
    ck_assert_uint_eq(geometry.leaf_count, 6);
    backend_host()->sum_leaves(g, &geometry, 0, geometry.leaf_count, &sums);
    for (uint64_t leaf = 0; leaf < geometry.leaf_count; leaf++) {
        uint64_t start = leaf_start(&geometry, leaf);
        uint64_t end = leaf_start(&geometry, leaf + 1);
        ck_assert_int_eq(exact_add_double(&slow, slow_leaf_sum(g + start, end - start)), 0);
    }
    ck_assert_mem_eq(&sums.sum_squares, &slow, sizeof slow);
    ck_assert_uint_eq(sums.nonfinite, 0);
    free(g);
}

TEST(no_split_of_the_leaves_changes_a_bit)
{
    const struct backend *host = backend_host();
    const struct geometry geometry = short_leaves();
    float *g = random_gradients(geometry.elems);
    struct sums whole = { 0 };
    host->sum_leaves(g, &geometry, 0, geometry.leaf_count, &whole);
    for (uint64_t cut = 0; cut <= geometry.leaf_count; cut++) {
        struct sums left = { 0 }, right = { 0 };
        host->sum_leaves(g, &geometry, 0, cut, &left);
        host->sum_leaves(g + leaf_start(&geometry, cut), &geometry, cut, geometry.leaf_count - cut,
                         &right);
        ck_assert_int_eq(exact_add(&right.sum_squares, &left.sum_squares), CAIRN_OK);
        ck_assert_mem_eq(&whole, &right, sizeof whole);
    }
    free(g);
}

TEST(extreme_gradients_neither_overflow_nor_vanish)
{
    const struct shape shape = { .rank = 1, .dim = { 4096 } };
    const struct geometry geometry = geometry_of(&shape);
    float g[4096];
    struct sums large = { 0 }, small = { 0 };
    for (int i = 0; i < 4096; i++) g[i] = 0x1p127f;
    backend_host()->sum_leaves(g, &geometry, 0, 1, &large);
    ck_assert(exact_to_double(&large.sum_squares) == 0x1p266);
    for (int i = 0; i < 4096; i++) g[i] = i == 77 ? 0x1p-149f : 0;
    backend_host()->sum_leaves(g, &geometry, 0, 1, &small);
    ck_assert(exact_to_double(&small.sum_squares) == 0x1p-298);
}

TEST(a_leaf_with_a_non_finite_element_is_counted_and_left_out)
{
    const struct backend *host = backend_host();
    const struct geometry geometry = short_leaves();
    float *g = random_gradients(geometry.elems);
    struct sums rest = { 0 }, all = { 0 };
    uint64_t second = leaf_start(&geometry, 1), third = leaf_start(&geometry, 2);
    host->sum_leaves(g, &geometry, 0, 1, &rest);
    host->sum_leaves(g + third, &geometry, 2, geometry.leaf_count - 2, &rest);
    g[second] = INFINITY;
    g[second + 5] = -INFINITY;
    g[third - 1] = NAN;
    host->sum_leaves(g, &geometry, 0, geometry.leaf_count, &all);
    ck_assert_uint_eq(all.nonfinite, 3);
    ck_assert_mem_eq(&all.sum_squares, &rest.sum_squares, sizeof rest.sum_squares);
    free(g);
}

TEST(a_thread_that_rounds_otherwise_is_noticed)
{
    ck_assert(float_env_ok());
    volatile float third = 1.0f;
    third = third / 3.0f; // raises a sticky flag, which does not matter
    ck_assert(float_env_ok());
    fesetround(FE_UPWARD);
    bool noticed = !float_env_ok();
    fesetround(FE_TONEAREST);
    ck_assert(noticed);
    ck_assert(float_env_ok());
}

SUITE(60);
