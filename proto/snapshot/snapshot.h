/* A snapshot: its manifest, and its files. */
#ifndef CAIRN_SNAPSHOT_SNAPSHOT_H
#define CAIRN_SNAPSHOT_SNAPSHOT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/layout.h"
#include "proto/safetensors/safetensors.h"
#include "proto/spec/spec.h"
#include "proto/spec/spec_fields.h"

/* ==== manifest ==== */

/* manifest.json: the file that makes a folder of files a snapshot. Encoded and decoded here, pure;
 * snapshot_io.h commits it to storage and loads it.
 *
 * {
 *   "format": "cairn snapshot", "version": 4,
 *   "cluster": text, "created": "2026-11-21T03:04:05Z",
 *   "generation": n, "step": n, "epoch": n, "shards": n,
 *   "loss_scale": x,                  in force at the step
 *   "payload": hex,                   of the last decision: what schedule and optimizer need to continue,
 *                                     how many rounds were skipped (missing in older ones), and
 *                                     the client state
 *   "content_root": 64 hex digits,    the same for any number of shards
 *   "spec": {
 *     "name", "revision", the scalars of spec_fields.h (the FIRST ones; all others as keys with a question
 *     mark; a choice by its name), "former"?: [64 hex digits, ...], "init_from"?, "init_prefix"?,
 *     "groups": [{"name", "optimizer", "lr", "beta1", "beta2", "eps", "weight_decay", "momentum",
 *                 "nesterov", "frozen"?, "schedule"?: {"kind": "constant" | "linear" | "cosine" |
 *                 "wsd" | "table", "warmup_steps", "total_steps", "decay_steps", "lr_min",
 *                 "points": [[step, factor], ...]}}, ...],
 *     "tensors": [{"name", "unit", "group", "kind": "trained" | "frozen" | "buffer",
 *                  "wire": "f32" | "bf16", "reduce": "f32", "master": "f32", "shape": [n, ...],
 *                  "whole", "frozen"?, "alias_of"?, "alias_box"?: [[start, ...], [extent, ...]],
 *                  "init"?: {"kind", "a", "b", "seed"}, "order"?}, ...]
 *   },
 *   "periodic"?: 16 hex digits,       the number of the job whose snapshot_every took it
 *   "origin"?: {"generation", "from_generation", "from_step"}, where the job last went back (struct
 *             origin)
 *   "nonfinite"?: {"elems", "tensors": {name: elems, ...}}, results that are not finite (spec.h)
 *   "steps_missed"?: {name: n, ...},  trained tensors whose own count of updates is n below the step
 *   "reduce_groups"?: [[rank, ...], ...], the groups of the step's round (spec.h)
 *   "files": [{"path", "bytes", "blocks": 32 hex digits for every 4 MiB of the file: XXH3-128, as
 *             `xxhsum -H2` prints it}, ...],
 *   "blake2b_256": 64 hex digits      of all bytes before this line (below)
 * }
 *
 * The spec is complete, so that the job can be made again from it; groups, tensors and files are sorted
 * bytewise. Numbers are exact: doubles have 17 digits. Keys with a question mark may be missing: then the
 * manifest has no such thing, or it is at its default. A reader accepts nothing else: an unknown, missing
 * or repeated key, a number out of range, a path that is not a snapshot's and a spec that spec_check
 * refuses are errors. A change of this table is a new version. Older versions are read as well: 3, whose
 * files have one "xxh3_128" over each whole file instead of "blocks"; 2, which also lacks the hash of the
 * manifest; and 1, which also has no keys with a question mark. */

#define CAIRN_MANIFEST_NAME           "manifest.json"
#define CAIRN_MANIFEST_VERSION        4
#define CAIRN_MANIFEST_VERSION_MIN    1 /* the oldest that is read */
#define CAIRN_MANIFEST_VERSION_SEALED 3 /* the first that has the hash over itself */
#define CAIRN_MANIFEST_BYTES_MAX      ((size_t)512 << 20)
#define CAIRN_MANIFEST_FILES_MAX      1000000
#define CAIRN_MANIFEST_PAYLOAD_MAX    ((size_t)1 << 20)

