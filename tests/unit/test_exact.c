/* The exact accumulator, against numbers held as one bit a byte and added by hand. */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/exact.h"
#include "proto/spec/scalars.h"
#include "tests/support/suite.h"

#define BITS (64 * CAIRN_EXACT_LIMBS)

/* The oracle: bit[i] is worth 2^(i - 298). */
struct slow {
    uint8_t bit[BITS];
};

static void slow_add(struct slow *sum, double x)
{
    int exponent;
    uint64_t mantissa = (uint64_t)ldexp(frexp(x, &exponent), 53);
    int low = exponent - 53 + 298;
    unsigned carry = 0;
    for (int i = 0; i < BITS; i++) {
        int at = i - low;
        unsigned part = at >= 0 && at < 53 ? (unsigned)(mantissa >> at & 1) : 0;
        unsigned total = sum->bit[i] + part + carry;
        sum->bit[i] = total & 1;
        carry = total >> 1;
    }
    ck_assert_uint_eq(carry, 0);
}

/* Rounds to 53 bits, ties to even. */
static double slow_to_double(const struct slow *sum)
{
    int high = BITS - 1;
    while (high >= 0 && sum->bit[high] == 0) high--;
    if (high < 0) return 0;
    uint64_t mantissa = 0;
    for (int i = high; i > high - 53; i--) mantissa = mantissa << 1 | (i >= 0 ? sum->bit[i] : 0u);
    bool half = high >= 53 && sum->bit[high - 53] == 1, below = false;
    for (int i = 0; i < high - 53; i++) below = below || sum->bit[i] == 1;
    if (half && (below || (mantissa & 1) == 1)) mantissa++;
    return ldexp((double)mantissa, high - 52 - 298);
}

static void check_same(const struct exact *sum, const struct slow *slow)
{
    bool same = true;
    for (int i = 0; i < BITS; i++)
        same = same && (sum->limb[i / 64] >> (i % 64) & 1) == slow->bit[i];
    ck_assert(same);
    ck_assert_uint_eq(f64_bits(exact_to_double(sum)), f64_bits(slow_to_double(slow)));
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* A sum of squares as leaves have them: 53 bits, all of them at or above 2^-298, below 2^268. */
static double random_leaf_sum(uint64_t *state)
{
    uint64_t bits = next_random(state) >> 11;
    int exponent = (int)(next_random(state) % 513) - 298;
    return ldexp((double)bits, exponent);
}

TEST_EACH(sums_of_random_leaves_equal_the_oracle_after_each, 0, 10)
{
    uint64_t state = (uint64_t)_i;
    struct exact sum = { 0 };
    struct slow slow = { 0 };
    for (int i = 0; i < 300; i++) {
        double x = random_leaf_sum(&state);
        ck_assert_int_eq(exact_add_double(&sum, x), CAIRN_OK);
        slow_add(&slow, x);
        check_same(&sum, &slow);
    }
}

TEST(no_order_and_no_split_changes_a_bit)
{
    uint64_t state = 7;
    double x[500];
    struct exact forward = { 0 }, parts[3] = { 0 }, together = { 0 };
    for (int i = 0; i < 500; i++) {
        x[i] = random_leaf_sum(&state);
        ck_assert_int_eq(exact_add_double(&forward, x[i]), CAIRN_OK);
    }
    for (int i = 499; i >= 0; i--) {
        struct exact *part = &parts[next_random(&state) % 3];
        ck_assert_int_eq(exact_add_double(part, x[i]), CAIRN_OK);
    }
    for (int i = 0; i < 3; i++) ck_assert_int_eq(exact_add(&together, &parts[i]), CAIRN_OK);
    ck_assert_mem_eq(&forward, &together, sizeof forward);
}

TEST(a_sum_rounds_to_nearest_and_ties_to_even)
{
    const struct {
        double terms[3], rounded;
    } cases[] = {
        { { 0x1p53, 1, 0 }, 0x1p53 },                      // a tie, down to even
        { { 0x1p53, 2, 1 }, 0x1p53 + 4 },                  // a tie, up to even
        { { 0x1p53, 1, 0x1p-298 }, 0x1p53 + 2 },           // above the tie by the least bit
        { { 0x1.fffffffffffffp100, 0x1p47, 0 }, 0x1p101 }, // a carry into the exponent
        { { 0x1p-298, 0, 0 }, 0x1p-298 },                  // the square of the least fp32
        { { 0x1p-298, 0x1p-298, 0x1p-297 }, 0x1p-296 },    //
        { { 0x1p268, 0x1p-298, 0 }, 0x1p268 },             // both ends
        { { 0, -0.0, 0 }, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct exact sum = { 0 };
        for (int k = 0; k < 3; k++) {
            ck_assert_int_eq(exact_add_double(&sum, cases[i].terms[k]), CAIRN_OK);
        }
        ck_assert_uint_eq(f64_bits(exact_to_double(&sum)), f64_bits(cases[i].rounded));
    }
}

TEST(a_number_that_is_no_sum_of_squares_is_refused_and_changes_nothing)
{
    const double refused[] = { -1,      INFINITY, -INFINITY, NAN,      0x1p-299, 0x1.8p-298,
                               0x1p342, 0x1p1023, 0x1p-1074, 0x1p-362, 0x1p-400 };
    struct exact sum = { .limb = { 5 } }, before = sum;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        ck_assert_int_eq(exact_add_double(&sum, refused[i]), CAIRN_ERR_INVALID);
        ck_assert_mem_eq(&sum, &before, sizeof sum);
    }
}

TEST(an_overflow_is_reported_and_changes_nothing)
{
    struct exact full, one = { .limb = { 1 } }, zero = { 0 };
    memset(&full, 0xff, sizeof full);
    struct exact before = full;
    ck_assert_int_eq(exact_add(&full, &one), CAIRN_ERR_INVALID);
    ck_assert_int_eq(exact_add(&full, &before), CAIRN_ERR_INVALID);
    ck_assert_int_eq(exact_add_double(&full, 0x1p-298), CAIRN_ERR_INVALID);
    ck_assert_int_eq(exact_add_double(&full, 0x1p341), CAIRN_ERR_INVALID);
    ck_assert_int_eq(exact_add(&full, &zero), CAIRN_OK);
    ck_assert_mem_eq(&full, &before, sizeof full);
    ck_assert(exact_to_double(&full) == 0x1p342);
}

TEST(a_carry_runs_through_every_limb)
{
    struct exact sum, one = { .limb = { 1 } }, top = { .limb = { [9] = 1 } };
    memset(&sum, 0xff, sizeof sum);
    sum.limb[9] = 0;
    struct exact by_double = sum;
    ck_assert_int_eq(exact_add(&sum, &one), CAIRN_OK);
    ck_assert_int_eq(exact_add_double(&by_double, 0x1p-298), CAIRN_OK);
    ck_assert_mem_eq(&sum, &top, sizeof sum);
    ck_assert_mem_eq(&by_double, &top, sizeof sum);
}

TEST(eighty_bytes_carry_a_sum_little_end_first)
{
    struct exact sum = { .limb = { 0x0102030405060708, 9, [9] = 0xff00000000000000 } }, back;
    uint8_t bytes[CAIRN_EXACT_BYTES];
    exact_encode(&sum, bytes);
    ck_assert_uint_eq(bytes[0], 8);
    ck_assert_uint_eq(bytes[7], 1);
    ck_assert_uint_eq(bytes[8], 9);
    ck_assert_uint_eq(bytes[79], 0xff);
    exact_decode(bytes, &back);
    ck_assert_mem_eq(&sum, &back, sizeof sum);
}

SUITE(60);
