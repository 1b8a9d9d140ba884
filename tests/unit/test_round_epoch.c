/* The one path of every epoch change: fences, answers, outcomes, new incarnations. */
#include "tests/unit/round_driver.h"

TEST(an_epoch_is_used_only_when_it_is_durable_and_every_shard_is_up)
{
    shard_up(0);
    ck_assert_uint_eq(out.count, 0);
    struct sentence waiting;
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text, "shard 1 (not connected)");
    shard_up(1);
    ck_assert_uint_eq(out.count, 1);
    const struct round_action *persist = expect(CAIRN_ROUND_PERSIST);
    ck_assert_uint_eq(persist->epoch, 1);
    ck_assert_uint_eq(persist->round_reserved, 1 + CAIRN_ROUND_BLOCK);
    persisted();
    ck_assert_uint_eq(expect(CAIRN_ROUND_FENCE)->epoch, 1);
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text,
                     "shard 0 (has not answered the fence), shard 1 (has not answered the fence)");
}

TEST(a_shard_lost_while_the_epoch_becomes_durable_needs_another_epoch)
{
    all_up();
    shard_down(1);
    persisted();
    ck_assert_ptr_null(find(CAIRN_ROUND_FENCE, 0));
    clear();
    shard_up(1);
    ck_assert_uint_eq(expect(CAIRN_ROUND_PERSIST)->epoch, 2);
}

TEST(a_worker_lost_before_the_decision_makes_the_round_void_for_the_others)
{
    const uint64_t round = start_round(2);
    reduced(0, 1, 0, 1);
    down(B);
    expect(CAIRN_ROUND_PERSIST);
    reduced(1, 1, 0, 1); // too late
    ck_assert_ptr_null(find(CAIRN_ROUND_DECIDE, 0));
    persisted();
    const struct decision none = known(CAIRN_DECISION_NONE, 0, 0);
    answer(0, &none, round, 0);
    answer(1, &none, round, 0);
    ck_assert_int_eq(expect(CAIRN_ROUND_RESOLVE)->decision->kind, CAIRN_DECISION_NONE);
    all_published(0, 0);
    // A has not asked how it ends; it is told so that it need not wait.
    const struct round_action *result = expect_result(A, CAIRN_ERR_EPOCH_CHANGED);
    ck_assert_uint_eq(result->round, round);
    ck_assert_ptr_null(result->why);
    ck_assert_uint_eq(round_counts_of(core).abandoned, 1);
    clear();
    want(A);
    ck_assert_uint_eq(expect(CAIRN_ROUND_OPEN_SEND)->round, round + 1);
    ck_assert_uint_eq(expect(CAIRN_ROUND_OPEN_SEND)->member_count, 1);
}

static void give_up(uint64_t member, uint64_t round)
{
    GIVE(.kind = CAIRN_ROUND_WORKER_ABANDON, .member = member, .round = round);
}

TEST(a_round_given_up_is_void_and_the_worker_stays)
{
    const uint64_t round = start_round(2);
    give_up(C, round); // nobody of ours
    ck_assert_uint_eq(out.count, 0);
    ask(B, round);
    give_up(A, round);
    expect(CAIRN_ROUND_PERSIST);
    ck_assert_ptr_null(find(CAIRN_ROUND_WORKER_RESULT, 0)); // not before the shards agree
    resolve_none();
    expect_result(A, CAIRN_ERR_EPOCH_CHANGED);
    expect_result(B, CAIRN_ERR_EPOCH_CHANGED);
    ck_assert_uint_eq(round_worker_count(core), 2);
    clear();
    give_up(A, round); // again, after a reconnect: over
    expect_result(A, CAIRN_ERR_EPOCH_CHANGED);
    clear();
    want(A);
    ck_assert_uint_eq(expect(CAIRN_ROUND_OPEN_SEND)->member_count, 2);
    give_up(A, round); // that is not the one which is open
    ck_assert_ptr_null(find(CAIRN_ROUND_PERSIST, 0));
}

TEST(a_round_that_is_decided_is_not_given_up)
{
    const uint64_t round = start_round(1);
    all_reduced(0);
    clear();
    give_up(A, round);
    ck_assert_uint_eq(out.count, 0);
    all_published(round, 1);
    expect_result(A, CAIRN_OK);
    ck_assert_uint_eq(round_version(core).step, 1);
}

