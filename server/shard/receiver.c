#include "server/shard/shard.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of slots. A sender has more slots than an asker may have unanswered requests. So the asker can
 * always send another request while chunks that arrived are being copied. All senders together have enough
 * slots to keep a fast network busy. */
enum { SLOTS_EACH_MAX = 12, SLOTS_EACH_MIN = 2, SLOTS_MAX = 48 };
/* The slots of a sender that have staging. Cut chunks need few such slots, because cut chunks occur only at
 * the ends of runs. If all chunks are staged, a sender has as many such slots as an asker may have
 * unanswered requests, and some more for chunks that are being copied meanwhile. */
enum { STAGED_EACH = 1, ALL_STAGED_EACH = 6 };

static cairn_status sender_open(struct receiver *receiver, struct sender *sender,
                                const Cairn__ShardInfo *info, struct sentence *why);
static void sender_on_message(struct sender *sender, const struct chunk_header *header,
                              struct fabric_message *message);

/* ---- sizes ---- */

static uint32_t slots_each(const struct state_pieces *pieces, uint32_t most)
{
    const uint32_t each = SLOTS_MAX / (pieces->sender_count + (pieces->sender_count == 0));
    if (each > most) return most;
    return each < SLOTS_EACH_MIN ? SLOTS_EACH_MIN : each;
}

static struct receiver_staging staged_of(const struct shard_job *job,
                                         const struct state_pieces *pieces)
{
    if (planes_device_end(&job->planes) == 0)
        return (struct receiver_staging) { .each = pieces->cut_bytes > 0 ? STAGED_EACH : 0,
                                           .of_each = slots_each(pieces, SLOTS_EACH_MAX),
                                           .bytes = pieces->cut_bytes };
    const uint32_t each = slots_each(pieces, ALL_STAGED_EACH);
    return (struct receiver_staging) {
        .all = true, .each = each, .of_each = each, .bytes = pieces->chunk_bytes
    };
}

uint64_t receiver_staging_bytes(const struct shard_job *job, const struct state_pieces *pieces)
{
    const struct receiver_staging staged = staged_of(job, pieces);
    return (uint64_t)pieces->sender_count * staged.each * staged.bytes;
}

/* True if the piece is received in staging and not in the planes. */
static bool piece_is_staged(const struct receiver *receiver, const struct state_piece *piece)
{
    return receiver->staged.all || !piece_is_whole(piece);
}

void pieces_release(struct state_pieces *pieces)
{
    free(pieces->list);
    *pieces = (struct state_pieces) { .list = NULL };
}

/* ---- open ---- */

static const Cairn__ShardInfo *info_of(Cairn__ShardInfo *const *shards, size_t count,
                                       uint32_t index)
{
    for (size_t i = 0; i < count; i++)
        if (shards[i]->index == index) return shards[i];
    return NULL;
}

/* Opens a sender whose pieces begin at *at, and moves *at to their end. */
static cairn_status open_sender(struct receiver *receiver, struct sender *sender, size_t *at,
                                Cairn__ShardInfo *const *shards, size_t shard_count,
                                struct sentence *why)
{
    const struct state_pieces *pieces = &receiver->pieces;
    sender->index = pieces->list[*at].sender;
    sender->next = *at;
    while (*at < pieces->count && pieces->list[*at].sender == sender->index) ++*at;
    sender->end = *at;
    const Cairn__ShardInfo *info = info_of(shards, shard_count, sender->index);
    if (info == NULL)
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "state comes from shard %u, whose address was not given", sender->index);
    return sender_open(receiver, sender, info, why);
}

static cairn_status open_senders(struct receiver *receiver, Cairn__ShardInfo *const *shards,
                                 size_t shard_count, struct sentence *why)
{
    size_t at = 0;
    const uint64_t staging = receiver_staging_bytes(receiver->job, &receiver->pieces);
    cairn_status status = arena_open_scratch("moved", staging, &receiver->staging, why);
    arena_pins_for(&receiver->staging, receiver->job->compute->home);
    receiver->senders = calloc((size_t)receiver->pieces.sender_count + 1,
                               sizeof *receiver->senders);
    if (status == CAIRN_OK && receiver->senders == NULL)
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to take state");
    if (status != CAIRN_OK) return status;
    receiver->sender_count = receiver->pieces.sender_count;
    for (uint32_t i = 0; i < receiver->sender_count && status == CAIRN_OK; i++)
        status = open_sender(receiver, &receiver->senders[i], &at, shards, shard_count, why);
    return status;
}

