/* Four hosts, as network namespaces: a coordinator that a network of management alone leads to, two shards,
 * each on a data network of its own, and a worker on all three. Needs root.
 *
 * `test_paths worker ADDRESS` is the worker: it prints its data path, trains, and says what went wrong. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/netns.h"
#include "tests/support/suite.h"
#include "tests/support/trainer.h"

enum { WAIT_MS = 30000, SHARDS = 2, ELEMS = 1 << 19, STEPS = 2 };

/* ---- the worker ---- */

#define need(call)                                 \
    do {                                           \
        if ((call) != CAIRN_OK) {                  \
            printf("failed: %s\n", cairn_error()); \
            return 1;                              \
        }                                          \
    } while (0)

static int train(cairn_job *job, void *values)
{
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_op *op;
    for (int i = 0; i < STEPS; i++) {
        need(cairn_round_begin(job, WAIT_MS, &round));
        need(cairn_push(job, &round, 0, "w", NULL, &mem, NULL));
        need(cairn_commit(job, &round, 1, NULL, 0, WAIT_MS, &result));
        need(cairn_fetch(job, result.version, "w", NULL, NULL, &mem, &op));
        need(cairn_wait(op, WAIT_MS));
    }
    return 0;
}

static int work(const char *endpoint)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = endpoint };
    const struct cairn_tensor tensor = TRAINER_MATRIX("w", NULL, 1024, ELEMS / 1024, 7);
    const struct cairn_job_spec spec = TRAINER_SPEC(&tensor, 1, .chunk_leaves = 16, .window = 2);
    cairn *session;
    cairn_job *job;
    void *values;
    setvbuf(stdout, NULL, _IOLBF, 0);
    need(cairn_open(&opts, &session));
    printf("data path: %s\n", cairn_data_path(session));
    need(cairn_job_open(session, "paths", &spec, CAIRN_WORKER, WAIT_MS, &job));
    need(cairn_init_done(job, NULL, WAIT_MS));
    need(cairn_alloc(session, ELEMS * sizeof(float), 0, &values));
    const int status = train(job, values);
    if (status == 0) printf("trained\n");
    cairn_close(session);
    return status;
}

/* ---- the hosts ---- */

static struct cluster cluster;
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

static void set_up(void)
{
    static const char *const coordinator_set[] = { "network.insecure_network=yes", NULL };
    static const char *const shard_set[] = { "network.insecure_network=yes", NULL };
    static const char *const first[] = { "fabric.device=data0", NULL };
    static const char *const second[] = { "fabric.device=data1", NULL };
    static const char *const *const each[SHARDS] = { first, second };
    unsetenv("CAIRN_FABRIC_DEVICE");
    cluster_start(&cluster, SHARDS,
                  &(struct cluster_options) { .coordinator_set = coordinator_set,
                                              .shard_set = shard_set,
                                              .shard_each = each,
                                              .shard_netns = places,
                                              .coordinator_netns = coordinator,
                                              .coordinator_ip = "10.90.0.1" });
}

static void tear_down(void)
{
    cluster_stop(&cluster);
}

/* Runs a program on the worker's host; what it said, and its exit. */
static int run_there(const char *const *argv, char *said, size_t said_bytes)
{
    const char *all[16] = { "ip", "netns", "exec", worker };
    char log[CAIRN_SCRATCH_BYTES + 32];
    size_t n = 4;
    while (*argv != NULL) all[n++] = *argv++;
    snprintf(log, sizeof log, "%s/worker.log", cluster.folder);
    const pid_t pid = cluster_spawn(all, log);
    const int status = cluster_wait(pid, CLUSTER_WAIT_MS);
    if (status == -1) cluster_kill(pid);
    FILE *file = fopen(log, "re");
    ck_assert_ptr_nonnull(file);
    said[fread(said, 1, said_bytes - 1, file)] = '\0';
    fclose(file);
    return status;
}

static int run_worker(char *said, size_t said_bytes)
{
    char self[512] = "";
    ck_assert_int_gt(readlink("/proc/self/exe", self, sizeof self - 1), 0);
    return run_there((const char *const[]) { self, "worker", cluster.address, NULL }, said,
                     said_bytes);
}

