/* A shard's round machine when the layout changes: it joins, goes on with other chunks, waits for state. */
#include "server/core/step_state.h"
#include "tests/support/suite.h"
#include "tests/unit/step_driver.h"

static const struct step_sums no_sums;

/* Goes on with `chunks`, as for a fence with another layout. */
static void go_on_with(uint32_t chunks)
{
    const struct step_config config = {
        .chunk_count = chunks, .window = WINDOW, .member_max = 4, .payload_bytes_max = 64
    };
    void *memory = malloc(step_bytes(&config));
    ck_assert_ptr_nonnull(memory);
    struct step_machine *next = step_init_from(memory, &config, step);
    free(step);
    step = next;
}

/* Everything absent and committed of round 100 in the epoch at hand, up to the sums. */
static void collect_nothing(uint32_t chunks)
{
    const uint64_t members[] = { A, B };
    for (uint32_t i = 0; i < 2; i++) {
        GIVE(.kind = CAIRN_STEP_MICRO_END, .epoch = step_epoch(step), .round = step_round_of(step),
             .member = members[i], .absent = chunks);
        GIVE(.kind = CAIRN_STEP_COMMIT, .epoch = step_epoch(step), .round = step_round_of(step),
             .member = members[i], .weight = 1);
    }
    expect(out.count - 1, CAIRN_STEP_REDUCE);
}

static void join_job(void)
{
    make_with(&(const struct step_config) {
        .window = WINDOW, .member_max = 4, .payload_bytes_max = 64, .joins = true });
}

TEST(a_shard_that_joins_takes_whatever_outcome_it_hears_first)
{
    join_job();
    fence(5);
    ck_assert_int_eq(expect(0, CAIRN_STEP_ANSWER)->phase, CAIRN_STEP_JOINING);
    resolve(5, CAIRN_DECISION_APPLY, 99, 12);
    ck_assert_uint_eq(out.count, 1);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_PUBLISHED_REPORT)->round, 99);
    ck_assert_uint_eq(list[0].version.step, 12);
    ck_assert_uint_eq(step_last(step)->payload_bytes, 5);
    open_at(5, 100, 12);
    ck_assert_int_eq(step_phase_of(step), CAIRN_STEP_COLLECTING);
}

TEST(a_shard_that_joins_has_seen_the_rounds_that_were_void_before_it_came)
{
    const struct decision last = decision(CAIRN_DECISION_APPLY, 99, 12);
    join_job();
    fence(5);
    GIVE(.kind = CAIRN_STEP_RESOLVE, .epoch = 5, .round = 120, .decision = &last);
    ck_assert_uint_eq(step_round_seen(step), 120);
    open_at(5, 120, 12);
    expect_fault();
}

TEST(a_shard_that_joins_takes_part_in_no_round_before_it_heard_of_an_outcome)
{
    join_job();
    open_at(0, 100, 10);
    expect_fault();
}

TEST(a_shard_that_joins_goes_on_joining_with_other_chunks)
{
    join_job();
    go_on_with(3);
    fence(5);
    ck_assert_int_eq(expect(0, CAIRN_STEP_ANSWER)->phase, CAIRN_STEP_JOINING);
    resolve(5, CAIRN_DECISION_SKIP, 99, 12);
    expect(0, CAIRN_STEP_PUBLISHED_REPORT);
}

/* Before the FENCE of the layout is said, and so without an answer to it. */
TEST(what_is_open_or_prepared_is_given_up_for_a_layout_that_goes_back)
{
    prepare();
    GIVE(.kind = CAIRN_STEP_GIVE_UP);
    ck_assert_int_eq(step_phase_of(step), CAIRN_STEP_IDLE);
    ck_assert_uint_eq(out.count, 0);
    go_on_with(2);
    fence(6);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_ANSWER)->round, 0);
    resolve(6, CAIRN_DECISION_APPLY, 99, 10);
    open_at(6, 101, 10);
    ck_assert_int_eq(step_phase_of(step), CAIRN_STEP_COLLECTING);
}

