#include "client/loop.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "client/job.h"
#include "client/op.h"
#include "client/push.h"
#include "client/read.h"
#include "proto/geometry/layout.h"

#define CONNECT_TRY_MS  2000
#define RETRY_MIN_MS    50
#define RETRY_MAX_MS    1000
#define STEADY_MS       2000 /* a connection that stood so long was no failure */
#define PLACES_RETRY_MS 100  /* while no shard has joined */
#define FLIGHT_MS       500  /* what is on its way for so long is told of */
#define FLIGHTS_MAX     64   /* jobs of a session of which it is told */

static void layouts_on_changed(struct job *job, Cairn__LayoutChanged *message);
static void layouts_on_shards(struct job *job, const Cairn__ShardsChanged *message);
static void layouts_on_page(struct job *job, const Cairn__Page *page);

/* ---- connection ---- */

static void note_away(struct session *s, cairn_status status, const char *why)
{
    pthread_mutex_lock(&s->lock);
    if (s->reach.welcome || s->reach.away_since_ms == 0) s->reach.away_since_ms = client_now_ms();
    s->reach.welcome = false;
    s->reach.status = status;
    sentence_set(&s->reach.why, "%s", why);
    for (struct ask *ask = s->asks; ask != NULL; ask = ask->next) ask->request = 0;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void retry_later(struct session *s)
{
    s->control.retry_at_ms = client_now_ms() + s->control.retry_delay_ms;
    s->control.retry_delay_ms = s->control.retry_delay_ms * 2 < RETRY_MAX_MS
                                    ? s->control.retry_delay_ms * 2
                                    : RETRY_MAX_MS;
}

static void connect_again(struct session *s);

static void on_close(struct stream *stream, cairn_status status, const char *why, void *context)
{
    struct session *s = context;
    const bool was_ready = s->control.ready;
    (void)stream;
    fork_forget(s);
    s->control.stream = NULL;
    s->control.ready = s->control.hello_sent = false;
    if (!s->control.is_choosing) note_away(s, status == CAIRN_OK ? CAIRN_ERR_CLOSED : status, why);
    if (s->ended && !uv_is_closing((uv_handle_t *)&s->loop.tick))
        uv_close((uv_handle_t *)&s->loop.tick, NULL);
    for (struct job *job = s->jobs; job != NULL; job = job->next) attachment_lost(job);
    if (was_ready && client_now_ms() - s->control.welcome_ms >= STEADY_MS)
        s->control.retry_delay_ms = RETRY_MIN_MS;
    retry_later(s);
    if (s->control.is_choosing) connect_again(s);
}

void control_send(struct session *s, uint16_t type, uint32_t request,
                  const ProtobufCMessage *message)
{
    struct sentence why;
    if (s->control.stream == NULL) return;
    s->control.spoke_ms = client_now_ms();
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

static void on_dial(struct stream *stream, void *context)
{
    fork_watch(context, stream_descriptor(stream));
}

static void on_open(struct stream *stream, void *context)
{
    struct session *s = context;
    if (s->loop.stopping) {
        stream_close(stream, CAIRN_OK, "the session is closed");
        return;
    }
    Cairn__Hello hello = CAIRN__HELLO__INIT;
    hello.protocol = CAIRN_CONTROL_PROTOCOL;
    hello.role = CAIRN_ROLE_WIRE_WORKER; // what a job's member may do is said by JobOpen
    hello.name = s->name;
    hello.incarnation = s->incarnation;
    hello.version = wire_text(CAIRN_BUILD);
    if (s->path.fabric != NULL)
        hello.fabric_address.data = (uint8_t *)(uintptr_t)fabric_own_address(
            s->path.fabric, &hello.fabric_address.len);
    s->control.heard_ms = client_now_ms();
    s->control.hello_sent = true;
    control_send(s, CAIRN_MSG_HELLO, ++s->control.last_request, &hello.base);
}

static void on_frame(struct stream *stream, const struct wire_frame *frame, void *context);

static void connect_now(struct session *s)
{
    static const struct stream_events events = { on_open, on_frame, on_close, on_dial };
    const struct stream_options options = {
        .limits = { CAIRN_MSG_WELCOME, CAIRN_MSG_MAX, CAIRN_FRAME_BYTES_MAX },
    };
    struct sentence why;
    cairn_status status = stream_connect(&s->loop.uv, &s->endpoint, CONNECT_TRY_MS, &options,
                                         &events, s, &s->control.stream, &why);
    if (status == CAIRN_OK) return;
    s->control.stream = NULL;
    note_away(s, status, why.text);
    retry_later(s);
}

uint64_t control_job_read(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    job->reads.reported = job->reads.bytes;
    pthread_mutex_unlock(&job->session->lock);
    return job->reads.reported - job->reads.reported_before;
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
    Cairn__InFlight reported[FLIGHTS_MAX], *list[FLIGHTS_MAX];
    char *unheard[UNHEARD_MAX];
    Cairn__Heartbeat heartbeat = CAIRN__HEARTBEAT__INIT;
    for (const struct job *job = s->jobs; job != NULL; job = job->next) {
        const uint32_t what = in_flight(job, now_ms);
        if (what == 0 || job->attachment.state != JOB_ATTACHED ||
            heartbeat.n_in_flight == FLIGHTS_MAX)
            continue;
        Cairn__InFlight *one = &reported[heartbeat.n_in_flight];
        cairn__in_flight__init(one);
        one->job = job->attachment.job;
        one->what = what;
        list[heartbeat.n_in_flight++] = one;
    }
    heartbeat.in_flight = list;
    heartbeat.bytes = &read;
    heartbeat.n_bytes = read != NULL;
    heartbeat.unheard = unheard;
    heartbeat.n_unheard = s->control.unheard_reported = list_unheard(s, unheard);
    control_send(s, CAIRN_MSG_HEARTBEAT, 0, &heartbeat.base);
}

/* At once, when it changes: who trains has no need of heartbeats. */
static void report_unheard(struct session *s, uint64_t now_ms)
{
    char *names[UNHEARD_MAX];
    if (s->control.ready && list_unheard(s, names) != s->control.unheard_reported)
        beat(s, now_ms, NULL);
}

/* Tells the coordinator how much the members have read from published memory, which no shard
 * sees. */
static void report_reads(struct session *s, uint64_t now_ms)
{
    if (!s->control.ready || now_ms - s->control.reads_reported_ms < s->control.heartbeat_ms)
        return;
    s->control.reads_reported_ms = now_ms;
    for (struct job *job = s->jobs; job != NULL; job = job->next) {
        const uint64_t reported = job->reads.reported;
        if (job->attachment.state != JOB_ATTACHED) continue;
        const uint64_t bytes = control_job_read(job);
        if (job->reads.reported == reported) continue;
        Cairn__BytesTold read = CAIRN__BYTES_TOLD__INIT;
        read.job = job->attachment.job;
        read.fetched_shared = bytes;
        beat(s, now_ms, &read);
    }
}

static void keep_alive(struct session *s, uint64_t now_ms)
{
    for (struct job *job = s->jobs; job != NULL; job = job->next) look_at_flights(job, now_ms);
    report_reads(s, now_ms);
    report_unheard(s, now_ms);
    if (s->control.ready && now_ms - s->control.spoke_ms >= s->control.heartbeat_ms)
        beat(s, now_ms, NULL);
    const uint64_t lease_ms = s->control.lease_ms != 0 ? s->control.lease_ms : 5000;
    if (s->control.hello_sent && now_ms - s->control.heard_ms > lease_ms)
        stream_close(s->control.stream, CAIRN_ERR_CLOSED, "the coordinator was silent for %u ms",
                     (unsigned)lease_ms);
}

void control_tick(struct session *s)
{
    const uint64_t now_ms = client_now_ms();
    if (s->control.retry_delay_ms == 0) s->control.retry_delay_ms = RETRY_MIN_MS;
    if (s->control.stream == NULL && now_ms >= s->control.retry_at_ms && !s->loop.stopping)
        connect_now(s);
    if (s->control.stream != NULL) keep_alive(s, now_ms);
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        for (uint32_t i = 0; i < job->shards.count; i++) link_tick(job->shards.links[i], now_ms);
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
        layouts_on_changed(job, message);
    else
        message_free(&message->base);
}

void control_starve(struct session *s, const char *of)
{
    if (s->control.stream == NULL) return;
    stream_close(s->control.stream, CAIRN_ERR_NO_MEMORY,
                 "out of memory for what the coordinator sent (%s)", of);
}

/* Applies a reply or notice to this session, before the thread that asked hears of it.
 * CAIRN_ERR_NO_MEMORY: nothing was applied, so nobody may hear of the message. */
static cairn_status apply_message(struct session *s, uint32_t request, uint16_t type,
                                  const ProtobufCMessage *message)
{
    if (type == CAIRN_MSG_ROUND_OPENED) {
        const Cairn__RoundOpened *opened = (const Cairn__RoundOpened *)message;
        struct job *job = job_of_id(s, opened->job);
        if (job != NULL) return pushes_on_opened(job, opened);
    } else if (type == CAIRN_MSG_ROUND_RESULT) {
        const Cairn__RoundResult *result = (const Cairn__RoundResult *)message;
        struct job *job = job_of_id(s, result->job);
        if (job != NULL) pushes_on_result(job, result);
    } else if (type == CAIRN_MSG_SHARDS_CHANGED) {
        const Cairn__ShardsChanged *changed = (const Cairn__ShardsChanged *)message;
        struct job *job = job_of_id(s, changed->job);
        if (job != NULL) layouts_on_shards(job, changed);
    } else if (type == CAIRN_MSG_TILES_SET) {
        struct job *job = job_of_id(s, ((const Cairn__TilesSet *)message)->job);
        if (job != NULL) again_on_tiles_set(job, request);
    }
    return CAIRN_OK;
}

/* Never empty: it is what the caller reads. */
static const char *sentence_of(const Cairn__Error *error, cairn_status status)
{
    return error->text[0] != 0 ? error->text : status_text((int)status);
}

/* Gives a reply (taken) to the thread that asked for it. */
static void answer_ask(struct session *s, uint32_t request, uint16_t type,
                       ProtobufCMessage *message)
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
            ask->status = status_known(error->status) && error->status != CAIRN_OK
                              ? (cairn_status)error->status
                              : CAIRN_ERR_PROTOCOL;
            sentence_set(&ask->why, "%s", sentence_of(error, ask->status));
        } else {
            ask->reply_type = type;
            ask->reply = message;
            message = NULL;
        }
        pthread_cond_broadcast(&s->changed);
        break;
    }
    pthread_mutex_unlock(&s->lock);
    message_free(message);
}

