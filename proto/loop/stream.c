#include "proto/loop/loop.h"

#include <arpa/inet.h>
#include <assert.h>
#include <grp.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "proto/wire/wire.h"

/* The inside of a stream: how it moves frames, and how it ends. */

enum stream_state {
    CAIRN_STREAM_CONNECTING, /* frames wait in `pending` */
    CAIRN_STREAM_OPEN,
    CAIRN_STREAM_FINISHING, /* queued frames are sent, arriving frames are dropped */
    CAIRN_STREAM_CLOSING,   /* handles are being closed; on_close runs when `open_count` is 0 */
};

struct stream {
    /* owned */
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } io;
    uv_timer_t timer; /* the deadline of connecting, then the deadline of finishing */
    /* runs while frames that have arrived wait for the next turn; meanwhile nothing is read */
    uv_idle_t turn;
    struct frame_decoder decoder;
    struct outbox pending; /* grows while `writing` is with the kernel */
    struct outbox_frames writing;
    uv_write_t write;
    uv_connect_t connect;
    uv_shutdown_t shutdown;
    uv_getaddrinfo_t resolve;

    enum stream_state state;
    int open_count; /* how many of io, timer, turn and resolve libuv still knows */
    bool is_resolving;
    bool is_writing;
    bool is_shut;        /* we ended our direction (FINISHING) */
    bool peer_shut;      /* the peer ended its direction */
    cairn_status status; /* the reason of the end, when it is decided */
    struct sentence why;
    size_t send_queue_bytes;
    size_t room_bytes;      /* the bytes of `room` that the decoder uses */
    uint64_t unfinished_ms; /* when the incomplete frame began, by the loop's clock */
    uint64_t timeout_ms;
    char peer[CAIRN_ADDRESS_TEXT_BYTES];

    /* borrowed */
    struct stream_room *room; /* may be NULL */
    struct stream_events events;
    void *context;
};

#define FINISH_MS 2000 // how long a peer may take to read its last frames
#define TURN_NS   (CAIRN_STREAM_TURN_MS * UINT64_C(1000000))

static const struct addrinfo *address_choose(const struct addrinfo *list);
static void on_turn(uv_idle_t *turn);
static void begin_reading(struct stream *stream);
static void write_pending(struct stream *stream);

/* ==== outbox ==== */

#define KEEP_BYTES (64u << 10) // larger buffers are freed when empty

struct outbox_pages {
    struct outbox_pages *next;
    struct packed *packed; /* held */
    size_t offset;         /* the bytes before this offset were taken */
    uint32_t request;
    enum page_what what;
    struct outbox_frames behind; /* frames between these pages and the next pages */
};

static void outbox_frames_release(struct outbox_frames *frames)
{
    free(frames->bytes);
    *frames = (struct outbox_frames) { 0 };
}

// The capacity at least doubles if it must grow. The sender has checked the queue's bound.
static cairn_status reserve(struct outbox_frames *frames, size_t more_bytes)
{
    if (more_bytes <= frames->capacity_bytes - frames->used_bytes) return CAIRN_OK;
    size_t capacity = frames->used_bytes + more_bytes;
    if (capacity < 2 * frames->capacity_bytes) capacity = 2 * frames->capacity_bytes;
    uint8_t *grown = realloc(frames->bytes, capacity);
    if (grown == NULL) return CAIRN_ERR_NO_MEMORY;
    frames->bytes = grown;
    frames->capacity_bytes = capacity;
    return CAIRN_OK;
}

static void append(struct outbox_frames *frames, const uint8_t *bytes, size_t byte_count)
{
    if (byte_count > 0) memcpy(frames->bytes + frames->used_bytes, bytes, byte_count);
    frames->used_bytes += byte_count;
}

/* Adds a frame: its header and the bytes that follow. CAIRN_ERR_NO_MEMORY: nothing was added. */
static cairn_status outbox_add(struct outbox *box, const uint8_t *head, size_t head_bytes,
                               const uint8_t *tail, size_t tail_bytes)
{
    struct outbox_frames *frames = box->last != NULL ? &box->last->behind : &box->frames;
    CAIRN_TRY(reserve(frames, head_bytes + tail_bytes));
    append(frames, head, head_bytes);
    append(frames, tail, tail_bytes);
    box->frame_bytes += head_bytes + tail_bytes;
    return CAIRN_OK;
}

