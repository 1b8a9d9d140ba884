/* A framed connection over TCP or a Unix socket, on one libuv loop. Used by daemons, client and CLI.
 *
 * Everything here, callbacks too, runs on the loop's thread. A stream is a heap object that frees
 * itself: on_close is the last callback, it comes exactly once for every stream that connect or
 * accept returned, never from inside another call of this header, and the pointer is dead when it
 * returns. Closing is asking: cairn_stream_close may be called anywhere, any number of times; the
 * first reason wins.
 *
 * Writing to a peer that is gone raises SIGPIPE: the loop's thread must ignore it (daemons) or block
 * it (the client library, which may not touch its host's signal handlers).
 *
 * Memory is bounded: a receive buffer of at most one frame (4 KiB when idle), a send queue, one page of
 * what is sent in pages, and CAIRN_STREAM_PAGED_BYTES that are held to be sent so. A peer that does not read
 * is closed when its queue is full, with a reason; the sender gets CAIRN_ERR_BUSY. There are no
 * heartbeats here: leases are the members' own business.
 *
 * Work is bounded, too: a connection gets CAIRN_STREAM_TURN_MS of each turn of the loop for its frames, and
 * what arrived beyond that waits for the next turn, so that one peer's million questions delay no other
 * peer. */
#ifndef CAIRN_LOOP_STREAM_H
#define CAIRN_LOOP_STREAM_H

#include "proto/loop/address.h"
#include "proto/wire/frame.h"
#include "proto/wire/messages.h"
#include "proto/wire/packed.h"

#include <uv.h>

#define CAIRN_STREAM_SEND_QUEUE_BYTES (8u << 20) /* default bound of the send queue */
#define CAIRN_STREAM_PAGED_BYTES      (4 * CAIRN_PAGED_BYTES_MAX)
#define CAIRN_STREAM_TURN_MS          2

struct cairn_stream;

/* The receive buffers of several streams together. The owner of the streams has it, and counts nothing
 * itself. */
struct cairn_stream_room {
    size_t used_bytes, max_bytes;
    /* More is used than max_bytes, after a read: the owner closes whom it likes, the reader as well. */
    void (*on_full)(void *context);
    void *context;
};

struct cairn_stream_options {
    struct cairn_frame_limits limits; /* what it takes now; see cairn_stream_limit */
    size_t send_queue_bytes;          /* 0 = CAIRN_STREAM_SEND_QUEUE_BYTES */
    struct cairn_stream_room *room; /* borrowed, for as long as the stream is; NULL: not counted */
};

struct cairn_stream_events {
    /* The connection stands (only after connect). May be NULL. */
    void (*on_open)(struct cairn_stream *stream, void *context);
    /* A whole frame; its payload is borrowed until this returns. */
    void (*on_frame)(struct cairn_stream *stream, const struct cairn_frame *frame, void *context);
    /* The end. CAIRN_OK: this side closed it so; CAIRN_ERR_CLOSED: the peer did;
     * CAIRN_ERR_PROTOCOL: garbage; _UNREACHABLE, _TIMEOUT: connect failed; _BUSY: did not read. */
    void (*on_close)(struct cairn_stream *stream, cairn_status status, const char *why,
                     void *context);
    /* Its socket is there, and about to be connected (only of connect, also within it). May be NULL. */
    void (*on_dial)(struct cairn_stream *stream, void *context);
};

/* Begins to connect. CAIRN_OK: on_open or on_close follows (the latter also after timeout_ms with
 * CAIRN_ERR_TIMEOUT). Names are resolved off the loop's thread. `events` is copied. Frames may be
 * sent at once: they wait for the connection. Otherwise nothing happened and nothing follows. */
CAIRN_MUST_CHECK cairn_status cairn_stream_connect(
    uv_loop_t *loop, const struct cairn_address *address, uint64_t timeout_ms,
    const struct cairn_stream_options *options, const struct cairn_stream_events *events,
    void *context, struct cairn_stream **stream_out, struct cairn_sentence *why);

/* Takes the next connection of a listening uv_tcp_t or uv_pipe_t, in its connection callback. */
CAIRN_MUST_CHECK cairn_status cairn_stream_accept(uv_stream_t *server,
                                                  const struct cairn_stream_options *options,
                                                  const struct cairn_stream_events *events,
                                                  void *context, struct cairn_stream **stream_out,
                                                  struct cairn_sentence *why);

/* Queues a frame; `message` is the caller's again at once. Frames of one stream arrive in order.
 * CAIRN_OK says queued, no more. CAIRN_ERR_BUSY: over the queue's bound, the stream is being closed.
 * CAIRN_ERR_CLOSED: it is closing. CAIRN_ERR_INVALID: the message is larger than a frame may be. */
CAIRN_MUST_CHECK cairn_status cairn_stream_send(struct cairn_stream *stream, uint16_t type,
                                                uint32_t request, const ProtobufCMessage *message,
                                                struct cairn_sentence *why);
/* The same with a payload that is packed already. */
CAIRN_MUST_CHECK cairn_status cairn_stream_send_bytes(struct cairn_stream *stream, uint16_t type,
                                                      uint32_t request, const void *payload,
                                                      size_t payload_bytes,
                                                      struct cairn_sentence *why);

/* Queues packed bytes as Page frames of CAIRN_PAGE_BYTES. They are held, not copied, and each page is made
 * when its turn comes: they do not count in the queue's bound, frames behind them do. Errors as of
 * cairn_stream_send; CAIRN_ERR_BUSY: over CAIRN_STREAM_PAGED_BYTES. */
CAIRN_MUST_CHECK cairn_status cairn_stream_send_pages(struct cairn_stream *stream, uint32_t request,
                                                      enum cairn_page_what what,
                                                      struct cairn_packed *packed,
                                                      struct cairn_sentence *why);

/* Changes what is taken from the next frame on. */
void cairn_stream_limit(struct cairn_stream *stream, struct cairn_frame_limits limits);

/* Asks for the end now; frames in the queue are lost. on_close comes later, with this reason. */
void cairn_stream_close(struct cairn_stream *stream, cairn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same, but frames in the queue go out first (at most 2 s): to tell a peer why. No on_frame
 * comes any more. */
void cairn_stream_finish(struct cairn_stream *stream, cairn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* "127.0.0.1:41234", "pid=123,uid=1000", the path that it connected to. Valid as long as the stream. */
const char *cairn_stream_peer(const struct cairn_stream *stream);
/* Its socket, the stream's own; -1 when it is closed. */
int cairn_stream_descriptor(const struct cairn_stream *stream);
/* The bytes of a frame that has begun to arrive and is not whole, and in *since_ms_out when it began, of the
 * loop's clock; 0: there is none. */
size_t cairn_stream_unfinished_bytes(const struct cairn_stream *stream, uint64_t *since_ms_out);
/* Bytes queued and not yet given to the kernel, without pages whose turn has not come. */
size_t cairn_stream_queued_bytes(const struct cairn_stream *stream);

#endif
