/* What the bench of snapshots makes of the times of steps. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/bench/bench.h"
#include "tests/support/suite.h"

static struct bench_interval pairs[2][2];

static void add(struct bench_interval *interval, uint32_t count, double seconds)
{
    for (uint32_t i = 0; i < count; i++) ck_assert(bench_interval_add(interval, seconds));
}

static struct bench_slowdown figures(void)
{
    struct bench_slowdown out;
    ck_assert(bench_slowdown_of((const struct bench_interval(*)[2])pairs, 2, &out));
    return out;
}

static void release(void)
{
    for (int i = 0; i < 4; i++) free(pairs[i / 2][i % 2].steps);
    memset(pairs, 0, sizeof pairs);
}

TEST(the_slowdown_is_of_the_means_of_all_steps)
{
    add(&pairs[0][0], 300, 1.0); // more than an interval has room for at first
    add(&pairs[1][0], 100, 2.0);
    add(&pairs[0][1], 100, 1.0);
    add(&pairs[1][1], 99, 2.0);
    add(&pairs[1][1], 1, 52.0);
    const struct bench_slowdown f = figures();
    ck_assert_double_eq_tol(f.mean_without, 1.25, 1e-9);
    ck_assert_double_eq_tol(f.mean_with, 1.75, 1e-9);
    ck_assert_double_eq_tol(f.slowdown, 0.4, 1e-9);
    ck_assert_uint_eq(f.steps, 200);
    release();
}

TEST(the_worst_step_is_held_against_the_median_without)
{
    add(&pairs[0][0], 2, 1.0);
    add(&pairs[0][0], 1, 5.0); // no median
    add(&pairs[1][0], 2, 1.0);
    add(&pairs[0][1], 3, 1.0);
    add(&pairs[1][1], 2, 1.5);
    add(&pairs[1][1], 1, 1.2);
    const struct bench_slowdown f = figures();
    ck_assert_double_eq_tol(f.median, 1.0, 1e-9);
    ck_assert_double_eq_tol(f.worst_without, 5.0, 1e-9);
    ck_assert_double_eq_tol(f.worst_with, 1.5, 1e-9);
    ck_assert_double_eq_tol(f.worst_over_median, 1.5, 1e-9);
    ck_assert_double_eq_tol(f.worst_added, 0.5, 1e-9);
    ck_assert_double_eq_tol(pairs[1][1].steps[2], 1.2, 1e-9); // the order stays
    release();
}

TEST(the_memory_is_of_the_worst_shard_of_a_pair)
{
    for (int i = 0; i < 4; i++) add(&pairs[i / 2][i % 2], 1, 1.0);
    pairs[0][0].shard_bytes[0] = pairs[1][0].shard_bytes[0] = 100;
    pairs[0][0].shard_bytes[1] = pairs[1][0].shard_bytes[1] = 1000;
    pairs[0][1].shard_bytes[0] = 130;
    pairs[0][1].shard_bytes[1] = 900; // less is nothing
    pairs[1][1].shard_bytes[0] = 110;
    pairs[1][1].shard_bytes[1] = 1020;
    ck_assert_double_eq_tol(figures().memory_added, 30, 1e-9);
    release();
}

SUITE(30, NULL, NULL);
