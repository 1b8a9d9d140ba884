#include "proto/secure/noise.h"

#include <assert.h>
#include <openssl/evp.h>
#include <sodium.h>
#include <string.h>

#include "proto/base/text.h"

/* ==== cipher state ==== */

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

/* ==== symmetric state (5.2) ==== */

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

/* ==== tokens (5.3, 9.2) ==== */

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

/* ==== handshake state ==== */

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

void noise_wipe(struct noise *noise)
{
    sodium_memzero(noise, sizeof *noise);
}
