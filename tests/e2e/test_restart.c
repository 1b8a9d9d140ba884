/* A trainer that is killed and started again goes from cairn_open to an open round in under two seconds,
 * with 64 M parameters on the servers: nothing is loaded from storage, nothing is put again.
 * `test_restart --worker ENDPOINT DIE` is the trainer; with DIE = 1 it ends by SIGKILL in mid-round. */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/e2e/scene.h"

enum { TENSORS = 64, ELEMS = 1 << 20, LIMIT_MS = 2000, WORKER_MS = 80000 /* all that it does */ };

/* ---- the trainer ---- */

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, cairn_error());
    return 1;
}

static cairn_status open_job(void)
{
    static char names[TENSORS][16];
    struct cairn_tensor tensors[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        snprintf(names[i], sizeof names[i], "block%02d", i);
        tensors[i] = (struct cairn_tensor) {
            .struct_size = sizeof *tensors, .name = names[i], .rank = 2, .shape = { 1024, 1024 }
        };
    }
    const struct cairn_job_spec spec = trainer_spec(tensors, TENSORS);
    return cairn_job_open(session, "big", &spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &job);
}

/* Puts what it takes to begin; a job that is initialized already takes nothing. */
static cairn_status initialize(const struct cairn_mem *mem)
{
    for (int i = 0; i < TENSORS; i++) {
        char name[16];
        snprintf(name, sizeof name, "block%02d", i);
        const cairn_status status = cairn_put(job, name, "param", NULL, mem, NULL);
        if (status == CAIRN_ERR_EXISTS) break;
        if (status != CAIRN_OK) return status;
    }
    return cairn_init_done(job, NULL, CLUSTER_WAIT_MS);
}

/* One step; with `die` it is killed between its pushes and its commit. */
static cairn_status train_big(const struct cairn_round *round, const struct cairn_mem *mem,
                              bool die)
{
    for (int i = 0; i < TENSORS; i++) {
        char name[16];
        snprintf(name, sizeof name, "block%02d", i);
        const cairn_status status = cairn_push(job, round, 0, name, NULL, mem, NULL);
        if (status != CAIRN_OK) return status;
        if (die && i == TENSORS / 2) raise(SIGKILL);
    }
    return trainer_try_commit(job, round, NULL, 0, CLUSTER_WAIT_MS);
}

static int be_worker(const char *endpoint, bool die)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = endpoint };
    float *values = calloc(ELEMS, sizeof *values);
    const struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = values, .dtype = CAIRN_F32 };
    struct cairn_round round = { .struct_size = sizeof round };
    const int64_t begin_ms = now_ms();
    if (cairn_open(&opts, &session) != CAIRN_OK) return failed("open");
    if (open_job() != CAIRN_OK) return failed("job");
    if (initialize(&mem) != CAIRN_OK) return failed("initial state");
    if (cairn_round_begin(job, CLUSTER_WAIT_MS, &round) != CAIRN_OK) return failed("round");
    printf("%" PRId64 " ms to step %" PRIu64 "\n", now_ms() - begin_ms, round.step);
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        if (i > 0 && cairn_round_begin(job, CLUSTER_WAIT_MS, &round) != CAIRN_OK)
            return failed("round");
        if (train_big(&round, &mem, die && i == 1) != CAIRN_OK) return failed("step");
    }
    cairn_close(session);
    free(values);
    return 0;
}

/* ---- the test ---- */

static int run_worker(const char *die, const char *log)
{
    return cluster_wait(run_on(NULL, log, "self --worker %s %s", cluster.address, die), WORKER_MS);
}

TEST(a_trainer_that_was_killed_trains_again_within_two_seconds)
{
    start(2, .shard_set = SETTINGS("memory.limit=2GiB"));
    ck_assert_int_eq(run_worker("1", "first.log"), 128 + SIGKILL);
    ck_assert_msg(run_worker("0", "second.log") == 0, "see %s", cluster.folder);
    double took_ms;
    uint64_t step;
    ck_assert_int_eq(sscanf(cluster_log_text(&cluster, "second.log"), "%lf ms to step %" PRIu64,
                            &took_ms, &step),
                     2);
    printf("note: a trainer killed at 64 M parameters: %.0f ms from cairn_open to round_begin\n",
           took_ms);
    ck_assert_uint_eq(step, 1);
    ck_assert_msg(took_ms < LIMIT_MS, "it took %.0f ms", took_ms);
}

SUITE(90, .tear_down = stop);

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--worker") == 0)
        return be_worker(argv[2], strcmp(argv[3], "1") == 0);
    return suite_main();
}
