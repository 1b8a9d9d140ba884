/* Standbys: of each place there are two processes, one that has it, and another one that mirrors it and may
 * take it. The coordinator's side is as thin as can be around mirror_on (server/core/mirror.h), as
 * server/coordinator/mirror.c; the standby's side is as server/shard/mirror.c. Hosts die with all that is in
 * their memory, shards are cut off, and a process that lost its place comes back. */
#include <inttypes.h>
#include <string.h>

#include "tests/sim/sim.h"

#define ASKED_MAX 6 /* pieces of state that a standby asks for at a time */
#define WHOLE     7 /* all planes of a chunk */

static struct sim_mirror *mirror_at(struct sim *sim, uint32_t place)
{
    return &sim->coordinator.mirrors[place];
}

/* ==== the processes ==== */

static void start_process(struct sim *sim, uint32_t id)
{
    struct sim_shard *s = shard_at(sim, id);
    s->alive = true;
    s->died = 0;
    s->life = ++sim->starts;
    sim_at(sim, rng_exponential(&sim->schedule, 500), E_CONTROL_RECONNECT, id, NOBODY, 0);
}

void standby_start(struct sim *sim)
{
    for (uint32_t p = 0; p < sim->scenario.shards; p++) {
        sim->shards[p].life = ++sim->starts;
        start_process(sim, OTHER + p);
    }
}

/* The host dies: nothing that was in its memory comes back. Another one gets its name later. */
static void kill_host(struct sim *sim, uint32_t id)
{
    struct sim_shard *s = shard_at(sim, id);
    sim_trace(sim, "host dies", id, s->life, 0);
    if (id < OTHER)
        for (uint32_t p = 0; p < PROCS_MAX; p++) fabric_break(sim, id, p);
    sim_forget_work(sim, id);
    // the kernel of a host without power closes no connection: it is missed when its lease ends
    if (id < OTHER && s->control.up && rng_chance(&sim->fault, 0.5)) {
        link_cut(sim, &s->control);
        sim_at(sim, LEASE * 3 / 4 + rng_below(&sim->schedule, LEASE / 4), E_SHARD_DOWN, id, 0,
               s->control.id);
    } else {
        shard_link_break(sim, id, NOTICE);
    }
    const struct sim_shard before = { .control = s->control,
                                      .known_up = s->known_up,
                                      .id = s->id,
                                      .room = s->room,
                                      .name = s->name,
                                      .is_empty = true,
                                      .died = sim->now };
    memset(s, 0, sizeof *s);
    *s = before;
    s->control.drains_until = 0;
    sim_at(sim, rng_exponential(&sim->fault, MS(15)), E_HOST_START, id, 0, 0);
}

/* The struct has moved. */
static void move_pointers(struct sim_shard *s, uint32_t id)
{
    s->id = id;
    s->updating.payload = s->updating_payload;
    s->noted.last.payload = s->noted_payload;
    s->held.decision.payload = s->held.payload;
}

/* The process that has the place and the other one change: what is under way for them goes with them. */
static void swap(struct sim *sim, uint32_t place)
{
    for (uint32_t p = 0; p < PROCS_MAX; p++) {
        fabric_break(sim, place, p);
        if (sim->procs[p].alive)
            sim_at(sim, rng_exponential(&sim->schedule, 1500), E_FABRIC_RECONNECT, place, p,
                   sim->procs[p].life);
    }
    sim->spare = sim->shards[place];
    sim->shards[place] = sim->others[place];
    sim->others[place] = sim->spare;
    move_pointers(&sim->shards[place], place);
    move_pointers(&sim->others[place], OTHER + place);
    sim_rename_work(sim, place);
    sim_trace(sim, "processes change", place, sim->shards[place].life, sim->others[place].life);
}

/* ==== the standby's process ==== */

static void say(struct sim *sim, uint32_t id, enum message_kind kind, const struct message *of)
{
    const struct message message = { .kind = kind,
                                     .request = of != NULL ? of->request
                                                           : shard_at(sim, id)->standby.request };
    sim_send_control(sim, &shard_at(sim, id)->control, 0, E_COORDINATOR_FROM_SHARD, 0, id,
                     &message);
}

static void forget_asked(struct sim_standby *standby)
{
    standby->serial++;
    standby->asked = 0;
    for (uint32_t c = 0; c < CHUNKS_MAX; c++) {
        if (standby->here[c] != WHOLE) standby->here[c] = 0;
        standby->wanted[c] = 0;
    }
}

static void drop_part(struct sim *sim, uint32_t id)
{
    struct sim_shard *s = shard_at(sim, id);
    sim_forget_work(sim, id);
    s->standby = (struct sim_standby) { .serial = s->standby.serial + 1 };
    s->core = NULL;
    s->is_empty = true;
    s->layout = s->prepared = s->next = s->before = NULL;
    s->has = s->lacks = s->executed = 0;
    s->awaits_settled = s->joining = s->unfenced = s->publish_asked = false;
    memset(s->copies, 0, sizeof s->copies);
    memset(s->peers, 0, sizeof s->peers);
    s->obeyed = (struct coordinator_id) { 0 };
}

