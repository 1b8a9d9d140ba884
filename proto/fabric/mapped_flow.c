#include "proto/fabric/mapped.h"

#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "proto/base/text.h"
#include "proto/fabric/backend.h"

/* ==== mapped frame ==== */

/* Frames of the mapped fabric: validated, proved, read and written. */

enum { MAGIC = 0x32504d43 }; /* "CMP2": another number is another version */

static_assert(FRAME_KEY_BYTES == crypto_auth_KEYBYTES, "libsodium's");
static_assert(FRAME_PROOF_BYTES == crypto_auth_BYTES, "libsodium's");

struct frame_head frame_head(enum frame_kind kind)
{
    return (struct frame_head) { .magic = MAGIC, .kind = kind };
}

static bool is_region(const struct frame_region *frame, size_t bytes)
{
    return bytes == sizeof *frame && frame->slot < FRAME_SLOTS && frame->bytes > 0 &&
           frame->memory <= FRAME_MEMORY_DEVICE && frame->note_bytes <= CAIRN_FABRIC_NOTE_MAX;
}

/* True if the bytes are long enough for this message. */
static bool is_message_in(const struct frame_message *frame, size_t bytes)
{
    if (bytes < sizeof *frame) return false;
    const bool is_inline = frame->slot == FRAME_INLINE;
    if (frame->header_bytes == 0 || frame->header_bytes > CAIRN_FABRIC_HEADER_MAX) return false;
    if (!is_inline && (frame->slot >= FRAME_SLOTS || frame->payload_bytes == 0)) return false;
    if (is_inline && frame->payload_bytes > FRAME_INLINE_MAX) return false;
    return bytes >= frame_message_bytes(frame);
}

/* Returns the message of a bundle that begins at `at`, and advances `at` to the next message; NULL: no
 * complete message begins there. A bundle is valid if its messages fill exactly its `bytes` bytes. */
static const struct frame_message *frame_bundled(const union frame *frame, size_t bytes, size_t *at)
{
    const struct frame_message *message = (const void *)(frame->bytes + *at);
    if (*at >= bytes || !is_message_in(message, bytes - *at) || message->head.magic != MAGIC ||
        message->head.kind != FRAME_MESSAGE)
        return NULL;
    *at += frame_filled(frame_message_bytes(message));
    return message;
}

static bool is_bundle(const union frame *frame, size_t bytes)
{
    size_t at = sizeof frame->head;
    while (frame_bundled(frame, bytes, &at) != NULL) {}
    return at == bytes && bytes > sizeof frame->head;
}

static bool is_release(size_t bytes)
{
    const size_t serials = bytes - sizeof(struct frame_head);
    return serials > 0 && serials % sizeof(uint64_t) == 0 && bytes <= sizeof(struct frame_release);
}

/* Validates bytes: returns the kind of a complete frame whose fields agree with its length and with the
 * limits above, or FRAME_MALFORMED. Slots and serials mean something only to a connection, and are not
 * checked here. */
static enum frame_kind frame_judge(const union frame *frame, size_t bytes)
{
    if (bytes < sizeof frame->head || frame->head.magic != MAGIC) return FRAME_MALFORMED;
    const enum frame_kind kind = frame->head.kind;
    bool is_sound = false;
    switch (kind) {
    case FRAME_CHALLENGE:
    case FRAME_HELLO:
    case FRAME_WELCOME: is_sound = bytes == sizeof frame->greeting; break;
    case FRAME_REGION: is_sound = is_region(&frame->region, bytes); break;
    case FRAME_REGION_GONE:
        is_sound = bytes == sizeof frame->gone && frame->gone.slot < FRAME_SLOTS;
        break;
    case FRAME_MESSAGE:
        is_sound = is_message_in(&frame->message, bytes) &&
                   bytes == frame_message_bytes(&frame->message);
        break;
    case FRAME_BUNDLE: is_sound = is_bundle(frame, bytes); break;
    case FRAME_RELEASE: is_sound = is_release(bytes); break;
    case FRAME_NO_IMPORTS: is_sound = bytes == sizeof frame->head; break;
    case FRAME_MALFORMED: break;
    }
    return is_sound ? kind : FRAME_MALFORMED;
}

/* -- proofs ------------------------------------------------------------------------------------- */

bool frame_begin(void)
{
    return sodium_init() >= 0;
}

void frame_random(void *bytes, size_t count)
{
    randombytes_buf(bytes, count);
}

struct proven {
    char what[8];
    uint8_t acceptor_nonce[FRAME_NONCE_BYTES], connector_nonce[FRAME_NONCE_BYTES];
};

static struct proven proven(bool by_acceptor, const uint8_t *acceptor_nonce,
                            const uint8_t *connector_nonce)
{
    struct proven p = { .what = "" };
    memcpy(p.what, by_acceptor ? "accept" : "connect", by_acceptor ? 6 : 7);
    memcpy(p.acceptor_nonce, acceptor_nonce, sizeof p.acceptor_nonce);
    memcpy(p.connector_nonce, connector_nonce, sizeof p.connector_nonce);
    return p;
}

void frame_prove(const uint8_t key[FRAME_KEY_BYTES], bool by_acceptor,
                 const uint8_t acceptor_nonce[FRAME_NONCE_BYTES],
                 const uint8_t connector_nonce[FRAME_NONCE_BYTES],
                 uint8_t proof_out[FRAME_PROOF_BYTES])
{
    const struct proven p = proven(by_acceptor, acceptor_nonce, connector_nonce);
    crypto_auth(proof_out, (const uint8_t *)&p, sizeof p, key);
}

