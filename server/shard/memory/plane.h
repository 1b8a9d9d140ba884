/* The planes of a job's part: parameters, the optimizer's moments and the sums of a round, an array each with
 * a home of its own: host memory, or a device's. What a plane is, one table says (plane.c), and who handles
 * planes walks all of them by number: one more is a line of that table. Elements are touched by works of
 * their home (base/works.h), by any thread; the thread that opens planes closes them. */
#ifndef CAIRN_SHARD_MEMORY_PLANE_H
#define CAIRN_SHARD_MEMORY_PLANE_H

#include <stdbool.h>

#include "proto/geometry/layout.h"
#include "proto/geometry/tensor.h"
#include "server/shard/memory/arena.h"

struct cairn_reserve;
struct cairn_shard;
struct cairn_tiled;
struct cairn_works;

/* The sums of the round at hand have no number on the wire. */
#define CAIRN_PLANE_SUM CAIRN_PLANE_COUNT
#define CAIRN_PLANES    (CAIRN_PLANE_SUM + 1)

/* The form of an extent of the job here, as the kernels see it: numbered as map.extents. */
struct cairn_form {
    bool trained;
    cairn_dtype wire, master;  /* f32; a blob's is u8, both */
    uint32_t group;            /* of a trained tensor, in the spec's groups */
    struct cairn_tiled *tiled; /* its tensor's; NULL: every member holds all of the tensor */
    uint32_t planes;           /* bits 1u << CAIRN_PLANE_...: those that the extent keeps */
    uint64_t wire_byte;        /* where the extent's first element stands in a published copy */
};

/* The plane is state: snapshots store it, and members fetch and write it. Any number may be asked. */
bool cairn_plane_is_state(int plane);
bool cairn_form_keeps(const struct cairn_form *form, enum cairn_plane plane);
/* The extent keeps the plane, and the plane is state. Any number may be asked. */
bool cairn_form_stores(const struct cairn_form *form, int plane);
cairn_dtype cairn_form_dtype(const struct cairn_form *form, enum cairn_plane plane);
/* What so many elements of the extent take; 0: it does not keep the plane. */
uint64_t cairn_form_bytes(const struct cairn_form *form, enum cairn_plane plane, uint64_t elems);

/* By local element, a word of 4 bytes each. A plane that no extent keeps is empty. A blob's bytes stand dense
 * where its extent begins, and the rest of its words is never touched. */
struct cairn_planes {
    const struct cairn_shard_map *map;     /* borrowed */
    const struct cairn_form *forms;        /* borrowed: [map->extent_count] */
    struct cairn_arena home[CAIRN_PLANES]; /* owned; for plane.c alone */
};

/* Those of a job, in a home, at 0. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO: to be closed all the same. */
CAIRN_MUST_CHECK cairn_status cairn_planes_open(struct cairn_planes *planes,
                                                const struct cairn_shard_map *map,
                                                const struct cairn_form *forms,
                                                struct cairn_home *home,
                                                struct cairn_sentence *why);
/* Room for a copy of the state of `of`, in anonymous memory of the host; the same. */
CAIRN_MUST_CHECK cairn_status cairn_planes_open_copy(struct cairn_planes *planes,
                                                     const struct cairn_planes *of,
                                                     struct cairn_sentence *why);
/* Safe to call again, and of what is all 0. */
void cairn_planes_close(struct cairn_planes *planes);
/* The same on another thread: release.c. */
void cairn_planes_release(struct cairn_planes *planes, struct cairn_shard *shard);
/* Within `prepare` of a reserve: all that the extents keep, without the gaps between. */
CAIRN_MUST_CHECK cairn_status cairn_planes_reserve(const struct cairn_planes *planes,
                                                   struct cairn_reserve *reserve);
/* What the extents keep of the state. */
uint64_t cairn_planes_state_bytes(const struct cairn_planes *planes);
/* Where in the home a local element of an extent stands: what is behind it up to the extent's end lies
 * dense in cairn_form_dtype. NULL: the extent does not keep the plane. */
void *cairn_planes_at(const struct cairn_planes *planes, enum cairn_plane plane, size_t extent,
                      uint64_t local_elem);
/* Copies elements within an extent, of each plane of the state that both extents keep. */
void cairn_planes_copy(struct cairn_works *works, const struct cairn_planes *to, size_t to_extent,
                       uint64_t to_elem, const struct cairn_planes *from, size_t from_extent,
                       uint64_t from_elem, uint64_t elems);

#endif
