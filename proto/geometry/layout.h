/* A layout: which shard owns which quanta of a job's tensors. A layout is data: the planner makes it
 * (proto/plan/plan.h), the coordinator stores it, and members get a copy; all other code only reads the
 * table.
 *
 *   tensor     a number: the index in the job's tensor list, [0, tensor_count)
 *   extent     a run of quanta of one tensor on one shard. Two extents of one shard may follow each other,
 *              for instance after one was cut: their state may lie apart in the shard's memory
 *   state      the arrays of a shard (parameters, moments, sums). They hold the shard's extents, in a fresh
 *              job in the table's order; "local" counts elements there, and chunks in the map's order
 *   chunk      consecutive leaves of one extent, counted from the extent's first leaf in steps of
 *              chunk_leaves; the last chunk of an extent may be shorter. Client and shard both cut with the
 *              functions below, so that a chunk number means the same on both ends.
 *
 * Every query costs a binary search and its answer; nothing walks over quanta. Pure: no input or output. A
 * layout never changes once it is made, so threads may share it. */
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

/* The properties of a tensor that layout and planner need. All pointers are borrowed, for the call only. */
struct layout_tensor {
    const char *name; /* unique in the job; sorts tensors where their numbers must not matter */
    const char *unit; /* read by the planner only */
    struct shape shape;
    uint32_t elem_bytes; /* read by the planner only: what an element costs, at least 1 */
};

struct extent {
    uint32_t tensor;
    uint32_t shard;
    uint64_t first_quantum;
    uint64_t quantum_count; /* at least 1 */
};

struct layout {
    uint64_t version; /* of the table within its job: 1 and up */
    uint32_t shard_count;
    uint32_t tensor_count;
    size_t extent_count;

    /* owned: freed by layout_close */
    struct extent *extents;    /* [extent_count], by tensor, then first_quantum */
    size_t *tensor_extents;    /* [tensor_count + 1], tensor t has extents [t], ..., [t + 1] - 1 */
    uint32_t *by_shard;        /* [extent_count], numbers of extents, by shard, then as above */
    size_t *shard_extents;     /* [shard_count + 1], where a shard's part of by_shard begins */
    struct geometry *geometry; /* [tensor_count] */

    /* BLAKE2b-256 over shard_count and, by name, every tensor's name, shape and owners. The version and the
     * order of the list are left out: two layouts with the same hash are the same table. */
    uint8_t hash[CAIRN_LAYOUT_HASH_BYTES];
};

/* Makes a layout from a table. `extents` is malloc'ed memory; on success it belongs to the layout,
 * otherwise it stays the caller's. CAIRN_ERR_INVALID: a limit, a shape, two tensors with one name, or a
 * table that does not cover every quantum of every tensor exactly once, in order. CAIRN_ERR_NO_MEMORY. */
cairn_status layout_make(const struct layout_tensor *tensors, uint32_t tensor_count,
                         uint32_t shard_count, uint64_t version, struct extent *extents,
                         size_t extent_count, struct layout **layout_out) CAIRN_MUST_CHECK;
/* NULL is allowed. */
void layout_close(struct layout *layout);

/* The encoding, little-endian: "CLAY", u32 format 1, u64 version, u32 shard_count, u32 tensor_count,
 * u64 extent_count; for each tensor a u32 count of extents; for each extent u64 quantum_count and
 * u32 shard (the first quantum follows from the extents before); the 32 bytes of the hash. */
size_t layout_encoded_bytes(const struct layout *layout);
/* Writes layout_encoded_bytes bytes. */
void layout_encode(const struct layout *layout, uint8_t *out);
/* `data` may come from an untrusted peer; the tensors are ours. Memory is bounded by 4 times `bytes` plus a
 * constant for each of our tensors. CAIRN_ERR_MALFORMED: not a layout of these tensors, or the hash does
 * not match. CAIRN_ERR_INVALID: our tensors are at fault. CAIRN_ERR_NO_MEMORY. */
cairn_status layout_decode(const uint8_t *data, size_t bytes, const struct layout_tensor *tensors,
                           uint32_t tensor_count, struct layout **layout_out) CAIRN_MUST_CHECK;

/* The extents of a tensor, `*count_out` of them (0 for an empty tensor). */
const struct extent *layout_tensor_extents(const struct layout *layout, uint32_t tensor,
                                           size_t *count_out);
