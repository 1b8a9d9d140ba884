/* One-sided reads over UCX, forced over TCP's emulation: messages by reference to memory that their
 * receiver reads, its release, and what becomes of them when an end closes, dies or lies. */
#include <check.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "proto/fabric/ucx.h"
#include "tests/support/fabric_pair.h"
#include "tests/support/suite.h"

enum { BYTES = 1 << 20, BIG = 100000 };

static struct fabric_peer *to_a; // of b

static void open_nodes(enum one_sided of_a, enum one_sided of_b)
{
    pair_open_as("ucx", &(struct fabric_options) { .one_sided = of_a },
                 &(struct fabric_options) { .one_sided = of_b });
    to_a = node_connect_to(&b, &a);
}

/* Memory of a that b would read: both have agreed on that. */
static struct node_memory open_agreed(void)
{
    open_nodes(CAIRN_ONE_SIDED_ON, CAIRN_ONE_SIDED_ON);
    struct node_memory memory = node_memory_make(&a, BYTES);
    node_agree(&a, &b, to_b, memory.at, BIG);
    return memory;
}

/* -- messages ----------------------------------------------------------------------------------- */

TEST(a_payload_of_a_region_is_read_by_its_receiver_and_released_by_the_read)
{
    struct node_memory memory = open_agreed();
    fill(memory.at + 4096, BIG, 7);
    node_pass(&a, &b, to_b, 7, memory.at + 4096, BIG);
    ck_assert_str_eq(fabric_message_path(b.arrivals[0].message), "one-sided");
    ck_assert_ptr_null(fabric_message_view(b.arrivals[0].message));
    pump_for_ms(&a, &b, 20);
    ck_assert_uint_eq(a.sent, 0); // on loan until it is read
    node_receive(&b, 0);
    pump(&a, &b, &b.received, 1);
    pump(&a, &b, &a.sent, 1);
    ck_assert(is_filled(b.arrivals[0].buffer, BIG, 7));
    ck_assert_uint_eq(node_stats(&a).references_sent, 1);
    ck_assert_uint_eq(node_stats(&b).bytes_read, BIG);
    ck_assert_uint_eq(node_stats(&b).bytes_received, BIG);
    size_t address_bytes;
    const void *address = fabric_own_address(a.fabric, &address_bytes);
    ck_assert_str_eq(fabric_address_ways(address, address_bytes), "ucx, one-sided");
    ck_assert_uint_eq(a.send_errors + b.receive_errors + a.refusals + b.refusals, 0);
}

TEST(a_dropped_message_is_released_and_nothing_is_read)
{
    struct node_memory memory = open_agreed();
    b.manner = NODE_DROPS;
    for (unsigned i = 0; i < 50; i++) node_send(&a, to_b, i, memory.at, BIG);
    pump(&a, &b, &a.sent, 50);
    ck_assert_uint_eq(a.send_errors, 0);
    ck_assert_uint_eq(node_stats(&a).references_sent, 50);
    ck_assert_uint_eq(node_stats(&b).bytes_read, 0);
}

/* More than are read at a time, of sizes down to a byte, of two regions, both ways. */
TEST(many_at_once_all_come_whole)
{
    enum { COUNT = 300 };
    open_nodes(CAIRN_ONE_SIDED_ON, CAIRN_ONE_SIDED_ON);
    struct node_memory memory[2] = { node_memory_make(&a, BYTES), node_memory_make(&a, BYTES) };
    struct node_memory back = node_memory_make(&b, BYTES);
    node_agree(&a, &b, to_b, memory[0].at, BIG);
    a.manner = b.manner = NODE_RECEIVES;
    fill(back.at, BYTES, 1000);
    for (unsigned i = 0; i < COUNT; i++) {
        uint8_t *at = memory[i % 2].at + (i / 2) * 3000;
        fill(at, 1 + i * 9, i);
        node_send(&a, to_b, i, at, 1 + i * 9);
        if (i % 10 == 0) node_send(&b, to_a, 1000, back.at, BYTES);
    }
    pump(&a, &b, &b.received, COUNT);
    pump(&a, &b, &a.received, COUNT / 10);
    pump(&a, &b, &a.sent, COUNT);
    pump(&a, &b, &b.sent, COUNT / 10);
    for (unsigned i = 0; i < COUNT; i++) {
        const struct arrival *arrival = &b.arrivals[i];
        ck_assert(is_filled(arrival->buffer, arrival->payload_bytes, arrival->note.id));
    }
    ck_assert(is_filled(a.arrivals[3].buffer, BYTES, 1000));
    ck_assert_uint_eq(node_stats(&a).references_sent, COUNT);
}

