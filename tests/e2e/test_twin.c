/* Two shard processes under one name: the second one ends while the first one lives, and of the two the one
 * that holds the state goes on, also when it was stopped for longer than its lease. */
#include <signal.h>
#include <stdlib.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 1000, EXIT_FENCED = 14 };

/* A step to its end; returns the step after it. */
static uint64_t step(void)
{
    static float values[ELEMS] = { 1, 2, 3 };
    return trainer_step(job, "w", values).version.step;
}

/* A round that was opened before the shard was missed ends by it, too. */
static void train_until_lost(void)
{
    struct cairn_round round = { .struct_size = sizeof round };
    cairn_status status = cairn_round_begin(job, CLUSTER_WAIT_MS, &round);
    if (status == CAIRN_OK) status = trainer_try_commit(job, &round, NULL, 0, CLUSTER_WAIT_MS);
    if (status == CAIRN_ERR_EPOCH_CHANGED) status = cairn_round_begin(job, CLUSTER_WAIT_MS, &round);
    ck_assert_msg(status == CAIRN_ERR_JOB_LOST, "%s", cairn_error());
}

/* Another process as shard-1. */
static pid_t start_twin(void)
{
    return run_on(NULL, "twin.log",
                  "%s/cairn-shard --set shard.name=shard-1 --set shard.coordinator=%s "
                  "--set compute.threads=1 --set memory.limit=64MiB",
                  CAIRN_BIN_DIR, cluster.address);
}

static void set_up(void)
{
    start(2, .coordinator_set = SETTINGS("lease.timeout=1s"));
    join("tiny", TINY(ELEMS));
    ck_assert_uint_eq(step(), 1);
}

TEST(a_second_process_of_a_living_shards_name_ends_and_training_goes_on)
{
    const pid_t twin = start_twin();
    ck_assert_uint_eq(step(), 2);
    ck_assert_int_eq(cluster_wait(twin, CLUSTER_WAIT_MS), EXIT_FENCED);
    ck_assert_int_gt(logged("twin.log", "lives, and names must be unique"), 0);
    ck_assert_uint_eq(step(), 3);
}

TEST(a_stopped_shard_takes_its_place_back_from_an_empty_one_and_lost_ends)
{
    char before[65];
    bits(before);
    cluster_freeze(cluster.shards[1]);
    const pid_t twin = start_twin();
    train_until_lost();
    expect_error("the job goes on when it is");
    leave();
    ck_assert_int_eq(kill(cluster.shards[1], SIGCONT), 0);
    ck_assert_int_eq(cluster_wait(twin, CLUSTER_WAIT_MS), EXIT_FENCED);
    ck_assert_int_gt(logged("twin.log", "holds parts of jobs and this process none"), 0);
    join("tiny", TINY(ELEMS));
    expect_bits(before);
    ck_assert_uint_eq(step(), 2);
}

TEST(a_shard_whose_job_was_restored_without_it_ends_when_it_wakes)
{
    char id[64] = "";
    says(0, "", "snapshot create tiny --wait -q");
    ask("snapshot list tiny --no-headers");
    ck_assert_msg(sscanf(said.out, "tiny %63s", id) == 1, "%s", said.out);
    cluster_freeze(cluster.shards[1]);
    const pid_t twin = start_twin();
    train_until_lost();
    leave();
    says(0, "", "snapshot restore tiny %s --yes", id);
    join("tiny", TINY(ELEMS));
    ck_assert_int_eq(kill(cluster.shards[1], SIGCONT), 0);
    ck_assert_int_eq(cluster_wait(cluster.shards[1], CLUSTER_WAIT_MS), EXIT_FENCED);
    cluster.shards[1] = twin; // it serves, and is stopped with the cluster
    ck_assert_uint_eq(step(), 2);
}

SUITE(90, set_up, stop);
