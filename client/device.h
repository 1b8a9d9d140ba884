#ifndef CAIRN_CLIENT_DEVICE_H
#define CAIRN_CLIENT_DEVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda/driver.h"
#include "proto/base/text.h"
#include "proto/fabric/fabric.h"

/* ==== card ==== */

/* GPUs of this process, each named by the number that CUDA_VISIBLE_DEVICES gives it. Only the
 * driver's interface (gpu/cuda/driver.h) is used: no CUDA runtime is linked, and without a driver
 * everything that needs no GPU works.
 *
 * A card is opened when it is first named, and stays open until the process ends. The library uses
 * the card's primary context, which torch and the CUDA runtime use, too. Each call switches the
 * thread to that context, and then back to the context that the thread had. Any thread; no call
 * waits for a stream unless its comment says so. A call without a `why` argument sets the calling
 * thread's sentence (cairn_error). */

struct card;
struct card_event;

/* CAIRN_ERR_UNSUPPORTED: no driver, a driver that is too old, or a card that lacks a required
 * feature; CAIRN_ERR_INVALID: no GPU has this number; CAIRN_ERR_IO, CAIRN_ERR_NO_MEMORY: the card
 * does not open. */
cairn_status card_get(int number, struct card **card_out) CAIRN_MUST_CHECK;
/* Finds the card that a caller's `device` names. 0 names the host: *card_out is then NULL.
 * CAIRN_GPU(n) names GPU n. `what` is the name of that argument in cairn.h, for the error text.
 * CAIRN_ERR_INVALID: any other number, such as a plain 1 or the -1 of other interfaces. */
cairn_status card_of_device(int device, const char *what, struct card **card_out) CAIRN_MUST_CHECK;
/* Finds the card of the thread's current context (cudaSetDevice). Without a context, returns
 * `other`, or GPU 0 if `other` is NULL. */
cairn_status card_of_thread(struct card *other, struct card **card_out) CAIRN_MUST_CHECK;
int card_number(const struct card *card);
const uint8_t *card_uuid(const struct card *card); /* [16] */

/* ---- memory ---- */

/* One allocation, with one handle, mapped for this card. */
struct card_memory {
    struct card *card; /* NULL: none */
    uint64_t at;
    size_t bytes; /* a multiple of the card's granularity */
    unsigned long long handle;
};

cairn_status card_memory_open(struct card *card, size_t bytes,
                              struct card_memory *memory_out) CAIRN_MUST_CHECK;
/* Called when nothing in this process uses the memory any more; a process that imported the memory
 * keeps it. */
void card_memory_close(struct card_memory *memory);
/* Returns a descriptor of the memory, which the caller must close soon, because an open descriptor
 * keeps the memory allocated. -1: none. */
int card_memory_export(const struct card_memory *memory);
/* Checks that the memory belongs to this card. CAIRN_ERR_INVALID: the first or the last byte of the
 * memory does not belong to the card. The driver reports only which allocation an address belongs
 * to, so a gap in the middle is not detected. */
cairn_status card_judge(struct card *card, const void *ptr, size_t bytes) CAIRN_MUST_CHECK;

enum card_direction { CARD_WITHIN, CARD_TO_HOST, CARD_FROM_HOST };
/* Copies, and returns when the copy is complete. The caller must already have waited for everything
 * that still uses the memory. CAIRN_ERR_IO: most likely, the context is gone. */
cairn_status card_copy(struct card *card, void *to, const void *from, size_t bytes,
                       enum card_direction direction, struct sentence *why) CAIRN_MUST_CHECK;
/* These two calls do the same as card_copy. Copies begin in the order of the calls, in parallel with
 * the card's other work. The caller waits for a copy by its number; the wait also covers all earlier
 * copies. Number 0: no copy was begun. Source and target must not change until the wait returns, even
 * if the caller no longer needs the copy. */
cairn_status card_copy_begin(struct card *card, void *to, const void *from, size_t bytes,
                             enum card_direction direction, uint64_t *copy_out,
                             struct sentence *why) CAIRN_MUST_CHECK;
cairn_status card_copy_wait(struct card *card, uint64_t copy,
                            struct sentence *why) CAIRN_MUST_CHECK;
/* Returns true if network cards may write directly into memory of this card that is registered with
 * the fabric (CAIRN_FABRIC_PATH_DIRECT). */
bool card_lands(const struct card *card);
/* Makes the network card's writes visible to all work that the card does from here on. CAIRN_ERR_IO. */
cairn_status card_landed(const struct card *card, struct sentence *why) CAIRN_MUST_CHECK;
/* Pins host memory that is often a target of copies. False: the memory is not pinned, and copies are
 * slower. */
bool card_pin(struct card *card, void *host, size_t bytes);
void card_unpin(struct card *card, void *host);

/* ---- what a stream has queued ---- */

/* Creates an event for the work that is queued on the stream now: the event is done when that work is
 * done. `stream` is a cudaStream_t of the card's primary context; NULL: the default stream.
 * CAIRN_ERR_INVALID: the driver rejects the stream, or the stream is being captured into a graph. */
