/* The home on a card: what the files of gpu/cuda share. Private to it.
 *
 *   home.c   the card: which, its name
 *     │      planes: handles of at most 64 MiB, side by side in one reservation
 *      │      imports: memory of the card that other processes own
 *     │      pins: host memory that the card reads by itself
 *     └──► run.c   works ─► what fits a plan ─► copies in, kernels, copies out
 *
 * One reservation of addresses has all that a home gives: what lies in it lies in the home. The part of it
 * that imports get is their own: whoever shows much takes none of the planes' addresses.
 *
 * The context is the card's primary one, so that other libraries of this process can share it; each entry
 * makes it the calling thread's (cuda_enter).
 *
 * Who waits for the card sleeps: all waits are for events that were made with CAIRN_CUDA_EVENT, as
 * cuStreamSynchronize, and an event of another kind, would keep a processor busy. */
#ifndef CAIRN_GPU_CUDA_CUDA_H
#define CAIRN_GPU_CUDA_CUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "gpu/cuda/driver.h"
#include "gpu/home_kind.h"
#include "gpu/kernel/list.h"

#define CAIRN_CUDA_EVENT (CAIRN_CU_EVENT_BLOCKING_SYNC | CAIRN_CU_EVENT_DISABLE_TIMING)

/* Bytes of addresses, from at on. */
struct cuda_span {
    uint64_t at, bytes;
};
/* Spans that lie apart, in order. */
struct cuda_spans {
    struct cuda_span *list; /* owned */
    size_t count, capacity;
};

struct cuda {
    struct home home;     /* first */
    struct driver driver; /* constant, as all up to the lock */
    int device;
    int peers[CAIRN_HOME_PEERS_MAX]; /* devices, as info.peer_uuids */
    bool is_retained;
    struct CUctx_st *context;
    struct CUlib_st *library;
    struct CUkern_st *kernels[CAIRN_KERNEL_COUNT];
    struct CUstream_st *zeroing;
    struct CUevent_st *zeroed;
    unsigned multiprocessors;
    uint64_t granularity;                    /* of memory */
    uint64_t imported_max;                   /* bytes: what the card and those that it reads have */
    struct cuda_span space, planes, imports; /* all; its parts */

    uint64_t imported_bytes; /* now: of the thread that imports */

    struct {
        atomic_uint_fast64_t runs, launches, bytes_in, bytes_out, pinned_bytes, unpinned_bytes;
    } use; /* as of struct home_use */

    atomic_bool has_failed; /* set once, after `failure` */
    pthread_mutex_t lock;   /* guards what follows */
    struct sentence failure;
    struct cuda_spans used;   /* of the space */
    struct cuda_spans pinned; /* of host memory */
};

static inline struct cuda *home_cuda(struct home *home)
{
    return (struct cuda *)home;
}

/* ---- home.c ---- */

/* Makes the context the thread's. CAIRN_ERR_IO: the card has failed before. */
CAIRN_MUST_CHECK cairn_status cuda_enter(struct cuda *cuda, struct sentence *why);
/* The same for calls that give resources back: they enter also if the card has failed. */
void cuda_enter_anyway(struct cuda *cuda);
/* Turns a driver's result into a status: out of memory is CAIRN_ERR_NO_MEMORY, every other failure
 * CAIRN_ERR_IO; a result that breaks the context (driver.h) breaks the home for good. `doing` is
 * for the error: "a launch of fold". */
CAIRN_MUST_CHECK cairn_status cuda_check(struct cuda *cuda, int result, const char *doing,
                                         struct sentence *why);

/* Waits until all that is in the stream now is done; returns the driver's result. The thread sleeps
 * meanwhile, as the event is made for it, so that threads which wait for a card leave the
 * processors to others. */
int cuda_wait(const struct cuda *cuda, struct CUstream_st *stream, struct CUevent_st *event);

/* ---- home.c, run.c: of the kind (gpu/home_kind.h) ---- */

/* True if the card copies from and to all of these bytes of the host by itself. */
bool cuda_is_pinned(struct cuda *cuda, const void *host, uint64_t bytes);

cairn_status cuda_stream_open(struct home *home, struct home_stream **stream_out,
                              struct sentence *why);
void cuda_stream_close(struct home_stream *stream);
cairn_status cuda_run_begin(struct home_stream *stream, struct home_work *works, size_t count,
                            struct sentence *why);
cairn_status cuda_run_finish(struct home_stream *stream, struct sentence *why);

/* ==== plan ==== */

