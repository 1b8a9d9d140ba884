/* Reduce groups when workers die: the round is made again, in the groups that are left, and the bits are
 * those of a run in which nobody died. Two hosts of two workers and a shard each, played on one machine.
 *
 * `test_relay_faults --worker ADDRESS RANK JOB WORKERS_MIN DIE_AT LEAVE_AT` is one of the workers. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/e2e/scene.h"

enum { WAIT_MS = 20000, TENSORS = 2, ELEMS = 90000, WORKERS = 4, STEPS = 7, NEVER = 1000 };

/* ---- a worker: a process ---- */

static const struct cairn_tensor model[TENSORS] = {
    { .struct_size = sizeof model[0],
      .name = "a",
      .unit = "a",
      .rank = 1,
      .shape = { ELEMS },
      .init = { CAIRN_INIT_NORMAL, 0, 1, 1 } },
    { .struct_size = sizeof model[0],
      .name = "b",
      .unit = "b",
      .rank = 2,
      .shape = { 300, ELEMS / 300 } }, // put by rank 0: no round begins without it
};

static void need(cairn_status status, const char *what)
{
    if (status == CAIRN_OK) return;
    fprintf(stderr, "%s: %s\n", what, cairn_error());
    exit(1);
}

/* Of the parameters, so that a wrong one is in every step that follows. */
static void make_gradient(uint32_t rank, uint64_t step, int t, float *values)
{
    for (uint64_t i = 0; i < ELEMS; i++) {
        const uint64_t mixed = i * 2654435761u + step * 40503u + rank * 9176u + (uint64_t)t * 7919u;
        values[i] = values[i] * 0.25f + (float)(mixed % 100003) / 31337 - 1.5f;
    }
}

static cairn_status fetch(const struct cairn_round *round, int t, float *values)
{
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    cairn_op *op;
    const cairn_status status = cairn_fetch(job, round->version, model[t].name, NULL, NULL, &mem,
                                            &op);
    return status == CAIRN_OK ? cairn_wait(op, WAIT_MS) : status;
}

/* CAIRN_ERR_EPOCH_CHANGED: it is to be made again. */
static cairn_status step(float *values, uint64_t die_at, uint64_t *step_out)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status status = cairn_round_begin(job, WAIT_MS, &round);
    for (int t = 0; t < TENSORS && status == CAIRN_OK; t++) {
        float *const part = values + (size_t)t * ELEMS;
        const struct cairn_mem mem = trainer_mem(part, CAIRN_F32);
        cairn_op *op;
        status = fetch(&round, t, part);
        if (status != CAIRN_OK) break;
        if (t == 1 && round.version.step == die_at) kill(getpid(), SIGKILL); // "a" is on its way
        make_gradient(round.rank, round.version.step, t, part);
        status = cairn_push(job, &round, 0, model[t].name, NULL, &mem, &op);
        if (status == CAIRN_OK) status = cairn_wait(op, WAIT_MS);
    }
    if (status == CAIRN_OK) status = cairn_commit(job, &round, 1, NULL, 0, WAIT_MS, &result);
    if (status == CAIRN_OK) *step_out = result.version.step;
    return status;
}

static void put(void)
{
    static float ones[ELEMS];
    const struct cairn_mem mem = trainer_mem(ones, CAIRN_F32);
    cairn_op *op;
    for (int i = 0; i < ELEMS; i++) ones[i] = 1;
    need(cairn_put(job, model[1].name, "param", NULL, &mem, &op), "cairn_put");
    need(cairn_wait(op, WAIT_MS), "the put");
}

static int be_worker(char **argv)
{
    const uint64_t die_at = strtoull(argv[6], NULL, 10), leave_at = strtoull(argv[7], NULL, 10);
    const struct cairn_job_spec spec = TRAINER_SPEC(
        model, TENSORS, .chunk_leaves = 2, .rank = (uint32_t)atoi(argv[3]),
        .workers_min = (uint32_t)atoi(argv[5]), .reduce_groups = CAIRN_GROUPS_HOST);
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = argv[2] };
    struct cairn_version version;
    void *values;
    need(cairn_open(&opts, &session), "cairn_open");
    need(cairn_job_open(session, argv[4], &spec, CAIRN_WORKER, WAIT_MS, &job), "cairn_job_open");
    if (spec.rank == 0) put();
    need(cairn_init_done(job, NULL, WAIT_MS), "cairn_init_done");
    need(cairn_version_wait(job, (struct cairn_version) { 0, 0 }, WAIT_MS, &version),
         "cairn_version_wait");
    need(cairn_alloc(session, TENSORS * ELEMS * sizeof(float), 0, &values), "cairn_alloc");
    for (uint64_t at = version.step; at < STEPS && at != leave_at;) {
        const cairn_status status = step(values, die_at, &at);
        if (status != CAIRN_ERR_EPOCH_CHANGED) need(status, "a step");
    }
    cairn_close(session);
    return 0;
}

