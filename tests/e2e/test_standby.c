/* A shard's host dies, and its standby takes its place: no step is lost, and the content root is the one of
 * the undisturbed run. A standby that is not in step takes no place. */
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "tests/e2e/crew.h"
#include "tests/e2e/scene.h"

#if defined(__SANITIZE_ADDRESS__)
enum { STEPS = 100 }; /* in which it happens as well, if not as often */
#else
enum { STEPS = 200 };
#endif
enum { ELEMS = 60000 };

#define AT_ONCE SETTINGS("lease.heartbeat=100ms", "cluster.standby_after=0s")

static int in_log(const char *text)
{
    return logged("coordinator.log", text);
}

/* How often a standby came in step. */
static int mirrored(void)
{
    return in_log("is mirrored by");
}

static int taken(void)
{
    return in_log("takes its place");
}

static struct crew both(uint64_t until_step)
{
    return (
        struct crew) { .job = &bits_job, .endpoint = cluster.address, .until_step = until_step };
}

static void expect_root_at(uint64_t step)
{
    char root[65];
    bits_root_at(step, root);
    crew_check_root(cluster.address, &bits_job, root);
}

/* ---- the owner dies ---- */

/* On one host, and as between hosts. */
static const char *const paths[] = { "fabric.kind=auto", "fabric.kind=sealed" };

/* Again and again, at any moment of a step, and its next process is the standby of its own standby. */
TEST_EACH(owners_that_die_one_after_the_other_lose_no_step, 0, sizeof paths / sizeof *paths)
{
    const char *many = getenv("CAIRN_STANDBY_STEPS");
    const uint64_t steps = many != NULL ? strtoull(many, NULL, 10) : STEPS;
    struct crew_run run;
    int owner = 0, standby = 2, kills = 0;
    unsigned seed = 7;
    start(2, .coordinator_set = AT_ONCE, .shard_set = SETTINGS(paths[_i]));
    cluster_add_standby(&cluster, standby, owner);
    const struct crew crew = both(steps);
    crew_start(&run, &crew);
    for (; run.step + 60 < steps; kills++) {
        await(mirrored() > kills || run.step + 60 >= steps);
        if (mirrored() <= kills) break;
        poll(NULL, 0, rand_r(&seed) % 50);
        kill_shard(owner);
        const uint64_t step = run.step;
        const int64_t from_ms = now_ms();
        crew_await(&run, step + 1);
        if (many != NULL) fprintf(stderr, "%lld ms\n", (long long)(now_ms() - from_ms));
        crew_await(&run, step + 3);
        const int former = owner;
        owner = standby;
        standby = former;
        cluster_add_standby(&cluster, standby, owner);
    }
    crew_join(&run);
    ck_assert_int_gt(kills, 0);
    ck_assert_int_eq(taken(), kills);
    expect_root_at(steps);
}

/* The standby that took the last place. */
static int taker(void)
{
    int shard = -1;
    const char *newest = NULL;
    ask("cluster events");
    for (const char *at = said.out; (at = strstr(at, "its standby shard-")) != NULL; at++)
        newest = at;
    ck_assert_ptr_nonnull(newest);
    ck_assert_int_eq(sscanf(newest, "its standby shard-%d", &shard), 1);
    return shard;
}

/* With two standbys, the next owner dies as soon as it is the owner, and nobody has filled another
 * standby: the second one was in step with the first owner, and is with the next. */
TEST(two_owners_that_die_one_after_the_other_at_once_lose_no_step)
{
    struct crew_run run;
    int owner = 0, mirrors = 0, kills = 0;
    start(2, .coordinator_set = AT_ONCE);
    cluster_add_standby(&cluster, 2, owner);
    cluster_add_standby(&cluster, 3, owner);
    const struct crew crew = both(STEPS);
    crew_start(&run, &crew);
    while (run.step + 80 < STEPS) {
        mirrors += 2;
        await(mirrored() >= mirrors || run.step + 80 >= STEPS);
        if (mirrored() < mirrors) break;
        const int first = owner;
        kill_shard(first);
        kills++;
        await(taken() == kills);
        const int second = taker();
        kill_shard(second);
        kills++;
        await(taken() == kills);
        owner = taker();
        ck_assert_int_ne(owner, first);
        ck_assert_int_eq(mirrored(), mirrors);
        crew_await(&run, run.step + 3);
        cluster_add_standby(&cluster, first, owner);
        cluster_add_standby(&cluster, second, owner);
    }
    crew_join(&run);
    ck_assert_int_gt(kills, 0);
    expect_root_at(STEPS);
}

