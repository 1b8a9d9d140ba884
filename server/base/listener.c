#include "server/base/listener_private.h"

#include "server/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BACKLOG  1024
#define GRACE_MS 100 // a half-open peer keeps its place at least so long

static cairn_status judge_address(const struct cairn_listener_options *options,
                                  struct sockaddr_storage *addr_out, struct cairn_sentence *why)
{
    struct cairn_address address;
    cairn_status status = cairn_address_parse(options->listen, &address, why);
    if (status != CAIRN_OK) return status;
    status = cairn_address_resolve(&address, addr_out, why);
    if (status != CAIRN_OK) return CAIRN_ERR_CONFIG;
    if (cairn_address_is_loopback(addr_out)) return CAIRN_OK;
    if (!options->insecure_network)
        return cairn_fail(why, CAIRN_ERR_REFUSED,
                          "refused to listen on %s: it is not a loopback address, and peers are "
                          "not authenticated in this version, so whoever reaches the port could "
                          "use it; listen on 127.0.0.1, or set insecure_network = yes in "
                          "[network] if everyone who can reach it may do everything",
                          options->listen);
    cairn_log_warn("insecure_network = yes: whoever reaches %s can use this daemon, peers are not "
                   "authenticated",
                   options->listen);
    return CAIRN_OK;
}

static uint64_t now_ms(const struct cairn_listener *listener)
{
    return uv_now(listener->tcp.loop);
}

static void watch_half_open(struct cairn_listener *listener);
static void accept_waiting(struct cairn_listener *listener);

// Half-open peers stand in order of arrival, so the first is the next one due.
static void on_half_open_due(uv_timer_t *timer)
{
    struct cairn_listener *listener = timer->data;
    const struct cairn_peer *oldest = listener->half_open_first;
    if (oldest != NULL && now_ms(listener) >= oldest->since_ms + listener->hello_timeout_ms)
        cairn_peer_close(listener->half_open_first, CAIRN_ERR_TIMEOUT, "no Hello within %llu ms",
                         (unsigned long long)listener->hello_timeout_ms);
    accept_waiting(listener);
    watch_half_open(listener);
}

// Sets the timer to the moment when the oldest half-open peer must go, or may be pushed out.
static void watch_half_open(struct cairn_listener *listener)
{
    const struct cairn_peer *oldest = listener->half_open_first;
    if (listener->is_closing) return;
    if (oldest == NULL) {
        uv_timer_stop(&listener->timer);
        return;
    }
    const uint64_t life_ms = listener->connection_waits ? GRACE_MS : listener->hello_timeout_ms;
    const uint64_t due_ms = oldest->since_ms + life_ms;
    const uint64_t now = now_ms(listener);
    uv_timer_start(&listener->timer, on_half_open_due, due_ms > now ? due_ms - now : 0, 0);
}

// False: none yet, the timer will see to it.
static bool make_place(struct cairn_listener *listener)
{
    struct cairn_peer *oldest = listener->half_open_first;
    if (listener->half_open_count < listener->half_open_max) return true;
    if (now_ms(listener) < oldest->since_ms + GRACE_MS) return false;
    cairn_log_limited(&listener->flood_limit, CAIRN_LOG_WARN,
                      "%zu connections have not said Hello: closing the oldest, %s",
                      listener->half_open_count, cairn_peer_name(oldest));
    cairn_peer_close(oldest, CAIRN_ERR_BUSY, "too many connections have not said Hello");
    return true;
}

// libuv holds one accepted connection and polls for no other until we take it: so new ones wait in
// the kernel while all half-open places are taken.
static void accept_waiting(struct cairn_listener *listener)
{
    if (!listener->connection_waits || listener->is_closing || !make_place(listener)) return;
    struct cairn_sentence why;
    const cairn_status status = cairn_peer_accept(listener, &why);
    listener->connection_waits = status == CAIRN_ERR_NO_MEMORY; // not taken: again later
    if (status != CAIRN_OK)
        cairn_log_limited(&listener->accept_limit, CAIRN_LOG_WARN, "%s", why.text);
}

static void on_connection(uv_stream_t *server, int error)
{
    struct cairn_listener *listener = server->data;
    if (error != 0) {
        cairn_log_limited(&listener->accept_limit, CAIRN_LOG_WARN, "cannot accept a connection: %s",
                          uv_strerror(error));
        return;
    }
    listener->connection_waits = true;
    accept_waiting(listener);
    watch_half_open(listener);
}

void cairn_listener_place_freed(struct cairn_listener *listener)
{
    accept_waiting(listener);
    watch_half_open(listener);
}

