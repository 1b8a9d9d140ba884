/* Tensors, their planes, and the units in which every other part counts: rows, quanta, leaves, boxes.
 *
 *   row      a slice along the first dimension; if that has more than 2^20 elements, along the first
 *            dimension whose slices have no more. Rows are numbered over all dimensions up to that one.
 *   quantum  the smallest piece that a layout moves: the fewest whole rows with at least 4096 elements,
 *            or the tensor's end.
 *   leaf     4096 consecutive elements counted from its quantum's start; a quantum's last leaf may be
 *            short. Sums and hashes are made by leaf, so their value never depends on the layout.
 *
 * All three are contiguous ranges of the tensor in row-major order. A tensor's leaves are numbered
 * from 0: quantum q has the leaves [q * leaves_per_quantum, ...), the tensor's last quantum may have
 * fewer. Everything here is pure: no allocation, no input or output. Counts are of elements unless a
 * name says otherwise; a tensor has at most 2^48 elements (shape_check refuses more). */
#ifndef CAIRN_GEOMETRY_TENSOR_H
#define CAIRN_GEOMETRY_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"

#define CAIRN_RANK_MAX         8
#define CAIRN_NAME_MAX         255 /* bytes of a name, without the terminating NUL */
#define CAIRN_ROW_ELEMS_MAX    ((uint64_t)1 << 20)
#define CAIRN_LEAF_ELEMS       ((uint64_t)4096)
#define CAIRN_TENSOR_ELEMS_MAX ((uint64_t)1 << 48)

#ifndef CAIRN_TENSOR_TYPES_DEFINED /* cairn.h, which includes no header of ours, repeats these (tested) */
#define CAIRN_TENSOR_TYPES_DEFINED
typedef enum cairn_dtype {
    CAIRN_F32 = 1,
    CAIRN_BF16 = 2,
    CAIRN_F16 = 3,
    CAIRN_F64 = 4,
    CAIRN_U8 = 5 /* bytes: for a CAIRN_BLOB only */
} cairn_dtype;
typedef enum cairn_kind {
    CAIRN_TRAINED = 1,
    CAIRN_FROZEN = 2,
    CAIRN_BUFFER = 3,
    CAIRN_BLOB = 4
} cairn_kind;
struct cairn_box {
    uint32_t rank;
    uint64_t start[CAIRN_RANK_MAX], extent[CAIRN_RANK_MAX]; /* elements, per dimension */
};
struct cairn_version {
    uint64_t generation, step;
};
#endif

/* Bytes of one element; 0 for a number that is not a dtype. */
size_t dtype_size(int dtype);
/* "f32", "bf16", ...; "?" for a number that is not a dtype. */
const char *dtype_label(int dtype);

/* Returns < 0, 0 or > 0 if `a` is older than b, the same, or newer. A restore begins a new generation. */
static inline int version_compare(struct cairn_version a, struct cairn_version b)
{
    if (a.generation != b.generation) return a.generation < b.generation ? -1 : 1;
    return a.step == b.step ? 0 : a.step < b.step ? -1 : 1;
}

/* The planes of a tensor that have a number on the wire. */
enum plane {
    CAIRN_PLANE_PARAM = 1,      /* the master: fp32; for a blob its bytes */
    CAIRN_PLANE_WIRE = 2,       /* the published copy, in the tensor's wire dtype */
    CAIRN_PLANE_EXP_AVG = 3,    /* Adam's m; SGD's momentum buffer */
    CAIRN_PLANE_EXP_AVG_SQ = 4, /* Adam's v */
    CAIRN_PLANE_COUNT = 5       /* one more than the last */
};
/* "param", "wire", "exp_avg", "exp_avg_sq"; NULL for a number that is not a plane. */
const char *plane_name(int plane);
/* The dtype of a plane's elements: the parameters are in the tensor's master dtype, the others in
 * f32. */
cairn_dtype plane_dtype(int plane, cairn_dtype master);
/* The number of the plane with that name; 0 if there is none. */
int plane_number(const char *name);

/* The properties of a tensor that the geometry needs. Names, groups and dtypes are in struct
 * tensor_spec (proto/spec/spec.h). */
struct shape {
    uint32_t rank;                /* 0 (a scalar: one element) to CAIRN_RANK_MAX */
    uint64_t dim[CAIRN_RANK_MAX]; /* elements; 0 makes the tensor empty */
};

struct geometry {
    uint64_t elems;              /* of the whole tensor */
    uint64_t row_elems;          /* at least 1, except in an empty tensor */
    uint64_t row_count;          /* elems / row_elems */
    uint64_t quantum_rows;       /* of every quantum except the last */
    uint64_t quantum_elems;      /* quantum_rows * row_elems */
    uint64_t quantum_count;      /* 0 in an empty tensor */
    uint64_t leaves_per_quantum; /* of every quantum except the last */
    uint64_t leaf_count;
    uint32_t row_dim; /* rows are slices along this dimension */
};

/* CAIRN_ERR_INVALID if the rank or the number of elements is over the limits; never overflows. */
cairn_status shape_check(const struct shape *shape) CAIRN_MUST_CHECK;
/* The geometry of a shape that shape_check accepts. */
struct geometry geometry_of(const struct shape *shape);

/* First element of leaf `leaf` (row-major in the tensor), for leaf <= leaf_count; leaf == leaf_count
 * gives elems, so that first(leaf + n) - first(leaf) is the size of n leaves. */
uint64_t leaf_start(const struct geometry *g, uint64_t leaf);
/* First leaf of quantum q <= quantum_count. */
uint64_t quantum_first_leaf(const struct geometry *g, uint64_t quantum);
/* First element of quantum q <= quantum_count. */
uint64_t quantum_first_elem(const struct geometry *g, uint64_t quantum);
/* The leaf that holds element elem < elems. */
uint64_t leaf_of_elem(const struct geometry *g, uint64_t elem);

/* The most boxes that a range of whole rows can need: two for each outer dimension, and one. */
#define CAIRN_RANGE_BOXES_MAX (2 * CAIRN_RANK_MAX - 1)
/* Cuts the row-major range [first_elem, first_elem + elem_count), which must start and end on rows,
 * into the fewest boxes, in row-major order. Returns how many (0 for an empty range). */
size_t range_boxes(const struct shape *shape, uint64_t first_elem, uint64_t elem_count,
                   struct cairn_box out[CAIRN_RANGE_BOXES_MAX]);

#endif
