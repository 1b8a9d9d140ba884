/* The relay of a job as a whole: the coordinator's word makes and ends it, and opens and voids its
 * rounds. */
#include "server/shard/relay/relay.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/lower_bound.h"
#include "proto/link/asker.h"

#define TICK_MS       20
#define SILENT_MAX_MS 15000 /* without a word from an owner */

/* ---- one in use ---- */

struct cairn_relay *cairn_relay_of(const struct cairn_shard_job *job)
{
    return job->relays != NULL && !job->relays->leaving ? job->relays : NULL;
}

struct cairn_relay_owner *cairn_relay_owner_find(struct cairn_relay *relay, uint32_t index)
{
    const size_t low = cairn_lower_bound(relay->owners, relay->owner_count, sizeof *relay->owners,
                                         offsetof(struct cairn_relay_owner, index), index);
    return low < relay->owner_count && relay->owners[low].index == index ? &relay->owners[low]
                                                                         : NULL;
}

struct cairn_relay_owner *cairn_relay_owner_of_chunk(struct cairn_relay *relay, uint32_t tensor,
                                                     uint64_t first_leaf)
{
    const struct cairn_shard_job *job = relay->job;
    if (tensor >= job->spec.tensor_count || job->spec.tensors[tensor].kind != CAIRN_TRAINED)
        return NULL;
    const struct cairn_extent *extent = cairn_layout_find(relay->view->layout, tensor, first_leaf);
    return extent != NULL ? cairn_relay_owner_find(relay, extent->shard) : NULL;
}

/* ---- the end of one ---- */

static void relay_free(struct cairn_relay *relay)
{
    struct cairn_relay **at = &relay->job->relays;
    while (*at != relay) at = &(*at)->next;
    *at = relay->next;
    cairn_relay_fetch_close(relay);
    for (uint32_t i = 0; i < relay->owner_count; i++) {
        if (relay->owners[i].relay == NULL) continue; // it was not opened
        cairn_relay_link_close(&relay->owners[i]);
        cairn_relay_owner_close(&relay->owners[i]);
    }
    cairn_relay_sums_close(relay);
    free(relay->owners);
    free(relay->members);
    cairn_shard_view_unref(relay->view);
    free(relay->collect.actions.list);
    free(relay);
}

void cairn_relay_busy(struct cairn_relay *relay)
{
    relay->busy++;
    cairn_shard_job_busy(relay->job);
}

void cairn_relay_idle(struct cairn_relay *relay)
{
    struct cairn_shard_job *job = relay->job;
    assert(relay->busy > 0);
    relay->busy--;
    if (relay->busy == 0 && relay->leaving && !job->shard->closing) relay_free(relay);
    cairn_shard_job_idle(job);
}

static void leave(struct cairn_relay *relay)
{
    if (relay->leaving) return;
    cairn_relay_busy(relay); // not freed before we are through
    relay->leaving = true;
    relay->round = 0;
    for (uint32_t i = 0; i < relay->owner_count; i++) {
        struct cairn_relay_owner *owner = &relay->owners[i];
        cairn_relay_forward_end(owner);
        cairn_relay_link_close(owner);
    }
    cairn_relay_sums_void(relay);
    for (uint32_t i = 0; i < relay->owner_count; i++)
        cairn_collector_leave(&relay->owners[i].collector);
    cairn_relay_fetch_close(relay);
    cairn_relay_idle(relay);
}

void cairn_relay_leave(struct cairn_shard_job *job)
{
    for (struct cairn_relay *relay = job->relays, *next; relay != NULL; relay = next) {
        next = relay->next;
        leave(relay);
    }
}

void cairn_relay_free_all(struct cairn_shard_job *job)
{
    while (job->relays != NULL) relay_free(job->relays);
}

/* ---- a new one ---- */

static cairn_status judge_set(const struct cairn_shard_job *job, const Cairn__RelaySet *message,
                              struct cairn_sentence *why)
{
    bool ok = message->relay != 0 && message->n_members >= 2 && message->n_owners >= 1 &&
              message->n_members <= CAIRN_SPEC_WORKERS_MAX &&
              message->n_owners <= job->view->layout->shard_count;
    for (size_t i = 0; ok && i < message->n_owners; i++) {
        ok = message->owners[i]->index < job->view->layout->shard_count &&
             (i == 0 || message->owners[i]->index > message->owners[i - 1]->index);
    }
    if (ok) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_MALFORMED, "a relay of %zu members to %zu of %u shards",
                      message->n_members, message->n_owners, job->view->layout->shard_count);
}

