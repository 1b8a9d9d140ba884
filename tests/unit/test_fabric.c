/* What every fabric promises, over each of them on loopback; then what only "mem" does. */
#include <inttypes.h>
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/loop/loop.h"
#include "tests/support/fabric_pair.h"
#include "tests/support/mem.h"
#include "tests/support/suite.h"

static struct fabric_peer *to_a; // of b
static uint8_t bytes[2 << 20];

static void meet(int kind)
{
    pair_open(kinds[kind], NULL);
    to_a = node_connect_to(&b, &a);
}

static void assert_quiet(const struct node *node)
{
    const struct fabric_stats stats = node_stats(node);
    ck_assert_uint_eq(stats.sends_now + stats.receives_now + stats.held_now, 0);
}

/* -- promises of all fabrics -------------------------------------------------------------------- */

TEST_EACH(payloads_of_every_size_arrive_whole_in_both_directions, 0, KINDS)
{
    static const size_t sizes[] = { 8, 64, 1000, 8192, 32767, 32768, 65536, 300001, 1 << 20 };
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    meet(_i);
    a.manner = b.manner = NODE_RECEIVES;
    for (unsigned i = 0; i < COUNT; i++) {
        node_carry(&a, &b, to_b, i, bytes, sizes[i]);
        node_carry(&b, &a, to_a, i, b.arrivals[i].buffer, sizes[i]);
    }
    const struct fabric_stats stats = node_stats(&b);
    ck_assert_uint_eq(stats.messages_received, COUNT);
    ck_assert_uint_eq(stats.messages_sent, COUNT);
    ck_assert_uint_eq(stats.bytes_received, stats.bytes_sent);
    assert_quiet(&a);
    assert_quiet(&b);
}

TEST_EACH(a_message_without_payload_is_only_its_header, 0, KINDS)
{
    meet(_i);
    node_pass(&a, &b, to_b, 42, NULL, 0);
    pump(&a, &b, &a.sent, 1);
    ck_assert_uint_eq(b.arrivals[0].note.id, 42);
    assert_quiet(&b);
}

TEST_EACH(sixty_four_held_messages_can_be_received_in_reverse_order, 0, KINDS)
{
    enum { HELD = 64, BYTES = 100000 }; // rendezvous
    meet(_i);
    uint8_t *payloads = malloc((size_t)HELD * BYTES);
    for (unsigned i = 0; i < HELD; i++) {
        fill(payloads + (size_t)i * BYTES, BYTES, i);
        node_send(&a, to_b, i, payloads + (size_t)i * BYTES, BYTES);
    }
    pump(&a, &b, &b.arrived, HELD);
    if (_i != MAPPED && _i != AUTO) ck_assert_uint_eq(a.sent, 0); // on loan while they are held
    for (unsigned i = HELD; i-- > 0;) node_receive(&b, i);
    pump(&a, &b, &b.received, HELD);
    pump(&a, &b, &a.sent, HELD);
    for (unsigned i = 0; i < HELD; i++)
        ck_assert(is_filled(b.arrivals[i].buffer, BYTES, b.arrivals[i].note.id));
    ck_assert_uint_eq(a.send_errors + b.receive_errors, 0);
    free(payloads);
}

TEST_EACH(small_payloads_can_be_held_too, 0, KINDS)
{
    enum { HELD = 64, BYTES = 3000 };
    meet(_i);
    for (unsigned i = 0; i < HELD; i++) {
        fill(bytes, BYTES, i);
        node_send(&a, to_b, i, bytes, BYTES);
        pump(&a, &b, &a.sent, i + 1); // the buffer is used again
    }
    pump(&a, &b, &b.arrived, HELD);
    for (unsigned i = HELD; i-- > 0;) node_receive(&b, i);
    pump(&a, &b, &b.received, HELD);
    for (unsigned i = 0; i < HELD; i++)
        ck_assert(is_filled(b.arrivals[i].buffer, BYTES, b.arrivals[i].note.id));
}

/* Sizes around what is bundled, and the place of the i-th payload. */
static size_t mixed_size(unsigned i)
{
    static const size_t sizes[] = { 4096, 0, 1, 8192, 8193, 333, 40000, 64 };
    return sizes[i % (sizeof sizes / sizeof *sizes)];
}

