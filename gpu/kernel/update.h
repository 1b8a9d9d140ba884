/* The optimizers, in the order of gpu/host/isa/update.h, where it is written out; with the
 * published copy, and the exact count of results that are not finite. Every operation rounds once. */
#ifndef CAIRN_GPU_KERNEL_UPDATE_H
#define CAIRN_GPU_KERNEL_UPDATE_H

#include "gpu/kernel/memory.h"

#define UPDATE_ROWS 2

/* Known when it is compiled: of each the planes that it keeps, too. */
enum update_rule { RULE_ADAMW, RULE_ADAM, RULE_SGD_PLAIN, RULE_SGD_MOMENTUM };

struct update_constants {
    float grad_scale, decay, one_minus_b1, b2, one_minus_b2, sqrt_bc2, eps, neg_step_size, momentum;
    bool decays, first_step, nesterov;
};

/* Element by element: the parameter and the moments, which become new, and the gradient. */
struct update_elem {
    float p, m, v, g;
};

KERNEL_FN struct update_constants update_constants_of(const struct group_scalars *s)
{
    struct update_constants k;
    k.grad_scale = f32_of_bits(s->grad_scale);
    k.decay = f32_of_bits(s->decay);
    k.one_minus_b1 = f32_of_bits(s->one_minus_beta1);
    k.b2 = f32_of_bits(s->beta2);
    k.one_minus_b2 = f32_of_bits(s->one_minus_beta2);
    k.sqrt_bc2 = f32_of_bits(s->sqrt_bc2);
    k.eps = f32_of_bits(s->eps);
    k.neg_step_size = f32_of_bits(s->neg_step_size);
    k.momentum = f32_of_bits(s->momentum);
    k.decays = s->decay != 0;
    k.first_step = (s->flags & CAIRN_SCALAR_FIRST_STEP) != 0;
    k.nesterov = (s->flags & CAIRN_SCALAR_NESTEROV) != 0;
    return k;
}

/* Adam from the scaled gradient on; p: decayed if that is the rule. */
KERNEL_FN void adam_step(struct update_elem *x, float p, float grad,
                         const struct update_constants *k)
{
    x->m = x->m + k->one_minus_b1 * (grad - x->m);
    x->v = x->v * k->b2 + (k->one_minus_b2 * grad) * grad;
    const float d = sqrtf(x->v) / k->sqrt_bc2 + k->eps;
    x->p = p + (k->neg_step_size * x->m) / d;
}

KERNEL_FN void update_one(struct update_elem *x, enum update_rule rule,
                          const struct update_constants *k)
{
    float grad = x->g * k->grad_scale;
    if (rule == RULE_ADAMW) {
        adam_step(x, x->p * k->decay, grad, k);
        return;
    }
    if (k->decays) grad = grad + k->decay * x->p;
    if (rule == RULE_ADAM) {
        adam_step(x, x->p, grad, k);
    } else if (rule == RULE_SGD_PLAIN) {
        x->p = x->p + k->neg_step_size * grad;
    } else {
        x->m = k->first_step ? grad : x->m * k->momentum + grad;
        x->p = x->p + k->neg_step_size * (k->nesterov ? grad + k->momentum * x->m : x->m);
    }
}

KERNEL_FN bool update_has_m(enum update_rule rule)
{
    return rule != RULE_SGD_PLAIN;
}

KERNEL_FN bool update_has_v(enum update_rule rule)
{
    return rule == RULE_ADAMW || rule == RULE_ADAM;
}

/* True if the element's results are finite. A moment that the optimizer does not keep is 0, and so
 * finite. */
KERNEL_FN bool update_is_finite(const struct update_elem *x, bool narrows)
{
    if (narrows && (bf16_of_f32(x->p) & 0x7f80u) == 0x7f80u) return false;
    return f32_is_finite(x->p) && f32_is_finite(x->m) && f32_is_finite(x->v);
}

