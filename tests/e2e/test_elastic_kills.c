/* A job goes from 3 shards to 4, or from 4 to 3, with steps going on; at a point of that a member is killed
 * or stopped. Training goes on, the job comes to be on the shards that it was to be on, and its content root
 * is that of an undisturbed run. What a death costs is what it costs without a move: nothing, but of a shard
 * that has state; then the job goes on from its snapshot. CAIRN_TEST_LONG=1: each member at each point;
 * CAIRN_TEST_CELLS=grow.taken: those whose names have that. */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/e2e/elastic_points.h"

enum change { GROW, SHRINK, CHANGES };
enum victim { COORDINATOR, GIVER, TAKER, WORKER, VICTIMS };
enum deed { KILL, KILL_LONG, STOP, STOP_LONG, DEEDS };
enum { MOVES = 3 /* the shard that comes, or goes */, STAYS = 0, STOP_MS = 300 };

static const char *const changes[] = { "grow", "shrink" };
static const char *const victims[] = { "coordinator", "giver", "taker", "worker" };
static const char *const deeds[] = { "kill", "kill_long", "stop", "stop_long" };

static const struct point_of {
    const char *name, *text;
    bool only_grow, only_shrink;
    bool rests;  /* nobody trains: only then it is met */
    bool drains; /* the shard is to end, too */
} points_of[] = {
    { .name = "joined", .text = "shard shard-3 joins", .only_grow = true },
    { .name = "prepare", .text = "is to be prepared" },
    { .name = "prepared", .text = "is prepared:" },
    { .name = "stored", .text = "is in the store" },
    { .name = "fence", .text = "a Fence brings layout" },
    { .name = "resolve", .text = "what comes is asked for" },
    { .name = "taken", .text = "all that comes is here" },
    { .name = "moved", .text = "the coordinator is told that all is here" },
    { .name = "settled", .text = "is settled:" },
    { .name = "publish", .text = "is to be published in it", .rests = true },
    { .name = "left", .text = "is not one of its shards any more", .only_shrink = true },
    { .name = "drained", .text = "is drained", .only_shrink = true, .drains = true },
};
enum { POINTS = sizeof points_of / sizeof *points_of };

struct cell {
    enum change change;
    const struct point_of *point;
    enum victim victim;
    enum deed deed;
    char name[64];
};

/* Of `tests/run`: as much as fits into a quarter of a minute. */
static const char *const quick[] = {
    "grow.stored.coordinator.stop_long", "grow.taken.taker.kill",  "grow.resolve.giver.stop_long",
    "shrink.fence.worker.kill",          "shrink.left.giver.kill",
};

static bool is_possible(const struct cell *c)
{
    if (c->change == GROW ? c->point->only_shrink : c->point->only_grow) return false;
    return !c->point->rests || c->victim != WORKER;
}

static bool is_wanted(const struct cell *c)
{
    const char *part = getenv("CAIRN_TEST_CELLS");
    if (part != NULL) return strstr(c->name, part) != NULL;
    if (getenv("CAIRN_TEST_LONG") != NULL) return true;
    for (size_t i = 0; i < sizeof quick / sizeof *quick; i++)
        if (strcmp(quick[i], c->name) == 0) return true;
    return false;
}

static struct cell cell_of(int i)
{
    struct cell c = { .deed = (enum deed)(i % DEEDS),
                      .victim = (enum victim)(i / DEEDS % VICTIMS),
                      .point = &points_of[i / DEEDS / VICTIMS % POINTS],
                      .change = (enum change)(i / DEEDS / VICTIMS / POINTS) };
    snprintf(c.name, sizeof c.name, "%s.%s.%s.%s", changes[c.change], c.point->name,
             victims[c.victim], deeds[c.deed]);
    return c;
}

/* ---- what is done ---- */

static int shard_of(const struct cell *c)
{
    return (c->victim == TAKER) == (c->change == GROW) ? MOVES : STAYS;
}

static pid_t *pid_of(struct points *p, const struct cell *c)
{
    if (c->victim == COORDINATOR) return &cluster.coordinator;
    if (c->victim == WORKER) return &p->workers[1];
    return &cluster.shards[shard_of(c)];
}

static void start_again(struct points *p, const struct cell *c)
{
    if (c->victim == COORDINATOR)
        restart_coordinator();
    else if (c->victim == WORKER)
        points_start_worker(p, 1);
    else
        restart_shard(shard_of(c));
}

/* Who cannot go on without a stopped shard says so. */
static void check_that_it_is_named(struct points *p, const struct cell *c)
{
    char name[16];
    const uint64_t rounds = atomic_load(&p->shared->rounds);
    if (c->victim != GIVER && c->victim != TAKER) return;
    snprintf(name, sizeof name, "shard-%d", shard_of(c));
    ask("job show %s", p->model->name);
    points_pause(STOP_MS);
    if (atomic_load(&p->shared->rounds) > rounds || c->point->rests) return;
    ck_assert_msg(strstr(said.out, name) != NULL, "%s: %s is waited for, and not named: %s%s",
                  c->name, name, said.out, said.err);
}

