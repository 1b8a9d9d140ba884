/* Rounds of the first so many workers by rank (contributors_max): the others are told of each round and how
 * it ends, and nobody waits for them. Two contribute here. */
#include "tests/unit/round_driver.h"

static const struct decision none = { .kind = CAIRN_DECISION_NONE, .version_after = { 1, 0 } };

static void setup_surplus(void)
{
    set_up();
    config.contributors_max = 2;
    make(0, 0);
}

static void commit(uint64_t member)
{
    ask(member, round_open_round(core));
}

/* What the member hears of the open round; NULL: nothing. */
static const struct round_action *opened(uint64_t member)
{
    for (size_t i = 0; find(CAIRN_ROUND_WORKER_OPENED, i) != NULL; i++)
        if (find(CAIRN_ROUND_WORKER_OPENED, i)->member == member)
            return find(CAIRN_ROUND_WORKER_OPENED, i);
    return NULL;
}

TEST(the_first_by_rank_contribute_and_the_others_are_told)
{
    start();
    join(C, 2);
    join(B, 1);
    join(A, 0);
    want(C);
    resolve_all(&none, 0);
    const struct round_action *sent = expect(CAIRN_ROUND_OPEN_SEND);
    ck_assert_uint_eq(sent->member_count, 2);
    ck_assert_uint_eq(sent->members[0], A);
    ck_assert_uint_eq(sent->members[1], B);
    ck_assert_uint_eq(opened(C)->rank, 2);
    ck_assert_uint_eq(opened(C)->world, 2);
    want(B);
    ck_assert_uint_eq(opened(B)->rank, 1);
    ck_assert(!round_contributes(core, C));
}

TEST(a_round_ends_without_its_surplus_which_hears_how)
{
    const uint64_t round = start_round(3);
    commit(C);
    ck_assert_ptr_null(find(CAIRN_ROUND_WORKER_RESULT, 0));
    commit(A);
    commit(B);
    all_reduced(0);
    all_published(round, 1);
    ck_assert_uint_eq(expect_result(C, CAIRN_OK)->version.step, 1);
    (void)expect_result(A, CAIRN_OK);
    clear();
    ck_assert_uint_gt(next_round(), round);
    ask(C, round); // late
    ck_assert_uint_eq(expect_result(C, CAIRN_OK)->version.step, 1);
}

TEST(who_begins_late_is_told_of_the_open_round_and_after_its_commit_of_the_next)
{
    const uint64_t round = start_round(3);
    want(C);
    ck_assert_uint_eq(opened(C)->round, round);
    commit(C);
    clear();
    want(C);
    ck_assert_ptr_null(opened(C));
    all_reduced(0);
    all_published(round, 1);
    ck_assert_uint_gt(opened(C)->round, round);
}

TEST(surplus_that_comes_or_goes_leaves_the_round_alone)
{
    const uint64_t round = start_round(3);
    join(104, 3);
    want(104);
    ck_assert_ptr_null(opened(104)); // it came later: the next round counts it
    down(C);
    ck_assert_uint_eq(round_open_round(core), round);
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_OPEN);
    join(C, 2); // it is back, and asks
    ask(C, round);
    all_reduced(0);
    all_published(round, 1);
    (void)expect_result(C, CAIRN_OK);
}

TEST(a_void_round_is_void_for_its_surplus_too_which_takes_a_place_that_is_free)
{
    const uint64_t round = start_round(3);
    down(A);
    resolve_all(&none, 0);
    ck_assert_uint_eq(expect_result(C, CAIRN_ERR_EPOCH_CHANGED)->round, round);
    clear();
    want(C);
    if (round_stage_of(core) == CAIRN_ROUND_WAITING) resolve_all(&none, 0);
    ck_assert_uint_eq(opened(C)->rank, 1);
    ck_assert_uint_eq(opened(C)->world, 2);
}

TEST(what_it_gives_up_is_no_round_and_what_it_writes_waits_for_the_end)
{
    const uint64_t round = start_round(3);
    GIVE(.kind = CAIRN_ROUND_WORKER_ABANDON, .member = C, .round = round);
    GIVE(.kind = CAIRN_ROUND_WORKER_WRITE, .member = C);
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_OPEN);
    all_reduced(0);
    all_published(round, 1);
    ck_assert_uint_eq(opened(C)->write, 1);
    ck_assert_uint_eq(opened(C)->rank, 0);
    ck_assert_uint_eq(opened(C)->world, 1);
}

TEST(nobody_waits_for_it_nor_drops_it_at_the_deadline)
{
    struct sentence waiting;
    const uint64_t round = start_round(3);
    const struct round_lack lacks[] = { { .member = A, .micro = 1 } };
    commit(B);
    round_waiting(core, NULL, &waiting);
    ck_assert_ptr_nonnull(strstr(waiting.text, "worker of rank 0"));
    ck_assert_ptr_null(strstr(waiting.text, "worker of rank 2"));
    GIVE(.kind = CAIRN_ROUND_TICK, .now_ms = 1000);
    for (uint32_t s = 0; s < SHARDS; s++)
        GIVE(.kind = CAIRN_ROUND_LACKS, .shard = s, .epoch = round_epoch_of(core), .round = round,
             .lacks = { lacks, 1 });
    ck_assert_uint_eq(expect(CAIRN_ROUND_WORKER_FENCE)->member, A);
    ck_assert_ptr_null(find(CAIRN_ROUND_WORKER_FENCE, 1));
}

SUITE(30, setup_surplus, tear_down);
