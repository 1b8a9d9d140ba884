/* A host that is no member of a cluster, and what its programs get: nothing, however many come, and the
 * members' pace and memory stay as they were. Then members whose network is bad. Needs root.
 *
 * CAIRN_ABUSE_CONNECTIONS: so many strangers, and members must keep nine tenths of their pace, which only a
 * machine shows that does nothing else. */
#include <errno.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/secure/secure.h"
#include "tests/support/asan.h"
#include "tests/support/slow_wire.h"
#include "tests/e2e/hosts_scene.h"

/* ASan keeps what is freed, for a while. */
enum { SLACK_BYTES = HAS_ASAN ? 64 << 20 : 8 << 20 };
enum { STRANGERS = 1000, STANDING = 200, WINDOW_MS = 250, WARM_STEPS = 20, DAEMONS = 1 + NODES };

static struct hosts_words words;

static void set_up_nodes(int nodes, const char *lease)
{
    static const char *first_node[1] = { hosts[0] };
    static char shards[32];
    snprintf(shards, sizeof shards, "cluster.shards=%d", nodes);
    hosts_settle(false, 1);
    unsetenv("CAIRN_FABRIC_DEVICE");
    start(1,
          .coordinator_set = SETTINGS("lease.heartbeat=500ms", lease, "network.hello_timeout=500ms",
                                      shards),
          .shard_set = SETTINGS("fabric.device=eth0", "fabric.port_range=7100-7100"),
          .shard_netns = first_node, .coordinator_ip = hosts_ip(0, 0));
    hosts_init(&words);
    for (int n = 1; n < nodes; n++) hosts_join(&words, n, n, "eth0", "7100-7100", false);
}

static void set_up(void)
{
    set_up_nodes(NODES, "lease.timeout=4s");
}

static double asked_pace(double loose)
{
    return getenv("CAIRN_ABUSE_CONNECTIONS") != NULL ? 0.9 : loose;
}

/* ---- strangers ---- */

static atomic_bool rest;
static atomic_uint came, heard_bytes, refused;

/* To the coordinator, or to the port for data of one of the nodes. */
static int dial(unsigned which)
{
    const int node = which % DAEMONS == 0 ? 0 : (int)(which % DAEMONS) - 1;
    struct sockaddr_in to = { .sin_family = AF_INET,
                              .sin_port = htons(which % DAEMONS == 0 ? coordinator_port()
                                                                     : FIRST_PORT) };
    inet_pton(AF_INET, hosts_ip(node, 0), &to.sin_addr);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct timeval patience = { .tv_sec = 2 };
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(fd, (const struct sockaddr *)&to, sizeof to) == 0) return fd;
    close(fd);
    refused++;
    return -1;
}

static void end(int fd)
{
    char bytes[512];
    if (fd < 0) return;
    const ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) heard_bytes += (unsigned)got;
    close(fd);
}

