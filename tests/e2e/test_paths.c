/* Four hosts, as network namespaces: a coordinator that a network of management alone leads to, two shards,
 * each on a data network of its own, and a worker on all three. Needs root.
 *
 * `test_paths worker ADDRESS` is the worker: it prints its data path, trains, and says what went wrong. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/netns.h"
#include "tests/e2e/scene.h"

enum { WAIT_MS = 30000, SHARDS = 2, ELEMS = 1 << 19, STEPS = 2 };

/* ---- the worker ---- */

#define need(call)                                 \
    do {                                           \
        if ((call) != CAIRN_OK) {                  \
            printf("failed: %s\n", cairn_error()); \
            return 1;                              \
        }                                          \
    } while (0)

static int train_over(cairn_job *its, void *values)
{
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_op *op;
    for (int i = 0; i < STEPS; i++) {
        need(cairn_round_begin(its, WAIT_MS, &round));
        need(cairn_push(its, &round, 0, "w", NULL, &mem, NULL));
        need(cairn_commit(its, &round, 1, NULL, 0, WAIT_MS, &result));
        need(cairn_fetch(its, result.version, "w", NULL, NULL, &mem, &op));
        need(cairn_wait(op, WAIT_MS));
    }
    return 0;
}

static int work(const char *endpoint)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = endpoint };
    const struct cairn_tensor tensor = TRAINER_MATRIX("w", NULL, 1024, ELEMS / 1024, 7);
    const struct cairn_job_spec spec = TRAINER_SPEC(&tensor, 1, .chunk_leaves = 16, .window = 2);
    void *values;
    setvbuf(stdout, NULL, _IOLBF, 0);
    need(cairn_open(&opts, &session));
    printf("data path: %s\n", cairn_data_path(session));
    need(cairn_job_open(session, "paths", &spec, CAIRN_WORKER, WAIT_MS, &job));
    need(cairn_init_done(job, NULL, WAIT_MS));
    need(cairn_alloc(session, ELEMS * sizeof(float), 0, &values));
    const int status = train_over(job, values);
    if (status == 0) printf("trained\n");
    cairn_close(session);
    return status;
}

/* ---- the hosts ---- */

static char coordinator[NETNS_NAME_BYTES], worker[NETNS_NAME_BYTES],
    shards[SHARDS][NETNS_NAME_BYTES];
static const char *const places[SHARDS] = { shards[0], shards[1] };

/* Each has a wire to the coordinator, whose own address is 10.90.0.1; nobody forwards. */
static bool lead_to_coordinator(const char *host, const char *wire, int network)
{
    return netns_ip("-n %s link add %s type veth peer name mgmt netns %s", coordinator, wire,
                    host) &&
           netns_ip("-n %s address add 10.%d.0.1/24 dev %s", coordinator, network, wire) &&
           netns_ip("-n %s link set %s up", coordinator, wire) &&
           netns_ip("-n %s address add 10.%d.0.2/24 dev mgmt", host, network) &&
           netns_ip("-n %s link set mgmt up", host) &&
           netns_ip("-n %s route add 10.90.0.1 via 10.%d.0.1", host, network) &&
           netns_is_up(host, "mgmt");
}

static bool make_hosts(void)
{
    return netns_make(coordinator, 'c') && netns_make(worker, 'w') && netns_make(shards[0], 's') &&
           netns_make(shards[1], 't') &&
           netns_ip("-n %s address add 10.90.0.1/32 dev lo", coordinator) &&
           lead_to_coordinator(worker, "to-w", 91) && lead_to_coordinator(shards[0], "to-s", 92) &&
           lead_to_coordinator(shards[1], "to-t", 93) &&
           netns_wire(worker, shards[0], "data0", 81) && netns_wire(worker, shards[1], "data1", 82);
}

static void drop_hosts(void)
{
    const char *const all[] = { coordinator, worker, shards[0], shards[1] };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i][0] != '\0') (void)netns_drop(all[i]);
}

static void set_up_with(const char *const *shard_set)
{
    static const char *const first[] = { "fabric.device=data0", NULL };
    static const char *const second[] = { "fabric.device=data1", NULL };
    static const char *const *const each[SHARDS] = { first, second };
    unsetenv("CAIRN_FABRIC_DEVICE");
    start(SHARDS, .shard_set = shard_set, .shard_each = each, .shard_netns = places,
          .coordinator_netns = coordinator, .coordinator_ip = "10.90.0.1");
}

static void set_up(void)
{
    set_up_with(NULL);
}

/* Waits for a program on the worker's host: `said`. */
static void hear(pid_t pid, const char *log)
{
    said.status = cluster_wait(pid, CLUSTER_WAIT_MS);
    if (said.status == -1) cluster_kill(pid);
    snprintf(said.out, sizeof said.out, "%s", cluster_log_text(&cluster, log));
}