TEST_EACH(what_is_sent_in_one_turn_may_be_held_dropped_and_received_one_by_one, 0, KINDS)
{
    enum { COUNT = 400, LONGEST = 40000 };
    meet(_i);
    uint8_t *payloads = malloc((size_t)COUNT * LONGEST);
    for (unsigned i = 0; i < COUNT; i++) {
        fill(payloads + (size_t)i * LONGEST, mixed_size(i), i);
        node_send(&a, to_b, i, payloads + (size_t)i * LONGEST, mixed_size(i));
    }
    pump(&a, &b, &b.arrived, COUNT);
    unsigned wanted = 0;
    for (unsigned k = 0; k < COUNT; k++) {
        const unsigned i = k * 77 % COUNT; // each once, in no order
        struct fabric_message *message = b.arrivals[i].message;
        if (message != NULL && k % 3 == 0) fabric_drop(message);
        if (message == NULL || k % 3 == 0) continue;
        node_receive(&b, i);
        wanted++;
    }
    pump(&a, &b, &b.received, wanted);
    pump(&a, &b, &a.sent, COUNT);
    for (unsigned i = 0; i < COUNT; i++) {
        const struct arrival *arrival = &b.arrivals[i];
        ck_assert_uint_eq(arrival->payload_bytes, mixed_size((unsigned)arrival->note.id));
        if (arrival->buffer != NULL)
            ck_assert(is_filled(arrival->buffer, arrival->payload_bytes, arrival->note.id));
    }
    ck_assert_uint_eq(a.send_errors + b.receive_errors, 0);
    assert_quiet(&a);
    assert_quiet(&b);
    free(payloads);
}

TEST_EACH(a_peer_that_takes_nothing_for_a_while_gets_all_of_it_later, 0, KINDS)
{
    enum { COUNT = 3000, BYTES = 6000 };
    meet(_i);
    b.manner = NODE_RECEIVES;
    for (unsigned i = 0; i < COUNT; i++) {
        fill(bytes + i % 64 * BYTES, BYTES, i % 64);
        node_send(&a, to_b, i, bytes + i % 64 * BYTES, BYTES);
        if (_i != MEM && i % 100 == 99) fabric_progress(a.fabric); // it leaves, if it can
    }
    pump(&a, &b, &b.received, COUNT);
    pump(&a, &b, &a.sent, COUNT);
    for (unsigned i = 0; i < COUNT; i++)
        ck_assert(is_filled(b.arrivals[i].buffer, BYTES, b.arrivals[i].note.id % 64));
    ck_assert_uint_eq(a.send_errors + b.receive_errors, 0);
    assert_quiet(&a);
}

static void on_never(void *arg, cairn_status status)
{
    (void)arg, (void)status;
    ck_abort_msg("a refused operation was completed");
}

TEST_EACH(a_buffer_that_is_too_small_is_refused_and_the_message_stays_held, 0, KINDS)
{
    static const size_t sizes[] = { 100, 200000 }; // eager, rendezvous
    meet(_i);
    for (unsigned i = 0; i < 2; i++) {
        fill(bytes, sizes[i], i);
        node_pass(&a, &b, to_b, i, bytes, sizes[i]);
        uint8_t small[64];
        ck_assert_int_eq(fabric_receive(b.arrivals[i].message, small, sizeof small, on_never, NULL),
                         CAIRN_ERR_INVALID);
        node_receive(&b, i);
        pump(&a, &b, &b.received, i + 1);
        pump(&a, &b, &a.sent, i + 1);
        ck_assert(is_filled(b.arrivals[i].buffer, sizes[i], i));
    }
}

