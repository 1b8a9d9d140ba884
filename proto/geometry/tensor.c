#include "proto/geometry/tensor.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/geometry/layout.h"

static const struct {
    size_t bytes;
    const char *name;
} dtypes[] = {
    [CAIRN_F32] = { 4, "f32" }, [CAIRN_BF16] = { 2, "bf16" }, [CAIRN_F16] = { 2, "f16" },
    [CAIRN_F64] = { 8, "f64" }, [CAIRN_U8] = { 1, "u8" },
};

static const char *const planes[CAIRN_PLANE_COUNT] = {
    [CAIRN_PLANE_PARAM] = "param",     [CAIRN_PLANE_WIRE] = "wire",
    [CAIRN_PLANE_EXP_AVG] = "exp_avg", [CAIRN_PLANE_EXP_AVG_SQ] = "exp_avg_sq",
    [CAIRN_PLANE_EMA] = "ema",
};

static int is_dtype(int dtype)
{
    return dtype >= CAIRN_F32 && dtype <= CAIRN_U8;
}

size_t dtype_size(int dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].bytes : 0;
}

const char *dtype_label(int dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].name : "?";
}

const char *plane_name(int plane)
{
    return plane >= CAIRN_PLANE_PARAM && plane < CAIRN_PLANE_COUNT ? planes[plane] : NULL;
}

cairn_dtype plane_dtype(int plane, cairn_dtype master)
{
    return plane == CAIRN_PLANE_PARAM ? master : CAIRN_F32;
}

int plane_number(const char *name)
{
    for (int plane = CAIRN_PLANE_PARAM; plane < CAIRN_PLANE_COUNT; plane++)
        if (strcmp(name, planes[plane]) == 0) return plane;
    return 0;
}

static int is_empty(const struct shape *shape)
{
    for (uint32_t d = 0; d < shape->rank; d++)
        if (shape->dim[d] == 0) return 1;
    return 0;
}

cairn_status shape_check(const struct shape *shape)
{
    if (shape->rank > CAIRN_RANK_MAX) return CAIRN_ERR_INVALID;
    // the other dimensions may be of any size, because nothing is multiplied
    if (is_empty(shape)) return CAIRN_OK;

    uint64_t elems = 1;
    for (uint32_t d = 0; d < shape->rank; d++) {
        if (shape->dim[d] > CAIRN_TENSOR_ELEMS_MAX / elems) return CAIRN_ERR_INVALID;
        elems *= shape->dim[d];
    }
    return CAIRN_OK;
}

static uint64_t div_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* Extends the row from the innermost dimension outwards, as long as it stays within the limit. */
static void find_rows(const struct shape *shape, struct geometry *g)
{
    g->row_elems = 1;
    g->row_dim = shape->rank > 0 ? shape->rank - 1 : 0;
    while (g->row_dim > 0 && g->row_elems * shape->dim[g->row_dim] <= CAIRN_ROW_ELEMS_MAX)
        g->row_elems *= shape->dim[g->row_dim--];

    g->row_count = 1;
    for (uint32_t d = 0; d < shape->rank && d <= g->row_dim; d++) g->row_count *= shape->dim[d];
    g->elems = g->row_count * g->row_elems;
}

struct geometry geometry_of(const struct shape *shape)
{
    assert(shape->rank <= CAIRN_RANK_MAX);
    struct geometry g = { 0 };
    if (is_empty(shape)) return g;

    find_rows(shape, &g);
    g.quantum_rows = div_up(CAIRN_LEAF_ELEMS, g.row_elems);
    g.quantum_elems = g.quantum_rows * g.row_elems;
    g.quantum_count = div_up(g.row_count, g.quantum_rows);
    g.leaves_per_quantum = div_up(g.quantum_elems, CAIRN_LEAF_ELEMS);

    const uint64_t whole = g.quantum_count - 1;
    g.leaf_count = whole * g.leaves_per_quantum +
                   div_up(g.elems - whole * g.quantum_elems, CAIRN_LEAF_ELEMS);
    return g;
}

static uint64_t at_most(uint64_t value, uint64_t limit)
{
    return value < limit ? value : limit;
}

uint64_t leaf_start(const struct geometry *g, uint64_t leaf)
{
    assert(leaf <= g->leaf_count);
    if (g->leaf_count == 0) return 0;
    const uint64_t quantum = leaf / g->leaves_per_quantum;
    const uint64_t within = leaf % g->leaves_per_quantum;
    // The sum can be past the end only for leaf == leaf_count, if the last quantum or leaf is short.
    return at_most(quantum * g->quantum_elems + within * CAIRN_LEAF_ELEMS, g->elems);
}

uint64_t quantum_first_leaf(const struct geometry *g, uint64_t quantum)
{
    assert(quantum <= g->quantum_count);
    return at_most(quantum * g->leaves_per_quantum, g->leaf_count);
}

