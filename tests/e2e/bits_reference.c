#include "tests/e2e/bits_reference.h"

#include <stdlib.h>
#include <string.h>

#include "client/base.h"

static const struct cairn_group *group_of(int tensor)
{
    for (int g = 0; g < BITS_GROUPS; g++)
        if (strcmp(bits_groups[g].name, bits_tensors[tensor].group) == 0) return &bits_groups[g];
    reference_must(false, bits_tensors[tensor].group);
    return NULL;
}

void bits_reference_open(struct bits_reference *ref)
{
    memset(ref, 0, sizeof *ref);
    ref->loss_scale = BITS_LOSS_SCALE;
    for (int t = 0; t < BITS_TENSORS; t++) {
        const struct bits_tensor *tensor = &bits_tensors[t];
        float *param = reference_zeros(bits_elems(t));
        for (uint64_t i = 0; i < bits_elems(t); i++) param[i] = bits_initial(t, i);
        reference_open(&ref->tensor[t], tensor->name, &tensor->shape, tensor->wire, param);
        if (tensor->group == NULL) continue;
        const struct group_hyper hyper = reference_hyper(group_of(t));
        reference_train(&ref->tensor[t], &hyper, 0);
    }
}

void bits_reference_close(struct bits_reference *ref)
{
    for (int t = 0; t < BITS_TENSORS; t++) reference_close(&ref->tensor[t]);
}

/* Adds one contribution to the tensor's sum. */
static void fold(struct bits_reference *ref, int t, uint32_t rank, uint32_t micro, bool with_nan,
                 bool first)
{
    const uint64_t elems = bits_elems(t);
    void *gradient = reference_zeros(elems);
    bits_gradient(ref->step, rank, micro, t, ref->loss_scale, with_nan, ref->tensor[t].wire,
                  gradient);
    const struct fold_source source = { gradient, bits_push_dtype(rank, t) };
    backend_host()->fold(ref->tensor[t].sum, &source, 1, first, elems);
    free(gradient);
}

/* The strict left fold in (micro-batch, rank) order. */
static void sum_tensor(struct bits_reference *ref, int t, bool with_nan, struct sums *sums)
{
    bool first = true;
    memset(ref->tensor[t].sum, 0, bits_elems(t) * sizeof(float));
    for (uint32_t micro = 0; micro < 3; micro++) {
        for (uint32_t rank = 0; rank < BITS_WORKERS; rank++) {
            if (micro >= bits_micros(ref->step, rank)) continue;
            if (!bits_touches(ref->step, rank, micro, t)) continue;
            fold(ref, t, rank, micro, with_nan && rank == 1 && micro == 0 && t == 0, first);
            first = false;
        }
    }
    reference_measure(&ref->tensor[t], sums);
}

static void update_tensor(struct bits_reference *ref, int t, uint32_t grad_scale)
{
    const struct group_spec group = client_group_of(group_of(t));
    struct group_hyper hyper = reference_hyper(group_of(t));
    hyper.lr = schedule_lr(&group.schedule, hyper.lr, ref->step);
    reference_update(&ref->tensor[t], &hyper, ref->step + 1, grad_scale);
}

static void run_round(struct bits_reference *ref, bool with_nan)
{
    struct sums sums = { .nonfinite = 0 };
    struct update_norm norm;
    uint64_t weight = 0;
    for (uint32_t rank = 0; rank < BITS_WORKERS; rank++) {
        const uint64_t own = bits_weight(ref->step, rank);
        weight += own != 0 ? own : bits_micros(ref->step, rank);
    }
    for (int t = 0; t < BITS_TENSORS; t++)
        if (bits_tensors[t].group != NULL) sum_tensor(ref, t, with_nan, &sums);
    if (sums.nonfinite > 0) { // skipped: only the loss scale hears of it
        ref->loss_scale /= 2;
        return;
    }
    reference_must(update_norm_of(&sums.sum_squares, weight, ref->loss_scale, BITS_CLIP_NORM,
                                  &norm) == CAIRN_OK,
                   "the norm");
    if (norm.clip_scale < 1) ref->clipped++;
    for (int t = 0; t < BITS_TENSORS; t++)
        if (bits_tensors[t].group != NULL) update_tensor(ref, t, norm.grad_scale);
    ref->step++;
}

void bits_reference_skip(struct bits_reference *ref)
{
    run_round(ref, true);
}

void bits_reference_run(struct bits_reference *ref, uint64_t until_step)
{
    while (ref->step < until_step) {
        if (ref->step == BITS_NAN_STEP) bits_reference_skip(ref);
        run_round(ref, false);
    }
}

void bits_reference_root(const struct bits_reference *ref, char hex_out[65])
{
    struct plane_digest planes[BITS_TENSORS * CAIRN_PLANE_COUNT];
    struct group_digest groups[BITS_GROUPS];
    size_t count = 0;
    for (int t = 0; t < BITS_TENSORS; t++)
        count += reference_digest(&ref->tensor[t], &planes[count]);
    struct group_spec schedules[BITS_GROUPS];
    uint8_t hash[32];
    for (int g = 0; g < BITS_GROUPS; g++) {
        groups[g] = (struct group_digest) { bits_groups[g].name, reference_hyper(&bits_groups[g]) };
        schedules[g] = client_group_of(&bits_groups[g]);
    }
    const struct job_spec_data spec = { .groups = schedules, .group_count = BITS_GROUPS };
    reference_must(spec_schedules_hash(&spec, hash), "schedules_hash");
    struct content content = { .step = ref->step,
                               .groups = groups,
                               .group_count = BITS_GROUPS,
                               .schedule = hash,
                               .schedule_bytes = sizeof hash,
                               .loss_scale = ref->loss_scale };
    reference_root(planes, count, &content, hex_out);
}
