/* The interface to CUDA. It has the driver calls that Cairn uses, which are found in libcuda.so.1 at run
 * time. No library of CUDA is linked, and no header of the toolkit is included, so the same daemon also
 * runs on machines without a driver.
 *
 * The oldest driver that is supported is the driver of CUDA 12.0 (R525), which has cuLibrary*. The image of
 * the kernels has code for current devices; a driver can load it if its major version is that of the
 * toolkit, or newer. The image also has PTX for future devices, which needs a driver at least as new as the
 * toolkit.
 *
 * All declarations match cuda.h; tests/gpu/test_cuda_header.c compares them. Handles have the struct tags
 * of cuda.h, and CUdeviceptr is uint64_t. Any thread may make the calls. */
#ifndef CAIRN_GPU_CUDA_DRIVER_H
#define CAIRN_GPU_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/text.h"

#define CAIRN_DRIVER_OLDEST 12000 /* as cuDriverGetVersion counts */

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUlib_st;
struct CUfunc_st;
struct CUkern_st; /* cuLaunchKernel accepts a CUkern_st where its header says CUfunction */

/* The values of CUresult that Cairn handles specifically. */
enum {
    CAIRN_CU_OK = 0,
    CAIRN_CU_INVALID_VALUE = 1,
    CAIRN_CU_OUT_OF_MEMORY = 2,
    CAIRN_CU_NO_DEVICE = 100,
    CAIRN_CU_INVALID_IMAGE = 200,
    CAIRN_CU_NO_BINARY_FOR_GPU = 209,
    CAIRN_CU_INVALID_PTX = 218,
    CAIRN_CU_UNSUPPORTED_PTX_VERSION = 222,
    CAIRN_CU_NOT_FOUND = 500,
    CAIRN_CU_NOT_READY = 600,
    CAIRN_CU_ALREADY_REGISTERED = 712,
    CAIRN_CU_NOT_SUPPORTED = 801,
    CAIRN_CU_CAPTURE_UNSUPPORTED =
        900, /* 900 to 908: a graph is being captured, and the call is not allowed meanwhile */
    CAIRN_CU_CAPTURE_IMPLICIT = 906,
    CAIRN_CU_CAPTURE_WRONG_THREAD = 908,
};

/* CUdevice_attribute */
enum {
    CAIRN_CU_MULTIPROCESSOR_COUNT = 16,
    CAIRN_CU_COMPUTE_MODE = 20,
    CAIRN_CU_CAPABILITY_MAJOR = 75,
    CAIRN_CU_CAPABILITY_MINOR = 76,
    CAIRN_CU_HAS_VIRTUAL_MEMORY = 102,
    CAIRN_CU_HAS_POSIX_HANDLES = 103,
    CAIRN_CU_MAKES_REACHED_MEMORY = 110, /* cuMemCreate accepts gpu_direct_rdma */
    CAIRN_CU_IS_REACHED = 116,           /* network cards reach the memory (GPUDirect RDMA) */
    /* bits that say how the network cards' writes can be made visible */
    CAIRN_CU_FLUSHES = 117,
    CAIRN_CU_WRITES_ORDER = 118, /* which devices see these writes without a flush */
    CAIRN_CU_HAS_DMA_BUF = 124,  /* memory can be exported to other drivers as a dma-buf */
    CAIRN_CU_IS_UNDER_MPS = 133, /* unknown to older drivers */
};