bool frame_proves(const uint8_t key[FRAME_KEY_BYTES], bool by_acceptor,
                  const uint8_t acceptor_nonce[FRAME_NONCE_BYTES],
                  const uint8_t connector_nonce[FRAME_NONCE_BYTES],
                  const uint8_t proof[FRAME_PROOF_BYTES])
{
    const struct proven p = proven(by_acceptor, acceptor_nonce, connector_nonce);
    return crypto_auth_verify(proof, (const uint8_t *)&p, sizeof p, key) == 0;
}

/* -- the socket --------------------------------------------------------------------------------- */

union one_fd {
    struct cmsghdr header; // for its alignment
    char bytes[CMSG_SPACE(sizeof(int))];
};

/* The buffer has room for one descriptor on purpose: the kernel closes descriptors that do not fit and sets
 * MSG_CTRUNC. On some machines a second descriptor fits into the buffer's padding: then the length shows
 * both descriptors. */
static int take_fd(struct msghdr *message, bool *is_one_out)
{
    struct cmsghdr *control = CMSG_FIRSTHDR(message);
    int fd = -1, extra;
    *is_one_out = (message->msg_flags & MSG_CTRUNC) == 0;
    if (control == NULL || control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS)
        return -1;
    const size_t bytes = control->cmsg_len - CMSG_LEN(0);
    if (bytes >= sizeof fd) memcpy(&fd, CMSG_DATA(control), sizeof fd);
    for (size_t at = sizeof fd; at + sizeof fd <= bytes; at += sizeof fd) {
        memcpy(&extra, CMSG_DATA(control) + at, sizeof extra);
        close(extra);
        *is_one_out = false;
    }
    return fd;
}

/* Reads one frame from a non-blocking socket. Returns the frame's length; 0: the other end is gone; -1:
 * nothing arrived. *fd_out: the descriptor of the frame, which the caller owns, or -1. *is_whole_out: false
 * if the frame was longer than any valid frame or had more than one descriptor. */
static long frame_read(int socket, union frame *frame, int *fd_out, bool *is_whole_out)
{
    union one_fd control;
    struct iovec part = { .iov_base = frame, .iov_len = sizeof *frame };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control
    };
    ssize_t count;
    // ECONNRESET is reported once, before the last data of the other end, if that end closed without
    // reading all of our data.
    do count = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (count < 0 && (errno == EINTR || errno == ECONNRESET));
    *fd_out = -1;
    *is_whole_out = true;
    if (count < 0) return errno == EAGAIN ? -1 : 0;
    *fd_out = take_fd(&message, is_whole_out);
    if ((message.msg_flags & MSG_TRUNC) != 0) *is_whole_out = false;
    return count;
}

/* If `fd` is -1, the frame carries no descriptor. */
static enum frame_fate frame_write(int socket, const struct iovec *parts, size_t count, int fd)
{
    union one_fd control = { .bytes = { 0 } };
    struct msghdr message = { .msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = count };
    if (fd >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    ssize_t sent;
    do sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent >= 0) return FRAME_WRITTEN; // a SOCK_SEQPACKET message is sent completely
    // ETOOMANYREFS: too many descriptors under way; the receiver will take some out.
    return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM ? FRAME_LATER : FRAME_NOBODY;
}

enum frame_fate frame_write_one(int socket, const void *frame, size_t bytes, int fd)
{
    const struct iovec part = { .iov_base = (void *)(uintptr_t)frame, .iov_len = bytes };
    return frame_write(socket, &part, 1, fd);
}

/* ==== mapped out ==== */

/* Connections that we made: we send messages on them, and receive releases. */

enum { OUT_FRAMES_PER_TURN = 64, FRESH_MAX = 64 };

/* -- frames that wait --------------------------------------------------------------------------- */

static struct mapped_frame *frame_get(struct mapped_fabric *fabric, enum frame_kind kind)
{
    struct mapped_frame *frame = TAILQ_FIRST(&fabric->spare);
    if (frame != NULL)
        TAILQ_REMOVE(&fabric->spare, frame, link);
    else if ((frame = malloc(sizeof *frame)) == NULL)
        return NULL;
    *frame = (struct mapped_frame) { .kind = kind };
    return frame;
}

void mapped_frame_put(struct mapped_out *out, struct mapped_frame *frame)
{
    if (frame->kind == FRAME_REGION) mapped_share_release(frame->share);
    if (frame->kind != FRAME_MESSAGE) out->control_count--;
    TAILQ_INSERT_HEAD(&out->fabric->spare, frame, link);
}

static void lose_out(struct mapped_out *out)
{
    if (out->is_lost) return;
    out->is_lost = true;
    mapped_link_unwatch(out->fabric, &out->link);
    if (out->peer != NULL)
        fabric_peer_lost(out->peer, out->is_welcome ? CAIRN_ERR_CLOSED : CAIRN_ERR_UNREACHABLE);
    else
        mapped_out_end(out);
}

enum { PARTS_OF_MESSAGE = 4 };

/* Lists the parts of a message's datagram; returns how many parts there are. */
static size_t add_parts(const struct mapped_frame *frame, struct iovec parts[PARTS_OF_MESSAGE])
{
    static const uint8_t zero[8];
    const struct frame_message *message = &frame->message;
    const size_t bytes = frame_message_bytes(message), fill = frame_filled(bytes) - bytes;
    size_t count = 0;
    parts[count++] = (struct iovec) { (void *)(uintptr_t)message, sizeof *message };
    parts[count++] = (struct iovec) { frame->op->header, message->header_bytes };
    if (message->slot == FRAME_INLINE && message->payload_bytes > 0)
        parts[count++] = (struct iovec) { (void *)(uintptr_t)frame->payload,
                                          message->payload_bytes };
    if (fill > 0) parts[count++] = (struct iovec) { (void *)(uintptr_t)zero, fill };
    return count;
}

