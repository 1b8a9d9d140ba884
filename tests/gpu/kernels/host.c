#include "tests/gpu/kernels/host.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "gpu/kernel/bodies.h"

struct kernel_memory kernel_memory;
_Thread_local uint64_t kernel_misaligned;

void *kernel_misaligned_at(uint64_t address, size_t bytes)
{
    static _Thread_local _Alignas(16) uint8_t zeros[512];
    assert(bytes <= sizeof zeros);
    if (kernel_misaligned == 0) kernel_misaligned = address;
    return memset(zeros, 0, bytes);
}

#define RUN_BLOCK(name, item, warps, size)                                                  \
    static void name##_run(const struct kernel_list *list, uint32_t block, uint32_t blocks) \
    {                                                                                       \
        assert(block < blocks);                                                             \
        for (uint64_t warp = 0; warp < (warps); warp++)                                     \
            name##_body(list, (uint64_t)block *(warps) + warp, (uint64_t)blocks * (warps)); \
    }
CAIRN_KERNELS(RUN_BLOCK)

#define KERNEL(name, item, warps, size)                                                         \
    [CAIRN_KERNEL_##name] = { "cairn_kernel_" #name, sizeof(item), CAIRN_KERNEL_WARP * (warps), \
                              name##_run, ranges_##name },
const struct kernel kernel_table[CAIRN_KERNEL_COUNT] = { CAIRN_KERNELS(KERNEL) };

const struct kernel *kernel_named(const char *name)
{
    for (size_t i = 0; i < CAIRN_KERNEL_COUNT; i++)
        if (strcmp(kernel_table[i].name, name) == 0) return &kernel_table[i];
    return NULL;
}
