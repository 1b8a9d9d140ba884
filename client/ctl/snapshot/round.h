/* fp32 as bf16, rounded as the servers' kernels do it (tested): to nearest, ties to even; what is too large
 * is infinite; NaN stays one, and is always the same. Pure. */
#ifndef CAIRN_CTL_SNAPSHOT_ROUND_H
#define CAIRN_CTL_SNAPSHOT_ROUND_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t cairn_ctl_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

static inline void cairn_ctl_round_bf16(const float *from, uint16_t *to, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] = cairn_ctl_bf16(from[i]);
}

#endif