static void on_make(struct sim *sim, uint32_t id, const struct message *message)
{
    struct sim_shard *s = shard_at(sim, id);
    drop_part(sim, id);
    s->layout = &sim->layouts[message->layout];
    s->standby.on = s->joining = true;
    s->standby.request = message->request;
    s->is_empty = false;
    struct step_config config = sim_step_config(sim, s->layout, id);
    config.joins = true;
    s->core = step_init(sim->step_memory[s->core_place][s->room], &config,
                        (struct cairn_version) { 1, 0 }, NULL);
    s->noted_of = NULL;
    for (uint32_t c = 0; c < sim->scenario.chunks; c++) {
        memset(s->param[c], 0x3c, sizeof s->param[c]);
        memset(s->m[c], 0x3c, sizeof s->m[c]);
        memset(s->v[c], 0x3c, sizeof s->v[c]);
    }
    say(sim, id, M_MIRROR_MADE, message);
}

/* The owner, or its next process, which has what the one before had. */
static void on_mirror_of(struct sim *sim, uint32_t id, const struct message *message)
{
    struct sim_standby *standby = &shard_at(sim, id)->standby;
    if (!standby->on) return;
    forget_asked(standby);
    standby->owner_life = message->weight;
    standby->round = 0;
    standby->request = message->request;
    say(sim, id, M_MIRROR_PAIRED, message);
    sim_at(sim, 100, E_MIRROR_FEED, id, 0, standby->serial);
}

static void on_owns(struct sim *sim, uint32_t id, const struct message *message)
{
    struct sim_standby *standby = &shard_at(sim, id)->standby;
    standby->on = false;
    standby->serial++;
    if (message->request != 0) say(sim, id, M_MIRROR_FREE, message);
}

static bool is_at_rest(const struct sim_shard *s)
{
    const enum step_phase phase = step_phase_of(s->core);
    return phase == CAIRN_STEP_IDLE || phase == CAIRN_STEP_COLLECTING;
}

/* NULL: it cannot be reached, or is another process. */
static const struct sim_shard *owner_of(const struct sim *sim, uint32_t id)
{
    const struct sim_shard *owner = shard_at(sim, PLACE(id));
    const uint64_t life = shard_at(sim, id)->standby.owner_life;
    return id >= OTHER && owner->alive && owner->core != NULL && owner->life == life ? owner : NULL;
}

static void ask_pieces(struct sim *sim, uint32_t id)
{
    struct sim_shard *s = shard_at(sim, id);
    struct sim_standby *standby = &s->standby;
    for (uint32_t i = 0; i < s->layout->count[PLACE(id)]; i++) {
        const uint32_t c = s->layout->chunk[PLACE(id)][i];
        for (uint32_t plane = 0; plane < 3; plane++) {
            const uint8_t bit = (uint8_t)(1u << plane);
            if (((standby->here[c] | standby->wanted[c]) & bit) != 0) continue;
            if (standby->asked == ASKED_MAX) return;
            standby->asked++;
            standby->wanted[c] |= bit;
            sim_at(sim, rng_exponential(&sim->schedule, 2 * sim->scenario.fabric_delay),
                   E_MIRROR_PIECE, id, c << 2 | plane, standby->serial);
        }
    }
}

/* All is here: the copies that updates made lack what was not here yet. */
static void look_whole(struct sim *sim, uint32_t id)
{
    struct sim_shard *s = shard_at(sim, id);
    if (s->standby.complete || !is_at_rest(s)) return;
    for (uint32_t i = 0; i < s->layout->count[PLACE(id)]; i++)
        if (s->standby.here[s->layout->chunk[PLACE(id)][i]] != WHOLE) return;
    s->standby.complete = true;
    for (uint32_t i = 0; i < s->layout->count[PLACE(id)]; i++) {
        const uint32_t c = s->layout->chunk[PLACE(id)][i];
        s->has |= 1u << c;
        s->state_at[c] = step_version(s->core);
    }
    s->copies[0].chunks = s->copies[1].chunks = 0;
    s->copies[0].version = s->copies[1].version = (struct cairn_version) { 0, 0 };
    take_publish(sim, id);
    sim->seen[SEEN_mirror_filled]++;
    say(sim, id, M_MIRROR_FILLED, NULL);
}

static void on_feed(struct sim *sim, const struct event *event)
{
    const uint32_t id = event->a;
    struct sim_shard *s = shard_at(sim, id);
    if (!s->alive || !s->standby.on || s->standby.complete || event->conn != s->standby.serial)
        return;
    if (s->standby.round == 0 && is_at_rest(s)) ask_pieces(sim, id);
    look_whole(sim, id);
    sim_at(sim, 500, E_MIRROR_FEED, id, 0, s->standby.serial);
}

