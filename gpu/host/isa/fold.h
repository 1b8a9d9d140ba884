/* The strict left fold of contributions into the fp32 accumulator, and the sums of its leaves on the way.
 *
 * Sources are taken two at a time, in registers, a block (a leaf) after the other; so acc goes through memory
 * once however many sources there are, and not at all a second time for the sums. */
#ifndef CAIRN_GPU_HOST_ISA_FOLD_H
#define CAIRN_GPU_HOST_ISA_FOLD_H

#include <assert.h>

#include "gpu/host/isa/vector.h"

/* ==== norm ==== */

/* Sums of squares: by leaf over a fixed tree of lanes, then exactly. */

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
static void add_leaf(const struct lanes *lanes, const float *leaf, size_t elems, struct sums *sums)
{
    double lane[LANES];
    memcpy(lane, lanes->of, sizeof lane);
    for (size_t i = elems - elems % LANES; i < elems; i++)
        lane[i % LANES] += (double)leaf[i] * (double)leaf[i];
    for (size_t w = LANES / 2; w > 0; w /= 2)
        for (size_t k = 0; k < w; k++) lane[k] += lane[k + w];
    if ((f64_bits(lane[0]) >> 52 & 0x7ff) == 0x7ff) {
        sums->nonfinite += count_nonfinite(leaf, elems);
        return;
    }
    cairn_status status = exact_add_double(&sums->sum_squares, lane[0]);
    assert(status == CAIRN_OK); // 2^74 of the largest leaves fit
    (void)status;
}

static void sum_leaf(const float *leaf, size_t elems, struct sums *sums)
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

static void sum_leaves(const float *acc, const struct geometry *geometry, uint64_t first_leaf,
                       uint64_t leaf_count, struct sums *sums)
{
    assert(leaf_count <= geometry->leaf_count && first_leaf <= geometry->leaf_count - leaf_count);
    uint64_t start = leaf_start(geometry, first_leaf), origin = start;
    for (uint64_t leaf = first_leaf; leaf < first_leaf + leaf_count; leaf++) {
        const uint64_t end = leaf_start(geometry, leaf + 1);
        sum_leaf(acc + (start - origin), (size_t)(end - start), sums);
        start = end;
    }
}

/* ==== fold ==== */

/* A pass over a block: acc = (acc + a) + b. */
struct fold_pass {
    float *acc;
    const char *a, *b; /* b NULL: a alone */
    bool first;        /* acc = a + b: a is copied, not added to 0, which would lose -0 */
    bool sums;         /* the block is a leaf, and this its last pass */
    bool around;       /* acc is written around the cache */
};

static inline __attribute__((always_inline)) f32_half load_half(const char *source,
                                                                size_t bytes_per_elem, size_t i)
{
    f32_half x;
    if (bytes_per_elem == 2) return widen_half((const uint16_t *)(const void *)source + i);
    memcpy(&x, source + i * sizeof(float), sizeof x);
    return x;
}

static inline __attribute__((always_inline)) float load_one(const char *source,
                                                            size_t bytes_per_elem, size_t i)
{
    uint16_t half;
    float x;
    if (bytes_per_elem == 4) {
        memcpy(&x, source + i * sizeof x, sizeof x);
        return x;
    }
    memcpy(&half, source + i * sizeof half, sizeof half);
    return f32_from_bits((uint32_t)half << 16);
}

/* Everything but `elems` is known when it is compiled. */
static inline __attribute__((always_inline)) void fold_block(float *acc, const char *a,
                                                             const char *b, size_t bytes_per_elem,
                                                             bool first, bool sums, bool around,
                                                             size_t elems, struct lanes *lanes_out)
{
    struct lanes lanes = { 0 };
    size_t i = 0;
    for (; i + STEP_ELEMS <= elems; i += STEP_ELEMS) {
        prefetch_step(a + i * bytes_per_elem, bytes_per_elem, AHEAD_BYTES_FAR);
        if (b != NULL) prefetch_step(b + i * bytes_per_elem, bytes_per_elem, AHEAD_BYTES_FAR);
        if (!around) prefetch_step(acc + i, sizeof *acc, AHEAD_BYTES_FAR);
#pragma GCC unroll 16
        for (size_t k = 0; k < STEP_ELEMS / HALF_ELEMS; k++) {
            const size_t at = i + k * HALF_ELEMS;
            f32_half x = load_half(a, bytes_per_elem, at), before;
            memcpy(&before, acc + at, sizeof before);
            if (!first) x = before + x;
            if (b != NULL) x += load_half(b, bytes_per_elem, at);
            if (around)
                stream_half(acc + at, x);
            else
                memcpy(acc + at, &x, sizeof x);
            if (sums) add_square(&lanes.of[k], x);
        }
    }
    for (; i < elems; i++) {
        float x = load_one(a, bytes_per_elem, i);
        if (!first) x = acc[i] + x;
        acc[i] = b != NULL ? x + load_one(b, bytes_per_elem, i) : x;
    }
    if (sums) *lanes_out = lanes;
}

