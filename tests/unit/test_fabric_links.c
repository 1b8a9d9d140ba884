/* The ucx fabric has one connection to each other node, which all its peers of that node share and which
 * outlives them; what a closed peer has left behind ends in a bounded time, and both nodes meet again at
 * once. */
#include <check.h>

#include "tests/support/fabric_node.h"
#include "tests/support/now.h"
#include "tests/support/suite.h"

enum { BIG = 200000, MEET_MS = 1000, END_MS = 4000 };

/* Two nodes; a sends to b. */
static struct node a, b;
static uint8_t bytes[BIG];

static void open_nodes(void)
{
    node_open(&a, "ucx", NULL);
    node_open(&b, "ucx", NULL);
}

/* Each node sends something that takes its peer's endpoint as well (a rendezvous). */
static void meet(struct fabric_peer *to_b, struct fabric_peer *to_a)
{
    const unsigned got_a = a.received, got_b = b.received;
    const int64_t begin_ms = now_ms();
    a.manner = b.manner = NODE_RECEIVES;
    node_send(&a, to_b, 1, bytes, BIG);
    node_send(&b, to_a, 1, bytes, BIG);
    pump(&a, &b, &a.received, got_a + 1);
    pump(&a, &b, &b.received, got_b + 1);
    ck_assert_int_lt(now_ms() - begin_ms, MEET_MS);
    ck_assert_uint_eq(a.receive_errors + b.receive_errors, 0);
}

TEST(peers_of_one_node_share_a_connection_that_outlives_them)
{
    open_nodes();
    struct fabric_peer *first = node_connect_to(&a, &b), *second = node_connect_to(&a, &b);
    struct fabric_peer *back = node_connect_to(&b, &a);
    meet(first, back);
    meet(second, back);
    fabric_peer_close(first);
    meet(second, back);
    fabric_peer_close(second);
    fabric_peer_close(back);
    pump_for_ms(&a, &b, 20);
    ck_assert_uint_eq(node_stats(&a).peers_now + node_stats(&b).peers_now, 0);
    meet(node_connect_to(&a, &b), node_connect_to(&b, &a));
    ck_assert_uint_eq(node_stats(&a).endpoints_made, 1);
    ck_assert_uint_eq(node_stats(&b).endpoints_made, 1);
    ck_assert_uint_eq(a.downs + b.downs, 0);
}

TEST(a_node_that_ends_takes_all_its_peers_down_and_the_connection_with_them)
{
    open_nodes();
    struct fabric_peer *peers[3];
    for (int i = 0; i < 3; i++) peers[i] = node_connect_to(&a, &b);
    fabric_peer_close(peers[2]);
    node_send(&a, peers[0], 1, NULL, 0);
    pump(&a, &b, &b.arrived, 1);
    node_close(&b);
    pump(&a, NULL, &a.downs, 2);
    ck_assert_uint_eq(node_stats(&a).endpoints_now, 0);
    node_open(&b, "ucx", NULL);
    meet(node_connect_to(&a, &b), node_connect_to(&b, &a));
    ck_assert_uint_eq(a.downs, 2);
}

/* Without a peer nobody is told, and the connection goes all the same. */
TEST(a_node_that_ends_unwatched_leaves_no_connection)
{
    open_nodes();
    struct fabric_peer *peer = node_connect_to(&a, &b);
    node_pass(&a, &b, peer, 1, NULL, 0);
    fabric_peer_close(peer);
    pump_for_ms(&a, &b, 5);
    ck_assert_uint_eq(node_stats(&a).endpoints_now, 1);
    node_close(&b);
    for (int i = 0; i < 1000 && node_stats(&a).endpoints_now != 0; i++) pump_for_ms(&a, NULL, 2);
    ck_assert_uint_eq(node_stats(&a).endpoints_now, 0);
}

