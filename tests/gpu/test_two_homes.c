/* Jobs of one shard in two homes: when the card fails, those that have something there stop, and the others
 * go on, to the bits that they would have had without a card. */
#include <cairn.h>
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/emulated.h"
#include "tests/support/suite.h"
#include "tests/support/trainer.h"

enum { ELEMS = 9000, /* three chunks */ STEPS_MAX = 500, STEPS = 12 };

static const struct cairn_tensor model[] = { TRAINER_ONES("w", "u", ELEMS) };

static struct cluster cluster;
static cairn *session;

static void start(const char *backend)
{
    static const char *const few[] = { "lease.heartbeat=20ms", NULL };
    ck_assert_int_eq(setenv("CAIRN_TEST_BACKEND", backend, 1), 0);
    cluster_start(&cluster, 1, &(struct cluster_options) { .coordinator_set = few });
    session = trainer_session(cluster.address, NULL);
}

static void stop(void)
{
    cairn_close(session);
    cluster_stop(&cluster);
}

static cairn_status try_open(const char *name, double offload, cairn_job **job_out)
{
    struct cairn_job_spec spec = trainer_spec(model, 1);
    spec.offload_fraction = offload;
    spec.chunk_leaves = 1;
    return cairn_job_open(session, name, &spec, CAIRN_WORKER, CLUSTER_WAIT_MS, job_out);
}

/* The fault of the card that is to come after jobs are opened; NULL: none. */
static const char *opens_before;

static cairn_job *open_job(const char *name, double offload)
{
    static struct cluster_said said;
    cairn_job *job;
    if (try_open(name, offload, &job) != CAIRN_OK) {
        const char *why = cairn_error();
        cluster_cli(&cluster, &said, "cluster status"); // it counts launches
        ck_abort_msg("%s (the card: %s, which must come later)\n%s", why,
                     opens_before == NULL ? "no fault" : opens_before, said.out);
    }
    good(cairn_init_done(job, NULL, CLUSTER_WAIT_MS));
    return job;
}

static const float *gradient(void)
{
    static float elems[ELEMS];
    for (int i = 0; i < ELEMS; i++) elems[i] = (float)(i % 7) - 3;
    return elems;
}

static cairn_status step_with(cairn_job *job, struct cairn_mem mem)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_op *op = NULL;
    cairn_status status = cairn_round_begin(job, CLUSTER_WAIT_MS, &round);
    if (status == CAIRN_OK) status = cairn_push(job, &round, 0, "w", NULL, &mem, &op);
    if (status == CAIRN_OK)
        status = cairn_commit(job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result);
    if (op == NULL) return status;
    const cairn_status pushed = cairn_wait(op, CLUSTER_WAIT_MS);
    return status == CAIRN_OK ? pushed : status;
}

static cairn_status step(cairn_job *job)
{
    return step_with(job, trainer_mem(gradient(), CAIRN_F32));
}

/* To so many applied steps; the shard closes its connection when a job of it stops, which voids a round. */
static void train_with(cairn_job *job, struct cairn_mem mem, int from, int to)
{
    while (from < to) {
        const cairn_status status = step_with(job, mem);
        ck_assert_msg(status == CAIRN_OK || status == CAIRN_ERR_EPOCH_CHANGED, "%s", cairn_error());
        from += status == CAIRN_OK;
    }
}

static void train(cairn_job *job, int from, int to)
{
    train_with(job, trainer_mem(gradient(), CAIRN_F32), from, to);
}

static const char *const faults[] = { "ecc_at=150", "launch_fails=60", "lost_at=150" };

TEST_EACH(a_card_that_fails_stops_the_jobs_that_lie_there_and_no_other, 0, 3)
{
    char expected[65];
    cairn_job *other;
    start("host");
    train(open_job("beside", 1), 0, STEPS);
    trainer_digest(&cluster, "beside", expected);
    stop();

    emulated_choose(faults[_i]);
    start("cuda");
    opens_before = faults[_i];
    cairn_job *on_card = open_job("card", 0), *in_part = open_job("part", 0.5),
              *beside = open_job("beside", 1);
    train(beside, 0, 1);
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < STEPS_MAX && status == CAIRN_OK; i++) status = step(on_card);
    ck_assert_int_ne(status, CAIRN_OK);
    train(beside, 1, STEPS);
    trainer_expect_digest(&cluster, "beside", expected);
    ck_assert_int_ge(cluster_logged(&cluster, "shard-0.log", "job card is stopped here"), 1);
    ck_assert_int_ge(cluster_logged(&cluster, "shard-0.log", "job part is stopped here"), 1);
    ck_assert_int_eq(cluster_logged(&cluster, "shard-0.log", "job beside is stopped here"), 0);
    ck_assert_int_ne(step(in_part), CAIRN_OK);
    ck_assert_int_ne(try_open("new", 0, &other), CAIRN_OK);
    ck_assert_msg(strstr(cairn_error(), "CUDA") != NULL, "%s", cairn_error());
    train(open_job("another", 1), 0, 2);
    stop();
}

