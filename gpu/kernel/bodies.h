/* The bodies of all kernels. In <name>_body(list, warp, warps) a warp processes the pieces warp, warp +
 * warps, ... of the list. Only the files that define the kernels include this header: gpu/cuda/kernels.cu
 * and tests/gpu/kernels/host.c. */
#ifndef CAIRN_GPU_KERNEL_BODIES_H
#define CAIRN_GPU_KERNEL_BODIES_H

#include "gpu/blake2b.h"
#include "gpu/kernel/kernel.h"

/* ==== copies ==== */

/* Copies bytes, writes zeros, and converts elements from one dtype to another. */

#define COPY_ROWS    4 /* accesses in flight */
#define CONVERT_ROWS 8

/* The part of a lane in a copy, in units of `type`. Both `to` and `from` have the alignment of `type`. */
#define COPY_UNITS(type)                                                                          \
    for (uint64_t i = lane; i < bytes / sizeof(type); i += COPY_ROWS * CAIRN_KERNEL_WARP) {       \
        type x[COPY_ROWS];                                                                        \
        KERNEL_UNROLL                                                                             \
        for (uint32_t r = 0; r < COPY_ROWS; r++) {                                                \
            const uint64_t k = i + r * CAIRN_KERNEL_WARP;                                         \
            if (k < bytes / sizeof(type)) x[r] = *MEMORY_AT(const type, from + k * sizeof(type)); \
        }                                                                                         \
        KERNEL_UNROLL                                                                             \
        for (uint32_t r = 0; r < COPY_ROWS; r++) {                                                \
            const uint64_t k = i + r * CAIRN_KERNEL_WARP;                                         \
            if (k < bytes / sizeof(type)) *MEMORY_AT(type, to + k * sizeof(type)) = x[r];         \
        }                                                                                         \
    }

/* Returns the widest unit for a copy: the widest to which both `to` and `from` are aligned when enough of
 * the first bytes are copied. */
KERNEL_FN uint64_t copy_unit(uint64_t to, uint64_t from)
{
    const uint64_t apart = (to ^ from) | 16;
    return apart & (~apart + 1);
}

KERNEL_FN void copy_single(uint64_t to, uint64_t from, uint64_t bytes,
                           uint32_t lane) { COPY_UNITS(uint8_t) }

KERNEL_FN void copy_bytes(uint64_t to, uint64_t from, uint64_t bytes, uint32_t lane)
{
    const uint64_t unit = copy_unit(to, from), head = least((~to + 1) % unit, bytes);
    copy_single(to, from, head, lane);
    to += head;
    from += head;
    bytes -= head;
    const uint64_t whole = bytes - bytes % unit;
    if (unit == 16) {
        COPY_UNITS(struct u64x2)
    } else if (unit == 8) {
        COPY_UNITS(uint64_t)
    } else if (unit == 4) {
        COPY_UNITS(uint32_t)
    } else if (unit == 2) {
        COPY_UNITS(uint16_t)
    } else {
        COPY_UNITS(uint8_t)
    }
    copy_single(to + whole, from + whole, bytes - whole, lane);
}

KERNEL_FN void copy_piece(const struct copy_item *item, uint64_t piece)
{
    const uint64_t parts = pieces_of(item->run_bytes, CAIRN_PIECE_BYTES);
    const uint64_t run = piece / parts, begin = piece % parts * CAIRN_PIECE_BYTES;
    const uint64_t bytes = least(item->run_bytes - begin, CAIRN_PIECE_BYTES);
    EACH_LANE(lane)
    {
        copy_bytes(item->to + run * item->to_stride + begin,
                   item->from + run * item->from_stride + begin, bytes, lane);
    }
}

KERNEL_FN void zero_piece(const struct zero_item *item, uint64_t piece)
{
    const uint64_t begin = piece * CAIRN_PIECE_BYTES, at = item->at + begin;
    const uint64_t bytes = least(item->bytes - begin, CAIRN_PIECE_BYTES);
    const uint64_t head = least((~at + 1) % 16, bytes), units = (bytes - head) / 16;
    EACH_LANE(lane)
    {
        const struct u64x2 none = { { 0, 0 } };
        for (uint64_t i = lane; i < head; i += CAIRN_KERNEL_WARP) *MEMORY_AT(uint8_t, at + i) = 0;
        for (uint64_t i = lane; i < units; i += CAIRN_KERNEL_WARP)
            *MEMORY_AT(struct u64x2, at + head + 16 * i) = none;
        for (uint64_t i = head + 16 * units + lane; i < bytes; i += CAIRN_KERNEL_WARP)
            *MEMORY_AT(uint8_t, at + i) = 0;
    }
}

