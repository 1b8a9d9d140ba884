/* Operations and commands, and streams that wait for operations. */
#include "client/op.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/base.h"
#include "client/device.h"
#include "client/job.h"
#include "client/layouts.h"
#include "client/session.h"
#include "proto/base/machine.h"
#include "proto/base/text.h"

static void session_commands(struct session *s, struct command_queue *commands);

/* ==== waking ==== */

#define WAKE_US 100

static void wake_now(struct session *s)
{
    const uint64_t one = 1;
    pthread_cond_broadcast(&s->changed);
    if (s->wake.tells) {
        const ssize_t written = write(s->event_fd, &one, sizeof one);
        (void)written; // a full counter is already readable
    }
    s->wake.is_due = s->wake.tells = false;
}

/* Records that operations ended; `tells`: the event descriptor signals the end. Under the lock. */
static void wake(struct session *s, bool tells)
{
    const uint64_t now_us = monotonic_us();
    s->wake.tells = s->wake.tells || tells;
    s->wake.is_due = now_us - s->wake.last_us < WAKE_US &&
                     pthread_equal(pthread_self(), s->loop.thread) != 0;
    if (s->wake.is_due) return;
    s->wake.last_us = now_us;
    wake_now(s);
}

void session_wake_due(struct session *s)
{
    HOLD_LOCK(&s->lock);
    if (s->wake.is_due) wake_now(s);
}

/* ==== streams ==== */

/* ---- words: under the lock ---- */

static struct card_word *detach_words(struct op *op)
{
    struct card_word *words = op->words;
    if (words != NULL) LIST_REMOVE(op, next_words);
    op->words = NULL;
    return words;
}

static void add_word(struct op *op, struct card_word *word)
{
    struct stream_waits *waits = &op->session->streams;
    if (op->words == NULL) {
        op->words_until_ms = monotonic_ms() + CAIRN_STREAMS_WAIT_MS;
        LIST_INSERT_HEAD(&waits->ops, op, next_words);
    }
    word->next = op->words;
    op->words = word;
    pthread_cond_signal(&waits->changed);
}

/* Detaches the words of one operation that is late. NULL: no operation is late. */
static struct card_word *detach_late(struct stream_waits *waits, uint64_t now_ms)
{
    const bool all = waits->is_over || (waits->close_ms != 0 && now_ms >= waits->close_ms);
    struct op *op = LIST_FIRST(&waits->ops);
    while (op != NULL && !all && now_ms < op->words_until_ms) op = LIST_NEXT(op, next_words);
    if (op == NULL) return NULL;
    op->is_late = true;
    return detach_words(op);
}

/* Sets the words, so that the streams continue. Not under a lock. */
static void let_go_words(struct card_word *words)
{
    while (words != NULL) {
        struct card_word *next = words->next;
        card_word_set(words);
        words = next;
    }
}

/* ---- the thread ---- */

static void sleep_until_late(struct stream_waits *waits)
{
    uint64_t until_ms = waits->close_ms != 0 ? waits->close_ms : UINT64_MAX;
    const struct op *op;
    LIST_FOREACH (op, &waits->ops, next_words)
        if (op->words_until_ms < until_ms) until_ms = op->words_until_ms;
    if (LIST_EMPTY(&waits->ops)) {
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
        struct card_word *late = detach_late(waits, monotonic_ms());
        if (late == NULL && waits->is_over) break;
        if (late == NULL) {
            sleep_until_late(waits);
            continue;
        }
        pthread_mutex_unlock(&waits->lock);
        let_go_words(late);
        pthread_mutex_lock(&waits->lock);
    }
    pthread_mutex_unlock(&waits->lock);
    return NULL;
}

/* Under the lock. The library's threads receive no signals of the host process. */
static cairn_status start(struct stream_waits *waits)
{
    if (waits->is_running || waits->is_over) return CAIRN_OK;
    const int error = thread_start(&waits->thread, watch, waits);
    if (error != 0)
        return client_fail(CAIRN_ERR_NO_MEMORY,
                           "no thread to let the stream go in time: %s; use cairn_wait",
                           strerror(error));
    waits->is_running = true;
    return CAIRN_OK;
}

/* ---- */

/* Gives the word to the operation; *is_done: the operation is over, so the stream need not wait. */
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
    if (!waits) card_word_set(word);
    *is_done_out = !waits;
    return status;
}

/* Takes the word back, since no stream waits for the word; false: the word was released meanwhile. */
static bool withdraw_word(struct op *op, const struct card_word *word)
{
    struct stream_waits *waits = &op->session->streams;
    HOLD_LOCK(&waits->lock);
    struct card_word **link = &op->words;
    while (*link != NULL && *link != word) link = &(*link)->next;
    const bool found = *link != NULL;
    if (found && op->words == word && word->next == NULL)
        (void)detach_words(op);
    else if (found)
        *link = word->next;
    return found;
}

