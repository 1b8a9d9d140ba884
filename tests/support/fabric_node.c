#include "tests/support/fabric_node.h"
#include "tests/support/now.h"

#include "proto/fabric/backend.h"

#include <check.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    FDS_MAX = 1024 /* that a test has open */,
    NODES_MAX = 8,
    MEMORIES_MAX = 256,
    FORKS_MAX = 64
};

/* What a test has open. */
static struct node *nodes[NODES_MAX];
static unsigned node_count;
static struct node_memory memories[MEMORIES_MAX]; /* without their regions, which the nodes close */
static unsigned memory_count;
static struct {
    pid_t pid;
    int fd;
} forks[FORKS_MAX];
static unsigned fork_count;

void node_cut_sockets(bool is_cut)
{
    struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    const struct sock_fprog program = { .len = 1, .filter = &nothing };
    for (int fd = 3; fd < FDS_MAX; fd++) {
        int protocol = 0;
        socklen_t bytes = sizeof protocol;
        if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &bytes) != 0 ||
            protocol != IPPROTO_TCP)
            continue;
        (void)setsockopt(fd, SOL_SOCKET, is_cut ? SO_ATTACH_FILTER : SO_DETACH_FILTER, &program,
                         sizeof program);
    }
}

void fill(uint8_t *bytes, size_t count, uint64_t id)
{
    for (size_t i = 0; i < count; i++) bytes[i] = (uint8_t)(id * 131 + i * 7 + (i >> 8));
}

bool is_filled(const uint8_t *bytes, size_t count, uint64_t id)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != (uint8_t)(id * 131 + i * 7 + (i >> 8))) return false;
    return true;
}

static void on_sent(void *arg, cairn_status status)
{
    struct node *node = arg;
    node->sent++;
    if (status != CAIRN_OK) node->send_errors++;
}

static void on_received(void *arg, cairn_status status)
{
    struct arrival *arrival = arg;
    arrival->status = status;
    arrival->is_over = true;
    arrival->node->received++;
    if (status != CAIRN_OK) arrival->node->receive_errors++;
    if (status == CAIRN_OK && arrival->note.answer == 1)
        node_send(arrival->node, arrival->node->answer_peer, arrival->note.id, arrival->buffer,
                  arrival->payload_bytes);
}

static void on_message(void *arg, const void *header, size_t header_bytes, size_t payload_bytes,
                       struct fabric_message *message)
{
    struct node *node = arg;
    ck_assert_uint_eq(header_bytes, sizeof(struct note));
    ck_assert_uint_lt(node->arrived, NODE_ARRIVALS_MAX);
    ck_assert_int_eq(message == NULL, payload_bytes == 0);
    struct arrival *arrival = &node->arrivals[node->arrived++];
    *arrival =
        (struct arrival) { .payload_bytes = payload_bytes, .message = message, .node = node };
    memcpy(&arrival->note, header, sizeof arrival->note);
    if (message == NULL) return;
    ck_assert_uint_eq(message->payload_bytes, payload_bytes);
    if (node->manner == NODE_RECEIVES) node_receive(node, node->arrived - 1);
    if (node->manner == NODE_DROPS) fabric_drop(message);
}

static void on_down(void *arg, struct fabric_peer *peer, cairn_status why)
{
    struct node *node = arg;
    (void)peer;
    node->downs++;
    node->why_down = why;
}

static void on_refused(void *arg, const char *what)
{
    struct node *node = arg;
    node->refusals++;
    snprintf(node->refused, sizeof node->refused, "%s", what);
}

void node_drop(struct node *node, unsigned i)
{
    fabric_drop(node->arrivals[i].message);
    node->arrivals[i].message = NULL;
}

void node_receive(struct node *node, unsigned i)
{
    struct arrival *arrival = &node->arrivals[i];
    arrival->buffer = calloc(1, arrival->payload_bytes);
    ck_assert_int_eq(fabric_receive(arrival->message, arrival->buffer, arrival->payload_bytes,
                                    on_received, arrival),
                     CAIRN_OK);
    arrival->message = NULL;
    (void)node;
}

