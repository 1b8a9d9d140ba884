/* Boxes of a tensor: what a worker that holds only a part of it holds (struct cairn_box, tensor.h).
 *
 *   box memory    the box's elements, dense and row-major: what a worker has
 *   box element   a place there, [0, box_element_count)
 *   tensor index  a place in the row-major tensor, [0, elements of the shape)
 *
 * Row-major order of the tensor and of the box agree on the box's elements. So what a box has in common
 * with a range of tensor indices (a chunk) is one contiguous piece of box memory:
 * [before(first), before(first + count)). A worker sends it as it lies; who has the tensor in memory
 * walks the runs. A box with an extent of 0 is empty: valid, and nothing.
 *
 * Pure: no allocation, no input or output, no state. Unless said otherwise boxes are judged ones
 * (box_check) of a judged shape. */
#ifndef CAIRN_GEOMETRY_BOX_H
#define CAIRN_GEOMETRY_BOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/tensor.h"

/* Judges a stranger's box of a judged shape: as many dimensions, and none reaches beyond the tensor.
 * CAIRN_ERR_INVALID; `why` names the dimension and the numbers. */
cairn_status box_check(const struct cairn_box *box, const struct shape *shape,
                       struct sentence *why) CAIRN_MUST_CHECK;
/* The box that is the whole tensor. */
struct cairn_box box_of_shape(const struct shape *shape);
/* Elements of the box; 1 of a box without dimensions (a scalar). */
uint64_t box_element_count(const struct cairn_box *box);
bool box_is_whole(const struct cairn_box *box, const struct shape *shape);
bool box_equal(const struct cairn_box *a, const struct cairn_box *b);
/* True if the two, of one tensor, have an element in common. */
bool box_overlap(const struct cairn_box *a, const struct cairn_box *b);

/* How many of the box's elements have a tensor index < index, for index <= elements of the tensor. In
 * the time of one division a dimension. */
uint64_t box_before(const struct cairn_box *box, const struct shape *shape, uint64_t index);

/* Walks what a box and a range of tensor indices have in common: the fewest runs that are contiguous in
 * the tensor, ascending. Each next costs one division a dimension. */
struct box_runs {
    struct cairn_box box;
    uint64_t stride[CAIRN_RANK_MAX]; /* elements of the tensor, of one index of a dimension */
    uint32_t outer;                  /* dimensions that a run does not span */
    uint64_t run_elems;              /* of a whole run */
    uint64_t base;                   /* tensor index of the box's first element */
    uint64_t next, end;              /* box elements */
};
/* The range is within the tensor. */
void box_runs_begin(struct box_runs *runs, const struct cairn_box *box, const struct shape *shape,
                    uint64_t first_elem, uint64_t elem_count);
/* False when there is none left; then nothing is set. */
bool box_runs_next(struct box_runs *runs, uint64_t *tensor_elem_out, uint64_t *box_elem_out,
                   uint64_t *count_out);

/* Bytes, little-endian: u32 rank, u64 start a dimension, u64 extent a dimension. */
#define CAIRN_BOX_BYTES_MAX (4 + 16 * CAIRN_RANK_MAX)
/* Returns how many bytes were written. */
size_t box_encode(const struct cairn_box *box, uint8_t out[CAIRN_BOX_BYTES_MAX]);
/* Decodes a box that a stranger sent: the caller has to judge the result. CAIRN_ERR_MALFORMED: not
 * exactly one box. */
cairn_status box_decode(const uint8_t *bytes, size_t size,
                        struct cairn_box *box_out) CAIRN_MUST_CHECK;

/* Prints any box as "[0:512, 128:256]": the first index, and the first that is not in it. Returns
 * out. */
#define CAIRN_BOX_TEXT_BYTES 352
const char *box_text(const struct cairn_box *box, char out[CAIRN_BOX_TEXT_BYTES]);

#endif
