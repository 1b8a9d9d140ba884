/* Memory with strides: judged, and walked like the plain loops over every index. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "proto/geometry/layout.h"
#include "tests/support/suite.h"

enum { ELEMS_MAX = 600, FAR = 5000 };

static struct cairn_box box_of(uint32_t rank, const uint64_t *extent)
{
    struct cairn_box box = { .rank = rank };
    memcpy(box.extent, extent, rank * sizeof *extent);
    return box;
}

static struct strides judged(uint32_t rank, const uint64_t *extent, const int64_t *stride)
{
    const struct cairn_box box = box_of(rank, extent);
    struct strides strides;
    struct sentence why;
    int64_t all[8] = { 0 };
    memcpy(all, stride, rank * sizeof *stride);
    ck_assert_int_eq(strides_judge(all, &box, 4, &strides, &why), CAIRN_OK);
    return strides;
}

static void refused(uint32_t rank, const uint64_t *extent, const int64_t *stride, const char *word)
{
    const struct cairn_box box = box_of(rank, extent);
    struct strides strides;
    struct sentence why;
    ck_assert_int_eq(strides_judge(stride, &box, 4, &strides, &why), CAIRN_ERR_INVALID);
    ck_assert_msg(strstr(why.text, word) != NULL, "%s", why.text);
}

TEST(those_of_a_dense_box_are_none)
{
    ck_assert(!judged(2, (uint64_t[]) { 3, 4 }, (int64_t[]) { 0, 0 }).given);
    ck_assert(!judged(2, (uint64_t[]) { 3, 4 }, (int64_t[]) { 4, 1 }).given);
    ck_assert(!judged(3, (uint64_t[]) { 3, 1, 4 }, (int64_t[]) { 4, 99, 1 }).given);
    ck_assert(!judged(2, (uint64_t[]) { 1, 1 }, (int64_t[]) { 7, 9 }).given);
    ck_assert(!judged(2, (uint64_t[]) { 0, 4 }, (int64_t[]) { 1, 9 }).given);
    ck_assert(!judged(0, (uint64_t[]) { 1 }, (int64_t[]) { 0 }).given);
    ck_assert(judged(2, (uint64_t[]) { 3, 4 }, (int64_t[]) { 1, 3 }).given);
    ck_assert(judged(1, (uint64_t[]) { 3 }, (int64_t[]) { 2 }).given);
    ck_assert(judged(2, (uint64_t[]) { 3, 4 }, (int64_t[]) { 5, 1 }).given);
}

TEST(dimensions_that_lie_behind_each_other_are_joined)
{
    // channels_last: height and width are one run
    const struct strides s = judged(4, (uint64_t[]) { 2, 3, 4, 5 }, (int64_t[]) { 60, 1, 15, 3 });
    ck_assert_uint_eq(s.rank, 3);
    ck_assert_uint_eq(s.extent[2], 20);
    ck_assert_uint_eq(s.stride[2], 3);
    ck_assert_uint_eq(strides_span(&s, 120, 4), 120 * 4);
}

TEST(negative_and_endless_ones_are_refused)
{
    refused(2, (uint64_t[]) { 3, 4 }, (int64_t[8]) { -4, 1 }, "mem.stride[0] is -4");
    refused(2, (uint64_t[]) { 3, 4 }, (int64_t[8]) { 4, 1, 1 }, "mem.stride[2] is 1");
    refused(2, (uint64_t[]) { 3, 4 }, (int64_t[8]) { INT64_MAX, 1 }, "beyond");
    refused(2, (uint64_t[]) { 3, 4 }, (int64_t[8]) { INT64_MAX / 4, 1 }, "beyond");
    refused(2, (uint64_t[]) { 1ull << 40, 4 }, (int64_t[8]) { 1ll << 40, 1 }, "beyond");
}

TEST(only_what_is_surely_apart_may_be_written)
{
    ck_assert(strides_apart(
        &(struct strides) { .given = false, .rank = 1, .extent = { 4 }, .stride = { 0 } }));
    const struct strides transposed = judged(2, (uint64_t[]) { 3, 4 }, (int64_t[]) { 1, 3 });
    const struct strides spread = judged(2, (uint64_t[]) { 3, 4 }, (int64_t[]) { 100, 7 });
    const struct strides row = judged(2, (uint64_t[]) { 3, 4 }, (int64_t[]) { 0, 1 });
    const struct strides sliding = judged(2, (uint64_t[]) { 3, 4 }, (int64_t[]) { 1, 1 });
    const struct strides close = judged(2, (uint64_t[]) { 3, 4 }, (int64_t[]) { 3, 1 });
    ck_assert(strides_apart(&transposed));
    ck_assert(strides_apart(&spread));
    ck_assert(!strides_apart(&row));
    ck_assert(!strides_apart(&sliding));
    ck_assert(!strides_apart(&close));
}

/* Where the n-th element lies, the plain way. */
static uint64_t place(uint32_t rank, const uint64_t *extent, const int64_t *stride, uint64_t n)
{
    uint64_t at = 0;
    for (uint32_t d = rank; d-- > 0; n /= extent[d]) at += n % extent[d] * (uint64_t)stride[d];
    return at;
}