cairn_status receiver_open(struct shard_job *job, struct shard_view *view,
                           struct state_pieces *pieces, const Cairn__Mover *mover,
                           Cairn__ShardInfo *const *shards, size_t shard_count,
                           struct receiver **receiver_out, struct sentence *why)
{
    struct receiver *receiver = calloc(1, sizeof *receiver);
    if (receiver == NULL) {
        pieces_release(pieces);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to take state");
    }
    receiver->job = job;
    receiver->view = shard_view_ref(view);
    receiver->number = mover->member;
    receiver->token = mover->token;
    receiver->staging = CAIRN_ARENA_NONE;
    receiver->pieces = *pieces;
    *pieces = (struct state_pieces) { .list = NULL };
    receiver->staged = staged_of(job, &receiver->pieces);
    receiver->left = receiver->pieces.count;
    const cairn_status status = open_senders(receiver, shards, shard_count, why);
    if (status == CAIRN_OK)
        *receiver_out = receiver;
    else
        receiver_free(receiver);
    return status;
}

/* ---- the end ---- */

/* Ends the connection to the sender. A receiver that is leaving asks for nothing more. */
static void sender_unlink(struct sender *sender)
{
    if (sender->receiver == NULL) return; // the sender was not opened
    if (sender->receiver->job->shard->closing)
        chunk_link_forget(&sender->link);
    else
        chunk_link_close(&sender->link);
}

static void sender_close(struct sender *sender)
{
    sender_unlink(sender);
    free(sender->address);
    free(sender->slots);
}

void receiver_free(struct receiver *receiver)
{
    for (uint32_t i = 0; i < receiver->sender_count; i++) sender_close(&receiver->senders[i]);
    free(receiver->senders);
    arena_close(&receiver->staging);
    pieces_release(&receiver->pieces);
    shard_view_unref(receiver->view);
    free(receiver);
}

/* Notes that something in flight refers to the receiver. receiver_idle ends this, and may free the receiver
 * and its job. */
static void receiver_busy(struct receiver *receiver)
{
    receiver->busy++;
    shard_job_busy(receiver->job);
}

static void receiver_idle(struct receiver *receiver)
{
    struct shard_job *job = receiver->job;
    assert(receiver->busy > 0);
    receiver->busy--;
    if (receiver->busy == 0 && receiver->is_leaving && !job->shard->closing) {
        LIST_REMOVE(receiver, leaving);
        receiver_free(receiver);
    }
    shard_job_idle(job);
}

void receiver_leave(struct receiver *receiver)
{
    if (receiver == NULL) return;
    receiver_busy(receiver); // keeps the receiver until this function ends
    receiver->is_leaving = true;
    LIST_INSERT_HEAD(&receiver->job->move.leaving, receiver, leaving);
    for (uint32_t i = 0; i < receiver->sender_count; i++) sender_unlink(&receiver->senders[i]);
    receiver_idle(receiver);
}

/* ---- what comes ---- */

/* Asks for as many pieces as there are free slots. */
static void sender_feed(struct sender *sender)
{
    // Tries the last slot first: the first slots have staging, which whole chunks leave to cut chunks.
    for (uint32_t i = sender->receiver->staged.of_each; i-- > 0 && sender->next < sender->end;) {
        struct receiver_slot *slot = &sender->slots[i];
        const struct state_piece *piece = &sender->receiver->pieces.list[sender->next];
        if (slot->piece != NULL ||
            (slot->staging == NULL && piece_is_staged(sender->receiver, piece)))
            continue;
        slot->piece = piece;
        sender->next++;
        slot->request.serial++;
        slot->request.damaged = 0;
        asker_ask(&sender->asker, &slot->request);
    }
    asker_pump(&sender->asker);
}

static bool sender_tick(struct sender *sender, uint64_t now_ms)
{
    struct shard_daemon *shard = sender->receiver->job->shard;
    if (sender->link.peer != NULL) asker_retry(&sender->asker);
    chunk_link_tick(&sender->link, sender->receiver->is_leaving ? NULL : shard->fabric,
                    sender->address, sender->address_bytes, now_ms);
    return asker_waits(&sender->asker);
}

void receiver_begin(struct receiver *receiver, struct cairn_version version,
                    void (*done)(struct receiver *receiver))
{
    assert(!receiver->is_begun && receiver->left > 0);
    receiver->is_begun = true;
    receiver->version = version;
    receiver->done = done;
    receiver->begun_ns = uv_hrtime();
    for (uint32_t i = 0; i < receiver->sender_count; i++) {
        sender_feed(&receiver->senders[i]);
        sender_tick(&receiver->senders[i], uv_now(receiver->job->shard->loop)); // connects
    }
}