/* The operation gets the word before the stream waits for it, so that the wait always ends. */
static cairn_status streams_await(struct op *op, struct card *card, void *stream)
{
    struct card_word *word;
    struct card_wait wait;
    bool is_done = false;
    cairn_status status = card_word_acquire(card, &word, &wait);
    if (status == CAIRN_OK) status = give(op, word, &is_done);
    if (status != CAIRN_OK || is_done) return status;
    status = card_stream_await_word(card, stream, &wait);
    if (status != CAIRN_OK && withdraw_word(op, word)) card_word_set(word);
    return status;
}

/* Called when the operation is over, under the session's lock: returns the words that streams wait
 * for. The caller sets these words after unlocking. */
static struct card_word *end_waits(struct op *op, bool *is_late_out)
{
    struct stream_waits *waits = &op->session->streams;
    HOLD_LOCK(&waits->lock);
    struct card_word *words = detach_words(op);
    *is_late_out = op->is_late;
    return words;
}

cairn_status cairn_stream_wait(cairn_op *handle, void *stream)
{
    API_OP(op, handle);
    struct card *card;
    CAIRN_TRY(card_of_thread(op->target.card, &card));
    return streams_await(op, card, stream);
}

/* ==== op ==== */

#define SPARE_MAX 8192 /* some MiB, for a step of many small tensors */

/* Reuses the memory of an op that is over. With thousands of ops per step, malloc would return that
 * memory to the kernel and request it again each time. NULL: out of memory. */
static struct op *reuse_op(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    struct op *op = SLIST_FIRST(&s->spare.ops);
    if (op != NULL) {
        SLIST_REMOVE_HEAD(&s->spare.ops, next_spare);
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
        SLIST_INSERT_HEAD(&s->spare.ops, op, next_spare);
        s->spare.count++;
    }
    pthread_mutex_unlock(&s->lock);
    if (!is_kept) free(op);
}

static void op_unref(void *object)
{
    struct op *op = object;
    const uint32_t left = WITH_LOCK(&op->session->lock, --op->refs);
    if (left > 0) return;
    struct job *job = op->job;
    give_op(op);
    job_unref(job); // this may free the session, too
}

static uint64_t *open_count(struct op *op)
{
    if (op->kind == CAIRN_CHUNK_PUT) return &op->job->puts.open;
    return op->kind == CAIRN_CHUNK_PUSH ? &op->job->filling.pushes_open : NULL;
}

struct op *op_create(struct job *job, uint8_t kind, bool with_handle)
{
    struct op *op = reuse_op(job->session);
    if (op == NULL) return NULL;
    op->session = job->session;
    op->job = job;
    op->kind = kind;
    op->holds = 1; // until the operation is cut completely
    op->refs = with_handle ? 2 : 1;
    if (with_handle) {
        op->handle = handle_open(CAIRN_HANDLE_OP, op, op_unref);
        if (op->handle == NULL) {
            give_op(op);
            return NULL;
        }
    }
    job_ref(job);
    HOLD_LOCK(&job->session->lock);
    if (open_count(op) != NULL) (*open_count(op))++;
    return op;
}

void op_hold(struct op *op)
{
    op->holds++;
}

/* Under the lock, called when a stream was released early: fails the op, because this stream may
 * have read incomplete data, or overwritten data that was still being read. */
static void judge_late(struct op *op)
{
    if (op->status != CAIRN_OK) return;
    op->status = CAIRN_ERR_CANCELED;
    struct sentence why;
    sentence_set(
        &why,
        "a stream that waited for this operation was let go after %d s, or at the session's end, "
        "before the operation was complete: discard what that stream did since",
        CAIRN_STREAMS_WAIT_MS / 1000);
    op->why = strdup(why.text);
}

