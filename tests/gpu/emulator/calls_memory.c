/* Calls: memory of the device, and pinned memory of the host. */
#include "tests/gpu/emulator/calls.h"

#include <string.h>

/* The body of a call that maps, registers or unmaps memory. */
#define CHANGING_CALL(need, ...) \
    EMULATOR_CALL(need, (emulator_stream_wait_all(emulator_device()), (__VA_ARGS__)))

static enum emulator_result tell_info(size_t *free_out, size_t *total_out)
{
    struct emulator_memory_info info;
    emulator_memory_info(emulator_device(), &info);
    *free_out = info.free;
    *total_out = info.total;
    return EMULATOR_OK;
}

int cuMemGetInfo_v2(size_t *free_out, size_t *total_out)
{
    EMULATOR_CALL(EMULATOR_NEEDS_CONTEXT, tell_info(free_out, total_out));
}

static bool sound(const struct cu_allocation *how)
{
    return how->type == CAIRN_CU_ALLOCATION_PINNED &&
           how->location.type == CAIRN_CU_LOCATION_DEVICE && how->location.id >= 0 &&
           (uint64_t)how->location.id < emulator_options.devices &&
           (how->handle_types & ~CAIRN_CU_HANDLE_POSIX) == 0 && how->windows_only == NULL &&
           how->flags.compression == 0 && how->flags.usage == 0 &&
           how->flags.gpu_direct_rdma <= (emulator_options.no_reach == 0);
}

int cuMemGetAllocationGranularity(size_t *bytes_out, const struct cu_allocation *how, int option)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, !sound(how) || option < 0 || option > 1
                                           ? EMULATOR_INVALID_VALUE
                                           : (*bytes_out = EMULATOR_PAGE, EMULATOR_OK));
}

int cuMemAddressReserve(uint64_t *at_out, size_t bytes, size_t align, uint64_t wish,
                        unsigned long long flags)
{
    (void)wish;
    EMULATOR_CALL(EMULATOR_NEEDS_CONTEXT, flags != 0
                                              ? EMULATOR_INVALID_VALUE
                                              : emulator_memory_reserve(bytes, align, at_out));
}

int cuMemAddressFree(uint64_t at, size_t bytes)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, emulator_memory_unreserve(at, bytes));
}

static enum emulator_result create(unsigned long long *handle_out, size_t bytes,
                                   const struct cu_allocation *how, unsigned long long flags)
{
    uint64_t handle;
    if (flags != 0 || !sound(how)) return EMULATOR_INVALID_VALUE;
    const bool exportable = (how->handle_types & CAIRN_CU_HANDLE_POSIX) != 0;
    const enum emulator_result result = emulator_memory_create((uint32_t)how->location.id, bytes,
                                                               exportable, &handle);
    if (result == EMULATOR_OK) *handle_out = handle;
    return result;
}

int cuMemCreate(unsigned long long *handle_out, size_t bytes, const struct cu_allocation *how,
                unsigned long long flags)
{
    CHANGING_CALL(EMULATOR_NEEDS_CONTEXT, create(handle_out, bytes, how, flags));
}

int cuMemRelease(unsigned long long handle)
{
    CHANGING_CALL(EMULATOR_NEEDS_INIT, emulator_memory_release(handle));
}

int cuMemMap(uint64_t at, size_t bytes, size_t offset, unsigned long long handle,
             unsigned long long flags)
{
    CHANGING_CALL(EMULATOR_NEEDS_CONTEXT, flags != 0
                                              ? EMULATOR_INVALID_VALUE
                                              : emulator_memory_map(at, bytes, offset, handle));
}

int cuMemUnmap(uint64_t at, size_t bytes)
{
    CHANGING_CALL(EMULATOR_NEEDS_INIT, emulator_memory_unmap(at, bytes));
}

static enum emulator_result set_access(uint64_t at, size_t bytes, const struct cu_access *access,
                                       size_t count)
{
    enum emulator_result result = count == 0 ? EMULATOR_INVALID_VALUE : EMULATOR_OK;
    for (size_t i = 0; i < count && result == EMULATOR_OK; i++) {
        const int flags = access[i].flags;
        if (access[i].location.type != CAIRN_CU_LOCATION_DEVICE || flags < 0 || flags == 2 ||
            flags > 3)
            return EMULATOR_INVALID_VALUE;
        result = emulator_memory_access(at, bytes, (uint32_t)access[i].location.id, flags != 0,
                                        flags == CAIRN_CU_ACCESS_READWRITE);
    }
    return result;
}

int cuMemSetAccess(uint64_t at, size_t bytes, const struct cu_access *access, size_t count)
{
    CHANGING_CALL(EMULATOR_NEEDS_CONTEXT, set_access(at, bytes, access, count));
}

