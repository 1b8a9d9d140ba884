/* The coordinator's round machine: members, rounds, decisions, results. Changes of epoch are
 * test_round_epoch.c's; every mixture of faults is cairn-sim's. */
#include "tests/unit/round_driver.h"

TEST(a_round_opens_when_enough_workers_are_attached_and_one_asks)
{
    config.terms.workers_min = 2;
    make(0, 0);
    start();
    join(B, 7);
    want(B);
    ck_assert_uint_eq(out.count, 0);
    join(A, 3); // members changed: the epoch changes first
    expect(CAIRN_ROUND_PERSIST);
    resolve_none();
    const struct round_action *open = expect(CAIRN_ROUND_OPEN_SEND);
    ck_assert_uint_eq(open->member_count, 2);
    ck_assert_uint_eq(open->members[0], A); // by rank
    ck_assert_uint_eq(open->members[1], B);
    const struct round_action *opened = expect(CAIRN_ROUND_WORKER_OPENED);
    ck_assert_uint_eq(opened->member, B);
    ck_assert_uint_eq(opened->rank, 1); // dense
    ck_assert_uint_eq(opened->world, 2);
    ck_assert_ptr_null(find(CAIRN_ROUND_WORKER_OPENED, 1)); // A has not asked yet
    clear();
    want(A);
    ck_assert_uint_eq(expect(CAIRN_ROUND_WORKER_OPENED)->member, A);
}

TEST(no_round_opens_before_the_job_is_ready)
{
    all_up();
    resolve_none();
    join(A, 0);
    want(A);
    ck_assert_ptr_null(find(CAIRN_ROUND_OPEN_SEND, 0));
    struct sentence waiting;
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text, "the initial state of the job");
    GIVE(.kind = CAIRN_ROUND_READY, .version = { 1, 0 });
    resolve_none();
    resolve_none(); // A joined
    expect(CAIRN_ROUND_OPEN_SEND);
}

TEST(a_join_does_not_disturb_the_open_round)
{
    const uint64_t round = start_round(1);
    join(B, 1);
    want(B);
    ck_assert_uint_eq(out.count, 0);
    all_reduced(0);
    expect(CAIRN_ROUND_DECIDE);
    all_published(round, 1);
    expect(CAIRN_ROUND_PERSIST); // before the next round, which B asked for
}

TEST(all_shards_reduced_give_one_decision_and_all_published_the_results)
{
    const uint64_t round = start_round(2);
    ask(A, round);
    reduced(0, 9, 0, 5);
    reduced(0, 9, 0, 5); // a duplicate
    ck_assert_uint_eq(out.count, 0);
    reduced(1, 16, 0, 5);
    const struct decision *decision = expect(CAIRN_ROUND_DECIDE)->decision;
    ck_assert_int_eq(decision->kind, CAIRN_DECISION_APPLY);
    ck_assert_uint_eq(decision->version_after.step, 1);
    const struct payload head = payload_of(decision);
    ck_assert(head.finite && head.grad_norm == 1 && head.clip_scale == 1); // sqrt(25) / 5
    struct group_scalars scalars;
    ck_assert_int_eq(payload_group(decision->payload, decision->payload_bytes, 0, &scalars),
                     CAIRN_OK);
    ck_assert_uint_eq(scalars.grad_scale, f32_bits(0.2f));
    published(0, round, 1);
    ck_assert_ptr_null(find(CAIRN_ROUND_WORKER_RESULT, 0));
    published(1, round, 1);
    const struct round_action *result = expect_result(A, CAIRN_OK);
    ck_assert_uint_eq(result->version.step, 1);
    ck_assert_ptr_null(find(CAIRN_ROUND_WORKER_RESULT, 1)); // B asks later
    ask(B, round);
    expect_result(B, CAIRN_OK);
    ck_assert_uint_eq(round_counts_of(core).applied, 1);
}

