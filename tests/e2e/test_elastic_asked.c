/* A job goes from 3 shards to 4 with steps going on, and in the middle of a slice something else is asked
 * for: it goes on, or waits for the slice, and does not fail; nor does the change, but where it ends with the
 * job. CAIRN_TEST_LONG=1: all of it at each point of the slice. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/elastic_points.h"
#include "tests/support/now.h"
#include "tests/support/suite.h"

static const char *const points_of[] = { "a Fence brings layout", "is to be prepared",
                                         "is prepared:", "all that comes is here", "is settled:" };
enum { POINTS = sizeof points_of / sizeof *points_of };

static const struct asked {
    const char *words[4];   /* NULL: a tensor more */
    const char *undoing[2]; /* what comes after it */
    bool other_bits;        /* it has other tensors then, or is gone */
    bool may_end_change, drops;
} asked_for[] = {
    { .words = { "snapshot", "create" } },
    { .words = { "job", "park" }, .undoing = { "job", "unpark" } },
    { .words = { NULL }, .other_bits = true },
    { .words = { "job", "digest" } },
    { .words = { "snapshot", "restore" }, .may_end_change = true },
    { .words = { "job", "drop" }, .may_end_change = true, .drops = true, .other_bits = true },
};
enum { ASKED = sizeof asked_for / sizeof *asked_for, QUICK = 3 };

static struct points p;

static pid_t ask(const struct asked *asked)
{
    if (asked->words[0] == NULL) return elastic_extend(p.cluster.address, p.model);
    const bool restores = strcmp(asked->words[1], "restore") == 0;
    const char *const words[] = { asked->words[0], asked->words[1],
                                  p.model->name,   restores ? "latest" : "--force",
                                  "--yes",         NULL };
    const char *const plain[] = { asked->words[0], asked->words[1], p.model->name, NULL };
    return points_ask(&p, asked->drops || restores ? words : plain);
}

/* The coordinator has taken a connection more than it had. */
static void await_connection(int before)
{
    const int64_t end_ms = now_ms() + CLUSTER_WAIT_MS;
    while (cluster_logged(&p.cluster, "coordinator.log", " connected from ") <= before) {
        ck_assert_int_lt(now_ms(), end_ms);
        points_pause(1);
    }
}

static void expect_end(pid_t pid, bool may_fail, const char *what)
{
    const int status = cluster_wait(pid, CLUSTER_WAIT_MS);
    ck_assert_msg(status == 0 || (may_fail && status > 0), "%s: %s: %d; see cairn.log",
                  p.cluster.folder, what, status);
}

static void check_bits(void)
{
    char root[CLUSTER_WORD_BYTES], calm[CLUSTER_WORD_BYTES];
    const uint64_t step = points_end_training(&p);
    points_root(&p, root);
    points_calm_root(step, calm);
    ck_assert_str_eq(root, calm);
}

/* Workers of a job that is dropped end with it. */
static void end_workers(void)
{
    for (int i = 0; i < POINTS_WORKERS; i++) {
        ck_assert_int_ne(cluster_wait(p.workers[i], CLUSTER_WAIT_MS), -1);
        p.workers[i] = 0;
    }
}

static int cell_count(void)
{
    return getenv("CAIRN_TEST_LONG") != NULL ? ASKED * POINTS : QUICK;
}

TEST_EACH(what_is_asked_for_in_the_middle_of_a_slice_goes_on_or_waits, 0, cell_count())
{
    const struct asked *asked = &asked_for[_i % ASKED];
    const char *const grow[] = { "reshard", "apply",   elastic_models[1].name,
                                 "--add",   "shard-3", NULL };
    points_start(&p, CAIRN_POINT_STOP, 3);
    cluster_add_shard(&p.cluster, 3);
    points_arm(&p, points_of[_i / ASKED]);
    const pid_t change = points_ask(&p, grow), stopped = points_await_stop(&p);
    const int before = cluster_logged(&p.cluster, "coordinator.log", " connected from ");
    const pid_t pid = ask(asked);
    await_connection(before);
    kill(stopped, SIGCONT);
    expect_end(pid, false, asked->words[0] != NULL ? asked->words[1] : "a tensor more");
    if (asked->undoing[0] != NULL)
        cluster_says(&p.cluster, 0, "", asked->undoing[0], asked->undoing[1], p.model->name, NULL);
    expect_end(change, asked->may_end_change, "the change");
    if (asked->drops)
        end_workers();
    else if (asked->other_bits)
        points_train(&p, 6);
    else
        check_bits();
    for (int i = 0; i < POINTS_WORKERS; i++)
        if (p.workers[i] != 0) cluster_kill(p.workers[i]);
    points_stop(&p);
}

SUITE(120);

int main(void)
{
    if (CAIRN_POINT_STOP[0] != '\0') return suite_main();
    printf("skip: a sanitizer wants to be the first library, and so does what stops daemons\n");
    return SUITE_SKIPPED;
}
