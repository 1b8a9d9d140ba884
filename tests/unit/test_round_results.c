/* Results that are not finite in the coordinator's round machine: under the policy no further round opens,
 * until somebody writes. Shards say so of the version that they publish, as often as they are asked. */
#include "tests/unit/round_driver.h"

static void setup_halting(void)
{
    set_up();
    config.halt_nonfinite = true;
    make(0, 0);
}

/* Shard 1 has what is not finite, or nobody. */
static void publish(uint64_t round, struct cairn_version version, bool spoiled)
{
    for (uint32_t s = 0; s < SHARDS; s++)
        GIVE(.kind = CAIRN_ROUND_PUBLISHED, .shard = s, .epoch = round_epoch_of(core),
             .round = round, .version = version, .nonfinite = spoiled && s == 1);
}

/* The open round is applied. */
static struct decision apply(bool spoiled)
{
    const uint64_t round = round_open_round(core);
    clear();
    for (uint32_t s = 0; s < SHARDS; s++) reduced(s, 1, 0, 1);
    struct decision decision = *expect(CAIRN_ROUND_DECIDE)->decision;
    ck_assert_int_eq(decision.kind, CAIRN_DECISION_APPLY);
    publish(round, decision.version_after, spoiled);
    return decision;
}

static bool opens(void)
{
    clear();
    want(A);
    const bool open = round_stage_of(core) == CAIRN_ROUND_OPEN;
    if (!open) ck_assert_uint_eq(expect(CAIRN_ROUND_WORKER_REFUSED)->member, A);
    ck_assert(open == !round_halted(core));
    ck_assert(open == !round_halted_of_results(core));
    return open;
}

TEST(a_result_of_one_shard_ends_it_and_no_amendment_helps)
{
    struct sentence waiting;
    (void)start_round(1);
    (void)apply(false);
    ck_assert(opens());
    (void)apply(true);
    ck_assert(!opens());
    ck_assert(!opens());
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text,
                     "a restore or a write (results of the update to step 2 are not finite)");
    const struct round_terms terms = { .groups = &group, .revision = 9, .workers_min = 1 };
    GIVE(.kind = CAIRN_ROUND_AMEND, .terms = &terms);
    ck_assert(!opens());
}

TEST(a_write_lets_it_go_on)
{
    (void)start_round(1);
    (void)apply(true);
    ck_assert(!opens());
    GIVE(.kind = CAIRN_ROUND_WORKER_WRITE, .member = A);
    const uint64_t round = round_open_round(core);
    for (uint32_t s = 0; s < SHARDS; s++) reduced(s, 1, 0, 1);
    publish(round, (struct cairn_version) { 2, 1 }, false);
    ck_assert(opens());
}

TEST(a_new_epoch_or_incarnation_hears_of_it_again)
{
    (void)start_round(1);
    struct decision last = apply(true);
    static uint8_t kept[CAIRN_PAYLOAD_MAX(1, 0, 0)];
    memcpy(kept, last.payload, last.payload_bytes);
    last.payload = kept;
    make(round_epoch_of(core) + 9, 5000 + last.round);
    GIVE(.kind = CAIRN_ROUND_READY, .version = { 1, 0 });
    all_up();
    join(A, 0);
    want(A);
    persisted();
    for (uint32_t s = 0; s < SHARDS; s++) answer(s, &last, 0, 1);
    ck_assert(find(CAIRN_ROUND_WORKER_REFUSED, 0) == NULL); // not known yet
    publish(last.round, last.version_after, true);
    ck_assert(!opens());
}

TEST(without_the_policy_rounds_go_on)
{
    config.halt_nonfinite = false;
    make(0, 0);
    (void)start_round(1);
    (void)apply(true);
    ck_assert(opens());
}

SUITE(30, setup_halting, tear_down);
