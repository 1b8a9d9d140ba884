/* How a session and a job end while something is under way, and what they refuse: real daemons, some of
 * them stopped. */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "tests/support/now.h"
#include "tests/e2e/scene.h"

enum { ELEMS = 2 << 20 };

static cairn_status open_job(uint32_t workers_min, int timeout_ms, cairn_job **out)
{
    struct tiny_job *tiny = TINY(ELEMS, .workers_min = workers_min, .chunk_leaves = 16,
                                 .window = 4);
    tiny->tensor.init.kind = CAIRN_INIT_NONE;
    return cairn_job_open(session, "tiny", &tiny->spec, CAIRN_WORKER, timeout_ms, out);
}

static void initialize(cairn_job *of, float *values)
{
    trainer_put(of, "w", values);
    good(cairn_init_done(of, NULL, CLUSTER_WAIT_MS));
}

/* The shard has what was sent to it unread, and a fetch may be half received. */
TEST(closing_a_session_does_not_wait_for_a_stopped_shard)
{
    start(2);
    float *values = calloc(ELEMS, sizeof *values), *copy = calloc(ELEMS, sizeof *copy);
    session = trainer_session(cluster.address, NULL);
    cairn_op *fetch;
    good(open_job(1, CLUSTER_WAIT_MS, &job));
    initialize(job, values);
    const struct cairn_round round = trainer_begin(job);
    const struct cairn_mem to = trainer_mem(copy, CAIRN_F32);
    const struct cairn_mem from = trainer_mem(values, CAIRN_F32);
    good(cairn_fetch(job, round.version, "w", NULL, NULL, &to, &fetch));
    cluster_freeze(cluster.shards[1]);
    good(cairn_push(job, &round, 0, "w", NULL, &from, NULL));
    const int64_t begin_ms = now_ms();
    leave();
    const int64_t took_ms = now_ms() - begin_ms;
    free(values);
    free(copy);
    kill(cluster.shards[1], SIGCONT);
    ck_assert_msg(took_ms < 2000, "it took %" PRIu64 " ms", took_ms);
    const cairn_status fetched = cairn_wait(fetch, 0); // all had arrived, or not
    ck_assert_msg(fetched == CAIRN_OK || fetched == CAIRN_ERR_CANCELED, "%d", (int)fetched);
}

static const char *const kinds[] = { "fabric.kind=auto", "fabric.kind=ucx", "fabric.kind=stream" };
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Buffers that are on their way to a stopped shard, or half received from it, hold up nobody whose job is
 * lost meanwhile. The job is restored onto the other shard. */
TEST_EACH(a_wait_for_a_stopped_shard_ends_when_the_job_is_lost, 0, KINDS)
{
    start(2,
          .coordinator_set = SETTINGS("cluster.shards=1", "lease.heartbeat=100ms",
                                      "lease.timeout=600ms"),
          .shard_set = SETTINGS(kinds[_i], "fabric.trust=yes", "memory.limit=512MiB"));
    float *values = calloc(ELEMS, sizeof *values), *copy = calloc(ELEMS, sizeof *copy);
    session = trainer_session(cluster.address, NULL);
    cairn_op *ops[2];
    good(open_job(1, CLUSTER_WAIT_MS, &job));
    initialize(job, values);
    says(0, "", "reshard apply tiny --add shard-1");
    await_said("\"shards_after\": 2", "reshard status tiny -o json");
    says(0, "", "snapshot create tiny --wait");
    says(0, "", "job amend tiny --on-shard-loss restore-latest --shard-loss-wait 1");
    const struct cairn_round round = trainer_begin(job);
    const struct cairn_mem to = trainer_mem(copy, CAIRN_F32);
    const struct cairn_mem from = trainer_mem(values, CAIRN_F32);
    good(cairn_fetch(job, round.version, "w", NULL, NULL, &to, &ops[0]));
    cluster_freeze(cluster.shards[1]);
    good(cairn_push(job, &round, 0, "w", NULL, &from, &ops[1]));
    const int64_t begin_ms = now_ms();
    const cairn_status pushed = cairn_wait(ops[1], CLUSTER_WAIT_MS);
    const cairn_status fetched = cairn_wait(ops[0], CLUSTER_WAIT_MS); // all had arrived, or not
    const int64_t took_ms = now_ms() - begin_ms;
    kill(cluster.shards[1], SIGCONT);
    ck_assert_int_eq(pushed, CAIRN_ERR_ROLLED_BACK);
    ck_assert_msg(fetched == CAIRN_OK || fetched == CAIRN_ERR_ROLLED_BACK, "%d", (int)fetched);
    ck_assert_msg(took_ms < 1600 + 3000, "it took %" PRIu64 " ms", took_ms);
    leave();
    free(values);
    free(copy);
}

