/* The interface between the caller's threads and the loop thread: waking and waiting, and asks. */
#include "client/session.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/base.h"
#include "client/device.h"
#include "client/job.h"
#include "client/op.h"
#include "client/push.h"
#include "proto/base/text.h"

void session_say(const struct session *s, const char *what)
{
    if (s->on_wait.call == NULL) fprintf(stderr, "cairn: %s\n", what);
}

void session_tell(const struct session *s, const char *job, const char *text)
{
    if (s->on_wait.call != NULL)
        (void)s->on_wait.call(s->on_wait.context, job, text, 0);
    else
        fprintf(stderr, "cairn: job %s: %s\n", job, text);
}

void session_leave(struct session **s)
{
    if (*s != NULL) handle_put((*s)->handle);
}

void session_kick(struct session *s)
{
    HOLD_LOCK(&s->lock);
    // After the end, the loop no longer exists, and libuv aborts on a dead handle.
    if (!s->ended) uv_async_send(&s->loop.kick);
}

bool session_sleep(struct session *s, uint64_t deadline_ms)
{
    const struct timespec until = { .tv_sec = (time_t)(deadline_ms / 1000),
                                    .tv_nsec = (long)(deadline_ms % 1000) * 1000000 };
    return pthread_cond_timedwait(&s->changed, &s->lock, &until) != ETIMEDOUT;
}

/* ==== job ==== */

void job_ref(struct job *job)
{
    HOLD_LOCK(&job->session->lock);
    job->refs++;
}

void job_unref(struct job *job)
{
    if (job == NULL) return;
    struct session *s = job->session;
    const uint32_t left = WITH_LOCK(&s->lock, --job->refs);
    if (left == 0) job->on_last_unref(job);
}

void job_note_clip_norm(struct job *job, double clip_norm)
{
    HOLD_LOCK(&job->session->lock);
    job->known.clip_norm = clip_norm;
}

void puts_unclaim(struct job *job, size_t tensor, int plane)
{
    struct put_note *note = &job->puts.notes[tensor];
    note->put &= (uint8_t) ~(1u << plane);
    if (plane == CAIRN_PLANE_PARAM) note->known = false;
}

void puts_failed(struct job *job, size_t tensor, int plane)
{
    if (job->puts.notes == NULL) return;
    puts_unclaim(job, tensor, plane);
    if (!job->known.initialized) job->puts.notes[tensor].failed |= (uint8_t)(1u << plane);
}

/* ==== api ==== */

/* The steps that all calls of a job share: see job.h. */

struct job *api_job(const cairn_job *handle)
{
    struct job *job = handle_get(CAIRN_HANDLE_JOB, handle);
    if (job == NULL) handle_fail(handle, "job");
    return job;
}

cairn_status api_check(struct job *job)
{
    HOLD_LOCK(&job->session->lock);
    const cairn_status failed = job->failure.status;
    if (failed != CAIRN_OK) client_fail(failed, "%s", job->failure.why.text);
    return failed;
}

void api_leave(struct job **job)
{
    if (*job != NULL) handle_put((*job)->handle);
}

void api_leave_op(struct op **op)
{
    if (*op != NULL) handle_put((*op)->handle);
}

uint64_t api_deadline(int timeout_ms)
{
    return monotonic_ms() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0);
}

cairn_status api_judge_call(const char *out_name, const void *out, int timeout_ms)
{
    if (out_name != NULL && out == NULL)
        return client_fail(CAIRN_ERR_INVALID, "%s is NULL", out_name);
    if (timeout_ms >= 0) return CAIRN_OK;
    return client_fail(CAIRN_ERR_INVALID, "timeout_ms is %d; give 0 or more", timeout_ms);
}

cairn_status api_await_none(struct job *job, const uint64_t *open, const char *what,
                            uint64_t deadline_ms)
{
    struct session *s = job->session;
    struct patience patience = client_patience(job, deadline_ms);
    for (;;) {
        const uint64_t until_ms = client_says_at(&patience, deadline_ms);
        pthread_mutex_lock(&s->lock);
        while (*open > 0 && session_sleep(s, until_ms)) {}
        const uint64_t left = *open;
        pthread_mutex_unlock(&s->lock);
        if (left == 0) return CAIRN_OK;
        struct sentence text;
        sentence_set(&text, "%" PRIu64 " %s of job %s still wait for shards", left, what,
                     job->name);
        if (monotonic_ms() >= deadline_ms) return client_fail(CAIRN_ERR_TIMEOUT, "%s", text.text);
        client_say_wait(&patience, text.text);
    }
}

