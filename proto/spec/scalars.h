/* All scalars of an update, computed once by the coordinator and carried in APPLY as bit patterns.
 * Shards compute none, because libm differs between hosts. Only +, -, *, /, IEEE sqrt and
 * integer powers by repeated squaring are used here, all in double and each rounding once.
 *
 *   D     = (double)weight_sum * loss_scale
 *   norm  = sqrt(S) / D                          S: the exact sum of squares, rounded to double once
 *   clip  = min(1, max_norm / (norm + 1e-6))     1 if max_norm is 0
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
 * current step: the schedule has been applied already. Fields that the optimizer does not use are 0. Names,
 * defaults and ranges: proto/spec/spec.h. */
struct group_hyper {
    uint32_t optimizer; /* enum optimizer_id */
    double lr;
    double beta1, beta2, eps; /* Adam, AdamW */
    double weight_decay;
    double momentum;          /* SGD */
    double nesterov;          /* SGD: 0 or 1 */
    double ema, ema_schedule; /* the average of the parameters: proto/spec/spec.h */
};
/* optimizer, then the doubles up to nesterov, in order; little-endian */
#define CAIRN_GROUP_HYPER_BYTES 60

/* The scalars that a kernel needs for one group at one step: fp32 bit patterns. Fields that the optimizer
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
    uint32_t ema_weight; /* 1 - the decay of the average, in (0, 1]; 0: there is no average */
};
#define CAIRN_GROUP_SCALARS_BYTES 48 /* the fields in order; little-endian */

enum scalar_flag {
    CAIRN_SCALAR_MOMENTUM = 1, /* SGD keeps a buffer */
    CAIRN_SCALAR_NESTEROV = 2,
    CAIRN_SCALAR_FIRST_STEP = 4, /* SGD: the buffer becomes the gradient, as in torch */
    CAIRN_SCALAR_FROZEN = 8      /* the planes stay as they are, in a new version */
};

/* The scalars that all groups of an update share, and that are reported to workers. */
struct update_norm {
    double grad_norm;    /* of the mean gradient, before clipping */
    double clip_scale;   /* 1: not clipped */
    uint32_t grad_scale; /* fp32 bits, for group_scalars_of */
};

/* CAIRN_ERR_INVALID: the update cannot be made and the round is to be skipped, because the weights add
 * up to 0, loss_scale is not a positive finite number, max_norm is negative or not finite, or
 * the scale is beyond fp32. */
cairn_status update_norm_of(const struct exact *sum_squares, uint64_t weight_sum, double loss_scale,
                            double max_norm, struct update_norm *out) CAIRN_MUST_CHECK;
/* Computes the scalars of the update that makes version `step`, from 1. CAIRN_ERR_INVALID: the
 * hyper-parameters fail group_hyper_check, or step is 0. */
cairn_status group_scalars_of(const struct group_hyper *hyper, uint64_t step, uint32_t grad_scale,
                              struct group_scalars *out) CAIRN_MUST_CHECK;

void group_scalars_encode(const struct group_scalars *scalars,
                          uint8_t out[CAIRN_GROUP_SCALARS_BYTES]);
/* CAIRN_ERR_MALFORMED: the size is wrong, the optimizer or a flag is unknown, or a number is not
 * finite. */
cairn_status group_scalars_decode(const void *bytes, size_t size,
                                  struct group_scalars *out) CAIRN_MUST_CHECK;
void group_hyper_encode(const struct group_hyper *hyper, uint8_t out[CAIRN_GROUP_HYPER_BYTES]);

/* Returns base^exponent, computed by repeated squaring; base^0 is 1. The relative error is at most
 * exponent * 2^-53, far below fp32 for every exponent at which a bias correction is not 1 yet. */
double scalar_power(double base, uint64_t exponent);
/* Returns the IEEE square root of x, which is at least 0. */
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

/* ==== initial values ==== */

/* The arithmetic of initial values (spec.h describes it), written once for the host and for nvcc, so that a
 * device makes the same bits. Plain C that C++ compiles, too. Every operation is IEEE and rounds once,
 * because the code is compiled without contraction.
 *
 * Pure; any thread. */

#ifdef __CUDACC__
#define CAIRN_INIT_FN      static __device__ __forceinline__
#define CAIRN_INIT_ROOT(x) sqrt(x) /* IEEE's, of double */
#else
#include "proto/spec/scalars.h"
#define CAIRN_INIT_FN      static inline __attribute__((unused))
#define CAIRN_INIT_ROOT(x) init_sqrt(x)
#endif

/* Everything from which the elements of a tensor are made, except their indices. */
struct init_source {
    double a, b;     /* UNIFORM: the ends; NORMAL: mean and deviation; else every element is a */
    uint32_t key[2]; /* the key of Philox */
    uint32_t is_uniform, is_normal;
};