static void need_text(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "\"%s\" is not in: %s", part, text);
}

TEST(a_worker_takes_the_devices_of_the_routes_to_the_shards)
{
    char said[8192];
    const int status = run_worker(said, sizeof said);
    ck_assert_msg(status == 0, "%d: %s", status, said);
    need_text(said, "trained");
    need_text(said, "10.81.0.1 data0 tcp; 10.82.0.1 data1 tcp, chosen by the routes to the shards");
    ck_assert_msg(strstr(said, "mgmt") == NULL, "%s", said);
}

TEST(a_path_that_leads_nowhere_is_named_within_seconds)
{
    struct timespec begin, end;
    char said[8192];
    setenv("CAIRN_FABRIC_DEVICE", "mgmt", 1);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    const int status = run_worker(said, sizeof said);
    clock_gettime(CLOCK_MONOTONIC, &end);
    ck_assert_msg(status == 1, "%d: %s", status, said);
    need_text(said, "from here (10.91.0.2 mgmt tcp) to it (10.8");
    need_text(said, "set CAIRN_FABRIC_DEVICE=data");
    ck_assert_int_le(end.tv_sec - begin.tv_sec, 10);
}

TEST(the_status_says_where_the_data_of_each_comes_to)
{
    char said[8192];
    const int status = run_there((const char *const[]) { CAIRN_BIN_DIR "/cairn", "--endpoint",
                                                         cluster.address, "cluster", "status",
                                                         NULL },
                                 said, sizeof said);
    ck_assert_msg(status == 0, "%d: %s", status, said);
    need_text(said, "10.81.0.2 data0 tcp");
    need_text(said, "10.82.0.2 data1 tcp");
}

static bool log_has(const char *path, const char *part)
{
    static char text[16384];
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return strstr(text, part) != NULL;
}

/* As a bond that is made after the daemon, and DHCP that comes after that. */
TEST(a_device_that_is_not_there_or_has_no_address_yet_is_waited_for)
{
    char log[300], set_coordinator[300];
    snprintf(log, sizeof log, "%s/late.log", cluster.folder);
    snprintf(set_coordinator, sizeof set_coordinator, "shard.coordinator=%s", cluster.address);
    const char *const argv[] = { "ip",
                                 "netns",
                                 "exec",
                                 worker,
                                 CAIRN_BIN_DIR "/cairn-shard",
                                 "--set",
                                 "shard.name=late",
                                 "--set",
                                 set_coordinator,
                                 "--set",
                                 "fabric.device=late",
                                 "--set",
                                 "network.insecure_network=yes",
                                 "--set",
                                 "memory.limit=64MiB",
                                 NULL };
    const pid_t pid = cluster_spawn(argv, log);
    for (int i = 0; i < 600 && !log_has(log, "this host has no device late"); i++)
        ck_assert_int_eq(cluster_wait(pid, 10), -1);
    ck_assert(log_has(log, "this shard waits for it"));
    ck_assert(netns_ip("-n %s link add late type veth peer name later", worker));
    ck_assert(netns_ip("-n %s link set late up", worker));
    for (int i = 0; i < 600 && !log_has(log, "device late has no address yet, or"); i++)
        ck_assert_int_eq(cluster_wait(pid, 10), -1);
    ck_assert(log_has(log, "or is not up: this shard waits for that"));
    ck_assert(netns_ip("-n %s address add 10.95.0.1/24 dev late", worker));
    ck_assert_int_eq(cluster_wait(pid, 600), -1); // it has looked again: there is no carrier
    ck_assert(netns_ip("-n %s link set later up", worker));
    for (int i = 0; i < 600 && !log_has(log, "msg=ready"); i++)
        ck_assert_int_eq(cluster_wait(pid, 10), -1);
    ck_assert(log_has(log, "msg=ready"));
    kill(pid, SIGTERM);
    ck_assert_int_eq(cluster_wait(pid, CLUSTER_WAIT_MS), 0);
    ck_assert(netns_ip("-n %s link delete late", worker));
}

SUITE(60, set_up, tear_down);

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "worker") == 0) return work(argv[2]);
    return netns_suite_main(make_hosts, drop_hosts);
}
