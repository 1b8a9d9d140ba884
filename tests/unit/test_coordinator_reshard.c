/* A job moves to other shards while it goes on: over fake shards, which prepare, switch and settle what they
 * are told. What they move is nothing; who is asked what, and when, is all that counts here. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/pool.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/member/seats.h"
#include "server/coordinator/seating.h"
#include "tests/support/fake_move.h"
#include "tests/support/fake_shard.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

/* ---- what is asked ---- */

static char s0[] = "s0", s1[] = "s1", s2[] = "s2", toy_name[] = "toy";

static Cairn__ReshardAsk question(uint32_t op)
{
    Cairn__ReshardAsk ask = CAIRN__RESHARD_ASK__INIT;
    ask.job = toy_name;
    ask.op = op;
    return ask;
}

static uint32_t ask(const Cairn__ReshardAsk *message)
{
    return fake_request(&admin, CAIRN_MSG_RESHARD_ASK, &message->base);
}

static Cairn__ReshardTold *expect_told(uint32_t request)
{
    Cairn__ReshardTold *told = fake_expect(&fake, &admin, CAIRN_MSG_RESHARD_TOLD, request);
    ck_assert_uint_eq(told->n_jobs, 1);
    return told;
}

static void apply_shards(uint32_t shards)
{
    Cairn__ReshardAsk message = question(CAIRN_RESHARD_APPLY);
    message.shards = shards;
    cairn_message_free(&expect_told(ask(&message))->base);
}

static void expect_refused(const Cairn__ReshardAsk *message, cairn_status status, const char *word)
{
    fake_expect_error(&fake, &admin, ask(message), status, word);
}

static void expect_state(const char *state)
{
    const Cairn__ReshardAsk message = question(CAIRN_RESHARD_STATUS);
    Cairn__ReshardTold *told = expect_told(ask(&message));
    ck_assert_str_eq(told->jobs[0]->state, state);
    cairn_message_free(&told->base);
}

/* ---- a disk that stands still ---- */

static uv_sem_t disk;

static void on_disk(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    (void)task;
    (void)item;
    (void)thread;
    uv_sem_wait(&disk);
}

static void on_disk_done(struct cairn_task *task)
{
    (void)task;
}

/* Nothing is stored from here on until the disk is released. */
static void hold_disk(void)
{
    static struct cairn_task task;
    task = (struct cairn_task) { .run = on_disk, .done = on_disk_done, .item_count = 1 };
    ck_assert_int_eq(uv_sem_init(&disk, 0), 0);
    cairn_pool_submit(toy()->cluster->saves.pool, &task);
}

static void release_disk(void)
{
    uv_sem_post(&disk);
}

/* ---- what comes of it ---- */

static bool owns(uint32_t shard)
{
    const struct cairn_layout *l = toy()->layout;
    return shard < l->shard_count && l->shard_extents[shard + 1] > l->shard_extents[shard];
}

static uint32_t owners(void)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < toy()->layout->shard_count; i++) count += owns(i);
    return count;
}

static bool ended(void)
{
    return !toy()->reshard.running;
}

/* Steps until the run has ended: slices come between them. */
static void train_until_ended(void)
{
    for (int i = 0; i < 50 && !ended(); i++) {
        train();
        for (int k = 0; k < 20; k++) fake_pump(&fake);
    }
    fake_until(&fake, ended());
}

static void open_three(void)
{
    open_ticking();
    fake_shard_up(&fake, 2);
}

/* ---- the run ---- */

TEST(a_shard_joins_and_gets_its_share_while_steps_go_on)
{
    apply_shards(3);
    train_until_ended();
    ck_assert_int_eq(toy()->reshard.told.state, CAIRN_RESHARD_DONE);
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
    const uint64_t round = fake_begin(&fake, &w, job);
    apply_shards(3);
    fake_until(&fake, cairn_round_layout_pending(toy()->core) != 0);
    ck_assert_uint_eq(toy()->layout->version, 1);
    fake.shards[0].holds_reduced = false;
    fake_shard_report_reduced(&fake.shards[0]);
    fake_commit(&fake, &w, job, round);
    fake_until(&fake, toy()->layout->version == 2);
    // Members hear of it before anything newer, and which version is the first of it.
    fake_expect_silence(&fake, &w, job);
    ck_assert_uint_eq(w.layout.version, 2);
    ck_assert_uint_eq(w.layout.since.step, 3);
    train_until_ended();
}

TEST(a_shard_is_drained_leaves_a_hole_and_is_told_to_end)
{
    Cairn__MemberDrain drain = CAIRN__MEMBER_DRAIN__INIT;
    drain.name = s0;
    drain.wait = true;
    const uint32_t request = fake_request(&admin, CAIRN_MSG_MEMBER_DRAIN, &drain.base);
    for (int i = 0; i < 50 && !fake.shards[0].move.is_ended; i++) {
        train();
        for (int k = 0; k < 20; k++) fake_pump(&fake);
    }
    cairn_message_free(fake_expect(&fake, &admin, CAIRN_MSG_DONE, request));
    ck_assert(!fake.shards[0].has_job && toy()->shards[0].seat == NULL);
    ck_assert_uint_eq(toy()->seat_count, 1);
    train();
    fake_shard_away(&fake, 0);
    train();
    restart_coordinator();
    fake_shard_up(&fake, 1);
    come_again("w0");
    ck_assert_uint_eq(fake_attach(&fake, &w, 10, 0, 1), job);
    train();
    ck_assert_uint_eq(toy()->seat_count, 1);
}

