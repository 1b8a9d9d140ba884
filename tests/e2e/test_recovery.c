/* How long training stands still after a loss: real processes on loopback. What is measured is printed; that
 * training goes on is held. Once, and with short leases; with CAIRN_TEST_LONG 100 times, and with
 * CAIRN_KILLS=N so often, with the default leases. */
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 10000, KILLS_MAX = 1000, LIMIT_MS = 30000 };

/* A worker in a process of its own; its letter comes when its first step is committed. */
struct second {
    pid_t pid;
    int first_step; /* the reading end of a pipe */
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* How often; 0: once, and quickly. */
static uint32_t kills(void)
{
    const char *asked = getenv("CAIRN_KILLS");
    const bool is_long = getenv("CAIRN_TEST_LONG") != NULL;
    const long count = asked != NULL ? atol(asked) : is_long ? 100 : 0;
    ck_assert(count >= 0 && count <= KILLS_MAX);
    return (uint32_t)count;
}

/* How many were in it; 0: it was void. */
static uint32_t try_step(const struct trainer *t)
{
    const struct cairn_round round = trainer_begin(t->job);
    tiny_push(t->job, &round, ELEMS, 1);
    const cairn_status status = trainer_try_commit(t->job, &round, NULL, 0, CLUSTER_WAIT_MS);
    ck_assert_msg(status == CAIRN_OK || status == CAIRN_ERR_EPOCH_CHANGED, "%s", cairn_error());
    return status == CAIRN_OK ? round.world : 0;
}

static void train_until_killed(int first_step)
{
    const struct trainer t = attach("tiny", TINY(ELEMS, .rank = 1));
    while (try_step(&t) == 0) {}
    if (write(first_step, "s", 1) != 1) _exit(1);
    for (;;) (void)try_step(&t);
}

static struct second start_second(void)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    const pid_t pid = fork_child();
    if (pid == 0) {
        close(ends[0]);
        train_until_killed(ends[1]);
    }
    close(ends[1]);
    return (struct second) { pid, ends[0] };
}

/* The first worker goes on until a step of so many workers is committed. */
static void train_until(const struct trainer *t, uint32_t world)
{
    while (try_step(t) != world) {}
}

static void end_second(struct second *second)
{
    close(second->first_step);
    cluster_kill(second->pid);
}

/* ---- what is measured, once; milliseconds ---- */

static double until_one_is_left(const struct trainer *t, int sent)
{
    struct second second = start_second();
    train_until(t, 2);
    const double begin = now();
    ck_assert_int_eq(kill(second.pid, sent), 0);
    train_until(t, 1);
    const double took = now() - begin;
    end_second(&second);
    return took;
}

static double after_a_kill(const struct trainer *t)
{
    return until_one_is_left(t, SIGKILL);
}

static double after_a_stop(const struct trainer *t)
{
    return until_one_is_left(t, SIGSTOP);
}

/* Of a worker that begins anew: from its fork to the first step that it is in. */
static double until_it_is_back(const struct trainer *t)
{
    const double begin = now();
    struct second second = start_second();
    char letter;
    train_until(t, 2);
    ck_assert_int_eq((int)read(second.first_step, &letter, 1), 1);
    const double took = now() - begin;
    end_second(&second);
    train_until(t, 1);
    return took;
}

/* With a new one, that is started at once. */
static double after_the_coordinator(const struct trainer *t)
{
    train_until(t, 1);
    const double begin = now();
    restart_coordinator();
    train_until(t, 1);
    return now() - begin;
}

/* Its keeper starts the next process, which goes on with the state that the one before left. */
static double after_a_shard(const struct trainer *t)
{
    train_until(t, 1);
    const double begin = now();
    ck_assert_int_eq(kill(cluster_shard_process(&cluster, 0), SIGKILL), 0);
    train_until(t, 1);
    return now() - begin;
}

/* ---- all of them ---- */

static const struct {
    const char *name;
    double (*once)(const struct trainer *t);
} figures[] = {
    { "a worker is killed, the next step", after_a_kill },
    { "a worker is stopped, the next step", after_a_stop },
    { "the coordinator is killed and started, the next step", after_the_coordinator },
    { "a shard is killed under its keeper, the next step", after_a_shard },
    { "a worker begins anew, its first step", until_it_is_back },
};

static int compare(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

TEST_EACH(training_goes_on_after, 0, sizeof figures / sizeof *figures)
{
    static double took_ms[KILLS_MAX];
    static const char *const quick[] = { "lease.heartbeat=100ms", "lease.timeout=1500ms", NULL };
    const uint32_t asked = kills(), count = asked > 0 ? asked : 1;
    start(1, .coordinator_set = asked > 0 ? NULL : quick, .shards_kept = true);
    const struct trainer t = attach("tiny", TINY(ELEMS));
    train_until(&t, 1);
    for (uint32_t i = 0; i < count; i++) took_ms[i] = figures[_i].once(&t);
    qsort(took_ms, count, sizeof *took_ms, compare);
    printf("%s: median %.0f ms, p99 %.0f ms, of %u\n", figures[_i].name, took_ms[count / 2],
           took_ms[(count * 99 + 99) / 100 - 1], count);
    fflush(stdout);
    ck_assert(took_ms[count - 1] < LIMIT_MS);
    cairn_close(t.session);
}

SUITE(3600, .tear_down = stop);
