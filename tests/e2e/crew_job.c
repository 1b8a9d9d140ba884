#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/crew.h"

static const struct cairn_schedule_point table[] = { { 3, 1 }, { 5, 0.3 }, { 40, 0 } };

struct cairn_group crew_groups[CREW_GROUPS] = {
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

void crew_keep_averages(void)
{
    crew_groups[0].ema = 0.9;
    crew_groups[0].ema_schedule = CAIRN_EMA_WARMUP;
    crew_groups[2].ema = 0.75;
}

/* ---- bits ---- */

enum { BITS_WORKERS = 2 };

struct crew_tensor bits_tensors[BITS_TENSORS] = {
    { "attn",
      "adam",
      CAIRN_BF16,
      { 2, { 129, 257 } },
      CREW_WHOLE,
      0 }, // a quantum: 16 rows, the last 1
    { "bias", "momentum", CAIRN_F32, { 0, { 0 } }, CREW_WHOLE, 0 },          // a scalar
    { "conv", "adam", CAIRN_F32, { 5, { 17, 5, 3, 3, 3 } }, CREW_WHOLE, 0 }, // less than a leaf
    { "embed",
      "momentum",
      CAIRN_BF16,
      { 2, { 997, 61 } },
      CREW_WHOLE,
      0 }, // rows that divide nothing
    { "empty", "decay", CAIRN_F32, { 2, { 0, 7 } }, CREW_WHOLE, 0 },
    { "fixed", NULL, CAIRN_F32, { 2, { 31, 400 } }, CREW_WHOLE, 0 },
    { "fixed.low", NULL, CAIRN_BF16, { 1, { 5000 } }, CREW_WHOLE, 0 },
    { "norm", "decay", CAIRN_F32, { 1, { 300 } }, CREW_WHOLE, 0 },
    { "pos", "decay", CAIRN_F32, { 1, { 50021 } }, CREW_WHOLE, 0 },
    { "wide",
      "decay",
      CAIRN_BF16,
      { 2, { 3, 20011 } },
      CREW_WHOLE,
      0 }, // a row: a quantum of 5 leaves
};

static uint32_t bits_micros(uint64_t step, uint32_t rank)
{
    if (step % 4 == 1) return 3;
    return step % 4 == 2 ? 1 + rank : 1;
}

static uint64_t bits_weight(struct crew_mesh mesh, uint64_t step, uint32_t rank)
{
    (void)mesh;
    return step % 5 == 0 ? 3 * rank + 2 : 0;
}

static bool bits_touches(uint64_t step, uint32_t rank, uint32_t micro, int tensor)
{
    if (step % 7 == 3 && tensor == 2) return false; // by nobody: its gradient is +0
    return !(rank == 1 && micro == 1 && tensor == 3);
}

const struct crew_job bits_job = { .name = BITS_JOB,
                                   .tensors = bits_tensors,
                                   .tensor_count = BITS_TENSORS,
                                   .workers = BITS_WORKERS,
                                   .chunk_leaves = 2,
                                   .nan_step = BITS_NAN_STEP,
                                   .micros = bits_micros,
                                   .weight = bits_weight,
                                   .touches = bits_touches };

/* ---- tiles ---- */

struct crew_tensor tiles_tensors[TILES_TENSORS] = {
    { "col", "adam", CAIRN_BF16, { 2, { 37, 301 } }, CREW_TP, 0 },
    { "embed", "decay", CAIRN_BF16, { 2, { 509, 23 } }, CREW_TP, 0 },
    { "empty", "decay", CAIRN_F32, { 2, { 0, 7 } }, CREW_TP, 0 },
    { "expert.0", "momentum", CAIRN_F32, { 2, { 61, 97 } }, CREW_EXPERT, 0 },
    { "expert.1", "adam", CAIRN_F32, { 2, { 61, 97 } }, CREW_EXPERT, 1 },
    { "expert.2", "decay", CAIRN_BF16, { 2, { 61, 97 } }, CREW_EXPERT, 2 },
    { "fixed", NULL, CAIRN_F32, { 2, { 31, 150 } }, CREW_TP, 1 },
    { "fsdp.col", "adam", CAIRN_F32, { 2, { 101, 90 } }, CREW_TP_THEN_DP, 0 },
    { "fsdp.row", "decay", CAIRN_BF16, { 2, { 50, 177 } }, CREW_TP_THEN_DP, 1 },
    { "group", "decay", CAIRN_F32, { 3, { 3, 41, 67 } }, CREW_TP, 1 },
    { "norm", "adam", CAIRN_F32, { 1, { 300 } }, CREW_WHOLE, 0 },
    { "row", "momentum", CAIRN_BF16, { 2, { 53, 199 } }, CREW_TP, 1 },
    { "scalar", "momentum", CAIRN_F32, { 0, { 0 } }, CREW_WHOLE, 0 },
    { "tiny", "decay", CAIRN_F32, { 2, { 5, 7 } }, CREW_TP_THEN_DP, 0 },
};

static uint32_t tiles_micros(uint64_t step, uint32_t rank)
{
    if (step % 3 == 0) return CREW_MICROS_MAX;
    return step % 3 == 1 ? 1 + rank % 2 : 1;
}

static uint64_t tiles_weight(struct crew_mesh mesh, uint64_t step, uint32_t rank)
{
    if (step % 3 == 0) return 0;
    if (step % 3 == 1) return 2 + rank;
    return rank % mesh.tp == 0 ? 1 : CAIRN_WEIGHT_NONE; // a batch counts once, not once a piece
}

static bool tiles_touches(uint64_t step, uint32_t rank, uint32_t micro, int tensor)
{
    if (step % 3 == 1 && tensor == 1) return false; // by nobody: its gradient is +0
    return (step + 3 * rank + 5 * micro + (uint64_t)tensor) % 7 != 0;
}

const struct crew_job tiles_job = { .name = "tiles",
                                    .tensors = tiles_tensors,
                                    .tensor_count = TILES_TENSORS,
                                    .micro_batches = CREW_MICROS_MAX,
                                    .chunk_leaves = 1,
                                    .nan_step = CREW_NO_STEP,
                                    .micros = tiles_micros,
                                    .weight = tiles_weight,
                                    .touches = tiles_touches };

/* ---- the spec ---- */

uint32_t crew_world(const struct crew_job *job, struct crew_mesh mesh)
{
    return job->workers != 0 ? job->workers : mesh.tp * mesh.dp;
}

struct cairn_job_spec crew_spec(const struct crew_job *job,
                                struct cairn_tensor tensors[CREW_TENSORS_MAX],
                                struct crew_mesh mesh, uint32_t rank)
{
    for (int i = 0; i < job->tensor_count; i++) {
        const struct crew_tensor *t = &job->tensors[job->tensor_count - 1 - i]; // any order will do
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
                                     .tensor_count = (size_t)job->tensor_count,
                                     .groups = crew_groups,
                                     .group_count = CREW_GROUPS,
                                     .rank = rank,
                                     .workers_min = crew_world(job, mesh),
                                     .clip_norm = CREW_CLIP_NORM,
                                     .loss_scale = CREW_LOSS_SCALE,
                                     .chunk_leaves = job->chunk_leaves,
                                     .stage = mesh.stage,
                                     .micro_batches = job->micro_batches };
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

struct cairn_box crew_box(const struct crew_job *job, struct crew_mesh mesh, int tensor,
                          uint32_t rank)
{
    const struct crew_tensor *t = &job->tensors[tensor];
    struct cairn_box box = { .rank = t->shape.rank };
    for (uint32_t d = 0; d < box.rank; d++) box.extent[d] = t->shape.dim[d];
    if (t->cut == CREW_WHOLE) return box;
    const uint32_t tp = rank % mesh.tp, dp = rank / mesh.tp;
    if (t->cut == CREW_TP || t->cut == CREW_TP_THEN_DP) cut(&box, t->dim, mesh.tp, tp);
    if (t->cut == CREW_TP_THEN_DP) cut(&box, t->dim, mesh.dp, dp);
    if (t->cut == CREW_EXPERT && tp != t->dim % mesh.tp) box.extent[0] = 0;
    return box;
}

uint64_t crew_elems(const struct crew_job *job, int tensor)
{
    const struct shape *shape = &job->tensors[tensor].shape;
    uint64_t elems = 1;
    for (uint32_t d = 0; d < shape->rank; d++) elems *= shape->dim[d];
    return elems;
}

uint64_t crew_box_elems(const struct cairn_box *box)
{
    uint64_t elems = 1;
    for (uint32_t d = 0; d < box->rank; d++) elems *= box->extent[d];
    return elems;
}

uint64_t crew_index(const struct crew_job *job, int tensor, const struct cairn_box *box, uint64_t k)
{
    const struct shape *shape = &job->tensors[tensor].shape;
    uint64_t index = 0, stride = 1;
    for (uint32_t d = box->rank; d-- > 0; stride *= shape->dim[d]) {
        index += (box->start[d] + k % box->extent[d]) * stride;
        k /= box->extent[d];
    }
    return index;
}

/* ---- values ---- */

float crew_initial(int tensor, uint64_t index)
{
    return reference_noise((uint64_t)tensor, index) / 4;
}

bool crew_touches(const struct crew_job *job, struct crew_mesh mesh, uint64_t step, uint32_t rank,
                  uint32_t micro, int tensor)
{
    const struct cairn_box box = crew_box(job, mesh, tensor, rank);
    if (job->tensors[tensor].group == NULL) return false;
    if (crew_box_elems(&box) == 0 && crew_elems(job, tensor) > 0) return false;
    return job->touches(step, rank, micro, tensor);
}

cairn_dtype crew_push_dtype(uint32_t rank, int tensor)
{
    return (tensor + (int)rank) % 3 == 0 ? CAIRN_BF16 : CAIRN_F32;
}

void crew_gradient(const struct crew_gradient *of, const void *wire, void *out)
{
    const struct crew_job *job = of->job;
    const uint64_t elems = crew_box_elems(of->box);
    const bool is_whole = elems == crew_elems(job, of->tensor); // an index is dear
    const uint64_t ranks = job->workers != 0 ? job->workers : CREW_RANKS_MAX;
    const uint64_t micro = (of->step * ranks + of->rank) * CREW_MICROS_MAX + of->micro;
    const uint64_t seed = micro * (uint64_t)job->tensor_count + (uint64_t)of->tensor + 1000;
    const float scale = (float)of->loss_scale, amplitude = of->step % 3 == 0 ? 0.001f : 0.004f;
    float *weight = reference_zeros(elems), *grad = reference_zeros(elems);
    backend_host()->convert(weight, CAIRN_F32, wire, job->tensors[of->tensor].wire, elems);
    for (uint64_t k = 0; k < elems; k++) {
        const uint64_t i = is_whole ? k : crew_index(job, of->tensor, of->box, k);
        grad[k] = (reference_noise(seed, i) * amplitude + weight[k] * 0.015625f) * scale;
    }
    if (of->with_nan && of->tensor == 0) grad[elems / 2] = NAN;
    backend_host()->convert(out, crew_push_dtype(of->rank, of->tensor), grad, CAIRN_F32, elems);
    free(weight);
    free(grad);
}