/* Of a job that the trainer of the scene trains. */
static void come_in_step(int times)
{
    while (mirrored() < times) train_pushing(0.5f, 1);
}

static void begin(void)
{
    start(1, .coordinator_set = AT_ONCE);
    cluster_add_standby(&cluster, 1, 0);
    join("tiny", TINY(ELEMS));
    come_in_step(1);
}

/* A coordinator that did not see the owner die has it from its store that there is a standby. */
TEST(a_standby_outlives_its_owner_and_the_coordinator)
{
    char root[65];
    begin();
    train_pushing(0.5f, 3);
    bits(root);
    kill_coordinator();
    kill_shard(0);
    cluster_restart_coordinator(&cluster);
    await(taken() == 1);
    expect_bits(root);
    const uint64_t step = newest(job).step;
    train_pushing(0.25f, 3);
    ck_assert_uint_eq(newest(job).step, step + 3);
}

TEST(an_owner_that_is_stopped_and_wakes_up_has_lost_its_place)
{
    char root[65];
    begin();
    bits(root);
    cluster_freeze(cluster.shards[0]);
    await(taken() == 1);
    train_pushing(0.25f, 3);
    bits(root);
    ck_assert_int_eq(kill(cluster.shards[0], SIGCONT), 0);
    await(in_log("which is on other shards now: dropped") == 1);
    expect_bits(root);
    train_pushing(0.25f, 3);
}

/* Nobody steps: the standby is filled all the same, and has what the owner had, averages as well. */
TEST(a_job_at_rest_is_mirrored_too)
{
    struct tiny_job *tiny = TINY(ELEMS);
    char root[65];
    tiny->group.ema = 0.9;
    start(1, .coordinator_set = AT_ONCE);
    join("tiny", tiny);
    train_pushing(0.5f, 3);
    cluster_add_standby(&cluster, 1, 0);
    await(mirrored() == 1);
    says(0, "peer", "job list");
    bits(root);
    kill_shard(0);
    await(taken() == 1);
    expect_bits(root);
    train_pushing(0.25f, 2);
    await(in_log("it took the place of the shard whose standby it was, and has no standby") == 1);
    says(3, "start another shard, with shard.standby_of = its name", "job check tiny");
    cluster_add_standby(&cluster, 0, 1);
    await(mirrored() == 2);
    says(0, "all is well", "job check tiny");
}

/* Before its first step, too. */
TEST(a_job_that_never_stepped_is_mirrored)
{
    char root[65];
    start(1, .coordinator_set = AT_ONCE);
    join("tiny", TINY(ELEMS));
    cluster_add_standby(&cluster, 1, 0);
    await(mirrored() == 1);
    bits(root);
    kill_shard(0);
    await(taken() == 1);
    expect_bits(root);
    train_pushing(0.25f, 2);
}

/* The standby is given time: longer than after which the job would go back to its newest snapshot. */
TEST(a_job_goes_back_to_no_snapshot_while_a_standby_may_take_the_place)
{
    start(1, .coordinator_set = SETTINGS("lease.heartbeat=100ms", "cluster.standby_after=2s"));
    cluster_add_standby(&cluster, 1, 0);
    join("tiny",
         TINY(ELEMS, .on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST, .shard_loss_wait_s = 1));
    come_in_step(1);
    says(0, "committed", "snapshot create tiny --wait");
    train_pushing(0.5f, 2);
    const uint64_t step = newest(job).step;
    kill_shard(0);
    await(taken() == 1);
    train_pushing(0.5f, 1);
    ck_assert_uint_eq(newest(job).step, step + 1);
    ck_assert_int_eq(in_log("longer than shard_loss_wait_s"), 0);
}

/* The owner has said that it has its sums, and nobody hears more of it: they never reach the standby, which
 * is not to blame for that. */
