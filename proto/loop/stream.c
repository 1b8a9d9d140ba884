#include "proto/loop/loop.h"

#include <assert.h>
#include <grp.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The inside of a stream: how it moves frames, and how it ends.
 *
 * A TCP stream has a channel between its socket and its frames. Bytes that arrive wait in `arrived` until
 * the channel takes them; the plain bytes of a record wait in `plain` until the decoder has room. Frames
 * to send are taken from the outbox into `writing`, and sealed into `sealed`, which is with the kernel.
 * The stream of a Unix socket has none of this: the decoder reads from the socket, and `writing` is with
 * the kernel. */

enum stream_state {
    CAIRN_STREAM_CONNECTING, /* frames wait in `pending` */
    CAIRN_STREAM_GREETING,   /* the same, during the handshake of a TCP stream */
    CAIRN_STREAM_OPEN,
    CAIRN_STREAM_FINISHING, /* queued frames are sent, arriving frames are dropped */
    CAIRN_STREAM_CLOSING,   /* handles are being closed; on_close runs when `open_count` is 0 */
};

/* Only a TCP stream has these, between its socket and its frames. */
struct stream_records {
    struct channel *channel;   /* NULL: a Unix socket */
    struct byte_queue sealed;  /* what the channel has to write */
    struct byte_queue arrived; /* what the channel has not taken yet; part of a record */
    struct byte_queue plain;   /* what the decoder has not taken yet; at most a record */
    bool said_close;  /* our CLOSE record is written, or the channel is of no use for one */
    bool heard_close; /* the peer's CLOSE record has come */
};

/* Libuv is asked for one of each at a time. */
struct stream_requests {
    uv_write_t write;
    uv_connect_t connect;
    uv_shutdown_t shutdown;
    uv_getaddrinfo_t resolve;
};

struct stream {
    /* owned */
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } io;
    /* the deadline of connecting, then of finishing; in between, when a share is paid for */
    uv_timer_t timer;
    /* runs while frames that have arrived wait for the next turn; meanwhile nothing is read */
    uv_idle_t turn;
    struct frame_decoder decoder;
    struct outbox pending; /* grows while a write is with the kernel */
    struct outbox_frames writing;
    struct stream_records records;
    struct stream_requests requests;
    struct dial *dial; /* NULL: a Unix socket, or it is connected */

    struct share_claim claim;
    enum stream_state state;
    int open_count; /* how many of io, timer, turn and resolve libuv still knows */
    bool is_resolving;
    bool is_redialing; /* `io` is being closed, to be opened anew for the next address */
    bool is_connector;
    bool is_writing;
    bool is_shut;        /* we ended our direction (FINISHING) */
    bool peer_shut;      /* the peer ended its direction */
    cairn_status status; /* the reason of the end, when it is decided */
    struct sentence why;
    size_t send_queue_bytes;
    size_t room_bytes;      /* the bytes of `room` that this stream uses */
    uint64_t unfinished_ms; /* when the incomplete frame, or its record, began (the loop's clock) */
    uint64_t timeout_ms;
    char peer[CAIRN_ADDRESS_TEXT_BYTES];

    /* borrowed */
    struct stream_room *room; /* may be NULL */
    struct stream_events events;
    void *context;
};

/* The addresses of a peer, which are tried in turn. */
struct dial {
    struct socket_addresses addresses;
    size_t next; /* addresses before this were tried */
    uint64_t deadline_ms;
};

#define FINISH_MS  2000        // how long a peer may take to read its last frames
#define KEEP_BYTES (64u << 10) // larger buffers are freed when empty
#define TURN_NS    (CAIRN_STREAM_TURN_MS * UINT64_C(1000000))

/* Bytes read at once: before the peer's handshake is done, then, and while a record is incomplete. */
#define GREETING_BYTES CAIRN_HANDSHAKE_MOST_BYTES
#define READ_BYTES     4096 // an idle connection keeps a buffer of so much
#define RECORD_BYTES   (CAIRN_RECORD_BYTES_MAX + 64)

static void on_turn(uv_idle_t *turn);
static void begin_reading(struct stream *stream);
static void write_pending(struct stream *stream);

/* ==== share ==== */

#define SHARE_NS (CAIRN_STREAM_SHARE_US * UINT64_C(1000))
#define BURST_NS (CAIRN_STREAM_BURST_MS * UINT64_C(1000000))

void share_claim(struct share_claim *claim, struct stream_share *share)
{
    *claim = (struct share_claim) { share, share->turn - 1, share->round - 1 };
}

/* A stream asks once a turn of the loop, so one that asks again begins another turn; and if nobody was served
 * in a turn, all have been in this round. */
bool share_take(struct share_claim *claim)
{
    struct stream_share *share = claim->share;
    if (claim->turn == share->turn) {
        if (share->served == 0) share->round++;
        share->turn++;
        share->served = 0;
        share->used_ns = 0;
    }
    claim->turn = share->turn;
    if (share->used_ns >= SHARE_NS || claim->round == share->round) return false;
    claim->round = share->round;
    share->served++;
    return true;
}

uint64_t share_left_ns(const struct stream_share *share)
{
    return share->used_ns < SHARE_NS ? SHARE_NS - share->used_ns : 0;
}

uint64_t share_rest_ms(const struct stream_share *share, uint64_t now_ns)
{
    const uint64_t free_ns = now_ns + BURST_NS;
    return share->paid_ns > free_ns ? (share->paid_ns - free_ns) / 1000000 + 1 : 0;
}

