#include "server/shard/collect.h"

#include <inttypes.h>
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/text.h"
#include "proto/spec/spec.h"
#include "server/base/daemon.h"
#include "server/shard/shard.h"

static struct chunk_header step_header_of(const struct step_action *action, uint8_t kind,
                                          const struct chunk_table *table);
static void fold_begin(struct collector *collector, const struct step_action *action);

/* ---- open and close ---- */

static cairn_status grow_actions(struct step_actions *actions, size_t capacity)
{
    if (capacity <= actions->capacity) return CAIRN_OK;
    void *list = realloc(actions->list, capacity * sizeof *actions->list);
    if (list == NULL) return CAIRN_ERR_NO_MEMORY;
    actions->list = list;
    actions->capacity = capacity;
    return CAIRN_OK;
}

cairn_status collector_tables_open(const struct collector *collector,
                                   const struct step_config *step, const struct chunk_table *table,
                                   struct collector_tables *tables_out)
{
    const uint32_t slots = step->member_max * step->window, chunks = table->trained_count;
    struct collector_tables tables = { .table = table,
                                       .fold_count = slots < chunks ? slots : chunks };
    tables.step = malloc(step_bytes(step) + 1);
    tables.folds = calloc((size_t)tables.fold_count + 1, sizeof *tables.folds);
    const cairn_status status = grow_actions(collector->actions, step_actions_max(step));
    if (status != CAIRN_OK || tables.step == NULL || tables.folds == NULL) {
        collector_tables_close(&tables);
        return CAIRN_ERR_NO_MEMORY;
    }
    *tables_out = tables;
    return CAIRN_OK;
}

void collector_tables_close(struct collector_tables *tables)
{
    free(tables->step);
    free(tables->folds);
}

static void take_tables(struct collector *collector, struct collector_tables *tables)
{
    free(collector->folds);
    collector->table = tables->table;
    collector->folds = tables->folds;
    collector->folds_free = NULL;
    for (uint32_t i = 0; i < tables->fold_count; i++) {
        collector->folds[i].next = collector->folds_free;
        collector->folds_free = &collector->folds[i];
    }
    *tables = (struct collector_tables) { .table = NULL };
}

void collector_switch(struct collector *collector, const struct step_config *step,
                      struct collector_tables *tables)
{
    struct step_machine *before = collector->step;
    assert(step_slots_used(before) == 0 && collector->landed == NULL);
    collector->step = step_init_from(tables->step, step, before);
    take_tables(collector, tables);
    free(before);
}

cairn_status collector_open(struct collector *collector, const struct collector_options *options)
{
    const uint32_t slots = options->step->member_max * options->step->window;
    struct collector_tables tables;
    *collector = (struct collector) {
        .callbacks = options->callbacks,
        .job = options->job,
        .shard_name = options->shard_name,
        .actions = options->actions,
        .slots = calloc(slots, sizeof *collector->slots),
    };
    if (collector->slots == NULL) return CAIRN_ERR_NO_MEMORY;
    CAIRN_TRY(collector_tables_open(collector, options->step, options->table, &tables));
    collector->slot_count = slots;
    for (uint32_t i = 0; i < slots; i++) collector->slots[i].collector = collector;
    collector->step = options->kept != NULL
                          ? step_init_kept(tables.step, options->step, options->kept)
                          : step_init(tables.step, options->step, options->version, options->last);
    take_tables(collector, &tables);
    return CAIRN_OK;
}

/* Releases a slot whose payload nobody reads any more. If the payload was read in a worker's
 * memory, the worker gets this memory back. */
static void slot_release(struct collector_slot *slot)
{
    const struct collector *collector = slot->collector;
    // When the shard closes, the fabric has already dropped all messages.
    if (slot->message != NULL && !collector->job->shard->closing) fabric_drop(slot->message);
    if (slot->memory != NULL && collector->callbacks->slot_memory_back != NULL)
        collector->callbacks->slot_memory_back(slot);
    slot->message = NULL;
    slot->memory = NULL;
    slot->view = NULL;
}