TEST(an_owner_that_falls_silent_before_its_sums_are_fetched_is_replaced)
{
    struct crew_run run;
    uint64_t step;
    start(1, .coordinator_set = SETTINGS("lease.heartbeat=100ms", "lease.timeout=1s",
                                         "cluster.standby_after=0s"));
    cluster_add_standby(&cluster, 1, 0);
    const struct crew crew = both(STEPS);
    crew_start(&run, &crew);
    await(mirrored() == 1);
    cluster_freeze(cluster.shards[1]);
    do { // until the round waits for the standby alone
        step = run.step;
        poll(NULL, 0, 150);
    } while (run.step != step);
    cluster_freeze(cluster.shards[0]);
    ck_assert_int_eq(kill(cluster.shards[1], SIGCONT), 0);
    await(taken() == 1 || in_log("did not keep up") > 0);
    ck_assert_int_eq(taken(), 1);
    crew_await(&run, step + 3);
    ck_assert_int_eq(kill(cluster.shards[0], SIGCONT), 0);
    crew_join(&run);
    expect_root_at(STEPS);
}

/* ---- the standby dies ---- */

TEST(a_job_goes_on_without_its_standby_and_says_so)
{
    char root[65];
    begin();
    says(0, "shard-0 is mirrored by shard-1", "job show tiny");
    says(0, "shard-1 is a standby of shard-0", "cluster status");
    ask("reshard plan tiny --add shard-1");
    expect_said(11, "nothing can go to shard shard-1, which is a standby");
    kill_shard(1);
    train_pushing(0.5f, 3);
    says(0, "shard-0 is not mirrored", "job show tiny");
    says(3, "shard-0 is not mirrored", "job check tiny");
    await(in_log("is not mirrored: the connection to it was lost") == 1);
    bits(root);
    cluster_add_standby(&cluster, 1, 0);
    come_in_step(2);
    kill_shard(0);
    await(taken() == 1);
    train_pushing(0.5f, 1);
}

/* It is behind: the steps that were taken without it are with the owner alone. */
TEST(a_standby_that_was_lost_before_takes_no_place)
{
    begin();
    cluster_freeze(cluster.shards[1]);
    train_pushing(0.5f, 3);
    kill_shard(0);
    ck_assert_int_eq(kill(cluster.shards[1], SIGCONT), 0);
    await(in_log("shard shard-1 is up") == 2);
    poll(NULL, 0, 500);
    ck_assert_int_eq(taken(), 0);
}

/* ---- two standbys ---- */

static void begin_with_two(void)
{
    start(1, .coordinator_set = AT_ONCE);
    cluster_add_standby(&cluster, 1, 0);
    cluster_add_standby(&cluster, 2, 0);
    join("tiny", TINY(ELEMS));
    come_in_step(2);
}

