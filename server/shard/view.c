#include "server/shard/collect.h"

#include <assert.h>
#include <stdlib.h>

#include "server/shard/memory.h"
#include "server/shard/shard.h"

struct shard_view *shard_view_ref(struct shard_view *view)
{
    view->refs++;
    return view;
}

/* Frees the places of a view. The view may have no places. */
static void view_places_close(struct shard_view *view)
{
    for (size_t i = 0; view->places != NULL && i < view->table.map.extent_count; i++)
        area_unref(view->places[i].area);
    free(view->places);
    view->places = NULL;
}

void shard_view_unref(struct shard_view *view)
{
    if (view == NULL) return;
    assert(view->refs > 0);
    if (--view->refs > 0) return;
    free(view->forms);
    view_places_close(view);
    chunk_table_close(&view->table);
    layout_close(view->layout);
    free(view);
}

/* ---- what one has and another has not ---- */

struct search {
    const struct shard_view *in;
    void (*each)(void *context, const struct shard_view_run *run);
    void *context;
};

/* Calls `each` for the leaves [first, end) of an extent. */
static void give_leaves(const struct search *search, size_t number, uint64_t first, uint64_t end)
{
    const struct local_extent *extent = &search->in->table.map.extents[number];
    const struct geometry *geometry = &search->in->layout->geometry[extent->tensor];
    if (first == end) return;
    struct shard_view_run run = {
        .extent = number,
        .tensor = extent->tensor,
        .first_leaf = first,
        .leaf_count = end - first,
        .first_elem = leaf_start(geometry, first),
    };
    run.elem_count = leaf_start(geometry, end) - run.first_elem;
    run.local_elem = extent->local_elem + (run.first_elem - extent->first_elem);
    search->each(search->context, &run);
}

void shard_view_beyond(const struct shard_view *in, const struct shard_view *beside,
                       void (*each)(void *context, const struct shard_view_run *run), void *context)
{
    const struct search search = { in, each, context };
    const struct shard_map *map = &in->table.map;
    const struct local_extent *other = beside != NULL ? beside->table.map.extents : NULL;
    const struct local_extent *end = beside != NULL ? other + beside->table.map.extent_count : NULL;
    for (size_t i = 0; i < map->extent_count; i++) {
        const struct local_extent *e = &map->extents[i];
        const uint64_t last = e->first_leaf + e->leaf_count;
        uint64_t at = e->first_leaf; // the leaves before `at` are handled
        while (other != end &&
               (other->tensor < e->tensor ||
                (other->tensor == e->tensor && other->first_leaf + other->leaf_count <= at)))
            other++;
        for (const struct local_extent *o = other;
             o != end && o->tensor == e->tensor && o->first_leaf < last; o++) {
            if (o->first_leaf > at) give_leaves(&search, i, at, o->first_leaf);
            const uint64_t until = o->first_leaf + o->leaf_count;
            at = until < last ? until : last;
        }
        give_leaves(&search, i, at, last);
    }
}

/* ==== view memory ==== */

/* The pages of state that is in one view and not in the view in force. The pages are made before
 * such state arrives, and given back when such state has left. */

/* ---- runs by their places ---- */

struct runs {
    struct shard_view_run *list; /* owned */
    size_t count, capacity;
    bool failed; /* there was no memory for one of the runs */
};

static void add_run(void *context, const struct shard_view_run *run)
{
    struct runs *runs = context;
    if (runs->count == runs->capacity) {
        const size_t capacity = runs->capacity * 2 + 16;
        void *list = realloc(runs->list, capacity * sizeof *runs->list);
        if (list == NULL) {
            runs->failed = true;
            return;
        }
        runs->list = list;
        runs->capacity = capacity;
    }
    runs->list[runs->count++] = *run;
}

static int compare_places(const void *a, const void *b)
{
    const struct shard_view_run *x = a, *y = b;
    return (x->local_elem > y->local_elem) - (x->local_elem < y->local_elem);
}

/* Lists the runs that `in` has and `beside` does not have, ordered by local element. If `beside` is
 * NULL, lists all runs of `in`. */
