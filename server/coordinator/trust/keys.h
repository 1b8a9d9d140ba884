/* The key that this cluster signs its snapshots with, and those whose signatures it trusts.
 *
 * The secret key is FOLDER/cluster.key, mode 0600, in the store's folder: made at the first start and
 * durable before anything is signed. A copy of the store (`cairn cluster backup`) has it, too: where a copy
 * is put back without the file, the file is made of that. The public keys that are trusted are in the store:
 * this cluster's, also former ones, and those of others by an operator's word. Shards are told of them, and
 * keep them with their state: a store that adopts it trusts them from then on. A store without a key, in a
 * file or in itself, gets a new one; what the old one signed stays trusted. Loop thread only, but for the
 * ring, which is a copy. */
#ifndef CAIRN_COORDINATOR_TRUST_KEYS_H
#define CAIRN_COORDINATOR_TRUST_KEYS_H

#include "proto/snapshot/manifest_trust.h"
#include "server/coordinator/base/names.h"

#define CAIRN_KEY_FILE "cluster.key"

struct cairn_cluster_keys;

/* Behind the store and the events, before the store's thread begins; reads or makes the key's file. Blocks.
 * CAIRN_ERR_CONFIG: that is no key, or others may read it. */
cairn_status cairn_cluster_keys_open(struct cairn_cluster *cluster,
                                     struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_cluster_keys_close(struct cairn_cluster *cluster);
/* Who signs; constant while the cluster is open: any thread. */
const struct cairn_secret_key *cairn_cluster_keys_signer(const struct cairn_cluster *cluster);
/* Copies the keys that are trusted now, for another thread. */
void cairn_cluster_keys_ring(const struct cairn_cluster *cluster, struct cairn_key_ring *out);

/* ---- what shards keep ---- */
struct cairn_trusted_key {
    struct cairn_public_key key;
    bool is_own; /* this cluster's, now or before */
    uint64_t since_unix_s;
};
/* The trusted keys as a message. It borrows from this struct, so it is valid as long as the
 * struct lives. */
struct cairn_keys_message {
    Cairn__Keys keys;
    Cairn__Key *list[CAIRN_KEYS_MAX], views[CAIRN_KEYS_MAX];
    char ids[CAIRN_KEYS_MAX][CAIRN_KEY_NAME_BYTES], lines[CAIRN_KEYS_MAX][CAIRN_KEY_LINE_BYTES];
};
void cairn_cluster_keys_fill(const struct cairn_cluster *cluster, struct cairn_keys_message *room);
/* The same of a list. */
void cairn_cluster_keys_fill_list(const struct cairn_cluster *cluster,
                                  const struct cairn_trusted_key *list, size_t count,
                                  struct cairn_keys_message *room);
/* Adds to the list what a shard has kept and is not trusted here; returns its new length. */
size_t cairn_cluster_keys_unknown(struct cairn_cluster *cluster, const Cairn__Keys *kept,
                                  struct cairn_trusted_key list[CAIRN_KEYS_MAX], size_t count);
/* They are in the store now. */
void cairn_cluster_keys_adopted(struct cairn_cluster *cluster, const struct cairn_trusted_key *list,
                                size_t count);
/* One is on its way to the store. */
bool cairn_cluster_keys_are_changing(const struct cairn_cluster *cluster);

/* ---- what an admin asks ---- */
void cairn_cluster_keys_answer(struct cairn_cluster_session *session, uint32_t request);
void cairn_cluster_key_trust(struct cairn_cluster_session *session, uint32_t request,
                             const Cairn__KeyTrust *message);
void cairn_cluster_keys_forget(struct cairn_cluster *cluster,
                               const struct cairn_cluster_session *session);

#endif
