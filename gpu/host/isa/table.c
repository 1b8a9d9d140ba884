/* The kernels of one instruction set, as one table. This file is compiled once for each instruction set,
 * with the options that allow the set, and with two macros for the names (see CMakeLists.txt). */
#include "gpu/home_kind.h"
#include "gpu/host/isa/vector.h"
#include <assert.h>
#define XXH_INLINE_ALL /* compiled for this instruction set */
#include "proto/base/xxh.h"
#include "gpu/blake2b.h"

/* ==== norm ==== */

/* Sums of squares. The squares of a leaf are added in a fixed tree of lanes, and the sums of leaves are
 * added exactly. */

#define LANES        ((size_t)32)
#define LANE_VECTORS (LANES / HALF_ELEMS)

/* The lanes of the sum of one leaf. The square of element i is added to lane i mod 32, in the order of i. A
 * square is exact in double, because it has 48 bits. It is a multiple of 2^-298, and so is every rounded
 * sum of squares. */
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
    uint32_t count = 0; // enough, because a leaf is small
    for (size_t i = 0; i < elems; i++) count += is_nonfinite(g[i]) ? 1u : 0u;
    return count;
}

/* Ends a leaf. Adds the squares of its last elements, which are fewer than the lanes. Then adds lane k + w
 * to lane k, for w = 16, 8, 4, 2, 1. The squares of finite fp32 numbers cannot overflow, so the sum is
 * infinite or NaN exactly if an element is. Only then are the elements of `leaf` counted that are not
 * finite. */
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

/* The strict left fold of contributions into the fp32 accumulator. The same pass can make the sums of its
 * leaves.
 *
 * Sources are added two at a time, in registers, and block after block, where a block is a leaf. So acc is
 * loaded from memory and stored there only once, for any number of sources, and the sums need no second
 * pass over memory. */

