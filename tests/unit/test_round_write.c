/* Writes at a step boundary, in the coordinator's round machine: one contributor, one new generation. */
#include "tests/unit/round_driver.h"

static void want_to_write(uint64_t member)
{
    GIVE(.kind = CAIRN_ROUND_WORKER_WRITE, .member = member);
}

static void published_at(uint32_t shard, uint64_t round, uint64_t generation, uint64_t step)
{
    GIVE(.kind = CAIRN_ROUND_PUBLISHED, .shard = shard, .epoch = round_epoch_of(core),
         .round = round, .version = { generation, step });
}

/* Two workers, B of them with a write open. */
static uint64_t start_write(void)
{
    start();
    join(A, 0);
    join(B, 1);
    want_to_write(B);
    resolve_none();
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_OPEN);
    return round_open_round(core);
}

TEST(a_write_is_of_the_writer_alone_and_the_others_wait)
{
    const uint64_t round = start_write();
    const struct round_action *open = expect(CAIRN_ROUND_OPEN_SEND);
    ck_assert(open->write);
    ck_assert_uint_eq(open->member_count, 1);
    ck_assert_uint_eq(open->members[0], B);
    const struct round_action *opened = expect(CAIRN_ROUND_WORKER_OPENED);
    ck_assert(opened->write && opened->member == B && opened->world == 1 && opened->rank == 0);
    clear();
    want(A);
    want(B); // not this way
    ck_assert_uint_eq(out.count, 0);
    struct sentence waiting;
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text, "worker of rank 1 (has not ended its write)");
    want_to_write(B); // lost the answer
    ck_assert_uint_eq(expect(CAIRN_ROUND_WORKER_OPENED)->round, round);
}

TEST(a_write_ends_with_the_next_generation_of_the_same_step)
{
    scale_from(64);
    make(0, 0);
    const uint64_t round = start_write();
    want(A);
    ask(B, round);
    reduced(0, 3, 1, 1); // whatever the sums are
    reduced(1, 3, 0, 1);
    const struct decision *decision = expect(CAIRN_ROUND_DECIDE)->decision;
    ck_assert_int_eq(decision->kind, CAIRN_DECISION_WRITE);
    ck_assert_uint_eq(decision->version_after.generation, 2);
    ck_assert_uint_eq(decision->version_after.step, 0);
    ck_assert(payload_of(decision).loss_scale == 64);
    published_at(0, round, 2, 0);
    ck_assert_ptr_null(find(CAIRN_ROUND_WORKER_RESULT, 0));
    published_at(1, round, 2, 0);
    ck_assert_uint_eq(expect_result(B, CAIRN_OK)->version.generation, 2);
    // A waited for a round: it opens now, of both, at the new version.
    ck_assert_uint_eq(find(CAIRN_ROUND_OPEN_SEND, 1)->version.generation, 2);
    ck_assert_uint_eq(find(CAIRN_ROUND_OPEN_SEND, 1)->member_count, 2);
    ck_assert(!find(CAIRN_ROUND_OPEN_SEND, 1)->write);
    ck_assert_uint_eq(round_counts_of(core).applied, 0);
}

TEST(a_write_waits_for_the_open_round_and_goes_before_the_next)
{
    const uint64_t round = start_round(2);
    ask(B, round); // it has committed
    want_to_write(B);
    ck_assert_uint_eq(out.count, 0);
    all_reduced(0);
    want(A);
    all_published(round, 1);
    ck_assert(expect(CAIRN_ROUND_OPEN_SEND)->write);
    ck_assert_uint_eq(expect(CAIRN_ROUND_OPEN_SEND)->version.step, 1);
}

static void check_void(uint64_t round)
{
    expect(CAIRN_ROUND_PERSIST);
    clear();
    resolve_none();
    ck_assert_ptr_null(find(CAIRN_ROUND_DECIDE, 0));
    ck_assert_uint_eq(round_version(core).generation, 1);
    ck_assert_uint_ne(round_open_round(core), round);
}

TEST(a_round_that_opened_with_the_writer_in_it_is_void)
{
    const uint64_t round = start_round(2); // A asked for it
    want_to_write(B);
    expect(CAIRN_ROUND_PERSIST);
    resolve_none();
    expect_result(A, CAIRN_ERR_EPOCH_CHANGED);
    ck_assert_uint_ne(round_open_round(core), round);
    ck_assert(expect(CAIRN_ROUND_OPEN_SEND)->write);
    ck_assert_uint_eq(expect(CAIRN_ROUND_WORKER_OPENED)->member, B);
    ck_assert_uint_eq(round_worker_count(core), 2);
}

TEST(a_writer_that_is_lost_has_written_nothing)
{
    const uint64_t round = start_write();
    clear();
    reduced(0, 0, 0, 1);
    down(B);
    check_void(round);
    want(A);
    ck_assert(!expect(CAIRN_ROUND_OPEN_SEND)->write);
}