/* Garbage, the beginning of a handshake without its MAC, a part of it, and nothing at all. */
static void speak(int fd, unsigned kind, uint64_t *seed)
{
    const uint8_t first[CAIRN_HANDSHAKE_FIRST_BYTES] = "CAIRNSE1\1\0\1";
    uint64_t garbage[256];
    for (size_t i = 0; i < 256; i++) garbage[i] = cairn_scratch_random(seed);
    if (kind == 0) (void)!send(fd, garbage, sizeof garbage, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (kind == 1) (void)!send(fd, first, sizeof first, MSG_NOSIGNAL);
    if (kind == 2) (void)!send(fd, first, 1 + *seed % 80, MSG_NOSIGNAL);
}

/* One after the other, STANDING at a time, to all four ports by turns. */
static void *come_on(void *arg)
{
    const unsigned count = *(const unsigned *)arg;
    static int fds[STANDING];
    uint64_t seed = 13;
    if (netns_enter(hosts[OUTSIDE]) < 0) abort();
    memset(fds, -1, sizeof fds);
    for (unsigned i = 0; i < count; i++) {
        int *fd = &fds[i % STANDING], older = fds[(i + 1) % STANDING];
        while (rest) poll(NULL, 0, 1);
        end(*fd);
        *fd = dial(i);
        if (*fd >= 0) speak(*fd, i / DAEMONS % 4, &seed);
        if (older >= 0) (void)!send(older, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT); // a byte more
        came++;
        poll(NULL, 0, 1);
    }
    for (int i = 0; i < STANDING; i++) end(fds[i]);
    return NULL;
}

static uint64_t steps_in_window(const char *name, int window_ms)
{
    poll(NULL, 0, 20);
    const uint64_t before = hosts_steps(name, 0);
    poll(NULL, 0, window_ms);
    return hosts_steps(name, 0) - before;
}

static pid_t daemon_of(int i)
{
    return i == 0 ? cluster.coordinator : cluster.shards[i - 1];
}

static void measure(size_t resident[DAEMONS])
{
    for (int i = 0; i < DAEMONS; i++) resident[i] = cluster_resident_bytes(daemon_of(i));
}

TEST(strangers_of_another_host_hear_nothing_and_slow_nobody)
{
    const char *asked = getenv("CAIRN_ABUSE_CONNECTIONS");
    unsigned count = asked != NULL ? (unsigned)atoi(asked) : STRANGERS, windows = 0;
    uint64_t alone = 0, beside = 0;
    size_t before[DAEMONS], after[DAEMONS];
    pthread_t strangers;
    const pid_t workers[2] = { hosts_train(1, words.trainers_path, "theirs", 0, 2),
                               hosts_train(2, words.trainers_path, "theirs", 1, 2) };
    hosts_await_steps("theirs", 0, WARM_STEPS);
    measure(before);
    rest = true;
    ck_assert_int_eq(pthread_create(&strangers, NULL, come_on, &count), 0);
    for (; came < count; windows++) {
        rest = true;
        alone += steps_in_window("theirs", WINDOW_MS);
        rest = false;
        beside += steps_in_window("theirs", WINDOW_MS);
    }
    pthread_join(strangers, NULL);
    hosts_await_steps("theirs", 0, 3);
    measure(after);
    printf(
        "note: of %u windows of %d ms: %lu steps alone, %lu beside %u strangers, of whom %u got no "
        "connection\n",
        windows, WINDOW_MS, (unsigned long)alone, (unsigned long)beside, count, refused);
    for (int i = 0; i < DAEMONS; i++) {
        printf("note: daemon %d: resident %zu KiB before, %zu KiB after\n", i, before[i] / 1024,
               after[i] / 1024);
        ck_assert_int_eq(cluster_wait(daemon_of(i), 0), -1);
        ck_assert_uint_le(after[i], before[i] + SLACK_BYTES);
    }
    fflush(stdout);
    ck_assert_uint_eq(heard_bytes, 0);
    ck_assert_double_gt((double)beside, (double)alone * asked_pace(0.3));
    hosts_stop();
    for (int i = 0; i < 2; i++) hosts_end(workers[i], "theirs", i);
}

/* Without a token, and with one whose secret is another. */
TEST(programs_of_another_host_get_nothing_without_a_token_of_the_cluster)
{
    struct token token;
    struct sentence why;
    ck_assert_int_eq(token_parse(words.trainers, &token, &why), CAIRN_OK);
    token.secret[0] ^= 1;
    char path[CAIRN_SCRATCH_BYTES + 32];
    snprintf(path, sizeof path, "%s", in_folder("wrong-token"));
    ck_assert_int_eq(token_write_file(path, &token, &why), CAIRN_OK);
    const pid_t wrong = hosts_train(OUTSIDE, path, "wrong", 0, 1);
    ck_assert_int_eq(cluster_wait(wrong, CLUSTER_WAIT_MS), 1);
    ck_assert_msg(strstr(hosts_said("wrong", 0), "closed the connection without a word") != NULL,
                  "%s", hosts_said("wrong", 0));
    const pid_t none = hosts_train(OUTSIDE, "/nonexistent", "none", 0, 1);
    ck_assert_int_eq(cluster_wait(none, CLUSTER_WAIT_MS), 1);
    ask("job list");
    expect_said(0);
    expect_unsaid("wrong");
    expect_unsaid("none");
}

/* ---- bad networks ---- */

/* What goes to and from the fourth host. Delayed is what it sends. */
enum { DELAY_MS = 50 };
static const struct bad {
    const char *name, *rule;
    bool cut;
} bads[] = {
    { "one of a hundred packets is lost", "numgen random mod 100 == 0 drop", false },
    { "50 ms", NULL, false },
    { "nothing arrives", "drop", true },
};
enum { BADS = sizeof bads / sizeof *bads, BAD_WINDOWS = 3 };

static void spoil_wire(int host, const char *rule)
{
    ck_assert(
        netns_nft(router,
                  "add table inet bad; add chain inet bad way { type filter hook forward "
                  "priority 0; }; add rule inet bad way iifname n%deth0 %s; add rule inet bad "
                  "way oifname n%deth0 %s",
                  host + 1, rule, host + 1, rule));
}

static void spoil(const struct bad *bad)
{
    if (bad->rule == NULL)
        slow_wire_begin(router, "n4eth0", DELAY_MS);
    else
        spoil_wire(OUTSIDE, bad->rule);
}

static void mend_wire(void)
{
    ck_assert(netns_nft(router, "delete table inet bad"));
}

static void mend(const struct bad *bad)
{
    if (bad->rule == NULL)
        slow_wire_end();
    else
        mend_wire();
}

/* The job of the fourth host goes on where its network lets it, and keeps its place; another one's keeps its
 * pace. Windows shorter than its lease. */
TEST_EACH(a_worker_with_a_bad_network_slows_itself_alone, 0, BADS)
{
    const struct bad *bad = &bads[_i];
    uint64_t good_before = 0, good_beside = 0, own_before = 0, own_beside = 0;
    const pid_t good = hosts_train(1, words.trainers_path, "good", 0, 1),
                worse = hosts_train(OUTSIDE, words.trainers_path, "worse", 0, 1);
    hosts_await_steps("good", 0, WARM_STEPS);
    hosts_await_steps("worse", 0, WARM_STEPS);
    for (int w = 0; w < BAD_WINDOWS; w++) {
        uint64_t own = hosts_steps("worse", 0);
        good_before += steps_in_window("good", 2 * WINDOW_MS);
        own_before += hosts_steps("worse", 0) - own;
        spoil(bad);
        own = hosts_steps("worse", 0);
        good_beside += steps_in_window("good", 2 * WINDOW_MS);
        own_beside += hosts_steps("worse", 0) - own;
        mend(bad);
    }
    printf("note: %s: %lu steps of the good one before, %lu beside; %lu and %lu of the other\n",
           bad->name, (unsigned long)good_before, (unsigned long)good_beside,
           (unsigned long)own_before, (unsigned long)own_beside);
    ck_assert_double_gt((double)good_beside, (double)good_before * asked_pace(0.5));
    if (!bad->cut) ck_assert_uint_gt(own_beside, 0);
    hosts_await_steps("worse", 0, 3); // when its network is good, it is, too
    ask("cluster events");
    expect_said(0);
    expect_unsaid("lost");
    hosts_stop();
    hosts_end(good, "good", 0);
    hosts_end(worse, "worse", 0);
}

SUITE(100, set_up, stop);

/* ---- a node that falls silent ---- */

static void set_up_two(void)
{
    set_up_nodes(2, "lease.timeout=2s");
}

enum { LEASE_MS = 2000, LATE_MS = 3000 };

/* It has a part of no job: those that there are go on as before. */
TEST(a_node_that_falls_silent_is_named_within_its_lease_and_comes_back)
{
    const pid_t good = hosts_train(1, words.trainers_path, "good", 0, 1);
    hosts_await_steps("good", 0, WARM_STEPS);
    hosts_join(&words, 2, 2, "eth0", "7100-7100", false);
    const uint64_t before = steps_in_window("good", 4 * WINDOW_MS);
    spoil_wire(2, "drop");
    const int64_t cut_ms = now_ms();
    const uint64_t beside = steps_in_window("good", 4 * WINDOW_MS);
    await(logged("coordinator.log", "shard shard-2 is away (nothing heard for 2") > 0);
    await(logged("shard-2.log", "no coordinator: nothing heard for 2") > 0);
    ck_assert_int_lt(now_ms() - cut_ms, LEASE_MS + LATE_MS);
    mend_wire();
    await(logged("coordinator.log", "shard shard-2 is up at 10.84.3.2") == 2);
    printf("note: %lu steps before, %lu after a node fell silent\n", (unsigned long)before,
           (unsigned long)beside);
    ck_assert_double_gt((double)beside, (double)before * asked_pace(0.3));
    hosts_stop();
    hosts_end(good, "good", 0);
}

SUITE(100, set_up_two, stop);

int main(int argc, char **argv)
{
    const int worker = hosts_worker(argc, argv);
    return worker >= 0 ? worker : netns_suite_main(hosts_make, hosts_drop);
}
