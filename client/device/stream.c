/* What a stream of the caller has queued, and words that one waits for. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "client/base/error.h"
#include "client/device/door.h"

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
    int result = card->driver->cuEventCreate(&event->event, CAIRN_CU_EVENT_BLOCKING_SYNC |
                                                                CAIRN_CU_EVENT_DISABLE_TIMING);
    if (result == CAIRN_CU_OK) {
        result = card->driver->cuEventRecord(event->event, stream);
        if (result != CAIRN_CU_OK) (void)card->driver->cuEventDestroy(event->event);
    }
    cairn_card_leave(card);
    if (result == CAIRN_CU_OK) {
        *event_out = event;
        return CAIRN_OK;
    }
    free(event);
    return refuse_stream(card, result, stream);
}

enum card_state cairn_card_event_state(const struct card_event *event, struct cairn_sentence *why)
{
    if (cairn_card_enter(event->card, why) != CAIRN_OK) return CARD_FAILED;
    const int result = event->card->driver->cuEventQuery(event->event);
    cairn_card_leave(event->card);
    if (result == CAIRN_CU_OK) return CARD_DONE;
    if (result == CAIRN_CU_NOT_READY) return CARD_WAITS;
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

static struct {
    pthread_mutex_t lock;
    struct card_word *free;
} words = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Never given back: a stream may come to its wait after all else is closed. Under the lock. */
static int make_words(const struct card *card)
{
    void *memory;
    const int result = card->driver->cuMemAllocHost(&memory, WORDS_BYTES);
    if (result != CAIRN_CU_OK) return result;
    uint32_t *values = memory;
    for (size_t i = 0; i < WORDS_BYTES / sizeof *values; i++) {
        struct card_word *word = calloc(1, sizeof *word);
        if (word == NULL) break;
        values[i] = 0;
        word->value = &values[i];
        word->next = words.free;
        words.free = word;
    }
    return words.free != NULL ? CAIRN_CU_OK : CAIRN_CU_OUT_OF_MEMORY;
}

static int take_word(const struct card *card, struct card_word **word_out)
{
    pthread_mutex_lock(&words.lock);
    const int result = words.free != NULL ? CAIRN_CU_OK : make_words(card);
    if (result == CAIRN_CU_OK) {
        *word_out = words.free;
        words.free = words.free->next;
    }
    pthread_mutex_unlock(&words.lock);
    return result;
}

/* Whoever still waits for an earlier target goes on at any later value: the comparison is cyclic. */
void cairn_card_word_set(struct card_word *word)
{
    atomic_store_explicit((_Atomic uint32_t *)word->value, word->target, memory_order_release);
    pthread_mutex_lock(&words.lock);
    word->next = words.free;
    words.free = word;
    pthread_mutex_unlock(&words.lock);
}

cairn_status cairn_card_wait_for_word(struct card *card, void *stream, struct card_word **word_out)
{
    struct cairn_sentence why;
    struct card_word *word = NULL;
    const cairn_status status = cairn_card_enter(card, &why);
    if (status != CAIRN_OK) return cairn_client_fail(status, "GPU %d: %s", card->number, why.text);
    int result = take_word(card, &word);
    const bool has_word = result == CAIRN_CU_OK;
    if (has_word) {
        word->target++;
        result = card->driver->cuStreamWaitValue32(stream, (uint64_t)(uintptr_t)word->value,
                                                   word->target, CAIRN_CU_STREAM_WAIT_GEQ);
    }
    cairn_card_leave(card);
    if (result == CAIRN_CU_OK) {
        *word_out = word;
        return CAIRN_OK;
    }
    if (has_word) cairn_card_word_set(word);
    if (!has_word)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "no pinned memory for a stream's wait");
    if (result == CAIRN_CU_NOT_SUPPORTED)
        return cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                                 "the driver has no stream memory operations: use cairn_wait");
    return refuse_stream(card, result, stream);
}
