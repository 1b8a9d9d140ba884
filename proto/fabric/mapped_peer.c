/* Peers of the mapped fabric: how a connection to one begins, and how it ends. */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/fabric/mapped.h"

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

cairn_status mapped_connect(struct cairn_fabric_peer *peer, const void *address, size_t bytes)
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

bool mapped_imports(const struct cairn_fabric_peer *peer, const uint8_t *uuid)
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
void mapped_disconnect(struct cairn_fabric_peer *peer)
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
