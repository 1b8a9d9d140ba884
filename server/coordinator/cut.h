/* A cut: every shard's state of a job at one version, as digests and, for a snapshot, as files.
 *
 *   begin → the core's PIN → PINNED: Pin to all shards, between the same two decisions on each
 *         → another thread makes the folder, whose name has the step; PinFolder to all shards
 *         → all parts in → WORKING (another thread): content root; manifest, last of all → answer
 *
 * One a job at a time. A part that fails, or a shard that goes away, fails the set: when no shard
 * writes any more its folder is removed, and training never notices. */
#ifndef CAIRN_COORDINATOR_CUT_H
#define CAIRN_COORDINATOR_CUT_H

#include "proto/wire/digest_tree.h"
#include "proto/wire/manifest.h"
#include "proto/wire/snapshot_file.h"
#include "server/coordinator/works.h"

#define CAIRN_CUT_NODES_MAX ((size_t)16 << 20)

enum cairn_cluster_cut_stage { CAIRN_CUT_PINNING, CAIRN_CUT_PINNED, CAIRN_CUT_WORKING };
enum cairn_part_state { CAIRN_PART_NONE, CAIRN_PART_AWAITED, CAIRN_PART_IN };

struct cairn_cluster_cut_node {
    uint32_t tensor, plane;
    struct cairn_tree_node node;
};

struct cairn_cluster_cut {
    struct cairn_cluster_work work;
    struct cairn_cluster_job *job; /* borrowed: neither restored nor freed while a cut runs */
    uint64_t number;
    bool is_snapshot;
    enum cairn_cluster_cut_stage stage;
    bool making_folder;
    char id[CAIRN_SNAPSHOT_ID_BYTES];
    struct cairn_version version;
    uint64_t begun_ms;   /* of the loop's clock */
    cairn_status status; /* the first failure */
    struct cairn_sentence why;
    uint64_t bytes; /* of all files */
    /* of the thread that makes the folder, until that is done */
    const char *root; /* borrowed of the cluster */
    cairn_status folder_status;
    struct cairn_sentence folder_why;

    /* owned */
    char *folder;                         /* NULL in a digest */
    uint8_t *parts;                       /* [shard_count], enum cairn_part_state */
    struct cairn_cluster_cut_node *nodes; /* [node_count] */
    size_t node_count, node_capacity;
    struct cairn_manifest manifest; /* of a digest too: content root, version, payload */
    struct cairn_cluster_waiter *at_begin, *at_end;
};

/* Makes the folder, and the id. Any thread, as the next one. */
void cairn_cluster_cut_make_folder(struct cairn_cluster_work *work);
/* The content root of what the parts said, into the manifest, and for a snapshot the manifest onto
 * storage; on failure the folder is removed. Any thread: touches the cut alone, and its copy of the spec. */
void cairn_cluster_cut_work(struct cairn_cluster_work *work);
/* Removes a folder with everything in it. Blocks. */
void cairn_cluster_folder_remove(const char *path);
/* A status message that borrows from the manifest; state "committed". */
void cairn_cluster_manifest_to_status(const struct cairn_manifest *manifest, const char *id,
                                      const char *folder, Cairn__SnapshotStatus *out);

#endif
