/* Strangers at the ports while a job trains, and what a cluster costs that has nothing to do. */
#include <inttypes.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/secure/secure.h"
#include "proto/wire/wire.h"
#include "tests/support/asan.h"
#include "tests/support/descriptors.h"
#include "tests/support/now.h"
#include "tests/support/processor.h"
#include "tests/e2e/scene.h"

/* ASan keeps what is freed, for a while. */
enum { SLACK_BYTES = HAS_ASAN ? 64 << 20 : 4 << 20 };
enum { CONNECTIONS = 1000, ELEMS = 512 * 256 };

static void set_up(void)
{
    start(2, .coordinator_set = SETTINGS("network.hello_timeout=500ms", "lease.heartbeat=1s"),
          .coordinator_ip = "127.0.0.1", .log_level = "error");
    join("tiny", TINY(ELEMS));
    train_pushing(0.5f, 5);
}

/* ---- a trainer in the background ---- */

static atomic_bool stop_training;
static atomic_uint rounds;
static atomic_int training_status;

static void *train_on(void *arg)
{
    static const float gradient[ELEMS];
    uint64_t step;
    (void)arg;
    while (!stop_training) {
        const cairn_status status = trainer_try_step(job, "w", gradient, &step);
        if (status != CAIRN_OK) training_status = (int)status;
        if (status == CAIRN_OK) rounds++;
    }
    return NULL;
}

static pthread_t begin_training(void)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, train_on, NULL), 0);
    return thread;
}

/* It never failed, and did at least three rounds more. */
static void end_training(pthread_t thread)
{
    const unsigned before = rounds;
    await(rounds >= before + 3);
    stop_training = true;
    pthread_join(thread, NULL);
    ck_assert_int_eq(training_status, CAIRN_OK);
}

/* ---- strangers ---- */

