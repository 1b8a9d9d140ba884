/* A worker in a pause, as the others' calls of the C interface see it: real daemons, two sessions here. */
#include <pthread.h>
#include <semaphore.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 4096, SHORT_MS = 1000, PAUSE_MS = 60000 };

static cairn *sessions[2];
static cairn_job *jobs[2];

/* What the second worker hears while it waits. */
static sem_t waited;
static bool goes_on;
static char heard[512];

static bool on_wait(void *context, const char *of, const char *text, int paused_ms)
{
    ck_assert_ptr_eq(context, &waited);
    ck_assert_str_eq(of, "paused");
    ck_assert_int_gt(paused_ms, 0);
    ck_assert_int_le(paused_ms, PAUSE_MS);
    snprintf(heard, sizeof heard, "%s", text);
    sem_post(&waited);
    return goes_on;
}

static void open_worker(uint32_t rank)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = cluster.address,
                                     .name = rank == 0 ? "first" : "second",
                                     .on_wait = rank == 1 ? on_wait : NULL,
                                     .on_wait_context = &waited };
    good(cairn_open(&opts, &sessions[rank]));
    jobs[rank] = tiny_open(sessions[rank], "paused",
                           TINY(ELEMS, .rank = rank, .workers_min = 2, .workers_max = 2));
}

static void set_up(void)
{
    start(1);
    sem_init(&waited, 0, 0);
    open_worker(0);
    open_worker(1);
}

static void tear_down(void)
{
    cairn_close(sessions[0]);
    cairn_close(sessions[1]);
    stop();
}

static cairn_status step(cairn_job *of, int timeout_ms)
{
    static float gradient[ELEMS];
    const struct cairn_mem mem = trainer_mem(gradient, CAIRN_F32);
    struct cairn_round round = { .struct_size = sizeof round };
    cairn_status status = cairn_round_begin(of, timeout_ms, &round);
    if (status == CAIRN_OK) status = cairn_push(of, &round, 0, "w", NULL, &mem, NULL);
    return status == CAIRN_OK ? trainer_try_commit(of, &round, NULL, 0, timeout_ms) : status;
}

static cairn_status second_status;
static char second_error[512];
static void *second_steps(void *arg)
{
    (void)arg;
    second_status = step(jobs[1], SHORT_MS);
    snprintf(second_error, sizeof second_error, "%s", cairn_error());
    return NULL;
}

TEST(calls_wait_beyond_their_time_and_say_for_whom)
{
    pthread_t second;
    goes_on = true;
    good(cairn_pause(jobs[0], "evaluating", PAUSE_MS, CLUSTER_WAIT_MS));
    pthread_create(&second, NULL, second_steps, NULL);
    for (int i = 0; i < 3; i++) sem_wait(&waited);
    good(cairn_pause_end(jobs[0], CLUSTER_WAIT_MS));
    good(step(jobs[0], CLUSTER_WAIT_MS));
    pthread_join(second, NULL);
    ck_assert_msg(second_status == CAIRN_OK, "%s", second_error);
    ck_assert_ptr_nonnull(strstr(heard, "worker first of rank 0, which is evaluating"));
    good(cairn_pause_end(jobs[0], CLUSTER_WAIT_MS)); // there is none
}

TEST(who_does_not_want_to_wait_has_its_timeout)
{
    goes_on = false;
    good(cairn_pause(jobs[0], "evaluating", PAUSE_MS, CLUSTER_WAIT_MS));
    (void)second_steps(NULL);
    ck_assert_int_eq(second_status, CAIRN_ERR_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(second_error, "which is evaluating"));
}

TEST(a_pause_that_was_not_to_be_is_none_later)
{
    struct cairn_round rounds[2] = { { .struct_size = sizeof rounds[0] },
                                     { .struct_size = sizeof rounds[1] } };
    goes_on = false;
    kill_coordinator();
    ck_assert_int_eq(cairn_pause(jobs[0], "evaluating", PAUSE_MS, SHORT_MS), CAIRN_ERR_TIMEOUT);
    restart_coordinator();
    for (int i = 1; i >= 0; i--) good(cairn_round_begin(jobs[i], CLUSTER_WAIT_MS, &rounds[i]));
    ck_assert_int_eq(trainer_try_commit(jobs[1], &rounds[1], NULL, 0, SHORT_MS), CAIRN_ERR_TIMEOUT);
    ck_assert_ptr_null(strstr(cairn_error(), "which is evaluating"));
}

SUITE(60, set_up, tear_down);
