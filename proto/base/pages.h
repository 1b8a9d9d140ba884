/* Shared memory in large pages: half the time of a pass over it. memfds get none of their own accord unless
 * the machine's administrator says so (shmem_enabled), but whoever maps one may ask for them
 * (MADV_COLLAPSE, Linux 6.1 and later); other processes that map it then have them, too.
 *
 * All of it is a matter of speed: where the kernel will not, memory is as it was. Any thread. */
#ifndef CAIRN_BASE_PAGES_H
#define CAIRN_BASE_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* State and published copies lie in segments of at most so many bytes, so that a part can be given back. */
#define CAIRN_SEGMENT_BYTES ((uint64_t)64 << 20)

/* How many segments so many bytes are. */
static inline uint64_t cairn_segments(uint64_t bytes)
{
    return bytes / CAIRN_SEGMENT_BYTES + (bytes % CAIRN_SEGMENT_BYTES > 0);
}

/* How many of `bytes` lie in segment number `segment`, which must exist: the last segment is
 * shorter. */
static inline uint64_t cairn_segment_bytes(uint64_t bytes, uint64_t segment)
{
    const uint64_t left = bytes - segment * CAIRN_SEGMENT_BYTES;
    return left < CAIRN_SEGMENT_BYTES ? left : CAIRN_SEGMENT_BYTES;
}

#define CAIRN_PAGES_LARGE_BYTES ((size_t)2 << 20)

/* Addresses for so many bytes, at which nothing is mapped yet; at a multiple of a large page if they are as
 * many as one. MAP_FAILED with errno; given back by munmap. */
void *cairn_pages_reserve(size_t bytes);
/* mmap of the file's first `bytes` (fd -1: of MAP_ANONYMOUS), at a multiple of a large page if it is as
 * long as one: else its large pages would be mapped by small ones. MAP_FAILED with errno; given back by
 * munmap. */
void *cairn_pages_map(size_t bytes, int protection, int flags, int fd);

/* Shared memory that is mapped at `from` is mapped once more, in place of what is at `to`, without its file.
 * False, with errno. */
bool cairn_pages_double(void *to, const void *from, size_t bytes);

/* Backs the large pages that lie wholly in [base, base + bytes) of shared memory, mapped to be written
 * to. They are of the node of the thread that calls; best before anything is written there, as what is
 * there is copied. Memory that others write to meanwhile stays right. False, with errno: there were no
 * more, or the kernel has none; EAGAIN: not this one, not now. */
bool cairn_pages_back(void *base, size_t bytes);

/* Makes every page of the bytes, which nobody else uses meanwhile, as writing to each would; what is there
 * stays. False: there is no memory for all of them. */
bool cairn_pages_touch(void *base, size_t bytes);

#endif
