/* The same training in plain sight: one process, whole tensors, no daemon, no layout, no chunks. It
 * calls the kernels and the scalars; its content root is what every cluster must come to. */
#ifndef CAIRN_E2E_BITS_REFERENCE_H
#define CAIRN_E2E_BITS_REFERENCE_H

#include "tests/e2e/bits_job.h"
#include "tests/support/reference.h"

struct bits_reference {
    uint64_t step; /* updates applied */
    double loss_scale;
    uint32_t clipped; /* of the updates */
    struct reference_tensor tensor[BITS_TENSORS];
};

void bits_reference_open(struct bits_reference *ref);
void bits_reference_close(struct bits_reference *ref);
/* Trains on to that step; step BITS_NAN_STEP is tried once with a gradient that is none. */
void bits_reference_run(struct bits_reference *ref, uint64_t until_step);
/* At BITS_NAN_STEP: that gradient alone, whose round is skipped. */
void bits_reference_skip(struct bits_reference *ref);
void bits_reference_root(const struct bits_reference *ref, char hex_out[65]);

#endif
