#include "proto/loop/stream_private.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FINISH_MS 2000 // how long a peer may take to read its last frames
#define TURN_NS   (CAIRN_STREAM_TURN_MS * UINT64_C(1000000))

struct cairn_stream *cairn_stream_new(uv_loop_t *loop, bool is_unix,
                                      const struct cairn_stream_options *options,
                                      const struct cairn_stream_events *events, void *context,
                                      struct cairn_sentence *why)
{
    struct cairn_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        cairn_sentence_set(why, "no memory for a connection");
        return NULL;
    }
    const int error = is_unix ? uv_pipe_init(loop, &stream->io.pipe, 0)
                              : uv_tcp_init(loop, &stream->io.tcp);
    assert(error == 0); // both only fill in the struct
    (void)error;
    uv_timer_init(loop, &stream->timer);
    uv_idle_init(loop, &stream->turn);
    stream->io.handle.data = stream->timer.data = stream->turn.data = stream;
    stream->open_count = 3;
    stream->room = options->room;
    stream->events = *events;
    stream->context = context;
    stream->send_queue_bytes = options->send_queue_bytes != 0 ? options->send_queue_bytes
                                                              : CAIRN_STREAM_SEND_QUEUE_BYTES;
    cairn_frame_decoder_init(&stream->decoder, options->limits);
    return stream;
}

void cairn_stream_drop(struct cairn_stream *stream)
{
    if (--stream->open_count > 0) return;
    if (stream->events.on_close != NULL)
        stream->events.on_close(stream, stream->status, stream->why.text, stream->context);
    cairn_frame_decoder_release(&stream->decoder);
    cairn_outbox_release(&stream->pending);
    cairn_outbox_frames_release(&stream->writing);
    free(stream);
}

static void on_handle_closed(uv_handle_t *handle)
{
    cairn_stream_drop(handle->data);
}

// `why` was written already.
static void close_now(struct cairn_stream *stream)
{
    if (stream->state == CAIRN_STREAM_CLOSING) return;
    stream->state = CAIRN_STREAM_CLOSING;
    if (stream->room != NULL) stream->room->used_bytes -= stream->room_bytes; // freed next turn
    stream->room = NULL;
    uv_close(&stream->io.handle, on_handle_closed);
    uv_close((uv_handle_t *)&stream->timer, on_handle_closed);
    uv_close((uv_handle_t *)&stream->turn, on_handle_closed);
    if (stream->is_resolving) uv_cancel((uv_req_t *)&stream->resolve); // or it ends by itself
}

static void write_reason(struct cairn_stream *stream, cairn_status status, const char *format,
                         va_list args)
{
    char text[CAIRN_SENTENCE_BYTES];
    vsnprintf(text, sizeof text, format, args);
    cairn_sentence_set(&stream->why, "%s", text);
    stream->status = status;
}

void cairn_stream_close(struct cairn_stream *stream, cairn_status status, const char *format, ...)
{
    if (stream->state < CAIRN_STREAM_FINISHING) { // later the first reason stands
        va_list args;
        va_start(args, format);
        write_reason(stream, status, format, args);
        va_end(args);
    }
    close_now(stream);
}

static void on_finish_late(uv_timer_t *timer)
{
    close_now(timer->data);
}

static void on_shutdown(uv_shutdown_t *request, int error)
{
    struct cairn_stream *stream = request->data;
    if (stream->state != CAIRN_STREAM_FINISHING) return;
    if (error != 0 || stream->peer_shut) close_now(stream);
    // Otherwise the peer reads to our end and closes: closing first could destroy what it has not
    // read (a reset, if it had sent more).
}

// Everything queued was written: end our direction.
static void finish_sending(struct cairn_stream *stream)
{
    if (stream->is_shut) return;
    stream->is_shut = true;
    stream->shutdown.data = stream;
    if (uv_shutdown(&stream->shutdown, &stream->io.stream, on_shutdown) != 0) close_now(stream);
}

