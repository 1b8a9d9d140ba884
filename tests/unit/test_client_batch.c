/* global_batch as the client sees it: the same bits from any number of workers that come and go, and what a
 * worker is told that speaks of micro-batches which are not its own. All workers are this one thread's. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/toy_scene.h"

enum { BATCH = 5, STEPS = 8, CREW_MAX = 7, TRAINED = 4, SEED = 11, OVERFLOW_INDEX = 2 };

/* The workers that are there, by rank. */
static struct worker {
    cairn *session;
    cairn_job *job;
    struct cairn_round round;
    float gradients[BATCH][TRAINED][TOY_ELEMS]; // lent to the round
} crew[CREW_MAX];
static uint32_t crew_count;
static const struct cairn_tensor
    *buffered; /* [TOY_TENSORS]: other tensors than the toy's, or NULL */

/* What a run made. */
struct state {
    float values[2][TRAINED][TOY_ELEMS]; // param, exp_avg
    double norms[STEPS];
    uint64_t skips;
    struct cairn_version version;
};

static void open_rooms(void)
{
    toy_start(2, .seed = 3, .delay_max_ticks = 3);
}

static struct cairn_job_spec batch_spec(uint32_t rank)
{
    return *TOY_SPEC(.rank = rank, .global_batch = BATCH, .seed = SEED, .clip_norm = 0.5,
                     .loss_scale = 4096, .client_state_max = 8);
}

/* ---- what a trainer computes: of the step, the number and the seed alone ---- */

static uint64_t tokens(uint32_t micro)
{
    return 3 + 2 * micro;
}

/* With dropout, by the seed; one batch overflows, in its next to last micro-batch. */
static float gradient(const struct cairn_round *round, uint32_t micro, int tensor, uint64_t elem)
{
    const uint64_t seed = cairn_micro_seed(round, micro);
    const uint64_t mixed = (seed ^ (elem * 4 + (uint64_t)tensor + 1)) * 0x9e3779b97f4a7c15;
    if (round->index == OVERFLOW_INDEX && micro == BATCH - 2 && elem == 0) return INFINITY;
    if (mixed >> 61 == 0) return 0;
    return ((float)(mixed >> 40) / 31337 - 250) * (float)tokens(micro) * (float)round->loss_scale;
}

static uint64_t push_own(struct worker *w)
{
    uint64_t weight = 0;
    for (uint32_t k = w->round.rank; k < w->round.global_batch; k += w->round.world) {
        for (int t = 0; t < TRAINED; t++) {
            float *values = w->gradients[k][t];
            if (t == 3 && k % 2 == 1) continue; // absent from some
            for (uint64_t i = 0; i < toy_elems(t); i++) values[i] = gradient(&w->round, k, t, i);
            good(
                cairn_push(w->job, &w->round, k, toy_tensors[t].name, NULL, TOY_F32(values), NULL));
        }
        weight += tokens(k);
        if (k % 3 != 1) good(cairn_micro_end(w->job, &w->round, k));
        if (k % 3 == 1 && k + w->round.world < BATCH)
            good(cairn_micro_end(w->job, &w->round, k)); // the last one the commit may end
    }
    return weight;
}

/* ---- a run ---- */

static void join(const char *name, uint32_t rank)
{
    struct cairn_job_spec spec = batch_spec(rank);
    if (buffered != NULL) spec.tensors = buffered;
    crew[rank].session = toy_session(&rooms, name);
    crew[rank].job = toy_ready(crew[rank].session, name, &spec);
}

static void set_crew(const char *name, uint32_t count)
{
    for (; crew_count < count; crew_count++) join(name, crew_count);
    for (; crew_count > count; crew_count--) cairn_close(crew[crew_count - 1].session);
}

/* The commit of who is first asked waits for nobody: it comes again. */
static cairn_status commit(struct worker *w, uint64_t weight, int timeout_ms,
                           struct cairn_result *out)
{
    const uint64_t state = w->round.index; // of the step alone
    const bool gives = w->round.rank == 0;
    return cairn_commit(w->job, &w->round, weight, gives ? &state : NULL, gives ? sizeof state : 0,
                        timeout_ms, out);
}

/* False: the round was void. */
static bool try_step(struct cairn_result *result)
{
    uint64_t weights[CREW_MAX];
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; i < crew_count; i++) {
        crew[i].round = toy_begin(crew[i].job);
        if (crew[i].round.round != crew[0].round.round) return false; // who is first comes again
    }
    for (uint32_t i = 0; i < crew_count; i++) weights[i] = push_own(&crew[i]);
    for (uint32_t i = 0; i < crew_count; i++) {
        status = commit(&crew[i], weights[i], 0, result);
        ck_assert(status == CAIRN_OK || status == CAIRN_ERR_TIMEOUT ||
                  status == CAIRN_ERR_EPOCH_CHANGED);
    }
    for (uint32_t i = 0; i < crew_count; i++) {
        status = commit(&crew[i], weights[i], TOY_WAIT_MS, result);
        if (status == CAIRN_ERR_EPOCH_CHANGED) return false;
        ck_assert_msg(status == CAIRN_OK, "%s", cairn_error());
    }
    return true;
}

