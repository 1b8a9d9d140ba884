/* The coordinator's daemon: it carries messages between the core and the network, makes durable what the
 * core says, and forgets everything else when it is killed. */
#include <inttypes.h>
#include <string.h>

#include "tests/sim/sim.h"

#define TICK MS(20)

static void do_event(struct sim *sim, struct round_event *event);

/* ---- connections ---- */

void shard_link_break(struct sim *sim, uint32_t shard, double notice)
{
    struct link *link = &shard_at(sim, shard)->control;
    if (!link->up) return;
    link_cut(sim, link);
    const uint64_t silence = rng_exponential(&sim->schedule, notice), most = LEASE + LEASE / 4;
    sim_at(sim, silence < most ? silence : most, E_SHARD_DOWN, shard, 0, link->id);
    sim_at(sim, rng_exponential(&sim->schedule, 1.5 * notice), E_CONTROL_RECONNECT, shard, NOBODY,
           0);
}

void coordinator_kill(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    if (!c->alive) return;
    static const enum seen seen[] = {
        [CAIRN_ROUND_WAITING] = SEEN_restart_waiting,
        [CAIRN_ROUND_FENCING] = SEEN_restart_fencing,
        [CAIRN_ROUND_RESOLVING] = SEEN_restart_resolving,
        [CAIRN_ROUND_STEADY] = SEEN_restart_steady,
        [CAIRN_ROUND_OPEN] = SEEN_restart_open,
        [CAIRN_ROUND_DECIDED] = SEEN_restart_decided,
    };
    const enum round_stage stage = round_stage_of(c->core);
    if (stage != CAIRN_ROUND_FAILED) sim->seen[seen[stage]]++;
    sim_trace(sim, "coordinator killed", c->incarnation, stage, 0);
    c->alive = false;
    standby_coordinator_dies(sim);
    if (c->persisting && sim->scenario.coordinators == 0) {
        // The write was under way: it is on the disk, or it is not.
        if (rng_chance(&sim->fault, 0.5)) {
            store_written(sim);
        } else {
            sim->seen[SEEN_persist_lost]++;
        }
        c->persisting = false;
    }
    coordinator_leave(sim);
    if (sim->scenario.coordinators > 0)
        lead_dies(sim);
    else
        sim_at(sim, rng_exponential(&sim->schedule, 5000), E_COORDINATOR_START, 0, 0, 0);
}

void coordinator_leave(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    c->alive = c->persisting = false;
    for (uint32_t s = 0; s < sim->shard_count; s++) {
        struct link *link = &sim->shards[s].control;
        sim->shards[s].known_up = false;
        if (link->up && link->to != c->incarnation) continue;
        if (link->up) link_cut(sim, link);
        sim_at(sim, rng_exponential(&sim->schedule, 3000), E_CONTROL_RECONNECT, s, NOBODY, 0);
        twin_lost(sim, s);
    }
    for (uint32_t p = 0; p < PROCS_MAX; p++)
        if (sim->procs[p].alive && sim->procs[p].control.to == c->incarnation)
            process_link_break(sim, p);
}

void coordinator_start(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    if (c->alive) return;
    struct round_config config = sim_round_config(sim);
    store_opened(sim);
    c->layout = c->store.layout;
    const uint8_t gone = (uint8_t)~c->layout->shards;
    config.shard_count = c->layout->shard_count;
    config.shard_max = SHARDS_MAX;
    config.gone = &gone;
    config.layout = c->layout->number;
    config.layout_at = c->layout->at;
    config.epoch = c->store.epoch;
    config.round_reserved = c->store.reserved;
    c->core = round_init(sim->round_memory, &config);
    c->alive = true;
    c->incarnation = ++sim->coordinators;
    c->decided_round = 0;
    memset(c->relays, 0, sizeof c->relays);
    memset(c->seats, 0, sizeof c->seats);
    standby_coordinator_starts(sim);
    reshard_start(sim);
    sim_trace(sim, "coordinator starts", c->incarnation, c->store.epoch, c->store.reserved);
    // The core's clock starts here: a deadline set before its first tick would have passed at once.
    struct round_event tick = { .kind = CAIRN_ROUND_TICK, .now_ms = sim->now / 1000 };
    do_event(sim, &tick);
    // The job was initialized before the simulation began; step 0 of generation 1.
    struct round_event ready = { .kind = CAIRN_ROUND_READY, .version = { 1, 0 } };
    do_event(sim, &ready);
    sim_at(sim, TICK, E_TICK, 0, 0, c->incarnation);
    c->stopped_ms = 0;
    c->last_tick = sim->now;
    c->started = false;
    c->awaited = 0;
    c->loss_halts = false;
    for (uint32_t p = 0; p < PROCS_MAX; p++) sim->procs[p].paused_ms = 0;
    if (sim->scenario.lowered > 0)
        sim_at(sim, rng_exponential(&sim->schedule, 30000), E_AMEND, 1, 0, c->incarnation);
}

