#include "gpu/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/machine.h"

#define NAME_OF_LIBRARY "CAIRN_CUDA_DRIVER"
#define PCI_BYTES       32 /* "0000:3B:00.0", NUL, and room for a longer domain */

int driver_stands_in(void)
{
    const char *named = getenv(NAME_OF_LIBRARY);
    return named != NULL && named[0] != '\0';
}

const char *driver_error(const struct driver *driver, int result, char text[32])
{
    const char *name = NULL;
    if (driver->cuGetErrorName(result, &name) == CAIRN_CU_OK && name != NULL) return name;
    snprintf(text, 32, "CUDA error %d", result);
    return text;
}

const char *driver_explain(const struct driver *driver, int result,
                           char text[CAIRN_DRIVER_TEXT_BYTES])
{
    char number[32];
    const char *advice = driver_advice(result);
    snprintf(text, CAIRN_DRIVER_TEXT_BYTES, "%s%s%s", driver_error(driver, result, number),
             advice[0] == '\0' ? "" : ": ", advice);
    return text;
}

/* Finds a call, and stores its address at at_out in a way that ISO C permits; NULL if the library lacks the
 * call. */
static void find_driver(void *library, driver_find_fn get_proc, const char *name,
                        const char *symbol, void *at_out)
{
    void *at = NULL;
    int state = 0;
    if (get_proc == NULL || get_proc(name, &at, CAIRN_DRIVER_OLDEST, 0, &state) != CAIRN_CU_OK ||
        at == NULL)
        at = dlsym(library, symbol);
    memcpy(at_out, &at, sizeof at);
}

static driver_find_fn find_get_proc(void *library)
{
    driver_find_fn get_proc;
    void *at = dlsym(library, "cuGetProcAddress_v2");
    memcpy(&get_proc, &at, sizeof at);
    return get_proc;
}

/* Checks the version of the driver, before other calls are looked up: a driver that lacks a call is most
 * likely too old. */
static cairn_status check_version(struct driver *driver, void *library, driver_find_fn get_proc,
                                  struct sentence *why)
{
    find_driver(library, get_proc, "cuDriverGetVersion", "cuDriverGetVersion",
                &driver->cuDriverGetVersion);
    if (driver->cuDriverGetVersion == NULL ||
        driver->cuDriverGetVersion(&driver->version) != CAIRN_CU_OK)
        return fail_with(why, CAIRN_ERR_UNSUPPORTED, "the CUDA driver does not tell its version");
    if (driver->version < CAIRN_DRIVER_OLDEST)
        return fail_with(
            why, CAIRN_ERR_UNSUPPORTED,
            "the driver is of CUDA %d.%d; the oldest that will do is of CUDA %d.%d: update it",
            driver->version / 1000, driver->version % 1000 / 10, CAIRN_DRIVER_OLDEST / 1000,
            CAIRN_DRIVER_OLDEST % 1000 / 10);
    return CAIRN_OK;
}

static cairn_status find_all(struct driver *driver, void *library, struct sentence *why)
{
    const driver_find_fn get_proc = find_get_proc(library);
    CAIRN_TRY(check_version(driver, library, get_proc, why));
#define CAIRN_CALL(name, suffix, parameters)                                                  \
    find_driver(library, get_proc, #name, #name #suffix, &driver->name);                      \
    if (driver->name == NULL)                                                                 \
        return fail_with(why, CAIRN_ERR_UNSUPPORTED, "the driver of CUDA %d.%d lacks " #name, \
                         driver->version / 1000, driver->version % 1000 / 10);
    CAIRN_DRIVER_CALLS(CAIRN_CALL)
#undef CAIRN_CALL
    return CAIRN_OK;
}

static cairn_status begin(const struct driver *driver, struct sentence *why)
{
    const int result = driver->cuInit(0);
    char text[CAIRN_DRIVER_TEXT_BYTES];
    if (result == CAIRN_CU_OK) return CAIRN_OK;
    if (result == CAIRN_CU_NO_DEVICE)
        return fail_with(why, CAIRN_ERR_NOT_FOUND,
                         "the CUDA driver sees no device: look at nvidia-smi, and at "
                         "the environment's CUDA_VISIBLE_DEVICES");
    return fail_with(why, CAIRN_ERR_IO, "the CUDA driver does not start: %s",
                     driver_explain(driver, result, text));
}

cairn_status driver_open(struct driver *driver_out, struct sentence *why)
{
    const char *name = driver_stands_in() ? getenv(NAME_OF_LIBRARY) : "libcuda.so.1";
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "no CUDA driver: %s", dlerror());
    struct driver driver = { 0 };
    cairn_status status = find_all(&driver, library, why);
    if (status == CAIRN_OK) status = begin(&driver, why);
    if (status == CAIRN_OK) *driver_out = driver;
    return status;
}

int driver_numa_node(const struct driver *driver, int device)
{
    char pci[PCI_BYTES];
    if (driver->cuDeviceGetPCIBusId(pci, sizeof pci, device) != CAIRN_CU_OK) return CAIRN_NUMA_NONE;
    return numa_of_pci(pci);
}

/* ==== result ==== */

static const struct {
    int result;
    bool breaks;
    const char *advice;
} meanings[] = {
#define CAIRN_MEANING(name, number, breaks, advice) { number, breaks, advice },
    CAIRN_MEANINGS(CAIRN_MEANING)
#undef CAIRN_MEANING
};

#define MEANINGS (sizeof meanings / sizeof meanings[0])

static size_t find_result(int result)
{
    size_t i = 0;
    while (i < MEANINGS && meanings[i].result != result) i++;
    return i;
}

const char *driver_advice(int result)
{
    const size_t i = find_result(result);
    return i < MEANINGS ? meanings[i].advice : CAIRN_ADVICE_SEE;
}

/* A result that is not in the table may come from a newer driver, and counts as the worst case. */
bool driver_breaks(int result)
{
    const size_t i = find_result(result);
    return i == MEANINGS || meanings[i].breaks;
}
