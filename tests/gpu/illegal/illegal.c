/* A driver that makes one process of Cairn's access memory of the card that is not there, as a tenant with a
 * bug does: the environment's CAIRN_CUDA_DRIVER names this library, which passes all calls on to
 * CAIRN_ILLEGAL_DRIVER (libcuda.so.1 if it names none), but that the kernel of launch CAIRN_ILLEGAL_LAUNCH
 * (from 1; 0: none) is given a list at an address that nothing lies at. The kernels are Cairn's own, so this
 * does on a card, and on the emulated one, what it says: CUDA_ERROR_ILLEGAL_ADDRESS. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda/driver.h"
#include "gpu/kernel/list.h"

#define NOWHERE       ((uint64_t)16) /* aligned as a list is */
#define NO_SUCH_ENTRY 500            /* CUDA_ERROR_NOT_FOUND */

#define EXPORT __attribute__((visibility("default")))

typedef int (*launch_fn)(struct CUkern_st *kernel, unsigned grid_x, unsigned grid_y,
                         unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                         unsigned shared_bytes, struct CUstream_st *stream, void **parameters,
                         void **extra);

static launch_fn real_launch;
static unsigned long long bad_launch; /* 0: none */
static atomic_ullong launches;

EXPORT int cuGetProcAddress_v2(const char *name, void **at_out, int version, uint64_t flags,
                               int *state_out);

static int launch(struct CUkern_st *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                  struct CUstream_st *stream, void **parameters, void **extra)
{
    struct kernel_list list;
    void *bad[] = { &list };
    if (atomic_fetch_add(&launches, 1) + 1 == bad_launch) {
        memcpy(&list, parameters[0], sizeof list);
        list.items = NOWHERE;
        parameters = bad;
    }
    return real_launch(kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                       stream, parameters, extra);
}

static driver_find_fn real_find(void)
{
    const char *named = getenv("CAIRN_ILLEGAL_DRIVER");
    void *library = dlopen(named != NULL ? named : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *at = library != NULL ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    driver_find_fn find;
    if (at == NULL) fprintf(stderr, "illegal.c: no driver to pass calls on to: %s\n", dlerror());
    memcpy(&find, &at, sizeof find);
    return find;
}

/* Called by one thread, as the door opens. */
int cuGetProcAddress_v2(const char *name, void **at_out, int version, uint64_t flags,
                        int *state_out)
{
    static driver_find_fn find;
    const char *number = getenv("CAIRN_ILLEGAL_LAUNCH");
    if (find == NULL) find = real_find();
    if (find == NULL) return NO_SUCH_ENTRY;
    const int result = find(name, at_out, version, flags, state_out);
    if (result != CAIRN_CU_OK || strcmp(name, "cuLaunchKernel") != 0) return result;
    const launch_fn own = launch;
    memcpy(&real_launch, at_out, sizeof real_launch);
    memcpy(at_out, &own, sizeof own);
    bad_launch = number != NULL ? strtoull(number, NULL, 10) : 0;
    return result;
}
