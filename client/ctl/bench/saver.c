#include "client/ctl/bench/bench.h"

#include <inttypes.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SAVER_LOOK_MS 5
#define LOOK_DUE_MS   20 /* each look reads the store */

static void take_reply(struct bench_saver *s, const Cairn__SnapshotStatus *reply)
{
    snprintf(s->id, sizeof s->id, "%s", reply->id);
    snprintf(s->path, sizeof s->path, "%s", reply->path);
    s->bytes = reply->bytes;
}

/* ---- the job's own ---- */

static cairn_status set_every(struct bench_saver *s, uint64_t every)
{
    Cairn__JobAmend amend = CAIRN__JOB_AMEND__INIT;
    uint64_t revision;
    amend.name = wire_text(s->job);
    amend.set_snapshots = true;
    amend.snapshot_every = every;
    return ctl_amend(&s->ctl, &amend, &revision);
}

/* Notes when it begins. The one before was removed: the first that is listed is it. */
static cairn_status look(struct bench_saver *s)
{
    Cairn__SnapshotListGet get = CAIRN__SNAPSHOT_LIST_GET__INIT;
    ProtobufCMessage *reply;
    get.job = wire_text(s->job);
    CAIRN_TRY(
        ctl_call(&s->ctl, CAIRN_MSG_SNAPSHOT_LIST_GET, &get.base, CAIRN_MSG_SNAPSHOT_LIST, &reply));
    const Cairn__SnapshotList *list = (const Cairn__SnapshotList *)reply;
    const bool is_seen = list->n_running > 0 || list->n_snapshots > 0;
    if (is_seen && !(s->begin > 0)) s->begin = bench_now();
    if (list->n_snapshots > 0) take_reply(s, list->snapshots[0]);
    message_free(reply);
    return CAIRN_OK;
}

static cairn_status await_due(struct bench_saver *s)
{
    s->begin = 0;
    cairn_status status = set_every(s, s->every);
    while (status == CAIRN_OK && s->id[0] == '\0') {
        poll(NULL, 0, LOOK_DUE_MS);
        status = look(s);
    }
    s->end = bench_now();
    return status == CAIRN_OK ? set_every(s, 0) : status;
}

/* ---- the thread ---- */

static cairn_status ask(struct bench_saver *s)
{
    Cairn__SnapshotCreate create = CAIRN__SNAPSHOT_CREATE__INIT;
    Cairn__SnapshotRestore restore = CAIRN__SNAPSHOT_RESTORE__INIT;
    ProtobufCMessage *reply = NULL;
    create.job = restore.job = wire_text(s->job);
    create.wait = true;
    restore.id = s->id;
    s->begin = bench_now();
    const cairn_status called = s->restores
                                    ? ctl_call(&s->ctl, CAIRN_MSG_SNAPSHOT_RESTORE, &restore.base,
                                               CAIRN_MSG_SNAPSHOT_STATUS, &reply)
                                    : ctl_call(&s->ctl, CAIRN_MSG_SNAPSHOT_CREATE, &create.base,
                                               CAIRN_MSG_SNAPSHOT_STATUS, &reply);
    s->end = bench_now();
    if (called != CAIRN_OK) return called;
    if (!s->restores) take_reply(s, (const Cairn__SnapshotStatus *)reply);
    message_free(reply);
    return CAIRN_OK;
}

static void *run_saver(void *context)
{
    struct bench_saver *s = context;
    s->is_ok = (s->every > 0 && !s->restores ? await_due(s) : ask(s)) == CAIRN_OK;
    atomic_store(&s->is_over, true);
    return NULL;
}

static void prepare_call(struct bench_saver *s)
{
    s->ctl = *s->local->ctl;
    s->ctl.endpoint = s->local->endpoint;
    s->ctl.timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS;
}

bool bench_save_begin(struct bench_saver *s)
{
    prepare_call(s);
    s->is_ok = false;
    atomic_store(&s->is_over, false);
    if (pthread_create(&s->thread, NULL, run_saver, s) == 0) return true;
    (void)ctl_fail(CAIRN_ERR_NO_MEMORY, "no thread");
    return false;
}

