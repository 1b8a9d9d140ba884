/* Where nothing is wrong nothing is complained of: a cluster starts, trains, saves, restores, drains and
 * ends, and neither a daemon nor a trainer says a word at WARNING or ERROR, or one that is no line of a
 * log. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/store/confine.h"
#include "tests/e2e/scene.h"

enum { ELEMS = 5000, ROUNDS = 3 };

/* ---- the trainer ---- */

static void work(void)
{
    static float values[ELEMS];
    char id[64];
    join("clean", TINY(ELEMS));
    (void)train_pushing(0.5f, ROUNDS);
    good(cairn_snapshot(job, CAIRN_SNAPSHOT_WAIT, CLUSTER_WAIT_MS, id));
    trainer_fetch(job, newest(job), "w", NULL, CAIRN_F32, values);
    leave();
}

/* A process of its own, whose words are in the folder. */
static void work_apart(void)
{
    char log[CAIRN_SCRATCH_BYTES + 32];
    snprintf(log, sizeof log, "%s", in_folder("worker.log"));
    const pid_t pid = fork_child();
    if (pid == 0) {
        ck_assert_ptr_nonnull(freopen(log, "w", stderr));
        work();
        _exit(0);
    }
    const int status = cluster_wait(pid, CLUSTER_WAIT_MS);
    ck_assert_msg(status == 0, "%d: %s", status, cluster_text(log));
    ck_assert_str_eq(cluster_text(log), "");
}

/* ---- what is said ---- */

/* A warning that says what the kernel lacks is no fault of the run. */
static bool is_of_this_kernel(const char *line)
{
    return confine_version() == 0 && strstr(line, "this kernel has no Landlock") != NULL;
}

static void expect_clean(const char *log)
{
    char *text = strdup(cluster_log_text(&cluster, log)), *rest;
    ck_assert_ptr_nonnull(text);
    ck_assert_msg(text[0] != '\0', "%s is empty", log);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        const bool is_well = strncmp(line, "ts=", 3) == 0 && strstr(line, " level=info ") != NULL;
        ck_assert_msg(is_well || is_of_this_kernel(line), "%s: %s", log, line);
    }
    free(text);
}

static void end(pid_t *pid)
{
    kill(*pid, SIGTERM);
    ck_assert_int_eq(cluster_wait(*pid, CLUSTER_WAIT_MS), 0);
    *pid = 0;
}

static void live(void)
{
    work_apart();
    says(0, "clean", "snapshot list");
    says(0, "", "job digest clean");
    await((ask("snapshot restore clean latest --yes"), said.status == 0));
    says(0, "clean", "job list");
    says(0, "", "cluster status");
    drain_shard(1);
}

static void end_and_expect_clean(void)
{
    end(&cluster.shards[0]);
    end(&cluster.coordinator);
    expect_clean("coordinator.log");
    expect_clean("shard-0.log");
    expect_clean("shard-1.log");
}

TEST(a_clean_run_over_a_unix_socket_says_nothing_at_warning)
{
    start(2, .coordinator_set = SETTINGS("cluster.shards=1"));
    live();
    end_and_expect_clean();
}

/* The data path of the trainer, and of the shards. */
static const char *const kinds[] = { "mapped", "sealed", "stream", "ucx" };

TEST_EACH(a_clean_run_over_tcp_says_nothing_at_warning, 0, (int)(sizeof kinds / sizeof *kinds))
{
    char kind[32];
    snprintf(kind, sizeof kind, "fabric.kind=%s", kinds[_i]);
    const char *const shard_set[] = { "memory.limit=256MiB", "compute.threads=1", kind, NULL };
    setenv("CAIRN_FABRIC", kinds[_i], 1);
    start(2, .coordinator_set = SETTINGS("cluster.shards=1"), .coordinator_ip = "127.0.0.1",
          .shard_set = shard_set);
    live();
    end_and_expect_clean();
}

SUITE(60, .tear_down = stop);
