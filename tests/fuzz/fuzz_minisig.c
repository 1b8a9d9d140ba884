/* Signatures and keys in minisign's format. */
#include <sodium.h>
#include <string.h>

#include "proto/snapshot/snapshot.h"
#include "tests/fuzz/target.h"

static void parse_signature(const char *text, size_t size)
{
    static const uint8_t prehash[CAIRN_PREHASH_BYTES];
    static struct secret_key secret;
    static struct public_key key;
    struct minisig signature;
    struct sentence why = { 0 };
    if (secret.secret[0] == 0 && secret.secret[1] == 0) {
        MUST(sodium_init() >= 0);
        secret_key_make(&secret);
    }
    if (minisig_parse(text, size, &signature, &why) != CAIRN_OK) {
        MUST(why.text[0] != '\0');
        return;
    }
    MUST(signature.comment >= text && signature.comment + signature.comment_bytes <= text + size);
    memcpy(key.id, signature.key_id, sizeof key.id); // a key that nobody here has signed by
    MUST(minisig_check(&signature, &key, prehash, &why) != CAIRN_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse_signature((const char *)data, size);
    char *text = malloc(size + 1);
    MUST(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    struct public_key public;
    struct secret_key secret;
    struct sentence why = { 0 };
    if (public_key_parse(text, &public, &why) != CAIRN_OK) MUST(why.text[0] != '\0');
    why.text[0] = '\0';
    if (secret_key_parse(text, &secret, &why) != CAIRN_OK) MUST(why.text[0] != '\0');
    free(text);
    return 0;
}