bool bench_save_end(struct bench_saver *s, bool gives_up)
{
    while (!gives_up && !atomic_load(&s->is_over)) {
        gives_up = bench_is_interrupted(s->local);
        poll(NULL, 0, SAVER_LOOK_MS);
    }
    if (gives_up) local_daemons_stop(s->local);
    pthread_join(s->thread, NULL);
    return s->is_ok && !gives_up;
}

double bench_save(struct bench_saver *s)
{
    if (!bench_save_begin(s) || !bench_save_end(s, false)) return 0;
    return s->end - s->begin;
}

bool bench_save_remove(struct bench_saver *s)
{
    Cairn__SnapshotRemove remove = CAIRN__SNAPSHOT_REMOVE__INIT;
    ProtobufCMessage *reply;
    if (s->id[0] == '\0') return true;
    prepare_call(s);
    remove.job = wire_text(s->job);
    remove.id = s->id;
    remove.force = true; // it is the only one that there is
    if (ctl_call(&s->ctl, CAIRN_MSG_SNAPSHOT_REMOVE, &remove.base, CAIRN_MSG_SNAPSHOT_REMOVED,
                 &reply) != CAIRN_OK)
        return false;
    message_free(reply);
    s->id[0] = '\0';
    return true;
}

bool bench_save_drop_job(struct bench_saver *s)
{
    Cairn__JobRemove remove = CAIRN__JOB_REMOVE__INIT;
    ProtobufCMessage *reply;
    prepare_call(s);
    remove.name = wire_text(s->job);
    remove.force = true;
    if (ctl_call(&s->ctl, CAIRN_MSG_JOB_REMOVE, &remove.base, CAIRN_MSG_JOB_REMOVED, &reply) !=
        CAIRN_OK)
        return false;
    message_free(reply);
    return true;
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

#define TORCH_LOOK_MS 50

/* argv: folder, elements, processes, which of them. */
static const char save_script[] =
    "import os, sys, time, torch\n"
    "path = sys.argv[1] + '/torch.pt'\n"
    "state = {k: torch.ones(int(sys.argv[2])) for k in ('param', 'exp_avg', 'exp_avg_sq')}\n"
    "took = []\n"
    "for _ in range(3):\n"
    "    begin = time.monotonic()\n"
    "    with open(path, 'wb') as file:\n"
    "        torch.save(state, file)\n"
    "        file.flush()\n"
    "        os.fsync(file.fileno())\n"
    "    took.append(time.monotonic() - begin)\n"
    "    os.remove(path)\n"
    "print(sorted(took)[1], 0)\n";

static const char async_script[] =
    "import shutil, sys, time, torch\n"
    "import torch.distributed as dist, torch.distributed.checkpoint as dcp\n"
    "folder, elems, world, rank = sys.argv[1], *map(int, sys.argv[2:])\n"
    "dcp.async_save\n"
    "dist.init_process_group('gloo', init_method=f'file://{folder}/torch.meet', rank=rank, "
    "world_size=world)\n"
    "state = {f'{k}.{rank}': torch.ones(elems // world) for k in ('param', 'exp_avg', "
    "'exp_avg_sq')}\n"
    "for i in range(2):\n"
    "    dist.barrier()\n"
    "    begin = time.monotonic()\n"
    "    saving = dcp.async_save(state, checkpoint_id=f'{folder}/torch.dcp.{i}')\n"
    "    stall = time.monotonic() - begin\n"
    "    saving.result()\n"
    "    whole = time.monotonic() - begin\n"
    "    dist.barrier()\n"
    "    if rank == 0: shutil.rmtree(f'{folder}/torch.dcp.{i}')\n"
    "print(stall, whole)\n";

struct snake {
    pid_t pid; /* -1: there is none */
    int fd;    /* of what it prints */
};

static struct snake start(struct local *local, const char *python, const char *script,
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

/* Its two numbers, at its end. 1: there; 0: not; -1: a signal came. */
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

static void end(struct snake *snake)
{
    if (snake->fd >= 0) close(snake->fd);
    if (snake->pid < 0) return;
    kill(snake->pid, SIGKILL); // one that has printed has no more to do
    while (waitpid(snake->pid, NULL, 0) < 0 && errno == EINTR) {}
}

/* `count` processes of one python; the greatest of what they print. As await. */
static int run_torch(struct local *local, const char *python, const char *script, uint64_t elems,
                     uint32_t count, double numbers_out[static 2])
{
    struct snake snakes[CAIRN_BENCH_WORKERS_MAX];
    char all[24], world[16];
    int is_there = 1;
    snprintf(all, sizeof all, "%" PRIu64, elems);
    snprintf(world, sizeof world, "%u", count);
    const char *const arguments[3] = { local->folder, all, world };
    numbers_out[0] = numbers_out[1] = 0;
    for (uint32_t i = 0; i < count; i++) snakes[i] = start(local, python, script, arguments, i);
    for (uint32_t i = 0; i < count && is_there > 0; i++) {
        double numbers[2];
        is_there = snakes[i].pid < 0 ? 0 : await_torch(local, &snakes[i], numbers);
        for (int k = 0; k < 2 && is_there > 0; k++)
            if (numbers[k] > numbers_out[k]) numbers_out[k] = numbers[k];
    }
    for (uint32_t i = 0; i < count; i++) end(&snakes[i]);
    return is_there;
}

/* Runs a script in `count` processes at a time; each is given a folder, `elems`, `count` and its
 * own index, and prints two numbers. Gives the greatest of each. 1: they are there; 0: not; -1: a
 * signal came. */
static int bench_torch_run(struct local *local, const char *script, uint64_t elems, uint32_t count,
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
    int is_there = bench_torch_run(local, save_script, elems, 1, numbers);
    if (is_there < 0) return false;
    if (is_there > 0) out->save_s = numbers[0];
    if (is_there == 0) fprintf(stderr, "skip: torch.save: no python3 has torch, or it failed\n");
    is_there = is_there > 0 ? bench_torch_run(local, async_script, elems, workers, numbers) : 0;
    if (is_there < 0) return false;
    if (is_there > 0) out->stall_s = numbers[0], out->async_s = numbers[1];
    if (is_there == 0)
        fprintf(stderr, "skip: async_save of torch.distributed.checkpoint: no python3 has it, or "
                        "it failed\n");
    return true;
}

/* ==== export ==== */

/* cairn snapshot export of all of a snapshot, as a process of its own, against a file of as many bytes that
 * is written, and one that is read and written. */

#define EXPORT_LOOK_MS 2

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st;
    (void)type;
    (void)walk;
    return remove(path);
}

/* In the child: this program, once more. */
static void become(const struct snapshot_bench *b, const char *to)
{
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(nothing, STDOUT_FILENO);
    execl("/proc/self/exe", "cairn", "snapshot", "export", "--path", b->saver.path, "--to", to,
          "--format", "dcp", "--quiet", (char *)NULL);
    _exit(127);
}

/* True: it ended well. */
static bool await_export(const struct snapshot_bench *b, pid_t pid)
{
    int status = 0;
    bool gives_up = false;
    for (;;) {
        const pid_t ended = waitpid(pid, &status, gives_up ? 0 : WNOHANG);
        if (ended == pid || (ended < 0 && errno != EINTR)) break;
        gives_up = gives_up || bench_is_interrupted(b->local);
        if (gives_up) kill(pid, SIGINT); // it removes what it has begun
        poll(NULL, 0, EXPORT_LOOK_MS);
    }
    return !gives_up && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* GB/s of the snapshot's bytes, which are read from the disk and written to it. */
static double export_once(void *context)
{
    struct snapshot_bench *b = context;
    char to[PATH_MAX + 16];
    snprintf(to, sizeof to, "%s/export", b->local->folder);
    bench_save_make_cold(&b->saver);
    const double begin = bench_now();
    const pid_t pid = local_fork(b->local);
    if (pid == 0) become(b, to);
    const bool is_ok = pid > 0 && await_export(b, pid);
    const double seconds = bench_now() - begin;
    nftw(to, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return is_ok ? (double)b->saver.bytes * 1e-9 / seconds : 0;
}

static double copy_raw(void *context)
{
    struct snapshot_bench *b = context;
    return bench_disk_copy(&b->disk, snapshot_bytes(b));
}

/* No export is faster than the disk reads and writes as many bytes: so much it does of that. */
int snapshot_export(struct snapshot_bench *b)
{
    struct bench_result copy = { .bench = NULL };
    if (!snapshot_make(b)) return 1;
    int done = bench_alternate(b->result, 0.001, export_once, snapshot_write_raw, b);
    if (done < 0) done = bench_alternate(&copy, 0.001, export_once, copy_raw, b);
    if (done >= 0) return done;
    snapshot_set(b, "export_disk_copy_GB/s", copy.reference.median);
    snapshot_set(b, "export_over_disk_copy", copy.ratio.median);
    return -1;
}

/* ==== import ==== */

/* cairn.import_checkpoint of a file of torch.save with both moments, by one worker, against direct reads of a
 * file of as many bytes. */

/* argv: folder, elements. The file is made by the first run, and is not in the page cache. */
static const char import_script[] =
    "import os, sys, time, torch, cairn\n"
    "folder, elems, count = sys.argv[1], int(sys.argv[2]), 16\n"
    "path = folder + '/import.pt'\n"
    "names = [f't{i}' for i in range(count)]\n"
    "model = torch.nn.ParameterDict({n: torch.ones(elems // count) for n in names})\n"
    "if not os.path.exists(path):\n"
    "    moments = {i: {'step': torch.tensor(10.), 'exp_avg': torch.full((elems // count,), .1),\n"
    "                   'exp_avg_sq': torch.full((elems // count,), .2)} for i in range(count)}\n"
    "    groups = [{'lr': 1e-3, 'params': list(range(count))}]\n"
    "    torch.save({'model': model.state_dict(),\n"
    "                'optimizer': {'state': moments, 'param_groups': groups}}, path)\n"
    "fd = os.open(path, os.O_RDONLY)\n"
    "os.fsync(fd)\n"
    "os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n"
    "os.close(fd)\n"
    "session = cairn.connect()\n"
    "begin = time.monotonic()\n"
    "m = cairn.import_checkpoint(session, path, model, cairn.AdamW(lr=1e-3), names=names,\n"
    "                            name='bench.snapshot')\n"
    "took = time.monotonic() - begin\n"
    "m.close()\n"
    "print(took, os.path.getsize(path), flush=True)\n";

/* GB/s of the file's bytes. */
static double import_once(void *context)
{
    struct snapshot_bench *b = context;
    double numbers[2]; // seconds, bytes
    const int ran = bench_torch_run(b->local, import_script, snapshot_elems(b), 1, numbers);
    if (ran == 0)
        (void)ctl_fail(CAIRN_ERR_IO, "cairn.import_checkpoint failed, of %s in %s",
                       ctl_bytes(snapshot_bytes(b)), b->local->folder);
    if (ran <= 0) return 0;
    return bench_save_drop_job(&b->saver) ? numbers[1] * 1e-9 / numbers[0] : 0;
}

static double read_raw(void *context)
{
    struct snapshot_bench *b = context;
    return bench_disk_read(&b->disk, snapshot_bytes(b));
}

int snapshot_import(struct snapshot_bench *b)
{
    static const char import_test[] = "import torch, cairn\nprint(1, 1, flush=True)\n";
    double numbers[2];
    const int is_there = bench_torch_run(b->local, import_test, 0, 1, numbers);
    if (is_there > 0) return bench_alternate(b->result, 0.001, import_once, read_raw, b);
    if (is_there < 0) return 1;
    if (b->ctl->bench.only != NULL)
        return ctl_fail(CAIRN_ERR_NOT_FOUND,
                        "no python3 has torch and cairn; PYTHONPATH says where they are");
    fprintf(stderr, "skip: import: no python3 has torch and cairn\n");
    return -1;
}
