#ifndef CAIRN_BASE_MACHINE_H
#define CAIRN_BASE_MACHINE_H

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

#include "proto/base/text.h"

/* ==== clock ==== */

/* The time since an arbitrary beginning, by a clock that neither an administrator nor a leap second sets.
 * Any thread. */

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

/* ==== locks ==== */

/* Takes the lock until the end of the block. */
#define HOLD_LOCK(lock) \
    pthread_mutex_t *held_ __attribute__((cleanup(lock_leave), unused)) = lock_enter(lock)
/* The value of an expression that is computed under the lock. */
#define WITH_LOCK(lock, expression) \
    ({                              \
        HOLD_LOCK(lock);            \
        (expression);               \
    })

static inline pthread_mutex_t *lock_enter(pthread_mutex_t *lock)
{
    pthread_mutex_lock(lock);
    return lock;
}

static inline void lock_leave(pthread_mutex_t **lock)
{
    pthread_mutex_unlock(*lock);
}

/* ==== threads ==== */

/* Signals are the business of the process's own threads. A thread that works for them blocks all signals but
 * those that it causes itself, such as SIGBUS and SIGSEGV. */

/* Starts a thread that blocks signals so, and has the same priorities as the caller. Returns 0, or an error
 * number. */
int thread_start(pthread_t *thread_out, void *(*run)(void *context), void *context);

/* Makes the calling thread block signals so until signals_return: threads that a library starts meanwhile
 * inherit that. */
void signals_block(sigset_t *before_out);
void signals_return(const sigset_t *before);

/* ==== pages ==== */

/* Shared memory in large pages, over which a pass takes half as long. A memfd has no large pages unless the
 * machine's administrator allows them (shmem_enabled). However, a process that maps a memfd may ask for
 * large pages (MADV_COLLAPSE, Linux 6.1 and later); then other processes that map the memfd have them, too.
 *
 * Large pages affect only speed: where the kernel refuses them, the memory stays as it was. Any thread. */

/* State and published copies lie in segments of at most this many bytes, so that a part of the memory can
 * be given back. */
#define CAIRN_SEGMENT_BYTES ((uint64_t)64 << 20)

/* Returns the number of segments in which `bytes` lie. */
static inline uint64_t memory_segments(uint64_t bytes)
{
    return bytes / CAIRN_SEGMENT_BYTES + (bytes % CAIRN_SEGMENT_BYTES > 0);
}

/* Returns how many of `bytes` lie in segment number `segment`, which must exist. The last segment may be
 * shorter than the others. */
static inline uint64_t segment_bytes(uint64_t bytes, uint64_t segment)
{
    const uint64_t left = bytes - segment * CAIRN_SEGMENT_BYTES;
    return left < CAIRN_SEGMENT_BYTES ? left : CAIRN_SEGMENT_BYTES;
}

#define CAIRN_PAGES_LARGE_BYTES ((size_t)2 << 20)

/* Reserves addresses for `bytes` without mapping memory. If `bytes` is at least a large page, the addresses
 * begin at a multiple of a large page. Returns MAP_FAILED, with errno, on failure; munmap gives the
 * addresses back. */
void *pages_reserve(size_t bytes);
/* Maps the file's first `bytes` with mmap (with fd -1: MAP_ANONYMOUS). If `bytes` is at least a large page,
 * the mapping begins at a multiple of a large page, because otherwise small pages would map the file's
 * large pages. Returns MAP_FAILED, with errno, on failure; munmap removes the mapping. */
void *pages_map(size_t bytes, int protection, int flags, int fd);

/* Maps the shared memory at `from` a second time, at `to`, where the mapping replaces another one. This
 * needs no descriptor of the file. False, with errno, on failure. */
bool pages_double(void *to, const void *from, size_t bytes);

/* Gives large pages to the shared memory at [base, base + bytes), which is mapped for writing, wherever a
 * whole large page fits. The pages lie on the node of the calling thread. Call before anything is written,
 * if possible, because existing content is copied. Others may write to the memory meanwhile. False, with
 * errno: no large page is free, or the kernel supports none; EAGAIN: the kernel refused one page for
 * now. */
bool pages_back(void *base, size_t bytes);

/* Allocates every page of the bytes, as a write to each page would do; the content stays. Nobody else may
 * use the bytes meanwhile. False: there is not enough memory for all pages. */
bool pages_touch(void *base, size_t bytes);

/* ==== numa ==== */

/* The nodes of a host's memory. These functions tell which node is next to a device, and place threads and
 * memory on a node.
 *
 * Nodes affect only speed: where the kernel does not know a node, or refuses a request, everything stays as
 * it was. An operator's choices are respected: a thread runs only on processors that are allowed to it, and
 * a policy for memory that was set before (numactl) stays. Any thread. */

#define CAIRN_NUMA_NONE (-1) /* no node: a function that gets this number does nothing */

/* The folder in which the kernel describes devices and nodes: "/sys". A test sets another folder, before
 * any other call. */
extern const char *numa_sysfs;

/* Returns the node that is next to a PCI device, whose name is as in CUDA: "0000:3B:00.0". CAIRN_NUMA_NONE:
 * the kernel knows no such node. */
int numa_of_pci(const char *pci);

struct numa_before {
    cpu_set_t processors;
    bool is_moved, is_preferring;
};

/* Makes the calling thread run on the node's processors until numa_return. As long as the node has free
 * memory, memory that the thread touches first is placed on the node. Threads that it starts meanwhile
 * inherit both, and keep them. False, with errno: the thread goes on where it ran before, and *before_out
 * is set all the same. ENOENT: the thread may not run on any of the node's processors. */
bool numa_go(int node, struct numa_before *before_out);
void numa_return(const struct numa_before *before);

/* Moves the pages of the memory that only this process uses to the node. Pages that are touched later are
 * allocated on the node. The memory begins at a page boundary. */
void numa_move(void *memory, size_t bytes, int node);

/* ==== at hand ==== */

/* Checks whether the process has the resources that libraries take without asking. libuv and UCX end the
 * process if there is no descriptor, or no thread, in the middle of their initialization (libuv 1.44,
 * uv__signal_global_init; UCX 1.13, ucs/async/thread.c). So the resources are checked before the libraries
 * begin. They may be gone a moment later all the same. */

/* Checks whether the process may open `count` descriptors, at most 256, by copying `fd` so often.
 * CAIRN_ERR_NO_MEMORY: it may open fewer; `why` says how many, and what to do. `whose` names what needs
 * them, as "a session". */
cairn_status descriptors_at_hand(int fd, int count, const char *whose,
                                 struct sentence *why) CAIRN_MUST_CHECK;
/* Checks whether the process can start `count` threads, at most 64, by starting and ending them. */
cairn_status threads_at_hand(int count, const char *whose, struct sentence *why) CAIRN_MUST_CHECK;

/* ==== file mode ==== */

/* A file or folder that is created with a mode has this mode, whatever the umask of the process is. */

/* Sets the low 9 bits of the mode of the file or folder to `mode`; a set-group-id bit, which a folder gets
 * from its parent, stays. Returns 0, or -1 with errno. If the file or folder has the mode already, nothing
 * is done, because systemd's RestrictSUIDSGID refuses a chmod of a folder with a set-group-id bit. */
static inline int file_mode_set(int fd, mode_t mode)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return -1;
    if ((info.st_mode & 0777) == mode) return 0;
    return fchmod(fd, (info.st_mode & 07000) | mode);
}

#endif
