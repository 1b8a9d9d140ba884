/* Records between two ends: nothing but what was sent, in its order, is ever taken. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/random.h"
#include "tests/support/secure_ends.h"
#include "tests/support/suite.h"

enum { OVERHEAD = 4 + 1 + 16, MOST = CAIRN_RECORD_BYTES_MAX };

static struct channel *a, *b; /* the initiator, and the responder */
static struct byte_queue wire, plain;
static struct sentence why;

/* Gives all of `wire` to an end, whatever comes of it. */
static cairn_status deliver(struct channel *to)
{
    cairn_status status = CAIRN_OK;
    while (wire.end > wire.start && status == CAIRN_OK) {
        size_t used;
        status = channel_take(to, wire.bytes + wire.start, wire.end - wire.start, MOST, &used,
                              &plain, &why);
        byte_queue_drop(&wire, used);
    }
    byte_queue_drop(&wire, wire.end - wire.start);
    return status;
}

static void shake_hands(void)
{
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(channel_greet(i % 2 == 0 ? a : b, &wire), CAIRN_OK);
        ck_assert_int_eq(deliver(i % 2 == 0 ? b : a), CAIRN_OK);
    }
    ck_assert(channel_is_up(a) && channel_is_up(b));
    ck_assert_uint_eq(plain.end, 0);
}

static void connect_two(void)
{
    ends_make();
    a = ends_channel(true);
    b = ends_channel(false);
    shake_hands();
}

static void part(void)
{
    channel_close(a);
    channel_close(b);
    byte_queue_release(&wire);
    byte_queue_release(&plain);
}

static void seal(struct channel *from, const void *bytes, size_t count)
{
    ck_assert_int_eq(channel_seal(from, bytes, count, 0, &wire), CAIRN_OK);
}

static void has_plain(const void *bytes, size_t count)
{
    ck_assert_uint_eq(plain.end - plain.start, count);
    if (count > 0) ck_assert_mem_eq(plain.bytes + plain.start, bytes, count);
    byte_queue_drop(&plain, count);
}

static void lies(cairn_status status, const char *word)
{
    ck_assert_int_eq(status, CAIRN_ERR_PROTOCOL);
    ck_assert_msg(strstr(why.text, word) != NULL, "%s", why.text);
    has_plain("", 0);
}

/* ==== what works ==== */

static const size_t sizes[] = { 1, 2, 4095, MOST - 1, MOST, MOST + 1, 3 * MOST, 3 * MOST + 17 };
enum { SIZES = sizeof sizes / sizeof *sizes };
static uint8_t bytes[3 * MOST + 17];

TEST_EACH(bytes_of_any_number_arrive_both_ways, 0, SIZES)
{
    random_state = (uint64_t)_i;
    for (size_t i = 0; i < sizes[_i]; i++) bytes[i] = (uint8_t)random_next();
    for (int way = 0; way < 2; way++) {
        seal(way == 0 ? a : b, bytes, sizes[_i]);
        const size_t records = (sizes[_i] + MOST - 1) / MOST;
        ck_assert_uint_eq(wire.end - wire.start, sizes[_i] + records * OVERHEAD);
        ck_assert_int_eq(deliver(way == 0 ? b : a), CAIRN_OK);
        has_plain(bytes, sizes[_i]);
    }
}

TEST(nothing_makes_no_record)
{
    seal(a, "", 0);
    ck_assert_uint_eq(wire.end, 0);
}

TEST_EACH(pieces_of_any_size_make_the_same, 0, 20)
{
    size_t sent = 0;
    random_state = (uint64_t)_i;
    for (int i = 0; i < 50; i++) {
        const size_t count = 1 + random_below(random_below(4) == 0 ? 20000 : 40);
        if (sent + count > sizeof bytes) break;
        for (size_t k = 0; k < count; k++) bytes[sent + k] = (uint8_t)random_next();
        seal(a, bytes + sent, count);
        sent += count;
    }
    while (wire.end > wire.start) {
        const size_t rest = wire.end - wire.start, some = 1 + random_below(_i == 0 ? 1 : 3000);
        size_t used;
        ck_assert_int_eq(channel_take(b, wire.bytes + wire.start, some < rest ? some : rest, MOST,
                                      &used, &plain, &why),
                         CAIRN_OK);
        byte_queue_drop(&wire, used);
    }
    has_plain(bytes, sent);
}

