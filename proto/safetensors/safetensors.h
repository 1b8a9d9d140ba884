/* Builds and checks the header of a safetensors file. These functions are pure; snapshot_io.h reads and
 * writes the files.
 *
 *   file     8 bytes, little endian: N | N bytes of JSON, padded with spaces | the tensors' bytes
 *   JSON     {"__metadata__":{string:string}, "<key>":{"dtype","shape","data_offsets":[begin,end]}}
 *
 * The rules are those of the safetensors crate's reader, and of PyTorch's distributed checkpoint
 * (HuggingFaceStorageWriter). PyTorch stores a part of a tensor as a tensor. In __metadata__ it stores
 * where each part begins: DCP_SHARDING_INFO is a JSON text {"<key>":{"saved_offsets":[...]}} with every key
 * of the file. DCP_VERSION is "1.0", and format is "pt". A file thus has at most one box of each tensor.
 *
 * In files that we write, tensors are sorted by the rank of their dtype, the highest first, then by key.
 * There are no holes, and N is such that the tensors begin at a multiple of 8. We read all files that the
 * crate reads, with three exceptions: the JSON must begin at its first byte, no key may occur twice, and a
 * tensor has at most 8 dimensions. */
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

/* the greatest N that the format allows; our headers stay near 8 MiB */
#define CAIRN_SAFETENSORS_HEADER_MAX 100000000

struct safetensors_entry {
    char *key; /* owned by the owner of the entry */
    /* name of the dtype in the file, such as "F32", in static memory. parse sets it. build sets it if it is
     * NULL. The caller of build may set it for numbers that it passes as bytes (CAIRN_U8) */
    const char *dtype_name;
    cairn_dtype dtype; /* 0: Cairn does not have the dtype of the file; only parse sets 0 */
    /* its start is saved_offsets, or all 0 if the file has none; its extent is the shape */
    struct cairn_box box;
    /* position in bytes, counted from the end of the header; parse and build set both */
    uint64_t begin, end;

    /* the next fields are the caller's and are not in the file; when build sorts entries, they stay with
     * their entry */
    uint32_t tensor, plane;
    uint64_t first_elem; /* index of the box's first element, row-major in the whole tensor */
};

struct safetensors {
    struct safetensors_entry *entries; /* owned: in the order of their bytes */
    size_t entry_count;
    bool has_boxes; /* true: the file has a complete DCP_SHARDING_INFO */
};

/* Sorts the entries into the file's order, sets begin and end, and writes the first 8 + N bytes of the
 * file. Keys must be unique, dtypes must be Cairn's, and sizes must not overflow; this is asserted, because
 * the caller has planned the entries. `*header_out` is malloc'ed, and the caller's. CAIRN_ERR_NO_MEMORY. */
cairn_status safetensors_build(struct safetensors_entry *entries, size_t entry_count,
                               uint8_t **header_out, size_t *header_bytes_out,
                               uint64_t *data_bytes_out) CAIRN_MUST_CHECK;
/* safetensors_build_whole does the same for whole tensors, as other writers than PyTorch's distributed
 * checkpoint do. There are no boxes. __metadata__ has "format", which is "pt", and the notes. The keys of
 * notes must be unique, and none may be "format". */
struct safetensors_note {
    const char *key, *value; /* borrowed */
};
cairn_status safetensors_build_whole(struct safetensors_entry *entries, size_t entry_count,
                                     const struct safetensors_note *notes, size_t note_count,
                                     uint8_t **header_out, size_t *header_bytes_out,
                                     uint64_t *data_bytes_out) CAIRN_MUST_CHECK;
/* Returns an upper bound of the bytes that one entry adds to the header. It is used to decide in time that
 * a file is full. */
size_t safetensors_entry_bytes(const char *key, uint32_t rank);

/* Reads N from the first `have` bytes of a file (8 are enough). Checks that N fits the size of the file,
 * before anyone allocates N bytes. CAIRN_ERR_MALFORMED. */
