/* A layout comes into force with an epoch: shards join, are holes, and are taken back. */
#include "server/core/round_state.h"
#include "tests/unit/round_driver.h"

/* The layout in force has that shard. */
static bool has_shard(uint32_t shard)
{
    return shard < core->config.shard_count && !core->shards[shard].gone;
}

/* Shards of the layout in force answer and publish, all idle at `step` with `last`. */
static void resolve_with(const struct decision *last, uint64_t step)
{
    persisted();
    for (uint32_t s = 0; s < 4; s++)
        if (has_shard(s)) answer(s, last, 0, step);
    for (uint32_t s = 0; s < 4; s++)
        if (has_shard(s)) published(s, last->round, step);
}

static void layout(uint64_t number, uint32_t shards, uint8_t gone)
{
    GIVE(.kind = CAIRN_ROUND_LAYOUT, .layout = { number, shards, &gone, false, false });
}

static void setup_layouts(void)
{
    set_up();
    config.shard_max = 4;
    config.layout = 1;
    make(0, 0);
}

static const struct decision none = { .version_after = { 1, 0 } };

TEST(a_layout_waits_for_the_end_of_the_round_and_no_other_opens_before_it)
{
    const uint64_t round = start_round(1);
    layout(2, SHARDS, 0);
    ck_assert_uint_eq(out.count, 0);
    ck_assert_uint_eq(round_layout_pending(core), 2);
    ask(A, round);
    all_reduced(0);
    want(A);
    all_published(round, 1);
    ck_assert_ptr_null(find(CAIRN_ROUND_OPEN_SEND, 0));
    const struct round_action *persist = expect(CAIRN_ROUND_PERSIST);
    ck_assert_uint_eq(persist->layout, 2);
    ck_assert_uint_eq(persist->version.step, 1);
    ck_assert_uint_eq(round_layout_of(core), 1); // not before it is durable
    ck_assert_uint_eq(round_layout_pending(core), 0);
    clear();
    persisted();
    ck_assert_uint_eq(expect(CAIRN_ROUND_FENCE)->layout, 2);
    ck_assert_uint_eq(round_layout_of(core), 2);
    ck_assert_uint_eq(core->config.layout_at.step, 1);
    const struct decision last = known(CAIRN_DECISION_APPLY, round, 1);
    for (uint32_t s = 0; s < SHARDS; s++) answer(s, &last, 0, 1);
    all_published(round, 1);
    expect(CAIRN_ROUND_OPEN_SEND);
}

TEST(an_epoch_that_changes_for_another_reason_keeps_its_layout)
{
    start_round(1);
    layout(2, SHARDS, 0);
    down(A);
    ck_assert_uint_eq(expect(CAIRN_ROUND_PERSIST)->layout, 1);
    clear();
    resolve_with(&none, 0);
    ck_assert_uint_eq(expect(CAIRN_ROUND_FENCE)->layout, 1);
    ck_assert_uint_eq(expect(CAIRN_ROUND_PERSIST)->layout, 2); // right behind it
}

TEST(a_layout_that_is_not_being_made_durable_can_be_forgotten)
{
    const uint64_t round = start_round(1);
    layout(2, SHARDS, 0);
    layout(0, 0, 0);
    ck_assert_uint_eq(round_layout_pending(core), 0);
    ask(A, round);
    all_reduced(0);
    all_published(round, 1);
    ck_assert_ptr_null(find(CAIRN_ROUND_PERSIST, 0));
    layout(2, SHARDS, 0);
    layout(0, 0, 0); // too late
    persisted();
    ck_assert_uint_eq(round_layout_of(core), 2);
}

TEST(a_shard_that_joins_is_not_awaited_before_its_layout_and_is_from_then_on)
{
    start();
    shard_up(2);
    shard_down(2);
    ck_assert_uint_eq(out.count, 0);
    layout(2, 3, 0);
    ck_assert_uint_eq(out.count, 0); // it is away: nobody else waits for it
    ck_assert_uint_eq(round_layout_pending(core), 2);
    shard_up(2);
    expect(CAIRN_ROUND_PERSIST);
    persisted();
    ck_assert(has_shard(2));
    answer(0, &none, 0, 0);
    answer(1, &none, 0, 0);
    struct sentence waiting;
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text, "shard 2 (has not answered the fence)");
}

TEST(a_shard_that_joins_is_accepted_with_whatever_it_knows)
{
    const uint64_t round = start_round(1);
    ask(A, round);
    all_reduced(0);
    all_published(round, 1);
    shard_up(2);
    layout(2, 3, 0);
    clear();
    persisted();
    const struct decision last = known(CAIRN_DECISION_APPLY, round, 1);
    GIVE(.kind = CAIRN_ROUND_ANSWER, .shard = 2, .epoch = round_epoch_of(core),
         .phase = CAIRN_STEP_JOINING, .version = { 1, 0 }, .decision = &none);
    answer(0, &last, 0, 1);
    answer(1, &last, 0, 1);
    const struct round_action *outcome = expect(CAIRN_ROUND_RESOLVE);
    ck_assert_uint_eq(outcome->decision->round, round);
    ck_assert_ptr_null(find(CAIRN_ROUND_FAIL, 0));
    for (uint32_t s = 0; s < 3; s++) published(s, round, 1);
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_STEADY);
}