/* ---- to others ---- */

static void to_shard(struct sim *sim, uint32_t shard, enum message_kind kind,
                     const struct round_action *action)
{
    struct message message = { .kind = kind,
                               .epoch = action->epoch,
                               .round = action->round,
                               .version = action->version,
                               .snapshot = action->snapshot,
                               .layout = (uint32_t)action->layout };
    if (action->decision != NULL) message.decision = *action->decision;
    if (kind == M_OPEN) {
        groups_put_members(sim, shard, action, &message);
        groups_put_relay(sim, shard, &message);
    }
    sim_send_control(sim, &sim->shards[shard].control, 1, E_SHARD_FROM_COORDINATOR, shard, 0,
                     &message);
}

/* The same to the shard's standbys, of which the owner is the one member. */
static void to_standbys(struct sim *sim, uint32_t shard, enum message_kind kind,
                        const struct round_action *action)
{
    struct message message = { .kind = kind,
                               .epoch = action->epoch,
                               .round = action->round,
                               .version = action->version,
                               .layout = (uint32_t)action->layout,
                               .members = { SIM_MIRROR_MEMBER },
                               .member_count = 1 };
    if (action->decision != NULL) message.decision = *action->decision;
    if (kind == M_FENCE || kind == M_RESOLVE || kind == M_OPEN || kind == M_DECIDE)
        standby_send(sim, shard, &message);
}

/* To every shard; it may be killed, or lose a connection, between one and the next. */
static void to_shards(struct sim *sim, enum message_kind kind, const struct round_action *action)
{
    const struct scenario *sc = &sim->scenario;
    const uint32_t first = (uint32_t)rng_below(&sim->schedule, sc->room);
    for (uint32_t i = 0; i < sc->room; i++) {
        const uint32_t shard = (first + i) % sc->room;
        if (!layout_has(sim->coordinator.layout, shard)) continue;
        if (!sim->healed && rng_chance(&sim->fault, sc->kill_midway)) {
            sim->seen[SEEN_restart_midway]++;
            coordinator_kill(sim);
            return;
        }
        if (!sim->healed && rng_chance(&sim->fault, sc->break_midway)) {
            sim->seen[SEEN_control_lost]++;
            shard_link_break(sim, shard, NOTICE);
        }
        const bool is_first = sim->scenario.standbys && rng_chance(&sim->schedule, 0.5);
        if (is_first) to_standbys(sim, shard, kind, action);
        to_shard(sim, shard, kind, action);
        if (!is_first) to_standbys(sim, shard, kind, action);
    }
}

static void to_worker(struct sim *sim, enum message_kind kind, const struct round_action *action)
{
    struct process *proc = sim_process(sim, action->member);
    if (proc == NULL) return;
    struct message message = { .kind = kind,
                               .status = action->status,
                               .epoch = action->epoch,
                               .round = action->round,
                               .member = action->member,
                               .version = action->version,
                               .rank = action->rank,
                               .world = action->world,
                               .loss_scale = action->loss_scale,
                               .write = action->write,
                               .unknown = action->why != NULL };
    if (action->decision != NULL) message.decision = *action->decision;
    const uint32_t index = (uint32_t)(proc - sim->procs);
    sim_send_control(sim, &proc->control, 1, E_WORKER_FROM_COORDINATOR, index, 0, &message);
}

static void persist(struct sim *sim, const struct round_action *action)
{
    struct coordinator *c = &sim->coordinator;
    c->persisting = true;
    c->persist_epoch = action->epoch;
    c->persist_reserved = action->round_reserved;
    c->persist_layout = reshard_layout(sim, action->layout);
    reshard_persisted(sim, c->persist_layout, action->version);
    const uint64_t delay = rng_exponential(&sim->schedule, sim->scenario.disk_delay);
    if (sim->scenario.coordinators > 0)
        lead_persist(sim);
    else
        sim_at(sim, delay, E_PERSISTED, 0, 0, c->incarnation);
}

