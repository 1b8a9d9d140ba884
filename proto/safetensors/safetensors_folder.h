/* Weights that somebody else saved, as a source of initial state: one .safetensors file, or a folder as
 * Hugging Face lays it out, with
 *
 *   model.safetensors                  all of it; or, where that is not there,
 *   model.safetensors.index.json       {"weight_map": {"<key>": "<file in this folder>", ...}, ...}
 *
 * Nothing outside the allowed folders is ever opened: a path is looked up beneath one of them by the
 * kernel (openat2, RESOLVE_BENEATH), so neither ".." nor a symbolic link leads out; links that stay
 * inside are followed, as in a cache of the Hub. Files are judged by safetensors.h before a byte of a tensor
 * is read, only their headers and the ranges asked for are read, and a file that is another one than
 * was judged (inode, size, time) is refused. */
#ifndef CAIRN_SAFETENSORS_SAFETENSORS_FOLDER_H
#define CAIRN_SAFETENSORS_SAFETENSORS_FOLDER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "proto/safetensors/safetensors.h"
#include "proto/spec/spec.h"

#define CAIRN_WEIGHTS_FILES_MAX   4096
#define CAIRN_WEIGHTS_INDEX_MAX   ((uint64_t)64 << 20)  /* bytes of an index */
#define CAIRN_WEIGHTS_HEADERS_MAX ((uint64_t)256 << 20) /* bytes of all headers */
#define CAIRN_WEIGHTS_NAMES_MAX   20                    /* tensors that an error names */

/* ---- the index: bytes in, a table out ---- */

struct cairn_safetensors_index {
    /* owned */
    char **files; /* [file_count], sorted: plain names of the same folder */
    struct cairn_safetensors_mapped {
        char *key;
        uint32_t file;
    } * entries; /* [entry_count], sorted by key */
    size_t file_count, entry_count;
};
/* CAIRN_ERR_MALFORMED: not JSON, no weight_map of strings, a file's name with a '/' or without
 * .safetensors; too many files. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_safetensors_index_parse(const char *text, size_t text_bytes,
                                           struct cairn_safetensors_index *out,
                                           struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_safetensors_index_release(struct cairn_safetensors_index *index);

/* ---- the weights ---- */

struct cairn_weights_file {
    char *path;                      /* owned; beneath the allowed folder */
    struct cairn_safetensors header; /* owned */
    uint64_t data_at;                /* where the tensors begin */
    struct stat judged;
};

/* One tensor. All borrowed from its file. */
struct cairn_weight {
    const char *key;
    const struct cairn_safetensors_entry *entry;
    uint32_t file;
};

/* Weights that lie in no such files. */
struct cairn_weights_source {
    /* As cairn_weights_read. */
    cairn_status (*read)(struct cairn_weights_source *source, const struct cairn_weight *weight,
                         uint64_t first_elem, uint64_t elem_count, float *out,
                         struct cairn_sentence *why);
    void (*close)(struct cairn_weights_source *source);
};

/* Read by one thread at a time. */
struct cairn_weights {
    struct cairn_weights_source *source; /* owned; NULL: the files */
    int root_fd;                         /* owned; of the allowed folder */
    int file_fd;                         /* owned; of the file read last, -1: none */
    uint32_t file;                       /* which one that is */
    size_t file_count, weight_count;
    char *path;                       /* owned; as it was asked for */
    struct cairn_weights_file *files; /* owned, [file_count] */
    struct cairn_weight *weights;     /* owned, [weight_count], sorted by key */
};

/* Opens `path`, absolute, a file or a folder, beneath one of `roots`: absolute folders with ':' between
 * them, "" for none. Reads headers only. CAIRN_ERR_REFUSED: not allowed; CAIRN_ERR_NOT_FOUND;
 * CAIRN_ERR_MALFORMED, _UNSUPPORTED; CAIRN_ERR_IO; CAIRN_ERR_NO_MEMORY. `why` names the file. */
cairn_status cairn_weights_open(const char *roots, const char *path, struct cairn_weights *out,
                                struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_weights_close(struct cairn_weights *weights);
/* If `path` is a folder beneath one of `roots` that has a file of that name, and none that Hugging Face has:
 * the folder's own path, malloc'd, the caller's; else *folder_out is NULL. As cairn_weights_open. */
cairn_status cairn_weights_folder_with(const char *roots, const char *path, const char *file,
                                       char **folder_out,
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Lists the weights that `source` has, by the entries of `header`, which give no places in a file.
 * Takes source and header, on failure too. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_weights_of(const char *path, struct cairn_weights_source *source,
                              struct cairn_safetensors *header, struct cairn_weights *out,
                              struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* True if a tensor can be read from the weight: it is F32, BF16, F16 or F64. */
bool cairn_weight_readable(const struct cairn_weight *weight);
/* Finds the weight that each tensor of a canonical spec is read from: the one of its name, else the
 * one of `prefix` + its name. from_out, [tensor_count]: NULL where there is none and the tensor has
 * an initializer. CAIRN_ERR_MISMATCH names every tensor that is missing, has another shape, or is
 * not readable (the first CAIRN_WEIGHTS_NAMES_MAX); and, unless the spec has init_extra_ok, weights
 * that no tensor takes and that a job could have. Other weights that no tensor takes are no error:
 * `extra` says how many and which, "" if none. The name of an alias of a whole tensor counts as
 * that tensor's. */
cairn_status cairn_weights_match(const struct cairn_weights *weights,
                                 const struct cairn_job_spec_data *spec, const char *prefix,
                                 const struct cairn_weight **from_out, struct cairn_sentence *extra,
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* NULL: there is none of that key. */
const struct cairn_weight *cairn_weights_find(const struct cairn_weights *weights, const char *key);

/* Reads elements [first_elem, first_elem + elem_count) of a matched weight as fp32: BF16 and F16 exactly,
 * F64 rounded to nearest even. CAIRN_ERR_CORRUPT: the file is another one now. CAIRN_ERR_IO. */
cairn_status cairn_weights_read(struct cairn_weights *weights, const struct cairn_weight *weight,
                                uint64_t first_elem, uint64_t elem_count, float *out,
                                struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
