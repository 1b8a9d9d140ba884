/* The strict left fold: when a landed contribution may be added to its chunk's sum.
 *
 * A chunk's cursor is at the first (micro-batch, member) that is neither folded nor known to be absent.
 * OPEN tells which members hold nothing of a chunk. Any other absence is known only from counts: the
 * member's micro-batch has ended, and all chunks that the member sent have arrived. So the order of arrival
 * affects when a fold happens, but not its result. */
#include "server/core/step_state.h"

#include <assert.h>
#include <string.h>

#include "proto/base/mutant.h"

enum verdict {
    WAIT,
    PASS, /* the member does not hold the chunk, or has no such micro-batch */
    SKIP, /* the member might have contributed, but did not */
    TAKE
};

static bool all_arrived(const struct member *member)
{
    return member->ended && (member->arrived == member->sent || MUTANT(16));
}

static enum verdict judge_fold(const struct step_machine *step, uint32_t chunk,
                               const struct cursor *cursor)
{
    const struct member *member = &step->members[cursor->member];
    // No member has come to this micro-batch yet. Without this test the cursor might move on for ever.
    if (cursor->micro > step->progress.front) return WAIT;
    if (step->config.forwards && cursor->micro > step->forward.micro && !MUTANT(25)) return WAIT;
    if (!step_holds(step, cursor->member, chunk)) return PASS;
    if (member->committed && cursor->micro > member->last_micro) return PASS;
    if (member->micro < cursor->micro) return WAIT;
    assert(member->micro == cursor->micro);
    const uint16_t at = *step_at(step, cursor->member, chunk);
    if (at == AT_NONE) return all_arrived(member) ? SKIP : WAIT;
    return step->slots[step_slot(step, cursor->member, at)].state == SLOT_LANDED ? TAKE : WAIT;
}

static bool at_end(const struct step_machine *step, const struct cursor *cursor)
{
    return step->progress.committed == step->member_count &&
           cursor->micro > step->progress.last_micro;
}

static void step_cursor(const struct step_machine *step, struct cursor *cursor)
{
    if (++cursor->member < step->member_count) return;
    cursor->member = 0;
    cursor->micro++;
}

/* ---- waiting for company ---- */

static void defer_chunk(struct step_machine *step, uint32_t index)
{
    struct slot *slot = &step->slots[index];
    slot->deferred = true;
    slot->newer = NO_SLOT;
    slot->older = step->in_flight.deferred_last;
    if (slot->older != NO_SLOT)
        step->slots[slot->older].newer = index;
    else
        step->in_flight.deferred_first = index;
    step->in_flight.deferred_last = index;
}

static void undefer_chunk(struct step_machine *step, uint32_t index)
{
    struct slot *slot = &step->slots[index];
    if (!slot->deferred) return;
    slot->deferred = false;
    if (slot->older != NO_SLOT)
        step->slots[slot->older].newer = slot->newer;
    else
        step->in_flight.deferred_first = slot->newer;
    if (slot->newer != NO_SLOT)
        step->slots[slot->newer].older = slot->older;
    else
        step->in_flight.deferred_last = slot->older;
}

/* True if a FOLD of the chunk would now take all remaining contributions of the micro-batch, or as many as
 * one FOLD can take. */
static bool is_ripe(const struct step_machine *step, uint32_t chunk)
{
    struct cursor at = step->cursors[chunk];
    if (at.fold_head != NO_SLOT) return false;
    for (uint32_t taken = 0; at.member < step->member_count; at.member++) {
        const enum verdict verdict = judge_fold(step, chunk, &at);
        if (verdict == WAIT) return false;
        if (verdict == TAKE && ++taken == CAIRN_STEP_FOLD_MAX) return true;
    }
    return true;
}

bool step_cursor_past(const struct step_machine *step, uint32_t chunk, uint32_t micro,
                      uint32_t member)
{
    const struct cursor *cursor = &step->cursors[chunk];
    return cursor->micro > micro || (cursor->micro == micro && cursor->member > member);
}

