/* What a worker more costs: memory, descriptors and time of each process, with 2, 8, 32 (and in memory 128)
 * workers of a tiny model. Nothing may grow faster than linearly in them; the figures are printed. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/cluster.h"
#include "tests/support/descriptors.h"
#include "tests/support/suite.h"
#include "tests/support/toy.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLACK_BYTES (1 << 30) /* what is measured is the sanitizer's */
#else
#define SLACK_BYTES (4 << 20) /* two large pages: landing memory is taken in these, not by slot */
#endif

enum { SHARDS = 2, WARM_STEPS = 3, STEPS = 15, WORKERS_MAX = 128, SIZES_MAX = 4 };

/* Of one process, or of a step. */
struct figures {
    double resident_bytes, descriptors, step_us;
};

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static struct figures figures_of(pid_t pid)
{
    return (struct figures) { .resident_bytes = (double)cluster_resident_bytes(pid),
                              .descriptors = descriptors_of(pid) };
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of a step, in microseconds. */
static double train(cairn_job *job)
{
    double us[STEPS];
    for (int i = 0; i < WARM_STEPS; i++) toy_step(job, 1);
    for (int i = 0; i < STEPS; i++) {
        const double begin = now_us();
        toy_step(job, 1);
        us[i] = now_us() - begin;
    }
    qsort(us, STEPS, sizeof *us, by_value);
    return us[STEPS / 2];
}

/* ---- no worse than linear ---- */

/* By the slope between the sizes before, `factor` times as much, and `slack`. */
static void check_slope(const char *what, const uint32_t *sizes, const double *values, int count,
                        double factor, double slack)
{
    const double before = (values[count - 2] - values[0]) / (sizes[count - 2] - sizes[0]);
    const double bound = values[count - 2] + slack +
                         factor * fmax(before, 0) * (sizes[count - 1] - sizes[count - 2]);
    ck_assert_msg(values[count - 1] <= bound, "%s of %u workers: %.0f, more than %.0f (%u: %.0f)",
                  what, sizes[count - 1], values[count - 1], bound, sizes[count - 2],
                  values[count - 2]);
}

static void check_process(const char *what, const uint32_t *sizes, const struct figures *figures,
                          int count)
{
    double bytes[SIZES_MAX], descriptors[SIZES_MAX];
    char text[64];
    for (int i = 0; i < count; i++) {
        bytes[i] = figures[i].resident_bytes;
        descriptors[i] = figures[i].descriptors;
        printf("growth: %-22s %3u workers: %7.2f MiB, %4.0f descriptors", what, sizes[i],
               bytes[i] / (1 << 20), descriptors[i]);
        if (figures[i].step_us > 0) printf(", %6.0f us a step", figures[i].step_us);
        printf("\n");
    }
    snprintf(text, sizeof text, "%s: memory", what);
    check_slope(text, sizes, bytes, count, 2, SLACK_BYTES);
    snprintf(text, sizeof text, "%s: descriptors", what);
    check_slope(text, sizes, descriptors, count, 1.5, 8);
}

/* A step of four times as many workers may take three times four as long: machines are shared. */
static void check_time(const uint32_t *sizes, const struct figures *figures, int count)
{
    const double before = figures[count - 2].step_us, after = figures[count - 1].step_us;
    ck_assert_msg(after <= 5000 + 3 * before * sizes[count - 1] / sizes[count - 2],
                  "a step took %.0f us with %u workers, %.0f us with %u", after, sizes[count - 1],
                  before, sizes[count - 2]);
}

/* ---- in memory: all in one process ---- */

static struct rooms rooms;
static cairn_job *jobs[WORKERS_MAX];

static void *worker_thread(void *arg)
{
    double *us = arg;
    *us = train(jobs[(int)*us]);
    return NULL;
}

static cairn_job *open_worker(cairn *session, uint32_t rank, uint32_t count)
{
    cairn_job *job = toy_open(session, "toy", TOY_SPEC(.rank = rank, .workers_min = count));
    if (rank == 0) toy_put(job);
    return job;
}

/* In a process of its own, so that memory of the size before is not used again. */
static struct figures measure_rooms(uint32_t count)
{
    static cairn *sessions[WORKERS_MAX];
    static double us[WORKERS_MAX];
    pthread_t threads[WORKERS_MAX];
    const struct cairn_fabric_mem_options fabric = { .seed = 1 };
    rooms_open_for(&rooms, SHARDS, WORKERS_MAX, &fabric);
    for (uint32_t i = 0; i < count; i++) {
        sessions[i] = toy_session(&rooms, "worker");
        jobs[i] = open_worker(sessions[i], i, count);
    }
    for (uint32_t i = 0; i < count; i++) good(cairn_init_done(jobs[i], NULL, TOY_WAIT_MS));
    for (uint32_t i = 0; i < count; i++) {
        us[i] = i;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, worker_thread, &us[i]), 0);
    }
    for (uint32_t i = 0; i < count; i++) pthread_join(threads[i], NULL);
    struct figures out = figures_of(getpid());
    out.step_us = us[0];
    for (uint32_t i = 0; i < count; i++) cairn_close(sessions[i]);
    rooms_close(&rooms);
    return out;
}

