#include "server/shard/memory.h"

#include <inttypes.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/base/machine.h"
#include "server/shard/shard.h"

/* ==== arena ==== */

/* A segment that members of this host may map. */
struct arena_shown {
    struct fabric_region *region; /* owned */
    /* owned: the descriptor of the region's memory; -1: none, because the memory is a card's */
    int fd;
};

static void areas_close(struct state_planes *planes, struct shard_daemon *shard);

static void is_of_home(struct arena *arena)
{
    arena->base = arena->memory.base;
    arena->bytes = (size_t)arena->memory.bytes;
}

static cairn_status open_room(const char *label, uint64_t bytes, uint64_t room_bytes, bool shared,
                              struct arena *arena_out, struct sentence *why)
{
    struct arena arena = CAIRN_ARENA_NONE;
    CAIRN_TRY(home_memory_open_room(label, bytes, room_bytes, shared, &arena.memory, why));
    is_of_home(&arena);
    *arena_out = arena;
    return CAIRN_OK;
}

/* Makes an arena begin at this byte of its memory. */
static void begin_at(struct arena *arena, size_t begin, uint64_t bytes)
{
    arena->base += begin;
    arena->begin = begin;
    arena->bytes = (size_t)bytes;
}

cairn_status arena_open_state(const char *label, uint64_t bytes, uint64_t room_bytes,
                              enum update_stream stream, struct arena *arena_out,
                              struct sentence *why)
{
    const size_t begin = stagger_begin(stream);
    const uint64_t all = bytes == 0 ? 0 : bytes + begin;
    const cairn_status status = open_room(label, all, room_bytes + begin, false, arena_out, why);
    if (status != CAIRN_OK || bytes == 0) return status;
    begin_at(arena_out, begin, bytes);
    return CAIRN_OK;
}

cairn_status arena_open_shared_room(const char *label, uint64_t bytes, uint64_t room_bytes,
                                    struct arena *arena_out, struct sentence *why)
{
    return open_room(label, bytes, room_bytes, true, arena_out, why);
}

static void unpin_segments(const struct arena *arena, uint64_t from, uint64_t bytes)
{
    if (arena->pins_for != NULL) home_unpin(arena->pins_for, arena->base + from, bytes);
}

cairn_status arena_resize(struct arena *arena, const char *label, uint64_t bytes,
                          struct sentence *why)
{
    const uint64_t stays = bytes < arena->bytes ? bytes : arena->bytes;
    struct sentence unpinned;
    assert(arena->shown == NULL && bytes > 0);
    assert(arena->pins_for == NULL || arena->begin == 0);
    unpin_segments(arena, stays, arena->bytes - stays);
    const cairn_status status = home_memory_resize(&arena->memory, label, bytes + arena->begin,
                                                   why);
    if (status == CAIRN_OK) arena->bytes = (size_t)bytes;
    // A last segment that is not complete is not pinned. It may soon be resized, and is pinned when
    // it is complete.
    for (uint64_t at = stays / CAIRN_SEGMENT_BYTES * CAIRN_SEGMENT_BYTES;
         at + CAIRN_SEGMENT_BYTES <= arena->bytes; at += CAIRN_SEGMENT_BYTES)
        if (arena_pin(arena, at, CAIRN_SEGMENT_BYTES, &unpinned) != CAIRN_OK) break;
    return status;
}

cairn_status arena_open_scratch(const char *label, uint64_t bytes, struct arena *arena_out,
                                struct sentence *why)
{
    if (bytes == 0) {
        *arena_out = CAIRN_ARENA_NONE;
        return CAIRN_OK;
    }
    uint8_t *map = pages_map((size_t)bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    if (map == MAP_FAILED)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "cannot map %" PRIu64 " bytes for %s: %s", bytes,
                         label, strerror(errno));
    // makes the arena a third faster; segments get large pages in arena_make_pages
    madvise(map, (size_t)bytes, MADV_HUGEPAGE);
    *arena_out = (struct arena) { .base = map, .bytes = (size_t)bytes };
    return CAIRN_OK;
}

