/* Asks a giver for chunks, and takes its answers (proto/link/asker.h, chunk_link.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/move/takes.h"

static struct cairn_giver *giver_of(const struct cairn_chunk_link *link)
{
    return (struct cairn_giver *)((char *)(uintptr_t)link - offsetof(struct cairn_giver, link));
}

static struct cairn_take_slot *slot_of(struct cairn_chunk_request *request)
{
    return (struct cairn_take_slot *)((char *)request - offsetof(struct cairn_take_slot, request));
}

/* ---- the connection ---- */

static void sign(const struct cairn_chunk_link *link, struct cairn_chunk_header *header)
{
    const struct cairn_take *take = giver_of(link)->take;
    header->job = take->job->number;
    header->member = take->number;
    header->token = take->token;
}

static bool waits(const struct cairn_chunk_link *link)
{
    return cairn_asker_waits(&giver_of(link)->asker);
}

/* Asks again for everything that was asked on the lost connection or of the lost endpoint. */
static void ask_all_again(struct cairn_giver *giver)
{
    for (uint32_t i = 0; i < giver->take->staged.of_each; i++)
        cairn_asker_lost(&giver->asker, &giver->slots[i].request);
}

static void lost(struct cairn_chunk_link *link)
{
    ask_all_again(giver_of(link));
}

static void down(struct cairn_chunk_link *link, cairn_status why)
{
    const struct cairn_giver *giver = giver_of(link);
    cairn_log_info("job %s: lost shard %s, whose state comes here: %s; connecting again",
                   giver->take->job->spec.name, giver->name, cairn_status_text((int)why));
}

static void starved(struct cairn_chunk_link *link)
{
    const struct cairn_giver *giver = giver_of(link);
    cairn_log_warn(
        "job %s: no memory to ask shard %s, whose state comes here: raise the limits of this "
        "process (ulimit -v, memory.max, vm.max_map_count)",
        giver->take->job->spec.name, giver->name);
}

static void loan(struct cairn_chunk_link *link)
{
    cairn_take_busy(giver_of(link)->take);
}

static void loan_back(struct cairn_chunk_link *link)
{
    cairn_take_idle(giver_of(link)->take);
}

static const struct cairn_chunk_link_hands hands = {
    .sign = sign,
    .waits = waits,
    .lost = lost,
    .down = down,
    .starved = starved,
    .loan = loan,
    .loan_back = loan_back,
};

/* ---- the questions ---- */

static cairn_status send_fetch(struct cairn_chunk_request *request)
{
    const struct cairn_take_slot *slot = slot_of(request);
    struct cairn_giver *giver = slot->giver;
    const struct cairn_lot *lot = slot->lot;
    struct cairn_chunk_header header = {
        .kind = CAIRN_CHUNK_FETCH,
        .plane = (uint8_t)lot->plane,
        .tile = CAIRN_TILE_WHOLE,
        .table_hash = CAIRN_TABLE_HASH_WHOLE,
        .tensor = giver->take->view->table.map.extents[lot->extent].tensor,
        .first_leaf = lot->first_leaf,
        .leaf_count = lot->leaf_count,
        .generation = giver->take->version.generation,
        .step = giver->take->version.step,
        .request = cairn_chunk_request_number(request),
    };
    // Before the giver's HELLO it is not known by which of its endpoints it will answer.
    if (!cairn_chunk_link_is_up(&giver->link)) return CAIRN_ERR_CLOSED;
    return cairn_chunk_link_send(&giver->link, &header, NULL, 0, NULL, NULL);
}

void cairn_giver_feed(struct cairn_giver *giver)
{
    // Goes from the last slot to the first, since the first ones have staging: whole chunks leave
    // those to cut ones.
    for (uint32_t i = giver->take->staged.of_each; i-- > 0 && giver->next < giver->end;) {
        struct cairn_take_slot *slot = &giver->slots[i];
        const struct cairn_lot *lot = &giver->take->lots.list[giver->next];
        if (slot->lot != NULL || (slot->staging == NULL && cairn_take_is_staged(giver->take, lot)))
            continue;
        slot->lot = lot;
        giver->next++;
        slot->request.serial++;
        slot->request.damaged = 0;
        cairn_asker_ask(&giver->asker, &slot->request);
    }
    cairn_asker_pump(&giver->asker);
}