/* ---- elements ---- */

KERNEL_FN uint64_t bytes_of_dtype(uint64_t dtype)
{
    switch (dtype) {
    case CAIRN_F64: return 8;
    case CAIRN_F32: return 4;
    case CAIRN_BF16:
    case CAIRN_F16: return 2;
    default: return 1;
    }
}

KERNEL_FN void convert_piece(const struct convert_item *item, uint64_t piece)
{
    const uint64_t from = piece * CAIRN_PIECE_ELEMS,
                   end = least(from + CAIRN_PIECE_ELEMS, item->elems);
    const uint64_t width = bytes_of_dtype(item->src_dtype);
    EACH_LANE(lane)
    {
        if (item->src_dtype == item->dst_dtype) {
            copy_bytes(item->dst + from * width, item->src + from * width, (end - from) * width,
                       lane);
        } else {
            uint64_t i = from + 4 * lane;
            for (; rows_fit(i, CONVERT_ROWS, WARP_ELEMS, end); i += CONVERT_ROWS * WARP_ELEMS) {
                struct four x[CONVERT_ROWS];
                load_rows(x, CONVERT_ROWS, item->src, item->src_dtype, i, WARP_ELEMS);
                store_rows(x, CONVERT_ROWS, item->dst, item->dst_dtype, i, WARP_ELEMS);
            }
            for (; i < end; i += WARP_ELEMS)
                for (uint64_t k = i; k < least(i + 4, end); k++)
                    store_one(item->dst, item->dst_dtype, k,
                              load_one(item->src, item->src_dtype, k));
        }
    }
}

/* ==== folds ==== */

/* The strict left fold of contributions, in the order of gpu/host/isa/table.c, without the sums. */

#define FOLD_ROWS 4

/* A fold: its sources, and the address of an element of its accumulator. */
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

/* Computes x = x + y; with `copies`, x = y. (0 + y would lose the sign of a -0 in y.) */
KERNEL_FN void fold_add(struct four *x, const struct four *y, int rows, bool copies)
{
    KERNEL_UNROLL
    for (int r = 0; r < rows; r++) {
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) x[r].of[c] = copies ? y[r].of[c] : x[r].of[c] + y[r].of[c];
    }
}

/* Computes x = x + a; with `both`, x = x + a + b. The rows are bf16, and bf16_rows_are_whole. All loads are
 * in flight before the first row is added. */
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

/* True if the source is bf16, and one access can read each group of four. */
KERNEL_FN bool fold_is_whole(const struct kernel_source *source, uint64_t elem)
{
    return source->dtype == CAIRN_BF16 && bf16_rows_are_whole(source->data, elem);
}

/* Computes acc + s0 + s1 + ... for the rows of a lane, at most ROWS_MAX, in registers, so that acc is
 * loaded and stored only once. `skip` source elements come before the element that belongs to acc's first
 * element. */
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

/* ==== folds with sums ==== */

/* The fold of complete leaves, with their sums of squares. A leaf has 32 sums. In the order of
 * gpu/host/isa/table.c the square of element i is added to sum i mod 32; then sum k + w is added to sum k,
 * for w = 16, 8, 4, 2, 1.
 *
 * A warp processes four leaves at a time, with eight lanes for each. A lane has four sums of its leaf, from
 * number 4 * (lane mod 8) on. So a lane reads 16 bytes at a time, eight lanes read a cache line, and each
 * sum stays in its lane until the tree adds the sums. */

#define LEAF_LANES (CAIRN_KERNEL_WARP / (uint32_t)CAIRN_PIECE_LEAVES)
#define LEAF_APART ((uint64_t)32) /* the distance between the elements of one sum */
#define LEAF_ROWS \
    8 /* the sums' registers leave fewer warps than in fold, so each warp reads more at a time */

/* Returns the first element of a leaf, as leaf_start of proto/geometry does. */
KERNEL_FN uint64_t leaf_first_elem(const struct kernel_geometry *g, uint64_t leaf)
{
    const uint64_t quantum = leaf / g->leaves_per_quantum, within = leaf % g->leaves_per_quantum;
    return least(quantum * g->quantum_elems + within * CAIRN_LEAF_ELEMS, g->elems);
}

