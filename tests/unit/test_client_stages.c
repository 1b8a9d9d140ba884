/* Stages as the client sees them: what is added up here and what is pushed, and which of them give the same
 * bits. */
#include <check.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/toy_scene.h"

enum { STEPS = 3, MICROS = 3 };

/* The state after some steps. */
struct state {
    float values[TOY_VALUES];
    struct cairn_stats stats;
};

static struct cairn_job_spec spec_of(uint32_t stage, uint32_t micros)
{
    return *TOY_SPEC(.stage = CAIRN_STAGE(stage), .micro_batches = micros);
}

/* A number that is not exact in sums of three. */
static float gradient(uint64_t step, uint32_t micro, int tensor, uint64_t elem)
{
    const uint64_t mixed = (elem + 1) * 2654435761u + step * 40503u + micro * 9176u +
                           (uint64_t)tensor;
    return (float)(mixed % 100003) / 31337 - 1.5f;
}

/* The last micro-batch does not touch the scalar. */
static bool touches(uint32_t micro, uint32_t micros, int tensor)
{
    return toy_tensors[tensor].kind != CAIRN_FROZEN && (tensor != 3 || micro + 1 < micros);
}

static void push(cairn_job *job, const struct cairn_round *round, uint32_t micro, int tensor,
                 const float *values)
{
    float given[TOY_ELEMS]; // ours again as soon as the operation is over
    cairn_op *op = NULL;
    memcpy(given, values, toy_elems(tensor) * sizeof *given);
    good(cairn_push(job, round, micro, toy_tensors[tensor].name, NULL, TOY_F32(given), &op));
    good(cairn_wait(op, TOY_WAIT_MS));
    memset(given, 0xff, sizeof given);
}

static void push_micro(cairn_job *job, const struct cairn_round *round, uint32_t micro,
                       uint32_t micros)
{
    float values[TOY_ELEMS];
    for (int t = 0; t < TOY_TENSORS; t++) {
        if (!touches(micro, micros, t)) continue;
        for (uint64_t i = 0; i < toy_elems(t); i++) values[i] = gradient(round->step, micro, t, i);
        push(job, round, micro, t, values);
    }
}

/* What the client is to have made of all micro-batches. */
static void push_sum(cairn_job *job, const struct cairn_round *round, uint32_t micros)
{
    float values[TOY_ELEMS];
    for (int t = 0; t < TOY_TENSORS; t++) {
        if (!touches(0, micros, t)) continue;
        for (uint64_t i = 0; i < toy_elems(t); i++) {
            values[i] = gradient(round->step, 0, t, i);
            for (uint32_t m = 1; m < micros; m++)
                if (touches(m, micros, t)) values[i] += gradient(round->step, m, t, i);
        }
        push(job, round, 0, t, values);
    }
}

static void read_state(cairn_job *job, struct cairn_version version, struct state *out)
{
    float *to = out->values;
    for (int t = 0; t < TOY_TENSORS; t++) {
        toy_fetch(job, version, t, "param", CAIRN_F32, to);
        to += toy_elems(t);
    }
    out->stats = (struct cairn_stats) { .struct_size = sizeof out->stats };
    good(cairn_job_stats(job, &out->stats));
}

/* A job of its own, for some steps. */
static void train(const char *name, const struct cairn_job_spec *spec, struct state *out)
{
    cairn_job *job = toy_ready(session, name, spec);
    const uint32_t micros = spec->micro_batches;
    struct cairn_result result = { .struct_size = sizeof result };
    for (int step = 0; step < STEPS; step++) {
        const struct cairn_round round = toy_begin(job);
        for (uint32_t m = 0; m < micros; m++) {
            push_micro(job, &round, m, micros);
            if (m + 1 < micros || step == 1) good(cairn_micro_end(job, &round, m));
        }
        result = toy_commit(job, &round);
    }
    read_state(job, result.version, out);
}

static void check_same(const struct state *a, const struct state *b)
{
    ck_assert_int_eq(memcmp(a->values, b->values, sizeof a->values), 0);
}

TEST(with_one_micro_batch_all_stages_give_the_same_bits)
{
    static struct state state[4];
    for (uint32_t stage = 0; stage < 4; stage++) {
        const char name[] = { 's', (char)('0' + stage), 0 };
        const struct cairn_job_spec spec = spec_of(stage, 1);
        train(name, &spec, &state[stage]);
        check_same(&state[stage], &state[0]);
        ck_assert_uint_eq(state[stage].stats.accumulated_bytes, 0); // nothing was copied
        ck_assert_uint_eq(state[stage].stats.pushed_bytes, state[0].stats.pushed_bytes);
    }
}

TEST(with_several_stages_0_and_1_agree_and_2_and_3_do)
{
    static struct state state[4];
    for (uint32_t stage = 0; stage < 4; stage++) {
        const char name[] = { 's', (char)('0' + stage), 0 };
        const struct cairn_job_spec spec = spec_of(stage, MICROS);
        train(name, &spec, &state[stage]);
    }
    check_same(&state[0], &state[1]);
    check_same(&state[2], &state[3]);
}

