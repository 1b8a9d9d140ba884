/* A scenario from a seed, and the loop that runs it. */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "tests/sim/sim.h"
#include "tests/support/hyper.h"

#define EVENTS_MAX 2000000 /* of a run; a usual one has a few thousand */

/* ---- configurations ---- */

struct round_config sim_round_config(const struct sim *sim)
{
    return (struct round_config) {
        .shard_count = sim->scenario.shards,
        .member_max = PROCS_MAX,
        .contributors_max = sim->scenario.batch,
        .step_deadline_ms = sim->scenario.deadline_ms,
        .terms = { .groups = sim->scenario.groups,
                   .schedules = sim->scenario.schedules,
                   .tensors = sim->scenario.tensors,
                   .clip_norm = sim->scenario.clip_norm,
                   .revision = sim->revision,
                   .workers_min = sim->scenario.workers_min,
                   .on_worker_loss = sim->scenario.on_worker_loss,
                   .worker_loss_wait_ms = sim->scenario.loss_wait_ms },
        .group_count = GROUPS,
        .tensor_count = sim->scenario.tensor_count,
        .leaves_untouched = sim->scenario.leaves_untouched,
        .client_state_max = sim->scenario.client_state_max,
        .scaling = { .start = sim->scenario.loss_scale,
                     .dynamic = true,
                     .min = 1,
                     .max = sim->scenario.loss_scale,
                     .growth_rounds = 2000 },
        .fail_nonfinite = sim->scenario.fail_nonfinite,
        .skips_max = sim->scenario.skips_max,
    };
}

struct step_config sim_step_config(const struct sim *sim, const struct sim_layout *layout,
                                   uint32_t shard)
{
    return (struct step_config) { .chunk_count = layout->count[PLACE(shard)],
                                  .window = sim->scenario.window + sim->scenario.small +
                                            sim->scenario.in_place,
                                  .small = sim->scenario.small,
                                  .in_place = sim->scenario.in_place,
                                  .member_max = PROCS_MAX,
                                  .payload_bytes_max = PAYLOAD_MAX,
                                  .folds_wanted = sim->scenario.folds_wanted };
}

struct push_config sim_push_config(const struct sim *sim)
{
    return (struct push_config) { .shard_count = sim->scenario.room,
                                  .queue_max = sim->scenario.queue_max };
}

/* A chunk is once in a queue, and every micro-batch may be. */
struct push_config sim_relay_push_config(void)
{
    return (struct push_config) { .shard_count = 1, .queue_max = CHUNKS_MAX + MICROS_MAX + 1 };
}

/* ---- the scenario ---- */

static double between(struct rng *rng, double least, double most)
{
    return least + (most - least) * rng_unit(rng);
}

/* 0 in some seeds, up to `most` in the others. */
static double sometimes(struct rng *rng, double how_often, double most)
{
    const double x = rng_unit(rng) * most;
    return rng_chance(rng, how_often) ? x : 0;
}

/* In some seeds what nobody touched is left alone. */
static void draw_tensors(struct sim *sim)
{
    struct rng rng = { mix(sim->seed, 111) };
    struct scenario *sc = &sim->scenario;
    sc->leaves_untouched = rng_chance(&rng, 0.5);
    sc->tensor_count = tensor_of(sc->chunks - 1) + 1;
    for (uint32_t t = 0; t < sc->tensor_count; t++)
        sc->tensors[t] = (struct round_tensor) { .group = t % GROUPS };
    for (uint32_t c = 0; c < sc->chunks; c++) sc->tensors[tensor_of(c)].elems += sc->elems[c];
}

