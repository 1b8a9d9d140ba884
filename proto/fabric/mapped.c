/* The mapped fabric: peers of one host, who read each other's memory where it lies. Headers, small
 * payloads and descriptors go over Unix sockets, one connection for each direction (as UCX has an
 * endpoint for each).
 *
 * A node listens under a random name of the abstract namespace: no file stays behind, no folder has to be
 * shared with whom a daemon's PrivateTmp keeps apart, and no mode decides who connects: that does the key in
 * the address (mapped.h). Who connects and does not prove that it knows the key delays at most those of
 * its own user (mapped_flow.c). With options.socket_folder it is a socket file there, for
 * containers that share
 * a folder but no network namespace. */
#include "proto/fabric/mapped.h"

#include <inttypes.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/text.h"

enum { EVENTS_PER_PROGRESS = 32, ACCEPTS_PER_TURN = 16, BACKLOG = 4096 };

uint64_t mapped_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* -- what epoll watches ------------------------------------------------------------------------- */

void mapped_link_watch(struct mapped_fabric *fabric, struct mapped_link *link, uint32_t events)
{
    if (link->is_watched && link->events == events) return;
    struct epoll_event event = { .events = events, .data.ptr = link };
    const int how = link->is_watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    link->is_watched = epoll_ctl(fabric->common.event_fd, how, link->fd, &event) == 0;
    link->events = events;
}

void mapped_link_unwatch(struct mapped_fabric *fabric, struct mapped_link *link)
{
    if (link->is_watched) epoll_ctl(fabric->common.event_fd, EPOLL_CTL_DEL, link->fd, NULL);
    link->is_watched = false;
}

void mapped_link_end(struct mapped_fabric *fabric, struct mapped_link *link)
{
    if (link->is_ended) return;
    mapped_link_unwatch(fabric, link);
    close(link->fd);
    link->fd = -1;
    link->is_ended = true;
    link->next = fabric->ended;
    fabric->ended = link;
}

static void free_ended(struct mapped_fabric *fabric)
{
    while (fabric->ended != NULL) {
        struct mapped_link *link = fabric->ended;
        fabric->ended = link->next;
        free(link); // the first member of what it is
    }
}

/* -- strangers ---------------------------------------------------------------------------------- */

static void set_timer(struct mapped_fabric *fabric, bool is_ticking)
{
    const struct timespec second = { .tv_sec = is_ticking ? 1 : 0 };
    const struct itimerspec ticks = { .it_interval = second, .it_value = second };
    if (is_ticking == fabric->is_ticking) return;
    fabric->is_ticking = is_ticking;
    timerfd_settime(fabric->timer.fd, 0, &ticks, NULL);
}

static unsigned accept_some(struct mapped_fabric *fabric)
{
    unsigned count = 0;
    while (count < ACCEPTS_PER_TURN && !fabric->is_held_off &&
           fabric->stranger_count < MAPPED_STRANGERS_MAX &&
           fabric->in_count < MAPPED_CONNECTIONS_MAX) {
        int fd = accept4(fabric->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            // Out of descriptors or memory: not again before the next tick.
            fabric->is_accepting = errno == EAGAIN || errno == ECONNABORTED || errno == EINTR;
            break;
        }
        mapped_in_accept(fabric, fd);
        count++;
    }
    return count;
}

static void drop_silent_strangers(struct mapped_fabric *fabric)
{
    const uint64_t now = mapped_now_ms();
    struct mapped_in *in, *next;
    for (in = LIST_FIRST(&fabric->ins); in != NULL; in = next) {
        next = LIST_NEXT(in, entry);
        if (in->is_proven || in->is_over || now - in->since_ms < MAPPED_STRANGER_MS) continue;
        fabric->common.stats.connections_refused++;
        mapped_in_close(in);
    }
}

static unsigned tick(struct mapped_fabric *fabric)
{
    uint64_t ticks;
    if (read(fabric->timer.fd, &ticks, sizeof ticks) != sizeof ticks) return 0;
    fabric->is_accepting = true;
    drop_silent_strangers(fabric);
    return 1;
}

