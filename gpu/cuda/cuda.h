/* The home on a card: the declarations that the files of gpu/cuda share. Private to gpu/cuda.
 *
 *   home.c   the card: its selection and name
 *     │      planes: handles of at most 64 MiB, side by side in one reservation
 *      │      imports: memory of the card that other processes own
 *     │      pins: host memory that the card reads directly
 *     └──► run.c   work items ─► parts that fit a plan ─► copies in, kernels, copies out
 *
 * A single reservation of addresses holds all memory of the home: an address belongs to the home exactly if
 * it is in the reservation. Imports have a separate part of the reservation, so they cannot use up the
 * planes' addresses.
 *
 * The context is the card's primary context, so that other libraries of this process can share it; each
 * entry function makes it current in the calling thread (cuda_enter).
 *
 * A thread that waits for the card sleeps: all waits are for events that were created with
 * CAIRN_CUDA_EVENT, since cuStreamSynchronize and other kinds of events would keep a processor busy. */
#ifndef CAIRN_GPU_CUDA_CUDA_H
#define CAIRN_GPU_CUDA_CUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "gpu/cuda/driver.h"
#include "gpu/home_kind.h"
#include "gpu/kernel/list.h"

#define CAIRN_CUDA_EVENT (CAIRN_CU_EVENT_BLOCKING_SYNC | CAIRN_CU_EVENT_DISABLE_TIMING)

/* A range of addresses: `bytes` from `at` on. */
struct cuda_span {
    uint64_t at, bytes;
};
/* Disjoint spans, in order. */
struct cuda_spans {
    struct cuda_span *list; /* owned */
    size_t count, capacity;
};

struct cuda {
    struct home home;     /* first */
    struct driver driver; /* constant, like all fields before imported_bytes */
    int device;
    int peers[CAIRN_HOME_PEERS_MAX]; /* device numbers; peers[i] has info.peer_uuids[i] */
    bool is_retained;
    struct CUctx_st *context;
    struct CUlib_st *library;
    struct CUkern_st *kernels[CAIRN_KERNEL_COUNT];
    struct CUstream_st *zeroing;
    struct CUevent_st *zeroed;
    unsigned multiprocessors;
    uint64_t granularity;                    /* of memory */
    uint64_t imported_max;                   /* bytes: the memory of the card and its peers */
    struct cuda_span space, planes, imports; /* the reservation, and its two parts */

    uint64_t imported_bytes; /* now; used only by the thread that imports */

    struct {
        atomic_uint_fast64_t runs, launches, bytes_in, bytes_out, pinned_bytes, unpinned_bytes;
    } use; /* see struct home_use */

    atomic_bool has_failed; /* set once, after `failure` */
    pthread_mutex_t lock;   /* guards the fields below */
    struct sentence failure;
    struct cuda_spans used;   /* in `space` */
    struct cuda_spans pinned; /* in host memory */
};

static inline struct cuda *home_cuda(struct home *home)
{
    return (struct cuda *)home;
}

/* ---- home.c ---- */

/* Makes the context current in this thread. CAIRN_ERR_IO: the card has failed before. */
CAIRN_MUST_CHECK cairn_status cuda_enter(struct cuda *cuda, struct sentence *why);
/* Like cuda_enter, for calls that free resources: enters even if the card has failed. */
void cuda_enter_anyway(struct cuda *cuda);
/* Converts a driver's result to a status: out of memory is CAIRN_ERR_NO_MEMORY, every other failure is
 * CAIRN_ERR_IO. A result that breaks the context (driver.h) also breaks the home permanently. `doing` names
 * the operation in the error: "a launch of fold". */
CAIRN_MUST_CHECK cairn_status cuda_check(struct cuda *cuda, int result, const char *doing,
                                         struct sentence *why);

/* Waits until all work that is in the stream now is done; returns the driver's result. The event must be
 * created with CAIRN_CUDA_EVENT: then the thread sleeps meanwhile, and leaves the processor to other
 * threads. */
int cuda_wait(const struct cuda *cuda, struct CUstream_st *stream, struct CUevent_st *event);

/* ---- home.c, run.c: functions of the kind (gpu/home_kind.h) ---- */

/* True if the card can copy from and to all of these host bytes directly. */
bool cuda_is_pinned(struct cuda *cuda, const void *host, uint64_t bytes);

cairn_status cuda_stream_open(struct home *home, struct home_stream **stream_out,
                              struct sentence *why);
void cuda_stream_close(struct home_stream *stream);
cairn_status cuda_run_begin(struct home_stream *stream, struct home_work *works, size_t count,
                            struct sentence *why);
cairn_status cuda_run_finish(struct home_stream *stream, struct sentence *why);

/* ==== plan ==== */

/* A plan: the work of one slice of a run, with at most `bytes` in and out. The plan is made on the host,
 * without the driver, from work items that are split to fit (cuda_plan_add); run.c executes the plan; then
 * cuda_plan_end delivers the results to the host.
 *
 * A side consists of pinned host memory and the same amount of device memory, at the same offsets:
 *   in    [0, used): sources that the host staged, lists of sources, items: one copy moves them all
 *         [top, end): device: copies of pinned host memory; host: bytes that are copied to a plane
 *   out   [0, used): results, and bytes that the host unpacks afterwards: one copy
 *         [top, end): device: bytes for pinned host memory; host: bytes that are copied from a plane
 * One thread at a time. */

#ifndef CAIRN_CUDA_PLAN_BYTES_MAX /* a test uses smaller plans, so that a list needs several */
#define CAIRN_CUDA_PLAN_BYTES_MAX ((size_t)4 << 20)
#endif
#define CAIRN_CUDA_PLAN_PARTS \
    ((size_t)512) /* the most items per kernel, the most copies in each direction, and the most ends */

