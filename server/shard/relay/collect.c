/* Collects what workers contribute by way of a relay: the owners' collectors and their callbacks.
 * The owner judges again whatever is judged here.
 *
 * Payloads are read where they lie. A payload that did not come through memory of this host is
 * received into memory of its own, if the shard's budget has room; else the worker is asked for it
 * again (BUSY). */
#include <assert.h>
#include <stdlib.h>

#include "server/shard/relay/relay.h"

static void refuse(struct cairn_member *member, const struct cairn_chunk_header *header,
                   const struct cairn_relay_owner *owner, cairn_status status, const char *why)
{
    member->job->shard->stats.chunks_refused++;
    cairn_log_limited(
        &member->refusals, CAIRN_LOG_WARN, "refused to relay %s of job %s from %s: %s",
        cairn_chunk_kind_name(header->kind), member->job->spec.name, member->name, why);
    struct cairn_chunk_header echoed = *header;
    if (header->kind != CAIRN_CHUNK_PUSH) echoed.tensor = 0;
    cairn_member_refuse_for(member, &echoed, status,
                            owner != NULL ? owner->index : member->job->view->table.map.shard);
}

/* ---- contributions ---- */

/* Memory for a payload that does not lie in this host's shared memory. */
static bool take_memory(struct cairn_relay *relay, size_t bytes)
{
    struct cairn_shard_job *job = relay->job;
    struct cairn_shard *shard = job->shard;
    struct cairn_sentence why;
    uint64_t *kind = &job->memory.staging;
    if (cairn_shard_job_take(job, kind, bytes, "a payload to relay", &why) == CAIRN_OK) {
        relay->collect.memory = malloc(bytes);
        if (relay->collect.memory == NULL) cairn_shard_job_give(job, kind, bytes);
    }
    const uint64_t now_ms = uv_now(shard->loop);
    if (relay->collect.memory != NULL)
        relay->collect.roomless_since_ms = 0;
    else if (relay->collect.roomless_since_ms == 0)
        relay->collect.roomless_since_ms = now_ms;
    else if (now_ms - relay->collect.roomless_since_ms >= relay->sums.pool.stuck_max_ms)
        cairn_relay_give_up(relay,
                            "there is no memory for what workers push by another way than memory "
                            "of this host: raise memory.limit of shard %s",
                            shard->name);
    return relay->collect.memory != NULL;
}

static void give_memory(struct cairn_relay *relay, void **memory, size_t bytes)
{
    if (*memory == NULL) return;
    free(*memory);
    *memory = NULL;
    cairn_shard_job_give(relay->job, &relay->job->memory.staging, bytes);
}

static void on_push(struct cairn_relay *relay, struct cairn_member *member,
                    const struct cairn_chunk_header *header, struct cairn_fabric_message *message)
{
    struct cairn_sentence why;
    struct cairn_piece piece;
    uint32_t chunk = 0;
    struct cairn_relay_owner *owner = cairn_relay_owner_of_chunk(relay, header->tensor,
                                                                 header->first_leaf);
    cairn_status status = CAIRN_ERR_MALFORMED;
    if (owner == NULL)
        cairn_sentence_set(&why, "tensor %u, leaf %llu is of no shard that is relayed to",
                           header->tensor, (unsigned long long)header->first_leaf);
    else
        status = cairn_collector_judge(&owner->collector, member, header, &chunk, &piece, &why);
    if (status == CAIRN_OK &&
        !cairn_collector_reads_view(&owner->collector, header, chunk, message) &&
        !take_memory(relay, (size_t)header->payload_bytes))
        status = cairn_fail(&why, CAIRN_ERR_BUSY,
                            "it does not come through memory of this host, and there is no room");
    if (status != CAIRN_OK) {
        refuse(member, header, owner, status, why.text);
        cairn_fabric_drop(message);
        return;
    }
    cairn_collector_push(&owner->collector, header, chunk, &piece, message);
    // It was not received.
    give_memory(relay, &relay->collect.memory, (size_t)header->payload_bytes);
}