/* ---- the test ---- */

static pid_t spawn(const char *name, int rank, int workers_min, int die_at, int leave_at)
{
    char log[128];
    snprintf(log, sizeof log, "%s-%d.log", name, rank);
    setenv("CAIRN_HOST", rank % 2 == 0 ? "host-a" : "host-b", 1);
    const pid_t pid = run_on(NULL, log, "self --worker %s %d %s %d %d %d", cluster.address, rank,
                             name, workers_min, die_at, leave_at);
    unsetenv("CAIRN_HOST");
    return pid;
}

static bool coordinator_dies; // once all have joined

/* Ranks 0, 2 on host A and 1, 3 on host B; rank 2 dies or leaves. Rank 0, which makes the job ready, comes
 * last, so that all take part from the first step on. */
static void train_four(const char *name, int workers_min, int die_at, int leave_at, bool comes_back,
                       char root_out[128])
{
    pid_t pids[WORKERS];
    char joined[64];
    snprintf(joined, sizeof joined, " joined job %s ", name);
    for (int i = WORKERS - 1; i >= 0; i--) {
        pids[i] = spawn(name, i, workers_min, i == 2 ? die_at : NEVER, i == 2 ? leave_at : NEVER);
        for (int turn = 0; logged("coordinator.log", joined) < WORKERS - i; turn++) {
            ck_assert_msg(turn < 2000, "rank %d does not join: see %s", i, cluster.folder);
            ck_assert_int_eq(cluster_wait(pids[WORKERS - 1], 5), -1); // a pause, if all is well
        }
    }
    if (coordinator_dies) restart_coordinator();
    if (die_at != NEVER) ck_assert_int_eq(cluster_wait(pids[2], CLUSTER_WAIT_MS), 128 + SIGKILL);
    if (comes_back) pids[2] = spawn(name, 2, workers_min, NEVER, NEVER);
    for (int i = 0; i < WORKERS; i++)
        if (i != 2 || die_at == NEVER || comes_back)
            ck_assert_msg(cluster_wait(pids[i], CLUSTER_WAIT_MS) == 0, "rank %d of %s, see %s", i,
                          name, cluster.folder);
    trainer_digest(&cluster, name, root_out);
}

static void set_up(void)
{
    static const char *const hosts[] = { "host-a", "host-b" };
    start(2, .shard_hosts = hosts);
}

TEST(a_worker_killed_in_mid_round_and_started_again_changes_no_bit)
{
    char calm[128], killed[128];
    train_four("calm", WORKERS, NEVER, NEVER, false, calm);
    train_four("killed", WORKERS, 3, NEVER, true, killed);
    ck_assert_str_eq(killed, calm);
}

TEST(a_coordinator_killed_and_started_again_changes_no_bit)
{
    char calm[128], killed[128];
    train_four("calm", WORKERS, NEVER, NEVER, false, calm);
    coordinator_dies = true;
    train_four("killed", WORKERS, NEVER, NEVER, false, killed);
    ck_assert_str_eq(killed, calm);
}

TEST(the_rest_of_a_worker_that_was_killed_is_made_as_if_it_had_left)
{
    char left[128], killed[128];
    train_four("left", WORKERS - 1, NEVER, 3, false, left);
    train_four("killed", WORKERS - 1, 3, NEVER, false, killed);
    ck_assert_str_eq(killed, left);
    says(0, "ranks 1,3 by shard shard-1", "job show killed");
}

SUITE(60, set_up, stop);

int main(int argc, char **argv)
{
    return argc == 8 && strcmp(argv[1], "--worker") == 0 ? be_worker(argv) : suite_main();
}
