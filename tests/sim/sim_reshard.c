/* The coordinator while the layout of the job changes, as thin as can be around server/core/move.h: an
 * operator wants chunks elsewhere, a shard more, a shard less; slices bring the job there, a few chunks at a
 * time. */
#include <inttypes.h>
#include <string.h>

#include "tests/sim/sim.h"

static void next_slice(struct sim *sim);

/* ---- to others ---- */

static void to_shard(struct sim *sim, uint32_t shard, enum message_kind kind,
                     const struct sim_layout *layout)
{
    const struct message message = { .kind = kind,
                                     .layout = layout->id,
                                     .sent = layout->published->id };
    sim_send_control(sim, &sim->shards[shard].control, 1, E_SHARD_FROM_COORDINATOR, shard, 0,
                     &message);
}

static void to_all(struct sim *sim, enum message_kind kind, const struct sim_layout *layout)
{
    for (uint32_t s = 0; s < sim->shard_count; s++)
        if (layout_has(layout, s)) to_shard(sim, s, kind, layout);
}

static void to_worker(struct sim *sim, uint32_t index, enum message_kind kind,
                      const struct sim_layout *layout, struct cairn_version version)
{
    struct process *proc = &sim->procs[index];
    const struct message message = { .kind = kind,
                                     .member = proc->life,
                                     .layout = layout->id,
                                     .version = version,
                                     .sent = sim->coordinator.layout->id };
    if (!sim->scenario.reshards || !proc->alive) return;
    sim_send_control(sim, &proc->control, 1, E_WORKER_FROM_COORDINATOR, index, 0, &message);
}

void reshard_tell_worker(struct sim *sim, uint32_t index)
{
    const struct sim_layout *layout = sim->coordinator.layout;
    const struct cairn_version since = { layout->after.generation, layout->after.step + 1 };
    to_worker(sim, index, M_LAYOUT, layout, since);
}

void reshard_attached(struct sim *sim, uint32_t index)
{
    const struct sim_layout *layout = sim->coordinator.layout;
    const struct cairn_version newest = { sim->oracle.generation, sim->oracle.step };
    const struct sim_layout *serves = layout_serves(layout, layout->after, newest);
    to_worker(sim, index, M_ATTACHED, serves, newest);
    if (serves != layout) reshard_tell_worker(sim, index);
}

/* ---- what the machine says ---- */

static bool is_pending(const struct sim *sim)
{
    const struct coordinator *c = &sim->coordinator;
    return c->next != NULL && round_layout_pending(c->core) == c->next->number;
}

static void cut_over(struct sim *sim, bool withdraws)
{
    const struct sim_layout *next = sim->coordinator.next;
    const uint8_t gone = (uint8_t)~next->shards;
    struct round_event event = { .kind = CAIRN_ROUND_LAYOUT,
                                 .layout = { .number = next->number,
                                             .shard_count = next->shard_count,
                                             .gone = &gone,
                                             .back = next->back,
                                             .empty = next->empty } };
    if (withdraws) event.layout.number = 0;
    coordinator_core_event(sim, &event);
}

static void settle(struct sim *sim, uint32_t shard)
{
    const struct sim_layout *layout = sim->coordinator.layout;
    if (shard == CAIRN_MOVE_ALL)
        to_all(sim, M_SETTLED, layout);
    else
        to_shard(sim, shard, M_SETTLED, layout);
}

static void ended(struct sim *sim, const struct move_action *action)
{
    struct coordinator *c = &sim->coordinator;
    if (action->status == CAIRN_OK) {
        sim->seen[SEEN_slices]++;
        sim->seen[SEEN_went_back] += c->layout->back && !c->layout->empty;
        sim->seen[SEEN_left_out] += c->layout->back && c->layout->empty;
        sim->oracle.settled = c->layout;
    } else if (c->next != NULL) {
        sim->seen[SEEN_slice_back]++;
    }
    if (action->status == CAIRN_ERR_NO_MEMORY) sim->seen[SEEN_slice_refused]++;
    if (action->status == CAIRN_ERR_CANCELED) sim->seen[SEEN_slice_cancel]++;
    c->next = NULL;
}

