/* Who asks late how a round ended hears how it ended: after later rounds, after a connection was lost, under
 * the same number. */
#include "tests/unit/round_driver.h"

/* The last decision. */
static enum decision_kind kind;
static uint64_t number, steps, generation;

/* The open round is decided, and every shard has done so; nobody asks how it ends. */
static void end_round(double sum_squares, uint64_t nonfinite)
{
    const uint64_t round = round_open_round(core);
    reduced(0, sum_squares, nonfinite, 1);
    reduced(1, sum_squares, 0, 1);
    const struct decision *decision = expect(CAIRN_ROUND_DECIDE)->decision;
    const struct cairn_version after = decision->version_after;
    for (uint32_t s = 0; s < SHARDS; s++)
        GIVE(.kind = CAIRN_ROUND_PUBLISHED, .shard = s, .epoch = round_epoch_of(core),
             .round = round, .version = after);
    kind = decision->kind;
    number = round;
    steps = after.step;
    generation = after.generation;
    clear();
}

/* Members came or went: before the next round opens the epoch changes. */
static void settle(void)
{
    if (find(CAIRN_ROUND_PERSIST, 0) == NULL) return;
    const struct decision last = { .kind = kind,
                                   .round = number,
                                   .version_after = { generation, steps } };
    persisted();
    for (uint32_t s = 0; s < SHARDS; s++)
        GIVE(.kind = CAIRN_ROUND_ANSWER, .shard = s, .epoch = round_epoch_of(core),
             .version = last.version_after, .decision = &last);
    for (uint32_t s = 0; s < SHARDS; s++)
        GIVE(.kind = CAIRN_ROUND_PUBLISHED, .shard = s, .epoch = round_epoch_of(core),
             .round = number, .version = last.version_after);
}

/* A write of the member, from its beginning to its end. */
static uint64_t write_once(uint64_t member)
{
    GIVE(.kind = CAIRN_ROUND_WORKER_WRITE, .member = member);
    settle();
    const uint64_t round = round_open_round(core);
    ck_assert(expect(CAIRN_ROUND_OPEN_SEND)->write);
    end_round(0, 0);
    return round;
}

static uint64_t step_once(uint64_t member)
{
    want(member);
    settle();
    const uint64_t round = round_open_round(core);
    end_round(4, 0);
    return round;
}

static void expect_applied(uint64_t member, uint64_t round, uint64_t step)
{
    clear();
    ask(member, round);
    const struct round_action *result = expect_result(member, CAIRN_OK);
    ck_assert_uint_eq(result->round, round);
    ck_assert_int_eq(result->decision->kind, CAIRN_DECISION_APPLY);
    ck_assert_uint_eq(result->decision->round, round);
    ck_assert_uint_eq(result->version.step, step);
    ck_assert_ptr_null(result->why);
    clear();
}

TEST(a_step_that_ended_before_a_write_did_is_told_as_applied)
{
    const uint64_t round = start_round(2);
    end_round(4, 0);
    write_once(B);
    clear();
    ask(A, round);
    const struct round_action *result = expect_result(A, CAIRN_OK);
    ck_assert_uint_eq(result->version.step, 1);
    ck_assert_uint_eq(result->version.generation, 1); // after that round; now it is 2
    ck_assert(payload_of(result->decision).grad_norm > 0);
    expect_applied(B, round, 1);
}

TEST(a_write_that_ended_before_a_step_did_is_told_as_applied)
{
    start_round(1);
    end_round(4, 0);
    const uint64_t write = write_once(A), step = step_once(A);
    ask(A, write);
    const struct round_action *result = expect_result(A, CAIRN_OK);
    ck_assert_int_eq(result->decision->kind, CAIRN_DECISION_WRITE);
    ck_assert_uint_eq(result->version.generation, 2);
    expect_applied(A, step, 2); // beside its own write
}

TEST(a_round_that_was_not_finite_is_told_so_late)
{
    config.fail_nonfinite = true;
    make(0, 0);
    const uint64_t round = start_round(2);
    end_round(4, 1);
    write_once(B);
    ask(A, round);
    ck_assert_int_eq(expect_result(A, CAIRN_ERR_NONFINITE)->decision->kind, CAIRN_DECISION_SKIP);
}

TEST(a_member_that_comes_back_hears_how_its_round_ended)
{
    const uint64_t round = start_round(2);
    end_round(4, 0);
    down(A);
    write_once(B);
    join(A, 0);
    expect_applied(A, round, 1);
    expect_applied(B, round, 1);
}

TEST(a_member_that_left_before_its_round_ended_hears_the_end_too)
{
    const uint64_t round = start_round(2);
    reduced(0, 4, 0, 1);
    reduced(1, 4, 0, 1); // decided: it stands, whoever leaves
    down(A);
    join(A, 0);
    all_published(round, 1);
    kind = CAIRN_DECISION_APPLY;
    number = round;
    steps = generation = 1;
    clear();
    write_once(B);
    expect_applied(A, round, 1);
}

TEST(a_void_round_stays_void_and_who_was_not_in_it_hears_nothing_of_it)
{
    const uint64_t gone = start_round(2);
    down(B);
    resolve_none();
    clear();
    const uint64_t round = step_once(A);
    write_once(A);
    ask(A, gone);
    ck_assert_ptr_null(expect_result(A, CAIRN_ERR_EPOCH_CHANGED)->decision);
    expect_applied(A, round, 1);
    join(C, 2);
    ask(C, round);
    ck_assert_ptr_nonnull(expect_result(C, CAIRN_ERR_EPOCH_CHANGED)->why);
}

TEST(of_more_members_than_a_job_has_who_left_the_first_is_forgotten)
{
    const uint64_t first = start_round(1);
    uint64_t last = A, second = 0;
    end_round(4, 0);
    for (uint64_t id = 500; id < 500 + config.member_max;
         id++) { // one after the other, in A's place
        down(last);
        join(id, 0);
        last = id;
        const uint64_t round = step_once(id);
        if (second == 0) second = round;
    }
    down(last);
    join(A, 0);
    join(500, 1);
    write_once(A);
    ask(A, first);
    ck_assert_ptr_nonnull(expect_result(A, CAIRN_ERR_EPOCH_CHANGED)->why);
    expect_applied(500, second, 2);
}

TEST(what_the_incarnation_before_decided_last_is_known_after_later_rounds)
{
    const struct decision apply = known(CAIRN_DECISION_APPLY, 77, 41);
    make(9, 5000);
    GIVE(.kind = CAIRN_ROUND_READY, .version = { 1, 0 });
    join(A, 0);
    all_up();
    resolve_all(&apply, 41);
    clear();
    write_once(A);
    expect_applied(A, 77, 41);
}

SUITE(30, set_up, tear_down);
