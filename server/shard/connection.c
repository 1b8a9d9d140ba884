/* The connection to the coordinator: this file connects, sends Hello, receives Welcome, sends heartbeats,
 * and does all of this again after the connection was lost. A loss changes nothing in the jobs: they wait,
 * and the coordinator fences when it is back. */
#include <inttypes.h>
#include <assert.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/link/link.h"
#include "server/base/daemon.h"
#include "server/base/log.h"
#include "server/shard/base.h"
#include "server/shard/jobs.h"
#include "server/shard/move.h"
#include "server/shard/relay.h"
#include "server/shard/shard.h"
#include "server/shard/state.h"

#define CONNECT_TIMEOUT_MS 5000
#define WELCOME_TIMEOUT_MS 5000
#define BACKOFF_FIRST_MS   100
#define BACKOFF_MAX_MS     2000
#define HEARTBEAT_MIN_MS   10
#define LEASE_MAX_MS       3600000

static const struct frame_limits limits_before = { .type_min = CAIRN_MSG_WELCOME,
                                                   .type_max = CAIRN_MSG_ERROR,
                                                   .frame_bytes = CAIRN_FRAME_BYTES_MAX };
static const struct frame_limits limits_after = { .type_min = CAIRN_MSG_WELCOME,
                                                  .type_max = CAIRN_MSG_MAX,
                                                  .frame_bytes = CAIRN_FRAME_BYTES_MAX };

#define CAIRN_UNHEARD_MAX 16

struct unheard {
    char *names[CAIRN_UNHEARD_MAX]; /* borrowed, each once */
    size_t count;
};

static void on_timer(uv_timer_t *timer);

static void unheard_list(const struct shard_daemon *shard, struct unheard *list_out);

void device_tell(struct shard_daemon *shard, Cairn__Home *out)
{
    struct home *home = shard->device.home != NULL ? shard->device.home : shard->host.home;
    struct home_info *info = (struct home_info *)(uintptr_t)home_info(home);
    cairn__home__init(out);
    out->backend = wire_text(info->backend);
    out->device = info->device;
    out->driver = info->driver;
    out->total_bytes = info->total_bytes;
    out->taken_bytes = info->taken_bytes;
    out->warning = info->warning;
    out->why = shard->no_device.text;
    const char *way_why;
    out->device_memory = device_goes_directly(shard, &way_why) ? wire_text("device")
                                                               : wire_text("host");
    out->device_memory_why = wire_text(way_why);
    const char *failure = home_failure(home);
    if (failure != NULL) out->failed = wire_text(failure);
}

void shard_device_stats(const struct shard_daemon *shard, Cairn__ShardStats *stats)
{
    if (shard->device.home == NULL) return;
    const struct home_use use = home_use(shard->device.home);
    stats->launches = use.launches;
    stats->in_bytes = use.bytes_in;
    stats->out_bytes = use.bytes_out;
    stats->pinned_bytes = use.pinned_bytes;
    stats->unpinned_bytes = use.unpinned_bytes;
}

/* Sends a Hello with as many of the held jobs as fit after its other fields; returns how many. */
static size_t say_hello(struct shard_daemon *shard, Cairn__Hello *hello, Cairn__HeldJob **held,
                        size_t count)
{
    const size_t fit = hello_fit(hello, held, count);
    hello->held = held;
    hello->n_held = fit;
    hello->held_after = (uint32_t)(count - fit);
    session_send(shard, CAIRN_MSG_HELLO, 0, &hello->base);
    return fit;
}

