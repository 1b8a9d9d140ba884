#include "server/shard/move_private.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Slots. A giver has more than an asker may have unanswered, so that there is always something to
 * ask for while what came is copied. All givers together have enough to keep a fast network at
 * work. */
enum { SLOTS_EACH_MAX = 12, SLOTS_EACH_MIN = 2, SLOTS_MAX = 48 };
/* Slots with staging, for a giver. Cut chunks need few of them, since they occur only at the ends
 * of runs. If all chunks are staged: as many as an asker may have unanswered, and some that are
 * being copied meanwhile. */
enum { STAGED_EACH = 1, ALL_STAGED_EACH = 6 };

static cairn_status giver_open(struct take *take, struct giver *giver, const Cairn__ShardInfo *info,
                               struct sentence *why);
static void giver_close(struct giver *giver);
static void giver_unlink(struct giver *giver);
static void giver_feed(struct giver *giver);
static bool giver_tick(struct giver *giver, uint64_t now_ms);
static void giver_on_message(struct giver *giver, const struct chunk_header *header,
                             struct fabric_message *message);

/* ---- sizes ---- */

static uint32_t slots_each(const struct lots *lots, uint32_t most)
{
    const uint32_t each = SLOTS_MAX / (lots->giver_count + (lots->giver_count == 0));
    if (each > most) return most;
    return each < SLOTS_EACH_MIN ? SLOTS_EACH_MIN : each;
}

static struct take_staged staged_of(const struct shard_job *job, const struct lots *lots)
{
    if (planes_device_end(&job->planes) == 0)
        return (struct take_staged) { .each = lots->cut_bytes > 0 ? STAGED_EACH : 0,
                                      .of_each = slots_each(lots, SLOTS_EACH_MAX),
                                      .bytes = lots->cut_bytes };
    const uint32_t each = slots_each(lots, ALL_STAGED_EACH);
    return (struct take_staged) {
        .all = true, .each = each, .of_each = each, .bytes = lots->chunk_bytes
    };
}

uint64_t take_staging_bytes(const struct shard_job *job, const struct lots *lots)
{
    const struct take_staged staged = staged_of(job, lots);
    return (uint64_t)lots->giver_count * staged.each * staged.bytes;
}

/* The lot is received beside the planes. */
static bool take_is_staged(const struct take *take, const struct lot *lot)
{
    return take->staged.all || !lot_is_whole(lot);
}

/* ---- open ---- */

static const Cairn__ShardInfo *info_of(Cairn__ShardInfo *const *shards, size_t count,
                                       uint32_t index)
{
    for (size_t i = 0; i < count; i++)
        if (shards[i]->index == index) return shards[i];
    return NULL;
}

/* Its lots begin at *at, and then end there. */
static cairn_status open_giver(struct take *take, struct giver *giver, size_t *at,
                               Cairn__ShardInfo *const *shards, size_t shard_count,
                               struct sentence *why)
{
    const struct lots *lots = &take->lots;
    giver->index = lots->list[*at].giver;
    giver->next = *at;
    while (*at < lots->count && lots->list[*at].giver == giver->index) ++*at;
    giver->end = *at;
    const Cairn__ShardInfo *info = info_of(shards, shard_count, giver->index);
    if (info == NULL)
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "state comes from shard %u, of which no address was told", giver->index);
    return giver_open(take, giver, info, why);
}

static cairn_status open_givers(struct take *take, Cairn__ShardInfo *const *shards,
                                size_t shard_count, struct sentence *why)
{
    size_t at = 0;
    const uint64_t staging = take_staging_bytes(take->job, &take->lots);
    cairn_status status = arena_open_scratch("moved", staging, &take->staging, why);
    arena_pins_for(&take->staging, take->job->compute->home);
    take->givers = calloc((size_t)take->lots.giver_count + 1, sizeof *take->givers);
    if (status == CAIRN_OK && take->givers == NULL)
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to take state");
    if (status != CAIRN_OK) return status;
    take->giver_count = take->lots.giver_count;
    for (uint32_t i = 0; i < take->giver_count && status == CAIRN_OK; i++)
        status = open_giver(take, &take->givers[i], &at, shards, shard_count, why);
    return status;
}

