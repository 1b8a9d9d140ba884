/* The emulator's own kernels, for its tests: beside Cairn's (tests/gpu/kernels/host.h), and simpler. */
#ifndef CAIRN_TESTS_GPU_EMULATOR_KERNELS_H
#define CAIRN_TESTS_GPU_EMULATOR_KERNELS_H

#include "tests/gpu/kernels/host.h"

/* Ends with one without a name. They read other things into struct kernel_list than its names say:
 *
 *   emulator_add      u32 at `items` += u32 at `pieces`, [count]
 *   emulator_ticket   u32 at `items`, [count = blocks]: how many blocks of it this process had run before */
extern const struct kernel emulator_own_kernels[];

#endif
