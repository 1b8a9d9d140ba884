/* A trainer whose loader was forked after it had connected is missed as soon as it is killed: its child keeps
 * no copy of the connection, nor of one that is still being made. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/e2e/scene.h"
#include "tests/support/keys.h"

/* In a process of its own: a step, then a loader that lives until the test closes `loader`; then nothing. */
static void train_with_loader(int ready, const int loader[2])
{
    join("tiny", TINY(1000));
    train(1);
    if (fork() == 0) {
        close(loader[1]);
        _exit(read(loader[0], &(char) { 0 }, 1) == 0 ? 0 : 1);
    }
    if (write(ready, "r", 1) == 1) pause();
    _exit(1);
}

static bool has_no_worker(void)
{
    ask("job list --no-headers -ojson");
    return said.status == 0 && strstr(said.out, "\"workers\": 0") != NULL;
}

TEST(a_killed_trainer_is_missed_though_its_loader_lives)
{
    int ready[2], loader[2];
    char letter;
    start(1, .coordinator_set = SETTINGS("lease.timeout=60s")); // longer than the test
    ck_assert(pipe(ready) == 0 && pipe(loader) == 0);
    const pid_t trainer = fork_child();
    if (trainer == 0) train_with_loader(ready[1], loader);
    close(ready[1]);
    ck_assert_int_eq((int)read(ready[0], &letter, 1), 1);
    ck_assert(!has_no_worker());
    cluster_kill(trainer);
    await(has_no_worker());
    close(loader[1]);
}

TEST(a_child_is_told_that_the_session_is_its_parents)
{
    start(1);
    join("tiny", TINY(1000));
    train(1);
    const pid_t child = fork_child();
    if (child == 0) { // told, and not waited in
        struct cairn_round round = { .struct_size = sizeof round };
        const bool told = cairn_round_begin(job, 60000, &round) == CAIRN_ERR_HANDLE &&
                          strstr(cairn_error(), "forked") != NULL;
        cairn_close(session);
        _exit(told ? 0 : 1);
    }
    ck_assert_int_eq(cluster_wait(child, CLUSTER_WAIT_MS), 0);
    train(1); // the parent trains on
}

/* ---- while it is being made ---- */

enum { FDS = 256, FILLERS = 3, OPEN_MS = 1500 };

static char endpoint[64];

/* TCP sockets of this process in this state; -1: in any. */
static int count_sockets(int state)
{
    int count = 0;
    for (int fd = 0; fd < FDS; fd++) {
        struct tcp_info info = { 0 };
        socklen_t bytes = sizeof info;
        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0)
            count += state < 0 || info.tcpi_state == state;
    }
    return count;
}

/* Sockets that ask for a connection and have no answer. */
static int count_asking(void)
{
    return count_sockets(TCP_SYN_SENT);
}

static const char *const kinds[] = { "stream", "sealed" };

TEST_EACH(a_child_keeps_no_socket_of_the_data_path, 0, (int)(sizeof kinds / sizeof *kinds))
{
    char kind[32];
    snprintf(kind, sizeof kind, "fabric.kind=%s", kinds[_i]);
    const char *const shard_set[] = { "memory.limit=256MiB", kind, NULL };
    setenv("CAIRN_FABRIC", kinds[_i], 1);
    start(1, .coordinator_ip = "127.0.0.1", .shard_set = shard_set);
    join("tiny", TINY(1000));
    train(1);
    const pid_t child = fork_child();
    if (child == 0) _exit(count_sockets(-1));
    ck_assert_int_gt(count_sockets(-1), 2); // the coordinator's, a listener, and data
    ck_assert_int_eq(cluster_wait(child, CLUSTER_WAIT_MS), 0);
    train(1); // the parent trains on
}

/* Whose queue is full: who connects now is not answered. */
static void listen_to_nobody(int fds[1 + FILLERS])
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof address;
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert(bind(fds[0], (struct sockaddr *)&address, bytes) == 0 && listen(fds[0], 0) == 0 &&
              getsockname(fds[0], (struct sockaddr *)&address, &bytes) == 0);
    for (int i = 1; i <= FILLERS; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(fds[i], (struct sockaddr *)&address, bytes);
    }
    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", ntohs(address.sin_port));
}

static void *open_in_vain(void *session_out)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = endpoint,
                                     .connect_timeout_ms = OPEN_MS };
    return (void *)(intptr_t)cairn_open(&opts, session_out);
}

/* A process that is forked now has more of them than so many. */
static bool child_keeps(int before)
{
    const pid_t child = fork_child();
    if (child == 0) _exit(count_asking() == before ? 0 : 1);
    return cluster_wait(child, CLUSTER_WAIT_MS) != 0;
}

TEST(a_child_keeps_no_connection_that_is_being_made)
{
    int fds[1 + FILLERS];
    pthread_t thread;
    void *opened;
    char folder[CAIRN_SCRATCH_BYTES];
    cairn_scratch_make(folder);
    keys_show(folder);
    listen_to_nobody(fds);
    const int before = count_asking();
    ck_assert_int_ge(before, 1); // the queue is full
    ck_assert_int_eq(pthread_create(&thread, NULL, open_in_vain, (void *)&session), 0);
    await(count_asking() != before);
    int tries = 100; // one forked in the moment between making the socket and noting it does
    while (--tries > 0 && child_keeps(before)) {}
    ck_assert_int_eq(pthread_join(thread, &opened), 0);
    ck_assert_int_eq((intptr_t)opened, CAIRN_ERR_UNREACHABLE);
    ck_assert_int_gt(tries, 0);
    for (int i = 0; i <= FILLERS; i++) close(fds[i]);
    cairn_scratch_remove(folder);
}

SUITE(50, .tear_down = stop);
