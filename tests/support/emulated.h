/* The emulated card (tests/gpu/emulator), opened through the door as a daemon opens a real one. With
 * CAIRN_TEST_BACKEND=cuda and no CAIRN_CUDA_DRIVER, as tests/gpu/run has it, it is the first card of this
 * machine: then nothing goes wrong on demand.
 *
 * Open it in the process of the test: a driver does not survive fork. What goes wrong and in which order is
 * said by emulated_set (tests/gpu/emulator/control.h). */
#ifndef CAIRN_TESTS_EMULATED_H
#define CAIRN_TESTS_EMULATED_H

#include "gpu/cuda/driver.h"
#include "tests/gpu/emulator/control.h"

/* The file that stands in for libcuda.so.1. */
#define EMULATED_LIBRARY CAIRN_BIN_DIR "/../lib/emulated/libcuda.so.1"

struct emulated {
    struct driver driver;
    struct CUctx_st *context; /* of card 0; this thread works in it */
    /* NULL if emulated_is_real */
#define EMULATED_CONTROL(type, name, parameters) type(*name) parameters;
    CAIRN_EMULATOR_CONTROLS(EMULATED_CONTROL)
#undef EMULATED_CONTROL
};

/* True: it is a card of this machine. */
bool emulated_is_real(void);
/* True: it is a card of this machine, on which what is named cannot be shown; a note says so. */
bool emulated_cannot(const char *what);
/* The environment names the library, and what the emulated card of this process and its children begins with:
 * "seed=5,total=1G". NULL: nothing. */
void emulated_choose(const char *options);
/* Opens it; the test fails if that does. options: as above. */
struct emulated emulated_open(const char *options);
void emulated_set(const struct emulated *card, const char *options);

/* Memory of card 0, mapped with access: whole pages of 2 MiB. */
struct emulated_memory {
    uint64_t at;
    size_t bytes;
    unsigned long long handle;
};
struct emulated_memory emulated_alloc(const struct emulated *card, size_t bytes);
/* For a handle that there is: takes it over. */
struct emulated_memory emulated_map(const struct emulated *card, unsigned long long handle,
                                    size_t bytes);
void emulated_free(const struct emulated *card, const struct emulated_memory *memory);

#endif