struct manifest_file {
    char *path;     /* owned by the manifest; relative to the snapshot's folder */
    uint64_t bytes; /* of the whole file */
    /* [block_count][CAIRN_SNAPSHOT_SUM_BYTES], owned: the checksums of the blocks; with is_whole: one
     * checksum of the whole file */
    uint8_t *sums;
    uint64_t block_count, block_capacity;
    bool is_whole; /* the file comes from a manifest before version 4 */
};

/* Where a job last went back to an older version, or began although snapshots of its name existed. From
 * `generation` on the job's versions follow version `from`, and the job gave up the versions between the
 * two. from = 0.0: the job's versions follow no older version of that name. generation = 0: the job never
 * went back, and follows every older version. */
struct origin {
    uint64_t generation;
    struct cairn_version from;
};
/* True if the version is on the job's line: it is of the origin's generation or a later one, or is not
 * after `from`. */
static inline bool origin_follows(const struct origin *origin, struct cairn_version version)
{
    return version.generation >= origin->generation || version_compare(version, origin->from) <= 0;
}

struct manifest {
    /* owned: freed by manifest_release */
    char *cluster;    /* a name for people; NULL is written as "" */
    uint8_t *payload; /* [payload_bytes] */
    /* [spec.tensor_count] by index in the encoded spec; NULL: no tensor has missed any step */
    uint64_t *steps_missed;
    char *signature;             /* as it was loaded (below); NULL: the manifest is not signed */
    struct manifest_file *files; /* [file_count], sorted by path once decoded */
    struct job_spec_data spec;   /* canonical */
    /* of the round that made the step; empty: it had no groups, or they are not known */
    struct rank_groups reduce_groups;

    size_t payload_bytes, signature_bytes;
    size_t file_count, file_capacity;
    uint64_t generation, step, epoch;
    /* the coordinator's number of the job that took the snapshot periodically; 0: taken on request */
    uint64_t periodic;
    uint64_t created_unix_s; /* for people: no code finds the newest by the wall clock */
    struct origin origin;
    struct results nonfinite; /* of the version, by index in the encoded spec */
    uint32_t shard_count;
    double loss_scale;
    uint8_t content_root[32];
    uint8_t prehash[64]; /* of the decoded text: a signature signs this hash (below) */
    uint32_t version;    /* of the decoded text */
    bool unsealed;       /* its version has no hash over itself, so changes cannot be detected */
};

/* Sets everything to zero, and the spec as spec_init does. */
void manifest_init(struct manifest *m);
void manifest_release(struct manifest *m);
/* Copies the bytes in. CAIRN_ERR_INVALID: over the limit. CAIRN_ERR_NO_MEMORY. */
cairn_status manifest_set_payload(struct manifest *m, const uint8_t *payload,
                                  size_t payload_bytes) CAIRN_MUST_CHECK;
/* Adds the checksums of blocks [first_block, first_block + count) of a file. first_block 0 appends the
 * file; later calls with its path continue it, in order. All values come from a shard and are checked.
 * CAIRN_ERR_INVALID, CAIRN_ERR_NO_MEMORY. */
cairn_status manifest_add_blocks(struct manifest *m, const char *path, uint64_t bytes,
                                 uint64_t first_block, const uint8_t *sums,
                                 uint64_t count) CAIRN_MUST_CHECK;
/* Appends a file with the checksums of all its blocks or (is_whole) one over the whole file. Errors as
 * above. */
cairn_status manifest_add_file(struct manifest *m, const char *path, uint64_t bytes,
                               const uint8_t *sums, bool is_whole) CAIRN_MUST_CHECK;

/* Sorts files, groups and tensors, and writes the JSON; the spec must have passed spec_check. The
 * text is malloc'ed, belongs to the caller, and ends with a newline and a NUL that is not counted.
 * CAIRN_ERR_INVALID: a value that a reader would refuse (two files with one path, a file without all of its
 * checksums, a text that is not UTF-8, a number over 2^63 or not finite); CAIRN_ERR_NO_MEMORY. */
cairn_status manifest_encode(struct manifest *m, char **text_out, size_t *text_bytes_out,
                             struct sentence *why) CAIRN_MUST_CHECK;
/* Checks everything; `*out` is set only on success. CAIRN_ERR_CORRUPT; CAIRN_ERR_VERSION: written by
 * another version of Cairn; CAIRN_ERR_NO_MEMORY. */
cairn_status manifest_decode(const char *text, size_t text_bytes, struct manifest *out,
                             struct sentence *why) CAIRN_MUST_CHECK;

