/* What only two processes and a real port can show: the ucx fabric under kill -9, garbage, a hostile
 * environment, and at rest. The checks of UCX's manners that the fabric stands on. */
#include <arpa/inet.h>
#include <check.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/loop/loop.h"
#include "tests/support/descriptors.h"
#include "tests/support/fabric_node.h"
#include "tests/support/now.h"
#include "tests/support/suite.h"

enum { WINDOW = 8, BIG = 200000 };

static struct node here;
static uint8_t bytes[1 << 20];

/* -- the other process -------------------------------------------------------------------------- */

struct child {
    pid_t pid;
    int fd;
    struct fabric_peer *peer; /* to it */
};

/* Before any fabric is open (UCX has threads). The child lives in `life` until it is killed. */
static struct child spawn(void (*life)(struct node *node, struct fabric_peer *parent))
{
    static struct node there;
    struct child child = { .peer = NULL };
    child.pid = node_fork(&child.fd);
    if (child.pid > 0) return child;
    node_open(&there, "ucx", NULL);
    node_tell_address(child.fd, &there);
    life(&there, node_hear_address(child.fd, &there));
    for (;;) pump_for_ms(&there, NULL, 1000);
}

static void meet(struct child *child)
{
    child->peer = node_hear_address(child->fd, &here);
    node_tell_address(child->fd, &here);
}

static void live_as_echo(struct node *node, struct fabric_peer *parent)
{
    node->manner = NODE_RECEIVES;
    node->answer_peer = parent;
}

/* This node, and another process that sends back what comes. */
static struct child open_beside_echo(void)
{
    struct child child = spawn(live_as_echo);
    node_open(&here, "ucx", NULL);
    here.manner = NODE_RECEIVES;
    meet(&child);
    return child;
}

static void live_as_hoarder(struct node *node, struct fabric_peer *parent)
{
    (void)parent;
    node->manner = NODE_HOLDS;
}

static void live_as_sender(struct node *node, struct fabric_peer *parent)
{
    for (unsigned i = 0; i < WINDOW; i++) node_send(node, parent, i, bytes, BIG);
}

/* -- two processes ------------------------------------------------------------------------------ */

static void count_sent(void *arg, cairn_status status)
{
    ck_assert_int_eq(status, CAIRN_OK);
    ((struct node *)arg)->sent++;
}

static void send_for_echo(struct child *child, uint64_t id, const void *payload, size_t count)
{
    const struct note note = { .id = id, .answer = 1 };
    ck_assert_int_eq(
        fabric_send(child->peer, &note, sizeof note, payload, count, count_sent, &here), CAIRN_OK);
}

TEST(every_size_comes_back_from_another_process)
{
    struct child child = open_beside_echo();
    unsigned count = 0;
    for (size_t size = 8; size <= sizeof bytes; size *= 2, count++) {
        fill(bytes, size, size);
        send_for_echo(&child, size, bytes, size);
        pump(&here, NULL, &here.received, count + 1);
        pump(&here, NULL, &here.sent, count + 1);
        ck_assert(is_filled(here.arrivals[count].buffer, size, size));
    }
    node_kill(child.pid, child.fd);
}

TEST(many_messages_come_back_with_eight_on_the_way)
{
    enum { COUNT = 200, SIZE = 256 << 10 };
    struct child child = open_beside_echo();
    fill(bytes, SIZE, 1);
    const int64_t start = now_ms();
    for (unsigned i = 0; i < COUNT; i++) {
        if (i >= WINDOW) pump(&here, NULL, &here.received, i - WINDOW + 1);
        send_for_echo(&child, 1, bytes, SIZE);
    }
    pump(&here, NULL, &here.received, COUNT);
    pump(&here, NULL, &here.sent, COUNT);
    const double took = (double)(now_ms() - start);
    for (unsigned i = 0; i < COUNT; i++) ck_assert(is_filled(here.arrivals[i].buffer, SIZE, 1));
    printf("echo of %d x %d KiB, window %d: %.1f ms, %.2f GB/s each way\n", COUNT, SIZE >> 10,
           WINDOW, took, (double)COUNT * SIZE / took / 1e6);
    node_kill(child.pid, child.fd);
}

TEST(a_sender_killed_while_its_messages_are_held_harms_nobody)
{
    struct child child = spawn(live_as_sender), other = spawn(live_as_echo);
    node_open(&here, "ucx", NULL);
    meet(&child);
    pump(&here, NULL, &here.arrived, WINDOW);
    node_kill(child.pid, child.fd);
    pump(&here, NULL, &here.downs, 1);
    for (unsigned i = 0; i < WINDOW / 2; i++) node_receive(&here, i);
    for (unsigned i = WINDOW / 2; i < WINDOW; i++) fabric_drop(here.arrivals[i].message);
    pump(&here, NULL, &here.received, WINDOW / 2);
    ck_assert_uint_eq(here.receive_errors, WINDOW / 2);
    ck_assert_int_eq(here.arrivals[0].status, CAIRN_ERR_CLOSED);
    fabric_peer_close(child.peer);

    here.manner = NODE_RECEIVES; // the service goes on for others
    meet(&other);
    fill(bytes, BIG, 9);
    send_for_echo(&other, 9, bytes, BIG);
    pump(&here, NULL, &here.received, WINDOW / 2 + 1);
    ck_assert(is_filled(here.arrivals[WINDOW].buffer, BIG, 9));
}

