#include "server/shard/collect/view.h"

#include <assert.h>
#include <stdlib.h>

#include "server/shard/memory/plane.h"

struct cairn_shard_view *cairn_shard_view_ref(struct cairn_shard_view *view)
{
    view->refs++;
    return view;
}

void cairn_shard_view_unref(struct cairn_shard_view *view)
{
    if (view == NULL) return;
    assert(view->refs > 0);
    if (--view->refs > 0) return;
    free(view->forms);
    cairn_shard_view_places_close(view);
    cairn_chunk_table_close(&view->table);
    cairn_layout_close(view->layout);
    free(view);
}

/* ---- what one has and another has not ---- */

struct search {
    const struct cairn_shard_view *in;
    void (*each)(void *context, const struct cairn_shard_view_run *run);
    void *context;
};

/* The leaves [first, end) of an extent. */
static void give(const struct search *search, size_t number, uint64_t first, uint64_t end)
{
    const struct cairn_local_extent *extent = &search->in->table.map.extents[number];
    const struct cairn_geometry *geometry = &search->in->layout->geometry[extent->tensor];
    if (first == end) return;
    struct cairn_shard_view_run run = {
        .extent = number,
        .tensor = extent->tensor,
        .first_leaf = first,
        .leaf_count = end - first,
        .first_elem = cairn_leaf_first_elem(geometry, first),
    };
    run.elem_count = cairn_leaf_first_elem(geometry, end) - run.first_elem;
    run.local_elem = extent->local_elem + (run.first_elem - extent->first_elem);
    search->each(search->context, &run);
}

void cairn_shard_view_beyond(const struct cairn_shard_view *in,
                             const struct cairn_shard_view *beside,
                             void (*each)(void *context, const struct cairn_shard_view_run *run),
                             void *context)
{
    const struct search search = { in, each, context };
    const struct cairn_shard_map *map = &in->table.map;
    const struct cairn_local_extent *other = beside != NULL ? beside->table.map.extents : NULL;
    const struct cairn_local_extent *end = beside != NULL ? other + beside->table.map.extent_count
                                                          : NULL;
    for (size_t i = 0; i < map->extent_count; i++) {
        const struct cairn_local_extent *e = &map->extents[i];
        const uint64_t last = e->first_leaf + e->leaf_count;
        uint64_t at = e->first_leaf; // all before it is told
        while (other != end &&
               (other->tensor < e->tensor ||
                (other->tensor == e->tensor && other->first_leaf + other->leaf_count <= at)))
            other++;
        for (const struct cairn_local_extent *o = other;
             o != end && o->tensor == e->tensor && o->first_leaf < last; o++) {
            if (o->first_leaf > at) give(&search, i, at, o->first_leaf);
            const uint64_t until = o->first_leaf + o->leaf_count;
            at = until < last ? until : last;
        }
        give(&search, i, at, last);
    }
}