cairn_status take_open(struct shard_job *job, struct shard_view *view, struct lots *lots,
                       const Cairn__Mover *mover, Cairn__ShardInfo *const *shards,
                       size_t shard_count, struct take **take_out, struct sentence *why)
{
    struct take *take = calloc(1, sizeof *take);
    if (take == NULL) {
        lots_release(lots);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to take state");
    }
    take->job = job;
    take->view = shard_view_ref(view);
    take->number = mover->member;
    take->token = mover->token;
    take->staging = CAIRN_ARENA_NONE;
    take->lots = *lots;
    *lots = (struct lots) { .list = NULL };
    take->staged = staged_of(job, &take->lots);
    take->left = take->lots.count;
    const cairn_status status = open_givers(take, shards, shard_count, why);
    if (status == CAIRN_OK)
        *take_out = take;
    else
        receiver_free(take);
    return status;
}

cairn_status take_reserve(const struct take *take, struct reserve *reserve)
{
    return reserve_add(reserve, &take->staging, 0, take->staging.bytes);
}

/* ---- the end ---- */

void receiver_free(struct take *take)
{
    for (uint32_t i = 0; i < take->giver_count; i++) giver_close(&take->givers[i]);
    free(take->givers);
    arena_close(&take->staging);
    lots_release(&take->lots);
    shard_view_unref(take->view);
    free(take);
}

void take_free_leaving(struct shard_job *job)
{
    while (job->move.leaving != NULL) {
        struct take *take = job->move.leaving;
        job->move.leaving = take->next_leaving;
        receiver_free(take);
    }
}

/* Something in flight refers to the take; `idle` may free it, and its job. */
static void take_busy(struct take *take)
{
    take->busy++;
    shard_job_busy(take->job);
}

static void take_idle(struct take *take)
{
    struct shard_job *job = take->job;
    assert(take->busy > 0);
    take->busy--;
    if (take->busy == 0 && take->is_leaving && !job->shard->closing) {
        struct take **at = &job->move.leaving;
        while (*at != take) at = &(*at)->next_leaving;
        *at = take->next_leaving;
        receiver_free(take);
    }
    shard_job_idle(job);
}

void take_leave(struct take *take)
{
    if (take == NULL) return;
    take_busy(take); // not freed before we are through
    take->is_leaving = true;
    take->next_leaving = take->job->move.leaving;
    take->job->move.leaving = take;
    for (uint32_t i = 0; i < take->giver_count; i++) giver_unlink(&take->givers[i]);
    take_idle(take);
}

/* ---- what comes ---- */

bool take_is_begun(const struct take *take)
{
    return take->is_begun;
}

struct shard_job *take_job(const struct take *take)
{
    return take->job;
}

void take_begin(struct take *take, struct cairn_version version, void (*done)(struct take *take))
{
    assert(!take->is_begun && take->left > 0);
    take->is_begun = true;
    take->version = version;
    take->done = done;
    take->begun_ns = uv_hrtime();
    for (uint32_t i = 0; i < take->giver_count; i++) {
        giver_feed(&take->givers[i]);
        giver_tick(&take->givers[i], uv_now(take->job->shard->loop)); // connects
    }
}

bool take_is_done(const struct take *take, uint64_t *bytes_out, uint64_t *us_out)
{
    *bytes_out = take->lots.bytes;
    *us_out = take->us;
    return take->left == 0;
}

static void is_here(struct take_slot *slot)
{
    struct take *take = slot->giver->take;
    slot->lot = NULL;
    take->left--;
    giver_feed(slot->giver);
    if (take->left > 0) return;
    take->us = (uv_hrtime() - take->begun_ns) / 1000;
    take->done(take);
}

/* ---- the copy ---- */

static bool describe_copy(struct work_run *run, uint32_t item, uint32_t stage, struct works *works)
{
    struct take_slot *slot = (struct take_slot *)run;
    const struct lot *lot = slot->lot;
    const struct form *form = &slot->giver->take->view->forms[lot->extent];
    const uint64_t skipped = lot->first_elem - lot->chunk_elem;
    (void)item;
    (void)stage;
    works_copy(works, slot->to, slot->staging + form_bytes(form, lot->plane, skipped),
               (size_t)form_bytes(form, lot->plane, lot->elem_count));
    return false;
}

static void copied(struct work_run *run)
{
    struct take_slot *slot = (struct take_slot *)run;
    struct take *take = slot->giver->take;
    const bool has_failed = shard_job_run_failed(take->job, run); // then it leaves
    if (take->is_leaving || has_failed)
        slot->lot = NULL;
    else
        is_here(slot);
    take_idle(take);
}