/* Computes one block of Philox4x32-10, in place. */
CAIRN_INIT_FN void philox(uint32_t counter[4], const uint32_t key[2])
{
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xd2511f53u * counter[0];
        const uint64_t p1 = (uint64_t)0xcd9e8d57u * counter[2];
        const uint32_t c1 = counter[1], c3 = counter[3];
        counter[0] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        counter[1] = (uint32_t)p1;
        counter[2] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        counter[3] = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}

/* Returns the natural logarithm of x, which is normal and positive. fdlibm's e_log.c: x = 2^k·(1 + f)
 * with 1 + f in [sqrt(1/2), sqrt(2)), and a series in s = f/(2 + f). */
CAIRN_INIT_FN double init_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t k = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m >= 1.4142135623730951) {
        m *= 0.5;
        k++;
    }
    const double f = m - 1.0, s = f / (2.0 + f), z = s * s, w = z * z;
    const double even = w * (3.999999999940941908e-01 +
                             w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    const double odd = z * (6.666666666666735130e-01 +
                            w * (2.857142874366239149e-01 +
                                 w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    const double half = 0.5 * f * f, dk = (double)k;
    return dk * 6.93147180369123816490e-01 -
           ((half - (s * (half + (even + odd)) + dk * 1.90821492927058770002e-10)) - f);
}

/* Returns num(r) / den(r): polynomials of degree 7, the highest power first. */
CAIRN_INIT_FN double init_ratio(const double num[8], const double den[8], double r)
{
    double n = num[0], d = den[0];
    for (int i = 1; i < 8; i++) {
        n = n * r + num[i];
        d = d * r + den[i];
    }
    return n / d;
}

/* The quantile of the standard normal distribution; 0 < u < 1. AS 241 has three pieces: |u - 1/2| <= 0.425,
 * and outside of it by r = sqrt(-ln(tail)): r up to 5, and r above 5. */
CAIRN_INIT_FN double normal_quantile(double u)
{
    static const double middle[2][8] = {
        { 2.50908092873012267270e+3, 3.34305755835881281050e+4, 6.72657709270087008530e+4,
          4.59219539315498714570e+4, 1.37316937655094611250e+4, 1.97159095030655144270e+3,
          1.33141667891784377450e+2, 3.38713287279636660800e+0 },
        { 5.22649527885285456100e+3, 2.87290857357219426740e+4, 3.93078958000927106100e+4,
          2.12137943015865958670e+4, 5.39419602142475110770e+3, 6.87187007492057908300e+2,
          4.23133307016009112520e+1, 1.0 },
    };
    static const double near[2][8] = {
        { 7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
          1.27045825245236838258e+0, 3.64784832476320460504e+0, 5.76949722146069140550e+0,
          4.63033784615654529590e+0, 1.42343711074968357734e+0 },
        { 1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
          1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e+0,
          2.05319162663775882187e+0, 1.0 },
    };
    static const double far[2][8] = {
        { 2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
          2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e+0,
          5.46378491116411436990e+0, 6.65790464350110377720e+0 },
        { 2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
          7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
          5.99832206555887937690e-1, 1.0 },
    };
    const double q = u - 0.5;
    if (q >= -0.425 && q <= 0.425) return q * init_ratio(middle[0], middle[1], 0.180625 - q * q);
    const double tail = q < 0 ? u : 1.0 - u;
    const double r = CAIRN_INIT_ROOT(-init_log(tail));
    const double x = r <= 5.0 ? init_ratio(near[0], near[1], r - 1.6)
                              : init_ratio(far[0], far[1], r - 5.0);
    return q < 0 ? -x : x;
}

/* Makes the four words from which the elements 2 * block and 2 * block + 1 are made. */
CAIRN_INIT_FN void init_words(const struct init_source *source, uint64_t block, uint32_t words[4])
{
    words[0] = (uint32_t)block;
    words[1] = (uint32_t)(block >> 32);
    words[2] = words[3] = 0;
    philox(words, source->key);
}

/* Makes a random element from the words of its block. */
CAIRN_INIT_FN float init_random(const struct init_source *source, const uint32_t words[4],
                                uint64_t elem)
{
    const uint32_t *pair = words + 2 * (elem % 2);
    const uint64_t w = (uint64_t)pair[0] << 20 | pair[1] >> 12;
    const double u = ((double)w + 0.5) * 0x1p-52;
    const double value = source->is_uniform != 0 ? source->a + (source->b - source->a) * u
                                                 : source->a + source->b * normal_quantile(u);
    return (float)value;
}

#endif
