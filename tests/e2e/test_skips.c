/* Rounds whose gradients are not finite, on real daemons: their batches are used up and counted, through a
 * killed coordinator and into snapshots, and too many of them in a row end it until somebody acts. */
#include <cairn.h>
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

enum { ELEMS = 5000, MAX = 4 };

struct trainer {
    cairn *session;
    cairn_job *job;
};

static struct trainer attach(const struct cluster *cluster, const char *name)
{
    struct tiny_job tiny;
    tiny_describe(&tiny, ELEMS);
    tiny.spec.skips_max = MAX;
    struct trainer t = { .session = tiny_session(cluster, NULL) };
    t.job = tiny_open(t.session, name, &tiny);
    return t;
}

static struct cairn_round begin(const struct trainer *t)
{
    struct cairn_round round = { .struct_size = sizeof round };
    good(cairn_round_begin(t->job, CLUSTER_WAIT_MS, &round));
    ck_assert_uint_eq(round.index, round.step + round.skips);
    return round;
}

static void push(const struct trainer *t, const struct cairn_round *round, float value)
{
    static float gradient[ELEMS];
    const struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = gradient, .dtype = CAIRN_F32 };
    for (int i = 0; i < ELEMS; i++) gradient[i] = value;
    good(cairn_push(t->job, round, 0, "w", NULL, &mem, NULL));
}

/* A round of the batch `index`, whose gradients are that. */
static struct cairn_result train(const struct trainer *t, uint64_t index, float value)
{
    const struct cairn_round round = begin(t);
    struct cairn_result result = { .struct_size = sizeof result };
    ck_assert_uint_eq(round.index, index);
    push(t, &round, value);
    good(cairn_commit(t->job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result));
    ck_assert_uint_eq(result.index, index + 1);
    ck_assert(result.applied == isfinite(value) && result.finite == isfinite(value));
    return result;
}

static void expect_shown(const struct cluster *cluster, const char *job, const char *text)
{
    struct cluster_said said;
    cluster_cli(cluster, &said, "job", "show", job, NULL);
    ck_assert_msg(said.status == 0 && strstr(said.out, text) != NULL, "no \"%s\" in:\n%s", text,
                  said.out);
}

static void expect_logged(const struct cluster *cluster, const char *text)
{
    static char log[1 << 20];
    char path[CAIRN_SCRATCH_BYTES + 32];
    snprintf(path, sizeof path, "%s/coordinator.log", cluster->folder);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    log[fread(log, 1, sizeof log - 1, file)] = '\0';
    fclose(file);
    ck_assert_msg(strstr(log, text) != NULL, "no \"%s\" in:\n%s", text, log);
}

static void expect_halted(const struct trainer *t)
{
    struct cairn_round round = { .struct_size = sizeof round };
    ck_assert_int_eq(cairn_round_begin(t->job, CLUSTER_WAIT_MS, &round), CAIRN_ERR_HALTED);
    ck_assert_msg(strstr(cairn_error(), "4 rounds in a row were skipped") != NULL, "%s",
                  cairn_error());
}

START_TEST(a_skip_uses_its_batch_up_whoever_dies_and_wherever_it_is_restored)
{
    struct cluster cluster;
    struct cluster_said said;
    char id[128];
    cluster_start(&cluster, 2, NULL);
    struct trainer t = attach(&cluster, "tiny");
    (void)train(&t, 0, 0.5f);
    ck_assert_uint_eq(train(&t, 1, NAN).skips, 1);
    ck_assert_uint_eq(train(&t, 2, INFINITY).step, 1);
    struct cairn_round round = begin(&t); // void: its batch comes again
    push(&t, &round, 1);
    good(cairn_round_abandon(t.job, &round, CLUSTER_WAIT_MS));
    round = begin(&t);
    ck_assert_uint_eq(round.index, 3);
    cluster_kill_coordinator(&cluster);
    cluster_restart_coordinator(&cluster);
    struct cairn_result result = { .struct_size = sizeof result };
    push(&t, &round, 1);
    ck_assert_int_eq(cairn_commit(t.job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result),
                     CAIRN_ERR_EPOCH_CHANGED);
    ck_assert_uint_eq(train(&t, 3, 0.5f).step, 2);
    expect_shown(&cluster, "tiny", "2 in all; the next batch is number 4");
    cluster_cli(&cluster, &said, "snapshot", "create", "-q", "tiny", "--wait", NULL);
    ck_assert_msg(sscanf(said.out, "%127s", id) == 1, "%s", said.err);
    (void)train(&t, 4, NAN);
    cairn_close(t.session);
    cluster_cli(&cluster, &said, "snapshot", "restore", "tiny", id, "--yes", NULL);
    ck_assert_msg(said.status == 0, "%s", said.err);
    t = attach(&cluster, "tiny");
    ck_assert_uint_eq(train(&t, 4, 0.5f).skips, 2);
    cairn_close(t.session);
    cluster_stop(&cluster);
}
END_TEST

START_TEST(too_many_in_a_row_end_it_until_the_job_is_amended_or_restored)
{
    struct cluster cluster;
    struct cluster_said said;
    char id[128];
    cluster_start(&cluster, 2, NULL);
    struct trainer t = attach(&cluster, "tiny");
    for (uint64_t i = 0; i < MAX; i++) (void)train(&t, i, NAN);
    expect_halted(&t);
    expect_logged(&cluster, "of step 0 is skipped, because a gradient is not finite: 1 in a row");
    expect_logged(&cluster, "job tiny is halted at step 0: 4 rounds in a row were skipped");
    expect_shown(&cluster, "tiny", "halted");
    expect_shown(&cluster, "tiny", "4 in a row with the loss scale at its least, at most 4");
    cluster_cli(&cluster, &said, "snapshot", "create", "-q", "tiny", "--wait", NULL);
    ck_assert_msg(sscanf(said.out, "%127s", id) == 1, "%s", said.err);
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
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("skips");
    tcase_set_timeout(tcase, 90);
    tcase_add_test(tcase, a_skip_uses_its_batch_up_whoever_dies_and_wherever_it_is_restored);
    tcase_add_test(tcase, too_many_in_a_row_end_it_until_the_job_is_amended_or_restored);
    Suite *suite = suite_create("skips");
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
