/* What the mapped fabric promises beyond every fabric: payloads that are read where they lie, copies that are
 * safe from their sender, and neighbours who die, stall or give up. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/descriptors.h"
#include "tests/support/fabric_pair.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

enum { BYTES = 1 << 20 };

/* a sends to c, too. */
static struct node c;
static struct fabric_peer *to_c;
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

static const struct fabric_options maps = { .on_mapping = on_mapping,
                                            .on_mapping_gone = on_mapping_gone };

static void open_three(void)
{
    shown = gone = 0;
    pair_open("mapped", &maps);
    node_open(&c, "mapped", &maps);
    to_c = node_connect_to(&a, &c);
}

static const uint8_t *view_of(const struct node *node, unsigned i)
{
    const uint8_t *view = fabric_message_view(node->arrivals[i].message);
    ck_assert_ptr_nonnull(view);
    return view;
}

/* -- oneself ------------------------------------------------------------------------------------- */

/* One end that is both: a shard that relays to itself. */
static void speaks_with_itself(const char *kind)
{
    shown = gone = 0;
    node_open(&a, kind, &maps);
    struct fabric_peer *to_a = node_connect_to(&a, &a);
    struct node_memory memory = node_memory_noted(&a, BYTES, "sums");
    fill(memory.at, BYTES, 1);
    fill(bytes, BYTES, 2);
    ck_assert_str_eq(fabric_peer_path(to_a), "mapped");
    node_pass(&a, &a, to_a, 1, memory.at, BYTES);
    ck_assert_uint_eq(shown, 1);
    memory.at[5000] ^= 0xff;
    ck_assert_uint_eq(view_of(&a, 0)[5000], memory.at[5000]);
    pump_for_ms(&a, NULL, 20);
    ck_assert_uint_eq(a.sent, 0);
    node_drop(&a, 0);
    pump(&a, NULL, &a.sent, 1);
    node_send(&a, to_a, 2, bytes, BYTES); // by the staging area
    node_send(&a, to_a, 3, bytes, 100);   // in its frame
    pump(&a, NULL, &a.arrived, 3);
    for (unsigned i = 1; i < 3; i++) node_receive(&a, i);
    pump(&a, NULL, &a.received, 2);
    ck_assert_uint_eq(a.send_errors + a.receive_errors, 0);
    node_memory_end(&memory);
}

TEST(a_node_reads_its_own_memory_where_it_lies)
{
    speaks_with_itself("mapped");
}

TEST(the_auto_fabric_reaches_its_own_node_by_memory)
{
    speaks_with_itself("auto");
}

TEST(a_node_that_gives_itself_up_has_its_loans_back_and_its_copies_still)
{
    node_open(&a, "mapped", NULL);
    struct fabric_peer *to_a = node_connect_to(&a, &a);
    struct node_memory memory = node_memory_noted(&a, BYTES, "sums");
    fill(bytes, BYTES, 2);
    node_send(&a, to_a, 1, memory.at, BYTES);
    node_send(&a, to_a, 2, bytes, BYTES);
    pump(&a, NULL, &a.arrived, 2);
    fabric_peer_close(to_a);
    pump(&a, NULL, &a.sent, 2);
    const unsigned staged = a.arrivals[0].note.id == 2 ? 0 : 1;
    ck_assert(is_filled(view_of(&a, staged), BYTES, 2));
    node_drop(&a, staged);
    to_a = node_connect_to(&a, &a);
    node_send(&a, to_a, 3, memory.at, BYTES); // held, and its peer open, when all is closed
    pump(&a, NULL, &a.arrived, 3);
}

/* -- payloads ----------------------------------------------------------------------------------- */

TEST(a_payload_of_a_region_is_read_where_it_lies_and_is_on_loan_until_it_is_dropped)
{
    open_three();
    struct node_memory memory = node_memory_noted(&a, BYTES, "grad");
    fill(memory.at, BYTES, 1);
    node_pass(&a, &b, to_b, 1, memory.at + 4096, BYTES - 4096);
    memory.at[5000] ^= 0xff; // a sender that is wrong, which shows that nothing was copied
    ck_assert_uint_eq(view_of(&b, 0)[5000 - 4096], memory.at[5000]);
    pump_for_ms(&a, &b, 20);
    ck_assert_uint_eq(a.sent, 0);
    node_drop(&b, 0);
    pump(&a, &b, &a.sent, 1);
    ck_assert_uint_eq(a.send_errors, 0);
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
    pair_open_as("mapped", NULL, &maps);
    struct node_memory memory = node_memory_noted(&a, BYTES, "sums");
    fill(memory.at, BYTES, 1);
    fill(bytes, BYTES, 2);
    node_send(&a, to_b, 1, bytes, BYTES); // makes the staging area of the sender
    bound_addresses(&was);
    node_pass(&a, &b, to_b, 2, memory.at, BYTES);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &was), 0);
    ck_assert_uint_eq(shown, 0);
    ck_assert_uint_eq(b.refusals, 1);
    ck_assert_ptr_nonnull(strstr(b.refused, "cannot be mapped here: Cannot allocate memory"));
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
}