static void is_here(struct receiver_slot *slot)
{
    struct receiver *receiver = slot->sender->receiver;
    slot->piece = NULL;
    receiver->left--;
    sender_feed(slot->sender);
    if (receiver->left > 0) return;
    receiver->us = (uv_hrtime() - receiver->begun_ns) / 1000;
    receiver->done(receiver);
}

/* ---- the copy ---- */

static bool describe_copy(struct work_run *run, uint32_t item, uint32_t stage, struct works *works)
{
    struct receiver_slot *slot = (struct receiver_slot *)run;
    const struct state_piece *piece = slot->piece;
    const struct form *form = &slot->sender->receiver->view->forms[piece->extent];
    const uint64_t skipped = piece->first_elem - piece->chunk_elem;
    (void)item;
    (void)stage;
    works_copy(works, slot->to, slot->staging + form_bytes(form, piece->plane, skipped),
               (size_t)form_bytes(form, piece->plane, piece->elem_count));
    return false;
}

static void piece_copied(struct work_run *run)
{
    struct receiver_slot *slot = (struct receiver_slot *)run;
    struct receiver *receiver = slot->sender->receiver;
    const bool has_failed = shard_job_run_failed(receiver->job, run); // if so, the receiver leaves
    if (receiver->is_leaving || has_failed)
        slot->piece = NULL;
    else
        is_here(slot);
    receiver_idle(receiver);
}

static uint64_t local_elem_of(const struct receiver_slot *slot)
{
    const struct state_piece *piece = slot->piece;
    const struct shard_map *map = &slot->sender->receiver->view->table.map;
    const struct local_extent *extent = &map->extents[piece->extent];
    return extent->local_elem + (piece->first_elem - extent->first_elem);
}

/* Returns the memory in which the slot's chunk is received: its place in the planes, or staging if the
 * piece is staged. */
static void *slot_memory(struct receiver_slot *slot)
{
    const struct state_piece *piece = slot->piece;
    slot->to = planes_at(&slot->sender->receiver->job->planes, piece->plane, piece->extent,
                         local_elem_of(slot));
    return piece_is_staged(slot->sender->receiver, piece) ? slot->staging : slot->to;
}

/* Continues with a slot whose chunk has been received undamaged. */
static void slot_came(struct receiver_slot *slot)
{
    struct receiver *receiver = slot->sender->receiver;
    if (!piece_is_staged(receiver, slot->piece)) {
        is_here(slot);
        return;
    }
    slot->run = (struct work_run) {
        .compute = shard_job_home(receiver->job, local_elem_of(slot)),
        .item_count = 1,
        .describe = describe_copy,
        .done = piece_copied,
    };
    receiver_busy(receiver);
    compute_submit(&slot->run);
}

/* ---- from senders ---- */

static struct receiver *find_receiver(struct shard_daemon *shard, const struct chunk_header *header)
{
    struct shard_job *job = shard_job_find(shard, header->job);
    if (job == NULL || job->state != CAIRN_JOB_SERVING) return NULL;
    struct receiver *receiver = job->move.now != NULL ? job->move.now->receiver : NULL;
    const bool ours = receiver != NULL && receiver->is_begun &&
                      receiver->number == header->member && receiver->token == header->token;
    return ours ? receiver : NULL;
}

bool receiver_on_message(struct shard_daemon *shard, const struct chunk_header *header,
                         struct fabric_message *message)
{
    struct receiver *receiver = find_receiver(shard, header);
    if (receiver == NULL) return false;
    uint32_t i = 0;
    while (i < receiver->sender_count && receiver->senders[i].index != header->tile) i++;
    receiver_busy(receiver);
    if (i < receiver->sender_count)
        sender_on_message(&receiver->senders[i], header, message);
    else
        fabric_drop(message);
    receiver_idle(receiver);
    return true;
}

bool receiver_tick(struct receiver *receiver, uint64_t now_ms)
{
    bool waits = false;
    if (!receiver->is_begun || receiver->is_leaving) return false;
    receiver_busy(receiver);
    for (uint32_t i = 0; i < receiver->sender_count; i++)
        waits = sender_tick(&receiver->senders[i], now_ms) || waits;
    receiver_idle(receiver);
    return waits;
}

/* ==== sender ==== */

/* Asks a sender for chunks, and takes its answers (proto/link/link.h). */

static struct sender *sender_of(const struct chunk_link *link)
{
    return (struct sender *)((char *)(uintptr_t)link - offsetof(struct sender, link));
}

/* ---- the connection ---- */

static void sign(const struct chunk_link *link, struct chunk_header *header)
{
    const struct receiver *receiver = sender_of(link)->receiver;
    header->job = receiver->job->number;
    header->member = receiver->number;
    header->token = receiver->token;
}

