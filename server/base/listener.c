#include "server/base/listener.h"

#include <inttypes.h>
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/base/durable.h"
#include "proto/loop/loop.h"
#include "proto/wire/wire.h"
#include "server/base/log.h"

/* A listener has an endpoint for each address, and a peer for each connection. */

/* One accepted connection. Until its end the peer is in exactly one of the listener's two lists. */
struct peer {
    /* owned; the peer and its stream end together */
    struct stream *stream;
    TAILQ_ENTRY(peer) link; /* in half_open or admitted */
    uint64_t since_ms;      /* when the connection was accepted, by the loop's clock */
    bool is_half_open;      /* the peer is in the list half_open; otherwise in admitted */
    bool is_stranger;       /* half open, over TCP, and has not proved that it knows a secret */
    bool has_grace;         /* keeps its place for a time, even if others need it */
    bool has_message;       /* its first message is there, and is about to be judged */
    struct source *source;  /* of its address, borrowed from the listener; NULL: a Unix socket */
    bool was_heard;         /* on_frame was called, so on_gone must be called at the end */
    struct identity identity;
    /* borrowed */
    struct listener *listener;
    void *context;
};

TAILQ_HEAD(peers, peer);

/* An IPv4 address, or the first 64 bits of an IPv6 one, and whatever others share its place by a secret
 * hash. */
struct source {
    size_t strangers;   /* its half-open peers that have proved nothing */
    uint64_t window_ms; /* when the present time of GRACE_MS began, */
    size_t patient;     /* and how many strangers have come since then that have time */
};

#define SOURCES 1024 // places for addresses, so few meet

struct sources {
    struct source list[SOURCES]; /* by the hash of an address */
    uint8_t key[crypto_shorthash_KEYBYTES];
};

/* One for each kind of warning. */
struct warning_limits {
    struct log_limit garbage, refused, silent, flood, full, accept, room;
};

struct endpoint {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } io;
    bool is_open;          /* libuv has initialized `io`, which must be closed */
    bool is_made;          /* this endpoint made the socket at the path */
    bool connection_waits; /* libuv holds a connection that is not accepted yet */
    char address[CAIRN_ADDRESS_TEXT_BYTES];
    struct control_socket made; /* valid if is_made; `io` uses its fd */
    struct listener *listener;  /* borrowed */
};

struct listener {
    struct endpoint endpoints[CAIRN_LISTEN_MAX]; /* [endpoint_count] */
    size_t endpoint_count;
    uv_timer_t timer; /* runs only while there are half-open peers */
    /* the number of handles (endpoints and the timer) that are not completely closed */
    int open_handles;
    bool is_closing;
    char address[CAIRN_LISTEN_MAX * CAIRN_ADDRESS_TEXT_BYTES];

    struct peers half_open, admitted; /* owned; in order of arrival */
    size_t half_open_count;
    size_t peer_count; /* the number of peers in both lists */

    size_t connections_max;
    size_t half_open_max;
    uint64_t hello_timeout_ms;
    size_t send_queue_bytes;
    mode_t socket_mode;
    struct stream_room room; /* for the receive buffers of all peers */
    struct handshake_answered answered;
    struct sources sources;
    struct frame_limits before_hello;
    struct frame_limits after_hello;

    struct warning_limits limits;

    /* borrowed */
    struct listener_events events;
    void (*on_closed)(void *context);
    void *context;
};

#define GROUPS_MAX       64   // of a process that connects, without asking for memory
#define GRACE_MS         100  // the least time for which a half-open peer keeps its place,
#define PROVED_MS        1000 // and one that has proved over TCP that it knows a secret
#define KEPT             32 // of connections_max, the places that are kept for admins of this host
#define UNFINISHED_BYTES (256u << 20)

static cairn_status peer_accept(struct endpoint *endpoint, struct sentence *why);
static void endpoint_close(struct endpoint *endpoint, uv_close_cb on_closed);
static void peer_close_all(struct listener *listener);
static cairn_status endpoint_judge(const char *text, struct sentence *why);
static cairn_status endpoint_open(struct endpoint *endpoint, const char *text,
                                  struct sentence *why);
static cairn_status control_socket_folder(const char *path, struct sentence *why);
static void peer_close_unfinished(struct listener *listener);
static void control_socket_unlink(const char *path, const struct control_socket *socket);

static uint64_t now_ms(const struct listener *listener)
{
    return uv_now(listener->timer.loop);
}

static void watch_half_open(struct listener *listener);
static void accept_waiting(struct listener *listener);

// Half-open peers are listed in order of arrival, so the first peer in the list is due first.
static void on_half_open_due(uv_timer_t *timer)
{
    struct listener *listener = timer->data;
    const struct peer *oldest = TAILQ_FIRST(&listener->half_open);
    if (oldest != NULL && now_ms(listener) >= oldest->since_ms + listener->hello_timeout_ms)
        peer_close(TAILQ_FIRST(&listener->half_open), CAIRN_ERR_TIMEOUT,
                   "no Hello within %" PRIu64 " ms", listener->hello_timeout_ms);
    accept_waiting(listener);
    watch_half_open(listener);
}

static bool connection_waits(const struct listener *listener)
{
    for (size_t i = 0; i < listener->endpoint_count; i++)
        if (listener->endpoints[i].connection_waits) return true;
    return false;
}

