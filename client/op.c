#include "client/op.h"

#include <stdlib.h>
#include <string.h>

#include "client/base/handle.h"
#include "client/device/card.h"
#include "client/job.h"
#include "client/streams.h"

#define SPARE_MAX 8192 /* some MiB: what a step of many small tensors has at a time */

/* The memory of one that is over is used again: of thousands a step malloc would give it to the kernel and
 * take it back each time. NULL: out of memory. */
static struct op *take_op(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    struct op *op = s->spare.first;
    if (op != NULL) {
        s->spare.first = op->next_spare;
        s->spare.count--;
    }
    pthread_mutex_unlock(&s->lock);
    if (op == NULL) return calloc(1, sizeof *op);
    memset(op, 0, sizeof *op);
    return op;
}

static void give_op(struct op *op)
{
    struct session *s = op->session;
    free(op->why);
    pthread_mutex_lock(&s->lock);
    const bool is_kept = s->spare.count < SPARE_MAX;
    if (is_kept) {
        op->next_spare = s->spare.first;
        s->spare.first = op;
        s->spare.count++;
    }
    pthread_mutex_unlock(&s->lock);
    if (!is_kept) free(op);
}

void cairn_ops_release(struct session *s)
{
    while (s->spare.first != NULL) {
        struct op *op = s->spare.first;
        s->spare.first = op->next_spare;
        free(op);
    }
}

static void unref(struct op *op)
{
    pthread_mutex_lock(&op->session->lock);
    const uint32_t left = --op->refs;
    pthread_mutex_unlock(&op->session->lock);
    if (left > 0) return;
    struct job *job = op->job;
    give_op(op);
    cairn_job_unref(job); // with which the session may go
}

static void on_handle_free(void *object)
{
    unref(object);
}

static uint64_t *open_count(struct op *op)
{
    if (op->kind == CAIRN_CHUNK_PUT) return &op->job->puts.open;
    return op->kind == CAIRN_CHUNK_PUSH ? &op->job->filling.pushes_open : NULL;
}

struct op *cairn_op_new(struct job *job, uint8_t kind, bool with_handle)
{
    struct op *op = take_op(job->session);
    if (op == NULL) return NULL;
    op->session = job->session;
    op->job = job;
    op->kind = kind;
    op->holds = 1; // until it is cut whole
    op->refs = with_handle ? 2 : 1;
    if (with_handle) {
        op->handle = cairn_handle_open(CAIRN_HANDLE_OP, op, on_handle_free);
        if (op->handle == NULL) {
            give_op(op);
            return NULL;
        }
    }
    cairn_job_ref(job);
    pthread_mutex_lock(&job->session->lock);
    if (open_count(op) != NULL) (*open_count(op))++;
    pthread_mutex_unlock(&job->session->lock);
    return op;
}

void cairn_op_hold(struct op *op)
{
    op->holds++;
}

const char *cairn_op_why(const struct op *op)
{
    return op->why != NULL ? op->why : cairn_status_text((int)op->status);
}

/* Under the lock: whose stream was let go has read what was not there yet, or written what was still read. */
static void judge_late(struct op *op)
{
    if (op->status != CAIRN_OK) return;
    op->status = CAIRN_ERR_CANCELED;
    struct cairn_sentence why;
    cairn_sentence_set(&why,
                       "a stream that waited for this operation was let go after %d s, or at the "
                       "session's end, before it was complete: what that stream did since is of no "
                       "use",
                       CAIRN_STREAMS_WAIT_MS / 1000);
    op->why = strdup(why.text);
}

static void give_memory_back(struct op *op)
{
    cairn_memory_return(op->session, op->lent);
    for (size_t i = 0; i < op->lent_count; i++) cairn_memory_return(op->session, op->lents[i]);
    free(op->lents);
    op->lents = NULL;
}