/* The extent that holds a leaf: its shard is the owner. NULL if there is no such tensor or leaf. */
const struct extent *layout_find(const struct layout *layout, uint32_t tensor, uint64_t leaf);

/* True if the shard, whose number may be any, has an extent. */
bool layout_owns(const struct layout *layout, uint32_t shard);
/* Counts the pieces in which the tensors lie: a run of neighbouring extents of one owner is one piece. */
size_t layout_pieces(const struct layout *layout);
/* True if both layouts have the same owners, even if the layouts' numbers differ. Then a copy that is
 * published in one layout can be read by the other's table. */
bool layout_same(const struct layout *a, const struct layout *b);
/* Returns the first 8 bytes of the hash, little-endian; messages name the table by this number. */
uint64_t layout_number(const struct layout *layout);

/* An extent as its shard sees it. */
struct local_extent {
    uint32_t tensor;
    uint64_t first_leaf, leaf_count;   /* in the tensor */
    uint64_t first_elem, elem_count;   /* in the tensor */
    uint64_t local_elem;               /* the place of its first element in the shard's state */
    uint64_t first_chunk, chunk_count; /* local */
};

/* The part of a job that one shard owns. */
struct shard_map {
    uint32_t shard;
    uint32_t chunk_leaves;
    size_t extent_count;
    uint64_t elem_count; /* of the shard's state */
    uint64_t local_end;  /* after the last local element: more than elem_count if there are gaps */
    uint64_t leaf_count;
    uint64_t chunk_count;
    struct local_extent *extents; /* owned: [extent_count], by tensor, then first_leaf */
    const struct layout *layout;  /* borrowed: must outlive the map */
};

struct chunk_place {
    uint32_t tensor;
    uint64_t first_leaf;
    uint64_t leaf_count;
    uint64_t first_elem; /* in the tensor, row-major */
    uint64_t elem_count;
    uint64_t local_elem; /* in the shard's state */
};

/* The map of shard < shard_count, in chunks of chunk_leaves >= 1. CAIRN_ERR_INVALID,
 * CAIRN_ERR_NO_MEMORY. */
cairn_status shard_map_init(struct shard_map *map, const struct layout *layout, uint32_t shard,
                            uint32_t chunk_leaves) CAIRN_MUST_CHECK;
/* Makes the map of a layout that follows others: an extent that is one of `before`, or a part of one, keeps
 * its local elements; any other extent gets the first free ones that fit, which are neither in `before` nor
 * in `beside` (may be NULL). If `dense` [tensor_count] (may be NULL) is set for a tensor, a part that does
 * not begin where its old extent began also gets new local elements. All three maps are of one shard and of
 * the same tensors. CAIRN_ERR_INVALID also if an extent is partly in `before`, or in two of its extents. */
cairn_status shard_map_init_from(struct shard_map *map, const struct layout *layout, uint32_t shard,
                                 uint32_t chunk_leaves, const struct shard_map *before,
                                 const struct shard_map *beside,
                                 const bool *dense) CAIRN_MUST_CHECK;
void shard_map_release(struct shard_map *map);

/* The local extent that holds a leaf; NULL if this shard does not own it. */
const struct local_extent *shard_map_find(const struct shard_map *map, uint32_t tensor,
                                          uint64_t leaf);
/* The extent of a chunk < chunk_count. */
const struct local_extent *shard_map_extent(const struct shard_map *map, uint64_t chunk);
/* Chunk number -> its place. chunk < chunk_count. */
struct chunk_place shard_map_chunk(const struct shard_map *map, uint64_t chunk);
/* A range of leaves -> the number of its chunk. CAIRN_ERR_NOT_FOUND: this shard does not own the
 * first leaf; CAIRN_ERR_INVALID: it does, but the range is not exactly one chunk of the grid. The
 * numbers may come from an untrusted peer. */
cairn_status shard_map_chunk_number(const struct shard_map *map, uint32_t tensor,
                                    uint64_t first_leaf, uint64_t leaf_count,
                                    uint64_t *chunk_out) CAIRN_MUST_CHECK;

/* ==== published ==== */

