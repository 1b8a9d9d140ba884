/* A lost worker: on_worker_loss says whether it is waited for, or ends the run until somebody acts. And one
 * that lives and holds the others up is named. Real daemons. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

enum { ELEMS = 1000, SHORT_MS = 300 };

static struct cluster cluster;

static struct trainer attach(const char *name, uint32_t rank, cairn_worker_loss what)
{
    return tiny_attach(&cluster, name, TINY(ELEMS, .rank = rank, .on_worker_loss = what));
}

/* A worker of rank 1, which trains until it is killed. */
static pid_t start_second(const char *name, cairn_worker_loss what)
{
    const pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child > 0) return child;
    const struct trainer t = attach(name, 1, what);
    for (;;) tiny_step(t.job);
}

/* How many were in it; 0: it was void. */
static uint32_t try_step(const struct trainer *t)
{
    struct cairn_result result = { .struct_size = sizeof result };
    const struct cairn_round round = trainer_begin(t->job);
    const cairn_status status = cairn_commit(t->job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result);
    ck_assert(status == CAIRN_OK || status == CAIRN_ERR_EPOCH_CHANGED);
    return status == CAIRN_OK ? round.world : 0;
}

/* Of two workers, of whom the other one is killed then. */
static struct trainer lose_second(const char *name, cairn_worker_loss what)
{
    const pid_t second = start_second(name, what);
    const struct trainer t = attach(name, 0, what);
    while (try_step(&t) != 2) {}
    cluster_kill(second);
    return t;
}

/* The next round does not open, for this reason; the one that is open may be void first. */
static void expect_none(const struct trainer *t, cairn_status status, const char *word)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status now = cairn_round_begin(t->job, SHORT_MS, &round);
    while (now == CAIRN_OK) {
        now = cairn_commit(t->job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result);
        ck_assert(now == CAIRN_OK || now == CAIRN_ERR_EPOCH_CHANGED);
        now = cairn_round_begin(t->job, SHORT_MS, &round);
    }
    ck_assert_msg(now == status, "%d: %s", (int)now, cairn_error());
    ck_assert_msg(strstr(cairn_error(), word) != NULL, "%s", cairn_error());
}

static void expect_shown(const char *name, const char *word)
{
    struct cluster_said said;
    cluster_cli(&cluster, &said, "job", "show", name, NULL);
    ck_assert_msg(strstr(said.out, word) != NULL, "%s", said.out);
}

TEST(who_is_lost_is_named_and_waited_for_or_ends_the_run_until_somebody_amends)
{
    cluster_start(&cluster, 1, NULL);
    const struct trainer waits = lose_second("waits", CAIRN_WORKER_LOSS_WAIT);
    expect_none(&waits, CAIRN_ERR_TIMEOUT, "(rank 1) was lost");
    expect_shown("waits", "1 more worker (1 of 2 attached since a loss; without it in");
    const struct trainer fails = lose_second("fails", CAIRN_WORKER_LOSS_FAIL);
    expect_none(&fails, CAIRN_ERR_HALTED, "(rank 1) was lost");
    expect_shown("fails", "halted");
    cluster_says(&cluster, 0, "", "job", "amend", "waits", "--worker-loss-wait", "60", NULL);
    expect_shown("waits", "wait, for 60 s at most");
    cluster_says(&cluster, 0, "", "job", "amend", "fails", "--on-worker-loss", "redo", NULL);
    cluster_says(&cluster, 2, "redo, wait and fail are allowed", "job", "amend", "fails",
                 "--on-worker-loss", "never", NULL);
    cluster_says(&cluster, 0, "lost", "cluster", "events", "--since", "1h", "-ojson", NULL);
    cluster_says(&cluster, 0, "job-halted", "cluster", "events", NULL);
    cluster_says(&cluster, 2, "give a duration", "cluster", "events", "--since", "noon", NULL);
    ck_assert_uint_eq(try_step(&waits), 1);
    ck_assert_uint_eq(try_step(&fails), 1);
    ck_assert_int_eq(cluster_logged(&cluster, "coordinator.log", "and on_worker_loss is fail"), 1);
    cairn_close(waits.session);
    cairn_close(fails.session);
    cluster_stop(&cluster);
}

TEST(who_has_pushed_and_does_not_commit_is_said_to_hold_the_others_up)
{
    static const char *const quick[] = { "lease.heartbeat=100ms", NULL };
    enum { STEPS = 6, TRIES = 1000 };
    struct cluster_said said = { .out = "" };
    cluster_start(&cluster, 1, &(struct cluster_options) { .coordinator_set = quick });
    const pid_t second = start_second("held", CAIRN_WORKER_LOSS_REDO);
    const struct trainer t = attach("held", 0, CAIRN_WORKER_LOSS_REDO);
    for (int steps = 0; steps < STEPS;) steps += try_step(&t) == 2;
    const struct cairn_round round = trainer_begin(t.job);
    tiny_push(t.job, &round, ELEMS, 1);
    for (int i = 0; i < TRIES && strstr(said.out, "it has not pushed all of it (push") == NULL; i++)
        cluster_cli(&cluster, &said, "job", "show", "held", NULL);
    ck_assert_msg(strstr(said.out, "(rank 0), for ") != NULL, "%s", said.out);
    ck_assert_int_eq(cluster_logged(&cluster, "coordinator.log", "job held is held up by"), 1);
    cluster_kill(second);
    cairn_close(t.session);
    cluster_stop(&cluster);
}

SUITE(120, NULL, NULL);
