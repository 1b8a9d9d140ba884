/* The language that device kernels are written in: nvcc compiles them for a device (gpu/cuda/kernels.cu),
 * and a C compiler for tests and the emulated driver (gpu/kernel/host.c). The bits are the same.
 *
 * A kernel says what a warp does with one piece of one item (gpu/kernel/list.h), KERNEL_FN void
 * fold_piece(item, piece); gpu/kernel/bodies.h goes through the list. Warps know nothing of each other,
 * so any order of them and any number gives the same bits. The 32 lanes of a warp are threads on a
 * device, and the turns of a loop here:
 *
 *   LANE_ARRAY(double, sum);          a variable of each lane: on a device one, here an array of 32
 *   EACH_LANE(lane)                   the lane's number, in order here; what is in the block is the lane's
 *       sum[LANE(lane)] = f(lane);    own, and no lane reads there what another one writes in that block
 *   lanes_add_f64(sum, 16);           between blocks (gpu/kernel/lanes.h): lane k += lane k + 16
 *
 * Memory is reached by MEMORY_AT(type, address) alone, for an address of a list: on a device the pointer;
 * here the pointer at a distance, for an emulated device whose memory cannot be touched where it seems to
 * lie. The address is aligned as the type is: a device ends a launch where it is not, and here it is
 * noted. */
#ifndef CAIRN_GPU_KERNEL_KERNEL_H
#define CAIRN_GPU_KERNEL_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "gpu/kernel/list.h"

#ifdef __CUDACC__

#define KERNEL_FN                static __device__ __forceinline__
#define KERNEL_FN_APART          static __device__ __noinline__ /* rarely called, and large */
#define MEMORY_AT(type, address) ((type *)(uintptr_t)(address))
#define LANES_HERE               1
#define LANE(lane)               ((void)(lane), 0)
#define EACH_LANE(lane)          if (const uint32_t lane = threadIdx.x % CAIRN_KERNEL_WARP; true)
#define KERNEL_UNROLL            _Pragma("unroll")

#else

#include "gpu/kernel/host.h"

#define KERNEL_FN                static inline __attribute__((unused))
#define KERNEL_FN_APART          KERNEL_FN
#define MEMORY_AT(type, address) CAIRN_KERNEL_AT(type, address)
#define LANES_HERE               32
#define LANE(lane)               (lane)
#define EACH_LANE(lane)          for (uint32_t lane = 0; lane < CAIRN_KERNEL_WARP; lane++)
#define KERNEL_UNROLL

#endif

#define LANE_ARRAY(type, name) type name[LANES_HERE]

#endif
