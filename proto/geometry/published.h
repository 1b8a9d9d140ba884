/* A published copy of a job's part on one shard, as processes of the shard's host map it: read-only,
 * without asking.
 *
 *   the head         a page: struct cairn_published_head: which version this is, now
 *   the segments     the shard's extents in the order of its map, each in its tensor's wire dtype, as if
 *                    there were one array: it is cut every CAIRN_SEGMENT_BYTES
 *
 * Head and segments are shown as regions, each with a note, in any order; a reader that has all of a copy
 * maps its segments side by side. A copy of state on a card has its segments there, too, for processes that
 * use that card: its other side. The head, in host memory, says which sides have the version.
 *
 * An extent that is a whole tensor begins at a multiple of 64 bytes. One that is a part of its tensor
 * begins where (its place in the copy) and (its first byte's place in the tensor) agree modulo the page:
 * so a reader can map the parts of several shards one behind another, page by page, and has the tensor in
 * one piece; only the pages in which two parts meet have to be copied. cairn_published_place is the one
 * rule, for both ends.
 *
 * A copy is overwritten by a later version while somebody may be reading it. It is a sequence lock
 * (Lameter, "Effective synchronization on Linux/NUMA systems", 2005): what was read is of the version
 * that was asked for if the sequence is even and the same before and after. A reader that keeps pointers
 * into it asks again after use. */
#ifndef CAIRN_GEOMETRY_PUBLISHED_H
#define CAIRN_GEOMETRY_PUBLISHED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/pages.h"
#include "proto/geometry/layout.h"

#define CAIRN_PUBLISHED_PAGE_BYTES 4096
#define CAIRN_PUBLISHED_MAGIC      0x434e5251u /* "QRNC" */

struct cairn_published_head {
    uint32_t magic;
    uint32_t shard;            /* index in the layout */
    uint64_t job;              /* its number */
    uint64_t layout_hash;      /* first 8 bytes of the layout's */
    uint64_t bytes;            /* of all its segments */
    _Atomic uint64_t sequence; /* odd: being written, or never written */
    _Atomic uint64_t generation, step;
    _Atomic uint32_t sides; /* of enum cairn_published_side */
    _Atomic uint32_t copy;  /* as in the notes of its regions: those of before are of it no more */
};

enum cairn_published_side {
    CAIRN_PUBLISHED_HOST = 1,
    CAIRN_PUBLISHED_DEVICE = 2, /* its memory has no seals: see gpu/home.h */
};

/* The note of each region (proto/fabric/fabric.h) that such a copy is. */
struct cairn_published_note {
    uint32_t magic; /* CAIRN_PUBLISHED_MAGIC */
    uint32_t shard;
    uint64_t job;
    uint64_t layout_hash;
    uint64_t incarnation; /* of the shard */
    uint32_t copy;        /* no other of this incarnation has the number */
    uint32_t segment;     /* which it is; segment_count: the head */
    uint32_t segment_count;
    uint32_t side; /* of enum cairn_published_side; the head's: HOST */
};

/* Where an extent of the map stands, in bytes, behind *end; *end becomes its end. Begin with *end = 0 and go
 * through the map's extents in order. The bytes of all segments are the last *end. */
uint64_t cairn_published_place(const struct cairn_shard_map *map, size_t extent, size_t elem_bytes,
                               uint64_t *end);

/* A page of zeros becomes the head of a copy that was never written. */
void cairn_published_head_init(struct cairn_published_head *head, const struct cairn_shard_map *map,
                               uint64_t job, uint64_t bytes);
/* It is shown under this number from now on, before anything is written to regions that have it. */
void cairn_published_set_copy(struct cairn_published_head *head, uint32_t copy);
/* The writer, around a new version. One at a time. */
void cairn_published_write_begin(struct cairn_published_head *head);
void cairn_published_write_end(struct cairn_published_head *head, struct cairn_version version,
                               uint32_t sides);
/* The same version, on other sides from now on: what was read of it is whole all the same. */
void cairn_published_set_sides(struct cairn_published_head *head, uint32_t sides);
/* The reader of regions whose notes have the number `copy`. False: it is another version, or being written,
 * or that side has it not, or it is shown under another number. */
bool cairn_published_read_begin(const struct cairn_published_head *head, uint32_t copy,
                                struct cairn_version version, enum cairn_published_side side,
                                uint64_t *sequence_out);
/* True: all that was read since read_begin is whole. */
bool cairn_published_read_end(const struct cairn_published_head *head, uint64_t sequence);

#endif
