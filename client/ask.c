/* Asks wait in the session to be sent, their threads for the answer, and what fails has a sentence that names
 * who is awaited. */
#include "client/ask.h"

#include "client/job.h"

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
    cairn_session_kick(s);
}

/* Sleeps until the ask is answered; false: at the deadline it is not. */
static bool sleep_for(struct ask *ask, uint64_t deadline_ms)
{
    struct session *s = ask->job->session;
    pthread_mutex_lock(&s->lock);
    while (!ask->done && !s->ended && cairn_session_sleep(s, deadline_ms)) {}
    if (!ask->done && s->ended) {
        ask->done = true;
        ask->status = CAIRN_ERR_CLOSED;
        cairn_sentence_set(&ask->why, "the session was closed");
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
    (void)sleep_for(&ask, until_ms);
    delist(&ask);
    if (ask.reply != NULL && ask.reply_type == CAIRN_MSG_AWAITED)
        return (Cairn__Awaited *)ask.reply;
    cairn_message_free(ask.reply);
    return NULL;
}

Cairn__Awaited *cairn_ask_awaited(struct job *job, uint16_t type)
{
    return ask_until(job, type, cairn_client_now_ms() + AWAITED_TIMEOUT_MS);
}

/* How long the coordinator has been away, 0 if it is connected. While it is away nobody can say for
 * whom it waits. */
static uint64_t away_for_ms(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    const uint64_t away_ms = s->reach.welcome ? 0 : cairn_client_now_ms() - s->reach.away_since_ms;
    pthread_mutex_unlock(&s->lock);
    return away_ms;
}

/* Where no member and no shard is awaited: what else is. */
static void say_rest(struct job *job, uint16_t type, struct cairn_sentence *out)
{
    pthread_mutex_lock(&job->session->lock);
    const struct cairn_version newest = job->known.newest;
    pthread_mutex_unlock(&job->session->lock);
    switch (type) {
    case CAIRN_MSG_VERSION_WAIT:
        cairn_sentence_set(out,
                           "waits for a step that nobody has begun: the newest version that was "
                           "heard of is %llu.%llu",
                           (unsigned long long)newest.generation, (unsigned long long)newest.step);
        return;
    case CAIRN_MSG_SNAPSHOT_CREATE:
        cairn_sentence_set(out, "waits for the storage of the snapshots, where it is written");
        return;
    case CAIRN_MSG_ROUND_COMMIT:
        cairn_sentence_set(out, "waits for the shards to tell how the round ended");
        return;
    case CAIRN_MSG_LEASE_TAKE:
    case CAIRN_MSG_LEASE_DROP:
        cairn_sentence_set(out, "waits for the shards to take note of the lease");
        return;
    default:
        cairn_sentence_set(out, "waits for the coordinator, which waits for nobody: it is at work "
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

static struct cairn_sentence awaited_text(struct job *job, uint16_t type,
                                          const Cairn__Awaited *awaited)
{
    struct session *s = job->session;
    struct cairn_sentence silence, text;
    const uint64_t away_ms = away_for_ms(s);
    cairn_client_silence(job, &silence);
    if (is_detached(s))
        cairn_sentence_add(&silence, "this session let go of the shards' memory "
                                     "(cairn_detach_memory), and what needs them waits for its "
                                     "cairn_attach_memory; ");
    if (away_ms > 0)
        cairn_sentence_set(&text, "the coordinator at %s has been away for %llu ms",
                           s->endpoint_text, (unsigned long long)away_ms);
    else if (awaited == NULL)
        cairn_sentence_set(&text, "%sthe coordinator at %s does not answer", silence.text,
                           s->endpoint_text);
    else if (awaited->text[0] != 0)
        cairn_sentence_set(&text, "%swaits for %s%s", silence.text, awaited->text,
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

struct cairn_sentence cairn_ask_opening_awaits(struct job *job)
{
    Cairn__Awaited *awaited = ask_awaited(job, CAIRN_MSG_JOB_OPEN,
                                          cairn_client_now_ms() + AWAITED_LATE_MS);
    const struct cairn_sentence text = awaited_text(job, CAIRN_MSG_JOB_OPEN, awaited);
    cairn_message_free((ProtobufCMessage *)awaited);
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
    default: return cairn_message_name(ask->type);
    }
}

static cairn_status fail_late(const struct ask *ask, const Cairn__Awaited *awaited)
{
    const Cairn__VersionWait *wait = (const Cairn__VersionWait *)ask->message;
    struct cairn_sentence call;
    cairn_sentence_set(&call, "%s", call_of(ask));
    if (ask->type == CAIRN_MSG_VERSION_WAIT && !wait->client_state)
        cairn_sentence_add(&call, " for version %llu.%llu", (unsigned long long)wait->generation,
                           (unsigned long long)wait->step);
    const struct cairn_sentence text = awaited_text(ask->job, ask->type, awaited);
    return cairn_client_fail(CAIRN_ERR_TIMEOUT, "%s timed out: %s", call.text, text.text);
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
    struct patience patience = cairn_client_patience(ask->job, deadline_ms);
    cairn_status status = CAIRN_OK;
    while (status == CAIRN_OK) {
        const uint64_t lead_ms = patience.span_ms / 4 < AWAITED_TIMEOUT_MS ? patience.span_ms / 4
                                                                           : AWAITED_TIMEOUT_MS;
        const uint64_t ask_ms = deadline_ms - lead_ms;
        if (sleep_for(ask, cairn_client_says_at(&patience, ask_ms))) break;
        const bool is_late = cairn_client_now_ms() >= ask_ms;
        Cairn__Awaited *awaited = ask_awaited(ask->job, ask->type,
                                              is_late ? deadline_ms + AWAITED_LATE_MS
                                                      : cairn_client_now_ms() + AWAITED_TIMEOUT_MS);
        if (!is_late)
            cairn_client_say_wait(&patience, awaited_text(ask->job, ask->type, awaited).text);
        else if (!sleep_for(ask, deadline_ms) &&
                 (!is_of_round(ask->type) ||
                  !cairn_client_waits_on(&patience, awaited, &deadline_ms)))
            status = fail_late(ask, awaited);
        cairn_message_free((ProtobufCMessage *)awaited);
    }
    return status;
}

cairn_status cairn_ask(struct job *job, uint16_t type, ProtobufCMessage *message,
                       uint16_t reply_type, uint64_t deadline_ms, ProtobufCMessage **reply_out)
{
    struct ask ask = { .job = job, .type = type, .message = message };
    enlist(&ask);
    const cairn_status waited = await_answer(&ask, deadline_ms);
    delist(&ask);
    if (!ask.done) return waited; // it may have come at the last moment
    if (ask.status != CAIRN_OK) return cairn_client_fail(ask.status, "%s", ask.why.text);
    if (ask.reply_type != reply_type) {
        cairn_message_free(ask.reply);
        return cairn_client_fail(CAIRN_ERR_PROTOCOL, "%s: the coordinator answered %s with %s",
                                 call_of(&ask), cairn_message_name(type),
                                 cairn_message_name(ask.reply_type));
    }
    if (reply_out != NULL)
        *reply_out = ask.reply;
    else
        cairn_message_free(ask.reply);
    return CAIRN_OK;
}
