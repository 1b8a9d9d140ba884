/* Two coordinators with one store in etcd: one leads, and is killed, stopped, or loses etcd in mid-training.
 * Steps go on, with the bits of a run that nobody disturbed. */
#include <signal.h>
#include <stdlib.h>

#include "tests/e2e/scene.h"
#include "tests/support/etcd_server.h"

enum {
    ELEMS = 5000,
    SERVES_MS = 10000 /* the other one after a death; here the lease is shorter */
};

static struct etcd_server etcd;
static pid_t other; /* the second coordinator; 0: it does not run */
static char etcd_folder[CAIRN_SCRATCH_BYTES], url[128];

/* Another coordinator of the cluster, with a socket and a store's folder of that name. */
static pid_t stand_by(const char *name)
{
    return cluster_run(&cluster, NULL, in_folder("%s.log", name) + strlen(cluster.folder) + 1,
                       CAIRN_BIN_DIR
                       "/cairn-coordinator --set network.listen=%s/%s.sock --set "
                       "store.path=%s/%s --set snapshots.path=%s --set "
                       "cluster.shards=2 --set store.url=%s --set store.lease=2s --set "
                       "lease.heartbeat=100ms",
                       cluster.folder, name, cluster.folder, name, cluster.snapshots_path, url);
}

static void set_up(void)
{
    cairn_scratch_make(etcd_folder);
    etcd_server_start(&etcd, etcd_folder, NULL);
    static char set[sizeof url + 32];
    snprintf(url, sizeof url, "%s", etcd.url);
    snprintf(set, sizeof set, "store.url=%s", url);
    start(2, .other_socket = "other.sock", .coordinator_set = SETTINGS(set, "store.lease=2s"));
    other = stand_by("other");
    await(logged("other.log", "stands by: ") > 0);
    join("tiny", TINY(ELEMS, .chunk_leaves = 2));
    train_pushing(1, 2);
}

/* The job has had 6 steps, and so has one that nobody disturbed. */
static void tear_down(void)
{
    const struct trainer calm = attach("calm", TINY(ELEMS, .chunk_leaves = 2));
    cairn_job *disturbed = job;
    job = calm.job;
    train_pushing(1, 6);
    job = disturbed;
    expect_same_bits("tiny", "calm");
    cairn_job_close(calm.job);
    cairn_close(calm.session);
    if (other != 0) {
        kill(other, SIGTERM);
        ck_assert_int_eq(cluster_wait(other, CLUSTER_WAIT_MS), 0);
    }
    stop();
    etcd_server_kill(&etcd);
    cairn_scratch_remove(etcd_folder);
}

TEST(the_leader_is_killed_and_steps_go_on)
{
    run_on(NULL, "asked.log", CAIRN_BIN_DIR "/cairn --endpoint %s/other.sock cluster status",
           cluster.folder);
    await(logged("asked.log", "this coordinator stands by: pid ") > 0);
    kill_coordinator();
    const int64_t began_ms = now_ms();
    train_pushing(1, 1);
    const int64_t took_ms = now_ms() - began_ms;
    printf("a step ended %d ms after the leader was killed\n", (int)took_ms);
    ck_assert_int_lt(took_ms, SERVES_MS);
    train_pushing(1, 3);
    says(0, "start 2", "cluster status");
}

TEST(a_leader_that_was_stopped_wakes_up_and_changes_nothing)
{
    cluster_freeze(cluster.coordinator);
    train_pushing(1, 2);
    says(0, "start 2", "cluster status");
    kill(cluster.coordinator, SIGCONT);
    await(logged("coordinator.log", "steps down: ") > 0);
    await(logged("coordinator.log", "stands by: ") > 0);
    train_pushing(1, 1);
    says(0, "start 2", "cluster status");
    kill(other, SIGKILL); // and it leads again when it is its turn
    cluster_wait(other, CLUSTER_WAIT_MS);
    other = 0;
    train_pushing(1, 1);
    says(0, "start 3", "cluster status");
}

TEST(etcd_does_not_answer_and_trainers_wait_until_it_does)
{
    cluster_freeze(etcd.pid);
    train_pushing(1, 1); // no step writes to it
    await(logged("coordinator.log", "steps down: ") > 0);
    kill(etcd.pid, SIGCONT);
    train_pushing(1, 3);
}

SUITE(90, set_up, tear_down);

int main(void)
{
    return etcd_server_is_here() ? suite_main() : SUITE_SKIPPED;
}
