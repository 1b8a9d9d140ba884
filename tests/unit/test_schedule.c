/* Learning-rate schedules against torch's, at their seams, and what is refused of them. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "tests/golden/schedule_golden.h"
#include "tests/support/suite.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

static double of_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

TEST_EACH(every_round_has_the_rate_that_torch_gives_it, 0, COUNT(golden))
{
    const struct schedule *s = &golden[_i].schedule;
    struct sentence why = { "" };
    ck_assert_msg(schedule_check(s, golden[_i].lr, "g", &why) == CAIRN_OK, "%s", why.text);
    for (int k = 0; k < golden[_i].rounds; k++) {
        const double torch = of_bits(golden[_i].rates[k]);
        const double ours = schedule_lr(s, golden[_i].lr, (uint64_t)k);
        // torch rounds in another order, its CosineAnnealingLR from step to step
        ck_assert_msg(fabs(ours - torch) <= 1e-14 * golden[_i].lr,
                      "case %d, round %d: %.17g, %.17g", _i, k, ours, torch);
    }
}

TEST(the_cosine_is_within_its_bound_of_libm)
{
    const double pi = 3.14159265358979323846;
    for (int i = 0; i <= 200000; i++) {
        const double x = i / 200000.0;
        ck_assert_msg(fabs(cos_pi(x) - (double)cosl((long double)pi * (long double)x)) <= 4e-16,
                      "%.17g", x);
    }
    ck_assert(cos_pi(0) == 1 && cos_pi(1) == -1 && cos_pi(0.5) == 0);
}

/* Bits that every host must give: written down once, on x86-64. */
TEST(the_same_bits_come_out_everywhere)
{
    const struct schedule s = { CAIRN_SCHEDULE_COSINE, 100, 10000, 0, 1e-5, NULL, 0 };
    uint64_t mixed = 0;
    for (uint64_t k = 0; k < 12000; k++) {
        uint64_t bits;
        const double lr = schedule_lr(&s, 3e-4, k);
        memcpy(&bits, &lr, sizeof bits);
        mixed = mixed * 0x9e3779b97f4a7c15ull + bits;
    }
    ck_assert_uint_eq(mixed, 17613115704378715565ull);
}

TEST(warm_up_begins_at_0_and_every_end_stays)
{
    const struct cairn_schedule_point points[] = { { 2, 4.0 }, { 4, 8.0 } };
    const struct schedule kinds[] = {
        { CAIRN_SCHEDULE_CONSTANT, 8, 0, 0, 0, NULL, 0 },
        { CAIRN_SCHEDULE_LINEAR, 8, 24, 0, 0.25, NULL, 0 },
        { CAIRN_SCHEDULE_COSINE, 8, 24, 0, 0.25, NULL, 0 },
        { CAIRN_SCHEDULE_WSD, 8, 24, 16, 0.25, NULL, 0 },
        { CAIRN_SCHEDULE_TABLE, 8, 0, 0, 0, points, 2 },
    };
    const double ends[] = { 1, 0.25, 0.25, 0.25, 8 }, tops[] = { 1, 1, 1, 1, 8 };
    for (int i = 0; i < COUNT(kinds); i++) {
        ck_assert_int_eq(schedule_check(&kinds[i], 1, "g", NULL), CAIRN_OK);
        ck_assert(schedule_lr(&kinds[i], 1, 0) == 0);
        ck_assert(schedule_lr(&kinds[i], 1, 2) == tops[i] / 4);
        ck_assert(schedule_lr(&kinds[i], 1, 8) == tops[i]);
        ck_assert(schedule_lr(&kinds[i], 1, 24) == ends[i]);
        ck_assert(schedule_lr(&kinds[i], 1, UINT64_MAX) == ends[i]);
    }
}

