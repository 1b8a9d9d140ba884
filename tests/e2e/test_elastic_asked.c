/* A job goes from 3 shards to 4 with steps going on, and in the middle of a slice something else is asked
 * for: it goes on, or waits for the slice, and does not fail; nor does the change, but where it ends with the
 * job. CAIRN_TEST_LONG=1: all of it at each point of the slice. */
#include <signal.h>
#include <stdlib.h>

#include "tests/e2e/elastic_points.h"

static const char *const points_of[] = { "a Fence brings layout", "is to be prepared",
                                         "is prepared:", "all that comes is here", "is settled:" };
enum { POINTS = sizeof points_of / sizeof *points_of };

static const struct asked {
    const char *line;    /* "": a tensor more */
    const char *undoing; /* what comes after it; NULL: nothing */
    bool other_bits;     /* it has other tensors then, or is gone */
    bool may_end_change, drops;
} asked_for[] = {
    { .line = "snapshot create transformer" },
    { .line = "job park transformer", .undoing = "job unpark transformer" },
    { .line = "", .other_bits = true },
    { .line = "job digest transformer" },
    { .line = "snapshot restore transformer latest --yes", .may_end_change = true },
    { .line = "job drop transformer --force --yes",
      .may_end_change = true,
      .drops = true,
      .other_bits = true },
};
enum { ASKED = sizeof asked_for / sizeof *asked_for, QUICK = 3 };

static struct points p;

static pid_t ask_for(const struct asked *asked)
{
    if (asked->line[0] == '\0') return elastic_extend(cluster.address, p.model);
    return points_ask(asked->line);
}

/* The coordinator has taken a connection more than it had. */
static void await_connection(int before)
{
    await(logged("coordinator.log", " connected from ") > before);
}

static void expect_end(pid_t pid, bool may_fail, const char *what)
{
    const int status = cluster_wait(pid, CLUSTER_WAIT_MS);
    ck_assert_msg(status == 0 || (may_fail && status > 0), "%s: %s: %d; see cairn.log",
                  cluster.folder, what, status);
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
    points_start(&p, CAIRN_POINT_STOP, 3);
    cluster_add_shard(&cluster, 3);
    points_arm(&p, points_of[_i / ASKED]);
    const pid_t change = points_ask("reshard apply transformer --add shard-3"),
                stopped = points_await_stop(&p);
    const int before = logged("coordinator.log", " connected from ");
    const pid_t pid = ask_for(asked);
    await_connection(before);
    kill(stopped, SIGCONT);
    expect_end(pid, false, asked->line[0] != '\0' ? asked->line : "a tensor more");
    if (asked->undoing != NULL) {
        ask_line(asked->undoing);
        expect_said(0);
    }
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