static enum frame_fate write_message(struct mapped_out *out, const struct mapped_frame *frame)
{
    struct iovec parts[PARTS_OF_MESSAGE];
    size_t count = add_parts(frame, parts);
    if (frame_message_bytes(&frame->message) % 8 != 0) count--; // a message alone needs no padding
    return frame_write(out->link.fd, parts, count, -1);
}

/* Writes as many messages from the head of the queue as fit into one datagram. */
static enum frame_fate write_messages(struct mapped_out *out, uint32_t *count_out)
{
    const struct frame_head head = frame_head(FRAME_BUNDLE);
    struct iovec parts[1 + PARTS_OF_MESSAGE * FRAME_BUNDLE_MAX];
    const struct mapped_frame *first = TAILQ_FIRST(&out->queue), *frame = first;
    size_t bytes = sizeof head, part_count = 1;
    uint32_t count = 0;
    parts[0] = (struct iovec) { (void *)(uintptr_t)&head, sizeof head };
    for (; frame != NULL && frame->kind == FRAME_MESSAGE && count < FRAME_BUNDLE_MAX; count++) {
        bytes += frame_filled(frame_message_bytes(&frame->message));
        if (bytes > FRAME_BYTES_MAX) break;
        part_count += add_parts(frame, parts + part_count);
        frame = TAILQ_NEXT(frame, link);
    }
    *count_out = count;
    if (count == 1) return write_message(out, first);
    return frame_write(out->link.fd, parts, part_count, -1);
}

/* Writes the frame at the head of the queue. If this is a message, writes the messages behind it, too. */
static enum frame_fate write_frames(struct mapped_out *out, uint32_t *count_out)
{
    const struct mapped_frame *frame = TAILQ_FIRST(&out->queue);
    *count_out = 1;
    if (frame->kind == FRAME_MESSAGE) return write_messages(out, count_out);
    if (frame->kind == FRAME_REGION)
        return frame_write_one(out->link.fd, &frame->share->frame, sizeof frame->share->frame,
                               frame->share->fd);
    const struct frame_gone gone = { .head = frame_head(FRAME_REGION_GONE), .slot = frame->slot };
    return frame_write_one(out->link.fd, &gone, sizeof gone, -1);
}

/* Bytes that were copied, or sent in the frame, belong to the caller again. Bytes that the peer reads in
 * place belong to the caller only once the peer releases them. */
static void message_written(struct mapped_out *out, struct mapped_frame *frame)
{
    struct fabric_flight *flight = NULL;
    if (frame->message.slot != FRAME_INLINE) {
        flight = fabric_flight_find(&out->flights, frame->message.serial);
        flight->is_written = true;
        if (flight->pages.count > 0) out->staged_written++;
    }
    if (flight != NULL && flight->pages.count == 0)
        flight->op = frame->op;
    else
        fabric_op_done(frame->op, CAIRN_OK);
}

static void take_written(struct mapped_out *out, uint32_t count)
{
    for (; count > 0; count--) {
        struct mapped_frame *frame = TAILQ_FIRST(&out->queue);
        TAILQ_REMOVE(&out->queue, frame, link);
        if (frame->kind == FRAME_MESSAGE) message_written(out, frame);
        mapped_frame_put(out, frame);
    }
}

unsigned mapped_out_write(struct mapped_out *out)
{
    enum frame_fate fate = FRAME_WRITTEN;
    unsigned count = 0;
    if (out->is_fresh) TAILQ_REMOVE(&out->fabric->fresh, out, fresh);
    out->is_fresh = false;
    out->fresh_count = 0;
    if (!out->is_welcome || out->is_lost) return 0;
    while (!TAILQ_EMPTY(&out->queue)) {
        uint32_t written;
        if ((fate = write_frames(out, &written)) != FRAME_WRITTEN) break;
        take_written(out, written);
        count += written;
    }
    if (fate == FRAME_NOBODY)
        lose_out(out);
    else
        mapped_link_watch(out->fabric, &out->link,
                          fate == FRAME_LATER ? EPOLLIN | EPOLLOUT : EPOLLIN);
    return count;
}

/* Queues a frame, which is written at the end of the turn together with the other frames of the turn, or
 * earlier if there are many. If earlier frames wait for the socket, the frame waits behind them. */
static void enqueue(struct mapped_out *out, struct mapped_frame *frame)
{
    const bool is_stuck = !out->is_fresh && !TAILQ_EMPTY(&out->queue);
    TAILQ_INSERT_TAIL(&out->queue, frame, link);
    if (frame->kind != FRAME_MESSAGE) out->control_count++;
    if (is_stuck) return;
    if (!out->is_fresh) TAILQ_INSERT_TAIL(&out->fabric->fresh, out, fresh);
    out->is_fresh = true;
    if (++out->fresh_count == FRESH_MAX) mapped_out_write(out);
}

/* -- regions ------------------------------------------------------------------------------------ */

static uint64_t bit_of(uint16_t slot)
{
    return UINT64_C(1) << slot % 64;
}

static cairn_status show_share(struct mapped_out *out, struct mapped_share *share)
{
    const uint16_t slot = share->frame.slot;
    if ((out->shown[slot / 64] & bit_of(slot)) != 0) return CAIRN_OK;
    if (out->control_count >= MAPPED_CONTROL_MAX) return CAIRN_ERR_BUSY;
    struct mapped_frame *frame = frame_get(out->fabric, FRAME_REGION);
    if (frame == NULL) return CAIRN_ERR_NO_MEMORY;
    frame->share = share;
    share->references++;
    out->shown[slot / 64] |= bit_of(slot);
    enqueue(out, frame);
    return CAIRN_OK;
}

/* Queues at most one REGION_GONE for each REGION that was queued, so REGION_GONE needs no bound of its own.
 * If there is no memory for the frame, the connection ends, since the slot must not get two meanings. */
void mapped_take_back(struct mapped_out *out, uint16_t slot)
{
    if ((out->shown[slot / 64] & bit_of(slot)) == 0) return;
    out->shown[slot / 64] &= ~bit_of(slot);
    if (out->is_lost || out->peer == NULL) return; // the end of the connection tells the peer
    struct mapped_frame *frame = frame_get(out->fabric, FRAME_REGION_GONE);
    if (frame == NULL) {
        lose_out(out);
        return;
    }
    frame->slot = slot;
    enqueue(out, frame);
}

cairn_status mapped_region_show(struct fabric_region *region, struct fabric_peer *peer)
{
    if (peer->fabric != region->fabric) return CAIRN_OK; // a peer of "auto" that does not map
    if (region->is_device && !mapped_imports(peer, region->uuid)) return CAIRN_OK;
    return show_share(((struct mapped_peer *)peer)->out, ((struct mapped_region *)region)->share);
}

/* -- sending ------------------------------------------------------------------------------------ */

static cairn_status send_inline(struct mapped_out *out, struct mapped_frame *frame)
{
    frame->message.slot = FRAME_INLINE;
    enqueue(out, frame);
    return CAIRN_OK;
}

static cairn_status send_reference(struct mapped_out *out, struct mapped_frame *frame,
                                   const struct mapped_region *region)
{
    CAIRN_TRY(show_share(out, region->share));
    CAIRN_TRY(fabric_flight_begin(&out->flights, &frame->message.serial));
    frame->message.slot = region->share->frame.slot;
    frame->message.offset = (uint64_t)((const uint8_t *)frame->payload - region->common.base);
    enqueue(out, frame);
    return CAIRN_OK;
}

/* CAIRN_ERR_BUSY: the staging area has no room yet. */
static cairn_status send_copy(struct mapped_out *out, struct mapped_frame *frame)
{
    struct mapped_fabric *fabric = out->fabric;
    struct fabric_pages pages;
    const size_t bytes = frame->message.payload_bytes;
    CAIRN_TRY(mapped_stage(fabric, out->staged_pages, bytes, &pages));
    cairn_status status = show_share(out, fabric->shares[pages.arena]);
    if (status == CAIRN_OK) status = fabric_flight_begin(&out->flights, &frame->message.serial);
    if (status != CAIRN_OK) {
        mapped_unstage(fabric, pages);
        return status;
    }
    fabric_flight_find(&out->flights, frame->message.serial)->pages = pages;
    memcpy(mapped_staged(fabric, pages), frame->payload, bytes);
    out->staged_pages += pages.count;
    frame->message.slot = (uint16_t)pages.arena;
    frame->message.offset = (uint64_t)pages.first * MAPPED_PAGE;
    enqueue(out, frame);
    return CAIRN_OK;
}

static cairn_status stage_or_wait(struct mapped_out *out, struct mapped_frame *frame)
{
    cairn_status status = CAIRN_ERR_BUSY;
    if (TAILQ_EMPTY(&out->waiting)) status = send_copy(out, frame);
    if (status != CAIRN_ERR_BUSY) return status;
    TAILQ_INSERT_TAIL(&out->waiting, frame, link);
    return CAIRN_OK;
}

cairn_status mapped_send(struct fabric_peer *peer, struct fabric_op *op, const void *payload)
{
    struct mapped_out *out = ((struct mapped_peer *)peer)->out;
    struct mapped_frame *frame = frame_get(out->fabric, FRAME_MESSAGE);
    if (frame == NULL) return CAIRN_ERR_NO_MEMORY;
    frame->op = op;
    frame->payload = payload;
    frame->message = (struct frame_message) { .head = frame_head(FRAME_MESSAGE),
                                              .payload_bytes = (uint32_t)op->payload_bytes,
                                              .header_bytes = (uint16_t)op->header_bytes };
    const struct fabric *common = &out->fabric->common;
    const bool is_small = op->payload_bytes <= FRAME_INLINE_MAX;
    const bool may_refer = op->payload_bytes >= FRAME_REFER_MIN;
    struct fabric_region *region = NULL;
    cairn_status status;
    if (may_refer || (op->payload_bytes > 0 && common->device_region_count > 0))
        region = fabric_region_find(common, payload, op->payload_bytes);
    if (region != NULL && !region->is_device && !may_refer) region = NULL;
    if (is_small && region == NULL) // nothing here reads memory of cards
        status = send_inline(out, frame);
    else if (region != NULL)
        status = send_reference(out, frame, (struct mapped_region *)region);
    else
        status = stage_or_wait(out, frame);
    if (status != CAIRN_OK) TAILQ_INSERT_HEAD(&out->fabric->spare, frame, link);
    return status;
}

/* Called when pages were released. If there is no memory at all, the next waiting message ends here with an
 * error. */
unsigned mapped_out_stage_waiting(struct mapped_out *out)
{
    struct mapped_frame *frame;
    unsigned count = 0;
    while (!out->is_lost && (frame = TAILQ_FIRST(&out->waiting)) != NULL) {
        TAILQ_REMOVE(&out->waiting, frame, link);
        const cairn_status status = send_copy(out, frame);
        if (status == CAIRN_ERR_BUSY) {
            TAILQ_INSERT_HEAD(&out->waiting, frame, link);
            break;
        }
        count++;
        if (status == CAIRN_OK) continue;
        fabric_op_done(frame->op, status);
        TAILQ_INSERT_HEAD(&out->fabric->spare, frame, link);
    }
    return count;
}

/* -- answers ------------------------------------------------------------------------------------ */

static void release_out(struct mapped_out *out, struct fabric_flight *flight)
{
    if (flight->op != NULL) fabric_op_done(flight->op, CAIRN_OK);
    if (flight->pages.count > 0) {
        out->staged_pages -= flight->pages.count;
        out->staged_written--;
    }
    mapped_unstage(out->fabric, flight->pages);
    fabric_flight_end(&out->flights, flight);
}

static bool on_release(struct mapped_out *out, const struct frame_release *frame, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct fabric_flight *flight = fabric_flight_find(&out->flights, frame->serials[i]);
        if (flight == NULL || !flight->is_written) return false;
        release_out(out, flight);
    }
    return true;
}

static bool on_challenge(struct mapped_out *out, const struct frame_greeting *challenge)
{
    struct frame_greeting hello = { .head = frame_head(FRAME_HELLO) };
    frame_random(out->nonce, sizeof out->nonce);
    memcpy(out->challenge, challenge->nonce, sizeof out->challenge);
    memcpy(hello.nonce, out->nonce, sizeof hello.nonce);
    frame_prove(out->key, false, out->challenge, out->nonce, hello.proof);
    // The first frame of a new connection always finds room.
    return frame_write_one(out->link.fd, &hello, sizeof hello, -1) == FRAME_WRITTEN;
}

static bool on_frame_out(struct mapped_out *out, const union frame *frame, size_t bytes)
{
    switch (frame_judge(frame, bytes)) {
    case FRAME_CHALLENGE: return !out->is_welcome && on_challenge(out, &frame->greeting);
    case FRAME_WELCOME:
        if (out->is_welcome ||
            !frame_proves(out->key, true, out->challenge, out->nonce, frame->greeting.proof))
            return false;
        out->is_welcome = true;
        mapped_out_write(out);
        return true;
    case FRAME_RELEASE:
        return out->is_welcome && on_release(out, &frame->release, frame_release_count(bytes));
    case FRAME_NO_IMPORTS:
        if (out->is_welcome) mapped_import_none(out);
        return out->is_welcome;
    default: return false;
    }
}

unsigned mapped_out_on_event(struct mapped_out *out, uint32_t events)
{
    union frame *frame = &out->fabric->frame;
    unsigned count = 0;
    if ((events & EPOLLOUT) != 0) count += mapped_out_write(out);
    for (int i = 0; i < OUT_FRAMES_PER_TURN && !out->is_lost; i++, count++) {
        int fd;
        bool is_whole;
        const long bytes = frame_read(out->link.fd, frame, &fd, &is_whole);
        if (bytes < 0) break;
        if (fd >= 0) close(fd);
        if (bytes == 0 || fd >= 0 || !is_whole || !on_frame_out(out, frame, (size_t)bytes))
            lose_out(out);
        if (out->peer == NULL && out->staged_written == 0) lose_out(out);
    }
    return count;
}

/* ==== mapped in ==== */

/* Connections that we accepted: peers send messages on them, and we send releases.
 *
 * Any fault in a frame ends the connection, and nothing else. Held messages stay readable. We read the
 * socket no more, but keep the socket open until the held messages are dropped, since a sender that sees
 * the end reuses its memory. */

enum { IN_FRAMES_PER_TURN = 16 };
/* Half of the smallest first-level cache in use. */
#define FAR_BLOCK ((size_t)16 << 10)

/* -- strangers ---------------------------------------------------------------------------------- */

static uid_t user_of(int fd)
{
    struct ucred who = { .uid = (uid_t)-1 };
    socklen_t bytes = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 ? who.uid : (uid_t)-1;
}

/* True if the user may run a member: our own user, root, or a user who had a member here before. */
static bool is_known(const struct mapped_fabric *fabric, uid_t user)
{
    if (user == geteuid() || user == 0) return true;
    for (uint32_t i = 0; i < fabric->users.count && i < MAPPED_USERS_MAX; i++)
        if (fabric->users.ids[i] == user) return true;
    return false;
}

/* Stops counting the connection among the strangers. */
static void leave_strangers(struct mapped_in *in)
{
    struct mapped_fabric *fabric = in->fabric;
    if (in->is_unknown) {
        TAILQ_REMOVE(&fabric->unknown, in, unknown);
        fabric->unknown_count--;
    } else {
        fabric->stranger_count--;
    }
    in->is_unknown = false;
}

static void know(struct mapped_fabric *fabric, uid_t user)
{
    struct mapped_in *in, *next;
    if (user == (uid_t)-1 || is_known(fabric, user)) return;
    fabric->users.ids[fabric->users.count++ % MAPPED_USERS_MAX] = user;
    for (in = TAILQ_FIRST(&fabric->unknown); in != NULL; in = next) {
        next = TAILQ_NEXT(in, unknown);
        if (in->user != user) continue;
        leave_strangers(in);
        fabric->stranger_count++;
    }
}

static uint32_t count_of_user(const struct mapped_fabric *fabric, uid_t user)
{
    const struct mapped_in *in;
    uint32_t count = 0;
    TAILQ_FOREACH (in, &fabric->unknown, unknown) count += in->user == user;
    return count;
}

/* Closes the oldest connection of the user who has the most unknown connections. So a user who opens many
 * connections pushes out only connections of the same user. */
static void push_one_out(struct mapped_fabric *fabric)
{
    struct mapped_in *in, *out = NULL;
    uint32_t most = 0;
    TAILQ_FOREACH (in, &fabric->unknown, unknown) {
        const uint32_t count = count_of_user(fabric, in->user);
        if (count <= most) continue;
        most = count;
        out = in;
    }
    fabric->common.stats.connections_refused++;
    mapped_in_close(out);
}

static void join_strangers(struct mapped_in *in)
{
    struct mapped_fabric *fabric = in->fabric;
    in->user = user_of(in->link.fd);
    in->is_unknown = !is_known(fabric, in->user);
    if (!in->is_unknown) {
        fabric->stranger_count++;
        return;
    }
    TAILQ_INSERT_TAIL(&fabric->unknown, in, unknown);
    if (++fabric->unknown_count > MAPPED_STRANGERS_MAX) push_one_out(fabric);
}

/* -- the end ------------------------------------------------------------------------------------ */

static void in_free(struct mapped_in *in)
{
    struct mapped_fabric *fabric = in->fabric;
    struct fabric_mapping *mapping;
    while ((mapping = LIST_FIRST(&in->all)) != NULL) { // the owner still holds the mapping
        LIST_REMOVE(mapping, entry);
        mapping->in = NULL;
    }
    if (in->is_dirty) TAILQ_REMOVE(&fabric->dirty, in, dirty);
    LIST_REMOVE(in, entry);
    fabric->in_count--;
    free(in->releases);
    mapped_link_end(fabric, &in->link);
}

static void end_mappings(struct mapped_in *in)
{
    for (uint32_t slot = 0; slot < in->slot_count; slot++) {
        struct fabric_mapping *mapping = in->mappings[slot];
        in->mappings[slot] = NULL;
        if (mapping != NULL) mapped_mapping_end(mapping);
    }
    free(in->mappings);
    in->mappings = NULL;
    in->slot_count = 0;
}

/* Stops reading. HUP, which epoll reports without being asked, then says that the other end is closed,
 * too. */
static void finish_in(struct mapped_in *in)
{
    if (in->is_over) return;
    in->is_over = true;
    if (!in->is_proven) leave_strangers(in);
    end_mappings(in);
    mapped_in_flush(in);
}

void mapped_in_finish(struct mapped_in *in)
{
    finish_in(in);
}

static void refuse_in(struct mapped_in *in)
{
    in->fabric->common.stats.connections_refused++;
    finish_in(in);
}

void mapped_in_close(struct mapped_in *in)
{
    mapped_in_flush(in);
    if (in->link.is_ended) return;
    in->held = in->release_count = 0;
    if (in->is_over)
        in_free(in);
    else
        finish_in(in);
}

/* -- releases ----------------------------------------------------------------------------------- */

static enum frame_fate write_releases(struct mapped_in *in)
{
    struct frame_release frame = { .head = frame_head(FRAME_RELEASE) };
    const uint32_t count = in->release_count < FRAME_RELEASES_MAX ? in->release_count
                                                                  : (uint32_t)FRAME_RELEASES_MAX;
    memcpy(frame.serials, in->releases, count * sizeof in->releases[0]);
    const enum frame_fate fate = frame_write_one(
        in->link.fd, &frame, sizeof frame.head + count * sizeof frame.serials[0], -1);
    if (fate != FRAME_WRITTEN) return fate;
    in->release_count -= count;
    memmove(in->releases, in->releases + count, in->release_count * sizeof in->releases[0]);
    return fate;
}

/* We do not read from a peer that does not take its releases, so the peer cannot make us keep more
 * releases. */
static void watch_in(struct mapped_in *in, bool is_stuck)
{
    uint32_t events = is_stuck ? EPOLLOUT : 0;
    if (in->is_gone) return;
    if (!in->is_over && in->release_count < MAPPED_RELEASES_MAX) events |= EPOLLIN;
    mapped_link_watch(in->fabric, &in->link, events);
}

void mapped_in_flush(struct mapped_in *in)
{
    enum frame_fate fate = FRAME_WRITTEN;
    if (in->is_dirty) TAILQ_REMOVE(&in->fabric->dirty, in, dirty);
    in->is_dirty = false;
    while (in->release_count > 0 && fate == FRAME_WRITTEN) fate = write_releases(in);
    if (fate == FRAME_NOBODY) in->release_count = 0;
    if (in->is_over && in->held == 0 && in->release_count == 0)
        in_free(in);
    else if (fate != FRAME_NOBODY) // otherwise a read reports the end of the connection
        watch_in(in, fate == FRAME_LATER);
}

/* Reserves room for the release of one more message, before the message is held. */
static bool reserve_release(struct mapped_in *in)
{
    const uint32_t needed = in->release_count + in->held + 1;
    if (needed <= in->release_capacity) return true;
    const uint32_t capacity = 2 * needed;
    uint64_t *releases = realloc(in->releases, capacity * sizeof *releases);
    if (releases == NULL) return false;
    in->releases = releases;
    in->release_capacity = capacity;
    return true;
}

static void release_in(struct mapped_in *in, uint64_t serial)
{
    assert(in->release_count < in->release_capacity);
    in->releases[in->release_count++] = serial;
    if (in->is_dirty) return;
    in->is_dirty = true;
    TAILQ_INSERT_TAIL(&in->fabric->dirty, in, dirty);
}

/* -- messages ----------------------------------------------------------------------------------- */

static void let_go(struct mapped_message *message)
{
    free(message->copy);
    message->copy = NULL;
    if (message->in == NULL) return;
    fabric_mapping_release(message->mapping);
    message->in->held--;
    release_in(message->in, message->serial);
}

const void *mapped_view(const struct fabric_message *message)
{
    return ((const struct mapped_message *)message)->view;
}

static const struct fabric_device *device_of(const struct mapped_message *message)
{
    return message->mapping != NULL ? message->mapping->device : NULL;
}