static const struct cairn_schedule_point down[] = { { 5, 1 }, { 5, 2 } };
static const struct cairn_schedule_point nan_factor[] = { { 5, NAN } };
static const struct cairn_schedule_point huge_factor[] = { { 5, 1e18 } };
static const struct {
    struct schedule schedule;
    const char *word;
} bad[] = {
    { { (cairn_schedule_kind)6, 0, 0, 0, 0, NULL, 0 }, "schedule is 6; allowed: 0 (constant)" },
    { { CAIRN_SCHEDULE_DRIVEN, 1, 0, 0, 0, NULL, 0 }, "driven: it has no warmup_steps" },
    { { CAIRN_SCHEDULE_DRIVEN, 0, 0, 0, 1e-9, NULL, 0 }, "it has no lr_min" },
    { { (cairn_schedule_kind)-1, 0, 0, 0, 0, NULL, 0 }, "schedule is -1" },
    { { CAIRN_SCHEDULE_CONSTANT, 0, 10, 0, 0, NULL, 0 }, "constant: it has no total_steps" },
    { { CAIRN_SCHEDULE_CONSTANT, 0, 0, 1, 0, NULL, 0 }, "it has no decay_steps" },
    { { CAIRN_SCHEDULE_CONSTANT, 0, 0, 0, 1e-9, NULL, 0 }, "it has no lr_min" },
    { { CAIRN_SCHEDULE_CONSTANT, 0, 0, 0, 0, golden_points, 2 }, "it has no points" },
    { { CAIRN_SCHEDULE_LINEAR, 10, 10, 0, 0, NULL, 0 }, "total_steps is 10; allowed: 11 to" },
    { { CAIRN_SCHEDULE_COSINE, 0, 0, 0, 0, NULL, 0 }, "total_steps is 0; allowed: 1 to" },
    { { CAIRN_SCHEDULE_COSINE, UINT64_MAX, 5, 0, 0, NULL, 0 },
      "warmup_steps is 18446744073709551615" },
    { { CAIRN_SCHEDULE_COSINE, 0, 10, 3, 0, NULL, 0 }, "cosine: it has no decay_steps" },
    { { CAIRN_SCHEDULE_LINEAR, 0, 10, 0, 3, NULL, 0 },
      "lr_min is 3; allowed: 0 to the group's lr, 2" },
    { { CAIRN_SCHEDULE_LINEAR, 0, 10, 0, -1, NULL, 0 }, "lr_min is -1" },
    { { CAIRN_SCHEDULE_LINEAR, 0, 10, 0, NAN, NULL, 0 }, "lr_min is nan" },
    { { CAIRN_SCHEDULE_WSD, 4, 10, 0, 0, NULL, 0 }, "decay_steps is 0; allowed: 1 to" },
    { { CAIRN_SCHEDULE_WSD, 4, 10, 7, 0, NULL, 0 }, "total_steps is 10; allowed: 11 to" },
    { { CAIRN_SCHEDULE_TABLE, 0, 0, 0, 0, NULL, 0 }, "point_count is 0; allowed: 1 to 1024" },
    { { CAIRN_SCHEDULE_TABLE, 0, 0, 0, 0, down, 2 }, "the step of a point is 5; allowed: 6 to" },
    { { CAIRN_SCHEDULE_TABLE, 0, 0, 0, 0, nan_factor, 1 }, "the factor of point 0 is nan" },
    { { CAIRN_SCHEDULE_TABLE, 0, 0, 0, 0, huge_factor, 1 }, "the factor of point 0 is 1e+18" },
    { { CAIRN_SCHEDULE_TABLE, 0, 9, 0, 0, golden_points, 2 }, "table: it has no total_steps" },
};

TEST_EACH(an_impossible_schedule_is_refused_with_field_value_and_what_is_allowed, 0, COUNT(bad))
{
    struct sentence why = { "" };
    ck_assert_int_eq(schedule_check(&bad[_i].schedule, 2, "backbone", &why), CAIRN_ERR_INVALID);
    ck_assert_msg(strstr(why.text, bad[_i].word) != NULL, "\"%s\"", why.text);
    ck_assert_ptr_nonnull(strstr(why.text, "backbone"));
}

TEST(a_kind_has_a_name_and_the_name_its_kind)
{
    for (int kind = 0; kind <= CAIRN_SCHEDULE_DRIVEN; kind++)
        ck_assert_int_eq(schedule_number(schedule_name(kind)), kind);
    ck_assert_str_eq(schedule_name(6), "?");
    ck_assert_int_eq(schedule_number("sine"), -1);
}

SUITE(60);
