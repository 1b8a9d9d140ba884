/* Connections that we made: our messages leave by them, releases come back. */
#include "proto/fabric/mapped.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FRAMES_PER_TURN = 64 };

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

static void lose(struct mapped_out *out)
{
    if (out->is_lost) return;
    out->is_lost = true;
    mapped_link_unwatch(out->fabric, &out->link);
    if (out->peer != NULL)
        fabric_peer_lost(out->peer, out->is_welcome ? CAIRN_ERR_CLOSED : CAIRN_ERR_UNREACHABLE);
    else
        mapped_out_end(out);
}

static enum frame_fate write_message(struct mapped_out *out, const struct mapped_frame *frame)
{
    const struct frame_message *message = &frame->message;
    const bool carries = message->slot == FRAME_INLINE && message->payload_bytes > 0;
    const struct iovec parts[3] = {
        { .iov_base = (void *)(uintptr_t)message, .iov_len = sizeof *message },
        { .iov_base = frame->op->header, .iov_len = message->header_bytes },
        { .iov_base = (void *)(uintptr_t)frame->payload, .iov_len = message->payload_bytes },
    };
    return frame_write(out->link.fd, parts, carries ? 3 : 2, -1);
}

static enum frame_fate write_frame(struct mapped_out *out, const struct mapped_frame *frame)
{
    if (frame->kind == FRAME_MESSAGE) return write_message(out, frame);
    if (frame->kind == FRAME_REGION)
        return frame_write_one(out->link.fd, &frame->share->frame, sizeof frame->share->frame,
                               frame->share->fd);
    const struct frame_gone gone = { .head = frame_head(FRAME_REGION_GONE), .slot = frame->slot };
    return frame_write_one(out->link.fd, &gone, sizeof gone, -1);
}

/* What was carried or copied is the caller's again; what is read where it lies, when it is released. */
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

static unsigned flush(struct mapped_out *out)
{
    struct mapped_frame *frame;
    enum frame_fate fate = FRAME_WRITTEN;
    unsigned count = 0;
    if (!out->is_welcome || out->is_lost) return 0;
    while ((frame = TAILQ_FIRST(&out->queue)) != NULL) {
        if ((fate = write_frame(out, frame)) != FRAME_WRITTEN) break;
        TAILQ_REMOVE(&out->queue, frame, link);
        if (frame->kind == FRAME_MESSAGE) message_written(out, frame);
        mapped_frame_put(out, frame);
        count++;
    }
    if (fate == FRAME_NOBODY)
        lose(out);
    else
        mapped_link_watch(out->fabric, &out->link,
                          fate == FRAME_LATER ? EPOLLIN | EPOLLOUT : EPOLLIN);
    return count;
}

static void enqueue(struct mapped_out *out, struct mapped_frame *frame)
{
    TAILQ_INSERT_TAIL(&out->queue, frame, link);
    if (frame->kind != FRAME_MESSAGE) out->control_count++;
    if (TAILQ_FIRST(&out->queue) == frame) flush(out);
}

/* -- regions ------------------------------------------------------------------------------------ */

static uint64_t bit_of(uint16_t slot)
{
    return UINT64_C(1) << slot % 64;
}

static cairn_status show(struct mapped_out *out, struct mapped_share *share)
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

/* One for each REGION that was accepted, so that it needs no bound of its own. Without memory for it the
 * connection ends: the slot must not come to mean two things. */
void mapped_take_back(struct mapped_out *out, uint16_t slot)
{
    if ((out->shown[slot / 64] & bit_of(slot)) == 0) return;
    out->shown[slot / 64] &= ~bit_of(slot);
    if (out->is_lost || out->peer == NULL) return; // it will hear of the end
    struct mapped_frame *frame = frame_get(out->fabric, FRAME_REGION_GONE);
    if (frame == NULL) {
        lose(out);
        return;
    }
    frame->slot = slot;
    enqueue(out, frame);
}

