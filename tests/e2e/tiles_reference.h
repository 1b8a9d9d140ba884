/* The same training in plain sight: one process that has whole tensors and no cluster. It takes the
 * contributions of a mesh of ranks element by element, in (micro-batch, rank) order. */
#ifndef CAIRN_E2E_TILES_REFERENCE_H
#define CAIRN_E2E_TILES_REFERENCE_H

#include "tests/e2e/tiles_job.h"
#include "tests/support/reference.h"

struct tiles_reference {
    struct tiles_mesh mesh;
    uint64_t step; /* updates applied */
    struct reference_tensor tensor[TILES_TENSORS];
};

void tiles_reference_open(struct tiles_reference *ref, struct tiles_mesh mesh);
void tiles_reference_close(struct tiles_reference *ref);
void tiles_reference_run(struct tiles_reference *ref, uint64_t until_step);
/* [elems] of a plane, CAIRN_PLANE_WIRE too; NULL: not kept. */
const void *tiles_reference_plane(const struct tiles_reference *ref, int tensor, int plane);

#endif
