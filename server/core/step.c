#include "server/core/step.h"

#include <assert.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "proto/base/mutant.h"
#include "server/core/step_state.h"

static struct member *step_find(const struct step_machine *step, uint64_t id);
static void step_on_chunk(struct step_machine *step, const struct step_event *event,
                          struct step_actions *actions);
static void step_on_micro_end(struct step_machine *step, const struct step_event *event,
                              struct step_actions *actions);
static void step_on_commit(struct step_machine *step, const struct step_event *event,
                           struct step_actions *actions);

/* ---- memory ---- */

static bool config_ok(const struct step_config *config)
{
    return config->window >= 1 && config->window <= 1024 && config->small < config->window &&
           config->in_place < config->window - config->small && config->member_max >= 1 &&
           config->member_max <= UINT32_MAX / 2 / config->window &&
           config->chunk_count < UINT32_MAX && config->payload_bytes_max <= SIZE_MAX / 16;
}

/* Reserves count * size bytes at *at (aligned for any type used here). Returns false on overflow. */
static bool reserve(size_t *at, size_t count, size_t size, size_t *offset_out)
{
    if (*at > SIZE_MAX - 7) return false;
    const size_t offset = (*at + 7) & ~(size_t)7;
    if (size != 0 && count > (SIZE_MAX - offset) / size) return false;
    *offset_out = offset;
    *at = offset + count * size;
    return true;
}

struct plan {
    size_t members, pending_members, cursors, slots, at, holds, payload, end;
};

static bool plan_memory(const struct step_config *config, struct plan *plan)
{
    if (!config_ok(config)) return false;
    const size_t members = config->member_max, chunks = config->chunk_count;
    if (chunks != 0 && members > SIZE_MAX / chunks) return false;
    size_t at = sizeof(struct step_machine);
    const bool fits = reserve(&at, members, sizeof(struct member), &plan->members) &&
                      reserve(&at, members, sizeof(uint64_t), &plan->pending_members) &&
                      reserve(&at, chunks, sizeof(struct cursor), &plan->cursors) &&
                      reserve(&at, members * config->window, sizeof(struct slot), &plan->slots) &&
                      reserve(&at, members * chunks, sizeof(uint16_t), &plan->at) &&
                      reserve(&at, members, CAIRN_STEP_HOLDS_BYTES(chunks), &plan->holds) &&
                      reserve(&at, config->payload_bytes_max, 1, &plan->payload);
    plan->end = at;
    return fits;
}

size_t step_bytes(const struct step_config *config)
{
    struct plan plan;
    return plan_memory(config, &plan) ? plan.end : 0;
}

size_t step_actions_max(const struct step_config *config)
{
    // A fold or a refusal for each slot, a MICRO_ACK for each member, ZERO or FORWARD for each chunk, and a
    // few more.
    return (size_t)config->member_max * ((size_t)config->window + 2) + config->chunk_count + 8;
}

static void remember_decision(struct step_machine *step, const struct decision *decision)
{
    assert(decision->payload_bytes <= step->config.payload_bytes_max);
    step->last = *decision;
    step->last.payload = step->payload;
    if (decision->payload_bytes > 0)
        memcpy(step->payload, decision->payload, decision->payload_bytes);
}

/* Makes a machine that knows nothing, with no round open. */
static struct step_machine *make_step(void *memory, const struct step_config *config)
{
    struct plan plan;
    const bool fits = plan_memory(config, &plan);
    assert(fits);
    memset(memory, 0, plan.end);
    uint8_t *base = memory;
    struct step_machine *step = memory;
    step->config = *config;
    step->members = (struct member *)(base + plan.members);
    step->pending_members = (uint64_t *)(base + plan.pending_members);
    step->cursors = (struct cursor *)(base + plan.cursors);
    step->slots = (struct slot *)(base + plan.slots);
    step->at = (uint16_t *)(base + plan.at);
    step->holds = base + plan.holds;
    step->payload = base + plan.payload;
    step->in_flight.deferred_first = step->in_flight.deferred_last = NO_SLOT;
    return step;
}

struct step_machine *step_init(void *memory, const struct step_config *config,
                               struct cairn_version version, const struct decision *last)
{
    struct step_machine *step = make_step(memory, config);
    if (config->joins) step->phase = CAIRN_STEP_JOINING;
    step->version = version;
    if (last != NULL) remember_decision(step, last);
    step->last.kind = CAIRN_DECISION_NONE;
    step->last.round = 0;
    step->last.version_after = version;
    return step;
}