/* The first Welcome tells where the shards are; the connection is made anew with the address of the fabric
 * that was opened by it. */
static void choose_path(struct session *s, const Cairn__Welcome *welcome)
{
    struct sentence why = { "" };
    cairn_status status;
    if (datapath_choose(s, welcome, &why, &status) && status != CAIRN_OK) {
        note_away(s, status, why.text);
        pthread_mutex_lock(&s->lock);
        s->reach.no_path = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
    }
    s->control.is_choosing = true;
    stream_close(s->control.stream, CAIRN_OK, "the data path is opened first");
}

/* The coordinator was asked for the shards' places only. */
static void connect_again(struct session *s)
{
    s->control.is_choosing = false;
    s->control.retry_at_ms = s->reach.no_path ? UINT64_MAX : client_now_ms() + PLACES_RETRY_MS;
    if (s->path.fabric == NULL) return;
    s->control.retry_at_ms = 0;
    s->control.retry_delay_ms = RETRY_MIN_MS;
    if (!s->loop.stopping) control_tick(s);
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
    s->control.welcome_ms = client_now_ms();
    s->control.unheard_reported = 0;
    s->control.heartbeat_ms = welcome->heartbeat_ms >= 10 ? welcome->heartbeat_ms : 10;
    s->control.lease_ms = welcome->lease_ms >= 100 ? welcome->lease_ms : 100;
    fabric_set_patience(s->path.fabric, s->control.lease_ms);
    pthread_mutex_lock(&s->lock);
    s->reach.welcome = true;
    s->reach.away_since_ms = 0;
    s->reach.status = CAIRN_OK;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    turn_run(s);
}