void share_pay(struct stream_share *share, uint64_t begin_ns, uint64_t now_ns)
{
    share->used_ns += now_ns - begin_ns;
    if (share->paid_ns < begin_ns) share->paid_ns = begin_ns;
    share->paid_ns += (now_ns - begin_ns) * CAIRN_STREAM_SHARE_OF;
}

/* ==== stream ==== */

/* Returns a stream with its handles initialized; NULL, with a sentence in `why`, if there is no memory. */
static struct stream *stream_new(uv_loop_t *loop, bool is_unix,
                                 const struct stream_options *options,
                                 const struct stream_events *events, void *context,
                                 struct sentence *why)
{
    struct stream *stream = calloc(1, sizeof *stream);
    assert(is_unix == (options->secure == NULL));
    if (stream == NULL ||
        (!is_unix && channel_open(options->secure, &stream->records.channel) != CAIRN_OK)) {
        free(stream);
        sentence_set(why, "out of memory for a connection");
        return NULL;
    }
    const int error = is_unix ? uv_pipe_init(loop, &stream->io.pipe, 0)
                              : uv_tcp_init(loop, &stream->io.tcp);
    assert(error == 0); // both calls only fill in the struct
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
    frame_decoder_init(&stream->decoder, options->limits);
    return stream;
}

/* Counts one handle as closed; the last one frees the stream. */
static void stream_drop(struct stream *stream)
{
    if (--stream->open_count > 0) return;
    if (stream->events.on_close != NULL)
        stream->events.on_close(stream, stream->status, stream->why.text, stream->context);
    frame_decoder_release(&stream->decoder);
    outbox_release(&stream->pending);
    outbox_frames_release(&stream->writing);
    channel_close(stream->records.channel);
    free(stream->dial);
    byte_queue_release(&stream->records.sealed);
    byte_queue_release(&stream->records.arrived);
    byte_queue_release(&stream->records.plain);
    free(stream);
}

static void on_handle_closed(uv_handle_t *handle)
{
    stream_drop(handle->data);
}

/* Tells the peer that the end is meant, if the kernel takes that now: the end is not delayed. */
static void say_close(struct stream *stream)
{
    if (stream->records.channel == NULL || stream->records.said_close || stream->is_writing) return;
    stream->records.said_close = true;
    if (channel_finish(stream->records.channel, &stream->records.sealed) != CAIRN_OK) return;
    const struct byte_queue *sealed = &stream->records.sealed;
    if (byte_queue_count(sealed) == 0) return; // the handshake is not done
    uv_buf_t buf = uv_buf_init((char *)(uintptr_t)byte_queue_first(sealed),
                               (unsigned)byte_queue_count(sealed));
    (void)uv_try_write(&stream->io.stream, &buf, 1);
}

// stream->why has been written already.
static void close_now(struct stream *stream)
{
    if (stream->state == CAIRN_STREAM_CLOSING) return;
    say_close(stream);
    stream->state = CAIRN_STREAM_CLOSING;
    // the memory is freed in the next turn
    if (stream->room != NULL) stream->room->used_bytes -= stream->room_bytes;
    stream->room = NULL;
    if (!stream->is_redialing) uv_close(&stream->io.handle, on_handle_closed);
    uv_close((uv_handle_t *)&stream->timer, on_handle_closed);
    uv_close((uv_handle_t *)&stream->turn, on_handle_closed);
    // if this fails, the request ends by itself
    if (stream->is_resolving) uv_cancel((uv_req_t *)&stream->requests.resolve);
}

static void write_reason(struct stream *stream, cairn_status status, const char *format,
                         va_list args)
{
    char text[CAIRN_SENTENCE_BYTES];
    vsnprintf(text, sizeof text, format, args);
    sentence_set(&stream->why, "%s", text);
    stream->status = status;
}