TEST(at_rest_the_newest_version_is_published_anew)
{
    fake_peer_close(&w); // nobody trains
    Cairn__ReshardAsk message = question(CAIRN_RESHARD_APPLY);
    char *const drained[] = { s1 };
    message.drain = (char **)(uintptr_t)drained;
    message.n_drain = 1;
    cairn_message_free(&expect_told(ask(&message))->base);
    fake_until(&fake, ended());
    ck_assert_int_eq(toy()->reshard.told.state, CAIRN_RESHARD_DONE);
    ck_assert_uint_ne(fake.shards[0].move.published, 0);
    ck_assert(!fake.shards[1].has_job);
    w = worker("w0");
    ck_assert_uint_eq(fake_attach(&fake, &w, 10, 0, 1), job);
    fake_expect_silence(&fake, &w, job);
    ck_assert_uint_eq(w.layout.times, 0); // Attached has the layout in force
    train();
}

/* No round opens while it waits for that, and the one that ends lets the next one open. */
TEST(a_round_that_publishes_it_before_that_comes_to_it_lets_the_run_go_on_once)
{
    Cairn__ReshardAsk message = question(CAIRN_RESHARD_APPLY);
    char *const drained[] = { s1 };
    message.drain = (char **)(uintptr_t)drained;
    message.n_drain = 1;
    cairn_message_free(&expect_told(ask(&message))->base);
    fake_until(&fake, toy()->layout->version == 2 &&
                          cairn_move_stage_of(toy()->reshard.move) == CAIRN_MOVE_REST);
    const uint64_t round = fake_begin(&fake, &w, job);
    toy()->pace.seen_us = 1; // long ago
    fake_until(&fake, toy()->reshard.publishing);
    fake_commit(&fake, &w, job, round);
    train_until_ended();
    ck_assert_int_eq(toy()->reshard.told.state, CAIRN_RESHARD_DONE);
    ck_assert(!fake.shards[1].has_job);
    train();
}

TEST(who_comes_in_between_begins_with_the_layout_of_the_newest_version)
{
    fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    fake_until(&fake, toy()->layout->version == 2);
    struct fake_peer reader = fake_connect(&fake, CAIRN_ROLE_WIRE_READER, "r");
    Cairn__JobOpen open = CAIRN__JOB_OPEN__INIT;
    open.name = toy_name;
    open.role = CAIRN_ROLE_WIRE_READER;
    open.session = 77;
    const uint32_t request = fake_request(&reader, CAIRN_MSG_JOB_OPEN, &open.base);
    Cairn__Attached *attached = fake_expect(&fake, &reader, CAIRN_MSG_ATTACHED, request);
    ck_assert_uint_eq(attached->n_shards, 2);
    ck_assert_uint_eq(attached->step, 1);
    cairn_message_free(&attached->base);
    fake_expect_silence(&fake, &reader, job);
    ck_assert_uint_eq(reader.layout.version, 2);
    ck_assert_uint_eq(reader.layout.since.step, 2);
    fake.shards[2].move.holds_moved = false;
    fake_move_release(&fake.shards[2]);
    train_until_ended();
    fake_peer_close(&reader);
}

/* ---- the end before the end ---- */

TEST(a_cancel_ends_the_slice_that_is_under_way_and_begins_no_other)
{
    fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    fake_until(&fake, toy()->layout->version == 2);
    const Cairn__ReshardAsk cancel = question(CAIRN_RESHARD_CANCEL);
    cairn_message_free(&expect_told(ask(&cancel))->base);
    expect_state("moving");
    fake.shards[2].move.holds_moved = false;
    fake_move_release(&fake.shards[2]);
    train_until_ended();
    expect_state("canceled");
    expect_refused(&cancel, CAIRN_ERR_NOT_FOUND, "nothing to cancel");
    train();
}

TEST(a_cancel_ends_the_drain_that_began_it)
{
    Cairn__MemberDrain drain = CAIRN__MEMBER_DRAIN__INIT;
    drain.name = s0;
    drain.wait = true;
    fake.shards[1].move.holds_moved = true;
    const uint32_t request = fake_request(&admin, CAIRN_MSG_MEMBER_DRAIN, &drain.base);
    fake_until(&fake, toy()->layout->version == 2);
    const Cairn__ReshardAsk cancel = question(CAIRN_RESHARD_CANCEL);
    const uint32_t canceled = ask(&cancel);
    fake_expect_error(&fake, &admin, request, CAIRN_ERR_CANCELED, "not drained: it was canceled");
    cairn_message_free(&expect_told(canceled)->base);
    fake.shards[1].move.holds_moved = false;
    fake_move_release(&fake.shards[1]);
    train_until_ended();
    tick_fast();
    for (int k = 0; k < 50; k++) fake_pump(&fake);
    ck_assert(ended() && fake.shards[0].has_job && !fake.shards[0].move.is_ended);
    expect_state("canceled");
    fake_until(&fake, fake.cluster->saves.list == NULL);
    restart_coordinator();
    ck_assert(!cairn_cluster_seat_find(fake.cluster, s0)->leaving);
}

