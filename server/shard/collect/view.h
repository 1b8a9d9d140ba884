/* A view: a layout as this shard works by it. A job has the one in force, which changes between rounds
 * (job/switch.h); a published copy has the one that it was written in, so that a version is read by the
 * layout that it was published in. Nothing of a view changes once it is whole: any thread reads it. The loop
 * thread counts who refers to it, and alone reads the number of its layout, which may become another one. */
#ifndef CAIRN_SHARD_COLLECT_VIEW_H
#define CAIRN_SHARD_COLLECT_VIEW_H

#include "server/shard/collect/chunk_table.h"

struct cairn_form;
struct cairn_area_place;

struct cairn_shard_view {
    uint32_t refs;
    struct cairn_layout *layout; /* owned */
    struct cairn_chunk_table
        table; /* owned: of the layout; its map may be there before its numbers are */
    struct cairn_form *forms; /* owned: [table.map.extent_count] */
    struct cairn_area_place
        *places;         /* owned: the same, of state on a device (memory/area.h); or NULL */
    uint64_t wire_bytes; /* of a published copy */
    uint64_t published_bytes,
        table_bytes; /* of the memory of a job by it, as of struct cairn_memory */
};

/* Counts one more who refers to it; gives the view. */
struct cairn_shard_view *cairn_shard_view_ref(struct cairn_shard_view *view);
/* Counts one less; the last one frees it. NULL is fine. */
void cairn_shard_view_unref(struct cairn_shard_view *view);

/* Elements that are in one view of a shard, and not in another. They lie in one extent. */
struct cairn_shard_view_run {
    size_t extent; /* of the one view's map */
    uint32_t tensor;
    uint64_t first_leaf, leaf_count; /* of the tensor */
    uint64_t first_elem, elem_count; /* of the tensor */
    uint64_t local_elem;             /* where the first stands in the shard's state */
};

/* Calls `each` for all runs of `in` that `beside` has not, by tensor, then by element. With (view,
 * the one before) these are the runs that come with a view; with (the one before, view), those that
 * go. Both are of one job and shard; beside NULL: it has nothing. Any thread. */
void cairn_shard_view_beyond(const struct cairn_shard_view *in,
                             const struct cairn_shard_view *beside,
                             void (*each)(void *context, const struct cairn_shard_view_run *run),
                             void *context);

/* ---- view_places.c: on a device (memory/area.h); loop thread, but the last one ---- */

struct cairn_home;
struct cairn_planes;
struct cairn_shard;

/* Gives the view its places: of what `before` (NULL: nothing was) has, too, those of before; for all else an
 * area is to follow, of *bytes_out. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_shard_view_places_open(struct cairn_shard_view *view,
                                                           const struct cairn_shard_view *before,
                                                           uint64_t host_from, uint64_t *bytes_out);
/* Safe to call again, and of a view that has none. */
void cairn_shard_view_places_close(struct cairn_shard_view *view);
/* The area that follows, at 0. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status cairn_shard_view_area_add(struct cairn_shard_view *view,
                                                        struct cairn_planes *planes,
                                                        struct cairn_home *device, uint64_t bytes,
                                                        struct cairn_sentence *why);
/* Gives back all in which nothing is of one of these views (NULL: none). Nothing works on it. */
void cairn_shard_views_keep(const struct cairn_shard_view *const *views, size_t view_count,
                            struct cairn_planes *planes, struct cairn_shard *shard);
/* Where a local element of an extent of the view stands, in its home. NULL: the extent does not keep the
 * plane. The view is that of the planes, the one of before, or the one to come; any thread. */
void *cairn_shard_view_at(const struct cairn_shard_view *view, const struct cairn_planes *planes,
                          int plane, size_t extent, uint64_t local_elem);

/* ---- view_memory.c; loop thread ---- */

struct cairn_reserve;
struct cairn_shard_job;

/* Within `prepare` of a reserve: the pages of what comes to the job with `view`, a whole one: of its planes,
 * which have addresses for it. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_shard_view_reserve(const struct cairn_shard_job *job,
                                                       const struct cairn_shard_view *view,
                                                       struct cairn_reserve *reserve);
/* The pages of what `view` has, and the job's view has not, go back to the system, on another thread: state
 * that went, or that does not come after all. Nobody uses it; what is reserved from here on may lie there. */
void cairn_shard_view_give(struct cairn_shard_job *job, const struct cairn_shard_view *view);

#endif