/* ==== control ==== */

void control_send(struct session *s, uint16_t type, uint32_t request,
                  const ProtobufCMessage *message)
{
    struct sentence why;
    if (s->control.stream == NULL) return;
    s->control.spoke_ms = monotonic_ms();
    cairn_status status = stream_send(s->control.stream, type, request, message, &why);
    if (status == CAIRN_ERR_INVALID || status == CAIRN_ERR_NO_MEMORY)
        stream_close(s->control.stream, status, "%s", why.text);
}

void control_send_pages(struct session *s, uint32_t request, enum page_what what,
                        struct packed *packed)
{
    struct sentence why;
    if (s->control.stream == NULL) return;
    cairn_status status = stream_send_pages(s->control.stream, request, what, packed, &why);
    if (status == CAIRN_ERR_NO_MEMORY) stream_close(s->control.stream, status, "%s", why.text);
}

void control_starve(struct session *s, const char *of)
{
    if (s->control.stream == NULL) return;
    stream_close(s->control.stream, CAIRN_ERR_NO_MEMORY,
                 "out of memory for what the coordinator sent (%s)", of);
}

uint64_t control_job_read(struct job *job)
{
    HOLD_LOCK(&job->session->lock);
    job->reads.reported = job->reads.bytes;
    return job->reads.reported - job->reads.reported_before;
}

/* ==== calls that wait ==== */

/* The wait of a call for a worker that is busy with something else, and the reports for whom the
 * call waits. */

#define QUIET_MS 5000 /* how long a call may wait without a report */
#define SAY_MS   60000

struct patience client_patience(struct job *job, uint64_t deadline_ms)
{
    const uint64_t now_ms = monotonic_ms();
    return (struct patience) { .job = job,
                               .span_ms = deadline_ms > now_ms ? deadline_ms - now_ms : 0,
                               .say_ms = now_ms + QUIET_MS };
}

/* Reports the wait. Returns false if the caller does not wait any longer. */
static bool say(struct patience *p, const char *text, uint32_t paused_ms)
{
    const struct session *s = p->job->session;
    const uint64_t now_ms = monotonic_ms();
    const bool is_due = now_ms >= p->say_ms || !p->said;
    if (is_due) p->say_ms = now_ms + SAY_MS;
    p->said = true;
    if (s->on_wait.call != NULL)
        return s->on_wait.call(s->on_wait.context, p->job->name, text, (int)paused_ms);
    if (is_due)
        fprintf(stderr, "cairn: job %s%s %s\n", p->job->name, paused_ms > 0 ? " waits for" : ":",
                text);
    return true;
}

uint64_t client_says_at(const struct patience *p, uint64_t deadline_ms)
{
    return !p->paused && p->say_ms < deadline_ms ? p->say_ms
                                                 : deadline_ms; // a pause is reported at this time
}

void client_say_wait(struct patience *p, const char *text)
{
    (void)say(p, text, 0); // the call has a deadline of its own
}

/* Called when the call's time is over; `awaited` tells for whom the call waits (NULL: unknown).
 * True: the call continues to wait until the new *deadline_ms, and then asks again. */
static bool client_waits_on(struct patience *p, const Cairn__Awaited *awaited,
                            uint64_t *deadline_ms)
{
    const uint32_t paused_ms = awaited != NULL ? awaited->paused_ms : 0;
    const bool was_paused = p->paused;
    if (p->span_ms == 0) return false; // the caller only polls
    p->paused = paused_ms > 0;
    if (!p->paused && !was_paused) return false;
    if (p->paused && !say(p, awaited->text, paused_ms)) return false;
    // After a pause the caller's own time starts again, since it is not known how long ago the
    // pause ended.
    *deadline_ms = monotonic_ms() + (p->span_ms < SAY_MS || !p->paused ? p->span_ms : SAY_MS);
    return true;
}

/* Returns false if this process has no descriptor left. It then cannot reach any shard, and the
 * shard is not to blame. */
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
        sentence_set(out, "this process may open no more descriptors, and reaches no shard without "
                          "one: close some, or raise the limit (ulimit -n); ");
        return;
    }
    *out = WITH_LOCK(&job->session->lock, job->shards.silence);
    if (out->text[0] != '\0') sentence_add(out, "; ");
}

/* ==== ask ==== */

/* Asks wait in the session until they are sent, and their threads wait for the answers. The error
 * text of a failure names who is awaited. */