static void draw_model(struct sim *sim, struct rng *rng)
{
    struct scenario *sc = &sim->scenario;
    static const uint32_t optimizers[] = { CAIRN_OPTIMIZER_ADAMW, CAIRN_OPTIMIZER_ADAM,
                                           CAIRN_OPTIMIZER_SGD };
    sc->chunks = 1 + (uint32_t)rng_below(rng, rng_chance(rng, 0.05) ? CHUNKS_MAX : 10);
    const uint32_t most = rng_chance(rng, 0.05) ? ELEMS_MAX : 16;
    for (uint32_t c = 0; c < sc->chunks; c++) sc->elems[c] = 1 + (uint32_t)rng_below(rng, most);
    for (uint32_t g = 0; g < GROUPS; g++) {
        sc->groups[g] = cairn_hyper_default(optimizers[rng_below(rng, 3)]);
        sc->groups[g].lr = between(rng, 1e-4, 1e-1);
        if (sc->groups[g].optimizer == CAIRN_OPTIMIZER_SGD) sc->groups[g].momentum = 0.9;
    }
    sc->clip_norm = rng_chance(rng, 0.5) ? between(rng, 0.01, 2) : 0;
    sc->loss_scale = rng_chance(rng, 0.3) ? 1024 : 1;
    sc->fail_nonfinite = rng_chance(rng, 0.3);
    sc->micros_max = 1 + (uint32_t)rng_below(rng, MICROS_MAX);
    sc->absent = sometimes(rng, 0.6, 0.6);
    sc->poison = sometimes(rng, 0.4, 0.6);
    sc->weightless = sometimes(rng, 0.1, 0.3);
    draw_tensors(sim);
}

static void draw_machines(struct scenario *sc, struct rng *rng)
{
    sc->control_delay = between(rng, 20, 400);
    sc->fabric_delay = between(rng, 20, 600);
    sc->receive_delay = between(rng, 20, rng_chance(rng, 0.2) ? 4000 : 500);
    sc->work_delay = between(rng, 20, rng_chance(rng, 0.2) ? 4000 : 300);
    sc->compute_delay = between(rng, 100, 2000);
    sc->disk_delay = between(rng, 50, 3000);
    if (sc->chunks > 10) sc->receive_delay = sc->work_delay = 100; // or a round takes seconds
    // Long enough for a round that takes one chunk after the other.
    const double chunk = 2 * sc->fabric_delay + sc->receive_delay + sc->ranks * sc->work_delay;
    sc->deadline_ms = 100 + (uint64_t)(sc->chunks * sc->micros_max * chunk * 4 / 1000);
    sc->duplicate = sometimes(rng, 0.5, 0.3);
    sc->corrupt = sometimes(rng, 0.3, 0.05);
}

static void draw_faults(struct scenario *sc, struct rng *rng)
{
    for (uint32_t i = 0; i < 10; i++)
        sc->weight[i] = rng_chance(rng, 0.5) ? 1 + (uint32_t)rng_below(rng, 5) : 0;
    sc->weight[6] = rng_chance(rng, 0.1) ? 1 : 0; // a stall costs a whole deadline
    sc->weight[7] += 1;
    sc->fault_gap = between(rng, 500, rng_chance(rng, 0.5) ? 4000 : 20000);
    sc->kill_midway = sometimes(rng, 0.3, 0.05);
    sc->break_midway = sometimes(rng, 0.3, 0.05);
    sc->faults_end = MS(50) + rng_below(rng, MS(400));
    // Where somebody stalls, mostly long enough for the deadline to end it.
    const bool is_awaited = sc->weight[6] != 0 && sc->deadline_ms < 1000;
    if (is_awaited) sc->faults_end += MS(2 * sc->deadline_ms);
}

/* Shards die whose memory does not. */
static void draw_kept(struct sim *sim)
{
    struct rng rng = { mix(sim->seed, 114) };
    sim->scenario.weight[15] = (uint32_t)sometimes(&rng, 0.5, 4);
}

/* In some seeds each place has a standby, or two. Then nobody else meddles with names, stores and
 * connections: no standby is promised to be of use after two faults at a time. */
