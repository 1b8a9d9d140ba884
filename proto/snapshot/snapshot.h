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

/* manifest.json is the file that makes a folder of files a snapshot. The functions here encode and decode
 * it, and are pure. snapshot_io.h commits it to storage, and loads it.
 *
 * {
 *   "format": "cairn snapshot", "version": 5,
 *   "cluster": text, "created": "2026-11-21T03:04:05Z",
 *   "generation": n, "step": n, "epoch": n, "shards": n,
 *   "loss_scale": x,                  the loss scale in force at the step
 *   "payload": hex,                   payload of the last decision: what the schedule and the optimizer
 *                                     need to continue, how many rounds were skipped (not in older
 *                                     snapshots), and the client state
 *   "content_root": 64 hex digits,    the same for any number of shards
 *   "spec": {
 *     "name", "revision", the scalars of spec_fields.h (the FIRST ones; all others as keys with a question
 *     mark; a choice by its name), "former"?: [64 hex digits, ...], "made"?: [[key, was, is], ...],
 *     "init_from"?, "init_prefix"?,
 *     "groups": [{"name", "optimizer", "lr", "beta1", "beta2", "eps", "weight_decay", "momentum",
 *                 "nesterov", "frozen"?, "schedule"?: {"kind": "constant" | "linear" | "cosine" |
 *                 "wsd" | "table" | "driven", "warmup_steps", "total_steps", "decay_steps",
 *                 "lr_min", "points": [[step, factor], ...]}}, ...],
 *     "tensors": [{"name", "unit", "group", "kind": "trained" | "frozen" | "buffer" | "blob",
 *                  "wire": "f32" | "bf16" | "u8", "reduce": "f32", "master": "f32" | "u8",
 *                  "shape": [n, ...], "whole", "frozen"?, "alias_of"?,
 *                  "alias_box"?: [[start, ...], [extent, ...]],
 *                  "init"?: {"kind", "a", "b", "seed"}, "order"?}, ...]
 *   },
 *   "owner"?: text,                   whose the job was (server/coordinator/tenants.h)
 *   "periodic"?: 16 hex digits,       id of the job that took the snapshot periodically
 *   "origin"?: {"generation", "from_generation", "from_step"},   where the job last went back (struct
 *                                     origin)
 *   "nonfinite"?: {"elems", "tensors": {name: elems, ...}}, results that are not finite (spec.h)
 *   "steps_missed"?: {name: n, ...},  trained tensors that have missed n steps each
 *   "reduce_groups"?: [[rank, ...], ...], the groups of the step's round (spec.h)
 *   "files": [{"path", "bytes", "blocks": 32 hex digits for every 4 MiB of the file: XXH3-128, as
 *             `xxhsum -H2` prints it}, ...],
 *   "blake2b_256": 64 hex digits      hash of all bytes before this line (below)
 * }
 *
 * The spec is complete, so that the job can be made again from it. Groups, tensors and files are sorted
 * bytewise. Numbers are exact, because doubles have 17 digits. A key with a question mark may be missing;
 * there is then no such thing, or it has its default. A reader accepts nothing else. It refuses a key that
 * is unknown, missing or repeated, a number that is out of range, a path that no snapshot has, and a spec
 * that spec_check refuses. Any change of this table needs a new version. Older versions are read, too.
 * Version 4 has no "owner". In version 3 each file has one "xxh3_128" over the whole file instead of
 * "blocks". Version 2 also lacks the hash of the manifest, and version 1 also has no keys with a question
 * mark. */

#define CAIRN_MANIFEST_NAME        "manifest.json"
#define CAIRN_MANIFEST_VERSION     5
#define CAIRN_MANIFEST_VERSION_MIN 1 /* the oldest version that is read */
/* the first version that has a hash of the manifest itself */
#define CAIRN_MANIFEST_VERSION_SEALED 3
#define CAIRN_MANIFEST_BYTES_MAX      ((size_t)512 << 20)
#define CAIRN_MANIFEST_FILES_MAX      1000000
#define CAIRN_MANIFEST_PAYLOAD_MAX    ((size_t)1 << 20)

