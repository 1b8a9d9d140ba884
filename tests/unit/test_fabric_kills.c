/* A process with a fabric between hosts, the survivor, lives through the deaths of its peers, which are
 * killed in the middle of what both send and receive. A few dozen by default, thousands with
 * CAIRN_TEST_LONG=1, or CAIRN_TEST_KILLS=N of them. Over stream and sealed every other one is killed before
 * the connections are made. CAIRN_TEST_KILLS_EARLY=1, by hand: over ucx, too, which UCX does not always
 * survive (proto/fabric/README.md). */
#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/fabric/fabric.h"
#include "tests/support/fabric_node.h"
#include "tests/support/suite.h"

enum { BIG = 1 << 20, WINDOW = 6, KILLS = 40, KILLS_LONG = 3000, DEADLINE_MS = 10000 };

/* What the survivor says of itself; the test reads it. */
struct news {
    _Atomic unsigned started, received, cut, sent, down;
};

struct address {
    size_t count;
    uint8_t bytes[CAIRN_FABRIC_ADDRESS_MAX];
};

static const char *const kinds[] = { "ucx", "stream", "sealed" };
static const char *kind;
static struct news *news;
static uint8_t payload[BIG];

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void sleep_us(uint64_t us)
{
    const struct timespec time = { .tv_sec = (time_t)(us / 1000000),
                                   .tv_nsec = (long)(us % 1000000) * 1000 };
    nanosleep(&time, NULL);
}

/* -- both sides: they receive what comes, and send without end ----------------------------------- */

struct landing {
    uint64_t checksum;
    uint8_t bytes[BIG];
};

static void on_received(void *landing, cairn_status status)
{
    free(landing);
    atomic_fetch_add(status == CAIRN_OK ? &news->received : &news->cut, 1);
}

static void receive(struct fabric_message *message, bool is_far)
{
    struct landing *landing = malloc(sizeof *landing);
    atomic_fetch_add(&news->started, 1);
    const cairn_status status = is_far
                                    ? fabric_receive_far(message, landing->bytes, BIG,
                                                         &landing->checksum, on_received, landing)
                                    : fabric_receive(message, landing->bytes, BIG, on_received,
                                                     landing);
    if (status != CAIRN_OK) on_received(landing, status);
}

/* At once, by turns around the caches and not; each fourth when the next one comes. */
static void on_message(void *arg, const void *header, size_t header_bytes, size_t payload_bytes,
                       struct fabric_message *message)
{
    static struct fabric_message *held;
    static unsigned count;
    (void)arg, (void)header, (void)header_bytes, (void)payload_bytes;
    if (held != NULL) receive(held, true);
    held = NULL;
    if (count++ % 4 == 3)
        held = message;
    else
        receive(message, count % 2 == 0);
}

/* A connection of ours; never freed: sends may end after it. */
struct link {
    struct fabric_peer *peer; /* NULL: it is down */
};

static void send_one(struct link *link);

static void on_sent(void *link, cairn_status status)
{
    if (status != CAIRN_OK) return;
    atomic_fetch_add(&news->sent, 1);
    send_one(link);
}

static void send_one(struct link *link)
{
    const uint64_t header = 0;
    if (link->peer == NULL) return;
    const cairn_status status = fabric_send(link->peer, &header, sizeof header, payload, BIG,
                                            on_sent, link);
    (void)status; // what is down says so by on_down
}

static void on_down(void *arg, struct fabric_peer *peer, cairn_status why)
{
    (void)why;
    ((struct link *)arg)->peer = NULL;
    fabric_peer_close(peer);
    atomic_fetch_add(&news->down, 1);
}

static struct fabric *open_fabric(struct address *address_out)
{
    struct sentence why;
    struct fabric *fabric;
    const struct fabric_options options = { .on_message = on_message };
    if (fabric_open(kind, &options, &fabric, &why) != CAIRN_OK) _exit(3);
    const void *bytes = fabric_own_address(fabric, &address_out->count);
    memcpy(address_out->bytes, bytes, address_out->count);
    return fabric;
}

static void connect_and_send(struct fabric *fabric, const struct address *address)
{
    struct link *link = calloc(1, sizeof *link);
    if (fabric_connect_to(fabric, address->bytes, address->count, on_down, link, &link->peer) !=
        CAIRN_OK) {
        atomic_fetch_add(&news->down, 1);
        return;
    }
    for (unsigned i = 0; i < WINDOW; i++) send_one(link);
}