/* One leaf of an item. `begin` is the leaf's first element, counted from the item's first element. A leaf
 * beyond the end of the item is empty. */
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

/* Folds a lane's share of a leaf. f->acc is the address of the leaf's first element; the addresses of the
 * sources are those of the item's first element. */
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

/* Adds the 32 sums of each leaf. Before, sum[c] of lane number `eighth` in a leaf's eight lanes is the
 * leaf's sum number 4 * eighth + c. Afterwards sum[0] of all eight lanes is the sum of the leaf. */
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

/* Counts the elements of a lane's share of the leaf that are not finite. This reads the elements again, so
 * it is called only if the sum of the leaf shows that there are any. */
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

/* ==== updates ==== */

/* The optimizers, in the order of operations that the comments of gpu/host/isa/table.c give. They also
 * write the copy to publish, and count the elements with results that are not finite. Every operation
 * rounds once. */

#define UPDATE_ROWS 2

/* The rule of an update. It is a compile-time constant, and so are the planes that it uses. */
enum update_rule { RULE_ADAMW, RULE_ADAM, RULE_SGD_PLAIN, RULE_SGD_MOMENTUM };

struct update_constants {
    float grad_scale, decay, one_minus_b1, b2, one_minus_b2, sqrt_bc2, eps, neg_step_size, momentum;
    float ema_weight;
    bool decays, first_step, nesterov;
};

/* The values of one element. p, m, v and e (the parameter, the moments and the average) are updated; g is the
 * gradient. */
struct update_elem {
    float p, m, v, g, e;
};

KERNEL_FN struct update_constants update_constants_of(const struct group_scalars *s)
{
    struct update_constants k;
    k.grad_scale = f32_of_bits(s->grad_scale);
    k.decay = f32_of_bits(s->decay);
    k.one_minus_b1 = f32_of_bits(s->one_minus_beta1);
    k.b2 = f32_of_bits(s->beta2);
    k.one_minus_b2 = f32_of_bits(s->one_minus_beta2);
    k.sqrt_bc2 = f32_of_bits(s->sqrt_bc2);
    k.eps = f32_of_bits(s->eps);
    k.neg_step_size = f32_of_bits(s->neg_step_size);
    k.momentum = f32_of_bits(s->momentum);
    k.ema_weight = f32_of_bits(s->ema_weight);
    k.decays = s->decay != 0;
    k.first_step = (s->flags & CAIRN_SCALAR_FIRST_STEP) != 0;
    k.nesterov = (s->flags & CAIRN_SCALAR_NESTEROV) != 0;
    return k;
}

/* The steps of Adam that follow when the gradient is scaled. If the rule decays parameters, p is already
 * decayed. */
KERNEL_FN void adam_step(struct update_elem *x, float p, float grad,
                         const struct update_constants *k)
{
    x->m = x->m + k->one_minus_b1 * (grad - x->m);
    x->v = x->v * k->b2 + (k->one_minus_b2 * grad) * grad;
    const float d = sqrtf(x->v) / k->sqrt_bc2 + k->eps;
    x->p = p + (k->neg_step_size * x->m) / d;
}

KERNEL_FN void update_one(struct update_elem *x, enum update_rule rule,
                          const struct update_constants *k)
{
    float grad = x->g * k->grad_scale;
    if (rule == RULE_ADAMW) {
        adam_step(x, x->p * k->decay, grad, k);
        return;
    }
    if (k->decays) grad = grad + k->decay * x->p;
    if (rule == RULE_ADAM) {
        adam_step(x, x->p, grad, k);
    } else if (rule == RULE_SGD_PLAIN) {
        x->p = x->p + k->neg_step_size * grad;
    } else {
        x->m = k->first_step ? grad : x->m * k->momentum + grad;
        x->p = x->p + k->neg_step_size * (k->nesterov ? grad + k->momentum * x->m : x->m);
    }
}

KERNEL_FN void update_average(struct update_elem *x, const struct update_constants *k)
{
    const float w = k->ema_weight;
    x->e = w >= 0.5f ? x->p - (x->p - x->e) * (1.0f - w) : x->e + w * (x->p - x->e);
}

KERNEL_FN bool update_has_m(enum update_rule rule)
{
    return rule != RULE_SGD_PLAIN;
}