TEST(memory_that_is_no_region_goes_as_it_always_did)
{
    static uint8_t plain[BIG];
    struct node_memory memory = open_agreed();
    b.manner = NODE_RECEIVES;
    fill(plain, BIG, 5);
    ck_assert_str_eq(fabric_payload_path(to_b, plain, BIG), "ucx");
    ck_assert_str_eq(fabric_payload_path(to_b, memory.at + BYTES - 8, 16), "ucx");
    node_send(&a, to_b, 5, plain, BIG);
    pump(&a, &b, &a.sent, 1);
    pump(&a, &b, &b.received, 1);
    ck_assert(is_filled(b.arrivals[0].buffer, BIG, 5));
    ck_assert_uint_eq(node_stats(&a).references_sent, 0);
}

/* On TCP no card reads, so that "auto" says nothing. */
TEST_EACH(both_ends_have_to_allow_it_and_auto_does_not_over_tcp, 0, 5)
{
    static const enum one_sided pairs[][2] = {
        { CAIRN_ONE_SIDED_OFF, CAIRN_ONE_SIDED_ON },
        { CAIRN_ONE_SIDED_ON, CAIRN_ONE_SIDED_OFF },
        { CAIRN_ONE_SIDED_AUTO, CAIRN_ONE_SIDED_ON },
        { CAIRN_ONE_SIDED_ON, CAIRN_ONE_SIDED_AUTO },
        { CAIRN_ONE_SIDED_AUTO, CAIRN_ONE_SIDED_AUTO },
    };
    open_nodes(pairs[_i][0], pairs[_i][1]);
    struct node_memory memory = node_memory_make(&a, BYTES);
    b.manner = NODE_RECEIVES;
    pump_for_ms(&a, &b, 30);
    node_carry(&a, &b, to_b, 5, memory.at, BIG);
    ck_assert_uint_eq(node_stats(&a).references_sent, 0);
    ck_assert_uint_eq(node_stats(&b).bytes_read, 0);
}

/* TCP beside a choice of transports: UCX is asked for the lanes, and there are none that read. */
TEST(auto_asks_each_endpoint_for_its_lanes)
{
    const struct fabric_options options = { .transports = "tcp,rc" };
    pair_open("ucx", &options);
    to_a = node_connect_to(&b, &a);
    struct node_memory memory = node_memory_make(&a, BYTES);
    b.manner = NODE_RECEIVES;
    pump_for_ms(&a, &b, 30);
    node_send(&a, to_b, 5, memory.at, BIG);
    pump(&a, &b, &b.received, 1);
    ck_assert_uint_eq(node_stats(&a).references_sent, 0);
}

/* -- ends --------------------------------------------------------------------------------------- */

TEST(a_region_that_is_dropped_stays_readable_for_what_is_held)
{
    struct node_memory memory = open_agreed();
    fill(memory.at, BIG, 9);
    node_pass(&a, &b, to_b, 9, memory.at, BIG);
    fabric_region_drop(memory.region);
    memory.region = NULL;
    pump_for_ms(&a, &b, 20);
    ck_assert_uint_eq(a.sent, 0);
    node_receive(&b, 0);
    pump(&a, &b, &a.sent, 1);
    ck_assert(is_filled(b.arrivals[0].buffer, BIG, 9));
    node_send(&a, to_b, 10, memory.at, BIG); // plain memory now
    pump(&a, &b, &b.arrived, 2);
    ck_assert_str_eq(fabric_message_path(b.arrivals[1].message), "ucx");
}

/* The sender closes its handle, gets its memory back, and unmaps it, while it is being read: over TCP by its
 * own progress, which must survive. The reader gets other bytes than were meant, which the checksum in the
 * header says, and both go on over the connection that they have. */
TEST_EACH(a_late_read_of_memory_that_is_gone_harms_nobody, 0, 3)
{
    open_nodes(CAIRN_ONE_SIDED_ON, CAIRN_ONE_SIDED_ON);
    struct node_memory memory = node_memory_make(&a, BYTES), other = node_memory_make(&a, BYTES);
    node_agree(&a, &b, to_b, memory.at, BIG);
    for (unsigned i = 0; i < 100; i++) node_send(&a, to_b, 9, memory.at, BIG);
    pump(&a, &b, &b.arrived, 100);
    for (unsigned i = 0; i < 90; i++) node_receive(&b, i);
    for (int i = 0; i < 4 * _i; i++) fabric_progress(b.fabric); // before the end, or in it
    fabric_peer_close(to_b);
    fabric_progress(a.fabric);
    ck_assert_uint_eq(a.sent, 100);
    node_memory_end(&memory);
    pump(&a, &b, &b.received, 90);
    node_receive(&b, 95); // held still
    pump(&a, &b, &b.received, 91);

    to_b = node_connect_to(&a, &b);
    node_agree(&a, &b, to_b, other.at, BIG);
    fill(other.at, BIG, 11);
    b.manner = NODE_RECEIVES;
    node_send(&a, to_b, 11, other.at, BIG);
    pump(&a, &b, &a.sent, 101);
    ck_assert(is_filled(b.arrivals[100].buffer, BIG, 11));
    ck_assert_uint_eq(a.downs + b.downs, 0);
}

