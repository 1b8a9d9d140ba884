/* A job that is spread over other shards while it trains, as its workers and readers see it: beside a job
 * that stays where it is, with the same spec and the same gradients, it is the same to the last bit in every
 * plane, at every step, by every way of reading. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "tests/e2e/scene.h"

enum { SHARDS = 4, TENSORS = 4, ELEMS_MAX = 200 * 2048, JOBS = 2 };

static const struct cairn_tensor model[TENSORS] = {
    TRAINER_MATRIX("big", "u", 200, 2048, 1),
    TRAINER_MATRIX("half", "u", 311, 500, 2, .wire = CAIRN_BF16),
    TRAINER_MATRIX("long", "v", 2001, 77, 3),
    TRAINER_ONES("small", "w", 77),
};
static const char *const units[] = { "u", "v", "w" };
static const char *const planes[] = { "param", "exp_avg", "exp_avg_sq" };

static cairn *reading; // a reader's session, by way of sealed
static cairn_job *jobs[JOBS], *read_jobs[JOBS];
static float gradients[TENSORS][ELEMS_MAX];
static uint8_t seen[JOBS][ELEMS_MAX * 4];

static void set_up(void)
{
    const struct cairn_job_spec spec = TRAINER_SPEC(model, TENSORS, .chunk_leaves = 4);
    start(SHARDS, .coordinator_set = SETTINGS("cluster.shards=2"), .both_ways = true);
    session = trainer_session(cluster.address, NULL);
    reading = trainer_session(cluster.address, "sealed");
    for (int j = 0; j < JOBS; j++) {
        const char *name = j == 0 ? "moved" : "still";
        jobs[j] = trainer_ready(session, name, &spec);
        good(cairn_job_open(reading, name, NULL, CAIRN_READER, CLUSTER_WAIT_MS, &read_jobs[j]));
    }
}

static void tear_down(void)
{
    cairn_close(reading);
    stop();
}

/* ---- a worker ---- */

static struct cairn_version step(cairn_job *of, unsigned seed)
{
    struct cairn_result result = { .struct_size = sizeof result };
    const struct cairn_round round = trainer_begin(of);
    for (int t = 0; t < TENSORS; t++) {
        for (size_t i = 0; i < trainer_elems(&model[t]); i++)
            gradients[t][i] = (float)((i * 2654435761u + seed * 97u + (unsigned)t) % 2001) - 1000;
        trainer_push(of, &round, model[t].name, gradients[t]);
    }
    const cairn_status status = cairn_commit(of, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result);
    if (status == CAIRN_ERR_EPOCH_CHANGED) return step(of, seed); // a coordinator came anew
    good(status);
    return result.version;
}

static void step_both(struct cairn_version versions[JOBS], unsigned seed)
{
    for (int j = 0; j < JOBS; j++) versions[j] = step(jobs[j], seed);
}

static void same(int tensor, const char *what, struct cairn_version version, size_t bytes)
{
    if (memcmp(seen[0], seen[1], bytes) != 0)
        ck_abort_msg("step %u: %s of tensor %s is another one", (unsigned)version.step, what,
                     model[tensor].name);
}

/* By a copy of the caller's, at each of the jobs. */
static void same_fetched(cairn_job *const of[JOBS], const struct cairn_version versions[JOBS])
{
    for (int t = 0; t < TENSORS; t++) {
        for (int j = 0; j < JOBS; j++)
            trainer_fetch(of[j], versions[j], model[t].name, NULL, trainer_wire(&model[t]),
                          seen[j]);
        same(t, "the wire plane", versions[0], trainer_wire_bytes(&model[t]));
    }
}

static void same_state(const struct cairn_version versions[JOBS])
{
    for (int t = 0; t < TENSORS; t++)
        for (size_t p = 0; p < sizeof planes / sizeof *planes; p++) {
            for (int j = 0; j < JOBS; j++)
                trainer_fetch(jobs[j], versions[j], model[t].name, planes[p], CAIRN_F32, seen[j]);
            same(t, planes[p], versions[0], trainer_elems(&model[t]) * sizeof(float));
        }
}

/* Where it lies, as far as it lies on this host. */
static void same_mapped(const struct cairn_version versions[JOBS])
{
    for (int j = 0; j < JOBS; j++) good(cairn_prefetch(jobs[j], versions[j], units, 2));
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        struct cairn_view views[JOBS][TENSORS];
        size_t counts[JOBS] = { TENSORS, TENSORS };
        for (int j = 0; j < JOBS; j++) {
            cairn_op *op;
            views[j][0].struct_size = sizeof views[j][0];
            good(cairn_map(jobs[j], versions[j], units[u], views[j], &counts[j], &op));
            good(cairn_wait(op, CLUSTER_WAIT_MS));
        }
        for (size_t i = 0; i < counts[0]; i++) {
            const struct cairn_view *v = &views[0][i];
            size_t bytes = v->dtype == CAIRN_BF16 ? 2 : 4;
            for (uint32_t d = 0; d < v->rank; d++) bytes *= (size_t)v->shape[d];
            if (memcmp(v->ptr, views[1][i].ptr, bytes) != 0)
                ck_abort_msg("step %u: %s is another one where it is mapped",
                             (unsigned)versions[0].step, v->tensor);
        }
        for (int j = 0; j < JOBS; j++) good(cairn_unmap(jobs[j], views[j], NULL));
    }
}

static void same_however_it_is_read(const struct cairn_version versions[JOBS])
{
    same_fetched(read_jobs, versions);
    same_mapped(versions);
    same_state(versions);
}