static cairn_status list_runs(const struct shard_view *in, const struct shard_view *beside,
                              struct runs *out)
{
    *out = (struct runs) { .count = 0 };
    shard_view_beyond(in, beside, add_run, out);
    if (out->failed) {
        free(out->list);
        return CAIRN_ERR_NO_MEMORY;
    }
    if (out->count > 0) qsort(out->list, out->count, sizeof *out->list, compare_places);
    return CAIRN_OK;
}

/* ---- made ---- */

cairn_status shard_view_reserve(const struct shard_job *job, const struct shard_view *view,
                                struct reserve *reserve)
{
    struct runs runs;
    // on a device, an area already has the memory for these runs
    if (job->planes.host_from > 0) return CAIRN_OK;
    cairn_status status = list_runs(view, job->view, &runs);
    if (status != CAIRN_OK) return status;
    for (enum plane p = 0; p < CAIRN_PLANES; p++) {
        for (size_t i = 0; i < runs.count && status == CAIRN_OK; i++) {
            const struct shard_view_run *run = &runs.list[i];
            status = planes_reserve_elems(&job->planes, p, &view->forms[run->extent],
                                          view->table.map.extents[run->extent].local_elem,
                                          run->local_elem, run->elem_count, reserve);
        }
    }
    free(runs.list);
    return status;
}

/* ---- given back ---- */

#define PAGE_BYTES ((uintptr_t)4096)

/* Local elements [first, end) that are given back. Around them, nothing from `from` to `to` is in
 * use. */
struct gap {
    uint64_t first, end, from, to;
};

/* Lists the runs of `gone` as gaps; runs that touch become one gap. `kept` are the runs in use,
 * between which `from` and `to` of each gap lie. Returns the number of gaps. */
static size_t list_gaps(const struct runs *gone, const struct runs *kept, struct gap *gaps)
{
    size_t count = 0, next = 0;
    for (size_t i = 0; i < gone->count; i++) {
        const uint64_t first = gone->list[i].local_elem, end = first + gone->list[i].elem_count;
        if (count > 0 && gaps[count - 1].end == first) {
            gaps[count - 1].end = end;
            continue;
        }
        gaps[count++] = (struct gap) { .first = first, .end = end, .to = UINT64_MAX / 8 };
    }
    for (size_t i = 0; i < count; i++) {
        while (next < kept->count && kept->list[next].local_elem < gaps[i].first) next++;
        if (next > 0)
            gaps[i].from = kept->list[next - 1].local_elem + kept->list[next - 1].elem_count;
        if (next < kept->count) gaps[i].to = kept->list[next].local_elem;
    }
    return count;
}

/* Returns the pages of a plane that can be given back for the gap: pages that lie in the gap, or
 * touch the gap and have nothing in use. */
