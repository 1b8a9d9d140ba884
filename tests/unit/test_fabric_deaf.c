/* A peer to whose port nothing gets through, and nobody says so: as behind a firewall that drops. The port is
 * deaf by a filter of the socket. */
#include <check.h>
#include <dirent.h>
#include <linux/filter.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/fabric/ucx.h"
#include "tests/support/descriptors.h"
#include "tests/support/fabric_node.h"
#include "tests/support/now.h"
#include "tests/support/suite.h"

static struct node here, deaf;

/* The socket that listens; there is but one. */
static int find_listener(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int found = -1;
    ck_assert_ptr_nonnull(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        int listens = 0;
        socklen_t bytes = sizeof listens;
        const int fd = atoi(entry->d_name);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens) found = fd;
    }
    closedir(folder);
    ck_assert_int_ge(found, 0);
    return found;
}

static void make_deaf(int listener)
{
    struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    const struct sock_fprog program = { .len = 1, .filter = &nothing };
    ck_assert_int_eq(setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program),
                     0);
}

static void make_hear(int listener)
{
    const int unused = 0;
    ck_assert_int_eq(setsockopt(listener, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused), 0);
}

static int listener; /* of `deaf` */

static void set_up(void)
{
    node_open(&deaf, "ucx", NULL);
    listener = find_listener();
    node_open(&here, "ucx", NULL);
    make_deaf(listener);
}

/* NULL: it cannot be reached. */
static struct fabric_peer *try_address(const void *address, size_t bytes, int64_t *took_ms)
{
    struct fabric_peer *peer = NULL;
    const int64_t begin_ms = now_ms();
    const cairn_status status = fabric_connect_to(here.fabric, address, bytes, NULL, NULL, &peer);
    *took_ms = now_ms() - begin_ms;
    ck_assert_int_eq(status, peer != NULL ? CAIRN_OK : CAIRN_ERR_UNREACHABLE);
    return peer;
}

static struct fabric_peer *try_deaf(int64_t *took_ms)
{
    size_t bytes;
    const void *address = fabric_own_address(deaf.fabric, &bytes);
    return try_address(address, bytes, took_ms);
}

TEST(a_peer_that_does_not_answer_holds_nobody_up)
{
    int64_t first_ms, took_ms, all_ms = 0;
    ck_assert_ptr_null(try_deaf(&first_ms));
    ck_assert_int_lt(first_ms, 2000); // UCX waits 3 s
    for (int i = 0; i < 30; i++, all_ms += took_ms) ck_assert_ptr_null(try_deaf(&took_ms));
    ck_assert_int_lt(all_ms, 2000); // it is not waited for again, 100 ms each time
}

TEST(a_peer_that_answers_late_is_connected)
{
    struct fabric_peer *peer = NULL;
    int64_t took_ms;
    ck_assert_ptr_null(try_deaf(&took_ms));
    make_hear(listener);
    for (const int64_t end_ms = now_ms() + NODE_DEADLINE_MS; peer == NULL; poll(NULL, 0, 10)) {
        ck_assert_int_lt(now_ms(), end_ms);
        peer = try_deaf(&took_ms);
    }
    node_pass(&here, &deaf, peer, 1, NULL, 0);
}

/* True if a connection of ours to the port of `deaf` is there. */
static bool is_answered(void)
{
    struct sockaddr_storage port, peer;
    socklen_t bytes = sizeof port;
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&port, &bytes), 0);
    for (int fd = 3; fd < 1024; fd++) {
        socklen_t peer_bytes = sizeof peer;
        if (getpeername(fd, (struct sockaddr *)&peer, &peer_bytes) == 0 &&
            *ucx_port_of(&peer) == *ucx_port_of(&port))
            return true;
    }
    return false;
}

TEST(an_answer_to_an_earlier_try_says_nothing_of_now)
{
    int64_t took_ms;
    ck_assert_ptr_null(try_deaf(&took_ms));
    make_hear(listener);
    for (const int64_t end_ms = now_ms() + NODE_DEADLINE_MS; !is_answered(); poll(NULL, 0, 1))
        ck_assert_int_lt(now_ms(), end_ms);
    make_deaf(listener);
    for (int i = 0; i < 3; i++) {
        ck_assert_ptr_null(try_deaf(&took_ms));
        ck_assert_int_lt(took_ms, 2000); // UCX waits 3 s
    }
    make_hear(listener); // and nobody leaves it alone for that
    struct fabric_peer *peer = NULL;
    const int64_t begin_ms = now_ms();
    while ((peer = try_deaf(&took_ms)) == NULL) {
        ck_assert_int_lt(now_ms() - begin_ms, 5000);
        poll(NULL, 0, 10);
    }
}

TEST(what_it_says_is_heard_all_the_same)
{
    int64_t took_ms;
    ck_assert_ptr_null(try_deaf(&took_ms));
    const int64_t begin_ms = now_ms();
    node_pass(&deaf, &here, node_connect_to(&deaf, &here), 1, NULL, 0);
    ck_assert_int_lt(now_ms() - begin_ms, 2000); // UCX connects to nobody for that
}

/* UCX keeps a socket of each try. */
TEST(a_peer_that_is_gone_costs_no_descriptor)
{
    uint8_t address[CAIRN_FABRIC_ADDRESS_MAX];
    int64_t took_ms;
    size_t bytes;
    const void *its = fabric_own_address(deaf.fabric, &bytes);
    memcpy(address, its, bytes);
    node_close(&deaf);
    const unsigned before = descriptors_here();
    for (int i = 0; i < 3; i++) ck_assert_ptr_null(try_address(address, bytes, &took_ms));
    ck_assert_uint_eq(descriptors_here(), before);
}

/* As of a node that does not find its port: without what stands before the place. */
static const void *address_without_port(size_t *bytes_out)
{
    static struct fabric whole;
    struct fabric_place place;
    size_t bytes, raw_bytes;
    const void *address = fabric_own_address(deaf.fabric, &bytes);
    const uint8_t *raw = fabric_open_part(address, bytes, "ucx", &raw_bytes);
    uint8_t cut[CAIRN_FABRIC_ADDRESS_MAX];
    const size_t port_bytes = 10, end = fabric_find_place(raw, raw_bytes, &place) - port_bytes;
    memcpy(cut, raw, end);
    memcpy(cut + end, raw + end + port_bytes, raw_bytes - end - port_bytes);
    whole.backend = deaf.fabric->backend;
    ck_assert_int_eq(fabric_set_address(&whole, cut, raw_bytes - port_bytes), CAIRN_OK);
    *bytes_out = whole.address_bytes;
    return whole.address;
}

TEST(what_ucx_waited_for_in_vain_is_left_alone)
{
    int64_t first_ms, took_ms;
    size_t bytes;
    const void *address = address_without_port(&bytes);
    if (ucx_connects_on_its_own()) return; // it waits for nobody
    ck_assert_ptr_null(try_address(address, bytes, &first_ms));
    ck_assert_int_gt(first_ms, 500); // else nothing is shown
    ck_assert_ptr_null(try_address(address, bytes, &took_ms));
    ck_assert_int_lt(took_ms, first_ms / 2);
}

SUITE(60, set_up, nodes_close);
