/* A worker whose control connection lives while nothing that it pushes arrives: real daemons, a trainer, and
 * beside it a worker that is a framed connection alone. */
#include <pthread.h>
#include <stdlib.h>

#include "tests/support/fake_cluster.h"
#include "tests/e2e/scene.h"

enum { ROWS = 128, COLUMNS = 1024, BIAS = 10, MUTE_RANK = 1 };

static struct fake_cluster fake; /* only to speak to the coordinator */

/* The job that fake_spec describes. */
static void open_job(void)
{
    static const struct cairn_tensor tensors[] = {
        { .struct_size = sizeof *tensors,
          .name = "fc.weight",
          .group = "all",
          .rank = 2,
          .shape = { ROWS, COLUMNS } },
        { .struct_size = sizeof *tensors,
          .name = "fc.bias",
          .group = "all",
          .rank = 1,
          .shape = { BIAS } },
    };
    struct cairn_group group = CAIRN_GROUP_INIT;
    group.name = "all";
    struct cairn_job_spec spec = trainer_spec(tensors, 2);
    spec.groups = &group;
    session = trainer_session(cluster.address, NULL);
    job = trainer_open(session, "toy", &spec);
}

static float values[ROWS * COLUMNS];
static const struct cairn_mem mem = { .struct_size = sizeof mem,
                                      .ptr = values,
                                      .dtype = CAIRN_F32 };

static void initialize(void)
{
    static const char *const names[] = { "fc.weight", "fc.bias" };
    for (int i = 0; i < 2; i++) good(cairn_put(job, names[i], "param", NULL, &mem, NULL));
    good(cairn_init_done(job, NULL, CLUSTER_WAIT_MS));
}

static struct cairn_result result = { .struct_size = sizeof result };

static cairn_status train_round(void)
{
    struct cairn_round round = { .struct_size = sizeof round };
    cairn_status status = cairn_round_begin(job, CLUSTER_WAIT_MS, &round);
    if (status == CAIRN_OK) status = cairn_push(job, &round, 0, "fc.weight", NULL, &mem, NULL);
    return status == CAIRN_OK ? cairn_commit(job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result)
                              : status;
}

/* The other worker is the test's own thread. */
static char error[512];
static void *train_beside(void *arg)
{
    const cairn_status status = train_round();
    snprintf(error, sizeof error, "%s", cairn_error());
    (void)arg;
    return (void *)(intptr_t)status;
}

/* Takes part in the round, and says that it has committed. */
static void commit_nothing(struct fake_peer *mute)
{
    const uint64_t toy = fake_attach(mute, 4711, MUTE_RANK, 1);
    pthread_t trainer;
    void *status;
    ck_assert_int_eq(pthread_create(&trainer, NULL, train_beside, NULL), 0);
    const uint32_t request = fake_ask(mute, RoundCommit, .job = toy,
                                      .round = fake_begin(mute, toy));
    fake_expect_error(mute, request, CAIRN_ERR_REOPEN, "did not get all that it contributes");
    ck_assert_int_eq(pthread_join(trainer, &status), 0);
    ck_assert_int_eq((intptr_t)status, CAIRN_ERR_EPOCH_CHANGED);
}

TEST(the_worker_whose_data_never_arrives_is_named_and_training_goes_on)
{
    start(2, .coordinator_set = SETTINGS("round.step_deadline=1s"));
    snprintf(fake.listen, sizeof fake.listen, "%.90s", cluster.address);
    open_job();
    initialize();
    struct fake_peer mute = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "mute");
    commit_nothing(&mute);
    ck_assert_msg(strstr(error, "worker mute (rank 1) was put out") != NULL, "%s", error);
    says(0, "worker mute (rank 1) was put out", "job show toy");
    fake_expect_end(&mute);
    fake_peer_close(&mute);
    good(train_round());
    ck_assert_uint_eq(result.version.step, 1);
}

SUITE(60, .tear_down = stop);
