/* What the mapped fabric promises beyond every fabric: payloads that are read where they lie, copies that are
 * safe from their sender, and neighbours who die, stall or give up. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/descriptors.h"
#include "tests/support/fabric_node.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

enum { BYTES = 1 << 20 };

/* a sends to b and c. */
static struct node a, b, c;
static struct fabric_peer *to_b, *to_c;
static uint8_t bytes[BYTES];

static unsigned shown, gone;
static struct fabric_mapping *last_shown;

static void on_mapping(void *arg, struct fabric_mapping *mapping)
{
    (void)arg;
    last_shown = mapping;
    shown++;
}

static void on_mapping_gone(void *arg, struct fabric_mapping *mapping)
{
    (void)arg;
    ck_assert_ptr_eq(mapping, last_shown);
    gone++;
}

static void on_nothing(void *arg, const void *header, size_t header_bytes, size_t payload_bytes,
                       struct fabric_message *message)
{
    (void)arg, (void)header, (void)header_bytes, (void)payload_bytes, (void)message;
}

static void open_three(void)
{
    const struct fabric_options options = { .on_mapping = on_mapping,
                                            .on_mapping_gone = on_mapping_gone };
    shown = gone = 0;
    node_open(&a, "mapped", &options);
    node_open(&b, "mapped", &options);
    node_open(&c, "mapped", &options);
    to_b = node_connect_to(&a, &b);
    to_c = node_connect_to(&a, &c);
}

static void close_three(void)
{
    node_close(&a);
    node_close(&b);
    node_close(&c);
}

struct memory {
    int fd;
    uint8_t *at;
    struct fabric_region *region;
};

static struct memory share(struct node *node, const char *note)
{
    struct memory memory = { .fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING) };
    ck_assert_int_eq(ftruncate(memory.fd, BYTES), 0);
    memory.at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
    ck_assert_ptr_ne(memory.at, MAP_FAILED);
    ck_assert_int_eq(fcntl(memory.fd, F_ADD_SEALS, CAIRN_FABRIC_SEALS), 0);
    memset(memory.at, 0, BYTES); // what has no pages is not read
    ck_assert_int_eq(fabric_region_add(node->fabric, memory.at, BYTES, memory.fd, note,
                                       strlen(note), &memory.region),
                     CAIRN_OK);
    return memory;
}

static void unshare_memory(struct memory *memory)
{
    fabric_region_drop(memory->region);
    munmap(memory->at, BYTES);
    close(memory->fd);
}

/* Of a node that is closed: its fabric has dropped the region. */
static void unshare_closed(struct memory *memory)
{
    munmap(memory->at, BYTES);
    close(memory->fd);
}

static const uint8_t *view_of(const struct node *node, unsigned i)
{
    const uint8_t *view = fabric_message_view(node->arrivals[i].message);
    ck_assert_ptr_nonnull(view);
    return view;
}

static void drop(struct node *node, unsigned i)
{
    fabric_drop(node->arrivals[i].message);
    node->arrivals[i].message = NULL;
}

/* -- oneself ------------------------------------------------------------------------------------- */

/* One end that is both: a shard that relays to itself. */
static void speaks_with_itself(const char *kind)
{
    shown = gone = 0;
    node_open(
        &a, kind,
        &(struct fabric_options) { .on_mapping = on_mapping, .on_mapping_gone = on_mapping_gone });
    struct fabric_peer *to_a = node_connect_to(&a, &a);
    struct memory memory = share(&a, "sums");
    fill(memory.at, BYTES, 1);
    fill(bytes, BYTES, 2);
    ck_assert_str_eq(fabric_peer_path(to_a), "mapped");
    node_send(&a, to_a, 1, memory.at, BYTES);
    pump(&a, NULL, &a.arrived, 1);
    ck_assert_uint_eq(shown, 1);
    memory.at[5000] ^= 0xff;
    ck_assert_uint_eq(view_of(&a, 0)[5000], memory.at[5000]);
    pump_for_ms(&a, NULL, 20);
    ck_assert_uint_eq(a.sent, 0);
    drop(&a, 0);
    pump(&a, NULL, &a.sent, 1);
    node_send(&a, to_a, 2, bytes, BYTES); // by the staging area
    node_send(&a, to_a, 3, bytes, 100);   // in its frame
    pump(&a, NULL, &a.arrived, 3);
    for (unsigned i = 1; i < 3; i++) node_receive(&a, i);
    pump(&a, NULL, &a.received, 2);
    ck_assert_uint_eq(a.send_errors + a.receive_errors, 0);
    unshare_memory(&memory);
}

