/* What has to hold, whatever happens: each message and each bit of a shard is compared with the truth. */
#include <inttypes.h>
#include <string.h>

#include "server/core/round_state.h"
#include "tests/sim/sim.h"

/* The layout in force has that shard. */
static bool has_shard(const struct round_machine *core, uint32_t shard)
{
    return shard < core->config.shard_count && !core->shards[shard].gone;
}

void oracle_start(struct sim *sim)
{
    struct oracle *o = &sim->oracle;
    memset(o, 0, sizeof *o);
    o->loss_scale = sim->scenario.loss_scale;
    for (uint32_t g = 0; g < GROUPS; g++) o->driven[g] = sim->scenario.groups[g].lr;
    o->generation = 1;
    for (uint32_t c = 0; c < sim->scenario.chunks; c++)
        truth_gradient(sim, 0, 0, 0, c, o->param[c]); // any numbers
    o->layout = o->settled = &sim->layouts[0];
    for (uint32_t c = 0; c < sim->scenario.chunks; c++) {
        struct sim_shard *shard = &sim->shards[o->layout->owner[c]];
        memcpy(shard->param[c], o->param[c], sizeof shard->param[c]);
        shard->has |= 1u << c;
        shard->state_at[c] = (struct cairn_version) { 1, 0 };
    }
}

bool oracle_holds(const struct sim *sim, uint64_t round, uint64_t member, uint32_t chunk)
{
    const uint32_t place = (uint32_t)(member % 16);
    if (place < PROCS_MAX) return truth_holds(sim, member, chunk);
    if (place >= PLACES_MAX) return false;
    const struct oracle *o = &sim->oracle;
    for (uint32_t i = o->opened_count; i-- > 0;) {
        if (o->opened[i].round != round) continue;
        for (uint32_t k = 0; k < o->opened[i].count; k++) {
            const uint64_t worker = o->opened[i].members[k];
            if (truth_host(sim, worker) == sim->scenario.shard_host[place - PROCS_MAX] &&
                truth_holds(sim, worker, chunk))
                return true;
        }
    }
    return false;
}

bool oracle_halted(const struct sim *sim)
{
    const struct skips *skips = &sim->oracle.skips;
    return sim->scenario.skips_max > 0 && skips->in_row >= sim->scenario.skips_max &&
           skips->revision == sim->revision;
}

/* ---- what has to hold ---- */

/* Shards with places have begun to do what this standby was ahead with. */
static bool has_caught_up(const struct oracle *o, const struct sim_shard *s)
{
    return s->standby.ahead != 0 && s->executed < o->ledger_count &&
           o->ledger[s->executed].round == s->standby.ahead;
}

static uint32_t executed_by(const struct sim *sim, const struct sim_shard *s)
{
    return s->executed + has_caught_up(&sim->oracle, s);
}

/* How many entries of the ledger are carried out at a place: if its owner is lost, by each standby that
 * may have the place. */
uint32_t oracle_executed(const struct sim *sim, uint32_t place)
{
    uint32_t least = UINT32_MAX;
    if (!standby_is_awaited(sim, place)) return executed_by(sim, &sim->shards[place]);
    for (uint32_t i = 1; i <= sim->scenario.standbys; i++) {
        const uint32_t id = OTHER * i + place;
        const uint32_t executed = executed_by(sim, shard_at(sim, id));
        if (standby_is_in_step(sim, id) && executed < least) least = executed;
    }
    return least < UINT32_MAX ? least : 0;
}

static bool all_executed(const struct sim *sim)
{
    for (uint32_t s = 0; s < sim->shard_count; s++)
        if (layout_has(sim->oracle.layout, s) &&
            oracle_executed(sim, s) != sim->oracle.ledger_count)
            return false;
    return true;
}

/* No decision takes effect before each standby that is in step has the sums. */
static void check_standbys(struct sim *sim, uint64_t round)
{
    for (uint32_t i = 0; i < sim->scenario.standbys * SHARDS_MAX; i++) {
        const uint32_t p = i % SHARDS_MAX, id = OTHER * (1 + i / SHARDS_MAX) + p;
        if (!standby_is_in_step(sim, id)) continue;
        const struct step_machine *core = shard_at(sim, id)->core;
        const bool has_sums = step_round_of(core) == round &&
                              (step_phase_of(core) == CAIRN_STEP_REDUCED ||
                               step_phase_of(core) == CAIRN_STEP_UPDATING ||
                               step_phase_of(core) == CAIRN_STEP_IDLE);
        if (!has_sums)
            sim_fail(sim,
                     "round %" PRIu64 " takes effect, and a standby of shard %u lacks its sums",
                     round, p);
    }
}

