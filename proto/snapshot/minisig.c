#include "proto/snapshot/snapshot.h"

#include <assert.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define UNTRUSTED "untrusted comment: "
#define TRUSTED   "trusted comment: "

/* The bytes that are encoded as base64. */
struct packed_public {
    uint8_t algorithm[2]; /* "Ed" */
    uint8_t id[CAIRN_KEY_ID_BYTES];
    uint8_t key[32];
};
struct packed_signature {
    /* "ED". "Ed" means that the bytes themselves are signed; such signatures are not read here */
    uint8_t algorithm[2];
    uint8_t id[CAIRN_KEY_ID_BYTES];
    uint8_t signature[64];
};
struct packed_secret {
    uint8_t algorithm[2]; /* "Ed" */
    uint8_t password[2];  /* how the key is encrypted by a password; 0: there is no password */
    uint8_t checksum_algorithm[2]; /* "B2" */
    uint8_t salt[32], limits[16];  /* for the password */
    uint8_t id[CAIRN_KEY_ID_BYTES];
    uint8_t secret[64];
    uint8_t checksum[32];
};
static_assert(sizeof(struct packed_public) == 42 && sizeof(struct packed_signature) == 74 &&
                  sizeof(struct packed_secret) == 158,
              "minisign's layout");

static cairn_status malformed(struct sentence *why, const char *text)
{
    return fail_with(why, CAIRN_ERR_MALFORMED, "%s", text);
}

/* ---- lines ---- */

struct line {
    const char *text; /* not ended by a NUL */
    size_t bytes;
};

/* Takes the next line off the text, so that *text and *left are the rest after this line. False: there is
 * no line. */
static bool next_line(const char **text, size_t *left, struct line *out)
{
    if (*left == 0) return false;
    const char *end = memchr(*text, '\n', *left);
    const size_t bytes = end != NULL ? (size_t)(end - *text) : *left;
    *out = (struct line) { *text, bytes };
    if (bytes > 0 && (*text)[bytes - 1] == '\r') out->bytes--;
    *left -= bytes + (end != NULL);
    *text += bytes + (end != NULL);
    return true;
}

static bool begins_with(const struct line *line, const char *prefix)
{
    const size_t bytes = strlen(prefix);
    return line->bytes >= bytes && memcmp(line->text, prefix, bytes) == 0;
}

/* Decodes a line. Returns false if the line does not encode exactly `out_bytes` bytes. */
static bool from_base64(const struct line *line, void *out, size_t out_bytes)
{
    size_t got = 0;
    const char *end = NULL;
    return sodium_base642bin(out, out_bytes, line->text, line->bytes, NULL, &got, &end,
                             sodium_base64_VARIANT_ORIGINAL) == 0 &&
           got == out_bytes && end == line->text + line->bytes;
}

static void to_base64(const void *bytes, size_t byte_count, char *out, size_t out_bytes)
{
    sodium_bin2base64(out, out_bytes, bytes, byte_count, sodium_base64_VARIANT_ORIGINAL);
}

/* ---- keys ---- */

void secret_key_make(struct secret_key *out)
{
    crypto_sign_keypair(out->public_key.key, out->secret);
    randombytes_buf(out->public_key.id, sizeof out->public_key.id);
}

void key_name(const uint8_t id[CAIRN_KEY_ID_BYTES], char out[CAIRN_KEY_NAME_BYTES])
{
    for (size_t i = 0; i < CAIRN_KEY_ID_BYTES; i++) // the id is a little-endian number
        snprintf(out + 2 * i, 3, "%02X", id[CAIRN_KEY_ID_BYTES - 1 - i]);
}

void public_key_line(const struct public_key *key, char out[CAIRN_KEY_LINE_BYTES])
{
    struct packed_public packed = { .algorithm = { 'E', 'd' } };
    memcpy(packed.id, key->id, sizeof packed.id);
    memcpy(packed.key, key->key, sizeof packed.key);
    to_base64(&packed, sizeof packed, out, CAIRN_KEY_LINE_BYTES);
}

void public_key_text(const struct public_key *key, char out[CAIRN_KEY_TEXT_BYTES])
{
    char name[CAIRN_KEY_NAME_BYTES], line[CAIRN_KEY_LINE_BYTES];
    key_name(key->id, name);
    public_key_line(key, line);
    snprintf(out, CAIRN_KEY_TEXT_BYTES, UNTRUSTED "minisign public key %s\n%s\n", name, line);
}

