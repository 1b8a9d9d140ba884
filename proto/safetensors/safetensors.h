/* The header of a safetensors file, built and judged. Pure: bytes in, bytes out; snapshot_io.h
 * reads and writes the files.
 *
 *   file     8 bytes, little endian: N | N bytes of JSON, padded with spaces | the tensors' bytes
 *   JSON     {"__metadata__":{string:string}, "<key>":{"dtype","shape","data_offsets":[begin,end]}}
 *
 * Source: the rules of the safetensors crate's reader, and of PyTorch's distributed checkpoint
 * (HuggingFaceStorageWriter), which stores a part of a tensor as a tensor and puts where it begins
 * into __metadata__: DCP_SHARDING_INFO is a JSON text {"<key>":{"saved_offsets":[...]}} with every
 * key of the file; DCP_VERSION "1.0"; format "pt". So a file holds one box of a tensor at most.
 *
 * Files that we write: tensors by descending rank of their dtype, then by key; no holes; N such
 * that the tensors begin at a multiple of 8. Files that we read: all that the crate reads, except
 * that the JSON must begin at its first byte, that no key may stand twice, and ranks are at most
 * 8. */
#ifndef CAIRN_SAFETENSORS_SAFETENSORS_H
#define CAIRN_SAFETENSORS_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/sentence.h"
#include "proto/base/status.h"
#include "proto/geometry/tensor.h"

#define CAIRN_SAFETENSORS_HEADER_MAX 100000000 /* N of the format; ours stay near 8 MiB */

struct cairn_safetensors_entry {
    char *key; /* owned by whoever owns the entry */
    const char
        *dtype_name;   /* "F32": static memory; set by parse, and by build where it is NULL: else it
                             * is that of the file, of numbers that the caller reads as bytes (CAIRN_U8) */
    cairn_dtype dtype; /* 0: one that Cairn does not have (parse only) */
    struct cairn_box box; /* start: saved_offsets, all 0 where the file has none; extent: shape */
    uint64_t begin, end;  /* bytes, from the end of the header; set by parse and build */

    /* the caller's: not in the file, carried along when build sorts */
    uint32_t tensor, plane;
    uint64_t first_elem; /* of the box, row-major in the whole tensor */
};

struct cairn_safetensors {
    struct cairn_safetensors_entry *entries; /* owned, in the order of the bytes */
    size_t entry_count;
    bool has_boxes; /* DCP_SHARDING_INFO is there, and complete */
};

/* Sorts the entries into the file's order, sets begin and end, and writes the first 8 + N bytes of
 * the file. Keys unique, dtypes Cairn's, sizes without overflow (asserted: the caller planned
 * them). `*header_out` is malloc'd, the caller's. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_safetensors_build(struct cairn_safetensors_entry *entries, size_t entry_count,
                                     uint8_t **header_out, size_t *header_bytes_out,
                                     uint64_t *data_bytes_out) CAIRN_MUST_CHECK;
/* The same of whole tensors, as others than PyTorch's distributed checkpoint write them: in __metadata__
 * stand "format", which is "pt", and the notes, unique and none of that name; no boxes. */
struct cairn_safetensors_note {
    const char *key, *value; /* borrowed */
};
cairn_status cairn_safetensors_build_whole(struct cairn_safetensors_entry *entries,
                                           size_t entry_count,
                                           const struct cairn_safetensors_note *notes,
                                           size_t note_count, uint8_t **header_out,
                                           size_t *header_bytes_out,
                                           uint64_t *data_bytes_out) CAIRN_MUST_CHECK;
/* An upper bound of what one entry adds to the header: for closing a file in time. */
size_t cairn_safetensors_entry_bytes(const char *key, uint32_t rank);

/* N, out of a file's first `have` bytes (8 are enough) and its size: judged before anyone
 * allocates. CAIRN_ERR_MALFORMED. */
cairn_status cairn_safetensors_header_bytes(const uint8_t *prefix, size_t have, uint64_t file_bytes,
                                            uint64_t *json_bytes_out,
                                            struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Judges the N bytes of JSON of a file of that size. `*out` is set only on success; release it.
 * CAIRN_ERR_MALFORMED, CAIRN_ERR_UNSUPPORTED (rank over 8), CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_safetensors_parse(const uint8_t *json, size_t json_bytes, uint64_t file_bytes,
                                     struct cairn_safetensors *out,
                                     struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_safetensors_release(struct cairn_safetensors *s);

/* The rank of a dtype in the format's order (see build), by its name; -1 if there is none such. */
int cairn_safetensors_dtype_rank(const char *dtype_name);
/* Bits of one number of that rank. */
uint32_t cairn_safetensors_dtype_bits(int rank);

#endif
