#include "proto/base/machine.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ==== threads ==== */

void signals_block(sigset_t *before_out)
{
    static const int own[] = { SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT };
    sigset_t all;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, before_out);
}

void signals_return(const sigset_t *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

int thread_start(pthread_t *thread_out, void *(*run)(void *context), void *context)
{
    sigset_t before;
    signals_block(&before);
    const int error = pthread_create(thread_out, NULL, run, context);
    signals_return(&before);
    return error;
}

/* ==== pages ==== */

#define LARGE CAIRN_PAGES_LARGE_BYTES
#define SMALL ((size_t)4096)

/* The values in Linux, for headers that are too old to have them. */
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

void *pages_reserve(size_t bytes)
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

void *pages_map(size_t bytes, int protection, int flags, int fd)
{
    if (bytes < LARGE) return mmap(NULL, bytes, protection, flags, fd, 0);
    void *base = pages_reserve(bytes);
    if (base == MAP_FAILED) return MAP_FAILED;
    if (mmap(base, bytes, protection, flags | MAP_FIXED, fd, 0) != MAP_FAILED) return base;
    // the file has even larger pages, and only the kernel knows where these may begin
    munmap(base, bytes);
    return mmap(NULL, bytes, protection, flags, fd, 0);
}

/* Makes the system call without the function mremap, because UCX (1.13) replaces mremap with a function of
 * its own, which ignores `to`. */
bool pages_double(void *to, const void *from, size_t bytes)
{
    const int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    return syscall(SYS_mremap, from, (size_t)0, bytes, flags, to) != -1;
}

bool pages_back(void *base, size_t bytes)
{
    const uintptr_t first = large_up((uintptr_t)base),
                    end = ((uintptr_t)base + bytes) / LARGE * LARGE;
    if (first >= end) return true;
    // The kernel does not collapse a part of a file that has no page yet, so each part gets one page.
    for (uintptr_t at = first; at < end; at += LARGE)
        if (madvise((void *)at, SMALL, MADV_POPULATE_WRITE) != 0) return false;
    // One call for all pages, because each call waits for every core of the machine. The call ends early
    // when no large page is free.
    return madvise((void *)first, end - first, MADV_COLLAPSE) == 0;
}

/* Used before Linux 5.14. If there is no memory, the write raises SIGBUS, as any write would. */
static void touch_each(volatile uint8_t *base, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += SMALL) base[at] = base[at];
    base[bytes - 1] = base[bytes - 1];
}

bool pages_touch(void *base, size_t bytes)
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

/* ==== numa ==== */

#define NODES_MAX 1024u
#define WORD_BITS (8 * sizeof(unsigned long))

/* A set of nodes in the kernel's format, with one bit for each node. */
struct nodes {
    unsigned long words[NODES_MAX / WORD_BITS];
};

const char *numa_sysfs = "/sys";

/* ---- the kernel's information ---- */

/* Reads the first line of a file; false: there is none. */
static bool read_line(const char *path, char *line, int bytes)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    const bool is_read = fgets(line, bytes, file) != NULL;
    fclose(file);
    return is_read;
}

int numa_of_pci(const char *pci)
{
    char path[PATH_MAX], line[32], *end;
    const int length = snprintf(path, sizeof path, "%s/bus/pci/devices/", numa_sysfs);
    const int whole = snprintf(path + length, sizeof path - (size_t)length, "%s/numa_node", pci);
    if (strchr(pci, '/') != NULL || whole >= (int)sizeof path - length) return CAIRN_NUMA_NONE;
    for (char *c = path + length; *c != '\0'; c++) *c = (char)tolower((unsigned char)*c);
    if (!read_line(path, line, sizeof line)) return CAIRN_NUMA_NONE;
    errno = 0;
    const long node = strtol(line, &end, 10);
    const bool is_number = end != line && (*end == '\n' || *end == '\0') && errno == 0;
    return is_number && node >= 0 && node < (long)NODES_MAX ? (int)node : CAIRN_NUMA_NONE;
}

/* Sets *out to the CPUs of a list such as "0-3,8,12-15", up to the first character that cannot be part of a
 * list. */
