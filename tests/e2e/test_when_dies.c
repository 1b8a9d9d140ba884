/* What the README says under "When X dies, do Y", row by row, on real daemons: each command is looked up in
 * its row, and run as it stands there, with the names of this job and shard. */
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 2000 };

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

/* The text with what stands for NAME in it, once. */
static void fill_in(char text[256], const char *name, const char *value)
{
    char *at = strstr(text, name), rest[256];
    if (at == NULL) return;
    snprintf(rest, sizeof rest, "%s", at + strlen(name));
    snprintf(at, (size_t)(text + 256 - at), "%s%s", value, rest);
}

/* Runs `command` of that row, which begins with "cairn"; JOB is the trainer's, NAME a shard. */
static void run_of(const char *what, const char *command, const char *shard)
{
    char row[4096], quoted[256], words[256];
    find_row(what, row);
    snprintf(quoted, sizeof quoted, "`%s`", command);
    ck_assert_msg(strstr(row, quoted) != NULL, "README does not say %s: %s", quoted, row);
    ck_assert_int_eq(strncmp(command, "cairn ", 6), 0);
    snprintf(words, sizeof words, "%s", command + 6);
    fill_in(words, "JOB", "run");
    fill_in(words, "NAME", shard);
    ask_line(words);
}

/* It does what it says. */
static void follow(const char *what, const char *command, const char *shard)
{
    run_of(what, command, shard);
    expect_said(0);
}

/* ---- the job ---- */

static void enter(uint32_t rank, cairn_worker_loss loss)
{
    join("run", TINY(ELEMS, .rank = rank, .on_worker_loss = loss));
}

/* As a trainer that is started again. */
static void start_again(void)
{
    leave();
    enter(0, CAIRN_WORKER_LOSS_REDO);
}

/* Of one worker; a round that is void meanwhile is done again. */
static void step(void)
{
    cairn_status status = CAIRN_ERR_EPOCH_CHANGED;
    while (status == CAIRN_ERR_EPOCH_CHANGED) {
        const struct cairn_round round = trainer_begin(job);
        status = trainer_try_commit(job, &round, NULL, 0, CLUSTER_WAIT_MS);
    }
    good(status);
}

static void take_snapshot(void)
{
    says(0, "step-", "snapshot create run --wait");
}

static void set_up(void)
{
    start(2, .coordinator_set = SETTINGS("lease.heartbeat=50ms", "lease.timeout=400ms"));
    enter(0, CAIRN_WORKER_LOSS_REDO);
    step();
}

/* ---- the rows ---- */

TEST(a_trainer)
{
    leave();
    says(0, "", "job drop run --yes");
    const pid_t second = fork_child();
    enter(second == 0, CAIRN_WORKER_LOSS_FAIL);
    while (second == 0) step();
    for (uint32_t world = 0; world != 2;) {
        const struct cairn_round round = trainer_begin(job);
        const cairn_status ended = trainer_try_commit(job, &round, NULL, 0, CLUSTER_WAIT_MS);
        world = ended == CAIRN_OK ? round.world : 0;
    }
    cluster_kill(second);
    await_said("was lost", "job show run");
    follow("a trainer", "cairn job amend JOB --on-worker-loss redo", NULL);
    step();
}

TEST(the_coordinator)
{
    restart_coordinator();
    step();
}

/* And then a shard: what was saved before is still the cluster's own. */
TEST(the_coordinators_store)
{
    take_snapshot();
    lose_store();
    await_said("of another store", "cluster status");
    follow("the coordinator's store", "cairn cluster adopt", NULL);
    expect_said(0, "would be trusted here");
    follow("the coordinator's store", "cairn cluster adopt --yes", NULL);
    expect_said(0, "which the lost store trusted, is trusted here");
    step();
    restart_shard(1);
    await_said("lost", "job list");
    follow("a shard", "cairn snapshot restore JOB latest --yes", NULL);
    start_again();
    step();
}

TEST(a_shard)
{
    take_snapshot();
    restart_shard(1);
    await_said("lost", "job list");
    follow("a shard", "cairn snapshot restore JOB latest --yes", NULL);
    start_again();
    step();
}

TEST(a_node_for_good)
{
    take_snapshot();
    kill_shard(1);
    cluster_add_shard(&cluster, 2);
    await_said("shard-2", "cluster status");
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
    cluster_freeze(cluster.shards[1]);
    await_said("away", "cluster status");
    follow("the network", "cairn cluster status", NULL);
    follow("the network", "cairn job show JOB", NULL);
    expect_said(0, "shard-1");
    follow("the network", "cairn cluster events", NULL);
    expect_said(0, "shard-1");
    ck_assert_int_eq(kill(cluster.shards[1], SIGCONT), 0);
    step();
}

TEST(the_snapshots_storage)
{
    const char *moved = in_folder("moved");
    take_snapshot();
    ck_assert_int_eq(rename(cluster.snapshots_path, moved), 0);
    ck_assert_int_eq(mkdir(cluster.snapshots_path, 0750), 0); // it is not mounted
    step();
    run_of("the snapshots' storage", "cairn snapshot create JOB --wait", NULL);
    ck_assert_int_ne(said.status, 0);
    step();
    ck_assert_int_eq(rename(moved, cluster.snapshots_path), 0);
    await((run_of("the snapshots' storage", "cairn snapshot create JOB --wait", NULL),
           said.status == 0)); // daemons see it with their next heartbeat
}

TEST(everything)
{
    take_snapshot();
    kill_coordinator();
    for (int i = 0; i < 2; i++) kill_shard(i);
    restart_coordinator();
    for (int i = 0; i < 2; i++) restart_shard(i);
    await_said("lost", "job list");
    follow("everything (power)", "cairn snapshot restore JOB latest --yes", NULL);
    start_again();
    step();
}

SUITE(60, set_up, stop);
