/* An exact sum of squares: a 640-bit fixed-point number that adds finite, non-negative doubles with
 * no rounding at all, so that no order and no split of the work can change the result.
 *
 *   value = sum of limb[i] * 2^(64 i - 298),  limb[0] is the least
 *
 * 2^-298 is the square of the smallest fp32 number (2^-149), so every sum of squares of fp32 numbers
 * is a multiple of it. A leaf's sum is below 2^268; 2^74 such sums fit. A number from the wire can still
 * be anything, so additions report overflow. Pure; no allocation; one thread at a time. */
#ifndef CAIRN_BASE_EXACT_H
#define CAIRN_BASE_EXACT_H

#include <stdint.h>

#include "proto/base/status.h"

#define CAIRN_EXACT_LIMBS     10
#define CAIRN_EXACT_LEAST_EXP (-298) /* the exponent of the least bit */
#define CAIRN_EXACT_BYTES     80     /* encoded: limbs from the least, each little-endian */

struct exact {
    uint64_t limb[CAIRN_EXACT_LIMBS]; /* all zero is the number 0 */
};

/* Adds x. CAIRN_ERR_INVALID, and *sum unchanged: x is negative, not finite, or not a multiple of
 * 2^-298; or the sum is 2^342 or more. */
cairn_status exact_add_double(struct exact *sum, double x) CAIRN_MUST_CHECK;
/* Adds another sum. CAIRN_ERR_INVALID, and *sum unchanged: the sum is 2^342 or more. */
cairn_status exact_add(struct exact *sum, const struct exact *more) CAIRN_MUST_CHECK;
/* The nearest double, ties to even. Always finite; always normal or 0. */
double exact_to_double(const struct exact *sum);

void exact_encode(const struct exact *sum, uint8_t out[CAIRN_EXACT_BYTES]);
/* Every 80 bytes are a number, so this cannot fail. */
void exact_decode(const uint8_t bytes[CAIRN_EXACT_BYTES], struct exact *out);

#endif
