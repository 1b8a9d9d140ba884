#include "server/shard/memory/area.h"

#include <stdlib.h>

#include "server/shard/memory/release.h"

void cairn_area_unref(struct cairn_area *area)
{
    if (area == NULL || --area->refs > 0) return;
    free(area->segments);
    free(area);
}

cairn_status cairn_area_add(struct cairn_planes *planes, struct cairn_home *device, uint64_t bytes,
                            struct cairn_area **area_out, struct cairn_sentence *why)
{
    struct cairn_area *area = calloc(1, sizeof *area);
    if (area == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a list of memory");
    area->refs = 1;
    area->arena = area->to = CAIRN_ARENA_NONE;
    area->segments = calloc((size_t)(bytes / CAIRN_SEGMENT_BYTES) + 1, sizeof *area->segments);
    const cairn_status status =
        area->segments == NULL
            ? cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a list of memory")
            : cairn_arena_open_home(device, "planes", bytes, &area->arena, why);
    if (status != CAIRN_OK) {
        cairn_area_unref(area);
        return status;
    }
    area->next = planes->areas;
    planes->areas = area;
    *area_out = area;
    return CAIRN_OK;
}

/* ---- what is left in them ---- */

void cairn_areas_unmark(struct cairn_planes *planes)
{
    for (struct cairn_area *area = planes->areas; area != NULL; area = area->next)
        for (uint64_t s = 0; s < cairn_segments(area->arena.bytes); s++)
            area->segments[s].in_use = false;
}

void cairn_place_mark(const struct cairn_area_place *place, const struct cairn_form *form,
                      uint64_t elems)
{
    for (enum cairn_plane p = 0; p < CAIRN_PLANES && place->area != NULL; p++) {
        const uint64_t bytes = cairn_form_bytes(form, p, elems);
        if (bytes == 0) continue;
        const uint64_t last = (place->at[p] + bytes - 1) / CAIRN_SEGMENT_BYTES;
        for (uint64_t s = place->at[p] / CAIRN_SEGMENT_BYTES; s <= last; s++)
            place->area->segments[s].in_use = true;
    }
}

static bool in_use(const struct cairn_area *area)
{
    uint64_t s = 0;
    while (s < cairn_segments(area->arena.bytes) && !area->segments[s].in_use) s++;
    return s < cairn_segments(area->arena.bytes);
}

static void give_unused(struct cairn_area *area)
{
    for (uint64_t s = 0; s < cairn_segments(area->arena.bytes); s++) {
        struct cairn_area_segment *segment = &area->segments[s];
        if (!segment->in_use && !segment->is_gone) cairn_arena_give_segment(&area->arena, s);
        segment->is_gone = segment->is_gone || !segment->in_use;
    }
}

void cairn_areas_trim(struct cairn_planes *planes, struct cairn_shard *shard)
{
    for (struct cairn_area **link = &planes->areas; *link != NULL;) {
        struct cairn_area *area = *link;
        if (in_use(area)) {
            give_unused(area);
            link = &area->next;
            continue;
        }
        *link = area->next;
        cairn_release(shard, &area->arena);
        cairn_area_unref(area);
    }
}

void cairn_areas_give_gone(struct cairn_planes *planes)
{
    for (struct cairn_area *area = planes->areas; area != NULL; area = area->next)
        for (uint64_t s = 0; s < cairn_segments(area->arena.bytes); s++)
            if (area->segments[s].is_gone) cairn_arena_give_segment(&area->arena, s);
}

uint64_t cairn_areas_bytes(const struct cairn_planes *planes)
{
    uint64_t bytes = 0;
    for (const struct cairn_area *area = planes->areas; area != NULL; area = area->next)
        for (uint64_t s = 0; s < cairn_segments(area->arena.bytes); s++)
            if (!area->segments[s].is_gone)
                bytes += cairn_plane_units(cairn_segment_bytes(area->arena.bytes, s));
    return bytes;
}

bool cairn_area_is_gone(const struct cairn_area *area, uint64_t at)
{
    return area->segments[at / CAIRN_SEGMENT_BYTES].is_gone;
}

void cairn_areas_close(struct cairn_planes *planes, struct cairn_shard *shard)
{
    while (planes->areas != NULL) {
        struct cairn_area *area = planes->areas;
        planes->areas = area->next;
        if (shard != NULL) {
            cairn_release(shard, &area->arena);
            cairn_release(shard, &area->to);
        }
        cairn_arena_close(&area->arena);
        cairn_arena_close(&area->to);
        cairn_area_unref(area);
    }
}
