#include "proto/secure/secure.h"

#include <assert.h>
#include <openssl/evp.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

/* ==== Noise ==== */

/* ---- cipher state ---- */

/* The nonce is 32 bits of zeros, and the number as 64 bits, little endian (12.3). */
static void nonce_of(uint64_t number,
                     uint8_t nonce_out[crypto_aead_chacha20poly1305_ietf_NPUBBYTES])
{
    memset(nonce_out, 0, 4);
    le_put(nonce_out + 4, number, 8);
}

static void encrypt_at(const struct noise_cipher *cipher, uint64_t number, const void *ad,
                       size_t ad_bytes, const uint8_t *plain, size_t count, uint8_t *out)
{
    uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
    nonce_of(number, nonce);
    crypto_aead_chacha20poly1305_ietf_encrypt(out, NULL, plain, count, ad, ad_bytes, NULL, nonce,
                                              cipher->key);
}

/* The same cipher by libcrypto, which is twice as fast at large records, and slower at small ones, since its
 * context is allocated. False: out of memory, and nothing was done. */
enum { LARGE_BYTES = 4096 };

static EVP_CIPHER_CTX *open_large(const struct noise_cipher *cipher, const void *ad,
                                  size_t ad_bytes, bool encrypts)
{
    uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
    int done;
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    nonce_of(cipher->nonce, nonce);
    if (context != NULL &&
        EVP_CipherInit_ex(context, EVP_chacha20_poly1305(), NULL, cipher->key, nonce, encrypts) ==
            1 &&
        EVP_CipherUpdate(context, NULL, &done, ad, (int)ad_bytes) == 1)
        return context;
    EVP_CIPHER_CTX_free(context);
    return NULL;
}

static bool encrypt_large(struct noise_cipher *cipher, const void *ad, size_t ad_bytes,
                          const uint8_t *plain, size_t count, uint8_t *out)
{
    int done;
    EVP_CIPHER_CTX *context = open_large(cipher, ad, ad_bytes, true);
    if (context == NULL) return false;
    const bool is_good = EVP_CipherUpdate(context, out, &done, plain, (int)count) == 1 &&
                         EVP_CipherFinal_ex(context, out + done, &done) == 1 &&
                         EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, CAIRN_NOISE_TAG_BYTES,
                                             out + count) == 1;
    EVP_CIPHER_CTX_free(context);
    assert(is_good); // nothing is allocated after open_large
    cipher->nonce++;
    return true;
}

/* *is_good_out: the record is what was sealed. */
static bool decrypt_large(struct noise_cipher *cipher, const void *ad, size_t ad_bytes,
                          const uint8_t *sealed, size_t count, uint8_t *out, bool *is_good_out)
{
    int done;
    const size_t plain_bytes = count - CAIRN_NOISE_TAG_BYTES;
    EVP_CIPHER_CTX *context = open_large(cipher, ad, ad_bytes, false);
    if (context == NULL) return false;
    *is_good_out = EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, CAIRN_NOISE_TAG_BYTES,
                                       (uint8_t *)(uintptr_t)sealed + plain_bytes) == 1 &&
                   EVP_CipherUpdate(context, out, &done, sealed, (int)plain_bytes) == 1 &&
                   EVP_CipherFinal_ex(context, out + done, &done) == 1;
    EVP_CIPHER_CTX_free(context);
    if (!*is_good_out) sodium_memzero(out, plain_bytes); // as libsodium does
    return true;
}

void noise_encrypt(struct noise_cipher *cipher, const void *ad, size_t ad_bytes,
                   const uint8_t *plain, size_t count, uint8_t *out)
{
    assert(cipher->nonce < UINT64_MAX);
    if (count >= LARGE_BYTES && encrypt_large(cipher, ad, ad_bytes, plain, count, out)) return;
    encrypt_at(cipher, cipher->nonce++, ad, ad_bytes, plain, count, out);
}

bool noise_decrypt(struct noise_cipher *cipher, const void *ad, size_t ad_bytes,
                   const uint8_t *sealed, size_t count, uint8_t *out)
{
    uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
    bool is_good;
    if (count < CAIRN_NOISE_TAG_BYTES || cipher->nonce == UINT64_MAX) return false;
    if (count >= LARGE_BYTES && decrypt_large(cipher, ad, ad_bytes, sealed, count, out, &is_good)) {
        if (is_good) cipher->nonce++;
        return is_good;
    }
    nonce_of(cipher->nonce, nonce);
    if (crypto_aead_chacha20poly1305_ietf_decrypt(out, NULL, NULL, sealed, count, ad, ad_bytes,
                                                  nonce, cipher->key) != 0)
        return false;
    cipher->nonce++;
    return true;
}

