/* Implements admin.h. Each request has a blocking connection of its own, with one deadline. */
#include "client/admin.h"

#include <cairn.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/base.h"
#include "client/job.h"
#include "client/op.h"
#include "client/push.h"
#include "proto/base/machine.h"
#include "proto/base/text.h"
#include "proto/loop/loop.h"
#include "proto/wire/wire.h"

enum {
    SILENT_MS = 5000, /* how long one coordinator of several may take to say Welcome */
    REQUEST = 2,
    FIRST_QUESTION = 3,
    QUESTION_EVERY_MS = 1000,
    FULL_MS = 10,
    LOOK_MS = 100,
    RECEIVE_BYTES = 64 << 10
};

/* Waits until the socket can be read or written; CAIRN_ERR_TIMEOUT at `until_ms`, CAIRN_ERR_CLOSED when the
 * caller's session ends. */
static cairn_status await(const struct admin *admin, short events, uint64_t until_ms)
{
    for (;;) {
        const uint64_t now = monotonic_ms();
        if (now >= until_ms) return CAIRN_ERR_TIMEOUT;
        if (admin->ends != NULL && admin->ends(admin->context)) return CAIRN_ERR_CLOSED;
        struct pollfd one = { .fd = admin->fd, .events = events };
        const uint64_t left_ms = until_ms - now;
        const bool looks = admin->ends != NULL && left_ms > LOOK_MS;
        const int ready = poll(&one, 1, looks ? LOOK_MS : (int)left_ms);
        if (ready > 0) return CAIRN_OK;
        if (ready < 0 && errno != EINTR) return CAIRN_ERR_IO;
    }
}

static cairn_status send_all(const struct admin *admin, const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        CAIRN_TRY(await(admin, POLLOUT, admin->deadline_ms));
        const ssize_t sent = send(admin->fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (sent < 0) return CAIRN_ERR_UNREACHABLE;
        bytes += sent;
        count -= (size_t)sent;
    }
    return CAIRN_OK;
}

/* ---- the channel of a TCP connection ---- */

/* Sends the records that wait. */
static cairn_status send_wire(struct admin *admin)
{
    struct byte_queue *wire = &admin->wire;
    const size_t count = byte_queue_count(wire);
    if (count == 0) return CAIRN_OK;
    const cairn_status status = send_all(admin, byte_queue_first(wire), count);
    byte_queue_drop(wire, count);
    return status;
}

/* Receives once. CAIRN_ERR_UNREACHABLE: the connection has ended. */
static cairn_status receive(const struct admin *admin, uint8_t *room, size_t room_bytes,
                            size_t *count_out)
{
    const ssize_t got = recv(admin->fd, room, room_bytes, MSG_DONTWAIT);
    *count_out = got > 0 ? (size_t)got : 0;
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR)) ? CAIRN_OK
                                                                       : CAIRN_ERR_UNREACHABLE;
}

