#include "client/op.h"

#include <inttypes.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/base.h"
#include "client/device.h"
#include "client/job.h"
#include "client/session.h"
#include "proto/base/text.h"

#define SPARE_MAX 8192 /* some MiB: what a step of many small tensors has at a time */

/* The memory of one that is over is used again: of thousands a step malloc would give it to the kernel and
 * take it back each time. NULL: out of memory. */
static struct op *reuse_op(struct session *s)
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

void ops_release(struct session *s)
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
    job_unref(job); // with which the session may go
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

struct op *op_create(struct job *job, uint8_t kind, bool with_handle)
{
    struct op *op = reuse_op(job->session);
    if (op == NULL) return NULL;
    op->session = job->session;
    op->job = job;
    op->kind = kind;
    op->holds = 1; // until it is cut whole
    op->refs = with_handle ? 2 : 1;
    if (with_handle) {
        op->handle = handle_open(CAIRN_HANDLE_OP, op, on_handle_free);
        if (op->handle == NULL) {
            give_op(op);
            return NULL;
        }
    }
    job_ref(job);
    pthread_mutex_lock(&job->session->lock);
    if (open_count(op) != NULL) (*open_count(op))++;
    pthread_mutex_unlock(&job->session->lock);
    return op;
}

void op_hold(struct op *op)
{
    op->holds++;
}

/* Why a failed operation failed. */
static const char *op_why(const struct op *op)
{
    return op->why != NULL ? op->why : status_text((int)op->status);
}

/* Under the lock: whose stream was let go has read what was not there yet, or written what was still read. */
static void judge_late(struct op *op)
{
    if (op->status != CAIRN_OK) return;
    op->status = CAIRN_ERR_CANCELED;
    struct sentence why;
    sentence_set(&why,
                 "a stream that waited for this operation was let go after %d s, or at the "
                 "session's end, before it was complete: what that stream did since is of no "
                 "use",
                 CAIRN_STREAMS_WAIT_MS / 1000);
    op->why = strdup(why.text);
}

static void give_memory_back(struct op *op)
{
    memory_return(op->session, op->region);
    for (size_t i = 0; i < op->region_count; i++) memory_return(op->session, op->regions[i]);
    free(op->regions);
    op->regions = NULL;
}

static void complete(struct op *op)
{
    struct session *s = op->session;
    give_memory_back(op);
    free(op->owned);
    op->owned = NULL;
    if (op->list != NULL) handle_put(op->list);
    // Before who waits for the op may go on: what it holds is given back, and not counted, by then.
    if (op->on_done != NULL) op->on_done(op->context, op->status, op_why(op));
    pthread_mutex_lock(&s->lock);
    op->done = true;
    bool is_late;
    struct card_word *words = streams_detach_words(op, &is_late);
    if (is_late) judge_late(op);
    if (open_count(op) != NULL) (*open_count(op))--;
    if (op->kind == CAIRN_CHUNK_PUSH && op->job->filling.pushes_open == 0)
        step_times_pushed(&op->job->times);
    if (op->kind == CAIRN_CHUNK_PUT && op->status != CAIRN_OK)
        puts_failed(op->job, op->target.tensor, op->plane);
    if (op->kind == CAIRN_CHUNK_PUT && op->status != CAIRN_OK && op->job->puts.status == CAIRN_OK) {
        op->job->puts.status = op->status;
        sentence_set(&op->job->puts.why, "%s", op_why(op));
    }
    const bool is_last = open_count(op) != NULL && *open_count(op) == 0;
    if (op->handle != NULL || op->on_done != NULL || is_last) session_wake(s, op->on_done == NULL);
    pthread_mutex_unlock(&s->lock);
    streams_let_go(words);
    if (words != NULL) session_kick(s); // what was put off meanwhile
    unref(op);
}