KERNEL_FN bool update_has_v(enum update_rule rule)
{
    return rule == RULE_ADAMW || rule == RULE_ADAM;
}

/* True if all results of the element are finite. A moment that the optimizer does not keep is 0, as is an
 * average that there is not, and so finite. */
KERNEL_FN bool update_is_finite(const struct update_elem *x, bool narrows)
{
    if (narrows && (bf16_of_f32(x->p) & 0x7f80u) == 0x7f80u) return false;
    return f32_is_finite(x->p) && f32_is_finite(x->m) && f32_is_finite(x->v) && f32_is_finite(x->e);
}

/* Updates UPDATE_ROWS groups of four elements of a lane. Returns the number of elements with a result that
 * is not finite. */
KERNEL_FN uint32_t update_rows(const struct update_item *u, uint64_t i, enum update_rule rule,
                               bool has_e, const struct update_constants *k)
{
    const bool has_m = update_has_m(rule), has_v = update_has_v(rule);
    const bool narrows = u->wire != 0 && u->wire_dtype == CAIRN_BF16;
    struct four g[UPDATE_ROWS], p[UPDATE_ROWS], m[UPDATE_ROWS], v[UPDATE_ROWS], e[UPDATE_ROWS];
    uint32_t bad = 0;
    load_rows(g, UPDATE_ROWS, u->grad, CAIRN_F32, i, WARP_ELEMS);
    load_rows(p, UPDATE_ROWS, u->param, CAIRN_F32, i, WARP_ELEMS);
    if (has_m) load_rows(m, UPDATE_ROWS, u->exp_avg, CAIRN_F32, i, WARP_ELEMS);
    if (has_v) load_rows(v, UPDATE_ROWS, u->exp_avg_sq, CAIRN_F32, i, WARP_ELEMS);
    if (has_e) load_rows(e, UPDATE_ROWS, u->ema, CAIRN_F32, i, WARP_ELEMS);
    KERNEL_UNROLL
    for (int r = 0; r < UPDATE_ROWS; r++) {
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) {
            struct update_elem x = { p[r].of[c], has_m ? m[r].of[c] : 0, has_v ? v[r].of[c] : 0,
                                     g[r].of[c], has_e ? e[r].of[c] : 0 };
            update_one(&x, rule, k);
            if (has_e) update_average(&x, k);
            bad += update_is_finite(&x, narrows) ? 0 : 1;
            p[r].of[c] = x.p;
            m[r].of[c] = x.m;
            v[r].of[c] = x.v;
            e[r].of[c] = x.e;
        }
    }
    if (has_m) store_rows(m, UPDATE_ROWS, u->exp_avg, CAIRN_F32, i, WARP_ELEMS);
    if (has_v) store_rows(v, UPDATE_ROWS, u->exp_avg_sq, CAIRN_F32, i, WARP_ELEMS);
    if (has_e) store_rows(e, UPDATE_ROWS, u->ema, CAIRN_F32, i, WARP_ELEMS);
    store_rows(p, UPDATE_ROWS, u->param, CAIRN_F32, i, WARP_ELEMS);
    if (u->wire != 0) store_rows(p, UPDATE_ROWS, u->wire, u->wire_dtype, i, WARP_ELEMS);
    return bad;
}

KERNEL_FN uint32_t update_rest(const struct update_item *u, uint64_t i, enum update_rule rule,
                               bool has_e, const struct update_constants *k)
{
    const bool has_m = update_has_m(rule), has_v = update_has_v(rule);
    struct update_elem x = { load_f32(u->param, i), has_m ? load_f32(u->exp_avg, i) : 0,
                             has_v ? load_f32(u->exp_avg_sq, i) : 0, load_f32(u->grad, i),
                             has_e ? load_f32(u->ema, i) : 0 };
    update_one(&x, rule, k);
    if (has_e) update_average(&x, k);
    if (has_m) store_f32(u->exp_avg, i, x.m);
    if (has_v) store_f32(u->exp_avg_sq, i, x.v);
    if (has_e) store_f32(u->ema, i, x.e);
    store_f32(u->param, i, x.p);
    if (u->wire != 0) store_one(u->wire, u->wire_dtype, i, x.p);
    return update_is_finite(&x, u->wire != 0 && u->wire_dtype == CAIRN_BF16) ? 0 : 1;
}