void cairn_stream_finish(struct cairn_stream *stream, cairn_status status, const char *format, ...)
{
    if (stream->state >= CAIRN_STREAM_FINISHING) return;
    va_list args;
    va_start(args, format);
    write_reason(stream, status, format, args);
    va_end(args);
    if (stream->state == CAIRN_STREAM_CONNECTING) {
        close_now(stream);
        return;
    }
    stream->state = CAIRN_STREAM_FINISHING; // a turn that is due drops what arrived, and reads on
    uv_timer_start(&stream->timer, on_finish_late, FINISH_MS, 0);
    if (!stream->is_writing) finish_sending(stream);
}

static void on_room_wanted(uv_handle_t *handle, size_t wanted, uv_buf_t *buf_out)
{
    struct cairn_stream *stream = handle->data;
    uint8_t *room = NULL;
    size_t room_bytes = 0;
    (void)wanted;
    if (cairn_frame_decoder_reserve(&stream->decoder, &room, &room_bytes) != CAIRN_FRAME_NONE)
        room_bytes = 0; // comes back as UV_ENOBUFS
    *buf_out = uv_buf_init((char *)room, (unsigned)room_bytes);
}

// Frames of one turn. False: there are more, and the turn is over.
static bool deliver_turn(struct cairn_stream *stream)
{
    const uint64_t end_ns = uv_hrtime() + TURN_NS;
    struct cairn_frame frame;
    struct cairn_sentence why;
    while (stream->state == CAIRN_STREAM_OPEN) {
        const enum cairn_frame_state found = cairn_frame_decoder_next(&stream->decoder, &frame,
                                                                      &why);
        if (found == CAIRN_FRAME_NONE) break;
        stream->unfinished_ms = uv_now(stream->turn.loop);
        if (found == CAIRN_FRAME_READY)
            stream->events.on_frame(stream, &frame, stream->context);
        else
            cairn_stream_close(stream, CAIRN_ERR_PROTOCOL, "%s", why.text);
        if (uv_hrtime() > end_ns) return false;
    }
    return true;
}

// Counts what the decoder has of the common room.
static void count_room(struct cairn_stream *stream)
{
    if (stream->room == NULL) return;
    stream->room->used_bytes += stream->decoder.capacity - stream->room_bytes; // modulo 2^64
    stream->room_bytes = stream->decoder.capacity;
}

static void on_turn(uv_idle_t *turn);

static void deliver_frames(struct cairn_stream *stream)
{
    const bool is_done = deliver_turn(stream);
    const bool waits = !is_done && stream->state == CAIRN_STREAM_OPEN;
    if (stream->state == CAIRN_STREAM_FINISHING) stream->decoder.start = stream->decoder.end;
    cairn_frame_decoder_trim(&stream->decoder);
    count_room(stream);
    if (waits) {
        uv_read_stop(&stream->io.stream);
        uv_idle_start(&stream->turn, on_turn);
    }
}

static void begin_reading(struct cairn_stream *stream);

static void on_turn(uv_idle_t *turn)
{
    struct cairn_stream *stream = turn->data;
    uv_idle_stop(turn);
    deliver_frames(stream);
    if (stream->state != CAIRN_STREAM_CLOSING && !uv_is_active((uv_handle_t *)turn))
        begin_reading(stream);
}

static void on_end_of_input(struct cairn_stream *stream, ssize_t error)
{
    if (error == UV_ENOBUFS) {
        cairn_stream_close(stream, CAIRN_ERR_NO_MEMORY, "no memory to receive from %s",
                           stream->peer);
    } else if (stream->state == CAIRN_STREAM_FINISHING && error == UV_EOF && !stream->is_shut) {
        stream->peer_shut = true; // it still reads what we have for it
        uv_read_stop(&stream->io.stream);
    } else if (error == UV_EOF) {
        cairn_stream_close(stream, CAIRN_ERR_CLOSED, "%s closed the connection", stream->peer);
    } else {
        cairn_stream_close(stream, CAIRN_ERR_CLOSED, "reading from %s failed: %s", stream->peer,
                           uv_strerror((int)error));
    }
}

