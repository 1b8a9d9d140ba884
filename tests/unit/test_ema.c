/* The average of the parameters: its decays, its bits in an update, and what the spec makes of it. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "gpu/gpu.h"
#include "proto/spec/spec.h"
#include "tests/support/hyper.h"
#include "tests/support/suite.h"

/* ---- decays ---- */

static const struct {
    cairn_ema_schedule schedule;
    double ema;
    uint64_t step;
    double decay;
} decays[] = {
    { CAIRN_EMA_CONSTANT, 0.999, 0, 0 },
    { CAIRN_EMA_CONSTANT, 0.999, 1, 0.999 },
    { CAIRN_EMA_CONSTANT, 0.999, 1000000, 0.999 },
    { CAIRN_EMA_WARMUP, 0.999, 0, 0 },
    { CAIRN_EMA_WARMUP, 0.999, 1, 2.0 / 11 },
    { CAIRN_EMA_WARMUP, 0.999, 8, 0.5 },
    { CAIRN_EMA_WARMUP, 0.999, 990, 991.0 / 1000 },
    { CAIRN_EMA_WARMUP, 0.999, 8990, 0.999 },
    { CAIRN_EMA_WARMUP, 0.999, (uint64_t)1 << 48, 0.999 },
};

TEST_EACH(a_decay_is_that_of_torch_and_diffusers, 0, (int)(sizeof decays / sizeof decays[0]))
{
    const double decay = ema_decay(decays[_i].schedule, decays[_i].ema, decays[_i].step);
    struct group_hyper hyper = cairn_hyper_default(CAIRN_OPTIMIZER_ADAMW);
    struct group_scalars scalars;
    ck_assert(decay == decays[_i].decay);
    hyper.ema = decays[_i].ema;
    hyper.ema_schedule = decays[_i].schedule;
    ck_assert_int_eq(group_scalars_of(&hyper, decays[_i].step + 1, 0, &scalars), CAIRN_OK);
    ck_assert_uint_eq(scalars.ema_weight, f32_bits((float)(1 - decay)));
}

TEST(a_decay_next_to_1_keeps_a_weight)
{
    struct group_hyper hyper = cairn_hyper_default(CAIRN_OPTIMIZER_SGD);
    struct group_scalars scalars;
    hyper.ema = nextafter(1, 0);
    ck_assert_int_eq(group_scalars_of(&hyper, 2, 0, &scalars), CAIRN_OK);
    ck_assert_uint_ne(scalars.ema_weight, 0);
    hyper.ema = 0;
    ck_assert_int_eq(group_scalars_of(&hyper, 2, 0, &scalars), CAIRN_OK);
    ck_assert_uint_eq(scalars.ema_weight, 0);
}

/* ---- updates ---- */

enum { ELEMS = 1003, STEPS = 50 };

struct state {
    float param[ELEMS], exp_avg[ELEMS], exp_avg_sq[ELEMS], ema[ELEMS];
};

static float number(uint32_t i, uint32_t step)
{
    const uint32_t x = (i * 2654435761u + step * 40503u) ^ (i << 7);
    return (float)((double)(x % 65521) / 32760.5 - 1);
}

static void update(struct state *s, uint32_t id, const struct group_scalars *scalars, uint32_t step,
                   bool has_ema)
{
    float grad[ELEMS];
    for (uint32_t i = 0; i < ELEMS; i++) grad[i] = number(i, step);
    const struct update u = { .grad = grad,
                              .param = s->param,
                              .exp_avg = s->exp_avg,
                              .exp_avg_sq = s->exp_avg_sq,
                              .ema = has_ema ? s->ema : NULL,
                              .elems = ELEMS };
    ck_assert_uint_eq(backend_host()->update[id](&u, scalars), 0);
}

/* The formula in double, over the parameters that the updates make: within the bound of the optimizers. */
TEST_EACH(an_average_is_within_the_bound_of_the_formula, 0, 2 * (CAIRN_OPTIMIZER_COUNT - 1))
{
    static struct state s, without;
    static double expected[ELEMS];
    const uint32_t id = 1 + (uint32_t)_i / 2;
    struct group_hyper hyper = cairn_hyper_default(id), plain = hyper;
    hyper.ema = 0.9;
    hyper.ema_schedule = _i % 2;
    for (uint32_t i = 0; i < ELEMS; i++) s.param[i] = s.ema[i] = number(i, 0);
    for (uint32_t i = 0; i < ELEMS; i++) expected[i] = (double)s.ema[i];
    without = s;
    for (uint32_t step = 1; step <= STEPS; step++) {
        struct group_scalars scalars, of_plain;
        const double decay = ema_decay((cairn_ema_schedule)(_i % 2), hyper.ema, step - 1);
        ck_assert_int_eq(group_scalars_of(&hyper, step, f32_bits(1), &scalars), CAIRN_OK);
        ck_assert_int_eq(group_scalars_of(&plain, step, f32_bits(1), &of_plain), CAIRN_OK);
        update(&s, id, &scalars, step, true);
        update(&without, id, &of_plain, step, false);
        for (uint32_t i = 0; i < ELEMS; i++)
            expected[i] = decay * expected[i] + (1 - decay) * (double)s.param[i];
        if (step == 1) ck_assert_mem_eq(s.ema, s.param, sizeof s.ema);
    }
    ck_assert_mem_eq(s.param, without.param, sizeof s.param);
    ck_assert_mem_eq(s.exp_avg, without.exp_avg, sizeof s.exp_avg);
    ck_assert_mem_eq(s.exp_avg_sq, without.exp_avg_sq, sizeof s.exp_avg_sq);
    for (uint32_t i = 0; i < ELEMS; i++) {
        const double bound = 1e-6 * (fabs(expected[i]) + hyper.lr * STEPS);
        ck_assert_msg(fabs((double)s.ema[i] - expected[i]) <= bound, "element %u", i);
    }
}

