/* The connection to the coordinator: connect, Hello, Welcome, heartbeats, and again after a loss.
 * Losing it changes nothing in the jobs: they wait, and the coordinator fences when it is back. */
#include <assert.h>
#include <string.h>

#include "server/shard/base/arriving.h"
#include "server/shard/connection.h"
#include "server/shard/device.h"
#include "server/shard/job/held.h"
#include "server/shard/job/members.h"
#include "server/shard/shard.h"
#include "server/shard/state/pin.h"
#include "server/shard/state/report.h"
#include "server/shard/unfit.h"
#include "server/shard/unheard.h"

#define CONNECT_TIMEOUT_MS 5000
#define WELCOME_TIMEOUT_MS 5000
#define BACKOFF_FIRST_MS   100
#define BACKOFF_MAX_MS     2000
#define HEARTBEAT_MIN_MS   10
#define LEASE_MAX_MS       3600000

static const struct cairn_frame_limits limits_before = { .type_min = CAIRN_MSG_WELCOME,
                                                         .type_max = CAIRN_MSG_ERROR,
                                                         .frame_bytes = CAIRN_FRAME_BYTES_MAX };
static const struct cairn_frame_limits limits_after = { .type_min = CAIRN_MSG_WELCOME,
                                                        .type_max = CAIRN_MSG_MAX,
                                                        .frame_bytes = CAIRN_FRAME_BYTES_MAX };

static void on_timer(uv_timer_t *timer);

/* Says Hello with as many of the held jobs as fit behind what else it says; returns how many. */
static size_t say_hello(struct cairn_shard *shard, Cairn__Hello *hello, Cairn__HeldJob **held,
                        size_t count)
{
    const size_t fit = cairn_hello_fit(hello, held, count);
    hello->held = held;
    hello->n_held = fit;
    hello->held_after = (uint32_t)(count - fit);
    cairn_session_send(shard, CAIRN_MSG_HELLO, 0, &hello->base);
    return fit;
}

static void send_hello(struct cairn_shard *shard)
{
    Cairn__HeldJob held[CAIRN_SHARD_JOBS_MAX];
    Cairn__HeldJob *held_list[CAIRN_SHARD_JOBS_MAX];
    const size_t held_count = cairn_held_list(shard, held, false);
    for (size_t i = 0; i < held_count; i++) held_list[i] = &held[i];
    Cairn__Hello hello = CAIRN__HELLO__INIT, more = CAIRN__HELLO__INIT;
    hello.protocol = CAIRN_CONTROL_PROTOCOL;
    hello.role = CAIRN_ROLE_WIRE_SHARD;
    hello.name = shard->name;
    hello.incarnation = shard->incarnation;
    hello.fabric_address.data = (uint8_t *)cairn_fabric_address(shard->fabric,
                                                                &hello.fabric_address.len);
    hello.version = (char *)(uintptr_t)shard->build;
    hello.memory_bytes = shard->memory.budget.limit_bytes;
    hello.without = shard->without;
    Cairn__Home home;
    cairn_device_tell(shard, &home);
    hello.home = &home;
    shard->unfit.is_told = home.failed[0] != '\0';
    if (cairn_held_count(shard) > 0) {
        hello.store = shard->seen.store;
        hello.coordinator_incarnation = shard->seen.incarnation;
        hello.coordinator_process = shard->seen.process;
    }
    size_t said = say_hello(shard, &hello, held_list, held_count);
    more.protocol = hello.protocol;
    more.role = hello.role;
    more.name = hello.name;
    while (said < held_count) said += say_hello(shard, &more, held_list + said, held_count - said);
}

void cairn_connection_beat(struct cairn_shard *shard)
{
    Cairn__Heartbeat heartbeat = CAIRN__HEARTBEAT__INIT;
    char jump[CAIRN_WALL_JUMP_BYTES];
    cairn_wall_watch(&shard->wall, jump);
    shard->stats.state_bytes = 0;
    shard->stats.landing_bytes = 0;
    for (struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next) {
        shard->stats.state_bytes += cairn_memory_sum(&job->memory);
        shard->stats.landing_bytes += job->memory.landing;
    }
    cairn_device_count(shard, &shard->stats);
    heartbeat.stats = &shard->stats;
    heartbeat.storage = shard->storage.said.text;
    struct cairn_bytes_list list;
    cairn_bytes_list(shard, &list);
    heartbeat.bytes = list.pointers;
    heartbeat.n_bytes = list.count;
    struct cairn_memory_list memory;
    cairn_memory_list(shard, &memory);
    heartbeat.memory = memory.pointers;
    heartbeat.n_memory = memory.count;
    struct cairn_pins_list pins;
    cairn_pins_list(shard, &pins);
    heartbeat.pins = pins.pointers;
    heartbeat.n_pins = pins.count;
    struct cairn_unheard unheard;
    cairn_unheard_list(shard, &unheard);
    heartbeat.unheard = unheard.names;
    heartbeat.n_unheard = unheard.count;
    cairn_session_send(shard, CAIRN_MSG_HEARTBEAT, 0, &heartbeat.base);
    cairn_bytes_list_release(&list);
}

