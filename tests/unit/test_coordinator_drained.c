/* A shard that has been drained is told to end until it has heard so, and nobody waits for it. */
#include <check.h>
#include <string.h>

#include "server/coordinator/base.h"
#include "server/coordinator/job.h"
#include "server/coordinator/members.h"
#include "tests/support/fake_move.h"
#include "tests/support/fake_shard.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static struct coord_shard_entry *seat_of_s0(void)
{
    return coord_shard_find(fake.cluster, "s0");
}

static uint32_t times_drained(void)
{
    Cairn__Events *told = fake_call(&admin, Events, EventsGet);
    uint32_t times = 0;
    for (size_t i = 0; i < told->n_events; i++)
        times += strcmp(told->events[i]->kind, "drain-ended") == 0;
    return times;
}

TEST(a_drained_shard_that_comes_back_has_not_heard_that_it_is_to_end)
{
    drain_shard(0);
    for (int i = 0; i < 2; i++) {
        fake.shards[0].move.is_ended = false; // its connection broke first
        fake_shard_away(&fake, 0);
        ck_assert_ptr_null(seat_of_s0());
        fake_shard_up(&fake, 0);
        fake_until(&fake, fake.shards[0].move.is_ended);
    }
    ck_assert_uint_eq(times_drained(), 1);
}

TEST(a_drained_shard_that_comes_before_it_is_missed_is_told_again)
{
    drain_shard(0);
    struct fake_peer first = fake.shards[0].peer;
    fake.shards[0].move.is_ended = false;
    fake.shards[0].peer.fd = -1;
    fake_shard_up(&fake, 0);
    fake_until(&fake, fake.shards[0].move.is_ended);
    fake_peer_close(&first);
}

TEST(a_coordinator_that_starts_again_waits_for_it_longer_than_it_waits_between_two_attempts)
{
    drain_shard(0);
    fake.options.lease_timeout_ms = 1000;
    restart_coordinator();
    seat_of_s0()->since_ms -= 3000;
    tick_fast();
    fake_pumps(&fake, 50);
    ck_assert(seat_of_s0()->leaving);
    fake.shards[0].move.is_ended = false;
    fake_shard_up(&fake, 0);
    fake_until(&fake, fake.shards[0].move.is_ended);
}

TEST(another_process_of_its_name_is_a_new_shard)
{
    drain_shard(0);
    fake_shard_forget(&fake, 0);
    fake.shards[0].move.is_ended = false;
    fake_shard_up(&fake, 0);
    fake_pumps(&fake, 50);
    ck_assert(!fake.shards[0].move.is_ended && !seat_of_s0()->leaving);
}

static void restore_by_itself(void)
{
    amend_job(1, "on_shard_loss=restore-latest");
}

TEST(a_restore_does_not_wait_for_a_drained_shard)
{
    drain_shard(0);
    fake_shard_away(&fake, 0);
    take_snapshot();
    restore_by_itself();
    fake_shard_renew(&fake, 1);
    fake_expect_error(&w, 0, CAIRN_ERR_ROLLED_BACK, "is restored by itself");
    attach_again();
    ck_assert_uint_eq(toy()->entry_count, 1);
    train();
}

TEST(a_shard_that_is_being_drained_is_not_waited_for)
{
    take_snapshot();
    restore_by_itself();
    fake.shards[1].move.holds_prepare = true;
    (void)fake_ask(&admin, MemberDrain, .name = fake.shards[0].name);
    fake_until(&fake, fake.shards[1].move.next != NULL);
    fake_shard_forget(&fake, 1);
    fake.shards[1].move.holds_prepare = false;
    fake_shard_up(&fake, 1);
    fake_expect_error(&w, 0, CAIRN_ERR_ROLLED_BACK, "is restored by itself");
    attach_again();
    ck_assert_uint_eq(toy()->entry_count, 1);
    train();
    fake_until(&fake, fake.shards[0].move.is_ended);
}

/* ---- a shard whose device failed, and which holds jobs of host memory ---- */

/* Its process says so by another Hello. */
static void break_device(uint32_t shard)
{
    toy()->spec.offload_fraction = 1;
    fake.shards[shard].failed = "a launch of fold failed on Emulated card 0";
    fake_shard_blink(&fake, shard);
}

static void expect_moved_off(const char *name)
{
    struct coord_shard_entry *seat = coord_shard_find(fake.cluster, name);
    for (int i = 0; i < 50 && coord_job_has_shard(toy(), seat); i++) {
        train();
        fake_pumps(&fake, 20);
    }
    ck_assert(!coord_job_has_shard(toy(), seat));
    fake_until(&fake, strstr(seat->unfit.text, "holds nothing that is whole, and ends") != NULL);
}

/* It ends with a status of its own, so that it is started again: it is not told to end. */
TEST(what_an_unfit_shard_holds_in_host_memory_goes_to_others_by_itself)
{
    break_device(0);
    fake_until(&fake, seat_of_s0()->leaving);
    expect_moved_off("s0");
    ck_assert(!fake.shards[0].move.is_ended);
    fake_shard_forget(&fake, 0); // it ends, and another process of the name comes
    fake.shards[0].failed = NULL;
    fake_shard_up(&fake, 0);
    fake_until(&fake, coord_shard_obeys(seat_of_s0()));
    ck_assert(!seat_of_s0()->leaving);
    train();
}

TEST(what_cannot_move_off_an_unfit_shard_stays_is_said_and_is_tried_again)
{
    coord_shard_find(fake.cluster, "s1")->memory_bytes = 1;
    break_device(0);
    fake_until(&fake, strstr(seat_of_s0()->unfit.text,
                             "a job stays there, and its move is tried again: job "
                             "toy cannot be spread so") != NULL);
    train();
    ck_assert(coord_job_has_shard(toy(), seat_of_s0()) && seat_of_s0()->leaving);
    coord_shard_find(fake.cluster, "s1")->memory_bytes = 0;
    seat_of_s0()->drain.again_ms = 0;
    expect_moved_off("s0");
}

TEST(unfit_shards_give_what_they_hold_to_the_first_that_is_well)
{
    break_device(0);
    break_device(1);
    fake_until(&fake, strstr(seat_of_s0()->unfit.text, "start another shard") != NULL);
    train();
    ck_assert_uint_eq(toy()->entry_count, 2);
    fake_shard_up(&fake, 2);
    expect_moved_off("s0");
    expect_moved_off("s1");
    ck_assert(fake.shards[2].has_job);
    train();
}

/* What lay on the device is lost, and holds up nothing. */
TEST(an_unfit_shard_is_drained_though_a_job_is_lost_there)
{
    break_device(0);
    toy()->spec.offload_fraction = 0;
    fake_until(&fake, strstr(seat_of_s0()->unfit.text, "holds nothing that is whole") != NULL);
    ck_assert(seat_of_s0()->leaving && !fake.shards[0].move.is_ended);
}

SUITE(60, open_ticking, close_fake);