static int dial(uint16_t port)
{
    const struct sockaddr_in to = { .sin_family = AF_INET,
                                    .sin_port = htons(port),
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_msg(connect(fd, (const struct sockaddr *)&to, sizeof to) == 0, "connect: %s",
                  strerror(errno));
    return fd;
}

/* Until the other side ends the connection. */
static void expect_end(int fd)
{
    char bytes[4096];
    const int64_t deadline_ms = now_ms() + 10000;
    for (;;) {
        struct pollfd readable = { .fd = fd, .events = POLLIN };
        ck_assert_int_lt(now_ms(), deadline_ms);
        if (poll(&readable, 1, 100) > 0 && recv(fd, bytes, sizeof bytes, 0) <= 0) break;
    }
    close(fd);
}

static void send_garbage(int fd, uint64_t *seed)
{
    uint64_t bytes[256];
    for (size_t i = 0; i < 256; i++) bytes[i] = cairn_scratch_random(seed);
    (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void await_descriptors(pid_t pid, unsigned count)
{
    await(descriptors_of(pid) <= count);
}

TEST(a_frame_of_four_gib_costs_the_connection_and_nothing_else)
{
    const size_t before = cluster_resident_bytes(cluster.coordinator);
    const pthread_t thread = begin_training();
    for (int i = 0; i < 20; i++) {
        uint8_t header[CAIRN_FRAME_HEADER_BYTES];
        frame_header_write(header, 1, 1, UINT32_MAX);
        const int fd = dial(coordinator_port());
        ck_assert_int_eq(send(fd, header, sizeof header, MSG_NOSIGNAL), sizeof header);
        expect_end(fd);
    }
    end_training(thread);
    ck_assert_uint_le(cluster_resident_bytes(cluster.coordinator), before + SLACK_BYTES);
}

/* Half of them speak garbage, a quarter a good beginning, a quarter nothing at all; all stay open. */
static void annoy(uint16_t port, int *fds, int count)
{
    uint64_t seed = 11;
    uint8_t first[CAIRN_HANDSHAKE_FIRST_BYTES] =
        "CAIRNSE1\1\0\1"; // of a handshake, without its MAC
    for (int i = 0; i < count; i++) {
        fds[i] = dial(port);
        if (i % 4 < 2) send_garbage(fds[i], &seed);
        if (i % 4 == 2) (void)!send(fds[i], first, sizeof first - 1, MSG_NOSIGNAL);
    }
}

TEST(a_thousand_garbage_connections_leave_the_coordinator_as_it_was)
{
    static int fds[CONNECTIONS];
    const size_t before = cluster_resident_bytes(cluster.coordinator);
    const unsigned descriptors = descriptors_of(cluster.coordinator);
    const pthread_t thread = begin_training();
    annoy(coordinator_port(), fds, CONNECTIONS);
    for (int i = 0; i < CONNECTIONS; i++) expect_end(fds[i]);
    end_training(thread);
    await_descriptors(cluster.coordinator, descriptors);
    const size_t after = cluster_resident_bytes(cluster.coordinator);
    printf("note: coordinator: resident %zu KiB before, %zu KiB after %d connections of garbage\n",
           before / 1024, after / 1024, CONNECTIONS);
    ck_assert_uint_le(after, before + SLACK_BYTES);
}

/* ---- how fast members go on ---- */

/* CAIRN_ABUSE_CONNECTIONS: so many strangers, and members must keep nine tenths of their pace, which only a
 * machine shows that does nothing else. */
enum { WINDOW_MS = 250, STRANGERS = 1000, STANDING = 200 };

static atomic_bool strangers_rest;
static atomic_uint strangers_came;

/* One after the other, STANDING at a time: garbage, a half handshake, silence, and bytes that come slowly. */
static void *come_on(void *arg)
{
    const unsigned count = *(const unsigned *)arg;
    static int fds[STANDING];
    uint64_t seed = 12;
    const uint8_t first[CAIRN_HANDSHAKE_FIRST_BYTES] = "CAIRNSE1\1\0\1";
    memset(fds, -1, sizeof fds);
    for (unsigned i = 0; i < count; i++) {
        int *fd = &fds[i % STANDING], older = fds[(i + 1) % STANDING];
        while (strangers_rest) poll(NULL, 0, 1);
        if (*fd >= 0) close(*fd);
        *fd = dial(coordinator_port());
        if (i % 4 == 0) send_garbage(*fd, &seed);
        if (i % 4 == 1) (void)!send(*fd, first, sizeof first, MSG_NOSIGNAL);
        if (i % 4 == 2) (void)!send(*fd, first, 1 + i % 80, MSG_NOSIGNAL);
        if (older >= 0) (void)!send(older, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT); // a byte more
        strangers_came++;
        poll(NULL, 0, 1);
    }
    for (int i = 0; i < STANDING; i++)
        if (fds[i] >= 0) close(fds[i]);
    return NULL;
}

/* The rounds of a window of time, with or without strangers. */
static unsigned rounds_beside(bool strangers)
{
    strangers_rest = !strangers;
    poll(NULL, 0, 20);
    const unsigned before = rounds;
    poll(NULL, 0, WINDOW_MS);
    return rounds - before;
}

/* By turns, since the machine is others', too. */
TEST(strangers_do_not_slow_the_members)
{
    const char *asked = getenv("CAIRN_ABUSE_CONNECTIONS");
    unsigned count = asked != NULL ? (unsigned)atoi(asked) : STRANGERS;
    unsigned alone = 0, beside = 0, windows = 0;
    const size_t before = cluster_resident_bytes(cluster.coordinator);
    const pthread_t thread = begin_training();
    pthread_t strangers;
    strangers_rest = true;
    ck_assert_int_eq(pthread_create(&strangers, NULL, come_on, &count), 0);
    for (; strangers_came < count; windows++) {
        alone += rounds_beside(false);
        beside += rounds_beside(true);
    }
    strangers_rest = false;
    pthread_join(strangers, NULL);
    end_training(thread);
    const size_t after = cluster_resident_bytes(cluster.coordinator);
    printf("note: of %u windows of %d ms: %u rounds alone, %u beside %u strangers; coordinator: "
           "resident %zu KiB before, %zu KiB after\n",
           windows, WINDOW_MS, alone, beside, count, before / 1024, after / 1024);
    ck_assert_uint_le(after, before + SLACK_BYTES);
    ck_assert_double_gt(beside, alone * (asked != NULL ? 0.9 : 0.3));
}

/* ---- UCX's own port ---- */

static bool owns_socket(pid_t pid, unsigned long inode)
{
    char folder[64], path[512], link[64], wanted[64];
    bool found = false;
    snprintf(folder, sizeof folder, "/proc/%d/fd", (int)pid);
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    DIR *fds = opendir(folder);
    ck_assert_ptr_nonnull(fds);
    for (struct dirent *e; (e = readdir(fds)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        const ssize_t n = readlink(path, link, sizeof link - 1);
        link[n > 0 ? n : 0] = 0;
        found = found || strcmp(link, wanted) == 0;
    }
    closedir(fds);
    return found;
}

/* The TCP ports (IPv4) that a process listens on. */
static int listening_ports(pid_t pid, uint16_t *ports, int max)
{
    char line[512];
    int count = 0;
    FILE *file = fopen("/proc/net/tcp", "re");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned port, state;
        unsigned long inode;
        if (sscanf(line, " %*d: %*x:%x %*x:%*x %x %*s %*s %*s %*d %*d %lu", &port, &state,
                   &inode) != 3 ||
            state != 0x0a || count == max || !owns_socket(pid, inode))
            continue;
        ports[count++] = (uint16_t)port;
    }
    fclose(file);
    return count;
}

TEST(garbage_at_the_port_of_ucx_does_not_stop_a_shard)
{
    enum { COUNT = 200 };
    static int fds[COUNT];
    uint16_t ports[4];
    const pid_t pid = cluster.shards[0];
    const size_t before = cluster_resident_bytes(pid);
    const unsigned descriptors = descriptors_of(pid);
    unsigned peak = descriptors;
    const int port_count = listening_ports(pid, ports, 4);
    const pthread_t thread = begin_training();
    for (int p = 0; p < port_count; p++) {
        annoy(ports[p], fds, COUNT);
        poll(NULL, 0, 200); // it may take them all
        peak = descriptors_of(pid);
        for (int i = 0; i < COUNT; i++) close(fds[i]);
    }
    end_training(thread);
    printf("note: shard: %d port(s) of UCX, %d connections of garbage each: resident %zu KiB "
           "before, %zu "
           "KiB after; descriptors %u before, %u while they stood, %u after\n",
           port_count, COUNT, before / 1024, cluster_resident_bytes(pid) / 1024, descriptors, peak,
           descriptors_of(pid));
    train_pushing(0.5f, 2);
}

/* ---- nothing to do ---- */

/* What they do again and again they do in every window. The least counts: what a host takes from its virtual
 * machine is counted as used. */
TEST(an_idle_cluster_costs_less_than_one_percent_of_a_core)
{
    enum { WINDOWS = 3, WATCH_MS = 1000 };
    const pid_t pids[] = { cluster.coordinator, cluster.shards[0], cluster.shards[1] };
    uint64_t before[3], least_us[3] = { UINT64_MAX, UINT64_MAX, UINT64_MAX };
    for (int window = 0; window < WINDOWS; window++) {
        for (int i = 0; i < 3; i++) before[i] = processor_time(pids[i]).ran_ns;
        poll(NULL, 0, WATCH_MS);
        for (int i = 0; i < 3; i++) {
            const uint64_t us = (processor_time(pids[i]).ran_ns - before[i]) / 1000;
            if (us < least_us[i]) least_us[i] = us;
        }
    }
    for (int i = 0; i < 3; i++) {
        printf("note: idle daemon %d: %.3f %% of a core\n", i, (double)least_us[i] / WATCH_MS / 10);
        ck_assert_uint_lt(least_us[i], WATCH_MS * 10); // 1 %
    }
}

static uint64_t written_bytes(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/io", (int)pid);
    const char *text = strstr(cluster_text(path), "\nwrite_bytes: ");
    ck_assert_ptr_nonnull(text);
    return strtoull(text + strlen("\nwrite_bytes: "), NULL, 10);
}

/* What all daemons have written. */
static uint64_t all_written(void)
{
    return written_bytes(cluster.coordinator) + written_bytes(cluster.shards[0]) +
           written_bytes(cluster.shards[1]);
}

TEST(an_empty_step_writes_nothing_to_disk)
{
    enum { AT_A_TIME = 20, IN_A_ROW = 5 };
    uint64_t before;
    int clean = 0;
    train(1);
    // the events of the job's beginning are stored within a heartbeat: nothing is behind them
    await((before = all_written(), train(AT_A_TIME),
           clean = all_written() == before ? clean + 1 : 0, clean == IN_A_ROW));
}

SUITE(90, set_up, stop);