struct step_machine *step_init_from(void *memory, const struct step_config *config,
                                    const struct step_machine *before)
{
    const bool gives_up = before->phase == CAIRN_STEP_REDUCED && before->fenced;
    assert(before->phase == CAIRN_STEP_IDLE || before->phase == CAIRN_STEP_JOINING || gives_up);
    assert(before->pending.round == 0);
    struct step_machine *step = make_step(memory, config);
    step->phase = gives_up ? CAIRN_STEP_IDLE : before->phase;
    step->epoch = before->epoch;
    step->fenced = before->fenced;
    step->round_seen = before->round_seen;
    step->round_epoch = before->round_epoch;
    step->version = before->version;
    step->progress.likely_micro = before->progress.likely_micro;
    if (!MUTANT(74)) remember_decision(step, &before->last);
    return step;
}

struct step_kept step_keep(const struct step_machine *step)
{
    const bool is_kept = (step->phase == CAIRN_STEP_REDUCED && !MUTANT(100)) ||
                         step->phase == CAIRN_STEP_UPDATING || step->phase == CAIRN_STEP_JOINING;
    return (struct step_kept) {
        .phase = is_kept ? step->phase : CAIRN_STEP_IDLE,
        .epoch = step->epoch,
        .round = step->phase == CAIRN_STEP_REDUCED ? step->round : 0,
        .round_seen = step->round_seen,
        .round_epoch = step->round_epoch,
        .version = step->version,
        .last = step->last,
    };
}

struct step_machine *step_init_kept(void *memory, const struct step_config *config,
                                    const struct step_kept *kept)
{
    struct step_machine *step = make_step(memory, config);
    step->phase = kept->phase == CAIRN_STEP_UPDATING ? CAIRN_STEP_IDLE : kept->phase;
    step->epoch = MUTANT(103) ? 0 : kept->epoch;
    step->round = kept->round;
    step->round_seen = MUTANT(104) ? 0 : kept->round_seen;
    step->round_epoch = kept->round_epoch;
    const bool is_ended = kept->phase == CAIRN_STEP_UPDATING && !MUTANT(101);
    step->version = is_ended ? kept->last.version_after : kept->version;
    if (!MUTANT(102)) remember_decision(step, &kept->last);
    return step;
}

/* ---- actions ---- */

struct step_action *step_act(struct step_actions *actions, enum step_action_kind kind)
{
    assert(actions->count < actions->capacity);
    struct step_action *action = &actions->list[actions->count++];
    memset(action, 0, sizeof *action);
    action->kind = kind;
    return action;
}

static void fault(struct step_actions *actions, const char *why)
{
    step_act(actions, CAIRN_STEP_FAULT)->why = why;
}

void step_grant(struct step_machine *step, struct member *member, struct step_actions *actions)
{
    member->regrant = false;
    struct step_action *action = step_act(actions, CAIRN_STEP_GRANT);
    action->member = member->id;
    action->epoch = step->round_epoch;
    action->round = step->round;
    action->window = step->config.window - step->config.small - step->config.in_place;
    action->small = step->config.small;
    action->in_place = step->config.in_place;
}

/* ---- a round begins, and is void ---- */

/* Keeps the holds of the round. The holds of a void round are no longer needed, so the holds of a pending
 * round may overwrite them. */
static void keep_holds(struct step_machine *step, const struct step_event *event)
{
    step->all_hold = event->holds == NULL;
    if (step->all_hold) return;
    memcpy(step->holds, event->holds,
           event->member_count * CAIRN_STEP_HOLDS_BYTES(step->config.chunk_count));
}

static uint32_t count_unheld(const struct step_machine *step, uint32_t member)
{
    if (step->all_hold) return 0;
    uint32_t unheld = 0;
    for (uint32_t c = 0; c < step->config.chunk_count; c++) unheld += !step_holds(step, member, c);
    return unheld;
}

