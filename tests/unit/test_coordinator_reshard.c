/* A job moves to other shards while it goes on: over fake shards, which prepare, switch and settle what they
 * are told. What they move is nothing; who is asked what, and when, is all that counts here. */
#include <check.h>
#include <string.h>

#include "server/coordinator/base.h"
#include "server/coordinator/members.h"
#include "tests/support/fake_move.h"
#include "tests/support/reshard_toy.h"
#include "tests/support/suite.h"

/* ---- the run ---- */

TEST(a_shard_joins_and_gets_its_share_while_steps_go_on)
{
    apply_shards(3);
    train_until_ended();
    ck_assert_int_eq(toy()->reshard.progress.state, CAIRN_RESHARD_DONE);
    ck_assert(owns(0) && owns(1) && owns(2));
    ck_assert(fake.shards[2].has_job && fake.shards[2].move.movers > 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(fake.shards[i].move.settled, toy()->layout->version);
        ck_assert_mem_eq(fake.shards[i].layout->hash, toy()->layout->hash, 32);
    }
    ck_assert_uint_eq(w.layout.version, toy()->layout->version);
    ck_assert_uint_eq(w.layout.shards, 3);
    expect_state("done");
    train();
}

TEST(a_round_that_is_open_ends_before_the_layout_comes_into_force)
{
    fake.shards[0].holds_reduced = true;
    const uint64_t round = fake_begin(&w, job);
    apply_shards(3);
    fake_until(&fake, round_layout_pending(toy()->core) != 0);
    ck_assert_uint_eq(toy()->layout->version, 1);
    fake.shards[0].holds_reduced = false;
    fake_shard_report_reduced(&fake.shards[0]);
    fake_commit(&w, job, round);
    fake_until(&fake, toy()->layout->version == 2);
    // Members hear of it before anything newer, and which version is the first of it.
    fake_expect_silence(&w, job);
    ck_assert_uint_eq(w.layout.version, 2);
    ck_assert_uint_eq(w.layout.since.step, 3);
    train_until_ended();
}

TEST(a_shard_is_drained_leaves_a_hole_and_is_told_to_end)
{
    const uint32_t request = fake_ask(&admin, MemberDrain, .name = s0, .wait = true);
    train_until(fake.shards[0].move.is_ended);
    fake_hear(&admin, Done, request);
    ck_assert(!fake.shards[0].has_job && toy()->shards[0].entry == NULL);
    ck_assert_uint_eq(toy()->entry_count, 1);
    train();
    fake_shard_away(&fake, 0);
    train();
    restart_coordinator();
    fake_shard_up(&fake, 1);
    attach_again();
    train();
    ck_assert_uint_eq(toy()->entry_count, 1);
}

TEST(at_rest_the_newest_version_is_published_anew)
{
    fake_peer_close(&w); // nobody trains
    expect_told(ask_reshard(CAIRN_RESHARD_APPLY, RESHARD_DRAIN(s1)));
    fake_until(&fake, ended());
    ck_assert_int_eq(toy()->reshard.progress.state, CAIRN_RESHARD_DONE);
    ck_assert_uint_ne(fake.shards[0].move.published, 0);
    ck_assert(!fake.shards[1].has_job);
    w = worker("w0");
    ck_assert_uint_eq(fake_attach(&w, 10, 0, 1), job);
    fake_expect_silence(&w, job);
    ck_assert_uint_eq(w.layout.times, 0); // Attached has the layout in force
    train();
}

/* No round opens while it waits for that, and the one that ends lets the next one open. */
TEST(a_round_that_publishes_it_before_that_comes_to_it_lets_the_run_go_on_once)
{
    expect_told(ask_reshard(CAIRN_RESHARD_APPLY, RESHARD_DRAIN(s1)));
    fake_until(&fake, toy()->layout->version == 2 &&
                          move_stage_of(toy()->reshard.move) == CAIRN_MOVE_REST);
    const uint64_t round = fake_begin(&w, job);
    toy()->rounds.pace.seen_us = 1; // long ago
    fake_until(&fake, toy()->reshard.publishing);
    fake_commit(&w, job, round);
    train_until_ended();
    ck_assert_int_eq(toy()->reshard.progress.state, CAIRN_RESHARD_DONE);
    ck_assert(!fake.shards[1].has_job);
    train();
}