void cairn_giver_again(struct cairn_take_slot *slot, uint64_t status)
{
    struct cairn_giver *giver = slot->giver;
    if (cairn_asker_again(&giver->asker, &slot->request, status)) return;
    cairn_log_warn("job %s: what comes from shard %s is damaged again and again: connecting anew",
                   giver->take->job->spec.name, giver->name);
    slot->request.damaged = 0;
    cairn_asker_ask(&giver->asker, &slot->request);
    cairn_chunk_link_close(&giver->link);
}

/* ---- the answers ---- */

static void on_received(void *arg, cairn_status status)
{
    struct cairn_take_slot *slot = arg;
    struct cairn_giver *giver = slot->giver;
    if (giver->take->is_leaving)
        slot->lot = NULL;
    else if (status != CAIRN_OK)
        cairn_asker_ask(&giver->asker, &slot->request); // its connection is lost
    else if (slot->came != slot->checksum)
        cairn_giver_again(slot, CAIRN_ERR_CHECKSUM);
    else
        cairn_take_came(slot);
    if (!giver->take->is_leaving) cairn_asker_pump(&giver->asker);
    cairn_chunk_link_loan_back(&giver->link);
}

static bool is_answer_to(const struct cairn_chunk_header *header,
                         const struct cairn_take_slot *slot)
{
    const struct cairn_take *take = slot->giver->take;
    const struct cairn_lot *lot = slot->lot;
    const struct cairn_form *form = &take->view->forms[lot->extent];
    return header->kind == CAIRN_CHUNK_DATA &&
           header->tensor == take->view->table.map.extents[lot->extent].tensor &&
           header->first_leaf == lot->first_leaf && header->leaf_count == lot->leaf_count &&
           header->plane == (uint8_t)lot->plane &&
           header->dtype == (uint8_t)cairn_form_dtype(form, lot->plane) &&
           header->payload_bytes == cairn_form_bytes(form, lot->plane, lot->chunk_elems) &&
           header->generation == take->version.generation && header->step == take->version.step;
}

static void receive(struct cairn_take_slot *slot, const struct cairn_chunk_header *header,
                    struct cairn_fabric_message *message)
{
    struct cairn_giver *giver = slot->giver;
    slot->checksum = header->checksum;
    if (cairn_fabric_receive_far(message, cairn_take_place(slot), (size_t)header->payload_bytes,
                                 &slot->came, on_received, slot) == CAIRN_OK) {
        cairn_chunk_link_loan(&giver->link);
        return;
    }
    cairn_fabric_drop(message);
    cairn_giver_again(slot, CAIRN_ERR_BUSY);
}

/* It has no time for it, or does not go by the new layout yet; or it does not have what it is to give. */
static void refused(struct cairn_take_slot *slot, uint64_t status)
{
    const struct cairn_giver *giver = slot->giver;
    struct cairn_sentence why;
    if (status == CAIRN_ERR_BUSY || status == CAIRN_ERR_NOT_READY) {
        cairn_giver_again(slot, CAIRN_ERR_BUSY);
    } else if (status == CAIRN_ERR_CHECKSUM) {
        cairn_giver_again(slot, status);
    } else {
        cairn_sentence_set(&why, "shard %s, which is to give state to this one, says %s",
                           giver->name, cairn_status_text((int)status));
        cairn_shard_job_fault(giver->take->job, why.text);
    }
}

/* The slot that an answer is for, no longer in flight; NULL: of a former use or connection. */
static struct cairn_take_slot *slot_answered(struct cairn_giver *giver,
                                             const struct cairn_chunk_header *header)
{
    const uint32_t index = (uint32_t)header->request;
    if (index >= giver->take->staged.of_each) return NULL;
    struct cairn_take_slot *slot = &giver->slots[index];
    return cairn_asker_answered(&giver->asker, &slot->request, header->request) ? slot : NULL;
}