void noise_rekey(struct noise_cipher *cipher)
{
    static const uint8_t zeros[CAIRN_NOISE_KEY_BYTES];
    uint8_t sealed[CAIRN_NOISE_KEY_BYTES + CAIRN_NOISE_TAG_BYTES];
    encrypt_at(cipher, UINT64_MAX, NULL, 0, zeros, sizeof zeros, sealed);
    memcpy(cipher->key, sealed, sizeof cipher->key);
    sodium_memzero(sealed, sizeof sealed);
}

/* ---- symmetric state (5.2) ---- */

/* HKDF (4.3): writes `count` (2 or 3) outputs of 32 bytes. */
static void hkdf(const uint8_t chain[CAIRN_NOISE_HASH_BYTES], const uint8_t *input,
                 size_t input_bytes, unsigned count, uint8_t out[][CAIRN_NOISE_HASH_BYTES])
{
    static_assert(crypto_auth_hmacsha256_KEYBYTES == CAIRN_NOISE_HASH_BYTES, "HMAC's key");
    uint8_t temp[CAIRN_NOISE_HASH_BYTES], block[CAIRN_NOISE_HASH_BYTES + 1];
    crypto_auth_hmacsha256(temp, input, input_bytes, chain);
    for (unsigned i = 0; i < count; i++) {
        const size_t before = i > 0 ? CAIRN_NOISE_HASH_BYTES : 0;
        if (i > 0) memcpy(block, out[i - 1], before);
        block[before] = (uint8_t)(i + 1);
        crypto_auth_hmacsha256(out[i], block, before + 1, temp);
    }
    sodium_memzero(temp, sizeof temp);
    sodium_memzero(block, sizeof block);
}

static void set_key(struct noise *noise, const uint8_t key[CAIRN_NOISE_KEY_BYTES])
{
    memcpy(noise->cipher.key, key, CAIRN_NOISE_KEY_BYTES);
    noise->cipher.nonce = 0;
}

static void mix_hash(struct noise *noise, const void *bytes, size_t count)
{
    crypto_hash_sha256_state state;
    crypto_hash_sha256_init(&state);
    crypto_hash_sha256_update(&state, noise->hash, sizeof noise->hash);
    crypto_hash_sha256_update(&state, bytes, count);
    crypto_hash_sha256_final(&state, noise->hash);
}

static void mix_key(struct noise *noise, const uint8_t input[CAIRN_CURVE_BYTES])
{
    uint8_t out[2][CAIRN_NOISE_HASH_BYTES];
    hkdf(noise->chain, input, CAIRN_CURVE_BYTES, 2, out);
    memcpy(noise->chain, out[0], sizeof noise->chain);
    set_key(noise, out[1]);
    sodium_memzero(out, sizeof out);
}

static void mix_key_and_hash(struct noise *noise, const uint8_t psk[CAIRN_PSK_BYTES])
{
    uint8_t out[3][CAIRN_NOISE_HASH_BYTES];
    hkdf(noise->chain, psk, CAIRN_PSK_BYTES, 3, out);
    memcpy(noise->chain, out[0], sizeof noise->chain);
    mix_hash(noise, out[1], sizeof out[1]);
    set_key(noise, out[2]);
    sodium_memzero(out, sizeof out);
}

/* There is a key from the first token of XXpsk3 on, so nothing is ever sent plain. */
static void encrypt_and_hash(struct noise *noise, const uint8_t *plain, size_t count, uint8_t *out)
{
    noise_encrypt(&noise->cipher, noise->hash, sizeof noise->hash, plain, count, out);
    mix_hash(noise, out, count + CAIRN_NOISE_TAG_BYTES);
}

static bool decrypt_and_hash(struct noise *noise, const uint8_t *sealed, size_t count, uint8_t *out)
{
    uint8_t hash[CAIRN_NOISE_HASH_BYTES];
    memcpy(hash, noise->hash, sizeof hash);
    mix_hash(noise, sealed, count); // before `out`, which may be `sealed`
    return noise_decrypt(&noise->cipher, hash, sizeof hash, sealed, count, out);
}

/* ---- tokens (5.3, 9.2) ---- */

/* "ee", "es" or "se". False: the shared secret is zeros. */
static bool mix_shared(struct noise *noise, const uint8_t secret[CAIRN_CURVE_BYTES],
                       const uint8_t open[CAIRN_CURVE_BYTES])
{
    uint8_t shared[CAIRN_CURVE_BYTES];
    if (crypto_scalarmult_curve25519(shared, secret, open) != 0) return false;
    mix_key(noise, shared);
    sodium_memzero(shared, sizeof shared);
    return true;
}

/* "e": in a handshake with a psk, the key is mixed into the chain, too (9.2). */
static void mix_ephemeral(struct noise *noise, const uint8_t open[CAIRN_CURVE_BYTES])
{
    mix_hash(noise, open, CAIRN_CURVE_BYTES);
    mix_key(noise, open);
}