TEST(a_worker_lost_after_the_decision_changes_the_epoch_before_the_next_round)
{
    const uint64_t round = start_round(2);
    all_reduced(0);
    down(B);
    ck_assert_ptr_null(find(CAIRN_ROUND_PERSIST, 0));
    ask(A, round);
    all_published(round, 1);
    expect_result(A, CAIRN_OK);
    ck_assert_ptr_null(find(CAIRN_ROUND_PERSIST, 0));
    want(A);
    expect(CAIRN_ROUND_PERSIST);
}

TEST(a_new_incarnation_gives_all_the_apply_that_one_shard_has)
{
    make(9, 5000);
    GIVE(.kind = CAIRN_ROUND_READY, .version = { 1, 0 });
    all_up();
    ck_assert_uint_eq(expect(CAIRN_ROUND_PERSIST)->epoch, 10);
    join(A, 0);
    ask(A, 77);
    join(B, 1);
    ask(B, 76);
    persisted();
    const struct decision before = known(CAIRN_DECISION_APPLY, 76, 40);
    struct decision apply = known(CAIRN_DECISION_APPLY, 77, 41);
    uint8_t bytes[CAIRN_PAYLOAD_HEAD_BYTES];
    const struct payload head = { .loss_scale = 64, .finite = true };
    payload_encode(&head, NULL, bytes);
    apply.payload = bytes;
    apply.payload_bytes = sizeof bytes;
    answer(0, &before, 77, 40); // prepared, and heard of no decision
    answer(1, &apply, 0, 41);
    const struct decision *outcome = expect(CAIRN_ROUND_RESOLVE)->decision;
    ck_assert_uint_eq(outcome->round, 77);
    ck_assert_int_eq(outcome->kind, CAIRN_DECISION_APPLY);
    ck_assert_ptr_null(find(CAIRN_ROUND_WORKER_RESULT, 0));
    published(1, 77, 41);
    published(0, 77, 41);
    ck_assert_uint_eq(expect_result(A, CAIRN_OK)->version.step, 41);
    // B was away for longer than anybody remembers.
    ck_assert_ptr_nonnull(expect_result(B, CAIRN_ERR_EPOCH_CHANGED)->why);
    ck_assert(round_loss_scale(core) == 64);
    clear();
    want(A);
    resolve_all(&apply, 41);
    ck_assert_uint_eq(expect(CAIRN_ROUND_OPEN_SEND)->round, 5000);
    ck_assert_uint_eq(expect(CAIRN_ROUND_OPEN_SEND)->version.step, 41);
}

TEST(a_prepared_round_without_a_decision_is_void)
{
    make(9, 5000);
    GIVE(.kind = CAIRN_ROUND_READY, .version = { 1, 0 });
    all_up();
    join(A, 0);
    ask(A, 77);
    persisted();
    const struct decision before = known(CAIRN_DECISION_SKIP, 76, 40);
    answer(0, &before, 77, 40);
    answer(1, &before, 77, 40);
    ck_assert_uint_eq(expect(CAIRN_ROUND_RESOLVE)->decision->round, 76);
    all_published(76, 40);
    ck_assert_ptr_null(expect_result(A, CAIRN_ERR_EPOCH_CHANGED)->why); // 77 never took effect
}

TEST(a_shard_that_was_away_when_the_decision_was_sent_gets_it_on_return)
{
    const uint64_t round = start_round(1);
    ask(A, round);
    all_reduced(0);
    const struct decision apply = *expect(CAIRN_ROUND_DECIDE)->decision;
    uint8_t bytes[CAIRN_PAYLOAD_BYTES(1)];
    memcpy(bytes, apply.payload, apply.payload_bytes);
    published(0, round, 1);
    shard_down(1);
    shard_up(1);
    expect(CAIRN_ROUND_PERSIST);
    persisted();
    struct decision has = apply;
    has.payload = bytes;
    const struct decision none = known(CAIRN_DECISION_NONE, 0, 0);
    answer(1, &none, round, 0);
    answer(0, &has, 0, 1);
    ck_assert_uint_eq(expect(CAIRN_ROUND_RESOLVE)->decision->round, round);
    all_published(round, 1);
    expect_result(A, CAIRN_OK);
}

