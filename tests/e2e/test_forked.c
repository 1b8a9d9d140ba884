/* A trainer whose loader was forked after it had connected is missed as soon as it is killed: its child keeps
 * no copy of the connection, nor of one that is still being made. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

/* The leases are longer than the test. */
enum { TRIES = 200, TRY_NS = 50 * 1000000 };

static struct cluster cluster;

/* In a process of its own: a step, then a loader that lives until the test closes `loader`; then nothing. */
static void train_with_loader(int ready, const int loader[2])
{
    struct tiny_job tiny;
    char end;
    tiny_describe(&tiny, 1000);
    cairn *session = tiny_session(&cluster, NULL);
    tiny_step(tiny_open(session, "tiny", &tiny));
    if (fork() == 0) {
        close(loader[1]);
        _exit(read(loader[0], &end, 1) == 0 ? 0 : 1);
    }
    if (write(ready, "r", 1) == 1) pause();
    _exit(1);
}

static bool has_no_worker(void)
{
    struct cluster_said said;
    cluster_cli(&cluster, &said, "job", "list", "--no-headers", "-ojson", NULL);
    return said.status == 0 && strstr(said.out, "\"workers\": 0") != NULL;
}

TEST(a_killed_trainer_is_missed_though_its_loader_lives)
{
    static const char *const lease[] = { "lease.timeout=60s", NULL };
    int ready[2], loader[2];
    char letter;
    bool missed = false;
    cluster_start(&cluster, 1, &(struct cluster_options) { .coordinator_set = lease });
    ck_assert(pipe(ready) == 0 && pipe(loader) == 0);
    const pid_t trainer = fork();
    ck_assert_int_ge(trainer, 0);
    if (trainer == 0) train_with_loader(ready[1], loader);
    close(ready[1]);
    ck_assert_int_eq((int)read(ready[0], &letter, 1), 1);
    ck_assert(!has_no_worker());
    cluster_kill(trainer);
    for (int i = 0; i < TRIES && !missed; i++) {
        missed = has_no_worker();
        if (!missed) nanosleep(&(struct timespec) { 0, TRY_NS }, NULL);
    }
    ck_assert(missed);
    close(loader[1]);
    close(loader[0]);
    close(ready[0]);
    cluster_stop(&cluster);
}

/* The calls of a child with what its parent has open: told, and not waited in. */
static bool child_is_told(cairn *session, cairn_job *job)
{
    struct cairn_round round = { .struct_size = sizeof round };
    int status;
    const pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        const bool told = cairn_round_begin(job, 60000, &round) == CAIRN_ERR_HANDLE &&
                          strstr(cairn_error(), "forked") != NULL;
        cairn_close(session);
        _exit(told ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(a_child_is_told_that_the_session_is_its_parents)
{
    struct tiny_job tiny;
    cluster_start(&cluster, 1, NULL);
    tiny_describe(&tiny, 1000);
    cairn *session = tiny_session(&cluster, NULL);
    cairn_job *job = tiny_open(session, "tiny", &tiny);
    tiny_step(job);
    ck_assert(child_is_told(session, job));
    tiny_step(job); // the parent trains on
    cairn_close(session);
    cluster_stop(&cluster);
}

/* ---- while it is being made ---- */

enum { FDS = 256, FILLERS = 3, OPEN_MS = 1500 };

static char endpoint[64];

/* Sockets of this process that ask for a connection and have no answer. */
static int count_asking(void)
{
    int count = 0;
    for (int fd = 0; fd < FDS; fd++) {
        struct tcp_info info = { 0 };
        socklen_t bytes = sizeof info;
        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0)
            count += info.tcpi_state == TCP_SYN_SENT;
    }
    return count;
}

/* Whose queue is full: who connects now is not answered. */
static void listen_to_nobody(int fds[1 + FILLERS])
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof address;
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fds[0], (struct sockaddr *)&address, bytes), 0);
    ck_assert_int_eq(listen(fds[0], 0), 0);
    ck_assert_int_eq(getsockname(fds[0], (struct sockaddr *)&address, &bytes), 0);
    for (int i = 1; i <= FILLERS; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(fds[i], (struct sockaddr *)&address, bytes);
    }
    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", ntohs(address.sin_port));
}

static void *open_in_vain(void *session)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = endpoint,
                                     .connect_timeout_ms = OPEN_MS };
    return (void *)(intptr_t)cairn_open(&opts, session);
}

/* A process that is forked now has more of them than so many. */
static bool child_keeps(int before)
{
    int status;
    const pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) _exit(count_asking() == before ? 0 : 1);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

TEST(a_child_keeps_no_connection_that_is_being_made)
{
    int fds[1 + FILLERS];
    pthread_t thread;
    cairn *session = NULL;
    void *opened;
    listen_to_nobody(fds);
    const int before = count_asking();
    ck_assert_int_ge(before, 1); // the queue is full
    ck_assert_int_eq(pthread_create(&thread, NULL, open_in_vain, (void *)&session), 0);
    for (int i = 0; count_asking() == before; i++) {
        ck_assert_int_lt(i, OPEN_MS);
        nanosleep(&(struct timespec) { 0, 1000000 }, NULL);
    }
    bool keeps =
        true; // one that is forked in the moment between making the socket and noting it does
    for (int i = 0; i < 100 && keeps; i++) keeps = child_keeps(before);
    ck_assert_int_eq(pthread_join(thread, &opened), 0);
    ck_assert_int_eq((intptr_t)opened, CAIRN_ERR_UNREACHABLE);
    ck_assert(!keeps);
    for (int i = 0; i <= FILLERS; i++) close(fds[i]);
}

SUITE(50);