/* ---- the spec ---- */

static struct job_spec_data make_spec(double ema, cairn_ema_schedule schedule)
{
    struct job_spec_data spec;
    struct group_spec group = group_default();
    char name[] = "default", optimizer[] = "adamw", tensor[] = "w", unit[] = "w";
    group.name = name;
    group.optimizer = optimizer;
    group.ema = ema;
    group.ema_schedule = schedule;
    const struct tensor_spec w = { .name = tensor,
                                   .unit = unit,
                                   .group = name,
                                   .kind = CAIRN_TRAINED,
                                   .wire = CAIRN_F32,
                                   .reduce = CAIRN_F32,
                                   .master = CAIRN_F32,
                                   .shape = { .rank = 1, .dim = { 9 } } };
    spec_init(&spec);
    ck_assert_int_eq(spec_set_name(&spec, "job"), CAIRN_OK);
    ck_assert_int_eq(spec_add_group(&spec, &group), CAIRN_OK);
    ck_assert_int_eq(spec_add_tensor(&spec, &w), CAIRN_OK);
    spec_canonicalize(&spec);
    return spec;
}

TEST(a_group_with_an_average_has_one_plane_more)
{
    struct job_spec_data with = make_spec(0.999, CAIRN_EMA_CONSTANT), without = make_spec(0, 0);
    ck_assert_uint_eq(spec_planes(&with, 0), spec_planes(&without, 0) | 1u << CAIRN_PLANE_EMA);
    ck_assert_str_eq(plane_name(CAIRN_PLANE_EMA), "ema");
    ck_assert_int_eq(plane_number("ema"), CAIRN_PLANE_EMA);
    spec_release(&with);
    spec_release(&without);
}

/* The hash of the spec, and the part of the content root. */
static void hashes_of(double ema, cairn_ema_schedule schedule, uint8_t out[2][32])
{
    struct job_spec_data spec = make_spec(ema, schedule);
    struct sentence why;
    ck_assert_int_eq(spec_check(&spec, optimizer_names(), &why), CAIRN_OK);
    ck_assert_int_eq(spec_hash(&spec, out[0]), CAIRN_OK);
    ck_assert_int_eq(spec_schedules_hash(&spec, out[1]), ema > 0);
    spec_release(&spec);
}

TEST(another_average_is_another_job_and_another_root)
{
    uint8_t none[2][32], slow[2][32], fast[2][32], warm[2][32];
    hashes_of(0, CAIRN_EMA_CONSTANT, none);
    hashes_of(0.999, CAIRN_EMA_CONSTANT, slow);
    hashes_of(0.9, CAIRN_EMA_CONSTANT, fast);
    hashes_of(0.999, CAIRN_EMA_WARMUP, warm);
    ck_assert_mem_ne(none[0], slow[0], 32);
    for (int i = 0; i < 2; i++) {
        ck_assert_mem_ne(slow[i], fast[i], 32);
        ck_assert_mem_ne(slow[i], warm[i], 32);
    }
}

static enum spec_change set(struct job_spec_data *spec, const char *key, const char *value)
{
    enum spec_change change;
    struct sentence why;
    ck_assert_int_eq(spec_set(spec, key, value, &change, &why), CAIRN_OK);
    return change;
}

TEST(an_average_begins_and_ends_in_a_new_job_and_its_decay_changes_in_the_next_round)
{
    struct job_spec_data spec = make_spec(0, CAIRN_EMA_CONSTANT);
    ck_assert_int_eq(set(&spec, "default.ema", "0.999"), CAIRN_SPEC_CREATED);
    ck_assert_int_eq(set(&spec, "default.ema", "0.99"), CAIRN_SPEC_NEXT_ROUND);
    ck_assert_int_eq(set(&spec, "default.ema_schedule", "warmup"), CAIRN_SPEC_NEXT_ROUND);
    ck_assert_int_eq(spec.groups[0].ema_schedule, CAIRN_EMA_WARMUP);
    ck_assert_int_eq(set(&spec, "default.ema", "0"), CAIRN_SPEC_CREATED);
    ck_assert_int_eq(spec.groups[0].ema_schedule, CAIRN_EMA_CONSTANT);
    set(&spec, "default.ema_schedule", "warmup"); // in any order
    set(&spec, "default.ema", "0.5");
    ck_assert_int_eq(spec.groups[0].ema_schedule, CAIRN_EMA_WARMUP);
    spec_release(&spec);
}

static void note_key(void *context, const struct spec_difference *difference)
{
    const char *field = difference->field;
    ck_assert_str_eq(field, "ema");
    ck_assert_str_eq(difference->key, "default.ema");
    *(enum spec_change *)context = difference->change;
}

TEST(a_worker_hears_how_a_job_gets_an_average)
{
    struct job_spec_data with = make_spec(0.5, CAIRN_EMA_CONSTANT), without = make_spec(0, 0);
    enum spec_change change = CAIRN_SPEC_NEVER;
    ck_assert_uint_eq(spec_diff(&with, &without, 4, note_key, &change), 1);
    ck_assert_int_eq(change, CAIRN_SPEC_CREATED);
    spec_release(&with);
    spec_release(&without);
}

SUITE(60);
