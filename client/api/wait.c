/* cairn_wait: how long a caller waits for an operation, and for whom. */
#include "client/api/api.h"
#include "client/ask.h"
#include "client/base/handle.h"
#include "client/device/card.h"
#include "client/op.h"

#include <stdlib.h>

#define AWAITED_MS 200 /* that the loop thread has to say for whom a call waits */

/* Not under the lock: the loop thread knows which shards owe something. */
static struct cairn_sentence awaited_text(struct op *op)
{
    struct session *s = op->session;
    struct job *job = op->job;
    pthread_mutex_lock(&s->lock);
    job->awaited.asked = true;
    job->awaited.told = false;
    pthread_mutex_unlock(&s->lock);
    cairn_session_kick(s);
    pthread_mutex_lock(&s->lock);
    const uint64_t deadline_ms = cairn_client_now_ms() + AWAITED_MS;
    while (!job->awaited.told && !s->ended && cairn_session_sleep(s, deadline_ms)) {}
    const struct cairn_sentence awaited = job->awaited.text;
    pthread_mutex_unlock(&s->lock);
    struct cairn_sentence silence, text;
    cairn_client_silence(job, &silence);
    cairn_sentence_set(&text, "%sthe operation still waits for %s of job %s", silence.text,
                       awaited.text[0] != 0 ? awaited.text : "the shards", job->name);
    return text;
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
    Cairn__Awaited *awaited = cairn_ask_awaited(op->job, CAIRN_MSG_ROUND_COMMIT);
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
        const uint64_t until_ms = cairn_client_says_at(&patience, deadline_ms);
        while (!op->done && cairn_session_sleep(s, until_ms)) {}
        if (op->done) return;
        pthread_mutex_unlock(&s->lock);
        if (cairn_client_now_ms() < deadline_ms)
            cairn_client_say_wait(&patience, awaited_text(op).text);
        else
            waits = waits_on(op, &patience, &deadline_ms);
        pthread_mutex_lock(&s->lock);
    }
}

cairn_status cairn_wait(cairn_op *handle, int timeout_ms)
{
    if (timeout_ms < 0)
        return cairn_client_fail(CAIRN_ERR_INVALID, "timeout_ms is %d; give 0 or more", timeout_ms);
    struct op *op = cairn_handle_get(CAIRN_HANDLE_OP, handle);
    if (op == NULL) return cairn_handle_fail(handle, "operation");
    struct session *s = op->session;
    const uint64_t deadline_ms = cairn_client_now_ms() + (uint64_t)timeout_ms;
    cairn_status status = CAIRN_ERR_TIMEOUT;
    pthread_mutex_lock(&s->lock);
    const uint64_t from_us = op->done ? 0 : cairn_client_now_us();
    sleep_for(op, deadline_ms);
    if (from_us != 0) note_time(op, from_us);
    if (op->done) status = op->status;
    if (op->done && status != CAIRN_OK) cairn_client_fail(status, "%s", cairn_op_why(op));
    pthread_mutex_unlock(&s->lock);
    if (status == CAIRN_ERR_TIMEOUT && timeout_ms == 0)
        cairn_client_fail(status,
                          "the operation is not done; give a timeout to hear for whom it waits");
    else if (status == CAIRN_ERR_TIMEOUT)
        cairn_client_fail(status, "cairn_wait timed out: %s", awaited_text(op).text);
    cairn_handle_put(handle);
    if (status != CAIRN_ERR_TIMEOUT) cairn_handle_close(CAIRN_HANDLE_OP, handle);
    return status;
}

cairn_status cairn_stream_wait(cairn_op *handle, void *stream)
{
    struct op *op = cairn_handle_get(CAIRN_HANDLE_OP, handle);
    if (op == NULL) return cairn_handle_fail(handle, "operation");
    struct card *card;
    cairn_status status = cairn_card_of_thread(op->target.card, &card);
    if (status == CAIRN_OK) status = cairn_streams_await(op, card, stream);
    cairn_handle_put(handle);
    return status;
}

/* ---- one of several ---- */