TEST(a_shard_without_what_others_applied_fails_the_job)
{
    make(9, 5000);
    all_up();
    persisted();
    const struct decision last = known(CAIRN_DECISION_APPLY, 77, 41);
    const struct decision none = known(CAIRN_DECISION_NONE, 0, 0);
    answer(0, &last, 0, 41);
    answer(1, &none, 0, 0);
    ck_assert_uint_eq(expect(CAIRN_ROUND_FAIL)->shard, 1);
    ck_assert_ptr_null(find(CAIRN_ROUND_RESOLVE, 0));
}

TEST(a_shard_that_comes_back_empty_fails_the_job)
{
    start();
    shard_down(1);
    GIVE(.kind = CAIRN_ROUND_SHARD_EMPTY, .shard = 1);
    ck_assert_uint_eq(expect(CAIRN_ROUND_FAIL)->shard, 1);
}

TEST_EACH(a_last_payload_that_is_damaged_or_too_long_fails_the_job, 0, 2)
{
    uint8_t bytes[1000] = { 0 };
    struct decision last = known(CAIRN_DECISION_APPLY, 77, 41);
    last.payload = bytes;
    last.payload_bytes = _i == 0 ? sizeof bytes : CAIRN_PAYLOAD_HEAD_BYTES;
    make(9, 5000);
    all_up();
    persisted();
    answer(0, &last, 0, 41);
    answer(1, &last, 0, 41);
    expect(CAIRN_ROUND_FAIL);
}

TEST(answers_of_another_epoch_and_second_ones_change_nothing)
{
    all_up();
    persisted();
    const struct decision none = known(CAIRN_DECISION_NONE, 0, 0);
    GIVE(.kind = CAIRN_ROUND_ANSWER, .shard = 1, .epoch = 7, .decision = &none);
    answer(0, &none, 0, 0);
    answer(0, &none, 0, 0);
    ck_assert_ptr_null(find(CAIRN_ROUND_RESOLVE, 0));
    answer(1, &none, 0, 0);
    expect(CAIRN_ROUND_RESOLVE);
}

TEST(a_restored_job_goes_on_with_the_loss_scale_of_its_snapshot)
{
    scale_from(1024);
    make(9, 5000);
    GIVE(.kind = CAIRN_ROUND_READY, .version = { 1, 40 });
    all_up();
    uint8_t bytes[CAIRN_PAYLOAD_HEAD_BYTES];
    const struct payload head = { .loss_scale = 256 };
    payload_encode(&head, NULL, bytes);
    struct decision last = known(CAIRN_DECISION_NONE, 0, 40);
    last.payload = bytes;
    last.payload_bytes = sizeof bytes;
    resolve_all(&last, 40);
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_STEADY);
    ck_assert(round_loss_scale(core) == 256);
    ck_assert_uint_eq(round_version(core).step, 40);
}

TEST(a_worker_that_returns_hears_of_the_open_round_again)
{
    const uint64_t round = start_round(2);
    want(A);
    ck_assert_uint_eq(expect(CAIRN_ROUND_WORKER_OPENED)->round, round);
    clear();
    ask(A, round);
    want(A); // it has committed: it asks for the next one
    ck_assert_uint_eq(out.count, 0);
}

TEST(it_says_whom_it_waits_for)
{
    struct sentence waiting;
    config.terms.workers_min = 3;
    make(0, 0);
    start();
    join(A, 0);
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text,
                     "2 more workers (1 of 3 attached): start them, or have the job take fewer "
                     "(`cairn job amend JOB --workers MIN:MAX`)");
    config.terms.workers_min = 1;
    make(0, 0);
    const uint64_t round = start_round(1);
    ask(A, round);
    reduced(1, 1, 0, 1);
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text, "shard 0 (has not summed round 1)");
    reduced(0, 1, 0, 1);
    published(0, round, 1);
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text, "shard 1 (has not published the update)");
    published(1, round, 1);
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text, "");
}

SUITE(30, set_up, tear_down);
