/* Which steps passed tensors by, in payloads and in the coordinator's round machine: the update of a tensor
 * goes by its own count. */
#include "tests/unit/round_driver.h"

#define TENSORS   4
#define UNTRAINED 2 /* the tensor that is in no group */

static struct round_tensor tensors[TENSORS];
static struct group_hyper groups[2];
static bool frozen_groups[2];
static struct round_terms terms;

static void setup_tensors(void)
{
    set_up();
    groups[0] = cairn_hyper_default(CAIRN_OPTIMIZER_ADAMW);
    groups[1] = cairn_hyper_default(CAIRN_OPTIMIZER_SGD);
    groups[1].momentum = 0.9;
    memset(frozen_groups, 0, sizeof frozen_groups);
    for (uint32_t t = 0; t < TENSORS; t++)
        tensors[t] = (struct round_tensor) { .elems = 10 + t,
                                             .group = t == UNTRAINED ? CAIRN_ROUND_UNTRAINED
                                                      : t == 3       ? 1
                                                                     : 0 };
    config.terms.groups = groups;
    config.terms.frozen = frozen_groups;
    config.terms.tensors = tensors;
    config.group_count = 2;
    config.tensor_count = TENSORS;
    terms = config.terms;
    make(0, 0);
}

/* From the next round on. */
static void freeze(uint32_t tensor, bool frozen)
{
    tensors[tensor].frozen = frozen;
    terms.any_frozen = frozen;
    GIVE(.kind = CAIRN_ROUND_AMEND, .terms = &terms);
}

/* Ends the open round with an update that makes `step`, and opens the next. */
static struct decision apply(uint64_t round, uint64_t step, uint8_t bytes[1024])
{
    all_reduced(0);
    struct decision last = *expect(CAIRN_ROUND_DECIDE)->decision;
    ck_assert_uint_le(last.payload_bytes, 1024);
    memcpy(bytes, last.payload, last.payload_bytes);
    last.payload = bytes;
    all_published(round, step);
    clear();
    return last;
}

static struct missed missed_of(const struct decision *decision)
{
    return payload_of(decision).missed;
}

/* The scalars that the tensor's update is made with. */
static struct group_scalars scalars_of(const struct decision *decision, uint32_t tensor)
{
    struct group_scalars scalars;
    const struct missed missed = missed_of(decision);
    const uint32_t c = missed_class_of(&missed, tensor);
    ck_assert_int_eq(
        payload_group(decision->payload, decision->payload_bytes, tensors[tensor].group, &scalars),
        CAIRN_OK);
    if (c == CAIRN_MISSED_NONE) return scalars;
    const struct missed_class one = missed_class_at(&missed, c);
    ck_assert_uint_eq(one.group, tensors[tensor].group);
    ck_assert_uint_eq(one.flags & CAIRN_MISSED_THIS, 0);
    return missed_scalars(&one, &scalars);
}

static void check_count(const struct decision *decision, uint32_t tensor, uint64_t count)
{
    const struct group_scalars made = scalars_of(decision, tensor);
    struct group_scalars expected;
    ck_assert_int_eq(
        group_scalars_of(&groups[tensors[tensor].group], count, made.grad_scale, &expected),
        CAIRN_OK);
    ck_assert_mem_eq(&made, &expected, sizeof made);
}

TEST(a_job_whose_tensors_missed_nothing_says_nothing_of_it)
{
    uint8_t bytes[1024];
    const struct decision last = apply(start_round(1), 1, bytes);
    ck_assert_uint_eq(missed_of(&last).size, 0);
    ck_assert_uint_eq(last.payload_bytes, CAIRN_PAYLOAD_BYTES(2));
}

TEST(a_frozen_tensor_is_passed_by_and_goes_on_by_its_own_count)
{
    uint8_t bytes[1024];
    apply(start_round(1), 1, bytes);
    freeze(1, true);
    struct decision last = apply(next_round(), 2, bytes);
    const struct missed missed = missed_of(&last);
    ck_assert_uint_eq(missed_steps(&missed, 0), 0);
    ck_assert_uint_eq(missed_steps(&missed, 1), 1);
    const struct missed_class one = missed_class_at(&missed, missed_class_of(&missed, 1));
    ck_assert_uint_eq(one.flags, CAIRN_MISSED_THIS);
    check_count(&last, 0, 2);
    apply(next_round(), 3, bytes);
    freeze(1, false);
    last = apply(next_round(), 4, bytes);
    check_count(&last, 1, 2);
    check_count(&last, 0, 4);
    ck_assert_uint_eq(round_missed(core, 1), 2);
}

