/* The step's deadline: the shards say whom they wait for, and that worker is dropped; or a shard is named. */
#include "tests/unit/round_driver.h"

#define LACKS(id, m)                 \
    {                                \
        .member = (id), .micro = (m) \
    }
#define WAITS(id, m)                                \
    {                                               \
        .member = (id), .micro = (m), .waits = true \
    }
#define RELAYED(id, m)                                \
    {                                                 \
        .member = (id), .micro = (m), .relayed = true \
    }

static void tick(uint64_t now_ms)
{
    GIVE(.kind = CAIRN_ROUND_TICK, .now_ms = now_ms);
}

static void says(uint32_t shard, const struct round_lack *lacks, uint32_t count)
{
    GIVE(.kind = CAIRN_ROUND_LACKS, .shard = shard, .epoch = round_epoch_of(core),
         .round = round_open_round(core), .lacks = { lacks, count });
}
#define SAYS(shard, ...)                                       \
    says((shard), (const struct round_lack[]) { __VA_ARGS__ }, \
         sizeof((const struct round_lack[]) { __VA_ARGS__ }) / sizeof(struct round_lack))

/* A round of so many workers, A first, that has passed its deadline. */
static void pass_deadline(uint32_t workers)
{
    tick(50);
    const uint64_t round = start_round(workers);
    tick(1049);
    ck_assert_uint_eq(out.count, 0);
    tick(1050);
    ck_assert_uint_eq(expect(CAIRN_ROUND_ASK_LACKS)->round, round);
    ck_assert_ptr_null(find(CAIRN_ROUND_WORKER_FENCE, 0));
    clear();
}

static void expect_dropped(uint64_t member, uint32_t shards)
{
    const struct round_action *fence = expect(CAIRN_ROUND_WORKER_FENCE);
    ck_assert_uint_eq(fence->member, member);
    ck_assert_int_eq(fence->status, CAIRN_ERR_TIMEOUT);
    ck_assert_uint_eq(fence->world, shards);
    ck_assert_ptr_null(find(CAIRN_ROUND_WORKER_FENCE, 1));
    expect(CAIRN_ROUND_PERSIST);
}

TEST(a_worker_that_committed_and_of_which_nothing_arrives_is_dropped)
{
    pass_deadline(2);
    ask(A, round_open_round(core));
    ask(B, round_open_round(core)); // its word arrives, its data does not
    SAYS(0, WAITS(A, 0), LACKS(B, 0));
    ck_assert_uint_eq(out.count, 0);
    SAYS(1, LACKS(B, 0));
    expect_dropped(B, 2);
}

TEST(who_waits_for_another_is_not_dropped_though_it_has_not_committed)
{
    pass_deadline(3);
    SAYS(0, LACKS(A, 0), WAITS(B, 0), WAITS(C, 0));
    SAYS(1, WAITS(B, 0), LACKS(C, 0)); // C cannot push on here, its buffers are taken there
    expect_dropped(A, 1);
}

TEST(who_waits_later_than_it_lacks_is_dropped)
{
    pass_deadline(2);
    SAYS(0, WAITS(A, 1), LACKS(B, 0));
    SAYS(1, LACKS(A, 1), WAITS(B, 1)); // A and B wait for each other: B lacks the older
    expect_dropped(B, 1);
}

/* Of B nothing is here yet of the second micro-batch: its relay takes no more before A's first is summed. */
TEST(who_lacks_a_later_micro_batch_than_another_is_not_dropped)
{
    pass_deadline(2);
    SAYS(0, LACKS(A, 0), LACKS(B, 1));
    SAYS(1, LACKS(A, 0), LACKS(B, 1));
    expect_dropped(A, 2);
}

TEST(several_are_dropped_in_one_round)
{
    pass_deadline(3);
    SAYS(0, LACKS(A, 0), LACKS(C, 0));
    SAYS(1, LACKS(A, 0), WAITS(B, 0), LACKS(C, 0));
    ck_assert_uint_eq(find(CAIRN_ROUND_WORKER_FENCE, 0)->member, C);
    ck_assert_uint_eq(find(CAIRN_ROUND_WORKER_FENCE, 1)->member, A);
    ck_assert_uint_eq(round_worker_count(core), 1);
}

TEST(one_shard_that_alone_lacks_most_workers_is_named_and_nobody_is_dropped)
{
    pass_deadline(3);
    SAYS(0, WAITS(C, 0));
    SAYS(1, LACKS(A, 0), LACKS(B, 0));
    const struct round_action *late = expect(CAIRN_ROUND_SHARD_LATE);
    ck_assert_uint_eq(late->shard, 1);
    ck_assert_uint_eq(late->world, 2);
    ck_assert_ptr_null(find(CAIRN_ROUND_WORKER_FENCE, 0));
    struct sentence waiting;
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text, "shard 1 (lacks something of 2 of 3 workers in round 1)");
    clear();
    tick(2049);
    ck_assert_uint_eq(out.count, 0);
    tick(2050); // it is asked again
    expect(CAIRN_ROUND_ASK_LACKS);
    reduced(0, 1, 0, 1);
    reduced(1, 1, 0, 1); // and comes round
    expect(CAIRN_ROUND_DECIDE);
}

