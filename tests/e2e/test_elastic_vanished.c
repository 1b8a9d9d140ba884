/* A node that vanishes without a word, as by power or a cable, in the middle of training, and that comes
 * back: nobody waits for it beyond its lease, and its return ends or stops nobody. Two hosts, as network
 * namespaces; needs root.
 *
 * CAIRN_TEST_LONG=1, or CAIRN_TEST_RETURNS=N: so many returns. */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/e2e/elastic_watch.h"
#include "tests/support/netns.h"
#include "tests/e2e/scene.h"

enum {
    SHARDS = 3,
    LEASE_MS = 600,
    LOSS_WAIT_MS = 1000, /* before the job is restored without the shard: the least there is */
    OVER_MS = 2000,
    BACK_MS = 2000,
    LOOK_MS = 500, /* at what a return brings about, which begins within heartbeats */
    WORKERS = 2,
    RETURNS =
        2, /* of a shard: after the first one, each has a connection of its own to the other */
    RETURNS_OF_TRAINER = 1,
    RETURNS_LONG = 50
};

static const struct elastic_model *const model = &elastic_models[0];
static struct elastic_shared *shared;
static pid_t workers[WORKERS];
static char here[NETNS_NAME_BYTES], there[NETNS_NAME_BYTES];
static const char *const places[SHARDS] = { here, here, there };

/* ---- the hosts ---- */

/* Sockets that hold little: so there is nearly always something that waits to be sent. */
static bool make_small(const char *netns)
{
    static const char format[] =
        "netns exec %s sh -c 'echo 4096 16384 65536 >/proc/sys/net/ipv4/%s'";
    return netns_ip(format, netns, "tcp_wmem") && netns_ip(format, netns, "tcp_rmem");
}

static bool make_hosts(void)
{
    return netns_make(here, 'h') && netns_make(there, 't') && make_small(here) &&
           make_small(there) && netns_wire(here, there, "data0", 83);
}

static void drop_hosts(void)
{
    if (here[0] != '\0') (void)netns_drop(here);
    if (there[0] != '\0') (void)netns_drop(there);
}

enum { UNHEARD, DOWN, CUTS };
static int cut; /* the one that a test makes */

/* What goes over the wire is for cards that do not exist: the kernels at its ends hear of nothing. Or one of
 * them knows that it is cut off. */
static void cut_wire(void)
{
    if (cut == DOWN) {
        ck_assert(netns_ip("-n %s link set data0 down", there));
        return;
    }
    static const char entry[] = "-n %s neigh replace %s lladdr 02:00:00:00:00:99 dev data0 nud "
                                "permanent";
    ck_assert(netns_ip(entry, here, "10.83.0.2"));
    ck_assert(netns_ip(entry, there, "10.83.0.1"));
}

static void mend_wire(void)
{
    (void)netns_ip("-n %s link set data0 up", there);
    (void)netns_ip("-n %s neigh delete 10.83.0.2 dev data0", here);
    (void)netns_ip("-n %s neigh delete 10.83.0.1 dev data0", there);
}

/* ---- workers ---- */

static void start_worker(int rank, const char *netns)
{
    workers[rank] = elastic_start_on(netns, cluster.address, model, (uint32_t)rank, shared);
}

/* ---- how long nothing is trained ---- */

/* A shard or a trainer that has ended. */
static void check_alive(void)
{
    for (int i = 0; i < WORKERS; i++)
        if (workers[i] != 0) ck_assert_int_eq(cluster_wait(workers[i], 0), -1);
    for (int i = 0; i < cluster.shard_count; i++)
        if (cluster.shards[i] != 0) ck_assert_int_eq(cluster_wait(cluster.shards[i], 0), -1);
}

static void look(void)
{
    elastic_watch_look();
    check_alive();
}

static void begin_watch(void)
{
    elastic_watch_begin(shared, &shared->rounds);
}

static void await_rounds(uint64_t more)
{
    const uint64_t goal = atomic_load(&shared->rounds) + more;
    for (const int64_t end_ms = now_ms() + 6 * CLUSTER_WAIT_MS; atomic_load(&shared->rounds) < goal;
         look())
        ck_assert_int_lt(now_ms(), end_ms);
}

static void look_for_ms(int ms)
{
    for (const int64_t end_ms = now_ms() + ms; now_ms() < end_ms;) look();
}

static void await_logged(const char *log, const char *text, int more_than)
{
    for (const int64_t end_ms = now_ms() + CLUSTER_WAIT_MS; logged(log, text) <= more_than; look())
        ck_assert_int_lt(now_ms(), end_ms);
}

