#include "client/ctl/bench/snapshot/torch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/bench/crew.h"

#define LOOK_MS 50

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
    snake.pid = cairn_local_fork(local);
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
static int await(struct local *local, const struct snake *snake, double numbers_out[static 2])
{
    struct pollfd wait = { .fd = snake->fd, .events = POLLIN };
    char text[128];
    size_t have = 0;
    for (;;) {
        if (poll(&wait, 1, LOOK_MS) <= 0) {
            if (cairn_bench_is_interrupted(local)) return -1;
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
static int run(struct local *local, const char *python, const char *script, uint64_t elems,
               uint32_t count, double numbers_out[static 2])
{
    struct snake snakes[CAIRN_BENCH_WORKERS_MAX];
    char all[24], world[16];
    int is_there = 1;
    snprintf(all, sizeof all, "%llu", (unsigned long long)elems);
    snprintf(world, sizeof world, "%u", count);
    const char *const arguments[3] = { local->folder, all, world };
    numbers_out[0] = numbers_out[1] = 0;
    for (uint32_t i = 0; i < count; i++) snakes[i] = start(local, python, script, arguments, i);
    for (uint32_t i = 0; i < count && is_there > 0; i++) {
        double numbers[2];
        is_there = snakes[i].pid < 0 ? 0 : await(local, &snakes[i], numbers);
        for (int k = 0; k < 2 && is_there > 0; k++)
            if (numbers[k] > numbers_out[k]) numbers_out[k] = numbers[k];
    }
    for (uint32_t i = 0; i < count; i++) end(&snakes[i]);
    return is_there;
}

int cairn_bench_torch_run(struct local *local, const char *script, uint64_t elems, uint32_t count,
                          double numbers_out[static 2])
{
    const int is_there = run(local, "python3", script, elems, count, numbers_out);
    return is_there != 0 ? is_there
                         : run(local, "/usr/bin/python3", script, elems, count, numbers_out);
}

bool cairn_bench_torch_measure(struct local *local, uint64_t elems, uint32_t workers,
                               struct cairn_bench_torch *out)
{
    double numbers[2];
    *out = (struct cairn_bench_torch) { .save_s = 0 };
    int is_there = cairn_bench_torch_run(local, save_script, elems, 1, numbers);
    if (is_there < 0) return false;
    if (is_there > 0) out->save_s = numbers[0];
    if (is_there == 0) fprintf(stderr, "skip: torch.save: no python3 has torch, or it failed\n");
    is_there = is_there > 0 ? cairn_bench_torch_run(local, async_script, elems, workers, numbers)
                            : 0;
    if (is_there < 0) return false;
    if (is_there > 0) out->stall_s = numbers[0], out->async_s = numbers[1];
    if (is_there == 0)
        fprintf(stderr, "skip: async_save of torch.distributed.checkpoint: no python3 has it, or "
                        "it failed\n");
    return true;
}