/* A published copy of a job's part on one shard, as processes on the shard's host map it: read-only, and
 * without asking the shard.
 *
 *   the head         one page, a struct published_head: which version the copy has now
 *   the segments     the shard's extents in the order of its map, each in its tensor's wire dtype, as
 *                    one array that is cut every CAIRN_SEGMENT_BYTES
 *
 * Head and segments are shown as regions, each with a note, in any order; a reader that has all regions of
 * a copy maps its segments side by side. A copy of state on a card also has its segments there, for
 * processes that use that card: the device side. The head, in host memory, tells which sides have the
 * version.
 *
 * An extent that is a whole tensor begins at a multiple of 64 bytes. An extent that is a part of its tensor
 * begins where its place in the copy and its first byte's place in the tensor agree modulo the page: so a
 * reader can map the parts of several shards one after another, page by page, and has the tensor in one
 * piece; only the pages in which two parts meet have to be copied. Both ends use published_place, which
 * implements this rule.
 *
 * A later version overwrites a copy while somebody may be reading it. The copy is a sequence lock (Lameter,
 * "Effective synchronization on Linux/NUMA systems", 2005): the bytes that were read belong to the
 * requested version if the sequence is even, and the same before and after the read. A reader that keeps
 * pointers into the copy checks again after use. */

#define CAIRN_PUBLISHED_PAGE_BYTES 4096
#define CAIRN_PUBLISHED_MAGIC      0x434e5251u /* "QRNC" */

struct published_head {
    uint32_t magic;
    uint32_t shard;            /* index in the layout */
    uint64_t job;              /* the job's number */
    uint64_t layout_hash;      /* first 8 bytes of the layout's hash */
    uint64_t bytes;            /* of all segments */
    _Atomic uint64_t sequence; /* odd: being written, or never written */
    _Atomic uint64_t generation, step;
    _Atomic uint32_t sides; /* bits of enum published_side */
    _Atomic uint32_t copy;  /* as in its regions' notes; older numbers are out of use */
};

enum published_side {
    CAIRN_PUBLISHED_HOST = 1,
    CAIRN_PUBLISHED_DEVICE = 2, /* the card's memory has no seals: see gpu/gpu.h */
};

/* The note of each region (proto/fabric/fabric.h) of such a copy. */
struct published_note {
    uint32_t magic; /* CAIRN_PUBLISHED_MAGIC */
    uint32_t shard;
    uint64_t job;
    uint64_t layout_hash;
    uint64_t incarnation; /* of the shard */
    uint32_t copy;        /* the copy's number, unique in this incarnation */
    uint32_t segment;     /* which segment this is; segment_count: the head */
    uint32_t segment_count;
    uint32_t side; /* one of enum published_side; the head has HOST */
};

/* Returns the byte in the copy at which an extent of the map begins, after *end; *end becomes the extent's
 * end. Begin with *end = 0 and take the map's extents in order. The last *end is the bytes of all
 * segments. */
uint64_t published_place(const struct shard_map *map, size_t extent, size_t elem_bytes,
                         uint64_t *end);

/* Turns a page of zeros into the head of a copy that was never written. */
void published_head_init(struct published_head *head, const struct shard_map *map, uint64_t job,
                         uint64_t bytes);
/* Gives the copy a new number. Call it before anything is written to the regions that have this number. */
void published_set_copy(struct published_head *head, uint32_t copy);
/* The writer calls these around a new version; only one writer at a time. */
void published_write_begin(struct published_head *head);
void published_write_end(struct published_head *head, struct cairn_version version, uint32_t sides);
/* Changes the sides that have the current version; bytes of this version that a reader has read stay
 * valid. */
void published_set_sides(struct published_head *head, uint32_t sides);
/* A reader calls this before it reads regions whose notes have the number `copy`. False: the copy has
 * another version, is being written, does not have the version on that side, or now has another number. */
bool published_read_begin(const struct published_head *head, uint32_t copy,
                          struct cairn_version version, enum published_side side,
                          uint64_t *sequence_out);
/* True: everything read since read_begin belongs to one version. */
bool published_read_end(const struct published_head *head, uint64_t sequence);

/* ==== since ==== */

/* Tells a member that keeps the layouts of its job from which version on a layout is in use. LayoutChanged
 * names that version; for Attached it follows from the layout that the message names. Pure. */

/* Attached names the layout in which the newest version is published. A member that knows that layout may
 * have heard that the layout is in use only from a later version on. Then the newest version was published
 * again in this layout while the member was not attached, and the shards that had that version before may
 * be gone. */
