/* Messages from workers: each is judged without side effects, then acted on. */
#include "server/core/step_state.h"

#include <assert.h>

#include "proto/spec/spec.h"
#include "server/core/mutant.h"

enum fate {
    FATE_RECEIVE,
    FATE_WAITING, /* a duplicate of one that is in a slot: its answer comes with the fold */
    FATE_FOLDED,  /* a duplicate of one that is folded: its answer may have been lost */
    FATE_REFUSE
};

struct judgement {
    enum fate fate;
    cairn_status status; /* REFUSE */
};

static struct judgement refuse(cairn_status status)
{
    return (struct judgement) { FATE_REFUSE, status };
}

struct member *cairn_step_find(const struct cairn_step *step, uint64_t id)
{
    for (uint32_t i = 0; i < step->member_count; i++)
        if (step->members[i].id == id) return &step->members[i];
    return NULL;
}

/* Is the message of the round at hand, and its sender a contributor? */
static cairn_status judge_sender(const struct cairn_step *step,
                                 const struct cairn_step_event *event, const struct member *sender)
{
    if (!MUTANT(3)) {
        if (event->epoch < step->epoch || event->round < step->round_seen) return CAIRN_ERR_STALE;
        if (event->epoch > step->epoch || event->round > step->round_seen)
            return CAIRN_ERR_PROTOCOL;
    }
    if (step->round == 0) return CAIRN_ERR_STALE;
    return sender != NULL ? CAIRN_OK : CAIRN_ERR_FENCED;
}

static bool slot_is_free(const struct cairn_step *step, const struct member *member, uint32_t k)
{
    const size_t index = (size_t)(member - step->members) * step->config.window + k;
    return step->slots[index].state == SLOT_FREE;
}

/* The first free one of the member's slots [first, end); NO_SLOT if there is none. */
static uint32_t find_between(const struct cairn_step *step, const struct member *member,
                             uint32_t first, uint32_t end)
{
    for (uint32_t k = first; k < end; k++)
        if (slot_is_free(step, member, k))
            return (uint32_t)(member - step->members) * step->config.window + k;
    return NO_SLOT;
}

/* The same of the kind that the chunk takes. */
static uint32_t find_slot(const struct cairn_step *step, const struct cairn_step_event *event,
                          const struct member *member)
{
    const struct cairn_step_config *config = &step->config;
    const uint32_t landing = config->window - config->in_place, large = landing - config->small;
    if (event->in_place) return find_between(step, member, landing, config->window);
    if (config->small > 0 && event->is_small) return find_between(step, member, large, landing);
    return find_between(step, member, 0, large);
}

bool cairn_step_may_receive(const struct cairn_step *step)
{
    if (step->phase != CAIRN_STEP_COLLECTING) return false;
    for (uint32_t i = 0; i < step->member_count; i++) {
        const struct member *member = &step->members[i];
        if (member->done || member->micro != step->forward.micro) continue;
        const bool all_here = member->ended && member->arrived == member->sent;
        if (all_here) continue;
        if (find_between(step, member, 0, step->config.window) != NO_SLOT) return true;
    }
    return false;
}

/* A chunk of the member's own micro-batch that is not here yet: may it still come? */
static struct judgement judge_new_chunk(const struct cairn_step *step,
                                        const struct cairn_step_event *event,
                                        const struct member *member)
{
    const uint32_t index = (uint32_t)(member - step->members);
    const bool declared_absent = cairn_step_cursor_past(step, event->chunk, event->micro, index);
    if (declared_absent && !MUTANT(1)) return refuse(CAIRN_ERR_PROTOCOL);
    if (member->ended && member->arrived >= member->sent) return refuse(CAIRN_ERR_PROTOCOL);
    // A slot with memory is for what its sender counts so: it may be another's that is on its way.
    const bool has_place = !event->in_place || event->is_readable || MUTANT(83);
    if (!has_place || find_slot(step, event, member) == NO_SLOT) return refuse(CAIRN_ERR_BUSY);
    return (struct judgement) { FATE_RECEIVE, CAIRN_OK };
}

/* Is this very contribution in a slot? Then it is answered when that ends, and not before: to refuse it
 * meanwhile, because the round is void now, would give the worker a buffer back that is being read. */
static bool in_slot(const struct cairn_step *step, const struct cairn_step_event *event,
                    const struct member *member)
{
    if (member == NULL || event->chunk >= step->config.chunk_count) return false;
    if (event->epoch != step->round_epoch || event->round != step->round_seen) return false;
    if (event->micro != member->micro) return false;
    const uint16_t at = *step_at(step, (uint32_t)(member - step->members), event->chunk);
    return at != AT_NONE && at != AT_FOLDED;
}

