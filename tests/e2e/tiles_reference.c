#include "tests/e2e/tiles_reference.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"

static struct cairn_group_hyper hyper_of(int tensor)
{
    const struct cairn_group *g = tiles_groups;
    while (strcmp(g->name, tiles_tensors[tensor].group) != 0) g++;
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
    ck_assert_ptr_nonnull(memory);
    return memory;
}

void tiles_reference_open(struct tiles_reference *ref, struct tiles_mesh mesh)
{
    memset(ref, 0, sizeof *ref);
    ref->mesh = mesh;
    for (int t = 0; t < TILES_TENSORS; t++) {
        const uint64_t elems = tiles_elems(t);
        float *param = ref->tensor[t].plane[CAIRN_PLANE_PARAM] = zeros(elems);
        ref->tensor[t].wire = zeros(elems);
        ref->tensor[t].sum = zeros(elems);
        for (uint64_t i = 0; i < elems; i++) param[i] = tiles_initial(t, i);
        cairn_backend_host()->convert(ref->tensor[t].wire, tiles_tensors[t].wire, param, CAIRN_F32,
                                      elems);
        if (tiles_tensors[t].group == NULL) continue;
        const struct cairn_group_hyper hyper = hyper_of(t);
        const uint32_t planes = cairn_optimizer_planes(&hyper);
        for (int p = CAIRN_PLANE_EXP_AVG; p < CAIRN_PLANE_COUNT; p++)
            if (planes & (1u << p)) ref->tensor[t].plane[p] = zeros(elems);
    }
}

void tiles_reference_close(struct tiles_reference *ref)
{
    for (int t = 0; t < TILES_TENSORS; t++) {
        for (int p = 0; p < CAIRN_PLANE_COUNT; p++) free(ref->tensor[t].plane[p]);
        free(ref->tensor[t].wire);
        free(ref->tensor[t].sum);
    }
}

/* Adds the gradient of one micro-batch of what the rank holds to sum: [elements of the box]. */
static void add_micro(const struct tiles_reference *ref, int t, uint32_t rank, uint32_t micro,
                      const struct cairn_box *box, float *sum, bool first)
{
    const uint64_t elems = tiles_box_elems(box);
    const size_t wire_bytes = cairn_dtype_bytes((int)tiles_tensors[t].wire);
    uint8_t *wire = zeros(elems), *pushed = zeros(elems);
    float *gradient = zeros(elems);
    for (uint64_t k = 0; k < elems; k++)
        memcpy(wire + k * wire_bytes,
               (uint8_t *)ref->tensor[t].wire + tiles_index(t, box, k) * wire_bytes, wire_bytes);
    tiles_gradient(ref->step, rank, micro, t, box, wire, pushed);
    cairn_backend_host()->convert(gradient, CAIRN_F32, pushed, tiles_push_dtype(rank, t), elems);
    for (uint64_t k = 0; k < elems; k++) sum[k] = first ? gradient[k] : sum[k] + gradient[k];
    free(wire);
    free(pushed);
    free(gradient);
}

/* Folds what one rank has of the micro-batches [first, end). seen: [elems] 1 = it has a contribution. */
static void fold(struct tiles_reference *ref, int t, uint32_t rank, uint32_t first, uint32_t end,
                 uint8_t *seen)
{
    const struct cairn_box box = tiles_box(ref->mesh, t, rank);
    const uint64_t elems = tiles_box_elems(&box);
    float *part = zeros(elems), *sum = ref->tensor[t].sum;
    bool any = false;
    for (uint32_t micro = first; micro < end && micro < tiles_micros(ref->step, rank); micro++) {
        if (!tiles_touches(ref->mesh, ref->step, rank, micro, t)) continue;
        add_micro(ref, t, rank, micro, &box, part, !any);
        any = true;
    }
    for (uint64_t k = 0; any && k < elems; k++) {
        const uint64_t i = tiles_index(t, &box, k);
        sum[i] = seen[i] ? sum[i] + part[k] : part[k];
        seen[i] = 1;
    }
    free(part);
}

static void sum_tensor(struct tiles_reference *ref, int t, struct cairn_sums *sums)
{
    const struct cairn_geometry geometry = cairn_geometry_of(&tiles_tensors[t].shape);
    const uint32_t world = ref->mesh.tp * ref->mesh.dp;
    const uint32_t together = tiles_adds_up(ref->mesh) ? TILES_MICROS_MAX : 1;
    uint8_t *seen = zeros(geometry.elems);
    memset(ref->tensor[t].sum, 0, geometry.elems * sizeof(float));
    for (uint32_t micro = 0; micro < TILES_MICROS_MAX; micro += together)
        for (uint32_t rank = 0; rank < world; rank++)
            fold(ref, t, rank, micro, micro + together, seen);
    cairn_backend_host()->sum_leaves(ref->tensor[t].sum, &geometry, 0, geometry.leaf_count, sums);
    free(seen);
}

static void update_tensor(struct tiles_reference *ref, int t, uint32_t grad_scale)
{
    const struct cairn_group_hyper hyper = hyper_of(t);
    struct cairn_group_scalars scalars;
    ck_assert_int_eq(cairn_group_scalars_of(&hyper, ref->step + 1, grad_scale, &scalars), CAIRN_OK);
    const struct cairn_update update = {
        .grad = ref->tensor[t].sum,
        .param = ref->tensor[t].plane[CAIRN_PLANE_PARAM],
        .exp_avg = ref->tensor[t].plane[CAIRN_PLANE_EXP_AVG],
        .exp_avg_sq = ref->tensor[t].plane[CAIRN_PLANE_EXP_AVG_SQ],
        .wire = ref->tensor[t].wire,
        .wire_dtype = tiles_tensors[t].wire,
        .elems = tiles_elems(t),
    };
    cairn_backend_host()->update[hyper.optimizer](&update, &scalars);
}

static uint64_t weight_of(const struct tiles_reference *ref, uint32_t rank)
{
    const uint64_t weight = tiles_weight(ref->mesh, ref->step, rank);
    if (weight == CAIRN_WEIGHT_NONE) return 0;
    return weight != 0 ? weight : tiles_micros(ref->step, rank);
}

void tiles_reference_run(struct tiles_reference *ref, uint64_t until_step)
{
    for (; ref->step < until_step; ref->step++) {
        struct cairn_sums sums = { .nonfinite = 0 };
        struct cairn_update_norm norm;
        uint64_t weight = 0;
        for (uint32_t r = 0; r < ref->mesh.tp * ref->mesh.dp; r++) weight += weight_of(ref, r);
        for (int t = 0; t < TILES_TENSORS; t++)
            if (tiles_tensors[t].group != NULL) sum_tensor(ref, t, &sums);
        ck_assert_int_eq(cairn_update_norm_of(&sums.sum_squares, weight, TILES_LOSS_SCALE,
                                              TILES_CLIP_NORM, &norm),
                         CAIRN_OK);
        for (int t = 0; t < TILES_TENSORS; t++)
            if (tiles_tensors[t].group != NULL) update_tensor(ref, t, norm.grad_scale);
    }
}

const void *tiles_reference_plane(const struct tiles_reference *ref, int tensor, int plane)
{
    return plane == CAIRN_PLANE_WIRE ? ref->tensor[tensor].wire : ref->tensor[tensor].plane[plane];
}
