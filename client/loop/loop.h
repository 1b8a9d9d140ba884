/* The loop thread of a session. */
#ifndef CAIRN_CLIENT_LOOP_LOOP_H
#define CAIRN_CLIENT_LOOP_LOOP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <uv.h>

#include "proto/base/status.h"

struct session;

struct session_loop {
    pthread_t thread;
    uv_loop_t uv;
    uv_async_t kick;
    uv_prepare_t rest; /* the last one of a turn: prepares run the newest first */
    uv_timer_t tick;
    uv_timer_t soon;     /* looks again while a push waits for its stream */
    uint64_t stop_by_ms; /* set before `stopping`: then the fabric is closed, whoever holds loans */
    atomic_bool stopping;
};

/* Opens the data path and starts the thread. Caller's thread, as the next one. */
cairn_status cairn_loop_start(struct session *s) CAIRN_MUST_CHECK;
/* Ends the thread and waits for its end. Operations under way get a moment to end by themselves. */
void cairn_loop_stop(struct session *s);

/* Loop thread: looks at what waits for streams every millisecond, or not any more. */
void cairn_loop_look_soon(struct session *s, bool looks);

/* turn.c: a turn of the loop thread, whenever it is woken: commands are done, asks are sent, jobs are
 * attached and closed. */
void cairn_turn_run(struct session *s);

#endif
