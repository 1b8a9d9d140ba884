/* The yardstick of memory speed: arrays that are updated in place, one add to each element. Private to
 * the bench of the update. */
#ifndef CAIRN_CTL_BENCH_UPDATE_STREAMS_H
#define CAIRN_CTL_BENCH_UPDATE_STREAMS_H

#include <stddef.h>

#define CAIRN_BENCH_STREAMS_MAX 8

struct cairn_bench_stream {
    void *data;
    size_t bytes_per_elem; /* 2 or 4 */
};

/* Reads and writes elements [first, first + elems) of every stream, side by side, and leaves all as it was:
 * it adds 0. first and elems are multiples of 2048. In the widest instruction set that the CPU has. */
void cairn_bench_streams_touch(const struct cairn_bench_stream *streams, size_t stream_count,
                               size_t first, size_t elems);

#endif
