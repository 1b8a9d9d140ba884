#include "server/shard/memory/plane.h"

#include <assert.h>
#include <stdlib.h>

#include "server/shard/memory/area.h"
#include "server/shard/shard.h"

static const struct {
    const char *label; /* in /proc */
    enum cairn_update_stream stream;
    bool is_state;
} kinds[CAIRN_PLANES] = {
    [CAIRN_PLANE_PARAM] = { "cairn-param", CAIRN_STREAM_PARAM, true },
    [CAIRN_PLANE_EXP_AVG] = { "cairn-exp_avg", CAIRN_STREAM_EXP_AVG, true },
    [CAIRN_PLANE_EXP_AVG_SQ] = { "cairn-exp_avg_sq", CAIRN_STREAM_EXP_AVG_SQ, true },
    [CAIRN_PLANE_SUM] = { "cairn-acc", CAIRN_STREAM_SUM, false },
};

bool cairn_plane_is_state(int plane)
{
    return plane >= 0 && plane < CAIRN_PLANES && kinds[plane].is_state;
}

bool cairn_form_keeps(const struct cairn_form *form, enum cairn_plane plane)
{
    return (form->planes & 1u << plane) != 0;
}

bool cairn_form_stores(const struct cairn_form *form, int plane)
{
    return cairn_plane_is_state(plane) && cairn_form_keeps(form, (enum cairn_plane)plane);
}

cairn_dtype cairn_form_dtype(const struct cairn_form *form, enum cairn_plane plane)
{
    return cairn_plane_dtype((int)plane, form->master);
}

static size_t elem_bytes(const struct cairn_form *form, enum cairn_plane plane)
{
    return cairn_dtype_bytes((int)cairn_form_dtype(form, plane));
}

uint64_t cairn_form_bytes(const struct cairn_form *form, enum cairn_plane plane, uint64_t elems)
{
    return cairn_form_keeps(form, plane) ? elems * elem_bytes(form, plane) : 0;
}

/* ---- what is where ---- */

#define ALIGN_UP(n, to) (((n) + (to)-1) / (to) * (to))

uint64_t cairn_plane_place(const struct cairn_form *form, enum cairn_plane plane, uint64_t elems,
                           uint64_t *end_bytes)
{
    const uint64_t begin = *end_bytes;
    *end_bytes += ALIGN_UP(cairn_form_bytes(form, plane, elems), CAIRN_PLANE_ALIGN);
    return begin;
}

uint64_t cairn_extent_before(const struct cairn_local_extent *extent, uint64_t local_elem)
{
    if (local_elem <= extent->local_elem) return 0;
    const uint64_t before = local_elem - extent->local_elem;
    return before < extent->elem_count ? before : extent->elem_count;
}

/* The beginning of the chunk in which the fraction begins. */
uint64_t cairn_planes_cut(const struct cairn_shard_map *map, double host_fraction)
{
    const uint64_t from = (uint64_t)((1 - host_fraction) * (double)map->elem_count);
    if (host_fraction <= 0) return CAIRN_PLANES_ALL;
    if (map->chunk_count == 0) return 0;
    uint64_t low = 0, high = map->chunk_count; // the chunk is one of them
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        if (cairn_shard_map_chunk(map, middle).local_elem <= from)
            low = middle;
        else
            high = middle;
    }
    return cairn_shard_map_chunk(map, low).local_elem;
}

uint64_t cairn_planes_device_end(const struct cairn_planes *planes)
{
    return planes->parked ? 0 : planes->host_from;
}

/* The bytes of a plane that the extents keep from local element `from` on. */
static uint64_t bytes_kept(const struct cairn_planes *planes, enum cairn_plane plane, uint64_t from)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < planes->map->extent_count; i++) {
        const struct cairn_local_extent *extent = &planes->map->extents[i];
        bytes += cairn_form_bytes(&planes->forms[i], plane,
                                  extent->elem_count - cairn_extent_before(extent, from));
    }
    return bytes;
}

uint64_t cairn_planes_state_bytes(const struct cairn_planes *planes)
{
    uint64_t bytes = 0;
    for (enum cairn_plane p = 0; p < CAIRN_PLANES; p++)
        if (kinds[p].is_state) bytes += bytes_kept(planes, p, 0);
    return bytes;
}

/* ---- open and close ---- */

static uint64_t host_bytes(const struct cairn_planes *planes, enum cairn_plane plane, uint64_t from)
{
    return bytes_kept(planes, plane, from) == 0 ? 0 : planes->map->local_end * sizeof(float);
}

static cairn_status open_plane(struct cairn_planes *planes, enum cairn_plane plane, uint64_t bytes,
                               struct cairn_sentence *why)
{
    return cairn_arena_open_state(kinds[plane].label, bytes, planes->room_elems * sizeof(float),
                                  kinds[plane].stream, &planes->host[plane], why);
}

static cairn_status open_host(struct cairn_planes *planes, struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (enum cairn_plane p = 0; p < CAIRN_PLANES && status == CAIRN_OK; p++)
        status = open_plane(planes, p, host_bytes(planes, p, planes->host_from), why);
    return status;
}

static struct cairn_planes of_nothing(const struct cairn_shard_map *map,
                                      const struct cairn_form *forms, uint64_t host_from)
{
    struct cairn_planes planes = { .map = map, .forms = forms, .host_from = host_from };
    for (enum cairn_plane p = 0; p < CAIRN_PLANES; p++) planes.host[p] = CAIRN_ARENA_NONE;
    return planes;
}

