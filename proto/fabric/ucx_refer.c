/* Messages by reference: the payload stays where it lies, its receiver reads it, and RELEASE is on_sent.
 * Whoever cannot read declines, and gets the payload as any other message. */
#include "proto/fabric/ucx.h"

#include <stdlib.h>
#include <string.h>

bool ucx_may_refer(const struct ucx_peer *peer, size_t bytes)
{
    return peer->reads && bytes >= ucx_of(peer->common.fabric)->refer_min;
}

static bool make_told(struct ucx_peer *peer, uint16_t slot)
{
    if (slot < peer->told_count) return true;
    const uint32_t count = 2u * slot + 16 < UCX_FRAME_SLOTS ? 2u * slot + 16
                                                            : (uint32_t)UCX_FRAME_SLOTS;
    uint32_t *told = realloc(peer->told, count * sizeof *told);
    if (told == NULL) return false;
    memset(told + peer->told_count, 0, (count - peer->told_count) * sizeof *told);
    peer->told = told;
    peer->told_count = count;
    return true;
}

static cairn_status tell(struct ucx_peer *peer, const struct ucx_share *share)
{
    if (!make_told(peer, share->slot)) return CAIRN_ERR_NO_MEMORY;
    if (peer->told[share->slot] == share->generation) return CAIRN_OK;
    const struct ucx_frame_region frame = {
        .head = ucx_frame_head(UCX_FRAME_REGION, ucx_of(peer->common.fabric)->node),
        .address = (uintptr_t)share->view,
        .bytes = share->bytes,
        .key_checksum = fabric_hash(share->key, share->key_bytes),
        .generation = share->generation,
        .slot = share->slot,
        .key_bytes = (uint16_t)share->key_bytes,
    };
    cairn_status status = ucx_control_send(peer, &frame, sizeof frame, share->key,
                                           share->key_bytes);
    if (status == CAIRN_OK) peer->told[share->slot] = share->generation;
    return status;
}

static cairn_status send_reference(struct ucx_peer *peer, struct fabric_op *op, const void *payload,
                                   struct ucx_share *share)
{
    struct ucx_frame_reference frame = {
        .head = ucx_frame_head(UCX_FRAME_REFERENCE, ucx_of(peer->common.fabric)->node),
        .offset = (uint64_t)((const uint8_t *)payload - share->base),
        .payload_bytes = (uint32_t)op->payload_bytes,
        .generation = share->generation,
        .slot = share->slot,
        .header_bytes = (uint16_t)op->header_bytes,
    };
    cairn_status status = fabric_flight_begin(&peer->flights, &frame.serial);
    if (status != CAIRN_OK) return status;
    status = ucx_control_send(peer, &frame, sizeof frame, op->header, op->header_bytes);
    struct fabric_flight *flight = fabric_flight_find(&peer->flights, frame.serial);
    if (status != CAIRN_OK) {
        fabric_flight_end(&peer->flights, flight);
        return status;
    }
    flight->op = op;
    flight->payload = payload;
    flight->share = share;
    share->references++;
    return CAIRN_OK;
}

cairn_status ucx_refer(struct ucx_peer *peer, struct fabric_op *op, const void *payload)
{
    struct cairn_fabric_region *region = fabric_region_find(peer->common.fabric, payload,
                                                            op->payload_bytes);
    struct ucx_share *share = region != NULL ? ucx_share_of((struct ucx_region *)region) : NULL;
    if (share == NULL) return CAIRN_ERR_UNSUPPORTED;
    cairn_status status = tell(peer, share);
    if (status == CAIRN_OK) status = send_reference(peer, op, payload, share);
    if (status == CAIRN_OK) peer->common.fabric->stats.references_sent++;
    return status;
}

/* -- what comes back ---------------------------------------------------------------------------- */

static void end_flight(struct ucx_peer *peer, struct fabric_flight *flight)
{
    ucx_share_release(ucx_of(peer->common.fabric), flight->share);
    fabric_flight_end(&peer->flights, flight);
}

void ucx_on_release(struct ucx_peer *peer, const struct ucx_frame_release *frame)
{
    struct fabric_flight *flight = fabric_flight_find(&peer->flights, frame->serial);
    if (flight == NULL) return; // of an earlier endpoint
    fabric_op_done(flight->op, CAIRN_OK);
    end_flight(peer, flight);
}

void ucx_on_decline(struct ucx_peer *peer, const struct ucx_frame_release *frame)
{
    struct fabric_flight *flight = fabric_flight_find(&peer->flights, frame->serial);
    if (flight == NULL) return;
    struct fabric_op *op = flight->op;
    const void *payload = flight->payload;
    peer->common.fabric->stats.references_declined++;
    if (frame->why == UCX_DECLINE_CANNOT)
        peer->reads = false; // until it says HELLO again
    else if (flight->share->slot < peer->told_count)
        peer->told[flight->share->slot] = 0;
    end_flight(peer, flight);
    const cairn_status status = ucx_send_whole(peer, op, payload);
    if (status != CAIRN_OK) fabric_op_done(op, status);
}

/* It may be reading on, of what is no longer what was said (ucx_read.c). */
void ucx_forget_reader(struct ucx_peer *peer)
{
    for (uint32_t i = 0; i < peer->flights.capacity; i++) {
        struct fabric_flight *flight = &peer->flights.all[i];
        if (!flight->is_used) continue;
        fabric_op_done(flight->op, CAIRN_ERR_CLOSED);
        end_flight(peer, flight);
    }
    free(peer->flights.all);
    free(peer->told);
    peer->flights = (struct fabric_flights) { 0 };
    peer->told = NULL;
    peer->told_count = 0;
    peer->reads = false;
}