/* A part of each plane of each tensor, at a step boundary. */
static struct cairn_version write_some(cairn_job *of, unsigned seed)
{
    static const float values[3] = { 1.5f, -2.5f, 3.5f };
    struct cairn_version version;
    good(cairn_write_begin(of, CLUSTER_WAIT_MS));
    for (int t = 0; t < TENSORS; t++) {
        struct cairn_box box = { .rank = model[t].rank,
                                 .extent = { model[t].rank == 1 ? 3 : 1, 3 } };
        box.start[0] = (seed * 31) % (model[t].shape[0] - 3);
        const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
        for (size_t p = 0; p < sizeof planes / sizeof *planes; p++)
            good(cairn_put(of, model[t].name, planes[p], &box, &mem, NULL));
    }
    const cairn_status status = cairn_write_end(of, CLUSTER_WAIT_MS, &version);
    if (status == CAIRN_ERR_EPOCH_CHANGED) return write_some(of, seed); // as a step
    good(status);
    return version;
}

/* ---- training on a thread of its own, while the test's thread has the cluster changed ---- */

static atomic_bool stopping;
static atomic_uint steps;
static pthread_t trainer;

static void *train_on(void *unused)
{
    (void)unused;
    while (!atomic_load(&stopping)) {
        struct cairn_version versions[JOBS];
        step_both(versions, atomic_load(&steps));
        if (atomic_load(&steps) % 2 == 1)
            for (int j = 0; j < JOBS; j++) versions[j] = write_some(jobs[j], atomic_load(&steps));
        same_fetched(jobs, versions);
        same_however_it_is_read(versions);
        atomic_fetch_add(&steps, 1);
    }
    return NULL;
}

static void begin_training(void)
{
    ck_assert_int_eq(pthread_create(&trainer, NULL, train_on, NULL), 0);
}

static void await_steps(unsigned more)
{
    const unsigned until = atomic_load(&steps) + more;
    while (atomic_load(&steps) < until) sched_yield();
}

/* And the roots are the same. */
static void end_training(void)
{
    await_steps(2);
    atomic_store(&stopping, true);
    pthread_join(trainer, NULL);
    expect_same_bits("moved", "still");
}

TEST(what_moves_while_it_trains_reads_as_what_stays)
{
    begin_training();
    await_steps(1);
    says(0, "", "reshard apply moved --shards 4");
    await_steps(2);
    says(0, "", "reshard apply moved --shards 3");
    end_training();
}

/* Both jobs move then, and are told apart by when. */
TEST(what_goes_off_shards_that_leave_while_it_trains_is_whole_in_every_write)
{
    begin_training();
    says(0, "", "reshard apply moved --shards 4");
    drain_shard(1);
    await_steps(2);
    drain_shard(2);
    end_training();
}

/* No round publishes the newest version anew: the shards do, before one of them ends. */
TEST(what_moves_at_rest_is_read_as_before_when_its_former_shards_have_ended)
{
    struct cairn_version versions[JOBS];
    step_both(versions, 1);
    says(0, "", "reshard apply moved --shards 4");
    same_however_it_is_read(versions);
    drain_shard(0);
    same_however_it_is_read(versions);
    step_both(versions, 2);
    same_fetched(jobs, versions);
    expect_same_bits("moved", "still");
}

TEST(a_leased_version_is_read_after_its_shards_have_changed)
{
    struct cairn_version versions[JOBS], leased[JOBS];
    step_both(versions, 1);
    for (int j = 0; j < JOBS; j++)
        good(cairn_lease(read_jobs[j], versions[j], 60000, CLUSTER_WAIT_MS, &leased[j]));
    says(0, "", "reshard apply moved --shards 4");
    for (unsigned seed = 2; seed < 7; seed++) step_both(versions, seed);
    same_fetched(read_jobs, leased);
    same_fetched(jobs, leased); // who did not ask for it, and goes by what it finds
}

TEST(a_coordinator_that_dies_in_the_middle_changes_nothing_of_that)
{
    begin_training();
    await_steps(1);
    for (int i = 0; i < 3; i++) {
        struct cluster_command command;
        cluster_cli_begin(&cluster, &command, "reshard apply moved --shards %d",
                          i % 2 == 0 ? 4 : 2);
        await_steps((unsigned)i % 2);
        restart_coordinator();
        ck_assert_int_ge(cluster_wait(command.pid, CLUSTER_WAIT_MS), 0); // it may have failed
        await_steps(2);
    }
    end_training();
}

TEST(readers_that_come_in_the_middle_read_what_is_there)
{
    begin_training();
    for (int i = 0; i < 3; i++) {
        struct cluster_command command;
        cluster_cli_begin(&cluster, &command, "reshard apply moved --shards %d",
                          i % 2 == 0 ? 4 : 3);
        cairn *other;
        cairn_job *reader = join_reader("moved", i % 2 == 0 ? "auto" : "sealed", &other);
        struct cairn_version leased;
        good(cairn_lease(reader, newest(reader), 60000, CLUSTER_WAIT_MS, &leased));
        static float values[ELEMS_MAX];
        for (int t = 0; t < TENSORS; t++)
            if (model[t].wire != CAIRN_BF16)
                trainer_fetch(reader, leased, model[t].name, NULL, CAIRN_F32, values);
        cairn_close(other);
        ck_assert_int_eq(cluster_wait(command.pid, CLUSTER_WAIT_MS), 0);
    }
    end_training();
}

SUITE(120, set_up, tear_down);
