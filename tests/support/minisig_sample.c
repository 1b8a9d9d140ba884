#include "tests/support/minisig_sample.h"

#include <check.h>
#include <sodium.h>
#include <string.h>

struct cairn_secret_key cairn_sample_key(void)
{
    struct cairn_secret_key key;
    ck_assert_int_ge(sodium_init(), 0);
    cairn_secret_key_make(&key);
    return key;
}

void cairn_sample_sign(const struct cairn_secret_key *key, const char *bytes,
                       char text[CAIRN_MINISIG_BYTES])
{
    uint8_t prehash[CAIRN_PREHASH_BYTES];
    cairn_prehash(bytes, strlen(bytes), prehash);
    cairn_minisig_sign(key, prehash, "timestamp:1\tfile:manifest.json\thashed", text);
}

cairn_status cairn_sample_check(const char *text, const struct cairn_public_key *key,
                                const char *bytes, struct cairn_sentence *why)
{
    struct cairn_minisig signature;
    uint8_t prehash[CAIRN_PREHASH_BYTES];
    const cairn_status status = cairn_minisig_parse(text, strlen(text), &signature, why);
    cairn_prehash(bytes, strlen(bytes), prehash);
    return status != CAIRN_OK ? status : cairn_minisig_check(&signature, key, prehash, why);
}