TEST_EACH(a_round_that_is_not_finite_is_skipped_and_lowers_the_loss_scale, 0, 2)
{
    scale_from(8);
    config.fail_nonfinite = _i == 1;
    make(0, 0);
    const uint64_t round = start_round(1);
    ask(A, round);
    reduced(0, 1, 3, 1);
    reduced(1, 1, 0, 1);
    const struct decision *decision = expect(CAIRN_ROUND_DECIDE)->decision;
    ck_assert_int_eq(decision->kind, CAIRN_DECISION_SKIP);
    ck_assert_uint_eq(decision->version_after.step, 0);
    ck_assert(!payload_of(decision).finite);
    ck_assert(payload_of(decision).loss_scale == 4);
    all_published(round, 0);
    expect_result(A, config.fail_nonfinite ? CAIRN_ERR_NONFINITE : CAIRN_OK);
    ck_assert(round_loss_scale(core) == 4);
    clear();
    want(A);
    ck_assert(expect(CAIRN_ROUND_WORKER_OPENED)->loss_scale == 4);
    ck_assert_uint_eq(list[0].round, round + 1); // the number is used up
}

TEST(a_round_without_weight_is_skipped)
{
    start_round(1);
    reduced(0, 1, 0, 0);
    reduced(1, 1, 0, 0);
    ck_assert_int_eq(expect(CAIRN_ROUND_DECIDE)->decision->kind, CAIRN_DECISION_SKIP);
}

/* One round of worker A, from BEGIN to its end. */
static void one_round(uint64_t nonfinite, uint64_t step_after)
{
    clear();
    want(A);
    const uint64_t round = round_open_round(core);
    all_reduced(nonfinite);
    all_published(round, step_after);
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_STEADY);
}

TEST(a_lowered_loss_scale_grows_back_to_where_it_was_and_no_further)
{
    scale_from(2);
    make(0, 0);
    const uint64_t round = start_round(1);
    all_reduced(1);
    all_published(round, 0);
    ck_assert(round_loss_scale(core) == 1);
    one_round(1, 0);
    ck_assert(round_loss_scale(core) == 1);
    for (uint64_t i = 1; i <= 2000; i++) one_round(0, i);
    ck_assert(round_loss_scale(core) == 2);
    for (uint64_t i = 2001; i <= 4050; i++) one_round(0, i);
    ck_assert(round_loss_scale(core) == 2);
}

TEST(a_fixed_loss_scale_stays)
{
    config.scaling = (struct round_scaling) { .start = 8 };
    make(0, 0);
    const uint64_t round = start_round(1);
    all_reduced(1);
    ck_assert_int_eq(expect(CAIRN_ROUND_DECIDE)->decision->kind, CAIRN_DECISION_SKIP);
    all_published(round, 0);
    ck_assert(round_loss_scale(core) == 8);
    one_round(0, 1);
    ck_assert(round_loss_scale(core) == 8);
}

TEST(a_dynamic_loss_scale_keeps_its_bounds_and_grows_when_it_is_told_to)
{
    scale_from(4);
    config.scaling.min = 1.5;
    config.scaling.max = 20;
    config.scaling.growth_rounds = 3;
    make(0, 0);
    const uint64_t round = start_round(1);
    all_reduced(1);
    all_published(round, 0);
    ck_assert(round_loss_scale(core) == 2);
    one_round(1, 0);
    ck_assert(round_loss_scale(core) == 1.5);
    for (uint64_t i = 1; i <= 2; i++) one_round(0, i);
    ck_assert(round_loss_scale(core) == 1.5);
    one_round(0, 3);
    ck_assert(round_loss_scale(core) == 3);
    for (uint64_t i = 4; i <= 12; i++) one_round(0, i);
    ck_assert(round_loss_scale(core) == 20);
    for (uint64_t i = 13; i <= 15; i++) one_round(0, i);
    ck_assert(round_loss_scale(core) == 20);
}

