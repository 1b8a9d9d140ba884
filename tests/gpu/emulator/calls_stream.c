/* Calls: streams, events, copies, libraries of kernels, launches; and how all calls are found by name. */
#include "tests/gpu/emulator/calls.h"

#include <string.h>

#define PRIORITY_GREATEST (-5)

/* Nothing that anybody here puts there is for a graph. */
static enum emulator_result find_slot(uint64_t stream, uint32_t *slot_out)
{
    const uint64_t captured = emulator_options.captured;
    if (captured != 0 && (stream == captured || stream == 0)) {
        emulator_complain("a call puts something into a stream that is captured");
        return stream == 0 ? EMULATOR_CAPTURE_IMPLICIT : EMULATOR_CAPTURE_UNSUPPORTED;
    }
    return emulator_stream_slot(stream, emulator_device(), slot_out);
}

/* `expression` with the slot of `stream`. */
#define IN_STREAM(stream, ...)                                                     \
    uint32_t slot = 0;                                                             \
    enum emulator_result result = emulator_enter(EMULATOR_NEEDS_CONTEXT);          \
    if (result == EMULATOR_OK) result = find_slot(emulator_number(stream), &slot); \
    if (result == EMULATOR_OK) result = (__VA_ARGS__);                             \
    return emulator_leave(result)

static enum emulator_result open_stream(struct CUstream_st **stream_out, unsigned flags,
                                        int priority)
{
    uint64_t stream;
    if ((flags & ~(unsigned)CAIRN_CU_STREAM_NON_BLOCKING) != 0) return EMULATOR_INVALID_VALUE;
    const enum emulator_result result = emulator_stream_open(emulator_device(), flags == 0,
                                                             priority < 0, &stream);
    if (result == EMULATOR_OK) *stream_out = (struct CUstream_st *)(uintptr_t)stream;
    return result;
}

int cuStreamCreate(struct CUstream_st **stream_out, unsigned flags)
{
    EMULATOR_CALL(EMULATOR_NEEDS_CONTEXT, open_stream(stream_out, flags, 0));
}

/* A priority beyond the range is the nearest in it. */
int cuStreamCreateWithPriority(struct CUstream_st **stream_out, unsigned flags, int priority)
{
    EMULATOR_CALL(EMULATOR_NEEDS_CONTEXT, open_stream(stream_out, flags, priority));
}

int cuCtxGetStreamPriorityRange(int *least_out, int *greatest_out)
{
    EMULATOR_CALL(EMULATOR_NEEDS_CONTEXT,
                  (*least_out = 0, *greatest_out = PRIORITY_GREATEST, EMULATOR_OK));
}

static enum emulator_result tell_capture(uint64_t stream, int *status_out)
{
    uint32_t slot;
    const uint64_t captured = emulator_options.captured;
    const enum emulator_result result = emulator_stream_slot(stream, emulator_device(), &slot);
    if (result != EMULATOR_OK) return result;
    if (captured != 0 && stream == 0) return EMULATOR_CAPTURE_IMPLICIT;
    *status_out = captured != 0 && stream == captured;
    return EMULATOR_OK;
}

int cuStreamIsCapturing(struct CUstream_st *stream, int *status_out)
{
    EMULATOR_CALL(EMULATOR_NEEDS_CONTEXT, tell_capture(emulator_number(stream), status_out));
}

/* Goes even after a failure. */
int cuStreamDestroy_v2(struct CUstream_st *stream)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, emulator_stream_close(emulator_number(stream)));
}

static enum emulator_result wait_for(uint32_t slot)
{
    const struct emulator_mark mark = emulator_stream_mark(slot, emulator_device());
    return emulator_stream_wait(&mark);
}

int cuStreamSynchronize(struct CUstream_st *stream)
{
    IN_STREAM(stream, (emulator_spins++, wait_for(slot)));
}

int cuStreamWaitEvent(struct CUstream_st *stream, struct CUevent_st *event, unsigned flags)
{
    IN_STREAM(stream, flags != 0
                          ? EMULATOR_INVALID_VALUE
                          : emulator_event_await(emulator_number(event), slot, emulator_device()));
}

/* Of host memory that is pinned: a wait for other memory is nothing that anybody here asks for. */
static enum emulator_result wait_for_word(uint32_t slot, uint64_t device_at, uint32_t value,
                                          unsigned flags)
{
    const uint64_t at = emulator_host_from_device(device_at);
    if (flags != CAIRN_CU_STREAM_WAIT_GEQ || at % sizeof value != 0 ||
        emulator_host_pinned(at, sizeof value) != EMULATOR_PINNED)
        return EMULATOR_INVALID_VALUE;
    emulator_stream_await_word(slot, emulator_device(), (const uint32_t *)(uintptr_t)at, value);
    return EMULATOR_OK;
}

int cuStreamWaitValue32_v2(struct CUstream_st *stream, uint64_t at, uint32_t value, unsigned flags)
{
    IN_STREAM(stream, wait_for_word(slot, at, value, flags));
}

static enum emulator_result open_event(struct CUevent_st **event_out, unsigned flags)
{
    uint64_t event;
    const unsigned all = CAIRN_CU_EVENT_BLOCKING_SYNC | CAIRN_CU_EVENT_DISABLE_TIMING;
    if ((flags & ~all) != 0) return EMULATOR_INVALID_VALUE;
    const enum emulator_result result = emulator_event_open(
        (flags & CAIRN_CU_EVENT_BLOCKING_SYNC) == 0, &event);
    if (result == EMULATOR_OK) *event_out = (struct CUevent_st *)(uintptr_t)event;
    return result;
}