static void see_result(struct sim *sim, const struct round_action *action)
{
    if (action->status == CAIRN_ERR_EPOCH_CHANGED)
        sim->seen[SEEN_result_void]++;
    else if (sim->coordinator.decided_round != action->round)
        sim->seen[SEEN_result_late]++;
}

/* Nothing takes so long in a round that no fault has touched: somebody waits for what does not come. */
static void see_deadline(struct sim *sim, const struct round_action *action)
{
    const struct process *proc = sim_process(sim, action->member);
    sim->seen[SEEN_workers_deadline]++;
    if (sim->healed && sim->oracle.opened_count > sim->healthy_rounds)
        sim_fail(sim, "a worker was dropped at the step deadline after the faults stopped");
    if (proc != NULL && proc->paused_ms > sim->now / 1000)
        sim_fail(sim, "process %u was dropped at the step deadline while it pauses",
                 (unsigned)(proc - sim->procs));
    if (proc != NULL && !proc->stalled && !proc->mute && !proc->zombie)
        sim_fail(sim, "process %u was dropped at the step deadline for another's fault",
                 (unsigned)(proc - sim->procs));
}

static void see_late_shard(struct sim *sim, const struct round_action *action)
{
    if (sim->healed && sim->oracle.opened_count > sim->healthy_rounds)
        sim_fail(sim, "shard %u was late after the faults stopped", (unsigned)action->shard);
}

/* An operator hears of it. */
static void refuse(struct sim *sim, const struct round_action *action)
{
    const bool lost = sim->coordinator.loss_halts;
    if (!oracle_halted(sim) && !lost && !lead_is_former(sim))
        sim_fail(sim, "a worker is refused a round that could open");
    sim->seen[lost ? SEEN_loss_halted : SEEN_halted]++;
    to_worker(sim, M_REFUSED, action);
    const uint64_t delay = rng_exponential(&sim->schedule, 3000);
    sim_at(sim, delay, E_AMEND, 0, 0, sim->coordinator.incarnation);
}

static void amend(struct sim *sim, bool lower)
{
    struct scenario *sc = &sim->scenario;
    if (lower ? sc->lowered == 0 : !round_halted(sim->coordinator.core))
        return; // it was amended meanwhile, or written
    sim->revision++;
    if (lower) {
        sc->workers_min = sc->lowered;
        sc->lowered = 0;
        sim->seen[SEEN_lowered] += round_worker_count(sim->coordinator.core) >= sc->workers_min;
    } else {
        sim->seen[SEEN_amended]++;
    }
    const struct round_config config = sim_round_config(sim);
    struct round_event event = { .kind = CAIRN_ROUND_AMEND, .terms = &config.terms };
    do_event(sim, &event);
}

/* The first round since workers came: all that were launched are there, or the first of them has waited. */
static void see_start(struct sim *sim, const struct round_action *open)
{
    struct coordinator *c = &sim->coordinator;
    const struct scenario *sc = &sim->scenario;
    if (c->started || open->write) return;
    c->started = true;
    if (sc->launch <= sc->workers_min) return;
    const uint32_t here = round_worker_count(c->core); // a batch may be smaller
    const bool whole = here >= sc->launch;
    if (!whole && sim->now / 1000 < c->came_ms + sc->start_wait_ms)
        sim_fail(sim, "round %" PRIu64 " opens with %u workers of %u that were launched",
                 open->round, (unsigned)here, (unsigned)sc->launch);
    sim->seen[whole ? SEEN_start_waited : SEEN_start_alone]++;
}

/* After a loss: of as many as there were, or they were waited for, or somebody amended the job. */
static void see_losses(struct sim *sim, const struct round_action *open)
{
    const struct coordinator *c = &sim->coordinator;
    const uint32_t there = round_worker_count(c->core);
    if (open->write) return;
    if (c->loss_halts || there < c->awaited)
        sim_fail(sim, "round %" PRIu64 " opens for %u workers after a loss, of %u that are awaited",
                 open->round, (unsigned)there, (unsigned)c->awaited);
}

