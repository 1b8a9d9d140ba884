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

/* GPUs of this process, by the number that CUDA_VISIBLE_DEVICES gives them, through the driver's interface
 * (gpu/cuda/driver.h): no CUDA runtime is linked, and where there is no driver all else works.
 *
 * A card is opened when it is first named, in its primary context, which torch and the CUDA runtime use, and
 * stays open as long as the process. Each call works in that context and leaves the thread's as it was. Any
 * thread; none waits for a stream unless it says so. Where a sentence is not asked for, it is the calling
 * thread's (cairn_error). */

struct card;
struct card_event;

/* CAIRN_ERR_UNSUPPORTED: no driver, one that is too old, or a card that cannot do what is needed;
 * CAIRN_ERR_INVALID: no such number; CAIRN_ERR_IO, CAIRN_ERR_NO_MEMORY: it does not open. */
cairn_status card_get(int number, struct card **card_out) CAIRN_MUST_CHECK;
/* Finds the card that a caller's `device` names: 0 is the host, and *card_out NULL; CAIRN_GPU(n) is
 * GPU n. `what` is the name of that argument in cairn.h, for the error. CAIRN_ERR_INVALID: another
 * number, such as a plain 1 or the -1 of other interfaces. */
cairn_status card_of_device(int device, const char *what, struct card **card_out) CAIRN_MUST_CHECK;
/* Finds the card of the thread's current context (cudaSetDevice); without a context `other`, or GPU
 * 0 if that is NULL. */
cairn_status card_of_thread(struct card *other, struct card **card_out) CAIRN_MUST_CHECK;
int card_number(const struct card *card);
const uint8_t *card_uuid(const struct card *card); /* [16] */

/* ---- memory ---- */

/* One handle, mapped for this card. */
struct card_memory {
    struct card *card; /* NULL: none */
    uint64_t at;
    size_t bytes; /* whole units of the card's */
    unsigned long long handle;
};

cairn_status card_memory_open(struct card *card, size_t bytes,
                              struct card_memory *memory_out) CAIRN_MUST_CHECK;
/* Nothing of this process uses it any more; whoever imported it keeps it. */
void card_memory_close(struct card_memory *memory);
/* A descriptor of it, the caller's, to be closed soon: an open one keeps the memory taken. -1: none. */
int card_memory_export(const struct card_memory *memory);
/* Checks that the memory is this card's. CAIRN_ERR_INVALID: its first or its last byte is not. The
 * driver tells only to which allocation an address belongs, so a gap in the middle is not seen. */
cairn_status card_judge(struct card *card, const void *ptr, size_t bytes) CAIRN_MUST_CHECK;

enum card_direction { CARD_WITHIN, CARD_TO_HOST, CARD_FROM_HOST };
/* Copies, and returns when that is done. The caller has waited before for all that still uses the
 * memory. CAIRN_ERR_IO: the context is gone, most likely. */
cairn_status card_copy(struct card *card, void *to, const void *from, size_t bytes,
                       enum card_direction direction, struct sentence *why) CAIRN_MUST_CHECK;
/* The same in two calls. Copies are begun in the order of the calls, beside what else the card
 * does, and are waited for by their number, which covers all copies before it, too; 0: nothing was
 * begun. Source and target must stay as they are until then, even if the caller has no use for the
 * copy any more. */
cairn_status card_copy_begin(struct card *card, void *to, const void *from, size_t bytes,
                             enum card_direction direction, uint64_t *copy_out,
                             struct sentence *why) CAIRN_MUST_CHECK;
cairn_status card_copy_wait(struct card *card, uint64_t copy,
                            struct sentence *why) CAIRN_MUST_CHECK;
/* True if the network card may write memory of the card that is shown to the fabric:
 * CAIRN_FABRIC_PATH_DIRECT. */
bool card_lands(const struct card *card);
/* Makes the card see what the network card wrote, in all that it does from here on. CAIRN_ERR_IO. */
cairn_status card_landed(const struct card *card, struct sentence *why) CAIRN_MUST_CHECK;
/* Host memory that is copied to often. False: it stays as it was, and copies are slower. */
bool card_pin(struct card *card, void *host, size_t bytes);
void card_unpin(struct card *card, void *host);

/* ---- what a stream has queued ---- */

/* Marks what is queued on the stream now: the event is done when that is. `stream` is a
 * cudaStream_t of the card's primary context; NULL: the default stream. CAIRN_ERR_INVALID: the
 * driver says that it is no such stream, or it is being captured into a graph. */
