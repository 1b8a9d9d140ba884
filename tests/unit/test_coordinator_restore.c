/* What an operator is told of snapshots: their order, what a restore would replace, what it has replaced. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/coordinator/job.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static Cairn__SnapshotStatus *restore(const char *name, const char *path, bool plan)
{
    const uint32_t request = fake_ask(&admin, SnapshotRestore, .job = wire_text(name),
                                      .path = wire_text(path), .plan = plan);
    return fake_hear(&admin, SnapshotStatus, request);
}

TEST(a_plan_says_what_would_be_replaced_and_touches_nothing)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    train();
    Cairn__SnapshotStatus *plan = restore("", s->path, true);
    ck_assert_str_eq(plan->job, "toy");
    ck_assert_str_eq(plan->id, s->id);
    ck_assert_uint_eq(plan->step, 1);
    ck_assert_uint_eq(plan->restored_generation, 0);
    ck_assert_ptr_nonnull(plan->replaced);
    ck_assert_str_eq(plan->replaced->state, "running");
    ck_assert_uint_eq(plan->replaced->step, 2);
    ck_assert_uint_eq(plan->replaced->workers, 1);
    plan = restore("other", s->path, true);
    ck_assert_str_eq(plan->job, "other");
    ck_assert_ptr_null(plan->replaced);
    train();
}

TEST(a_restore_tells_the_new_generation_and_how_many_have_to_open_the_job_again)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    train();
    Cairn__SnapshotStatus *done = restore("", s->path, false);
    ck_assert_uint_eq(done->restored_generation, 2);
    ck_assert_uint_eq(done->generation, 1); // the snapshot's
    ck_assert_ptr_nonnull(done->replaced);
    ck_assert_uint_eq(done->replaced->generation, 1);
    ck_assert_uint_eq(done->replaced->step, 2);
    ck_assert_uint_eq(done->replaced->workers, 1);
    ck_assert_uint_eq(done->replaced->readers, 0);
    fake_expect_error(&w, 0, CAIRN_ERR_ROLLED_BACK, "open it again");
    done = restore("other", s->path, false);
    ck_assert_uint_eq(done->restored_generation, 2);
    ck_assert_ptr_null(done->replaced);
}

TEST(the_newest_snapshot_is_listed_first_also_after_a_restore)
{
    Cairn__SnapshotStatus *first = take_snapshot();
    train();
    Cairn__SnapshotStatus *second = take_snapshot();
    restore("", first->path, false);
    Cairn__SnapshotStatus *third = take_snapshot();
    Cairn__SnapshotList *list = fake_call(&admin, SnapshotList, SnapshotListGet);
    ck_assert_uint_eq(list->n_snapshots, 3);
    ck_assert_str_eq(list->snapshots[0]->id, third->id);
    ck_assert_str_eq(list->snapshots[1]->id, second->id);
    ck_assert_str_eq(list->snapshots[2]->id, first->id);
}

/* ---- falling back ---- */

static uint32_t ask_fallback(const char *id, bool fallback)
{
    return fake_ask(&admin, SnapshotRestore, .job = "toy", .id = wire_text(id),
                    .fallback = fallback);
}

/* By the operator's flag, and by the job's setting. */
TEST_EACH(a_damaged_one_gives_way_to_an_older_one_by_a_word_alone, 0, 2)
{
    Cairn__SnapshotStatus *old = take_snapshot();
    train();
    Cairn__SnapshotStatus *new = take_snapshot();
    train();
    flip_last_byte(new->path);
    fake_expect_error(&admin, ask_fallback(new->id, false), CAIRN_ERR_CHECKSUM,
                      "--fallback takes step-000000000001-g1");
    ck_assert_uint_eq(coord_job_version(toy()).step, 3); // it was not touched
    toy()->spec.policy.snapshot_fallback = _i == 1;
    Cairn__SnapshotStatus *done = fake_hear(&admin, SnapshotStatus, ask_fallback(new->id, _i == 0));
    ck_assert_str_eq(done->id, old->id);
    ck_assert_ptr_nonnull(strstr(done->passed_over, new->id));
    Cairn__JobStatus *job_now = show_job("toy");
    ck_assert_uint_eq(job_now->step, 1);
    ck_assert_ptr_nonnull(strstr(job_now->passed_over, new->id));
}

/* Its manifest is gone, so that nobody knows when it was taken: by its id it is behind all others. */
TEST(one_without_a_manifest_gives_way_too)
{
    char path[4200];
    Cairn__SnapshotStatus *old = take_snapshot();
    train();
    Cairn__SnapshotStatus *new = take_snapshot();
    snprintf(path, sizeof path, "%s/manifest.json", new->path);
    ck_assert_int_eq(unlink(path), 0);
    Cairn__SnapshotStatus *done = fake_hear(&admin, SnapshotStatus, ask_fallback(new->id, true));
    ck_assert_str_eq(done->id, old->id);
}

TEST(without_an_older_one_nothing_is_restored)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    train();
    flip_last_byte(s->path);
    fake_expect_error(&admin, ask_fallback(s->id, true), CAIRN_ERR_CHECKSUM,
                      "there is no older one");
    ck_assert_uint_eq(coord_job_version(toy()).step, 2);
    fake_expect_error(&admin, ask_fallback("step-000000000009-g1", true), CAIRN_ERR_NOT_FOUND,
                      "there is no snapshot");
}

SUITE(30, open_trained, close_fake);
