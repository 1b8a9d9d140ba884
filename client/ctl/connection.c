/* One request over one blocking connection, with one deadline. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "proto/loop/address.h"
#include "proto/wire/frame.h"

int cairn_ctl_fail(cairn_status status, const char *fmt, ...)
{
    va_list arguments;
    va_start(arguments, fmt);
    fprintf(stderr, "cairn: ");
    vfprintf(stderr, fmt, arguments);
    fprintf(stderr, " [CAIRN-E%04d]\n", (int)status);
    va_end(arguments);
    return cairn_status_exit((int)status);
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Waits until the socket can be read or written; CAIRN_ERR_TIMEOUT at the deadline. */
static cairn_status await(const struct ctl *ctl, short events)
{
    for (;;) {
        const uint64_t now = now_ms();
        if (now >= ctl->deadline_ms) return CAIRN_ERR_TIMEOUT;
        struct pollfd one = { .fd = ctl->fd, .events = events };
        const int ready = poll(&one, 1, (int)(ctl->deadline_ms - now));
        if (ready > 0) return CAIRN_OK;
        if (ready < 0 && errno != EINTR) return CAIRN_ERR_IO;
    }
}

static cairn_status send_all(const struct ctl *ctl, const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        cairn_status status = await(ctl, POLLOUT);
        if (status != CAIRN_OK) return status;
        const ssize_t sent = send(ctl->fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (sent < 0) return CAIRN_ERR_UNREACHABLE;
        bytes += sent;
        count -= (size_t)sent;
    }
    return CAIRN_OK;
}

static cairn_status send_message(const struct ctl *ctl, uint16_t type, uint32_t request,
                                 const ProtobufCMessage *message)
{
    struct cairn_sentence why;
    uint8_t *frame;
    size_t frame_bytes;
    cairn_status status = cairn_frame_pack(type, request, message, CAIRN_FRAME_BYTES_MAX, &frame,
                                           &frame_bytes, &why);
    if (status != CAIRN_OK) return status;
    status = send_all(ctl, frame, frame_bytes);
    free(frame);
    return status;
}

static cairn_status connect_to(struct ctl *ctl, struct cairn_sentence *why)
{
    struct cairn_address address;
    struct sockaddr_storage socket_address;
    cairn_status status = cairn_address_parse(ctl->endpoint, &address, why);
    if (status == CAIRN_OK) status = cairn_address_resolve(&address, &socket_address, why);
    if (status != CAIRN_OK) return status;
    ctl->fd = socket(socket_address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (ctl->fd < 0) return cairn_fail(why, CAIRN_ERR_IO, "no socket: %s", strerror(errno));
    const socklen_t length = socket_address.ss_family == AF_INET ? sizeof(struct sockaddr_in)
                                                                 : sizeof(struct sockaddr_in6);
    int error = 0;
    socklen_t error_bytes = sizeof error;
    if (connect(ctl->fd, (struct sockaddr *)&socket_address, length) != 0) error = errno;
    if (error == EINPROGRESS) {
        status = await(ctl, POLLOUT);
        if (status != CAIRN_OK)
            return cairn_fail(why, CAIRN_ERR_UNREACHABLE, "%s does not answer", ctl->endpoint);
        getsockopt(ctl->fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes);
    }
    if (error == 0) return CAIRN_OK;
    return cairn_fail(
        why, CAIRN_ERR_UNREACHABLE,
        "the coordinator at %s cannot be reached: %s; is it running, is --endpoint or "
        "CAIRN_ENDPOINT right?",
        ctl->endpoint, strerror(error));
}

/* The next frame, waiting for it. Its payload is valid until the next call. */
static cairn_status next_frame(const struct ctl *ctl, struct cairn_frame_decoder *decoder,
                               struct cairn_frame *frame, struct cairn_sentence *why)
{
    for (;;) {
        uint8_t *room;
        size_t room_bytes;
        const enum cairn_frame_state state = cairn_frame_decoder_next(decoder, frame, why);
        if (state == CAIRN_FRAME_READY) return CAIRN_OK;
        if (state == CAIRN_FRAME_MALFORMED) return CAIRN_ERR_PROTOCOL;
        cairn_status status = await(ctl, POLLIN);
        if (status == CAIRN_ERR_TIMEOUT)
            return cairn_fail(why, status, "no answer from the coordinator at %s within %d ms",
                              ctl->endpoint, ctl->timeout_ms);
        if (status != CAIRN_OK) return status;
        if (cairn_frame_decoder_reserve(decoder, &room, &room_bytes) != CAIRN_FRAME_NONE)
            return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "out of memory for the answer");
        const ssize_t got = recv(ctl->fd, room, room_bytes, MSG_DONTWAIT);
        cairn_frame_decoder_added(decoder, got > 0 ? (size_t)got : 0);
        if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) continue;
        return cairn_fail(why, CAIRN_ERR_UNREACHABLE, "the coordinator at %s closed the connection",
                          ctl->endpoint);
    }
}

