/* What an operator is told of snapshots: their order, what a restore would replace, what it has replaced. */
#include <check.h>

#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static Cairn__SnapshotStatus *restore(const char *name, const char *path, bool plan)
{
    Cairn__SnapshotRestore message = CAIRN__SNAPSHOT_RESTORE__INIT;
    message.job = (char *)(uintptr_t)name;
    message.path = (char *)(uintptr_t)path;
    message.plan = plan;
    const uint32_t request = fake_request(&admin, CAIRN_MSG_SNAPSHOT_RESTORE, &message.base);
    return fake_expect(&fake, &admin, CAIRN_MSG_SNAPSHOT_STATUS, request);
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
    cairn_message_free(&plan->base);
    plan = restore("other", s->path, true);
    ck_assert_str_eq(plan->job, "other");
    ck_assert_ptr_null(plan->replaced);
    cairn_message_free(&plan->base);
    train();
    cairn_message_free(&s->base);
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
    cairn_message_free(&done->base);
    fake_expect_error(&fake, &w, 0, CAIRN_ERR_ROLLED_BACK, "open it again");
    done = restore("other", s->path, false);
    ck_assert_uint_eq(done->restored_generation, 2);
    ck_assert_ptr_null(done->replaced);
    cairn_message_free(&done->base);
    cairn_message_free(&s->base);
}

TEST(the_newest_snapshot_is_listed_first_also_after_a_restore)
{
    Cairn__SnapshotStatus *first = take_snapshot();
    train();
    Cairn__SnapshotStatus *second = take_snapshot();
    cairn_message_free(&restore("", first->path, false)->base);
    Cairn__SnapshotStatus *third = take_snapshot();
    Cairn__SnapshotListGet get = CAIRN__SNAPSHOT_LIST_GET__INIT;
    const uint32_t request = fake_request(&admin, CAIRN_MSG_SNAPSHOT_LIST_GET, &get.base);
    Cairn__SnapshotList *list = fake_expect(&fake, &admin, CAIRN_MSG_SNAPSHOT_LIST, request);
    ck_assert_uint_eq(list->n_snapshots, 3);
    ck_assert_str_eq(list->snapshots[0]->id, third->id);
    ck_assert_str_eq(list->snapshots[1]->id, second->id);
    ck_assert_str_eq(list->snapshots[2]->id, first->id);
    cairn_message_free(&list->base);
    cairn_message_free(&first->base);
    cairn_message_free(&second->base);
    cairn_message_free(&third->base);
}

SUITE(30, open_trained, close_fake);
