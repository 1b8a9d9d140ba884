/* Memory of the host's home: segments of at most 64 MiB, each a memfd of its own, mapped side by side. */
#include "gpu/host/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/base/pages.h"

struct cairn_home_segment {
    int fd; /* owned; -1: not made yet, or given back */
};

/* In whole pages. */
static size_t pages_of(uint64_t bytes)
{
    return (size_t)((bytes + 4095) / 4096 * 4096);
}

static uint64_t room_of(const struct cairn_home_memory *memory)
{
    return memory->room_bytes != 0 ? memory->room_bytes : memory->bytes;
}

/* The bytes of a segment's memfd. A segment that other processes have mapped cannot change its
 * size. So an exportable segment has from the first the size that the room allows; only the pages
 * that are touched take memory. */
static uint64_t bytes_of(const struct cairn_home_memory *memory, uint64_t segment)
{
    return cairn_segment_bytes(memory->is_exportable ? room_of(memory) : memory->bytes, segment);
}

static uint8_t *address_of(const struct cairn_home_memory *memory, uint64_t segment)
{
    return (uint8_t *)memory->base + segment * CAIRN_SEGMENT_BYTES;
}

/* The segment's bytes from `from` on, a multiple of a page: those before it are there. */
static bool map_from(const struct cairn_home_memory *memory, uint64_t segment, size_t from)
{
    const int fd = memory->segments[segment].fd;
    const size_t bytes = (size_t)bytes_of(memory, segment);
    if (ftruncate(fd, (off_t)bytes) != 0) return false;
    if (from >= bytes) return true;
    void *at = mmap(address_of(memory, segment) + from, bytes - from, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, (off_t)from);
    if (at == MAP_FAILED) return false;
    madvise(at, bytes - from, MADV_HUGEPAGE); // a third faster, once backed
    return true;
}

static bool make(const struct cairn_home_memory *memory, const char *label, uint64_t segment)
{
    const int fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return false;
    memory->segments[segment].fd = fd;
    return map_from(memory, segment, 0);
}

void cairn_host_memory_close(struct cairn_home_memory *memory)
{
    munmap(memory->base, (size_t)room_of(memory));
    for (uint64_t i = 0; memory->segments != NULL && i < cairn_home_memory_segments(memory); i++)
        if (memory->segments[i].fd >= 0) close(memory->segments[i].fd);
    free(memory->segments);
}

static cairn_status fails(const struct cairn_home_memory *memory, const char *label,
                          struct cairn_sentence *why)
{
    const int error = errno;
    return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "cannot make %llu bytes of memory for %s: %s%s",
                      (unsigned long long)memory->bytes, label, strerror(error),
                      error != EMFILE ? ""
                                      : " (one a 64 MiB: raise the limit of open files, as by "
                                        "LimitNOFILE of the unit)");
}

cairn_status cairn_host_memory_open(struct cairn_home *home, const char *label,
                                    struct cairn_home_memory *memory_out,
                                    struct cairn_sentence *why)
{
    const uint64_t count = cairn_home_memory_segments(memory_out);
    struct cairn_home_memory memory = *memory_out;
    (void)home;
    memory.base = cairn_pages_reserve((size_t)room_of(&memory));
    if (memory.base == MAP_FAILED) return fails(memory_out, label, why);
    memory.segments = malloc((size_t)count * sizeof *memory.segments);
    bool made = memory.segments != NULL;
    for (uint64_t i = 0; made && i < count; i++) memory.segments[i].fd = -1;
    for (uint64_t i = 0; made && i < count; i++) made = make(&memory, label, i);
    if (made) {
        *memory_out = memory;
        return CAIRN_OK;
    }
    const cairn_status status = fails(memory_out, label, why);
    cairn_host_memory_close(&memory);
    return status;
}

/* Processes that have mapped the segment keep it. */
void cairn_host_memory_give(struct cairn_home_memory *memory, uint64_t segment)
{
    if (memory->segments[segment].fd < 0) return;
    void *none = mmap(address_of(memory, segment), (size_t)bytes_of(memory, segment), PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (none == MAP_FAILED) return; // it has them still, until it is closed
    close(memory->segments[segment].fd);
    memory->segments[segment].fd = -1;
}

cairn_status cairn_host_memory_resize(struct cairn_home_memory *memory, const char *label,
                                      uint64_t bytes, struct cairn_sentence *why)
{
    struct cairn_home_memory now = *memory;
    now.bytes = bytes;
    const uint64_t was = cairn_home_memory_segments(memory), is = cairn_home_memory_segments(&now);
    const uint64_t first = (bytes < memory->bytes ? bytes : memory->bytes) / CAIRN_SEGMENT_BYTES;
    struct cairn_home_segment *more = realloc(now.segments,
                                              (size_t)(is > was ? is : was) * sizeof *more);
    if (more == NULL) return fails(&now, label, why);
    now.segments = memory->segments = more;
    for (uint64_t i = was; i < is; i++) more[i].fd = -1;
    for (uint64_t i = is; i < was; i++) cairn_host_memory_give(memory, i);
    bool made = true;
    for (uint64_t i = first; made && i < is; i++)
        made = more[i].fd < 0
                   ? make(&now, label, i)
                   : memory->is_exportable || map_from(&now, i, pages_of(bytes_of(memory, i)));
    if (made) {
        *memory = now;
        return CAIRN_OK;
    }
    const cairn_status status = fails(&now, label, why);
    for (uint64_t i = was; i < is; i++) cairn_host_memory_give(&now, i);
    for (uint64_t i = first; i < was; i++)
        if (more[i].fd < 0) (void)make(memory, label, i);
    return status;
}

cairn_status cairn_host_memory_export(const struct cairn_home_memory *memory, uint64_t segment,
                                      int *fd_out, uint64_t *bytes_out, struct cairn_sentence *why)
{
    const int given = fcntl(memory->segments[segment].fd, F_DUPFD_CLOEXEC, 0);
    if (given < 0)
        return cairn_fail(why, CAIRN_ERR_IO, "cannot give memory to be mapped by others: %s",
                          strerror(errno));
    *fd_out = given;
    *bytes_out = bytes_of(memory, segment);
    return CAIRN_OK;
}