cairn_status cairn_planes_open(struct cairn_planes *planes, const struct cairn_shard_map *map,
                               const struct cairn_form *forms, uint64_t host_from,
                               uint64_t room_elems, struct cairn_sentence *why)
{
    *planes = of_nothing(map, forms, host_from);
    planes->room_elems = room_elems;
    return open_host(planes, why);
}

void cairn_planes_release(struct cairn_planes *planes, struct cairn_shard *shard)
{
    for (enum cairn_plane p = 0; p < CAIRN_PLANES; p++) cairn_release(shard, &planes->host[p]);
    cairn_areas_close(planes, shard);
}

cairn_status cairn_planes_reserve_elems(const struct cairn_planes *planes, enum cairn_plane plane,
                                        const struct cairn_form *form, uint64_t first,
                                        uint64_t local_elem, uint64_t elems,
                                        struct cairn_reserve *reserve)
{
    if (!cairn_form_keeps(form, plane)) return CAIRN_OK;
    return cairn_reserve_add(reserve, &planes->host[plane],
                             first * sizeof(float) +
                                 cairn_form_bytes(form, plane, local_elem - first),
                             cairn_form_bytes(form, plane, elems));
}

static cairn_status reserve_plane(const struct cairn_planes *planes, enum cairn_plane plane,
                                  struct cairn_reserve *reserve)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < planes->map->extent_count && status == CAIRN_OK; i++) {
        const struct cairn_local_extent *extent = &planes->map->extents[i];
        const uint64_t skipped = cairn_extent_before(extent, planes->host_from);
        status = cairn_planes_reserve_elems(planes, plane, &planes->forms[i], extent->local_elem,
                                            extent->local_elem + skipped,
                                            extent->elem_count - skipped, reserve);
    }
    return status;
}

cairn_status cairn_planes_reserve(const struct cairn_planes *planes, struct cairn_reserve *reserve)
{
    cairn_status status = CAIRN_OK;
    for (enum cairn_plane p = 0; p < CAIRN_PLANES && status == CAIRN_OK; p++)
        if (planes->host[p].base != NULL) status = reserve_plane(planes, p, reserve);
    return status;
}

/* ---- another map ---- */

static bool is_kept(const struct cairn_shard_map *map, const struct cairn_form *forms,
                    enum cairn_plane plane)
{
    size_t i = 0;
    while (i < map->extent_count && !cairn_form_keeps(&forms[i], plane)) i++;
    return i < map->extent_count;
}

cairn_status cairn_planes_grow(struct cairn_planes *planes, const struct cairn_shard_map *map,
                               const struct cairn_form *forms, struct cairn_sentence *why)
{
    const uint64_t bytes = map->local_end * sizeof(float);
    cairn_status status = CAIRN_OK;
    assert(planes->host_from == 0);
    for (enum cairn_plane p = 0; p < CAIRN_PLANES && status == CAIRN_OK; p++) {
        if (planes->host[p].bytes >= bytes || !is_kept(map, forms, p)) continue;
        status = planes->host[p].base == NULL
                     ? open_plane(planes, p, bytes, why)
                     : cairn_arena_resize(&planes->host[p], kinds[p].label, bytes, why);
    }
    return status;
}

/* ---- the elements ---- */

void *cairn_planes_host_at(const struct cairn_planes *planes, const struct cairn_form *form,
                           enum cairn_plane plane, uint64_t first, uint64_t local_elem)
{
    if (!cairn_form_keeps(form, plane)) return NULL;
    return planes->host[plane].base + first * sizeof(float) +
           (local_elem - first) * elem_bytes(form, plane);
}

void *cairn_planes_home_at(const struct cairn_planes *planes, const struct cairn_form *form,
                           const struct cairn_area_place *place, enum cairn_plane plane,
                           uint64_t first, uint64_t local_elem)
{
    if (local_elem >= planes->host_from)
        return cairn_planes_host_at(planes, form, plane, first, local_elem);
    if (!cairn_form_keeps(form, plane)) return NULL;
    return place->area->arena.base + place->at[plane] +
           (local_elem - first) * elem_bytes(form, plane);
}

void *cairn_planes_at(const struct cairn_planes *planes, enum cairn_plane plane, size_t extent,
                      uint64_t local_elem)
{
    const struct cairn_area_place *place = planes->places != NULL ? &planes->places[extent] : NULL;
    return cairn_planes_home_at(planes, &planes->forms[extent], place, plane,
                                planes->map->extents[extent].local_elem, local_elem);
}

uint64_t cairn_planes_dense(const struct cairn_planes *planes, size_t extent, uint64_t local_elem)
{
    const struct cairn_local_extent *of = &planes->map->extents[extent];
    const uint64_t end = of->local_elem + of->elem_count;
    const bool is_cut = local_elem < planes->host_from && planes->host_from < end;
    return (is_cut ? planes->host_from : end) - local_elem;
}

void cairn_planes_copy(struct cairn_works *works, const struct cairn_planes *to, size_t to_extent,
                       uint64_t to_elem, const struct cairn_planes *from, size_t from_extent,
                       uint64_t from_elem, uint64_t elems)
{
    const struct cairn_form *form = &to->forms[to_extent];
    for (enum cairn_plane p = 0; p < CAIRN_PLANES; p++) {
        if (!cairn_form_stores(form, (int)p) || !cairn_form_keeps(&from->forms[from_extent], p))
            continue;
        cairn_works_copy(works, cairn_planes_at(to, p, to_extent, to_elem),
                         cairn_planes_at(from, p, from_extent, from_elem),
                         (size_t)elems * elem_bytes(form, p));
    }
}