static void complete(struct op *op)
{
    struct session *s = op->session;
    memory_return(op->session, op->region);
    for (size_t i = 0; i < op->region_count; i++) memory_return(op->session, op->regions[i]);
    free(op->regions);
    op->regions = NULL;
    free(op->owned);
    op->owned = NULL;
    if (op->list != NULL) handle_put(op->list);
    // This call comes before the op's waiters continue, when everything that the op holds is given
    // back and no longer counted.
    if (op->on_done != NULL) op->on_done(op->context, op->status, op_why(op));
    pthread_mutex_lock(&s->lock);
    op->done = true;
    bool is_late;
    struct card_word *words = end_waits(op, &is_late);
    if (is_late) judge_late(op);
    if (open_count(op) != NULL) (*open_count(op))--;
    if (op->kind == CAIRN_CHUNK_PUSH && op->job->filling.pushes_open == 0)
        op->job->measured.times.pushed_us = monotonic_us();
    if (op->kind == CAIRN_CHUNK_PUT && op->status != CAIRN_OK)
        puts_failed(op->job, op->target.tensor, op->plane);
    if (op->kind == CAIRN_CHUNK_PUT && op->status != CAIRN_OK && op->job->puts.status == CAIRN_OK) {
        op->job->puts.status = op->status;
        sentence_set(&op->job->puts.why, "%s", op_why(op));
    }
    const bool is_last = open_count(op) != NULL && *open_count(op) == 0;
    if (op->handle != NULL || op->on_done != NULL || is_last) wake(s, op->on_done == NULL);
    pthread_mutex_unlock(&s->lock);
    let_go_words(words);
    if (words != NULL) session_kick(s); // the loop thread runs the work that was postponed
    op_unref(op);
}

void op_let_go(struct op *op, cairn_status status, const char *why)
{
    if (status != CAIRN_OK && op->status == CAIRN_OK) {
        op->status = status;
        op->why = why != NULL ? strdup(why) : NULL; // if memory is lacking, the status must do
    }
    if (--op->holds == 0) complete(op);
}

/* ---- commands ---- */

void command_free(struct command *command)
{
    card_event_free(command->event);
    served_layout_put(command->served);
    free(command);
}

struct command *op_command(struct job *job, bool (*run)(struct command *))
{
    struct command *command = calloc(1, sizeof *command);
    if (command == NULL) return NULL;
    command->run = run;
    command->job = job;
    job_ref(job);
    return command;
}

cairn_status op_reserve(struct job *job, uint8_t kind, cairn_op **op_out, struct op **out)
{
    *out = op_out != NULL ? op_create(job, kind, true) : NULL; // else nobody waits for the op
    return *out != NULL || op_out == NULL
               ? CAIRN_OK
               : client_fail(CAIRN_ERR_NO_MEMORY, "out of memory, or too many operations are open");
}

cairn_status op_settle(struct op *op, cairn_status status, cairn_op **op_out)
{
    if (op == NULL) return status;
    void *handle = op->handle;
    // the caller never gets the handle
    if (status != CAIRN_OK) (void)handle_close(CAIRN_HANDLE_OP, handle);
    op_let_go(op, CAIRN_OK, NULL); // nothing of the op is in progress
    if (status == CAIRN_OK) *op_out = handle;
    return status;
}

cairn_status op_finished(struct job *job, uint8_t kind, cairn_op **op_out)
{
    struct op *op;
    const cairn_status status = op_reserve(job, kind, op_out, &op);
    return op_settle(op, status, op_out);
}

void op_describe_target(const struct command *pattern, struct target *out)
{
    out->tensor = pattern->tensor;
    out->dtype = pattern->dtype;
    out->ptr = pattern->ptr;
    out->piece = pattern->piece;
    out->card = pattern->card;
    out->box_bytes = 0;
    if (out->piece.tile == CAIRN_TILE_BOX) out->box_bytes = box_encode(&out->piece.box, out->box);
}

static cairn_status lend_target(struct job *job, const struct target *target,
                                const void **region_out)
{
    const size_t bytes = strides_span(&target->piece.strides, box_element_count(&target->piece.box),
                                      dtype_size(target->dtype));
    return memory_lend(job->session, target->ptr, bytes, target->card, region_out);
}

static void describe_op(struct op *op, const struct command *pattern)
{
    op->plane = pattern->plane;
    op->owned = pattern->owned;
    op->on_done = pattern->on_done;
    op->context = pattern->context;
    op->may_be_canceled = op->kind == CAIRN_CHUNK_FETCH;
}

/* Creates a command with its op. The caller must still set the target of the op. */
static cairn_status open_command(struct job *job, uint8_t kind, const struct command *pattern,
                                 bool with_handle, struct command **out)
{
    struct command *command = op_command(job, NULL);
    struct op *op = command != NULL ? op_create(job, kind, with_handle) : NULL;
    if (op == NULL) {
        if (command != NULL) job_unref(job);
        free(command);
        return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory, or too many operations are open");
    }
    describe_op(op, pattern);
    *command = *pattern;
    command->job = job;
    command->op = op;
    *out = command;
    return CAIRN_OK;
}