struct manifest_file {
    char *path;     /* owned by the manifest; relative to the snapshot's folder */
    uint64_t bytes; /* bytes of the whole file */
    /* owned: [block_count][CAIRN_SNAPSHOT_SUM_BYTES]: a checksum for each block or, with is_whole, one
     * checksum for the whole file */
    uint8_t *sums;
    uint64_t block_count, block_capacity;
    bool is_whole; /* true: the file is from a manifest before version 4 */
};

struct manifest {
    /* owned: freed by manifest_release */
    char *cluster;    /* a name for people; NULL is written as "" */
    char *owner;      /* whose the job was (server/coordinator/tenants.h); NULL: not known */
    uint8_t *payload; /* [payload_bytes] */
    /* [spec.tensor_count], by index in the encoded spec: how many steps each tensor has missed; NULL: no
     * tensor has missed any step */
    uint64_t *steps_missed;
    char *signature; /* the signature as it was loaded (below); NULL: the manifest is not signed */
    struct manifest_file *files; /* [file_count], sorted by path in a decoded manifest */
    struct job_spec_data spec;   /* canonical */
    /* the groups of the round that made the step; empty: the round had no groups, or they are not known */
    struct rank_groups reduce_groups;

    size_t payload_bytes, signature_bytes;
    size_t file_count, file_capacity;
    uint64_t generation, step, epoch;
    /* id of the job that took the snapshot periodically; 0: somebody asked for the snapshot */
    uint64_t periodic;
    uint64_t created_unix_s; /* for people; no code uses this time to find the newest snapshot */
    struct origin origin;
    struct results nonfinite; /* results of the version; tensors by index in the encoded spec */
    uint32_t shard_count;
    double loss_scale;
    uint8_t content_root[32];
    uint8_t prehash[64]; /* hash of the decoded text; a signature signs this hash (below) */
    uint32_t version;    /* version of the decoded text */
    /* true: its version has no hash of the manifest itself, so changes cannot be detected */
    bool unsealed;
};

/* Initializes the manifest: everything is zero, except a loss scale of 1 and the spec, which is as
 * spec_init makes it. */
void manifest_init(struct manifest *m);
void manifest_release(struct manifest *m);
/* Copies the payload into the manifest. CAIRN_ERR_INVALID: the payload is too large.
 * CAIRN_ERR_NO_MEMORY. */
cairn_status manifest_set_payload(struct manifest *m, const uint8_t *payload,
                                  size_t payload_bytes) CAIRN_MUST_CHECK;
/* Adds the checksums of blocks [first_block, first_block + count) of a file. A call with first_block 0
 * appends the file. Later calls with the same path add the next blocks, in order. All values come from a
 * shard, and are checked. CAIRN_ERR_INVALID, CAIRN_ERR_NO_MEMORY. */
cairn_status manifest_add_blocks(struct manifest *m, const char *path, uint64_t bytes,
                                 uint64_t first_block, const uint8_t *sums,
                                 uint64_t count) CAIRN_MUST_CHECK;
/* Appends a file, with the checksums of all its blocks or (is_whole) one checksum of the whole file. Errors
 * are as for manifest_add_blocks. */
cairn_status manifest_add_file(struct manifest *m, const char *path, uint64_t bytes,
                               const uint8_t *sums, bool is_whole) CAIRN_MUST_CHECK;

/* Sorts files, groups and tensors, and writes the JSON. The spec must have passed spec_check. The text is
 * malloc'ed, and belongs to the caller. It ends with a newline, and a NUL that is not counted.
 * CAIRN_ERR_INVALID: a reader would refuse some value, for example the same path for two files, a file
 * without all of its checksums, or a number over 2^63 or not finite. CAIRN_ERR_NO_MEMORY. */
cairn_status manifest_encode(struct manifest *m, char **text_out, size_t *text_bytes_out,
                             struct sentence *why) CAIRN_MUST_CHECK;
/* Decodes and checks everything. `*out` is set only on success. CAIRN_ERR_CORRUPT. CAIRN_ERR_VERSION: the
 * manifest has a version that this Cairn does not read. CAIRN_ERR_NO_MEMORY. */
cairn_status manifest_decode(const char *text, size_t text_bytes, struct manifest *out,
                             struct sentence *why) CAIRN_MUST_CHECK;

/* ==== manifest spec ==== */

