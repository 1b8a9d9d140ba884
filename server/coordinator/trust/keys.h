/* The key that this cluster signs its snapshots with, and those whose signatures it trusts.
 *
 * The secret key is FOLDER/cluster.key, mode 0600, in the store's folder: made at the first start and
 * durable before anything is signed. It is in no copy of the store (`cairn cluster backup`): copy it
 * yourself. The public keys that are trusted are in the store: this cluster's, also former ones, and those of
 * others by an operator's word. A store that comes without its key file (it was copied to another host) gets
 * a new key; what the old one signed stays trusted. Loop thread only, but for the ring, which is a copy. */
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
/* Those that are trusted now, for another thread. */
void cairn_cluster_keys_ring(const struct cairn_cluster *cluster, struct cairn_key_ring *out);

/* ---- what an admin asks ---- */
void cairn_cluster_keys_answer(struct cairn_cluster_session *session, uint32_t request);
void cairn_cluster_key_trust(struct cairn_cluster_session *session, uint32_t request,
                             const Cairn__KeyTrust *message);
void cairn_cluster_keys_forget(struct cairn_cluster *cluster,
                               const struct cairn_cluster_session *session);

#endif
