/* One connection's bytes: what is written, and what is read.
 *
 * A payload is copied once at each end, by the kernel: sendmsg takes it from the sender's memory, and recvmsg
 * puts it into the receiver's buffer. "sealed" encrypts from the sender's memory into a small buffer, which
 * stays in the caches until sendmsg has read it, and decrypts into the receiver's buffer.
 *
 * The functions run on the owner's thread for "stream", and on a thread of struct remote_io for "sealed",
 * where one connection belongs to one thread for life. A thread touches a payload or a buffer only between
 * the moment when the owner queued it and the moment when it appears in conn->writes.written or
 * conn->reads.landed, or when the thread has let go of the connection (is_let_go). Only then do loans
 * end. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/base/machine.h"
#include "proto/base/text.h"
#include "proto/fabric/remote.h"

enum {
    BATCH_BYTES = 512 << 10, /* about as much as one sendmsg is given */
    TURN_BYTES = 2 << 20,    /* read or written before others get their turn */
    TAIL_BYTES = 4 << 10,    /* read behind a payload: the heads of the next frames */
    HEAD_READ = 64 << 10,    /* read while no payload is under way */
    STARVED_REST_MS = 10,    /* of a thread that has no memory for a buffer */
    STOCK_MAX = 8,
    EVENTS = 32,
};

/* ---- frames ---- */

uint32_t remote_frame_check(const struct remote_frame *frame, const void *header)
{
    uint64_t hash = fabric_hash(frame, offsetof(struct remote_frame, check));
    if (frame->header_bytes > 0) hash ^= fabric_hash(header, frame->header_bytes);
    return (uint32_t)(hash ^ hash >> 32);
}

static bool is_frame_sound(const struct remote_frame *frame)
{
    const bool has_header = frame->header_bytes > 0, has_payload = frame->payload_bytes > 0;
    if (frame->zero != 0 || frame->zeros != 0) return false;
    switch ((enum remote_kind)frame->kind) {
    case REMOTE_MESSAGE: return has_header && frame->payload_bytes <= REMOTE_EAGER_MAX;
    case REMOTE_ANNOUNCE: return has_header && has_payload && frame->serial != 0;
    case REMOTE_TAKE:
    case REMOTE_DROP: return !has_header && !has_payload && frame->serial != 0;
    case REMOTE_DATA: return !has_header && has_payload && frame->payload_bytes <= REMOTE_SEGMENT;
    case REMOTE_NONE:
    case REMOTE_CLOSE: return !has_header && !has_payload;
    }
    return false;
}

long remote_frame_judge(const uint8_t *bytes, size_t count)
{
    struct remote_frame frame;
    if (count < sizeof frame) return 0;
    memcpy(&frame, bytes, sizeof frame);
    if (!is_frame_sound(&frame) || frame.header_bytes > CAIRN_FABRIC_HEADER_MAX) return -1;
    const size_t head = sizeof frame + frame.header_bytes;
    if (count < head) return 0;
    if (frame.check != remote_frame_check(&frame, bytes + sizeof frame)) return -1;
    const size_t all = remote_frame_bytes(&frame);
    return count < all ? 0 : (long)all;
}

/* ---- buffers ---- */

static struct remote_buffer *buffer_get(struct remote_io *io)
{
    struct remote_buffer *buffer = io->stock;
    if (buffer != NULL) {
        io->stock = buffer->next;
        io->stock_count--;
    } else if ((buffer = malloc(sizeof *buffer)) == NULL) {
        io->is_starved = true;
        io->fabric->starved_ms = monotonic_ms();
        return NULL;
    }
    buffer->start = buffer->end = 0;
    return buffer;
}

static void buffer_put(struct remote_io *io, struct remote_buffer **buffer)
{
    struct remote_buffer *of = *buffer;
    *buffer = NULL;
    if (of == NULL) return;
    if (io->stock_count >= STOCK_MAX) {
        free(of);
        return;
    }
    of->next = io->stock;
    io->stock = of;
    io->stock_count++;
}

/* ---- what became of it ---- */

/* If the thread lets go of the connection, the owner may free it as soon as the lock is free. */
static void tell_news(struct remote_conn *conn, bool is_let_go)
{
    struct remote_fabric *fabric = conn->fabric;
    pthread_mutex_lock(&fabric->lock);
    const bool was_empty = TAILQ_EMPTY(&fabric->news);
    if (!conn->is_news) TAILQ_INSERT_TAIL(&fabric->news, conn, news);
    conn->is_news = true;
    conn->is_let_go = is_let_go;
    pthread_mutex_unlock(&fabric->lock);
    if (was_empty) (void)eventfd_write(fabric->news_fd, 1);
}