/* Receives once, and opens the records that are complete. */
static cairn_status receive_sealed(struct admin *admin, struct sentence *why)
{
    struct byte_queue *arrived = &admin->arrived;
    size_t count, used = 0;
    struct sentence inner = { "" };
    if (byte_queue_reserve(arrived, RECEIVE_BYTES) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the answer");
    CAIRN_TRY(receive(admin, arrived->bytes + arrived->end, RECEIVE_BYTES, &count));
    arrived->end += count;
    cairn_status status;
    do {
        status = channel_take(admin->channel, byte_queue_first(arrived), byte_queue_count(arrived),
                              CAIRN_FRAME_BYTES_MAX, &used, &admin->plain, &inner);
        byte_queue_drop(arrived, used);
    } while (status == CAIRN_OK && used > 0 && byte_queue_count(arrived) > 0);
    if (status == CAIRN_OK || status == CAIRN_ERR_CLOSED)
        return status == CAIRN_OK || byte_queue_count(&admin->plain) > 0 ? CAIRN_OK
                                                                         : CAIRN_ERR_UNREACHABLE;
    return fail_with(why, status, "the coordinator at %s: %s", admin->endpoint, inner.text);
}

/* Proves who we are, and that the other end is the token's coordinator. */
static cairn_status shake_hands(struct admin *admin, struct sentence *why)
{
    while (!channel_is_up(admin->channel)) {
        CAIRN_TRY(channel_greet(admin->channel, &admin->wire));
        cairn_status status = send_wire(admin);
        if (status == CAIRN_OK) status = await(admin, POLLIN, admin->deadline_ms);
        if (status == CAIRN_ERR_TIMEOUT)
            return fail_with(why, CAIRN_ERR_UNREACHABLE, "%s does not answer", admin->endpoint);
        if (status == CAIRN_OK) status = receive_sealed(admin, why);
        if (status == CAIRN_ERR_UNREACHABLE) {
            handshake_silence_text(admin->endpoint, CAIRN_PURPOSE_CONTROL, why);
            return CAIRN_ERR_REFUSED;
        }
        if (status == CAIRN_ERR_PROTOCOL) return CAIRN_ERR_REFUSED;
        if (status != CAIRN_OK) return status;
    }
    return channel_greet(admin->channel, &admin->wire); // goes with the first frame
}

static cairn_status open_channel(struct admin *admin, const struct stream_address *address,
                                 struct sentence *why)
{
    struct entrance entrance = { 0 };
    struct handshake_options options;
    cairn_status status = entrance_find(&entrance, address, admin->token_file, NULL, why);
    if (status == CAIRN_OK && entrance.is_needed)
        status = channel_open(entrance_secure(&entrance, &options), &admin->channel);
    entrance_wipe(&entrance);
    sodium_memzero(&options, sizeof options);
    return status;
}

/* Says that the end of the connection is meant, if the coordinator takes it at once. */
static void end_connection(struct admin *admin)
{
    if (admin->fd >= 0 && admin->channel != NULL &&
        channel_finish(admin->channel, &admin->wire) == CAIRN_OK &&
        byte_queue_count(&admin->wire) > 0)
        (void)!send(admin->fd, byte_queue_first(&admin->wire), byte_queue_count(&admin->wire),
                    MSG_NOSIGNAL | MSG_DONTWAIT);
    channel_close(admin->channel);
    admin->channel = NULL;
    byte_queue_release(&admin->arrived);
    byte_queue_release(&admin->plain);
    byte_queue_release(&admin->wire);
    if (admin->fd >= 0) close(admin->fd);
    admin->fd = -1;
}

/* ---- frames ---- */

static cairn_status send_message(struct admin *admin, uint16_t type, uint32_t request,
                                 const ProtobufCMessage *message)
{
    struct sentence why;
    uint8_t *frame;
    size_t frame_bytes;
    CAIRN_TRY(
        frame_pack(type, request, message, CAIRN_FRAME_BYTES_MAX, &frame, &frame_bytes, &why));
    cairn_status status;
    if (admin->channel == NULL) {
        status = send_all(admin, frame, frame_bytes);
    } else {
        status = channel_seal(admin->channel, frame, frame_bytes, monotonic_ms(), &admin->wire);
        if (status == CAIRN_OK) status = send_wire(admin);
    }
    free(frame);
    return status;
}

/* Tries one address until `until_ms`. Returns 0, or an errno; ETIMEDOUT: it does not answer. */
static int try_address(struct admin *admin, const struct sockaddr_storage *addr, uint64_t until_ms)
{
    int error = 0;
    socklen_t error_bytes = sizeof error;
    if (admin->fd >= 0) close(admin->fd);
    admin->fd = socket(addr->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (admin->fd < 0) return errno;
    do { // a Unix socket whose queue is full fails at once
        if (error == EAGAIN) poll(NULL, 0, FULL_MS);
        error = connect(admin->fd, (const struct sockaddr *)addr, address_socket_bytes(addr)) == 0
                    ? 0
                    : errno;
    } while (error == EAGAIN && monotonic_ms() < until_ms);
    if (error != EINPROGRESS) return error;
    if (await(admin, POLLOUT, until_ms) != CAIRN_OK) return ETIMEDOUT;
    getsockopt(admin->fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes);
    return error;
}

/* Connects to one coordinator of several. */
static cairn_status connect_one(struct admin *admin, const struct stream_address *address,
                                struct sentence *why)
{
    struct socket_addresses addresses;
    cairn_status status = open_channel(admin, address, why);
    if (status == CAIRN_OK) status = address_resolve(address, &addresses, why);
    if (status != CAIRN_OK) return status;
    const uint64_t patience_ms = address_patience_ms(addresses.count, (uint64_t)admin->timeout_ms);
    int error = 0;
    for (size_t i = 0; i < addresses.count; i++) {
        const uint64_t now_ms = monotonic_ms();
        const bool is_last = i + 1 == addresses.count || now_ms + patience_ms >= admin->deadline_ms;
        error = try_address(admin, &addresses.list[i],
                            is_last ? admin->deadline_ms : now_ms + patience_ms);
        if (error == 0) return admin->channel != NULL ? shake_hands(admin, why) : CAIRN_OK;
        if (is_last) break;
    }
    if (admin->fd < 0) return fail_with(why, CAIRN_ERR_IO, "no socket: %s", strerror(error));
    if (error == ETIMEDOUT)
        return fail_with(why, CAIRN_ERR_UNREACHABLE, "%s does not answer", admin->endpoint);
    return fail_with(why, CAIRN_ERR_UNREACHABLE,
                     "the coordinator at %s cannot be reached: %s; is it running%s",
                     admin->endpoint, strerror(error), admin->advice);
}

static cairn_status say_late(const struct admin *admin, struct sentence *why)
{
    if (admin->awaited.text[0] != '\0')
        return fail_with(
            why, CAIRN_ERR_TIMEOUT,
            "not done within %d ms: still waiting for %.400s; try again when that is there",
            admin->timeout_ms, admin->awaited.text);
    return fail_with(why, CAIRN_ERR_TIMEOUT, "no answer from the coordinator at %s within %d ms",
                     admin->endpoint, admin->timeout_ms);
}

/* Moves to the decoder what has arrived, or waits for something until `until_ms`. */
static cairn_status feed(struct admin *admin, struct frame_decoder *decoder, uint64_t until_ms,
                         struct sentence *why)
{
    uint8_t *room;
    size_t room_bytes, count;
    struct byte_queue *plain = &admin->plain;
    const bool is_there = byte_queue_count(plain) > 0;
    cairn_status status = is_there ? CAIRN_OK : await(admin, POLLIN, until_ms);
    if (status == CAIRN_ERR_TIMEOUT) return say_late(admin, why);
    if (status == CAIRN_OK && admin->channel != NULL && !is_there)
        return receive_sealed(admin, why);
    if (status != CAIRN_OK) return status;
    const enum frame_state state = is_there ? frame_decoder_feed(decoder, byte_queue_first(plain),
                                                                 byte_queue_count(plain), &count)
                                            : frame_decoder_reserve(decoder, &room, &room_bytes);
    if (state != CAIRN_FRAME_NONE)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the answer");
    if (is_there) {
        byte_queue_drop(plain, count);
        return CAIRN_OK;
    }
    status = receive(admin, room, room_bytes, &count);
    frame_decoder_added(decoder, count);
    return status;
}

/* Waits until `until_ms` for the next frame, and returns it. The frame's payload is valid until the
 * next call. */
static cairn_status next_frame(struct admin *admin, struct frame_decoder *decoder,
                               uint64_t until_ms, struct wire_frame *frame, struct sentence *why)
{
    for (;;) {
        const enum frame_state state = frame_decoder_next(decoder, frame, why);
        if (state == CAIRN_FRAME_READY) return CAIRN_OK;
        if (state == CAIRN_FRAME_MALFORMED) return CAIRN_ERR_PROTOCOL;
        const cairn_status status = feed(admin, decoder, until_ms, why);
        if (status == CAIRN_ERR_UNREACHABLE)
            return fail_with(why, status, "the coordinator at %s closed the connection",
                             admin->endpoint);
        if (status != CAIRN_OK) return status;
    }
}

/* Unpacks a message and mends its strings: these strings come from shards and workers too, and are
 * written to a terminal or into JSON. */
static ProtobufCMessage *unpack_frame(const struct wire_frame *frame)
{
    ProtobufCMessage *message = message_unpack(message_type(frame->type), frame->payload,
                                               frame->payload_bytes);
    if (message != NULL) message_mend(message);
    return message;
}

static void note_awaited(struct admin *admin, const struct wire_frame *frame, bool is_late)
{
    Cairn__Awaited *awaited = (Cairn__Awaited *)unpack_frame(frame);
    if (awaited == NULL) return;
    sentence_set(&admin->awaited, "%s", awaited->text);
    if (admin->on_awaited != NULL) admin->on_awaited(admin->context, awaited, is_late);
    message_free(&awaited->base);
}

/* Waits until `until_ms` for the frame with this request id; an Error becomes its status and
 * sentence. */
static cairn_status await_reply(struct admin *admin, struct frame_decoder *decoder,
                                uint64_t until_ms, uint32_t request, uint16_t type,
                                ProtobufCMessage **reply_out, struct sentence *why)
{
    for (;;) {
        struct wire_frame frame;
        cairn_status status = next_frame(admin, decoder, until_ms, &frame, why);
        if (status != CAIRN_OK) return status;
        if (frame.type == CAIRN_MSG_AWAITED)
            note_awaited(admin, &frame, frame.request > FIRST_QUESTION);
        const bool is_error = frame.type == CAIRN_MSG_ERROR;
        if (frame.request != request && !(is_error && frame.request == 0)) continue;
        if (frame.type != type && !is_error)
            return fail_with(why, CAIRN_ERR_PROTOCOL, "the coordinator answered with %s",
                             message_name(frame.type));
        ProtobufCMessage *message = unpack_frame(&frame);
        if (message == NULL)
            return fail_with(why, CAIRN_ERR_PROTOCOL, "the coordinator sent a bad %s",
                             message_name(frame.type));
        if (!is_error) {
            *reply_out = message;
            return CAIRN_OK;
        }
        const Cairn__Error *error = (const Cairn__Error *)message;
        status = error->status != CAIRN_OK && status_known(error->status)
                     ? (cairn_status)error->status
                     : CAIRN_ERR_PROTOCOL;
        sentence_set(why, "%s", error->text);
        message_free(message);
        return status;
    }
}

/* Waits for the answer to REQUEST. If cut_of is set, asks meanwhile, at once and then repeatedly,
 * for whom the snapshot or digest waits. */
static cairn_status await_answer(struct admin *admin, struct frame_decoder *decoder, uint16_t type,
                                 ProtobufCMessage **reply_out, struct sentence *why)
{
    if (admin->cut_of == NULL)
        return await_reply(admin, decoder, admin->deadline_ms, REQUEST, type, reply_out, why);
    Cairn__WhoIsAwaited question = CAIRN__WHO_IS_AWAITED__INIT;
    question.name = wire_text(admin->cut_of);
    question.cut = true;
    for (uint32_t number = FIRST_QUESTION;; number++) {
        cairn_status status = send_message(admin, CAIRN_MSG_WHO_IS_AWAITED, number, &question.base);
        if (status != CAIRN_OK) return status;
        const uint64_t now = monotonic_ms();
        const bool is_last = admin->deadline_ms <= now + QUESTION_EVERY_MS;
        status = await_reply(admin, decoder, is_last ? admin->deadline_ms : now + QUESTION_EVERY_MS,
                             REQUEST, type, reply_out, why);
        if (status != CAIRN_ERR_TIMEOUT || is_last) return status;
    }
}

/* Collects the Page messages that follow an answer. */
static cairn_status await_pages(struct admin *admin, struct frame_decoder *decoder,
                                struct paged *pages, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    do {
        ProtobufCMessage *reply;
        status = await_reply(admin, decoder, admin->deadline_ms, REQUEST, CAIRN_MSG_PAGE, &reply,
                             why);
        if (status != CAIRN_OK) return status;
        const Cairn__Page *page = (const Cairn__Page *)reply;
        if (pages->total_bytes == 0) status = paged_init(pages, page->what, page->total_bytes);
        if (status == CAIRN_OK) status = paged_add(pages, 1, page);
        message_free(reply);
    } while (status == CAIRN_OK && !paged_whole(pages, 1));
    if (status != CAIRN_OK) sentence_set(why, "the coordinator sent pages that do not fit");
    return status;
}

static const struct frame_limits limits = { CAIRN_MSG_WELCOME, CAIRN_MSG_MAX,
                                            CAIRN_FRAME_BYTES_MAX };

/* Connects to a coordinator, and is welcomed there. */
static cairn_status enter(struct admin *admin, const struct stream_address *address,
                          struct frame_decoder *decoder, struct sentence *why)
{
    Cairn__Hello hello = CAIRN__HELLO__INIT;
    hello.protocol = CAIRN_CONTROL_PROTOCOL;
    hello.role = CAIRN_ROLE_WIRE_ADMIN;
    hello.name = wire_text(admin->name);
    hello.version = wire_text(admin->build != NULL ? admin->build : CAIRN_VERSION);
    ProtobufCMessage *welcome = NULL;
    CAIRN_TRY(connect_one(admin, address, why));
    sentence_set(why, "sending to the coordinator at %s failed", admin->endpoint);
    cairn_status status = send_message(admin, CAIRN_MSG_HELLO, 1, &hello.base);
    if (status == CAIRN_ERR_TIMEOUT) return say_late(admin, why);
    if (status == CAIRN_OK)
        status = await_reply(admin, decoder, admin->deadline_ms, 1, CAIRN_MSG_WELCOME, &welcome,
                             why);
    message_free(welcome);
    return status;
}

/* Finds the coordinator that leads: those that stand by refuse to connect, and one that is stopped does not
 * answer. */
static cairn_status enter_any(struct admin *admin, struct frame_decoder *decoder,
                              struct sentence *why)
{
    struct endpoints endpoints;
    CAIRN_TRY(endpoints_parse(admin->endpoint, &endpoints, why));
    const uint64_t deadline_ms = admin->deadline_ms;
    cairn_status status = CAIRN_OK;
    for (size_t left = endpoints.count; left > 0; left--) {
        const uint64_t end_ms = monotonic_ms() + SILENT_MS;
        admin->deadline_ms = left > 1 && end_ms < deadline_ms ? end_ms : deadline_ms;
        status = enter(admin, endpoints_next(&endpoints), decoder, why);
        if (status != CAIRN_ERR_UNREACHABLE && status != CAIRN_ERR_TIMEOUT) break;
        if (left == 1) break;
        end_connection(admin);
        frame_decoder_release(decoder);
        frame_decoder_init(decoder, limits);
    }
    admin->deadline_ms = deadline_ms;
    return status;
}

/* `pages`: NULL, or receives the Pages that follow the answer. */
static cairn_status converse(struct admin *admin, struct frame_decoder *decoder, uint16_t type,
                             const ProtobufCMessage *message, uint16_t reply_type,
                             ProtobufCMessage **reply_out, struct paged *pages,
                             struct sentence *why)
{
    cairn_status status = enter_any(admin, decoder, why);
    if (status == CAIRN_OK) {
        status = send_message(admin, type, REQUEST, message);
        if (status == CAIRN_ERR_TIMEOUT) return say_late(admin, why);
    }
    if (status == CAIRN_OK) status = await_answer(admin, decoder, reply_type, reply_out, why);
    if (status != CAIRN_OK || pages == NULL) return status;
    status = await_pages(admin, decoder, pages, why);
    if (status == CAIRN_OK) return CAIRN_OK;
    paged_release(pages, 1);
    message_free(*reply_out);
    return status;
}

cairn_status admin_call(struct admin *admin, uint16_t type, const ProtobufCMessage *message,
                        uint16_t reply_type, ProtobufCMessage **reply_out, struct paged *pages,
                        struct sentence *why)
{
    struct frame_decoder decoder;
    why->text[0] = '\0';
    admin->fd = -1;
    admin->deadline_ms = monotonic_ms() + (uint64_t)admin->timeout_ms;
    frame_decoder_init(&decoder, limits);
    const cairn_status status = converse(admin, &decoder, type, message, reply_type, reply_out,
                                         pages, why);
    frame_decoder_release(&decoder);
    end_connection(admin);
    return status;
}

/* ---- snapshots ---- */

const Cairn__SnapshotStatus *admin_latest(const Cairn__SnapshotList *list,
                                          admin_passed_fn *on_passed_over)
{
    size_t latest = 0; // the newest snapshot is the first of the list
    while (latest < list->n_snapshots && !list->snapshots[latest]->latest) latest++;
    const bool is_named = latest < list->n_snapshots; // older coordinators do not set `latest`
    for (size_t at = 0; at < list->n_snapshots; at++) {
        const Cairn__SnapshotStatus *snapshot = list->snapshots[at];
        if (is_named && at == latest) return snapshot;
        if (snapshot->nonfinite == 0 && !snapshot->check_failed) {
            if (!is_named) return snapshot;
        } else if (on_passed_over != NULL) {
            on_passed_over(snapshot, "is passed over");
        }
    }
    return NULL;
}

void admin_members(const Cairn__ReplacedJob *replaced, struct sentence *out)
{
    const struct {
        uint32_t count;
        const char *name;
    } kinds[] = { { replaced->workers, "worker" }, { replaced->readers, "reader" } };
    out->text[0] = '\0';
    for (size_t i = 0; i < 2; i++) {
        if (kinds[i].count == 0) continue;
        sentence_add(out, "%s%u %s%s", out->text[0] != '\0' ? " and " : "", kinds[i].count,
                     kinds[i].name, kinds[i].count == 1 ? "" : "s");
    }
    if (out->text[0] == '\0') sentence_set(out, "nobody");
}

bool admin_replaces(const Cairn__SnapshotStatus *plan, struct sentence *out)
{
    const Cairn__ReplacedJob *replaced = plan->replaced;
    struct sentence members;
    if (replaced == NULL || (strcmp(replaced->state, "lost") == 0 && !replaced->may_return))
        return false;
    admin_members(replaced, &members);
    sentence_set(out, "Job %s is %s, at ", plan->job, replaced->state);
    if (replaced->version_unknown)
        sentence_add(out, "an unknown step");
    else
        sentence_add(out, "generation %" PRIu64 ", step %" PRIu64, replaced->generation,
                     replaced->step);
    sentence_add(out, ", and open by %s: what is not in the snapshot of step %" PRIu64,
                 members.text, plan->step);
    return true;
}

/* ==== jobs of the cluster ==== */

/* The cluster's jobs: cairn_job_list, cairn_job_drop, cairn_job_restore, cairn_job_rollback. They
 * use the requests of an operator. */

static bool has_ended(void *context)
{
    struct session *s = context;
    HOLD_LOCK(&s->lock);
    return s->ended;
}

/* Sets this thread's sentence. */
static cairn_status ask(struct session *s, uint64_t deadline_ms, uint16_t type,
                        const ProtobufCMessage *message, uint16_t reply_type,
                        ProtobufCMessage **reply_out)
{
    const uint64_t now_ms = monotonic_ms();
    struct sentence why;
    struct admin admin = { .endpoint = s->endpoint_text,
                           .token_file = s->token_file,
                           .name = s->name,
                           .advice = "?",
                           .timeout_ms = deadline_ms > now_ms ? (int)(deadline_ms - now_ms) : 0,
                           .ends = has_ended,
                           .context = s };
    const cairn_status status = admin_call(&admin, type, message, reply_type, reply_out, NULL,
                                           &why);
    // else the coordinator reported that something else is closed
    if (status == CAIRN_ERR_CLOSED && has_ended(s))
        return client_fail(status, "the session was closed");
    return status == CAIRN_OK ? CAIRN_OK : client_fail(status, "%s", why.text);
}

/* ---- the list ---- */

static void fill_entry(const Cairn__JobStatus *job, struct cairn_job_entry *out)
{
    *out = (struct cairn_job_entry) {
        .struct_size = sizeof *out,
        .version = { job->generation, job->step },
        .version_known = !job->version_unknown,
        .workers = job->workers,
        .workers_min = job->workers_min,
        .shards = job->shards,
        .tensors = job->tensors,
        .elems = job->elems,
        .state_bytes = job->state_bytes,
    };
    snprintf(out->name, sizeof out->name, "%s", job->name);
    snprintf(out->state, sizeof out->state, "%s", job->state);
    snprintf(out->awaited, sizeof out->awaited, "%s", job->awaited);
    text_mend(out->awaited, ""); // the text may have been truncated in the middle of a character
}

static cairn_status list_inside(struct session *s, struct cairn_job_entry *entries, size_t *count,
                                uint64_t deadline_ms)
{
    const size_t room = entries != NULL ? *count : 0;
    const Cairn__JobListGet get = CAIRN__JOB_LIST_GET__INIT;
    ProtobufCMessage *reply;
    struct cairn_job_entry entry;
    if (room > 0 && !struct_fits(entries, sizeof entry))
        return client_fail(CAIRN_ERR_INVALID, "entries[0].struct_size must be %zu at least",
                           sizeof entry);
    CAIRN_TRY(ask(s, deadline_ms, CAIRN_MSG_JOB_LIST_GET, &get.base, CAIRN_MSG_JOB_LIST, &reply));
    const Cairn__JobList *list = (const Cairn__JobList *)reply;
    const size_t size = room > 0 ? entries->struct_size : 0, found = list->n_jobs;
    for (size_t i = 0; i < found && found <= room; i++) {
        struct cairn_job_entry *to = (struct cairn_job_entry *)((uint8_t *)entries + i * size);
        fill_entry(list->jobs[i], &entry);
        to->struct_size = size;
        struct_copy_out(to, &entry, sizeof entry);
    }
    *count = found;
    message_free(reply);
    return found <= room
               ? CAIRN_OK
               : client_fail(CAIRN_ERR_INVALID, "there are %zu jobs, room for %zu; give more room",
                             found, room);
}

cairn_status cairn_job_list(cairn_session *handle, struct cairn_job_entry *entries,
                            size_t *entry_count, int timeout_ms)
{
    API_SESSION(s, handle);
    CAIRN_TRY(api_judge_call("entry_count", entry_count, timeout_ms));
    return list_inside(s, entries, entry_count, api_deadline(timeout_ms));
}

/* ---- what it takes to change one ---- */

static cairn_status judge_change(const char *what, const char *given, uint32_t flags,
                                 uint32_t known, int timeout_ms)
{
    if (given == NULL || given[0] == '\0')
        return client_fail(CAIRN_ERR_INVALID, "%s must be given", what);
    if ((flags & ~known) != 0)
        return client_fail(CAIRN_ERR_INVALID, "flags 0x%x: only 0x%x are known", (unsigned)flags,
                           (unsigned)known);
    return api_judge_call(NULL, NULL, timeout_ms);
}

cairn_status cairn_job_drop(cairn_session *handle, const char *name, uint32_t flags, int timeout_ms)
{
    API_SESSION(s, handle);
    Cairn__JobRemove remove = CAIRN__JOB_REMOVE__INIT;
    ProtobufCMessage *reply = NULL;
    CAIRN_TRY(judge_change("name", name, flags, CAIRN_DROP_FORCE, timeout_ms));
    remove.name = wire_text(name);
    remove.force = (flags & CAIRN_DROP_FORCE) != 0;
    const cairn_status status = ask(s, api_deadline(timeout_ms), CAIRN_MSG_JOB_REMOVE, &remove.base,
                                    CAIRN_MSG_JOB_REMOVED, &reply);
    message_free(reply);
    return status;
}

/* ---- restore ---- */

static cairn_status find_latest(struct session *s, const char *job, uint64_t deadline_ms,
                                char id_out[static 64])
{
    Cairn__SnapshotListGet get = CAIRN__SNAPSHOT_LIST_GET__INIT;
    ProtobufCMessage *reply;
    get.job = wire_text(job);
    cairn_status status = ask(s, deadline_ms, CAIRN_MSG_SNAPSHOT_LIST_GET, &get.base,
                              CAIRN_MSG_SNAPSHOT_LIST, &reply);
    if (status != CAIRN_OK) return status;
    const Cairn__SnapshotStatus *latest = admin_latest((const Cairn__SnapshotList *)reply, NULL);
    if (latest == NULL)
        status = client_fail(CAIRN_ERR_NOT_FOUND,
                             "job %s has no committed snapshot that is not damaged", job);
    else
        snprintf(id_out, 64, "%s", latest->id);
    message_free(reply);
    return status;
}

static cairn_status call_restore(struct session *s, const Cairn__SnapshotRestore *restore,
                                 uint64_t deadline_ms, Cairn__SnapshotStatus **reply_out)
{
    ProtobufCMessage *reply = NULL;
    const cairn_status status = ask(s, deadline_ms, CAIRN_MSG_SNAPSHOT_RESTORE, &restore->base,
                                    CAIRN_MSG_SNAPSHOT_STATUS, &reply);
    *reply_out = (Cairn__SnapshotStatus *)reply;
    return status;
}

/* Refuses a restore that would lose what the replaced job has learned since the snapshot. */
static cairn_status judge_replaced(struct session *s, const Cairn__SnapshotRestore *restore,
                                   uint64_t deadline_ms)
{
    Cairn__SnapshotRestore question = *restore;
    Cairn__SnapshotStatus *plan;
    struct sentence what;
    question.plan = true;
    cairn_status status = call_restore(s, &question, deadline_ms, &plan);
    if (status != CAIRN_OK) return status;
    if (admin_replaces(plan, &what))
        status = client_fail(CAIRN_ERR_EXISTS,
                             "%s would be lost; give CAIRN_RESTORE_REPLACE if it may go",
                             what.text);
    message_free(&plan->base);
    return status;
}

static cairn_status restore_inside(struct session *s, const Cairn__SnapshotRestore *asked,
                                   bool replaces, uint64_t deadline_ms, char *id_out,
                                   struct cairn_version *version_out)
{
    Cairn__SnapshotRestore restore = *asked;
    char latest[64];
    Cairn__SnapshotStatus *reply;
    cairn_status status = CAIRN_OK;
    if (strcmp(restore.id, "latest") == 0) {
        status = find_latest(s, restore.job, deadline_ms, latest);
        restore.id = latest;
    }
    if (status == CAIRN_OK && !replaces) status = judge_replaced(s, &restore, deadline_ms);
    if (status == CAIRN_OK) status = call_restore(s, &restore, deadline_ms, &reply);
    if (status != CAIRN_OK) return status;
    if (id_out != NULL) snprintf(id_out, 64, "%s", reply->id);
    if (version_out != NULL)
        *version_out = (struct cairn_version) { reply->restored_generation, reply->step };
    message_free(&reply->base);
    return CAIRN_OK;
}

cairn_status cairn_job_restore(cairn_session *handle, const char *name, const char *snapshot,
                               uint32_t flags, int timeout_ms, char id_out[64],
                               struct cairn_version *version_out)
{
    const uint32_t known = CAIRN_RESTORE_REPLACE | CAIRN_RESTORE_FALLBACK | CAIRN_RESTORE_UNSIGNED |
                           CAIRN_RESTORE_UNTRUSTED;
    API_SESSION(s, handle);
    Cairn__SnapshotRestore restore = CAIRN__SNAPSHOT_RESTORE__INIT;
    CAIRN_TRY(judge_change("snapshot", snapshot, flags, known, timeout_ms));
    const bool by_path = snapshot[0] == '/';
    if (!by_path) CAIRN_TRY(judge_change("name", name, 0, 0, timeout_ms));
    if (name != NULL) restore.job = wire_text(name);
    *(by_path ? &restore.path : &restore.id) = wire_text(snapshot);
    restore.fallback = (flags & CAIRN_RESTORE_FALLBACK) != 0;
    restore.allow_unsigned = (flags & CAIRN_RESTORE_UNSIGNED) != 0;
    restore.allow_untrusted = (flags & CAIRN_RESTORE_UNTRUSTED) != 0;
    return restore_inside(s, &restore, (flags & CAIRN_RESTORE_REPLACE) != 0,
                          api_deadline(timeout_ms), id_out, version_out);
}

/* ---- rollback ---- */

cairn_status cairn_job_rollback(cairn_session *handle, const char *name,
                                struct cairn_version version, int timeout_ms,
                                struct cairn_version *version_out)
{
    API_SESSION(s, handle);
    Cairn__JobRollback rollback = CAIRN__JOB_ROLLBACK__INIT;
    ProtobufCMessage *reply = NULL;
    CAIRN_TRY(judge_change("name", name, 0, 0, timeout_ms));
    rollback.name = wire_text(name);
    rollback.generation = version.generation;
    rollback.step = version.step;
    CAIRN_TRY(ask(s, api_deadline(timeout_ms), CAIRN_MSG_JOB_ROLLBACK, &rollback.base,
                  CAIRN_MSG_JOB_ROLLED_BACK, &reply));
    const Cairn__JobRolledBack *done = (const Cairn__JobRolledBack *)reply;
    if (version_out != NULL) *version_out = (struct cairn_version) { done->generation, done->step };
    message_free(reply);
    return CAIRN_OK;
}

/* ---- a snapshot, of a job that is open ---- */

cairn_status cairn_snapshot(cairn_job *handle, uint32_t flags, int timeout_ms, char id_out[64])
{
    API_ENTER(job, handle);
    CAIRN_TRY(api_judge_call("id_out", id_out, timeout_ms));
    if ((flags & ~CAIRN_SNAPSHOT_WAIT) != 0)
        return client_fail(CAIRN_ERR_INVALID, "flags is %u; allowed: 0, CAIRN_SNAPSHOT_WAIT (1)",
                           flags);
    ASK_CALL(call, "cairn_snapshot", SNAPSHOT_CREATE, SNAPSHOT_STATUS,
             .rest = "the storage of the snapshots, where it is written");
    Cairn__SnapshotCreate message = CAIRN__SNAPSHOT_CREATE__INIT;
    message.job = job->name;
    message.wait = (flags & CAIRN_SNAPSHOT_WAIT) != 0;
    ProtobufCMessage *reply;
    CAIRN_TRY(ask_coordinator(job, &call, &message.base, api_deadline(timeout_ms), &reply));
    snprintf(id_out, 64, "%s", ((const Cairn__SnapshotStatus *)reply)->id);
    message_free(reply);
    return CAIRN_OK;
}