int cuMemExportToShareableHandle(void *fd_out, unsigned long long handle, int handle_type,
                                 unsigned long long flags)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, handle_type != CAIRN_CU_HANDLE_POSIX || flags != 0
                                           ? EMULATOR_INVALID_VALUE
                                           : emulator_memory_export(handle, fd_out));
}

static enum emulator_result import(unsigned long long *handle_out, const void *fd_as_pointer,
                                   int handle_type)
{
    uint64_t handle;
    if (handle_type != CAIRN_CU_HANDLE_POSIX) return EMULATOR_INVALID_VALUE;
    const enum emulator_result result = emulator_memory_import((int)(intptr_t)fd_as_pointer,
                                                               &handle);
    if (result == EMULATOR_OK) *handle_out = handle;
    return result;
}

int cuMemImportFromShareableHandle(unsigned long long *handle_out, void *fd_as_pointer,
                                   int handle_type)
{
    CHANGING_CALL(EMULATOR_NEEDS_INIT, import(handle_out, fd_as_pointer, handle_type));
}

static enum emulator_result describe(struct cu_allocation *how_out, uint64_t handle)
{
    uint32_t device;
    const enum emulator_result result = emulator_memory_device(handle, &device);
    if (result != EMULATOR_OK) return result;
    *how_out = (struct cu_allocation) {
        .type = CAIRN_CU_ALLOCATION_PINNED,
        .handle_types = CAIRN_CU_HANDLE_POSIX,
        .location = { .type = CAIRN_CU_LOCATION_DEVICE, .id = (int)device },
    };
    return EMULATOR_OK;
}

int cuMemGetAllocationPropertiesFromHandle(struct cu_allocation *how_out, unsigned long long handle)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, describe(how_out, handle));
}

static enum emulator_result tell_pointer(void *value_out, int attribute, uint64_t at)
{
    uint32_t device;
    const bool is_mapped = emulator_memory_at(at, &device);
    const unsigned memory_device = CAIRN_CU_MEMORY_DEVICE;
    const int number = (int)device;
    if (!is_mapped) return EMULATOR_INVALID_VALUE; // host memory that nobody has pinned, too
    if (attribute == CAIRN_CU_POINTER_MEMORY_TYPE)
        memcpy(value_out, &memory_device, sizeof memory_device);
    else if (attribute == CAIRN_CU_POINTER_DEVICE)
        memcpy(value_out, &number, sizeof number);
    else
        return EMULATOR_INVALID_VALUE;
    return EMULATOR_OK;
}

int cuPointerGetAttribute(void *value_out, int attribute, uint64_t at)
{
    EMULATOR_CALL(EMULATOR_NEEDS_CONTEXT, tell_pointer(value_out, attribute, at));
}

int cuFlushGPUDirectRDMAWrites(int target, int scope)
{
    EMULATOR_CALL(EMULATOR_NEEDS_CONTEXT, target != CAIRN_CU_FLUSH_CONTEXT ||
                                                  scope != CAIRN_CU_FLUSH_TO_OWNER ||
                                                  emulator_options.unordered > 1
                                              ? EMULATOR_NOT_SUPPORTED
                                              : (emulator_flushes++, EMULATOR_OK));
}

int cuMemAllocHost_v2(void **host_out, size_t bytes)
{
    CHANGING_CALL(EMULATOR_NEEDS_CONTEXT, emulator_host_alloc(bytes, emulator_device(), host_out));
}

int cuMemFreeHost(void *host)
{
    CHANGING_CALL(EMULATOR_NEEDS_INIT, emulator_host_free(emulator_number(host)));
}

int cuMemHostRegister_v2(void *host, size_t bytes, unsigned flags)
{
    CHANGING_CALL(EMULATOR_NEEDS_CONTEXT,
                  (flags & ~(unsigned)(CAIRN_CU_HOST_REGISTER_PORTABLE |
                                       CAIRN_CU_HOST_REGISTER_DEVICEMAP)) != 0
                      ? EMULATOR_INVALID_VALUE
                      : emulator_host_register(emulator_number(host), bytes, emulator_device()));
}

int cuMemHostUnregister(void *host)
{
    CHANGING_CALL(EMULATOR_NEEDS_INIT, emulator_host_unregister(emulator_number(host)));
}

int cuMemHostGetDevicePointer_v2(uint64_t *at_out, void *host, unsigned flags)
{
    EMULATOR_CALL(EMULATOR_NEEDS_CONTEXT,
                  flags != 0 ? EMULATOR_INVALID_VALUE
                             : emulator_host_to_device(emulator_number(host), at_out));
}
