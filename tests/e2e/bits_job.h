/* The job of the bits tests: small, with every awkward shape, and gradients that anyone can compute
 * from (step, rank, micro-batch, tensor) and the published parameters. 50 updates of it have one
 * content root, BITS_GOLDEN_ROOT, whatever the shards, threads, fabric, order, compiler or faults. */
#ifndef CAIRN_E2E_BITS_JOB_H
#define CAIRN_E2E_BITS_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include <cairn.h>

#include "proto/geometry/tensor.h"

/* If this changes, the result of training changes: a new format of section 4 of the design, never a
 * side effect. */
#define BITS_GOLDEN_ROOT "1fc6261c04bdeae6efdbc8c0176b690c709b01947a1cbd4f9859ad6a1f9a4e49"

#define BITS_JOB        "bits"
#define BITS_CLIP_NORM  0.75
#define BITS_LOSS_SCALE 8.0
enum { BITS_TENSORS = 10, BITS_GROUPS = 3, BITS_WORKERS = 2, BITS_STEPS = 50, BITS_NAN_STEP = 17 };

struct bits_tensor {
    const char *name, *group; /* group NULL: frozen */
    cairn_dtype wire;
    struct shape shape;
};
/* By name, bytewise: the order that digest_content_root wants. */
extern const struct bits_tensor bits_tensors[BITS_TENSORS];
extern const struct cairn_group bits_groups[BITS_GROUPS]; /* by name */

uint64_t bits_elems(int tensor);
/* The spec points into static memory; `tensors` is the caller's. */
struct cairn_job_spec bits_spec(struct cairn_tensor tensors[BITS_TENSORS], uint32_t rank,
                                uint32_t window);

/* The value of an element before the first step. */
float bits_initial(int tensor, uint64_t elem);

/* What a worker contributes at a step (counted from 0). */
uint32_t bits_micros(uint64_t step, uint32_t rank);
uint64_t bits_weight(uint64_t step, uint32_t rank); /* 0: one a micro-batch */
bool bits_touches(uint64_t step, uint32_t rank, uint32_t micro, int tensor);
cairn_dtype bits_push_dtype(uint32_t rank, int tensor);
/* Writes the gradient, times the loss scale, in bits_push_dtype. wire: [elems] the published copy of
 * the step's version, in the tensor's wire dtype. with_nan: one element is none. */
void bits_gradient(uint64_t step, uint32_t rank, uint32_t micro, int tensor, double loss_scale,
                   bool with_nan, const void *wire, void *out);

#endif
