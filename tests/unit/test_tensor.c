/* Rows, quanta, leaves and boxes against an oracle that counts one element after another. */
#include "proto/geometry/tensor.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEEDS 400

static uint64_t elems_from(const struct shape *shape, uint32_t dim)
{
    uint64_t elems = 1;
    for (uint32_t d = dim; d < shape->rank; d++) elems *= shape->dim[d];
    return elems;
}

/* The row dimension by the words of the header: the first whose slices do not exceed the limit. */
static uint32_t oracle_row_dim(const struct shape *shape)
{
    for (uint32_t d = 0; d < shape->rank; d++)
        if (elems_from(shape, d + 1) <= CAIRN_ROW_ELEMS_MAX) return d;
    return 0;
}

/* Walks all elements and opens a quantum and a leaf where the header's words say so. */
static void compare_with_walk(const struct shape *shape)
{
    const struct geometry g = geometry_of(shape);
    const uint64_t elems = elems_from(shape, 0);
    const uint32_t row_dim = oracle_row_dim(shape);
    const uint64_t row = shape->rank == 0 ? 1 : elems_from(shape, row_dim + 1);
    ck_assert_uint_eq(g.elems, elems);
    ck_assert_uint_eq(g.row_dim, row_dim);
    ck_assert_uint_eq(g.row_elems, row);
    ck_assert_uint_eq(g.row_count * g.row_elems, elems);

    uint64_t quanta = 0, leaves = 0, in_quantum = 0, in_leaf = 0;
    for (uint64_t e = 0; e < elems; e++) {
        if (e % row == 0 && (e == 0 || in_quantum >= CAIRN_LEAF_ELEMS)) {
            ck_assert_uint_eq(quantum_first_elem(&g, quanta), e);
            ck_assert_uint_eq(quantum_first_leaf(&g, quanta), leaves);
            quanta++;
            in_quantum = in_leaf = 0;
        }
        if (in_leaf == 0) ck_assert_uint_eq(leaf_start(&g, leaves++), e);
        if (in_leaf == 0 || in_leaf == CAIRN_LEAF_ELEMS - 1)
            ck_assert_uint_eq(leaf_of_elem(&g, e), leaves - 1);
        in_quantum++;
        in_leaf = (in_leaf + 1) % CAIRN_LEAF_ELEMS;
    }
    ck_assert_uint_eq(g.quantum_count, quanta);
    ck_assert_uint_eq(g.leaf_count, leaves);
    ck_assert_uint_eq(leaf_start(&g, leaves), elems);
    ck_assert_uint_eq(quantum_first_elem(&g, quanta), elems);
    ck_assert_uint_eq(quantum_first_leaf(&g, quanta), leaves);
}

static struct shape random_shape(uint32_t rank, uint64_t elems_about)
{
    struct shape shape = { .rank = rank };
    uint64_t left = elems_about;
    for (uint32_t i = 0; i < rank; i++) {
        uint64_t dim = 1 + random_below(left < 600 ? left : 600);
        if (i + 1 == rank && random_below(2) == 0) dim = left;
        shape.dim[i] = dim == 0 ? 1 : dim;
        left = left / shape.dim[i] == 0 ? 1 : left / shape.dim[i];
    }
    for (uint32_t i = rank; i > 1; i--) { // so that the long dimension stands anywhere
        const uint64_t j = random_below(i), swap = shape.dim[j];
        shape.dim[j] = shape.dim[i - 1];
        shape.dim[i - 1] = swap;
    }
    return shape;
}

TEST(geometry_is_what_counting_gives_for_every_rank)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        random_state = seed;
        const struct shape shape = random_shape((uint32_t)(seed % 9), 1 + random_below(60000));
        ck_assert_int_eq(shape_check(&shape), CAIRN_OK);
        compare_with_walk(&shape);
    }
}

TEST(geometry_of_slices_beyond_the_row_limit)
{
    const struct shape shapes[] = {
        { 3, { 2, 3, ((uint64_t)1 << 20) + 1 } }, // rows of one element
        { 3, { 2, 3, (uint64_t)1 << 20 } },       // rows of exactly the limit
        { 3, { 2, 1100, 1000 } },                 // a slice of 1.1 M: rows along the second
        { 4, { 1, 2, 1500, 1000 } },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) compare_with_walk(&shapes[i]);
}