cairn_status safetensors_header_bytes(const uint8_t *prefix, size_t have, uint64_t file_bytes,
                                      uint64_t *json_bytes_out,
                                      struct sentence *why) CAIRN_MUST_CHECK;
/* Reads and checks the N bytes of JSON of a file of that size. `*out` is set only on success, and must then
 * be released. CAIRN_ERR_MALFORMED, CAIRN_ERR_UNSUPPORTED (rank over 8), CAIRN_ERR_NO_MEMORY. */
cairn_status safetensors_parse(const uint8_t *json, size_t json_bytes, uint64_t file_bytes,
                               struct safetensors *out, struct sentence *why) CAIRN_MUST_CHECK;
void safetensors_release(struct safetensors *s);

/* ==== safetensors folder ==== */

/* Weights that somebody else has saved, as a source of initial state. They are in one .safetensors file, or
 * in a folder that Hugging Face would have written, with
 *
 *   model.safetensors                  all weights, or, if this file is missing,
 *   model.safetensors.index.json       {"weight_map": {"<key>": "<file in this folder>", ...}, ...}
 *
 * Nothing outside the allowed folders is ever opened: the kernel looks up a path beneath one of them
 * (openat2, RESOLVE_BENEATH), so neither ".." nor a symbolic link leads out. Links that stay inside are
 * followed, because a cache of the Hub has such links. The header of a file is checked before a byte of a
 * tensor is read. Only headers and the requested ranges are read. A file that is no longer the one that was
 * checked (by inode, size and time) is refused. */

#define CAIRN_WEIGHTS_FILES_MAX   4096
#define CAIRN_WEIGHTS_INDEX_MAX   ((uint64_t)64 << 20)  /* the most bytes of an index */
#define CAIRN_WEIGHTS_HEADERS_MAX ((uint64_t)256 << 20) /* the most bytes of all headers together */
#define CAIRN_WEIGHTS_NAMES_MAX   20                    /* the most tensors that an error names */

/* ---- the index ---- */

struct safetensors_index {
    /* owned */
    char **files; /* [file_count], sorted: names of files in the folder of the index */
    struct safetensors_mapped {
        char *key;
        uint32_t file;
    } * entries; /* [entry_count], sorted by key */
    size_t file_count, entry_count;
};
/* Reads an index. CAIRN_ERR_MALFORMED: it is not JSON, it has no weight_map of strings, the name of a file
 * has a '/' or does not end in .safetensors, or there are too many files. CAIRN_ERR_NO_MEMORY. */
cairn_status safetensors_index_parse(const char *text, size_t text_bytes,
                                     struct safetensors_index *out,
                                     struct sentence *why) CAIRN_MUST_CHECK;

/* ---- the weights ---- */

struct weights_file {
    char *path;                /* owned: path beneath the allowed folder */
    struct safetensors header; /* owned */
    uint64_t data_at;          /* where the tensors begin */
    struct stat judged;
};

/* A tensor in a file. All pointers are borrowed from the file. */
struct weight {
    const char *key;
    const struct safetensors_entry *entry;
    uint32_t file;
};

/* A source of weights other than such files. */
struct weights_source {
    /* Does what weights_read does. */
    cairn_status (*read)(struct weights_source *source, const struct weight *weight,
                         uint64_t first_elem, uint64_t elem_count, float *out,
                         struct sentence *why);
    void (*close)(struct weights_source *source);
};

/* An open source of weights. Only one thread at a time may read from it. */
struct weights {
    struct weights_source *source; /* owned; NULL: the weights are in the files */
    int root_fd;                   /* owned: descriptor of the allowed folder */
    int file_fd;                   /* owned: descriptor of the file that was read last; -1: none */
    uint32_t file;                 /* the index of the file that was read last */
    size_t file_count, weight_count;
    char *path;                 /* owned: the path as the caller gave it */
    struct weights_file *files; /* owned: [file_count] */
    struct weight *weights;     /* owned: [weight_count], sorted by key */
};