static void draw_standbys(struct sim *sim)
{
    struct rng rng = { mix(sim->seed, 115) }, two = { mix(sim->seed, 120) },
               attack = { mix(sim->seed, 4) };
    struct scenario *sc = &sim->scenario;
    if (sc->hosts > 0 || rng_chance(&attack, 0.25) || !rng_chance(&rng, 0.35)) return;
    sc->standbys = rng_chance(&two, 0.4) ? 2 : 1;
    sc->weight[10] = sc->weight[12] = 0;
    sc->weight[16] = 1 + (uint32_t)rng_below(&rng, 6);
    sc->weight[17] = (uint32_t)sometimes(&rng, 0.7, 3);
    sc->weight[18] = (uint32_t)sometimes(&rng, 0.7, 5);
    sc->weight[19] = (uint32_t)sometimes(&rng, 0.5, 3);
    sc->patience_ms = 25 + rng_below(&rng, 80); // more than it takes to miss a process
    sc->row_delay = rng_chance(&rng, 0.3) ? 6000 : sc->disk_delay;
    // a standby may be late, and then the store is told so, of one place after the other
    sc->deadline_ms += (4 * LEASE + (uint64_t)sc->row_delay * 8 * sc->shards) / 1000;
    sc->owner_dies = sometimes(&rng, 0.5, 0.05);
    sc->faults_end += MS(200);
}

/* In some seeds each shard has a log, and its memory may be lost: that of all at once, too. An older store,
 * or a change of layout, would be a second fault. */
static void draw_logs(struct sim *sim)
{
    struct rng rng = { mix(sim->seed, 116) };
    struct scenario *sc = &sim->scenario;
    if (sc->hosts > 0 || sc->standbys || sc->reshards || !rng_chance(&rng, 0.4)) return;
    sc->logs = true;
    sc->weight[10] = sc->weight[12] = sc->weight[15] = 0;
    sc->weight[20] = 1 + (uint32_t)rng_below(&rng, 8);
    sc->faults_end += MS(100);
}

/* In some seeds several coordinators have one store. */
static void draw_coordinators(struct sim *sim)
{
    struct rng rng = { mix(sim->seed, 117) };
    struct scenario *sc = &sim->scenario;
    if (sc->hosts > 0 || sc->standbys || sc->reshards || !rng_chance(&rng, 0.4)) return;
    sc->coordinators = 2 + (uint32_t)rng_below(&rng, 2);
    sc->store_lease_ms = 30 + rng_below(&rng, 40);
    sc->lost_answer = sometimes(&rng, 0.5, 0.1);
    sc->refused_write = sometimes(&rng, 0.3, 0.2);
    sc->weight[10] = sc->weight[12] = 0;
    sc->weight[21] = 1 + (uint32_t)rng_below(&rng, 8);
    sc->faults_end += MS(300);
}

/* In some seeds workers and shards share hosts, and the shards of a host of several workers relay. */
static void draw_hosts(struct sim *sim)
{
    struct rng rng = { mix(sim->seed, 104) };
    struct scenario *sc = &sim->scenario;
    if (!rng_chance(&rng, 0.4)) return;
    sc->hosts = 1 + (uint32_t)rng_below(&rng, HOSTS_MAX);
    for (uint32_t s = 0; s < sc->shards; s++)
        sc->shard_host[s] = (uint32_t)rng_below(&rng, sc->hosts);
    sc->buffers_wanted = 1 + (uint32_t)rng_below(&rng, rng_chance(&rng, 0.5) ? 4 : CHUNKS_MAX);
    sc->roomless = rng_chance(&rng, 0.5) ? 0.3 : 0;
    sc->deadline_ms *= 2; // every contribution goes twice
}

/* In some seeds a step has its micro-batches, whoever is there; then nobody adds up before, nor holds parts:
 * and a contribution depends on its number alone. */
static void draw_batch(struct sim *sim)
{
    struct rng rng = { mix(sim->seed, 110) };
    struct scenario *sc = &sim->scenario;
    if (sc->hosts > 0 || !rng_chance(&rng, 0.5)) return;
    sc->batch = 1 + (uint32_t)rng_below(&rng, MICROS_MAX);
    sc->unheld = 0;
    sc->deadline_ms *= sc->batch; // it may be one worker that computes all of it
}