static void begin_round(struct step_machine *step, uint64_t round, const uint64_t *members,
                        uint32_t member_count, struct step_actions *actions)
{
    assert(step->slots_used == 0 && step->in_flight.folding == 0);
    step->phase = CAIRN_STEP_COLLECTING;
    step->round = step->round_seen = round;
    step->round_epoch = step->epoch;
    step->member_count = member_count;
    step->progress.done = step->progress.committed = step->progress.last_micro =
        step->progress.front = 0;
    step->progress.weight = 0;
    memset(&step->forward, 0, sizeof step->forward);
    memset(&step->sums, 0, sizeof step->sums);
    memset(step->members, 0, member_count * sizeof *step->members);
    memset(step->at, 0, (size_t)member_count * step->config.chunk_count * sizeof *step->at);
    for (uint32_t c = 0; c < step->config.chunk_count; c++)
        step->cursors[c] = (struct cursor) {
            .fold_head = NO_SLOT,
            .contributed = MUTANT(28) && step->config.forwards && step->cursors[c].contributed,
        };
    for (uint32_t i = 0; i < member_count; i++) {
        step->members[i].id = members[i];
        step->members[i].unheld = step->members[i].passed = count_unheld(step, i);
        step_grant(step, &step->members[i], actions);
    }
}

static void make_void(struct step_machine *step, struct step_actions *actions)
{
    step->round = 0;
    if (!MUTANT(72)) step->summed = false;
    step->phase = CAIRN_STEP_DRAINING;
    step_drop_landed(step, actions);
    step_drained(step, actions);
}

void step_drained(struct step_machine *step, struct step_actions *actions)
{
    assert(step->phase == CAIRN_STEP_DRAINING);
    if (step->in_flight.receiving > 0 || step->in_flight.folding > 0 || step->summing) return;
    step->phase = CAIRN_STEP_IDLE;
    const uint64_t round = step->pending.round;
    step->pending.round = 0;
    if (round != 0)
        begin_round(step, round, step->pending_members, step->pending.member_count, actions);
}

static const char *judge_open(const struct step_machine *step, const struct step_event *event)
{
    if (step->fenced || event->epoch > step->epoch)
        return "a round was opened in an epoch that is not resolved";
    if (event->round <= step->round_seen) return "a round number was used again";
    const bool forwarded = step->config.forwards && step->phase == CAIRN_STEP_REDUCING;
    if (step->phase != CAIRN_STEP_IDLE && step->phase != CAIRN_STEP_DRAINING && !forwarded)
        return "a round was opened while one is open";
    if (step->pending.round != 0) return "a round was opened while another is pending";
    if (event->member_count < 1 || event->member_count > step->config.member_max)
        return "a round was opened with no contributors, or more than are configured";
    if (step->config.forwards) return NULL;
    if (version_compare(event->version, step->version) != 0)
        return "a round was opened at a version that is not this shard's";
    return NULL;
}

static void on_open(struct step_machine *step, const struct step_event *event,
                    struct step_actions *actions)
{
    const char *why = judge_open(step, event);
    if (why != NULL) {
        fault(actions, why);
        return;
    }
    keep_holds(step, event);
    if (step->phase != CAIRN_STEP_DRAINING) {
        begin_round(step, event->round, event->members, event->member_count, actions);
        return;
    }
    memcpy(step->pending_members, event->members, event->member_count * sizeof *event->members);
    step->pending.round = event->round;
    step->pending.member_count = event->member_count;
    if (MUTANT(13)) {
        memset(step->slots, 0,
               (size_t)step->config.member_max * step->config.window * sizeof *step->slots);
        step->slots_used = step->in_flight.receiving = step->in_flight.folding = 0;
        step->in_flight.deferred_first = step->in_flight.deferred_last = NO_SLOT;
        step->summing = false;
        step_drained(step, actions);
    }
}

/* ---- how it ends ---- */

static void report_published(const struct step_machine *step, struct step_actions *actions)
{
    struct step_action *action = step_act(actions, CAIRN_STEP_PUBLISHED_REPORT);
    action->epoch = step->epoch;
    action->round = step->last.round;
    action->version = step->version;
}

static const char *judge_decision(const struct step_machine *step, const struct decision *decision)
{
    if (decision->payload_bytes > step->config.payload_bytes_max)
        return "a decision's payload is longer than is configured";
    struct cairn_version after = step->version;
    if (decision->kind == CAIRN_DECISION_APPLY) after.step++;
    if (decision->kind == CAIRN_DECISION_WRITE) after.generation++;
    if (version_compare(decision->version_after, after) != 0 && !MUTANT(10))
        return "a decision's version does not follow this shard's";
    return NULL;
}

