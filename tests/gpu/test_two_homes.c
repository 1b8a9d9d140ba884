/* Jobs of one shard in two homes: when the card fails, those that have something there stop, and the others
 * go on, to the bits that they would have had without a card. */
#include "tests/gpu/card.h"

enum { ELEMS = 9000, /* three chunks */ STEPS_MAX = 500, STEPS = 12 };

static const struct cairn_tensor model[] = { TRAINER_ONES("w", "u", ELEMS) };

static void start_one(const char *backend)
{
    start_on(backend, 1, .coordinator_set = SETTINGS("lease.heartbeat=20ms"));
    session = trainer_session(cluster.address, NULL);
}

/* The fault comes after jobs are opened. */
static void start_faulty(const char *fault)
{
    card_options = fault;
    start_one("cuda");
}

static cairn_status try_open(const char *name, double offload, cairn_job **job_out)
{
    const struct cairn_job_spec spec = TRAINER_SPEC(model, 1, .offload_fraction = offload,
                                                    .chunk_leaves = 1);
    return cairn_job_open(session, name, &spec, CAIRN_WORKER, CLUSTER_WAIT_MS, job_out);
}

static cairn_job *open_job(const char *name, double offload)
{
    cairn_job *opened;
    if (try_open(name, offload, &opened) != CAIRN_OK) {
        const char *why = cairn_error();
        ask("cluster status"); // it counts launches
        ck_abort_msg("%s (the card: %s, which must come later)\n%s", why, card_options, said.out);
    }
    good(cairn_init_done(opened, NULL, CLUSTER_WAIT_MS));
    return opened;
}

static const float *gradient(void)
{
    static float elems[ELEMS];
    for (int i = 0; i < ELEMS; i++) elems[i] = (float)(i % 7) - 3;
    return elems;
}

static cairn_status step_with(cairn_job *of, struct cairn_mem mem)
{
    struct cairn_round round = { .struct_size = sizeof round };
    cairn_op *op = NULL;
    cairn_status status = cairn_round_begin(of, CLUSTER_WAIT_MS, &round);
    if (status == CAIRN_OK) status = cairn_push(of, &round, 0, "w", NULL, &mem, &op);
    if (status == CAIRN_OK) status = trainer_try_commit(of, &round, NULL, 0, CLUSTER_WAIT_MS);
    if (op == NULL) return status;
    const cairn_status pushed = cairn_wait(op, CLUSTER_WAIT_MS);
    return status == CAIRN_OK ? pushed : status;
}

/* To so many applied steps; the shard closes its connection when a job of it stops, which voids a round. */
static void train_from(cairn_job *of, struct cairn_mem mem, int from, int to)
{
    while (from < to) {
        const cairn_status status = step_with(of, mem);
        ck_assert_msg(status == CAIRN_OK || status == CAIRN_ERR_EPOCH_CHANGED, "%s", cairn_error());
        from += status == CAIRN_OK;
    }
}

static void train_to(cairn_job *of, int from, int to)
{
    train_from(of, trainer_mem(gradient(), CAIRN_F32), from, to);
}

/* Until the card fails. */
static void train_until_it_fails(cairn_job *of)
{
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < STEPS_MAX && status == CAIRN_OK; i++)
        status = step_with(of, trainer_mem(gradient(), CAIRN_F32));
    ck_assert_int_ne(status, CAIRN_OK);
}

/* The root that "beside" has after STEPS where there is no card. */
static void root_without_card(char root_out[65])
{
    start_one("host");
    train_to(open_job("beside", 1), 0, STEPS);
    trainer_digest(&cluster, "beside", root_out);
    stop();
}

/* It ends by itself, as one that held no more. */
static void await_unfit(void)
{
    ck_assert_int_eq(cluster_wait(cluster.shards[0], CLUSTER_WAIT_MS), status_exit(CAIRN_ERR_IO));
    cluster.shards[0] = 0;
}

static const char *const faults[] = { "ecc_at=150", "launch_fails=60", "lost_at=150" };

