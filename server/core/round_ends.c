/* Tells workers how a round ended, and keeps that for those that ask late: a thread of a worker
 * may sleep while another one writes, a connection may be lost and come back, and rounds go on
 * meanwhile. For each worker the last step and the last write that it contributed to are kept,
 * also while it is away. */
#include "server/core/round_state.h"

#include <assert.h>
#include <string.h>

#include "server/core/mutant.h"

/* ---- what is kept ---- */

/* Without groups, their learning rates, what tensors have missed, and client state, which nobody asks for. */
static void take_end(const struct cairn_round *core, struct end *end)
{
    struct cairn_payload head;
    end->decision = core->last;
    end->decision.payload = NULL;
    end->decision.payload_bytes = 0;
    if (core->last.payload_bytes == 0) return;
    const cairn_status status = cairn_payload_decode(core->last.payload, core->last.payload_bytes,
                                                     &head);
    if (status != CAIRN_OK) return; // of a restored job, perhaps: its head says nothing of a round
    head.group_count = head.driven_count = 0;
    head.missed = (struct cairn_missed) { .bytes = NULL };
    head.state_bytes = 0;
    end->decision.payload_bytes = cairn_payload_encode(&head, NULL, end->head);
}

/* Notes the end for contributors that left before the round ended: only now it is known whether
 * it counted. */
static void note_absent(struct cairn_round *core, uint64_t round, int kind, const struct end *end)
{
    if (!core->absent_contribute) return;
    core->absent_contribute = false;
    for (uint32_t i = 0; i < core->config.member_max; i++) {
        struct absent *absent = &core->absent[i];
        if (absent->id == 0 || absent->round != round) continue;
        absent->round = 0;
        if (end != NULL) absent->ends[kind] = *end;
    }
}

void cairn_round_note_end(struct cairn_round *core, uint64_t round)
{
    struct end end;
    const int kind = core->last.kind == CAIRN_DECISION_WRITE ? END_OF_WRITE : END_OF_STEP;
    const bool ended = round != 0 && core->last.round == round;
    if (round == 0) {
        if (core->last.round > core->inherited.decision.round) take_end(core, &core->inherited);
        return;
    }
    if (ended) take_end(core, &end);
    for (uint32_t i = 0; ended && i < core->worker_count; i++)
        if (core->workers[i].contributor || core->workers[i].surplus)
            core->workers[i].ends[kind] = end;
    note_absent(core, round, kind, ended ? &end : NULL);
}

static struct absent *find_absent(struct cairn_round *core, uint64_t id)
{
    for (uint32_t i = 0; i < core->config.member_max; i++)
        if (core->absent[i].id == id) return &core->absent[i];
    return NULL;
}

/* A free place, or that of the one who left first. */
static struct absent *make_place(struct cairn_round *core, uint64_t id)
{
    struct absent *place = find_absent(core, 0);
    if (place == NULL) {
        place = &core->absent[0];
        for (uint32_t i = 1; i < core->config.member_max; i++)
            if (core->absent[i].since < place->since) place = &core->absent[i];
    }
    *place = (struct absent) { .id = id };
    return place;
}

void cairn_round_keep_ends(struct cairn_round *core, const struct worker *worker)
{
    const bool has_none = worker->ends[END_OF_STEP].decision.round == 0 &&
                          worker->ends[END_OF_WRITE].decision.round == 0;
    const bool told = worker->contributor || worker->surplus;
    if (has_none && !told) return;
    struct absent *place = find_absent(core, worker->id);
    if (place == NULL) place = make_place(core, worker->id);
    place->since = ++core->left;
    if (told) {
        place->round = core->open_round;
        core->absent_contribute = true;
    }
    for (int i = 0; i < ENDS; i++)
        if (worker->ends[i].decision.round > place->ends[i].decision.round)
            place->ends[i] = worker->ends[i];
}

/* NULL: it is not known, or the round was void. */
static const struct cairn_decision *find_end(struct cairn_round *core, struct worker *worker,
                                             uint64_t round)
{
    struct absent *absent = find_absent(core, worker->id);
    struct end *const ends[] = { &core->inherited, &worker->ends[END_OF_STEP],
                                 &worker->ends[END_OF_WRITE],
                                 absent != NULL ? &absent->ends[END_OF_STEP] : NULL,
                                 absent != NULL ? &absent->ends[END_OF_WRITE] : NULL };
    if (round == core->last.round) return &core->last;
    for (size_t i = 0; i < sizeof ends / sizeof *ends && !MUTANT(37); i++) {
        if (ends[i] == NULL || ends[i]->decision.round != round) continue;
        if (ends[i]->decision.payload_bytes > 0) ends[i]->decision.payload = ends[i]->head;
        return &ends[i]->decision;
    }
    return NULL;
}

/* ---- who asks ---- */

static void send_result(const struct cairn_round *core, uint64_t member, uint64_t round,
                        const struct cairn_decision *decision, struct cairn_round_actions *actions)
{
    struct cairn_payload head = { .fail = false };
    struct cairn_round_action *action = cairn_round_act(actions, CAIRN_ROUND_WORKER_RESULT);
    action->member = member;
    action->round = round;
    action->decision = decision;
    if (decision == NULL) {
        action->status = CAIRN_ERR_EPOCH_CHANGED;
        action->version = core->version;
        if (round < core->last.round)
            action->why = "the round is over; how it ended is no longer known";
        return;
    }
    if (cairn_payload_decode(decision->payload, decision->payload_bytes, &head) != CAIRN_OK)
        head.fail = false;
    action->status = head.fail ? CAIRN_ERR_NONFINITE : CAIRN_OK;
    action->version = decision->version_after;
}

void cairn_round_send_void(const struct cairn_round *core, uint64_t member, uint64_t round,
                           struct cairn_round_actions *actions)
{
    send_result(core, member, round, NULL, actions);
}

/* In STEADY and OPEN `last` is resolved, so every round but the open one has its answer. */
static bool end_known(const struct cairn_round *core, uint64_t round)
{
    const bool resolved = core->stage == CAIRN_ROUND_STEADY || core->stage == CAIRN_ROUND_OPEN;
    return resolved && round != core->open_round;
}

void cairn_round_answer_asked(struct cairn_round *core, struct worker *worker,
                              struct cairn_round_actions *actions)
{
    for (int i = 0; i < ENDS_ASKED_MAX; i++) {
        const uint64_t round = worker->asked[i];
        if (round == 0 || !end_known(core, round)) continue;
        worker->asked[i] = 0;
        send_result(core, worker->id, round, find_end(core, worker, round), actions);
    }
}

bool cairn_round_has_asked(const struct worker *worker, uint64_t round)
{
    for (int i = 0; i < ENDS_ASKED_MAX; i++)
        if (worker->asked[i] == round) return true;
    return false;
}

/* Beside what another thread of it asks; of too many the oldest round is not answered. */
void cairn_round_note_asked(struct worker *worker, uint64_t round)
{
    uint64_t *place = &worker->asked[0];
    if (cairn_round_has_asked(worker, round)) return;
    for (int i = 1; i < ENDS_ASKED_MAX; i++)
        if (worker->asked[i] < *place) place = &worker->asked[i];
    *place = round;
}