TEST(who_comes_in_between_begins_with_the_layout_of_the_newest_version)
{
    begin_slice();
    struct fake_peer reader = fake_connect(&fake, CAIRN_ROLE_WIRE_READER, "r");
    const uint32_t request = fake_ask(&reader, JobOpen, .name = toy_name,
                                      .role = CAIRN_ROLE_WIRE_READER, .session = 77);
    Cairn__Attached *attached = fake_hear(&reader, Attached, request);
    ck_assert_uint_eq(attached->n_shards, 2);
    ck_assert_uint_eq(attached->step, 1);
    fake_expect_silence(&reader, job);
    ck_assert_uint_eq(reader.layout.version, 2);
    ck_assert_uint_eq(reader.layout.since.step, 2);
    end_slice();
    train_until_ended();
    fake_peer_close(&reader);
}

/* ---- the end before the end ---- */

TEST(a_cancel_ends_the_slice_that_is_under_way_and_begins_no_other)
{
    begin_slice();
    cancel_reshard();
    expect_state("moving");
    end_slice();
    train_until_ended();
    expect_state("canceled");
    fake_expect_error(&admin, ask_reshard(CAIRN_RESHARD_CANCEL), CAIRN_ERR_NOT_FOUND,
                      "nothing to cancel");
    train();
}

TEST(a_cancel_ends_the_drain_that_began_it)
{
    fake.shards[1].move.holds_moved = true;
    const uint32_t request = fake_ask(&admin, MemberDrain, .name = s0, .wait = true);
    fake_until(&fake, toy()->layout->version == 2);
    const uint32_t canceled = ask_reshard(CAIRN_RESHARD_CANCEL);
    fake_expect_error(&admin, request, CAIRN_ERR_CANCELED, "not drained: it was canceled");
    expect_told(canceled);
    end_move(1);
    train_until_ended();
    tick_fast();
    fake_pumps(&fake, 50);
    ck_assert(ended() && fake.shards[0].has_job && !fake.shards[0].move.is_ended);
    expect_state("canceled");
    fake_until(&fake, fake.cluster->saves.list == NULL);
    restart_coordinator();
    ck_assert(!coord_shard_find(fake.cluster, s0)->leaving);
}

TEST(an_answer_of_a_slice_that_was_taken_back_is_none_to_the_next_of_that_number)
{
    const Cairn__Done done = CAIRN__DONE__INIT;
    begin_prepare(1);
    const uint32_t late = fake.shards[1].move.request;
    cancel_reshard();
    fake_until(&fake, ended() && fake.shards[1].move.next == NULL);
    apply_shards(3);
    fake_until(&fake, fake.shards[1].move.next != NULL);
    fake_send(&fake.shards[1].peer, CAIRN_MSG_DONE, late, &done.base);
    fake_pumps(&fake, 50);
    ck_assert_uint_eq(round_layout_pending(toy()->core), 0);
    ck_assert_uint_eq(toy()->layout->version, 1);
    end_prepare(1);
    train_until_ended();
    expect_state("done");
}

TEST(what_is_only_prepared_is_taken_back_by_a_cancel)
{
    begin_prepare(1);
    cancel_reshard();
    fake_until(&fake, ended());
    expect_state("canceled");
    ck_assert_uint_eq(toy()->layout->version, 1);
    ck_assert_uint_eq(toy()->entry_count, 2);
    fake_until(&fake, fake.shards[0].move.next == NULL && !fake.shards[2].has_job);
    train();
}

TEST(a_shard_that_is_busy_is_asked_again_with_the_next_tick)
{
    fake.shards[1].move.refuse = "a round is at work";
    fake.shards[1].move.refuse_status = CAIRN_ERR_BUSY;
    apply_shards(3);
    fake_until(&fake, toy()->reshard.is_refused);
    ck_assert_ptr_nonnull(strstr(toy()->reshard.progress.text.text, "a round is at work"));
    fake.shards[1].move.refuse = NULL;
    train_until_ended();
    expect_state("done");
    ck_assert_uint_eq(toy()->reshard.progress.slice, toy()->reshard.progress.slices);
}

TEST(who_asks_for_it_is_told_when_it_is_in_the_store)
{
    for (int all = 0; all < 2; all++) {
        const uint32_t shards = all ? 2 : 3;
        hold_disk();
        const uint32_t request = ask_reshard(CAIRN_RESHARD_APPLY, .shards = shards, .all = all);
        fake_until(&fake, toy()->reshard.running);
        const Cairn__ReshardJob *told = expect_told(
            ask_reshard(CAIRN_RESHARD_STATUS)); // the first that comes
        ck_assert_str_eq(told->state, "moving");
        ck_assert_uint_eq(told->shards_after, shards);
        release_disk();
        expect_told(request);
        train_until_ended();
    }
}