static cairn_status fill(struct cairn_relay *relay, const Cairn__RelaySet *message,
                         struct cairn_sentence *why)
{
    relay->members = calloc(message->n_members, sizeof *relay->members);
    relay->owners = calloc(message->n_owners, sizeof *relay->owners);
    if (relay->members == NULL || relay->owners == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a relay");
    memcpy(relay->members, message->members, message->n_members * sizeof *relay->members);
    relay->member_count = (uint32_t)message->n_members;
    relay->owner_count = (uint32_t)message->n_owners;
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; status == CAIRN_OK && i < relay->owner_count; i++)
        status = cairn_relay_owner_open(relay, &relay->owners[i], message->owners[i], why);
    if (status == CAIRN_OK) status = cairn_relay_sums_open(relay, why);
    return status == CAIRN_OK ? cairn_relay_fetch_open(relay, why) : status;
}

/* The cores begin in the epoch at hand. */
static void begin_epoch(struct cairn_relay *relay)
{
    const uint64_t epoch = cairn_step_epoch(relay->job->collector.step);
    for (uint32_t i = 0; i < relay->owner_count; i++) {
        const enum cairn_step_event_kind kinds[] = { CAIRN_STEP_FENCE, CAIRN_STEP_RESOLVE };
        for (int k = 0; k < 2; k++)
            cairn_collector_step(&relay->owners[i].collector,
                                 &(struct cairn_step_event) { .kind = kinds[k], .epoch = epoch });
    }
}

