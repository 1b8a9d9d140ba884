/* The declarations that the files of gpu/cuda share, which together are the home on a card. Private to
 * gpu/cuda.
 *
 *   home.c   the card: its selection and name
 *     │      planes: handles of at most 64 MiB, side by side in one reservation
 *      │      imports: memory of the card that other processes own
 *     │      pins: host memory that the card reads directly
 *     └──► run.c   work items ─► parts that fit a plan ─► copies in, kernels, copies out
 *
 * All memory of the home lies in one reservation of addresses, so an address belongs to the home exactly if
 * it is in the reservation. Imports have their own part of the reservation, so that they cannot use up the
 * addresses for planes.
 *
 * The context is the card's primary context, so that other libraries of this process can share it. Each
 * function of the kind makes the context current in the calling thread (cuda_enter).
 *
 * A thread that waits for the card sleeps. So all waits are for events that were created with
 * CAIRN_CUDA_EVENT; cuStreamSynchronize, and other kinds of events, would keep a processor busy. */
#ifndef CAIRN_GPU_CUDA_CUDA_H
#define CAIRN_GPU_CUDA_CUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "gpu/cuda/driver.h"
#include "gpu/home_kind.h"
#include "gpu/kernel/list.h"

#define CAIRN_CUDA_EVENT (CAIRN_CU_EVENT_BLOCKING_SYNC | CAIRN_CU_EVENT_DISABLE_TIMING)

/* A range of `bytes` addresses, from `at` on. */
struct cuda_span {
    uint64_t at, bytes;
};
/* Spans that do not overlap, in the order of their addresses. */
struct cuda_spans {
    struct cuda_span *list; /* owned */
    size_t count, capacity;
};

struct cuda {
    struct home home;     /* the first field, as in the struct of every kind */
    struct driver driver; /* this field and all others before imported_bytes are constant */
    int device;
    /* numbers of devices; the UUID of peers[i] is info.peer_uuids[i] */
    int peers[CAIRN_HOME_PEERS_MAX];
    bool is_retained;
    struct CUctx_st *context;
    struct CUlib_st *library;
    struct CUkern_st *kernels[CAIRN_KERNEL_COUNT];
    struct CUstream_st *zeroing;
    struct CUevent_st *zeroed;
    unsigned multiprocessors;
    uint64_t granularity;  /* the page size of the memory of the card */
    uint64_t imported_max; /* the bytes of the memory of the card and its peers */
    /* space: the reservation; planes, imports: its two parts */
    struct cuda_span space, planes, imports;

    /* the bytes that are imported now; only the thread that imports uses this */
    uint64_t imported_bytes;

    struct {
        atomic_uint_fast64_t runs, launches, bytes_in, bytes_out, pinned_bytes, unpinned_bytes;
    } use; /* see struct home_use */

    atomic_bool has_failed; /* set once, after `failure` is written */
    pthread_mutex_t lock;   /* guards the fields below */
    struct sentence failure;
    struct cuda_spans used;   /* the addresses in `space` that are in use */
    struct cuda_spans pinned; /* the host memory that is pinned */
};

static inline struct cuda *home_cuda(struct home *home)
{
    return (struct cuda *)home;
}

/* ---- home.c ---- */

/* Makes the context current in this thread. CAIRN_ERR_IO: the card has failed, now or before. */
CAIRN_MUST_CHECK cairn_status cuda_enter(struct cuda *cuda, struct sentence *why);
/* Makes the context current even if the card has failed; for calls that free resources. */
void cuda_enter_anyway(struct cuda *cuda);
/* Makes a status of a result of the driver: CAIRN_ERR_NO_MEMORY if memory is lacking, and CAIRN_ERR_IO for
 * every other failure. If the result breaks the context (driver.h), the home is broken, too, for ever.
 * `doing` names the operation in the error, as "a launch of fold". */
CAIRN_MUST_CHECK cairn_status cuda_check(struct cuda *cuda, int result, const char *doing,
                                         struct sentence *why);

/* Waits until all work that is in the stream now is done, and returns the driver's result. The event was
 * created with CAIRN_CUDA_EVENT, so the thread sleeps meanwhile, and leaves the processor to other
 * threads. */
int cuda_wait(const struct cuda *cuda, struct CUstream_st *stream, struct CUevent_st *event);

/* ---- home.c, run.c: functions of the kind (gpu/home_kind.h) ---- */

/* True if the card can copy directly from and to all these bytes of host memory. */
bool cuda_is_pinned(struct cuda *cuda, const void *host, uint64_t bytes);

cairn_status cuda_stream_open(struct home *home, struct home_stream **stream_out,
                              struct sentence *why);
void cuda_stream_close(struct home_stream *stream);
cairn_status cuda_run_begin(struct home_stream *stream, struct home_work *works, size_t count,
                            struct sentence *why);
cairn_status cuda_run_finish(struct home_stream *stream, struct sentence *why);

/* ==== plan ==== */

/* A plan is the work of one slice of a run, with at most `bytes` bytes in and as many out. cuda_plan_add
 * makes the plan on the host, without the driver, from work items, which it splits so that they fit. Then
 * run.c executes the plan, and cuda_plan_end delivers the results to the host.
 *
 * A plan has two sides, `in` and `out`. A side consists of pinned host memory and as much device memory,
 * with the same offsets in both:
 *   in    [0, used)    sources that the host has copied here, lists of sources, and items; one copy moves
 *                      them all
 *         [top, end)   on the device, copies of pinned host memory; on the host, bytes that are copied to
 *                      a plane
 *   out   [0, used)    results, and bytes that the host unpacks afterwards; one copy moves them all
 *         [top, end)   on the device, bytes for pinned host memory; on the host, bytes that are copied
 *                      from a plane
 * One thread at a time. */

