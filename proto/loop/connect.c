/* How a stream begins: connecting (with name service and a deadline) and accepting. */
#include "proto/loop/stream_private.h"

#include <grp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* No later try helps against it. `path`: of the socket, which says who may. */
static void refuse(struct cairn_stream *stream, const char *path)
{
    struct stat socket;
    struct group group, *found = NULL;
    char names[1024];
    const bool is_seen = stat(path, &socket) == 0;
    if (is_seen) (void)getgrgid_r(socket.st_gid, &group, names, sizeof names, &found);
    cairn_stream_close(stream, CAIRN_ERR_REFUSED,
                       "cannot connect to %s: permission denied; who may is the socket's user and "
                       "its group%s%s: have this user added to the group, and log in anew",
                       path, found != NULL ? " " : "", found != NULL ? found->gr_name : "");
}

static void fail(struct cairn_stream *stream, int error)
{
    if (error == UV_EACCES && stream->peer[0] == '/') {
        refuse(stream, stream->peer);
        return;
    }
    const bool is_ours = error == UV_EMFILE || error == UV_ENFILE || error == UV_ENOMEM ||
                         error == UV_ENOBUFS;
    cairn_stream_close(stream, is_ours ? CAIRN_ERR_NO_MEMORY : CAIRN_ERR_UNREACHABLE,
                       "cannot connect to %s: %s", stream->peer, uv_strerror(error));
}

static void on_connect_late(uv_timer_t *timer)
{
    struct cairn_stream *stream = timer->data;
    cairn_stream_close(stream, CAIRN_ERR_TIMEOUT, "no connection to %s within %llu ms",
                       stream->peer, (unsigned long long)stream->timeout_ms);
}

static void on_connected(uv_connect_t *request, int error)
{
    struct cairn_stream *stream = request->data;
    if (stream->state != CAIRN_STREAM_CONNECTING) return; // closed meanwhile
    if (error != 0) {
        fail(stream, error);
        return;
    }
    uv_timer_stop(&stream->timer);
    if (stream->io.handle.type == UV_TCP) uv_tcp_nodelay(&stream->io.tcp, 1);
    cairn_stream_begin(stream);
    if (stream->state == CAIRN_STREAM_OPEN && stream->events.on_open != NULL)
        stream->events.on_open(stream, stream->context);
}

static void tell_dial(struct cairn_stream *stream)
{
    if (stream->events.on_dial != NULL) stream->events.on_dial(stream, stream->context);
}

static void connect_socket(struct cairn_stream *stream, const struct sockaddr *addr)
{
    stream->connect.data = stream;
    const int error = uv_tcp_connect(&stream->connect, &stream->io.tcp, addr, on_connected);
    if (error != 0)
        fail(stream, error);
    else
        tell_dial(stream);
}

static void on_resolved(uv_getaddrinfo_t *request, int error, struct addrinfo *found)
{
    struct cairn_stream *stream = request->data;
    stream->is_resolving = false;
    if (stream->state == CAIRN_STREAM_CONNECTING) {
        if (error != 0)
            fail(stream, error);
        else
            connect_socket(stream, cairn_address_choose(found)->ai_addr);
    }
    uv_freeaddrinfo(found);
    cairn_stream_drop(stream);
}

static void resolve_name(struct cairn_stream *stream, const struct cairn_address *address)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
    char port[8];
    snprintf(port, sizeof port, "%u", address->port);
    stream->resolve.data = stream;
    const int error = uv_getaddrinfo(stream->io.handle.loop, &stream->resolve, on_resolved,
                                     address->host, port, &hints);
    if (error != 0) {
        fail(stream, error);
        return;
    }
    stream->is_resolving = true;
    stream->open_count++;
}

static void connect_unix(struct cairn_stream *stream, const struct cairn_address *address)
{
    stream->connect.data = stream;
    uv_pipe_connect(&stream->connect, &stream->io.pipe, address->host, on_connected);
    tell_dial(stream);
}

static void connect_tcp(struct cairn_stream *stream, const struct cairn_address *address)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (uv_ip4_addr(address->host, address->port, &v4) == 0)
        connect_socket(stream, (const struct sockaddr *)&v4);
    else if (uv_ip6_addr(address->host, address->port, &v6) == 0)
        connect_socket(stream, (const struct sockaddr *)&v6);
    else
        resolve_name(stream, address);
}

cairn_status cairn_stream_connect(uv_loop_t *loop, const struct cairn_address *address,
                                  uint64_t timeout_ms, const struct cairn_stream_options *options,
                                  const struct cairn_stream_events *events, void *context,
                                  struct cairn_stream **stream_out, struct cairn_sentence *why)
{
    struct cairn_stream *stream = cairn_stream_new(loop, address->is_unix, options, events, context,
                                                   why);
    if (stream == NULL) return CAIRN_ERR_NO_MEMORY;
    stream->state = CAIRN_STREAM_CONNECTING;
    stream->timeout_ms = timeout_ms;
    cairn_address_print(address, stream->peer);
    uv_timer_start(&stream->timer, on_connect_late, timeout_ms, 0);
    if (address->is_unix)
        connect_unix(stream, address);
    else
        connect_tcp(stream, address);
    *stream_out = stream; // a failure so far is told by on_close
    return CAIRN_OK;
}

/* Who connected, as the kernel saw it then. */
static void name_process(struct cairn_stream *stream)
{
    struct ucred who = { 0 };
    socklen_t who_bytes = sizeof who;
    if (getsockopt(cairn_stream_descriptor(stream), SOL_SOCKET, SO_PEERCRED, &who, &who_bytes) == 0)
        snprintf(stream->peer, sizeof stream->peer, "pid=%ld,uid=%lu", (long)who.pid,
                 (unsigned long)who.uid);
    else
        snprintf(stream->peer, sizeof stream->peer, "unix");
}

static void name_peer(struct cairn_stream *stream)
{
    struct sockaddr_storage addr = { 0 };
    int addr_bytes = sizeof addr;
    if (stream->io.handle.type != UV_TCP)
        name_process(stream);
    else if (uv_tcp_getpeername(&stream->io.tcp, (struct sockaddr *)&addr, &addr_bytes) != 0)
        snprintf(stream->peer, sizeof stream->peer, "a peer that is gone");
    else
        cairn_address_print_socket(&addr, stream->peer);
}

cairn_status cairn_stream_accept(uv_stream_t *server, const struct cairn_stream_options *options,
                                 const struct cairn_stream_events *events, void *context,
                                 struct cairn_stream **stream_out, struct cairn_sentence *why)
{
    struct cairn_stream *stream = cairn_stream_new(server->loop, server->type == UV_NAMED_PIPE,
                                                   options, events, context, why);
    if (stream == NULL) return CAIRN_ERR_NO_MEMORY;
    const int error = uv_accept(server, &stream->io.stream);
    if (error != 0) {
        stream->events.on_close = NULL; // the caller never had it
        cairn_stream_close(stream, CAIRN_ERR_CLOSED, "accept: %s", uv_strerror(error));
        return cairn_fail(why, CAIRN_ERR_CLOSED, "cannot accept a connection: %s",
                          uv_strerror(error));
    }
    name_peer(stream);
    if (stream->io.handle.type == UV_TCP) uv_tcp_nodelay(&stream->io.tcp, 1);
    cairn_stream_begin(stream);
    *stream_out = stream;
    return CAIRN_OK;
}