/* Resolves the round for which this shard is prepared. */
static void settle_round(struct step_machine *step, const struct decision *decision,
                         struct step_actions *actions)
{
    const char *why = judge_decision(step, decision);
    if (why != NULL) {
        fault(actions, why);
        return;
    }
    remember_decision(step, decision);
    if (decision->kind != CAIRN_DECISION_SKIP) {
        step->phase = CAIRN_STEP_UPDATING;
        step_act(actions, CAIRN_STEP_UPDATE)->decision = &step->last;
        return;
    }
    step->phase = CAIRN_STEP_IDLE;
    step->version = decision->version_after;
    report_published(step, actions);
}

static bool decides_ours(const struct step_machine *step, const struct decision *decision)
{
    return step->phase == CAIRN_STEP_REDUCED && decision->round == step->round &&
           (decision->kind == CAIRN_DECISION_APPLY || decision->kind == CAIRN_DECISION_SKIP ||
            decision->kind == CAIRN_DECISION_WRITE);
}

static void on_decide(struct step_machine *step, const struct step_event *event,
                      struct step_actions *actions)
{
    const bool in_place = event->epoch == step->epoch && !step->fenced;
    if (in_place && decides_ours(step, event->decision))
        settle_round(step, event->decision, actions);
    else
        fault(actions, "a decision came for a round that this shard is not prepared for");
}

static void on_fence(struct step_machine *step, const struct step_event *event,
                     struct step_actions *actions)
{
    const bool ours = event->epoch == step->epoch && (step->config.forwards || MUTANT(38));
    if (event->epoch <= step->epoch && !ours) {
        struct step_action *refusal = step_act(actions, CAIRN_STEP_ANSWER);
        refusal->refused = true;
        refusal->epoch = step->epoch;
        refusal->version = step->version;
        refusal->decision = &step->last;
        return;
    }
    step->epoch = event->epoch;
    step->fenced = true;
    step->pending.round = 0;
    const bool undecided = step->phase == CAIRN_STEP_COLLECTING ||
                           step->phase == CAIRN_STEP_REDUCING;
    if (undecided) make_void(step, actions);
    if (MUTANT(9) && step->phase == CAIRN_STEP_REDUCED) make_void(step, actions);
    struct step_action *action = step_act(actions, CAIRN_STEP_ANSWER);
    action->epoch = step->epoch;
    action->phase = step->phase;
    action->round = step->phase == CAIRN_STEP_REDUCED ? step->round : 0;
    action->version = step->version;
    action->decision = &step->last;
}

/* Accepts any outcome as already carried out: this shard has no state that the outcome could change. */
static void join_job(struct step_machine *step, const struct step_event *event,
                     struct step_actions *actions)
{
    const struct decision *decision = event->decision;
    if (decision->payload_bytes > step->config.payload_bytes_max) {
        fault(actions, "a decision's payload is longer than is configured");
        return;
    }
    remember_decision(step, decision);
    step->round_seen = event->round;
    step->phase = CAIRN_STEP_IDLE;
    if (!MUTANT(67)) step->version = decision->version_after;
    report_published(step, actions);
}

/* Handles an outcome. The outcome belongs to the prepared round, or to the last settled round. In the
 * second case a prepared round is void. */
static void on_resolve(struct step_machine *step, const struct step_event *event,
                       struct step_actions *actions)
{
    const struct decision *decision = event->decision;
    if (!step->fenced || event->epoch > step->epoch) {
        fault(actions, "an outcome came without a fence before it");
        return;
    }
    step->fenced = false;
    if (step->config.forwards) return;
    if (step->phase == CAIRN_STEP_JOINING) {
        join_job(step, event, actions);
        return;
    }
    if (decides_ours(step, decision)) {
        settle_round(step, decision, actions);
        return;
    }
    if (decision->round != step->last.round || decision->kind != step->last.kind) {
        fault(actions, "the outcome is of a round that this shard is not prepared for");
        return;
    }
    if (step->phase == CAIRN_STEP_REDUCED) make_void(step, actions);
    if (step->phase != CAIRN_STEP_UPDATING) report_published(step, actions);
}

static void on_ready(struct step_machine *step, const struct step_event *event)
{
    assert(step->phase == CAIRN_STEP_IDLE && step->round_seen == 0);
    step->version = event->version;
    step->last.version_after = event->version;
}

/* ---- the world's work ends ---- */

static void report_reduced(struct step_machine *step, struct step_actions *actions)
{
    step->phase = CAIRN_STEP_REDUCED;
    struct step_action *action = step_act(actions, CAIRN_STEP_REDUCED_REPORT);
    action->epoch = step->epoch;
    action->round = step->round;
    action->sums = step->sums;
}