static void read_whole(int fd, struct figures *out)
{
    struct pollfd ready = { .fd = fd, .events = POLLIN };
    ck_assert_msg(poll(&ready, 1, CLUSTER_WAIT_MS) == 1, "a process says nothing");
    ck_assert_msg(read(fd, out, sizeof *out) == sizeof *out, "a process failed; see above");
}

static void write_whole(int fd, const struct figures *figures)
{
    if (write(fd, figures, sizeof *figures) != sizeof *figures) _exit(1);
}

TEST(in_memory_a_worker_more_costs_what_the_one_before_did)
{
    static const uint32_t sizes[] = { 2, 8, 32, 128 };
    struct figures figures[SIZES_MAX];
    for (int i = 0; i < 4; i++) {
        int said[2];
        ck_assert_int_eq(pipe(said), 0);
        const pid_t child = fork();
        if (child == 0) {
            const struct figures measured = measure_rooms(sizes[i]);
            write_whole(said[1], &measured);
            _exit(0);
        }
        close(said[1]);
        read_whole(said[0], &figures[i]);
        close(said[0]);
        ck_assert_int_eq(cluster_wait(child, CLUSTER_WAIT_MS), 0);
    }
    check_process("all, in one process", sizes, figures, 4);
    check_time(sizes, figures, 4);
}

/* ---- real processes ---- */

static struct cluster cluster;

/* The worker stays attached until `go_on` ends. */
static void run_worker(const char *fabric, uint32_t rank, uint32_t count, int say, int go_on)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = cluster.address,
                                     .fabric = fabric };
    cairn *session;
    char byte;
    good(cairn_open(&opts, &session));
    cairn_job *job = open_worker(session, rank, count);
    good(cairn_init_done(job, NULL, TOY_WAIT_MS));
    const double us = train(job);
    struct figures own = figures_of(getpid());
    own.step_us = us;
    write_whole(say, &own);
    if (read(go_on, &byte, 1) != 0) _exit(1);
    cairn_close(session);
    _exit(0);
}

struct processes {
    struct figures shard, coordinator, worker;
};

static struct processes measure_processes(const char *fabric, uint32_t count)
{
    pid_t workers[WORKERS_MAX];
    int said[2], go_on[2];
    struct processes out;
    cluster_start(&cluster, SHARDS, &(struct cluster_options) { .both_ways = true });
    ck_assert(pipe(said) == 0 && pipe(go_on) == 0); // not before: daemons would hold them open
    for (uint32_t i = 0; i < count; i++) {
        workers[i] = fork();
        ck_assert_int_ge(workers[i], 0);
        if (workers[i] != 0) continue;
        close(go_on[1]);
        run_worker(fabric, i, count, said[1], go_on[0]);
    }
    close(said[1]);
    for (uint32_t i = 0; i < count; i++) read_whole(said[0], &out.worker);
    out.shard = figures_of(cluster.shards[0]);
    out.coordinator = figures_of(cluster.coordinator);
    close(go_on[1]);
    for (uint32_t i = 0; i < count; i++)
        ck_assert_int_eq(cluster_wait(workers[i], CLUSTER_WAIT_MS), 0);
    close(said[0]);
    close(go_on[0]);
    cluster_stop(&cluster);
    return out;
}

TEST_EACH(of_real_processes_none_grows_faster_than_its_peers, 0, 2)
{
    static const char *const fabrics[] = { "sealed", "auto" };
    static const uint32_t sizes[] = { 2, 8, 32 };
    struct figures shard[3], coordinator[3], worker[3];
    for (int i = 0; i < 3; i++) {
        const struct processes all = measure_processes(fabrics[_i], sizes[i]);
        shard[i] = all.shard;
        coordinator[i] = all.coordinator;
        worker[i] = all.worker;
    }
    printf("growth: fabric %s\n", fabrics[_i]);
    check_process("a shard", sizes, shard, 3);
    check_process("the coordinator", sizes, coordinator, 3);
    check_process("a worker", sizes, worker, 3);
    check_time(sizes, worker, 3);
    // A worker has shards for peers, not workers.
    ck_assert_double_le(worker[2].descriptors, worker[0].descriptors + 4);
}

SUITE(110);