cairn_status arena_open_home(struct home *home, const char *label, uint64_t bytes,
                             struct arena *arena_out, struct sentence *why)
{
    struct arena arena = CAIRN_ARENA_NONE;
    CAIRN_TRY(home_memory_open(home, label, bytes, &arena.memory, why));
    is_of_home(&arena);
    *arena_out = arena;
    return CAIRN_OK;
}

cairn_status arena_open_shared(struct home *home, const char *label, uint64_t bytes,
                               struct arena *arena_out, struct sentence *why)
{
    struct arena arena = CAIRN_ARENA_NONE;
    CAIRN_TRY(home_memory_open_exportable(home, label, bytes, &arena.memory, why));
    is_of_home(&arena);
    *arena_out = arena;
    return CAIRN_OK;
}

cairn_status arena_make_pages(const struct arena *arena, uint64_t from, uint64_t bytes)
{
    uint8_t *const at = arena->base + from;
    assert(from <= arena->bytes && bytes <= arena->bytes - from);
    // Anonymous memory gets large pages when it is touched. A segment gets its large pages here;
    // pages_touch then makes small pages where the kernel had no large page.
    if (arena->memory.base != NULL) (void)pages_back(at, (size_t)bytes);
    return pages_touch(at, (size_t)bytes) ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

void arena_pins_for(struct arena *arena, struct home *home)
{
    if (arena->base != NULL && !home_info(home)->is_host) arena->pins_for = home;
}

cairn_status arena_pin(const struct arena *arena, uint64_t from, uint64_t bytes,
                       struct sentence *why)
{
    if (arena->pins_for == NULL) return CAIRN_OK;
    assert(from <= arena->bytes && bytes <= arena->bytes - from);
    return home_pin(arena->pins_for, arena->base + from, bytes, why);
}

void arena_give(const struct arena *arena, uint64_t from, uint64_t bytes)
{
    // bytes before `first` are in use
    const uint64_t page = 4096, first = (from + page - 1) / page * page;
    assert(arena->memory.base == NULL && from <= arena->bytes && bytes <= arena->bytes - from);
    if (first >= from + bytes) return;
    unpin_segments(arena, first,
                   from + bytes - first); // otherwise the device would keep using the old pages
    madvise(arena->base + first, (size_t)(from + bytes - first), MADV_DONTNEED);
}

/* ---- what others map ---- */

/* Seals the memory, unless it is sealed. A segment that was shared before is sealed already, and
 * seals can be added only once. */
static bool seal_memory(int fd)
{
    const int seals = fcntl(fd, F_GET_SEALS);
    return (seals >= 0 && (seals & CAIRN_FABRIC_SEALS) == CAIRN_FABRIC_SEALS) ||
           fcntl(fd, F_ADD_SEALS, CAIRN_FABRIC_SEALS) == 0;
}

/* Adds a region for a segment. If the segment lies on a card, the fabric keeps a duplicate of the
 * descriptor. Then the descriptor here is closed, because an open descriptor keeps the memory
 * allocated. */
static cairn_status add_region(struct fabric *fabric, const struct home *home, const void *base,
                               uint64_t bytes, struct arena_shown *shown, const void *note,
                               size_t note_bytes)
{
    const struct home_info *info = home_info(home);
    if (info->is_host)
        return !seal_memory(shown->fd) ? CAIRN_ERR_IO
                                       : fabric_region_add(fabric, base, (size_t)bytes, shown->fd,
                                                           note, note_bytes, &shown->region);
    const cairn_status status = fabric_region_add_device(
        fabric, base, (size_t)bytes, shown->fd, info->uuid, note, note_bytes, &shown->region);
    close(shown->fd);
    shown->fd = -1;
    return status;
}

static bool share_segment(struct arena *arena, uint64_t segment, struct fabric *fabric,
                          const struct published_note *note)
{
    struct arena_shown *shown = &arena->shown[segment];
    struct published_note own = { .magic = 0 };
    struct sentence why;
    uint64_t bytes;
    if (home_memory_export(&arena->memory, segment, &shown->fd, &bytes, &why) != CAIRN_OK)
        return false;
    if (note != NULL) {
        own = *note;
        own.segment += (uint32_t)segment;
    }
    return add_region(fabric, arena->memory.home, arena->base + segment * CAIRN_SEGMENT_BYTES,
                      bytes, shown, &own, note != NULL ? sizeof own : 0) == CAIRN_OK;
}

bool arena_share(struct arena *arena, struct fabric *fabric, const struct published_note *note)
{
    const uint64_t count = home_memory_segments(&arena->memory);
    assert(arena->shown == NULL && arena->begin == 0);
    if (count == 0) return true;
    arena->shown = calloc((size_t)count, sizeof *arena->shown);
    bool all = arena->shown != NULL;
    for (uint64_t i = 0; all && i < count; i++) arena->shown[i].fd = -1;
    for (uint64_t i = 0; all && i < count; i++) all = share_segment(arena, i, fabric, note);
    if (!all) arena_unshare(arena, false);
    return all;
}

void arena_show(const struct arena *arena, struct fabric_peer *peer)
{
    const uint64_t count = home_memory_segments(&arena->memory);
    for (uint64_t i = 0; arena->shown != NULL && i < count; i++) {
        if (arena->shown[i].region == NULL) continue;
        const cairn_status status = fabric_region_show(arena->shown[i].region, peer);
        (void)status; // without the region, the peer fetches the chunks
    }
}

static void unshare_segment(struct arena *arena, uint64_t segment, bool fabric_is_closed)
{
    struct arena_shown *shown = &arena->shown[segment];
    if (!fabric_is_closed) fabric_region_drop(shown->region);
    if (shown->fd >= 0) close(shown->fd);
    *shown = (struct arena_shown) { .fd = -1 };
}

void arena_unshare(struct arena *arena, bool fabric_is_closed)
{
    const uint64_t count = home_memory_segments(&arena->memory);
    for (uint64_t i = 0; arena->shown != NULL && i < count; i++)
        unshare_segment(arena, i, fabric_is_closed);
    free(arena->shown);
    arena->shown = NULL;
}

/* ---- back ---- */

void arena_give_segment(struct arena *arena, uint64_t segment)
{
    if (arena->shown != NULL) unshare_segment(arena, segment, false);
    unpin_segments(arena, segment * CAIRN_SEGMENT_BYTES, segment_bytes(arena->bytes, segment));
    home_memory_give(&arena->memory, segment);
}

void arena_close(struct arena *arena)
{
    assert(arena->shown == NULL);
    unpin_segments(arena, 0, arena->bytes);
    if (arena->base != NULL && arena->memory.base == NULL) munmap(arena->base, arena->bytes);
    home_memory_close(&arena->memory);
    *arena = CAIRN_ARENA_NONE;
}

/* ==== plane ==== */

static const struct {
    const char *label; /* the name of the plane's memory in /proc */
    enum update_stream stream;
    bool is_state;
} kinds[CAIRN_PLANES] = {
    [CAIRN_PLANE_PARAM] = { "cairn-param", CAIRN_STREAM_PARAM, true },
    [CAIRN_PLANE_EXP_AVG] = { "cairn-exp_avg", CAIRN_STREAM_EXP_AVG, true },
    [CAIRN_PLANE_EXP_AVG_SQ] = { "cairn-exp_avg_sq", CAIRN_STREAM_EXP_AVG_SQ, true },
    [CAIRN_PLANE_EMA] = { "cairn-ema", CAIRN_STREAM_EMA, true },
    [CAIRN_PLANE_SUM] = { "cairn-acc", CAIRN_STREAM_SUM, false },
};

bool plane_is_state(int plane)
{
    return plane >= 0 && plane < CAIRN_PLANES && kinds[plane].is_state;
}

bool form_keeps(const struct form *form, enum plane plane)
{
    return (form->planes & 1u << plane) != 0;
}

bool form_stores(const struct form *form, int plane)
{
    return plane_is_state(plane) && form_keeps(form, (enum plane)plane);
}

cairn_dtype form_dtype(const struct form *form, enum plane plane)
{
    return plane_dtype((int)plane, form->master);
}

static size_t elem_bytes(const struct form *form, enum plane plane)
{
    return dtype_size((int)form_dtype(form, plane));
}

uint64_t form_bytes(const struct form *form, enum plane plane, uint64_t elems)
{
    return form_keeps(form, plane) ? elems * elem_bytes(form, plane) : 0;
}

/* ---- what is where ---- */

uint64_t plane_place(const struct form *form, enum plane plane, uint64_t elems, uint64_t *end_bytes)
{
    const uint64_t begin = *end_bytes;
    *end_bytes += ALIGN_UP(form_bytes(form, plane, elems), CAIRN_PLANE_ALIGN);
    return begin;
}

uint64_t extent_before(const struct local_extent *extent, uint64_t local_elem)
{
    if (local_elem <= extent->local_elem) return 0;
    const uint64_t before = local_elem - extent->local_elem;
    return before < extent->elem_count ? before : extent->elem_count;
}

uint64_t planes_device_end(const struct state_planes *planes)
{
    return planes->parked ? 0 : planes->host_from;
}

/* Returns how many bytes the extents keep in a plane from local element `from` on. */
static uint64_t bytes_kept(const struct state_planes *planes, enum plane plane, uint64_t from)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < planes->map->extent_count; i++) {
        const struct local_extent *extent = &planes->map->extents[i];
        bytes += form_bytes(&planes->forms[i], plane,
                            extent->elem_count - extent_before(extent, from));
    }
    return bytes;
}

