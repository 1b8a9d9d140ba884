/* Events, which mark what a caller's stream has queued, and words, for which a stream waits. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "client/base/error.h"
#include "client/device/door.h"
#include "client/device/mutant.h"
#include "proto/base/numa.h"

#define WORDS_BYTES 4096 /* pinned at a time */

struct card_event {
    const struct card *card;
    struct CUevent_st *event;
};

static cairn_status refuse_stream(const struct card *card, int result, const void *stream)
{
    struct cairn_sentence why;
    cairn_card_fail(result, CAIRN_ERR_INVALID, "", &why);
    return cairn_client_fail(CAIRN_ERR_INVALID,
                             "stream %p is none of GPU %d's primary context (the CUDA runtime's), "
                             "or was destroyed, or its context is gone%s",
                             stream, card->number, why.text);
}

/* Inside of the context. A graph that runs later has another round's gradient, or none: what is captured
 * neither gives nor waits. */
static cairn_status judge_stream(const struct card *card, void *stream)
{
    int capture = CAIRN_CU_CAPTURES_NOTHING;
    const int result = card->driver->cuStreamIsCapturing(stream, &capture);
    if (result == CAIRN_CU_OK && capture == CAIRN_CU_CAPTURES_NOTHING) return CAIRN_OK;
    if (result != CAIRN_CU_OK && result != CAIRN_CU_CAPTURE_IMPLICIT)
        return refuse_stream(card, result, stream);
    return cairn_client_fail(CAIRN_ERR_INVALID,
                             "stream %p of GPU %d is being captured into a CUDA graph%s: call this "
                             "outside of the capture",
                             stream, card->number,
                             result == CAIRN_CU_OK ? ""
                                                   : " (another one is, and this waits for it)");
}

static int record(const struct card *card, void *stream, struct CUevent_st **event_out)
{
    int result = card->driver->cuEventCreate(event_out, CAIRN_CU_EVENT_BLOCKING_SYNC |
                                                            CAIRN_CU_EVENT_DISABLE_TIMING);
    if (result != CAIRN_CU_OK) return result;
    result = card->driver->cuEventRecord(*event_out, stream);
    if (result != CAIRN_CU_OK) (void)card->driver->cuEventDestroy(*event_out);
    return result;
}

cairn_status cairn_card_mark(struct card *card, void *stream, struct card_event **event_out)
{
    struct cairn_sentence why;
    struct card_event *event = calloc(1, sizeof *event);
    if (event == NULL) return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    event->card = card;
    cairn_status status = cairn_card_enter(card, &why);
    if (status != CAIRN_OK) {
        free(event);
        return cairn_client_fail(status, "GPU %d: %s", card->number, why.text);
    }
    status = judge_stream(card, stream);
    if (status == CAIRN_OK) {
        const int result = record(card, stream, &event->event);
        if (result != CAIRN_CU_OK) status = refuse_stream(card, result, stream);
    }
    cairn_card_leave(card);
    if (status == CAIRN_OK)
        *event_out = event;
    else
        free(event);
    return status;
}

/* True if the result is about a capture of the stream: it does not tell whether the work that the
 * stream had queued is done. */
static bool is_of_capture(int result)
{
    return result >= CAIRN_CU_CAPTURE_UNSUPPORTED && result <= CAIRN_CU_CAPTURE_WRONG_THREAD;
}

enum card_state cairn_card_event_state(const struct card_event *event, struct cairn_sentence *why)
{
    if (cairn_card_enter(event->card, why) != CAIRN_OK) return CARD_FAILED;
    const int result = event->card->driver->cuEventQuery(event->event);
    cairn_card_leave(event->card);
    if (result == CAIRN_CU_OK) return CARD_DONE;
    if (result == CAIRN_CU_NOT_READY || is_of_capture(result)) return CARD_WAITS;
    (void)cairn_card_fail(result, CAIRN_ERR_IO, "what was queued on its stream failed", why);
    return CARD_FAILED;
}

cairn_status cairn_card_event_wait(const struct card_event *event)
{
    struct cairn_sentence why;
    cairn_status status = cairn_card_enter(event->card, &why);
    if (status == CAIRN_OK) {
        const int result = event->card->driver->cuEventSynchronize(event->event);
        cairn_card_leave(event->card);
        if (result == CAIRN_CU_OK) return CAIRN_OK;
        status = cairn_card_fail(result, CAIRN_ERR_IO, "what was queued on its stream failed",
                                 &why);
    }
    return cairn_client_fail(status, "GPU %d: %s", event->card->number, why.text);
}

void cairn_card_event_free(struct card_event *event)
{
    if (event == NULL) return;
    if (cairn_card_enter(event->card, NULL) == CAIRN_OK) {
        (void)event->card->driver->cuEventDestroy(event->event);
        cairn_card_leave(event->card);
    }
    free(event);
}

/* ---- words ---- */

