/* GPUs of this process, by the number that CUDA_VISIBLE_DEVICES gives them, through the driver's interface
 * (gpu/cuda/driver.h): no CUDA runtime is linked, and where there is no driver all else works.
 *
 * A card is opened when it is first named, in its primary context, which torch and the CUDA runtime use, and
 * stays open as long as the process. Each call works in that context and leaves the thread's as it was. Any
 * thread; none waits for a stream unless it says so. Where a sentence is not asked for, it is the calling
 * thread's (cairn_error). */
#ifndef CAIRN_CLIENT_DEVICE_CARD_H
#define CAIRN_CLIENT_DEVICE_CARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/sentence.h"

struct card;
struct card_event;

/* CAIRN_ERR_UNSUPPORTED: no driver, one that is too old, or a card that cannot do what is needed;
 * CAIRN_ERR_INVALID: no such number; CAIRN_ERR_IO, CAIRN_ERR_NO_MEMORY: it does not open. */
cairn_status cairn_card_get(int number, struct card **card_out) CAIRN_MUST_CHECK;
/* What a caller means by `device` (`what`: how cairn.h calls it): 0 is the host, and *card_out NULL;
 * CAIRN_GPU(n) GPU n. CAIRN_ERR_INVALID: another number, such as a plain 1 or the -1 of other interfaces. */
cairn_status cairn_card_of_device(int device, const char *what,
                                  struct card **card_out) CAIRN_MUST_CHECK;
/* That of the thread's current context (cudaSetDevice); without one `other`, or GPU 0 if that is NULL. */
cairn_status cairn_card_of_thread(struct card *other, struct card **card_out) CAIRN_MUST_CHECK;
int cairn_card_number(const struct card *card);
const uint8_t *cairn_card_uuid(const struct card *card); /* [16] */

/* ---- memory ---- */

/* One handle, mapped for this card. */
struct card_memory {
    struct card *card; /* NULL: none */
    uint64_t at;
    size_t bytes; /* whole units of the card's */
    unsigned long long handle;
};

cairn_status cairn_card_memory_open(struct card *card, size_t bytes,
                                    struct card_memory *memory_out) CAIRN_MUST_CHECK;
/* Nothing of this process uses it any more; whoever imported it keeps it. */
void cairn_card_memory_close(struct card_memory *memory);
/* A descriptor of it, the caller's, to be closed soon: an open one keeps the memory taken. -1: none. */
int cairn_card_memory_export(const struct card_memory *memory);
/* CAIRN_ERR_INVALID: the first or the last byte is not memory of this card. What a card's memory is, the
 * driver knows to whole allocations only: a gap in the middle is not seen. */
cairn_status cairn_card_judge(struct card *card, const void *ptr, size_t bytes) CAIRN_MUST_CHECK;

enum card_way { CARD_WITHIN, CARD_TO_HOST, CARD_FROM_HOST };
/* Returns when it is copied. What the memory is waited for by the caller. CAIRN_ERR_IO: the context is gone,
 * most likely. */
cairn_status cairn_card_copy(struct card *card, void *to, const void *from, size_t bytes,
                             enum card_way way, struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The same in two: begun in the order of the calls, beside what else a card does, and waited for by its
 * number, with which all before it are copied; 0: nothing was begun. What is copied, and where to, stays as
 * it is until then, also where the caller has no use for it any more. */
cairn_status cairn_card_copy_begin(struct card *card, void *to, const void *from, size_t bytes,
                                   enum card_way way, uint64_t *copy_out,
                                   struct cairn_sentence *why) CAIRN_MUST_CHECK;
cairn_status cairn_card_copy_wait(struct card *card, uint64_t copy,
                                  struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* True if the network card may write memory of the card that is shown to the fabric:
 * CAIRN_FABRIC_PATH_DIRECT. */
bool cairn_card_lands(const struct card *card);
/* Makes the card see what the network card wrote, in all that it does from here on. CAIRN_ERR_IO. */
cairn_status cairn_card_landed(const struct card *card,
                               struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Host memory that is copied to often. False: it stays as it was, and copies are slower. */
bool cairn_card_pin(struct card *card, void *host, size_t bytes);
void cairn_card_unpin(struct card *card, void *host);

/* ---- what a stream has queued ---- */

/* What is on the stream (a cudaStream_t of that card's primary context; NULL: the default stream) now.
 * CAIRN_ERR_INVALID: it is no stream of it, as far as the driver says, or captured into a graph. */
cairn_status cairn_card_mark(struct card *card, void *stream,
                             struct card_event **event_out) CAIRN_MUST_CHECK;
enum card_state { CARD_WAITS, CARD_DONE, CARD_FAILED };
enum card_state cairn_card_event_state(const struct card_event *event, struct cairn_sentence *why);
/* Sleeps until it is done. */
cairn_status cairn_card_event_wait(const struct card_event *event) CAIRN_MUST_CHECK;
void cairn_card_event_free(struct card_event *event); /* NULL is fine */

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
/* The caller's, until cairn_card_word_set; *wait_out: for one wait, which may begin behind that, too. */
cairn_status cairn_card_word_take(struct card *card, struct card_word **word_out,
                                  struct card_wait *wait_out) CAIRN_MUST_CHECK;
/* What is queued on the stream behind this waits until the word is set. CAIRN_ERR_INVALID: as of a mark;
 * CAIRN_ERR_UNSUPPORTED: the driver has no such waits. */
cairn_status cairn_card_wait(struct card *card, void *stream,
                             const struct card_wait *wait) CAIRN_MUST_CHECK;
/* Lets the stream go on; the word is not the caller's any more. Asks the driver for nothing: no stream and no
 * other thread's call can keep it, and it needs no card that works. */
void cairn_card_word_set(struct card_word *word);

/* What maps, registers or unmaps memory the driver may let wait for all that a card has under way, a stream
 * that waits for a word included. A thread that sets words, a session's own, does it between these two only,
 * and later if the first says false: some stream of this process waits. None begins to wait between them: who
 * takes a word sleeps meanwhile. */
bool cairn_card_change_begin(void);
void cairn_card_change_end(void);

#endif
