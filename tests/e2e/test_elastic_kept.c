/* A shard under a keeper dies while the layout of a job changes: at a point of a slice, and at any moment.
 * Nothing is lost: training goes on from the step where it was, and the content root is that of an
 * undisturbed run. CAIRN_TEST_LONG=1: a shard that gives and one that takes at each point, and many more
 * random kills; CAIRN_TEST_CELLS="grow \"is settled": those whose names have that. */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "tests/e2e/elastic_points.h"
#include "tests/support/random.h"

enum { MOVES = 3 /* the shard that comes, or goes */, STAYS = 0 };

static const char *const points_of[] = {
    "is to be prepared",     "is prepared:",        "is in the store",
    "a Fence brings layout", "what comes is asked", "all that comes is here",
    "told that all is here", "is settled:",
};
enum { POINTS = sizeof points_of / sizeof *points_of };

/* What happens when a daemon comes to the point. */
struct cell {
    const char *point;
    bool grows;    /* another shard comes; else one goes */
    int shard;     /* that dies */
    bool is_quick; /* it is tried in tests/run */
    char name[64];
};

static struct cell cell_of(int i)
{
    static const int quick[] = { 2, 7, 16, 21, 29 };
    struct cell c = { .grows = i % 2 == 0,
                      .shard = i / 2 % 2 == 0 ? STAYS : MOVES,
                      .point = points_of[i / 4] };
    for (size_t q = 0; q < sizeof quick / sizeof *quick; q++) c.is_quick |= quick[q] == i;
    snprintf(c.name, sizeof c.name, "%s \"%s\": shard %d", c.grows ? "grow" : "shrink", c.point,
             c.shard);
    return c;
}

static pid_t ask_for_change(bool grows)
{
    return points_ask(grows ? "reshard apply transformer --add shard-3 -q"
                            : "reshard apply transformer --drain shard-3 -q");
}

/* A run that was taken back is asked for again. */
static void await_change(struct points *p, bool grows, const char *what)
{
    const int64_t end_ms = now_ms() + CLUSTER_WAIT_MS;
    const char *shards = grows ? "\"shards\": 4," : "\"shards\": 3,";
    while (!points_stands_still(p) || !points_shows(p, shards)) {
        ck_assert_msg(now_ms() < end_ms, "%s: %s: the change is not made", cluster.folder, what);
        points_pause(20);
        if (!points_stands_still(p)) continue;
        ck_assert_int_ne(cluster_wait(ask_for_change(grows), CLUSTER_WAIT_MS), -1);
    }
}

/* Nothing was lost, as far as anybody saw. */
static void check_nothing_lost(struct points *p, const char *what)
{
    char root[CLUSTER_WORD_BYTES], calm[CLUSTER_WORD_BYTES];
    const uint64_t step = points_end_training(p);
    ck_assert_msg(atomic_load(&p->shared->rolled_back) == 0, "%s: %s: steps were lost",
                  cluster.folder, what);
    points_root(p, root);
    points_stop(p);
    points_calm_root(step, calm);
    ck_assert_msg(strcmp(root, calm) == 0, "%s: step %" PRIu64 ": %s, not %s", what, step, root,
                  calm);
}

TEST_EACH(a_shard_that_dies_at_a_point_of_a_slice_loses_nothing, 0, 4 * POINTS)
{
    static struct points p;
    const struct cell c = cell_of(_i);
    const char *only = getenv("CAIRN_TEST_CELLS");
    if (only != NULL ? strstr(c.name, only) == NULL
                     : !c.is_quick && getenv("CAIRN_TEST_LONG") == NULL)
        return;
    points_start_kept(&p, CAIRN_POINT_STOP, c.grows ? 3 : 4);
    if (c.grows) cluster_add_shard(&cluster, MOVES);
    points_arm(&p, c.point);
    const pid_t asked = ask_for_change(c.grows);
    const pid_t at_point = points_await_stop(&p);
    const pid_t victim = cluster_shard_process(&cluster, c.shard);
    ck_assert_int_eq(kill(victim, SIGKILL), 0);
    if (at_point != victim) kill(at_point, SIGCONT);
    ck_assert_int_ne(cluster_wait(asked, CLUSTER_WAIT_MS), -1);
    points_train(&p, 6);
    await_change(&p, c.grows, c.name);
    check_nothing_lost(&p, c.name);
}

/* ---- at random moments ---- */

enum { ROUNDS_LONG = 24, KILL_MS_MAX = 120 };

/* A few such moments are e2e.elastic_chaos. */
TEST(shards_that_die_at_random_moments_of_re_shards_lose_nothing)
{
    static struct points p;
    random_state = 4711;
    if (getenv("CAIRN_TEST_LONG") == NULL) return;
    points_start_kept(&p, CAIRN_POINT_STOP, 3);
    cluster_add_shard(&cluster, MOVES);
    for (int i = 0; i < ROUNDS_LONG; i++) {
        const bool grows = i % 2 == 0;
        const pid_t asked = ask_for_change(grows);
        for (int kills = 0; kills < 3; kills++) {
            points_pause((int)random_below(KILL_MS_MAX));
            const pid_t process = cluster_shard_child(&cluster, (int)random_below(MOVES + 1));
            if (process != 0) kill(process, SIGKILL); // else its keeper is about to start one
        }
        ck_assert_int_ne(cluster_wait(asked, CLUSTER_WAIT_MS), -1);
        points_train(&p, 2);
        await_change(&p, grows, "random");
    }
    check_nothing_lost(&p, "random");
}

SUITE(120);

int main(void)
{
    if (CAIRN_POINT_STOP[0] != '\0') return suite_main();
    printf("skip: a sanitizer wants to be the first library, and so does what stops daemons\n");
    return SUITE_SKIPPED;
}
