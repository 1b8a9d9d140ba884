/* Two shard processes under one name: the second one ends while the first one lives, and of the two the one
 * that holds the state goes on, also when it was stopped for longer than its lease. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

enum { ELEMS = 1000, EXIT_FENCED = 14 };

static struct cluster cluster;
static cairn *session;
static cairn_job *job;

static void open_job(void)
{
    struct tiny_job tiny;
    tiny_describe(&tiny, ELEMS);
    session = tiny_session(&cluster, NULL);
    job = tiny_open(session, "tiny", &tiny);
}

/* A step to its end; returns the step after it. */
static uint64_t train(void)
{
    static float values[ELEMS] = { 1, 2, 3 };
    const struct cairn_result result = trainer_step(job, "w", values);
    return result.version.step;
}

/* A round that was opened before the shard was missed ends by it, too. */
static void train_until_lost(void)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status status = cairn_round_begin(job, CLUSTER_WAIT_MS, &round);
    if (status == CAIRN_OK)
        status = cairn_commit(job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result);
    if (status == CAIRN_ERR_EPOCH_CHANGED) status = cairn_round_begin(job, CLUSTER_WAIT_MS, &round);
    ck_assert_msg(status == CAIRN_ERR_JOB_LOST, "%s", cairn_error());
}

/* Another process as shard-1. */
static pid_t start_twin(char log[static 160])
{
    char coordinator[128];
    snprintf(log, 160, "%s/twin.log", cluster.folder);
    snprintf(coordinator, sizeof coordinator, "shard.coordinator=%s", cluster.address);
    const char *const argv[] = {
        CAIRN_BIN_DIR "/cairn-shard", "--set", "shard.name=shard-1", "--set", coordinator, "--set",
        "compute.threads=1",          "--set", "memory.limit=64MiB", NULL
    };
    return cluster_spawn(argv, log);
}

static void expect_log(const char *path, const char *sentence)
{
    char text[8192];
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    ck_assert_msg(strstr(text, sentence) != NULL, "no \"%s\" in %s", sentence, text);
}

static void set_up(void)
{
    static const char *const quick[] = { "lease.heartbeat=100ms", "lease.timeout=3s", NULL };
    const struct cluster_options options = { .coordinator_set = quick };
    cluster_start(&cluster, 2, &options);
    open_job();
    ck_assert_uint_eq(train(), 1);
}
static void tear_down(void)
{
    cairn_close(session);
    cluster_stop(&cluster);
}

TEST(a_second_process_of_a_living_shards_name_ends_and_training_goes_on)
{
    char log[160];
    const pid_t twin = start_twin(log);
    ck_assert_uint_eq(train(), 2);
    ck_assert_int_eq(cluster_wait(twin, CLUSTER_WAIT_MS), EXIT_FENCED);
    expect_log(log, "lives, and names must be unique");
    ck_assert_uint_eq(train(), 3);
}

TEST(a_stopped_shard_takes_its_place_back_from_an_empty_one_and_lost_ends)
{
    static struct cluster_said before, after;
    char log[160];
    cluster_cli(&cluster, &before, "job", "digest", "-q", "tiny", NULL);
    ck_assert_int_eq(kill(cluster.shards[1], SIGSTOP), 0);
    const pid_t twin = start_twin(log);
    train_until_lost();
    ck_assert_ptr_nonnull(strstr(cairn_error(), "the job goes on when it is"));
    cairn_close(session);
    ck_assert_int_eq(kill(cluster.shards[1], SIGCONT), 0);
    ck_assert_int_eq(cluster_wait(twin, CLUSTER_WAIT_MS), EXIT_FENCED);
    expect_log(log, "holds parts of jobs and this process none");
    open_job();
    cluster_cli(&cluster, &after, "job", "digest", "-q", "tiny", NULL);
    ck_assert_str_eq(before.out, after.out);
    ck_assert_int_ne(before.out[0], '\0');
    ck_assert_uint_eq(train(), 2);
}

TEST(a_shard_whose_job_was_restored_without_it_ends_when_it_wakes)
{
    static struct cluster_said said;
    char log[160], id[64] = "";
    cluster_says(&cluster, 0, "", "snapshot", "create", "tiny", "--wait", "-q", NULL);
    cluster_cli(&cluster, &said, "snapshot", "list", "tiny", "--no-headers", NULL);
    ck_assert_msg(sscanf(said.out, "tiny %63s", id) == 1, "%s", said.out);
    ck_assert_int_eq(kill(cluster.shards[1], SIGSTOP), 0);
    const pid_t twin = start_twin(log);
    train_until_lost();
    cairn_close(session);
    cluster_says(&cluster, 0, "", "snapshot", "restore", "tiny", id, "--yes", NULL);
    open_job();
    ck_assert_int_eq(kill(cluster.shards[1], SIGCONT), 0);
    ck_assert_int_eq(cluster_wait(cluster.shards[1], CLUSTER_WAIT_MS), EXIT_FENCED);
    cluster.shards[1] = twin; // it serves, and is stopped with the cluster
    ck_assert_uint_eq(train(), 2);
}

SUITE(90, set_up, tear_down);
