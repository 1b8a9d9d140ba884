/* Optimizers: every one of the registry against torch.optim's golden values, against its equations
 * written plainly, and in ranges. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"
#include "tests/golden/optim_golden.h"
#include "tests/support/hyper.h"
#include "tests/support/suite.h"

#define GOLDEN_COUNT (sizeof golden / sizeof golden[0])

/* `mix` and `number` of tests/golden/make_optim_golden.py */
static uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

static float number(uint32_t element, uint32_t step)
{
    uint32_t bits = mix(element * 977 + step * 65537 + 1);
    int whole = (int)(bits >> 8) - (1 << 23);
    return (float)((double)whole / (1 << 23) / (1 << (element * 7 % 16)));
}

struct state {
    float *param, *exp_avg, *exp_avg_sq;
};

static struct state new_state(size_t elems)
{
    struct state s = { calloc(elems, sizeof(float)), calloc(elems, sizeof(float)),
                       calloc(elems, sizeof(float)) };
    ck_assert(s.param != NULL && s.exp_avg != NULL && s.exp_avg_sq != NULL);
    return s;
}

static void free_state(struct state *s)
{
    free(s->param);
    free(s->exp_avg);
    free(s->exp_avg_sq);
}

static void update(const struct state *s, const float *grad, void *wire, cairn_dtype wire_dtype,
                   size_t start, size_t elems, const struct group_scalars *scalars)
{
    struct update u = { .grad = grad + start,
                        .param = s->param + start,
                        .exp_avg = s->exp_avg + start,
                        .exp_avg_sq = s->exp_avg_sq + start,
                        .wire_dtype = wire_dtype,
                        .elems = elems };
    if (wire != NULL) u.wire = (char *)wire + start * dtype_size((int)wire_dtype);
    backend_host()->update[scalars->optimizer](&u, scalars);
}

static struct group_hyper golden_hyper(const struct golden *g)
{
    return (struct group_hyper) { .optimizer = optimizer_by_name(g->optimizer)->id,
                                  .lr = g->lr,
                                  .beta1 = g->beta1,
                                  .beta2 = g->beta2,
                                  .eps = g->eps,
                                  .weight_decay = g->weight_decay,
                                  .momentum = g->momentum,
                                  .nesterov = g->nesterov };
}

/* One step as a round makes it: a weight of 4, a loss scale of 1024, so D is exact. */
static void golden_step(const struct golden *g, const struct state *s, uint32_t step)
{
    const struct shape shape = { .rank = 1, .dim = { GOLDEN_ELEMS } };
    const struct geometry geometry = geometry_of(&shape);
    const struct group_hyper hyper = golden_hyper(g);
    float acc[GOLDEN_ELEMS];
    struct sums sums = { 0 };
    struct update_norm norm;
    struct group_scalars scalars;
    for (uint32_t i = 0; i < GOLDEN_ELEMS; i++) acc[i] = number(i, step) * 4096.0f;
    backend_host()->sum_leaves(acc, &geometry, 0, geometry.leaf_count, &sums);
    ck_assert_int_eq(update_norm_of(&sums.sum_squares, 4, 1024, g->max_norm, &norm), CAIRN_OK);
    ck_assert_int_eq(group_scalars_of(&hyper, step, norm.grad_scale, &scalars), CAIRN_OK);
    if (g->max_norm > 0) ck_assert(norm.clip_scale < 1);
    update(s, acc, NULL, CAIRN_F32, 0, GOLDEN_ELEMS, &scalars);
}

/* The bound of design: |difference| <= 1e-6 * (|p| + lr * steps). */
static double largest_ratio(const struct golden *g, const float *param)
{
    double largest = 0;
    for (size_t i = 0; i < GOLDEN_ELEMS; i++) {
        double theirs = (double)f32_from_bits(g->param[i]);
        double bound = 1e-6 * (fabs(theirs) + g->lr * GOLDEN_STEPS);
        double ratio = fabs((double)param[i] - theirs) / bound;
        if (!(ratio <= largest)) largest = ratio; // NaN too
    }
    return largest;
}

TEST_EACH(fifty_steps_are_within_the_bound_of_torch, 0, (int)GOLDEN_COUNT)
{
    const struct golden *g = &golden[_i];
    struct state s = new_state(GOLDEN_ELEMS);
    for (uint32_t i = 0; i < GOLDEN_ELEMS; i++) s.param[i] = number(i, 0);
    for (uint32_t step = 1; step <= GOLDEN_STEPS; step++) golden_step(g, &s, step);
    double ratio = largest_ratio(g, s.param);
    printf("%-5s lr %g wd %g momentum %g nesterov %g max_norm %g: largest difference from torch is "
           "%.3f of the bound\n",
           g->optimizer, g->lr, g->weight_decay, g->momentum, g->nesterov, g->max_norm, ratio);
    ck_assert_msg(ratio <= 1, "%f of the bound", ratio);
    free_state(&s);
}