TEST(a_shard_that_joins_and_is_lost_while_its_layout_becomes_durable_needs_another_epoch)
{
    start();
    shard_up(2);
    layout(2, 3, 0);
    clear();
    shard_down(2);
    persisted();
    ck_assert_ptr_null(find(CAIRN_ROUND_FENCE, 0));
    ck_assert_uint_eq(round_layout_of(core), 2);
    shard_up(2);
    ck_assert_uint_eq(expect(CAIRN_ROUND_PERSIST)->layout, 2);
}

TEST(nobody_waits_for_a_hole)
{
    start();
    layout(2, SHARDS, 1 << 0);
    resolve_with(&none, 0);
    ck_assert(!has_shard(0));
    clear();
    shard_down(0); // it ends
    GIVE(.kind = CAIRN_ROUND_SHARD_EMPTY, .shard = 0);
    ck_assert_uint_eq(out.count, 0);
    join(A, 0);
    want(A);
    resolve_with(&none, 0);
    const uint64_t round = round_open_round(core);
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_OPEN);
    ask(A, round);
    reduced(0, 1, 0, 5); // of one that is gone
    reduced(1, 1, 0, 1);
    ck_assert_int_eq(expect(CAIRN_ROUND_DECIDE)->decision->kind, CAIRN_DECISION_APPLY);
    published(1, round, 1);
    expect_result(A, CAIRN_OK);
}

TEST(the_deadline_asks_nothing_of_a_hole)
{
    const uint8_t gone = 1 << 0;
    const struct round_lack lack = { .member = A };
    config.gone = &gone;
    make(0, 0);
    config.gone = NULL;
    GIVE(.kind = CAIRN_ROUND_READY, .version = { 1, 0 });
    shard_up(1);
    resolve_with(&none, 0);
    join(A, 0);
    want(A);
    resolve_with(&none, 0);
    GIVE(.kind = CAIRN_ROUND_TICK, .now_ms = 1000);
    expect(CAIRN_ROUND_ASK_LACKS);
    GIVE(.kind = CAIRN_ROUND_LACKS, .shard = 1, .epoch = round_epoch_of(core),
         .round = round_open_round(core), .lacks = { &lack, 1 });
    ck_assert_uint_eq(expect(CAIRN_ROUND_WORKER_FENCE)->member, A);
}

/* Layout 2 is in force, and shard 2, which it brought, is away. */
static uint64_t lose_newcomer(void)
{
    start();
    shard_up(2);
    layout(2, 3, 0);
    resolve_with(&none, 0);
    join(A, 0);
    want(A);
    resolve_with(&none, 0);
    const uint64_t round = round_open_round(core);
    ck_assert_uint_ne(round, 0);
    shard_down(2);
    clear();
    return round;
}

static void go_back(void)
{
    const uint8_t gone = 1 << 2;
    GIVE(.kind = CAIRN_ROUND_LAYOUT, .layout = { 3, 3, &gone, true, false });
}

TEST(a_layout_that_goes_back_does_without_the_shard_that_is_lost)
{
    lose_newcomer();
    go_back();
    ck_assert_uint_eq(expect(CAIRN_ROUND_PERSIST)->layout, 3);
    ck_assert_uint_eq(expect(CAIRN_ROUND_PERSIST)->version.step, 0);
    resolve_with(&none, 0);
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_STEADY);
    ck_assert_ptr_null(find(CAIRN_ROUND_FAIL, 0));
}

TEST(a_layout_that_goes_back_waits_for_its_own_shards)
{
    lose_newcomer();
    shard_down(1);
    go_back();
    ck_assert_uint_eq(out.count, 0);
    shard_up(1);
    ck_assert_uint_eq(expect(CAIRN_ROUND_PERSIST)->layout, 3);
}

TEST(what_was_decided_since_cannot_be_taken_back)
{
    const uint64_t round = lose_newcomer();
    const struct decision decided = known(CAIRN_DECISION_APPLY, round, 1);
    go_back();
    persisted();
    answer(0, &decided, 0, 1);
    answer(1, &none, round, 0);
    ck_assert_str_eq(expect(CAIRN_ROUND_FAIL)->why,
                     "a shard was lost, and part of the newest version with it");
}

TEST(a_shard_that_had_nothing_is_left_out_whatever_was_decided)
{
    const uint8_t gone = 1 << 2;
    const uint64_t round = lose_newcomer();
    const struct decision decided = known(CAIRN_DECISION_APPLY, round, 1);
    GIVE(.kind = CAIRN_ROUND_LAYOUT, .layout = { 3, 3, &gone, true, true });
    persisted();
    answer(0, &decided, 0, 1);
    answer(1, &none, round, 0);
    ck_assert_uint_eq(expect(CAIRN_ROUND_RESOLVE)->decision->round, round);
}

TEST(the_next_incarnation_begins_with_the_layout_that_is_durable)
{
    const uint8_t gone = 1 << 1;
    config.shard_count = 3;
    config.gone = &gone;
    config.layout = 7;
    config.layout_at = (struct cairn_version) { 1, 5 };
    make(9, 100);
    shard_up(0);
    ck_assert_uint_eq(out.count, 0);
    shard_up(2);
    ck_assert_uint_eq(expect(CAIRN_ROUND_PERSIST)->layout, 7);
    ck_assert_uint_eq(expect(CAIRN_ROUND_PERSIST)->version.step, 5);
    persisted();
    ck_assert_uint_eq(expect(CAIRN_ROUND_FENCE)->layout, 7);
}

SUITE(30, setup_layouts, tear_down);