TEST(each_round_has_the_rate_of_its_step_and_a_skipped_one_keeps_it)
{
    const struct schedule linear = { CAIRN_SCHEDULE_LINEAR, 2, 6, 0, 0, NULL, 0 };
    const double rates[] = { 0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0 };
    group.lr = 1;
    config.terms.schedules = &linear;
    make(0, 0);
    const uint64_t round = start_round(1);
    all_reduced(1);
    ck_assert(payload_of(expect(CAIRN_ROUND_DECIDE)->decision).lr == rates[0]);
    all_published(round, 0);
    for (uint64_t step = 0; step < 8; step++) {
        struct group_scalars ours, hand;
        struct group_hyper at_step = group;
        ck_assert(round_lr(core, 0) == rates[step]);
        one_round(0, step + 1);
        const struct decision *last = round_last(core);
        ck_assert(payload_of(last).lr == rates[step]);
        at_step.lr = rates[step];
        ck_assert_int_eq(payload_group(last->payload, last->payload_bytes, 0, &ours), CAIRN_OK);
        ck_assert_int_eq(group_scalars_of(&at_step, step + 1, ours.grad_scale, &hand), CAIRN_OK);
        ck_assert_mem_eq(&ours, &hand, sizeof ours);
    }
}

TEST(a_new_incarnation_in_mid_schedule_decides_with_the_same_bits)
{
    const struct schedule cosine = { CAIRN_SCHEDULE_COSINE, 3, 50, 0, 1e-5, NULL, 0 };
    uint8_t through[20][CAIRN_PAYLOAD_BYTES(1)];
    config.terms.schedules = &cosine;
    make(0, 0);
    start_round(1);
    all_reduced(0);
    all_published(round_open_round(core), 1);
    for (uint64_t step = 1; step < 20; step++) {
        one_round(0, step + 1);
        memcpy(through[step], round_last(core)->payload, CAIRN_PAYLOAD_BYTES(1));
    }
    for (uint64_t from = 1; from < 19;
         from++) { // restored at each step, by the decision that made it
        make(9, 5000);
        struct decision last = known(CAIRN_DECISION_NONE, 0, from);
        last.payload = through[from];
        last.payload_bytes = CAIRN_PAYLOAD_BYTES(1);
        GIVE(.kind = CAIRN_ROUND_READY, .version = { 1, from });
        all_up();
        resolve_all(&last, from);
        clear();
        join(A, 0);
        want(A);
        resolve_all(&last, from);
        for (uint64_t step = from; step < 20; step++) {
            one_round(0, step + 1);
            ck_assert_mem_eq(round_last(core)->payload, through[step], CAIRN_PAYLOAD_BYTES(1));
        }
    }
}

TEST(an_amendment_waits_for_the_next_round)
{
    struct group_hyper other = group;
    const bool frozen = true;
    const struct round_terms terms = {
        .groups = &other, .frozen = &frozen, .clip_norm = 0.5, .revision = 7
    };
    struct group_scalars scalars;
    other.lr = 0.25;
    const uint64_t round = start_round(1);
    GIVE(.kind = CAIRN_ROUND_AMEND, .terms = &terms);
    ck_assert(round_terms_of(core)->groups == &group);
    for (uint32_t s = 0; s < SHARDS; s++) reduced(s, 100, 0, 1);
    const struct decision *decision = expect(CAIRN_ROUND_DECIDE)->decision;
    ck_assert(payload_of(decision).lr == group.lr);
    ck_assert(payload_of(decision).clip_scale == 1);
    all_published(round, 1);
    ck_assert(round_lr(core, 0) == 0.25);
    one_round(0, 2);
    ck_assert_uint_eq(round_terms_of(core)->revision, 7);
    decision = round_last(core);
    ck_assert(payload_of(decision).lr == 0.25);
    ck_assert(payload_of(decision).clip_scale < 1);
    ck_assert_int_eq(payload_group(decision->payload, decision->payload_bytes, 0, &scalars),
                     CAIRN_OK);
    ck_assert_uint_eq(scalars.flags, CAIRN_SCALAR_FROZEN);
}