static void complete(struct op *op)
{
    struct session *s = op->session;
    give_memory_back(op);
    free(op->owned);
    op->owned = NULL;
    if (op->list != NULL) cairn_handle_put(op->list);
    // Before who waits for the op may go on: what it holds is given back, and not counted, by then.
    if (op->on_done != NULL) op->on_done(op->context, op->status, cairn_op_why(op));
    pthread_mutex_lock(&s->lock);
    op->done = true;
    bool is_late;
    struct card_word *words = cairn_streams_take(op, &is_late);
    if (is_late) judge_late(op);
    if (open_count(op) != NULL) (*open_count(op))--;
    if (op->kind == CAIRN_CHUNK_PUSH && op->job->filling.pushes_open == 0)
        cairn_step_times_pushed(&op->job->times);
    if (op->kind == CAIRN_CHUNK_PUT && op->status != CAIRN_OK)
        cairn_puts_failed(op->job, op->target.tensor, op->plane);
    if (op->kind == CAIRN_CHUNK_PUT && op->status != CAIRN_OK && op->job->puts.status == CAIRN_OK) {
        op->job->puts.status = op->status;
        cairn_sentence_set(&op->job->puts.why, "%s", cairn_op_why(op));
    }
    const bool is_last = open_count(op) != NULL && *open_count(op) == 0;
    if (op->handle != NULL || op->on_done != NULL || is_last)
        cairn_session_wake(s, op->on_done == NULL);
    pthread_mutex_unlock(&s->lock);
    cairn_streams_let_go(words);
    if (words != NULL) cairn_session_kick(s); // what was put off meanwhile
    unref(op);
}

void cairn_op_let_go(struct op *op, cairn_status status, const char *why)
{
    if (status != CAIRN_OK && op->status == CAIRN_OK) {
        op->status = status;
        op->why = why != NULL ? strdup(why) : NULL; // without memory: the status alone
    }
    if (--op->holds == 0) complete(op);
}

/* ---- commands ---- */

void cairn_command_free(struct command *command)
{
    cairn_card_event_free(command->event);
    cairn_body_put(command->body);
    free(command);
}

struct command *cairn_op_command(struct job *job, bool (*run)(struct command *))
{
    struct command *command = calloc(1, sizeof *command);
    if (command == NULL) return NULL;
    command->run = run;
    command->job = job;
    cairn_job_ref(job);
    return command;
}

cairn_status cairn_op_reserve(struct job *job, uint8_t kind, cairn_op **op_out, struct op **out)
{
    *out = op_out != NULL ? cairn_op_new(job, kind, true) : NULL; // nobody would ask
    return *out != NULL || op_out == NULL
               ? CAIRN_OK
               : cairn_client_fail(CAIRN_ERR_NO_MEMORY,
                                   "out of memory, or too many operations are open");
}

cairn_status cairn_op_settle(struct op *op, cairn_status status, cairn_op **op_out)
{
    if (op == NULL) return status;
    void *handle = op->handle;
    if (status != CAIRN_OK) (void)cairn_handle_close(CAIRN_HANDLE_OP, handle); // nobody has it
    cairn_op_let_go(op, CAIRN_OK, NULL); // nothing of it is under way
    if (status == CAIRN_OK) *op_out = handle;
    return status;
}

cairn_status cairn_op_finished(struct job *job, uint8_t kind, cairn_op **op_out)
{
    struct op *op;
    const cairn_status status = cairn_op_reserve(job, kind, op_out, &op);
    return cairn_op_settle(op, status, op_out);
}

void cairn_op_describe_target(const struct command *pattern, struct target *out)
{
    out->tensor = pattern->tensor;
    out->dtype = pattern->dtype;
    out->ptr = pattern->ptr;
    out->piece = pattern->piece;
    out->card = pattern->card;
    out->box_bytes = 0;
    if (out->piece.tile == CAIRN_TILE_BOX)
        out->box_bytes = cairn_box_encode(&out->piece.box, out->box);
}

static cairn_status lend(struct job *job, const struct target *target, const void **lent_out)
{
    const size_t bytes = cairn_strides_span(&target->piece.strides,
                                            cairn_box_elems(&target->piece.box),
                                            cairn_dtype_bytes(target->dtype));
    return cairn_memory_lend(job->session, target->ptr, bytes, target->card, lent_out);
}

static void describe_op(struct op *op, const struct command *pattern)
{
    op->plane = pattern->plane;
    op->owned = pattern->owned;
    op->on_done = pattern->on_done;
    op->context = pattern->context;
    op->may_be_canceled = op->kind == CAIRN_CHUNK_FETCH;
}

/* A command with its op, of which the target is missing. */
static cairn_status open_command(struct job *job, uint8_t kind, bool (*run)(struct command *),
                                 const struct command *pattern, bool with_handle,
                                 struct command **out)
{
    struct command *command = cairn_op_command(job, run);
    struct op *op = command != NULL ? cairn_op_new(job, kind, with_handle) : NULL;
    if (op == NULL) {
        if (command != NULL) cairn_job_unref(job);
        free(command);
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY,
                                 "out of memory, or too many operations are open");
    }
    describe_op(op, pattern);
    *command = *pattern;
    command->run = run;
    command->job = job;
    command->op = op;
    *out = command;
    return CAIRN_OK;
}

