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

/* Finds the blobs of a snapshot that hold tensors of a type that the servers do not compute with: integers,
 * bools, float64, complex64. The Python client stores such buffers of a model as raw bytes, and lists them
 * in the blob "cairn.buffers" in the syntax of safetensors: {"<name>": {"dtype": "I64", "shape": [..]},
 * ...}. This section also declares the number types that an export writes, with the name of each type in
 * each format. */

struct ctl_number_type {
    const char *safetensors, *torch, *storage; /* "I64", "int64", "LongStorage" */
    uint32_t bytes;                            /* the bytes of one element */
};
/* Returns the entry for CAIRN_F32 or CAIRN_BF16. */
const struct ctl_number_type *ctl_number_type(cairn_dtype dtype);

/* Describes the tensor that a blob's bytes represent. */
struct ctl_buffer {
    const struct ctl_number_type *type; /* NULL: the buffer is not listed */
    struct shape shape;
};

/* ==== torch file ==== */

/* Plans files in torch's formats: a file of torch.save, which torch.load(weights_only=True) reads, with or
 * without mmap, and a folder of torch.distributed.checkpoint, which dcp.load(checkpoint_id=...) reads.
 *
 *   zip, stored, not compressed: checkpoint/data.pkl, byteorder, data/0, data/1, ..., version
 *   data.pkl   a pickle of protocol 2: {"model": {name: tensor}, "optimizer": {"state": {n: {"step",
 *              "exp_avg", "exp_avg_sq" | "momentum_buffer"}}, "param_groups": [{"lr", ..., "params": [n],
 *              "param_names": [name]}]}, "step": n}; _rebuild_tensor_v2 makes each tensor from a storage
 *   data/n     the elements, little endian, from a multiple of 64 bytes on
 *
 * The trained parameters are numbered group by group, as cairn.from_torch names the groups; within a group
 * they are numbered in the order in which the job's creator listed them (tensor_spec.order), which is the
 * torch optimizer's order or the model's. Aliases are, as in torch, tensors that share one storage.
 *
 *   folder     __0_0.distcp: one such archive (with data/0) for each tensor and for each option of a group,
 *              one after the other; .metadata: a pickle of torch's Metadata, which maps keys to archives,
 *              each tensor one chunk. The keys are those of get_state_dict: model.<name>,
 *              optim.state.<name>.exp_avg, optim.param_groups.<n>.lr, ...; an alias of a complete tensor
 *              is a key of the same archive
 *
 * In both formats, buffers that are stored as raw bytes (above) become tensors of their own type.
 *
 * The plan consists of entries for the snapshot's writer: planes, and pieces of text between them. CRC-32
 * sums of the written data are filled into the text that follows it, so only the text uses memory. */

#define CTL_TORCH_FOLDER_FILE "__0_0.distcp"

/* Returns the plane that an export writes as the tensor: the average, if that is wanted and kept, else the
 * parameters. */
uint32_t ctl_model_plane(const struct job_spec_data *spec, size_t tensor, bool is_average);

struct ctl_torch_file; /* the text, and the checksum state */

struct ctl_torch_wish {
    cairn_dtype dtype;   /* the dtype of the model's tensors */
    uint32_t step_plane; /* the plane number of the entries that hold torch's step count, one f32 */
    bool is_average;     /* the model's tensors are their averages, where there are some */
    const struct ctl_buffer *buffers;
};

/* True if the entry is text, not a plane. */
bool ctl_torch_is_text(const struct safetensors_entry *entry);
/* Adds all entries to an empty file, whose path is set. The manifest must outlive the plan.
 * CAIRN_ERR_NO_MEMORY; CAIRN_ERR_NOT_FOUND: there is nothing to write. */
cairn_status ctl_torch_plan(const struct manifest *manifest, const struct ctl_torch_wish *wish,
                            struct snapshot_file *file,
                            struct ctl_torch_file **out) CAIRN_MUST_CHECK;
/* Like ctl_torch_plan, for a folder: plans the folder's one file, and returns the bytes of .metadata,
 * malloc'd. */
cairn_status ctl_torch_folder_plan(const struct manifest *manifest,
                                   const struct ctl_torch_wish *wish, struct snapshot_file *file,
                                   struct ctl_torch_file **out, char **metadata_out,
                                   size_t *metadata_bytes_out) CAIRN_MUST_CHECK;
/* Copies bytes [first, first + count) of the text to `to`. All planes before these bytes must have been
 * passed to ctl_torch_pass. */
void ctl_torch_text(const struct ctl_torch_file *t, uint64_t first, uint64_t count, void *to);
/* Passes the next bytes of this entry, which is a plane. Every byte is passed once, in order. */
void ctl_torch_pass(struct ctl_torch_file *t, const struct safetensors_entry *entry,
                    const void *from, uint64_t bytes);