static uint64_t local_elem_of(const struct take_slot *slot)
{
    const struct lot *lot = slot->lot;
    const struct shard_map *map = &slot->giver->take->view->table.map;
    const struct local_extent *extent = &map->extents[lot->extent];
    return extent->local_elem + (lot->first_elem - extent->first_elem);
}

/* Where the slot's chunk is received: where it belongs, or beside it if a part of it stays elsewhere. */
static void *take_place(struct take_slot *slot)
{
    const struct lot *lot = slot->lot;
    slot->to = planes_at(&slot->giver->take->job->planes, lot->plane, lot->extent,
                         local_elem_of(slot));
    return take_is_staged(slot->giver->take, lot) ? slot->staging : slot->to;
}

/* The slot's chunk has been received, and is as it was sent. */
static void take_came(struct take_slot *slot)
{
    struct take *take = slot->giver->take;
    if (!take_is_staged(take, slot->lot)) {
        is_here(slot);
        return;
    }
    slot->run = (struct work_run) {
        .compute = shard_job_home(take->job, local_elem_of(slot)),
        .item_count = 1,
        .describe = describe_copy,
        .done = copied,
    };
    take_busy(take);
    compute_submit(&slot->run);
}

/* ---- from givers ---- */

static struct take *find(struct shard_daemon *shard, const struct chunk_header *header)
{
    struct shard_job *job = shard_job_find(shard, header->job);
    if (job == NULL || job->state != CAIRN_JOB_SERVING) return NULL;
    struct take *take = job->move.now != NULL ? job->move.now->take : NULL;
    const bool ours = take != NULL && take->is_begun && take->number == header->member &&
                      take->token == header->token;
    return ours ? take : NULL;
}

bool take_on_message(struct shard_daemon *shard, const struct chunk_header *header,
                     struct fabric_message *message)
{
    struct take *take = find(shard, header);
    if (take == NULL) return false;
    uint32_t i = 0;
    while (i < take->giver_count && take->givers[i].index != header->tile) i++;
    take_busy(take);
    if (i < take->giver_count)
        giver_on_message(&take->givers[i], header, message);
    else
        fabric_drop(message);
    take_idle(take);
    return true;
}

bool take_tick(struct take *take, uint64_t now_ms)
{
    bool waits = false;
    if (!take->is_begun || take->is_leaving) return false;
    take_busy(take);
    for (uint32_t i = 0; i < take->giver_count; i++)
        waits = giver_tick(&take->givers[i], now_ms) || waits;
    take_idle(take);
    return waits;
}

const struct chunk_link *take_link(struct take *take, uint32_t i, char **name_out)
{
    if (!take->is_begun || take->is_leaving || i >= take->giver_count) return NULL;
    *name_out = take->givers[i].name;
    return &take->givers[i].link;
}

/* ==== giver ==== */

/* Asks a giver for chunks, and takes its answers (proto/link/chunk_link.h). */

static struct giver *giver_of(const struct chunk_link *link)
{
    return (struct giver *)((char *)(uintptr_t)link - offsetof(struct giver, link));
}

static struct take_slot *slot_of(struct chunk_request *request)
{
    return (struct take_slot *)((char *)request - offsetof(struct take_slot, request));
}

/* ---- the connection ---- */

static void sign(const struct chunk_link *link, struct chunk_header *header)
{
    const struct take *take = giver_of(link)->take;
    header->job = take->job->number;
    header->member = take->number;
    header->token = take->token;
}

static bool waits(const struct chunk_link *link)
{
    return asker_waits(&giver_of(link)->asker);
}

/* Asks again for everything that was asked on the lost connection or of the lost endpoint. */
static void ask_all_again(struct giver *giver)
{
    for (uint32_t i = 0; i < giver->take->staged.of_each; i++)
        asker_lost(&giver->asker, &giver->slots[i].request);
}

static void lost(struct chunk_link *link)
{
    ask_all_again(giver_of(link));
}

static void down(struct chunk_link *link, cairn_status why)
{
    const struct giver *giver = giver_of(link);
    log_info("job %s: lost shard %s, whose state comes here: %s; connecting again",
             giver->take->job->spec.name, giver->name, status_text((int)why));
}

static void starved(struct chunk_link *link)
{
    const struct giver *giver = giver_of(link);
    log_warn(
        "job %s: out of memory to ask shard %s, whose state comes here: raise the limits of this "
        "process (ulimit -v, memory.max, vm.max_map_count)",
        giver->take->job->spec.name, giver->name);
}