/* A pass over a block: acc = (acc + a) + b. */
struct fold_pass {
    float *acc;
    const char *a, *b; /* b NULL: only a is added */
    bool first;        /* acc = a + b; a is not added to 0, because 0 + -0 would lose the sign */
    /* the pass also makes the sums: the block is a leaf, and this is its last pass */
    bool sums;
    bool around; /* stores to acc bypass the cache */
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

/* Runs a pass. All parameters except the pointers and `elems` are compile-time constants, and so is whether
 * b is NULL. */
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

/* Folds all sources into one block, which begins at element `start` of the sources. If `lanes` is NULL
 * there are no sums. */
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

/* ==== updates ==== */

/* The common part of the optimizers is the walk over a run of elements, one vector after the other. The
 * copy to publish is written while the new parameters are in registers or in the nearest cache. */

/* The scalars of a group; each is in every element of a vector. */
struct constants {
    f32_vector grad_scale, decay, one_minus_b1, b2, one_minus_b2, sqrt_bc2, eps, neg_step_size;
    f32_vector momentum, ema_weight, ema_rest;
    bool decays, first_step, nesterov, ema_is_near;
};

static inline struct constants constants_of(const struct group_scalars *s)
{
    const float ema_weight = f32_from_bits(s->ema_weight);
    return (struct constants) {
        .grad_scale = spread(s->grad_scale),
        .decay = spread(s->decay),
        .one_minus_b1 = spread(s->one_minus_beta1),
        .b2 = spread(s->beta2),
        .one_minus_b2 = spread(s->one_minus_beta2),
        .sqrt_bc2 = spread(s->sqrt_bc2),
        .eps = spread(s->eps),
        .neg_step_size = spread(s->neg_step_size),
        .momentum = spread(s->momentum),
        .ema_weight = spread(s->ema_weight),
        .ema_rest = spread(f32_bits(1.0f - ema_weight)),
        .decays = s->decay != 0,
        .first_step = (s->flags & CAIRN_SCALAR_FIRST_STEP) != 0,
        .nesterov = (s->flags & CAIRN_SCALAR_NESTEROV) != 0,
        .ema_is_near = ema_weight >= 0.5f,
    };
}

/* The average after an update, in the order of torch.lerp(e, p, w), which counts from the nearer end. Every
 * operation rounds once, and 1 - w is exact where it is used:
 *
 *   e = e + w * (p - e)          for w < 1/2
 *   e = p - (p - e) * (1 - w)    else: for w = 1 the parameter */
static inline f32_vector average(f32_vector e, f32_vector p, const struct constants *k)
{
    return k->ema_is_near ? p - (p - e) * k->ema_rest : e + k->ema_weight * (p - e);
}

/* The work of an optimizer on one vector. Returns the new parameters. Updates m and v in place, if the
 * optimizer keeps them. */
typedef f32_vector (*rule_fn)(f32_vector p, f32_vector *m, f32_vector *v, f32_vector g,
                              const struct constants *k);

static inline __attribute__((always_inline)) void
publish_vector(void *wire, cairn_dtype dtype, bool around, size_t i, f32_vector p)
{
    if (dtype == CAIRN_BF16) {
        const u16_vector half = narrow_vector(p);
        uint16_t *at = (uint16_t *)wire + i;
        if (around)
            stream_u16(at, half);
        else
            memcpy(at, &half, sizeof half);
    } else if (around) {
        stream_f32((float *)wire + i, p);
    } else {
        store_f32((float *)wire + i, p);
    }
}

/* Adds results to `seen`. It becomes NaN or infinite, and stays so, if a result is, or if a parameter is so
 * large that it may be infinite in bf16. Large finite numbers may also add up to infinity, so the caller
 * then counts exactly. If the first moment is not finite, the parameter is not, so m need not be added.
 * This costs two operations for a vector; more operations, as counting in each plane, would not overlap
 * with divisions and memory. */
static inline f32_vector add_results(f32_vector seen, f32_vector p, f32_vector v)
{
    return plus_twice(seen + v, p);
}

/* Counts the elements with a result that is not finite, which is what update_fn returns. */
static uint64_t count_results(const struct update *u)
{
    const bool narrows = u->wire != NULL && u->wire_dtype == CAIRN_BF16;
    uint64_t count = 0;
    for (size_t i = 0; i < u->elems; i++) {
        const bool any = is_nonfinite(u->param[i]) ||
                         (u->exp_avg != NULL && is_nonfinite(u->exp_avg[i])) ||
                         (u->exp_avg_sq != NULL && is_nonfinite(u->exp_avg_sq[i])) ||
                         (u->ema != NULL && is_nonfinite(u->ema[i])) ||
                         (narrows && (narrow_one(u->param[i]) & 0x7f80u) == 0x7f80u);
        count += any ? 1 : 0;
    }
    return count;
}

/* ---- old values ---- */

/* Stores a word after everything that the program has stored before, and before everything that it stores
 * later, as this thread sees it: only the compiler could exchange stores (struct update_undo). */
static inline void store_in_order(uint64_t *at, uint64_t value)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* Begins a run of `count` elements from i on: their old values are in the undo, and none has changed. The
 * count is a compile-time constant but for the last runs. */
static inline __attribute__((always_inline)) void
undo_begin(const struct update *u, struct update_undo *undo, size_t i, size_t count)
{
    const size_t bytes = count * sizeof(float);
    memcpy(undo->param, u->param + i, bytes);
    if (u->exp_avg != NULL) memcpy(undo->exp_avg, u->exp_avg + i, bytes);
    if (u->exp_avg_sq != NULL) memcpy(undo->exp_avg_sq, u->exp_avg_sq + i, bytes);
    if (u->ema != NULL) memcpy(undo->ema, u->ema + i, bytes);
    store_in_order(&undo->elems, count);
    store_in_order(&undo->progress, 2 * (u->undo_from + i) + 1);
}

static inline void undo_end(const struct update *u, struct update_undo *undo, size_t end)
{
    store_in_order(&undo->progress, 2 * (u->undo_from + end));
}

/* Updates the elements after the last complete step, at most a vector at a time. Returns `seen` with their
 * results added. */
static inline __attribute__((always_inline)) f32_vector update_rest(const struct update *u,
                                                                    size_t i, rule_fn rule,
                                                                    const struct constants *k,
                                                                    f32_vector seen)
{
    for (size_t n; i < u->elems; i += n) {
        f32_vector p = { 0 }, m = { 0 }, v = { 0 }, g = { 0 }, e = { 0 };
        n = u->elems - i < VECTOR_ELEMS ? u->elems - i : VECTOR_ELEMS;
        if (u->undo != NULL) undo_begin(u, u->undo, i, n);
        memcpy(&p, u->param + i, n * sizeof(float));
        memcpy(&g, u->grad + i, n * sizeof(float));
        if (u->exp_avg != NULL) memcpy(&m, u->exp_avg + i, n * sizeof(float));
        if (u->exp_avg_sq != NULL) memcpy(&v, u->exp_avg_sq + i, n * sizeof(float));
        if (u->ema != NULL) memcpy(&e, u->ema + i, n * sizeof(float));
        p = rule(p, &m, &v, g, k);
        if (u->ema != NULL) e = average(e, p, k);
        const f32_vector found = add_results(u->ema != NULL ? seen + e : seen, p, v);
        memcpy(&seen, &found, n * sizeof(float)); // the elements beyond n may be 0 / 0
        memcpy(u->param + i, &p, n * sizeof(float));
        if (u->exp_avg != NULL) memcpy(u->exp_avg + i, &m, n * sizeof(float));
        if (u->exp_avg_sq != NULL) memcpy(u->exp_avg_sq + i, &v, n * sizeof(float));
        if (u->ema != NULL) memcpy(u->ema + i, &e, n * sizeof(float));
        if (u->undo != NULL) undo_end(u, u->undo, i + n);
        if (u->wire == NULL) continue;
        convert((char *)u->wire + i * dtype_size((int)u->wire_dtype), u->wire_dtype, u->param + i,
                CAIRN_F32, n);
    }
    return seen;
}

/* has_m, has_v: whether the rule keeps the moments; has_e: whether there is an average. They are
 * compile-time constants, as the rule is. */
static inline __attribute__((always_inline)) f32_vector
update_steps(const struct update *u, const struct constants *k, rule_fn rule, bool has_m,
             bool has_v, bool has_e, cairn_dtype dtype, bool publishes, bool around)
{
    const size_t ahead = u->ahead_bytes != 0 ? u->ahead_bytes : AHEAD_BYTES;
    struct update_undo *const undo = u->undo;
    f32_vector seen = { 0 };
    size_t i = 0;
    for (; i + STEP_ELEMS <= u->elems; i += STEP_ELEMS) {
        prefetch_step(u->grad + i, sizeof(float), ahead);
        prefetch_step(u->param + i, sizeof(float), ahead);
        if (has_m) prefetch_step(u->exp_avg + i, sizeof(float), ahead);
        if (has_v) prefetch_step(u->exp_avg_sq + i, sizeof(float), ahead);
        if (has_e) prefetch_step(u->ema + i, sizeof(float), ahead);
        if (undo != NULL) undo_begin(u, undo, i, STEP_ELEMS);
#pragma GCC unroll 8
        for (size_t j = i; j < i + STEP_ELEMS; j += VECTOR_ELEMS) {
            f32_vector m = { 0 }, v = { 0 };
            if (has_m) m = load_f32(u->exp_avg + j);
            if (has_v) v = load_f32(u->exp_avg_sq + j);
            const f32_vector p = rule(load_f32(u->param + j), &m, &v, load_f32(u->grad + j), k);
            if (has_m) store_f32(u->exp_avg + j, m);
            if (has_v) store_f32(u->exp_avg_sq + j, v);
            store_f32(u->param + j, p);
            if (has_e) {
                const f32_vector e = average(load_f32(u->ema + j), p, k);
                store_f32(u->ema + j, e);
                seen += e;
            }
            if (publishes) publish_vector(u->wire, dtype, around, j, p);
            seen = add_results(seen, p, v);
        }
        if (undo != NULL) undo_end(u, undo, i + STEP_ELEMS);
    }
    return update_rest(u, i, rule, k, seen);
}

static inline __attribute__((always_inline)) f32_vector
update_published(const struct update *u, const struct constants *k, rule_fn rule, bool has_m,
                 bool has_v, bool has_e, bool around)
{
    if (u->wire == NULL)
        return update_steps(u, k, rule, has_m, has_v, has_e, CAIRN_F32, false, false);
    if (u->wire_dtype == CAIRN_BF16 && around)
        return update_steps(u, k, rule, has_m, has_v, has_e, CAIRN_BF16, true, true);
    if (u->wire_dtype == CAIRN_BF16)
        return update_steps(u, k, rule, has_m, has_v, has_e, CAIRN_BF16, true, false);
    return update_steps(u, k, rule, has_m, has_v, has_e, CAIRN_F32, true, around);
}

static inline __attribute__((always_inline)) uint64_t
update_run(const struct update *update, const struct group_scalars *scalars, rule_fn rule,
           bool has_m, bool has_v)
{
    struct update u = *update;
    if (!has_m) u.exp_avg = NULL; // a moment that this optimizer does not keep is not touched
    if (!has_v) u.exp_avg_sq = NULL;
    if (scalars->ema_weight == 0) u.ema = NULL;
    const struct constants k = constants_of(scalars);
    assert(u.wire == NULL || wire_dtype_ok((int)u.wire_dtype));
    assert((!has_m || u.exp_avg != NULL) && (!has_v || u.exp_avg_sq != NULL));
    assert(scalars->ema_weight == 0 || u.ema != NULL);
    const bool around = u.far && is_aligned(u.wire);
    const f32_vector seen = u.ema != NULL
                                ? update_published(&u, &k, rule, has_m, has_v, true, around)
                                : update_published(&u, &k, rule, has_m, has_v, false, around);
    if (around) stream_end();
    return is_finite(seen) ? 0 : count_results(&u);
}

/* ==== adam ==== */

/* Adam: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2015), with the weight decay in
 * the gradient (L2), in the order of torch.optim.Adam. p, m, v, g: [elems] f32; every operation rounds
 * once:
 *
 *   g' = g * grad_scale
 *   g' = g' + wd * p                          not if wd is 0, as -0 + 0 would lose a sign
 *   m  = m + (1 - b1) * (g' - m)
 *   v  = v * b2 + ((1 - b2) * g') * g'
 *   d  = sqrt(v) / sqrt(1 - b2^t) + eps
 *   p  = p + (-lr / (1 - b1^t) * m) / d */

static inline f32_vector adam_rule(f32_vector p, f32_vector *m, f32_vector *v, f32_vector g,
                                   const struct constants *k)
{
    f32_vector grad = g * k->grad_scale;
    if (k->decays) grad = grad + k->decay * p;
    *m = *m + k->one_minus_b1 * (grad - *m);
    *v = *v * k->b2 + (k->one_minus_b2 * grad) * grad;
    const f32_vector d = square_root(*v) / k->sqrt_bc2 + k->eps;
    return p + (k->neg_step_size * *m) / d;
}

static uint64_t adam(const struct update *update, const struct group_scalars *scalars)
{
    assert(scalars->optimizer == CAIRN_OPTIMIZER_ADAM);
    return update_run(update, scalars, adam_rule, true, true);
}

/* ==== adamw ==== */

/* AdamW: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), in the order of
 * torch.optim.AdamW. p, m, v, g: [elems] f32; every operation rounds once:
 *
 *   g' = g * grad_scale
 *   p  = p * (1 - lr * wd)
 *   m  = m + (1 - b1) * (g' - m)
 *   v  = v * b2 + ((1 - b2) * g') * g'
 *   d  = sqrt(v) / sqrt(1 - b2^t) + eps
 *   p  = p + (-lr / (1 - b1^t) * m) / d                                                            */

static inline f32_vector adamw_rule(f32_vector p, f32_vector *m, f32_vector *v, f32_vector g,
                                    const struct constants *k)
{
    const f32_vector grad = g * k->grad_scale;
    const f32_vector param = p * k->decay;
    *m = *m + k->one_minus_b1 * (grad - *m);
    *v = *v * k->b2 + (k->one_minus_b2 * grad) * grad;
    const f32_vector d = square_root(*v) / k->sqrt_bc2 + k->eps;
    return param + (k->neg_step_size * *m) / d;
}

static uint64_t adamw(const struct update *update, const struct group_scalars *scalars)
{
    assert(scalars->optimizer == CAIRN_OPTIMIZER_ADAMW);
    return update_run(update, scalars, adamw_rule, true, true);
}

/* ==== sgd ==== */

/* SGD with momentum, also Nesterov's: Sutskever et al., "On the importance of initialization and
 * momentum in deep learning" (2013), in the order and with the dampening 0 of torch.optim.SGD.
 * p, b, g: [elems] f32; every operation rounds once:
 *
 *   g' = g * grad_scale
 *   g' = g' + wd * p                          omitted if wd is 0
 *   b  = b * momentum + g'                    b = g' at the first step
 *   g' = b, or g' + momentum * b (Nesterov)   without momentum there is no b
 *   p  = p + -lr * g'                                                                              */

static inline f32_vector sgd_plain_rule(f32_vector p, f32_vector *b, f32_vector *unused,
                                        f32_vector g, const struct constants *k)
{
    (void)b;
    (void)unused;
    f32_vector grad = g * k->grad_scale;
    if (k->decays) grad = grad + k->decay * p;
    return p + k->neg_step_size * grad;
}

static inline f32_vector sgd_momentum_rule(f32_vector p, f32_vector *b, f32_vector *unused,
                                           f32_vector g, const struct constants *k)
{
    (void)unused;
    f32_vector grad = g * k->grad_scale;
    if (k->decays) grad = grad + k->decay * p;
    *b = k->first_step ? grad : *b * k->momentum + grad;
    return p + k->neg_step_size * (k->nesterov ? grad + k->momentum * *b : *b);
}

static uint64_t sgd(const struct update *update, const struct group_scalars *scalars)
{
    assert(scalars->optimizer == CAIRN_OPTIMIZER_SGD);
    if ((scalars->flags & CAIRN_SCALAR_MOMENTUM) != 0)
        return update_run(update, scalars, sgd_momentum_rule, true, false);
    return update_run(update, scalars, sgd_plain_rule, false, false);
}

/* ==== hashes ==== */

/* Hashes of leaves: BLAKE2b-256 (RFC 7693, 3.2) over 0x00 and the leaf's elements. As many leaves are
 * hashed at a time as a vector has 64-bit lanes. Each block of a hash depends on the block before it, so
 * all lanes hash a block at the same time. A lane whose leaf ends takes the next leaf, so leaves may have
 * any lengths.
 *
 * The vector operations limit the speed: a mix takes 14 of them, or 16 with AVX2, and a block takes 96
 * mixes. So vectors do nothing else. While a block is mixed, the words of the next block are copied one by
 * one into rows; a row has the same word of every lane. The additions read the words from memory, so that
 * registers hold only the state.
 *
 * The 0x00 shifts the message by a byte against the leaf. So block b has the bytes [128 b - 1, 128 b + 127)
 * of the leaf. They are read in place, but the first and the last block are put together in a buffer of the
 * lane. A leaf with a NaN is hashed from a copy with canonical NaNs (host_canonical). Without AVX2 there
 * would be only two lanes; then libsodium is faster, and is used. */

#if !defined(__AVX2__)

static void hash_each(const void *plane, cairn_dtype dtype, const struct geometry *geometry,
                      uint64_t first_leaf, uint64_t leaf_count, struct hash *hashes_out)
{
    host_hash_each(plane, dtype, geometry, first_leaf, leaf_count, hashes_out);
}

#else

#define HASH_LANES ((size_t)VECTOR_BYTES / sizeof(uint64_t))
#define HASH_BLOCK ((size_t)BLAKE2B_BLOCK)

typedef uint64_t u64_lanes __attribute__((vector_size(VECTOR_BYTES)));

/* For each word of a block, the word of every lane. */
typedef uint64_t hash_words[BLAKE2B_WORDS][HASH_LANES] __attribute__((aligned(VECTOR_BYTES)));

/* Rotates each lane to the right by a number of bits that is a compile-time constant. */
#if defined(__AVX512F__)
#define ROTATE_RIGHT(x, bits) ((u64_lanes)_mm512_ror_epi64((__m512i)(x), (bits)))
#else
/* A rotation by whole bytes is a shuffle. */
static inline u64_lanes rotate_bytes(u64_lanes x, int bytes)
{
    const __m256i by_2 = _mm256_setr_epi8(2, 3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13, 14, 15, 8, 9, 2,
                                          3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13, 14, 15, 8, 9);
    const __m256i by_3 = _mm256_setr_epi8(3, 4, 5, 6, 7, 0, 1, 2, 11, 12, 13, 14, 15, 8, 9, 10, 3,
                                          4, 5, 6, 7, 0, 1, 2, 11, 12, 13, 14, 15, 8, 9, 10);
    if (bytes == 4) return (u64_lanes)_mm256_shuffle_epi32((__m256i)x, 0xb1);
    return (u64_lanes)_mm256_shuffle_epi8((__m256i)x, bytes == 2 ? by_2 : by_3);
}
#define ROTATE_RIGHT(x, bits) \
    ((bits) == 63 ? ((x) + (x)) ^ ((x) >> 63) : rotate_bytes((x), (bits) / 8))
#endif

#define HASH_SIGMA_ROW(...) { __VA_ARGS__ },
static const uint8_t hash_sigma[][BLAKE2B_WORDS] = { BLAKE2B_ROUNDS(HASH_SIGMA_ROW) };
static const uint64_t hash_iv[8] = BLAKE2B_IV;

static inline u64_lanes load_lanes(const uint64_t *at)
{
    u64_lanes x;
    memcpy(&x, at, sizeof x);
    return x;
}

/* Copies the i-th word of every lane's block. The stores are volatile, because otherwise compilers would
 * put a vector together from the words, with more operations, and on the execution ports that the mixes
 * need. */
static inline __attribute__((always_inline)) void copy_word(hash_words words, size_t i,
                                                            const uint8_t *const *block)
{
#pragma GCC unroll 8
    for (size_t k = 0; k < HASH_LANES; k++) {
        uint64_t word;
        memcpy(&word, block[k] + sizeof word * i, sizeof word);
        *(volatile uint64_t *)&words[i][k] = word;
    }
}

#define EACH_OF_TWO(i) _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++)

/* Mixes columns k and k + 1, or, with diagonal == 1, the diagonals that begin there. `order` is the order
 * of their words. The two mixes are independent, so their operations alternate. More than two would not fit
 * into the registers of AVX2. */
static inline __attribute__((always_inline)) void
mix_two(u64_lanes *v, int k, int diagonal, const hash_words words, const uint8_t *order)
{
    u64_lanes *a[2], *b[2], *c[2], *d[2];
    EACH_OF_TWO (i) {
        a[i] = &v[k + i];
        b[i] = &v[4 + (k + i + diagonal) % 4];
        c[i] = &v[8 + (k + i + 2 * diagonal) % 4];
        d[i] = &v[12 + (k + i + 3 * diagonal) % 4];
    }
    // before b is added, because b is ready last
    EACH_OF_TWO (i) *a[i] += load_lanes(words[order[2 * i]]);
    EACH_OF_TWO (i) *a[i] += *b[i];
    EACH_OF_TWO (i) *d[i] = ROTATE_RIGHT(*d[i] ^ *a[i], 32);
    EACH_OF_TWO (i) *c[i] += *d[i];
    EACH_OF_TWO (i) *b[i] = ROTATE_RIGHT(*b[i] ^ *c[i], 24);
    EACH_OF_TWO (i) *a[i] += load_lanes(words[order[2 * i + 1]]);
    EACH_OF_TWO (i) *a[i] += *b[i];
    EACH_OF_TWO (i) *d[i] = ROTATE_RIGHT(*d[i] ^ *a[i], 16);
    EACH_OF_TWO (i) *c[i] += *d[i];
    EACH_OF_TWO (i) *b[i] = ROTATE_RIGHT(*b[i] ^ *c[i], 63);
}

/* The next blocks. Their words are copied to `words`, and memory is prefetched at the distance ahead_bytes
 * after them. */
struct hash_next {
    const uint8_t *block[HASH_LANES];
    uint64_t (*words)[HASH_LANES];
    size_t ahead_bytes;
};

/* Does the i-th part of the copy, i < BLAKE2B_WORDS. */
static inline __attribute__((always_inline)) void copy_next(const struct hash_next *next, size_t i)
{
    copy_word(next->words, i, next->block);
    if (i < 2 * HASH_LANES) // a block is two cache lines
        __builtin_prefetch(next->block[i / 2] + 64 * (i % 2) + next->ahead_bytes, 0, 2);
}

/* Compresses a block of each lane. `counted` has the bytes of each lane's message up to the end of its
 * block, and `last` has all bits set if the block is the message's last. `next` is NULL, or has the blocks
 * that are copied meanwhile. */
static inline __attribute__((always_inline)) void hash_compress(u64_lanes *state,
                                                                const hash_words words,
                                                                u64_lanes counted, u64_lanes last,
                                                                const struct hash_next *next)
{
    u64_lanes v[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        v[i] = state[i];
        v[8 + i] = (u64_lanes) { 0 } + hash_iv[i];
    }
    v[12] ^= counted;
    v[14] ^= last;
#pragma GCC unroll 12
    for (size_t r = 0; r < 12; r++) {
        const uint8_t *order = hash_sigma[r];
        __asm__ volatile("" ::: "memory"); // so that no word stays in a register for another round
        mix_two(v, 0, 0, words, order);
        mix_two(v, 2, 0, words, order + 4);
        if (next != NULL && 2 * r < BLAKE2B_WORDS) copy_next(next, 2 * r);
        mix_two(v, 0, 1, words, order + 8);
        mix_two(v, 2, 1, words, order + 12);
        if (next != NULL && 2 * r < BLAKE2B_WORDS) copy_next(next, 2 * r + 1);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[8 + i];
}

static __attribute__((noinline)) void hash_one(u64_lanes *state, const uint8_t *const *block,
                                               u64_lanes counted, u64_lanes last)
{
    hash_words words;
    for (size_t i = 0; i < BLAKE2B_WORDS; i++) copy_word(words, i, block);
    hash_compress(state, words, counted, last, NULL);
}

/* Hashes `count` contiguous blocks of every lane. None of them is a last block. Most blocks are hashed
 * here. */
static __attribute__((noinline)) void hash_many(u64_lanes *state, const uint8_t *const *block,
                                                u64_lanes *counted, uint64_t count,
                                                size_t ahead_bytes)
{
    hash_words words[2];
    struct hash_next next = { .ahead_bytes = ahead_bytes };
    u64_lanes now = *counted, own[8];
    for (int i = 0; i < 8; i++) own[i] = state[i];
    for (size_t i = 0; i < HASH_LANES; i++) next.block[i] = block[i];
    for (size_t i = 0; i < BLAKE2B_WORDS; i++) copy_word(words[0], i, block);
    for (uint64_t n = 0; n < count; n++) {
        const size_t step = n + 1 < count ? HASH_BLOCK : 0; // memory may end after the last block
        for (size_t i = 0; i < HASH_LANES; i++) next.block[i] += step;
        next.words = words[(n + 1) % 2];
        now += HASH_BLOCK;
        hash_compress(own, words[n % 2], now, (u64_lanes) { 0 }, &next);
    }
    for (int i = 0; i < 8; i++) state[i] = own[i];
    *counted = now;
}

/* ---- leaves ---- */

/* A lane and its current leaf. */
struct hash_lane {
    /* the address of the first block that begins in the leaf and is not hashed yet */
    const uint8_t *next;
    uint64_t left;            /* bytes of the message that are not hashed yet */
    struct hash *out;         /* NULL: the lane has no leaf */
    bool is_first;            /* the lane's next block is the first block, in `edge` */
    uint8_t edge[HASH_BLOCK]; /* the first block, or the last block */
    /* [CAIRN_LEAF_ELEMS * 8] borrowed: room for a copy of a leaf with a NaN */
    uint8_t *copy;
};

/* The leaves that no lane has taken yet. */
struct hash_queue {
    const uint8_t *at; /* the first byte of the next leaf */
    const struct geometry *geometry;
    cairn_dtype dtype;
    uint64_t leaf, end;
    struct hash *out; /* for the hash of the next leaf */
};

/* Returns the largest of the elements' bit patterns without the sign. Every NaN's pattern is above that of
 * infinity. */
#define DEFINE_LARGEST(bits)                                              \
    static uint##bits##_t largest_##bits(const uint8_t *at, size_t elems) \
    {                                                                     \
        uint##bits##_t most = 0;                                          \
        for (size_t i = 0; i < elems; i++) {                              \
            uint##bits##_t u;                                             \
            memcpy(&u, at + sizeof u * i, sizeof u);                      \
            u &= INT##bits##_MAX;                                         \
            most = u > most ? u : most;                                   \
        }                                                                 \
        return most;                                                      \
    }
DEFINE_LARGEST(16)
DEFINE_LARGEST(32)
DEFINE_LARGEST(64)

/* True if there is a NaN, so that a canonical copy may differ from the elements. Most planes have no NaN,
 * and are hashed in place. */
static bool has_nan(const uint8_t *at, cairn_dtype dtype, size_t elems)
{
    switch (dtype) {
    case CAIRN_F32: return largest_32(at, elems) > 0x7f800000u;
    case CAIRN_BF16: return largest_16(at, elems) > 0x7f80;
    case CAIRN_F16: return largest_16(at, elems) > 0x7c00;
    case CAIRN_F64: return largest_64(at, elems) > (uint64_t)0x7ff << 52;
    case CAIRN_U8: break;
    }
    return false;
}

/* Makes the last block in `edge`: the last bytes of the message, which are in the leaf at `from`, and then
 * zeros. */
static void make_last(struct hash_lane *lane, const uint8_t *from)
{
    memset(lane->edge, 0, sizeof lane->edge);
    if (lane->left > 0) memcpy(lane->edge, from, (size_t)lane->left);
}

/* Takes the next leaf, and prepares the lane for it. False: no leaf is left. */
static bool take_leaf(struct hash_queue *queue, struct hash_lane *lane)
{
    if (queue->leaf == queue->end) return false;
    const size_t elems = (size_t)(leaf_start(queue->geometry, queue->leaf + 1) -
                                  leaf_start(queue->geometry, queue->leaf));
    const size_t size = elems * dtype_size((int)queue->dtype);
    const uint8_t *leaf = queue->at;
    if (has_nan(leaf, queue->dtype, elems)) {
        host_canonical(lane->copy, leaf, queue->dtype, elems);
        leaf = lane->copy;
    }
    const size_t first = size < HASH_BLOCK - 1 ? size : HASH_BLOCK - 1;
    memset(lane->edge, 0, sizeof lane->edge);
    if (first > 0) memcpy(lane->edge + 1, leaf, first);
    lane->left = size + 1;
    lane->next = leaf + HASH_BLOCK - 1;
    lane->out = queue->out++;
    queue->at += size;
    queue->leaf++;
    return true;
}

/* All lanes. A lane without a leaf hashes any bytes, and the result is ignored. */
struct hash_run {
    u64_lanes state[8], counted; /* counted: the bytes of each lane's message that are hashed */
    struct hash_lane lane[HASH_LANES];
    size_t busy;
    /* the distance from a lane's leaf to the lane's next leaf, if all leaves have full length */
    size_t ahead_bytes;
};

static void begin_lane(struct hash_run *run, struct hash_queue *queue, size_t i)
{
    struct hash_lane *lane = &run->lane[i];
    for (int k = 0; k < 8; k++) run->state[k][i] = hash_iv[k] ^ (k == 0 ? BLAKE2B_256 : 0);
    run->counted[i] = 0;
    lane->is_first = true;
    if (take_leaf(queue, lane))
        run->busy++;
    else
        lane->out = NULL;
}

static void end_lane(struct hash_run *run, size_t i)
{
    struct hash_lane *lane = &run->lane[i];
    for (size_t k = 0; k < CAIRN_HASH_BYTES / 8; k++) {
        const uint64_t word = run->state[k][i];
        memcpy(lane->out->byte + 8 * k, &word, sizeof word);
    }
    run->busy--;
}

/* Hashes a block of each lane. At least one of these blocks is the first or the last block of its leaf. */
static void hash_edges(struct hash_run *run, struct hash_queue *queue)
{
    const uint8_t *block[HASH_LANES];
    u64_lanes last = { 0 };
    for (size_t i = 0; i < HASH_LANES; i++) {
        struct hash_lane *lane = &run->lane[i];
        const bool is_last = lane->out != NULL && lane->left <= HASH_BLOCK;
        block[i] = lane->edge;
        if (lane->out == NULL) continue;
        if (!lane->is_first && is_last)
            make_last(lane, lane->next);
        else if (!lane->is_first)
            block[i] = lane->next;
        if (!lane->is_first) lane->next += HASH_BLOCK;
        lane->is_first = false;
        run->counted[i] += is_last ? lane->left : HASH_BLOCK;
        lane->left -= is_last ? lane->left : HASH_BLOCK;
        last[i] = is_last ? UINT64_MAX : 0;
    }
    hash_one(run->state, block, run->counted, last);
    for (size_t i = 0; i < HASH_LANES; i++) {
        if (last[i] == 0) continue;
        end_lane(run, i);
        begin_lane(run, queue, i);
    }
}

/* Returns how many of the next blocks lie within the leaf and are not its last block, in every lane that
 * has a leaf. */
static uint64_t blocks_inside(const struct hash_run *run)
{
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < HASH_LANES; i++) {
        const struct hash_lane *lane = &run->lane[i];
        if (lane->out == NULL) continue;
        const uint64_t blocks = lane->is_first ? 0 : (lane->left - 1) / HASH_BLOCK;
        if (blocks < least) least = blocks;
    }
    return least;
}

static void hash_inside(struct hash_run *run, uint64_t count)
{
    const uint8_t *block[HASH_LANES], *idle = NULL;
    for (size_t i = 0; i < HASH_LANES; i++)
        if (run->lane[i].out != NULL) idle = run->lane[i].next; // there is at least one
    for (size_t i = 0; i < HASH_LANES; i++)
        block[i] = run->lane[i].out != NULL ? run->lane[i].next : idle;
    hash_many(run->state, block, &run->counted, count, run->ahead_bytes);
    for (size_t i = 0; i < HASH_LANES; i++) {
        if (run->lane[i].out == NULL) continue;
        run->lane[i].next += count * HASH_BLOCK;
        run->lane[i].left -= count * HASH_BLOCK;
    }
}

static void hash_each(const void *plane, cairn_dtype dtype, const struct geometry *geometry,
                      uint64_t first_leaf, uint64_t leaf_count, struct hash *hashes_out)
{
    uint8_t copies[HASH_LANES][CAIRN_LEAF_ELEMS * sizeof(double)];
    struct hash_queue queue = { plane,     geometry, dtype, first_leaf, first_leaf + leaf_count,
                                hashes_out };
    struct hash_run run = { .ahead_bytes = HASH_LANES * CAIRN_LEAF_ELEMS * dtype_size((int)dtype) };
    assert(leaf_count <= geometry->leaf_count && first_leaf <= geometry->leaf_count - leaf_count);
    for (size_t i = 0; i < HASH_LANES; i++) {
        run.lane[i].copy = copies[i];
        begin_lane(&run, &queue, i);
    }
    while (run.busy > 0) {
        const uint64_t inside = blocks_inside(&run);
        if (inside > 0)
            hash_inside(&run, inside);
        else
            hash_edges(&run, &queue);
    }
}

#endif

/* ==== check ==== */

static uint64_t check(const void *bytes, size_t byte_count)
{
    const uint64_t check = XXH3_64bits(bytes, byte_count);
    return check != 0 ? check : 1;
}

const struct backend CAIRN_HOST_TABLE = {
    .name = "host",
    .isa = CAIRN_HOST_ISA_NAME,
    .fold = fold,
    .fold_leaves = fold_leaves,
    .sum_leaves = sum_leaves,
    .update = { [CAIRN_OPTIMIZER_ADAMW] = adamw,
                [CAIRN_OPTIMIZER_ADAM] = adam,
                [CAIRN_OPTIMIZER_SGD] = sgd },
    .convert = convert,
    .hash_each = hash_each,
    .check = check,
};