/* Adds a Page frame for each CAIRN_PAGE_BYTES of `packed`, and holds `packed` until all pages are taken. */
static cairn_status outbox_add_pages(struct outbox *box, uint32_t request, enum page_what what,
                                     struct packed *packed)
{
    if (packed->size == 0) return CAIRN_OK;
    struct outbox_pages *pages = calloc(1, sizeof *pages);
    if (pages == NULL) return CAIRN_ERR_NO_MEMORY;
    pages->packed = packed_hold(packed);
    pages->request = request;
    pages->what = what;
    if (box->last != NULL)
        box->last->next = pages;
    else
        box->first = pages;
    box->last = pages;
    box->paged_bytes += packed->size;
    return CAIRN_OK;
}

/* Drops the first pages, which were sent: the frames behind them are next. */
static void drop_first(struct outbox *box)
{
    struct outbox_pages *pages = box->first;
    outbox_frames_release(&box->frames);
    box->frames = pages->behind;
    box->first = pages->next;
    if (box->first == NULL) box->last = NULL;
    box->paged_bytes -= pages->packed->size;
    packed_release(pages->packed);
    free(pages);
}

static cairn_status take_page(struct outbox *box, struct outbox_frames *out)
{
    struct outbox_pages *pages = box->first;
    const struct packed *packed = pages->packed;
    Cairn__Page page;
    uint8_t *frame;
    size_t frame_bytes;
    const size_t cut = page_cut(pages->what, packed->bytes, packed->size, pages->offset, &page);
    CAIRN_TRY(frame_pack(CAIRN_MSG_PAGE, pages->request, &page.base, CAIRN_FRAME_BYTES_MAX, &frame,
                         &frame_bytes, NULL));
    outbox_frames_release(out);
    *out = (struct outbox_frames) { frame, frame_bytes, frame_bytes };
    pages->offset += cut;
    if (pages->offset == packed->size) drop_first(box);
    return CAIRN_OK;
}

/* Moves the next data to write to `out`, which is empty: all frames at the front, or one page.
 * CAIRN_ERR_NOT_FOUND: nothing waits. CAIRN_ERR_NO_MEMORY: nothing was moved. */
static cairn_status outbox_take(struct outbox *box, struct outbox_frames *out)
{
    if (box->frames.used_bytes > 0) {
        const struct outbox_frames emptied = *out;
        *out = box->frames;
        box->frames = emptied;
        box->frame_bytes -= out->used_bytes;
        return CAIRN_OK;
    }
    return box->first != NULL ? take_page(box, out) : CAIRN_ERR_NOT_FOUND;
}

/* ==== address ==== */

_Static_assert(CAIRN_ADDRESS_PATH_BYTES + 1 < sizeof((struct sockaddr_un *)0)->sun_path,
               "a path and one byte more fit, with a NUL");

static cairn_status bad_address(const char *text, const char *what, struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_INVALID,
                     "\"%.200s\" is not an address: %s; write host:port, [v6 address]:port or the "
                     "/path of a socket",
                     text, what);
}

static cairn_status parse_unix(const char *text, const char *path, struct stream_address *address,
                               struct sentence *why)
{
    char what[96];
    if (path[0] != '/') return bad_address(text, "the path of a socket must begin with /", why);
    if (strlen(path) > CAIRN_ADDRESS_PATH_BYTES) {
        snprintf(what, sizeof what, "its path has %zu bytes, a socket's may have %d", strlen(path),
                 CAIRN_ADDRESS_PATH_BYTES);
        return bad_address(text, what, why);
    }
    address->is_unix = true;
    memcpy(address->host, path, strlen(path) + 1);
    return CAIRN_OK;
}

