/* What a step costs on the way: with Ψ the bytes of the published copies of what is trained, a worker moves
 * 2 Ψ a step (one push, one fetch), 3 Ψ where backward fetches again, (M + 1) Ψ where M micro-batches are
 * pushed. It is the same on every way, also where units are read in published memory; client and job show
 * count the same. */
#include <stdlib.h>

#include "tests/e2e/scene.h"

enum { SHARDS = 2, TENSORS = 3, STEPS = 4, MICROS = 3, ELEMS_MAX = 300 * 211 };

/* In its wire dtype is also what is pushed. */
static const struct cairn_tensor model[TENSORS] = {
    TRAINER_MATRIX("big", "u", 300, 211, 1),
    TRAINER_MATRIX("half", "v", 211, 200, 2, .wire = CAIRN_BF16),
    TRAINER_ONES("small", "v", 77),
};
static const uint64_t psi = 4 * 300 * 211 + 2 * 211 * 200 + 4 * 77;
/* What was added up in the client is pushed in fp32. */
static const uint64_t psi_added = 4 * (300 * 211 + 211 * 200 + 77);

static const char *const kinds[] = { "sealed", "auto" };

static struct cairn_mem mem_of(int t, void *memory)
{
    return trainer_mem(memory, trainer_wire(&model[t]));
}

static void fetch_all(cairn_job *of, struct cairn_version version)
{
    static float values[ELEMS_MAX];
    for (int t = 0; t < TENSORS; t++) {
        const struct cairn_mem mem = mem_of(t, values);
        cairn_op *op;
        good(cairn_fetch(of, version, model[t].name, NULL, NULL, &mem, &op));
        good(cairn_wait(op, CLUSTER_WAIT_MS));
    }
}

/* As a trainer of stage 3 reads: unit by unit, each given back at once. */
static void map_all(cairn_job *of, struct cairn_version version)
{
    static const char *const units[] = { "u", "v" };
    for (int u = 0; u < 2; u++) {
        struct cairn_view views[TENSORS] = { { .struct_size = sizeof views[0] } };
        size_t count = TENSORS;
        cairn_op *op;
        good(cairn_map(of, version, units[u], views, &count, &op));
        good(cairn_wait(op, CLUSTER_WAIT_MS));
        good(cairn_unmap(of, &views[0], NULL));
    }
}

/* gathers: how often a worker reads the model in a step. */
static void train_through(uint32_t micros, int gathers, bool maps)
{
    static float gradient[ELEMS_MAX];
    for (int step = 0; step < STEPS; step++) {
        const struct cairn_round round = trainer_begin(job);
        for (int i = 0; i < gathers; i++) (maps ? map_all : fetch_all)(job, round.version);
        for (uint32_t m = 0; m < micros; m++) {
            for (int t = 0; t < TENSORS; t++) {
                const struct cairn_mem mem = mem_of(t, gradient);
                good(cairn_push(job, &round, m, model[t].name, NULL, &mem, NULL));
            }
            if (m + 1 < micros) good(cairn_micro_end(job, &round, m));
        }
        trainer_commit(job, &round, micros);
    }
}

static cairn_job *open_job(const char *name, uint32_t stage, uint32_t micros)
{
    struct cairn_job_spec spec = trainer_spec(model, TENSORS);
    spec.chunk_leaves = 4;
    spec.stage = CAIRN_STAGE(stage);
    spec.micro_batches = micros;
    return trainer_ready(session, name, &spec);
}

/* As job show had it last. */
static uint64_t number(const char *of, const char *key, const char *way)
{
    char path[64];
    snprintf(path, sizeof path, "bytes.%s%s.%s", of, key, way);
    return (uint64_t)said_number(path);
}

/* All bytes that job show says the job pushed and fetched, of all and of its worker; false: the last
 * heartbeats are older than what was done. */
