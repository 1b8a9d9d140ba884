#include "tests/e2e/tiles_job.h"

#include <stdlib.h>

#include "tests/support/reference.h"

struct tiles_tensor tiles_tensors[TILES_TENSORS] = {
    { "col", "adam", CAIRN_BF16, { 2, { 37, 301 } }, TILES_TP, 0 },
    { "embed", "decay", CAIRN_BF16, { 2, { 509, 23 } }, TILES_TP, 0 },
    { "empty", "decay", CAIRN_F32, { 2, { 0, 7 } }, TILES_TP, 0 },
    { "expert.0", "momentum", CAIRN_F32, { 2, { 61, 97 } }, TILES_EXPERT, 0 },
    { "expert.1", "adam", CAIRN_F32, { 2, { 61, 97 } }, TILES_EXPERT, 1 },
    { "expert.2", "decay", CAIRN_BF16, { 2, { 61, 97 } }, TILES_EXPERT, 2 },
    { "fixed", NULL, CAIRN_F32, { 2, { 31, 150 } }, TILES_TP, 1 },
    { "fsdp.col", "adam", CAIRN_F32, { 2, { 101, 90 } }, TILES_TP_THEN_DP, 0 },
    { "fsdp.row", "decay", CAIRN_BF16, { 2, { 50, 177 } }, TILES_TP_THEN_DP, 1 },
    { "group", "decay", CAIRN_F32, { 3, { 3, 41, 67 } }, TILES_TP, 1 },
    { "norm", "adam", CAIRN_F32, { 1, { 300 } }, TILES_WHOLE, 0 },
    { "row", "momentum", CAIRN_BF16, { 2, { 53, 199 } }, TILES_TP, 1 },
    { "scalar", "momentum", CAIRN_F32, { 0, { 0 } }, TILES_WHOLE, 0 },
    { "tiny", "decay", CAIRN_F32, { 2, { 5, 7 } }, TILES_TP_THEN_DP, 0 },
};

struct cairn_group tiles_groups[TILES_GROUPS] = {
    { .struct_size = sizeof(struct cairn_group),
      .name = "adam",
      .optimizer = "adam",
      .lr = 2e-3,
      .beta1 = 0.8,
      .beta2 = 0.99,
      .eps = 1e-7,
      .weight_decay = 0.02 },
    { .struct_size = sizeof(struct cairn_group),
      .name = "decay",
      .optimizer = "adamw",
      .lr = 1e-3,
      .beta1 = 0.9,
      .beta2 = 0.95,
      .eps = 1e-8,
      .weight_decay = 0.1 },
    { .struct_size = sizeof(struct cairn_group),
      .name = "momentum",
      .optimizer = "sgd",
      .lr = 0.05,
      .beta1 = 0.9,
      .beta2 = 0.999,
      .eps = 1e-8,
      .weight_decay = 1e-3,
      .momentum = 0.9,
      .nesterov = true },
};

bool tiles_adds_up(struct tiles_mesh mesh)
{
    return mesh.stage == CAIRN_STAGE(0) || mesh.stage == CAIRN_STAGE(1);
}

struct cairn_job_spec tiles_spec(struct cairn_tensor tensors[TILES_TENSORS], struct tiles_mesh mesh,
                                 uint32_t rank)
{
    for (int i = 0; i < TILES_TENSORS; i++) {
        const struct tiles_tensor *t = &tiles_tensors[TILES_TENSORS - 1 - i]; // any order will do
        tensors[i] = (struct cairn_tensor) { .struct_size = sizeof tensors[i],
                                             .name = t->name,
                                             .group = t->group,
                                             .wire = t->wire,
                                             .rank = t->shape.rank,
                                             .kind = t->group ? CAIRN_TRAINED : CAIRN_FROZEN };
        for (uint32_t d = 0; d < t->shape.rank; d++) tensors[i].shape[d] = t->shape.dim[d];
    }
    return (struct cairn_job_spec) { .struct_size = sizeof(struct cairn_job_spec),
                                     .tensors = tensors,
                                     .tensor_count = TILES_TENSORS,
                                     .groups = tiles_groups,
                                     .group_count = TILES_GROUPS,
                                     .rank = rank,
                                     .workers_min = mesh.tp * mesh.dp,
                                     .clip_norm = TILES_CLIP_NORM,
                                     .loss_scale = TILES_LOSS_SCALE,
                                     .chunk_leaves = 1,
                                     .stage = mesh.stage,
                                     .micro_batches = TILES_MICROS_MAX };
}

/* ---- boxes ---- */

