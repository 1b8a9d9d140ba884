/* Tensors and their planes, and the units in which all other code counts: rows, quanta, leaves and boxes.
 *
 *   row      a slice along the first dimension; if such a slice has more than 2^20 elements, along the
 *            first dimension whose slices have no more than that. Rows are numbered over all dimensions up
 *            to this one.
 *   quantum  the smallest piece that a layout can give to a shard: as few whole rows as have at least 4096
 *            elements. The last quantum of a tensor may be smaller.
 *   leaf     4096 consecutive elements, counted from the beginning of the quantum; the last leaf of a
 *            quantum may be shorter. Sums and hashes are made leaf by leaf, so their values never depend on
 *            the layout.
 *
 * All three are contiguous ranges of the tensor in row-major order. The leaves of a tensor are numbered
 * from 0. Quantum q begins with leaf q * leaves_per_quantum, and the last quantum may have fewer leaves
 * than the others. Everything here is pure: no allocation, no input or output. Counts are counts of
 * elements unless a name says otherwise. A tensor has at most 2^48 elements (shape_check refuses more). */
#ifndef CAIRN_GEOMETRY_TENSOR_H
#define CAIRN_GEOMETRY_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"

#define CAIRN_RANK_MAX         8
#define CAIRN_NAME_MAX         255 /* the most bytes of a name, without its NUL */
#define CAIRN_ROW_ELEMS_MAX    ((uint64_t)1 << 20)
#define CAIRN_LEAF_ELEMS       ((uint64_t)4096)
#define CAIRN_TENSOR_ELEMS_MAX ((uint64_t)1 << 48)

/* cairn.h includes no other header of Cairn, so it repeats these types (tested) */
#ifndef CAIRN_TENSOR_TYPES_DEFINED
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
    uint64_t start[CAIRN_RANK_MAX], extent[CAIRN_RANK_MAX]; /* in elements, for each dimension */
};
struct cairn_version {
    uint64_t generation, step;
};
#endif

/* Returns the bytes of one element; 0 for a number that is not a dtype. */
size_t dtype_size(int dtype);
/* Returns "f32", "bf16", ...; "?" for a number that is not a dtype. */
const char *dtype_label(int dtype);

/* Returns a number below 0 if `a` is older than `b`, above 0 if it is newer, and 0 if both are the same. A
 * restore begins a new generation. */
static inline int version_compare(struct cairn_version a, struct cairn_version b)
{
    if (a.generation != b.generation) return a.generation < b.generation ? -1 : 1;
    return a.step == b.step ? 0 : a.step < b.step ? -1 : 1;
}

/* The origin of a job's versions. It changes when the job goes back to an older version, and when a job
 * begins although snapshots of its name exist. The versions from `generation` on follow version `from`; the
 * job has given up the versions between these two. from = 0.0: the job's versions follow no older version
 * of that name. generation = 0: the job never went back, so its versions follow every older version. */
struct origin {
    uint64_t generation;
    struct cairn_version from;
};
/* Returns true if the version is on the job's line. This is so if it has the origin's generation or a later
 * one, or is not after `from`. */
static inline bool origin_follows(const struct origin *origin, struct cairn_version version)
{
    return version.generation >= origin->generation || version_compare(version, origin->from) <= 0;
}

/* The planes of a tensor. The numbers are sent on the wire. */
enum plane {
    CAIRN_PLANE_PARAM = 1,      /* the master, in fp32; for a blob, its bytes */
    CAIRN_PLANE_WIRE = 2,       /* the published copy, in the tensor's wire dtype */
    CAIRN_PLANE_EXP_AVG = 3,    /* Adam's m; SGD's momentum buffer */
    CAIRN_PLANE_EXP_AVG_SQ = 4, /* Adam's v */
    CAIRN_PLANE_EMA = 5,        /* the exponential moving average of the parameters */
    CAIRN_PLANE_COUNT = 6       /* one more than the last number */
};
/* Returns "param", "wire", "exp_avg", "exp_avg_sq" or "ema"; NULL for a number that is not a plane. */
const char *plane_name(int plane);
/* Returns the dtype of a plane's elements: the tensor's master dtype for CAIRN_PLANE_PARAM, f32 for the
 * others. Not for CAIRN_PLANE_WIRE. */
cairn_dtype plane_dtype(int plane, cairn_dtype master);
/* Returns the number of the plane with that name; 0 if there is none. */
int plane_number(const char *name);

/* The properties of a tensor on which its geometry depends. Names, groups and dtypes are in struct
 * tensor_spec (proto/spec/spec.h). */
struct shape {
    uint32_t rank;                /* 0 to CAIRN_RANK_MAX; 0: a scalar, which has one element */
    uint64_t dim[CAIRN_RANK_MAX]; /* in elements; if any is 0, the tensor is empty */
};

struct geometry {
    uint64_t elems;              /* elements of the whole tensor */
    uint64_t row_elems;          /* elements of a row; at least 1, except in an empty tensor */
    uint64_t row_count;          /* elems / row_elems */
    uint64_t quantum_rows;       /* rows of every quantum except the last */
    uint64_t quantum_elems;      /* quantum_rows * row_elems */
    uint64_t quantum_count;      /* 0 in an empty tensor */
    uint64_t leaves_per_quantum; /* leaves of every quantum except the last */
    uint64_t leaf_count;
    uint32_t row_dim; /* rows are slices along this dimension */
};

/* CAIRN_ERR_INVALID: the rank or the number of elements is above its limit. Never overflows. */
cairn_status shape_check(const struct shape *shape) CAIRN_MUST_CHECK;
/* Returns the geometry of a shape that shape_check accepts. */
struct geometry geometry_of(const struct shape *shape);

/* Returns the first element of leaf <= leaf_count, as a row-major index in the tensor. For leaf ==
 * leaf_count returns elems, so that leaf_start(leaf + n) - leaf_start(leaf) is always the size of n
 * leaves. */
uint64_t leaf_start(const struct geometry *g, uint64_t leaf);
/* Returns the first leaf of quantum <= quantum_count. */
uint64_t quantum_first_leaf(const struct geometry *g, uint64_t quantum);
/* Returns the first element of quantum <= quantum_count. */
uint64_t quantum_first_elem(const struct geometry *g, uint64_t quantum);
/* Returns the leaf that holds element elem < elems. */
uint64_t leaf_of_elem(const struct geometry *g, uint64_t elem);

/* The most boxes that a range of whole rows can need: two for each dimension before the innermost, and
 * one. */
#define CAIRN_RANGE_BOXES_MAX (2 * CAIRN_RANK_MAX - 1)
/* Cuts the row-major range [first_elem, first_elem + elem_count), which must begin and end at the boundary
 * of a row, into as few boxes as possible, in row-major order. Returns the number of boxes, which is 0 for
 * an empty range. */
size_t range_boxes(const struct shape *shape, uint64_t first_elem, uint64_t elem_count,
                   struct cairn_box out[CAIRN_RANGE_BOXES_MAX]);

#endif
