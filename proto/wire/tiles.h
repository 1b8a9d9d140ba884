/* The tiles of a worker: which box of which tensor it holds.
 *
 * A worker that holds only parts of some tensors declares a list: one box a tensor, ascending by tensor.
 * It holds a tensor that is not listed as a whole, and nothing of a tensor with an empty box (an
 * expert that lives on other ranks). The declared boxes of all ranks must make up every tensor
 * exactly: two ranks hold the same box (replicas) or boxes that have no element in common, and
 * together all of it. A tile that is declared for an alias is not looked at: the tensor that the
 * alias names counts.
 *
 * Pure: no input or output. A list owns its memory; one thread changes it, many may read. */
#ifndef CAIRN_WIRE_TILES_H
#define CAIRN_WIRE_TILES_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/sentence.h"
#include "proto/base/status.h"
#include "proto/geometry/box.h"
#include "proto/spec/spec.h"

struct cairn_tile_box {
    uint32_t tensor; /* index in the job's canonical tensor list */
    struct cairn_box box;
};
/* All zero: the empty list, "whole tensors". */
struct cairn_tiles {
    struct cairn_tile_box *list; /* owned: [count], by tensor, none twice */
    size_t count;
};
void cairn_tiles_release(struct cairn_tiles *tiles);

/* Sets the box of a tensor, which is not judged here; the list stays sorted. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_tiles_set(struct cairn_tiles *tiles, uint32_t tensor,
                             const struct cairn_box *box) CAIRN_MUST_CHECK;
/* The box of the tensor, which stays the list's; NULL: the whole tensor. */
const struct cairn_box *cairn_tiles_find(const struct cairn_tiles *tiles, uint32_t tensor);
bool cairn_tiles_equal(const struct cairn_tiles *a, const struct cairn_tiles *b);
/* Names the list in the header of a chunk (table_hash): the first 8 bytes, little-endian, of BLAKE2b-256
 * over "cairn tiles 1" (with its NUL), u64 count, and for each box u32 tensor and the box's bytes (box.h);
 * CAIRN_TABLE_HASH_WHOLE of the empty list. */
uint64_t cairn_tiles_hash(const struct cairn_tiles *tiles);

/* A list as bytes of a TileList, malloc'ed; the caller frees them. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_tiles_pack(const struct cairn_tiles *tiles, uint8_t **bytes_out,
                              size_t *bytes_len_out) CAIRN_MUST_CHECK;
/* The reverse, of a stranger's bytes, judged against the spec. CAIRN_ERR_MALFORMED: not a TileList.
 * CAIRN_ERR_INVALID: no such tensor, not ascending, a box that is not within its tensor. */
cairn_status cairn_tiles_unpack(const uint8_t *bytes, size_t bytes_len,
                                const struct cairn_job_spec_data *spec,
                                struct cairn_tiles *tiles_out,
                                struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* Whether the lists of the ranks 0, ..., world - 1 make up every tensor exactly. CAIRN_ERR_MISMATCH:
 * `why` names the tensor, the ranks and boxes that overlap, or a part that no rank holds. Ranks with
 * equal lists cost nothing more than one of them. CAIRN_ERR_NO_MEMORY; CAIRN_ERR_UNSUPPORTED: over
 * 4096 boxes of a tensor of which no straight cut separates any. */
cairn_status cairn_tiles_cover(const struct cairn_job_spec_data *spec,
                               const struct cairn_tiles *const *of_rank, uint32_t world,
                               struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