TEST_EACH(dropping_frees_the_sender_at_once_or_later, 0, KINDS)
{
    meet(_i);
    b.manner = NODE_DROPS;
    node_send(&a, to_b, 1, bytes, 100);
    node_send(&a, to_b, 2, bytes, 200000);
    pump(&a, &b, &b.arrived, 2);
    pump(&a, &b, &a.sent, 2);
    b.manner = NODE_HOLDS;
    node_send(&a, to_b, 3, bytes, 100);
    node_send(&a, to_b, 4, bytes, 200000);
    pump(&a, &b, &b.arrived, 4);
    fabric_drop(b.arrivals[2].message);
    fabric_drop(b.arrivals[3].message);
    pump(&a, &b, &a.sent, 4);
    ck_assert_uint_eq(a.send_errors, 0);
    ck_assert_uint_eq(node_stats(&b).messages_dropped, 4);
    assert_quiet(&b);
}

TEST_EACH(a_send_over_a_limit_is_refused_before_it_leaves, 0, KINDS)
{
    uint8_t header[CAIRN_FABRIC_HEADER_MAX + 1] = { 0 };
    pair_open(kinds[_i], &(struct fabric_options) { .sends_max = 2 });
    ck_assert_int_eq(fabric_send(to_b, header, sizeof header, NULL, 0, NULL, NULL),
                     CAIRN_ERR_INVALID);
    ck_assert_int_eq(fabric_send(to_b, header, 0, NULL, 0, NULL, NULL), CAIRN_ERR_INVALID);
    ck_assert_int_eq(
        fabric_send(to_b, header, 16, bytes, CAIRN_FABRIC_PAYLOAD_MAX + 1, on_never, NULL),
        CAIRN_ERR_INVALID);
    node_send(&a, to_b, 1, bytes, 200000);
    node_send(&a, to_b, 2, bytes, 200000);
    ck_assert_int_eq(fabric_send(to_b, header, 16, bytes, 200000, on_never, NULL), CAIRN_ERR_BUSY);
    b.manner = NODE_RECEIVES;
    pump(&a, &b, &a.sent, 2);
    node_send(&a, to_b, 3, bytes, 200000);
    pump(&a, &b, &a.sent, 3);
}

TEST_EACH(what_is_too_large_or_too_much_for_the_receiver_is_refused_and_counted, 0, KINDS)
{
    pair_open(kinds[_i], &(struct fabric_options) { .held_max = 3 });
    for (unsigned i = 0; i < 5; i++) node_send(&a, to_b, i, bytes, 100000);
    pump(&a, &b, &a.sent, 2); // the two that were refused
    ck_assert_uint_eq(b.arrived, 3);
    ck_assert_uint_eq(node_stats(&b).messages_refused, 2);
    pair_close();

    pair_open(kinds[_i], &(struct fabric_options) { .max_payload = 2 << 20 });
    static struct node strict;
    node_open(&strict, kinds[_i], &(struct fabric_options) { .hub = hub });
    node_send(&a, node_connect_to(&a, &strict), 1, bytes, 2 << 20);
    pump(&a, &strict, &a.sent, 1);
    ck_assert_uint_eq(strict.arrived, 0);
    ck_assert_uint_eq(node_stats(&strict).messages_refused, 1);
}

TEST_EACH(a_garbled_address_is_refused_wherever_the_damage_is, 0, KINDS)
{
    meet(_i);
    uint8_t address[CAIRN_FABRIC_ADDRESS_MAX];
    size_t count;
    const void *good = fabric_own_address(b.fabric, &count);
    struct fabric_peer *peer;
    for (size_t i = 0; i < count; i++) {
        memcpy(address, good, count);
        address[i] ^= (uint8_t)(1 + i % 255);
        ck_assert_int_eq(fabric_connect_to(a.fabric, address, count, NULL, NULL, &peer),
                         CAIRN_ERR_MALFORMED);
        ck_assert_int_eq(fabric_connect_to(a.fabric, good, i, NULL, NULL, &peer),
                         CAIRN_ERR_MALFORMED);
    }
    memset(address, 0xff, sizeof address);
    ck_assert_int_eq(fabric_connect_to(a.fabric, address, sizeof address, NULL, NULL, &peer),
                     CAIRN_ERR_MALFORMED);
}