void stream_close(struct stream *stream, cairn_status status, const char *format, ...)
{
    if (stream->state < CAIRN_STREAM_FINISHING) { // in later states the first reason stays
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
    struct stream *stream = request->data;
    if (stream->state != CAIRN_STREAM_FINISHING) return;
    if (error != 0 || stream->peer_shut) close_now(stream);
    // Otherwise the peer reads everything and then closes. If we closed first, and the peer had sent more,
    // a reset could destroy data that the peer has not read yet.
}

static void write_sealed(struct stream *stream);

// Ends our direction, after everything queued was written.
static void finish_sending(struct stream *stream)
{
    if (stream->is_shut) return;
    if (stream->records.channel != NULL && !stream->records.said_close) {
        stream->records.said_close = true;
        if (channel_finish(stream->records.channel, &stream->records.sealed) == CAIRN_OK)
            write_sealed(stream);
        if (stream->is_writing || stream->state == CAIRN_STREAM_CLOSING) return; // comes again
    }
    stream->is_shut = true;
    stream->requests.shutdown.data = stream;
    if (uv_shutdown(&stream->requests.shutdown, &stream->io.stream, on_shutdown) != 0)
        close_now(stream);
}

/* True if frames that have arrived wait for the next turn, or until the share is paid for. */
static bool is_waiting(const struct stream *stream)
{
    return uv_is_active((const uv_handle_t *)&stream->turn) ||
           (stream->state == CAIRN_STREAM_OPEN &&
            uv_is_active((const uv_handle_t *)&stream->timer));
}

void stream_finish(struct stream *stream, cairn_status status, const char *format, ...)
{
    if (stream->state >= CAIRN_STREAM_FINISHING) return;
    va_list args;
    va_start(args, format);
    write_reason(stream, status, format, args);
    va_end(args);
    if (stream->state < CAIRN_STREAM_OPEN) {
        close_now(stream);
        return;
    }
    if (is_waiting(stream)) uv_idle_start(&stream->turn, on_turn);
    stream->state = CAIRN_STREAM_FINISHING; // a due turn drops what arrived, and reads on
    uv_timer_start(&stream->timer, on_finish_late, FINISH_MS, 0);
    if (!stream->is_writing) finish_sending(stream);
}

static size_t held_by_channel(const struct stream *stream)
{
    return stream->records.channel != NULL ? channel_held_bytes(stream->records.channel) : 0;
}

/* Returns how much is read at once. Only who has proved a record to be long gets much. */
static size_t bytes_to_read(const struct stream *stream)
{
    if (!channel_is_up(stream->records.channel)) return GREETING_BYTES;
    return held_by_channel(stream) > READ_BYTES ? RECORD_BYTES : READ_BYTES;
}

/* Lends room behind the bytes that arrived; the channel has taken all that it could. */
static void reserve_arrived(struct stream *stream, uint8_t **room_out, size_t *room_bytes_out)
{
    struct byte_queue *arrived = &stream->records.arrived;
    const size_t most = bytes_to_read(stream);
    const size_t held = byte_queue_count(arrived);
    *room_bytes_out = 0;
    if (held >= most || byte_queue_reserve(arrived, most - held) != CAIRN_OK) return;
    *room_out = arrived->bytes + arrived->end;
    *room_bytes_out = most - held;
}

static void on_room_wanted(uv_handle_t *handle, size_t wanted, uv_buf_t *buf_out)
{
    struct stream *stream = handle->data;
    uint8_t *room = NULL;
    size_t room_bytes = 0;
    (void)wanted;
    if (stream->records.channel != NULL)
        reserve_arrived(stream, &room, &room_bytes);
    else if (frame_decoder_reserve(&stream->decoder, &room, &room_bytes) != CAIRN_FRAME_NONE)
        room_bytes = 0; // libuv then calls back with UV_ENOBUFS
    *buf_out = uv_buf_init((char *)room, (unsigned)room_bytes);
}

// Delivers the frames of one turn. Returns false if there are more frames, and the turn is over.
static bool deliver_turn(struct stream *stream, uint64_t end_ns)
{
    struct wire_frame frame;
    struct sentence why;
    while (stream->state == CAIRN_STREAM_OPEN) {
        const enum frame_state found = frame_decoder_next(&stream->decoder, &frame, &why);
        if (found == CAIRN_FRAME_NONE) break;
        stream->unfinished_ms = uv_now(stream->turn.loop);
        if (found == CAIRN_FRAME_READY)
            stream->events.on_frame(stream, &frame, stream->context);
        else
            stream_close(stream, CAIRN_ERR_PROTOCOL, "%s", why.text);
        if (uv_hrtime() > end_ns) return false;
    }
    return true;
}

// Counts this stream's share of the common room.
static void count_room(struct stream *stream)
{
    const size_t bytes = stream->decoder.capacity + stream->records.arrived.capacity +
                         stream->records.plain.capacity + held_by_channel(stream);
    if (stream->room == NULL) return;
    stream->room->used_bytes += bytes - stream->room_bytes; // modulo 2^64
    stream->room_bytes = bytes;
}

static void wait_for_turn(struct stream *stream)
{
    uv_read_stop(&stream->io.stream);
    uv_idle_start(&stream->turn, on_turn);
}

static void deliver_frames(struct stream *stream, uint64_t end_ns)
{
    const bool is_done = deliver_turn(stream, end_ns);
    const bool waits = !is_done && stream->state == CAIRN_STREAM_OPEN;
    if (stream->state == CAIRN_STREAM_FINISHING) stream->decoder.start = stream->decoder.end;
    frame_decoder_trim(&stream->decoder);
    if (waits) wait_for_turn(stream);
}

/* ---- records ---- */

/* The handshake is done: from now on the stream is as one without a channel. */
static void greeted(struct stream *stream)
{
    uv_timer_stop(&stream->timer);
    stream->state = CAIRN_STREAM_OPEN;
    write_pending(stream);
    if (stream->state == CAIRN_STREAM_OPEN && stream->events.on_open != NULL)
        stream->events.on_open(stream, stream->context);
}

/* The peer, or somebody between, is not who it should be, or refuses us. A peer that knows the secret is told
 * why; a stranger hears nothing. */
static void end_channel(struct stream *stream, cairn_status status, const char *why)
{
    stream->records.said_close = true; // no record is sealed any more
    if (stream->state != CAIRN_STREAM_GREETING || stream->is_writing ||
        channel_greet(stream->records.channel, &stream->records.sealed) != CAIRN_OK ||
        byte_queue_count(&stream->records.sealed) == 0) {
        stream_close(stream, status, "%s", why);
        return;
    }
    sentence_set(&stream->why, "%s", why);
    stream->status = status;
    stream->state = CAIRN_STREAM_FINISHING;
    uv_timer_start(&stream->timer, on_finish_late, FINISH_MS, 0);
    write_sealed(stream);
}

/* Opens the next record, or takes a step of the handshake. Returns false if more bytes must arrive first, or
 * the stream has ended. */
static bool take_record(struct stream *stream)
{
    struct byte_queue *arrived = &stream->records.arrived;
    struct sentence why = { "" }, text = { "" };
    size_t used = 0;
    if (byte_queue_count(arrived) == 0) return false;
    const cairn_status status = channel_take(stream->records.channel, byte_queue_first(arrived),
                                             byte_queue_count(arrived), 1, &used,
                                             &stream->records.plain, &why);
    byte_queue_drop(arrived, used);
    stream->records.heard_close = status == CAIRN_ERR_CLOSED;
    if (status != CAIRN_OK && status != CAIRN_ERR_CLOSED) {
        sentence_set(&text, "%s%s%s", stream->is_connector ? stream->peer : "",
                     stream->is_connector ? ": " : "", why.text);
        end_channel(stream, status, text.text);
        return false;
    }
    if (stream->state == CAIRN_STREAM_GREETING && channel_is_up(stream->records.channel))
        greeted(stream);
    else if (stream->state == CAIRN_STREAM_GREETING)
        write_pending(stream);
    return used > 0 || stream->records.heard_close;
}

/* Gives the decoder as many plain bytes as it has room for. */
static void feed_decoder(struct stream *stream)
{
    struct byte_queue *plain = &stream->records.plain;
    size_t taken;
    if (frame_decoder_feed(&stream->decoder, byte_queue_first(plain), byte_queue_count(plain),
                           &taken) == CAIRN_FRAME_NONE)
        byte_queue_drop(plain, taken);
    else
        stream_close(stream, CAIRN_ERR_NO_MEMORY, "out of memory to receive from %s", stream->peer);
}

static void on_end_of_input(struct stream *stream, ssize_t error);

/* Frees what a connection need not keep while it is idle. A long record of which a part has come goes on. */
static void trim_queue(const struct stream *stream, struct byte_queue *queue)
{
    const bool is_over = stream->state >= CAIRN_STREAM_FINISHING;
    if (!is_over && (byte_queue_count(queue) > 0 || held_by_channel(stream) > READ_BYTES)) return;
    if (is_over || queue->capacity > 2 * READ_BYTES) byte_queue_release(queue);
}

static bool has_more(const struct stream *stream)
{
    return stream->state == CAIRN_STREAM_OPEN &&
           (stream->records.heard_close ||
            byte_queue_count(&stream->records.plain) + byte_queue_count(&stream->records.arrived) >
                0);
}

/* Opens records and delivers their frames, until none is left or the turn is over. */
static void deliver_records(struct stream *stream, uint64_t end_ns)
{
    while (stream->state < CAIRN_STREAM_FINISHING && !is_waiting(stream)) {
        if (byte_queue_count(&stream->records.plain) > 0) {
            feed_decoder(stream);
            deliver_frames(stream, end_ns);
        } else if (stream->records.heard_close) {
            on_end_of_input(stream, UV_EOF);
        } else if (!take_record(stream)) {
            break;
        }
        // many records may make no frame
        if (has_more(stream) && !is_waiting(stream) && uv_hrtime() > end_ns) wait_for_turn(stream);
    }
    trim_queue(stream, &stream->records.arrived);
    trim_queue(stream, &stream->records.plain);
}

/* Delivers what has arrived. */
static void deliver_until(struct stream *stream, uint64_t end_ns)
{
    if (stream->state != CAIRN_STREAM_GREETING) deliver_frames(stream, end_ns);
    if (stream->records.channel != NULL) deliver_records(stream, end_ns);
    count_room(stream);
}

/* ---- a share of the turn ---- */

static void on_paid(uv_timer_t *timer)
{
    wait_for_turn(timer->data);
}

static void rest(struct stream *stream, uint64_t rest_ms)
{
    uv_read_stop(&stream->io.stream);
    uv_idle_stop(&stream->turn);
    uv_timer_start(&stream->timer, on_paid, rest_ms, 0);
}

static bool has_bounded_share(const struct stream *stream)
{
    return stream->state == CAIRN_STREAM_OPEN && stream->claim.share != NULL &&
           stream->claim.share->is_bounded;
}

/* Delivers what has arrived, as far as the share goes. */
static void deliver(struct stream *stream)
{
    struct stream_share *share = stream->claim.share;
    const uint64_t begin_ns = uv_hrtime();
    if (!has_bounded_share(stream)) {
        deliver_until(stream, begin_ns + TURN_NS);
        return;
    }
    const uint64_t rest_ms = share_rest_ms(share, begin_ns), left_ns = share_left_ns(share);
    if (rest_ms > 0)
        rest(stream, rest_ms);
    else if (left_ns == 0)
        wait_for_turn(stream);
    if (rest_ms > 0 || left_ns == 0) return;
    deliver_until(stream, begin_ns + left_ns);
    share_pay(share, begin_ns, uv_hrtime());
}

static void on_turn(uv_idle_t *turn)
{
    struct stream *stream = turn->data;
    if (has_bounded_share(stream) && !share_take(&stream->claim)) return; // asks in the next turn
    uv_idle_stop(turn);
    deliver(stream);
    if (stream->state != CAIRN_STREAM_CLOSING && !is_waiting(stream)) begin_reading(stream);
}

/* The peer has ended its direction before the handshake was done. */
static void end_in_silence(struct stream *stream)
{
    struct sentence why;
    if (!stream->is_connector) {
        stream_close(stream, CAIRN_ERR_CLOSED, "%s closed the connection before its handshake",
                     stream->peer);
        return;
    }
    handshake_silence_text(stream->peer, CAIRN_PURPOSE_CONTROL, &why);
    stream_close(stream, CAIRN_ERR_PROTOCOL, "%s", why.text);
}

static bool is_cut_off(const struct stream *stream, struct sentence *why)
{
    return stream->records.channel != NULL &&
           channel_ended(stream->records.channel, why) != CAIRN_OK;
}

static void on_end_of_input(struct stream *stream, ssize_t error)
{
    struct sentence why;
    if (error == UV_ENOBUFS) {
        stream_close(stream, CAIRN_ERR_NO_MEMORY, "out of memory to receive from %s", stream->peer);
    } else if (stream->state == CAIRN_STREAM_FINISHING && error == UV_EOF && !stream->is_shut) {
        stream->peer_shut = true; // the peer still reads our frames
        uv_read_stop(&stream->io.stream);
    } else if (stream->state == CAIRN_STREAM_GREETING) {
        end_in_silence(stream);
    } else if (error == UV_EOF && is_cut_off(stream, &why)) {
        stream_close(stream, CAIRN_ERR_CLOSED, "%s was cut off: %s", stream->peer, why.text);
    } else if (error == UV_EOF) {
        stream_close(stream, CAIRN_ERR_CLOSED, "%s closed the connection", stream->peer);
    } else {
        stream_close(stream, CAIRN_ERR_CLOSED, "reading from %s failed: %s", stream->peer,
                     uv_strerror((int)error));
    }
}

/* Returns how many bytes have arrived that are no complete frame. */
static size_t held_bytes(const struct stream *stream)
{
    return stream->decoder.end - stream->decoder.start + byte_queue_count(&stream->records.plain) +
           byte_queue_count(&stream->records.arrived) + held_by_channel(stream);
}

static void on_read(uv_stream_t *io, ssize_t read_bytes, const uv_buf_t *buf)
{
    struct stream *stream = io->data;
    (void)buf;
    if (read_bytes < 0) {
        on_end_of_input(stream, read_bytes);
        return;
    }
    if (held_bytes(stream) == 0) stream->unfinished_ms = uv_now(stream->turn.loop);
    if (stream->records.channel != NULL)
        stream->records.arrived.end += (size_t)read_bytes;
    else
        frame_decoder_added(&stream->decoder, (size_t)read_bytes);
    deliver(stream);
    if (stream->room != NULL && stream->room->used_bytes > stream->room->max_bytes)
        stream->room->on_full(stream->room->context);
}

static void begin_reading(struct stream *stream)
{
    const int error = uv_read_start(&stream->io.stream, on_room_wanted, on_read);
    if (error == 0) return;
    stream_close(stream, CAIRN_ERR_CLOSED, "reading from %s failed: %s", stream->peer,
                 uv_strerror(error));
}

static void empty_writing(struct stream *stream)
{
    if (stream->writing.capacity_bytes > KEEP_BYTES) outbox_frames_release(&stream->writing);
    stream->writing.used_bytes = 0;
}

static void empty_sealed(struct stream *stream)
{
    byte_queue_drop(&stream->records.sealed, byte_queue_count(&stream->records.sealed));
    if (stream->records.sealed.capacity > KEEP_BYTES) byte_queue_release(&stream->records.sealed);
}

static void on_written(uv_write_t *request, int error)
{
    struct stream *stream = request->data;
    stream->is_writing = false;
    empty_writing(stream);
    if (stream->records.channel != NULL) empty_sealed(stream);
    if (stream->state == CAIRN_STREAM_CLOSING) return;
    if (error != 0) {
        stream_close(stream, CAIRN_ERR_CLOSED, "writing to %s failed: %s", stream->peer,
                     uv_strerror(error));
        return;
    }
    write_pending(stream);
    if (stream->state == CAIRN_STREAM_FINISHING && !stream->is_writing) finish_sending(stream);
}

static void write_bytes(struct stream *stream, const uint8_t *bytes, size_t byte_count)
{
    uv_buf_t buf = uv_buf_init((char *)(uintptr_t)bytes, (unsigned)byte_count);
    stream->requests.write.data = stream;
    stream->is_writing = true;
    const int error = uv_write(&stream->requests.write, &stream->io.stream, &buf, 1, on_written);
    if (error == 0) return;
    stream->is_writing = false;
    stream_close(stream, CAIRN_ERR_CLOSED, "writing to %s failed: %s", stream->peer,
                 uv_strerror(error));
}

static void write_sealed(struct stream *stream)
{
    const struct byte_queue *sealed = &stream->records.sealed;
    if (byte_queue_count(sealed) > 0)
        write_bytes(stream, byte_queue_first(sealed), byte_queue_count(sealed));
}

/* Adds to `sealed` what the handshake has to say and then, if it is done, what is next of the outbox. */
static cairn_status seal_next(struct stream *stream)
{
    CAIRN_TRY(channel_greet(stream->records.channel, &stream->records.sealed));
    if (!channel_is_up(stream->records.channel) || stream->records.said_close) return CAIRN_OK;
    const cairn_status status = outbox_take(&stream->pending, &stream->writing);
    if (status == CAIRN_ERR_NOT_FOUND) return CAIRN_OK;
    CAIRN_TRY(status);
    const cairn_status sealed = channel_seal(stream->records.channel, stream->writing.bytes,
                                             stream->writing.used_bytes, uv_now(stream->turn.loop),
                                             &stream->records.sealed);
    empty_writing(stream);
    return sealed;
}

// Writes what is next, unless a write is under way: frames that are queued meanwhile go together after it.
static void write_pending(struct stream *stream)
{
    if (stream->is_writing) return;
    const cairn_status status = stream->records.channel != NULL
                                    ? seal_next(stream)
                                    : outbox_take(&stream->pending, &stream->writing);
    if (status == CAIRN_ERR_NOT_FOUND) return;
    if (status != CAIRN_OK)
        stream_close(stream, status, "out of memory for a page to %s", stream->peer);
    else if (stream->records.channel != NULL)
        write_sealed(stream);
    else
        write_bytes(stream, stream->writing.bytes, stream->writing.used_bytes);
}

size_t stream_unfinished_bytes(const struct stream *stream, uint64_t *since_ms_out)
{
    *since_ms_out = stream->unfinished_ms;
    if (stream->state != CAIRN_STREAM_OPEN || is_waiting(stream))
        return 0; // nothing is awaited from the peer
    return held_bytes(stream);
}

size_t stream_queued_bytes(const struct stream *stream)
{
    return stream->pending.frame_bytes + uv_stream_get_write_queue_size(&stream->io.stream);
}

// Checks whether `more` bytes may be queued behind `queued` bytes, if at most `limit` may wait.
static cairn_status judge_send(struct stream *stream, uint64_t queued, uint64_t more,
                               uint64_t limit, struct sentence *why)
{
    if (stream->state >= CAIRN_STREAM_FINISHING)
        return fail_with(why, CAIRN_ERR_CLOSED, "the connection to %s is closed: %s", stream->peer,
                         sentence_brief(stream->why.text, 600).text);
    if (more <= limit && queued <= limit - more) return CAIRN_OK;
    stream_close(stream, CAIRN_ERR_BUSY,
                 "%s does not read: %" PRIu64 " bytes wait for it, the limit is %" PRIu64,
                 stream->peer, queued, limit);
    return fail_with(why, CAIRN_ERR_BUSY, "%s", stream->why.text);
}

// Queues a complete frame in one or two pieces.
static cairn_status queue_frame(struct stream *stream, const uint8_t *head, size_t head_bytes,
                                const uint8_t *tail, size_t tail_bytes, struct sentence *why)
{
    CAIRN_TRY(judge_send(stream, stream_queued_bytes(stream), head_bytes + tail_bytes,
                         stream->send_queue_bytes, why));
    cairn_status status = outbox_add(&stream->pending, head, head_bytes, tail, tail_bytes);
    if (status != CAIRN_OK)
        return fail_with(why, status, "out of memory to queue %zu bytes for %s",
                         head_bytes + tail_bytes, stream->peer);
    if (stream->state == CAIRN_STREAM_OPEN) write_pending(stream);
    return CAIRN_OK;
}

cairn_status stream_send_bytes(struct stream *stream, uint16_t type, uint32_t request,
                               const void *payload, size_t payload_bytes, struct sentence *why)
{
    uint8_t header[CAIRN_FRAME_HEADER_BYTES];
    if (payload_bytes > CAIRN_FRAME_BYTES_MAX - sizeof header)
        return fail_with(why, CAIRN_ERR_INVALID, "%zu bytes are larger than a frame may be",
                         payload_bytes);
    frame_header_write(header, type, request, (uint32_t)payload_bytes);
    return queue_frame(stream, header, sizeof header, payload, payload_bytes, why);
}

cairn_status stream_send(struct stream *stream, uint16_t type, uint32_t request,
                         const ProtobufCMessage *message, struct sentence *why)
{
    uint8_t *frame = NULL;
    size_t frame_bytes = 0;
    CAIRN_TRY(frame_pack(type, request, message, CAIRN_FRAME_BYTES_MAX, &frame, &frame_bytes, why));
    cairn_status status = queue_frame(stream, frame, frame_bytes, NULL, 0, why);
    free(frame);
    return status;
}

cairn_status stream_send_pages(struct stream *stream, uint32_t request, enum page_what what,
                               struct packed *packed, struct sentence *why)
{
    CAIRN_TRY(judge_send(stream, stream->pending.paged_bytes, packed->size,
                         CAIRN_STREAM_PAGED_BYTES, why));
    cairn_status status = outbox_add_pages(&stream->pending, request, what, packed);
    if (status != CAIRN_OK)
        return fail_with(why, status, "out of memory to queue pages for %s", stream->peer);
    if (stream->state == CAIRN_STREAM_OPEN) write_pending(stream);
    return CAIRN_OK;
}

/* Called when the socket is connected: begins to read, and writes the waiting frames, or begins the
 * handshake. */
static void stream_begin(struct stream *stream)
{
    stream->state = stream->records.channel != NULL ? CAIRN_STREAM_GREETING : CAIRN_STREAM_OPEN;
    begin_reading(stream);
    if (stream->state < CAIRN_STREAM_FINISHING) write_pending(stream);
}

void stream_set_share(struct stream *stream, struct stream_share *share)
{
    share_claim(&stream->claim, share);
}

void stream_limit(struct stream *stream, struct frame_limits limits)
{
    frame_decoder_limit(&stream->decoder, limits);
}

const char *stream_peer(const struct stream *stream)
{
    return stream->peer;
}

bool stream_is_proved(const struct stream *stream)
{
    return stream->records.channel == NULL || channel_is_proved(stream->records.channel);
}

const struct handshake_result *stream_session(const struct stream *stream)
{
    if (stream->records.channel == NULL || !channel_is_up(stream->records.channel)) return NULL;
    return channel_peer(stream->records.channel);
}

int stream_descriptor(const struct stream *stream)
{
    uv_os_fd_t fd = -1;
    return uv_fileno(&stream->io.handle, &fd) == 0 ? fd : -1;
}

/* ==== connect ==== */

/* How a stream begins: connecting (with name service and a deadline) and accepting. */

/* Closes the stream, since permission is denied and no later attempt helps. `path` is the socket, whose
 * mode decides. */
static void refuse_path(struct stream *stream, const char *path)
{
    struct stat socket;
    struct group group, *found = NULL;
    char names[1024];
    const bool is_seen = stat(path, &socket) == 0;
    if (is_seen) (void)getgrgid_r(socket.st_gid, &group, names, sizeof names, &found);
    stream_close(stream, CAIRN_ERR_REFUSED,
                 "cannot connect to %s: permission denied; only the socket's user and its "
                 "group%s%s may: have this user added to the group, and log in anew",
                 path, found != NULL ? " " : "", found != NULL ? found->gr_name : "");
}

static void fail(struct stream *stream, int error)
{
    if (error == UV_EACCES && stream->peer[0] == '/') {
        refuse_path(stream, stream->peer);
        return;
    }
    const bool is_ours = error == UV_EMFILE || error == UV_ENFILE || error == UV_ENOMEM ||
                         error == UV_ENOBUFS;
    const struct dial *dial = stream->dial;
    char last[CAIRN_ADDRESS_TEXT_BYTES + 64] = "";
    if (dial != NULL && dial->addresses.count > 1) {
        char text[CAIRN_ADDRESS_TEXT_BYTES];
        address_print_socket(&dial->addresses.list[dial->next - 1], text);
        snprintf(last, sizeof last, ": %s is the last of its %zu addresses", text,
                 dial->addresses.count);
    }
    stream_close(stream, is_ours ? CAIRN_ERR_NO_MEMORY : CAIRN_ERR_UNREACHABLE,
                 "cannot connect to %s%s: %s", stream->peer, last, uv_strerror(error));
}

static bool may_dial(const struct stream *stream)
{
    return stream->state == CAIRN_STREAM_CONNECTING && stream->dial != NULL &&
           stream->dial->next < stream->dial->addresses.count;
}

static uint64_t left_ms(const struct stream *stream)
{
    const uint64_t now_ms = uv_now(stream->timer.loop), end_ms = stream->dial->deadline_ms;
    return end_ms > now_ms ? end_ms - now_ms : 0;
}

static void redial(struct stream *stream);

static void on_connect_late(uv_timer_t *timer)
{
    struct stream *stream = timer->data;
    if (may_dial(stream) && left_ms(stream) > 0)
        redial(stream);
    else if (stream->state == CAIRN_STREAM_GREETING)
        stream_close(stream, CAIRN_ERR_TIMEOUT,
                     "%s took the connection, but not the handshake within %" PRIu64
                     " ms: it is busy, or no coordinator listens there",
                     stream->peer, stream->timeout_ms);
    else
        stream_close(stream, CAIRN_ERR_TIMEOUT, "no connection to %s within %" PRIu64 " ms",
                     stream->peer, stream->timeout_ms);
}

static void connect_failed(struct stream *stream, int error)
{
    if (may_dial(stream))
        redial(stream);
    else
        fail(stream, error);
}

/* The rest of the time is for the address that is being tried, and for its handshake. */
static void await_deadline(struct stream *stream)
{
    uv_timer_start(&stream->timer, on_connect_late, left_ms(stream), 0);
}

/* Others are left, and the name service may have taken most of the time. */
static void await_patiently(struct stream *stream)
{
    const uint64_t rest_ms = left_ms(stream);
    const uint64_t patience_ms = address_patience_ms(stream->dial->addresses.count,
                                                     stream->timeout_ms);
    uv_timer_start(&stream->timer, on_connect_late, patience_ms < rest_ms ? patience_ms : rest_ms,
                   0);
}

static void on_connected(uv_connect_t *request, int error)
{
    struct stream *stream = request->data;
    if (stream->state != CAIRN_STREAM_CONNECTING || stream->is_redialing)
        return; // closed meanwhile
    if (error != 0) {
        connect_failed(stream, error);
        return;
    }
    if (stream->records.channel == NULL)
        uv_timer_stop(&stream->timer);
    else
        await_deadline(stream);
    free(stream->dial);
    stream->dial = NULL;
    if (stream->io.handle.type == UV_TCP) uv_tcp_nodelay(&stream->io.tcp, 1);
    stream_begin(stream);
    if (stream->state == CAIRN_STREAM_OPEN && stream->events.on_open != NULL)
        stream->events.on_open(stream, stream->context);
}

static void tell_dial(struct stream *stream)
{
    if (stream->events.on_dial != NULL) stream->events.on_dial(stream, stream->context);
}

/* Tries the next address. */
static void dial_next(struct stream *stream)
{
    struct dial *dial = stream->dial;
    const struct sockaddr_storage *addr = &dial->addresses.list[dial->next++];
    stream->requests.connect.data = stream;
    if (may_dial(stream))
        await_patiently(stream);
    else
        await_deadline(stream);
    const int error = uv_tcp_connect(&stream->requests.connect, &stream->io.tcp,
                                     (const struct sockaddr *)addr, on_connected);
    if (error != 0)
        connect_failed(stream, error);
    else
        tell_dial(stream);
}

static void on_io_closed(uv_handle_t *handle)
{
    struct stream *stream = handle->data;
    stream->is_redialing = false;
    if (stream->state != CAIRN_STREAM_CONNECTING) {
        stream_drop(stream);
        return;
    }
    uv_tcp_init(stream->timer.loop, &stream->io.tcp);
    stream->io.handle.data = stream;
    dial_next(stream);
}

/* Gives up the address that is being tried, for the next one. */
static void redial(struct stream *stream)
{
    if (stream->is_redialing) return;
    stream->is_redialing = true;
    uv_close(&stream->io.handle, on_io_closed);
}

static void on_resolved(uv_getaddrinfo_t *request, int error, struct addrinfo *found)
{
    struct stream *stream = request->data;
    stream->is_resolving = false;
    if (stream->state == CAIRN_STREAM_CONNECTING) {
        if (error == 0) address_take(found, &stream->dial->addresses);
        if (error == 0 && stream->dial->addresses.count == 0) error = UV_EAI_ADDRFAMILY;
        if (error != 0)
            fail(stream, error);
        else
            dial_next(stream);
    }
    uv_freeaddrinfo(found);
    stream_drop(stream);
}

static void resolve_name(struct stream *stream, const struct stream_address *address)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
    char port[8];
    snprintf(port, sizeof port, "%u", address->port);
    stream->requests.resolve.data = stream;
    const int error = uv_getaddrinfo(stream->io.handle.loop, &stream->requests.resolve, on_resolved,
                                     address->host, port, &hints);
    if (error != 0) {
        fail(stream, error);
        return;
    }
    stream->is_resolving = true;
    stream->open_count++;
}

