/* Bytes from here to there, zeros, and elements from one dtype to another. */
#ifndef CAIRN_GPU_KERNEL_COPY_H
#define CAIRN_GPU_KERNEL_COPY_H

#include "gpu/kernel/memory.h"

#define COPY_ROWS    4 /* accesses in flight */
#define CONVERT_ROWS 8

/* Units of `type`, to and from aligned to it, by a lane. */
#define COPY_UNITS(type)                                                                          \
    for (uint64_t i = lane; i < bytes / sizeof(type); i += COPY_ROWS * CAIRN_KERNEL_WARP) {       \
        type x[COPY_ROWS];                                                                        \
        KERNEL_UNROLL                                                                             \
        for (uint32_t r = 0; r < COPY_ROWS; r++) {                                                \
            const uint64_t k = i + r * CAIRN_KERNEL_WARP;                                         \
            if (k < bytes / sizeof(type)) x[r] = *MEMORY_AT(const type, from + k * sizeof(type)); \
        }                                                                                         \
        KERNEL_UNROLL                                                                             \
        for (uint32_t r = 0; r < COPY_ROWS; r++) {                                                \
            const uint64_t k = i + r * CAIRN_KERNEL_WARP;                                         \
            if (k < bytes / sizeof(type)) *MEMORY_AT(type, to + k * sizeof(type)) = x[r];         \
        }                                                                                         \
    }

/* The widest unit at which both are aligned, once the first bytes are copied. */
KERNEL_FN uint64_t copy_unit(uint64_t to, uint64_t from)
{
    const uint64_t apart = (to ^ from) | 16;
    return apart & (~apart + 1);
}

KERNEL_FN void copy_single(uint64_t to, uint64_t from, uint64_t bytes,
                           uint32_t lane) { COPY_UNITS(uint8_t) }

KERNEL_FN void copy_bytes(uint64_t to, uint64_t from, uint64_t bytes, uint32_t lane)
{
    const uint64_t unit = copy_unit(to, from), head = least((~to + 1) % unit, bytes);
    copy_single(to, from, head, lane);
    to += head;
    from += head;
    bytes -= head;
    const uint64_t whole = bytes - bytes % unit;
    if (unit == 16) {
        COPY_UNITS(struct u64x2)
    } else if (unit == 8) {
        COPY_UNITS(uint64_t)
    } else if (unit == 4) {
        COPY_UNITS(uint32_t)
    } else if (unit == 2) {
        COPY_UNITS(uint16_t)
    } else {
        COPY_UNITS(uint8_t)
    }
    copy_single(to + whole, from + whole, bytes - whole, lane);
}

KERNEL_FN void copy_piece(const struct copy_item *item, uint64_t piece)
{
    const uint64_t parts = pieces_of(item->run_bytes, CAIRN_PIECE_BYTES);
    const uint64_t run = piece / parts, begin = piece % parts * CAIRN_PIECE_BYTES;
    const uint64_t bytes = least(item->run_bytes - begin, CAIRN_PIECE_BYTES);
    EACH_LANE(lane)
    {
        copy_bytes(item->to + run * item->to_stride + begin,
                   item->from + run * item->from_stride + begin, bytes, lane);
    }
}

KERNEL_FN void zero_piece(const struct zero_item *item, uint64_t piece)
{
    const uint64_t begin = piece * CAIRN_PIECE_BYTES, at = item->at + begin;
    const uint64_t bytes = least(item->bytes - begin, CAIRN_PIECE_BYTES);
    const uint64_t head = least((~at + 1) % 16, bytes), units = (bytes - head) / 16;
    EACH_LANE(lane)
    {
        const struct u64x2 none = { { 0, 0 } };
        for (uint64_t i = lane; i < head; i += CAIRN_KERNEL_WARP) *MEMORY_AT(uint8_t, at + i) = 0;
        for (uint64_t i = lane; i < units; i += CAIRN_KERNEL_WARP)
            *MEMORY_AT(struct u64x2, at + head + 16 * i) = none;
        for (uint64_t i = head + 16 * units + lane; i < bytes; i += CAIRN_KERNEL_WARP)
            *MEMORY_AT(uint8_t, at + i) = 0;
    }
}

/* ---- elements ---- */

KERNEL_FN uint64_t bytes_of_dtype(uint64_t dtype)
{
    switch (dtype) {
    case CAIRN_F64: return 8;
    case CAIRN_F32: return 4;
    case CAIRN_BF16:
    case CAIRN_F16: return 2;
    default: return 1;
    }
}

KERNEL_FN void convert_piece(const struct convert_item *item, uint64_t piece)
{
    const uint64_t from = piece * CAIRN_PIECE_ELEMS,
                   end = least(from + CAIRN_PIECE_ELEMS, item->elems);
    const uint64_t width = bytes_of_dtype(item->src_dtype);
    EACH_LANE(lane)
    {
        if (item->src_dtype == item->dst_dtype) {
            copy_bytes(item->dst + from * width, item->src + from * width, (end - from) * width,
                       lane);
        } else {
            uint64_t i = from + 4 * lane;
            for (; rows_fit(i, CONVERT_ROWS, WARP_ELEMS, end); i += CONVERT_ROWS * WARP_ELEMS) {
                struct four x[CONVERT_ROWS];
                load_rows(x, CONVERT_ROWS, item->src, item->src_dtype, i, WARP_ELEMS);
                store_rows(x, CONVERT_ROWS, item->dst, item->dst_dtype, i, WARP_ELEMS);
            }
            for (; i < end; i += WARP_ELEMS)
                for (uint64_t k = i; k < least(i + 4, end); k++)
                    store_one(item->dst, item->dst_dtype, k,
                              load_one(item->src, item->src_dtype, k));
        }
    }
}

#endif
