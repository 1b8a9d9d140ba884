/* The kernels of a device. Their bodies, which are written only once, are in gpu/kernel.
 *
 * Every fp32 operation rounds once and keeps subnormals, because nvcc gets -fmad=false -ftz=false -prec-div=true
 * -prec-sqrt=true; tests/gpu/ptx.py checks that. The kernels are compiled for sm_80, sm_90, sm_100 and sm_120, and
 * as PTX of sm_120 for future devices. */
#include "gpu/kernel/bodies.h"

#define CAIRN_CUDA_KERNEL(name, item, warps, size)                                            \
    extern "C" __global__ void __launch_bounds__(warps *CAIRN_KERNEL_WARP)                    \
        cairn_kernel_##name(const __grid_constant__ struct kernel_list list)                  \
    {                                                                                         \
        const uint64_t warp = (uint64_t)blockIdx.x * warps + threadIdx.x / CAIRN_KERNEL_WARP; \
        name##_body(&list, warp, (uint64_t)gridDim.x *warps);                                 \
    }
CAIRN_KERNELS(CAIRN_CUDA_KERNEL)
