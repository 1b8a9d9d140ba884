#include "server/shard/memory/arena.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/base/pages.h"

/* A segment that members of this host may map. */
struct cairn_arena_shown {
    struct cairn_fabric_region *region; /* owned */
    int fd;                             /* owned: the region's; -1: of a card */
};

static void is_of_home(struct cairn_arena *arena)
{
    arena->base = arena->memory.base;
    arena->bytes = (size_t)arena->memory.bytes;
}

static cairn_status open_room(const char *label, uint64_t bytes, uint64_t room_bytes, bool shared,
                              struct cairn_arena *arena_out, struct cairn_sentence *why)
{
    struct cairn_arena arena = CAIRN_ARENA_NONE;
    const cairn_status status = cairn_home_memory_open_room(label, bytes, room_bytes, shared,
                                                            &arena.memory, why);
    if (status != CAIRN_OK) return status;
    is_of_home(&arena);
    *arena_out = arena;
    return CAIRN_OK;
}

cairn_status cairn_arena_open_state(const char *label, uint64_t bytes, uint64_t room_bytes,
                                    enum cairn_update_stream stream, struct cairn_arena *arena_out,
                                    struct cairn_sentence *why)
{
    const size_t begin = cairn_stagger_begin(stream);
    const uint64_t all = bytes == 0 ? 0 : bytes + begin;
    const cairn_status status = open_room(label, all, room_bytes + begin, false, arena_out, why);
    if (status != CAIRN_OK || bytes == 0) return status;
    arena_out->base += begin;
    arena_out->begin = begin;
    arena_out->bytes = (size_t)bytes;
    return CAIRN_OK;
}

cairn_status cairn_arena_open_shared_room(const char *label, uint64_t bytes, uint64_t room_bytes,
                                          struct cairn_arena *arena_out, struct cairn_sentence *why)
{
    return open_room(label, bytes, room_bytes, true, arena_out, why);
}

static void unpin(const struct cairn_arena *arena, uint64_t from, uint64_t bytes)
{
    if (arena->pins_for != NULL) cairn_home_unpin(arena->pins_for, arena->base + from, bytes);
}

cairn_status cairn_arena_resize(struct cairn_arena *arena, const char *label, uint64_t bytes,
                                struct cairn_sentence *why)
{
    const uint64_t stays = bytes < arena->bytes ? bytes : arena->bytes;
    struct cairn_sentence unpinned;
    assert(arena->shown == NULL && bytes > 0);
    assert(arena->pins_for == NULL || arena->begin == 0);
    unpin(arena, stays, arena->bytes - stays);
    const cairn_status status = cairn_home_memory_resize(&arena->memory, label,
                                                         bytes + arena->begin, why);
    if (status == CAIRN_OK) arena->bytes = (size_t)bytes;
    // The last segment soon has other bytes: it is not pinned before others follow it.
    for (uint64_t at = stays / CAIRN_SEGMENT_BYTES * CAIRN_SEGMENT_BYTES;
         at + CAIRN_SEGMENT_BYTES <= arena->bytes; at += CAIRN_SEGMENT_BYTES)
        if (cairn_arena_pin(arena, at, CAIRN_SEGMENT_BYTES, &unpinned) != CAIRN_OK) break;
    return status;
}

cairn_status cairn_arena_open_scratch(const char *label, uint64_t bytes,
                                      struct cairn_arena *arena_out, struct cairn_sentence *why)
{
    if (bytes == 0) {
        *arena_out = CAIRN_ARENA_NONE;
        return CAIRN_OK;
    }
    uint8_t *map = cairn_pages_map((size_t)bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    if (map == MAP_FAILED)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "cannot map %llu bytes for %s: %s",
                          (unsigned long long)bytes, label, strerror(errno));
    madvise(map, (size_t)bytes, MADV_HUGEPAGE); // a third faster; segments: cairn_arena_take
    *arena_out = (struct cairn_arena) { .base = map, .bytes = (size_t)bytes };
    return CAIRN_OK;
}

cairn_status cairn_arena_open_home(struct cairn_home *home, const char *label, uint64_t bytes,
                                   struct cairn_arena *arena_out, struct cairn_sentence *why)
{
    struct cairn_arena arena = CAIRN_ARENA_NONE;
    const cairn_status status = cairn_home_memory_open(home, label, bytes, &arena.memory, why);
    if (status != CAIRN_OK) return status;
    is_of_home(&arena);
    *arena_out = arena;
    return CAIRN_OK;
}

cairn_status cairn_arena_open_shared(struct cairn_home *home, const char *label, uint64_t bytes,
                                     struct cairn_arena *arena_out, struct cairn_sentence *why)
{
    struct cairn_arena arena = CAIRN_ARENA_NONE;
    const cairn_status status = cairn_home_memory_open_exportable(home, label, bytes, &arena.memory,
                                                                  why);
    if (status != CAIRN_OK) return status;
    is_of_home(&arena);
    *arena_out = arena;
    return CAIRN_OK;
}