void op_let_go(struct op *op, cairn_status status, const char *why)
{
    if (status != CAIRN_OK && op->status == CAIRN_OK) {
        op->status = status;
        op->why = why != NULL ? strdup(why) : NULL; // without memory: the status alone
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
    *out = op_out != NULL ? op_create(job, kind, true) : NULL; // nobody would ask
    return *out != NULL || op_out == NULL
               ? CAIRN_OK
               : client_fail(CAIRN_ERR_NO_MEMORY, "out of memory, or too many operations are open");
}

cairn_status op_settle(struct op *op, cairn_status status, cairn_op **op_out)
{
    if (op == NULL) return status;
    void *handle = op->handle;
    if (status != CAIRN_OK) (void)handle_close(CAIRN_HANDLE_OP, handle); // nobody has it
    op_let_go(op, CAIRN_OK, NULL); // nothing of it is under way
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

/* A command with its op, of which the target is missing. */
static cairn_status open_command(struct job *job, uint8_t kind, bool (*run)(struct command *),
                                 const struct command *pattern, bool with_handle,
                                 struct command **out)
{
    struct command *command = op_command(job, run);
    struct op *op = command != NULL ? op_create(job, kind, with_handle) : NULL;
    if (op == NULL) {
        if (command != NULL) job_unref(job);
        free(command);
        return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory, or too many operations are open");
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
    const void *region;
    struct target target;
    op_describe_target(pattern, &target);
    CAIRN_TRY(lend_target(job, &target, &region));
    cairn_status status = open_command(job, kind, run, pattern, with_handle, out);
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

cairn_status op_begin(struct job *job, uint8_t kind, bool (*run)(struct command *),
                      const struct command *pattern, cairn_op **op_out)
{
    struct command *command;
    CAIRN_TRY(make(job, kind, run, pattern, op_out != NULL, &command));
    void *handle = command->op->handle;
    session_command(job->session, command);
    if (op_out != NULL) *op_out = handle;
    return CAIRN_OK;
}

/* ---- lists ---- */

/* All of the list's memory, or none of it. */
static cairn_status lend_targets(struct job *job, const struct op_list *list, const void **regions,
                                 size_t *wrong_out)
{
    cairn_status status = CAIRN_OK;
    size_t count = 0;
    for (; count < list->count && status == CAIRN_OK; count++)
        status = lend_target(job, &list->targets[count], &regions[count]);
    if (status == CAIRN_OK) return CAIRN_OK;
    *wrong_out = --count; // of which nothing is on loan
    while (count > 0) memory_return(job->session, regions[--count]);
    return status;
}

cairn_status op_begin_list(struct job *job, uint8_t kind, bool (*run)(struct command *),
                           const struct command *pattern, const struct op_list *list,
                           cairn_op **op_out, size_t *wrong_out)
{
    struct command *command;
    *wrong_out = list->count;
    const void **regions = calloc(list->count, sizeof *regions);
    if (regions == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for a list");
    cairn_status status = lend_targets(job, list, regions, wrong_out);
    if (status == CAIRN_OK) {
        status = open_command(job, kind, run, pattern, op_out != NULL, &command);
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

cairn_status op_chain(struct job *job, uint8_t kind, bool (*run)(struct command *),
                      const struct command *pattern, struct command_chain *chain)
{
    struct command *command;
    CAIRN_TRY(make(job, kind, run, pattern, false, &command));
    command->op->of = chain->of;
    // The first one has the hold with which it was made: nothing of it is under way yet.
    if (chain->of != NULL && chain->first != NULL) op_hold(chain->of);
    if (chain->of != NULL) chain->of->may_be_canceled = command->op->may_be_canceled;
    if (chain->first == NULL)
        chain->first = command;
    else
        chain->last->next = command;
    chain->last = command;
    return CAIRN_OK;
}

void op_chain_go(struct session *s, struct command_chain *chain)
{
    session_commands(s, chain->first, chain->last);
    chain->first = NULL;
}

void op_chain_drop(struct command_chain *chain)
{
    const cairn_status why = CAIRN_ERR_CANCELED;
    if (chain->first == NULL && chain->of != NULL) op_let_go(chain->of, why, NULL);
    while (chain->first != NULL) {
        struct command *command = chain->first;
        chain->first = command->next;
        op_let_go(command->op, why, NULL);
        job_unref(command->job);
        command_free(command);
    }
}

bool op_is_canceled(const struct op *op)
{
    return op->is_canceled || (op->of != NULL && op->of->is_canceled);
}

/* ==== calls that wait ==== */

/* How long a call waits for a worker that is at work on something else; and that a call which waits says for
 * whom. */

#define QUIET_MS 5000 /* that a call may wait and say nothing */
#define SAY_MS   60000

struct patience client_patience(struct job *job, uint64_t deadline_ms)
{
    const uint64_t now_ms = client_now_ms();
    return (struct patience) { .job = job,
                               .span_ms = deadline_ms > now_ms ? deadline_ms - now_ms : 0,
                               .say_ms = now_ms + QUIET_MS };
}

/* False: the caller waits no longer. */
static bool say(struct patience *p, const char *text, uint32_t paused_ms)
{
    const struct session *s = p->job->session;
    const uint64_t now_ms = client_now_ms();
    const bool is_due = now_ms >= p->say_ms || !p->said;
    if (is_due) p->say_ms = now_ms + SAY_MS;
    p->said = true;
    if (s->on_wait != NULL)
        return s->on_wait(s->on_wait_context, p->job->name, text, (int)paused_ms);
    if (is_due)
        fprintf(stderr, "cairn: job %s%s %s\n", p->job->name, paused_ms > 0 ? " waits for" : ":",
                text);
    return true;
}

uint64_t client_says_at(const struct patience *p, uint64_t deadline_ms)
{
    return !p->paused && p->say_ms < deadline_ms ? p->say_ms
                                                 : deadline_ms; // of a pause it says then
}

void client_say_wait(struct patience *p, const char *text)
{
    (void)say(p, text, 0); // the call has its own time
}

/* The call's time is over, and that is for whom it waits (NULL: nobody says). True: it waits on, until
 * *deadline_ms, and asks again then. */
static bool client_waits_on(struct patience *p, const Cairn__Awaited *awaited,
                            uint64_t *deadline_ms)
{
    const uint32_t paused_ms = awaited != NULL ? awaited->paused_ms : 0;
    const bool was_paused = p->paused;
    if (p->span_ms == 0) return false; // it was to be looked at only
    p->paused = paused_ms > 0;
    if (!p->paused && !was_paused) return false;
    if (p->paused && !say(p, awaited->text, paused_ms)) return false;
    // Behind a pause the caller's own time begins again: nobody knows how long it is over.
    *deadline_ms = client_now_ms() + (p->span_ms < SAY_MS || !p->paused ? p->span_ms : SAY_MS);
    return true;
}

/* Without one no shard is reached, and that is not the shard's fault. */
static bool has_descriptor(const struct session *s)
{
    const int fd = fcntl(s->event_fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return errno != EMFILE && errno != ENFILE;
    close(fd);
    return true;
}

void client_silence(struct job *job, struct sentence *out)
{
    if (!has_descriptor(job->session)) {
        sentence_set(out, "this process may open no descriptor more, and without one it "
                          "reaches no shard: close some, or raise the limit (ulimit -n); ");
        return;
    }
    pthread_mutex_lock(&job->session->lock);
    *out = job->shards.silence;
    pthread_mutex_unlock(&job->session->lock);
    if (out->text[0] != '\0') sentence_add(out, "; ");
}

/* ==== ask ==== */

/* Asks wait in the session to be sent, their threads for the answer, and what fails has a sentence that names
 * who is awaited. */

#define AWAITED_TIMEOUT_MS 500
#define AWAITED_LATE_MS \
    100 /* that a call may take longer than its time, to say for whom it waited */
#define PAUSES                                                                                  \
    "; a worker that is at work on something else says so, and is waited for (cairn_pause; in " \
    "Python: with m.pause(\"evaluating\", at_most=600))"

static void enlist(struct ask *ask)
{
    struct session *s = ask->job->session;
    pthread_mutex_lock(&s->lock);
    ask->next = s->asks;
    s->asks = ask;
    pthread_mutex_unlock(&s->lock);
    session_kick(s);
}

/* Sleeps until the ask is answered; false: at the deadline it is not. */
static bool sleep_for_ask(struct ask *ask, uint64_t deadline_ms)
{
    struct session *s = ask->job->session;
    pthread_mutex_lock(&s->lock);
    while (!ask->done && !s->ended && session_sleep(s, deadline_ms)) {}
    if (!ask->done && s->ended) {
        ask->done = true;
        ask->status = CAIRN_ERR_CLOSED;
        sentence_set(&ask->why, "the session was closed");
    }
    const bool is_answered = ask->done;
    pthread_mutex_unlock(&s->lock);
    return is_answered;
}

/* The ask is the caller's again, whatever happened. */
static void delist(struct ask *ask)
{
    struct session *s = ask->job->session;
    pthread_mutex_lock(&s->lock);
    struct ask **link = &s->asks;
    while (*link != ask) link = &(*link)->next;
    *link = ask->next;
    pthread_mutex_unlock(&s->lock);
}

/* Not after until_ms: NULL then. */
static Cairn__Awaited *ask_until(struct job *job, uint16_t type, uint64_t until_ms)
{
    Cairn__WhoIsAwaited message = CAIRN__WHO_IS_AWAITED__INIT;
    message.cut = type == CAIRN_MSG_SNAPSHOT_CREATE;
    message.lease = type == CAIRN_MSG_LEASE_TAKE;
    struct ask ask = { .job = job, .type = CAIRN_MSG_WHO_IS_AWAITED, .message = &message.base };
    enlist(&ask);
    (void)sleep_for_ask(&ask, until_ms);
    delist(&ask);
    if (ask.reply != NULL && ask.reply_type == CAIRN_MSG_AWAITED)
        return (Cairn__Awaited *)ask.reply;
    message_free(ask.reply);
    return NULL;
}

/* For whom a request of `type` waits; NULL: the coordinator does not say. Freed by the caller. */
static Cairn__Awaited *ask_who_is_awaited(struct job *job, uint16_t type)
{
    return ask_until(job, type, client_now_ms() + AWAITED_TIMEOUT_MS);
}

/* How long the coordinator has been away, 0 if it is connected. While it is away nobody can say for
 * whom it waits. */
static uint64_t away_for_ms(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    const uint64_t away_ms = s->reach.welcome ? 0 : client_now_ms() - s->reach.away_since_ms;
    pthread_mutex_unlock(&s->lock);
    return away_ms;
}

/* Where no member and no shard is awaited: what else is. */
static void say_rest(struct job *job, uint16_t type, struct sentence *out)
{
    pthread_mutex_lock(&job->session->lock);
    const struct cairn_version newest = job->known.newest;
    pthread_mutex_unlock(&job->session->lock);
    switch (type) {
    case CAIRN_MSG_VERSION_WAIT:
        sentence_set(out,
                     "waits for a step that nobody has begun: the newest version that was "
                     "heard of is %" PRIu64 ".%" PRIu64,
                     newest.generation, newest.step);
        return;
    case CAIRN_MSG_SNAPSHOT_CREATE:
        sentence_set(out, "waits for the storage of the snapshots, where it is written");
        return;
    case CAIRN_MSG_ROUND_COMMIT:
        sentence_set(out, "waits for the shards to tell how the round ended");
        return;
    case CAIRN_MSG_LEASE_TAKE:
    case CAIRN_MSG_LEASE_DROP:
        sentence_set(out, "waits for the shards to take note of the lease");
        return;
    default:
        sentence_set(out, "waits for the coordinator, which waits for nobody: it is at work "
                          "on this, or on its store");
    }
}

/* cairn_detach_memory was called, and cairn_attach_memory not since. */
static bool is_detached(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    const bool is_off = s->detachment.wants_off;
    pthread_mutex_unlock(&s->lock);
    return is_off;
}

static struct sentence awaited_text_ask(struct job *job, uint16_t type,
                                        const Cairn__Awaited *awaited)
{
    struct session *s = job->session;
    struct sentence silence, text;
    const uint64_t away_ms = away_for_ms(s);
    client_silence(job, &silence);
    if (is_detached(s))
        sentence_add(&silence, "this session let go of the shards' memory "
                               "(cairn_detach_memory), and what needs them waits for its "
                               "cairn_attach_memory; ");
    if (away_ms > 0)
        sentence_set(&text, "the coordinator at %s has been away for %" PRIu64 " ms",
                     s->endpoint_text, away_ms);
    else if (awaited == NULL)
        sentence_set(&text, "%sthe coordinator at %s does not answer", silence.text,
                     s->endpoint_text);
    else if (awaited->text[0] != 0)
        sentence_set(&text, "%swaits for %s%s", silence.text, awaited->text,
                     awaited->silent ? PAUSES : "");
    else
        say_rest(job, type, &text);
    return text;
}

/* NULL: nobody knows. */
static Cairn__Awaited *ask_awaited(struct job *job, uint16_t type, uint64_t until_ms)
{
    return away_for_ms(job->session) > 0 ? NULL : ask_until(job, type, until_ms);
}

struct sentence ask_opening_awaits(struct job *job)
{
    Cairn__Awaited *awaited = ask_awaited(job, CAIRN_MSG_JOB_OPEN,
                                          client_now_ms() + AWAITED_LATE_MS);
    const struct sentence text = awaited_text_ask(job, CAIRN_MSG_JOB_OPEN, awaited);
    message_free((ProtobufCMessage *)awaited);
    return text;
}

static bool is_of_write(const struct ask *ask)
{
    pthread_mutex_lock(&ask->job->session->lock);
    const uint64_t round = ask->job->writing.round.round;
    pthread_mutex_unlock(&ask->job->session->lock);
    return round != 0 && round == ((const Cairn__RoundCommit *)ask->message)->round;
}

/* The call of cairn.h that asks it. */
static const char *call_of(const struct ask *ask)
{
    switch (ask->type) {
    case CAIRN_MSG_ROUND_BEGIN: return "cairn_round_begin";
    case CAIRN_MSG_ROUND_COMMIT:
        if (((const Cairn__RoundCommit *)ask->message)->abandon) return "cairn_round_abandon";
        return is_of_write(ask) ? "cairn_write_end" : "cairn_commit";
    case CAIRN_MSG_VERSION_WAIT:
        return ((const Cairn__VersionWait *)ask->message)->client_state ? "cairn_client_state"
                                                                        : "cairn_version_wait";
    case CAIRN_MSG_WRITE_BEGIN: return "cairn_write_begin";
    case CAIRN_MSG_INIT_DONE: return "cairn_init_done";
    case CAIRN_MSG_TILES_DECLARE: return "cairn_tiles";
    case CAIRN_MSG_JOB_AMEND: return "cairn_job_amend";
    case CAIRN_MSG_SNAPSHOT_CREATE: return "cairn_snapshot";
    case CAIRN_MSG_LEASE_TAKE: return "cairn_lease";
    case CAIRN_MSG_LEASE_DROP: return "cairn_lease_end";
    case CAIRN_MSG_PAUSE:
        return ((const Cairn__Pause *)ask->message)->at_most_ms > 0 ? "cairn_pause"
                                                                    : "cairn_pause_end";
    default: return message_name(ask->type);
    }
}

static cairn_status fail_late(const struct ask *ask, const Cairn__Awaited *awaited)
{
    const Cairn__VersionWait *wait = (const Cairn__VersionWait *)ask->message;
    struct sentence call;
    sentence_set(&call, "%s", call_of(ask));
    if (ask->type == CAIRN_MSG_VERSION_WAIT && !wait->client_state)
        sentence_add(&call, " for version %" PRIu64 ".%" PRIu64, wait->generation, wait->step);
    const struct sentence text = awaited_text_ask(ask->job, ask->type, awaited);
    return client_fail(CAIRN_ERR_TIMEOUT, "%s timed out: %s", call.text, text.text);
}

/* True for requests that are answered only once all workers have come to the same point. */
static bool is_of_round(uint16_t type)
{
    return type == CAIRN_MSG_ROUND_BEGIN || type == CAIRN_MSG_ROUND_COMMIT ||
           type == CAIRN_MSG_WRITE_BEGIN || type == CAIRN_MSG_INIT_DONE ||
           type == CAIRN_MSG_TILES_DECLARE;
}

/* CAIRN_OK: it is answered. Who is awaited is asked a little before the time is over, so that a coordinator
 * which does not answer costs no time beyond. */
static cairn_status await_answer(struct ask *ask, uint64_t deadline_ms)
{
    struct patience patience = client_patience(ask->job, deadline_ms);
    cairn_status status = CAIRN_OK;
    while (status == CAIRN_OK) {
        const uint64_t lead_ms = patience.span_ms / 4 < AWAITED_TIMEOUT_MS ? patience.span_ms / 4
                                                                           : AWAITED_TIMEOUT_MS;
        const uint64_t ask_ms = deadline_ms - lead_ms;
        if (sleep_for_ask(ask, client_says_at(&patience, ask_ms))) break;
        const bool is_late = client_now_ms() >= ask_ms;
        Cairn__Awaited *awaited = ask_awaited(ask->job, ask->type,
                                              is_late ? deadline_ms + AWAITED_LATE_MS
                                                      : client_now_ms() + AWAITED_TIMEOUT_MS);
        if (!is_late)
            client_say_wait(&patience, awaited_text_ask(ask->job, ask->type, awaited).text);
        else if (!sleep_for_ask(ask, deadline_ms) &&
                 (!is_of_round(ask->type) || !client_waits_on(&patience, awaited, &deadline_ms)))
            status = fail_late(ask, awaited);
        message_free((ProtobufCMessage *)awaited);
    }
    return status;
}

cairn_status ask_coordinator(struct job *job, uint16_t type, ProtobufCMessage *message,
                             uint16_t reply_type, uint64_t deadline_ms,
                             ProtobufCMessage **reply_out)
{
    struct ask ask = { .job = job, .type = type, .message = message };
    enlist(&ask);
    const cairn_status waited = await_answer(&ask, deadline_ms);
    delist(&ask);
    if (!ask.done) return waited; // it may have come at the last moment
    if (ask.status != CAIRN_OK) return client_fail(ask.status, "%s", ask.why.text);
    if (ask.reply_type != reply_type) {
        message_free(ask.reply);
        return client_fail(CAIRN_ERR_PROTOCOL, "%s: the coordinator answered %s with %s",
                           call_of(&ask), message_name(type), message_name(ask.reply_type));
    }
    if (reply_out != NULL)
        *reply_out = ask.reply;
    else
        message_free(ask.reply);
    return CAIRN_OK;
}

/* ==== wait ==== */

/* cairn_wait: how long a caller waits for an operation, and for whom. */

#define AWAITED_MS 200 /* that the loop thread has to say for whom a call waits */

/* Not under the lock: the loop thread knows which shards owe something. */
static struct sentence awaited_text_wait(struct op *op)
{
    struct session *s = op->session;
    struct job *job = op->job;
    pthread_mutex_lock(&s->lock);
    job->awaited.asked = true;
    job->awaited.answered = false;
    pthread_mutex_unlock(&s->lock);
    session_kick(s);
    pthread_mutex_lock(&s->lock);
    const uint64_t deadline_ms = client_now_ms() + AWAITED_MS;
    while (!job->awaited.answered && !s->ended && session_sleep(s, deadline_ms)) {}
    const struct sentence awaited = job->awaited.text;
    pthread_mutex_unlock(&s->lock);
    struct sentence silence, text;
    client_silence(job, &silence);
    sentence_set(&text, "%sthe operation still waits for %s of job %s", silence.text,
                 awaited.text[0] != 0 ? awaited.text : "the shards", job->name);
    return text;
}

/* Under the lock: a call has waited for it since then. */
static void note_time(struct op *op, uint64_t from_us)
{
    if (op->kind == CAIRN_CHUNK_FETCH)
        step_times_waited(&op->job->times, CAIRN_TIME_FETCH, from_us);
    else if (op->kind == CAIRN_CHUNK_PUSH)
        step_times_waited(&op->job->times, CAIRN_TIME_PUSH, from_us);
}

/* A push may wait for the contributions of other workers. Not under the lock. */
static bool waits_on(const struct op *op, struct patience *patience, uint64_t *deadline_ms)
{
    if (op->kind != CAIRN_CHUNK_PUSH || patience->span_ms == 0) return false;
    Cairn__Awaited *awaited = ask_who_is_awaited(op->job, CAIRN_MSG_ROUND_COMMIT);
    const bool waits = client_waits_on(patience, awaited, deadline_ms);
    message_free((ProtobufCMessage *)awaited);
    return waits;
}

/* Locked. Until it is done, or there is no time left. */
static void sleep_for_wait(struct op *op, uint64_t deadline_ms)
{
    struct session *s = op->session;
    struct patience patience = client_patience(op->job, deadline_ms);
    for (bool waits = true; waits && !op->done;) {
        const uint64_t until_ms = client_says_at(&patience, deadline_ms);
        while (!op->done && session_sleep(s, until_ms)) {}
        if (op->done) return;
        pthread_mutex_unlock(&s->lock);
        if (client_now_ms() < deadline_ms)
            client_say_wait(&patience, awaited_text_wait(op).text);
        else
            waits = waits_on(op, &patience, &deadline_ms);
        pthread_mutex_lock(&s->lock);
    }
}

cairn_status cairn_wait(cairn_op *handle, int timeout_ms)
{
    if (timeout_ms < 0)
        return client_fail(CAIRN_ERR_INVALID, "timeout_ms is %d; give 0 or more", timeout_ms);
    struct op *op = handle_get(CAIRN_HANDLE_OP, handle);
    if (op == NULL) return handle_fail(handle, "operation");
    struct session *s = op->session;
    const uint64_t deadline_ms = client_now_ms() + (uint64_t)timeout_ms;
    cairn_status status = CAIRN_ERR_TIMEOUT;
    pthread_mutex_lock(&s->lock);
    const uint64_t from_us = op->done ? 0 : client_now_us();
    sleep_for_wait(op, deadline_ms);
    if (from_us != 0) note_time(op, from_us);
    if (op->done) status = op->status;
    if (op->done && status != CAIRN_OK) client_fail(status, "%s", op_why(op));
    pthread_mutex_unlock(&s->lock);
    if (status == CAIRN_ERR_TIMEOUT && timeout_ms == 0)
        client_fail(status, "the operation is not done; give a timeout to hear for whom it waits");
    else if (status == CAIRN_ERR_TIMEOUT)
        client_fail(status, "cairn_wait timed out: %s", awaited_text_wait(op).text);
    handle_put(handle);
    if (status != CAIRN_ERR_TIMEOUT) handle_close(CAIRN_HANDLE_OP, handle);
    return status;
}

cairn_status cairn_stream_wait(cairn_op *handle, void *stream)
{
    struct op *op = handle_get(CAIRN_HANDLE_OP, handle);
    if (op == NULL) return handle_fail(handle, "operation");
    struct card *card;
    cairn_status status = card_of_thread(op->target.card, &card);
    if (status == CAIRN_OK) status = streams_await(op, card, stream);
    handle_put(handle);
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
        ops[i] = handle_get(CAIRN_HANDLE_OP, handles[i]);
        if (ops[i] == NULL)
            status = handle_fail(handles[i], "operation");
        else if (*first_out != NULL && (*first_out)->session != ops[i]->session)
            status = client_fail(CAIRN_ERR_INVALID,
                                 "operation %zu is of another session than those before it", i);
        else if (*first_out == NULL)
            *first_out = ops[i];
    }
    if (status == CAIRN_OK && *first_out == NULL)
        status = client_fail(CAIRN_ERR_INVALID, "there is no operation to wait for");
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
    const uint64_t from_us = client_now_us();
    size_t i = find_done(ops, count);
    const bool waited = i == count;
    while (i == count && session_sleep(s, deadline_ms)) i = find_done(ops, count);
    if (waited) note_time(i < count ? ops[i] : first, from_us);
    cairn_status status = CAIRN_ERR_TIMEOUT;
    if (i < count) {
        status = ops[i]->status;
        *index_out = i;
        if (user_out != NULL) *user_out = ops[i]->user;
        if (status != CAIRN_OK) client_fail(status, "%s", op_why(ops[i]));
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

cairn_status cairn_wait_any(cairn_op *const *handles, size_t count, int timeout_ms,
                            size_t *index_out, void **user_out)
{
    cairn_status status = api_judge_call("index_out", index_out, timeout_ms);
    if (index_out != NULL) *index_out = count;
    if (status != CAIRN_OK) return status;
    if (handles == NULL || count == 0)
        return client_fail(CAIRN_ERR_INVALID, "there is no operation to wait for");
    struct op *first = NULL, **ops = calloc(count, sizeof *ops);
    if (ops == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    status = get_all(handles, count, ops, &first);
    if (status == CAIRN_OK) {
        status = await_any(ops, count, first, api_deadline(timeout_ms), index_out, user_out);
        if (*index_out == count)
            client_fail(status, "none of the operations is done%s%s",
                        timeout_ms > 0 ? "; cairn_wait_any timed out: " : "",
                        timeout_ms > 0 ? awaited_text_wait(first).text : "");
    }
    for (size_t i = 0; i < count; i++)
        if (ops[i] != NULL) handle_put(handles[i]);
    if (*index_out < count) handle_close(CAIRN_HANDLE_OP, handles[*index_out]);
    free(ops);
    return status;
}

cairn_status cairn_op_set_user(cairn_op *handle, void *user)
{
    struct op *op = handle_get(CAIRN_HANDLE_OP, handle);
    if (op == NULL) return handle_fail(handle, "operation");
    pthread_mutex_lock(&op->session->lock);
    op->user = user;
    pthread_mutex_unlock(&op->session->lock);
    handle_put(handle);
    return CAIRN_OK;
}

/* ---- cancel ---- */

static cairn_status cancel_op(struct op *op)
{
    struct session *s = op->session;
    if (!op->may_be_canceled)
        return client_fail(CAIRN_ERR_UNSUPPORTED,
                           "only a fetch can be canceled: a gradient is part of its round "
                           "(cairn_round_abandon), and a unit is given back by cairn_unmap");
    pthread_mutex_lock(&s->lock);
    op->is_canceled = true;
    s->cancels = true;
    pthread_mutex_unlock(&s->lock);
    session_kick(s);
    return CAIRN_OK;
}

cairn_status cairn_cancel(cairn_op *handle)
{
    struct op *op = handle_get(CAIRN_HANDLE_OP, handle);
    if (op == NULL) return handle_fail(handle, "operation");
    const cairn_status status = cancel_op(op);
    handle_put(handle);
    return status;
}

/* ==== driven ==== */

/* Driven groups: their learning rates are the trainer's, and go with each commit. */

#define RATE_MAX 1e18 // as every hyper-parameter

static bool is_driven(const struct job *job, size_t group)
{
    return job->spec.groups[group].schedule.kind == CAIRN_SCHEDULE_DRIVEN;
}

static cairn_status set_rate(struct job *job, const char *name, double lr)
{
    if (name == NULL) name = "default";
    if (job->member.role != CAIRN_WORKER)
        return client_fail(CAIRN_ERR_REFUSED, "a reader gives no learning rate");
    if (!(lr >= 0 && lr <= RATE_MAX))
        return client_fail(CAIRN_ERR_INVALID, "group %.64s: lr is %g; allowed: 0 to %g", name, lr,
                           RATE_MAX);
    const size_t group = spec_find_group(&job->spec, name);
    if (group == SIZE_MAX)
        return client_fail(CAIRN_ERR_NOT_FOUND, "job %s has no group \"%.64s\"", job->name, name);
    if (!is_driven(job, group))
        return client_fail(CAIRN_ERR_REFUSED,
                           "group %s is not driven: the servers have its schedule, %s; "
                           "change it by cairn_job_amend, or declare CAIRN_SCHEDULE_DRIVEN",
                           name, schedule_name((int)job->spec.groups[group].schedule.kind));
    pthread_mutex_lock(&job->session->lock);
    job->filling.rates[group] = lr;
    pthread_mutex_unlock(&job->session->lock);
    return CAIRN_OK;
}

cairn_status cairn_group_lr(cairn_job *handle, const char *group, double lr)
{
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(job);
    if (status == CAIRN_OK) status = set_rate(job, group, lr);
    return api_leave(handle, status);
}

cairn_status driven_rates(struct job *job, double *room, double **driven_out)
{
    size_t missing = SIZE_MAX;
    *driven_out = NULL;
    pthread_mutex_lock(&job->session->lock);
    for (size_t g = 0; g < job->spec.group_count; g++) {
        room[g] = is_driven(job, g) ? job->filling.rates[g] : 0;
        if (is_driven(job, g)) *driven_out = room;
        if (isnan(room[g]) && missing == SIZE_MAX) missing = g;
    }
    pthread_mutex_unlock(&job->session->lock);
    if (missing == SIZE_MAX) return CAIRN_OK;
    return client_fail(CAIRN_ERR_INVALID,
                       "group %s is driven, and has no learning rate yet: every worker calls "
                       "cairn_group_lr before its first commit",
                       job->spec.groups[missing].name);
}

/* ==== pause ==== */

/* Pauses: this worker is at work on something else, and the others wait. */

#define AT_MOST_MS 86400000

/* Told again after an attach: a new coordinator knows of none. */
static void note_pause(struct job *job, const char *what, uint64_t ends_ms)
{
    pthread_mutex_lock(&job->session->lock);
    snprintf(job->pause.what, sizeof job->pause.what, "%s", what);
    job->pause.ends_ms = ends_ms;
    pthread_mutex_unlock(&job->session->lock);
}

static cairn_status tell_pause(struct job *job, const char *what, int at_most_ms,
                               uint64_t deadline_ms)
{
    Cairn__Pause message = CAIRN__PAUSE__INIT;
    message.at_most_ms = (uint32_t)at_most_ms;
    message.what = wire_text(what);
    note_pause(job, what, at_most_ms > 0 ? client_now_ms() + (uint64_t)at_most_ms : 0);
    const cairn_status status = ask_coordinator(job, CAIRN_MSG_PAUSE, &message.base, CAIRN_MSG_DONE,
                                                deadline_ms, NULL);
    if (status != CAIRN_OK) note_pause(job, "", 0); // who was told that it failed will not end it
    return status;
}

static cairn_status judge_pause(const struct job *job, const char *what, int at_most_ms,
                                int timeout_ms)
{
    if (job->member.role != CAIRN_WORKER)
        return client_fail(CAIRN_ERR_REFUSED, "a reader takes no part in rounds");
    struct sentence why = { "" };
    if (text_check("what", what, sizeof job->pause.what - 1, &why) != CAIRN_OK)
        return client_fail(CAIRN_ERR_INVALID, "%s", why.text);
    if (at_most_ms >= 1 && at_most_ms <= AT_MOST_MS && timeout_ms >= 0) return CAIRN_OK;
    return client_fail(CAIRN_ERR_INVALID,
                       "at_most_ms is %d, timeout_ms %d; allowed: 1 to %d, and 0 or more",
                       at_most_ms, timeout_ms, AT_MOST_MS);
}

cairn_status cairn_pause(cairn_job *handle, const char *what, int at_most_ms, int timeout_ms)
{
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(job);
    if (status == CAIRN_OK) status = judge_pause(job, what, at_most_ms, timeout_ms);
    if (status == CAIRN_OK) status = tell_pause(job, what, at_most_ms, api_deadline(timeout_ms));
    return api_leave(handle, status);
}

cairn_status cairn_pause_end(cairn_job *handle, int timeout_ms)
{
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(job);
    if (status == CAIRN_OK) status = judge_pause(job, "-", 1, timeout_ms);
    if (status == CAIRN_OK) status = tell_pause(job, "", 0, api_deadline(timeout_ms));
    return api_leave(handle, status);
}