TEST(a_node_reads_its_own_memory_where_it_lies)
{
    speaks_with_itself("mapped");
    node_close(&a);
}

TEST(the_auto_fabric_reaches_its_own_node_by_memory)
{
    speaks_with_itself("auto");
    node_close(&a);
}

TEST(a_node_that_gives_itself_up_has_its_loans_back_and_its_copies_still)
{
    node_open(&a, "mapped", NULL);
    struct fabric_peer *to_a = node_connect_to(&a, &a);
    struct memory memory = share(&a, "sums");
    fill(bytes, BYTES, 2);
    node_send(&a, to_a, 1, memory.at, BYTES);
    node_send(&a, to_a, 2, bytes, BYTES);
    pump(&a, NULL, &a.arrived, 2);
    fabric_peer_close(to_a);
    pump(&a, NULL, &a.sent, 2);
    const unsigned staged = a.arrivals[0].note.id == 2 ? 0 : 1;
    ck_assert(is_filled(view_of(&a, staged), BYTES, 2));
    drop(&a, staged);
    to_a = node_connect_to(&a, &a);
    node_send(&a, to_a, 3, memory.at, BYTES); // held, and its peer open, when all is closed
    pump(&a, NULL, &a.arrived, 3);
    node_close(&a);
    unshare_closed(&memory);
}

/* -- payloads ----------------------------------------------------------------------------------- */

TEST(a_payload_of_a_region_is_read_where_it_lies_and_is_on_loan_until_it_is_dropped)
{
    open_three();
    struct memory memory = share(&a, "grad");
    fill(memory.at, BYTES, 1);
    node_send(&a, to_b, 1, memory.at + 4096, BYTES - 4096);
    pump(&a, &b, &b.arrived, 1);
    memory.at[5000] ^= 0xff; // a sender that is wrong, which shows that nothing was copied
    ck_assert_uint_eq(view_of(&b, 0)[5000 - 4096], memory.at[5000]);
    pump_for_ms(&a, &b, 20);
    ck_assert_uint_eq(a.sent, 0);
    drop(&b, 0);
    pump(&a, &b, &a.sent, 1);
    ck_assert_uint_eq(a.send_errors, 0);
    unshare_memory(&memory);
    close_three();
}

TEST(any_other_payload_is_the_callers_again_at_once_and_the_copy_is_safe_from_it)
{
    open_three();
    fill(bytes, BYTES, 1);
    node_send(&a, to_b, 1, bytes, BYTES);
    pump(&a, &b, &a.sent, 1);
    memset(bytes, 0, BYTES);
    pump(&a, &b, &b.arrived, 1);
    ck_assert(is_filled(view_of(&b, 0), BYTES, 1));
    node_receive(&b, 0);
    pump(&a, &b, &b.received, 1);
    ck_assert(is_filled(b.arrivals[0].buffer, BYTES, 1));
    close_three();
}

static char refusal[512];
static unsigned refusals;

static void on_refused(void *arg, const char *what)
{
    (void)arg;
    snprintf(refusal, sizeof refusal, "%s", what);
    refusals++;
}

/* This process may have no more addresses than it has. */
static void bound_addresses(struct rlimit *was)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert(file != NULL && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    ck_assert_int_eq(getrlimit(RLIMIT_AS, was), 0);
    const struct rlimit low = { pages * (rlim_t)sysconf(_SC_PAGESIZE), was->rlim_max };
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &low), 0);
}

