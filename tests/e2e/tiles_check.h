/* What the tests of tiles ask a cluster and hold against the reference. */
#ifndef CAIRN_E2E_TILES_CHECK_H
#define CAIRN_E2E_TILES_CHECK_H

#include <check.h>

#include "tests/e2e/tiles_reference.h"
#include "tests/e2e/tiles_worker.h"

/* All ranks, to until_step and to their end. */
void tiles_train(const struct tiles_worker *pattern);
/* A reader finds every plane of every tensor as the reference has it: whole, and in boxes of a tiling that
 * is nobody's. */
void tiles_check_against(const char *endpoint, struct fabric_hub *hub,
                         const struct tiles_reference *ref);
/* The same, of a reference that has trained so many steps with the mesh. */
void tiles_check_state(const char *endpoint, struct fabric_hub *hub, struct tiles_mesh mesh,
                       uint64_t steps);
/* The same, whole tensors only. */
void tiles_check_whole(const char *endpoint, struct fabric_hub *hub, struct tiles_mesh mesh,
                       uint64_t steps);
/* The content root, as `cairn job digest` prints it. */
void tiles_root(const char *endpoint, char hex_out[65]);

#endif
