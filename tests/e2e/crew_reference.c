#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "tests/e2e/crew.h"

static const struct cairn_group *group_of(const struct crew_job *job, int tensor)
{
    for (int g = 0; g < CREW_GROUPS; g++)
        if (strcmp(crew_groups[g].name, job->tensors[tensor].group) == 0) return &crew_groups[g];
    reference_must(false, job->tensors[tensor].group);
    return NULL;
}

void crew_reference_open(struct crew_reference *ref, const struct crew_job *job,
                         struct crew_mesh mesh)
{
    *ref = (struct crew_reference) { .job = job, .mesh = mesh, .loss_scale = CREW_LOSS_SCALE };
    for (int t = 0; t < job->tensor_count; t++) {
        const struct crew_tensor *tensor = &job->tensors[t];
        float *param = reference_zeros(crew_elems(job, t));
        for (uint64_t i = 0; i < crew_elems(job, t); i++) param[i] = crew_initial(t, i);
        reference_open(&ref->tensor[t], tensor->name, &tensor->shape, tensor->wire, param);
        if (tensor->group == NULL) continue;
        const struct group_hyper hyper = reference_hyper(group_of(job, t));
        reference_train(&ref->tensor[t], &hyper, 0);
    }
}

void crew_reference_close(struct crew_reference *ref)
{
    for (int t = 0; t < ref->job->tensor_count; t++) reference_close(&ref->tensor[t]);
}

/* ---- a sum ---- */

/* What one rank has of a tensor. */
struct holding {
    int tensor;
    uint32_t rank;
    struct cairn_box box;
    uint64_t elems;
    bool is_whole, with_nan;
};

static uint64_t index_of(const struct crew_reference *ref, const struct holding *its, uint64_t k)
{
    return its->is_whole ? k : crew_index(ref->job, its->tensor, &its->box, k);
}

/* Adds the gradient of one micro-batch to sum: [elements of the box]. */
static void add_micro(const struct crew_reference *ref, const struct holding *its, uint32_t micro,
                      float *sum, bool first)
{
    const struct reference_tensor *tensor = &ref->tensor[its->tensor];
    const size_t wire_bytes = dtype_size((int)tensor->wire_dtype);
    const struct crew_gradient of = { .job = ref->job,
                                      .step = ref->step,
                                      .rank = its->rank,
                                      .micro = micro,
                                      .tensor = its->tensor,
                                      .box = &its->box,
                                      .loss_scale = ref->loss_scale,
                                      .with_nan = its->with_nan && micro == 0 };
    uint8_t *wire = reference_zeros(its->elems), *pushed = reference_zeros(its->elems);
    float *gradient = reference_zeros(its->elems);
    for (uint64_t k = 0; k < its->elems; k++)
        memcpy(wire + k * wire_bytes, (uint8_t *)tensor->wire + index_of(ref, its, k) * wire_bytes,
               wire_bytes);
    crew_gradient(&of, wire, pushed);
    backend_host()->convert(gradient, CAIRN_F32, pushed, crew_push_dtype(of.rank, of.tensor),
                            its->elems);
    for (uint64_t k = 0; k < its->elems; k++) sum[k] = first ? gradient[k] : sum[k] + gradient[k];
    free(wire);
    free(pushed);
    free(gradient);
}

/* Folds what one rank has of the micro-batches [first, end). seen: [elems] 1 = it has a contribution. */
static void fold(struct crew_reference *ref, const struct holding *its, uint32_t first,
                 uint32_t end, uint8_t *seen)
{
    float *part = reference_zeros(its->elems), *sum = ref->tensor[its->tensor].sum;
    bool any = false;
    for (uint32_t m = first; m < end && m < ref->job->micros(ref->step, its->rank); m++) {
        if (!crew_touches(ref->job, ref->mesh, ref->step, its->rank, m, its->tensor)) continue;
        add_micro(ref, its, m, part, !any);
        any = true;
    }
    for (uint64_t k = 0; any && k < its->elems; k++) {
        const uint64_t i = index_of(ref, its, k);
        sum[i] = seen[i] ? sum[i] + part[k] : part[k];
        seen[i] = 1;
    }
    free(part);
}

