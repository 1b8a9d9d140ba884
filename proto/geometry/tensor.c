#include "proto/geometry/tensor.h"

#include <assert.h>
#include <string.h>

static const struct {
    size_t bytes;
    const char *name;
} dtypes[] = {
    [CAIRN_F32] = { 4, "f32" }, [CAIRN_BF16] = { 2, "bf16" }, [CAIRN_F16] = { 2, "f16" },
    [CAIRN_F64] = { 8, "f64" }, [CAIRN_U8] = { 1, "u8" },
};

static const char *const planes[CAIRN_PLANE_COUNT] = {
    [CAIRN_PLANE_PARAM] = "param",
    [CAIRN_PLANE_WIRE] = "wire",
    [CAIRN_PLANE_EXP_AVG] = "exp_avg",
    [CAIRN_PLANE_EXP_AVG_SQ] = "exp_avg_sq",
};

static int is_dtype(int dtype)
{
    return dtype >= CAIRN_F32 && dtype <= CAIRN_U8;
}

size_t cairn_dtype_bytes(int dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].bytes : 0;
}

const char *cairn_dtype_name(int dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].name : "?";
}

const char *cairn_plane_name(int plane)
{
    return plane >= CAIRN_PLANE_PARAM && plane < CAIRN_PLANE_COUNT ? planes[plane] : NULL;
}

cairn_dtype cairn_plane_dtype(int plane, cairn_dtype master)
{
    return plane == CAIRN_PLANE_PARAM ? master : CAIRN_F32;
}

int cairn_plane_number(const char *name)
{
    for (int plane = CAIRN_PLANE_PARAM; plane < CAIRN_PLANE_COUNT; plane++)
        if (strcmp(name, planes[plane]) == 0) return plane;
    return 0;
}

static int is_empty(const struct cairn_shape *shape)
{
    for (uint32_t d = 0; d < shape->rank; d++)
        if (shape->dim[d] == 0) return 1;
    return 0;
}

cairn_status cairn_shape_check(const struct cairn_shape *shape)
{
    if (shape->rank > CAIRN_RANK_MAX) return CAIRN_ERR_INVALID;
    if (is_empty(shape))
        return CAIRN_OK; // whatever the other dimensions are: nothing is multiplied

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

/* Grows the row from the innermost dimension outwards for as long as it stays within the limit. */
static void find_rows(const struct cairn_shape *shape, struct cairn_geometry *g)
{
    g->row_elems = 1;
    g->row_dim = shape->rank > 0 ? shape->rank - 1 : 0;
    while (g->row_dim > 0 && g->row_elems * shape->dim[g->row_dim] <= CAIRN_ROW_ELEMS_MAX)
        g->row_elems *= shape->dim[g->row_dim--];

    g->row_count = 1;
    for (uint32_t d = 0; d < shape->rank && d <= g->row_dim; d++) g->row_count *= shape->dim[d];
    g->elems = g->row_count * g->row_elems;
}

struct cairn_geometry cairn_geometry_of(const struct cairn_shape *shape)
{
    assert(shape->rank <= CAIRN_RANK_MAX);
    struct cairn_geometry g = { 0 };
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

uint64_t cairn_leaf_first_elem(const struct cairn_geometry *g, uint64_t leaf)
{
    assert(leaf <= g->leaf_count);
    if (g->leaf_count == 0) return 0;
    const uint64_t quantum = leaf / g->leaves_per_quantum;
    const uint64_t within = leaf % g->leaves_per_quantum;
    // Past the end only for leaf == leaf_count behind a short quantum or leaf.
    return at_most(quantum * g->quantum_elems + within * CAIRN_LEAF_ELEMS, g->elems);
}

uint64_t cairn_quantum_first_leaf(const struct cairn_geometry *g, uint64_t quantum)
{
    assert(quantum <= g->quantum_count);
    return at_most(quantum * g->leaves_per_quantum, g->leaf_count);
}

uint64_t cairn_quantum_first_elem(const struct cairn_geometry *g, uint64_t quantum)
{
    assert(quantum <= g->quantum_count);
    return at_most(quantum * g->quantum_elems, g->elems);
}

uint64_t cairn_leaf_of_elem(const struct cairn_geometry *g, uint64_t elem)
{
    assert(elem < g->elems);
    return elem / g->quantum_elems * g->leaves_per_quantum +
           elem % g->quantum_elems / CAIRN_LEAF_ELEMS;
}

/* The largest box of whole rows that starts at `row` and holds at most `row_count` of them: single
 * indices down to some dimension, a run along it, everything inside. Returns the rows it holds. */
static uint64_t largest_box(const struct cairn_shape *shape, uint32_t row_dim, uint64_t row,
                            uint64_t row_count, struct cairn_box *box_out)
{
    uint64_t stride = 1; // rows in one index of dimension d
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

size_t cairn_range_boxes(const struct cairn_shape *shape, uint64_t first_elem, uint64_t elem_count,
                         struct cairn_box out[CAIRN_RANGE_BOXES_MAX])
{
    if (elem_count == 0) return 0;
    const struct cairn_geometry g = cairn_geometry_of(shape);
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
