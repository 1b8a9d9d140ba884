/* The job of the tests of tiles: a tensor for each way to be cut, ranks in a mesh of tensor (tp) and data
 * (dp) parallelism, and gradients that anyone can compute element by element. Nothing here uses the
 * product's arithmetic of boxes. */
#ifndef CAIRN_E2E_TILES_JOB_H
#define CAIRN_E2E_TILES_JOB_H

#include <stdbool.h>

#include <cairn.h>

#include "proto/geometry/tensor.h"

#define TILES_JOB        "tiles"
#define TILES_CLIP_NORM  0.75
#define TILES_LOSS_SCALE 8.0
enum { TILES_TENSORS = 14, TILES_GROUPS = 3, TILES_MICROS_MAX = 3, TILES_RANKS_MAX = 16 };

enum tiles_cut {
    TILES_WHOLE,      /* every rank holds all of it */
    TILES_TP,         /* cut along `dim` by the place in tp; replicas in dp */
    TILES_TP_THEN_DP, /* the tp-local piece is cut along the same dimension by the place in dp */
    TILES_EXPERT /* whole on the ranks of one place in tp, nothing elsewhere; `dim`: which expert */
};

struct tiles_tensor {
    const char *name, *group; /* group NULL: frozen */
    cairn_dtype wire;
    struct shape shape;
    enum tiles_cut cut;
    uint32_t dim;
};
/* By name, bytewise. A test that changes these tables does so before anything is opened. */
extern struct tiles_tensor tiles_tensors[TILES_TENSORS];
extern struct cairn_group tiles_groups[TILES_GROUPS];

/* Rank r stands at tp place r % tp and dp place r / tp. */
struct tiles_mesh {
    uint32_t tp, dp;
    uint32_t stage; /* CAIRN_STAGE(…); 0: of stage 2 */
};
/* Each rank adds up its micro-batches: in stages 0 and 1. */
bool tiles_adds_up(struct tiles_mesh mesh);

/* The spec points into static memory; `tensors` is the caller's. */
struct cairn_job_spec tiles_spec(struct cairn_tensor tensors[TILES_TENSORS], struct tiles_mesh mesh,
                                 uint32_t rank);
/* What the rank holds. Sizes are those of torch.chunk: the last pieces are smaller, or empty. */
struct cairn_box tiles_box(struct tiles_mesh mesh, int tensor, uint32_t rank);

uint64_t tiles_elems(int tensor);
uint64_t tiles_box_elems(const struct cairn_box *box);
/* Where the k-th element of the dense box stands in the tensor. */
uint64_t tiles_index(int tensor, const struct cairn_box *box, uint64_t k);

/* The value of an element before the first step. */
float tiles_initial(int tensor, uint64_t index);
/* What a rank contributes at a step (counted from 0). */
uint32_t tiles_micros(uint64_t step, uint32_t rank);
uint64_t tiles_weight(struct tiles_mesh mesh, uint64_t step, uint32_t rank); /* for cairn_commit */
bool tiles_touches(struct tiles_mesh mesh, uint64_t step, uint32_t rank, uint32_t micro,
                   int tensor);
cairn_dtype tiles_push_dtype(uint32_t rank, int tensor);
/* The gradient of the elements of the box, times the loss scale, in tiles_push_dtype. wire: [elements of
 * the box] the published copy of them, in the tensor's wire dtype. */
void tiles_gradient(uint64_t step, uint32_t rank, uint32_t micro, int tensor,
                    const struct cairn_box *box, const void *wire, void *out);

#endif
