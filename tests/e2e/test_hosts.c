/* Three nodes that are joined as README says, a trainer on two of them, and somebody who reads along at the
 * router between them; and the same over all kinds of networks. Needs root.
 *
 * `test_hosts worker ...` is one of the trainer's workers. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "proto/secure/secure.h"
#include "tests/support/overheard.h"
#include "tests/e2e/hosts_scene.h"

static struct hosts_words words;
static struct overheard heard;

/* ---- what is overheard ---- */

enum { GRADIENTS, JOB, SECRET, NODES_WORD, TRAINERS_WORD, TRAINERS_SECRET, PARTS };
#define JOB_NAME "a-job-that-nobody-else-knows"

static struct token of_nodes, of_trainers;

static void begin_to_hear(void)
{
    struct sentence why;
    ck_assert_int_eq(token_parse(words.nodes, &of_nodes, &why), CAIRN_OK);
    ck_assert_int_eq(token_parse(words.trainers, &of_trainers, &why), CAIRN_OK);
    heard = (struct overheard) { .parts = {
                                     [GRADIENTS] = { HOSTS_GRADIENT, HOSTS_GRADIENT_SIZE, 0 },
                                     [JOB] = { JOB_NAME, sizeof JOB_NAME - 1, 0 },
                                     [SECRET] = { of_nodes.secret, sizeof of_nodes.secret, 0 },
                                     [NODES_WORD] = { words.nodes + 8, 24, 0 },
                                     [TRAINERS_WORD] = { words.trainers + 8, 24, 0 },
                                     [TRAINERS_SECRET] = { of_trainers.secret,
                                                           sizeof of_trainers.secret, 0 },
                                 } };
    overheard_begin(&heard, router);
}

/* Neither names nor secrets, and gradients where they are sent in clear alone. */
static void expect_heard(bool in_clear)
{
    overheard_end(&heard);
    printf("note: overheard %lu packets, %lu KiB, %lu missed; gradients in %lu of them\n",
           heard.packets, heard.bytes >> 10, heard.missed, heard.parts[GRADIENTS].times);
    ck_assert_uint_gt(heard.bytes, HOSTS_ELEMS * sizeof(float));
    ck_assert((heard.parts[GRADIENTS].times > 0) == in_clear);
    for (int part = JOB; part < PARTS; part++)
        ck_assert_msg(heard.parts[part].times == 0, "part %d went by in clear", part);
}

/* ---- networks ---- */

static const struct network {
    const char *name;
    bool v6;
    bool named;   /* everybody comes by a name */
    bool moves;   /* and the coordinator moves to another address */
    bool trusted; /* fabric.trust */
    bool walled;  /* the router lets nothing begin but to the coordinator's port and the shards' */
    int networks; /* of each host */
    int shards;   /* on the second node; on the others one */
    const char *devices, *ports;
} networks[] = {
    { "a network that is trusted", .trusted = true },
    { "IPv6 alone", .v6 = true },
    { "names, and a coordinator that moves", .named = true, .moves = true },
    { "names of IPv6", .v6 = true, .named = true, .moves = true },
    { "one port a shard, and none of a trainer", .walled = true },
    { "a range of ports for two shards of a node", .walled = true, .shards = 2,
      .ports = "7100-7101" },
    { "two networks", .networks = 2, .devices = "eth0;eth1" },
    { "two networks, data on the second", .v6 = true, .networks = 2, .devices = "eth1" },
};
enum { NETWORKS = sizeof networks / sizeof *networks };

/* The name leads to the first node's address of that end. */
static void name_coordinator(const char *ip)
{
    char line[128];
    snprintf(line, sizeof line, "127.0.0.1 localhost\n%s cairn-control\n", ip);
    for (int h = 0; h < HOSTS; h++) ck_assert(netns_hosts(hosts[h], line));
}

static void raise_wall(const struct network *network)
{
    const char *port = strrchr(cluster.address, ':') + 1, *family = network->v6 ? "ip6" : "ip";
    ck_assert(
        netns_nft(router,
                  "add table inet wall; add chain inet wall way { type filter hook forward "
                  "priority 0; policy drop; }; add rule inet wall way ct state "
                  "established,related accept; add rule inet wall way %s daddr %s tcp dport "
                  "%s accept; add rule inet wall way oifname != \"n%deth0\" tcp dport %s accept",
                  family, hosts_ip(0, 0), port, OUTSIDE + 1,
                  network->ports != NULL ? network->ports : "7100"));
}

