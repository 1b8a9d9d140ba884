/* The home on a card: what the files of gpu/cuda share. Private to it.
 *
 *   home.c ──► device.c   which card; its name
 *     │   └──► memory.c   planes: handles of at most 64 MiB, side by side in one reservation
 *     │   └──► import.c   memory of the card that other processes own
 *     │   └──► pin.c      host memory that the card reads by itself
 *     └──► stream.c ──► run.c   works ─► lower.c: what fits a plan ─► slice.c: copies in, kernels, copies out
 *
 * One reservation of addresses has all that a home gives: what lies in it lies in the home. The part of it
 * that imports get is their own: whoever shows much takes none of the planes' addresses.
 *
 * The context is the card's primary one, so that other libraries of this process can share it; each entry
 * makes it the calling thread's (cairn_cuda_enter).
 *
 * Who waits for the card sleeps: all waits are for events that were made with CAIRN_CUDA_EVENT, as
 * cuStreamSynchronize, and an event of another kind, would keep a processor busy. */
#ifndef CAIRN_GPU_CUDA_CUDA_H
#define CAIRN_GPU_CUDA_CUDA_H

#include <pthread.h>
#include <stdatomic.h>

#include "gpu/cuda/driver.h"
#include "gpu/home_kind.h"
#include "gpu/kernel/list.h"

#define CAIRN_CUDA_EVENT (CAIRN_CU_EVENT_BLOCKING_SYNC | CAIRN_CU_EVENT_DISABLE_TIMING)

/* Bytes of addresses, from at on. */
struct cairn_cuda_span {
    uint64_t at, bytes;
};
/* Spans that lie apart, in order. */
struct cairn_cuda_spans {
    struct cairn_cuda_span *list; /* owned */
    size_t count, capacity;
};

struct cairn_cuda {
    struct cairn_home home;     /* first */
    struct cairn_driver driver; /* constant, as all up to the lock */
    int device;
    int peers[CAIRN_HOME_PEERS_MAX]; /* devices, as info.peer_uuids */
    bool is_retained;
    struct CUctx_st *context;
    struct CUlib_st *library;
    struct CUkern_st *kernels[CAIRN_KERNEL_COUNT];
    struct CUstream_st *zeroing;
    struct CUevent_st *zeroed;
    unsigned multiprocessors;
    uint64_t granularity;  /* of memory */
    uint64_t imported_max; /* bytes: what the card and those that it reads have */
    struct cairn_cuda_span space, planes, imports; /* all; its parts */

    uint64_t imported_bytes; /* now: of the thread that imports */

    struct {
        atomic_uint_fast64_t runs, launches, bytes_in, bytes_out, pinned_bytes, unpinned_bytes;
    } use; /* as of struct cairn_home_use */

    atomic_bool has_failed; /* set once, after `failure` */
    pthread_mutex_t lock;   /* guards what follows */
    struct cairn_sentence failure;
    struct cairn_cuda_spans used;   /* of the space */
    struct cairn_cuda_spans pinned; /* of host memory */
};

static inline struct cairn_cuda *cairn_cuda_of(struct cairn_home *home)
{
    return (struct cairn_cuda *)home;
}

/* ---- home.c ---- */

/* Makes the context the thread's. CAIRN_ERR_IO: the card has failed before. */
CAIRN_MUST_CHECK cairn_status cairn_cuda_enter(struct cairn_cuda *cuda, struct cairn_sentence *why);
/* The same for calls that give resources back: they enter also if the card has failed. */
void cairn_cuda_enter_anyway(struct cairn_cuda *cuda);
/* Turns a driver's result into a status: out of memory is CAIRN_ERR_NO_MEMORY, every other failure
 * CAIRN_ERR_IO; a result that breaks the context (result.h) breaks the home for good. `doing` is
 * for the error: "a launch of fold". */
CAIRN_MUST_CHECK cairn_status cairn_cuda_check(struct cairn_cuda *cuda, int result,
                                               const char *doing, struct cairn_sentence *why);

/* Waits until all that is in the stream now is done; returns the driver's result. The thread sleeps
 * meanwhile, as the event is made for it, so that threads which wait for a card leave the
 * processors to others. */