/* ---- ends ---- */

/* Whom of ours an end or a commit is meant for; NULL: nobody, and that was answered. */
static struct cairn_relay_owner *owner_of_end(struct cairn_member *member,
                                              const struct cairn_chunk_header *header)
{
    struct cairn_relay *relay = cairn_relay_of(member->job);
    struct cairn_relay_owner *owner = NULL;
    if (relay != NULL) owner = cairn_relay_owner_find(relay, header->tensor - 1);
    if (owner == NULL)
        refuse(member, header, NULL, CAIRN_ERR_STALE, "nothing is relayed to that shard any more");
    return owner;
}

/* How many chunks of the owner the member sends nothing of. */
static uint32_t count_absent(const struct cairn_relay_owner *owner, const uint32_t *tensors,
                             size_t count)
{
    uint64_t absent = 0;
    for (size_t i = 0; i < count; i++)
        absent += cairn_chunk_table_tensor(&owner->table, tensors[i]).count;
    return (uint32_t)absent; // at most table.trained_count
}

void cairn_relay_on_micro_end(struct cairn_member *member, const struct cairn_chunk_header *header,
                              const uint32_t *tensors, size_t count)
{
    struct cairn_relay_owner *owner = owner_of_end(member, header);
    if (owner == NULL) return;
    struct cairn_relay *relay = owner->relay;
    cairn_relay_busy(relay);
    struct cairn_step_event event = cairn_step_event_of(header);
    event.absent = count_absent(owner, tensors, count);
    cairn_collector_step(&owner->collector, &event);
    cairn_relay_idle(relay);
}

void cairn_relay_on_commit(struct cairn_member *member, const struct cairn_chunk_header *header)
{
    struct cairn_relay_owner *owner = owner_of_end(member, header);
    if (owner == NULL) return;
    struct cairn_relay *relay = owner->relay;
    cairn_relay_busy(relay);
    const struct cairn_step_event event = cairn_step_event_of(header);
    cairn_collector_step(&owner->collector, &event);
    cairn_relay_idle(relay);
}

static bool is_ours(const struct cairn_relay *relay, uint64_t member)
{
    for (uint32_t i = 0; i < relay->member_count; i++)
        if (relay->members[i] == member) return true;
    return false;
}

bool cairn_relay_on_push(struct cairn_member *member, const struct cairn_chunk_header *header,
                         struct cairn_fabric_message *message)
{
    struct cairn_relay *relay = cairn_relay_of(member->job);
    if (relay == NULL || relay->round == 0 || message == NULL || !is_ours(relay, member->number))
        return false;
    cairn_relay_busy(relay);
    on_push(relay, member, header, message);
    cairn_relay_idle(relay);
    return true;
}

/* ---- hands ---- */

struct cairn_relay_owner *cairn_relay_owner_of(const struct cairn_collector *collector)
{
    return (struct cairn_relay_owner *)((char *)collector -
                                        offsetof(struct cairn_relay_owner, collector));
}

static bool takes_events(const struct cairn_collector *collector)
{
    const struct cairn_shard_job *job = collector->job;
    return !cairn_relay_owner_of(collector)->relay->leaving && job->state != CAIRN_JOB_FAULTED &&
           job->state != CAIRN_JOB_LEAVING && !job->shard->closing;
}

static void act(struct cairn_collector *collector, const struct cairn_step_action *action)
{
    struct cairn_relay_owner *owner = cairn_relay_owner_of(collector);
    switch (action->kind) {
    case CAIRN_STEP_FORWARD: cairn_relay_forward_chunk(owner, action->chunk, action->micro); break;
    case CAIRN_STEP_FORWARD_END: cairn_relay_forward_micro_end(owner, action->micro); break;
    case CAIRN_STEP_FORWARD_COMMIT: cairn_relay_forward_commit(owner, action->weight); break;
    case CAIRN_STEP_ANSWER: break; // the shard's own part answers
    case CAIRN_STEP_ZERO:          // of a core that updates only
    case CAIRN_STEP_REDUCE:
    case CAIRN_STEP_UPDATE:
    case CAIRN_STEP_REDUCED_REPORT:
    case CAIRN_STEP_PUBLISHED_REPORT: assert(false); break;
    default: break; // the collector does it
    }
}