TEST(memory_that_cannot_be_mapped_is_read_by_copies_which_is_said_once)
{
    static uint8_t got[BYTES];
    struct rlimit was;
    const struct fabric_options options = { .on_refused = on_refused,
                                            .on_mapping = on_mapping,
                                            .on_mapping_gone = on_mapping_gone };
    node_open(&a, "mapped", NULL);
    node_open(&b, "mapped", &options);
    to_b = node_connect_to(&a, &b);
    struct memory memory = share(&a, "sums");
    fill(memory.at, BYTES, 1);
    fill(bytes, BYTES, 2);
    node_send(&a, to_b, 1, bytes, BYTES); // makes the staging area of the sender
    bound_addresses(&was);
    node_send(&a, to_b, 2, memory.at, BYTES);
    pump(&a, &b, &b.arrived, 2);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &was), 0);
    ck_assert_uint_eq(shown, 0);
    ck_assert_uint_eq(refusals, 1);
    ck_assert_ptr_nonnull(strstr(refusal, "cannot be mapped here: Cannot allocate memory"));
    for (unsigned i = 0; i < 2; i++) {
        const unsigned before = b.received;
        ck_assert_ptr_null(fabric_message_view(b.arrivals[i].message));
        node_receive(&b, i);
        pump(&a, &b, &b.received, before + 1);
        memcpy(got, b.arrivals[i].buffer, BYTES);
        ck_assert(is_filled(got, BYTES, b.arrivals[i].note.id == 1 ? 2 : 1));
    }
    pump(&a, &b, &a.sent, 2);
    ck_assert_uint_eq(a.send_errors + b.receive_errors + a.downs, 0);
    unshare_memory(&memory);
    node_close(&a);
    node_close(&b);
}

TEST(what_is_in_flight_stays_readable_when_its_region_is_dropped)
{
    open_three();
    struct memory memory = share(&a, "grad");
    fill(memory.at, BYTES, 1);
    node_send(&a, to_b, 1, memory.at, BYTES);
    pump(&a, &b, &b.arrived, 1);
    unshare_memory(&memory); // its owner has no part of it left
    pump(&a, &b, &gone, 1);
    ck_assert(is_filled(view_of(&b, 0), BYTES, 1));
    node_receive(&b, 0);
    pump(&a, &b, &a.sent, 1);
    ck_assert_uint_eq(a.send_errors + b.receive_errors, 0);
    close_three();
}

/* -- regions as mappings ------------------------------------------------------------------------ */

TEST(a_shown_region_is_a_mapping_with_its_note_until_it_is_dropped)
{
    size_t mapped_bytes, note_bytes;
    open_three();
    struct memory memory = share(&a, "published");
    fill(memory.at, BYTES, 1);
    ck_assert_int_eq(fabric_region_show(memory.region, to_b), CAIRN_OK);
    ck_assert_int_eq(fabric_region_show(memory.region, to_b), CAIRN_OK); // once
    pump(&a, &b, &shown, 1);
    struct fabric_mapping *mapping = last_shown;
    const uint8_t *mapped = fabric_mapping_memory(mapping, &mapped_bytes);
    const void *note = fabric_mapping_note(mapping, &note_bytes);
    ck_assert_uint_eq(mapped_bytes, BYTES);
    ck_assert_uint_eq(note_bytes, strlen("published"));
    ck_assert_mem_eq(note, "published", note_bytes);
    memory.at[7] = 99;
    ck_assert_uint_eq(mapped[7], 99);
    fabric_mapping_hold(mapping);
    unshare_memory(&memory);
    pump(&a, &b, &gone, 1);
    ck_assert_uint_eq(mapped[7], 99);
    close_three();
    ck_assert_uint_eq(shown, 1);
    ck_assert_uint_eq(gone, 1);
    ck_assert_uint_eq(mapped[7], 99); // held: also after the fabric
    fabric_mapping_release(mapping);
}

TEST(a_slot_that_is_used_again_means_the_new_region)
{
    open_three();
    for (unsigned i = 0; i < 50; i++) {
        struct memory memory = share(&a, "grad");
        fill(memory.at, BYTES, i);
        node_send(&a, to_b, i, memory.at, BYTES);
        unshare_memory(&memory); // at once: the three frames are in one socket, in order
        pump(&a, &b, &b.arrived, i + 1);
        ck_assert(is_filled(view_of(&b, i), BYTES, i));
        if (i % 2 == 0) drop(&b, i);
    }
    pump(&a, &b, &a.sent, 25);
    for (unsigned i = 1; i < 50; i += 2) ck_assert(is_filled(view_of(&b, i), BYTES, i));
    close_three();
    ck_assert_uint_eq(shown, 50);
    ck_assert_uint_eq(gone, 50);
}

/* -- neighbours --------------------------------------------------------------------------------- */

