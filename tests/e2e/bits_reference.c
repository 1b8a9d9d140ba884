#include "tests/e2e/bits_reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/spec.h"
#include "gpu/gpu.h"

/* Not Check's: --print-root runs outside of it. */
static void must(bool holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "the reference fails: %s\n", what);
    abort();
}

static int group_of(int tensor)
{
    for (int g = 0; g < BITS_GROUPS; g++)
        if (strcmp(bits_groups[g].name, bits_tensors[tensor].group) == 0) return g;
    must(false, bits_tensors[tensor].group);
    return -1;
}

static struct cairn_group_hyper hyper_of(int group)
{
    const struct cairn_group *g = &bits_groups[group];
    const bool sgd = strcmp(g->optimizer, "sgd") == 0;
    return (struct cairn_group_hyper) {
        .optimizer = cairn_optimizer_by_name(g->optimizer)->id,
        .lr = g->lr,
        .beta1 = sgd ? 0 : g->beta1,
        .beta2 = sgd ? 0 : g->beta2,
        .eps = sgd ? 0 : g->eps,
        .weight_decay = g->weight_decay,
        .momentum = sgd ? g->momentum : 0,
        .nesterov = g->nesterov ? 1 : 0,
    };
}

static void *zeros(uint64_t elems)
{
    void *memory = calloc(elems + 1, sizeof(float));
    must(memory != NULL, "memory");
    return memory;
}

static uint32_t planes_of(int tensor)
{
    if (bits_tensors[tensor].group == NULL) return 0;
    const struct cairn_group_hyper hyper = hyper_of(group_of(tensor));
    return cairn_optimizer_planes(&hyper);
}

void bits_reference_open(struct bits_reference *ref)
{
    memset(ref, 0, sizeof *ref);
    ref->loss_scale = BITS_LOSS_SCALE;
    for (int t = 0; t < BITS_TENSORS; t++) {
        const uint64_t elems = bits_elems(t);
        float *param = zeros(elems);
        for (uint64_t i = 0; i < elems; i++) param[i] = bits_initial(t, i);
        ref->tensor[t].plane[CAIRN_PLANE_PARAM] = param;
        ref->tensor[t].wire = zeros(elems);
        ref->tensor[t].sum = zeros(elems);
        for (int p = CAIRN_PLANE_EXP_AVG; p < CAIRN_PLANE_COUNT; p++)
            if (planes_of(t) & (1u << p)) ref->tensor[t].plane[p] = zeros(elems);
        cairn_backend_host()->convert(ref->tensor[t].wire, bits_tensors[t].wire, param, CAIRN_F32,
                                      elems);
    }
}

void bits_reference_close(struct bits_reference *ref)
{
    for (int t = 0; t < BITS_TENSORS; t++) {
        for (int p = 0; p < CAIRN_PLANE_COUNT; p++) free(ref->tensor[t].plane[p]);
        free(ref->tensor[t].wire);
        free(ref->tensor[t].sum);
    }
}

/* Adds one contribution to the tensor's sum. */
static void fold(struct bits_reference *ref, int t, uint32_t rank, uint32_t micro, bool with_nan,
                 bool first)
{
    const uint64_t elems = bits_elems(t);
    void *gradient = zeros(elems);
    bits_gradient(ref->step, rank, micro, t, ref->loss_scale, with_nan, ref->tensor[t].wire,
                  gradient);
    const struct cairn_source source = { gradient, bits_push_dtype(rank, t) };
    cairn_backend_host()->fold(ref->tensor[t].sum, &source, 1, first, elems);
    free(gradient);
}

/* The strict left fold in (micro-batch, rank) order. */
static void sum_tensor(struct bits_reference *ref, int t, bool with_nan, struct cairn_sums *sums)
{
    const struct cairn_geometry geometry = cairn_geometry_of(&bits_tensors[t].shape);
    bool first = true;
    memset(ref->tensor[t].sum, 0, geometry.elems * sizeof(float));
    for (uint32_t micro = 0; micro < 3; micro++) {
        for (uint32_t rank = 0; rank < BITS_WORKERS; rank++) {
            if (micro >= bits_micros(ref->step, rank)) continue;
            if (!bits_touches(ref->step, rank, micro, t)) continue;
            fold(ref, t, rank, micro, with_nan && rank == 1 && micro == 0 && t == 0, first);
            first = false;
        }
    }
    cairn_backend_host()->sum_leaves(ref->tensor[t].sum, &geometry, 0, geometry.leaf_count, sums);
}