TEST(an_answer_of_a_slice_that_was_taken_back_is_none_to_the_next_of_that_number)
{
    const Cairn__ReshardAsk cancel = question(CAIRN_RESHARD_CANCEL);
    const Cairn__Done done = CAIRN__DONE__INIT;
    fake.shards[1].move.holds_prepare = true;
    apply_shards(3);
    fake_until(&fake, fake.shards[1].move.next != NULL);
    const uint32_t late = fake.shards[1].move.request;
    cairn_message_free(&expect_told(ask(&cancel))->base);
    fake_until(&fake, ended() && fake.shards[1].move.next == NULL);
    apply_shards(3);
    fake_until(&fake, fake.shards[1].move.next != NULL);
    fake_send(&fake.shards[1].peer, CAIRN_MSG_DONE, late, &done.base);
    for (int k = 0; k < 50; k++) fake_pump(&fake);
    ck_assert_uint_eq(cairn_round_layout_pending(toy()->core), 0);
    ck_assert_uint_eq(toy()->layout->version, 1);
    fake.shards[1].move.holds_prepare = false;
    fake_move_prepared(&fake.shards[1]);
    train_until_ended();
    expect_state("done");
}

TEST(what_is_only_prepared_is_taken_back_by_a_cancel)
{
    fake.shards[1].move.holds_prepare = true;
    apply_shards(3);
    fake_until(&fake, fake.shards[1].move.next != NULL);
    const Cairn__ReshardAsk cancel = question(CAIRN_RESHARD_CANCEL);
    cairn_message_free(&expect_told(ask(&cancel))->base);
    fake_until(&fake, ended());
    expect_state("canceled");
    ck_assert_uint_eq(toy()->layout->version, 1);
    ck_assert_uint_eq(toy()->seat_count, 2);
    fake_until(&fake, fake.shards[0].move.next == NULL && !fake.shards[2].has_job);
    train();
}

TEST(a_shard_that_is_busy_is_asked_again_with_the_next_tick)
{
    fake.shards[1].move.refuse = "a round is at work";
    fake.shards[1].move.refuse_status = CAIRN_ERR_BUSY;
    apply_shards(3);
    fake_until(&fake, toy()->reshard.rests);
    ck_assert_ptr_nonnull(strstr(toy()->reshard.told.text.text, "a round is at work"));
    fake.shards[1].move.refuse = NULL;
    train_until_ended();
    expect_state("done");
    ck_assert_uint_eq(toy()->reshard.told.slice, toy()->reshard.told.slices);
}

TEST(who_asks_for_it_is_told_when_it_is_in_the_store)
{
    Cairn__ReshardAsk apply = question(CAIRN_RESHARD_APPLY);
    const Cairn__ReshardAsk status = question(CAIRN_RESHARD_STATUS);
    for (int all = 0; all < 2; all++) {
        apply.shards = all ? 2 : 3;
        apply.all = all;
        hold_disk();
        const uint32_t request = ask(&apply);
        fake_until(&fake, toy()->reshard.running);
        Cairn__ReshardTold *told = expect_told(ask(&status)); // the first that comes
        ck_assert_str_eq(told->jobs[0]->state, "moving");
        ck_assert_uint_eq(told->jobs[0]->shards_after, apply.shards);
        cairn_message_free(&told->base);
        release_disk();
        cairn_message_free(&expect_told(request)->base);
        train_until_ended();
    }
}

static void expect_text(const char *text)
{
    const Cairn__ReshardAsk message = question(CAIRN_RESHARD_STATUS);
    Cairn__ReshardTold *told = expect_told(ask(&message));
    ck_assert_str_eq(told->jobs[0]->text, text);
    cairn_message_free(&told->base);
}

TEST(it_is_told_for_which_shard_a_slice_waits)
{
    fake.shards[1].move.holds_prepare = fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    fake_until(&fake, fake.shards[1].move.next != NULL && fake.shards[2].move.next != NULL);
    for (int k = 0; k < 50; k++) fake_pump(&fake);
    expect_text("it waits for shard s1 to make room for what comes");
    fake.shards[1].move.holds_prepare = false;
    fake_move_prepared(&fake.shards[1]);
    fake_until(&fake, toy()->layout->version == 2);
    for (int k = 0; k < 50; k++) fake_pump(&fake);
    expect_text("it waits for shard s2 to have all that it owns");
    fake.shards[2].move.holds_moved = false;
    fake_move_release(&fake.shards[2]);
    train_until_ended();
}

TEST(a_shard_that_has_no_room_ends_it_and_the_job_goes_on)
{
    fake.shards[2].move.refuse = "it needs 5 bytes and has 4";
    apply_shards(3);
    fake_until(&fake, ended());
    expect_state("failed");
    ck_assert_ptr_nonnull(strstr(toy()->reshard.told.text.text, "it needs 5 bytes and has 4"));
    fake_until(&fake, !fake.shards[2].has_job);
    train();
}

