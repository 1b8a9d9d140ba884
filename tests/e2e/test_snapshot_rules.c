/* A run that makes twenty snapshots by rules, on real daemons: which stay, what has a tag, what is refused,
 * and a coordinator that is killed in the middle of it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

static struct cluster_said said;
static const char *const quick[] = { "lease.heartbeat=100ms", NULL };
enum { ELEMS = 5000, STEPS = 20 };

static struct trainer attach(const struct cluster *cluster)
{
    struct trainer t = { .session = tiny_session(cluster, NULL), .name = "kept" };
    t.job = tiny_open(
        t.session, t.name,
        TINY(ELEMS, .snapshot_every = 1, .snapshot_keep = 3, .snapshot_keep_every = 5));
    return t;
}

static cairn_status try_step(const struct trainer *t, uint64_t *step_out)
{
    static const float gradient[ELEMS];
    const struct cairn_mem mem = trainer_mem(gradient, CAIRN_F32);
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status status = cairn_round_begin(t->job, CLUSTER_WAIT_MS, &round);
    if (status == CAIRN_OK) status = cairn_push(t->job, &round, 0, "w", NULL, &mem, NULL);
    if (status == CAIRN_OK)
        status = cairn_commit(t->job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result);
    if (status == CAIRN_OK) *step_out = result.step;
    return status;
}

/* One step, and its snapshot. */
static uint64_t step(const struct trainer *t, const struct cluster *cluster)
{
    char committed[128];
    uint64_t done = 0;
    const time_t end = time(NULL) + CLUSTER_WAIT_MS / 1000;
    while (try_step(t, &done) != CAIRN_OK)
        ck_assert(time(NULL) < end); // the coordinator was killed
    snprintf(committed, sizeof committed, "snapshot step-%012" PRIu64 "-g1 of job kept committed",
             done);
    while (cluster_logged(cluster, "coordinator.log", committed) == 0)
        ck_assert_msg(time(NULL) < end, "no %s", committed);
    return done;
}

static void expect_listed(const struct cluster *cluster, const char *expected)
{
    const time_t end = time(NULL) + CLUSTER_WAIT_MS / 1000;
    do {
        cluster_cli(cluster, &said, "snapshot", "list", "-q", "kept", NULL);
        ck_assert_msg(time(NULL) < end, "%s, not %s", said.out, expected);
    } while (strcmp(said.out, expected) != 0);
}

/* The newest, which is read again by a thread that gives way to all others: until then none goes for it. */
static void await_verified(const struct cluster *cluster)
{
    const time_t end = time(NULL) + CLUSTER_WAIT_MS / 1000;
    do {
        cluster_cli(cluster, &said, "snapshot", "prune", "kept", "--dry-run", NULL);
        ck_assert_msg(time(NULL) < end, "%s", said.out);
    } while (said.status != 0 || strstr(said.out, "verified") != NULL);
}

TEST(of_twenty_snapshots_those_stay_that_a_rule_or_a_tag_keeps)
{
    struct cluster cluster;
    const struct cluster_options options = { .coordinator_set = quick };
    cluster_start(&cluster, 2, &options);
    struct trainer t = attach(&cluster);
    for (uint64_t done = 0; done < STEPS;) {
        done = step(&t, &cluster);
        if (done == 7)
            cluster_says(&cluster, 0, "paper", "snapshot", "tag", "kept", "step-000000000007-g1",
                         "paper", NULL);
        if (done != 12) continue;
        cluster_kill_coordinator(&cluster); // old ones are being removed, perhaps
        cluster_restart_coordinator(&cluster);
    }
    expect_listed(&cluster, "step-000000000020-g1\nstep-000000000019-g1\nstep-000000000018-g1\n"
                            "step-000000000015-g1\nstep-000000000010-g1\nstep-000000000007-g1\n"
                            "step-000000000005-g1\n");
    cluster_says(&cluster, 0, "latest", "snapshot", "list", "kept", NULL);
    cluster_says(&cluster, 0, "\"paper\"", "snapshot", "list", "kept", "-ojson", NULL);
    cluster_says(&cluster, 0, "\"running\"", "snapshot", "list", "kept", "-ojson", NULL);
    // One is taken at each step, so there is none to compare with.
    cluster_says(&cluster, 0, "not measured yet", "snapshot", "advise", "kept", "--mtbf", "7d",
                 NULL);
    cluster_says(&cluster, 0, "\"interval_s\"", "snapshot", "advise", "kept", "-ojson", NULL);
    cluster_says(&cluster, 2, "longer than 0", "snapshot", "advise", "kept", "--mtbf", "0", NULL);
    cluster_says(&cluster, 0, "it has a tag", "snapshot", "prune", "kept", "--dry-run", NULL);
    cluster_says(&cluster, 12, "has the tag paper", "snapshot", "rm", "kept",
                 "step-000000000007-g1", "--yes", NULL);
    cluster_says(&cluster, 2, "is no tag", "snapshot", "tag", "kept", "step-000000000007-g1", "a/b",
                 NULL);
    cluster_says(&cluster, 4, "has no tag", "snapshot", "tag", "kept", "step-000000000007-g1",
                 "other", "--delete", NULL);
    cluster_says(&cluster, 0, "", "snapshot", "tag", "kept", "step-000000000007-g1", "paper",
                 "--delete", NULL);
    await_verified(&cluster);
    cluster_says(&cluster, 0, "would go", "snapshot", "prune", "kept", "--dry-run", "--keep-last",
                 "1", NULL);
    cluster_says(&cluster, 0, "no rule keeps it", "snapshot", "prune", "kept", "--keep-last", "1",
                 NULL);
    expect_listed(&cluster, "step-000000000020-g1\n");
    cluster_says(&cluster, 12, "is the only verified one", "snapshot", "rm", "kept",
                 "step-000000000020-g1", "--yes", NULL);
    cluster_says(&cluster, 0, "step 20", "snapshot", "restore", "kept", "latest", "--yes", NULL);
    cairn_close(t.session);
    cluster_stop(&cluster);
}

TEST(what_reads_a_snapshot_asks_the_coordinator_where_it_is)
{
    struct cluster cluster;
    char to[CAIRN_SCRATCH_BYTES + 32], root[CAIRN_SCRATCH_BYTES + 32];
    cluster_start(&cluster, 2, NULL);
    struct trainer t = attach(&cluster);
    for (int i = 0; i < 2; i++) {
        (void)step(&t, &cluster);
        cluster_says(&cluster, 0, "step-", "snapshot", "create", "kept", "--wait", NULL);
    }
    snprintf(to, sizeof to, "%s/exported", cluster.folder);
    snprintf(root, sizeof root, "%s/copied", cluster.folder);
    ck_assert_int_eq(mkdir(root, 0750), 0);
    cluster_says(&cluster, 0, "", "snapshot", "export", "kept", "latest", "--to", to, NULL);
    cluster_says(&cluster, 0, "", "snapshot", "copy", "kept", "latest", "--to", root, NULL);
    cluster_says(&cluster, 0, "", "snapshot", "verify", "kept", "latest", NULL);
    cluster_says(&cluster, 0, "MEAN", "snapshot", "show", "kept", "latest", "--stats", NULL);
    cluster_says(&cluster, 1, "1 in A, 2 in B", "snapshot", "diff", "kept", "step-000000000001-g1",
                 "step-000000000002-g1", NULL);
    cluster_says(&cluster, 4, "no committed snapshot", "snapshot", "verify", "kept",
                 "step-000000000009-g1", NULL);
    cairn_close(t.session);
    cluster_stop(&cluster);
}

TEST(a_job_is_created_out_of_a_snapshot_beside_the_one_that_it_is_of)
{
    struct cluster cluster;
    char root[80];
    cluster_start(&cluster, 2, NULL);
    struct trainer t = attach(&cluster);
    (void)step(&t, &cluster);
    cluster_says(&cluster, 0, "step-", "snapshot", "create", "kept", "--wait", NULL);
    cluster_cli(&cluster, &said, "job", "digest", "-q", "kept", NULL);
    snprintf(root, sizeof root, "%.64s", said.out);
    cluster_says(&cluster, 0, "shard", "job", "create", "--from", "kept/latest", "--as", "copy",
                 "--dry-run", NULL);
    cluster_says(&cluster, 4, "copy", "job", "show", "copy", NULL); // nothing was made
    cluster_says(&cluster, 0, "job copy", "job", "create", "--from", "kept/latest", "--as", "copy",
                 NULL);
    cluster_says(&cluster, 0, root, "job", "digest", "-q", "copy", NULL);
    cluster_says(&cluster, 4, "there is no snapshot", "job", "create", "--from", "./nowhere", NULL);
    cluster_says(&cluster, 2, "needs --from", "job", "create", NULL);
    cairn_close(t.session);
    cluster_stop(&cluster);
}

SUITE(100);
