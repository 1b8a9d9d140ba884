/* The mirrors that the coordinator has at standbys, as thin as can be around mirror_on
 * (server/core/mirror.h), as server/coordinator/mirror.c. */
#include <inttypes.h>
#include <string.h>

#include "tests/sim/sim.h"

/* Of a process without a place. */
static struct sim_mirror *mirror_at(struct sim *sim, uint32_t id)
{
    return &sim->coordinator.mirrors[WHICH(id)][PLACE(id)];
}

static const struct sim_mirror *mirror_of(const struct sim *sim, uint32_t id)
{
    return &sim->coordinator.mirrors[WHICH(id)][PLACE(id)];
}

/* True if the place may have standbys. */
static bool may_have(const struct sim *sim, uint32_t place)
{
    return sim->scenario.standbys > 0 && place < sim->scenario.shards;
}

static void to_process(struct sim *sim, uint32_t id, const struct message *message)
{
    sim_send_control(sim, &shard_at(sim, id)->control, 1, E_SHARD_FROM_COORDINATOR, id, 0, message);
}

static void tell(struct sim *sim, uint32_t id, enum message_kind kind, uint64_t request)
{
    const struct message message = { .kind = kind,
                                     .request = request,
                                     .weight = sim->shards[PLACE(id)].life,
                                     .layout = sim->coordinator.layout->id };
    to_process(sim, id, &message);
}

static bool may_mirror(const struct sim *sim)
{
    const struct coordinator *c = &sim->coordinator;
    return c->next == NULL && !sim->plan.active && !c->publishing &&
           move_stage_of(c->move) == CAIRN_MOVE_REST;
}

static bool is_taking(const struct sim *sim, uint32_t place)
{
    EACH_STANDBY (sim, place, id)
        if (mirror_is_taking(&mirror_of(sim, id)->state)) return true;
    return false;
}

static struct mirror_view view_of(const struct sim *sim, uint32_t id)
{
    const struct coordinator *c = &sim->coordinator;
    const uint32_t place = PLACE(id);
    const struct sim_mirror *m = mirror_of(sim, id);
    const struct sim_owner *owner = &c->owners[place];
    const bool takes_part = mirror_takes_part(&m->state);
    const uint64_t patience_ms = sim->scenario.patience_ms;
    const bool is_early = !takes_part && patience_ms < LEASE / 1000;
    const bool is_away = c->seats[place].sitter == NO_SITTER;
    return (struct mirror_view) {
        .fits = m->layout == c->layout,
        .has_standby = m->is_there && (takes_part || shard_at(sim, id)->core != NULL),
        .has_owner = sim->shards[place].known_up,
        .owner_is_empty = owner->is_empty,
        .owner_comes = is_taking(sim, place) || (!is_away && !owner->is_empty),
        .may_mirror = may_mirror(sim),
        .may_take = c->next == NULL,
        .away_ms = is_away ? (sim->now - owner->gone) / 1000 : 0,
        .patience_ms = is_early ? LEASE / 1000 : patience_ms,
    };
}

static void mirror_event(struct sim *sim, uint32_t id, enum mirror_event event);

/* CAIRN_MIRROR_REPORTS: it is none. */
static enum mirror_report_kind kind_of(const struct message *message)
{
    switch (message->kind) {
    case M_ANSWER: return message->refused ? CAIRN_MIRROR_REPORTS : CAIRN_MIRROR_ANSWER;
    case M_REDUCED: return CAIRN_MIRROR_REDUCED;
    case M_PUBLISHED: return CAIRN_MIRROR_PUBLISHED;
    default: return CAIRN_MIRROR_REPORTS;
    }
}

static struct mirror_report report_of(const struct message *message)
{
    return (struct mirror_report) { message->epoch,
                                    message->kind == M_ANSWER ? 0 : message->round };
}

/* Hands the owner's report to the core: an answer with what its standbys know. */
static void pass(struct sim *sim, uint32_t place, const struct message *report)
{
    struct message *spare = &sim->spare_message;
    *spare = *report;
    spare->decision.payload = spare->payload;
    EACH_STANDBY (sim, place, id) {
        const struct sim_mirror *m = mirror_of(sim, id);
        const bool knows_more = report->kind == M_ANSWER && mirror_takes_part(&m->state) &&
                                mirror_knows_more(m->answer.decision.round, spare->decision.round);
        if (!knows_more) continue;
        sim->seen[SEEN_mirror_knows]++;
        spare->decision = m->answer.decision;
        spare->decision.payload = spare->payload;
        memcpy(spare->payload, m->answer.payload, sizeof m->answer.payload);
    }
    coordinator_report(sim, place, spare);
}

/* True if the owner's report waits for no standby. */
static bool may_pass(const struct sim *sim, uint32_t place, enum mirror_report_kind kind,
                     struct mirror_report report)
{
    const struct mirror_state *const states[CAIRN_STANDBYS_MAX] = {
        &sim->coordinator.mirrors[0][place].state, &sim->coordinator.mirrors[1][place].state
    };
    return mirrors_pass(states, kind, report);
}

static void pass_all(struct sim *sim, uint32_t place)
{
    for (int kind = 0; kind < CAIRN_MIRROR_REPORTS; kind++) {
        struct sim_owner *owner = &sim->coordinator.owners[place];
        if (!sim->coordinator.alive || !owner->holds[kind]) continue;
        if (!may_pass(sim, place, (enum mirror_report_kind)kind, report_of(&owner->held[kind])))
            continue;
        owner->holds[kind] = false;
        if (sim->shards[place].known_up) pass(sim, place, &owner->held[kind]);
    }
}

static void forget_reports(struct sim *sim, uint32_t place)
{
    struct sim_owner *owner = &sim->coordinator.owners[place];
    memset(owner->holds, 0, sizeof owner->holds);
}

/* ---- the store ---- */

static void write_row(struct sim *sim, uint32_t id, enum sim_row_kind kind, uint64_t serial)
{
    struct coordinator *c = &sim->coordinator;
    const struct sim_mirror *m = mirror_of(sim, id);
    if (c->row_count == SIM_ROWS_MAX) {
        sim_fail(sim, "%d writes wait for the store", SIM_ROWS_MAX);
        return;
    }
    c->rows[c->row_count++] = (struct sim_row_write) { .kind = kind,
                                                       .id = id,
                                                       .row = { m->life, m->layout },
                                                       .name = sim->shards[PLACE(id)].name,
                                                       .serial = serial };
    if (c->row_count > 1) return;
    sim_at(sim, rng_exponential(&sim->schedule, sim->scenario.row_delay), E_ROW_SAVED, 0, 0,
           c->incarnation);
}

static void apply_row(struct store *store, const struct sim_row_write *write)
{
    struct sim_row *row = &store->mirrors[WHICH(write->id)][PLACE(write->id)];
    switch (write->kind) {
    case SIM_ROW_IN_STEP: *row = write->row; return;
    case SIM_ROW_DROPPED:
        if (row->life == write->row.life) *row = (struct sim_row) { 0, NULL };
        return;
    case SIM_ROW_PLACE: store->name[PLACE(write->id)] = write->name; return;
    }
}

void standby_row_saved(struct sim *sim, uint64_t incarnation)
{
    struct coordinator *c = &sim->coordinator;
    if (!c->alive || incarnation != c->incarnation) return;
    const struct sim_row_write write = c->rows[0];
    memmove(c->rows, c->rows + 1, --c->row_count * sizeof c->rows[0]);
    const bool fails = !sim->healed && rng_chance(&sim->fault, 0.05);
    if (!fails || rng_chance(&sim->fault, 0.5)) apply_row(&c->store, &write);
    if (c->row_count > 0)
        sim_at(sim, rng_exponential(&sim->schedule, sim->scenario.row_delay), E_ROW_SAVED, 0, 0,
               c->incarnation);
    if (write.serial == 0 || write.serial != mirror_at(sim, write.id)->serial) return;
    sim->seen[SEEN_mirror_unsaved] += fails;
    mirror_event(sim, write.id, fails ? CAIRN_MIRROR_ON_NOT_SAVED : CAIRN_MIRROR_ON_SAVED);
}

static void see_restart(struct sim *sim, enum mirror_stage stage)
{
    if (stage == CAIRN_MIRROR_STORING) sim->seen[SEEN_restart_storing]++;
    if (stage == CAIRN_MIRROR_TAKING) sim->seen[SEEN_restart_taking]++;
    if (stage == CAIRN_MIRROR_ENDING) sim->seen[SEEN_restart_ending]++;
}

/* Of what was being written some is on the disk. */
void standby_coordinator_dies(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    for (uint32_t p = 0; p < SHARDS_MAX; p++)
        EACH_STANDBY (sim, p, id) {
            struct sim_shard *other = shard_at(sim, id);
            see_restart(sim, mirror_at(sim, id)->state.stage);
            other->known_up = false;
            if (other->control.up) link_cut(sim, &other->control);
            sim_at(sim, rng_exponential(&sim->schedule, 3000), E_CONTROL_RECONNECT, id, NOBODY, 0);
        }
    const uint32_t done = c->row_count > 0 ? (uint32_t)rng_below(&sim->fault, c->row_count + 1) : 0;
    for (uint32_t i = 0; i < done; i++) apply_row(&c->store, &c->rows[i]);
    c->row_count = 0;
}

/* Whoever has the place, says the store. */
static void seat_stored(struct sim *sim, uint32_t place)
{
    const uint32_t name = sim->coordinator.store.name[place];
    EACH_STANDBY (sim, place, id) {
        if (shard_at(sim, id)->name != name) continue;
        sim->seen[SEEN_place_lost]++;
        standby_swap(sim, id);
        return;
    }
}

/* As mirrors are loaded: a row of a standby that has the place is a leftover. */
void standby_coordinator_starts(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    memset(c->mirrors, 0, sizeof c->mirrors);
    memset(c->owners, 0, sizeof c->owners);
    for (uint32_t p = 0; p < sim->scenario.shards; p++) {
        seat_stored(sim, p);
        c->owners[p].gone = sim->now;
        EACH_STANDBY (sim, p, id) {
            const struct sim_row *row = &c->store.mirrors[WHICH(id)][p];
            *mirror_at(sim, id) = (struct sim_mirror) {
                .life = row->life,
                .layout = row->life != sim->shards[p].life ? row->layout : NULL,
                .state.is_stored = row->life != 0,
                .serial = ++sim->serials,
            };
        }
    }
}

/* ---- its orders ---- */

/* The owner and the standby hear that it is over; from here on no late answer counts. */
static void part_both(struct sim *sim, uint32_t id)
{
    struct sim_mirror *m = mirror_at(sim, id);
    if (m->is_there) tell(sim, id, M_MIRROR_DROP, 0);
    m->is_there = false;
    m->serial = ++sim->serials;
}

static void go_alone(struct sim *sim, uint32_t id)
{
    mirror_at(sim, id)->again = sim->now + rng_exponential(&sim->schedule, 10000);
    sim->seen[SEEN_mirror_ended]++;
}

static void pair(struct sim *sim, uint32_t id)
{
    struct sim_mirror *m = mirror_at(sim, id);
    m->paired = 0;
    tell(sim, PLACE(id), M_MIRROR_JOIN, m->serial);
    tell(sim, id, M_MIRROR_OF, m->serial);
}

static void take_place(struct sim *sim, uint32_t id)
{
    struct coordinator *c = &sim->coordinator;
    const uint32_t place = PLACE(id);
    struct sim_mirror *m = mirror_at(sim, id);
    const bool is_connected = c->seats[place].sitter == THE_SHARD;
    sim->seen[SEEN_places_taken]++;
    sim->seen[SEEN_places_cut_off] += sim->shards[place].alive && !sim->shards[place].is_empty;
    EACH_STANDBY (sim, place, other) {
        sim->seen[SEEN_places_taken_of_two] += other != id && standby_is_in_step(sim, other);
        if (other != id && mirror_is_taking(&mirror_at(sim, other)->state))
            sim_fail(sim, "two standbys take the place of shard %u", place);
    }
    forget_reports(sim, place);
    if (is_connected) tell(sim, place, M_MIRROR_DROP, 0);
    standby_swap(sim, id);
    oracle_takes_place(sim, place);
    shard_at(sim, id)->known_up = is_connected;
    sim->shards[place].known_up = false;
    c->seats[place] = (struct seat) { .sitter = THE_SHARD, .conn = sim->shards[place].control.id };
    c->owners[place].is_empty = m->is_there = false;
    c->owners[place].gone = sim->now;
    m->serial = ++sim->serials;
    write_row(sim, id, SIM_ROW_PLACE, m->serial);
}