/* A plane of a chunk arrives, of the version that both have. */
static void on_piece(struct sim *sim, const struct event *event)
{
    struct sim_shard *s = shard_at(sim, event->a);
    struct sim_standby *standby = &s->standby;
    const uint32_t c = event->b >> 2, plane = event->b & 3;
    if (!s->alive || event->conn != standby->serial || !standby->on) return;
    const struct sim_shard *owner = owner_of(sim, event->a);
    standby->asked--;
    standby->wanted[c] &= (uint8_t) ~(1u << plane);
    const bool gives = owner != NULL && step_phase_of(owner->core) != CAIRN_STEP_UPDATING &&
                       version_compare(step_version(owner->core), step_version(s->core)) == 0;
    if (!gives || rng_chance(&sim->schedule, 0.05)) return;
    if (plane == 0) memcpy(s->param[c], owner->param[c], sizeof s->param[c]);
    if (plane == 1) memcpy(s->m[c], owner->m[c], sizeof s->m[c]);
    if (plane == 2) memcpy(s->v[c], owner->v[c], sizeof s->v[c]);
    standby->here[c] |= (uint8_t)(1u << plane);
    look_whole(sim, event->a);
}

/* In the middle of a round the owner's host dies. */
static void may_die(struct sim *sim, uint32_t place)
{
    if (sim->healed || !rng_chance(&sim->fault, sim->scenario.owner_dies)) return;
    standby_fault(sim, SIM_OWNER_DIES, place);
}

void standby_updates(struct sim *sim, uint32_t id)
{
    struct sim_standby *standby = &shard_at(sim, id)->standby;
    if (standby->on && standby->complete) may_die(sim, PLACE(id));
    if (!standby->on || standby->complete) return;
    forget_asked(standby);
    sim_at(sim, 500, E_MIRROR_FEED, id, 0, standby->serial);
}

/* ---- the sums of a round ---- */

static void ask_sums(struct sim *sim, uint32_t id)
{
    struct sim_shard *s = shard_at(sim, id);
    const uint64_t delay = rng_exponential(&sim->schedule, 2 * sim->scenario.fabric_delay);
    sim_at(sim, delay, E_MIRROR_SUMS, id, s->standby.sums_here, s->standby.round);
}

/* The machine hears that its one member has contributed. The sums of zeros that it asks for are not made. */
static void end_sums(struct sim *sim, uint32_t id)
{
    struct sim_shard *s = shard_at(sim, id);
    struct step_event event = { .kind = CAIRN_STEP_MICRO_END,
                                .member = SIM_MIRROR_MEMBER,
                                .epoch = s->standby.epoch,
                                .round = s->standby.round,
                                .absent = s->layout->count[PLACE(id)] };
    const bool is_open = step_phase_of(s->core) == CAIRN_STEP_COLLECTING &&
                         step_round_of(s->core) == s->standby.round;
    s->standby.round = 0;
    if (!is_open) return;
    memset(s->summed, 0, sizeof s->summed);
    shard_core_event(sim, id, &event);
    event.kind = CAIRN_STEP_COMMIT;
    event.absent = 0;
    event.weight = 1;
    shard_core_event(sim, id, &event);
}

static void on_sums(struct sim *sim, const struct event *event)
{
    const uint32_t id = event->a, chunk = event->b;
    struct sim_shard *s = shard_at(sim, id);
    struct sim_standby *standby = &s->standby;
    if (!s->alive || !standby->on || event->conn != standby->round || standby->round == 0 ||
        chunk != standby->sums_here)
        return;
    const struct sim_shard *owner = owner_of(sim, id);
    if (owner == NULL) { // it connects again, for as long as the round may go on
        sim->seen[SEEN_mirror_asks]++;
        if (sim->now < standby->until) ask_sums(sim, id);
        return;
    }
    if (step_phase_of(owner->core) != CAIRN_STEP_REDUCED ||
        step_round_of(owner->core) != standby->round) {
        standby->round = 0; // what is wanted now follows from the coordinator's next message
        return;
    }
    if (chunk < s->layout->count[PLACE(id)])
        memcpy(s->acc[chunk], owner->acc[chunk], sizeof s->acc[chunk]);
    standby->sums_here++;
    if (standby->sums_here >= s->layout->count[PLACE(id)])
        end_sums(sim, id);
    else
        ask_sums(sim, id);
}

static void on_sums_told(struct sim *sim, uint32_t id, const struct message *message)
{
    struct sim_standby *standby = &shard_at(sim, id)->standby;
    if (!standby->on) return;
    if (!standby->complete) { // pieces go on afterwards
        forget_asked(standby);
        sim_at(sim, 500, E_MIRROR_FEED, id, 0, standby->serial);
    }
    standby->epoch = message->epoch;
    standby->round = message->round;
    standby->sums_here = 0;
    standby->until = sim->now + 3 * LEASE;
    ask_sums(sim, id);
    if (standby->complete) may_die(sim, PLACE(id));
}

