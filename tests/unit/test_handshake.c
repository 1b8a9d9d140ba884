/* Handshakes between two ends, and all that must not become one. */
#include <check.h>
#include <sodium.h>
#include <string.h>

#include "proto/secure/secure.h"
#include "tests/support/suite.h"

static struct curve_key coordinator_key, node_key;
static struct handshake_row row;
static uint8_t known_id[CAIRN_PSK_ID_BYTES] = { 1, 2, 3, 4, 5, 6, 7, 8 };
static uint8_t pin[CAIRN_PIN_BYTES];

static bool find_row(void *arg, const uint8_t *key_id, struct handshake_row *row_out)
{
    (void)arg;
    if (memcmp(key_id, known_id, sizeof known_id) != 0) return false;
    *row_out = row;
    return true;
}

static void set_up(void)
{
    curve_key_make(&coordinator_key);
    curve_key_make(&node_key);
    curve_pin(coordinator_key.open, pin);
    row = (struct handshake_row) { .own = &coordinator_key };
    randombytes_buf(row.secret, sizeof row.secret);
}

static struct handshake_options initiators(void)
{
    struct handshake_options options = {
        .is_initiator = true,
        .purpose = CAIRN_PURPOSE_CONTROL,
        .own = &node_key,
        .pin = pin,
    };
    memcpy(options.key_id, known_id, sizeof options.key_id);
    memcpy(options.secret, row.secret, sizeof options.secret);
    return options;
}

static struct handshake_options responders(void)
{
    return (struct handshake_options) { .purpose = CAIRN_PURPOSE_CONTROL, .find = find_row };
}

TEST(both_ends_have_the_same_keys_the_other_way_round)
{
    const struct handshake_options first = initiators(), second = responders();
    struct channel *a, *b;
    struct byte_queue wire = { 0 }, plain = { 0 };
    struct sentence why;
    size_t used;
    ck_assert_int_eq(channel_open(&first, &a), CAIRN_OK);
    ck_assert_int_eq(channel_open(&second, &b), CAIRN_OK);
    for (int i = 0; i < 3; i++) {
        struct channel *from = i % 2 == 0 ? a : b, *to = i % 2 == 0 ? b : a;
        ck_assert_int_eq(channel_greet(from, &wire), CAIRN_OK);
        ck_assert_int_eq(channel_take(to, wire.bytes, wire.end, 65536, &used, &plain, &why),
                         CAIRN_OK);
        byte_queue_drop(&wire, wire.end);
    }
    ck_assert(channel_is_up(a) && channel_is_up(b));
    ck_assert_int_eq(channel_seal(a, "hello", 5, 0, &wire), CAIRN_OK);
    ck_assert_int_eq(channel_take(b, wire.bytes, wire.end, 65536, &used, &plain, &why), CAIRN_OK);
    ck_assert_mem_eq(plain.bytes, "hello", 5);
}
SUITE(30, set_up, NULL);
