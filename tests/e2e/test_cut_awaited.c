/* A digest or a snapshot that has to wait says for whom, at once and once, and names it when time is up. One
 * that waits in vain is given up, by itself or by an operator, and holds nothing up any more. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

enum { TRIES = 300, TRY_NS = 50 * 1000000 };

/* A cluster of two shards with a job that is initialized. */
static void start(struct cluster *cluster, const struct cluster_options *options,
                  cairn **session_out, cairn_job **job_out)
{
    struct tiny_job tiny;
    tiny_describe(&tiny, 20000);
    cluster_start(cluster, 2, options);
    *session_out = tiny_session(cluster, NULL);
    *job_out = tiny_open(*session_out, "tiny", &tiny);
}

static void check_named(const char *said, const char *command, const char *shard)
{
    char line[128];
    snprintf(line, sizeof line, "cairn: %s: waits for shard %s (it is away)\n", command, shard);
    const char *first = strstr(said, line);
    ck_assert_msg(first == said, "%s", said);
    const char *rest = first + strlen(line);
    ck_assert_msg(strstr(rest, "cairn: not done within 1500 ms: still waiting for shard") == rest &&
                      strstr(rest, shard) != NULL && strstr(rest, "[CAIRN-E0004]") != NULL,
                  "%s", said);
    ck_assert_msg(strchr(rest, '\n')[1] == '\0', "%s", said); // nothing more: it said so once
}

/* It succeeded, and named nobody as away. On a busy machine a shard that is there may be late, and named. */
static void check_unnamed(const struct cluster_said *said, const char *command)
{
    char late[64];
    snprintf(late, sizeof late, "cairn: %s: waits for ", command);
    ck_assert_msg(said->status == 0, "%s", said->err);
    if (said->err[0] == '\0') return;
    ck_assert_msg(strstr(said->err, late) == said->err && strstr(said->err, "away") == NULL &&
                      strchr(said->err, '\n')[1] == '\0',
                  "%s", said->err);
}

/* The name that the status of the cluster has for the shard that is away. */
static void name_of_away(const struct cluster *cluster, char name[64])
{
    struct cluster_said said;
    name[0] = '\0';
    for (int i = 0; i < TRIES && name[0] == '\0'; i++) { // until the coordinator has noticed
        nanosleep(&(struct timespec) { 0, TRY_NS }, NULL);
        cluster_cli(cluster, &said, "job", "show", "tiny", NULL);
        const char *at = strstr(said.out, "shard ");
        if (at != NULL && strstr(at, "(it is away)") != NULL) sscanf(at, "shard %63[^ ]", name);
    }
    ck_assert_msg(name[0] != '\0', "%s", said.out);
}

/* Nothing is given up meanwhile. */
static const char *const long_lease[] = { "lease.timeout=60s", NULL };
static const struct cluster_options patient = { .coordinator_set = long_lease };

TEST(a_cut_that_waits_for_a_shard_says_so_at_once_and_when_its_time_is_up)
{
    struct cluster cluster;
    struct cluster_said said;
    cairn *session;
    cairn_job *job;
    char name[64], id[64], log[CAIRN_SCRATCH_BYTES + 32], text[512] = "";
    start(&cluster, &patient, &session, &job);
    cluster_cli(&cluster, &said, "job", "digest", "tiny", NULL);
    check_unnamed(&said, "job digest");
    cluster_cli(&cluster, &said, "snapshot", "create", "--wait", "tiny", NULL);
    check_unnamed(&said, "snapshot create");
    cluster_kill_shard(&cluster, 1);
    name_of_away(&cluster, name);

    cluster_cli(&cluster, &said, "job", "digest", "-q", "tiny", "--timeout", "1.5", NULL);
    ck_assert_int_eq(said.status, 124);
    ck_assert_str_eq(said.out, "");
    check_named(said.err, "job digest", name);

    // At once: while it has a minute left.
    const char *const argv[] = { CAIRN_BIN_DIR "/cairn",
                                 "--endpoint",
                                 cluster.address,
                                 "snapshot",
                                 "create",
                                 "--wait",
                                 "tiny",
                                 "--timeout",
                                 "60",
                                 NULL };
    snprintf(log, sizeof log, "%s/create.log", cluster.folder);
    const pid_t pid = cluster_spawn(argv, log);
    for (int i = 0; i < TRIES && strchr(text, '\n') == NULL; i++) {
        FILE *file = fopen(log, "re");
        if (file != NULL) {
            text[fread(text, 1, sizeof text - 1, file)] = '\0';
            fclose(file);
        }
        nanosleep(&(struct timespec) { 0, TRY_NS }, NULL);
    }
    ck_assert_msg(strstr(text, "cairn: snapshot create: waits for shard ") == text &&
                      strstr(text, name) != NULL,
                  "%s", text);
    ck_assert_int_eq(cluster_wait(pid, 0), -1);
    cluster_kill(pid);

    // The snapshot is asked for, whoever waits: another one hears for whom.
    cluster_says(&cluster, 11, name, "job", "digest", "-q", "tiny", "--timeout", "1.5", NULL);
    fails(cairn_snapshot(job, CAIRN_SNAPSHOT_WAIT, 200, id), CAIRN_ERR_BUSY, name);
    cairn_close(session);
    cluster_stop(&cluster);
}

