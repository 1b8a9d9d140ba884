#include "proto/snapshot/manifest_trust.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static enum cairn_trust broken(struct cairn_sentence *what, const char *why)
{
    cairn_sentence_set(what, CAIRN_MANIFEST_SIGNATURE_NAME ": %s", why);
    return CAIRN_TRUST_BROKEN;
}

/* Checks the signature by each key of that id: an id is eight bytes that anyone can give a key of
 * his own. */
static enum cairn_trust check(const struct cairn_manifest *m, const struct cairn_key_ring *ring,
                              const struct cairn_minisig *signature, struct cairn_sentence *what)
{
    struct cairn_sentence why;
    char name[CAIRN_KEY_NAME_BYTES];
    bool known = false;
    cairn_key_name(signature->key_id, name);
    for (size_t i = 0; i < ring->count; i++) {
        const struct cairn_public_key *key = &ring->keys[i];
        if (memcmp(key->id, signature->key_id, sizeof key->id) != 0) continue;
        known = true;
        if (cairn_minisig_check(signature, key, m->prehash, &why) != CAIRN_OK) continue;
        cairn_sentence_set(what, "signed by key %s", name);
        return CAIRN_TRUST_SIGNED;
    }
    if (known) return broken(what, why.text);
    cairn_sentence_set(what, "signed by key %s, which is not trusted here", name);
    return CAIRN_TRUST_STRANGE;
}

enum cairn_trust cairn_manifest_trust(const struct cairn_manifest *m,
                                      const struct cairn_key_ring *ring,
                                      struct cairn_sentence *what)
{
    struct cairn_minisig signature;
    struct cairn_sentence why;
    if (m->signature == NULL) {
        const bool is_old = m->version < CAIRN_MANIFEST_VERSION_SIGNED;
        cairn_sentence_set(what,
                           is_old ? "not signed (of a version before signatures)" : "not signed");
        return is_old ? CAIRN_TRUST_OLD : CAIRN_TRUST_UNSIGNED;
    }
    if (cairn_minisig_parse(m->signature, m->signature_bytes, &signature, &why) != CAIRN_OK)
        return broken(what, why.text);
    return check(m, ring, &signature, what);
}

cairn_status cairn_manifest_accept(const struct cairn_manifest *m,
                                   const struct cairn_key_ring *ring,
                                   struct cairn_trust_waiver waiver, struct cairn_sentence *why)
{
    struct cairn_sentence what;
    switch (cairn_manifest_trust(m, ring, &what)) {
    case CAIRN_TRUST_SIGNED:
    case CAIRN_TRUST_OLD: return CAIRN_OK;
    case CAIRN_TRUST_UNSIGNED:
        if (waiver.is_unsigned) return CAIRN_OK;
        return cairn_fail(
            why, CAIRN_ERR_REFUSED,
            "its manifest is %s: nothing tells who wrote it; put " CAIRN_MANIFEST_SIGNATURE_NAME
            " back, or take it as it is with "
            "--allow-unsigned",
            what.text);
    case CAIRN_TRUST_STRANGE:
        if (waiver.is_strange) return CAIRN_OK;
        return cairn_fail(
            why, CAIRN_ERR_REFUSED,
            "its manifest is %s; if another cluster wrote it, trust the key that `cairn "
            "key show` prints there (`cairn key trust`); if this one did, before its "
            "store was lost, put the cluster.key of then back into store.path and "
            "start the coordinator again; or take this one snapshot with --allow-untrusted",
            what.text);
    case CAIRN_TRUST_BROKEN: break;
    }
    return cairn_fail(why, CAIRN_ERR_CHECKSUM,
                      "%s: the manifest or its signature was changed; use another snapshot",
                      what.text);
}

void cairn_manifest_signature_comment(const struct cairn_manifest *m,
                                      char out[CAIRN_SIGNATURE_COMMENT_BYTES])
{
    snprintf(out, CAIRN_SIGNATURE_COMMENT_BYTES,
             "timestamp:%" PRIu64 "\tfile:" CAIRN_MANIFEST_NAME "\tjob:%s\tgeneration:%" PRIu64
             "\tstep:%" PRIu64 "\thashed",
             m->created_unix_s, m->spec.name, m->generation, m->step);
}
