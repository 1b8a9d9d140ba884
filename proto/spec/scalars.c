#include "proto/base/little_endian.h"
#include "proto/spec/scalars.h"

#include <math.h>
#include <stdbool.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "proto/spec/optimizer.h"

#define CLIP_EPS 1e-6 // as torch.nn.utils.clip_grad_norm_
#define F32_EXP  0x7f800000u

double cairn_square_root(double x)
{
#if defined(__SSE2__)
    // The instruction itself: sqrt() may be a call, and this room does not link libm.
    return _mm_cvtsd_f64(_mm_sqrt_pd(_mm_set1_pd(x)));
#else
    return sqrt(x); // exact by IEEE 754, on every libm
#endif
}

double cairn_power(double base, uint64_t exponent)
{
    double power = 1.0;
    for (; exponent != 0; exponent >>= 1) {
        if ((exponent & 1) != 0) power *= base;
        base *= base;
    }
    return power;
}

static bool finite_bits(uint32_t bits)
{
    return (bits & F32_EXP) != F32_EXP;
}

cairn_status cairn_update_norm_of(const struct cairn_exact *sum_squares, uint64_t weight_sum,
                                  double loss_scale, double max_norm, struct cairn_update_norm *out)
{
    if (!isfinite(loss_scale) || loss_scale <= 0) return CAIRN_ERR_INVALID;
    if (!isfinite(max_norm) || max_norm < 0) return CAIRN_ERR_INVALID;
    double denominator = (double)weight_sum * loss_scale;
    if (!isfinite(denominator) || denominator <= 0) return CAIRN_ERR_INVALID;

    double norm = cairn_square_root(cairn_exact_to_double(sum_squares)) / denominator;
    double clip = 1.0;
    if (max_norm > 0) {
        double ratio = max_norm / (norm + CLIP_EPS);
        if (ratio < 1.0) clip = ratio;
    }
    uint32_t scale = cairn_f32_bits((float)(clip / denominator));
    if (!finite_bits(scale)) return CAIRN_ERR_INVALID;
    *out = (struct cairn_update_norm) { norm, clip, scale };
    return CAIRN_OK;
}

static bool all_finite(const struct cairn_group_scalars *s)
{
    return finite_bits(s->grad_scale) && finite_bits(s->neg_step_size) && finite_bits(s->decay) &&
           finite_bits(s->one_minus_beta1) && finite_bits(s->beta2) &&
           finite_bits(s->one_minus_beta2) && finite_bits(s->sqrt_bc2) && finite_bits(s->eps) &&
           finite_bits(s->momentum);
}

cairn_status cairn_group_scalars_of(const struct cairn_group_hyper *hyper, uint64_t step,
                                    uint32_t grad_scale, struct cairn_group_scalars *out)
{
    cairn_status status = cairn_group_hyper_check(hyper, NULL);
    if (status != CAIRN_OK) return status;
    if (step == 0) return CAIRN_ERR_INVALID;
    struct cairn_group_scalars scalars = { .optimizer = hyper->optimizer };
    cairn_optimizer_by_id(hyper->optimizer)->scalars(hyper, step, &scalars);
    scalars.grad_scale = grad_scale;
    if (!all_finite(&scalars)) return CAIRN_ERR_INVALID; // a value beyond fp32
    *out = scalars;
    return CAIRN_OK;
}

#define SCALAR_WORDS (CAIRN_GROUP_SCALARS_BYTES / 4)
_Static_assert(sizeof(struct cairn_group_scalars) == CAIRN_GROUP_SCALARS_BYTES,
               "the wire format is the struct's words in order");

void cairn_group_scalars_encode(const struct cairn_group_scalars *scalars,
                                uint8_t out[CAIRN_GROUP_SCALARS_BYTES])
{
    uint32_t words[SCALAR_WORDS];
    memcpy(words, scalars, sizeof words);
    for (size_t i = 0; i < SCALAR_WORDS; i++) cairn_le_put(out + 4 * i, words[i], 4);
}

cairn_status cairn_group_scalars_decode(const void *bytes, size_t size,
                                        struct cairn_group_scalars *out)
{
    if (size != CAIRN_GROUP_SCALARS_BYTES) return CAIRN_ERR_MALFORMED;
    uint32_t words[SCALAR_WORDS];
    const uint8_t *in = bytes;
    for (size_t i = 0; i < SCALAR_WORDS; i++) words[i] = (uint32_t)cairn_le_get(in + 4 * i, 4);
    struct cairn_group_scalars scalars;
    memcpy(&scalars, words, sizeof scalars);

    const uint32_t known_flags = CAIRN_SCALAR_MOMENTUM | CAIRN_SCALAR_NESTEROV |
                                 CAIRN_SCALAR_FIRST_STEP | CAIRN_SCALAR_FROZEN;
    if (cairn_optimizer_by_id(scalars.optimizer) == NULL) return CAIRN_ERR_MALFORMED;
    if ((scalars.flags & ~known_flags) != 0 || scalars.reserved != 0) return CAIRN_ERR_MALFORMED;
    if (!all_finite(&scalars)) return CAIRN_ERR_MALFORMED;
    *out = scalars;
    return CAIRN_OK;
}

void cairn_group_hyper_encode(const struct cairn_group_hyper *hyper,
                              uint8_t out[CAIRN_GROUP_HYPER_BYTES])
{
    const double values[(CAIRN_GROUP_HYPER_BYTES - 4) / 8] = { hyper->lr,           hyper->beta1,
                                                               hyper->beta2,        hyper->eps,
                                                               hyper->weight_decay, hyper->momentum,
                                                               hyper->nesterov };
    cairn_le_put(out, hyper->optimizer, 4);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        cairn_le_put(out + 4 + 8 * i, cairn_f64_bits(values[i]), 8);
}
