#include "tests/e2e/amend_model.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "gpu/gpu.h"
#include "proto/spec/spec.h"
#include "tests/support/init.h"

#define CLIP_NORM 0.5

const struct amend_tensor amend_tensors[AMEND_TENSORS] = {
    { "bias",
      CAIRN_TRAINED,
      CAIRN_TRAINED,
      CAIRN_F32,
      1,
      5000,
      { CAIRN_INIT_UNIFORM, -1, 1, 1 },
      0 },
    { "fixed", CAIRN_FROZEN, CAIRN_TRAINED, CAIRN_F32, 97, 61, { CAIRN_INIT_NORMAL, 0, 1, 2 }, 0 },
    { "head", CAIRN_TRAINED, 0, CAIRN_BF16, 129, 257, { CAIRN_INIT_NORMAL, 0, 1, 3 }, "weight" },
    { "late", 0, CAIRN_TRAINED, CAIRN_BF16, 300, 211, { CAIRN_INIT_NORMAL, 0, 0.5, 4 }, 0 },
    { "more", 0, CAIRN_FROZEN, CAIRN_F32, 40, 50, { CAIRN_INIT_UNIFORM, 0, 1, 5 }, 0 },
    { "note", 0, CAIRN_BUFFER, CAIRN_F32, 2, 3, { CAIRN_INIT_CONSTANT, 7, 0, 0 }, 0 },
    { "weight",
      CAIRN_TRAINED,
      CAIRN_TRAINED,
      CAIRN_BF16,
      129,
      257,
      { CAIRN_INIT_NORMAL, 0, 1, 6 },
      0 },
};

static struct cairn_group group(void)
{
    struct cairn_group adamw = CAIRN_GROUP_INIT;
    adamw.lr = 0.01;
    adamw.weight_decay = 0.1;
    return adamw;
}

uint64_t amend_elems(int tensor)
{
    return amend_tensors[tensor].rows * amend_tensors[tensor].columns;
}

struct cairn_tensor amend_describe(int tensor, bool after)
{
    const struct amend_tensor *t = &amend_tensors[tensor];
    const bool tied = after && t->tied_to != NULL;
    return (struct cairn_tensor) {
        .struct_size = sizeof(struct cairn_tensor),
        .name = t->name,
        .kind = after ? t->after : t->before,
        .wire = t->wire,
        .rank = 2,
        .shape = { t->rows, t->columns },
        .init = tied ? (struct cairn_init) { .kind = CAIRN_INIT_NONE } : t->init,
        .alias_of = tied ? t->tied_to : NULL,
    };
}

struct cairn_job_spec amend_spec(struct cairn_tensor tensors[AMEND_TENSORS], uint32_t rank,
                                 bool after)
{
    static struct cairn_group adamw;
    adamw = group();
    size_t count = 0;
    for (int t = 0; t < AMEND_TENSORS; t++)
        if (after || amend_tensors[t].before != 0) tensors[count++] = amend_describe(t, after);
    return (struct cairn_job_spec) { .struct_size = sizeof(struct cairn_job_spec),
                                     .tensors = tensors,
                                     .tensor_count = count,
                                     .groups = &adamw,
                                     .group_count = 1,
                                     .rank = rank,
                                     .workers_min = AMEND_WORKERS,
                                     .clip_norm = CLIP_NORM };
}