KERNEL_FN void update_count(uint64_t at, uint32_t bad)
{
    if (bad == 0) return;
#ifdef __CUDACC__
    atomicAdd(MEMORY_AT(unsigned long long, at), (unsigned long long)bad);
#else
    __atomic_fetch_add(MEMORY_AT(uint64_t, at), bad, __ATOMIC_RELAXED);
#endif
}

KERNEL_FN void update_piece(const struct update_item *u, uint64_t piece, enum update_rule rule,
                            bool has_e)
{
    const struct update_constants k = update_constants_of(&u->scalars);
    const uint64_t from = piece * CAIRN_PIECE_ELEMS,
                   end = least(from + CAIRN_PIECE_ELEMS, u->elems);
    EACH_LANE(lane)
    {
        uint32_t bad = 0;
        uint64_t i = from + 4 * lane;
        for (; rows_fit(i, UPDATE_ROWS, WARP_ELEMS, end); i += UPDATE_ROWS * WARP_ELEMS)
            bad += update_rows(u, i, rule, has_e, &k);
        for (; i < end; i += WARP_ELEMS)
            for (uint64_t n = i; n < least(i + 4, end); n++)
                bad += update_rest(u, n, rule, has_e, &k);
        update_count(u->nonfinite, bad);
    }
}

/* The sgd of an item; has_e is a compile-time constant. */
KERNEL_FN void update_sgd_any(const struct update_item *item, uint64_t piece, bool has_e)
{
    if ((item->scalars.flags & CAIRN_SCALAR_MOMENTUM) != 0)
        update_piece(item, piece, RULE_SGD_MOMENTUM, has_e);
    else
        update_piece(item, piece, RULE_SGD_PLAIN, has_e);
}

KERNEL_FN void update_adamw_piece(const struct update_item *item, uint64_t piece)
{
    update_piece(item, piece, RULE_ADAMW, false);
}

KERNEL_FN void update_adam_piece(const struct update_item *item, uint64_t piece)
{
    update_piece(item, piece, RULE_ADAM, false);
}

KERNEL_FN void update_sgd_piece(const struct update_item *item, uint64_t piece)
{
    update_sgd_any(item, piece, false);
}

KERNEL_FN void update_adamw_ema_piece(const struct update_item *item, uint64_t piece)
{
    update_piece(item, piece, RULE_ADAMW, true);
}

KERNEL_FN void update_adam_ema_piece(const struct update_item *item, uint64_t piece)
{
    update_piece(item, piece, RULE_ADAM, true);
}

KERNEL_FN void update_sgd_ema_piece(const struct update_item *item, uint64_t piece)
{
    update_sgd_any(item, piece, true);
}

/* ==== hashes ==== */

/* Hashes of leaves. The hash is BLAKE2b-256 (RFC 7693) over 0x00 and the leaf's elements, with every NaN
 * replaced by the canonical NaN of its dtype. In a hash each block depends on the block before it, so a
 * lane hashes one leaf, and a warp has 32 independent hashes. */

/* ---- BLAKE2b ---- */

KERNEL_FN uint64_t rotate_right(uint64_t x, uint32_t bits)
{
    return x >> bits | x << (64 - bits);
}

KERNEL_FN void hash_mix(uint64_t *a, uint64_t *b, uint64_t *c, uint64_t *d, uint64_t x, uint64_t y)
{
    *a = *a + *b + x;
    *d = rotate_right(*d ^ *a, 32);
    *c = *c + *d;
    *b = rotate_right(*b ^ *c, 24);
    *a = *a + *b + y;
    *d = rotate_right(*d ^ *a, 16);
    *c = *c + *d;
    *b = rotate_right(*b ^ *c, 63);
}

/* One round: the columns, then the diagonals. The arguments are the order in which the round uses the words
 * of the message. */
#define HASH_ROUND(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
    hash_mix(&v[0], &v[4], &v[8], &v[12], word[a], word[b]);       \
    hash_mix(&v[1], &v[5], &v[9], &v[13], word[c], word[d]);       \
    hash_mix(&v[2], &v[6], &v[10], &v[14], word[e], word[f]);      \
    hash_mix(&v[3], &v[7], &v[11], &v[15], word[g], word[h]);      \
    hash_mix(&v[0], &v[5], &v[10], &v[15], word[i], word[j]);      \
    hash_mix(&v[1], &v[6], &v[11], &v[12], word[k], word[l]);      \
    hash_mix(&v[2], &v[7], &v[8], &v[13], word[m], word[n]);       \
    hash_mix(&v[3], &v[4], &v[9], &v[14], word[o], word[p]);