cairn_status cairn_relay_set(struct cairn_shard_job *job, const Cairn__RelaySet *message,
                             struct cairn_sentence *why)
{
    cairn_relay_leave(job);
    if (message->n_members == 0) return CAIRN_OK;
    cairn_status status = judge_set(job, message, why);
    if (status != CAIRN_OK) return status;
    struct cairn_relay *relay = calloc(1, sizeof *relay);
    if (relay == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a relay");
    relay->job = job;
    relay->view = cairn_shard_view_ref(job->view);
    relay->shard = job->view->table.map.shard;
    relay->number = message->relay;
    relay->token = message->token;
    relay->silent_max_ms = SILENT_MAX_MS;
    relay->sums.arena = CAIRN_ARENA_NONE;
    relay->next = job->relays;
    job->relays = relay;
    status = fill(relay, message, why);
    if (status != CAIRN_OK) {
        relay_free(relay);
        return status;
    }
    begin_epoch(relay);
    cairn_log_info("job %s: relays %u workers of this host to %u shards", job->spec.name,
                   relay->member_count, relay->owner_count);
    cairn_relay_wake(job->shard);
    return CAIRN_OK;
}

/* ---- rounds ---- */

/* The round is over for the machines that send: void, or resolved. */
static void end_round(struct cairn_relay *relay)
{
    relay->round = 0;
    for (uint32_t i = 0; i < relay->owner_count; i++) cairn_relay_forward_end(&relay->owners[i]);
}

void cairn_relay_on_fence(struct cairn_shard_job *job, uint64_t epoch)
{
    struct cairn_relay *relay = cairn_relay_of(job);
    if (relay == NULL) return;
    cairn_relay_busy(relay);
    end_round(relay);
    for (uint32_t i = 0; i < relay->owner_count; i++) {
        cairn_collector_step(
            &relay->owners[i].collector,
            &(struct cairn_step_event) { .kind = CAIRN_STEP_FENCE, .epoch = epoch });
    }
    cairn_relay_sums_void(relay);
    cairn_relay_idle(relay);
}

static void tell_all(struct cairn_relay *relay, const struct cairn_step_event *event)
{
    if (relay == NULL) return;
    cairn_relay_busy(relay);
    for (uint32_t i = 0; i < relay->owner_count; i++)
        cairn_collector_step(&relay->owners[i].collector, event);
    cairn_relay_idle(relay);
}

void cairn_relay_on_resolve(struct cairn_shard_job *job, uint64_t epoch)
{
    tell_all(cairn_relay_of(job),
             &(struct cairn_step_event) { .kind = CAIRN_STEP_RESOLVE, .epoch = epoch });
}

static void open_round(struct cairn_relay *relay, const Cairn__RoundOpen *message)
{
    cairn_relay_busy(relay);
    relay->round = message->round;
    for (uint32_t i = 0; i < relay->owner_count && !relay->leaving; i++) {
        struct cairn_relay_owner *owner = &relay->owners[i];
        cairn_relay_forward_begin(owner, message->epoch, message->round);
        cairn_collector_step(&owner->collector, &(struct cairn_step_event) {
                                                    .kind = CAIRN_STEP_OPEN,
                                                    .epoch = message->epoch,
                                                    .round = message->round,
                                                    .members = relay->members,
                                                    .member_count = relay->member_count,
                                                });
    }
    cairn_relay_wake(relay->job->shard);
    cairn_relay_idle(relay);
}

cairn_status cairn_relay_on_open(struct cairn_shard_job *job, const Cairn__RoundOpen *message)
{
    struct cairn_relay *relay = cairn_relay_of(job);
    if (relay != NULL) end_round(relay); // the one before is resolved
    if (message->relay == 0) return CAIRN_OK;
    if (relay == NULL || relay->number != message->relay) return CAIRN_ERR_PROTOCOL;
    open_round(relay, message);
    return CAIRN_OK;
}

void cairn_relay_on_peer(struct cairn_member *member, enum cairn_step_event_kind kind)
{
    tell_all(cairn_relay_of(member->job),
             &(struct cairn_step_event) { .kind = kind, .member = member->number });
}

/* ---- from owners ---- */

static struct cairn_relay *find(struct cairn_shard *shard, const struct cairn_chunk_header *header)
{
    struct cairn_shard_job *job = cairn_shard_job_find(shard, header->job);
    struct cairn_relay *relay = job != NULL && job->state != CAIRN_JOB_FAULTED ? cairn_relay_of(job)
                                                                               : NULL;
    const bool ours = relay != NULL && relay->number == header->member &&
                      relay->token == header->token;
    return ours ? relay : NULL;
}

/* True for a message that only a shard sends, not a worker. A HELLO that we send to ourselves has
 * value 1. */
static bool of_owner(const struct cairn_chunk_header *header)
{
    switch (header->kind) {
    case CAIRN_CHUNK_GRANT:
    case CAIRN_CHUNK_ACK:
    case CAIRN_CHUNK_NAK:
    case CAIRN_CHUNK_MICRO_ACK:
    case CAIRN_CHUNK_DATA: return true;
    case CAIRN_CHUNK_HELLO: return header->value == 0;
    default: return false;
    }
}

static void take(struct cairn_relay_owner *owner, const struct cairn_chunk_header *header,
                 struct cairn_fabric_message *message)
{
    const bool of_fetch = header->kind == CAIRN_CHUNK_DATA ||
                          (header->request & CAIRN_REQUEST_OF_ASKER) != 0;
    if (!cairn_chunk_link_heard(&owner->link)) {
        // what it says is of a connection that is lost
    } else if (header->kind == CAIRN_CHUNK_HELLO) {
        cairn_relay_link_on_hello(owner, header);
    } else if (of_fetch && header->kind != CAIRN_CHUNK_GRANT) {
        cairn_relay_fetch_on_answer(owner, header, message);
        return;
    } else {
        cairn_relay_forward_on_answer(owner, header);
    }
    cairn_fabric_drop(message);
}

bool cairn_relay_on_message(struct cairn_shard *shard, const struct cairn_chunk_header *header,
                            struct cairn_fabric_message *message)
{
    struct cairn_relay *relay = of_owner(header) ? find(shard, header) : NULL;
    if (relay == NULL) return false;
    struct cairn_relay_owner *owner = cairn_relay_owner_find(relay, header->tile);
    cairn_relay_busy(relay);
    if (owner != NULL)
        take(owner, header, message);
    else
        cairn_fabric_drop(message);
    cairn_relay_idle(relay);
    return true;
}

/* ---- what cannot go on ---- */

void cairn_relay_give_up(struct cairn_relay *relay, const char *format, ...)
{
    struct cairn_sentence why;
    Cairn__MemberFault fault = CAIRN__MEMBER_FAULT__INIT;
    va_list arguments;
    if (relay->given_up || relay->leaving) return;
    relay->given_up = true;
    va_start(arguments, format);
    vsnprintf(why.text, sizeof why.text, format, arguments);
    va_end(arguments);
    cairn_log_error("job %s: the relay of this host is given up: %s", relay->job->spec.name,
                    why.text);
    fault.job = relay->job->number;
    fault.member = relay->number;
    fault.text = why.text;
    cairn_session_send(relay->job->shard, CAIRN_MSG_MEMBER_FAULT, 0, &fault.base);
}

/* ---- time ---- */

/* True if there is something to wait for. */
static bool tick_relay(struct cairn_relay *relay, uint64_t now_ms)
{
    bool waits = false;
    cairn_relay_sums_advance(relay); // the shard's budget may have room again
    for (uint32_t i = 0; i < relay->owner_count; i++) {
        struct cairn_relay_owner *owner = &relay->owners[i];
        cairn_relay_link_tick(owner, now_ms);
        cairn_relay_sums_tick(owner, now_ms);
        waits = waits || owner->link.peer == NULL || cairn_relay_link_waits(owner) ||
                owner->buffers.waiting != NULL;
    }
    return waits;
}

static void on_tick(uv_timer_t *timer)
{
    const struct cairn_shard *shard = timer->data;
    bool waits = false;
    for (struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next) {
        struct cairn_relay *relay = cairn_relay_of(job);
        if (relay != NULL && tick_relay(relay, uv_now(shard->loop))) waits = true;
    }
    if (!waits) uv_timer_stop(timer);
}

void cairn_relay_wake(struct cairn_shard *shard)
{
    if (shard->closing || uv_is_active((uv_handle_t *)&shard->relay_timer)) return;
    uv_timer_start(&shard->relay_timer, on_tick, TICK_MS, TICK_MS);
}
