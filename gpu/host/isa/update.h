/* Common parts of the optimizers: the walk over a run of elements, one vector after another. Each
 * step's published copy is written while the step is in registers or the nearest cache. */
#ifndef CAIRN_GPU_HOST_ISA_UPDATE_H
#define CAIRN_GPU_HOST_ISA_UPDATE_H

#include "gpu/host/isa/vector.h"

/* A group's scalars, in every element. */
struct constants {
    f32_vector grad_scale, decay, one_minus_b1, b2, one_minus_b2, sqrt_bc2, eps, neg_step_size;
    f32_vector momentum;
    bool decays, first_step, nesterov;
};

static inline struct constants constants_of(const struct group_scalars *s)
{
    return (struct constants) {
        .grad_scale = spread(s->grad_scale),
        .decay = spread(s->decay),
        .one_minus_b1 = spread(s->one_minus_beta1),
        .b2 = spread(s->beta2),
        .one_minus_b2 = spread(s->one_minus_beta2),
        .sqrt_bc2 = spread(s->sqrt_bc2),
        .eps = spread(s->eps),
        .neg_step_size = spread(s->neg_step_size),
        .momentum = spread(s->momentum),
        .decays = s->decay != 0,
        .first_step = (s->flags & CAIRN_SCALAR_FIRST_STEP) != 0,
        .nesterov = (s->flags & CAIRN_SCALAR_NESTEROV) != 0,
    };
}

/* One vector of an optimizer: the new parameter; m and v (those it keeps) in place. */
typedef f32_vector (*rule_fn)(f32_vector p, f32_vector *m, f32_vector *v, f32_vector g,
                              const struct constants *k);

static inline __attribute__((always_inline)) void
publish_vector(void *wire, cairn_dtype dtype, bool around, size_t i, f32_vector p)
{
    if (dtype == CAIRN_BF16) {
        const u16_vector half = narrow_vector(p);
        uint16_t *at = (uint16_t *)wire + i;
        if (around)
            stream_u16(at, half);
        else
            memcpy(at, &half, sizeof half);
    } else if (around) {
        stream_f32((float *)wire + i, p);
    } else {
        store_f32((float *)wire + i, p);
    }
}

/* Becomes NaN or infinite, and stays so, with a result that is, or a parameter so large that bf16 may have it
 * as infinite. Large finite numbers may add up to that, too: who finds it looks again. A first moment that is
 * not finite takes its parameter along. Two operations a vector: more do not hide behind divisions and
 * memory, as counting in each plane does not. */
static inline f32_vector add_results(f32_vector seen, f32_vector p, f32_vector v)
{
    return plus_twice(seen + v, p);
}

/* Counts the elements with a result that is not finite, as update_fn returns them. */
static uint64_t count_results(const struct update *u)
{
    const bool narrows = u->wire != NULL && u->wire_dtype == CAIRN_BF16;
    uint64_t count = 0;
    for (size_t i = 0; i < u->elems; i++) {
        const bool any = is_nonfinite(u->param[i]) ||
                         (u->exp_avg != NULL && is_nonfinite(u->exp_avg[i])) ||
                         (u->exp_avg_sq != NULL && is_nonfinite(u->exp_avg_sq[i])) ||
                         (narrows && (narrow_one(u->param[i]) & 0x7f80u) == 0x7f80u);
        count += any ? 1 : 0;
    }
    return count;
}