void node_open(struct node *node, const char *kind, const struct fabric_options *options)
{
    struct fabric_options own = { 0 };
    struct sentence why = { "" };
    if (options != NULL) own = *options;
    own.on_message = on_message;
    own.on_message_arg = node;
    own.on_refused = on_refused;
    memset(node, 0, sizeof *node);
    const cairn_status status = fabric_open(kind, &own, &node->fabric, &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
    for (unsigned i = 0; i < node_count; i++)
        if (nodes[i] == node) return;
    ck_assert_uint_lt(node_count, NODES_MAX);
    nodes[node_count++] = node;
}

void node_open_fails(const char *kind, const struct fabric_options *options, cairn_status status,
                     const char *word)
{
    struct fabric_options own = *options;
    struct fabric *fabric;
    struct sentence why = { "" };
    own.on_message = on_message;
    const cairn_status got = fabric_open(kind, &own, &fabric, &why);
    ck_assert_msg(got == status && strstr(why.text, word) != NULL, "%s: %d: %s", word, (int)got,
                  why.text);
}

void node_close(struct node *node)
{
    fabric_close(node->fabric);
    node->fabric = NULL;
    for (unsigned i = 0; i < node->arrived; i++) free(node->arrivals[i].buffer);
    node->arrived = 0;
    for (unsigned i = 0; i < node_count; i++)
        if (nodes[i] == node) nodes[i] = nodes[--node_count];
}

static void memory_free(const struct node_memory *memory)
{
    munmap(memory->at, memory->bytes);
    close(memory->fd);
}

void nodes_close(void)
{
    while (fork_count > 0) node_kill(forks[0].pid, forks[0].fd);
    while (node_count > 0) node_close(nodes[node_count - 1]);
    while (memory_count > 0) memory_free(&memories[--memory_count]);
}

struct fabric_peer *node_connect(struct node *node, const void *address, size_t bytes)
{
    struct fabric_peer *peer;
    ck_assert_int_eq(fabric_connect_to(node->fabric, address, bytes, on_down, node, &peer),
                     CAIRN_OK);
    return peer;
}

struct fabric_peer *node_connect_to(struct node *node, const struct node *other)
{
    size_t bytes;
    const void *address = fabric_own_address(other->fabric, &bytes);
    return node_connect(node, address, bytes);
}

void node_send(struct node *node, struct fabric_peer *peer, uint64_t id, const void *payload,
               size_t payload_bytes)
{
    const struct note note = { .id = id };
    ck_assert_int_eq(fabric_send(peer, &note, sizeof note, payload, payload_bytes, on_sent, node),
                     CAIRN_OK);
}

/* One turn: progress, or sleep on the descriptors if there is nothing to do. */
static void turn(struct node *a, struct node *b)
{
    unsigned count = fabric_progress(a->fabric);
    if (b != NULL) count += fabric_progress(b->fabric);
    if (count > 0) return;
    struct pollfd fds[2] = { { .fd = fabric_event_fd(a->fabric), .events = POLLIN },
                             { .fd = b != NULL ? fabric_event_fd(b->fabric) : -1,
                               .events = POLLIN } };
    if (fabric_arm(a->fabric) != CAIRN_OK) return;
    if (b != NULL && fabric_arm(b->fabric) != CAIRN_OK) return;
    poll(fds, 2, 5);
}

void pump(struct node *a, struct node *b, const unsigned *value, unsigned target)
{
    const int64_t deadline = now_ms() + NODE_DEADLINE_MS;
    while (*value < target) {
        turn(a, b);
        ck_assert_msg(now_ms() < deadline, "%u of %u after %d ms", *value, target,
                      NODE_DEADLINE_MS);
    }
}

void node_pass(struct node *from, struct node *to, struct fabric_peer *peer, uint64_t id,
               const void *payload, size_t payload_bytes)
{
    const unsigned arrived = to->arrived;
    node_send(from, peer, id, payload, payload_bytes);
    pump(from, to != from ? to : NULL, &to->arrived, arrived + 1);
}

void node_carry(struct node *from, struct node *to, struct fabric_peer *peer, uint64_t id,
                void *payload, size_t payload_bytes)
{
    const unsigned i = to->arrived, sent = from->sent, received = to->received;
    fill(payload, payload_bytes, id);
    node_pass(from, to, peer, id, payload, payload_bytes);
    if (to->manner == NODE_HOLDS) node_receive(to, i);
    pump(from, to, &to->received, received + 1);
    pump(from, to, &from->sent, sent + 1);
    ck_assert_int_eq(to->arrivals[i].status, CAIRN_OK);
    ck_assert(is_filled(to->arrivals[i].buffer, payload_bytes, id));
}

void pump_for_ms(struct node *a, struct node *b, unsigned ms)
{
    const int64_t end = now_ms() + ms;
    while (now_ms() < end) turn(a, b);
}

/* ---- memory that is read by reference ---- */

struct node_memory node_memory_noted(const struct node *node, size_t bytes, const char *note)
{
    struct node_memory memory = { .bytes = bytes,
                                  .fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING) };
    ck_assert_int_eq(ftruncate(memory.fd, (off_t)bytes), 0);
    memory.at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
    ck_assert_ptr_ne(memory.at, MAP_FAILED);
    ck_assert_int_eq(fcntl(memory.fd, F_ADD_SEALS, CAIRN_FABRIC_SEALS), 0);
    memset(memory.at, 0, bytes); // what has no pages is not read
    ck_assert_int_eq(fabric_region_add(node->fabric, memory.at, bytes, memory.fd, note,
                                       note != NULL ? strlen(note) : 0, &memory.region),
                     CAIRN_OK);
    ck_assert_uint_lt(memory_count, MEMORIES_MAX);
    memories[memory_count++] = memory;
    return memory;
}

