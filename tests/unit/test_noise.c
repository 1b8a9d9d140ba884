/* The Noise handshake by the published vector, and what must not pass in it. */
#include <check.h>
#include <sodium.h>
#include <string.h>

#include "proto/secure/noise.h"
#include "tests/golden/noise_golden.h"
#include "tests/support/suite.h"

enum { MESSAGE_BYTES_MAX = 256, MESSAGES = sizeof noise_messages / sizeof *noise_messages };

static size_t from_hex(const char *hex, uint8_t *out, size_t room)
{
    size_t bytes = 0;
    ck_assert_int_eq(sodium_hex2bin(out, room, hex, strlen(hex), NULL, &bytes, NULL), 0);
    return bytes;
}

static struct curve_key key_of(const char *hex)
{
    struct curve_key key;
    ck_assert_uint_eq(from_hex(hex, key.secret, sizeof key.secret), sizeof key.secret);
    crypto_scalarmult_curve25519_base(key.open, key.secret);
    return key;
}

struct two {
    struct noise initiator, responder;
};

static struct two begin_two(void)
{
    const struct curve_key keys[] = { key_of(noise_init_static), key_of(noise_init_ephemeral),
                                      key_of(noise_resp_static), key_of(noise_resp_ephemeral) };
    uint8_t prologue[64], psk[CAIRN_PSK_BYTES];
    const size_t prologue_bytes = from_hex(noise_prologue, prologue, sizeof prologue);
    struct two two;
    from_hex(noise_psk, psk, sizeof psk);
    noise_begin(&two.initiator, true, prologue, prologue_bytes, &keys[0], &keys[1], psk);
    noise_begin(&two.responder, false, prologue, prologue_bytes, &keys[2], &keys[3], psk);
    return two;
}

/* The message `i` from one end to the other, as the vector has it. */
static void pass(struct two *two, int i)
{
    struct noise *from = i % 2 == 0 ? &two->initiator : &two->responder;
    struct noise *to = i % 2 == 0 ? &two->responder : &two->initiator;
    uint8_t payload[MESSAGE_BYTES_MAX], message[MESSAGE_BYTES_MAX], expected[MESSAGE_BYTES_MAX];
    const size_t count = from_hex(noise_messages[i].payload, payload, sizeof payload);
    const size_t bytes = from_hex(noise_messages[i].sealed, expected, sizeof expected);
    ck_assert(noise_write(from, payload, count, message));
    ck_assert_mem_eq(message, expected, bytes);
    uint8_t read[MESSAGE_BYTES_MAX];
    ck_assert(noise_read(to, message, bytes, read));
    ck_assert_mem_eq(read, payload, count);
}

TEST(the_published_vector_is_met)
{
    struct two two = begin_two();
    for (int i = 0; i < 3; i++) pass(&two, i);
    uint8_t hash[CAIRN_NOISE_HASH_BYTES];
    from_hex(noise_handshake_hash, hash, sizeof hash);
    ck_assert_mem_eq(two.initiator.hash, hash, sizeof hash);
    ck_assert_mem_eq(two.responder.hash, hash, sizeof hash);
    ck_assert_mem_eq(two.initiator.peer, two.responder.own.open, CAIRN_CURVE_BYTES);
    ck_assert_mem_eq(two.responder.peer, two.initiator.own.open, CAIRN_CURVE_BYTES);
    struct noise_cipher send[2], receive[2]; // of the initiator, and of the responder
    noise_split(&two.initiator, &send[0], &receive[0]);
    noise_split(&two.responder, &send[1], &receive[1]);
    for (int i = 3; i < MESSAGES; i++) {
        uint8_t payload[MESSAGE_BYTES_MAX], message[MESSAGE_BYTES_MAX], expected[MESSAGE_BYTES_MAX];
        const size_t count = from_hex(noise_messages[i].payload, payload, sizeof payload);
        const size_t bytes = from_hex(noise_messages[i].sealed, expected, sizeof expected);
        noise_encrypt(&send[i % 2], NULL, 0, payload, count, message);
        ck_assert_mem_eq(message, expected, bytes);
        ck_assert(noise_decrypt(&receive[1 - i % 2], NULL, 0, message, bytes, message));
        ck_assert_mem_eq(message, payload, count);
    }
}
SUITE(30);