/* The elements after the last whole step, a vector or less at a time. Returns add_results of all. */
static inline __attribute__((always_inline)) f32_vector update_rest(const struct update *u,
                                                                    size_t i, rule_fn rule,
                                                                    const struct constants *k,
                                                                    f32_vector seen)
{
    for (size_t n; i < u->elems; i += n) {
        f32_vector p = { 0 }, m = { 0 }, v = { 0 }, g = { 0 };
        n = u->elems - i < VECTOR_ELEMS ? u->elems - i : VECTOR_ELEMS;
        memcpy(&p, u->param + i, n * sizeof(float));
        memcpy(&g, u->grad + i, n * sizeof(float));
        if (u->exp_avg != NULL) memcpy(&m, u->exp_avg + i, n * sizeof(float));
        if (u->exp_avg_sq != NULL) memcpy(&v, u->exp_avg_sq + i, n * sizeof(float));
        p = rule(p, &m, &v, g, k);
        const f32_vector found = add_results(seen, p, v);
        memcpy(&seen, &found, n * sizeof(float)); // beyond them 0 / 0 may stand
        memcpy(u->param + i, &p, n * sizeof(float));
        if (u->exp_avg != NULL) memcpy(u->exp_avg + i, &m, n * sizeof(float));
        if (u->exp_avg_sq != NULL) memcpy(u->exp_avg_sq + i, &v, n * sizeof(float));
        if (u->wire == NULL) continue;
        convert((char *)u->wire + i * dtype_size((int)u->wire_dtype), u->wire_dtype, u->param + i,
                CAIRN_F32, n);
    }
    return seen;
}

/* has_m, has_v: the planes that the rule keeps; known when it is compiled, as the rule is. */
static inline __attribute__((always_inline)) f32_vector
update_steps(const struct update *u, const struct constants *k, rule_fn rule, bool has_m,
             bool has_v, cairn_dtype dtype, bool publishes, bool around)
{
    f32_vector seen = { 0 };
    size_t i = 0;
    for (; i + STEP_ELEMS <= u->elems; i += STEP_ELEMS) {
        prefetch_step(u->grad + i, sizeof(float), AHEAD_BYTES);
        prefetch_step(u->param + i, sizeof(float), AHEAD_BYTES);
        if (has_m) prefetch_step(u->exp_avg + i, sizeof(float), AHEAD_BYTES);
        if (has_v) prefetch_step(u->exp_avg_sq + i, sizeof(float), AHEAD_BYTES);
#pragma GCC unroll 8
        for (size_t j = i; j < i + STEP_ELEMS; j += VECTOR_ELEMS) {
            f32_vector m = { 0 }, v = { 0 };
            if (has_m) m = load_f32(u->exp_avg + j);
            if (has_v) v = load_f32(u->exp_avg_sq + j);
            const f32_vector p = rule(load_f32(u->param + j), &m, &v, load_f32(u->grad + j), k);
            if (has_m) store_f32(u->exp_avg + j, m);
            if (has_v) store_f32(u->exp_avg_sq + j, v);
            store_f32(u->param + j, p);
            if (publishes) publish_vector(u->wire, dtype, around, j, p);
            seen = add_results(seen, p, v);
        }
    }
    return update_rest(u, i, rule, k, seen);
}

static inline __attribute__((always_inline)) uint64_t
update_run(const struct update *update, const struct group_scalars *scalars, rule_fn rule,
           bool has_m, bool has_v)
{
    struct update u = *update;
    if (!has_m) u.exp_avg = NULL; // a buffer that this optimizer does not keep is left alone
    if (!has_v) u.exp_avg_sq = NULL;
    const struct constants k = constants_of(scalars);
    assert(u.wire == NULL || wire_dtype_ok((int)u.wire_dtype));
    assert((!has_m || u.exp_avg != NULL) && (!has_v || u.exp_avg_sq != NULL));
    const bool around = u.far && is_aligned(u.wire);
    f32_vector seen;
    if (u.wire == NULL)
        seen = update_steps(&u, &k, rule, has_m, has_v, CAIRN_F32, false, false);
    else if (u.wire_dtype == CAIRN_BF16 && around)
        seen = update_steps(&u, &k, rule, has_m, has_v, CAIRN_BF16, true, true);
    else if (u.wire_dtype == CAIRN_BF16)
        seen = update_steps(&u, &k, rule, has_m, has_v, CAIRN_BF16, true, false);
    else
        seen = update_steps(&u, &k, rule, has_m, has_v, CAIRN_F32, true, around);
    if (around) stream_end();
    return is_finite(seen) ? 0 : count_results(&u);
}

/* ==== adam ==== */

/* Adam: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2015), with the weight decay in
 * the gradient (L2), in the order of torch.optim.Adam. p, m, v, g: [elems] f32; every operation rounds
 * once:
 *
 *   g' = g * grad_scale
 *   g' = g' + wd * p                          left out where wd is 0, as -0 + 0 would lose a sign
 *   m  = m + (1 - b1) * (g' - m)
 *   v  = v * b2 + ((1 - b2) * g') * g'
 *   d  = sqrt(v) / sqrt(1 - b2^t) + eps
 *   p  = p + (-lr / (1 - b1^t) * m) / d                                                            */

