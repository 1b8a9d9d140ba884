#include "client/ctl/bench/update/streams.h"

#include <assert.h>
#include <stdint.h>

/* A page of an fp32 stream, half a page of a 16-bit one: bursts that prefetchers and memory like. */
#define BURST_ELEMS ((size_t)1024)

typedef void (*add_fn)(uint32_t *data, size_t words, uint32_t increment);

static inline __attribute__((always_inline)) void add(uint32_t *data, size_t words,
                                                      uint32_t increment)
{
    for (size_t i = 0; i < words; i++) data[i] += increment;
}

static void add_plain(uint32_t *data, size_t words, uint32_t increment)
{
    add(data, words, increment);
}

#if defined(__x86_64__)
#if defined(__clang__)
#define WITH_AVX512 __attribute__((target("avx512f"), min_vector_width(512)))
#else
#define WITH_AVX512 __attribute__((target("avx512f,prefer-vector-width=512")))
#endif

__attribute__((target("avx2"))) static void add_avx2(uint32_t *data, size_t words,
                                                     uint32_t increment)
{
    add(data, words, increment);
}

WITH_AVX512 static void add_avx512(uint32_t *data, size_t words, uint32_t increment)
{
    add(data, words, increment);
}
#endif

static add_fn choose(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return add_avx512;
    if (__builtin_cpu_supports("avx2")) return add_avx2;
#endif
    return add_plain;
}

void cairn_bench_streams_touch(const struct cairn_bench_stream *streams, size_t stream_count,
                               size_t first, size_t elems)
{
    static volatile uint32_t zero; // not known to the compiler, so that the adds are made
    const add_fn add_to = choose();
    assert(stream_count <= CAIRN_BENCH_STREAMS_MAX && elems % BURST_ELEMS == 0);
    for (size_t start = first; start < first + elems; start += BURST_ELEMS)
        for (size_t s = 0; s < stream_count; s++) {
            uint8_t *at = (uint8_t *)streams[s].data + start * streams[s].bytes_per_elem;
            add_to((uint32_t *)(void *)at,
                   BURST_ELEMS * streams[s].bytes_per_elem / sizeof(uint32_t), zero);
        }
}
