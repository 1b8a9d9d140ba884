/* A snapshot on storage: what its files are called, what stands in them, in which order they come.
 *
 *   <root>/<job>/step-000000012000-g1/          step 12000 of generation 1; the second try to take
 *     model/shard-00001-model-00001-of-00002.safetensors            it ends in -2, and so on
 *     optim/shard-00001-model-00001-of-00002.safetensors
 *     blobs/shard-00001-model-00001-of-00002.safetensors            of a job that has blobs
 *     manifest.json                             written last: the snapshot exists when it does
 *
 * The folders are what PyTorch's distributed checkpoint calls a sharded HuggingFace checkpoint,
 * and are read by it as they are; its consolidation takes numbers only, so bytes have a folder of
 * their own. Shards count from 1, and so do a shard's files in a folder.
 *
 * Layout of a file: the header of safetensors.h, then the tensors' bytes, little endian, row-major,
 * without holes. Keys: model/ has the fp32 master of a tensor under the tensor's name; optim/ has
 * the planes of the optimizer as state.<name>.exp_avg and state.<name>.exp_avg_sq; blobs/ has the
 * bytes of a blob, as U8, under its name. Every shard
 * stores what it owns, once: no padding, nothing twice. A file can hold one box of a tensor (the
 * key is the tensor's name), so the i-th box that a shard has of a tensor goes to its i-th file. A
 * file whose header reaches 8 MiB takes no further tensor: the boxes of the next go to new files.
 * Tensors without elements stand in the manifest's spec alone. Scalars (step, loss scale, what the
 * schedule needs) are in the manifest (manifest.h).
 *
 * Calling sequence                                                     (io: snapshot_io.h)
 *   coordinator  snapshot_folder_make   a new folder, never one that was there        (io)
 *   each shard   snapshot_plan_make     its files, from the spec and what it owns
 *                snapshot_writer_put    each: temp name, write, fsync, rename, fsync  (writer)
 *   coordinator  manifest_add_blocks    what the shards report: path, size, XXH3-128 of each block
 *                manifest_commit        temp name, write, fsync, rename, fsync        (io)
 *   anyone       snapshot_list          only folders with a manifest                  (io)
 *                snapshot_open          manifest, sizes, headers, exact cover         (io)
 *                snapshot_read          any range of any plane, for any layout        (io)
 * A crash at any point leaves a folder without a manifest, which nobody lists; the next try makes
 * its own folder. A failed write or fsync fails the snapshot: no file is ever synced twice.
 *
 * This file is pure: it plans, it touches nothing. */
#ifndef CAIRN_SNAPSHOT_SNAPSHOT_FILE_H
#define CAIRN_SNAPSHOT_SNAPSHOT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/layout.h"
#include "proto/safetensors/safetensors.h"
#include "proto/snapshot/manifest.h"
#include "proto/spec/spec.h"

#define CAIRN_SNAPSHOT_ID_BYTES     64 /* of an id, with its NUL */
#define CAIRN_SNAPSHOT_PATH_BYTES   80 /* of a file's path in the snapshot, with its NUL */
#define CAIRN_SNAPSHOT_KEY_BYTES    (CAIRN_NAME_MAX + 32)
#define CAIRN_SNAPSHOT_HEADER_BYTES ((size_t)8 << 20) /* a file with so much header is full */
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
/* True if `id` is one that snapshot_id_make gives; so it has no '/', no "..". */
bool snapshot_id_parse(const char *id, uint64_t *generation_out, uint64_t *step_out);
/* True if `path` is exactly a name of the layout above: relative, two parts, ours. */
bool snapshot_path_ok(const char *path);

/* The key of a plane: "fc1.weight", "state.fc1.weight.exp_avg". */
void snapshot_key(const char *name, uint32_t plane, char key_out[CAIRN_SNAPSHOT_KEY_BYTES]);

enum snapshot_folder {
    CAIRN_SNAPSHOT_MODEL,
    CAIRN_SNAPSHOT_OPTIM,
    CAIRN_SNAPSHOT_BLOBS,
    CAIRN_SNAPSHOT_FOLDERS /* how many; also: none */
};
#define CAIRN_SNAPSHOT_FOLDER_CHARS 5 /* of every folder's name */
/* "model", "optim", "blobs". */
const char *snapshot_folder_name(enum snapshot_folder folder);
/* The folder that a path of a file begins with; CAIRN_SNAPSHOT_FOLDERS: none of them. */
enum snapshot_folder snapshot_folder_of(const char *path);

/* The tensor (index in the canonical spec) and plane of a key found in a folder; false if that plane is
 * not stored there. */
bool snapshot_key_find(const struct job_spec_data *spec, enum snapshot_folder folder,
                       const char *key, uint32_t *tensor_out, uint32_t *plane_out);

/* Elements [first_elem, first_elem + elem_count) of a tensor, row-major: whole rows. */
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

/* The files of shard `shard` (from 0) that owns `ranges`: sorted by tensor and first element,
 * disjoint, whole rows (asserted). Ranges that follow each other are one, in one file: what fills it
 * (snapshot_fill_fn) is asked across their edges. A shard that owns nothing has no files.
 * CAIRN_ERR_NO_MEMORY. */
cairn_status snapshot_plan_make(const struct job_spec_data *spec, uint32_t shard,
                                const struct snapshot_range *ranges, size_t range_count,
                                struct snapshot_plan *plan_out) CAIRN_MUST_CHECK;
void snapshot_plan_release(struct snapshot_plan *plan);

/* ==== snapshot index ==== */

/* Where every element of every plane of a snapshot stands: built from the headers of its files,
 * then asked by any layout. Pure.
 *
 * The headers come from storage and are judged: every key must be a plane of the spec, every box a
 * run of elements inside it (that is what shards write), and, once all files are in, every plane
 * must be covered exactly once. */

/* A run of elements of one plane (f32), in one file. */
struct snapshot_piece {
    uint32_t tensor, plane;
    uint64_t first_elem, elem_count;
    size_t file;        /* index in the manifest's files */
    uint64_t file_byte; /* where the first element stands */
};

struct snapshot_index {
    /* owned; sorted by tensor, plane, first_elem once closed */
    struct snapshot_piece *pieces;
    size_t piece_count, piece_capacity;
};

/* Adds what file number `file` of the manifest holds; `data_byte` is where its header ends.
 * CAIRN_ERR_CORRUPT names key and file; CAIRN_ERR_NO_MEMORY. */
cairn_status snapshot_index_add(struct snapshot_index *index, const struct manifest *manifest,
                                size_t file, const struct safetensors *header, uint64_t data_byte,
                                struct sentence *why) CAIRN_MUST_CHECK;
/* Sorts, and judges that every plane of every tensor is there exactly once. CAIRN_ERR_CORRUPT names
 * the tensor, the plane and the elements that are missing or in two files. */
cairn_status snapshot_index_close(struct snapshot_index *index, const struct manifest *manifest,
                                  struct sentence *why) CAIRN_MUST_CHECK;
/* In a closed index: the piece with element first_elem of that plane; the pieces after it follow in
 * order. NULL if the plane is not stored or has no such element. */
const struct snapshot_piece *snapshot_index_find(const struct snapshot_index *index,
                                                 uint32_t tensor, uint32_t plane, uint64_t elem);
void snapshot_index_release(struct snapshot_index *index);

#endif