/* The strict left fold in (micro-batch, rank) order. In stages 0 and 1 each rank adds up its own first. */
static void sum_tensor(struct crew_reference *ref, int t, bool with_nan, struct sums *sums)
{
    const uint32_t stage = ref->mesh.stage;
    const bool adds_up = stage == CAIRN_STAGE(0) || stage == CAIRN_STAGE(1);
    const uint32_t together = adds_up ? CREW_MICROS_MAX : 1;
    const uint64_t elems = crew_elems(ref->job, t);
    uint8_t *seen = reference_zeros(elems);
    memset(ref->tensor[t].sum, 0, elems * sizeof(float));
    for (uint32_t micro = 0; micro < CREW_MICROS_MAX; micro += together)
        for (uint32_t rank = 0; rank < crew_world(ref->job, ref->mesh); rank++) {
            struct holding its = { .tensor = t, .rank = rank, .with_nan = with_nan && rank == 1 };
            its.box = crew_box(ref->job, ref->mesh, t, rank);
            its.elems = crew_box_elems(&its.box);
            its.is_whole = its.elems == elems;
            fold(ref, &its, micro, micro + together, seen);
        }
    reference_measure(&ref->tensor[t], sums);
    free(seen);
}

/* ---- a round ---- */

static uint64_t weight_of(const struct crew_reference *ref, uint32_t rank)
{
    const uint64_t weight = ref->job->weight(ref->mesh, ref->step, rank);
    if (weight == CAIRN_WEIGHT_NONE) return 0;
    return weight != 0 ? weight : ref->job->micros(ref->step, rank);
}

static void update_tensor(struct crew_reference *ref, int t, uint32_t grad_scale)
{
    const struct group_spec group = client_group_of(group_of(ref->job, t));
    struct group_hyper hyper = reference_hyper(group_of(ref->job, t));
    hyper.lr = schedule_lr(&group.schedule, hyper.lr, ref->step);
    reference_update(&ref->tensor[t], &hyper, ref->step + 1, grad_scale);
}

static void run_round(struct crew_reference *ref, bool with_nan)
{
    const struct crew_job *job = ref->job;
    struct sums sums = { .nonfinite = 0 };
    struct update_norm norm;
    uint64_t weight = 0;
    for (uint32_t rank = 0; rank < crew_world(job, ref->mesh); rank++)
        weight += weight_of(ref, rank);
    for (int t = 0; t < job->tensor_count; t++)
        if (job->tensors[t].group != NULL) sum_tensor(ref, t, with_nan, &sums);
    if (sums.nonfinite > 0) { // skipped: only the loss scale hears of it
        ref->loss_scale /= 2;
        return;
    }
    reference_must(update_norm_of(&sums.sum_squares, weight, ref->loss_scale, CREW_CLIP_NORM,
                                  &norm) == CAIRN_OK,
                   "the norm");
    if (norm.clip_scale < 1) ref->clipped++;
    for (int t = 0; t < job->tensor_count; t++)
        if (job->tensors[t].group != NULL) update_tensor(ref, t, norm.grad_scale);
    ref->step++;
}

void crew_reference_skip(struct crew_reference *ref)
{
    run_round(ref, true);
}

void crew_reference_run(struct crew_reference *ref, uint64_t until_step)
{
    while (ref->step < until_step) {
        if (ref->step == ref->job->nan_step) crew_reference_skip(ref);
        run_round(ref, false);
    }
}

void crew_reference_at(const struct crew_job *job, uint64_t step, char hex_out[65])
{
    struct crew_reference ref;
    crew_reference_open(&ref, job, (struct crew_mesh) { 0 });
    crew_reference_run(&ref, step);
    crew_reference_root(&ref, hex_out);
    crew_reference_close(&ref);
}

void crew_reference_root(const struct crew_reference *ref, char hex_out[65])
{
    struct plane_digest planes[CREW_TENSORS_MAX * CAIRN_PLANE_COUNT];
    struct group_digest groups[CREW_GROUPS];
    struct group_spec schedules[CREW_GROUPS];
    uint8_t hash[32];
    size_t count = 0;
    for (int t = 0; t < ref->job->tensor_count; t++)
        count += reference_digest(&ref->tensor[t], &planes[count]);
    for (int g = 0; g < CREW_GROUPS; g++) {
        groups[g] = (struct group_digest) { crew_groups[g].name, reference_hyper(&crew_groups[g]) };
        schedules[g] = client_group_of(&crew_groups[g]);
    }
    const struct job_spec_data spec = { .groups = schedules, .group_count = CREW_GROUPS };
    reference_must(spec_schedules_hash(&spec, hash), "schedules_hash");
    struct content content = { .step = ref->step,
                               .groups = groups,
                               .group_count = CREW_GROUPS,
                               .schedule = hash,
                               .schedule_bytes = sizeof hash,
                               .loss_scale = ref->loss_scale };
    reference_root(planes, count, &content, hex_out);
}