static bool waits(const struct chunk_link *link)
{
    return asker_waits(&sender_of(link)->asker);
}

/* Asks again for everything that was asked for on the lost connection or at the lost endpoint. */
static void ask_all_again(struct sender *sender)
{
    for (uint32_t i = 0; i < sender->receiver->staged.of_each; i++)
        asker_lost(&sender->asker, &sender->slots[i].request);
}

static void lost(struct chunk_link *link)
{
    ask_all_again(sender_of(link));
}

static void down(struct chunk_link *link, cairn_status why)
{
    const struct sender *sender = sender_of(link);
    log_info("job %s: lost shard %s, whose state comes here: %s; connecting again",
             sender->receiver->job->spec.name, sender->name, status_text((int)why));
}

static void starved(struct chunk_link *link)
{
    const struct sender *sender = sender_of(link);
    log_warn(
        "job %s: out of memory to ask shard %s, whose state comes here: raise the limits of this "
        "process (ulimit -v, memory.max, vm.max_map_count)",
        sender->receiver->job->spec.name, sender->name);
}

static void loan(struct chunk_link *link)
{
    receiver_busy(sender_of(link)->receiver);
}

static void loan_back(struct chunk_link *link)
{
    receiver_idle(sender_of(link)->receiver);
}

static const struct chunk_link_callbacks hands = {
    .sign = sign,
    .waits = waits,
    .lost = lost,
    .down = down,
    .starved = starved,
    .loan = loan,
    .loan_back = loan_back,
};

/* ---- the questions ---- */

static cairn_status send_fetch(struct chunk_request *request)
{
    const struct receiver_slot *slot =
        (struct receiver_slot *)((char *)request - offsetof(struct receiver_slot, request));
    struct sender *sender = slot->sender;
    const struct state_piece *piece = slot->piece;
    struct chunk_header header = {
        .kind = CAIRN_CHUNK_FETCH,
        .plane = (uint8_t)piece->plane,
        .tile = CAIRN_TILE_WHOLE,
        .table_hash = CAIRN_TABLE_HASH_WHOLE,
        .tensor = sender->receiver->view->table.map.extents[piece->extent].tensor,
        .first_leaf = piece->first_leaf,
        .leaf_count = piece->leaf_count,
        .generation = sender->receiver->version.generation,
        .step = sender->receiver->version.step,
        .request = chunk_request_number(request),
    };
    // Before the sender's HELLO, nobody here knows by which of its endpoints the sender will answer.
    if (!chunk_link_is_up(&sender->link)) return CAIRN_ERR_CLOSED;
    return chunk_link_send(&sender->link, &header, NULL, 0, NULL, NULL);
}

/* Asks once more for the slot's piece, after an answer with this status. */
static void ask_slot_again(struct receiver_slot *slot, uint64_t status)
{
    struct sender *sender = slot->sender;
    if (asker_again(&sender->asker, &slot->request, status)) return;
    log_warn("job %s: state from shard %s is damaged again and again: connecting anew",
             sender->receiver->job->spec.name, sender->name);
    slot->request.damaged = 0;
    asker_ask(&sender->asker, &slot->request);
    chunk_link_close(&sender->link);
}

/* ---- the answers ---- */

static void on_received(void *arg, cairn_status status)
{
    struct receiver_slot *slot = arg;
    struct sender *sender = slot->sender;
    if (sender->receiver->is_leaving)
        slot->piece = NULL;
    else if (status != CAIRN_OK)
        asker_ask(&sender->asker, &slot->request); // the connection is lost
    else if (slot->came != slot->checksum)
        ask_slot_again(slot, CAIRN_ERR_CHECKSUM);
    else
        slot_came(slot);
    if (!sender->receiver->is_leaving) asker_pump(&sender->asker);
    chunk_link_loan_back(&sender->link);
}

static bool is_answer_to(const struct chunk_header *header, const struct receiver_slot *slot)
{
    const struct receiver *receiver = slot->sender->receiver;
    const struct state_piece *piece = slot->piece;
    const struct form *form = &receiver->view->forms[piece->extent];
    return header->kind == CAIRN_CHUNK_DATA &&
           header->tensor == receiver->view->table.map.extents[piece->extent].tensor &&
           header->first_leaf == piece->first_leaf && header->leaf_count == piece->leaf_count &&
           header->plane == (uint8_t)piece->plane &&
           header->dtype == (uint8_t)form_dtype(form, piece->plane) &&
           header->payload_bytes == form_bytes(form, piece->plane, piece->chunk_elems) &&
           header->generation == receiver->version.generation &&
           header->step == receiver->version.step;
}

