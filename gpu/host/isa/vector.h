/* Vectors of the instruction set for which this file is compiled. Code uses them as numbers: an operation
 * on a vector works on each element, and rounds once for each, so its bits are those of a loop over the
 * elements. Operations for which C has no notation (square root, stores that bypass the cache) are
 * functions below. Only for gpu/host/isa. */
#ifndef CAIRN_GPU_HOST_ISA_VECTOR_H
#define CAIRN_GPU_HOST_ISA_VECTOR_H

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/spec/scalars.h"

#if defined(__SSE2__)
#endif

/* The sizes of a vector of fp32, and of a half vector, whose elements fill a vector when they are converted
 * to double. */
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define HALF_BYTES   32
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#define HALF_BYTES   16
#else
#define VECTOR_BYTES 16
#define HALF_BYTES   16 /* the smallest vector: here the half vector is as large as the vector */
#endif
#define VECTOR_ELEMS ((size_t)VECTOR_BYTES / sizeof(float))
#define HALF_ELEMS   ((size_t)HALF_BYTES / sizeof(float))

typedef float f32_vector __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t u32_vector __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t u16_vector __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef float f32_half __attribute__((vector_size(HALF_BYTES)));
typedef uint32_t u32_half __attribute__((vector_size(HALF_BYTES)));
typedef uint16_t u16_half __attribute__((vector_size(HALF_BYTES / 2)));
typedef double f64_lanes __attribute__((vector_size(2 * HALF_BYTES)));

/* The elements between two prefetches: a cache line of bf16, or two cache lines of fp32. */
#define STEP_ELEMS ((size_t)32)

/* How far ahead memory is prefetched, as found by measurement. The hardware's own prefetch ends at the end
 * of the 4 KiB page, and stores that bypass the cache are slow without a prefetch. A prefetch beyond the
 * end of an array has no effect. */
#define AHEAD_BYTES     ((size_t)2048)
#define AHEAD_BYTES_FAR ((size_t)4096) /* for a loop with little work per byte */

static inline void prefetch_step(const void *at, size_t bytes_per_elem, size_t ahead_bytes)
{
    const char *ahead = (const char *)at + ahead_bytes;
    __builtin_prefetch(ahead);
    if (bytes_per_elem > 2) __builtin_prefetch(ahead + 64);
}

static inline f32_vector load_f32(const float *at)
{
    f32_vector x;
    memcpy(&x, at, sizeof x);
    return x;
}

static inline void store_f32(float *at, f32_vector x)
{
    memcpy(at, &x, sizeof x);
}

/* True if stores to this address can bypass the cache. */
static inline bool is_aligned(const void *at)
{
    return (uintptr_t)at % 64 == 0;
}

/* The stream_ functions are stores that bypass the cache. `at` is aligned, and the caller writes complete
 * cache lines, one after the other. */
static inline void stream_half(float *at, f32_half x)
{
#if defined(__AVX2__) && HALF_BYTES == 32
    _mm256_stream_ps(at, (__m256)x);
#elif defined(__SSE2__)
    _mm_stream_ps(at, (__m128)x);
#else
    memcpy(at, &x, sizeof x);
#endif
}

static inline void stream_u16(uint16_t *at, u16_vector x)
{
#if VECTOR_BYTES == 64
    _mm256_stream_si256((__m256i *)(void *)at, (__m256i)x);
#elif VECTOR_BYTES == 32
    _mm_stream_si128((__m128i *)(void *)at, (__m128i)x);
#elif defined(__SSE2__) && defined(__x86_64__) // in 32-bit mode there is no such store of 64 bits
    long long bits;
    memcpy(&bits, &x, sizeof bits);
    _mm_stream_si64((long long *)(void *)at, bits);
#else
    memcpy(at, &x, sizeof x);
#endif
}

static inline void stream_f32(float *at, f32_vector x)
{
#if VECTOR_BYTES == 64
    _mm512_stream_ps(at, (__m512)x);
#elif VECTOR_BYTES == 32
    _mm256_stream_ps(at, (__m256)x);
#elif defined(__SSE2__)
    _mm_stream_ps(at, (__m128)x);
#else
    memcpy(at, &x, sizeof x);
#endif
}

