#include "client/loop/control.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/ask.h"
#include "client/base/fork.h"
#include "client/job.h"
#include "client/loop/again.h"
#include "client/loop/attach.h"
#include "client/loop/layouts.h"
#include "client/loop/link.h"
#include "client/push/fail.h"
#include "client/reading.h"

#define CONNECT_TRY_MS  2000
#define RETRY_MIN_MS    50
#define RETRY_MAX_MS    1000
#define STEADY_MS       2000 /* a connection that stood so long was no failure */
#define PLACES_RETRY_MS 100  /* while no shard has joined */
#define FLIGHT_MS       500  /* what is on its way for so long is told of */
#define FLIGHTS_MAX     64   /* jobs of a session of which it is told */

/* ---- connection ---- */

static void note_away(struct session *s, cairn_status status, const char *why)
{
    pthread_mutex_lock(&s->lock);
    if (s->reach.welcome || s->reach.away_since_ms == 0)
        s->reach.away_since_ms = cairn_client_now_ms();
    s->reach.welcome = false;
    s->reach.status = status;
    cairn_sentence_set(&s->reach.why, "%s", why);
    for (struct ask *ask = s->asks; ask != NULL; ask = ask->next) ask->request = 0;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void retry_later(struct session *s)
{
    s->control.retry_at_ms = cairn_client_now_ms() + s->control.retry_delay_ms;
    s->control.retry_delay_ms = s->control.retry_delay_ms * 2 < RETRY_MAX_MS
                                    ? s->control.retry_delay_ms * 2
                                    : RETRY_MAX_MS;
}

static void connect_again(struct session *s);

static void on_close(struct cairn_stream *stream, cairn_status status, const char *why,
                     void *context)
{
    struct session *s = context;
    const bool was_ready = s->control.ready;
    (void)stream;
    cairn_fork_forget(s);
    s->control.stream = NULL;
    s->control.ready = s->control.hello_sent = false;
    if (!s->control.is_choosing) note_away(s, status == CAIRN_OK ? CAIRN_ERR_CLOSED : status, why);
    if (s->ended && !uv_is_closing((uv_handle_t *)&s->loop.tick))
        uv_close((uv_handle_t *)&s->loop.tick, NULL);
    for (struct job *job = s->jobs; job != NULL; job = job->next) cairn_attachment_lost(job);
    if (was_ready && cairn_client_now_ms() - s->control.welcome_ms >= STEADY_MS)
        s->control.retry_delay_ms = RETRY_MIN_MS;
    retry_later(s);
    if (s->control.is_choosing) connect_again(s);
}

void cairn_control_send(struct session *s, uint16_t type, uint32_t request,
                        const ProtobufCMessage *message)
{
    struct cairn_sentence why;
    if (s->control.stream == NULL) return;
    s->control.spoke_ms = cairn_client_now_ms();
    cairn_status status = cairn_stream_send(s->control.stream, type, request, message, &why);
    if (status == CAIRN_ERR_INVALID || status == CAIRN_ERR_NO_MEMORY)
        cairn_stream_close(s->control.stream, status, "%s", why.text);
}

void cairn_control_send_pages(struct session *s, uint32_t request, enum cairn_page_what what,
                              struct cairn_packed *packed)
{
    struct cairn_sentence why;
    if (s->control.stream == NULL) return;
    cairn_status status = cairn_stream_send_pages(s->control.stream, request, what, packed, &why);
    if (status == CAIRN_ERR_NO_MEMORY)
        cairn_stream_close(s->control.stream, status, "%s", why.text);
}

static void on_dial(struct cairn_stream *stream, void *context)
{
    cairn_fork_watch(context, cairn_stream_descriptor(stream));
}

static void on_open(struct cairn_stream *stream, void *context)
{
    struct session *s = context;
    if (s->loop.stopping) {
        cairn_stream_close(stream, CAIRN_OK, "the session is closed");
        return;
    }
    Cairn__Hello hello = CAIRN__HELLO__INIT;
    hello.protocol = CAIRN_CONTROL_PROTOCOL;
    hello.role = CAIRN_ROLE_WIRE_WORKER; // what a job's member may do is said by JobOpen
    hello.name = s->name;
    hello.incarnation = s->incarnation;
    hello.version = (char *)(uintptr_t)CAIRN_BUILD;
    if (s->path.fabric != NULL)
        hello.fabric_address.data = (uint8_t *)(uintptr_t)cairn_fabric_address(
            s->path.fabric, &hello.fabric_address.len);
    s->control.heard_ms = cairn_client_now_ms();
    s->control.hello_sent = true;
    cairn_control_send(s, CAIRN_MSG_HELLO, ++s->control.last_request, &hello.base);
}

static void on_frame(struct cairn_stream *stream, const struct cairn_frame *frame, void *context);

static void connect_now(struct session *s)
{
    static const struct cairn_stream_events events = { on_open, on_frame, on_close, on_dial };
    const struct cairn_stream_options options = {
        .limits = { CAIRN_MSG_WELCOME, CAIRN_MSG_MAX, CAIRN_FRAME_BYTES_MAX },
    };
    struct cairn_sentence why;
    cairn_status status = cairn_stream_connect(&s->loop.uv, &s->endpoint, CONNECT_TRY_MS, &options,
                                               &events, s, &s->control.stream, &why);
    if (status == CAIRN_OK) return;
    s->control.stream = NULL;
    note_away(s, status, why.text);
    retry_later(s);
}

uint64_t cairn_control_job_read(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    job->reads.told = job->reads.bytes;
    pthread_mutex_unlock(&job->session->lock);
    return job->reads.told - job->reads.told_before;
}

/* ---- heartbeats ---- */

static void look_at_flights(struct job *job, uint64_t now_ms)
{
    bool fetches = false;
    for (uint32_t i = 0; i < job->shards.count; i++) fetches |= job->shards.links[i]->asked > 0;
    pthread_mutex_lock(&job->session->lock);
    const bool pushes = job->filling.pushes_open > 0;
    pthread_mutex_unlock(&job->session->lock);
    if (!fetches || job->flights.none_fetched_ms == 0) job->flights.none_fetched_ms = now_ms;
    if (!pushes || job->flights.none_pushed_ms == 0) job->flights.none_pushed_ms = now_ms;
}

static uint32_t in_flight(const struct job *job, uint64_t now_ms)
{
    return (now_ms - job->flights.none_fetched_ms >= FLIGHT_MS ? CAIRN_FLIES_FETCH : 0u) |
           (now_ms - job->flights.none_pushed_ms >= FLIGHT_MS ? CAIRN_FLIES_PUSH : 0u);
}

enum { UNHEARD_MAX = 16 };

static bool is_listed(char *const *names, uint32_t count, const char *name)
{
    while (count > 0 && strcmp(names[count - 1], name) != 0) count--;
    return count > 0;
}

/* Shards that are silent over the data path, by name, each once: [UNHEARD_MAX], borrowed. */
static uint32_t list_unheard(const struct session *s, char **names)
{
    uint32_t count = 0;
    for (const struct job *job = s->jobs; job != NULL; job = job->next)
        for (uint32_t i = 0; i < job->shards.count && count < UNHEARD_MAX; i++)
            if (job->shards.links[i]->silent &&
                !is_listed(names, count, job->shards.links[i]->name))
                names[count++] = job->shards.links[i]->name;
    return count;
}

/* With what is in flight and who is silent, since each heartbeat replaces what the one before said of it. */
static void beat(struct session *s, uint64_t now_ms, Cairn__BytesTold *read)
{
    Cairn__InFlight told[FLIGHTS_MAX], *list[FLIGHTS_MAX];
    char *unheard[UNHEARD_MAX];
    Cairn__Heartbeat heartbeat = CAIRN__HEARTBEAT__INIT;
    for (const struct job *job = s->jobs; job != NULL; job = job->next) {
        const uint32_t what = in_flight(job, now_ms);
        if (what == 0 || job->attachment.state != JOB_ATTACHED ||
            heartbeat.n_in_flight == FLIGHTS_MAX)
            continue;
        Cairn__InFlight *one = &told[heartbeat.n_in_flight];
        cairn__in_flight__init(one);
        one->job = job->attachment.job;
        one->what = what;
        list[heartbeat.n_in_flight++] = one;
    }
    heartbeat.in_flight = list;
    heartbeat.bytes = &read;
    heartbeat.n_bytes = read != NULL;
    heartbeat.unheard = unheard;
    heartbeat.n_unheard = s->control.unheard_told = list_unheard(s, unheard);
    cairn_control_send(s, CAIRN_MSG_HEARTBEAT, 0, &heartbeat.base);
}

/* At once, when it changes: who trains has no need of heartbeats. */
static void tell_unheard(struct session *s, uint64_t now_ms)
{
    char *names[UNHEARD_MAX];
    if (s->control.ready && list_unheard(s, names) != s->control.unheard_told)
        beat(s, now_ms, NULL);
}

/* Tells the coordinator how much the members have read from published memory, which no shard
 * sees. */
static void tell_reads(struct session *s, uint64_t now_ms)
{
    if (!s->control.ready || now_ms - s->control.reads_told_ms < s->control.heartbeat_ms) return;
    s->control.reads_told_ms = now_ms;
    for (struct job *job = s->jobs; job != NULL; job = job->next) {
        const uint64_t told = job->reads.told;
        if (job->attachment.state != JOB_ATTACHED) continue;
        const uint64_t bytes = cairn_control_job_read(job);
        if (job->reads.told == told) continue;
        Cairn__BytesTold read = CAIRN__BYTES_TOLD__INIT;
        read.job = job->attachment.job;
        read.fetched_shared = bytes;
        beat(s, now_ms, &read);
    }
}

static void keep_alive(struct session *s, uint64_t now_ms)
{
    for (struct job *job = s->jobs; job != NULL; job = job->next) look_at_flights(job, now_ms);
    tell_reads(s, now_ms);
    tell_unheard(s, now_ms);
    if (s->control.ready && now_ms - s->control.spoke_ms >= s->control.heartbeat_ms)
        beat(s, now_ms, NULL);
    const uint64_t lease_ms = s->control.lease_ms != 0 ? s->control.lease_ms : 5000;
    if (s->control.hello_sent && now_ms - s->control.heard_ms > lease_ms)
        cairn_stream_close(s->control.stream, CAIRN_ERR_CLOSED,
                           "the coordinator was silent for %u ms", (unsigned)lease_ms);
}

void cairn_control_tick(struct session *s)
{
    const uint64_t now_ms = cairn_client_now_ms();
    if (s->control.retry_delay_ms == 0) s->control.retry_delay_ms = RETRY_MIN_MS;
    if (s->control.stream == NULL && now_ms >= s->control.retry_at_ms && !s->loop.stopping)
        connect_now(s);
    if (s->control.stream != NULL) keep_alive(s, now_ms);
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        for (uint32_t i = 0; i < job->shards.count; i++)
            cairn_link_tick(job->shards.links[i], now_ms);
}

/* ---- frames ---- */

static struct job *job_of_id(struct session *s, uint64_t id)
{
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (job->attachment.state == JOB_ATTACHED && job->attachment.job == id) return job;
    return NULL;
}

static struct job *job_attaching(struct session *s, uint32_t request)
{
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (job->attachment.state == JOB_ATTACHING && job->attachment.request == request)
            return job;
    return NULL;
}

/* The pages of its layout are coming. */
static struct job *job_changing(struct session *s)
{
    struct job *job = s->jobs;
    while (job != NULL && job->attachment.changed == NULL) job = job->next;
    return job;
}

/* Takes the message. */
static void on_layout_changed(struct session *s, Cairn__LayoutChanged *message)
{
    struct job *job = job_of_id(s, message->job);
    if (job != NULL)
        cairn_layouts_on_changed(job, message);
    else
        cairn_message_free(&message->base);
}

void cairn_control_starve(struct session *s, const char *of)
{
    if (s->control.stream == NULL) return;
    cairn_stream_close(s->control.stream, CAIRN_ERR_NO_MEMORY,
                       "no memory for what the coordinator sent (%s)", of);
}

/* Applies a reply or notice to this session, before the thread that asked hears of it.
 * CAIRN_ERR_NO_MEMORY: nothing was applied, so nobody may hear of the message. */
static cairn_status take_effect(struct session *s, uint32_t request, uint16_t type,
                                const ProtobufCMessage *message)
{
    if (type == CAIRN_MSG_ROUND_OPENED) {
        const Cairn__RoundOpened *opened = (const Cairn__RoundOpened *)message;
        struct job *job = job_of_id(s, opened->job);
        if (job != NULL) return cairn_pushes_on_opened(job, opened);
    } else if (type == CAIRN_MSG_ROUND_RESULT) {
        const Cairn__RoundResult *result = (const Cairn__RoundResult *)message;
        struct job *job = job_of_id(s, result->job);
        if (job != NULL) cairn_pushes_on_result(job, result);
    } else if (type == CAIRN_MSG_SHARDS_CHANGED) {
        const Cairn__ShardsChanged *changed = (const Cairn__ShardsChanged *)message;
        struct job *job = job_of_id(s, changed->job);
        if (job != NULL) cairn_layouts_on_shards(job, changed);
    } else if (type == CAIRN_MSG_TILES_SET) {
        struct job *job = job_of_id(s, ((const Cairn__TilesSet *)message)->job);
        if (job != NULL) cairn_again_on_tiles_set(job, request);
    }
    return CAIRN_OK;
}

/* Never empty: it is what the caller reads. */
static const char *sentence_of(const Cairn__Error *error, cairn_status status)
{
    return error->text[0] != 0 ? error->text : cairn_status_text((int)status);
}

/* Gives a reply (taken) to the thread that asked for it. */
static void answer(struct session *s, uint32_t request, uint16_t type, ProtobufCMessage *message)
{
    pthread_mutex_lock(&s->lock);
    for (struct ask *ask = s->asks; ask != NULL; ask = ask->next) {
        if (ask->request != request || ask->done) continue;
        ask->done = true;
        if (type == CAIRN_MSG_ERROR && ask->job->failure.status != CAIRN_OK) {
            ask->status = ask->job->failure.status; // told just before it: an ask had crossed that
            ask->why = ask->job->failure.why;
        } else if (type == CAIRN_MSG_ERROR) {
            const Cairn__Error *error = (const Cairn__Error *)message;
            ask->status = cairn_status_known(error->status) && error->status != CAIRN_OK
                              ? (cairn_status)error->status
                              : CAIRN_ERR_PROTOCOL;
            cairn_sentence_set(&ask->why, "%s", sentence_of(error, ask->status));
        } else {
            ask->reply_type = type;
            ask->reply = message;
            message = NULL;
        }
        pthread_cond_broadcast(&s->changed);
        break;
    }
    pthread_mutex_unlock(&s->lock);
    cairn_message_free(message);
}

/* The first Welcome tells where the shards are; the connection is made anew with the address of the fabric
 * that was opened by it. */
static void choose_path(struct session *s, const Cairn__Welcome *welcome)
{
    struct cairn_sentence why = { "" };
    cairn_status status;
    if (cairn_datapath_choose(s, welcome, &why, &status) && status != CAIRN_OK) {
        note_away(s, status, why.text);
        pthread_mutex_lock(&s->lock);
        s->reach.no_path = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
    }
    s->control.is_choosing = true;
    cairn_stream_close(s->control.stream, CAIRN_OK, "the data path is opened first");
}

/* The coordinator was asked for the shards' places only. */
static void connect_again(struct session *s)
{
    s->control.is_choosing = false;
    s->control.retry_at_ms = s->reach.no_path ? UINT64_MAX
                                              : cairn_client_now_ms() + PLACES_RETRY_MS;
    if (s->path.fabric == NULL) return;
    s->control.retry_at_ms = 0;
    s->control.retry_delay_ms = RETRY_MIN_MS;
    if (!s->loop.stopping) cairn_control_tick(s);
}

static void on_welcome(struct session *s, const Cairn__Welcome *welcome)
{
    if (s->path.fabric == NULL) {
        choose_path(s, welcome);
        return;
    }
    s->control.ready = true;
    s->control.was_given_up = welcome->coordinator_incarnation == s->control.incarnation;
    s->control.incarnation = welcome->coordinator_incarnation;
    s->control.store = welcome->store;
    s->control.welcome_ms = cairn_client_now_ms();
    s->control.unheard_told = 0;
    s->control.heartbeat_ms = welcome->heartbeat_ms >= 10 ? welcome->heartbeat_ms : 10;
    s->control.lease_ms = welcome->lease_ms >= 100 ? welcome->lease_ms : 100;
    cairn_fabric_set_patience(s->path.fabric, s->control.lease_ms);
    pthread_mutex_lock(&s->lock);
    s->reach.welcome = true;
    s->reach.away_since_ms = 0;
    s->reach.status = CAIRN_OK;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    cairn_turn_run(s);
}

/* An Error that answers no ask: of an attach, or of the whole connection. */
static bool on_error(struct session *s, uint32_t request, const Cairn__Error *error)
{
    const cairn_status status = cairn_status_known(error->status) ? (cairn_status)error->status
                                                                  : CAIRN_ERR_PROTOCOL;
    struct job *attaching = request != 0 ? job_attaching(s, request) : NULL;
    if (attaching != NULL) {
        cairn_attach_differ(attaching, error);
        cairn_attach_on_error(attaching, status, sentence_of(error, status));
        return true;
    }
    if (request != 0 && cairn_again_on_error(s, request, status, sentence_of(error, status)))
        return true;
    if (request != 0 && s->control.ready) return false;
    if (error->job != 0) { // the others of this session go on
        struct job *meant = job_of_id(s, error->job);
        if (meant != NULL) cairn_job_fail(meant, status, sentence_of(error, status));
        return true;
    }
    note_away(s, status, sentence_of(error, status));
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (status == CAIRN_ERR_FENCED || status == CAIRN_ERR_JOB_LOST)
            cairn_job_fail(job, status, sentence_of(error, status));
    return true;
}

/* The job that a message is about: its first field; of an Error, a field of its own. 0: none. */
static uint64_t job_of_message(uint16_t type, const ProtobufCMessage *message)
{
    const ProtobufCFieldDescriptor *first = &message->descriptor->fields[0];
    uint64_t number = 0;
    if (type == CAIRN_MSG_ERROR) return ((const Cairn__Error *)message)->job;
    if (message->descriptor->n_fields > 0 && strcmp(first->name, "job") == 0 &&
        first->type == PROTOBUF_C_TYPE_FIXED64)
        memcpy(&number, (const uint8_t *)message + first->offset, sizeof number);
    return number;
}

/* A message for a job whose pages are still being read waits until they are, so that a large job
 * sees its messages in the same order as a small one. */
static void read_before(struct session *s, const struct cairn_frame *frame,
                        const ProtobufCMessage *message)
{
    const uint64_t number = job_of_message(frame->type, message);
    for (struct job *job = s->jobs; job != NULL; job = job->next) {
        const struct attachment *attachment = &job->attachment;
        if (attachment->reading == NULL) continue;
        if (attachment->reply->job == number || attachment->request == frame->request)
            cairn_attach_read(job);
    }
}

static void on_frame(struct cairn_stream *stream, const struct cairn_frame *frame, void *context)
{
    struct session *s = context;
    s->control.heard_ms = cairn_client_now_ms();
    const ProtobufCMessageDescriptor *type = cairn_message_type(frame->type);
    ProtobufCMessage *message =
        type != NULL ? cairn_message_unpack(type, frame->payload, frame->payload_bytes) : NULL;
    if (message == NULL) {
        if (type != NULL && errno == ENOMEM)
            cairn_control_starve(s, cairn_message_name(frame->type));
        else
            cairn_stream_close(stream, CAIRN_ERR_PROTOCOL, "the coordinator sent a bad %s",
                               cairn_message_name(frame->type));
        return;
    }
    read_before(s, frame, message);
    struct job *attaching = job_attaching(s, frame->request);
    if (frame->type == CAIRN_MSG_WELCOME) {
        on_welcome(s, (const Cairn__Welcome *)message);
    } else if (frame->type == CAIRN_MSG_ATTACHED && attaching != NULL) {
        cairn_attach_on_attached(attaching, (Cairn__Attached *)message);
        return;
    } else if (frame->type == CAIRN_MSG_PAGE && attaching != NULL) {
        cairn_attach_on_page(attaching, (const Cairn__Page *)message);
    } else if (frame->type == CAIRN_MSG_PAGE && job_changing(s) != NULL) {
        cairn_layouts_on_page(job_changing(s), (const Cairn__Page *)message);
    } else if (frame->type == CAIRN_MSG_LAYOUT_CHANGED) {
        on_layout_changed(s, (Cairn__LayoutChanged *)message);
        return;
    } else if (frame->type == CAIRN_MSG_ERROR &&
               on_error(s, frame->request, (const Cairn__Error *)message)) {
        // said
    } else if (frame->type != CAIRN_MSG_HEARTBEAT) {
        if (take_effect(s, frame->request, frame->type, message) != CAIRN_OK) {
            cairn_control_starve(s, cairn_message_name(frame->type));
        } else if (frame->request != 0) {
            answer(s, frame->request, frame->type, message);
            return;
        }
    }
    cairn_message_free(message);
}