// Decimal digits only, 0..65535; strtol would take " +7".
static int parse_port(const char *text, uint16_t *port_out)
{
    uint32_t port = 0;
    if (text[0] == '\0' || strlen(text) > 5) return -1;
    for (const char *p = text; *p != '\0'; p++) {
        if (*p < '0' || *p > '9') return -1;
        port = port * 10 + (uint32_t)(*p - '0');
    }
    if (port > UINT16_MAX) return -1;
    *port_out = (uint16_t)port;
    return 0;
}

cairn_status address_parse(const char *text, struct stream_address *address_out,
                           struct sentence *why)
{
    struct stream_address address = { 0 };
    const bool is_named = strncmp(text, "unix:", 5) == 0;
    if (is_named || text[0] == '/') {
        const cairn_status status = parse_unix(text, text + (is_named ? 5 : 0), &address, why);
        if (status == CAIRN_OK) *address_out = address;
        return status;
    }
    const char *colon = strrchr(text, ':');
    if (colon == NULL) return bad_address(text, "there is no port", why);
    if (parse_port(colon + 1, &address.port) != 0)
        return bad_address(text, "the port must be a number from 0 to 65535", why);
    const char *host = text;
    size_t host_bytes = (size_t)(colon - text);
    if (host_bytes >= 2 && host[0] == '[' && host[host_bytes - 1] == ']') {
        host++;
        host_bytes -= 2;
    } else if (memchr(host, ':', host_bytes) != NULL) {
        return bad_address(text, "a v6 address stands in brackets", why);
    }
    if (host_bytes == 0) return bad_address(text, "there is no host", why);
    if (host_bytes == 1 && host[0] == '*')
        return bad_address(text, "* stands for every address to listen on; name one to connect to",
                           why);
    if (host_bytes >= sizeof address.host) return bad_address(text, "the host is too long", why);
    memcpy(address.host, host, host_bytes);
    *address_out = address;
    return CAIRN_OK;
}

cairn_status address_parse_listen(const char *text, struct stream_address *address_out,
                                  struct sentence *why)
{
    char all[16];
    if (strncmp(text, "*:", 2) != 0 || strlen(text) > 7)
        return address_parse(text, address_out, why);
    snprintf(all, sizeof all, "0.0.0.0%s", text + 1);
    return address_parse(all, address_out, why);
}

void address_print(const struct stream_address *address, char text_out[CAIRN_ADDRESS_TEXT_BYTES])
{
    const char *format = strchr(address->host, ':') != NULL ? "[%s]:%u" : "%s:%u";
    if (address->is_unix)
        snprintf(text_out, CAIRN_ADDRESS_TEXT_BYTES, "%s", address->host);
    else
        snprintf(text_out, CAIRN_ADDRESS_TEXT_BYTES, format, address->host, address->port);
}

static void fill_unix(const char *path, struct sockaddr_storage *addr_out,
                      socklen_t *addr_bytes_out)
{
    struct sockaddr_un *addr = (struct sockaddr_un *)addr_out;
    memset(addr_out, 0, sizeof *addr_out);
    addr->sun_family = AF_UNIX;
    memcpy(addr->sun_path, path, strnlen(path, CAIRN_ADDRESS_PATH_BYTES));
    *addr_bytes_out = sizeof *addr;
}

cairn_status address_resolve(const struct stream_address *address,
                             struct sockaddr_storage *addr_out, socklen_t *addr_bytes_out,
                             struct sentence *why)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
    struct addrinfo *found = NULL;
    char port[8];
    if (address->is_unix) {
        fill_unix(address->host, addr_out, addr_bytes_out);
        return CAIRN_OK;
    }
    snprintf(port, sizeof port, "%u", address->port);
    const int error = getaddrinfo(address->host, port, &hints, &found);
    if (error != 0)
        return fail_with(why, CAIRN_ERR_UNREACHABLE, "there is no host \"%.200s\": %s",
                         address->host, gai_strerror(error));
    memset(addr_out, 0, sizeof *addr_out);
    const struct addrinfo *chosen = address_choose(found);
    memcpy(addr_out, chosen->ai_addr, chosen->ai_addrlen);
    *addr_bytes_out = chosen->ai_addrlen;
    freeaddrinfo(found);
    return CAIRN_OK;
}