TEST(the_first_step_of_sgd_is_the_tensors_own)
{
    uint8_t bytes[1024];
    terms.any_frozen = config.terms.any_frozen = tensors[3].frozen = true;
    make(0, 0);
    apply(start_round(1), 1, bytes);
    freeze(3, false);
    struct decision last = apply(next_round(), 2, bytes);
    check_count(&last, 3, 1);
    ck_assert((scalars_of(&last, 3).flags & CAIRN_SCALAR_FIRST_STEP) != 0);
    last = apply(next_round(), 3, bytes);
    check_count(&last, 3, 2);
    ck_assert((scalars_of(&last, 3).flags & CAIRN_SCALAR_FIRST_STEP) == 0);
}

TEST(a_frozen_group_misses_steps_with_all_its_tensors)
{
    uint8_t bytes[1024];
    frozen_groups[0] = terms.any_frozen = true;
    config.terms = terms;
    make(0, 0);
    const struct decision last = apply(start_round(1), 1, bytes);
    const struct missed missed = missed_of(&last);
    ck_assert_uint_eq(missed_steps(&missed, 0), 1);
    ck_assert_uint_eq(missed_steps(&missed, 1), 1);
    ck_assert_uint_eq(missed_steps(&missed, 3), 0);
    ck_assert_uint_eq(missed_class_count(&missed), 1);
}

TEST(a_skip_and_a_write_pass_nothing_by_and_a_new_incarnation_knows_all_of_it)
{
    uint8_t bytes[1024];
    start_round(1);
    freeze(0, true);
    apply(round_open_round(core), 1, bytes); // by the terms that it began with
    apply(next_round(), 2, bytes);
    uint64_t round = next_round();
    all_reduced(1); // not finite
    struct decision last = *expect(CAIRN_ROUND_DECIDE)->decision;
    struct missed missed = missed_of(&last);
    ck_assert_uint_eq(missed_steps(&missed, 0), 1);
    all_published(round, 2);
    clear();
    GIVE(.kind = CAIRN_ROUND_WORKER_WRITE, .member = A);
    all_reduced(0);
    last = *expect(CAIRN_ROUND_DECIDE)->decision;
    ck_assert_int_eq(last.kind, CAIRN_DECISION_WRITE);
    missed = missed_of(&last);
    ck_assert_uint_eq(missed_steps(&missed, 0), 1);
    memcpy(bytes, last.payload, last.payload_bytes);
    last.payload = bytes;
    make(9, 5000);
    GIVE(.kind = CAIRN_ROUND_READY, .version = { 1, 0 });
    all_up();
    persisted();
    for (uint32_t s = 0; s < SHARDS; s++) answer(s, &last, 0, 2);
    ck_assert_uint_eq(round_missed(core, 0), 1);
    ck_assert_uint_eq(round_missed(core, 1), 0);
}