struct waiter {
    pthread_t thread;
    cairn_job *job;
    cairn_status status;
};

static void *wait_for_a_round(void *arg)
{
    struct waiter *waiter = arg;
    struct cairn_round round = { .struct_size = sizeof round };
    waiter->status = cairn_round_begin(waiter->job, CLUSTER_WAIT_MS, &round);
    return NULL;
}

static void close_beside_a_waiter(bool whole_session)
{
    start(1);
    float *values = calloc(ELEMS, sizeof *values);
    session = trainer_session(cluster.address, NULL);
    struct waiter waiter = { .status = CAIRN_OK };
    good(open_job(2, CLUSTER_WAIT_MS, &waiter.job));
    initialize(waiter.job, values);
    ck_assert_int_eq(pthread_create(&waiter.thread, NULL, wait_for_a_round, &waiter), 0);
    // Behind it, so that mostly the coordinator has its question by then.
    (void)newest(waiter.job);
    const int64_t begin_ms = now_ms();
    if (whole_session)
        leave();
    else
        cairn_job_close(waiter.job);
    pthread_join(waiter.thread, NULL);
    ck_assert_msg(now_ms() - begin_ms < 3000, "the waiting thread was left to its deadline");
    ck_assert_msg(waiter.status == CAIRN_ERR_CANCELED || waiter.status == CAIRN_ERR_HANDLE ||
                      waiter.status == CAIRN_ERR_CLOSED,
                  "it heard %d", (int)waiter.status);
    stop();
    free(values);
}

TEST(a_waiting_thread_hears_that_its_job_is_closed)
{
    close_beside_a_waiter(false);
}

TEST(a_waiting_thread_hears_that_its_session_is_closed)
{
    close_beside_a_waiter(true);
}

/* The coordinator must not take the first request's member for a worker. */
TEST(a_job_given_up_while_it_was_opened_can_be_opened_again)
{
    start(2);
    float *values = calloc(ELEMS, sizeof *values);
    session = trainer_session(cluster.address, NULL);
    cluster_freeze(cluster.shards[0]); // nobody can attach
    ck_assert_int_eq(open_job(1, 100, &job), CAIRN_ERR_TIMEOUT);
    kill(cluster.shards[0], SIGCONT);
    good(open_job(1, CLUSTER_WAIT_MS, &job));
    initialize(job, values);
    const struct cairn_round round = trainer_begin(job);
    ck_assert_uint_eq(round.world, 1);
    stop();
    free(values);
}

TEST(sessions_open_and_close_again_and_again)
{
    start(1);
    for (int i = 0; i < 10; i++) {
        session = trainer_session(cluster.address, NULL);
        good(open_job(1, CLUSTER_WAIT_MS, &job));
        if (i % 2 == 0) cairn_job_close(job);
        leave();
    }
}

TEST(what_is_done_twice_is_refused)
{
    start(1);
    float *values = calloc(ELEMS, sizeof *values);
    session = trainer_session(cluster.address, NULL);
    cairn_job *again;
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    good(open_job(1, CLUSTER_WAIT_MS, &job));
    ck_assert_int_eq(open_job(1, CLUSTER_WAIT_MS, &again), CAIRN_ERR_EXISTS);
    initialize(job, values);
    for (uint32_t step = 1; step <= 2; step++) {
        good(cairn_round_begin(job, CLUSTER_WAIT_MS, &round));
        for (uint32_t micro = 0; micro < 3; micro++) {
            good(cairn_push(job, &round, micro, "w", NULL, &mem, NULL));
            ck_assert_int_eq(cairn_push(job, &round, micro, "w", NULL, &mem, NULL),
                             CAIRN_ERR_EXISTS);
            good(cairn_micro_end(job, &round, micro));
        }
        good(cairn_commit(job, &round, 0, NULL, 0, CLUSTER_WAIT_MS, &result));
        ck_assert_uint_eq(result.step, step);
    }
    // A round without a push ends, too; committed again it is known.
    good(cairn_round_begin(job, CLUSTER_WAIT_MS, &round));
    good(cairn_commit(job, &round, 0, NULL, 0, CLUSTER_WAIT_MS, &result));
    good(cairn_commit(job, &round, 0, NULL, 0, CLUSTER_WAIT_MS, &result));
    ck_assert_uint_eq(result.step, 3);
    stop();
    free(values);
}

SUITE(90, .tear_down = stop);
