/* Messages by reference: the payload stays where it lies, its receiver reads it, and RELEASE is on_sent.
 * Whoever cannot read declines, and gets the payload as any other message. */
#include "proto/fabric/ucx.h"

#include <stdlib.h>
#include <string.h>

bool ucx_may_refer(const struct ucx_link *link, size_t bytes)
{
    return link->reads && bytes >= link->ucx->refer_min;
}

static bool make_told(struct ucx_link *link, uint16_t slot)
{
    if (slot < link->told_count) return true;
    const uint32_t count = 2u * slot + 16 < UCX_FRAME_SLOTS ? 2u * slot + 16
                                                            : (uint32_t)UCX_FRAME_SLOTS;
    uint32_t *told = realloc(link->told, count * sizeof *told);
    if (told == NULL) return false;
    memset(told + link->told_count, 0, (count - link->told_count) * sizeof *told);
    link->told = told;
    link->told_count = count;
    return true;
}

static cairn_status tell(struct ucx_link *link, const struct ucx_share *share)
{
    if (!make_told(link, share->slot)) return CAIRN_ERR_NO_MEMORY;
    if (link->told[share->slot] == share->generation) return CAIRN_OK;
    const struct ucx_frame_region frame = {
        .head = ucx_frame_head(UCX_FRAME_REGION, link->ucx->node),
        .address = (uintptr_t)share->view,
        .bytes = share->bytes,
        .key_checksum = fabric_hash(share->key, share->key_bytes),
        .generation = share->generation,
        .slot = share->slot,
        .key_bytes = (uint16_t)share->key_bytes,
    };
    cairn_status status = ucx_control_send(link, &frame, sizeof frame, share->key,
                                           share->key_bytes);
    if (status == CAIRN_OK) link->told[share->slot] = share->generation;
    return status;
}

static cairn_status send_reference(struct ucx_link *link, struct fabric_op *op, const void *payload,
                                   struct ucx_share *share)
{
    struct ucx_frame_reference frame = {
        .head = ucx_frame_head(UCX_FRAME_REFERENCE, link->ucx->node),
        .offset = (uint64_t)((const uint8_t *)payload - share->base),
        .payload_bytes = (uint32_t)op->payload_bytes,
        .generation = share->generation,
        .slot = share->slot,
        .header_bytes = (uint16_t)op->header_bytes,
    };
    cairn_status status = fabric_flight_begin(&link->flights, &frame.serial);
    if (status != CAIRN_OK) return status;
    status = ucx_control_send(link, &frame, sizeof frame, op->header, op->header_bytes);
    struct fabric_flight *flight = fabric_flight_find(&link->flights, frame.serial);
    if (status != CAIRN_OK) {
        fabric_flight_end(&link->flights, flight);
        return status;
    }
    flight->op = op;
    flight->payload = payload;
    flight->share = share;
    share->references++;
    return CAIRN_OK;
}

cairn_status ucx_refer(struct ucx_link *link, struct fabric_op *op, const void *payload)
{
    struct cairn_fabric_region *region = fabric_region_find(&link->ucx->common, payload,
                                                            op->payload_bytes);
    struct ucx_share *share = region != NULL ? ucx_share_of((struct ucx_region *)region) : NULL;
    if (share == NULL) return CAIRN_ERR_UNSUPPORTED;
    cairn_status status = tell(link, share);
    if (status == CAIRN_OK) status = send_reference(link, op, payload, share);
    if (status == CAIRN_OK) link->ucx->common.stats.references_sent++;
    return status;
}

/* -- what comes back ---------------------------------------------------------------------------- */

static void end_flight(struct ucx_link *link, struct fabric_flight *flight)
{
    ucx_share_release(link->ucx, flight->share);
    fabric_flight_end(&link->flights, flight);
}

void ucx_on_release(struct ucx_link *link, const struct ucx_frame_release *frame)
{
    struct fabric_flight *flight = fabric_flight_find(&link->flights, frame->serial);
    if (flight == NULL) return; // of an earlier endpoint
    fabric_op_done(flight->op, CAIRN_OK);
    end_flight(link, flight);
}

void ucx_on_decline(struct ucx_link *link, const struct ucx_frame_release *frame)
{
    struct fabric_flight *flight = fabric_flight_find(&link->flights, frame->serial);
    if (flight == NULL) return;
    struct fabric_op *op = flight->op;
    const void *payload = flight->payload;
    link->ucx->common.stats.references_declined++;
    if (frame->why == UCX_DECLINE_CANNOT)
        link->reads = false; // until it says HELLO again
    else if (flight->share->slot < link->told_count)
        link->told[flight->share->slot] = 0;
    end_flight(link, flight);
    const cairn_status status = ucx_send_whole(link, op, payload);
    if (status != CAIRN_OK) fabric_op_done(op, status);
}

/* The reader may read on, and get what is no longer what was said (ucx_read.c). */
void ucx_forget_references(struct ucx_link *link, const struct cairn_fabric_peer *handle)
{
    for (uint32_t i = 0; i < link->flights.capacity; i++) {
        struct fabric_flight *flight = &link->flights.all[i];
        if (!flight->is_used || flight->op->to != handle) continue;
        fabric_op_done(flight->op, CAIRN_ERR_CLOSED);
        end_flight(link, flight);
    }
}

/* The same of all handles. */
void ucx_forget_reader(struct ucx_link *link)
{
    for (uint32_t i = 0; i < link->flights.capacity; i++) {
        struct fabric_flight *flight = &link->flights.all[i];
        if (!flight->is_used) continue;
        fabric_op_done(flight->op, CAIRN_ERR_CLOSED);
        end_flight(link, flight);
    }
    free(link->flights.all);
    free(link->told);
    link->flights = (struct fabric_flights) { 0 };
    link->told = NULL;
    link->told_count = 0;
    link->reads = false;
}