static void read_state(struct state *out)
{
    for (int t = 0; t < TRAINED; t++) {
        toy_fetch(crew[0].job, out->version, t, "param", CAIRN_F32, out->values[0][t]);
        toy_fetch(crew[0].job, out->version, t, "exp_avg", CAIRN_F32, out->values[1][t]);
    }
}

/* `crews`: how many workers there are in each step, and after the last one. */
static void train(const char *name, const uint32_t crews[STEPS], struct state *out)
{
    struct cairn_result result = { .struct_size = sizeof result };
    memset(out, 0, sizeof *out);
    for (int step = 0; step < STEPS; step++) {
        set_crew(name, crews[step]);
        while (!try_step(&result)) {}
        out->norms[step] = result.grad_norm;
    }
    out->version = result.version;
    out->skips = result.skips;
    read_state(out);
    set_crew(name, 0);
}

TEST(any_workers_that_come_and_go_give_the_bits_of_one)
{
    static const uint32_t crews[][STEPS] = {
        { 1, 1, 1, 1, 1, 1, 1, 1 }, { 2, 2, 2, 2, 2, 2, 2, 2 }, { 3, 3, 3, 3, 3, 3, 3, 3 },
        { 5, 5, 5, 5, 5, 5, 5, 5 }, { 7, 7, 7, 7, 7, 7, 7, 7 }, { 1, 3, 2, 5, 7, 1, 4, 2 },
    };
    static struct state alone, other;
    for (size_t i = 0; i < sizeof crews / sizeof *crews; i++) {
        const char name[] = { 'c', (char)('0' + (int)i), 0 };
        train(name, crews[i], i == 0 ? &alone : &other);
        if (i == 0) continue;
        ck_assert_uint_eq(other.skips, 1);
        ck_assert_uint_eq(other.version.step, STEPS - 1);
        ck_assert_int_eq(memcmp(alone.values, other.values, sizeof alone.values), 0);
        for (int s = 0; s < STEPS; s++)
            ck_assert(alone.norms[s] == other.norms[s] || s == OVERFLOW_INDEX);
    }
}

TEST(what_is_not_this_workers_is_refused_and_its_own_goes_by_numbers)
{
    float one[1] = { 1 };
    const struct cairn_mem mem = toy_mem(one, CAIRN_F32);
    struct cairn_result result = { .struct_size = sizeof result };
    set_crew("misuse", 2);
    for (uint32_t i = 0; i < 2; i++) crew[i].round = toy_begin(crew[i].job);
    cairn_job *job = crew[1].job;
    const struct cairn_round round = crew[1].round;
    ck_assert_uint_eq(round.micro_batches, 2);
    ck_assert_uint_eq(crew[0].round.micro_batches, 3);
    ck_assert_uint_eq(round.global_batch, BATCH);
    ck_assert_uint_eq(round.seed, SEED);
    fails(cairn_push(job, &round, 0, "scale", NULL, &mem, NULL), CAIRN_ERR_INVALID,
          "micro-batch 0 of 5 is not this worker's in this round: rank 1 of 2 has 1, 3");
    fails(cairn_push(job, &round, 5, "scale", NULL, &mem, NULL), CAIRN_ERR_INVALID, "of 5");
    fails(cairn_push(job, &round, 3, "scale", NULL, &mem, NULL), CAIRN_ERR_INVALID,
          "this is micro-batch 3, but micro-batch 1 is being filled");
    good(cairn_push(job, &round, 1, "scale", NULL, &mem, NULL));
    fails(cairn_push(job, &round, 1, "scale", NULL, &mem, NULL), CAIRN_ERR_EXISTS,
          "in micro-batch 1 already");
    fails(cairn_micro_end(job, &round, 2), CAIRN_ERR_INVALID, "not this worker's");
    fails(cairn_commit(job, &round, 0, NULL, 0, 0, &result), CAIRN_ERR_INVALID,
          "micro-batch 1 of 5 is not ended");
    good(cairn_micro_end(job, &round, 1));
    fails(cairn_commit(job, &round, 0, NULL, 0, 0, &result), CAIRN_ERR_TIMEOUT, "");
    (void)push_own(&crew[0]);
    good(cairn_commit(crew[0].job, &crew[0].round, 0, NULL, 0, TOY_WAIT_MS, &result));
    ck_assert(result.applied);
    fails(cairn_push(job, &round, 3, "scale", NULL, &mem, NULL), CAIRN_ERR_STALE, "committed");
    set_crew("misuse", 0);
}