/* A coordinator tells at once of the members that it has, and a new one of each as it attaches again:
 * one that it has not told of within two leases left unseen. */
static void call_roll(struct cairn_shard *shard)
{
    struct cairn_session *session = &shard->session;
    if (session->roll_due_ms == 0 || uv_now(shard->loop) < session->roll_due_ms) return;
    session->roll_due_ms = 0;
    for (struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next)
        cairn_members_forget_untold(job);
}

static void on_open(struct cairn_stream *stream, void *context)
{
    (void)stream;
    struct cairn_shard *shard = context;
    shard->session.heard_ms = uv_now(shard->loop);
    send_hello(shard);
    uv_timer_start(&shard->session.timer, on_timer, WELCOME_TIMEOUT_MS, 0);
}

/* Welcome: the session stands. */
static void on_welcome(struct cairn_shard *shard, const Cairn__Welcome *welcome)
{
    struct cairn_session *session = &shard->session;
    if (welcome->heartbeat_ms < HEARTBEAT_MIN_MS || welcome->lease_ms > LEASE_MAX_MS ||
        welcome->lease_ms < welcome->heartbeat_ms) {
        cairn_session_refuse(shard, CAIRN_ERR_PROTOCOL,
                             "Welcome with a heartbeat of %u ms and a lease of %u ms: at least %d, "
                             "and no lease shorter than a heartbeat or over %d",
                             welcome->heartbeat_ms, welcome->lease_ms, HEARTBEAT_MIN_MS,
                             LEASE_MAX_MS);
        return;
    }
    session->welcome = true;
    session->heartbeat_ms = welcome->heartbeat_ms;
    session->lease_ms = welcome->lease_ms;
    cairn_fabric_set_patience(shard->fabric, session->lease_ms);
    session->backoff_ms = BACKOFF_FIRST_MS;
    session->roll_due_ms = uv_now(shard->loop) + 2ull * session->lease_ms;
    session->coordinator = (struct cairn_coordinator_id) { welcome->store,
                                                           welcome->coordinator_incarnation,
                                                           welcome->process };
    cairn_stream_limit(session->stream, limits_after);
    uv_timer_start(&session->timer, on_timer, session->heartbeat_ms, session->heartbeat_ms);
    cairn_log_info("joined cluster %s: coordinator %s, incarnation %llu", welcome->cluster,
                   cairn_stream_peer(session->stream),
                   (unsigned long long)welcome->coordinator_incarnation);
    cairn_held_judge(shard, welcome->cluster);
    cairn_held_keys(shard, welcome->keys);
    cairn_storage_watch_told(&shard->storage, welcome->storage_path, welcome->storage_token);
    cairn_drain_on_welcome(shard);
    if (session->served_before) return;
    session->served_before = true;
    if (shard->events.on_ready != NULL) shard->events.on_ready(shard, shard->events.context);
}

void cairn_connection_fenced(struct cairn_shard *shard, const char *text)
{
    cairn_log_error("this process has lost its place in the cluster: %s", text);
    if (shard->events.on_fenced != NULL && !shard->closing)
        shard->events.on_fenced(shard, shard->events.context);
}

static void on_first_frame(struct cairn_shard *shard, const struct cairn_frame *frame)
{
    ProtobufCMessage *message = cairn_message_unpack(cairn_message_type(frame->type),
                                                     frame->payload, frame->payload_bytes);
    if (message == NULL) {
        cairn_session_refuse(shard, CAIRN_ERR_MALFORMED, "malformed %s",
                             cairn_message_name(frame->type));
        return;
    }
    if (frame->type == CAIRN_MSG_WELCOME) {
        on_welcome(shard, (const Cairn__Welcome *)message);
    } else {
        const Cairn__Error *error = (const Cairn__Error *)message;
        cairn_stream_close(shard->session.stream, CAIRN_ERR_REFUSED, "refused: %s", error->text);
        if (error->status == CAIRN_ERR_FENCED) cairn_connection_fenced(shard, error->text);
    }
    cairn_message_free(message);
}