static void on_summed(struct step_machine *step, const struct step_event *event,
                      struct step_actions *actions)
{
    assert(step->summing);
    step->summing = false;
    if (step->phase == CAIRN_STEP_DRAINING) {
        step_drained(step, actions);
        return;
    }
    assert(step->phase == CAIRN_STEP_REDUCING);
    step->sums = *event->sums;
    step->sums.weight = step->progress.weight;
    if (step->lacks_state && !MUTANT(66))
        step->summed = true;
    else
        report_reduced(step, actions);
}

static void on_whole(struct step_machine *step, struct step_actions *actions)
{
    step->lacks_state = false;
    if (!step->summed) return;
    step->summed = false;
    report_reduced(step, actions);
}

static void on_updated(struct step_machine *step, struct step_actions *actions)
{
    assert(step->phase == CAIRN_STEP_UPDATING);
    step->phase = CAIRN_STEP_IDLE;
    step->version = step->last.version_after;
    if (!step->fenced) report_published(step, actions); // otherwise RESOLVE asks for the report
}

/* ---- connections ---- */

static void on_peer(struct step_machine *step, const struct step_event *event,
                    struct step_actions *actions)
{
    struct member *member = step_find(step, event->member);
    if (member == NULL || step->round == 0) return;
    member->lost = event->kind == CAIRN_STEP_PEER_DOWN;
    member->regrant = !member->lost && member->receiving > 0 && !MUTANT(18);
    if (member->lost || member->regrant || step->fenced) return;
    step_grant(step, member, actions);
}

static void on_give_up(struct step_machine *step, struct step_actions *actions)
{
    const bool is_open = step->phase == CAIRN_STEP_COLLECTING ||
                         step->phase == CAIRN_STEP_REDUCING || step->phase == CAIRN_STEP_REDUCED;
    step->pending.round = 0;
    if (is_open) make_void(step, actions);
}

static bool of_coordinator(enum step_event_kind kind)
{
    return kind == CAIRN_STEP_FENCE || kind == CAIRN_STEP_RESOLVE || kind == CAIRN_STEP_OPEN ||
           kind == CAIRN_STEP_DECIDE;
}

void step_on_event(struct step_machine *step, const struct step_event *event,
                   struct step_actions *actions)
{
    // A stale event was sent in an epoch before the last fence.
    const bool stale = of_coordinator(event->kind) && event->epoch < step->epoch;
    if (stale && event->kind != CAIRN_STEP_FENCE) return;
    switch (event->kind) {
    case CAIRN_STEP_READY: on_ready(step, event); return;
    case CAIRN_STEP_FENCE: on_fence(step, event, actions); return;
    case CAIRN_STEP_RESOLVE: on_resolve(step, event, actions); return;
    case CAIRN_STEP_OPEN: on_open(step, event, actions); return;
    case CAIRN_STEP_DECIDE: on_decide(step, event, actions); return;
    case CAIRN_STEP_CHUNK: step_on_chunk(step, event, actions); return;
    case CAIRN_STEP_MICRO_END: step_on_micro_end(step, event, actions); return;
    case CAIRN_STEP_COMMIT: step_on_commit(step, event, actions); return;
    case CAIRN_STEP_PEER_UP:
    case CAIRN_STEP_PEER_DOWN: on_peer(step, event, actions); return;
    case CAIRN_STEP_LANDED: step_on_landed(step, event, actions); return;
    case CAIRN_STEP_FOLDED: step_on_folded(step, event, actions); return;
    case CAIRN_STEP_SUMMED: on_summed(step, event, actions); return;
    case CAIRN_STEP_UPDATED: on_updated(step, actions); return;
    case CAIRN_STEP_LACKS_STATE:
        assert(step->phase != CAIRN_STEP_REDUCED && step->phase != CAIRN_STEP_UPDATING);
        step->lacks_state = true;
        return;
    case CAIRN_STEP_WHOLE: on_whole(step, actions); return;
    case CAIRN_STEP_GIVE_UP: on_give_up(step, actions); return;
    }
    assert(false && "an event of a kind that there is not");
}

/* ---- questions ---- */

enum step_phase step_phase_of(const struct step_machine *step)
{
    return step->phase;
}

uint64_t step_epoch(const struct step_machine *step)
{
    return step->epoch;
}

