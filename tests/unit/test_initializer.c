/* Initial values from a seed: the published vectors of the parts, golden values of the whole (computed by
 * another program from spec.h's text), and the look of the distributions. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "proto/spec/scalars.h"
#include "tests/support/suite.h"
#include "tests/support/init.h"

enum { MANY = 200000 };

/* kat_vectors of the authors' Random123. */
TEST(philox_gives_the_vectors_of_its_authors)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } rows[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { ~0u, ~0u, ~0u, ~0u },
          { ~0u, ~0u },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t words[4];
        memcpy(words, rows[i].counter, sizeof words);
        philox(words, rows[i].key);
        ck_assert_mem_eq(words, rows[i].out, sizeof words);
    }
}

TEST(the_logarithm_is_within_an_ulp_of_libm)
{
    uint64_t seed = 1;
    for (int i = 0; i < MANY; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const double x = ((double)(seed >> 12) + 0.5) * 0x1p-52 * (i % 2 == 0 ? 1.0 : 0x1p-30);
        const double want = log(x), got = init_log(x);
        ck_assert_msg(fabs(got - want) <= 2.3e-16 * fabs(want), "log %a: %a, libm %a", x, got,
                      want);
    }
    ck_assert(init_log(1.0) == 0.0);
}

/* Values of the paper (AS 241, 1988), and symmetry. */
TEST(the_quantile_gives_the_values_of_the_paper)
{
    ck_assert_double_eq_tol(normal_quantile(0.25), -0.6744897501960817, 1e-15);
    ck_assert_double_eq_tol(normal_quantile(0.001), -3.090232306167814, 1e-14);
    ck_assert_double_eq_tol(normal_quantile(1e-20), -9.262340089798408, 1e-13);
    ck_assert(normal_quantile(0.5) == 0.0);
    ck_assert(normal_quantile(0x1p-53) == -normal_quantile(1 - 0x1p-53));
}

TEST(elements_have_their_golden_bits)
{
    static const uint64_t elems[] = { 0, 1, 2, 3, 4095, 4096, ((uint64_t)1 << 33) + 1 };
    static const struct {
        struct cairn_init init;
        const char *name;
        uint32_t bits[7];
    } rows[] = {
        { { CAIRN_INIT_UNIFORM, -1, 1, 0 },
          "fc.weight",
          { 0xbd96b23b, 0xbe1b058c, 0x3ef86728, 0xbebdb58c, 0x3eb33823, 0x3d906e97, 0x3f11380b } },
        { { CAIRN_INIT_UNIFORM, 0, 3, UINT64_MAX },
          "a",
          { 0x3f9d6062, 0x3fdaad98, 0x402a3d54, 0x402a6787, 0x4016559d, 0x4026f359, 0x3ec5d9db } },
        { { CAIRN_INIT_NORMAL, 0, 0.02, 42 },
          "model.embed_tokens.weight",
          { 0xbd1defa2, 0xbc324877, 0x3cd83269, 0x3c82821c, 0x3a74d794, 0x3d384858, 0xbaf1dc2b } },
        { { CAIRN_INIT_NORMAL, 1, 2, 7 },
          "\xc3\xa4",
          { 0x3fd671a3, 0x3f81cebd, 0x408847d1, 0x3f423722, 0xbfb5f4d8, 0xbe5f43a8, 0x3f7ac731 } },
        { { CAIRN_INIT_CONSTANT, 0.1, 0, 0 },
          "c",
          { 0x3dcccccd, 0x3dcccccd, 0x3dcccccd, 0x3dcccccd, 0x3dcccccd, 0x3dcccccd, 0x3dcccccd } },
        { { CAIRN_INIT_ONES, 0, 0, 9 },
          "c",
          { 0x3f800000, 0x3f800000, 0x3f800000, 0x3f800000, 0x3f800000, 0x3f800000, 0x3f800000 } },
        { { CAIRN_INIT_ZEROS, 5, 5, 9 }, "c", { 0, 0, 0, 0, 0, 0, 0 } },
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        for (size_t i = 0; i < 7; i++) {
            float value = 99;
            init_fill(&rows[r].init, rows[r].name, elems[i], 1, &value);
            ck_assert_msg(f32_bits(value) == rows[r].bits[i], "row %zu element %zu: %08x", r, i,
                          f32_bits(value));
        }
    }
}