/* ---- deaths ---- */

static void check_that_a_joiner_goes(int silent)
{
    fake.shards[silent].move.holds_prepare = true;
    apply_shards(3);
    fake_until(&fake, fake.shards[silent].move.next != NULL);
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
    fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    fake_until(&fake, toy()->layout->version == 2);
    fake_shard_forget(&fake, 2);
    fake_until(&fake, toy()->layout->version == 3);
    ck_assert(owns(0) && owns(1) && !owns(2));
    fake_until(&fake, fake.shards[0].move.settled == 3);
    train_until_ended();
    expect_state("done");
    ck_assert(owns(0) && owns(1) && !owns(2)); // what was planned is not what follows
    ck_assert_uint_eq(toy()->seat_count, 2);
}

TEST(a_fresh_taker_that_was_given_up_is_left_out_though_it_comes_back)
{
    fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    fake_until(&fake, toy()->layout->version == 2);
    fake_shard_away(&fake, 0); // without it there is no way back
    fake_shard_away(&fake, 2);
    fake_until(&fake, cairn_move_stage_of(toy()->reshard.move) == CAIRN_MOVE_LOST);
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
    Cairn__ReshardAsk message = question(CAIRN_RESHARD_APPLY);
    char *const drained[] = { s2 };
    message.drain = (char **)(uintptr_t)drained;
    message.n_drain = 1;
    cairn_message_free(&expect_told(ask(&message))->base);
    for (int i = 0; i < 50 && owns(2); i++) {
        train();
        for (int k = 0; k < 5; k++) fake_pump(&fake);
    }
    const Cairn__ReshardAsk cancel = question(CAIRN_RESHARD_CANCEL);
    const uint32_t request = ask(&cancel);
    for (int i = 0; i < 50; i++) fake_pump(&fake);
    (void)request;
    train(); // nobody fetches from it any more
    if (toy()->seat_count == 3) fake_shard_forget(&fake, 2);
    fake_until(&fake, toy()->seat_count == 2);
    train();
}

/* What ends a run does so once: the shard that owns nothing stays, as nobody sends it away. */
TEST(a_cancel_that_takes_a_joiner_back_ends_the_run_and_does_no_more)
{
    Cairn__ReshardAsk message = question(CAIRN_RESHARD_APPLY);
    const Cairn__ReshardAsk cancel = question(CAIRN_RESHARD_CANCEL);
    char *drained[] = { s1 }, *added[] = { s2 };
    message.drain = drained;
    message.n_drain = 1;
    fake.shards[0].move.holds_moved = true;
    cairn_message_free(&expect_told(ask(&message))->base);
    fake_until(&fake, !owns(1));
    cairn_message_free(&expect_told(ask(&cancel))->base);
    fake.shards[0].move.holds_moved = false;
    fake_move_release(&fake.shards[0]);
    train_until_ended();
    ck_assert_uint_eq(toy()->seat_count, 2);
    fake.shards[0].move.holds_prepare = true;
    message = question(CAIRN_RESHARD_APPLY);
    message.add = added;
    message.n_add = 1;
    cairn_message_free(&expect_told(ask(&message))->base);
    fake_until(&fake, fake.shards[0].move.next != NULL);
    fake.shards[0].move.holds_prepare = false;
    cairn_message_free(&expect_told(ask(&cancel))->base);
    fake_until(&fake, ended());
    for (int i = 0; i < 3; i++) train();
    ck_assert_uint_eq(toy()->seat_count, 2);
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
        restart_coordinator();
        tick_fast();
        fake.shards[2].holds_create = false;
        fake.shards[1].move.holds_prepare = fake.shards[2].move.holds_moved = false;
        fake_shards_up(&fake, 3);
        come_again("w0");
        ck_assert_uint_eq(fake_attach(&fake, &w, 10, 0, 1), job);
        train_until_ended();
        ck_assert_msg(owners() == 3, "at %d: %s", point, toy()->reshard.told.text.text);
        ck_assert_uint_lt(toy()->reshard.told.stage_us[CAIRN_MOVE_MOVING], UINT64_C(100000000));
        // Back to two, for the next point.
        Cairn__ReshardAsk message = question(CAIRN_RESHARD_APPLY);
        char *const drained[] = { s2 };
        message.drain = (char **)(uintptr_t)drained;
        message.n_drain = 1;
        cairn_message_free(&expect_told(ask(&message))->base);
        train_until_ended();
        ck_assert_uint_eq(toy()->seat_count, 2);
    }
}