TEST(a_peer_that_never_releases_stops_itself_and_nobody_else)
{
    enum { MANY = 100 };
    struct fabric_stats stats;
    open_three();
    c.manner = NODE_DROPS;
    fill(bytes, BYTES, 1);
    for (unsigned i = 0; i < MANY; i++) node_send(&a, to_b, 1, bytes, BYTES);
    pump(&a, &b, &b.arrived, 32);
    pump(&a, &b, &a.sent, 32);
    pump_for_ms(&a, &b, 50);
    ck_assert_uint_eq(a.sent, 32); // of 64 MiB as many as are left
    ck_assert_uint_eq(b.arrived, 32);
    node_send(&a, to_b, 2, NULL, 0); // what needs no room passes
    pump(&a, &b, &b.arrived, 33);
    for (unsigned i = 1; i <= MANY; i++) {
        node_send(&a, to_c, 1, bytes, BYTES);
        pump(&a, &c, &c.arrived, i);
    }
    fabric_stats(a.fabric, &stats);
    ck_assert_uint_eq(stats.sends_now, MANY - 32);
    for (unsigned i = 0; i < MANY + 1; i++) {
        pump(&a, &b, &b.arrived, i + 1);
        if (b.arrivals[i].message == NULL) continue;
        ck_assert(is_filled(view_of(&b, i), BYTES, 1));
        drop(&b, i);
    }
    pump(&a, &b, &a.sent, 2 * MANY + 1);
    ck_assert_uint_eq(a.send_errors, 0);
    close_three();
}

TEST(copies_for_a_peer_that_is_given_up_are_not_overwritten_while_it_reads_them)
{
    open_three();
    c.manner = NODE_DROPS;
    fill(bytes, BYTES, 1);
    node_send(&a, to_b, 1, bytes, BYTES);
    node_send(&a, to_b, 1, bytes, BYTES);
    pump(&a, &b, &b.arrived, 2);
    fabric_peer_close(to_b);
    fill(bytes, BYTES, 2);
    for (unsigned i = 1; i <= 100; i++) { // through all pages that are free
        node_send(&a, to_c, 2, bytes, BYTES);
        pump(&a, &c, &c.arrived, i);
    }
    pump_for_ms(&a, &b, 20);
    ck_assert(is_filled(view_of(&b, 0), BYTES, 1));
    node_receive(&b, 1);
    pump(&a, &b, &b.received, 1);
    ck_assert_uint_eq(b.receive_errors, 0);
    ck_assert(is_filled(b.arrivals[1].buffer, BYTES, 1));
    drop(&b, 0);
    pump_for_ms(&a, &b, 20);
    close_three();
}

TEST(a_region_of_a_sender_that_gave_us_up_is_not_received_as_if_it_were_whole)
{
    open_three();
    struct memory memory = share(&a, "grad");
    node_send(&a, to_b, 1, memory.at, BYTES);
    pump(&a, &b, &b.arrived, 1);
    fabric_peer_close(to_b);
    pump(&a, NULL, &a.sent, 1); // closed: its owner may write again, and b has not heard
    ck_assert_uint_eq(a.send_errors, 1);
    node_receive(&b, 0);
    pump(&b, NULL, &b.received, 1);
    ck_assert_uint_eq(b.receive_errors, 1);
    unshare_memory(&memory);
    close_three();
}

static void tell_address(int fd, const struct node *node)
{
    size_t count;
    const void *address = fabric_own_address(node->fabric, &count);
    ck_assert_int_eq(write(fd, address, count), (ssize_t)count);
}

static struct fabric_peer *hear_address(int fd, struct node *node)
{
    uint8_t address[CAIRN_FABRIC_ADDRESS_MAX];
    const ssize_t count = read(fd, address, sizeof address); // SOCK_SEQPACKET: whole
    ck_assert_int_gt(count, 0);
    return node_connect(node, address, (size_t)count);
}

static void live_as_sender(int fd)
{
    static struct node there;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    node_open(&there, "mapped", NULL);
    tell_address(fd, &there);
    struct fabric_peer *parent = hear_address(fd, &there);
    struct memory memory = share(&there, "grad");
    fill(memory.at, BYTES, 5);
    fill(bytes, BYTES, 6);
    node_send(&there, parent, 5, memory.at, BYTES);
    node_send(&there, parent, 6, bytes, BYTES);
    for (;;) pump_for_ms(&there, NULL, 1000);
}

