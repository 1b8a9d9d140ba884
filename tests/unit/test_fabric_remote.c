/* The fabrics "stream" and "sealed": who gets in, by which connections, and what those find who lie. */
#include <arpa/inet.h>
#include <check.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/fabric/remote.h"
#include "tests/support/cluster.h"
#include "tests/support/fabric_node.h"
#include "tests/support/netns.h"
#include "tests/support/now.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

enum { BIG = 1 << 20, KINDS = 2, WAIT_MS = 8000 };

static const char *const kinds[KINDS] = { "stream", "sealed" };
static struct node a, b, c;
static uint8_t bytes[BIG];

/* ---- addresses that are not quite right ---- */

/* An address in its envelope, as another kind of damage than the envelope's checksum finds. */
struct forged {
    uint8_t bytes[CAIRN_FABRIC_ADDRESS_MAX];
    size_t count;
    struct remote_address head;
    struct remote_ip ips[REMOTE_IPS_MAX];
};

static void forge_begin(struct forged *forged, const struct node *of)
{
    size_t count;
    const uint8_t *raw = fabric_open_address(of->fabric, of->fabric->address,
                                             of->fabric->address_bytes, &count);
    memcpy(&forged->head, raw, sizeof forged->head);
    memcpy(forged->ips, raw + sizeof forged->head, forged->head.count * sizeof *forged->ips);
}

static void forge_end(struct forged *forged, struct node *of)
{
    uint8_t raw[sizeof forged->head + sizeof forged->ips], kept[CAIRN_FABRIC_ADDRESS_MAX];
    struct fabric *fabric = of->fabric;
    const size_t kept_bytes = fabric->address_bytes;
    const size_t count = sizeof forged->head + forged->head.count * sizeof *forged->ips;
    memcpy(kept, fabric->address, kept_bytes);
    memcpy(raw, &forged->head, sizeof forged->head);
    memcpy(raw + sizeof forged->head, forged->ips, sizeof forged->ips);
    ck_assert_int_eq(fabric_set_address(fabric, raw, count), CAIRN_OK);
    memcpy(forged->bytes, fabric->address, fabric->address_bytes);
    forged->count = fabric->address_bytes;
    memcpy(fabric->address, kept, kept_bytes);
    fabric->address_bytes = kept_bytes;
}

/* The node's address, where nobody listens at any of its ports. */
static void forge_shut(struct forged *forged, struct node *of)
{
    forge_begin(forged, of);
    for (int i = 0; i < forged->head.count; i++) forged->ips[i].port = 1;
    forge_end(forged, of);
}

/* ---- connections ---- */

TEST_EACH(peers_of_one_node_share_its_link_and_go_down_together, 0, KINDS)
{
    node_open(&a, kinds[_i], NULL);
    node_open(&b, kinds[_i], NULL);
    struct fabric_peer *first = node_connect_to(&a, &b), *second = node_connect_to(&a, &b);
    node_carry(&a, &b, first, 1, bytes, BIG);
    node_carry(&a, &b, second, 2, bytes, 100);
    node_carry(&b, &a, node_connect_to(&b, &a), 3, bytes, BIG);
    ck_assert_uint_eq(node_stats(&a).endpoints_made, 1);
    ck_assert_uint_eq(node_stats(&b).endpoints_made, 1);
    fabric_close(b.fabric);
    b.fabric = NULL;
    pump(&a, NULL, &a.downs, 2);
}

TEST_EACH(a_node_without_an_open_port_is_reached_by_the_connections_that_it_made, 0, KINDS)
{
    struct forged shut;
    node_open(&a, kinds[_i], NULL);
    node_open(&b, kinds[_i], NULL);
    forge_shut(&shut, &b);
    struct fabric_peer *to_b = node_connect(&a, shut.bytes, shut.count);
    node_send(&a, to_b, 1, bytes, 100); // waits
    pump_for_ms(&a, &b, 50);
    ck_assert_uint_eq(b.arrived, 0);
    node_carry(&b, &a, node_connect_to(&b, &a), 2, bytes, BIG);
    pump(&a, &b, &b.arrived, 1);
    node_carry(&a, &b, to_b, 3, bytes, BIG);
    ck_assert_uint_eq(a.downs + b.downs, 0);
}

TEST_EACH(two_that_connect_to_each_other_at_once_meet_on_one_link, 0, KINDS)
{
    for (unsigned i = 0; i < 20; i++) {
        node_open(&a, kinds[_i], NULL);
        node_open(&b, kinds[_i], NULL);
        struct fabric_peer *to_b = node_connect_to(&a, &b), *to_a = node_connect_to(&b, &a);
        node_send(&a, to_b, 1, bytes, 10);
        node_send(&b, to_a, 2, bytes, 10);
        pump(&a, &b, &a.arrived, 1);
        pump(&a, &b, &b.arrived, 1);
        pump_for_ms(&a, &b, 20);
        ck_assert_uint_eq(a.downs + b.downs, 0);
        ck_assert_uint_eq(node_stats(&a).endpoints_now, 1);
        node_close(&a);
        node_close(&b);
    }
}

TEST_EACH(a_port_range_of_one_port_does_and_is_kept, 0, KINDS)
{
    struct forged address;
    char range[32];
    node_open(&a, kinds[_i], NULL);
    forge_begin(&address, &a);
    node_close(&a); // its port is free again
    snprintf(range, sizeof range, "%u-%u", address.ips[0].port, address.ips[0].port);
    node_open(&b, kinds[_i], &(struct fabric_options) { .port_range = range });
    forge_begin(&address, &b);
    for (int i = 0; i < address.head.count; i++)
        ck_assert_uint_eq(address.ips[i].port, (unsigned)atoi(range));
    node_open_fails(kinds[_i], &(struct fabric_options) { .port_range = range },
                    CAIRN_ERR_UNREACHABLE, "can be listened on");
    node_open(&a, kinds[_i], NULL);
    node_carry(&a, &b, node_connect_to(&a, &b), 1, bytes, BIG);
}

