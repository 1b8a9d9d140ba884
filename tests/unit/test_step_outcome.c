/* The shard's round machine when a round ends: prepared, told, fenced, void. */
#include "tests/support/suite.h"
#include "tests/unit/step_driver.h"

TEST(a_prepared_shard_reports_its_sums_and_applies_when_told)
{
    prepare();
    ck_assert_uint_eq(out.count, 1);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_REDUCED_REPORT)->sums.weight, 7);
    ck_assert_uint_eq(list[0].sums.nonfinite, 2);
    decide(5, CAIRN_DECISION_APPLY, 100, 11);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_UPDATE)->decision->payload_bytes, 5);
    ck_assert_uint_eq(step_version(step).step, 10);
    GIVE(.kind = CAIRN_STEP_UPDATED);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_PUBLISHED_REPORT)->version.step, 11);
    chunk(A, 0, 0); // late: it was folded, like everything of this round
    expect(1, CAIRN_STEP_ACK);
}

TEST(a_skip_uses_the_round_up_and_changes_only_the_jobs_state)
{
    prepare();
    decide(5, CAIRN_DECISION_SKIP, 100, 10);
    ck_assert_uint_eq(out.count, 1);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_PUBLISHED_REPORT)->version.step, 10);
    ck_assert_int_eq(step_last(step)->kind, CAIRN_DECISION_SKIP);
    ck_assert_mem_eq(step_last(step)->payload, "state", 5);
    open_at(5, 100, 10); // the number is used up
    expect_fault();
    open_at(5, 101, 10);
    ck_assert_uint_eq(out.count, 2);
}

TEST(a_prepared_shard_survives_a_fence_and_applies_what_others_applied)
{
    prepare();
    fence(6);
    const struct step_action *answer = expect(0, CAIRN_STEP_ANSWER);
    ck_assert_int_eq(answer->phase, CAIRN_STEP_REDUCED);
    ck_assert_uint_eq(answer->round, 100);
    ck_assert_int_eq(answer->decision->kind, CAIRN_DECISION_NONE);
    resolve(6, CAIRN_DECISION_APPLY, 100, 11);
    expect(0, CAIRN_STEP_UPDATE);
    fence(7); // and again, while it is updating
    ck_assert_int_eq(expect(0, CAIRN_STEP_ANSWER)->phase, CAIRN_STEP_UPDATING);
    ck_assert_uint_eq(list[0].decision->round, 100);
    GIVE(.kind = CAIRN_STEP_UPDATED);
    ck_assert_uint_eq(out.count, 0); // it is fenced
    resolve(7, CAIRN_DECISION_APPLY, 100, 11);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_PUBLISHED_REPORT)->version.step, 11);
    ck_assert_uint_eq(list[0].epoch, 7);
}

TEST(a_prepared_round_that_nobody_decided_is_void)
{
    prepare();
    fence(6);
    resolve(6, CAIRN_DECISION_NONE, 0, 10);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_PUBLISHED_REPORT)->version.step, 10);
    ck_assert_int_eq(step_phase_of(step), CAIRN_STEP_IDLE);
    ck_assert_uint_eq(step_round_of(step), 0);
    chunk(A, 0, 0);
    expect_refused(CAIRN_ERR_STALE);
    open_at(6, 101, 10);
    ck_assert_uint_eq(out.count, 2);
}