/* Said yes to when the store has it. */
TEST(a_coordinator_that_starts_again_goes_on_with_a_drain)
{
    Cairn__MemberDrain drain = CAIRN__MEMBER_DRAIN__INIT;
    const Cairn__ReshardAsk status = question(CAIRN_RESHARD_STATUS);
    drain.name = s0;
    fake.shards[1].move.holds_moved = true;
    hold_disk();
    const uint32_t request = fake_request(&admin, CAIRN_MSG_MEMBER_DRAIN, &drain.base);
    cairn_message_free(&expect_told(ask(&status))->base); // the first that comes
    release_disk();
    cairn_message_free(fake_expect(&fake, &admin, CAIRN_MSG_DONE, request));
    fake_until(&fake, toy()->layout->version == 2);
    restart_coordinator();
    tick_fast();
    fake.shards[1].move.holds_moved = false;
    fake_shards_up(&fake, 3);
    come_again("w0");
    ck_assert_uint_eq(fake_attach(&fake, &w, 10, 0, 1), job);
    for (int i = 0; i < 50 && !fake.shards[0].move.is_ended; i++) {
        train();
        for (int k = 0; k < 20; k++) fake_pump(&fake);
    }
    fake_until(&fake, fake.shards[0].move.is_ended);
    fake_shard_away(&fake, 0);
    train();
    fake_until(&fake, fake.cluster->saves.list == NULL);
    restart_coordinator(); // it does not leave any more
    ck_assert_ptr_null(cairn_cluster_seat_find(fake.cluster, s0));
}

/* The layout is in the store, and nobody was fenced with it: all have it prepared only. */
TEST(a_coordinator_that_ends_before_its_fences_are_heard_loses_nothing)
{
    fake.shards[0].move.holds_prepare = true;
    apply_shards(3);
    for (int i = 0; i < 3; i++) fake_until(&fake, fake.shards[i].move.next != NULL);
    fake.shards[0].move.holds_prepare = false;
    fake_move_prepared(&fake.shards[0]);
    for (int i = 0; i < 3; i++) fake.shards[i].dead = true;
    fake_until(&fake, toy()->layout->version == 2);
    restart_coordinator();
    tick_fast();
    for (int i = 0; i < 3; i++) ck_assert_uint_le(fake.shards[i].layout->version, 1);
    fake_shards_up(&fake, 3);
    come_again("w0");
    ck_assert_uint_eq(fake_attach(&fake, &w, 10, 0, 1), job);
    train_until_ended();
    ck_assert_uint_eq(owners(), 3);
}

TEST(an_old_owner_that_is_away_for_a_while_is_waited_for)
{
    fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    fake_until(&fake, toy()->layout->version == 2);
    fake_shard_away(&fake, 0);
    fake_shard_up(&fake, 0);
    fake.shards[2].move.holds_moved = false;
    train_until_ended();
    ck_assert_int_eq(toy()->reshard.told.state, CAIRN_RESHARD_DONE);
    train();
}

/* Without it no fence can go out, and the layout is durable. */
TEST(a_fresh_taker_that_dies_while_the_layout_is_being_stored_is_left_out_again)
{
    apply_shards(3);
    fake_until(&fake, toy()->layouts.storing);
    cairn_cluster_seat_leave(toy()->shards[2].seat->session, CAIRN_ERR_CLOSED, "it dies");
    fake_until(&fake, toy()->layout->version == 2);
    ck_assert_uint_eq(fake.shards[0].layout->version, 1);
    fake_shard_forget(&fake, 2);
    fake_until(&fake, toy()->layout->version == 3);
    ck_assert(owns(0) && owns(1) && !owns(2));
    fake_until(&fake, fake.shards[0].move.settled == 3 && fake.shards[1].move.settled == 3);
    ck_assert_uint_eq(toy()->seat_count, 2);
    train();
}

/* It is asked for what it holds only once, and then the layout that has it is not in force yet. */
TEST(a_fresh_taker_that_is_back_while_the_layout_is_being_stored_is_left_out_again)
{
    fake.shards[0].move.holds_prepare = true;
    apply_shards(3);
    for (int i = 0; i < 3; i++) fake_until(&fake, fake.shards[i].move.next != NULL);
    hold_disk();
    fake_move_prepared(&fake.shards[0]);
    fake_until(&fake, toy()->layouts.storing);
    fake.shards[0].move.holds_prepare = false;
    fake_shard_forget(&fake, 2);
    fake_shard_up(&fake, 2);
    release_disk();
    fake_until(&fake, toy()->layout->version == 3);
    fake_until(&fake, fake.shards[0].move.settled == 3 && fake.shards[1].move.settled == 3);
    ck_assert_uint_eq(toy()->seat_count, 2);
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
    ck_assert_uint_eq(fake_attach(&fake, &w, 10, 0, 1), job);
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
    fake_until(&fake, toy()->seat_count == 2);
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
    fake_until(&fake, toy()->seat_count == 2 && fake.shards[0].layout->version == 4);
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
    Cairn__ReshardAsk message = question(CAIRN_RESHARD_APPLY);
    char *drained[] = { s1 }, *added[] = { s2 };
    message.drain = drained;
    message.add = added;
    message.n_drain = message.n_add = 1;
    for (int i = 0; i < 3; i++) fake.shards[i].move.holds_moved = true;
    cairn_message_free(&expect_told(ask(&message))->base);
    fake_until(&fake, !owns(1) && fake.shards[0].layout->version == toy()->layout->version);
    fake_shard_forget(&fake, 2);
    fake_until(&fake, owns(1) && fake.shards[0].layout->version == toy()->layout->version);
    fake_shard_forget(&fake, 1);
    fake_shard_up(&fake, 1);
    fake_until(&fake, toy()->state == CAIRN_CLUSTER_JOB_LOST);
}

