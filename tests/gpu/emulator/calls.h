/* The calls of the driver's interface, as the door lists them (gpu/cuda/driver.h), and what all of them
 * begin with.
 *
 * A call that the list has and the emulated card has not fails to link; one that the list has not does not
 * compile (-Wmissing-prototypes). */
#ifndef CAIRN_TESTS_GPU_EMULATOR_CALLS_H
#define CAIRN_TESTS_GPU_EMULATOR_CALLS_H

#include "gpu/cuda/driver.h"
#include "tests/gpu/emulator/emulator.h"

#define EMULATOR_EXPORT                      __attribute__((visibility("default")))
#define CAIRN_CALL(name, suffix, parameters) EMULATOR_EXPORT int name##suffix parameters;
CAIRN_DRIVER_CALLS(CAIRN_CALL)
#undef CAIRN_CALL

enum emulator_need { EMULATOR_NEEDS_NOTHING, EMULATOR_NEEDS_INIT, EMULATOR_NEEDS_CONTEXT };

/* Takes the lock, and says whether the call may go on; what fails here is the call's result. emulator_leave
 * is called in either case. */
enum emulator_result emulator_enter(enum emulator_need need);
int emulator_leave(enum emulator_result result);
/* Of the context that this thread works in. */
uint32_t emulator_device(void);

/* The body of a call that is one expression. */
#define EMULATOR_CALL(need, ...)                        \
    enum emulator_result result = emulator_enter(need); \
    if (result == EMULATOR_OK) result = (__VA_ARGS__);  \
    return emulator_leave(result)

static inline uint64_t emulator_number(const void *handle)
{
    return (uint64_t)(uintptr_t)handle;
}

#endif