int cuEventCreate(struct CUevent_st **event_out, unsigned flags)
{
    EMULATOR_CALL(EMULATOR_NEEDS_CONTEXT, open_event(event_out, flags));
}

int cuEventDestroy_v2(struct CUevent_st *event)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, emulator_event_close(emulator_number(event)));
}

int cuEventRecord(struct CUevent_st *event, struct CUstream_st *stream)
{
    IN_STREAM(stream, emulator_event_record(emulator_number(event), slot, emulator_device()));
}

int cuEventQuery(struct CUevent_st *event)
{
    EMULATOR_CALL(EMULATOR_NEEDS_CONTEXT, emulator_event_query(emulator_number(event)));
}

int cuEventSynchronize(struct CUevent_st *event)
{
    EMULATOR_CALL(EMULATOR_NEEDS_CONTEXT, emulator_event_wait(emulator_number(event)));
}

/* ---- copies ---- */

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, struct CUstream_st *stream)
{
    IN_STREAM(stream, emulator_copy(to, emulator_number(from), bytes, EMULATOR_TO_DEVICE, slot,
                                    emulator_device()));
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, struct CUstream_st *stream)
{
    IN_STREAM(stream, emulator_copy(emulator_number(to), from, bytes, EMULATOR_TO_HOST, slot,
                                    emulator_device()));
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, struct CUstream_st *stream)
{
    IN_STREAM(stream, emulator_copy(to, from, bytes, EMULATOR_IN_DEVICE, slot, emulator_device()));
}

int cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, struct CUstream_st *stream)
{
    IN_STREAM(stream, emulator_fill(at, value, bytes, slot, emulator_device()));
}

/* ---- kernels: those of the emulated card, whatever the image ---- */

static const uint64_t the_library = (uint64_t)EMULATOR_LIBRARY << 56;

static enum emulator_result load(struct CUlib_st **library_out, const void *image)
{
    const enum emulator_result result = emulator_fault_call(&emulator_options.load_fails);
    if (image == NULL) return EMULATOR_INVALID_VALUE;
    if (result != EMULATOR_OK) return result;
    *library_out = (struct CUlib_st *)(uintptr_t)the_library;
    return EMULATOR_OK;
}

int cuLibraryLoadData(struct CUlib_st **library_out, const void *image, int *jit_options,
                      void **jit_values, unsigned jit_count, int *options, void **values,
                      unsigned count)
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    EMULATOR_CALL(EMULATOR_NEEDS_CONTEXT, load(library_out, image));
}

int cuLibraryUnload(struct CUlib_st *library)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT,
                  emulator_number(library) == the_library ? EMULATOR_OK : EMULATOR_INVALID_HANDLE);
}

static enum emulator_result find_kernel(struct CUkern_st **kernel_out,
                                        const struct CUlib_st *library, const char *name)
{
    uint64_t kernel;
    if (emulator_number(library) != the_library) return EMULATOR_INVALID_HANDLE;
    const enum emulator_result result = emulator_kernel_find(name, &kernel);
    if (result == EMULATOR_OK) *kernel_out = (struct CUkern_st *)(uintptr_t)kernel;
    return result;
}

int cuLibraryGetKernel(struct CUkern_st **kernel_out, struct CUlib_st *library, const char *name)
{
    EMULATOR_CALL(EMULATOR_NEEDS_CONTEXT, find_kernel(kernel_out, library, name));
}

/* It is loaded already. */
int cuKernelGetFunction(struct CUfunc_st **loaded_out, struct CUkern_st *kernel)
{
    EMULATOR_CALL(EMULATOR_NEEDS_CONTEXT,
                  !emulator_kernel_known(emulator_number(kernel))
                      ? EMULATOR_INVALID_HANDLE
                      : (*loaded_out = (struct CUfunc_st *)kernel, EMULATOR_OK));
}

int cuLaunchKernel(struct CUkern_st *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   struct CUstream_st *stream, void **parameters, void **extra)
{
    const struct emulator_grid grid = { { grid_x, grid_y, grid_z },
                                        { block_x, block_y, block_z },
                                        shared_bytes };
    IN_STREAM(stream, extra != NULL ? EMULATOR_NOT_SUPPORTED
                                    : emulator_launch(emulator_number(kernel), &grid, slot,
                                                      emulator_device(), parameters));
}

/* ---- by name ---- */

typedef void (*any_fn)(void);
EMULATOR_EXPORT int cuGetProcAddress_v2(const char *name, void **at_out, int version,
                                        uint64_t flags, int *state_out);

static const struct {
    const char *name;
    any_fn at;
} calls[] = {
#define CAIRN_CALL(name, suffix, parameters) { #name, (any_fn)name##suffix },
    CAIRN_DRIVER_CALLS(CAIRN_CALL)
#undef CAIRN_CALL
};

/* cuLibrary* came with CUDA 12. */
int cuGetProcAddress_v2(const char *name, void **at_out, int version, uint64_t flags,
                        int *state_out)
{
    const bool young = strncmp(name, "cuLibrary", strlen("cuLibrary")) == 0;
    (void)flags;
    *at_out = NULL;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if (strcmp(calls[i].name, name) == 0) memcpy(at_out, &calls[i].at, sizeof *at_out);
    if (young && (version < 12000 || emulator_options.driver < 12000)) *at_out = NULL;
    if (state_out != NULL)
        *state_out = *at_out == NULL ? 1 : 0; // CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
    if (*at_out == NULL) emulator_say("the emulated driver lacks %s", name);
    return *at_out == NULL ? EMULATOR_NOT_FOUND : EMULATOR_OK;
}