TEST(round_numbers_that_are_used_up_change_the_epoch)
{
    const uint64_t round = start_round(1);
    all_reduced(0);
    all_published(round, 1);
    uint64_t step = 1;
    while (round_stage_of(core) == CAIRN_ROUND_STEADY && step < 10000) {
        clear();
        want(A);
        if (round_stage_of(core) != CAIRN_ROUND_OPEN) break;
        const uint64_t next = round_open_round(core);
        all_reduced(0);
        step++;
        all_published(next, step);
    }
    const struct round_action *persist = expect(CAIRN_ROUND_PERSIST);
    ck_assert_uint_eq(step, CAIRN_ROUND_BLOCK);
    ck_assert_uint_eq(persist->round_reserved, 1 + 2 * CAIRN_ROUND_BLOCK);
}

TEST(the_same_rank_fences_the_older_worker)
{
    const uint64_t round = start_round(2);
    ask(A, round);
    join(C, 1); // B's rank
    const struct round_action *fence = expect(CAIRN_ROUND_WORKER_FENCE);
    ck_assert_uint_eq(fence->member, B);
    ck_assert_int_eq(fence->status, CAIRN_ERR_FENCED);
    expect(CAIRN_ROUND_PERSIST); // B contributed to the open round
    resolve_none();
    expect_result(A, CAIRN_ERR_EPOCH_CHANGED);
    ck_assert_uint_eq(round_worker_count(core), 2);
}

TEST(more_workers_than_are_configured_are_turned_away)
{
    start();
    for (uint32_t i = 0; i < 4; i++) join(A + i, i);
    ck_assert_ptr_null(find(CAIRN_ROUND_WORKER_FENCE, 0));
    join(A + 4, 4);
    ck_assert_int_eq(expect(CAIRN_ROUND_WORKER_FENCE)->status, CAIRN_ERR_BUSY);
    join(A, 0); // known: nothing changes
    ck_assert_ptr_null(find(CAIRN_ROUND_WORKER_FENCE, 1));
    ck_assert_uint_eq(round_worker_count(core), 4);
}

TEST(a_pin_comes_between_the_same_two_decisions_on_every_shard)
{
    const uint64_t round = start_round(1);
    GIVE(.kind = CAIRN_ROUND_PIN, .snapshot = 1); // a round is open, nothing is decided
    ck_assert_uint_eq(expect(CAIRN_ROUND_PIN_SEND)->version.step, 0);
    clear();
    all_reduced(0);
    GIVE(.kind = CAIRN_ROUND_PIN, .snapshot = 2);
    ck_assert_ptr_null(find(CAIRN_ROUND_PIN_SEND, 0));
    ck_assert(round_pin_pending(core));
    all_published(round, 1);
    ck_assert_uint_eq(expect(CAIRN_ROUND_PIN_SEND)->version.step, 1);
    ck_assert_uint_eq(expect(CAIRN_ROUND_PIN_SEND)->snapshot, 2);
    clear();
    shard_down(0);
    GIVE(.kind = CAIRN_ROUND_PIN, .snapshot = 3);
    ck_assert_uint_eq(out.count, 0);
}

TEST(shards_that_disagree_fail_the_job)
{
    start_round(1);
    reduced(0, 1, 0, 1);
    reduced(1, 1, 0, 2); // another sum of weights
    ck_assert_uint_eq(expect(CAIRN_ROUND_FAIL)->shard, 1);
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_FAILED);
    clear();
    want(A);
    shard_up(0);
    ck_assert_uint_eq(out.count, 0);
}

TEST(a_shard_that_published_another_version_fails_the_job)
{
    const uint64_t round = start_round(1);
    all_reduced(0);
    published(0, round, 2);
    ck_assert_uint_eq(expect(CAIRN_ROUND_FAIL)->shard, 0);
}