static void draw_reshards(struct scenario *sc, struct rng *rng)
{
    sc->weight[13] = 2 + (uint32_t)rng_below(rng, 6);
    sc->weight[14] = rng_chance(rng, 0.5) ? 2 : 0;
    for (uint32_t s = sc->shards; s < SHARDS_MAX && sc->hosts > 0; s++)
        sc->shard_host[s] = (uint32_t)rng_below(rng, sc->hosts);
}

static void draw_slots(struct sim *sim)
{
    struct rng small = { mix(sim->seed, 112) }, places = { mix(sim->seed, 113) };
    struct scenario *sc = &sim->scenario;
    sc->small = rng_chance(&small, 0.5) ? 0 : 1 + (uint32_t)rng_below(&small, SMALL_MAX);
    sc->in_place = rng_chance(&places, 0.5) ? 0 : 1 + (uint32_t)rng_below(&places, PLACED_MAX);
    if (sc->window == 1) sim->seen[SEEN_window_one]++;
    if (sc->small > 0) sim->seen[SEEN_window_small]++;
}

static void draw_scenario(struct sim *sim)
{
    struct rng rng = { mix(sim->seed, 100) };
    struct scenario *sc = &sim->scenario;
    memset(sc, 0, sizeof *sc);
    sc->shards = 1 + (uint32_t)rng_below(&rng, SHARDS_MAX);
    sc->ranks = 1 + (uint32_t)rng_below(&rng, RANKS_MAX);
    sc->workers_min = 1 + (uint32_t)rng_below(&rng, sc->ranks);
    sc->window = rng_chance(&rng, 0.4) ? 1 : 1 + (uint32_t)rng_below(&rng, WINDOW_MAX);
    sc->folds_wanted = (uint32_t)rng_below(&rng, 4);
    struct rng layouts = { mix(sim->seed, 110) };
    sc->reshards = rng_chance(&layouts, 0.3);
    sc->room = sc->reshards ? SHARDS_MAX : sc->shards;
    sc->queue_max = 2 * sc->room + (uint32_t)rng_below(&rng, 30);
    draw_slots(sim);
    draw_model(sim, &rng);
    draw_machines(sc, &rng);
    draw_faults(sc, &rng);
    struct rng writes = { mix(sim->seed, 101) };
    sc->write = sometimes(&writes, 0.3, 0.4);
    struct rng tiles = { mix(sim->seed, 102) };
    sc->unheld = sometimes(&tiles, 0.5, 0.9);
    struct rng whims = { mix(sim->seed, 103) };
    sc->give_up = sometimes(&whims, 0.3, 0.1);
    sc->client_state_max = (uint32_t)sometimes(&whims, 0.5, STATE_MAX);
    draw_hosts(sim);
    draw_batch(sim);
    struct rng skips = { mix(sim->seed, 107) };
    sc->skips_max = rng_chance(&skips, 0.5) ? 1 + (uint32_t)rng_below(&skips, 3) : 0;
    struct rng launches = { mix(sim->seed, 108) };
    if (rng_chance(&launches, 0.5)) {
        sc->launch = sc->ranks;
        sc->start_wait_ms = 20 + (uint32_t)rng_below(&launches, 300);
    }
    if (rng_chance(&launches, 0.15)) { // more than there are
        sc->lowered = sc->workers_min;
        sc->workers_min = sc->ranks + 1;
    }
    struct rng losses = { mix(sim->seed, 110) };
    if (rng_chance(&losses, 0.4)) {
        sc->on_worker_loss = (cairn_worker_loss)(1 + rng_below(&losses, 2));
        sc->loss_wait_ms = 20 + (uint32_t)rng_below(&losses, 300);
    }
    struct rng driven = { mix(sim->seed, 109) };
    for (uint32_t g = 0; g < GROUPS; g++) {
        if (!rng_chance(&driven, 0.3)) continue;
        sc->schedules[g].kind = CAIRN_SCHEDULE_DRIVEN;
        sc->driven = true;
    }
    struct rng twins = { mix(sim->seed, 105) };
    sc->weight[10] = (uint32_t)sometimes(&twins, 0.3, 4);
    sc->weight[11] = rng_chance(&twins, 0.1) ? 1 : 0;
    struct rng stores = { mix(sim->seed, 106) };
    sc->weight[12] = (uint32_t)sometimes(&stores, 0.3, 3);
    if (sc->reshards) draw_reshards(sc, &layouts);
    if (sc->weight[11] > 0 && sc->deadline_ms < 1000) sc->faults_end += MS(2 * sc->deadline_ms);
    // Cuts where they fall: a shard may own nothing.
    uint32_t cut[SHARDS_MAX + 1] = { 0 };
    for (uint32_t s = 1; s < sc->shards; s++) {
        const uint32_t left = sc->chunks - cut[s - 1];
        const uint32_t fair = left / (sc->shards - s + 1);
        const bool odd = rng_chance(&rng, 0.2);
        cut[s] = cut[s - 1] + (odd ? (uint32_t)rng_below(&rng, left + 1) : fair);
    }
    cut[sc->shards] = sc->chunks;
    struct sim_layout *layout = layout_new(sim, NULL);
    layout->shards = (1u << sc->shards) - 1;
    layout->published = layout;
    for (uint32_t s = 0; s < sc->shards; s++)
        for (uint32_t c = cut[s]; c < cut[s + 1]; c++) layout->owner[c] = s;
    layout_index(sim, layout);
}

