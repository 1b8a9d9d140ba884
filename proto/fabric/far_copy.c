#include "proto/fabric/far_copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

#include "proto/fabric/stagger.h"

#define LINE CAIRN_LINE_BYTES
/* Read at a time: a core has more lines under way than it asks for of one. */
#define STREAMS     ((size_t)4)
#define AHEAD_BYTES 2048 /* the hardware's own prefetch ends with the page */

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
    const size_t each = cairn_stagger_cut(bytes - before, STREAMS);
    memcpy(out, in, before);
    for (size_t at = before; at < before + each; at += LINE)
        for (size_t s = 0; s < STREAMS; s++) stream_line(out + at + s * each, in + at + s * each);
    size_t done = before + STREAMS * each;
    for (; bytes - done >= LINE; done += LINE) stream_line(out + done, in + done);
    memcpy(out + done, in + done, bytes - done);
    _mm_sfence(); // whoever hears that it is copied sees it
}
#else
void cairn_far_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif
