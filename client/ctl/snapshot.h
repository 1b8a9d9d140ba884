#ifndef CAIRN_CLIENT_CTL_SNAPSHOT_H
#define CAIRN_CLIENT_CTL_SNAPSHOT_H

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/tensor.h"
#include "proto/snapshot/snapshot.h"
#include "proto/snapshot_io/snapshot_io.h"

/* ==== buffers ==== */

/* Finds the blobs of a snapshot that are tensors of a kind that the servers do not compute with:
 * integers, bools, float64, complex64. The Python client keeps such buffers of a model as their
 * bytes, and lists them in the blob CTL_BUFFERS_BLOB, in safetensors' words: {"<name>": {"dtype":
 * "I64", "shape": [..]}, ...}. Also has the kinds of numbers that an export writes, as each format
 * calls them. */

#define CTL_BUFFERS_BLOB "cairn.buffers"

struct ctl_number_type {
    const char *safetensors, *torch, *storage; /* "I64", "int64", "LongStorage" */
    uint32_t bytes;                            /* of one */
};
/* The entry for CAIRN_F32 or CAIRN_BF16. */
const struct ctl_number_type *ctl_number_type(cairn_dtype dtype);

/* A tensor's bytes as numbers. */
struct ctl_buffer {
    const struct ctl_number_type *type; /* NULL: it is not listed */
    struct shape shape;
};

/* ==== torch file ==== */

/* Files of torch, planned: a file of torch.save, which torch.load(weights_only=True) reads, with or without
 * mmap, and a folder of torch.distributed.checkpoint, which dcp.load(checkpoint_id=...) reads.
 *
 *   zip, stored, not compressed: checkpoint/data.pkl, byteorder, data/0, data/1, ..., version
 *   data.pkl   a pickle of protocol 2: {"model": {name: tensor}, "optimizer": {"state": {n: {"step",
 *              "exp_avg", "exp_avg_sq" | "momentum_buffer"}}, "param_groups": [{"lr", ..., "params": [n],
 *              "param_names": [name]}]}, "step": n}; a tensor is what _rebuild_tensor_v2 makes of a storage
 *   data/n     the elements, little endian, from a multiple of 64 bytes on
 *
 * Numbered are the parameters that are trained, group by group as cairn.from_torch names them, in a group in
 * the order in which the job's maker listed them (tensor_spec.order): the torch optimizer's, or the
 * model's. Aliases are what they are in torch: tensors of one storage.
 *
 *   folder     __0_0.distcp: an archive like that of each tensor, with data/0, and of each option of a group,
 *              one behind the other; .metadata: a pickle of torch's Metadata, by which a key is found, each
 *              tensor one chunk. Keys are those of get_state_dict: model.<name>, optim.state.<name>.exp_avg,
 *              optim.param_groups.<n>.lr, ...; an alias of all of a tensor is a key of the same archive
 *
 * Buffers that are kept as their bytes (above) are tensors of their kind in both.
 *
 * The plan is entries of the snapshot's writer: planes, and pieces of text between them. Sums of what is
 * written (the format has CRC-32) are filled into the text behind it, so memory is that of the text. */

#define CTL_TORCH_FILE_NAME       "checkpoint.pt"
#define CTL_TORCH_FOLDER_FILE     "__0_0.distcp"
#define CTL_TORCH_FOLDER_METADATA ".metadata"

struct ctl_torch_file; /* the text, and what is summed */

struct ctl_torch_wish {
    cairn_dtype dtype;   /* of the model's tensors */
    uint32_t step_plane; /* of an entry: torch's count of steps, one f32 */
    const struct ctl_buffer *buffers;
};

/* True: the entry is text, not a plane. */
bool ctl_torch_is_text(const struct safetensors_entry *entry);
/* Adds all entries to an empty file, whose path is set. The manifest must outlive the plan.
 * CAIRN_ERR_NO_MEMORY; CAIRN_ERR_NOT_FOUND: there is nothing to write. */
