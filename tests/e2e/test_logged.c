/* All hosts lose power, and no step is lost: jobs with durability = log. The next step commits, and the
 * content root is the one of the undisturbed run. What a log cannot do, it says. */
#include <signal.h>
#include <stdlib.h>

#include "tests/e2e/crew.h"
#include "tests/e2e/scene.h"
#include "tests/support/scratch.h"

enum { ELEMS = 60000 };

static char folder[CAIRN_SCRATCH_BYTES], log_path[CAIRN_SCRATCH_BYTES + 16];

static void set_up(void)
{
    cairn_scratch_make(folder);
    snprintf(log_path, sizeof log_path, "log.path=%s", folder);
}

static void tear_down(void)
{
    stop();
    cairn_scratch_remove(folder);
}

#define SHARDS(count, ...)                                                            \
    start((count), .coordinator_set = SETTINGS("lease.heartbeat=100ms"),              \
          .shard_set = SETTINGS("compute.threads=1", "memory.limit=256MiB", log_path, \
                                ##__VA_ARGS__))

static int in_log(const char *text)
{
    return logged("coordinator.log", text);
}

static void expect_in(const char *command, const char *text)
{
    await((ask_line(command), strstr(said.out, text) != NULL));
}

/* The job has a log at each of its shards. */
static void log_it(const char *name)
{
    char command[64];
    says(0, "", "job durability %s log -q", name);
    snprintf(command, sizeof command, "job show %s", name);
    expect_in(command, "durability        log; log is asked for");
}

/* As when the hosts lose power: nothing of their memory comes again. */
static void lose_power(int shards, bool of_coordinator)
{
    for (int i = 0; i < shards; i++) kill_shard(i);
    if (of_coordinator) kill_coordinator();
    if (of_coordinator) cluster_restart_coordinator(&cluster);
    for (int i = 0; i < shards; i++) cluster_restart_shard(&cluster, i);
}

/* ---- all lose power ---- */

TEST(a_job_whose_hosts_lose_power_again_and_again_loses_no_step)
{
    const char *many = getenv("CAIRN_LOG_STEPS");
    const uint64_t steps = many != NULL ? strtoull(many, NULL, 10) : 160;
    const struct crew crew = { .job = &bits_job, .endpoint = cluster.address, .until_step = steps };
    struct crew_run run;
    unsigned seed = 11;
    int losses = 0;
    char root[65];
    SHARDS(2);
    crew_start(&run, &crew);
    crew_await(&run, 2);
    log_it(BITS_JOB);
    for (; run.step + 30 < steps; losses++) {
        crew_await(&run, run.step + 1 + (uint64_t)(rand_r(&seed) % 10));
        poll(NULL, 0, rand_r(&seed) % 20);
        const uint64_t step = run.step;
        lose_power(2, losses % 2 == 1);
        crew_await(&run, step + 1);
    }
    crew_join(&run);
    ck_assert_int_gt(losses, 1);
    ck_assert_int_eq(in_log("job bits is lost"), 0);
    ck_assert_int_eq(logged("shard-0.log", "its part is made again from its log"), losses);
    bits_root_at(steps, root);
    crew_check_root(cluster.address, &bits_job, root);
}

SUITE(120, set_up, tear_down);