TEST(views_of_a_killed_peer_stay_readable_and_its_end_is_told)
{
    int fds[2], status;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    const pid_t pid = fork();
    if (pid == 0) live_as_sender(fds[1]);
    const unsigned before = descriptors_here();
    node_open(&a, "mapped", NULL);
    struct fabric_peer *child = hear_address(fds[0], &a);
    tell_address(fds[0], &a);
    pump(&a, NULL, &a.arrived, 2);
    ck_assert_str_eq(fabric_peer_path(child), "mapped");
    node_send(&a, child, 1, NULL, 0);
    pump(&a, NULL, &a.sent, 1); // they have met in this direction, too
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    pump(&a, NULL, &a.downs, 1);
    for (unsigned i = 0; i < 2; i++)
        ck_assert(is_filled(view_of(&a, i), BYTES, a.arrivals[i].note.id));
    ck_assert_int_eq(a.why_down, CAIRN_ERR_CLOSED);
    drop(&a, 0);
    drop(&a, 1);
    pump_for_ms(&a, NULL, 5);
    fabric_peer_close(child);
    node_close(&a);
    ck_assert_uint_eq(descriptors_here(), before);
    close(fds[0]);
    close(fds[1]);
}

/* -- meeting ------------------------------------------------------------------------------------ */

TEST(nothing_is_left_of_a_fabric_that_was_closed_in_the_middle_of_everything)
{
    const unsigned before = descriptors_here();
    open_three();
    struct memory memory = share(&a, "grad");
    for (unsigned i = 0; i < 40; i++) {
        node_send(&a, to_b, i, memory.at, BYTES);
        node_send(&a, to_b, i, bytes, BYTES);
        node_send(&a, to_c, i, bytes, 100);
        if (i < 20) pump_for_ms(&a, &b, 1);
    }
    close_three();
    munmap(memory.at, BYTES);
    close(memory.fd);
    ck_assert_uint_eq(a.sent, 120);
    ck_assert_uint_eq(descriptors_here(), before);
}

TEST(with_a_folder_the_socket_is_a_file_there_and_goes_with_the_fabric)
{
    char folder[CAIRN_SCRATCH_BYTES];
    cairn_scratch_make(folder);
    const struct fabric_options options = { .socket_folder = folder };
    node_open(&a, "mapped", &options);
    node_open(&b, "mapped", &options);
    to_b = node_connect_to(&a, &b);
    node_send(&a, to_b, 1, bytes, BYTES);
    pump(&a, &b, &b.arrived, 1);
    ck_assert_int_ne(rmdir(folder), 0); // not empty
    node_close(&a);
    node_close(&b);
    ck_assert_int_eq(rmdir(folder), 0);
}

/* A name of the host says that others share its loopback. */
TEST(auto_meets_each_kind_by_the_way_that_both_have)
{
    static const char *const kinds[] = { "auto", "mapped", "ucx" };
    static const char *const paths[] = { "mapped", "mapped", "ucx" };
    const struct fabric_options named = { .host = "here" };
    node_open(&a, "auto", &named);
    for (unsigned i = 0; i < 3; i++) {
        node_open(&b, kinds[i], &named);
        to_b = node_connect_to(&a, &b);
        struct fabric_peer *to_a = node_connect_to(&b, &a);
        ck_assert_str_eq(fabric_peer_path(to_b), paths[i]);
        ck_assert_str_eq(fabric_peer_path(to_a), paths[i]);
        node_send(&a, to_b, 1, bytes, BYTES);
        node_send(&b, to_a, 1, bytes, BYTES);
        pump(&a, &b, &b.arrived, 1);
        pump(&a, &b, &a.arrived, i + 1);
        fabric_peer_close(to_b);
        node_close(&b);
    }
    node_close(&a);
}

/* A packet of 24 bytes to UCX's port ends the process that listens there. */
TEST(on_loopback_alone_auto_is_mapped_and_listens_on_no_port)
{
    static const struct fabric_options loopback = { .net_devices = "lo" },
                                       named = { .net_devices = "lo", .host = "here" };
    size_t count;
    node_open(&a, "auto", NULL);
    node_open(&b, "auto", &loopback);
    ck_assert_uint_eq(descriptors_listening(getpid()), 0);
    const void *address = fabric_own_address(a.fabric, &count);
    ck_assert_str_eq(fabric_address_kind(address, count), "mapped");
    to_b = node_connect_to(&a, &b);
    ck_assert_str_eq(fabric_peer_path(to_b), "mapped");
    node_send(&a, to_b, 1, bytes, BYTES);
    pump(&a, &b, &b.arrived, 1);
    node_close(&b);
    node_open(&b, "auto", &named);
    ck_assert_uint_eq(descriptors_listening(getpid()), 1);
    node_close(&b);
    node_close(&a);
}

