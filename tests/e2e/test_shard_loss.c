/* Periodic snapshots, and a job that goes on from the newest one by itself when a shard has lost its part, on
 * real daemons: with the bits of a run that lost nothing. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

static const char *const quick[] = { "lease.heartbeat=100ms", NULL };
enum { ELEMS = 5000, EVERY = 5, KEEP = 2, STEPS = 30, LOST_AT = 18 };

static void open_job(struct trainer *t)
{
    t->job = tiny_open(t->session, t->name,
                       TINY(ELEMS, .snapshot_every = EVERY, .snapshot_keep = KEEP,
                            .on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST));
}

static struct trainer attach(const struct cluster *cluster, const char *name)
{
    struct trainer t = { .session = tiny_session(cluster, NULL), .name = name };
    open_job(&t);
    return t;
}

/* The batch is the step's, so that a step done again is the same. */
static cairn_status try_step(const struct trainer *t, uint64_t *step_out)
{
    static float gradient[ELEMS];
    const struct cairn_mem mem = trainer_mem(gradient, CAIRN_F32);
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status status = cairn_round_begin(t->job, CLUSTER_WAIT_MS, &round);
    if (status != CAIRN_OK) return status;
    for (int i = 0; i < ELEMS; i++) gradient[i] = (float)((i + (int)round.step * 7) % 11) - 5;
    status = cairn_push(t->job, &round, 0, "w", NULL, &mem, NULL);
    if (status == CAIRN_OK)
        status = cairn_commit(t->job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result);
    if (status == CAIRN_OK) *step_out = result.step;
    return status;
}

static void list(const struct cluster *cluster, const char *job, struct cluster_said *said)
{
    cluster_cli(cluster, said, "snapshot", "list", "-q", job, NULL);
    ck_assert_msg(said->status == 0, "%s", said->err);
}

/* A step takes less than a millisecond here, and a snapshot some more; one that is due while another is under
 * way is left out: until that of the step is committed. */
static void await_snapshot(const struct cluster *cluster, const char *job, uint64_t step)
{
    const time_t end = time(NULL) + CLUSTER_WAIT_MS / 1000;
    for (unsigned generation = 1;; generation = 3 - generation) {
        char committed[128];
        snprintf(committed, sizeof committed,
                 "snapshot step-%012" PRIu64 "-g%u of job %s committed", step, generation, job);
        if (cluster_logged(cluster, "coordinator.log", committed) > 0) return;
        ck_assert_msg(time(NULL) < end, "no %s", committed);
    }
}

/* To the last step; at step `lost_at` a shard loses everything. Returns how often the job was rolled back. */
static int train(struct trainer *t, struct cluster *cluster, uint64_t lost_at)
{
    int rolled_back = 0;
    for (uint64_t step = 0; step < STEPS;) {
        const cairn_status status = try_step(t, &step);
        if (status == CAIRN_ERR_ROLLED_BACK) {
            struct cairn_version newest;
            cairn_job_close(t->job);
            open_job(t);
            good(cairn_version_wait(t->job, (struct cairn_version) { 0, 0 }, CLUSTER_WAIT_MS,
                                    &newest));
            ck_assert_uint_eq(newest.step, lost_at - lost_at % EVERY);
            step = newest.step;
            rolled_back++;
        } else if (status != CAIRN_ERR_EPOCH_CHANGED) {
            ck_assert_msg(status == CAIRN_OK, "%s", cairn_error());
            if (step % EVERY == 0) await_snapshot(cluster, t->name, step);
            if (step != lost_at || rolled_back > 0) continue;
            cluster_kill_shard(cluster, 1);
            cluster_restart_shard(cluster, 1);
        }
    }
    return rolled_back;
}

/* Old ones go behind the newest's back: until so many are left. */
static void expect_snapshots(const struct cluster *cluster, const char *job, const char *expected)
{
    struct cluster_said said;
    const time_t end = time(NULL) + CLUSTER_WAIT_MS / 1000;
    do {
        list(cluster, job, &said);
        ck_assert_msg(time(NULL) < end, "%s, not %s", said.out, expected);
    } while (strcmp(said.out, expected) != 0);
}