/* An Error that answers no ask: of an attach, or of the whole connection. */
static bool on_error(struct session *s, uint32_t request, const Cairn__Error *error)
{
    const cairn_status status = status_known(error->status) ? (cairn_status)error->status
                                                            : CAIRN_ERR_PROTOCOL;
    struct job *attaching = request != 0 ? job_attaching(s, request) : NULL;
    if (attaching != NULL) {
        attach_differ(attaching, error);
        attach_on_error(attaching, status, sentence_of(error, status));
        return true;
    }
    if (request != 0 && again_on_error(s, request, status, sentence_of(error, status))) return true;
    if (request != 0 && s->control.ready) return false;
    if (error->job != 0) { // the others of this session go on
        struct job *meant = job_of_id(s, error->job);
        if (meant != NULL) job_fail(meant, status, sentence_of(error, status));
        return true;
    }
    note_away(s, status, sentence_of(error, status));
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (status == CAIRN_ERR_FENCED || status == CAIRN_ERR_JOB_LOST)
            job_fail(job, status, sentence_of(error, status));
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
static void read_before(struct session *s, const struct wire_frame *frame,
                        const ProtobufCMessage *message)
{
    const uint64_t number = job_of_message(frame->type, message);
    for (struct job *job = s->jobs; job != NULL; job = job->next) {
        const struct attachment *attachment = &job->attachment;
        if (attachment->reading == NULL) continue;
        if (attachment->reply->job == number || attachment->request == frame->request)
            attach_read(job);
    }
}

static void on_frame(struct stream *stream, const struct wire_frame *frame, void *context)
{
    struct session *s = context;
    s->control.heard_ms = client_now_ms();
    const ProtobufCMessageDescriptor *type = message_type(frame->type);
    ProtobufCMessage *message = type != NULL
                                    ? message_unpack(type, frame->payload, frame->payload_bytes)
                                    : NULL;
    if (message == NULL) {
        if (type != NULL && errno == ENOMEM)
            control_starve(s, message_name(frame->type));
        else
            stream_close(stream, CAIRN_ERR_PROTOCOL, "the coordinator sent a bad %s",
                         message_name(frame->type));
        return;
    }
    read_before(s, frame, message);
    struct job *attaching = job_attaching(s, frame->request);
    if (frame->type == CAIRN_MSG_WELCOME) {
        on_welcome(s, (const Cairn__Welcome *)message);
    } else if (frame->type == CAIRN_MSG_ATTACHED && attaching != NULL) {
        attach_on_attached(attaching, (Cairn__Attached *)message);
        return;
    } else if (frame->type == CAIRN_MSG_PAGE && attaching != NULL) {
        attach_on_page(attaching, (const Cairn__Page *)message);
    } else if (frame->type == CAIRN_MSG_PAGE && job_changing(s) != NULL) {
        layouts_on_page(job_changing(s), (const Cairn__Page *)message);
    } else if (frame->type == CAIRN_MSG_LAYOUT_CHANGED) {
        on_layout_changed(s, (Cairn__LayoutChanged *)message);
        return;
    } else if (frame->type == CAIRN_MSG_ERROR &&
               on_error(s, frame->request, (const Cairn__Error *)message)) {
        // said
    } else if (frame->type != CAIRN_MSG_HEARTBEAT) {
        if (apply_message(s, frame->request, frame->type, message) != CAIRN_OK) {
            control_starve(s, message_name(frame->type));
        } else if (frame->request != 0) {
            answer_ask(s, frame->request, frame->type, message);
            return;
        }
    }
    message_free(message);
}

/* ==== layouts ==== */

/* ---- where shards are ---- */

static cairn_status set_address(struct shard_link *link, const Cairn__ShardInfo *info)
{
    uint8_t *address = malloc(info->fabric_address.len + 1);
    if (address == NULL) return CAIRN_ERR_NO_MEMORY;
    if (info->fabric_address.len > 0)
        memcpy(address, info->fabric_address.data, info->fabric_address.len);
    const bool same = info->fabric_address.len == link->address_bytes && link->address != NULL &&
                      memcmp(address, link->address, link->address_bytes) == 0;
    free(link->address);
    link->address = address;
    link->address_bytes = info->fabric_address.len;
    snprintf(link->name, sizeof link->name, "%s", info->name);
    if (!same) chunk_link_restart(&link->conn);
    return CAIRN_OK;
}

/* Notes the addresses of shards. For a shard that joins, this may be the first message that names
 * it. */
static cairn_status set_addresses(struct job *job, Cairn__ShardInfo *const *infos,
                                  size_t info_count)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; status == CAIRN_OK && i < info_count; i++) {
        if (infos[i]->index >= CAIRN_CLIENT_SHARDS_MAX) return CAIRN_ERR_PROTOCOL;
        status = links_add(job, infos[i]->index + 1);
        if (status == CAIRN_OK) status = set_address(job->shards.links[infos[i]->index], infos[i]);
    }
    return status;
}