struct node_memory node_memory_make(const struct node *node, size_t bytes)
{
    return node_memory_noted(node, bytes, NULL);
}

void node_memory_end(struct node_memory *memory)
{
    if (memory->region != NULL) fabric_region_drop(memory->region);
    for (unsigned i = 0; i < memory_count; i++)
        if (memories[i].at == memory->at) memories[i] = memories[--memory_count];
    memory_free(memory);
}

void node_agree(struct node *a, struct node *b, const struct fabric_peer *peer, const void *payload,
                size_t payload_bytes)
{
    for (int i = 0; i < 2000; i++) {
        if (strcmp(fabric_payload_path(peer, payload, payload_bytes), "one-sided") == 0) return;
        pump_for_ms(a, b, 1);
    }
    ck_abort_msg("they do not agree");
}

struct fabric_stats node_stats(const struct node *node)
{
    struct fabric_stats stats;
    fabric_stats(node->fabric, &stats);
    return stats;
}

/* ---- another process ---- */

pid_t node_fork(int *fd_out)
{
    int fds[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    const pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    *fd_out = fds[pid == 0];
    close(fds[pid != 0]);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); // a failed test leaves nobody behind
        return 0;
    }
    ck_assert_uint_lt(fork_count, FORKS_MAX);
    forks[fork_count].pid = pid;
    forks[fork_count++].fd = *fd_out;
    return pid;
}

void node_kill(pid_t pid, int fd)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(fd);
    for (unsigned i = 0; i < fork_count; i++)
        if (forks[i].pid == pid) forks[i] = forks[--fork_count];
}

void node_tell_address(int fd, const struct node *node)
{
    size_t count;
    const void *address = fabric_own_address(node->fabric, &count);
    ck_assert_int_eq(send(fd, address, count, MSG_NOSIGNAL), (ssize_t)count);
}

struct fabric_peer *node_hear_address(int fd, struct node *node)
{
    uint8_t address[CAIRN_FABRIC_ADDRESS_MAX];
    const ssize_t count = recv(fd, address, sizeof address, 0);
    ck_assert_int_gt(count, 0);
    return node_connect(node, address, (size_t)count);
}
