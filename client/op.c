/* Operations: what put, push and fetch have under way. */
#include <stdlib.h>
#include <unistd.h>

#include "client/handle.h"
#include "client/memory.h"
#include "client/pause.h"
#include "client/session.h"

#define AWAITED_MS 200 /* that the loop thread has to say for whom a call waits */

static void on_handle_free(void *object)
{
    cairn_op_unref(object);
}

static uint64_t *open_count(struct op *op)
{
    if (op->kind == CAIRN_CHUNK_PUT) return &op->job->puts_open;
    return op->kind == CAIRN_CHUNK_PUSH ? &op->job->pushes_open : NULL;
}

struct op *cairn_op_new(struct job *job, uint8_t kind, bool with_handle)
{
    struct op *op = calloc(1, sizeof *op);
    if (op == NULL) return NULL;
    op->session = job->session;
    op->job = job;
    op->kind = kind;
    op->open_parts = 1; // until it is cut whole
    op->refs = with_handle ? 2 : 1;
    if (with_handle) {
        op->handle = cairn_handle_open(CAIRN_HANDLE_OP, op, on_handle_free);
        if (op->handle == NULL) {
            free(op);
            return NULL;
        }
    }
    cairn_job_ref(job);
    pthread_mutex_lock(&job->session->lock);
    if (open_count(op) != NULL) (*open_count(op))++;
    pthread_mutex_unlock(&job->session->lock);
    return op;
}

void cairn_op_unref(struct op *op)
{
    pthread_mutex_lock(&op->session->lock);
    const uint32_t left = --op->refs;
    pthread_mutex_unlock(&op->session->lock);
    if (left > 0) return;
    cairn_job_unref(op->job);
    free(op);
}

void cairn_op_part_begin(struct op *op)
{
    op->open_parts++;
}

static void tell(const struct session *s)
{
    const uint64_t one = 1;
    const ssize_t written = write(s->event_fd, &one, sizeof one);
    (void)written; // a full counter is readable already
}

