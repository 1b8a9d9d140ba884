/* Who is slow: `cairn job top` of a job in which one worker computes for longer than the others, and
 * --watch. */
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/e2e/scene.h"

enum { SHARDS = 2, WORKERS = 3, SLOW = 1, STEPS = 9, COMPUTE_MS = 4, SLOW_MS = 60, ELEMS = 40000 };

static struct worker {
    pthread_t thread;
    uint32_t rank;
    cairn *session;
    cairn_job *job;
} workers[WORKERS];

static void open_worker(struct worker *w)
{
    w->session = trainer_session(cluster.address, NULL);
    w->job = trainer_open(w->session, "slow",
                          &TINY(ELEMS, .rank = w->rank, .workers_min = WORKERS)->spec);
}

static cairn_status step(struct worker *w, float *values)
{
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    struct cairn_round round = { .struct_size = sizeof round };
    cairn_status status = cairn_round_begin(w->job, CLUSTER_WAIT_MS, &round);
    if (status == CAIRN_OK)
        status = trainer_try_fetch(w->job, round.version, "w", NULL, CAIRN_F32, values);
    usleep((w->rank == SLOW ? SLOW_MS : COMPUTE_MS) * 1000); // it computes
    if (status == CAIRN_OK) status = cairn_push(w->job, &round, 0, "w", NULL, &mem, NULL);
    return status == CAIRN_OK ? trainer_try_commit(w->job, &round, NULL, 0, CLUSTER_WAIT_MS)
                              : status;
}

/* Check's asserts are the test thread's. */
static void *train_rank(void *arg)
{
    struct worker *w = arg;
    void *values = NULL;
    cairn_status status = cairn_alloc(w->session, ELEMS * sizeof(float), 0, &values);
    if (status == CAIRN_OK) status = cairn_init_done(w->job, NULL, CLUSTER_WAIT_MS);
    for (int i = 0; i < STEPS && status == CAIRN_OK; i++) status = step(w, values);
    return (void *)(intptr_t)status;
}

static void train_all(void)
{
    for (uint32_t i = 0; i < WORKERS; i++) {
        workers[i].rank = i;
        open_worker(&workers[i]);
        ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, train_rank, &workers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) {
        void *status;
        ck_assert(pthread_join(workers[i].thread, &status) == 0 && (intptr_t)status == CAIRN_OK);
    }
}

static void set_up(void)
{
    start(SHARDS, .coordinator_set = SETTINGS("lease.heartbeat=20ms"));
}

static void tear_down(void)
{
    for (int i = 0; i < WORKERS; i++)
        if (workers[i].session != NULL) cairn_close(workers[i].session);
    stop();
}

static double of(const char *list, uint32_t number, const char *key)
{
    char path[64];
    snprintf(path, sizeof path, "%s.%u.%s", list, number, key);
    return said_real(path);
}

static void check_worker(uint32_t rank)
{
    ck_assert_uint_eq((uint32_t)of("workers", rank, "rank"), rank);
    ck_assert_int_eq((int)of("workers", rank, "steps"), STEPS - 1);
    ck_assert_int_eq((int)of("workers", rank, "slowest"), rank == SLOW);
    ck_assert_double_ge(of("workers", rank, "compute_ms"), rank == SLOW ? SLOW_MS : COMPUTE_MS);
    // A step takes as long for each of them: whoever is quick waits, or pushes behind the slow one.
    ck_assert_double_ge(of("workers", rank, "step_ms"), SLOW_MS);
    const double waits = of("workers", rank, "wait_ms") + of("workers", rank, "push_ms");
    if (rank != SLOW) ck_assert_double_ge(waits, (SLOW_MS - COMPUTE_MS) / 2.0);
    ck_assert_double_ge(of("workers", rank, "fetch_ms"), 0);
    ck_assert_double_ge(of("workers", rank, "memory_bytes"), ELEMS * sizeof(float));
}

TEST(the_worker_that_computes_slowly_is_marked)
{
    train_all();
    await((ask("job top slow -o json"), // bytes come with heartbeats, those of the last step later
           said_number("workers.0.pushed_per_step") == (int64_t)(ELEMS * sizeof(float))));
    says(0, "(rank 1), by its compute", "job show slow");
    ck_assert_uint_eq(said_count("workers"), WORKERS);
    for (uint32_t i = 0; i < WORKERS; i++) check_worker(i);
    ck_assert_uint_eq(said_count("shards"), SHARDS);
    for (uint32_t i = 0; i < SHARDS; i++) {
        ck_assert_int_eq((int)of("shards", i, "steps"), STEPS);
        ck_assert_double_ge(of("shards", i, "collect_ms"), SLOW_MS / 2.0); // it waited, too
        ck_assert_double_gt(of("shards", i, "fold_ms") + of("shards", i, "update_ms"), 0);
        ck_assert_double_ge(of("shards", i, "publish_ms"), 0);
        ck_assert_double_gt(of("shards", i, "memory_bytes"), 0);
    }

    ask("job top --once slow");
    expect_said(0);
    char *mark = strstr(said.out, "<- slowest");
    ck_assert_ptr_nonnull(mark);
    while (mark > said.out && mark[-1] != '\n') mark--;
    ck_assert_int_eq(strtol(mark, NULL, 10), SLOW);
}

TEST(what_was_not_told_is_not_shown_as_0)
{
    open_worker(&workers[0]);
    ask("job top slow -o json");
    json_t *top = json_loads(said.out, 0, NULL);
    const json_t *worker = json_array_get(json_object_get(top, "workers"), 0);
    ck_assert_msg(json_is_null(json_object_get(worker, "memory_bytes")), "%s", said.out);
    json_decref(top);
    ask("job top --once slow");
    expect_said(0, "MEMORY");
    ck_assert_msg(strstr(strstr(said.out, "MEMORY"), " - ") != NULL, "%s", said.out);
}

/* How often the text is there. */
static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at += strlen(what)) n++;
    return n;
}

TEST(watched_lists_are_printed_again_until_they_are_interrupted)
{
    struct cluster_command list;
    cluster_cli_begin(&cluster, &list, "job list --watch 0.01");
    await(count(cluster_cli_printed(&list), "GENERATION") >= 3);
    kill(list.pid, SIGINT);
    cluster_cli_end(&list, cluster_wait(list.pid, CLUSTER_WAIT_MS), &said);
    expect_said(130, "\n\nJOB "); // no terminal: an empty line between
    ck_assert_ptr_null(strchr(said.out, '\033'));
    ask("job show --watch 1 nothing");
    expect_said(said.status, "does not take --watch");
}

/* It is the program by now, and has a handler of SIGINT. */
static bool has_handler(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    const char *text = cluster_text(path), *caught = strstr(text, "SigCgt:");
    return strncmp(text, "Name:\tcairn\n", 12) == 0 && caught != NULL &&
           (strtoul(caught + 7, NULL, 16) >> (SIGINT - 1) & 1) != 0;
}

TEST(what_is_watched_is_interrupted_while_the_coordinator_hangs)
{
    struct cluster_command list;
    cluster_freeze(cluster.coordinator);
    cluster_cli_begin(&cluster, &list, "job list --watch");
    await(has_handler(list.pid));
    kill(list.pid, SIGINT);
    const int status = cluster_wait(list.pid, 5000);
    kill(cluster.coordinator, SIGCONT);
    if (status == -1) cluster_kill(list.pid);
    ck_assert_int_eq(status, 130);
}

SUITE(60, set_up, tear_down);