TEST(one_shard_that_lacks_one_worker_of_several_blames_the_worker)
{
    pass_deadline(3);
    SAYS(0, WAITS(C, 0));
    SAYS(1, LACKS(B, 0), WAITS(C, 0));
    expect_dropped(B, 1);
}

TEST(a_jobs_only_worker_is_blamed_whoever_lacks_it)
{
    pass_deadline(1);
    SAYS(1, LACKS(A, 0));
    says(0, NULL, 0);
    expect_dropped(A, 1);
}

TEST(a_relay_is_its_members)
{
    pass_deadline(3);
    const uint64_t relay = 4711;
    SAYS(0, LACKS(relay, 0)); // of A and B, at shard 1
    SAYS(1, LACKS(relay, 0), RELAYED(A, 0), RELAYED(A, 0));
    expect_dropped(A, 2);
}

TEST(shards_that_have_everything_and_are_slow_are_named)
{
    pass_deadline(2);
    reduced(0, 1, 0, 1);
    says(0, NULL, 0);
    says(1, NULL, 0);
    ck_assert_uint_eq(expect(CAIRN_ROUND_SHARD_LATE)->shard, 1);
}

TEST(what_is_said_of_another_round_or_twice_changes_nothing)
{
    pass_deadline(2);
    const struct round_lack lack = LACKS(B, 0);
    GIVE(.kind = CAIRN_ROUND_LACKS, .shard = 1, .epoch = round_epoch_of(core),
         .round = round_open_round(core) - 1, .lacks = { &lack, 1 });
    SAYS(0, LACKS(B, 0));
    SAYS(0, LACKS(A, 0));
    ck_assert_uint_eq(out.count, 0);
    shard_down(1); // the round is void: nobody is dropped for what a lost shard would say
    SAYS(1, LACKS(B, 0));
    tick(9000);
    ck_assert_ptr_null(find(CAIRN_ROUND_WORKER_FENCE, 0));
}

TEST(who_does_not_give_its_client_state_is_dropped)
{
    config.client_state_max = 8;
    make(0, 0);
    tick(50);
    start_round(2);
    all_reduced(0);
    clear();
    tick(1050);
    expect_dropped(A, 0);
}

static void pauses(uint64_t member, uint64_t at_most_ms)
{
    GIVE(.kind = CAIRN_ROUND_WORKER_PAUSE, .member = member, .wait_ms = at_most_ms);
}

TEST(who_said_that_it_is_at_work_is_not_dropped_until_that_ends)
{
    pass_deadline(2);
    ask(B, round_open_round(core));
    pauses(A, 5000);
    SAYS(0, LACKS(A, 0), WAITS(B, 0));
    SAYS(1, LACKS(A, 0));
    ck_assert_uint_eq(out.count, 0); // nor is a shard late
    ck_assert_uint_eq(round_paused_ms(core), 5000);
    ck_assert(!round_waits_for_silent(core));
    tick(2050);
    expect(CAIRN_ROUND_ASK_LACKS);
    clear();
    SAYS(0, LACKS(A, 0));
    SAYS(1, LACKS(A, 0));
    ck_assert_uint_eq(out.count, 0);
    pauses(A, 0); // its deadline begins anew
    ck_assert_uint_eq(round_paused_ms(core), 0);
    ck_assert(round_waits_for_silent(core));
    tick(3049);
    ck_assert_uint_eq(out.count, 0);
    tick(3050);
    expect(CAIRN_ROUND_ASK_LACKS);
    SAYS(0, LACKS(A, 0));
    SAYS(1, LACKS(A, 0));
    expect_dropped(A, 2);
}

TEST(a_pause_ends_by_itself_and_excuses_nobody_else)
{
    pass_deadline(3);
    pauses(A, 500);
    SAYS(0, LACKS(A, 0), LACKS(B, 0));
    SAYS(1, LACKS(A, 0), LACKS(B, 0), WAITS(C, 0));
    expect_dropped(B, 2);
    make(0, 0);
    const uint64_t round = start_round(1);
    pauses(A, 500);
    tick(499);
    ck_assert_uint_eq(round_paused_ms(core), 1);
    tick(500);
    tick(1499);
    ck_assert_uint_eq(out.count, 0);
    tick(1500);
    ck_assert_uint_eq(expect(CAIRN_ROUND_ASK_LACKS)->round, round);
}

TEST(a_writer_that_pauses_goes_on_with_its_write)
{
    start();
    join(A, 0);
    GIVE(.kind = CAIRN_ROUND_WORKER_WRITE, .member = A);
    resolve_none();
    pauses(A, 3000);
    clear();
    tick(1000);
    ck_assert_uint_eq(out.count, 0);
    tick(3000);
    tick(4000);
    ck_assert_uint_eq(expect(CAIRN_ROUND_WORKER_FENCE)->member, A);
}

SUITE(30, set_up, tear_down);
