/* A second process under a shard's name, which holds nothing, and the seat that both want: judged by
 * server/core/standing.h, as the daemon does. */
#include "server/core/standing.h"
#include "tests/sim/sim.h"

static const struct seat_part part = { .job = 1, .generation = 1, .layout_hash = 1 };

/* ---- the second process ---- */

static void connect_again(struct sim *sim, uint32_t shard)
{
    sim_at(sim, rng_exponential(&sim->schedule, 2000), E_TWIN_CONNECTS, shard, 0, 0);
}

void twin_start(struct sim *sim, uint32_t shard)
{
    struct twin *twin = &sim->twins[shard];
    if (twin->alive) return;
    twin->alive = true;
    connect_again(sim, shard);
}

void twin_lost(struct sim *sim, uint32_t shard)
{
    struct twin *twin = &sim->twins[shard];
    if (!twin->control.up) return;
    link_cut(sim, &twin->control);
    connect_again(sim, shard);
}

static void twin_connect(struct sim *sim, uint32_t shard)
{
    struct link *link = &sim->twins[shard].control;
    if (!sim->twins[shard].alive || link->up) return;
    if (!sim->coordinator.alive) {
        connect_again(sim, shard);
        return;
    }
    link->id++;
    link->up = true;
    link->arrives[0] = link->arrives[1] = sim->now;
    const struct message hello = { .kind = M_SHARD_HELLO };
    sim_send_control(sim, link, 0, E_COORDINATOR_FROM_TWIN, 0, shard, &hello);
}

static void twin_hears(struct sim *sim, uint32_t shard, const struct message *message)
{
    struct twin *twin = &sim->twins[shard];
    const struct message alive = { .kind = M_ALIVE };
    if (message->kind == M_PROBE)
        sim_send_control(sim, &twin->control, 0, E_COORDINATOR_FROM_TWIN, 0, shard, &alive);
    if (message->kind == M_COME_AGAIN) twin_lost(sim, shard);
    if (message->kind != M_END) return;
    twin->alive = twin->control.up = false;
    sim->seen[SEEN_twin_ended]++;
}

/* ---- the seat ---- */

static struct link *link_of(struct sim *sim, uint32_t shard, enum sitter who)
{
    return who == THE_TWIN ? &sim->twins[shard].control : &sim->shards[shard].control;
}

static void tell(struct sim *sim, uint32_t shard, enum sitter who, enum message_kind kind)
{
    const struct message message = { .kind = kind };
    const enum event_kind event = who == THE_TWIN ? E_TWIN_FROM_COORDINATOR
                                                  : E_SHARD_FROM_COORDINATOR;
    sim_send_control(sim, link_of(sim, shard, who), 1, event, shard, 0, &message);
}

static void core_hears(struct sim *sim, uint32_t shard, enum round_event_kind kind)
{
    struct round_event event = { .kind = kind, .shard = shard };
    if (sim->scenario.standbys && sim->shards[shard].known_up) {
        sim->shards[shard].known_up = false; // the process before, or its connection
        standby_owner_down(sim, shard);
    }
    reshard_shard_down(sim, shard); // what was sent to it before may be lost
    sim->shards[shard].known_up = kind == CAIRN_ROUND_SHARD_UP;
    if (sim->shards[shard].known_up) standby_owner_up(sim, shard);
    if (!sim->coordinator.alive) return;
    coordinator_core_event(sim, &event);
}

/* Whoever had it has it no more. */
static void make_room(struct sim *sim, uint32_t shard, enum sitter newcomer, bool ends)
{
    struct seat *seat = &sim->coordinator.seats[shard];
    const struct link *link = link_of(sim, shard, seat->sitter);
    if (seat->sitter == NO_SITTER || seat->sitter == newcomer) return;
    if (link->up && link->id == seat->conn && !ends)
        sim_fail(sim, "shard %u lives, and another process got its seat", shard);
    if (ends) {
        sim->seen[SEEN_twin_relieved]++;
        tell(sim, shard, seat->sitter, M_END);
        return;
    }
    sim->seen[SEEN_seat_silent]++;
    core_hears(sim, shard, CAIRN_ROUND_SHARD_DOWN);
}

