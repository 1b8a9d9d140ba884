/* on_sigterm = drain with real daemons: a shard that is stopped while steps go on gives what it holds to the
 * others, and nobody sees it in the bits; where all are stopped nothing moves: the job is saved, and goes on
 * from there. */
#include <signal.h>

#include "tests/e2e/elastic_worker.h"
#include "tests/e2e/scene.h"

enum { SHARDS = 3, STEPS_MORE = 5 };

static const struct elastic_model *const model = &elastic_models[0];

static void start_draining(void)
{
    start(SHARDS, .shard_set = SETTINGS("shard.on_sigterm=drain", "shard.drain_seconds=20"));
}

/* The worker ends by itself. Until `until` an undisturbed run has the same bits. A shard that holds something
 * would wait for the coordinator, which is stopped, too: so the job is dropped before that. */
static void expect_bits_of_an_undisturbed_run(struct elastic_run *run, uint64_t until)
{
    char roots[2][CLUSTER_WORD_BYTES];
    for (int calm = 0; calm < 2; calm++) {
        if (calm) {
            start(1);
            *run = elastic_begin(model, until);
        }
        elastic_end(run, roots[calm]);
        says(0, "", "job drop --force --yes %s", model->name);
        stop();
    }
    ck_assert_str_eq(roots[0], roots[1]);
}

TEST(a_shard_that_is_stopped_gives_what_it_holds_to_the_others)
{
    start_draining();
    struct elastic_run run = elastic_begin(model, UINT64_MAX);
    elastic_await(&run, 2);
    kill(cluster.shards[1], SIGTERM);
    cluster_await_end_of_shard(&cluster, 1);
    ck_assert_int_eq(logged("shard-1.log", "is on other shards"), 1);
    ck_assert_int_eq(logged("coordinator.log", "is not drained"), 0);
    ask("cluster status");
    expect_said(0, "shard-0");
    expect_unsaid("shard-1");
    elastic_await(&run, STEPS_MORE);
    expect_bits_of_an_undisturbed_run(&run, elastic_bound(&run, STEPS_MORE));
}

TEST(of_all_that_are_stopped_together_the_job_is_saved_first)
{
    char id[CLUSTER_WORD_BYTES];
    start_draining();
    struct elastic_run run = elastic_begin(model, UINT64_MAX);
    elastic_await(&run, 2);
    for (int i = 0; i < SHARDS; i++) kill(cluster.shards[i], SIGTERM);
    for (int i = 0; i < SHARDS; i++) cluster_await_end_of_shard(&cluster, i);
    cluster_kill(run.worker);
    for (int i = 0; i < SHARDS; i++) {
        char log[32];
        snprintf(log, sizeof log, "shard-%d.log", i);
        ck_assert_int_eq(logged(log, "is saved as snapshot"), 1);
        ck_assert_int_eq(logged(log, "is over: it ends"), 0);
        cluster_add_shard(&cluster, i);
    }
    word_of(id, "snapshot list -q %s", model->name); // the one that there is
    // the coordinator may be restoring the job by itself, until it finds that not all shards are back
    await((ask("snapshot restore %s %s --yes", model->name, id),
           strstr(said.err, "is being restored") == NULL));
    expect_said(0);
    const uint64_t until = elastic_bound(&run, STEPS_MORE);
    run.worker = elastic_start(cluster.address, model, 0, run.shared);
    expect_bits_of_an_undisturbed_run(&run, until);
}

SUITE(60);