TEST(a_row_of_58_million_elements_is_divided)
{
    const struct shape flat = { 2, { 3, 58000000 } };
    struct geometry g = geometry_of(&flat);
    ck_assert_uint_eq(g.row_dim, 1);
    ck_assert_uint_eq(g.row_elems, 1);
    ck_assert_uint_eq(g.quantum_elems, 4096);
    ck_assert_uint_eq(g.quantum_count, (3u * 58000000u + 4095) / 4096);
    ck_assert_uint_eq(g.leaf_count, g.quantum_count);

    const struct shape deep = { 3, { 3, 7250, 8000 } };
    g = geometry_of(&deep);
    ck_assert_uint_eq(g.row_dim, 1);
    ck_assert_uint_eq(g.row_elems, 8000);
    ck_assert_uint_eq(g.row_count, 3 * 7250);
    ck_assert_uint_eq(g.quantum_elems, 8000);
    ck_assert_uint_eq(g.leaves_per_quantum, 2);
    ck_assert_uint_eq(leaf_start(&g, 3), 8000 + 4096);
}

TEST(a_scalar_is_one_element_in_one_box_without_dimensions)
{
    const struct shape scalar = { .rank = 0 };
    compare_with_walk(&scalar);
    struct cairn_box boxes[CAIRN_RANGE_BOXES_MAX];
    ck_assert_uint_eq(range_boxes(&scalar, 0, 1, boxes), 1);
    ck_assert_uint_eq(boxes[0].rank, 0);
}

TEST(an_empty_tensor_has_nothing_and_its_other_dimensions_do_not_matter)
{
    const struct shape empty = { 3, { UINT64_MAX, UINT64_MAX, 0 } };
    ck_assert_int_eq(shape_check(&empty), CAIRN_OK);
    const struct geometry g = geometry_of(&empty);
    ck_assert_uint_eq(g.elems, 0);
    ck_assert_uint_eq(g.quantum_count, 0);
    ck_assert_uint_eq(g.leaf_count, 0);
    ck_assert_uint_eq(leaf_start(&g, 0), 0);
    ck_assert_uint_eq(quantum_first_elem(&g, 0), 0);
    struct cairn_box boxes[CAIRN_RANGE_BOXES_MAX];
    ck_assert_uint_eq(range_boxes(&empty, 0, 0, boxes), 0);
}