/* Who may still come, and whether time matters: only while somebody has to prove himself. */
static void see_to_door(struct mapped_fabric *fabric)
{
    const bool is_open = fabric->is_accepting && !fabric->is_held_off &&
                         fabric->stranger_count < MAPPED_STRANGERS_MAX &&
                         fabric->in_count < MAPPED_CONNECTIONS_MAX;
    mapped_link_watch(fabric, &fabric->listener, is_open ? EPOLLIN : 0);
    set_timer(fabric, fabric->stranger_count + fabric->unknown_count > 0 || !fabric->is_accepting);
}

/* -- driving ------------------------------------------------------------------------------------ */

static unsigned serve(struct mapped_fabric *fabric, struct mapped_link *link, uint32_t events)
{
    if (link->is_ended) return 0; // by an event before it
    switch (link->kind) {
    case MAPPED_LISTENER: return accept_some(fabric);
    case MAPPED_TIMER: return tick(fabric);
    case MAPPED_IN: return mapped_in_on_event((struct mapped_in *)link, events);
    case MAPPED_OUT: return mapped_out_on_event((struct mapped_out *)link, events);
    }
    return 0;
}

static unsigned flush_releases(struct mapped_fabric *fabric)
{
    unsigned count = 0;
    for (; !TAILQ_EMPTY(&fabric->dirty); count++) mapped_in_flush(TAILQ_FIRST(&fabric->dirty));
    return count;
}

static unsigned write_fresh(struct mapped_fabric *fabric)
{
    unsigned count = 0;
    while (!TAILQ_EMPTY(&fabric->fresh)) count += mapped_out_write(TAILQ_FIRST(&fabric->fresh));
    return count;
}

static unsigned use_room(struct mapped_fabric *fabric)
{
    unsigned count = 0;
    struct mapped_out *out;
    if (!fabric->is_room) return 0;
    fabric->is_room = false;
    LIST_FOREACH (out, &fabric->outs, entry) count += mapped_out_stage_waiting(out);
    return count;
}

static unsigned send_away(struct mapped_fabric *fabric)
{
    unsigned count = 0;
    struct mapped_in *in, *next;
    for (in = LIST_FIRST(&fabric->ins); in != NULL && fabric->is_held_off; in = next) {
        next = LIST_NEXT(in, entry);
        if (in->is_over) continue;
        mapped_in_finish(in);
        count++;
    }
    return count;
}

static void mapped_hold_off(struct fabric *common, bool is_off)
{
    mapped_of(common)->is_held_off = is_off;
}

static unsigned mapped_progress(struct fabric *common)
{
    struct mapped_fabric *fabric = mapped_of(common);
    struct epoll_event events[EVENTS_PER_PROGRESS];
    unsigned count = flush_releases(fabric) + write_fresh(fabric);
    const int ready = epoll_wait(common->event_fd, events, EVENTS_PER_PROGRESS, 0);
    for (int i = 0; i < ready; i++) count += serve(fabric, events[i].data.ptr, events[i].events);
    count += flush_releases(fabric);
    count += use_room(fabric);
    count += send_away(fabric);
    count += write_fresh(fabric);
    see_to_door(fabric);
    free_ended(fabric);
    return count;
}

/* Data that waits for us in a socket keeps event_fd readable by itself, so it is not looked at
 * here. */
static cairn_status mapped_arm(struct fabric *common)
{
    const struct mapped_fabric *fabric = mapped_of(common);
    return TAILQ_EMPTY(&fabric->dirty) && TAILQ_EMPTY(&fabric->fresh) && !fabric->is_room
               ? CAIRN_OK
               : CAIRN_ERR_BUSY;
}

/* -- opening and closing ------------------------------------------------------------------------ */

static bool name_socket(struct mapped_fabric *fabric, const char *folder, struct sockaddr_un *name)
{
    uint64_t random;
    char text[sizeof name->sun_path];
    frame_random(&random, sizeof random);
    const int length = snprintf(text, sizeof text, "%s%scairn-%d-%016" PRIx64 "%s",
                                folder != NULL ? folder : "", folder != NULL ? "/" : "@",
                                (int)getpid(), random, folder != NULL ? ".socket" : "");
    if (length < 0 || (size_t)length >= sizeof text) return false;
    *name = (struct sockaddr_un) { .sun_family = AF_UNIX };
    memcpy(name->sun_path, text, (size_t)length + 1);
    if (folder == NULL) name->sun_path[0] = '\0';
    snprintf(fabric->common.describe, sizeof fabric->common.describe,
             "mapped, host %s, socket %s, payloads to %zu bytes, at most %u held and %u sends in "
             "flight, %" PRIu64 " bytes mapped for a peer, memory of %u cards",
             fabric->host, text, fabric->common.options.max_payload,
             fabric->common.options.held_max, fabric->common.options.sends_max,
             fabric->common.options.mapped_max, (unsigned)fabric->cards.count);
    if (folder != NULL) memcpy(fabric->socket_path, text, (size_t)length + 1);
    return true;
}

