/* Calls that UCX's part for CUDA (cuda_copy, from UCX 1.20 on) makes or is linked with, beyond those of
 * Cairn: without one of them it does not load, or ends its process. Those that nothing here leads to say that
 * they are not supported. */
#include "tests/gpu/emulator/calls.h"

#include <string.h>

#include "tests/gpu/emulator/calls_ucx.h"

/* CUpointer_attribute, those of a list: what is not known of an address is 0. */
enum { POINTER_CONTEXT = 1, POINTER_IS_MANAGED = 8 };

int cuGetErrorString(int result, const char **text_out)
{
    return cuGetErrorName(result, text_out);
}

/* ---- memory ---- */

static enum emulator_result retain_handle(unsigned long long *handle_out, uint64_t at)
{
    uint64_t handle;
    const enum emulator_result result = emulator_memory_retain(at, &handle);
    if (result == EMULATOR_OK) *handle_out = handle;
    return result;
}

int cuMemRetainAllocationHandle(unsigned long long *handle_out, void *at)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, retain_handle(handle_out, emulator_number(at)));
}

/* Of what the driver does not know the values are those of host memory, and it is no error. */
static enum emulator_result tell_pointers(unsigned count, const int *attributes, void **values,
                                          uint64_t at)
{
    uint32_t device = 0;
    const bool is_mapped = emulator_memory_at(at, &device);
    for (unsigned i = 0; i < count; i++) {
        const int number = is_mapped ? (int)device : -2;
        const unsigned type = is_mapped ? CAIRN_CU_MEMORY_DEVICE : 0;
        switch (attributes[i]) {
        case CAIRN_CU_POINTER_MEMORY_TYPE: memcpy(values[i], &type, sizeof type); break;
        case CAIRN_CU_POINTER_DEVICE: memcpy(values[i], &number, sizeof number); break;
        case POINTER_IS_MANAGED: memset(values[i], 0, sizeof(uint32_t)); break;
        case POINTER_CONTEXT: memset(values[i], 0, sizeof(void *)); break; // VMM is of none
        default: return EMULATOR_INVALID_VALUE;
        }
    }
    return EMULATOR_OK;
}

int cuPointerGetAttributes(unsigned count, int *attributes, void **values, uint64_t at)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, tell_pointers(count, attributes, values, at));
}

/* ---- copies whose ends the addresses tell ---- */

static enum emulator_way way_of(uint64_t to, uint64_t from)
{
    if (!emulator_memory_has(from)) return EMULATOR_TO_DEVICE;
    return emulator_memory_has(to) ? EMULATOR_IN_DEVICE : EMULATOR_TO_HOST;
}

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, struct CUstream_st *stream)
{
    uint32_t slot = 0;
    enum emulator_result result = emulator_enter(EMULATOR_NEEDS_CONTEXT);
    if (result == EMULATOR_OK)
        result = emulator_stream_slot(emulator_number(stream), emulator_device(), &slot);
    if (result == EMULATOR_OK)
        result = emulator_copy(to, from, bytes, way_of(to, from), slot, emulator_device());
    return emulator_leave(result);
}

/* ---- what nothing here leads to ---- */

#define NOT_SUPPORTED(name, parameters)         \
    int name parameters                         \
    {                                           \
        emulator_say(#name " is not emulated"); \
        return EMULATOR_NOT_SUPPORTED;          \
    }
EMULATOR_CALLS_NOT_SUPPORTED(NOT_SUPPORTED)
