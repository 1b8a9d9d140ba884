/* The machine of one slice: prepare, cut over, move, settle; and what goes wrong between. */
#include <check.h>
#include <stdlib.h>

#include "server/core/move.h"
#include "tests/support/suite.h"

#define MAX 4

static struct move_config config;
static struct move *move;
static struct move_action list[CAIRN_MOVE_ACTIONS_MAX];
static struct move_actions out;

/* A new incarnation. */
static void make(void)
{
    free(move);
    void *memory = malloc(move_bytes(&config));
    ck_assert_ptr_nonnull(memory);
    move = move_init(memory, &config);
    out = (struct move_actions) { list, 0, CAIRN_MOVE_ACTIONS_MAX };
}

/* Two shards, layout 1. */
static void set_up(void)
{
    move = NULL;
    config = (struct move_config) { .shard_max = MAX, .shard_count = 2, .layout = 1 };
    make();
}

static void tear_down(void)
{
    free(move);
}

/* An event, and its actions alone. */
static void give(const struct move_event *event)
{
    out.count = 0;
    move_on_event(move, event, &out);
}

#define GIVE(...) give(&(const struct move_event) { __VA_ARGS__ })

static void begin(uint64_t layout, uint32_t shards, uint8_t gone, bool back)
{
    GIVE(.kind = CAIRN_MOVE_BEGIN, .layout = layout, .shard_count = shards, .gone = &gone,
         .back = back);
}

static void prepared(uint32_t shard, uint64_t layout)
{
    GIVE(.kind = CAIRN_MOVE_PREPARED, .shard = shard, .layout = layout);
}

static void moved(uint32_t shard, uint64_t layout)
{
    GIVE(.kind = CAIRN_MOVE_MOVED, .shard = shard, .layout = layout);
}

static const struct move_action *expect(size_t index, enum move_action_kind kind)
{
    ck_assert_uint_lt(index, out.count);
    ck_assert_int_eq(list[index].kind, kind);
    return &list[index];
}

static void expect_ended(size_t index, cairn_status status)
{
    ck_assert_int_eq(expect(index, CAIRN_MOVE_ENDED)->status, status);
    ck_assert_uint_eq(out.count, index + 1);
}

/* Layout 2 with three shards, up to where the round core has it. */
static void cut(void)
{
    begin(2, 3, 0, false);
    for (uint32_t s = 0; s < 3; s++) prepared(s, 2);
    ck_assert_uint_eq(expect(0, CAIRN_MOVE_CUT_OVER)->layout, 2);
}

static void cut_over(void)
{
    cut();
    GIVE(.kind = CAIRN_MOVE_IN_FORCE, .layout = 2);
    ck_assert_int_eq(move_stage_of(move), CAIRN_MOVE_MOVING);
}

TEST(a_slice_is_prepared_by_all_and_settled_when_all_are_whole)
{
    begin(2, 3, 0, false);
    ck_assert_uint_eq(expect(0, CAIRN_MOVE_PREPARE)->layout, 2);
    prepared(0, 2);
    prepared(0, 2);
    prepared(1, 1); // of another attempt
    prepared(1, 2);
    ck_assert_uint_eq(out.count, 0);
    ck_assert(move_waits_for(move, 2));
    ck_assert(!move_waits_for(move, 1));
    prepared(2, 2);
    ck_assert(!expect(0, CAIRN_MOVE_CUT_OVER)->back);
    moved(0, 2); // nobody is, yet
    ck_assert_uint_eq(out.count, 0);
    GIVE(.kind = CAIRN_MOVE_IN_FORCE, .layout = 2);
    moved(0, 2);
    moved(2, 2);
    moved(2, 2);
    moved(1, 1);
    ck_assert_uint_eq(out.count, 0);
    ck_assert(move_waits_for(move, 1));
    moved(1, 2);
    ck_assert_uint_eq(expect(0, CAIRN_MOVE_SETTLE)->shard, CAIRN_MOVE_ALL);
    expect_ended(1, CAIRN_OK);
    ck_assert_int_eq(move_stage_of(move), CAIRN_MOVE_REST);
}

TEST(who_did_not_hear_that_it_is_settled_is_told_again)
{
    cut_over();
    for (uint32_t s = 0; s < 3; s++) moved(s, 2);
    moved(1, 2);
    ck_assert_uint_eq(out.count, 1);
    ck_assert_uint_eq(expect(0, CAIRN_MOVE_SETTLE)->shard, 1);
}

TEST(a_refusal_takes_the_slice_back)
{
    begin(2, 3, 0, false);
    prepared(0, 2);
    GIVE(.kind = CAIRN_MOVE_PREPARED, .shard = 1, .layout = 2, .status = CAIRN_ERR_NO_MEMORY);
    ck_assert_uint_eq(expect(0, CAIRN_MOVE_UNPREPARE)->layout, 2);
    ck_assert_uint_eq(expect(1, CAIRN_MOVE_ENDED)->shard, 1);
    expect_ended(1, CAIRN_ERR_NO_MEMORY);
    begin(2, 3, 0, false); // the next one may have the same number
    ck_assert(move_waits_for(move, 0));
}