TEST(a_taker_that_has_enough_stops_before_the_next_record)
{
    for (int i = 0; i < 10; i++) seal(a, "0123456789", 10);
    size_t used;
    ck_assert_int_eq(channel_take(b, wire.bytes, wire.end, 15, &used, &plain, &why), CAIRN_OK);
    ck_assert_uint_eq(used, 2 * (10 + OVERHEAD));
    byte_queue_drop(&wire, used);
    has_plain("01234567890123456789", 20);
    ck_assert_int_eq(deliver(b), CAIRN_OK);
    ck_assert_uint_eq(plain.end, 80);
}

TEST(a_peer_is_known_and_its_keys_are_with_the_channel_alone)
{
    static const uint8_t zeros[32];
    const struct handshake_result *peer = channel_peer(b);
    ck_assert_mem_eq(peer->peer_key, ends_node.open, sizeof peer->peer_key);
    ck_assert_mem_eq(peer->key_id, ends_id, sizeof peer->key_id);
    ck_assert_mem_eq(peer->session_hash, channel_peer(a)->session_hash, 32);
    ck_assert_mem_eq(peer->send_key, zeros, 32);
    ck_assert_mem_eq(peer->receive_key, zeros, 32);
}

/* An initiator has its last message and its first records ready at once. */
TEST(records_follow_the_last_message_whoever_asks_first)
{
    part();
    a = ends_channel(true);
    b = ends_channel(false);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(channel_greet(i % 2 == 0 ? a : b, &wire), CAIRN_OK);
        ck_assert_int_eq(deliver(i % 2 == 0 ? b : a), CAIRN_OK);
    }
    ck_assert(channel_is_up(a) && !channel_is_up(b));
    seal(a, "early", 5);
    ck_assert_int_eq(deliver(b), CAIRN_OK);
    has_plain("early", 5);
}

TEST(a_refusal_can_be_sent_after_the_error)
{
    part();
    ends_row.refused = CAIRN_ERR_REFUSED;
    sentence_set(&ends_row.why, "expired");
    a = ends_channel(true);
    b = ends_channel(false);
    ck_assert_int_eq(channel_greet(a, &wire), CAIRN_OK);
    ck_assert_int_eq(deliver(b), CAIRN_ERR_REFUSED);
    ck_assert_int_eq(channel_greet(b, &wire), CAIRN_OK);
    ck_assert_int_eq(deliver(a), CAIRN_ERR_REFUSED);
    ck_assert_str_eq(why.text, "expired");
    ck_assert(!channel_is_up(a) && !channel_is_up(b));
    ck_assert_int_eq(channel_finish(a, &wire), CAIRN_OK);
    ck_assert_uint_eq(wire.end, 0);
}

/* ==== keys ==== */

TEST(a_key_ends_after_its_records_and_the_next_one_goes_on)
{
    uint32_t sent = 0;
    for (; sent < 2 * CAIRN_REKEY_RECORDS + 10; sent++) {
        const size_t before = wire.end - wire.start;
        seal(a, &sent, sizeof sent);
        // The last record of a key is REKEY.
        const bool is_due = sent > 0 && sent % (CAIRN_REKEY_RECORDS - 1) == 0;
        ck_assert_uint_eq(wire.end - wire.start - before,
                          sizeof sent + OVERHEAD + (is_due ? OVERHEAD : 0));
        if (sent % 1000 == 0) ck_assert_int_eq(deliver(b), CAIRN_OK);
    }
    ck_assert_int_eq(deliver(b), CAIRN_OK);
    ck_assert_uint_eq(plain.end - plain.start, sent * sizeof sent);
    for (uint32_t i = 0; i < sent; i++)
        ck_assert_mem_eq(plain.bytes + plain.start + i * sizeof i, &i, sizeof i);
}

TEST(a_key_ends_after_its_time_too)
{
    static const struct {
        uint64_t now_ms;
        size_t records;
    } seals[] = { { 5, 1 },
                  { 5 + CAIRN_REKEY_MS - 1, 1 },
                  { 5 + CAIRN_REKEY_MS, 2 },
                  { 5 + 2 * CAIRN_REKEY_MS - 1, 1 },
                  { 5 + 9 * CAIRN_REKEY_MS, 2 } };
    for (size_t i = 0; i < sizeof seals / sizeof *seals; i++) {
        ck_assert_int_eq(channel_seal(a, "x", 1, seals[i].now_ms, &wire), CAIRN_OK);
        ck_assert_uint_eq(wire.end - wire.start, 1 + seals[i].records * OVERHEAD);
        ck_assert_int_eq(deliver(b), CAIRN_OK);
        has_plain("x", 1);
    }
}

