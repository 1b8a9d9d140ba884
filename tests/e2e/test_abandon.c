/* A worker that gives a round up while its gradients are under way, on real daemons: it stays, the step is
 * done again by all, and no bit of what was pushed before is left. */
#include <signal.h>
#include <stdlib.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

enum { ELEMS = 1 << 20, WORKERS = 2, STEPS = 4 };

struct worker {
    cairn *session;
    cairn_job *job;
    struct cairn_round round;
    float *gradient; /* on loan to the pushes of the round */
};

static void attach(struct worker *worker, const struct cluster *cluster, const char *name,
                   uint32_t rank)
{
    *worker = (struct worker) { .session = tiny_session(cluster, NULL) };
    worker->job = tiny_open(
        worker->session, name,
        TINY(ELEMS, .rank = rank, .workers_min = WORKERS, .chunk_leaves = 16, .window = 2));
}

static void push(struct worker *worker, uint32_t rank, float scale)
{
    worker->round = (struct cairn_round) { .struct_size = sizeof worker->round };
    good(cairn_round_begin(worker->job, CLUSTER_WAIT_MS, &worker->round));
    worker->gradient = malloc(ELEMS * sizeof(float));
    for (uint32_t i = 0; i < ELEMS; i++)
        worker->gradient[i] = scale * (float)((i + rank + worker->round.step) % 13);
    trainer_push(worker->job, &worker->round, "w", worker->gradient);
}

static cairn_status commit(struct worker *worker, int timeout_ms)
{
    struct cairn_result result = { .struct_size = sizeof result };
    const cairn_status status = cairn_commit(worker->job, &worker->round, 0, NULL, 0, timeout_ms,
                                             &result);
    if (status != CAIRN_ERR_TIMEOUT) {
        free(worker->gradient);
        worker->gradient = NULL;
    }
    return status;
}

static void step(struct worker workers[WORKERS])
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) push(&workers[rank], rank, 0.25f);
    ck_assert_int_eq(commit(&workers[0], 1), CAIRN_ERR_TIMEOUT); // it is under way
    good(commit(&workers[1], CLUSTER_WAIT_MS));
    good(commit(&workers[0], CLUSTER_WAIT_MS));
}

/* Worker `who` gives up a round with other gradients than the step's. */
static void give_up(struct worker workers[WORKERS], uint32_t who, const struct cluster *cluster)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) push(&workers[rank], rank, 1e6f);
    const uint32_t other = 1 - who;
    ck_assert_int_eq(commit(&workers[other], 1), CAIRN_ERR_TIMEOUT);
    if (cluster != NULL) kill(cluster->coordinator, SIGSTOP);
    if (cluster != NULL)
        ck_assert_int_eq(cairn_round_abandon(workers[who].job, &workers[who].round, 50),
                         CAIRN_ERR_TIMEOUT);
    if (cluster != NULL) kill(cluster->coordinator, SIGCONT);
    good(cairn_round_abandon(workers[who].job, &workers[who].round, CLUSTER_WAIT_MS));
    free(workers[who].gradient);
    ck_assert_int_eq(commit(&workers[other], CLUSTER_WAIT_MS), CAIRN_ERR_EPOCH_CHANGED);
}

TEST(rounds_that_are_given_up_leave_no_bit_behind)
{
    struct cluster cluster;
    struct worker workers[WORKERS];
    char disturbed[128], quiet[128];
    cluster_start(&cluster, 2, NULL);
    for (int run = 0; run < 2; run++) {
        const char *name = run == 0 ? "quiet" : "disturbed";
        for (uint32_t rank = 0; rank < WORKERS; rank++)
            attach(&workers[rank], &cluster, name, rank);
        for (uint32_t i = 0; i < STEPS; i++) {
            if (run == 1) give_up(workers, i % 2, i == 1 ? &cluster : NULL);
            step(workers);
        }
        ck_assert_uint_eq(workers[0].round.step, STEPS - 1);
        trainer_digest(&cluster, name, run == 0 ? quiet : disturbed);
        for (uint32_t rank = 0; rank < WORKERS; rank++) cairn_close(workers[rank].session);
    }
    ck_assert_str_eq(disturbed, quiet);
    cluster_stop(&cluster);
}

SUITE(90);