uint64_t planes_state_bytes(const struct state_planes *planes)
{
    uint64_t bytes = 0;
    for (enum plane p = 0; p < CAIRN_PLANES; p++)
        if (kinds[p].is_state) bytes += bytes_kept(planes, p, 0);
    return bytes;
}

/* ---- open and close ---- */

static cairn_status open_plane(struct state_planes *planes, enum plane plane, uint64_t bytes,
                               struct sentence *why)
{
    return arena_open_state(kinds[plane].label, bytes, planes->room_elems * sizeof(float),
                            kinds[plane].stream, &planes->host[plane], why);
}

static cairn_status open_host(struct state_planes *planes, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (enum plane p = 0; p < CAIRN_PLANES && status == CAIRN_OK; p++)
        status = open_plane(planes, p,
                            bytes_kept(planes, p, planes->host_from) == 0
                                ? 0
                                : planes->map->local_end * sizeof(float),
                            why);
    return status;
}

void planes_init(struct state_planes *planes, const struct shard_map *map, const struct form *forms,
                 uint64_t host_from, uint64_t room_elems)
{
    *planes = (struct state_planes) {
        .map = map, .forms = forms, .host_from = host_from, .room_elems = room_elems
    };
    for (enum plane p = 0; p < CAIRN_PLANES; p++) planes->host[p] = CAIRN_ARENA_NONE;
}