static bool is_named(uint32_t shard, Cairn__ShardInfo *const *infos, size_t info_count)
{
    size_t i = 0;
    while (i < info_count && (infos[i]->index != shard || infos[i]->name[0] == '\0')) i++;
    return i < info_count;
}

/* A shard that owns nothing joins, or has left: then it is not named. */
static void note_holes(struct served_layout *served, Cairn__ShardInfo *const *infos,
                       size_t info_count)
{
    for (uint32_t i = 0; i < served->layout->shard_count; i++)
        served->parts[i].absent = served->parts[i].map.extent_count == 0 &&
                                  !is_named(i, infos, info_count);
}

/* Closes the connections to shards that left the job and that nobody needs. A shard that is needed
 * no more, or is away for good, is asked for nothing any more. */
static void let_go_of_holes(struct job *job)
{
    for (uint32_t i = 0; i < job->shards.count; i++) {
        struct shard_link *link = job->shards.links[i];
        if (!served_layouts_left_by(job, i)) continue;
        if (link->address_bytes > 0 && !served_layouts_need(job, i)) {
            link->address_bytes = 0;
            chunk_link_close(&link->conn);
        }
        if (link->address_bytes == 0) recut_gone(link);
    }
}

void layouts_apply(struct job *job)
{
    const uint64_t now_ms = client_now_ms();
    // Not with the next tick: the first words to new shards would wait for that.
    for (uint32_t i = 0; i < job->shards.count; i++) link_tick(job->shards.links[i], now_ms);
    recut_all(job);
    let_go_of_holes(job);
}

