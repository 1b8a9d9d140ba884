/* The language in which device kernels are written. nvcc compiles the kernels for a device
 * (gpu/cuda/kernels.cu). A C compiler compiles them for tests and for the emulated driver
 * (tests/gpu/kernels/host.c). Both give the same bits.
 *
 * A kernel is a function, as KERNEL_FN void fold_piece(item, piece), that does a warp's work on one piece
 * of one item (gpu/kernel/list.h); gpu/kernel/bodies.h iterates over the list. Warps are independent of
 * each other, so any order and any number of warps gives the same bits. The 32 lanes of a warp are threads
 * on a device, and iterations of a loop in C:
 *
 *   LANE_ARRAY(double, sum);          a variable per lane: a scalar on a device, an array of 32 in C
 *   EACH_LANE(lane)                   the lane's number, in order in C; the block runs once per lane, and
 *       sum[LANE(lane)] = f(lane);    no lane may read what another lane writes in this block
 *   lanes_add_f64(sum, 16);           between blocks: lane k += lane k + 16
 *
 * Memory is accessed only by MEMORY_AT(type, address), where the address comes from a list. On a device the
 * result is the address itself, as a pointer. In C it is CAIRN_KERNEL_AT of tests/gpu/kernels/host.h, which
 * adds an offset, because the memory of an emulated device does not lie at its nominal address. The address
 * must have the type's alignment. Otherwise a device aborts the launch, and the C version records the
 * error. */
#ifndef CAIRN_GPU_KERNEL_KERNEL_H
#define CAIRN_GPU_KERNEL_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "gpu/kernel/list.h"

#ifdef __CUDACC__

#define KERNEL_FN static __device__ __forceinline__
/* for functions that are large and rarely called */
#define KERNEL_FN_APART          static __device__ __noinline__
#define MEMORY_AT(type, address) ((type *)(uintptr_t)(address))
#define LANES_HERE               1
#define LANE(lane)               ((void)(lane), 0)
#define EACH_LANE(lane)          if (const uint32_t lane = threadIdx.x % CAIRN_KERNEL_WARP; true)
#define KERNEL_UNROLL            _Pragma("unroll")

#else

#define KERNEL_FN                static inline __attribute__((unused))
#define KERNEL_FN_APART          KERNEL_FN
#define MEMORY_AT(type, address) CAIRN_KERNEL_AT(type, address)
#define LANES_HERE               32
#define LANE(lane)               (lane)
#define EACH_LANE(lane)          for (uint32_t lane = 0; lane < CAIRN_KERNEL_WARP; lane++)
#define KERNEL_UNROLL

#endif

#define LANE_ARRAY(type, name) type name[LANES_HERE]

/* ==== elements in memory ==== */

/* Kernels read and write four elements at a time, in one access of 16 or 8 bytes if the alignment of the
 * address allows that. fp32 and bf16 are read and written as bits. */

struct four {
    float of[4];
};

/* The types that one access can read or write. */
struct f32x4 {
    float of[4];
} __attribute__((aligned(16)));
struct u16x4 {
    uint16_t of[4];
} __attribute__((aligned(8)));
struct u64x2 {
    uint64_t of[2];
} __attribute__((aligned(16)));

KERNEL_FN uint32_t bits_of_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

KERNEL_FN float f32_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

KERNEL_FN bool f32_is_finite(float x)
{
    return (bits_of_f32(x) & 0x7f800000u) != 0x7f800000u;
}

/* Rounds to nearest even. The lower 16 bits are dropped. To add 0x7fff carries into the upper 16 bits if
 * the dropped bits are more than a tie; to add also the last of the upper bits rounds a tie to even. An
 * overflow gives infinity, and every NaN becomes the same quiet NaN. */