static void do_event(struct sim *sim, struct move_event *event)
{
    struct coordinator *c = &sim->coordinator;
    struct move_action list[CAIRN_MOVE_ACTIONS_MAX];
    struct move_actions actions = { list, 0, CAIRN_MOVE_ACTIONS_MAX };
    event->pending = is_pending(sim);
    move_on_event(c->move, event, &actions);
    for (size_t i = 0; i < actions.count; i++) {
        sim_trace(sim, "slice", list[i].kind, list[i].layout, list[i].shard);
        switch (list[i].kind) {
        case CAIRN_MOVE_PREPARE: to_all(sim, M_PREPARE, c->next); break;
        case CAIRN_MOVE_UNPREPARE: to_all(sim, M_UNPREPARE, c->next); break;
        case CAIRN_MOVE_CUT_OVER: cut_over(sim, false); break;
        case CAIRN_MOVE_WITHDRAW: cut_over(sim, true); break;
        case CAIRN_MOVE_SETTLE: settle(sim, list[i].shard); break;
        case CAIRN_MOVE_ENDED: ended(sim, &list[i]); break;
        }
    }
}

/* ---- a slice ---- */

static bool all_up(const struct sim *sim, const struct sim_layout *layout)
{
    for (uint32_t s = 0; s < sim->shard_count; s++)
        if (layout_has(layout, s) && !sim->shards[s].known_up) return false;
    return true;
}

static void begin(struct sim *sim, struct sim_layout *layout)
{
    const uint8_t gone = (uint8_t)~layout->shards;
    layout_index(sim, layout);
    standby_layout_begins(sim);
    sim->coordinator.next = layout;
    struct move_event event = { .kind = CAIRN_MOVE_BEGIN,
                                .layout = layout->number,
                                .shard_count = layout->shard_count,
                                .gone = &gone,
                                .back = layout->back,
                                .empty = layout->empty };
    do_event(sim, &event);
}

static uint32_t dead_of(const struct sim *sim, const struct sim_layout *layout)
{
    uint32_t dead = 0;
    for (uint32_t s = 0; s < sim->shard_count; s++)
        if (layout_has(layout, s) && !sim->shards[s].alive && !standby_is_awaited(sim, s))
            dead |= 1u << s;
    return dead;
}

/* All that live are whole in the layout in force, as they say or as a decision since shows, and the dead have
 * nothing in it. */
static bool may_go_on(const struct sim *sim, uint32_t dead)
{
    const struct coordinator *c = &sim->coordinator;
    const bool decided = version_compare(round_version(c->core), c->layout->at) > 0;
    for (uint32_t s = 0; s < sim->shard_count; s++) {
        const bool is_dead = (dead >> s & 1) != 0;
        if (!layout_has(c->layout, s)) continue;
        if (is_dead && c->layout->count[s] > 0) return false;
        if (!is_dead && !decided && !move_has_moved(c->move, s)) return false;
    }
    return true;
}

/* Without the shards that are lost: with the chunks where they are, or where they were before the slice. */
static void begin_back(struct sim *sim)
{
    const struct sim_layout *lost = sim->coordinator.layout;
    const uint32_t dead = dead_of(sim, lost);
    struct sim_layout rest = { .shards = lost->shards & ~dead };
    if (!all_up(sim, &rest)) return;
    struct sim_layout *layout = layout_new(sim, lost);
    if (layout == NULL) {
        sim_fail(sim, "more than %d layouts", LAYOUTS_MAX);
        return;
    }
    layout->shards = rest.shards;
    layout->back = true;
    layout->empty = may_go_on(sim, dead);
    if (!layout->empty) memcpy(layout->owner, lost->before->owner, sizeof layout->owner);
    begin(sim, layout);
}

static bool begin_join(struct sim *sim)
{
    const uint32_t shard = sim->plan.joins;
    const struct sim_layout *now = sim->coordinator.layout;
    if (shard == NOBODY || layout_has(now, shard)) return false;
    struct sim_layout *layout = sim->shards[shard].known_up ? layout_new(sim, now) : NULL;
    if (layout == NULL) return true;
    layout->shards |= 1u << shard;
    sim->seen[SEEN_joined]++;
    to_shard(sim, shard, M_JOIN, now);
    begin(sim, layout);
    return true;
}

/* A few of the chunks that are not where the plan has them. */
static bool begin_moves(struct sim *sim)
{
    const struct sim_layout *now = sim->coordinator.layout;
    uint32_t left = 0;
    for (uint32_t c = 0; c < sim->scenario.chunks; c++)
        left += now->owner[c] != sim->plan.target[c];
    if (left == 0) return false;
    struct sim_layout *layout = layout_new(sim, now);
    if (layout == NULL) return true;
    uint32_t count = 1 + (uint32_t)rng_below(&sim->schedule, left);
    for (uint32_t c = 0; c < sim->scenario.chunks && count > 0; c++) {
        if (now->owner[c] == sim->plan.target[c]) continue;
        layout->owner[c] = sim->plan.target[c];
        count--;
    }
    begin(sim, layout);
    return true;
}