static void tell_owner(struct remote_conn *conn)
{
    if (conn->io->is_thread) tell_news(conn, false); // else the owner looks by itself
}

struct remote_conn *remote_io_next_news(struct remote_fabric *fabric, bool *is_let_go_out)
{
    pthread_mutex_lock(&fabric->lock);
    struct remote_conn *conn = TAILQ_FIRST(&fabric->news);
    if (conn != NULL) {
        TAILQ_REMOVE(&fabric->news, conn, news);
        conn->is_news = false;
        *is_let_go_out = conn->is_let_go;
    }
    pthread_mutex_unlock(&fabric->lock);
    return conn;
}

/* `fault`: the rule that the other end broke; NULL: the connection has ended. */
static void break_conn(struct remote_conn *conn, const char *fault)
{
    pthread_mutex_lock(&conn->lock);
    conn->end.is_broken = true;
    if (conn->end.fault == NULL) conn->end.fault = fault;
    pthread_mutex_unlock(&conn->lock);
    tell_owner(conn);
}

static void take_written(struct remote_conn *conn)
{
    TAILQ_CONCAT(&conn->writes.written, &conn->writes.wire, entry);
}

/* ---- writing: stream ---- */

static void add_part(struct remote_batch *batch, const void *bytes, size_t count)
{
    batch->parts[batch->count++] = (struct iovec) { (void *)(uintptr_t)bytes, count };
}

static void queue_shrink(struct remote_conn *conn, size_t bytes)
{
    atomic_fetch_sub_explicit(&conn->writes.queued_bytes, bytes, memory_order_relaxed);
}

/* Puts the item, all of whose bytes are spoken for, onto the wire. */
static void move_to_wire(struct remote_conn *conn, struct remote_items *from,
                         struct remote_item *item)
{
    TAILQ_REMOVE(from, item, entry);
    TAILQ_INSERT_TAIL(&conn->writes.wire, item, entry);
    if (remote_is_reply(item))
        atomic_fetch_sub_explicit(&conn->writes.reply_count, 1, memory_order_relaxed);
    queue_shrink(conn, item->head_bytes + (item->kind == REMOTE_DATA ? 0 : item->payload_bytes));
}

/* Adds the next segment of a payload. Returns its bytes. */
static size_t add_segment(struct remote_conn *conn, struct remote_item *item)
{
    struct remote_batch *batch = conn->moving.batch;
    struct remote_frame *head = &batch->heads[batch->head_count++];
    const size_t left = item->payload_bytes - item->payload_done;
    const size_t bytes = left < REMOTE_SEGMENT ? left : REMOTE_SEGMENT;
    *head = (struct remote_frame) { .kind = REMOTE_DATA, .payload_bytes = (uint32_t)bytes };
    head->check = remote_frame_check(head, NULL);
    add_part(batch, head, sizeof *head);
    add_part(batch, item->payload + item->payload_done, bytes);
    item->is_begun = true;
    item->payload_done += bytes;
    queue_shrink(conn, bytes);
    if (item->payload_done == item->payload_bytes) move_to_wire(conn, &conn->writes.bulk, item);
    return bytes;
}

/* Under the lock. */
static void fill_batch(struct remote_conn *conn)
{
    struct remote_batch *batch = conn->moving.batch;
    struct remote_item *item;
    size_t bytes = 0;
    batch->first = batch->count = batch->head_count = 0;
    while ((item = TAILQ_FIRST(&conn->writes.urgent)) != NULL && batch->count + 2 <= REMOTE_IOVS &&
           bytes < BATCH_BYTES) {
        add_part(batch, item->head, item->head_bytes);
        if (item->payload_bytes > 0) add_part(batch, item->payload, item->payload_bytes);
        bytes += item->head_bytes + item->payload_bytes;
        item->is_begun = true;
        move_to_wire(conn, &conn->writes.urgent, item);
    }
    while ((item = TAILQ_FIRST(&conn->writes.bulk)) != NULL && batch->count + 2 <= REMOTE_IOVS &&
           batch->head_count < REMOTE_HEADS && bytes < BATCH_BYTES) {
        if (item->kind == REMOTE_DATA) {
            bytes += add_segment(conn, item);
        } else {
            add_part(batch, item->head, item->head_bytes);
            move_to_wire(conn, &conn->writes.bulk, item);
        }
    }
}