/* Every chunk has one owner: all shards that the job has go by one layout, and there is no other shard. */
static void check_layouts(struct sim *sim)
{
    const struct sim_layout *layout = sim->coordinator.layout;
    for (uint32_t s = 0; s < sim->shard_count; s++) {
        if (layout_has(layout, s) != has_shard(sim->coordinator.core, s))
            sim_fail(sim, "the coordinator and its core disagree on shard %u", s);
        const struct sim_shard *shard = &sim->shards[s];
        // One that died and is kept is before the fence that brought the layout, which comes again.
        const bool comes = shard->unfenced && shard->prepared == layout;
        if (layout_has(layout, s) && shard->layout != layout && !comes && !shard->is_empty)
            sim_fail(sim, "a round opens, and shard %u is in another layout than %" PRIu64, s,
                     layout->number);
    }
    for (uint32_t c = 0; c < sim->scenario.chunks; c++)
        if (!layout_has(layout, layout->owner[c]))
            sim_fail(sim, "chunk %u is of a shard that there is not", c);
}

/* The first one shows that the layout is in force: no round is open then, and all are at one version. */
void oracle_recut(struct sim *sim, uint32_t shard, const struct sim_layout *layout)
{
    struct oracle *o = &sim->oracle;
    if (o->layout == layout) return;
    // One that nobody heard of may be taken back.
    const bool follows = layout->number == o->layout->number + 1 ||
                         (layout->back && layout->number > o->layout->number);
    if (!follows)
        sim_fail(sim, "shard %u goes from layout %" PRIu64 " to %" PRIu64, shard, o->layout->number,
                 layout->number);
    for (uint32_t s = 0; s < sim->shard_count; s++)
        if (layout_has(o->layout, s) && oracle_executed(sim, s) != o->ledger_count && !layout->back)
            sim_fail(sim, "another layout comes into force before shard %u has published", s);
    o->layout = layout;
    sim->seen[SEEN_recut]++;
}

static bool somebody_goes_by(const struct sim *sim, const struct sim_layout *layout)
{
    for (uint32_t s = 0; s < sim->shard_count; s++)
        if (layout_has(sim->coordinator.layout, s) && sim->shards[s].alive &&
            sim->shards[s].layout == layout)
            return true;
    return false;
}

void oracle_slipped(struct sim *sim)
{
    struct oracle *o = &sim->oracle;
    while (o->layout->before != NULL && !somebody_goes_by(sim, o->layout))
        o->layout = o->layout->before;
}

static const struct ledger_entry *find_entry(const struct oracle *o, uint64_t round,
                                             uint32_t *index)
{
    for (uint32_t i = 0; i < o->ledger_count; i++) {
        if (o->ledger[i].round != round) continue;
        *index = i;
        return &o->ledger[i];
    }
    return NULL;
}

void oracle_joins(struct sim *sim, uint32_t shard, const struct decision *last)
{
    const struct oracle *o = &sim->oracle;
    uint32_t index = 0;
    if (shard >= OTHER) { // it may be told so late that nobody counts on it any more
        const bool is_known = find_entry(o, last->round, &index) != NULL;
        shard_at(sim, shard)->executed = is_known ? index + 1 : 0;
        return;
    }
    const uint64_t round = o->ledger_count > 0 ? o->ledger[o->ledger_count - 1].round : 0;
    if (last->round != round)
        sim_fail(sim, "shard %u joins with the outcome of round %" PRIu64 "; the last is %" PRIu64,
                 shard, last->round, round);
    shard_at(sim, shard)->executed = o->ledger_count;
}