TEST(what_is_in_flight_stays_readable_when_its_region_is_dropped)
{
    open_three();
    struct node_memory memory = node_memory_noted(&a, BYTES, "grad");
    fill(memory.at, BYTES, 1);
    node_pass(&a, &b, to_b, 1, memory.at, BYTES);
    node_memory_end(&memory); // its owner has no part of it left
    pump(&a, &b, &gone, 1);
    ck_assert(is_filled(view_of(&b, 0), BYTES, 1));
    node_receive(&b, 0);
    pump(&a, &b, &a.sent, 1);
    ck_assert_uint_eq(a.send_errors + b.receive_errors, 0);
}

/* -- regions as mappings ------------------------------------------------------------------------ */

TEST(a_shown_region_is_a_mapping_with_its_note_until_it_is_dropped)
{
    size_t mapped_bytes, note_bytes;
    open_three();
    struct node_memory memory = node_memory_noted(&a, BYTES, "published");
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
    node_memory_end(&memory);
    pump(&a, &b, &gone, 1);
    ck_assert_uint_eq(mapped[7], 99);
    pair_close();
    ck_assert_uint_eq(shown, 1);
    ck_assert_uint_eq(gone, 1);
    ck_assert_uint_eq(mapped[7], 99); // held: also after the fabric
    fabric_mapping_release(mapping);
}

TEST(a_slot_that_is_used_again_means_the_new_region)
{
    open_three();
    for (unsigned i = 0; i < 50; i++) {
        struct node_memory memory = node_memory_noted(&a, BYTES, "grad");
        fill(memory.at, BYTES, i);
        node_send(&a, to_b, i, memory.at, BYTES);
        node_memory_end(&memory); // at once: the three frames are in one socket, in order
        pump(&a, &b, &b.arrived, i + 1);
        ck_assert(is_filled(view_of(&b, i), BYTES, i));
        if (i % 2 == 0) node_drop(&b, i);
    }
    pump(&a, &b, &a.sent, 25);
    for (unsigned i = 1; i < 50; i += 2) ck_assert(is_filled(view_of(&b, i), BYTES, i));
    pair_close();
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
        node_pass(&a, &c, to_c, 1, bytes, BYTES);
    }
    fabric_stats(a.fabric, &stats);
    ck_assert_uint_eq(stats.sends_now, MANY - 32);
    for (unsigned i = 0; i < MANY + 1; i++) {
        pump(&a, &b, &b.arrived, i + 1);
        if (b.arrivals[i].message == NULL) continue;
        ck_assert(is_filled(view_of(&b, i), BYTES, 1));
        node_drop(&b, i);
    }
    pump(&a, &b, &a.sent, 2 * MANY + 1);
    ck_assert_uint_eq(a.send_errors, 0);
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
        node_pass(&a, &c, to_c, 2, bytes, BYTES);
    }
    pump_for_ms(&a, &b, 20);
    ck_assert(is_filled(view_of(&b, 0), BYTES, 1));
    node_receive(&b, 1);
    pump(&a, &b, &b.received, 1);
    ck_assert_uint_eq(b.receive_errors, 0);
    ck_assert(is_filled(b.arrivals[1].buffer, BYTES, 1));
    node_drop(&b, 0);
    pump_for_ms(&a, &b, 20);
}

TEST(a_region_of_a_sender_that_gave_us_up_is_not_received_as_if_it_were_whole)
{
    open_three();
    struct node_memory memory = node_memory_noted(&a, BYTES, "grad");
    node_pass(&a, &b, to_b, 1, memory.at, BYTES);
    fabric_peer_close(to_b);
    pump(&a, NULL, &a.sent, 1); // closed: its owner may write again, and b has not heard
    ck_assert_uint_eq(a.send_errors, 1);
    node_receive(&b, 0);
    pump(&b, NULL, &b.received, 1);
    ck_assert_uint_eq(b.receive_errors, 1);
}

static void live_as_sender(int fd)
{
    static struct node there;
    node_open(&there, "mapped", NULL);
    node_tell_address(fd, &there);
    struct fabric_peer *parent = node_hear_address(fd, &there);
    struct node_memory memory = node_memory_noted(&there, BYTES, "grad");
    fill(memory.at, BYTES, 5);
    fill(bytes, BYTES, 6);
    node_send(&there, parent, 5, memory.at, BYTES);
    node_send(&there, parent, 6, bytes, BYTES);
    for (;;) pump_for_ms(&there, NULL, 1000);
}

