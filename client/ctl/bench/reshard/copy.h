/* The reference for the bench of moves: memcpy of as many bytes, by one thread or by one a core, to
 * memory that was written before or that is fresh. Private to that bench. */
#ifndef CAIRN_CTL_BENCH_RESHARD_COPY_H
#define CAIRN_CTL_BENCH_RESHARD_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Two areas of memory; zero: none yet. */
struct bench_copier {
    char *to, *from; /* owned: mapped, [bytes] */
    size_t bytes;
};

/* GB/s; 0, and said: there is no memory, or no thread. `is_fresh`: the pages of what is written are made
 * while it is copied. Areas of another size than before are made anew. */
double cairn_bench_copy(struct bench_copier *copier, size_t bytes, uint32_t threads, bool is_fresh);
void cairn_bench_copier_release(struct bench_copier *copier);

#endif