TEST(a_receiver_killed_while_we_send_is_told_once_and_returns_every_buffer)
{
    const struct note note = { 0 };
    struct child child = spawn(live_as_hoarder);
    node_open(&here, "ucx", NULL);
    meet(&child);
    for (unsigned i = 0; i < WINDOW; i++) node_send(&here, child.peer, i, bytes, BIG);
    pump_for_ms(&here, NULL, 20); // until they are held over there
    ck_assert_uint_eq(here.sent, 0);
    const int64_t start = now_ms();
    node_kill(child.pid, child.fd);
    pump(&here, NULL, &here.downs, 1);
    const double took = (double)(now_ms() - start);
    pump(&here, NULL, &here.sent, WINDOW);
    ck_assert_uint_eq(here.send_errors, WINDOW);
    ck_assert_int_eq(fabric_send(child.peer, &note, sizeof note, NULL, 0, NULL, NULL),
                     CAIRN_ERR_CLOSED);
    pump_for_ms(&here, NULL, 20);
    ck_assert_uint_eq(here.downs, 1);
    printf("kill -9 noticed after %.1f ms\n", took);
}

TEST(twenty_killed_peers_leave_no_descriptor_behind)
{
    enum { ROUNDS = 20 };
    struct child children[ROUNDS];
    for (unsigned i = 0; i < ROUNDS; i++) children[i] = spawn(live_as_sender);
    node_open(&here, "ucx", NULL);
    int least = 0;
    for (unsigned i = 0; i < ROUNDS; i++) {
        meet(&children[i]);
        pump(&here, NULL, &here.arrived, WINDOW * (i + 1));
        node_kill(children[i].pid, children[i].fd);
        pump(&here, NULL, &here.downs, i + 1);
        for (unsigned k = WINDOW * i; k < here.arrived; k++) fabric_drop(here.arrivals[k].message);
        fabric_peer_close(children[i].peer);
        int now = 0;
        for (int tries = 0; tries < 200 && (tries == 0 || (i > 0 && now > least)); tries++) {
            pump_for_ms(&here, NULL, 5); // UCX lets go in its own time
            now = (int)descriptors_here();
        }
        if (i == 0 || now < least) least = now; // UCX may not have let go of the first one's yet
        ck_assert_int_eq(now, least);
    }
}

/* -- strangers ---------------------------------------------------------------------------------- */

/* The TCP port UCX listens on, found among our descriptors. */
static struct sockaddr_in listening_address(void)
{
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_in address = { 0 };
        socklen_t bytes_address = sizeof address, bytes_flag = sizeof(int);
        int is_listening = 0;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &bytes_flag) == 0 &&
            is_listening && getsockname(fd, (struct sockaddr *)&address, &bytes_address) == 0 &&
            address.sin_family == AF_INET)
            return address;
    }
    ck_abort_msg("UCX listens nowhere");
}

/* Random bytes, never UCX's magic: with the magic (it is public) UCX aborts, which the fabric cannot
 * prevent; the port belongs behind a firewall (proto/fabric/README.md). */
static void throw_garbage(const struct sockaddr_in *address, unsigned seed)
{
    uint8_t garbage[4096];
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (const struct sockaddr *)address, sizeof *address), 0);
    fill(garbage, sizeof garbage, seed);
    send(fd, garbage, 1 + seed * 37 % sizeof garbage, MSG_NOSIGNAL);
    close(fd);
}

TEST(garbage_at_the_port_is_survived_without_a_word)
{
    struct child child = open_beside_echo();
    const struct sockaddr_in address = listening_address();
    FILE *words = tmpfile();
    const int stdout_before = dup(1), stderr_before = dup(2);
    fflush(NULL);
    dup2(fileno(words), 1), dup2(fileno(words), 2);
    for (unsigned i = 0; i < 200; i++) {
        throw_garbage(&address, i);
        pump_for_ms(&here, NULL, i % 50 == 0 ? 2 : 0);
    }
    fill(bytes, BIG, 3);
    send_for_echo(&child, 3, bytes, BIG);
    pump(&here, NULL, &here.received, 1);
    fflush(NULL);
    dup2(stdout_before, 1), dup2(stderr_before, 2);
    close(stdout_before), close(stderr_before);
    ck_assert(is_filled(here.arrivals[0].buffer, BIG, 3));
    ck_assert_int_eq(here.arrived, 1);
    fseek(words, 0, SEEK_END);
    ck_assert_int_eq(ftell(words), 0);
    fclose(words);
    node_kill(child.pid, child.fd);
}

