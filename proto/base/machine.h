#ifndef CAIRN_BASE_MACHINE_H
#define CAIRN_BASE_MACHINE_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "proto/base/text.h"

/* ==== pages ==== */

/* Shared memory in large pages: half the time of a pass over it. memfds get none of their own accord unless
 * the machine's administrator says so (shmem_enabled), but whoever maps one may ask for them
 * (MADV_COLLAPSE, Linux 6.1 and later); other processes that map it then have them, too.
 *
 * All of it is a matter of speed: where the kernel will not, memory is as it was. Any thread. */

/* State and published copies lie in segments of at most so many bytes, so that a part can be given back. */
#define CAIRN_SEGMENT_BYTES ((uint64_t)64 << 20)

/* How many segments so many bytes are. */
static inline uint64_t memory_segments(uint64_t bytes)
{
    return bytes / CAIRN_SEGMENT_BYTES + (bytes % CAIRN_SEGMENT_BYTES > 0);
}

/* How many of `bytes` lie in segment number `segment`, which must exist: the last segment is
 * shorter. */
static inline uint64_t segment_bytes(uint64_t bytes, uint64_t segment)
{
    const uint64_t left = bytes - segment * CAIRN_SEGMENT_BYTES;
    return left < CAIRN_SEGMENT_BYTES ? left : CAIRN_SEGMENT_BYTES;
}

#define CAIRN_PAGES_LARGE_BYTES ((size_t)2 << 20)

/* Addresses for so many bytes, at which nothing is mapped yet; at a multiple of a large page if they are as
 * many as one. MAP_FAILED with errno; given back by munmap. */
void *pages_reserve(size_t bytes);
/* mmap of the file's first `bytes` (fd -1: of MAP_ANONYMOUS), at a multiple of a large page if it is as
 * long as one: else its large pages would be mapped by small ones. MAP_FAILED with errno; given back by
 * munmap. */
void *pages_map(size_t bytes, int protection, int flags, int fd);

/* Shared memory that is mapped at `from` is mapped once more, in place of what is at `to`, without its file.
 * False, with errno. */
bool pages_double(void *to, const void *from, size_t bytes);

/* Backs the large pages that lie wholly in [base, base + bytes) of shared memory, mapped to be written
 * to. They are of the node of the thread that calls; best before anything is written there, as what is
 * there is copied. Memory that others write to meanwhile stays right. False, with errno: there were no
 * more, or the kernel has none; EAGAIN: not this one, not now. */
bool pages_back(void *base, size_t bytes);

/* Makes every page of the bytes, which nobody else uses meanwhile, as writing to each would; what is there
 * stays. False: there is no memory for all of them. */
bool pages_touch(void *base, size_t bytes);

/* ==== numa ==== */

/* Nodes of a host's memory: which one a device is next to, and threads and memory that are to be there.
 *
 * All of it is a matter of speed: where the kernel does not say, or will not, everything stays as it was. So
 * does what an operator chose: a thread keeps to the processors that it may run on, and a policy for memory
 * that was set before (numactl) is left alone. Any thread. */

#define CAIRN_NUMA_NONE (-1) /* no node: what is called with it does nothing */

/* Where the kernel tells of devices and nodes: "/sys". A test has its own, before anything is called. */
extern const char *numa_sysfs;

/* The node that a PCI device is next to, named as CUDA does: "0000:3B:00.0". CAIRN_NUMA_NONE: the kernel
 * knows of none. */
int numa_of_pci(const char *pci);

struct numa_before {
    cpu_set_t processors;
    bool is_moved, is_preferring;
};

/* Until numa_return the calling thread runs on the node's processors, and memory that it touches first
 * lies there while there is some. Threads that it starts meanwhile stay so. False, with errno, and before_out
 * is set all the same: it runs where it ran (ENOENT: it may run on none of the node's processors). */
bool numa_go(int node, struct numa_before *before_out);
void numa_return(const struct numa_before *before);

/* Memory that begins at a page moves to the node, as far as it is this process's alone, and what of it is
 * touched later comes from there. */
void numa_move(void *memory, size_t bytes, int node);

/* ==== at hand ==== */

/* Checks whether the process has what libraries take without asking. libuv and UCX end the process
 * if they find no descriptor, or no thread, in the middle of their initialization (libuv 1.44,
 * uv__signal_global_init; UCX 1.13, ucs/async/thread.c): so this is checked before they begin.
 * Resources that were at hand may be gone a moment later. */

/* So many descriptors, tried with copies of `fd`, at most 256. CAIRN_ERR_NO_MEMORY: fewer; `why` says how
 * many, and what is to be done. `whose`: "a session". */
cairn_status descriptors_at_hand(int fd, int count, const char *whose,
                                 struct sentence *why) CAIRN_MUST_CHECK;
/* So many threads, at most 64, which begin and end. */
cairn_status threads_at_hand(int count, const char *whose, struct sentence *why) CAIRN_MUST_CHECK;

/* ==== file mode ==== */

/* Permissions that do not hang on the umask of who runs us: what is made with a mode has that mode. */

/* The low 9 bits of the file or folder become `mode`; a set-group-id bit that a parent gave stays. 0, or -1
 * with errno. Touches nothing that has them: systemd's RestrictSUIDSGID refuses a chmod of such a folder. */
static inline int file_mode_set(int fd, mode_t mode)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return -1;
    if ((info.st_mode & 0777) == mode) return 0;
    return fchmod(fd, (info.st_mode & 07000) | mode);
}

#endif
