/* Reads a snapshot from one end to the other: piece by piece in the order of its files, which is what storage
 * does fastest, in several runs of files at a time. */
#ifndef CAIRN_CTL_SNAPSHOT_SWEEP_H
#define CAIRN_CTL_SNAPSHOT_SWEEP_H

#include "client/ctl/progress.h"
#include "proto/snapshot_io/snapshot_io.h"

#define CTL_SWEEP_THREADS_MAX 8
#define CTL_SWEEP_PIECE_BYTES ((size_t)4 << 20)

/* Elements [first_elem, first_elem + elem_count) of a plane, in its dtype: CTL_SWEEP_PIECE_BYTES at most. */
struct ctl_piece {
    uint32_t tensor, plane;
    uint64_t first_elem, elem_count;
    const void *elems;
};

struct ctl_sweep {
    const char *folder;
    const struct cairn_snapshot
        *snapshot; /* of that folder, opened; only its index and manifest are read */
    struct ctl_progress *progress;
    void *context;
    /* Which planes are read; NULL: all. */
    bool (*wants)(const void *context, uint32_t tensor, uint32_t plane);
    /* In any order of a plane's pieces, but from a thread always the same ones. `thread` is below
     * CTL_SWEEP_THREADS_MAX. Another status than CAIRN_OK ends the sweep with it. */
    cairn_status (*on_piece)(void *context, unsigned thread, const struct ctl_piece *piece,
                             struct cairn_sentence *why);
};
/* CAIRN_OK: every piece was given. Else the first failure; all threads have ended. */
cairn_status cairn_ctl_sweep(const struct ctl_sweep *sweep,
                             struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* How many bytes the sweep would read. */
uint64_t cairn_ctl_sweep_bytes(const struct ctl_sweep *sweep);

#endif