static bool host_of(const struct node *node, char host_out[CAIRN_FABRIC_HOST_BYTES])
{
    size_t count;
    const void *address = fabric_own_address(node->fabric, &count);
    return fabric_address_host(address, count, host_out, CAIRN_FABRIC_HOST_BYTES);
}

TEST(who_says_that_he_is_on_another_host_is_not_mapped)
{
    static const char *const names[] = { "A", "B", "A" };
    char host[CAIRN_FABRIC_HOST_BYTES];
    node_open(&a, "auto", &(struct fabric_options) { .host = "A" });
    for (unsigned i = 0; i < 3; i++) {
        node_open(&b, "auto", &(struct fabric_options) { .host = names[i] });
        ck_assert(host_of(&b, host));
        ck_assert_str_eq(host, names[i]);
        to_b = node_connect_to(&a, &b);
        struct fabric_peer *to_a = node_connect_to(&b, &a);
        ck_assert_str_eq(fabric_peer_path(to_b), i == 1 ? "ucx" : "mapped");
        ck_assert_str_eq(fabric_peer_path(to_a), i == 1 ? "ucx" : "mapped");
        node_send(&a, to_b, 1, bytes, BYTES);
        pump(&a, &b, &b.arrived, 1);
        fabric_peer_close(to_b);
        node_close(&b);
    }
    node_close(&a);
}

TEST(a_host_that_nobody_named_is_this_boot_in_this_network_namespace)
{
    char first[CAIRN_FABRIC_HOST_BYTES], second[CAIRN_FABRIC_HOST_BYTES];
    char folder[CAIRN_SCRATCH_BYTES];
    cairn_scratch_make(folder);
    node_open(&a, "mapped", NULL);
    node_open(&b, "auto", NULL);
    ck_assert(host_of(&a, first) && host_of(&b, second));
    ck_assert_str_eq(first, second);
    ck_assert_ptr_nonnull(strchr(first, ':'));
    node_close(&b);
    node_open(&b, "mapped", &(struct fabric_options) { .socket_folder = folder });
    ck_assert(host_of(&b, second)); // a file is reached from any namespace
    ck_assert_ptr_null(strchr(second, ':'));
    ck_assert_int_eq(strncmp(first, second, strlen(second)), 0);
    node_close(&b);
    node_close(&a);
    ck_assert_int_eq(rmdir(folder), 0);
}

TEST(an_address_without_a_host_has_none)
{
    char host[CAIRN_FABRIC_HOST_BYTES];
    size_t count;
    uint8_t address[CAIRN_FABRIC_ADDRESS_MAX];
    node_open(&a, "ucx", NULL);
    ck_assert(!host_of(&a, host));
    node_close(&a);
    node_open(&a, "mapped", &(struct fabric_options) { .host = "A" });
    const void *whole = fabric_own_address(a.fabric, &count);
    memcpy(address, whole, count);
    ck_assert(!fabric_address_host(address, count, host, 1)); // no room
    ck_assert(!fabric_address_host(address, count - 1, host, sizeof host));
    address[count - 1] ^= 1;
    ck_assert(!fabric_address_host(address, count, host, sizeof host));
    ck_assert(!fabric_address_host("", 0, host, sizeof host));
    node_close(&a);
}

TEST(a_host_without_a_proper_name_is_refused)
{
    static const char *const names[] = {
        "", "a host", "a\n", "h\xc3\xb6st",
        "0123456789012345678901234567890123456789012345678901234567890123"
    };
    struct sentence why = { "" };
    struct fabric *fabric;
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        const struct fabric_options options = { .on_message = on_nothing, .host = names[i] };
        ck_assert_int_eq(fabric_open("auto", &options, &fabric, &why), CAIRN_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(why.text, "63 visible"));
    }
}

TEST(auto_without_a_place_for_its_socket_is_ucx_and_says_why)
{
    const struct fabric_options nowhere = { .socket_folder = "/nonexistent" };
    node_open(&a, "auto", &nowhere);
    node_open(&b, "ucx", NULL);
    ck_assert_ptr_nonnull(strstr(fabric_describe(a.fabric), "/nonexistent"));
    to_b = node_connect_to(&a, &b);
    struct fabric_peer *to_a = node_connect_to(&b, &a);
    ck_assert_str_eq(fabric_peer_path(to_b), "ucx");
    ck_assert_str_eq(fabric_peer_path(to_a), "ucx");
    node_send(&a, to_b, 1, bytes, 100);
    pump(&a, &b, &b.arrived, 1);
    node_close(&a);
    node_close(&b);
}

SUITE(30);
