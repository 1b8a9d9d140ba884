/* The header of a safetensors file, built and checked. Pure: bytes in, bytes out; snapshot_io.h
 * reads and writes the files.
 *
 *   file     8 bytes, little endian: N | N bytes of JSON, padded with spaces | the tensors' bytes
 *   JSON     {"__metadata__":{string:string}, "<key>":{"dtype","shape","data_offsets":[begin,end]}}
 *
 * Source: the rules of the safetensors crate's reader, and of PyTorch's distributed checkpoint
 * (HuggingFaceStorageWriter). This stores a part of a tensor as a tensor, and where the part begins
 * in __metadata__: DCP_SHARDING_INFO is a JSON text {"<key>":{"saved_offsets":[...]}} with every
 * key of the file; DCP_VERSION "1.0"; format "pt". So a file holds at most one box of a tensor.
 *
 * Files that we write: tensors by descending rank of their dtype, then by key; no holes; N such
 * that the tensors begin at a multiple of 8. Files that we read: all that the crate reads, except
 * that the JSON must begin at its first byte, no key may occur twice, and ranks are at most
 * 8. */
#ifndef CAIRN_SAFETENSORS_SAFETENSORS_H
#define CAIRN_SAFETENSORS_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/tensor.h"
#include "proto/spec/spec.h"

#define CAIRN_SAFETENSORS_HEADER_MAX 100000000 /* N of the format; ours stay near 8 MiB */

struct safetensors_entry {
    char *key; /* owned by the owner of the entry */
    /* "F32": static memory; parse sets it. build sets it if it is NULL; otherwise it is the dtype in the
     * file for numbers that the caller passes as bytes (CAIRN_U8) */
    const char *dtype_name;
    cairn_dtype dtype;    /* 0: a dtype that Cairn does not have (parse only) */
    struct cairn_box box; /* start: saved_offsets, all 0 if the file has none; extent: shape */
    uint64_t begin, end;  /* bytes, from the end of the header; set by parse and build */

    /* the caller's: not in the file; they move with their entry when build sorts */
    uint32_t tensor, plane;
    uint64_t first_elem; /* the box's first element, row-major in the whole tensor */
};

struct safetensors {
    struct safetensors_entry *entries; /* owned, in the order of the bytes */
    size_t entry_count;
    bool has_boxes; /* the file has DCP_SHARDING_INFO, and it is complete */
};

/* Sorts the entries into the file's order, sets begin and end, and writes the first 8 + N bytes of
 * the file. Keys must be unique, dtypes Cairn's, and sizes must not overflow (asserted: the caller planned
 * them). `*header_out` is malloc'ed, the caller's. CAIRN_ERR_NO_MEMORY. */
cairn_status safetensors_build(struct safetensors_entry *entries, size_t entry_count,
                               uint8_t **header_out, size_t *header_bytes_out,
                               uint64_t *data_bytes_out) CAIRN_MUST_CHECK;
/* The same for whole tensors, as writers other than PyTorch's distributed checkpoint do it: __metadata__
 * has "format", which is "pt", and the notes, whose keys are unique and not "format"; no boxes. */
struct safetensors_note {
    const char *key, *value; /* borrowed */
};
cairn_status safetensors_build_whole(struct safetensors_entry *entries, size_t entry_count,
                                     const struct safetensors_note *notes, size_t note_count,
                                     uint8_t **header_out, size_t *header_bytes_out,
                                     uint64_t *data_bytes_out) CAIRN_MUST_CHECK;
/* Returns an upper bound of what one entry adds to the header, to decide in time that a file is full. */
size_t safetensors_entry_bytes(const char *key, uint32_t rank);

/* Reads N from a file's first `have` bytes (8 are enough), and checks it against the file's size before
 * anyone allocates. CAIRN_ERR_MALFORMED. */
cairn_status safetensors_header_bytes(const uint8_t *prefix, size_t have, uint64_t file_bytes,
                                      uint64_t *json_bytes_out,
                                      struct sentence *why) CAIRN_MUST_CHECK;
/* Checks the N bytes of JSON of a file of that size. `*out` is set only on success; release it.
 * CAIRN_ERR_MALFORMED, CAIRN_ERR_UNSUPPORTED (rank over 8), CAIRN_ERR_NO_MEMORY. */
cairn_status safetensors_parse(const uint8_t *json, size_t json_bytes, uint64_t file_bytes,
                               struct safetensors *out, struct sentence *why) CAIRN_MUST_CHECK;
void safetensors_release(struct safetensors *s);

/* ==== safetensors folder ==== */

/* Weights that somebody else saved, as a source of initial state: one .safetensors file, or a folder as
 * Hugging Face lays it out, with
 *
 *   model.safetensors                  all weights; or, if that is missing,
 *   model.safetensors.index.json       {"weight_map": {"<key>": "<file in this folder>", ...}, ...}
 *
 * Nothing outside the allowed folders is ever opened: the kernel looks a path up beneath one of them
 * (openat2, RESOLVE_BENEATH), so neither ".." nor a symbolic link leads out; links that stay inside are
 * followed, as in a cache of the Hub. Files are checked by safetensors.h before a byte of a tensor is read.
 * Only headers and the requested ranges are read, and a file that is no longer the one that was checked
 * (inode, size, time) is refused. */

#define CAIRN_WEIGHTS_FILES_MAX   4096
#define CAIRN_WEIGHTS_INDEX_MAX   ((uint64_t)64 << 20)  /* bytes of an index */
#define CAIRN_WEIGHTS_HEADERS_MAX ((uint64_t)256 << 20) /* bytes of all headers */
#define CAIRN_WEIGHTS_NAMES_MAX   20                    /* tensors that an error names */

/* ---- the index: bytes in, a table out ---- */