#ifndef CAIRN_CUDA_PLAN_BYTES_MAX /* a test sets it lower, so that a list needs several plans */
#define CAIRN_CUDA_PLAN_BYTES_MAX ((size_t)4 << 20)
#endif
#define CAIRN_CUDA_PLAN_PARTS \
    ((size_t)512) /* the most items per kernel, the most copies in each direction, and the most ends */

struct cuda_plan_side {
    uint8_t *host;   /* borrowed: [plan.bytes] */
    uint64_t device; /* address: device memory of the same size */
    size_t used, top;
};

struct cuda_plan_copy {
    uint64_t device;
    void *host;
    size_t bytes;
};

/* A step that the host takes when the slice is done. */
struct cuda_plan_end {
    enum { CAIRN_END_COPY, CAIRN_END_COUNT, CAIRN_END_SUMS } kind;
    /* COPY: the place of the bytes; COUNT: a uint64_t to which the count is added; SUMS: a struct sums */
    void *to;
    const void *from,
        *squares; /* in the host memory of `out`; SUMS: `from` has the non-finite counts */
    size_t count; /* COPY: the number of bytes; SUMS: the number of leaves */
};

struct cuda_plan_items {
    uint8_t *list; /* owned: [CAIRN_CUDA_PLAN_PARTS] items of the kernel's struct */
    uint64_t count, pieces;
};

struct cuda_plan {
    /* constant */
    size_t bytes;           /* the bytes of each side */
    struct cuda_span space; /* all addresses of the home */
    bool (*is_pinned)(struct cuda *cuda, const void *host, uint64_t bytes);
    struct cuda *cuda; /* the argument of is_pinned */
    /* the work */
    struct cuda_plan_side in, out;
    struct cuda_plan_items kernels[CAIRN_KERNEL_COUNT];
    /* the bytes of all items, which are put at the end of [0, in.used) at last */
    size_t item_bytes;
    struct cuda_plan_copy *copies_in, *copies_out; /* owned: [CAIRN_CUDA_PLAN_PARTS] */
    size_t in_count, out_count;
    struct cuda_plan_end *ends; /* owned: [CAIRN_CUDA_PLAN_PARTS] */
    size_t end_count;
    /* there are counts, so the device memory [0, out.used) must be 0 before kernels run */
    bool counts;
};

/* How much of a work item is already in plans. */
struct cuda_plan_cursor {
    uint64_t done; /* elements, leaves or bytes */
    /* for a fold with sums whose sources do not fit: so many elements are folded, and their sums are still
     * to be computed */
    uint64_t folded;
};

/* ==== lower ==== */

/* Splits work items into parts that fit a plan. Private to run.c. */

/* An upper bound for the bytes of an item, with the rounding of one or two buffers. */
#define CAIRN_CUDA_PLAN_ITEM_ROOM ((size_t)256)

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

/* A stream of the home has three streams of the driver, and slices that pass through them one after the
 * other.
 *
 *   in        copies of slice 2 ─┐ loaded
 *   compute   kernels of slice 1 ┴─────────┐ computed
 *   out       copies of slice 0 ───────────┴─► done ─► the host unpacks, and fills it again
 *
 * In each slice an event puts each step after the step before it, and the host waits for `done` before it
 * touches the memory of the slice again. Kernels of a later slice run after those of an earlier slice.
 * Small copies to and from the device use the stream `compute`, which saves two events. A new list begins
 * with the slice after the last slice of the list that is running, so two lists may share the three slices
 * at the same time. One thread at a time. */

#define CAIRN_CUDA_SLICES 3
#define CAIRN_CUDA_LISTS  2 /* the most lists that are begun and not finished */

struct cuda_slice {
    struct cuda_plan plan;
    struct CUevent_st *loaded, *computed, *done;
    bool is_under_way; /* the slice is begun, and not finished yet */
    uint64_t list;     /* the number of the slice's list, if the slice is under way */
};

struct cuda_stream {
    struct home_stream stream; /* the first field */
    struct CUstream_st *in, *compute, *out;
    /* device memory: first `in` of each slice, then `out` of each slice */
    struct home_memory staging;
    uint8_t *pinned; /* host memory, divided in the same way; NULL: the stream has not begun yet */
    struct cuda_slice slices[CAIRN_CUDA_SLICES];
    uint32_t next; /* the slice to fill next */
    /* lists are numbered from 1 in their order */
    uint64_t lists_begun, lists_finished;
    /* the number of a failed list until its finish has reported the failure; otherwise 0 */
    uint64_t list_failed;
    cairn_status failed_status;
    struct sentence failed_why;
};

/* Returns the bytes of a stream's staging memory, for `in` and `out` of each slice. A stream uses so many
 * bytes on the card, and as many in pinned host memory. They are fewer on a small card (a MIG slice): there
 * the six streams of a shard use half a percent of the card, but at least 36 MiB. */
uint64_t cuda_staging_bytes(uint64_t card_bytes);
/* The first call allocates the stream's staging memory. Every run makes this call, too. */
CAIRN_MUST_CHECK cairn_status cuda_stream_begin(struct home_stream *begun, struct sentence *why);

/* ==== image ==== */

/* The image of the kernels in this program, for cuLibraryLoadData. image.cmake makes the image. Static
 * memory. */

struct cuda_image {
    const void *bytes; /* NULL: this build has no kernels */
    size_t size;
    int toolkit; /* the toolkit that compiled the kernels: 13000 is CUDA 13.0; 0: unknown */
};

struct cuda_image cuda_image(void);

#endif