/* The daemon that came to the point goes on when it has happened. */
static void happen(struct points *p, const struct cell *c, pid_t at_point)
{
    pid_t *victim = pid_of(p, c);
    const pid_t pid = *victim;
    const bool is_long = c->deed == KILL_LONG || c->deed == STOP_LONG;
    const int wait_ms = is_long ? POINTS_LEASE_MS * 3 / 2 : c->deed == STOP ? STOP_MS : 0;
    if (c->deed == KILL || c->deed == KILL_LONG) {
        cluster_kill(pid);
        *victim = 0;
    } else {
        cluster_freeze(pid);
    }
    if (at_point != pid) kill(at_point, SIGCONT);
    points_pause(wait_ms);
    if (is_long) check_that_it_is_named(p, c);
    if (*victim == 0)
        start_again(p, c);
    else
        kill(pid, SIGCONT);
}

/* ---- what comes of it ---- */

static pid_t ask_for_change(const struct cell *c)
{
    return points_ask(c->change == GROW  ? "reshard apply transformer --add shard-3 -q"
                      : c->point->drains ? "member drain shard-3 -q"
                                         : "reshard apply transformer --drain shard-3 -q");
}

static bool is_changed(struct points *p, const struct cell *c)
{
    return points_stands_still(p) &&
           points_shows(p, c->change == GROW ? "\"shards\": 4," : "\"shards\": 3,");
}

/* A run that failed, or that a coordinator was not told of, is asked for again. */
static void await_change(struct points *p, const struct cell *c)
{
    const int64_t end_ms = now_ms() + CLUSTER_WAIT_MS;
    while (!is_changed(p, c)) {
        ck_assert_msg(now_ms() < end_ms, "%s: %s: the change is not made", cluster.folder, c->name);
        points_pause(20);
        if (!points_stands_still(p)) continue;
        const pid_t pid = ask_for_change(c);
        ck_assert_msg(cluster_wait(pid, CLUSTER_WAIT_MS) != -1, "%s: %s: no answer", cluster.folder,
                      c->name);
    }
}

/* A shard that has been drained has ended; where it was killed a new one has begun. */
static void await_drained(const struct cell *c)
{
    const bool is_new = c->victim == GIVER && (c->deed == KILL || c->deed == KILL_LONG);
    if (c->point->drains && !is_new) cluster_await_end_of_shard(&cluster, MOVES);
}

/* What the death of a shard costs: 0 nothing, 1 the steps since the snapshot, -1 either. */
static int cost(const struct cell *c)
{
    const size_t at = (size_t)(c->point - points_of);
    const bool is_whole = at >= 6, is_settled = at >= 8; // taken, settled
    if (c->deed > KILL_LONG || c->victim == COORDINATOR || c->victim == WORKER) return 0;
    if (c->point->rests) return -1; // nobody sees it
    if (shard_of(c) == STAYS) return 1;
    if (c->change == GROW) return is_settled ? 1 : is_whole ? -1 : 0;
    return at >= 10 ? 0 : is_whole ? -1 : 1; // left
}

static void check_cost(struct points *p, const struct cell *c)
{
    const int expected = cost(c);
    const uint64_t seen = atomic_load(&p->shared->rolled_back);
    if (expected >= 0)
        ck_assert_msg((seen > 0) == (expected > 0), "%s: %s: rolled back %" PRIu64 " times",
                      cluster.folder, c->name, seen);
}

/* ---- the undisturbed run ---- */

enum { ROOTS = 128 };
static char (*roots)[CLUSTER_WORD_BYTES]; /* shared: [step / 100], "" where none is known yet */

static void check_root(struct points *p, const struct cell *c, uint64_t step)
{
    char root[CLUSTER_WORD_BYTES];
    ck_assert_uint_lt(step / 100, ROOTS);
    points_root(p, root);
    if (roots[step / 100][0] == '\0') points_calm_root(step, roots[step / 100]);
    ck_assert_msg(strcmp(root, roots[step / 100]) == 0, "%s: %s: step %" PRIu64 ": %s, not %s",
                  cluster.folder, c->name, step, root, roots[step / 100]);
}

static int cell_count(void)
{
    roots = mmap(NULL, sizeof *roots * ROOTS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                 -1, 0);
    return CHANGES * POINTS * VICTIMS * DEEDS;
}

TEST_EACH(whatever_happens_at_a_point_of_a_slice_training_goes_on_with_the_same_bits, 0,
          cell_count())
{
    static struct points p;
    const struct cell c = cell_of(_i);
    if (!is_possible(&c) || !is_wanted(&c)) return;
    const int64_t begun_ms = now_ms();
    points_start(&p, CAIRN_POINT_STOP, c.change == GROW ? 3 : 4);
    if (c.change == GROW) cluster_add_shard(&cluster, MOVES);
    if (c.point->rests) points_end_training(&p);
    points_arm(&p, c.point->text);
    const pid_t asked = ask_for_change(&c);
    happen(&p, &c, points_await_stop(&p));
    ck_assert_msg(cluster_wait(asked, CLUSTER_WAIT_MS) != -1, "%s: %s: no answer", cluster.folder,
                  c.name);
    if (!c.point->rests) points_train(&p, 6);
    await_change(&p, &c);
    await_drained(&c);
    check_root(&p, &c, points_end_training(&p));
    check_cost(&p, &c);
    points_stop(&p);
    if (getenv("CAIRN_TEST_LONG") != NULL)
        printf("note: %s: %lld ms\n", c.name, (long long)(now_ms() - begun_ms));
}

SUITE(120);

int main(void)
{
    if (CAIRN_POINT_STOP[0] != '\0') return suite_main();
    printf("skip: a sanitizer wants to be the first library, and so does what stops daemons\n");
    return SUITE_SKIPPED;
}