static bool mix_ee(struct noise *noise)
{
    return mix_shared(noise, noise->ephemeral.secret, noise->peer_ephemeral);
}

/* The initiator's ephemeral key and the responder's static one. */
static bool mix_es(struct noise *noise)
{
    return noise->is_initiator ? mix_shared(noise, noise->ephemeral.secret, noise->peer)
                               : mix_shared(noise, noise->own.secret, noise->peer_ephemeral);
}

static bool mix_se(struct noise *noise)
{
    return noise->is_initiator ? mix_shared(noise, noise->own.secret, noise->peer_ephemeral)
                               : mix_shared(noise, noise->ephemeral.secret, noise->peer);
}

enum { SEALED_KEY_BYTES = CAIRN_CURVE_BYTES + CAIRN_NOISE_TAG_BYTES };

/* ---- handshake state ---- */

void noise_begin(struct noise *noise, bool is_initiator, const void *prologue,
                 size_t prologue_bytes, const struct curve_key *own,
                 const struct curve_key *ephemeral, const uint8_t psk[CAIRN_PSK_BYTES])
{
    static const char name[] = "Noise_XXpsk3_25519_ChaChaPoly_SHA256";
    *noise = (struct noise) { .is_initiator = is_initiator, .next = 1 };
    crypto_hash_sha256(noise->hash, (const uint8_t *)name, sizeof name - 1); // above 32 bytes
    memcpy(noise->chain, noise->hash, sizeof noise->chain);
    mix_hash(noise, prologue, prologue_bytes);
    noise->own = *own;
    noise->ephemeral = *ephemeral;
    memcpy(noise->psk, psk, sizeof noise->psk);
}

bool noise_write(struct noise *noise, const uint8_t *payload, size_t count, uint8_t *message_out)
{
    uint8_t *out = message_out;
    assert(noise->next <= 3 && noise->is_initiator == (noise->next != 2));
    if (noise->next <= 2) {
        memcpy(out, noise->ephemeral.open, CAIRN_CURVE_BYTES);
        mix_ephemeral(noise, out);
        out += CAIRN_CURVE_BYTES;
    }
    if (noise->next == 2 && !mix_ee(noise)) return false;
    if (noise->next >= 2) {
        encrypt_and_hash(noise, noise->own.open, CAIRN_CURVE_BYTES, out);
        out += SEALED_KEY_BYTES;
    }
    if (noise->next == 2 && !mix_es(noise)) return false;
    if (noise->next == 3) {
        if (!mix_se(noise)) return false;
        mix_key_and_hash(noise, noise->psk);
    }
    encrypt_and_hash(noise, payload, count, out);
    noise->next++;
    return true;
}

/* Reads the keys of the message. Returns how many bytes they took; 0: forged, or refused. */
static size_t read_keys(struct noise *noise, const uint8_t *message)
{
    const uint8_t *at = message;
    if (noise->next <= 2) {
        memcpy(noise->peer_ephemeral, at, CAIRN_CURVE_BYTES);
        mix_ephemeral(noise, at);
        at += CAIRN_CURVE_BYTES;
    }
    if (noise->next == 2 && !mix_ee(noise)) return 0;
    if (noise->next >= 2) {
        if (!decrypt_and_hash(noise, at, SEALED_KEY_BYTES, noise->peer)) return 0;
        at += SEALED_KEY_BYTES;
    }
    if (noise->next == 2 && !mix_es(noise)) return 0;
    if (noise->next == 3) {
        if (!mix_se(noise)) return 0;
        mix_key_and_hash(noise, noise->psk);
    }
    return (size_t)(at - message);
}

bool noise_read(struct noise *noise, const uint8_t *message, size_t count, uint8_t *payload_out)
{
    static const size_t least[] = { CAIRN_NOISE_FIRST_BYTES, CAIRN_NOISE_SECOND_BYTES,
                                    CAIRN_NOISE_THIRD_BYTES };
    assert(noise->next <= 3 && noise->is_initiator == (noise->next == 2));
    if (count < least[noise->next - 1]) return false;
    const size_t taken = read_keys(noise, message);
    if (taken == 0) return false;
    if (!decrypt_and_hash(noise, message + taken, count - taken, payload_out)) return false;
    noise->next++;
    return true;
}

void noise_split(const struct noise *noise, struct noise_cipher *send_out,
                 struct noise_cipher *receive_out)
{
    assert(noise->next == 4);
    uint8_t out[2][CAIRN_NOISE_HASH_BYTES]; // of what the initiator sends, and of what it receives
    hkdf(noise->chain, NULL, 0, 2, out);
    *send_out = *receive_out = (struct noise_cipher) { .nonce = 0 };
    memcpy(send_out->key, out[noise->is_initiator ? 0 : 1], sizeof send_out->key);
    memcpy(receive_out->key, out[noise->is_initiator ? 1 : 0], sizeof receive_out->key);
    sodium_memzero(out, sizeof out);
}

