/* The caller's memory where it is not dense: element (i0, i1, ...) of a piece lies i0 * stride[0] +
 * i1 * stride[1] + ... elements behind the pointer. The wire knows dense pieces only: what is sent is
 * gathered, what came is scattered, a chunk at a time. Pure. */
#ifndef CAIRN_CLIENT_BASE_STRIDES_H
#define CAIRN_CLIENT_BASE_STRIDES_H

#include <cairn.h>

#include "proto/base/sentence.h"

struct strides {
    bool given; /* false: dense, row-major, and the rest says nothing */
    /* The piece's dimensions, joined where that moves no element: at least one, none of 1
     * element. */
    uint32_t rank;
    uint64_t extent[8], stride[8]; /* elements */
};

/* Judges a caller's strides for memory of this box; all 0, or those that a dense box has, are not `given`.
 * CAIRN_ERR_INVALID: one is negative, or they reach further than addresses do. */
cairn_status cairn_strides_judge(const int64_t stride[8], const struct cairn_box *box,
                                 size_t elem_bytes, struct strides *out,
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* False unless it is sure that no two elements share memory: along the dimensions by ascending stride, each
 * steps over all of those before. */
bool cairn_strides_apart(const struct strides *strides);
/* Bytes from the first element to behind the last one, of a piece that has `elems`. */
size_t cairn_strides_span(const struct strides *strides, uint64_t elems, size_t elem_bytes);

/* Elements [first, first + count) of the piece in row-major order, from the caller's memory (`base` is
 * element 0) to dense `out`, and back. `strides` are given. */
void cairn_strides_gather(const struct strides *strides, const void *base, size_t elem_bytes,
                          uint64_t first, uint64_t count, void *out);
void cairn_strides_scatter(const struct strides *strides, void *base, size_t elem_bytes,
                           uint64_t first, uint64_t count, const void *in);

#endif