/* Connects to whom the socket names, until it ends. */
static void drive(struct fabric *fabric, int fd)
{
    for (;;) {
        struct pollfd wait[] = { { .fd = fd, .events = POLLIN },
                                 { .fd = fabric_event_fd(fabric), .events = POLLIN } };
        while (fabric_progress(fabric) > 0 || fabric_arm(fabric) != CAIRN_OK)
            if (poll(wait, 1, 0) != 0) break;
        if (poll(wait, 2, 100) < 0 || wait[0].revents == 0) continue;
        struct address address;
        if (recv(fd, &address, sizeof address, 0) <= 0) return;
        connect_and_send(fabric, &address);
    }
}

/* -- the two processes -------------------------------------------------------------------------- */

struct process {
    pid_t pid;
    int fd;
    struct address address;
};

/* Forks; the child opens a fabric, says its address, and lives until the socket ends or it is killed. */
static void start(struct process *process, const struct address *to)
{
    process->pid = node_fork(&process->fd);
    if (process->pid == 0) {
        static struct news nobodys;
        struct address own;
        if (to != NULL) news = &nobodys;
        struct fabric *fabric = open_fabric(&own);
        if (send(process->fd, &own, sizeof own, 0) < 0) _exit(4);
        if (to != NULL) connect_and_send(fabric, to);
        drive(fabric, process->fd);
        fabric_close(fabric);
        _exit(0);
    }
    ck_assert_int_eq(recv(process->fd, &process->address, sizeof process->address, 0),
                     (ssize_t)sizeof process->address);
}

static void await(const char *what, const _Atomic unsigned *value, unsigned target, pid_t of)
{
    const uint64_t deadline = now_us() + DEADLINE_MS * 1000;
    int status;
    while (atomic_load(value) < target) {
        ck_assert_msg(waitpid(of, &status, WNOHANG) == 0, "the survivor ended: %#x", status);
        ck_assert_msg(now_us() < deadline, "%s: %u of %u", what, atomic_load(value), target);
        sleep_us(50);
    }
}

static void live_and_die(struct process *survivor, bool early)
{
    static struct process victim;
    const unsigned down = atomic_load(&news->down), received = atomic_load(&news->received),
                   sent = atomic_load(&news->sent);
    start(&victim, &survivor->address);
    ck_assert_int_gt(send(survivor->fd, &victim.address, sizeof victim.address, 0), 0);
    if (!early) { // both ways have carried something
        await("received", &news->received, received + 2, survivor->pid);
        await("sent", &news->sent, sent + 2, survivor->pid);
    }
    sleep_us((uint64_t)rand() % 3000);
    node_kill(victim.pid, victim.fd);
    await("down", &news->down, down + 1, survivor->pid);
}

static unsigned kills_wanted(void)
{
    const char *wanted = getenv("CAIRN_TEST_KILLS");
    if (wanted != NULL) return (unsigned)atoi(wanted);
    if (getenv("CAIRN_TEST_LONG") != NULL) return KILLS_LONG;
    return KILLS;
}

TEST_EACH(no_peers_death_ends_a_process_or_loses_a_receive, 0, 3)
{
    static struct process survivor;
    kind = kinds[_i];
    const unsigned kills = kills_wanted();
    const bool early = getenv("CAIRN_TEST_KILLS_EARLY") != NULL;
    srand((unsigned)time(NULL));
    memset(news, 0, sizeof *news);
    start(&survivor, NULL);
    for (unsigned i = 0; i < kills; i++) live_and_die(&survivor, early || (_i > 0 && i % 2 == 1));
    int status;
    close(survivor.fd);
    ck_assert_int_eq(waitpid(survivor.pid, &status, 0), survivor.pid);
    ck_assert_msg(status == 0, "the survivor ended: %#x", status);
    printf("note: %u peers killed, %u receives cut off\n", kills, atomic_load(&news->cut));
    ck_assert_uint_gt(atomic_load(&news->cut), 0);
    ck_assert_uint_eq(atomic_load(&news->started),
                      atomic_load(&news->received) + atomic_load(&news->cut));
}

SUITE(1200);

int main(void)
{
    news = mmap(NULL, sizeof *news, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return news == MAP_FAILED ? 1 : suite_main();
}