static void own(struct sim *sim, uint32_t id)
{
    struct sim_mirror *m = mirror_at(sim, id);
    write_row(sim, id, SIM_ROW_DROPPED, 0);
    m->life = 0;
    m->layout = NULL;
    // it may be another process already, which has nothing
    if (sim->coordinator.seats[PLACE(id)].sitter == THE_SHARD &&
        !sim->coordinator.owners[PLACE(id)].is_empty)
        tell(sim, PLACE(id), M_MIRROR_OWNS, m->serial);
}

static void mirror_event(struct sim *sim, uint32_t id, enum mirror_event event)
{
    struct sim_mirror *m = mirror_at(sim, id);
    const struct mirror_view view = view_of(sim, id);
    const enum mirror_order order = mirror_on(&m->state, event, &view);
    if (order != CAIRN_MIRROR_DO_NOTHING)
        sim_trace(sim, "mirror", id, event, (uint64_t)order << 8 | m->state.stage);
    switch (order) {
    case CAIRN_MIRROR_DO_NOTHING: break;
    case CAIRN_MIRROR_DO_PAIR: pair(sim, id); break;
    case CAIRN_MIRROR_DO_JOIN: break; // standby_opens
    case CAIRN_MIRROR_DO_STORE: write_row(sim, id, SIM_ROW_IN_STEP, m->serial); break;
    case CAIRN_MIRROR_DO_END:
        part_both(sim, id);
        go_alone(sim, id);
        break;
    case CAIRN_MIRROR_DO_UNSTORE:
        part_both(sim, id);
        write_row(sim, id, SIM_ROW_DROPPED, m->serial);
        break;
    case CAIRN_MIRROR_DO_GO_ALONE: go_alone(sim, id); break;
    case CAIRN_MIRROR_DO_TAKE: take_place(sim, id); break;
    case CAIRN_MIRROR_DO_TAKE_AGAIN:
        if (sim->coordinator.row_count == 0) write_row(sim, id, SIM_ROW_PLACE, m->serial);
        break;
    case CAIRN_MIRROR_DO_OWN: own(sim, id); break;
    }
    pass_all(sim, PLACE(id));
}

static void each_mirror(struct sim *sim, uint32_t place, enum mirror_event event)
{
    EACH_STANDBY (sim, place, id) mirror_event(sim, id, event);
}

/* ---- what comes in ---- */

bool standby_holds(struct sim *sim, uint32_t place, const struct message *message)
{
    struct sim_owner *owner = &sim->coordinator.owners[place];
    const struct mirror_report report = report_of(message);
    const enum mirror_report_kind kind = kind_of(message);
    if (!sim->scenario.standbys || kind == CAIRN_MIRROR_REPORTS) return false;
    if (report.epoch != round_epoch_of(sim->coordinator.core)) return false; // nobody knows of it
    if (may_pass(sim, place, kind, report)) {
        pass(sim, place, message);
        return true;
    }
    owner->held[kind] = *message;
    owner->holds[kind] = true;
    owner->since[kind] = sim->now;
    struct message sums = *message;
    sums.kind = M_MIRROR_SUMS;
    EACH_STANDBY (sim, place, id) {
        const struct sim_mirror *m = mirror_at(sim, id);
        if (kind == CAIRN_MIRROR_REDUCED && mirror_takes_part(&m->state) && m->is_there)
            to_process(sim, id, &sums);
    }
    return true;
}