/* Guards the lists of all cards. Nobody asks the driver for anything meanwhile: what lets a stream go must
 * not wait for one. */
static pthread_mutex_t words_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t words_changed = PTHREAD_COND_INITIALIZER;
static uint32_t words_taken; /* and not set */
static uint32_t changes;     /* of maps that are under way */

bool cairn_card_change_begin(void)
{
    pthread_mutex_lock(&words_lock);
    const bool may = words_taken == 0 || MUTANT(1);
    changes += may;
    pthread_mutex_unlock(&words_lock);
    return may;
}

void cairn_card_change_end(void)
{
    pthread_mutex_lock(&words_lock);
    if (--changes == 0) pthread_cond_broadcast(&words_changed);
    pthread_mutex_unlock(&words_lock);
}

/* Maps a page that is never unmapped: a stream may come to its wait after all else is closed, and
 * the value written there outlives the card's context. */
static void *take_page(void)
{
    void *page = mmap(NULL, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                      0);
    return page != MAP_FAILED ? page : NULL;
}

/* Inside of the context. Where nothing of others is pinned, the driver's own memory has to do. */
static int pin_page(const struct card *card, void **page, uint64_t *at_out)
{
    const struct cairn_driver *driver = card->driver;
    cairn_numa_move(*page, WORDS_BYTES, card->numa_node);
    int result = driver->cuMemHostRegister(
        *page, WORDS_BYTES, CAIRN_CU_HOST_REGISTER_PORTABLE | CAIRN_CU_HOST_REGISTER_DEVICEMAP);
    if (result != CAIRN_CU_OK) {
        munmap(*page, WORDS_BYTES);
        result = driver->cuMemAllocHost(page, WORDS_BYTES);
    }
    return result == CAIRN_CU_OK ? driver->cuMemHostGetDevicePointer(at_out, *page, 0) : result;
}

static void add_words(struct card *card, uint32_t *values, uint64_t at)
{
    for (size_t i = 0; i < WORDS_BYTES / sizeof *values; i++) {
        struct card_word *word = calloc(1, sizeof *word);
        if (word == NULL) break;
        values[i] = 0;
        *word =
            (struct card_word) { .card = card, .value = &values[i], .at = at + i * sizeof *values };
        pthread_mutex_lock(&words_lock);
        word->next = card->words;
        card->words = word;
        pthread_mutex_unlock(&words_lock);
    }
}

void cairn_card_make_words(struct card *card)
{
    uint64_t at;
    void *page = take_page();
    if (page == NULL) return;
    if (cairn_card_enter(card, NULL) != CAIRN_OK) {
        munmap(page, WORDS_BYTES);
        return;
    }
    const int result = pin_page(card, &page, &at);
    cairn_card_leave(card);
    if (result == CAIRN_CU_OK) add_words(card, page, at);
}

static struct card_word *take_free(struct card *card)
{
    pthread_mutex_lock(&words_lock);
    while (changes > 0 && !MUTANT(2)) pthread_cond_wait(&words_changed, &words_lock);
    struct card_word *word = card->words;
    if (word != NULL) card->words = word->next;
    words_taken += word != NULL;
    pthread_mutex_unlock(&words_lock);
    return word;
}

cairn_status cairn_card_word_take(struct card *card, struct card_word **word_out,
                                  struct card_wait *wait_out)
{
    struct card_word *word = take_free(card);
    if (word == NULL) {
        cairn_card_make_words(card);
        word = take_free(card);
    }
    if (word == NULL)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "no pinned memory for a stream's wait");
    word->target++;
    *word_out = word;
    *wait_out = (struct card_wait) { word->at, word->target };
    return CAIRN_OK;
}

/* Whoever still waits for an earlier target goes on at any later value: the comparison is cyclic. */
void cairn_card_word_set(struct card_word *word)
{
    struct card *card = word->card;
    atomic_store_explicit((_Atomic uint32_t *)word->value, word->target, memory_order_release);
    pthread_mutex_lock(&words_lock);
    word->next = card->words;
    card->words = word;
    words_taken -= !MUTANT(3);
    pthread_mutex_unlock(&words_lock);
}

cairn_status cairn_card_wait(struct card *card, void *stream, const struct card_wait *wait)
{
    struct cairn_sentence why;
    cairn_status status = cairn_card_enter(card, &why);
    if (status != CAIRN_OK) return cairn_client_fail(status, "GPU %d: %s", card->number, why.text);
    status = judge_stream(card, stream);
    if (status == CAIRN_OK) {
        const int result = card->driver->cuStreamWaitValue32(stream, wait->at, wait->value,
                                                             CAIRN_CU_STREAM_WAIT_GEQ);
        if (result == CAIRN_CU_NOT_SUPPORTED)
            status = cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                                       "the driver has no stream memory operations: use "
                                       "cairn_wait");
        else if (result != CAIRN_CU_OK)
            status = refuse_stream(card, result, stream);
    }
    cairn_card_leave(card);
    return status;
}