// Returns when the peer may be closed, if another one needs its place.
static uint64_t grace_end_ms(const struct peer *peer)
{
    const bool is_proved = peer->source != NULL && !peer->is_stranger;
    if (!peer->has_grace && !is_proved) return 0;
    return peer->since_ms + (is_proved ? PROVED_MS : GRACE_MS);
}

// Sets the timer to the moment when the oldest half-open peer must be closed; if a connection waits for a
// place, to the moment when the first peer may be closed; if it waits for memory, to a moment later.
static void watch_half_open(struct listener *listener)
{
    const struct peer *peer = TAILQ_FIRST(&listener->half_open);
    const uint64_t now = now_ms(listener);
    if (listener->is_closing) return;
    if (connection_waits(listener) && listener->half_open_count < listener->half_open_max) {
        uv_timer_start(&listener->timer, on_half_open_due, GRACE_MS, 0);
        return;
    }
    if (peer == NULL) {
        uv_timer_stop(&listener->timer);
        return;
    }
    uint64_t due_ms = peer->since_ms + listener->hello_timeout_ms;
    if (connection_waits(listener)) {
        TAILQ_FOREACH (peer, &listener->half_open, link)
            if (grace_end_ms(peer) < due_ms) due_ms = grace_end_ms(peer);
        if (due_ms <= now) due_ms = now + 1; // it waits for what is read in this turn
    }
    uv_timer_start(&listener->timer, on_half_open_due, due_ms > now ? due_ms - now : 0, 0);
}

static void leave_strangers(struct peer *peer)
{
    if (!peer->is_stranger) return;
    peer->is_stranger = false;
    peer->source->strangers--;
}

// Finds out who has proved itself. Returns false if nobody is a stranger.
static bool has_strangers(struct listener *listener)
{
    struct peer *peer;
    bool are_there = false;
    TAILQ_FOREACH (peer, &listener->half_open, link) {
        if (stream_is_proved(peer->stream)) leave_strangers(peer);
        are_there |= peer->is_stranger;
    }
    return are_there;
}

// The first message comes with the connection, mostly. It is judged in this turn of the loop.
static bool has_first_message(const struct peer *peer)
{
    uint8_t first[CAIRN_HANDSHAKE_FIRST_BYTES];
    return recv(stream_descriptor(peer->stream), first, sizeof first, MSG_PEEK | MSG_DONTWAIT) ==
           sizeof first;
}

// A stranger may have to make a place when its time is over, unless its first message is there.
static bool may_go(const struct peer *peer, uint64_t now)
{
    return peer->is_stranger && !peer->has_message && now >= grace_end_ms(peer);
}

// Returns the address with most strangers among those with a stranger that may go; NULL: there is none.
static const struct source *find_top_source(const struct listener *listener, uint64_t now)
{
    const struct source *top = NULL;
    const struct peer *peer;
    TAILQ_FOREACH (peer, &listener->half_open, link)
        if (may_go(peer, now) && (top == NULL || peer->source->strangers > top->strangers))
            top = peer->source;
    return top;
}

// A stranger whose grace is over is the less likely to go the longer it has waited. So in a flood from its
// own address a member whose first message comes late, whenever that is, has a chance each time it comes
// again; if the oldest went, a message that is later than the flood fills all places would never come in
// time.
#define LATE_WEIGHT ((uint64_t)1 << 32)

static uint64_t late_weight(const struct peer *peer, uint64_t now)
{
    return LATE_WEIGHT / (now - peer->since_ms + 1) + 1;
}

// Returns a stranger of the address whose grace is over, by chance; there must be one.
static struct peer *draw_late(const struct listener *listener, const struct source *source,
                              uint64_t now, uint64_t weights)
{
    struct peer *peer, *last = NULL;
    uint64_t random;
    assert(weights > 0);
    randombytes_buf(&random, sizeof random);
    random %= weights;
    TAILQ_FOREACH (peer, &listener->half_open, link) {
        if (peer->source != source || !peer->has_grace || !may_go(peer, now)) continue;
        last = peer;
        if (random < late_weight(peer, now)) break;
        random -= late_weight(peer, now);
    }
    return last;
}

// Returns which stranger of the address makes a place: the oldest that had no grace, unless those whose
// grace is over have more than a quarter of all places.
static struct peer *choose_stranger(const struct listener *listener, const struct source *source,
                                    uint64_t now)
{
    struct peer *peer, *oldest = NULL;
    uint64_t weights = 0;
    size_t late = 0;
    TAILQ_FOREACH (peer, &listener->half_open, link) {
        if (peer->source != source || !may_go(peer, now)) continue;
        if (peer->has_grace) {
            late++;
            weights += late_weight(peer, now);
        } else if (oldest == NULL) {
            oldest = peer;
        }
    }
    if (oldest != NULL && late <= listener->half_open_max / 4) return oldest;
    return draw_late(listener, source, now, weights);
}

static struct peer *find_oldest(const struct listener *listener, uint64_t now)
{
    struct peer *peer;
    TAILQ_FOREACH (peer, &listener->half_open, link)
        if (now >= grace_end_ms(peer)) return peer;
    return NULL;
}

// Returns who has to make a place: while there are strangers, one of the address that has most of them;
// else the oldest peer. NULL: each has some time left.
static struct peer *choose_who_goes(struct listener *listener)
{
    const uint64_t now = now_ms(listener);
    if (!has_strangers(listener)) return find_oldest(listener, now);
    for (;;) {
        const struct source *source = find_top_source(listener, now);
        struct peer *peer = source != NULL ? choose_stranger(listener, source, now) : NULL;
        if (peer == NULL || !has_first_message(peer)) return peer;
        peer->has_message = true;
    }
}

