/* Areas: the parts of a job's planes that lie on a device. One area is taken for the extents that
 * the job has when it is made, and one for the extents that come with each later layout; extents
 * that stay keep their places. In an area plane follows plane, and in a plane the extents that keep
 * it stand one behind the other. A segment of an area in which nothing is left goes back to the
 * device, and the area goes with its last segment.
 *
 * Places are as constant as the view that has them (collect/view.h): any thread may follow them.
 * All else: loop thread. */
#ifndef CAIRN_SHARD_MEMORY_AREA_H
#define CAIRN_SHARD_MEMORY_AREA_H

#include "server/shard/memory/plane.h"

struct cairn_area_segment {
    bool is_gone; /* it went back to the device */
    bool in_use;  /* of cairn_place_mark */
};

struct cairn_area {
    struct cairn_area *next;             /* in planes.areas */
    uint32_t refs;                       /* of that list, and of places */
    struct cairn_arena arena;            /* owned */
    struct cairn_arena to;               /* owned: where it goes, on its way: job/park.h */
    struct cairn_area_segment *segments; /* owned: of the arena */
};

/* Where an extent's part on a device stands. */
struct cairn_area_place {
    struct cairn_area *area;   /* counted; NULL: nothing of it lies on a device */
    uint64_t at[CAIRN_PLANES]; /* bytes, of the area; of planes that it keeps */
};

/* One more, at 0. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status cairn_area_add(struct cairn_planes *planes, struct cairn_home *device,
                                             uint64_t bytes, struct cairn_area **area_out,
                                             struct cairn_sentence *why);
/* Counts one less; NULL is fine. */
void cairn_area_unref(struct cairn_area *area);
/* Gives back what nothing is in that is marked: places of so many elements each. Nothing works on it. */
void cairn_areas_unmark(struct cairn_planes *planes);
void cairn_place_mark(const struct cairn_area_place *place, const struct cairn_form *form,
                      uint64_t elems);
void cairn_areas_trim(struct cairn_planes *planes, struct cairn_shard *shard);
/* They lie on the device anew, whole: gives back what was given before. */
void cairn_areas_give_gone(struct cairn_planes *planes);
/* The bytes that the areas take of the device, with the bytes that no element uses. */
uint64_t cairn_areas_bytes(const struct cairn_planes *planes);
/* True if the segment of the area in which `at` lies went back to the device. */
bool cairn_area_is_gone(const struct cairn_area *area, uint64_t at);
/* All of them; on another thread, if `shard` is not NULL. */
void cairn_areas_close(struct cairn_planes *planes, struct cairn_shard *shard);

#endif