#define AWAITED_TIMEOUT_MS 500
/* how long a call may exceed its timeout, in order to report for whom it waited */
#define AWAITED_LATE_MS 100
#define PAUSES                                                                                  \
    "; a worker that is at work on something else says so, and is waited for (cairn_pause; in " \
    "Python: with m.pause(\"evaluating\", at_most=600))"

static void enlist(struct ask *ask)
{
    struct session *s = ask->job->session;
    pthread_mutex_lock(&s->lock);
    LIST_INSERT_HEAD(&s->asks, ask, next);
    pthread_mutex_unlock(&s->lock);
    session_kick(s);
}

/* Sleeps until the ask is answered; false: the deadline passed without an answer. */
static bool sleep_for_ask(struct ask *ask, uint64_t deadline_ms)
{
    struct session *s = ask->job->session;
    HOLD_LOCK(&s->lock);
    while (!ask->done && !s->ended && session_sleep(s, deadline_ms)) {}
    if (!ask->done && s->ended) {
        ask->done = true;
        ask->status = CAIRN_ERR_CLOSED;
        sentence_set(&ask->why, "the session was closed");
    }
    return ask->done;
}

/* Takes the ask out of the list. The ask then belongs to the caller again, whatever its result is. */
static void delist(struct ask *ask)
{
    struct session *s = ask->job->session;
    HOLD_LOCK(&s->lock);
    LIST_REMOVE(ask, next);
}

/* Asks the coordinator for whom the call waits; NULL: no answer by until_ms. */
static Cairn__Awaited *ask_until(struct job *job, uint16_t type, uint64_t until_ms)
{
    static const struct ask_call call = { .type = CAIRN_MSG_WHO_IS_AWAITED };
    Cairn__WhoIsAwaited message = CAIRN__WHO_IS_AWAITED__INIT;
    message.cut = type == CAIRN_MSG_SNAPSHOT_CREATE;
    message.lease = type == CAIRN_MSG_LEASE_TAKE;
    struct ask ask = { .job = job, .call = &call, .message = &message.base };
    enlist(&ask);
    (void)sleep_for_ask(&ask, until_ms);
    delist(&ask);
    if (ask.reply != NULL && ask.reply_type == CAIRN_MSG_AWAITED)
        return (Cairn__Awaited *)ask.reply;
    message_free(ask.reply);
    return NULL;
}

/* Returns how long the coordinator has been away, or 0 if it is connected. While the coordinator is
 * away, nobody can report for whom it waits. */
static uint64_t away_for_ms(struct session *s)
{
    HOLD_LOCK(&s->lock);
    return s->reach.welcome ? 0 : monotonic_ms() - s->reach.away_since_ms;
}

/* Describes what else is awaited if neither a member nor a shard is awaited. */
static void say_rest(struct job *job, const struct ask_call *call, struct sentence *out)
{
    sentence_set(out, "waits for %s",
                 call->rest != NULL ? call->rest
                                    : "the coordinator, which waits for nobody: it is at work on "
                                      "this, or on its store");
    if (call->type != CAIRN_MSG_VERSION_WAIT) return;
    const struct cairn_version newest = WITH_LOCK(&job->session->lock, job->known.newest);
    sentence_add(out, " %" PRIu64 ".%" PRIu64, newest.generation, newest.step);
}

static struct sentence awaited_text_ask(struct job *job, const struct ask_call *call,
                                        const Cairn__Awaited *awaited)
{
    struct session *s = job->session;
    struct sentence silence, text;
    const uint64_t away_ms = away_for_ms(s);
    client_silence(job, &silence);
    if (WITH_LOCK(&s->lock, s->detachment.wants_off))
        sentence_add(&silence, "this session let go of the shards' memory (cairn_detach_memory), "
                               "and calls that need the shards wait for its cairn_attach_memory; ");
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
        say_rest(job, call, &text);
    return text;
}

/* Asks for whom a call waits; NULL: not known. */
static Cairn__Awaited *ask_awaited(struct job *job, uint16_t type, uint64_t until_ms)
{
    return away_for_ms(job->session) > 0 ? NULL : ask_until(job, type, until_ms);
}

struct sentence ask_opening_awaits(struct job *job)
{
    static const struct ask_call call = { .name = "cairn_job_open", .type = CAIRN_MSG_JOB_OPEN };
    Cairn__Awaited *awaited = ask_awaited(job, call.type, monotonic_ms() + AWAITED_LATE_MS);
    const struct sentence text = awaited_text_ask(job, &call, awaited);
    message_free((ProtobufCMessage *)awaited);
    return text;
}

