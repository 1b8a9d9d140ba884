/* Calls: the driver, its devices, contexts, and the names of errors. */
#include "tests/gpu/emulator/calls.h"

#include "gpu/cuda/driver.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/emulator/calls_ucx.h"

/* CUdevice_attribute: what only UCX asks for. */
enum { PCI_BUS = 33, PCI_SLOT = 34, PCI_DOMAIN = 50 };

static struct context {
    uint32_t generation, retained;
} contexts[EMULATOR_DEVICES];

static pid_t begun_by; /* 0: cuInit has not been called */
static __thread struct {
    uint32_t device, generation; /* of the context; no generation: none */
} current;

uint32_t emulator_device(void)
{
    return current.device;
}

/* Contexts that this thread pushed others upon. */
static __thread struct {
    uint32_t device, generation;
} pushed[16];
static __thread uint32_t pushed_count;

static __thread int capture_mode; /* CUstreamCaptureMode; 0: global */

static bool in_context(void)
{
    const struct context *context = &contexts[current.device];
    return current.generation != 0 && context->retained > 0 &&
           context->generation == current.generation;
}

enum emulator_result emulator_enter(enum emulator_need need)
{
    pthread_mutex_lock(&emulator_lock);
    if (need == EMULATOR_NEEDS_NOTHING) return EMULATOR_OK;
    if (begun_by != getpid()) {
        emulator_say("a call without cuInit%s",
                     begun_by == 0 ? "" : " in this process, which a fork has made");
        return EMULATOR_NOT_INITIALIZED;
    }
    if (need == EMULATOR_NEEDS_INIT) return EMULATOR_OK;
    if (!in_context()) {
        emulator_say("a call in a thread that works in no context");
        return EMULATOR_INVALID_CONTEXT;
    }
    if (emulator_options.captured != 0 && capture_mode != CAIRN_CU_CAPTURE_RELAXED) {
        emulator_complain("a call ends the capture of a graph by another thread");
        return EMULATOR_CAPTURE_UNSUPPORTED;
    }
    return emulator_sticky(current.device);
}

int emulator_leave(enum emulator_result result)
{
    pthread_mutex_unlock(&emulator_lock);
    return (int)result;
}

/* ---- the driver ---- */

/* The environment is read once. */
static void begin_options(void)
{
    static bool begun;
    if (!begun) emulator_options_begin();
    begun = true;
}

static enum emulator_result begin(unsigned flags)
{
    begin_options();
    if (flags != 0) return EMULATOR_INVALID_VALUE;
    if (begun_by != 0 && begun_by != getpid()) return EMULATOR_NOT_INITIALIZED;
    if (emulator_options.devices == 0) return EMULATOR_NO_DEVICE;
    const enum emulator_result result = emulator_fault_call(&emulator_options.init_fails);
    if (result == EMULATOR_OK) begun_by = getpid();
    return result;
}

int cuInit(unsigned flags)
{
    EMULATOR_CALL(EMULATOR_NEEDS_NOTHING, begin(flags));
}

/* Before cuInit, too. */
int cuDriverGetVersion(int *version_out)
{
    enum emulator_result result = emulator_enter(EMULATOR_NEEDS_NOTHING);
    begin_options();
    *version_out = (int)emulator_options.driver;
    return emulator_leave(result);
}

static const struct {
    int result;
    const char *name;
} errors[] = { { 0, "CUDA_SUCCESS" },
               { 3, "CUDA_ERROR_NOT_INITIALIZED" },
               { 201, "CUDA_ERROR_INVALID_CONTEXT" },
#define CAIRN_MEANING(name, number, breaks, advice) { number, "CUDA_ERROR_" #name },
               CAIRN_MEANINGS(CAIRN_MEANING)
#undef CAIRN_MEANING
};

int cuGetErrorName(int result, const char **name_out)
{
    *name_out = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].result == result) *name_out = errors[i].name;
    return *name_out == NULL ? EMULATOR_INVALID_VALUE : EMULATOR_OK;
}

/* ---- devices ---- */

static enum emulator_result known(int device)
{
    return device >= 0 && (uint64_t)device < emulator_options.devices ? EMULATOR_OK
                                                                      : EMULATOR_INVALID_DEVICE;
}

int cuDeviceGetCount(int *count_out)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, (*count_out = (int)emulator_options.devices, EMULATOR_OK));
}

int cuDeviceGet(int *device_out, int number)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, known(number) == EMULATOR_OK
                                           ? (*device_out = number, EMULATOR_OK)
                                           : EMULATOR_INVALID_DEVICE);
}

