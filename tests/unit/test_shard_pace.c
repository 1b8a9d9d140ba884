/* How fast a snapshot is written: by steps, by its deadline, and as fast as it goes while nobody trains. */
#include <check.h>

#include "server/shard/state.h"
#include "tests/support/suite.h"

#define MIB    ((uint64_t)1 << 20)
#define SECOND ((uint64_t)1000000)

static struct pace pace;
static const uint64_t now = 100 * SECOND;

/* Of 100 ms steps, the last of which ended now; a minute. */
static void begin(uint64_t bytes)
{
    pace_init(&pace, bytes, SECOND / 10, now, now + 60 * SECOND);
}

TEST(a_job_that_does_not_train_is_written_as_fast_as_it_goes)
{
    pace_init(&pace, 100 * MIB, 0, 0, now + 60 * SECOND);
    ck_assert(pace_rate(&pace, now) == CAIRN_PACE_FREE);
    begin(100 * MIB);
    ck_assert(pace_rate(&pace, now) == CAIRN_PACE_FIRST);
    ck_assert(pace_rate(&pace, now + 3 * SECOND) == CAIRN_PACE_FREE); // no step since
}

TEST(steps_that_got_longer_slow_it_down_to_the_least_and_others_let_it_go_faster)
{
    begin(100 * MIB);
    for (uint64_t i = 1; i < 20; i++) pace_step(&pace, SECOND / 5, now);
    ck_assert_uint_eq(pace_rate(&pace, now), CAIRN_PACE_LEAST);
    for (uint64_t i = 1; i < 20; i++) pace_step(&pace, SECOND / 10, now);
    ck_assert_uint_gt(pace_rate(&pace, now), CAIRN_PACE_FIRST);
}

TEST(its_deadline_comes_before_the_steps)
{
    begin(60 * 1024 * MIB); // a GiB a second is asked for
    for (uint64_t i = 1; i < 20; i++) pace_step(&pace, SECOND, now);
    const uint64_t rate = pace_rate(&pace, now);
    ck_assert_uint_ge(rate, 1023 * MIB);
    ck_assert_uint_le(rate, 1025 * MIB);
    pace_step(&pace, SECOND, now + 60 * SECOND);
    ck_assert(pace_rate(&pace, now + 60 * SECOND) == CAIRN_PACE_FREE);
    begin(MIB);
    ck_assert(!pace_presses(&pace, now));
    ck_assert(pace_presses(&pace, now + 60 * SECOND));
    atomic_store(&pace.hurry, true);
    ck_assert(pace_presses(&pace, now));
    ck_assert(pace_rate(&pace, now) == CAIRN_PACE_FREE);
}

TEST(what_is_asked_for_at_a_rate_takes_as_long_as_that_says)
{
    begin(1024 * MIB);
    uint64_t at = now, written = 0;
    while (at < now + SECOND) {
        pace_step(&pace, SECOND / 10, at); // it would go faster and faster
        atomic_store(&pace.rate, 128 * MIB);
        const uint64_t rest = pace_rest_us(&pace, 4 * MIB, at);
        if (rest == 0) written += 4 * MIB;
        ck_assert_uint_le(rest, 20000);
        at += rest;
    }
    ck_assert_uint_ge(written, 120 * MIB);
    ck_assert_uint_le(written, 144 * MIB); // the burst at the beginning, too
    ck_assert_uint_eq(atomic_load(&pace.done_bytes), written);
}

SUITE(10);
