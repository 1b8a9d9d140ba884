/* The helpers of the bench of snapshots: snapshots on a separate thread, a disk, and torch. */
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