static float wire_value(const void *wire, cairn_dtype dtype, uint64_t elem)
{
    if (dtype == CAIRN_F32) return ((const float *)wire)[elem];
    const uint32_t bits = (uint32_t)((const uint16_t *)wire)[elem] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void amend_gradient(uint64_t step, uint32_t rank, int tensor, const void *wire, float *out)
{
    uint64_t state = step * 1000003 + rank * 7919 + (uint64_t)tensor * 104729 + 1;
    for (uint64_t i = 0; i < amend_elems(tensor); i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const float noise = (float)(int32_t)(state >> 40) * 0x1p-24F - 0.5F;
        out[i] = noise + 0.125F * wire_value(wire, amend_tensors[tensor].wire, i);
    }
}

/* ---- the reference ---- */

static bool trains(const struct amend_reference *ref, int t)
{
    return (ref->after ? amend_tensors[t].after : amend_tensors[t].before) == CAIRN_TRAINED;
}

static void begin(struct amend_reference *ref, int t)
{
    const struct amend_tensor *tensor = &amend_tensors[t];
    const struct shape shape = { 2, { tensor->rows, tensor->columns } };
    float *param = reference_zeros(amend_elems(t));
    init_fill(&tensor->init, tensor->name, 0, amend_elems(t), param);
    reference_open(&ref->tensor[t], tensor->name, &shape, tensor->wire, param);
}

static struct group_hyper hyper(void)
{
    const struct cairn_group adamw = group();
    return reference_hyper(&adamw);
}

static void add_moments(struct amend_reference *ref, int t)
{
    const struct group_hyper adamw = hyper();
    if (trains(ref, t) && ref->tensor[t].plane[CAIRN_PLANE_EXP_AVG] == NULL)
        reference_train(&ref->tensor[t], &adamw, ref->step);
}

void amend_reference_open(struct amend_reference *ref)
{
    memset(ref, 0, sizeof *ref);
    for (int t = 0; t < AMEND_TENSORS; t++) {
        if (amend_tensors[t].before == 0) continue;
        begin(ref, t);
        add_moments(ref, t);
    }
}

void amend_reference_close(struct amend_reference *ref)
{
    for (int t = 0; t < AMEND_TENSORS; t++) reference_close(&ref->tensor[t]);
}

static void amend(struct amend_reference *ref)
{
    ref->after = true;
    for (int t = 0; t < AMEND_TENSORS; t++) {
        if (amend_tensors[t].tied_to != NULL) {
            reference_close(&ref->tensor[t]);
            continue;
        }
        if (amend_tensors[t].before == 0) begin(ref, t);
        add_moments(ref, t);
    }
}

static void sum_tensor(struct amend_reference *ref, int t, struct sums *sums)
{
    struct reference_tensor *tensor = &ref->tensor[t];
    float *gradient = reference_zeros(amend_elems(t));
    for (uint32_t rank = 0; rank < AMEND_WORKERS; rank++) {
        const struct fold_source source = { gradient, CAIRN_F32 };
        amend_gradient(ref->step, rank, t, tensor->wire, gradient);
        backend_host()->fold(tensor->sum, &source, 1, rank == 0, amend_elems(t));
    }
    reference_measure(tensor, sums);
    free(gradient);
}

static void train(struct amend_reference *ref)
{
    struct sums sums = { .nonfinite = 0 };
    struct update_norm norm;
    const struct group_hyper adamw = hyper();
    for (int t = 0; t < AMEND_TENSORS; t++)
        if (trains(ref, t)) sum_tensor(ref, t, &sums);
    ck_assert_int_eq(update_norm_of(&sums.sum_squares, AMEND_WORKERS, 1, CLIP_NORM, &norm),
                     CAIRN_OK);
    for (int t = 0; t < AMEND_TENSORS; t++)
        if (trains(ref, t))
            reference_update(&ref->tensor[t], &adamw, ref->step + 1, norm.grad_scale);
    ref->step++;
}

void amend_reference_run(struct amend_reference *ref, uint64_t until_step)
{
    while (ref->step < until_step) {
        if (ref->step == AMEND_STEP && !ref->after) amend(ref);
        train(ref);
    }
}

void amend_reference_root(const struct amend_reference *ref, char hex_out[65])
{
    struct plane_digest planes[AMEND_TENSORS * CAIRN_PLANE_COUNT];
    struct group_digest groups[1] = { { "default", hyper() } };
    struct missed_digest missed[AMEND_TENSORS];
    size_t count = 0, missed_count = 0;
    for (int t = 0; t < AMEND_TENSORS; t++) {
        count += reference_digest(&ref->tensor[t], &planes[count]);
        missed_count = reference_missed(&ref->tensor[t], missed, missed_count);
    }
    struct content content = { .step = ref->step,
                               .groups = groups,
                               .group_count = 1,
                               .loss_scale = 1,
                               .missed = missed,
                               .missed_count = missed_count };
    reference_root(planes, count, &content, hex_out);
}