uint64_t step_round_seen(const struct step_machine *step)
{
    return step->round_seen;
}

uint64_t step_round_of(const struct step_machine *step)
{
    return step->round;
}

struct cairn_version step_version(const struct step_machine *step)
{
    return step->version;
}

const struct decision *step_last(const struct step_machine *step)
{
    return &step->last;
}

uint32_t step_slots_used(const struct step_machine *step)
{
    return step->slots_used;
}

/* ==== step collect ==== */

/* Messages from workers. Each message is first judged, without side effects, and then acted on. */

enum fate {
    FATE_RECEIVE,
    /* a duplicate of a contribution that is in a slot, or of a message that needs no second answer */
    FATE_WAITING,
    FATE_FOLDED, /* a duplicate of a folded contribution, whose answer may have been lost */
    FATE_REFUSE
};

struct judgement {
    enum fate fate;
    cairn_status status; /* REFUSE */
};

static struct judgement refused_with(cairn_status status)
{
    return (struct judgement) { FATE_REFUSE, status };
}

static struct member *step_find(const struct step_machine *step, uint64_t id)
{
    for (uint32_t i = 0; i < step->member_count; i++)
        if (step->members[i].id == id) return &step->members[i];
    return NULL;
}

/* Checks that the message belongs to the current round, and that its sender is a contributor. */
static cairn_status judge_sender(const struct step_machine *step, const struct step_event *event,
                                 const struct member *sender)
{
    if (!MUTANT(3)) {
        if (event->epoch < step->epoch || event->round < step->round_seen) return CAIRN_ERR_STALE;
        if (event->epoch > step->epoch || event->round > step->round_seen)
            return CAIRN_ERR_PROTOCOL;
    }
    if (step->round == 0) return CAIRN_ERR_STALE;
    return sender != NULL ? CAIRN_OK : CAIRN_ERR_FENCED;
}

static bool slot_is_free(const struct step_machine *step, const struct member *member, uint32_t k)
{
    const size_t index = (size_t)(member - step->members) * step->config.window + k;
    return step->slots[index].state == SLOT_FREE;
}

/* Returns the first free slot among the member's slots [first, end); NO_SLOT if none is free. */
static uint32_t find_between(const struct step_machine *step, const struct member *member,
                             uint32_t first, uint32_t end)
{
    for (uint32_t k = first; k < end; k++)
        if (slot_is_free(step, member, k))
            return (uint32_t)(member - step->members) * step->config.window + k;
    return NO_SLOT;
}

/* Returns the first free slot of the kind that the chunk takes. */
static uint32_t find_slot(const struct step_machine *step, const struct step_event *event,
                          const struct member *member)
{
    const struct step_config *config = &step->config;
    const uint32_t landing = config->window - config->in_place, large = landing - config->small;
    if (event->in_place) return find_between(step, member, landing, config->window);
    if (config->small > 0 && event->is_small) return find_between(step, member, large, landing);
    return find_between(step, member, 0, large);
}

bool step_may_receive(const struct step_machine *step)
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

/* Judges a chunk of the member's current micro-batch that has not arrived yet. */
static struct judgement judge_new_chunk(const struct step_machine *step,
                                        const struct step_event *event, const struct member *member)
{
    const uint32_t index = (uint32_t)(member - step->members);
    const bool declared_absent = step_cursor_past(step, event->chunk, event->micro, index);
    if (declared_absent && !MUTANT(1)) return refused_with(CAIRN_ERR_PROTOCOL);
    if (member->ended && member->arrived >= member->sent) return refused_with(CAIRN_ERR_PROTOCOL);
    // A chunk that the sender counts as read in place must not take a slot with memory: another chunk,
    // which the sender counts for that slot, may be under way.
    const bool has_place = !event->in_place || event->is_readable || MUTANT(83);
    if (!has_place || find_slot(step, event, member) == NO_SLOT)
        return refused_with(CAIRN_ERR_BUSY);
    return (struct judgement) { FATE_RECEIVE, CAIRN_OK };
}

/* True if this very contribution is in a slot. Then it is answered only when the slot is released. If it
 * were refused at once because the round is void now, the worker might reuse a buffer that is still being
 * read. */
static bool in_slot(const struct step_machine *step, const struct step_event *event,
                    const struct member *member)
{
    if (member == NULL || event->chunk >= step->config.chunk_count) return false;
    if (event->epoch != step->round_epoch || event->round != step->round_seen) return false;
    if (event->micro != member->micro) return false;
    const uint16_t at = *step_at(step, (uint32_t)(member - step->members), event->chunk);
    return at != AT_NONE && at != AT_FOLDED;
}

