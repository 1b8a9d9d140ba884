/* The Noise handshake by the published vector, and what must not pass in it. */
#include <check.h>
#include <sodium.h>
#include <string.h>

#include "proto/secure/secure.h"
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

/* ==== what must not pass ==== */

static struct two begin_with(const struct curve_key keys[4], const uint8_t *psks[2])
{
    struct two two;
    noise_begin(&two.initiator, true, "p", 1, &keys[0], &keys[1], psks[0]);
    noise_begin(&two.responder, false, "p", 1, &keys[2], &keys[3], psks[1]);
    return two;
}

static void make_keys(struct curve_key keys_out[4])
{
    for (int i = 0; i < 4; i++) curve_key_make(&keys_out[i]);
}

/* Returns the number of the message that is refused; 4: none. `lying` is before each call of the liar. */
static int talk(struct two *two, void (*lying)(int message, bool is_reading))
{
    for (int message = 1; message <= 3; message++) {
        struct noise *from = message % 2 == 1 ? &two->initiator : &two->responder;
        struct noise *to = message % 2 == 1 ? &two->responder : &two->initiator;
        uint8_t bytes[CAIRN_NOISE_SECOND_BYTES], nothing[1];
        static const size_t counts[] = { CAIRN_NOISE_FIRST_BYTES, CAIRN_NOISE_SECOND_BYTES,
                                         CAIRN_NOISE_THIRD_BYTES };
        if (lying != NULL) lying(message, false);
        if (!noise_write(from, NULL, 0, bytes)) return message;
        if (lying != NULL) lying(message, true);
        if (!noise_read(to, bytes, counts[message - 1], nothing)) return message;
    }
    return 4;
}

TEST(one_who_does_not_know_the_psk_is_refused_at_the_third_message)
{
    static const uint8_t right[CAIRN_PSK_BYTES] = { 1 }, wrong[CAIRN_PSK_BYTES] = { 2 };
    struct curve_key keys[4];
    make_keys(keys);
    struct two two = begin_with(keys, (const uint8_t *[]) { right, right });
    ck_assert_int_eq(talk(&two, NULL), 4);
    two = begin_with(keys, (const uint8_t *[]) { wrong, right });
    ck_assert_int_eq(talk(&two, NULL), 3);
}

TEST(messages_that_are_too_short_are_refused)
{
    uint8_t nothing[1] = { 0 };
    struct two two = begin_two();
    for (size_t count = 0; count < CAIRN_NOISE_FIRST_BYTES; count++)
        ck_assert(!noise_read(&two.responder, nothing, count, nothing)); // before it is read
    struct noise_cipher cipher = { .nonce = 0 };
    for (size_t count = 0; count < CAIRN_NOISE_TAG_BYTES; count++)
        ck_assert(!noise_decrypt(&cipher, NULL, 0, nothing, count, nothing));
}

TEST(a_nonce_is_never_used_again)
{
    struct noise_cipher cipher = { .nonce = UINT64_MAX };
    uint8_t sealed[CAIRN_NOISE_TAG_BYTES] = { 0 }, nothing[1];
    ck_assert(!noise_decrypt(&cipher, NULL, 0, sealed, sizeof sealed, nothing));
    cipher.nonce = UINT64_MAX - 1;
    noise_encrypt(&cipher, NULL, 0, NULL, 0, sealed);
    ck_assert_uint_eq(cipher.nonce, UINT64_MAX);
}

TEST(a_rekeyed_cipher_is_another_one)
{
    struct noise_cipher a = { .key = { 7 } }, b = a, old = a;
    uint8_t sealed[1 + CAIRN_NOISE_TAG_BYTES], out[1];
    noise_rekey(&a);
    noise_rekey(&b);
    noise_encrypt(&a, NULL, 0, (const uint8_t *)"x", 1, sealed);
    ck_assert(!noise_decrypt(&old, NULL, 0, sealed, sizeof sealed, out));
    ck_assert(noise_decrypt(&b, NULL, 0, sealed, sizeof sealed, out));
    ck_assert_int_eq(out[0], 'x');
}
SUITE(30);

/* ==== points of low order ==== */

/* A shared secret with one of these points is zeros, whatever the other key is: so a liar who shows such a
 * point knows the secret without having a key. He calculates with zeros; an honest end has to refuse. */
static const uint8_t low_points[][CAIRN_CURVE_BYTES] = {
    { 0 },
    { 1 },
    { 0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3,
      0xfa, 0xf1, 0x9f, 0xc4, 0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32,
      0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49, 0xb8, 0x00 },
    { 0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1,
      0x55, 0x9c, 0x83, 0xef, 0x5b, 0x04, 0x44, 0x5c, 0xc4, 0x58, 0x1c,
      0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0, 0x9f, 0x11, 0x57 },
    { 0xec, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
      0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
      0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f },
    { 0xed, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
      0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
      0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f },
    { 0xee, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
      0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
      0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f },
};
enum { LOW_POINTS = 2 * sizeof low_points / sizeof *low_points }; // each with the highest bit, too