/* Nothing else is there: its supervisor starts it anew. */
TEST(a_shard_whose_card_fails_ends_with_a_status)
{
    emulated_choose("ecc_at=150");
    start("cuda");
    cairn_job *on_card = open_job("card", 0);
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < STEPS_MAX && status == CAIRN_OK; i++) status = step(on_card);
    ck_assert_int_ne(status, CAIRN_OK);
    ck_assert_int_eq(cluster_wait(cluster.shards[0], CLUSTER_WAIT_MS), status_exit(CAIRN_ERR_IO));
    cluster.shards[0] = 0;
    ck_assert_int_eq(cluster_logged(&cluster, "shard-0.log", "this shard is unfit and ends"), 1);
    stop();
}

/* What lies in host memory goes there while it trains, and the process ends as one that held no more. */
TEST(what_a_shard_whose_card_failed_serves_on_moves_to_the_next_one_that_comes)
{
    static struct cluster_said said;
    char expected[65];
    start("host");
    train(open_job("beside", 1), 0, STEPS);
    trainer_digest(&cluster, "beside", expected);
    stop();

    emulated_choose("ecc_at=150");
    start("cuda");
    cairn_job *on_card = open_job("card", 0), *beside = open_job("beside", 1);
    train(beside, 0, 1);
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < STEPS_MAX && status == CAIRN_OK; i++) status = step(on_card);
    ck_assert_int_ne(status, CAIRN_OK);
    train(beside, 1, 4);
    said.out[0] = '\0';
    for (int i = 0; i < 500 && strstr(said.out, "start another shard: ") == NULL; i++)
        cluster_cli(&cluster, &said, "cluster status --check");
    ck_assert_msg(said.status == 20 && strstr(said.out, "is unfit: ") != NULL, "%s", said.out);
    ck_assert_int_eq(setenv("CAIRN_TEST_BACKEND", "host", 1), 0);
    cluster_add_shard(&cluster, 1);
    ck_assert_int_eq(cluster_wait(cluster.shards[0], CLUSTER_WAIT_MS), status_exit(CAIRN_ERR_IO));
    cluster.shards[0] = 0;
    train(beside, 4, STEPS);
    trainer_expect_digest(&cluster, "beside", expected);
    stop();
}

/* The worker's card is another process's, and well. */
TEST(gradients_on_a_card_that_has_failed_for_their_shard_pass_the_host)
{
    char expected[65];
    start("host");
    train(open_job("beside", 1), 0, STEPS);
    trainer_digest(&cluster, "beside", expected);
    stop();

    emulated_choose("ecc_at=150");
    start("cuda");
    emulated_choose("quiet=1");
    const struct emulated card = emulated_open("quiet=1");
    struct emulated_memory memory = emulated_alloc(&card, 2 << 20);
    struct cairn_mem mem = trainer_mem((void *)(uintptr_t)memory.at, CAIRN_F32);
    mem.device = CAIRN_GPU(0);
    ck_assert_int_eq(card.driver.cuMemcpyHtoDAsync(memory.at, gradient(), ELEMS * 4, NULL), 0);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(NULL), 0);
    cairn_job *on_card = open_job("card", 0), *beside = open_job("beside", 1);
    train_with(beside, mem, 0, 1);
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < STEPS_MAX && status == CAIRN_OK; i++) status = step(on_card);
    ck_assert_int_ne(status, CAIRN_OK);
    train_with(beside, mem, 1, STEPS);
    trainer_expect_digest(&cluster, "beside", expected);
    ck_assert_int_ge(cluster_logged(&cluster, "shard-0.log", "goes through the host from now on"),
                     1);
    emulated_free(&card, &memory);
    stop();
}

TEST(a_call_that_the_driver_refuses_stops_the_job_that_needed_it_and_no_other_of_the_card)
{
    emulated_choose("call_fails=60,result=1");
    start("cuda");
    cairn_job *hit = open_job("hit", 0), *beside = open_job("beside", 0);
    train(beside, 0, 1);
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < STEPS_MAX && status == CAIRN_OK; i++) status = step(hit);
    ck_assert_int_ne(status, CAIRN_OK);
    train(beside, 1, STEPS);
    ck_assert_int_ge(cluster_logged(&cluster, "shard-0.log", "job hit is stopped here"), 1);
    ck_assert_int_eq(cluster_logged(&cluster, "shard-0.log", "job beside is stopped here"), 0);
    stop();
}

SUITE(60);