static void loan(struct chunk_link *link)
{
    take_busy(giver_of(link)->take);
}

static void loan_back(struct chunk_link *link)
{
    take_idle(giver_of(link)->take);
}

static const struct chunk_link_hands hands = {
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
    const struct take_slot *slot = slot_of(request);
    struct giver *giver = slot->giver;
    const struct lot *lot = slot->lot;
    struct chunk_header header = {
        .kind = CAIRN_CHUNK_FETCH,
        .plane = (uint8_t)lot->plane,
        .tile = CAIRN_TILE_WHOLE,
        .table_hash = CAIRN_TABLE_HASH_WHOLE,
        .tensor = giver->take->view->table.map.extents[lot->extent].tensor,
        .first_leaf = lot->first_leaf,
        .leaf_count = lot->leaf_count,
        .generation = giver->take->version.generation,
        .step = giver->take->version.step,
        .request = chunk_request_number(request),
    };
    // Before the giver's HELLO it is not known by which of its endpoints it will answer.
    if (!chunk_link_is_up(&giver->link)) return CAIRN_ERR_CLOSED;
    return chunk_link_send(&giver->link, &header, NULL, 0, NULL, NULL);
}

/* Asks for what there are free slots for. */
static void giver_feed(struct giver *giver)
{
    // Goes from the last slot to the first, since the first ones have staging: whole chunks leave
    // those to cut ones.
    for (uint32_t i = giver->take->staged.of_each; i-- > 0 && giver->next < giver->end;) {
        struct take_slot *slot = &giver->slots[i];
        const struct lot *lot = &giver->take->lots.list[giver->next];
        if (slot->lot != NULL || (slot->staging == NULL && take_is_staged(giver->take, lot)))
            continue;
        slot->lot = lot;
        giver->next++;
        slot->request.serial++;
        slot->request.damaged = 0;
        asker_ask(&giver->asker, &slot->request);
    }
    asker_pump(&giver->asker);
}

/* The slot's lot is to be asked for once more, after an answer with this status. */
static void giver_again(struct take_slot *slot, uint64_t status)
{
    struct giver *giver = slot->giver;
    if (asker_again(&giver->asker, &slot->request, status)) return;
    log_warn("job %s: what comes from shard %s is damaged again and again: connecting anew",
             giver->take->job->spec.name, giver->name);
    slot->request.damaged = 0;
    asker_ask(&giver->asker, &slot->request);
    chunk_link_close(&giver->link);
}

/* ---- the answers ---- */

static void on_received(void *arg, cairn_status status)
{
    struct take_slot *slot = arg;
    struct giver *giver = slot->giver;
    if (giver->take->is_leaving)
        slot->lot = NULL;
    else if (status != CAIRN_OK)
        asker_ask(&giver->asker, &slot->request); // its connection is lost
    else if (slot->came != slot->checksum)
        giver_again(slot, CAIRN_ERR_CHECKSUM);
    else
        take_came(slot);
    if (!giver->take->is_leaving) asker_pump(&giver->asker);
    chunk_link_loan_back(&giver->link);
}

static bool is_answer_to(const struct chunk_header *header, const struct take_slot *slot)
{
    const struct take *take = slot->giver->take;
    const struct lot *lot = slot->lot;
    const struct form *form = &take->view->forms[lot->extent];
    return header->kind == CAIRN_CHUNK_DATA &&
           header->tensor == take->view->table.map.extents[lot->extent].tensor &&
           header->first_leaf == lot->first_leaf && header->leaf_count == lot->leaf_count &&
           header->plane == (uint8_t)lot->plane &&
           header->dtype == (uint8_t)form_dtype(form, lot->plane) &&
           header->payload_bytes == form_bytes(form, lot->plane, lot->chunk_elems) &&
           header->generation == take->version.generation && header->step == take->version.step;
}

static void receive(struct take_slot *slot, const struct chunk_header *header,
                    struct fabric_message *message)
{
    struct giver *giver = slot->giver;
    slot->checksum = header->checksum;
    if (fabric_receive_far(message, take_place(slot), (size_t)header->payload_bytes, &slot->came,
                           on_received, slot) == CAIRN_OK) {
        chunk_link_loan(&giver->link);
        return;
    }
    fabric_drop(message);
    giver_again(slot, CAIRN_ERR_BUSY);
}

