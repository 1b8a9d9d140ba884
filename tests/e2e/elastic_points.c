#include "tests/e2e/elastic_points.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/points/point.h"

enum { EVERY = 100 /* steps that a run may end at */, AHEAD = 50, TURN_MS = 5 };

/* ---- time ---- */

void points_pause(int ms)
{
    const struct timespec moment = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&moment, NULL);
}

/* ---- points ---- */

static void open_point(struct points *p, const char *library)
{
    snprintf(p->path, sizeof p->path, "/tmp/cairn-point.XXXXXX");
    const int fd = mkostemp(p->path, O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, sizeof *p->point), 0);
    p->point = mmap(NULL, sizeof *p->point, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(p->point, MAP_FAILED);
    close(fd);
    setenv("CAIRN_POINT", p->path, 1);
    setenv("LD_PRELOAD", library, 1);
}

static void close_point(struct points *p)
{
    unsetenv("LD_PRELOAD");
    munmap(p->point, sizeof *p->point);
    unlink(p->path);
}

void points_arm(struct points *p, const char *text)
{
    snprintf(p->point->text, sizeof p->point->text, "%s", text);
    atomic_store(&p->point->pid, 0);
    atomic_store(&p->point->state, POINT_ARMED);
}

/* Asks /proc, since it may be the child of a keeper. */
static bool is_stopped(pid_t pid)
{
    char path[32], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    const bool is_read = fscanf(file, "%*d %*[^)]) %c", &state) == 1;
    fclose(file);
    return is_read && state == 'T';
}

pid_t points_await_stop(struct points *p)
{
    const int64_t end_ms = now_ms() + CLUSTER_WAIT_MS;
    int pid;
    while ((pid = atomic_load(&p->point->pid)) == 0 || !is_stopped(pid)) {
        ck_assert_msg(now_ms() < end_ms, "nobody said \"%s\"", p->point->text);
        points_pause(1);
    }
    return pid;
}

/* ---- workers ---- */

void points_start_worker(struct points *p, uint32_t rank)
{
    p->workers[rank] = elastic_start(cluster.address, p->model, rank, p->shared);
}

/* Ended by itself, and not well. */
static bool has_failed(pid_t pid)
{
    siginfo_t info = { .si_pid = 0 };
    if (pid == 0 || waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0) return false;
    return info.si_pid != 0 && (info.si_code != CLD_EXITED || info.si_status != 0);
}

static void all_are_well(struct points *p)
{
    bool failed = has_failed(cluster.coordinator);
    for (int i = 0; i < cluster.shard_count; i++) failed |= has_failed(cluster.shards[i]);
    ck_assert_msg(!failed, "%s: a daemon has ended", cluster.folder);
    for (int i = 0; i < POINTS_WORKERS; i++)
        if (p->workers[i] != 0) ck_assert_int_eq(cluster_wait(p->workers[i], 0), -1);
}

void points_train(struct points *p, uint64_t rounds)
{
    const uint64_t goal = atomic_load(&p->shared->rounds) + rounds;
    const int64_t end_ms = now_ms() + CLUSTER_WAIT_MS;
    while (atomic_load(&p->shared->rounds) < goal) {
        all_are_well(p);
        if (now_ms() > end_ms) {
            ask("job show %s", p->model->name);
            ck_abort_msg("%s: training does not go on: %s%s", cluster.folder, said.out, said.err);
        }
        points_pause(TURN_MS);
    }
}

uint64_t points_end_training(struct points *p)
{
    const uint64_t ahead = atomic_load(&p->shared->step) + AHEAD;
    const uint64_t until = (ahead + EVERY - 1) / EVERY * EVERY;
    atomic_store(&p->shared->until, until);
    for (uint32_t i = 0; i < POINTS_WORKERS; i++)
        if (p->workers[i] == 0) points_start_worker(p, i);
    for (int i = 0; i < POINTS_WORKERS; i++) {
        const int status = cluster_wait(p->workers[i], CLUSTER_WAIT_MS);
        if (status == -1) ask("job show %s", p->model->name);
        ck_assert_msg(status == 0, "%s: worker %d: %d; %s", cluster.folder, i, status, said.out);
        p->workers[i] = 0;
    }
    return until;
}

/* ---- the cluster ---- */

static void start_all(struct points *p, const char *library, int shards, bool is_kept)
{
    *p = (struct points) { .model = &elastic_models[1], .shared = elastic_share() };
    atomic_store(&p->shared->until, UINT64_MAX);
    open_point(p, library);
    start(shards, .coordinator_set = SETTINGS("lease.heartbeat=100ms", "lease.timeout=1s"),
          .log_level = "debug", .shards_kept = is_kept);
    for (uint32_t i = 0; i < POINTS_WORKERS; i++) points_start_worker(p, i);
    points_train(p, 2);
    says(0, "", "snapshot create %s", p->model->name);
}

void points_start(struct points *p, const char *library, int shards)
{
    start_all(p, library, shards, false);
}

void points_start_kept(struct points *p, const char *library, int shards)
{
    start_all(p, library, shards, true);
}

void points_stop(struct points *p)
{
    stop();
    close_point(p);
    munmap(p->shared, sizeof *p->shared);
}

/* ---- questions ---- */

pid_t points_ask(const char *line)
{
    char words[128], *rest = words, log[sizeof cluster.folder + 16];
    const char *argv[16] = { CAIRN_BIN_DIR "/cairn", "--endpoint", cluster.address };
    snprintf(words, sizeof words, "%s", line);
    for (size_t i = 3; (argv[i] = strsep(&rest, " ")) != NULL; i++) {}
    snprintf(log, sizeof log, "%s/cairn.log", cluster.folder);
    return cluster_spawn(argv, log);
}

bool points_shows(struct points *p, const char *text)
{
    ask("job show %s -o json", p->model->name);
    return strstr(said.out, text) != NULL;
}

bool points_stands_still(struct points *p)
{
    ask("reshard status %s -o json", p->model->name);
    return said.status == 0 && strstr(said.out, "\"moving\"") == NULL;
}

void points_root(struct points *p, char root_out[CLUSTER_WORD_BYTES])
{
    word_of(root_out, "job digest -q %s", p->model->name);
}

void points_calm_root(uint64_t step, char root_out[CLUSTER_WORD_BYTES])
{
    static struct points calm;
    calm = (struct points) { .model = &elastic_models[1], .shared = elastic_share() };
    atomic_store(&calm.shared->until, step);
    start(1);
    points_start_worker(&calm, 0);
    ck_assert_int_eq(cluster_wait(calm.workers[0], CLUSTER_WAIT_MS), 0);
    points_root(&calm, root_out);
    stop();
    munmap(calm.shared, sizeof *calm.shared);
}