static void on_report(struct sim *sim, uint32_t id, const struct message *message)
{
    const uint32_t place = PLACE(id);
    struct sim_mirror *m = mirror_at(sim, id);
    const struct sim_owner *owner = &sim->coordinator.owners[place];
    const enum mirror_report_kind kind = kind_of(message);
    if (!mirror_takes_part(&m->state) || !m->is_there) return;
    const struct message *held = &owner->held[CAIRN_MIRROR_REDUCED];
    const bool is_compared = kind == CAIRN_MIRROR_REDUCED && owner->holds[kind] &&
                             held->round == message->round && held->epoch == message->epoch;
    if (is_compared && (memcmp(&held->sums.sum_squares, &message->sums.sum_squares,
                               sizeof held->sums.sum_squares) != 0 ||
                        held->sums.nonfinite != message->sums.nonfinite))
        sim_fail(sim, "shard %u and its standby have other sums of round %" PRIu64, place,
                 message->round);
    if (kind == CAIRN_MIRROR_REPORTS) return;
    if (kind == CAIRN_MIRROR_ANSWER) m->answer = *message;
    mirror_hears(&m->state, kind, report_of(message));
    pass_all(sim, place);
}

/* A process that has no place comes: it is the standby that the store knows, or what it has is of no use. */
static void on_other_hello(struct sim *sim, uint32_t id, const struct message *message)
{
    struct sim_mirror *m = mirror_at(sim, id);
    const bool was_there = m->is_there;
    m->is_there = false;
    if (was_there) mirror_event(sim, id, CAIRN_MIRROR_ON_STANDBY_LOST);
    shard_at(sim, id)->known_up = true;
    const struct mirror_view view = view_of(sim, id);
    const bool fits = mirror_expects(&m->state, &view) && m->life == message->member;
    if (!sim->coordinator.alive) return;
    if (fits && store_admits(sim, id))
        m->is_there = true;
    else if (message->unknown)
        tell(sim, id, M_MIRROR_DROP, 0);
}

static void on_paired(struct sim *sim, uint32_t id, uint32_t who)
{
    struct sim_mirror *m = mirror_at(sim, id);
    m->paired |= who;
    if (m->paired == 3) mirror_event(sim, id, CAIRN_MIRROR_ON_PAIRED);
}

/* Finds the standby whose mirror asked the process. 0: none does now. */
static uint32_t asked_by(const struct sim *sim, uint32_t id, uint64_t request)
{
    if (id >= OTHER) return mirror_of(sim, id)->serial == request ? id : 0;
    EACH_STANDBY (sim, id, other)
        if (mirror_of(sim, other)->serial == request) return other;
    return 0;
}

void standby_from(struct sim *sim, uint32_t id, const struct message *message)
{
    const uint32_t place = PLACE(id), asker = asked_by(sim, id, message->request);
    const bool is_other = id >= OTHER;
    switch (message->kind) {
    case M_SHARD_HELLO: on_other_hello(sim, id, message); return;
    case M_ANSWER:
    case M_REDUCED:
    case M_PUBLISHED: on_report(sim, id, message); return;
    case M_MIRROR_MADE:
        if (asker != 0 && is_other) mirror_event(sim, id, CAIRN_MIRROR_ON_MADE);
        return;
    case M_MIRROR_PAIRED:
        if (asker != 0) on_paired(sim, asker, is_other ? 1 : 2);
        return;
    case M_MIRROR_FILLED:
        if (asker != 0 && is_other) mirror_event(sim, id, CAIRN_MIRROR_ON_FILLED);
        return;
    case M_MIRROR_FREE:
        if (asker != 0 && !is_other && !sim->shards[place].known_up) seat_up(sim, place);
        return;
    default: return; // the core knows nothing of it
    }
}

bool standby_has_place(struct sim *sim, uint32_t place, const struct message *hello)
{
    if (!may_have(sim, place)) return true;
    struct sim_owner *owner = &sim->coordinator.owners[place];
    owner->is_empty = !hello->unknown;
    if (is_taking(sim, place)) return false;
    if (!owner->is_empty) return true;
    if (sim->shards[place].known_up) seat_down(sim, place);
    return false;
}