// Makes a place for a new half-open peer. Returns false if that is not possible yet; then the timer tries
// again.
static bool make_place(struct listener *listener)
{
    if (listener->half_open_count < listener->half_open_max) return true;
    struct peer *peer = choose_who_goes(listener);
    if (peer == NULL) return false;
    log_limited(&listener->limits.flood, CAIRN_LOG_WARN,
                "%zu connections have not said Hello: closing one that %s, %s",
                listener->half_open_count,
                peer->is_stranger ? "has not shown a token, of the address with most of them"
                                  : "is the oldest",
                peer_name(peer));
    peer_close(peer, CAIRN_ERR_BUSY, "too many connections have not said Hello");
    return true;
}

// For each endpoint libuv holds at most one connection, and does not look for another one before the
// listener takes the first. So while all half-open places are taken, new connections wait in the kernel.
static void accept_at(struct listener *listener, struct endpoint *endpoint)
{
    if (!endpoint->connection_waits || listener->is_closing || !make_place(listener)) return;
    struct sentence why;
    const cairn_status status = peer_accept(endpoint, &why);
    // the connection was not taken, and is tried again later
    endpoint->connection_waits = status == CAIRN_ERR_NO_MEMORY;
    if (status != CAIRN_OK) log_limited(&listener->limits.accept, CAIRN_LOG_WARN, "%s", why.text);
}

static void accept_waiting(struct listener *listener)
{
    for (size_t i = 0; i < listener->endpoint_count; i++)
        accept_at(listener, &listener->endpoints[i]);
}

static void listener_on_connection(uv_stream_t *server, int error)
{
    struct endpoint *endpoint = server->data;
    if (error != 0) {
        log_limited(&endpoint->listener->limits.accept, CAIRN_LOG_WARN,
                    "cannot accept a connection: %s", uv_strerror(error));
        return;
    }
    endpoint->connection_waits = true;
    accept_at(endpoint->listener, endpoint);
    watch_half_open(endpoint->listener);
}

/* Called when a peer has left the half-open list, because a waiting connection may be accepted now. */
static void listener_place_freed(struct listener *listener)
{
    accept_waiting(listener);
    watch_half_open(listener);
}

static void free_when_empty(struct listener *listener)
{
    if (listener->open_handles > 0 || listener->peer_count > 0) return;
    void (*on_closed)(void *) = listener->on_closed;
    void *context = listener->context;
    free(listener);
    if (on_closed != NULL) on_closed(context);
}

static void handle_closed(struct listener *listener)
{
    listener->open_handles--;
    free_when_empty(listener);
}

static void on_timer_closed(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

static void on_endpoint_closed(uv_handle_t *handle)
{
    const struct endpoint *endpoint = handle->data;
    handle_closed(endpoint->listener);
}

static void close_handles(struct listener *listener)
{
    listener->is_closing = true;
    for (size_t i = 0; i < listener->endpoint_count; i++)
        if (listener->endpoints[i].is_open)
            endpoint_close(&listener->endpoints[i], on_endpoint_closed);
    uv_close((uv_handle_t *)&listener->timer, on_timer_closed);
}

void listener_close(struct listener *listener, void (*on_closed)(void *context))
{
    if (listener->is_closing) return;
    listener->on_closed = on_closed;
    close_handles(listener);
    peer_close_all(listener);
}

// Copies the next address of the list at *at, in which blanks separate the addresses. Returns false if
// there is none.
static bool next_address(const char **at, char one_out[CAIRN_ADDRESS_TEXT_BYTES])
{
    *at += strspn(*at, " ");
    const size_t length = strcspn(*at, " ");
    snprintf(one_out, CAIRN_ADDRESS_TEXT_BYTES, "%.*s", (int)length, *at);
    *at += length;
    return length > 0;
}

/* Reads the mode of Unix sockets. The daemon's own user always has it, and nobody executes it. */
static cairn_status read_mode(const char *text, mode_t *mode_out, struct sentence *why)
{
    char *end = NULL;
    *mode_out = CAIRN_SOCKET_MODE;
    if (text == NULL || text[0] == '\0') return CAIRN_OK;
    const unsigned long mode = strtoul(text, &end, 8);
    *mode_out = (mode_t)mode;
    if (*end == '\0' && (mode & ~0666ul) == 0 && (mode & 0600) == 0600) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_CONFIG, "socket.mode is \"%.20s\": give 0600, 0660 or 0666",
                     text);
}

cairn_status listener_judge(const struct listener_options *options, struct sentence *why)
{
    char one[CAIRN_ADDRESS_TEXT_BYTES];
    size_t count = 0;
    mode_t mode;
    CAIRN_TRY(read_mode(options->socket_mode, &mode, why));
    for (const char *at = options->listen; next_address(&at, one);) {
        if (++count > CAIRN_LISTEN_MAX)
            return fail_with(why, CAIRN_ERR_CONFIG,
                             "listen in [network] has more than %d addresses", CAIRN_LISTEN_MAX);
        CAIRN_TRY(endpoint_judge(one, why));
    }
    return CAIRN_OK;
}