/* ==== manifest spec ==== */

/* The spec of a job as JSON, as a manifest has it (above). Pure. */

/* Adds the scalars of a part to the object; scalars of LATER and POLICY are added only if they differ from
 * their default. The function takes over the object. NULL: no memory, or the object was NULL. */
json_t *spec_fields_json(json_t *object, const struct spec_table *table, enum spec_part part,
                         const void *from);
/* A schedule with all its points. NULL: no memory. */
json_t *schedule_json(const struct schedule *schedule);

/* Checks the whole object, and removes members from the object; the tensors must be sorted by name. `spec`
 * must be initialized, and the caller releases it whatever this returns: CAIRN_ERR_CORRUPT,
 * CAIRN_ERR_NO_MEMORY. */
cairn_status manifest_read_spec(json_t *json, struct job_spec_data *spec,
                                struct sentence *why) CAIRN_MUST_CHECK;

/* Reads a spec that a person wrote as text: it has the list of tensors, each with at least name and shape.
 * All other fields may be missing and then have their defaults: one group, adamw, for all trained tensors;
 * kind trained, f32 on the wire, a unit for each tensor. Any order. CAIRN_ERR_MALFORMED: `why` tells what
 * is wrong; `*out` is set only on success. */
cairn_status spec_of_json(const char *text, size_t text_bytes, struct job_spec_data *out,
                          struct sentence *why) CAIRN_MUST_CHECK;

/* ==== manifest seal ==== */

/* The last line of a manifest before its closing brace: a hash over all bytes before the line. It finds
 * every accidental change of the file; it is no signature. */

#define CAIRN_MANIFEST_SEAL_KEY   "blake2b_256"
#define CAIRN_MANIFEST_SEAL_BYTES (sizeof " \"" CAIRN_MANIFEST_SEAL_KEY "\": \"\"\n}\n" - 1 + 64)

/* Writes ` "blake2b_256": "<64 hex digits>"`, newline, brace, newline, NUL: the end of a file whose bytes
 * before that are `text`. */
void manifest_seal(const char *text, size_t text_bytes,
                   char seal_out[CAIRN_MANIFEST_SEAL_BYTES + 1]);

/* ==== minisig ==== */

/* Signatures in minisign's format, pure: Ed25519 over BLAKE2b-512 of the signed bytes ("ED", prehashed), so
 * that `minisign -Vm FILE -P KEY` checks signatures made here, and this code checks signatures made by
 * minisign.
 *
 *   public key   untrusted comment: ...        signature   untrusted comment: ...
 *                base64("Ed" id key)                       base64("ED" id signature)
 *                                                          trusted comment: ...
 *   secret key   untrusted comment: ...                    base64(signature of the two)
 *                base64(... id key checksum)
 *
 * A secret key is written without a password, as `minisign -G -W` does. An untrusted comment is not signed,
 * and is not read here. Statuses: CAIRN_ERR_MALFORMED: the text is none of these formats;
 * CAIRN_ERR_CHECKSUM: the signature does not match. sodium_init must have been called. */

#define CAIRN_KEY_ID_BYTES   8
#define CAIRN_PREHASH_BYTES  64
#define CAIRN_KEY_NAME_BYTES 17   /* of an id as text: 16 upper-case hexadecimal digits, NUL */
#define CAIRN_KEY_LINE_BYTES 57   /* of a public key in base64: 56 characters, NUL */
#define CAIRN_KEY_TEXT_BYTES 512  /* of a key's file, with a NUL */
#define CAIRN_MINISIG_BYTES  1024 /* of a signature that is made here, with a NUL */
#define CAIRN_MINISIG_MAX    ((size_t)16 << 10) /* the largest that is read from others */

struct public_key {
    uint8_t id[CAIRN_KEY_ID_BYTES];
    uint8_t key[32];
};
struct secret_key {
    struct public_key public_key;
    uint8_t secret[64];
};
/* A signature as it is read: its form is checked, minisig_check checks the rest. */
struct minisig {
    uint8_t key_id[CAIRN_KEY_ID_BYTES];
    uint8_t signature[64];
    uint8_t global[64];  /* signs the signature and the trusted comment */
    const char *comment; /* the trusted one: borrowed from the text, not ended by a NUL */
    size_t comment_bytes;
};

/* ---- keys ---- */