static void complete(struct op *op)
{
    struct session *s = op->session;
    cairn_memory_return(s, op->lent);
    // Before who waits for the op may go on: what it holds is given back, and not counted, by then.
    if (op->on_done != NULL) op->on_done(op->context, op->status, op->why.text);
    pthread_mutex_lock(&s->lock);
    op->done = true;
    if (open_count(op) != NULL) (*open_count(op))--;
    if (op->kind == CAIRN_CHUNK_PUSH && op->job->pushes_open == 0)
        cairn_step_times_pushed(&op->job->times);
    if (op->kind == CAIRN_CHUNK_PUT && op->status != CAIRN_OK)
        cairn_puts_failed(op->job, op->tensor);
    if (op->kind == CAIRN_CHUNK_PUT && op->status != CAIRN_OK && op->job->puts_status == CAIRN_OK) {
        op->job->puts_status = op->status;
        op->job->puts_why = op->why;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (op->on_done == NULL) tell(s);
    cairn_op_unref(op);
}

void cairn_op_part_end(struct op *op, cairn_status status, const char *why)
{
    if (status != CAIRN_OK && op->status == CAIRN_OK) {
        op->status = status;
        cairn_sentence_set(&op->why, "%s", why != NULL ? why : cairn_status_text((int)status));
    }
    if (--op->open_parts == 0) complete(op);
}

/* The loop thread knows which shards owe something. */
static cairn_status fail_awaited(struct op *op, int timeout_ms)
{
    struct session *s = op->session;
    struct job *job = op->job;
    pthread_mutex_lock(&s->lock);
    job->awaited_asked = true;
    job->awaited_told = false;
    pthread_mutex_unlock(&s->lock);
    cairn_session_kick(s);
    pthread_mutex_lock(&s->lock);
    const uint64_t deadline_ms = cairn_client_now_ms() + AWAITED_MS;
    while (!job->awaited_told && !s->ended && cairn_session_sleep(s, deadline_ms)) {}
    const struct cairn_sentence awaited = job->awaited;
    pthread_mutex_unlock(&s->lock);
    return cairn_client_fail(CAIRN_ERR_TIMEOUT,
                             "after %d ms the operation still waits for %s of job %s", timeout_ms,
                             awaited.text[0] != 0 ? awaited.text : "the shards", job->name);
}

/* Under the lock: a call has waited for it since then. */
static void note_time(struct op *op, uint64_t from_us)
{
    if (op->kind == CAIRN_CHUNK_FETCH)
        cairn_step_times_waited(&op->job->times, CAIRN_TIME_FETCH, from_us);
    else if (op->kind == CAIRN_CHUNK_PUSH)
        cairn_step_times_waited(&op->job->times, CAIRN_TIME_PUSH, from_us);
}

/* A push may wait for the contributions of other workers. Not under the lock. */
static bool waits_on(const struct op *op, struct patience *patience, uint64_t *deadline_ms)
{
    if (op->kind != CAIRN_CHUNK_PUSH || patience->span_ms == 0) return false;
    Cairn__Awaited *awaited = cairn_control_awaited(op->session, op->job, CAIRN_MSG_ROUND_COMMIT);
    const bool waits = cairn_client_waits_on(patience, awaited, deadline_ms);
    cairn_message_free((ProtobufCMessage *)awaited);
    return waits;
}

/* Locked. Until it is done, or there is no time left. */
static void sleep_for(struct op *op, uint64_t deadline_ms)
{
    struct session *s = op->session;
    struct patience patience = cairn_client_patience(op->job, deadline_ms);
    for (bool waits = true; waits && !op->done;) {
        while (!op->done && cairn_session_sleep(s, deadline_ms)) {}
        if (op->done) return;
        pthread_mutex_unlock(&s->lock);
        waits = waits_on(op, &patience, &deadline_ms);
        pthread_mutex_lock(&s->lock);
    }
}

cairn_status cairn_wait(cairn_op *handle, int timeout_ms)
{
    if (timeout_ms < 0)
        return cairn_client_fail(CAIRN_ERR_INVALID, "timeout_ms is %d; give 0 or more", timeout_ms);
    struct op *op = cairn_handle_get(CAIRN_HANDLE_OP, handle);
    if (op == NULL) return cairn_client_fail(CAIRN_ERR_HANDLE, "not an open operation");
    struct session *s = op->session;
    const uint64_t deadline_ms = cairn_client_now_ms() + (uint64_t)timeout_ms;
    cairn_status status = CAIRN_ERR_TIMEOUT;
    pthread_mutex_lock(&s->lock);
    const uint64_t from_us = op->done ? 0 : cairn_step_times_now();
    sleep_for(op, deadline_ms);
    if (from_us != 0) note_time(op, from_us);
    if (op->done) status = op->status;
    struct cairn_sentence why = op->why;
    pthread_mutex_unlock(&s->lock);
    if (status == CAIRN_ERR_TIMEOUT && timeout_ms == 0)
        cairn_client_fail(status,
                          "the operation is not done; give a timeout to hear for whom it waits");
    else if (status == CAIRN_ERR_TIMEOUT)
        (void)fail_awaited(op, timeout_ms);
    else if (status != CAIRN_OK)
        cairn_client_fail(status, "%s", why.text);
    cairn_handle_put(handle);
    if (status != CAIRN_ERR_TIMEOUT) cairn_handle_close(CAIRN_HANDLE_OP, handle);
    return status;
}

cairn_status cairn_stream_wait(cairn_op *handle, void *stream)
{
    (void)stream;
    if (cairn_handle_get(CAIRN_HANDLE_OP, handle) == NULL)
        return cairn_client_fail(CAIRN_ERR_HANDLE, "not an open operation");
    cairn_handle_put(handle);
    return cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                             "this build of the library has no CUDA: no stream can wait for an "
                             "operation; cairn_wait does");
}