TEST_EACH(either_family_of_addresses_leads_there, 0, 2 * KINDS)
{
    struct forged one;
    const int family = _i / KINDS == 0 ? 4 : 6;
    node_open(&a, kinds[_i % KINDS], NULL);
    node_open(&b, kinds[_i % KINDS], NULL);
    forge_begin(&one, &b);
    for (int i = 0; i < one.head.count; i++)
        if (one.ips[i].family == family) one.ips[0] = one.ips[i];
    if (one.ips[0].family != family) return; // this host has none of these
    one.head.count = 1;
    forge_end(&one, &b);
    node_carry(&a, &b, node_connect(&a, one.bytes, one.count), 1, bytes, BIG);
}

TEST_EACH(addresses_are_tried_in_turn, 0, KINDS)
{
    struct forged both;
    node_open(&a, kinds[_i], NULL);
    node_open(&b, kinds[_i], NULL);
    forge_begin(&both, &b);
    both.ips[1] = both.ips[0];
    both.ips[0].port = 1;
    both.head.count = 2;
    forge_end(&both, &b);
    node_carry(&a, &b, node_connect(&a, both.bytes, both.count), 1, bytes, BIG);
}

/* The kernel still asks whether another host has it. */
TEST(an_ipv6_address_that_is_tentative_is_listened_on)
{
    if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0 || !netns_ip("link set lo up")) return;
    if (!netns_ip("link add e0 type veth peer name f0")) return;
    ck_assert(netns_ip("link set f0 up") && netns_ip("link set e0 up"));
    ck_assert(netns_ip("address add 10.8.0.1/24 dev e0"));
    ck_assert(netns_ip("-6 address add fd00:8::1/64 dev e0"));
    node_open(&a, "sealed", &(struct fabric_options) { .net_devices = "e0" });
    ck_assert_ptr_nonnull(strstr(fabric_describe(a.fabric), "fd00:8::1"));
}

TEST_EACH(an_address_that_does_not_answer_delays_nobody, 0, KINDS)
{
    enum { FILLERS = 3, SLOW_MS = 1200 };
    struct forged both;
    struct sockaddr_in deaf = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t count = sizeof deaf;
    int fds[1 + FILLERS];
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert(bind(fds[0], (struct sockaddr *)&deaf, count) == 0 && listen(fds[0], 0) == 0 &&
              getsockname(fds[0], (struct sockaddr *)&deaf, &count) == 0);
    for (int i = 1; i <= FILLERS; i++) { // its queue is full: who connects now is not answered
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(fds[i], (struct sockaddr *)&deaf, count);
    }
    node_open(&a, kinds[_i], NULL);
    node_open(&b, kinds[_i], NULL);
    forge_begin(&both, &b);
    both.ips[1] = both.ips[0];
    both.ips[0].port = ntohs(deaf.sin_port);
    both.head.count = 2;
    forge_end(&both, &b);
    const int64_t begin_ms = now_ms();
    struct fabric_peer *to_b = node_connect(&a, both.bytes, both.count);
    node_carry(&a, &b, to_b, 1, bytes, BIG);
    ck_assert_int_lt(now_ms() - begin_ms, SLOW_MS);
    pump_for_ms(&a, &b, 2000); // the attempt that lost ends without consequences
    node_carry(&a, &b, to_b, 2, bytes, BIG);
    for (int i = 0; i <= FILLERS; i++) close(fds[i]);
}

/* Only the first connection finds a descriptor. */
TEST(lanes_and_a_pulse_that_could_not_be_made_are_made_later)
{
    struct rlimit kept, few;
    int fd;
    const pid_t pid = node_fork(&fd);
    if (pid == 0) {
        node_open(&b, "stream", NULL);
        node_tell_address(fd, &b);
        pump_for_ms(&b, NULL, NODE_DEADLINE_MS);
        _exit(0);
    }
    node_open(&a, "stream", NULL);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &kept), 0);
    struct fabric_peer *to_b = node_hear_address(fd, &a);
    const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(next);
    few = kept;
    few.rlim_cur = (rlim_t)next;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    const struct remote_link *link = LIST_FIRST(&remote_of(a.fabric)->links);
    for (int i = 0; i < WAIT_MS && link->up_count == 0; i++) pump_for_ms(&a, NULL, 1);
    ck_assert_uint_eq(link->up_count, 1);
    pump_for_ms(&a, NULL, 200);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &kept), 0);
    ck_assert_uint_eq(link->conn_count, 1);
    for (int i = 0; i < WAIT_MS && link->pulse_count + link->up_count < REMOTE_LANES + 1; i++)
        pump_for_ms(&a, NULL, 1);
    ck_assert_uint_eq(link->up_count, REMOTE_LANES);
    ck_assert_uint_eq(link->pulse_count, 1);
    node_send(&a, to_b, 1, NULL, 0);
    pump(&a, NULL, &a.sent, 1);
    node_kill(pid, fd);
}

/* ---- a forked child ---- */

enum { SOCKETS_MAX = 64 };
static int sockets[SOCKETS_MAX];
static unsigned socket_count;

