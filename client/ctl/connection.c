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

enum { REQUEST = 2, FIRST_QUESTION = 3, QUESTION_EVERY_MS = 1000, FULL_MS = 10 };

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

/* Waits until the socket can be read or written; CAIRN_ERR_TIMEOUT at `until_ms`. */
static cairn_status await(const struct ctl *ctl, short events, uint64_t until_ms)
{
    for (;;) {
        const uint64_t now = now_ms();
        if (now >= until_ms) return CAIRN_ERR_TIMEOUT;
        struct pollfd one = { .fd = ctl->fd, .events = events };
        const int ready = poll(&one, 1, (int)(until_ms - now));
        if (ready > 0) return CAIRN_OK;
        if (ready < 0 && errno != EINTR) return CAIRN_ERR_IO;
    }
}

static cairn_status send_all(const struct ctl *ctl, const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        cairn_status status = await(ctl, POLLOUT, ctl->deadline_ms);
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
    socklen_t length = 0;
    cairn_status status = cairn_address_parse(ctl->endpoint, &address, why);
    if (status == CAIRN_OK) status = cairn_address_resolve(&address, &socket_address, &length, why);
    if (status != CAIRN_OK) return status;
    ctl->fd = socket(socket_address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (ctl->fd < 0) return cairn_fail(why, CAIRN_ERR_IO, "no socket: %s", strerror(errno));
    int error = 0;
    socklen_t error_bytes = sizeof error;
    do { // a Unix socket with a full queue says so at once
        if (error == EAGAIN) poll(NULL, 0, FULL_MS);
        error = connect(ctl->fd, (struct sockaddr *)&socket_address, length) == 0 ? 0 : errno;
    } while (error == EAGAIN && now_ms() < ctl->deadline_ms);
    if (error == EINPROGRESS) {
        status = await(ctl, POLLOUT, ctl->deadline_ms);
        if (status != CAIRN_OK)
            return cairn_fail(why, CAIRN_ERR_UNREACHABLE, "%s does not answer", ctl->endpoint);
        getsockopt(ctl->fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes);
    }
    if (error == 0) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_UNREACHABLE,
                      "the coordinator at %s cannot be reached: %s; is it running, is --endpoint "
                      "or CAIRN_ENDPOINT right? (without them it is looked for in "
                      "$XDG_RUNTIME_DIR/cairn and /run/cairn)",
                      ctl->endpoint, strerror(error));
}

static cairn_status say_late(const struct ctl *ctl, struct cairn_sentence *why)
{
    if (ctl->awaited.text[0] != '\0')
        return cairn_fail(
            why, CAIRN_ERR_TIMEOUT,
            "not done within %d ms: it waits for %.400s; try again when that is there",
            ctl->timeout_ms, ctl->awaited.text);
    return cairn_fail(why, CAIRN_ERR_TIMEOUT, "no answer from the coordinator at %s within %d ms",
                      ctl->endpoint, ctl->timeout_ms);
}

