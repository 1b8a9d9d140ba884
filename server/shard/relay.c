/* The relay of a job. Messages of the coordinator make the relay and end it, and open its rounds or
 * make them void. */
#include "server/shard/relay.h"

#include <inttypes.h>
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/text.h"

#define SILENT_MAX_MS 15000 /* how long an owner may be silent before the relay is given up */

static void relay_sums_void(struct relay *relay);
static cairn_status relay_owner_open(struct relay *relay, struct relay_owner *owner,
                                     const Cairn__ShardInfo *info, struct sentence *why);
static cairn_status relay_sums_open(struct relay *relay, struct sentence *why);
static cairn_status relay_collect(struct relay_owner *owner);

/* ---- one in use ---- */

struct relay *job_relay(const struct shard_job *job)
{
    return job->relays != NULL && !job->relays->neighbours.is_leaving ? job->relays : NULL;
}

struct relay_owner *relay_owner_find(struct relay *relay, uint32_t index)
{
    return (struct relay_owner *)neighbours_find(&relay->neighbours, index);
}

uint32_t relay_rank(const struct relay *relay, uint64_t member)
{
    uint32_t i = 0;
    while (i < relay->member_count && relay->members[i] != member) i++;
    return i < relay->member_count ? i : UINT32_MAX;
}

/* Returns the owner of the chunk that begins with this leaf; NULL if the shard that owns the chunk
 * is not an owner of this relay. */
static struct relay_owner *relay_owner_of_chunk(struct relay *relay, uint32_t tensor,
                                                uint64_t first_leaf)
{
    const struct shard_job *job = relay->job;
    if (tensor >= job->spec.tensor_count || job->spec.tensors[tensor].kind != CAIRN_TRAINED)
        return NULL;
    const struct extent *extent = layout_find(relay->view->layout, tensor, first_leaf);
    return extent != NULL ? relay_owner_find(relay, extent->shard) : NULL;
}

/* ---- the end of one ---- */

static void relay_owner_close(struct relay_owner *owner)
{
    collector_close(&owner->collector);
    relay_forward_close(owner);
    neighbour_close(&owner->neighbour);
    free(owner->buffers.sums);
    chunk_table_close(&owner->table);
}

static void relay_sums_close(struct relay *relay)
{
    struct shard_job *job = relay->job;
    struct relay_sums *sums = &relay->sums;
    const uint32_t touched = sums->pool.touched;
    const uint32_t taken = touched > sums->reserved ? touched : sums->reserved;
    shard_job_give(job, &job->memory.staging, (uint64_t)taken * sums->buffer_bytes);
    // the budget has the bytes back already, for the next relay
    arena_release(job->shard, &sums->arena);
    free(sums->pool.buffers);
}

void relay_free(struct relay *relay)
{
    struct relay **at = &relay->job->relays;
    while (*at != relay) at = &(*at)->next;
    *at = relay->next;
    relay_fetch_close(relay);
    for (uint32_t i = 0; i < relay->owner_count; i++) {
        if (relay->owners[i].relay == NULL) continue; // the owner was not opened
        relay_owner_close(&relay->owners[i]);
    }
    relay_sums_close(relay);
    free(relay->owners);
    free(relay->members);
    shard_view_unref(relay->view);
    free(relay->collect.actions.list);
    free(relay);
}

static void leave(struct relay *relay)
{
    if (relay->neighbours.is_leaving) return;
    neighbours_busy(&relay->neighbours); // keeps the relay until this function ends
    relay->round = 0;
    for (uint32_t i = 0; i < relay->owner_count; i++) relay_forward_end(&relay->owners[i]);
    neighbours_end(&relay->neighbours);
    relay_sums_void(relay);
    for (uint32_t i = 0; i < relay->owner_count; i++) collector_leave(&relay->owners[i].collector);
    relay_fetch_leave(relay);
    neighbours_idle(&relay->neighbours);
}

void relay_leave(struct shard_job *job)
{
    for (struct relay *relay = job->relays, *next; relay != NULL; relay = next) {
        next = relay->next;
        leave(relay);
    }
}