static const char *const short_lease[] = { "lease.heartbeat=200ms", "lease.timeout=2s", NULL };

/* `cairn ARGUMENTS`: its exit status, and a word of what it says. */
static void run(const struct cluster *cluster, struct cluster_said *said, int status,
                const char *word, const char *const *a)
{
    cluster_cli(cluster, said, a[0], a[1], a[2], a[3], a[4], a[5], NULL);
    ck_assert_msg(said->status == status, "%s %s %s: %d: %s%s", a[0], a[1], a[2], said->status,
                  said->out, said->err);
    ck_assert_msg(strstr(said->out, word) != NULL || strstr(said->err, word) != NULL, "%s%s",
                  said->out, said->err);
}
#define RUN(status, word, ...) \
    run(&cluster, &said, status, word, (const char *const[7]) { __VA_ARGS__ })

TEST(a_shard_that_died_ends_the_snapshot_by_itself_and_the_job_is_restored)
{
    const struct cluster_options options = { .coordinator_set = short_lease };
    struct cluster cluster;
    struct cluster_said said;
    cairn *session;
    cairn_job *job;
    char id[64];
    start(&cluster, &options, &session, &job);
    RUN(0, "step-", "snapshot", "create", "tiny", "--wait", "-q");
    ck_assert_int_eq(sscanf(said.out, "%63s", id), 1);
    cluster_kill_shard(&cluster, 1);
    RUN(10, "it is away for longer than lease.timeout", "snapshot", "create", "tiny", "--wait");
    cluster_restart_shard(&cluster, 1); // an empty one
    RUN(0, id, "snapshot", "restore", "tiny", id, "--yes");
    RUN(0, "", "job", "digest", "tiny");
    cairn_close(session);
    cluster_stop(&cluster);
}

TEST(what_an_operator_gives_up_leaves_no_files_and_the_next_snapshot_is_taken)
{
    const struct cluster_options options = { .coordinator_set = short_lease };
    struct cluster cluster;
    struct cluster_said said;
    cairn *session;
    cairn_job *job;
    char id[64], folder[CAIRN_SCRATCH_BYTES + 128];
    start(&cluster, &options, &session, &job);
    RUN(4, "no snapshot or digest of job tiny", "snapshot", "cancel", "tiny");
    RUN(4, "no job", "snapshot", "cancel", "none");
    kill(cluster.shards[1], SIGSTOP); // as if its disk hung
    RUN(0, "step-", "snapshot", "create", "tiny", "-q");
    ck_assert_int_eq(sscanf(said.out, "%63s", id), 1);
    snprintf(folder, sizeof folder, "%s/tiny/%s", cluster.snapshots_path, id);
    ck_assert_int_eq(access(folder, F_OK), 0);
    RUN(0, id, "snapshot", "cancel", "tiny", id);
    ck_assert_int_ne(access(folder, F_OK), 0);
    kill(cluster.shards[1], SIGCONT);
    cluster_await(&cluster, false, "away", "job", "list", NULL);
    RUN(0, "committed", "snapshot", "create", "tiny", "--wait");
    cairn_close(session);
    cluster_stop(&cluster);
}

SUITE(90);
