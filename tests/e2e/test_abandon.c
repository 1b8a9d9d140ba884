/* A worker that gives a round up while its gradients are under way, on real daemons: it stays, the step is
 * done again by all, and no bit of what was pushed before is left. */
#include <signal.h>
#include <stdlib.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 1 << 20, WORKERS = 2, STEPS = 4 };

struct worker {
    struct trainer t;
    struct cairn_round round;
    float *gradient; /* on loan to the pushes of the round */
};

static void push(struct worker *worker, uint32_t rank, float scale)
{
    worker->round = trainer_begin(worker->t.job);
    worker->gradient = malloc(ELEMS * sizeof(float));
    for (uint32_t i = 0; i < ELEMS; i++)
        worker->gradient[i] = scale * (float)((i + rank + worker->round.step) % 13);
    trainer_push(worker->t.job, &worker->round, "w", worker->gradient);
}

static cairn_status commit(struct worker *worker, int timeout_ms)
{
    struct cairn_result result = { .struct_size = sizeof result };
    const cairn_status status = cairn_commit(worker->t.job, &worker->round, 0, NULL, 0, timeout_ms,
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

/* Worker `who` gives up a round with other gradients than the step's; `hangs`: the coordinator hears of it
 * late. */
static void give_up(struct worker workers[WORKERS], uint32_t who, bool hangs)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) push(&workers[rank], rank, 1e6f);
    const uint32_t other = 1 - who;
    ck_assert_int_eq(commit(&workers[other], 1), CAIRN_ERR_TIMEOUT);
    if (hangs) {
        cluster_freeze(cluster.coordinator);
        ck_assert_int_eq(cairn_round_abandon(workers[who].t.job, &workers[who].round, 50),
                         CAIRN_ERR_TIMEOUT);
        kill(cluster.coordinator, SIGCONT);
    }
    good(cairn_round_abandon(workers[who].t.job, &workers[who].round, CLUSTER_WAIT_MS));
    free(workers[who].gradient);
    ck_assert_int_eq(commit(&workers[other], CLUSTER_WAIT_MS), CAIRN_ERR_EPOCH_CHANGED);
}

TEST(rounds_that_are_given_up_leave_no_bit_behind)
{
    struct worker workers[WORKERS];
    char disturbed[128], quiet[128];
    start(2);
    for (int run = 0; run < 2; run++) {
        const char *name = run == 0 ? "quiet" : "disturbed";
        for (uint32_t rank = 0; rank < WORKERS; rank++)
            workers[rank] = (struct worker) {
                .t = attach(name, TINY(ELEMS, .rank = rank, .workers_min = WORKERS,
                                       .chunk_leaves = 16, .window = 2))
            };
        for (uint32_t i = 0; i < STEPS; i++) {
            if (run == 1) give_up(workers, i % 2, i == 1);
            step(workers);
        }
        ck_assert_uint_eq(workers[0].round.step, STEPS - 1);
        trainer_digest(&cluster, name, run == 0 ? quiet : disturbed);
        for (uint32_t rank = 0; rank < WORKERS; rank++) cairn_close(workers[rank].t.session);
    }
    ck_assert_str_eq(disturbed, quiet);
}

SUITE(90, .tear_down = stop);