cairn_status cairn_arena_take(const struct cairn_arena *arena, uint64_t from, uint64_t bytes)
{
    uint8_t *const at = arena->base + from;
    assert(from <= arena->bytes && bytes <= arena->bytes - from);
    // Anonymous: large ones come as it is touched. Else small ones are made where there is no large one.
    if (arena->memory.base != NULL) (void)cairn_pages_back(at, (size_t)bytes);
    return cairn_pages_touch(at, (size_t)bytes) ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

void cairn_arena_pins_for(struct cairn_arena *arena, struct cairn_home *home)
{
    if (arena->base != NULL && !cairn_home_info(home)->is_host) arena->pins_for = home;
}

cairn_status cairn_arena_pin(const struct cairn_arena *arena, uint64_t from, uint64_t bytes,
                             struct cairn_sentence *why)
{
    if (arena->pins_for == NULL) return CAIRN_OK;
    assert(from <= arena->bytes && bytes <= arena->bytes - from);
    return cairn_home_pin(arena->pins_for, arena->base + from, bytes, why);
}

void cairn_arena_give(const struct cairn_arena *arena, uint64_t from, uint64_t bytes)
{
    const uint64_t page = 4096, first = (from + page - 1) / page * page; // in use before `from`
    assert(arena->memory.base == NULL && from <= arena->bytes && bytes <= arena->bytes - from);
    if (first >= from + bytes) return;
    unpin(arena, first, from + bytes - first); // or the device would go on with the old pages
    madvise(arena->base + first, (size_t)(from + bytes - first), MADV_DONTNEED);
}

/* ---- what others map ---- */

/* Segments that were shared before have their seals: they can be given once. */
static bool seal(int fd)
{
    const int seals = fcntl(fd, F_GET_SEALS);
    return (seals >= 0 && (seals & CAIRN_FABRIC_SEALS) == CAIRN_FABRIC_SEALS) ||
           fcntl(fd, F_ADD_SEALS, CAIRN_FABRIC_SEALS) == 0;
}

/* A region of a card takes a descriptor of its own: an open one keeps the memory taken. */
static cairn_status add_region(struct cairn_fabric *fabric, const struct cairn_home *home,
                               const void *base, uint64_t bytes, struct cairn_arena_shown *shown,
                               const void *note, size_t note_bytes)
{
    const struct cairn_home_info *info = cairn_home_info(home);
    if (info->is_host)
        return !seal(shown->fd) ? CAIRN_ERR_IO
                                : cairn_fabric_region_add(fabric, base, (size_t)bytes, shown->fd,
                                                          note, note_bytes, &shown->region);
    const cairn_status status = cairn_fabric_region_add_device(
        fabric, base, (size_t)bytes, shown->fd, info->uuid, note, note_bytes, &shown->region);
    close(shown->fd);
    shown->fd = -1;
    return status;
}

static bool share_segment(struct cairn_arena *arena, uint64_t segment, struct cairn_fabric *fabric,
                          const struct cairn_published_note *note)
{
    struct cairn_arena_shown *shown = &arena->shown[segment];
    struct cairn_published_note own = { .magic = 0 };
    struct cairn_sentence why;
    uint64_t bytes;
    if (cairn_home_memory_export(&arena->memory, segment, &shown->fd, &bytes, &why) != CAIRN_OK)
        return false;
    if (note != NULL) {
        own = *note;
        own.segment += (uint32_t)segment;
    }
    return add_region(fabric, arena->memory.home, arena->base + segment * CAIRN_SEGMENT_BYTES,
                      bytes, shown, &own, note != NULL ? sizeof own : 0) == CAIRN_OK;
}

bool cairn_arena_share(struct cairn_arena *arena, struct cairn_fabric *fabric,
                       const struct cairn_published_note *note)
{
    const uint64_t count = cairn_home_memory_segments(&arena->memory);
    assert(arena->shown == NULL && arena->begin == 0);
    if (count == 0) return true;
    arena->shown = calloc((size_t)count, sizeof *arena->shown);
    bool all = arena->shown != NULL;
    for (uint64_t i = 0; all && i < count; i++) arena->shown[i].fd = -1;
    for (uint64_t i = 0; all && i < count; i++) all = share_segment(arena, i, fabric, note);
    if (!all) cairn_arena_unshare(arena, false);
    return all;
}

void cairn_arena_show(const struct cairn_arena *arena, struct cairn_fabric_peer *peer)
{
    const uint64_t count = cairn_home_memory_segments(&arena->memory);
    for (uint64_t i = 0; arena->shown != NULL && i < count; i++) {
        if (arena->shown[i].region == NULL) continue;
        const cairn_status status = cairn_fabric_region_show(arena->shown[i].region, peer);
        (void)status; // it asks for what it does not see
    }
}

static void unshare_segment(struct cairn_arena *arena, uint64_t segment, bool fabric_is_closed)
{
    struct cairn_arena_shown *shown = &arena->shown[segment];
    if (!fabric_is_closed) cairn_fabric_region_drop(shown->region);
    if (shown->fd >= 0) close(shown->fd);
    *shown = (struct cairn_arena_shown) { .fd = -1 };
}

void cairn_arena_unshare(struct cairn_arena *arena, bool fabric_is_closed)
{
    const uint64_t count = cairn_home_memory_segments(&arena->memory);
    for (uint64_t i = 0; arena->shown != NULL && i < count; i++)
        unshare_segment(arena, i, fabric_is_closed);
    free(arena->shown);
    arena->shown = NULL;
}

/* ---- back ---- */

void cairn_arena_give_segment(struct cairn_arena *arena, uint64_t segment)
{
    if (arena->shown != NULL) unshare_segment(arena, segment, false);
    unpin(arena, segment * CAIRN_SEGMENT_BYTES, cairn_segment_bytes(arena->bytes, segment));
    cairn_home_memory_give(&arena->memory, segment);
}

void cairn_arena_close(struct cairn_arena *arena)
{
    assert(arena->shown == NULL);
    unpin(arena, 0, arena->bytes);
    if (arena->base != NULL && arena->memory.base == NULL) munmap(arena->base, arena->bytes);
    cairn_home_memory_close(&arena->memory);
    *arena = CAIRN_ARENA_NONE;
}