static void send_hello(struct shard_daemon *shard)
{
    Cairn__HeldJob held[CAIRN_SHARD_JOBS_MAX];
    Cairn__HeldJob *held_list[CAIRN_SHARD_JOBS_MAX];
    const size_t held_count = held_jobs_list(shard, held, false);
    for (size_t i = 0; i < held_count; i++) held_list[i] = &held[i];
    Cairn__Hello hello = CAIRN__HELLO__INIT, more = CAIRN__HELLO__INIT;
    hello.protocol = CAIRN_CONTROL_PROTOCOL;
    hello.role = CAIRN_ROLE_WIRE_SHARD;
    hello.name = shard->name;
    hello.incarnation = shard->incarnation;
    hello.fabric_address.data = (uint8_t *)fabric_own_address(shard->fabric,
                                                              &hello.fabric_address.len);
    hello.version = wire_text(shard->build);
    hello.memory_bytes = shard->memory.budget.limit_bytes;
    hello.without = shard->without;
    Cairn__Home home;
    device_tell(shard, &home);
    hello.home = &home;
    shard->unfit.is_told = home.failed[0] != '\0';
    if (held_jobs_count(shard) > 0) {
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

void connection_beat(struct shard_daemon *shard)
{
    Cairn__Heartbeat heartbeat = CAIRN__HEARTBEAT__INIT;
    char jump[CAIRN_WALL_JUMP_BYTES];
    wall_watch(&shard->wall, jump);
    shard->stats.state_bytes = 0;
    shard->stats.landing_bytes = 0;
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next) {
        shard->stats.state_bytes += memory_sum(&job->memory);
        shard->stats.landing_bytes += job->memory.landing;
    }
    shard_device_stats(shard, &shard->stats);
    heartbeat.stats = &shard->stats;
    heartbeat.storage = shard->storage.said.text;
    struct bytes_list list;
    bytes_list(shard, &list);
    heartbeat.bytes = list.pointers;
    heartbeat.n_bytes = list.count;
    struct memory_list memory;
    memory_list(shard, &memory);
    heartbeat.memory = memory.pointers;
    heartbeat.n_memory = memory.count;
    struct pins_list pins;
    pins_list(shard, &pins);
    heartbeat.pins = pins.pointers;
    heartbeat.n_pins = pins.count;
    struct unheard unheard;
    unheard_list(shard, &unheard);
    heartbeat.unheard = unheard.names;
    heartbeat.n_unheard = unheard.count;
    session_send(shard, CAIRN_MSG_HEARTBEAT, 0, &heartbeat.base);
    free(list.told);
    free(list.pointers);
}

static void members_forget_untold(struct shard_job *job)
{
    size_t i = 0;
    while (i < job->members.capacity) {
        const struct shard_member *member = job->members.list[i];
        if (member == NULL || member->is_mover || member->confirmed == job->shard->session.serial) {
            i++;
            continue;
        }
        members_leave(job, member->number);
        i = 0; // the members behind the removed member moved up
    }
    admit_left(job);
}

/* Removes the members that the coordinator has not named within two leases: they left without this shard
 * hearing of it. A coordinator immediately names the members that it has; a new coordinator names each
 * member when the member attaches again. */
static void call_roll(struct shard_daemon *shard)
{
    struct coordinator_session *session = &shard->session;
    if (session->roll_due_ms == 0 || uv_now(shard->loop) < session->roll_due_ms) return;
    session->roll_due_ms = 0;
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        members_forget_untold(job);
}

static void on_open(struct stream *stream, void *context)
{
    (void)stream;
    struct shard_daemon *shard = context;
    shard->session.heard_ms = uv_now(shard->loop);
    send_hello(shard);
    uv_timer_start(&shard->session.timer, on_timer, WELCOME_TIMEOUT_MS, 0);
}

/* Handles the Welcome: the session is open. */
static void on_welcome(struct shard_daemon *shard, const Cairn__Welcome *welcome)
{
    struct coordinator_session *session = &shard->session;
    if (welcome->heartbeat_ms < HEARTBEAT_MIN_MS || welcome->lease_ms > LEASE_MAX_MS ||
        welcome->lease_ms < welcome->heartbeat_ms) {
        session_refuse(shard, CAIRN_ERR_PROTOCOL,
                       "Welcome with a heartbeat of %u ms and a lease of %u ms: at least %d, and a "
                       "lease no shorter than the heartbeat, at most %d",
                       welcome->heartbeat_ms, welcome->lease_ms, HEARTBEAT_MIN_MS, LEASE_MAX_MS);
        return;
    }
    session->welcome = true;
    session->heartbeat_ms = welcome->heartbeat_ms;
    session->lease_ms = welcome->lease_ms;
    fabric_set_patience(shard->fabric, session->lease_ms);
    session->backoff_ms = BACKOFF_FIRST_MS;
    session->roll_due_ms = uv_now(shard->loop) + 2ull * session->lease_ms;
    session->coordinator = (struct coordinator_id) { welcome->store,
                                                     welcome->coordinator_incarnation,
                                                     welcome->process };
    stream_limit(session->stream, limits_after);
    uv_timer_start(&session->timer, on_timer, session->heartbeat_ms, session->heartbeat_ms);
    log_info("joined cluster %s: coordinator %s, incarnation %" PRIu64, welcome->cluster,
             stream_peer(session->stream), welcome->coordinator_incarnation);
    held_judge(shard, welcome->cluster);
    held_keys(shard, welcome->keys);
    storage_watch_told(&shard->storage, welcome->storage_path, welcome->storage_token);
    drain_on_welcome(shard);
    if (session->served_before) return;
    session->served_before = true;
    if (shard->events.on_ready != NULL) shard->events.on_ready(shard, shard->events.context);
}

static void on_first_frame(struct shard_daemon *shard, const struct wire_frame *frame)
{
    ProtobufCMessage *message = message_unpack(message_type(frame->type), frame->payload,
                                               frame->payload_bytes);
    if (message == NULL) {
        session_refuse(shard, CAIRN_ERR_MALFORMED, "malformed %s", message_name(frame->type));
        return;
    }
    if (frame->type == CAIRN_MSG_WELCOME) {
        on_welcome(shard, (const Cairn__Welcome *)message);
    } else {
        const Cairn__Error *error = (const Cairn__Error *)message;
        stream_close(shard->session.stream, CAIRN_ERR_REFUSED, "refused: %s", error->text);
        if (error->status == CAIRN_ERR_FENCED) session_fenced(shard, error->text);
    }
    message_free(message);
}

static void on_frame(struct stream *stream, const struct wire_frame *frame, void *context)
{
    (void)stream;
    struct shard_daemon *shard = context;
    shard->session.heard_ms = uv_now(shard->loop);
    if (shard->session.welcome)
        shard_on_frame(shard, frame);
    else
        on_first_frame(shard, frame);
}

static void on_close(struct stream *stream, cairn_status status, const char *why, void *context)
{
    (void)stream;
    struct shard_daemon *shard = context;
    struct coordinator_session *session = &shard->session;
    session->stream = NULL;
    if (shard->closing) {
        shard->up->stream_closed(shard);
        return;
    }
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next) reports_drop(job);
    const bool news = session->welcome || status == CAIRN_ERR_REFUSED;
    log_limited(&session->down, news ? CAIRN_LOG_WARN : CAIRN_LOG_INFO,
                "no coordinator: %s (%s); trying again in %u ms", why,
                status_code_name((int)status), session->backoff_ms);
    const bool was_welcome = session->welcome;
    session->welcome = false;
    session->serial++; // requests of the lost session get no answer
    arriving_drop_all(shard);
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next) {
        job->move.fence.epoch = 0; // the layout that the next Hello reports stays in force
        pin_session_ended(job);
    }
    if (was_welcome) drain_on_lost(shard);
    uv_timer_start(&session->timer, on_timer, session->backoff_ms, 0);
    session->backoff_ms = session->backoff_ms * 2 < BACKOFF_MAX_MS ? session->backoff_ms * 2
                                                                   : BACKOFF_MAX_MS;
}

