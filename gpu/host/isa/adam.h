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
#ifndef CAIRN_GPU_HOST_ISA_ADAM_H
#define CAIRN_GPU_HOST_ISA_ADAM_H

#include "gpu/host/isa/update.h"

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

static uint64_t adam(const struct cairn_update *update, const struct cairn_group_scalars *scalars)
{
    assert(scalars->optimizer == CAIRN_OPTIMIZER_ADAM);
    return update_run(update, scalars, adam_rule, true, true);
}

#endif
