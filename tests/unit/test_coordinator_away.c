/* What an operator is told of jobs whose shards are away; a shard that is gone for good is forgotten. */
#include <check.h>
#include <string.h>

#include "tests/support/fake_cluster.h"
#include "tests/support/suite.h"

static struct fake_cluster fake;
static struct fake_peer w, admin;

/* Two shards, a job at step 1. */
static void set_up(void)
{
    fake_open_trained(&fake, &w, &admin);
}
static void tear_down(void)
{
    fake_peer_close(&w);
    fake_peer_close(&admin);
    fake_close(&fake);
}

static void restart_coordinator(void)
{
    fake_coordinator_stop(&fake);
    fake_coordinator_start(&fake);
    fake_peer_close(&admin);
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
}

static Cairn__JobStatus *show(void)
{
    Cairn__JobShow message = CAIRN__JOB_SHOW__INIT;
    message.name = (char *)(uintptr_t) "toy";
    const uint32_t request = fake_request(&admin, CAIRN_MSG_JOB_SHOW, &message.base);
    return (Cairn__JobStatus *)fake_expect(&fake, &admin, CAIRN_MSG_JOB_STATUS, request);
}

static void expect_job(const char *state, bool version_unknown, uint64_t step)
{
    Cairn__JobStatus *status = show();
    ck_assert_str_eq(status->state, state);
    ck_assert_int_eq(status->version_unknown, version_unknown);
    if (!version_unknown) ck_assert_uint_eq(status->step, step);
    cairn_message_free(&status->base);
}

START_TEST(after_a_restart_a_job_waits_and_its_version_is_unknown_until_all_shards_have_told)
{
    restart_coordinator();
    expect_job("waiting", true, 0);
    fake_shard_up(&fake, 0);
    expect_job("waiting", true, 0);
    Cairn__JobStatus *status = show();
    ck_assert_str_eq(status->awaited, "shard s1 (it is away)");
    cairn_message_free(&status->base);
    fake_shard_up(&fake, 1);
    const struct cairn_cluster_job *toy = cairn_cluster_job_find(fake.cluster, "toy");
    fake_until(&fake, toy->heard);
    expect_job("running", false, 1);
    fake_shard_away(&fake, 1); // what was heard once is known
    expect_job("running", false, 1);
}
END_TEST

START_TEST(what_is_dropped_or_replaced_unheard_has_no_step)
{
    restart_coordinator();
    fake_shard_up(&fake, 0);
    Cairn__JobRemove remove = CAIRN__JOB_REMOVE__INIT;
    remove.name = (char *)(uintptr_t) "toy";
    const uint32_t request = fake_request(&admin, CAIRN_MSG_JOB_REMOVE, &remove.base);
    Cairn__JobRemoved *removed = (Cairn__JobRemoved *)fake_expect(&fake, &admin,
                                                                  CAIRN_MSG_JOB_REMOVED, request);
    ck_assert(removed->version_unknown);
    cairn_message_free(&removed->base);
}
END_TEST

/* ---- forgotten ---- */

static uint32_t ask_forget(const char *name)
{
    Cairn__ShardForget forget = CAIRN__SHARD_FORGET__INIT;
    forget.name = (char *)(uintptr_t)name;
    return fake_request(&admin, CAIRN_MSG_SHARD_FORGET, &forget.base);
}

START_TEST(a_shard_that_is_here_or_has_a_part_of_a_job_is_not_forgotten)
{
    fake_expect_error(&fake, &admin, ask_forget("s7"), CAIRN_ERR_NOT_FOUND, "s7");
    fake_expect_error(&fake, &admin, ask_forget("s1"), CAIRN_ERR_BUSY, "s1 is connected from");
    fake_shard_away(&fake, 1);
    fake_expect_error(&fake, &admin, ask_forget("s1"), CAIRN_ERR_BUSY, "job toy has a part");
    fake_shard_up(&fake, 1);
    fake_commit(&fake, &w, cairn_cluster_job_find(fake.cluster, "toy")->id,
                fake_begin(&fake, &w, cairn_cluster_job_find(fake.cluster, "toy")->id));
}
END_TEST

START_TEST(a_shard_whose_jobs_were_dropped_is_forgotten_and_comes_back_as_a_new_one)
{
    fake_shard_away(&fake, 1);
    Cairn__JobRemove remove = CAIRN__JOB_REMOVE__INIT;
    remove.name = (char *)(uintptr_t) "toy";
    remove.force = true;
    const uint32_t request = fake_request(&admin, CAIRN_MSG_JOB_REMOVE, &remove.base);
    cairn_message_free(fake_expect(&fake, &admin, CAIRN_MSG_JOB_REMOVED, request));
    ck_assert_ptr_nonnull(cairn_cluster_seat_find(fake.cluster, "s1")); // status says: away
    cairn_message_free(fake_expect(&fake, &admin, CAIRN_MSG_DONE, ask_forget("s1")));
    ck_assert_ptr_null(cairn_cluster_seat_find(fake.cluster, "s1"));
    fake_shard_up(&fake, 1);
    fake_until(&fake, !fake.shards[1].has_job); // what was dropped stays so
    ck_assert_ptr_nonnull(cairn_cluster_seat_find(fake.cluster, "s1"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_away");
    TCase *tc = tcase_create("away");
    tcase_set_timeout(tc, 30);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(
        tc, after_a_restart_a_job_waits_and_its_version_is_unknown_until_all_shards_have_told);
    tcase_add_test(tc, what_is_dropped_or_replaced_unheard_has_no_step);
    tcase_add_test(tc, a_shard_that_is_here_or_has_a_part_of_a_job_is_not_forgotten);
    tcase_add_test(tc, a_shard_whose_jobs_were_dropped_is_forgotten_and_comes_back_as_a_new_one);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