static void send_for_owner(const struct cairn_collector *collector, struct cairn_member *member,
                           struct cairn_chunk_header *header)
{
    if (header->kind == CAIRN_CHUNK_GRANT)
        header->tensor = 1 + cairn_relay_owner_of(collector)->relay->shard;
    cairn_member_send_for(member, header, cairn_relay_owner_of(collector)->index);
}

static cairn_status judge_piece(const struct cairn_collector *collector,
                                const struct cairn_member *member,
                                const struct cairn_chunk_header *header,
                                const struct cairn_chunk_place *place,
                                struct cairn_piece *piece_out, struct cairn_sentence *why)
{
    (void)member;
    if (header->tile != CAIRN_TILE_WHOLE || header->table_hash != CAIRN_TABLE_HASH_WHOLE)
        return cairn_fail(why, CAIRN_ERR_MISMATCH,
                          "tensor %s: workers that hold parts of tensors push to the owners",
                          collector->job->spec.tensors[header->tensor].name);
    *piece_out = (struct cairn_piece) { .count = place->elem_count };
    return CAIRN_OK;
}

static void *slot_memory(struct cairn_collector *collector, uint32_t slot)
{
    struct cairn_relay *relay = cairn_relay_owner_of(collector)->relay;
    void *memory = relay->collect.memory;
    (void)slot;
    relay->collect.memory = NULL;
    return memory;
}

static void slot_memory_back(struct cairn_slot *slot)
{
    give_memory(cairn_relay_owner_of(slot->collector)->relay, &slot->memory, slot->payload_bytes);
}

static void fold_told(struct cairn_collector *collector)
{
    cairn_relay_sums_advance(cairn_relay_owner_of(collector)->relay);
}

static void no_page(struct cairn_collector *collector)
{
    cairn_relay_give_up(cairn_relay_owner_of(collector)->relay,
                        "this host has no page for a sum: it is out of memory");
}

static void busy(struct cairn_collector *collector)
{
    cairn_relay_busy(cairn_relay_owner_of(collector)->relay);
}

static void idle(struct cairn_collector *collector)
{
    cairn_relay_idle(cairn_relay_owner_of(collector)->relay);
}

static struct cairn_compute *on_host(const struct cairn_collector *collector, uint32_t chunk)
{
    (void)chunk;
    return &collector->job->shard->host;
}

static const struct cairn_collector_hands for_owner = {
    .takes_events = takes_events,
    .act = act,
    .send = send_for_owner,
    .judge_piece = judge_piece,
    .slot_memory = slot_memory,
    .slot_memory_back = slot_memory_back,
    .compute = on_host,
    .fold_place = cairn_relay_fold_place,
    .fold = cairn_relay_fold,
    .fold_done = cairn_relay_fold_done,
    .fold_told = fold_told,
    .no_page = no_page,
    .busy = busy,
    .idle = idle,
};

cairn_status cairn_relay_collect(struct cairn_relay_owner *owner)
{
    struct cairn_relay *relay = owner->relay;
    const struct cairn_step_config config = {
        .chunk_count = owner->table.trained_count,
        .window = relay->job->spec.window,
        .member_max = relay->member_count,
        .folds_wanted = cairn_compute_items_wanted(&relay->job->shard->host),
        .forwards = true,
    };
    if (cairn_step_bytes(&config) == 0) return CAIRN_ERR_NO_MEMORY;
    return cairn_collector_open(&owner->collector, &(struct cairn_collector_options) {
                                                       .hands = &for_owner,
                                                       .job = relay->job,
                                                       .table = &owner->table,
                                                       .shard_name = owner->name,
                                                       .step = &config,
                                                       .actions = &relay->collect.actions,
                                                   });
}