/* Returns how many of the parts' bytes were written; -1: the socket is full, or of no use. */
static ssize_t send_parts(struct remote_conn *conn, struct iovec *parts, size_t count)
{
    const struct msghdr message = { .msg_iov = parts, .msg_iovlen = count };
    ssize_t sent;
    do sent = sendmsg(conn->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && errno != EAGAIN && errno != ENOBUFS && errno != ENOMEM) break_conn(conn, NULL);
    return sent;
}

static void advance(struct remote_batch *batch, size_t bytes)
{
    while (batch->first < batch->count && bytes >= batch->parts[batch->first].iov_len)
        bytes -= batch->parts[batch->first++].iov_len;
    if (bytes == 0) return;
    struct iovec *part = &batch->parts[batch->first];
    part->iov_base = (uint8_t *)part->iov_base + bytes;
    part->iov_len -= bytes;
}

/* Writes until nothing waits, the socket is full, or the turn is over. *is_full_out: there is more. */
static size_t write_plain(struct remote_conn *conn, bool *is_full_out)
{
    struct remote_batch *batch = conn->moving.batch;
    size_t bytes = 0;
    for (;;) {
        if (batch->first == batch->count) {
            pthread_mutex_lock(&conn->lock);
            take_written(conn);
            fill_batch(conn);
            pthread_mutex_unlock(&conn->lock);
        }
        *is_full_out = batch->count > batch->first;
        if (!*is_full_out || bytes >= TURN_BYTES) return bytes;
        const ssize_t sent = send_parts(conn, batch->parts + batch->first,
                                        batch->count - batch->first);
        if (sent < 0) return bytes;
        advance(batch, (size_t)sent);
        bytes += (size_t)sent;
    }
}

/* ---- writing: sealed ---- */

static bool has_room(const struct remote_buffer *out)
{
    return sizeof out->bytes - out->end >= REMOTE_RECORD + SEALED_EXTRA;
}

static bool put_record(struct remote_conn *conn, enum sealed_kind kind, const uint8_t *plain,
                       size_t bytes)
{
    struct remote_buffer *out = conn->moving.out;
    if (!sealed_put(conn->moving.sealed, kind, plain, bytes, out->bytes + out->end)) {
        break_conn(conn, "our own cipher failed");
        return false;
    }
    out->end += bytes + SEALED_EXTRA;
    return true;
}

/* Moves as many frames onto the wire as one record holds. Under the lock. */
static void gather_frames(struct remote_conn *conn)
{
    struct remote_item *item;
    size_t bytes = 0;
    while ((item = TAILQ_FIRST(&conn->writes.urgent)) != NULL &&
           bytes + item->head_bytes + item->payload_bytes <= REMOTE_RECORD) {
        bytes += item->head_bytes + item->payload_bytes;
        item->is_begun = true;
        move_to_wire(conn, &conn->writes.urgent, item);
    }
}

static bool put_frames(struct remote_conn *conn)
{
    uint8_t *plain = conn->moving.out->bytes + conn->moving.out->end + sizeof(struct sealed_head);
    const struct remote_item *item;
    size_t bytes = 0;
    TAILQ_FOREACH (item, &conn->writes.wire, entry) {
        memcpy(plain + bytes, item->head, item->head_bytes);
        bytes += item->head_bytes;
        if (item->payload_bytes > 0) memcpy(plain + bytes, item->payload, item->payload_bytes);
        bytes += item->payload_bytes;
    }
    return put_record(conn, SEALED_FRAMES, plain, bytes);
}

static bool put_data(struct remote_conn *conn, struct remote_item *item)
{
    if (item->kind == REMOTE_NONE) return put_record(conn, SEALED_NONE, NULL, 0);
    const size_t left = item->payload_bytes - item->payload_done;
    const size_t bytes = left < REMOTE_RECORD ? left : REMOTE_RECORD;
    if (!put_record(conn, SEALED_DATA, item->payload + item->payload_done, bytes)) return false;
    item->payload_done += bytes;
    queue_shrink(conn, bytes);
    return true;
}

