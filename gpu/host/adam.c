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
#include <assert.h>
#include <math.h>

#include "gpu/host/host.h"

CAIRN_CLONES static void adam_block(float *restrict p, float *restrict m, float *restrict v,
                                    const float *restrict g, size_t elems,
                                    const struct cairn_group_scalars *scalars)
{
    const float grad_scale = cairn_f32_of_bits(scalars->grad_scale);
    const float decay = cairn_f32_of_bits(scalars->decay);
    const float one_minus_b1 = cairn_f32_of_bits(scalars->one_minus_beta1);
    const float b2 = cairn_f32_of_bits(scalars->beta2);
    const float one_minus_b2 = cairn_f32_of_bits(scalars->one_minus_beta2);
    const float sqrt_bc2 = cairn_f32_of_bits(scalars->sqrt_bc2);
    const float eps = cairn_f32_of_bits(scalars->eps);
    const float neg_step_size = cairn_f32_of_bits(scalars->neg_step_size);
    const bool decays = scalars->decay != 0;
    for (size_t i = 0; i < elems; i++) {
        float grad = g[i] * grad_scale;
        grad = decays ? grad + decay * p[i] : grad;
        m[i] = m[i] + one_minus_b1 * (grad - m[i]);
        v[i] = v[i] * b2 + (one_minus_b2 * grad) * grad;
        float d = sqrtf(v[i]) / sqrt_bc2 + eps;
        p[i] = p[i] + (neg_step_size * m[i]) / d;
    }
}

void cairn_host_adam(const struct cairn_update *update, const struct cairn_group_scalars *scalars)
{
    assert(scalars->optimizer == CAIRN_OPTIMIZER_ADAM);
    assert(update->exp_avg != NULL && update->exp_avg_sq != NULL);
    for (size_t start = 0; start < update->elems; start += CAIRN_HOST_BLOCK_ELEMS) {
        struct cairn_update u = cairn_host_slice(update, start, CAIRN_HOST_BLOCK_ELEMS);
        adam_block(u.param, u.exp_avg, u.exp_avg_sq, u.grad, u.elems, scalars);
        cairn_host_publish(&u);
    }
}