/* A plan: what one slice of a run is to do, of at most `bytes` in and out. It is made on the host,
 * without the driver, of works that are cut to fit (cuda_plan_add); run.c carries it out; then
 * cuda_plan_end gives the host what was made.
 *
 * A side is memory of the host, pinned, and as much of the device, at the same offsets:
 *   in    [0, used): sources that the host staged, lists of sources, items: one copy brings all of it
 *         [top, end): of the device, where pinned host memory goes; of the host, what goes to a plane
 *   out   [0, used): results, and what the host unpacks afterwards: one copy
 *         [top, end): of the device, what goes to pinned host memory; of the host, what comes from a plane
 * One thread at a time. */

#ifndef CAIRN_CUDA_PLAN_BYTES_MAX /* a test has smaller ones, so that a list takes several */
#define CAIRN_CUDA_PLAN_BYTES_MAX ((size_t)4 << 20)
#endif
#define CAIRN_CUDA_PLAN_PARTS \
    ((size_t)512) /* items of a kernel, copies each way, and ends: at most */

struct cuda_plan_side {
    uint8_t *host;   /* borrowed: [plan.bytes] */
    uint64_t device; /* the same */
    size_t used, top;
};

struct cuda_plan_copy {
    uint64_t device;
    void *host;
    size_t bytes;
};

/* A step for the host when the slice is over. */
struct cuda_plan_end {
    enum { CAIRN_END_COPY, CAIRN_END_COUNT, CAIRN_END_SUMS } kind;
    void *to; /* COPY: bytes; COUNT: a uint64_t to add to; SUMS: struct sums */
    const void *from,
        *squares; /* in the host's memory of `out`; SUMS: the counts, and the squares */
    size_t count; /* COPY: bytes; SUMS: leaves */
};

struct cuda_plan_items {
    uint8_t *list; /* owned: [CAIRN_CUDA_PLAN_PARTS] of the kernel's item */
    uint64_t count, pieces;
};

struct cuda_plan {
    /* constant */
    size_t bytes;           /* of each side */
    struct cuda_span space; /* what lies in it lies in the home */
    bool (*is_pinned)(struct cuda *cuda, const void *host, uint64_t bytes);
    struct cuda *cuda; /* for is_pinned */
    /* what is to be done */
    struct cuda_plan_side in, out;
    struct cuda_plan_items kernels[CAIRN_KERNEL_COUNT];
    size_t item_bytes; /* of all items: they go to the end of [0, in.used) */
    struct cuda_plan_copy *copies_in, *copies_out; /* owned: [CAIRN_CUDA_PLAN_PARTS] */
    size_t in_count, out_count;
    struct cuda_plan_end *ends; /* owned: [CAIRN_CUDA_PLAN_PARTS] */
    size_t end_count;
    bool counts; /* [0, out.used) of the device is to be 0 before kernels run */
};

/* How far a work is in plans. */
struct cuda_plan_cursor {
    uint64_t done;  /* elements, leaves or bytes */
    bool is_folded; /* of a fold with sums of more sources than fit: only the sums are left */
};

/* ==== lower ==== */

/* How works are cut into what fits a plan. Private to run.c. */

/* More than an item takes, and the rounding of a buffer or two. */
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

#define CAIRN_CUDA_SLICES 3
#define CAIRN_CUDA_LISTS  2 /* begun, and not finished */

struct cuda_slice {
    struct cuda_plan plan;
    struct CUevent_st *loaded, *computed, *done;
    bool is_under_way; /* begun, and not yet finished */
    uint64_t list;     /* whose it is, if so */
};

struct cuda_stream {
    struct home_stream stream; /* first */
    struct CUstream_st *in, *compute, *out;
    struct home_memory staging; /* of the device: each slice's in, then each slice's out */
    uint8_t *pinned;            /* of the host: the same; NULL: not begun yet */
    struct cuda_slice slices[CAIRN_CUDA_SLICES];
    uint32_t next; /* the slice that is to be filled */
    /* lists, numbered from 1 in their order */
    uint64_t lists_begun, lists_finished;
    uint64_t list_failed; /* before its finish, by which it is told; else 0 */
    cairn_status failed_status;
    struct sentence failed_why;
};

/* The bytes that a stream stages in, on the card and again in pinned host memory: in and out of
 * each slice. A small card (a MIG slice) gets less: the six streams of a shard take half a percent,
 * or 36 MiB. */
uint64_t cuda_staging_bytes(uint64_t card_bytes);
/* Every run calls this, too: the first call gives the stream its staging. */
CAIRN_MUST_CHECK cairn_status cuda_stream_begin(struct home_stream *begun, struct sentence *why);

/* ==== image ==== */

/* The image of kernels in this program: what cuLibraryLoadData takes. image.cmake makes it. Static memory. */

struct cuda_image {
    const void *bytes; /* NULL: this build has no kernels */
    size_t size;
    int toolkit; /* 13000: compiled by that of CUDA 13.0; 0: not known */
};

struct cuda_image cuda_image(void);

#endif