void collector_close(struct collector *collector)
{
    for (uint32_t i = 0; i < collector->slot_count; i++) slot_release(&collector->slots[i]);
    free(collector->step);
    free(collector->slots);
    free(collector->folds);
}

void collector_leave(struct collector *collector)
{
    for (uint32_t i = 0; i < collector->slot_count; i++)
        if (!collector->slots[i].folding && !collector->slots[i].receiving)
            slot_release(&collector->slots[i]);
}

/* ---- to workers ---- */

/* Returns how many of the part's chunks, by the map's numbers, are added up on a device. These are
 * the first chunks of the part (memory.h). */
static uint64_t chunks_on_card(const struct collector *collector)
{
    const struct chunk_table *table = collector->table;
    uint32_t low = 0, high = table->trained_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (compute_is_host(collector->callbacks->compute(collector, middle)))
            high = middle;
        else
            low = middle + 1;
    }
    return low < table->trained_count ? table->trained[low] : table->map.chunk_count;
}

static void send_to(const struct collector *collector, const struct step_action *action,
                    uint8_t kind, uint64_t value)
{
    struct shard_member *member = member_find(collector->job, action->member);
    if (member == NULL) return;
    struct chunk_header header = step_header_of(action, kind, collector->table);
    header.value = value;
    if (kind == CAIRN_CHUNK_GRANT) {
        header.request = member_way(member);
        header.leaf_count = action->small;
        header.micro = action->in_place;
        header.first_leaf = chunks_on_card(collector);
    }
    collector->callbacks->send(collector, member, &header);
}

static void refuse_push(const struct collector *collector, const struct step_action *action)
{
    const struct shard_job *job = collector->job;
    struct shard_member *member = member_find(job, action->member);
    job->shard->stats.chunks_refused++;
    if (member != NULL) { // a stale chunk is no fault: it was under way when its epoch ended
        log_limited(
            &member->refusals, action->status == CAIRN_ERR_STALE ? CAIRN_LOG_INFO : CAIRN_LOG_WARN,
            "refused chunk %u of job %s for shard %s from %s: %s; it is of epoch "
            "%" PRIu64 ", round %" PRIu64 ", shard %s is at epoch %" PRIu64 ", round %" PRIu64,
            action->chunk, job->spec.name, collector->shard_name, member->name,
            status_text((int)action->status), action->epoch, action->round, job->shard->name,
            step_epoch(collector->step), step_round_of(collector->step));
    }
    send_to(collector, action, CAIRN_CHUNK_NAK, (uint64_t)action->status);
}

/* ---- contributions ---- */

static cairn_status judge_tensor(const struct shard_job *job, const struct chunk_header *header,
                                 struct sentence *why)
{
    if (header->tensor >= job->spec.tensor_count)
        return fail_with(why, CAIRN_ERR_MALFORMED, "tensor %u of %zu", header->tensor,
                         job->spec.tensor_count);
    if (header->dtype != CAIRN_F32 && header->dtype != CAIRN_BF16)
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "tensor %s: a contribution in %s, not f32 or bf16",
                         job->spec.tensors[header->tensor].name, dtype_label(header->dtype));
    return CAIRN_OK;
}

/* Refuses a contribution to a tensor that is not trained. Only here the tensor's spec is read,
 * because the specs of thousands of tensors are in no cache. */
static cairn_status refuse_untrained(const struct tensor_spec *tensor, struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_MALFORMED, "tensor %s is %s: it takes no gradient",
                     tensor->name, capability_name(CAIRN_CAPABILITY_KIND, (int)tensor->kind));
}

/* Returns CAIRN_ERR_REFUSED, with `why`, if the tensor takes no gradient in that round. The tensor
 * must be trained. */