/* Waits for the frame with this request id; an Error becomes its status and sentence. */
static cairn_status await_reply(const struct ctl *ctl, struct cairn_frame_decoder *decoder,
                                uint32_t request, uint16_t type, ProtobufCMessage **reply_out,
                                struct cairn_sentence *why)
{
    for (;;) {
        struct cairn_frame frame;
        cairn_status status = next_frame(ctl, decoder, &frame, why);
        if (status != CAIRN_OK) return status;
        const bool is_error = frame.type == CAIRN_MSG_ERROR;
        if (frame.request != request && !(is_error && frame.request == 0)) continue;
        if (frame.type != type && !is_error)
            return cairn_fail(why, CAIRN_ERR_PROTOCOL, "the coordinator answered with %s",
                              cairn_message_name(frame.type));
        ProtobufCMessage *message = cairn_message_unpack(cairn_message_type(frame.type),
                                                         frame.payload, frame.payload_bytes);
        if (message == NULL)
            return cairn_fail(why, CAIRN_ERR_PROTOCOL, "the coordinator sent a bad %s",
                              cairn_message_name(frame.type));
        if (!is_error) {
            *reply_out = message;
            return CAIRN_OK;
        }
        const Cairn__Error *error = (const Cairn__Error *)message;
        status = error->status != CAIRN_OK && cairn_status_known(error->status)
                     ? (cairn_status)error->status
                     : CAIRN_ERR_PROTOCOL;
        cairn_sentence_set(why, "%s", error->text);
        cairn_message_free(message);
        return status;
    }
}

static cairn_status converse(struct ctl *ctl, struct cairn_frame_decoder *decoder, uint16_t type,
                             const ProtobufCMessage *message, uint16_t reply_type,
                             ProtobufCMessage **reply_out, struct cairn_sentence *why)
{
    char name[64];
    snprintf(name, sizeof name, "cairn, pid %ld", (long)getpid());
    Cairn__Hello hello = CAIRN__HELLO__INIT;
    hello.protocol = CAIRN_CONTROL_PROTOCOL;
    hello.role = CAIRN_ROLE_WIRE_ADMIN;
    hello.name = name;
    hello.version = (char *)(uintptr_t)CAIRN_VERSION;
    ProtobufCMessage *welcome = NULL;
    cairn_status status = connect_to(ctl, why);
    if (status != CAIRN_OK) return status;
    cairn_sentence_set(why, "sending to the coordinator at %s failed", ctl->endpoint);
    status = send_message(ctl, CAIRN_MSG_HELLO, 1, &hello.base);
    if (status == CAIRN_OK) status = await_reply(ctl, decoder, 1, CAIRN_MSG_WELCOME, &welcome, why);
    cairn_message_free(welcome);
    if (status == CAIRN_OK) status = send_message(ctl, type, 2, message);
    if (status == CAIRN_OK) status = await_reply(ctl, decoder, 2, reply_type, reply_out, why);
    return status;
}

cairn_status cairn_ctl_call(struct ctl *ctl, uint16_t type, const ProtobufCMessage *message,
                            uint16_t reply_type, ProtobufCMessage **reply_out)
{
    struct cairn_frame_decoder decoder;
    struct cairn_sentence why = { "" };
    const struct cairn_frame_limits limits = { CAIRN_MSG_WELCOME, CAIRN_MSG_MAX,
                                               CAIRN_FRAME_BYTES_MAX };
    if (ctl->timeout_ms == 0) ctl->timeout_ms = 30000;
    ctl->deadline_ms = now_ms() + (uint64_t)ctl->timeout_ms;
    cairn_frame_decoder_init(&decoder, limits);
    cairn_status status = converse(ctl, &decoder, type, message, reply_type, reply_out, &why);
    cairn_frame_decoder_release(&decoder);
    if (ctl->fd >= 0) close(ctl->fd);
    ctl->fd = -1;
    if (status != CAIRN_OK) cairn_ctl_fail(status, "%s", why.text);
    return status;
}
