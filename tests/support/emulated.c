#include "tests/support/emulated.h"

#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_real;

/* Before any test sets the backend of its own shards. */
__attribute__((constructor)) static void look(void)
{
    const char *backend = getenv("CAIRN_TEST_BACKEND"), *driver = getenv("CAIRN_CUDA_DRIVER");
    is_real = backend != NULL && strcmp(backend, "cuda") == 0 && (driver == NULL || driver[0] == 0);
}

bool emulated_is_real(void)
{
    return is_real;
}

bool emulated_cannot(const char *what)
{
    if (!is_real) return false;
    printf("note: not shown on a card of this machine: %s\n", what);
    fflush(stdout);
    return true;
}

void emulated_choose(const char *options)
{
    if (emulated_is_real()) return;
    ck_assert_int_eq(setenv("CAIRN_CUDA_DRIVER", EMULATED_LIBRARY, 1), 0);
    ck_assert_int_eq(setenv("CAIRN_EMULATOR", options == NULL ? "" : options, 1), 0);
}

static void find_controls(struct emulated *card)
{
    void *library = dlopen(EMULATED_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    ck_assert_ptr_nonnull(library);
#define EMULATED_CONTROL(type, name, parameters) \
    {                                            \
        void *at = dlsym(library, #name);        \
        ck_assert_ptr_nonnull(at);               \
        memcpy(&card->name, &at, sizeof at);     \
    }
    CAIRN_EMULATOR_CONTROLS(EMULATED_CONTROL)
#undef EMULATED_CONTROL
}

struct emulated emulated_open(const char *options)
{
    struct emulated card = { 0 };
    struct sentence why;
    emulated_choose(options);
    const cairn_status status = driver_open(&card.driver, &why);
    ck_assert_msg(status == CAIRN_OK, "%s", status == CAIRN_OK ? "" : why.text);
    if (!emulated_is_real()) find_controls(&card);
    ck_assert_int_eq(card.driver.cuDevicePrimaryCtxRetain(&card.context, 0), CAIRN_CU_OK);
    ck_assert_int_eq(card.driver.cuCtxSetCurrent(card.context), CAIRN_CU_OK);
    return card;
}

void emulated_set(const struct emulated *card, const char *options)
{
    ck_assert_msg(card->cairn_emulator_set(options), "not understood: %s", options);
}

struct emulated_memory emulated_map(const struct emulated *card, unsigned long long handle,
                                    size_t bytes)
{
    struct emulated_memory memory = { .bytes = bytes, .handle = handle };
    const struct cu_access access = { .location = { CAIRN_CU_LOCATION_DEVICE, 0 },
                                      .flags = CAIRN_CU_ACCESS_READWRITE };
    ck_assert_int_eq(card->driver.cuMemAddressReserve(&memory.at, bytes, 0, 0, 0), CAIRN_CU_OK);
    ck_assert_int_eq(card->driver.cuMemMap(memory.at, bytes, 0, handle, 0), CAIRN_CU_OK);
    ck_assert_int_eq(card->driver.cuMemSetAccess(memory.at, bytes, &access, 1), CAIRN_CU_OK);
    return memory;
}

struct emulated_memory emulated_alloc(const struct emulated *card, size_t bytes)
{
    const struct cu_allocation how = { .type = CAIRN_CU_ALLOCATION_PINNED,
                                       .handle_types = CAIRN_CU_HANDLE_POSIX,
                                       .location = { CAIRN_CU_LOCATION_DEVICE, 0 } };
    unsigned long long handle;
    ck_assert_int_eq(card->driver.cuMemCreate(&handle, bytes, &how, 0), CAIRN_CU_OK);
    return emulated_map(card, handle, bytes);
}

void emulated_free(const struct emulated *card, const struct emulated_memory *memory)
{
    ck_assert_int_eq(card->driver.cuMemUnmap(memory->at, memory->bytes), CAIRN_CU_OK);
    ck_assert_int_eq(card->driver.cuMemAddressFree(memory->at, memory->bytes), CAIRN_CU_OK);
    ck_assert_int_eq(card->driver.cuMemRelease(memory->handle), CAIRN_CU_OK);
}
