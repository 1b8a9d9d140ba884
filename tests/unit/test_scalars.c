/* The scalars of an update, the optimizers' table, and their form on the wire. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "proto/spec/scalars.h"
#include "tests/support/hyper.h"
#include "tests/support/suite.h"

static struct exact exact_of(double x)
{
    struct exact sum = { 0 };
    ck_assert_int_eq(exact_add_double(&sum, x), CAIRN_OK);
    return sum;
}

TEST(the_norm_is_of_the_mean_gradient_and_the_clip_of_the_norm)
{
    const struct {
        const char *claim;
        double sum_squares;
        uint64_t weight_sum;
        double loss_scale, max_norm, norm, clip;
        float scale;
    } cases[] = {
        { "no clip asked for", 400, 1, 1, 0, 20, 1, 1.0f },
        { "the weights and the loss scale divide", 400, 4, 1024, 0, 20.0 / 4096, 1, 1.0f / 4096 },
        { "below the limit", 400, 4, 1, 6, 5, 1, 0.25f },
        { "above the limit", 400, 4, 1, 2.5, 5, 2.5 / (5 + 1e-6), (float)(2.5 / (5 + 1e-6) / 4) },
        { "no gradient at all", 0, 3, 1, 1, 0, 1, (float)(1.0 / 3) },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct exact sum = exact_of(cases[i].sum_squares);
        struct update_norm out;
        ck_assert_int_eq(
            update_norm_of(&sum, cases[i].weight_sum, cases[i].loss_scale, cases[i].max_norm, &out),
            CAIRN_OK);
        ck_assert_msg(out.grad_norm == cases[i].norm, "%s: norm %a", cases[i].claim, out.grad_norm);
        ck_assert_msg(out.clip_scale == cases[i].clip, "%s: clip %a", cases[i].claim,
                      out.clip_scale);
        ck_assert_msg(out.grad_scale == f32_bits(cases[i].scale), "%s: scale %08x", cases[i].claim,
                      out.grad_scale);
    }
}

TEST(an_update_that_cannot_be_made_is_refused)
{
    const struct {
        const char *claim;
        uint64_t weight_sum;
        double loss_scale, max_norm;
    } cases[] = {
        { "weights of 0", 0, 1, 0 },
        { "loss scale of 0", 1, 0, 0 },
        { "negative loss scale", 1, -1, 0 },
        { "infinite loss scale", 1, INFINITY, 0 },
        { "loss scale not a number", 1, NAN, 0 },
        { "negative limit", 1, 1, -1 },
        { "limit not a number", 1, 1, NAN },
        { "a scale beyond fp32", 1, 1e-60, 0 },
        { "a denominator beyond double", 2, 1e308, 0 },
    };
    struct exact sum = exact_of(1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct update_norm out = { .grad_norm = 5 };
        cairn_status status = update_norm_of(&sum, cases[i].weight_sum, cases[i].loss_scale,
                                             cases[i].max_norm, &out);
        ck_assert_msg(status == CAIRN_ERR_INVALID && out.grad_norm == 5, "%s", cases[i].claim);
    }
}

TEST(powers_are_by_squaring_and_near_libm)
{
    ck_assert(scalar_power(0.9, 0) == 1);
    ck_assert(scalar_power(0.9, 1) == 0.9);
    ck_assert(scalar_power(0.5, 40) == 0x1p-40);
    ck_assert(scalar_power(0, 5) == 0);
    ck_assert(scalar_power(0.9, UINT64_MAX) == 0);
    for (uint64_t n = 1; n < 5000; n += 37) {
        double near = pow(0.999, (double)n);
        ck_assert(fabs(scalar_power(0.999, n) - near) <= (double)n * 0x1p-53 * near);
    }
}

TEST(adamw_scalars_have_these_bits_on_every_host)
{
    // By Python: - + * / and sqrt in double, powers by squaring, then rounded to fp32.
    static const struct {
        uint64_t step;
        struct group_scalars scalars;
    } expected[] = {
        { 1,
          { 1, 0, 0x3f800000, 0xbc23d70a, 0x3f7fff58, 0x3dcccccd, 0x3f7fbe77, 0x3a83126f,
            0x3d0186e2, 0x322bcc77, 0, 0 } },
        { 10,
          { 1, 0, 0x3f800000, 0xbac93d76, 0x3f7fff58, 0x3dcccccd, 0x3f7fbe77, 0x3a83126f,
            0x3dcc5704, 0x322bcc77, 0, 0 } },
        { 1000000,
          { 1, 0, 0x3f800000, 0xba83126f, 0x3f7fff58, 0x3dcccccd, 0x3f7fbe77, 0x3a83126f,
            0x3f800000, 0x322bcc77, 0, 0 } },
    };
    const struct group_hyper hyper = cairn_hyper_default(CAIRN_OPTIMIZER_ADAMW);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        struct group_scalars scalars;
        ck_assert_int_eq(group_scalars_of(&hyper, expected[i].step, f32_bits(1), &scalars),
                         CAIRN_OK);
        ck_assert_mem_eq(&scalars, &expected[i].scalars, sizeof scalars);
    }
}

TEST(sgd_takes_the_gradient_as_its_buffer_at_the_first_step_only)
{
    struct group_hyper hyper = cairn_hyper_default(CAIRN_OPTIMIZER_SGD);
    struct group_scalars scalars;
    ck_assert_int_eq(group_scalars_of(&hyper, 1, 0, &scalars), CAIRN_OK);
    ck_assert_uint_eq(scalars.flags, 0);
    ck_assert_uint_eq(optimizer_planes(&hyper), 0);
    hyper.momentum = 0.9;
    hyper.nesterov = 1;
    ck_assert_int_eq(group_scalars_of(&hyper, 1, 0, &scalars), CAIRN_OK);
    ck_assert_uint_eq(scalars.flags,
                      CAIRN_SCALAR_MOMENTUM | CAIRN_SCALAR_NESTEROV | CAIRN_SCALAR_FIRST_STEP);
    ck_assert_int_eq(group_scalars_of(&hyper, 2, 0, &scalars), CAIRN_OK);
    ck_assert_uint_eq(scalars.flags, CAIRN_SCALAR_MOMENTUM | CAIRN_SCALAR_NESTEROV);
    ck_assert_uint_eq(optimizer_planes(&hyper), 1u << CAIRN_PLANE_EXP_AVG);
}

TEST(steps_count_from_one)
{
    const struct group_hyper hyper = cairn_hyper_default(CAIRN_OPTIMIZER_ADAMW);
    struct group_scalars scalars;
    ck_assert_int_eq(group_scalars_of(&hyper, 0, 0, &scalars), CAIRN_ERR_INVALID);
}

TEST(every_optimizer_has_its_name_and_accepts_its_defaults)
{
    const char *const *names = optimizer_names();
    for (uint32_t id = 1; id < CAIRN_OPTIMIZER_COUNT; id++) {
        const struct optimizer_kind *o = optimizer_by_id(id);
        ck_assert_ptr_nonnull(o);
        ck_assert_ptr_eq(optimizer_by_name(o->name), o);
        ck_assert_str_eq(names[id - 1], o->name);
        struct group_hyper hyper = cairn_hyper_default(id);
        ck_assert_int_eq(group_hyper_check(&hyper, NULL), CAIRN_OK);
    }
    ck_assert_ptr_null(names[CAIRN_OPTIMIZER_COUNT - 1]);
    ck_assert_ptr_null(optimizer_by_id(0));
    ck_assert_ptr_null(optimizer_by_id(CAIRN_OPTIMIZER_COUNT));
    ck_assert_ptr_null(optimizer_by_name("adagrad"));
}

TEST(every_hyper_parameter_is_refused_by_name_outside_its_range)
{
    for (uint32_t id = 1; id < CAIRN_OPTIMIZER_COUNT; id++) {
        const struct optimizer_kind *o = optimizer_by_id(id);
        for (size_t i = 0; i < o->hyper_count; i++) {
            const struct hyper_info *info = &o->hypers[i];
            const double refused[] = { -1, NAN, INFINITY, info->max_open ? info->max : 2e18 };
            for (size_t k = 0; k < sizeof refused / sizeof refused[0]; k++) {
                struct group_hyper hyper = cairn_hyper_default(id);
                const char *field = "";
                *cairn_hyper_field(&hyper, info) = refused[k];
                ck_assert_int_eq(group_hyper_check(&hyper, &field), CAIRN_ERR_INVALID);
                ck_assert_str_eq(field, info->name);
            }
        }
    }
}

TEST(a_value_that_the_optimizer_does_not_use_is_refused)
{
    struct group_hyper hyper = cairn_hyper_default(CAIRN_OPTIMIZER_ADAM);
    const char *field = "";
    ck_assert_ptr_null(optimizer_hyper(optimizer_by_id(CAIRN_OPTIMIZER_ADAM), "momentum"));
    hyper.momentum = 0.9;
    ck_assert_int_eq(group_hyper_check(&hyper, &field), CAIRN_ERR_INVALID);
    ck_assert_str_eq(field, "momentum");
    hyper = cairn_hyper_default(CAIRN_OPTIMIZER_SGD);
    hyper.nesterov = 1; // and no momentum
    ck_assert_int_eq(group_hyper_check(&hyper, &field), CAIRN_ERR_INVALID);
    ck_assert_str_eq(field, "nesterov");
}

TEST(a_group_of_the_spec_keeps_what_its_optimizer_uses)
{
    char name[] = "all", sgd[] = "sgd", unknown[] = "adagrad";
    struct group_spec group = group_default();
    struct group_hyper hyper;
    const char *field = "";
    group.name = name;
    group.optimizer = sgd;
    group.momentum = 0.9;
    ck_assert_int_eq(group_hyper_of_spec(&group, &hyper, &field), CAIRN_OK);
    ck_assert_uint_eq(hyper.optimizer, CAIRN_OPTIMIZER_SGD);
    ck_assert(hyper.lr == group.lr && hyper.momentum == 0.9);
    ck_assert(hyper.beta1 == 0 && hyper.eps == 0);
    group.lr = -1;
    ck_assert_int_eq(group_hyper_of_spec(&group, &hyper, &field), CAIRN_ERR_INVALID);
    ck_assert_str_eq(field, "lr");
    group.optimizer = unknown;
    ck_assert_int_eq(group_hyper_of_spec(&group, &hyper, &field), CAIRN_ERR_INVALID);
    ck_assert_str_eq(field, "optimizer");
}

TEST(the_largest_values_allowed_still_give_finite_scalars)
{
    for (uint32_t id = 1; id < CAIRN_OPTIMIZER_COUNT; id++) {
        const struct optimizer_kind *o = optimizer_by_id(id);
        struct group_hyper hyper = cairn_hyper_default(id);
        struct group_scalars scalars;
        for (size_t i = 0; i < o->hyper_count; i++) {
            const struct hyper_info *info = &o->hypers[i];
            double largest = info->max_open ? nextafter(info->max, 0) : info->max;
            *cairn_hyper_field(&hyper, info) = largest;
        }
        ck_assert_int_eq(group_scalars_of(&hyper, 1, 0, &scalars), CAIRN_OK);
    }
}

static double number_at(const uint8_t *bytes)
{
    uint64_t bits = 0;
    for (int i = 7; i >= 0; i--) bits = bits << 8 | bytes[i];
    return f64_of_bits(bits);
}

TEST(scalars_and_hyper_parameters_come_back_from_the_wire)
{
    struct group_hyper hyper = cairn_hyper_default(CAIRN_OPTIMIZER_ADAMW);
    struct group_scalars scalars, scalars_back;
    uint8_t hyper_bytes[CAIRN_GROUP_HYPER_BYTES], bytes[CAIRN_GROUP_SCALARS_BYTES];
    ck_assert_int_eq(group_scalars_of(&hyper, 3, f32_bits(0.5f), &scalars), CAIRN_OK);
    group_scalars_encode(&scalars, bytes);
    group_hyper_encode(&hyper, hyper_bytes);
    ck_assert_int_eq(group_scalars_decode(bytes, sizeof bytes, &scalars_back), CAIRN_OK);
    ck_assert_mem_eq(&scalars, &scalars_back, sizeof scalars);
    ck_assert_uint_eq(hyper_bytes[0], hyper.optimizer);
    ck_assert(number_at(hyper_bytes + 4) == hyper.lr);
    ck_assert(number_at(hyper_bytes + 4 + 4 * 8) == hyper.weight_decay);
    ck_assert_uint_eq(bytes[0], CAIRN_OPTIMIZER_ADAMW);
    ck_assert_uint_eq(bytes[11], 0x3f); // grad_scale, its high byte last
}

TEST(malformed_scalars_are_refused)
{
    struct group_hyper hyper = cairn_hyper_default(CAIRN_OPTIMIZER_ADAMW);
    struct group_scalars good, out;
    uint8_t bytes[CAIRN_GROUP_SCALARS_BYTES];
    ck_assert_int_eq(group_scalars_of(&hyper, 3, 0, &good), CAIRN_OK);
    group_scalars_encode(&good, bytes);
    ck_assert_int_eq(group_scalars_decode(bytes, sizeof bytes - 1, &out), CAIRN_ERR_MALFORMED);
    ck_assert_int_eq(group_scalars_decode(NULL, 0, &out), CAIRN_ERR_MALFORMED);
    const uint32_t spoiled[][2] = { { 0, 0 },           { 0, 99 },         { 1, 16 },
                                    { 2, 0x7f800000 },  { 9, 0xffc00000 }, { 11, 0x3f800001 },
                                    { 11, 0x80000000 }, { 11, 0x7fc00000 } }; // word, value
    for (size_t i = 0; i < sizeof spoiled / sizeof spoiled[0]; i++) {
        uint32_t words[CAIRN_GROUP_SCALARS_BYTES / 4];
        struct group_scalars bad;
        memcpy(words, &good, sizeof words);
        words[spoiled[i][0]] = spoiled[i][1];
        memcpy(&bad, words, sizeof bad);
        group_scalars_encode(&bad, bytes);
        ck_assert_int_eq(group_scalars_decode(bytes, sizeof bytes, &out), CAIRN_ERR_MALFORMED);
    }
}

SUITE(60);