static cairn_status frozen_judge(const struct frozen *frozen, const struct job_spec_data *spec,
                                 uint32_t tensor, uint64_t round, struct sentence *why)
{
    if (round != frozen->round) return CAIRN_OK;
    const struct tensor_spec *t = &spec->tensors[tensor];
    if (frozen->groups[frozen->group_of[tensor]])
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "tensor %s: its group %s is frozen in round %" PRIu64
                         " and takes no gradient",
                         t->name, t->group, round);
    if (frozen->tensors[tensor])
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "tensor %s is frozen in round %" PRIu64 " and takes no gradient", t->name,
                         round);
    return CAIRN_OK;
}

cairn_status collector_judge(const struct collector *collector, const struct shard_member *member,
                             const struct chunk_header *header, uint32_t *chunk_out,
                             struct chunk_piece *piece_out, struct sentence *why)
{
    const struct shard_job *job = collector->job;
    const struct shard_map *map = &collector->table->map;
    CAIRN_TRY(judge_tensor(job, header, why));
    const struct tensor_spec *tensor = &job->spec.tensors[header->tensor];
    uint64_t chunk;
    if (shard_map_chunk_number(map, header->tensor, header->first_leaf, header->leaf_count,
                               &chunk) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "tensor %s: leaves %" PRIu64 " + %u are not a chunk of shard %s",
                         tensor->name, header->first_leaf, header->leaf_count,
                         collector->shard_name);
    const struct local_extent *extent = shard_map_extent(map, chunk);
    const uint32_t *first = &collector->table->first[extent - map->extents];
    if (first[0] == first[1]) return refuse_untrained(tensor, why);
    const struct chunk_place place = shard_map_chunk(map, chunk);
    CAIRN_TRY(collector->callbacks->judge_piece(collector, member, header, &place, piece_out, why));
    const uint64_t bytes = piece_out->count * dtype_size(header->dtype);
    if (header->payload_bytes != bytes)
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "tensor %s: a payload of %" PRIu64 " bytes, not %" PRIu64, tensor->name,
                         header->payload_bytes, bytes);
    CAIRN_TRY(frozen_judge(&job->frozen, &job->spec, header->tensor, header->round, why));
    *chunk_out = first[0] + (uint32_t)(chunk - extent->first_chunk);
    return CAIRN_OK;
}

static void discard(struct collector *collector)
{
    fabric_drop(collector->waiting);
    collector->waiting = NULL;
}

bool collector_reads_view(const struct collector *collector, const struct chunk_header *header,
                          uint32_t chunk, const struct fabric_message *message)
{
    const uintptr_t view = (uintptr_t)fabric_message_view(message);
    if (view == 0) return false;
    if (bytes_path_of(fabric_message_path(message)) != BYTES_PATH_DEVICE) return true;
    // A kernel that reads a misaligned element would end the card's context.
    return !compute_is_host(collector->callbacks->compute(collector, chunk)) &&
           view % dtype_size(header->dtype) == 0;
}

/* True if the payload stays where it lies until it is folded. If the chunk's sum lies on a device
 * and the payload lies in host memory, this is false, because the payload is copied into the slot's
 * memory first. */
static bool reads_in_place(const struct collector *collector, const struct chunk_header *header,
                           uint32_t chunk, const struct fabric_message *message)
{
    if (!collector_reads_view(collector, header, chunk, message)) return false;
    if (bytes_path_of(fabric_message_path(message)) == BYTES_PATH_DEVICE) return true;
    // The fabric copies a small payload to memory of this process, which in-place slots do not
    // count.
    return header->payload_bytes > CAIRN_CHUNK_SMALL &&
           compute_is_host(collector->callbacks->compute(collector, chunk));
}

void collector_push(struct collector *collector, const struct chunk_header *header, uint32_t chunk,
                    const struct chunk_piece *piece, struct fabric_message *message)
{
    collector->waiting = message;
    collector->waiting_header = *header;
    collector->waiting_piece = *piece;
    struct step_event event = step_event_of(header);
    event.chunk = chunk;
    event.is_readable = event.in_place && reads_in_place(collector, header, chunk, message);
    collector_step(collector, &event);
    discard(collector); // drops the message if the core did not decide about it, because of a fault
}

/* ---- slots ---- */