static cairn_status open_endpoints(struct listener *listener, const char *text,
                                   struct sentence *why)
{
    char one[CAIRN_ADDRESS_TEXT_BYTES];
    while (next_address(&text, one)) {
        struct endpoint *endpoint = &listener->endpoints[listener->endpoint_count++];
        endpoint->listener = listener;
        const cairn_status status = endpoint_open(endpoint, one, why);
        listener->open_handles += endpoint->is_open;
        if (status != CAIRN_OK) return status;
        const size_t length = strlen(listener->address);
        snprintf(listener->address + length, sizeof listener->address - length, "%s%s",
                 length > 0 ? " " : "", endpoint->address);
    }
    return CAIRN_OK;
}

static cairn_status open_all(struct listener *listener, const struct listener_options *options,
                             struct sentence *why)
{
    char place[CAIRN_ADDRESS_TEXT_BYTES];
    CAIRN_TRY(listener_judge(options, why));
    if (options->listen[strspn(options->listen, " ")] != '\0')
        return open_endpoints(listener, options->listen, why);
    address_default(getenv("XDG_RUNTIME_DIR"), place);
    cairn_status status = control_socket_folder(place, why);
    return status == CAIRN_OK ? open_endpoints(listener, place, why) : status;
}

static void on_room_full(void *context)
{
    peer_close_unfinished(context);
}

static void take_options(struct listener *listener, const struct listener_options *options,
                         uint16_t hello_type, uint16_t type_max)
{
    listener->connections_max = (size_t)options->connections_max;
    listener->half_open_max = (size_t)options->half_open_max;
    listener->hello_timeout_ms = (uint64_t)options->hello_timeout_ms;
    listener->send_queue_bytes = (size_t)options->send_queue_bytes;
    if (read_mode(options->socket_mode, &listener->socket_mode, NULL) != CAIRN_OK)
        listener->socket_mode = CAIRN_SOCKET_MODE; // listener_judge refuses that
    listener->room = (struct stream_room) { .max_bytes = UNFINISHED_BYTES,
                                            .on_full = on_room_full,
                                            .context = listener };
    listener->before_hello = (struct frame_limits) { hello_type, hello_type,
                                                     CAIRN_FRAME_HELLO_BYTES };
    listener->after_hello = (struct frame_limits) { 1, type_max, CAIRN_FRAME_BYTES_MAX };
}

cairn_status listener_open(uv_loop_t *loop, const struct listener_options *options,
                           uint16_t hello_type, uint16_t type_max,
                           const struct listener_events *events, void *context,
                           struct listener **listener_out, struct sentence *why)
{
    struct listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a listener");
    TAILQ_INIT(&listener->half_open);
    TAILQ_INIT(&listener->admitted);
    take_options(listener, options, hello_type, type_max);
    listener->events = *events;
    listener->context = context;
    uv_timer_init(loop, &listener->timer);
    listener->timer.data = listener;
    crypto_shorthash_keygen(listener->sources.key);
    listener->open_handles = 1;
    const cairn_status status = open_all(listener, options, why);
    if (status != CAIRN_OK) {
        close_handles(listener); // the loop frees the listener later
        return status;
    }
    *listener_out = listener;
    return CAIRN_OK;
}

const char *listener_address(const struct listener *listener)
{
    return listener->address;
}

/* ==== endpoint ==== */

/* One address of a listener. */

#define BACKLOG 1024

/* An address that was resolved, and on which the daemon may listen. */
struct place {
    struct stream_address address;
    struct sockaddr_storage addr;
    bool is_loopback;
};

/* True for an IP address, and for the name that means loopback on every host. */
static bool is_plain(const char *host)
{
    struct in6_addr number;
    return inet_pton(AF_INET, host, &number) == 1 || inet_pton(AF_INET6, host, &number) == 1 ||
           strcmp(host, "localhost") == 0;
}

/* Refuses a name that resolves to loopback, because an operator who names this host means an address that
 * other hosts reach. */
static cairn_status judge_name(const struct place *place, struct sentence *why)
{
    char found[CAIRN_ADDRESS_TEXT_BYTES];
    const struct stream_address *address = &place->address;
    if (address->is_unix || !place->is_loopback || is_plain(address->host)) return CAIRN_OK;
    address_print_socket(&place->addr, found);
    *strrchr(found, ':') = '\0';
    return fail_with(why, CAIRN_ERR_CONFIG,
                     "the name %s leads to %s here, which no other host reaches (look at "
                     "/etc/hosts): listen on the address that the others know, on *:%u for every "
                     "one of this host, or on localhost:%u if no other host is to come",
                     address->host, found, address->port, address->port);
}

static cairn_status find_place(const char *text, struct place *place, struct sentence *why)
{
    struct socket_addresses addresses;
    CAIRN_TRY(address_parse_listen(text, &place->address, why));
    const cairn_status status = address_resolve(&place->address, &addresses, why);
    if (status != CAIRN_OK) return CAIRN_ERR_CONFIG;
    place->addr = *address_to_listen(&addresses);
    place->is_loopback = place->address.is_unix || address_is_loopback(&place->addr);
    return judge_name(place, why);
}

/* Judges, as endpoint_open does, whether the daemon may listen on the address. */
static cairn_status endpoint_judge(const char *text, struct sentence *why)
{
    struct place place;
    return find_place(text, &place, why);
}

static void say_who_may_come(const struct place *place, const char *text)
{
    if (place->address.is_unix) return;
    log_info("%s is for peers %s that have a token of this cluster", text,
             place->is_loopback ? "of this host" : "of all hosts that reach it");
}

