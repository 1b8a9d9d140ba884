#include "proto/fabric/pages.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>

#define LARGE CAIRN_PAGES_LARGE_BYTES
#define SMALL ((size_t)4096)

/* Linux's, for headers that are older than it. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static uintptr_t large_up(uintptr_t at)
{
    return (at + LARGE - 1) / LARGE * LARGE;
}

void *cairn_pages_map(size_t bytes, int protection, int flags, int fd)
{
    if (bytes < LARGE || bytes > SIZE_MAX - LARGE)
        return mmap(NULL, bytes, protection, flags, fd, 0);
    const size_t room = bytes + LARGE;
    uint8_t *from = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (from == MAP_FAILED) return MAP_FAILED;
    uint8_t *to = (uint8_t *)large_up((uintptr_t)from);
    void *base = mmap(to, bytes, protection, flags | MAP_FIXED, fd, 0);
    if (base == MAP_FAILED) { // a file of larger pages still: the kernel knows where they may begin
        munmap(from, room);
        return mmap(NULL, bytes, protection, flags, fd, 0);
    }
    const size_t before = (size_t)(to - from), pages = (bytes + SMALL - 1) / SMALL * SMALL;
    if (before > 0) munmap(from, before);
    if (before + pages < room) munmap(to + pages, room - before - pages);
    return base;
}

bool cairn_pages_back(void *base, size_t bytes)
{
    const uintptr_t end = ((uintptr_t)base + bytes) / LARGE * LARGE;
    bool backed = true;
    // A part of a file that has nothing at all is not collapsed: one page makes it something.
    for (uintptr_t at = large_up((uintptr_t)base); at < end && backed; at += LARGE)
        backed = madvise((void *)at, SMALL, MADV_POPULATE_WRITE) == 0 &&
                 madvise((void *)at, LARGE, MADV_COLLAPSE) == 0;
    return backed;
}

/* Before Linux 5.14. Where there is no memory this is a SIGBUS, as it was. */
static void touch_each(volatile uint8_t *base, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += SMALL) base[at] = base[at];
    base[bytes - 1] = base[bytes - 1];
}

bool cairn_pages_touch(void *base, size_t bytes)
{
    int failed;
    if (bytes == 0) return true;
    const uintptr_t first = (uintptr_t)base / SMALL * SMALL;
    do {
        failed = madvise((void *)first, (uintptr_t)base + bytes - first, MADV_POPULATE_WRITE);
    } while (failed != 0 && (errno == EINTR || errno == EAGAIN));
    if (failed != 0 && errno == EINVAL) {
        touch_each(base, bytes);
        return true;
    }
    return failed == 0;
}