void secret_key_make(struct secret_key *out);
/* "0123456789ABCDEF", as minisign prints it. */
void key_name(const uint8_t id[CAIRN_KEY_ID_BYTES], char out[CAIRN_KEY_NAME_BYTES]);
/* Writes the single line "RW...". */
void public_key_line(const struct public_key *key, char out[CAIRN_KEY_LINE_BYTES]);
/* Writes the file as minisign does: two lines. */
void public_key_text(const struct public_key *key, char out[CAIRN_KEY_TEXT_BYTES]);
/* Reads that file, or only the line. */
cairn_status public_key_parse(const char *text, struct public_key *out,
                              struct sentence *why) CAIRN_MUST_CHECK;
void secret_key_text(const struct secret_key *key, char out[CAIRN_KEY_TEXT_BYTES]);
/* CAIRN_ERR_MALFORMED also if the key has a password, or is damaged. */
cairn_status secret_key_parse(const char *text, struct secret_key *out,
                              struct sentence *why) CAIRN_MUST_CHECK;

/* ---- signatures ---- */

void minisig_prehash(const void *bytes, size_t byte_count, uint8_t out[CAIRN_PREHASH_BYTES]);
/* `comment` is the trusted comment: one line of at most 600 bytes (asserted). */
void minisig_sign(const struct secret_key *key, const uint8_t prehash[CAIRN_PREHASH_BYTES],
                  const char *comment, char out[CAIRN_MINISIG_BYTES]);
cairn_status minisig_parse(const char *text, size_t text_bytes, struct minisig *out,
                           struct sentence *why) CAIRN_MUST_CHECK;
/* Checks that `key` made this signature of `prehash`, and that the signature covers the trusted comment;
 * the key must have the id that the signature names. CAIRN_ERR_CHECKSUM: the signature does not match. */
cairn_status minisig_check(const struct minisig *signature, const struct public_key *key,
                           const uint8_t prehash[CAIRN_PREHASH_BYTES],
                           struct sentence *why) CAIRN_MUST_CHECK;

/* ==== manifest trust ==== */

/* Who wrote a manifest: checks manifest.json.minisig beside it, a signature (above) by the cluster
 * that wrote the snapshot, against the keys that are trusted here. Pure. */

#define CAIRN_MANIFEST_SIGNATURE_NAME CAIRN_MANIFEST_NAME ".minisig"
#define CAIRN_MANIFEST_VERSION_SIGNED \
    4 /* from this version on a manifest without a signature counts as unsigned */
#define CAIRN_KEYS_MAX 64

/* The trusted keys. */
struct key_ring {
    struct public_key keys[CAIRN_KEYS_MAX];
    size_t count;
};

enum trust {
    CAIRN_TRUST_SIGNED, /* by a key of the ring */
    CAIRN_TRUST_OLD,    /* not signed, and from a version before there were signatures */
    CAIRN_TRUST_UNSIGNED,
    CAIRN_TRUST_STRANGE, /* by a key that is not in the ring: the signature was not checked */
    /* the signature names a key of the ring but does not match, or its file is not valid */
    CAIRN_TRUST_BROKEN,
};
/* Checks the signature of a loaded manifest. `what` (may be NULL) tells the result:
 * "signed by key 0123456789ABCDEF". */
enum trust manifest_trust(const struct manifest *manifest, const struct key_ring *ring,
                          struct sentence *what);

/* Which manifests are accepted although no key of the ring has signed them. */
struct trust_waiver {
    bool is_unsigned, is_strange;
};
/* Tells whether the snapshot may be restored. CAIRN_ERR_REFUSED: its manifest is unsigned or strange, and
 * the waiver does not accept that; `why` names the option that would. CAIRN_ERR_CHECKSUM: the signature is
 * broken, which no waiver accepts. */
cairn_status manifest_accept(const struct manifest *manifest, const struct key_ring *ring,
                             struct trust_waiver waiver, struct sentence *why) CAIRN_MUST_CHECK;

/* Writes the trusted comment for a signature of the manifest. */
#define CAIRN_SIGNATURE_COMMENT_BYTES 600
void manifest_signature_comment(const struct manifest *manifest,
                                char out[CAIRN_SIGNATURE_COMMENT_BYTES]);

/* ==== files ==== */

