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
 *             origin)
 *   "nonfinite"?: {"elems", "tensors": {name: elems, ...}}, results that are not finite (spec.h)
 *   "steps_missed"?: {name: n, ...},  trained tensors whose own count of updates is n below the step
 *   "reduce_groups"?: [[rank, ...], ...], of the step's round (spec.h)
 *   "files": [{"path", "bytes", "blocks": 32 hex digits for every 4 MiB of the file: XXH3-128, as
 *             `xxhsum -H2` prints it}, ...],
 *   "blake2b_256": 64 hex digits      of all bytes before this line (below)
 * }
 *
 * The spec is complete, so that the job can be made again from it; groups, tensors and files are
 * sorted bytewise. Numbers are exact: doubles have 17 digits. Keys with a question mark may be missing: then
 * there is no such thing, or it is at its default. A reader takes nothing else: an unknown, missing or
 * repeated key, a number out of range, a path that is not one of snapshot_file.h and a spec that
 * spec_check refuses are errors. A change of this table is a new version. Older ones are read as well:
 * 3, whose files have one "xxh3_128" over all of each instead of "blocks"; 2, without the hash of the
 * manifest, too; and 1, which has no keys with a question mark either. */
#ifndef CAIRN_SNAPSHOT_MANIFEST_H
#define CAIRN_SNAPSHOT_MANIFEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/spec/spec.h"
#include "proto/spec/spec_fields.h"

#define CAIRN_MANIFEST_NAME           "manifest.json"
#define CAIRN_MANIFEST_VERSION        4
#define CAIRN_MANIFEST_VERSION_MIN    1 /* that is read */
#define CAIRN_MANIFEST_VERSION_SEALED 3 /* from here on it has the hash over itself */
#define CAIRN_MANIFEST_BYTES_MAX      ((size_t)512 << 20)
#define CAIRN_MANIFEST_FILES_MAX      1000000
#define CAIRN_MANIFEST_PAYLOAD_MAX    ((size_t)1 << 20)

struct manifest_file {
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
struct origin {
    uint64_t generation;
    struct cairn_version from;
};
/* May a version older than the origin's generation stand before it in the life of the job? */
static inline bool origin_follows(const struct origin *origin, struct cairn_version version)
{
    return version.generation >= origin->generation || version_compare(version, origin->from) <= 0;
}

struct manifest {
    /* owned: freed by manifest_release */
    char *cluster;    /* a name for people; NULL is written as "" */
    uint8_t *payload; /* [payload_bytes] */
    /* [spec.tensor_count] by index in the spec as it is encoded; NULL: no tensor has missed any */
    uint64_t *steps_missed;
    char *signature;             /* as it was loaded (below); NULL: there is none */
    struct manifest_file *files; /* [file_count], sorted by path once decoded */
    struct job_spec_data spec;   /* canonical */
    /* of the round that made the step; none: there were none, or they are not known */
    struct rank_groups reduce_groups;