static void update_tensor(struct bits_reference *ref, int t, uint32_t grad_scale)
{
    const struct cairn_group_spec group = cairn_client_group_of(&bits_groups[group_of(t)]);
    struct cairn_group_hyper hyper = hyper_of(group_of(t));
    struct cairn_group_scalars scalars;
    hyper.lr = cairn_schedule_lr(&group.schedule, hyper.lr, ref->step);
    must(cairn_group_scalars_of(&hyper, ref->step + 1, grad_scale, &scalars) == CAIRN_OK,
         "group_scalars_of");
    const struct cairn_update update = {
        .grad = ref->tensor[t].sum,
        .param = ref->tensor[t].plane[CAIRN_PLANE_PARAM],
        .exp_avg = ref->tensor[t].plane[CAIRN_PLANE_EXP_AVG],
        .exp_avg_sq = ref->tensor[t].plane[CAIRN_PLANE_EXP_AVG_SQ],
        .wire = ref->tensor[t].wire,
        .wire_dtype = bits_tensors[t].wire,
        .elems = bits_elems(t),
    };
    cairn_backend_host()->update[hyper.optimizer](&update, &scalars);
}

static void run_round(struct bits_reference *ref, bool with_nan)
{
    struct cairn_sums sums = { .nonfinite = 0 };
    struct cairn_update_norm norm;
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
    must(cairn_update_norm_of(&sums.sum_squares, weight, ref->loss_scale, BITS_CLIP_NORM, &norm) ==
             CAIRN_OK,
         "the norm");
    if (norm.clip_scale < 1) ref->clipped++;
    for (int t = 0; t < BITS_TENSORS; t++)
        if (bits_tensors[t].group != NULL) update_tensor(ref, t, norm.grad_scale);
    ref->step++;
}

void bits_reference_run(struct bits_reference *ref, uint64_t until_step)
{
    while (ref->step < until_step) {
        if (ref->step == BITS_NAN_STEP) run_round(ref, true);
        run_round(ref, false);
    }
}

/* ---- the content root ---- */

static void digest_plane(const struct bits_reference *ref, int t, int plane,
                         struct cairn_plane_digest *out)
{
    const struct bits_tensor *tensor = &bits_tensors[t];
    const struct cairn_geometry geometry = cairn_geometry_of(&tensor->shape);
    struct cairn_tree tree;
    struct cairn_hash root;
    cairn_tree_init(&tree, 0);
    cairn_backend_host()->hash_leaves(ref->tensor[t].plane[plane], CAIRN_F32, &geometry,
                                      geometry.leaf_count, &tree);
    must(cairn_tree_root(&tree, geometry.leaf_count, &root) == CAIRN_OK, "tree_root");
    out->tensor = tensor->name;
    out->plane = (enum cairn_plane)plane;
    cairn_plane_root(tensor->name, out->plane, CAIRN_F32, &tensor->shape, geometry.leaf_count,
                     &root, &out->root);
}

void bits_reference_root(const struct bits_reference *ref, char hex_out[65])
{
    struct cairn_plane_digest planes[BITS_TENSORS * CAIRN_PLANE_COUNT];
    struct cairn_group_digest groups[BITS_GROUPS];
    size_t count = 0;
    for (int t = 0; t < BITS_TENSORS; t++)
        for (int p = 1; p < CAIRN_PLANE_COUNT; p++)
            if (ref->tensor[t].plane[p] != NULL && bits_elems(t) > 0)
                digest_plane(ref, t, p, &planes[count++]);
    struct cairn_group_spec schedules[BITS_GROUPS];
    uint8_t hash[32];
    for (int g = 0; g < BITS_GROUPS; g++) {
        groups[g] = (struct cairn_group_digest) { bits_groups[g].name, hyper_of(g) };
        schedules[g] = cairn_client_group_of(&bits_groups[g]);
    }
    const struct cairn_job_spec_data spec = { .groups = schedules, .group_count = BITS_GROUPS };
    must(cairn_spec_schedules_hash(&spec, hash), "schedules_hash");
    struct cairn_content content = { .step = ref->step,
                                     .groups = groups,
                                     .group_count = BITS_GROUPS,
                                     .schedule = hash,
                                     .schedule_bytes = sizeof hash,
                                     .loss_scale = ref->loss_scale };
    cairn_bytes_hash("", 0, &content.client_state);
    struct cairn_hash root;
    must(cairn_content_root(planes, count, &content, &root) == CAIRN_OK, "content_root");
    for (int i = 0; i < CAIRN_HASH_BYTES; i++) snprintf(hex_out + 2 * i, 3, "%02x", root.byte[i]);
}
