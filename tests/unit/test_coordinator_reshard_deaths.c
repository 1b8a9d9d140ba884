/* Who dies while a job moves to other shards, when, and what that costs (see test_coordinator_reshard.c). */
#include <check.h>

#include "server/coordinator/base.h"
#include "server/coordinator/members.h"
#include "tests/support/fake_move.h"
#include "tests/support/reshard_toy.h"
#include "tests/support/suite.h"

/* ---- deaths ---- */

static void check_that_a_joiner_goes(uint32_t silent)
{
    begin_prepare(silent);
    fake_shard_away(&fake, 2);
    fake_until(&fake, ended());
    expect_state("failed");
    ck_assert_uint_eq(toy()->layout->version, 1);
    train();
    fake_shard_clear(&fake.shards[2]);
    fake_shard_up(&fake, 2);
    fake.shards[silent].move.holds_prepare = false;
    apply_shards(3);
    train_until_ended();
    ck_assert(owns(0) && owns(1) && owns(2));
}

TEST(a_joiner_that_goes_before_it_is_in_force_changes_nothing)
{
    check_that_a_joiner_goes(1);
}

TEST(a_joiner_that_goes_before_it_has_answered_changes_nothing)
{
    check_that_a_joiner_goes(2);
}

TEST(a_fresh_taker_that_dies_is_left_out_again)
{
    begin_slice();
    fake_shard_forget(&fake, 2);
    fake_until(&fake, toy()->layout->version == 3);
    ck_assert(owns(0) && owns(1) && !owns(2));
    fake_until(&fake, fake.shards[0].move.settled == 3);
    train_until_ended();
    expect_state("done");
    ck_assert(owns(0) && owns(1) && !owns(2)); // what was planned is not what follows
    ck_assert_uint_eq(toy()->entry_count, 2);
}

TEST(a_fresh_taker_that_was_given_up_is_left_out_though_it_comes_back)
{
    begin_slice();
    fake_shard_away(&fake, 0); // without it there is no way back
    fake_shard_away(&fake, 2);
    fake_until(&fake, move_stage_of(toy()->reshard.move) == CAIRN_MOVE_LOST);
    fake.shards[2].move.holds_moved = false;
    fake_shard_up(&fake, 2);
    fake_shard_up(&fake, 0);
    train_until_ended();
    ck_assert_int_eq(toy()->state, CAIRN_CLUSTER_JOB_RUNNING);
    ck_assert(owns(0) && owns(1) && !owns(2) && !fake.shards[2].has_job);
    train();
}

/* It has its part and nothing in it, as after a cancel; then it is lost. */
TEST(a_shard_that_owns_nothing_and_dies_loses_nothing)
{
    apply_shards(3);
    train_until_ended();
    expect_told(ask_reshard(CAIRN_RESHARD_APPLY, RESHARD_DRAIN(s2)));
    for (int i = 0; i < 50 && owns(2); i++) {
        train();
        fake_pumps(&fake, 5);
    }
    (void)ask_reshard(CAIRN_RESHARD_CANCEL);
    fake_pumps(&fake, 50);
    train(); // nobody fetches from it any more
    if (toy()->entry_count == 3) fake_shard_forget(&fake, 2);
    fake_until(&fake, toy()->entry_count == 2);
    train();
}

/* What ends a run does so once: the shard that owns nothing stays, as nobody sends it away. */
TEST(a_cancel_that_takes_a_joiner_back_ends_the_run_and_does_no_more)
{
    fake.shards[0].move.holds_moved = true;
    expect_told(ask_reshard(CAIRN_RESHARD_APPLY, RESHARD_DRAIN(s1)));
    fake_until(&fake, !owns(1));
    cancel_reshard();
    end_move(0);
    train_until_ended();
    ck_assert_uint_eq(toy()->entry_count, 2);
    fake.shards[0].move.holds_prepare = true;
    expect_told(ask_reshard(CAIRN_RESHARD_APPLY, RESHARD_ADD(s2)));
    fake_until(&fake, fake.shards[0].move.next != NULL);
    fake.shards[0].move.holds_prepare = false;
    cancel_reshard();
    fake_until(&fake, ended());
    for (int i = 0; i < 3; i++) train();
    ck_assert_uint_eq(toy()->entry_count, 2);
}

