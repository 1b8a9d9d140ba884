/* A layout is a table that says which shard owns which quanta of a job's tensors. The planner makes the
 * table (proto/plan/plan.h), the coordinator stores it, and members get a copy. All other code only reads
 * the table.
 *
 *   tensor     a number, which is the index in the job's list of tensors, [0, tensor_count)
 *   extent     a run of quanta of one tensor on one shard. Two extents of one shard may be neighbours, for
 *              instance after an extent was cut; their state may lie apart in the shard's memory
 *   state      the arrays of a shard (parameters, moments, sums), which hold the shard's extents; in a
 *              fresh job they hold them in the table's order. A "local" number of an element counts
 *              elements in these arrays; a "local" number of a chunk counts chunks in the order of the
 *              shard's map
 *   chunk      chunk_leaves consecutive leaves of one extent, counted from the extent's first leaf; the
 *              last chunk of an extent may be shorter. Client and shard both cut chunks with the functions
 *              below, so that the number of a chunk means the same to both.
 *
 * A query costs a binary search and its answer, since no function walks over quanta. Pure: no input or
 * output. A layout never changes after it is made, so threads may share it. */
#ifndef CAIRN_GEOMETRY_LAYOUT_H
#define CAIRN_GEOMETRY_LAYOUT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/machine.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/tensor.h"

#define CAIRN_SHARDS_MAX         ((uint32_t)65535)
#define CAIRN_LAYOUT_TENSORS_MAX ((uint32_t)1 << 20)
#define CAIRN_LAYOUT_HASH_BYTES  32

/* The properties of a tensor that the layout and the planner need. All pointers are borrowed for the
 * call. */
struct layout_tensor {
    /* unique in the job; tensors are sorted by name where their numbers must not matter */
    const char *name;
    const char *unit; /* read by the planner only */
    struct shape shape;
    uint32_t elem_bytes; /* read by the planner only: the cost of an element, at least 1 */
};

struct extent {
    uint32_t tensor;
    uint32_t shard;
    uint64_t first_quantum;
    uint64_t quantum_count; /* at least 1 */
};

struct layout {
    uint64_t version; /* the number of the table in its job, from 1 on */
    uint32_t shard_count;
    uint32_t tensor_count;
    size_t extent_count;

    /* owned; layout_close frees them */
    struct extent *extents; /* [extent_count], sorted by tensor, then by first_quantum */
    /* [tensor_count + 1] tensor t has the extents from number [t] to number [t + 1] - 1 */
    size_t *tensor_extents;
    /* [extent_count] numbers of extents, sorted by shard, then as `extents` */
    uint32_t *by_shard;
    size_t *shard_extents;     /* [shard_count + 1] where the shard's part of by_shard begins */
    struct geometry *geometry; /* [tensor_count] */

    /* BLAKE2b-256 over shard_count, and over the name, the shape and the owners of every tensor, sorted by
     * name. The hash leaves out the version and the order of the job's list, so two layouts with the same
     * hash have the same owners. */
    uint8_t hash[CAIRN_LAYOUT_HASH_BYTES];
};

/* Makes a layout from a table. `extents` is malloc'ed memory; on success it belongs to the layout,
 * otherwise it stays the caller's. CAIRN_ERR_INVALID: a number is above its limit, a shape is not valid,
 * two tensors have one name, or the table does not cover every quantum of every tensor exactly once, in
 * order. CAIRN_ERR_NO_MEMORY. */
cairn_status layout_make(const struct layout_tensor *tensors, uint32_t tensor_count,
                         uint32_t shard_count, uint64_t version, struct extent *extents,
                         size_t extent_count, struct layout **layout_out) CAIRN_MUST_CHECK;
/* Frees the layout, which may be NULL. */
void layout_close(struct layout *layout);

/* The encoding, little-endian: "CLAY", u32 format 1, u64 version, u32 shard_count, u32 tensor_count,
 * u64 extent_count; for each tensor a u32 count of extents; for each extent a u64 quantum_count and a u32
 * shard (its first quantum follows from the extents before it); and the 32 bytes of the hash. */
size_t layout_encoded_bytes(const struct layout *layout);
/* Writes layout_encoded_bytes bytes. */
void layout_encode(const struct layout *layout, uint8_t *out);
/* Decodes a layout. `data` may come from an untrusted peer; `tensors` are the caller's own. The memory is
 * at most 4 times `bytes`, and a constant for each tensor. CAIRN_ERR_MALFORMED: `data` is not a layout of
 * these tensors, or the hash does not match. CAIRN_ERR_INVALID: there are too many tensors, or a shape is
 * not valid. CAIRN_ERR_NO_MEMORY. */
