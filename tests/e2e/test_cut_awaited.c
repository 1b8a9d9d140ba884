/* A digest or a snapshot that has to wait says for whom, at once and once, and names it when time is up. One
 * that waits in vain is given up, by itself or by an operator, and holds nothing up any more. */
#include <signal.h>
#include <unistd.h>

#include "tests/e2e/scene.h"

static void check_named(const char *command, const char *shard)
{
    char line[128];
    snprintf(line, sizeof line, "cairn: %s: waits for shard %s (it is away)\n", command, shard);
    ck_assert_msg(strstr(said.err, line) == said.err, "%s", said.err);
    const char *rest = said.err + strlen(line);
    ck_assert_msg(strstr(rest, "cairn: not done within 1500 ms: still waiting for shard") == rest &&
                      strstr(rest, shard) != NULL && strstr(rest, "[CAIRN-E0004]") != NULL,
                  "%s", said.err);
    ck_assert_msg(strchr(rest, '\n')[1] == '\0', "%s", said.err); // it said so once
}

/* It succeeded, and named nobody as away. On a busy machine a shard that is there may be late, and named. */
static void check_unnamed(const char *waits)
{
    expect_said(0);
    if (said.err[0] == '\0') return;
    ck_assert_msg(strstr(said.err, waits) == said.err && strstr(said.err, "away") == NULL &&
                      strchr(said.err, '\n')[1] == '\0',
                  "%s", said.err);
}

/* The name that the status of the cluster has for the shard that is away. */
static void name_of_away(char name[64])
{
    await_said("(it is away)", "job show tiny");
    ask("job show tiny");
    const char *at = strstr(said.out, "shard ");
    ck_assert_msg(at != NULL && sscanf(at, "shard %63[^ ]", name) == 1, "%s", said.out);
}

TEST(a_cut_that_waits_for_a_shard_says_so_at_once_and_when_its_time_is_up)
{
    char name[64], id[64], text[512] = "";
    struct cluster_command create;
    start(2, .coordinator_set = SETTINGS("lease.timeout=60s")); // nothing is given up meanwhile
    join("tiny", TINY(20000));
    ask("job digest tiny");
    check_unnamed("cairn: job digest: waits for ");
    ask("snapshot create --wait tiny");
    check_unnamed("cairn: snapshot create: waits for ");
    kill_shard(1);
    name_of_away(name);

    ask("job digest -q tiny --timeout 1.5");
    ck_assert_int_eq(said.status, 124);
    ck_assert_str_eq(said.out, "");
    check_named("job digest", name);

    // At once: while it has a minute left.
    cluster_cli_begin(&cluster, &create, "snapshot create --wait tiny --timeout 60");
    await(pread(create.err_fd, text, sizeof text - 1, 0) > 0 && strchr(text, '\n') != NULL);
    ck_assert_msg(strstr(text, "cairn: snapshot create: waits for shard ") == text &&
                      strstr(text, name) != NULL,
                  "%s", text);
    ck_assert_int_eq(cluster_wait(create.pid, 0), -1);
    cluster_kill(create.pid);

    // The snapshot is asked for, whoever waits: another one hears for whom.
    says(11, name, "job digest -q tiny --timeout 1.5");
    fails(cairn_snapshot(job, CAIRN_SNAPSHOT_WAIT, 200, id), CAIRN_ERR_BUSY, name);
}

static void start_with_short_lease(void)
{
    start(2, .coordinator_set = SETTINGS("lease.heartbeat=200ms", "lease.timeout=2s"));
    join("tiny", TINY(20000));
}

TEST(a_shard_that_died_ends_the_snapshot_by_itself_and_the_job_is_restored)
{
    char id[CLUSTER_WORD_BYTES];
    start_with_short_lease();
    word_of(id, "snapshot create tiny --wait -q");
    ck_assert_ptr_nonnull(strstr(id, "step-"));
    kill_shard(1);
    says(10, "it is away for longer than lease.timeout", "snapshot create tiny --wait");
    restart_shard(1); // an empty one
    says(0, id, "snapshot restore tiny %s --yes", id);
    says(0, "", "job digest tiny");
}

TEST(what_an_operator_gives_up_leaves_no_files_and_the_next_snapshot_is_taken)
{
    char id[CLUSTER_WORD_BYTES];
    start_with_short_lease();
    says(4, "no snapshot or digest of job tiny", "snapshot cancel tiny");
    says(4, "no job", "snapshot cancel none");
    cluster_freeze(cluster.shards[1]); // as if its disk hung
    word_of(id, "snapshot create tiny -q");
    ck_assert_ptr_nonnull(strstr(id, "step-"));
    const char *folder = snapshot_folder("tiny", id);
    ck_assert_int_eq(access(folder, F_OK), 0);
    says(0, id, "snapshot cancel tiny %s", id);
    ck_assert_int_ne(access(folder, F_OK), 0);
    kill(cluster.shards[1], SIGCONT);
    await_unsaid("away", "job list");
    says(0, "committed", "snapshot create tiny --wait");
}

SUITE(90, .tear_down = stop);