TEST(the_port_is_in_the_configured_range_on_loopback)
{
    char range[32];
    const unsigned first = 20000 + (unsigned)getpid() % 400 * 100;
    snprintf(range, sizeof range, "%u-%u", first, first + 99);
    node_open(&here, "ucx", &(struct fabric_options) { .port_range = range });
    const struct sockaddr_in address = listening_address();
    ck_assert_uint_ge(ntohs(address.sin_port), first);
    ck_assert_uint_le(ntohs(address.sin_port), first + 99);
    ck_assert_uint_eq(ntohl(address.sin_addr.s_addr), INADDR_LOOPBACK);
    ck_assert_ptr_nonnull(strstr(fabric_describe(here.fabric), range));
}

TEST(a_device_that_is_not_there_is_named_in_the_refusal)
{
    node_open_fails("ucx", &(struct fabric_options) { .net_devices = "eth77" },
                    CAIRN_ERR_UNREACHABLE, "eth77");
}

/* -- a good guest ------------------------------------------------------------------------------- */

TEST(the_environment_cannot_change_how_it_runs)
{
    setenv("UCX_TLS", "posix,sysv", 1);
    setenv("UCX_NET_DEVICES", "eth77", 1);
    setenv("UCX_PROTO_ENABLE", "y", 1);
    setenv("UCX_RNDV_THRESH", "0", 1);
    setenv("UCX_TCP_PORT_RANGE", "1-2", 1);
    setenv("UCX_HANDLE_ERRORS", "bt,freeze", 1);
    struct child child = open_beside_echo();
    fill(bytes, BIG, 4);
    send_for_echo(&child, 4, bytes, BIG);
    pump(&here, NULL, &here.received, 1);
    ck_assert(is_filled(here.arrivals[0].buffer, BIG, 4));
    ck_assert_uint_eq(ntohl(listening_address().sin_addr.s_addr), INADDR_LOOPBACK);
    node_kill(child.pid, child.fd);
}

static void on_host_signal(int signum)
{
    (void)signum;
}

/* Whose handler it is: a part of the name of its file; "": nobody's. */
static const char *owner_of(int signum)
{
    struct sigaction action;
    Dl_info where = { 0 };
    if (sigaction(signum, NULL, &action) != 0 || action.sa_handler == SIG_DFL ||
        action.sa_handler == SIG_IGN)
        return "";
    return dladdr(*(void **)&action.sa_handler, &where) != 0 ? where.dli_fname : "";
}

TEST(signals_belong_to_the_host_process)
{
    struct sigaction action;
    // None is UCX's, although it is linked: the default, Check's, or a sanitizer's.
    for (int s = 1; s <= SIGRTMAX; s++) ck_assert_ptr_null(strstr(owner_of(s), "libucs"));
    ck_assert_ptr_ne(signal(SIGBUS, on_host_signal), SIG_ERR);
    ck_assert_ptr_ne(signal(SIGHUP, on_host_signal), SIG_ERR);
    node_open(&here, "ucx", NULL);
    for (int s = 1; s <= SIGRTMAX; s++) ck_assert_ptr_null(strstr(owner_of(s), "libucs"));
    ck_assert_int_eq(sigaction(SIGBUS, NULL, &action), 0);
    ck_assert_ptr_eq(action.sa_handler, on_host_signal);
    ck_assert_int_eq(sigaction(SIGHUP, NULL, &action), 0);
    ck_assert_ptr_eq(action.sa_handler, on_host_signal);
}

static double cpu_ms(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e3 +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e3;
}

static void on_time(uv_timer_t *timer)
{
    uv_stop(timer->loop);
}

TEST_EACH(a_loop_at_rest_costs_no_cpu, 0, 2)
{
    uv_loop_t loop;
    uv_timer_t timer;
    struct fabric_poll fabric_poll;
    struct child child = open_beside_echo();
    send_for_echo(&child, 1, bytes, BIG);
    pump(&here, NULL, &here.received, 1);
    uv_loop_init(&loop);
    uv_timer_init(&loop, &timer);
    ck_assert_int_eq(fabric_poll_init(&fabric_poll, &loop, here.fabric, _i == 0 ? 0 : 20),
                     CAIRN_OK);
    const double before = cpu_ms();
    uv_timer_start(&timer, on_time, 300, 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    const double used = cpu_ms() - before;
    printf("300 ms at rest, spin %d us: %.2f ms of CPU\n", _i == 0 ? 0 : 20, used);
    ck_assert_double_lt(used, 30); // measured 0.1-0.5; a spinning loop would use 300
    fabric_poll_close(&fabric_poll, NULL, NULL);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    node_kill(child.pid, child.fd);
}

SUITE(30, .tear_down = nodes_close);
