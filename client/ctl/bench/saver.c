/* Helpers of several benches: snapshots on a separate thread, the raw rate of a disk, and torch. */
#include "client/ctl/bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>

#include "proto/snapshot_io/snapshot_io.h"

/* ==== saver ==== */

#define SAVER_LOOK_MS 5

/* ---- a thread ---- */

static void connect_task(struct bench_task *task)
{
    task->ctl = *task->b->ctl;
    task->ctl.endpoint = task->b->local->endpoint;
    task->ctl.call.timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS;
}

static void *run_task(void *context)
{
    struct bench_task *task = context;
    task->is_ok = task->run(task);
    atomic_store(&task->is_over, true);
    return NULL;
}

bool bench_task_begin(struct bench_task *task)
{
    connect_task(task);
    task->is_ok = false;
    atomic_store(&task->is_over, false);
    if (pthread_create(&task->thread, NULL, run_task, task) == 0) return true;
    (void)ctl_fail(CAIRN_ERR_NO_MEMORY, "no thread");
    return false;
}

bool bench_task_end(struct bench_task *task)
{
    pthread_join(task->thread, NULL);
    return task->is_ok;
}

/* ---- requests ---- */

static cairn_status ask(struct bench_saver *s, uint16_t type, const ProtobufCMessage *message,
                        uint16_t reply_type, void (*take)(struct bench_saver *, const void *reply))
{
    ProtobufCMessage *reply;
    CAIRN_TRY(ctl_call(&s->task.ctl, type, message, reply_type, &reply));
    if (take != NULL) take(s, reply);
    message_free(reply);
    return CAIRN_OK;
}

static void take_status(struct bench_saver *s, const void *reply)
{
    const Cairn__SnapshotStatus *status = reply;
    snprintf(s->id, sizeof s->id, "%s", status->id);
    snprintf(s->path, sizeof s->path, "%s", status->path);
    s->bytes = status->bytes;
}

/* ---- saving ---- */

static bool run_saver(struct bench_task *task)
{
    struct bench_saver *s = (struct bench_saver *)task;
    Cairn__SnapshotCreate create = CAIRN__SNAPSHOT_CREATE__INIT;
    Cairn__SnapshotRestore restore = CAIRN__SNAPSHOT_RESTORE__INIT;
    create.job = restore.job = wire_text(s->task.b->model.job);
    create.wait = true;
    restore.id = s->id;
    s->begin = bench_now();
    const cairn_status status = s->restores ? ask(s, CAIRN_MSG_SNAPSHOT_RESTORE, &restore.base,
                                                  CAIRN_MSG_SNAPSHOT_STATUS, NULL)
                                            : ask(s, CAIRN_MSG_SNAPSHOT_CREATE, &create.base,
                                                  CAIRN_MSG_SNAPSHOT_STATUS, take_status);
    s->end = bench_now();
    return status == CAIRN_OK;
}

bool bench_save_begin(struct bench_saver *s)
{
    s->task.run = run_saver;
    return bench_task_begin(&s->task);
}

bool bench_save_end(struct bench_saver *s, bool gives_up)
{
    while (!gives_up && !atomic_load(&s->task.is_over)) {
        gives_up = bench_is_interrupted(s->task.b->local);
        poll(NULL, 0, SAVER_LOOK_MS);
    }
    if (gives_up) local_daemons_stop(s->task.b->local);
    return bench_task_end(&s->task) && !gives_up;
}

double bench_save(struct bench_saver *s)
{
    if (!bench_save_begin(s) || !bench_save_end(s, false)) return 0;
    return s->end - s->begin;
}

bool bench_save_remove(struct bench_saver *s)
{
    Cairn__SnapshotRemove remove = CAIRN__SNAPSHOT_REMOVE__INIT;
    if (s->id[0] == '\0') return true;
    connect_task(&s->task);
    remove.job = wire_text(s->task.b->model.job);
    remove.id = s->id;
    remove.force = true; // the snapshot is the only one
    if (ask(s, CAIRN_MSG_SNAPSHOT_REMOVE, &remove.base, CAIRN_MSG_SNAPSHOT_REMOVED, NULL) !=
        CAIRN_OK)
        return false;
    s->id[0] = '\0';
    return true;
}

