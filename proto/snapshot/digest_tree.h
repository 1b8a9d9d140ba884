/* The content root: one hash of a job's state. It is the same for every layout, after every restore, and on
 * every machine.
 *
 *   leaf    BLAKE2b-256(0x00 || bytes)              bytes: the leaf's elements, little-endian, NaN as
 *                                                   one pattern (gpu/gpu.h makes them)
 *   node    BLAKE2b-256(0x01 || left || right)
 *   tree    the shape of RFC 6962, 2.1: split at the largest power of two below the leaf count;
 *           no leaves at all: BLAKE2b-256("")
 *   plane   BLAKE2b-256 of {"cairn plane 1", tensor, plane, dtype, shape, leaf count, tree}
 *   job     BLAKE2b-256 of {"cairn content 1", planes by tensor name (bytewise) and number, step,
 *           groups by name (a driven group with its last lr), schedule, loss scale, hash of the client
 *           state; if tensors have missed steps: their count, and each one by name with how many}
 *
 * In a plane and a job, the length or count of each part precedes the part, so no two inputs give the same
 * bytes. A shard that owns the leaves [a, b) sends the largest complete subtrees in that range, which are
 * at most CAIRN_TREE_NODES_MAX. A receiver that has the subtrees of all shards pushes them in order, and
 * gets the root. A struct hash_tree keeps at most two nodes for each level, and not the hashes of all
 * leaves. The functions are pure, and allocate nothing. Only one thread at a time may use a struct. */
#ifndef CAIRN_STORE_DIGEST_TREE_H
#define CAIRN_STORE_DIGEST_TREE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/geometry/tensor.h"
#include "proto/spec/scalars.h"

#define CAIRN_HASH_BYTES 32
struct hash {
    uint8_t byte[CAIRN_HASH_BYTES];
};

#define CAIRN_TREE_LEVEL_MAX 48                         /* the level of the root of 2^48 leaves */
#define CAIRN_TREE_NODES_MAX (2 * CAIRN_TREE_LEVEL_MAX) /* the most subtrees of one range */

/* A complete subtree: the leaves [index << level, (index + 1) << level). */
struct tree_node {
    uint32_t level; /* 0: one leaf */
    uint64_t index;
    struct hash hash;
};

/* Joins a run of leaves or nodes. After the last push, node[0..node_count) are the complete subtrees of
 * [first_leaf, next_leaf), as few as possible, from left to right. A shard sends these subtrees. */
struct hash_tree {
    uint64_t first_leaf, next_leaf;
    uint32_t node_count;
    struct tree_node node[CAIRN_TREE_NODES_MAX + 2];
};
void tree_init(struct hash_tree *tree, uint64_t first_leaf);
void tree_push_leaf(struct hash_tree *tree, const struct hash *leaf);
/* Pushes a node. CAIRN_ERR_INVALID: the node does not begin at next_leaf (there is a gap or an overlap), or
 * no tree has such a node; the tree is then unchanged. */
cairn_status tree_push_node(struct hash_tree *tree, const struct tree_node *node) CAIRN_MUST_CHECK;
/* Computes the root of a tree of leaf_count leaves. CAIRN_ERR_INVALID: what was pushed does not cover [0,
 * leaf_count). */
cairn_status digest_tree_root(const struct hash_tree *tree, uint64_t leaf_count,
                              struct hash *out) CAIRN_MUST_CHECK;
/* Computes the root from the nodes of all owners, which may be in any order. Sorts the nodes.
 * CAIRN_ERR_INVALID: the nodes together do not cover [0, leaf_count) exactly once. */
cairn_status tree_combine(struct tree_node *nodes, size_t node_count, uint64_t leaf_count,
                          struct hash *out) CAIRN_MUST_CHECK;

/* Computes BLAKE2b-256(0x00 || bytes). */
void leaf_hash(const void *bytes, size_t size, struct hash *out);
/* Computes BLAKE2b-256(bytes), which is used for the client state. */
void bytes_hash(const void *bytes, size_t size, struct hash *out);

void digest_plane_root(const char *tensor, enum plane plane, cairn_dtype dtype,
                       const struct shape *shape, uint64_t leaf_count, const struct hash *tree_root,
                       struct hash *out);

/* One plane in the content root. The tensor may be trained or frozen, a buffer or a blob. The plane is
 * never `wire`. */
struct plane_digest {
    const char *tensor; /* borrowed */
    enum plane plane;
    struct hash root; /* from digest_plane_root */
};
struct group_digest {
    const char *name; /* borrowed */
    struct group_hyper hyper;
};
/* A tensor whose own count of updates is less than the step. */
struct missed_digest {
    const char *tensor; /* borrowed */
    uint64_t steps;     /* how many steps the tensor has missed, at least 1 */
};
/* The parts of the content root, except the planes. */
struct content {
    uint64_t step;
    struct group_digest *groups; /* borrowed: [group_count]; digest_content_root sorts them */
    size_t group_count;
    /* borrowed: the encoded schedules; NULL, with 0 bytes: all are constant */
    const void *schedule;
    size_t schedule_bytes;
    double loss_scale;
    /* from bytes_hash; without a client state it is the hash of 0 bytes */
    struct hash client_state;
    const struct missed_digest *missed; /* borrowed: [missed_count], sorted by name */
    size_t missed_count;
};
/* Computes the content root. Sorts the planes and the groups. CAIRN_ERR_INVALID: a plane or a group is
 * listed twice. */
cairn_status digest_content_root(struct plane_digest *planes, size_t plane_count,
                                 const struct content *content, struct hash *out) CAIRN_MUST_CHECK;

#endif