cairn_status card_mark(struct card *card, void *stream,
                       struct card_event **event_out) CAIRN_MUST_CHECK;
enum card_state { CARD_WAITS, CARD_DONE, CARD_FAILED };
enum card_state card_event_state(const struct card_event *event, struct sentence *why);
/* Sleeps until the event is done. */
cairn_status card_event_wait(const struct card_event *event) CAIRN_MUST_CHECK;
void card_event_free(struct card_event *event); /* NULL is fine */

/* ---- a stream that waits for the host ---- */

/* A word in memory whose value only grows. A word is never freed, since a stream may wait for it
 * arbitrarily late. */
struct card_word {
    struct card_word *next; /* in the list of its current owner */
    struct card *card;
    uint32_t *value; /* pinned */
    uint64_t at;     /* the address of the value, for the card */
    uint32_t target; /* the value that the last wait needs */
};
struct card_wait {
    uint64_t at;
    uint32_t value;
};
/* The word belongs to the caller until card_word_set. *wait_out is for one wait, which may also begin
 * after card_word_set. */
cairn_status card_word_acquire(struct card *card, struct card_word **word_out,
                               struct card_wait *wait_out) CAIRN_MUST_CHECK;
/* Makes all work that is queued on the stream after this call wait until the word is set.
 * CAIRN_ERR_INVALID: as for card_mark; CAIRN_ERR_UNSUPPORTED: the driver has no such waits. */
cairn_status card_stream_await_word(struct card *card, void *stream,
                                    const struct card_wait *wait) CAIRN_MUST_CHECK;
/* Releases the stream; the word no longer belongs to the caller. Makes no driver call: neither a
 * stream nor another thread's call can delay it, and it works even if the card has failed. */
void card_word_set(struct card_word *word);

/* Calls that map, register or unmap memory belong between card_change_begin and card_change_end.
 * The driver may block such calls until all work of a card is complete, including a stream that
 * waits for a word. A session's thread sets words, so it must not block there. Therefore
 * card_change_begin returns false while some stream of this process waits, and the thread tries
 * again later. Between the two calls no stream begins to wait: a thread that acquires a word sleeps
 * meanwhile. */
bool card_change_begin(void);
void card_change_end(void);

/* ==== card, from the inside ==== */

/* Private to device.c. */

struct card {
    const struct driver *driver;
    int number, device;
    /* the nearest node, to which the card's pinned memory belongs (proto/base/machine.h) */
    int numa_node;
    uint8_t uuid[16];
    bool is_reached;  /* network cards can access the card's memory (GPUDirect RDMA) */
    bool has_dma_buf; /* the driver exports the memory as a dma-buf for the network cards' driver */
    enum vmm_order order;
    bool exports; /* the card's memory can be passed between processes as descriptors */
    struct CUctx_st *context;
    struct CUstream_st *side; /* the library's own stream, for its copies */
    size_t granularity;       /* the granularity of memory allocations */
    struct card_word *words;  /* the free words, for which nobody waits */
    /* copies in `side`, numbered from 1 in order */
    pthread_mutex_t copies_lock; /* guards what follows */
    /* the event after the last copy that was begun; threads wait for the event without the lock */
    struct CUevent_st *copied;
    uint64_t copies_begun, copies_done;
};

/* ==== import ==== */

/* Maps the memory that the shards of this host publish on a card, so that this process can read the
 * memory. These functions are the callbacks that the fabric needs (proto/fabric/fabric.h). The
 * segments of a copy arrive one by one, as the shard shows them (proto/geometry/layout.h), and are
 * mapped side by side, starting with the first segment. While a stream waits for a word, nothing is
 * mapped or unmapped, since the driver may block such a call until the stream is done. The call is
 * postponed instead; until then, a segment to be mapped has addresses, but no memory. Loop
 * thread. */

struct card_imports;

/* CAIRN_ERR_NO_MEMORY; CAIRN_ERR_UNSUPPORTED: the card cannot map memory of other processes. */
cairn_status card_imports_open(struct card *card,
                               struct card_imports **imports_out) CAIRN_MUST_CHECK;
/* Called when the fabric is closed and no thread reads the memory any more. NULL is fine. */
void card_imports_close(struct card_imports *imports);
/* Does the postponed work. Call this between card_change_begin and card_change_end. NULL is fine. */
void card_imports_turn(struct card_imports *imports);
/* Returns true if some work is postponed. */
bool card_imports_wait(const struct card_imports *imports);
enum card_import { CARD_IMPORT_LATER, CARD_IMPORT_THERE, CARD_IMPORT_REFUSED };
/* Returns the state of an address that was given to the fabric and is not released. */
enum card_import card_imports_state(const struct card_imports *imports, const void *address);
/* Returns why the driver refused the segment that last became CARD_IMPORT_REFUSED. */
const char *card_imports_why(const struct card_imports *imports);
const struct fabric_device *card_imports_table(const struct card_imports *imports);

#endif