/* Anybody may connect to a socket file, too: the key decides, as with the abstract name. */
static cairn_status listen_at(struct mapped_fabric *fabric, const struct sockaddr_un *name,
                              uint32_t path_bytes)
{
    const socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + path_bytes);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return CAIRN_ERR_UNREACHABLE;
    fabric->listener.fd = fd;
    if (bind(fd, (const struct sockaddr *)name, bytes) != 0) {
        fabric->socket_path[0] = '\0';
        return CAIRN_ERR_UNREACHABLE;
    }
    if (fabric->socket_path[0] != '\0' && chmod(fabric->socket_path, 0666) != 0)
        return CAIRN_ERR_UNREACHABLE;
    return listen(fd, BACKLOG) == 0 ? CAIRN_OK : CAIRN_ERR_UNREACHABLE;
}

static cairn_status open_socket(struct mapped_fabric *fabric, const struct fabric_options *options,
                                struct mapped_address *address_out, struct sentence *why)
{
    const char *folder = options->socket_folder;
    struct sockaddr_un name;
    struct mapped_address address = { .path_bytes = 0 };
    if (!mapped_host_find(options, fabric->host))
        return fail_with(
            why, CAIRN_ERR_UNSUPPORTED,
            "fabric mapped: /proc/sys/kernel/random/boot_id is not readable: peers of this host "
            "cannot be told from others: name it (fabric.host, CAIRN_HOST)");
    if (!name_socket(fabric, folder, &name))
        return fail_with(
            why, CAIRN_ERR_INVALID,
            "fabric mapped: socket folder '%s' is too long: a socket's path has 107 bytes at most",
            folder);
    const size_t length = folder != NULL ? strlen(name.sun_path) + 1
                                         : 1 + strlen(name.sun_path + 1);
    address.path_bytes = (uint32_t)length;
    if (listen_at(fabric, &name, address.path_bytes) != CAIRN_OK)
        return fail_with(
            why, CAIRN_ERR_UNREACHABLE,
            "fabric mapped: cannot listen at %s%s: %m: may this process make Unix sockets there?",
            folder != NULL ? "" : "@", name.sun_path + (folder == NULL));
    memcpy(address.host, fabric->host, sizeof address.host);
    memcpy(address.path, name.sun_path, length);
    memcpy(address.key, fabric->key, sizeof address.key);
    address.cards = fabric->cards;
    *address_out = address;
    return CAIRN_OK;
}

static void size_arenas(struct mapped_fabric *fabric)
{
    size_t bytes = fabric->common.options.max_payload;
    if (bytes < MAPPED_ARENA_BYTES) bytes = MAPPED_ARENA_BYTES;
    const size_t granule = 64 * MAPPED_PAGE; // whole words of bits
    fabric->arena_pages = (uint32_t)((bytes + granule - 1) / granule * 64);
}

static void close_own(struct mapped_fabric *fabric)
{
    checksum_free(fabric->sum);
    if (fabric->listener.fd >= 0) close(fabric->listener.fd);
    if (fabric->timer.fd >= 0) close(fabric->timer.fd);
    if (fabric->common.event_fd >= 0) close(fabric->common.event_fd);
    if (fabric->socket_path[0] != '\0') unlink(fabric->socket_path);
}