bool bench_save_drop_job(struct bench_saver *s)
{
    Cairn__JobRemove remove = CAIRN__JOB_REMOVE__INIT;
    connect_task(&s->task);
    remove.name = wire_text(s->task.b->model.job);
    remove.force = true;
    return ask(s, CAIRN_MSG_JOB_REMOVE, &remove.base, CAIRN_MSG_JOB_REMOVED, NULL) == CAIRN_OK;
}

static int make_cold(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st;
    (void)walk;
    const int fd = type == FTW_F ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return 0;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return 0;
}

void bench_save_make_cold(const struct bench_saver *s)
{
    nftw(s->path, make_cold, 16, FTW_PHYS);
}

/* ==== disk ==== */

/* The raw rate of a disk: one file, written from beginning to end and synced, or read, or both, by direct
 * I/O of large blocks, with several blocks in flight. The files have no name, so they disappear when they are
 * closed. */

/* The file is moved in blocks, several at the same time. */
#define BLOCK_BYTES  ((size_t)8 << 20)
#define DISK_THREADS 4

/* A pass over the file: threads take blocks until none are left. */
struct pass {
    struct local *local;
    int from, to; /* from -1: nothing is read. to -1: nothing is written */
    uint64_t bytes;
    _Atomic uint64_t next; /* the first byte that no thread has taken */
    atomic_int error;      /* errno of the first thread that failed; 0: no thread failed */
    atomic_bool gives_up;
};

static bool move_block(int fd, bool writes, char *block, uint64_t at)
{
    for (size_t done = 0; done < BLOCK_BYTES;) {
        const off_t from = (off_t)(at + done);
        const size_t left = BLOCK_BYTES - done;
        const ssize_t moved = writes ? pwrite(fd, block + done, left, from)
                                     : pread(fd, block + done, left, from);
        if (moved < 0 && errno == EINTR) continue;
        if (moved == 0) errno = EIO; // the file is shorter than when it was created
        if (moved <= 0) return false;
        done += (size_t)moved;
    }
    return true;
}

static void move_blocks(void *own, uint32_t number)
{
    struct pass *pass = own;
    char *block = aligned_alloc(4096, BLOCK_BYTES);
    int none = 0;
    if (block == NULL) atomic_compare_exchange_strong(&pass->error, &none, ENOMEM);
    // The bytes are not zeros, because a disk might compress zeros.
    for (size_t i = 0; block != NULL && i < BLOCK_BYTES; i++)
        block[i] = (char)(i * 2654435761u >> 13);
    while (atomic_load(&pass->error) == 0 && !atomic_load(&pass->gives_up)) {
        const uint64_t at = atomic_fetch_add(&pass->next, BLOCK_BYTES);
        if (at >= pass->bytes) break;
        if ((pass->from >= 0 && !move_block(pass->from, false, block, at)) ||
            (pass->to >= 0 && !move_block(pass->to, true, block, at)))
            atomic_compare_exchange_strong(&pass->error, &none, errno);
        if (number == 0 && bench_is_interrupted(pass->local)) atomic_store(&pass->gives_up, true);
    }
    free(block);
}

/* Processes all blocks, and syncs the written bytes. Returns GB/s. Returns 0 after printing the error if
 * the pass failed, and if a signal came. */
static double make_pass(struct bench_disk *d, int from, int to)
{
    const uint64_t blocks = (d->bytes + BLOCK_BYTES - 1) / BLOCK_BYTES;
    const uint64_t bytes = blocks * BLOCK_BYTES;
    struct pass pass = { .local = d->b->local, .from = from, .to = to, .bytes = bytes };
    const double begin = bench_now();
    (void)bench_threads_run(DISK_THREADS, move_blocks, &pass); // the blocks are moved by fewer, too
    int error = atomic_load(&pass.error);
    if (error == 0 && to >= 0 && fsync(to) != 0) error = errno;
    const double seconds = bench_now() - begin;
    if (error == 0) return atomic_load(&pass.gives_up) ? 0 : (double)bytes * 1e-9 / seconds;
    (void)ctl_fail(CAIRN_ERR_IO, "a file of %s in %s cannot be %s: %s", ctl_bytes(bytes),
                   d->b->local->folder, to >= 0 ? "written" : "read", strerror(error));
    return 0;
}

static int open_unnamed(const char *folder, int flags)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/raw.XXXXXX", folder);
    const int fd = mkostemp(path, flags | O_CLOEXEC);
    if (fd >= 0) unlink(path);
    return fd;
}

