/* Snapshots and digests that cannot end: given up by themselves, or by an operator. Fake shards. */
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "server/coordinator/cut.h"
#include "tests/support/fake_cluster.h"
#include "tests/support/suite.h"

static struct fake_cluster fake;
static struct fake_peer w, admin;
static uint64_t job;
static struct cairn_cluster_job *toy;

/* Two shards, a job at step 1. */
static void set_up(void)
{
    job = fake_open_trained(&fake, &w, &admin);
    toy = cairn_cluster_job_find(fake.cluster, "toy");
}
static void tear_down(void)
{
    fake_peer_close(&w);
    fake_peer_close(&admin);
    fake_close(&fake);
}

static uint32_t ask_snapshot(bool wait)
{
    Cairn__SnapshotCreate create = CAIRN__SNAPSHOT_CREATE__INIT;
    create.job = (char *)(uintptr_t) "toy";
    create.wait = wait;
    return fake_request(&admin, CAIRN_MSG_SNAPSHOT_CREATE, &create.base);
}

static uint32_t ask_digest(void)
{
    Cairn__JobDigestGet get = CAIRN__JOB_DIGEST_GET__INIT;
    get.name = (char *)(uintptr_t) "toy";
    return fake_request(&admin, CAIRN_MSG_JOB_DIGEST_GET, &get.base);
}

static uint32_t ask_cancel(const char *id)
{
    Cairn__SnapshotCancel cancel = CAIRN__SNAPSHOT_CANCEL__INIT;
    cancel.job = (char *)(uintptr_t) "toy";
    cancel.id = (char *)(uintptr_t)id;
    return fake_request(&admin, CAIRN_MSG_SNAPSHOT_CANCEL, &cancel.base);
}

static void expect_canceled(uint32_t request, const char *id, bool digest)
{
    Cairn__SnapshotCanceled *canceled = (Cairn__SnapshotCanceled *)fake_expect(
        &fake, &admin, CAIRN_MSG_SNAPSHOT_CANCELED, request);
    ck_assert_str_eq(canceled->job, "toy");
    ck_assert_str_eq(canceled->id, id);
    ck_assert_int_eq(canceled->digest, digest);
    cairn_message_free(&canceled->base);
}

static Cairn__SnapshotStatus *expect_snapshot(uint32_t request)
{
    return (Cairn__SnapshotStatus *)fake_expect(&fake, &admin, CAIRN_MSG_SNAPSHOT_STATUS, request);
}

static uint32_t ask_restore(const char *folder)
{
    Cairn__SnapshotRestore restore = CAIRN__SNAPSHOT_RESTORE__INIT;
    restore.path = (char *)(uintptr_t)folder;
    return fake_request(&admin, CAIRN_MSG_SNAPSHOT_RESTORE, &restore.base);
}

static size_t folders_of_job(void)
{
    char path[128];
    size_t count = 0;
    snprintf(path, sizeof path, "%s/toy", fake.snapshots);
    DIR *dir = opendir(path);
    if (dir == NULL) return 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) count += e->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* The cut has noticed for whom it waits; and that is a lease ago. */
static void let_a_lease_pass(void)
{
    fake_until(&fake, toy->cut != NULL && toy->cut->stuck_ms != 0);
    toy->cut->stuck_ms -= (uint64_t)fake.options.lease_timeout_ms;
}

/* ---- by itself ---- */

START_TEST(a_snapshot_whose_shard_died_is_given_up_and_the_job_is_restored_without_that_shard)
{
    Cairn__SnapshotStatus *s = expect_snapshot(ask_snapshot(true));
    fake_shard_away(&fake, 1);
    const uint32_t request = ask_snapshot(true);
    fake_expect_error(&fake, &admin, ask_restore(s->path), CAIRN_ERR_BUSY,
                      "waits for shard s1 (it is away); try again when it is done, or give it up: "
                      "`cairn snapshot cancel toy`");
    let_a_lease_pass();
    fake_expect_error(&fake, &admin, request, CAIRN_ERR_CLOSED, "s1: it is away for longer than");
    fake_shard_up(&fake, 2);
    cairn_message_free(&expect_snapshot(ask_restore(s->path))->base);
    cairn_message_free(&s->base);
}
END_TEST

START_TEST(a_shard_that_comes_back_within_the_lease_is_waited_for)
{
    fake_shard_away(&fake, 1);
    const uint32_t request = ask_snapshot(true);
    fake_until(&fake, toy->cut != NULL && toy->cut->stuck_ms != 0);
    fake_shard_up(&fake, 1);
    cairn_message_free(&expect_snapshot(request)->base);
}
END_TEST