/* Chooses one of the addresses that the name service returned. Returns NULL only if the list is NULL. */
static const struct addrinfo *address_choose(const struct addrinfo *list)
{
    for (const struct addrinfo *item = list; item != NULL; item = item->ai_next)
        if (item->ai_family == AF_INET) return item;
    return list;
}

void address_default(const char *runtime_dir, char text_out[CAIRN_ADDRESS_TEXT_BYTES])
{
    const bool is_own = runtime_dir != NULL && runtime_dir[0] != '\0';
    snprintf(text_out, CAIRN_ADDRESS_TEXT_BYTES, "%s/cairn/coordinator.sock",
             is_own ? runtime_dir : "/run");
}

static bool is_socket(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISSOCK(st.st_mode);
}

bool address_find(const char *runtime_dir, char text_out[CAIRN_ADDRESS_TEXT_BYTES])
{
    char system[CAIRN_ADDRESS_TEXT_BYTES];
    address_default(NULL, system);
    address_default(runtime_dir, text_out);
    if (is_socket(text_out) || !is_socket(system)) return strcmp(text_out, system) != 0;
    memcpy(text_out, system, sizeof system);
    return false;
}

bool address_is_loopback(const struct sockaddr_storage *addr)
{
    if (addr->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)addr;
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    }
    if (addr->ss_family != AF_INET6) return false;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)addr)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}

void address_print_socket(const struct sockaddr_storage *addr,
                          char text_out[CAIRN_ADDRESS_TEXT_BYTES])
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (addr->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)addr;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        snprintf(text_out, CAIRN_ADDRESS_TEXT_BYTES, "%s:%u", host, ntohs(v4->sin_port));
    } else if (addr->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)addr;
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        snprintf(text_out, CAIRN_ADDRESS_TEXT_BYTES, "[%s]:%u", host, ntohs(v6->sin6_port));
    } else {
        snprintf(text_out, CAIRN_ADDRESS_TEXT_BYTES, "?");
    }
}

/* ==== stream ==== */

/* Returns a stream with its handles initialized; NULL, with a sentence in `why`, if there is no memory. */
static struct stream *stream_new(uv_loop_t *loop, bool is_unix,
                                 const struct stream_options *options,
                                 const struct stream_events *events, void *context,
                                 struct sentence *why)
{
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
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
    while (stream->pending.first != NULL) drop_first(&stream->pending);
    outbox_frames_release(&stream->pending.frames);
    outbox_frames_release(&stream->writing);
    free(stream);
}

static void on_handle_closed(uv_handle_t *handle)
{
    stream_drop(handle->data);
}

// stream->why has been written already.
static void close_now(struct stream *stream)
{
    if (stream->state == CAIRN_STREAM_CLOSING) return;
    stream->state = CAIRN_STREAM_CLOSING;
    // the memory is freed in the next turn
    if (stream->room != NULL) stream->room->used_bytes -= stream->room_bytes;
    stream->room = NULL;
    uv_close(&stream->io.handle, on_handle_closed);
    uv_close((uv_handle_t *)&stream->timer, on_handle_closed);
    uv_close((uv_handle_t *)&stream->turn, on_handle_closed);
    // if this fails, the request ends by itself
    if (stream->is_resolving) uv_cancel((uv_req_t *)&stream->resolve);
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

// Ends our direction, after everything queued was written.
static void finish_sending(struct stream *stream)
{
    if (stream->is_shut) return;
    stream->is_shut = true;
    stream->shutdown.data = stream;
    if (uv_shutdown(&stream->shutdown, &stream->io.stream, on_shutdown) != 0) close_now(stream);
}

void stream_finish(struct stream *stream, cairn_status status, const char *format, ...)
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
    stream->state = CAIRN_STREAM_FINISHING; // a due turn drops what arrived, and reads on
    uv_timer_start(&stream->timer, on_finish_late, FINISH_MS, 0);
    if (!stream->is_writing) finish_sending(stream);
}