TEST(what_is_not_of_this_round_changes_nothing)
{
    const uint64_t round = start_round(1);
    const struct step_sums sums = { .weight = 1 };
    const uint64_t epoch = round_epoch_of(core);
    GIVE(.kind = CAIRN_ROUND_REDUCED, .epoch = epoch - 1, .round = round, .sums = &sums);
    GIVE(.kind = CAIRN_ROUND_REDUCED, .epoch = epoch, .round = round - 1, .sums = &sums);
    GIVE(.kind = CAIRN_ROUND_PUBLISHED, .epoch = epoch, .round = round, .version = { 1, 1 });
    GIVE(.kind = CAIRN_ROUND_PERSISTED, .epoch = epoch);
    want(999);
    ask(999, round);
    down(999);
    ck_assert_uint_eq(out.count, 0);
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_OPEN);
}

TEST(a_payload_of_another_length_or_with_unknown_flags_is_malformed)
{
    uint8_t bytes[CAIRN_PAYLOAD_BYTES(1)];
    const struct payload head = {
        .grad_norm = 1.5, .loss_scale = 2, .good_rounds = 7, .finite = true, .group_count = 1
    };
    struct group_scalars scalars;
    ck_assert_int_eq(group_scalars_of(&group, 1, f32_bits(1), &scalars), CAIRN_OK);
    payload_encode(&head, &scalars, bytes);
    struct payload back;
    ck_assert_int_eq(payload_decode(bytes, sizeof bytes, &back), CAIRN_OK);
    ck_assert(back.grad_norm == 1.5 && back.loss_scale == 2 && back.good_rounds == 7 &&
              back.finite && !back.fail);
    ck_assert_int_eq(payload_decode(bytes, sizeof bytes - 1, &back), CAIRN_ERR_MALFORMED);
    ck_assert_int_eq(payload_decode(bytes, 3, &back), CAIRN_ERR_MALFORMED);
    bytes[44] |= 4;
    ck_assert_int_eq(payload_decode(bytes, sizeof bytes, &back), CAIRN_ERR_MALFORMED);
    bytes[44] ^= 4;
    bytes[0] ^= 1;
    ck_assert_int_eq(payload_decode(bytes, sizeof bytes, &back), CAIRN_ERR_MALFORMED);
}

TEST(a_configuration_that_cannot_work_has_no_size)
{
    struct round_config bad = config;
    bad.shard_count = 0;
    ck_assert_uint_eq(round_bytes(&bad), 0);
    bad = config;
    bad.terms.workers_min = bad.member_max + 1;
    ck_assert_uint_eq(round_bytes(&bad), 0);
    bad = config;
    bad.member_max = UINT32_MAX;
    ck_assert_uint_eq(round_bytes(&bad), 0);
}

TEST(a_round_opens_of_exactly_the_ranks_that_the_gate_lets_through)
{
    start();
    GIVE(.kind = CAIRN_ROUND_GATE, .world = 2);
    join(A, 0);
    want(A);
    join(C, 2); // two of them, but not those two
    want(C);
    ck_assert_uint_eq(out.count, 0);
    join(B, 1); // and now one too many
    ck_assert_uint_eq(out.count, 0);
    down(C);
    resolve_none();
    ck_assert_uint_eq(expect(CAIRN_ROUND_OPEN_SEND)->member_count, 2);
    ck_assert(round_contributes(core, A));
    ck_assert(!round_contributes(core, C));
}

TEST(no_round_opens_while_the_gate_is_shut_and_the_open_one_goes_on)
{
    const uint64_t round = start_round(2);
    GIVE(.kind = CAIRN_ROUND_GATE, .world = 2, .shut = true);
    want(B);
    ck_assert_uint_eq(expect(CAIRN_ROUND_WORKER_OPENED)->round, round);
    all_reduced(0);
    all_published(round, 1);
    ck_assert(!round_contributes(core, A));
    clear();
    want(A);
    want(B);
    ck_assert_uint_eq(out.count, 0);
    GIVE(.kind = CAIRN_ROUND_GATE, .world = 2);
    ck_assert_uint_eq(expect(CAIRN_ROUND_OPEN_SEND)->member_count, 2);
}

SUITE(30, set_up, tear_down);