static enum emulator_result tell_name(char *name, int bytes, int device)
{
    if (bytes <= 0 || known(device) != EMULATOR_OK) return EMULATOR_INVALID_DEVICE;
    snprintf(name, (size_t)bytes, "Emulated card %d", device);
    return EMULATOR_OK;
}

int cuDeviceGetName(char *name, int bytes, int device)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, tell_name(name, bytes, device));
}

/* GPU-e0e0e0e0-e0e0-e0e0-e0e0-e0e0e0e0e0NN */
static enum emulator_result tell_uuid(struct cu_uuid *uuid_out, int device)
{
    if (known(device) != EMULATOR_OK) return EMULATOR_INVALID_DEVICE;
    memset(uuid_out, 0xE0, sizeof *uuid_out);
    uuid_out->bytes[15] = (unsigned char)device;
    return EMULATOR_OK;
}

int cuDeviceGetUuid_v2(struct cu_uuid *uuid_out, int device)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, tell_uuid(uuid_out, device));
}

/* 0000:E0:0N.0, as a driver writes it: where sysfs has e0 */
static enum emulator_result tell_pci(char *text, int bytes, int device)
{
    if (known(device) != EMULATOR_OK) return EMULATOR_INVALID_DEVICE;
    if (text == NULL || bytes < 13) return EMULATOR_INVALID_VALUE;
    snprintf(text, (size_t)bytes, "0000:E0:%02X.0", (unsigned)device);
    return EMULATOR_OK;
}

int cuDeviceGetPCIBusId(char *text, int bytes, int device)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, tell_pci(text, bytes, device));
}

static enum emulator_result tell_attribute(int *value_out, int attribute, int device)
{
    if (known(device) != EMULATOR_OK) return EMULATOR_INVALID_DEVICE;
    switch (attribute) {
    case CAIRN_CU_MULTIPROCESSOR_COUNT: *value_out = 4; return EMULATOR_OK;
    case CAIRN_CU_COMPUTE_MODE: *value_out = (int)emulator_options.mode; return EMULATOR_OK;
    case CAIRN_CU_IS_UNDER_MPS:
        *value_out = (int)emulator_options.mps;
        return emulator_options.mps > 1 ? EMULATOR_INVALID_VALUE : EMULATOR_OK;
    case CAIRN_CU_CAPABILITY_MAJOR: *value_out = 8; return EMULATOR_OK;
    case CAIRN_CU_CAPABILITY_MINOR: *value_out = 0; return EMULATOR_OK;
    case CAIRN_CU_HAS_VIRTUAL_MEMORY: *value_out = 1; return EMULATOR_OK;
    case CAIRN_CU_HAS_POSIX_HANDLES:
        *value_out = emulator_options.no_export ? 0 : 1;
        return EMULATOR_OK;
    case CAIRN_CU_IS_REACHED:
    case CAIRN_CU_MAKES_REACHED_MEMORY:
        *value_out = emulator_options.no_reach ? 0 : 1;
        return EMULATOR_OK;
    case CAIRN_CU_WRITES_ORDER:
        *value_out = emulator_options.unordered ? 0 : 200;
        return EMULATOR_OK;
    case CAIRN_CU_FLUSHES: *value_out = emulator_options.unordered == 1; return EMULATOR_OK;
    case PCI_BUS: *value_out = 0xE0; return EMULATOR_OK; // as tell_pci
    case PCI_SLOT: *value_out = device; return EMULATOR_OK;
    case PCI_DOMAIN:
    case CAIRN_CU_HAS_DMA_BUF: *value_out = 0; return EMULATOR_OK;
    default:
        emulator_say("nobody has asked for attribute %d before", attribute);
        return EMULATOR_INVALID_VALUE;
    }
}

int cuDeviceGetAttribute(int *value_out, int attribute, int device)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, tell_attribute(value_out, attribute, device));
}

static enum emulator_result tell_peer(int *can_out, int device, int peer)
{
    if (known(device) != EMULATOR_OK || known(peer) != EMULATOR_OK) return EMULATOR_INVALID_DEVICE;
    *can_out = device != peer && emulator_options.peers != 0;
    return EMULATOR_OK;
}

int cuDeviceCanAccessPeer(int *can_out, int device, int peer)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, tell_peer(can_out, device, peer));
}

int cuDeviceTotalMem_v2(size_t *bytes_out, int device)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, known(device) == EMULATOR_OK
                                           ? (*bytes_out = emulator_options.total, EMULATOR_OK)
                                           : EMULATOR_INVALID_DEVICE);
}

/* ---- contexts ---- */

