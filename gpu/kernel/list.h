/* A list of work for a kernel of a device. The list is the parameter of the launch.
 *
 * One launch of a kernel processes a list of items. An item is a plain struct in device memory, or in
 * pinned host memory that the device can read. An address in an item is a 64-bit number, and is an address
 * of the device's memory or of pinned host memory. Each item is split into pieces, and the pieces of all
 * items are numbered in the order of the list. Each warp processes one piece after another, so the items of
 * a list may have very different sizes. To launch a kernel:
 *
 *   1. fill an array of items; first_piece of an item is the number of pieces of all items before it (the
 *      functions <name>_pieces below return the number of pieces of an item, which may be 0)
 *   2. copy the array, and the arrays of sources to which its items point, to the device
 *   3. struct kernel_list list = { address of the items, count, pieces of all };
 *      void *parameters[] = { &list };
 *      cuLaunchKernel(kernel "cairn_kernel_<name>", kernel_blocks(number, list.pieces, most), 1, 1,
 *                     kernel_block_threads(number), 1, 1, 0, stream, parameters, NULL)
 *      `number` is CAIRN_KERNEL_<name>. `most` is a number of warps, 64 to 128 times the number of the
 *      device's multiprocessors; the bits are the same for any number of blocks.
 *
 * No two items of a list touch the same bytes, unless both only read them. Addresses are aligned to their
 * element. Kernels are fastest if all planes and sources begin at multiples of 16 bytes (for bf16, of 8
 * bytes). A count in the results (`nonfinite` of an update) is added to the old value, so the caller sets
 * it to 0 before the launch.
 *
 * This header is C that is also valid C++, because nvcc includes it, as do the home on a card and the
 * emulator. */
#ifndef CAIRN_GPU_KERNEL_LIST_H
#define CAIRN_GPU_KERNEL_LIST_H

#include <stddef.h>
#include <stdint.h>

#include "proto/geometry/tensor.h"
#include "proto/spec/scalars.h"

/* For each kernel: its name, the struct of its items, the warps of a block, the number of pieces of an item
 * (below), and in the comment its work. The kernel's symbol on the device is cairn_kernel_<name>. All warps
 * of a block run on one processor, and a piece of `hash` covers 32 leaves. So with eight warps in a block, a
 * list of 256 chunks (16,384 leaves) would have only 64 blocks, and half of a card would be idle. */
#define CAIRN_KERNELS(X)                                                                            \
    /* .fold; adds sums of relays, too: fp32 */                                                     \
    X(fold, struct fold_item, 8, PIECES_OF(elems, ELEMS))                                           \
    /* .fold_leaves; without a source .sum_leaves */                                                \
    X(fold_sums, struct fold_sums_item, 8, PIECES_OF(leaf_count, LEAVES))                           \
    X(update_adamw, struct update_item, 8, PIECES_OF(elems, ELEMS)) /* .update[] */                 \
    X(update_adam, struct update_item, 8, PIECES_OF(elems, ELEMS))                                  \
    X(update_sgd, struct update_item, 8, PIECES_OF(elems, ELEMS))                                   \
    /* the same with an average: apart, since a kernel's registers are those of its longest path */ \
    X(update_adamw_ema, struct update_item, 8, PIECES_OF(elems, ELEMS))                             \
    X(update_adam_ema, struct update_item, 8, PIECES_OF(elems, ELEMS))                              \
    X(update_sgd_ema, struct update_item, 8, PIECES_OF(elems, ELEMS))                               \
    X(convert, struct convert_item, 8, PIECES_OF(elems, ELEMS)) /* .convert */                      \
    /* bytes, in runs with strides */                                                               \
    X(copy, struct copy_item, 8, PIECES_OF(run_bytes, BYTES) * item->run_count)                     \
    X(zero, struct zero_item, 8, PIECES_OF(bytes, BYTES))                                           \
    X(hash, struct hash_item, 2, PIECES_OF(leaf_count, HASHES)) /* leaf hashes of .hash_each */     \
    X(init, struct init_item, 8, PIECES_OF(elems, ELEMS)) /* init_elems of proto/spec/spec.h */

enum kernel_number {
#define CAIRN_KERNEL_NUMBER(name, item, warps, size) CAIRN_KERNEL_##name,
    CAIRN_KERNELS(CAIRN_KERNEL_NUMBER)
#undef CAIRN_KERNEL_NUMBER
        CAIRN_KERNEL_COUNT
};

#define CAIRN_KERNEL_WARP 32u

/* Every kernel has one parameter, this struct, which is passed by value. */
struct kernel_list {
    uint64_t items;  /* address: [count] items of the kernel's struct, aligned to 8 */
    uint64_t count;  /* below 2^32 */
    uint64_t pieces; /* the number of pieces of all items */
};

/* ---- items: the first field of each is first_piece ---- */

struct kernel_source {
    uint64_t data;  /* address: [elems] */
    uint64_t dtype; /* CAIRN_F32 or CAIRN_BF16 */
};

struct fold_item {
    uint64_t first_piece;
    uint64_t acc;     /* address: [elems] f32 */
    uint64_t sources; /* address: [source_count] struct kernel_source; 0 if there is no source */
    uint32_t source_count;
    uint32_t first; /* 1: nothing was folded into acc yet */
    uint64_t elems;
};