static void cut(struct cairn_box *box, uint32_t dim, uint32_t parts, uint32_t part)
{
    const uint64_t extent = box->extent[dim], size = (extent + parts - 1) / parts;
    const uint64_t from = part * size < extent ? part * size : extent;
    const uint64_t end = from + size < extent ? from + size : extent;
    box->start[dim] += from;
    box->extent[dim] = end - from;
}

struct cairn_box tiles_box(struct tiles_mesh mesh, int tensor, uint32_t rank)
{
    const struct tiles_tensor *t = &tiles_tensors[tensor];
    const uint32_t tp = rank % mesh.tp, dp = rank / mesh.tp;
    struct cairn_box box = { .rank = t->shape.rank };
    for (uint32_t d = 0; d < box.rank; d++) box.extent[d] = t->shape.dim[d];
    if (t->cut == TILES_TP || t->cut == TILES_TP_THEN_DP) cut(&box, t->dim, mesh.tp, tp);
    if (t->cut == TILES_TP_THEN_DP) cut(&box, t->dim, mesh.dp, dp);
    if (t->cut == TILES_EXPERT && tp != t->dim % mesh.tp) box.extent[0] = 0;
    return box;
}

uint64_t tiles_elems(int tensor)
{
    const struct shape *shape = &tiles_tensors[tensor].shape;
    uint64_t elems = 1;
    for (uint32_t d = 0; d < shape->rank; d++) elems *= shape->dim[d];
    return elems;
}

uint64_t tiles_box_elems(const struct cairn_box *box)
{
    uint64_t elems = 1;
    for (uint32_t d = 0; d < box->rank; d++) elems *= box->extent[d];
    return elems;
}

uint64_t tiles_index(int tensor, const struct cairn_box *box, uint64_t k)
{
    const struct shape *shape = &tiles_tensors[tensor].shape;
    uint64_t index = 0, stride = 1;
    for (uint32_t d = box->rank; d-- > 0; stride *= shape->dim[d]) {
        index += (box->start[d] + k % box->extent[d]) * stride;
        k /= box->extent[d];
    }
    return index;
}

/* ---- values ---- */

float tiles_initial(int tensor, uint64_t index)
{
    return reference_noise((uint64_t)tensor, index) / 4;
}

uint32_t tiles_micros(uint64_t step, uint32_t rank)
{
    if (step % 3 == 0) return TILES_MICROS_MAX;
    return step % 3 == 1 ? 1 + rank % 2 : 1;
}

uint64_t tiles_weight(struct tiles_mesh mesh, uint64_t step, uint32_t rank)
{
    if (step % 3 == 0) return 0;
    if (step % 3 == 1) return 2 + rank;
    return rank % mesh.tp == 0 ? 1 : CAIRN_WEIGHT_NONE; // a batch counts once, not once a piece
}

bool tiles_touches(struct tiles_mesh mesh, uint64_t step, uint32_t rank, uint32_t micro, int tensor)
{
    const struct cairn_box box = tiles_box(mesh, tensor, rank);
    if (tiles_tensors[tensor].group == NULL) return false;
    if (tiles_box_elems(&box) == 0 && tiles_elems(tensor) > 0) return false;
    if (step % 3 == 1 && tensor == 1) return false; // by nobody: its gradient is +0
    return (step + 3 * rank + 5 * micro + (uint64_t)tensor) % 7 != 0;
}

cairn_dtype tiles_push_dtype(uint32_t rank, int tensor)
{
    return (tensor + (int)rank) % 3 == 0 ? CAIRN_BF16 : CAIRN_F32;
}

void tiles_gradient(uint64_t step, uint32_t rank, uint32_t micro, int tensor,
                    const struct cairn_box *box, const void *wire, void *out)
{
    const uint64_t elems = tiles_box_elems(box);
    const uint64_t seed = ((step * TILES_RANKS_MAX + rank) * TILES_MICROS_MAX + micro) *
                              TILES_TENSORS +
                          (uint64_t)tensor + 1000;
    float *weight = malloc(2 * elems * sizeof *weight + 1), *grad = weight + elems;
    if (weight == NULL) abort();
    backend_host()->convert(weight, CAIRN_F32, wire, tiles_tensors[tensor].wire, elems);
    for (uint64_t k = 0; k < elems; k++)
        grad[k] = (reference_noise(seed, tiles_index(tensor, box, k)) * 0.004f +
                   weight[k] * 0.015625f) *
                  (float)TILES_LOSS_SCALE;
    backend_host()->convert(out, tiles_push_dtype(rank, tensor), grad, CAIRN_F32, elems);
    free(weight);
}