void standby_owner_up(struct sim *sim, uint32_t place)
{
    if (!may_have(sim, place)) return;
    tell(sim, place, M_MIRROR_OWNS, 0); // who gave it the place may have died before that
    each_mirror(sim, place, CAIRN_MIRROR_ON_OWNER_BACK);
}

void standby_owner_down(struct sim *sim, uint32_t place)
{
    if (!may_have(sim, place)) return;
    sim->coordinator.owners[place].gone = sim->now;
    forget_reports(sim, place);
    each_mirror(sim, place, CAIRN_MIRROR_ON_OWNER_LOST);
}

void standby_down(struct sim *sim, uint32_t id)
{
    struct sim_mirror *m = mirror_at(sim, id);
    shard_at(sim, id)->known_up = false;
    if (!m->is_there) return;
    m->is_there = false;
    mirror_event(sim, id, CAIRN_MIRROR_ON_STANDBY_LOST);
}

/* ---- rounds ---- */

void standby_send(struct sim *sim, uint32_t place, const struct message *message)
{
    if (!may_have(sim, place)) return;
    if (message->kind == M_FENCE) forget_reports(sim, place);
    EACH_STANDBY (sim, place, id) {
        const struct sim_mirror *m = mirror_at(sim, id);
        if (mirror_takes_part(&m->state) && m->is_there) to_process(sim, id, message);
    }
}

/* Brings the standby's machine to where the owner's is: no round is open, and the last one is resolved. */
static void join_rounds(struct sim *sim, uint32_t id, uint64_t round, struct cairn_version version)
{
    const struct round_machine *core = sim->coordinator.core;
    struct sim_mirror *m = mirror_at(sim, id);
    const struct mirror_view view = view_of(sim, id);
    struct message message = { .kind = M_FENCE,
                               .epoch = round_epoch_of(core),
                               .layout = (uint32_t)sim->coordinator.layout->number };
    if (!m->is_there || version_compare(round_last(core)->version_after, version) != 0) return;
    if (mirror_on(&m->state, CAIRN_MIRROR_ON_OPENS, &view) != CAIRN_MIRROR_DO_JOIN) return;
    to_process(sim, id, &message);
    message.kind = M_RESOLVE;
    message.round = round;
    message.decision = *round_last(core);
    to_process(sim, id, &message);
}

static void join_at_rest(struct sim *sim, uint32_t id)
{
    const struct round_machine *core = sim->coordinator.core;
    sim->seen[SEEN_mirror_at_rest]++;
    join_rounds(sim, id, round_last(core)->round, round_version(core));
}

static void opens(struct sim *sim, const struct round_action *open, uint32_t id)
{
    if (open->write && mirror_takes_part(&mirror_at(sim, id)->state))
        mirror_event(sim, id, CAIRN_MIRROR_ON_END);
    else if (!open->write)
        join_rounds(sim, id, open->round - 1, open->version);
}

void standby_opens(struct sim *sim, const struct round_action *open)
{
    for (uint32_t p = 0; p < sim->scenario.shards && sim->scenario.standbys; p++) {
        if (open->write &&
            standby_is_awaited(sim, p)) { // a mirror ends with a write: nobody has the part
            sim->seen[SEEN_lost_in_write]++;
            sim->done = true;
        }
        EACH_STANDBY (sim, p, id) opens(sim, open, id);
    }
}

/* ---- time ---- */

void standby_layout_begins(struct sim *sim)
{
    for (uint32_t p = 0; p < sim->scenario.shards; p++) each_mirror(sim, p, CAIRN_MIRROR_ON_END);
}

