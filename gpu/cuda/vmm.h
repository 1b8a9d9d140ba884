/* Memory of a device by handles (VMM), as a home and the client library take and read it. Any thread. */
#ifndef CAIRN_GPU_CUDA_VMM_H
#define CAIRN_GPU_CUDA_VMM_H

#include "gpu/cuda/driver.h"

/* Network cards may read and write memory that is made for it, by themselves (GPUDirect RDMA). */
static inline bool vmm_is_reached(const struct driver *driver, int device)
{
    int is = 0, makes = 0;
    return driver->cuDeviceGetAttribute(&is, CAIRN_CU_IS_REACHED, device) == CAIRN_CU_OK &&
           driver->cuDeviceGetAttribute(&makes, CAIRN_CU_MAKES_REACHED_MEMORY, device) ==
               CAIRN_CU_OK &&
           is != 0 && makes != 0;
}

static inline bool vmm_has_dma_buf(const struct driver *driver, int device)
{
    int has = 0;
    return driver->cuDeviceGetAttribute(&has, CAIRN_CU_HAS_DMA_BUF, device) == CAIRN_CU_OK &&
           has != 0;
}

/* Whether work that the card does next sees what network cards have written to its memory. */
enum vmm_order {
    CAIRN_VMM_ORDERED, /* by itself */
    CAIRN_VMM_FLUSHED, /* when cuFlushGPUDirectRDMAWrites has returned */
    CAIRN_VMM_NEVER    /* nothing here can make it so: nobody receives there */
};
static inline enum vmm_order vmm_order(const struct driver *driver, int device)
{
    int order = 0, flushes = 0;
    if (driver->cuDeviceGetAttribute(&order, CAIRN_CU_WRITES_ORDER, device) != CAIRN_CU_OK ||
        driver->cuDeviceGetAttribute(&flushes, CAIRN_CU_FLUSHES, device) != CAIRN_CU_OK)
        return CAIRN_VMM_NEVER;
    if (order >= CAIRN_CU_ORDER_OWNER) return CAIRN_VMM_ORDERED;
    return (flushes & CAIRN_CU_FLUSHES_BY_HOST) != 0 ? CAIRN_VMM_FLUSHED : CAIRN_VMM_NEVER;
}

/* Describes memory for cuMemCreate. Whether other processes may map it, and whether network cards reach it,
 * is fixed when it is made: memory that is shown to others is the memory that is sent to them. */
static inline struct cu_allocation vmm_allocation(int device, bool is_exportable, bool is_reached)
{
    return (struct cu_allocation) {
        .type = CAIRN_CU_ALLOCATION_PINNED,
        .handle_types = is_exportable ? CAIRN_CU_HANDLE_POSIX : 0,
        .location = { .type = CAIRN_CU_LOCATION_DEVICE, .id = device },
        .flags = { .gpu_direct_rdma = is_exportable && is_reached },
    };
}

/* Lets the device read what is mapped there. A driver that cannot grant reading alone grants
 * reading and writing. Returns a CUresult. */
static inline int vmm_open_to_read(const struct driver *driver, int device, uint64_t at,
                                   uint64_t bytes)
{
    struct cu_access access = {
        .location = { .type = CAIRN_CU_LOCATION_DEVICE, .id = device },
        .flags = CAIRN_CU_ACCESS_READ,
    };
    const int result = driver->cuMemSetAccess(at, (size_t)bytes, &access, 1);
    if (result == CAIRN_CU_OK) return result;
    access.flags = CAIRN_CU_ACCESS_READWRITE;
    return driver->cuMemSetAccess(at, (size_t)bytes, &access, 1);
}

#endif
