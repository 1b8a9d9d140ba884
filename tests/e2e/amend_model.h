/* The job of the amendments' tests: AdamW with clipping, two workers, gradients that anyone can compute from
 * (step, rank, tensor) and the published parameters. At step AMEND_STEP a tensor that was frozen is trained,
 * one is tied, three are added. And the same training in plain sight, as in crew.h. */
#ifndef CAIRN_E2E_AMEND_MODEL_H
#define CAIRN_E2E_AMEND_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include <cairn.h>

#include "tests/support/reference.h"

#define AMEND_JOB "amended"
enum { AMEND_TENSORS = 7, AMEND_WORKERS = 2, AMEND_STEP = 5, AMEND_ELEMS_MAX = 300 * 211 };

struct amend_tensor {
    const char *name;
    cairn_kind before, after; /* 0: not there, or tied */
    cairn_dtype wire;
    uint64_t rows, columns;
    struct cairn_init init;
    const char *tied_to; /* after */
};
extern const struct amend_tensor amend_tensors[AMEND_TENSORS]; /* by name */

uint64_t amend_elems(int tensor);
/* As a caller says it, before or after. */
struct cairn_tensor amend_describe(int tensor, bool after);
/* The whole spec; `tensors` is the caller's. */
struct cairn_job_spec amend_spec(struct cairn_tensor tensors[AMEND_TENSORS], uint32_t rank,
                                 bool after);
/* A worker's gradient; wire: [elems] the published copy of the step's version, in the tensor's wire dtype. */
void amend_gradient(uint64_t step, uint32_t rank, int tensor, const void *wire, float *out);

struct amend_reference {
    uint64_t step;
    bool after;
    struct reference_tensor tensor[AMEND_TENSORS]; /* those that are not there: all 0 */
};
void amend_reference_open(struct amend_reference *ref);
void amend_reference_close(struct amend_reference *ref);
/* Trains on to that step, and amends at AMEND_STEP before the next one. */
void amend_reference_run(struct amend_reference *ref, uint64_t until_step);
void amend_reference_root(const struct amend_reference *ref, char hex_out[65]);

#endif