/* Binds an address that no device of this host has, because at boot a device may get the address a moment
 * later (DHCP, a floating address). If the daemon ended for this reason, its supervisor would restart it,
 * and would soon give up. */
static int bind_early(struct endpoint *endpoint, const struct sockaddr_storage *addr)
{
    const int on = 1;
    int fd;
    int error = uv_fileno(&endpoint->io.handle, &fd);
    if (error == 0 && setsockopt(fd, SOL_IP, IP_FREEBIND, &on, sizeof on) != 0) error = UV_EINVAL;
    if (error == 0) error = uv_tcp_bind(&endpoint->io.tcp, (const struct sockaddr *)addr, 0);
    if (error == 0)
        log_warn("no device of this host has the address of %s: this daemon listens on it anyway, "
                 "and is reached once a device has it; `ip -br addr` shows those there are",
                 endpoint->address);
    return error;
}

static cairn_status open_tcp(struct endpoint *endpoint, const struct sockaddr_storage *addr,
                             struct sentence *why)
{
    struct sockaddr_storage bound = { 0 };
    int bound_bytes = sizeof bound;
    int error = uv_tcp_bind(&endpoint->io.tcp, (const struct sockaddr *)addr, 0);
    if (error == UV_EADDRNOTAVAIL) error = bind_early(endpoint, addr);
    if (error == 0) error = uv_listen(&endpoint->io.stream, BACKLOG, listener_on_connection);
    if (error == UV_EADDRINUSE)
        return fail_with(why, CAIRN_ERR_BUSY,
                         "cannot listen on %s: another program has this port; stop it, or set "
                         "another port (0 takes any free one)",
                         endpoint->address);
    if (error == 0)
        error = uv_tcp_getsockname(&endpoint->io.tcp, (struct sockaddr *)&bound, &bound_bytes);
    if (error != 0)
        return fail_with(why, CAIRN_ERR_CONFIG, "cannot listen on %s: %s", endpoint->address,
                         uv_strerror(error));
    address_print_socket(&bound, endpoint->address);
    return CAIRN_OK;
}

static void unlink_made(struct endpoint *endpoint)
{
    if (endpoint->is_made) control_socket_unlink(endpoint->address, &endpoint->made);
    endpoint->is_made = false;
}

static cairn_status open_unix(struct endpoint *endpoint, struct sentence *why)
{
    CAIRN_TRY(control_socket_open(endpoint->address, endpoint->listener->socket_mode, BACKLOG,
                                  &endpoint->made, why));
    endpoint->is_made = true;
    int error = uv_pipe_open(&endpoint->io.pipe, endpoint->made.fd);
    if (error != 0) {
        unlink_made(endpoint);
        close(endpoint->made.fd);
    } else {
        error = uv_listen(&endpoint->io.stream, BACKLOG, listener_on_connection);
    }
    if (error == 0) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_CONFIG, "cannot listen on %s: %s", endpoint->address,
                     uv_strerror(error));
}

/* Listens on one address. If this fails, and is_open is set, the caller must close the endpoint. */
static cairn_status endpoint_open(struct endpoint *endpoint, const char *text, struct sentence *why)
{
    struct place place;
    uv_loop_t *loop = endpoint->listener->timer.loop;
    CAIRN_TRY(find_place(text, &place, why));
    if (!place.address.is_unix && endpoint->listener->events.find == NULL)
        return fail_with(why, CAIRN_ERR_CONFIG,
                         "cannot listen on %s: this daemon knows no keys, so it takes the /path of "
                         "a socket only",
                         text);
    say_who_may_come(&place, text);
    address_print(&place.address, endpoint->address);
    if (place.address.is_unix)
        uv_pipe_init(loop, &endpoint->io.pipe, 0);
    else
        uv_tcp_init(loop, &endpoint->io.tcp);
    endpoint->io.handle.data = endpoint;
    endpoint->is_open = true;
    return place.address.is_unix ? open_unix(endpoint, why) : open_tcp(endpoint, &place.addr, why);
}

static void endpoint_close(struct endpoint *endpoint, uv_close_cb on_closed)
{
    // Unlink first, because when the socket is closed another file may get the number of its inode.
    unlink_made(endpoint);
    uv_close(&endpoint->io.handle, on_closed);
}

/* ==== peer ==== */

static void leave_half_open(struct peer *peer)
{
    struct listener *listener = peer->listener;
    if (!peer->is_half_open) return;
    peer->is_half_open = false;
    leave_strangers(peer);
    listener->half_open_count--;
    TAILQ_REMOVE(&listener->half_open, peer, link);
    TAILQ_INSERT_TAIL(&listener->admitted, peer, link);
}

// Logs the end of a connection that sent no frame. (The daemon logs the ends of the other peers.)
static void log_stranger(struct peer *peer, cairn_status status, const char *why)
{
    struct listener *listener = peer->listener;
    struct log_limit *limit = NULL;
    if (status == CAIRN_ERR_TIMEOUT)
        limit = &listener->limits.silent;
    else if (status == CAIRN_ERR_PROTOCOL || status == CAIRN_ERR_VERSION)
        limit = &listener->limits.garbage;
    else if (status == CAIRN_ERR_REFUSED)
        limit = &listener->limits.refused;
    if (limit != NULL)
        log_limited(limit, CAIRN_LOG_WARN, "closed a connection of %s: %s", peer_name(peer), why);
    else
        log_debug("a connection of %s ended: %s", peer_name(peer), why);
}