/* Notes that a receive has ended. The core is told when its current actions are done. */
static void landed(struct collector_slot *slot, cairn_status status)
{
    struct collector *collector = slot->collector;
    if (status != CAIRN_OK && status != CAIRN_ERR_CHECKSUM) {
        // The worker gets no answer, so its connection is cut, unless it is lost already.
        if (status != CAIRN_ERR_CLOSED) member_cut(collector->job, slot->member);
        status = CAIRN_ERR_CLOSED;
    }
    slot->status = status;
    slot->next_landed = collector->landed;
    collector->landed = slot;
}

static void on_received(void *arg, cairn_status status)
{
    struct collector_slot *slot = arg;
    struct collector *collector = slot->collector;
    slot->view = slot->memory;
    slot->receiving = false;
    if (status == CAIRN_OK) {
        // Bytes that were copied out of a card's memory went through host memory, so they count as
        // shared.
        bytes_pushed(collector->job, slot->member, slot->payload_bytes,
                     slot->path == BYTES_PATH_DEVICE ? BYTES_PATH_SHARED : slot->path);
        // A payload from a card's memory has no checksum, because no host has read the payload
        // before. Either it crosses no network, or its sender says that it has no checksum. A
        // payload in memory of this host has no checksum either, because its sender expects that it
        // is read where it lies.
        if (!slot->is_unsummed && slot->path != BYTES_PATH_DEVICE &&
            slot->path != BYTES_PATH_SHARED &&
            chunk_checksum(slot->memory, slot->payload_bytes) != slot->checksum)
            status = CAIRN_ERR_CHECKSUM;
    }
    if (status != CAIRN_OK || !collector->callbacks->takes_events(collector)) slot_release(slot);
    landed(slot, status);
    collector_settle(collector);
    shard_job_settle(collector->job);
    collector->callbacks->idle(collector);
}

/* Notes as landed a payload that is read where it lies. Nothing has to be awaited, and no transfer
 * can have damaged the payload. */
static void land_view(struct collector_slot *slot, struct fabric_message *message)
{
    slot->message = message;
    slot->view = fabric_message_view(message);
    if (slot->path != BYTES_PATH_DEVICE) slot->path = BYTES_PATH_SHARED;
    bytes_pushed(slot->collector->job, slot->member, slot->payload_bytes, slot->path);
    landed(slot, CAIRN_OK);
}

static void receive(struct collector *collector, uint32_t number, uint32_t chunk)
{
    struct fabric_message *message = collector->waiting;
    const struct chunk_header *header = &collector->waiting_header;
    struct collector_slot *slot = &collector->slots[number];
    assert(message != NULL && number < collector->slot_count && slot->message == NULL);
    collector->waiting = NULL;
    slot->chunk = chunk;
    slot->piece = collector->waiting_piece;
    slot->member = header->member;
    slot->dtype = (cairn_dtype)header->dtype;
    slot->payload_bytes = (size_t)header->payload_bytes;
    slot->checksum = header->checksum;
    slot->is_unsummed = (header->value & CAIRN_CHUNK_UNSUMMED) != 0;
    slot->path = bytes_path_of(fabric_message_path(message));
    if (slot->is_unsummed && slot->path == BYTES_PATH_CARRIED) slot->path = BYTES_PATH_DIRECT;
    if (collector_reads_view(collector, header, chunk, message)) {
        land_view(slot, message);
        return;
    }
    slot->memory = collector->callbacks->slot_memory(collector, number);
    const cairn_status status = fabric_receive(message, slot->memory, slot->payload_bytes,
                                               on_received, slot);
    slot->receiving = status == CAIRN_OK;
    if (status == CAIRN_OK) {
        collector->callbacks->busy(collector);
        return;
    }
    fabric_drop(message);
    slot_release(slot);
    landed(slot, status);
}

/* ---- the core ---- */