void oracle_opened(struct sim *sim, const struct round_action *open)
{
    struct oracle *o = &sim->oracle;
    if (o->opened_count == LEDGER_MAX) {
        sim_fail(sim, "more than %d rounds", LEDGER_MAX);
        return;
    }
    // What a former leader opens after the next one did, or went on, nobody can end.
    const bool is_late = (o->opened_count > 0 &&
                          open->round <= o->opened[o->opened_count - 1].round) ||
                         open->version.step != o->step || !all_executed(sim);
    if (lead_is_former(sim) && is_late) return;
    if (o->opened_count > 0 && open->round <= o->opened[o->opened_count - 1].round)
        sim_fail(sim, "round number %" PRIu64 " was used before", open->round);
    if (!all_executed(sim) || open->version.step != o->step)
        sim_fail(sim,
                 "round %" PRIu64 " opens at step %" PRIu64
                 ", but not every shard has published step %" PRIu64,
                 open->round, open->version.step, o->step);
    if (!open->write && oracle_halted(sim))
        sim_fail(sim, "round %" PRIu64 " opens after %u skips in a row", open->round,
                 (unsigned)o->skips.in_row);
    struct opened *opened = &o->opened[o->opened_count++];
    memset(opened, 0, sizeof *opened);
    opened->revision = sim->revision;
    opened->by = sim->coordinator.incarnation;
    opened->shards = sim->coordinator.layout->shards;
    check_layouts(sim);
    opened->round = open->round;
    opened->count = open->member_count;
    opened->write = open->write;
    if (open->write && open->member_count != 1)
        sim_fail(sim, "a write of %u workers was opened", (unsigned)open->member_count);
    if (sim->scenario.batch > 0 && open->member_count > sim->scenario.batch)
        sim_fail(sim, "%u workers contribute %u micro-batches", (unsigned)open->member_count,
                 (unsigned)sim->scenario.batch);
    for (uint32_t i = 0; i < open->member_count; i++) opened->members[i] = open->members[i];
}

void oracle_told_worker(struct sim *sim, const struct round_action *opened)
{
    const struct opened *round = truth_opened(&sim->oracle, opened->round);
    if (round == NULL || round->write != opened->write ||
        opened->version.generation != sim->oracle.generation)
        sim_fail(sim, "a worker is told of a round that was not opened so");
    if (!all_executed(sim) || opened->version.step != sim->oracle.step)
        sim_fail(sim, "a worker is told to compute with a step that is not published everywhere");
    if (f64_bits(opened->loss_scale) != f64_bits(sim->oracle.loss_scale))
        sim_fail(sim, "a worker is told the loss scale %g; it is %g", opened->loss_scale,
                 sim->oracle.loss_scale);
    if (opened->skips != sim->oracle.skips.all)
        sim_fail(sim, "a worker is told of %" PRIu64 " skips; there were %" PRIu64, opened->skips,
                 sim->oracle.skips.all);
    const uint8_t *state;
    size_t bytes;
    if (!round_client_state(sim->coordinator.core, &state, &bytes) ||
        bytes != sim->oracle.state_bytes ||
        (bytes > 0 && memcmp(state, sim->oracle.state, bytes) != 0))
        sim_fail(sim, "a worker begins with another client state than that of its version");
}

/* The first shard to do as decided shows what was decided: it has to be what the contributions say. */
static void enter(struct sim *sim, const struct decision *decision)
{
    struct oracle *o = &sim->oracle;
    struct opened *round = truth_opened(o, decision->round);
    if (round == NULL || round->voided) {
        sim_fail(sim, "round %" PRIu64 " %s", decision->round,
                 round == NULL ? "was never opened"
                               : "takes effect; a worker heard that it is void");
        return;
    }
    if (o->ledger_count > 0 && round->round <= o->ledger[o->ledger_count - 1].round)
        sim_fail(sim, "round %" PRIu64 " takes effect after a later one", round->round);
    if (!all_executed(sim))
        sim_fail(sim, "round %" PRIu64 " takes effect before the last one did on every shard",
                 round->round);
    struct ledger_entry *entry = &o->ledger[o->ledger_count];
    memset(entry, 0, sizeof *entry);
    check_standbys(sim, round->round);
    truth_next(sim, round, entry);
    entry->after = (struct cairn_version) { o->generation, o->step };
    entry->incarnation = sim->coordinator.incarnation;
    entry->lives = sim->lives;
    o->ledger_count++;
}

/* What a standby alone does has no effect yet. */
static bool standby_runs_ahead(struct sim *sim, uint32_t id, const struct decision *decision)
{
    const struct oracle *o = &sim->oracle;
    struct sim_shard *s = shard_at(sim, id);
    struct sim_standby *standby = &s->standby;
    if (!standby_counts(sim, id)) return false;
    s->executed += has_caught_up(o, s);
    standby->ahead = 0;
    if (s->executed != o->ledger_count) return false;
    standby->ahead = decision->round;
    return true;
}

bool oracle_has_executed(const struct sim *sim, uint32_t id, uint32_t index)
{
    const struct sim_shard *s = shard_at(sim, id);
    return executed_by(sim, s) > index;
}