TEST(every_optimizer_has_a_kernel_and_golden_values)
{
    ck_assert_ptr_null((void *)(uintptr_t)backend_host()->update[0]);
    for (uint32_t id = 1; id < CAIRN_OPTIMIZER_COUNT; id++) {
        const char *name = optimizer_by_id(id)->name;
        size_t found = 0;
        for (size_t i = 0; i < GOLDEN_COUNT; i++) found += strcmp(golden[i].optimizer, name) == 0;
        ck_assert_msg(found > 0, "%s has no golden values: see tests/golden/README.md", name);
        ck_assert_msg(backend_host()->update[id] != NULL, "%s has no host kernel", name);
    }
}

/* The equations, an element at a time, each operation stored before the next one. */
struct element {
    volatile float p, m, v;
};

static float slow_grad(const struct element *e, float acc, const struct group_scalars *s)
{
    volatile float grad = acc * f32_from_bits(s->grad_scale), term;
    if (s->optimizer == CAIRN_OPTIMIZER_ADAMW || s->decay == 0) return grad;
    term = f32_from_bits(s->decay) * e->p;
    grad = grad + term;
    return grad;
}

static void slow_adam(struct element *e, float acc, const struct group_scalars *s)
{
    const float grad = slow_grad(e, acc, s);
    volatile float a, b;
    if (s->optimizer == CAIRN_OPTIMIZER_ADAMW) e->p = e->p * f32_from_bits(s->decay);
    a = grad - e->m;
    a = f32_from_bits(s->one_minus_beta1) * a;
    e->m = e->m + a;
    a = f32_from_bits(s->one_minus_beta2) * grad;
    a = a * grad;
    b = e->v * f32_from_bits(s->beta2);
    e->v = b + a;
    a = sqrtf(e->v);
    a = a / f32_from_bits(s->sqrt_bc2);
    a = a + f32_from_bits(s->eps);
    b = f32_from_bits(s->neg_step_size) * e->m;
    b = b / a;
    e->p = e->p + b;
}

static void slow_sgd(struct element *e, float acc, const struct group_scalars *s)
{
    const float grad = slow_grad(e, acc, s);
    volatile float step = grad, a;
    if ((s->flags & CAIRN_SCALAR_MOMENTUM) != 0) {
        a = e->m * f32_from_bits(s->momentum);
        e->m = (s->flags & CAIRN_SCALAR_FIRST_STEP) != 0 ? grad : a + grad;
        step = e->m;
    }
    if ((s->flags & CAIRN_SCALAR_NESTEROV) != 0) {
        a = f32_from_bits(s->momentum) * e->m;
        step = grad + a;
    }
    a = f32_from_bits(s->neg_step_size) * step;
    e->p = e->p + a;
}

static void slow_update(struct element *e, float acc, const struct group_scalars *s)
{
    if (s->optimizer == CAIRN_OPTIMIZER_SGD) {
        slow_sgd(e, acc, s);
    } else {
        slow_adam(e, acc, s);
    }
}

#define ELEMS ((size_t)6151)

/* Of any size, subnormals among them; every 97th infinite or NaN in the last step. */
static float wild(uint32_t element, uint32_t step)
{
    float x = ldexpf(number(element, step), (int)(mix(element ^ step) % 250) - 125);
    if (step == 3 && element % 97 == 0) return element % 2 == 0 ? INFINITY : NAN;
    return x;
}

static void check_same(const float *a, const float *b, size_t elems)
{
    for (size_t i = 0; i < elems; i++) {
        if (isnan(a[i]) && isnan(b[i])) continue;
        if (f32_bits(a[i]) == f32_bits(b[i])) continue;
        ck_abort_msg("element %zu: %a and %a", i, (double)a[i], (double)b[i]);
    }
}