/* What the event and what came of it say of lost workers. */
static void note_losses(struct sim *sim, const struct round_event *event,
                        const struct round_actions *actions, uint32_t before)
{
    struct coordinator *c = &sim->coordinator;
    const struct scenario *sc = &sim->scenario;
    const uint32_t now = round_worker_count(c->core);
    bool lost = event->kind == CAIRN_ROUND_WORKER_DOWN && now < before;
    for (size_t i = 0; i < actions->count; i++)
        lost |= actions->list[i].kind == CAIRN_ROUND_WORKER_FENCE &&
                actions->list[i].status == CAIRN_ERR_TIMEOUT;
    if (event->kind == CAIRN_ROUND_AMEND) {
        c->awaited = 0;
        c->loss_halts = false;
    }
    if (lost && sc->on_worker_loss == CAIRN_WORKER_LOSS_FAIL) c->loss_halts = true;
    if (lost && sc->on_worker_loss == CAIRN_WORKER_LOSS_WAIT) {
        if (before > c->awaited) c->awaited = before;
        c->awaited_until_ms = c->tick_ms + sc->loss_wait_ms;
    }
    if (now == 0) c->loss_halts = false;
    if (c->awaited == 0) return;
    const bool over = c->tick_ms >= c->awaited_until_ms;
    if (now < c->awaited && !over) return;
    c->awaited = 0;
    sim->seen[over ? SEEN_loss_over : SEEN_loss_waited]++;
}

static void do_action(struct sim *sim, const struct round_action *action)
{
    sim_trace(sim, round_action_name(action->kind), action->member, action->epoch, action->round);
    switch (action->kind) {
    case CAIRN_ROUND_PERSIST: persist(sim, action); return;
    case CAIRN_ROUND_FENCE:
        if (lead_is_former(sim)) { // it hears that it is, or the next one fences again
            to_shards(sim, M_FENCE, action);
            return;
        }
        if (action->epoch <= store_epoch_used(sim))
            sim_fail(sim, "epoch %" PRIu64 " was used before", action->epoch);
        sim->oracle.last_epoch = action->epoch;
        if (sim->slipped) oracle_slipped(sim);
        reshard_in_force(sim, action->layout);
        sim->seen[SEEN_epochs]++;
        if (round_open_round(sim->coordinator.core) == 0) sim->seen[SEEN_epochs_idle]++;
        to_shards(sim, M_FENCE, action);
        return;
    case CAIRN_ROUND_RESOLVE: to_shards(sim, M_RESOLVE, action); return;
    case CAIRN_ROUND_OPEN_SEND:
        oracle_opened(sim, action);
        if (!lead_is_former(sim)) see_start(sim, action);
        if (!lead_is_former(sim)) see_losses(sim, action);
        groups_form(sim, action);
        standby_opens(sim, action);
        to_shards(sim, M_OPEN, action);
        return;
    case CAIRN_ROUND_DECIDE:
        sim->coordinator.decided_round = action->decision->round;
        sim->seen[SEEN_lead_decides] += lead_is_former(sim);
        to_shards(sim, M_DECIDE, action);
        return;
    case CAIRN_ROUND_ASK_LACKS:
        sim->seen[SEEN_pauses] += round_paused_ms(sim->coordinator.core) > 0;
        to_shards(sim, M_ASK_LACKS, action);
        return;
    case CAIRN_ROUND_SHARD_LATE:
        if (!lead_is_former(sim)) see_late_shard(sim, action);
        return;
    case CAIRN_ROUND_PIN_SEND: to_shards(sim, M_PIN, action); return;
    case CAIRN_ROUND_WORKER_OPENED:
        if (!lead_is_former(sim)) oracle_told_worker(sim, action);
        to_worker(sim, M_OPENED, action);
        return;
    case CAIRN_ROUND_WORKER_RESULT:
        see_result(sim, action);
        to_worker(sim, M_RESULT, action);
        return;
    case CAIRN_ROUND_WORKER_FENCE:
        if (action->status == CAIRN_ERR_TIMEOUT && !lead_is_former(sim)) see_deadline(sim, action);
        if (action->status == CAIRN_ERR_FENCED) sim->seen[SEEN_workers_twin]++;
        to_worker(sim, M_FENCED, action);
        return;
    case CAIRN_ROUND_WORKER_REFUSED: refuse(sim, action); return;
    case CAIRN_ROUND_BEHIND:
        if (lead_is_former(sim)) return; // it does no more with the job
        sim_fail(sim, "shard %u is in epoch %" PRIu64 ", which the coordinator knows nothing of",
                 (unsigned)action->shard, action->epoch);
        return;
    case CAIRN_ROUND_FAIL:
        sim_fail(sim, "the coordinator gave the job up: shard %u: %s", (unsigned)action->shard,
                 action->why);
        return;
    }
}