TEST_EACH(closing_a_peer_is_quiet_here_and_both_can_meet_again, 0, KINDS)
{
    meet(_i);
    node_send(&a, to_b, 1, bytes, 8);
    node_send(&b, to_a, 1, bytes, 8);
    pump(&a, &b, &a.arrived, 1);
    pump(&a, &b, &b.arrived, 1);
    fabric_peer_close(to_b);
    pump_for_ms(&a, &b, 20);
    ck_assert_uint_le(b.downs, 1);
    ck_assert_uint_eq(a.downs, 0); // it asked for it
    fabric_peer_close(to_a);
    to_b = node_connect_to(&a, &b); // both live on and may meet again
    node_pass(&a, &b, to_b, 2, bytes, 8);
}

static void on_gone(void *arg, struct fabric_peer *peer, cairn_status why)
{
    (void)peer, (void)why;
    ((struct node *)arg)->downs++;
}

TEST_EACH(a_peer_whose_process_is_gone_goes_down_once_and_sends_to_it_say_closed, 0, KINDS)
{
    const struct note note = { 0 };
    meet(_i);
    node_pass(&a, &b, to_b, 1, bytes, 8);
    fabric_close(b.fabric);
    b.fabric = NULL;
    pump(&a, NULL, &a.downs, 1);
    ck_assert_int_eq(a.why_down, CAIRN_ERR_CLOSED);
    ck_assert_int_eq(fabric_send(to_b, &note, sizeof note, bytes, 8, on_never, NULL),
                     CAIRN_ERR_CLOSED);
    pump_for_ms(&a, NULL, 20);
    ck_assert_uint_eq(a.downs, 1);
    fabric_peer_close(to_b);
    pump_for_ms(&a, NULL, 5);
}

TEST_EACH(an_address_where_nobody_lives_any_more_is_unreachable_now_or_goes_down, 0, KINDS)
{
    meet(_i);
    struct node gone;
    uint8_t address[CAIRN_FABRIC_ADDRESS_MAX];
    size_t count;
    node_open(&gone, kinds[_i], &(struct fabric_options) { .hub = hub });
    memcpy(address, fabric_own_address(gone.fabric, &count), sizeof address);
    node_close(&gone);
    struct fabric_peer *peer = NULL;
    const cairn_status status = fabric_connect_to(a.fabric, address, count, on_gone, &a, &peer);
    if (status == CAIRN_OK)
        pump(&a, &b, &a.downs, 1);
    else
        ck_assert_int_eq(status, CAIRN_ERR_UNREACHABLE);
    fabric_peer_close(peer);
    pump_for_ms(&a, &b, 5);
}

TEST_EACH(close_in_the_middle_of_everything_returns_every_buffer, 0, KINDS)
{
    enum { EACH = 16, BYTES = 200000 };
    meet(_i);
    for (unsigned i = 0; i < EACH; i++) {
        node_send(&a, to_b, i, bytes, BYTES);
        node_send(&b, to_a, i, bytes, BYTES);
    }
    pump(&a, &b, &b.arrived, EACH);
    for (unsigned i = 0; i < EACH / 2; i++) node_receive(&b, i); // half in flight, half held
    fabric_close(b.fabric);
    ck_assert_uint_eq(b.sent, EACH);
    ck_assert_uint_eq(b.received, EACH / 2);
    b.fabric = NULL;
    pump(&a, NULL, &a.sent, EACH);
    pump(&a, NULL, &a.downs, 1);
}

/* On each arrival: answer, drop, and give the sender up, all inside the callback. */
struct hasty {
    struct fabric *fabric;
    struct fabric_peer *peer;
    unsigned arrived;
};

static void on_hasty_message(void *arg, const void *header, size_t header_bytes,
                             size_t payload_bytes, struct fabric_message *message)
{
    struct hasty *hasty = arg;
    ck_assert_uint_gt(payload_bytes, 0);
    ck_assert_int_eq(fabric_send(hasty->peer, header, header_bytes, NULL, 0, NULL, NULL), CAIRN_OK);
    fabric_drop(message);
    if (++hasty->arrived == 2) fabric_peer_close(hasty->peer);
}