TEST_EACH(a_kernel_has_the_bits_of_its_equations, 0, (int)GOLDEN_COUNT)
{
    const struct group_hyper hyper = golden_hyper(&golden[_i]);
    struct state fast = new_state(ELEMS), slow = new_state(ELEMS);
    float *grad = malloc(ELEMS * sizeof *grad);
    for (uint32_t i = 0; i < ELEMS; i++) fast.param[i] = slow.param[i] = wild(i, 0);
    for (uint32_t step = 1; step <= 3; step++) {
        struct group_scalars scalars;
        ck_assert_int_eq(group_scalars_of(&hyper, step, f32_bits(0.3f), &scalars), 0);
        for (uint32_t i = 0; i < ELEMS; i++) grad[i] = wild(i, step);
        update(&fast, grad, NULL, CAIRN_F32, 0, ELEMS, &scalars);
        for (size_t i = 0; i < ELEMS; i++) {
            struct element e = { slow.param[i], slow.exp_avg[i], slow.exp_avg_sq[i] };
            slow_update(&e, grad[i], &scalars);
            slow.param[i] = e.p;
            slow.exp_avg[i] = e.m;
            slow.exp_avg_sq[i] = e.v;
        }
        check_same(fast.param, slow.param, ELEMS);
        check_same(fast.exp_avg, slow.exp_avg, ELEMS);
        check_same(fast.exp_avg_sq, slow.exp_avg_sq, ELEMS);
    }
    free_state(&fast);
    free_state(&slow);
    free(grad);
}

TEST_EACH(ranges_at_any_offset_have_the_bits_of_the_whole, 0, (int)GOLDEN_COUNT)
{
    const struct group_hyper hyper = golden_hyper(&golden[_i]);
    struct state whole = new_state(ELEMS), ranges = new_state(ELEMS);
    float *grad = malloc(ELEMS * sizeof *grad);
    uint16_t *wire_whole = malloc(ELEMS * 2), *wire_ranges = malloc(ELEMS * 2);
    for (uint32_t i = 0; i < ELEMS; i++) whole.param[i] = ranges.param[i] = wild(i, 0);
    for (uint32_t step = 1; step <= 2; step++) {
        struct group_scalars scalars;
        ck_assert_int_eq(group_scalars_of(&hyper, step, f32_bits(0.3f), &scalars), 0);
        for (uint32_t i = 0; i < ELEMS; i++) grad[i] = wild(i, step);
        update(&whole, grad, wire_whole, CAIRN_BF16, 0, ELEMS, &scalars);
        for (size_t start = 0, n; start < ELEMS; start += n) {
            n = mix((uint32_t)start) % 500 + 1;
            if (n > ELEMS - start) n = ELEMS - start;
            update(&ranges, grad, wire_ranges, CAIRN_BF16, start, n, &scalars);
        }
    }
    check_same(whole.param, ranges.param, ELEMS);
    check_same(whole.exp_avg, ranges.exp_avg, ELEMS);
    check_same(whole.exp_avg_sq, ranges.exp_avg_sq, ELEMS);
    ck_assert_mem_eq(wire_whole, wire_ranges, ELEMS * 2);
    free_state(&whole);
    free_state(&ranges);
    free(grad);
    free(wire_whole);
    free(wire_ranges);
}

TEST_EACH(the_wire_copy_is_the_new_parameter_converted, 0, (int)GOLDEN_COUNT)
{
    const struct group_hyper hyper = golden_hyper(&golden[_i]);
    struct group_scalars scalars;
    struct state s = new_state(ELEMS);
    float *grad = malloc(ELEMS * sizeof *grad), *f32 = malloc(ELEMS * sizeof *f32);
    uint16_t *bf16 = malloc(ELEMS * 2), *converted = malloc(ELEMS * 2);
    ck_assert_int_eq(group_scalars_of(&hyper, 1, f32_bits(1), &scalars), CAIRN_OK);
    for (uint32_t i = 0; i < ELEMS; i++) {
        s.param[i] = number(i, 0);
        grad[i] = number(i, 1);
    }
    update(&s, grad, bf16, CAIRN_BF16, 0, ELEMS, &scalars);
    backend_host()->convert(converted, CAIRN_BF16, s.param, CAIRN_F32, ELEMS);
    ck_assert_mem_eq(bf16, converted, ELEMS * 2);
    update(&s, grad, f32, CAIRN_F32, 0, ELEMS, &scalars);
    ck_assert_mem_eq(f32, s.param, ELEMS * sizeof *f32);
    free_state(&s);
    free(grad);
    free(f32);
    free(bf16);
    free(converted);
}

TEST(sgd_without_momentum_needs_no_moments)
{
    const struct group_hyper hyper = cairn_hyper_default(CAIRN_OPTIMIZER_SGD);
    struct group_scalars scalars;
    float param[3] = { 1, 2, 3 }, grad[3] = { 1, 0, -1 };
    struct update u = { .grad = grad, .param = param, .elems = 3 };
    ck_assert_int_eq(group_scalars_of(&hyper, 1, f32_bits(1), &scalars), CAIRN_OK);
    backend_host()->update[CAIRN_OPTIMIZER_SGD](&u, &scalars);
    ck_assert(param[0] == 1 - 1e-3f && param[1] == 2 && param[2] == 3 + 1e-3f);
}

SUITE(60);
