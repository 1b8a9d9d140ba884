/* AdamW: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), in the order of
 * torch.optim.AdamW. p, m, v, g: [elems] f32; every operation rounds once:
 *
 *   g' = g * grad_scale
 *   p  = p * (1 - lr * wd)
 *   m  = m + (1 - b1) * (g' - m)
 *   v  = v * b2 + ((1 - b2) * g') * g'
 *   d  = sqrt(v) / sqrt(1 - b2^t) + eps
 *   p  = p + (-lr / (1 - b1^t) * m) / d                                                            */
#ifndef CAIRN_GPU_HOST_ISA_ADAMW_H
#define CAIRN_GPU_HOST_ISA_ADAMW_H

#include "gpu/host/isa/update.h"

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

static uint64_t adamw(const struct cairn_update *update, const struct cairn_group_scalars *scalars)
{
    assert(scalars->optimizer == CAIRN_OPTIMIZER_ADAMW);
    return update_run(update, scalars, adamw_rule, true, true);
}

#endif
