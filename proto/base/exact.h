/* An exact sum of squares. It is a fixed-point number of 640 bits, to which finite, non-negative doubles
 * are added without any rounding. So neither the order of the additions nor a split of the work can change
 * the result.
 *
 *   value = sum of limb[i] * 2^(64 i - 298),  limb[0] is the least
 *
 * 2^-298 is the square of the smallest fp32 number (2^-149), so every sum of squares of fp32 numbers is a
 * multiple of 2^-298. The sum of a leaf is below 2^268, so 2^74 such sums fit. A number from the wire can
 * be anything, however, so additions report overflow. Pure; no allocation; one thread at a time. */
#ifndef CAIRN_BASE_EXACT_H
#define CAIRN_BASE_EXACT_H

#include <stdint.h>

#include "proto/base/status.h"

#define CAIRN_EXACT_LIMBS     10
#define CAIRN_EXACT_LEAST_EXP (-298) /* the exponent of the least bit */
/* the encoding: the limbs from the least on, each little-endian */
#define CAIRN_EXACT_BYTES 80

struct exact {
    uint64_t limb[CAIRN_EXACT_LIMBS]; /* all limbs zero: the number 0 */
};

/* Adds x. CAIRN_ERR_INVALID: x is negative, not finite, or not a multiple of 2^-298, or the sum would be
 * 2^342 or more; *sum is unchanged. */
cairn_status exact_add_double(struct exact *sum, double x) CAIRN_MUST_CHECK;
/* Adds another sum. CAIRN_ERR_INVALID: the sum would be 2^342 or more; *sum is unchanged. */
cairn_status exact_add(struct exact *sum, const struct exact *more) CAIRN_MUST_CHECK;
/* Returns the nearest double, with ties to even. It is always finite, and either normal or 0. */
double exact_to_double(const struct exact *sum);

void exact_encode(const struct exact *sum, uint8_t out[CAIRN_EXACT_BYTES]);
/* Cannot fail, because any 80 bytes encode a number. */
void exact_decode(const uint8_t bytes[CAIRN_EXACT_BYTES], struct exact *out);

#endif