/* It owns nothing, and others do not have what it gave. */
TEST(a_giver_that_dies_before_all_are_whole_is_not_left_out)
{
    Cairn__ReshardAsk message = question(CAIRN_RESHARD_APPLY);
    char *const drained[] = { s1 };
    message.drain = (char **)(uintptr_t)drained;
    message.n_drain = 1;
    fake.shards[0].move.holds_moved = true;
    cairn_message_free(&expect_told(ask(&message))->base);
    fake_until(&fake, !owns(1) && fake.shards[0].layout->version == toy()->layout->version);
    const uint64_t version = toy()->layout->version;
    fake_shard_forget(&fake, 1);
    fake_shard_up(&fake, 1);
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
    Cairn__ClusterAdopt adopt = CAIRN__CLUSTER_ADOPT__INIT;
    const uint32_t request = fake_request(&admin, CAIRN_MSG_CLUSTER_ADOPT, &adopt.base);
    Cairn__ClusterAdopted *adopted = fake_expect(&fake, &admin, CAIRN_MSG_CLUSTER_ADOPTED, request);
    ck_assert_uint_eq(adopted->n_jobs, 1);
    ck_assert_str_eq(adopted->jobs[0]->refused, "");
    cairn_message_free(&adopted->base);
    ck_assert_uint_eq(toy()->layout->version, 2);
    ck_assert_uint_eq(toy()->seat_count, 3);
}

/* ---- what waits ---- */

TEST(a_snapshot_waits_for_the_slice_and_the_next_slice_for_the_snapshot)
{
    fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    fake_until(&fake, toy()->layout->version == 2);
    const uint32_t request = ask_snapshot(&admin, true);
    fake_until(&fake, toy()->snapshots.cut != NULL);
    for (int i = 0; i < 50; i++) fake_pump(&fake);
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_PIN], 0);
    fake.shards[2].move.holds_moved = false;
    fake_move_release(&fake.shards[2]);
    Cairn__SnapshotStatus *status = expect_snapshot(request);
    ck_assert_uint_eq(status->shards, 3);
    cairn_message_free(&status->base);
    train_until_ended();
}

TEST(an_amendment_of_tensors_waits_for_the_slice_and_the_run_goes_on_after_it)
{
    fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    fake_until(&fake, toy()->layout->version == 2);
    const uint32_t request = fake_amend_more(&w, job, 5);
    fake_until(&fake, toy()->extension.body != NULL);
    for (int i = 0; i < 50; i++) fake_pump(&fake);
    ck_assert(!toy()->extension.making);
    fake.shards[2].move.holds_moved = false;
    fake_move_release(&fake.shards[2]);
    fake_expect_amended(&fake, &w, request, 1);
    ck_assert_uint_eq(toy()->spec.tensor_count, 3);
    ck_assert_uint_eq(toy()->seat_count, 3);
    fake_until(&fake, ended());
}

TEST(a_restore_ends_it_and_takes_all_shards)
{
    Cairn__SnapshotStatus *taken = take_snapshot();
    fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    fake_until(&fake, toy()->layout->version == 2);
    cairn_message_free(&expect_snapshot(ask_restore("toy", taken->id, ""))->base);
    cairn_message_free(&taken->base);
    ck_assert(!toy()->reshard.running);
    ck_assert_uint_eq(toy()->seat_count, 3);
    ck_assert_uint_eq(toy()->layout->version, 1);
}

TEST(a_drop_takes_the_job_off_shards_that_join_too)
{
    fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    fake_until(&fake, toy()->layout->version == 2);
    drop();
    ck_assert(!fake.shards[0].has_job && !fake.shards[1].has_job && !fake.shards[2].has_job);
}

/* ---- refused ---- */

TEST(what_cannot_be_is_refused_with_a_sentence)
{
    Cairn__ReshardAsk message = question(CAIRN_RESHARD_PLAN);
    Cairn__ShardWeight weight = CAIRN__SHARD_WEIGHT__INIT, *weights[] = { &weight };
    char unknown[] = "nobody", *names[] = { unknown }, *all[] = { s0, s1 }, *more[] = { s2, s1 };
    message.shards = 9;
    expect_refused(&message, CAIRN_ERR_INVALID, "over 9 shards: 3 are here");
    message.shards = 0;
    message.add = names;
    message.n_add = 1;
    expect_refused(&message, CAIRN_ERR_NOT_FOUND, "no shard \"nobody\"");
    message.n_add = 0;
    message.add = more;
    message.n_add = 2;
    message.shards = 1;
    expect_refused(&message, CAIRN_ERR_INVALID, "2 shards are to be added, and 1 are to have");
    message.shards = 0;
    message.drain = all;
    message.n_drain = 2;
    expect_refused(&message, CAIRN_ERR_INVALID, "shard s1 is to be added and drained");
    message.n_add = 0;
    expect_refused(&message, CAIRN_ERR_INVALID, "no shard would be left");
    message.n_drain = 0;
    message.weights = weights;
    message.n_weights = 1;
    weight.name = s0;
    expect_refused(&message, CAIRN_ERR_INVALID, "--drain");
    weight.weight = NAN;
    expect_refused(&message, CAIRN_ERR_INVALID, "the weight of shard s0");
    message.n_weights = 0;
    message.pause = -1;
    expect_refused(&message, CAIRN_ERR_INVALID, "a pause of -1");
    message.pause = 0;
    message.op = 17;
    expect_refused(&message, CAIRN_ERR_INVALID, "17");
    message.op = CAIRN_RESHARD_APPLY;
    message.layout_hash = 5;
    expect_refused(&message, CAIRN_ERR_MISMATCH, "plan again");
    message.job = unknown;
    expect_refused(&message, CAIRN_ERR_NOT_FOUND, "no job \"nobody\"");
    fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    message = question(CAIRN_RESHARD_APPLY);
    expect_refused(&message, CAIRN_ERR_BUSY, "under way");
    expect_state("moving");
    Cairn__JobStatus *status = show_job("toy");
    ck_assert_ptr_nonnull(strstr(status->moving, "slice"));
    cairn_message_free(&status->base);
}