/* A lane's fours: returns of how many elements a result is not finite. */
KERNEL_FN uint32_t update_rows(const struct update_item *u, uint64_t i, enum update_rule rule,
                               const struct update_constants *k)
{
    const bool has_m = update_has_m(rule), has_v = update_has_v(rule);
    const bool narrows = u->wire != 0 && u->wire_dtype == CAIRN_BF16;
    struct four g[UPDATE_ROWS], p[UPDATE_ROWS], m[UPDATE_ROWS], v[UPDATE_ROWS];
    uint32_t bad = 0;
    load_rows(g, UPDATE_ROWS, u->grad, CAIRN_F32, i, WARP_ELEMS);
    load_rows(p, UPDATE_ROWS, u->param, CAIRN_F32, i, WARP_ELEMS);
    if (has_m) load_rows(m, UPDATE_ROWS, u->exp_avg, CAIRN_F32, i, WARP_ELEMS);
    if (has_v) load_rows(v, UPDATE_ROWS, u->exp_avg_sq, CAIRN_F32, i, WARP_ELEMS);
    KERNEL_UNROLL
    for (int r = 0; r < UPDATE_ROWS; r++) {
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) {
            struct update_elem x = { p[r].of[c], has_m ? m[r].of[c] : 0, has_v ? v[r].of[c] : 0,
                                     g[r].of[c] };
            update_one(&x, rule, k);
            bad += update_is_finite(&x, narrows) ? 0 : 1;
            p[r].of[c] = x.p;
            m[r].of[c] = x.m;
            v[r].of[c] = x.v;
        }
    }
    if (has_m) store_rows(m, UPDATE_ROWS, u->exp_avg, CAIRN_F32, i, WARP_ELEMS);
    if (has_v) store_rows(v, UPDATE_ROWS, u->exp_avg_sq, CAIRN_F32, i, WARP_ELEMS);
    store_rows(p, UPDATE_ROWS, u->param, CAIRN_F32, i, WARP_ELEMS);
    if (u->wire != 0) store_rows(p, UPDATE_ROWS, u->wire, u->wire_dtype, i, WARP_ELEMS);
    return bad;
}

KERNEL_FN uint32_t update_rest(const struct update_item *u, uint64_t i, enum update_rule rule,
                               const struct update_constants *k)
{
    const bool has_m = update_has_m(rule), has_v = update_has_v(rule);
    struct update_elem x = { load_f32(u->param, i), has_m ? load_f32(u->exp_avg, i) : 0,
                             has_v ? load_f32(u->exp_avg_sq, i) : 0, load_f32(u->grad, i) };
    update_one(&x, rule, k);
    if (has_m) store_f32(u->exp_avg, i, x.m);
    if (has_v) store_f32(u->exp_avg_sq, i, x.v);
    store_f32(u->param, i, x.p);
    if (u->wire != 0) store_one(u->wire, u->wire_dtype, i, x.p);
    return update_is_finite(&x, u->wire != 0 && u->wire_dtype == CAIRN_BF16) ? 0 : 1;
}

KERNEL_FN void update_count(uint64_t at, uint32_t bad)
{
    if (bad == 0) return;
#ifdef __CUDACC__
    atomicAdd(MEMORY_AT(unsigned long long, at), (unsigned long long)bad);
#else
    __atomic_fetch_add(MEMORY_AT(uint64_t, at), bad, __ATOMIC_RELAXED);
#endif
}

KERNEL_FN void update_piece(const struct update_item *u, uint64_t piece, enum update_rule rule)
{
    const struct update_constants k = update_constants_of(&u->scalars);
    const uint64_t from = piece * CAIRN_PIECE_ELEMS,
                   end = least(from + CAIRN_PIECE_ELEMS, u->elems);
    EACH_LANE(lane)
    {
        uint32_t bad = 0;
        uint64_t i = from + 4 * lane;
        for (; rows_fit(i, UPDATE_ROWS, WARP_ELEMS, end); i += UPDATE_ROWS * WARP_ELEMS)
            bad += update_rows(u, i, rule, &k);
        for (; i < end; i += WARP_ELEMS)
            for (uint64_t e = i; e < least(i + 4, end); e++) bad += update_rest(u, e, rule, &k);
        update_count(u->nonfinite, bad);
    }
}

KERNEL_FN void update_adamw_piece(const struct update_item *item, uint64_t piece)
{
    update_piece(item, piece, RULE_ADAMW);
}

KERNEL_FN void update_adam_piece(const struct update_item *item, uint64_t piece)
{
    update_piece(item, piece, RULE_ADAM);
}

KERNEL_FN void update_sgd_piece(const struct update_item *item, uint64_t piece)
{
    if ((item->scalars.flags & CAIRN_SCALAR_MOMENTUM) != 0)
        update_piece(item, piece, RULE_SGD_MOMENTUM);
    else
        update_piece(item, piece, RULE_SGD_PLAIN);
}

#endif