TEST(a_reader_that_closes_its_handle_reads_what_it_was_referred_to_all_the_same)
{
    struct node_memory memory = open_agreed();
    fill(memory.at, BIG, 6);
    for (unsigned i = 0; i < 5; i++) node_send(&a, to_b, i, memory.at, BIG);
    pump(&a, &b, &b.arrived, 5);
    fabric_peer_close(to_a);
    for (unsigned i = 0; i < 4; i++) node_receive(&b, i);
    fabric_drop(b.arrivals[4].message);
    pump(&a, &b, &b.received, 4);
    pump(&a, &b, &a.sent, 5);
    for (unsigned i = 0; i < 4; i++) ck_assert(is_filled(b.arrivals[i].buffer, BIG, 6));
    ck_assert_uint_eq(a.send_errors + b.receive_errors + a.downs + b.downs, 0);
}

TEST_EACH(closing_either_end_with_reads_under_way_ends_all_of_them, 0, 2)
{
    struct node_memory memory = open_agreed();
    for (unsigned i = 0; i < 200; i++) node_send(&a, to_b, i, memory.at, BIG);
    pump(&a, &b, &b.arrived, 200);
    for (unsigned i = 0; i < 150; i++) node_receive(&b, i); // more than are read at a time
    if (_i == 0) fabric_peer_close(to_a);
    node_close(&b);
    ck_assert_uint_eq(b.received, 150);
    node_close(&a);
    ck_assert_uint_eq(a.sent, 200);
    memory.region = NULL; // the fabric dropped it
}

/* -- a peer that dies --------------------------------------------------------------------------- */

/* Refers to its memory and sleeps: over TCP a read is answered by its progress. */
static void live_and_sleep(int fd)
{
    static struct node there;
    node_open(&there, "ucx", &(struct fabric_options) { .one_sided = CAIRN_ONE_SIDED_ON });
    node_tell_address(fd, &there);
    struct fabric_peer *parent = node_hear_address(fd, &there);
    struct node_memory memory = node_memory_make(&there, BYTES);
    node_agree(&there, NULL, parent, memory.at, BIG);
    for (unsigned i = 0; i < 100; i++) node_send(&there, parent, i, memory.at, BYTES);
    pump_for_ms(&there, NULL, 20);
    ck_assert_int_eq(write(fd, "", 1), 1);
    for (;;) pause();
}

/* It dies; or it sleeps on, and whoever reads gives it up. */
TEST_EACH(a_peer_that_is_killed_or_left_in_mid_read_ends_every_read_with_an_error, 0, 2)
{
    int fd;
    char asleep;
    const pid_t pid = node_fork(&fd);
    if (pid == 0) live_and_sleep(fd);
    node_open(&a, "ucx", &(struct fabric_options) { .one_sided = CAIRN_ONE_SIDED_ON });
    struct fabric_peer *sleeper = node_hear_address(fd, &a);
    node_tell_address(fd, &a);
    pump(&a, NULL, &a.arrived, 100);
    ck_assert_int_eq(read(fd, &asleep, 1), 1);
    for (unsigned i = 0; i < 90; i++) node_receive(&a, i); // 64 under way, the rest waits
    pump_for_ms(&a, NULL, 20);
    if (_i == 0)
        node_kill(pid, fd);
    else
        fabric_peer_close(sleeper);
    pump(&a, NULL, &a.receive_errors, 90);
    pump(&a, NULL, &a.downs, _i == 0);
    ck_assert_uint_eq(node_stats(&a).receives_now, 0);
    ck_assert_uint_eq(node_stats(&a).held_now, 10);
    node_receive(&a, 95); // held since before
    pump(&a, NULL, &a.receive_errors, 91);
}

/* -- what a peer may say ------------------------------------------------------------------------ */

static uint64_t node_of(const struct node *node)
{
    enum { ENVELOPE = 32 };
    size_t count;
    const uint8_t *address = fabric_own_address(node->fabric, &count);
    return fabric_hash(address + ENVELOPE, count - ENVELOPE);
}

