/* What is true whatever happens: who contributed what, and what the state is after each round, computed by
 * one loop that knows nothing of messages, slots or shards. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "tests/sim/sim.h"

/* ---- contributions: functions of (seed, round, member, micro-batch, chunk) ---- */

static uint64_t draw(const struct sim *sim, uint64_t what, uint64_t round, uint64_t x)
{
    return mix(mix(mix(sim->seed, what), round), x);
}

static bool chance(uint64_t hash, double probability)
{
    return (double)(hash >> 11) * 0x1p-53 < probability;
}

uint32_t truth_micros(const struct sim *sim, uint64_t round, uint64_t member)
{
    return 1 + (uint32_t)(draw(sim, 1, round, member) % sim->scenario.micros_max);
}

uint64_t truth_owner(const struct sim *sim, uint64_t member)
{
    return sim->scenario.batch > 0 ? 0 : member;
}

uint64_t truth_weight(const struct sim *sim, uint64_t round, uint64_t member)
{
    if (chance(draw(sim, 2, round, 0), sim->scenario.weightless)) return 0;
    return 1 + draw(sim, 3, round, member) % 1000;
}

size_t truth_state(const struct sim *sim, uint64_t round, uint64_t member, uint8_t out[STATE_MAX])
{
    struct rng rng = { draw(sim, 12, round, member) };
    const size_t bytes = rng_below(&rng, sim->scenario.client_state_max + 1);
    for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)rng_next(&rng);
    return bytes;
}

double truth_lr(const struct sim *sim, uint64_t round, uint64_t member, uint32_t group)
{
    return (double)(draw(sim, 14 + group, round, member) % 1000) / 9000; // 0 at times
}

uint32_t truth_gives_up(const struct sim *sim, uint64_t round, uint64_t member)
{
    if (!chance(draw(sim, 10, round, member), sim->scenario.give_up)) return UINT32_MAX;
    return (uint32_t)(draw(sim, 11, round, member) % (2 * sim->scenario.chunks + 1));
}

bool truth_holds(const struct sim *sim, uint64_t member, uint32_t chunk)
{
    return !chance(draw(sim, 9, member, chunk), sim->scenario.unheld);
}

uint32_t truth_host(const struct sim *sim, uint64_t member)
{
    return (uint32_t)(draw(sim, 13, member, 0) % sim->scenario.hosts);
}

bool truth_grouped(const struct sim *sim, uint32_t shards, const uint64_t *members, uint32_t count,
                   uint32_t i)
{
    if (sim->scenario.hosts == 0) return false;
    const uint32_t host = truth_host(sim, members[i]);
    uint32_t here = 0;
    for (uint32_t k = 0; k < count; k++) here += truth_host(sim, members[k]) == host;
    for (uint32_t s = 0; s < SHARDS_MAX; s++)
        if ((shards >> s & 1) != 0 && sim->scenario.shard_host[s] == host) return here > 1;
    return false;
}

bool truth_present(const struct sim *sim, uint64_t round, uint64_t member, uint32_t micro,
                   uint32_t chunk)
{
    if (!truth_holds(sim, member, chunk)) return false;
    // Some chunks are absent by themselves, some with every worker: then their sum is +0.
    if (chance(draw(sim, 4, round, chunk), sim->scenario.absent / 2)) return false;
    const uint64_t hash = draw(sim, 5, round, mix(member, (uint64_t)micro << 32 | chunk));
    return !chance(hash, sim->scenario.absent);
}

