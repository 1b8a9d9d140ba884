/* Operations of all lanes of a warp together. A lane that has no partner gets an unspecified
 * value. */
#ifndef CAIRN_GPU_KERNEL_LANES_H
#define CAIRN_GPU_KERNEL_LANES_H

#include "gpu/kernel/kernel.h"

/* The lanes in which it is true. */
KERNEL_FN uint32_t lanes_count(const bool *of)
{
#ifdef __CUDACC__
    return (uint32_t)__popc(__ballot_sync(0xffffffffu, of[0]));
#else
    uint32_t count = 0;
    for (uint32_t k = 0; k < CAIRN_KERNEL_WARP; k++) count += of[k] ? 1 : 0;
    return count;
#endif
}

/* Lane k += lane k + distance, where that is a lane. */
KERNEL_FN void lanes_add_f64(double *of, uint32_t distance)
{
#ifdef __CUDACC__
    of[0] += __shfl_down_sync(0xffffffffu, of[0], distance);
#else
    for (uint32_t k = 0; k + distance < CAIRN_KERNEL_WARP; k++) of[k] += of[k + distance];
#endif
}

KERNEL_FN void lanes_add_u32(uint32_t *of, uint32_t distance)
{
#ifdef __CUDACC__
    of[0] += __shfl_down_sync(0xffffffffu, of[0], distance);
#else
    for (uint32_t k = 0; k + distance < CAIRN_KERNEL_WARP; k++) of[k] += of[k + distance];
#endif
}

/* All lanes of a group of `width` have what its first one has. */
KERNEL_FN void lanes_spread_f64(double *of, uint32_t width)
{
#ifdef __CUDACC__
    of[0] = __shfl_sync(0xffffffffu, of[0], 0, (int)width);
#else
    for (uint32_t k = 0; k < CAIRN_KERNEL_WARP; k++) of[k] = of[k - k % width];
#endif
}

#endif