void standby_message(struct sim *sim, uint32_t id, const struct message *message)
{
    switch (message->kind) {
    case M_MIRROR_MAKE: on_make(sim, id, message); return;
    case M_MIRROR_OF: on_mirror_of(sim, id, message); return;
    case M_MIRROR_JOIN: say(sim, id, M_MIRROR_PAIRED, message); return;
    case M_MIRROR_SUMS: on_sums_told(sim, id, message); return;
    case M_MIRROR_DROP:
        sim->seen[SEEN_mirror_dropped] += shard_at(sim, id)->core != NULL;
        drop_part(sim, id);
        return;
    case M_MIRROR_OWNS: on_owns(sim, id, message); return;
    default: sim_fail(sim, "a standby got message %d", (int)message->kind); return;
    }
}

/* ==== the coordinator ==== */

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

static struct mirror_view view_of(const struct sim *sim, uint32_t place)
{
    const struct coordinator *c = &sim->coordinator;
    const struct sim_mirror *m = &c->mirrors[place];
    const struct sim_shard *other = &sim->others[place];
    const bool takes_part = mirror_takes_part(&m->state);
    const uint64_t patience_ms = sim->scenario.patience_ms;
    const bool is_early = !takes_part && patience_ms < LEASE / 1000;
    const bool is_away = c->seats[place].sitter == NO_SITTER;
    return (struct mirror_view) {
        .fits = m->layout == c->layout,
        .has_standby = m->is_there && (takes_part || other->core != NULL),
        .has_owner = sim->shards[place].known_up,
        .owner_is_empty = m->owner_is_empty,
        .may_mirror = may_mirror(sim),
        .may_take = c->next == NULL,
        .away_ms = is_away ? (sim->now - m->owner_gone) / 1000 : 0,
        .patience_ms = is_early ? LEASE / 1000 : patience_ms,
    };
}

static void mirror_event(struct sim *sim, uint32_t place, enum mirror_event event);

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

/* Hands the owner's report to the core: an answer with what its standby knows. */
static void pass(struct sim *sim, uint32_t place, const struct message *report)
{
    const struct sim_mirror *m = mirror_at(sim, place);
    sim->spare_message = *report;
    sim->spare_message.decision.payload = sim->spare_message.payload;
    const bool knows_more = report->kind == M_ANSWER && mirror_takes_part(&m->state) &&
                            mirror_knows_more(m->answer.decision.round, report->decision.round);
    if (knows_more) {
        sim->seen[SEEN_mirror_knows]++;
        sim->spare_message.decision = m->answer.decision;
        sim->spare_message.decision.payload = sim->spare_message.payload;
        memcpy(sim->spare_message.payload, m->answer.payload, sizeof m->answer.payload);
    }
    coordinator_report(sim, place, &sim->spare_message);
}

static void pass_all(struct sim *sim, uint32_t place)
{
    for (int kind = 0; kind < CAIRN_MIRROR_REPORTS; kind++) {
        struct sim_mirror *m = mirror_at(sim, place);
        if (!sim->coordinator.alive || !m->holds[kind]) continue;
        if (!mirror_passes(&m->state, (enum mirror_report_kind)kind, report_of(&m->held[kind])))
            continue;
        m->holds[kind] = false;
        if (sim->shards[place].known_up) pass(sim, place, &m->held[kind]);
    }
}

static void forget_reports(struct sim_mirror *m)
{
    memset(m->holds, 0, sizeof m->holds);
}

/* ---- the store ---- */

static void write_row(struct sim *sim, uint32_t place, enum sim_row_kind kind, uint64_t serial)
{
    struct coordinator *c = &sim->coordinator;
    const struct sim_mirror *m = &c->mirrors[place];
    if (c->row_count == SIM_ROWS_MAX) {
        sim_fail(sim, "%d writes wait for the store", SIM_ROWS_MAX);
        return;
    }
    c->rows[c->row_count++] = (struct sim_row_write) { .kind = kind,
                                                       .place = place,
                                                       .row = { m->life, m->layout },
                                                       .name = sim->shards[place].name,
                                                       .serial = serial };
    if (c->row_count > 1) return;
    sim_at(sim, rng_exponential(&sim->schedule, sim->scenario.row_delay), E_ROW_SAVED, 0, 0,
           c->incarnation);
}

static void apply_row(struct store *store, const struct sim_row_write *write)
{
    switch (write->kind) {
    case SIM_ROW_IN_STEP: store->mirrors[write->place] = write->row; return;
    case SIM_ROW_DROPPED:
        if (store->mirrors[write->place].life == write->row.life)
            store->mirrors[write->place] = (struct sim_row) { 0, NULL };
        return;
    case SIM_ROW_PLACE: store->name[write->place] = write->name; return;
    }
}

static void row_saved(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    const struct sim_row_write write = c->rows[0];
    memmove(c->rows, c->rows + 1, --c->row_count * sizeof c->rows[0]);
    const bool fails = !sim->healed && rng_chance(&sim->fault, 0.05);
    if (!fails || rng_chance(&sim->fault, 0.5)) apply_row(&c->store, &write);
    if (c->row_count > 0)
        sim_at(sim, rng_exponential(&sim->schedule, sim->scenario.row_delay), E_ROW_SAVED, 0, 0,
               c->incarnation);
    if (write.serial == 0 || write.serial != c->mirrors[write.place].serial) return;
    sim->seen[SEEN_mirror_unsaved] += fails;
    mirror_event(sim, write.place, fails ? CAIRN_MIRROR_ON_NOT_SAVED : CAIRN_MIRROR_ON_SAVED);
}

