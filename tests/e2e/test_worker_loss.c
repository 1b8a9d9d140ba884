/* A lost worker: on_worker_loss says whether it is waited for, or ends the run until somebody acts. And one
 * that lives and holds the others up is named. Real daemons. */
#include "tests/e2e/scene.h"

enum { ELEMS = 1000, SHORT_MS = 300 };

/* A worker of rank 1, which trains until it is killed. */
static pid_t start_second(const char *name, cairn_worker_loss what)
{
    const pid_t child = fork_child();
    if (child > 0) return child;
    for (join(name, TINY(ELEMS, .rank = 1, .on_worker_loss = what));;) train(1);
}

/* How many were in it; 0: it was void. */
static uint32_t try_step(const struct trainer *t)
{
    const struct cairn_round round = trainer_begin(t->job);
    const cairn_status status = trainer_try_commit(t->job, &round, NULL, 0, CLUSTER_WAIT_MS);
    ck_assert(status == CAIRN_OK || status == CAIRN_ERR_EPOCH_CHANGED);
    return status == CAIRN_OK ? round.world : 0;
}

/* Of two workers, of whom the other one is killed then. */
static struct trainer lose_second(const char *name, cairn_worker_loss what)
{
    const pid_t second = start_second(name, what);
    const struct trainer t = attach(name, TINY(ELEMS, .on_worker_loss = what));
    while (try_step(&t) != 2) {}
    cluster_kill(second);
    return t;
}

/* The next round does not open, for this reason; the one that is open may be void first. */
static void expect_none(const struct trainer *t, cairn_status status, const char *word)
{
    struct cairn_round round = { .struct_size = sizeof round };
    cairn_status now = CAIRN_OK;
    while ((now = cairn_round_begin(t->job, SHORT_MS, &round)) == CAIRN_OK) {
        now = trainer_try_commit(t->job, &round, NULL, 0, CLUSTER_WAIT_MS);
        ck_assert(now == CAIRN_OK || now == CAIRN_ERR_EPOCH_CHANGED);
    }
    ck_assert_msg(now == status, "%d: %s", (int)now, cairn_error());
    expect_error(word);
}

TEST(who_is_lost_is_named_and_waited_for_or_ends_the_run_until_somebody_amends)
{
    start(1);
    const struct trainer waits = lose_second("waits", CAIRN_WORKER_LOSS_WAIT);
    expect_none(&waits, CAIRN_ERR_TIMEOUT, "(rank 1) was lost");
    says(0, "1 more worker (1 of 2 attached since a loss; without it in", "job show waits");
    const struct trainer fails = lose_second("fails", CAIRN_WORKER_LOSS_FAIL);
    expect_none(&fails, CAIRN_ERR_HALTED, "(rank 1) was lost");
    says(0, "halted", "job show fails");
    says(0, "", "job amend waits --worker-loss-wait 60");
    says(0, "wait, for 60 s at most", "job show waits");
    says(0, "", "job amend fails --on-worker-loss redo");
    says(2, "redo, wait and fail are allowed", "job amend fails --on-worker-loss never");
    says(0, "lost", "cluster events --since 1h -ojson");
    says(0, "job-halted", "cluster events");
    says(2, "give a duration", "cluster events --since noon");
    ck_assert_uint_eq(try_step(&waits), 1);
    ck_assert_uint_eq(try_step(&fails), 1);
    ck_assert_int_eq(logged("coordinator.log", "and on_worker_loss is fail"), 1);
    cairn_close(waits.session);
    cairn_close(fails.session);
}

TEST(who_has_pushed_and_does_not_commit_is_said_to_hold_the_others_up)
{
    start(1, .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
    const pid_t second = start_second("held", CAIRN_WORKER_LOSS_REDO);
    const struct trainer t = attach("held", TINY(ELEMS, .on_worker_loss = CAIRN_WORKER_LOSS_REDO));
    for (int steps = 0; steps < 6;) steps += try_step(&t) == 2;
    const struct cairn_round round = trainer_begin(t.job);
    tiny_push(t.job, &round, ELEMS, 1);
    await((ask("job show held"), strstr(said.out, "it has not pushed all of it (push") != NULL));
    expect_said(0, "(rank 0), for ");
    ck_assert_int_eq(logged("coordinator.log", "job held is held up by"), 1);
    cluster_kill(second);
    cairn_close(t.session);
}

SUITE(120, .tear_down = stop);
