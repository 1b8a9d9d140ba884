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
        out[i] = unit * f32_from_bits((uint32_t)(117 + bits % 20) << 23);
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

struct geometry chunk_geometry(const struct sim *sim, uint32_t chunk)
{
    const struct shape shape = { .rank = 1, .dim = { sim->scenario.elems[chunk] } };
    return geometry_of(&shape);
}

/* ---- the reference ---- */

struct opened *truth_opened(struct oracle *o, uint64_t round)
{
    for (uint32_t i = 0; i < o->opened_count; i++)
        if (o->opened[i].round == round) return &o->opened[i];
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

static void take_sum(struct sim *sim, const struct sum *sum, uint32_t chunk)
{
    struct oracle *o = &sim->oracle;
    memset(o->acc[chunk], 0, sizeof o->acc[chunk]);
    if (sum->any) memcpy(o->acc[chunk], sum->at, sizeof sum->at);
    o->touched[tensor_of(chunk)] = o->touched[tensor_of(chunk)] || sum->any;
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
    take_sum(sim, &sum, chunk);
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
    take_sum(sim, &sum, chunk);
}

static uint64_t sum_weights(const struct sim *sim, const struct opened *round)
{
    const uint32_t batch = sim->scenario.batch;
    uint64_t weight = 0;
    for (uint32_t i = 0; i < (batch > 0 ? batch : round->count); i++)
        weight += truth_weight(sim, round->round, batch > 0 ? i : round->members[i]);
    return weight;
}

static void sum_all(struct sim *sim, const struct opened *round, struct sums *sums,
                    uint64_t *weight)
{
    memset(sums, 0, sizeof *sums);
    memset(sim->oracle.touched, 0, sizeof sim->oracle.touched);
    for (uint32_t c = 0; c < sim->scenario.chunks; c++) {
        (sim->scenario.batch > 0 ? fold_batch : fold_chunk)(sim, round, c);
        const struct geometry g = chunk_geometry(sim, c);
        backend_host()->sum_leaves(sim->oracle.acc[c], &g, 0, g.leaf_count, sums);
    }
    *weight = sum_weights(sim, round);
    if (sim->scenario.batch > round->count) sim->seen[SEEN_dealt]++;
}

/* The step passes the tensor by. */
static bool passes_by(const struct sim *sim, uint32_t tensor)
{
    return sim->scenario.leaves_untouched && !sim->oracle.touched[tensor];
}

/* [tensors] */
static void update_all(struct sim *sim, const struct group_scalars *scalars)
{
    struct oracle *o = &sim->oracle;
    for (uint32_t c = 0; c < sim->scenario.chunks; c++) {
        const uint32_t tensor = tensor_of(c);
        const struct group_scalars *s = &scalars[tensor];
        if (passes_by(sim, tensor)) continue;
        const struct update run = { .grad = o->acc[c],
                                    .param = o->param[c],
                                    .exp_avg = o->m[c],
                                    .exp_avg_sq = o->v[c],
                                    .elems = sim->scenario.elems[c] };
        backend_host()->update[s->optimizer](&run, s);
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
                             struct payload *head)
{
    struct oracle *o = &sim->oracle;
    if (applied) o->state_bytes = truth_state(sim, round->round, round->members[0], o->state);
    if (!applied && o->state_bytes > 0) sim->seen[SEEN_state_kept]++;
    head->state = o->state;
    head->state_bytes = o->state_bytes;
}

/* Of each group in that round. */
static struct group_hyper hyper_of(const struct sim *sim, const struct opened *round,
                                   uint32_t group)
{
    struct group_hyper hyper = sim->scenario.groups[group];
    if (sim->scenario.schedules[group].kind == CAIRN_SCHEDULE_DRIVEN)
        hyper.lr = truth_lr(sim, round->round, round->members[0], group);
    return hyper;
}

static void put_driven(struct sim *sim, const struct opened *round, bool applied,
                       struct payload *head)
{
    struct oracle *o = &sim->oracle;
    if (!sim->scenario.driven) return;
    for (uint32_t g = 0; applied && g < GROUPS; g++)
        o->driven[g] = truth_lr(sim, round->round, round->members[0], g);
    sim->seen[applied ? SEEN_driven : SEEN_driven_kept]++;
    head->driven = o->driven;
    head->driven_count = GROUPS;
}

/* `own`: [tensors] scalars of an update, each by its own count; NULL: there is none. */
static void put_missed(struct sim *sim, const struct group_scalars *own, uint8_t *room,
                       struct payload *head)
{
    struct oracle *o = &sim->oracle;
    struct missed_writer writer;
    uint32_t updated[TENSORS_MAX]; // one of the class; NOBODY: none is
    missed_begin(&writer, room, sim->scenario.tensor_count);
    for (uint32_t t = 0; t < sim->scenario.tensor_count; t++) {
        const bool passed = own != NULL && passes_by(sim, t);
        const uint32_t before = writer.class_count;
        o->missed[t] += passed;
        missed_put(&writer, t, o->missed[t], t % GROUPS, passed);
        if (writer.class_count > before) updated[before] = own != NULL && !passed ? t : NOBODY;
        if (passed) sim->seen[SEEN_left_alone]++;
        if (own != NULL && !passed && o->missed[t] > 0) sim->seen[SEEN_own_count]++;
    }
    for (uint32_t c = 0; c < writer.class_count; c++)
        if (updated[c] != NOBODY) missed_set(&writer, c, &own[updated[c]]);
    head->missed = missed_end(&writer);
}

static void write_state(struct sim *sim, const struct opened *round, struct ledger_entry *entry)
{
    struct oracle *o = &sim->oracle;
    struct payload head = {
        .clip_scale = 1, .loss_scale = o->loss_scale, .good_rounds = good_rounds(o), .finite = true
    };
    end_row(o);
    head.skips = o->skips;
    put_client_state(sim, round, false, &head);
    put_driven(sim, round, false, &head);
    uint8_t room[CAIRN_MISSED_BYTES(TENSORS_MAX)];
    put_missed(sim, NULL, room, &head);
    for (uint32_t c = 0; c < sim->scenario.chunks; c++)
        (void)truth_write(sim, round->round, c, o->param[c], o->m[c]);
    o->generation++;
    sim->seen[SEEN_written]++;
    entry->kind = CAIRN_DECISION_WRITE;
    entry->payload_bytes = payload_encode(&head, NULL, entry->payload);
}

static void update_state(struct sim *sim, const struct opened *round, struct ledger_entry *entry)
{
    struct oracle *o = &sim->oracle;
    struct sums sums;
    uint64_t weight;
    sum_all(sim, round, &sums, &weight);
    struct update_norm norm = { .grad_norm = (double)NAN, .clip_scale = 1 };
    const bool apply = sums.nonfinite == 0 && weight > 0;
    entry->uncounted = sums.nonfinite == 0 && weight == 0;
    struct payload head = { .clip_scale = 1,
                            .grad_norm = (double)NAN,
                            .lr = hyper_of(sim, round, 0).lr,
                            .fail = sums.nonfinite > 0 && sim->scenario.fail_nonfinite,
                            .finite = sums.nonfinite == 0,
                            .group_count = apply ? GROUPS : 0 };
    struct group_scalars scalars[GROUPS], own[TENSORS_MAX];
    if (apply) {
        cairn_status status = update_norm_of(&sums.sum_squares, weight, o->loss_scale,
                                             sim->scenario.clip_norm, &norm);
        assert(status == CAIRN_OK);
        for (uint32_t g = 0; g < GROUPS; g++) {
            const struct group_hyper hyper = hyper_of(sim, round, g);
            status = group_scalars_of(&hyper, o->step + 1, norm.grad_scale, &scalars[g]);
            assert(status == CAIRN_OK);
        }
        for (uint32_t t = 0; t < sim->scenario.tensor_count; t++) {
            const struct group_hyper hyper = hyper_of(sim, round, t % GROUPS);
            status = group_scalars_of(&hyper, o->step + 1 - o->missed[t], norm.grad_scale, &own[t]);
            assert(status == CAIRN_OK);
        }
        head.grad_norm = norm.grad_norm;
        head.clip_scale = norm.clip_scale;
        o->step++;
        o->applied++;
        end_row(o);
        update_all(sim, own);
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
    uint8_t room[CAIRN_MISSED_BYTES(TENSORS_MAX)];
    put_missed(sim, apply ? own : NULL, room, &head);
    entry->payload_bytes = payload_encode(&head, scalars, entry->payload);
}

void truth_next(struct sim *sim, const struct opened *round, struct ledger_entry *entry)
{
    entry->round = round->round;
    (round->write ? write_state : update_state)(sim, round, entry);
}
