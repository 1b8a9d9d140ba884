/* Driven groups in the coordinator's round machine: the update goes by what the round's rank 0 gave, and the
 * learning rate stays with the version. */
#include "tests/unit/round_driver.h"

static const struct schedule driven_schedule = { .kind = CAIRN_SCHEDULE_DRIVEN };

static void setup_driven(void)
{
    set_up();
    config.terms.schedules = &driven_schedule;
    make(0, 0);
}

static void ask_lr(uint64_t member, uint64_t round, double lr)
{
    GIVE(.kind = CAIRN_ROUND_WORKER_COMMIT, .member = member, .round = round, .commit.driven = &lr);
}

static void check_lr(const struct decision *decision, double lr)
{
    const struct payload head = payload_of(decision);
    ck_assert_uint_eq(head.driven_count, 1);
    ck_assert_double_eq(payload_driven(decision->payload, &head, 0), lr);
}

/* The update of step 1 is made with it. */
static void check_scalars(const struct decision *decision, uint64_t step, double lr)
{
    struct group_scalars made, expected;
    struct group_hyper hyper = group;
    hyper.lr = lr;
    ck_assert_int_eq(payload_group(decision->payload, decision->payload_bytes, 0, &made), 0);
    ck_assert_int_eq(group_scalars_of(&hyper, step, made.grad_scale, &expected), 0);
    ck_assert_mem_eq(&made, &expected, sizeof made);
    ck_assert_double_eq(payload_of(decision).lr, lr);
}

TEST(the_update_goes_by_what_rank_0_gave_first)
{
    struct sentence waiting;
    const uint64_t round = start_round(2);
    ck_assert(round_takes_driven(core, A, round) && round_takes_driven(core, B, round));
    ask_lr(B, round, 0.5); // not the one that counts
    all_reduced(0);
    ck_assert_ptr_null(find(CAIRN_ROUND_DECIDE, 0));
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text, "worker of rank 0 (has not committed round 1)");
    ask_lr(A, round, 0.25);
    const struct decision *decision = expect(CAIRN_ROUND_DECIDE)->decision;
    check_scalars(decision, 1, 0.25);
    check_lr(decision, 0.25);
    ck_assert(!round_takes_driven(core, A, round)); // decided
    ask_lr(A, round, 0.75);
    all_published(round, 1);
    ck_assert_double_eq(round_lr(core, 0), 0.25);
}

TEST(a_skip_and_a_write_keep_the_rate_of_the_version)
{
    uint64_t round = start_round(1);
    ck_assert_double_eq(round_lr(core, 0), group.lr); // the spec's, until one is given
    ask_lr(A, round, 0.25);
    all_reduced(0);
    all_published(round, 1);
    round = next_round();
    ask_lr(A, round, 0.5);
    all_reduced(1); // not finite
    check_lr(expect(CAIRN_ROUND_DECIDE)->decision, 0.25);
    all_published(round, 1);
    clear();
    GIVE(.kind = CAIRN_ROUND_WORKER_WRITE, .member = A);
    all_reduced(0); // a write waits for no rate
    ck_assert_int_eq(expect(CAIRN_ROUND_DECIDE)->decision->kind, CAIRN_DECISION_WRITE);
    check_lr(expect(CAIRN_ROUND_DECIDE)->decision, 0.25);
}

TEST(a_new_incarnation_finds_the_rate_with_the_shards)
{
    uint8_t bytes[CAIRN_PAYLOAD_MAX(1, 0, 0)];
    const uint64_t round = start_round(1);
    ask_lr(A, round, 0.25);
    all_reduced(0);
    struct decision last = *expect(CAIRN_ROUND_DECIDE)->decision;
    memcpy(bytes, last.payload, last.payload_bytes);
    last.payload = bytes;
    make(9, 5000);
    GIVE(.kind = CAIRN_ROUND_READY, .version = { 1, 0 });
    all_up();
    resolve_all(&last, 1);
    ck_assert_double_eq(round_lr(core, 0), 0.25);
}

TEST(a_payload_of_another_number_of_groups_fails_the_job)
{
    uint8_t bytes[CAIRN_PAYLOAD_MAX(2, 0, 0)];
    const double two[2] = { 1, 2 };
    const struct payload head = { .loss_scale = 1, .driven = two, .driven_count = 2 };
    struct decision last = known(CAIRN_DECISION_SKIP, 77, 41);
    last.payload = bytes;
    last.payload_bytes = payload_encode(&head, NULL, bytes);
    make(9, 5000);
    GIVE(.kind = CAIRN_ROUND_READY, .version = { 1, 0 });
    all_up();
    persisted();
    for (uint32_t s = 0; s < SHARDS; s++) answer(s, &last, 0, 41);
    expect(CAIRN_ROUND_FAIL);
}

TEST(a_payload_carries_rates_between_skips_and_state_and_none_that_is_no_rate)
{
    uint8_t bytes[CAIRN_PAYLOAD_MAX(2, 0, 3)];
    const double rates[2] = { 0, 1e-3 };
    const struct payload head = { .driven = rates,
                                  .driven_count = 2,
                                  .skips = { .all = 1 },
                                  .state = (const uint8_t *)"123",
                                  .state_bytes = 3 };
    struct payload back;
    const size_t count = payload_encode(&head, NULL, bytes);
    ck_assert_int_eq(payload_decode(bytes, count, &back), CAIRN_OK);
    ck_assert_uint_eq(back.driven_count, 2);
    ck_assert_double_eq(payload_driven(bytes, &back, 1), 1e-3);
    ck_assert_uint_eq(back.skips.all, 1);
    ck_assert_mem_eq(back.state, "123", 3);
    const size_t at = CAIRN_PAYLOAD_BYTES(0) + CAIRN_PAYLOAD_SKIPS_BYTES;
    bytes[at + 4 + 7] = 0xbf; // with the next one -1
    bytes[at + 4 + 6] = 0xf0;
    ck_assert_int_eq(payload_decode(bytes, count, &back), CAIRN_ERR_MALFORMED);
    bytes[at + 4 + 7] = 0x7f; // infinite
    ck_assert_int_eq(payload_decode(bytes, count, &back), CAIRN_ERR_MALFORMED);
    bytes[at + 4 + 7] = 0x3f; // 1
    ck_assert_int_eq(payload_decode(bytes, count, &back), CAIRN_OK);
    bytes[at] = 3; // more than there are
    ck_assert_int_eq(payload_decode(bytes, count, &back), CAIRN_ERR_MALFORMED);
    bytes[at] = 0; // it says that there are some
    ck_assert_int_eq(payload_decode(bytes, count, &back), CAIRN_ERR_MALFORMED);
}

SUITE(30, setup_driven, tear_down);