/* Adds the slot to the fold under construction. */
static void take_slot(struct step_machine *step, struct step_action *fold, uint32_t slot)
{
    undefer_chunk(step, slot);
    step->slots[slot].state = SLOT_FOLDING;
    step->slots[slot].next = NO_SLOT;
    if (fold->count > 0) step->slots[fold->slots[fold->count - 1]].next = slot;
    fold->slots[fold->count++] = slot;
    if (MUTANT(2) && fold->count == 2) {
        fold->slots[1] = fold->slots[0];
        fold->slots[0] = slot;
        step->slots[slot].next = fold->slots[1];
        step->slots[fold->slots[1]].next = NO_SLOT;
    }
}

static void begin_fold(struct step_machine *step, uint32_t chunk, struct step_action *fold,
                       struct step_actions *actions)
{
    struct cursor *cursor = &step->cursors[chunk];
    fold->chunk = chunk;
    fold->first = !cursor->contributed;
    fold->likely_last = cursor->micro > step->progress.likely_micro || at_end(step, cursor);
    cursor->contributed = true;
    cursor->fold_head = fold->slots[0];
    step->in_flight.folding++;
    *step_act(actions, CAIRN_STEP_FOLD) = *fold;
}

/* For a relay: reports the chunk's sum in the current micro-batch as soon as the sum is final. */
static void forward_chunk(struct step_machine *step, uint32_t chunk, struct step_actions *actions)
{
    struct cursor *cursor = &step->cursors[chunk];
    const bool ended = cursor->fold_head == NO_SLOT || MUTANT(26);
    const bool past = cursor->micro > step->forward.micro && ended;
    if (!past || cursor->forwarded) return;
    cursor->forwarded = true;
    step->forward.passed++;
    if (!cursor->contributed) return;
    cursor->contributed = MUTANT(30);
    step->forward.sent++;
    struct step_action *action = step_act(actions, CAIRN_STEP_FORWARD);
    action->chunk = chunk;
    action->micro = step->forward.micro;
    action->round = step->round;
}

/* Moves one chunk's cursor as far as possible: over absent contributions, and over landed ones, which are
 * folded in one pass. A chunk has at most one FOLD at a time. */
static void advance_chunk(struct step_machine *step, uint32_t chunk, struct step_actions *actions)
{
    struct cursor *cursor = &step->cursors[chunk];
    if (cursor->fold_head != NO_SLOT) return;
    // set only at the first contribution, because most calls find no contribution
    struct step_action fold;
    uint32_t count = 0;
    while (count < CAIRN_STEP_FOLD_MAX && !at_end(step, cursor)) {
        const enum verdict verdict = judge_fold(step, chunk, cursor);
        if (verdict == WAIT) break;
        struct member *member = &step->members[cursor->member];
        const uint16_t at = *step_at(step, cursor->member, chunk);
        if (verdict == TAKE && count++ == 0)
            fold = (struct step_action) { .kind = CAIRN_STEP_FOLD };
        if (verdict == TAKE) take_slot(step, &fold, step_slot(step, cursor->member, at));
        step_cursor(step, cursor);
        if (verdict == SKIP) {
            member->passed++;
            step_complete_micro(step, member, actions);
        }
    }
    if (count > 0) begin_fold(step, chunk, &fold, actions);
    if (step->config.forwards) forward_chunk(step, chunk, actions);
}

/* While fewer FOLDs than folds_wanted are under way, ends the wait of the oldest deferred contributions. */
static void advance_deferred(struct step_machine *step, struct step_actions *actions)
{
    while (step->in_flight.folding < step->config.folds_wanted &&
           step->in_flight.deferred_first != NO_SLOT && !MUTANT(22)) {
        const uint32_t slot = step->in_flight.deferred_first;
        // if an earlier contribution is missing, the FOLD that takes the missing one will take this one,
        // too
        undefer_chunk(step, slot);
        advance_chunk(step, step->slots[slot].chunk, actions);
    }
}

static void begin_reduce(struct step_machine *step, struct step_actions *actions)
{
    for (uint32_t c = 0; c < step->config.chunk_count; c++)
        if (!step->cursors[c].contributed && !MUTANT(8))
            step_act(actions, CAIRN_STEP_ZERO)->chunk = c;
    step->progress.likely_micro = step->progress.last_micro;
    step->phase = CAIRN_STEP_REDUCING;
    step->summing = true;
    step_act(actions, CAIRN_STEP_REDUCE);
}

