/* A stream of the home: three of the driver's, and slices that follow each other through them.
 *
 *   in        copies of slice 2 ─┐ loaded
 *   compute   kernels of slice 1 ┴─────────┐ computed
 *   out       copies of slice 0 ───────────┴─► done ─► the host unpacks, and fills it again
 *
 * An event orders each step behind the one before of the same slice; the host waits for `done` before it
 * touches the slice's memory again. Kernels of a later slice run behind those of an earlier one. Small
 * copies to and from the device go on `compute`, which saves two events. A list that is begun takes the
 * slices behind those of the list that is under way; both lists may have some of the three. One thread
 * at a time. */
#ifndef CAIRN_GPU_CUDA_STREAM_H
#define CAIRN_GPU_CUDA_STREAM_H

#include "gpu/cuda/plan.h"

#define CAIRN_CUDA_SLICES 3
#define CAIRN_CUDA_LISTS  2 /* begun, and not finished */

struct cairn_cuda_slice {
    struct cairn_cuda_plan plan;
    struct CUevent_st *loaded, *computed, *done;
    bool is_under_way; /* begun, and not yet finished */
    uint64_t list;     /* whose it is, if so */
};

struct cairn_cuda_stream {
    struct cairn_home_stream stream; /* first */
    struct CUstream_st *in, *compute, *out;
    struct cairn_home_memory staging; /* of the device: each slice's in, then each slice's out */
    uint8_t *pinned;                  /* of the host: the same; NULL: not begun yet */
    struct cairn_cuda_slice slices[CAIRN_CUDA_SLICES];
    uint32_t next; /* the slice that is to be filled */
    /* lists, numbered from 1 in their order */
    uint64_t lists_begun, lists_finished;
    uint64_t list_failed; /* before its finish, by which it is told; else 0 */
    cairn_status failed_status;
    struct cairn_sentence failed_why;
};

/* The bytes that a stream stages in, on the card and again in pinned host memory: in and out of
 * each slice. A small card (a MIG slice) gets less: the six streams of a shard take half a percent,
 * or 36 MiB. */
uint64_t cairn_cuda_staging_bytes(uint64_t card_bytes);
/* Every run calls this, too: the first call gives the stream its staging. */
CAIRN_MUST_CHECK cairn_status cairn_cuda_stream_begin(struct cairn_home_stream *begun,
                                                      struct cairn_sentence *why);

/* ---- slice.c ---- */

/* Carries the plan out: returns at once. */
CAIRN_MUST_CHECK cairn_status cairn_cuda_slice_begin(struct cairn_cuda_stream *stream,
                                                     struct cairn_cuda_slice *slice,
                                                     struct cairn_sentence *why);
/* Waits, if it is under way, and gives the host what it made; the plan is empty then. */
CAIRN_MUST_CHECK cairn_status cairn_cuda_slice_finish(struct cairn_cuda_stream *stream,
                                                      struct cairn_cuda_slice *slice,
                                                      struct cairn_sentence *why);
/* Waits until all that is under way has ended, well or not, and empties the slices of the list: the
 * host gets nothing of what they made. */
void cairn_cuda_slices_drop(struct cairn_cuda_stream *stream, uint64_t list);

#endif