/* Finds the line that has the key. It is the only line, or the line after a comment. */
static bool key_line(const char *text, struct line *out)
{
    size_t left = strnlen(text, CAIRN_KEY_TEXT_BYTES);
    if (!next_line(&text, &left, out)) return false;
    return !begins_with(out, UNTRUSTED) || next_line(&text, &left, out);
}

cairn_status public_key_parse(const char *text, struct public_key *out, struct sentence *why)
{
    struct packed_public packed;
    struct line line;
    if (!key_line(text, &line) || !from_base64(&line, &packed, sizeof packed) ||
        memcmp(packed.algorithm, "Ed", 2) != 0)
        return malformed(why, "it is not a public key of minisign: a line of 56 characters that "
                              "begins with RW, or the file that has it");
    memcpy(out->id, packed.id, sizeof out->id);
    memcpy(out->key, packed.key, sizeof out->key);
    return CAIRN_OK;
}

static void checksum_of(const struct packed_secret *packed, uint8_t out[32])
{
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, 32);
    crypto_generichash_update(&state, packed->algorithm, sizeof packed->algorithm);
    crypto_generichash_update(&state, packed->id, sizeof packed->id);
    crypto_generichash_update(&state, packed->secret, sizeof packed->secret);
    crypto_generichash_final(&state, out, 32);
}

void secret_key_text(const struct secret_key *key, char out[CAIRN_KEY_TEXT_BYTES])
{
    struct packed_secret packed = { .algorithm = { 'E', 'd' }, .checksum_algorithm = { 'B', '2' } };
    char line[sodium_base64_ENCODED_LEN(sizeof packed, sodium_base64_VARIANT_ORIGINAL)];
    memcpy(packed.id, key->public_key.id, sizeof packed.id);
    memcpy(packed.secret, key->secret, sizeof packed.secret);
    checksum_of(&packed, packed.checksum);
    to_base64(&packed, sizeof packed, line, sizeof line);
    snprintf(out, CAIRN_KEY_TEXT_BYTES, UNTRUSTED "minisign encrypted secret key\n%s\n", line);
    sodium_memzero(&packed, sizeof packed);
    sodium_memzero(line, sizeof line);
}

static cairn_status judge_secret(const struct packed_secret *packed, struct sentence *why)
{
    static const uint8_t no_password[2] = { 0, 0 };
    // minisign writes this for a key without a password
    static const uint8_t no_checksum[32] = { 0 };
    uint8_t checksum[32], public_key[32], secret[64];
    if (memcmp(packed->algorithm, "Ed", 2) != 0 || memcmp(packed->checksum_algorithm, "B2", 2) != 0)
        return malformed(why, "it is not a secret key of minisign");
    if (memcmp(packed->password, no_password, 2) != 0)
        return malformed(why, "it is hidden behind a password, which nobody types here; "
                              "`minisign -C -W -s FILE` takes it off");
    checksum_of(packed, checksum);
    crypto_sign_seed_keypair(public_key, secret, packed->secret);
    const bool is_whole = sodium_memcmp(secret, packed->secret, sizeof secret) == 0 &&
                          (sodium_memcmp(checksum, packed->checksum, sizeof checksum) == 0 ||
                           sodium_memcmp(no_checksum, packed->checksum, sizeof checksum) == 0);
    sodium_memzero(secret, sizeof secret);
    return is_whole ? CAIRN_OK : malformed(why, "it is damaged: its parts do not fit together");
}

cairn_status secret_key_parse(const char *text, struct secret_key *out, struct sentence *why)
{
    struct packed_secret packed;
    struct line line;
    cairn_status status = CAIRN_OK;
    if (!key_line(text, &line) || !from_base64(&line, &packed, sizeof packed))
        status = malformed(why, "it is not a secret key of minisign");
    if (status == CAIRN_OK) status = judge_secret(&packed, why);
    if (status == CAIRN_OK) {
        memcpy(out->public_key.id, packed.id, sizeof out->public_key.id);
        memcpy(out->secret, packed.secret, sizeof out->secret);
        crypto_sign_ed25519_sk_to_pk(out->public_key.key, out->secret);
    }
    sodium_memzero(&packed, sizeof packed);
    return status;
}

/* ---- signatures ---- */

