/* How the streams of one owner share a turn of the loop, as numbers. */
#include "proto/loop/loop.h"
#include "tests/support/suite.h"

enum { STREAMS = 5, MS = 1000000 };

static struct stream_share share;
static struct share_claim claims[STREAMS];

static void set_up(void)
{
    share = (struct stream_share) { .is_bounded = true };
    for (int i = 0; i < STREAMS; i++) share_claim(&claims[i], &share);
}

/* One turn of the loop: each stream asks, and one that is served takes so long. How many were. */
static int turn(uint64_t each_us, int served_out[STREAMS])
{
    int count = 0;
    for (int i = 0; i < STREAMS; i++) {
        if (!share_take(&claims[i])) continue;
        served_out[i]++;
        count++;
        share_pay(&share, 0, each_us * 1000);
    }
    return count;
}

TEST(a_turn_is_over_when_its_time_is_used)
{
    int served[STREAMS] = { 0 };
    ck_assert_int_eq(turn(CAIRN_STREAM_SHARE_US / 2, served), 2);
    ck_assert_uint_eq(share_left_ns(&share), 0);
}

TEST(each_stream_is_served_once_in_a_round_however_they_ask)
{
    int served[STREAMS] = { 0 };
    for (int i = 0; i < 300; i++) turn(CAIRN_STREAM_SHARE_US / 2, served);
    for (int i = 0; i < STREAMS; i++) {
        ck_assert_int_ge(served[i], served[0] - 1);
        ck_assert_int_le(served[i], served[0] + 1);
        ck_assert_int_gt(served[i], 60);
    }
}

TEST(a_stream_that_is_alone_is_served_every_other_turn_at_least)
{
    int served = 0;
    for (int i = 0; i < 100; i++) {
        served += share_take(&claims[0]);
        share_pay(&share, 0, 1000000);
    }
    ck_assert_int_ge(served, 50);
}

TEST(a_burst_is_free_and_what_goes_on_takes_its_part_of_the_time)
{
    const uint64_t begin = 1000 * (uint64_t)MS;
    uint64_t now = begin, used = 0;
    while (now < begin + 10000 * (uint64_t)MS) {
        const uint64_t rest_ms = share_rest_ms(&share, now);
        now += rest_ms * MS;
        share_pay(&share, now, now + MS);
        now += MS;
        used += MS;
    }
    const uint64_t part = 10000 * (uint64_t)MS / CAIRN_STREAM_SHARE_OF;
    ck_assert_uint_ge(used, part);
    ck_assert_uint_le(used, part + 2 * CAIRN_STREAM_BURST_MS * (uint64_t)MS);
}

TEST(a_share_that_rested_has_a_burst_again_and_no_more)
{
    share_pay(&share, 0, 1000 * (uint64_t)MS);
    ck_assert_uint_gt(share_rest_ms(&share, 1000 * (uint64_t)MS), 0);
    const uint64_t later = 100000 * (uint64_t)MS;
    ck_assert_uint_eq(share_rest_ms(&share, later), 0);
    share_pay(&share, later, later + CAIRN_STREAM_BURST_MS * (uint64_t)MS);
    ck_assert_uint_gt(share_rest_ms(&share, later + CAIRN_STREAM_BURST_MS * (uint64_t)MS), 0);
}

SUITE(10, set_up, NULL);