START_TEST(what_was_given_up_is_not_taken_when_the_shard_is_back_and_another_one_is)
{
    fake_shard_away(&fake, 1);
    const uint32_t request = ask_digest();
    let_a_lease_pass();
    fake_expect_error(&fake, &admin, request, CAIRN_ERR_CLOSED, "s1");
    const uint32_t second = ask_snapshot(true);
    fake_shard_up(&fake, 1);
    cairn_message_free(&expect_snapshot(second)->base);
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_PIN], 1);
}
END_TEST

START_TEST(a_shard_that_comes_back_as_another_process_ends_the_cut_at_once)
{
    fake_shard_away(&fake, 1);
    const uint32_t request = ask_digest();
    fake_shard_forget(&fake, 1);
    fake_shard_hello(&fake, 1);
    fake_expect_error(&fake, &admin, request, CAIRN_ERR_CLOSED,
                      "s1: it restarted without its part");
}
END_TEST

START_TEST(a_part_that_fails_stops_the_other_shards)
{
    fake.shards[0].holds_part = true;
    fake.shards[1].fail_part = "no space left";
    const uint32_t request = ask_snapshot(true);
    fake_expect_error(&fake, &admin, request, CAIRN_ERR_NO_SPACE, "s1: no space left");
    ck_assert_uint_eq(fake.shards[0].told_to_stop, 1);
    ck_assert_uint_eq(folders_of_job(), 0);
}
END_TEST

/* ---- by an operator ---- */

START_TEST(an_operator_gives_a_snapshot_up_and_nothing_of_it_stays)
{
    fake.shards[0].holds_part = true;
    Cairn__SnapshotStatus *s = expect_snapshot(ask_snapshot(false));
    ck_assert_str_eq(s->state, "writing");
    fake_expect_error(&fake, &admin, ask_cancel("step-000000000077-g1"), CAIRN_ERR_NOT_FOUND,
                      "step-000000000077-g1");
    expect_canceled(ask_cancel(s->id), s->id, false);
    ck_assert_uint_eq(fake.shards[0].told_to_stop, 1);
    ck_assert_uint_eq(folders_of_job(), 0);
    fake_expect_error(&fake, &admin, ask_cancel(""), CAIRN_ERR_NOT_FOUND, "no snapshot or digest");
    fake.shards[0].holds_part = false;
    cairn_message_free(&expect_snapshot(ask_snapshot(true))->base);
    fake_commit(&fake, &w, job, fake_begin(&fake, &w, job));
    cairn_message_free(&s->base);
}
END_TEST

START_TEST(who_waits_for_it_hears_that_it_was_given_up)
{
    fake_shard_away(&fake, 1);
    const uint32_t request = ask_digest(), cancel = ask_cancel("");
    fake_expect_error(&fake, &admin, request, CAIRN_ERR_CANCELED, "an operator");
    expect_canceled(cancel, "", true);
}
END_TEST

START_TEST(a_shard_that_says_nothing_holds_the_end_up_for_a_lease_at_most)
{
    fake.shards[0].holds_part = fake.shards[0].ignores_stop = true;
    Cairn__SnapshotStatus *s = expect_snapshot(ask_snapshot(false));
    const uint32_t request = ask_cancel("");
    fake_expect_error(&fake, &admin, ask_restore(s->path), CAIRN_ERR_NOT_FOUND, s->id);
    let_a_lease_pass();
    expect_canceled(request, s->id, false);
    ck_assert_uint_eq(folders_of_job(), 0);
    fake_commit(&fake, &w, job, fake_begin(&fake, &w, job));
    cairn_message_free(&s->base);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_cut");
    TCase *tc = tcase_create("cut");
    tcase_set_timeout(tc, 30);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(
        tc, a_snapshot_whose_shard_died_is_given_up_and_the_job_is_restored_without_that_shard);
    tcase_add_test(tc, a_shard_that_comes_back_within_the_lease_is_waited_for);
    tcase_add_test(tc, what_was_given_up_is_not_taken_when_the_shard_is_back_and_another_one_is);
    tcase_add_test(tc, a_shard_that_comes_back_as_another_process_ends_the_cut_at_once);
    tcase_add_test(tc, a_part_that_fails_stops_the_other_shards);
    tcase_add_test(tc, an_operator_gives_a_snapshot_up_and_nothing_of_it_stays);
    tcase_add_test(tc, who_waits_for_it_hears_that_it_was_given_up);
    tcase_add_test(tc, a_shard_that_says_nothing_holds_the_end_up_for_a_lease_at_most);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
