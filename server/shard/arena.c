#include "server/shard/arena.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static cairn_status map_arena(const char *label, uint64_t bytes, int fd, int flags,
                              struct cairn_arena *arena_out, struct cairn_sentence *why)
{
    void *base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "cannot map %llu bytes for %s: %s",
                          (unsigned long long)bytes, label, strerror(errno));
    }
    madvise(base, (size_t)bytes,
            MADV_HUGEPAGE); // a fifth faster; memfds have them if the kernel lets them
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
    return map_arena(label, bytes, -1, MAP_PRIVATE | MAP_ANONYMOUS, arena_out, why);
}

void cairn_arena_close(struct cairn_arena *arena)
{
    if (arena->base != NULL) munmap(arena->base, arena->bytes);
    if (arena->base != NULL && arena->fd >= 0) close(arena->fd);
    *arena = CAIRN_ARENA_NONE;
}

cairn_status cairn_budget_take(struct cairn_budget *budget, uint64_t bytes, const char *what,
                               struct cairn_sentence *why)
{
    uint64_t left = budget->limit_bytes - budget->used_bytes;
    if (bytes > left) {
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY,
                          "%s needs %llu bytes, and %llu of memory.limit = %llu are left: raise "
                          "memory.limit, add shards, or drop a job",
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
