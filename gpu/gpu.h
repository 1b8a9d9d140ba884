/* The door to arithmetic on state: kernels that `host` has as the reference, and that a device plugin
 * gives with the same bits.
 *
 * How the bits are kept: every operation is IEEE fp32 (or double where it says so), in the order that
 * is written, rounds once (no contraction into fma), round to nearest even, subnormals kept. A kernel
 * works on elements independently, or by leaf with a fixed order inside the leaf, so any split of the
 * work into ranges of elements (leaves for sums and digests), on any number of threads, gives the same
 * bits. NaN payloads are not promised.
 *
 * Pointers are to host memory for `host`, aligned to the element, and never overlap unless it says so.
 * Kernels allocate nothing, take no lock, touch only what they are given; call them from any thread
 * whose float_env_ok() holds. Arguments are checked by asserts: they come from a layout, never
 * from a peer. */
#ifndef CAIRN_GPU_H
#define CAIRN_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/exact.h"
#include "proto/geometry/tensor.h"
#include "proto/snapshot/digest_tree.h"
#include "proto/spec/optimizer.h"
#include "proto/spec/scalars.h"

/* A landed contribution: elems elements of one chunk. */
struct fold_source {
    const void *data;  /* [elems] */
    cairn_dtype dtype; /* CAIRN_F32 or CAIRN_BF16 */
};

/* The sums of a shard's part, or of any part: add them up with exact_add and +. All zero is the
 * sum of nothing. A leaf that has a non-finite element adds to nonfinite only. */
struct sums {
    struct exact sum_squares;
    uint64_t nonfinite; /* elements that are NaN or infinite */
};

/* A fold of whole leaves, with their sums. A chunk's last fold is one of these: what is added up is final. */
struct leaf_fold {
    float *acc;                        /* the first element of first_leaf */
    const struct fold_source *sources; /* [source_count], at least one, of the leaves' elements */
    size_t source_count;
    bool first;
    bool
        far; /* acc is not read again before the caches have forgotten it: it may be written around them */
    const struct geometry *geometry;
    uint64_t first_leaf, leaf_count;
    struct sums *sums; /* the leaves are added to it */
};

/* A run of elements of one tensor to update. */
struct update {
    const float *grad;      /* [elems] the folded sum, not yet scaled */
    float *param;           /* [elems] */
    float *exp_avg;         /* [elems]; NULL where the optimizer does not keep it */
    float *exp_avg_sq;      /* [elems]; NULL where the optimizer does not keep it */
    void *wire;             /* [elems] the copy to publish, in wire_dtype; NULL: none */
    cairn_dtype wire_dtype; /* CAIRN_F32 or CAIRN_BF16 */
    size_t elems;
    bool
        far; /* wire is not read before the caches have forgotten it: it may be written around them */
};

/* Returns of how many elements a result is not finite: the parameter, a moment that the optimizer keeps, or
 * the wire copy, which bf16 may have as infinite where the parameter is not. */
typedef uint64_t (*update_fn)(const struct update *update, const struct group_scalars *scalars);

struct backend {
    const char *name; /* "host" */
    const char *isa;  /* what its kernels are compiled for: "avx512", "avx2", "plain" */

    /* The strict left fold acc = ((acc + s0) + s1) + ... over [elems]. `first`: nothing was folded yet,
     * and s0 is copied instead of added to anything; with no source at all acc is then +0. Sources
     * folded in one call or in several give the same bits. */
    void (*fold)(float *acc, const struct fold_source *sources, size_t source_count, bool first,
                 size_t elems);

    /* fold and sum_leaves in one pass over memory, with the bits of both. */
    void (*fold_leaves)(const struct leaf_fold *leaf_fold);

    /* Adds the leaves [first_leaf, first_leaf + leaf_count) to *sums. acc: the first element of
     * first_leaf. Within a leaf the square of element i, which is exact in double, is added to lane
     * i mod 32, in order of i; then lane k += lane k + w for w = 16, 8, 4, 2, 1. The leaves' sums
     * are added exactly. */
    void (*sum_leaves)(const float *acc, const struct geometry *geometry, uint64_t first_leaf,
                       uint64_t leaf_count, struct sums *sums);

    /* The update of each optimizer, by enum optimizer_id ([0] is NULL): updates the planes
     * and writes the wire copy. The order of operations is written above each kernel. */
    update_fn update[CAIRN_OPTIMIZER_COUNT];

    /* Converts between CAIRN_F32 and CAIRN_BF16, or copies what has the same dtype. To bf16 it rounds to
     * nearest even, overflow gives infinity, NaN stays a quiet NaN. */
    void (*convert)(void *dst, cairn_dtype dst_dtype, const void *src, cairn_dtype src_dtype,
                    size_t elems);

    /* The hashes of the leaves [first_leaf, first_leaf + leaf_count). plane: the first element of
     * first_leaf, any dtype of proto/geometry/tensor.h. NaN is hashed as the quiet NaN with a positive
     * sign and no payload. */
    void (*hash_each)(const void *plane, cairn_dtype dtype, const struct geometry *geometry,
                      uint64_t first_leaf, uint64_t leaf_count, struct hash *hashes_out);
};

/* Pushes the hashes of the leaves [tree->next_leaf, + leaf_count) to the tree; plane as of hash_each. */
void backend_hash_leaves(const struct backend *backend, const void *plane, cairn_dtype dtype,
                         const struct geometry *geometry, uint64_t leaf_count,
                         struct hash_tree *tree);

/* The reference, for the widest instruction set that this CPU has; or that the environment's CAIRN_HOST_ISA
 * names, if it has that (read once: tests compare them). Static memory. */
const struct backend *backend_host(void);
/* The reference for one instruction set, from 0 on, the widest last; the bits of all are the same. NULL:
 * this CPU lacks it. */
#define CAIRN_HOST_ISA_COUNT 3
const struct backend *backend_host_at(uint32_t isa);
/* "plain", "avx2", "avx512" */
const char *backend_host_isa(uint32_t isa);

/* The dtypes that contributions, and the wire copy of all but a blob, can have. */
bool wire_dtype_ok(int dtype);

/* True if this thread rounds to nearest and keeps subnormals (x86: MXCSR is 0x1F80 but for its sticky
 * flags). Every compute thread asserts it before its first kernel: a library that a process loads can
 * change it. */
bool float_env_ok(void);

#endif