/* The spec of a job as JSON, as a manifest has it (above). Pure. */

/* Adds the scalars of `part` to the object, which the function takes over. For LATER and POLICY, only
 * scalars that do not have their default are added. Returns the object. NULL: no memory, or the object was
 * NULL. */
json_t *spec_fields_json(json_t *object, const struct spec_table *table, enum spec_part part,
                         const void *from);
/* Makes the JSON of a schedule, with all its points. NULL: no memory. */
json_t *schedule_json(const struct schedule *schedule);

/* Reads and checks a spec. Removes members from the object. The tensors must be sorted by name. `spec` must
 * be initialized, and the caller must release it even if the function fails. CAIRN_ERR_CORRUPT,
 * CAIRN_ERR_NO_MEMORY. */
cairn_status manifest_read_spec(json_t *json, struct job_spec_data *spec,
                                struct sentence *why) CAIRN_MUST_CHECK;

/* Reads a spec that a person wrote as text. It must have the list of tensors, in any order, each with at
 * least a name and a shape. Any other field may be missing, and then has its default: there is one group,
 * adamw, for all trained tensors; each tensor is trained, is f32 on the wire, and is a unit of its own.
 * `*out` is set only on success. CAIRN_ERR_MALFORMED: `why` tells what is wrong. */
cairn_status spec_of_json(const char *text, size_t text_bytes, struct job_spec_data *out,
                          struct sentence *why) CAIRN_MUST_CHECK;

/* ==== manifest seal ==== */

/* The seal is the last line of a manifest before its closing brace. It is a hash of all bytes before the
 * line, and finds every accidental change of the file. It is no signature. */

#define CAIRN_MANIFEST_SEAL_KEY   "blake2b_256"
#define CAIRN_MANIFEST_SEAL_BYTES (sizeof " \"" CAIRN_MANIFEST_SEAL_KEY "\": \"\"\n}\n" - 1 + 64)

/* Writes the end of a file whose other bytes are `text`: ` "blake2b_256": "<64 hex digits>"`, newline,
 * brace, newline, NUL. */
void manifest_seal(const char *text, size_t text_bytes,
                   char seal_out[CAIRN_MANIFEST_SEAL_BYTES + 1]);

/* ==== minisig ==== */

/* Signatures in minisign's format. A signature is Ed25519 over the BLAKE2b-512 of the signed bytes ("ED",
 * prehashed). `minisign -Vm FILE -P KEY` can check signatures that are made here, and this code can check
 * signatures that minisign made. The functions are pure.
 *
 *   public key   untrusted comment: ...        signature   untrusted comment: ...
 *                base64("Ed" id key)                       base64("ED" id signature)
 *                                                          trusted comment: ...
 *   secret key   untrusted comment: ...                    base64(signature of the two)
 *                base64(... id key checksum)
 *
 * A secret key is written without a password, as `minisign -G -W` does. An untrusted comment is not signed,
 * and is not read here. CAIRN_ERR_MALFORMED: the text has none of these formats. CAIRN_ERR_CHECKSUM: the
 * signature does not match. sodium_init must be called before. */

#define CAIRN_KEY_ID_BYTES   8
#define CAIRN_PREHASH_BYTES  64
#define CAIRN_KEY_NAME_BYTES 17   /* an id as text: 16 upper-case hexadecimal digits, and a NUL */
#define CAIRN_KEY_LINE_BYTES 57   /* a public key in base64: 56 characters, and a NUL */
#define CAIRN_KEY_TEXT_BYTES 512  /* the text of a key's file, with a NUL */
#define CAIRN_MINISIG_BYTES  1024 /* a signature that is made here, with a NUL */
#define CAIRN_MINISIG_MAX    ((size_t)16 << 10) /* the largest signature that is read */

struct public_key {
    uint8_t id[CAIRN_KEY_ID_BYTES];
    uint8_t key[32];
};
struct secret_key {
    struct public_key public_key;
    uint8_t secret[64];
};
/* A signature as minisig_parse reads it. Only its form is checked; minisig_check checks the rest. */
struct minisig {
    uint8_t key_id[CAIRN_KEY_ID_BYTES];
    uint8_t signature[64];
    uint8_t global[64];  /* signature of `signature` and the trusted comment */
    const char *comment; /* the trusted comment: borrowed from the text, without a NUL at its end */
    size_t comment_bytes;
};