cairn_status mapped_region_show(struct cairn_fabric_region *region, struct cairn_fabric_peer *peer)
{
    if (peer->fabric != region->fabric) return CAIRN_OK; // one of "auto" that does not map
    if (region->is_device && !mapped_imports(peer, region->uuid)) return CAIRN_OK;
    return show(((struct mapped_peer *)peer)->out, ((struct mapped_region *)region)->share);
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
    cairn_status status = show(out, region->share);
    if (status != CAIRN_OK) return status;
    status = fabric_flight_begin(&out->flights, &frame->message.serial);
    if (status != CAIRN_OK) return status;
    frame->message.slot = region->share->frame.slot;
    frame->message.offset = (uint64_t)((const uint8_t *)frame->payload - region->common.base);
    enqueue(out, frame);
    return CAIRN_OK;
}

/* CAIRN_ERR_BUSY: no room yet. */
static cairn_status send_copy(struct mapped_out *out, struct mapped_frame *frame)
{
    struct mapped_fabric *fabric = out->fabric;
    struct fabric_pages pages;
    const size_t bytes = frame->message.payload_bytes;
    cairn_status status = mapped_stage(fabric, out->staged_pages, bytes, &pages);
    if (status != CAIRN_OK) return status;
    status = show(out, fabric->shares[pages.arena]);
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

cairn_status mapped_send(struct cairn_fabric_peer *peer, struct fabric_op *op, const void *payload)
{
    struct mapped_out *out = ((struct mapped_peer *)peer)->out;
    struct mapped_frame *frame = frame_get(out->fabric, FRAME_MESSAGE);
    if (frame == NULL) return CAIRN_ERR_NO_MEMORY;
    frame->op = op;
    frame->payload = payload;
    frame->message = (struct frame_message) { .head = frame_head(FRAME_MESSAGE),
                                              .payload_bytes = (uint32_t)op->payload_bytes,
                                              .header_bytes = (uint16_t)op->header_bytes };
    const struct cairn_fabric *common = &out->fabric->common;
    const bool is_small = op->payload_bytes <= FRAME_INLINE_MAX;
    struct cairn_fabric_region *region = NULL;
    cairn_status status;
    if (!is_small || (op->payload_bytes > 0 && common->device_region_count > 0))
        region = fabric_region_find(common, payload, op->payload_bytes);
    if (is_small && (region == NULL || !region->is_device)) // nothing here reads memory of cards
        status = send_inline(out, frame);
    else if (region != NULL)
        status = send_reference(out, frame, (struct mapped_region *)region);
    else
        status = stage_or_wait(out, frame);
    if (status != CAIRN_OK) TAILQ_INSERT_HEAD(&out->fabric->spare, frame, link);
    return status;
}

/* Somebody released pages. A message whose turn it is and that finds no memory at all ends here. */
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

/* -- what comes back ---------------------------------------------------------------------------- */

static void release(struct mapped_out *out, struct fabric_flight *flight)
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
        release(out, flight);
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

static bool on_frame(struct mapped_out *out, const union frame *frame, size_t bytes)
{
    switch (frame_judge(frame, bytes)) {
    case FRAME_CHALLENGE: return !out->is_welcome && on_challenge(out, &frame->greeting);
    case FRAME_WELCOME:
        if (out->is_welcome ||
            !frame_proves(out->key, true, out->challenge, out->nonce, frame->greeting.proof))
            return false;
        out->is_welcome = true;
        flush(out);
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
    if ((events & EPOLLOUT) != 0) count += flush(out);
    for (int i = 0; i < FRAMES_PER_TURN && !out->is_lost; i++, count++) {
        int fd;
        bool is_whole;
        const long bytes = frame_read(out->link.fd, frame, &fd, &is_whole);
        if (bytes < 0) break;
        if (fd >= 0) close(fd);
        if (bytes == 0 || fd >= 0 || !is_whole || !on_frame(out, frame, (size_t)bytes)) lose(out);
        if (out->peer == NULL && out->staged_written == 0) lose(out);
    }
    return count;
}