static void set_listed(const char *list, cpu_set_t *out)
{
    CPU_ZERO(out);
    while (isdigit((unsigned char)*list)) {
        char *end;
        const unsigned long first = strtoul(list, &end, 10);
        const unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        for (unsigned long i = first; i <= last && i < CPU_SETSIZE; i++) CPU_SET(i, out);
        list = *end == ',' ? end + 1 : end;
    }
}

static bool processors_of(int node, cpu_set_t *out)
{
    char path[PATH_MAX], list[4096];
    const int length = snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist",
                                numa_sysfs, node);
    if (length >= (int)sizeof path || !read_line(path, list, sizeof list)) return false;
    set_listed(list, out);
    return true;
}

/* ---- threads and memory ---- */

static struct nodes only(int node)
{
    struct nodes nodes = { { 0 } };
    nodes.words[(size_t)node / WORD_BITS] = 1ul << ((size_t)node % WORD_BITS);
    return nodes;
}

/* True if nobody has set a policy for this thread's memory. */
static bool is_by_default(void)
{
    int mode = MPOL_DEFAULT;
    struct nodes nodes;
    return syscall(SYS_get_mempolicy, &mode, nodes.words, (unsigned long)NODES_MAX, NULL, 0ul) ==
               0 &&
           mode == MPOL_DEFAULT;
}

bool numa_go(int node, struct numa_before *before_out)
{
    cpu_set_t there;
    memset(before_out, 0, sizeof *before_out);
    if (node == CAIRN_NUMA_NONE) return true;
    if (!processors_of(node, &there)) return false;
    if (sched_getaffinity(0, sizeof before_out->processors, &before_out->processors) != 0)
        return false;
    CPU_AND(&there, &there, &before_out->processors);
    if (CPU_COUNT(&there) == 0) {
        errno = ENOENT;
        return false;
    }
    if (sched_setaffinity(0, sizeof there, &there) != 0) return false;
    before_out->is_moved = true;
    const struct nodes nodes = only(node);
    before_out->is_preferring = is_by_default() &&
                                syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes.words,
                                        (unsigned long)NODES_MAX) == 0;
    return true;
}

void numa_return(const struct numa_before *before)
{
    if (before->is_preferring) (void)syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0ul);
    if (before->is_moved)
        (void)sched_setaffinity(0, sizeof before->processors, &before->processors);
}

void numa_move(void *memory, size_t bytes, int node)
{
    if (node == CAIRN_NUMA_NONE || !is_by_default()) return;
    const struct nodes nodes = only(node);
    (void)syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, nodes.words, (unsigned long)NODES_MAX,
                  (unsigned)MPOL_MF_MOVE);
}

/* ==== at hand ==== */

enum { DESCRIPTORS_MAX = 256, THREADS_MAX = 64 };

cairn_status descriptors_at_hand(int fd, int count, const char *whose, struct sentence *why)
{
    int taken[DESCRIPTORS_MAX], have = 0;
    assert(count <= DESCRIPTORS_MAX);
    while (have < count && (taken[have] = fcntl(fd, F_DUPFD_CLOEXEC, fd)) >= 0) have++;
    const int error = errno;
    for (int i = 0; i < have; i++) close(taken[i]);
    if (have == count || (error != EMFILE && error != ENFILE)) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NO_MEMORY,
                     "this process may open only %d more descriptors, and %s needs up to %d: close "
                     "some, or raise the limit (ulimit -n, LimitNOFILE of a unit)",
                     have, whose, count);
}

static void *stand_by(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

cairn_status threads_at_hand(int count, const char *whose, struct sentence *why)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t threads[THREADS_MAX];
    int have = 0, error = 0;
    assert(count <= THREADS_MAX);
    pthread_mutex_lock(&gate);
    while (have < count && (error = pthread_create(&threads[have], NULL, stand_by, &gate)) == 0)
        have++;
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < have; i++) pthread_join(threads[i], NULL);
    if (error == 0) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NO_MEMORY,
                     "this process cannot start the %d threads of %s (%s): raise its limit of "
                     "tasks (ulimit -u, TasksMax of a unit) or of memory",
                     count, whose, strerror(error));
}