/* ---- keys ---- */

void secret_key_make(struct secret_key *out);
/* Writes the id of a key as minisign prints it, such as "0123456789ABCDEF". */
void key_name(const uint8_t id[CAIRN_KEY_ID_BYTES], char out[CAIRN_KEY_NAME_BYTES]);
/* Writes the single line "RW...". */
void public_key_line(const struct public_key *key, char out[CAIRN_KEY_LINE_BYTES]);
/* Writes the text of the key's file, in two lines, as minisign does. */
void public_key_text(const struct public_key *key, char out[CAIRN_KEY_TEXT_BYTES]);
/* Reads the text of such a file, or only the line. */
cairn_status public_key_parse(const char *text, struct public_key *out,
                              struct sentence *why) CAIRN_MUST_CHECK;
void secret_key_text(const struct secret_key *key, char out[CAIRN_KEY_TEXT_BYTES]);
/* Reads the text of a secret key's file. CAIRN_ERR_MALFORMED: also if the key has a password, or is
 * damaged. */
cairn_status secret_key_parse(const char *text, struct secret_key *out,
                              struct sentence *why) CAIRN_MUST_CHECK;

/* ---- signatures ---- */

void minisig_prehash(const void *bytes, size_t byte_count, uint8_t out[CAIRN_PREHASH_BYTES]);
/* `comment` is the trusted comment, which must be one line of at most 600 bytes (asserted). */
void minisig_sign(const struct secret_key *key, const uint8_t prehash[CAIRN_PREHASH_BYTES],
                  const char *comment, char out[CAIRN_MINISIG_BYTES]);
cairn_status minisig_parse(const char *text, size_t text_bytes, struct minisig *out,
                           struct sentence *why) CAIRN_MUST_CHECK;
/* Checks that `key` made this signature of `prehash`, and signed the trusted comment, too. The key must
 * have the id that the signature names. CAIRN_ERR_CHECKSUM: the signature does not match. */
cairn_status minisig_check(const struct minisig *signature, const struct public_key *key,
                           const uint8_t prehash[CAIRN_PREHASH_BYTES],
                           struct sentence *why) CAIRN_MUST_CHECK;

/* ==== manifest trust ==== */

/* Tells who wrote a manifest. The file manifest.json.minisig beside it is a signature (above) by the
 * cluster that wrote the snapshot. It is checked with the keys that are trusted here. The functions are
 * pure. */

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
    CAIRN_TRUST_SIGNED, /* signed by a key of the ring */
    CAIRN_TRUST_OLD,    /* not signed, and of a version before there were signatures */
    CAIRN_TRUST_UNSIGNED,
    /* signed by a key that is not in the ring, so the signature was not checked */
    CAIRN_TRUST_STRANGE,
    /* the signature names a key of the ring and does not match, or its file is not valid */
    CAIRN_TRUST_BROKEN,
};
/* Checks the signature of a loaded manifest. `what`, which may be NULL, tells the result, such as "signed
 * by key 0123456789ABCDEF". */
enum trust manifest_trust(const struct manifest *manifest, const struct key_ring *ring,
                          struct sentence *what);

/* Says which manifests are accepted although no key of the ring has signed them. */
struct trust_waiver {
    bool is_unsigned, is_strange;
};
/* Tells whether the snapshot may be restored. CAIRN_ERR_REFUSED: its manifest is unsigned or strange, and
 * the waiver does not accept this; `why` names the option that does. CAIRN_ERR_CHECKSUM: the signature is
 * broken, which no waiver accepts. */
cairn_status manifest_accept(const struct manifest *manifest, const struct key_ring *ring,
                             struct trust_waiver waiver, struct sentence *why) CAIRN_MUST_CHECK;

/* Writes the trusted comment for a signature of the manifest. */
#define CAIRN_SIGNATURE_COMMENT_BYTES 600
void manifest_signature_comment(const struct manifest *manifest,
                                char out[CAIRN_SIGNATURE_COMMENT_BYTES]);

/* ==== files ==== */