/* Seals the next record. False: nothing waits. */
static bool put_next(struct remote_conn *conn)
{
    pthread_mutex_lock(&conn->lock);
    gather_frames(conn);
    const bool has_frames = !TAILQ_EMPTY(&conn->writes.wire);
    struct remote_item *item = has_frames ? NULL : TAILQ_FIRST(&conn->writes.bulk);
    if (item != NULL) item->is_begun = true;
    pthread_mutex_unlock(&conn->lock);
    if (!has_frames && item == NULL) return false;
    if (!(has_frames ? put_frames(conn) : put_data(conn, item))) return false;
    pthread_mutex_lock(&conn->lock);
    if (item != NULL && item->payload_done == item->payload_bytes)
        move_to_wire(conn, &conn->writes.bulk, item);
    const bool is_news = !TAILQ_EMPTY(&conn->writes.wire);
    take_written(conn); // the payloads are in the record
    pthread_mutex_unlock(&conn->lock);
    if (is_news) tell_owner(conn);
    return true;
}

static void fill_out(struct remote_conn *conn)
{
    struct remote_buffer *out = conn->moving.out;
    out->start = out->end = 0;
    if (sealed_is_due(conn->moving.sealed, monotonic_ms()) &&
        !put_record(conn, SEALED_REKEY, NULL, 0))
        return;
    while (has_room(out) && put_next(conn)) {}
}

static size_t write_sealed(struct remote_conn *conn, bool *is_full_out)
{
    size_t bytes = 0;
    *is_full_out = false;
    if (conn->moving.out == NULL && (conn->moving.out = buffer_get(conn->io)) == NULL) {
        *is_full_out = true; // again when there is memory
        return 0;
    }
    struct remote_buffer *out = conn->moving.out;
    while (!conn->end.is_broken) {
        if (out->start == out->end) fill_out(conn);
        *is_full_out = out->start < out->end;
        if (!*is_full_out || bytes >= TURN_BYTES) break;
        struct iovec part = { out->bytes + out->start, out->end - out->start };
        const ssize_t sent = send_parts(conn, &part, 1);
        if (sent < 0) break;
        out->start += (size_t)sent;
        bytes += (size_t)sent;
    }
    if (out->start == out->end) buffer_put(conn->io, &conn->moving.out);
    return bytes;
}

/* ---- reading: payloads ---- */

static struct remote_landing *current_landing(struct remote_conn *conn)
{
    pthread_mutex_lock(&conn->lock);
    struct remote_landing *landing = TAILQ_FIRST(&conn->reads.landings);
    pthread_mutex_unlock(&conn->lock);
    return landing;
}

static void end_landing(struct remote_conn *conn, struct remote_landing *landing, bool is_whole)
{
    landing->is_whole = is_whole;
    pthread_mutex_lock(&conn->lock);
    TAILQ_REMOVE(&conn->reads.landings, landing, entry);
    TAILQ_INSERT_TAIL(&conn->reads.landed, landing, entry);
    pthread_mutex_unlock(&conn->lock);
    tell_owner(conn);
}

/* These many bytes have come into the landing's buffer, and are still in the caches. */
static void on_landed(struct remote_conn *conn, struct remote_landing *landing, size_t bytes)
{
    if (landing->wants_sum) {
        if (landing->got == 0) checksum_begin(conn->moving.sum);
        checksum_add(conn->moving.sum, landing->buffer + landing->got, bytes);
    }
    landing->got += bytes;
    if (landing->got < landing->bytes) return;
    if (landing->wants_sum) landing->sum = checksum_end(conn->moving.sum);
    end_landing(conn, landing, true);
}

static bool end_missing(struct remote_conn *conn)
{
    struct remote_landing *landing = current_landing(conn);
    if (landing == NULL || landing->got > 0) {
        break_conn(conn, "it gives up a payload that nobody asked for");
        return false;
    }
    end_landing(conn, landing, false);
    return true;
}

/* False: the owner has ended the connection, in a callback of ours. */
static bool is_ours(const struct remote_conn *conn)
{
    return conn->io->is_thread || conn->state == REMOTE_IS_UP;
}