static void do_event(struct sim *sim, struct round_event *event)
{
    struct coordinator *c = &sim->coordinator;
    struct round_config config = sim_round_config(sim);
    struct round_actions actions = { sim->round_list, 0, round_actions_max(&config) };
    const uint32_t before = round_worker_count(c->core);
    if (event->kind == CAIRN_ROUND_TICK) c->tick_ms = event->now_ms;
    if (c->is_acting) sim_fail(sim, "the core is told something in the middle of what it said");
    round_on_event(c->core, event, &actions);
    note_losses(sim, event, &actions, before);
    if (before == 0) c->came_ms = c->tick_ms;
    if (round_worker_count(c->core) == 0) c->started = false;
    const uint64_t incarnation = c->incarnation;
    c->is_acting = true;
    for (size_t i = 0; i < actions.count; i++) {
        if (!c->alive || c->incarnation != incarnation)
            break; // killed midway: the rest is not done
        do_action(sim, &actions.list[i]);
    }
    c->is_acting = false;
}

void coordinator_core_event(struct sim *sim, struct round_event *event)
{
    do_event(sim, event);
}

/* ---- what comes in ---- */

void coordinator_pin(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    if (!c->alive || round_pin_pending(c->core)) return;
    c->pin_waits = reshard_under_way(sim);
    sim->seen[SEEN_pin_waited] += c->pin_waits;
    if (c->pin_waits) return;
    struct round_event event = { .kind = CAIRN_ROUND_PIN,
                                 .snapshot = c->incarnation << 32 | ++c->pins };
    do_event(sim, &event);
    if (c->alive && round_pin_pending(c->core)) sim->seen[SEEN_pin_deferred]++;
}

/* What counts of a shard. */
void coordinator_report(struct sim *sim, uint32_t shard, const struct message *message)
{
    struct round_event event = { .shard = shard,
                                 .epoch = message->epoch,
                                 .round = message->round,
                                 .phase = message->phase,
                                 .version = message->version,
                                 .decision = &message->decision,
                                 .sums = &message->sums,
                                 .lacks = { message->lacks, message->lack_count } };
    switch (message->kind) {
    case M_SHARD_HELLO:
        seat_hello(sim, shard, THE_SHARD, message);
        if (sim->shards[shard].known_up && message->weight > 0) reshard_heard(sim, shard, message);
        return;
    case M_ALIVE: seat_answers(sim, shard, THE_SHARD); return;
    case M_ANSWER:
        event.kind = CAIRN_ROUND_ANSWER;
        event.refused = message->refused;
        break;
    case M_REDUCED:
        event.kind = CAIRN_ROUND_REDUCED;
        event.untouched.list = message->untouched;
        event.untouched.count = message->untouched_count;
        break;
    case M_PUBLISHED: event.kind = CAIRN_ROUND_PUBLISHED; break;
    case M_LACKS: event.kind = CAIRN_ROUND_LACKS; break;
    case M_PREPARED:
    case M_MOVED:
    case M_PUBLISHED_ANEW: reshard_heard(sim, shard, message); return;
    default: sim_fail(sim, "the coordinator got message %d", (int)message->kind); return;
    }
    do_event(sim, &event);
}

static void from_shard(struct sim *sim, uint32_t shard, const struct message *message)
{
    if (shard >= OTHER || message->kind >= M_MIRROR_MAKE)
        standby_from(sim, shard, message);
    else if (!standby_holds(sim, shard, message))
        coordinator_report(sim, shard, message);
}

/* Nothing but what the trainer gives with it can have been missing. */
static void see_commit(struct sim *sim, enum round_stage before)
{
    const bool decided = sim->coordinator.alive &&
                         round_stage_of(sim->coordinator.core) == CAIRN_ROUND_DECIDED;
    if (before == CAIRN_ROUND_OPEN && decided) sim->seen[SEEN_state_awaited]++;
}

static void note_pause(struct sim *sim, const struct message *message)
{
    struct process *proc = sim_process(sim, message->member);
    if (proc != NULL) proc->paused_ms = sim->coordinator.tick_ms + message->weight;
}