static void on_read(uv_stream_t *io, ssize_t read_bytes, const uv_buf_t *buf)
{
    struct cairn_stream *stream = io->data;
    (void)buf;
    if (read_bytes < 0) {
        on_end_of_input(stream, read_bytes);
        return;
    }
    if (stream->decoder.start == stream->decoder.end)
        stream->unfinished_ms = uv_now(stream->turn.loop);
    cairn_frame_decoder_added(&stream->decoder, (size_t)read_bytes);
    deliver_frames(stream);
    if (stream->room != NULL && stream->room->used_bytes > stream->room->max_bytes)
        stream->room->on_full(stream->room->context);
}

static void begin_reading(struct cairn_stream *stream)
{
    const int error = uv_read_start(&stream->io.stream, on_room_wanted, on_read);
    if (error == 0) return;
    cairn_stream_close(stream, CAIRN_ERR_CLOSED, "reading from %s failed: %s", stream->peer,
                       uv_strerror(error));
}

static void write_pending(struct cairn_stream *stream);

static void on_written(uv_write_t *request, int error)
{
    struct cairn_stream *stream = request->data;
    stream->is_writing = false;
    cairn_outbox_frames_empty(&stream->writing);
    if (stream->state == CAIRN_STREAM_CLOSING) return;
    if (error != 0) {
        cairn_stream_close(stream, CAIRN_ERR_CLOSED, "writing to %s failed: %s", stream->peer,
                           uv_strerror(error));
        return;
    }
    write_pending(stream);
    if (stream->state == CAIRN_STREAM_FINISHING && !stream->is_writing) finish_sending(stream);
}

// One write at a time: frames that come meanwhile go out together in the next.
static void write_pending(struct cairn_stream *stream)
{
    if (stream->is_writing) return;
    const cairn_status status = cairn_outbox_take(&stream->pending, &stream->writing);
    if (status == CAIRN_ERR_NOT_FOUND) return;
    if (status != CAIRN_OK) {
        cairn_stream_close(stream, status, "no memory for a page to %s", stream->peer);
        return;
    }
    uv_buf_t buf = uv_buf_init((char *)stream->writing.bytes, (unsigned)stream->writing.used_bytes);
    stream->write.data = stream;
    stream->is_writing = true;
    const int error = uv_write(&stream->write, &stream->io.stream, &buf, 1, on_written);
    if (error == 0) return;
    stream->is_writing = false;
    cairn_stream_close(stream, CAIRN_ERR_CLOSED, "writing to %s failed: %s", stream->peer,
                       uv_strerror(error));
}

size_t cairn_stream_unfinished_bytes(const struct cairn_stream *stream, uint64_t *since_ms_out)
{
    *since_ms_out = stream->unfinished_ms;
    if (stream->state != CAIRN_STREAM_OPEN || uv_is_active((const uv_handle_t *)&stream->turn))
        return 0; // nothing is awaited of the peer
    return stream->decoder.end - stream->decoder.start;
}

size_t cairn_stream_queued_bytes(const struct cairn_stream *stream)
{
    return stream->pending.frame_bytes + uv_stream_get_write_queue_size(&stream->io.stream);
}

// `queued` of `limit` bytes wait, and `more` are to.
static cairn_status judge_send(struct cairn_stream *stream, uint64_t queued, uint64_t more,
                               uint64_t limit, struct cairn_sentence *why)
{
    if (stream->state >= CAIRN_STREAM_FINISHING)
        return cairn_fail(why, CAIRN_ERR_CLOSED, "the connection to %s is closed: %s", stream->peer,
                          cairn_sentence_brief(stream->why.text, 600).text);
    if (more <= limit && queued <= limit - more) return CAIRN_OK;
    cairn_stream_close(stream, CAIRN_ERR_BUSY,
                       "%s does not read: %" PRIu64 " bytes wait for it, the limit is %" PRIu64,
                       stream->peer, queued, limit);
    return cairn_fail(why, CAIRN_ERR_BUSY, "%s", stream->why.text);
}

