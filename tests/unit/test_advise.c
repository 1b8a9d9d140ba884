/* How often a snapshot is advised: Young's rule and its bounds, and what the coordinator measures for it. */
#include <check.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/job.h"
#include "server/coordinator/snapshot.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static const struct {
    struct advise_given given;
    struct advise_found expected;
} cases[] = {
    { { .mtbf_s = 86400, .cost_s = 2, .step_s = 0.5 }, { 588, 1176, false } },
    { { .mtbf_s = 3600, .cost_s = 0.5, .write_s = 10, .step_s = 2 }, { 60, 30, false } },
    { { .mtbf_s = 3600, .cost_s = 0.5 }, { 60, 0, false } },                // no step is known
    { { .mtbf_s = 3600, .cost_s = 0.5, .step_s = 500 }, { 60, 1, false } }, // less than one
    { { .mtbf_s = 100, .cost_s = 0.02, .write_s = 30, .step_s = 1 }, { 30, 30, true } },
    { { .mtbf_s = 86400, .cost_s = 0, .write_s = 0.2, .step_s = 0.1 }, { 1, 10, true } }, // unseen
    { { .mtbf_s = 1, .cost_s = 0.001, .step_s = 0.25 }, { 1, 4, false } }, // never below 1 s
    { { .mtbf_s = 3e8, .cost_s = 1e9 }, { CAIRN_SPEC_SNAPSHOT_S_MAX, 0, false } },
};

TEST_EACH(the_interval_is_youngs_but_no_shorter_than_a_snapshot_takes, 0,
          sizeof cases / sizeof cases[0])
{
    const struct advise_found found = coord_advise(&cases[_i].given);
    ck_assert_uint_eq(found.interval_s, cases[_i].expected.interval_s);
    ck_assert_uint_eq(found.interval_steps, cases[_i].expected.interval_steps);
    ck_assert_int_eq(found.by_write, cases[_i].expected.by_write);
}

SUITE(30);

/* ---- what is measured, of a job and a snapshot that are made up ---- */

static struct coord made_cluster;
static struct coord_job made = { .cluster = &made_cluster };
static struct coord_snapshot snapshot = { .job = &made, .number = 7, .has_files = true };

static void make(void)
{
    made_cluster.loop = uv_default_loop();
}

static void step(uint32_t us)
{
    made.rounds.pace.last_us = us;
    coord_cost_note_step(&made);
}

static void end_cut(cairn_status status)
{
    snapshot.status = status;
    coord_snapshot_note_end(&snapshot);
    made.snapshots.running = NULL;
}

TEST(a_snapshot_costs_what_steps_were_longer_until_the_one_in_which_it_ended)
{
    for (int i = 0; i < 9; i++) step(1000);
    made.snapshots.running = &snapshot;
    step(1500);
    step(900);
    end_cut(CAIRN_OK);
    ck_assert_uint_eq(made.snapshots.cost.count, 0); // its last step has not ended
    step(1200);
    step(5000); // of none
    ck_assert_uint_eq(made.snapshots.cost.count, 1);
    ck_assert_uint_eq(made.snapshots.cost.extras_us[0], 600);
}

TEST(one_that_begins_and_ends_within_a_step_costs_that_steps_more)
{
    for (int i = 0; i < 9; i++) step(1000);
    made.snapshots.running = &snapshot;
    end_cut(CAIRN_OK);
    step(1700);
    ck_assert_uint_eq(made.snapshots.cost.extras_us[0], 700);
}

TEST(one_that_failed_or_came_before_there_were_steps_or_is_a_digest_is_not_counted)
{
    made.snapshots.running = &snapshot;
    end_cut(CAIRN_OK);
    step(1000);
    for (int i = 0; i < 9; i++) step(1000);
    made.snapshots.running = &snapshot;
    step(9000);
    end_cut(CAIRN_ERR_NO_SPACE);
    step(9000);
    snapshot.has_files = false;
    made.snapshots.running = &snapshot;
    step(9000);
    end_cut(CAIRN_OK);
    step(1000);
    ck_assert_uint_eq(made.snapshots.cost.count, 0);
    ck_assert_uint_eq(coord_pace_median(&made.snapshots.cost.plain), 1000);
}

SUITE(30, make, NULL);

/* ---- what is answered ---- */

static Cairn__SnapshotAdvice *advise(uint64_t mtbf_s)
{
    const uint32_t request = fake_ask(&admin, SnapshotAdvise, .job = "toy", .mtbf_s = mtbf_s);
    return fake_hear(&admin, SnapshotAdvice, request);
}

TEST(advice_needs_a_measured_snapshot_and_faults_or_a_word_how_often_they_come)
{
    Cairn__SnapshotAdvice *a = advise(86400);
    ck_assert_uint_eq(a->interval_s, 0);
    ck_assert_msg(strstr(a->note, "no snapshot was measured yet") != NULL, "%s", a->note);
    for (int i = 0; i < 10; i++) train();
    take_snapshot();
    train();
    a = advise(0);
    ck_assert_uint_eq(a->measured, 1);
    ck_assert_uint_eq(a->interval_s, 0);
    ck_assert_msg(strstr(a->note, "--mtbf") != NULL, "%s", a->note);
    a = advise(86400);
    ck_assert_uint_gt(a->interval_s, 0);
    ck_assert_uint_gt(a->interval_steps, 0);
    ck_assert(a->mtbf_given && a->mtbf_s == 86400);
    fake_shard_away(&fake, 1);
    fake_until(&fake, !toy()->shards[1].up);
    a = advise(0);
    ck_assert_uint_eq(a->shard_faults, 1);
    ck_assert(!a->mtbf_given && a->mtbf_s > 0 && a->interval_s > 0);
}

TEST(of_a_job_that_is_not_there_nothing_is_advised)
{
    fake_expect_error(&admin, fake_ask(&admin, SnapshotAdvise, .job = "nobody"),
                      CAIRN_ERR_NOT_FOUND, "there is no job nobody; `cairn job list`");
}

SUITE(30, open_trained, close_fake);