static cairn_status fail_late(const struct ask *ask, const Cairn__Awaited *awaited)
{
    const Cairn__VersionWait *wait = (const Cairn__VersionWait *)ask->message;
    struct sentence call;
    sentence_set(&call, "%s", ask->call->name);
    if (ask->call->type == CAIRN_MSG_VERSION_WAIT && !wait->client_state)
        sentence_add(&call, " for version %" PRIu64 ".%" PRIu64, wait->generation, wait->step);
    const struct sentence text = awaited_text_ask(ask->job, ask->call, awaited);
    return client_fail(CAIRN_ERR_TIMEOUT, "%s timed out: %s", call.text, text.text);
}

/* CAIRN_OK: the ask is answered. The second ask, for whom the call waits, is sent a little before
 * the deadline, so that the call returns in time even if the coordinator does not answer. */
static cairn_status await_answer(struct ask *ask, uint64_t deadline_ms)
{
    struct patience patience = client_patience(ask->job, deadline_ms);
    cairn_status status = CAIRN_OK;
    while (status == CAIRN_OK) {
        const uint64_t lead_ms = patience.span_ms / 4 < AWAITED_TIMEOUT_MS ? patience.span_ms / 4
                                                                           : AWAITED_TIMEOUT_MS;
        const uint64_t ask_ms = deadline_ms - lead_ms;
        if (sleep_for_ask(ask, client_says_at(&patience, ask_ms))) break;
        const bool is_late = monotonic_ms() >= ask_ms;
        Cairn__Awaited *awaited = ask_awaited(ask->job, ask->call->type,
                                              is_late ? deadline_ms + AWAITED_LATE_MS
                                                      : monotonic_ms() + AWAITED_TIMEOUT_MS);
        if (!is_late)
            client_say_wait(&patience, awaited_text_ask(ask->job, ask->call, awaited).text);
        else if (!sleep_for_ask(ask, deadline_ms) &&
                 (!ask->call->is_of_round || !client_waits_on(&patience, awaited, &deadline_ms)))
            status = fail_late(ask, awaited);
        message_free((ProtobufCMessage *)awaited);
    }
    return status;
}

cairn_status ask_coordinator(struct job *job, const struct ask_call *call,
                             ProtobufCMessage *message, uint64_t deadline_ms,
                             ProtobufCMessage **reply_out)
{
    struct ask ask = { .job = job, .call = call, .message = message };
    enlist(&ask);
    const cairn_status waited = await_answer(&ask, deadline_ms);
    delist(&ask);
    if (!ask.done) return waited; // the ask may have been answered at the last moment
    if (ask.status != CAIRN_OK) return client_fail(ask.status, "%s", ask.why.text);
    if (ask.reply_type != call->reply_type) {
        message_free(ask.reply);
        return client_fail(CAIRN_ERR_PROTOCOL, "%s: the coordinator answered %s with %s",
                           call->name, message_name(call->type), message_name(ask.reply_type));
    }
    if (reply_out != NULL)
        *reply_out = ask.reply;
    else
        message_free(ask.reply);
    return CAIRN_OK;
}

/* ==== wait ==== */

/* cairn_wait: how long a caller waits for an operation, and for which shards. */

#define AWAITED_MS 200 /* the time that the loop thread has to tell for whom a call waits */

/* Not under the lock: asks the loop thread, which knows the shards that have not answered. */
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
    const uint64_t deadline_ms = monotonic_ms() + AWAITED_MS;
    while (!job->awaited.answered && !s->ended && session_sleep(s, deadline_ms)) {}
    const struct sentence awaited = job->awaited.text;
    pthread_mutex_unlock(&s->lock);
    struct sentence silence, text;
    client_silence(job, &silence);
    sentence_set(&text, "%sthe operation still waits for %s of job %s", silence.text,
                 awaited.text[0] != 0 ? awaited.text : "the shards", job->name);
    return text;
}

/* Under the lock: records that a call has waited for the operation since from_us. */
static void note_time(struct op *op, uint64_t from_us)
{
    if (op->kind == CAIRN_CHUNK_FETCH)
        step_times_waited(&op->job->measured.times, CAIRN_TIME_FETCH, from_us);
    else if (op->kind == CAIRN_CHUNK_PUSH)
        step_times_waited(&op->job->measured.times, CAIRN_TIME_PUSH, from_us);
}

/* Returns true if the call continues to wait: a push may wait for the contributions of other workers.
 * Not under the lock. */
