#include "client/ctl/bench/streams.h"

#include <assert.h>
#include <stdint.h>

/* A page of an fp32 stream, half a page of a 16-bit one: bursts that prefetchers and memory like. */
#define BURST_ELEMS ((size_t)1024)

#define ADD_BODY                                                 \
    {                                                            \
        for (size_t i = 0; i < words; i++) data[i] += increment; \
    }
typedef void (*add_fn)(uint32_t *data, size_t words, uint32_t increment);

static void add_plain(uint32_t *data, size_t words, uint32_t increment) ADD_BODY
#if defined(__x86_64__)
    __attribute__((target("avx2"))) static void add_v3(uint32_t *data, size_t words,
                                                       uint32_t increment) ADD_BODY
    __attribute__((target("avx512f,prefer-vector-width=512"))) static void add_v4(
        uint32_t *data, size_t words, uint32_t increment) ADD_BODY
#endif

    static add_fn choose(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return add_v4;
    if (__builtin_cpu_supports("avx2")) return add_v3;
#endif
    return add_plain;
}

void cairn_bench_streams_touch(const struct cairn_bench_stream *streams, size_t stream_count,
                               size_t first, size_t elems)
{
    static volatile uint32_t zero; // not known to the compiler, so that the adds are made
    const add_fn add = choose();
    assert(stream_count <= CAIRN_BENCH_STREAMS_MAX && elems % BURST_ELEMS == 0);
    for (size_t start = first; start < first + elems; start += BURST_ELEMS)
        for (size_t s = 0; s < stream_count; s++) {
            uint8_t *at = (uint8_t *)streams[s].data + start * streams[s].bytes_per_elem;
            add((uint32_t *)(void *)at, BURST_ELEMS * streams[s].bytes_per_elem / sizeof(uint32_t),
                zero);
        }
}