static void on_room_wanted(uv_handle_t *handle, size_t wanted, uv_buf_t *buf_out)
{
    struct stream *stream = handle->data;
    uint8_t *room = NULL;
    size_t room_bytes = 0;
    (void)wanted;
    if (frame_decoder_reserve(&stream->decoder, &room, &room_bytes) != CAIRN_FRAME_NONE)
        room_bytes = 0; // libuv then calls back with UV_ENOBUFS
    *buf_out = uv_buf_init((char *)room, (unsigned)room_bytes);
}

// Delivers the frames of one turn. Returns false if there are more frames, and the turn is over.
static bool deliver_turn(struct stream *stream)
{
    const uint64_t end_ns = uv_hrtime() + TURN_NS;
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

// Counts the decoder's share of the common room.
static void count_room(struct stream *stream)
{
    if (stream->room == NULL) return;
    stream->room->used_bytes += stream->decoder.capacity - stream->room_bytes; // modulo 2^64
    stream->room_bytes = stream->decoder.capacity;
}

static void deliver_frames(struct stream *stream)
{
    const bool is_done = deliver_turn(stream);
    const bool waits = !is_done && stream->state == CAIRN_STREAM_OPEN;
    if (stream->state == CAIRN_STREAM_FINISHING) stream->decoder.start = stream->decoder.end;
    frame_decoder_trim(&stream->decoder);
    count_room(stream);
    if (waits) {
        uv_read_stop(&stream->io.stream);
        uv_idle_start(&stream->turn, on_turn);
    }
}

static void on_turn(uv_idle_t *turn)
{
    struct stream *stream = turn->data;
    uv_idle_stop(turn);
    deliver_frames(stream);
    if (stream->state != CAIRN_STREAM_CLOSING && !uv_is_active((uv_handle_t *)turn))
        begin_reading(stream);
}

static void on_end_of_input(struct stream *stream, ssize_t error)
{
    if (error == UV_ENOBUFS) {
        stream_close(stream, CAIRN_ERR_NO_MEMORY, "out of memory to receive from %s", stream->peer);
    } else if (stream->state == CAIRN_STREAM_FINISHING && error == UV_EOF && !stream->is_shut) {
        stream->peer_shut = true; // the peer still reads our frames
        uv_read_stop(&stream->io.stream);
    } else if (error == UV_EOF) {
        stream_close(stream, CAIRN_ERR_CLOSED, "%s closed the connection", stream->peer);
    } else {
        stream_close(stream, CAIRN_ERR_CLOSED, "reading from %s failed: %s", stream->peer,
                     uv_strerror((int)error));
    }
}

static void on_read(uv_stream_t *io, ssize_t read_bytes, const uv_buf_t *buf)
{
    struct stream *stream = io->data;
    (void)buf;
    if (read_bytes < 0) {
        on_end_of_input(stream, read_bytes);
        return;
    }
    if (stream->decoder.start == stream->decoder.end)
        stream->unfinished_ms = uv_now(stream->turn.loop);
    frame_decoder_added(&stream->decoder, (size_t)read_bytes);
    deliver_frames(stream);
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

static void on_written(uv_write_t *request, int error)
{
    struct stream *stream = request->data;
    stream->is_writing = false;
    if (stream->writing.capacity_bytes > KEEP_BYTES) outbox_frames_release(&stream->writing);
    stream->writing.used_bytes = 0;
    if (stream->state == CAIRN_STREAM_CLOSING) return;
    if (error != 0) {
        stream_close(stream, CAIRN_ERR_CLOSED, "writing to %s failed: %s", stream->peer,
                     uv_strerror(error));
        return;
    }
    write_pending(stream);
    if (stream->state == CAIRN_STREAM_FINISHING && !stream->is_writing) finish_sending(stream);
}

// Writes what is next, unless a write is under way: frames that are queued during a write are sent together
// in the next write.
static void write_pending(struct stream *stream)
{
    if (stream->is_writing) return;
    const cairn_status status = outbox_take(&stream->pending, &stream->writing);
    if (status == CAIRN_ERR_NOT_FOUND) return;
    if (status != CAIRN_OK) {
        stream_close(stream, status, "out of memory for a page to %s", stream->peer);
        return;
    }
    uv_buf_t buf = uv_buf_init((char *)stream->writing.bytes, (unsigned)stream->writing.used_bytes);
    stream->write.data = stream;
    stream->is_writing = true;
    const int error = uv_write(&stream->write, &stream->io.stream, &buf, 1, on_written);
    if (error == 0) return;
    stream->is_writing = false;
    stream_close(stream, CAIRN_ERR_CLOSED, "writing to %s failed: %s", stream->peer,
                 uv_strerror(error));
}

size_t stream_unfinished_bytes(const struct stream *stream, uint64_t *since_ms_out)
{
    *since_ms_out = stream->unfinished_ms;
    if (stream->state != CAIRN_STREAM_OPEN || uv_is_active((const uv_handle_t *)&stream->turn))
        return 0; // nothing is awaited from the peer
    return stream->decoder.end - stream->decoder.start;
}

size_t stream_queued_bytes(const struct stream *stream)
{
    return stream->pending.frame_bytes + uv_stream_get_write_queue_size(&stream->io.stream);
}

// Checks whether `more` bytes may be queued: `queued` bytes wait already, and at most `limit` bytes may
// wait.
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

/* Called when the connection is established: begins to read, and writes the waiting frames. */
static void stream_begin(struct stream *stream)
{
    stream->state = CAIRN_STREAM_OPEN;
    begin_reading(stream);
    if (stream->state == CAIRN_STREAM_OPEN) write_pending(stream);
}

void stream_limit(struct stream *stream, struct frame_limits limits)
{
    frame_decoder_limit(&stream->decoder, limits);
}

const char *stream_peer(const struct stream *stream)
{
    return stream->peer;
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
    stream_close(stream, is_ours ? CAIRN_ERR_NO_MEMORY : CAIRN_ERR_UNREACHABLE,
                 "cannot connect to %s: %s", stream->peer, uv_strerror(error));
}

static void on_connect_late(uv_timer_t *timer)
{
    struct stream *stream = timer->data;
    stream_close(stream, CAIRN_ERR_TIMEOUT, "no connection to %s within %" PRIu64 " ms",
                 stream->peer, stream->timeout_ms);
}

static void on_connected(uv_connect_t *request, int error)
{
    struct stream *stream = request->data;
    if (stream->state != CAIRN_STREAM_CONNECTING) return; // closed meanwhile
    if (error != 0) {
        fail(stream, error);
        return;
    }
    uv_timer_stop(&stream->timer);
    if (stream->io.handle.type == UV_TCP) uv_tcp_nodelay(&stream->io.tcp, 1);
    stream_begin(stream);
    if (stream->state == CAIRN_STREAM_OPEN && stream->events.on_open != NULL)
        stream->events.on_open(stream, stream->context);
}

static void tell_dial(struct stream *stream)
{
    if (stream->events.on_dial != NULL) stream->events.on_dial(stream, stream->context);
}

static void connect_socket(struct stream *stream, const struct sockaddr *addr)
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
    struct stream *stream = request->data;
    stream->is_resolving = false;
    if (stream->state == CAIRN_STREAM_CONNECTING) {
        if (error != 0)
            fail(stream, error);
        else
            connect_socket(stream, address_choose(found)->ai_addr);
    }
    uv_freeaddrinfo(found);
    stream_drop(stream);
}

static void resolve_name(struct stream *stream, const struct stream_address *address)
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

static void connect_unix(struct stream *stream, const struct stream_address *address)
{
    stream->connect.data = stream;
    uv_pipe_connect(&stream->connect, &stream->io.pipe, address->host, on_connected);
    tell_dial(stream);
}

static void connect_tcp(struct stream *stream, const struct stream_address *address)
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

cairn_status stream_connect(uv_loop_t *loop, const struct stream_address *address,
                            uint64_t timeout_ms, const struct stream_options *options,
                            const struct stream_events *events, void *context,
                            struct stream **stream_out, struct sentence *why)
{
    struct stream *stream = stream_new(loop, address->is_unix, options, events, context, why);
    if (stream == NULL) return CAIRN_ERR_NO_MEMORY;
    stream->state = CAIRN_STREAM_CONNECTING;
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