/* ---- the scene ---- */

static const struct {
    const char *kind, *trust;
} ways[] = { { "fabric.kind=sealed", "fabric.trust=no" },
             { "fabric.kind=ucx", "fabric.trust=yes" } };
enum { WAYS = sizeof ways / sizeof *ways };

static void begin(int way)
{
    mend_wire(); // the test before may have left it cut
    ck_assert(netns_is_up(here, "data0") && netns_is_up(there, "data0")); // UCX opens no other
    setenv("CAIRN_FABRIC_DEVICE", "data0", 1);
    start(SHARDS, .shard_netns = places, .coordinator_ip = "10.83.0.1",
          .coordinator_set = SETTINGS("cluster.shards=2", "lease.heartbeat=100ms",
                                      "lease.timeout=600ms"),
          .shard_set = SETTINGS("fabric.device=data0", ways[way].kind, ways[way].trust,
                                "compute.threads=1", "memory.limit=256MiB"));
    shared = elastic_share();
    atomic_store(&shared->until, UINT64_MAX);
    begin_watch();
}

static void tear_down(void)
{
    mend_wire();
    for (int i = 0; i < WORKERS; i++)
        if (workers[i] != 0) cluster_kill(workers[i]);
    for (int i = 0; i < WORKERS; i++) workers[i] = 0;
    stop();
    munmap(shared, sizeof *shared);
}

static int returns_wanted(int otherwise)
{
    const char *wanted = getenv("CAIRN_TEST_RETURNS");
    if (wanted != NULL) return atoi(wanted);
    return getenv("CAIRN_TEST_LONG") != NULL ? RETURNS_LONG : otherwise;
}

static int64_t cut_ms; /* the longest step of the last cut */
static int cut_again, back_again;

/* False, here and below: this machine may have held the step up. */
static bool vanish(int64_t most_ms)
{
    begin_watch();
    cut_wire();
    await_rounds(8);
    cut_ms = elastic_watch_longest_ms();
    return elastic_watch_is_below(most_ms, &cut_again);
}

static bool come_back(int number)
{
    look_for_ms(returns_wanted(0) > RETURNS ? BACK_MS : LOOK_MS);
    await_rounds(8);
    printf("note: %d: the longest step: cut off %" PRId64 " ms, back %" PRId64 " ms\n", number,
           cut_ms, elastic_watch_longest_ms());
    fflush(stdout);
    return elastic_watch_is_below(BACK_MS, &back_again);
}

/* Once the coordinator has it again: its return over the mended wire is what is waited for. */
static void give_it_a_part(void)
{
    await((ask("reshard apply %s --add shard-2", model->name),
           strstr(said.err, "is not here") == NULL));
    expect_said(0);
}

TEST_EACH(a_shard_that_vanishes_and_returns_holds_nobody_up_and_ends_nobody, 0, WAYS)
{
    begin(_i);
    for (int i = 0; i < WORKERS; i++) start_worker(i, here);
    await_rounds(4);
    says(0, "", "job amend %s --on-shard-loss restore-latest --shard-loss-wait 1", model->name);
    for (int done = 0; done < returns_wanted(RETURNS);) {
        const int lost = logged("coordinator.log", "shard shard-2");
        give_it_a_part();
        says(0, "", "snapshot create %s --wait", model->name);
        await_rounds(8);
        const bool is_good = vanish(LEASE_MS + LOSS_WAIT_MS + OVER_MS);
        begin_watch();
        mend_wire();
        await_logged("coordinator.log", "shard shard-2", lost);
        done += come_back(done) && is_good;
    }
}

TEST_EACH(a_trainer_that_was_silent_and_returns_holds_nobody_up, 0, WAYS *CUTS)
{
    cut = _i % CUTS;
    begin(_i / CUTS);
    start_worker(0, here);
    await_rounds(4);
    start_worker(1, there);
    await_rounds(8);
    for (int done = 0; done < returns_wanted(RETURNS_OF_TRAINER);) {
        const bool is_good = vanish(LEASE_MS + OVER_MS);
        look_for_ms(LEASE_MS);
        begin_watch();
        mend_wire();
        await_logged("coordinator.log", "worker ", logged("coordinator.log", "worker "));
        done += come_back(done) && is_good;
    }
}

SUITE(4000, .tear_down = tear_down);

int main(void)
{
    return netns_suite_main(make_hosts, drop_hosts);
}