TEST(with_other_chunks_it_knows_what_it_knew)
{
    prepare();
    decide(5, CAIRN_DECISION_SKIP, 100, 10);
    go_on_with(2);
    ck_assert_uint_eq(step_epoch(step), 5);
    ck_assert_uint_eq(step_round_seen(step), 100);
    fence(6);
    const struct step_action *answer = expect(0, CAIRN_STEP_ANSWER);
    ck_assert_int_eq(answer->phase, CAIRN_STEP_IDLE);
    ck_assert_uint_eq(answer->decision->round, 100);
    ck_assert_mem_eq(answer->decision->payload, "state", 5);
    resolve(6, CAIRN_DECISION_SKIP, 100, 10);
    expect(0, CAIRN_STEP_PUBLISHED_REPORT);
    open_at(6, 101, 10);
    collect_nothing(2);
}

TEST(what_was_sent_in_the_layout_before_is_stale)
{
    begin();
    fence(6);
    resolve(6, CAIRN_DECISION_NONE, 0, 10);
    go_on_with(2);
    fence(7);
    chunk(A, 0, 3);
    expect_refused(CAIRN_ERR_STALE);
}

TEST(a_layout_that_goes_back_has_a_prepared_round_given_up)
{
    prepare();
    fence(6);
    ck_assert_int_eq(expect(0, CAIRN_STEP_ANSWER)->phase, CAIRN_STEP_REDUCED);
    go_on_with(2);
    ck_assert_int_eq(step_phase_of(step), CAIRN_STEP_IDLE);
    resolve(6, CAIRN_DECISION_NONE, 0, 10);
    expect(0, CAIRN_STEP_PUBLISHED_REPORT);
}

TEST(a_shard_is_not_prepared_while_state_is_on_its_way)
{
    fence(5);
    resolve(5, CAIRN_DECISION_NONE, 0, 10);
    GIVE(.kind = CAIRN_STEP_LACKS_STATE);
    ck_assert(step->lacks_state);
    open_at(5, 100, 10);
    collect_nothing(CHUNKS);
    GIVE(.kind = CAIRN_STEP_SUMMED, .sums = &no_sums);
    ck_assert_uint_eq(out.count, 0);
    ck_assert_int_eq(step_phase_of(step), CAIRN_STEP_REDUCING);
    GIVE(.kind = CAIRN_STEP_WHOLE);
    ck_assert_uint_eq(out.count, 1);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_REDUCED_REPORT)->sums.weight, 2);
    GIVE(.kind = CAIRN_STEP_WHOLE); // twice is once
    ck_assert_uint_eq(out.count, 0);
    decide(5, CAIRN_DECISION_APPLY, 100, 11);
    expect(0, CAIRN_STEP_UPDATE);
}

TEST(state_that_comes_before_the_sums_holds_nothing_up)
{
    fence(5);
    resolve(5, CAIRN_DECISION_NONE, 0, 10);
    GIVE(.kind = CAIRN_STEP_LACKS_STATE);
    open_at(5, 100, 10);
    collect_nothing(CHUNKS);
    GIVE(.kind = CAIRN_STEP_WHOLE);
    ck_assert_uint_eq(out.count, 0);
    GIVE(.kind = CAIRN_STEP_SUMMED, .sums = &no_sums);
    expect(0, CAIRN_STEP_REDUCED_REPORT);
}

TEST(a_round_that_waits_for_state_is_void_on_a_fence)
{
    fence(5);
    resolve(5, CAIRN_DECISION_NONE, 0, 10);
    GIVE(.kind = CAIRN_STEP_LACKS_STATE);
    open_at(5, 100, 10);
    collect_nothing(CHUNKS);
    GIVE(.kind = CAIRN_STEP_SUMMED, .sums = &no_sums);
    fence(6);
    ck_assert_int_eq(expect(0, CAIRN_STEP_ANSWER)->phase, CAIRN_STEP_IDLE);
    GIVE(.kind = CAIRN_STEP_WHOLE); // of a round that is void nothing is said
    ck_assert_uint_eq(out.count, 0);
    resolve(6, CAIRN_DECISION_NONE, 0, 10);
    open_at(6, 101, 10);
    collect_nothing(CHUNKS);
    GIVE(.kind = CAIRN_STEP_SUMMED, .sums = &no_sums);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_REDUCED_REPORT)->round, 101);
}

SUITE(30, set_up, tear_down);