static const struct stream_events stream_events = {
    .on_open = on_open,
    .on_frame = on_frame,
    .on_close = on_close,
};

static void connect_now(struct shard_daemon *shard)
{
    struct coordinator_session *session = &shard->session;
    const struct stream_options options = { .limits = limits_before };
    struct sentence why;
    cairn_status status = stream_connect(shard->loop, &session->address, CONNECT_TIMEOUT_MS,
                                         &options, &stream_events, shard, &session->stream, &why);
    if (status == CAIRN_OK) return;
    log_limited(&session->down, CAIRN_LOG_WARN, "cannot connect to the coordinator: %s", why.text);
    uv_timer_start(&session->timer, on_timer, BACKOFF_MAX_MS, 0);
}

/* Connects if there is no connection. Closes a connection that got no Welcome in time, or heard nothing for
 * a lease. Else sends a heartbeat. */
static void on_timer(uv_timer_t *timer)
{
    struct shard_daemon *shard = timer->data;
    struct coordinator_session *session = &shard->session;
    if (session->stream == NULL) {
        connect_now(shard);
        return;
    }
    if (!session->welcome) {
        stream_close(session->stream, CAIRN_ERR_TIMEOUT, "no Welcome within %d ms",
                     WELCOME_TIMEOUT_MS);
        return;
    }
    uint64_t silent_ms = uv_now(shard->loop) - session->heard_ms;
    if (silent_ms > session->lease_ms) {
        stream_close(session->stream, CAIRN_ERR_TIMEOUT,
                     "nothing heard for %" PRIu64 " ms, the lease is %u ms", silent_ms,
                     session->lease_ms);
        return;
    }
    storage_watch_tick(&shard->storage); // the heartbeat reports what it finds
    connection_beat(shard);
    call_roll(shard);
    unfit_look(shard);
}