struct hash_iv {
    uint64_t of[8];
};

KERNEL_FN struct hash_iv hash_iv(void)
{
    const struct hash_iv iv = { BLAKE2B_IV };
    return iv;
}

/* Compresses a block. `bytes` is the length of the message up to the end of the block. */
KERNEL_FN void hash_block(uint64_t *state, const uint64_t *word, uint64_t bytes, bool last)
{
    const struct hash_iv iv = hash_iv();
    uint64_t v[16];
    KERNEL_UNROLL
    for (int i = 0; i < 8; i++) {
        v[i] = state[i];
        v[8 + i] = iv.of[i];
    }
    v[12] ^= bytes;
    if (last) v[14] = ~v[14];
    BLAKE2B_ROUNDS(HASH_ROUND)
    KERNEL_UNROLL
    for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[8 + i];
}

/* ---- elements, eight bytes of them at a time ---- */

KERNEL_FN uint64_t canonical_16(uint64_t word, uint64_t infinity, uint64_t nan)
{
    uint64_t out = 0;
    KERNEL_UNROLL
    for (int shift = 0; shift < 64; shift += 16) {
        const uint64_t u = word >> shift & 0xffff;
        out |= ((u & 0x7fff) > infinity ? nan : u) << shift;
    }
    return out;
}

KERNEL_FN uint64_t canonical_32(uint64_t word)
{
    uint64_t out = 0;
    KERNEL_UNROLL
    for (int shift = 0; shift < 64; shift += 32) {
        const uint64_t u = word >> shift & 0xffffffffu;
        out |= ((u & 0x7fffffffu) > 0x7f800000u ? (uint64_t)0x7fc00000u : u) << shift;
    }
    return out;
}

KERNEL_FN uint64_t canonical(uint64_t word, uint64_t dtype)
{
    switch (dtype) {
    case CAIRN_F32: return canonical_32(word);
    case CAIRN_BF16: return canonical_16(word, 0x7f80, 0x7fc0);
    case CAIRN_F16: return canonical_16(word, 0x7c00, 0x7e00);
    case CAIRN_F64:
        return (word & UINT64_MAX >> 1) > (uint64_t)0x7ff << 52 ? (uint64_t)0x7ff8 << 48 : word;
    default: return word;
    }
}

KERNEL_FN uint64_t load_element(uint64_t at, uint64_t width)
{
    switch (width) {
    case 8: return *MEMORY_AT(const uint64_t, at);
    case 4: return *MEMORY_AT(const uint32_t, at);
    case 2: return *MEMORY_AT(const uint16_t, at);
    default: return *MEMORY_AT(const uint8_t, at);
    }
}

/* Returns a word of up to `bytes` bytes, at most 8, of complete elements; the rest of the word is zero. */
KERNEL_FN_APART uint64_t load_word(uint64_t at, uint64_t bytes, uint64_t width)
{
    uint64_t word = 0;
    for (uint64_t k = 0; k < 8 && k < bytes; k += width)
        word |= load_element(at + k, width) << (8 * k);
    return word;
}

/* Loads a block of up to `bytes` bytes; the rest of the block is zero. */
KERNEL_FN void load_words(uint64_t *word, uint64_t at, uint64_t bytes, uint64_t width)
{
    if (bytes >= BLAKE2B_BLOCK && at % 16 == 0) {
        KERNEL_UNROLL
        for (int i = 0; i < BLAKE2B_WORDS / 2; i++) {
            const struct u64x2 pair = *MEMORY_AT(const struct u64x2, at + 16 * (uint64_t)i);
            word[2 * i] = pair.of[0];
            word[2 * i + 1] = pair.of[1];
        }
        return;
    }
    KERNEL_UNROLL
    for (uint64_t i = 0; i < BLAKE2B_WORDS; i++)
        word[i] = load_word(at + 8 * i, bytes > 8 * i ? bytes - 8 * i : 0, width);
}

/* Hashes a leaf. The message is the byte 0x00 and then the leaf, so its words are shifted by a byte against
 * the words of the leaf: the upper byte of each word of the leaf is carried into the next word of the
 * message. The first carry is the 0x00. */
