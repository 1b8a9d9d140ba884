#include "client/ctl/bench/snapshot/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/crew.h"

#define LOOK_MS 5

/* A pass over the file: threads take blocks until there are none. */
struct pass {
    int from, to; /* -1: nothing is read, or written */
    uint64_t bytes;
    _Atomic uint64_t next; /* the first byte that nobody has taken */
    atomic_int left;       /* threads at work */
    atomic_int error;      /* errno of the first that failed; 0: none */
    atomic_bool gives_up;
};

static bool move_block(int fd, bool writes, char *block, uint64_t at)
{
    for (size_t done = 0; done < CAIRN_BENCH_DISK_BLOCK_BYTES;) {
        const off_t from = (off_t)(at + done);
        const size_t left = CAIRN_BENCH_DISK_BLOCK_BYTES - done;
        const ssize_t moved = writes ? pwrite(fd, block + done, left, from)
                                     : pread(fd, block + done, left, from);
        if (moved < 0 && errno == EINTR) continue;
        if (moved == 0) errno = EIO; // the file is shorter than it was made
        if (moved <= 0) return false;
        done += (size_t)moved;
    }
    return true;
}

static void *run(void *context)
{
    struct pass *pass = context;
    char *block = aligned_alloc(4096, CAIRN_BENCH_DISK_BLOCK_BYTES);
    int none = 0;
    if (block == NULL) atomic_compare_exchange_strong(&pass->error, &none, ENOMEM);
    // No zeros: a disk might make less of them.
    for (size_t i = 0; block != NULL && i < CAIRN_BENCH_DISK_BLOCK_BYTES; i++)
        block[i] = (char)(i * 2654435761u >> 13);
    while (atomic_load(&pass->error) == 0 && !atomic_load(&pass->gives_up)) {
        const uint64_t at = atomic_fetch_add(&pass->next, CAIRN_BENCH_DISK_BLOCK_BYTES);
        if (at >= pass->bytes) break;
        if ((pass->from >= 0 && !move_block(pass->from, false, block, at)) ||
            (pass->to >= 0 && !move_block(pass->to, true, block, at)))
            atomic_compare_exchange_strong(&pass->error, &none, errno);
    }
    free(block);
    atomic_fetch_sub(&pass->left, 1);
    return NULL;
}

/* All blocks, and fsync of what was written. Seconds; 0, and said. */
static double make_pass(struct cairn_bench_disk *disk, int from, int to, uint64_t bytes)
{
    struct pass pass = { .from = from, .to = to, .bytes = bytes };
    pthread_t threads[CAIRN_BENCH_DISK_THREADS];
    int begun = 0;
    atomic_store(&pass.left, CAIRN_BENCH_DISK_THREADS);
    const double begin = cairn_bench_now();
    while (begun < CAIRN_BENCH_DISK_THREADS &&
           pthread_create(&threads[begun], NULL, run, &pass) == 0)
        begun++;
    atomic_fetch_sub(&pass.left, CAIRN_BENCH_DISK_THREADS - begun);
    while (atomic_load(&pass.left) > 0) {
        if (cairn_bench_is_interrupted(disk->local)) atomic_store(&pass.gives_up, true);
        poll(NULL, 0, LOOK_MS);
    }
    for (int i = 0; i < begun; i++) pthread_join(threads[i], NULL);
    int error = begun == 0 ? EAGAIN : atomic_load(&pass.error);
    if (error == 0 && to >= 0 && fsync(to) != 0) error = errno;
    const double seconds = cairn_bench_now() - begin;
    if (error == 0 && !atomic_load(&pass.gives_up)) return seconds;
    if (error != 0)
        (void)cairn_ctl_fail(CAIRN_ERR_IO, "a file of %s in %s cannot be %s: %s",
                             cairn_ctl_bytes(bytes), disk->local->folder,
                             to >= 0 ? "written" : "read", strerror(error));
    return 0;
}

/* A file without a name. -1, and said. */
static int open_file(struct cairn_bench_disk *disk)
{
    int fd = -1;
    for (int flags = disk->is_buffered ? 0 : O_DIRECT; fd < 0; flags = 0) {
        char path[PATH_MAX + 32];
        snprintf(path, sizeof path, "%s/raw.XXXXXX", disk->local->folder);
        fd = mkostemp(path, flags | O_CLOEXEC);
        if (fd >= 0) unlink(path);
        if (fd >= 0 || flags == 0) break;
        if (!disk->is_buffered)
            fprintf(stderr,
                    "note: %s takes no direct I/O (%s): the raw rate is through the page "
                    "cache\n",
                    disk->local->folder, strerror(errno));
        disk->is_buffered = true;
    }
    if (fd < 0)
        (void)cairn_ctl_fail(CAIRN_ERR_IO, "no file in %s can be made: %s", disk->local->folder,
                             strerror(errno));
    return fd;
}

static uint64_t whole_blocks(uint64_t bytes)
{
    const uint64_t block = CAIRN_BENCH_DISK_BLOCK_BYTES;
    return (bytes + block - 1) / block * block;
}

double cairn_bench_disk_write(struct cairn_bench_disk *disk, uint64_t bytes)
{
    const int fd = open_file(disk);
    if (fd < 0) return 0;
    bytes = whole_blocks(bytes);
    const double seconds = make_pass(disk, -1, fd, bytes);
    close(fd);
    return seconds > 0 ? (double)bytes * 1e-9 / seconds : 0;
}

/* The file that is read, of whole blocks. False, and said. */
static bool have_file(struct cairn_bench_disk *disk, uint64_t bytes)
{
    if (disk->bytes != bytes) cairn_bench_disk_close(disk);
    if (disk->fd == 0) {
        const int fd = open_file(disk);
        if (fd < 0) return false;
        disk->fd = fd;
        disk->bytes = bytes;
        if (!(make_pass(disk, -1, fd, bytes) > 0)) return false;
    }
    if (disk->is_buffered) posix_fadvise(disk->fd, 0, 0, POSIX_FADV_DONTNEED);
    return true;
}

double cairn_bench_disk_read(struct cairn_bench_disk *disk, uint64_t bytes)
{
    bytes = whole_blocks(bytes);
    if (!have_file(disk, bytes)) return 0;
    const double seconds = make_pass(disk, disk->fd, -1, bytes);
    return seconds > 0 ? (double)bytes * 1e-9 / seconds : 0;
}

double cairn_bench_disk_copy(struct cairn_bench_disk *disk, uint64_t bytes)
{
    bytes = whole_blocks(bytes);
    const int fd = have_file(disk, bytes) ? open_file(disk) : -1;
    if (fd < 0) return 0;
    const double seconds = make_pass(disk, disk->fd, fd, bytes);
    close(fd);
    return seconds > 0 ? (double)bytes * 1e-9 / seconds : 0;
}

void cairn_bench_disk_close(struct cairn_bench_disk *disk)
{
    if (disk->fd > 0) close(disk->fd);
    disk->fd = 0;
    disk->bytes = 0;
}