static void free_relays(struct shard_job *job)
{
    while (job->relays != NULL) relay_free(job->relays);
}

/* ---- a new one ---- */

static cairn_status judge_set(const struct shard_job *job, const Cairn__RelaySet *message,
                              struct sentence *why)
{
    bool ok = message->relay != 0 && message->n_members >= 2 && message->n_owners >= 1 &&
              message->n_members <= CAIRN_SPEC_WORKERS_MAX &&
              message->n_owners <= job->view->layout->shard_count;
    for (size_t i = 0; ok && i < message->n_owners; i++) {
        ok = message->owners[i]->index < job->view->layout->shard_count &&
             (i == 0 || message->owners[i]->index > message->owners[i - 1]->index);
    }
    if (ok) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_MALFORMED, "a relay of %zu members to %zu of %u shards",
                     message->n_members, message->n_owners, job->view->layout->shard_count);
}

static cairn_status fill_relay(struct relay *relay, const Cairn__RelaySet *message,
                               struct sentence *why)
{
    relay->members = calloc(message->n_members, sizeof *relay->members);
    relay->owners = calloc(message->n_owners, sizeof *relay->owners);
    if (relay->members == NULL || relay->owners == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a relay");
    memcpy(relay->members, message->members, message->n_members * sizeof *relay->members);
    relay->member_count = (uint32_t)message->n_members;
    relay->owner_count = (uint32_t)message->n_owners;
    relay->neighbours = (struct neighbours) { .kind = &relay_owner_kind,
                                              .job = relay->job,
                                              .number = message->relay,
                                              .token = message->token,
                                              .first = &relay->owners[0].neighbour,
                                              .stride = sizeof *relay->owners,
                                              .count = relay->owner_count };
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; status == CAIRN_OK && i < relay->owner_count; i++)
        status = relay_owner_open(relay, &relay->owners[i], message->owners[i], why);
    if (status == CAIRN_OK) status = relay_sums_open(relay, why);
    return status == CAIRN_OK ? relay_fetch_open(relay, why) : status;
}

/* Begins the job's current epoch in the cores of all owners. */
static void begin_epoch(struct relay *relay)
{
    const uint64_t epoch = step_epoch(relay->job->collector.step);
    for (uint32_t i = 0; i < relay->owner_count; i++) {
        const enum step_event_kind kinds[] = { CAIRN_STEP_FENCE, CAIRN_STEP_RESOLVE };
        for (int k = 0; k < 2; k++)
            collector_step(&relay->owners[i].collector,
                           &(struct step_event) { .kind = kinds[k], .epoch = epoch });
    }
}

/* Replaces the job's relay; a message without members only ends it. After CAIRN_ERR_MALFORMED or
 * CAIRN_ERR_NO_MEMORY the job has no relay. */
