/* Reads much of a snapshot at the speed of the disk: in the order of the files, past the page cache, by
 * several threads, each of which gives what it has read to who asked. A byte is read once, and what nobody
 * asked for only where it fills a small gap.
 *
 * Nobody judges checksums of blocks here, which a range is seldom the whole of: who asks hashes what he is
 * given, leaf by leaf, and compares the content root; which block is to blame cairn_snapshot_verify tells.
 *
 * Memory: CAIRN_SWEEP_THREADS blocks. */
#ifndef CAIRN_SNAPSHOT_IO_SWEEP_H
#define CAIRN_SNAPSHOT_IO_SWEEP_H

#include <stdatomic.h>

#include "proto/geometry/tensor.h"
#include "proto/snapshot_io/snapshot_io.h"

#define CAIRN_SWEEP_THREADS 6u /* some wait for the disk while others hash */

/* Whole leaves of a stored plane, of at most CAIRN_SNAPSHOT_BLOCK_BYTES. */
struct cairn_sweep_range {
    uint32_t tensor, plane; /* the snapshot's */
    uint64_t first_elem, elem_count;
    uint64_t first_leaf, leaf_count;
    uint64_t place; /* the caller's */
};

/* All zero: empty. */
struct cairn_sweep_ranges {
    struct cairn_sweep_range *list; /* owned: [count] */
    size_t count, capacity;
};
void cairn_sweep_ranges_release(struct cairn_sweep_ranges *ranges);
/* Adds leaves [first_leaf, end_leaf) of a plane, cut where each part is as large as it may be and the root of
 * its leaves is one node of their tree; `place`: of each. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_sweep_ranges_add(struct cairn_sweep_ranges *ranges,
                                    const struct cairn_geometry *geometry, size_t elem_bytes,
                                    const struct cairn_sweep_range *whole,
                                    struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* A sweep: the snapshot, and the callback that takes its elements. */
struct cairn_sweep {
    const struct cairn_snapshot *snapshot;
    /* Called once for each range, on any of the threads, at most CAIRN_SWEEP_THREADS at a time:
     * `thread` is below that. The elements are borrowed for the call. Any result but CAIRN_OK ends
     * the sweep. */
    cairn_status (*take)(void *context, uint32_t thread, const struct cairn_sweep_range *range,
                         const void *elems, struct cairn_sentence *why);
    void *context;
    const atomic_bool *canceled; /* NULL: never */
};
/* Sorts the ranges. CAIRN_ERR_CORRUPT: a file is missing, or of another size; CAIRN_ERR_IO;
 * CAIRN_ERR_CANCELED; CAIRN_ERR_INVALID: the snapshot has no such elements; or what `take` said. */
cairn_status cairn_snapshot_sweep(const struct cairn_sweep *sweep,
                                  struct cairn_sweep_ranges *ranges,
                                  struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
