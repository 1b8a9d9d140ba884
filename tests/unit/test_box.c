/* Boxes against an oracle that marks one element after another. */
#include "proto/geometry/layout.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define SEEDS 150

static uint64_t shape_elems(const struct shape *shape)
{
    uint64_t elems = 1;
    for (uint32_t d = 0; d < shape->rank; d++) elems *= shape->dim[d];
    return elems;
}

/* Small; now and then empty. */
static struct shape random_shape(uint32_t rank)
{
    struct shape shape = { .rank = rank };
    uint64_t left = 600;
    for (uint32_t d = 0; d < rank; d++) {
        shape.dim[d] = random_below(40) == 0 ? 0 : 1 + random_below(left < 9 ? left : 9);
        left = left / (shape.dim[d] + 1) + 1;
    }
    return shape;
}

static struct cairn_box random_box(const struct shape *shape)
{
    struct cairn_box box = { .rank = shape->rank };
    for (uint32_t d = 0; d < shape->rank; d++) {
        if (random_below(2) == 0) { // dimensions that are whole join runs
            box.extent[d] = shape->dim[d];
            continue;
        }
        box.start[d] = random_below(shape->dim[d] + 1);
        box.extent[d] = random_below(shape->dim[d] - box.start[d] + 1);
    }
    return box;
}

static bool oracle_has(const struct cairn_box *box, const struct shape *shape, uint64_t elem)
{
    for (uint32_t d = shape->rank; d-- > 0; elem /= shape->dim[d]) {
        const uint64_t at = elem % shape->dim[d];
        if (at < box->start[d] || at >= box->start[d] + box->extent[d]) return false;
    }
    return true;
}

static void compare_counts(const struct cairn_box *box, const struct shape *shape)
{
    const uint64_t elems = shape_elems(shape);
    uint64_t count = 0;
    for (uint64_t e = 0; e < elems; e++) {
        ck_assert_uint_eq(box_before(box, shape, e), count);
        count += oracle_has(box, shape, e);
    }
    ck_assert_uint_eq(box_before(box, shape, elems), count);
    ck_assert_uint_eq(box_element_count(box), count);
    if (elems > 0) ck_assert_int_eq(box_is_whole(box, shape), count == elems);
}

/* The runs of [first, first + count): every element of the oracle once, and no run could be longer. */
static void compare_runs(const struct cairn_box *box, const struct shape *shape, uint64_t first,
                         uint64_t count)
{
    struct box_runs runs;
    box_runs_begin(&runs, box, shape, first, count);
    uint64_t box_elem = 0, seen = first;
    for (uint64_t e = 0; e < first; e++) box_elem += oracle_has(box, shape, e);

    uint64_t at, in_box, length;
    while (box_runs_next(&runs, &at, &in_box, &length)) {
        ck_assert_uint_ge(at, seen);
        ck_assert_uint_gt(length, 0);
        ck_assert_uint_le(length, first + count - at);
        if (seen > first) ck_assert_uint_gt(at, seen); // or they were one run
        for (; seen < at; seen++) ck_assert(!oracle_has(box, shape, seen));
        for (; seen < at + length; seen++) ck_assert(oracle_has(box, shape, seen));
        ck_assert_uint_eq(in_box, box_elem);
        box_elem += length;
    }
    for (; seen < first + count; seen++) ck_assert(!oracle_has(box, shape, seen));
}

TEST(counts_and_runs_equal_those_of_a_walk_over_all_elements)
{
    for (uint32_t rank = 0; rank <= CAIRN_RANK_MAX; rank++) {
        random_state = 1000 * (uint64_t)rank;
        for (int seed = 0; seed < SEEDS; seed++) {
            const struct shape shape = random_shape(rank);
            const struct cairn_box box = random_box(&shape);
            ck_assert_int_eq(box_check(&box, &shape, NULL), CAIRN_OK);
            compare_counts(&box, &shape);
            const uint64_t elems = shape_elems(&shape);
            compare_runs(&box, &shape, 0, elems);
            const uint64_t first = random_below(elems + 1);
            compare_runs(&box, &shape, first, random_below(elems - first + 1));
        }
    }
}

TEST(two_boxes_overlap_if_an_element_is_in_both)
{
    random_state = 7;
    for (int seed = 0; seed < 2000; seed++) {
        const struct shape shape = random_shape((uint32_t)random_below(5));
        const struct cairn_box a = random_box(&shape), b = random_box(&shape);
        bool both = false;
        for (uint64_t e = 0; e < shape_elems(&shape); e++)
            both |= oracle_has(&a, &shape, e) && oracle_has(&b, &shape, e);
        ck_assert_int_eq(box_overlap(&a, &b), both);
        ck_assert(box_equal(&a, &a));
    }
}

