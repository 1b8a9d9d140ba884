/* The planes of a job's part: parameters, the optimizer's moments and the sums of a round. One
 * table (plane.c) says what each plane is, and code that handles planes walks all of them by
 * number: another plane is one more line of the table.
 *
 *   local elements   0 ......... host_from ......... local_end
 *                    on a device │ in host memory
 *
 * All planes of an element lie in one home: an update works in one. Elements are touched by works of their
 * home (base/works.h), by any thread; the thread that opens planes closes them. */
#ifndef CAIRN_SHARD_MEMORY_PLANE_H
#define CAIRN_SHARD_MEMORY_PLANE_H

#include <stdbool.h>

#include "proto/geometry/layout.h"
#include "proto/geometry/tensor.h"
#include "server/shard/memory/arena.h"

struct cairn_area;
struct cairn_area_place;
struct cairn_reserve;
struct cairn_shard;
struct cairn_works;

/* The sums of the round at hand have no number on the wire. */
#define CAIRN_PLANE_SUM CAIRN_PLANE_COUNT
#define CAIRN_PLANES    (CAIRN_PLANE_SUM + 1)

/* The form of an extent of the job here, as the kernels see it: numbered as map.extents. */
struct cairn_form {
    bool trained;
    cairn_dtype wire, master; /* f32; a blob's is u8, both */
    uint32_t group;           /* of a trained tensor, in the spec's groups */
    uint32_t planes;          /* bits 1u << CAIRN_PLANE_...: those that the extent keeps */
    uint64_t wire_byte;       /* where the extent's first element stands in a published copy */
};

/* The plane is state: snapshots store it, and members fetch and write it. Any number may be asked. */
bool cairn_plane_is_state(int plane);
bool cairn_form_keeps(const struct cairn_form *form, enum cairn_plane plane);
/* The extent keeps the plane, and the plane is state. Any number may be asked. */
bool cairn_form_stores(const struct cairn_form *form, int plane);
cairn_dtype cairn_form_dtype(const struct cairn_form *form, enum cairn_plane plane);
/* The bytes of so many elements of the extent; 0: the extent does not keep the plane. */
uint64_t cairn_form_bytes(const struct cairn_form *form, enum cairn_plane plane, uint64_t elems);

/* In host memory a plane stands by local element, a word of 4 bytes each: a blob's bytes stand dense where
 * its extent begins, and the rest of its words is never touched, as words of extents that do not keep it.
 * On a device what is not touched is taken, too: there the extents that keep a plane stand one behind the
 * other, each at a multiple of CAIRN_PLANE_ALIGN (area.h). A plane that no extent keeps is empty. */
struct cairn_planes {
    const struct cairn_shard_map *map;     /* borrowed */
    const struct cairn_form *forms;        /* borrowed: [map->extent_count] */
    const struct cairn_area_place *places; /* borrowed: the same; NULL: no device */
    uint64_t host_from; /* at the beginning of a chunk; 0: no device; CAIRN_PLANES_ALL: all on it */
    uint64_t room_elems; /* local elements that there are addresses for in host memory, at least */
    bool parked;         /* what stands before host_from is in host memory for now: job/park.h */
    struct cairn_arena host[CAIRN_PLANES]; /* owned; for plane.c alone */
    struct cairn_area *areas; /* owned; for area.c and park.c alone: what stands before host_from */
};
#define CAIRN_PLANES_ALL UINT64_MAX

#define CAIRN_PLANE_ALIGN 512u
/* Memory of a device is taken in multiples of this, since cards give it in such units. */
#define CAIRN_PLANE_UNIT_BYTES ((uint64_t)2 << 20)
static inline uint64_t cairn_plane_units(uint64_t bytes)
{
    return (bytes + CAIRN_PLANE_UNIT_BYTES - 1) / CAIRN_PLANE_UNIT_BYTES * CAIRN_PLANE_UNIT_BYTES;
}

/* Where an extent's part on a device begins in a plane that has *end_bytes so far; adds it to them. */
uint64_t cairn_plane_place(const struct cairn_form *form, enum cairn_plane plane, uint64_t elems,
                           uint64_t *end_bytes);
/* How many elements of an extent lie before a local element. */
uint64_t cairn_extent_before(const struct cairn_local_extent *extent, uint64_t local_elem);

/* host_from of a map whose elements lie on a device, but for at least this fraction of them. */
uint64_t cairn_planes_cut(const struct cairn_shard_map *map, double host_fraction);

/* Up to which element they lie on a device now. */
uint64_t cairn_planes_device_end(const struct cairn_planes *planes);

/* Opens a job's planes in host memory, all 0: elements from host_from on, which may later grow to
 * room_elems local elements. On CAIRN_ERR_NO_MEMORY `planes` is to be closed all the same. */
CAIRN_MUST_CHECK cairn_status cairn_planes_open(struct cairn_planes *planes,
                                                const struct cairn_shard_map *map,
                                                const struct cairn_form *forms, uint64_t host_from,
                                                uint64_t room_elems, struct cairn_sentence *why);
/* The same on another thread: release.c. */
void cairn_planes_release(struct cairn_planes *planes, struct cairn_shard *shard);
/* Within `prepare` of a reserve: all that the extents keep in host memory, without the gaps between. */
CAIRN_MUST_CHECK cairn_status cairn_planes_reserve(const struct cairn_planes *planes,
                                                   struct cairn_reserve *reserve);
/* Addresses for what another map of the same shard has, too: none of it has pages, none of what is there
 * moves. Planes in host memory alone. CAIRN_ERR_NO_MEMORY: some may have got theirs. */
CAIRN_MUST_CHECK cairn_status cairn_planes_grow(struct cairn_planes *planes,
                                                const struct cairn_shard_map *map,
                                                const struct cairn_form *forms,
                                                struct cairn_sentence *why);
/* Within `prepare` of a reserve: of a plane in host memory, what so many elements take from a local one on;
 * `first`: the local element at which their extent begins, whose form it is. */
CAIRN_MUST_CHECK cairn_status cairn_planes_reserve_elems(
    const struct cairn_planes *planes, enum cairn_plane plane, const struct cairn_form *form,
    uint64_t first, uint64_t local_elem, uint64_t elems, struct cairn_reserve *reserve);
/* The bytes of state that the extents keep. */
uint64_t cairn_planes_state_bytes(const struct cairn_planes *planes);
/* Where a local element of an extent stands, in its home. NULL: the extent does not keep the plane. */
void *cairn_planes_at(const struct cairn_planes *planes, enum cairn_plane plane, size_t extent,
                      uint64_t local_elem);
/* The same of an extent that begins at local element `first`, of the map or of another one. */
void *cairn_planes_home_at(const struct cairn_planes *planes, const struct cairn_form *form,
                           const struct cairn_area_place *place, enum cairn_plane plane,
                           uint64_t first, uint64_t local_elem);
/* The same in host memory. */
void *cairn_planes_host_at(const struct cairn_planes *planes, const struct cairn_form *form,
                           enum cairn_plane plane, uint64_t first, uint64_t local_elem);
/* So many elements of the extent, from that one on, stand dense there, in cairn_form_dtype: up to the
 * extent's end, or to host_from. A chunk's always do. */
uint64_t cairn_planes_dense(const struct cairn_planes *planes, size_t extent, uint64_t local_elem);
/* Copies elements within an extent, of each plane of the state that both extents keep. */
void cairn_planes_copy(struct cairn_works *works, const struct cairn_planes *to, size_t to_extent,
                       uint64_t to_elem, const struct cairn_planes *from, size_t from_extent,
                       uint64_t from_elem, uint64_t elems);

#endif