static void note_socket(void *arg, int fd, bool is_open)
{
    (void)arg;
    ck_assert_uint_lt(socket_count, SOCKETS_MAX);
    if (is_open) sockets[socket_count++] = fd;
    for (unsigned i = 0; i < socket_count && !is_open; i++)
        if (sockets[i] == fd) sockets[i] = sockets[--socket_count], is_open = true;
    ck_assert(is_open); // it was told of before
}

static bool has_tcp_socket(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        int protocol = 0;
        socklen_t count = sizeof protocol;
        if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &count) == 0 &&
            protocol == IPPROTO_TCP)
            return true;
    }
    return false;
}

TEST_EACH(a_forked_child_can_close_every_socket_of_the_fabric, 0, KINDS)
{
    const struct fabric_options options = { .on_socket = note_socket };
    int status;
    node_open(&a, kinds[_i], &options);
    node_open(&b, kinds[_i], &options);
    node_carry(&a, &b, node_connect_to(&a, &b), 1, bytes, BIG);
    pump_for_ms(&a, &b, 100); // all connections are up
    const pid_t pid = fork();
    if (pid == 0) {
        if (!has_tcp_socket()) _exit(1);
        for (unsigned i = 0; i < socket_count; i++) close(sockets[i]);
        _exit(has_tcp_socket() ? 2 : 0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    node_close(&a);
    node_close(&b);
    ck_assert_uint_eq(socket_count, 0);
}

/* ---- who gets in ---- */

TEST_EACH(who_has_another_key_or_secret_is_not_reached_and_learns_nothing, 0, 2 * KINDS)
{
    struct forged wrong;
    node_open(&a, kinds[_i % KINDS], NULL);
    node_open(&b, kinds[_i % KINDS], NULL);
    fabric_set_patience(a.fabric, 1000);
    forge_begin(&wrong, &b);
    (_i < KINDS ? wrong.head.key : wrong.head.secret)[5] ^= 1;
    forge_end(&wrong, &b);
    struct fabric_peer *peer = node_connect(&a, wrong.bytes, wrong.count);
    node_send(&a, peer, 1, bytes, 100);
    pump(&a, &b, &a.downs, 1);
    ck_assert_int_eq(a.why_down, CAIRN_ERR_UNREACHABLE);
    ck_assert_uint_eq(b.arrived, 0);
    if (_i >= KINDS) ck_assert_uint_gt(node_stats(&b).connections_refused, 0);
}

TEST_EACH(a_fabric_in_clear_and_a_sealed_one_do_not_take_each_other, 0, KINDS)
{
    struct forged other;
    node_open(&a, kinds[_i], NULL);
    node_open(&b, kinds[1 - _i], NULL);
    fabric_set_patience(a.fabric, 1000);
    forge_begin(&other, &b);
    forge_end(&other, &a); // in an envelope of the other kind
    node_send(&a, node_connect(&a, other.bytes, other.count), 1, bytes, 100);
    size_t count;
    memcpy(&other.head,
           fabric_open_address(a.fabric, a.fabric->address, a.fabric->address_bytes, &count),
           sizeof other.head);
    pump(&a, &b, &a.downs, 1);
    ck_assert_uint_eq(b.arrived, 0);
}

TEST_EACH(a_strict_fabric_hears_only_nodes_that_it_was_told_of, 0, KINDS)
{
    const struct fabric_options strict = { .is_strict = true };
    node_open(&a, kinds[_i], NULL);
    node_open(&b, kinds[_i], &strict);
    struct fabric_peer *to_b = node_connect_to(&a, &b);
    node_send(&a, to_b, 1, bytes, 100);
    pump_for_ms(&a, &b, 100);
    ck_assert_uint_eq(b.arrived, 0);
    struct fabric_peer *to_a = node_connect_to(&b, &a); // now it is told
    pump(&a, &b, &b.arrived, 1);
    node_carry(&b, &a, to_a, 2, bytes, BIG);
    fabric_peer_close(to_a); // and now it is not any more
    pump(&a, &b, &a.downs, 1);
    fabric_peer_close(to_b);
    const unsigned arrived = b.arrived;
    node_send(&a, node_connect_to(&a, &b), 3, bytes, 100);
    pump_for_ms(&a, &b, 200);
    ck_assert_uint_eq(b.arrived, arrived);
}

/* As a member that could not be reached when it joined. */
TEST_EACH(a_strict_fabric_hears_a_node_that_it_expects_and_cuts_it_off_when_it_does_not, 0, KINDS)
{
    const struct fabric_options strict = { .is_strict = true };
    size_t count;
    node_open(&a, kinds[_i], &strict);
    node_open(&b, kinds[_i], &strict);
    const void *address = fabric_own_address(a.fabric, &count);
    struct fabric_peer *to_b = node_connect_to(&a, &b);
    node_send(&a, to_b, 1, bytes, 100);
    pump_for_ms(&a, &b, 100); // it waits
    ck_assert_uint_eq(b.arrived, 0);
    ck_assert_int_eq(fabric_expect(b.fabric, address, count), CAIRN_OK);
    ck_assert_int_eq(fabric_expect(b.fabric, address, count), CAIRN_OK);
    pump(&a, &b, &b.arrived, 1);
    fabric_peer_close(node_connect_to(&b, &a));
    fabric_forget(b.fabric, address, count);
    pump_for_ms(&a, &b, 800);
    ck_assert_uint_eq(a.downs, 0); // it is expected once more
    node_carry(&a, &b, to_b, 2, bytes, BIG);
    fabric_forget(b.fabric, address, count);
    pump(&a, &b, &a.downs, 1);
}

TEST_EACH(the_last_message_before_a_peer_is_closed_arrives, 0, KINDS)
{
    const struct fabric_options strict = { .is_strict = true };
    node_open(&a, kinds[_i], &strict);
    node_open(&b, kinds[_i], &strict);
    struct fabric_peer *to_b = node_connect_to(&a, &b);
    (void)node_connect_to(&b, &a);
    node_pass(&a, &b, to_b, 1, bytes, 100);
    node_send(&a, to_b, 2, bytes, 100);
    fabric_peer_close(to_b);
    pump(&a, &b, &b.arrived, 2);
    pump(&a, &b, &b.downs, 1);
}

/* ---- strangers ---- */

static int dial(const struct node *to)
{
    struct forged address;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    forge_begin(&address, to);
    at.sin_port = htons(address.ips[0].port);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

/* Drives the node until the other end of the socket is closed; nothing must come from there before. */
static void await_end(struct node *node, int fd, bool is_silent)
{
    uint8_t byte;
    for (int i = 0; i < WAIT_MS; i++) {
        struct pollfd wait = { .fd = fd, .events = POLLIN };
        pump_for_ms(node, NULL, 1);
        if (poll(&wait, 1, 0) <= 0) continue;
        const ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
        if (got <= 0) return;
        ck_assert(!is_silent);
    }
    ck_abort_msg("it is not closed");
}

TEST_EACH(garbage_gets_no_answer_and_ends_at_once, 0, KINDS)
{
    node_open(&a, kinds[_i], NULL);
    node_open(&b, kinds[_i], NULL);
    struct fabric_peer *to_a = node_connect_to(&b, &a);
    node_pass(&b, &a, to_a, 1, NULL, 0);
    for (int n = 0; n < 100; n++) {
        const int fd = dial(&a);
        for (size_t i = 0; i < 512; i++) bytes[i] = (uint8_t)random_next();
        if (n % 2 == 0) memcpy(bytes, "CAIRNSE1\1\0\2\0", 12);
        ck_assert_int_eq(send(fd, bytes, 512, MSG_NOSIGNAL), 512);
        await_end(&a, fd, true);
        close(fd);
    }
    ck_assert_uint_ge(node_stats(&a).connections_refused, 100);
    node_pass(&b, &a, to_a, 2, NULL, 0);
}

TEST_EACH(those_who_say_nothing_are_few_end_in_time_and_keep_nobody_out, 0, KINDS)
{
    enum { SILENT = 200 };
    int fds[SILENT];
    node_open(&a, kinds[_i], NULL);
    node_open(&b, kinds[_i], NULL);
    const struct remote_fabric *fabric = remote_of(a.fabric);
    for (int i = 0; i < SILENT; i++) {
        fds[i] = dial(&a);
        pump_for_ms(&a, NULL, 1);
        ck_assert_uint_le(fabric->stranger_count, REMOTE_STRANGERS_MAX);
    }
    const int64_t begin_ms = now_ms();
    node_carry(&b, &a, node_connect_to(&b, &a), 1, bytes, BIG);
    ck_assert_int_lt(now_ms() - begin_ms, 2000);
    while (fabric->stranger_count > 0 && now_ms() - begin_ms < 2 * REMOTE_STRANGER_MS)
        pump_for_ms(&a, &b, 50);
    ck_assert_uint_eq(fabric->stranger_count, 0);
    for (int i = 0; i < SILENT; i++) close(fds[i]);
}

/* ---- members that lie ---- */

/* A member that does its handshake by hand, and then says what it wants. */
struct liar {
    int fd;
    struct curve_key own;
    uint64_t incarnation; /* 0: 77 */
    struct handshake_result keys;
    struct sealed sealed;
};

static void read_all(struct node *node, int fd, void *to, size_t count)
{
    for (size_t at = 0; at < count;) {
        const ssize_t got = recv(fd, (uint8_t *)to + at, count - at, MSG_DONTWAIT);
        ck_assert(got != 0);
        if (got > 0)
            at += (size_t)got;
        else
            pump_for_ms(node, NULL, 1);
    }
}

static void liar_say_hello(struct liar *liar)
{
    struct remote_hello hello = { .version = 1, .incarnation = 77, .flags = 1 };
    if (liar->incarnation != 0) hello.incarnation = liar->incarnation;
    memcpy(hello.magic, "CAIRNST1", 8);
    crypto_generichash(hello.mac, sizeof hello.mac, (const uint8_t *)&hello,
                       offsetof(struct remote_hello, mac), liar->keys.send_key, 32);
    ck_assert_int_eq(send(liar->fd, &hello, sizeof hello, 0), sizeof hello);
}

/* Proves that it knows the secret, under the key liar->own, and says hello. */
static void liar_knock(struct liar *liar, struct node *to, bool is_sealed)
{
    struct forged address;
    struct handshake *handshake;
    struct sentence why;
    cairn_status status;
    const char *context = is_sealed ? "cairn fabric sealed 1" : "cairn fabric stream 1";
    forge_begin(&address, to);
    struct handshake_options options = { .is_initiator = true,
                                         .purpose = CAIRN_PURPOSE_DATA,
                                         .context = context,
                                         .context_bytes = strlen(context),
                                         .own = &liar->own,
                                         .expected = address.head.key };
    memcpy(options.key_id, remote_of(to->fabric)->key_id, sizeof options.key_id);
    memcpy(options.secret, address.head.secret, sizeof options.secret);
    ck_assert_int_eq(handshake_open(&options, &handshake), CAIRN_OK);
    liar->fd = dial(to);
    enum handshake_state state = CAIRN_HANDSHAKE_GOES_ON;
    while (state == CAIRN_HANDSHAKE_GOES_ON) {
        size_t count, used;
        uint8_t byte;
        const uint8_t *out = handshake_to_send(handshake, &count);
        if (count > 0) ck_assert_int_eq(send(liar->fd, out, count, 0), (ssize_t)count);
        read_all(to, liar->fd, &byte, 1);
        state = handshake_take(handshake, &byte, 1, &used, &status, &why);
    }
    ck_assert_int_eq(state, CAIRN_HANDSHAKE_DONE);
    size_t count;
    const uint8_t *out = handshake_to_send(handshake, &count);
    ck_assert_int_eq(send(liar->fd, out, count, 0), (ssize_t)count);
    handshake_result(handshake, &liar->keys);
    handshake_close(handshake);
    liar_say_hello(liar);
}

static void liar_open(struct liar *liar, struct node *to, bool is_sealed)
{
    struct remote_hello hello;
    liar->incarnation = 0;
    curve_key_make(&liar->own);
    liar_knock(liar, to, is_sealed);
    read_all(to, liar->fd, &hello, sizeof hello);
    if (is_sealed)
        ck_assert_int_eq(sealed_begin(&liar->sealed, sealed_has_aes(), &liar->keys), CAIRN_OK);
}

/* Says frames, sealed if that is how they go. */
static void liar_say(struct liar *liar, bool is_sealed, const void *what, size_t count)
{
    uint8_t record[1024];
    if (is_sealed) {
        ck_assert(sealed_put(&liar->sealed, SEALED_FRAMES, what, count, record));
        what = record;
        count += SEALED_EXTRA;
    }
    ck_assert_int_eq(send(liar->fd, what, count, MSG_NOSIGNAL), (ssize_t)count);
}

TEST_EACH(those_who_invent_keys_keep_nobody_from_waiting, 0, 2 * KINDS)
{
    enum { LIARS = REMOTE_WAITING_MAX + 6 };
    const struct fabric_options strict = { .is_strict = true };
    static struct liar liars[LIARS];
    const bool is_one_key = _i >= KINDS, is_sealed = _i % KINDS == 1;
    node_open(&a, kinds[_i % KINDS], &strict);
    node_open(&b, kinds[_i % KINDS], NULL);
    const struct remote_fabric *fabric = remote_of(a.fabric);
    struct fabric_peer *to_a = node_connect_to(&b, &a);
    if (is_one_key) { // then the room is never full, and who waits already goes on to wait
        node_send(&b, to_a, 1, bytes, 100);
        while (fabric->waiting_count == 0) pump_for_ms(&a, &b, 1);
    }
    for (int i = 0; i < LIARS; i++) {
        liars[i].incarnation = 1 + (uint64_t)i;
        if (i == 0 || !is_one_key) curve_key_make(&liars[i].own);
        if (i > 0 && is_one_key) liars[i].own = liars[0].own;
        liar_knock(&liars[i], &a, is_sealed);
        pump_for_ms(&a, NULL, 2);
        ck_assert_uint_le(fabric->waiting_count,
                          is_one_key ? REMOTE_LANES + 2 : REMOTE_WAITING_MAX);
    }
    if (!is_one_key) node_send(&b, to_a, 1, bytes, 100);
    pump_for_ms(&a, &b, 200);
    ck_assert_uint_eq(a.arrived, 0);
    (void)node_connect_to(&a, &b);
    pump(&a, &b, &a.arrived, 1);
    for (int i = 0; i < LIARS; i++) close(liars[i].fd);
}

TEST_EACH(the_newest_of_a_nodes_waiting_connections_is_let_in, 0, KINDS)
{
    const struct fabric_options strict = { .is_strict = true };
    struct liar older = { .incarnation = 1 }, newer = { .incarnation = 2 };
    struct forged address;
    struct remote_hello hello;
    const bool is_sealed = _i == 1;
    node_open(&a, kinds[_i], &strict);
    const struct remote_fabric *fabric = remote_of(a.fabric);
    curve_key_make(&older.own);
    newer.own = older.own;
    liar_knock(&older, &a, is_sealed);
    liar_knock(&newer, &a, is_sealed);
    while (fabric->waiting_count < 2) pump_for_ms(&a, NULL, 1);
    forge_begin(&address, &a);
    memcpy(address.head.key, older.own.open, sizeof address.head.key);
    forge_end(&address, &a);
    ck_assert_int_eq(fabric_expect(a.fabric, address.bytes, address.count), CAIRN_OK);
    read_all(&a, newer.fd, &hello, sizeof hello);
    await_end(&a, older.fd, true);
    ck_assert_uint_eq(node_stats(&a).endpoints_made, 1);
    ck_assert_uint_eq(node_stats(&a).endpoints_now, 1);
    close(older.fd);
    close(newer.fd);
}

TEST_EACH(a_connection_that_is_cut_off_is_said_and_one_that_is_closed_is_not, 0, 2 * KINDS)
{
    struct liar liar;
    const bool is_sealed = _i % KINDS == 1, is_closed = _i >= KINDS;
    struct remote_frame bye = { .kind = REMOTE_CLOSE };
    uint8_t record[SEALED_EXTRA];
    node_open(&a, kinds[_i % KINDS], NULL);
    liar_open(&liar, &a, is_sealed);
    pump_for_ms(&a, NULL, 20);
    bye.check = remote_frame_check(&bye, NULL);
    if (is_closed && is_sealed) {
        ck_assert(sealed_put(&liar.sealed, SEALED_CLOSE, NULL, 0, record));
        ck_assert_int_eq(send(liar.fd, record, sizeof record, 0), sizeof record);
    } else if (is_closed) {
        ck_assert_int_eq(send(liar.fd, &bye, sizeof bye, 0), sizeof bye);
    }
    shutdown(liar.fd, SHUT_WR);
    await_end(&a, liar.fd, false);
    ck_assert_uint_eq(a.refusals, is_closed ? 0 : 1);
    if (!is_closed) ck_assert_ptr_nonnull(strstr(a.refused, "cut off"));
    close(liar.fd);
    if (is_sealed) sealed_end(&liar.sealed);
}

static const struct remote_frame lies[] = {
    { .kind = 0 },
    { .kind = 99 },
    { .kind = REMOTE_TAKE, .serial = 0 },
    { .kind = REMOTE_TAKE, .serial = 1, .payload_bytes = 1 },
    { .kind = REMOTE_MESSAGE, .header_bytes = 0, .payload_bytes = 10 },
    { .kind = REMOTE_MESSAGE, .header_bytes = 8, .payload_bytes = REMOTE_EAGER_MAX + 1 },
    { .kind = REMOTE_MESSAGE, .header_bytes = CAIRN_FABRIC_HEADER_MAX + 1 },
    { .kind = REMOTE_ANNOUNCE, .header_bytes = 8, .payload_bytes = 100, .serial = 0 },
    { .kind = REMOTE_DATA, .payload_bytes = 100 },
    { .kind = REMOTE_DATA, .payload_bytes = REMOTE_SEGMENT + 1 },
    { .kind = REMOTE_NONE },
    { .kind = REMOTE_TAKE, .serial = 1, .zeros = 1 },
};
enum { LIES = sizeof lies / sizeof *lies };

TEST_EACH(a_member_that_breaks_the_rules_is_cut_off_and_named, 0, LIES *KINDS)
{
    struct liar liar;
    const bool is_sealed = _i % KINDS == 1;
    uint8_t said[sizeof(struct remote_frame) + 300] = { 0 };
    node_open(&a, kinds[_i % KINDS], NULL);
    liar_open(&liar, &a, is_sealed);
    struct remote_frame lie = lies[_i / KINDS];
    lie.check = remote_frame_check(&lie, said + sizeof lie);
    memcpy(said, &lie, sizeof lie);
    liar_say(&liar, is_sealed, said, sizeof lie + lie.header_bytes);
    await_end(&a, liar.fd, false);
    ck_assert_uint_eq(a.refusals, 1);
    ck_assert_ptr_nonnull(strstr(a.refused, "the connections to"));
    ck_assert_uint_eq(node_stats(&a).connections_refused, 1);
    close(liar.fd);
    if (is_sealed) sealed_end(&liar.sealed);
}

TEST_EACH(a_frame_with_a_wrong_check_or_a_record_that_was_touched_ends_the_link, 0, KINDS)
{
    struct liar liar;
    const bool is_sealed = _i == 1;
    uint8_t said[128] = { 0 }, record[128 + SEALED_EXTRA];
    struct remote_frame frame = { .kind = REMOTE_MESSAGE, .header_bytes = 16 };
    node_open(&a, kinds[_i], NULL);
    liar_open(&liar, &a, is_sealed);
    frame.check = remote_frame_check(&frame, said + sizeof frame);
    memcpy(said, &frame, sizeof frame);
    liar_say(&liar, is_sealed, said, sizeof frame + 16);
    pump(&a, NULL, &a.arrived, 1); // so it is right
    if (is_sealed) {
        ck_assert(sealed_put(&liar.sealed, SEALED_FRAMES, said, sizeof frame + 16, record));
        record[20] ^= 1;
        ck_assert_int_gt(send(liar.fd, record, sizeof frame + 16 + SEALED_EXTRA, 0), 0);
    } else {
        said[sizeof frame + 3] ^= 1;
        liar_say(&liar, false, said, sizeof frame + 16);
    }
    await_end(&a, liar.fd, false);
    ck_assert_uint_eq(a.arrived, 1);
    ck_assert_uint_eq(a.refusals, 1);
    close(liar.fd);
    if (is_sealed) sealed_end(&liar.sealed);
}

TEST(a_sealed_record_that_is_repeated_or_left_out_ends_the_link)
{
    for (int is_repeated = 0; is_repeated < 2; is_repeated++) {
        struct liar liar;
        uint8_t said[40] = { 0 }, first[40 + SEALED_EXTRA], second[40 + SEALED_EXTRA];
        struct remote_frame frame = { .kind = REMOTE_MESSAGE, .header_bytes = 16 };
        node_open(&a, "sealed", NULL);
        liar_open(&liar, &a, true);
        frame.check = remote_frame_check(&frame, said + sizeof frame);
        memcpy(said, &frame, sizeof frame);
        ck_assert(sealed_put(&liar.sealed, SEALED_FRAMES, said, sizeof said, first));
        ck_assert(sealed_put(&liar.sealed, SEALED_FRAMES, said, sizeof said, second));
        if (is_repeated) {
            ck_assert_int_gt(send(liar.fd, first, sizeof first, 0), 0);
            pump(&a, NULL, &a.arrived, 1);
            ck_assert_int_gt(send(liar.fd, first, sizeof first, 0), 0);
        } else {
            ck_assert_int_gt(send(liar.fd, second, sizeof second, 0), 0);
        }
        await_end(&a, liar.fd, false);
        ck_assert_uint_eq(a.arrived, (unsigned)is_repeated);
        close(liar.fd);
        sealed_end(&liar.sealed);
        node_close(&a);
    }
}

TEST_EACH(answers_that_a_member_does_not_read_are_few, 0, KINDS)
{
    enum { ASKS = 40000 };
    struct liar liar;
    const bool is_sealed = _i == 1;
    struct remote_frame frame = { .kind = REMOTE_TAKE, .serial = 12345 };
    node_open(&a, kinds[_i], NULL);
    liar_open(&liar, &a, is_sealed);
    const int small = 4096;
    setsockopt(liar.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    frame.check = remote_frame_check(&frame, NULL);
    uint8_t record[sizeof frame + SEALED_EXTRA];
    unsigned said = 0, stuck = 0;
    while (said < ASKS && stuck < 50) {
        const void *what = &frame;
        size_t count = sizeof frame;
        struct pollfd wait = { .fd = liar.fd, .events = POLLOUT };
        if (poll(&wait, 1, 0) == 0) {
            stuck++;
            pump_for_ms(&a, NULL, 2);
            continue;
        }
        stuck = 0;
        if (is_sealed) {
            ck_assert(sealed_put(&liar.sealed, SEALED_FRAMES, what, count, record));
            what = record;
            count = sizeof record;
        }
        ck_assert_int_eq(send(liar.fd, what, count, 0), (ssize_t)count);
        if (said++ % 100 == 0) pump_for_ms(&a, NULL, 1);
    }
    pump_for_ms(&a, NULL, 50);
    const struct remote_link *link = LIST_FIRST(&remote_of(a.fabric)->links);
    ck_assert_ptr_nonnull(link);
    struct remote_conn *conn = TAILQ_FIRST(&link->conns);
    pthread_mutex_lock(&conn->lock);
    const uint32_t replies = conn->writes.reply_count;
    pthread_mutex_unlock(&conn->lock);
    ck_assert_uint_le(replies, REMOTE_REPLIES_MAX + REMOTE_ARRIVED_MAX / sizeof frame);
    close(liar.fd);
    pump_for_ms(&a, NULL, 50);
    if (is_sealed) sealed_end(&liar.sealed);
}

/* ---- silence ---- */

TEST_EACH(a_node_that_falls_silent_is_given_up_within_the_patience_and_named, 0, 2 * KINDS)
{
    enum { PATIENCE_MS = 1000, OVER_MS = 2500 };
    const bool is_idle = _i >= KINDS;
    node_open(&a, kinds[_i % KINDS], NULL);
    node_open(&b, kinds[_i % KINDS], NULL);
    fabric_set_patience(a.fabric, PATIENCE_MS);
    struct fabric_peer *to_b = node_connect_to(&a, &b);
    node_carry(&a, &b, to_b, 1, bytes, BIG);
    pump_for_ms(&a, &b, 100); // all connections are up
    node_cut_sockets(true);
    if (!is_idle) node_send(&a, to_b, 2, bytes, BIG);
    const int64_t begin_ms = now_ms();
    pump(&a, NULL, &a.downs, 1);
    ck_assert_int_lt(now_ms() - begin_ms, PATIENCE_MS + OVER_MS);
    ck_assert_int_eq(a.why_down, CAIRN_ERR_CLOSED);
    ck_assert_ptr_nonnull(strstr(a.refused, "acknowledged nothing"));
    node_cut_sockets(false);
}

TEST_EACH(a_node_that_is_silent_from_the_first_is_given_up, 0, KINDS)
{
    node_open(&a, kinds[_i], NULL);
    node_open(&b, kinds[_i], NULL);
    fabric_set_patience(a.fabric, 1000);
    node_cut_sockets(true);
    const int64_t begin_ms = now_ms();
    (void)node_connect_to(&a, &b);
    ck_assert_int_lt(now_ms() - begin_ms, 100); // the loop is not held
    pump(&a, NULL, &a.downs, 1);
    ck_assert_int_lt(now_ms() - begin_ms, 2500);
    ck_assert_int_eq(a.why_down, CAIRN_ERR_UNREACHABLE);
    node_cut_sockets(false);
}

/* What is sent after a rest has had no time to be acknowledged. */
TEST_EACH(a_late_acknowledgement_after_a_rest_is_not_silence, 0, KINDS)
{
    enum { PATIENCE_MS = 4000, REST_MS = 5000, LATE_MS = 1200 };
    node_open(&a, kinds[_i], NULL);
    node_open(&b, kinds[_i], NULL);
    fabric_set_patience(a.fabric, PATIENCE_MS);
    fabric_set_patience(b.fabric, PATIENCE_MS);
    struct fabric_peer *to_b = node_connect_to(&a, &b);
    node_carry(&a, &b, to_b, 1, bytes, BIG);
    pump_for_ms(&a, &b, REST_MS);
    node_cut_sockets(true);
    node_send(&a, to_b, 2, bytes, 100);
    pump_for_ms(&a, &b, LATE_MS); // the clock ticks in it
    node_cut_sockets(false);
    pump(&a, &b, &b.arrived, 2);
    ck_assert_uint_eq(a.downs + b.downs + a.refusals + b.refusals, 0);
}

/* A process that is stopped is not dead, however much waits for it. */
TEST_EACH(a_node_that_is_stopped_is_not_given_up_and_gets_everything_later, 0, KINDS)
{
    enum { COUNT = 3000, EACH = 20000, STOPPED_MS = 4000 };
    int fd;
    const pid_t pid = node_fork(&fd);
    if (pid == 0) {
        node_open(&b, kinds[_i], NULL);
        b.manner = NODE_DROPS;
        node_tell_address(fd, &b);
        struct fabric_peer *to_a = node_hear_address(fd, &b);
        pump(&b, NULL, &b.arrived, COUNT);
        node_send(&b, to_a, 1, NULL, 0);
        pump_for_ms(&b, NULL, 10000);
        _exit(0);
    }
    node_open(&a, kinds[_i], NULL);
    fabric_set_patience(a.fabric, 1000);
    struct fabric_peer *to_b = node_hear_address(fd, &a);
    node_tell_address(fd, &a);
    node_send(&a, to_b, 0, bytes, EACH);
    pump(&a, NULL, &a.sent, 1);
    pump_for_ms(&a, NULL, 200);
    cluster_freeze(pid);
    for (unsigned i = 1; i < COUNT; i++) node_send(&a, to_b, i, bytes, EACH); // 60 MB
    pump_for_ms(&a, NULL, STOPPED_MS);
    ck_assert_uint_eq(a.downs, 0);
    kill(pid, SIGCONT);
    pump(&a, NULL, &a.arrived, 1);
    node_kill(pid, fd);
}

/* ---- loans ---- */

TEST_EACH(a_closed_peers_buffers_come_back_though_the_other_end_holds_its_messages, 0, KINDS)
{
    enum { COUNT = 8 };
    node_open(&a, kinds[_i], NULL);
    node_open(&b, kinds[_i], NULL);
    struct fabric_peer *to_b = node_connect_to(&a, &b), *other = node_connect_to(&a, &b);
    for (unsigned i = 0; i < COUNT; i++) node_send(&a, to_b, i, bytes, BIG);
    pump(&a, &b, &b.arrived, COUNT);
    fabric_peer_close(to_b);
    const int64_t begin_ms = now_ms();
    pump(&a, &b, &a.sent, COUNT);
    ck_assert_int_lt(now_ms() - begin_ms, 2000);
    ck_assert_uint_eq(a.send_errors, COUNT);
    for (unsigned i = 0; i < COUNT; i++) node_receive(&b, i); // too late
    pump(&a, &b, &b.received, COUNT);
    ck_assert_uint_eq(b.receive_errors, COUNT);
    node_carry(&a, &b, other, 99, bytes, BIG); // the link lives on
    ck_assert_uint_eq(a.downs + b.downs, 0);
}

/* Takes the payloads of `huge` bytes, in whichever order they come, and is stopped while they do. */
static void stop_in_the_midst(int fd, const char *kind, const struct fabric_options *options,
                              size_t huge)
{
    node_open(&b, kind, options);
    node_tell_address(fd, &b);
    node_tell_address(fd, &b);
    pump(&b, NULL, &b.arrived, 3);
    for (unsigned i = 0; i < 3; i++)
        if (b.arrivals[i].payload_bytes == huge) node_receive(&b, i);
    pump_for_ms(&b, NULL, 20);
    raise(SIGSTOP);
    _exit(0);
}

TEST_EACH(a_closed_peers_payload_that_is_half_written_ends_with_the_link_and_holds_nobody, 0, KINDS)
{
    enum { HUGE = 256 << 20, PATIENCE_MS = 1000, LIMIT_MS = 500 + PATIENCE_MS + 2500 };
    const struct fabric_options options = { .max_payload = HUGE };
    int fd, status;
    const pid_t pid = node_fork(&fd);
    if (pid == 0) stop_in_the_midst(fd, kinds[_i], &options, HUGE);
    node_open(&a, kinds[_i], &options);
    node_open(&c, kinds[_i], &options);
    fabric_set_patience(a.fabric, PATIENCE_MS);
    struct fabric_peer *leaves = node_hear_address(fd, &a), *stays = node_hear_address(fd, &a);
    uint8_t *huge = calloc(1, HUGE);
    node_pass(&a, &c, node_connect_to(&a, &c), 1, bytes, 100000); // of another link, and held there
    node_send(&a, stays, 2, bytes, 100000);
    node_send(&a, leaves, 3, huge, HUGE);
    node_send(&a, leaves, 4, huge, HUGE);
    while (waitpid(pid, &status, WUNTRACED | WNOHANG) == 0) pump_for_ms(&a, &c, 1);
    ck_assert(WIFSTOPPED(status));
    pump_for_ms(&a, &c, 50);
    ck_assert_uint_eq(a.sent, 0);
    const int64_t begin_ms = now_ms();
    fabric_peer_close(leaves);
    pump(&a, &c, &a.sent, 3);
    ck_assert_int_lt(now_ms() - begin_ms, LIMIT_MS);
    ck_assert_uint_eq(a.send_errors, 3);
    ck_assert_uint_eq(a.downs, 1); // the peer that stays shares the link
    node_drop(&c, 0);
    pump(&a, &c, &a.sent, 4);
    ck_assert_uint_eq(a.send_errors, 3);
    node_kill(pid, fd);
    free(huge);
}

/* A burst fills the queue of answers, and reading pauses. */
TEST_EACH(what_was_read_before_a_pause_is_not_left_over, 0, KINDS)
{
    enum { COUNT = 4000, EACH = 40000, BUSY_MS = 400 };
    node_open(&a, kinds[_i], NULL);
    node_open(&b, kinds[_i], NULL);
    b.manner = NODE_DROPS;
    struct fabric_peer *to_b = node_connect_to(&a, &b);
    node_pass(&a, &b, to_b, 0, NULL, 0);
    pump_for_ms(&a, &b, 100); // all connections are up
    for (unsigned i = 1; i < COUNT; i++) node_send(&a, to_b, i, bytes, EACH);
    pump_for_ms(&a, NULL, BUSY_MS); // while the other is busy with something else
    pump(&a, &b, &b.arrived, COUNT);
    pump(&a, &b, &a.sent, COUNT);
    ck_assert_uint_eq(a.send_errors, 0);
}

SUITE(60, .tear_down = nodes_close);
