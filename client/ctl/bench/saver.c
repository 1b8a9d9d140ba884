/* The helpers of the bench of snapshots: snapshots on a separate thread, a disk, and torch. */
#include "client/ctl/bench/bench.h"
#include "bench/torch_async.h"
#include "bench/torch_save.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "proto/snapshot_io/snapshot_io.h"

/* ==== saver ==== */

#define SAVER_LOOK_MS 5
#define LOOK_DUE_MS   20 /* each poll reads the store */

/* ---- a thread ---- */

static void connect_task(struct bench_task *task)
{
    task->ctl = *task->b->ctl;
    task->ctl.endpoint = task->b->local->endpoint;
    task->ctl.timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS;
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

/* ---- the job's own snapshots ---- */

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

static cairn_status set_every(struct bench_saver *s, uint64_t every)
{
    Cairn__JobAmend amend = CAIRN__JOB_AMEND__INIT;
    Cairn__Setting settings[2], *const list[] = { &settings[0], &settings[1] };
    char number[24];
    uint64_t revision;
    snprintf(number, sizeof number, "%" PRIu64, every);
    const char *const pairs[][2] = { { "snapshot_every", number }, { "snapshot_keep", "0" } };
    for (size_t i = 0; i < 2; i++) {
        cairn__setting__init(&settings[i]);
        settings[i].key = wire_text(pairs[i][0]);
        settings[i].value = wire_text(pairs[i][1]);
    }
    amend.name = wire_text(s->task.b->model.job);
    amend.settings = (Cairn__Setting **)(uintptr_t)list;
    amend.n_settings = 2;
    return ctl_amend(&s->task.ctl, &amend, &revision);
}

/* Records when the snapshot begins. The previous snapshot was removed, so the first listed snapshot is the
 * new one. */
static void take_list(struct bench_saver *s, const void *reply)
{
    const Cairn__SnapshotList *list = reply;
    const bool is_seen = list->n_running > 0 || list->n_snapshots > 0;
    if (is_seen && !(s->begin > 0)) s->begin = bench_now();
    if (list->n_snapshots > 0) take_status(s, list->snapshots[0]);
}

static cairn_status await_due(struct bench_saver *s)
{
    Cairn__SnapshotListGet get = CAIRN__SNAPSHOT_LIST_GET__INIT;
    get.job = wire_text(s->task.b->model.job);
    s->begin = 0;
    cairn_status status = set_every(s, s->every);
    while (status == CAIRN_OK && s->id[0] == '\0') {
        poll(NULL, 0, LOOK_DUE_MS);
        status = ask(s, CAIRN_MSG_SNAPSHOT_LIST_GET, &get.base, CAIRN_MSG_SNAPSHOT_LIST, take_list);
    }
    s->end = bench_now();
    return status == CAIRN_OK ? set_every(s, 0) : status;
}

/* ---- saving ---- */

static cairn_status save_or_restore(struct bench_saver *s)
{
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
    return status;
}

static bool run_saver(struct bench_task *task)
{
    struct bench_saver *s = (struct bench_saver *)task;
    return (s->every > 0 && !s->restores ? await_due(s) : save_or_restore(s)) == CAIRN_OK;
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

#define LOOK_MS 5

/* A pass over the file: threads take blocks until none are left. */
struct pass {
    int from, to; /* from -1: nothing is read. to -1: nothing is written */
    uint64_t bytes;
    _Atomic uint64_t next; /* the first byte that no thread has taken */
    atomic_int left;       /* threads still at work */
    atomic_int error;      /* errno of the first thread that failed; 0: no thread failed */
    atomic_bool gives_up;
};

static bool move_block(int fd, bool writes, char *block, uint64_t at)
{
    for (size_t done = 0; done < BENCH_DISK_BLOCK_BYTES;) {
        const off_t from = (off_t)(at + done);
        const size_t left = BENCH_DISK_BLOCK_BYTES - done;
        const ssize_t moved = writes ? pwrite(fd, block + done, left, from)
                                     : pread(fd, block + done, left, from);
        if (moved < 0 && errno == EINTR) continue;
        if (moved == 0) errno = EIO; // the file is shorter than when it was created
        if (moved <= 0) return false;
        done += (size_t)moved;
    }
    return true;
}

static void *run_pass(void *context)
{
    struct pass *pass = context;
    char *block = aligned_alloc(4096, BENCH_DISK_BLOCK_BYTES);
    int none = 0;
    if (block == NULL) atomic_compare_exchange_strong(&pass->error, &none, ENOMEM);
    // The bytes are not zeros, because a disk might compress zeros.
    for (size_t i = 0; block != NULL && i < BENCH_DISK_BLOCK_BYTES; i++)
        block[i] = (char)(i * 2654435761u >> 13);
    while (atomic_load(&pass->error) == 0 && !atomic_load(&pass->gives_up)) {
        const uint64_t at = atomic_fetch_add(&pass->next, BENCH_DISK_BLOCK_BYTES);
        if (at >= pass->bytes) break;
        if ((pass->from >= 0 && !move_block(pass->from, false, block, at)) ||
            (pass->to >= 0 && !move_block(pass->to, true, block, at)))
            atomic_compare_exchange_strong(&pass->error, &none, errno);
    }
    free(block);
    atomic_fetch_sub(&pass->left, 1);
    return NULL;
}

/* Processes all blocks, and syncs the written bytes. Returns seconds. Returns 0 after printing the error if
 * the pass failed. */
static double make_pass(struct bench_disk *disk, int from, int to, uint64_t bytes)
{
    struct pass pass = { .from = from, .to = to, .bytes = bytes };
    pthread_t threads[BENCH_DISK_THREADS];
    int begun = 0;
    atomic_store(&pass.left, BENCH_DISK_THREADS);
    const double begin = bench_now();
    while (begun < BENCH_DISK_THREADS &&
           pthread_create(&threads[begun], NULL, run_pass, &pass) == 0)
        begun++;
    atomic_fetch_sub(&pass.left, BENCH_DISK_THREADS - begun);
    while (atomic_load(&pass.left) > 0) {
        if (bench_is_interrupted(disk->b->local)) atomic_store(&pass.gives_up, true);
        poll(NULL, 0, LOOK_MS);
    }
    for (int i = 0; i < begun; i++) pthread_join(threads[i], NULL);
    int error = begun == 0 ? EAGAIN : atomic_load(&pass.error);
    if (error == 0 && to >= 0 && fsync(to) != 0) error = errno;
    const double seconds = bench_now() - begin;
    if (error == 0 && !atomic_load(&pass.gives_up)) return seconds;
    if (error != 0)
        (void)ctl_fail(CAIRN_ERR_IO, "a file of %s in %s cannot be %s: %s", ctl_bytes(bytes),
                       disk->b->local->folder, to >= 0 ? "written" : "read", strerror(error));
    return 0;
}

/* Opens a file that has no name. Returns -1 after printing the error if this failed. */
static int open_file(struct bench_disk *disk)
{
    int fd = -1;
    for (int flags = disk->is_buffered ? 0 : O_DIRECT; fd < 0; flags = 0) {
        char path[PATH_MAX + 32];
        snprintf(path, sizeof path, "%s/raw.XXXXXX", disk->b->local->folder);
        fd = mkostemp(path, flags | O_CLOEXEC);
        if (fd >= 0) unlink(path);
        if (fd >= 0 || flags == 0) break;
        if (!disk->is_buffered)
            fprintf(stderr,
                    "note: %s takes no direct I/O (%s): the raw rate is through the page "
                    "cache\n",
                    disk->b->local->folder, strerror(errno));
        disk->is_buffered = true;
    }
    if (fd < 0)
        (void)ctl_fail(CAIRN_ERR_IO, "no file in %s can be made: %s", disk->b->local->folder,
                       strerror(errno));
    return fd;
}

static uint64_t whole_blocks(uint64_t bytes)
{
    const uint64_t block = BENCH_DISK_BLOCK_BYTES;
    return (bytes + block - 1) / block * block;
}

double bench_disk_write(struct bench_disk *disk, uint64_t bytes)
{
    const int fd = open_file(disk);
    if (fd < 0) return 0;
    bytes = whole_blocks(bytes);
    const double seconds = make_pass(disk, -1, fd, bytes);
    close(fd);
    return seconds > 0 ? (double)bytes * 1e-9 / seconds : 0;
}

void bench_disk_close(struct bench_disk *disk)
{
    if (disk->fd > 0) close(disk->fd);
    disk->fd = 0;
    disk->bytes = 0;
}

/* Ensures that the file to read exists, with complete blocks. Returns false after printing the error if
 * this failed. */
static bool have_file(struct bench_disk *disk, uint64_t bytes)
{
    if (disk->bytes != bytes) bench_disk_close(disk);
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

double bench_disk_read(struct bench_disk *disk, uint64_t bytes)
{
    bytes = whole_blocks(bytes);
    if (!have_file(disk, bytes)) return 0;
    const double seconds = make_pass(disk, disk->fd, -1, bytes);
    return seconds > 0 ? (double)bytes * 1e-9 / seconds : 0;
}

double bench_disk_copy(struct bench_disk *disk, uint64_t bytes)
{
    bytes = whole_blocks(bytes);
    const int fd = have_file(disk, bytes) ? open_file(disk) : -1;
    if (fd < 0) return 0;
    const double seconds = make_pass(disk, disk->fd, fd, bytes);
    close(fd);
    return seconds > 0 ? (double)bytes * 1e-9 / seconds : 0;
}

/* ==== torch ==== */

#define TORCH_LOOK_MS 50

struct snake {
    pid_t pid; /* -1: no process */
    int fd;    /* the read end of the pipe for its output */
};

static struct snake start_snake(struct local *local, const char *python, const char *script,
                                const char *const arguments[static 3], uint32_t rank)
{
    struct snake snake = { .pid = -1, .fd = -1 };
    int ends[2];
    char number[16];
    if (pipe2(ends, O_CLOEXEC) != 0) return snake;
    snprintf(number, sizeof number, "%u", rank);
    snake.pid = local_fork(local);
    if (snake.pid == 0) {
        const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(nothing, STDIN_FILENO), dup2(ends[1], STDOUT_FILENO), dup2(nothing, STDERR_FILENO);
        execlp(python, python, "-c", script, arguments[0], arguments[1], arguments[2], number,
               (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    snake.fd = ends[0];
    return snake;
}

/* Reads the process's two numbers, and waits until the process ends. 1: the numbers are valid; 0: they are
 * not valid; -1: a signal came. */
static int await_torch(struct local *local, const struct snake *snake, double numbers_out[static 2])
{
    struct pollfd wait = { .fd = snake->fd, .events = POLLIN };
    char text[128];
    size_t have = 0;
    for (;;) {
        if (poll(&wait, 1, TORCH_LOOK_MS) <= 0) {
            if (bench_is_interrupted(local)) return -1;
            continue;
        }
        const ssize_t got = read(snake->fd, text + have, sizeof text - 1 - have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        have += (size_t)got;
    }
    text[have] = '\0';
    return sscanf(text, "%lf %lf", &numbers_out[0], &numbers_out[1]) == 2 ? 1 : 0;
}

static void end_snake(struct snake *snake)
{
    if (snake->fd >= 0) close(snake->fd);
    if (snake->pid < 0) return;
    kill(snake->pid, SIGKILL); // a process that has printed has no more work
    while (waitpid(snake->pid, NULL, 0) < 0 && errno == EINTR) {}
}

/* Runs `count` processes of one Python; returns the maximum of each number. Result as for await_torch. */
static int run_torch(struct local *local, const char *python, const char *script, uint64_t elems,
                     uint32_t count, double numbers_out[static 2])
{
    struct snake snakes[BENCH_WORKERS_MAX];
    char all[24], world[16];
    int is_there = 1;
    snprintf(all, sizeof all, "%" PRIu64, elems);
    snprintf(world, sizeof world, "%u", count);
    const char *const arguments[3] = { local->folder, all, world };
    numbers_out[0] = numbers_out[1] = 0;
    for (uint32_t i = 0; i < count; i++)
        snakes[i] = start_snake(local, python, script, arguments, i);
    for (uint32_t i = 0; i < count && is_there > 0; i++) {
        double numbers[2];
        is_there = snakes[i].pid < 0 ? 0 : await_torch(local, &snakes[i], numbers);
        for (int k = 0; k < 2 && is_there > 0; k++)
            if (numbers[k] > numbers_out[k]) numbers_out[k] = numbers[k];
    }
    for (uint32_t i = 0; i < count; i++) end_snake(&snakes[i]);
    return is_there;
}

int bench_torch_run(struct local *local, const char *script, uint64_t elems, uint32_t count,
                    double numbers_out[static 2])
{
    const int is_there = run_torch(local, "python3", script, elems, count, numbers_out);
    return is_there != 0 ? is_there
                         : run_torch(local, "/usr/bin/python3", script, elems, count, numbers_out);
}

bool bench_torch_measure(struct local *local, uint64_t elems, uint32_t workers,
                         struct bench_torch *out)
{
    double numbers[2];
    *out = (struct bench_torch) { .save_s = 0 };
    int is_there = bench_torch_run(local, torch_save, elems, 1, numbers);
    if (is_there < 0) return false;
    if (is_there > 0) out->save_s = numbers[0];
    if (is_there == 0) fprintf(stderr, "skip: torch.save: no python3 has torch, or it failed\n");
    is_there = is_there > 0 ? bench_torch_run(local, torch_async, elems, workers, numbers) : 0;
    if (is_there < 0) return false;
    if (is_there > 0) out->stall_s = numbers[0], out->async_s = numbers[1];
    if (is_there == 0)
        fprintf(stderr, "skip: async_save of torch.distributed.checkpoint: no python3 has it, or "
                        "it failed\n");
    return true;
}