/* The next frame, waiting for it until then. Its payload is valid until the next call. */
static cairn_status next_frame(const struct ctl *ctl, struct cairn_frame_decoder *decoder,
                               uint64_t until_ms, struct cairn_frame *frame,
                               struct cairn_sentence *why)
{
    for (;;) {
        uint8_t *room;
        size_t room_bytes;
        const enum cairn_frame_state state = cairn_frame_decoder_next(decoder, frame, why);
        if (state == CAIRN_FRAME_READY) return CAIRN_OK;
        if (state == CAIRN_FRAME_MALFORMED) return CAIRN_ERR_PROTOCOL;
        cairn_status status = await(ctl, POLLIN, until_ms);
        if (status == CAIRN_ERR_TIMEOUT) return say_late(ctl, why);
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

/* What is in it comes from shards and workers too, and goes to a terminal or into JSON. */
static ProtobufCMessage *unpack(const struct cairn_frame *frame)
{
    ProtobufCMessage *message = cairn_message_unpack(cairn_message_type(frame->type),
                                                     frame->payload, frame->payload_bytes);
    if (message != NULL) cairn_message_mend(message);
    return message;
}

/* Notes for whom the cut waits, and says so, once: if they are not there, or `is_late`. */
static void take_awaited(struct ctl *ctl, const struct cairn_frame *frame, bool is_late)
{
    Cairn__Awaited *awaited = (Cairn__Awaited *)unpack(frame);
    if (awaited == NULL) return;
    cairn_sentence_set(&ctl->awaited, "%s", awaited->text);
    const bool worth = awaited->text[0] != '\0' && (awaited->away || is_late);
    if (worth && !ctl->awaited_said) {
        fprintf(stderr, "cairn: %s: waits for %s\n", ctl->words, awaited->text);
        ctl->awaited_said = true;
    }
    cairn_message_free(&awaited->base);
}

/* Waits until then for the frame with this request id; an Error becomes its status and sentence. */
static cairn_status await_reply(struct ctl *ctl, struct cairn_frame_decoder *decoder,
                                uint64_t until_ms, uint32_t request, uint16_t type,
                                ProtobufCMessage **reply_out, struct cairn_sentence *why)
{
    for (;;) {
        struct cairn_frame frame;
        cairn_status status = next_frame(ctl, decoder, until_ms, &frame, why);
        if (status != CAIRN_OK) return status;
        if (frame.type == CAIRN_MSG_AWAITED)
            take_awaited(ctl, &frame, frame.request > FIRST_QUESTION);
        const bool is_error = frame.type == CAIRN_MSG_ERROR;
        if (frame.request != request && !(is_error && frame.request == 0)) continue;
        if (frame.type != type && !is_error)
            return cairn_fail(why, CAIRN_ERR_PROTOCOL, "the coordinator answered with %s",
                              cairn_message_name(frame.type));
        ProtobufCMessage *message = unpack(&frame);
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

/* The answer to REQUEST; of a cut: asks meanwhile, at once and again and again, for whom it waits. */
static cairn_status await_answer(struct ctl *ctl, struct cairn_frame_decoder *decoder,
                                 uint16_t type, ProtobufCMessage **reply_out,
                                 struct cairn_sentence *why)
{
    if (ctl->cut_of == NULL)
        return await_reply(ctl, decoder, ctl->deadline_ms, REQUEST, type, reply_out, why);
    Cairn__WhoIsAwaited question = CAIRN__WHO_IS_AWAITED__INIT;
    question.name = (char *)(uintptr_t)ctl->cut_of;
    question.cut = true;
    for (uint32_t number = FIRST_QUESTION;; number++) {
        cairn_status status = send_message(ctl, CAIRN_MSG_WHO_IS_AWAITED, number, &question.base);
        if (status != CAIRN_OK) return status;
        const uint64_t now = now_ms();
        const bool is_last = ctl->deadline_ms <= now + QUESTION_EVERY_MS;
        status = await_reply(ctl, decoder, is_last ? ctl->deadline_ms : now + QUESTION_EVERY_MS,
                             REQUEST, type, reply_out, why);
        if (status != CAIRN_ERR_TIMEOUT || is_last) return status;
    }
}

/* What follows an answer. */
static cairn_status await_pages(struct ctl *ctl, struct cairn_frame_decoder *decoder,
                                struct cairn_paged *pages, struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    do {
        ProtobufCMessage *reply;
        status = await_reply(ctl, decoder, ctl->deadline_ms, REQUEST, CAIRN_MSG_PAGE, &reply, why);
        if (status != CAIRN_OK) return status;
        const Cairn__Page *page = (const Cairn__Page *)reply;
        if (pages->total_bytes == 0) status = cairn_paged_init(pages, page->total_bytes);
        if (status == CAIRN_OK) status = cairn_paged_add(pages, page);
        cairn_message_free(reply);
    } while (status == CAIRN_OK && !cairn_paged_whole(pages));
    if (status != CAIRN_OK) cairn_sentence_set(why, "the coordinator sent pages that do not fit");
    return status;
}

/* `pages`: NULL, or behind the answer come some. */
static cairn_status converse(struct ctl *ctl, struct cairn_frame_decoder *decoder, uint16_t type,
                             const ProtobufCMessage *message, uint16_t reply_type,
                             ProtobufCMessage **reply_out, struct cairn_paged *pages,
                             struct cairn_sentence *why)
{
    char name[CAIRN_NAME_MAX];
    snprintf(name, sizeof name, "cairn %s, pid %ld", ctl->words, (long)getpid());
    Cairn__Hello hello = CAIRN__HELLO__INIT;
    hello.protocol = CAIRN_CONTROL_PROTOCOL;
    hello.role = CAIRN_ROLE_WIRE_ADMIN;
    hello.name = name;
    hello.version = (char *)(uintptr_t)ctl->build;
    ProtobufCMessage *welcome = NULL;
    cairn_status status = connect_to(ctl, why);
    if (status != CAIRN_OK) return status;
    cairn_sentence_set(why, "sending to the coordinator at %s failed", ctl->endpoint);
    status = send_message(ctl, CAIRN_MSG_HELLO, 1, &hello.base);
    if (status == CAIRN_OK)
        status = await_reply(ctl, decoder, ctl->deadline_ms, 1, CAIRN_MSG_WELCOME, &welcome, why);
    cairn_message_free(welcome);
    if (status == CAIRN_OK) status = send_message(ctl, type, REQUEST, message);
    if (status == CAIRN_OK) status = await_answer(ctl, decoder, reply_type, reply_out, why);
    if (status != CAIRN_OK || pages == NULL) return status;
    status = await_pages(ctl, decoder, pages, why);
    if (status == CAIRN_OK) return CAIRN_OK;
    cairn_paged_release(pages);
    cairn_message_free(*reply_out);
    return status;
}

cairn_status cairn_ctl_call_paged(struct ctl *ctl, uint16_t type, const ProtobufCMessage *message,
                                  uint16_t reply_type, ProtobufCMessage **reply_out,
                                  struct cairn_paged *pages)
{
    struct cairn_frame_decoder decoder;
    struct cairn_sentence why = { "" };
    const struct cairn_frame_limits limits = { CAIRN_MSG_WELCOME, CAIRN_MSG_MAX,
                                               CAIRN_FRAME_BYTES_MAX };
    if (ctl->timeout_ms == 0) ctl->timeout_ms = 30000;
    ctl->deadline_ms = now_ms() + (uint64_t)ctl->timeout_ms;
    cairn_frame_decoder_init(&decoder, limits);
    cairn_status status = converse(ctl, &decoder, type, message, reply_type, reply_out, pages,
                                   &why);
    cairn_frame_decoder_release(&decoder);
    if (ctl->fd >= 0) close(ctl->fd);
    ctl->fd = -1;
    const bool passes = status == CAIRN_ERR_UNREACHABLE || status == CAIRN_ERR_TIMEOUT;
    if (status != CAIRN_OK && !(passes && ctl->tries_again)) cairn_ctl_fail(status, "%s", why.text);
    return status;
}

cairn_status cairn_ctl_call(struct ctl *ctl, uint16_t type, const ProtobufCMessage *message,
                            uint16_t reply_type, ProtobufCMessage **reply_out)
{
    return cairn_ctl_call_paged(ctl, type, message, reply_type, reply_out, NULL);
}
