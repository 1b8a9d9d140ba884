/* A plan: what one slice of a run is to do, of at most `bytes` in and out. It is made on the host,
 * without the driver, of works that are cut to fit (cairn_cuda_plan_add); slice.c carries it out; then
 * cairn_cuda_plan_end gives the host what was made.
 *
 * A side is memory of the host, pinned, and as much of the device, at the same offsets:
 *   in    [0, used): sources that the host staged, lists of sources, items: one copy brings all of it
 *         [top, end): of the device, where pinned host memory goes; of the host, what goes to a plane
 *   out   [0, used): results, and what the host unpacks afterwards: one copy
 *         [top, end): of the device, what goes to pinned host memory; of the host, what comes from a plane
 * One thread at a time. */
#ifndef CAIRN_GPU_CUDA_PLAN_H
#define CAIRN_GPU_CUDA_PLAN_H

#include "gpu/cuda/cuda.h"

#ifndef CAIRN_CUDA_PLAN_BYTES_MAX /* a test has smaller ones, so that a list takes several */
#define CAIRN_CUDA_PLAN_BYTES_MAX ((size_t)4 << 20)
#endif
#define CAIRN_CUDA_PLAN_PARTS \
    ((size_t)512) /* items of a kernel, copies each way, and ends: at most */

struct cairn_cuda_plan_side {
    uint8_t *host;   /* borrowed: [plan.bytes] */
    uint64_t device; /* the same */
    size_t used, top;
};

struct cairn_cuda_plan_copy {
    uint64_t device;
    void *host;
    size_t bytes;
};

/* A step for the host when the slice is over. */
struct cairn_cuda_plan_end {
    enum { CAIRN_END_COPY, CAIRN_END_COUNT, CAIRN_END_SUMS } kind;
    void *to; /* COPY: bytes; COUNT: a uint64_t to add to; SUMS: struct cairn_sums */
    const void *from,
        *squares; /* in the host's memory of `out`; SUMS: the counts, and the squares */
    size_t count; /* COPY: bytes; SUMS: leaves */
};

struct cairn_cuda_plan_items {
    uint8_t *list; /* owned: [CAIRN_CUDA_PLAN_PARTS] of the kernel's item */
    uint64_t count, pieces;
};

struct cairn_cuda_plan {
    /* constant */
    size_t bytes;                 /* of each side */
    struct cairn_cuda_span space; /* what lies in it lies in the home */
    bool (*is_pinned)(struct cairn_cuda *cuda, const void *host, uint64_t bytes);
    struct cairn_cuda *cuda; /* for is_pinned */
    /* what is to be done */
    struct cairn_cuda_plan_side in, out;
    struct cairn_cuda_plan_items kernels[CAIRN_KERNEL_COUNT];
    size_t item_bytes; /* of all items: they go to the end of [0, in.used) */
    struct cairn_cuda_plan_copy *copies_in, *copies_out; /* owned: [CAIRN_CUDA_PLAN_PARTS] */
    size_t in_count, out_count;
    struct cairn_cuda_plan_end *ends; /* owned: [CAIRN_CUDA_PLAN_PARTS] */
    size_t end_count;
    bool counts; /* [0, out.used) of the device is to be 0 before kernels run */
};

/* How far a work is in plans. */
struct cairn_cuda_plan_cursor {
    uint64_t done;  /* elements, leaves or bytes */
    bool is_folded; /* of a fold with sums of more sources than fit: only the sums are left */
};

/* Constants, and the sides' host and device, are set. CAIRN_ERR_NO_MEMORY: release it. */
CAIRN_MUST_CHECK cairn_status cairn_cuda_plan_init(struct cairn_cuda_plan *plan);
void cairn_cuda_plan_release(struct cairn_cuda_plan *plan);
/* Nothing is to be done. */
void cairn_cuda_plan_clear(struct cairn_cuda_plan *plan);
bool cairn_cuda_plan_is_empty(const struct cairn_cuda_plan *plan);

/* lower.c: adds as much of the work as fits. True: all that was left. False: go on in an empty plan that runs
 * after this one. */
bool cairn_cuda_plan_add(struct cairn_cuda_plan *plan, struct cairn_work *work,
                         struct cairn_cuda_plan_cursor *cursor);
/* Puts the items into `in`; lists_out: what launches are given, pieces 0 where there is nothing to launch. */
void cairn_cuda_plan_place(struct cairn_cuda_plan *plan,
                           struct cairn_kernel_list lists_out[CAIRN_KERNEL_COUNT]);
/* The slice is over: gives the host what was made. */
void cairn_cuda_plan_end(const struct cairn_cuda_plan *plan);

/* ---- plan.c, for lower.c: there is room, who calls has looked ---- */

bool cairn_cuda_plan_has(const struct cairn_cuda_plan *plan,
                         const void *address); /* the home does */
size_t cairn_cuda_plan_in_room(const struct cairn_cuda_plan *plan);
size_t cairn_cuda_plan_out_room(const struct cairn_cuda_plan *plan);
/* Where the device finds the bytes: host memory is brought. */
uint64_t cairn_cuda_plan_bring(struct cairn_cuda_plan *plan, const void *data, size_t bytes);
/* Where the device writes what is to come to this address: host memory is filled afterwards. */
uint64_t cairn_cuda_plan_give(struct cairn_cuda_plan *plan, void *to, size_t bytes);
/* `bytes` of [0, used) of a side, at a multiple of 16: the offset. */
size_t cairn_cuda_plan_take(struct cairn_cuda_plan_side *side, size_t bytes);
size_t cairn_cuda_plan_take_top(struct cairn_cuda_plan_side *side, size_t bytes);
/* item: its first_piece is set here. pieces: of it. */
void cairn_cuda_plan_item(struct cairn_cuda_plan *plan, enum cairn_kernel_number kernel, void *item,
                          uint64_t pieces);
struct cairn_cuda_plan_end *cairn_cuda_plan_new_end(struct cairn_cuda_plan *plan);
void cairn_cuda_plan_copy(struct cairn_cuda_plan_copy *copies, size_t *count, uint64_t device,
                          void *host, size_t bytes);

#endif
