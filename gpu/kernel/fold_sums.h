/* The fold of whole leaves with their sums of squares, in the order of gpu/host/isa/fold.h: the square of
 * element i is added to sum i mod 32, in order; then sum k += sum k + w for w = 16, 8, 4, 2, 1.
 *
 * A warp does four leaves at once, eight lanes each: a lane has the sums 4 * (lane mod 8) and the three
 * behind it, so it reads 16 bytes at a time, eight lanes read a line, and sums never change hands before
 * the tree. */
#ifndef CAIRN_GPU_KERNEL_FOLD_SUMS_H
#define CAIRN_GPU_KERNEL_FOLD_SUMS_H

#include "gpu/kernel/fold.h"
#include "gpu/kernel/lanes.h"

#define LEAF_LANES (CAIRN_KERNEL_WARP / (uint32_t)CAIRN_PIECE_LEAVES)
#define LEAF_APART ((uint64_t)32) /* elements from one of a sum to the next */
#define LEAF_ROWS \
    8 /* the sums leave room for fewer warps than fold has, so each reads more at a time */

/* leaf_start */
KERNEL_FN uint64_t leaf_first_elem(const struct kernel_geometry *g, uint64_t leaf)
{
    const uint64_t quantum = leaf / g->leaves_per_quantum, within = leaf % g->leaves_per_quantum;
    return least(quantum * g->quantum_elems + within * CAIRN_LEAF_ELEMS, g->elems);
}

/* One leaf of an item: its first element, counted from the item's first element, and its elements.
 * A leaf that the item does not have is empty. */
struct leaf_run {
    uint64_t begin, elems;
};

KERNEL_FN struct leaf_run leaf_of_item(const struct kernel_geometry *g, uint64_t first_leaf,
                                       uint64_t leaf_count, uint64_t n)
{
    struct leaf_run run = { 0, 0 };
    if (n >= leaf_count) return run;
    const uint64_t begin = leaf_first_elem(g, first_leaf + n);
    run.begin = begin - leaf_first_elem(g, first_leaf);
    run.elems = leaf_first_elem(g, first_leaf + n + 1) - begin;
    return run;
}

KERNEL_FN double square(float x)
{
    return (double)x * (double)x; // exact
}

/* A lane's share of a leaf; f: of the leaf's own elements in acc, `skip` elements into the sources. */
KERNEL_FN void fold_leaf(const struct fold_of *f, struct leaf_run leaf, uint32_t eighth,
                         double *sum)
{
    uint64_t i = 4 * eighth;
    for (; rows_fit(i, LEAF_ROWS, LEAF_APART, leaf.elems); i += LEAF_ROWS * LEAF_APART) {
        struct four x[LEAF_ROWS];
        fold_rows(x, LEAF_ROWS, f, leaf.begin, i, LEAF_APART);
        if (f->source_count != 0) store_rows(x, LEAF_ROWS, f->acc, CAIRN_F32, i, LEAF_APART);
        KERNEL_UNROLL
        for (int r = 0; r < LEAF_ROWS; r++) {
            KERNEL_UNROLL
            for (int c = 0; c < 4; c++) sum[c] += square(x[r].of[c]);
        }
    }
    for (; i < leaf.elems; i += LEAF_APART) {
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) {
            if (i + (uint64_t)c >= leaf.elems) continue;
            const float x = fold_one(f, leaf.begin, i + (uint64_t)c);
            if (f->source_count != 0) store_f32(f->acc, i + (uint64_t)c, x);
            sum[c] += square(x);
        }
    }
}

/* Sums 4 * eighth + c in sum[c]; the leaf's is in sum[0] of its eight lanes. */
KERNEL_FN void leaf_tree(double sum[4][LANES_HERE])
{
    for (uint32_t w = 16; w >= 4; w /= 2) {
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) lanes_add_f64(sum[c], w / 4);
    }
    EACH_LANE(lane)
    {
        sum[0][LANE(lane)] += sum[2][LANE(lane)];
        sum[1][LANE(lane)] += sum[3][LANE(lane)];
        sum[0][LANE(lane)] += sum[1][LANE(lane)];
    }
    lanes_spread_f64(sum[0], LEAF_LANES);
}

KERNEL_FN bool f64_is_finite(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits >> 52 & 0x7ff) != 0x7ff;
}

/* Counts the non-finite elements of a lane's share of the leaf. It reads them once more, but only
 * where the leaf's sum says that there is one. */
KERNEL_FN uint32_t leaf_nonfinite(uint64_t acc, uint64_t elems, uint32_t eighth)
{
    uint32_t count = 0;
    for (uint64_t i = 4 * eighth; i < elems; i += LEAF_APART)
        for (uint64_t k = i; k < least(i + 4, elems); k++)
            count += f32_is_finite(load_f32(acc, k)) ? 0 : 1;
    return count;
}

KERNEL_FN void fold_sums_piece(const struct fold_sums_item *item, uint64_t piece)
{
    double sum[4][LANES_HERE];
    LANE_ARRAY(uint32_t, nonfinite);
    LANE_ARRAY(struct leaf_run, leaf);
    EACH_LANE(lane)
    {
        const struct leaf_run run = leaf_of_item(&item->geometry, item->first_leaf,
                                                 item->leaf_count,
                                                 piece * CAIRN_PIECE_LEAVES + lane / LEAF_LANES);
        const struct fold_of f = { item->acc + 4 * run.begin, item->sources, item->source_count,
                                   item->source_count != 0 && item->first != 0 };
        double own[4] = { 0, 0, 0, 0 };
        fold_leaf(&f, run, lane % LEAF_LANES, own);
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) sum[c][LANE(lane)] = own[c];
        leaf[LANE(lane)] = run;
    }
    leaf_tree(sum);
    EACH_LANE(lane)
    {
        const struct leaf_run run = leaf[LANE(lane)];
        nonfinite[LANE(lane)] = f64_is_finite(sum[0][LANE(lane)])
                                    ? 0
                                    : leaf_nonfinite(item->acc + 4 * run.begin, run.elems,
                                                     lane % LEAF_LANES);
    }
    for (uint32_t w = LEAF_LANES / 2; w >= 1; w /= 2) lanes_add_u32(nonfinite, w);
    EACH_LANE(lane)
    {
        const uint64_t n = piece * CAIRN_PIECE_LEAVES + lane / LEAF_LANES;
        if (lane % LEAF_LANES == 0 && n < item->leaf_count) {
            const uint32_t count = nonfinite[LANE(lane)];
            *MEMORY_AT(double, item->squares + 8 * n) = count != 0 ? 0 : sum[0][LANE(lane)];
            *MEMORY_AT(uint32_t, item->nonfinite + 4 * n) = count;
        }
    }
}

#endif