static cairn_status mapped_start(struct fabric *common, const struct fabric_options *options,
                                 struct sentence *why)
{
    struct mapped_fabric *fabric = mapped_of(common);
    struct mapped_address address;
    LIST_INIT(&fabric->ins);
    LIST_INIT(&fabric->outs);
    TAILQ_INIT(&fabric->dirty);
    TAILQ_INIT(&fabric->unknown);
    TAILQ_INIT(&fabric->fresh);
    TAILQ_INIT(&fabric->spare);
    fabric->listener = (struct mapped_link) { .kind = MAPPED_LISTENER, .fd = -1 };
    fabric->timer = (struct mapped_link) { .kind = MAPPED_TIMER, .fd = -1 };
    fabric->is_accepting = true;
    size_arenas(fabric);
    if (options->device != NULL) {
        fabric->cards.count = options->device->uuid_count;
        memcpy(fabric->cards.uuids, options->device->uuids, sizeof fabric->cards.uuids);
    }
    if (!frame_begin())
        return fail_with(why, CAIRN_ERR_INTERNAL, "fabric mapped: libsodium does not start");
    frame_random(fabric->key, sizeof fabric->key);
    cairn_status status = open_socket(fabric, options, &address, why);
    if (status != CAIRN_OK) goto err_close;
    fabric->sum = checksum_new();
    if (fabric->sum == NULL) {
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "fabric mapped: out of memory");
        goto err_close;
    }
    common->event_fd = epoll_create1(EPOLL_CLOEXEC);
    fabric->timer.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (common->event_fd < 0 || fabric->timer.fd < 0) {
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "fabric mapped: no event descriptor: %m");
        goto err_close;
    }
    mapped_link_watch(fabric, &fabric->timer, EPOLLIN);
    mapped_link_watch(fabric, &fabric->listener, EPOLLIN);
    return fabric_set_address(common, &address, sizeof address);
err_close:
    close_own(fabric);
    return status;
}

static void mapped_stop(struct fabric *common)
{
    struct mapped_fabric *fabric = mapped_of(common);
    while (!LIST_EMPTY(&fabric->outs)) mapped_out_end(LIST_FIRST(&fabric->outs));
    while (!LIST_EMPTY(&fabric->ins)) mapped_in_close(LIST_FIRST(&fabric->ins));
    free_ended(fabric);
    while (!TAILQ_EMPTY(&fabric->spare)) {
        struct mapped_frame *frame = TAILQ_FIRST(&fabric->spare);
        TAILQ_REMOVE(&fabric->spare, frame, link);
        free(frame);
    }
    mapped_memory_close(fabric);
    close_own(fabric);
}

const struct fabric_backend fabric_mapped = {
    .kind = "mapped",
    .fabric_bytes = sizeof(struct mapped_fabric),
    .peer_bytes = sizeof(struct mapped_peer),
    .message_bytes = sizeof(struct mapped_message),
    .start = mapped_start,
    .stop = mapped_stop,
    .connect = mapped_connect,
    .disconnect = mapped_disconnect,
    .send = mapped_send,
    .receive = mapped_receive,
    .drop = mapped_drop,
    .progress = mapped_progress,
    .arm = mapped_arm,
    .view = mapped_view,
    .message_path = mapped_message_path,
    .region_bytes = sizeof(struct mapped_region),
    .region_add = mapped_region_add,
    .region_show = mapped_region_show,
    .region_drop = mapped_region_drop,
    .imports = mapped_imports,
    .hold_off = mapped_hold_off,
};

/* ==== mapped peer ==== */

/* Peers of the mapped fabric: how a connection to one begins, and how it ends. */

static int connect_socket(const struct mapped_address *address)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    static_assert(sizeof to.sun_path == sizeof address->path, "as the kernel has it");
    memcpy(to.sun_path, address->path, address->path_bytes);
    const socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) +
                                        address->path_bytes);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (connect(fd, (const struct sockaddr *)&to, bytes) == 0) return fd;
    close(fd); // nobody there, not allowed, or more than 4096 connect at this moment
    return -1;
}

static bool is_unwilling(const struct mapped_fabric *fabric, const uint8_t *key)
{
    for (uint32_t i = 0; i < fabric->unwilling.count && i < MAPPED_UNWILLING_MAX; i++)
        if (memcmp(fabric->unwilling.keys[i], key, FRAME_KEY_BYTES) == 0) return true;
    return false;
}