/* The shard that is to leave has nothing. When nobody needs a version of it either, it may. */
static bool begin_leave(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    const uint32_t shard = sim->plan.leaves;
    if (shard == NOBODY || !layout_has(c->layout, shard)) return false;
    const enum round_stage stage = round_stage_of(c->core);
    if (stage != CAIRN_ROUND_STEADY && stage != CAIRN_ROUND_OPEN) return true;
    const struct cairn_version version = round_version(c->core);
    if (layout_serves(c->layout, c->layout->after, version) == c->layout) {
        struct sim_layout *layout = layout_new(sim, c->layout);
        if (layout == NULL) return true;
        layout->shards &= ~(1u << shard);
        begin(sim, layout);
    } else if (!c->publishing) {
        c->publishing = true;
        c->published_anew = 0;
        to_all(sim, M_PUBLISH, c->layout);
    }
    return true;
}

/* It was canceled, or counts on a shard that is gone. */
static bool plan_fails(const struct sim *sim)
{
    const struct sim_plan *plan = &sim->plan;
    const struct sim_layout *now = sim->coordinator.layout;
    if (plan->canceled || sim->layout_count + 16 > LAYOUTS_MAX) return true;
    if (plan->joins != NOBODY && !sim->shards[plan->joins].alive) return true;
    for (uint32_t c = 0; c < sim->scenario.chunks; c++)
        if (plan->target[c] != plan->joins && !layout_has(now, plan->target[c])) return true;
    return false;
}

/* A fence is still to bring a shard that died, and is kept, what it had prepared. The coordinator begins no
 * slice while an epoch is being stored, or shards are being fenced. */
static bool some_are_unfenced(const struct sim *sim)
{
    for (uint32_t s = 0; s < sim->shard_count; s++)
        if (layout_has(sim->coordinator.layout, s) && sim->shards[s].unfenced) return true;
    return false;
}

static void next_slice(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    if (!c->alive || sim->failed) return;
    const enum move_stage stage = move_stage_of(c->move);
    if (stage == CAIRN_MOVE_LOST) begin_back(sim);
    if (stage != CAIRN_MOVE_REST) return;
    if (c->pin_waits) coordinator_pin(sim);
    if (!c->alive || !sim->plan.active || round_pin_pending(c->core)) return;
    if (plan_fails(sim)) {
        sim->plan.active = false;
        return;
    }
    if (!all_up(sim, c->layout) || some_are_unfenced(sim) || standby_is_last(sim)) return;
    if (begin_join(sim) || begin_moves(sim) || begin_leave(sim)) return;
    sim->plan.active = false;
    sim->seen[SEEN_plan_done]++;
}

/* ---- what comes in ---- */

void reshard_start(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    const uint8_t gone = (uint8_t)~c->layout->shards;
    const struct move_config config = { .shard_max = SHARDS_MAX,
                                        .shard_count = c->layout->shard_count,
                                        .gone = &gone,
                                        .layout = c->layout->number,
                                        .unsettled = c->layout->before != NULL };
    c->move = move_init(sim->move_memory, &config);
    c->next = NULL;
    c->publishing = c->pin_waits = false;
}

bool reshard_under_way(const struct sim *sim)
{
    return move_stage_of(sim->coordinator.move) != CAIRN_MOVE_REST;
}

struct sim_layout *reshard_layout(struct sim *sim, uint64_t number)
{
    struct coordinator *c = &sim->coordinator;
    if (number == c->layout->number) return c->layout;
    if (c->next == NULL || c->next->number != number)
        sim_fail(sim, "layout %" PRIu64 " is made durable, and nobody made it", number);
    return c->next != NULL ? c->next : c->layout;
}

void reshard_persisted(struct sim *sim, struct sim_layout *layout, struct cairn_version at)
{
    const struct sim_layout *now = sim->coordinator.layout;
    if (layout == now) return;
    if (layout->back && version_compare(layout->at, at) != 0)
        sim_fail(sim, "a layout that goes back came into force at another version");
    if (layout->back) return;
    layout->published = layout_serves(now, now->after, at);
    layout->at = layout->after = at;
}

void reshard_in_force(struct sim *sim, uint64_t number)
{
    struct coordinator *c = &sim->coordinator;
    if (number == c->layout->number) return;
    const struct sim_layout *before = c->layout;
    c->layout = reshard_layout(sim, number);
    c->next = NULL;
    c->publishing = false;
    for (uint32_t p = 0; p < PROCS_MAX; p++) reshard_tell_worker(sim, p);
    for (uint32_t s = 0; s < sim->shard_count; s++)
        if (layout_has(before, s) && !layout_has(c->layout, s)) to_shard(sim, s, M_LEAVE, before);
    struct move_event event = { .kind = CAIRN_MOVE_IN_FORCE, .layout = number };
    do_event(sim, &event);
}

