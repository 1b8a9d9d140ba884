/* A node that acknowledges nothing of what is sent to it, and says nothing, is given up within the patience
 * of the fabric: also while the connection is being made, and after it was made late. */
#include <arpa/inet.h>
#include <check.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/fabric/ucx.h"
#include "tests/support/fabric_node.h"
#include "tests/support/now.h"
#include "tests/support/suite.h"

enum { PATIENCE_MS = 1000, OVER_MS = 1500, BIG = 200000 };

static struct node here, silent;
static uint8_t bytes[BIG];

static void set_up(void)
{
    node_open(&here, "ucx", NULL);
    node_open(&silent, "ucx", NULL);
    fabric_set_patience(here.fabric, PATIENCE_MS);
}

static void on_down(void *arg, struct fabric_peer *peer, cairn_status why)
{
    (void)arg, (void)peer, (void)why;
    here.downs++;
}

/* NULL: it is refused at once. */
static struct fabric_peer *try_silent(void)
{
    struct fabric_peer *peer = NULL;
    size_t address_bytes;
    const void *address = fabric_own_address(silent.fabric, &address_bytes);
    if (fabric_connect_to(here.fabric, address, address_bytes, on_down, NULL, &peer) != CAIRN_OK)
        return NULL;
    return peer;
}

static void await_down(void)
{
    const int64_t begin_ms = now_ms();
    pump(&here, NULL, &here.downs, 1);
    ck_assert_int_lt(now_ms() - begin_ms, PATIENCE_MS + OVER_MS);
}

TEST_EACH(a_node_that_falls_silent_is_given_up, 0, 2)
{
    struct fabric_peer *there = NULL;
    if (_i == 1) { // the connection is the other one's
        node_pass(&silent, &here, node_connect_to(&silent, &here), 1, NULL, 0);
    }
    there = node_connect_to(&here, &silent);
    node_pass(&here, &silent, there, 1, NULL, 0);
    node_cut_sockets(true);
    node_send(&here, there, 2, bytes, BIG);
    await_down();
}

TEST(a_node_that_is_silent_from_the_first_is_given_up)
{
    node_cut_sockets(true);
    struct fabric_peer *there = try_silent();
    if (there == NULL) return;
    node_send(&here, there, 1, NULL, 0);
    await_down();
}

/* As UCX makes one that it does not wait for, where the way there takes a while. */
TEST(a_connection_is_bounded_and_known_while_it_is_being_made)
{
    struct sockaddr_storage listener = { .ss_family = AF_INET }, own;
    socklen_t in_bytes = sizeof(struct sockaddr_in), own_bytes = sizeof own;
    unsigned unacked_ms = 0;
    socklen_t unacked_bytes = sizeof unacked_ms;
    ((struct sockaddr_in *)&listener)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int listens = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listens, (struct sockaddr *)&listener, in_bytes), 0);
    ck_assert_int_eq(listen(listens, 1), 0);
    ck_assert_int_eq(getsockname(listens, (struct sockaddr *)&listener, &in_bytes), 0);
    node_cut_sockets(true);
    const int next = ucx_socket_next();
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&listener, in_bytes), -1);
    const in_port_t port = ucx_socket_made(next, &listener, PATIENCE_MS);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&own, &own_bytes), 0);
    ck_assert_uint_eq(port, *ucx_port_of(&own));
    ck_assert_int_eq(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacked_ms, &unacked_bytes), 0);
    ck_assert_uint_eq(unacked_ms, PATIENCE_MS);
    close(fd);
    close(listens);
}

/* The way there and back takes longer than a turn of ours. */
TEST(a_node_that_answers_late_and_falls_silent_then_is_given_up)
{
    fabric_set_patience(here.fabric, 2 * PATIENCE_MS);
    node_cut_sockets(true);
    struct fabric_peer *there = try_silent();
    node_cut_sockets(false);
    if (there == NULL) return;
    node_pass(&here, &silent, there, 1, NULL, 0);
    node_cut_sockets(true);
    node_send(&here, there, 2, bytes, BIG);
    const int64_t begin_ms = now_ms();
    pump(&here, NULL, &here.downs, 1);
    ck_assert_int_lt(now_ms() - begin_ms, 2 * PATIENCE_MS + OVER_MS);
}

SUITE(30, set_up, nodes_close);