static void do_action(struct collector *collector, const struct step_action *action)
{
    collector->callbacks->act(collector, action);
    switch (action->kind) {
    case CAIRN_STEP_GRANT: send_to(collector, action, CAIRN_CHUNK_GRANT, action->window); break;
    case CAIRN_STEP_ACK: send_to(collector, action, CAIRN_CHUNK_ACK, 0); break;
    case CAIRN_STEP_MICRO_ACK: send_to(collector, action, CAIRN_CHUNK_MICRO_ACK, 0); break;
    case CAIRN_STEP_REFUSE:
        if (action->slot < collector->slot_count) slot_release(&collector->slots[action->slot]);
        refuse_push(collector, action);
        break;
    case CAIRN_STEP_RECEIVE: receive(collector, action->slot, action->chunk); break;
    case CAIRN_STEP_DISCARD: discard(collector); break;
    case CAIRN_STEP_FOLD: fold_begin(collector, action); break;
    case CAIRN_STEP_FAULT: shard_job_fault(collector->job, action->why); break;
    default: break; // callbacks->act has done the action
    }
}

/* True if the action discards a message whose chunk arrived before. Such a message is neither
 * received nor refused. */
static bool is_duplicate(const struct step_actions *actions, size_t at)
{
    return actions->list[at].kind == CAIRN_STEP_DISCARD &&
           (at + 1 == actions->count || actions->list[at + 1].kind == CAIRN_STEP_ACK);
}

static void step_once(struct collector *collector, const struct step_event *event)
{
    struct step_actions *actions = collector->actions;
    assert(!collector->stepping);
    if (!collector->callbacks->takes_events(collector)) return;
    collector->stepping = true;
    actions->count = 0;
    step_on_event(collector->step, event, actions);
    for (size_t i = 0; i < actions->count && collector->callbacks->takes_events(collector); i++) {
        do_action(collector, &actions->list[i]);
        if (is_duplicate(actions, i)) collector->job->shard->stats.chunks_duplicate++;
    }
    collector->stepping = false;
}

void collector_settle(struct collector *collector)
{
    if (collector->settling || collector->stepping) return;
    collector->settling = true;
    while (collector->landed != NULL) {
        struct collector_slot *slot = collector->landed;
        collector->landed = slot->next_landed;
        step_once(collector, &(struct step_event) {
                                 .kind = CAIRN_STEP_LANDED,
                                 .slot = (uint32_t)(slot - collector->slots),
                                 .status = slot->status,
                             });
    }
    collector->settling = false;
}

void collector_step(struct collector *collector, const struct step_event *event)
{
    step_once(collector, event);
    collector_settle(collector);
}

/* ==== chunk table ==== */

cairn_status chunk_table_number(struct chunk_table *table, const struct job_spec_data *spec)
{
    const struct shard_map *map = &table->map;
    if (map->chunk_count >= UINT32_MAX) return CAIRN_ERR_NO_MEMORY;
    table->extent_of = calloc((size_t)map->chunk_count + 1, sizeof *table->extent_of);
    table->first = calloc(map->extent_count + 1, sizeof *table->first);
    table->trained = calloc((size_t)map->chunk_count + 1, sizeof *table->trained);
    if (table->extent_of == NULL || table->first == NULL || table->trained == NULL)
        return CAIRN_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < map->extent_count; i++) {
        const struct local_extent *extent = &map->extents[i];
        const bool trained = spec->tensors[extent->tensor].kind == CAIRN_TRAINED;
        table->first[i] = table->trained_count;
        for (uint64_t c = extent->first_chunk; c < extent->first_chunk + extent->chunk_count; c++) {
            table->extent_of[c] = i;
            if (trained) table->trained[table->trained_count++] = (uint32_t)c;
        }
    }
    table->first[map->extent_count] = table->trained_count;
    return CAIRN_OK;
}

void chunk_table_close(struct chunk_table *table)
{
    free(table->extent_of);
    free(table->first);
    free(table->trained);
    shard_map_release(&table->map);
}

struct chunk_place chunk_table_place(const struct chunk_table *table, uint32_t trained)
{
    return shard_map_chunk(&table->map, table->trained[trained]);
}