/* Of what was being written some is on the disk. */
void standby_coordinator_dies(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    for (uint32_t p = 0; p < SHARDS_MAX; p++) {
        if (c->mirrors[p].state.stage == CAIRN_MIRROR_STORING) sim->seen[SEEN_restart_storing]++;
        if (c->mirrors[p].state.stage == CAIRN_MIRROR_TAKING) sim->seen[SEEN_restart_taking]++;
        if (c->mirrors[p].state.stage == CAIRN_MIRROR_ENDING) sim->seen[SEEN_restart_ending]++;
        sim->others[p].known_up = false;
        if (sim->others[p].control.up) link_cut(sim, &sim->others[p].control);
        if (sim->scenario.standbys)
            sim_at(sim, rng_exponential(&sim->schedule, 3000), E_CONTROL_RECONNECT, OTHER + p,
                   NOBODY, 0);
    }
    const uint32_t done = c->row_count > 0 ? (uint32_t)rng_below(&sim->fault, c->row_count + 1) : 0;
    for (uint32_t i = 0; i < done; i++) apply_row(&c->store, &c->rows[i]);
    c->row_count = 0;
}

/* As mirrors are loaded: a row of a standby that has the place is a leftover. */
void standby_coordinator_starts(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    memset(c->mirrors, 0, sizeof c->mirrors);
    if (!sim->scenario.standbys) return;
    for (uint32_t p = 0; p < sim->scenario.shards; p++) {
        struct sim_mirror *m = &c->mirrors[p];
        if (sim->shards[p].name != c->store.name[p]) {
            sim->seen[SEEN_place_lost]++;
            swap(sim, p);
        }
        m->owner_gone = sim->now;
        m->life = c->store.mirrors[p].life;
        m->layout = c->store.mirrors[p].layout;
        m->state.is_stored = m->life != 0;
        if (m->life == sim->shards[p].life) m->layout = NULL;
        m->serial = ++sim->serials;
    }
}

/* ---- its orders ---- */

/* The owner and the standby hear that it is over; from here on no late answer counts. */
static void part_both(struct sim *sim, uint32_t place)
{
    struct sim_mirror *m = mirror_at(sim, place);
    if (m->is_there) tell(sim, OTHER + place, M_MIRROR_DROP, 0);
    m->is_there = false;
    m->serial = ++sim->serials;
}

static void go_alone(struct sim *sim, uint32_t place)
{
    struct sim_mirror *m = mirror_at(sim, place);
    m->again = sim->now + rng_exponential(&sim->schedule, 10000);
    sim->seen[SEEN_mirror_ended]++;
}

static void pair(struct sim *sim, uint32_t place)
{
    struct sim_mirror *m = mirror_at(sim, place);
    m->paired = 0;
    tell(sim, place, M_MIRROR_JOIN, m->serial);
    tell(sim, OTHER + place, M_MIRROR_OF, m->serial);
}

static void take_place(struct sim *sim, uint32_t place)
{
    struct coordinator *c = &sim->coordinator;
    struct sim_mirror *m = mirror_at(sim, place);
    const bool is_connected = c->seats[place].sitter == THE_SHARD;
    sim->seen[SEEN_places_taken]++;
    sim->seen[SEEN_places_cut_off] += sim->shards[place].alive && !sim->shards[place].is_empty;
    forget_reports(m);
    if (is_connected) tell(sim, place, M_MIRROR_DROP, 0);
    swap(sim, place);
    oracle_takes_place(sim, place);
    sim->others[place].known_up = is_connected;
    sim->shards[place].known_up = false;
    c->seats[place] = (struct seat) { .sitter = THE_SHARD, .conn = sim->shards[place].control.id };
    m->is_there = m->owner_is_empty = false;
    m->owner_gone = sim->now;
    m->serial = ++sim->serials;
    write_row(sim, place, SIM_ROW_PLACE, m->serial);
}

static void own(struct sim *sim, uint32_t place)
{
    struct sim_mirror *m = mirror_at(sim, place);
    write_row(sim, place, SIM_ROW_DROPPED, 0);
    m->life = 0;
    m->layout = NULL;
    if (sim->coordinator.seats[place].sitter == THE_SHARD)
        tell(sim, place, M_MIRROR_OWNS, m->serial);
}