static void receive_piece(struct receiver_slot *slot, const struct chunk_header *header,
                          struct fabric_message *message)
{
    struct sender *sender = slot->sender;
    slot->checksum = header->checksum;
    if (fabric_receive_far(message, slot_memory(slot), (size_t)header->payload_bytes, &slot->came,
                           on_received, slot) == CAIRN_OK) {
        chunk_link_loan(&sender->link);
        return;
    }
    fabric_drop(message);
    ask_slot_again(slot, CAIRN_ERR_BUSY);
}

/* Handles a refusal. The sender is asked again if it is busy or does not use the new layout yet. If the
 * sender does not have the state that it is to give, the job is faulted. */
static void piece_refused(struct receiver_slot *slot, uint64_t status)
{
    const struct sender *sender = slot->sender;
    struct sentence why;
    if (status == CAIRN_ERR_BUSY || status == CAIRN_ERR_NOT_READY) {
        ask_slot_again(slot, CAIRN_ERR_BUSY);
    } else if (status == CAIRN_ERR_CHECKSUM) {
        ask_slot_again(slot, status);
    } else {
        sentence_set(&why, "shard %s, which is to give state to this one, says %s", sender->name,
                     status_text((int)status));
        shard_job_fault(sender->receiver->job, why.text);
    }
}

/* Returns the slot that the answer is for, and notes that its request is no longer in flight. Returns NULL
 * if the answer belongs to a former use or connection. */
static struct receiver_slot *slot_answered(struct sender *sender, const struct chunk_header *header)
{
    const uint32_t index = (uint32_t)header->request;
    if (index >= sender->receiver->staged.of_each) return NULL;
    struct receiver_slot *slot = &sender->slots[index];
    return asker_answered(&sender->asker, &slot->request, header->request) ? slot : NULL;
}

static void on_answer(struct sender *sender, const struct chunk_header *header,
                      struct fabric_message *message)
{
    struct receiver_slot *slot = slot_answered(sender, header);
    if (slot != NULL && message != NULL && is_answer_to(header, slot)) {
        receive_piece(slot, header, message);
        message = NULL;
    } else if (slot != NULL) {
        piece_refused(slot, header->kind == CAIRN_CHUNK_NAK ? header->value : CAIRN_ERR_PROTOCOL);
    }
    fabric_drop(message);
    if (!sender->receiver->is_leaving) asker_pump(&sender->asker);
}

static void sender_on_message(struct sender *sender, const struct chunk_header *header,
                              struct fabric_message *message)
{
    const bool is_heard = chunk_link_heard(&sender->link) && !sender->receiver->is_leaving;
    if (is_heard && header->kind != CAIRN_CHUNK_HELLO) {
        on_answer(sender, header, message);
        return;
    }
    fabric_drop(message);
    if (!is_heard) return;
    if (chunk_link_on_hello(&sender->link, header->request)) ask_all_again(sender);
    asker_retry(&sender->asker);
}

/* ---- from beginning to end ---- */

static cairn_status open_slots(struct sender *sender)
{
    struct receiver *receiver = sender->receiver;
    const struct receiver_staging *staged = &receiver->staged;
    const size_t first = (size_t)(sender - receiver->senders) * staged->each;
    sender->slots = calloc(staged->of_each, sizeof *sender->slots);
    if (sender->slots == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < staged->of_each; i++) {
        struct receiver_slot *slot = &sender->slots[i];
        slot->sender = sender;
        slot->request.index = i;
        if (i < staged->each) slot->staging = receiver->staging.base + (first + i) * staged->bytes;
    }
    return CAIRN_OK;
}

static cairn_status sender_open(struct receiver *receiver, struct sender *sender,
                                const Cairn__ShardInfo *info, struct sentence *why)
{
    sender->receiver = receiver;
    sender->link.callbacks = &hands;
    asker_open(&sender->asker, send_fetch);
    if (info->fabric_address.len > CAIRN_FABRIC_ADDRESS_MAX)
        return fail_with(why, CAIRN_ERR_MALFORMED, "a fabric address of %zu bytes of shard %s",
                         info->fabric_address.len, info->name);
    snprintf(sender->name, sizeof sender->name, "%s", info->name);
    sender->address_bytes = info->fabric_address.len;
    sender->address = malloc(sender->address_bytes + 1);
    if (sender->address == NULL || open_slots(sender) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to take state from shard %s",
                         info->name);
    if (sender->address_bytes > 0)
        memcpy(sender->address, info->fabric_address.data, sender->address_bytes);
    return CAIRN_OK;
}