/* Gives up on a message that cannot be applied: the job fails. If only memory was lacking, the
 * connection is made anew and the coordinator sends the message again. */
static void give_up(struct job *job, cairn_status status, const char *of, const char *why)
{
    if (status == CAIRN_ERR_NO_MEMORY)
        control_starve(job->session, of);
    else
        job_fail(job, status, why);
}

static void layouts_on_shards(struct job *job, const Cairn__ShardsChanged *message)
{
    cairn_status status = set_addresses(job, message->shards, message->n_shards);
    if (status == CAIRN_OK)
        let_go_of_holes(job);
    else
        give_up(job, status, "ShardsChanged", "the coordinator named a shard out of range");
}

/* ---- layouts ---- */

/* Takes `layout` in any case; *served_out is the job's newest. */
static cairn_status add_served(struct job *job, struct layout *layout, struct cairn_version since,
                               struct served_layout **served_out)
{
    cairn_status status = links_add(job, layout->shard_count);
    if (status == CAIRN_OK) status = served_layout_open(&job->spec, layout, since, served_out);
    if (status != CAIRN_OK)
        layout_close(layout);
    else
        served_layouts_add(job, *served_out);
    return status;
}

static bool is_layout(const struct served_layout *served, const struct layout *layout)
{
    return served != NULL && memcmp(served->layout->hash, layout->hash, sizeof layout->hash) == 0;
}