struct tensor_chunks chunk_table_tensor(const struct chunk_table *table, uint32_t tensor)
{
    const struct shard_map *map = &table->map;
    size_t low = lower_bound(map->extents, map->extent_count, sizeof *map->extents,
                             offsetof(struct local_extent, tensor), tensor);
    struct tensor_chunks chunks = { .first_extent = low };
    for (; low < map->extent_count && map->extents[low].tensor == tensor; low++) {
        if (chunks.extent_count++ == 0) chunks.first = map->extents[low].first_chunk;
        chunks.count += map->extents[low].chunk_count;
    }
    return chunks;
}

/* ==== fold ==== */

/* Folds of a collector. Each fold adds the landed contributions of one chunk to the chunk's sum. */

/* Copies the fold's sources that lie in workers' memory into the slots' memory, from which they are
 * then folded. Runs under guard_run, because workers' memory may have missing pages. */
static void land_views(void *arg)
{
    struct fold *fold = arg;
    struct collector *collector = fold->collector;
    for (uint32_t i = 0; i < fold->source_count; i++) {
        const struct collector_slot *slot = &collector->slots[fold->slots[i]];
        if (slot->message == NULL || slot->path == BYTES_PATH_DEVICE) continue;
        void *memory = collector->callbacks->slot_memory(collector, fold->slots[i]);
        memcpy(memory, slot->view, slot->payload_bytes);
        fold->sources[i].data = memory;
    }
}

/* Adds the works of a fold. The host reads workers' memory where it lies; a device gets copies,
 * which it can always read. */
static bool describe(struct work_run *run, uint32_t item, uint32_t stage, struct works *works)
{
    struct fold *fold = (struct fold *)run;
    (void)item;
    if (stage == 0 && fold->viewed && !works->in_place)
        run->failed_at = guard_run(land_views, fold);
    return run->failed_at == NULL && fold->collector->callbacks->fold(fold, stage, works);
}

/* Tells the coordinator that the member's memory cannot be read. The coordinator then removes the
 * member, and so ends the round, which never ends here because a sum is wrong. */
static void member_unreadable(struct shard_job *job, uint64_t number)
{
    const struct shard_member *member = member_find(job, number);
    struct sentence why;
    if (member == NULL) return; // the member has left, so the round is void
    sentence_set(
        &why,
        "the shared memory of %s (rank %u) cannot be read by shard %s: its host has no page for it "
        "(out of memory, or at the limit of its control group); give the trainer more memory, or "
        "touch what cairn_alloc gave before pushing from it",
        member->name, member->rank, job->shard->name);
    log_error("job %s: %s", job->spec.name, why.text);
    Cairn__MemberFault fault = CAIRN__MEMBER_FAULT__INIT;
    fault.job = job->number;
    fault.member = number;
    fault.text = why.text;
    session_send(job->shard, CAIRN_MSG_MEMBER_FAULT, 0, &fault.base);
}

/* Notes that the round is spoiled, because the chunk's sum stays wrong. Also reports whose memory
 * had no page. */
static void spoil(const struct fold *fold)
{
    struct collector *collector = fold->collector;
    bool is_ours = true;
    collector->spoiled_round = step_round_seen(collector->step);
    for (uint32_t i = 0; i < fold->source_count; i++) {
        const struct collector_slot *slot = &collector->slots[fold->slots[i]];
        const uintptr_t from = (uintptr_t)slot->view, at = (uintptr_t)fold->run.failed_at;
        if (slot->message == NULL || at - from >= slot->payload_bytes) continue;
        is_ours = false;
        member_unreadable(collector->job, slot->member);
    }
    if (is_ours) collector->callbacks->no_page(collector);
}

void fold_drop(struct fold *fold)
{
    struct collector *collector = fold->collector;
    const struct step_event folded = { .kind = CAIRN_STEP_FOLDED, .chunk = fold->chunk };
    for (uint32_t i = 0; i < fold->source_count; i++) {
        collector->slots[fold->slots[i]].folding = false;
        slot_release(&collector->slots[fold->slots[i]]);
    }
    fold->next = collector->folds_free;
    collector->folds_free = fold;
    collector_step(collector, &folded);
    shard_job_settle(collector->job);
}