void minisig_prehash(const void *bytes, size_t byte_count, uint8_t out[CAIRN_PREHASH_BYTES])
{
    crypto_generichash(out, CAIRN_PREHASH_BYTES, bytes, byte_count, NULL, 0);
}

#define COMMENT_MAX 600
static_assert(CAIRN_MINISIG_BYTES > COMMENT_MAX + 400, "the other lines fit");

/* Writes the signature, followed by the trusted comment, and returns how many bytes these are. `out` must
 * have room for them. */
static size_t join(const uint8_t signature[64], const char *comment, size_t comment_bytes,
                   uint8_t *out)
{
    memcpy(out, signature, 64);
    memcpy(out + 64, comment, comment_bytes);
    return 64 + comment_bytes;
}

void minisig_sign(const struct secret_key *key, const uint8_t prehash[CAIRN_PREHASH_BYTES],
                  const char *comment, char out[CAIRN_MINISIG_BYTES])
{
    struct packed_signature packed = { .algorithm = { 'E', 'D' } };
    uint8_t joined[64 + COMMENT_MAX], global[64];
    char name[CAIRN_KEY_NAME_BYTES], line[128], global_line[128];
    const size_t comment_bytes = strlen(comment);
    assert(comment_bytes <= COMMENT_MAX && strchr(comment, '\n') == NULL);
    memcpy(packed.id, key->public_key.id, sizeof packed.id);
    crypto_sign_detached(packed.signature, NULL, prehash, CAIRN_PREHASH_BYTES, key->secret);
    crypto_sign_detached(global, NULL, joined,
                         join(packed.signature, comment, comment_bytes, joined), key->secret);
    key_name(packed.id, name);
    to_base64(&packed, sizeof packed, line, sizeof line);
    to_base64(global, sizeof global, global_line, sizeof global_line);
    snprintf(out, CAIRN_MINISIG_BYTES,
             UNTRUSTED "signature of key %s, made by Cairn\n%s\n" TRUSTED "%s\n%s\n", name, line,
             comment, global_line);
}

cairn_status minisig_parse(const char *text, size_t text_bytes, struct minisig *out,
                           struct sentence *why)
{
    static const char not_one[] = "it is not a signature of minisign: two comments, each with a "
                                  "line of base64 behind it";
    struct packed_signature packed;
    struct line untrusted, line, trusted, global;
    size_t left = text_bytes;
    if (text_bytes > CAIRN_MINISIG_MAX || !next_line(&text, &left, &untrusted) ||
        !next_line(&text, &left, &line) || !next_line(&text, &left, &trusted) ||
        !next_line(&text, &left, &global) || left != 0 || !begins_with(&untrusted, UNTRUSTED) ||
        !begins_with(&trusted, TRUSTED) || !from_base64(&line, &packed, sizeof packed) ||
        !from_base64(&global, out->global, sizeof out->global))
        return malformed(why, not_one);
    if (memcmp(packed.algorithm, "Ed", 2) == 0)
        return malformed(why, "it is of minisign's older kind, over the bytes themselves: sign "
                              "without -l");
    if (memcmp(packed.algorithm, "ED", 2) != 0) return malformed(why, not_one);
    memcpy(out->key_id, packed.id, sizeof out->key_id);
    memcpy(out->signature, packed.signature, sizeof out->signature);
    out->comment = trusted.text + strlen(TRUSTED);
    out->comment_bytes = trusted.bytes - strlen(TRUSTED);
    return CAIRN_OK;
}

cairn_status minisig_check(const struct minisig *signature, const struct public_key *key,
                           const uint8_t prehash[CAIRN_PREHASH_BYTES], struct sentence *why)
{
    uint8_t joined[64 + CAIRN_MINISIG_MAX];
    assert(memcmp(signature->key_id, key->id, sizeof key->id) == 0);
    if (crypto_sign_verify_detached(signature->signature, prehash, CAIRN_PREHASH_BYTES, key->key) !=
        0)
        return fail_with(why, CAIRN_ERR_CHECKSUM,
                         "it is not a signature of this: one of the two was changed, or it was "
                         "signed by another key of the same id");
    const size_t joined_bytes = join(signature->signature, signature->comment,
                                     signature->comment_bytes, joined);
    if (crypto_sign_verify_detached(signature->global, joined, joined_bytes, key->key) == 0)
        return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_CHECKSUM, "its trusted comment was changed");
}