/* ---- the simulation ---- */

static void *reserve(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (memory == NULL) {
        fprintf(stderr, "cairn-sim: out of memory\n");
        exit(1);
    }
    return memory;
}

struct sim *sim_open(void)
{
    struct sim *sim = reserve(sizeof *sim);
    sim->attack = attack_open();
    sim->logs = logs_open();
    sim->leads = leads_open();
    sim->former = reserve(sizeof *sim->former);
    sim->scenario.shards = sim->scenario.room = SHARDS_MAX;
    sim->scenario.window = WINDOW_MAX;
    sim->scenario.small = SMALL_MAX;
    sim->scenario.in_place = PLACED_MAX;
    sim->scenario.workers_min = 1;
    sim->scenario.queue_max = 1024;
    sim->scenario.client_state_max = STATE_MAX;
    sim->scenario.tensor_count = TENSORS_MAX;
    struct sim_layout layout = { .count = { CHUNKS_MAX } };
    const struct round_config round = sim_round_config(sim);
    const struct step_config step = sim_step_config(sim, &layout, 0);
    const struct push_config push = sim_push_config(sim);
    sim->round_memory = reserve(round_bytes(&round));
    sim->round_spare = reserve(round_bytes(&round));
    sim->round_list = reserve(round_actions_max(&round) * sizeof *sim->round_list);
    for (uint32_t r = 0; r < 2 * ROOMS_MAX; r++)
        sim->step_memory[r / ROOMS_MAX][r % ROOMS_MAX] = reserve(step_bytes(&step));
    const struct move_config move = { .shard_max = SHARDS_MAX, .shard_count = SHARDS_MAX };
    sim->move_memory = reserve(move_bytes(&move));
    sim->move_spare = reserve(move_bytes(&move));
    const struct push_config relay_push = sim_relay_push_config();
    for (uint32_t i = 0; i < SHARDS_MAX * SHARDS_MAX; i++) {
        const uint32_t shard = i / SHARDS_MAX, owner = i % SHARDS_MAX;
        sim->relay_step_memory[0][shard][owner] = reserve(step_bytes(&step));
        sim->relay_step_memory[1][shard][owner] = reserve(step_bytes(&step));
        sim->relay_push_memory[i / SHARDS_MAX][i % SHARDS_MAX] = reserve(push_bytes(&relay_push));
    }
    sim->step_list = reserve(step_actions_max(&step) * sizeof *sim->step_list);
    for (uint32_t p = 0; p < PROCS_MAX; p++) sim->push_memory[p] = reserve(push_bytes(&push));
    sim->push_list = reserve(push_actions_max(&push) * sizeof *sim->push_list);
    return sim;
}

