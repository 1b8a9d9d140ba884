#include "proto/base/pages.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

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

void *cairn_pages_reserve(size_t bytes)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (bytes < LARGE || bytes > SIZE_MAX - LARGE)
        return mmap(NULL, bytes, PROT_NONE, flags, -1, 0);
    const size_t room = bytes + LARGE;
    uint8_t *from = mmap(NULL, room, PROT_NONE, flags, -1, 0);
    if (from == MAP_FAILED) return MAP_FAILED;
    uint8_t *base = (uint8_t *)large_up((uintptr_t)from);
    const size_t before = (size_t)(base - from), pages = (bytes + SMALL - 1) / SMALL * SMALL;
    if (before > 0) munmap(from, before);
    if (before + pages < room) munmap(base + pages, room - before - pages);
    return base;
}

void *cairn_pages_map(size_t bytes, int protection, int flags, int fd)
{
    if (bytes < LARGE) return mmap(NULL, bytes, protection, flags, fd, 0);
    void *base = cairn_pages_reserve(bytes);
    if (base == MAP_FAILED) return MAP_FAILED;
    if (mmap(base, bytes, protection, flags | MAP_FIXED, fd, 0) != MAP_FAILED) return base;
    munmap(base, bytes); // a file of larger pages still: the kernel knows where they may begin
    return mmap(NULL, bytes, protection, flags, fd, 0);
}

/* Not by mremap: UCX puts a function of its own in its place (1.13), which forgets `to`. */
bool cairn_pages_double(void *to, const void *from, size_t bytes)
{
    const int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    return syscall(SYS_mremap, from, (size_t)0, bytes, flags, to) != -1;
}

bool cairn_pages_back(void *base, size_t bytes)
{
    const uintptr_t first = large_up((uintptr_t)base),
                    end = ((uintptr_t)base + bytes) / LARGE * LARGE;
    if (first >= end) return true;
    // A part of a file that has nothing at all is not collapsed: one page makes it something.
    for (uintptr_t at = first; at < end; at += LARGE)
        if (madvise((void *)at, SMALL, MADV_POPULATE_WRITE) != 0) return false;
    // In one call: each waits for every core of the machine. It ends where there are no more large pages.
    return madvise((void *)first, end - first, MADV_COLLAPSE) == 0;
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
