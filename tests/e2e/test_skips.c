/* Rounds whose gradients are not finite, on real daemons: their batches are used up and counted, through a
 * killed coordinator and into snapshots, and too many of them in a row end it until somebody acts. */
#include <math.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

enum { ELEMS = 5000, MAX = 4 };

static struct trainer attach(const struct cluster *cluster, const char *name)
{
    return tiny_attach(cluster, name, TINY(ELEMS, .skips_max = MAX));
}

static struct cairn_round begin(const struct trainer *t)
{
    const struct cairn_round round = trainer_begin(t->job);
    ck_assert_uint_eq(round.index, round.step + round.skips);
    return round;
}

/* A round of the batch `index`, whose gradients are that. */
static struct cairn_result train(const struct trainer *t, uint64_t index, float value)
{
    const struct cairn_round round = begin(t);
    struct cairn_result result = { .struct_size = sizeof result };
    ck_assert_uint_eq(round.index, index);
    tiny_push(t->job, &round, ELEMS, value);
    good(cairn_commit(t->job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result));
    ck_assert_uint_eq(result.index, index + 1);
    ck_assert(result.applied == isfinite(value) && result.finite == isfinite(value));
    return result;
}

static void expect_shown(const struct cluster *cluster, const char *job, const char *text)
{
    cluster_says(cluster, 0, text, "job", "show", job, NULL);
}

static void expect_halted(const struct trainer *t)
{
    struct cairn_round round = { .struct_size = sizeof round };
    fails(cairn_round_begin(t->job, CLUSTER_WAIT_MS, &round), CAIRN_ERR_HALTED,
          "4 rounds in a row were skipped");
}

TEST(a_skip_uses_its_batch_up_whoever_dies_and_wherever_it_is_restored)
{
    struct cluster cluster;
    char id[128];
    cluster_start(&cluster, 2, NULL);
    struct trainer t = attach(&cluster, "tiny");
    (void)train(&t, 0, 0.5f);
    ck_assert_uint_eq(train(&t, 1, NAN).skips, 1);
    ck_assert_uint_eq(train(&t, 2, INFINITY).step, 1);
    struct cairn_round round = begin(&t); // void: its batch comes again
    tiny_push(t.job, &round, ELEMS, 1);
    good(cairn_round_abandon(t.job, &round, CLUSTER_WAIT_MS));
    round = begin(&t);
    ck_assert_uint_eq(round.index, 3);
    cluster_kill_coordinator(&cluster);
    cluster_restart_coordinator(&cluster);
    struct cairn_result result = { .struct_size = sizeof result };
    tiny_push(t.job, &round, ELEMS, 1);
    ck_assert_int_eq(cairn_commit(t.job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result),
                     CAIRN_ERR_EPOCH_CHANGED);
    ck_assert_uint_eq(train(&t, 3, 0.5f).step, 2);
    expect_shown(&cluster, "tiny", "2 in all; the next batch is number 4");
    cluster_word(&cluster, id, "snapshot", "create", "-q", "tiny", "--wait", NULL);
    (void)train(&t, 4, NAN);
    cairn_close(t.session);
    cluster_says(&cluster, 0, "", "snapshot", "restore", "tiny", id, "--yes", NULL);
    t = attach(&cluster, "tiny");
    ck_assert_uint_eq(train(&t, 4, 0.5f).skips, 2);
    cairn_close(t.session);
    cluster_stop(&cluster);
}

TEST(too_many_in_a_row_end_it_until_the_job_is_amended_or_restored)
{
    struct cluster cluster;
    struct cluster_said said;
    char id[128];
    cluster_start(&cluster, 2, NULL);
    struct trainer t = attach(&cluster, "tiny");
    for (uint64_t i = 0; i < MAX; i++) (void)train(&t, i, NAN);
    expect_halted(&t);
    ck_assert(cluster_logged(&cluster, "coordinator.log",
                             "of step 0 is skipped, because the gradient of w (5000) is not finite "
                             "(5000 elements): 1 in a row"));
    ck_assert(cluster_logged(&cluster, "coordinator.log",
                             "job tiny is halted at step 0: 4 rounds in a row were skipped"));
    ck_assert(cluster_logged(&cluster, "coordinator.log",
                             "; in the last one the gradient of w (5000) is not finite"));
    expect_shown(&cluster, "tiny", "halted");
    expect_shown(&cluster, "tiny", "the gradient of w (5000) is not finite (5000 elements)");
    expect_shown(&cluster, "tiny", "4 in a row with the loss scale at its least, at most 4");
    cluster_word(&cluster, id, "snapshot", "create", "-q", "tiny", "--wait", NULL);
    cluster_kill_coordinator(&cluster);
    cluster_restart_coordinator(&cluster);
    expect_halted(&t);
    struct cairn_group group = CAIRN_GROUP_INIT;
    group.lr /= 2;
    const struct cairn_amend amend = { .struct_size = sizeof amend,
                                       .groups = &group,
                                       .group_count = 1 };
    good(cairn_job_amend(t.job, &amend, CLUSTER_WAIT_MS));
    (void)train(&t, MAX, NAN);
    cluster_kill_coordinator(&cluster);
    cluster_restart_coordinator(&cluster);
    (void)train(&t, MAX + 1, 0.5f);
    for (uint64_t i = 0; i < MAX; i++) (void)train(&t, MAX + 2 + i, NAN);
    expect_halted(&t);
    cairn_close(t.session);
    cluster_cli(&cluster, &said, "snapshot", "restore", "tiny", id, "--yes",
                NULL); // of when it was halted
    ck_assert_msg(said.status == 0, "%s", said.err);
    t = attach(&cluster, "tiny");
    (void)train(&t, MAX, 0.5f);
    expect_shown(&cluster, "tiny", "running");
    cairn_close(t.session);
    cluster_stop(&cluster);
}

TEST(of_a_job_that_is_damaged_already_the_halt_says_what_mends_it)
{
    struct cluster cluster;
    cluster_start(&cluster, 2, NULL);
    const struct trainer t = attach(&cluster, "tiny");
    (void)train(&t, 0, 1e25f); // its square is infinite
    for (uint64_t i = 0; i < MAX; i++) (void)train(&t, 1 + i, NAN);
    expect_halted(&t);
    ck_assert_msg(strstr(cairn_error(),
                         "5000 elements have a non-finite result of the last update: w (5000); no "
                         "round opens until the job is restored from a snapshot, or "
                         "these planes are written") != NULL,
                  "%s", cairn_error());
    ck_assert_ptr_null(strstr(cairn_error(), "lower lr"));
    cairn_close(t.session);
    cluster_stop(&cluster);
}

SUITE(90);
