/* Counts what a preloaded program holds (nth.h). Each block of memory begins with a header of ours, which
 * says who allocated it; memory that the C library's loader allocated before us has none, and is not
 * counted. */
#include "tests/support/nth/nth.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *memory);

enum { PAGE_BYTES = 4096, MAGIC = 0x6e746821 };

/* The last word stands where the C library has the upper half of a block's size: never MAGIC. */
struct header {
    uint64_t bytes;
    uint16_t site;
    uint8_t shift; /* 1 << shift bytes of the C library's block are before the memory */
    uint8_t unused;
    uint32_t magic;
};
_Static_assert(sizeof(struct header) == 16, "memory is aligned as that of malloc");

/* The file is mapped over it. */
static struct nth_counts counts __attribute__((aligned(PAGE_BYTES)));

__attribute__((constructor)) static void share_counts(void)
{
    const char *path = getenv("NTH_COUNTS");
    const int flags = MAP_SHARED | MAP_FIXED, rights = PROT_READ | PROT_WRITE;
    if (path == NULL) return;
    // By system calls, because calls of this library may be armed to fail.
    const long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || syscall(SYS_pwrite64, fd, &counts, sizeof counts, 0L) != sizeof counts ||
        syscall(SYS_mmap, &counts, sizeof counts, rights, flags, fd, 0L) < 0)
        abort();
    syscall(SYS_close, fd);
    unsetenv("NTH_COUNTS");
}

/* The last one is everybody's whom no other is left for. */
static uint16_t site_of(void *caller)
{
    const uintptr_t mine = (uintptr_t)caller;
    const size_t first = (size_t)((mine * UINT64_C(0x9e3779b97f4a7c15)) >> 52);
    for (size_t i = 0; i < NTH_SITES - 1; i++) {
        const size_t at = (first + i) % (NTH_SITES - 1);
        uintptr_t nobody = 0;
        if (counts.sites[at].caller == mine ||
            atomic_compare_exchange_strong(&counts.sites[at].caller, &nobody, mine) ||
            nobody == mine)
            return (uint16_t)at;
    }
    return NTH_SITES - 1;
}

static void *begin_block(char *block, uint8_t shift, size_t bytes, void *caller)
{
    if (block == NULL) return NULL;
    char *memory = block + (UINT64_C(1) << shift);
    struct header *header = (struct header *)(void *)(memory - sizeof *header);
    *header =
        (struct header) { .bytes = bytes, .site = site_of(caller), .shift = shift, .magic = MAGIC };
    counts.sites[header->site].blocks++;
    counts.sites[header->site].bytes += (int64_t)bytes;
    return memory;
}

/* NULL: it is not ours. */
static struct header *header_of(void *memory)
{
    struct header *header = memory != NULL
                                ? (struct header *)(void *)((char *)memory - sizeof *header)
                                : NULL;
    return header != NULL && header->magic == MAGIC ? header : NULL;
}

static void *end_block(void *memory, struct header *header)
{
    counts.sites[header->site].blocks--;
    counts.sites[header->site].bytes -= (int64_t)header->bytes;
    header->magic = 0;
    return (char *)memory - (UINT64_C(1) << header->shift);
}

enum { SHIFT = 4 };

static bool is_too_large(size_t bytes)
{
    if (bytes <= PTRDIFF_MAX / 2) return false;
    errno = ENOMEM;
    return true;
}

void *nth_allocate(size_t bytes, bool is_cleared, void *caller)
{
    if (is_too_large(bytes)) return NULL;
    const size_t all = bytes + sizeof(struct header);
    return begin_block(is_cleared ? __libc_calloc(1, all) : __libc_malloc(all), SHIFT, bytes,
                       caller);
}

void *nth_allocate_aligned(size_t alignment, size_t bytes, void *caller)
{
    uint8_t shift = SHIFT;
    if (is_too_large(bytes) || is_too_large(alignment)) return NULL;
    while ((UINT64_C(1) << shift) < alignment) shift++;
    const size_t before = (size_t)1 << shift;
    return begin_block(__libc_memalign(before, before + bytes), shift, bytes, caller);
}

void *nth_reallocate(void *memory, size_t bytes, void *caller)
{
    struct header *header = header_of(memory);
    if (memory == NULL) return nth_allocate(bytes, false, caller);
    if (is_too_large(bytes)) return NULL;
    if (header == NULL) return __libc_realloc(memory, bytes);
    if (header->shift == SHIFT && bytes > 0) {
        const struct header old = *header;
        char *block = __libc_realloc((char *)memory - sizeof old, bytes + sizeof old);
        if (block == NULL) return NULL;
        counts.sites[old.site].blocks--;
        counts.sites[old.site].bytes -= (int64_t)old.bytes;
        return begin_block(block, SHIFT, bytes, caller);
    }
    void *copy = bytes > 0 ? nth_allocate(bytes, false, caller) : NULL;
    if (copy != NULL) memcpy(copy, memory, bytes < header->bytes ? bytes : header->bytes);
    if (copy != NULL || bytes == 0) free(memory);
    return copy;
}

void free(void *memory)
{
    const int error = errno;
    struct header *header = header_of(memory);
    __libc_free(header != NULL ? end_block(memory, header) : memory);
    errno = error;
}

/* For SQLite and UCX, who use all of a block. */
size_t malloc_usable_size(void *memory)
{
    const struct header *header = header_of(memory);
    return header != NULL ? (size_t)header->bytes : 0;
}

void nth_mapped(int64_t bytes)
{
    const int64_t pages = (bytes < 0 ? -bytes : bytes) + PAGE_BYTES - 1;
    const int64_t whole = pages / PAGE_BYTES * PAGE_BYTES;
    counts.mapped_bytes += bytes < 0 ? -whole : whole;
}