struct safetensors_index {
    /* owned */
    char **files; /* [file_count], sorted: plain names in the same folder */
    struct safetensors_mapped {
        char *key;
        uint32_t file;
    } * entries; /* [entry_count], sorted by key */
    size_t file_count, entry_count;
};
/* CAIRN_ERR_MALFORMED: not JSON, no weight_map of strings, a file's name with a '/' or without
 * .safetensors; too many files. CAIRN_ERR_NO_MEMORY. */
cairn_status safetensors_index_parse(const char *text, size_t text_bytes,
                                     struct safetensors_index *out,
                                     struct sentence *why) CAIRN_MUST_CHECK;

/* ---- the weights ---- */

struct weights_file {
    char *path;                /* owned; beneath the allowed folder */
    struct safetensors header; /* owned */
    uint64_t data_at;          /* where the tensors begin */
    struct stat judged;
};

/* One tensor. All pointers are borrowed from its file. */
struct weight {
    const char *key;
    const struct safetensors_entry *entry;
    uint32_t file;
};

/* A source of weights other than such files. */
struct weights_source {
    /* As weights_read. */
    cairn_status (*read)(struct weights_source *source, const struct weight *weight,
                         uint64_t first_elem, uint64_t elem_count, float *out,
                         struct sentence *why);
    void (*close)(struct weights_source *source);
};

/* Only one thread at a time may read. */
struct weights {
    struct weights_source *source; /* owned; NULL: the weights are in the files */
    int root_fd;                   /* owned; of the allowed folder */
    int file_fd;                   /* owned; of the file read last, -1: none */
    uint32_t file;                 /* the number of that file */
    size_t file_count, weight_count;
    char *path;                 /* owned; as the caller gave it */
    struct weights_file *files; /* owned, [file_count] */
    struct weight *weights;     /* owned, [weight_count], sorted by key */
};

/* Opens `path`, which is absolute, a file or a folder beneath one of `roots`: absolute folders separated by
 * ':', "" for none. Reads headers only. CAIRN_ERR_REFUSED: not allowed; CAIRN_ERR_NOT_FOUND;
 * CAIRN_ERR_MALFORMED, _UNSUPPORTED; CAIRN_ERR_IO; CAIRN_ERR_NO_MEMORY. `why` names the file. */
cairn_status weights_open(const char *roots, const char *path, struct weights *out,
                          struct sentence *why) CAIRN_MUST_CHECK;
void weights_close(struct weights *weights);
/* If `path` is a folder beneath one of `roots` that has a file of that name, and no file that Hugging Face
 * writes, returns the folder's own path, malloc'ed, the caller's; otherwise *folder_out is NULL. Statuses
 * as weights_open. */
cairn_status weights_folder_with(const char *roots, const char *path, const char *file,
                                 char **folder_out, struct sentence *why) CAIRN_MUST_CHECK;
/* Lists the weights that `source` has, by the entries of `header`, which give no places in a file.
 * Takes over source and header, even on failure. CAIRN_ERR_NO_MEMORY. */
cairn_status weights_of(const char *path, struct weights_source *source, struct safetensors *header,
                        struct weights *out, struct sentence *why) CAIRN_MUST_CHECK;

/* True if a tensor can be read from the weight: it is F32, BF16, F16 or F64. */
bool weight_readable(const struct weight *weight);
/* Finds the weight from which each tensor of a canonical spec is read: the weight with its name, else the
 * weight with `prefix` + its name. from_out, [tensor_count]: NULL if there is no such weight and the tensor
 * has an initializer. CAIRN_ERR_MISMATCH names every tensor that is missing, has another shape, or is not
 * readable (the first CAIRN_WEIGHTS_NAMES_MAX); and, unless the spec has init_extra_ok, weights that no
 * tensor takes although a job could have them. Other weights that no tensor takes are no error: `extra`
 * tells how many and which, "" if none. The name of an alias of a whole tensor counts as that tensor's. */
cairn_status weights_match(const struct weights *weights, const struct job_spec_data *spec,
                           const char *prefix, const struct weight **from_out,
                           struct sentence *extra, struct sentence *why) CAIRN_MUST_CHECK;
/* Returns the weight with that key; NULL: there is none. */
const struct weight *weights_find(const struct weights *weights, const char *key);

/* Reads elements [first_elem, first_elem + elem_count) of a matched weight as fp32: BF16 and F16 exactly,
 * F64 rounded to nearest even. CAIRN_ERR_CORRUPT: the file was replaced or changed. CAIRN_ERR_IO. */
cairn_status weights_read(struct weights *weights, const struct weight *weight, uint64_t first_elem,
                          uint64_t elem_count, float *out, struct sentence *why) CAIRN_MUST_CHECK;

/* ==== inside ==== */

/* The declarations that the files of safetensors.h share. */

/* The files in a folder of Hugging Face: one with all weights, or the index that tells which file
 * has which weight. */
#define CAIRN_WEIGHTS_WHOLE "model.safetensors"
#define CAIRN_WEIGHTS_INDEX "model.safetensors.index.json"

/* Opens the allowed folder that contains w->path; returns the rest of the path, or NULL, with the reason in
 * `why`. */
const char *weights_enter_root(const char *roots, struct weights *w,
                               struct sentence *why) CAIRN_MUST_CHECK;
/* Opens a file or folder at a path beneath the allowed folder, and tells which it is. */
cairn_status weights_open_beneath(const struct weights *w, const char *path, int *fd_out,
                                  struct stat *info_out, struct sentence *why) CAIRN_MUST_CHECK;
/* Reads all of [offset, offset + count), or fails with a sentence. */
cairn_status weights_pread(int fd, const char *path, void *out, size_t count, uint64_t offset,
                           struct sentence *why) CAIRN_MUST_CHECK;

#endif
