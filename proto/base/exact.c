#include "proto/base/exact.h"

#include <stdbool.h>
#include <string.h>

#define F64_MANTISSA_BITS 52
#define F64_EXP_BIAS      1075 /* the bias of the exponent if the mantissa is read as an integer */

/* Adds `part` << (64 * at). Returns false at an overflow, and then *sum is spoilt, so callers pass a
 * copy. */
static bool add_at(struct exact *sum, size_t at, uint64_t part)
{
    for (size_t i = at; part != 0; i++) {
        if (i == CAIRN_EXACT_LIMBS) return false;
        sum->limb[i] += part;
        part = sum->limb[i] < part; // the carry
    }
    return true;
}

cairn_status exact_add_double(struct exact *sum, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint64_t mantissa = bits & (((uint64_t)1 << F64_MANTISSA_BITS) - 1);
    int exp_field = (int)(bits >> F64_MANTISSA_BITS); // bit 11 of exp_field is the sign
    if (bits == 0 || bits == (uint64_t)1 << 63) return CAIRN_OK;
    if (exp_field >= 0x7ff || exp_field == 0) return CAIRN_ERR_INVALID;

    mantissa |= (uint64_t)1 << F64_MANTISSA_BITS;
    int shift = exp_field - F64_EXP_BIAS - CAIRN_EXACT_LEAST_EXP;
    if (shift < 0) {
        if (shift <= -64 || mantissa & (((uint64_t)1 << -shift) - 1)) return CAIRN_ERR_INVALID;
        mantissa >>= -shift;
        shift = 0;
    }
    size_t at = (size_t)shift / 64, low_bits = (size_t)shift % 64;
    if (at >= CAIRN_EXACT_LIMBS) return CAIRN_ERR_INVALID;
    uint64_t high = low_bits == 0 ? 0 : mantissa >> (64 - low_bits);
    struct exact next = *sum;
    if (!add_at(&next, at, mantissa << low_bits) || !add_at(&next, at + 1, high)) {
        return CAIRN_ERR_INVALID;
    }
    *sum = next;
    return CAIRN_OK;
}

cairn_status exact_add(struct exact *sum, const struct exact *more)
{
    struct exact next;
    uint64_t carry = 0;
    for (size_t i = 0; i < CAIRN_EXACT_LIMBS; i++) {
        uint64_t part = more->limb[i] + carry;
        carry = part < carry;
        next.limb[i] = sum->limb[i] + part;
        carry += next.limb[i] < part; // there are never two carries: a part that wrapped is 0
    }
    if (carry != 0) return CAIRN_ERR_INVALID;
    *sum = next;
    return CAIRN_OK;
}

/* Returns bits [low, low + 64) of the number; bits outside the number are 0. */
static uint64_t bits_from(const struct exact *sum, int low)
{
    if (low < 0) return sum->limb[0] << -low;
    size_t at = (size_t)low / 64, shift = (size_t)low % 64;
    uint64_t value = sum->limb[at] >> shift;
    if (shift != 0 && at + 1 < CAIRN_EXACT_LIMBS) value |= sum->limb[at + 1] << (64 - shift);
    return value;
}

static bool any_bit_below(const struct exact *sum, int end)
{
    for (int i = 0; i < end / 64; i++) {
        if (sum->limb[i] != 0) return true;
    }
    if (end % 64 == 0) return false;
    return (sum->limb[end / 64] & (((uint64_t)1 << end % 64) - 1)) != 0;
}

double exact_to_double(const struct exact *sum)
{
    int top = CAIRN_EXACT_LIMBS - 1;
    while (top >= 0 && sum->limb[top] == 0) top--;
    if (top < 0) return 0.0;
    int high = 64 * top + 63 - __builtin_clzll(sum->limb[top]); // index of the highest set bit

    // The window has the 64 highest bits. The mantissa keeps 53 of them, the next bit decides about
    // rounding, and the rest tells whether there is a tie.
    uint64_t window = bits_from(sum, high - 63);
    uint64_t mantissa = window >> 11;
    bool half = (window >> 10 & 1) != 0;
    bool below = (window & 0x3ff) != 0 || (high > 63 && any_bit_below(sum, high - 63));
    uint64_t exp_field = (uint64_t)(high + CAIRN_EXACT_LEAST_EXP + 1023);
    uint64_t bits = (exp_field << F64_MANTISSA_BITS) +
                    (mantissa & (((uint64_t)1 << F64_MANTISSA_BITS) - 1));
    // a carry out of the mantissa rightly goes into the exponent
    if (half && (below || (mantissa & 1) != 0)) bits++;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

void exact_encode(const struct exact *sum, uint8_t out[CAIRN_EXACT_BYTES])
{
    for (size_t i = 0; i < CAIRN_EXACT_BYTES; i++) {
        out[i] = (uint8_t)(sum->limb[i / 8] >> (8 * (i % 8)));
    }
}

void exact_decode(const uint8_t bytes[CAIRN_EXACT_BYTES], struct exact *out)
{
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < CAIRN_EXACT_BYTES; i++) {
        out->limb[i / 8] |= (uint64_t)bytes[i] << (8 * (i % 8));
    }
}
