/* SGD with momentum, Nesterov's too: Sutskever et al., "On the importance of initialization and
 * momentum in deep learning" (2013), in the order and with the dampening 0 of torch.optim.SGD.
 * p, b, g: [elems] f32; every operation rounds once:
 *
 *   g' = g * grad_scale
 *   g' = g' + wd * p                          left out where wd is 0
 *   b  = b * momentum + g'                    b = g' at the first step
 *   g' = b, or g' + momentum * b (Nesterov)   without momentum there is no b
 *   p  = p + -lr * g'                                                                              */
#include <assert.h>

#include "gpu/host/host.h"

CAIRN_CLONES static void sgd_plain(float *restrict p, const float *restrict g, size_t elems,
                                   const struct cairn_group_scalars *scalars)
{
    const float grad_scale = cairn_f32_of_bits(scalars->grad_scale);
    const float decay = cairn_f32_of_bits(scalars->decay);
    const float neg_lr = cairn_f32_of_bits(scalars->neg_step_size);
    const bool decays = scalars->decay != 0;
    for (size_t i = 0; i < elems; i++) {
        float grad = g[i] * grad_scale;
        grad = decays ? grad + decay * p[i] : grad;
        p[i] = p[i] + neg_lr * grad;
    }
}

CAIRN_CLONES static void sgd_momentum(float *restrict p, float *restrict b, const float *restrict g,
                                      size_t elems, const struct cairn_group_scalars *scalars)
{
    const float grad_scale = cairn_f32_of_bits(scalars->grad_scale);
    const float decay = cairn_f32_of_bits(scalars->decay);
    const float neg_lr = cairn_f32_of_bits(scalars->neg_step_size);
    const float momentum = cairn_f32_of_bits(scalars->momentum);
    const bool decays = scalars->decay != 0;
    const bool first = (scalars->flags & CAIRN_SCALAR_FIRST_STEP) != 0;
    const bool nesterov = (scalars->flags & CAIRN_SCALAR_NESTEROV) != 0;
    for (size_t i = 0; i < elems; i++) {
        float grad = g[i] * grad_scale;
        grad = decays ? grad + decay * p[i] : grad;
        float buffer = first ? grad : b[i] * momentum + grad;
        b[i] = buffer;
        p[i] = p[i] + neg_lr * (nesterov ? grad + momentum * buffer : buffer);
    }
}

void cairn_host_sgd(const struct cairn_update *update, const struct cairn_group_scalars *scalars)
{
    const bool keeps_momentum = (scalars->flags & CAIRN_SCALAR_MOMENTUM) != 0;
    assert(scalars->optimizer == CAIRN_OPTIMIZER_SGD);
    assert(!keeps_momentum || update->exp_avg != NULL);
    for (size_t start = 0; start < update->elems; start += CAIRN_HOST_BLOCK_ELEMS) {
        struct cairn_update u = cairn_host_slice(update, start, CAIRN_HOST_BLOCK_ELEMS);
        if (keeps_momentum) {
            sgd_momentum(u.param, u.exp_avg, u.grad, u.elems, scalars);
        } else {
            sgd_plain(u.param, u.grad, u.elems, scalars);
        }
        cairn_host_publish(&u);
    }
}