/* It has no time for it, or does not go by the new layout yet; or it does not have what it is to give. */
static void refused(struct take_slot *slot, uint64_t status)
{
    const struct giver *giver = slot->giver;
    struct sentence why;
    if (status == CAIRN_ERR_BUSY || status == CAIRN_ERR_NOT_READY) {
        giver_again(slot, CAIRN_ERR_BUSY);
    } else if (status == CAIRN_ERR_CHECKSUM) {
        giver_again(slot, status);
    } else {
        sentence_set(&why, "shard %s, which is to give state to this one, says %s", giver->name,
                     status_text((int)status));
        shard_job_fault(giver->take->job, why.text);
    }
}

/* The slot that an answer is for, no longer in flight; NULL: of a former use or connection. */
static struct take_slot *slot_answered(struct giver *giver, const struct chunk_header *header)
{
    const uint32_t index = (uint32_t)header->request;
    if (index >= giver->take->staged.of_each) return NULL;
    struct take_slot *slot = &giver->slots[index];
    return asker_answered(&giver->asker, &slot->request, header->request) ? slot : NULL;
}

static void on_answer(struct giver *giver, const struct chunk_header *header,
                      struct fabric_message *message)
{
    struct take_slot *slot = slot_answered(giver, header);
    if (slot != NULL && message != NULL && is_answer_to(header, slot)) {
        receive(slot, header, message);
        message = NULL;
    } else if (slot != NULL) {
        refused(slot, header->kind == CAIRN_CHUNK_NAK ? header->value : CAIRN_ERR_PROTOCOL);
    }
    fabric_drop(message);
    if (!giver->take->is_leaving) asker_pump(&giver->asker);
}

static void giver_on_message(struct giver *giver, const struct chunk_header *header,
                             struct fabric_message *message)
{
    const bool is_heard = chunk_link_heard(&giver->link) && !giver->take->is_leaving;
    if (is_heard && header->kind != CAIRN_CHUNK_HELLO) {
        on_answer(giver, header, message);
        return;
    }
    fabric_drop(message);
    if (!is_heard) return;
    if (chunk_link_on_hello(&giver->link, header->request)) ask_all_again(giver);
    asker_retry(&giver->asker);
}

/* ---- from beginning to end ---- */

static bool giver_tick(struct giver *giver, uint64_t now_ms)
{
    struct shard_daemon *shard = giver->take->job->shard;
    if (giver->link.peer != NULL) asker_retry(&giver->asker);
    chunk_link_tick(&giver->link, giver->take->is_leaving ? NULL : shard->fabric, giver->address,
                    giver->address_bytes, now_ms);
    return asker_waits(&giver->asker);
}

static cairn_status open_slots(struct giver *giver)
{
    struct take *take = giver->take;
    const struct take_staged *staged = &take->staged;
    const size_t first = (size_t)(giver - take->givers) * staged->each;
    giver->slots = calloc(staged->of_each, sizeof *giver->slots);
    if (giver->slots == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < staged->of_each; i++) {
        struct take_slot *slot = &giver->slots[i];
        slot->giver = giver;
        slot->request.index = i;
        if (i < staged->each) slot->staging = take->staging.base + (first + i) * staged->bytes;
    }
    return CAIRN_OK;
}

static cairn_status giver_open(struct take *take, struct giver *giver, const Cairn__ShardInfo *info,
                               struct sentence *why)
{
    giver->take = take;
    giver->link.hands = &hands;
    asker_open(&giver->asker, send_fetch);
    if (info->fabric_address.len > CAIRN_FABRIC_ADDRESS_MAX)
        return fail_with(why, CAIRN_ERR_MALFORMED, "a fabric address of %zu bytes of shard %s",
                         info->fabric_address.len, info->name);
    snprintf(giver->name, sizeof giver->name, "%s", info->name);
    giver->address_bytes = info->fabric_address.len;
    giver->address = malloc(giver->address_bytes + 1);
    if (giver->address == NULL || open_slots(giver) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to take state from shard %s",
                         info->name);
    if (giver->address_bytes > 0)
        memcpy(giver->address, info->fabric_address.data, giver->address_bytes);
    return CAIRN_OK;
}

/* Ends the connection; nothing is asked for any more if the take leaves. */
static void giver_unlink(struct giver *giver)
{
    if (giver->take == NULL) return; // it was not opened
    if (giver->take->job->shard->closing)
        chunk_link_forget(&giver->link);
    else
        chunk_link_close(&giver->link);
}

static void giver_close(struct giver *giver)
{
    giver_unlink(giver);
    free(giver->address);
    free(giver->slots);
}