/* A snapshot on storage: the names of its files, their contents, and the order in which they are written.
 *
 *   <root>/<job>/step-000000012000-g1/          step 12000 of generation 1; the second try to take
 *     model/shard-00001-model-00001-of-00002.safetensors            it ends in -2, and so on
 *     optim/shard-00001-model-00001-of-00002.safetensors
 *     blobs/shard-00001-model-00001-of-00002.safetensors            only if the job has blobs
 *     manifest.json                             written last: with it the snapshot exists
 *
 * Each folder is a sharded HuggingFace checkpoint, as PyTorch's distributed checkpoint calls it; PyTorch
 * reads the folders as they are. Its consolidation accepts numbers only, so bytes have a folder of their
 * own. Shards count from 1, and so do a shard's files in a folder.
 *
 * Layout of a file: the header of safetensors.h, then the tensors' bytes, little endian, row-major,
 * without holes. Keys: model/ has the fp32 master of a tensor under the tensor's name; optim/ has
 * the planes of the optimizer as state.<name>.exp_avg and state.<name>.exp_avg_sq; blobs/ has the
 * bytes of a blob, as U8, under its name. Every shard
 * stores what it owns, once: no padding, nothing twice. A file can hold one box of a tensor (the
 * key is the tensor's name), so the i-th box that a shard has of a tensor is stored in its i-th file. A
 * file whose header reaches 8 MiB accepts no further tensor: the boxes of the next tensor go to new files.
 * Tensors without elements are only in the manifest's spec. Scalars (step, loss scale, what the
 * schedule needs) are in the manifest.
 *
 * Calling sequence                                                     (io: snapshot_io.h)
 *   coordinator  snapshot_folder_make   a new folder, never an existing one           (io)
 *   each shard   snapshot_plan_make     its files, from the spec and what it owns
 *                snapshot_writer_put    each: temp name, write, fsync, rename, fsync  (writer)
 *   coordinator  manifest_add_blocks    from the shards' reports: path, size, XXH3-128 of each block
 *                manifest_commit        temp name, write, fsync, rename, fsync        (io)
 *   anyone       snapshot_list          only folders with a manifest                  (io)
 *                snapshot_open          manifest, sizes, headers, exact cover         (io)
 *                snapshot_read          any range of any plane, for any layout        (io)
 * A crash at any point leaves a folder without a manifest, which is never listed; the next try makes
 * its own folder. A failed write or fsync fails the snapshot: no file is ever synced twice.
 *
 * This part is pure: it plans, and does no input or output. */

#define CAIRN_SNAPSHOT_ID_BYTES     64 /* of an id, with its NUL */
#define CAIRN_SNAPSHOT_PATH_BYTES   80 /* of a file's path in the snapshot, with its NUL */
#define CAIRN_SNAPSHOT_KEY_BYTES    (CAIRN_NAME_MAX + 32)
#define CAIRN_SNAPSHOT_HEADER_BYTES ((size_t)8 << 20) /* a file with a header this large is full */
/* A block is the unit that has a checksum of its own: block b of a file is its bytes [b << 22, (b +
 * 1) << 22). */
#define CAIRN_SNAPSHOT_BLOCK_BYTES ((size_t)4 << 20)
#define CAIRN_SNAPSHOT_SUM_BYTES   16 /* XXH3-128, canonical (big-endian) form */
static inline uint64_t snapshot_block_count(uint64_t file_bytes)
{
    return file_bytes / CAIRN_SNAPSHOT_BLOCK_BYTES + (file_bytes % CAIRN_SNAPSHOT_BLOCK_BYTES != 0);
}

/* "step-000000012000-g1"; attempt 1 has no suffix, attempt 2 ends in "-2". */
void snapshot_id_make(uint64_t generation, uint64_t step, uint32_t attempt,
                      char id_out[CAIRN_SNAPSHOT_ID_BYTES]);
/* True if snapshot_id_make could have made `id`; so it has no '/' and no "..". */
bool snapshot_id_parse(const char *id, uint64_t *generation_out, uint64_t *step_out);
/* True if `path` is exactly a path as above: relative, with two parts, in one of our folders. */
bool snapshot_path_ok(const char *path);

/* The key of a plane: "fc1.weight", "state.fc1.weight.exp_avg". */
void snapshot_key(const char *name, uint32_t plane, char key_out[CAIRN_SNAPSHOT_KEY_BYTES]);