static void mirror_event(struct sim *sim, uint32_t place, enum mirror_event event)
{
    struct sim_mirror *m = mirror_at(sim, place);
    const struct mirror_view view = view_of(sim, place);
    const enum mirror_order order = mirror_on(&m->state, event, &view);
    if (order != CAIRN_MIRROR_DO_NOTHING)
        sim_trace(sim, "mirror", place, event, (uint64_t)order << 8 | m->state.stage);
    switch (order) {
    case CAIRN_MIRROR_DO_NOTHING: break;
    case CAIRN_MIRROR_DO_PAIR: pair(sim, place); break;
    case CAIRN_MIRROR_DO_JOIN: break; // standby_opens
    case CAIRN_MIRROR_DO_STORE: write_row(sim, place, SIM_ROW_IN_STEP, m->serial); break;
    case CAIRN_MIRROR_DO_END:
        part_both(sim, place);
        go_alone(sim, place);
        break;
    case CAIRN_MIRROR_DO_UNSTORE:
        part_both(sim, place);
        write_row(sim, place, SIM_ROW_DROPPED, m->serial);
        break;
    case CAIRN_MIRROR_DO_GO_ALONE: go_alone(sim, place); break;
    case CAIRN_MIRROR_DO_TAKE: take_place(sim, place); break;
    case CAIRN_MIRROR_DO_TAKE_AGAIN:
        if (sim->coordinator.row_count == 0) write_row(sim, place, SIM_ROW_PLACE, m->serial);
        break;
    case CAIRN_MIRROR_DO_OWN: own(sim, place); break;
    }
    pass_all(sim, place);
}

/* ---- what comes in ---- */

bool standby_holds(struct sim *sim, uint32_t place, const struct message *message)
{
    struct sim_mirror *m = mirror_at(sim, place);
    const struct mirror_report report = report_of(message);
    const enum mirror_report_kind kind = kind_of(message);
    if (!sim->scenario.standbys || kind == CAIRN_MIRROR_REPORTS) return false;
    if (report.epoch != round_epoch_of(sim->coordinator.core)) return false; // nobody knows of it
    if (mirror_passes(&m->state, kind, report)) {
        pass(sim, place, message);
        return true;
    }
    m->held[kind] = *message;
    m->holds[kind] = true;
    m->since[kind] = sim->now;
    if (kind == CAIRN_MIRROR_REDUCED && mirror_takes_part(&m->state) && m->is_there) {
        struct message sums = *message;
        sums.kind = M_MIRROR_SUMS;
        to_process(sim, OTHER + place, &sums);
    }
    return true;
}

