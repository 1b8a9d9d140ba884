/* Standbys: of each place there are two or three processes, one that has it, and others that mirror it and
 * may take it. The standby's side is as server/shard/mirror.c, and sim_mirror.c has the coordinator's. Hosts
 * die with all that is in their memory, shards are cut off, and a process that lost its place comes back. */
#include <inttypes.h>
#include <string.h>

#include "tests/sim/sim.h"

#define ASKED_MAX 6 /* pieces of state that a standby asks for at a time */
#define WHOLE     7 /* all planes of a chunk */

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
        EACH_STANDBY (sim, p, id) start_process(sim, id);
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

void standby_swap(struct sim *sim, uint32_t id)
{
    const uint32_t place = PLACE(id);
    for (uint32_t p = 0; p < PROCS_MAX; p++) {
        fabric_break(sim, place, p);
        if (sim->procs[p].alive)
            sim_at(sim, rng_exponential(&sim->schedule, 1500), E_FABRIC_RECONNECT, place, p,
                   sim->procs[p].life);
    }
    sim->spare = sim->shards[place];
    sim->shards[place] = *shard_at(sim, id);
    *shard_at(sim, id) = sim->spare;
    move_pointers(&sim->shards[place], place);
    move_pointers(shard_at(sim, id), id);
    sim_rename_work(sim, place, id);
    sim_trace(sim, "processes change", place, sim->shards[place].life, shard_at(sim, id)->life);
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
    if (shard_at(sim, id)->core == NULL) return; // it is the process after, which has nothing
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
    case E_ROW_SAVED: standby_row_saved(sim, event->conn); return;
    default: return;
    }
}

bool standby_is_whole(const struct sim_shard *s, uint32_t chunk)
{
    return s->standby.complete || s->standby.here[chunk] == WHOLE;
}

/* ==== faults ==== */

/* True if one of the place's standbys is ready, another one than this. */
static bool one_is_ready(const struct sim *sim, uint32_t place, uint32_t but)
{
    EACH_STANDBY (sim, place, id)
        if (id != but && standby_is_ready(sim, id)) return true;
    return false;
}

static bool has_begun(const struct sim *sim, uint32_t id, uint32_t index)
{
    const struct sim_shard *s = shard_at(sim, id);
    return oracle_has_executed(sim, id, index) ||
           (s->core != NULL && step_phase_of(s->core) == CAIRN_STEP_UPDATING);
}

/* True if nobody but the owner knows what was decided last, since its coordinator died in the middle of
 * saying so. Without the owner that was never decided; and the reference cannot go back. */
static bool is_alone(const struct sim *sim, uint32_t place)
{
    const struct oracle *o = &sim->oracle;
    if (o->ledger_count == 0 || !has_begun(sim, place, o->ledger_count - 1)) return false;
    const struct ledger_entry *last = &o->ledger[o->ledger_count - 1];
    if (sim->coordinator.alive && sim->coordinator.decided_round == last->round) return false;
    for (uint32_t p = 0; p < sim->shard_count; p++)
        if (p != place && layout_has(o->layout, p) && has_begun(sim, p, o->ledger_count - 1))
            return false;
    for (uint32_t i = 1; i <= sim->scenario.standbys; i++)
        if (has_begun(sim, OTHER * i + place, o->ledger_count - 1)) return false;
    return true;
}

void standby_fault(struct sim *sim, enum sim_standby_fault fault, uint32_t place)
{
    const uint32_t count = sim->scenario.standbys;
    const uint32_t which = count > 1 ? (uint32_t)rng_below(&sim->fault, count) : 0;
    const uint32_t id = OTHER * (1 + which) + place;
    struct sim_shard *owner = &sim->shards[place], *other = shard_at(sim, id);
    switch (fault) {
    case SIM_OWNER_DIES:
        if (!one_is_ready(sim, place, NOBODY) || !owner->alive || owner->core == NULL ||
            take_some_are_lost(sim) || is_alone(sim, place))
            return;
        sim->seen[SEEN_owners_dead]++;
        kill_host(sim, place);
        return;
    case SIM_STANDBY_DIES:
        // nor may all be lost at a time, one of them for the coordinator alone
        if (!other->alive) return;
        if ((standby_is_awaited(sim, place) || !owner->control.up) && !one_is_ready(sim, place, id))
            return;
        sim->seen[SEEN_standbys_dead]++;
        kill_host(sim, id);
        return;
    case SIM_CUT_OFF:
        if (!owner->alive || owner->core == NULL || !other->alive || is_alone(sim, place)) return;
        owner->cut_until = sim->now + rng_below(&sim->fault, MS(150));
        sim->seen[SEEN_owners_cut_off]++;
        shard_link_break(sim, place, NOTICE);
        return;
    case SIM_STANDBY_CUT_OFF: // not all at a time: the owner may be lost, and nobody knows it yet
        if (!other->alive || !other->control.up || (owner->is_empty && owner->known_up)) return;
        other->cut_until = sim->now + rng_below(&sim->fault, MS(60));
        sim->seen[SEEN_standbys_cut_off]++;
        shard_link_break(sim, id, NOTICE);
        return;
    }
}