void seat_up(struct sim *sim, uint32_t shard)
{
    const struct message leave = { .kind = M_LEAVE };
    if (!store_admits(sim, shard)) return;
    core_hears(sim, shard, CAIRN_ROUND_SHARD_UP);
    if (reshard_leaves(sim, shard))
        sim_send_control(sim, &sim->shards[shard].control, 1, E_SHARD_FROM_COORDINATOR, shard, 0,
                         &leave);
}

void seat_down(struct sim *sim, uint32_t shard)
{
    core_hears(sim, shard, CAIRN_ROUND_SHARD_DOWN);
}

static void take_seat(struct sim *sim, uint32_t shard, enum sitter who, bool ends,
                      const struct message *hello)
{
    struct seat *seat = &sim->coordinator.seats[shard];
    const size_t held_count = who == THE_SHARD ? 1 : 0;
    make_room(sim, shard, who, ends);
    *seat = (struct seat) { .sitter = who, .conn = link_of(sim, shard, who)->id };
    if (who == THE_TWIN) sim->seen[SEEN_twin_sat]++;
    if (!sim->coordinator.alive || !seat_has(&part, &part, held_count)) return;
    if (who == THE_TWIN) sim_fail(sim, "an empty process counts as shard %u", shard);
    if (standby_has_place(sim, shard, hello)) seat_up(sim, shard);
}

static void probe(struct sim *sim, uint32_t shard)
{
    struct seat *seat = &sim->coordinator.seats[shard];
    seat->probe = CAIRN_SEAT_ASKED;
    seat->probe_number = ++sim->coordinator.probes;
    tell(sim, shard, seat->sitter, M_PROBE);
    sim_at(sim, LEASE, E_PROBE_ENDS, shard, 0, seat->probe_number);
}

void seat_hello(struct sim *sim, uint32_t shard, enum sitter who, const struct message *hello)
{
    struct seat *seat = &sim->coordinator.seats[shard];
    const struct seat_claim claim = { .taken = seat->sitter != NO_SITTER,
                                      .same = seat->sitter == who,
                                      .newcomer_holds = who == THE_SHARD,
                                      .sitter_holds = seat->sitter == THE_SHARD,
                                      .probe = seat->probe };
    const enum seat_verdict verdict = seat_judge(&claim);
    if (verdict == CAIRN_SEAT_TAKES || verdict == CAIRN_SEAT_RELIEVES) {
        take_seat(sim, shard, who, verdict == CAIRN_SEAT_RELIEVES, hello);
        return;
    }
    if (verdict == CAIRN_SEAT_PROBES) probe(sim, shard);
    if (verdict == CAIRN_SEAT_ENDS || verdict == CAIRN_SEAT_STANDS)
        seat->probe = CAIRN_SEAT_UNASKED;
    if (verdict == CAIRN_SEAT_ENDS && who == THE_SHARD)
        sim_fail(sim, "shard %u, which holds the state, is told to end", shard);
    tell(sim, shard, who, verdict == CAIRN_SEAT_ENDS ? M_END : M_COME_AGAIN);
}

void seat_answers(struct sim *sim, uint32_t shard, enum sitter who)
{
    struct seat *seat = &sim->coordinator.seats[shard];
    if (seat->sitter == who && seat->probe == CAIRN_SEAT_ASKED) seat->probe = CAIRN_SEAT_ANSWERED;
}

void seat_left(struct sim *sim, uint32_t shard, enum sitter who)
{
    struct seat *seat = &sim->coordinator.seats[shard];
    if (seat->sitter == who) *seat = (struct seat) { .sitter = NO_SITTER };
}

void twin_event(struct sim *sim, const struct event *event)
{
    struct seat *seat = &sim->coordinator.seats[event->a];
    switch (event->kind) {
    case E_TWIN_CONNECTS: twin_connect(sim, event->a); return;
    case E_TWIN_FROM_COORDINATOR: twin_hears(sim, event->a, event->message); return;
    case E_COORDINATOR_FROM_TWIN:
        if (event->message->kind == M_ALIVE)
            seat_answers(sim, event->b, THE_TWIN);
        else
            seat_hello(sim, event->b, THE_TWIN, event->message);
        return;
    case E_PROBE_ENDS:
        if (seat->probe_number == event->conn && seat->probe == CAIRN_SEAT_ASKED)
            seat->probe = CAIRN_SEAT_SILENT;
        return;
    default: return;
    }
}