void oracle_takes_place(struct sim *sim, uint32_t place)
{
    struct sim_shard *s = &sim->shards[place];
    const bool was_ahead = s->standby.ahead != 0, is_known = has_caught_up(&sim->oracle, s);
    s->standby.ahead = 0;
    if (!was_ahead) return; // its host may have died as well, unnoticed
    const bool is_done = step_phase_of(s->core) != CAIRN_STEP_UPDATING;
    if (!is_known) oracle_executes(sim, place, step_last(s->core));
    if (is_done && is_known)
        s->executed++; // its bits are compared after its next update
    else if (is_done)
        oracle_compare(sim, place);
}

void oracle_executes(struct sim *sim, uint32_t shard, const struct decision *decision)
{
    struct oracle *o = &sim->oracle;
    if (shard >= OTHER && standby_runs_ahead(sim, shard, decision)) return;
    const uint32_t at = shard_at(sim, shard)->executed;
    if (shard >= OTHER && !standby_counts(sim, shard)) {
        shard_at(sim, shard)->standby.is_stray = shard_at(sim, shard)->standby.on;
        return; // a standby that nobody counts on, or a former owner
    }
    if (at == o->ledger_count) enter(sim, decision);
    if (sim->failed) return;
    const struct ledger_entry *entry = &o->ledger[at];
    if (entry->round != decision->round || entry->kind != decision->kind ||
        version_compare(entry->after, decision->version_after) != 0)
        sim_fail(sim,
                 "shard %u does %d of round %" PRIu64 " to step %" PRIu64
                 "; true is %d of round %" PRIu64 " to %" PRIu64,
                 shard, (int)decision->kind, decision->round, decision->version_after.step,
                 (int)entry->kind, entry->round, entry->after.step);
    else if (entry->payload_bytes != decision->payload_bytes ||
             memcmp(entry->payload, decision->payload, entry->payload_bytes) != 0)
        sim_fail(sim, "the scalars of round %" PRIu64 " are not what its contributions give",
                 decision->round);
}

static void compare_bits(struct sim *sim, uint32_t shard)
{
    const struct sim_shard *s = shard_at(sim, shard);
    const struct oracle *o = &sim->oracle;
    for (uint32_t c = 0; c < s->layout->count[PLACE(shard)]; c++) {
        const uint32_t chunk = s->layout->chunk[PLACE(shard)][c];
        if (shard >= OTHER && !standby_is_whole(s, chunk)) continue;
        const size_t bytes = sim->scenario.elems[chunk] * sizeof(float);
        const bool same = memcmp(s->param[chunk], o->param[chunk], bytes) == 0 &&
                          memcmp(s->m[chunk], o->m[chunk], bytes) == 0 &&
                          memcmp(s->v[chunk], o->v[chunk], bytes) == 0;
        if (!same)
            sim_fail(sim, "chunk %u on shard %u has other bits than the reference at step %" PRIu64,
                     chunk, shard, o->step);
    }
}

void oracle_compare(struct sim *sim, uint32_t shard)
{
    struct sim_shard *s = shard_at(sim, shard);
    const struct oracle *o = &sim->oracle;
    // its mirror may have ended while it carried this out
    if (shard >= OTHER && s->standby.on && !standby_counts(sim, shard)) s->standby.is_stray = true;
    if (s->standby.is_stray) return;
    if (shard >= OTHER && s->standby.ahead != 0) {
        if (s->executed == o->ledger_count) return;
        s->standby.ahead = 0;
    }
    s->executed++;
    if (shard >= OTHER && !s->standby.on) return; // it had the place
    if (s->executed != o->ledger_count && !sim->failed)
        sim_fail(sim, "shard %u is %u rounds behind", shard, o->ledger_count - s->executed);
    compare_bits(sim, shard);
}

void oracle_comes_back(struct sim *sim, uint32_t shard, const struct decision *last)
{
    const struct oracle *o = &sim->oracle;
    const struct sim_shard *s = shard_at(sim, shard);
    uint32_t index = 0;
    const bool is_known = find_entry(o, last->round, &index) != NULL;
    const uint32_t done = is_known ? index + 1 : last->round == 0 ? 0 : o->ledger_count + 1;
    if (sim->failed) return;
    if (done != s->executed && done != s->executed + 1) {
        sim_fail(sim, "shard %u comes back from its log with %u rounds done, and had done %u",
                 shard, done, s->executed);
    } else if (done > s->executed) {
        oracle_executes(sim, shard, last);
        oracle_compare(sim, shard);
    } else if (done == o->ledger_count) {
        compare_bits(sim, shard);
    }
}