/* After a key was refused, or when the handshake is of no more use. */
static void noise_wipe(struct noise *noise)
{
    sodium_memzero(noise, sizeof *noise);
}

/* ==== handshake ==== */

enum {
    MAGIC_BYTES = 8,
    VERSION_AT = MAGIC_BYTES,
    PURPOSE_AT = VERSION_AT + 2,
    KEY_ID_AT = PURPOSE_AT + 2,
    HEADER_BYTES = KEY_ID_AT + CAIRN_PSK_ID_BYTES,
    MAC_BYTES = 16,
    FIRST_MAC_AT = HEADER_BYTES + CAIRN_NOISE_FIRST_BYTES,
    LENGTH_BYTES = 2,
    REFUSAL_BIT = 0x8000, /* in a length */
    REFUSAL_TEXT_AT = LENGTH_BYTES + 2,
    REFUSAL_LEAST_BYTES = REFUSAL_TEXT_AT + MAC_BYTES,
};
static const char magic[MAGIC_BYTES + 1] = "CAIRNSE1";

/* BLAKE2b's personal parameter says what a MAC is for: none passes for another's. */
static const char for_first[crypto_generichash_blake2b_PERSONALBYTES + 1] = "cairn: message 1";
static const char for_refusal[crypto_generichash_blake2b_PERSONALBYTES + 1] = "cairn: refusal  ";

static_assert(FIRST_MAC_AT + MAC_BYTES == CAIRN_HANDSHAKE_FIRST_BYTES, "wire format");
static_assert(REFUSAL_LEAST_BYTES + CAIRN_REFUSAL_TEXT_BYTES <= CAIRN_HANDSHAKE_MOST_BYTES,
              "wire format");
static_assert(LENGTH_BYTES + CAIRN_NOISE_SECOND_BYTES <= CAIRN_HANDSHAKE_MOST_BYTES, "wire format");

struct handshake {
    /* from the options */
    bool is_initiator;
    enum handshake_purpose purpose;
    uint8_t context[CAIRN_HANDSHAKE_CONTEXT_BYTES];
    size_t context_bytes;
    struct curve_key own;
    uint8_t secret[CAIRN_PSK_BYTES];
    bool has_pin; /* else the responder's key is `expected` */
    uint8_t pin[CAIRN_PIN_BYTES];
    uint8_t expected[CAIRN_CURVE_BYTES];
    bool (*find)(void *arg, const uint8_t key_id[CAIRN_PSK_ID_BYTES],
                 struct handshake_row *row_out);
    void *arg;
    struct handshake_answered *answered; /* borrowed */

    enum handshake_state state;
    cairn_status status; /* why it FAILED */
    struct noise noise;  /* has begun when message 1 is made, or its MAC is good */
    bool is_proved;      /* a responder's: the peer knows the secret */
    uint8_t first[CAIRN_HANDSHAKE_FIRST_BYTES]; /* message 1 */
    size_t first_bytes;                         /* of it, what has arrived at a responder */
    uint8_t in[CAIRN_HANDSHAKE_MOST_BYTES];     /* the later message that arrives */
    size_t in_bytes;
    uint8_t out[CAIRN_HANDSHAKE_MOST_BYTES]; /* what is to be sent */
    size_t out_bytes;
};
static_assert(sizeof(struct handshake) < 2048, "what a stranger can make us hold");

/* ==== pieces ==== */

/* Two parts of what is authenticated; the second may be empty. */
static void mac_of(const uint8_t secret[CAIRN_PSK_BYTES], const char *purpose, const void *first,
                   size_t first_bytes, const void *second, size_t second_bytes,
                   uint8_t mac_out[MAC_BYTES])
{
    crypto_generichash_blake2b_state state;
    crypto_generichash_blake2b_init_salt_personal(&state, secret, CAIRN_PSK_BYTES, MAC_BYTES, NULL,
                                                  (const uint8_t *)purpose);
    crypto_generichash_blake2b_update(&state, first, first_bytes);
    crypto_generichash_blake2b_update(&state, second, second_bytes);
    crypto_generichash_blake2b_final(&state, mac_out, MAC_BYTES);
    sodium_memzero(&state, sizeof state);
}

static void first_mac(const struct handshake *handshake, uint8_t mac_out[MAC_BYTES])
{
    mac_of(handshake->secret, for_first, handshake->first, FIRST_MAC_AT, NULL, 0, mac_out);
}

