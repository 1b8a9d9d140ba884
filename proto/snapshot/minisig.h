/* Signatures in minisign's format, pure: Ed25519 over BLAKE2b-512 of what is signed ("ED", prehashed), so
 * that `minisign -Vm FILE -P KEY` checks what is signed here, and the other way round.
 *
 *   public key   untrusted comment: ...        signature   untrusted comment: ...
 *                base64("Ed" id key)                       base64("ED" id signature)
 *                                                          trusted comment: ...
 *   secret key   untrusted comment: ...                    base64(signature of the two)
 *                base64(... id key checksum)
 *
 * A secret key is written without a password, as `minisign -G -W` does. An untrusted comment is signed by
 * nobody and read by nobody here. Statuses: CAIRN_ERR_MALFORMED: the text is not one of these;
 * CAIRN_ERR_CHECKSUM: the signature does not fit. sodium_init has been called. */
#ifndef CAIRN_SNAPSHOT_MINISIG_H
#define CAIRN_SNAPSHOT_MINISIG_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/sentence.h"
#include "proto/base/status.h"

#define CAIRN_KEY_ID_BYTES   8
#define CAIRN_PREHASH_BYTES  64
#define CAIRN_KEY_NAME_BYTES 17   /* of an id as text: 16 upper-case hexadecimal digits, NUL */
#define CAIRN_KEY_LINE_BYTES 57   /* of a public key in base64: 56 characters, NUL */
#define CAIRN_KEY_TEXT_BYTES 512  /* of a key's file, with a NUL */
#define CAIRN_MINISIG_BYTES  1024 /* of a signature that is made here, with a NUL */
#define CAIRN_MINISIG_MAX    ((size_t)16 << 10) /* of a stranger's that is looked at */

struct cairn_public_key {
    uint8_t id[CAIRN_KEY_ID_BYTES];
    uint8_t key[32];
};
struct cairn_secret_key {
    struct cairn_public_key public_key;
    uint8_t secret[64];
};
/* As it is read: judged in form, checked by cairn_minisig_check. */
struct cairn_minisig {
    uint8_t key_id[CAIRN_KEY_ID_BYTES];
    uint8_t signature[64];
    uint8_t global[64];  /* of the signature and the trusted comment */
    const char *comment; /* the trusted one: borrowed from the text, not ended by a NUL */
    size_t comment_bytes;
};

/* ---- keys ---- */

void cairn_secret_key_make(struct cairn_secret_key *out);
/* "0123456789ABCDEF", as minisign prints it. */
void cairn_key_name(const uint8_t id[CAIRN_KEY_ID_BYTES], char out[CAIRN_KEY_NAME_BYTES]);
/* The one line "RW...". */
void cairn_public_key_line(const struct cairn_public_key *key, char out[CAIRN_KEY_LINE_BYTES]);
/* The file that minisign writes: two lines. */
void cairn_public_key_text(const struct cairn_public_key *key, char out[CAIRN_KEY_TEXT_BYTES]);
/* Reads that file, or the one line alone. */
cairn_status cairn_public_key_parse(const char *text, struct cairn_public_key *out,
                                    struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_secret_key_text(const struct cairn_secret_key *key, char out[CAIRN_KEY_TEXT_BYTES]);
/* CAIRN_ERR_MALFORMED: also of one that has a password, or that is damaged. */
cairn_status cairn_secret_key_parse(const char *text, struct cairn_secret_key *out,
                                    struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* ---- signatures ---- */

void cairn_prehash(const void *bytes, size_t byte_count, uint8_t out[CAIRN_PREHASH_BYTES]);
/* `comment`, the trusted one, is one line of at most 600 bytes (asserted). */
void cairn_minisig_sign(const struct cairn_secret_key *key,
                        const uint8_t prehash[CAIRN_PREHASH_BYTES], const char *comment,
                        char out[CAIRN_MINISIG_BYTES]);
cairn_status cairn_minisig_parse(const char *text, size_t text_bytes, struct cairn_minisig *out,
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Checks that `key` made this signature of `prehash`, and that it covers the trusted comment.
 * CAIRN_ERR_CHECKSUM: it did not. The key must have the id that the signature names. */
cairn_status cairn_minisig_check(const struct cairn_minisig *signature,
                                 const struct cairn_public_key *key,
                                 const uint8_t prehash[CAIRN_PREHASH_BYTES],
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
