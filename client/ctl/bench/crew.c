#include "client/ctl/bench/crew.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TURN_MS 100
#define STOP_MS 1000

/* ---- a worker's end ---- */

static bool read_all(int fd, void *out, size_t bytes)
{
    for (size_t have = 0; have < bytes;) {
        const ssize_t got = read(fd, (char *)out + have, bytes - have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        have += (size_t)got;
    }
    return true;
}

static bool write_all(int fd, const void *data, size_t bytes)
{
    ssize_t written;
    do { // fewer bytes than a pipe takes at a time
        written = write(fd, data, bytes);
    } while (written < 0 && errno == EINTR);
    return written == (ssize_t)bytes;
}

bool cairn_bench_worker_next(const struct cairn_bench_worker *worker,
                             struct cairn_bench_order *order_out)
{
    return read_all(worker->orders_fd, order_out, sizeof *order_out);
}

bool cairn_bench_worker_report(const struct cairn_bench_worker *worker,
                               const struct cairn_bench_report *report)
{
    return write_all(worker->reports_fd, report, sizeof *report);
}

/* ---- the bench's end ---- */

bool cairn_bench_is_interrupted(struct local *local)
{
    const int number = cairn_local_signal(local, 0, NULL);
    return (number != 0 && number != SIGCHLD) || cairn_local_daemons_reap(local) > 0;
}

static bool await_report(struct cairn_bench_crew *crew, uint32_t i, struct cairn_bench_report *out)
{
    struct pollfd wait = { .fd = crew->reports_fds[i], .events = POLLIN };
    while (poll(&wait, 1, TURN_MS) <= 0)
        if (cairn_bench_is_interrupted(crew->local)) return false;
    return read_all(crew->reports_fds[i], out, sizeof *out);
}

static bool start_one(struct cairn_bench_crew *crew,
                      int (*run)(const struct cairn_bench_worker *worker), const void *plan,
                      uint32_t world)
{
    int orders[2], reports[2];
    const uint32_t i = crew->count;
    if (pipe2(orders, O_CLOEXEC) != 0) return false;
    if (pipe2(reports, O_CLOEXEC) != 0) {
        close(orders[0]), close(orders[1]);
        return false;
    }
    const pid_t pid = cairn_local_fork(crew->local);
    if (pid == 0) {
        for (uint32_t k = 0; k < i; k++) close(crew->orders_fds[k]), close(crew->reports_fds[k]);
        close(orders[1]), close(reports[0]);
        const struct cairn_bench_worker worker = { i, world, orders[0], reports[1], plan };
        _exit(run(&worker));
    }
    close(orders[0]), close(reports[1]);
    if (pid < 0) {
        close(orders[1]), close(reports[0]);
        return false;
    }
    crew->pids[i] = pid;
    crew->orders_fds[i] = orders[1];
    crew->reports_fds[i] = reports[0];
    crew->count++;
    return true;
}

bool cairn_bench_crew_start(struct cairn_bench_crew *crew, struct local *local, uint32_t count,
                            int (*run)(const struct cairn_bench_worker *worker), const void *plan)
{
    *crew = (struct cairn_bench_crew) { .local = local };
    while (crew->count < count)
        if (!start_one(crew, run, plan, count)) return false;
    struct cairn_bench_report report;
    for (uint32_t i = 0; i < count; i++)
        if (!await_report(crew, i, &report)) return false;
    return true;
}

bool cairn_bench_crew_do(struct cairn_bench_crew *crew, struct cairn_bench_order order,
                         struct cairn_bench_report *reports_out)
{
    for (uint32_t i = 0; i < crew->count; i++)
        if (!write_all(crew->orders_fds[i], &order, sizeof order)) return false;
    for (uint32_t i = 0; i < crew->count; i++)
        if (!await_report(crew, i, &reports_out[i])) return false;
    return true;
}

void cairn_bench_crew_stop(struct cairn_bench_crew *crew)
{
    for (uint32_t i = 0; i < crew->count; i++) close(crew->orders_fds[i]);
    for (uint32_t i = 0; i < crew->count; i++) {
        struct pollfd wait = { .fd = crew->reports_fds[i] }; // its end is a hang-up
        if (poll(&wait, 1, STOP_MS) <= 0) kill(crew->pids[i], SIGKILL);
        close(crew->reports_fds[i]);
        while (waitpid(crew->pids[i], NULL, 0) < 0 && errno == EINTR) {}
    }
    crew->count = 0;
}