cairn_status card_mark(struct card *card, void *stream,
                       struct card_event **event_out) CAIRN_MUST_CHECK;
enum card_state { CARD_WAITS, CARD_DONE, CARD_FAILED };
enum card_state card_event_state(const struct card_event *event, struct sentence *why);
/* Sleeps until it is done. */
cairn_status card_event_wait(const struct card_event *event) CAIRN_MUST_CHECK;
void card_event_free(struct card_event *event); /* NULL is fine */

/* ---- a stream that waits for the host ---- */

/* A word that only grows: of this process for good, since a stream may wait for it however late. */
struct card_word {
    struct card_word *next; /* of whoever has it */
    struct card *card;
    uint32_t *value; /* pinned */
    uint64_t at;     /* the same, for the card */
    uint32_t target; /* of the last wait */
};
struct card_wait {
    uint64_t at;
    uint32_t value;
};
/* The caller's, until card_word_set; *wait_out: for one wait, which may begin behind that, too. */
cairn_status card_word_acquire(struct card *card, struct card_word **word_out,
                               struct card_wait *wait_out) CAIRN_MUST_CHECK;
/* Makes all that is queued on the stream after this call wait until the word is set.
 * CAIRN_ERR_INVALID: as for card_mark; CAIRN_ERR_UNSUPPORTED: the driver has no such
 * waits. */
cairn_status card_stream_await_word(struct card *card, void *stream,
                                    const struct card_wait *wait) CAIRN_MUST_CHECK;
/* Lets the stream go on; the word is not the caller's any more. Asks the driver for nothing: no stream and no
 * other thread's call can keep it, and it needs no card that works. */
void card_word_set(struct card_word *word);

/* Calls that map, register or unmap memory belong between these two: the driver may let them wait
 * for all that a card has under way, even for a stream that waits for a word. A session's thread
 * sets words, so it must not be held up there: if the first call returns false, some stream of this
 * process waits, and the thread tries again later. No stream begins to wait in between: a thread
 * that takes a word sleeps meanwhile. */
bool card_change_begin(void);
void card_change_end(void);

/* ==== card, from the inside ==== */

/* Private to device.c. */

struct card {
    const struct driver *driver;
    int number, device;
    int numa_node; /* that it is next to, and what is pinned for it is to be of (proto/base/machine.h) */
    uint8_t uuid[16];
    bool is_reached;  /* network cards reach that (GPUDirect RDMA) */
    bool has_dma_buf; /* its driver gives it to theirs so */
    enum vmm_order order;
    bool exports; /* it has memory that goes between processes as descriptors */
    struct CUctx_st *context;
    struct CUstream_st *side; /* of the library: its copies */
    size_t granularity;       /* of memory */
    struct card_word *words;  /* that nobody waits for */
    /* copies in `side`, numbered from 1 in their order */
    pthread_mutex_t copies_lock; /* guards what follows */
    struct CUevent_st *copied;   /* behind the last that was begun; waited for without the lock */
    uint64_t copies_begun, copies_done;
};

/* ==== import ==== */

/* Maps what the shards of this host publish on a card, so that this process can read it: the callbacks
 * that the fabric asks for (proto/fabric/fabric.h). The segments of a copy come one by one, as the
 * shard shows them (proto/geometry/layout.h), and lie side by side from the first on. While a
 * stream waits for a word nothing is mapped or unmapped, since the driver may let such a call wait for
 * the stream: it is put off, and until then a segment that was shown has only its addresses. Loop
 * thread. */

struct card_imports;

/* CAIRN_ERR_NO_MEMORY; CAIRN_ERR_UNSUPPORTED: a card that maps nothing of other processes. */
cairn_status card_imports_open(struct card *card,
                               struct card_imports **imports_out) CAIRN_MUST_CHECK;
/* Behind the fabric, and when nobody reads any more. NULL is fine. */
void card_imports_close(struct card_imports *imports);
/* Does what was put off: between card_change_begin and _end. NULL is fine. */
void card_imports_turn(struct card_imports *imports);
/* True if something is put off. */
bool card_imports_wait(const struct card_imports *imports);
enum card_import { CARD_IMPORT_LATER, CARD_IMPORT_THERE, CARD_IMPORT_REFUSED };
/* The state of an address that was given to the fabric and is not released. */
enum card_import card_imports_state(const struct card_imports *imports, const void *address);
/* Why the driver refused the segment that became CARD_IMPORT_REFUSED last. */
const char *card_imports_why(const struct card_imports *imports);
const struct fabric_device *card_imports_table(const struct card_imports *imports);

#endif