cairn_status layout_decode(const uint8_t *data, size_t bytes, const struct layout_tensor *tensors,
                           uint32_t tensor_count, struct layout **layout_out) CAIRN_MUST_CHECK;

/* Returns the extents of a tensor, and in *count_out their number, which is 0 for an empty tensor. */
const struct extent *layout_tensor_extents(const struct layout *layout, uint32_t tensor,
                                           size_t *count_out);
/* Returns the extent that holds a leaf; the shard of this extent owns the leaf. NULL: there is no such
 * tensor or leaf. */
const struct extent *layout_find(const struct layout *layout, uint32_t tensor, uint64_t leaf);

/* True if the shard has an extent. `shard` may be any number. */
bool layout_owns(const struct layout *layout, uint32_t shard);
/* Counts the pieces in which the tensors lie. Neighbouring extents of one owner are one piece. */
size_t layout_pieces(const struct layout *layout);
/* True if both layouts have the same owners; the versions may differ. Then a member that has one layout can
 * read a copy that was published in the other. */
bool layout_same(const struct layout *a, const struct layout *b);
/* Returns the first 8 bytes of the hash as a little-endian number, by which messages name the layout. */
uint64_t layout_number(const struct layout *layout);

/* An extent, from the view of its shard. */
struct local_extent {
    uint32_t tensor;
    uint64_t first_leaf, leaf_count; /* in the tensor */
    uint64_t first_elem, elem_count; /* in the tensor */
    /* where the extent's first element lies in the shard's state */
    uint64_t local_elem;
    uint64_t first_chunk, chunk_count; /* in the order of the map */
};

/* The part of a job that one shard owns. */
struct shard_map {
    uint32_t shard;
    uint32_t chunk_leaves;
    size_t extent_count;
    uint64_t elem_count; /* the number of elements in the shard's state */
    /* one more than the last local element; above elem_count if there are gaps */
    uint64_t local_end;
    uint64_t leaf_count;
    uint64_t chunk_count;
    struct local_extent *extents; /* owned; [extent_count], sorted by tensor, then by first_leaf */
    const struct layout *layout;  /* borrowed while the map exists */
};

struct chunk_place {
    uint32_t tensor;
    uint64_t first_leaf;
    uint64_t leaf_count;
    uint64_t first_elem; /* in the tensor, row-major */
    uint64_t elem_count;
    uint64_t local_elem; /* in the shard's state */
};

/* Makes the map of shard < shard_count, in chunks of chunk_leaves >= 1. CAIRN_ERR_INVALID,
 * CAIRN_ERR_NO_MEMORY. */
cairn_status shard_map_init(struct shard_map *map, const struct layout *layout, uint32_t shard,
                            uint32_t chunk_leaves) CAIRN_MUST_CHECK;
/* Makes the map of a layout that follows another one. An extent that lies wholly in an extent of `before`
 * keeps its local elements. Any other extent gets the first range of free local elements in which it fits;
 * free are those that neither `before` nor `beside`, which may be NULL, uses. `dense` is NULL, or has
 * [tensor_count] flags: if a tensor's flag is set, an extent that does not begin where its old extent began
 * also gets new local elements. All three maps are of one shard and of the same tensors. CAIRN_ERR_INVALID
 * also if an extent lies only partly in `before`, or in two extents of `before`. */
cairn_status shard_map_init_from(struct shard_map *map, const struct layout *layout, uint32_t shard,
                                 uint32_t chunk_leaves, const struct shard_map *before,
                                 const struct shard_map *beside,
                                 const bool *dense) CAIRN_MUST_CHECK;
void shard_map_release(struct shard_map *map);

/* Returns the local extent that holds a leaf; NULL if this shard does not own the leaf. */
const struct local_extent *shard_map_find(const struct shard_map *map, uint32_t tensor,
                                          uint64_t leaf);
/* Returns the extent that has a chunk < chunk_count. */
const struct local_extent *shard_map_extent(const struct shard_map *map, uint64_t chunk);
/* Returns the place of a chunk < chunk_count. */
struct chunk_place shard_map_chunk(const struct shard_map *map, uint64_t chunk);
/* Finds the number of the chunk that consists of these leaves. CAIRN_ERR_NOT_FOUND: this shard does not own
 * the first leaf. CAIRN_ERR_INVALID: this shard owns the first leaf, but the leaves are not exactly one
 * chunk. All numbers may come from an untrusted peer. */
cairn_status shard_map_chunk_number(const struct shard_map *map, uint32_t tensor,
                                    uint64_t first_leaf, uint64_t leaf_count,
                                    uint64_t *chunk_out) CAIRN_MUST_CHECK;