static void on_report(struct sim *sim, uint32_t place, const struct message *message)
{
    struct sim_mirror *m = mirror_at(sim, place);
    const enum mirror_report_kind kind = kind_of(message);
    if (!mirror_takes_part(&m->state) || !m->is_there) return;
    const struct message *held = &m->held[CAIRN_MIRROR_REDUCED];
    const bool is_compared = kind == CAIRN_MIRROR_REDUCED && m->holds[kind] &&
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
static void on_other_hello(struct sim *sim, uint32_t place, const struct message *message)
{
    struct sim_mirror *m = mirror_at(sim, place);
    struct sim_shard *other = &sim->others[place];
    const bool was_there = m->is_there;
    m->is_there = false;
    if (was_there) mirror_event(sim, place, CAIRN_MIRROR_ON_STANDBY_LOST);
    other->known_up = true;
    const struct mirror_view view = view_of(sim, place);
    const bool fits = mirror_expects(&m->state, &view) && m->life == message->member;
    if (!sim->coordinator.alive) return;
    if (fits && store_admits(sim, OTHER + place))
        m->is_there = true;
    else if (message->unknown)
        tell(sim, OTHER + place, M_MIRROR_DROP, 0);
}

static void on_paired(struct sim *sim, uint32_t place, uint64_t request, uint32_t who)
{
    struct sim_mirror *m = mirror_at(sim, place);
    if (request != m->serial) return;
    m->paired |= who;
    if (m->paired == 3) mirror_event(sim, place, CAIRN_MIRROR_ON_PAIRED);
}

void standby_from(struct sim *sim, uint32_t id, const struct message *message)
{
    const uint32_t place = PLACE(id);
    const bool is_other = id >= OTHER;
    const bool is_answer = message->request == mirror_at(sim, place)->serial;
    switch (message->kind) {
    case M_SHARD_HELLO: on_other_hello(sim, place, message); return;
    case M_ANSWER:
    case M_REDUCED:
    case M_PUBLISHED: on_report(sim, place, message); return;
    case M_MIRROR_MADE:
        if (is_answer && is_other) mirror_event(sim, place, CAIRN_MIRROR_ON_MADE);
        return;
    case M_MIRROR_PAIRED: on_paired(sim, place, message->request, is_other ? 1 : 2); return;
    case M_MIRROR_FILLED:
        if (is_answer && is_other) mirror_event(sim, place, CAIRN_MIRROR_ON_FILLED);
        return;
    case M_MIRROR_FREE:
        if (is_answer && !is_other && !sim->shards[place].known_up) seat_up(sim, place);
        return;
    default: return; // the core knows nothing of it
    }
}

bool standby_has_place(struct sim *sim, uint32_t place, const struct message *hello)
{
    struct sim_mirror *m = mirror_at(sim, place);
    if (!sim->scenario.standbys || place >= sim->scenario.shards) return true;
    m->owner_is_empty = !hello->unknown;
    if (mirror_is_taking(&m->state)) return false;
    if (!m->owner_is_empty) return true;
    if (sim->shards[place].known_up) seat_down(sim, place);
    return false;
}

void standby_owner_up(struct sim *sim, uint32_t place)
{
    if (!sim->scenario.standbys || place >= sim->scenario.shards) return;
    tell(sim, place, M_MIRROR_OWNS, 0); // who gave it the place may have died before that
    mirror_event(sim, place, CAIRN_MIRROR_ON_OWNER_BACK);
}

void standby_owner_down(struct sim *sim, uint32_t place)
{
    struct sim_mirror *m = mirror_at(sim, place);
    if (!sim->scenario.standbys || place >= sim->scenario.shards) return;
    m->owner_gone = sim->now;
    forget_reports(m);
    mirror_event(sim, place, CAIRN_MIRROR_ON_OWNER_LOST);
}

void standby_down(struct sim *sim, uint32_t place)
{
    struct sim_mirror *m = mirror_at(sim, place);
    sim->others[place].known_up = false;
    if (!m->is_there) return;
    m->is_there = false;
    mirror_event(sim, place, CAIRN_MIRROR_ON_STANDBY_LOST);
}

/* ---- rounds ---- */

void standby_send(struct sim *sim, uint32_t place, const struct message *message)
{
    struct sim_mirror *m = mirror_at(sim, place);
    if (!sim->scenario.standbys || place >= sim->scenario.shards) return;
    if (message->kind == M_FENCE) forget_reports(m);
    if (mirror_takes_part(&m->state) && m->is_there) to_process(sim, OTHER + place, message);
}

/* Brings the standby's machine to where the owner's is: no round is open, and the last one is resolved. */
static void join_rounds(struct sim *sim, uint32_t place, uint64_t round,
                        struct cairn_version version)
{
    const struct round_machine *core = sim->coordinator.core;
    struct sim_mirror *m = mirror_at(sim, place);
    const struct mirror_view view = view_of(sim, place);
    struct message message = { .kind = M_FENCE,
                               .epoch = round_epoch_of(core),
                               .layout = (uint32_t)sim->coordinator.layout->number };
    if (!m->is_there || version_compare(round_last(core)->version_after, version) != 0) return;
    if (mirror_on(&m->state, CAIRN_MIRROR_ON_OPENS, &view) != CAIRN_MIRROR_DO_JOIN) return;
    to_process(sim, OTHER + place, &message);
    message.kind = M_RESOLVE;
    message.round = round;
    message.decision = *round_last(core);
    to_process(sim, OTHER + place, &message);
}

static void join_at_rest(struct sim *sim, uint32_t place)
{
    const struct round_machine *core = sim->coordinator.core;
    sim->seen[SEEN_mirror_at_rest]++;
    join_rounds(sim, place, round_last(core)->round, round_version(core));
}

void standby_opens(struct sim *sim, const struct round_action *open)
{
    for (uint32_t p = 0; p < sim->scenario.shards && sim->scenario.standbys; p++) {
        struct sim_mirror *m = mirror_at(sim, p);
        if (open->write &&
            standby_is_awaited(sim, p)) { // a mirror ends with a write: nobody has the part
            sim->seen[SEEN_lost_in_write]++;
            sim->done = true;
        }
        if (open->write && mirror_takes_part(&m->state)) {
            mirror_event(sim, p, CAIRN_MIRROR_ON_END);
            continue;
        }
        if (!open->write) join_rounds(sim, p, open->round - 1, open->version);
    }
}

/* ---- time ---- */

void standby_layout_begins(struct sim *sim)
{
    for (uint32_t p = 0; p < sim->scenario.shards && sim->scenario.standbys; p++)
        mirror_event(sim, p, CAIRN_MIRROR_ON_END);
}

static void begin_mirror(struct sim *sim, uint32_t place)
{
    struct sim_mirror *m = mirror_at(sim, place);
    const struct sim_shard *owner = &sim->shards[place], *other = &sim->others[place];
    const struct sim_layout *layout = sim->coordinator.layout;
    // a standby serves no version that the owner published in the layout before
    if (version_compare(round_version(sim->coordinator.core), layout->after) <= 0 &&
        layout->before != NULL)
        return;
    if (m->state.stage != CAIRN_MIRROR_NONE || m->state.is_stored || sim->now < m->again) return;
    if (!owner->known_up || !other->known_up || !layout_has(sim->coordinator.layout, place)) return;
    m->serial = ++sim->serials;
    m->life = other->life;
    m->layout = sim->coordinator.layout;
    m->is_there = true;
    mirror_event(sim, place, CAIRN_MIRROR_ON_BEGIN);
    tell(sim, OTHER + place, M_MIRROR_MAKE, m->serial);
}

static bool is_late(const struct sim *sim, uint32_t place)
{
    const struct sim_mirror *m = &sim->coordinator.mirrors[place];
    const uint64_t died = sim->shards[place].died, silent = died > 0 ? sim->now - died : 0;
    for (int kind = 0; kind < CAIRN_MIRROR_REPORTS; kind++)
        if (m->holds[kind] &&
            mirror_is_late((sim->now - m->since[kind]) / 1000, silent / 1000, LEASE / 1000))
            return true;
    return false;
}

void standby_tick(struct sim *sim)
{
    for (uint32_t p = 0; p < sim->scenario.shards && sim->scenario.standbys; p++) {
        struct sim_mirror *m = mirror_at(sim, p);
        if (mirror_takes_part(&m->state) && is_late(sim, p))
            mirror_event(sim, p, CAIRN_MIRROR_ON_END);
        if (m->state.stage == CAIRN_MIRROR_READY && m->is_there &&
            round_stage_of(sim->coordinator.core) == CAIRN_ROUND_STEADY)
            join_at_rest(sim, p);
        mirror_event(sim, p, CAIRN_MIRROR_ON_TICK);
        if (!sim->coordinator.alive) return;
        if (may_mirror(sim)) begin_mirror(sim, p);
        sim->seen[SEEN_mirrored] += m->state.stage == CAIRN_MIRROR_IN_STEP;
    }
}

void standby_event(struct sim *sim, const struct event *event)
{
    struct sim_shard *s = shard_at(sim, event->a);
    switch (event->kind) {
    case E_MIRROR_FEED: on_feed(sim, event); return;
    case E_MIRROR_PIECE: on_piece(sim, event); return;
    case E_MIRROR_SUMS: on_sums(sim, event); return;
    case E_HOST_START:
        if (!s->alive) start_process(sim, event->a);
        return;
    case E_ROW_SAVED:
        if (sim->coordinator.alive && event->conn == sim->coordinator.incarnation) row_saved(sim);
        return;
    default: return;
    }
}

/* ==== what has to hold ==== */

bool standby_counts(const struct sim *sim, uint32_t place)
{
    const struct coordinator *c = &sim->coordinator;
    const struct sim_shard *other = &sim->others[place];
    if (!sim->scenario.standbys || !other->alive || other->core == NULL || !other->standby.on ||
        other->standby.is_stray)
        return false;
    if (c->store.mirrors[place].life == other->life) return true;
    return c->alive && mirror_takes_part(&c->mirrors[place].state) &&
           c->mirrors[place].life == other->life;
}

bool standby_is_whole(const struct sim_shard *s, uint32_t chunk)
{
    return s->standby.complete || s->standby.here[chunk] == WHOLE;
}

bool standby_is_in_step(const struct sim *sim, uint32_t place)
{
    return standby_counts(sim, place) && sim->others[place].standby.complete &&
           sim->coordinator.store.mirrors[place].life == sim->others[place].life;
}

/* ==== faults ==== */

/* True if the part is promised to survive the loss of this host: both are in step, as the store says, and
 * nothing that was begun takes that back. */
static bool is_safe(const struct sim *sim, uint32_t place)
{
    const struct coordinator *c = &sim->coordinator;
    return c->alive && c->mirrors[place].state.stage == CAIRN_MIRROR_IN_STEP && may_mirror(sim) &&
           c->mirrors[place].layout == c->layout && standby_is_in_step(sim, place) &&
           sim->shards[place].alive && sim->shards[place].core != NULL &&
           sim->others[place].control.up && !take_some_are_lost(sim);
}

/* The owner is lost for good, and the other process has not its place yet. */
bool standby_is_awaited(const struct sim *sim, uint32_t place)
{
    return sim->scenario.standbys && place < sim->scenario.shards &&
           layout_has(sim->oracle.layout, place) && sim->shards[place].is_empty;
}

bool standby_is_last(const struct sim *sim)
{
    for (uint32_t p = 0; p < sim->scenario.shards && sim->scenario.standbys; p++)
        if (standby_is_awaited(sim, p)) return true;
    return false;
}

void standby_fault(struct sim *sim, enum sim_standby_fault fault, uint32_t place)
{
    struct sim_shard *owner = &sim->shards[place], *other = &sim->others[place];
    switch (fault) {
    case SIM_OWNER_DIES:
        if (!is_safe(sim, place)) return;
        sim->seen[SEEN_owners_dead]++;
        kill_host(sim, place);
        return;
    case SIM_STANDBY_DIES:
        // nor may both be lost at a time, one of them for the coordinator alone
        if (!other->alive || standby_is_awaited(sim, place) || !owner->control.up) return;
        sim->seen[SEEN_standbys_dead]++;
        kill_host(sim, OTHER + place);
        return;
    case SIM_CUT_OFF:
        if (!owner->alive || owner->core == NULL || !other->alive) return;
        owner->cut_until = sim->now + rng_below(&sim->fault, MS(150));
        sim->seen[SEEN_owners_cut_off]++;
        shard_link_break(sim, place, NOTICE);
        return;
    case SIM_STANDBY_CUT_OFF: // not both at a time: the owner may be lost, and nobody knows it yet
        if (!other->alive || !other->control.up || (owner->is_empty && owner->known_up)) return;
        other->cut_until = sim->now + rng_below(&sim->fault, MS(60));
        sim->seen[SEEN_standbys_cut_off]++;
        shard_link_break(sim, OTHER + place, NOTICE);
        return;
    }
}