    size_t payload_bytes, signature_bytes;
    size_t file_count, file_capacity;
    uint64_t generation, step, epoch;
    uint64_t periodic; /* of which job, as the coordinator numbers it; 0: somebody asked for it */
    uint64_t created_unix_s; /* for people: no machine goes by the wall clock to find the newest */
    struct origin origin;
    struct results nonfinite; /* of the version, by index in the spec as it is encoded */
    uint32_t shard_count;
    double loss_scale;
    uint8_t content_root[32];
    uint8_t prehash[64]; /* of the text that was decoded: what a signature is over (below) */
    uint32_t version;    /* that was decoded */
    bool unsealed; /* decoded of a version without the hash: nothing tells whether it was changed */
};

/* All zero, the spec as after spec_init. */
void manifest_init(struct manifest *m);
void manifest_release(struct manifest *m);
/* Copies in. CAIRN_ERR_INVALID over the limit, CAIRN_ERR_NO_MEMORY. */
cairn_status manifest_set_payload(struct manifest *m, const uint8_t *payload,
                                  size_t payload_bytes) CAIRN_MUST_CHECK;
/* Checksums of blocks [first_block, first_block + count) of a file: 0 appends a file, more go on with the one
 * of that path, in order. All comes from a shard and is judged. CAIRN_ERR_INVALID, CAIRN_ERR_NO_MEMORY. */
cairn_status manifest_add_blocks(struct manifest *m, const char *path, uint64_t bytes,
                                 uint64_t first_block, const uint8_t *sums,
                                 uint64_t count) CAIRN_MUST_CHECK;
/* Appends a file with all of its blocks, or, is_whole, one checksum over all of it. The same. */
cairn_status manifest_add_file(struct manifest *m, const char *path, uint64_t bytes,
                               const uint8_t *sums, bool is_whole) CAIRN_MUST_CHECK;

/* Sorts files, groups and tensors, and writes the JSON; the spec has passed spec_check. The
 * text is malloc'd, the caller's, ended by a newline and a NUL that is not counted.
 * CAIRN_ERR_INVALID: a value that a reader would refuse (two files of one path, a file without all of its
 * checksums, a text that is not UTF-8, a number over 2^63 or not finite); CAIRN_ERR_NO_MEMORY. */
cairn_status manifest_encode(struct manifest *m, char **text_out, size_t *text_bytes_out,
                             struct sentence *why) CAIRN_MUST_CHECK;
/* Judges all of it; `*out` is set only on success. CAIRN_ERR_CORRUPT; CAIRN_ERR_VERSION: written by
 * another version of Cairn; CAIRN_ERR_NO_MEMORY. */
cairn_status manifest_decode(const char *text, size_t text_bytes, struct manifest *out,
                             struct sentence *why) CAIRN_MUST_CHECK;

/* ==== manifest spec ==== */

/* The spec of a job as JSON, as it stands in a manifest (above). Pure. */

/* Adds the scalars of a part to the object: of LATER and POLICY those that have not their default. Takes the
 * object; NULL: no memory, or it was NULL. */
json_t *spec_fields_json(json_t *object, const struct spec_table *table, enum spec_part part,
                         const void *from);
/* Takes all of the table's scalars out of the object; what is missing stays as it is in `to`. The kinds are
 * judged, and that a number fits, not what spec_check.c judges. CAIRN_ERR_CORRUPT says what is wrong
 * `where`. */
cairn_status spec_fields_of_json(json_t *object, const struct spec_table *table, const char *where,
                                 void *to, struct sentence *why) CAIRN_MUST_CHECK;
/* All of a schedule, its points, too. NULL: no memory. */
json_t *schedule_json(const struct schedule *schedule);

/* Judges all of it, and takes members out of the object; the tensors must be sorted by name. `spec` is
 * init'ed, and released by the caller, whatever comes back: CAIRN_ERR_CORRUPT, CAIRN_ERR_NO_MEMORY. */
cairn_status manifest_read_spec(json_t *json, struct job_spec_data *spec,
                                struct sentence *why) CAIRN_MUST_CHECK;

/* The same of what a person wrote: text with the list of tensors, of which each has at least name and
 * shape. Whatever else is missing is at its default: one group, adamw, of all that are trained; kind
 * trained, f32 on the wire, a unit each. Any order. CAIRN_ERR_MALFORMED says what is wrong; `*out` is set
 * on success only. */
cairn_status spec_of_json(const char *text, size_t text_bytes, struct job_spec_data *out,
                          struct sentence *why) CAIRN_MUST_CHECK;

/* ==== manifest seal ==== */

/* The last line of a manifest, but for the brace that closes it: a hash over all bytes before it. Found by it
 * is whatever changed the file without meaning to; it is no signature. */

#define CAIRN_MANIFEST_SEAL_KEY   "blake2b_256"
#define CAIRN_MANIFEST_SEAL_BYTES (sizeof " \"" CAIRN_MANIFEST_SEAL_KEY "\": \"\"\n}\n" - 1 + 64)

/* ` "blake2b_256": "<64 hex digits>"`, newline, brace, newline, NUL: what ends a file of which `text` are the
 * bytes before. */
void manifest_seal(const char *text, size_t text_bytes,
                   char seal_out[CAIRN_MANIFEST_SEAL_BYTES + 1]);

/* ==== minisig ==== */

/* Signatures in minisign's format, pure: Ed25519 over BLAKE2b-512 of what is signed ("ED", prehashed), so
 * that `minisign -Vm FILE -P KEY` checks what is signed here, and the other way round.
 *
 *   public key   untrusted comment: ...        signature   untrusted comment: ...
 *                base64("Ed" id key)                       base64("ED" id signature)
 *                                                          trusted comment: ...
 *   secret key   untrusted comment: ...                    base64(signature of the two)
 *                base64(... id key checksum)
 *
 * A secret key is written without a password, as `minisign -G -W` does. An untrusted comment is signed by
 * nobody and read by nobody here. Statuses: CAIRN_ERR_MALFORMED: the text is not one of these;
 * CAIRN_ERR_CHECKSUM: the signature does not fit. sodium_init has been called. */

#define CAIRN_KEY_ID_BYTES   8
#define CAIRN_PREHASH_BYTES  64
#define CAIRN_KEY_NAME_BYTES 17   /* of an id as text: 16 upper-case hexadecimal digits, NUL */
#define CAIRN_KEY_LINE_BYTES 57   /* of a public key in base64: 56 characters, NUL */
#define CAIRN_KEY_TEXT_BYTES 512  /* of a key's file, with a NUL */
#define CAIRN_MINISIG_BYTES  1024 /* of a signature that is made here, with a NUL */
#define CAIRN_MINISIG_MAX    ((size_t)16 << 10) /* of a stranger's that is looked at */

struct public_key {
    uint8_t id[CAIRN_KEY_ID_BYTES];
    uint8_t key[32];
};
struct secret_key {
    struct public_key public_key;
    uint8_t secret[64];
};
/* As it is read: judged in form, checked by minisig_check. */
struct minisig {
    uint8_t key_id[CAIRN_KEY_ID_BYTES];
    uint8_t signature[64];
    uint8_t global[64];  /* of the signature and the trusted comment */
    const char *comment; /* the trusted one: borrowed from the text, not ended by a NUL */
    size_t comment_bytes;
};

/* ---- keys ---- */

void secret_key_make(struct secret_key *out);
/* "0123456789ABCDEF", as minisign prints it. */
void key_name(const uint8_t id[CAIRN_KEY_ID_BYTES], char out[CAIRN_KEY_NAME_BYTES]);
/* The one line "RW...". */
void public_key_line(const struct public_key *key, char out[CAIRN_KEY_LINE_BYTES]);
/* The file that minisign writes: two lines. */
void public_key_text(const struct public_key *key, char out[CAIRN_KEY_TEXT_BYTES]);
/* Reads that file, or the one line alone. */
cairn_status public_key_parse(const char *text, struct public_key *out,
                              struct sentence *why) CAIRN_MUST_CHECK;
void secret_key_text(const struct secret_key *key, char out[CAIRN_KEY_TEXT_BYTES]);
/* CAIRN_ERR_MALFORMED: also of one that has a password, or that is damaged. */
cairn_status secret_key_parse(const char *text, struct secret_key *out,
                              struct sentence *why) CAIRN_MUST_CHECK;

/* ---- signatures ---- */

void minisig_prehash(const void *bytes, size_t byte_count, uint8_t out[CAIRN_PREHASH_BYTES]);
/* `comment`, the trusted one, is one line of at most 600 bytes (asserted). */
void minisig_sign(const struct secret_key *key, const uint8_t prehash[CAIRN_PREHASH_BYTES],
                  const char *comment, char out[CAIRN_MINISIG_BYTES]);
cairn_status minisig_parse(const char *text, size_t text_bytes, struct minisig *out,
                           struct sentence *why) CAIRN_MUST_CHECK;
/* Checks that `key` made this signature of `prehash`, and that it covers the trusted comment.
 * CAIRN_ERR_CHECKSUM: it did not. The key must have the id that the signature names. */
cairn_status minisig_check(const struct minisig *signature, const struct public_key *key,
                           const uint8_t prehash[CAIRN_PREHASH_BYTES],
                           struct sentence *why) CAIRN_MUST_CHECK;

/* ==== manifest trust ==== */

/* Whose word a manifest is: manifest.json.minisig beside it, a signature (above) of the cluster
 * that wrote the snapshot, against the keys that are trusted here. Pure. */

#define CAIRN_MANIFEST_SIGNATURE_NAME CAIRN_MANIFEST_NAME ".minisig"
#define CAIRN_MANIFEST_VERSION_SIGNED \
    4 /* from here on a manifest is signed, or was made unsigned */
#define CAIRN_KEYS_MAX 64

/* The keys that are trusted. */
struct key_ring {
    struct public_key keys[CAIRN_KEYS_MAX];
    size_t count;
};

enum trust {
    CAIRN_TRUST_SIGNED, /* by a key of the ring */
    CAIRN_TRUST_OLD,    /* not signed, and of a version that knew no signatures */
    CAIRN_TRUST_UNSIGNED,
    CAIRN_TRUST_STRANGE, /* by a key that is not in the ring: nothing is known of it */
    CAIRN_TRUST_BROKEN,  /* it names a key of the ring, and is not its signature of this; or none */
};
/* Judges the signature of a manifest that was loaded. `what` (may be NULL) tells the result:
 * "signed by key 0123456789ABCDEF". */
enum trust manifest_trust(const struct manifest *manifest, const struct key_ring *ring,
                          struct sentence *what);

/* The manifests that are accepted although no key of the ring has signed them. */
struct trust_waiver {
    bool is_unsigned, is_strange;
};
/* May the snapshot be restored? CAIRN_ERR_REFUSED: its manifest is unsigned or strange, and that is
 * not waived; the sentence says which option would waive it. CAIRN_ERR_CHECKSUM: the signature is
 * broken, which nothing waives. */
cairn_status manifest_accept(const struct manifest *manifest, const struct key_ring *ring,
                             struct trust_waiver waiver, struct sentence *why) CAIRN_MUST_CHECK;

/* The trusted comment for a signature of the manifest. */
#define CAIRN_SIGNATURE_COMMENT_BYTES 600
void manifest_signature_comment(const struct manifest *manifest,
                                char out[CAIRN_SIGNATURE_COMMENT_BYTES]);

#endif