TEST(the_surplus_is_told_so_and_waits_for_the_end)
{
    float one[1] = { 1 };
    struct cairn_result result = { .struct_size = sizeof result };
    set_crew("surplus", BATCH + 1);
    struct worker *last = &crew[BATCH];
    last->round = toy_begin(last->job);
    ck_assert_uint_eq(last->round.micro_batches, 0);
    ck_assert_uint_eq(last->round.rank, BATCH);
    ck_assert_uint_eq(last->round.world, BATCH);
    fails(cairn_push(last->job, &last->round, 0, "scale", NULL, TOY_F32(one), NULL),
          CAIRN_ERR_INVALID, "this worker is surplus: job surplus has global_batch = 5");
    fails(cairn_write_begin(last->job, 0), CAIRN_ERR_REFUSED, "commit it");
    good(cairn_round_abandon(last->job, &last->round, TOY_WAIT_MS));
    ck_assert_uint_eq(toy_begin(last->job).round, last->round.round);
    fails(cairn_commit(last->job, &last->round, 0, NULL, 0, 0, &result), CAIRN_ERR_TIMEOUT,
          "rank 0");
    crew_count--; // the others, for whom it waits
    while (!try_step(&result)) {}
    crew_count++;
    ck_assert(result.applied);
    good(cairn_commit(last->job, &last->round, 0, NULL, 0, TOY_WAIT_MS, &result));
    ck_assert_uint_eq(result.step, 1);
    set_crew("surplus", 0);
}

TEST(a_buffer_is_written_by_the_worker_of_the_last_micro_batch)
{
    struct cairn_tensor tensors[TOY_TENSORS];
    float values[TOY_ELEMS] = { 7 };
    struct cairn_result result = { .struct_size = sizeof result };
    struct cairn_version version;
    memcpy(tensors, toy_tensors, sizeof tensors);
    tensors[TOY_TENSORS - 1].kind = CAIRN_BUFFER; // "table"
    buffered = tensors;
    set_crew("buffered", 2);
    while (!try_step(&result)) {}
    for (uint32_t i = 0; i < 2; i++) {
        cairn_job *job = crew[i].job;
        const bool had_last = crew[i].round.rank == (BATCH - 1) % 2;
        good(cairn_write_begin(job, TOY_WAIT_MS));
        if (had_last)
            good(cairn_put(job, "table", "param", NULL, TOY_F32(values), NULL));
        else
            fails(cairn_put(job, "table", "param", NULL, TOY_F32(values), NULL), CAIRN_ERR_REFUSED,
                  "the worker of micro-batch 4 of the last round writes it");
        good(cairn_write_end(job, TOY_WAIT_MS, &version));
    }
    while (!try_step(&result)) {} // a write is no round of the batch: all of it is there again
    set_crew("buffered", 0);
    buffered = NULL;
}

TEST(tiles_and_a_batch_of_each_worker_do_not_go_with_it)
{
    struct cairn_job_spec spec = batch_spec(0);
    cairn *trainer = toy_session(&rooms, "tiles");
    cairn_job *job = toy_open(trainer, "tiles", &spec);
    struct cairn_job_info info = { .struct_size = sizeof info };
    good(cairn_job_describe(job, &info));
    ck_assert_uint_eq(info.global_batch, BATCH);
    ck_assert_uint_eq(info.seed, SEED);
    fails(cairn_tiles(job, NULL, 0, 1, TOY_WAIT_MS), CAIRN_ERR_REFUSED, "global_batch = 5");
    good(cairn_tiles(job, NULL, 0, 0, TOY_WAIT_MS));
    spec.micro_batches = 2;
    fails(cairn_job_open(trainer, "both", &spec, CAIRN_WORKER, TOY_WAIT_MS, &job),
          CAIRN_ERR_INVALID, "global_batch is 5 and micro_batches 2");
}

TEST(seeds_are_of_the_number_whoever_has_it)
{
    const struct cairn_round batch = { .struct_size = sizeof batch,
                                       .rank = 1,
                                       .world = 3,
                                       .index = 41,
                                       .seed = 7,
                                       .global_batch = 9 };
    struct cairn_round alone = batch, local = batch, old = batch;
    alone.rank = 0, alone.world = 1;
    local.global_batch = 0;
    old.struct_size = offsetof(struct cairn_round, seed);
    ck_assert_uint_eq(cairn_micro_seed(&batch, 4), cairn_micro_seed(&alone, 4));
    ck_assert_uint_eq(cairn_micro_seed(&local, 1), cairn_micro_seed(&alone, 4)); // 1 * 3 + 1
    ck_assert_uint_ne(cairn_micro_seed(&batch, 4), cairn_micro_seed(&batch, 5));
    ck_assert_uint_eq(cairn_micro_seed(&old, 4), 0);
    ck_assert_uint_eq(cairn_micro_seed(NULL, 4), 0);
}

SUITE(60, open_rooms, toy_stop);