/* Call after stores that bypass the cache. Then every thread that learns that the work is done sees these
 * stores. */
static inline void stream_end(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

static inline f32_vector square_root(f32_vector x)
{
#if VECTOR_BYTES == 64
    return (f32_vector)_mm512_sqrt_ps((__m512)x);
#elif VECTOR_BYTES == 32
    return (f32_vector)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE2__)
    return (f32_vector)_mm_sqrt_ps((__m128)x);
#else
    for (size_t i = 0; i < VECTOR_ELEMS; i++) x[i] = sqrtf(x[i]);
    return x;
#endif
}

/* Returns x + 2 * y, which rounds once or twice, depending on the instruction set. So it is not for results
 * whose bits are guaranteed. */
static inline f32_vector plus_twice(f32_vector x, f32_vector y)
{
#if VECTOR_BYTES == 64
    return (f32_vector)_mm512_fmadd_ps((__m512)y, _mm512_set1_ps(2), (__m512)x);
#elif VECTOR_BYTES == 32
    return (f32_vector)_mm256_fmadd_ps((__m256)y, _mm256_set1_ps(2), (__m256)x);
#else
    return x + (y + y);
#endif
}

static inline bool is_finite(f32_vector x)
{
    uint32_t any = 0;
    // the difference is +0, or NaN
    for (size_t i = 0; i < VECTOR_ELEMS; i++) any |= f32_bits(x[i] - x[i]);
    return any == 0;
}

/* Two conversions: extend_u16 extends each element by zero bits, and to_double converts each element to
 * double, which is exact. Compilers would translate __builtin_convertvector into two halves with four times
 * the instructions, and a fold of bf16 would be slower. */
static inline u32_half extend_u16(const uint16_t *at)
{
#if defined(__AVX2__) && HALF_BYTES == 32
    return (u32_half)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
#elif defined(__AVX2__)
    return (u32_half)_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
#else
    u16_half x;
    memcpy(&x, at, sizeof x);
    return __builtin_convertvector(x, u32_half);
#endif
}

static inline f64_lanes to_double(f32_half x)
{
#if VECTOR_BYTES == 64
    return (f64_lanes)_mm512_cvtps_pd((__m256)x);
#elif VECTOR_BYTES == 32
    return (f64_lanes)_mm256_cvtps_pd((__m128)x);
#else
    return __builtin_convertvector(x, f64_lanes);
#endif
}

static inline bool is_nonfinite(float x)
{
    return (f32_bits(x) & 0x7f800000u) == 0x7f800000u;
}

/* Returns a vector in which every element has these bits. */
static inline f32_vector spread(uint32_t bits)
{
    return (f32_vector)(bits + (u32_vector) { 0 });
}

/* ==== convert ==== */

/* Converts between fp32 and bf16, which is the upper half of an fp32. Any other dtype is only copied. */

static inline f32_half widen_half(const uint16_t *at)
{
    return (f32_half)(extend_u16(at) << 16);
}

static void widen(float *restrict dst, const uint16_t *restrict src, size_t elems)
{
    for (size_t i = 0; i < elems; i++) dst[i] = f32_from_bits((uint32_t)src[i] << 16);
}

/* Rounds to nearest even. The lower 16 bits are dropped. To add 0x7fff carries into the upper 16 bits if
 * the dropped bits are more than a tie; to add also the last of the upper bits rounds a tie to even.
 * FLT_MAX becomes infinity, because infinity is the next step up, and nearer. */
static inline uint16_t narrow_one(float x)
{
    uint32_t u = f32_bits(x);
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

/* The length of a normal chunk. From this length on the writes bypass the caches, which takes a fifth less
 * time; the result is read only later, by others. */
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
        memcpy(dst, src, elems * dtype_size((int)dst_dtype));
        return;
    }
    assert(wire_dtype_ok((int)dst_dtype) && wire_dtype_ok((int)src_dtype));
    if (dst_dtype == CAIRN_F32) {
        widen(dst, src, elems);
    } else {
        narrow(dst, src, elems);
    }
}

#endif