TEST(any_cut_gives_the_same_bits)
{
    const struct cairn_init init = { CAIRN_INIT_NORMAL, 0, 1, 3 };
    static float whole[10001], parts[10001];
    init_fill(&init, "w", 0, 10001, whole);
    for (uint64_t at = 0, step = 1; at < 10001; at += step, step = step * 3 % 257 + 1) {
        if (step > 10001 - at) step = 10001 - at;
        init_fill(&init, "w", at, step, parts + at);
    }
    ck_assert_mem_eq(whole, parts, sizeof whole);
}

TEST(another_seed_or_name_gives_other_values)
{
    float a[64], b[64], c[64];
    struct cairn_init init = { CAIRN_INIT_UNIFORM, 0, 1, 3 };
    init_fill(&init, "w", 0, 64, a);
    init_fill(&init, "v", 0, 64, b);
    init.seed = 4;
    init_fill(&init, "w", 0, 64, c);
    for (int i = 0; i < 64; i++) ck_assert(a[i] != b[i] && a[i] != c[i]);
}

/* ---- distributions: values, sorted, against the distribution they should have ---- */

static int float_order(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static double normal_cdf(double z)
{
    return 0.5 * erfc(-z / sqrt(2));
}

static double uniform_cdf(double u)
{
    return u < 0 ? 0 : u > 1 ? 1 : u;
}

/* Mean and variance within 5 deviations of what chance does; Kolmogorov-Smirnov below 1.95/sqrt(n), which
 * chance exceeds once in a thousand. The seed is fixed, so it holds always or never. */
static void check_distribution(const struct cairn_init *init, double mean, double variance,
                               double kurtosis, double (*cdf)(double), double from, double scale)
{
    float *values = malloc(MANY * sizeof *values);
    double sum = 0, squares = 0, distance = 0, pairs = 0;
    ck_assert_ptr_nonnull(values);
    init_fill(init, "layer.0.weight", 77, MANY, values);
    for (int i = 0; i < MANY; i++) sum += values[i];
    for (int i = 0; i < MANY; i++) squares += (values[i] - mean) * (values[i] - mean);
    for (int i = 1; i < MANY; i++) pairs += (values[i] - mean) * (values[i - 1] - mean);
    ck_assert_double_le(fabs(sum / MANY - mean), 5 * sqrt(variance / MANY));
    ck_assert_double_le(fabs(squares / MANY / variance - 1), 5 * sqrt((kurtosis - 1) / MANY));
    ck_assert_double_le(fabs(pairs / MANY / variance), 5 / sqrt(MANY)); // neighbours are strangers
    qsort(values, MANY, sizeof *values, float_order);
    for (int i = 0; i < MANY; i++) {
        const double d = fabs(cdf((values[i] - from) / scale) - (i + 0.5) / MANY);
        if (d > distance) distance = d;
    }
    ck_assert_double_le(distance, 1.95 / sqrt(MANY));
    free(values);
}

TEST(normal_and_uniform_values_look_like_it)
{
    const struct cairn_init normal = { CAIRN_INIT_NORMAL, 1, 0.02, 5 };
    const struct cairn_init uniform = { CAIRN_INIT_UNIFORM, -3, 5, 5 };
    check_distribution(&normal, 1, 0.0004, 3, normal_cdf, 1, 0.02);
    check_distribution(&uniform, 1, 64.0 / 12, 1.8, uniform_cdf, -3, 8);
}

SUITE(60);