static struct judgement judge_chunk(const struct cairn_step *step,
                                    const struct cairn_step_event *event,
                                    const struct member *member)
{
    if (in_slot(step, event, member) && !MUTANT(1) &&
        !(MUTANT(17) && step->phase == CAIRN_STEP_DRAINING))
        return (struct judgement) { FATE_WAITING, CAIRN_OK };
    const cairn_status sender = judge_sender(step, event, member);
    if (sender != CAIRN_OK) return refuse(sender);
    if (event->chunk >= step->config.chunk_count) return refuse(CAIRN_ERR_MALFORMED);
    const uint32_t index = (uint32_t)(member - step->members);
    if (!step_holds(step, index, event->chunk)) return refuse(CAIRN_ERR_MALFORMED);
    const struct judgement folded = { FATE_FOLDED, CAIRN_OK };
    if (MUTANT(31) && step->config.forwards && step->phase == CAIRN_STEP_REDUCING)
        return refuse(CAIRN_ERR_PROTOCOL);
    if (step->phase != CAIRN_STEP_COLLECTING) return folded; // everything is
    if (event->micro < member->micro) return folded;
    if (event->micro > member->micro) return refuse(CAIRN_ERR_PROTOCOL);
    if (member->committed && event->micro > member->last_micro) return refuse(CAIRN_ERR_PROTOCOL);
    const uint16_t at = *step_at(step, index, event->chunk);
    return at == AT_FOLDED && !MUTANT(1) ? folded : judge_new_chunk(step, event, member);
}

static void receive(struct cairn_step *step, const struct cairn_step_event *event,
                    struct member *member, struct cairn_step_actions *actions)
{
    const uint32_t index = find_slot(step, event, member);
    step->slots[index] = (struct slot) {
        .request = event->request, .chunk = event->chunk, .next = NO_SLOT, .state = SLOT_RECEIVING
    };
    const uint32_t row = (uint32_t)(member - step->members);
    *step_at(step, row, event->chunk) = (uint16_t)(index - row * step->config.window + 1);
    member->arrived++;
    member->receiving++;
    step->receiving++;
    step->slots_used++;
    struct cairn_step_action *action = cairn_step_act(actions, CAIRN_STEP_RECEIVE);
    action->tag = event->tag;
    action->slot = index;
    action->member = event->member;
    action->chunk = event->chunk;
    // It may be the last one that was sent: then all others are absent.
    if (member->ended && member->arrived == member->sent) cairn_step_advance(step, actions);
}

/* An answer that echoes what it answers. */
static void answer(const struct cairn_step_event *event, enum cairn_step_action_kind kind,
                   cairn_status status, struct cairn_step_actions *actions)
{
    struct cairn_step_action *action = cairn_step_act(actions, kind);
    action->member = event->member;
    action->epoch = event->epoch;
    action->round = event->round;
    action->micro = event->micro;
    const bool is_chunk = event->kind == CAIRN_STEP_CHUNK;
    action->chunk = is_chunk ? event->chunk : CAIRN_STEP_NO_CHUNK;
    action->request = is_chunk ? event->request : 0;
    action->status = status;
    action->slot = NO_SLOT;
    action->tag = event->tag;
}

void cairn_step_on_chunk(struct cairn_step *step, const struct cairn_step_event *event,
                         struct cairn_step_actions *actions)
{
    struct member *member = cairn_step_find(step, event->member);
    const struct judgement judgement = judge_chunk(step, event, member);
    if (judgement.fate == FATE_RECEIVE) {
        receive(step, event, member, actions);
        return;
    }
    cairn_step_act(actions, CAIRN_STEP_DISCARD)->tag = event->tag;
    if (judgement.fate == FATE_FOLDED) answer(event, CAIRN_STEP_ACK, CAIRN_OK, actions);
    if (judgement.fate == FATE_REFUSE) answer(event, CAIRN_STEP_REFUSE, judgement.status, actions);
}

/* Ends and commits have three fates: they are new (RECEIVE), known (WAITING; FOLDED where the answer
 * may have been lost), or refused. */