TEST(what_missed_more_steps_than_there_were_fails_the_job)
{
    uint8_t bytes[1024], room[CAIRN_MISSED_BYTES(TENSORS)];
    struct missed_writer writer;
    struct payload head = { .loss_scale = 1 };
    missed_begin(&writer, room, TENSORS);
    missed_put(&writer, 1, 42, 0, false);
    head.missed = missed_end(&writer);
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

/* ---- the payload ---- */

TEST(what_was_put_is_found_again_and_neighbours_of_one_class_are_one_run)
{
    enum { MANY = 3000 };
    static uint8_t room[CAIRN_MISSED_BYTES(MANY)];
    struct missed_writer writer;
    missed_begin(&writer, room, MANY);
    for (uint32_t t = 0; t < MANY; t++) missed_put(&writer, t, t / 7 % 300, t % 2, t % 3 == 0);
    const struct missed missed = missed_end(&writer);
    for (uint32_t t = 0; t < MANY; t++) {
        const uint32_t c = missed_class_of(&missed, t);
        ck_assert_uint_eq(missed_steps(&missed, t), t / 7 % 300);
        if (t / 7 % 300 == 0) continue;
        const struct missed_class one = missed_class_at(&missed, c);
        ck_assert_uint_eq(one.group, t % 2);
        ck_assert_uint_eq(one.flags, t % 3 == 0 ? CAIRN_MISSED_THIS : 0);
    }
    missed_begin(&writer, room, MANY);
    for (uint32_t t = 5; t < MANY; t += 2) missed_put(&writer, t, 4, 0, false);
    ck_assert_uint_eq(missed_end(&writer).size, CAIRN_MISSED_BYTES(1));
}

TEST(more_runs_than_there_is_room_for_are_told)
{
    static uint8_t room[CAIRN_MISSED_BYTES(CAIRN_MISSED_RUNS_MAX)];
    struct missed_writer writer;
    missed_begin(&writer, room, 1000000);
    for (uint32_t t = 0; t < CAIRN_MISSED_RUNS_MAX; t++) {
        ck_assert(!writer.is_full);
        missed_put(&writer, t, 1 + t % 2, 0, false);
    }
    ck_assert(!writer.is_full);
    missed_put(&writer, CAIRN_MISSED_RUNS_MAX, 0, 0, false);
    ck_assert(writer.is_full);
}

static const struct malformed {
    size_t at;
    uint8_t byte;
} malformeds[] = {
    { 0, 0 },                                    /* no class */
    { 0, 3 },                                    /* more classes than fit */
    { 4, 0 },                                    /* no run */
    { 3, 1 },                                    /* far too many */
    { CAIRN_MISSED_HEAD_BYTES, 0 },              /* a class that missed nothing */
    { CAIRN_MISSED_HEAD_BYTES + 12, 4 },         /* a flag that is none */
    { CAIRN_MISSED_HEAD_BYTES + 19, 0x7f },      /* with the byte before: infinite */
    { CAIRN_MISSED_HEAD_BYTES + 2 * 24 + 4, 3 }, /* no such class */
    { CAIRN_MISSED_HEAD_BYTES + 2 * 24 + 8, 0 }, /* not behind the run before */
};

TEST_EACH(what_is_malformed_is_refused, 0, sizeof malformeds / sizeof *malformeds)
{
    uint8_t room[CAIRN_MISSED_BYTES(TENSORS)];
    struct missed_writer writer;
    struct missed missed;
    missed_begin(&writer, room, TENSORS);
    missed_put(&writer, 0, 1, 0, false);
    missed_put(&writer, 1, 2, 0, false);
    const size_t size = missed_end(&writer).size;
    room[CAIRN_MISSED_HEAD_BYTES + 18] = 0x80;
    ck_assert_int_eq(missed_decode(room, size, &missed), CAIRN_OK);
    ck_assert_int_eq(missed_decode(room, size - 1, &missed), CAIRN_ERR_MALFORMED);
    room[malformeds[_i].at] = malformeds[_i].byte;
    ck_assert_int_eq(missed_decode(room, size, &missed), CAIRN_ERR_MALFORMED);
}

TEST(another_count_changes_no_scalar_but_those_that_a_class_has)
{
    for (uint32_t id = 1; optimizer_by_id(id) != NULL; id++) {
        struct group_hyper hyper = cairn_hyper_default(id);
        if (id == CAIRN_OPTIMIZER_SGD) hyper.momentum = 0.9;
        struct group_scalars of_group, own;
        ck_assert_int_eq(group_scalars_of(&hyper, 9, f32_bits(0.5f), &of_group), 0);
        for (uint64_t count = 1; count < 9; count++) {
            uint8_t room[CAIRN_MISSED_BYTES(1)];
            struct missed_writer writer;
            ck_assert_int_eq(group_scalars_of(&hyper, count, f32_bits(0.5f), &own), 0);
            missed_begin(&writer, room, 1);
            missed_put(&writer, 0, 9 - count, 0, false);
            missed_set(&writer, 0, &own);
            const struct missed missed = missed_end(&writer);
            const struct missed_class one = missed_class_at(&missed, 0);
            const struct group_scalars made = missed_scalars(&one, &of_group);
            ck_assert_mem_eq(&made, &own, sizeof own);
        }
    }
}

TEST(a_payload_gets_another_list_and_keeps_all_else)
{
    uint8_t room[CAIRN_MISSED_BYTES(TENSORS)], bytes[512], made[512];
    const double rate = 0.5;
    struct payload head = { .loss_scale = 8,
                            .driven = &rate,
                            .driven_count = 1,
                            .skips = { .all = 1 },
                            .state = (const uint8_t *)"123",
                            .state_bytes = 3 };
    struct payload back;
    struct missed_writer writer;
    const size_t plain = payload_encode(&head, NULL, bytes);
    ck_assert_int_eq(payload_decode(bytes, plain, &back), CAIRN_OK);
    missed_begin(&writer, room, TENSORS);
    missed_put(&writer, 1, 5, 0, false);
    const struct missed missed = missed_end(&writer);
    const size_t with = payload_with_missed(bytes, &back, &missed, made);
    ck_assert_int_eq(payload_decode(made, with, &back), CAIRN_OK);
    ck_assert_uint_eq(missed_steps(&back.missed, 1), 5);
    ck_assert_mem_eq(back.state, "123", 3);
    ck_assert_double_eq(payload_driven(made, &back, 0), rate);
    uint8_t again[512];
    const struct missed none = { .bytes = NULL };
    ck_assert_uint_eq(payload_with_missed(made, &back, &none, again), plain);
    ck_assert_mem_eq(again, bytes, plain);
}

SUITE(30, setup_tensors, tear_down);