static void on_frame(struct cairn_stream *stream, const struct cairn_frame *frame, void *context)
{
    (void)stream;
    struct cairn_shard *shard = context;
    shard->session.heard_ms = uv_now(shard->loop);
    if (shard->session.welcome)
        cairn_shard_on_frame(shard, frame);
    else
        on_first_frame(shard, frame);
}

static void on_close(struct cairn_stream *stream, cairn_status status, const char *why,
                     void *context)
{
    (void)stream;
    struct cairn_shard *shard = context;
    struct cairn_session *session = &shard->session;
    session->stream = NULL;
    if (shard->closing) {
        cairn_shard_stream_closed(shard);
        return;
    }
    for (struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next)
        cairn_reports_drop(job);
    const bool news = session->welcome || status == CAIRN_ERR_REFUSED;
    cairn_log_limited(&session->down, news ? CAIRN_LOG_WARN : CAIRN_LOG_INFO,
                      "no coordinator: %s (%s); trying again in %u ms", why,
                      cairn_status_code_name((int)status), session->backoff_ms);
    const bool was_welcome = session->welcome;
    session->welcome = false;
    session->serial++; // what was asked on the lost session is answered to nobody
    cairn_arriving_drop_all(shard);
    for (struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next) {
        job->move.fence.epoch = 0; // what the next Hello says is in force stays so
        cairn_pin_session_ended(job);
    }
    if (was_welcome) cairn_drain_on_lost(shard);
    uv_timer_start(&session->timer, on_timer, session->backoff_ms, 0);
    session->backoff_ms = session->backoff_ms * 2 < BACKOFF_MAX_MS ? session->backoff_ms * 2
                                                                   : BACKOFF_MAX_MS;
}

static const struct cairn_stream_events stream_events = {
    .on_open = on_open,
    .on_frame = on_frame,
    .on_close = on_close,
};

static void connect_now(struct cairn_shard *shard)
{
    struct cairn_session *session = &shard->session;
    const struct cairn_stream_options options = { .limits = limits_before };
    struct cairn_sentence why;
    cairn_status status = cairn_stream_connect(shard->loop, &session->address, CONNECT_TIMEOUT_MS,
                                               &options, &stream_events, shard, &session->stream,
                                               &why);
    if (status == CAIRN_OK) return;
    cairn_log_limited(&session->down, CAIRN_LOG_WARN, "cannot connect to the coordinator: %s",
                      why.text);
    uv_timer_start(&session->timer, on_timer, BACKOFF_MAX_MS, 0);
}

/* Without a connection: time to try. Without Welcome: it took too long. Else: a heartbeat. */
static void on_timer(uv_timer_t *timer)
{
    struct cairn_shard *shard = timer->data;
    struct cairn_session *session = &shard->session;
    if (session->stream == NULL) {
        connect_now(shard);
        return;
    }
    if (!session->welcome) {
        cairn_stream_close(session->stream, CAIRN_ERR_TIMEOUT, "no Welcome within %d ms",
                           WELCOME_TIMEOUT_MS);
        return;
    }
    uint64_t silent_ms = uv_now(shard->loop) - session->heard_ms;
    if (silent_ms > session->lease_ms) {
        cairn_stream_close(session->stream, CAIRN_ERR_TIMEOUT,
                           "nothing heard for %llu ms, the lease is %u ms",
                           (unsigned long long)silent_ms, session->lease_ms);
        return;
    }
    cairn_storage_watch_tick(&shard->storage); // what it finds goes along
    cairn_connection_beat(shard);
    call_roll(shard);
    cairn_unfit_look(shard);
}

cairn_status cairn_connection_open(struct cairn_shard *shard, const char *coordinator,
                                   struct cairn_sentence *why)
{
    struct cairn_session *session = &shard->session;
    cairn_status status = cairn_address_parse(coordinator, &session->address, why);
    if (status != CAIRN_OK) return CAIRN_ERR_CONFIG;
    session->serial = 1;
    session->backoff_ms = BACKOFF_FIRST_MS;
    uv_timer_init(shard->loop, &session->timer);
    session->timer.data = shard;
    uv_timer_start(&session->timer, on_timer, 0, 0);
    return CAIRN_OK;
}

void cairn_connection_close(struct cairn_shard *shard, uv_close_cb on_timer_closed)
{
    struct cairn_session *session = &shard->session;
    assert(shard->closing);
    if (session->stream != NULL) cairn_stream_close(session->stream, CAIRN_OK, "shard stops");
    uv_close((uv_handle_t *)&session->timer, on_timer_closed);
}