/* Opens a file that has no name. Returns -1 after printing the error if this failed. */
static int open_file(struct bench_disk *d)
{
    const char *folder = d->b->local->folder;
    int fd = d->is_buffered ? -1 : open_unnamed(folder, O_DIRECT);
    if (fd >= 0) return fd;
    if (!d->is_buffered)
        fprintf(stderr,
                "note: %s takes no direct I/O (%s): the raw rate is through the page cache\n",
                folder, strerror(errno));
    d->is_buffered = true;
    fd = open_unnamed(folder, 0);
    if (fd < 0)
        (void)ctl_fail(CAIRN_ERR_IO, "no file in %s can be made: %s", folder, strerror(errno));
    return fd;
}

/* Writes the bytes, read from `from` if that is not -1, to a file. Returns the GB/s up to the
 * moment when all bytes are on the disk; 0 as for make_pass. */
static double write_file(struct bench_disk *d, int from)
{
    const int fd = open_file(d);
    if (fd < 0) return 0;
    const double speed = make_pass(d, from, fd);
    close(fd);
    return speed;
}

double bench_disk_write(struct bench_disk *d)
{
    return write_file(d, -1);
}

/* Ensures that the file to read exists, and is not in the page cache. Returns false after printing the
 * error if this failed. */
static bool have_file(struct bench_disk *d)
{
    if (d->raw_fd == 0) {
        const int fd = open_file(d);
        if (fd < 0) return false;
        d->raw_fd = fd;
        if (!(make_pass(d, -1, fd) > 0)) return false;
    }
    if (d->is_buffered) posix_fadvise(d->raw_fd, 0, 0, POSIX_FADV_DONTNEED);
    return true;
}

double bench_disk_read(struct bench_disk *d)
{
    return have_file(d) ? make_pass(d, d->raw_fd, -1) : 0;
}

double bench_disk_copy(struct bench_disk *d)
{
    return have_file(d) ? write_file(d, d->raw_fd) : 0;
}

/* ==== torch ==== */

/* A process of Python, with what it is told. */
struct snake {
    struct bench_child child;
    const char *python, *script, *folder;
    uint64_t elems;
    uint32_t count, rank;
};

static int become_snake(void *own)
{
    struct snake *snake = own;
    char elems[24], count[16], rank[16], command[] = "-c";
    snprintf(elems, sizeof elems, "%" PRIu64, snake->elems);
    snprintf(count, sizeof count, "%u", snake->count);
    snprintf(rank, sizeof rank, "%u", snake->rank);
    char *arguments[] = { (char *)(uintptr_t)snake->python,
                          command,
                          (char *)(uintptr_t)snake->script,
                          (char *)(uintptr_t)snake->folder,
                          elems,
                          count,
                          rank,
                          NULL };
    return bench_child_become(snake->python, arguments);
}

/* Runs `count` processes of one Python; returns the maximum of each number. Result as for bench_torch_run. */
static int run_python(struct local *local, struct snake all, double numbers_out[static 2])
{
    struct snake snakes[BENCH_WORKERS_MAX];
    int is_there = 1;
    numbers_out[0] = numbers_out[1] = 0;
    for (uint32_t i = 0; i < all.count; i++) {
        snakes[i] = all;
        snakes[i].rank = i;
        if (!bench_child_start(&snakes[i].child, local, become_snake, &snakes[i])) is_there = 0;
    }
    for (uint32_t i = 0; i < all.count && is_there > 0; i++) {
        double numbers[2];
        is_there = bench_child_numbers(&snakes[i].child, local, numbers);
        for (int k = 0; k < 2 && is_there > 0; k++)
            if (numbers[k] > numbers_out[k]) numbers_out[k] = numbers[k];
    }
    for (uint32_t i = 0; i < all.count; i++) bench_child_end(&snakes[i].child, SIGKILL);
    return is_there;
}

int bench_torch_run(struct local *local, const char *script, uint64_t elems, uint32_t count,
                    double numbers_out[static 2])
{
    struct snake all = {
        .script = script, .folder = local->folder, .elems = elems, .count = count
    };
    static const char *const pythons[] = { "python3", "/usr/bin/python3" };
    int is_there = 0;
    for (size_t i = 0; i < sizeof pythons / sizeof *pythons && is_there == 0; i++) {
        all.python = pythons[i];
        is_there = run_python(local, all, numbers_out);
    }
    return is_there;
}