static void expect_all(const Cairn__ReshardAsk *message, const char *state, const char *word)
{
    Cairn__ReshardTold *told = expect_told(ask(message));
    ck_assert_str_eq(told->jobs[0]->state, state);
    ck_assert_ptr_nonnull(strstr(told->jobs[0]->text, word));
    cairn_message_free(&told->base);
}

TEST(of_all_jobs_one_that_it_cannot_be_for_is_told_as_refused)
{
    Cairn__ReshardAsk message = question(CAIRN_RESHARD_CANCEL);
    char unknown[] = "nobody", *names[] = { unknown }, *free_shard[] = { s2 };
    message.job = unknown;
    message.all = true;
    expect_all(&message, "refused", "nothing to cancel");
    message.op = CAIRN_RESHARD_PLAN;
    message.add = names;
    message.n_add = 1;
    expect_all(&message, "refused", "no shard \"nobody\"");
    message.n_add = 0;
    message.drain = free_shard;
    message.n_drain = 1;
    expect_all(&message, "planned", "");
    fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    message.op = CAIRN_RESHARD_APPLY;
    message.n_drain = 0;
    expect_all(&message, "refused", "under way");
}

TEST(a_plan_says_what_would_move_and_changes_nothing)
{
    Cairn__ReshardAsk message = question(CAIRN_RESHARD_PLAN);
    Cairn__ReshardTold *told = expect_told(ask(&message));
    const Cairn__ReshardJob *one = told->jobs[0];
    ck_assert_str_eq(one->state, "planned");
    ck_assert_uint_eq(one->n_pairs, 2);
    ck_assert_str_eq(one->pairs[0]->to, "s2");
    ck_assert_uint_eq(one->shards_after, 3);
    ck_assert(one->all_bytes > 0 && one->all_bytes <= one->least_bytes * 105 / 100);
    ck_assert(one->heaviest_after < one->heaviest_before);
    cairn_message_free(&told->base);
    expect_state("none");
}

static Cairn__Home *give_device(char *name, uint64_t bytes)
{
    struct cairn_cluster_seat *seat = cairn_cluster_seat_find(toy()->cluster, name);
    Cairn__Home *home = calloc(1, sizeof *home);
    cairn__home__init(home);
    home->backend = strdup("cuda");
    home->total_bytes = bytes;
    seat->memory_bytes = 64; // the host's
    return seat->session->home = home;
}

TEST(of_a_shard_with_a_device_its_memory_counts_and_what_lies_partly_there_stays)
{
    Cairn__ReshardAsk message = question(CAIRN_RESHARD_PLAN);
    char *drained[] = { s0, s1 }, *added[] = { s2 };
    Cairn__Home *home = give_device(s2, (uint64_t)1 << 30);
    message.add = added;
    message.drain = drained;
    message.n_add = 1;
    message.n_drain = 2;
    cairn_message_free(&expect_told(ask(&message))->base);
    home->taken_bytes = home->total_bytes - 64;
    expect_refused(&message, CAIRN_ERR_NO_MEMORY, "have room for");
    (void)give_device(s0, (uint64_t)1 << 30);
    toy()->spec.offload_fraction = 0.5;
    expect_refused(&message, CAIRN_ERR_UNSUPPORTED, "partly on devices");
    toy()->spec.offload_fraction = 0;
}

/* Of the job, and of a slice, which is no more than that here. */
TEST(nothing_is_planned_for_memory_that_a_shard_does_not_have)
{
    Cairn__ReshardAsk message = question(CAIRN_RESHARD_PLAN);
    char *drained[] = { s0, s1 }, *added[] = { s2 };
    message.add = added;
    message.drain = drained;
    message.n_add = 1;
    message.n_drain = 2;
    Cairn__ReshardTold *told = expect_told(ask(&message));
    const uint64_t all_bytes = told->jobs[0]->all_bytes;
    cairn_message_free(&told->base);
    struct cairn_cluster_seat *seat = cairn_cluster_seat_find(toy()->cluster, s2);
    seat->memory_bytes = 64; // nothing is taken of it yet
    expect_refused(&message, CAIRN_ERR_NO_MEMORY, "have room for");
    seat->memory_bytes = 3 * all_bytes / 2;
    expect_refused(&message, CAIRN_ERR_NO_MEMORY, "have room for");
    seat->memory_bytes = 4 * all_bytes;
    cairn_message_free(&expect_told(ask(&message))->base);
}