uint64_t quantum_first_elem(const struct geometry *g, uint64_t quantum)
{
    assert(quantum <= g->quantum_count);
    return at_most(quantum * g->quantum_elems, g->elems);
}

uint64_t leaf_of_elem(const struct geometry *g, uint64_t elem)
{
    assert(elem < g->elems);
    return elem / g->quantum_elems * g->leaves_per_quantum +
           elem % g->quantum_elems / CAIRN_LEAF_ELEMS;
}

/* Finds the largest box that starts at `row` and has at most `row_count` rows. In the outer dimensions such
 * a box has a single index, then in one dimension a run of indices, and in the inner dimensions all
 * indices. Returns the number of rows in the box. */
static uint64_t largest_box(const struct shape *shape, uint32_t row_dim, uint64_t row,
                            uint64_t row_count, struct cairn_box *box_out)
{
    uint64_t stride = 1; // the number of rows in one index of dimension d
    uint32_t d = row_dim;
    while (d > 0 && row % (stride * shape->dim[d]) == 0 && row_count >= stride * shape->dim[d])
        stride *= shape->dim[d--];

    *box_out = (struct cairn_box) { .rank = shape->rank };
    for (uint32_t k = d + 1; k < shape->rank; k++) box_out->extent[k] = shape->dim[k];

    uint64_t rest = row / stride;
    box_out->start[d] = rest % shape->dim[d];
    box_out->extent[d] = at_most(row_count / stride, shape->dim[d] - box_out->start[d]);
    rest /= shape->dim[d];
    for (uint32_t k = d; k-- > 0; rest /= shape->dim[k]) {
        box_out->start[k] = rest % shape->dim[k];
        box_out->extent[k] = 1;
    }
    return box_out->extent[d] * stride;
}

size_t range_boxes(const struct shape *shape, uint64_t first_elem, uint64_t elem_count,
                   struct cairn_box out[CAIRN_RANGE_BOXES_MAX])
{
    if (elem_count == 0) return 0;
    const struct geometry g = geometry_of(shape);
    assert(first_elem < g.elems && elem_count <= g.elems - first_elem);
    assert(first_elem % g.row_elems == 0 && elem_count % g.row_elems == 0);
    if (shape->rank == 0) {
        out[0] = (struct cairn_box) { .rank = 0 };
        return 1;
    }

    size_t count = 0;
    uint64_t row = first_elem / g.row_elems;
    for (uint64_t left = elem_count / g.row_elems; left > 0;) {
        assert(count < CAIRN_RANGE_BOXES_MAX);
        const uint64_t rows = largest_box(shape, g.row_dim, row, left, &out[count++]);
        row += rows;
        left -= rows;
    }
    return count;
}

/* ==== box ==== */

cairn_status box_check(const struct cairn_box *box, const struct shape *shape, struct sentence *why)
{
    if (box->rank != shape->rank)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "the box has %" PRIu32 " dimensions, the tensor has %" PRIu32, box->rank,
                         shape->rank);
    for (uint32_t d = 0; d < shape->rank; d++) {
        if (box->start[d] <= shape->dim[d] && box->extent[d] <= shape->dim[d] - box->start[d])
            continue;
        return fail_with(why, CAIRN_ERR_INVALID,
                         "dimension %" PRIu32 " of the box starts at %" PRIu64 " and has %" PRIu64
                         " elements; the tensor has %" PRIu64,
                         d, box->start[d], box->extent[d], shape->dim[d]);
    }
    return CAIRN_OK;
}

struct cairn_box box_of_shape(const struct shape *shape)
{
    struct cairn_box box = { .rank = shape->rank };
    for (uint32_t d = 0; d < shape->rank; d++) box.extent[d] = shape->dim[d];
    return box;
}

uint64_t box_element_count(const struct cairn_box *box)
{
    // Empty boxes come first, because their other extents may be those of an empty tensor, and have any
    // size.
    for (uint32_t d = 0; d < box->rank; d++)
        if (box->extent[d] == 0) return 0;
    uint64_t elems = 1;
    for (uint32_t d = 0; d < box->rank; d++) elems *= box->extent[d];
    return elems;
}

bool box_is_whole(const struct cairn_box *box, const struct shape *shape)
{
    for (uint32_t d = 0; d < shape->rank; d++)
        if (box->start[d] != 0 || box->extent[d] != shape->dim[d]) return false;
    return true;
}

bool box_equal(const struct cairn_box *a, const struct cairn_box *b)
{
    if (a->rank != b->rank) return false;
    for (uint32_t d = 0; d < a->rank; d++)
        if (a->start[d] != b->start[d] || a->extent[d] != b->extent[d]) return false;
    return true;
}

