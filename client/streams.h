/* Streams of cards that wait for operations, and the thread that lets them go when they have waited too
 * long: a stream that hangs takes the card with it, and the loop thread may be held up by it as well, in a
 * call of the driver. So that thread asks the driver for nothing, and takes no lock that is held while
 * somebody does. */
#ifndef CAIRN_CLIENT_STREAMS_H
#define CAIRN_CLIENT_STREAMS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/status.h"

struct card;
struct card_word;
struct op;
struct session;

/* A stream waits for an operation for at most so long. */
#define CAIRN_STREAMS_WAIT_MS 60000

struct stream_waits {
    pthread_mutex_t lock; /* behind the session's; guards what follows, and what op.h says */
    pthread_cond_t changed;
    struct op *first;  /* operations that streams wait for */
    uint64_t close_ms; /* the session ends: no stream waits longer; 0: it does not */
    bool is_running, is_over;
    pthread_t thread; /* from the first wait on */
};

void cairn_streams_init(struct session *s);
/* Makes `stream` wait: work that is queued on it from here on runs only after the operation is
 * over. Caller's thread. */
cairn_status cairn_streams_await(struct op *op, struct card *card, void *stream) CAIRN_MUST_CHECK;
/* The operation is over, under the session's lock: the words that streams wait for, to be set without it. */
struct card_word *cairn_streams_take(struct op *op, bool *is_late_out);
void cairn_streams_let_go(struct card_word *words);
/* The session begins to end: from `close_ms` on no stream waits. */
void cairn_streams_close_at(struct session *s, uint64_t close_ms);
/* It has ended. */
void cairn_streams_end(struct session *s);
void cairn_streams_release(struct session *s);

#endif