static bool mac_is(const uint8_t *mac, const uint8_t *expected)
{
    return sodium_memcmp(mac, expected, MAC_BYTES) == 0;
}

/* The header and the context are bound by every key that comes of the handshake. */
static void begin_noise(struct handshake *handshake)
{
    uint8_t prologue[HEADER_BYTES + CAIRN_HANDSHAKE_CONTEXT_BYTES];
    struct curve_key ephemeral;
    memcpy(prologue, handshake->first, HEADER_BYTES);
    memcpy(prologue + HEADER_BYTES, handshake->context, handshake->context_bytes);
    curve_key_make(&ephemeral);
    noise_begin(&handshake->noise, handshake->is_initiator, prologue,
                HEADER_BYTES + handshake->context_bytes, &handshake->own, &ephemeral,
                handshake->secret);
    curve_key_wipe(&ephemeral);
}

/* Leaves the next message of Noise to be sent, with its length before it. */
static bool leave_message(struct handshake *handshake, size_t bytes)
{
    le_put(handshake->out, bytes, LENGTH_BYTES);
    if (!noise_write(&handshake->noise, NULL, 0, handshake->out + LENGTH_BYTES)) return false;
    handshake->out_bytes = LENGTH_BYTES + bytes;
    return true;
}

static cairn_status forged(struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_PROTOCOL,
                     "the peer's part of the handshake was changed on the way, or is not of one "
                     "that knows the secret; if it comes again, look for what stands between the "
                     "two hosts");
}

static const char *secret_word(const struct handshake *handshake)
{
    return handshake->purpose == CAIRN_PURPOSE_DATA ? "key of a data connection" : "token";
}

/* ==== opening ==== */

static bool options_ok(const struct handshake_options *options)
{
    if (options->purpose != CAIRN_PURPOSE_CONTROL && options->purpose != CAIRN_PURPOSE_DATA)
        return false;
    if (options->context_bytes > CAIRN_HANDSHAKE_CONTEXT_BYTES) return false;
    if (options->context_bytes > 0 && options->context == NULL) return false;
    if (!options->is_initiator) return options->find != NULL;
    return options->own != NULL && (options->pin != NULL || options->expected != NULL);
}

static void copy_initiators(struct handshake *handshake, const struct handshake_options *options)
{
    handshake->own = *options->own;
    memcpy(handshake->secret, options->secret, sizeof handshake->secret);
    handshake->has_pin = options->pin != NULL;
    if (options->pin != NULL)
        memcpy(handshake->pin, options->pin, sizeof handshake->pin);
    else
        memcpy(handshake->expected, options->expected, sizeof handshake->expected);
}

/* Message 1. */
static void leave_first(struct handshake *handshake, const uint8_t key_id[CAIRN_PSK_ID_BYTES])
{
    uint8_t *first = handshake->first;
    memcpy(first, magic, MAGIC_BYTES);
    le_put(first + VERSION_AT, CAIRN_HANDSHAKE_VERSION, 2);
    le_put(first + PURPOSE_AT, handshake->purpose, 2);
    memcpy(first + KEY_ID_AT, key_id, CAIRN_PSK_ID_BYTES);
    begin_noise(handshake);
    const bool is_written = noise_write(&handshake->noise, NULL, 0, first + HEADER_BYTES);
    assert(is_written); // no key of a peer is in it
    (void)is_written;
    first_mac(handshake, first + FIRST_MAC_AT);
    memcpy(handshake->out, first, CAIRN_HANDSHAKE_FIRST_BYTES);
    handshake->out_bytes = CAIRN_HANDSHAKE_FIRST_BYTES;
}

cairn_status handshake_open(const struct handshake_options *options, struct handshake **out)
{
    if (!options_ok(options)) return CAIRN_ERR_INVALID;
    if (sodium_init() < 0) return CAIRN_ERR_INTERNAL;
    struct handshake *handshake = calloc(1, sizeof *handshake);
    if (handshake == NULL) return CAIRN_ERR_NO_MEMORY;
    handshake->is_initiator = options->is_initiator;
    handshake->purpose = options->purpose;
    handshake->context_bytes = options->context_bytes;
    if (options->context_bytes > 0)
        memcpy(handshake->context, options->context, options->context_bytes);
    handshake->find = options->find;
    handshake->arg = options->arg;
    handshake->answered = options->answered;
    if (options->is_initiator) {
        copy_initiators(handshake, options);
        leave_first(handshake, options->key_id);
    }
    *out = handshake;
    return CAIRN_OK;
}

void handshake_close(struct handshake *handshake)
{
    if (handshake == NULL) return;
    sodium_memzero(handshake, sizeof *handshake);
    free(handshake);
}

/* ==== the responder and message 1 ==== */