static struct judgement judge_chunk(const struct step_machine *step, const struct step_event *event,
                                    const struct member *member)
{
    if (in_slot(step, event, member) && !MUTANT(1) &&
        !(MUTANT(17) && step->phase == CAIRN_STEP_DRAINING))
        return (struct judgement) { FATE_WAITING, CAIRN_OK };
    const cairn_status sender = judge_sender(step, event, member);
    if (sender != CAIRN_OK) return refused_with(sender);
    if (event->chunk >= step->config.chunk_count) return refused_with(CAIRN_ERR_MALFORMED);
    const uint32_t index = (uint32_t)(member - step->members);
    if (!step_holds(step, index, event->chunk)) return refused_with(CAIRN_ERR_MALFORMED);
    const struct judgement folded = { FATE_FOLDED, CAIRN_OK };
    if (MUTANT(31) && step->config.forwards && step->phase == CAIRN_STEP_REDUCING)
        return refused_with(CAIRN_ERR_PROTOCOL);
    if (step->phase != CAIRN_STEP_COLLECTING) return folded; // every chunk is folded
    if (event->micro < member->micro) return folded;
    if (event->micro > member->micro) return refused_with(CAIRN_ERR_PROTOCOL);
    if (member->committed && event->micro > member->last_micro)
        return refused_with(CAIRN_ERR_PROTOCOL);
    const uint16_t at = *step_at(step, index, event->chunk);
    return at == AT_FOLDED && !MUTANT(1) ? folded : judge_new_chunk(step, event, member);
}

static void receive_push(struct step_machine *step, const struct step_event *event,
                         struct member *member, struct step_actions *actions)
{
    const uint32_t index = find_slot(step, event, member);
    step->slots[index] = (struct slot) {
        .request = event->request, .chunk = event->chunk, .next = NO_SLOT, .state = SLOT_RECEIVING
    };
    const uint32_t row = (uint32_t)(member - step->members);
    *step_at(step, row, event->chunk) = (uint16_t)(index - row * step->config.window + 1);
    member->arrived++;
    member->receiving++;
    step->in_flight.receiving++;
    step->slots_used++;
    struct step_action *action = step_act(actions, CAIRN_STEP_RECEIVE);
    action->tag = event->tag;
    action->slot = index;
    action->member = event->member;
    action->chunk = event->chunk;
    // If all chunks that the member sent have arrived now, the member's other chunks are known to be
    // absent.
    if (member->ended && member->arrived == member->sent) step_advance(step, actions);
}