/* A snapshot on storage: the names and contents of its files, and the order in which they are written.
 *
 *   <root>/<job>/step-000000012000-g1/          step 12000 of generation 1
 *     model/shard-00001-model-00001-of-00002.safetensors
 *     optim/shard-00001-model-00001-of-00002.safetensors
 *     blobs/shard-00001-model-00001-of-00002.safetensors            only if the job has blobs
 *     manifest.json                             written last: with it the snapshot exists
 *
 * If a snapshot is tried again, its name ends in -2, at the next try in -3, and so on. Each folder is what
 * PyTorch's distributed checkpoint calls a sharded HuggingFace checkpoint, and PyTorch can read it as it
 * is. Blobs have a folder of their own, because PyTorch's consolidation accepts only numbers, and no bytes.
 * Shards are counted from 1, and so are the files of a shard in a folder.
 *
 * Layout of a file: the header of safetensors.h, then the tensors' bytes, little endian, row-major, without
 * holes. Keys: model/ has the fp32 master of a tensor under the tensor's name; optim/ has the planes of the
 * optimizer as state.<name>.exp_avg and state.<name>.exp_avg_sq; blobs/ has the bytes of a blob, as U8,
 * under its name. Every shard stores what it owns, without padding, and nothing twice. A file can hold only
 * one box of each tensor, because the tensor's name is the key. The i-th box that a shard has of a tensor
 * is therefore stored in the shard's i-th file. When the header of a file reaches 8 MiB, the boxes of the
 * next tensor go to new files. Tensors without elements are only in the spec of the manifest. Scalars (the
 * step, the loss scale, what the schedule needs) are in the manifest.
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
 * A crash at any point leaves a folder without a manifest, which is never listed, and the next try makes
 * another folder. If a write or fsync fails, the snapshot fails, because no file is synced a second time.
 *
 * This part is pure: it only plans. */

#define CAIRN_SNAPSHOT_ID_BYTES   64 /* bytes of an id, with its NUL */
#define CAIRN_SNAPSHOT_PATH_BYTES 80 /* bytes of a file's path in the snapshot, with its NUL */
#define CAIRN_SNAPSHOT_KEY_BYTES  (CAIRN_NAME_MAX + 32)
/* a file whose header is this large is full */
#define CAIRN_SNAPSHOT_HEADER_BYTES ((size_t)8 << 20)
/* Each block of a file has a checksum of its own. Block b is the bytes [b << 22, (b + 1) << 22). */
#define CAIRN_SNAPSHOT_BLOCK_BYTES ((size_t)4 << 20)
#define CAIRN_SNAPSHOT_SUM_BYTES   16 /* XXH3-128, in canonical (big-endian) form */
static inline uint64_t snapshot_block_count(uint64_t file_bytes)
{
    return file_bytes / CAIRN_SNAPSHOT_BLOCK_BYTES + (file_bytes % CAIRN_SNAPSHOT_BLOCK_BYTES != 0);
}

/* Writes an id, such as "step-000000012000-g1". For attempt 1 the id has no suffix; for attempt 2 it ends
 * in "-2". */
void snapshot_id_make(uint64_t generation, uint64_t step, uint32_t attempt,
                      char id_out[CAIRN_SNAPSHOT_ID_BYTES]);
/* Returns true if snapshot_id_make could have made `id`. Such an id has no '/' and no "..". */
bool snapshot_id_parse(const char *id, uint64_t *generation_out, uint64_t *step_out);
/* Returns true if `path` is exactly a path as above: relative, of two parts, in one of our folders. */
bool snapshot_path_ok(const char *path);

/* Writes the key of a plane, such as "fc1.weight" or "state.fc1.weight.exp_avg". */
void snapshot_key(const char *name, uint32_t plane, char key_out[CAIRN_SNAPSHOT_KEY_BYTES]);

enum snapshot_folder {
    CAIRN_SNAPSHOT_MODEL,
    CAIRN_SNAPSHOT_OPTIM,
    CAIRN_SNAPSHOT_BLOBS,
    CAIRN_SNAPSHOT_FOLDERS /* the number of folders; as a folder: none of them */
};
#define CAIRN_SNAPSHOT_FOLDER_CHARS 5 /* characters of every folder's name */
/* Returns "model", "optim" or "blobs". */
const char *snapshot_folder_name(enum snapshot_folder folder);
/* Returns the folder with which a file's path begins; CAIRN_SNAPSHOT_FOLDERS: none of ours. */
enum snapshot_folder snapshot_folder_of(const char *path);

