/* Whose word a manifest is: manifest.json.minisig beside it, a signature (minisig.h) of the cluster that
 * wrote the snapshot, against the keys that are trusted here. Pure. */
#ifndef CAIRN_SNAPSHOT_MANIFEST_TRUST_H
#define CAIRN_SNAPSHOT_MANIFEST_TRUST_H

#include "proto/snapshot/manifest.h"
#include "proto/snapshot/minisig.h"

#define CAIRN_MANIFEST_SIGNATURE_NAME CAIRN_MANIFEST_NAME ".minisig"
#define CAIRN_MANIFEST_VERSION_SIGNED \
    4 /* from here on a manifest is signed, or was made unsigned */
#define CAIRN_KEYS_MAX 64

/* The keys that are trusted. */
struct cairn_key_ring {
    struct cairn_public_key keys[CAIRN_KEYS_MAX];
    size_t count;
};

enum cairn_trust {
    CAIRN_TRUST_SIGNED, /* by a key of the ring */
    CAIRN_TRUST_OLD,    /* not signed, and of a version that knew no signatures */
    CAIRN_TRUST_UNSIGNED,
    CAIRN_TRUST_STRANGE, /* by a key that is not in the ring: nothing is known of it */
    CAIRN_TRUST_BROKEN,  /* it names a key of the ring, and is not its signature of this; or none */
};
/* Judges the signature of a manifest that was loaded. `what` (may be NULL) tells the result:
 * "signed by key 0123456789ABCDEF". */
enum cairn_trust cairn_manifest_trust(const struct cairn_manifest *manifest,
                                      const struct cairn_key_ring *ring,
                                      struct cairn_sentence *what);

/* The manifests that are accepted although no key of the ring has signed them. */
struct cairn_trust_waiver {
    bool is_unsigned, is_strange;
};
/* May the snapshot be restored? CAIRN_ERR_REFUSED: its manifest is unsigned or strange, and that is
 * not waived; the sentence says which option would waive it. CAIRN_ERR_CHECKSUM: the signature is
 * broken, which nothing waives. */
cairn_status cairn_manifest_accept(const struct cairn_manifest *manifest,
                                   const struct cairn_key_ring *ring,
                                   struct cairn_trust_waiver waiver,
                                   struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* The trusted comment for a signature of the manifest. */
#define CAIRN_SIGNATURE_COMMENT_BYTES 600
void cairn_manifest_signature_comment(const struct cairn_manifest *manifest,
                                      char out[CAIRN_SIGNATURE_COMMENT_BYTES]);

#endif