static inline __attribute__((always_inline)) void
fold_of_size(const struct fold_pass *p, size_t bytes_per_elem, size_t elems, struct lanes *lanes)
{
    const size_t n = bytes_per_elem;
    if (p->b != NULL && p->first && p->sums && p->around)
        fold_block(p->acc, p->a, p->b, n, true, true, true, elems, lanes);
    else if (p->b != NULL && p->first && p->sums)
        fold_block(p->acc, p->a, p->b, n, true, true, false, elems, lanes);
    else if (p->b != NULL && p->first)
        fold_block(p->acc, p->a, p->b, n, true, false, false, elems, lanes);
    else if (p->b != NULL && p->sums)
        fold_block(p->acc, p->a, p->b, n, false, true, false, elems, lanes);
    else if (p->b != NULL)
        fold_block(p->acc, p->a, p->b, n, false, false, false, elems, lanes);
    else if (p->first && p->sums && p->around)
        fold_block(p->acc, p->a, NULL, n, true, true, true, elems, lanes);
    else if (p->first && p->sums)
        fold_block(p->acc, p->a, NULL, n, true, true, false, elems, lanes);
    else if (p->first)
        fold_block(p->acc, p->a, NULL, n, true, false, false, elems, lanes);
    else if (p->sums)
        fold_block(p->acc, p->a, NULL, n, false, true, false, elems, lanes);
    else
        fold_block(p->acc, p->a, NULL, n, false, false, false, elems, lanes);
}

static void fold_f32(const struct fold_pass *pass, size_t elems, struct lanes *lanes)
{
    fold_of_size(pass, sizeof(float), elems, lanes);
}

static void fold_bf16(const struct fold_pass *pass, size_t elems, struct lanes *lanes)
{
    fold_of_size(pass, sizeof(uint16_t), elems, lanes);
}

static const char *source_at(const struct fold_source *source, size_t elem)
{
    assert(wire_dtype_ok((int)source->dtype));
    return (const char *)source->data + elem * dtype_size((int)source->dtype);
}

/* All sources into one block that begins at their element `start`. lanes NULL: no sums. */
static void fold_sources(float *acc, const struct fold_source *sources, size_t count, bool first,
                         size_t start, size_t elems, bool around, struct lanes *lanes)
{
    for (size_t i = 0; i < count;) {
        const struct fold_source *a = &sources[i];
        const struct fold_source *b = i + 1 < count && a[1].dtype == a->dtype ? a + 1 : NULL;
        const size_t taken = b != NULL ? 2 : 1;
        const struct fold_pass pass = {
            .acc = acc,
            .a = source_at(a, start),
            .b = b != NULL ? source_at(b, start) : NULL,
            .first = first && i == 0,
            .sums = lanes != NULL && i + taken == count,
            .around = around && taken == count,
        };
        if (a->dtype == CAIRN_F32)
            fold_f32(&pass, elems, lanes);
        else
            fold_bf16(&pass, elems, lanes);
        i += taken;
    }
}

static void fold(float *acc, const struct fold_source *sources, size_t source_count, bool first,
                 size_t elems)
{
    if (source_count == 0) {
        if (first && elems != 0) memset(acc, 0, elems * sizeof *acc);
        return;
    }
    for (size_t start = 0; start < elems; start += CAIRN_LEAF_ELEMS) {
        const size_t left = elems - start;
        const size_t block = left < CAIRN_LEAF_ELEMS ? left : CAIRN_LEAF_ELEMS;
        fold_sources(acc + start, sources, source_count, first, start, block, false, NULL);
    }
}

static void fold_leaves(const struct leaf_fold *f)
{
    const struct geometry *geometry = f->geometry;
    assert(f->source_count > 0);
    assert(f->leaf_count <= geometry->leaf_count &&
           f->first_leaf <= geometry->leaf_count - f->leaf_count);
    const uint64_t origin = leaf_start(geometry, f->first_leaf);
    uint64_t start = origin;
    for (uint64_t leaf = f->first_leaf; leaf < f->first_leaf + f->leaf_count; leaf++) {
        const uint64_t end = leaf_start(geometry, leaf + 1);
        const size_t elems = (size_t)(end - start);
        float *acc = f->acc + (start - origin);
        struct lanes lanes;
        fold_sources(acc, f->sources, f->source_count, f->first, (size_t)(start - origin), elems,
                     f->far && is_aligned(acc), &lanes);
        add_leaf(&lanes, acc, elems, f->sums);
        start = end;
    }
    if (f->far) stream_end();
}

#endif