TEST(a_coordinator_that_starts_again_goes_on_with_the_run)
{
    for (int point = 0; point < 4; point++) {
        fake.shards[2].holds_create = point == 0;
        fake.shards[1].move.holds_prepare = point == 1;
        fake.shards[2].move.holds_moved = point >= 2;
        const uint64_t before = toy()->layout->version;
        apply_shards(3);
        if (point == 0) fake_until(&fake, fake.shards[2].has_job);
        if (point == 1) fake_until(&fake, fake.shards[1].move.next != NULL);
        if (point >= 2) fake_until(&fake, toy()->layout->version > before);
        if (point == 3) fake_until(&fake, fake.shards[0].move.is_told);
        fake.shards[2].holds_create = false;
        fake.shards[1].move.holds_prepare = fake.shards[2].move.holds_moved = false;
        restart_with_three();
        train_until_ended();
        ck_assert_msg(owners() == 3, "at %d: %s", point, toy()->reshard.progress.text.text);
        ck_assert_uint_lt(toy()->reshard.progress.stage_us[CAIRN_MOVE_MOVING], UINT64_C(100000000));
        // Back to two, for the next point.
        expect_told(ask_reshard(CAIRN_RESHARD_APPLY, RESHARD_DRAIN(s2)));
        train_until_ended();
        ck_assert_uint_eq(toy()->entry_count, 2);
    }
}

/* Said yes to when the store has it. */
TEST(a_coordinator_that_starts_again_goes_on_with_a_drain)
{
    fake.shards[1].move.holds_moved = true;
    hold_disk();
    const uint32_t request = fake_ask(&admin, MemberDrain, .name = s0);
    expect_told(ask_reshard(CAIRN_RESHARD_STATUS)); // the first that comes
    release_disk();
    fake_hear(&admin, Done, request);
    fake_until(&fake, toy()->layout->version == 2);
    fake.shards[1].move.holds_moved = false;
    restart_with_three();
    train_until(fake.shards[0].move.is_ended);
    fake_shard_away(&fake, 0);
    train();
    fake_until(&fake, fake.cluster->saves.list == NULL);
    restart_coordinator(); // it does not leave any more
    ck_assert_ptr_null(coord_shard_find(fake.cluster, s0));
}

/* A member that came meanwhile knows no older layout, and who had the version by that may have ended. */
TEST(what_was_published_anew_is_so_for_the_next_coordinator)
{
    fake_peer_close(&w); // nobody trains
    expect_told(ask_reshard(CAIRN_RESHARD_APPLY, RESHARD_DRAIN(s1)));
    fake_until(&fake, toy()->layout->version == 2 && fake.shards[0].move.published != 0 &&
                          !coord_layouts_behind(toy()));
    fake_until(&fake, fake.cluster->saves.list == NULL);
    restart_coordinator();
    ck_assert(toy()->layout->version > 2 || toy()->layouts.before == NULL);
}

/* The layout is in the store, and nobody was fenced with it: all have it prepared only. */
TEST(a_coordinator_that_ends_before_its_fences_are_heard_loses_nothing)
{
    fake.shards[0].move.holds_prepare = true;
    apply_shards(3);
    for (int i = 0; i < 3; i++) fake_until(&fake, fake.shards[i].move.next != NULL);
    end_prepare(0);
    for (int i = 0; i < 3; i++) fake.shards[i].dead = true;
    fake_until(&fake, toy()->layout->version == 2);
    restart_coordinator();
    tick_fast();
    for (int i = 0; i < 3; i++) ck_assert_uint_le(fake.shards[i].layout->version, 1);
    fake_shards_up(&fake, 3);
    attach_again();
    train_until_ended();
    ck_assert_uint_eq(owners(), 3);
}