/* Answers the event, and echoes its fields. */
static void answer_event(const struct step_event *event, enum step_action_kind kind,
                         cairn_status status, struct step_actions *actions)
{
    struct step_action *action = step_act(actions, kind);
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

/* Handlers of CHUNK, MICRO_END and COMMIT. */
static void step_on_chunk(struct step_machine *step, const struct step_event *event,
                          struct step_actions *actions)
{
    struct member *member = step_find(step, event->member);
    const struct judgement judgement = judge_chunk(step, event, member);
    if (judgement.fate == FATE_RECEIVE) {
        receive_push(step, event, member, actions);
        return;
    }
    step_act(actions, CAIRN_STEP_DISCARD)->tag = event->tag;
    if (judgement.fate == FATE_FOLDED) answer_event(event, CAIRN_STEP_ACK, CAIRN_OK, actions);
    if (judgement.fate == FATE_REFUSE)
        answer_event(event, CAIRN_STEP_REFUSE, judgement.status, actions);
}

/* Judges a MICRO_END. A MICRO_END or a COMMIT is new (RECEIVE), known (WAITING, or FOLDED if its answer may
 * have been lost), or refused. */
static struct judgement judge_micro_end(const struct step_machine *step,
                                        const struct step_event *event, const struct member *member)
{
    const cairn_status sender = judge_sender(step, event, member);
    if (sender != CAIRN_OK) return refused_with(sender);
    if (step->phase != CAIRN_STEP_COLLECTING || event->micro < member->micro)
        return (struct judgement) { FATE_FOLDED, CAIRN_OK };
    if (event->micro > member->micro) return refused_with(CAIRN_ERR_PROTOCOL);
    if (member->committed && event->micro > member->last_micro)
        return refused_with(CAIRN_ERR_PROTOCOL);
    if ((uint64_t)event->sent + event->absent != step->config.chunk_count)
        return refused_with(CAIRN_ERR_PROTOCOL);
    if (event->absent < member->unheld) return refused_with(CAIRN_ERR_PROTOCOL);
    if (member->ended && member->sent != event->sent) return refused_with(CAIRN_ERR_PROTOCOL);
    if (member->arrived > event->sent) return refused_with(CAIRN_ERR_PROTOCOL);
    return (struct judgement) { member->ended ? FATE_WAITING : FATE_RECEIVE, CAIRN_OK };
}

static void step_on_micro_end(struct step_machine *step, const struct step_event *event,
                              struct step_actions *actions)
{
    struct member *member = step_find(step, event->member);
    const struct judgement judgement = judge_micro_end(step, event, member);
    if (judgement.fate == FATE_REFUSE)
        answer_event(event, CAIRN_STEP_REFUSE, judgement.status, actions);
    if (judgement.fate == FATE_FOLDED) answer_event(event, CAIRN_STEP_MICRO_ACK, CAIRN_OK, actions);
    if (judgement.fate != FATE_RECEIVE) return;
    member->ended = true;
    member->sent = event->sent;
    step_complete_micro(step, member, actions);
    step_advance(step, actions);
}

static struct judgement judge_commit(const struct step_machine *step,
                                     const struct step_event *event, const struct member *member)
{
    const struct judgement known = { FATE_WAITING, CAIRN_OK };
    const cairn_status sender = judge_sender(step, event, member);
    if (sender != CAIRN_OK) return refused_with(sender);
    if (step->phase != CAIRN_STEP_COLLECTING) return known;
    if (member->committed) {
        const bool same = member->last_micro == event->micro && member->weight == event->weight;
        return same ? known : refused_with(CAIRN_ERR_PROTOCOL);
    }
    if (event->micro == UINT32_MAX || event->micro + 1 < member->micro)
        return refused_with(CAIRN_ERR_PROTOCOL);
    const bool begun = member->ended || member->arrived > 0;
    if (event->micro + 1 == member->micro && begun) return refused_with(CAIRN_ERR_PROTOCOL);
    if (event->weight > CAIRN_SPEC_WEIGHT_MAX - step->progress.weight)
        return refused_with(CAIRN_ERR_INVALID);
    return (struct judgement) { FATE_RECEIVE, CAIRN_OK };
}

static void step_on_commit(struct step_machine *step, const struct step_event *event,
                           struct step_actions *actions)
{
    struct member *member = step_find(step, event->member);
    const struct judgement judgement = judge_commit(step, event, member);
    if (judgement.fate == FATE_REFUSE)
        answer_event(event, CAIRN_STEP_REFUSE, judgement.status, actions);
    if (judgement.fate != FATE_RECEIVE) return;
    member->committed = true;
    member->last_micro = event->micro;
    member->weight = event->weight;
    if (!MUTANT(11) || step->progress.weight == 0) step->progress.weight += event->weight;
    step->progress.committed++;
    if (event->micro > step->progress.last_micro) step->progress.last_micro = event->micro;
    if (member->micro > member->last_micro) {
        member->done = true;
        step->progress.done++;
    }
    step_advance(step, actions);
}

/* ---- whom it waits for ---- */

static bool has_landed(const struct step_machine *step, const struct member *member)
{
    const size_t first = (size_t)(member - step->members) * step->config.window;
    for (uint32_t k = 0; k < step->config.window; k++)
        if (step->slots[first + k].state == SLOT_LANDED) return true;
    return false;
}

/* True if the member waits for other members. Whether the member has a free slot does not matter: it may be
 * unable to push more before it gets buffers back. */
static bool waits_for_others(const struct step_machine *step, const struct member *member)
{
    if (member->receiving > 0) return false;
    const bool all_here = member->ended && member->arrived == member->sent;
    return all_here || has_landed(step, member);
}

size_t step_waiting(const struct step_machine *step, struct step_waiting *out, size_t out_max)
{
    if (step->phase != CAIRN_STEP_COLLECTING) return 0;
    size_t count = 0;
    for (uint32_t i = 0; i < step->member_count; i++) {
        const struct member *m = &step->members[i];
        if (m->done) continue;
        if (count < out_max)
            out[count] = (struct step_waiting) {
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