void sim_close(struct sim *sim)
{
    sim_net_reset(sim);
    attack_close(sim->attack);
    logs_close(sim->logs);
    free(sim->leads);
    free(sim->former);
    free(sim->round_spare);
    free(sim->move_spare);
    for (size_t i = 0; i < sim->free_count; i++) free(sim->free_list[i]);
    free(sim->free_list);
    free(sim->heap);
    free(sim->round_memory);
    free(sim->round_list);
    free(sim->step_list);
    free(sim->push_list);
    for (uint32_t r = 0; r < 2 * ROOMS_MAX; r++)
        free(sim->step_memory[r / ROOMS_MAX][r % ROOMS_MAX]);
    free(sim->move_memory);
    for (uint32_t p = 0; p < PROCS_MAX; p++) free(sim->push_memory[p]);
    for (uint32_t i = 0; i < SHARDS_MAX * SHARDS_MAX; i++) {
        free(sim->relay_step_memory[0][i / SHARDS_MAX][i % SHARDS_MAX]);
        free(sim->relay_step_memory[1][i / SHARDS_MAX][i % SHARDS_MAX]);
        free(sim->relay_push_memory[i / SHARDS_MAX][i % SHARDS_MAX]);
    }
    free(sim);
}

void sim_fail(struct sim *sim, const char *format, ...)
{
    if (sim->failed) return; // the first one is the one to look at
    sim->failed = true;
    va_list args;
    va_start(args, format);
    vsnprintf(sim->failure, sizeof sim->failure, format, args);
    va_end(args);
}

void sim_trace(struct sim *sim, const char *what, uint64_t a, uint64_t b, uint64_t c)
{
    sim->trace = mix(mix(sim->trace, a), mix(b, c ^ sim->now));
    if (!sim->verbose) return;
    printf("%9" PRIu64 " %-22s %" PRIx64 " %" PRIx64 " %" PRIx64 "\n", sim->now, what, a, b, c);
}

static void start(struct sim *sim, uint64_t seed, bool verbose)
{
    sim_net_reset(sim);
    sim->seed = seed;
    sim->now = sim->events_seen = 0;
    sim->verbose = verbose;
    sim->healed = sim->failed = sim->done = false;
    sim->failure[0] = '\0';
    sim->trace = mix(seed, 1);
    sim->lives = sim->revision = 0;
    sim->schedule.state = mix(seed, 2);
    sim->fault.state = mix(seed, 3);
    memset(&sim->coordinator, 0, sizeof sim->coordinator);
    memset(sim->shards, 0, sizeof sim->shards);
    for (uint32_t s = 0; s < SHARDS_MAX; s++) sim->shards[s].id = sim->shards[s].room = s;
    memset(sim->procs, 0, sizeof sim->procs);
    memset(sim->twins, 0, sizeof sim->twins);
    sim->plan = (struct sim_plan) { .active = false };
    sim->layout_count = 0;
    draw_scenario(sim);
    draw_kept(sim);
    draw_standbys(sim);
    draw_logs(sim);
    draw_coordinators(sim);
    if (sim->has_others) memset(sim->others, 0, sizeof sim->others);
    sim->has_others = sim->scenario.standbys;
    for (uint32_t i = 0; i < CAIRN_STANDBYS_MAX * SHARDS_MAX; i++) {
        const uint32_t which = i / SHARDS_MAX, place = i % SHARDS_MAX;
        struct sim_shard *other = &sim->others[which][place];
        other->id = OTHER * (1 + which) + place;
        other->room = SHARDS_MAX + i;
        other->name = 1 + which;
        other->is_empty = true;
    }
    sim->starts = sim->serials = sim->coordinators = 0;
    sim->shard_count = sim->scenario.shards;
    for (uint32_t s = sim->shard_count; s < sim->scenario.room && sim->scenario.hosts > 0; s++)
        memset(&sim->relays[s], 0, sizeof sim->relays[s]);
    oracle_start(sim);
    for (uint32_t s = 0; s < sim->scenario.shards; s++) {
        shard_start(sim, s);
        if (sim->scenario.hosts > 0) relay_start(sim, s);
    }
    store_made(sim);
    if (sim->scenario.standbys) standby_start(sim);
    if (sim->scenario.coordinators > 0)
        lead_start(sim);
    else
        coordinator_start(sim);
    for (uint32_t r = 0; r < sim->scenario.ranks; r++)
        sim_at(sim, rng_exponential(&sim->schedule, 1000), E_PROCESS_START, r, 0, 0);
    faults_start(sim);
    attack_start(sim);
}

