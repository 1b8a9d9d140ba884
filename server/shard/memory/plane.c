#include "server/shard/memory/plane.h"

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

/* ---- open and close ---- */

static uint64_t bytes_kept(const struct cairn_planes *planes, enum cairn_plane plane)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < planes->map->extent_count; i++)
        bytes += cairn_form_bytes(&planes->forms[i], plane, planes->map->extents[i].elem_count);
    return bytes;
}

uint64_t cairn_planes_state_bytes(const struct cairn_planes *planes)
{
    uint64_t bytes = 0;
    for (enum cairn_plane p = 0; p < CAIRN_PLANES; p++)
        if (kinds[p].is_state) bytes += bytes_kept(planes, p);
    return bytes;
}

cairn_status cairn_planes_open(struct cairn_planes *planes, const struct cairn_shard_map *map,
                               const struct cairn_form *forms, struct cairn_home *home,
                               struct cairn_sentence *why)
{
    const uint64_t bytes = map->elem_count * sizeof(float);
    cairn_status status = CAIRN_OK;
    *planes = (struct cairn_planes) { .map = map, .forms = forms };
    for (enum cairn_plane p = 0; p < CAIRN_PLANES && status == CAIRN_OK; p++) {
        if (bytes_kept(planes, p) == 0) continue;
        status = cairn_home_info(home)->is_host
                     ? cairn_arena_open_state(kinds[p].label, bytes, kinds[p].stream,
                                              &planes->home[p], why)
                     : cairn_arena_open_home(home, kinds[p].label, bytes, &planes->home[p], why);
    }
    return status;
}

cairn_status cairn_planes_open_copy(struct cairn_planes *planes, const struct cairn_planes *of,
                                    struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    *planes = (struct cairn_planes) { .map = of->map, .forms = of->forms };
    for (enum cairn_plane p = 0; p < CAIRN_PLANES && status == CAIRN_OK; p++)
        if (kinds[p].is_state)
            status = cairn_arena_open_scratch("staging", of->home[p].bytes, &planes->home[p], why);
    return status;
}

void cairn_planes_close(struct cairn_planes *planes)
{
    for (enum cairn_plane p = 0; p < CAIRN_PLANES; p++) cairn_arena_close(&planes->home[p]);
}

void cairn_planes_release(struct cairn_planes *planes, struct cairn_shard *shard)
{
    for (enum cairn_plane p = 0; p < CAIRN_PLANES; p++) cairn_release(shard, &planes->home[p]);
}

cairn_status cairn_planes_reserve(const struct cairn_planes *planes, struct cairn_reserve *reserve)
{
    cairn_status status = CAIRN_OK;
    for (enum cairn_plane p = 0; p < CAIRN_PLANES; p++) {
        if (planes->home[p].memory.base != NULL) continue; // complete
        for (size_t i = 0; i < planes->map->extent_count && status == CAIRN_OK; i++) {
            const struct cairn_local_extent *extent = &planes->map->extents[i];
            status = cairn_reserve_add(reserve, &planes->home[p],
                                       extent->local_elem * sizeof(float),
                                       cairn_form_bytes(&planes->forms[i], p, extent->elem_count));
        }
    }
    return status;
}

/* ---- the elements ---- */

void *cairn_planes_at(const struct cairn_planes *planes, enum cairn_plane plane, size_t extent,
                      uint64_t local_elem)
{
    const struct cairn_form *form = &planes->forms[extent];
    const uint64_t first = planes->map->extents[extent].local_elem;
    if (!cairn_form_keeps(form, plane)) return NULL;
    return planes->home[plane].base + first * sizeof(float) +
           (local_elem - first) * elem_bytes(form, plane);
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
