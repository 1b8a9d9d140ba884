/* A job goes from 2 shards to 5, to 3, to 4 and so on, and from 1 worker to 3, to 2, while every member is
 * stopped for moments and workers are killed, all at random. Of one model the shards have keepers, and
 * daemons are killed, too, alone and together. The job has the content root of a run of one worker on one
 * shard that nobody disturbs, and no step was lost. CAIRN_TEST_LONG=1 makes 2,000 changes and 5,000 deaths
 * of daemons. */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/e2e/elastic_worker.h"
#include "tests/e2e/scene.h"
#include "tests/support/test_backend.h"

enum {
    CHANGES = 10 /* a model */,
    CHANGES_LONG = 1000,
    WORKERS = 3,
    STEPS_AFTER = 30,
    STEP_MS = 50, /* at most, in the mean */
    STEPS_BETWEEN = 3,
    KEPT = 1,   /* the model whose shards have keepers */
    DEATHS = 3, /* a change */
    TURN_MS = 20
};

struct storm {
    const struct elastic_model *model;
    struct elastic_shared *shared;
    pid_t workers[WORKERS];        /* 0: there is none */
    bool owns[CLUSTER_SHARDS_MAX]; /* the job is on it */
    int shards;                    /* that it is on */
    uint64_t seed;
    bool is_kept;
    unsigned kills, stops, deaths;
};

static uint64_t below(struct storm *s, uint64_t limit)
{
    return cairn_scratch_random(&s->seed) % limit;
}

static int changes(void)
{
    return getenv("CAIRN_TEST_LONG") != NULL ? CHANGES_LONG : CHANGES;
}

/* ---- what happens meanwhile ---- */

static void start_worker(struct storm *s, uint32_t rank)
{
    s->workers[rank] = elastic_start(cluster.address, s->model, rank, s->shared);
}

static int worker_count(const struct storm *s)
{
    int count = 0;
    for (int i = 0; i < WORKERS; i++) count += s->workers[i] != 0;
    return count;
}

static void workers_are_well(const struct storm *s)
{
    for (int i = 0; i < WORKERS; i++)
        if (s->workers[i] != 0) ck_assert_int_eq(cluster_wait(s->workers[i], 0), -1);
}

/* Comes, or is killed in whatever it does; one stays. */
static void change_worker(struct storm *s)
{
    const uint32_t rank = (uint32_t)below(s, WORKERS);
    if (s->workers[rank] == 0) {
        start_worker(s, rank);
    } else if (worker_count(s) > 1) {
        cluster_kill(s->workers[rank]);
        s->workers[rank] = 0;
        s->kills++;
    }
}

static void stop_for_a_moment(struct storm *s)
{
    const uint64_t members = 1 + WORKERS + CLUSTER_SHARDS_MAX, n = below(s, members);
    const pid_t pid = n == 0         ? cluster.coordinator
                      : n <= WORKERS ? s->workers[n - 1]
                                     : cluster.shards[n - 1 - WORKERS];
    if (pid == 0) return;
    const struct timespec moment = { .tv_nsec = (long)(1 + below(s, 40)) * 1000000 };
    kill(pid, SIGSTOP);
    nanosleep(&moment, NULL);
    kill(pid, SIGCONT);
    s->stops++;
}

static void stir(struct storm *s)
{
    workers_are_well(s);
    const uint64_t n = below(s, 4);
    if (n == 0) change_worker(s);
    if (n == 1) stop_for_a_moment(s);
}

/* Until the job is a few steps further, with what happens meanwhile. */
static void let_train(struct storm *s)
{
    const uint64_t begin = atomic_load(&s->shared->step);
    while (atomic_load(&s->shared->step) < begin + STEPS_BETWEEN) {
        nanosleep(&(struct timespec) { .tv_nsec = TURN_MS * 1000000L }, NULL);
        stir(s);
    }
}

/* ---- daemons that die ---- */

/* Is killed, or gives way to another process of its program. A crash of its own is judged otherwise: a
 * keeper does not hand state out again that a process has died of three times. */
static void end_shard(struct storm *s)
{
    static const int signals[] = { SIGKILL, SIGKILL, SIGKILL, SIGUSR2 };
    const int signal = signals[below(s, sizeof signals / sizeof *signals)];
    int shard;
    do shard = (int)below(s, CLUSTER_SHARDS_MAX);
    while (!s->owns[shard]);
    const pid_t process = cluster_shard_process(&cluster, shard);
    ck_assert_int_eq(kill(signal == SIGUSR2 ? cluster.shards[shard] : process, signal), 0);
    s->deaths++;
}

/* One of the daemons, or two at once: then a job goes on that only its shards know of. */
static void end_daemons(struct storm *s)
{
    const uint64_t begin = atomic_load(&s->shared->step), n = below(s, 4);
    if (n > 0) end_shard(s);
    if (n < 2) {
        restart_coordinator();
        s->deaths++;
    }
    while (atomic_load(&s->shared->step) < begin + 2) {
        nanosleep(&(struct timespec) { .tv_nsec = TURN_MS * 1000000L }, NULL);
        workers_are_well(s);
    }
}

/* ---- changes ---- */

/* The suite's time bounds it. */
static void end_command(struct storm *s, struct cluster_command *command)
{
    int status;
    while ((status = cluster_wait(command->pid, TURN_MS)) == -1) stir(s);
    cluster_cli_end(command, status, &said);
    expect_said(0);
}