/* Whole frames for the owner. False: stop reading. */
static bool deliver(struct remote_conn *conn, const uint8_t *bytes, size_t count)
{
    if (count == 0) return true;
    if (!conn->io->is_thread) {
        if (!remote_on_frames(conn, bytes, count)) break_conn(conn, NULL);
        return !conn->end.is_broken && is_ours(conn);
    }
    struct remote_chunk *chunk = malloc(sizeof *chunk + count);
    if (chunk == NULL) {
        break_conn(conn, "there is no memory for what it sent");
        return false;
    }
    chunk->bytes = count;
    memcpy(chunk->data, bytes, count);
    pthread_mutex_lock(&conn->lock);
    TAILQ_INSERT_TAIL(&conn->reads.arrived, chunk, entry);
    conn->reads.arrived_bytes += count;
    pthread_mutex_unlock(&conn->lock);
    tell_owner(conn);
    return true;
}

/* Returns the bytes that came; -1: none, and none are there, or there never will be. */
static ssize_t receive_parts(struct remote_conn *conn, struct iovec *parts, size_t count)
{
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = count };
    ssize_t got;
    do got = recvmsg(conn->fd, &message, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got > 0) return got;
    if (got == 0) {
        pthread_mutex_lock(&conn->lock);
        conn->end.is_cut = true; // a node that closes says so, and then nothing is read
        pthread_mutex_unlock(&conn->lock);
    }
    if (got == 0 || (errno != EAGAIN && errno != ENOMEM && errno != ENOBUFS))
        break_conn(conn, NULL);
    return -1;
}

/* Moves what is left over to the buffer's start, or gives the buffer back. */
static void settle(struct remote_conn *conn)
{
    struct remote_buffer *in = conn->moving.in;
    if (in == NULL) return; // the owner has ended the connection
    if (in->start == in->end) {
        buffer_put(conn->io, &conn->moving.in);
    } else if (in->start > 0) {
        memmove(in->bytes, in->bytes + in->start, in->end - in->start);
        in->end -= in->start;
        in->start = 0;
    }
}

/* ---- reading: stream ---- */

/* Takes the head of a segment, and the bytes of it that are here already. */
static bool begin_segment(struct remote_conn *conn, const struct remote_frame *frame)
{
    struct remote_buffer *in = conn->moving.in;
    struct remote_landing *landing = current_landing(conn);
    if (landing == NULL || frame->payload_bytes > landing->bytes - landing->got) {
        break_conn(conn, "it sends a payload that nobody asked for");
        return false;
    }
    in->start += sizeof *frame;
    const size_t here = in->end - in->start;
    const size_t bytes = here < frame->payload_bytes ? here : frame->payload_bytes;
    conn->moving.segment_left = frame->payload_bytes - bytes;
    if (bytes == 0) return true;
    memcpy(landing->buffer + landing->got, in->bytes + in->start, bytes);
    in->start += bytes;
    on_landed(conn, landing, bytes);
    return true;
}

/* Handles a frame for which the reader itself is to do something. False: stop reading. */
static bool take_own_frame(struct remote_conn *conn, const struct remote_frame *frame)
{
    if (frame->kind == REMOTE_DATA) return begin_segment(conn, frame);
    conn->moving.in->start += sizeof *frame;
    if (frame->kind == REMOTE_NONE) return end_missing(conn);
    break_conn(conn, NULL); // CLOSE
    return false;
}

/* Handles all frames that are in the buffer as a whole. False: stop reading. */
static bool take_frames(struct remote_conn *conn)
{
    struct remote_buffer *in = conn->moving.in;
    size_t first = in->start;
    while (conn->moving.segment_left == 0) {
        struct remote_frame frame;
        const long bytes = remote_frame_judge(in->bytes + in->start, in->end - in->start);
        if (bytes < 0) {
            break_conn(conn, "it sends what is no frame");
            return false;
        }
        if (bytes > 0) memcpy(&frame, in->bytes + in->start, sizeof frame);
        const bool is_own = bytes > 0 && frame.kind >= REMOTE_DATA;
        if (bytes > 0 && !is_own) {
            in->start += (size_t)bytes;
            continue;
        }
        if (!deliver(conn, in->bytes + first, in->start - first)) return false;
        if (!is_own) return true;
        if (!take_own_frame(conn, &frame)) return false;
        first = in->start;
    }
    return true;
}

