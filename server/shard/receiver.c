#include "server/shard/shard.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How many slots there are. A sender has more slots than an asker may have unanswered requests, so
 * the asker can always send another request while chunks that arrived are being copied. All senders
 * together have enough slots to keep a fast network busy. */
enum { SLOTS_EACH_MAX = 12, SLOTS_EACH_MIN = 2, SLOTS_MAX = 48 };
/* How many slots of a sender have staging. Cut chunks need few such slots, because cut chunks occur
 * only at the ends of runs. If all chunks are staged, a sender has at most ALL_STAGED_EACH slots:
 * as many as an asker may have unanswered requests, and some more for chunks that are being copied
 * meanwhile. */
enum { STAGED_EACH = 1, ALL_STAGED_EACH = 6 };

static const struct neighbour_kind sender_kind;

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

/* True if the piece's chunk is received in staging, and not in the planes. */
static bool piece_is_staged(const struct receiver *receiver, const struct state_piece *piece)
{
    return receiver->staged.all || !piece_is_whole(piece);
}

/* ---- open ---- */

static const Cairn__ShardInfo *info_of(Cairn__ShardInfo *const *shards, size_t count,
                                       uint32_t index)
{
    for (size_t i = 0; i < count; i++)
        if (shards[i]->index == index) return shards[i];
    return NULL;
}

static cairn_status open_slots(struct sender *sender, struct sentence *why)
{
    struct receiver *receiver = sender->receiver;
    const struct receiver_staging *staged = &receiver->staged;
    const size_t first = (size_t)(sender - receiver->senders) * staged->each;
    sender->slots = calloc(staged->of_each, sizeof *sender->slots);
    if (sender->slots == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to take state from shard %s",
                         sender->neighbour.name);
    for (uint32_t i = 0; i < staged->of_each; i++) {
        struct receiver_slot *slot = &sender->slots[i];
        slot->sender = sender;
        slot->fetch.neighbour = &sender->neighbour;
        slot->fetch.request.index = i;
        if (i < staged->each) slot->staging = receiver->staging.base + (first + i) * staged->bytes;
    }
    return CAIRN_OK;
}

/* Opens a sender whose pieces begin at index *at of the list, and sets *at to the end of these
 * pieces. */
static cairn_status open_sender(struct receiver *receiver, struct sender *sender, size_t *at,
                                Cairn__ShardInfo *const *shards, size_t shard_count,
                                struct sentence *why)
{
    const struct state_pieces *pieces = &receiver->pieces;
    const uint32_t index = pieces->list[*at].sender;
    sender->receiver = receiver;
    sender->next = *at;
    while (*at < pieces->count && pieces->list[*at].sender == index) ++*at;
    sender->end = *at;
    const Cairn__ShardInfo *info = info_of(shards, shard_count, index);
    if (info == NULL)
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "state comes from shard %u, whose address was not given", index);
    CAIRN_TRY(neighbour_open(&receiver->neighbours, &sender->neighbour, info, why));
    return open_slots(sender, why);
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
    receiver->neighbours.first = &receiver->senders[0].neighbour;
    receiver->neighbours.count = receiver->pieces.sender_count;
    for (uint32_t i = 0; i < receiver->neighbours.count && status == CAIRN_OK; i++)
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
    receiver->neighbours = (struct neighbours) { .kind = &sender_kind,
                                                 .job = job,
                                                 .number = mover->member,
                                                 .token = mover->token,
                                                 .stride = sizeof *receiver->senders };
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

void receiver_free(struct receiver *receiver)
{
    for (uint32_t i = 0; i < receiver->neighbours.count; i++) {
        neighbour_close(&receiver->senders[i].neighbour);
        free(receiver->senders[i].slots);
    }
    free(receiver->senders);
    arena_close(&receiver->staging);
    pieces_release(&receiver->pieces);
    shard_view_unref(receiver->view);
    free(receiver);
}

static void free_left(struct neighbours *all)
{
    struct receiver *receiver = (struct receiver *)all;
    LIST_REMOVE(receiver, leaving);
    receiver_free(receiver);
}

void receiver_leave(struct receiver *receiver)
{
    if (receiver == NULL) return;
    LIST_INSERT_HEAD(&receiver->job->move.leaving, receiver, leaving);
    neighbours_end(&receiver->neighbours);
}

/* ---- what comes ---- */

/* Asks the sender for as many pieces as there are free slots. */
static void sender_feed(struct sender *sender)
{
    // The last slot is tried first, because the first slots have staging, which only cut chunks
    // need.
    for (uint32_t i = sender->receiver->staged.of_each; i-- > 0 && sender->next < sender->end;) {
        struct receiver_slot *slot = &sender->slots[i];
        const struct state_piece *piece = &sender->receiver->pieces.list[sender->next];
        if (slot->piece != NULL ||
            (slot->staging == NULL && piece_is_staged(sender->receiver, piece)))
            continue;
        slot->piece = piece;
        sender->next++;
        slot->fetch.request.serial++;
        slot->fetch.request.damaged = 0;
        asker_ask(&sender->neighbour.asker, &slot->fetch.request);
    }
    asker_pump(&sender->neighbour.asker);
}