TEST(a_shard_that_is_added_is_among_those_that_are_counted)
{
    Cairn__ReshardAsk message = question(CAIRN_RESHARD_PLAN);
    char *added[] = { s2 };
    message.add = added;
    message.n_add = 1;
    message.shards = 2;
    Cairn__ReshardTold *told = expect_told(ask(&message));
    ck_assert_uint_eq(told->jobs[0]->n_pairs, 1);
    ck_assert_str_eq(told->jobs[0]->pairs[0]->from, "s1");
    ck_assert_str_eq(told->jobs[0]->pairs[0]->to, "s2");
    cairn_message_free(&told->base);
}

TEST(what_is_expected_goes_by_steps_where_steps_are_made_and_else_by_the_rate)
{
    Cairn__ReshardAsk message = question(CAIRN_RESHARD_PLAN);
    message.pause = 0.5;
    train();
    train();
    const double step_s = cairn_cluster_pace_median(&toy()->pace) * 1e-6;
    Cairn__ReshardTold *told = expect_told(ask(&message));
    ck_assert_double_eq_tol(told->jobs[0]->expected_pause_s, 0.5 * step_s, 1e-9);
    ck_assert_double_eq_tol(told->jobs[0]->expected_s, 2 * told->jobs[0]->slices * step_s, 1e-9);
    cairn_message_free(&told->base);
    toy()->pace.seen_us = 0; // long ago
    toy()->reshard.rate = 2;
    told = expect_told(ask(&message));
    ck_assert(told->jobs[0]->expected_pause_s <= 0);
    ck_assert_double_eq_tol(told->jobs[0]->expected_s, (double)told->jobs[0]->all_bytes / 2e6,
                            1e-9);
    cairn_message_free(&told->base);
}

/* A fake shard says of each slice that 1 MiB came, in 1 ms. */
TEST(what_came_is_told_with_the_time_of_the_slowest_shard_of_each_slice)
{
    const Cairn__ReshardAsk message = question(CAIRN_RESHARD_STATUS);
    apply_shards(3);
    train_until_ended();
    Cairn__ReshardTold *told = expect_told(ask(&message));
    const Cairn__ReshardJob *one = told->jobs[0];
    ck_assert(one->slice > 0 && one->move_us > 0);
    ck_assert_uint_eq(one->state_us, 1000 * one->slice);
    ck_assert_uint_eq(one->state_bytes, ((uint64_t)3 << 20) * one->slice);
    ck_assert(!one->rests);
    cairn_message_free(&told->base);
}

TEST(the_last_shard_is_not_drained_and_nothing_moves_when_all_are_stopped)
{
    Cairn__DrainMe drain = CAIRN__DRAIN_ME__INIT;
    fake_shard_away(&fake, 2);
    fake.shards[1].move.holds_prepare = true;
    (void)fake_request(&fake.shards[0].peer, CAIRN_MSG_DRAIN_ME, &drain.base);
    fake_until(&fake, fake.shards[1].move.next != NULL);
    (void)fake_request(&fake.shards[1].peer, CAIRN_MSG_DRAIN_ME, &drain.base);
    fake_until(&fake, fake.shards[0].error != 0 && fake.shards[1].error != 0);
    ck_assert_ptr_nonnull(strstr(fake.shards[0].error_text, "all shards are being stopped"));
    ck_assert_ptr_nonnull(strstr(fake.shards[1].error_text, "no shard that stays"));
    fake_until(&fake, ended());
    fake.shards[1].move.holds_prepare = false;
    train();
}

TEST(a_shard_that_comes_gets_its_share_if_that_is_the_policy)
{
    static char on_join[] = "on_join";
    fake.options.reshard = on_join;
    fake.options.rebalance_above = 1100;
    fake_shard_up(&fake, 3);
    fake_until(&fake, toy()->reshard.running);
    train_until_ended();
    ck_assert(owns(2) && owns(3));
}

TEST(what_the_policy_could_not_do_at_first_is_done_when_it_can_be)
{
    static char on_join[] = "on_join";
    fake_until(&fake, toy()->rounds.heard);
    struct cairn_cluster_seat *seat = cairn_cluster_seat_find(toy()->cluster, s2);
    const uint64_t bytes = seat->memory_bytes;
    seat->memory_bytes = 64;
    CAIRN_EACH_SHARD (toy(), i) toy()->shards[i].seat->memory_bytes = 64;
    fake.options.rebalance_above = 1100;
    fake.options.reshard = on_join;
    fake_until(&fake, toy()->reshard.seats_refused == toy()->cluster->seats_taken);
    ck_assert(!toy()->reshard.running);
    seat->memory_bytes = bytes;
    CAIRN_EACH_SHARD (toy(), i) toy()->shards[i].seat->memory_bytes = bytes;
    fake_until(&fake, toy()->reshard.running);
    train_until_ended();
    ck_assert(owns(2));
}

SUITE(60, open_three, close_fake);
