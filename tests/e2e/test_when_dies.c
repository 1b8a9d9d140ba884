/* What the README says under "When X dies, do Y", row by row, on real daemons: each command is looked up in
 * its row, and run as it stands there, with the names of this job and shard. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

enum { ELEMS = 2000, WORDS_MAX = 8 };

static const char *const quick[] = { "lease.heartbeat=50ms", "lease.timeout=400ms", NULL };
static struct cluster cluster;
static struct trainer t;
static struct cluster_said said;

/* ---- the README ---- */

/* The row of that first cell. */
static void find_row(const char *what, char row[4096])
{
    char begin[128];
    FILE *file = fopen(CAIRN_SOURCE_DIR "/README.md", "r");
    ck_assert_ptr_nonnull(file);
    snprintf(begin, sizeof begin, "| %s |", what);
    bool in_chapter = false, found = false;
    while (!found && fgets(row, 4096, file) != NULL) {
        in_chapter = in_chapter || strcmp(row, "## When X dies, do Y\n") == 0;
        found = in_chapter && strncmp(row, begin, strlen(begin)) == 0;
    }
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_msg(found, "README has no row %s", begin);
}

/* Runs `command` of that row, which begins with "cairn"; JOB is the trainer's, NAME a shard. */
static void run_of(const char *what, const char *command, const char *shard)
{
    char row[4096], quoted[256], copy[256], *words[WORDS_MAX + 1] = { NULL };
    find_row(what, row);
    snprintf(quoted, sizeof quoted, "`%s`", command);
    ck_assert_msg(strstr(row, quoted) != NULL, "README does not say %s: %s", quoted, row);
    snprintf(copy, sizeof copy, "%s", command);
    int count = 0;
    for (char *rest = copy, *word;
         (word = strtok_r(rest, " ", &rest)) != NULL && count < WORDS_MAX;)
        words[count++] = strcmp(word, "JOB") == 0    ? (char *)(uintptr_t)t.name
                         : strcmp(word, "NAME") == 0 ? (char *)(uintptr_t)shard
                                                     : word;
    ck_assert_str_eq(words[0], "cairn");
    cluster_cli(&cluster, &said, words[1], words[2], words[3], words[4], words[5], words[6],
                words[7], NULL);
}

/* It does what it says. */
static void follow(const char *what, const char *command, const char *shard)
{
    run_of(what, command, shard);
    ck_assert_msg(said.status == 0, "%s: %s%s", command, said.out, said.err);
}

/* ---- the job ---- */

static void open_job(uint32_t rank, cairn_worker_loss loss)
{
    t.job = tiny_open(t.session, t.name, TINY(ELEMS, .rank = rank, .on_worker_loss = loss));
}

static void attach(void)
{
    t = (struct trainer) { .session = tiny_session(&cluster, NULL), .name = "run" };
    open_job(0, CAIRN_WORKER_LOSS_REDO);
}

/* As a trainer that is started again. */
static void start_again(void)
{
    cairn_close(t.session);
    attach();
}

/* Of one worker; a round that is void meanwhile is done again. */
static void step(void)
{
    cairn_status status = CAIRN_ERR_EPOCH_CHANGED;
    while (status == CAIRN_ERR_EPOCH_CHANGED) {
        struct cairn_result result = { .struct_size = sizeof result };
        const struct cairn_round round = trainer_begin(t.job);
        status = cairn_commit(t.job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result);
    }
    good(status);
}

static void take_snapshot(void)
{
    cluster_says(&cluster, 0, "step-", "snapshot", "create", t.name, "--wait", NULL);
}

static void set_up_shards(int count)
{
    cluster_start(&cluster, count, &(struct cluster_options) { .coordinator_set = quick });
    attach();
    step();
}

static void set_up(void)
{
    set_up_shards(2);
}

static void tear_down(void)
{
    cairn_close(t.session);
    cluster_stop(&cluster);
}

/* ---- the rows ---- */

TEST(a_trainer)
{
    cairn_close(t.session);
    cluster_says(&cluster, 0, "", "job", "drop", "run", "--yes", NULL);
    const pid_t second = fork();
    ck_assert_int_ge(second, 0);
    t = (struct trainer) { .session = tiny_session(&cluster, NULL), .name = "run" };
    open_job(second == 0, CAIRN_WORKER_LOSS_FAIL);
    while (second == 0) step();
    for (uint32_t world = 0; world != 2;) {
        struct cairn_result result = { .struct_size = sizeof result };
        const struct cairn_round round = trainer_begin(t.job);
        world = round.world;
        const cairn_status ended = cairn_commit(t.job, &round, 1, NULL, 0, CLUSTER_WAIT_MS,
                                                &result);
        if (ended != CAIRN_OK) world = 0;
    }
    cluster_kill(second);
    cluster_await(&cluster, true, "was lost", "job", "show", "run", NULL);
    follow("a trainer", "cairn job amend JOB --on-worker-loss redo", NULL);
    step();
}