static void connect_unix(struct stream *stream, const struct stream_address *address)
{
    stream->requests.connect.data = stream;
    uv_pipe_connect(&stream->requests.connect, &stream->io.pipe, address->host, on_connected);
    tell_dial(stream);
}

static void connect_tcp(struct stream *stream, const struct stream_address *address)
{
    struct sockaddr_storage *addr = &stream->dial->addresses.list[0];
    const bool is_number =
        uv_ip4_addr(address->host, address->port, (struct sockaddr_in *)addr) == 0 ||
        uv_ip6_addr(address->host, address->port, (struct sockaddr_in6 *)addr) == 0;
    stream->dial->deadline_ms = uv_now(stream->timer.loop) + stream->timeout_ms;
    stream->dial->addresses.count = is_number ? 1 : 0;
    if (is_number)
        dial_next(stream);
    else
        resolve_name(stream, address);
}

cairn_status stream_connect(uv_loop_t *loop, const struct stream_address *address,
                            uint64_t timeout_ms, const struct stream_options *options,
                            const struct stream_events *events, void *context,
                            struct stream **stream_out, struct sentence *why)
{
    struct dial *dial = address->is_unix ? NULL : calloc(1, sizeof *dial);
    if (!address->is_unix && dial == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a connection");
    struct stream *stream = stream_new(loop, address->is_unix, options, events, context, why);
    if (stream == NULL) {
        free(dial);
        return CAIRN_ERR_NO_MEMORY;
    }
    stream->dial = dial;
    stream->state = CAIRN_STREAM_CONNECTING;
    stream->is_connector = true;
    stream->timeout_ms = timeout_ms;
    address_print(address, stream->peer);
    uv_timer_start(&stream->timer, on_connect_late, timeout_ms, 0);
    if (address->is_unix)
        connect_unix(stream, address);
    else
        connect_tcp(stream, address);
    *stream_out = stream; // on_close reports a connect that has failed already
    return CAIRN_OK;
}

/* Names the process that connected, as the kernel saw that process at the time. */
static void name_process(struct stream *stream)
{
    struct ucred who = { 0 };
    socklen_t who_bytes = sizeof who;
    if (getsockopt(stream_descriptor(stream), SOL_SOCKET, SO_PEERCRED, &who, &who_bytes) == 0)
        snprintf(stream->peer, sizeof stream->peer, "pid=%ld,uid=%lu", (long)who.pid,
                 (unsigned long)who.uid);
    else
        snprintf(stream->peer, sizeof stream->peer, "unix");
}

static void name_peer(struct stream *stream)
{
    struct sockaddr_storage addr = { 0 };
    int addr_bytes = sizeof addr;
    if (stream->io.handle.type != UV_TCP)
        name_process(stream);
    else if (uv_tcp_getpeername(&stream->io.tcp, (struct sockaddr *)&addr, &addr_bytes) != 0)
        snprintf(stream->peer, sizeof stream->peer, "a peer that is gone");
    else
        address_print_socket(&addr, stream->peer);
}

cairn_status stream_accept(uv_stream_t *server, const struct stream_options *options,
                           const struct stream_events *events, void *context,
                           struct stream **stream_out, struct sentence *why)
{
    struct stream *stream = stream_new(server->loop, server->type == UV_NAMED_PIPE, options, events,
                                       context, why);
    if (stream == NULL) return CAIRN_ERR_NO_MEMORY;
    const int error = uv_accept(server, &stream->io.stream);
    if (error != 0) {
        stream->events.on_close = NULL; // the caller never got the stream
        stream_close(stream, CAIRN_ERR_CLOSED, "accept: %s", uv_strerror(error));
        return fail_with(why, CAIRN_ERR_CLOSED, "cannot accept a connection: %s",
                         uv_strerror(error));
    }
    name_peer(stream);
    if (stream->io.handle.type == UV_TCP) uv_tcp_nodelay(&stream->io.tcp, 1);
    stream_begin(stream);
    *stream_out = stream;
    return CAIRN_OK;
}
