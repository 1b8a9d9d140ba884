/* What happens to the cluster. Each seed draws which faults it has and how often (a swarm): a fault that is
 * everywhere hides the others. */
#include <string.h>

#include "tests/sim/sim.h"

enum fault {
    KILL_COORDINATOR,
    BREAK_SHARD,
    BREAK_WORKER,
    BREAK_FABRIC,
    KILL_WORKER,
    TWIN,
    STALL,
    PIN,
    GARBAGE,
    BREAK_ENDPOINT,
    SECOND_SHARD,
    MUTE,
    SLIP,
    RESHARD,
    KILL_FRESH,
    KILL_KEPT,
    OWNER_DIES,
    STANDBY_DIES,
    CUT_OFF,
    STANDBY_CUT_OFF,
    LOSE_MEMORY,
    LEAD
};

void faults_start(struct sim *sim)
{
    sim_at(sim, rng_exponential(&sim->fault, sim->scenario.fault_gap), E_FAULT, 0, 0, 0);
    sim_at(sim, sim->scenario.faults_end, E_HEAL, 0, 0, 0);
}

/* A process that is alive; NOBODY if there is none. */
static uint32_t any_process(struct sim *sim)
{
    const uint32_t first = (uint32_t)rng_below(&sim->fault, PROCS_MAX);
    for (uint32_t i = 0; i < PROCS_MAX; i++)
        if (sim->procs[(first + i) % PROCS_MAX].alive) return (first + i) % PROCS_MAX;
    return NOBODY;
}

static uint32_t count_processes(const struct sim *sim)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < PROCS_MAX; i++) count += sim->procs[i].alive;
    return count;
}

/* Somebody starts a second process with the same rank; the first one knows nothing of it. */
static void twin(struct sim *sim, uint32_t proc)
{
    if (sim->procs[proc].zombie || count_processes(sim) == PROCS_MAX) return;
    sim->procs[proc].zombie = true;
    process_start(sim, sim->procs[proc].rank);
}

/* Somebody starts a second process under a shard's name; the first one may be stopped for some leases. */
static void second_shard(struct sim *sim, uint32_t shard)
{
    twin_start(sim, shard);
    if (rng_chance(&sim->fault, 0.3)) shard_link_break(sim, shard, 2.0 * LEASE);
}

/* A process that is alive. */
static uint32_t any_shard(struct sim *sim)
{
    const uint32_t first = (uint32_t)rng_below(&sim->fault, sim->shard_count);
    for (uint32_t i = 0; i < sim->shard_count; i++)
        if (sim->shards[(first + i) % sim->shard_count].alive)
            return (first + i) % sim->shard_count;
    return NOBODY;
}

/* An operator asks for a re-sharding; or a connection is lost over which state moves. */
static void reshard_fault(struct sim *sim, uint32_t shard)
{
    if (sim->shards[shard].lacks != 0 && rng_chance(&sim->fault, 0.5))
        take_break(sim, shard);
    else if (!standby_is_last(sim))
        reshard_want(sim);
}

/* True if a slice is not settled, and the coordinator does not know whether a round was decided in its
 * layout. A standby that gets a place now did not tell that it has all that moved there, so it counts as one
 * that lacks it. */
static bool may_lack_moved(const struct sim *sim)
{
    const struct coordinator *c = &sim->coordinator;
    const struct sim_layout *layout = c->alive ? c->layout : c->store.layout;
    return sim->scenario.standbys > 0 && layout->before != NULL &&
           (!c->alive || version_compare(round_version(c->core), layout->at) <= 0);
}

/* A shard dies with which nothing is lost. */
static void kill_fresh(struct sim *sim)
{
    if (may_lack_moved(sim)) return;
    for (uint32_t s = sim->scenario.shards; s < sim->shard_count; s++) {
        if (!sim->shards[s].alive || !take_is_fresh(sim, s)) continue;
        sim->seen[SEEN_fresh_dead]++;
        shard_end(sim, s);
        return;
    }
}

static uint32_t draw_fault(struct sim *sim)
{
    const uint32_t *weight = sim->scenario.weight;
    uint64_t total = 0;
    for (uint32_t i = 0; i < FAULTS; i++) total += weight[i];
    uint64_t at = rng_below(&sim->fault, total);
    uint32_t kind = 0;
    while (kind < FAULTS - 1 && at >= weight[kind]) at -= weight[kind++];
    return kind;
}