static inline f32_vector adam_rule(f32_vector p, f32_vector *m, f32_vector *v, f32_vector g,
                                   const struct constants *k)
{
    f32_vector grad = g * k->grad_scale;
    if (k->decays) grad = grad + k->decay * p;
    *m = *m + k->one_minus_b1 * (grad - *m);
    *v = *v * k->b2 + (k->one_minus_b2 * grad) * grad;
    const f32_vector d = square_root(*v) / k->sqrt_bc2 + k->eps;
    return p + (k->neg_step_size * *m) / d;
}

static uint64_t adam(const struct update *update, const struct group_scalars *scalars)
{
    assert(scalars->optimizer == CAIRN_OPTIMIZER_ADAM);
    return update_run(update, scalars, adam_rule, true, true);
}

/* ==== adamw ==== */

/* AdamW: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), in the order of
 * torch.optim.AdamW. p, m, v, g: [elems] f32; every operation rounds once:
 *
 *   g' = g * grad_scale
 *   p  = p * (1 - lr * wd)
 *   m  = m + (1 - b1) * (g' - m)
 *   v  = v * b2 + ((1 - b2) * g') * g'
 *   d  = sqrt(v) / sqrt(1 - b2^t) + eps
 *   p  = p + (-lr / (1 - b1^t) * m) / d                                                            */

static inline f32_vector adamw_rule(f32_vector p, f32_vector *m, f32_vector *v, f32_vector g,
                                    const struct constants *k)
{
    const f32_vector grad = g * k->grad_scale;
    const f32_vector param = p * k->decay;
    *m = *m + k->one_minus_b1 * (grad - *m);
    *v = *v * k->b2 + (k->one_minus_b2 * grad) * grad;
    const f32_vector d = square_root(*v) / k->sqrt_bc2 + k->eps;
    return param + (k->neg_step_size * *m) / d;
}

static uint64_t adamw(const struct update *update, const struct group_scalars *scalars)
{
    assert(scalars->optimizer == CAIRN_OPTIMIZER_ADAMW);
    return update_run(update, scalars, adamw_rule, true, true);
}

/* ==== sgd ==== */

/* SGD with momentum, Nesterov's too: Sutskever et al., "On the importance of initialization and
 * momentum in deep learning" (2013), in the order and with the dampening 0 of torch.optim.SGD.
 * p, b, g: [elems] f32; every operation rounds once:
 *
 *   g' = g * grad_scale
 *   g' = g' + wd * p                          left out where wd is 0
 *   b  = b * momentum + g'                    b = g' at the first step
 *   g' = b, or g' + momentum * b (Nesterov)   without momentum there is no b
 *   p  = p + -lr * g'                                                                              */

static inline f32_vector sgd_plain_rule(f32_vector p, f32_vector *b, f32_vector *unused,
                                        f32_vector g, const struct constants *k)
{
    (void)b;
    (void)unused;
    f32_vector grad = g * k->grad_scale;
    if (k->decays) grad = grad + k->decay * p;
    return p + k->neg_step_size * grad;
}

static inline f32_vector sgd_momentum_rule(f32_vector p, f32_vector *b, f32_vector *unused,
                                           f32_vector g, const struct constants *k)
{
    (void)unused;
    f32_vector grad = g * k->grad_scale;
    if (k->decays) grad = grad + k->decay * p;
    *b = k->first_step ? grad : *b * k->momentum + grad;
    return p + k->neg_step_size * (k->nesterov ? grad + k->momentum * *b : *b);
}

static uint64_t sgd(const struct update *update, const struct group_scalars *scalars)
{
    assert(scalars->optimizer == CAIRN_OPTIMIZER_SGD);
    if ((scalars->flags & CAIRN_SCALAR_MOMENTUM) != 0)
        return update_run(update, scalars, sgd_momentum_rule, true, false);
    return update_run(update, scalars, sgd_plain_rule, false, false);
}

#endif