cairn_status mapped_connect(struct fabric_peer *peer, const void *address, size_t bytes)
{
    struct mapped_fabric *fabric = mapped_of(peer->fabric);
    struct mapped_address to;
    if (bytes != sizeof to) return CAIRN_ERR_MALFORMED;
    memcpy(&to, address, sizeof to);
    if (to.path_bytes == 0 || to.path_bytes > sizeof to.path) return CAIRN_ERR_MALFORMED;
    if (to.cards.count > CAIRN_FABRIC_UUIDS_MAX) return CAIRN_ERR_MALFORMED;
    if (!mapped_is_this_host(fabric, &to)) return CAIRN_ERR_UNREACHABLE;
    struct mapped_out *out = calloc(1, sizeof *out);
    if (out == NULL) return CAIRN_ERR_NO_MEMORY;
    const int fd = connect_socket(&to);
    if (fd < 0) {
        free(out);
        return CAIRN_ERR_UNREACHABLE;
    }
    out->link = (struct mapped_link) { .kind = MAPPED_OUT, .fd = fd };
    out->fabric = fabric;
    out->peer = peer;
    memcpy(out->key, to.key, sizeof out->key);
    if (!is_unwilling(fabric, to.key)) out->cards = to.cards;
    TAILQ_INIT(&out->queue);
    TAILQ_INIT(&out->waiting);
    LIST_INSERT_HEAD(&fabric->outs, out, entry);
    ((struct mapped_peer *)peer)->out = out;
    mapped_link_watch(fabric, &out->link, EPOLLIN);
    return CAIRN_OK;
}

bool mapped_cards_have(const struct mapped_cards *cards, const uint8_t *uuid)
{
    for (uint32_t i = 0; i < cards->count; i++)
        if (memcmp(cards->uuids[i], uuid, sizeof cards->uuids[i]) == 0) return true;
    return false;
}

bool mapped_imports(const struct fabric_peer *peer, const uint8_t *uuid)
{
    const struct mapped_out *out = ((const struct mapped_peer *)peer)->out;
    return mapped_cards_have(&out->cards, uuid);
}

void mapped_import_none(struct mapped_out *out)
{
    struct mapped_fabric *fabric = out->fabric;
    out->cards.count = 0;
    if (is_unwilling(fabric, out->key)) return;
    const uint32_t at = fabric->unwilling.count++ % MAPPED_UNWILLING_MAX;
    memcpy(fabric->unwilling.keys[at], out->key, FRAME_KEY_BYTES);
}

static void end_frames(struct mapped_out *out, struct mapped_frames *frames)
{
    struct mapped_frame *frame;
    while ((frame = TAILQ_FIRST(frames)) != NULL) {
        TAILQ_REMOVE(frames, frame, link);
        struct fabric_flight *flight = NULL;
        if (frame->kind == FRAME_MESSAGE) {
            flight = fabric_flight_find(&out->flights, frame->message.serial);
            fabric_op_done(frame->op, CAIRN_ERR_CLOSED);
        }
        if (flight != NULL) {
            out->staged_pages -= flight->pages.count;
            mapped_unstage(out->fabric, flight->pages);
            fabric_flight_end(&out->flights, flight);
        }
        mapped_frame_put(out, frame);
    }
}

/* The owner's buffers are its own again now. Copies that the peer may still read stay until it is done with
 * them: it hears that nothing more comes, and answers what it holds. */
void mapped_disconnect(struct fabric_peer *peer)
{
    struct mapped_out *out = ((struct mapped_peer *)peer)->out;
    mapped_out_write(out);
    end_frames(out, &out->queue);
    end_frames(out, &out->waiting);
    for (uint32_t i = 0; i < out->flights.capacity; i++) {
        struct fabric_flight *flight = &out->flights.all[i];
        if (!flight->is_used || flight->op == NULL) continue;
        fabric_op_done(flight->op, CAIRN_ERR_CLOSED);
        flight->op = NULL; // its release, if it still comes, is of interest to nobody
    }
    out->peer = NULL;
    if (out->is_lost || out->staged_written == 0) {
        mapped_out_end(out);
        return;
    }
    shutdown(out->link.fd, SHUT_WR);
    mapped_link_watch(out->fabric, &out->link, EPOLLIN);
}

void mapped_out_end(struct mapped_out *out)
{
    out->is_lost = true;
    for (uint32_t i = 0; i < out->flights.capacity; i++)
        if (out->flights.all[i].is_used) mapped_unstage(out->fabric, out->flights.all[i].pages);
    free(out->flights.all);
    out->flights = (struct fabric_flights) { 0 };
    if (out->is_fresh) TAILQ_REMOVE(&out->fabric->fresh, out, fresh);
    LIST_REMOVE(out, entry);
    mapped_link_end(out->fabric, &out->link);
}

/* ==== mapped frame ==== */

/* Frames of the mapped fabric: judged, proved, read and written. */

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