KERNEL_FN void hash_leaf(uint64_t at, uint64_t elems, uint64_t dtype, uint64_t out)
{
    const uint64_t width = bytes_of_dtype(dtype), size = elems * width;
    const struct hash_iv iv = hash_iv();
    uint64_t state[8], carry = 0;
    KERNEL_UNROLL
    for (int i = 0; i < 8; i++) state[i] = iv.of[i];
    state[0] ^= BLAKE2B_256;
    for (uint64_t done = 0; done <= size; done += BLAKE2B_BLOCK) {
        uint64_t word[BLAKE2B_WORDS];
        load_words(word, at + done, done < size ? size - done : 0, width);
        KERNEL_UNROLL
        for (int i = 0; i < BLAKE2B_WORDS; i++) {
            const uint64_t own = canonical(word[i], dtype);
            word[i] = own << 8 | carry;
            carry = own >> 56;
        }
        const bool last = done + BLAKE2B_BLOCK > size;
        hash_block(state, word, last ? size + 1 : done + BLAKE2B_BLOCK, last);
    }
    KERNEL_UNROLL
    for (int i = 0; i < 4; i++) *MEMORY_AT(uint64_t, out + 8 * (uint64_t)i) = state[i];
}

KERNEL_FN void hash_piece(const struct hash_item *item, uint64_t piece)
{
    EACH_LANE(lane)
    {
        const uint64_t n = piece * CAIRN_PIECE_HASHES + lane;
        const struct leaf_run leaf = leaf_of_item(&item->geometry, item->first_leaf,
                                                  item->leaf_count, n);
        if (n < item->leaf_count)
            hash_leaf(item->plane + leaf.begin * bytes_of_dtype(item->dtype), leaf.elems,
                      item->dtype, item->hashes + 32 * n);
    }
}

/* ==== initial values ==== */

/* Computes the initial values of a tensor in the memory of the device, as in proto/spec/scalars.h. Each
 * lane computes one element at a time. */

/* Returns one initial value. The random words are computed anew for each element, because integer
 * operations are cheap beside the logarithm. */
KERNEL_FN float init_one(const struct init_source *source, uint64_t elem)
{
    uint32_t words[4];
    if (source->is_uniform == 0 && source->is_normal == 0) return (float)source->a;
    init_words(source, elem / 2, words);
    return init_random(source, words, elem);
}

KERNEL_FN void init_piece(const struct init_item *item, uint64_t piece)
{
    const uint64_t from = piece * CAIRN_PIECE_ELEMS,
                   end = least(from + CAIRN_PIECE_ELEMS, item->elems);
    EACH_LANE(lane)
    {
        for (uint64_t i = from + lane; i < end; i += CAIRN_KERNEL_WARP)
            store_f32(item->out, i, init_one(&item->source, item->first_elem + i));
    }
}

/* ==== lists ==== */

/* Returns the number of the last item that begins at the piece or before it. The lanes check 32 items at a
 * time. */
KERNEL_FN uint64_t item_of_piece(const struct kernel_list *list, uint64_t item_bytes,
                                 uint64_t piece)
{
    uint64_t from = 0, left = list->count;
    while (left > 1) {
        const uint64_t step = pieces_of(left, CAIRN_KERNEL_WARP);
        LANE_ARRAY(bool, begun);
        EACH_LANE(lane)
        {
            const uint64_t at = lane * step;
            begun[LANE(lane)] = at < left &&
                                *MEMORY_AT(const uint64_t,
                                           list->items + (from + at) * item_bytes) <= piece;
        }
        const uint64_t skipped = (lanes_count(begun) - 1) * step;
        from += skipped;
        left = least(left - skipped, step);
    }
    return from;
}

#define CAIRN_KERNEL_BODY(name, item_type, block, size)                                       \
    KERNEL_FN void name##_body(const struct kernel_list *list, uint64_t warp, uint64_t warps) \
    {                                                                                         \
        for (uint64_t piece = warp; piece < list->pieces; piece += warps) {                   \
            const uint64_t number = item_of_piece(list, sizeof(item_type), piece);            \
            const item_type item = *MEMORY_AT(const item_type,                                \
                                              list->items + number * sizeof(item_type));      \
            name##_piece(&item, piece - item.first_piece);                                    \
        }                                                                                     \
    }
CAIRN_KERNELS(CAIRN_KERNEL_BODY)
#undef CAIRN_KERNEL_BODY

#endif