/* A restore numbers shards anew; while a job goes on a number stays with its shard. */
static bool are_renumbered(const struct job *job, Cairn__ShardInfo *const *infos, size_t info_count)
{
    for (size_t i = 0; i < info_count; i++) {
        if (infos[i]->index >= job->shards.count || infos[i]->name[0] == '\0') continue;
        const struct shard_link *link = job->shards.links[infos[i]->index];
        if (link->name[0] != '\0' && strcmp(link->name, infos[i]->name) != 0) return true;
    }
    return false;
}

/* The layout that is known by that number, or the newest, if it has those owners. NULL: neither. */
static struct served_layout *find_layout(struct job *job, const struct layout *layout)
{
    struct served_layout *served = served_layout_of_number(job, layout->version);
    if (is_layout(served, layout)) return served;
    return is_layout(job->served, layout) ? job->served : NULL;
}

/* The first layout, as the reading thread has made it. Takes it if it can. */
static cairn_status add_first(struct job *job, struct reading *reading,
                              struct served_layout **served_out)
{
    CAIRN_TRY(links_add(job, reading->served->layout->shard_count));
    *served_out = reading->served;
    reading->served = NULL;
    served_layouts_add(job, *served_out);
    return CAIRN_OK;
}

/* Refuses a coordinator that goes by an earlier layout than this worker knows: nobody else would
 * know what this worker has of the later layout. */
static cairn_status judge_known(const struct job *job, const struct served_layout *known,
                                struct sentence *why)
{
    const uint64_t newest = job->served->layout->version, in_force = job->attachment.reply->layout;
    if (known == job->served || in_force == 0 || !layout_goes_back(newest, in_force))
        return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_ROLLED_BACK,
                     "the coordinator goes by layout %" PRIu64 " of job %s, and layout %" PRIu64
                     " was in force: its store is an older copy, or was made of what the shards "
                     "hold (`cairn cluster adopt`); close the job and open it again",
                     in_force, job->name, newest);
}

/* Later one that is known, or a newer one, if what happened in between was no
 * restore. */
static cairn_status apply_attached(struct job *job, struct layout *layout,
                                   struct served_layout **served_out, struct sentence *why)
{
    const Cairn__Attached *a = job->attachment.reply;
    const struct cairn_version now = { a->generation, a->step };
    struct served_layout *known = find_layout(job, layout);
    if (known != NULL) {
        layout_close(layout);
        const cairn_status status = judge_known(job, known, why);
        if (status != CAIRN_OK) return status;
        const struct cairn_version since = since_attached(known->since, now);
        if (version_compare(since, known->since) != 0)
            served_layouts_serve_since(job, known, since);
        *served_out = known;
        return CAIRN_OK;
    }
    if (layout->version > job->served->layout->version &&
        !are_renumbered(job, a->shards, a->n_shards)) {
        const cairn_status status = add_served(job, layout, now, served_out);
        if (status == CAIRN_OK) (*served_out)->found = true;
        return status;
    }
    layout_close(layout);
    sentence_set(why, "job %s was restored onto other shards; close it and open it again",
                 job->name);
    return CAIRN_ERR_ROLLED_BACK;
}

cairn_status layouts_attached(struct job *job, struct reading *reading, struct sentence *why)
{
    const Cairn__Attached *a = job->attachment.reply;
    struct served_layout *served;
    cairn_status status = reading->layout_status;
    if (status == CAIRN_OK && reading->served != NULL) {
        status = add_first(job, reading, &served);
    } else if (status == CAIRN_OK) {
        struct layout *layout = reading->layout;
        reading->layout = NULL;
        status = apply_attached(job, layout, &served, why);
    }
    if (status == CAIRN_OK) status = set_addresses(job, a->shards, a->n_shards);
    if (status != CAIRN_OK) return status;
    note_holes(served, a->shards, a->n_shards);
    return CAIRN_OK;
}

/* ---- a change while the job goes on ---- */

