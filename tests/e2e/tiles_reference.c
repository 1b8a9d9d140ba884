#include "tests/e2e/tiles_reference.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"

static struct group_hyper hyper_of(int tensor)
{
    const struct cairn_group *g = tiles_groups;
    while (strcmp(g->name, tiles_tensors[tensor].group) != 0) g++;
    return reference_hyper(g);
}

void tiles_reference_open(struct tiles_reference *ref, struct tiles_mesh mesh)
{
    memset(ref, 0, sizeof *ref);
    ref->mesh = mesh;
    for (int t = 0; t < TILES_TENSORS; t++) {
        const struct tiles_tensor *tensor = &tiles_tensors[t];
        float *param = reference_zeros(tiles_elems(t));
        for (uint64_t i = 0; i < tiles_elems(t); i++) param[i] = tiles_initial(t, i);
        reference_open(&ref->tensor[t], tensor->name, &tensor->shape, tensor->wire, param);
        if (tensor->group == NULL) continue;
        const struct group_hyper hyper = hyper_of(t);
        reference_train(&ref->tensor[t], &hyper, 0);
    }
}

void tiles_reference_close(struct tiles_reference *ref)
{
    for (int t = 0; t < TILES_TENSORS; t++) reference_close(&ref->tensor[t]);
}

/* Adds the gradient of one micro-batch of what the rank holds to sum: [elements of the box]. */
static void add_micro(const struct tiles_reference *ref, int t, uint32_t rank, uint32_t micro,
                      const struct cairn_box *box, float *sum, bool first)
{
    const uint64_t elems = tiles_box_elems(box);
    const size_t wire_bytes = dtype_size((int)tiles_tensors[t].wire);
    uint8_t *wire = reference_zeros(elems), *pushed = reference_zeros(elems);
    float *gradient = reference_zeros(elems);
    for (uint64_t k = 0; k < elems; k++)
        memcpy(wire + k * wire_bytes,
               (uint8_t *)ref->tensor[t].wire + tiles_index(t, box, k) * wire_bytes, wire_bytes);
    tiles_gradient(ref->step, rank, micro, t, box, wire, pushed);
    backend_host()->convert(gradient, CAIRN_F32, pushed, tiles_push_dtype(rank, t), elems);
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
    float *part = reference_zeros(elems), *sum = ref->tensor[t].sum;
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

static void sum_tensor(struct tiles_reference *ref, int t, struct sums *sums)
{
    const uint32_t world = ref->mesh.tp * ref->mesh.dp;
    const uint32_t together = tiles_adds_up(ref->mesh) ? TILES_MICROS_MAX : 1;
    uint8_t *seen = reference_zeros(tiles_elems(t));
    memset(ref->tensor[t].sum, 0, tiles_elems(t) * sizeof(float));
    for (uint32_t micro = 0; micro < TILES_MICROS_MAX; micro += together)
        for (uint32_t rank = 0; rank < world; rank++)
            fold(ref, t, rank, micro, micro + together, seen);
    reference_measure(&ref->tensor[t], sums);
    free(seen);
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
        struct sums sums = { .nonfinite = 0 };
        struct update_norm norm;
        uint64_t weight = 0;
        for (uint32_t r = 0; r < ref->mesh.tp * ref->mesh.dp; r++) weight += weight_of(ref, r);
        for (int t = 0; t < TILES_TENSORS; t++)
            if (tiles_tensors[t].group != NULL) sum_tensor(ref, t, &sums);
        ck_assert_int_eq(
            update_norm_of(&sums.sum_squares, weight, TILES_LOSS_SCALE, TILES_CLIP_NORM, &norm),
            CAIRN_OK);
        for (int t = 0; t < TILES_TENSORS; t++)
            if (tiles_tensors[t].group != NULL) {
                const struct group_hyper hyper = hyper_of(t);
                reference_update(&ref->tensor[t], &hyper, ref->step + 1, norm.grad_scale);
            }
    }
}

const void *tiles_reference_plane(const struct tiles_reference *ref, int tensor, int plane)
{
    return plane == CAIRN_PLANE_WIRE ? ref->tensor[tensor].wire : ref->tensor[tensor].plane[plane];
}
