/* What the coordinator has on its disk, which an operator may mix up: an older copy is put back, or another
 * cluster's store. Then the operator has it adopt what the shards hold. Judged by server/core/standing.h, as
 * the daemons do. */
#include "server/core/standing.h"
#include "tests/sim/sim.h"

/* The shards hold the job already. */
void store_made(struct sim *sim)
{
    sim->coordinator.store.identity = sim->stores = 1;
    sim->slipped = false;
    sim->coordinator.store.layout = &sim->layouts[0];
    for (uint32_t s = 0; s < sim->scenario.shards; s++) sim->shards[s].obeyed.store = 1;
}

/* As the coordinator starts: it counts itself. */
void store_opened(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    if (sim->scenario.coordinators == 0) c->store.incarnation++; // else it is counted already
    c->is_adopting = false;
}

/* A backup is made now and then, of what is there before the next write. */
void store_written(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    if (!sim->healed && rng_chance(&sim->fault, 0.3)) c->backup = c->store;
    c->store.epoch = c->persist_epoch;
    c->store.reserved = c->persist_reserved;
    c->store.layout = c->persist_layout;
}

void store_slip(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    coordinator_kill(sim);
    sim->slipped = true;
    if (c->backup.identity == c->store.identity && rng_chance(&sim->fault, 0.5)) {
        sim->seen[SEEN_store_older]++;
        c->store = c->backup;
        return;
    }
    sim->seen[SEEN_store_other]++;
    c->store = (struct store) { .identity = ++sim->stores,
                                .incarnation = rng_below(&sim->fault, 8),
                                .epoch = rng_below(&sim->fault, 1000),
                                .reserved = rng_below(&sim->fault, 100000),
                                .layout = c->store.layout };
}

static struct coordinator_id id_of(const struct coordinator *c)
{
    return (struct coordinator_id) { c->store.identity, c->store.incarnation, c->incarnation };
}

bool store_admits(struct sim *sim, uint32_t shard)
{
    struct coordinator *c = &sim->coordinator;
    struct sim_shard *s = shard_at(sim, shard);
    const struct coordinator_id id = id_of(c);
    const struct marks marks = { .epoch = c->store.epoch, .round = c->store.reserved };
    if (standing_of(&id, &s->obeyed) == CAIRN_STANDING_GOOD &&
        marks_behind(&marks, &s->marks) == NULL) {
        if (s->obeyed.store != 0 && s->obeyed.store != id.store)
            sim_fail(sim, "shard %u obeys the coordinator of another store", shard);
        s->obeyed = id;
        return true;
    }
    sim->seen[SEEN_store_refused]++;
    if (sim->scenario.coordinators > 0) {
        if (!lead_is_former(sim)) sim_fail(sim, "the leader may not act on shard %u", shard);
        shard_link_break(sim, shard, NOTICE); // it looks for another one
        return false;
    }
    if (c->is_adopting) return false;
    c->is_adopting = true;
    sim_at(sim, rng_exponential(&sim->schedule, 5000), E_ADOPT, 0, 0, c->incarnation);
    return false;
}

bool store_admits_worker(struct sim *sim, const struct message *attach)
{
    const struct marks marks = { .epoch = sim->coordinator.store.epoch },
                       seen = { .epoch = attach->epoch };
    const struct process *proc = sim_process(sim, attach->member);
    if (sim->scenario.coordinators == 0 || marks_behind(&marks, &seen) == NULL) return true;
    sim->seen[SEEN_store_refused]++;
    if (!lead_is_former(sim)) sim_fail(sim, "the leader may not act for a worker");
    if (proc != NULL) process_link_break(sim, (uint32_t)(proc - sim->procs));
    return false;
}

void store_heard(struct sim *sim, uint32_t shard, const struct message *message)
{
    struct marks *marks = &shard_at(sim, shard)->marks;
    if (message->epoch > marks->epoch) marks->epoch = message->epoch;
    const bool tells = message->kind == M_OPEN || message->kind == M_RESOLVE;
    if (tells && message->round > marks->round) marks->round = message->round;
}

uint64_t store_epoch_used(const struct sim *sim)
{
    uint64_t epoch = 0;
    if (!sim->slipped) return sim->oracle.last_epoch;
    for (uint32_t s = 0; s < sim->shard_count; s++)
        if (layout_has(sim->coordinator.layout, s) && sim->shards[s].alive &&
            sim->shards[s].marks.epoch > epoch)
            epoch = sim->shards[s].marks.epoch;
    return epoch;
}

/* All that live and own something in it go by it, or will when they are fenced with it. */
static bool is_known(const struct sim *sim, const struct sim_layout *layout)
{
    for (uint32_t s = 0; s < sim->shard_count; s++) {
        const struct sim_shard *shard = &sim->shards[s];
        if (!shard->alive || !layout_has(layout, s)) continue;
        if (shard->layout != layout && shard->prepared != layout) return false;
    }
    return true;
}

/* What the shards hold says which layout is in force: one that came to a shard alone that joins never was.
 * NULL: none that all can go by. Some have left the one before, others are not prepared for the one after it
 * any more. */
static struct sim_layout *newest_layout(struct sim *sim)
{
    const struct sim_layout *newest = NULL;
    for (uint32_t s = 0; s < sim->shard_count; s++) {
        const struct sim_layout *layout = sim->shards[s].layout;
        if (!sim->shards[s].alive || layout == NULL || !is_known(sim, layout)) continue;
        if (newest == NULL || layout->number > newest->number) newest = layout;
    }
    return newest != NULL ? &sim->layouts[newest->id] : NULL;
}

/* The operator is told so, and has snapshots, which there are none of here. It takes a lost store and, in the
 * same moment, a shard that is lost with a slice. */
static void refuse(struct sim *sim)
{
    bool lost = false;
    for (uint32_t s = 0; s < sim->shard_count; s++)
        lost = lost || (layout_has(sim->oracle.layout, s) && !sim->shards[s].alive);
    if (!lost) sim_fail(sim, "no shard is lost, and no layout is known to all");
    sim->done = true;
}

/* The operator's word: with all shards here, a store of a new identity, above all that they have seen. */
void store_adopts(struct sim *sim)
{
    struct coordinator *c = &sim->coordinator;
    struct marks all = { 0 };
    uint64_t incarnation = 0;
    struct sim_layout *layout = newest_layout(sim);
    if (layout == NULL) {
        refuse(sim);
        return;
    }
    for (uint32_t s = 0; s < sim->shard_count; s++) {
        if (!layout_has(layout, s) || !sim->shards[s].alive) continue;
        if (sim->coordinator.seats[s].sitter != THE_SHARD || !sim->shards[s].control.up) {
            sim_at(sim, rng_exponential(&sim->schedule, 5000), E_ADOPT, 0, 0, c->incarnation);
            return;
        }
        marks_add(&all, &sim->shards[s].marks);
        if (sim->shards[s].obeyed.incarnation > incarnation)
            incarnation = sim->shards[s].obeyed.incarnation;
    }
    marks_above(&all, (incarnation + 1) * CAIRN_ROUND_BLOCK);
    sim->seen[SEEN_store_adopted]++;
    if (layout != sim->coordinator.layout) sim->seen[SEEN_adopted_later]++;
    coordinator_kill(sim); // all come anew, and so does whoever judges them
    c->store = (struct store) { .identity = ++sim->stores,
                                .incarnation = incarnation,
                                .epoch = all.epoch,
                                .reserved = all.round,
                                .layout = layout };
    for (uint32_t s = 0; s < sim->shard_count; s++) sim->shards[s].obeyed.store = c->store.identity;
}
