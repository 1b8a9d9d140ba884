#include "client/streams.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "client/device/card.h"
#include "client/op.h"
#include "client/session.h"

void cairn_streams_init(struct session *s)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->streams.changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&s->streams.lock, NULL);
}

void cairn_streams_release(struct session *s)
{
    pthread_mutex_destroy(&s->streams.lock);
    pthread_cond_destroy(&s->streams.changed);
}

/* ---- words: under the lock ---- */

static struct card_word *take_words(struct op *op)
{
    struct card_word *words = op->words;
    struct op **link = &op->session->streams.first;
    if (words == NULL) return NULL;
    while (*link != op) link = &(*link)->next_words;
    *link = op->next_words;
    op->words = NULL;
    return words;
}

static void add_word(struct op *op, struct card_word *word)
{
    struct stream_waits *waits = &op->session->streams;
    if (op->words == NULL) {
        op->words_until_ms = cairn_client_now_ms() + CAIRN_STREAMS_WAIT_MS;
        op->next_words = waits->first;
        waits->first = op;
    }
    word->next = op->words;
    op->words = word;
    pthread_cond_signal(&waits->changed);
}

/* The word of an operation that is late. NULL: none is. */
static struct card_word *take_late(struct stream_waits *waits, uint64_t now_ms)
{
    const bool all = waits->is_over || (waits->close_ms != 0 && now_ms >= waits->close_ms);
    struct op *op = waits->first;
    while (op != NULL && !all && now_ms < op->words_until_ms) op = op->next_words;
    if (op == NULL) return NULL;
    op->is_late = true;
    return take_words(op);
}

/* ---- the thread ---- */

static void sleep_until_late(struct stream_waits *waits)
{
    uint64_t until_ms = waits->close_ms != 0 ? waits->close_ms : UINT64_MAX;
    for (const struct op *op = waits->first; op != NULL; op = op->next_words)
        if (op->words_until_ms < until_ms) until_ms = op->words_until_ms;
    if (waits->first == NULL) {
        pthread_cond_wait(&waits->changed, &waits->lock);
        return;
    }
    const struct timespec until = { .tv_sec = (time_t)(until_ms / 1000),
                                    .tv_nsec = (long)(until_ms % 1000) * 1000000 };
    pthread_cond_timedwait(&waits->changed, &waits->lock, &until);
}

static void *watch(void *arg)
{
    struct stream_waits *waits = arg;
    pthread_mutex_lock(&waits->lock);
    for (;;) {
        struct card_word *late = take_late(waits, cairn_client_now_ms());
        if (late == NULL && waits->is_over) break;
        if (late == NULL) {
            sleep_until_late(waits);
            continue;
        }
        pthread_mutex_unlock(&waits->lock);
        cairn_streams_let_go(late);
        pthread_mutex_lock(&waits->lock);
    }
    pthread_mutex_unlock(&waits->lock);
    return NULL;
}

/* Under the lock. The library's threads take no signal of their host's. */
static cairn_status start(struct stream_waits *waits)
{
    sigset_t all, old;
    if (waits->is_running || waits->is_over) return CAIRN_OK;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int error = pthread_create(&waits->thread, NULL, watch, waits);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error != 0)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY,
                                 "no thread to let the stream go in time: %s; use cairn_wait",
                                 strerror(error));
    waits->is_running = true;
    return CAIRN_OK;
}

/* ---- */

/* The operation's from now on; *is_done: it is over, and nobody has to wait. */
static cairn_status give(struct op *op, struct card_word *word, bool *is_done_out)
{
    struct session *s = op->session;
    pthread_mutex_lock(&s->lock);
    pthread_mutex_lock(&s->streams.lock);
    const cairn_status status = start(&s->streams);
    const bool waits = status == CAIRN_OK && !op->done && !s->streams.is_over;
    if (waits) add_word(op, word);
    pthread_mutex_unlock(&s->streams.lock);
    pthread_mutex_unlock(&s->lock);
    if (!waits) cairn_card_word_set(word);
    *is_done_out = !waits;
    return status;
}

/* No stream waits for it; false: it was let go meanwhile. */
static bool take_back(struct op *op, const struct card_word *word)
{
    struct stream_waits *waits = &op->session->streams;
    pthread_mutex_lock(&waits->lock);
    struct card_word **link = &op->words;
    while (*link != NULL && *link != word) link = &(*link)->next;
    const bool found = *link != NULL;
    if (found && op->words == word && word->next == NULL)
        (void)take_words(op);
    else if (found)
        *link = word->next;
    pthread_mutex_unlock(&waits->lock);
    return found;
}

/* The word is watched before the stream waits for it: nothing can come between. */
cairn_status cairn_streams_await(struct op *op, struct card *card, void *stream)
{
    struct card_word *word;
    struct card_wait wait;
    bool is_done = false;
    cairn_status status = cairn_card_word_take(card, &word, &wait);
    if (status == CAIRN_OK) status = give(op, word, &is_done);
    if (status != CAIRN_OK || is_done) return status;
    status = cairn_card_wait(card, stream, &wait);
    if (status != CAIRN_OK && take_back(op, word)) cairn_card_word_set(word);
    return status;
}

struct card_word *cairn_streams_take(struct op *op, bool *is_late_out)
{
    struct stream_waits *waits = &op->session->streams;
    pthread_mutex_lock(&waits->lock);
    struct card_word *words = take_words(op);
    *is_late_out = op->is_late;
    pthread_mutex_unlock(&waits->lock);
    return words;
}

void cairn_streams_let_go(struct card_word *words)
{
    while (words != NULL) {
        struct card_word *next = words->next;
        cairn_card_word_set(words);
        words = next;
    }
}

void cairn_streams_close_at(struct session *s, uint64_t close_ms)
{
    pthread_mutex_lock(&s->streams.lock);
    s->streams.close_ms = close_ms;
    pthread_cond_signal(&s->streams.changed);
    pthread_mutex_unlock(&s->streams.lock);
}

void cairn_streams_end(struct session *s)
{
    pthread_mutex_lock(&s->streams.lock);
    s->streams.is_over = true;
    const bool was_running = s->streams.is_running;
    s->streams.is_running = false;
    pthread_cond_signal(&s->streams.changed);
    pthread_mutex_unlock(&s->streams.lock);
    if (was_running) pthread_join(s->streams.thread, NULL);
}