struct cairn_version since_attached(struct cairn_version since, struct cairn_version newest);

/* Attached also tells the number of the layout in force. True: the member knows a later layout, and must
 * not push by that later layout. The later layout was durable before anyone heard of it, so the
 * coordinator's store is an older copy, or was rebuilt from what shards hold. */
bool layout_goes_back(uint64_t newest_known, uint64_t in_force);

/* ==== boxes ==== */

/* Boxes of a tensor: the part that a worker holds if it does not hold all of it (struct cairn_box,
 * tensor.h).
 *
 *   box memory    the box's elements, dense and row-major: they are in this order in a worker's memory
 *   box element   an index in box memory, [0, box_element_count)
 *   tensor index  an index in the row-major tensor, [0, elements of the shape)
 *
 * Row-major order of the tensor and of the box agree on the box's elements. So the elements that a box
 * shares with a range of tensor indices (a chunk) are one contiguous piece of box memory: [before(first),
 * before(first + count)). A worker sends that piece as it lies; a process that has the whole tensor in
 * memory walks the runs. A box with an extent of 0 is empty, which is valid.
 *
 * Pure: no allocation, no input or output, no state. Unless said otherwise, boxes have passed box_check,
 * and shapes shape_check. */

/* Checks a box from an untrusted peer against a checked shape: it must have as many dimensions, and must
 * not reach beyond the tensor. CAIRN_ERR_INVALID; `why` names the dimension and the numbers. */
cairn_status box_check(const struct cairn_box *box, const struct shape *shape,
                       struct sentence *why) CAIRN_MUST_CHECK;
/* The box that is the whole tensor. */
struct cairn_box box_of_shape(const struct shape *shape);
/* Elements of the box; 1 for a box without dimensions (a scalar). */
uint64_t box_element_count(const struct cairn_box *box);
bool box_is_whole(const struct cairn_box *box, const struct shape *shape);
bool box_equal(const struct cairn_box *a, const struct cairn_box *b);
/* True if the two boxes of one tensor have an element in common. */
bool box_overlap(const struct cairn_box *a, const struct cairn_box *b);

/* Returns how many of the box's elements have a tensor index < index, for index <= elements of the tensor.
 * Costs one division for each dimension. */
uint64_t box_before(const struct cairn_box *box, const struct shape *shape, uint64_t index);

/* Walks the elements that a box and a range of tensor indices share, in the fewest runs that are contiguous
 * in the tensor, ascending. Each call of box_runs_next costs one division for each dimension. */
struct box_runs {
    struct cairn_box box;
    uint64_t stride[CAIRN_RANK_MAX]; /* elements of the tensor in one index of a dimension */
    uint32_t outer;                  /* dimensions that a run does not span */
    uint64_t run_elems;              /* elements of a full run */
    uint64_t base;                   /* tensor index of the box's first element */
    uint64_t next, end;              /* box elements still to walk */
};
/* The range must be within the tensor. */
void box_runs_begin(struct box_runs *runs, const struct cairn_box *box, const struct shape *shape,
                    uint64_t first_elem, uint64_t elem_count);
/* False if no run is left; then nothing is set. */
bool box_runs_next(struct box_runs *runs, uint64_t *tensor_elem_out, uint64_t *box_elem_out,
                   uint64_t *count_out);

/* The encoding, little-endian: u32 rank, a u64 start for each dimension, a u64 extent for each
 * dimension. */
#define CAIRN_BOX_BYTES_MAX (4 + 16 * CAIRN_RANK_MAX)
/* Returns how many bytes were written. */
size_t box_encode(const struct cairn_box *box, uint8_t out[CAIRN_BOX_BYTES_MAX]);
/* Decodes a box from an untrusted peer: the caller must check the result. CAIRN_ERR_MALFORMED: not
 * exactly one box. */
cairn_status box_decode(const uint8_t *bytes, size_t size,
                        struct cairn_box *box_out) CAIRN_MUST_CHECK;

/* Prints any box as "[0:512, 128:256]": for each dimension the first index, and the first after it. Returns
 * out. */
#define CAIRN_BOX_TEXT_BYTES 352
const char *box_text(const struct cairn_box *box, char out[CAIRN_BOX_TEXT_BYTES]);

#endif