enum {
    CAIRN_CU_STREAM_NON_BLOCKING = 1,
    CAIRN_CU_EVENT_BLOCKING_SYNC = 1,
    CAIRN_CU_EVENT_DISABLE_TIMING = 2,
    CAIRN_CU_HOST_REGISTER_PORTABLE = 1,
    CAIRN_CU_HOST_REGISTER_DEVICEMAP = 2,
    CAIRN_CU_CAPTURES_NOTHING = 0, /* CUstreamCaptureStatus */
    CAIRN_CU_CAPTURE_RELAXED =
        2, /* CUstreamCaptureMode: calls of this thread do not abort captures of others */
    CAIRN_CU_LOCATION_DEVICE = 1,
    CAIRN_CU_ALLOCATION_PINNED = 1,
    CAIRN_CU_HANDLE_POSIX = 1,
    CAIRN_CU_ACCESS_READ = 1,
    CAIRN_CU_ACCESS_READWRITE = 3,
    CAIRN_CU_GRANULARITY_MINIMUM = 0,
    CAIRN_CU_MODE_EXCLUSIVE_PROCESS = 3,
    CAIRN_CU_POINTER_MEMORY_TYPE = 2, /* CUpointer_attribute: an unsigned */
    CAIRN_CU_POINTER_DEVICE = 9,      /* CUpointer_attribute: an int, the device's number */
    CAIRN_CU_MEMORY_DEVICE = 2,       /* CUmemorytype */
    CAIRN_CU_FLUSHES_BY_HOST = 1,     /* a bit of CAIRN_CU_FLUSHES */
    /* the card itself sees the writes; greater values: other devices do, too */
    CAIRN_CU_ORDER_OWNER = 100,
    CAIRN_CU_FLUSH_CONTEXT = 0,
    CAIRN_CU_FLUSH_TO_OWNER = 100,
    CAIRN_CU_STREAM_WAIT_GEQ = 0, /* waits until (int32_t)(*at - value) >= 0 */
};

struct cu_location {
    int type; /* CAIRN_CU_LOCATION_DEVICE */
    int id;   /* the device's number */
};

