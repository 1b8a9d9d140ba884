/* The digests that shards send of a job's state, and the content root that they come to: of a cut, and of
 * what a restore has loaded. */
#ifndef CAIRN_COORDINATOR_CUT_DIGESTS_H
#define CAIRN_COORDINATOR_CUT_DIGESTS_H

#include <stddef.h>
#include <stdint.h>

#include "control.pb-c.h"
#include "proto/snapshot/digest_tree.h"
#include "proto/snapshot/manifest.h"

#define CAIRN_DIGESTS_MAX ((size_t)16 << 20)

struct cairn_cluster_digest {
    uint32_t tensor, plane;
    struct cairn_tree_node node;
};

/* All zero: empty. */
struct cairn_cluster_digests {
    struct cairn_cluster_digest *list; /* owned: [count] */
    size_t count, capacity;
};
void cairn_cluster_digests_release(struct cairn_cluster_digests *digests);

/* Adds what a shard sent of a job of so many tensors. CAIRN_ERR_PROTOCOL: not of its planes, or too many.
 * CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_cluster_digests_take(struct cairn_cluster_digests *digests, size_t tensor_count,
                                        const Cairn__SnapshotPart *part,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The same of one plane's tree, or a part of it. */
cairn_status cairn_cluster_digests_add(struct cairn_cluster_digests *digests, uint32_t tensor,
                                       enum cairn_plane plane, const struct cairn_tree *tree,
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* Copies what tensors have missed from the manifest's payload into the manifest's own fields.
 * CAIRN_ERR_NO_MEMORY. Any thread. */
cairn_status cairn_cluster_note_missed(struct cairn_manifest *manifest) CAIRN_MUST_CHECK;
/* The content root of a state of which `manifest` has the spec, the step and the payload; of its loss scale
 * and its root nothing is read. *loss_scale_out is the one in force. Sorts the digests. Any thread.
 * CAIRN_ERR_PROTOCOL: they are not the whole of it, each part once. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_cluster_content_root(const struct cairn_manifest *manifest,
                                        struct cairn_cluster_digests *digests,
                                        struct cairn_hash *root_out, double *loss_scale_out,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