/* The connection is being made yet, and who made it is to be said before the message. */
TEST(a_node_may_end_in_the_turn_of_its_first_small_message)
{
    open_nodes();
    node_send(&a, node_connect_to(&a, &b), 1, bytes, 100);
    node_close(&a);
    ck_assert_uint_eq(a.sent, 1);
    pump_for_ms(&b, NULL, 5);
}

enum { MADE_BY_US = 1, HANGS = 2, RECEIVES = 4, CASES = 8 };

/* b holds what a sent, or a receives what b sent; then a closes its peer. b does nothing about it, and may
 * be hung. */
static void leave_something(struct fabric_peer *to_b, struct fabric_peer *to_a, int how)
{
    a.manner = b.manner = NODE_HOLDS;
    if ((how & RECEIVES) == 0) {
        node_pass(&a, &b, to_b, 2, bytes, BIG);
    } else {
        const unsigned arrived = a.arrived;
        node_pass(&b, &a, to_a, 2, bytes, BIG);
        node_receive(&a, arrived); // only b can end it
    }
    fabric_peer_close(to_b);
}

TEST_EACH(what_a_closed_peer_left_behind_ends_and_both_nodes_meet_again_at_once, 0, CASES)
{
    struct fabric_peer *to_b, *to_a, *other;
    if ((_i & RECEIVES) != 0 && (_i & HANGS) == 0) return;      // b would end it
    if ((_i & RECEIVES) != 0 && (_i & MADE_BY_US) == 0) return; // as the sends
    open_nodes();
    if ((_i & MADE_BY_US) != 0) {
        to_b = node_connect_to(&a, &b);
        node_pass(&a, &b, to_b, 1, NULL, 0);
        to_a = node_connect_to(&b, &a);
    } else {
        to_a = node_connect_to(&b, &a);
        node_pass(&b, &a, to_a, 1, NULL, 0);
        to_b = node_connect_to(&a, &b);
    }
    other = node_connect_to(&a, &b);
    meet(other, to_a);
    const unsigned over = a.sent + a.received;
    leave_something(to_b, to_a, _i);
    const int64_t begin_ms = now_ms();
    while (a.sent + a.received == over) {
        pump_for_ms(&a, (_i & HANGS) != 0 ? NULL : &b, 5);
        ck_assert_int_lt(now_ms() - begin_ms, END_MS);
    }
    ck_assert_uint_eq((_i & RECEIVES) != 0 ? a.receive_errors : a.send_errors, 1);
    pump(&a, NULL, &a.downs, 1); // of the other one
    pump(&a, &b, &b.downs, 1);
    a.receive_errors = 0;
    fabric_peer_close(other);
    fabric_peer_close(to_a);
    meet(node_connect_to(&a, &b), node_connect_to(&b, &a));
    ck_assert_uint_eq(a.downs + b.downs, 2);
}

/* More than sockets take: some are on their way, the others wait for the turn in which they leave. */
TEST(small_messages_that_a_node_does_not_take_end_with_their_peer_and_both_meet_again)
{
    enum { COUNT = 4000, SMALL = 8000 };
    open_nodes();
    struct fabric_peer *to_b = node_connect_to(&a, &b), *to_a = node_connect_to(&b, &a);
    meet(to_b, to_a);
    const unsigned over = a.sent;
    for (unsigned i = 0; i < COUNT; i++) {
        node_send(&a, to_b, i, bytes, SMALL);
        if (i % 100 == 99) pump_for_ms(&a, NULL, 0);
    }
    ck_assert_uint_lt(a.sent, over + COUNT);
    fabric_peer_close(to_b);
    const int64_t begin_ms = now_ms();
    while (a.sent < over + COUNT) {
        pump_for_ms(&a, NULL, 5);
        ck_assert_int_lt(now_ms() - begin_ms, END_MS);
    }
    ck_assert_uint_gt(a.send_errors, 0);
    b.manner = NODE_DROPS;
    pump(&a, &b, &b.downs, 1);
    fabric_peer_close(to_a);
    meet(node_connect_to(&a, &b), node_connect_to(&b, &a));
}

SUITE(30, .tear_down = nodes_close);