TEST(a_void_round_drains_before_the_next_one_begins)
{
    begin();
    chunk(A, 0, 0);
    const uint32_t receiving = list[0].slot;
    chunk(B, 0, 0);
    landed(list[0].slot, CAIRN_OK); // waits for A's
    chunk(A, 0, 1);
    landed(list[0].slot, CAIRN_OK); // folds
    fence(6);
    ck_assert_uint_eq(out.count, 2);
    ck_assert_int_eq(expect(0, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_STALE);
    ck_assert_uint_eq(list[0].member, B);
    ck_assert_uint_eq(list[0].epoch, 5);
    ck_assert_int_eq(expect(1, CAIRN_STEP_ANSWER)->phase, CAIRN_STEP_DRAINING);
    resolve(6, CAIRN_DECISION_NONE, 0, 10);
    open_at(6, 101, 10);
    ck_assert_uint_eq(out.count, 0);
    chunk(A, 0, 0); // a duplicate of what is being received is answered only when that ends
    ck_assert_uint_eq(out.count, 1);
    expect(0, CAIRN_STEP_DISCARD);
    folded(1);
    ck_assert_uint_eq(out.count, 1);
    expect(0, CAIRN_STEP_ACK);
    landed(receiving, CAIRN_OK);
    ck_assert_uint_eq(out.count, 3);
    ck_assert_int_eq(expect(0, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_STALE);
    ck_assert_uint_eq(expect(1, CAIRN_STEP_GRANT)->round, 101);
}

TEST(a_receive_that_fails_while_draining_is_answered_for_its_duplicates_sake)
{
    begin();
    chunk(A, 0, 0);
    const uint32_t receiving = list[0].slot;
    fence(6);
    GIVE(.kind = CAIRN_STEP_PEER_DOWN, .member = A);
    GIVE(.kind = CAIRN_STEP_PEER_UP, .member = A);
    chunk(A, 0, 0); // sent again: dropped, because the first one is under way
    ck_assert_uint_eq(out.count, 1);
    expect(0, CAIRN_STEP_DISCARD);
    landed(receiving, CAIRN_ERR_CLOSED);
    ck_assert_uint_eq(out.count, 1);
    ck_assert_int_eq(expect(0, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_STALE);
    ck_assert_uint_eq(list[0].request, 1000);
}

TEST(sums_of_a_void_round_are_forgotten)
{
    begin();
    micro_end(A, 0, 0);
    micro_end(B, 0, 0);
    commit(A, 0, 1);
    commit(B, 0, 1);
    fence(6);
    ck_assert_int_eq(step_phase_of(step), CAIRN_STEP_DRAINING);
    const struct step_sums sums = { .nonfinite = 0 };
    GIVE(.kind = CAIRN_STEP_SUMMED, .sums = &sums);
    ck_assert_uint_eq(out.count, 0);
    ck_assert_int_eq(step_phase_of(step), CAIRN_STEP_IDLE);
}

TEST(a_coordinator_of_an_older_epoch_is_ignored)
{
    prepare();
    for (uint64_t epoch = 4; epoch <= 5;
         epoch++) { // of an older copy of the store: it hears what was seen
        fence(epoch);
        ck_assert_uint_eq(out.count, 1);
        ck_assert_int_eq(out.list[0].kind, CAIRN_STEP_ANSWER);
        ck_assert(out.list[0].refused);
        ck_assert_uint_eq(out.list[0].epoch, 5);
    }
    resolve(4, CAIRN_DECISION_NONE, 0, 10);
    ck_assert_uint_eq(out.count, 0);
    decide(4, CAIRN_DECISION_APPLY, 100, 11);
    ck_assert_uint_eq(out.count, 0);
    open_at(4, 101, 10);
    ck_assert_uint_eq(out.count, 0);
    ck_assert_int_eq(step_phase_of(step), CAIRN_STEP_REDUCED);
}

TEST(a_coordinator_that_breaks_the_protocol_stops_the_shard_rather_than_a_wrong_update)
{
    prepare();
    decide(5, CAIRN_DECISION_APPLY, 99, 11); // another round
    expect_fault();
    decide(5, CAIRN_DECISION_APPLY, 100, 12); // a step is left out
    expect_fault();
    decide(5, CAIRN_DECISION_SKIP, 100, 11); // a skip that is a step
    expect_fault();
    decide(6, CAIRN_DECISION_APPLY, 100, 11); // an epoch without a fence
    expect_fault();
    resolve(5, CAIRN_DECISION_APPLY, 100, 11); // an outcome without a fence
    expect_fault();
    open_at(5, 101, 10); // a round upon a round
    expect_fault();
    fence(6);
    decide(6, CAIRN_DECISION_APPLY, 100, 11); // between fence and outcome
    expect_fault();
    resolve(6, CAIRN_DECISION_APPLY, 98, 11); // of a round never prepared for
    expect_fault();
}

TEST(a_round_opens_only_at_the_shards_own_version)
{
    fence(5);
    open_at(5, 100, 10);
    expect_fault(); // not resolved
    resolve(5, CAIRN_DECISION_NONE, 0, 10);
    open_at(5, 100, 9);
    expect_fault();
    GIVE(.kind = CAIRN_STEP_OPEN, .epoch = 5, .round = 100, .version = { 1, 10 });
    expect_fault(); // nobody contributes
}

TEST(a_restored_job_keeps_the_state_of_its_snapshot)
{
    const struct step_config config = {
        .chunk_count = 1, .window = 1, .member_max = 1, .payload_bytes_max = 8
    };
    const struct decision last = decision(CAIRN_DECISION_APPLY, 77, 3);
    void *memory = malloc(step_bytes(&config));
    ck_assert_ptr_nonnull(memory);
    const struct step_machine *restored = step_init(memory, &config,
                                                    (struct cairn_version) { 2, 3 }, &last);
    ck_assert_int_eq(step_last(restored)->kind, CAIRN_DECISION_NONE);
    ck_assert_uint_eq(step_last(restored)->round, 0);
    ck_assert_uint_eq(step_last(restored)->version_after.generation, 2);
    ck_assert_mem_eq(step_last(restored)->payload, "state", 5);
    free(memory);
}

TEST(the_initial_state_is_ready_at_the_version_it_is_told)
{
    GIVE(.kind = CAIRN_STEP_READY, .version = { 3, 0 });
    ck_assert_uint_eq(step_version(step).generation, 3);
    fence(5);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_ANSWER)->decision->version_after.generation, 3);
}

SUITE(30, set_up, tear_down);