/* {which key of the liar, the message in which an honest end meets it, the liar's zeros} */
static const struct {
    int key;           /* initiator's s, e, responder's s, e */
    int refused_at;    /* message */
    unsigned zeros[4]; /* [message]: bit i: the liar's shared secret number i is zeros */
} lies[] = {
    { 1, 2, { 0, 0, 3, 0 } }, // ee, and es of the responder
    { 3, 2, { 0, 0, 1, 1 } }, // ee, and se of the initiator
    { 2, 2, { 0, 0, 2, 0 } },
    { 0, 3, { 0, 0, 0, 1 } },
};

static unsigned zeros_left;              /* of the liar's next calls */
static bool is_liars_turn, is_credulous; /* the honest end takes what it must refuse */
static int liar;                         /* the row of lies */

int __real_crypto_scalarmult_curve25519(unsigned char *q, const unsigned char *n,
                                        const unsigned char *p);
int __wrap_crypto_scalarmult_curve25519(unsigned char *q, const unsigned char *n,
                                        const unsigned char *p);

int __wrap_crypto_scalarmult_curve25519(unsigned char *q, const unsigned char *n,
                                        const unsigned char *p)
{
    const int result = __real_crypto_scalarmult_curve25519(q, n, p);
    const bool is_zero = is_liars_turn ? (zeros_left & 1) != 0 : is_credulous && result != 0;
    if (is_liars_turn) zeros_left >>= 1;
    if (!is_zero) return result;
    memset(q, 0, CAIRN_CURVE_BYTES);
    return 0;
}

static void take_turns(int message, bool is_reading)
{
    const bool is_initiators = (message % 2 == 1) != is_reading;
    is_liars_turn = is_initiators == (lies[liar].key < 2);
    if (is_liars_turn) zeros_left = lies[liar].zeros[message];
}

static int lie_with(int point)
{
    static const uint8_t psk[CAIRN_PSK_BYTES] = { 1 };
    struct curve_key keys[4];
    make_keys(keys);
    memcpy(keys[lies[liar].key].open, low_points[point / 2], CAIRN_CURVE_BYTES);
    if (point % 2 == 1) keys[lies[liar].key].open[CAIRN_CURVE_BYTES - 1] |= 0x80;
    struct two two = begin_with(keys, (const uint8_t *[]) { psk, psk });
    const int refused_at = talk(&two, take_turns);
    is_liars_turn = false;
    return refused_at;
}

TEST_EACH(a_point_of_low_order_is_refused_wherever_it_stands, 0, sizeof lies / sizeof *lies)
{
    liar = _i;
    for (int point = 0; point < LOW_POINTS; point++) {
        ck_assert_msg(lie_with(point) == lies[_i].refused_at, "point %d", point);
        is_credulous = true; // the lie is whole: it would succeed
        ck_assert_msg(lie_with(point) == 4, "point %d", point);
        is_credulous = false;
    }
}

/* Two libraries have the cipher: each opens what the other sealed, and no bit of it may be another one. */
TEST_EACH(a_record_of_any_size_is_what_libsodium_makes_of_it, 0, 4)
{
    static const size_t sizes[] = { 4095, 4096, 4097, 65537 };
    static uint8_t plain[65537], sealed[65537 + CAIRN_NOISE_TAG_BYTES], expected[sizeof sealed];
    const size_t count = sizes[_i];
    uint8_t ad[4], nonce[12] = { [4] = 5 };
    struct noise_cipher cipher = { .nonce = 5 }, again;
    randombytes_buf(cipher.key, sizeof cipher.key);
    randombytes_buf(plain, sizeof plain);
    randombytes_buf(ad, sizeof ad);
    again = cipher;
    noise_encrypt(&cipher, ad, sizeof ad, plain, count, sealed);
    crypto_aead_chacha20poly1305_ietf_encrypt(expected, NULL, plain, count, ad, sizeof ad, NULL,
                                              nonce, cipher.key);
    ck_assert_mem_eq(sealed, expected, count + CAIRN_NOISE_TAG_BYTES);
    ck_assert_uint_eq(cipher.nonce, 6);
    for (size_t bad = 0; bad < count + CAIRN_NOISE_TAG_BYTES; bad += 1009) {
        sealed[bad] ^= 4;
        ck_assert(
            !noise_decrypt(&again, ad, sizeof ad, sealed, count + CAIRN_NOISE_TAG_BYTES, expected));
        sealed[bad] ^= 4;
    }
    ck_assert_uint_eq(again.nonce, 5);
    ck_assert(noise_decrypt(&again, ad, sizeof ad, sealed, count + CAIRN_NOISE_TAG_BYTES, sealed));
    ck_assert_mem_eq(sealed, plain, count);
    ck_assert_uint_eq(again.nonce, 6);
}

SUITE(30);