/* Reads once. Returns the bytes that came; 0: nothing is left, or reading has ended. */
static size_t read_plain(struct remote_conn *conn)
{
    if (conn->moving.in == NULL && (conn->moving.in = buffer_get(conn->io)) == NULL) return 0;
    struct remote_buffer *in = conn->moving.in;
    struct iovec parts[2];
    size_t count = 0, direct = conn->moving.segment_left;
    struct remote_landing *landing = direct > 0 ? current_landing(conn) : NULL;
    if (direct > 0) parts[count++] = (struct iovec) { landing->buffer + landing->got, direct };
    const size_t room = direct > 0 ? TAIL_BYTES : HEAD_READ;
    assert(sizeof in->bytes - in->end >= room);
    parts[count++] = (struct iovec) { in->bytes + in->end, room };
    const ssize_t got = receive_parts(conn, parts, count);
    if (got > 0) {
        const size_t landed = (size_t)got < direct ? (size_t)got : direct;
        conn->moving.segment_left -= landed;
        if (landed > 0) on_landed(conn, landing, landed);
        in->end += (size_t)got - landed;
        (void)take_frames(conn);
    }
    settle(conn);
    return got > 0 ? (size_t)got : 0;
}

/* ---- reading: sealed ---- */

static bool open_record(struct remote_conn *conn, const struct sealed_head *head,
                        const uint8_t *record, uint8_t *plain)
{
    if (sealed_take(conn->moving.sealed, head, record, plain)) return true;
    break_conn(conn, "it sends a record that is forged or damaged");
    return false;
}

/* Opens a record of a payload straight into the buffer where it belongs. */
static bool take_data(struct remote_conn *conn, const struct sealed_head *head,
                      const uint8_t *record)
{
    struct remote_landing *landing = current_landing(conn);
    if (landing == NULL || head->bytes == 0 || head->bytes > landing->bytes - landing->got) {
        break_conn(conn, "it sends a payload that nobody asked for");
        return false;
    }
    if (!open_record(conn, head, record, landing->buffer + landing->got)) return false;
    on_landed(conn, landing, head->bytes);
    return true;
}

static bool take_sealed_frames(struct remote_conn *conn, const uint8_t *plain, size_t count)
{
    for (size_t at = 0; at < count;) {
        const long bytes = remote_frame_judge(plain + at, count - at);
        if (bytes <= 0 || plain[at] >= REMOTE_DATA) {
            break_conn(conn, "it sends what is no frame");
            return false;
        }
        at += (size_t)bytes;
    }
    return deliver(conn, plain, count);
}

static bool take_record(struct remote_conn *conn, const struct sealed_head *head,
                        const uint8_t *record)
{
    uint8_t *plain = conn->io->scratch;
    if (head->kind == SEALED_DATA) return take_data(conn, head, record);
    if (!open_record(conn, head, record, plain)) return false;
    switch ((enum sealed_kind)head->kind) {
    case SEALED_FRAMES: return take_sealed_frames(conn, plain, head->bytes);
    case SEALED_NONE: return end_missing(conn);
    case SEALED_CLOSE: break_conn(conn, NULL); return false;
    default: return true;
    }
}

static void take_records(struct remote_conn *conn)
{
    struct remote_buffer *in = conn->moving.in;
    struct sealed_head head;
    while (in->end - in->start >= sizeof head) {
        memcpy(&head, in->bytes + in->start, sizeof head);
        if (!sealed_judge(&head)) {
            break_conn(conn, "it sends what is no record");
            return;
        }
        if (in->end - in->start < head.bytes + (size_t)SEALED_EXTRA) return;
        if (!take_record(conn, &head, in->bytes + in->start + sizeof head)) return;
        in->start += head.bytes + (size_t)SEALED_EXTRA;
    }
}

static size_t read_sealed(struct remote_conn *conn)
{
    if (conn->moving.in == NULL && (conn->moving.in = buffer_get(conn->io)) == NULL) return 0;
    struct remote_buffer *in = conn->moving.in;
    struct iovec part = { in->bytes + in->end, sizeof in->bytes - in->end };
    const ssize_t got = receive_parts(conn, &part, 1);
    if (got > 0) {
        in->end += (size_t)got;
        take_records(conn);
    }
    settle(conn);
    return got > 0 ? (size_t)got : 0;
}

/* ---- a turn ---- */

static bool may_read(struct remote_conn *conn)
{
    pthread_mutex_lock(&conn->lock);
    const bool ok = !conn->end.is_broken && !conn->is_paused &&
                    conn->reads.arrived_bytes < REMOTE_ARRIVED_MAX;
    pthread_mutex_unlock(&conn->lock);
    return ok && is_ours(conn);
}

