/* Connections that we made: our messages leave by them, releases come back. */
#include "proto/fabric/mapped.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FRAMES_PER_TURN = 64, FRESH_MAX = 64 };

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

enum { PARTS_OF_MESSAGE = 4 };

/* Lists the parts of a message's datagram; returns how many there are. */
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
    if (frame_message_bytes(&frame->message) % 8 != 0) count--; // alone it is not filled up
    return frame_write(out->link.fd, parts, count, -1);
}

/* As many messages as stand at the head of the queue and fit into one datagram. */
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

/* Writes the frame at the head of the queue, or several messages from there. */
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

/* Bytes that were carried or copied are the caller's again; bytes that the peer reads in place are
 * so only once it releases them. */
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
        lose(out);
    else
        mapped_link_watch(out->fabric, &out->link,
                          fate == FRAME_LATER ? EPOLLIN | EPOLLOUT : EPOLLIN);
    return count;
}

/* Written at the end of the turn with what else is sent in it, or when there is much. Behind what the socket
 * does not take it waits for that. */
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
    const bool may_refer = op->payload_bytes >= FRAME_REFER_MIN;
    struct cairn_fabric_region *region = NULL;
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
