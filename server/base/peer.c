#include "server/base/listener_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static void link_last(struct cairn_peer **first, struct cairn_peer **last, struct cairn_peer *peer)
{
    peer->before = *last;
    peer->after = NULL;
    if (*last != NULL)
        (*last)->after = peer;
    else
        *first = peer;
    *last = peer;
}

static void unlink_from(struct cairn_peer **first, struct cairn_peer **last,
                        struct cairn_peer *peer)
{
    if (peer->before != NULL)
        peer->before->after = peer->after;
    else
        *first = peer->after;
    if (peer->after != NULL)
        peer->after->before = peer->before;
    else
        *last = peer->before;
}

static void leave_half_open(struct cairn_peer *peer)
{
    struct cairn_listener *listener = peer->listener;
    if (!peer->is_half_open) return;
    peer->is_half_open = false;
    listener->half_open_count--;
    unlink_from(&listener->half_open_first, &listener->half_open_last, peer);
    link_last(&listener->admitted_first, &listener->admitted_last, peer);
}

// Strangers' ends are the listener's to log, by kind; those of admitted peers are the daemon's.
static void log_stranger(struct cairn_peer *peer, cairn_status status, const char *why)
{
    struct cairn_listener *listener = peer->listener;
    if (status == CAIRN_ERR_PROTOCOL)
        cairn_log_limited(&listener->garbage_limit, CAIRN_LOG_WARN, "closed a connection of %s: %s",
                          cairn_peer_name(peer), why);
    else if (status == CAIRN_ERR_TIMEOUT)
        cairn_log_limited(&listener->silent_limit, CAIRN_LOG_WARN, "closed a connection of %s: %s",
                          cairn_peer_name(peer), why);
    else
        cairn_log_debug("a connection of %s ended: %s", cairn_peer_name(peer), why);
}

static void on_stream_frame(struct cairn_stream *stream, const struct cairn_frame *frame,
                            void *context)
{
    struct cairn_peer *peer = context;
    (void)stream;
    peer->was_heard = true;
    peer->listener->events.on_frame(peer, frame, peer->listener->context);
}

static void on_stream_close(struct cairn_stream *stream, cairn_status status, const char *why,
                            void *context)
{
    struct cairn_peer *peer = context;
    struct cairn_listener *listener = peer->listener;
    (void)stream;
    if (!peer->was_heard)
        log_stranger(peer, status, why);
    else
        listener->events.on_gone(peer, status, why, listener->context);
    leave_half_open(peer);
    unlink_from(&listener->admitted_first, &listener->admitted_last, peer);
    listener->peer_count--;
    free(peer);
    cairn_listener_peer_gone(listener);
}

cairn_status cairn_peer_accept(struct cairn_door *door, struct cairn_sentence *why)
{
    struct cairn_listener *listener = door->listener;
    const struct cairn_stream_options options = { listener->before_hello,
                                                  listener->send_queue_bytes, &listener->room };
    const struct cairn_stream_events events = { .on_frame = on_stream_frame,
                                                .on_close = on_stream_close };
    struct cairn_peer *peer = calloc(1, sizeof *peer);
    if (peer == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a peer");
    const cairn_status status = cairn_stream_accept(&door->io.stream, &options, &events, peer,
                                                    &peer->stream, why);
    if (status != CAIRN_OK) {
        free(peer);
        return status;
    }
    peer->listener = listener;
    peer->since_ms = uv_now(listener->timer.loop);
    peer->is_half_open = true;
    link_last(&listener->half_open_first, &listener->half_open_last, peer);
    listener->half_open_count++;
    listener->peer_count++;
    if (listener->peer_count <= listener->connections_max) return CAIRN_OK;
    cairn_log_limited(&listener->full_limit, CAIRN_LOG_WARN,
                      "refused a connection of %s: there are %zu already, as many as "
                      "connections_max in [network] allows",
                      cairn_peer_name(peer), listener->connections_max);
    cairn_peer_close(peer, CAIRN_ERR_BUSY, "too many connections");
    return CAIRN_OK;
}

void cairn_peer_close_all(struct cairn_listener *listener)
{
    while (listener->half_open_first != NULL)
        cairn_peer_close(listener->half_open_first, CAIRN_ERR_CLOSED, "the daemon stops");
    for (struct cairn_peer *peer = listener->admitted_first; peer != NULL; peer = peer->after)
        cairn_peer_close(peer, CAIRN_ERR_CLOSED, "the daemon stops");
}

static struct cairn_peer *older_frame(struct cairn_peer *oldest, struct cairn_peer *first)
{
    uint64_t oldest_ms = UINT64_MAX, since_ms;
    if (oldest != NULL) (void)cairn_stream_unfinished_bytes(oldest->stream, &oldest_ms);
    for (struct cairn_peer *peer = first; peer != NULL; peer = peer->after) {
        if (cairn_stream_unfinished_bytes(peer->stream, &since_ms) == 0 || since_ms >= oldest_ms)
            continue;
        oldest = peer;
        oldest_ms = since_ms;
    }
    return oldest;
}

void cairn_peer_close_unfinished(struct cairn_listener *listener)
{
    uint64_t since_ms;
    struct cairn_peer *oldest = older_frame(NULL, listener->half_open_first);
    oldest = older_frame(oldest, listener->admitted_first);
    if (oldest == NULL) return; // all are whole, and being worked on
    const size_t bytes = cairn_stream_unfinished_bytes(oldest->stream, &since_ms);
    cairn_log_limited(
        &listener->room_limit, CAIRN_LOG_WARN,
        "messages that are not whole take more than %zu MiB: closing %s, which sent %zu "
        "bytes of one %llu ms ago and not the rest",
        listener->room.max_bytes >> 20, cairn_peer_name(oldest), bytes,
        (unsigned long long)(uv_now(listener->timer.loop) - since_ms));
    cairn_peer_close(
        oldest, CAIRN_ERR_BUSY,
        "too many unfinished messages of all peers together, and its own is the oldest");
}

void cairn_peer_admit(struct cairn_peer *peer)
{
    if (!peer->is_half_open) return;
    leave_half_open(peer);
    cairn_stream_limit(peer->stream, peer->listener->after_hello);
    cairn_listener_place_freed(peer->listener);
}

cairn_status cairn_peer_send(struct cairn_peer *peer, uint16_t type, uint32_t request,
                             const ProtobufCMessage *message)
{
    return cairn_stream_send(peer->stream, type, request, message, NULL);
}

cairn_status cairn_peer_send_pages(struct cairn_peer *peer, uint32_t request,
                                   enum cairn_page_what what, struct cairn_packed *packed)
{
    return cairn_stream_send_pages(peer->stream, request, what, packed, NULL);
}

void cairn_peer_close(struct cairn_peer *peer, cairn_status status, const char *format, ...)
{
    char text[CAIRN_SENTENCE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    leave_half_open(peer);
    cairn_stream_close(peer->stream, status, "%s", text);
}

void cairn_peer_finish(struct cairn_peer *peer, cairn_status status, const char *format, ...)
{
    char text[CAIRN_SENTENCE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    // A stranger keeps its half-open place, and its deadline, until it is gone.
    cairn_stream_finish(peer->stream, status, "%s", text);
}

void cairn_peer_set_context(struct cairn_peer *peer, void *context)
{
    peer->context = context;
}

void *cairn_peer_context(const struct cairn_peer *peer)
{
    return peer->context;
}

const char *cairn_peer_name(const struct cairn_peer *peer)
{
    return cairn_stream_peer(peer->stream);
}