struct cuda_plan_side {
    uint8_t *host;   /* borrowed: [plan.bytes] */
    uint64_t device; /* the device memory, of the same size */
    size_t used, top;
};

struct cuda_plan_copy {
    uint64_t device;
    void *host;
    size_t bytes;
};

/* A step of the host after the slice is done. */
struct cuda_plan_end {
    enum { CAIRN_END_COPY, CAIRN_END_COUNT, CAIRN_END_SUMS } kind;
    void *to; /* COPY: bytes; COUNT: a uint64_t to add to; SUMS: struct sums */
    const void *from,
        *squares; /* in the host memory of `out`; SUMS: `from` has the non-finite counts */
    size_t count; /* COPY: bytes; SUMS: leaves */
};

struct cuda_plan_items {
    uint8_t *list; /* owned: [CAIRN_CUDA_PLAN_PARTS] items of the kernel's type */
    uint64_t count, pieces;
};

struct cuda_plan {
    /* constant */
    size_t bytes;           /* of each side */
    struct cuda_span space; /* all addresses of the home */
    bool (*is_pinned)(struct cuda *cuda, const void *host, uint64_t bytes);
    struct cuda *cuda; /* for is_pinned */
    /* the work */
    struct cuda_plan_side in, out;
    struct cuda_plan_items kernels[CAIRN_KERNEL_COUNT];
    size_t item_bytes; /* the bytes of all items, which are placed at the end of [0, in.used) */
    struct cuda_plan_copy *copies_in, *copies_out; /* owned: [CAIRN_CUDA_PLAN_PARTS] */
    size_t in_count, out_count;
    struct cuda_plan_end *ends; /* owned: [CAIRN_CUDA_PLAN_PARTS] */
    size_t end_count;
    bool counts; /* device memory [0, out.used) must be 0 before kernels run */
};

/* How much of a work item has been put into plans. */
struct cuda_plan_cursor {
    uint64_t done; /* elements, leaves or bytes */
    /* for a fold with sums whose sources do not fit: only the sums still have to be computed */
    bool is_folded;
};

/* ==== lower ==== */

/* Splits work items into parts that fit a plan. Private to run.c. */

/* An upper bound for an item, with the rounding of one or two buffers. */
#define CAIRN_CUDA_PLAN_ITEM_ROOM ((size_t)256)

struct cuda_plan_fold {
    float *acc;
    const struct fold_source *sources;
    size_t source_count;
    bool first;
    uint64_t elems;
};

static inline uint64_t cuda_plan_address(const void *at)
{
    return (uint64_t)(uintptr_t)at;
}

static inline struct kernel_geometry cuda_plan_geometry(const struct geometry *geometry)
{
    return (struct kernel_geometry) { geometry->elems, geometry->quantum_elems,
                                      geometry->leaves_per_quantum };
}

/* ==== stream ==== */

/* A stream of the home: three streams of the driver, and slices that pass through them one after the other.
 *
 *   in        copies of slice 2 ─┐ loaded
 *   compute   kernels of slice 1 ┴─────────┐ computed
 *   out       copies of slice 0 ───────────┴─► done ─► the host unpacks, and fills it again
 *
 * An event orders each step after the previous step of the same slice; the host waits for `done` before it
 * touches the slice's memory again. Kernels of a later slice run after those of an earlier slice. Small
 * copies to and from the device use the stream `compute`, which saves two events. A new list begins with
 * the slice after the last slice of the running list, so both lists may have some of the three slices at
 * once. One thread at a time. */

#define CAIRN_CUDA_SLICES 3
#define CAIRN_CUDA_LISTS  2 /* begun, and not finished */

struct cuda_slice {
    struct cuda_plan plan;
    struct CUevent_st *loaded, *computed, *done;
    bool is_under_way; /* begun, and not yet finished */
    uint64_t list;     /* the list that the slice belongs to, if it is under way */
};

struct cuda_stream {
    struct home_stream stream; /* first */
    struct CUstream_st *in, *compute, *out;
    struct home_memory staging; /* device memory: `in` of each slice, then `out` of each slice */
    uint8_t *pinned; /* host memory with the same layout; NULL: the stream has not begun yet */
    struct cuda_slice slices[CAIRN_CUDA_SLICES];
    uint32_t next; /* the slice to fill next */
    /* lists, numbered from 1 in their order */
    uint64_t lists_begun, lists_finished;
    uint64_t list_failed; /* a failed list, until its finish has reported the failure; else 0 */
    cairn_status failed_status;
    struct sentence failed_why;
};

/* Returns the bytes of a stream's staging memory, for the `in` and `out` of each slice: this much on the
 * card, and as much again in pinned host memory. On a small card (a MIG slice) it is less: the six streams
 * of a shard use half a percent of the card, or 36 MiB. */
uint64_t cuda_staging_bytes(uint64_t card_bytes);
/* The first call allocates the stream's staging memory. Every run also makes this call. */
CAIRN_MUST_CHECK cairn_status cuda_stream_begin(struct home_stream *begun, struct sentence *why);

/* ==== image ==== */

/* The image of kernels in this program, for cuLibraryLoadData. image.cmake generates the image. Static
 * memory. */

struct cuda_image {
    const void *bytes; /* NULL: this build has no kernels */
    size_t size;
    int toolkit; /* 13000: compiled by the toolkit of CUDA 13.0; 0: unknown */
};

struct cuda_image cuda_image(void);

#endif
