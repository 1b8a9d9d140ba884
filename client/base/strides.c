#include "client/base/strides.h"

#include <inttypes.h>
#include <string.h>

#include "proto/geometry/box.h"

/* ---- judging ---- */

/* The bytes to behind the last element can be counted. */
static bool reaches(const struct strides *s, size_t elem_bytes)
{
    uint64_t last = 0, far;
    for (uint32_t d = 0; d < s->rank; d++) {
        if (__builtin_mul_overflow(s->extent[d] - 1, s->stride[d], &far) ||
            __builtin_add_overflow(last, far, &last))
            return false;
    }
    return last < PTRDIFF_MAX / elem_bytes;
}

/* One dimension more, inside of those before: it joins the last one where that steps over just all of it. */
static void add_dimension(struct strides *s, uint64_t extent, uint64_t stride)
{
    uint64_t over;
    if (extent == 1) return;
    const bool joins = s->rank > 0 && !__builtin_mul_overflow(extent, stride, &over) &&
                       s->stride[s->rank - 1] == over;
    if (!joins) s->extent[s->rank++] = 1;
    s->extent[s->rank - 1] *= extent;
    s->stride[s->rank - 1] = stride;
}

static cairn_status judge_number(int64_t stride, uint32_t d, uint32_t rank,
                                 struct cairn_sentence *why)
{
    if (stride < 0)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "mem.stride[%" PRIu32 "] is %" PRId64 "; allowed: 0 or more", d, stride);
    if (stride == 0 || d < rank) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_INVALID,
                      "mem.stride[%" PRIu32 "] is %" PRId64 ", and there are %" PRIu32
                      " dimensions; those behind them are 0",
                      d, stride, rank);
}

cairn_status cairn_strides_judge(const int64_t stride[8], const struct cairn_box *box,
                                 size_t elem_bytes, struct strides *out, struct cairn_sentence *why)
{
    struct strides s = { .given = false };
    bool any = false;
    for (uint32_t d = 0; d < 8; d++) {
        const cairn_status status = judge_number(stride[d], d, box->rank, why);
        if (status != CAIRN_OK) return status;
        any = any || stride[d] != 0;
    }
    if (any && cairn_box_elems(box) > 0) {
        for (uint32_t d = 0; d < box->rank; d++)
            add_dimension(&s, box->extent[d], (uint64_t)stride[d]);
        if (!reaches(&s, elem_bytes))
            return cairn_fail(why, CAIRN_ERR_INVALID,
                              "mem.stride: the last element lies beyond every address");
        s.given = s.rank > 1 || (s.rank == 1 && s.stride[0] != 1);
    }
    *out = s;
    return CAIRN_OK;
}

bool cairn_strides_apart(const struct strides *s)
{
    uint64_t spanned = 1; // elements from the first to behind the last, of the dimensions so far
    bool done[8] = { false };
    for (uint32_t n = 0; s->given && n < s->rank; n++) {
        uint32_t least = s->rank;
        for (uint32_t d = 0; d < s->rank; d++)
            if (!done[d] && (least == s->rank || s->stride[d] < s->stride[least])) least = d;
        done[least] = true;
        if (s->stride[least] < spanned) return false;
        spanned += (s->extent[least] - 1) * s->stride[least];
    }
    return true;
}

size_t cairn_strides_span(const struct strides *s, uint64_t elems, size_t elem_bytes)
{
    if (!s->given) return (size_t)elems * elem_bytes;
    uint64_t last = 0;
    for (uint32_t d = 0; d < s->rank; d++) last += (s->extent[d] - 1) * s->stride[d];
    return ((size_t)last + 1) * elem_bytes;
}

/* ---- walking ---- */

/* A place on the way through a piece. */
struct walk {
    const struct strides *strides;
    uint64_t at[8]; /* index of each dimension */
    uint64_t elem;  /* from the caller's pointer */
};

static struct walk walk_from(const struct strides *s, uint64_t first)
{
    struct walk walk = { .strides = s };
    for (uint32_t d = s->rank; d-- > 0; first /= s->extent[d]) {
        walk.at[d] = first % s->extent[d];
        walk.elem += walk.at[d] * s->stride[d];
    }
    return walk;
}

/* How many elements, at most `left`, lie along the last dimension from here. */
static uint64_t along(const struct walk *walk, uint64_t left)
{
    const uint32_t last = walk->strides->rank - 1;
    const uint64_t run = walk->strides->extent[last] - walk->at[last];
    return run < left ? run : left;
}

static void go_on(struct walk *walk, uint64_t run)
{
    const struct strides *s = walk->strides;
    uint32_t d = s->rank - 1;
    walk->at[d] += run;
    walk->elem += run * s->stride[d];
    for (; d > 0 && walk->at[d] == s->extent[d]; d--) {
        walk->elem -= s->extent[d] * s->stride[d];
        walk->at[d] = 0;
        walk->at[d - 1]++;
        walk->elem += s->stride[d - 1];
    }
}

/* `count` elements, one every so many bytes. */
static void copy(uint8_t *to, size_t to_step, const uint8_t *from, size_t from_step,
                 size_t elem_bytes, uint64_t count)
{
    if (to_step == elem_bytes && from_step == elem_bytes)
        memcpy(to, from, count * elem_bytes);
    else if (elem_bytes == 4)
        for (uint64_t i = 0; i < count; i++) memcpy(to + i * to_step, from + i * from_step, 4);
    else if (elem_bytes == 2)
        for (uint64_t i = 0; i < count; i++) memcpy(to + i * to_step, from + i * from_step, 2);
    else
        for (uint64_t i = 0; i < count; i++)
            memcpy(to + i * to_step, from + i * from_step, elem_bytes);
}

void cairn_strides_gather(const struct strides *s, const void *base, size_t elem_bytes,
                          uint64_t first, uint64_t count, void *out)
{
    const size_t step = (size_t)s->stride[s->rank - 1] * elem_bytes;
    struct walk walk = walk_from(s, first);
    uint8_t *to = out;
    for (uint64_t left = count, run; left > 0; left -= run) {
        run = along(&walk, left);
        copy(to, elem_bytes, (const uint8_t *)base + walk.elem * elem_bytes, step, elem_bytes, run);
        to += run * elem_bytes;
        go_on(&walk, run);
    }
}

void cairn_strides_scatter(const struct strides *s, void *base, size_t elem_bytes, uint64_t first,
                           uint64_t count, const void *in)
{
    const size_t step = (size_t)s->stride[s->rank - 1] * elem_bytes;
    struct walk walk = walk_from(s, first);
    const uint8_t *from = in;
    for (uint64_t left = count, run; left > 0; left -= run) {
        run = along(&walk, left);
        copy((uint8_t *)base + walk.elem * elem_bytes, step, from, elem_bytes, elem_bytes, run);
        from += run * elem_bytes;
        go_on(&walk, run);
    }
}