enum snapshot_folder {
    CAIRN_SNAPSHOT_MODEL,
    CAIRN_SNAPSHOT_OPTIM,
    CAIRN_SNAPSHOT_BLOBS,
    CAIRN_SNAPSHOT_FOLDERS /* how many; also means: none */
};
#define CAIRN_SNAPSHOT_FOLDER_CHARS 5 /* of every folder's name */
/* "model", "optim", "blobs". */
const char *snapshot_folder_name(enum snapshot_folder folder);
/* The folder with which a file's path begins; CAIRN_SNAPSHOT_FOLDERS: none of them. */
enum snapshot_folder snapshot_folder_of(const char *path);

/* Finds the tensor (index in the canonical spec) and the plane of a key in a folder; false if that plane is
 * not stored there. */
bool snapshot_key_find(const struct job_spec_data *spec, enum snapshot_folder folder,
                       const char *key, uint32_t *tensor_out, uint32_t *plane_out);

/* Elements [first_elem, first_elem + elem_count) of a tensor, row-major; they are whole rows. */
struct snapshot_range {
    uint32_t tensor; /* index in the canonical spec */
    uint64_t first_elem, elem_count;
};

struct snapshot_file {
    char path[CAIRN_SNAPSHOT_PATH_BYTES]; /* relative to the snapshot's folder */

    /* owned by the plan */
    struct safetensors_entry *entries; /* in file order; tensor, plane, first_elem are set */
    uint8_t *header;                   /* the file's first bytes */

    size_t entry_count, entry_capacity;
    size_t header_bytes;
    uint64_t file_bytes; /* header and data */
};

struct snapshot_plan {
    struct snapshot_file *files; /* owned; model/ first, then optim/, then blobs/ */
    size_t file_count, file_capacity;
};

/* Plans the files of shard `shard` (from 0), which owns `ranges`: sorted by tensor and first element,
 * disjoint, whole rows (asserted). Ranges that follow each other are joined and stored in one file, so one
 * call of snapshot_fill_fn, which fills the file, may request elements of several ranges. A shard that owns
 * nothing has no files. CAIRN_ERR_NO_MEMORY. */
cairn_status snapshot_plan_make(const struct job_spec_data *spec, uint32_t shard,
                                const struct snapshot_range *ranges, size_t range_count,
                                struct snapshot_plan *plan_out) CAIRN_MUST_CHECK;
void snapshot_plan_release(struct snapshot_plan *plan);

/* ==== snapshot index ==== */

/* In which file and at which byte every element of every plane of a snapshot is: the index is built from
 * the headers of the files, and can be used with any layout. Pure.
 *
 * The headers come from storage and are checked: every key must be a plane of the spec, every box a run of
 * elements inside the plane (shards write only such boxes), and, after all files were added, every plane
 * must be covered exactly once. */

/* A run of elements of one plane (f32), in one file. */
struct snapshot_piece {
    uint32_t tensor, plane;
    uint64_t first_elem, elem_count;
    size_t file;        /* index in the manifest's files */
    uint64_t file_byte; /* where the first element begins */
};

struct snapshot_index {
    /* owned; sorted by tensor, plane, first_elem once closed */
    struct snapshot_piece *pieces;
    size_t piece_count, piece_capacity;
};

/* Adds the contents of file number `file` of the manifest; `data_byte` is where the file's header ends.
 * CAIRN_ERR_CORRUPT names key and file; CAIRN_ERR_NO_MEMORY. */
cairn_status snapshot_index_add(struct snapshot_index *index, const struct manifest *manifest,
                                size_t file, const struct safetensors *header, uint64_t data_byte,
                                struct sentence *why) CAIRN_MUST_CHECK;
/* Sorts the pieces, and checks that every plane of every tensor is stored exactly once. CAIRN_ERR_CORRUPT
 * names the tensor, the plane and the elements that are missing or in two files. */
cairn_status snapshot_index_close(struct snapshot_index *index, const struct manifest *manifest,
                                  struct sentence *why) CAIRN_MUST_CHECK;
/* In a closed index: returns the piece with element `elem` of that plane; the pieces after it follow in
 * order. NULL if the plane is not stored or has no such element. */
const struct snapshot_piece *snapshot_index_find(const struct snapshot_index *index,
                                                 uint32_t tensor, uint32_t plane, uint64_t elem);
void snapshot_index_release(struct snapshot_index *index);

#endif
