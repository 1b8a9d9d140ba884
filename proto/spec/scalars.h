/* Every scalar of an update, computed once by the coordinator and carried in APPLY as bit patterns.
 * Shards compute none, because libm differs between hosts; here are only +, -, *, /, IEEE sqrt and
 * integer powers by repeated squaring, all in double and each rounding once.
 *
 *   D     = (double)weight_sum * loss_scale
 *   norm  = sqrt(S) / D                          S: the exact sum of squares, rounded to double once
 *   clip  = min(1, max_norm / (norm + 1e-6))     1 where max_norm is 0
 *   scale = (float)(clip / D)
 *
 * Pure; no allocation. */
#ifndef CAIRN_SPEC_SCALARS_H
#define CAIRN_SPEC_SCALARS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/base/exact.h"
#include "proto/base/status.h"

/* The hyper-parameters of a param group, as the job spec has them. `lr` is the learning rate of the
 * step at hand: a schedule is worked out before. Fields that the optimizer does not use are 0.
 * Names, defaults and ranges: proto/spec/optimizer.h. */
struct group_hyper {
    uint32_t optimizer; /* enum optimizer_id */
    double lr;
    double beta1, beta2, eps; /* Adam, AdamW */
    double weight_decay;
    double momentum; /* SGD */
    double nesterov; /* SGD: 0 or 1 */
};
#define CAIRN_GROUP_HYPER_BYTES 60 /* optimizer, then the doubles in order; little-endian */

/* The scalars that a kernel needs for one group at one step: fp32 bit patterns. Fields an optimizer
 * does not use are 0. */
struct group_scalars {
    uint32_t optimizer;       /* enum optimizer_id */
    uint32_t flags;           /* enum scalar_flag */
    uint32_t grad_scale;      /* g' = g * grad_scale */
    uint32_t neg_step_size;   /* -lr / (1 - beta1^step); SGD: -lr */
    uint32_t decay;           /* AdamW: 1 - lr * weight_decay; Adam, SGD: weight_decay */
    uint32_t one_minus_beta1; /* (float)(1 - beta1) */
    uint32_t beta2;
    uint32_t one_minus_beta2;
    uint32_t sqrt_bc2; /* sqrt(1 - beta2^step) */
    uint32_t eps;
    uint32_t momentum;
    uint32_t reserved; /* 0 */
};
#define CAIRN_GROUP_SCALARS_BYTES 48 /* the fields in order; little-endian */

enum scalar_flag {
    CAIRN_SCALAR_MOMENTUM = 1, /* SGD keeps a buffer */
    CAIRN_SCALAR_NESTEROV = 2,
    CAIRN_SCALAR_FIRST_STEP = 4, /* SGD: the buffer becomes the gradient, as torch does */
    CAIRN_SCALAR_FROZEN = 8      /* every plane stays, and the version is published */
};

/* The scalars that all groups of an update share, and that workers are told. */
struct update_norm {
    double grad_norm;    /* of the mean gradient, before the clip */
    double clip_scale;   /* 1: not clipped */
    uint32_t grad_scale; /* fp32 bits, for group_scalars_of */
};

/* CAIRN_ERR_INVALID, when the update cannot be made and the round is to be skipped: the weights add
 * up to 0, or loss_scale is not a positive finite number, or max_norm is negative or not finite, or
 * the scale is beyond fp32. */
cairn_status update_norm_of(const struct exact *sum_squares, uint64_t weight_sum, double loss_scale,
                            double max_norm, struct update_norm *out) CAIRN_MUST_CHECK;
/* The scalars of the update that makes version `step` (it counts from 1). CAIRN_ERR_INVALID: the
 * hyper-parameters fail group_hyper_check, or step is 0. */
cairn_status group_scalars_of(const struct group_hyper *hyper, uint64_t step, uint32_t grad_scale,
                              struct group_scalars *out) CAIRN_MUST_CHECK;

void group_scalars_encode(const struct group_scalars *scalars,
                          uint8_t out[CAIRN_GROUP_SCALARS_BYTES]);
/* CAIRN_ERR_MALFORMED: the size is wrong, or the optimizer or a flag is unknown, or a number is not
 * finite. */
cairn_status group_scalars_decode(const void *bytes, size_t size,
                                  struct group_scalars *out) CAIRN_MUST_CHECK;
void group_hyper_encode(const struct group_hyper *hyper, uint8_t out[CAIRN_GROUP_HYPER_BYTES]);

/* base^exponent, by repeated squaring; base^0 is 1. The relative error is at most exponent * 2^-53,
 * far below fp32 where a bias correction is not 1 already. */
double scalar_power(double base, uint64_t exponent);
/* IEEE square root of x >= 0. */
double init_sqrt(double x);

/* Floating-point numbers as bit patterns, and back. */
static inline uint32_t f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline float f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline uint64_t f64_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline double f64_of_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