static void free_when_empty(struct cairn_listener *listener)
{
    if (listener->open_handles > 0 || listener->peer_count > 0) return;
    void (*on_closed)(void *) = listener->on_closed;
    void *context = listener->context;
    free(listener);
    if (on_closed != NULL) on_closed(context);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct cairn_listener *listener = handle->data;
    listener->open_handles--;
    free_when_empty(listener);
}

void cairn_listener_peer_gone(struct cairn_listener *listener)
{
    if (listener->is_closing)
        free_when_empty(listener);
    else
        cairn_listener_place_freed(listener);
}

static void close_handles(struct cairn_listener *listener)
{
    listener->is_closing = true;
    uv_close((uv_handle_t *)&listener->tcp, on_handle_closed);
    uv_close((uv_handle_t *)&listener->timer, on_handle_closed);
}

void cairn_listener_close(struct cairn_listener *listener, void (*on_closed)(void *context))
{
    if (listener->is_closing) return;
    listener->on_closed = on_closed;
    close_handles(listener);
    cairn_peer_close_all(listener);
}

static cairn_status bind_and_listen(struct cairn_listener *listener,
                                    const struct sockaddr_storage *addr, struct cairn_sentence *why)
{
    struct sockaddr_storage bound = { 0 };
    int bound_bytes = sizeof bound;
    const char *wanted = listener->address;
    int error = uv_tcp_bind(&listener->tcp, (const struct sockaddr *)addr, 0);
    if (error == 0) error = uv_listen((uv_stream_t *)&listener->tcp, BACKLOG, on_connection);
    if (error == UV_EADDRINUSE)
        return cairn_fail(why, CAIRN_ERR_BUSY,
                          "cannot listen on %s: another program has this port; stop it, or set "
                          "another port (0 takes any free one)",
                          wanted);
    if (error != 0)
        return cairn_fail(why, CAIRN_ERR_CONFIG, "cannot listen on %s: %s", wanted,
                          uv_strerror(error));
    error = uv_tcp_getsockname(&listener->tcp, (struct sockaddr *)&bound, &bound_bytes);
    if (error != 0)
        return cairn_fail(why, CAIRN_ERR_INTERNAL, "no name for the socket of %s: %s", wanted,
                          uv_strerror(error));
    cairn_address_print_socket(&bound, listener->address);
    listener->port = (uint16_t)strtoul(strrchr(listener->address, ':') + 1, NULL, 10);
    return CAIRN_OK;
}

static void take_options(struct cairn_listener *listener,
                         const struct cairn_listener_options *options, uint16_t hello_type,
                         uint16_t type_max)
{
    listener->connections_max = (size_t)options->connections_max;
    listener->half_open_max = (size_t)options->half_open_max;
    listener->hello_timeout_ms = (uint64_t)options->hello_timeout_ms;
    listener->send_queue_bytes = (size_t)options->send_queue_bytes;
    listener->before_hello = (struct cairn_frame_limits) { hello_type, hello_type,
                                                           CAIRN_FRAME_HELLO_BYTES };
    listener->after_hello = (struct cairn_frame_limits) { 1, type_max, CAIRN_FRAME_BYTES_MAX };
    snprintf(listener->address, sizeof listener->address, "%s", options->listen);
}

cairn_status cairn_listener_open(uv_loop_t *loop, const struct cairn_listener_options *options,
                                 uint16_t hello_type, uint16_t type_max,
                                 const struct cairn_listener_events *events, void *context,
                                 struct cairn_listener **listener_out, struct cairn_sentence *why)
{
    struct sockaddr_storage addr;
    cairn_status status = judge_address(options, &addr, why);
    if (status != CAIRN_OK) return status;
    struct cairn_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a listener");
    take_options(listener, options, hello_type, type_max);
    listener->events = *events;
    listener->context = context;
    uv_tcp_init(loop, &listener->tcp);
    uv_timer_init(loop, &listener->timer);
    listener->tcp.data = listener->timer.data = listener;
    listener->open_handles = 2;
    status = bind_and_listen(listener, &addr, why);
    if (status != CAIRN_OK) {
        close_handles(listener); // frees it in the next turn of the loop
        return status;
    }
    *listener_out = listener;
    return CAIRN_OK;
}

const char *cairn_listener_address(const struct cairn_listener *listener)
{
    return listener->address;
}

uint16_t cairn_listener_port(const struct cairn_listener *listener)
{
    return listener->port;
}

size_t cairn_listener_peer_count(const struct cairn_listener *listener)
{
    return listener->peer_count;
}