static struct judgement judge_micro_end(const struct cairn_step *step,
                                        const struct cairn_step_event *event,
                                        const struct member *member)
{
    const cairn_status sender = judge_sender(step, event, member);
    if (sender != CAIRN_OK) return refuse(sender);
    if (step->phase != CAIRN_STEP_COLLECTING || event->micro < member->micro)
        return (struct judgement) { FATE_FOLDED, CAIRN_OK };
    if (event->micro > member->micro) return refuse(CAIRN_ERR_PROTOCOL);
    if (member->committed && event->micro > member->last_micro) return refuse(CAIRN_ERR_PROTOCOL);
    if ((uint64_t)event->sent + event->absent != step->config.chunk_count)
        return refuse(CAIRN_ERR_PROTOCOL);
    if (event->absent < member->unheld) return refuse(CAIRN_ERR_PROTOCOL);
    if (member->ended && member->sent != event->sent) return refuse(CAIRN_ERR_PROTOCOL);
    if (member->arrived > event->sent) return refuse(CAIRN_ERR_PROTOCOL);
    return (struct judgement) { member->ended ? FATE_WAITING : FATE_RECEIVE, CAIRN_OK };
}

void cairn_step_on_micro_end(struct cairn_step *step, const struct cairn_step_event *event,
                             struct cairn_step_actions *actions)
{
    struct member *member = cairn_step_find(step, event->member);
    const struct judgement judgement = judge_micro_end(step, event, member);
    if (judgement.fate == FATE_REFUSE) answer(event, CAIRN_STEP_REFUSE, judgement.status, actions);
    if (judgement.fate == FATE_FOLDED) answer(event, CAIRN_STEP_MICRO_ACK, CAIRN_OK, actions);
    if (judgement.fate != FATE_RECEIVE) return;
    member->ended = true;
    member->sent = event->sent;
    cairn_step_complete_micro(step, member, actions);
    cairn_step_advance(step, actions);
}

static struct judgement judge_commit(const struct cairn_step *step,
                                     const struct cairn_step_event *event,
                                     const struct member *member)
{
    const struct judgement known = { FATE_WAITING, CAIRN_OK };
    const cairn_status sender = judge_sender(step, event, member);
    if (sender != CAIRN_OK) return refuse(sender);
    if (step->phase != CAIRN_STEP_COLLECTING) return known;
    if (member->committed) {
        const bool same = member->last_micro == event->micro && member->weight == event->weight;
        return same ? known : refuse(CAIRN_ERR_PROTOCOL);
    }
    if (event->micro == UINT32_MAX || event->micro + 1 < member->micro)
        return refuse(CAIRN_ERR_PROTOCOL);
    const bool begun = member->ended || member->arrived > 0;
    if (event->micro + 1 == member->micro && begun) return refuse(CAIRN_ERR_PROTOCOL);
    if (event->weight > CAIRN_SPEC_WEIGHT_MAX - step->weight) return refuse(CAIRN_ERR_INVALID);
    return (struct judgement) { FATE_RECEIVE, CAIRN_OK };
}

void cairn_step_on_commit(struct cairn_step *step, const struct cairn_step_event *event,
                          struct cairn_step_actions *actions)
{
    struct member *member = cairn_step_find(step, event->member);
    const struct judgement judgement = judge_commit(step, event, member);
    if (judgement.fate == FATE_REFUSE) answer(event, CAIRN_STEP_REFUSE, judgement.status, actions);
    if (judgement.fate != FATE_RECEIVE) return;
    member->committed = true;
    member->last_micro = event->micro;
    member->weight = event->weight;
    if (!MUTANT(11) || step->weight == 0) step->weight += event->weight;
    step->committed_count++;
    if (event->micro > step->last_micro) step->last_micro = event->micro;
    if (member->micro > member->last_micro) {
        member->done = true;
        step->done_count++;
    }
    cairn_step_advance(step, actions);
}

/* ---- whom it waits for ---- */

static bool has_landed(const struct cairn_step *step, const struct member *member)
{
    const size_t first = (size_t)(member - step->members) * step->config.window;
    for (uint32_t k = 0; k < step->config.window; k++)
        if (step->slots[first + k].state == SLOT_LANDED) return true;
    return false;
}

/* With a slot that is free, too: it may not push more before it has its buffers back. */
static bool waits_for_others(const struct cairn_step *step, const struct member *member)
{
    if (member->receiving > 0) return false;
    const bool all_here = member->ended && member->arrived == member->sent;
    return all_here || has_landed(step, member);
}

size_t cairn_step_waiting(const struct cairn_step *step, struct cairn_step_waiting *out,
                          size_t out_max)
{
    if (step->phase != CAIRN_STEP_COLLECTING) return 0;
    size_t count = 0;
    for (uint32_t i = 0; i < step->member_count; i++) {
        const struct member *m = &step->members[i];
        if (m->done) continue;
        if (count < out_max)
            out[count] = (struct cairn_step_waiting) {
                .member = m->id,
                .micro = m->micro,
                .arrived = m->arrived,
                .connected = !m->lost,
                .ended = m->ended,
                .waits = waits_for_others(step, m),
            };
        count++;
    }
    return count;
}