TEST(an_old_owner_that_is_away_for_a_while_is_waited_for)
{
    begin_slice();
    fake_shard_blink(&fake, 0);
    fake.shards[2].move.holds_moved = false;
    train_until_ended();
    ck_assert_int_eq(toy()->reshard.progress.state, CAIRN_RESHARD_DONE);
    train();
}

/* The layout with shard 2 is being stored, and the disk holds it up until release_disk(). */
static void hold_layout_at_store(void)
{
    fake.shards[0].move.holds_prepare = true;
    apply_shards(3);
    for (int i = 0; i < 3; i++) fake_until(&fake, fake.shards[i].move.next != NULL);
    hold_disk();
    fake_move_prepared(&fake.shards[0]);
    fake_until(&fake, toy()->layouts.storing);
    fake.shards[0].move.holds_prepare = false;
}

/* Without it no fence can go out, and the layout is durable. */
TEST(a_fresh_taker_that_dies_while_the_layout_is_being_stored_is_left_out_again)
{
    hold_layout_at_store();
    coord_shard_leave(toy()->shards[2].entry->session, CAIRN_ERR_CLOSED, "it dies");
    release_disk();
    fake_until(&fake, toy()->layout->version == 2);
    ck_assert_uint_eq(fake.shards[0].layout->version, 1);
    fake_shard_forget(&fake, 2);
    fake_until(&fake, toy()->layout->version == 3);
    ck_assert(owns(0) && owns(1) && !owns(2));
    fake_until(&fake, fake.shards[0].move.settled == 3 && fake.shards[1].move.settled == 3);
    ck_assert_uint_eq(toy()->entry_count, 2);
    train();
}

/* `holds`: shard 0 is not done with what it prepares after that. */
static void lose_taker_while_storing(bool holds)
{
    hold_layout_at_store();
    fake.shards[0].move.holds_prepare = holds;
    fake_shard_renew(&fake, 2);
    release_disk();
}

/* It is asked for what it holds only once, and then the layout that has it is not in force yet. */
TEST(a_fresh_taker_that_is_back_while_the_layout_is_being_stored_is_left_out_again)
{
    lose_taker_while_storing(false);
    fake_until(&fake, toy()->layout->version == 3);
    fake_until(&fake, fake.shards[0].move.settled == 3 && fake.shards[1].move.settled == 3);
    ck_assert_uint_eq(toy()->entry_count, 2);
    train();
}

/* However long the way back takes: nobody waits for what that one lacks. */
TEST(a_job_whose_fresh_taker_is_left_out_is_not_lost_while_the_way_back_takes_its_time)
{
    lose_taker_while_storing(true);
    fake_until(&fake, toy()->layout->version == 2 && toy()->shards[2].lost);
    const uint64_t then_ms = coord_now_ms(fake.cluster);
    fake_until(&fake, coord_now_ms(fake.cluster) > then_ms + 200);
    ck_assert_int_eq(toy()->state, CAIRN_CLUSTER_JOB_RUNNING);
    end_prepare(0);
    fake_until(&fake, fake.shards[0].move.settled == 3 && fake.shards[1].move.settled == 3);
    ck_assert_uint_eq(toy()->entry_count, 2);
    train();
}

TEST(a_fresh_taker_that_dies_with_the_coordinator_is_left_out_again)
{
    fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    fake_until(&fake, fake.shards[0].move.is_told && fake.shards[1].move.is_told);
    fake_shard_forget(&fake, 2);
    restart_coordinator();
    tick_fast();
    ck_assert_uint_eq(toy()->layout->version, 2);
    fake_shards_up(&fake, 2);
    come_again("w0");
    fake_shard_up(&fake, 2);
    fake_until(&fake, fake.shards[0].move.settled == 3 && fake.shards[1].move.settled == 3);
    ck_assert(owns(0) && owns(1) && !owns(2));
    ck_assert_uint_eq(fake_attach(&w, 10, 0, 1), job);
    train();
}

