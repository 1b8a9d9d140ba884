/* The two ends of a bench of the fabric: this process as the worker, a child as the shard, which do with a
 * chunk what the client library and a shard do with it on its way, and nothing else.
 *
 *   push:  worker  checksum, PUSH ──►  shard  receive into a slot, checksum, ACK
 *          (to a peer that maps: no checksum; it reads all of it where it lies)
 *   fetch: worker  FETCH ──►  shard  copy of what is published, its checksum as kept, DATA ──►
 *          worker  receive around the caches, checksum on the way
 *          (to a peer that maps: straight from what is published)
 *
 * Headers of 128 bytes, CAIRN_BENCH_WINDOW chunks under way, each end one libuv loop that sleeps when there
 * is nothing to do. The child ends with the worker's end, or with this process. */
#ifndef CAIRN_CTL_BENCH_FABRIC_ENDS_H
#define CAIRN_CTL_BENCH_FABRIC_ENDS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define CAIRN_BENCH_WINDOW 8
#define CAIRN_BENCH_AREA_BYTES \
    ((size_t)64 << 20) /* what is pushed, and what is published, again and again */

/* Bits: work that is left out, to see what it costs. */
enum cairn_bench_less {
    CAIRN_BENCH_UNCHECKED = 1, /* no checksum is made or compared */
    CAIRN_BENCH_ONE_CHUNK =
        2 /* one chunk again and again instead of the area: what the caches keep */
};

struct cairn_bench_ends;

/* path: a kind of fabric, or "one-sided": ucx, whose ends read each other's memory.
 * NULL: they could not be opened, and that was said. */
struct cairn_bench_ends *cairn_bench_ends_open(const char *path, size_t chunk_bytes);
void cairn_bench_ends_close(struct cairn_bench_ends *ends);
/* Moves so many chunks, one way or the other, leaving out `less` (enum cairn_bench_less). Returns
 * the seconds it took; 0: it failed, and that was said. */
double cairn_bench_ends_push(struct cairn_bench_ends *ends, uint64_t chunks, unsigned less);
double cairn_bench_ends_fetch(struct cairn_bench_ends *ends, uint64_t chunks, unsigned less);
/* Seconds of CPU that both processes have used so far. */
double cairn_bench_ends_cpu(const struct cairn_bench_ends *ends);
/* As cairn_fabric_describe; borrowed. */
const char *cairn_bench_ends_describe(const struct cairn_bench_ends *ends);

#endif