/* *first_out: NULL: there is none. */
static cairn_status get_all(cairn_op *const *handles, size_t count, struct op **ops,
                            struct op **first_out)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < count && status == CAIRN_OK; i++) {
        if (handles[i] == NULL) continue;
        ops[i] = cairn_handle_get(CAIRN_HANDLE_OP, handles[i]);
        if (ops[i] == NULL)
            status = cairn_handle_fail(handles[i], "operation");
        else if (*first_out != NULL && (*first_out)->session != ops[i]->session)
            status = cairn_client_fail(
                CAIRN_ERR_INVALID, "operation %zu is of another session than those before it", i);
        else if (*first_out == NULL)
            *first_out = ops[i];
    }
    if (status == CAIRN_OK && *first_out == NULL)
        status = cairn_client_fail(CAIRN_ERR_INVALID, "there is no operation to wait for");
    return status;
}

/* Locked: the first that is done, or `count`. */
static size_t find_done(struct op *const *ops, size_t count)
{
    size_t i = 0;
    while (i < count && (ops[i] == NULL || !ops[i]->done)) i++;
    return i;
}

static cairn_status await_any(struct op *const *ops, size_t count, struct op *first,
                              uint64_t deadline_ms, size_t *index_out, void **user_out)
{
    struct session *s = first->session;
    pthread_mutex_lock(&s->lock);
    const uint64_t from_us = cairn_client_now_us();
    size_t i = find_done(ops, count);
    const bool waited = i == count;
    while (i == count && cairn_session_sleep(s, deadline_ms)) i = find_done(ops, count);
    if (waited) note_time(i < count ? ops[i] : first, from_us);
    cairn_status status = CAIRN_ERR_TIMEOUT;
    if (i < count) {
        status = ops[i]->status;
        *index_out = i;
        if (user_out != NULL) *user_out = ops[i]->user;
        if (status != CAIRN_OK) cairn_client_fail(status, "%s", cairn_op_why(ops[i]));
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

cairn_status cairn_wait_any(cairn_op *const *handles, size_t count, int timeout_ms,
                            size_t *index_out, void **user_out)
{
    cairn_status status = cairn_api_judge_call("index_out", index_out, timeout_ms);
    if (index_out != NULL) *index_out = count;
    if (status != CAIRN_OK) return status;
    if (handles == NULL || count == 0)
        return cairn_client_fail(CAIRN_ERR_INVALID, "there is no operation to wait for");
    struct op *first = NULL, **ops = calloc(count, sizeof *ops);
    if (ops == NULL) return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "no memory");
    status = get_all(handles, count, ops, &first);
    if (status == CAIRN_OK) {
        status = await_any(ops, count, first, cairn_api_deadline(timeout_ms), index_out, user_out);
        if (*index_out == count)
            cairn_client_fail(status, "none of the operations is done%s%s",
                              timeout_ms > 0 ? "; cairn_wait_any timed out: " : "",
                              timeout_ms > 0 ? awaited_text(first).text : "");
    }
    for (size_t i = 0; i < count; i++)
        if (ops[i] != NULL) cairn_handle_put(handles[i]);
    if (*index_out < count) cairn_handle_close(CAIRN_HANDLE_OP, handles[*index_out]);
    free(ops);
    return status;
}

cairn_status cairn_op_set_user(cairn_op *handle, void *user)
{
    struct op *op = cairn_handle_get(CAIRN_HANDLE_OP, handle);
    if (op == NULL) return cairn_handle_fail(handle, "operation");
    pthread_mutex_lock(&op->session->lock);
    op->user = user;
    pthread_mutex_unlock(&op->session->lock);
    cairn_handle_put(handle);
    return CAIRN_OK;
}

/* ---- cancel ---- */

static cairn_status cancel(struct op *op)
{
    struct session *s = op->session;
    if (!op->may_be_canceled)
        return cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                                 "only a fetch can be canceled: a gradient is part of its round "
                                 "(cairn_round_abandon), and a unit is given back by cairn_unmap");
    pthread_mutex_lock(&s->lock);
    op->is_canceled = true;
    s->cancels = true;
    pthread_mutex_unlock(&s->lock);
    cairn_session_kick(s);
    return CAIRN_OK;
}

cairn_status cairn_cancel(cairn_op *handle)
{
    struct op *op = cairn_handle_get(CAIRN_HANDLE_OP, handle);
    if (op == NULL) return cairn_handle_fail(handle, "operation");
    const cairn_status status = cancel(op);
    cairn_handle_put(handle);
    return status;
}