/* ==== the end ==== */

TEST(a_close_is_told_from_a_cut)
{
    ck_assert_int_eq(channel_ended(b, &why), CAIRN_ERR_PROTOCOL);
    ck_assert(strstr(why.text, "without the peer's word") != NULL);
    seal(a, "last", 4);
    ck_assert_int_eq(channel_finish(a, &wire), CAIRN_OK);
    ck_assert_int_eq(deliver(b), CAIRN_ERR_CLOSED);
    has_plain("last", 4);
    ck_assert_int_eq(channel_ended(b, &why), CAIRN_OK);
    ck_assert_int_eq(channel_finish(a, &wire), CAIRN_OK); // once
    ck_assert_uint_eq(wire.end, 0);
    seal(b, "mine goes on", 12); // the other direction is open
    ck_assert_int_eq(deliver(a), CAIRN_OK);
    has_plain("mine goes on", 12);
}

TEST(nothing_is_taken_after_the_end)
{
    ck_assert_int_eq(channel_finish(a, &wire), CAIRN_OK);
    ck_assert_int_eq(deliver(b), CAIRN_ERR_CLOSED);
    size_t used;
    ck_assert_int_eq(channel_take(b, bytes, 100, MOST, &used, &plain, &why), CAIRN_ERR_CLOSED);
    ck_assert_uint_eq(used, 0);
}

/* ==== a man in the middle ==== */

TEST(a_flipped_bit_of_any_byte_is_found)
{
    enum { COUNT = 40 + OVERHEAD };
    for (size_t at = 0; at < COUNT; at++) {
        part();
        connect_two();
        seal(a, bytes, 40);
        wire.bytes[at] ^= (uint8_t)(1u << at % 8);
        // A length that has become longer is found by the records after it.
        for (int i = 0; i < 3; i++) seal(a, bytes, MOST);
        lies(deliver(b), "");
        size_t used;
        ck_assert_int_eq(channel_take(b, bytes, 1, MOST, &used, &plain, &why), CAIRN_ERR_PROTOCOL);
    }
}

/* Seals the records "0" to "9". */
static void ten_records(void)
{
    for (char digit = '0'; digit <= '9'; digit++) seal(a, &digit, 1);
}

enum { ONE = 1 + OVERHEAD };

TEST_EACH(a_record_that_is_left_out_is_found, 0, 9)
{
    ten_records();
    memmove(wire.bytes + _i * ONE, wire.bytes + (_i + 1) * ONE, (size_t)(9 - _i) * ONE);
    wire.end -= ONE;
    ck_assert_int_eq(deliver(b), CAIRN_ERR_PROTOCOL);
    has_plain("0123456789", (size_t)_i);
}

TEST_EACH(a_record_that_comes_twice_is_found, 0, 9)
{
    ten_records();
    memcpy(wire.bytes + (_i + 1) * ONE, wire.bytes + _i * ONE, ONE);
    ck_assert_int_eq(deliver(b), CAIRN_ERR_PROTOCOL);
    has_plain("0123456789", (size_t)_i + 1);
}

TEST_EACH(records_that_change_places_are_found, 0, 9)
{
    uint8_t held[ONE];
    ten_records();
    memcpy(held, wire.bytes + _i * ONE, ONE);
    memcpy(wire.bytes + _i * ONE, wire.bytes + (_i + 1) * ONE, ONE);
    memcpy(wire.bytes + (_i + 1) * ONE, held, ONE);
    ck_assert_int_eq(deliver(b), CAIRN_ERR_PROTOCOL);
    has_plain("0123456789", (size_t)_i);
}

TEST(a_record_that_comes_back_is_found)
{
    seal(a, "mine", 4);
    lies(deliver(a), "changed, repeated or left out");
}

TEST(a_record_of_another_session_is_found)
{
    seal(a, "once", 4);
    uint8_t kept[4 + OVERHEAD];
    memcpy(kept, wire.bytes, sizeof kept);
    part();
    connect_two();
    seal(a, "once", 4);
    memcpy(wire.bytes, kept, sizeof kept);
    lies(deliver(b), "changed, repeated or left out");
}

static const uint32_t lengths[] = { 0, 1, 16, MOST + 18, 0x7fffffff, 0x80000000, 0xffffffff };