/* Reads and writes; returns the events to wait for. */
static uint32_t take_turn(struct remote_conn *conn, uint32_t events, size_t *bytes_out)
{
    bool is_full = false;
    size_t bytes = 0, once = 1;
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0)
        for (; once > 0 && bytes < TURN_BYTES && may_read(conn); bytes += once)
            once = conn->moving.sealed != NULL ? read_sealed(conn) : read_plain(conn);
    if (!conn->end.is_broken && is_ours(conn))
        bytes += conn->moving.sealed != NULL ? write_sealed(conn, &is_full)
                                             : write_plain(conn, &is_full);
    *bytes_out = bytes;
    return (may_read(conn) ? EPOLLIN : 0u) | (is_full ? EPOLLOUT : 0u);
}

unsigned remote_io_serve(struct remote_conn *conn, uint32_t events)
{
    size_t bytes;
    const uint32_t wanted = take_turn(conn, events, &bytes);
    conn->fabric->turn_bytes += bytes;
    if (conn->state != REMOTE_IS_UP || conn->end.is_broken) return bytes > 0;
    if (wanted != 0)
        remote_watch(conn, wanted);
    else
        remote_unwatch(conn); // its end would be reported again and again
    return bytes > 0;
}

/* ---- threads ---- */

static void io_watch(struct remote_conn *conn, uint32_t events)
{
    struct epoll_event event = { .events = events, .data.ptr = conn };
    const int how = conn->moving.is_io_watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (conn->moving.is_io_watched && conn->moving.io_events == events) return;
    if (epoll_ctl(conn->io->epoll, how, conn->fd, &event) != 0) {
        break_conn(conn, "the kernel cannot watch its socket");
        return;
    }
    conn->moving.is_io_watched = true;
    conn->moving.io_events = events;
}

static void io_unwatch(struct remote_conn *conn)
{
    if (conn->moving.is_io_watched) epoll_ctl(conn->io->epoll, EPOLL_CTL_DEL, conn->fd, NULL);
    conn->moving.is_io_watched = false;
}

static void release_buffers(struct remote_conn *conn)
{
    buffer_put(conn->io, &conn->moving.in);
    buffer_put(conn->io, &conn->moving.out);
}

/* Tells the other end that this end is meant, if nothing is half written. */
static void say_close(struct remote_conn *conn)
{
    struct remote_frame frame = { .kind = REMOTE_CLOSE };
    uint8_t record[SEALED_EXTRA];
    if (conn->end.is_broken) return;
    if (conn->moving.sealed != NULL) {
        if (conn->moving.out == NULL &&
            sealed_put(conn->moving.sealed, SEALED_CLOSE, NULL, 0, record))
            (void)send(conn->fd, record, sizeof record, MSG_DONTWAIT | MSG_NOSIGNAL);
    } else if (conn->moving.batch != NULL &&
               conn->moving.batch->first == conn->moving.batch->count) {
        frame.check = remote_frame_check(&frame, NULL);
        (void)send(conn->fd, &frame, sizeof frame, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
}

/* From here on the thread does not touch the connection. */
static void let_go(struct remote_conn *conn)
{
    io_unwatch(conn);
    say_close(conn);
    release_buffers(conn);
    tell_news(conn, true);
}

static void thread_serve(struct remote_conn *conn, uint32_t events)
{
    size_t bytes;
    if (conn->end.is_broken) {
        io_unwatch(conn);
        return;
    }
    const uint32_t wanted = take_turn(conn, events, &bytes);
    if (conn->end.is_broken || wanted == 0) // paused: its end would be reported again and again
        io_unwatch(conn);
    else
        io_watch(conn, wanted);
}

/* Serves the connections for which the owner has something new. False: the thread is over. */
static bool serve_kicked(struct remote_io *io)
{
    for (;;) {
        pthread_mutex_lock(&io->lock);
        const bool is_over = io->is_over;
        struct remote_conn *conn = TAILQ_FIRST(&io->kicked);
        const bool is_leaving = conn != NULL && conn->is_leaving;
        if (conn != NULL) {
            TAILQ_REMOVE(&io->kicked, conn, kicked);
            conn->is_kicked = false;
        }
        pthread_mutex_unlock(&io->lock);
        if (conn == NULL) return !is_over;
        if (is_leaving)
            let_go(conn);
        else
            thread_serve(conn, EPOLLIN);
    }
}

/* A connection that has no memory tries again, and its socket stays ready: the pause keeps the thread from
 * turning all the time. */
static void rest_starved(struct remote_io *io)
{
    if (io->is_starved) poll(NULL, 0, STARVED_REST_MS);
    io->is_starved = false;
}

static void *run_thread(void *arg)
{
    struct remote_io *io = arg;
    struct epoll_event events[EVENTS];
    pthread_setname_np(pthread_self(), "cairn-sealed");
    do {
        const int ready = epoll_wait(io->epoll, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            eventfd_t kicks;
            if (events[i].data.ptr == NULL)
                (void)eventfd_read(io->kick_fd, &kicks);
            else
                thread_serve(events[i].data.ptr, events[i].events);
        }
        rest_starved(io);
    } while (serve_kicked(io));
    return NULL;
}

cairn_status remote_io_init(struct remote_io *io, struct remote_fabric *fabric, bool is_thread)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = NULL };
    *io = (struct remote_io) { .fabric = fabric, .epoll = -1, .kick_fd = -1 };
    TAILQ_INIT(&io->kicked);
    if (pthread_mutex_init(&io->lock, NULL) != 0) return CAIRN_ERR_NO_MEMORY;
    if (!is_thread) return CAIRN_OK;
    io->epoll = epoll_create1(EPOLL_CLOEXEC);
    io->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    io->is_thread = io->epoll >= 0 && io->kick_fd >= 0 &&
                    epoll_ctl(io->epoll, EPOLL_CTL_ADD, io->kick_fd, &event) == 0 &&
                    thread_start(&io->thread, run_thread, io) == 0;
    if (io->is_thread) return CAIRN_OK;
    remote_io_release(io);
    return CAIRN_ERR_NO_MEMORY;
}

