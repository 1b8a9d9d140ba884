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

static uint64_t bytes_of(const struct cairn_home_memory *memory, uint64_t segment)
{
    const uint64_t left = memory->bytes - segment * CAIRN_SEGMENT_BYTES;
    return left < CAIRN_SEGMENT_BYTES ? left : CAIRN_SEGMENT_BYTES;
}

static uint8_t *address_of(const struct cairn_home_memory *memory, uint64_t segment)
{
    return (uint8_t *)memory->base + segment * CAIRN_SEGMENT_BYTES;
}

static bool make(const struct cairn_home_memory *memory, const char *label, uint64_t segment)
{
    const size_t bytes = (size_t)bytes_of(memory, segment);
    const int fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return false;
    memory->segments[segment].fd = fd;
    return ftruncate(fd, (off_t)bytes) == 0 &&
           mmap(address_of(memory, segment), bytes, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) != MAP_FAILED;
}

void cairn_host_memory_close(struct cairn_home_memory *memory)
{
    munmap(memory->base, (size_t)memory->bytes);
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
    memory.base = cairn_pages_reserve((size_t)memory.bytes);
    if (memory.base == MAP_FAILED) return fails(memory_out, label, why);
    memory.segments = malloc((size_t)count * sizeof *memory.segments);
    bool made = memory.segments != NULL;
    for (uint64_t i = 0; made && i < count; i++) memory.segments[i].fd = -1;
    for (uint64_t i = 0; made && i < count; i++) made = make(&memory, label, i);
    if (made) {
        madvise(memory.base, (size_t)memory.bytes, MADV_HUGEPAGE); // a third faster, once backed
        *memory_out = memory;
        return CAIRN_OK;
    }
    const cairn_status status = fails(memory_out, label, why);
    cairn_host_memory_close(&memory);
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

/* What others have mapped of it stays theirs. */
void cairn_host_memory_give(struct cairn_home_memory *memory, uint64_t segment)
{
    if (memory->segments[segment].fd < 0) return;
    void *none = mmap(address_of(memory, segment), (size_t)bytes_of(memory, segment), PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (none == MAP_FAILED) return; // it has them still, until it is closed
    close(memory->segments[segment].fd);
    memory->segments[segment].fd = -1;
}