/* Between a relay and an owner; false if there is none. */
static bool relay_fault(struct sim *sim, uint32_t kind)
{
    if (sim->scenario.hosts == 0 || !rng_chance(&sim->fault, 0.4)) return false;
    const uint32_t shard = (uint32_t)rng_below(&sim->fault, sim->scenario.room);
    const uint32_t owner = (uint32_t)rng_below(&sim->fault, sim->scenario.room);
    if (!sim->relays[shard].owners[owner].link.up) return false;
    if (kind == BREAK_ENDPOINT) {
        shard_endpoint_break(sim, owner, PROCS_MAX + shard);
    } else {
        sim->seen[SEEN_relay_lost]++;
        relay_break(sim, shard, owner);
    }
    return true;
}

static void do_fault(struct sim *sim, uint32_t kind)
{
    const uint32_t shard = any_shard(sim);
    const uint32_t proc = any_process(sim);
    sim_trace(sim, "fault", kind, shard, proc);
    if (shard == NOBODY) return; // its standby has not its place yet
    if (kind == LOSE_MEMORY || kind == LEAD) {
        (kind == LEAD ? lead_fault : log_fault)(sim);
        return;
    }
    if (kind >= OWNER_DIES)
        standby_fault(sim, (enum sim_standby_fault)(kind - OWNER_DIES),
                      (uint32_t)rng_below(&sim->fault, sim->scenario.shards));
    if (kind == KILL_COORDINATOR) coordinator_kill(sim);
    if (kind == BREAK_SHARD) {
        sim->seen[SEEN_control_lost]++;
        shard_link_break(sim, shard, NOTICE);
    }
    if (kind == SECOND_SHARD) second_shard(sim, shard);
    if (kind == SLIP) store_slip(sim);
    if (kind == RESHARD) reshard_fault(sim, shard);
    if (kind == KILL_FRESH && !standby_is_last(sim)) kill_fresh(sim);
    if (kind == KILL_KEPT) shard_kill_kept(sim, shard);
    if (kind == PIN) coordinator_pin(sim);
    if (kind == GARBAGE) shard_garbage(sim, shard);
    if ((kind == BREAK_FABRIC || kind == BREAK_ENDPOINT) && relay_fault(sim, kind)) return;
    if (proc == NOBODY) return;
    if (kind == BREAK_WORKER) process_link_break(sim, proc);
    if (kind == BREAK_FABRIC) {
        sim->seen[SEEN_fabric_lost]++;
        fabric_break(sim, shard, proc);
    }
    if (kind == BREAK_ENDPOINT) shard_endpoint_break(sim, shard, proc);
    if (kind == KILL_WORKER) {
        sim->seen[SEEN_workers_dead]++;
        process_kill(sim, proc);
    }
    if (kind == TWIN) twin(sim, proc);
    if (kind == STALL && rng_chance(&sim->fault, 0.5)) // and says so
        process_pause(sim, proc, 1 + rng_below(&sim->fault, 3 * sim->scenario.deadline_ms));
    if (kind == STALL) sim->procs[proc].stalled = true;
    if (kind == MUTE) {
        sim->seen[SEEN_workers_mute]++;
        sim->procs[proc].mute = true;
    }
}

void faults_event(struct sim *sim)
{
    if (sim->healed) return;
    sim_at(sim, rng_exponential(&sim->fault, sim->scenario.fault_gap), E_FAULT, 0, 0, 0);
    do_fault(sim, draw_fault(sim));
}

void faults_heal(struct sim *sim)
{
    sim_trace(sim, "the faults stop", 0, 0, 0);
    sim->healed = true;
    if (sim->scenario.coordinators > 0) lead_healed(sim);
    // A trainer that hangs for good outside of a round is nobody's to notice but its operator's.
    for (uint32_t i = 0; i < PROCS_MAX; i++)
        if (sim->procs[i].alive && (sim->procs[i].stalled || sim->procs[i].mute))
            process_kill(sim, i);
    sim->healthy_from = sim->oracle.applied;
    sim->healthy_rounds = sim->oracle.opened_count;
}