KERNEL_FN uint16_t bf16_of_f32(float x)
{
    const uint32_t u = bits_of_f32(x);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

KERNEL_FN float f32_of_bf16(uint16_t half)
{
    return f32_of_bits((uint32_t)half << 16);
}

/* ---- one element; base: the address of element 0 ---- */

KERNEL_FN float load_f32(uint64_t base, uint64_t elem)
{
    return *MEMORY_AT(const float, base + 4 * elem);
}

KERNEL_FN void store_f32(uint64_t base, uint64_t elem, float x)
{
    *MEMORY_AT(float, base + 4 * elem) = x;
}

KERNEL_FN float load_bf16(uint64_t base, uint64_t elem)
{
    return f32_of_bf16(*MEMORY_AT(const uint16_t, base + 2 * elem));
}

KERNEL_FN void store_bf16(uint64_t base, uint64_t elem, float x)
{
    *MEMORY_AT(uint16_t, base + 2 * elem) = bf16_of_f32(x);
}

/* ---- four elements from `elem` on ---- */

KERNEL_FN struct four load_four_f32(uint64_t base, uint64_t elem)
{
    const uint64_t at = base + 4 * elem;
    struct four x;
    if (at % 16 == 0) {
        const struct f32x4 all = *MEMORY_AT(const struct f32x4, at);
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) x.of[c] = all.of[c];
    } else {
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) x.of[c] = load_f32(at, (uint64_t)c);
    }
    return x;
}

KERNEL_FN void store_four_f32(uint64_t base, uint64_t elem, struct four x)
{
    const uint64_t at = base + 4 * elem;
    if (at % 16 == 0) {
        struct f32x4 all;
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) all.of[c] = x.of[c];
        *MEMORY_AT(struct f32x4, at) = all;
    } else {
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) store_f32(at, (uint64_t)c, x.of[c]);
    }
}

KERNEL_FN struct four load_four_bf16(uint64_t base, uint64_t elem)
{
    const uint64_t at = base + 2 * elem;
    struct four x;
    if (at % 8 == 0) {
        const struct u16x4 all = *MEMORY_AT(const struct u16x4, at);
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) x.of[c] = f32_of_bf16(all.of[c]);
    } else {
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) x.of[c] = load_bf16(at, (uint64_t)c);
    }
    return x;
}

KERNEL_FN void store_four_bf16(uint64_t base, uint64_t elem, struct four x)
{
    const uint64_t at = base + 2 * elem;
    if (at % 8 == 0) {
        struct u16x4 all;
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) all.of[c] = bf16_of_f32(x.of[c]);
        *MEMORY_AT(struct u16x4, at) = all;
    } else {
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) store_bf16(at, (uint64_t)c, x.of[c]);
    }
}

/* ---- one element of either dtype ---- */

KERNEL_FN float load_one(uint64_t base, uint64_t dtype, uint64_t elem)
{
    return dtype == CAIRN_BF16 ? load_bf16(base, elem) : load_f32(base, elem);
}

KERNEL_FN void store_one(uint64_t base, uint64_t dtype, uint64_t elem, float x)
{
    if (dtype == CAIRN_BF16)
        store_bf16(base, elem, x);
    else
        store_f32(base, elem, x);
}

/* ---- rows of fours; each row begins `apart` elements, a multiple of 4, after the previous one ----
 *
 * All rows have the same alignment. A single test for all rows keeps their accesses in flight together.
 * With a test per row, the compiler would merge the loads of both branches, and would wait for each row
 * before it requests the next row (tests/gpu/flight.py counts the accesses in flight in the machine
 * code). */

#define ROWS_MAX 8

KERNEL_FN bool bf16_rows_are_whole(uint64_t base, uint64_t elem)
{
    return (base + 2 * elem) % sizeof(struct u16x4) == 0;
}

/* Loads the rows without conversion. bf16_rows_are_whole must be true. */
KERNEL_FN void load_halves(struct u16x4 *rows, int count, uint64_t base, uint64_t elem,
                           uint64_t apart)
{
    KERNEL_UNROLL
    for (int r = 0; r < count; r++)
        rows[r] = *MEMORY_AT(const struct u16x4, base + 2 * (elem + (uint64_t)r * apart));
}

KERNEL_FN void widen_halves(struct four *rows, const struct u16x4 *halves, int count)
{
    KERNEL_UNROLL
    for (int r = 0; r < count; r++) {
        KERNEL_UNROLL
        for (int c = 0; c < 4; c++) rows[r].of[c] = f32_of_bf16(halves[r].of[c]);
    }
}

KERNEL_FN void load_rows_bf16(struct four *rows, int count, uint64_t base, uint64_t elem,
                              uint64_t apart)
{
    if (bf16_rows_are_whole(base, elem)) {
        struct u16x4 halves[ROWS_MAX];
        load_halves(halves, count, base, elem, apart);
        widen_halves(rows, halves, count);
    } else {
        KERNEL_UNROLL
        for (int r = 0; r < count; r++) {
            KERNEL_UNROLL
            for (int c = 0; c < 4; c++)
                rows[r].of[c] = load_bf16(base, elem + (uint64_t)r * apart + (uint64_t)c);
        }
    }
}