void ctl_torch_free(struct ctl_torch_file *t);

/* ==== place ==== */

/* Locates a snapshot that a command reads directly: `JOB ID`, for which the command asks the
 * coordinator, or `--path FOLDER`, which needs no coordinator. */

/* Each function returns -1 to continue, or the exit status after printing the error. */

/* Finds the id of the job's newest snapshot that is not damaged. */
int ctl_snapshot_latest(struct ctl *ctl, const char *job, char id_out[CAIRN_SNAPSHOT_ID_BYTES]);
/* Finds the folder of the job's snapshot with that id, or of its newest snapshot if the id is "latest". */
int ctl_place_ask(struct ctl *ctl, const char *job, const char *id,
                  char folder_out[static PATH_MAX]);
/* Finds the folder that the command line names, by its two arguments or by --path. Every other command line
 * is a usage error. */
int ctl_place_find(struct ctl *ctl, char folder_out[static PATH_MAX]);

/* Reports an error about the folder, and returns the exit status. */
int ctl_place_fail(const char *folder, cairn_status status, const struct sentence *why);
/* Opens the snapshot (headers only); the caller closes it. If the folder cannot be seen from this
 * host, the sentence says so. */
int ctl_place_open(const char *folder, struct snapshot *snapshot_out);

/* ---- restore.c: the keys that signatures are checked against ---- */
struct public_key;
struct key_ring;

/* ==== round ==== */

/* Converts fp32 to bf16 with the rounding of the servers' kernels (tested): to nearest, ties to even; an
 * overflow becomes infinity; every NaN becomes the same NaN. Pure. */

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

/* A sum that tracks its rounding error (Neumaier). */
struct ctl_sum {
    double sum, rest;
};
static inline double ctl_sum_of(const struct ctl_sum *s)
{
    return s->sum + s->rest;
}

/* Statistics of the finite elements; `nonfinite` counts the elements that are not finite. Zeroed: no
 * elements. */
struct ctl_stats {
    uint64_t finite, nonfinite; /* elements */
    float min, max;             /* valid if finite is above 0 */
    struct ctl_sum sum, squares;
};
void ctl_stats_add(struct ctl_stats *stats, const float *elems, size_t count);

/* The differences between elements b and the elements a at the same positions. Zeroed: no elements. */
struct ctl_difference {
    uint64_t elems;      /* the number whose bits differ */
    uint64_t first_elem; /* the index of the first element that differs, if elems is above 0 */
    /* the number of differing elements where a or b is not finite; they are excluded from the figures
     * below */
    uint64_t unlike;
    double max; /* the maximum of |b - a| */
    /* `squares` is of b - a, `squares_a` of a; both count only positions where a and b are
     * finite */
    struct ctl_sum squares, squares_a;
};
void ctl_difference_add(struct ctl_difference *difference, uint64_t first_elem, const float *a,
                        const float *b, size_t count);

/* Returns |b - a| / |a| in the L2 norm; infinite if a is 0 and b is not; 0 if a and b are equal. */
double ctl_difference_relative(const struct ctl_difference *difference);

/* ==== made folder ==== */

/* Creates a folder of files atomically: all files are written into DIR.tmp, which is renamed to DIR at the
 * end. A killed command leaves DIR.tmp behind, and the next command that writes DIR removes it. A lock on
 * DIR.tmp, released when its holder dies, distinguishes a leftover from a folder that is being written.
 *
 * The folder is on this host or mounted here; it is not a location of storage.h. */

struct ctl_made_folder {
    char path[PATH_MAX]; /* absolute; DIR */
    char temp[PATH_MAX]; /* DIR.tmp: files are written here */
    int fd;              /* owned; the descriptor of temp, locked */
    bool cleaned;        /* files left by a killed command were found and removed */
};

/* CAIRN_ERR_EXISTS: DIR exists. CAIRN_ERR_BUSY: another process is writing DIR. CAIRN_ERR_REFUSED:
 * DIR.tmp exists, and has files that an export does not write. CAIRN_ERR_IO, CAIRN_ERR_NO_SPACE. */
cairn_status ctl_made_folder_begin(const char *path, struct ctl_made_folder *out,
                                   struct sentence *why) CAIRN_MUST_CHECK;
/* Ends the writing. `status` is the result of the writing, and the files are already durable. Afterwards
 * either DIR exists, durably, or DIR.tmp is removed. Closes the folder. */
cairn_status ctl_made_folder_end(struct ctl_made_folder *folder, cairn_status status,
                                 struct sentence *why) CAIRN_MUST_CHECK;

#endif