TEST_EACH(a_card_that_fails_stops_the_jobs_that_lie_there_and_no_other, 0, 3)
{
    char expected[65];
    cairn_job *other;
    root_without_card(expected);
    start_faulty(faults[_i]);
    cairn_job *on_card = open_job("card", 0), *in_part = open_job("part", 0.5),
              *beside = open_job("beside", 1);
    train_to(beside, 0, 1);
    train_until_it_fails(on_card);
    train_to(beside, 1, STEPS);
    trainer_expect_digest(&cluster, "beside", expected);
    ck_assert_int_ge(logged("shard-0.log", "job card is stopped here"), 1);
    ck_assert_int_ge(logged("shard-0.log", "job part is stopped here"), 1);
    ck_assert_int_eq(logged("shard-0.log", "job beside is stopped here"), 0);
    ck_assert_int_ne(step_with(in_part, trainer_mem(gradient(), CAIRN_F32)), CAIRN_OK);
    ck_assert_int_ne(try_open("new", 0, &other), CAIRN_OK);
    expect_error("CUDA");
    train_to(open_job("another", 1), 0, 2);
}

/* Nothing else is there: its supervisor starts it anew. */
TEST(a_shard_whose_card_fails_ends_with_a_status)
{
    start_faulty("ecc_at=150");
    train_until_it_fails(open_job("card", 0));
    await_unfit();
    ck_assert_int_eq(logged("shard-0.log", "this shard is unfit and ends"), 1);
}

/* What lies in host memory goes there while it trains, and the process ends as one that held no more. */
TEST(what_a_shard_whose_card_failed_serves_on_moves_to_the_next_one_that_comes)
{
    char expected[65];
    root_without_card(expected);
    start_faulty("ecc_at=150");
    cairn_job *on_card = open_job("card", 0), *beside = open_job("beside", 1);
    train_to(beside, 0, 1);
    train_until_it_fails(on_card);
    train_to(beside, 1, 4);
    await((ask("cluster status --check"), strstr(said.out, "start another shard: ") != NULL));
    expect_said(20, "is unfit: ");
    ck_assert_int_eq(setenv("CAIRN_TEST_BACKEND", "host", 1), 0);
    cluster_add_shard(&cluster, 1);
    await_unfit();
    train_to(beside, 4, STEPS);
    trainer_expect_digest(&cluster, "beside", expected);
}

/* The worker's card is another process's, and well. */
TEST(gradients_on_a_card_that_has_failed_for_their_shard_pass_the_host)
{
    char expected[65];
    root_without_card(expected);
    start_faulty("ecc_at=150");
    card = emulated_open("quiet=1");
    struct memory memory = memory_take(NULL, FOREIGN, 0);
    const struct cairn_mem mem = memory_mem(&memory, CAIRN_F32);
    ck_assert_int_eq(
        card.driver.cuMemcpyHtoDAsync(memory.foreign.at, gradient(), ELEMS * 4, memory.stream), 0);
    cairn_job *on_card = open_job("card", 0), *beside = open_job("beside", 1);
    train_from(beside, mem, 0, 1);
    train_until_it_fails(on_card);
    train_from(beside, mem, 1, STEPS);
    trainer_expect_digest(&cluster, "beside", expected);
    ck_assert_int_ge(logged("shard-0.log", "goes through the host from now on"), 1);
    memory_give(NULL, &memory);
}

TEST(a_call_that_the_driver_refuses_stops_the_job_that_needed_it_and_no_other_of_the_card)
{
    start_faulty("call_fails=60,result=1");
    cairn_job *hit = open_job("hit", 0), *beside = open_job("beside", 0);
    train_to(beside, 0, 1);
    train_until_it_fails(hit);
    train_to(beside, 1, STEPS);
    ck_assert_int_ge(logged("shard-0.log", "job hit is stopped here"), 1);
    ck_assert_int_eq(logged("shard-0.log", "job beside is stopped here"), 0);
}

TEST(state_on_a_card_is_not_audited_and_whoever_asks_for_it_hears_so)
{
    cairn_job *opened;
    const struct cairn_job_spec spec = TRAINER_SPEC(model, 1, .audit_every = 1, .chunk_leaves = 1);
    start_faulty("");
    ck_assert_int_eq(
        cairn_job_open(session, "audited", &spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &opened),
        CAIRN_ERR_UNSUPPORTED);
    expect_error("which cannot be audited");
    job = open_job("card", 0);
    await((ask("job amend card --audit-every 5"), said.status != 0));
    ck_assert_ptr_nonnull(strstr(said.err, "has state on a device of shard"));
    (void)open_job("host", 1);
    says(0, "", "job amend host --audit-every 5");
}

SUITE(60, .tear_down = stop);