static struct shared_span span_of(const struct arena *arena, const struct gap *gap)
{
    const uintptr_t base = (uintptr_t)arena->base, all_end = base + arena->bytes;
    uintptr_t at = (base + gap->first * sizeof(float)) / PAGE_BYTES * PAGE_BYTES;
    uintptr_t end = (base + gap->end * sizeof(float) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    if (gap->from > 0 && at < base + gap->from * sizeof(float)) at += PAGE_BYTES;
    if (gap->to < UINT64_MAX / 8 && end > base + gap->to * sizeof(float)) end -= PAGE_BYTES;
    if (end > all_end) end = (all_end + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    return (struct shared_span) { (void *)at, end > at ? (size_t)(end - at) : 0 };
}

void shard_view_give(struct shard_job *job, const struct shard_view *view)
{
    struct runs gone, kept;
    // the pages stay until the job is freed
    if (list_runs(view, job->view, &gone) != CAIRN_OK) return;
    if (list_runs(job->view, NULL, &kept) != CAIRN_OK) {
        free(gone.list);
        return;
    }
    struct gap *gaps = calloc(gone.count + 1, sizeof *gaps);
    struct shared_span *spans = calloc((gone.count + 1) * CAIRN_PLANES, sizeof *spans);
    size_t count = 0;
    const size_t gap_count = gaps != NULL && spans != NULL ? list_gaps(&gone, &kept, gaps) : 0;
    for (size_t i = 0; i < gap_count; i++) {
        for (enum plane p = 0; p < CAIRN_PLANES; p++) {
            if (job->planes.host[p].bytes <= gaps[i].first * sizeof(float)) continue;
            spans[count] = span_of(&job->planes.host[p], &gaps[i]);
            count += spans[count].bytes > 0;
        }
    }
    free(gaps);
    free(gone.list);
    free(kept.list);
    reserve_give(job, spans, count);
}

/* ==== view places ==== */

/* Where the extents of a view lie on a device: in the places that they had in the view before, or
 * in new places. */

/* Keeps the place of an extent that lies within an extent of the view before. Returns false if the
 * extent does not. */
static bool keep_place(const struct shard_view *view, size_t number,
                       const struct shard_view *before)
{
    const struct local_extent *extent = &view->table.map.extents[number];
    const struct local_extent *was = before == NULL
                                         ? NULL
                                         : shard_map_find(&before->table.map, extent->tensor,
                                                          extent->first_leaf);
    if (was == NULL) return false;
    const struct area_place *place = &before->places[was - before->table.map.extents];
    view->places[number] = *place;
    for (enum plane p = 0; p < CAIRN_PLANES; p++)
        view->places[number].at[p] += form_bytes(&view->forms[number], p,
                                                 extent->first_elem - was->first_elem);
    if (place->area != NULL) place->area->refs++;
    return true;
}

/* Places the planes of an extent that arrives. Here each plane begins at 0; the caller later adds
 * the place of the plane in the area. */
static void place_new(const struct shard_view *view, size_t number, uint64_t host_from,
                      uint64_t *end_bytes)
{
    const uint64_t elems = extent_before(&view->table.map.extents[number], host_from);
    for (enum plane p = 0; p < CAIRN_PLANES; p++)
        view->places[number].at[p] = plane_place(&view->forms[number], p, elems, &end_bytes[p]);
}

cairn_status shard_view_places_open(struct shard_view *view, const struct shard_view *before,
                                    uint64_t host_from, uint64_t *bytes_out)
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
    for (enum plane p = 1; p < CAIRN_PLANES; p++)
        begin_bytes[p] = begin_bytes[p - 1] + end_bytes[p - 1];
    for (size_t i = 0; i < count; i++)
        for (enum plane p = 0; p < CAIRN_PLANES && comes[i]; p++)
            view->places[i].at[p] += begin_bytes[p];
    free(comes);
    *bytes_out = begin_bytes[CAIRN_PLANES - 1] + end_bytes[CAIRN_PLANES - 1];
    return CAIRN_OK;
}

cairn_status shard_view_area_add(struct shard_view *view, struct state_planes *planes,
                                 struct home *device, uint64_t bytes, struct sentence *why)
{
    struct area *area;
    if (bytes == 0) return CAIRN_OK;
    CAIRN_TRY(area_add(planes, device, bytes, &area, why));
    for (size_t i = 0; i < view->table.map.extent_count; i++) {
        if (view->places[i].area != NULL) continue;
        view->places[i].area = area;
        area->refs++;
    }
    return CAIRN_OK;
}

void shard_views_keep(const struct shard_view *const *views, size_t view_count,
                      struct state_planes *planes, struct shard_daemon *shard)
{
    areas_unmark(planes);
    for (size_t v = 0; v < view_count; v++)
        for (size_t i = 0; views[v] != NULL && i < views[v]->table.map.extent_count; i++)
            place_mark(&views[v]->places[i], &views[v]->forms[i],
                       views[v]->table.map.extents[i].elem_count);
    areas_trim(planes, shard);
}

void *shard_view_at(const struct shard_view *view, const struct state_planes *planes, int plane,
                    size_t extent, uint64_t local_elem)
{
    return planes_home_at(planes, &view->forms[extent],
                          view->places != NULL ? &view->places[extent] : NULL, (enum plane)plane,
                          view->table.map.extents[extent].local_elem, local_elem);
}