void truth_gradient(const struct sim *sim, uint64_t round, uint64_t member, uint32_t micro,
                    uint32_t chunk, float *out)
{
    struct rng rng = { draw(sim, 6, round, mix(member, (uint64_t)micro << 32 | chunk)) };
    const uint32_t elems = sim->scenario.elems[chunk];
    for (uint32_t i = 0; i < elems; i++) {
        // Magnitudes over 2^20: sums in another order have other bits.
        const uint64_t bits = rng_next(&rng);
        const float unit = (float)(int32_t)(bits >> 32) * 0x1p-31f;
        out[i] = unit * cairn_f32_of_bits((uint32_t)(117 + bits % 20) << 23);
    }
    const uint64_t poison = draw(sim, 7, round, 0);
    if (chance(poison, sim->scenario.poison) && chance(rng_next(&rng), 0.1))
        out[rng_below(&rng, elems)] = poison % 2 == 0 ? (float)NAN : (float)INFINITY;
}

bool truth_write(const struct sim *sim, uint64_t round, uint32_t chunk, float *param, float *m)
{
    struct rng rng = { draw(sim, 8, round, chunk) };
    if (rng_chance(&rng, 0.3)) return false;
    for (uint32_t i = 0; i < sim->scenario.elems[chunk]; i++) {
        param[i] = (float)rng_unit(&rng);
        m[i] = (float)rng_unit(&rng) - 0.5f;
    }
    return true;
}

struct cairn_geometry chunk_geometry(const struct sim *sim, uint32_t chunk)
{
    const struct cairn_shape shape = { .rank = 1, .dim = { sim->scenario.elems[chunk] } };
    return cairn_geometry_of(&shape);
}

/* ---- the reference ---- */

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

