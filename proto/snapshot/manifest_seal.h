/* The last line of a manifest, but for the brace that closes it: a hash over all bytes before it. Found by it
 * is whatever changed the file without meaning to; it is no signature. */
#ifndef CAIRN_STORE_MANIFEST_SEAL_H
#define CAIRN_STORE_MANIFEST_SEAL_H

#include <stddef.h>

#define CAIRN_MANIFEST_SEAL_KEY   "blake2b_256"
#define CAIRN_MANIFEST_SEAL_BYTES (sizeof " \"" CAIRN_MANIFEST_SEAL_KEY "\": \"\"\n}\n" - 1 + 64)

/* ` "blake2b_256": "<64 hex digits>"`, newline, brace, newline, NUL: what ends a file of which `text` are the
 * bytes before. */
void cairn_manifest_seal(const char *text, size_t text_bytes,
                         char seal_out[CAIRN_MANIFEST_SEAL_BYTES + 1]);

#endif
