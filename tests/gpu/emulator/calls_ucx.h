/* Calls of the driver that are UCX's, not Cairn's: calls_ucx.c, and calls_device.c what contexts are. */
#ifndef CAIRN_TESTS_GPU_EMULATOR_CALLS_UCX_H
#define CAIRN_TESTS_GPU_EMULATOR_CALLS_UCX_H

#include "tests/gpu/emulator/calls.h"

// clang-format off
/* call(name with its suffix, (parameters)) */
#define EMULATOR_CALLS_OF_UCX(call)                                                                  \
    call(cuGetErrorString, (int result, const char **text_out))                                      \
    call(cuCtxGetCurrent, (struct CUctx_st **context_out))                                           \
    call(cuCtxGetId, (const struct CUctx_st *context, unsigned long long *id_out))                   \
    call(cuDevicePrimaryCtxGetState, (int device, unsigned *flags_out, int *active_out))             \
    call(cuMemRetainAllocationHandle, (unsigned long long *handle_out, void *at))                    \
    call(cuPointerGetAttributes, (unsigned count, int *attributes, void **values, uint64_t at))      \
    call(cuMemcpyAsync, (uint64_t to, uint64_t from, size_t bytes, struct CUstream_st *stream))

/* Likewise; none is declared as it is in cuda.h, since no parameter is ever read. */
#define EMULATOR_CALLS_NOT_SUPPORTED(call)           \
    call(cuIpcCloseMemHandle, (void))                \
    call(cuIpcGetMemHandle, (void))                  \
    call(cuIpcOpenMemHandle_v2, (void))              \
    call(cuMemAllocManaged, (void))                  \
    call(cuMemAlloc_v2, (void))                      \
    call(cuMemFree_v2, (void))                       \
    call(cuMemGetAddressRange_v2, (void))            \
    call(cuMemPoolDestroy, (void))                   \
    call(cuMemPoolExportPointer, (void))             \
    call(cuMemPoolExportToShareableHandle, (void))   \
    call(cuMemPoolImportFromShareableHandle, (void)) \
    call(cuMemPoolImportPointer, (void))             \
    call(cuMemPoolSetAccess, (void))                 \
    call(cuMemRangeGetAttribute, (void))             \
    call(cuMemcpyHtoD_v2, (void))                    \
    call(cuPointerSetAttribute, (void))              \
    call(cuStreamAddCallback, (void))
// clang-format on

#define EMULATOR_DECLARE(name, parameters) EMULATOR_EXPORT int name parameters;
EMULATOR_CALLS_OF_UCX(EMULATOR_DECLARE)
EMULATOR_CALLS_NOT_SUPPORTED(EMULATOR_DECLARE)
#undef EMULATOR_DECLARE

#endif