// A whole frame in one or two pieces.
static cairn_status queue_frame(struct cairn_stream *stream, const uint8_t *head, size_t head_bytes,
                                const uint8_t *tail, size_t tail_bytes, struct cairn_sentence *why)
{
    cairn_status status = judge_send(stream, cairn_stream_queued_bytes(stream),
                                     head_bytes + tail_bytes, stream->send_queue_bytes, why);
    if (status != CAIRN_OK) return status;
    status = cairn_outbox_add(&stream->pending, head, head_bytes, tail, tail_bytes);
    if (status != CAIRN_OK)
        return cairn_fail(why, status, "no memory to queue %zu bytes for %s",
                          head_bytes + tail_bytes, stream->peer);
    if (stream->state == CAIRN_STREAM_OPEN) write_pending(stream);
    return CAIRN_OK;
}

cairn_status cairn_stream_send_bytes(struct cairn_stream *stream, uint16_t type, uint32_t request,
                                     const void *payload, size_t payload_bytes,
                                     struct cairn_sentence *why)
{
    uint8_t header[CAIRN_FRAME_HEADER_BYTES];
    if (payload_bytes > CAIRN_FRAME_BYTES_MAX - sizeof header)
        return cairn_fail(why, CAIRN_ERR_INVALID, "%zu bytes are larger than a frame may be",
                          payload_bytes);
    cairn_frame_header_write(header, type, request, (uint32_t)payload_bytes);
    return queue_frame(stream, header, sizeof header, payload, payload_bytes, why);
}

cairn_status cairn_stream_send(struct cairn_stream *stream, uint16_t type, uint32_t request,
                               const ProtobufCMessage *message, struct cairn_sentence *why)
{
    uint8_t *frame = NULL;
    size_t frame_bytes = 0;
    cairn_status status = cairn_frame_pack(type, request, message, CAIRN_FRAME_BYTES_MAX, &frame,
                                           &frame_bytes, why);
    if (status != CAIRN_OK) return status;
    status = queue_frame(stream, frame, frame_bytes, NULL, 0, why);
    free(frame);
    return status;
}

cairn_status cairn_stream_send_pages(struct cairn_stream *stream, uint32_t request,
                                     enum cairn_page_what what, struct cairn_packed *packed,
                                     struct cairn_sentence *why)
{
    cairn_status status = judge_send(stream, stream->pending.paged_bytes, packed->size,
                                     CAIRN_STREAM_PAGED_BYTES, why);
    if (status != CAIRN_OK) return status;
    status = cairn_outbox_add_pages(&stream->pending, request, what, packed);
    if (status != CAIRN_OK)
        return cairn_fail(why, status, "no memory to queue pages for %s", stream->peer);
    if (stream->state == CAIRN_STREAM_OPEN) write_pending(stream);
    return CAIRN_OK;
}

void cairn_stream_begin(struct cairn_stream *stream)
{
    stream->state = CAIRN_STREAM_OPEN;
    begin_reading(stream);
    if (stream->state == CAIRN_STREAM_OPEN) write_pending(stream);
}

void cairn_stream_limit(struct cairn_stream *stream, struct cairn_frame_limits limits)
{
    cairn_frame_decoder_limit(&stream->decoder, limits);
}

const char *cairn_stream_peer(const struct cairn_stream *stream)
{
    return stream->peer;
}

int cairn_stream_descriptor(const struct cairn_stream *stream)
{
    uv_os_fd_t fd = -1;
    return uv_fileno(&stream->io.handle, &fd) == 0 ? fd : -1;
}