/* While no coordinator runs: the store fails from now on to take mirrors' rows away, or does not any more. */
static void break_rows(bool are_broken)
{
    static const char *const orders[] = {
        "DROP TRIGGER broken",
        "CREATE TRIGGER broken BEFORE DELETE ON mirrors BEGIN SELECT RAISE(ABORT, 'broken'); END",
    };
    sqlite3 *db;
    kill_coordinator();
    ck_assert_int_eq(sqlite3_open(in_folder("coordinator/coordinator.db"), &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, orders[are_broken], NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    cluster_restart_coordinator(&cluster);
}

/* Its row would count when it has lost that place to the other one, and was only cut off. So the job waits
 * until the row is gone. */
TEST(who_has_the_place_is_a_standby_no_more_before_the_job_goes_on)
{
    char root[65];
    start(1, .coordinator_set = AT_ONCE);
    break_rows(true);
    cluster_add_standby(&cluster, 1, 0);
    cluster_add_standby(&cluster, 2, 0);
    join("tiny", TINY(ELEMS));
    come_in_step(2);
    bits(root);
    kill_shard(0);
    await(in_log("the store cannot be told that standby") >= 1);
    break_rows(false);
    expect_bits(root);
    train_pushing(0.25f, 3);
}

/* One of them takes the place, and the other one, which names the shard that is lost, is the standby of
 * that one: it goes on in step, and is filled again if it is another process. */
TEST(the_other_standby_goes_on_with_the_next_owner)
{
    char root[65], text[64];
    begin_with_two();
    says(0, "shard-0 is mirrored by shard-1", "job show tiny");
    says(0, "shard-0 is mirrored by shard-2", "job show tiny");
    bits(root);
    kill_shard(0);
    await(taken() == 1);
    const int next = taker(), other = 3 - next;
    expect_bits(root);
    train_pushing(0.25f, 3);
    snprintf(text, sizeof text, "shard-%d is mirrored by shard-%d", next, other);
    says(0, text, "job show tiny");
    says(0, "all is well", "job check tiny");
    ck_assert_int_eq(mirrored(), 2);
    kill_shard(other);
    cluster_add_standby(&cluster, other, 0); // the name of the one that is lost
    come_in_step(3);
    says(0, text, "job show tiny");
    bits(root);
    kill_shard(next);
    await(taken() == 2);
    expect_bits(root);
    train_pushing(0.25f, 3);
}

/* The coordinator and the owner die, and one standby: the store says of both that they were in step. */
TEST(either_of_two_standbys_outlives_its_owner_and_the_coordinator)
{
    char root[65];
    begin_with_two();
    bits(root);
    kill_coordinator();
    kill_shard(0);
    kill_shard(1);
    cluster_restart_coordinator(&cluster);
    await(taken() == 1);
    ck_assert_int_eq(taker(), 2);
    expect_bits(root);
    train_pushing(0.25f, 3);
    cluster_add_standby(&cluster, 1, 0);
    come_in_step(3);
}

/* A job has what it asks for as long as one of them is in step. More than two mirror nothing, and are told
 * so. */
TEST(the_loss_of_one_of_two_standbys_costs_nothing_and_a_third_waits)
{
    begin_with_two();
    cluster_add_standby(&cluster, 3, 0);
    await_said("shard-3 is a standby of shard-0", "cluster status");
    says(0, "shard-3 mirrors nothing of job tiny: ", "cluster status");
    kill_shard(1);
    train_pushing(0.5f, 2);
    says(0, "all is well", "job check tiny");
    await_said("shard-0 is mirrored by shard-3", "job show tiny");
    cluster_freeze(cluster.shards[2]);
    train_pushing(0.5f, 2);
    ck_assert_int_eq(kill(cluster.shards[2], SIGCONT), 0);
    kill_shard(0);
    await(taken() == 1);
    ck_assert_int_eq(taker(), 3);
    train_pushing(0.5f, 1);
}

/* ---- the job moves ---- */

/* While the job trains. */
static void add_shard(void)
{
    int status;
    const pid_t pid = fork_child();
    if (pid == 0) {
        ask("reshard apply tiny --add shard-2 -q");
        _exit(said.status);
    }
    while (waitpid(pid, &status, WNOHANG) == 0) train_pushing(0.5f, 1);
    ck_assert_int_eq(status, 0);
}

/* Each change of the layout ends the mirrors, and the job is mirrored anew in the new one. Whatever a standby
 * has of an older layout is not used. */
TEST(a_job_that_moves_to_other_shards_is_mirrored_anew)
{
    char root[65];
    begin();
    cluster_add_shard(&cluster, 2);
    add_shard();
    come_in_step(2);
    bits(root);
    kill_shard(0);
    await(taken() == 1);
    expect_bits(root);
    train_pushing(0.25f, 3);
    ck_assert_int_eq(logged("shard-1.log", "layout 1 in force here"), 0);
}

/* The standby is being filled, or just was; and the owner goes. */
TEST(an_owner_that_leaves_takes_its_standby_along)
{
    start(1, .coordinator_set = AT_ONCE);
    join("tiny", TINY(ELEMS));
    train_pushing(0.5f, 2);
    cluster_add_shard(&cluster, 2);
    cluster_add_standby(&cluster, 1, 0);
    await((ask("job show tiny"), strstr(said.out, "shard-1 is being filled") != NULL ||
                                     strstr(said.out, "is mirrored by shard-1") != NULL));
    says(0, "", "reshard apply tiny --add shard-2 --drain shard-0 -q");
    await((ask("job show tiny"), strstr(said.out, "mirrored") == NULL ||
                                     strstr(said.out, "another layout") != NULL ||
                                     strstr(said.out, "is not mirrored by") != NULL));
    train_pushing(0.5f, 2);
}

SUITE(120, .tear_down = stop);