bool reshard_leaves(struct sim *sim, uint32_t shard)
{
    const struct coordinator *c = &sim->coordinator;
    if (layout_has(c->layout, shard) || (sim->plan.active && sim->plan.joins == shard))
        return false;
    return c->next == NULL || !layout_has(c->next, shard);
}

static void published_anew(struct sim *sim, uint32_t shard)
{
    struct coordinator *c = &sim->coordinator;
    c->published_anew |= 1u << shard;
    if (!c->publishing || (c->layout->shards & ~c->published_anew) != 0) return;
    c->publishing = false;
    c->layout->after = (struct cairn_version) { 0, 0 };
    sim->seen[SEEN_published_anew]++;
    for (uint32_t p = 0; p < PROCS_MAX; p++) reshard_tell_worker(sim, p);
}

void reshard_heard(struct sim *sim, uint32_t shard, const struct message *message)
{
    const struct coordinator *c = &sim->coordinator;
    const struct sim_layout *layout = &sim->layouts[message->layout];
    struct move_event event = { .shard = shard,
                                .layout = layout->number,
                                .status = message->status };
    if (message->kind == M_PUBLISHED_ANEW && layout == c->layout) published_anew(sim, shard);
    if (message->kind == M_PREPARED && layout == c->next) {
        event.kind = CAIRN_MOVE_PREPARED;
        do_event(sim, &event);
    }
    if (message->kind == M_MOVED || message->kind == M_SHARD_HELLO) {
        event.kind = CAIRN_MOVE_MOVED;
        do_event(sim, &event);
    }
    next_slice(sim);
}

void reshard_shard_down(struct sim *sim, uint32_t shard)
{
    struct move_event event = { .kind = CAIRN_MOVE_SHARD_DOWN, .shard = shard };
    sim->coordinator.publishing = false; // it may not have heard of it
    do_event(sim, &event);
}

/* Who is gone for good the operator knows. */
void reshard_tick(struct sim *sim)
{
    const struct coordinator *c = &sim->coordinator;
    for (uint32_t s = 0; s < sim->shard_count; s++) {
        const bool concerns = layout_has(c->layout, s) ||
                              (c->next != NULL && layout_has(c->next, s));
        struct move_event event = { .kind = CAIRN_MOVE_SHARD_LOST, .shard = s };
        const bool is_mirrored = sim->scenario.standbys && s < sim->scenario.shards;
        if (concerns && !sim->shards[s].alive && !sim->shards[s].known_up && !is_mirrored)
            do_event(sim, &event);
    }
    next_slice(sim);
}

/* ---- what an operator wants ---- */

static uint32_t any_of(struct sim *sim, uint32_t shards)
{
    uint32_t shard = (uint32_t)rng_below(&sim->fault, SHARDS_MAX);
    while ((shards >> shard & 1) == 0) shard = (shard + 1) % SHARDS_MAX;
    return shard;
}

static void make_plan(struct sim *sim)
{
    const struct sim_layout *now = sim->oracle.layout;
    struct sim_plan *plan = &sim->plan;
    *plan = (struct sim_plan) { .active = true, .joins = NOBODY, .leaves = NOBODY };
    uint32_t to = now->shards;
    const uint64_t kind = rng_below(&sim->fault, 3);
    if (kind == 1 && sim->shard_count < sim->scenario.room) {
        plan->joins = sim->shard_count;
        to |= 1u << plan->joins;
        shard_join(sim);
    }
    if (kind == 2 && (to & (to - 1)) != 0) {
        plan->leaves = any_of(sim, to);
        to &= ~(1u << plan->leaves);
    }
    for (uint32_t c = 0; c < sim->scenario.chunks; c++) {
        plan->target[c] = now->owner[c];
        if ((to >> now->owner[c] & 1) == 0 || rng_chance(&sim->fault, 0.4))
            plan->target[c] = any_of(sim, to);
    }
}

void reshard_want(struct sim *sim)
{
    if (!sim->plan.active) {
        make_plan(sim);
        return;
    }
    if (rng_chance(&sim->fault, 0.5)) {
        sim->seen[SEEN_plan_two]++; // it is told that one is under way
        return;
    }
    sim->plan.canceled = true;
    struct move_event event = { .kind = CAIRN_MOVE_CANCEL };
    const bool goes_back = sim->coordinator.next != NULL && sim->coordinator.next->back;
    if (sim->coordinator.alive && !goes_back) do_event(sim, &event);
}