/* Finds the tensor (by index in the canonical spec) and the plane of a key in a folder. Returns false if no
 * such plane is stored in the folder. */
bool snapshot_key_find(const struct job_spec_data *spec, enum snapshot_folder folder,
                       const char *key, uint32_t *tensor_out, uint32_t *plane_out);

/* Elements [first_elem, first_elem + elem_count) of a tensor, in row-major order. They must be whole
 * rows. */
struct snapshot_range {
    uint32_t tensor; /* index in the canonical spec */
    uint64_t first_elem, elem_count;
};

struct snapshot_file {
    char path[CAIRN_SNAPSHOT_PATH_BYTES]; /* relative to the snapshot's folder */

    /* owned by the plan */
    /* in the order of the file; tensor, plane and first_elem are set */
    struct safetensors_entry *entries;
    uint8_t *header; /* the header, which is at the beginning of the file */

    size_t entry_count, entry_capacity;
    size_t header_bytes;
    uint64_t file_bytes; /* bytes of header and data */
};

struct snapshot_plan {
    struct snapshot_file *files; /* owned; model/ first, then optim/, then blobs/ */
    size_t file_count, file_capacity;
};

/* Plans the files of a shard (`shard` counts from 0) that owns `ranges`. The ranges must be sorted by
 * tensor and first element, must not overlap (asserted), and must be whole rows. Ranges that follow each
 * other are joined, and stored in one file. One call of snapshot_fill_fn, which fills the file, may
 * therefore request elements of several ranges. A shard that owns nothing has no files.
 * CAIRN_ERR_NO_MEMORY. */
cairn_status snapshot_plan_make(const struct job_spec_data *spec, uint32_t shard,
                                const struct snapshot_range *ranges, size_t range_count,
                                struct snapshot_plan *plan_out) CAIRN_MUST_CHECK;
void snapshot_plan_release(struct snapshot_plan *plan);

/* ==== snapshot index ==== */

/* The index tells in which file, and at which byte, every element of every plane of a snapshot is. It is
 * built from the headers of the files, and can be used with any layout. The functions are pure.
 *
 * The headers come from storage, and are checked. Every key must name a plane of the spec, and every box
 * must be a run of elements inside the plane (shards write only such boxes). When all files have been
 * added, every plane must be covered exactly once. */

/* A run of elements of one plane, in one file. */
struct snapshot_piece {
    uint32_t tensor, plane;
    uint64_t first_elem, elem_count;
    size_t file;        /* index in the manifest's files */
    uint64_t file_byte; /* the byte of the file at which the first element begins */
};

struct snapshot_index {
    /* owned; in a closed index, sorted by tensor, plane, first_elem */
    struct snapshot_piece *pieces;
    size_t piece_count, piece_capacity;
};

/* Adds the contents of a file, which has the index `file` in the manifest. `data_byte` is where the file's
 * header ends. CAIRN_ERR_CORRUPT: `why` names the key and the file. CAIRN_ERR_NO_MEMORY. */
cairn_status snapshot_index_add(struct snapshot_index *index, const struct manifest *manifest,
                                size_t file, const struct safetensors *header, uint64_t data_byte,
                                struct sentence *why) CAIRN_MUST_CHECK;
/* Sorts the pieces, and checks that every plane of every tensor is stored exactly once. CAIRN_ERR_CORRUPT:
 * `why` names the tensor, the plane, and the elements that are missing or are in two files. */
cairn_status snapshot_index_close(struct snapshot_index *index, const struct manifest *manifest,
                                  struct sentence *why) CAIRN_MUST_CHECK;
/* Returns the piece that has element `elem` of the plane. The index must be closed, so the plane's next
 * elements are in the next pieces. NULL: the plane is not stored, or has no such element. */
const struct snapshot_piece *snapshot_index_find(const struct snapshot_index *index,
                                                 uint32_t tensor, uint32_t plane, uint64_t elem);
void snapshot_index_release(struct snapshot_index *index);

#endif
