/* Memory of a device by handles (VMM), as a home and the client library take and read it. Any thread. */
#ifndef CAIRN_GPU_CUDA_VMM_H
#define CAIRN_GPU_CUDA_VMM_H

#include "gpu/cuda/driver.h"

/* What cuMemCreate makes; that other processes may map it is fixed then. */
static inline struct cairn_cu_allocation cairn_vmm_allocation(int device, bool is_exportable)
{
    return (struct cairn_cu_allocation) {
        .type = CAIRN_CU_ALLOCATION_PINNED,
        .handle_types = is_exportable ? CAIRN_CU_HANDLE_POSIX : 0,
        .location = { .type = CAIRN_CU_LOCATION_DEVICE, .id = device },
    };
}

/* What is mapped there may be read by the device; a driver that knows no memory to be read alone gives it
 * whole. CUresult. */
static inline int cairn_vmm_open_to_read(const struct cairn_driver *driver, int device, uint64_t at,
                                         uint64_t bytes)
{
    struct cairn_cu_access access = {
        .location = { .type = CAIRN_CU_LOCATION_DEVICE, .id = device },
        .flags = CAIRN_CU_ACCESS_READ,
    };
    const int result = driver->cuMemSetAccess(at, (size_t)bytes, &access, 1);
    if (result == CAIRN_CU_OK) return result;
    access.flags = CAIRN_CU_ACCESS_READWRITE;
    return driver->cuMemSetAccess(at, (size_t)bytes, &access, 1);
}

#endif
