/* manifest.json: what makes a folder of files a snapshot. Encoded and decoded here, pure; committed
 * to storage and loaded by snapshot_io.h.
 *
 * {
 *   "format": "cairn snapshot", "version": 4,
 *   "cluster": text, "created": "2026-11-21T03:04:05Z",
 *   "generation": n, "step": n, "epoch": n, "shards": n,
 *   "loss_scale": x,                  in force at the step
 *   "payload": hex,                   of the last decision: what schedule and optimizer go on with,
 *                                     how many rounds were skipped (an older one: none), and
 *                                     the client state
 *   "content_root": 64 hex digits,    the same for any number of shards
 *   "spec": {
 *     "name", "revision", the scalars of spec_fields.h (the FIRST ones; all others with a question mark; a
 *     choice by its name), "former"?: [64 hex digits, ...], "init_from"?, "init_prefix"?,
 *     "groups": [{"name", "optimizer", "lr", "beta1", "beta2", "eps", "weight_decay", "momentum",
 *                 "nesterov", "frozen"?, "schedule"?: {"kind": "constant" | "linear" | "cosine" |
 *                 "wsd" | "table", "warmup_steps", "total_steps", "decay_steps", "lr_min",
 *                 "points": [[step, factor], ...]}}, ...],
 *     "tensors": [{"name", "unit", "group", "kind": "trained" | "frozen" | "buffer",
 *                  "wire": "f32" | "bf16", "reduce": "f32", "master": "f32", "shape": [n, ...],
 *                  "whole", "frozen"?, "alias_of"?, "alias_box"?: [[start, ...], [extent, ...]],
 *                  "init"?: {"kind", "a", "b", "seed"}, "order"?}, ...]
 *   },
 *   "periodic"?: 16 hex digits,       taken by snapshot_every of the job of this number
 *   "origin"?: {"generation", "from_generation", "from_step"}, where the job last went back (struct
 *             cairn_origin)
 *   "nonfinite"?: {"elems", "tensors": {name: elems, ...}}, results that are not finite (results.h)
 *   "steps_missed"?: {name: n, ...},  trained tensors whose own count of updates is n below the step
 *   "reduce_groups"?: [[rank, ...], ...], of the step's round (rank_groups.h)
 *   "files": [{"path", "bytes", "blocks": 32 hex digits for every 4 MiB of the file: XXH3-128, as
 *             `xxhsum -H2` prints it}, ...],
 *   "blake2b_256": 64 hex digits      of all bytes before this line (manifest_seal.h)
 * }
 *
 * The spec is complete, so that the job can be made again from it; groups, tensors and files are
 * sorted bytewise. Numbers are exact: doubles have 17 digits. Keys with a question mark may be missing: then
 * there is no such thing, or it is at its default. A reader takes nothing else: an unknown, missing or
 * repeated key, a number out of range, a path that is not one of snapshot_file.h and a spec that
 * cairn_spec_check refuses are errors. A change of this table is a new version. Older ones are read as well:
 * 3, whose files have one "xxh3_128" over all of each instead of "blocks"; 2, without the hash of the
 * manifest, too; and 1, which has no keys with a question mark either. */
#ifndef CAIRN_STORE_MANIFEST_H
#define CAIRN_STORE_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/sentence.h"
#include "proto/base/status.h"
#include "proto/spec/rank_groups.h"
#include "proto/spec/results.h"
#include "proto/spec/spec.h"

#define CAIRN_MANIFEST_NAME           "manifest.json"
#define CAIRN_MANIFEST_VERSION        4
#define CAIRN_MANIFEST_VERSION_MIN    1 /* that is read */
#define CAIRN_MANIFEST_VERSION_SEALED 3 /* from here on it has the hash over itself */
#define CAIRN_MANIFEST_BYTES_MAX      ((size_t)512 << 20)
#define CAIRN_MANIFEST_FILES_MAX      1000000
#define CAIRN_MANIFEST_PAYLOAD_MAX    ((size_t)1 << 20)

