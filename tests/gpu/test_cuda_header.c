/* What driver.h declares, held against the toolkit's cuda.h: values, sizes, offsets, and each call's
 * parameters. Skipped where there is no cuda.h: only who has a toolkit can compare. */
#include "tests/support/suite.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef CAIRN_HAS_CUDA_H

/* Our cuLaunchKernel takes a CUkernel where cuda.h says CUfunction, as it may: here both are one type. */
#define CUkern_st CUfunc_st
#include "gpu/cuda/driver.h"

/* ours_cuInit: before cuda.h, which makes macros of some names. */
#define CAIRN_CALL(name, suffix, parameters) typedef int(*ours_##name) parameters;
CAIRN_DRIVER_CALLS(CAIRN_CALL)
#undef CAIRN_CALL
typedef driver_find_fn ours_cuGetProcAddress;
#undef CUkern_st

#include <cuda.h>

struct pair {
    const char *what;
    uint64_t ours, theirs;
};

#define SAME(ours, theirs)                            \
    {                                                 \
#theirs, (uint64_t)(ours), (uint64_t)(theirs) \
    }
static const struct pair values[] = {
    SAME(CAIRN_CU_OK, CUDA_SUCCESS),
    SAME(CAIRN_CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE),
    SAME(CAIRN_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY),
    SAME(CAIRN_CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE),
    SAME(CAIRN_CU_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE),
    SAME(CAIRN_CU_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU),
    SAME(CAIRN_CU_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_UNSUPPORTED_PTX_VERSION),
    SAME(CAIRN_CU_INVALID_PTX, CUDA_ERROR_INVALID_PTX),
    SAME(CAIRN_CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND),
    SAME(CAIRN_CU_NOT_READY, CUDA_ERROR_NOT_READY),
    SAME(CAIRN_CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED),
    SAME(CAIRN_CU_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    SAME(CAIRN_CU_CAPTURE_IMPLICIT, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
    SAME(CAIRN_CU_CAPTURE_WRONG_THREAD, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
    SAME(CAIRN_CU_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ),
    SAME(CAIRN_CU_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
    SAME(CAIRN_CU_POINTER_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL),
    SAME(CAIRN_CU_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE),
    SAME(CAIRN_CU_STREAM_WAIT_GEQ, CU_STREAM_WAIT_VALUE_GEQ),
    SAME(CAIRN_CU_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
#define CAIRN_MEANING(name, number, breaks, advice) SAME(number, CUDA_ERROR_##name),
    CAIRN_MEANINGS(CAIRN_MEANING)
#undef CAIRN_MEANING
        SAME(CAIRN_CU_MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
    SAME(CAIRN_CU_HAS_DMA_BUF, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
    SAME(CAIRN_CU_FLUSHES, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS),
    SAME(CAIRN_CU_WRITES_ORDER, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING),
    SAME(CAIRN_CU_FLUSHES_BY_HOST, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST),
    SAME(CAIRN_CU_ORDER_OWNER, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER),
    SAME(CAIRN_CU_FLUSH_CONTEXT, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX),
    SAME(CAIRN_CU_FLUSH_TO_OWNER, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
    SAME(CAIRN_CU_MAKES_REACHED_MEMORY,
         CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
    SAME(CAIRN_CU_IS_REACHED, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED),
    SAME(CAIRN_CU_COMPUTE_MODE, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE),
    SAME(CAIRN_CU_IS_UNDER_MPS, CU_DEVICE_ATTRIBUTE_MPS_ENABLED),
    SAME(CAIRN_CU_MODE_EXCLUSIVE_PROCESS, CU_COMPUTEMODE_EXCLUSIVE_PROCESS),
    SAME(CAIRN_CU_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
    SAME(CAIRN_CU_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
    SAME(CAIRN_CU_HAS_VIRTUAL_MEMORY, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
    SAME(CAIRN_CU_HAS_POSIX_HANDLES,
         CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
    SAME(CAIRN_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING),
    SAME(CAIRN_CU_EVENT_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC),
    SAME(CAIRN_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING),
    SAME(CAIRN_CU_HOST_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE),
    SAME(CAIRN_CU_HOST_REGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP),
    SAME(CAIRN_CU_CAPTURES_NOTHING, CU_STREAM_CAPTURE_STATUS_NONE),
    SAME(CAIRN_CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED),
    SAME(CAIRN_CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE),
    SAME(CAIRN_CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED),
    SAME(CAIRN_CU_HANDLE_POSIX, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
    SAME(CAIRN_CU_ACCESS_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
    SAME(CAIRN_CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
};

typedef struct cu_location our_location;
typedef struct cu_allocation our_allocation;
typedef struct cu_access our_access;

/* A member's place and size. */
#define MEMBER(ours, our_member, theirs, member)                \
    SAME(offsetof(ours, our_member), offsetof(theirs, member)), \
        SAME(sizeof((ours *)0)->our_member, sizeof((theirs *)0)->member)
static const struct pair layouts[] = {
    SAME(sizeof(our_location), sizeof(CUmemLocation)),
    MEMBER(our_location, type, CUmemLocation, type),
    MEMBER(our_location, id, CUmemLocation, id),
    SAME(sizeof(our_allocation), sizeof(CUmemAllocationProp)),
    MEMBER(our_allocation, type, CUmemAllocationProp, type),
    MEMBER(our_allocation, handle_types, CUmemAllocationProp, requestedHandleTypes),
    MEMBER(our_allocation, location, CUmemAllocationProp, location),
    MEMBER(our_allocation, windows_only, CUmemAllocationProp, win32HandleMetaData),
    MEMBER(our_allocation, flags, CUmemAllocationProp, allocFlags),
    MEMBER(our_allocation, flags.compression, CUmemAllocationProp, allocFlags.compressionType),
    MEMBER(our_allocation, flags.gpu_direct_rdma, CUmemAllocationProp,
           allocFlags.gpuDirectRDMACapable),
    MEMBER(our_allocation, flags.usage, CUmemAllocationProp, allocFlags.usage),
    SAME(sizeof(our_access), sizeof(CUmemAccessDesc)),
    MEMBER(our_access, location, CUmemAccessDesc, location),
    MEMBER(our_access, flags, CUmemAccessDesc, flags),
    SAME(sizeof(struct cu_uuid), sizeof(CUuuid)),
    /* What stands for it in calls. */
    SAME(sizeof(int), sizeof(CUresult)),
    SAME(sizeof(int), sizeof(CUdevice)),
    SAME(sizeof(int), sizeof(CUmemAllocationHandleType)),
    SAME(sizeof(int), sizeof(CUflushGPUDirectRDMAWritesTarget)),
    SAME(sizeof(int), sizeof(CUflushGPUDirectRDMAWritesScope)),
    SAME(sizeof(int), sizeof(CUstreamCaptureMode)),
    SAME(sizeof(int), sizeof(CUstreamCaptureStatus)),
    SAME(sizeof(uint64_t), sizeof(CUdeviceptr)),
    SAME(sizeof(unsigned long long), sizeof(CUmemGenericAllocationHandle)),
};

/* The names that cuda.h gives to symbols, while its macros are as it made them. */
struct symbol {
    const char *name, *ours, *theirs;
};
#define TEXT(text)                           TEXT_OF(text)
#define TEXT_OF(expansion)                   #expansion
#define CAIRN_CALL(name, suffix, parameters) { #name, #name #suffix, TEXT(name) },
static const struct symbol symbols[] = { CAIRN_DRIVER_CALLS(CAIRN_CALL) };
#undef CAIRN_CALL

/* From here on cuda.h's types are ours, so that its prototypes become what driver.h should say. CMake copied
 * them out of it: CAIRN_PROTOTYPE(cuInit, (unsigned int Flags)). */
#define CUresult                          int
#define CUdevice                          int
#define CUdevice_attribute                int
#define CUpointer_attribute               int
#define CUdeviceptr                       uint64_t
#define CUuuid                            struct cu_uuid
#define CUcontext                         struct CUctx_st *
#define CUstream                          struct CUstream_st *
#define CUevent                           struct CUevent_st *
#define CUlibrary                         struct CUlib_st *
#define CUkernel                          struct CUfunc_st *
#define CUfunction                        struct CUfunc_st *
#define CUjit_option                      int
#define CUstreamCaptureMode               int
#define CUstreamCaptureStatus             int
#define CUlibraryOption                   int
#define CUmemLocation                     struct cu_location
#define CUmemAllocationProp               struct cu_allocation
#define CUmemAccessDesc                   struct cu_access
#define CUmemGenericAllocationHandle      unsigned long long
#define CUmemAllocationHandleType         int
#define CUmemAllocationGranularity_flags  int
#define CUflushGPUDirectRDMAWritesTarget  int
#define CUflushGPUDirectRDMAWritesScope   int
#define CUdriverProcAddressQueryResult    int
#define CAIRN_PROTOTYPE(name, parameters) typedef CUresult(*theirs_##name) parameters;
#include "cuda_prototypes.h"
#undef CAIRN_PROTOTYPE

static const struct {
    const char *name;
    int is_same;
} prototypes[] = {
#define CAIRN_PROTOTYPE(name, parameters) \
    { #name, __builtin_types_compatible_p(ours_##name, theirs_##name) },
#include "cuda_prototypes.h"
};

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static void check_pairs(const struct pair *pairs, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(pairs[i].ours == pairs[i].theirs, "%s: ours %" PRIu64 ", cuda.h's %" PRIu64,
                      pairs[i].what, pairs[i].ours, pairs[i].theirs);
}

TEST(values_are_those_of_cuda_h)
{
    check_pairs(values, COUNT(values));
}

TEST(structs_are_laid_out_as_in_cuda_h)
{
    check_pairs(layouts, COUNT(layouts));
}

TEST(each_call_takes_what_cuda_h_says)
{
    for (size_t i = 0; i < COUNT(prototypes); i++)
        ck_assert_msg(prototypes[i].is_same, "%s takes something else in cuda.h",
                      prototypes[i].name);
    ck_assert_uint_eq(COUNT(prototypes), COUNT(symbols) + 1); // and cuGetProcAddress
}

/* A name may lack the suffix in an older cuda.h: cuGetProcAddress gives the newer one by version. */
TEST(each_symbol_is_the_one_that_cuda_h_calls)
{
    for (size_t i = 0; i < COUNT(symbols); i++)
        ck_assert_msg(strcmp(symbols[i].theirs, symbols[i].ours) == 0 ||
                          strcmp(symbols[i].theirs, symbols[i].name) == 0,
                      "ours is %s, cuda.h's %s", symbols[i].ours, symbols[i].theirs);
    printf(
        "note: driver.h is as CUDA %d.%d's cuda.h: %zu values, %zu sizes and offsets, %zu calls\n",
        CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10, COUNT(values), COUNT(layouts),
        COUNT(prototypes));
}

SUITE(30);

#else

int main(void)
{
    puts("skip: no cuda.h here: driver.h is held against none");
    return SUITE_SKIPPED;
}

#endif