void receiver_begin(struct receiver *receiver, struct cairn_version version,
                    void (*done)(struct receiver *receiver))
{
    assert(!receiver->neighbours.is_begun && receiver->left > 0);
    neighbours_begin(&receiver->neighbours);
    receiver->version = version;
    receiver->done = done;
    receiver->begun_ns = uv_hrtime();
    for (uint32_t i = 0; i < receiver->neighbours.count; i++) sender_feed(&receiver->senders[i]);
    (void)receiver_tick(receiver, uv_now(receiver->job->shard->loop)); // this connects
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
    // after a failure the receiver leaves
    const bool has_failed = shard_job_run_failed(receiver->job, run);
    if (receiver->neighbours.is_leaving || has_failed)
        slot->piece = NULL;
    else
        is_here(slot);
    neighbours_idle(&receiver->neighbours);
}

static uint64_t local_elem_of(const struct receiver_slot *slot)
{
    const struct state_piece *piece = slot->piece;
    const struct shard_map *map = &slot->sender->receiver->view->table.map;
    const struct local_extent *extent = &map->extents[piece->extent];
    return extent->local_elem + (piece->first_elem - extent->first_elem);
}

/* ---- the callbacks ---- */

static struct receiver_slot *slot_of(const struct neighbour_fetch *fetch)
{
    return (struct receiver_slot *)((char *)(uintptr_t)fetch -
                                    offsetof(struct receiver_slot, fetch));
}

static void describe_piece(const struct neighbour_fetch *fetch, struct chunk_header *header)
{
    const struct receiver_slot *slot = slot_of(fetch);
    const struct receiver *receiver = slot->sender->receiver;
    const struct state_piece *piece = slot->piece;
    const struct form *form = &receiver->view->forms[piece->extent];
    header->plane = (uint8_t)piece->plane;
    header->tensor = receiver->view->table.map.extents[piece->extent].tensor;
    header->first_leaf = piece->first_leaf;
    header->leaf_count = piece->leaf_count;
    header->generation = receiver->version.generation;
    header->step = receiver->version.step;
    header->dtype = (uint8_t)form_dtype(form, piece->plane);
    header->payload_bytes = form_bytes(form, piece->plane, piece->chunk_elems);
}

/* Returns the memory in which the slot's chunk is received: the slot's staging if the piece is
 * staged, else the place in the planes. Also sets slot->to to the piece's place in the planes. */
static void *place_of_piece(struct neighbour_fetch *fetch)
{
    struct receiver_slot *slot = slot_of(fetch);
    const struct state_piece *piece = slot->piece;
    slot->to = planes_at(&slot->sender->receiver->job->planes, piece->plane, piece->extent,
                         local_elem_of(slot));
    return piece_is_staged(slot->sender->receiver, piece) ? slot->staging : slot->to;
}

static void piece_came(struct neighbour_fetch *fetch)
{
    struct receiver_slot *slot = slot_of(fetch);
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
    neighbours_busy(&receiver->neighbours);
    compute_submit(&slot->run);
}

/* Asks again if the sender does not use the new layout yet. If the chunk is damaged again and
 * again, asks for it on a new connection. After any other refusal the job is faulted, because the
 * sender cannot give the state that it is to give. */
static void piece_refused(struct neighbour_fetch *fetch, uint64_t status)
{
    struct neighbour *neighbour = fetch->neighbour;
    struct shard_job *job = neighbour->all->job;
    struct sentence why;
    if (status == CAIRN_ERR_NOT_READY) {
        (void)asker_again(&neighbour->asker, &fetch->request, CAIRN_ERR_BUSY);
    } else if (status == CAIRN_ERR_CHECKSUM) {
        log_warn("job %s: state from shard %s is damaged again and again: connecting anew",
                 job->spec.name, neighbour->name);
        fetch->request.damaged = 0;
        asker_ask(&neighbour->asker, &fetch->request);
        chunk_link_close(&neighbour->link);
    } else {
        sentence_set(&why, "shard %s, which is to give state to this one, says %s", neighbour->name,
                     status_text((int)status));
        shard_job_fault(job, why.text);
    }
}

static void sender_down(struct neighbour *neighbour, cairn_status why)
{
    log_info("job %s: lost shard %s, whose state comes here: %s; connecting again",
             neighbour->all->job->spec.name, neighbour->name, status_text((int)why));
}

static void sender_starved(struct neighbour *neighbour)
{
    log_warn(
        "job %s: out of memory to ask shard %s, whose state comes here: raise the limits of this "
        "process (ulimit -v, memory.max, vm.max_map_count)",
        neighbour->all->job->spec.name, neighbour->name);
}

static const struct neighbour_kind sender_kind = {
    .is_far = true,
    .purpose = "take state from",
    .describe = describe_piece,
    .place = place_of_piece,
    .came = piece_came,
    .refused = piece_refused,
    .down = sender_down,
    .starved = sender_starved,
    .free = free_left,
};

bool receiver_tick(struct receiver *receiver, uint64_t now_ms)
{
    struct neighbours *senders = &receiver->neighbours;
    // This holds also while no request waits, because all pieces that were asked for are being
    // received: only a tick connects again after a loss, and asks again after BUSY.
    const bool lacks_pieces = receiver->left > 0;
    if (!senders->is_begun) return false;
    neighbours_busy(senders);
    for (uint32_t i = 0; i < senders->count; i++)
        (void)neighbour_tick(neighbours_at(senders, i), now_ms);
    neighbours_idle(senders);
    return lacks_pieces;
}