cairn_status connection_open(struct shard_daemon *shard, const char *coordinator,
                             struct sentence *why)
{
    struct coordinator_session *session = &shard->session;
    cairn_status status = address_parse(coordinator, &session->address, why);
    if (status != CAIRN_OK) return CAIRN_ERR_CONFIG;
    session->serial = 1;
    session->backoff_ms = BACKOFF_FIRST_MS;
    uv_timer_init(shard->loop, &session->timer);
    session->timer.data = shard;
    uv_timer_start(&session->timer, on_timer, 0, 0);
    return CAIRN_OK;
}

void connection_close(struct shard_daemon *shard, uv_close_cb on_timer_closed)
{
    struct coordinator_session *session = &shard->session;
    assert(shard->closing);
    if (session->stream != NULL) stream_close(session->stream, CAIRN_OK, "shard stops");
    uv_close((uv_handle_t *)&session->timer, on_timer_closed);
}

/* ==== addresses ==== */

#define LOOK_MS 500
#define SAY_MS  60000

/* True if this host has the device: a name like "mlx5_0:1" is a card, any other a device of the kernel. */
static bool is_device(const char *name)
{
    char path[CAIRN_PLACE_DEVICES_BYTES + 64];
    const size_t length = strcspn(name, ":");
    if (name[length] != ':') return if_nametoindex(name) != 0;
    snprintf(path, sizeof path, "/sys/class/infiniband/%.*s", (int)length, name);
    return access(path, F_OK) == 0;
}

bool addresses_find_absent(const char *devices, char out[CAIRN_PLACE_DEVICES_BYTES])
{
    for (const char *at = devices; *at != '\0';) {
        const size_t length = strcspn(at, ",;");
        snprintf(out, CAIRN_PLACE_DEVICES_BYTES, "%.*s", (int)length, at);
        if (!is_device(out)) return true;
        at += length + (at[length] != '\0');
    }
    return false;
}

/* True if UCX's tcp can use the device: it has an IP and is up, and its cable's other end is up, too. */
static bool is_usable(const struct ifaddrs *one, const char *device, size_t length)
{
    const unsigned up = IFF_UP | IFF_RUNNING;
    char ip[INET6_ADDRSTRLEN];
    return strcspn(one->ifa_name, ":") == length && strncmp(one->ifa_name, device, length) == 0 &&
           (one->ifa_flags & up) == up && ip_print(one->ifa_addr, ip);
}

/* True if one device of the network is usable; a card ("mlx5_0:1") is opened even without an IP. */
static bool is_there(const char *network, const struct ifaddrs *all)
{
    if (strchr(network, ':') != NULL) return true;
    for (const char *at = network; *at != '\0';) {
        const size_t length = strcspn(at, ",");
        for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next)
            if (is_usable(one, at, length)) return true;
        at += length + (at[length] == ',');
    }
    return false;
}

/* Finds the devices of the first network that lacks an address, and writes them with ',' between them.
 * Returns false if no network lacks an address. */
static bool find_lacking(const char *devices, char out[CAIRN_PLACE_DEVICES_BYTES])
{
    struct ifaddrs *all;
    bool lacks = false;
    if (getifaddrs(&all) != 0) return false;
    for (const char *at = devices; *at != '\0' && !lacks;) {
        const size_t length = strcspn(at, ";");
        snprintf(out, CAIRN_PLACE_DEVICES_BYTES, "%.*s", (int)length, at);
        at += length + (at[length] == ';');
        lacks = length > 0 && !is_there(out, all);
    }
    freeifaddrs(all);
    return lacks;
}