/* ==== published ==== */

/* A published copy of a job's part on one shard. Processes on the shard's host map the copy read-only, and
 * read it without asking the shard.
 *
 *   the head         one page with a struct published_head, which says which version the copy has now
 *   the segments     the shard's extents in the order of its map, each in its tensor's wire dtype, as one
 *                    array that is cut into pieces of CAIRN_SEGMENT_BYTES
 *
 * The head and the segments are shown to readers as regions, each with a note, in any order. A reader that
 * has all regions of a copy maps the segments side by side. If the state lies on a card, the copy also has
 * segments on the card, for processes that use the card; these are the device side of the copy. The head is
 * in host memory, and says which sides have the version.
 *
 * An extent that is a whole tensor begins at a multiple of 64 bytes. For an extent that is a part of its
 * tensor, its place in the copy and the place of its first byte in the tensor are equal modulo the page. So
 * a reader can map the parts of several shards one after another, page by page, and then has the tensor in
 * one piece; it has to copy only the pages in which two parts meet. Both the shard and the reader use
 * published_place, which implements this rule.
 *
 * A later version overwrites a copy although somebody may be reading the copy. So the copy has a sequence
 * lock (Lameter, "Effective synchronization on Linux/NUMA systems", 2005): if the sequence is even, and is
 * the same before and after the read, the bytes that were read belong to the requested version. A reader
 * that keeps pointers into the copy checks the sequence again after each use. */

#define CAIRN_PUBLISHED_PAGE_BYTES 4096
#define CAIRN_PUBLISHED_MAGIC      0x434e5251u /* "QRNC" */

struct published_head {
    uint32_t magic;
    uint32_t shard;            /* the shard's number in the layout */
    uint64_t job;              /* the job's number */
    uint64_t layout_hash;      /* the first 8 bytes of the layout's hash */
    uint64_t bytes;            /* all segments together */
    _Atomic uint64_t sequence; /* odd: the copy is being written, or was never written */
    _Atomic uint64_t generation, step;
    _Atomic uint32_t sides; /* bits of enum published_side */
    /* the number of the copy, as in the notes of its regions; regions with an older number are out of
     * use */
    _Atomic uint32_t copy;
};

enum published_side {
    CAIRN_PUBLISHED_HOST = 1,
    CAIRN_PUBLISHED_DEVICE = 2, /* the memory of a card cannot be sealed: see gpu/gpu.h */
};

/* The note of a region (proto/fabric/fabric.h) of a published copy. */
struct published_note {
    uint32_t magic; /* CAIRN_PUBLISHED_MAGIC */
    uint32_t shard;
    uint64_t job;
    uint64_t layout_hash;
    uint64_t incarnation; /* the shard's incarnation */
    uint32_t copy;        /* the number of the copy, unique in this incarnation */
    uint32_t segment;     /* the number of the segment; segment_count: this region is the head */
    uint32_t segment_count;
    uint32_t side; /* one of enum published_side; HOST for the head */
};

/* Returns the byte of the copy at which an extent of the map begins, and sets *end to the extent's end.
 * Call this for all extents in the map's order. Before the first call *end is 0; after the last call *end
 * is the number of bytes of all segments. */
uint64_t published_place(const struct shard_map *map, size_t extent, size_t elem_bytes,
                         uint64_t *end);

/* Makes a page of zeros the head of a copy that was never written. */
void published_head_init(struct published_head *head, const struct shard_map *map, uint64_t job,
                         uint64_t bytes);
/* Gives the copy a new number. Call this before anything is written to the regions whose notes have this
 * number. */
void published_set_copy(struct published_head *head, uint32_t copy);
/* A writer calls these before and after it writes a new version. There is only one writer at a time. */
void published_write_begin(struct published_head *head);
void published_write_end(struct published_head *head, struct cairn_version version, uint32_t sides);
/* Changes which sides have the current version. The bytes of this version that readers have read stay
 * valid. */
void published_set_sides(struct published_head *head, uint32_t sides);
/* A reader calls this before it reads regions whose notes have the number `copy`. False: the copy has
 * another version, is being written, does not have the version on that side, or has another number now. */
bool published_read_begin(const struct published_head *head, uint32_t copy,
                          struct cairn_version version, enum published_side side,
                          uint64_t *sequence_out);
/* True: everything that was read since published_read_begin belongs to that version. */
bool published_read_end(const struct published_head *head, uint64_t sequence);

/* ==== since ==== */

/* A member keeps the layouts of its job, each with the version from which on the layout is in use.
 * LayoutChanged names this version. For Attached the functions below find it. Pure. */