static bool on_find(void *arg, const uint8_t key_id[CAIRN_PSK_ID_BYTES],
                    struct handshake_row *row_out)
{
    const struct listener *listener = arg;
    return listener->events.find(key_id, row_out, listener->context);
}

/* The handshake is done, so the peer has a secret of the roster. Who it is, and whether it may come in, is
 * for the daemon to say. */
static void on_stream_open(struct stream *stream, void *context)
{
    struct peer *peer = context;
    struct listener *listener = peer->listener;
    struct sentence why = { "" };
    Cairn__Error error = CAIRN__ERROR__INIT;
    const cairn_status status = listener->events.identify(stream_session(stream), &peer->identity,
                                                          &why, listener->context);
    if (status == CAIRN_OK) return;
    error.status = (int32_t)status;
    error.text = why.text;
    if (peer_send(peer, CAIRN_MSG_ERROR, 0, &error.base) == CAIRN_OK)
        peer_finish(peer, status, "%s", why.text);
}

static void on_stream_frame(struct stream *stream, const struct wire_frame *frame, void *context)
{
    struct peer *peer = context;
    (void)stream;
    peer->was_heard = true;
    peer->listener->events.on_frame(peer, frame, peer->listener->context);
}

static void on_stream_close(struct stream *stream, cairn_status status, const char *why,
                            void *context)
{
    struct peer *peer = context;
    struct listener *listener = peer->listener;
    (void)stream;
    if (!peer->was_heard)
        log_stranger(peer, status, why);
    else
        listener->events.on_gone(peer, status, why, listener->context);
    leave_half_open(peer);
    TAILQ_REMOVE(&listener->admitted, peer, link);
    listener->peer_count--;
    free(peer);
    if (listener->is_closing)
        free_when_empty(listener);
    else
        listener_place_freed(listener);
}

/* Reads the groups that the peer's process is in besides the one that it runs as, behind list[0]. Returns how
 * many there are; a list that did not fit is *more_out, which the caller frees. */
static size_t read_groups(int fd, gid_t list[GROUPS_MAX], gid_t **more_out)
{
    socklen_t bytes = (GROUPS_MAX - 1) * sizeof *list;
    *more_out = NULL;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, list + 1, &bytes) == 0)
        return bytes / sizeof *list;
    gid_t *more = errno == ERANGE ? malloc(bytes + sizeof *list) : NULL;
    if (more == NULL) return 0;
    more[0] = list[0];
    *more_out = more;
    return getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, more + 1, &bytes) == 0 ? bytes / sizeof *list
                                                                            : 0;
}

/* Asks the daemon what the user may do. */
static void give_roles(struct peer *peer)
{
    const struct listener *listener = peer->listener;
    gid_t list[GROUPS_MAX] = { peer->identity.gid }, *more;
    if (listener->events.local == NULL) {
        peer->identity.roles = CAIRN_MAY_ALL;
        return;
    }
    const size_t count = 1 + read_groups(stream_descriptor(peer->stream), list, &more);
    listener->events.local(&peer->identity, more != NULL ? more : list, count, listener->context);
    free(more);
}

/* Notes which user the kernel says has connected over a Unix socket. The user is known by its number: asking
 * for its name could wait for a slow name service, and all peers with it. */
static void identify_local(struct peer *peer)
{
    struct ucred who = { 0 };
    socklen_t who_bytes = sizeof who;
    struct identity *identity = &peer->identity;
    if (getsockopt(stream_descriptor(peer->stream), SOL_SOCKET, SO_PEERCRED, &who, &who_bytes) != 0)
        return; // gone already; has no roles
    *identity = (struct identity) { .is_local = true, .uid = who.uid, .gid = who.gid };
    snprintf(identity->name, sizeof identity->name, "uid %lu", (unsigned long)who.uid);
    snprintf(identity->owner, sizeof identity->owner, "uid:%lu", (unsigned long)who.uid);
    give_roles(peer);
}

/* Finds the source of a TCP peer's address. */
static struct source *source_of(struct listener *listener, int fd)
{
    struct sockaddr_storage addr = { 0 };
    socklen_t bytes = sizeof addr;
    uint8_t where[9] = { 0 };
    uint64_t hash;
    (void)getpeername(fd, (struct sockaddr *)&addr, &bytes); // who is gone has none
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&addr;
    const struct sockaddr_in *four = (const struct sockaddr_in *)&addr;
    where[0] = addr.ss_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&six->sin6_addr) ? 6 : 4;
    if (where[0] == 6)
        memcpy(where + 1, &six->sin6_addr, 8);
    else if (addr.ss_family == AF_INET6)
        memcpy(where + 1, six->sin6_addr.s6_addr + 12, 4);
    else
        memcpy(where + 1, &four->sin_addr, 4);
    crypto_shorthash((uint8_t *)&hash, where, sizeof where, listener->sources.key);
    return &listener->sources.list[hash % SOURCES];
}

/* Gives a stranger some time for its first message, unless many of its address have got some just now. */
static void join_strangers(struct peer *peer, struct source *source)
{
    const struct listener *listener = peer->listener;
    if (peer->since_ms - source->window_ms >= GRACE_MS) {
        source->window_ms = peer->since_ms;
        source->patient = 0;
    }
    peer->source = source;
    peer->is_stranger = true;
    peer->has_grace = source->patient < (listener->half_open_max + 1) / 2;
    source->patient += peer->has_grace;
    source->strangers++;
}