static void start_cluster(const struct network *network)
{
    static const char *first_node[1] = { hosts[0] };
    static char devices[64], ports[64], shards[64];
    static char ip[72];
    const int second_has = network->shards > 0 ? network->shards : 1;
    const char *on = network->devices != NULL ? network->devices : "eth0",
               *range = network->ports != NULL ? network->ports : "7100-7100";
    hosts_settle(network->v6, network->networks > 0 ? network->networks : 1);
    snprintf(ip, sizeof ip, network->v6 ? "[%s]" : "%s", hosts_ip(0, 0));
    if (network->named) name_coordinator(hosts_ip(0, 0));
    snprintf(devices, sizeof devices, "fabric.device=%s", on);
    snprintf(ports, sizeof ports, "fabric.port_range=%s", range);
    snprintf(shards, sizeof shards, "cluster.shards=%d", 2 + second_has);
    unsetenv("CAIRN_FABRIC_DEVICE");
    start(1, .coordinator_set = SETTINGS("lease.heartbeat=200ms", "lease.timeout=4s", shards),
          .shard_set = SETTINGS(devices, ports,
                                network->trusted ? "fabric.trust=yes" : "fabric.trust=no"),
          .shard_netns = first_node, .coordinator_ip = ip,
          .coordinator_name = network->named ? "cairn-control" : NULL);
    if (network->walled) raise_wall(network);
    hosts_init(&words);
    begin_to_hear();
    for (int s = 1; s < 2 + second_has; s++)
        hosts_join(&words, s <= second_has ? 1 : 2, s, on, range, network->trusted);
}

/* To another address of the first node, with its store; who comes by the name finds it there. */
static void move_coordinator(const struct network *network)
{
    char before[96], other[64];
    snprintf(other, sizeof other, network->v6 ? "fd84:1::3" : "10.84.1.3");
    snprintf(before, sizeof before, "%s", strrchr(cluster.listens, ':'));
    kill_coordinator();
    ck_assert(netns_ip("-n %s address add %s/%s dev eth0%s", hosts[0], other,
                       network->v6 ? "64" : "24", network->v6 ? " nodad" : ""));
    snprintf(cluster.listens, sizeof cluster.listens, network->v6 ? "[%s]%s" : "%s%s", other,
             before);
    name_coordinator(other);
    restart_coordinator();
}

/* By the words that `cairn cluster init` printed alone; a snapshot is taken, and nothing is overheard. */
TEST_EACH(three_nodes_join_train_and_take_a_snapshot_over_a_network_of_each_kind, 0, NETWORKS)
{
    const struct network *network = &networks[_i];
    printf("note: %s\n", network->name);
    start_cluster(network);
    const pid_t worker = hosts_train(OUTSIDE, words.trainers_path, JOB_NAME, 0, 1);
    hosts_await_steps(JOB_NAME, 0, 5);
    expect_heard(network->trusted);
    if (network->moves) {
        move_coordinator(network);
        await_unsaid("away", "job show " JOB_NAME);
        hosts_await_steps(JOB_NAME, 0, 5);
    }
    ask("cluster status");
    expect_said(0, network->trusted ? " stream" : " sealed");
    if (!network->trusted) expect_unsaid(" stream");
    says(0, "step-", "snapshot list " JOB_NAME);
    hosts_stop();
    hosts_end(worker, JOB_NAME, 0);
    ck_assert_ptr_nonnull(
        strstr(hosts_said(JOB_NAME, 0), network->trusted ? " stream" : " sealed"));
    ck_assert_ptr_nonnull(strstr(hosts_said(JOB_NAME, 0), "snapshot step-"));
}

SUITE(100, .tear_down = stop);

int main(int argc, char **argv)
{
    const int worker = hosts_worker(argc, argv);
    return worker >= 0 ? worker : netns_suite_main(hosts_make, hosts_drop);
}
