/* The strict left fold of contributions in the order of gpu/host/isa/fold.h, without sums. */
#ifndef CAIRN_GPU_KERNEL_FOLD_H
#define CAIRN_GPU_KERNEL_FOLD_H

#include "gpu/kernel/memory.h"

#define FOLD_ROWS 4

/* The sources and the sums of a fold, from some element of the item on. */
struct fold_of {
    uint64_t acc, sources;
    uint32_t source_count;
    bool first;
};

KERNEL_FN struct kernel_source fold_source(const struct fold_of *f, uint32_t source)
{
    return *MEMORY_AT(const struct kernel_source,
                      f->sources + source * sizeof(struct kernel_source));
}

/* x = x + y; `copies`: x = y, as adding to 0 would lose -0. */
KERNEL_FN void fold_add(struct four *x, const struct four *y, int rows, bool copies)
{
    KERNEL_UNROLL
    for (int r = 0; r < rows; r++) {
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) x[r].of[c] = copies ? y[r].of[c] : x[r].of[c] + y[r].of[c];
    }
}

/* x = x + a, and + b if there are `both`; bf16 that is whole. All rows are in flight before the first is
 * added. */
KERNEL_FN void fold_halves(struct four *x, int rows, uint64_t a, uint64_t b, bool both,
                           uint64_t elem, uint64_t apart, bool copies)
{
    struct u16x4 of_a[ROWS_MAX], of_b[ROWS_MAX];
    struct four y[ROWS_MAX];
    load_halves(of_a, rows, a, elem, apart);
    if (both) load_halves(of_b, rows, b, elem, apart);
    widen_halves(y, of_a, rows);
    fold_add(x, y, rows, copies);
    if (!both) return;
    widen_halves(y, of_b, rows);
    fold_add(x, y, rows, false);
}

/* The source is bf16 of which each row is read by one access. */
KERNEL_FN bool fold_is_whole(const struct kernel_source *source, uint64_t elem)
{
    return source->dtype == CAIRN_BF16 && bf16_rows_are_whole(source->data, elem);
}

/* acc + s0 + s1 + ... of a lane's rows, at most ROWS_MAX, in registers: acc goes through memory once. skip:
 * elements of the sources before those of acc's first one. */
KERNEL_FN void fold_rows(struct four *x, int rows, const struct fold_of *f, uint64_t skip,
                         uint64_t elem, uint64_t apart)
{
    const uint64_t from = skip + elem;
    KERNEL_UNROLL
    for (int r = 0; r < rows; r++) {
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) x[r].of[c] = 0;
    }
    if (!f->first) load_rows(x, rows, f->acc, CAIRN_F32, elem, apart);
    for (uint32_t i = 0; i < f->source_count;) {
        const struct kernel_source a = fold_source(f, i);
        const struct kernel_source b = fold_source(f, i + 1 < f->source_count ? i + 1 : i);
        const bool copies = f->first && i == 0;
        if (!fold_is_whole(&a, from)) {
            struct four y[ROWS_MAX];
            load_rows(y, rows, a.data, a.dtype, from, apart);
            fold_add(x, y, rows, copies);
            i++;
        } else if (i + 1 < f->source_count && fold_is_whole(&b, from)) {
            fold_halves(x, rows, a.data, b.data, true, from, apart, copies);
            i += 2;
        } else {
            fold_halves(x, rows, a.data, a.data, false, from, apart, copies);
            i++;
        }
    }
}

KERNEL_FN float fold_one(const struct fold_of *f, uint64_t skip, uint64_t elem)
{
    float x = f->first ? 0 : load_f32(f->acc, elem);
    for (uint32_t i = 0; i < f->source_count; i++) {
        const struct kernel_source source = fold_source(f, i);
        const float y = load_one(source.data, source.dtype, skip + elem);
        x = f->first && i == 0 ? y : x + y;
    }
    return x;
}

KERNEL_FN void fold_piece(const struct fold_item *item, uint64_t piece)
{
    const struct fold_of f = { item->acc, item->sources, item->source_count, item->first != 0 };
    const uint64_t from = piece * CAIRN_PIECE_ELEMS,
                   end = least(from + CAIRN_PIECE_ELEMS, item->elems);
    if (f.source_count == 0 && !f.first) return;
    EACH_LANE(lane)
    {
        uint64_t i = from + 4 * lane;
        for (; rows_fit(i, FOLD_ROWS, WARP_ELEMS, end); i += FOLD_ROWS * WARP_ELEMS) {
            struct four x[FOLD_ROWS];
            fold_rows(x, FOLD_ROWS, &f, 0, i, WARP_ELEMS);
            store_rows(x, FOLD_ROWS, f.acc, CAIRN_F32, i, WARP_ELEMS);
        }
        for (; i < end; i += WARP_ELEMS)
            for (uint64_t k = i; k < least(i + 4, end); k++)
                store_f32(f.acc, k, fold_one(&f, 0, k));
    }
}

#endif