/* `cairn reshard apply` of the job to its end, while things happen. */
static void apply(struct storm *s, const char *option, const char *shard)
{
    struct cluster_command command;
    cluster_cli_begin(&cluster, &command, "reshard apply %s %s %s -q", s->model->name, option,
                      shard);
    end_command(s, &command);
}

static void add_shard(struct storm *s)
{
    int shard = 0;
    char name[16];
    while (s->owns[shard]) shard++;
    snprintf(name, sizeof name, "shard-%d", shard);
    if (cluster.shards[shard] == 0) cluster_add_shard(&cluster, shard);
    apply(s, "--add", name);
    s->owns[shard] = true;
    s->shards++;
}

/* Its process ends, or stays and has nothing of the job. */
static void drain_any(struct storm *s)
{
    int shard;
    char name[16];
    do shard = (int)below(s, CLUSTER_SHARDS_MAX);
    while (!s->owns[shard]);
    snprintf(name, sizeof name, "shard-%d", shard);
    if (below(s, 2) == 0) {
        apply(s, "--drain", name);
    } else {
        struct cluster_command command;
        cluster_cli_begin(&cluster, &command, "member drain %s -q", name);
        end_command(s, &command);
        cluster_await_end_of_shard(&cluster, shard);
    }
    s->owns[shard] = false;
    s->shards--;
}

static void make_changes(struct storm *s)
{
    static const int goals[] = { 5, 3, 4, 2 };
    int made = 0;
    for (size_t g = 0; made < changes(); g = (g + 1) % (sizeof goals / sizeof *goals))
        for (; s->shards != goals[g] && made < changes(); made++) {
            if (s->shards < goals[g])
                add_shard(s);
            else
                drain_any(s);
            let_train(s);
            for (int i = 0; s->is_kept && i < DEATHS; i++) end_daemons(s);
        }
}

/* ---- runs ---- */

static void await_step(struct storm *s, uint64_t step)
{
    while (atomic_load(&s->shared->step) < step) {
        workers_are_well(s);
        nanosleep(&(struct timespec) { .tv_nsec = 2000000 }, NULL);
    }
}

static void end_workers(struct storm *s)
{
    const uint64_t left = atomic_load(&s->shared->until) - atomic_load(&s->shared->step);
    const int wait_ms = CLUSTER_WAIT_MS + (int)left * STEP_MS;
    for (int i = 0; i < WORKERS; i++)
        if (s->workers[i] != 0) ck_assert_int_eq(cluster_wait(s->workers[i], wait_ms), 0);
}

static void start_run(struct storm *s, const struct elastic_model *model, int shards,
                      uint64_t until, bool is_kept)
{
    *s = (struct storm) { .model = model, .shards = shards, .seed = 3, .is_kept = is_kept };
    s->shared = elastic_share();
    atomic_store(&s->shared->until, until);
    start(shards, .shards_kept = is_kept);
    for (int i = 0; i < shards; i++) s->owns[i] = true;
    start_worker(s, 0);
}

/* Published copies are read by those of this host where they lie; and no drain was in vain. */
static void nothing_is_warned_of(void)
{
    ck_assert_int_eq(logged("coordinator.log", "is not drained"), 0);
    for (int i = 0; i < cluster.shard_count; i++) {
        char log[32];
        snprintf(log, sizeof log, "shard-%d.log", i);
        ck_assert_int_eq(logged(log, "cannot be shared"), 0);
    }
}

static void end_run(struct storm *s, char root_out[CLUSTER_WORD_BYTES])
{
    end_workers(s);
    nothing_is_warned_of();
    word_of(root_out, "job digest -q %s", s->model->name);
    stop();
    munmap(s->shared, sizeof *s->shared);
}

TEST_EACH(whatever_changes_the_bits_are_those_of_an_undisturbed_run, 0, ELASTIC_MODELS)
{
    const struct elastic_model *model = &elastic_models[_i];
    static struct storm storm, calm;
    char root[CLUSTER_WORD_BYTES], root_of_calm[CLUSTER_WORD_BYTES];
    // a part on a device is not kept
    const bool is_kept = _i == KEPT && getenv("CAIRN_TEST_BACKENDS") == NULL &&
                         strcmp(cairn_test_backend(), "host") == 0;
    start_run(&storm, model, 2, UINT64_MAX, is_kept);
    await_step(&storm, 2);
    make_changes(&storm);
    const uint64_t until = atomic_load(&storm.shared->step) + STEPS_AFTER;
    atomic_store(&storm.shared->until, until);
    const uint64_t voided = atomic_load(&storm.shared->voided);
    ck_assert_uint_eq(atomic_load(&storm.shared->rolled_back), 0);
    end_run(&storm, root);

    start_run(&calm, model, 1, until, false);
    end_run(&calm, root_of_calm);
    printf(
        "note: %s: %d changes of shards, %u workers killed, %u members stopped, %u daemons ended, "
        "%" PRIu64 " void rounds, step %" PRIu64 "\n",
        model->name, changes(), storm.kills, storm.stops, storm.deaths, voided, until);
    ck_assert_str_eq(root, root_of_calm);
}

SUITE(getenv("CAIRN_TEST_LONG") != NULL ? 7200 : 120);