TEST(a_shard_that_goes_away_takes_the_slice_back_while_that_can_be)
{
    begin(2, 3, 0, false);
    GIVE(.kind = CAIRN_MOVE_SHARD_DOWN, .shard = 3); // none of it
    ck_assert_uint_eq(out.count, 0);
    GIVE(.kind = CAIRN_MOVE_SHARD_DOWN, .shard = 2);
    expect(0, CAIRN_MOVE_UNPREPARE);
    expect_ended(1, CAIRN_ERR_UNREACHABLE);
    cut();
    GIVE(.kind = CAIRN_MOVE_SHARD_DOWN, .shard = 0, .pending = true);
    expect(0, CAIRN_MOVE_WITHDRAW);
    expect(1, CAIRN_MOVE_UNPREPARE);
    expect_ended(2, CAIRN_ERR_UNREACHABLE);
    cut();
    GIVE(.kind = CAIRN_MOVE_SHARD_DOWN, .shard = 0); // it is on its way to the disk
    ck_assert_uint_eq(out.count, 0);
    GIVE(.kind = CAIRN_MOVE_IN_FORCE, .layout = 2);
    GIVE(.kind = CAIRN_MOVE_SHARD_DOWN, .shard = 0);
    ck_assert_uint_eq(out.count, 0);
}

TEST(a_cancel_takes_the_slice_back_while_that_can_be)
{
    GIVE(.kind = CAIRN_MOVE_CANCEL);
    ck_assert_uint_eq(out.count, 0);
    begin(2, 3, 0, false);
    GIVE(.kind = CAIRN_MOVE_CANCEL);
    expect(0, CAIRN_MOVE_UNPREPARE);
    expect_ended(1, CAIRN_ERR_CANCELED);
    cut();
    GIVE(.kind = CAIRN_MOVE_CANCEL);
    ck_assert_uint_eq(out.count, 0);
    GIVE(.kind = CAIRN_MOVE_IN_FORCE, .layout = 2);
    GIVE(.kind = CAIRN_MOVE_CANCEL);
    ck_assert_uint_eq(out.count, 0);
    for (uint32_t s = 0; s < 3; s++) moved(s, 2);
    expect_ended(1, CAIRN_OK);
}

TEST(the_next_incarnation_hears_again_who_is_whole)
{
    const uint8_t gone = 1 << 1;
    config.shard_count = 3;
    config.gone = &gone;
    config.layout = 2;
    config.unsettled = true;
    make();
    moved(0, 2);
    moved(1, 2); // a hole
    ck_assert_uint_eq(out.count, 0);
    moved(2, 2);
    expect(0, CAIRN_MOVE_SETTLE);
    expect_ended(1, CAIRN_OK);
}

TEST(a_newcomer_that_is_lost_takes_the_slice_back_after_it_was_in_force)
{
    cut_over();
    moved(0, 2);
    GIVE(.kind = CAIRN_MOVE_SHARD_LOST, .shard = 2);
    ck_assert_uint_eq(expect(0, CAIRN_MOVE_ENDED)->shard, 2);
    expect_ended(0, CAIRN_ERR_JOB_LOST);
    moved(1, 2); // no more
    ck_assert_uint_eq(out.count, 0);
    begin(3, 3, 1 << 2, true);
    expect(0, CAIRN_MOVE_PREPARE);
    GIVE(.kind = CAIRN_MOVE_SHARD_DOWN, .shard = 2);
    ck_assert_uint_eq(out.count, 0);
    GIVE(.kind = CAIRN_MOVE_SHARD_DOWN, .shard = 1);
    expect_ended(1, CAIRN_ERR_UNREACHABLE);
    ck_assert_int_eq(move_stage_of(move), CAIRN_MOVE_LOST); // nothing else can be begun
    begin(3, 3, 1 << 2, true);
    prepared(0, 3);
    prepared(1, 3);
    ck_assert(expect(0, CAIRN_MOVE_CUT_OVER)->back);
    GIVE(.kind = CAIRN_MOVE_IN_FORCE, .layout = 3);
    moved(0, 3);
    moved(1, 3);
    expect_ended(1, CAIRN_OK);
    begin(4, 3, 1 << 2, false);
    expect(0, CAIRN_MOVE_PREPARE);
}