/* A refusal for a peer that knows the secret. Returns the status. */
static cairn_status leave_refusal(struct handshake *handshake, cairn_status status,
                                  const struct sentence *why)
{
    const struct sentence brief = sentence_brief(why->text, CAIRN_REFUSAL_TEXT_BYTES);
    const size_t text_bytes = strlen(brief.text), before_mac = REFUSAL_TEXT_AT + text_bytes;
    uint8_t *out = handshake->out;
    le_put(out, REFUSAL_BIT | (before_mac + MAC_BYTES - LENGTH_BYTES), LENGTH_BYTES);
    le_put(out + LENGTH_BYTES, status, 2);
    memcpy(out + REFUSAL_TEXT_AT, brief.text, text_bytes);
    mac_of(handshake->secret, for_refusal, handshake->first, sizeof handshake->first, out,
           before_mac, out + before_mac);
    handshake->out_bytes = before_mac + MAC_BYTES;
    return status;
}

/* Looks up the secret, and checks the MAC by it, before anything else is looked at. An unknown id costs as
 * much as a known one. */
static cairn_status check_mac(struct handshake *handshake, struct handshake_row *row,
                              struct sentence *why)
{
    const uint8_t *first = handshake->first;
    uint8_t mac[MAC_BYTES];
    char id[2 * CAIRN_PSK_ID_BYTES + 1];
    const bool is_known = handshake->find(handshake->arg, first + KEY_ID_AT, row);
    memcpy(handshake->secret, row->secret, sizeof handshake->secret);
    first_mac(handshake, mac);
    const bool is_good = mac_is(mac, first + FIRST_MAC_AT);
    if (is_known && is_good) return CAIRN_OK;
    sodium_bin2hex(id, sizeof id, first + KEY_ID_AT, CAIRN_PSK_ID_BYTES);
    if (!is_known)
        return fail_with(why, CAIRN_ERR_PROTOCOL,
                         "the peer names the %s %s, which is not known here: it was removed, or is "
                         "another cluster's; if the peer is yours, give it one of this cluster",
                         secret_word(handshake), id);
    return fail_with(why, CAIRN_ERR_PROTOCOL,
                     "the peer names the %s %s and does not know its secret: it is a stranger, or "
                     "has a damaged one; if the peer is yours, give it a new one",
                     secret_word(handshake), id);
}

/* True if the message, whose MAC is good, was answered before. Nobody who does not know the secret can choose
 * its place. */
static bool was_answered(const struct handshake *handshake)
{
    if (handshake->answered == NULL) return false;
    const uint64_t mac = le_get(handshake->first + FIRST_MAC_AT, sizeof mac);
    uint64_t *place = &handshake->answered->macs[mac % CAIRN_ANSWERED_PLACES];
    const bool is_known = *place == mac;
    *place = mac;
    return is_known;
}

/* The owner of a secret is told what is wrong, rather than left in silence. */
static cairn_status judge_first(struct handshake *handshake, const struct handshake_row *row,
                                struct sentence *said)
{
    const unsigned version = (unsigned)le_get(handshake->first + VERSION_AT, 2);
    const unsigned purpose = (unsigned)le_get(handshake->first + PURPOSE_AT, 2);
    if (version != CAIRN_HANDSHAKE_VERSION)
        return fail_with(said, CAIRN_ERR_VERSION,
                         "one end speaks version %u of the handshake and the other version %u: "
                         "install the same version of Cairn on both hosts",
                         version, (unsigned)CAIRN_HANDSHAKE_VERSION);
    if (purpose != (unsigned)handshake->purpose)
        return fail_with(said, CAIRN_ERR_REFUSED,
                         "this port is for %s connections, and the peer wants another kind: give "
                         "it the address of the right port",
                         handshake->purpose == CAIRN_PURPOSE_DATA ? "data" : "control");
    if (row->refused != CAIRN_OK) return fail_with(said, row->refused, "%s", row->why.text);
    return CAIRN_OK;
}

static cairn_status take_first_by(struct handshake *handshake, struct handshake_row *row,
                                  struct sentence *why)
{
    struct sentence said;
    CAIRN_TRY(check_mac(handshake, row, why));
    if (was_answered(handshake))
        return fail_with(why, CAIRN_ERR_PROTOCOL,
                         "the peer repeats the first message of an earlier connection: it has "
                         "overheard it; look for who listens between the two hosts");
    handshake->is_proved = true;
    const cairn_status judged = judge_first(handshake, row, &said);
    if (judged != CAIRN_OK) {
        if (row->on_refused != NULL && row->refused != CAIRN_OK)
            row->on_refused(row->refused_arg, handshake->first + KEY_ID_AT, &said);
        sentence_set(why, "%s", said.text);
        return leave_refusal(handshake, judged, &said);
    }
    assert(row->own != NULL);
    handshake->own = *row->own;
    begin_noise(handshake);
    uint8_t nothing[1];
    if (!noise_read(&handshake->noise, handshake->first + HEADER_BYTES, CAIRN_NOISE_FIRST_BYTES,
                    nothing) ||
        !leave_message(handshake, CAIRN_NOISE_SECOND_BYTES))
        return forged(why);
    return CAIRN_OK;
}