static cairn_status judge_changed(struct job *job, const struct layout *layout,
                                  struct sentence *why)
{
    const Cairn__LayoutChanged *message = job->attachment.changed;
    const struct served_layout *known = served_layout_of_number(job, layout->version);
    const struct served_layout *newest = job->served;
    if (layout->version != message->layout)
        return fail_with(why, CAIRN_ERR_PROTOCOL,
                         "the coordinator announced layout %" PRIu64 " and sent layout %" PRIu64,
                         message->layout, layout->version);
    if (known != NULL && !is_layout(known, layout))
        return fail_with(why, CAIRN_ERR_PROTOCOL,
                         "the coordinator sent another layout %" PRIu64 " than before",
                         layout->version);
    if (known == NULL && layout->version < newest->layout->version)
        return fail_with(why, CAIRN_ERR_PROTOCOL,
                         "the coordinator sent layout %" PRIu64 " after layout %" PRIu64,
                         layout->version, newest->layout->version);
    return CAIRN_OK;
}

/* Takes `layout` in any case. */
static cairn_status apply_changed(struct job *job, struct layout *layout, struct sentence *why)
{
    const Cairn__LayoutChanged *message = job->attachment.changed;
    const struct cairn_version since = { message->since_generation, message->since_step };
    struct served_layout *served = served_layout_of_number(job, layout->version);
    cairn_status status = judge_changed(job, layout, why);
    if (status != CAIRN_OK || served != NULL)
        layout_close(layout);
    else
        status = add_served(job, layout, since, &served);
    if (status == CAIRN_OK) status = set_addresses(job, message->shards, message->n_shards);
    if (status != CAIRN_OK) return status;
    note_holes(served, message->shards, message->n_shards);
    served_layouts_serve_since(job, served, since);
    return CAIRN_OK;
}

/* Grants of rounds that are over: who relayed then may not do so any more. */
static void forget_grants(struct job *job)
{
    for (uint32_t i = 0; i < job->shards.count; i++) {
        struct shard_link *owner = job->shards.links[i];
        if (owner->grant.round > job->pushing.pusher.round) continue;
        owner->grant = (struct chunk_header) { 0 };
        owner->declined = false;
    }
}

static void on_layout_read(struct job *job)
{
    struct sentence why;
    struct layout *layout;
    const struct paged *pages = &job->attachment.changed_pages;
    sentence_set(
        &why, "the coordinator sent a layout %" PRIu64 " of %zu bytes that is not one of this job",
        job->attachment.changed->layout, (size_t)pages->have_bytes);
    cairn_status status = layout_of_pages(&job->spec, pages, &layout);
    if (status == CAIRN_OK) status = apply_changed(job, layout, &why);
    attachment_drop_changed(&job->attachment);
    if (status != CAIRN_OK) {
        give_up(job, status, "LayoutChanged", why.text);
        return;
    }
    forget_grants(job);
    layouts_apply(job);
    session_kick(job->session); // a stalled command may go on
}

/* Applies the message, which is the function's to free. The job fails if the message does not fit
 * it. */
static void layouts_on_changed(struct job *job, Cairn__LayoutChanged *message)
{
    attachment_drop_changed(&job->attachment);
    job->attachment.changed = message;
    if (paged_init(&job->attachment.changed_pages, message->layout_bytes) != CAIRN_OK ||
        message->layout_bytes == 0)
        job_fail(job, CAIRN_ERR_PROTOCOL,
                 "the coordinator announced a layout that is empty, or too large");
}

/* A page of the LayoutChanged before it; of no request. */
static void layouts_on_page(struct job *job, const Cairn__Page *page)
{
    const cairn_status status = page->what == CAIRN_PAGE_LAYOUT
                                    ? paged_add(&job->attachment.changed_pages, page)
                                    : CAIRN_ERR_PROTOCOL;
    if (status != CAIRN_OK)
        give_up(job, status, "LayoutChanged",
                "the coordinator sent the pages of a layout out of order");
    else if (paged_whole(&job->attachment.changed_pages))
        on_layout_read(job);
}

void layouts_trim(struct job *job)
{
    if (!served_layouts_trim(job)) return;
    recut_all(job);
    let_go_of_holes(job);
}
