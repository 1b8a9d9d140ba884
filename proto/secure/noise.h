/* Noise_XXpsk3_25519_ChaChaPoly_SHA256, as The Noise Protocol Framework, revision 34, describes it. Names
 * follow the specification; the section is given where a function is one of its functions.
 *
 *   -> e                    1: 48 bytes and the payload
 *   <- e, ee, s, es         2: 96 bytes and the payload
 *   -> s, se, psk           3: 64 bytes and the payload
 *
 * One thing is stricter than the specification allows: a public key that makes a shared secret of zeros (a
 * point of low order) is refused. Pure; one thread at a time. sodium_init was called before. */
#ifndef CAIRN_SECURE_NOISE_H
#define CAIRN_SECURE_NOISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/secure/secure.h"

enum {
    CAIRN_NOISE_TAG_BYTES = 16,
    CAIRN_NOISE_HASH_BYTES = 32,
    CAIRN_NOISE_KEY_BYTES = 32,
    CAIRN_NOISE_FIRST_BYTES = 48,
    CAIRN_NOISE_SECOND_BYTES = 96,
    CAIRN_NOISE_THIRD_BYTES = 64,
};

/* ==== cipher state (5.1) ==== */

struct noise_cipher {
    uint8_t key[CAIRN_NOISE_KEY_BYTES];
    uint64_t nonce; /* of the next message; below 2^64 - 1, which REKEY uses */
};

/* Writes [count + 16] bytes; `out` may be `plain`. */
void noise_encrypt(struct noise_cipher *cipher, const void *ad, size_t ad_bytes,
                   const uint8_t *plain, size_t count, uint8_t *out);
/* Writes [count - 16] bytes; `out` may be `sealed`. False: forged, or too short; the nonce stays. */
CAIRN_MUST_CHECK bool noise_decrypt(struct noise_cipher *cipher, const void *ad, size_t ad_bytes,
                                    const uint8_t *sealed, size_t count, uint8_t *out);
void noise_rekey(struct noise_cipher *cipher);

/* ==== handshake ==== */

struct noise {
    uint8_t chain[CAIRN_NOISE_HASH_BYTES];     /* ck */
    uint8_t hash[CAIRN_NOISE_HASH_BYTES];      /* h */
    struct noise_cipher cipher;                /* of the symmetric state (5.2) */
    struct curve_key own, ephemeral;           /* s, e */
    uint8_t peer[CAIRN_CURVE_BYTES];           /* rs */
    uint8_t peer_ephemeral[CAIRN_CURVE_BYTES]; /* re */
    uint8_t psk[CAIRN_PSK_BYTES];
    bool is_initiator;
    unsigned next; /* message, from 1; 4: done */
};

/* Initialize (5.3). The keys are copied. `ephemeral` is made for this handshake alone. */
void noise_begin(struct noise *noise, bool is_initiator, const void *prologue,
                 size_t prologue_bytes, const struct curve_key *own,
                 const struct curve_key *ephemeral, const uint8_t psk[CAIRN_PSK_BYTES]);
/* WriteMessage: writes the next message, which is ours, of CAIRN_NOISE_..._BYTES and the payload. False: a
 * key of the peer is refused. */
CAIRN_MUST_CHECK bool noise_write(struct noise *noise, const uint8_t *payload, size_t count,
                                  uint8_t *message_out);
/* ReadMessage: reads the next message, which is the peer's. Writes the payload, which has as many bytes as
 * the message has beyond CAIRN_NOISE_..._BYTES. False: forged, too short, or a key is refused. */
CAIRN_MUST_CHECK bool noise_read(struct noise *noise, const uint8_t *message, size_t count,
                                 uint8_t *payload_out);
/* Split (5.2), after the third message: the ciphers of both directions. */
void noise_split(const struct noise *noise, struct noise_cipher *send_out,
                 struct noise_cipher *receive_out);
/* After False, or when the handshake is of no more use. */
void noise_wipe(struct noise *noise);

#endif