TEST_EACH(callbacks_may_send_drop_and_close_peers, 0, KINDS)
{
    meet(_i);
    struct hasty hasty = { 0 };
    const struct fabric_options options = { .hub = hub,
                                            .on_message = on_hasty_message,
                                            .on_message_arg = &hasty };
    size_t count;
    ck_assert_int_eq(fabric_open(kinds[_i], &options, &hasty.fabric, NULL), CAIRN_OK);
    const void *address = fabric_own_address(a.fabric, &count);
    ck_assert_int_eq(fabric_connect_to(hasty.fabric, address, count, NULL, NULL, &hasty.peer),
                     CAIRN_OK);
    address = fabric_own_address(hasty.fabric, &count);
    struct fabric_peer *peer = node_connect(&a, address, count);
    struct node shell = { .fabric = hasty.fabric }; // only to be driven
    node_send(&a, peer, 1, bytes, 100);
    pump(&a, &shell, &a.arrived, 1);
    node_send(&a, peer, 2, bytes, 200000);
    pump(&a, &shell, &hasty.arrived, 2);
    pump(&a, &shell, &a.sent, 2);
    fabric_close(hasty.fabric);
}

static void on_stop(void *arg, cairn_status status)
{
    ck_assert_int_eq(status, CAIRN_OK);
    uv_stop(arg);
}