void remote_io_finish(struct remote_io *io)
{
    if (!io->is_thread) return;
    pthread_mutex_lock(&io->lock);
    io->is_over = true;
    pthread_mutex_unlock(&io->lock);
    (void)eventfd_write(io->kick_fd, 1);
}

void remote_io_join(struct remote_io *io)
{
    if (!io->is_thread) return;
    pthread_join(io->thread, NULL);
    io->is_thread = false;
}

void remote_io_release(struct remote_io *io)
{
    remote_io_join(io);
    if (io->epoll >= 0) close(io->epoll);
    if (io->kick_fd >= 0) close(io->kick_fd);
    while (io->stock != NULL) {
        struct remote_buffer *buffer = io->stock;
        io->stock = buffer->next;
        free(buffer);
    }
    pthread_mutex_destroy(&io->lock);
}

static uint32_t threads_wanted(void)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 2                        ? 1
           : cores / 2 > REMOTE_THREADS_MAX ? REMOTE_THREADS_MAX
                                            : (uint32_t)cores / 2;
}

struct remote_io *remote_io_choose(struct remote_fabric *fabric)
{
    if (!fabric->is_sealed) return &fabric->own;
    if (fabric->thread_count < threads_wanted()) {
        struct remote_io *io = malloc(sizeof *io);
        if (io != NULL && remote_io_init(io, fabric, true) == CAIRN_OK)
            fabric->threads[fabric->thread_count++] = io;
        else
            free(io);
    }
    if (fabric->thread_count == 0) return NULL;
    return fabric->threads[fabric->thread_next++ % fabric->thread_count];
}

static void kick(struct remote_conn *conn, bool is_leaving)
{
    struct remote_io *io = conn->io;
    pthread_mutex_lock(&io->lock);
    const bool was_empty = TAILQ_EMPTY(&io->kicked);
    if (!conn->is_kicked) TAILQ_INSERT_TAIL(&io->kicked, conn, kicked);
    conn->is_kicked = true;
    conn->is_leaving = is_leaving; // this is then the last kick: the thread lets go once
    pthread_mutex_unlock(&io->lock);
    if (was_empty) (void)eventfd_write(io->kick_fd, 1);
}

void remote_io_kick(struct remote_conn *conn)
{
    kick(conn, false);
}

void remote_io_adopt(struct remote_conn *conn)
{
    if (!conn->io->is_thread) {
        remote_watch(conn, EPOLLIN);
        return;
    }
    remote_unwatch(conn);
    remote_io_kick(conn);
}

bool remote_io_let_go(struct remote_conn *conn)
{
    if (conn->io == NULL) return true;
    if (!conn->io->is_thread) {
        say_close(conn);
        release_buffers(conn);
        return true;
    }
    kick(conn, true);
    return false;
}