uint64_t planes_segments(enum plane plane, uint64_t bytes)
{
    return bytes == 0 ? 0 : memory_segments(bytes + stagger_begin(kinds[plane].stream));
}

cairn_status planes_adopt(struct state_planes *planes, enum plane plane, const int *fds,
                          uint64_t bytes, struct sentence *why)
{
    struct arena arena = CAIRN_ARENA_NONE;
    const size_t begin = stagger_begin(kinds[plane].stream);
    const uint64_t room_bytes = planes->room_elems * sizeof(float);
    if (bytes == 0) return CAIRN_OK;
    CAIRN_TRY(home_memory_adopt(kinds[plane].label, fds, bytes + begin, room_bytes + begin,
                                &arena.memory, why));
    is_of_home(&arena);
    begin_at(&arena, begin, bytes);
    planes->host[plane] = arena;
    return CAIRN_OK;
}

cairn_status planes_open(struct state_planes *planes, const struct shard_map *map,
                         const struct form *forms, uint64_t host_from, uint64_t room_elems,
                         struct sentence *why)
{
    planes_init(planes, map, forms, host_from, room_elems);
    return open_host(planes, why);
}

void planes_release(struct state_planes *planes, struct shard_daemon *shard)
{
    for (enum plane p = 0; p < CAIRN_PLANES; p++) arena_release(shard, &planes->host[p]);
    areas_close(planes, shard);
}

/* ---- another map ---- */

static bool is_kept(const struct shard_map *map, const struct form *forms, enum plane plane)
{
    size_t i = 0;
    while (i < map->extent_count && !form_keeps(&forms[i], plane)) i++;
    return i < map->extent_count;
}