int cairn_cuda_wait(const struct cairn_cuda *cuda, struct CUstream_st *stream,
                    struct CUevent_st *event);

/* ---- device.c ---- */

/* The device and what is known of it: info, granularity, multiprocessors. As cairn_home_open_cuda. */
CAIRN_MUST_CHECK cairn_status cairn_cuda_find(struct cairn_cuda *cuda, const char *name,
                                              struct cairn_sentence *why);

/* ---- spans.c: pure, but for memory; no lock ---- */

/* CAIRN_ERR_NO_MEMORY; CAIRN_ERR_EXISTS: it lies on others. */
CAIRN_MUST_CHECK cairn_status cairn_cuda_spans_add(struct cairn_cuda_spans *spans,
                                                   struct cairn_cuda_span span);
/* The one that begins there, taken out; 0 bytes: none does. */
struct cairn_cuda_span cairn_cuda_spans_take(struct cairn_cuda_spans *spans, uint64_t at);
/* The first one that has some of those bytes; 0 bytes: none has. */
struct cairn_cuda_span cairn_cuda_spans_overlapping(const struct cairn_cuda_spans *spans,
                                                    struct cairn_cuda_span with);
/* Takes off what spans have at both ends of it; 0 bytes: they have all. */
void cairn_cuda_spans_trim(const struct cairn_cuda_spans *spans, struct cairn_cuda_span *span);
/* True if one span has all of it. */
bool cairn_cuda_spans_have(const struct cairn_cuda_spans *spans, uint64_t at, uint64_t bytes);
/* The first place among `within` that has so many free bytes; 0: none. */
uint64_t cairn_cuda_spans_gap(const struct cairn_cuda_spans *spans, struct cairn_cuda_span within,
                              uint64_t bytes);

/* ---- import.c ---- */

/* The devices whose memory this one reads by itself. */
void cairn_cuda_find_peers(struct cairn_cuda *cuda, int device_count);

/* ---- memory.c: addresses of a part of the space; 0: there is no room ---- */

uint64_t cairn_cuda_take_addresses(struct cairn_cuda *cuda, struct cairn_cuda_span part,
                                   uint64_t bytes);
void cairn_cuda_give_addresses(struct cairn_cuda *cuda, uint64_t at);

/* ---- memory.c, import.c, pin.c, stream.c, run.c: of the kind (gpu/home_kind.h) ---- */

cairn_status cairn_cuda_memory_open(struct cairn_home *home, const char *label,
                                    struct cairn_home_memory *memory_out,
                                    struct cairn_sentence *why);
void cairn_cuda_memory_close(struct cairn_home_memory *memory);
void cairn_cuda_memory_give(struct cairn_home_memory *memory, uint64_t segment);
cairn_status cairn_cuda_memory_export(const struct cairn_home_memory *memory, uint64_t segment,
                                      int *fd_out, uint64_t *bytes_out, struct cairn_sentence *why);
cairn_status cairn_cuda_import(struct cairn_home *home, int fd, uint64_t bytes,
                               const void **address_out, struct cairn_sentence *why);
void cairn_cuda_import_release(struct cairn_home *home, const void *address, uint64_t bytes);

cairn_status cairn_cuda_pin(struct cairn_home *home, void *host, uint64_t bytes,
                            struct cairn_sentence *why);
void cairn_cuda_unpin(struct cairn_home *home, void *host, uint64_t bytes);
/* True if the card copies from and to all of these bytes of the host by itself. */
bool cairn_cuda_is_pinned(struct cairn_cuda *cuda, const void *host, uint64_t bytes);

cairn_status cairn_cuda_stream_open(struct cairn_home *home, struct cairn_home_stream **stream_out,
                                    struct cairn_sentence *why);
void cairn_cuda_stream_close(struct cairn_home_stream *stream);
cairn_status cairn_cuda_run_begin(struct cairn_home_stream *stream, struct cairn_work *works,
                                  size_t count, struct cairn_sentence *why);
cairn_status cairn_cuda_run_finish(struct cairn_home_stream *stream, struct cairn_sentence *why);

#endif
