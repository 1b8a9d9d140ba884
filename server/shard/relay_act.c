/* The hands of a relay's cores, as act.c is those of the shard's own: an owner's core is told what
 * happened, and what it answers is done, in order. It is never called from inside its own actions. */
#include <assert.h>

#include "server/shard/relay.h"

/* ---- to workers, in the owner's name ---- */

static void send_to(struct cairn_relay_owner *owner, const struct cairn_step_action *action,
                    uint8_t kind, uint64_t value)
{
    const struct cairn_shard_job *job = owner->relay->job;
    struct cairn_member *member = cairn_member_find(job, action->member);
    if (member == NULL) return;
    struct cairn_chunk_header header = cairn_step_header_of(
        action, kind, &owner->map, owner->grad_chunks, owner->grad_chunk_count);
    header.value = value;
    if (kind == CAIRN_CHUNK_GRANT) {
        header.request = cairn_member_way(member);
        header.tensor = 1 + job->map.shard;
    }
    cairn_member_send_for(member, &header, owner->index);
}

static void refuse(struct cairn_relay_owner *owner, const struct cairn_step_action *action)
{
    struct cairn_shard_job *job = owner->relay->job;
    struct cairn_member *member = cairn_member_find(job, action->member);
    job->shard->stats.chunks_refused++;
    if (member != NULL) {
        cairn_log_limited(
            &member->refusals, CAIRN_LOG_WARN,
            "refused to relay chunk %u of shard %s of job %s from %s: %s; it is of epoch "
            "%llu, round %llu, the relay is at epoch %llu, round %llu",
            action->chunk, owner->name, job->spec.name, member->name,
            cairn_status_text((int)action->status), (unsigned long long)action->epoch,
            (unsigned long long)action->round, (unsigned long long)cairn_step_epoch(owner->step),
            (unsigned long long)cairn_step_round(owner->step));
    }
    send_to(owner, action, CAIRN_CHUNK_NAK, (uint64_t)action->status);
}

/* ---- all of them ---- */

static void act(struct cairn_relay_owner *owner, const struct cairn_step_action *action)
{
    switch (action->kind) {
    case CAIRN_STEP_GRANT: send_to(owner, action, CAIRN_CHUNK_GRANT, action->window); break;
    case CAIRN_STEP_ACK: send_to(owner, action, CAIRN_CHUNK_ACK, 0); break;
    case CAIRN_STEP_REFUSE:
        if (action->slot < owner->slot_count) cairn_relay_slot_release(&owner->slots[action->slot]);
        refuse(owner, action);
        break;
    case CAIRN_STEP_MICRO_ACK: send_to(owner, action, CAIRN_CHUNK_MICRO_ACK, 0); break;
    case CAIRN_STEP_RECEIVE: cairn_relay_receive(owner, action->slot, action->chunk); break;
    case CAIRN_STEP_DISCARD: cairn_relay_discard(owner->relay); break;
    case CAIRN_STEP_FOLD: cairn_relay_fold(owner, action); break;
    case CAIRN_STEP_FORWARD: cairn_relay_send_chunk(owner, action->chunk, action->micro); break;
    case CAIRN_STEP_FORWARD_END: cairn_relay_send_micro_end(owner, action->micro); break;
    case CAIRN_STEP_FORWARD_COMMIT: cairn_relay_send_commit(owner, action->weight); break;
    case CAIRN_STEP_ANSWER: break; // the shard's own part answers
    case CAIRN_STEP_FAULT: cairn_shard_job_fault(owner->relay->job, action->why); break;
    case CAIRN_STEP_ZERO: // of a core that updates only
    case CAIRN_STEP_REDUCE:
    case CAIRN_STEP_UPDATE:
    case CAIRN_STEP_REDUCED_REPORT:
    case CAIRN_STEP_PUBLISHED_REPORT: assert(false); break;
    }
}

static bool takes_events(const struct cairn_relay *relay)
{
    const struct cairn_shard_job *job = relay->job;
    return !relay->leaving && job->state != CAIRN_JOB_FAULTED && job->state != CAIRN_JOB_LEAVING &&
           !job->shard->closing;
}

static void step_once(struct cairn_relay_owner *owner, const struct cairn_step_event *event)
{
    struct cairn_relay *relay = owner->relay;
    assert(!owner->stepping);
    if (!takes_events(relay)) return;
    owner->stepping = true;
    relay->actions.count = 0;
    cairn_step_on_event(owner->step, event, &relay->actions);
    for (size_t i = 0; i < relay->actions.count && takes_events(relay); i++)
        act(owner, &relay->actions.list[i]);
    owner->stepping = false;
}

void cairn_relay_settle(struct cairn_relay_owner *owner)
{
    if (owner->settling) return;
    owner->settling = true;
    while (owner->landed != NULL) {
        struct cairn_relay_slot *slot = owner->landed;
        owner->landed = slot->next_landed;
        step_once(owner, &(struct cairn_step_event) {
                             .kind = CAIRN_STEP_LANDED,
                             .slot = (uint32_t)(slot - owner->slots),
                             .status = slot->status,
                         });
    }
    owner->settling = false;
}

void cairn_relay_step(struct cairn_relay_owner *owner, const struct cairn_step_event *event)
{
    step_once(owner, event);
    cairn_relay_settle(owner);
}