static cairn_status set_relay(struct shard_job *job, const Cairn__RelaySet *message,
                              struct sentence *why)
{
    relay_leave(job);
    if (message->n_members == 0) return CAIRN_OK;
    CAIRN_TRY(judge_set(job, message, why));
    struct relay *relay = calloc(1, sizeof *relay);
    if (relay == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a relay");
    relay->job = job;
    relay->view = shard_view_ref(job->view);
    relay->shard = job->view->table.map.shard;
    relay->silent_max_ms = SILENT_MAX_MS;
    relay->sums.arena = CAIRN_ARENA_NONE;
    relay->next = job->relays;
    job->relays = relay;
    cairn_status status = fill_relay(relay, message, why);
    if (status != CAIRN_OK) {
        relay_free(relay);
        return status;
    }
    neighbours_begin(&relay->neighbours);
    begin_epoch(relay);
    log_info("job %s: relays %u workers of this host to %u shards", job->spec.name,
             relay->member_count, relay->owner_count);
    shard_wake(job->shard);
    return CAIRN_OK;
}

static void on_relay_set(struct shard_job *job, struct request asked, const void *message)
{
    struct sentence why;
    const cairn_status status = set_relay(job, message, &why);
    if (status != CAIRN_OK) log_error("job %s cannot be relayed: %s", job->spec.name, why.text);
    if (asked.number != 0) session_answer(job->shard, &asked, status, &why);
}

/* ---- rounds ---- */

/* Ends the round, which is void or resolved, for the machines that pass sums on. */
static void end_round(struct relay *relay)
{
    relay->round = 0;
    for (uint32_t i = 0; i < relay->owner_count; i++) relay_forward_end(&relay->owners[i]);
}

void relay_on_fence(struct shard_job *job, uint64_t epoch)
{
    struct relay *relay = job_relay(job);
    if (relay == NULL) return;
    neighbours_busy(&relay->neighbours);
    end_round(relay);
    for (uint32_t i = 0; i < relay->owner_count; i++) {
        collector_step(&relay->owners[i].collector,
                       &(struct step_event) { .kind = CAIRN_STEP_FENCE, .epoch = epoch });
    }
    relay_sums_void(relay);
    neighbours_idle(&relay->neighbours);
}

static void tell_all(struct relay *relay, const struct step_event *event)
{
    if (relay == NULL) return;
    neighbours_busy(&relay->neighbours);
    for (uint32_t i = 0; i < relay->owner_count; i++)
        collector_step(&relay->owners[i].collector, event);
    neighbours_idle(&relay->neighbours);
}

void relay_on_resolve(struct shard_job *job, uint64_t epoch)
{
    tell_all(job_relay(job), &(struct step_event) { .kind = CAIRN_STEP_RESOLVE, .epoch = epoch });
}

static void open_round(struct relay *relay, const Cairn__RoundOpen *message)
{
    neighbours_busy(&relay->neighbours);
    relay->round = message->round;
    for (uint32_t i = 0; i < relay->owner_count && !relay->neighbours.is_leaving; i++) {
        struct relay_owner *owner = &relay->owners[i];
        relay_forward_begin(owner, message->epoch, message->round);
        collector_step(&owner->collector, &(struct step_event) {
                                              .kind = CAIRN_STEP_OPEN,
                                              .epoch = message->epoch,
                                              .round = message->round,
                                              .members = relay->members,
                                              .member_count = relay->member_count,
                                          });
    }
    shard_wake(relay->job->shard);
    neighbours_idle(&relay->neighbours);
}

cairn_status relay_on_open(struct shard_job *job, const Cairn__RoundOpen *message)
{
    struct relay *relay = job_relay(job);
    if (relay != NULL) end_round(relay); // the previous round is resolved
    if (message->relay == 0) return CAIRN_OK;
    if (relay == NULL || relay->neighbours.number != message->relay) return CAIRN_ERR_PROTOCOL;
    open_round(relay, message);
    return CAIRN_OK;
}

void relay_on_peer(struct shard_member *member, enum step_event_kind kind)
{
    tell_all(job_relay(member->job),
             &(struct step_event) { .kind = kind, .member = member->number });
}

/* ---- what cannot go on ---- */

void relay_give_up(struct relay *relay, const char *format, ...)
{
    struct sentence why;
    Cairn__MemberFault fault = CAIRN__MEMBER_FAULT__INIT;
    va_list arguments;
    if (relay->given_up || relay->neighbours.is_leaving) return;
    relay->given_up = true;
    va_start(arguments, format);
    vsnprintf(why.text, sizeof why.text, format, arguments);
    va_end(arguments);
    log_error("job %s: the relay of this host is given up: %s", relay->job->spec.name, why.text);
    fault.job = relay->job->number;
    fault.member = relay->neighbours.number;
    fault.text = why.text;
    session_send(relay->job->shard, CAIRN_MSG_MEMBER_FAULT, 0, &fault.base);
}

/* ---- time ---- */

/* Gives the relay up if folds for the owner wait only for room, and there has been no room for a
 * long time. */
static void relay_sums_tick(struct relay_owner *owner, uint64_t now_ms)
{
    struct relay *relay = owner->relay;
    const bool may_receive = step_may_receive(owner->collector.step);
    if (buffer_pool_is_stuck(&relay->sums.pool, &owner->buffers, may_receive, now_ms))
        relay_give_up(relay,
                      "there is no room for sums to shard %s, and its workers push in orders "
                      "that are far apart: raise memory.limit of shard %s, give its host "
                      "more memory, or push in one order",
                      owner->neighbour.name, relay->job->shard->name);
}

/* Gives the relay up if the owner is silent for long. If the owner itself does not respond, the
 * coordinator notices this. If only this shard does not hear the owner, the path between the two
 * shards is broken, and the workers may have another path. */
static void judge_silence(struct relay_owner *owner, uint64_t now_ms)
{
    if (chunk_link_silent_ms(&owner->neighbour.link, now_ms) < owner->relay->silent_max_ms) return;
    relay_give_up(owner->relay, "shard %s does not answer shard %s", owner->neighbour.name,
                  owner->relay->job->shard->name);
}

static bool tick_relay(struct shard_job *job, uint64_t now_ms)
{
    struct relay *relay = job_relay(job);
    bool waits = false;
    if (relay == NULL) return false;
    relay_sums_advance(relay); // the shard's budget may have room again
    relay_fetch_serve(relay);  // and the cache may have a free place
    for (uint32_t i = 0; i < relay->owner_count; i++) {
        struct relay_owner *owner = &relay->owners[i];
        const bool awaits = neighbour_tick(&owner->neighbour, now_ms);
        judge_silence(owner, now_ms);
        relay_sums_tick(owner, now_ms);
        waits = waits || awaits || owner->neighbour.link.peer == NULL ||
                owner->buffers.waiting != NULL;
    }
    return waits;
}

const struct shard_module relay_module = {
    .messages = (const struct shard_message[]) { { CAIRN_MSG_RELAY_SET, .ask_job = on_relay_set },
                                                 { 0 } },
    .on = { [SHARD_JOB_STOPS] = relay_leave, [SHARD_JOB_FREED] = free_relays },
    .tick = tick_relay,
};

/* ==== owner ==== */

/* A relay's knowledge of an owner: the chunks of its part, the core that collects for it, and the
 * machine that sends to it. */

static cairn_status make_tables(struct relay_owner *owner)
{
    const struct shard_job *job = owner->relay->job;
    cairn_status status = shard_map_init(&owner->table.map, owner->relay->view->layout,
                                         owner->neighbour.index, job->spec.chunk_leaves);
    if (status == CAIRN_OK) status = chunk_table_number(&owner->table, &job->spec);
    if (status != CAIRN_OK) return CAIRN_ERR_NO_MEMORY;
    const size_t chunks = owner->table.trained_count;
    owner->buffers.chunk_count = owner->table.trained_count;
    owner->buffers.sums = malloc((chunks + 1) * sizeof *owner->buffers.sums);
    return owner->buffers.sums != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

static cairn_status relay_owner_open(struct relay *relay, struct relay_owner *owner,
                                     const Cairn__ShardInfo *info, struct sentence *why)
{
    owner->relay = relay;
    CAIRN_TRY(neighbour_open(&relay->neighbours, &owner->neighbour, info, why));
    cairn_status status = make_tables(owner);
    if (status == CAIRN_OK) status = relay_forward_open(owner);
    if (status == CAIRN_OK) status = relay_collect(owner);
    if (status == CAIRN_OK) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to relay to shard %s",
                     owner->neighbour.name);
}

/* ==== sums ==== */

/* The sums of a relay: memory for the buffers that buffer_pool.h gives out, and the folds that make
 * the sums on the compute threads. */

#define BUFFERS_WANTED_MIN 16 /* how many buffers the budget counts from the start */
#define BUFFERS_WANTED_MAX 256
#define STUCK_MAX_MS       2000 /* the relay is given up if it has no room for this long */

/* ---- buffers ---- */

float *relay_buffer_at(const struct relay *relay, uint32_t buffer)
{
    return (float *)(relay->sums.arena.base + (size_t)buffer * relay->sums.buffer_bytes);
}

static cairn_status count_another(struct relay *relay, struct sentence *why)
{
    struct shard_job *job = relay->job;
    struct relay_sums *sums = &relay->sums;
    uint64_t *kind = &job->memory.staging;
    const bool is_counted = sums->pool.touched < sums->reserved;
    cairn_status status = CAIRN_OK;
    if (!is_counted) status = shard_job_take(job, kind, sums->buffer_bytes, "a sum to relay", why);
    if (status != CAIRN_OK) return status;
    const uint64_t at = (uint64_t)sums->pool.touched * sums->buffer_bytes;
    if (arena_make_pages(&sums->arena, at, sums->buffer_bytes) == CAIRN_OK) return CAIRN_OK;
    if (!is_counted) shard_job_give(job, kind, sums->buffer_bytes);
    return fail_with(why, CAIRN_ERR_NO_MEMORY, "The host is out of memory.");
}

/* Takes memory for one more buffer, when the pool asks for one. Returns false if there is no
 * room. */
static bool touch_another(struct buffer_pool *pool)
{
    struct relay *relay = (struct relay *)((char *)pool - offsetof(struct relay, sums.pool));
    struct sentence why;
    if (count_another(relay, &why) == CAIRN_OK) return true;
    log_limited(
        &relay->sums.starving, CAIRN_LOG_WARN,
        "job %s: the relay waits for room: its workers push in orders that are far apart. %s",
        relay->job->spec.name, why.text);
    return false;
}

/* ---- folds ---- */

static struct relay_owner *relay_owner_of(const struct collector *collector)
{
    return (struct relay_owner *)((char *)collector - offsetof(struct relay_owner, collector));
}

static bool relay_fold(const struct fold *fold, uint32_t stage, struct works *works)
{
    const struct relay_owner *owner = relay_owner_of(fold->collector);
    const struct chunk_place place = chunk_table_place(&owner->table, fold->chunk);
    (void)stage;
    works_fold(works, relay_buffer_at(owner->relay, fold->claim.buffer), fold->sources,
               fold->source_count, fold->first, (size_t)place.elem_count);
    return false;
}

static void relay_fold_done(struct fold *fold)
{
    buffer_pool_return(&relay_owner_of(fold->collector)->relay->sums.pool, fold->claim.buffer);
}

/* Gives the fold a buffer for its sum. Returns false if the fold has to wait for a buffer. */
static bool relay_fold_place(struct fold *fold)
{
    struct relay_owner *owner = relay_owner_of(fold->collector);
    struct relay *relay = owner->relay;
    fold->claim = (struct buffer_claim) { .owner = &owner->buffers,
                                          .chunk = fold->chunk,
                                          .begins = fold->first };
    if (buffer_pool_claim(&relay->sums.pool, &fold->claim)) return true;
    shard_wake(relay->job->shard);
    return false;
}

/* Calls `what` for the fold of each claim in the list. */
static void for_folds(struct buffer_claim *claims, void (*what)(struct fold *fold))
{
    while (claims != NULL) {
        struct buffer_claim *claim = claims;
        claims = claim->next;
        what((struct fold *)((char *)claim - offsetof(struct fold, claim)));
    }
}

void relay_sums_advance(struct relay *relay)
{
    for_folds(buffer_pool_advance(&relay->sums.pool), fold_submit);
}

/* Drops the folds that wait for a buffer, and gives up all sums, because the round is void. */
static void relay_sums_void(struct relay *relay)
{
    for_folds(buffer_pool_void(&relay->sums.pool), fold_drop);
}

/* ---- open and close ---- */

static uint32_t clamp(uint64_t value, uint32_t low, uint32_t high)
{
    return value < low ? low : value > high ? high : (uint32_t)value;
}

static cairn_status open_pool(struct relay *relay, struct sentence *why)
{
    struct buffer_pool *pool = &relay->sums.pool;
    uint64_t chunks = 0;
    for (uint32_t i = 0; i < relay->owner_count; i++)
        chunks += relay->owners[i].buffers.chunk_count;
    if (chunks >= UINT32_MAX) return fail_with(why, CAIRN_ERR_NO_MEMORY, "too many chunks");
    *pool = (struct buffer_pool) {
        .buffers = calloc((size_t)chunks + 1, sizeof *pool->buffers),
        .count = (uint32_t)chunks,
        .wanted = clamp((uint64_t)2 * relay->job->spec.window * relay->owner_count,
                        BUFFERS_WANTED_MIN, BUFFERS_WANTED_MAX),
        .stuck_max_ms = STUCK_MAX_MS,
        .touch = touch_another,
    };
    if (pool->buffers == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the folds of a relay");
    for (uint32_t i = 0; i < relay->owner_count; i++)
        buffer_pool_add(pool, &relay->owners[i].buffers);
    return CAIRN_OK;
}

static cairn_status relay_sums_open(struct relay *relay, struct sentence *why)
{
    struct shard_job *job = relay->job;
    struct relay_sums *sums = &relay->sums;
    CAIRN_TRY(open_pool(relay, why));
    sums->buffer_bytes = (size_t)(job->spec.chunk_leaves * (uint64_t)CAIRN_LEAF_ELEMS *
                                  sizeof(float));
    const uint64_t chunks = sums->pool.count;
    const uint32_t reserved = clamp(chunks, 0, BUFFERS_WANTED_MIN);
    cairn_status status = arena_open_shared(home_host(), "cairn-relay", chunks * sums->buffer_bytes,
                                            &sums->arena, why);
    if (status == CAIRN_OK)
        status = shard_job_take(job, &job->memory.staging, (uint64_t)reserved * sums->buffer_bytes,
                                "a relay", why);
    if (status != CAIRN_OK) return status;
    sums->reserved = reserved;
    // if this fails, owners get copies of the sums
    (void)arena_share(&sums->arena, job->shard->fabric, NULL);
    return CAIRN_OK;
}

/* ==== collect ==== */

/* Collects the contributions that workers send through a relay, with a collector and its callbacks
 * for each owner. Everything that is judged here is judged again by the owner.
 *
 * A payload that lies in shared memory of this host is read there. For any other payload separate
 * memory is taken, if the shard's budget has room; otherwise the worker is told to send the payload
 * again (BUSY). */

static void refuse_fetch_or_push(struct shard_member *member, const struct chunk_header *header,
                                 const struct relay_owner *owner, cairn_status status,
                                 const char *why)
{
    member->job->shard->stats.chunks_refused++;
    log_limited(&member->refusals, CAIRN_LOG_WARN, "refused to relay %s of job %s from %s: %s",
                chunk_kind_name(header->kind), member->job->spec.name, member->name, why);
    struct chunk_header echoed = *header;
    if (header->kind != CAIRN_CHUNK_PUSH) echoed.tensor = 0;
    member_refuse_for(member, &echoed, status,
                      owner != NULL ? owner->neighbour.index : member->job->view->table.map.shard);
}

/* ---- contributions ---- */

/* Takes memory for a payload that does not lie in this host's shared memory. */
static bool take_memory(struct relay *relay, size_t bytes)
{
    struct shard_job *job = relay->job;
    struct shard_daemon *shard = job->shard;
    struct sentence why;
    relay->collect.memory = counted_malloc(job, &job->memory.staging, bytes, "a payload to relay",
                                           &why);
    const uint64_t now_ms = uv_now(shard->loop);
    if (relay->collect.memory != NULL)
        relay->collect.roomless_since_ms = 0;
    else if (relay->collect.roomless_since_ms == 0)
        relay->collect.roomless_since_ms = now_ms;
    else if (now_ms - relay->collect.roomless_since_ms >= relay->sums.pool.stuck_max_ms)
        relay_give_up(relay,
                      "there is no memory for what workers push other than through this host's "
                      "memory: raise memory.limit of shard %s",
                      shard->name);
    return relay->collect.memory != NULL;
}

static void give_memory(struct relay *relay, void **memory, size_t bytes)
{
    counted_free(relay->job, &relay->job->memory.staging, *memory, bytes);
    *memory = NULL;
}

static void on_push(struct relay *relay, struct shard_member *member,
                    const struct chunk_header *header, struct fabric_message *message)
{
    struct sentence why;
    struct chunk_piece piece;
    uint32_t chunk = 0;
    struct relay_owner *owner = relay_owner_of_chunk(relay, header->tensor, header->first_leaf);
    cairn_status status = CAIRN_ERR_MALFORMED;
    if (owner == NULL)
        sentence_set(&why, "tensor %u, leaf %" PRIu64 ": no shard that is relayed to owns it",
                     header->tensor, header->first_leaf);
    else
        status = collector_judge(&owner->collector, member, header, &chunk, &piece, &why);
    if (status == CAIRN_OK && !collector_reads_view(&owner->collector, header, chunk, message) &&
        !take_memory(relay, (size_t)header->payload_bytes))
        status = fail_with(&why, CAIRN_ERR_BUSY,
                           "it does not come through memory of this host, and there is no room");
    if (status != CAIRN_OK) {
        refuse_fetch_or_push(member, header, owner, status, why.text);
        fabric_drop(message);
        return;
    }
    collector_push(&owner->collector, header, chunk, &piece, message);
    // Gives the memory back if the payload was not received into it.
    give_memory(relay, &relay->collect.memory, (size_t)header->payload_bytes);
}

/* ---- ends ---- */

/* Returns the owner for which the end of a micro-batch or a commit is meant. If that shard is not
 * an owner of this relay, refuses the message and returns NULL. */
static struct relay_owner *owner_of_end(struct shard_member *member,
                                        const struct chunk_header *header)
{
    struct relay *relay = job_relay(member->job);
    struct relay_owner *owner = NULL;
    if (relay != NULL) owner = relay_owner_find(relay, header->tensor - 1);
    if (owner == NULL)
        refuse_fetch_or_push(member, header, NULL, CAIRN_ERR_STALE,
                             "nothing is relayed to that shard any more");
    return owner;
}

/* Returns how many chunks of the owner belong to these tensors, for which the member sends
 * nothing. */
static uint32_t count_absent(const struct relay_owner *owner, const uint32_t *tensors, size_t count)
{
    uint64_t absent = 0;
    for (size_t i = 0; i < count; i++)
        absent += chunk_table_tensor(&owner->table, tensors[i]).count;
    return (uint32_t)absent; // at most table.trained_count
}

void relay_on_end(struct shard_member *member, const struct chunk_header *header,
                  const uint32_t *tensors, size_t count)
{
    struct relay_owner *owner = owner_of_end(member, header);
    if (owner == NULL) return;
    struct relay *relay = owner->relay;
    neighbours_busy(&relay->neighbours);
    struct step_event event = step_event_of(header);
    event.absent = count_absent(owner, tensors, count);
    collector_step(&owner->collector, &event);
    neighbours_idle(&relay->neighbours);
}

bool relay_on_push(struct shard_member *member, const struct chunk_header *header,
                   struct fabric_message *message)
{
    struct relay *relay = job_relay(member->job);
    if (relay == NULL || relay->round == 0 || message == NULL ||
        relay_rank(relay, member->number) == UINT32_MAX)
        return false;
    neighbours_busy(&relay->neighbours);
    on_push(relay, member, header, message);
    neighbours_idle(&relay->neighbours);
    return true;
}

/* ---- callbacks ---- */

static bool takes_events(const struct collector *collector)
{
    const struct shard_job *job = collector->job;
    return !relay_owner_of(collector)->relay->neighbours.is_leaving &&
           job->state != CAIRN_JOB_FAULTED && job->state != CAIRN_JOB_LEAVING &&
           !job->shard->closing;
}

static void do_owner_action(struct collector *collector, const struct step_action *action)
{
    struct relay_owner *owner = relay_owner_of(collector);
    switch (action->kind) {
    case CAIRN_STEP_FORWARD: relay_forward_chunk(owner, action->chunk, action->micro); break;
    case CAIRN_STEP_FORWARD_END: relay_forward_micro_end(owner, action->micro); break;
    case CAIRN_STEP_FORWARD_COMMIT: relay_forward_commit(owner, action->weight); break;
    case CAIRN_STEP_ANSWER: break; // the shard's own part answers
    case CAIRN_STEP_ZERO:          // only the core of an own part has these actions
    case CAIRN_STEP_REDUCE:
    case CAIRN_STEP_UPDATE:
    case CAIRN_STEP_REDUCED_REPORT:
    case CAIRN_STEP_PUBLISHED_REPORT: assert(false); break;
    default: break; // the collector handles all other actions
    }
}

static void send_for_owner(const struct collector *collector, struct shard_member *member,
                           struct chunk_header *header)
{
    if (header->kind == CAIRN_CHUNK_GRANT)
        header->tensor = 1 + relay_owner_of(collector)->relay->shard;
    member_send_for(member, header, relay_owner_of(collector)->neighbour.index);
}

static cairn_status judge_piece(const struct collector *collector,
                                const struct shard_member *member,
                                const struct chunk_header *header, const struct chunk_place *place,
                                struct chunk_piece *piece_out, struct sentence *why)
{
    (void)member;
    if (header->tile != CAIRN_TILE_WHOLE || header->table_hash != CAIRN_TABLE_HASH_WHOLE)
        return fail_with(why, CAIRN_ERR_MISMATCH,
                         "tensor %s: workers that hold parts of tensors push to the owners",
                         collector->job->spec.tensors[header->tensor].name);
    *piece_out = (struct chunk_piece) { .count = place->elem_count };
    return CAIRN_OK;
}

static void *slot_memory(struct collector *collector, uint32_t slot)
{
    struct relay *relay = relay_owner_of(collector)->relay;
    void *memory = relay->collect.memory;
    (void)slot;
    relay->collect.memory = NULL;
    return memory;
}

static void slot_memory_back(struct collector_slot *slot)
{
    give_memory(relay_owner_of(slot->collector)->relay, &slot->memory, slot->payload_bytes);
}

static void fold_reported(struct collector *collector)
{
    relay_sums_advance(relay_owner_of(collector)->relay);
}

static void no_page(struct collector *collector)
{
    relay_give_up(relay_owner_of(collector)->relay,
                  "this host has no page for a sum: it is out of memory");
}

static void busy(struct collector *collector)
{
    neighbours_busy(&relay_owner_of(collector)->relay->neighbours);
}

static void idle(struct collector *collector)
{
    neighbours_idle(&relay_owner_of(collector)->relay->neighbours);
}

static struct compute *on_host(const struct collector *collector, uint32_t chunk)
{
    (void)chunk;
    return &collector->job->shard->host;
}

static const struct collector_callbacks for_owner = {
    .takes_events = takes_events,
    .act = do_owner_action,
    .send = send_for_owner,
    .judge_piece = judge_piece,
    .slot_memory = slot_memory,
    .slot_memory_back = slot_memory_back,
    .compute = on_host,
    .fold_place = relay_fold_place,
    .fold = relay_fold,
    .fold_done = relay_fold_done,
    .fold_reported = fold_reported,
    .no_page = no_page,
    .busy = busy,
    .idle = idle,
};

/* Opens the collector for the owner. CAIRN_ERR_NO_MEMORY. Later callers that pass an event to the
 * collector must keep the relay busy meanwhile. */
static cairn_status relay_collect(struct relay_owner *owner)
{
    struct relay *relay = owner->relay;
    const struct step_config config = {
        .chunk_count = owner->table.trained_count,
        .window = relay->job->spec.window,
        .member_max = relay->member_count,
        .folds_wanted = compute_items_wanted(&relay->job->shard->host),
        .forwards = true,
    };
    if (step_bytes(&config) == 0) return CAIRN_ERR_NO_MEMORY;
    return collector_open(&owner->collector, &(struct collector_options) {
                                                 .callbacks = &for_owner,
                                                 .job = relay->job,
                                                 .table = &owner->table,
                                                 .shard_name = owner->neighbour.name,
                                                 .step = &config,
                                                 .actions = &relay->collect.actions,
                                             });
}