size_t listener_kept(size_t connections)
{
    return connections / 8 < KEPT ? connections / 8 : KEPT;
}

/* Returns how many connections there may be before such a peer comes. */
static size_t places_for(const struct peer *peer)
{
    const size_t all = peer->listener->connections_max;
    const bool is_admin_here = peer->identity.is_local &&
                               (peer->identity.roles & CAIRN_MAY_ADMIN) != 0;
    return is_admin_here ? all : all - listener_kept(all);
}

/* Accepts the connection that waits at the endpoint. If there are more than connections_max, closes it at
 * once. */
static cairn_status peer_accept(struct endpoint *endpoint, struct sentence *why)
{
    struct listener *listener = endpoint->listener;
    const bool is_unix = endpoint->io.handle.type == UV_NAMED_PIPE;
    const struct handshake_options secure = { .purpose = CAIRN_PURPOSE_CONTROL,
                                              .find = on_find,
                                              .arg = listener,
                                              .answered = &listener->answered };
    const struct stream_options options = { .limits = listener->before_hello,
                                            .send_queue_bytes = listener->send_queue_bytes,
                                            .room = &listener->room,
                                            .secure = is_unix ? NULL : &secure };
    const struct stream_events events = { .on_open = on_stream_open,
                                          .on_frame = on_stream_frame,
                                          .on_close = on_stream_close };
    struct peer *peer = calloc(1, sizeof *peer);
    if (peer == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a peer");
    const cairn_status status = stream_accept(&endpoint->io.stream, &options, &events, peer,
                                              &peer->stream, why);
    if (status != CAIRN_OK) {
        free(peer);
        return status;
    }
    peer->listener = listener;
    peer->since_ms = uv_now(listener->timer.loop);
    peer->is_half_open = true;
    peer->has_grace = true;
    if (is_unix)
        identify_local(peer);
    else
        join_strangers(peer, source_of(peer->listener, stream_descriptor(peer->stream)));
    TAILQ_INSERT_TAIL(&listener->half_open, peer, link);
    listener->half_open_count++;
    listener->peer_count++;
    if (listener->peer_count <= places_for(peer)) return CAIRN_OK;
    log_limited(&listener->limits.full, CAIRN_LOG_WARN,
                "refused a connection of %s: there are %zu already, as many as "
                "connections_max in [network] allows such a peer (%zu)",
                peer_name(peer), listener->peer_count - 1, listener->connections_max);
    peer_close(peer, CAIRN_ERR_BUSY, "too many connections");
    return CAIRN_OK;
}

static void peer_close_all(struct listener *listener)
{
    struct peer *peer;
    while ((peer = TAILQ_FIRST(&listener->half_open)) != NULL)
        peer_close(peer, CAIRN_ERR_CLOSED, "the daemon stops");
    TAILQ_FOREACH (peer, &listener->admitted, link)
        peer_close(peer, CAIRN_ERR_CLOSED, "the daemon stops");
}

static struct peer *older_frame(struct peer *oldest, struct peers *peers)
{
    struct peer *peer;
    uint64_t oldest_ms = UINT64_MAX, since_ms;
    if (oldest != NULL) (void)stream_unfinished_bytes(oldest->stream, &oldest_ms);
    TAILQ_FOREACH (peer, peers, link) {
        if (stream_unfinished_bytes(peer->stream, &since_ms) == 0 || since_ms >= oldest_ms)
            continue;
        oldest = peer;
        oldest_ms = since_ms;
    }
    return oldest;
}

/* Closes the peer whose frame has been incomplete for the longest time. */
static void peer_close_unfinished(struct listener *listener)
{
    uint64_t since_ms;
    struct peer *oldest = older_frame(NULL, &listener->half_open);
    oldest = older_frame(oldest, &listener->admitted);
    // no frame is incomplete: the room is taken by frames that are being handled
    if (oldest == NULL) return;
    const size_t bytes = stream_unfinished_bytes(oldest->stream, &since_ms);
    log_limited(&listener->limits.room, CAIRN_LOG_WARN,
                "unfinished messages take more than %zu MiB: closing %s, which sent %zu bytes of "
                "one %" PRIu64 " ms ago but not the rest",
                listener->room.max_bytes >> 20, peer_name(oldest), bytes,
                (uv_now(listener->timer.loop) - since_ms));
    peer_close(oldest, CAIRN_ERR_BUSY,
               "too many unfinished messages of all peers together, and its own is the oldest");
}

void peer_admit(struct peer *peer)
{
    if (!peer->is_half_open) return;
    leave_half_open(peer);
    stream_limit(peer->stream, peer->listener->after_hello);
    listener_place_freed(peer->listener);
}

void peer_set_share(struct peer *peer, struct stream_share *share)
{
    stream_set_share(peer->stream, share);
}

cairn_status peer_send(struct peer *peer, uint16_t type, uint32_t request,
                       const ProtobufCMessage *message)
{
    return stream_send(peer->stream, type, request, message, NULL);
}

cairn_status peer_send_pages(struct peer *peer, uint32_t request, enum page_what what,
                             struct packed *packed)
{
    return stream_send_pages(peer->stream, request, what, packed, NULL);
}

void peer_close(struct peer *peer, cairn_status status, const char *format, ...)
{
    char text[CAIRN_SENTENCE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    leave_half_open(peer);
    stream_close(peer->stream, status, "%s", text);
}

void peer_finish(struct peer *peer, cairn_status status, const char *format, ...)
{
    char text[CAIRN_SENTENCE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    // A peer that is half open keeps its place and its deadline until it is gone.
    stream_finish(peer->stream, status, "%s", text);
}

void peer_set_context(struct peer *peer, void *context)
{
    peer->context = context;
}

void *peer_context(const struct peer *peer)
{
    return peer->context;
}

const struct identity *peer_identity(const struct peer *peer)
{
    return &peer->identity;
}

const char *peer_name(const struct peer *peer)
{
    return stream_peer(peer->stream);
}

/* ==== control socket ==== */

#define LOCK_TRIES 100
#define TRY_MS     10

static cairn_status refuse_path(const char *path, const char *what, int error, struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_CONFIG, "cannot listen on %s: %s: %s", path, what,
                     strerror(error));
}

static int socket_of(const char *path, struct sockaddr_un *addr_out)
{
    *addr_out = (struct sockaddr_un) { .sun_family = AF_UNIX };
    snprintf(addr_out->sun_path, sizeof addr_out->sun_path, "%s", path);
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Locks the folder of the path. If the file system cannot lock folders, the function succeeds without a
 * lock. */
static cairn_status lock_folder(const char *path, int *fd_out, struct sentence *why)
{
    char folder[PATH_MAX];
    path_parent(path, folder);
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return refuse_path(path, "its folder cannot be opened", errno, why);
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
            *fd_out = fd;
            return CAIRN_OK;
        }
        poll(NULL, 0, TRY_MS);
    }
    close(fd);
    return fail_with(why, CAIRN_ERR_BUSY,
                     "cannot listen on %s: another program holds a lock on its folder; end it, or "
                     "listen in another folder",
                     path);
}

/* Returns CAIRN_OK if a socket may be made at the path, because nothing is there, or only a socket on which
 * nobody listens. */
static cairn_status judge_place(const char *path, struct sentence *why)
{
    struct stat st;
    struct sockaddr_un addr;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? CAIRN_OK : refuse_path(path, "it cannot be looked at", errno, why);
    if (!S_ISSOCK(st.st_mode))
        return fail_with(
            why, CAIRN_ERR_CONFIG,
            "cannot listen on %s: the file there is no socket; remove it, or set another path",
            path);
    const int fd = socket_of(path, &addr);
    if (fd < 0) return refuse_path(path, "no socket", errno, why);
    const bool is_dead = connect(fd, (struct sockaddr *)&addr, sizeof addr) != 0 &&
                         errno == ECONNREFUSED;
    close(fd);
    if (is_dead) return CAIRN_OK;
    return fail_with(
        why, CAIRN_ERR_BUSY,
        "cannot listen on %s: another program listens there; stop it, or set another path", path);
}

/* Makes the socket. Nobody can connect before the socket listens, and it gets its mode before that. */
static cairn_status make(const char *path, mode_t mode, int backlog,
                         struct control_socket *socket_out, struct sentence *why)
{
    struct stat st;
    char beside[CAIRN_ADDRESS_PATH_BYTES + 2];
    struct sockaddr_un addr;
    snprintf(beside, sizeof beside, "%s~", path);
    // a daemon that died in this function may have left it; nobody else uses it, because the folder is
    // locked
    unlink(beside);
    const int fd = socket_of(beside, &addr);
    if (fd < 0) return refuse_path(path, "no socket", errno, why);
    if (bind(fd, (struct sockaddr *)&addr, sizeof addr) == 0 && chmod(beside, mode) == 0 &&
        listen(fd, backlog) == 0 && lstat(beside, &st) == 0 && rename(beside, path) == 0) {
        *socket_out = (struct control_socket) { fd, st.st_dev, st.st_ino };
        return CAIRN_OK;
    }
    const cairn_status status = refuse_path(path, "it cannot be made", errno, why);
    unlink(beside);
    close(fd);
    return status;
}

cairn_status control_socket_open(const char *path, mode_t mode, int backlog,
                                 struct control_socket *socket_out, struct sentence *why)
{
    int lock_fd = -1;
    CAIRN_TRY(lock_folder(path, &lock_fd, why));
    cairn_status status = judge_place(path, why);
    if (status == CAIRN_OK) status = make(path, mode, backlog, socket_out, why);
    close(lock_fd);
    return status;
}

/* Removes the name of the socket, while socket->fd is still open. Somebody may have removed the name and
 * put another file there; then this other file is kept. */
static void control_socket_unlink(const char *path, const struct control_socket *socket)
{
    struct stat st;
    if (lstat(path, &st) == 0 && st.st_dev == socket->device && st.st_ino == socket->inode)
        unlink(path);
}

/* Makes the folder of the path, with mode 0750, if it does not exist. The parent of the folder must exist.
 * CAIRN_ERR_CONFIG. */
static cairn_status control_socket_folder(const char *path, struct sentence *why)
{
    char folder[PATH_MAX];
    path_parent(path, folder);
    if (mkdir(folder, 0750) == 0 || errno == EEXIST) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_CONFIG,
                     "the folder %s of the control socket cannot be made: %s; make it, set "
                     "XDG_RUNTIME_DIR to a folder of yours, or set listen in [network]",
                     folder, strerror(errno));
}
