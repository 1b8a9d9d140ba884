/* The models of scale.md, as tensors that the planner takes: a decoder's blocks, a unit each, an embedding
 * and a head. Biases are left out. */
#ifndef CAIRN_BENCH_SCALE_MODEL_H
#define CAIRN_BENCH_SCALE_MODEL_H

#include "proto/geometry/layout.h"

#define SCALE_BLOCK_TENSORS_MAX 9
#define SCALE_NAME_BYTES        48

struct scale_block_tensor {
    const char *name;
    uint64_t rows, columns; /* columns 0: a vector */
};

/* Static. */
struct scale_model {
    const char *name, *source;
    uint32_t block_count;
    uint64_t vocabulary, width;
    struct scale_block_tensor block[SCALE_BLOCK_TENSORS_MAX]; /* ended by one without a name */
};
#define SCALE_MODELS 3
extern const struct scale_model scale_models[SCALE_MODELS];

struct scale_tensors {
    uint32_t count, unit_count;
    uint64_t elems;
    struct layout_tensor *list;      /* owned: [count] */
    uint32_t *unit;                  /* owned: [count], below unit_count */
    char (*names)[SCALE_NAME_BYTES]; /* owned: [2 * count], of tensor and unit */
};
/* Aborts without memory. elem_bytes: what the planner weighs an element with. */
void scale_tensors_make(const struct scale_model *model, uint32_t elem_bytes,
                        struct scale_tensors *out);
void scale_tensors_release(struct scale_tensors *tensors);

#endif