TEST(the_coordinator)
{
    cluster_kill_coordinator(&cluster);
    cluster_restart_coordinator(&cluster);
    step();
}

/* And then a shard: what was saved before is still the cluster's own. */
TEST(the_coordinators_store)
{
    char path[CAIRN_SCRATCH_BYTES + 64], moved[CAIRN_SCRATCH_BYTES + 64];
    take_snapshot();
    cluster_kill_coordinator(&cluster);
    snprintf(path, sizeof path, "%s/coordinator", cluster.folder);
    snprintf(moved, sizeof moved, "%s/lost", cluster.folder);
    ck_assert_int_eq(rename(path, moved), 0);
    cluster_restart_coordinator(&cluster);
    cluster_await(&cluster, true, "of another store", "cluster", "status", NULL);
    follow("the coordinator's store", "cairn cluster adopt", NULL);
    ck_assert_msg(strstr(said.out, "would be trusted here") != NULL, "%s", said.out);
    follow("the coordinator's store", "cairn cluster adopt --yes", NULL);
    ck_assert_msg(strstr(said.out, "which the lost store trusted, is trusted here") != NULL, "%s",
                  said.out);
    step();
    cluster_kill_shard(&cluster, 1);
    cluster_restart_shard(&cluster, 1);
    cluster_await(&cluster, true, "lost", "job", "list", NULL);
    follow("a shard", "cairn snapshot restore JOB latest --yes", NULL);
    start_again();
    step();
}

TEST(a_shard)
{
    take_snapshot();
    cluster_kill_shard(&cluster, 1);
    cluster_restart_shard(&cluster, 1);
    cluster_await(&cluster, true, "lost", "job", "list", NULL);
    follow("a shard", "cairn snapshot restore JOB latest --yes", NULL);
    start_again();
    step();
}

TEST(a_node_for_good)
{
    take_snapshot();
    cluster_kill_shard(&cluster, 1);
    cluster_add_shard(&cluster, 2);
    cluster_await(&cluster, true, "shard-2", "cluster", "status", NULL);
    follow("a node, for good", "cairn snapshot restore JOB latest --yes", NULL);
    start_again();
    step();
    follow("a node, for good", "cairn shard forget NAME", "shard-1");
}

TEST(a_node_as_planned)
{
    follow("a node, as planned", "cairn member drain NAME", "shard-1");
    cluster_await_end_of_shard(&cluster, 1);
    step();
}

TEST(the_network)
{
    ck_assert_int_eq(kill(cluster.shards[1], SIGSTOP), 0);
    cluster_await(&cluster, true, "away", "cluster", "status", NULL);
    follow("the network", "cairn cluster status", NULL);
    follow("the network", "cairn job show JOB", NULL);
    ck_assert_msg(strstr(said.out, "shard-1") != NULL, "%s", said.out);
    follow("the network", "cairn cluster events", NULL);
    ck_assert_msg(strstr(said.out, "shard-1") != NULL, "%s", said.out);
    ck_assert_int_eq(kill(cluster.shards[1], SIGCONT), 0);
    step();
}

TEST(the_snapshots_storage)
{
    char moved[sizeof cluster.snapshots_path + 8];
    take_snapshot();
    snprintf(moved, sizeof moved, "%s-moved", cluster.snapshots_path);
    ck_assert_int_eq(rename(cluster.snapshots_path, moved), 0);
    ck_assert_int_eq(mkdir(cluster.snapshots_path, 0750), 0); // it is not mounted
    step();
    run_of("the snapshots' storage", "cairn snapshot create JOB --wait", NULL);
    ck_assert_msg(said.status != 0, "%s", said.out);
    step();
    ck_assert_int_eq(rename(moved, cluster.snapshots_path), 0);
    const time_t end = time(NULL) + CLUSTER_WAIT_MS / 1000;
    do { // daemons see it with their next heartbeat
        run_of("the snapshots' storage", "cairn snapshot create JOB --wait", NULL);
        ck_assert_msg(time(NULL) < end, "%s", said.err);
    } while (said.status != 0);
}

TEST(everything)
{
    take_snapshot();
    cluster_kill_coordinator(&cluster);
    for (int i = 0; i < 2; i++) cluster_kill_shard(&cluster, i);
    cluster_restart_coordinator(&cluster);
    for (int i = 0; i < 2; i++) cluster_restart_shard(&cluster, i);
    cluster_await(&cluster, true, "lost", "job", "list", NULL);
    follow("everything (power)", "cairn snapshot restore JOB latest --yes", NULL);
    start_again();
    step();
}

SUITE(60, set_up, tear_down);