static bool waits_on(const struct op *op, struct patience *patience, uint64_t *deadline_ms)
{
    if (op->kind != CAIRN_CHUNK_PUSH || patience->span_ms == 0) return false;
    Cairn__Awaited *awaited = ask_until(op->job, CAIRN_MSG_ROUND_COMMIT,
                                        monotonic_ms() + AWAITED_TIMEOUT_MS);
    const bool waits = client_waits_on(patience, awaited, deadline_ms);
    message_free((ProtobufCMessage *)awaited);
    return waits;
}

/* Locked. Sleeps until the operation is done, or the time is over. */
static void sleep_for_wait(struct op *op, uint64_t deadline_ms)
{
    struct session *s = op->session;
    struct patience patience = client_patience(op->job, deadline_ms);
    for (bool waits = true; waits && !op->done;) {
        const uint64_t until_ms = client_says_at(&patience, deadline_ms);
        while (!op->done && session_sleep(s, until_ms)) {}
        if (op->done) return;
        pthread_mutex_unlock(&s->lock);
        if (monotonic_ms() < deadline_ms)
            client_say_wait(&patience, awaited_text_wait(op).text);
        else
            waits = waits_on(op, &patience, &deadline_ms);
        pthread_mutex_lock(&s->lock);
    }
}

cairn_status cairn_wait(cairn_op *handle, int timeout_ms)
{
    CAIRN_TRY(api_judge_call(NULL, NULL, timeout_ms));
    API_OP(op, handle);
    struct session *s = op->session;
    const uint64_t deadline_ms = api_deadline(timeout_ms);
    cairn_status status = CAIRN_ERR_TIMEOUT;
    pthread_mutex_lock(&s->lock);
    const uint64_t from_us = op->done ? 0 : monotonic_us();
    sleep_for_wait(op, deadline_ms);
    if (from_us != 0) note_time(op, from_us);
    if (op->done) status = op->status;
    if (op->done && status != CAIRN_OK) client_fail(status, "%s", op_why(op));
    pthread_mutex_unlock(&s->lock);
    if (status == CAIRN_ERR_TIMEOUT && timeout_ms == 0)
        client_fail(status, "the operation is not done; give a timeout to learn what it waits for");
    else if (status == CAIRN_ERR_TIMEOUT)
        client_fail(status, "cairn_wait timed out: %s", awaited_text_wait(op).text);
    if (status != CAIRN_ERR_TIMEOUT) handle_close(CAIRN_HANDLE_OP, handle);
    return status;
}

/* ---- one of several ---- */

/* *first_out is NULL if no operation was given. */
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

/* Locked: returns the index of the first operation that is done, or `count`. */
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
    HOLD_LOCK(&s->lock);
    const uint64_t from_us = monotonic_us();
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
    API_OP(op, handle);
    HOLD_LOCK(&op->session->lock);
    op->user = user;
    return CAIRN_OK;
}

/* ==== pause ==== */

/* Pauses: this worker is busy with something else, and the other workers wait for it. */

#define AT_MOST_MS 86400000

/* Records the pause, because it is repeated after an attach: a new coordinator knows no pauses. */
static void note_pause(struct job *job, const char *what, uint64_t ends_ms)
{
    HOLD_LOCK(&job->session->lock);
    snprintf(job->pause.what, sizeof job->pause.what, "%s", what);
    job->pause.ends_ms = ends_ms;
}

static cairn_status tell_pause(struct job *job, const char *what, int at_most_ms,
                               uint64_t deadline_ms)
{
    ASK_CALL(begin, "cairn_pause", PAUSE, DONE);
    ASK_CALL(end, "cairn_pause_end", PAUSE, DONE);
    Cairn__Pause message = CAIRN__PAUSE__INIT;
    message.at_most_ms = (uint32_t)at_most_ms;
    message.what = wire_text(what);
    note_pause(job, what, at_most_ms > 0 ? monotonic_ms() + (uint64_t)at_most_ms : 0);
    const cairn_status status = ask_coordinator(job, at_most_ms > 0 ? &begin : &end, &message.base,
                                                deadline_ms, NULL);
    // a caller whose call failed will not end the pause
    if (status != CAIRN_OK) note_pause(job, "", 0);
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
    API_ENTER(job, handle);
    CAIRN_TRY(judge_pause(job, what, at_most_ms, timeout_ms));
    return tell_pause(job, what, at_most_ms, api_deadline(timeout_ms));
}

cairn_status cairn_pause_end(cairn_job *handle, int timeout_ms)
{
    API_ENTER(job, handle);
    CAIRN_TRY(judge_pause(job, "-", 1, timeout_ms));
    return tell_pause(job, "", 0, api_deadline(timeout_ms));
}