static void from_worker(struct sim *sim, const struct message *message)
{
    const enum round_stage before = round_stage_of(sim->coordinator.core);
    struct round_event event = { .member = message->member,
                                 .rank = message->rank,
                                 .round = message->round,
                                 .commit = { message->state, message->state_bytes,
                                             message->driven } };
    switch (message->kind) {
    case M_ATTACH:
        if (!store_admits_worker(sim, message)) return;
        event.kind = CAIRN_ROUND_WORKER_JOIN;
        event.world = sim->scenario.launch;
        event.wait_ms = sim->scenario.start_wait_ms;
        break;
    case M_BEGIN: event.kind = CAIRN_ROUND_WORKER_BEGIN; break;
    case M_WRITE: event.kind = CAIRN_ROUND_WORKER_WRITE; break;
    case M_COMMIT: event.kind = CAIRN_ROUND_WORKER_COMMIT; break;
    case M_ABANDON: event.kind = CAIRN_ROUND_WORKER_ABANDON; break;
    case M_PAUSE:
        event.kind = CAIRN_ROUND_WORKER_PAUSE;
        event.wait_ms = message->weight;
        note_pause(sim, message);
        break;
    default: sim_fail(sim, "the coordinator got message %d", (int)message->kind); return;
    }
    do_event(sim, &event);
    if (message->kind == M_COMMIT) see_commit(sim, before);
}

static void lease_ended(struct sim *sim, uint64_t member)
{
    const struct process *proc = sim_process(sim, member);
    if (proc != NULL && proc->control.up) return;
    struct round_event event = { .kind = CAIRN_ROUND_WORKER_DOWN, .member = member, .lost = true };
    do_event(sim, &event);
}

/* A layout is in force now, though no fence may go out with it yet. */
static void persisted(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    const uint64_t incarnation = c->incarnation;
    struct round_event event = { .kind = CAIRN_ROUND_PERSISTED, .epoch = c->persist_epoch };
    store_written(sim);
    do_event(sim, &event);
    if (c->alive && c->incarnation == incarnation && !lead_is_former(sim))
        reshard_in_force(sim, round_layout_of(c->core));
}

/* A late tick shows that the process was stopped; as on_tick of server/coordinator/cluster.c. */
static uint64_t clock_of(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    const uint64_t passed_ms = (sim->now - c->last_tick) / 1000, late_ms = 4 * TICK / 1000;
    c->last_tick = sim->now;
    if (passed_ms > late_ms) c->stopped_ms += passed_ms - late_ms;
    return sim->now / 1000 - c->stopped_ms;
}

void coordinator_event(struct sim *sim, const struct event *event)
{
    struct coordinator *c = &sim->coordinator;
    if (event->kind == E_COORDINATOR_START && sim->scenario.coordinators == 0)
        coordinator_start(sim);
    if (!c->alive) return;
    struct round_event out = { .kind = CAIRN_ROUND_TICK };
    switch (event->kind) {
    case E_COORDINATOR_FROM_SHARD: from_shard(sim, event->b, event->message); return;
    case E_COORDINATOR_FROM_WORKER: from_worker(sim, event->message); return;
    case E_COORDINATOR_FROM_TWIN:
    case E_PROBE_ENDS: twin_event(sim, event); return;
    case E_ADOPT:
        if (event->conn == c->incarnation) store_adopts(sim);
        return;
    case E_AMEND:
        if (event->conn == c->incarnation) amend(sim, event->a != 0);
        return;
    case E_LEASE: lease_ended(sim, event->conn); return;
    case E_PERSISTED:
        if (event->conn != c->incarnation) return;
        c->persisting = false;
        persisted(sim);
        return;
    case E_TICK:
        if (event->conn != c->incarnation) return;
        out.now_ms = clock_of(sim);
        if (!lead_is_former(sim)) reshard_tick(sim);
        standby_tick(sim);
        if (!c->alive || event->conn != c->incarnation) return;
        sim_at(sim, TICK, E_TICK, 0, 0, c->incarnation);
        break;
    case E_SHARD_DOWN:
        // Another connection has come meanwhile, or the loss was heard of already.
        if (shard_at(sim, event->a)->control.id != event->conn) return;
        if (event->a >= OTHER) {
            standby_down(sim, event->a);
            return;
        }
        if (sim->scenario.standbys) seat_left(sim, event->a, THE_SHARD);
        if (!sim->shards[event->a].known_up) return;
        sim->shards[event->a].known_up = false;
        seat_left(sim, event->a, THE_SHARD);
        standby_owner_down(sim, event->a);
        if (!c->alive) return;
        reshard_shard_down(sim, event->a);
        out.kind = CAIRN_ROUND_SHARD_DOWN;
        out.shard = event->a;
        break;
    default: return;
    }
    do_event(sim, &out);
}