/* Creates a command with its op, ready to be handed over. */
static cairn_status make(struct job *job, uint8_t kind, const struct command *pattern,
                         bool with_handle, struct command **out)
{
    const void *region;
    struct target target;
    op_describe_target(pattern, &target);
    CAIRN_TRY(lend_target(job, &target, &region));
    cairn_status status = open_command(job, kind, pattern, with_handle, out);
    if (status != CAIRN_OK) {
        memory_return(job->session, region);
        return status;
    }
    struct op *op = (*out)->op;
    op->region = region;
    op->target = target;
    (*out)->target = &op->target;
    return CAIRN_OK;
}

cairn_status op_begin(struct job *job, uint8_t kind, const struct command *pattern,
                      cairn_op **op_out)
{
    struct command *command;
    CAIRN_TRY(make(job, kind, pattern, op_out != NULL, &command));
    void *handle = command->op->handle;
    session_command(job->session, command);
    if (op_out != NULL) *op_out = handle;
    return CAIRN_OK;
}

/* ---- lists ---- */

/* Lends all of the list's memory or, after a failure, none of it. */
static cairn_status lend_targets(struct job *job, const struct op_list *list, const void **regions,
                                 size_t *wrong_out)
{
    cairn_status status = CAIRN_OK;
    size_t count = 0;
    for (; count < list->count && status == CAIRN_OK; count++)
        status = lend_target(job, &list->targets[count], &regions[count]);
    if (status == CAIRN_OK) return CAIRN_OK;
    *wrong_out = --count; // nothing of this target is on loan
    while (count > 0) memory_return(job->session, regions[--count]);
    return status;
}

cairn_status op_begin_list(struct job *job, uint8_t kind, const struct command *pattern,
                           const struct op_list *list, cairn_op **op_out, size_t *wrong_out)
{
    struct command *command;
    *wrong_out = list->count;
    const void **regions = calloc(list->count, sizeof *regions);
    if (regions == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for a list");
    cairn_status status = lend_targets(job, list, regions, wrong_out);
    if (status == CAIRN_OK) {
        status = open_command(job, kind, pattern, op_out != NULL, &command);
        for (size_t i = 0; status != CAIRN_OK && i < list->count; i++)
            memory_return(job->session, regions[i]);
    }
    if (status != CAIRN_OK) {
        free(regions);
        return status;
    }
    struct op *op = command->op;
    op->regions = regions;
    op->region_count = list->count;
    op->list = list->handle;
    handle_hold(list->handle);
    command->target = list->targets;
    command->targets_left = list->count - 1;
    void *handle = op->handle;
    session_command(job->session, command);
    if (op_out != NULL) *op_out = handle;
    return CAIRN_OK;
}

/* ---- several at once ---- */

cairn_status op_chain(struct job *job, uint8_t kind, const struct command *pattern,
                      struct command_chain *chain)
{
    struct command *command;
    CAIRN_TRY(make(job, kind, pattern, false, &command));
    command->op->of = chain->of;
    // The first command uses the hold that `of` was created with, since nothing of `of` is in
    // progress yet.
    if (chain->of != NULL && !TAILQ_EMPTY(&chain->commands)) op_hold(chain->of);
    if (chain->of != NULL) chain->of->may_be_canceled = command->op->may_be_canceled;
    TAILQ_INSERT_TAIL(&chain->commands, command, next);
    return CAIRN_OK;
}

void op_chain_go(struct session *s, struct command_chain *chain)
{
    session_commands(s, &chain->commands);
}

void op_chain_drop(struct command_chain *chain)
{
    const cairn_status why = CAIRN_ERR_CANCELED;
    if (TAILQ_EMPTY(&chain->commands) && chain->of != NULL) op_let_go(chain->of, why, NULL);
    for (struct command *command; (command = TAILQ_FIRST(&chain->commands)) != NULL;) {
        TAILQ_REMOVE(&chain->commands, command, next);
        op_let_go(command->op, why, NULL);
        job_unref(command->job);
        command_free(command);
    }
}

/* ---- handing over ---- */

/* Appends commands, which the loop thread frees. If the session has ended, the commands end at
 * once. */
static void session_commands(struct session *s, struct command_queue *commands)
{
    pthread_mutex_lock(&s->lock);
    if (!s->ended) TAILQ_CONCAT(&s->commands, commands, next);
    pthread_mutex_unlock(&s->lock);
    for (struct command *first; (first = TAILQ_FIRST(commands)) != NULL;) {
        TAILQ_REMOVE(commands, first, next);
        if (first->op != NULL) op_let_go(first->op, CAIRN_ERR_CLOSED, "the session is closed");
        job_unref(first->job);
        command_free(first);
    }
    session_kick(s);
}

void session_command(struct session *s, struct command *command)
{
    struct command_queue one = TAILQ_HEAD_INITIALIZER(one);
    TAILQ_INSERT_TAIL(&one, command, next);
    session_commands(s, &one);
}
