/* The core's hands: tells it what happened and does what it answers, in order.
 *
 * The core is never called from inside its own actions: what an action brings about at once (a receive
 * that fails, a send that cuts a connection) is noted, and told when all actions are done. */
#include <assert.h>

#include "server/shard/shard.h"

/* ---- to workers ---- */

static void send_to(struct cairn_shard_job *job, const struct cairn_step_action *action,
                    uint8_t kind, uint64_t value)
{
    struct cairn_member *member = cairn_member_find(job, action->member);
    if (member == NULL) return;
    struct cairn_chunk_header header = cairn_step_header_of(
        action, kind, &job->map, job->grad_chunks, job->grad_chunk_count);
    header.value = value;
    if (kind == CAIRN_CHUNK_GRANT) header.request = cairn_member_way(member);
    cairn_member_send(member, &header);
}

static void refuse(struct cairn_shard_job *job, const struct cairn_step_action *action)
{
    struct cairn_member *member = cairn_member_find(job, action->member);
    job->shard->stats.chunks_refused++;
    if (member != NULL) { // a late one is what an end of an epoch leaves on its way
        cairn_log_limited(
            &member->refusals, action->status == CAIRN_ERR_STALE ? CAIRN_LOG_INFO : CAIRN_LOG_WARN,
            "refused chunk %u of job %s from %s: %s; it is of epoch %llu, round %llu, "
            "shard %s is at epoch %llu, round %llu",
            action->chunk, job->spec.name, member->name, cairn_status_text((int)action->status),
            (unsigned long long)action->epoch, (unsigned long long)action->round, job->shard->name,
            (unsigned long long)cairn_step_epoch(job->step),
            (unsigned long long)cairn_step_round(job->step));
    }
    send_to(job, action, CAIRN_CHUNK_NAK, (uint64_t)action->status);
}

/* ---- to the coordinator ---- */

static void report_reduced(struct cairn_shard_job *job, const struct cairn_step_action *action)
{
    if (action->round == job->spoiled_round) return; // it is abandoned: cairn_member_unreadable
    uint8_t squares[CAIRN_EXACT_BYTES], nonfinite[8], weight[8];
    cairn_exact_encode(&action->sums.sum_squares, squares);
    for (int i = 0; i < 8; i++) {
        nonfinite[i] = (uint8_t)(action->sums.nonfinite >> 8 * i);
        weight[i] = (uint8_t)(action->sums.weight >> 8 * i);
    }
    Cairn__ReducedValue values[3];
    Cairn__ReducedValue *list[3] = { &values[0], &values[1], &values[2] };
    for (int i = 0; i < 3; i++) {
        cairn__reduced_value__init(&values[i]);
        values[i].key = values[i].op = (uint32_t)i + 1;
    }
    values[0].value = (ProtobufCBinaryData) { sizeof squares, squares };
    values[1].value = (ProtobufCBinaryData) { sizeof nonfinite, nonfinite };
    values[2].value = (ProtobufCBinaryData) { sizeof weight, weight };
    Cairn__Reduced reduced = CAIRN__REDUCED__INIT;
    reduced.job = job->number;
    reduced.epoch = action->epoch;
    reduced.round = action->round;
    reduced.n_values = 3;
    reduced.values = list;
    cairn_session_send(job->shard, CAIRN_MSG_REDUCED, 0, &reduced.base);
}

static void report_published(struct cairn_shard_job *job, const struct cairn_step_action *action)
{
    Cairn__Published published = CAIRN__PUBLISHED__INIT;
    published.job = job->number;
    published.epoch = action->epoch;
    published.round = action->round;
    published.generation = action->version.generation;
    published.step = action->version.step;
    uint32_t us[4];
    Cairn__StepTimes times = CAIRN__STEP_TIMES__INIT;
    cairn_times_phases(job, us);
    times.us = us;
    times.n_us = 4;
    // Told once; 0: nothing was granted.
    if (job->times.round != 0 && action->round == job->times.round) published.times = &times;
    job->times.round = 0;
    cairn_session_send(job->shard, CAIRN_MSG_PUBLISHED, 0, &published.base);
}