/* Opens the weights at `path`, the absolute path of a file or a folder beneath one of `roots`. `roots` are
 * absolute paths of folders, separated by ':'; "": there are none. Reads only headers. CAIRN_ERR_REFUSED:
 * the path is not allowed. CAIRN_ERR_NOT_FOUND, _MALFORMED, _UNSUPPORTED, _IO, _NO_MEMORY. `why` names the
 * file. */
cairn_status weights_open(const char *roots, const char *path, struct weights *out,
                          struct sentence *why) CAIRN_MUST_CHECK;
void weights_close(struct weights *weights);
/* Checks whether `path` is a folder beneath one of `roots` that has the file `file`, and neither of the
 * files that Hugging Face writes. If so, sets *folder_out to the folder's path without links, malloc'ed,
 * the caller's; else to NULL. Statuses are as for weights_open. */
cairn_status weights_folder_with(const char *roots, const char *path, const char *file,
                                 char **folder_out, struct sentence *why) CAIRN_MUST_CHECK;
/* Makes weights that are read from `source`. The entries of `header` list them, and say nothing about
 * places in a file. Takes over `source` and `header`, even on failure. CAIRN_ERR_NO_MEMORY. */
cairn_status weights_of(const char *path, struct weights_source *source, struct safetensors *header,
                        struct weights *out, struct sentence *why) CAIRN_MUST_CHECK;

/* Returns true if a tensor can be read from the weight. This is so if the weight is F32, BF16, F16 or
 * F64. */
bool weight_readable(const struct weight *weight);
/* Finds for each tensor of a canonical spec the weight from which it is read. The weight has the tensor's
 * name, or else `prefix` + this name. from_out: [tensor_count]: the weight of each tensor. It is NULL for
 * an alias or a blob, and if there is no such weight and the tensor has an initializer or no elements.
 * CAIRN_ERR_MISMATCH: a tensor has no weight, or its weight has another shape or is not readable; `why`
 * names the first CAIRN_WEIGHTS_NAMES_MAX such tensors. Also CAIRN_ERR_MISMATCH: no tensor takes some
 * readable weight, and the spec does not have init_extra_ok. Other weights that no tensor takes are no
 * error. `extra` tells how many weights no tensor takes, and which; "": none. A weight with the name of an
 * alias counts as taken. */
cairn_status weights_match(const struct weights *weights, const struct job_spec_data *spec,
                           const char *prefix, const struct weight **from_out,
                           struct sentence *extra, struct sentence *why) CAIRN_MUST_CHECK;
/* Returns the weight with that key. NULL: there is no such weight. */
const struct weight *weights_find(const struct weights *weights, const char *key);

/* Reads elements [first_elem, first_elem + elem_count) of a matched weight as fp32. BF16 and F16 are
 * converted exactly, and F64 is rounded to nearest even. CAIRN_ERR_CORRUPT: the file was replaced or
 * changed. CAIRN_ERR_IO. */
cairn_status weights_read(struct weights *weights, const struct weight *weight, uint64_t first_elem,
                          uint64_t elem_count, float *out, struct sentence *why) CAIRN_MUST_CHECK;

/* ==== inside ==== */

/* Declarations that only the files of this folder use. */

/* The files in a folder of Hugging Face: the file with all weights, and the index, which tells which file
 * has which weight. */
#define CAIRN_WEIGHTS_WHOLE "model.safetensors"
#define CAIRN_WEIGHTS_INDEX "model.safetensors.index.json"

/* Opens the allowed folder that contains w->path, and returns the rest of the path. NULL: there is no such
 * folder; `why` gives the reason. */
const char *weights_enter_root(const char *roots, struct weights *w,
                               struct sentence *why) CAIRN_MUST_CHECK;
/* Opens a file or a folder at a path beneath the allowed folder. *info_out tells which of the two it is. */
cairn_status weights_open_beneath(const struct weights *w, const char *path, int *fd_out,
                                  struct stat *info_out, struct sentence *why) CAIRN_MUST_CHECK;
/* Reads all of [offset, offset + count), or fails with a sentence. */
cairn_status weights_pread(int fd, const char *path, void *out, size_t count, uint64_t offset,
                           struct sentence *why) CAIRN_MUST_CHECK;

#endif