/* Is the connection that it was sent on still there? */
static bool arrives(struct sim *sim, const struct event *event)
{
    const struct link *link = NULL;
    bool drains = false;
    switch (event->kind) {
    case E_COORDINATOR_FROM_SHARD: link = &shard_at(sim, event->b)->control; break;
    case E_COORDINATOR_FROM_WORKER: link = &sim->procs[event->b].control; break;
    case E_SHARD_FROM_COORDINATOR:
        link = &shard_at(sim, event->a)->control;
        drains = true;
        break;
    case E_COORDINATOR_FROM_TWIN: link = &sim->twins[event->b].control; break;
    case E_TWIN_FROM_COORDINATOR:
        link = &sim->twins[event->a].control;
        drains = true;
        break;
    case E_WORKER_FROM_COORDINATOR:
        link = &sim->procs[event->a].control;
        drains = sim->procs[event->a].life == event->message->member;
        break;
    case E_SHARD_FROM_WORKER:
        if (event->b < PROCS_MAX && sim->procs[event->b].mute) return false;
        link = sim_fabric(sim, event->b, event->a);
        break;
    case E_WORKER_FROM_SHARD: link = sim_fabric(sim, event->a, event->b); break;
    default: return true;
    }
    const bool to_worker = event->kind == E_WORKER_FROM_COORDINATOR;
    if (to_worker && !sim->procs[event->a].alive) return false;
    if (link->id != event->conn) return false;
    return link->up || (drains && event->time <= link->drains_until);
}

static void start_process(struct sim *sim, uint32_t rank)
{
    for (uint32_t i = 0; i < PROCS_MAX; i++)
        if (sim->procs[i].alive && !sim->procs[i].zombie && sim->procs[i].rank == rank) return;
    process_start(sim, rank);
}

static void dispatch(struct sim *sim, const struct event *event)
{
    if (lead_dispatch(sim, event)) return;
    switch (event->kind) {
    case E_NOTHING: return;
    case E_LEAD:
    case E_ETCD:
    case E_ETCD_ANSWERS:
    case E_ETCD_SILENT:
    case E_WRITE_AGAIN:
    case E_NOTE: lead_event(sim, event); return;
    case E_LEAD_MISSED: lead_missed(sim, event); return;
    case E_COORDINATOR_START:
        if (sim->scenario.coordinators > 0)
            lead_event(sim, event);
        else
            coordinator_event(sim, event);
        return;
    case E_FAULT: faults_event(sim); return;
    case E_HEAL: faults_heal(sim); return;
    case E_ATTACK: attack_event(sim); return;
    case E_PROCESS_START: start_process(sim, event->a); return;
    case E_CONTROL_RECONNECT:
        if (event->a != NOBODY) {
            shard_connect(sim, event->a);
            return;
        }
        process_event(sim, event);
        return;
    case E_FABRIC_RECONNECT:
        if (event->b < PROCS_MAX)
            process_event(sim, event);
        else if (sim->relays[event->b - PROCS_MAX].number == event->conn)
            relay_reconnect(sim, event->b - PROCS_MAX, event->a);
        return;
    case E_WORKER_FROM_SHARD:
        if (event->a < PROCS_MAX)
            process_event(sim, event);
        else
            relay_from_owner(sim, event->a - PROCS_MAX, event->b, event->message);
        return;
    case E_TAKEN:
    case E_TAKE_AGAIN: take_event(sim, event); return;
    case E_COMPUTED:
    case E_ASK_AGAIN:
    case E_WORKER_FROM_COORDINATOR: process_event(sim, event); return;
    case E_SHARD_FROM_COORDINATOR:
    case E_SHARD_FROM_WORKER:
    case E_LANDED:
    case E_FOLDED:
    case E_SUMMED:
    case E_UPDATED:
    case E_RELAY_LANDED:
    case E_RELAY_FOLDED:
    case E_RELAY_TICK:
    case E_PEER_DOWN:
    case E_ENDPOINT_DOWN:
    case E_LOGGED:
    case E_LOG_BASE: shard_event(sim, event); return;
    case E_MIRROR_FEED:
    case E_MIRROR_PIECE:
    case E_MIRROR_SUMS:
    case E_HOST_START:
    case E_ROW_SAVED: standby_event(sim, event); return;
    case E_TWIN_CONNECTS:
    case E_TWIN_FROM_COORDINATOR: twin_event(sim, event); return;
    default: coordinator_event(sim, event); return;
    }
}