TEST(a_job_goes_on_from_its_newest_snapshot_with_the_bits_of_one_that_lost_nothing)
{
    struct cluster cluster;
    struct cluster_said said;
    char calm[65], rough[65];
    cluster_start(&cluster, 2, &(struct cluster_options) { .coordinator_set = quick });
    struct trainer t = attach(&cluster, "calm");
    ck_assert_int_eq(train(&t, &cluster, 0), 0);
    expect_snapshots(&cluster, "calm", "step-000000000030-g1\nstep-000000000025-g1\n");
    trainer_digest(&cluster, "calm", calm);
    cairn_close(t.session);
    cluster_says(&cluster, 0, "", "job", "drop", "calm", "--yes", NULL);
    t = attach(&cluster, "rough");
    ck_assert_int_eq(train(&t, &cluster, LOST_AT), 1);
    expect_snapshots(&cluster, "rough", "step-000000000030-g2\nstep-000000000025-g2\n");
    trainer_digest(&cluster, "rough", rough);
    ck_assert_str_eq(rough, calm);
    cluster_cli(&cluster, &said, "snapshot", "list", "rough", NULL);
    ck_assert_msg(strstr(said.out, "PERIODIC") != NULL && strstr(said.out, "yes") != NULL, "%s",
                  said.out);
    cluster_cli(&cluster, &said, "job", "show", "rough", NULL);
    ck_assert_msg(strstr(said.out, "every 5 steps, the newest 2 are kept") != NULL &&
                      strstr(said.out, "restore-latest, when it is away for 300 s") != NULL,
                  "%s", said.out);
    cairn_close(t.session);
    cluster_stop(&cluster);
}

/* `cairn job amend` with that option; then `cairn job show` has the words. */
static void amend(const struct cluster *cluster, const char *option, const char *value,
                  const char *words)
{
    struct cluster_said said;
    cluster_says(cluster, 0, "", "job", "amend", "periodic", option, value, NULL);
    cluster_cli(cluster, &said, "job", "show", "periodic", NULL);
    ck_assert_msg(strstr(said.out, words) != NULL, "%s", said.out);
}

TEST(an_operator_amends_what_it_does_by_itself_and_what_is_not_named_stays)
{
    struct cluster cluster;
    struct cluster_said said;
    cluster_start(&cluster, 1, NULL);
    struct trainer t = attach(&cluster, "periodic");
    amend(&cluster, "--snapshot-every", "7", "every 7 steps, the newest 2 are kept");
    amend(&cluster, "--shard-loss-wait", "60", "restore-latest, when it is away for 60 s");
    amend(&cluster, "--snapshot-keep", "0", "every 7 steps, all are kept");
    amend(&cluster, "--clip-norm", "3", "when it is away for 60 s");
    amend(&cluster, "--on-shard-loss", "restore-latest", "when it is away for 60 s");
    amend(&cluster, "--snapshot-keep", "4", "every 7 steps, the newest 4 are kept");
    amend(&cluster, "--on-shard-loss", "wait", "on shard loss");
    amend(&cluster, "--snapshot-every", "10 min", "every 10 min, the newest 4 are kept");
    amend(&cluster, "--snapshot-keep-every", "500", "newest 4, the first of every 500 steps are");
    amend(&cluster, "--snapshot-keep-within", "36h", "steps, those of the last 36 h are kept");
    amend(&cluster, "--snapshot-max-bytes", "3K", "are kept, at most 2.9 KiB of all");
    amend(&cluster, "--snapshot-staging", "small", "staging           small");
    amend(&cluster, "--snapshot-durable-within", "90", "durable within    90 s");
    amend(&cluster, "--snapshot-scrub-every", "7d", "scrubbed every    7 d");
    amend(&cluster, "--snapshot-fallback", "yes", "fallback          a damaged snapshot");
    cluster_says(&cluster, 2, "a time like 90s", "job", "amend", "periodic", "--snapshot-every",
                 "10 parsecs", NULL);
    cluster_says(&cluster, 2, "state and small are allowed", "job", "amend", "periodic",
                 "--snapshot-staging", "huge", NULL);
    amend(&cluster, "--snapshot-every", "0", "scrubbed every    7 d");
    cluster_cli(&cluster, &said, "job", "show", "periodic", NULL);
    ck_assert_msg(strstr(said.out, "are kept") == NULL && strstr(said.out, "60 s") == NULL, "%s",
                  said.out);
    cluster_cli(&cluster, &said, "job", "amend", "periodic", "--workers", "1:3", NULL);
    ck_assert_msg(said.status == 0 && strstr(said.out, "waits") == NULL, "%s", said.out);
    cluster_cli(&cluster, &said, "job", "amend", "periodic", "--workers", "3", NULL);
    ck_assert_msg(strstr(said.out, "for 2 more: a round opens with 3 workers, attached: 1") != NULL,
                  "%s", said.out);
    cluster_cli(&cluster, &said, "job", "amend", "periodic", "--workers", "1", NULL);
    cluster_says(&cluster, 2, "nothing would change: give an option", "job", "amend", "periodic",
                 NULL);
    cluster_cli(&cluster, &said, "job", "amend", "periodic", "--on-shard-loss", "never", NULL);
    ck_assert_int_ne(said.status, 0);
    ck_assert_msg(strstr(said.err, "wait and restore-latest are allowed") != NULL, "%s", said.err);
    cairn_close(t.session);
    t = attach(&cluster, "periodic"); // with the spec as it was
    cairn_close(t.session);
    cluster_stop(&cluster);
}

SUITE(90);
