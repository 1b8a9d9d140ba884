/* on_sigterm = drain with real daemons: a shard that is stopped while steps go on gives what it holds to the
 * others, and nobody sees it in the bits; where all are stopped nothing moves: the job is saved, and goes on
 * from there. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/e2e/elastic_worker.h"
#include "tests/support/cluster.h"
#include "tests/support/suite.h"

enum { SHARDS = 3, STEPS_MORE = 5 };

static const struct elastic_model *const model = &elastic_models[0];
static const char *const drains[] = { "shard.on_sigterm=drain", "shard.drain_seconds=20", NULL };

static struct cluster cluster;
static struct elastic_shared *shared;
static pid_t worker;

static void start(int shards, const char *const *shard_set, uint64_t until)
{
    const struct cluster_options options = { .shard_set = shard_set };
    cluster_start(&cluster, shards, &options);
    shared = elastic_share();
    atomic_store(&shared->until, until);
    worker = elastic_start(cluster.address, model, 0, shared);
}

static void await_steps(uint64_t more)
{
    const uint64_t goal = atomic_load(&shared->step) + more;
    while (atomic_load(&shared->step) < goal) {
        ck_assert_int_eq(cluster_wait(worker, 0), -1);
        nanosleep(&(struct timespec) { .tv_nsec = 2000000 }, NULL);
    }
}

/* A shard that holds something would wait for the coordinator, which is stopped, too. */
static void stop(char root_out[CLUSTER_WORD_BYTES])
{
    ck_assert_int_eq(cluster_wait(worker, CLUSTER_WAIT_MS), 0);
    cluster_word(&cluster, root_out, "job", "digest", "-q", model->name, NULL);
    cluster_says(&cluster, 0, "", "job", "drop", "--force", "--yes", model->name, NULL);
    cluster_stop(&cluster);
    munmap(shared, sizeof *shared);
}

static void is_that_of_an_undisturbed_run(const char *root, uint64_t until)
{
    char calm[CLUSTER_WORD_BYTES];
    start(1, NULL, until);
    stop(calm);
    ck_assert_str_eq(root, calm);
}

TEST(a_shard_that_is_stopped_gives_what_it_holds_to_the_others)
{
    char root[CLUSTER_WORD_BYTES];
    static struct cluster_said said;
    start(SHARDS, drains, UINT64_MAX);
    await_steps(2);
    kill(cluster.shards[1], SIGTERM);
    cluster_await_end_of_shard(&cluster, 1);
    ck_assert_int_eq(cluster_logged(&cluster, "shard-1.log", "is on other shards"), 1);
    ck_assert_int_eq(cluster_logged(&cluster, "coordinator.log", "is not drained"), 0);
    cluster_cli(&cluster, &said, "cluster", "status", NULL);
    ck_assert_msg(strstr(said.out, "shard-0") != NULL, "%s", said.out);
    ck_assert_msg(strstr(said.out, "shard-1") == NULL, "%s", said.out);
    await_steps(STEPS_MORE);
    const uint64_t until = atomic_load(&shared->step) + STEPS_MORE;
    atomic_store(&shared->until, until);
    stop(root);
    is_that_of_an_undisturbed_run(root, until);
}

/* From the one snapshot that there is. */
static void restore(void)
{
    char id[CLUSTER_WORD_BYTES];
    cluster_word(&cluster, id, "snapshot", "list", "-q", model->name, NULL);
    cluster_says(&cluster, 0, "", "snapshot", "restore", model->name, id, "--yes", NULL);
}

TEST(of_all_that_are_stopped_together_the_job_is_saved_first)
{
    char root[CLUSTER_WORD_BYTES];
    start(SHARDS, drains, UINT64_MAX);
    await_steps(2);
    for (int i = 0; i < SHARDS; i++) kill(cluster.shards[i], SIGTERM);
    for (int i = 0; i < SHARDS; i++) cluster_await_end_of_shard(&cluster, i);
    cluster_kill(worker);
    for (int i = 0; i < SHARDS; i++) {
        char log[32];
        snprintf(log, sizeof log, "shard-%d.log", i);
        ck_assert_int_eq(cluster_logged(&cluster, log, "is saved as snapshot"), 1);
        ck_assert_int_eq(cluster_logged(&cluster, log, "is over: it ends"), 0);
        cluster_add_shard(&cluster, i);
    }
    restore();
    const uint64_t until = atomic_load(&shared->step) + STEPS_MORE;
    atomic_store(&shared->until, until);
    worker = elastic_start(cluster.address, model, 0, shared);
    stop(root);
    is_that_of_an_undisturbed_run(root, until);
}

SUITE(60);
