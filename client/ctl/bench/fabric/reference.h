/* The reference that the fabric is measured against: the same bytes by the shortest way there
 * is. */
#ifndef CAIRN_CTL_BENCH_FABRIC_REFERENCE_H
#define CAIRN_CTL_BENCH_FABRIC_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* GB/s; 0: it failed, and that was said. */

/* ucx_perftest -t ucp_am_bw -E sleep -e: two processes that send one buffer into one other, with the fabric's
 * settings, and sleep as it does. (With -E poll it is faster where both have an idle core, and many times
 * slower where they have not. -e: endpoints with the error handling that Cairn's have, without which a dead
 * peer is never noticed; without -e it is 1.4 times as fast, over another lane.) */
bool cairn_bench_perftest_is_there(void);
double cairn_bench_perftest(size_t chunk_bytes, uint64_t chunks);
/* write() and read() over loopback, two processes. */
double cairn_bench_raw_tcp(size_t chunk_bytes, uint64_t chunks);
/* memcpy of one area to another, each of `area_bytes`. */
double cairn_bench_memcpy(size_t area_bytes, size_t chunk_bytes, uint64_t chunks);

#endif
