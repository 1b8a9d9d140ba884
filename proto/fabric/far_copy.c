#include "proto/fabric/far_copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

#define LINE        ((size_t)64)
#define AHEAD_BYTES 4096 /* the hardware's own prefetch ends with the page */

static void stream_line(uint8_t *to, const uint8_t *from)
{
    __builtin_prefetch(from + AHEAD_BYTES); // beyond the end it does nothing
    const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
    const __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
    const __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));
    _mm_stream_si128((__m128i *)(void *)to, a);
    _mm_stream_si128((__m128i *)(void *)(to + 16), b);
    _mm_stream_si128((__m128i *)(void *)(to + 32), c);
    _mm_stream_si128((__m128i *)(void *)(to + 48), d);
}

void cairn_far_copy(void *to, const void *from, size_t bytes)
{
    uint8_t *out = to;
    const uint8_t *in = from;
    const size_t odd = (LINE - (uintptr_t)out % LINE) % LINE, before = odd < bytes ? odd : bytes;
    memcpy(out, in, before);
    size_t at = before;
    for (; bytes - at >= LINE; at += LINE) stream_line(out + at, in + at);
    memcpy(out + at, in + at, bytes - at);
    _mm_sfence(); // whoever hears that it is copied sees it
}
#else
void cairn_far_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif
