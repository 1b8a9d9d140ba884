/* Frames of the mapped fabric: judged, proved, read and written. */
#include "proto/fabric/mapped_frame.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

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

/* It is one that the bytes have room for. */
static bool is_message_in(const struct frame_message *frame, size_t bytes)
{
    if (bytes < sizeof *frame) return false;
    const bool is_inline = frame->slot == FRAME_INLINE;
    if (frame->header_bytes == 0 || frame->header_bytes > CAIRN_FABRIC_HEADER_MAX) return false;
    if (!is_inline && (frame->slot >= FRAME_SLOTS || frame->payload_bytes == 0)) return false;
    if (is_inline && frame->payload_bytes > FRAME_INLINE_MAX) return false;
    return bytes >= frame_message_bytes(frame);
}

static bool is_message(const struct frame_message *frame, size_t bytes)
{
    return is_message_in(frame, bytes) && bytes == frame_message_bytes(frame);
}

const struct frame_message *frame_bundled(const union frame *frame, size_t bytes, size_t *at)
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

enum frame_kind frame_judge(const union frame *frame, size_t bytes)
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
    case FRAME_MESSAGE: is_sound = is_message(&frame->message, bytes); break;
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

/* The room is for one descriptor on purpose: the kernel closes what does not fit and says MSG_CTRUNC. Two
 * would fit into its padding on some machines: then both are in the length. */
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

long frame_read(int socket, union frame *frame, int *fd_out, bool *is_whole_out)
{
    union one_fd control;
    struct iovec part = { .iov_base = frame, .iov_len = sizeof *frame };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control
    };
    ssize_t count;
    // ECONNRESET is told once, before what the other end sent last: it closed with something unread.
    do count = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (count < 0 && (errno == EINTR || errno == ECONNRESET));
    *fd_out = -1;
    *is_whole_out = true;
    if (count < 0) return errno == EAGAIN ? -1 : 0;
    *fd_out = take_fd(&message, is_whole_out);
    if ((message.msg_flags & MSG_TRUNC) != 0) *is_whole_out = false;
    return count;
}

enum frame_fate frame_write(int socket, const struct iovec *parts, size_t count, int fd)
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
    if (sent >= 0) return FRAME_WRITTEN; // a SOCK_SEQPACKET message goes whole
    // ETOOMANYREFS: too many descriptors under way; the receiver takes some out.
    return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM ? FRAME_LATER : FRAME_NOBODY;
}

enum frame_fate frame_write_one(int socket, const void *frame, size_t bytes, int fd)
{
    const struct iovec part = { .iov_base = (void *)(uintptr_t)frame, .iov_len = bytes };
    return frame_write(socket, &part, 1, fd);
}