static bool contributed(const struct opened *round, uint64_t member)
{
    for (uint32_t i = 0; round != NULL && i < round->count; i++)
        if (round->members[i] == member) return true;
    return false;
}

/* That of a round in which it was a coordinator keeps, as long as not too many others come. */
static bool must_know(struct sim *sim, const struct ledger_entry *entry, uint64_t member)
{
    const struct opened *round = truth_opened(&sim->oracle, entry->round);
    const uint64_t process = sim->coordinator.incarnation;
    // Of several coordinators, a former one may have opened and decided it while the next one led.
    const bool is_its = sim->scenario.coordinators == 0 || (round != NULL && round->by == process);
    return entry->incarnation == process && is_its && entry->lives == sim->lives &&
           contributed(round, member);
}

/* Who asks late hears the head alone. */
static bool same_payload(const struct message *result, const struct ledger_entry *entry)
{
    struct payload told, truth;
    const size_t bytes = result->decision.payload_bytes;
    if (bytes == entry->payload_bytes) return memcmp(result->payload, entry->payload, bytes) == 0;
    return payload_decode(result->payload, bytes, &told) == CAIRN_OK &&
           payload_decode(entry->payload, entry->payload_bytes, &truth) == CAIRN_OK &&
           f64_bits(told.grad_norm) == f64_bits(truth.grad_norm) &&
           f64_bits(told.clip_scale) == f64_bits(truth.clip_scale) &&
           f64_bits(told.lr) == f64_bits(truth.lr) && told.finite == truth.finite &&
           told.fail == truth.fail && told.skips.all == truth.skips.all;
}

void oracle_result(struct sim *sim, const struct message *result)
{
    uint32_t index = 0;
    const struct ledger_entry *entry = find_entry(&sim->oracle, result->round, &index);
    if (result->unknown) {
        sim->seen[SEEN_result_unknown]++;
        if (entry != NULL && index + 1 == sim->oracle.ledger_count)
            sim_fail(sim, "the result of the last round is not known");
        if (entry != NULL && must_know(sim, entry, result->member))
            sim_fail(sim, "how round %" PRIu64 " ended is forgotten", entry->round);
        return;
    }
    if (result->status == CAIRN_ERR_EPOCH_CHANGED) {
        if (entry != NULL)
            sim_fail(sim, "a worker heard that round %" PRIu64 " is void; it took effect",
                     result->round);
        struct opened *opened = truth_opened(&sim->oracle, result->round);
        if (opened != NULL && opened->write && !opened->voided) sim->seen[SEEN_write_void]++;
        if (opened != NULL) opened->voided = true;
        return;
    }
    if (entry == NULL) {
        sim_fail(sim, "a worker heard that round %" PRIu64 " ended; it took no effect",
                 result->round);
        return;
    }
    for (uint32_t i = 0; i < sim->scenario.standbys * SHARDS_MAX; i++) {
        const uint32_t p = i % SHARDS_MAX, id = OTHER * (1 + i / SHARDS_MAX) + p;
        if (standby_is_in_step(sim, id) && !oracle_has_executed(sim, id, index))
            sim_fail(sim,
                     "a worker heard the result of round %" PRIu64
                     " before a standby of shard %u had carried it out",
                     result->round, p);
    }
    for (uint32_t s = 0; s < sim->shard_count; s++)
        if (layout_has(sim->oracle.layout, s) && !sim->shards[s].joining &&
            oracle_executed(sim, s) <= index)
            sim_fail(sim,
                     "a worker heard the result of round %" PRIu64
                     " before shard %u had published it",
                     result->round, s);
    const bool fail = entry->kind == CAIRN_DECISION_SKIP && !entry->uncounted &&
                      sim->scenario.fail_nonfinite;
    if (result->status != (fail ? CAIRN_ERR_NONFINITE : CAIRN_OK) ||
        version_compare(result->version, entry->after) != 0 || !same_payload(result, entry))
        sim_fail(sim, "a worker heard another result of round %" PRIu64 " than the true one",
                 result->round);
}

void oracle_pinned(struct sim *sim, uint32_t shard, const struct message *pin)
{
    const struct cairn_version here = step_version(shard_at(sim, shard)->core);
    sim->seen[SEEN_pinned]++;
    if (version_compare(here, pin->version) != 0)
        sim_fail(sim, "shard %u was pinned at step %" PRIu64 " in a cut of step %" PRIu64, shard,
                 here.step, pin->version.step);
}