TEST(views_of_a_killed_peer_stay_readable_and_its_end_is_told)
{
    int fd;
    const pid_t pid = node_fork(&fd);
    if (pid == 0) live_as_sender(fd);
    const unsigned before = descriptors_here();
    node_open(&a, "mapped", NULL);
    struct fabric_peer *child = node_hear_address(fd, &a);
    node_tell_address(fd, &a);
    pump(&a, NULL, &a.arrived, 2);
    ck_assert_str_eq(fabric_peer_path(child), "mapped");
    node_send(&a, child, 1, NULL, 0);
    pump(&a, NULL, &a.sent, 1); // they have met in this direction, too
    node_kill(pid, fd);
    pump(&a, NULL, &a.downs, 1);
    for (unsigned i = 0; i < 2; i++)
        ck_assert(is_filled(view_of(&a, i), BYTES, a.arrivals[i].note.id));
    ck_assert_int_eq(a.why_down, CAIRN_ERR_CLOSED);
    node_drop(&a, 0);
    node_drop(&a, 1);
    pump_for_ms(&a, NULL, 5);
    fabric_peer_close(child);
    node_close(&a);
    ck_assert_uint_eq(descriptors_here(), before - 1);
}

/* -- meeting ------------------------------------------------------------------------------------ */

TEST(nothing_is_left_of_a_fabric_that_was_closed_in_the_middle_of_everything)
{
    const unsigned before = descriptors_here();
    open_three();
    struct node_memory memory = node_memory_noted(&a, BYTES, "grad");
    for (unsigned i = 0; i < 40; i++) {
        node_send(&a, to_b, i, memory.at, BYTES);
        node_send(&a, to_b, i, bytes, BYTES);
        node_send(&a, to_c, i, bytes, 100);
        if (i < 20) pump_for_ms(&a, &b, 1);
    }
    pair_close();
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
    node_pass(&a, &b, to_b, 1, bytes, BYTES);
    ck_assert_int_ne(rmdir(folder), 0); // not empty
    node_close(&a);
    node_close(&b);
    ck_assert_int_eq(rmdir(folder), 0);
}

/* A name of the host says that others share its loopback. */
TEST(auto_meets_each_kind_by_the_way_that_both_have)
{
    static const char *const others[] = { "auto", "mapped", "sealed" };
    static const char *const paths[] = { "mapped", "mapped", "sealed" };
    const struct fabric_options named = { .host = "here" };
    node_open(&a, "auto", &named);
    for (unsigned i = 0; i < 3; i++) {
        node_open(&b, others[i], &named);
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
}

/* A port that nobody needs is one that nobody attacks. */
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
    node_pass(&a, &b, to_b, 1, bytes, BYTES);
    node_close(&b);
    node_open(&b, "auto", &named);
    ck_assert_uint_eq(descriptors_listening(getpid()), 2); // IPv4 and IPv6
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
        ck_assert_str_eq(fabric_peer_path(to_b), i == 1 ? "sealed" : "mapped");
        ck_assert_str_eq(fabric_peer_path(to_a), i == 1 ? "sealed" : "mapped");
        node_pass(&a, &b, to_b, 1, bytes, BYTES);
        fabric_peer_close(to_b);
        node_close(&b);
    }
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
}

TEST(a_host_without_a_proper_name_is_refused)
{
    static const char *const names[] = {
        "", "a host", "a\n", "h\xc3\xb6st",
        "0123456789012345678901234567890123456789012345678901234567890123"
    };
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        node_open_fails("auto", &(struct fabric_options) { .host = names[i] }, CAIRN_ERR_INVALID,
                        "63 visible");
}

TEST(auto_without_a_place_for_its_socket_is_sealed_and_says_why)
{
    const struct fabric_options nowhere = { .socket_folder = "/nonexistent" };
    node_open(&a, "auto", &nowhere);
    node_open(&b, "sealed", NULL);
    ck_assert_ptr_nonnull(strstr(fabric_describe(a.fabric), "/nonexistent"));
    to_b = node_connect_to(&a, &b);
    struct fabric_peer *to_a = node_connect_to(&b, &a);
    ck_assert_str_eq(fabric_peer_path(to_b), "sealed");
    ck_assert_str_eq(fabric_peer_path(to_a), "sealed");
    node_pass(&a, &b, to_b, 1, bytes, 100);
}

SUITE(30, .tear_down = pair_close);
