/* Where every element of every plane of a snapshot stands: built from the headers of its files,
 * then asked by any layout. Pure.
 *
 * The headers come from storage and are judged: every key must be a plane of the spec, every box a
 * run of elements inside it (that is what shards write), and, once all files are in, every plane
 * must be covered exactly once. */
#ifndef CAIRN_STORE_SNAPSHOT_INDEX_H
#define CAIRN_STORE_SNAPSHOT_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/sentence.h"
#include "proto/base/status.h"
#include "proto/safetensors/safetensors.h"
#include "proto/snapshot/manifest.h"

/* A run of elements of one plane (f32), in one file. */
struct cairn_snapshot_piece {
    uint32_t tensor, plane;
    uint64_t first_elem, elem_count;
    size_t file;        /* index in the manifest's files */
    uint64_t file_byte; /* where the first element stands */
};

struct cairn_snapshot_index {
    /* owned; sorted by tensor, plane, first_elem once closed */
    struct cairn_snapshot_piece *pieces;
    size_t piece_count, piece_capacity;
};

/* Adds what file number `file` of the manifest holds; `data_byte` is where its header ends.
 * CAIRN_ERR_CORRUPT names key and file; CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_snapshot_index_add(struct cairn_snapshot_index *index,
                                      const struct cairn_manifest *manifest, size_t file,
                                      const struct cairn_safetensors *header, uint64_t data_byte,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Sorts, and judges that every plane of every tensor is there exactly once. CAIRN_ERR_CORRUPT names
 * the tensor, the plane and the elements that are missing or in two files. */
cairn_status cairn_snapshot_index_close(struct cairn_snapshot_index *index,
                                        const struct cairn_manifest *manifest,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* In a closed index: the piece with element first_elem of that plane; the pieces after it follow in
 * order. NULL if the plane is not stored or has no such element. */
const struct cairn_snapshot_piece *
cairn_snapshot_index_find(const struct cairn_snapshot_index *index, uint32_t tensor, uint32_t plane,
                          uint64_t elem);
void cairn_snapshot_index_release(struct cairn_snapshot_index *index);

#endif