TEST(what_is_added_up_is_pushed_once_and_is_the_sum_in_order)
{
    static struct state added, summed;
    struct cairn_job_spec spec = spec_of(1, MICROS);
    uint64_t bytes = 0;
    for (int t = 0; t < TOY_TENSORS; t++)
        if (touches(0, MICROS, t)) bytes += 4 * toy_elems(t);
    train("added", &spec, &added);
    ck_assert_uint_eq(added.stats.accumulated_bytes, bytes);
    ck_assert_uint_eq(added.stats.pushed_bytes, bytes * STEPS);

    spec.micro_batches = 1;
    cairn_job *job = toy_ready(session, "summed", &spec);
    struct cairn_result result = { .struct_size = sizeof result };
    for (int step = 0; step < STEPS; step++) {
        const struct cairn_round round = toy_begin(job);
        push_sum(job, &round, MICROS);
        good(cairn_commit(job, &round, MICROS, NULL, 0, TOY_WAIT_MS, &result));
    }
    read_state(job, result.version, &summed);
    check_same(&added, &summed);
}

TEST(gradients_of_bf16_are_added_up_in_f32)
{
    const struct cairn_job_spec spec = spec_of(1, 2);
    cairn_job *job = toy_ready(session, "narrow", &spec);
    uint16_t one = 0x3f80, tiny = 0x3b80; // 1 and 2^-8: their sum is no bf16
    struct cairn_result result = { .struct_size = sizeof result };
    const struct cairn_round round = toy_begin(job);
    good(cairn_push(job, &round, 0, "scale", NULL, TOY_BF16(&one), NULL));
    good(cairn_micro_end(job, &round, 0));
    good(cairn_push(job, &round, 1, "scale", NULL, TOY_BF16(&tiny), NULL));
    good(cairn_commit(job, &round, 1, NULL, 0, TOY_WAIT_MS, &result));
    ck_assert_double_eq(result.grad_norm, 1.00390625);
}

TEST(fewer_micro_batches_than_declared_are_pushed_at_the_commit)
{
    const struct cairn_job_spec spec = spec_of(0, MICROS);
    cairn_job *job = toy_ready(session, "fewer", &spec);
    float three[1] = { 3 };
    for (uint32_t micros = 0; micros < MICROS; micros++) {
        struct cairn_result result = { .struct_size = sizeof result };
        const struct cairn_round round = toy_begin(job);
        for (uint32_t m = 0; m < micros; m++) {
            good(cairn_push(job, &round, m, "scale", NULL, TOY_F32(three), NULL));
            good(cairn_micro_end(job, &round, m));
        }
        good(cairn_commit(job, &round, 0, NULL, 0, TOY_WAIT_MS, &result));
        ck_assert_double_eq(result.grad_norm, micros > 0 ? 3 : 0); // one of weight a micro-batch
    }
}

TEST(a_micro_batch_beyond_those_declared_is_refused)
{
    const struct cairn_job_spec spec = spec_of(1, 2);
    cairn_job *job = toy_ready(session, "more", &spec);
    float one[1] = { 1 };
    const struct cairn_mem mem = toy_mem(one, CAIRN_F32);
    const struct cairn_round round = toy_begin(job);
    for (uint32_t m = 0; m < 2; m++) {
        good(cairn_push(job, &round, m, "scale", NULL, &mem, NULL));
        fails(cairn_push(job, &round, m, "scale", NULL, &mem, NULL), CAIRN_ERR_EXISTS, "already");
        good(cairn_micro_end(job, &round, m));
    }
    fails(cairn_push(job, &round, 2, "scale", NULL, &mem, NULL), CAIRN_ERR_INVALID,
          "micro_batches = 2");
    fails(cairn_micro_end(job, &round, 2), CAIRN_ERR_INVALID, "micro_batches");
    ck_assert(toy_commit(job, &round).applied);
}

TEST(what_was_added_up_in_a_void_round_is_forgotten)
{
    static struct state quiet, disturbed;
    const struct cairn_job_spec spec = spec_of(1, MICROS);
    struct cairn_job_spec other_spec = spec;
    other_spec.rank = 1;
    train("quiet", &spec, &quiet);

    cairn *leaver = toy_session(&rooms, "leaver");
    cairn_job *job = toy_ready(session, "disturbed", &spec);
    cairn_job *other = toy_ready(leaver, "disturbed", &other_spec);
    struct cairn_result result = { .struct_size = sizeof result };
    struct cairn_round round = toy_begin(job);
    while (round.world < 2) { // the other one comes in with the next
        push_micro(job, &round, 0, MICROS);
        if (cairn_commit(job, &round, 0, NULL, 0, TOY_WAIT_MS, &result) == CAIRN_OK)
            ck_abort_msg("a round without the other worker was applied");
        round = toy_begin(job);
    }
    (void)other;
    for (uint32_t m = 0; m < MICROS; m++) {
        push_micro(job, &round, m, MICROS);
        good(cairn_micro_end(job, &round, m));
    }
    cairn_close(leaver);
    fails(cairn_commit(job, &round, 0, NULL, 0, TOY_WAIT_MS, &result), CAIRN_ERR_EPOCH_CHANGED, "");
    for (int step = 0; step < STEPS; step++) {
        round = toy_begin(job);
        for (uint32_t m = 0; m < MICROS; m++) {
            push_micro(job, &round, m, MICROS);
            good(cairn_micro_end(job, &round, m));
        }
        result = toy_commit(job, &round);
    }
    read_state(job, result.version, &disturbed);
    check_same(&quiet, &disturbed);
}

SUITE(60, toy_open_trainer, toy_stop);
