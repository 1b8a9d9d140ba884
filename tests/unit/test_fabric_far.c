/* Receives into memory that is not read soon: what lies there, what its checksum is said to be, and what
 * becomes of those that are cut off. */
#include <check.h>
#include <string.h>

#include "proto/base/text.h"
#include "proto/wire/wire.h"
#include "tests/support/fabric_pair.h"
#include "tests/support/suite.h"

enum { BYTES_MAX = 4 << 20, MARGIN = 192, CANARY = 0xa5 };

static const struct fabric_options large = { .max_payload = BYTES_MAX };
static uint8_t bytes[BYTES_MAX], landing[BYTES_MAX + 2 * MARGIN];

struct receive {
    uint64_t checksum;
    unsigned ends;
    cairn_status status;
};

static void on_received(void *arg, cairn_status status)
{
    struct receive *receive = arg;
    receive->ends++;
    receive->status = status;
}

static void receive_near(unsigned i, uint8_t *buffer, struct receive *receive)
{
    struct arrival *arrival = &b.arrivals[i];
    *receive = (struct receive) { .ends = 0 };
    ck_assert_int_eq(
        fabric_receive(arrival->message, buffer, arrival->payload_bytes, on_received, receive),
        CAIRN_OK);
    arrival->message = NULL;
}

static void receive_far(unsigned i, uint8_t *buffer, struct receive *receive)
{
    struct arrival *arrival = &b.arrivals[i];
    *receive = (struct receive) { .ends = 0 };
    ck_assert_int_eq(fabric_receive_far(arrival->message, buffer, arrival->payload_bytes,
                                        &receive->checksum, on_received, receive),
                     CAIRN_OK);
    arrival->message = NULL;
}

static bool is_canary(const uint8_t *at, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (at[i] != CANARY) return false;
    return true;
}

TEST_EACH(what_is_received_far_lies_there_and_its_checksum_is_said, 0, KINDS)
{
    static const size_t sizes[] = { 1,      5000,   40000,         262143,   262144,
                                    300001, 700007, (1 << 20) + 3, BYTES_MAX };
    pair_open(kinds[_i], &large);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t size = sizes[i];
        uint8_t *at = landing + MARGIN - 7 * i; // lines begin anywhere
        struct receive receive;
        fill(bytes, size, i);
        memset(landing, CANARY, sizeof landing);
        node_pass(&a, &b, to_b, i, bytes, size);
        receive_far(i, at, &receive);
        pump(&a, &b, &receive.ends, 1);
        pump(&a, &b, &a.sent, i + 1);
        ck_assert_int_eq(receive.status, CAIRN_OK);
        ck_assert(is_filled(at, size, i));
        ck_assert(is_canary(landing, (size_t)(at - landing)));
        ck_assert(is_canary(at + size, (size_t)(landing + sizeof landing - at) - size));
        ck_assert_uint_eq(receive.checksum, chunk_checksum(bytes, size));
    }
}

TEST_EACH(many_at_a_time_do_not_mix, 0, KINDS)
{
    enum { MANY = 12, SIZE = 300000 };
    struct receive receives[MANY];
    pair_open(kinds[_i], &large);
    for (unsigned i = 0; i < MANY; i++) fill(bytes + (size_t)i * SIZE, SIZE, i);
    for (unsigned i = 0; i < MANY; i++) node_send(&a, to_b, i, bytes + (size_t)i * SIZE, SIZE);
    pump(&a, &b, &b.arrived, MANY);
    for (unsigned i = MANY; i-- > 0;) receive_far(i, landing + (size_t)i * SIZE, &receives[i]);
    for (unsigned i = 0; i < MANY; i++) {
        const uint64_t id = b.arrivals[i].note.id;
        pump(&a, &b, &receives[i].ends, 1);
        ck_assert(is_filled(landing + (size_t)i * SIZE, SIZE, id));
        ck_assert_uint_eq(receives[i].checksum, chunk_checksum(bytes + id * SIZE, SIZE));
    }
}

TEST_EACH(receives_that_are_cut_off_end_once_and_leave_nothing, 0, KINDS)
{
    enum { MANY = 8, SIZE = 500000 };
    struct receive receives[MANY];
    pair_open(kinds[_i], &large);
    for (unsigned i = 0; i < MANY; i++) node_send(&a, to_b, i, bytes, SIZE);
    pump(&a, &b, &b.arrived, MANY);
    for (unsigned i = 0; i < MANY; i++) receive_far(i, landing + (size_t)i * SIZE, &receives[i]);
    pump(&a, &b, &receives[0].ends, 1); // the others are under way
    nodes_close();
    for (unsigned i = 0; i < MANY; i++) ck_assert_uint_eq(receives[i].ends, 1);
}

/* A sender that sleeps answers nothing, so the receives are under way for sure. Some of them share a
 * connection that this end made, too, others one that it knows only by what came over it. */
TEST_EACH(a_close_ends_receives_whose_sender_sleeps, 0, 2 * KINDS)
{
    enum { MANY = 6, SIZE = 500000 };
    struct receive receives[MANY];
    pair_open(kinds[_i % KINDS], &large);
    const bool is_known = _i >= KINDS;
    struct fabric_peer *to_a = is_known ? node_connect_to(&b, &a) : NULL;
    for (unsigned i = 0; i < MANY; i++) node_send(&a, to_b, i, bytes, SIZE);
    if (is_known) node_send(&b, to_a, 0, bytes, SIZE); // nobody takes it
    pump(&a, &b, &b.arrived, MANY);
    for (unsigned i = 0; i < MANY; i++)
        (i % 2 == 0 ? receive_far : receive_near)(i, landing + (size_t)i * SIZE, &receives[i]);
    for (unsigned turn = 0; turn < 20; turn++) fabric_progress(b.fabric);
    node_close(&b);
    for (unsigned i = 0; i < MANY; i++) ck_assert_uint_eq(receives[i].ends, 1);
    pump(&a, NULL, &a.downs, 1);
}

TEST(a_checksum_of_pieces_is_that_of_the_whole)
{
    struct checksum *sum = checksum_new();
    ck_assert_ptr_nonnull(sum);
    for (size_t piece = 1; piece < 200000; piece = piece * 3 + 1) {
        fill(bytes, 200000, piece);
        checksum_begin(sum);
        for (size_t at = 0; at < 200000; at += piece)
            checksum_add(sum, bytes + at, 200000 - at < piece ? 200000 - at : piece);
        ck_assert_uint_eq(checksum_end(sum), chunk_checksum(bytes, 200000));
    }
    checksum_free(sum);
}

SUITE(40, .tear_down = pair_close);
