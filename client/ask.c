/* What a thread asks of the coordinator, and what the loop thread is told to do: asks wait in the session to
 * be sent, their threads for the answer, and what fails has a sentence that names who is awaited. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "client/pause.h"
#include "client/session.h"

#define AWAITED_TIMEOUT_MS 500

/* The next ask that can be sent now; one whose job has failed is answered here. */
static struct ask *next_ask(struct session *s)
{
    for (struct ask *ask = s->asks; ask != NULL; ask = ask->next) {
        if (ask->done) continue;
        if (ask->job != NULL && ask->job->failed != CAIRN_OK) { // sent or not
            ask->done = true;
            ask->status = ask->job->failed;
            ask->why = ask->job->failed_why;
            pthread_cond_broadcast(&s->changed);
        } else if (ask->request == 0 && s->ready &&
                   (ask->job == NULL || ask->job->state == JOB_ATTACHED ||
                    ask->type == CAIRN_MSG_WHO_IS_AWAITED)) { // for whom an attach waits, too
            return ask;
        }
    }
    return NULL;
}

/* The job's number is known only now: every message of a job has it as its first field. */
static void send_ask(struct session *s, struct ask *ask)
{
    union {
        Cairn__RoundBegin begin;
        Cairn__RoundCommit commit;
        Cairn__WriteBegin write;
        Cairn__WriteCancel cancel;
        Cairn__InitDone init;
        Cairn__VersionWait version;
        Cairn__LeaseTake take;
        Cairn__LeaseDrop drop;
        Cairn__WhoIsAwaited awaited;
        Cairn__TilesDeclare tiles;
        Cairn__JobAmend amend;
        Cairn__Pause pause;
    } copy;
    const ProtobufCMessage *message = ask->message;
    const uint64_t id = ask->job != NULL ? ask->job->id : 0;
#define WITH_JOB(constant, member, type)      \
    case CAIRN_MSG_##constant:                \
        copy.member = *(const type *)message; \
        copy.member.job = id;                 \
        message = &copy.member.base;          \
        break
    switch (ask->type) {
        WITH_JOB(ROUND_BEGIN, begin, Cairn__RoundBegin);
        WITH_JOB(ROUND_COMMIT, commit, Cairn__RoundCommit);
        WITH_JOB(WRITE_BEGIN, write, Cairn__WriteBegin);
        WITH_JOB(WRITE_CANCEL, cancel, Cairn__WriteCancel);
        WITH_JOB(INIT_DONE, init, Cairn__InitDone);
        WITH_JOB(VERSION_WAIT, version, Cairn__VersionWait);
        WITH_JOB(LEASE_TAKE, take, Cairn__LeaseTake);
        WITH_JOB(LEASE_DROP, drop, Cairn__LeaseDrop);
        WITH_JOB(WHO_IS_AWAITED, awaited, Cairn__WhoIsAwaited);
        WITH_JOB(TILES_DECLARE, tiles, Cairn__TilesDeclare);
        WITH_JOB(JOB_AMEND, amend, Cairn__JobAmend);
        WITH_JOB(PAUSE, pause, Cairn__Pause);
    default: break;
    }
#undef WITH_JOB
    ask->request = ++s->next_request;
    cairn_control_send(s, ask->type, ask->request, message);
    if (ask->type == CAIRN_MSG_TILES_DECLARE)
        cairn_control_send_pages(s, ask->request, CAIRN_PAGE_TILES, ask->job->declaring->packed);
}

static void close_jobs(struct session *s)
{
    for (struct job *job = s->jobs, *next; job != NULL; job = next) {
        next = job->next;
        if (s->stopping) job->closing = true;
        if (job->closing) cairn_attach_release(job);
    }
}

static struct command *next_command(struct session *s, struct command *before)
{
    pthread_mutex_lock(&s->lock);
    struct command *command = before != NULL ? before->next : s->first_command;
    pthread_mutex_unlock(&s->lock);
    return command;
}

static void free_command(struct session *s, struct command *before, struct command *command)
{
    pthread_mutex_lock(&s->lock);
    if (before != NULL)
        before->next = command->next;
    else
        s->first_command = command->next;
    if (s->last_command == command) s->last_command = before;
    pthread_mutex_unlock(&s->lock);
    cairn_job_unref(command->job);
    free(command);
}

/* In the order given, job by job: where one waits for its shards, others go on. */
static void run_commands(struct session *s)
{
    struct command *before = NULL;
    for (struct job *job = s->jobs; job != NULL; job = job->next) job->stalled = false;
    for (struct command *command; (command = next_command(s, before)) != NULL;) {
        struct job *job = command->job;
        if (!job->stalled && command->run(command)) {
            free_command(s, before, command);
        } else {
            job->stalled = true;
            before = command;
        }
    }
}

void cairn_control_run(struct session *s)
{
    const uint64_t now_ms = cairn_client_now_ms();
    run_commands(s);
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (s->ready && job->state == JOB_DETACHED && !job->closing && job->failed == CAIRN_OK &&
            now_ms >= job->attach_at_ms)
            cairn_attach_begin(job);
    pthread_mutex_lock(&s->lock);
    for (struct ask *ask; (ask = next_ask(s)) != NULL;) send_ask(s, ask);
    pthread_mutex_unlock(&s->lock);
    close_jobs(s);
}

static void remove_ask(struct session *s, struct ask *ask)
{
    struct ask **link = &s->asks;
    while (*link != ask) link = &(*link)->next;
    *link = ask->next;
}

