/* How large slices are by what steps took. */
#include <check.h>

#include "server/coordinator/reshard.h"
#include "tests/support/suite.h"

#define MIB ((uint64_t)1 << 20)

static struct coord_reshard_pace pace;

/* Two steps, then the next slice. */
static void slice_after(uint32_t first_us, uint32_t second_us)
{
    coord_reshard_pace_step(&pace, first_us);
    coord_reshard_pace_step(&pace, second_us);
    coord_reshard_pace_slice(&pace);
}

static void begin(void)
{
    coord_reshard_pace_begin(&pace, 0, 100000);
}

TEST(slices_grow_while_no_step_is_longer_for_them)
{
    coord_reshard_pace_slice(&pace); // the first one: nothing is known
    ck_assert_uint_eq(pace.most_bytes, 8 * MIB);
    slice_after(99000, 104000);
    ck_assert_uint_eq(pace.most_bytes, 16 * MIB);
    slice_after(108000, 100000); // within the pause, and near it
    ck_assert_uint_eq(pace.most_bytes, 16 * MIB);
}

TEST(the_longest_step_counts_on_either_side_of_a_slice)
{
    slice_after(111000, 90000);
    ck_assert_uint_eq(pace.most_bytes, 4 * MIB);
    slice_after(90000, 111000);
    ck_assert_uint_eq(pace.most_bytes, 2 * MIB);
}

TEST(the_pause_is_the_operators)
{
    coord_reshard_pace_begin(&pace, 0.5, 100000);
    slice_after(120000, 120000);
    ck_assert_uint_eq(pace.most_bytes, 16 * MIB);
    slice_after(151000, 100000);
    ck_assert_uint_eq(pace.most_bytes, 8 * MIB);
}

TEST(steps_that_have_become_longer_by_themselves_do_not_keep_slices_small)
{
    for (int i = 0; i < 4; i++) slice_after(200000, 200000);
    ck_assert_uint_eq(pace.most_bytes, 1 * MIB);
    ck_assert_uint_eq(pace.usual_us, 200000);
    slice_after(201000, 199000);
    slice_after(201000, 199000);
    ck_assert_uint_eq(pace.most_bytes, 4 * MIB);
}

TEST(after_a_restart_the_first_steps_say_what_is_usual)
{
    coord_reshard_pace_begin(&pace, 0, 0);
    slice_after(50000, 60000);
    ck_assert_uint_eq(pace.usual_us, 60000);
    ck_assert_uint_eq(pace.most_bytes, 8 * MIB);
}

/* The first step after a restart has the time in it that workers took to be back. */
TEST(one_step_that_took_very_long_does_not_say_what_is_usual)
{
    coord_reshard_pace_begin(&pace, 0, 0);
    slice_after(5000000, 100000);
    slice_after(101000, 99000);
    ck_assert_uint_eq(pace.usual_us, 101000);
    slice_after(130000, 100000);
    ck_assert_uint_eq(pace.most_bytes, 4 * MIB);
    for (int i = 0; i < 2; i++) slice_after(130000, 100000);
    slice_after(5000000, 100000); // at the least slice
    slice_after(100000, 100000);
    ck_assert_uint_eq(pace.usual_us, 100000);
}

TEST(slices_that_shards_can_take_no_more_of_are_made_smaller_at_once)
{
    for (int i = 0; i < 20; i++) {
        slice_after(100000, 100000);
        coord_reshard_pace_cut(&pace, 64 * MIB);
    }
    slice_after(150000, 100000);
    ck_assert_uint_eq(pace.most_bytes, 32 * MIB);
    coord_reshard_pace_cut(&pace, 1 * MIB); // the rest of a run
    ck_assert_uint_eq(pace.most_bytes, 32 * MIB);
}

SUITE(10, begin);
