/* The mapped fabric: peers of one host, who read each other's memory where it lies. Headers, small
 * payloads and descriptors go over Unix sockets, one connection for each direction (as UCX has an
 * endpoint for each).
 *
 * A node listens under a random name of the abstract namespace: no file stays behind, no folder has to be
 * shared with whom a daemon's PrivateTmp keeps apart, and no mode decides who connects: that does the key in
 * the address (mapped_frame.h). Who connects and does not prove that it knows the key delays at most those of
 * its own user (mapped_in.c). With options.socket_folder it is a socket file there, for containers that share
 * a folder but no network namespace. */
#include "proto/fabric/mapped.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/checksum.h"

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

static void mapped_hold_off(struct cairn_fabric *common, bool is_off)
{
    mapped_of(common)->is_held_off = is_off;
}

static unsigned mapped_progress(struct cairn_fabric *common)
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
static cairn_status mapped_arm(struct cairn_fabric *common)
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
    const int length = snprintf(text, sizeof text, "%s%scairn-%d-%016llx%s",
                                folder != NULL ? folder : "", folder != NULL ? "/" : "@",
                                (int)getpid(), (unsigned long long)random,
                                folder != NULL ? ".socket" : "");
    if (length < 0 || (size_t)length >= sizeof text) return false;
    *name = (struct sockaddr_un) { .sun_family = AF_UNIX };
    memcpy(name->sun_path, text, (size_t)length + 1);
    if (folder == NULL) name->sun_path[0] = '\0';
    snprintf(fabric->common.describe, sizeof fabric->common.describe,
             "mapped, host %s, socket %s, payloads to %zu bytes, at most %u held and %u sends in "
             "flight, %llu bytes mapped for a peer, memory of %u cards",
             fabric->host, text, fabric->common.options.max_payload,
             fabric->common.options.held_max, fabric->common.options.sends_max,
             (unsigned long long)fabric->common.options.mapped_max, (unsigned)fabric->cards.count);
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

static cairn_status open_socket(struct mapped_fabric *fabric,
                                const struct cairn_fabric_options *options,
                                struct mapped_address *address_out, struct cairn_sentence *why)
{
    const char *folder = options->socket_folder;
    struct sockaddr_un name;
    struct mapped_address address = { .path_bytes = 0 };
    if (!mapped_host_find(options, fabric->host))
        return cairn_fail(
            why, CAIRN_ERR_UNSUPPORTED,
            "fabric mapped: /proc/sys/kernel/random/boot_id is not readable: peers of this host "
            "cannot be told from others: name it (fabric.host, CAIRN_HOST)");
    if (!name_socket(fabric, folder, &name))
        return cairn_fail(
            why, CAIRN_ERR_INVALID,
            "fabric mapped: socket folder '%s' is too long: a socket's path has 107 bytes at most",
            folder);
    const size_t length = folder != NULL ? strlen(name.sun_path) + 1
                                         : 1 + strlen(name.sun_path + 1);
    address.path_bytes = (uint32_t)length;
    if (listen_at(fabric, &name, address.path_bytes) != CAIRN_OK)
        return cairn_fail(
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
    cairn_checksum_free(fabric->sum);
    if (fabric->listener.fd >= 0) close(fabric->listener.fd);
    if (fabric->timer.fd >= 0) close(fabric->timer.fd);
    if (fabric->common.event_fd >= 0) close(fabric->common.event_fd);
    if (fabric->socket_path[0] != '\0') unlink(fabric->socket_path);
}

static cairn_status mapped_start(struct cairn_fabric *common,
                                 const struct cairn_fabric_options *options,
                                 struct cairn_sentence *why)
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
        return cairn_fail(why, CAIRN_ERR_INTERNAL, "fabric mapped: libsodium does not start");
    frame_random(fabric->key, sizeof fabric->key);
    cairn_status status = open_socket(fabric, options, &address, why);
    if (status != CAIRN_OK) goto err_close;
    fabric->sum = cairn_checksum_new();
    if (fabric->sum == NULL) {
        status = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "fabric mapped: no memory");
        goto err_close;
    }
    common->event_fd = epoll_create1(EPOLL_CLOEXEC);
    fabric->timer.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (common->event_fd < 0 || fabric->timer.fd < 0) {
        status = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "fabric mapped: no event descriptor: %m");
        goto err_close;
    }
    mapped_link_watch(fabric, &fabric->timer, EPOLLIN);
    mapped_link_watch(fabric, &fabric->listener, EPOLLIN);
    return fabric_set_address(common, &address, sizeof address);
err_close:
    close_own(fabric);
    return status;
}

static void mapped_stop(struct cairn_fabric *common)
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