static void on_answer(struct cairn_giver *giver, const struct cairn_chunk_header *header,
                      struct cairn_fabric_message *message)
{
    struct cairn_take_slot *slot = slot_answered(giver, header);
    if (slot != NULL && message != NULL && is_answer_to(header, slot)) {
        receive(slot, header, message);
        message = NULL;
    } else if (slot != NULL) {
        refused(slot, header->kind == CAIRN_CHUNK_NAK ? header->value : CAIRN_ERR_PROTOCOL);
    }
    cairn_fabric_drop(message);
    if (!giver->take->is_leaving) cairn_asker_pump(&giver->asker);
}

void cairn_giver_on_message(struct cairn_giver *giver, const struct cairn_chunk_header *header,
                            struct cairn_fabric_message *message)
{
    const bool is_heard = cairn_chunk_link_heard(&giver->link) && !giver->take->is_leaving;
    if (is_heard && header->kind != CAIRN_CHUNK_HELLO) {
        on_answer(giver, header, message);
        return;
    }
    cairn_fabric_drop(message);
    if (!is_heard) return;
    if (cairn_chunk_link_on_hello(&giver->link, header->request)) ask_all_again(giver);
    cairn_asker_retry(&giver->asker);
}

/* ---- from beginning to end ---- */

bool cairn_giver_tick(struct cairn_giver *giver, uint64_t now_ms)
{
    struct cairn_shard *shard = giver->take->job->shard;
    if (giver->link.peer != NULL) cairn_asker_retry(&giver->asker);
    cairn_chunk_link_tick(&giver->link, giver->take->is_leaving ? NULL : shard->fabric,
                          giver->address, giver->address_bytes, now_ms);
    return cairn_asker_waits(&giver->asker);
}

static cairn_status open_slots(struct cairn_giver *giver)
{
    struct cairn_take *take = giver->take;
    const struct cairn_take_staged *staged = &take->staged;
    const size_t first = (size_t)(giver - take->givers) * staged->each;
    giver->slots = calloc(staged->of_each, sizeof *giver->slots);
    if (giver->slots == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < staged->of_each; i++) {
        struct cairn_take_slot *slot = &giver->slots[i];
        slot->giver = giver;
        slot->request.index = i;
        if (i < staged->each) slot->staging = take->staging.base + (first + i) * staged->bytes;
    }
    return CAIRN_OK;
}

cairn_status cairn_giver_open(struct cairn_take *take, struct cairn_giver *giver,
                              const Cairn__ShardInfo *info, struct cairn_sentence *why)
{
    giver->take = take;
    giver->link.hands = &hands;
    cairn_asker_open(&giver->asker, send_fetch);
    if (info->fabric_address.len > CAIRN_FABRIC_ADDRESS_MAX)
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "a fabric address of %zu bytes of shard %s",
                          info->fabric_address.len, info->name);
    snprintf(giver->name, sizeof giver->name, "%s", info->name);
    giver->address_bytes = info->fabric_address.len;
    giver->address = malloc(giver->address_bytes + 1);
    if (giver->address == NULL || open_slots(giver) != CAIRN_OK)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to take state from shard %s",
                          info->name);
    if (giver->address_bytes > 0)
        memcpy(giver->address, info->fabric_address.data, giver->address_bytes);
    return CAIRN_OK;
}

void cairn_giver_unlink(struct cairn_giver *giver)
{
    if (giver->take == NULL) return; // it was not opened
    if (giver->take->job->shard->closing)
        cairn_chunk_link_forget(&giver->link);
    else
        cairn_chunk_link_close(&giver->link);
}

void cairn_giver_close(struct cairn_giver *giver)
{
    cairn_giver_unlink(giver);
    free(giver->address);
    free(giver->slots);
}