struct cairn_manifest_file {
    char *path;     /* owned by the manifest; relative to the snapshot's folder */
    uint64_t bytes; /* of the whole file */
    /* [block_count][CAIRN_SNAPSHOT_SUM_BYTES], owned: checksums of the blocks; `is_whole`: one, of all of
     * it */
    uint8_t *sums;
    uint64_t block_count, block_capacity;
    bool is_whole; /* of a manifest before version 4 */
};

/* Where a job last went back, or began beside snapshots of its name: from `generation` on its versions follow
 * `from`, and what lies between the two was turned away from. from = 0.0: they follow none of that name.
 * generation = 0: the job never went back, and follows every older version. */
struct cairn_origin {
    uint64_t generation;
    struct cairn_version from;
};
/* May a version older than the origin's generation stand before it in the life of the job? */
static inline bool cairn_origin_follows(const struct cairn_origin *origin,
                                        struct cairn_version version)
{
    return version.generation >= origin->generation ||
           cairn_version_compare(version, origin->from) <= 0;
}

struct cairn_manifest {
    /* owned: freed by cairn_manifest_release */
    char *cluster;    /* a name for people; NULL is written as "" */
    uint8_t *payload; /* [payload_bytes] */
    /* [spec.tensor_count] by index in the spec as it is encoded; NULL: no tensor has missed any */
    uint64_t *steps_missed;
    char *signature; /* as it was loaded (manifest_trust.h); NULL: there is none */
    struct cairn_manifest_file *files; /* [file_count], sorted by path once decoded */
    struct cairn_job_spec_data spec;   /* canonical */
    /* of the round that made the step; none: there were none, or they are not known */
    struct cairn_rank_groups reduce_groups;

    size_t payload_bytes, signature_bytes;
    size_t file_count, file_capacity;
    uint64_t generation, step, epoch;
    uint64_t periodic; /* of which job, as the coordinator numbers it; 0: somebody asked for it */
    uint64_t created_unix_s; /* for people: no machine goes by the wall clock to find the newest */
    struct cairn_origin origin;
    struct cairn_results nonfinite; /* of the version, by index in the spec as it is encoded */
    uint32_t shard_count;
    double loss_scale;
    uint8_t content_root[32];
    uint8_t prehash[64]; /* of the text that was decoded: what a signature is over (minisig.h) */
    uint32_t version;    /* that was decoded */
    bool unsealed; /* decoded of a version without the hash: nothing tells whether it was changed */
};

/* All zero, the spec as after cairn_spec_init. */
void cairn_manifest_init(struct cairn_manifest *m);
void cairn_manifest_release(struct cairn_manifest *m);
/* Copies in. CAIRN_ERR_INVALID over the limit, CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_manifest_set_payload(struct cairn_manifest *m, const uint8_t *payload,
                                        size_t payload_bytes) CAIRN_MUST_CHECK;
/* Checksums of blocks [first_block, first_block + count) of a file: 0 appends a file, more go on with the one
 * of that path, in order. All comes from a shard and is judged. CAIRN_ERR_INVALID, CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_manifest_add_blocks(struct cairn_manifest *m, const char *path, uint64_t bytes,
                                       uint64_t first_block, const uint8_t *sums,
                                       uint64_t count) CAIRN_MUST_CHECK;
/* Appends a file with all of its blocks, or, is_whole, one checksum over all of it. The same. */
cairn_status cairn_manifest_add_file(struct cairn_manifest *m, const char *path, uint64_t bytes,
                                     const uint8_t *sums, bool is_whole) CAIRN_MUST_CHECK;

/* Sorts files, groups and tensors, and writes the JSON; the spec has passed cairn_spec_check. The
 * text is malloc'd, the caller's, ended by a newline and a NUL that is not counted.
 * CAIRN_ERR_INVALID: a value that a reader would refuse (two files of one path, a file without all of its
 * checksums, a text that is not UTF-8, a number over 2^63 or not finite); CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_manifest_encode(struct cairn_manifest *m, char **text_out,
                                   size_t *text_bytes_out,
                                   struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Judges all of it; `*out` is set only on success. CAIRN_ERR_CORRUPT; CAIRN_ERR_VERSION: written by
 * another version of Cairn; CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_manifest_decode(const char *text, size_t text_bytes, struct cairn_manifest *out,
                                   struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