static void say(struct addresses *addresses, const char *device, bool is_absent)
{
    char status[CAIRN_PLACE_DEVICES_BYTES + 64];
    const uint64_t now_ms = uv_now(addresses->timer.loop);
    if (addresses->said_ms != 0 && addresses->said_absent == is_absent &&
        now_ms - addresses->said_ms < SAY_MS)
        return;
    addresses->said_ms = now_ms + 1; // 0 means that nothing was said yet
    addresses->said_absent = is_absent;
    snprintf(status, sizeof status, "waits for device %s: %s", device,
             is_absent ? "it is not there" : "no address, or not up");
    notify_status(status);
    if (is_absent)
        log_warn("this host has no device %s: this shard waits for it; `ip link` and "
                 "/sys/class/infiniband list those it has, and fabric.device names it",
                 device);
    else
        log_warn("device %s has no address yet, or is not up: this shard waits for that; "
                 "`ip -br addr` shows what it has, and fabric.device names it",
                 device);
}

static void look_addresses(uv_timer_t *timer)
{
    struct addresses *addresses = timer->data;
    char lacking[CAIRN_PLACE_DEVICES_BYTES];
    const bool is_absent = addresses_find_absent(addresses->devices, lacking);
    if (is_absent || find_lacking(addresses->devices, lacking)) {
        say(addresses, lacking, is_absent);
        uv_timer_start(timer, look_addresses, LOOK_MS, 0);
        return;
    }
    addresses_close(addresses);
    addresses->on_there(addresses->context);
}

void addresses_await(struct addresses *addresses, uv_loop_t *loop, const char *devices,
                     void (*on_there)(void *context), void *context)
{
    addresses->devices = devices;
    addresses->said_ms = 0;
    addresses->on_there = on_there;
    addresses->context = context;
    uv_timer_init(loop, &addresses->timer);
    addresses->timer.data = addresses;
    look_addresses(&addresses->timer);
}

void addresses_close(struct addresses *addresses)
{
    uv_handle_t *handle = (uv_handle_t *)&addresses->timer;
    if (handle->loop != NULL && !uv_is_closing(handle)) uv_close(handle, NULL);
}

/* ==== unheard ==== */

/* Shards that are silent on the data path although this shard waits for them: shards that give state to
 * this shard (move.h), and shards to which it relays or from which it reads (relay.h). This shard's
 * heartbeats name them, as a worker's heartbeats do. Loop thread. */

/* Adds the shard at the other end of the link if it has been silent for long. A shard on this host is not
 * added: the end of its process is noticed anyway, and there is no network to it that could fail. */
static void look_unheard(struct unheard *list, const struct shard_daemon *shard,
                         const struct chunk_link *link, char *name)
{
    size_t i = 0;
    if (chunk_link_silent_ms(link, uv_now(shard->loop)) < shard->unheard_ms ||
        chunk_link_shares(link))
        return;
    while (i < list->count && strcmp(list->names[i], name) != 0) i++;
    if (i == list->count && i < CAIRN_UNHEARD_MAX) list->names[list->count++] = name;
}

/* Returns the link to the i-th sender, and the sender's name (borrowed). Returns NULL if there is no such
 * sender, or if nothing is asked of the senders. */
static const struct chunk_link *receiver_link(struct receiver *receiver, uint32_t i,
                                              char **name_out)
{
    if (!receiver->is_begun || receiver->is_leaving || i >= receiver->sender_count) return NULL;
    *name_out = receiver->senders[i].name;
    return &receiver->senders[i].link;
}

static void look_at_senders(struct unheard *list, const struct shard_daemon *shard,
                            struct receiver *receiver)
{
    const struct chunk_link *link;
    char *name;
    for (uint32_t i = 0; (link = receiver_link(receiver, i, &name)) != NULL; i++)
        look_unheard(list, shard, link, name);
}

static void unheard_list(const struct shard_daemon *shard, struct unheard *list_out)
{
    list_out->count = 0;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next) {
        struct relay *relay = job_relay(job);
        if (job->move.now != NULL && job->move.now->receiver != NULL)
            look_at_senders(list_out, shard, job->move.now->receiver);
        for (uint32_t i = 0; relay != NULL && i < relay->owner_count; i++)
            look_unheard(list_out, shard, &relay->owners[i].link, relay->owners[i].name);
    }
}