static void send_answer(struct cairn_shard_job *job, const struct cairn_step_action *action)
{
    Cairn__Decision last = CAIRN__DECISION__INIT;
    last.kind = (uint32_t)action->decision->kind;
    last.round = action->decision->round;
    last.generation = action->decision->version_after.generation;
    last.step = action->decision->version_after.step;
    last.payload = (ProtobufCBinaryData) { action->decision->payload_bytes,
                                           (uint8_t *)action->decision->payload };
    Cairn__Answer answer = CAIRN__ANSWER__INIT;
    answer.job = job->number;
    answer.epoch = action->epoch;
    answer.phase = (uint32_t)action->phase;
    answer.open_round = action->round;
    answer.generation = action->version.generation;
    answer.step = action->version.step;
    answer.last = &last;
    answer.tiles_world = job->tiles_world;
    answer.refused = action->refused;
    cairn_session_send(job->shard, CAIRN_MSG_ANSWER, 0, &answer.base);
}

/* ---- all of them ---- */

static void act(struct cairn_shard_job *job, const struct cairn_step_action *action)
{
    cairn_times_note(job, action);
    switch (action->kind) {
    case CAIRN_STEP_GRANT: send_to(job, action, CAIRN_CHUNK_GRANT, action->window); break;
    case CAIRN_STEP_ACK: send_to(job, action, CAIRN_CHUNK_ACK, 0); break;
    case CAIRN_STEP_REFUSE:
        if (action->slot < job->slot_count) cairn_landing_release(&job->slots[action->slot]);
        refuse(job, action);
        break;
    case CAIRN_STEP_MICRO_ACK: send_to(job, action, CAIRN_CHUNK_MICRO_ACK, 0); break;
    case CAIRN_STEP_RECEIVE: cairn_landing_receive(job, action->slot, action->chunk); break;
    case CAIRN_STEP_DISCARD: cairn_landing_discard(job); break;
    case CAIRN_STEP_FOLD: cairn_round_fold(job, action); break;
    case CAIRN_STEP_ZERO: cairn_round_zero(job, action->chunk); break;
    case CAIRN_STEP_REDUCE: cairn_round_reduce(job); break;
    case CAIRN_STEP_UPDATE: cairn_round_update(job, action->decision); break;
    case CAIRN_STEP_REDUCED_REPORT: report_reduced(job, action); break;
    case CAIRN_STEP_PUBLISHED_REPORT: report_published(job, action); break;
    case CAIRN_STEP_ANSWER: send_answer(job, action); break;
    case CAIRN_STEP_FORWARD: // a relay's machine only: relay_act.c
    case CAIRN_STEP_FORWARD_END:
    case CAIRN_STEP_FORWARD_COMMIT: assert(false); break;
    case CAIRN_STEP_FAULT: cairn_shard_job_fault(job, action->why); break;
    }
}

static bool takes_events(const struct cairn_shard_job *job)
{
    return job->state != CAIRN_JOB_FAULTED && job->state != CAIRN_JOB_LEAVING &&
           !job->shard->closing;
}

static void step_once(struct cairn_shard_job *job, const struct cairn_step_event *event)
{
    assert(!job->stepping);
    if (!takes_events(job)) return;
    job->stepping = true;
    job->actions.count = 0;
    cairn_step_on_event(job->step, event, &job->actions);
    for (size_t i = 0; i < job->actions.count; i++) {
        if (job->state == CAIRN_JOB_FAULTED) break;
        act(job, &job->actions.list[i]);
        // A chunk that is neither received nor refused is one that is here already.
        if (job->actions.list[i].kind == CAIRN_STEP_DISCARD &&
            (i + 1 == job->actions.count || job->actions.list[i + 1].kind == CAIRN_STEP_ACK))
            job->shard->stats.chunks_duplicate++;
    }
    job->stepping = false;
}

static void tell_landed(struct cairn_shard_job *job)
{
    while (job->landed != NULL) {
        struct cairn_slot *slot = job->landed;
        job->landed = slot->next_landed;
        step_once(job, &(struct cairn_step_event) {
                           .kind = CAIRN_STEP_LANDED,
                           .slot = (uint32_t)(slot - job->slots),
                           .status = slot->status,
                       });
    }
}

/* Closes what was cut; the list may change under us, so from the start each time. */
static void close_cut(struct cairn_shard_job *job)
{
    job->members_cut = false;
    for (size_t i = 0; i < job->member_capacity; i++) {
        struct cairn_member *member = job->members[i];
        if (member != NULL && member->cut) cairn_member_down(member);
    }
}

void cairn_shard_job_settle(struct cairn_shard_job *job)
{
    if (job->settling) return;
    job->settling = true;
    while (job->landed != NULL || job->members_cut) {
        tell_landed(job);
        if (job->members_cut) close_cut(job);
    }
    job->settling = false;
    if (job->landing_extra) cairn_admit_left(job);
}

void cairn_shard_job_step(struct cairn_shard_job *job, const struct cairn_step_event *event)
{
    step_once(job, event);
    cairn_shard_job_settle(job);
}