const char *mapped_message_path(const struct fabric_message *message)
{
    return device_of((const struct mapped_message *)message) != NULL ? "device" : "mapped";
}

void mapped_drop(struct fabric_message *message)
{
    let_go((struct mapped_message *)message);
}

/* True if a copy that was just made of the payload is intact. A sender ends the connection before its owner
 * may write the memory again: if the connection still exists after the copy, nobody wrote during the copy.
 * Payloads in staging pages stay unchanged until they are released. */
static bool is_whole(const struct mapped_message *message)
{
    if (message->in == NULL || message->mapping->is_staging) return true;
    struct pollfd end = { .fd = message->in->link.fd, .events = POLLRDHUP };
    return poll(&end, 1, 0) == 0;
}

/* Sums a block, and then writes the block from the first-level cache, so that each line is read from memory
 * only once. */
static void copy_far(struct mapped_fabric *fabric, struct fabric_op *op, uint8_t *to,
                     const uint8_t *from)
{
    checksum_begin(fabric->sum);
    for (size_t at = 0, bytes; at < op->payload_bytes; at += bytes) {
        bytes = op->payload_bytes - at < FAR_BLOCK ? op->payload_bytes - at : FAR_BLOCK;
        checksum_add(fabric->sum, from + at, bytes);
        far_copy(to + at, from + at, bytes);
    }
    *op->checksum_out = checksum_end(fabric->sum);
    op->is_summed = true;
}

void mapped_receive(struct fabric_message *common, struct fabric_op *op, void *buffer)
{
    struct mapped_message *message = (struct mapped_message *)common;
    const struct fabric_device *device = device_of(message);
    cairn_status status = CAIRN_OK;
    if (device != NULL)
        status = device->copy(device->context, buffer, message->view, common->payload_bytes);
    else if (message->view == NULL) // fabric.c computes the checksum, if one is wanted
        status = mapped_mapping_copy(message->mapping, message->offset, buffer,
                                     common->payload_bytes)
                     ? CAIRN_OK
                     : CAIRN_ERR_IO;
    else if (op->checksum_out != NULL)
        copy_far(mapped_of(common->fabric), op, buffer, message->view);
    else
        memcpy(buffer, message->view, common->payload_bytes);
    struct mapped_in *unread = status == CAIRN_OK || device == NULL ? NULL : message->in;
    if (status == CAIRN_OK && !is_whole(message)) status = CAIRN_ERR_CLOSED;
    fabric_op_done(op, status);
    let_go(message);
    if (unread == NULL || unread->is_over) return;
    mapped_import_none_of(unread,
                          "the card did not copy it to the host: it has failed, or is full");
    refuse_in(unread);
}

/* Returns false if there is no memory for the message. If the message were just dropped, its sender would
 * wait for ever; so the connection ends, which makes both sides ask again. */
static bool offer_inline(struct mapped_in *in, const struct frame_message *frame)
{
    struct fabric *fabric = &in->fabric->common;
    const uint8_t *header = (const uint8_t *)(frame + 1), *payload = header + frame->header_bytes;
    const uint16_t header_bytes = frame->header_bytes;
    const uint32_t payload_bytes = frame->payload_bytes;
    if (!fabric_judge(fabric, header_bytes, payload_bytes)) return true;
    if (payload_bytes == 0) {
        fabric_offer(fabric, header, header_bytes, 0, NULL);
        return true;
    }
    uint8_t *copy = malloc(payload_bytes);
    struct mapped_message *message = NULL;
    if (copy != NULL)
        message = (struct mapped_message *)fabric_message_new(fabric, payload_bytes);
    else
        fabric->stats.messages_refused++;
    if (message == NULL) {
        free(copy);
        return false;
    }
    memcpy(copy, payload, payload_bytes);
    message->view = message->copy = copy;
    fabric_offer(fabric, header, header_bytes, payload_bytes, &message->common);
    return true;
}

/* Like offer_inline, for a message by reference. */
static bool offer_reference(struct mapped_in *in, const struct frame_message *frame,
                            struct fabric_mapping *mapping)
{
    struct fabric *fabric = &in->fabric->common;
    const void *header = frame + 1;
    if (!fabric_judge(fabric, frame->header_bytes, frame->payload_bytes)) {
        release_in(in, frame->serial);
        return true;
    }
    struct mapped_message *message = (struct mapped_message *)fabric_message_new(
        fabric, frame->payload_bytes);
    if (message == NULL) {
        release_in(in, frame->serial);
        return false;
    }
    message->in = in;
    message->mapping = mapping;
    message->view = mapping->memory != NULL ? (const uint8_t *)mapping->memory + frame->offset
                                            : NULL;
    message->offset = frame->offset;
    message->serial = frame->serial;
    fabric_mapping_hold(mapping);
    in->held++;
    fabric_offer(fabric, header, frame->header_bytes, frame->payload_bytes, &message->common);
    return true;
}

static struct fabric_mapping *mapping_of(const struct mapped_in *in, uint16_t slot)
{
    return slot < in->slot_count ? in->mappings[slot] : NULL;
}

static bool on_message(struct mapped_in *in, const struct frame_message *frame)
{
    if (frame->slot == FRAME_INLINE) return offer_inline(in, frame);
    struct fabric_mapping *mapping = mapping_of(in, frame->slot);
    if (mapping == NULL || frame->offset > mapping->bytes) return false;
    if (frame->payload_bytes > mapping->bytes - frame->offset) return false;
    if (!mapped_mapping_has(mapping, frame->offset, frame->payload_bytes)) return false;
    if (!reserve_release(in)) return false;
    return offer_reference(in, frame, mapping);
}