TEST(two_fresh_takers_that_die_in_one_slice_are_left_out_again)
{
    fake_shard_up(&fake, 3);
    fake.shards[2].move.holds_moved = fake.shards[3].move.holds_moved = true;
    apply_shards(4);
    fake_until(&fake, toy()->layout->version == 2 && fake.shards[0].move.is_told);
    fake_shard_forget(&fake, 2);
    fake_shard_forget(&fake, 3);
    fake_until(&fake, toy()->entry_count == 2);
    fake_until(&fake, fake.shards[0].move.settled == toy()->layout->version);
    ck_assert(owns(0) && owns(1));
    train();
}

/* The second one after the way back from the first is in force. */
TEST(a_second_fresh_taker_that_dies_on_the_way_back_is_left_out_too)
{
    fake_shard_up(&fake, 3);
    for (int i = 0; i < 4; i++) fake.shards[i].move.holds_moved = true;
    apply_shards(4);
    fake_until(&fake, toy()->layout->version == 2);
    fake_shard_forget(&fake, 2);
    fake_until(&fake, toy()->layout->version == 3 && fake.shards[0].layout->version == 3);
    fake_shard_forget(&fake, 3);
    fake_until(&fake, toy()->entry_count == 2 && fake.shards[0].layout->version == 4);
    fake_until(&fake, fake.shards[1].layout->version == 4);
    for (int i = 0; i < 2; i++) {
        fake.shards[i].move.holds_moved = false;
        fake_move_release(&fake.shards[i]);
    }
    fake_until(&fake, fake.shards[0].move.settled == 4);
    train();
}

/* What it gave is back, and it is the only one that has it. */
TEST(a_giver_that_dies_on_the_way_back_is_not_left_out)
{
    for (int i = 0; i < 3; i++) fake.shards[i].move.holds_moved = true;
    expect_told(ask_reshard(CAIRN_RESHARD_APPLY, RESHARD_ADD(s2), RESHARD_DRAIN(s1)));
    fake_until(&fake, !owns(1) && fake.shards[0].layout->version == toy()->layout->version);
    fake_shard_forget(&fake, 2);
    fake_until(&fake, owns(1) && fake.shards[0].layout->version == toy()->layout->version);
    fake_shard_renew(&fake, 1);
    fake_until(&fake, toy()->state == CAIRN_CLUSTER_JOB_LOST);
}

/* It owns nothing, and others do not have what it gave. */
TEST(a_giver_that_dies_before_all_are_whole_is_not_left_out)
{
    fake.shards[0].move.holds_moved = true;
    expect_told(ask_reshard(CAIRN_RESHARD_APPLY, RESHARD_DRAIN(s1)));
    fake_until(&fake, !owns(1) && fake.shards[0].layout->version == toy()->layout->version);
    const uint64_t version = toy()->layout->version;
    fake_shard_renew(&fake, 1);
    fake_until(&fake, toy()->state == CAIRN_CLUSTER_JOB_LOST);
    ck_assert_uint_eq(toy()->layout->version, version);
}

/* The store is lost when two shards were fenced with the layout, and the third has it prepared. */
TEST(a_store_that_is_rebuilt_in_mid_change_has_the_layout_that_all_shards_have)
{
    fake.shards[0].move.holds_prepare = true;
    apply_shards(3);
    fake_until(&fake, fake.shards[0].move.next != NULL && fake.shards[1].move.next != NULL);
    fake_until(&fake, fake.shards[2].move.next != NULL);
    fake.shards[1].dead = true;
    fake_move_prepared(&fake.shards[0]);
    fake_until(&fake, fake.shards[0].layout->version == 2 && fake.shards[2].layout->version == 2);
    ck_assert_uint_eq(fake.shards[1].layout->version, 1);
    fake.shards[0].move.holds_prepare = false;
    fake_store_lose(&fake);
    fake_peer_close(&admin);
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
    fake_shards_up(&fake, 3);
    Cairn__ClusterAdopted *adopted = fake_call(&admin, ClusterAdopted, ClusterAdopt);
    ck_assert_uint_eq(adopted->n_jobs, 1);
    ck_assert_str_eq(adopted->jobs[0]->refused, "");
    ck_assert_uint_eq(toy()->layout->version, 2);
    ck_assert_uint_eq(toy()->entry_count, 3);
}

SUITE(60, open_three, close_fake);
