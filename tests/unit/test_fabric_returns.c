/* Two processes with a ucx fabric send to each other without end. Again and again every packet between them
 * vanishes (a filter of their sockets), they give each other up as after a lease, and the packets come again:
 * both live, and meet. A few returns by default, hundreds with CAIRN_TEST_LONG=1, or CAIRN_TEST_RETURNS=N. */
#include <check.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/fabric_node.h"
#include "tests/support/now.h"
#include "tests/support/suite.h"

enum {
    BIG = 1 << 20,
    WINDOW = 16,
    RETURNS = 8,
    RETURNS_LONG = 500,
    MEET_MS = 5000, /* what went before the cut may be tried again late: TCP doubles its pauses */
};

struct address {
    size_t count;
    uint8_t bytes[CAIRN_FABRIC_ADDRESS_MAX];
};

/* What a process is told. */
enum order { CUT, GIVE_UP, RETURN, MEET, LEAVE };

static struct news {
    _Atomic unsigned received, obeyed;
} * news; /* [2], shared */

static uint8_t payload[BIG];

static void pause_ms(unsigned ms)
{
    nanosleep(&(struct timespec) { .tv_nsec = (long)ms * 1000000 }, NULL);
}

/* -- a process ---------------------------------------------------------------------------------- */

static struct {
    struct fabric *fabric;
    struct fabric_peer *peer; /* NULL: there is none */
    struct address other;
    struct news *news;
    unsigned flying;
} self;

static void on_received(void *landing, cairn_status status)
{
    free(landing);
    if (status == CAIRN_OK) atomic_fetch_add(&self.news->received, 1);
}

static void on_message(void *arg, const void *header, size_t header_bytes, size_t payload_bytes,
                       struct fabric_message *message)
{
    (void)arg, (void)header, (void)header_bytes, (void)payload_bytes;
    void *landing = malloc(BIG);
    if (fabric_receive(message, landing, BIG, on_received, landing) != CAIRN_OK) abort();
}

static void on_sent(void *arg, cairn_status status)
{
    (void)arg, (void)status;
    self.flying--;
}

static void send_some(void)
{
    const uint64_t header = 0;
    while (self.peer != NULL && self.flying < WINDOW) {
        if (fabric_send(self.peer, &header, sizeof header, payload, BIG, on_sent, NULL) != CAIRN_OK)
            return;
        self.flying++;
    }
}

static void give_up(void)
{
    fabric_peer_close(self.peer);
    self.peer = NULL;
}

static void on_down(void *arg, struct fabric_peer *peer, cairn_status why)
{
    (void)arg, (void)peer, (void)why;
    give_up();
}

static void meet(void)
{
    if (self.peer != NULL) return;
    if (fabric_connect_to(self.fabric, self.other.bytes, self.other.count, on_down, NULL,
                          &self.peer) != CAIRN_OK)
        self.peer = NULL;
}

static void obey(enum order order)
{
    switch (order) {
    case CUT: node_cut_sockets(true); break;
    case RETURN: node_cut_sockets(false); break;
    case GIVE_UP: give_up(); break;
    case MEET: meet(); break;
    case LEAVE: break;
    }
}

static void drive(int fd)
{
    for (;;) {
        struct pollfd wait[] = { { .fd = fd, .events = POLLIN },
                                 { .fd = fabric_event_fd(self.fabric), .events = POLLIN } };
        uint8_t order;
        while (fabric_progress(self.fabric) > 0 || fabric_arm(self.fabric) != CAIRN_OK)
            if (poll(wait, 1, 0) != 0) break;
        send_some();
        poll(wait, 2, 10);
        if (wait[0].revents == 0) continue;
        if (recv(fd, &order, sizeof order, 0) <= 0 || order == LEAVE) return;
        obey(order);
        atomic_fetch_add(&self.news->obeyed, 1);
    }
}

static void live(int fd, struct news *own)
{
    const struct fabric_options options = { .on_message = on_message };
    struct sentence why;
    struct address address;
    self.news = own;
    if (fabric_open("ucx", &options, &self.fabric, &why) != CAIRN_OK) _exit(3);
    memcpy(address.bytes, fabric_own_address(self.fabric, &address.count),
           CAIRN_FABRIC_ADDRESS_MAX);
    if (send(fd, &address, sizeof address, 0) < 0) _exit(4);
    if (recv(fd, &self.other, sizeof self.other, 0) <= 0) _exit(5);
    drive(fd);
    fabric_close(self.fabric);
    _exit(self.flying == 0 ? 0 : 6);
}

