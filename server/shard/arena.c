#include "server/shard/arena.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/fabric/pages.h"

enum { WANTED, TAKEN, LEFT }; /* a large page: to be asked for, asked for, not of the arena's */

static cairn_status map_arena(const char *label, uint64_t bytes, int fd, int flags,
                              struct cairn_arena *arena_out, struct cairn_sentence *why)
{
    void *base = cairn_pages_map((size_t)bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd);
    if (base == MAP_FAILED) {
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "cannot map %llu bytes for %s: %s",
                          (unsigned long long)bytes, label, strerror(errno));
    }
    madvise(base, (size_t)bytes, MADV_HUGEPAGE); // a third faster; memfds: cairn_arena_back
    *arena_out = (struct cairn_arena) { .base = base, .bytes = (size_t)bytes, .fd = fd };
    return CAIRN_OK;
}

cairn_status cairn_arena_open_state(const char *label, uint64_t bytes,
                                    struct cairn_arena *arena_out, struct cairn_sentence *why)
{
    if (bytes == 0) {
        *arena_out = CAIRN_ARENA_NONE;
        return CAIRN_OK;
    }
    int fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || bytes > INT64_MAX || ftruncate(fd, (off_t)bytes) != 0) {
        int error = errno;
        if (fd >= 0) close(fd);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "cannot make %llu bytes of memory for %s: %s",
                          (unsigned long long)bytes, label, strerror(error));
    }
    cairn_status status = map_arena(label, bytes, fd, MAP_SHARED, arena_out, why);
    if (status != CAIRN_OK) {
        close(fd);
        return status;
    }
    const size_t pages = (size_t)(bytes / CAIRN_PAGES_LARGE_BYTES);
    if (pages > 0) arena_out->large = calloc(pages, sizeof *arena_out->large); // NULL: small ones
    return CAIRN_OK;
}

/* The pages that have any of the bytes: [*first_out, end). */
static size_t pages_of(const struct cairn_arena *arena, uint64_t from, uint64_t bytes,
                       size_t *first_out)
{
    const size_t size = CAIRN_PAGES_LARGE_BYTES, whole = arena->bytes / size;
    assert(from <= arena->bytes && bytes <= arena->bytes - from);
    *first_out = (size_t)from / size;
    const size_t end = (size_t)(from + bytes + size - 1) / size;
    return arena->large == NULL ? 0 : end < whole ? end : whole;
}

void cairn_arena_leave(const struct cairn_arena *arena, uint64_t from, uint64_t bytes)
{
    size_t page;
    for (const size_t end = pages_of(arena, from, bytes, &page); page < end; page++)
        atomic_store_explicit(&arena->large[page], LEFT, memory_order_relaxed);
}

/* A kernel that has none looks for some each time (it compacts, and reclaims of a container's limit): once is
 * enough. */
void cairn_arena_back(const struct cairn_arena *arena, uint64_t from, uint64_t bytes)
{
    size_t page;
    for (const size_t end = pages_of(arena, from, bytes, &page); page < end; page++) {
        unsigned char wanted = WANTED;
        if (!atomic_compare_exchange_strong(&arena->large[page], &wanted, TAKEN)) continue;
        if (!cairn_pages_back(arena->base + page * CAIRN_PAGES_LARGE_BYTES,
                              CAIRN_PAGES_LARGE_BYTES) &&
            errno != EAGAIN)
            cairn_arena_leave(arena, 0, arena->bytes);
    }
}

cairn_status cairn_arena_open_scratch(const char *label, uint64_t bytes,
                                      struct cairn_arena *arena_out, struct cairn_sentence *why)
{
    if (bytes == 0) {
        *arena_out = CAIRN_ARENA_NONE;
        return CAIRN_OK;
    }
    return map_arena(label, bytes, -1, MAP_PRIVATE | MAP_ANONYMOUS, arena_out, why);
}

cairn_status cairn_arena_hold(const struct cairn_arena *arena, uint64_t offset, uint64_t bytes)
{
    int status;
    assert(offset <= arena->bytes && bytes <= arena->bytes - offset);
    do {
        status = fallocate(arena->fd, 0, (off_t)offset, (off_t)bytes);
    } while (status != 0 && errno == EINTR);
    return status == 0 ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

void cairn_arena_close(struct cairn_arena *arena)
{
    if (arena->base != NULL) munmap(arena->base, arena->bytes);
    if (arena->base != NULL && arena->fd >= 0) close(arena->fd);
    free(arena->large);
    *arena = CAIRN_ARENA_NONE;
}

cairn_status cairn_budget_take(struct cairn_budget *budget, uint64_t bytes, const char *what,
                               struct cairn_sentence *why)
{
    uint64_t left = budget->limit_bytes - budget->used_bytes;
    if (bytes > left) {
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY,
                          "%s needs %llu bytes, and %llu of memory.limit = %llu are left: raise "
                          "memory.limit, or add shards",
                          what, (unsigned long long)bytes, (unsigned long long)left,
                          (unsigned long long)budget->limit_bytes);
    }
    budget->used_bytes += bytes;
    return CAIRN_OK;
}

void cairn_budget_give(struct cairn_budget *budget, uint64_t bytes)
{
    assert(bytes <= budget->used_bytes);
    budget->used_bytes -= bytes;
}