static void on_folded(struct work_run *run)
{
    struct fold *fold = (struct fold *)run;
    struct collector *collector = fold->collector;
    (void)shard_job_run_failed(collector->job, run); // after a failure no event is taken
    if (run->failed_at != NULL) spoil(fold);
    collector->callbacks->fold_done(fold);
    fold_drop(fold);
    if (collector->callbacks->fold_reported != NULL) collector->callbacks->fold_reported(collector);
    collector->callbacks->idle(collector);
}

void fold_submit(struct fold *fold)
{
    fold->collector->callbacks->busy(fold->collector);
    compute_submit(&fold->run);
}

/* Begins the fold for a FOLD of the core. */
static void fold_begin(struct collector *collector, const struct step_action *action)
{
    struct fold *fold = collector->folds_free;
    // there are enough: a chunk has at most one fold at a time, and a fold has at least one slot
    assert(fold != NULL);
    collector->folds_free = fold->next;
    *fold = (struct fold) {
        .run = { .compute = collector->callbacks->compute(collector, action->chunk),
                 .item_count = 1,
                 .describe = describe,
                 .done = on_folded },
        .collector = collector,
        .source_count = action->count,
        .chunk = action->chunk,
        .first = action->first,
        .likely_last = action->likely_last,
    };
    for (uint32_t i = 0; i < action->count; i++) {
        struct collector_slot *slot = &collector->slots[action->slots[i]];
        fold->sources[i] = (struct fold_source) { .data = slot->view, .dtype = slot->dtype };
        fold->pieces[i] = slot->piece;
        fold->slots[i] = action->slots[i];
        if (slot->message != NULL && slot->path != BYTES_PATH_DEVICE) fold->viewed = true;
        slot->folding = true;
    }
    fold->run.is_guarded = fold->viewed;
    if (collector->callbacks->fold_place(fold)) fold_submit(fold);
}

/* ==== step message ==== */

/* Messages from workers become events of a core, and the core's actions become headers of messages.
 * The core is that of the shard's own part, or a relay's. */

struct step_event step_event_of(const struct chunk_header *header)
{
    struct step_event event = {
        .member = header->member,
        .epoch = header->epoch,
        .round = header->round,
        .micro = header->micro,
    };
    switch (header->kind) {
    case CAIRN_CHUNK_PUSH:
        event.kind = CAIRN_STEP_CHUNK;
        event.request = header->request;
        event.is_small = header->payload_bytes <= CAIRN_CHUNK_SMALL;
        event.in_place = (header->value & CAIRN_CHUNK_IN_PLACE) != 0;
        break;
    case CAIRN_CHUNK_MICRO_END:
        event.kind = CAIRN_STEP_MICRO_END;
        event.sent = (uint32_t)header->value;
        break;
    default:
        assert(header->kind == CAIRN_CHUNK_COMMIT);
        event.kind = CAIRN_STEP_COMMIT;
        event.weight = header->value;
    }
    return event;
}

/* Returns the header of an answer. It has the numbers of the round. In an ACK or NAK it also has
 * the place of the chunk, for which the core has only a number. */
static struct chunk_header step_header_of(const struct step_action *action, uint8_t kind,
                                          const struct chunk_table *table)
{
    struct chunk_header header = {
        .kind = kind,
        .epoch = action->epoch,
        .round = action->round,
        .micro = action->micro,
        .request = action->request,
    };
    const bool of_chunk = kind == CAIRN_CHUNK_ACK || kind == CAIRN_CHUNK_NAK;
    if (of_chunk && action->chunk < table->trained_count) {
        const struct chunk_place place = chunk_table_place(table, action->chunk);
        header.tensor = place.tensor;
        header.first_leaf = place.first_leaf;
        header.leaf_count = (uint32_t)place.leaf_count;
    }
    return header;
}