/* The owner may end the connection while a message is shown to it: then the bundle's remaining messages are
 * not shown. */
static bool on_bundle(struct mapped_in *in, const union frame *frame, size_t bytes)
{
    const struct frame_message *message;
    size_t at = sizeof frame->head;
    while (!in->is_over && (message = frame_bundled(frame, bytes, &at)) != NULL)
        if (!on_message(in, message)) return false;
    return true;
}

/* -- regions ------------------------------------------------------------------------------------ */

/* Consumes the descriptor. */
static bool on_region(struct mapped_in *in, const struct frame_region *frame, int fd)
{
    const struct fabric_options *options = &in->fabric->common.options;
    if (mapping_of(in, frame->slot) != NULL ||
        !fabric_slots_reserve(&in->mappings, &in->slot_count, frame->slot, sizeof(*in->mappings))) {
        close(fd);
        return false;
    }
    struct fabric_mapping *mapping;
    if (mapped_mapping_open(in, frame, fd, &mapping) != CAIRN_OK) return false;
    in->mappings[frame->slot] = mapping;
    if (mapping->is_staging || mapping->bytes == 0 || mapping->memory == NULL ||
        options->on_mapping == NULL)
        return true;
    mapping->is_shown = true;
    options->on_mapping(options->on_message_arg, mapping);
    return true;
}

static bool on_gone(struct mapped_in *in, const struct frame_gone *frame)
{
    struct fabric_mapping *mapping = mapping_of(in, frame->slot);
    if (mapping == NULL) return false;
    in->mappings[frame->slot] = NULL;
    mapped_mapping_end(mapping);
    return true;
}

/* -- frames ------------------------------------------------------------------------------------- */

static bool on_hello(struct mapped_in *in, const struct frame_greeting *hello)
{
    struct mapped_fabric *fabric = in->fabric;
    struct frame_greeting welcome = { .head = frame_head(FRAME_WELCOME) };
    if (!frame_proves(fabric->key, false, in->challenge, hello->nonce, hello->proof)) return false;
    frame_prove(fabric->key, true, in->challenge, hello->nonce, welcome.proof);
    leave_strangers(in);
    in->is_proven = true;
    know(fabric, in->user);
    return frame_write_one(in->link.fd, &welcome, sizeof welcome, -1) == FRAME_WRITTEN;
}

/* A stranger may send HELLO and nothing else; a descriptor may arrive only with REGION. */
static bool on_frame_in(struct mapped_in *in, const union frame *frame, size_t bytes, int fd)
{
    const enum frame_kind kind = frame_judge(frame, bytes);
    const bool is_known = in->is_proven;
    if ((fd >= 0) != (kind == FRAME_REGION && is_known)) {
        if (fd >= 0) close(fd);
        return false;
    }
    if (!is_known) return kind == FRAME_HELLO && on_hello(in, &frame->greeting);
    switch (kind) {
    case FRAME_REGION: return on_region(in, &frame->region, fd);
    case FRAME_REGION_GONE: return on_gone(in, &frame->gone);
    case FRAME_MESSAGE: return on_message(in, &frame->message);
    case FRAME_BUNDLE: return on_bundle(in, frame, bytes);
    default: return false;
    }
}

static void read_frame(struct mapped_in *in, long bytes, int fd, bool is_whole)
{
    if (bytes == 0) {
        if (fd >= 0) close(fd);
        finish_in(in);
    } else if (!is_whole) {
        if (fd >= 0) close(fd);
        refuse_in(in);
    } else if (!on_frame_in(in, &in->fabric->frame, (size_t)bytes, fd)) {
        refuse_in(in);
    }
}

unsigned mapped_in_on_event(struct mapped_in *in, uint32_t events)
{
    unsigned count = 0;
    if (in->is_over && (events & (EPOLLHUP | EPOLLERR)) != 0) {
        in->is_gone = true;
        mapped_link_unwatch(in->fabric, &in->link); // held messages stay readable
        in->release_count = 0;
    }
    if (in->is_over || (events & EPOLLOUT) != 0) {
        mapped_in_flush(in);
        count++;
    }
    for (int i = 0; i < IN_FRAMES_PER_TURN && !in->is_over; i++, count++) {
        int fd;
        bool is_whole;
        if (in->release_count >= MAPPED_RELEASES_MAX) mapped_in_flush(in);
        if (in->is_over || in->release_count >= MAPPED_RELEASES_MAX) break;
        const long bytes = frame_read(in->link.fd, &in->fabric->frame, &fd, &is_whole);
        if (bytes < 0) break;
        read_frame(in, bytes, fd, is_whole);
    }
    return count;
}

void mapped_in_accept(struct mapped_fabric *fabric, int fd)
{
    struct frame_greeting challenge = { .head = frame_head(FRAME_CHALLENGE) };
    struct mapped_in *in = calloc(1, sizeof *in);
    if (in != NULL) in->link = (struct mapped_link) { .kind = MAPPED_IN, .fd = fd };
    if (in == NULL || !mapped_link_watch(fabric, &in->link, EPOLLIN)) {
        close(fd); // the peer sees this, and connects again
        free(in);
        return;
    }
    in->fabric = fabric;
    in->since_ms = monotonic_ms();
    LIST_INIT(&in->all);
    LIST_INSERT_HEAD(&fabric->ins, in, entry);
    fabric->in_count++;
    join_strangers(in);
    frame_random(in->challenge, sizeof in->challenge);
    memcpy(challenge.nonce, in->challenge, sizeof challenge.nonce);
    if (frame_write_one(fd, &challenge, sizeof challenge, -1) != FRAME_WRITTEN) finish_in(in);
}