static void end_forwards(struct step_machine *step, struct step_actions *actions)
{
    struct step_action *action = step_act(actions, CAIRN_STEP_FORWARD_END);
    action->round = step->round;
    action->micro = step->forward.micro++;
    action->count = step->forward.sent;
    step->forward.passed = 0;
    if (!MUTANT(29)) step->forward.sent = 0;
    for (uint32_t c = 0; c < step->config.chunk_count; c++) step->cursors[c].forwarded = false;
    // Members that hold nothing here may have been one micro-batch ahead, and may have waited for this end.
    for (uint32_t i = 0; i < step->member_count; i++)
        step_complete_micro(step, &step->members[i], actions);
}

static void commit_forwards(struct step_machine *step, struct step_actions *actions)
{
    step->phase = CAIRN_STEP_REDUCING;
    struct step_action *action = step_act(actions, CAIRN_STEP_FORWARD_COMMIT);
    action->round = step->round;
    action->micro = step->progress.last_micro;
    action->weight = MUTANT(27) ? step->members[0].weight : step->progress.weight;
}

/* For a relay: ends the current micro-batch if every chunk is past it and at least one member has finished
 * it; otherwise, if all members and all micro-batches are done, ends the round. */
static void advance_forwards(struct step_machine *step, struct step_actions *actions)
{
    const bool past = step->forward.passed == step->config.chunk_count;
    const bool begun = step->forward.micro < step->progress.front ||
                       (MUTANT(32) && step->config.chunk_count > 0);
    if (past && begun) {
        end_forwards(step, actions);
        step_advance(step, actions); // chunks of the next micro-batch may have landed
    } else if (step->progress.done == step->member_count &&
               step->forward.micro > step->progress.last_micro) {
        commit_forwards(step, actions);
    }
}

/* Checks whether collecting has ended. */
static void judge_end(struct step_machine *step, struct step_actions *actions)
{
    if (step->config.forwards)
        advance_forwards(step, actions);
    else if (step->progress.done == step->member_count)
        begin_reduce(step, actions);
}

void step_advance(struct step_machine *step, struct step_actions *actions)
{
    for (uint32_t c = 0; c < step->config.chunk_count; c++) advance_chunk(step, c, actions);
    judge_end(step, actions);
}

void step_complete_micro(struct step_machine *step, struct member *member,
                         struct step_actions *actions)
{
    if (!member->ended || member->passed < step->config.chunk_count) return;
    // A member that holds nothing waits until the other members finish the micro-batch. Otherwise one event
    // might end any number of micro-batches.
    if (step->config.forwards && member->micro > step->forward.micro) return;
    struct step_action *action = step_act(actions, CAIRN_STEP_MICRO_ACK);
    action->member = member->id;
    action->epoch = step->epoch;
    action->round = step->round;
    action->micro = member->micro;

    const uint32_t index = (uint32_t)(member - step->members);
    if (step->config.chunk_count > 0)
        memset(step_at(step, index, 0), 0, step->config.chunk_count * sizeof(uint16_t));
    member->micro++;
    if (member->micro > step->progress.front) step->progress.front = member->micro;
    member->arrived = member->sent = 0;
    member->passed = MUTANT(21) ? 0 : member->unheld;
    member->ended = false;
    if (member->committed && member->micro > member->last_micro) {
        member->done = true;
        step->progress.done++;
    }
}

static struct member *member_of_slot(const struct step_machine *step, uint32_t slot)
{
    return &step->members[slot / step->config.window];
}

/* Tells the worker the result of the contribution in a slot. */
static struct step_action *answer_slot(const struct step_machine *step, uint32_t slot,
                                       enum step_action_kind kind, cairn_status status,
                                       struct step_actions *actions)
{
    const struct member *member = member_of_slot(step, slot);
    struct step_action *action = step_act(actions, kind);
    action->member = member->id;
    action->epoch = step->round_epoch;
    action->round = step->round_seen;
    action->micro = member->micro;
    action->chunk = step->slots[slot].chunk;
    action->slot = slot;
    action->request = step->slots[slot].request;
    action->status = status;
    return action;
}