/* As a liar would. */
static void say(const void *frame, size_t bytes, const void *rest, size_t rest_bytes)
{
    ck_assert_int_eq(
        ucx_control_send(((struct ucx_peer *)to_b)->link, frame, bytes, rest, rest_bytes),
        CAIRN_OK);
}

/* The first region of `a` has slot 0 and generation 1. */
static const struct {
    const char *what;
    uint64_t offset;
    uint32_t payload_bytes, generation;
    uint16_t slot;
    const char *said; /* NULL: nothing, it is declined only */
} references[] = {
    { "behind the end", BYTES, 1, 1, 0, "of region 0" },
    { "over the end", BYTES - 10, 11, 1, 0, "of region 0" },
    { "an offset that overflows", UINT64_MAX, 16, 1, 0, "of region 0" },
    { "another generation", 0, 16, 2, 0, NULL },
    { "another slot", 0, 16, 1, 9, NULL },
};

TEST_EACH(a_reference_beyond_what_was_told_is_refused_by_name_and_nothing_is_lost, 0, 5)
{
    const struct node_memory memory = open_agreed();
    node_send(&a, to_b, 1, memory.at, BIG); // the region is told
    b.manner = NODE_RECEIVES;
    pump(&a, &b, &a.sent, 1);
    const struct ucx_frame_reference frame = {
        .head = ucx_frame_head(UCX_FRAME_REFERENCE, node_of(&a)),
        .serial = UINT64_C(77) << 32 | 5,
        .offset = references[_i].offset,
        .payload_bytes = references[_i].payload_bytes,
        .generation = references[_i].generation,
        .slot = references[_i].slot,
        .header_bytes = 16,
    };
    say(&frame, sizeof frame, (uint8_t[16]) { 1 }, 16);
    pump_for_ms(&a, &b, 20);
    ck_assert_uint_eq(b.arrived, 1);
    ck_assert_uint_eq(a.refusals + b.refusals, references[_i].said != NULL);
    if (references[_i].said != NULL) ck_assert_ptr_nonnull(strstr(b.refused, references[_i].said));
    fill(memory.at, BIG, 2);
    node_send(&a, to_b, 2, memory.at, BIG); // by reference or whole: it comes
    pump(&a, &b, &b.received, 2);
    pump(&a, &b, &a.sent, 2);
    ck_assert(is_filled(b.arrivals[1].buffer, BIG, 2));
    ck_assert_uint_eq(node_stats(&a).references_declined, references[_i].said != NULL);
}

TEST_EACH(a_key_that_is_damaged_is_refused_by_name_and_what_lies_there_comes_whole, 0, 3)
{
    struct node_memory memory = open_agreed();
    const uint8_t key[32] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 200 };
    struct ucx_frame_region frame = {
        .head = ucx_frame_head(UCX_FRAME_REGION, node_of(&a)),
        .address = 4096,
        .bytes = _i == 2 ? UINT64_C(1) << 50 : BYTES,
        .key_checksum = fabric_hash(key, sizeof key) + (_i == 0),
        .generation = 9,
        .slot = UCX_FRAME_SLOTS - 1,
        .key_bytes = sizeof key,
    };
    say(&frame, sizeof frame, key, sizeof key);
    pump_for_ms(&a, &b, 20); // 1: whole, and of transports that nobody has: UCX may take it
    if (_i != 1) ck_assert_ptr_nonnull(strstr(b.refused, "region 4095"));
    b.manner = NODE_RECEIVES;
    node_carry(&a, &b, to_b, 2, memory.at, BIG);
}

TEST(frames_of_strangers_and_what_is_none_change_nothing)
{
    const struct node_memory memory = open_agreed();
    node_pass(&a, &b, to_b, 1, memory.at, BIG);
    for (uint32_t kind = 0; kind < 9; kind++) {
        const union ucx_frame frame = { .head = ucx_frame_head((enum ucx_frame_kind)kind, 0x1234) };
        say(&frame, sizeof frame, NULL, 0);
        say(&frame, kind + 1, NULL, 0);
    }
    for (uint64_t serial = 1; serial < 100; serial++) { // releases of what was never referred to
        const struct ucx_frame_release release = {
            .head = ucx_frame_head(UCX_FRAME_RELEASE, node_of(&a)),
            .serial = serial << 32 | serial,
        };
        say(&release, sizeof release, NULL, 0);
    }
    pump_for_ms(&a, &b, 20);
    ck_assert_uint_eq(a.sent, 0);
    ck_assert_uint_eq(b.arrived, 1);
    ck_assert_uint_gt(node_stats(&b).messages_refused, 0);
    node_receive(&b, 0);
    pump(&a, &b, &a.sent, 1);
}

SUITE(30, .tear_down = pair_close);