static struct opened *find_opened(struct oracle *o, uint64_t round)
{
    for (uint32_t i = 0; i < o->opened_count; i++)
        if (o->opened[i].round == round) return &o->opened[i];
    return NULL;
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

struct sum {
    float at[ELEMS_MAX];
    bool any;
};

static void add(const struct sim *sim, struct sum *sum, uint32_t chunk, const float *g)
{
    for (uint32_t e = 0; e < sim->scenario.elems[chunk]; e++)
        sum->at[e] = sum->any ? sum->at[e] + g[e] : g[e];
    sum->any = true;
}

/* What member i has in the micro-batch is added. */
static void add_member(struct sim *sim, struct sum *sum, const struct opened *round, uint32_t i,
                       uint32_t micro, uint32_t chunk)
{
    float g[ELEMS_MAX];
    const uint64_t member = round->members[i];
    if (micro >= truth_micros(sim, round->round, member)) return;
    if (!truth_present(sim, round->round, member, micro, chunk)) {
        sim->seen[SEEN_absent]++;
        return;
    }
    truth_gradient(sim, round->round, member, micro, chunk, g);
    add(sim, sum, chunk, g);
}

/* The sum of those who share member i's host; i is the first of them. */
static void add_group(struct sim *sim, struct sum *sum, const struct opened *round, uint32_t i,
                      uint32_t micro, uint32_t chunk)
{
    struct sum group = { .any = false };
    for (uint32_t k = i; k < round->count; k++)
        if (truth_host(sim, round->members[k]) == truth_host(sim, round->members[i]))
            add_member(sim, &group, round, k, micro, chunk);
    if (!group.any) return;
    add(sim, sum, chunk, group.at);
    sim->seen[SEEN_relayed]++;
}

/* Is somebody of a lower rank on the same host? Then member i counts with that one. */
static bool is_later(const struct sim *sim, const struct opened *round, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (truth_host(sim, round->members[k]) == truth_host(sim, round->members[i])) return true;
    return false;
}

/* ((c0 + c1) + c2) + ... in (micro-batch, rank) order, where the members of a relayed host are one, of the
 * least rank. */
static void fold_chunk(struct sim *sim, const struct opened *round, uint32_t chunk)
{
    struct sum sum = { .any = false };
    for (uint32_t micro = 0; micro < MICROS_MAX; micro++)
        for (uint32_t i = 0; i < round->count; i++) {
            if (!truth_grouped(sim, round->shards, round->members, round->count, i))
                add_member(sim, &sum, round, i, micro, chunk);
            else if (!is_later(sim, round, i))
                add_group(sim, &sum, round, i, micro, chunk);
        }
    memset(sim->oracle.acc[chunk], 0, sizeof sim->oracle.acc[chunk]);
    if (sum.any) memcpy(sim->oracle.acc[chunk], sum.at, sizeof sum.at);
}

/* Of a batch: c0 + c1 + ... by the numbers of its micro-batches. Who computed which is no part of it. */
static void fold_batch(struct sim *sim, const struct opened *round, uint32_t chunk)
{
    struct sum sum = { .any = false };
    float g[ELEMS_MAX];
    for (uint32_t number = 0; number < sim->scenario.batch; number++) {
        if (!truth_present(sim, round->round, 0, number, chunk)) continue;
        truth_gradient(sim, round->round, 0, number, chunk, g);
        add(sim, &sum, chunk, g);
    }
    memset(sim->oracle.acc[chunk], 0, sizeof sim->oracle.acc[chunk]);
    if (sum.any) memcpy(sim->oracle.acc[chunk], sum.at, sizeof sum.at);
}

static uint64_t sum_weights(const struct sim *sim, const struct opened *round)
{
    const uint32_t batch = sim->scenario.batch;
    uint64_t weight = 0;
    for (uint32_t i = 0; i < (batch > 0 ? batch : round->count); i++)
        weight += truth_weight(sim, round->round, batch > 0 ? i : round->members[i]);
    return weight;
}

static void sum_all(struct sim *sim, const struct opened *round, struct cairn_sums *sums,
                    uint64_t *weight)
{
    memset(sums, 0, sizeof *sums);
    for (uint32_t c = 0; c < sim->scenario.chunks; c++) {
        (sim->scenario.batch > 0 ? fold_batch : fold_chunk)(sim, round, c);
        const struct cairn_geometry g = chunk_geometry(sim, c);
        cairn_backend_host()->sum_leaves(sim->oracle.acc[c], &g, 0, g.leaf_count, sums);
    }
    *weight = sum_weights(sim, round);
    if (sim->scenario.batch > round->count) sim->seen[SEEN_dealt]++;
}

static void update_all(struct sim *sim, const struct cairn_group_scalars *scalars)
{
    struct oracle *o = &sim->oracle;
    for (uint32_t c = 0; c < sim->scenario.chunks; c++) {
        const struct cairn_group_scalars *s = &scalars[c % GROUPS];
        const struct cairn_update run = { .grad = o->acc[c],
                                          .param = o->param[c],
                                          .exp_avg = o->m[c],
                                          .exp_avg_sq = o->v[c],
                                          .elems = sim->scenario.elems[c] };
        cairn_backend_host()->update[s->optimizer](&run, s);
    }
}

/* False: it is at its least. */
static bool lower_loss_scale(struct sim *sim)
{
    struct oracle *o = &sim->oracle;
    if (o->loss_scale <= 1) return false;
    o->loss_scale = o->loss_scale / 2;
    sim->seen[SEEN_scale_lowered]++;
    return true;
}

/* Something was applied or written. */
static void end_row(struct oracle *o)
{
    o->skips.in_row = 0;
    o->skips.revision = 0;
}

static void skip_in_row(struct oracle *o, uint64_t revision)
{
    if (o->skips.revision != revision) end_row(o);
    o->skips.in_row++;
    o->skips.revision = revision;
}

bool oracle_halted(const struct sim *sim)
{
    const struct cairn_skips *skips = &sim->oracle.skips;
    return sim->scenario.skips_max > 0 && skips->in_row >= sim->scenario.skips_max &&
           skips->revision == sim->revision;
}

/* Applied since the last skip; a write is neither, nor a round in which nobody counted anything. */
static uint32_t good_rounds(const struct oracle *o)
{
    uint32_t good = 0;
    for (uint32_t i = o->ledger_count; i-- > 0;) {
        if (o->ledger[i].kind == CAIRN_DECISION_SKIP && !o->ledger[i].uncounted) break;
        good += o->ledger[i].kind == CAIRN_DECISION_APPLY;
    }
    return good;
}

/* A write, a skip: the version's client state stays. */
static void put_client_state(struct sim *sim, const struct opened *round, bool applied,
                             struct cairn_payload *head)
{
    struct oracle *o = &sim->oracle;
    if (applied) o->state_bytes = truth_state(sim, round->round, round->members[0], o->state);
    if (!applied && o->state_bytes > 0) sim->seen[SEEN_state_kept]++;
    head->state = o->state;
    head->state_bytes = o->state_bytes;
}

/* Of each group in that round. */
static struct cairn_group_hyper hyper_of(const struct sim *sim, const struct opened *round,
                                         uint32_t group)
{
    struct cairn_group_hyper hyper = sim->scenario.groups[group];
    if (sim->scenario.schedules[group].kind == CAIRN_SCHEDULE_DRIVEN)
        hyper.lr = truth_lr(sim, round->round, round->members[0], group);
    return hyper;
}

static void put_driven(struct sim *sim, const struct opened *round, bool applied,
                       struct cairn_payload *head)
{
    struct oracle *o = &sim->oracle;
    if (!sim->scenario.driven) return;
    for (uint32_t g = 0; applied && g < GROUPS; g++)
        o->driven[g] = truth_lr(sim, round->round, round->members[0], g);
    sim->seen[applied ? SEEN_driven : SEEN_driven_kept]++;
    head->driven = o->driven;
    head->driven_count = GROUPS;
}

static void write_state(struct sim *sim, const struct opened *round, struct ledger_entry *entry)
{
    struct oracle *o = &sim->oracle;
    struct cairn_payload head = {
        .clip_scale = 1, .loss_scale = o->loss_scale, .good_rounds = good_rounds(o), .finite = true
    };
    end_row(o);
    head.skips = o->skips;
    put_client_state(sim, round, false, &head);
    put_driven(sim, round, false, &head);
    for (uint32_t c = 0; c < sim->scenario.chunks; c++)
        (void)truth_write(sim, round->round, c, o->param[c], o->m[c]);
    o->generation++;
    sim->seen[SEEN_written]++;
    entry->kind = CAIRN_DECISION_WRITE;
    entry->payload_bytes = cairn_payload_encode(&head, NULL, entry->payload);
}

/* What the coordinator has to decide, and the state after it. */
static void next_state(struct sim *sim, const struct opened *round, struct ledger_entry *entry)
{
    struct oracle *o = &sim->oracle;
    struct cairn_sums sums;
    uint64_t weight;
    sum_all(sim, round, &sums, &weight);
    struct cairn_update_norm norm = { .grad_norm = (double)NAN, .clip_scale = 1 };
    const bool apply = sums.nonfinite == 0 && weight > 0;
    entry->uncounted = sums.nonfinite == 0 && weight == 0;
    struct cairn_payload head = { .clip_scale = 1,
                                  .grad_norm = (double)NAN,
                                  .lr = hyper_of(sim, round, 0).lr,
                                  .fail = sums.nonfinite > 0 && sim->scenario.fail_nonfinite,
                                  .finite = sums.nonfinite == 0,
                                  .group_count = apply ? GROUPS : 0 };
    struct cairn_group_scalars scalars[GROUPS];
    if (apply) {
        cairn_status status = cairn_update_norm_of(&sums.sum_squares, weight, o->loss_scale,
                                                   sim->scenario.clip_norm, &norm);
        assert(status == CAIRN_OK);
        for (uint32_t g = 0; g < GROUPS; g++) {
            const struct cairn_group_hyper hyper = hyper_of(sim, round, g);
            status = cairn_group_scalars_of(&hyper, o->step + 1, norm.grad_scale, &scalars[g]);
            assert(status == CAIRN_OK);
        }
        head.grad_norm = norm.grad_norm;
        head.clip_scale = norm.clip_scale;
        o->step++;
        o->applied++;
        end_row(o);
        update_all(sim, scalars);
        sim->seen[SEEN_applied]++;
        if (norm.clip_scale < 1) sim->seen[SEEN_clipped]++;
    } else {
        sim->seen[weight == 0 ? SEEN_skipped_unweighted : SEEN_skipped]++;
        o->skips.all++;
        if (!entry->uncounted && !lower_loss_scale(sim)) skip_in_row(o, round->revision);
    }
    head.skips = o->skips;
    head.loss_scale = o->loss_scale;
    head.good_rounds = apply ? good_rounds(o) + 1 : entry->uncounted ? good_rounds(o) : 0;
    entry->kind = apply ? CAIRN_DECISION_APPLY : CAIRN_DECISION_SKIP;
    put_client_state(sim, round, apply, &head);
    put_driven(sim, round, apply, &head);
    entry->payload_bytes = cairn_payload_encode(&head, scalars, entry->payload);
}

/* ---- what has to hold ---- */

static bool all_executed(const struct sim *sim)
{
    for (uint32_t s = 0; s < sim->shard_count; s++)
        if (layout_has(sim->oracle.layout, s) &&
            sim->shards[s].executed != sim->oracle.ledger_count)
            return false;
    return true;
}

/* Every chunk has one owner: all shards that the job has go by one layout, and there is no other shard. */
static void check_layouts(struct sim *sim)
{
    const struct sim_layout *layout = sim->coordinator.layout;
    for (uint32_t s = 0; s < sim->shard_count; s++) {
        if (layout_has(layout, s) != cairn_round_has_shard(sim->coordinator.core, s))
            sim_fail(sim, "the coordinator and its core disagree on shard %u", s);
        if (layout_has(layout, s) && sim->shards[s].layout != layout)
            sim_fail(sim, "a round opens, and shard %u is in another layout than %llu", s,
                     (unsigned long long)layout->number);
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
        sim_fail(sim, "shard %u goes from layout %llu to %llu", shard,
                 (unsigned long long)o->layout->number, (unsigned long long)layout->number);
    for (uint32_t s = 0; s < sim->shard_count; s++)
        if (layout_has(o->layout, s) && sim->shards[s].executed != o->ledger_count && !layout->back)
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

void oracle_joins(struct sim *sim, uint32_t shard, const struct cairn_decision *last)
{
    const struct oracle *o = &sim->oracle;
    const uint64_t round = o->ledger_count > 0 ? o->ledger[o->ledger_count - 1].round : 0;
    if (last->round != round)
        sim_fail(sim, "shard %u joins with the outcome of round %llu; the last is %llu", shard,
                 (unsigned long long)last->round, (unsigned long long)round);
    sim->shards[shard].executed = o->ledger_count;
}

void oracle_opened(struct sim *sim, const struct cairn_round_action *open)
{
    struct oracle *o = &sim->oracle;
    if (o->opened_count == LEDGER_MAX) {
        sim_fail(sim, "more than %d rounds", LEDGER_MAX);
        return;
    }
    if (o->opened_count > 0 && open->round <= o->opened[o->opened_count - 1].round)
        sim_fail(sim, "round number %llu was used before", (unsigned long long)open->round);
    if (!all_executed(sim) || open->version.step != o->step)
        sim_fail(sim, "round %llu opens at step %llu, but not every shard has published step %llu",
                 (unsigned long long)open->round, (unsigned long long)open->version.step,
                 (unsigned long long)o->step);
    if (!open->write && oracle_halted(sim))
        sim_fail(sim, "round %llu opens after %u skips in a row", (unsigned long long)open->round,
                 (unsigned)o->skips.in_row);
    struct opened *opened = &o->opened[o->opened_count++];
    memset(opened, 0, sizeof *opened);
    opened->revision = sim->revision;
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

void oracle_told_worker(struct sim *sim, const struct cairn_round_action *opened)
{
    const struct opened *round = find_opened(&sim->oracle, opened->round);
    if (round == NULL || round->write != opened->write ||
        opened->version.generation != sim->oracle.generation)
        sim_fail(sim, "a worker is told of a round that was not opened so");
    if (!all_executed(sim) || opened->version.step != sim->oracle.step)
        sim_fail(sim, "a worker is told to compute with a step that is not published everywhere");
    if (cairn_f64_bits(opened->loss_scale) != cairn_f64_bits(sim->oracle.loss_scale))
        sim_fail(sim, "a worker is told the loss scale %g; it is %g", opened->loss_scale,
                 sim->oracle.loss_scale);
    if (opened->skips != sim->oracle.skips.all)
        sim_fail(sim, "a worker is told of %llu skips; there were %llu",
                 (unsigned long long)opened->skips, (unsigned long long)sim->oracle.skips.all);
    const uint8_t *state;
    size_t bytes;
    if (!cairn_round_client_state(sim->coordinator.core, &state, &bytes) ||
        bytes != sim->oracle.state_bytes ||
        (bytes > 0 && memcmp(state, sim->oracle.state, bytes) != 0))
        sim_fail(sim, "a worker begins with another client state than that of its version");
}

/* The first shard to do as decided shows what was decided: it has to be what the contributions say. */
static void enter(struct sim *sim, const struct cairn_decision *decision)
{
    struct oracle *o = &sim->oracle;
    struct opened *round = find_opened(o, decision->round);
    if (round == NULL || round->voided) {
        sim_fail(sim, "round %llu %s", (unsigned long long)decision->round,
                 round == NULL ? "was never opened"
                               : "takes effect; a worker heard that it is void");
        return;
    }
    if (o->ledger_count > 0 && round->round <= o->ledger[o->ledger_count - 1].round)
        sim_fail(sim, "round %llu takes effect after a later one",
                 (unsigned long long)round->round);
    if (!all_executed(sim))
        sim_fail(sim, "round %llu takes effect before the last one did on every shard",
                 (unsigned long long)round->round);
    struct ledger_entry *entry = &o->ledger[o->ledger_count];
    memset(entry, 0, sizeof *entry);
    entry->round = round->round;
    if (round->write)
        write_state(sim, round, entry);
    else
        next_state(sim, round, entry);
    entry->after = (struct cairn_version) { o->generation, o->step };
    entry->incarnation = sim->coordinator.incarnation;
    entry->lives = sim->lives;
    o->ledger_count++;
}

void oracle_executes(struct sim *sim, uint32_t shard, const struct cairn_decision *decision)
{
    struct oracle *o = &sim->oracle;
    const uint32_t at = sim->shards[shard].executed;
    if (at == o->ledger_count) enter(sim, decision);
    if (sim->failed) return;
    const struct ledger_entry *entry = &o->ledger[at];
    if (entry->round != decision->round || entry->kind != decision->kind ||
        cairn_version_compare(entry->after, decision->version_after) != 0)
        sim_fail(sim,
                 "shard %u does %d of round %llu to step %llu; true is %d of round %llu to %llu",
                 shard, (int)decision->kind, (unsigned long long)decision->round,
                 (unsigned long long)decision->version_after.step, (int)entry->kind,
                 (unsigned long long)entry->round, (unsigned long long)entry->after.step);
    else if (entry->payload_bytes != decision->payload_bytes ||
             memcmp(entry->payload, decision->payload, entry->payload_bytes) != 0)
        sim_fail(sim, "the scalars of round %llu are not what its contributions give",
                 (unsigned long long)decision->round);
}

void oracle_compare(struct sim *sim, uint32_t shard)
{
    struct sim_shard *s = &sim->shards[shard];
    const struct oracle *o = &sim->oracle;
    s->executed++;
    if (s->executed != o->ledger_count && !sim->failed)
        sim_fail(sim, "shard %u is %u rounds behind", shard, o->ledger_count - s->executed);
    for (uint32_t c = 0; c < s->layout->count[shard]; c++) {
        const uint32_t chunk = s->layout->chunk[shard][c];
        const size_t bytes = sim->scenario.elems[chunk] * sizeof(float);
        const bool same = memcmp(s->param[chunk], o->param[chunk], bytes) == 0 &&
                          memcmp(s->m[chunk], o->m[chunk], bytes) == 0 &&
                          memcmp(s->v[chunk], o->v[chunk], bytes) == 0;
        if (!same)
            sim_fail(sim, "chunk %u on shard %u has other bits than the reference at step %llu",
                     chunk, shard, (unsigned long long)o->step);
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
    return entry->incarnation == sim->coordinator.incarnation && entry->lives == sim->lives &&
           contributed(find_opened(&sim->oracle, entry->round), member);
}

/* Who asks late hears the head alone. */
static bool same_payload(const struct message *result, const struct ledger_entry *entry)
{
    struct cairn_payload told, truth;
    const size_t bytes = result->decision.payload_bytes;
    if (bytes == entry->payload_bytes) return memcmp(result->payload, entry->payload, bytes) == 0;
    return cairn_payload_decode(result->payload, bytes, &told) == CAIRN_OK &&
           cairn_payload_decode(entry->payload, entry->payload_bytes, &truth) == CAIRN_OK &&
           cairn_f64_bits(told.grad_norm) == cairn_f64_bits(truth.grad_norm) &&
           cairn_f64_bits(told.clip_scale) == cairn_f64_bits(truth.clip_scale) &&
           cairn_f64_bits(told.lr) == cairn_f64_bits(truth.lr) && told.finite == truth.finite &&
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
            sim_fail(sim, "how round %llu ended is forgotten", (unsigned long long)entry->round);
        return;
    }
    if (result->status == CAIRN_ERR_EPOCH_CHANGED) {
        if (entry != NULL)
            sim_fail(sim, "a worker heard that round %llu is void; it took effect",
                     (unsigned long long)result->round);
        struct opened *opened = find_opened(&sim->oracle, result->round);
        if (opened != NULL && opened->write && !opened->voided) sim->seen[SEEN_write_void]++;
        if (opened != NULL) opened->voided = true;
        return;
    }
    if (entry == NULL) {
        sim_fail(sim, "a worker heard that round %llu ended; it took no effect",
                 (unsigned long long)result->round);
        return;
    }
    for (uint32_t s = 0; s < sim->shard_count; s++)
        if (layout_has(sim->oracle.layout, s) && !sim->shards[s].joining &&
            sim->shards[s].executed <= index)
            sim_fail(sim,
                     "a worker heard the result of round %llu before shard %u had published it",
                     (unsigned long long)result->round, s);
    const bool fail = entry->kind == CAIRN_DECISION_SKIP && !entry->uncounted &&
                      sim->scenario.fail_nonfinite;
    if (result->status != (fail ? CAIRN_ERR_NONFINITE : CAIRN_OK) ||
        cairn_version_compare(result->version, entry->after) != 0 || !same_payload(result, entry))
        sim_fail(sim, "a worker heard another result of round %llu than the true one",
                 (unsigned long long)result->round);
}

void oracle_pinned(struct sim *sim, uint32_t shard, const struct message *pin)
{
    const struct cairn_version here = cairn_step_version(sim->shards[shard].core);
    sim->seen[SEEN_pinned]++;
    if (cairn_version_compare(here, pin->version) != 0)
        sim_fail(sim, "shard %u was pinned at step %llu in a cut of step %llu", shard,
                 (unsigned long long)here.step, (unsigned long long)pin->version.step);
}
