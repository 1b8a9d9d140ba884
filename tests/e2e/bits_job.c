#include "tests/e2e/bits_job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/reference.h"

const struct bits_tensor bits_tensors[BITS_TENSORS] = {
    { "attn", "adam", CAIRN_BF16, { 2, { 129, 257 } } }, // a quantum is 16 rows, the last one 1
    { "bias", "momentum", CAIRN_F32, { 0, { 0 } } },     // a scalar
    { "conv", "adam", CAIRN_F32, { 5, { 17, 5, 3, 3, 3 } } }, // less than a leaf
    { "embed", "momentum", CAIRN_BF16, { 2, { 997, 61 } } },  // rows that divide nothing
    { "empty", "decay", CAIRN_F32, { 2, { 0, 7 } } },
    { "fixed", NULL, CAIRN_F32, { 2, { 31, 400 } } },
    { "fixed.low", NULL, CAIRN_BF16, { 1, { 5000 } } },
    { "norm", "decay", CAIRN_F32, { 1, { 300 } } },
    { "pos", "decay", CAIRN_F32, { 1, { 50021 } } },
    { "wide", "decay", CAIRN_BF16, { 2, { 3, 20011 } } }, // a row is a quantum of 5 leaves
};

static const struct cairn_schedule_point table[] = { { 3, 1 }, { 5, 0.3 }, { 40, 0 } };

const struct cairn_group bits_groups[BITS_GROUPS] = {
    { .struct_size = sizeof(struct cairn_group),
      .name = "adam",
      .optimizer = "adam",
      .lr = 2e-3,
      .beta1 = 0.8,
      .beta2 = 0.99,
      .eps = 1e-7,
      .weight_decay = 0.02,
      .warmup_steps = 2,
      .total_steps = 30,
      .lr_min = 1e-4,
      .schedule = CAIRN_SCHEDULE_COSINE },
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
      .nesterov = true,
      .points = table,
      .point_count = 3,
      .schedule = CAIRN_SCHEDULE_TABLE },
};

uint64_t bits_elems(int tensor)
{
    return geometry_of(&bits_tensors[tensor].shape).elems;
}

struct cairn_job_spec bits_spec(struct cairn_tensor tensors[BITS_TENSORS], uint32_t rank,
                                uint32_t window)
{
    for (int i = 0; i < BITS_TENSORS; i++) {
        const struct bits_tensor *t = &bits_tensors[BITS_TENSORS - 1 - i]; // any order will do
        tensors[i] = (struct cairn_tensor) { .struct_size = sizeof tensors[i],
                                             .name = t->name,
                                             .group = t->group,
                                             .wire = t->wire,
                                             .rank = t->shape.rank,
                                             .kind = t->group ? CAIRN_TRAINED
                                                     : strcmp(t->name, "fixed.low")
                                                         ? CAIRN_FROZEN
                                                         : CAIRN_BUFFER };
        for (uint32_t d = 0; d < t->shape.rank; d++) tensors[i].shape[d] = t->shape.dim[d];
    }
    return (struct cairn_job_spec) { .struct_size = sizeof(struct cairn_job_spec),
                                     .tensors = tensors,
                                     .tensor_count = BITS_TENSORS,
                                     .groups = bits_groups,
                                     .group_count = BITS_GROUPS,
                                     .rank = rank,
                                     .workers_min = BITS_WORKERS,
                                     .clip_norm = BITS_CLIP_NORM,
                                     .loss_scale = BITS_LOSS_SCALE,
                                     .chunk_leaves = 2,
                                     .window = window };
}

float bits_initial(int tensor, uint64_t elem)
{
    return reference_noise((uint64_t)tensor, elem) / 4;
}

uint32_t bits_micros(uint64_t step, uint32_t rank)
{
    if (step % 4 == 1) return 3;
    return step % 4 == 2 ? 1 + rank : 1;
}

uint64_t bits_weight(uint64_t step, uint32_t rank)
{
    return step % 5 == 0 ? 3 * rank + 2 : 0;
}

bool bits_touches(uint64_t step, uint32_t rank, uint32_t micro, int tensor)
{
    if (bits_tensors[tensor].group == NULL) return false;
    if (step % 7 == 3 && tensor == 2) return false; // by nobody: its gradient is +0
    return !(rank == 1 && micro == 1 && tensor == 3);
}

cairn_dtype bits_push_dtype(uint32_t rank, int tensor)
{
    return (tensor + (int)rank) % 3 == 0 ? CAIRN_BF16 : CAIRN_F32;
}

void bits_gradient(uint64_t step, uint32_t rank, uint32_t micro, int tensor, double loss_scale,
                   bool with_nan, const void *wire, void *out)
{
    const uint64_t elems = bits_elems(tensor);
    const uint64_t seed = ((step * 2 + rank) * 3 + micro) * BITS_TENSORS + (uint64_t)tensor + 1000;
    const float scale = (float)loss_scale, amplitude = step % 3 == 0 ? 0.001f : 0.004f;
    float *weight = malloc(2 * elems * sizeof *weight + 1), *grad = weight + elems;
    if (weight == NULL) abort();
    backend_host()->convert(weight, CAIRN_F32, wire, bits_tensors[tensor].wire, elems);
    for (uint64_t i = 0; i < elems; i++)
        grad[i] = (reference_noise(seed, i) * amplitude + weight[i] * 0.015625f) * scale;
    if (with_nan) grad[elems / 2] = NAN;
    backend_host()->convert(out, bits_push_dtype(rank, tensor), grad, CAIRN_F32, elems);
    free(weight);
}