cairn_status planes_grow(struct state_planes *planes, const struct shard_map *map,
                         const struct form *forms, struct sentence *why)
{
    const uint64_t bytes = map->local_end * sizeof(float);
    cairn_status status = CAIRN_OK;
    assert(planes->host_from == 0);
    for (enum plane p = 0; p < CAIRN_PLANES && status == CAIRN_OK; p++) {
        if (planes->host[p].bytes >= bytes || !is_kept(map, forms, p)) continue;
        status = planes->host[p].base == NULL
                     ? open_plane(planes, p, bytes, why)
                     : arena_resize(&planes->host[p], kinds[p].label, bytes, why);
    }
    return status;
}

/* ---- the elements ---- */

void *planes_host_at(const struct state_planes *planes, const struct form *form, enum plane plane,
                     uint64_t first, uint64_t local_elem)
{
    if (!form_keeps(form, plane)) return NULL;
    return planes->host[plane].base + first * sizeof(float) +
           (local_elem - first) * elem_bytes(form, plane);
}

void *planes_home_at(const struct state_planes *planes, const struct form *form,
                     const struct area_place *place, enum plane plane, uint64_t first,
                     uint64_t local_elem)
{
    if (local_elem >= planes->host_from)
        return planes_host_at(planes, form, plane, first, local_elem);
    if (!form_keeps(form, plane)) return NULL;
    return place->area->arena.base + place->at[plane] +
           (local_elem - first) * elem_bytes(form, plane);
}

void *planes_at(const struct state_planes *planes, enum plane plane, size_t extent,
                uint64_t local_elem)
{
    const struct area_place *place = planes->places != NULL ? &planes->places[extent] : NULL;
    return planes_home_at(planes, &planes->forms[extent], place, plane,
                          planes->map->extents[extent].local_elem, local_elem);
}

uint64_t planes_dense(const struct state_planes *planes, size_t extent, uint64_t local_elem)
{
    const struct local_extent *of = &planes->map->extents[extent];
    const uint64_t end = of->local_elem + of->elem_count;
    const bool is_cut = local_elem < planes->host_from && planes->host_from < end;
    return (is_cut ? planes->host_from : end) - local_elem;
}

void planes_copy(struct works *works, const struct state_planes *to, size_t to_extent,
                 uint64_t to_elem, const struct state_planes *from, size_t from_extent,
                 uint64_t from_elem, uint64_t elems)
{
    const struct form *form = &to->forms[to_extent];
    for (enum plane p = 0; p < CAIRN_PLANES; p++) {
        if (!form_stores(form, (int)p) || !form_keeps(&from->forms[from_extent], p)) continue;
        works_copy(works, planes_at(to, p, to_extent, to_elem),
                   planes_at(from, p, from_extent, from_elem), (size_t)elems * elem_bytes(form, p));
    }
}

/* ==== area ==== */

void area_unref(struct area *area)
{
    if (area == NULL || --area->refs > 0) return;
    free(area->segments);
    free(area);
}

