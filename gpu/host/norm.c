/* Sums of squares: by leaf over a fixed tree of lanes, then exactly. */
#include <assert.h>

#include "gpu/host/host.h"

#define LANES ((size_t)32)

CAIRN_CLONES static uint64_t count_nonfinite(const float *g, size_t elems)
{
    uint32_t count = 0; // a leaf is small
    for (size_t i = 0; i < elems; i++) {
        count += (cairn_f32_bits(g[i]) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
    }
    return count;
}

/* Element i to lane i mod 32, in order; then lane k += lane k + w, w = 16, 8, 4, 2, 1. A square is
 * exact in double (48 bits), a multiple of 2^-298, and so is every rounded sum of them. */
CAIRN_CLONES static double sum_leaf(const float *restrict g, size_t elems)
{
    double lane[LANES] = { 0 };
    size_t whole = elems - elems % LANES;
    for (size_t i = 0; i < whole; i += LANES) {
        for (size_t k = 0; k < LANES; k++) lane[k] += (double)g[i + k] * (double)g[i + k];
    }
    for (size_t i = whole; i < elems; i++) lane[i - whole] += (double)g[i] * (double)g[i];
    for (size_t w = LANES / 2; w > 0; w /= 2) {
        for (size_t k = 0; k < w; k++) lane[k] += lane[k + w];
    }
    return lane[0];
}

void cairn_host_sum_leaves(const float *acc, const struct cairn_geometry *geometry,
                           uint64_t first_leaf, uint64_t leaf_count, struct cairn_sums *sums)
{
    assert(leaf_count <= geometry->leaf_count && first_leaf <= geometry->leaf_count - leaf_count);
    uint64_t start = cairn_leaf_first_elem(geometry, first_leaf), origin = start;
    for (uint64_t leaf = first_leaf; leaf < first_leaf + leaf_count; leaf++) {
        uint64_t end = cairn_leaf_first_elem(geometry, leaf + 1);
        const float *g = acc + (start - origin);
        uint64_t nonfinite = count_nonfinite(g, (size_t)(end - start));
        sums->nonfinite += nonfinite;
        if (nonfinite == 0) {
            double sum = sum_leaf(g, (size_t)(end - start));
            cairn_status status = cairn_exact_add_double(&sums->sum_squares, sum);
            assert(status == CAIRN_OK); // 2^74 of the largest leaves fit
            (void)status;
        }
        start = end;
    }
}
