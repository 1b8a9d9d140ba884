#ifndef CAIRN_BASE_MACHINE_H
#define CAIRN_BASE_MACHINE_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

#include "proto/base/text.h"

/* ==== clock ==== */

/* The time that no administrator and no leap second sets, since an arbitrary beginning. Any thread. */

static inline uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static inline uint64_t monotonic_us(void)
{
    return monotonic_ns() / 1000;
}

static inline uint64_t monotonic_ms(void)
{
    return monotonic_ns() / 1000000;
}

/* ==== pages ==== */

/* Shared memory in large pages: a pass over it takes half the time. memfds get no large pages by default
 * unless the machine's administrator says so (shmem_enabled), but a process that maps one may ask for them
 * (MADV_COLLAPSE, Linux 6.1 and later); other processes that map it then have them, too.
 *
 * All of it only affects speed: where the kernel refuses, memory stays as it was. Any thread. */

/* State and published copies are in segments of at most this many bytes, so that a part can be given
 * back. */
#define CAIRN_SEGMENT_BYTES ((uint64_t)64 << 20)

/* Returns how many segments `bytes` take. */
static inline uint64_t memory_segments(uint64_t bytes)
{
    return bytes / CAIRN_SEGMENT_BYTES + (bytes % CAIRN_SEGMENT_BYTES > 0);
}

/* Returns how many of `bytes` are in segment number `segment`, which must exist: the last segment is
 * shorter. */
static inline uint64_t segment_bytes(uint64_t bytes, uint64_t segment)
{
    const uint64_t left = bytes - segment * CAIRN_SEGMENT_BYTES;
    return left < CAIRN_SEGMENT_BYTES ? left : CAIRN_SEGMENT_BYTES;
}

#define CAIRN_PAGES_LARGE_BYTES ((size_t)2 << 20)

/* Reserves addresses for `bytes` without mapping memory; at a multiple of a large page if `bytes` is at
 * least one large page. MAP_FAILED with errno; given back by munmap. */
void *pages_reserve(size_t bytes);
/* Maps the file's first `bytes` with mmap (fd -1: MAP_ANONYMOUS), at a multiple of a large page if they are
 * at least one large page: otherwise the file's large pages would be mapped by small ones. MAP_FAILED with
 * errno; given back by munmap. */
void *pages_map(size_t bytes, int protection, int flags, int fd);

/* Maps the shared memory at `from` a second time, in place of the mapping at `to`, without its file.
 * False, with errno. */
bool pages_double(void *to, const void *from, size_t bytes);

/* Backs the large pages that lie completely in [base, base + bytes) of shared memory, which is mapped for
 * writing. The pages are on the node of the calling thread; best called before anything is written, as
 * existing content is copied. Memory that others write to meanwhile stays correct. False, with errno: no
 * large page is free, or the kernel supports none; EAGAIN: not for this page, not now. */
bool pages_back(void *base, size_t bytes);

/* Allocates every page of the bytes, which nobody else uses meanwhile, as writing to each would; the
 * content stays. False: there is no memory for all of them. */
bool pages_touch(void *base, size_t bytes);

/* ==== numa ==== */

/* Nodes of a host's memory: which node a device is next to, and placing threads and memory on a node.
 *
 * All of it only affects speed: where the kernel does not know, or refuses, everything stays as it was. An
 * operator's choices stay, too: a thread keeps to the processors that it may run on, and a policy for
 * memory that was set before (numactl) is left alone. Any thread. */

#define CAIRN_NUMA_NONE (-1) /* no node: functions that are called with it do nothing */

/* Where the kernel describes devices and nodes: "/sys". A test sets its own path, before any other call. */
extern const char *numa_sysfs;

/* Returns the node next to a PCI device, which is named as in CUDA: "0000:3B:00.0". CAIRN_NUMA_NONE: the
 * kernel knows of none. */
int numa_of_pci(const char *pci);

struct numa_before {
    cpu_set_t processors;
    bool is_moved, is_preferring;
};

/* Until numa_return the calling thread runs on the node's processors, and memory that it touches first
 * is placed there while the node has some. Threads that it starts meanwhile keep this. False, with errno,
 * and before_out is set all the same: the thread runs where it ran (ENOENT: it may run on none of the
 * node's processors). */
bool numa_go(int node, struct numa_before *before_out);
void numa_return(const struct numa_before *before);

/* Moves memory that begins at a page boundary to the node, as far as only this process uses it; pages of it
 * that are touched later are allocated there. */
void numa_move(void *memory, size_t bytes, int node);

/* ==== at hand ==== */

/* Checks whether the process has the resources that libraries take without asking. libuv and UCX end the
 * process if they find no descriptor, or no thread, in the middle of their initialization (libuv 1.44,
 * uv__signal_global_init; UCX 1.13, ucs/async/thread.c): so this is checked before they begin.
 * Resources that were available may be gone a moment later. */

/* Checks for `count` descriptors, with copies of `fd`, at most 256. CAIRN_ERR_NO_MEMORY: fewer; `why` says
 * how many, and what to do. `whose`: "a session". */
cairn_status descriptors_at_hand(int fd, int count, const char *whose,
                                 struct sentence *why) CAIRN_MUST_CHECK;
/* Checks for `count` threads, at most 64, which begin and end. */
cairn_status threads_at_hand(int count, const char *whose, struct sentence *why) CAIRN_MUST_CHECK;

/* ==== file mode ==== */

/* Permissions that do not depend on the umask of the user who runs us: a file created with a mode has
 * it. */

/* Sets the low 9 bits of the file or folder to `mode`; a set-group-id bit from the parent stays. 0, or -1
 * with errno. Touches nothing that has the mode already: systemd's RestrictSUIDSGID refuses a chmod of such
 * a folder. */
static inline int file_mode_set(int fd, mode_t mode)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return -1;
    if ((info.st_mode & 0777) == mode) return 0;
    return fchmod(fd, (info.st_mode & 07000) | mode);
}

#endif
