/* Where what a view has lies on a device: kept from the view before, or new. */
#include <stdlib.h>

#include "server/shard/collect/view.h"
#include "server/shard/memory/area.h"

/* Where it is, as a part of what it was a part of. */
static bool keep_place(const struct cairn_shard_view *view, size_t number,
                       const struct cairn_shard_view *before)
{
    const struct cairn_local_extent *extent = &view->table.map.extents[number];
    const struct cairn_local_extent *was =
        before == NULL
            ? NULL
            : cairn_shard_map_find(&before->table.map, extent->tensor, extent->first_leaf);
    if (was == NULL) return false;
    const struct cairn_area_place *place = &before->places[was - before->table.map.extents];
    view->places[number] = *place;
    for (enum cairn_plane p = 0; p < CAIRN_PLANES; p++)
        view->places[number].at[p] += cairn_form_bytes(&view->forms[number], p,
                                                       extent->first_elem - was->first_elem);
    if (place->area != NULL) place->area->refs++;
    return true;
}

/* The planes of an extent that comes, each by itself so far. */
static void place_new(const struct cairn_shard_view *view, size_t number, uint64_t host_from,
                      uint64_t *end_bytes)
{
    const uint64_t elems = cairn_extent_before(&view->table.map.extents[number], host_from);
    for (enum cairn_plane p = 0; p < CAIRN_PLANES; p++)
        view->places[number].at[p] = cairn_plane_place(&view->forms[number], p, elems,
                                                       &end_bytes[p]);
}

cairn_status cairn_shard_view_places_open(struct cairn_shard_view *view,
                                          const struct cairn_shard_view *before, uint64_t host_from,
                                          uint64_t *bytes_out)
{
    const size_t count = view->table.map.extent_count;
    uint64_t end_bytes[CAIRN_PLANES] = { 0 }, begin_bytes[CAIRN_PLANES] = { 0 };
    bool *comes = calloc(count + 1, sizeof *comes);
    view->places = calloc(count + 1, sizeof *view->places);
    if (comes == NULL || view->places == NULL) {
        free(comes);
        return CAIRN_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        comes[i] = !keep_place(view, i, before);
        if (comes[i]) place_new(view, i, host_from, end_bytes);
    }
    for (enum cairn_plane p = 1; p < CAIRN_PLANES; p++)
        begin_bytes[p] = begin_bytes[p - 1] + end_bytes[p - 1];
    for (size_t i = 0; i < count; i++)
        for (enum cairn_plane p = 0; p < CAIRN_PLANES && comes[i]; p++)
            view->places[i].at[p] += begin_bytes[p];
    free(comes);
    *bytes_out = begin_bytes[CAIRN_PLANES - 1] + end_bytes[CAIRN_PLANES - 1];
    return CAIRN_OK;
}

void cairn_shard_view_places_close(struct cairn_shard_view *view)
{
    for (size_t i = 0; view->places != NULL && i < view->table.map.extent_count; i++)
        cairn_area_unref(view->places[i].area);
    free(view->places);
    view->places = NULL;
}

cairn_status cairn_shard_view_area_add(struct cairn_shard_view *view, struct cairn_planes *planes,
                                       struct cairn_home *device, uint64_t bytes,
                                       struct cairn_sentence *why)
{
    struct cairn_area *area;
    if (bytes == 0) return CAIRN_OK;
    const cairn_status status = cairn_area_add(planes, device, bytes, &area, why);
    if (status != CAIRN_OK) return status;
    for (size_t i = 0; i < view->table.map.extent_count; i++) {
        if (view->places[i].area != NULL) continue;
        view->places[i].area = area;
        area->refs++;
    }
    return CAIRN_OK;
}

void cairn_shard_views_keep(const struct cairn_shard_view *const *views, size_t view_count,
                            struct cairn_planes *planes, struct cairn_shard *shard)
{
    cairn_areas_unmark(planes);
    for (size_t v = 0; v < view_count; v++)
        for (size_t i = 0; views[v] != NULL && i < views[v]->table.map.extent_count; i++)
            cairn_place_mark(&views[v]->places[i], &views[v]->forms[i],
                             views[v]->table.map.extents[i].elem_count);
    cairn_areas_trim(planes, shard);
}

void *cairn_shard_view_at(const struct cairn_shard_view *view, const struct cairn_planes *planes,
                          int plane, size_t extent, uint64_t local_elem)
{
    return cairn_planes_home_at(
        planes, &view->forms[extent], view->places != NULL ? &view->places[extent] : NULL,
        (enum cairn_plane)plane, view->table.map.extents[extent].local_elem, local_elem);
}
