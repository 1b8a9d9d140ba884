/* The trainer's own state in the coordinator's round machine: one a version, in the payload. */
#include "tests/unit/round_driver.h"

enum { STATE_MAX = 8 };

static void setup_state(void)
{
    set_up();
    config.client_state_max = STATE_MAX;
    make(0, 0);
}

static void ask_with(uint64_t member, uint64_t round, const char *state)
{
    GIVE(.kind = CAIRN_ROUND_WORKER_COMMIT, .member = member, .round = round,
         .commit = { (const uint8_t *)state, strlen(state), NULL });
}

static void check_state_of(const struct decision *decision, const char *expected)
{
    const struct payload head = payload_of(decision);
    ck_assert_uint_eq(head.state_bytes, strlen(expected));
    if (*expected != '\0') ck_assert_mem_eq(head.state, expected, strlen(expected));
}

static void check_published(const char *expected)
{
    const uint8_t *state;
    size_t bytes;
    ck_assert(round_client_state(core, &state, &bytes));
    ck_assert_uint_eq(bytes, strlen(expected));
    if (*expected != '\0') ck_assert_mem_eq(state, expected, bytes);
}

TEST(a_round_is_decided_when_its_rank_0_has_given_its_state)
{
    struct sentence waiting;
    const uint64_t round = start_round(2);
    ask_with(B, round, "of B"); // not the one that counts
    all_reduced(0);
    ck_assert_ptr_null(find(CAIRN_ROUND_DECIDE, 0));
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text, "worker of rank 0 (its client state of round 1)");
    ask_with(A, round, "first");
    check_state_of(expect(CAIRN_ROUND_DECIDE)->decision, "first");
    const uint8_t *state;
    size_t bytes;
    ck_assert(!round_client_state(core, &state, &bytes)); // of neither version, just now
    all_published(round, 1);
    check_published("first");
}

TEST(what_is_asked_again_does_not_change_the_state)
{
    const uint64_t round = start_round(1);
    ask_with(A, round, "first");
    ask_with(A, round, "other");
    all_reduced(0);
    check_state_of(expect(CAIRN_ROUND_DECIDE)->decision, "first");
    ask_with(A, round, "late");
    all_published(round, 1);
    check_published("first");
    const uint64_t second = next_round();
    all_reduced(0);
    ask(A, second); // gives none
    check_state_of(expect(CAIRN_ROUND_DECIDE)->decision, "");
    all_published(second, 2);
    check_published("");
}

TEST(a_skip_and_a_write_keep_the_state_of_the_version)
{
    uint64_t round = start_round(1);
    ask_with(A, round, "kept");
    all_reduced(0);
    all_published(round, 1);
    round = next_round();
    ask_with(A, round, "skipped");
    all_reduced(1); // not finite
    ck_assert_int_eq(expect(CAIRN_ROUND_DECIDE)->decision->kind, CAIRN_DECISION_SKIP);
    check_state_of(expect(CAIRN_ROUND_DECIDE)->decision, "kept");
    all_published(round, 1);
    check_published("kept");
    clear();
    GIVE(.kind = CAIRN_ROUND_WORKER_WRITE, .member = A);
    all_reduced(0); // a write waits for nobody's state
    ck_assert_int_eq(expect(CAIRN_ROUND_DECIDE)->decision->kind, CAIRN_DECISION_WRITE);
    check_state_of(expect(CAIRN_ROUND_DECIDE)->decision, "kept");
}

TEST(a_state_of_a_void_round_is_forgotten)
{
    ask_with(A, start_round(2), "void");
    down(B);
    resolve_none();
    check_published("");
    clear();
    const uint64_t round = next_round();
    all_reduced(0);
    ck_assert_ptr_null(find(CAIRN_ROUND_DECIDE, 0));
    ask_with(A, round, "real");
    check_state_of(expect(CAIRN_ROUND_DECIDE)->decision, "real");
}

TEST(a_new_incarnation_finds_the_state_with_the_shards)
{
    uint8_t bytes[CAIRN_PAYLOAD_BYTES(1) + STATE_MAX];
    const uint64_t round = start_round(1);
    ask_with(A, round, "carried");
    all_reduced(0);
    struct decision last = *expect(CAIRN_ROUND_DECIDE)->decision;
    memcpy(bytes, last.payload, last.payload_bytes);
    last.payload = bytes;
    make(9, 5000);
    GIVE(.kind = CAIRN_ROUND_READY, .version = { 1, 0 });
    all_up();
    resolve_all(&last, 1);
    check_published("carried");
    join(A, 0);
    want(A);
    resolve_all(&last, 1);
    clear();
    ask_with(A, round_open_round(core), "skipped");
    all_reduced(1);
    check_state_of(expect(CAIRN_ROUND_DECIDE)->decision, "carried");
}

TEST(a_state_that_is_longer_than_the_job_declares_fails_it)
{
    uint8_t bytes[CAIRN_PAYLOAD_HEAD_BYTES + STATE_MAX + 1];
    const struct payload head = { .loss_scale = 1, .state = bytes, .state_bytes = STATE_MAX + 1 };
    struct decision last = known(CAIRN_DECISION_SKIP, 77, 41);
    memset(bytes, 0, sizeof bytes);
    last.payload = bytes;
    last.payload_bytes = payload_encode(&head, NULL, bytes); // fits where groups would be
    make(9, 5000);
    GIVE(.kind = CAIRN_ROUND_READY, .version = { 1, 0 });
    all_up();
    persisted();
    for (uint32_t s = 0; s < SHARDS; s++) answer(s, &last, 0, 41);
    expect(CAIRN_ROUND_FAIL);
}

TEST(a_payload_carries_the_state_behind_its_groups_also_within_itself)
{
    uint8_t bytes[CAIRN_PAYLOAD_BYTES(2) + 5], copy[sizeof bytes];
    struct group_scalars scalars[2] = { { .optimizer = group.optimizer },
                                        { .optimizer = group.optimizer } };
    struct payload head = { .state = (const uint8_t *)"12345", .state_bytes = 5 }, back;
    size_t count = payload_encode(&head, NULL, bytes);
    ck_assert_uint_eq(count, CAIRN_PAYLOAD_BYTES(0) + 5);
    ck_assert_int_eq(payload_decode(bytes, count, &back), CAIRN_OK);
    back.group_count = 2; // the same state, behind two groups now
    count = payload_encode(&back, scalars, bytes);
    ck_assert_uint_eq(count, sizeof bytes);
    ck_assert_int_eq(payload_decode(bytes, count, &back), CAIRN_OK);
    ck_assert_uint_eq(back.group_count, 2);
    ck_assert_mem_eq(back.state, "12345", 5);
    memcpy(copy, bytes, sizeof bytes);
    copy[44] ^= 4; // there are bytes, and it says that there are none
    ck_assert_int_eq(payload_decode(copy, count, &back), CAIRN_ERR_MALFORMED);
    ck_assert_int_eq(payload_decode(bytes, count - 5, &back), CAIRN_ERR_MALFORMED);
    bytes[4] = 3; // more groups than there is room for
    ck_assert_int_eq(payload_decode(bytes, count, &back), CAIRN_ERR_MALFORMED);
}

SUITE(30, setup_state, tear_down);