cairn_status area_add(struct state_planes *planes, struct home *device, uint64_t bytes,
                      struct area **area_out, struct sentence *why)
{
    struct area *area = calloc(1, sizeof *area);
    if (area == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a list of memory");
    area->refs = 1;
    area->arena = area->to = CAIRN_ARENA_NONE;
    area->segments = calloc((size_t)(bytes / CAIRN_SEGMENT_BYTES) + 1, sizeof *area->segments);
    const cairn_status status = area->segments == NULL
                                    ? fail_with(why, CAIRN_ERR_NO_MEMORY,
                                                "out of memory for a list of memory")
                                    : arena_open_home(device, "planes", bytes, &area->arena, why);
    if (status != CAIRN_OK) {
        area_unref(area);
        return status;
    }
    area->next = planes->areas;
    planes->areas = area;
    *area_out = area;
    return CAIRN_OK;
}

/* ---- what is left in them ---- */

void areas_unmark(struct state_planes *planes)
{
    for (struct area *area = planes->areas; area != NULL; area = area->next)
        for (uint64_t s = 0; s < memory_segments(area->arena.bytes); s++)
            area->segments[s].in_use = false;
}

void place_mark(const struct area_place *place, const struct form *form, uint64_t elems)
{
    for (enum plane p = 0; p < CAIRN_PLANES && place->area != NULL; p++) {
        const uint64_t bytes = form_bytes(form, p, elems);
        if (bytes == 0) continue;
        const uint64_t last = (place->at[p] + bytes - 1) / CAIRN_SEGMENT_BYTES;
        for (uint64_t s = place->at[p] / CAIRN_SEGMENT_BYTES; s <= last; s++)
            place->area->segments[s].in_use = true;
    }
}

static bool in_use(const struct area *area)
{
    uint64_t s = 0;
    while (s < memory_segments(area->arena.bytes) && !area->segments[s].in_use) s++;
    return s < memory_segments(area->arena.bytes);
}

static void give_unused(struct area *area)
{
    for (uint64_t s = 0; s < memory_segments(area->arena.bytes); s++) {
        struct area_segment *segment = &area->segments[s];
        if (!segment->in_use && !segment->is_gone) arena_give_segment(&area->arena, s);
        segment->is_gone = segment->is_gone || !segment->in_use;
    }
}

void areas_trim(struct state_planes *planes, struct shard_daemon *shard)
{
    for (struct area **link = &planes->areas; *link != NULL;) {
        struct area *area = *link;
        if (in_use(area)) {
            give_unused(area);
            link = &area->next;
            continue;
        }
        *link = area->next;
        arena_release(shard, &area->arena);
        area_unref(area);
    }
}

uint64_t areas_bytes(const struct state_planes *planes)
{
    uint64_t bytes = 0;
    for (const struct area *area = planes->areas; area != NULL; area = area->next)
        for (uint64_t s = 0; s < memory_segments(area->arena.bytes); s++)
            if (!area->segments[s].is_gone)
                bytes += plane_units(segment_bytes(area->arena.bytes, s));
    return bytes;
}

/* Closes all areas. If `shard` is not NULL, the memory is released on another thread. */
static void areas_close(struct state_planes *planes, struct shard_daemon *shard)
{
    while (planes->areas != NULL) {
        struct area *area = planes->areas;
        planes->areas = area->next;
        if (shard != NULL) {
            arena_release(shard, &area->arena);
            arena_release(shard, &area->to);
        }
        arena_close(&area->arena);
        arena_close(&area->to);
        area_unref(area);
    }
}

/* ==== made pages ==== */

void made_pages_open(struct made_pages *made)
{
    *made = (struct made_pages) { .list = NULL };
    pthread_mutex_init(&made->mutex, NULL);
    pthread_cond_init(&made->changed, NULL);
}

void made_pages_close(struct made_pages *made)
{
    pthread_mutex_destroy(&made->mutex);
    pthread_cond_destroy(&made->changed);
    free(made->list);
}

/* Takes the spans that touch `span` out of the list, and joins them to `span`. */
static void join_spans(struct made_pages *made, struct made_pages_span *span)
{
    for (size_t i = 0; i < made->count;) {
        const struct made_pages_span other = made->list[i];
        if (other.end < span->at || span->end < other.at) {
            i++;
            continue;
        }
        if (other.at < span->at) span->at = other.at;
        if (other.end > span->end) span->end = other.end;
        made->list[i] = made->list[--made->count];
    }
}

/* Adds a span to the list. If there is no memory for this, threads that wait for the span's pages
 * wait until made_pages_end. */
static void add_span(struct made_pages *made, struct made_pages_span span)
{
    join_spans(made, &span);
    if (made->count == made->capacity) {
        const size_t capacity = 2 * made->capacity + 8;
        struct made_pages_span *grown = realloc(made->list, capacity * sizeof *grown);
        if (grown == NULL) return;
        made->list = grown;
        made->capacity = capacity;
    }
    made->list[made->count++] = span;
}

void made_pages_add(struct made_pages *made, const void *at, uint64_t bytes)
{
    HOLD_LOCK(&made->mutex);
    add_span(made, (struct made_pages_span) { (uintptr_t)at, (uintptr_t)at + bytes });
    pthread_cond_broadcast(&made->changed);
}

void made_pages_end(struct made_pages *made, bool all)
{
    HOLD_LOCK(&made->mutex);
    if (!made->is_over) made->all = all;
    made->is_over = true;
    pthread_cond_broadcast(&made->changed);
}

static bool has_span(const struct made_pages *made, uintptr_t at, uintptr_t end)
{
    for (size_t i = 0; i < made->count; i++)
        if (made->list[i].at <= at && end <= made->list[i].end) return true;
    return false;
}

bool made_pages_await(struct made_pages *made, const void *at, uint64_t bytes)
{
    const uintptr_t first = (uintptr_t)at;
    HOLD_LOCK(&made->mutex);
    while (!made->is_over && !has_span(made, first, first + bytes))
        pthread_cond_wait(&made->changed, &made->mutex);
    return made->is_over ? made->all : true;
}

/* ==== release ==== */

/* Gives memory back. Unmapping a GiB takes 0.2 s, and freeing the tables of a job with a million
 * tensors takes as long. So a separate thread does the releases, one after the other. The budget
 * gets the bytes of a job back when the job's memory is released; until then a JobCreate waits. */

struct arena_release {
    struct task task;
    struct shard_daemon *shard;     /* borrowed */
    LIST_ENTRY(arena_release) link; /* in the shard's memory.releases */
    struct arena arena;             /* owned */
    void (*free_it)(void *what);
    void *what; /* owned; or NULL */
    uint64_t budget_bytes;
    struct request request; /* answered when the memory is released */
};

static void release_it(struct arena_release *release)
{
    arena_close(&release->arena);
    if (release->what != NULL) release->free_it(release->what);
    release->what = NULL;
}

static void run_release(struct task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    release_it((struct arena_release *)task);
}

static void account(struct shard_daemon *shard, uint64_t budget_bytes, struct request *request)
{
    budget_give(&shard->memory.budget, budget_bytes);
    if (request->session != 0) session_answer(shard, request, CAIRN_OK, NULL);
}

static void on_released(struct task *task)
{
    struct arena_release *release = (struct arena_release *)task;
    struct shard_daemon *shard = release->shard;
    LIST_REMOVE(release, link);
    account(shard, release->budget_bytes, &release->request);
    free(release);
    shard->up->memory_back(shard);
}

/* Passes a release to the separate thread. Returns false if this is not possible; then the caller
 * does the release itself. */
static bool begin_release(struct shard_daemon *shard, const struct arena_release *what)
{
    struct arena_release *release = shard->closing ? NULL : malloc(sizeof *release);
    if (release == NULL) return false;
    *release = *what;
    release->task = (struct task) { .run = run_release, .done = on_released, .item_count = 1 };
    release->shard = shard;
    LIST_INSERT_HEAD(&shard->memory.releases, release, link);
    pool_submit(shard->memory.releaser, &release->task);
    return true;
}

void arena_release(struct shard_daemon *shard, struct arena *arena)
{
    arena_unshare(arena,
                  shard->closing); // the fabric of a closing shard has dropped its regions
    const struct arena_release release = { .arena = *arena };
    if (arena->base != NULL && begin_release(shard, &release)) *arena = CAIRN_ARENA_NONE;
    arena_close(arena);
}

void release_by(struct shard_daemon *shard, void (*free_it)(void *what), void *what)
{
    const struct arena_release release = { .arena = CAIRN_ARENA_NONE,
                                           .free_it = free_it,
                                           .what = what };
    if (!begin_release(shard, &release)) free_it(what);
}

void release_bytes(struct shard_daemon *shard, uint64_t budget_bytes, const struct request *request)
{
    struct arena_release release = { .arena = CAIRN_ARENA_NONE, .budget_bytes = budget_bytes };
    if (request != NULL) release.request = *request;
    if (begin_release(shard, &release)) return;
    struct arena_release *newest = shard->closing ? NULL : LIST_FIRST(&shard->memory.releases);
    if (newest == NULL) {
        account(shard, budget_bytes, &release.request);
        return;
    }
    // There is no memory for a new release. So the bytes are given back together with those of the
    // newest release, which ends last. If another request already waits for that release, the
    // present request is answered too early. This does no harm, because a JobCreate waits for all
    // releases.
    newest->budget_bytes += budget_bytes;
    if (newest->request.session == 0)
        newest->request = release.request;
    else
        account(shard, 0, &release.request);
}

void release_close(struct shard_daemon *shard)
{
    struct arena_release *release;
    while ((release = LIST_FIRST(&shard->memory.releases)) != NULL) {
        LIST_REMOVE(release, link);
        release_it(release);
        free(release);
    }
}