/* The command, with its op, ready to be handed over. */
static cairn_status make(struct job *job, uint8_t kind, bool (*run)(struct command *),
                         const struct command *pattern, bool with_handle, struct command **out)
{
    const void *lent;
    struct target target;
    cairn_op_describe_target(pattern, &target);
    cairn_status status = lend(job, &target, &lent);
    if (status != CAIRN_OK) return status;
    status = open_command(job, kind, run, pattern, with_handle, out);
    if (status != CAIRN_OK) {
        cairn_memory_return(job->session, lent);
        return status;
    }
    struct op *op = (*out)->op;
    op->lent = lent;
    op->target = target;
    (*out)->target = &op->target;
    return CAIRN_OK;
}

cairn_status cairn_op_begin(struct job *job, uint8_t kind, bool (*run)(struct command *),
                            const struct command *pattern, cairn_op **op_out)
{
    struct command *command;
    const cairn_status status = make(job, kind, run, pattern, op_out != NULL, &command);
    if (status != CAIRN_OK) return status;
    void *handle = command->op->handle;
    cairn_session_command(job->session, command);
    if (op_out != NULL) *op_out = handle;
    return CAIRN_OK;
}

/* ---- lists ---- */

/* All of the list's memory, or none of it. */
static cairn_status lend_all(struct job *job, const struct op_list *list, const void **lents,
                             size_t *wrong_out)
{
    cairn_status status = CAIRN_OK;
    size_t count = 0;
    for (; count < list->count && status == CAIRN_OK; count++)
        status = lend(job, &list->targets[count], &lents[count]);
    if (status == CAIRN_OK) return CAIRN_OK;
    *wrong_out = --count; // of which nothing is lent
    while (count > 0) cairn_memory_return(job->session, lents[--count]);
    return status;
}

cairn_status cairn_op_begin_list(struct job *job, uint8_t kind, bool (*run)(struct command *),
                                 const struct command *pattern, const struct op_list *list,
                                 cairn_op **op_out, size_t *wrong_out)
{
    struct command *command;
    *wrong_out = list->count;
    const void **lents = calloc(list->count, sizeof *lents);
    if (lents == NULL) return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "no memory for a list");
    cairn_status status = lend_all(job, list, lents, wrong_out);
    if (status == CAIRN_OK) {
        status = open_command(job, kind, run, pattern, op_out != NULL, &command);
        for (size_t i = 0; status != CAIRN_OK && i < list->count; i++)
            cairn_memory_return(job->session, lents[i]);
    }
    if (status != CAIRN_OK) {
        free(lents);
        return status;
    }
    struct op *op = command->op;
    op->lents = lents;
    op->lent_count = list->count;
    op->list = list->handle;
    cairn_handle_hold(list->handle);
    command->target = list->targets;
    command->targets_left = list->count - 1;
    void *handle = op->handle;
    cairn_session_command(job->session, command);
    if (op_out != NULL) *op_out = handle;
    return CAIRN_OK;
}

/* ---- several at once ---- */

cairn_status cairn_op_chain(struct job *job, uint8_t kind, bool (*run)(struct command *),
                            const struct command *pattern, struct command_chain *chain)
{
    struct command *command;
    const cairn_status status = make(job, kind, run, pattern, false, &command);
    if (status != CAIRN_OK) return status;
    command->op->of = chain->of;
    // The first one has the hold with which it was made: nothing of it is under way yet.
    if (chain->of != NULL && chain->first != NULL) cairn_op_hold(chain->of);
    if (chain->of != NULL) chain->of->may_be_canceled = command->op->may_be_canceled;
    if (chain->first == NULL)
        chain->first = command;
    else
        chain->last->next = command;
    chain->last = command;
    return CAIRN_OK;
}

void cairn_op_chain_go(struct session *s, struct command_chain *chain)
{
    cairn_session_commands(s, chain->first, chain->last);
    chain->first = NULL;
}

void cairn_op_chain_drop(struct command_chain *chain)
{
    const cairn_status why = CAIRN_ERR_CANCELED;
    if (chain->first == NULL && chain->of != NULL) cairn_op_let_go(chain->of, why, NULL);
    while (chain->first != NULL) {
        struct command *command = chain->first;
        chain->first = command->next;
        cairn_op_let_go(command->op, why, NULL);
        cairn_job_unref(command->job);
        cairn_command_free(command);
    }
}

bool cairn_op_is_canceled(const struct op *op)
{
    return op->is_canceled || (op->of != NULL && op->of->is_canceled);
}
