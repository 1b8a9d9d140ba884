/* A job is parked over shards that are at work, that go and come back in mid-move, and over a coordinator
 * that does so: no round opens until all parts are back, and none is left shut. */
#include <check.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static uint32_t ask_park(bool parked)
{
    return fake_ask(&admin, JobPark, .name = "toy", .parked = parked);
}

static void expect_parked(uint32_t request, bool parked)
{
    ck_assert_int_eq(fake_hear(&admin, JobParked, request)->parked, parked);
    ck_assert(fake.shards[0].parked == parked && fake.shards[1].parked == parked);
}

static uint32_t times_asked(uint32_t shard)
{
    return fake.shards[shard].seen[CAIRN_MSG_PART_PARK];
}

/* Shard 1 has begun a move of which nobody hears the end yet. */
static uint32_t ask_and_hold(bool parked)
{
    const uint32_t asked = times_asked(1);
    fake.shards[1].holds_park = true;
    const uint32_t request = ask_park(parked);
    fake_until(&fake, times_asked(1) > asked);
    return request;
}

static void expect_rounds_after_unpark(void)
{
    const uint32_t begin = fake_ask_begin(&w, job);
    fake_expect_silence(&w, job);
    expect_parked(ask_park(false), false);
    const uint64_t round = fake_hear(&w, RoundOpened, begin)->round;
    fake_commit(&w, job, round);
    train();
}

TEST(a_parked_job_opens_no_round_until_it_is_taken_back)
{
    expect_parked(ask_park(true), true);
    expect_parked(ask_park(true), true);
    expect_rounds_after_unpark();
    expect_parked(ask_park(false), false);
}

TEST(a_shard_that_is_at_work_is_asked_again)
{
    struct fake_shard *shard = &fake.shards[1];
    shard->refuse_park = "it is at work on the job; ask again";
    shard->refuse_park_status = CAIRN_ERR_BUSY;
    const uint32_t request = ask_park(true);
    fake_until(&fake, times_asked(1) >= 3);
    shard->refuse_park = NULL;
    expect_parked(request, true);
    expect_rounds_after_unpark();
}

TEST(a_shard_without_room_leaves_the_job_as_it_was)
{
    struct fake_shard *shard = &fake.shards[1];
    shard->refuse_park = "no room";
    shard->refuse_park_status = CAIRN_ERR_NO_MEMORY;
    const uint32_t request = ask_park(true);
    fake_until(&fake, times_asked(1) == 1);
    shard->refuse_park = NULL;
    fake_expect_error(&admin, request, CAIRN_ERR_NO_MEMORY, "no room");
    fake_until(&fake, coord_stage(toy(), CAIRN_OPERATION_PARK) == CAIRN_STAGE_NONE);
    ck_assert(!fake.shards[0].parked && !fake.shards[1].parked);
    train();
}

/* It moves still as it is back, and to where nobody wants it any more. */
TEST(a_shard_that_reconnects_in_mid_park_goes_back_and_the_job_goes_on)
{
    struct fake_shard *shard = &fake.shards[1];
    const uint32_t request = ask_and_hold(true);
    fake_shard_away(&fake, 1);
    fake_expect_error(&admin, request, CAIRN_ERR_NOT_READY, "the connection was lost");
    shard->holds_park = false;
    shard->refuse_park = "it is at work on the job; ask again";
    shard->refuse_park_status = CAIRN_ERR_BUSY;
    const uint32_t asked = times_asked(1);
    fake_shard_up(&fake, 1);
    fake_until(&fake, times_asked(1) >= asked + 2);
    shard->refuse_park = NULL;
    fake_until(&fake, coord_stage(toy(), CAIRN_OPERATION_PARK) == CAIRN_STAGE_NONE);
    ck_assert(!fake.shards[0].parked && !shard->parked);
    train();
}

/* Twice: as it is asked to undo the move, too. */
TEST(a_shard_that_reconnects_again_and_again_leaves_nothing_shut)
{
    struct fake_shard *shard = &fake.shards[1];
    const uint32_t request = ask_and_hold(true);
    for (int i = 0; i < 3; i++) {
        const uint32_t asked = times_asked(1);
        fake_shard_blink(&fake, 1);
        fake_until(&fake, times_asked(1) > asked);
    }
    fake_expect_error(&admin, request, CAIRN_ERR_NOT_READY, "the connection was lost");
    shard->holds_park = false;
    fake_shard_blink(&fake, 1);
    fake_until(&fake, coord_stage(toy(), CAIRN_OPERATION_PARK) == CAIRN_STAGE_NONE);
    ck_assert(!fake.shards[0].parked && !shard->parked);
    train();
}

TEST(a_coordinator_that_starts_in_mid_park_takes_it_over)
{
    (void)ask_and_hold(true);
    restart_coordinator();
    tick_fast();
    const uint32_t asked = times_asked(1);
    fake_shards_up(&fake, 2);
    come_again("w0");
    fake_until(&fake, times_asked(1) > asked);
    ck_assert(coord_stage(toy(), CAIRN_OPERATION_PARK) == CAIRN_STAGE_PARK_ASKING &&
              toy()->park.wanted);
    fake_shard_release(&fake.shards[1]);
    fake.shards[1].holds_park = false;
    fake_until(&fake, coord_stage(toy(), CAIRN_OPERATION_PARK) == CAIRN_STAGE_PARKED);
    ck_assert(fake.shards[0].parked);
    expect_parked(ask_park(false), false);
}

/* What is asked before its shards have told is answered when they have. */
TEST(a_job_that_is_parked_is_taken_back_by_a_coordinator_that_has_just_started)
{
    expect_parked(ask_park(true), true);
    restart_coordinator();
    tick_fast();
    const uint32_t request = ask_park(false);
    fake_shard_up(&fake, 0);
    fake_pumps(&fake, 20);
    fake_shard_up(&fake, 1);
    expect_parked(request, false);
    attach_again();
    train();
}

/* One of them does not come: it waits on, and says nothing that is not known. */
TEST(a_part_that_is_away_for_a_lease_is_waited_for_before_a_job_is_called_unparked)
{
    expect_parked(ask_park(true), true);
    restart_coordinator();
    tick_fast();
    fake_shard_up(&fake, 0);
    fake.cluster->earlies.over = true; // a lease has passed
    const uint32_t request = ask_park(false);
    fake_expect_silence(&admin, 0);
    fake_shard_up(&fake, 1);
    expect_parked(request, false);
}

SUITE(30, open_ticking, close_fake);
