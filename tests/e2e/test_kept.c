/* Shards that run with --keep, as a cluster sees them. */
#include <signal.h>

#include "tests/e2e/scene.h"

static void set_up(void)
{
    cluster_start(&cluster, 2, &(struct cluster_options) { .shards_kept = true });
}

static void tear_down(void)
{
    cluster_stop(&cluster); // each keeper ends with its shard's status, 0
}

/* The coordinator has the shard's present process. */
static void await_up(int shard)
{
    char process[32];
    snprintf(process, sizeof process, "pid=%d,", (int)cluster_shard_process(&cluster, shard));
    cluster_await(&cluster, true, process, "cluster status --no-headers");
}

/* How a process ends: by a signal, or by the exchange of its program. */
static const int ends[] = { SIGKILL, SIGSEGV, SIGUSR2 };

TEST_EACH(a_shard_whose_process_ends_is_back_under_its_keeper, 0, sizeof ends / sizeof *ends)
{
    const pid_t keeper = cluster.shards[1], other = cluster_shard_process(&cluster, 0);
    for (int round = 0; round < 2; round++) {
        cluster_renew_shard(&cluster, 1, ends[_i]);
        await_up(1);
    }
    ck_assert_int_eq(cluster.shards[1], keeper);
    ck_assert_int_eq(cluster_shard_process(&cluster, 0), other);
    ck_assert_int_eq(cluster_logged(&cluster, "shard-1.log", "name=keeper level=error"), 0);
}

TEST(a_shard_whose_host_ends_is_gone_with_its_keeper)
{
    cluster_kill_shard(&cluster, 0);
    cluster_restart_shard(&cluster, 0);
    await_up(0);
}

SUITE(60, set_up, tear_down);