KERNEL_FN void load_rows_f32(struct four *rows, int count, uint64_t base, uint64_t elem,
                             uint64_t apart)
{
    if ((base + 4 * elem) % sizeof(struct f32x4) == 0) {
        struct f32x4 all[ROWS_MAX];
        KERNEL_UNROLL
        for (int r = 0; r < count; r++)
            all[r] = *MEMORY_AT(const struct f32x4, base + 4 * (elem + (uint64_t)r * apart));
        KERNEL_UNROLL
        for (int r = 0; r < count; r++) {
            KERNEL_UNROLL
            for (int c = 0; c < 4; c++) rows[r].of[c] = all[r].of[c];
        }
    } else {
        KERNEL_UNROLL
        for (int r = 0; r < count; r++) {
            KERNEL_UNROLL
            for (int c = 0; c < 4; c++)
                rows[r].of[c] = load_f32(base, elem + (uint64_t)r * apart + (uint64_t)c);
        }
    }
}

KERNEL_FN void load_rows(struct four *rows, int count, uint64_t base, uint64_t dtype, uint64_t elem,
                         uint64_t apart)
{
    if (dtype == CAIRN_BF16)
        load_rows_bf16(rows, count, base, elem, apart);
    else
        load_rows_f32(rows, count, base, elem, apart);
}

KERNEL_FN void store_rows(const struct four *rows, int count, uint64_t base, uint64_t dtype,
                          uint64_t elem, uint64_t apart)
{
    if (dtype == CAIRN_BF16) {
        KERNEL_UNROLL
        for (int r = 0; r < count; r++) store_four_bf16(base, elem + (uint64_t)r * apart, rows[r]);
    } else {
        KERNEL_UNROLL
        for (int r = 0; r < count; r++) store_four_f32(base, elem + (uint64_t)r * apart, rows[r]);
    }
}

/* ---- pieces of elements ---- */

/* When a warp processes elements in order, each lane takes a group of four. This is the number of elements
 * from a group of a lane to the lane's next group. */
#define WARP_ELEMS ((uint64_t)4 * CAIRN_KERNEL_WARP)

KERNEL_FN uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* A lane has `rows` groups of four elements; the first begins at `elem`, and each other `apart` elements
 * after the one before it. True if none of them reaches beyond `end`. */
KERNEL_FN bool rows_fit(uint64_t elem, int rows, uint64_t apart, uint64_t end)
{
    return elem + (uint64_t)(rows - 1) * apart + 4 <= end;
}

/* ==== all lanes of a warp ==== */

/* All lanes of a warp execute each of these operations together. A lane that has no partner gets an
 * unspecified value. */

/* Returns the number of lanes whose value is true. */
KERNEL_FN uint32_t lanes_count(const bool *of)
{
#ifdef __CUDACC__
    return (uint32_t)__popc(__ballot_sync(0xffffffffu, of[0]));
#else
    uint32_t count = 0;
    for (uint32_t k = 0; k < CAIRN_KERNEL_WARP; k++) count += of[k] ? 1 : 0;
    return count;
#endif
}

/* Adds lane k + distance to lane k, if lane k + distance exists. */
KERNEL_FN void lanes_add_f64(double *of, uint32_t distance)
{
#ifdef __CUDACC__
    of[0] += __shfl_down_sync(0xffffffffu, of[0], distance);
#else
    for (uint32_t k = 0; k + distance < CAIRN_KERNEL_WARP; k++) of[k] += of[k + distance];
#endif
}

KERNEL_FN void lanes_add_u32(uint32_t *of, uint32_t distance)
{
#ifdef __CUDACC__
    of[0] += __shfl_down_sync(0xffffffffu, of[0], distance);
#else
    for (uint32_t k = 0; k + distance < CAIRN_KERNEL_WARP; k++) of[k] += of[k + distance];
#endif
}

/* All lanes of a group of `width` lanes get the value of the group's first lane. */
KERNEL_FN void lanes_spread_f64(double *of, uint32_t width)
{
#ifdef __CUDACC__
    of[0] = __shfl_sync(0xffffffffu, of[0], 0, (int)width);
#else
    for (uint32_t k = 0; k < CAIRN_KERNEL_WARP; k++) of[k] = of[k - k % width];
#endif
}

#endif