cairn_status ctl_torch_plan(const struct manifest *manifest, const struct ctl_torch_wish *wish,
                            struct snapshot_file *file,
                            struct ctl_torch_file **out) CAIRN_MUST_CHECK;
/* The same for a folder: plans its one file, and gives the bytes of .metadata, malloc'd. */
cairn_status ctl_torch_folder_plan(const struct manifest *manifest,
                                   const struct ctl_torch_wish *wish, struct snapshot_file *file,
                                   struct ctl_torch_file **out, char **metadata_out,
                                   size_t *metadata_bytes_out) CAIRN_MUST_CHECK;
/* Bytes [first, first + count) of the text. All planes before it were passed. */
void ctl_torch_text(const struct ctl_torch_file *t, uint64_t first, uint64_t count, void *to);
/* The next bytes of this entry, which is a plane: in order, each once. */
void ctl_torch_pass(struct ctl_torch_file *t, const struct safetensors_entry *entry,
                    const void *from, uint64_t bytes);
void ctl_torch_free(struct ctl_torch_file *t);

/* ==== place ==== */

/* Where a snapshot is that a command reads by itself: `JOB ID`, of which the coordinator is asked, or `--path
 * FOLDER`, for which there need be none. */

/* All functions: -1: go on; else the exit status, and what is wrong was said. */

/* The id of the job's newest snapshot that is not damaged. */
int ctl_snapshot_latest(struct ctl *ctl, const char *job, char id_out[CAIRN_SNAPSHOT_ID_BYTES]);
/* The folder of the job's snapshot of that id, or "latest". */
int ctl_place_ask(struct ctl *ctl, const char *job, const char *id,
                  char folder_out[static PATH_MAX]);
/* Finds the folder that the command line names, by its two arguments or by --path. Anything else is
 * a usage error. */
int ctl_place_find(struct ctl *ctl, char folder_out[static PATH_MAX]);

/* Says what was wrong with the folder, and returns the exit status. */
int ctl_place_fail(const char *folder, cairn_status status, const struct sentence *why);
/* Opens the snapshot (headers only); the caller closes it. If the folder cannot be seen from this
 * host, the sentence says so. */
int ctl_place_open(const char *folder, struct snapshot *snapshot_out);

/* ---- restore.c: whose signatures are judged ---- */
struct public_key;
struct key_ring;

/* ==== round ==== */

/* fp32 as bf16, rounded as the servers' kernels do it (tested): to nearest, ties to even; what is too large
 * is infinite; NaN stays one, and is always the same. Pure. */

static inline uint16_t ctl_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

static inline void ctl_round_bf16(const float *from, uint16_t *to, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] = ctl_bf16(from[i]);
}

/* ==== stats ==== */

/* Statistics of the elements of a plane, gathered piece by piece. Pure. */

/* A sum that knows what it has rounded off (Neumaier). */
struct ctl_sum {
    double sum, rest;
};
static inline double ctl_sum_of(const struct ctl_sum *s)
{
    return s->sum + s->rest;
}

/* All of the elements that are finite, but nonfinite. Zeroed: of none. */
struct ctl_stats {
    uint64_t finite, nonfinite; /* elements */
    float min, max;             /* where finite is above 0 */
    struct ctl_sum sum, squares;
};
void ctl_stats_add(struct ctl_stats *stats, const float *elems, size_t count);

/* How elements b differ from elements a of the same place. Zeroed: of none. */
struct ctl_difference {
    uint64_t elems;      /* whose bits differ */
    uint64_t first_elem; /* of them, where elems is above 0 */
    uint64_t unlike; /* of them, those of which one is not finite: in none of the figures below */
    double max;      /* of |b - a| */
    struct ctl_sum squares, squares_a; /* of b - a; of a, where both are finite */
};
void ctl_difference_add(struct ctl_difference *difference, uint64_t first_elem, const float *a,
                        const float *b, size_t count);

/* |b - a| / |a| in the L2 norm; infinite if a is 0 and b is not, 0 if they are the same. */
double ctl_difference_relative(const struct ctl_difference *difference);

/* ==== text ==== */