static void begin_mirror(struct sim *sim, uint32_t id)
{
    struct sim_mirror *m = mirror_at(sim, id);
    const struct sim_shard *owner = &sim->shards[PLACE(id)], *other = shard_at(sim, id);
    const struct sim_layout *layout = sim->coordinator.layout;
    // a standby serves no version that the owner published in the layout before
    if (version_compare(round_version(sim->coordinator.core), layout->after) <= 0 &&
        layout->before != NULL)
        return;
    if (m->state.stage != CAIRN_MIRROR_NONE || m->state.is_stored || sim->now < m->again) return;
    if (!owner->known_up || !other->known_up || !layout_has(layout, PLACE(id))) return;
    m->serial = ++sim->serials;
    m->life = other->life;
    m->layout = layout;
    m->is_there = true;
    mirror_event(sim, id, CAIRN_MIRROR_ON_BEGIN);
    tell(sim, id, M_MIRROR_MAKE, m->serial);
}

static bool is_late(const struct sim *sim, uint32_t id)
{
    const struct sim_owner *owner = &sim->coordinator.owners[PLACE(id)];
    const uint64_t died = sim->shards[PLACE(id)].died, silent = died > 0 ? sim->now - died : 0;
    for (int kind = 0; kind < CAIRN_MIRROR_REPORTS; kind++)
        if (owner->holds[kind] &&
            !mirror_passes(&mirror_of(sim, id)->state, (enum mirror_report_kind)kind,
                           report_of(&owner->held[kind])) &&
            mirror_is_late((sim->now - owner->since[kind]) / 1000, silent / 1000, LEASE / 1000))
            return true;
    return false;
}

static void tick(struct sim *sim, uint32_t id)
{
    struct sim_mirror *m = mirror_at(sim, id);
    if (mirror_takes_part(&m->state) && is_late(sim, id))
        mirror_event(sim, id, CAIRN_MIRROR_ON_END);
    if (m->state.stage == CAIRN_MIRROR_READY && m->is_there &&
        round_stage_of(sim->coordinator.core) == CAIRN_ROUND_STEADY)
        join_at_rest(sim, id);
    mirror_event(sim, id, CAIRN_MIRROR_ON_TICK);
    if (!sim->coordinator.alive) return;
    if (may_mirror(sim)) begin_mirror(sim, id);
    sim->seen[SEEN_mirrored] += m->state.stage == CAIRN_MIRROR_IN_STEP;
}

void standby_tick(struct sim *sim)
{
    for (uint32_t p = 0; p < sim->scenario.shards; p++)
        EACH_STANDBY (sim, p, id) {
            if (!sim->coordinator.alive) return;
            tick(sim, id);
        }
}

/* ==== what has to hold ==== */

bool standby_counts(const struct sim *sim, uint32_t id)
{
    const struct coordinator *c = &sim->coordinator;
    const struct sim_shard *other = shard_at(sim, id);
    if (!sim->scenario.standbys || !other->alive || other->core == NULL || !other->standby.on ||
        other->standby.is_stray)
        return false;
    if (c->store.mirrors[WHICH(id)][PLACE(id)].life == other->life) return true;
    const struct sim_mirror *m = mirror_of(sim, id);
    return c->alive && mirror_takes_part(&m->state) && m->life == other->life;
}

bool standby_is_in_step(const struct sim *sim, uint32_t id)
{
    const struct sim_row *row = &sim->coordinator.store.mirrors[WHICH(id)][PLACE(id)];
    return standby_counts(sim, id) && shard_at(sim, id)->standby.complete &&
           row->life == shard_at(sim, id)->life;
}

bool standby_is_ready(const struct sim *sim, uint32_t id)
{
    const struct coordinator *c = &sim->coordinator;
    const struct sim_mirror *m = mirror_of(sim, id);
    return c->alive && m->state.stage == CAIRN_MIRROR_IN_STEP && m->layout == c->layout &&
           may_mirror(sim) && standby_is_in_step(sim, id) && shard_at(sim, id)->control.up;
}

/* The owner is lost for good, and no other process has its place yet. */
bool standby_is_awaited(const struct sim *sim, uint32_t place)
{
    return may_have(sim, place) && layout_has(sim->oracle.layout, place) &&
           sim->shards[place].is_empty;
}

bool standby_is_last(const struct sim *sim)
{
    for (uint32_t p = 0; p < sim->scenario.shards; p++)
        if (standby_is_awaited(sim, p)) return true;
    return false;
}