TEST(shapes_over_the_limits_are_refused_and_never_overflow)
{
    const struct {
        const char *claim;
        struct shape shape;
        cairn_status status;
    } table[] = {
        { "nine dimensions", { 9, { 1, 1, 1, 1, 1, 1, 1, 1 } }, CAIRN_ERR_INVALID },
        { "rank from a stranger", { UINT32_MAX, { 1 } }, CAIRN_ERR_INVALID },
        { "2^48 elements", { 2, { (uint64_t)1 << 24, (uint64_t)1 << 24 } }, CAIRN_OK },
        { "one more row",
          { 2, { ((uint64_t)1 << 24) + 1, (uint64_t)1 << 24 } },
          CAIRN_ERR_INVALID },
        { "product wraps to 0",
          { 2, { (uint64_t)1 << 32, (uint64_t)1 << 32 } },
          CAIRN_ERR_INVALID },
        { "one dimension too long", { 1, { UINT64_MAX } }, CAIRN_ERR_INVALID },
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        ck_assert_msg(shape_check(&table[i].shape) == table[i].status, "%s", table[i].claim);
}

/* Row-major number of a box's first element, and whether the box is contiguous with `elems`. */
static uint64_t box_first(const struct shape *shape, const struct cairn_box *box)
{
    uint64_t first = 0;
    for (uint32_t d = 0; d < shape->rank; d++) first = first * shape->dim[d] + box->start[d];
    return first;
}

static uint64_t box_elems(const struct cairn_box *box)
{
    uint64_t elems = 1;
    for (uint32_t d = 0; d < box->rank; d++) elems *= box->extent[d];
    return elems;
}

/* Single indices, then one run, then whole dimensions: only then is a box one contiguous range. */
static int box_is_contiguous(const struct shape *shape, const struct cairn_box *box)
{
    uint32_t d = 0;
    while (d < box->rank && box->extent[d] == 1) d++;
    for (d++; d < box->rank; d++)
        if (box->start[d] != 0 || box->extent[d] != shape->dim[d]) return 0;
    return 1;
}

/* The fewest boxes for rows [first, end), by trying every first box: fewest[row] from the end. */
static size_t oracle_fewest(const struct shape *shape, uint32_t row_dim, uint64_t first,
                            uint64_t end)
{
    size_t *fewest = calloc(end + 1, sizeof *fewest);
    ck_assert_ptr_nonnull(fewest);
    for (uint64_t row = end; row-- > first;) {
        fewest[row] = SIZE_MAX;
        uint64_t stride = 1;
        for (uint32_t d = row_dim + 1; d-- > 0; stride *= shape->dim[d]) {
            if (row % stride != 0) break;
            const uint64_t most = shape->dim[d] - row / stride % shape->dim[d];
            for (uint64_t n = 1; n <= most && row + n * stride <= end; n++)
                if (1 + fewest[row + n * stride] < fewest[row])
                    fewest[row] = 1 + fewest[row + n * stride];
        }
    }
    const size_t answer = fewest[first];
    free(fewest);
    return answer;
}

static void check_boxes(const struct shape *shape, uint64_t first_row, uint64_t row_count)
{
    const struct geometry g = geometry_of(shape);
    struct cairn_box boxes[CAIRN_RANGE_BOXES_MAX];
    const size_t count = range_boxes(shape, first_row * g.row_elems, row_count * g.row_elems,
                                     boxes);
    uint64_t at = first_row * g.row_elems;
    for (size_t i = 0; i < count; i++) {
        ck_assert_uint_eq(boxes[i].rank, shape->rank);
        ck_assert_uint_gt(box_elems(&boxes[i]), 0);
        ck_assert(box_is_contiguous(shape, &boxes[i]));
        ck_assert_uint_eq(box_first(shape, &boxes[i]), at);
        at += box_elems(&boxes[i]);
    }
    ck_assert_uint_eq(at, (first_row + row_count) * g.row_elems);
    if (row_count > 0)
        ck_assert_uint_eq(count, oracle_fewest(shape, g.row_dim, first_row, first_row + row_count));
}

/* A tensor of up to 8 dimensions whose rows are single elements: its last one is over the limit. */
static struct shape many_outer_dimensions(uint32_t rank)
{
    struct shape shape = { .rank = rank };
    for (uint32_t d = 0; d + 1 < rank; d++) shape.dim[d] = 1 + random_below(3);
    shape.dim[rank - 1] = CAIRN_ROW_ELEMS_MAX; // rows are slices along the one before
    return shape;
}

TEST(boxes_cover_any_range_of_rows_exactly_with_the_fewest)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        random_state = seed;
        const uint32_t rank = (uint32_t)(1 + seed % 8);
        const struct shape shape = seed % 2 == 0 || rank < 2 ? random_shape(rank, 3000)
                                                             : many_outer_dimensions(rank);
        const struct geometry g = geometry_of(&shape);
        for (int i = 0; i < 4; i++) {
            const uint64_t first = random_below(g.row_count);
            check_boxes(&shape, first, random_below(g.row_count - first + 1));
        }
        check_boxes(&shape, 0, g.row_count);
    }
    const struct shape worst = { 8, { 3, 3, 3, 3, 3, 3, 3, CAIRN_ROW_ELEMS_MAX + 1 } };
    struct cairn_box boxes[CAIRN_RANGE_BOXES_MAX];
    ck_assert_uint_eq(range_boxes(&worst, 1, geometry_of(&worst).elems - 2, boxes),
                      CAIRN_RANGE_BOXES_MAX);
}

TEST(dtypes_and_planes_answer_for_numbers_that_are_none)
{
    ck_assert_uint_eq(dtype_size(CAIRN_F32), 4);
    ck_assert_uint_eq(dtype_size(CAIRN_BF16), 2);
    ck_assert_uint_eq(dtype_size(CAIRN_F16), 2);
    ck_assert_uint_eq(dtype_size(CAIRN_F64), 8);
    ck_assert_uint_eq(dtype_size(CAIRN_U8), 1);
    ck_assert_str_eq(dtype_label(CAIRN_BF16), "bf16");
    ck_assert_str_eq(dtype_label(CAIRN_U8), "u8");
    const int none[] = { -1, 0, 6, 7, 1000 };
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        ck_assert_uint_eq(dtype_size(none[i]), 0);
        ck_assert_str_eq(dtype_label(none[i]), "?");
        ck_assert_ptr_null(plane_name(none[i]));
    }
    for (int plane = 1; plane < CAIRN_PLANE_COUNT; plane++)
        ck_assert_int_eq(plane_number(plane_name(plane)), plane);
    ck_assert_int_eq(plane_number("exp"), 0);
    ck_assert_int_eq(plane_number(""), 0);
}

SUITE(60);