TEST(a_newcomer_that_is_lost_on_the_way_to_the_disk_is_lost_once_the_layout_is_in_force)
{
    cut();
    GIVE(.kind = CAIRN_MOVE_SHARD_LOST, .shard = 2);
    ck_assert_uint_eq(out.count, 0);
    GIVE(.kind = CAIRN_MOVE_IN_FORCE, .layout = 2);
    expect_ended(0, CAIRN_ERR_JOB_LOST);
    ck_assert_int_eq(move_stage_of(move), CAIRN_MOVE_LOST);
}

TEST(a_shard_with_nothing_that_is_lost_between_slices_is_to_be_left_out)
{
    GIVE(.kind = CAIRN_MOVE_SHARD_LOST, .shard = 3); // not of the job
    ck_assert_uint_eq(out.count, 0);
    GIVE(.kind = CAIRN_MOVE_SHARD_LOST, .shard = 1);
    expect_ended(0, CAIRN_ERR_JOB_LOST);
    begin(2, 2, 1 << 1, true);
    prepared(0, 2);
    ck_assert(expect(0, CAIRN_MOVE_CUT_OVER)->back);
}

TEST(a_shard_that_is_lost_while_a_slice_is_prepared_takes_that_back_first)
{
    begin(2, 3, 0, false);
    GIVE(.kind = CAIRN_MOVE_SHARD_LOST, .shard = 2); // it was to join
    expect_ended(1, CAIRN_ERR_UNREACHABLE);
    ck_assert_int_eq(move_stage_of(move), CAIRN_MOVE_REST);
    begin(2, 3, 0, false);
    GIVE(.kind = CAIRN_MOVE_SHARD_LOST, .shard = 1);
    expect(0, CAIRN_MOVE_UNPREPARE);
    expect_ended(1, CAIRN_ERR_JOB_LOST);
    ck_assert_int_eq(move_stage_of(move), CAIRN_MOVE_LOST);
}

TEST(a_shard_that_is_lost_before_the_slice_that_leaves_it_out_takes_that_back)
{
    begin(2, 2, 1 << 1, false);
    prepared(0, 2);
    ck_assert(!expect(0, CAIRN_MOVE_CUT_OVER)->back);
    GIVE(.kind = CAIRN_MOVE_SHARD_DOWN, .shard = 1, .pending = true);
    ck_assert_uint_eq(out.count, 0); // it may be back, and nothing was to be moved to it
    GIVE(.kind = CAIRN_MOVE_SHARD_LOST, .shard = 1, .pending = true);
    expect(0, CAIRN_MOVE_WITHDRAW);
    expect_ended(2, CAIRN_ERR_JOB_LOST);
    begin(2, 2, 1 << 1, true);
    GIVE(.kind = CAIRN_MOVE_SHARD_LOST, .shard = 1); // that is known
    ck_assert_uint_eq(out.count, 0);
}

TEST(it_is_known_who_is_whole)
{
    ck_assert(move_has_moved(move, 1)); // nothing has moved
    ck_assert(!move_has_moved(move, 2));
    cut_over();
    ck_assert(!move_has_moved(move, 1));
    GIVE(.kind = CAIRN_MOVE_SHARD_LOST, .shard = 2);
    moved(1, 2);
    ck_assert(move_has_moved(move, 1));
}

/* In a layout that moves nothing a second shard is lost before anybody could report anything. */
TEST(who_was_whole_before_a_layout_that_moves_nothing_is_whole_in_it)
{
    const uint8_t gone = 1 << 2;
    cut_over();
    moved(0, 2);
    moved(1, 2);
    moved(2, 2);
    GIVE(.kind = CAIRN_MOVE_SHARD_LOST, .shard = 2);
    GIVE(.kind = CAIRN_MOVE_BEGIN, .layout = 3, .shard_count = 3, .gone = &gone, .back = true,
         .empty = true);
    prepared(0, 3);
    prepared(1, 3);
    GIVE(.kind = CAIRN_MOVE_IN_FORCE, .layout = 3);
    ck_assert(move_has_moved(move, 0) && move_has_moved(move, 1));
    ck_assert(!move_has_moved(move, 2));
    ck_assert(move_waits_for(move, 0)); // the slice is settled by what the shards report
    GIVE(.kind = CAIRN_MOVE_SHARD_LOST, .shard = 1);
    begin(4, 3, 3 << 1, true);
    prepared(0, 4);
    GIVE(.kind = CAIRN_MOVE_IN_FORCE, .layout = 4);
    ck_assert(!move_has_moved(move, 0)); // a layout that goes back moves state
}

TEST(a_configuration_that_cannot_work_has_no_size)
{
    const struct move_config bad[] = {
        { .shard_max = 0, .shard_count = 1 },
        { .shard_max = 2, .shard_count = 0 },
        { .shard_max = 2, .shard_count = 3 },
        { .shard_max = UINT32_MAX, .shard_count = 1 },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) ck_assert_uint_eq(move_bytes(&bad[i]), 0);
}

SUITE(30, set_up, tear_down);
