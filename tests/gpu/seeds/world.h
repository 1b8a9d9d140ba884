/* A world of one seed: tensors whose planes lie in a home of the card, and again on the host. */
#ifndef CAIRN_TESTS_GPU_SEEDS_WORLD_H
#define CAIRN_TESTS_GPU_SEEDS_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/gpu.h"

/* NULL, or what went wrong. Static. */
const char *world_run(uint64_t seed, int (*emulator_set)(const char *options));

#endif
