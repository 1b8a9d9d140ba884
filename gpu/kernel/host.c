#include "gpu/kernel/host.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "gpu/kernel/bodies.h"
#include "gpu/kernel/ranges.h"

struct cairn_kernel_memory cairn_kernel_memory;
_Thread_local uint64_t cairn_kernel_misaligned;

void *cairn_kernel_misaligned_at(uint64_t address, size_t bytes)
{
    static _Thread_local _Alignas(16) uint8_t zeros[512];
    assert(bytes <= sizeof zeros);
    if (cairn_kernel_misaligned == 0) cairn_kernel_misaligned = address;
    return memset(zeros, 0, bytes);
}

#define RUN_BLOCK(name, item, warps)                                                              \
    static void name##_run(const struct cairn_kernel_list *list, uint32_t block, uint32_t blocks) \
    {                                                                                             \
        assert(block < blocks);                                                                   \
        for (uint64_t warp = 0; warp < (warps); warp++)                                           \
            name##_body(list, (uint64_t)block *(warps) + warp, (uint64_t)blocks * (warps));       \
    }
CAIRN_KERNELS(RUN_BLOCK)

#define KERNEL(name, item, warps)                                                               \
    [CAIRN_KERNEL_##name] = { "cairn_kernel_" #name, sizeof(item), CAIRN_KERNEL_WARP * (warps), \
                              name##_run, cairn_ranges_##name },
const struct cairn_kernel cairn_kernels[CAIRN_KERNEL_COUNT] = { CAIRN_KERNELS(KERNEL) };

const struct cairn_kernel *cairn_kernel_named(const char *name)
{
    for (size_t i = 0; i < CAIRN_KERNEL_COUNT; i++)
        if (strcmp(cairn_kernels[i].name, name) == 0) return &cairn_kernels[i];
    return NULL;
}
