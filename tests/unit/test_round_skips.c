/* Skipped rounds in the coordinator's round machine: counted for good, and stopped when there are too many of
 * them in a row. Three in a row end it here, by terms of revision 7. */
#include "tests/unit/round_driver.h"

enum { MAX = 3, REVISION = 7, KEPT_BYTES = CAIRN_PAYLOAD_MAX(1, 0, 0) };

static uint64_t step; /* of the job */
static uint8_t kept[KEPT_BYTES];

static void setup_skips(void)
{
    set_up();
    config.skips_max = MAX;
    config.terms.revision = REVISION;
    make(0, 0);
    step = 0;
}

/* The open round ends so; returns what was decided, until the next round. */
static const struct decision *end_round(uint64_t nonfinite, uint64_t weight)
{
    const uint64_t round = round_open_round(core);
    clear();
    for (uint32_t s = 0; s < SHARDS; s++) reduced(s, 1, nonfinite, weight);
    const struct decision *decision = expect(CAIRN_ROUND_DECIDE)->decision;
    step = decision->version_after.step;
    all_published(round, step);
    return decision;
}

static void skip(uint32_t times)
{
    for (uint32_t i = 0; i < times; i++) {
        want(A);
        ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_OPEN);
        ck_assert_int_eq(end_round(1, 1)->kind, CAIRN_DECISION_SKIP);
    }
    clear();
}

/* True: a round opens, of which the worker hears that there were so many skips. */
static bool opens(uint64_t skips)
{
    clear();
    want(A);
    const bool open = round_stage_of(core) == CAIRN_ROUND_OPEN;
    if (open)
        ck_assert_uint_eq(expect(CAIRN_ROUND_WORKER_OPENED)->skips, skips);
    else
        ck_assert_uint_eq(expect(CAIRN_ROUND_WORKER_REFUSED)->member, A);
    ck_assert(open == !round_halted(core));
    return open;
}

/* Other terms of another revision. */
static void amend(uint64_t revision)
{
    const struct round_terms terms = { .groups = &group, .revision = revision };
    GIVE(.kind = CAIRN_ROUND_AMEND, .terms = &terms);
}

/* What shards keep of it; good until the next one. */
static struct decision keep(const struct decision *last)
{
    struct decision copy = *last;
    memcpy(kept, last->payload, last->payload_bytes);
    copy.payload = kept;
    return copy;
}

/* Another incarnation, of shards that have this decision; A is there again. */
static void restart(struct decision copy, uint64_t generation)
{
    make(round_epoch_of(core) + 9, 5000 + copy.round);
    GIVE(.kind = CAIRN_ROUND_READY, .version = { generation, step });
    all_up();
    join(A, 0);
    want(A);
    resolve_all(&copy, step);
    if (round_stage_of(core) == CAIRN_ROUND_WAITING) resolve_all(&copy, step);
}

TEST(a_skip_is_counted_for_good_and_a_void_round_is_not)
{
    (void)start_round(1);
    const struct decision skipped = keep(end_round(1, 1)), *decision;
    ck_assert_uint_eq(payload_of(&skipped).skips.all, 1);
    ck_assert(opens(1));
    GIVE(.kind = CAIRN_ROUND_WORKER_ABANDON, .member = A,
         .round = round_open_round(core)); // as when it is killed
    resolve_all(&skipped, 0);
    ck_assert(opens(1));
    decision = end_round(0, 1);
    ck_assert_uint_eq(decision->version_after.step, 1);
    ck_assert_uint_eq(payload_of(decision).skips.all, 1);
    ck_assert(opens(1));
    ck_assert_uint_eq(payload_of(end_round(1, 1)).skips.all, 2);
    ck_assert_uint_eq(round_skips(core).all, 2);
}

TEST(a_new_incarnation_goes_on_counting)
{
    (void)start_round(1);
    (void)end_round(0, 1);
    skip(2);
    restart(keep(round_last(core)), 1);
    ck_assert_uint_eq(round_skips(core).all, 2);
    ck_assert_uint_eq(round_skips(core).in_row, 2);
    ck_assert_uint_eq(expect(CAIRN_ROUND_WORKER_OPENED)->skips, 2);
}

