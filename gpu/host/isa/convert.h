/* fp32 and bf16, the upper half of an fp32; any other dtype is only copied. */
#ifndef CAIRN_GPU_HOST_ISA_CONVERT_H
#define CAIRN_GPU_HOST_ISA_CONVERT_H

#include <assert.h>

#include "gpu/host/isa/vector.h"

static inline f32_half widen_half(const uint16_t *at)
{
    return (f32_half)(extend_u16(at) << 16);
}

static void widen(float *restrict dst, const uint16_t *restrict src, size_t elems)
{
    for (size_t i = 0; i < elems; i++) dst[i] = cairn_f32_of_bits((uint32_t)src[i] << 16);
}

/* To nearest even: adding 0x7fff carries when the lower half is above one half, and the kept part's
 * last bit makes the tie even. FLT_MAX goes to infinity, as it is nearer to the next step up. */
static inline uint16_t narrow_one(float x)
{
    uint32_t u = cairn_f32_bits(x);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

static inline u16_vector narrow_vector(f32_vector x)
{
    const u32_vector u = (u32_vector)x;
    const u32_vector rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const u32_vector is_nan = (u32_vector)((u & 0x7fffffffu) > 0x7f800000u); // all ones, or 0
    return __builtin_convertvector((rounded & ~is_nan) | (is_nan & 0x7fc0u), u16_vector);
}

/* A chunk of the usual length: others read it, later, and written around the caches it takes a fifth less
 * time. */
#define AROUND_ELEMS ((size_t)64 * CAIRN_LEAF_ELEMS)

static void narrow(uint16_t *restrict dst, const float *restrict src, size_t elems)
{
    size_t i = 0;
    const bool around = elems >= AROUND_ELEMS && is_aligned(dst);
    for (; i + STEP_ELEMS <= elems; i += STEP_ELEMS) {
        prefetch_step(src + i, sizeof *src, AHEAD_BYTES);
#pragma GCC unroll 8
        for (size_t k = i; k < i + STEP_ELEMS; k += VECTOR_ELEMS) {
            const u16_vector half = narrow_vector(load_f32(src + k));
            if (around)
                stream_u16(dst + k, half);
            else
                memcpy(dst + k, &half, sizeof half);
        }
    }
    if (around) stream_end();
    for (; i < elems; i++) dst[i] = narrow_one(src[i]);
}

static void convert(void *dst, cairn_dtype dst_dtype, const void *src, cairn_dtype src_dtype,
                    size_t elems)
{
    if (elems == 0) return; // the pointers may be NULL
    if (dst_dtype == src_dtype) {
        memcpy(dst, src, elems * cairn_dtype_bytes((int)dst_dtype));
        return;
    }
    assert(cairn_wire_dtype_ok((int)dst_dtype) && cairn_wire_dtype_ok((int)src_dtype));
    if (dst_dtype == CAIRN_F32) {
        widen(dst, src, elems);
    } else {
        narrow(dst, src, elems);
    }
}

#endif