static cairn_status take_first(struct handshake *handshake, struct sentence *why)
{
    struct handshake_row row = { .refused = CAIRN_OK };
    const cairn_status status = take_first_by(handshake, &row, why);
    sodium_memzero(&row, sizeof row);
    return status;
}

/* ==== the initiator and its answer ==== */

static cairn_status take_refusal(const struct handshake *handshake, struct sentence *why)
{
    const size_t before_mac = handshake->in_bytes - MAC_BYTES;
    uint8_t mac[MAC_BYTES];
    mac_of(handshake->secret, for_refusal, handshake->first, sizeof handshake->first, handshake->in,
           before_mac, mac);
    if (!mac_is(mac, handshake->in + before_mac)) return forged(why);
    struct sentence said;
    const int status = (int)le_get(handshake->in + LENGTH_BYTES, 2);
    const size_t text_bytes = before_mac - REFUSAL_TEXT_AT;
    memcpy(said.text, handshake->in + REFUSAL_TEXT_AT, text_bytes);
    said.text[text_bytes] = '\0';
    text_mend(said.text, "");
    return fail_with(
        why, status_known(status) && status != CAIRN_OK ? (cairn_status)status : CAIRN_ERR_REFUSED,
        "%s", said.text[0] != '\0' ? said.text : "it was refused without a reason");
}

/* Is the responder who it has to be? Nothing of ours has been said until then. */
static cairn_status check_responder(const struct handshake *handshake, struct sentence *why)
{
    uint8_t pin[CAIRN_PIN_BYTES];
    const uint8_t *key = handshake->noise.peer;
    curve_pin(key, pin);
    const bool is_right = handshake->has_pin
                              ? sodium_memcmp(pin, handshake->pin, sizeof pin) == 0
                              : sodium_memcmp(key, handshake->expected, CAIRN_CURVE_BYTES) == 0;
    if (is_right) return CAIRN_OK;
    if (handshake->has_pin)
        return fail_with(why, CAIRN_ERR_PROTOCOL,
                         "this coordinator has another key than the token expects: it is a token "
                         "of another cluster, or somebody stands between; check the address, or "
                         "get a token of this cluster (cairn key add)");
    return fail_with(why, CAIRN_ERR_PROTOCOL,
                     "this peer has another key than was announced for its address: another "
                     "process has the port now, or somebody stands between; connect again by an "
                     "address of today");
}

static cairn_status take_second(struct handshake *handshake, struct sentence *why)
{
    uint8_t nothing[1];
    if ((le_get(handshake->in, LENGTH_BYTES) & REFUSAL_BIT) != 0)
        return take_refusal(handshake, why);
    if (!noise_read(&handshake->noise, handshake->in + LENGTH_BYTES, CAIRN_NOISE_SECOND_BYTES,
                    nothing))
        return forged(why);
    CAIRN_TRY(check_responder(handshake, why));
    if (!leave_message(handshake, CAIRN_NOISE_THIRD_BYTES)) return forged(why);
    handshake->state = CAIRN_HANDSHAKE_DONE;
    return CAIRN_OK;
}

static cairn_status take_third(struct handshake *handshake, struct sentence *why)
{
    uint8_t nothing[1];
    if (!noise_read(&handshake->noise, handshake->in + LENGTH_BYTES, CAIRN_NOISE_THIRD_BYTES,
                    nothing))
        return forged(why);
    handshake->state = CAIRN_HANDSHAKE_DONE;
    return CAIRN_OK;
}

/* ==== bytes ==== */

/* Moves bytes until `have` is `wanted`. */
static void fill(uint8_t *room, size_t *have, size_t wanted, const uint8_t **bytes, size_t *count)
{
    const size_t missing = wanted - *have, moved = missing < *count ? missing : *count;
    if (moved > 0) memcpy(room + *have, *bytes, moved);
    *have += moved;
    *bytes += moved;
    *count -= moved;
}

/* A stranger is known by its first bytes, before all of them are there. */
static cairn_status gather_first(struct handshake *handshake, const uint8_t **bytes, size_t *count,
                                 struct sentence *why)
{
    fill(handshake->first, &handshake->first_bytes, sizeof handshake->first, bytes, count);
    const size_t told = handshake->first_bytes < MAGIC_BYTES ? handshake->first_bytes : MAGIC_BYTES;
    if (memcmp(handshake->first, magic, told) != 0)
        return fail_with(why, CAIRN_ERR_PROTOCOL,
                         "the peer does not begin with Cairn's handshake: it is another program, "
                         "or an older Cairn, which had none; if it is yours, install the same "
                         "version of Cairn there");
    return handshake->first_bytes == sizeof handshake->first ? take_first(handshake, why)
                                                             : CAIRN_OK;
}