TEST(too_many_in_a_row_end_it_until_the_terms_change)
{
    struct sentence waiting;
    (void)start_round(1);
    (void)end_round(1, 1);
    skip(MAX - 1);
    ck_assert(!opens(MAX));
    ck_assert(!opens(MAX)); // each one who asks hears it
    join(B, 1);
    ck_assert(!opens(MAX));
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text,
                     "an amendment or a restore (3 rounds in a row were skipped, their gradients "
                     "not finite, and the loss scale is at its least)");
    restart(keep(round_last(core)), 1);
    ck_assert(!opens(MAX));
    const struct decision last = keep(round_last(core));
    amend(REVISION + 1);
    want(A);
    resolve_all(&last, 0); // A came since the last epoch
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_OPEN);
    // So it is with an incarnation that begins with the new terms.
    config.terms.revision = REVISION + 1;
    restart(last, 1);
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_OPEN);
    ck_assert_uint_eq(payload_of(end_round(1, 1)).skips.in_row, 1);
    ck_assert_uint_eq(round_skips(core).all, MAX + 1);
}

TEST(a_restored_job_counts_on_and_begins_the_row_anew)
{
    (void)start_round(1);
    (void)end_round(1, 1);
    skip(MAX - 1);
    struct decision restored = keep(round_last(core));
    restored.kind = CAIRN_DECISION_NONE;
    restored.round = 0;
    restart(restored, 1);
    ck_assert_uint_eq(expect(CAIRN_ROUND_WORKER_OPENED)->skips, MAX);
    ck_assert_uint_eq(payload_of(end_round(1, 1)).skips.in_row, 1);
}

TEST(an_update_or_a_write_ends_the_row)
{
    (void)start_round(1);
    (void)end_round(1, 1);
    skip(MAX - 2);
    want(A);
    ck_assert_uint_eq(payload_of(end_round(0, 1)).skips.in_row, 0);
    skip(MAX);
    ck_assert(!opens(2 * MAX - 1));
    GIVE(.kind = CAIRN_ROUND_WORKER_WRITE, .member = A); // it mends them
    const uint64_t round = round_open_round(core);
    all_reduced(0);
    for (uint32_t s = 0; s < SHARDS; s++)
        GIVE(.kind = CAIRN_ROUND_PUBLISHED, .shard = s, .epoch = round_epoch_of(core),
             .round = round, .version = { 2, step });
    ck_assert_uint_eq(round_skips(core).all, 2 * MAX - 1);
    ck_assert(opens(2 * MAX - 1));
}

TEST(a_skip_that_lowers_the_loss_scale_is_none_of_the_row)
{
    scale_from(4);
    config.skips_max = MAX;
    make(0, 0);
    (void)start_round(1);
    (void)end_round(1, 1); // 4 to 2
    skip(1);               // to 1
    ck_assert_uint_eq(round_skips(core).in_row, 0);
    skip(MAX);
    ck_assert(!opens(MAX + 2));
}

/* Its batch is used up, but the gradients are not at fault. */
TEST(a_round_in_which_nobody_counts_anything_is_none_of_the_row)
{
    (void)start_round(1);
    (void)end_round(0, 0);
    ck_assert_uint_eq(round_skips(core).all, 1);
    ck_assert_uint_eq(round_skips(core).in_row, 0);
}

TEST(a_job_without_a_bound_goes_on)
{
    config.skips_max = 0;
    make(0, 0);
    (void)start_round(1);
    (void)end_round(1, 1);
    skip(200);
    ck_assert(opens(201));
}

TEST(a_payload_without_skips_is_what_it_was_before_there_were_any)
{
    uint8_t bytes[CAIRN_PAYLOAD_MAX(0, 0, 3)];
    const struct skips skips = { .all = 1ull << 40, .in_row = 9, .revision = 8 };
    struct payload head = { .loss_scale = 1 }, back;
    size_t count = payload_encode(&head, NULL, bytes);
    ck_assert_uint_eq(count, CAIRN_PAYLOAD_HEAD_BYTES);
    ck_assert_int_eq(payload_decode(bytes, count, &back), CAIRN_OK);
    ck_assert(back.skips.all == 0 && back.skips.in_row == 0);
    head.skips = skips;
    head.state = (const uint8_t *)"abc";
    head.state_bytes = 3;
    count = payload_encode(&head, NULL, bytes);
    ck_assert_uint_eq(count, sizeof bytes);
    ck_assert_int_eq(payload_decode(bytes, count, &back), CAIRN_OK);
    ck_assert(back.skips.all == skips.all && back.skips.in_row == 9 && back.skips.revision == 8);
    ck_assert_mem_eq(back.state, "abc", 3);
    for (size_t cut = 3; cut <= CAIRN_PAYLOAD_SKIPS_BYTES + 3; cut++)
        ck_assert_int_eq(payload_decode(bytes, count - cut, &back), CAIRN_ERR_MALFORMED);
    memset(bytes + CAIRN_PAYLOAD_HEAD_BYTES, 0, 8); // more in a row than ever
    ck_assert_int_eq(payload_decode(bytes, count, &back), CAIRN_ERR_MALFORMED);
}

SUITE(30, setup_skips, tear_down);