struct cu_allocation {
    int type; /* CAIRN_CU_ALLOCATION_PINNED */
    int handle_types;
    struct cu_location location;
    void *windows_only;
    struct {
        unsigned char compression, gpu_direct_rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

struct cu_access {
    struct cu_location location;
    int flags;
};

struct cu_uuid {
    unsigned char bytes[16];
};

/* Every driver call that Cairn uses, as call(name, suffix of the symbol, (parameters)). Only
 * cuGetProcAddress_v2 is not here: it finds the calls by their names, in the version of CUDA 12.0. If it
 * does not find a call, dlsym finds the call by name and suffix. */
// clang-format off
#define CAIRN_DRIVER_CALLS(call)                                                                            \
    call(cuInit, , (unsigned flags))                                                                        \
    call(cuDriverGetVersion, , (int *version_out))                                                          \
    call(cuGetErrorName, , (int result, const char **name_out))                                             \
    call(cuDeviceGetCount, , (int *count_out))                                                              \
    call(cuDeviceGet, , (int *device_out, int number))                                                      \
    call(cuDeviceGetName, , (char *name, int bytes, int device))                                            \
    call(cuDeviceGetUuid, _v2, (struct cu_uuid *uuid_out, int device)) /* a MIG slice: the slice's */ \
    call(cuDeviceGetPCIBusId, , (char *text, int bytes, int device)) /* a MIG slice: the card's */          \
    call(cuDeviceGetAttribute, , (int *value_out, int attribute, int device))                               \
    call(cuDeviceCanAccessPeer, , (int *can_out, int device, int peer))                                     \
    call(cuDeviceTotalMem, _v2, (size_t *bytes_out, int device))                                            \
    call(cuDevicePrimaryCtxRetain, , (struct CUctx_st **context_out, int device))                           \
    call(cuDevicePrimaryCtxRelease, _v2, (int device))                                                      \
    call(cuCtxSetCurrent, , (struct CUctx_st *context))                                                     \
    call(cuCtxPushCurrent, _v2, (struct CUctx_st *context))                                                 \
    call(cuCtxPopCurrent, _v2, (struct CUctx_st **context_out))                                             \
    call(cuCtxGetDevice, , (int *device_out))                                                               \
    call(cuCtxGetStreamPriorityRange, , (int *least_out, int *greatest_out))                                \
    call(cuThreadExchangeStreamCaptureMode, , (int *mode))                                                  \
    call(cuPointerGetAttribute, , (void *value_out, int attribute, uint64_t at))                            \
    call(cuMemGetInfo, _v2, (size_t *free_out, size_t *total_out))                                          \
    call(cuMemGetAllocationGranularity, ,                                                                   \
         (size_t *bytes_out, const struct cu_allocation *how, int option))                            \
    call(cuMemAddressReserve, ,                                                                             \
         (uint64_t *at_out, size_t bytes, size_t align, uint64_t wish, unsigned long long flags))           \
    call(cuMemAddressFree, , (uint64_t at, size_t bytes))                                                   \
    call(cuMemCreate, , (unsigned long long *handle_out, size_t bytes,                                      \
                         const struct cu_allocation *how, unsigned long long flags))                  \
    call(cuMemRelease, , (unsigned long long handle)) /* its mappings keep the memory */                    \
    call(cuMemMap, , (uint64_t at, size_t bytes, size_t offset, unsigned long long handle,                  \
                      unsigned long long flags))                                                            \
    call(cuMemUnmap, , (uint64_t at, size_t bytes))                                                         \
    call(cuMemSetAccess, , (uint64_t at, size_t bytes, const struct cu_access *access, size_t count)) \
    call(cuMemExportToShareableHandle, ,                                                                    \
         (void *fd_out, unsigned long long handle, int handle_type, unsigned long long flags))              \
    call(cuMemImportFromShareableHandle, ,                                                                  \
         (unsigned long long *handle_out, void *fd_as_pointer, int handle_type))                            \
    call(cuMemGetAllocationPropertiesFromHandle, ,                                                          \
         (struct cu_allocation *how_out, unsigned long long handle))                                  \
    call(cuMemAllocHost, _v2, (void **host_out, size_t bytes))                                              \
    call(cuMemFreeHost, , (void *host))                                                                     \
    call(cuMemHostRegister, _v2, (void *host, size_t bytes, unsigned flags))                                \
    call(cuMemHostUnregister, , (void *host))                                                               \
    call(cuMemHostGetDevicePointer, _v2, (uint64_t *at_out, void *host, unsigned flags))                    \
    call(cuStreamCreate, , (struct CUstream_st **stream_out, unsigned flags))                               \
    call(cuStreamCreateWithPriority, , (struct CUstream_st **stream_out, unsigned flags, int priority))     \
    call(cuStreamIsCapturing, , (struct CUstream_st *stream, int *status_out))                              \
    call(cuStreamDestroy, _v2, (struct CUstream_st *stream))                                                \
    call(cuStreamSynchronize, , (struct CUstream_st *stream))                                               \
    call(cuStreamWaitValue32, _v2,                                                                          \
         (struct CUstream_st *stream, uint64_t at, uint32_t value, unsigned flags))                         \
    call(cuStreamWaitEvent, , (struct CUstream_st *stream, struct CUevent_st *event, unsigned flags))       \
    call(cuEventCreate, , (struct CUevent_st **event_out, unsigned flags))                                  \
    call(cuEventDestroy, _v2, (struct CUevent_st *event))                                                   \
    call(cuEventRecord, , (struct CUevent_st *event, struct CUstream_st *stream))                           \
    call(cuEventQuery, , (struct CUevent_st *event))                                                        \
    call(cuEventSynchronize, , (struct CUevent_st *event))                                                  \
    call(cuMemcpyHtoDAsync, _v2, (uint64_t to, const void *from, size_t bytes, struct CUstream_st *stream)) \
    call(cuMemcpyDtoHAsync, _v2, (void *to, uint64_t from, size_t bytes, struct CUstream_st *stream))       \
    call(cuFlushGPUDirectRDMAWrites, , (int target, int scope))                                             \
    call(cuMemcpyDtoDAsync, _v2, (uint64_t to, uint64_t from, size_t bytes, struct CUstream_st *stream))    \
    call(cuMemsetD8Async, , (uint64_t at, unsigned char value, size_t bytes, struct CUstream_st *stream))   \
    call(cuLibraryLoadData, , (struct CUlib_st **library_out, const void *image, int *jit_options,          \
                               void **jit_values, unsigned jit_count, int *options, void **values,          \
                               unsigned count))                                                             \
    call(cuLibraryUnload, , (struct CUlib_st *library))                                                     \
    call(cuLibraryGetKernel, , (struct CUkern_st **kernel_out, struct CUlib_st *library, const char *name)) \
    call(cuKernelGetFunction, , (struct CUfunc_st **loaded_out, struct CUkern_st *kernel)) /* loads it */   \
    call(cuLaunchKernel, , (struct CUkern_st *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,    \
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,    \
                            struct CUstream_st *stream, void **parameters, void **extra))
// clang-format on

/* The type of cuGetProcAddress_v2. `version` is the CUDA version of the call, `flags` is 0, and `state_out`
 * says why a call is missing. */
typedef int (*driver_find_fn)(const char *name, void **at_out, int version, uint64_t flags,
                              int *state_out);

/* Each call returns a CUresult. */
struct driver {
#define CAIRN_CALL(name, suffix, parameters) int(*name) parameters;
    CAIRN_DRIVER_CALLS(CAIRN_CALL)
#undef CAIRN_CALL
    int version; /* the version of the driver: 12040 is CUDA 12.4 */
};

/* Opens libcuda.so.1, or the library that the environment variable CAIRN_CUDA_DRIVER names, and calls
 * cuInit. The library is never closed, because threads of the driver would not survive that.
 * CAIRN_ERR_NOT_FOUND: there is no such library, or no device. CAIRN_ERR_UNSUPPORTED: the driver is too
 * old, or lacks a call. CAIRN_ERR_IO: the driver does not start. */
CAIRN_MUST_CHECK cairn_status driver_open(struct driver *driver_out, struct sentence *why);
/* Returns the memory node nearest to the device (proto/base/machine.h); CAIRN_NUMA_NONE: unknown. */
int driver_numa_node(const struct driver *driver, int device);
/* True if the environment names the library. Then the library stands in for a driver, and has the kernels
 * in itself. */
int driver_stands_in(void);
/* Returns the name of a result, as "CUDA_ERROR_OUT_OF_MEMORY"; if the driver knows no name, its number,
 * which is written to `text`. */
const char *driver_error(const struct driver *driver, int result, char text[32]);

/* Returns the text of driver_error, followed by driver_advice if there is any. */
#define CAIRN_DRIVER_TEXT_BYTES 512
const char *driver_explain(const struct driver *driver, int result,
                           char text[CAIRN_DRIVER_TEXT_BYTES]);

/* ---- driver.c ---- */

/* Returns advice about a result, for the administrator of the machine; "": there is none. Static. */
const char *driver_advice(int result);
/* True if the result breaks the context and all its memory. Otherwise only the call failed. */
bool driver_breaks(int result);

/* ==== results ==== */

/* The meaning of the driver's results, according to cuda.h. The table says whether the context survives a
 * result, and what the administrator of the machine can do. Tests read the table, too. */

// clang-format off
#define CAIRN_ADVICE_SEE     "look for NVRM and Xid in dmesg"
#define CAIRN_ADVICE_MODULES \
    "the driver's kernel module and its libraries are of different versions: restart the machine"
#define CAIRN_ADVICE_IMAGE "the driver and the kernels in this daemon do not fit: update the driver"
#define CAIRN_ADVICE_MPS   "of MPS: look at its control daemon's log, and start it and this process again"
#define CAIRN_ADVICE_NODES \
    "are /dev/nvidiactl, /dev/nvidia-uvm and the card's /dev/nvidia0 there, and this user's to open? " \
    "nvidia-modprobe -u -c 0 makes them, but not for a unit with NoNewPrivileges: start " \
    "nvidia-persistenced first"
#define CAIRN_ADVICE_GONE \
    "a kernel of this process did what may not be, or under MPS one of another client: " CAIRN_ADVICE_SEE \
    ", and start this process again"

/* Each row is meaning(name after CUDA_ERROR_, number, true if the result breaks the context, advice or
 * ""). */
#define CAIRN_MEANINGS(meaning)                                                                            \
    meaning(INVALID_VALUE, 1, false, "")                                                                   \
    meaning(OUT_OF_MEMORY, 2, false, "look at nvidia-smi for who has it")                                  \
    meaning(STUB_LIBRARY, 34, false,                                                                       \
            "libcuda.so.1 is a toolkit's stub: take its folder out of LD_LIBRARY_PATH")                    \
    meaning(CALL_REQUIRES_NEWER_DRIVER, 36, false, "update the driver")                                    \
    meaning(DEVICE_UNAVAILABLE, 46, false,                                                                 \
            "another process has the card for itself, or nobody may use it: nvidia-smi -q -d "             \
            "COMPUTE says the mode, nvidia-smi -c 0 lets several share it")                                \
    meaning(NO_DEVICE, 100, false,                                                                         \
            "look at nvidia-smi, and at the environment's CUDA_VISIBLE_DEVICES; in a "                     \
            "container, was it given a GPU?")                                                              \
    meaning(INVALID_DEVICE, 101, false,                                                                    \
            "look at nvidia-smi -L, and at the environment's CUDA_VISIBLE_DEVICES")                        \
    meaning(DEVICE_NOT_LICENSED, 102, false, "the virtual GPU has no licence")                             \
    meaning(INVALID_IMAGE, 200, false, CAIRN_ADVICE_IMAGE)                                                 \
    meaning(MAP_FAILED, 205, false, "")                                                                    \
    meaning(UNMAP_FAILED, 206, false, "")                                                                  \
    meaning(ALREADY_MAPPED, 208, false, "")                                                                \
    meaning(NO_BINARY_FOR_GPU, 209, false, CAIRN_ADVICE_IMAGE)                                             \
    meaning(ALREADY_ACQUIRED, 210, false, "")                                                              \
    meaning(NOT_MAPPED, 211, false, "")                                                                    \
    meaning(ECC_UNCORRECTABLE, 214, true,                                                                  \
            "uncorrectable ECC error: nvidia-smi -q -d ECC,ROW_REMAPPER says where; reset "                \
            "the card, and have it replaced if it comes again")                                            \
    meaning(PEER_ACCESS_UNSUPPORTED, 217, false, "")                                                       \
    meaning(INVALID_PTX, 218, false, CAIRN_ADVICE_IMAGE)                                                   \
    meaning(NVLINK_UNCORRECTABLE, 220, true,                                                               \
            "uncorrectable NVLink error: "                                                                 \
            CAIRN_ADVICE_SEE                                                                               \
            ", and look at nvidia-smi nvlink -e")                                                          \
    meaning(JIT_COMPILER_NOT_FOUND, 221, false,                                                            \
            "libnvidia-ptxjitcompiler.so.1 is missing, which a card newer than this daemon's "             \
            "kernels needs: install the whole driver, or build with a newer toolkit")                      \
    meaning(UNSUPPORTED_PTX_VERSION, 222, false, CAIRN_ADVICE_IMAGE)                                       \
    meaning(JIT_COMPILATION_DISABLED, 223, false,                                                          \
            "take CUDA_DISABLE_PTX_JIT out of the environment, or build with a newer toolkit")             \
    meaning(CONTAINED, 226, true,                                                                          \
            "a fault that the hardware contained: "                                                        \
            CAIRN_ADVICE_SEE                                                                               \
            ", and start this process again")                                                               \
    meaning(OPERATING_SYSTEM, 304, false, CAIRN_ADVICE_NODES)                                              \
    meaning(INVALID_HANDLE, 400, false, "")                                                                \
    meaning(ILLEGAL_STATE, 401, false, "")                                                                 \
    meaning(NOT_FOUND, 500, false, "")                                                                     \
    meaning(NOT_READY, 600, false, "")                                                                     \
    meaning(ILLEGAL_ADDRESS, 700, true, CAIRN_ADVICE_GONE)                                                 \
    meaning(LAUNCH_OUT_OF_RESOURCES, 701, false, "")                                                       \
    meaning(LAUNCH_TIMEOUT, 702, true,                                                                     \
            "the watchdog of a display ended a kernel: take a card without a display for the "             \
            "shard")                                                                                       \
    meaning(PEER_ACCESS_ALREADY_ENABLED, 704, false, "")                                                   \
    meaning(PEER_ACCESS_NOT_ENABLED, 705, false, "")                                                       \
    meaning(TOO_MANY_PEERS, 711, false, "")                                                                \
    meaning(HOST_MEMORY_ALREADY_REGISTERED, 712, false, "")                                                \
    meaning(HOST_MEMORY_NOT_REGISTERED, 713, false, "")                                                    \
    meaning(HARDWARE_STACK_ERROR, 714, true, CAIRN_ADVICE_GONE)                                            \
    meaning(ILLEGAL_INSTRUCTION, 715, true, CAIRN_ADVICE_GONE)                                             \
    meaning(MISALIGNED_ADDRESS, 716, true, CAIRN_ADVICE_GONE)                                              \
    meaning(INVALID_ADDRESS_SPACE, 717, true, CAIRN_ADVICE_GONE)                                           \
    meaning(INVALID_PC, 718, true, CAIRN_ADVICE_GONE)                                                      \
    meaning(LAUNCH_FAILED, 719, true, CAIRN_ADVICE_GONE)                                                   \
    meaning(NOT_PERMITTED, 800, false, "may this user? In a container, which capabilities has it?")        \
    meaning(NOT_SUPPORTED, 801, false,                                                                     \
            "the card, its slice or this kind of machine (a virtual GPU, WSL) does not have "              \
            "it")                                                                                          \
    meaning(SYSTEM_NOT_READY, 802, false,                                                                  \
            "the machine is not ready: where GPUs have NVSwitch, nvidia-fabricmanager runs "               \
            "first (systemctl status nvidia-fabricmanager), of the driver's version; in "                  \
            "confidential computing, the GPU is to be set ready")                                          \
    meaning(SYSTEM_DRIVER_MISMATCH, 803, false, CAIRN_ADVICE_MODULES)                                      \
    meaning(COMPAT_NOT_SUPPORTED_ON_DEVICE, 804, false,                                                    \
            "the libcuda.so.1 of a compatibility package does not drive this card: take its "              \
            "folder out of LD_LIBRARY_PATH")                                                               \
    meaning(MPS_CONNECTION_FAILED, 805, true, CAIRN_ADVICE_MPS)                                            \
    meaning(MPS_RPC_FAILURE, 806, true, CAIRN_ADVICE_MPS)                                                  \
    meaning(MPS_SERVER_NOT_READY, 807, true, CAIRN_ADVICE_MPS)                                             \
    meaning(MPS_MAX_CLIENTS_REACHED, 808, false, "MPS has no room for one more client")                    \
    meaning(MPS_MAX_CONNECTIONS_REACHED, 809, false, "MPS has no room for one more client")                \
    meaning(MPS_CLIENT_TERMINATED, 810, true, CAIRN_ADVICE_MPS)                                            \
    meaning(STREAM_CAPTURE_UNSUPPORTED, 900, false, "")                                                    \
    meaning(STREAM_CAPTURE_INVALIDATED, 901, false, "")                                                    \
    meaning(STREAM_CAPTURE_MERGE, 902, false, "")                                                          \
    meaning(STREAM_CAPTURE_UNMATCHED, 903, false, "")                                                      \
    meaning(STREAM_CAPTURE_UNJOINED, 904, false, "")                                                       \
    meaning(STREAM_CAPTURE_ISOLATION, 905, false, "")                                                      \
    meaning(STREAM_CAPTURE_IMPLICIT, 906, false, "")                                                       \
    meaning(CAPTURED_EVENT, 907, false, "")                                                                \
    meaning(STREAM_CAPTURE_WRONG_THREAD, 908, false, "")                                                   \
    meaning(UNKNOWN, 999, true,                                                                            \
            "the card may have fallen off its bus, or /dev/nvidia-uvm cannot be opened: "                  \
            CAIRN_ADVICE_SEE                                                                               \
            ", try nvidia-modprobe -u, reset the card")
// clang-format on

/* ==== memory by handles ==== */

/* Memory of a device by handles (VMM): a home and the client library both allocate and map memory this way.
 * Any thread. */

/* True if network cards can directly access memory of the device that was created for such access
 * (GPUDirect RDMA). */
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

/* Says when later work of the card sees the data that network cards have written to the card's memory. */
enum vmm_order {
    CAIRN_VMM_ORDERED, /* always, without a flush */
    CAIRN_VMM_FLUSHED, /* after cuFlushGPUDirectRDMAWrites has returned */
    /* no call makes sure of that, so network cards must not receive into the card's memory */
    CAIRN_VMM_NEVER
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

/* Describes memory for cuMemCreate. cuMemCreate fixes whether other processes may map the memory, and
 * whether network cards can access it. Only exportable memory is made accessible to network cards, because
 * no other memory is sent. */
static inline struct cu_allocation vmm_allocation(int device, bool is_exportable, bool is_reached)
{
    return (struct cu_allocation) {
        .type = CAIRN_CU_ALLOCATION_PINNED,
        .handle_types = is_exportable ? CAIRN_CU_HANDLE_POSIX : 0,
        .location = { .type = CAIRN_CU_LOCATION_DEVICE, .id = device },
        .flags = { .gpu_direct_rdma = is_exportable && is_reached },
    };
}

/* Lets the device read the memory that is mapped at `at`. If the driver cannot grant read-only access, the
 * function asks for reading and writing. Returns a CUresult. */
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
