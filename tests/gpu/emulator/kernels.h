/* What the emulated card can launch: a kernel is code for one block, and says beforehand what the launch
 * will touch. */
#ifndef CAIRN_TESTS_GPU_EMULATOR_KERNELS_H
#define CAIRN_TESTS_GPU_EMULATOR_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* [address, + bytes): of the device, or of pinned host memory. */
typedef void (*emulator_range_fn)(void *context, uint64_t address, uint64_t bytes, bool writes);

struct emulator_kernel {
    const char *name;
    size_t args_bytes; /* of its one parameter, a struct */
    void (*ranges)(const void *args, uint32_t blocks, emulator_range_fn range, void *context);
    void (*block)(const void *args, uint32_t block, uint32_t blocks);
};

/* The emulator's own, for its tests: each ends with one without a name. */
extern const struct emulator_kernel emulator_own_kernels[];

/* Where a kernel finds what lies at an address. */
void *emulator_at(uint64_t address);

/* emulator_add: to[i] += from[i]. emulator_ticket: *to = how many blocks of it this process has run. */
struct emulator_add_args {
    uint64_t to, from; /* u32 [count] */
    uint64_t count;
};
struct emulator_ticket_args {
    uint64_t to; /* u32 [blocks], by block */
};

#endif