TEST(a_write_that_is_given_up_or_late_is_void)
{
    uint64_t round = start_write();
    clear();
    GIVE(.kind = CAIRN_ROUND_WORKER_UNWRITE, .member = A, .round = round); // not A's
    GIVE(.kind = CAIRN_ROUND_WORKER_UNWRITE, .member = B, .round = round + 1);
    ck_assert_uint_eq(out.count, 0);
    GIVE(.kind = CAIRN_ROUND_WORKER_UNWRITE, .member = B, .round = round);
    check_void(round);
    expect_result(B, CAIRN_ERR_EPOCH_CHANGED);
    make(0, 0);
    round = start_write();
    clear();
    GIVE(.kind = CAIRN_ROUND_TICK, .now_ms = 1001);
    ck_assert_int_eq(expect(CAIRN_ROUND_WORKER_FENCE)->status, CAIRN_ERR_TIMEOUT);
    check_void(round);
}

TEST(a_wish_that_is_withdrawn_opens_nothing)
{
    const uint64_t round = start_round(1);
    ask(A, round);
    want_to_write(A);
    GIVE(.kind = CAIRN_ROUND_WORKER_UNWRITE, .member = A);
    ck_assert_uint_eq(out.count, 0);
    all_reduced(0);
    all_published(round, 1);
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_STEADY);
}

TEST(a_new_incarnation_gives_all_the_write_that_one_shard_has)
{
    make(9, 5000);
    GIVE(.kind = CAIRN_ROUND_READY, .version = { 1, 0 });
    all_up();
    persisted();
    const struct decision before = known(CAIRN_DECISION_APPLY, 76, 40);
    struct decision write = known(CAIRN_DECISION_WRITE, 77, 40);
    write.version_after.generation = 2;
    answer(0, &before, 77, 40);
    GIVE(.kind = CAIRN_ROUND_ANSWER, .shard = 1, .epoch = round_epoch_of(core),
         .phase = CAIRN_STEP_IDLE, .version = { 2, 40 }, .decision = &write);
    ck_assert_int_eq(expect(CAIRN_ROUND_RESOLVE)->decision->kind, CAIRN_DECISION_WRITE);
    published_at(0, 77, 2, 40);
    published_at(1, 77, 2, 40);
    ck_assert_uint_eq(round_version(core).generation, 2);
    ck_assert_uint_eq(round_version(core).step, 40);
}

/* A's step round was void when its other thread wanted to write; its write is open. Returns that; the step
 * round is the one before. */
static uint64_t write_over_own_round(void)
{
    const uint64_t round = start_round(1);
    want_to_write(A);
    resolve_none();
    ck_assert(expect(CAIRN_ROUND_OPEN_SEND)->write);
    ck_assert_uint_eq(round_open_round(core), round + 1);
    clear();
    return round + 1;
}

TEST(a_late_commit_beside_a_decided_write_of_the_other_thread_is_answered_with_it)
{
    const uint64_t write = write_over_own_round();
    reduced(0, 0, 0, 1);
    reduced(1, 0, 0, 1);
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_DECIDED);
    clear();
    ask(A, write - 1);
    ask(A, write);
    published_at(0, write, 2, 0);
    published_at(1, write, 2, 0);
    ck_assert_uint_eq(expect_result(A, CAIRN_OK)->round, write);
    ck_assert_uint_eq(expect_result(A, CAIRN_ERR_EPOCH_CHANGED)->round, write - 1);
}

TEST(a_late_commit_or_abandon_leaves_the_other_threads_commit_waiting)
{
    const uint64_t write = write_over_own_round();
    ask(A, write);
    ck_assert_uint_eq(out.count, 0);
    ask(A, write - 1);
    ck_assert_uint_eq(expect_result(A, CAIRN_ERR_EPOCH_CHANGED)->round, write - 1);
    clear();
    GIVE(.kind = CAIRN_ROUND_WORKER_ABANDON, .member = A, .round = write - 1);
    ck_assert_uint_eq(expect_result(A, CAIRN_ERR_EPOCH_CHANGED)->round, write - 1);
    reduced(0, 0, 0, 1);
    reduced(1, 0, 0, 1);
    published_at(0, write, 2, 0);
    published_at(1, write, 2, 0);
    ck_assert_uint_eq(expect_result(A, CAIRN_OK)->round, write);
}

TEST(both_threads_that_ask_amid_a_change_of_epoch_are_answered_after_it)
{
    const uint64_t write = write_over_own_round();
    shard_down(1);
    shard_up(1);
    expect(CAIRN_ROUND_PERSIST);
    clear();
    ask(A, write - 1);
    ask(A, write);
    ask(A, write - 1);
    ck_assert_uint_eq(out.count, 0);
    resolve_none();
    ck_assert_uint_eq(find(CAIRN_ROUND_WORKER_RESULT, 0)->round +
                          find(CAIRN_ROUND_WORKER_RESULT, 1)->round,
                      write + write - 1);
    ck_assert_ptr_null(find(CAIRN_ROUND_WORKER_RESULT, 2));
}

SUITE(30, set_up, tear_down);