bool box_overlap(const struct cairn_box *a, const struct cairn_box *b)
{
    if (box_element_count(a) == 0 || box_element_count(b) == 0) return false;
    for (uint32_t d = 0; d < a->rank; d++) {
        if (a->start[d] >= b->start[d] + b->extent[d]) return false;
        if (b->start[d] >= a->start[d] + a->extent[d]) return false;
    }
    return true;
}

uint64_t box_before(const struct cairn_box *box, const struct shape *shape, uint64_t index)
{
    // box elements in one index of the dimensions that the loop has passed
    uint64_t inner = box_element_count(box);
    if (inner == 0) return 0;
    const struct cairn_box whole = box_of_shape(shape);
    uint64_t stride = box_element_count(&whole); // the same number for the tensor
    if (index >= stride) return inner;

    uint64_t count = 0;
    for (uint32_t d = 0; d < shape->rank; d++) {
        stride /= shape->dim[d];
        inner /= box->extent[d];
        const uint64_t at = index / stride;
        index %= stride;
        if (at < box->start[d]) return count;
        if (at - box->start[d] >= box->extent[d]) return count + box->extent[d] * inner;
        count += (at - box->start[d]) * inner;
    }
    return count;
}

void box_runs_begin(struct box_runs *runs, const struct cairn_box *box, const struct shape *shape,
                    uint64_t first_elem, uint64_t elem_count)
{
    *runs = (struct box_runs) { .box = *box, .run_elems = 1 };
    if (box_element_count(box) == 0) return;

    uint64_t stride = 1;
    for (uint32_t d = shape->rank; d-- > 0; stride *= shape->dim[d]) {
        runs->stride[d] = stride;
        runs->base += box->start[d] * stride;
    }
    // A run covers the inner dimensions in which the box is whole, and a part of the dimension before them.
    runs->outer = shape->rank;
    for (bool whole = true; whole && runs->outer > 0;) {
        const uint32_t d = --runs->outer;
        runs->run_elems *= box->extent[d];
        whole = box->extent[d] == shape->dim[d];
    }
    runs->next = box_before(box, shape, first_elem);
    runs->end = box_before(box, shape, first_elem + elem_count);
}

bool box_runs_next(struct box_runs *runs, uint64_t *tensor_elem_out, uint64_t *box_elem_out,
                   uint64_t *count_out)
{
    if (runs->next == runs->end) return false;
    const uint64_t within = runs->next % runs->run_elems;
    uint64_t run = runs->next / runs->run_elems;
    uint64_t elem = runs->base + within;
    for (uint32_t d = runs->outer; d-- > 0; run /= runs->box.extent[d])
        elem += run % runs->box.extent[d] * runs->stride[d];

    const uint64_t left = runs->end - runs->next;
    const uint64_t in_run = runs->run_elems - within;
    *tensor_elem_out = elem;
    *box_elem_out = runs->next;
    *count_out = left < in_run ? left : in_run;
    runs->next += *count_out;
    return true;
}

size_t box_encode(const struct cairn_box *box, uint8_t out[CAIRN_BOX_BYTES_MAX])
{
    assert(box->rank <= CAIRN_RANK_MAX);
    le_put(out, box->rank, 4);
    uint8_t *starts = out + 4, *extents = starts + 8 * (size_t)box->rank;
    for (uint32_t d = 0; d < box->rank; d++) {
        le_put(starts + 8 * d, box->start[d], 8);
        le_put(extents + 8 * d, box->extent[d], 8);
    }
    return 4 + 16 * (size_t)box->rank;
}

cairn_status box_decode(const uint8_t *bytes, size_t size, struct cairn_box *box_out)
{
    if (size < 4) return CAIRN_ERR_MALFORMED;
    const uint32_t rank = (uint32_t)le_get(bytes, 4);
    if (rank > CAIRN_RANK_MAX || size != 4 + 16 * (size_t)rank) return CAIRN_ERR_MALFORMED;
    const uint8_t *starts = bytes + 4, *extents = starts + 8 * (size_t)rank;
    *box_out = (struct cairn_box) { .rank = rank };
    for (uint32_t d = 0; d < rank; d++) {
        box_out->start[d] = le_get(starts + 8 * d, 8);
        box_out->extent[d] = le_get(extents + 8 * d, 8);
    }
    return CAIRN_OK;
}

const char *box_text(const struct cairn_box *box, char out[CAIRN_BOX_TEXT_BYTES])
{
    size_t at = 0;
    out[at++] = '[';
    for (uint32_t d = 0; d < box->rank && d < CAIRN_RANK_MAX; d++)
        at += (size_t)snprintf(out + at, CAIRN_BOX_TEXT_BYTES - at, "%s%" PRIu64 ":%" PRIu64,
                               d > 0 ? ", " : "", box->start[d], box->start[d] + box->extent[d]);
    snprintf(out + at, CAIRN_BOX_TEXT_BYTES - at, "]");
    return out;
}
