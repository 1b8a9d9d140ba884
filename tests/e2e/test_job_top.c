/* Who is slow: `cairn job top` of a job in which one worker computes for longer than the others, and
 * --watch. */
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/scene.h"

enum { SHARDS = 2, WORKERS = 3, SLOW = 1, STEPS = 9, COMPUTE_MS = 4, SLOW_MS = 60, ELEMS = 40000 };

static const struct cairn_tensor model = TRAINER_MATRIX("w", "w", 200, 200, 1);

struct worker {
    pthread_t thread;
    uint32_t rank;
    cairn *session;
    cairn_job *job;
};
static struct worker workers[WORKERS];

static void open_worker(struct worker *w)
{
    const struct cairn_job_spec spec = TRAINER_SPEC(&model, 1, .rank = w->rank,
                                                    .workers_min = WORKERS);
    w->session = trainer_session(cluster.address, NULL);
    w->job = trainer_open(w->session, "slow", &spec);
}

static cairn_status step(struct worker *w, float *values)
{
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    struct cairn_round round = { .struct_size = sizeof round };
    cairn_op *op;
    cairn_status status = cairn_round_begin(w->job, CLUSTER_WAIT_MS, &round);
    if (status == CAIRN_OK) status = cairn_fetch(w->job, round.version, "w", NULL, NULL, &mem, &op);
    if (status == CAIRN_OK) status = cairn_wait(op, CLUSTER_WAIT_MS);
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
        ck_assert_int_eq(pthread_join(workers[i].thread, &status), 0);
        ck_assert_int_eq((intptr_t)status, CAIRN_OK);
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

static double real(const json_t *entry, const char *key)
{
    const json_t *value = json_object_get(entry, key);
    ck_assert_msg(json_is_number(value), "%s: %s", key, said.out);
    return json_number_value(value);
}

static void check_worker(const json_t *entry, uint32_t rank)
{
    ck_assert_int_eq(json_integer_value(json_object_get(entry, "rank")), rank);
    ck_assert_int_eq(json_integer_value(json_object_get(entry, "steps")), STEPS - 1);
    ck_assert_msg(json_is_true(json_object_get(entry, "slowest")) == (rank == SLOW), "%s",
                  said.out);
    ck_assert_double_ge(real(entry, "compute_ms"), rank == SLOW ? SLOW_MS : COMPUTE_MS);
    // A step takes as long for each of them: whoever is quick waits, or pushes behind the slow one.
    ck_assert_double_ge(real(entry, "step_ms"), SLOW_MS);
    const double waits = real(entry, "wait_ms") + real(entry, "push_ms");
    if (rank != SLOW) ck_assert_double_ge(waits, (SLOW_MS - COMPUTE_MS) / 2.0);
    ck_assert_double_ge(real(entry, "fetch_ms"), 0);
    ck_assert_double_ge(real(entry, "memory_bytes"), ELEMS * sizeof(float));
}

/* Bytes come with heartbeats, those of the last step perhaps later. */
static json_t *await_bytes(void)
{
    for (int tries = 0; tries < 1000; tries++) {
        ask("job top slow -o json");
        expect_said(0);
        json_t *top = json_loads(said.out, 0, NULL);
        const json_t *first = json_array_get(json_object_get(top, "workers"), 0);
        const json_t *bytes = json_object_get(first, "pushed_per_step");
        if (json_real_value(bytes) == (double)ELEMS * sizeof(float)) return top;
        json_decref(top);
    }
    ck_abort_msg("never told: %s", said.out);
    return NULL;
}

TEST(the_worker_that_computes_slowly_is_marked)
{
    train_all();
    json_t *top = await_bytes();
    const json_t *list = json_object_get(top, "workers"), *shards = json_object_get(top, "shards");
    ck_assert_uint_eq(json_array_size(list), WORKERS);
    says(0, "(rank 1), by its compute", "job show slow");
    for (uint32_t i = 0; i < WORKERS; i++) check_worker(json_array_get(list, i), i);
    ck_assert_uint_eq(json_array_size(shards), SHARDS);
    for (size_t i = 0; i < SHARDS; i++) {
        const json_t *shard = json_array_get(shards, i);
        ck_assert_int_eq(json_integer_value(json_object_get(shard, "steps")), STEPS);
        ck_assert_double_ge(real(shard, "collect_ms"), SLOW_MS / 2.0); // it waited, too
        ck_assert_double_gt(real(shard, "fold_ms") + real(shard, "update_ms"), 0);
        ck_assert_double_ge(real(shard, "publish_ms"), 0);
        ck_assert_int_gt(json_integer_value(json_object_get(shard, "memory_bytes")), 0);
    }
    json_decref(top);

    ask("job top --once slow");
    expect_said(0);
    char *mark = strstr(said.out, "<- slowest");
    ck_assert_msg(mark != NULL, "%s", said.out);
    while (mark > said.out && mark[-1] != '\n') mark--;
    ck_assert_int_eq(strtol(mark, NULL, 10), SLOW);
}

TEST(what_was_not_told_is_not_shown_as_0)
{
    open_worker(&workers[0]);
    ask("job top slow -o json");
    expect_said(0);
    json_t *top = json_loads(said.out, 0, NULL);
    const json_t *worker = json_array_get(json_object_get(top, "workers"), 0);
    ck_assert_msg(json_is_null(json_object_get(worker, "memory_bytes")), "%s", said.out);
    json_decref(top);
    ask("job top --once slow");
    ck_assert_msg(strstr(said.out, "MEMORY") != NULL, "%s", said.out);
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
    kill(cluster.coordinator, SIGSTOP);
    cluster_cli_begin(&cluster, &list, "job list --watch");
    await(has_handler(list.pid));
    kill(list.pid, SIGINT);
    const int status = cluster_wait(list.pid, 5000);
    kill(cluster.coordinator, SIGCONT);
    if (status == -1) cluster_kill(list.pid);
    ck_assert_int_eq(status, 130);
}

SUITE(60, set_up, tear_down);