TEST(it_is_told_for_which_shard_a_slice_waits)
{
    fake.shards[1].move.holds_prepare = fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    fake_until(&fake, fake.shards[1].move.next != NULL && fake.shards[2].move.next != NULL);
    fake_pumps(&fake, 50);
    expect_text("it waits for shard s1 to make room for what comes");
    end_prepare(1);
    fake_until(&fake, toy()->layout->version == 2);
    fake_pumps(&fake, 50);
    expect_text("it waits for shard s2 to have all that it owns");
    end_slice();
    train_until_ended();
}

TEST(a_shard_that_has_no_room_ends_it_and_the_job_goes_on)
{
    fake.shards[2].move.refuse = "it needs 5 bytes and has 4";
    apply_shards(3);
    fake_until(&fake, ended());
    expect_state("failed");
    ck_assert_ptr_nonnull(strstr(toy()->reshard.progress.text.text, "it needs 5 bytes and has 4"));
    fake_until(&fake, !fake.shards[2].has_job);
    train();
}

/* ---- what waits ---- */

TEST(a_snapshot_waits_for_the_slice_and_the_next_slice_for_the_snapshot)
{
    begin_slice();
    const uint32_t request = ask_snapshot(&admin, true);
    fake_until(&fake, toy()->snapshots.running != NULL);
    fake_pumps(&fake, 50);
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_PIN], 0);
    end_slice();
    Cairn__SnapshotStatus *status = expect_snapshot(request);
    ck_assert_uint_eq(status->shards, 3);
    train_until_ended();
}

TEST(an_amendment_of_tensors_waits_for_the_slice_and_the_run_goes_on_after_it)
{
    begin_slice();
    const uint32_t request = fake_amend_more(&w, job, 5);
    fake_until(&fake, toy()->amends.extension.staged_job != NULL);
    fake_pumps(&fake, 50);
    ck_assert_int_eq(coord_stage(toy(), CAIRN_OPERATION_EXTEND), CAIRN_STAGE_EXTENDING);
    end_slice();
    fake_expect_amended(&w, request, 1);
    ck_assert_uint_eq(toy()->spec.tensor_count, 3);
    ck_assert_uint_eq(toy()->entry_count, 3);
    fake_until(&fake, ended());
}

TEST(a_restore_ends_it_and_takes_all_shards)
{
    Cairn__SnapshotStatus *taken = take_snapshot();
    begin_slice();
    expect_snapshot(ask_restore("toy", taken->id, ""));
    ck_assert(!toy()->reshard.running);
    ck_assert_uint_eq(toy()->entry_count, 3);
    ck_assert_uint_eq(toy()->layout->version, 1);
}

TEST(a_drop_takes_the_job_off_shards_that_join_too)
{
    begin_slice();
    drop();
    ck_assert(!fake.shards[0].has_job && !fake.shards[1].has_job && !fake.shards[2].has_job);
}

/* The shard that has joined holds the layout until its first slice, for which the parking must not wait. */
TEST(a_job_that_is_to_be_parked_while_a_shard_joins_gets_the_slice_and_is_parked)
{
    Cairn__JobPark park = CAIRN__JOB_PARK__INIT;
    park.name = toy_name;
    park.parked = true;
    fake.shards[2].holds_create = true;
    apply_shards(3);
    fake_until(&fake, coord_stage(toy(), CAIRN_OPERATION_RESHARD) == CAIRN_STAGE_JOINING);
    const uint32_t request = fake_request(&admin, CAIRN_MSG_JOB_PARK, &park.base);
    fake_until(&fake, coord_stage(toy(), CAIRN_OPERATION_PARK) == CAIRN_STAGE_PARKING);
    fake.shards[2].holds_create = false;
    fake_shard_release(&fake.shards[2]);
    fake_hear(&admin, JobParked, request);
    ck_assert_uint_gt(toy()->layout->version, 1);
    park.parked = false;
    fake_hear(&admin, JobParked, fake_request(&admin, CAIRN_MSG_JOB_PARK, &park.base));
    train_until_ended();
    ck_assert(owns(0) && owns(1) && owns(2));
}

SUITE(60, open_three, close_fake);
