/* SGD with momentum, Nesterov's too: Sutskever et al., "On the importance of initialization and
 * momentum in deep learning" (2013), in the order and with the dampening 0 of torch.optim.SGD.
 * p, b, g: [elems] f32; every operation rounds once:
 *
 *   g' = g * grad_scale
 *   g' = g' + wd * p                          left out where wd is 0
 *   b  = b * momentum + g'                    b = g' at the first step
 *   g' = b, or g' + momentum * b (Nesterov)   without momentum there is no b
 *   p  = p + -lr * g'                                                                              */
#ifndef CAIRN_GPU_HOST_ISA_SGD_H
#define CAIRN_GPU_HOST_ISA_SGD_H

#include "gpu/host/isa/update.h"

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

static uint64_t sgd(const struct cairn_update *update, const struct cairn_group_scalars *scalars)
{
    assert(scalars->optimizer == CAIRN_OPTIMIZER_SGD);
    if ((scalars->flags & CAIRN_SCALAR_MOMENTUM) != 0)
        return update_run(update, scalars, sgd_momentum_rule, true, false);
    return update_run(update, scalars, sgd_plain_rule, false, false);
}

#endif
