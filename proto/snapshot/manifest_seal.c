#include "proto/snapshot/manifest_seal.h"

#include <sodium.h>
#include <stdio.h>

#include "proto/snapshot/digest_tree.h"

void cairn_manifest_seal(const char *text, size_t text_bytes,
                         char seal_out[CAIRN_MANIFEST_SEAL_BYTES + 1])
{
    struct cairn_hash hash;
    char hex[2 * CAIRN_HASH_BYTES + 1];
    cairn_bytes_hash(text, text_bytes, &hash);
    sodium_bin2hex(hex, sizeof hex, hash.byte, sizeof hash.byte);
    snprintf(seal_out, CAIRN_MANIFEST_SEAL_BYTES + 1,
             " \"" CAIRN_MANIFEST_SEAL_KEY "\": \"%s\"\n}\n", hex);
}
