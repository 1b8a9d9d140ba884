#include "tests/support/minisig_sample.h"

#include <check.h>
#include <sodium.h>
#include <string.h>

struct secret_key cairn_sample_key(void)
{
    struct secret_key key;
    ck_assert_int_ge(sodium_init(), 0);
    secret_key_make(&key);
    return key;
}

void cairn_sample_sign(const struct secret_key *key, const char *bytes,
                       char text[CAIRN_MINISIG_BYTES])
{
    uint8_t prehash[CAIRN_PREHASH_BYTES];
    minisig_prehash(bytes, strlen(bytes), prehash);
    minisig_sign(key, prehash, "timestamp:1\tfile:manifest.json\thashed", text);
}

cairn_status cairn_sample_check(const char *text, const struct public_key *key, const char *bytes,
                                struct sentence *why)
{
    struct minisig signature;
    uint8_t prehash[CAIRN_PREHASH_BYTES];
    const cairn_status status = minisig_parse(text, strlen(text), &signature, why);
    minisig_prehash(bytes, strlen(bytes), prehash);
    return status != CAIRN_OK ? status : minisig_check(&signature, key, prehash, why);
}
