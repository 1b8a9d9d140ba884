/* Sums of squares: by leaf over a fixed tree of lanes, then exactly. */
#ifndef CAIRN_GPU_HOST_ISA_NORM_H
#define CAIRN_GPU_HOST_ISA_NORM_H

#include <assert.h>

#include "gpu/host/isa/vector.h"

#define LANES        ((size_t)32)
#define LANE_VECTORS (LANES / HALF_ELEMS)

/* The lanes of one leaf's sum: the square of element i is added to lane i mod 32, in order of i. A
 * square is exact in double (48 bits) and a multiple of 2^-298, and so is every rounded sum of
 * squares. */
struct lanes {
    f64_lanes of[LANE_VECTORS]; /* lane k is element k mod HALF_ELEMS of vector k / HALF_ELEMS */
};

static inline void add_square(f64_lanes *lanes, f32_half x)
{
    const f64_lanes wide = to_double(x);
    *lanes += wide * wide;
}

static uint64_t count_nonfinite(const float *g, size_t elems)
{
    uint32_t count = 0; // a leaf is small
    for (size_t i = 0; i < elems; i++) count += is_nonfinite(g[i]) ? 1u : 0u;
    return count;
}

/* Ends a leaf: the squares of its last elements, less than a round of lanes, then lane k += lane k + w for
 * w = 16, 8, 4, 2, 1. The squares of finite fp32 numbers cannot overflow, so the sum is infinite or NaN
 * exactly if an element is: `leaf` is looked through only then. */
static void add_leaf(const struct lanes *lanes, const float *leaf, size_t elems,
                     struct cairn_sums *sums)
{
    double lane[LANES];
    memcpy(lane, lanes->of, sizeof lane);
    for (size_t i = elems - elems % LANES; i < elems; i++)
        lane[i % LANES] += (double)leaf[i] * (double)leaf[i];
    for (size_t w = LANES / 2; w > 0; w /= 2)
        for (size_t k = 0; k < w; k++) lane[k] += lane[k + w];
    if ((cairn_f64_bits(lane[0]) >> 52 & 0x7ff) == 0x7ff) {
        sums->nonfinite += count_nonfinite(leaf, elems);
        return;
    }
    cairn_status status = cairn_exact_add_double(&sums->sum_squares, lane[0]);
    assert(status == CAIRN_OK); // 2^74 of the largest leaves fit
    (void)status;
}

static void sum_leaf(const float *leaf, size_t elems, struct cairn_sums *sums)
{
    struct lanes lanes = { 0 };
    for (size_t i = 0; i + LANES <= elems; i += LANES) {
        prefetch_step(leaf + i, sizeof *leaf, AHEAD_BYTES_FAR);
#pragma GCC unroll 16
        for (size_t k = 0; k < LANE_VECTORS; k++) {
            f32_half x;
            memcpy(&x, leaf + i + k * HALF_ELEMS, sizeof x);
            add_square(&lanes.of[k], x);
        }
    }
    add_leaf(&lanes, leaf, elems, sums);
}

static void sum_leaves(const float *acc, const struct cairn_geometry *geometry, uint64_t first_leaf,
                       uint64_t leaf_count, struct cairn_sums *sums)
{
    assert(leaf_count <= geometry->leaf_count && first_leaf <= geometry->leaf_count - leaf_count);
    uint64_t start = cairn_leaf_first_elem(geometry, first_leaf), origin = start;
    for (uint64_t leaf = first_leaf; leaf < first_leaf + leaf_count; leaf++) {
        const uint64_t end = cairn_leaf_first_elem(geometry, leaf + 1);
        sum_leaf(acc + (start - origin), (size_t)(end - start), sums);
        start = end;
    }
}

#endif