TEST(a_worker_takes_the_devices_of_the_routes_to_the_shards)
{
    hear(run_on(worker, "worker.log", "self worker %s", cluster.address), "worker.log");
    expect_said(
        0, "trained",
        "10.81.0.1 data0 sealed; 10.82.0.1 data1 sealed, chosen by the routes to the shards");
    expect_unsaid("mgmt");
}

/* The shards cannot connect to it, and use the connections that it makes. */
TEST(a_worker_that_listens_where_no_shard_can_reach_it_trains_all_the_same)
{
    setenv("CAIRN_FABRIC_DEVICE", "mgmt", 1);
    hear(run_on(worker, "worker.log", "self worker %s", cluster.address), "worker.log");
    expect_said(0, "trained", "10.91.0.2 mgmt sealed, which CAIRN_FABRIC_DEVICE sets");
}

TEST(a_path_that_leads_nowhere_is_named_within_seconds)
{
    for (int i = 1; i <= SHARDS; i++)
        ck_assert(netns_ip("-n %s route add prohibit 10.8%d.0.2/32", worker, i));
    const int64_t begin_ms = now_ms();
    hear(run_on(worker, "worker.log", "self worker %s", cluster.address), "worker.log");
    ck_assert_int_lt(now_ms() - begin_ms, 11000);
    for (int i = 1; i <= SHARDS; i++)
        ck_assert(netns_ip("-n %s route del prohibit 10.8%d.0.2/32", worker, i));
    expect_said(1, "to it (10.8", "this host has no route to it");
}

TEST(the_status_says_where_the_data_of_each_comes_to)
{
    hear(run_on(worker, "status.log", "%s/cairn --endpoint %s cluster status", CAIRN_BIN_DIR,
                cluster.address),
         "status.log");
    expect_said(0, "10.81.0.2 data0 sealed", "10.82.0.2 data1 sealed");
}

/* The shard says it, and runs. */
static void await_text(pid_t pid, const char *part)
{
    await(logged("late.log", part) > 0 || cluster_wait(pid, 0) != -1);
    ck_assert_int_gt(logged("late.log", part), 0);
}

/* As a bond that is made after the daemon, and DHCP that comes after that. */
TEST(a_device_that_is_not_there_or_has_no_address_yet_is_waited_for)
{
    const pid_t pid = run_on(worker, "late.log",
                             "%s/cairn-shard --set shard.name=late --set shard.coordinator=%s "
                             "--set fabric.device=late --set memory.limit=64MiB "
                             "--set shard.state=%s/state",
                             CAIRN_BIN_DIR, cluster.address, cluster.folder);
    await_text(pid, "this host has no device late");
    await_text(pid, "this shard waits for it");
    ck_assert(netns_ip("-n %s link add late type veth peer name later", worker));
    ck_assert(netns_ip("-n %s link set late up", worker));
    await_text(pid, "device late has no address yet, or");
    await_text(pid, "or is not up: this shard waits for that");
    ck_assert(netns_ip("-n %s address add 10.95.0.1/24 dev late", worker));
    ck_assert_int_eq(cluster_wait(pid, 600), -1); // it has looked again: there is no carrier
    ck_assert(netns_ip("-n %s link set later up", worker));
    await_text(pid, "msg=ready");
    kill(pid, SIGTERM);
    ck_assert_int_eq(cluster_wait(pid, CLUSTER_WAIT_MS), 0);
    ck_assert(netns_ip("-n %s link delete late", worker));
}

SUITE(60, set_up, stop);

/* ---- a network that is trusted ---- */

static void set_up_trusted(void)
{
    set_up_with(SETTINGS("fabric.trust=yes"));
}

TEST(a_worker_follows_shards_that_send_in_clear_and_the_status_and_the_log_say_so)
{
    hear(run_on(worker, "worker.log", "self worker %s", cluster.address), "worker.log");
    expect_said(0, "trained", "10.81.0.1 data0 stream; 10.82.0.1 data1 stream");
    hear(run_on(worker, "status.log", "%s/cairn --endpoint %s cluster status", CAIRN_BIN_DIR,
                cluster.address),
         "status.log");
    expect_said(0, "10.81.0.2 data0 stream",
                "warning: shard shard-1 sends in clear to other hosts, since fabric.trust is set");
    ck_assert_int_gt(logged("shard-0.log", "fabric.trust = yes: data goes over device data0 in "
                                           "clear"),
                     0);
}

SUITE(60, set_up_trusted, stop);

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "worker") == 0) return work(argv[2]);
    return netns_suite_main(make_hosts, drop_hosts);
}