/* The length of the message that begins in `in`; 0: none that can be. */
static size_t message_bytes(const struct handshake *handshake)
{
    const size_t length = le_get(handshake->in, LENGTH_BYTES);
    if (!handshake->is_initiator)
        return length == CAIRN_NOISE_THIRD_BYTES ? LENGTH_BYTES + length : 0;
    if (length == CAIRN_NOISE_SECOND_BYTES) return LENGTH_BYTES + length;
    const size_t whole = LENGTH_BYTES + (length & ~(size_t)REFUSAL_BIT);
    const bool is_refusal = (length & REFUSAL_BIT) != 0 && whole >= REFUSAL_LEAST_BYTES &&
                            whole <= REFUSAL_LEAST_BYTES + CAIRN_REFUSAL_TEXT_BYTES;
    return is_refusal ? whole : 0;
}

static cairn_status gather_later(struct handshake *handshake, const uint8_t **bytes, size_t *count,
                                 struct sentence *why)
{
    if (handshake->in_bytes < LENGTH_BYTES)
        fill(handshake->in, &handshake->in_bytes, LENGTH_BYTES, bytes, count);
    if (handshake->in_bytes < LENGTH_BYTES) return CAIRN_OK;
    const size_t wanted = message_bytes(handshake);
    if (wanted == 0)
        return fail_with(why, CAIRN_ERR_PROTOCOL,
                         "the peer does not go on with Cairn's handshake: another program has this "
                         "port, or somebody stands between; check the address");
    fill(handshake->in, &handshake->in_bytes, wanted, bytes, count);
    if (handshake->in_bytes < wanted) return CAIRN_OK;
    return handshake->is_initiator ? take_second(handshake, why) : take_third(handshake, why);
}

enum handshake_state handshake_take(struct handshake *handshake, const uint8_t *bytes, size_t count,
                                    size_t *used_out, cairn_status *status_out,
                                    struct sentence *why)
{
    const uint8_t *next = bytes;
    cairn_status status = CAIRN_OK;
    while (count > 0 && status == CAIRN_OK && handshake->state == CAIRN_HANDSHAKE_GOES_ON) {
        const bool is_first = !handshake->is_initiator &&
                              handshake->first_bytes < sizeof handshake->first;
        status = is_first ? gather_first(handshake, &next, &count, why)
                          : gather_later(handshake, &next, &count, why);
    }
    if (status != CAIRN_OK) {
        handshake->state = CAIRN_HANDSHAKE_FAILED;
        handshake->status = status;
        noise_wipe(&handshake->noise);
    }
    *used_out = (size_t)(next - bytes);
    *status_out = handshake->status;
    return handshake->state;
}

const uint8_t *handshake_to_send(struct handshake *handshake, size_t *count_out)
{
    *count_out = handshake->out_bytes;
    handshake->out_bytes = 0;
    return handshake->out;
}

bool handshake_is_proved(const struct handshake *handshake)
{
    return handshake->is_proved;
}

void handshake_result(const struct handshake *handshake, struct handshake_result *out)
{
    assert(handshake->state == CAIRN_HANDSHAKE_DONE);
    struct noise_cipher send, receive;
    noise_split(&handshake->noise, &send, &receive);
    memcpy(out->send_key, send.key, sizeof out->send_key);
    memcpy(out->receive_key, receive.key, sizeof out->receive_key);
    sodium_memzero(&send, sizeof send);
    sodium_memzero(&receive, sizeof receive);
    memcpy(out->session_hash, handshake->noise.hash, sizeof out->session_hash);
    memcpy(out->peer_key, handshake->noise.peer, sizeof out->peer_key);
    memcpy(out->key_id, handshake->first + KEY_ID_AT, sizeof out->key_id);
}

void handshake_silence_text(const char *peer, enum handshake_purpose purpose, struct sentence *why)
{
    if (purpose == CAIRN_PURPOSE_DATA)
        sentence_set(why,
                     "%s closed the connection without a word: it does not know the key of this "
                     "connection (it was started anew, or another process has its port now); "
                     "connect again by an address of today",
                     peer);
    else
        sentence_set(why,
                     "%s closed the connection without a word: it does not know this token "
                     "(another cluster's, or removed), is no Cairn of this version, or has as many "
                     "connections as it takes; check the address, or get a token of this cluster "
                     "(cairn key add)",
                     peer);
}