TEST(a_box_that_is_not_within_its_tensor_is_refused)
{
    const struct shape shape = { 2, { 6, 4 } };
    static const struct {
        const char *name;
        struct cairn_box box;
        cairn_status status;
    } rows[] = {
        { "whole", { 2, { 0, 0 }, { 6, 4 } }, CAIRN_OK },
        { "empty at the end", { 2, { 6, 4 }, { 0, 0 } }, CAIRN_OK },
        { "fewer dimensions", { 1, { 0 }, { 6 } }, CAIRN_ERR_INVALID },
        { "more dimensions", { 3, { 0 }, { 6, 4, 1 } }, CAIRN_ERR_INVALID },
        { "absurdly many dimensions", { UINT32_MAX, { 0 }, { 0 } }, CAIRN_ERR_INVALID },
        { "too long", { 2, { 1, 0 }, { 6, 4 } }, CAIRN_ERR_INVALID },
        { "starts beyond the end", { 2, { 7, 0 }, { 0, 4 } }, CAIRN_ERR_INVALID },
        { "overflows", { 2, { 2, 0 }, { UINT64_MAX - 1, 4 } }, CAIRN_ERR_INVALID },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sentence why = { "" };
        const cairn_status status = box_check(&rows[i].box, &shape, &why);
        ck_assert_msg(status == rows[i].status, "%s: %s", rows[i].name, why.text);
        ck_assert_msg((status == CAIRN_OK) == (why.text[0] == '\0'), "%s", rows[i].name);
    }
}

TEST(a_box_of_an_empty_tensor_has_no_elements_whatever_the_other_extents_are)
{
    const struct shape shape = { 3, { UINT64_MAX, 0, UINT64_MAX } };
    const struct cairn_box box = box_of_shape(&shape);
    ck_assert_int_eq(box_check(&box, &shape, NULL), CAIRN_OK);
    ck_assert_uint_eq(box_element_count(&box), 0);
    ck_assert_uint_eq(box_before(&box, &shape, 0), 0);
    compare_runs(&box, &shape, 0, 0);
}

TEST(a_run_of_a_large_tensor_is_found_without_a_walk)
{
    const struct shape shape = { 3, { (uint64_t)1 << 20, (uint64_t)1 << 14, (uint64_t)1 << 14 } };
    const struct cairn_box box = { 3, { 5, 0, 8192 }, { (uint64_t)1 << 19, 1 << 14, 8192 } };
    const uint64_t first = ((((uint64_t)70000 << 14) + 17) << 14) + 8192 + 100;
    ck_assert_uint_eq(box_before(&box, &shape, first),
                      ((((uint64_t)70000 - 5) << 14) + 17) * 8192 + 100);
    struct box_runs runs;
    box_runs_begin(&runs, &box, &shape, first, 10000);
    uint64_t at, in_box, length;
    ck_assert(box_runs_next(&runs, &at, &in_box, &length));
    ck_assert_uint_eq(at, first);
    ck_assert_uint_eq(length, 8192 - 100);
    ck_assert(!box_runs_next(&runs, &at, &in_box, &length));
}

TEST(a_box_survives_its_bytes_and_other_bytes_are_refused)
{
    random_state = 3;
    for (uint32_t rank = 0; rank <= CAIRN_RANK_MAX; rank++) {
        const struct shape shape = random_shape(rank);
        const struct cairn_box box = random_box(&shape);
        uint8_t bytes[CAIRN_BOX_BYTES_MAX + 1] = { 0 };
        const size_t size = box_encode(&box, bytes);
        ck_assert_uint_eq(size, 4 + 16 * rank);
        struct cairn_box back;
        ck_assert_int_eq(box_decode(bytes, size, &back), CAIRN_OK);
        ck_assert(box_equal(&box, &back));
        ck_assert_int_eq(box_decode(bytes, size + 1, &back), CAIRN_ERR_MALFORMED);
        ck_assert_int_eq(box_decode(bytes, size - 1, &back), CAIRN_ERR_MALFORMED);
    }
    const uint8_t nine[4 + 16 * 9] = { 9 }, huge[4] = { 0, 0, 0, 0xf0 };
    struct cairn_box back;
    ck_assert_int_eq(box_decode(nine, sizeof nine, &back), CAIRN_ERR_MALFORMED);
    ck_assert_int_eq(box_decode(huge, sizeof huge, &back), CAIRN_ERR_MALFORMED);
    ck_assert_int_eq(box_decode(NULL, 0, &back), CAIRN_ERR_MALFORMED);
}

TEST(the_text_of_a_box_fits_whatever_its_numbers_are)
{
    struct cairn_box box = { .rank = CAIRN_RANK_MAX };
    memset(box.start, 0xee, sizeof box.start);
    char text[CAIRN_BOX_TEXT_BYTES];
    ck_assert_uint_lt(strlen(box_text(&box, text)), sizeof text - 1);
    ck_assert_int_eq(text[strlen(text) - 1], ']');
    const struct cairn_box plain = { 2, { 0, 8 }, { 4, 8 } };
    ck_assert_str_eq(box_text(&plain, text), "[0:4, 8:16]");
}

SUITE(60);