/* Words that the commands of snapshots share. */

/* "[512, 784]", into `out`, which is returned. */
#define CTL_SHAPE_BYTES (CAIRN_RANK_MAX * 22 + 3)
static inline const char *ctl_shape(const struct shape *shape, char out[static CTL_SHAPE_BYTES])
{
    size_t used = (size_t)snprintf(out, CTL_SHAPE_BYTES, "[");
    for (uint32_t d = 0; d < shape->rank && used < CTL_SHAPE_BYTES; d++)
        used += (size_t)snprintf(out + used, CTL_SHAPE_BYTES - used, "%s%" PRIu64,
                                 d > 0 ? ", " : "", shape->dim[d]);
    if (used < CTL_SHAPE_BYTES) snprintf(out + used, CTL_SHAPE_BYTES - used, "]");
    return out;
}

/* ==== export plan ==== */

/* Plans an export: which files it has, with which tensors. Pure.
 *
 *   hf    model.safetensors, or, where that would be too large,
 *         model-00001-of-00002.safetensors, ..., model.safetensors.index.json
 *         As transformers writes it: whole tensors, one after the other; __metadata__ has "format", and for
 *         each alias of a whole tensor its name, and that of the tensor, which is stored once (as
 *         safetensors.torch.save_model does).
 *   dcp   __0_0.distcp, .metadata: a folder of torch.distributed.checkpoint     torch file, above
 *   torch checkpoint.pt, as torch.save writes it                                the same
 *
 * Blobs, which are no numbers, are left out, but for buffers that are kept as their bytes (above);
 * so are the aliases of hf, and in dcp those of a part of a tensor. */

#define CTL_EXPORT_INDEX_NAME "model.safetensors.index.json"
#define CTL_EXPORT_PLANE_STEP 0 /* of an entry: torch's count of steps, one f32 */

struct ctl_export_wish {
    bool is_dcp, is_torch; /* neither: hf */
    const struct ctl_buffer *buffers;
    cairn_dtype dtype;       /* of the model's tensors: CAIRN_F32 or CAIRN_BF16 */
    uint64_t file_bytes_max; /* of tensors in a file, but for one that is larger by itself */
};

struct ctl_export_plan {
    struct snapshot_file *files; /* owned */
    size_t file_count, file_capacity;
    char *index; /* owned; what is to stand beside the files; NULL: nothing */
    const char *index_name;
    size_t index_bytes;
    struct ctl_torch_file *torch; /* owned; NULL of hf */
    uint64_t data_bytes;          /* of all tensors */
    size_t tensors;               /* of the model; and what is left out: */
    size_t blobs, aliases;
};

/* ==== made folder ==== */

/* A new folder with files that is there whole or not at all: all is written into DIR.tmp, which becomes DIR
 * at the end. Who is killed leaves DIR.tmp; the next one for DIR removes it. A lock on it, which dies with
 * its holder, tells what was left from what is being written.
 *
 * A folder on this host, or mounted here: no location of storage.h. */

struct ctl_made_folder {
    char path[PATH_MAX]; /* absolute; DIR */
    char temp[PATH_MAX]; /* DIR.tmp: write here */
    int fd;              /* owned; of temp, locked */
    bool cleaned;        /* what a killed one had left was there, and is removed */
};

/* CAIRN_ERR_EXISTS: DIR is there. CAIRN_ERR_BUSY: another one writes it. CAIRN_ERR_REFUSED: DIR.tmp is
 * there, and has what an export does not write. CAIRN_ERR_IO, CAIRN_ERR_NO_SPACE. */
cairn_status ctl_made_folder_begin(const char *path, struct ctl_made_folder *out,
                                   struct sentence *why) CAIRN_MUST_CHECK;
/* `status` is that of the writing, whose files are durable: DIR is there, durably, or DIR.tmp is gone. Closes
 * it. */
cairn_status ctl_made_folder_end(struct ctl_made_folder *folder, cairn_status status,
                                 struct sentence *why) CAIRN_MUST_CHECK;

#endif
