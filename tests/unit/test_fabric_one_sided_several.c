/* One-sided reads over UCX between two nodes that have several connections with each other, as a session
 * with two jobs has with a shard. */
#include <check.h>
#include <stdlib.h>

#include "tests/support/descriptors.h"
#include "tests/support/fabric_pair.h"
#include "tests/support/suite.h"

enum { BYTES = 1 << 20, BIG = 100000 };

static struct fabric_peer *to_a; // of b

static void open_nodes(void)
{
    pair_open("ucx", &(struct fabric_options) { .one_sided = CAIRN_ONE_SIDED_ON });
    to_a = node_connect_to(&b, &a);
}

/* As of a session with two jobs on one shard: a connection each. */
TEST(two_connections_of_the_same_two_nodes_disturb_each_other_in_nothing)
{
    open_nodes();
    struct node_memory memory = node_memory_make(&a, BYTES);
    node_agree(&a, &b, to_b, memory.at, BIG);
    struct fabric_peer *second = node_connect_to(&a, &b);
    pump_for_ms(&a, &b, 30);
    node_connect_to(&b, &a);
    node_agree(&a, &b, second, memory.at, BIG);
    ck_assert_uint_eq(a.downs + b.downs, 0);
    b.manner = NODE_RECEIVES;
    fill(memory.at, BIG, 3);
    node_send(&a, to_b, 3, memory.at, BIG);
    node_send(&a, second, 3, memory.at, BIG);
    pump(&a, &b, &a.sent, 2);
    fabric_peer_close(second);
    pump_for_ms(&a, &b, 30);
    node_send(&a, to_b, 3, memory.at, BIG);
    pump(&a, &b, &a.sent, 3);
    ck_assert_uint_eq(a.send_errors + b.receive_errors, 0);
    for (int i = 0; i < 3; i++) ck_assert(is_filled(b.arrivals[i].buffer, BIG, 3));
}

/* Two of three connections come and go, in whatever order; the third is not disturbed. Nothing is being read
 * when one ends: UCX 1.13 may crash then (fabric.h). */
static void come_and_go(const struct node_memory *memory, unsigned round)
{
    struct fabric_peer *of_a[2], *of_b[2];
    b.manner = round % 2 == 0 ? NODE_RECEIVES : NODE_DROPS;
    b.arrived = b.received = a.sent = 0;
    for (int i = 0; i < 2; i++) {
        of_a[i] = node_connect_to(&a, &b);
        if (round % 3 == 0) pump_for_ms(&a, &b, 1);
        of_b[i] = node_connect_to(&b, &a);
    }
    pump_for_ms(&a, &b, 3);
    for (unsigned i = 0; i < 10; i++) node_send(&a, of_a[i % 2], 4, memory->at, BIG);
    pump(&a, &b, &a.sent, 10);
    if (b.manner == NODE_RECEIVES) pump(&a, &b, &b.received, 10);
    for (unsigned i = 0; i < 10; i++) {
        if (b.manner == NODE_RECEIVES) ck_assert(is_filled(b.arrivals[i].buffer, BIG, 4));
        free(b.arrivals[i].buffer);
    }
    b.arrived = 0;
    fabric_peer_close(round % 4 < 2 ? of_a[round % 2] : of_b[round % 2]);
    pump_for_ms(&a, &b, round % 3);
    for (int i = 0; i < 2; i++) {
        if (round % 4 >= 2 || i != (int)(round % 2)) fabric_peer_close(of_a[i]);
        if (round % 4 < 2 || i != (int)(round % 2)) fabric_peer_close(of_b[i]);
    }
    pump_for_ms(&a, &b, 3);
}

TEST(two_hundred_connections_that_come_and_go_leave_nothing_behind)
{
    unsigned descriptors = 0;
    open_nodes();
    struct node_memory memory = node_memory_make(&a, BYTES);
    node_agree(&a, &b, to_b, memory.at, BIG);
    fill(memory.at, BIG, 4);
    for (unsigned round = 0; round < 100; round++) {
        come_and_go(&memory, round);
        if (round == 10) descriptors = descriptors_here();
    }
    ck_assert_uint_le(descriptors_here(), descriptors + 8); // UCX closes some of them later
    ck_assert_uint_eq(
        node_stats(&a).sends_now + node_stats(&b).receives_now + node_stats(&b).held_now, 0);
    ck_assert_uint_eq(node_stats(&a).peers_now + node_stats(&b).peers_now, 2);
    b.manner = NODE_RECEIVES;
    a.sent = b.received = 0;
    node_carry(&a, &b, to_b, 4, memory.at, BIG);
    ck_assert_uint_eq(a.send_errors + b.receive_errors, 0);
}

SUITE(30, .tear_down = pair_close);
