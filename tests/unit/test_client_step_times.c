/* What a worker says of its steps: four phases that make up the time from one commit to the next. */
#include <check.h>
#include <string.h>

#include "client/base.h"
#include "tests/support/suite.h"

static struct step_times times;
static Cairn__StepTimes told;

/* The step began so long ago. */
static void begin(uint64_t ago_us)
{
    memset(&times, 0, sizeof times);
    ck_assert(!step_times_commit(&times, 1, &told)); // no step is before it
    times.committed_us -= ago_us;
}

TEST(the_phases_make_up_the_step)
{
    begin(1000000);
    const uint64_t now_us = monotonic_us();
    step_times_waited(&times, CAIRN_TIME_FETCH, now_us - 200000);
    step_times_waited(&times, CAIRN_TIME_WAIT, now_us - 300000);
    ck_assert(step_times_commit(&times, 2, &told));
    ck_assert_uint_eq(told.n_us, CAIRN_TIMES);
    ck_assert_uint_ge(told.us[CAIRN_TIME_FETCH], 200000);
    ck_assert_uint_ge(told.us[CAIRN_TIME_WAIT], 300000);
    ck_assert_uint_eq(told.us[CAIRN_TIME_PUSH], 0);
    uint64_t sum = 0;
    for (int p = 0; p < CAIRN_TIMES; p++) sum += told.us[p];
    ck_assert_uint_ge(sum, 1000000);
    ck_assert_uint_le(sum, 1000000 + (monotonic_us() - now_us) + 1000);
    ck_assert(step_times_commit(&times, 3, &told)); // begun anew
    ck_assert_uint_eq(told.us[CAIRN_TIME_WAIT] + told.us[CAIRN_TIME_FETCH], 0);
}

TEST(a_commit_waits_for_its_pushes_then_for_the_others)
{
    begin(1000000);
    const uint64_t from_us = monotonic_us() - 500000;
    times.pushed_us = from_us + 200000;
    step_times_ended(&times, from_us);
    ck_assert_uint_eq(times.us[CAIRN_TIME_PUSH], 200000);
    ck_assert_uint_ge(times.us[CAIRN_TIME_WAIT], 300000);
    times.pushed_us = from_us - 1; // they were over before
    memset(times.us, 0, sizeof times.us);
    step_times_ended(&times, from_us);
    ck_assert_uint_eq(times.us[CAIRN_TIME_PUSH], 0);
}

TEST(threads_that_wait_side_by_side_leave_no_time_to_compute_and_no_less)
{
    begin(1000);
    for (int i = 0; i < 3; i++) step_times_waited(&times, CAIRN_TIME_FETCH, monotonic_us() - 1000);
    ck_assert(step_times_commit(&times, 2, &told));
    ck_assert_uint_eq(told.us[CAIRN_TIME_COMPUTE], 0);
}

TEST(a_round_that_is_committed_again_is_one_step)
{
    begin(1000);
    ck_assert(step_times_commit(&times, 2, &told));
    ck_assert(!step_times_commit(&times, 2, &told));
    // What began before the last commit counts from there on.
    step_times_waited(&times, CAIRN_TIME_WAIT, 0);
    ck_assert_uint_lt(times.us[CAIRN_TIME_WAIT], 1000000);
}

SUITE(30);