TEST_EACH(a_libuv_loop_drives_it_and_ends_empty, 0, KINDS)
{
    uv_loop_t loop;
    struct fabric_poll poll_a, poll_b;
    const struct note note = { .id = 5 };
    meet(_i);
    b.manner = NODE_RECEIVES;
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(fabric_poll_init(&poll_a, &loop, a.fabric, 0), CAIRN_OK);
    ck_assert_int_eq(fabric_poll_init(&poll_b, &loop, b.fabric, 0), CAIRN_OK);
    fill(bytes, 500000, 5);
    ck_assert_int_eq(fabric_send(to_b, &note, sizeof note, bytes, 500000, on_stop, &loop),
                     CAIRN_OK);
    uv_run(&loop, UV_RUN_DEFAULT);
    while (b.received == 0) uv_run(&loop, UV_RUN_ONCE);
    ck_assert(is_filled(b.arrivals[0].buffer, 500000, 5));
    fabric_poll_close(&poll_a, NULL, NULL);
    fabric_poll_close(&poll_b, NULL, NULL);
    pair_close();
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

SUITE(30, .tear_down = pair_close);

/* -- only mem ----------------------------------------------------------------------------------- */

/* Sends a storm both ways and writes down what b saw, as text. */
static void storm_trace(uint64_t seed, char *trace, size_t trace_bytes)
{
    struct cairn_fabric_mem_options storm = { .seed = seed,
                                              .delay_max_ticks = 9,
                                              .duplicate_permille = 200,
                                              .cut_permille = 10,
                                              .eager_bytes = 32 };
    ck_assert_int_eq(cairn_fabric_mem_hub_open(&storm, &hub), CAIRN_OK);
    const struct fabric_options options = { .hub = hub };
    node_open(&a, "mem", &options);
    node_open(&b, "mem", &options);
    b.manner = NODE_RECEIVES;
    unsigned sent = 0;
    for (unsigned i = 0; i < 200; i++) {
        if (i == 0 || a.downs > 0) {
            if (i > 0) fabric_peer_close(to_b);
            to_b = node_connect_to(&a, &b);
            a.downs = 0;
        }
        const struct note note = { .id = i };
        if (fabric_send(to_b, &note, sizeof note, NULL, 0, NULL, NULL) == CAIRN_OK) sent++;
        cairn_fabric_mem_hub_step(hub);
    }
    cairn_fabric_mem_hub_run(hub, 100000);
    int length = snprintf(trace, trace_bytes, "%u:", sent);
    for (unsigned i = 0; i < b.arrived; i++)
        length += snprintf(trace + length, trace_bytes - (size_t)length, " %" PRIu64,
                           b.arrivals[i].note.id);
    pair_close();
}

TEST(one_seed_is_one_order_of_events)
{
    static char first[8192], second[8192], other[8192];
    storm_trace(11, first, sizeof first);
    storm_trace(11, second, sizeof second);
    storm_trace(12, other, sizeof other);
    ck_assert_str_eq(first, second);
    ck_assert_str_ne(first, other);
}

TEST(messages_overtake_and_repeat_but_none_is_lost_without_a_cut)
{
    enum { COUNT = 300 };
    unsigned seen[COUNT] = { 0 }, overtaken = 0, repeated = 0;
    const struct cairn_fabric_mem_options storm = { .seed = 3,
                                                    .delay_max_ticks = 10,
                                                    .duplicate_permille = 100 };
    meet(MEM);
    cairn_fabric_mem_hub_set(hub, &storm);
    b.manner = NODE_RECEIVES;
    for (unsigned i = 0; i < COUNT; i++) node_send(&a, to_b, i, bytes, 10);
    cairn_fabric_mem_hub_run(hub, 100000);
    for (unsigned i = 0; i < b.arrived; i++) {
        seen[b.arrivals[i].note.id]++;
        if (i > 0 && b.arrivals[i].note.id < b.arrivals[i - 1].note.id) overtaken++;
    }
    for (unsigned i = 0; i < COUNT; i++) {
        ck_assert_uint_ge(seen[i], 1);
        repeated += seen[i] - 1;
    }
    ck_assert_uint_gt(overtaken, 0);
    ck_assert_uint_gt(repeated, 0);
    ck_assert_uint_eq(a.sent, COUNT);
}

TEST(a_cut_tells_both_ends_and_fails_what_was_held_or_under_way)
{
    meet(MEM);
    node_send(&a, to_b, 1, bytes, 100000);
    cairn_fabric_mem_hub_run(hub, 1000);
    node_send(&a, to_b, 2, bytes, 100000); // under way
    cairn_fabric_mem_cut(to_b);
    cairn_fabric_mem_hub_run(hub, 1000);
    ck_assert_uint_eq(a.downs, 1);
    ck_assert_uint_eq(b.downs, 1);
    ck_assert_uint_eq(a.send_errors, 2);
    ck_assert_uint_eq(b.arrived, 1);
    node_receive(&b, 0);
    cairn_fabric_mem_hub_run(hub, 1000);
    ck_assert_uint_eq(b.receive_errors, 1);
}

TEST(a_sender_that_touches_a_buffer_on_loan_is_found_out)
{
    meet(MEM);
    fill(bytes, 100000, 1);
    node_send(&a, to_b, 1, bytes, 100000);
    cairn_fabric_mem_hub_run(hub, 1000);
    bytes[500] ^= 1; // on_sent has not run
    node_receive(&b, 0);
    cairn_fabric_mem_hub_run(hub, 1000);
    ck_assert_uint_eq(b.received, 1);
    ck_assert(!is_filled(b.arrivals[0].buffer, 100000, 1));
}

static void *drive_b(void *unused)
{
    (void)unused;
    pump(&b, NULL, &b.received, 400);
    pump(&b, NULL, &b.sent, 400);
    return NULL;
}

TEST(nodes_may_live_on_threads_of_their_own)
{
    pthread_t thread;
    meet(MEM);
    a.manner = b.manner = NODE_RECEIVES;
    fill(bytes, 100000, 1);
    for (unsigned i = 0; i < 200; i++) { // each owner's own calls: before the thread, or on it
        node_send(&a, to_b, 1, bytes, 100);
        node_send(&a, to_b, 1, bytes, 100000);
        node_send(&b, to_a, 1, bytes, 100);
        node_send(&b, to_a, 1, bytes, 100000);
    }
    ck_assert_int_eq(pthread_create(&thread, NULL, drive_b, NULL), 0);
    pump(&a, NULL, &a.received, 400);
    pump(&a, NULL, &a.sent, 400);
    pthread_join(thread, NULL);
    for (unsigned i = 0; i < 400; i++)
        ck_assert(is_filled(b.arrivals[i].buffer, b.arrivals[i].payload_bytes, 1));
}

TEST(an_unknown_kind_is_refused_with_the_known_ones)
{
    node_open_fails("pigeon", &(struct fabric_options) { 0 }, CAIRN_ERR_INVALID,
                    "no fabric 'pigeon': use auto, mapped, sealed, stream or ucx");
}

SUITE(30, .tear_down = pair_close);
