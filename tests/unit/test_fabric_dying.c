/* A peer that is killed while a connection with it is being made, at every system call of ours in which
 * that is done: we go on. connect() and send() of UCX in this process come by here. */
#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/fabric_node.h"

enum { CALLS = 5 }; /* more than are made */

static struct node here, there;
static pid_t victim;        /* killed when `calls_left` of this process are over */
static unsigned calls_left; /* 0: nobody is to be killed */
static int last_socket;     /* of UCX */
static uint8_t address[CAIRN_FABRIC_ADDRESS_MAX]; /* of the victim */
static size_t address_bytes;

/* -- the calls of UCX --------------------------------------------------------------------------- */

static void kill_victim(void)
{
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0); // its sockets are closed now
    victim = 0;
}

static void count_call(int fd)
{
    int kind = 0;
    socklen_t bytes = sizeof kind;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &kind, &bytes) != 0 || kind != AF_INET) return;
    last_socket = fd;
    if (calls_left > 0 && --calls_left == 0) kill_victim();
}

/* The whole program is built with hidden names; UCX must find these two. */
#define SEEN_BY_UCX __attribute__((visibility("default")))

static union {
    void *address;
    int (*connect)(int fd, const struct sockaddr *to, socklen_t bytes);
    ssize_t (*send)(int fd, const void *bytes, size_t count, int flags);
} next_connect, next_send;

/* The other end is killed when it has been reached: what is sent after it meets a reset. */
SEEN_BY_UCX int connect(int fd, const struct sockaddr *to, socklen_t bytes)
{
    const int result = next_connect.connect(fd, to, bytes), error = errno;
    count_call(fd);
    errno = error;
    return result;
}

SEEN_BY_UCX ssize_t send(int fd, const void *bytes, size_t count, int flags)
{
    count_call(fd);
    return next_send.send(fd, bytes, count, flags);
}

/* -- the other process -------------------------------------------------------------------------- */

static void tell_address(int fd, const struct node *node)
{
    size_t count;
    const void *own = cairn_fabric_address(node->fabric, &count);
    ck_assert_int_eq(write(fd, &count, sizeof count), sizeof count);
    ck_assert_int_eq(write(fd, own, count), (ssize_t)count);
}

static size_t hear_address(int fd, uint8_t out[CAIRN_FABRIC_ADDRESS_MAX])
{
    size_t count;
    ck_assert_int_eq(read(fd, &count, sizeof count), sizeof count);
    ck_assert_uint_le(count, CAIRN_FABRIC_ADDRESS_MAX);
    ck_assert_int_eq(recv(fd, out, count, MSG_WAITALL), (ssize_t)count);
    return count;
}

enum manner {
    SILENT, /* waits to be connected to */
    SPEAKS, /* has begun to connect to us */
    MEETS   /* both ways are made, and each has heard of the other */
};

/* In the end it stops and reads nothing more: its end of a connection will be reset, not closed. */
static void live(int fd, enum manner manner)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); // a failed test leaves nobody behind
    node_open(&there, "ucx", NULL);
    tell_address(fd, &there);
    if (manner != SILENT) {
        address_bytes = hear_address(fd, address);
        node_send(&there, node_connect(&there, address, address_bytes), 1, NULL, 0);
    }
    if (manner == MEETS) pump(&there, NULL, &there.arrived, 1);
    raise(SIGSTOP);
}

/* Forks before a fabric is open (UCX has threads). Opens `here`, and gives the address of the child. */
static void spawn(enum manner manner)
{
    int fds[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    victim = fork();
    ck_assert_int_ge(victim, 0);
    if (victim == 0) live(fds[1], manner);
    node_open(&here, "ucx", NULL);
    address_bytes = hear_address(fds[0], address);
    if (manner != SILENT) tell_address(fds[0], &here);
}

static void await_stop(void)
{
    ck_assert_int_eq(waitpid(victim, NULL, WUNTRACED), victim);
}

/* As a daemon does, which knows at once or later that nobody is there. A second try is made by on_down. */
static void connect_and_send(unsigned tries);

static void on_down(void *arg, struct cairn_fabric_peer *peer, cairn_status why)
{
    const unsigned *tries = arg;
    (void)why;
    cairn_fabric_peer_close(peer);
    if (*tries > 1) connect_and_send(*tries - 1);
}

static void connect_and_send(unsigned tries)
{
    static unsigned tries_left;
    const struct note note = { .id = 2 };
    struct cairn_fabric_peer *peer;
    tries_left = tries;
    if (cairn_fabric_connect(here.fabric, address, address_bytes, on_down, &tries_left, &peer) !=
        CAIRN_OK)
        return;
    const cairn_status status = cairn_fabric_send(peer, &note, sizeof note, NULL, 0, NULL, NULL);
    ck_assert(status == CAIRN_OK || status == CAIRN_ERR_CLOSED);
}

static void end(void)
{
    pump_for_ms(&here, NULL, 20);
    calls_left = 0;
    if (victim != 0) kill_victim();
    pump_for_ms(&here, NULL, 20);
    node_close(&here);
}

/* -- what may happen ---------------------------------------------------------------------------- */

START_TEST(a_peer_killed_while_we_connect_to_it_is_only_gone)
{
    spawn(SILENT);
    await_stop();
    calls_left = (unsigned)_i + 1;
    connect_and_send(1);
    end();
}
END_TEST

START_TEST(a_peer_killed_while_it_connects_to_us_is_only_gone)
{
    spawn(SPEAKS);
    await_stop();
    calls_left = (unsigned)_i + 1;
    pump_for_ms(&here, NULL, 20);
    connect_and_send(1);
    end();
}
END_TEST

START_TEST(a_peer_killed_while_both_connect_is_only_gone)
{
    spawn(SPEAKS);
    await_stop();
    calls_left = (unsigned)_i + 1;
    connect_and_send(1);
    end();
}
END_TEST

START_TEST(a_peer_killed_while_we_connect_again_is_only_gone)
{
    spawn(MEETS);
    connect_and_send(2);
    pump(&here, NULL, &here.arrived, 1);
    await_stop();
    calls_left = (unsigned)_i + 1;
    shutdown(last_socket, SHUT_RDWR);
    end();
}
END_TEST

int main(void)
{
    next_connect.address = dlsym(RTLD_NEXT, "connect");
    next_send.address = dlsym(RTLD_NEXT, "send");
    TCase *tcase = tcase_create("dying");
    tcase_add_loop_test(tcase, a_peer_killed_while_we_connect_to_it_is_only_gone, 0, CALLS);
    tcase_add_loop_test(tcase, a_peer_killed_while_it_connects_to_us_is_only_gone, 0, CALLS);
    tcase_add_loop_test(tcase, a_peer_killed_while_both_connect_is_only_gone, 0, CALLS);
    tcase_add_loop_test(tcase, a_peer_killed_while_we_connect_again_is_only_gone, 0, CALLS);
    Suite *suite = suite_create("a peer that dies while it is connected");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
