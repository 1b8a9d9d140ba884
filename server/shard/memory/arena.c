#include "server/shard/memory/arena.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/fabric/pages.h"

/* `bytes` from `begin` on. */
static cairn_status map_arena(const char *label, uint64_t bytes, size_t begin, int fd, int flags,
                              struct cairn_arena *arena_out, struct cairn_sentence *why)
{
    uint8_t *map = cairn_pages_map((size_t)bytes + begin, PROT_READ | PROT_WRITE,
                                   flags | MAP_NORESERVE, fd);
    if (map == MAP_FAILED) {
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "cannot map %llu bytes for %s: %s",
                          (unsigned long long)bytes, label, strerror(errno));
    }
    madvise(map, (size_t)bytes + begin, MADV_HUGEPAGE); // a third faster; memfds: cairn_arena_take
    *arena_out = (struct cairn_arena) {
        .base = map + begin, .begin = begin, .bytes = (size_t)bytes, .fd = fd
    };
    return CAIRN_OK;
}

cairn_status cairn_arena_open_state(const char *label, uint64_t bytes,
                                    enum cairn_update_stream stream, struct cairn_arena *arena_out,
                                    struct cairn_sentence *why)
{
    const size_t begin = cairn_stagger_begin(stream);
    if (bytes == 0) {
        *arena_out = CAIRN_ARENA_NONE;
        return CAIRN_OK;
    }
    int fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || bytes > INT64_MAX - begin || ftruncate(fd, (off_t)(bytes + begin)) != 0) {
        int error = errno;
        if (fd >= 0) close(fd);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "cannot make %llu bytes of memory for %s: %s",
                          (unsigned long long)bytes, label, strerror(error));
    }
    cairn_status status = map_arena(label, bytes, begin, fd, MAP_SHARED, arena_out, why);
    if (status != CAIRN_OK) close(fd);
    return status;
}

cairn_status cairn_arena_open_scratch(const char *label, uint64_t bytes,
                                      struct cairn_arena *arena_out, struct cairn_sentence *why)
{
    if (bytes == 0) {
        *arena_out = CAIRN_ARENA_NONE;
        return CAIRN_OK;
    }
    return map_arena(label, bytes, 0, -1, MAP_PRIVATE | MAP_ANONYMOUS, arena_out, why);
}

cairn_status cairn_arena_open_home(struct cairn_home *home, const char *label, uint64_t bytes,
                                   struct cairn_arena *arena_out, struct cairn_sentence *why)
{
    struct cairn_arena arena = CAIRN_ARENA_NONE;
    const cairn_status status = cairn_home_memory_open(home, label, bytes, &arena.memory, why);
    if (status != CAIRN_OK) return status;
    arena.base = arena.memory.base;
    arena.bytes = (size_t)bytes;
    *arena_out = arena;
    return CAIRN_OK;
}

cairn_status cairn_arena_hold(const struct cairn_arena *arena, uint64_t offset, uint64_t bytes)
{
    int status;
    assert(offset <= arena->bytes && bytes <= arena->bytes - offset);
    do {
        status = fallocate(arena->fd, 0, (off_t)(arena->begin + offset), (off_t)bytes);
    } while (status != 0 && errno == EINTR);
    return status == 0 ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

/* A kernel that has no large page looks for some each time (it compacts, and reclaims of a control group's
 * limit): one that said no is not asked again for this part. */
cairn_status cairn_arena_take(const struct cairn_arena *arena, uint64_t from, uint64_t bytes)
{
    const size_t large = CAIRN_PAGES_LARGE_BYTES;
    uint8_t *const map = arena->base - arena->begin;
    bool backed = arena->fd >= 0; // what is anonymous gets large ones as it is touched
    assert(from <= arena->bytes && bytes <= arena->bytes - from);
    from += arena->begin;
    const uint64_t end = from + bytes;
    while (from < end) {
        const uint64_t cut = (from / large + 1) * large;
        const uint64_t here = (cut < end ? cut : end) - from;
        if (backed && here == large)
            backed = cairn_pages_back(map + from, large) || errno == EAGAIN;
        if (!cairn_pages_touch(map + from, (size_t)here)) return CAIRN_ERR_NO_MEMORY;
        from += here;
    }
    return CAIRN_OK;
}

void cairn_arena_give(const struct cairn_arena *arena, uint64_t from, uint64_t bytes)
{
    const uint64_t page = 4096, first = (from + page - 1) / page * page; // in use before `from`
    assert(arena->fd < 0 && from <= arena->bytes && bytes <= arena->bytes - from);
    if (first < from + bytes)
        madvise(arena->base + first, (size_t)(from + bytes - first), MADV_DONTNEED);
}

struct cairn_fabric_region *cairn_arena_share(const struct cairn_arena *arena,
                                              struct cairn_fabric *fabric, const void *note,
                                              size_t note_bytes)
{
    struct cairn_fabric_region *region;
    if (arena->base == NULL || fcntl(arena->fd, F_ADD_SEALS, CAIRN_FABRIC_SEALS) != 0 ||
        cairn_fabric_region_add(fabric, arena->base, arena->bytes, arena->fd, note, note_bytes,
                                &region) != CAIRN_OK)
        return NULL;
    return region;
}

void cairn_arena_close(struct cairn_arena *arena)
{
    const bool is_ours = arena->base != NULL && arena->memory.base == NULL;
    if (is_ours) munmap(arena->base - arena->begin, arena->begin + arena->bytes);
    if (is_ours && arena->fd >= 0) close(arena->fd);
    cairn_home_memory_close(&arena->memory);
    *arena = CAIRN_ARENA_NONE;
}