/* Strides of dimensions in some order, with some room between. Returns the elements. */
static uint64_t draw(uint32_t rank, uint64_t *extent, int64_t *stride)
{
    uint32_t order[8];
    uint64_t elems = 1;
    int64_t next = 1;
    for (uint32_t d = 0; d < rank; d++) {
        extent[d] = 1 + (uint64_t)rand() % 5;
        elems *= extent[d];
        order[d] = d;
    }
    for (uint32_t d = rank; d-- > 1;) {
        const uint32_t other = (uint32_t)rand() % (d + 1), was = order[d];
        order[d] = order[other];
        order[other] = was;
    }
    for (uint32_t i = 0; i < rank; i++) {
        stride[order[i]] = next * (1 + rand() % 4 / 3);
        next = stride[order[i]] * (int64_t)extent[order[i]];
    }
    return elems;
}

static void walk_both_ways(uint32_t rank, const uint64_t *extent, const int64_t *stride,
                           uint64_t elems)
{
    static float far[FAR], there[FAR];
    float out[ELEMS_MAX] = { 0 };
    const struct strides s = judged(rank, extent, stride);
    if (!s.given) return;
    ck_assert(strides_apart(&s));
    const uint64_t last = place(rank, extent, stride, elems - 1);
    ck_assert_uint_lt(last, FAR);
    ck_assert_uint_eq(strides_span(&s, elems, 4), (last + 1) * 4);
    for (uint64_t i = 0; i < FAR; i++) far[i] = (float)i, there[i] = -1;
    const uint64_t first = (uint64_t)rand() % elems, count = (uint64_t)rand() % (elems - first) + 1;
    strides_gather(&s, far, 4, first, count, out);
    for (uint64_t i = 0; i < count; i++)
        ck_assert_float_eq(out[i], (float)place(rank, extent, stride, first + i));
    strides_scatter(&s, there, 4, first, count, out);
    uint64_t written = 0;
    for (uint64_t i = 0; i < FAR; i++) written += there[i] >= 0;
    ck_assert_uint_eq(written, count);
    for (uint64_t i = 0; i < count; i++)
        ck_assert_float_eq(there[place(rank, extent, stride, first + i)], out[i]);
}

TEST(any_range_of_any_layout_is_gathered_and_scattered_as_indices_say)
{
    uint64_t extent[8];
    int64_t stride[8];
    srand(7);
    for (int n = 0; n < 3000; n++) {
        const uint32_t rank = 1 + (uint32_t)rand() % 4;
        const uint64_t elems = draw(rank, extent, stride);
        walk_both_ways(rank, extent, stride, elems);
    }
}

TEST(elements_of_2_and_8_bytes_are_whole)
{
    const struct strides s = judged(2, (uint64_t[]) { 3, 4 }, (int64_t[]) { 1, 3 });
    uint16_t narrow[12], narrow_out[12];
    double wide[12], wide_out[12];
    for (int i = 0; i < 12; i++) narrow[i] = (uint16_t)(i * 5000), wide[i] = i / 3.0;
    strides_gather(&s, narrow, 2, 0, 12, narrow_out);
    strides_gather(&s, wide, 8, 0, 12, wide_out);
    for (int i = 0; i < 12; i++) {
        ck_assert_uint_eq(narrow_out[i], narrow[i % 4 * 3 + i / 4]);
        ck_assert_double_eq(wide_out[i], wide[i % 4 * 3 + i / 4]);
    }
}

SUITE(30);