static void enlist(struct session *s, struct ask *ask)
{
    pthread_mutex_lock(&s->lock);
    ask->next = s->asks;
    s->asks = ask;
    pthread_mutex_unlock(&s->lock);
    cairn_session_kick(s);
}

/* Sleeps until the ask is answered. */
static void sleep_for(struct session *s, struct ask *ask, uint64_t deadline_ms)
{
    pthread_mutex_lock(&s->lock);
    while (!ask->done && !s->ended && cairn_session_sleep(s, deadline_ms)) {}
    if (!ask->done && s->ended) {
        ask->done = true;
        ask->status = CAIRN_ERR_CLOSED;
        cairn_sentence_set(&ask->why, "the session was closed");
    }
    pthread_mutex_unlock(&s->lock);
}

/* The ask is the caller's again, whatever happened. */
static void delist(struct session *s, struct ask *ask)
{
    pthread_mutex_lock(&s->lock);
    remove_ask(s, ask);
    pthread_mutex_unlock(&s->lock);
}

Cairn__Awaited *cairn_control_awaited(struct session *s, struct job *job, uint16_t type)
{
    Cairn__WhoIsAwaited message = CAIRN__WHO_IS_AWAITED__INIT;
    message.cut = type == CAIRN_MSG_SNAPSHOT_CREATE;
    message.lease = type == CAIRN_MSG_LEASE_TAKE;
    struct ask ask = { .job = job, .type = CAIRN_MSG_WHO_IS_AWAITED, .message = &message.base };
    enlist(s, &ask);
    sleep_for(s, &ask, cairn_client_now_ms() + AWAITED_TIMEOUT_MS);
    delist(s, &ask);
    if (ask.reply != NULL && ask.reply_type == CAIRN_MSG_AWAITED)
        return (Cairn__Awaited *)ask.reply;
    cairn_message_free(ask.reply);
    return NULL;
}

/* Of a coordinator that is away nobody knows for whom it waits. */
static uint64_t away_for_ms(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    const uint64_t away_ms = s->welcome ? 0 : cairn_client_now_ms() - s->away_since_ms;
    pthread_mutex_unlock(&s->lock);
    return away_ms;
}

static cairn_status fail_awaited(struct session *s, const Cairn__Awaited *awaited, uint16_t type)
{
    const uint64_t away_ms = away_for_ms(s);
    if (away_ms > 0)
        return cairn_client_fail(
            CAIRN_ERR_TIMEOUT, "%s timed out: the coordinator at %s has been away for %llu ms",
            cairn_message_name(type), s->endpoint_text, (unsigned long long)away_ms);
    return cairn_client_fail(CAIRN_ERR_TIMEOUT, "%s timed out: %s", cairn_message_name(type),
                             awaited != NULL && awaited->text[0] != 0
                                 ? awaited->text
                                 : "the coordinator does not say for whom it waits");
}

/* Whom a call waits for that has just timed out. */
cairn_status cairn_control_fail_awaited(struct session *s, struct job *job, uint16_t type)
{
    Cairn__Awaited *awaited = away_for_ms(s) > 0 ? NULL : cairn_control_awaited(s, job, type);
    const cairn_status status = fail_awaited(s, awaited, type);
    cairn_message_free((ProtobufCMessage *)awaited);
    return status;
}

/* What waits for all workers. */
static bool is_of_round(uint16_t type)
{
    return type == CAIRN_MSG_ROUND_BEGIN || type == CAIRN_MSG_ROUND_COMMIT ||
           type == CAIRN_MSG_WRITE_BEGIN || type == CAIRN_MSG_INIT_DONE ||
           type == CAIRN_MSG_TILES_DECLARE;
}

/* CAIRN_OK: it is answered. */
static cairn_status await_answer(struct session *s, struct ask *ask, uint64_t deadline_ms)
{
    struct patience patience = cairn_client_patience(ask->job, deadline_ms);
    cairn_status status = CAIRN_OK;
    sleep_for(s, ask, deadline_ms);
    while (!ask->done && status == CAIRN_OK) {
        Cairn__Awaited *awaited = away_for_ms(s) > 0
                                      ? NULL
                                      : cairn_control_awaited(s, ask->job, ask->type);
        if (is_of_round(ask->type) && cairn_client_waits_on(&patience, awaited, &deadline_ms))
            sleep_for(s, ask, deadline_ms);
        else
            status = fail_awaited(s, awaited, ask->type);
        cairn_message_free((ProtobufCMessage *)awaited);
    }
    return status;
}

cairn_status cairn_control_ask(struct session *s, struct job *job, uint16_t type,
                               const ProtobufCMessage *message, uint16_t reply_type,
                               uint64_t deadline_ms, ProtobufCMessage **reply_out)
{
    struct ask ask = { .job = job, .type = type, .message = message };
    enlist(s, &ask);
    const cairn_status waited = await_answer(s, &ask, deadline_ms);
    delist(s, &ask);
    if (!ask.done) return waited; // it may have come at the last moment
    if (ask.status != CAIRN_OK) return cairn_client_fail(ask.status, "%s", ask.why.text);
    if (ask.reply_type != reply_type) {
        cairn_message_free(ask.reply);
        return cairn_client_fail(CAIRN_ERR_PROTOCOL, "the coordinator answered %s with %s",
                                 cairn_message_name(type), cairn_message_name(ask.reply_type));
    }
    *reply_out = ask.reply;
    return CAIRN_OK;
}