TEST_EACH(a_length_that_no_record_has_is_refused_at_once, 0, sizeof lengths / sizeof *lengths)
{
    uint8_t length[4];
    size_t used;
    le_put(length, lengths[_i], sizeof length);
    lies(channel_take(b, length, sizeof length, MOST, &used, &plain, &why), "a length");
    ck_assert_ptr_null(plain.bytes);
}

/* ==== a peer that lies ==== */

/* An initiator of this file's own, with the keys in its hands. */
static struct noise_cipher lie_to_b(void)
{
    part();
    struct handshake *liar = ends_handshake(true);
    struct noise_cipher cipher = { .nonce = 0 };
    struct handshake_result result;
    b = ends_channel(false);
    a = NULL;
    cairn_status status;
    size_t count, used;
    const uint8_t *out = handshake_to_send(liar, &count);
    ck_assert_int_eq(channel_take(b, out, count, MOST, &used, &plain, &why), CAIRN_OK);
    ck_assert_int_eq(channel_greet(b, &wire), CAIRN_OK);
    ck_assert_int_eq(handshake_take(liar, wire.bytes, wire.end, &used, &status, &why),
                     CAIRN_HANDSHAKE_DONE);
    byte_queue_drop(&wire, wire.end);
    out = handshake_to_send(liar, &count);
    ck_assert_int_eq(channel_take(b, out, count, MOST, &used, &plain, &why), CAIRN_OK);
    ck_assert(channel_is_up(b));
    handshake_result(liar, &result);
    memcpy(cipher.key, result.send_key, sizeof cipher.key);
    handshake_close(liar);
    return cipher;
}

static cairn_status tell(struct noise_cipher *cipher, const void *record, size_t count)
{
    uint8_t sealed[64];
    size_t used;
    le_put(sealed, count + 16, 4);
    noise_encrypt(cipher, sealed, 4, record, count, sealed + 4);
    return channel_take(b, sealed, count + 20, MOST, &used, &plain, &why);
}

static const struct {
    size_t count;
    const char *record;
} lying_records[] = {
    { 1, "\1" }, { 2, "\0x" }, { 1, "\0" }, { 2, "\2x" }, { 2, "\3x" }, { 1, "\4" }, { 1, "\377" },
};

TEST_EACH(a_record_of_no_kind_is_refused, 0, sizeof lying_records / sizeof *lying_records)
{
    struct noise_cipher cipher = lie_to_b();
    lies(tell(&cipher, lying_records[_i].record, lying_records[_i].count), "kind");
}

TEST(a_peer_that_never_rekeys_is_refused)
{
    struct noise_cipher cipher = lie_to_b();
    for (int i = 0; i < CAIRN_REKEY_RECORDS - 1; i++)
        ck_assert_int_eq(tell(&cipher, "\1x", 2), CAIRN_OK);
    byte_queue_drop(&plain, plain.end - plain.start);
    lies(tell(&cipher, "\1x", 2), "more records than are allowed");
}

TEST(a_peer_may_rekey_early)
{
    struct noise_cipher cipher = lie_to_b();
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(tell(&cipher, "\1x", 2), CAIRN_OK);
        has_plain("x", 1);
        ck_assert_int_eq(tell(&cipher, "\2", 1), CAIRN_OK);
        if (i < 2) noise_rekey(&cipher);
    }
    lies(tell(&cipher, "\1x", 2), "changed"); // by the old key
}

/* They would cost two hashes each, and bring nothing. */
TEST(a_peer_that_only_rekeys_is_refused)
{
    struct noise_cipher cipher = lie_to_b();
    ck_assert_int_eq(tell(&cipher, "\1x", 2), CAIRN_OK);
    ck_assert_int_eq(tell(&cipher, "\2", 1), CAIRN_OK);
    noise_rekey(&cipher);
    byte_queue_drop(&plain, 1);
    lies(tell(&cipher, "\2", 1), "has not used");
}

TEST(a_call_takes_so_many_records_and_no_more)
{
    size_t used;
    for (int i = 0; i < CAIRN_TAKE_RECORDS + 1; i++) seal(a, "x", 1);
    ck_assert_int_eq(channel_take(b, wire.bytes, wire.end, MOST, &used, &plain, &why), CAIRN_OK);
    ck_assert_uint_eq(used, CAIRN_TAKE_RECORDS * (1 + OVERHEAD));
    byte_queue_drop(&wire, used);
    ck_assert_int_eq(deliver(b), CAIRN_OK);
    ck_assert_uint_eq(plain.end, CAIRN_TAKE_RECORDS + 1);
}
SUITE(60, connect_two, part);