/* The fields of a struct geometry that kernels use. */
struct kernel_geometry {
    uint64_t elems, quantum_elems, leaves_per_quantum;
};

struct fold_sums_item {
    uint64_t first_piece;
    uint64_t acc;          /* address: the first element of first_leaf */
    uint64_t sources;      /* address: [source_count] struct kernel_source */
    uint32_t source_count; /* 0: nothing is folded: acc is only read, and its sums are computed */
    uint32_t first;
    struct kernel_geometry geometry;
    uint64_t first_leaf, leaf_count;
    /* address: [leaf_count] double, set to the sum of each leaf, or to 0 if nonfinite of the leaf is not
     * 0 */
    uint64_t squares;
    /* address: [leaf_count] uint32_t, set to the count of NaNs and infinities */
    uint64_t nonfinite;
};

struct update_item {
    uint64_t first_piece;
    /* addresses: [elems] f32; planes that the optimizer does not keep are not touched. ema: only of a
     * kernel with an average */
    uint64_t grad, param, exp_avg, exp_avg_sq, ema;
    uint64_t wire; /* address: [elems] in wire_dtype; 0: no copy */
    uint64_t elems;
    /* address: one uint64_t, to which the number that update_fn returns is added */
    uint64_t nonfinite;
    uint64_t wire_dtype; /* CAIRN_F32 or CAIRN_BF16 */
    struct group_scalars scalars;
};

struct convert_item {
    uint64_t first_piece;
    uint64_t dst, src; /* addresses: [elems] */
    uint64_t elems;
    uint32_t dst_dtype, src_dtype; /* the same dtype twice, or CAIRN_F32 and CAIRN_BF16 */
};

/* Runs of bytes at constant distances. Run i is copied from `from` + i * from_stride to `to` + i *
 * to_stride. To pack or unpack a box of a tensor takes such an item for each two-dimensional part of the
 * box. */
struct copy_item {
    uint64_t first_piece;
    uint64_t to, from; /* addresses, of any alignment */
    uint64_t run_bytes, run_count;
    uint64_t to_stride, from_stride; /* bytes; unused if run_count is 1 */
};

struct zero_item {
    uint64_t first_piece;
    uint64_t at, bytes;
};

struct hash_item {
    uint64_t first_piece;
    uint64_t plane; /* address: the first element of first_leaf */
    uint64_t dtype; /* any cairn_dtype */
    struct kernel_geometry geometry;
    uint64_t first_leaf, leaf_count;
    uint64_t hashes; /* address, aligned to 8: [leaf_count] hashes of 32 bytes */
};

struct init_item {
    uint64_t first_piece;
    uint64_t out;               /* address: [elems] f32 */
    uint64_t first_elem, elems; /* first_elem: the index of out[0] in the tensor */
    struct init_source source;
};

/* ---- pieces: the unit of a warp's work ---- */

#define CAIRN_PIECE_ELEMS  ((uint64_t)4096)  /* for fold, update, convert and init */
#define CAIRN_PIECE_LEAVES ((uint64_t)4)     /* for fold_sums */
#define CAIRN_PIECE_BYTES  ((uint64_t)16384) /* for zero, and for each run of copy */
#define CAIRN_PIECE_HASHES ((uint64_t)32)    /* leaves, for hash */

#ifdef __CUDACC__
#define CAIRN_PIECES_FN static inline __host__ __device__
#else
#define CAIRN_PIECES_FN static inline
#endif

CAIRN_PIECES_FN uint64_t pieces_of(uint64_t whole, uint64_t piece)
{
    return whole / piece + (whole % piece != 0 ? 1 : 0);
}

/* <name>_pieces(item): the number of pieces of an item of a kernel. */
#define PIECES_OF(field, piece) pieces_of(item->field, CAIRN_PIECE_##piece)
#define CAIRN_KERNEL_PIECES(name, type, warps, pieces)     \
    static inline uint64_t name##_pieces(const type *item) \
    {                                                      \
        return pieces;                                     \
    }
CAIRN_KERNELS(CAIRN_KERNEL_PIECES)
#undef CAIRN_KERNEL_PIECES

static inline uint32_t kernel_block_warps(enum kernel_number kernel)
{
    static const uint32_t warps_of[CAIRN_KERNEL_COUNT] = {
#define CAIRN_KERNEL_WARPS(name, item, warps, size) warps,
        CAIRN_KERNELS(CAIRN_KERNEL_WARPS)
#undef CAIRN_KERNEL_WARPS
    };
    return warps_of[kernel];
}

static inline uint32_t kernel_block_threads(enum kernel_number kernel)
{
    return CAIRN_KERNEL_WARP * kernel_block_warps(kernel);
}

/* Returns the number of blocks of a launch. The blocks have a warp for each piece, but not more than `most`
 * warps, rounded up to full blocks. 0: there is nothing to launch. */
static inline uint32_t kernel_blocks(enum kernel_number kernel, uint64_t pieces, uint32_t most)
{
    const uint32_t warps = kernel_block_warps(kernel);
    return (uint32_t)pieces_of(pieces < most ? pieces : most, warps);
}

#endif