/* -- the two of them ---------------------------------------------------------------------------- */

static struct {
    pid_t pid;
    int fd;
    struct address address;
} both[2];

static void start(int which)
{
    both[which].pid = node_fork(&both[which].fd);
    if (both[which].pid == 0) live(both[which].fd, &news[which]);
    ck_assert_int_eq(recv(both[which].fd, &both[which].address, sizeof both[which].address, 0),
                     (ssize_t)sizeof both[which].address);
}

static void check_alive(const char *when)
{
    int status;
    for (int i = 0; i < 2; i++)
        ck_assert_msg(waitpid(both[i].pid, &status, WNOHANG) == 0, "%s: process %d ended: %#x",
                      when, i, status);
}

static void say(int which, enum order order)
{
    const uint8_t byte = (uint8_t)order;
    ck_assert_int_eq(send(both[which].fd, &byte, 1, MSG_NOSIGNAL), 1);
}

/* Said until each has got that many more. */
static void meet_again(unsigned more)
{
    unsigned goals[2];
    const int64_t begin_ms = now_ms();
    for (int i = 0; i < 2; i++) goals[i] = atomic_load(&news[i].received) + more;
    while (atomic_load(&news[0].received) < goals[0] || atomic_load(&news[1].received) < goals[1]) {
        check_alive("meets");
        ck_assert_msg(now_ms() - begin_ms < MEET_MS, "they do not meet: %u of %u, %u of %u",
                      atomic_load(&news[0].received), goals[0], atomic_load(&news[1].received),
                      goals[1]);
        for (int i = 0; i < 2; i++) say(i, MEET);
        pause_ms(20);
    }
}

static void vanish_and_return(void)
{
    const int gives_up = rand() % 4; // one of them, or both
    for (int i = 0; i < 2; i++) say(i, CUT);
    pause_ms(10 + (unsigned)rand() % 60);
    for (int i = 0; i < 2; i++)
        if (gives_up >= 2 || gives_up == i) say(i, GIVE_UP);
    pause_ms((unsigned)rand() % 60);
    check_alive("is cut off");
    for (int i = 0; i < 2; i++) say(i, RETURN);
    pause_ms((unsigned)rand() % 30);
    meet_again(4);
}

static unsigned returns_wanted(void)
{
    const char *wanted = getenv("CAIRN_TEST_RETURNS");
    if (wanted != NULL) return (unsigned)atoi(wanted);
    return getenv("CAIRN_TEST_LONG") != NULL ? RETURNS_LONG : RETURNS;
}

static void start_both(void)
{
    for (int i = 0; i < 2; i++) start(i);
    for (int i = 0; i < 2; i++)
        ck_assert_int_gt(send(both[i].fd, &both[1 - i].address, sizeof both[i].address, 0), 0);
    meet_again(4);
}

static void leave_both(void)
{
    for (int i = 0; i < 2; i++) say(i, LEAVE);
    for (int i = 0; i < 2; i++) {
        int status;
        ck_assert_int_eq(waitpid(both[i].pid, &status, 0), both[i].pid);
        ck_assert_msg(status == 0, "process %d ended: %#x", i, status);
        close(both[i].fd);
    }
}

TEST(no_return_of_a_node_that_vanished_ends_a_process)
{
    const unsigned returns = returns_wanted();
    int64_t longest_ms = 0;
    srand((unsigned)time(NULL));
    start_both();
    for (unsigned i = 0; i < returns; i++) {
        const int64_t begin_ms = now_ms();
        vanish_and_return();
        if (now_ms() - begin_ms > longest_ms) longest_ms = now_ms() - begin_ms;
    }
    leave_both();
    printf("note: %u returns, the longest took %u ms\n", returns, (unsigned)longest_ms);
}

/* Each has more to send than the connection takes, and says goodbye on it. */
TEST(two_nodes_may_close_at_the_same_time_what_is_full)
{
    for (unsigned i = 0; i < returns_wanted(); i++) {
        start_both();
        for (int k = 0; k < 2; k++) say(k, CUT);
        pause_ms(30);
        for (int k = 0; k < 2; k++) say(k, RETURN);
        leave_both();
    }
}

SUITE(3000);

int main(void)
{
    news = mmap(NULL, 2 * sizeof *news, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return news == MAP_FAILED ? 1 : suite_main();
}