static bool cluster_counts(const char *name, uint64_t pushed, uint64_t fetched, bool shared)
{
    const char *way = shared ? "shared" : "carried", *other = shared ? "carried" : "shared";
    ask("job show -o json %s", name);
    expect_said(0);
    const bool told = number("", "pushed", way) == pushed &&
                      number("", "fetched", way) == fetched &&
                      number("workers.0.", "pushed", way) == pushed &&
                      number("workers.0.", "fetched", way) == fetched;
    // A shard may have told last when all of the last step's bytes had come, but not the step's end.
    if (!told || said_real("bytes.per_step.pushed") != (double)pushed / STEPS ||
        said_real("bytes.per_step.fetched") != (double)fetched / STEPS)
        return false;
    ck_assert_uint_eq(number("", "pushed", other) + number("", "fetched", other), 0);
    ck_assert_int_eq(said_number("bytes.steps"), STEPS);
    return true;
}

/* What a step is to move, and on which way. */
struct expected {
    const char *kind;
    uint32_t stage, micros;
    int gathers; /* of psi */
    bool maps;
    uint64_t pushed, fetched;
    bool shared;
};

/* Trains a job of its own, and holds both counts against what is expected; false: the client sent something
 * again, as it may when a connection was lost or greeted anew, and counted that, too. */
static bool check_once(const struct expected *e, int attempt)
{
    struct cairn_stats stats = { .struct_size = sizeof stats };
    char name[48];
    snprintf(name, sizeof name, "%s-%u-%u-%d-%d", e->kind, e->stage, e->micros, e->maps, attempt);
    session = trainer_session(cluster.address, e->kind);
    job = open_job(name, e->stage, e->micros);
    train_through(e->micros, e->gathers, e->maps);
    good(cairn_job_stats(job, &stats));
    ck_assert_uint_ge(stats.pushed_bytes, e->pushed);
    ck_assert_uint_ge(stats.fetched_bytes, e->fetched);
    const bool once = stats.pushed_bytes == e->pushed && stats.fetched_bytes == e->fetched;
    if (once) {
        ck_assert_uint_eq(stats.shared_pushed_bytes, e->shared ? e->pushed : 0);
        ck_assert_uint_eq(stats.shared_fetched_bytes, e->shared ? e->fetched : 0);
    }
    if (once) await(cluster_counts(name, e->pushed, e->fetched, e->shared));
    leave();
    return once;
}

static void check(const char *kind, uint32_t stage, uint32_t micros, uint64_t pushed_a_step,
                  int gathers, bool maps)
{
    const struct expected expected = { .kind = kind,
                                       .stage = stage,
                                       .micros = micros,
                                       .gathers = gathers,
                                       .maps = maps,
                                       .pushed = STEPS * pushed_a_step,
                                       .fetched = (uint64_t)(STEPS * gathers) * psi,
                                       .shared = strcmp(kind, "auto") == 0 };
    int attempt = 0;
    while (!check_once(&expected, attempt))
        ck_assert_msg(++attempt < 5, "%s, stage %u: more than expected, each time", kind, stage);
}

static void set_up(void)
{
    start(SHARDS, .coordinator_set = SETTINGS("lease.heartbeat=50ms"), .both_ways = true);
}

TEST_EACH(stages_0_to_2_move_two_psi_a_step, 0, 2)
{
    for (uint32_t stage = 0; stage <= 2; stage++) check(kinds[_i], stage, 1, psi, 1, false);
}

TEST_EACH(stage_3_with_a_fetch_in_backward_moves_three_psi, 0, 2)
{
    check(kinds[_i], 3, 1, psi, 2, false);
}

TEST_EACH(stage_3_with_units_mapped_in_forward_and_backward_moves_three_psi, 0, 2)
{
    check(kinds[_i], 3, 1, psi, 2, true);
}

/* What it read last is told with its farewell, and stays in what is said of all. */
TEST(what_a_worker_read_is_counted_when_it_has_left)
{
    session = trainer_session(cluster.address, NULL);
    job = open_job("left", 3, 1);
    train_through(1, 2, true);
    leave();
    await((ask("job show -o json left"),
           said_number("bytes.fetched.shared") == (int64_t)(STEPS * 2 * psi)));
}

/* Stages 0 and 1 add micro-batches up and push once; stages 2 and 3 push each. */
TEST_EACH(micro_batches_that_are_pushed_cost_a_psi_each, 0, 2)
{
    check(kinds[_i], 1, MICROS, psi_added, 1, false);
    check(kinds[_i], 2, MICROS, MICROS * psi, 1, false);
}

SUITE(60, set_up, stop);