static void free_slot(struct step_machine *step, uint32_t slot)
{
    step->slots[slot].state = SLOT_FREE;
    step->slots_used--;
}

/* Makes the contribution count as if it had never arrived: the worker sends it again. */
static void forget_slot(struct step_machine *step, uint32_t slot)
{
    struct member *member = member_of_slot(step, slot);
    undefer_chunk(step, slot);
    *step_at(step, slot / step->config.window, step->slots[slot].chunk) = AT_NONE;
    member->arrived--;
    free_slot(step, slot);
}

void step_on_landed(struct step_machine *step, const struct step_event *event,
                    struct step_actions *actions)
{
    const uint32_t index = event->slot;
    assert(index < step->config.member_max * step->config.window);
    struct slot *slot = &step->slots[index];
    assert(slot->state == SLOT_RECEIVING);
    struct member *member = member_of_slot(step, index);
    member->receiving--;
    step->in_flight.receiving--;
    const bool answerable = event->status == CAIRN_OK || event->status == CAIRN_ERR_CHECKSUM;

    if (step->phase == CAIRN_STEP_DRAINING) {
        // Answer even if the connection is lost. The worker may have reconnected and sent a duplicate,
        // which was dropped because this contribution was under way. From now on the shard reads nothing
        // that the worker sends in this round.
        answer_slot(step, index, CAIRN_STEP_REFUSE, CAIRN_ERR_STALE, actions);
        forget_slot(step, index);
        step_drained(step, actions);
        return;
    }
    assert(step->phase == CAIRN_STEP_COLLECTING);
    if (event->status == CAIRN_OK) {
        slot->state = SLOT_LANDED;
        if (step->in_flight.folding < step->config.folds_wanted || step->config.folds_wanted == 0 ||
            is_ripe(step, slot->chunk))
            advance_chunk(step, slot->chunk, actions);
        else
            defer_chunk(step, index);
    } else {
        if (answerable) answer_slot(step, index, CAIRN_STEP_REFUSE, CAIRN_ERR_CHECKSUM, actions);
        forget_slot(step, index);
    }
    if (member->regrant && member->receiving == 0) step_grant(step, member, actions);
}

/* Gives the slots of a finished FOLD back to their workers. */
static void release_fold(struct step_machine *step, uint32_t chunk, struct step_actions *actions)
{
    struct cursor *cursor = &step->cursors[chunk];
    uint32_t slot = cursor->fold_head;
    assert(slot != NO_SLOT);
    cursor->fold_head = NO_SLOT;
    step->in_flight.folding--;
    while (slot != NO_SLOT) {
        const uint32_t next = step->slots[slot].next;
        struct member *member = member_of_slot(step, slot);
        answer_slot(step, slot, CAIRN_STEP_ACK, CAIRN_OK, actions);
        *step_at(step, slot / step->config.window, chunk) = AT_FOLDED;
        free_slot(step, slot);
        member->passed++;
        if (step->phase == CAIRN_STEP_COLLECTING) step_complete_micro(step, member, actions);
        slot = next;
    }
}

void step_on_folded(struct step_machine *step, const struct step_event *event,
                    struct step_actions *actions)
{
    assert(event->chunk < step->config.chunk_count);
    release_fold(step, event->chunk, actions);
    if (step->phase == CAIRN_STEP_DRAINING) {
        step_drained(step, actions);
        return;
    }
    assert(step->phase == CAIRN_STEP_COLLECTING);
    advance_chunk(step, event->chunk, actions);
    advance_deferred(step, actions);
    judge_end(step, actions);
}

void step_drop_landed(struct step_machine *step, struct step_actions *actions)
{
    for (uint32_t i = 0; i < step->member_count * step->config.window; i++) {
        if (step->slots[i].state != SLOT_LANDED) continue;
        answer_slot(step, i, CAIRN_STEP_REFUSE, CAIRN_ERR_STALE, actions);
        forget_slot(step, i);
    }
}