static enum emulator_result retain(struct CUctx_st **context_out, int device)
{
    if (known(device) != EMULATOR_OK) return EMULATOR_INVALID_DEVICE;
    struct context *context = &contexts[device];
    enum emulator_result result = emulator_sticky((uint32_t)device);
    if (result == EMULATOR_OK) result = emulator_fault_call(&emulator_options.open_fails);
    if (result != EMULATOR_OK) return result;
    if (context->retained++ == 0) context->generation++;
    *context_out = (struct CUctx_st *)(uintptr_t)emulator_handle(
        EMULATOR_CONTEXT, context->generation, (uint32_t)device);
    return EMULATOR_OK;
}

int cuDevicePrimaryCtxRetain(struct CUctx_st **context_out, int device)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, retain(context_out, device));
}

static enum emulator_result release(int device)
{
    if (known(device) != EMULATOR_OK) return EMULATOR_INVALID_DEVICE;
    if (contexts[device].retained == 0) return EMULATOR_INVALID_CONTEXT;
    if (--contexts[device].retained > 0) return EMULATOR_OK;
    emulator_stream_forget((uint32_t)device);
    emulator_host_forget((uint32_t)device);
    emulator_fail_not((uint32_t)device);
    return EMULATOR_OK;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, release(device));
}

static enum emulator_result set_current(const struct CUctx_st *context)
{
    const uint64_t handle = emulator_number(context);
    const uint32_t device = emulator_handle_index(handle) % EMULATOR_DEVICES;
    if (context == NULL) {
        current.generation = 0;
        return EMULATOR_OK;
    }
    const struct context *c = &contexts[device];
    if (c->retained == 0 || handle != emulator_handle(EMULATOR_CONTEXT, c->generation, device))
        return EMULATOR_INVALID_CONTEXT;
    current.device = device;
    current.generation = c->generation;
    return EMULATOR_OK;
}

int cuCtxSetCurrent(struct CUctx_st *context)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, set_current(context));
}

static struct CUctx_st *current_context(void)
{
    return (struct CUctx_st *)(uintptr_t)emulator_handle(EMULATOR_CONTEXT, current.generation,
                                                         current.device);
}

int cuCtxGetCurrent(struct CUctx_st **context_out)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT,
                  (*context_out = in_context() ? current_context() : NULL, EMULATOR_OK));
}

/* Of a context that is made anew it is another one. */
static enum emulator_result tell_id(const struct CUctx_st *context, unsigned long long *id_out)
{
    if (context == NULL && !in_context()) return EMULATOR_INVALID_CONTEXT;
    *id_out = emulator_number(context != NULL ? context : current_context());
    return EMULATOR_OK;
}

int cuCtxGetId(const struct CUctx_st *context, unsigned long long *id_out)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, tell_id(context, id_out));
}

static enum emulator_result tell_state(int device, unsigned *flags_out, int *active_out)
{
    if (known(device) != EMULATOR_OK) return EMULATOR_INVALID_DEVICE;
    *flags_out = 0;
    *active_out = contexts[device].retained > 0;
    return EMULATOR_OK;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags_out, int *active_out)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, tell_state(device, flags_out, active_out));
}

static enum emulator_result push(const struct CUctx_st *context)
{
    const uint32_t device = current.device, generation = current.generation;
    if (context == NULL || pushed_count == sizeof pushed / sizeof *pushed)
        return EMULATOR_INVALID_VALUE;
    const enum emulator_result result = set_current(context);
    if (result != EMULATOR_OK) return result;
    pushed[pushed_count].device = device;
    pushed[pushed_count++].generation = generation;
    return EMULATOR_OK;
}

int cuCtxPushCurrent_v2(struct CUctx_st *context)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, push(context));
}

static enum emulator_result pop(struct CUctx_st **context_out)
{
    if (pushed_count == 0) return EMULATOR_INVALID_CONTEXT;
    if (context_out != NULL) *context_out = current_context();
    current.device = pushed[--pushed_count].device;
    current.generation = pushed[pushed_count].generation;
    return EMULATOR_OK;
}

int cuCtxPopCurrent_v2(struct CUctx_st **context_out)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, pop(context_out));
}

static enum emulator_result tell_device(int *device_out)
{
    if (!in_context()) return EMULATOR_INVALID_CONTEXT;
    *device_out = (int)current.device;
    return EMULATOR_OK;
}

int cuCtxGetDevice(int *device_out)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, tell_device(device_out));
}

static enum emulator_result exchange_mode(int *mode)
{
    const int own = capture_mode;
    if (*mode < 0 || *mode > CAIRN_CU_CAPTURE_RELAXED) return EMULATOR_INVALID_VALUE;
    capture_mode = *mode;
    *mode = own;
    return EMULATOR_OK;
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    EMULATOR_CALL(EMULATOR_NEEDS_INIT, exchange_mode(mode));
}