static const char *stage_name(enum round_stage stage)
{
    static const char *const names[] = {
        [CAIRN_ROUND_WAITING] = "waiting",     [CAIRN_ROUND_FENCING] = "fencing",
        [CAIRN_ROUND_RESOLVING] = "resolving", [CAIRN_ROUND_STEADY] = "steady",
        [CAIRN_ROUND_OPEN] = "open",           [CAIRN_ROUND_DECIDED] = "decided",
        [CAIRN_ROUND_FAILED] = "failed",
    };
    return (unsigned)stage < sizeof names / sizeof *names ? names[stage] : "?";
}

static void say_stuck(struct sim *sim)
{
    struct sentence waiting;
    sentence_set(&waiting, "%s", "a coordinator");
    if (sim->coordinator.alive) round_waiting(sim->coordinator.core, NULL, &waiting);
    sim_fail(sim, "no %d steps within %d s after the faults stopped: waits for %s (stage %s)",
             HEALTHY, (int)(LIMIT / MS(1000)), waiting.text,
             sim->coordinator.core != NULL ? stage_name(round_stage_of(sim->coordinator.core))
                                           : "-");
}

/* Every shard has done all that was decided, and enough steps were made since the faults stopped; or nothing
 * more can be. */
static bool finished(const struct sim *sim)
{
    if (sim->done) return true;
    if (!sim->healed || sim->oracle.applied < sim->healthy_from + HEALTHY) return false;
    for (uint32_t s = 0; s < sim->shard_count; s++)
        if (layout_has(sim->oracle.layout, s) &&
            oracle_executed(sim, s) != sim->oracle.ledger_count)
            return false;
    return !sim->plan.active && sim->coordinator.alive && !reshard_under_way(sim);
}

static void trace_event(struct sim *sim, const struct event *event)
{
    if (event->kind == E_TICK) return;
    sim_trace(sim, event_name(event->kind), event->a, event->b, event->conn);
    const struct message *m = event->message;
    if (m != NULL)
        sim_trace(sim, sim_message_name(m->kind), m->member, m->round,
                  (uint64_t)m->chunk << 32 | m->micro);
}

void sim_run(struct sim *sim, uint64_t seed, bool verbose)
{
    start(sim, seed, verbose);
    line_run(sim);
    struct event event;
    while (!sim->failed && !finished(sim) && sim_pop(sim, &event)) {
        sim->now = event.time;
        if (lead_defers(sim, &event)) continue;
        trace_event(sim, &event);
        if (event.message == NULL || (arrives(sim, &event) && attack_take(sim, &event)))
            dispatch(sim, &event);
        if (event.message != NULL) sim_message_free(sim, event.message);
        if (++sim->events_seen > EVENTS_MAX)
            sim_fail(sim, "%d events: it runs in circles", EVENTS_MAX);
        if (sim->now > sim->scenario.faults_end + LIMIT) say_stuck(sim);
    }
    sim->trace = mix(sim->trace, sim->oracle.step);
    sim->seen[SEEN_abandoned] += sim->oracle.opened_count - sim->oracle.ledger_count;
}