/* Returns the version from which on the layout that Attached names is in use. Attached names the layout in
 * which the newest version is published. If the member already knows this layout, it may have heard that
 * the layout is in use only from a later version on (`since`). Then the newest version was published again,
 * in this layout, while the member was not attached, and the shards that had the version before may be
 * gone. */
struct cairn_version since_attached(struct cairn_version since, struct cairn_version newest);

/* Attached also names the layout in force, by its number. True: the member knows a later layout, and must
 * not use this later layout to push. Nobody hears of a layout before it is durable, so the coordinator's
 * store is an older copy, or was rebuilt from what shards hold. */
bool layout_goes_back(uint64_t newest_known, uint64_t in_force);

/* ==== boxes ==== */

/* If a worker does not hold a whole tensor, it holds a box of the tensor (struct cairn_box, tensor.h).
 *
 *   box memory    the box's elements, dense and in row-major order, as they lie in a worker's memory
 *   box element   an index in box memory, [0, box_element_count)
 *   tensor index  an index in the row-major tensor, [0, elements of the shape)
 *
 * The elements of a box have the same order in the box and in the tensor. So the elements that a box shares
 * with a range of tensor indices (a chunk) are one contiguous piece of box memory, from box_before(first)
 * to box_before(first + count). A worker sends this piece as it lies; a process that has the whole tensor
 * in memory walks the runs. A box with an extent of 0 is valid, and empty.
 *
 * Pure: no allocation, no input or output, no state. Unless a comment says otherwise, box_check has
 * accepted the boxes, and shape_check the shapes. */

/* Checks a box that may come from an untrusted peer: it must have as many dimensions as the shape, and must
 * not reach beyond the tensor. CAIRN_ERR_INVALID: `why` names the dimension and the numbers. */
cairn_status box_check(const struct cairn_box *box, const struct shape *shape,
                       struct sentence *why) CAIRN_MUST_CHECK;
/* Returns the box that is the whole tensor. */
struct cairn_box box_of_shape(const struct shape *shape);
/* Returns the number of the box's elements, which is 1 for a box without dimensions (a scalar). */
uint64_t box_element_count(const struct cairn_box *box);
bool box_is_whole(const struct cairn_box *box, const struct shape *shape);
bool box_equal(const struct cairn_box *a, const struct cairn_box *b);
/* True if the two boxes of one tensor have an element in common. */
bool box_overlap(const struct cairn_box *a, const struct cairn_box *b);

/* Returns how many of the box's elements have a tensor index below `index`, which is at most the number of
 * the tensor's elements. Costs one division for each dimension. */
uint64_t box_before(const struct cairn_box *box, const struct shape *shape, uint64_t index);

/* Walks the elements that a box and a range of tensor indices share. The walk goes upwards, in as few runs
 * as possible that are contiguous in the tensor. Each call of box_runs_next costs one division for each
 * dimension. */
struct box_runs {
    struct cairn_box box;
    /* the number of tensor elements in one index of the dimension */
    uint64_t stride[CAIRN_RANK_MAX];
    uint32_t outer;     /* the number of dimensions that lie outside of a run */
    uint64_t run_elems; /* the number of elements of a full run */
    uint64_t base;      /* the tensor index of the box's first element */
    uint64_t next, end; /* the box elements that are still to be walked */
};
/* Begins the walk. The range must lie within the tensor. */
void box_runs_begin(struct box_runs *runs, const struct cairn_box *box, const struct shape *shape,
                    uint64_t first_elem, uint64_t elem_count);
/* Takes the next run. Returns false, and sets nothing, if no run is left. */
bool box_runs_next(struct box_runs *runs, uint64_t *tensor_elem_out, uint64_t *box_elem_out,
                   uint64_t *count_out);

/* The encoding, little-endian: u32 rank, a u64 start for each dimension, a u64 extent for each
 * dimension. */
#define CAIRN_BOX_BYTES_MAX (4 + 16 * CAIRN_RANK_MAX)
/* Returns how many bytes were written. */
size_t box_encode(const struct cairn_box *box, uint8_t out[CAIRN_BOX_BYTES_MAX]);
/* Decodes a box that may come from an untrusted peer, so the caller must call box_check.
 * CAIRN_ERR_MALFORMED: the bytes are not exactly one box. */
cairn_status box_decode(const uint8_t *bytes, size_t size,
                        struct cairn_box *box_out) CAIRN_MUST_CHECK;

/* Prints any box, as "[0:512, 128:256]": for each dimension, the first index in the box and the first one
 * after it. Returns `out`. */
#define CAIRN_BOX_TEXT_BYTES 352
const char *box_text(const struct cairn_box *box, char out[CAIRN_BOX_TEXT_BYTES]);

#endif
