/* on_shard_loss = restore-latest: a job whose shard has lost its part restores its newest snapshot. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/coordinator/recovery.h"
#include "tests/support/fake_cluster.h"
#include "tests/support/suite.h"

static struct fake_cluster fake;
static struct fake_peer w, admin;
static uint64_t job;

static struct cairn_cluster_job *toy(void)
{
    return cairn_cluster_job_find(fake.cluster, "toy");
}

static void amend(uint32_t wait_s)
{
    Cairn__JobAmend message = CAIRN__JOB_AMEND__INIT;
    message.job = job;
    message.key = 1;
    message.set_shard_loss = true;
    message.on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST;
    message.shard_loss_wait_s = wait_s;
    const uint32_t request = fake_request(&w, CAIRN_MSG_JOB_AMEND, &message.base);
    fake_expect_amended(&fake, &w, request, 1);
}

/* Two shards, a job at step 1. */
static void set_up(void)
{
    job = fake_open_trained(&fake, &w, &admin);
    fake.options.heartbeat_ms = 20; // so long a part may be missed, of a shard that ended
    uv_timer_set_repeat(&fake.cluster->tick, 10);
    uv_timer_again(&fake.cluster->tick);
}
static void tear_down(void)
{
    fake_peer_close(&w);
    fake_peer_close(&admin);
    fake_close(&fake);
}

static void train(void)
{
    fake_commit(&fake, &w, job, fake_begin(&fake, &w, job));
}

/* Its folder. */
static void take_snapshot(char folder_out[300])
{
    Cairn__SnapshotCreate create = CAIRN__SNAPSHOT_CREATE__INIT;
    create.job = (char *)(uintptr_t) "toy";
    create.wait = true;
    const uint32_t request = fake_request(&admin, CAIRN_MSG_SNAPSHOT_CREATE, &create.base);
    Cairn__SnapshotStatus *s = (Cairn__SnapshotStatus *)fake_expect(
        &fake, &admin, CAIRN_MSG_SNAPSHOT_STATUS, request);
    snprintf(folder_out, 300, "%s", s->path);
    cairn_message_free(&s->base);
}

static void lose_part(uint32_t shard)
{
    fake_shard_forget(&fake, shard);
    fake_shard_up(&fake, shard);
}

static uint32_t ask_open(void)
{
    fake_peer_close(&w);
    w = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "w0");
    struct cairn_job_spec_data spec = fake_spec(1); // as it was before the amendment
    const uint32_t request = fake_job_open(&w, &spec, 10, 0);
    cairn_spec_release(&spec);
    return request;
}

static void expect_attached(uint32_t request, uint64_t generation, uint64_t step)
{
    Cairn__Attached *attached = (Cairn__Attached *)fake_expect(&fake, &w, CAIRN_MSG_ATTACHED,
                                                               request);
    ck_assert_uint_eq(attached->generation, generation);
    ck_assert_uint_eq(attached->step, step);
    ck_assert_uint_eq(attached->job, job);
    cairn_message_free(&attached->base);
}

static void expect_rolled_back(void)
{
    fake_expect_error(&fake, &w, 0, CAIRN_ERR_ROLLED_BACK, "is restored by itself");
}

START_TEST(the_newest_snapshot_is_restored_and_workers_go_on_in_it)
{
    char folder[300];
    take_snapshot(folder); // without the amendment: the job keeps what it was amended to
    train();
    take_snapshot(folder);
    amend(0);
    train();
    lose_part(1);
    expect_rolled_back();
    expect_attached(ask_open(), 2, 2);
    ck_assert_int_eq(toy()->spec.policy.on_shard_loss, CAIRN_SHARD_LOSS_RESTORE_LATEST);
    train();
    lose_part(0);
    expect_rolled_back();
    expect_attached(ask_open(), 3, 2);
    train();
}
END_TEST

START_TEST(a_shard_that_stays_away_is_given_up_for_one_that_is_there)
{
    char folder[300];
    fake_shard_up(&fake, 2);
    take_snapshot(folder);
    amend(1);
    fake_shard_away(&fake, 1);
    expect_rolled_back();
    expect_attached(ask_open(), 2, 1);
    ck_assert(fake.shards[0].has_job && fake.shards[2].has_job);
    train();
    fake_shard_up(&fake, 1); // with a part that is of no use now
    fake_until(&fake, !fake.shards[1].has_job);
    train();
}
END_TEST

START_TEST(a_part_that_comes_back_first_ends_it)
{
    char folder[300];
    take_snapshot(folder);
    train();
    amend(1);
    fake_shard_away(&fake, 1); // and none is there in its place
    expect_rolled_back();
    const uint32_t request = ask_open(); // waits
    fake_expect_silence(&fake, &w, 0);
    ck_assert(cairn_cluster_recovery_pending(toy()));
    fake_shard_up(&fake, 1);
    expect_attached(request, 1, 2);
    train();
}
END_TEST

START_TEST(a_damaged_one_is_passed_over_for_the_one_before)
{
    char folder[300], file[400];
    take_snapshot(folder);
    train();
    take_snapshot(folder);
    amend(0);
    snprintf(file, sizeof file, "%s/model/shard-00001-model-00001-of-00001.safetensors", folder);
    ck_assert_int_eq(truncate(file, 100), 0);
    lose_part(1);
    expect_rolled_back();
    expect_attached(ask_open(), 2, 1);
}
END_TEST

START_TEST(without_a_snapshot_the_job_is_lost_and_says_so)
{
    amend(0);
    lose_part(1);
    expect_rolled_back();
    const uint32_t request = ask_open();
    fake_expect_error(&fake, &w, request, CAIRN_ERR_JOB_LOST, "finds no whole snapshot of it");
    ck_assert_int_eq(toy()->state, CAIRN_CLUSTER_JOB_LOST);
}
END_TEST

START_TEST(without_progress_it_ends_after_so_many)
{
    char folder[300];
    take_snapshot(folder);
    amend(0);
    for (uint64_t i = 0; i < CAIRN_RESTORES_MAX; i++) {
        lose_part(1);
        expect_rolled_back();
        expect_attached(ask_open(), 2 + i, 1);
    }
    lose_part(1);
    fake_expect_error(&fake, &w, 0, CAIRN_ERR_JOB_LOST, "restored it 3 times without a step");
    ck_assert_int_eq(toy()->state, CAIRN_CLUSTER_JOB_LOST);
    const uint32_t request = ask_open();
    fake_expect_error(&fake, &w, request, CAIRN_ERR_JOB_LOST, "waits now; restore a snapshot with");
}
END_TEST

START_TEST(no_snapshot_that_is_ahead_of_the_job_is_its_own)
{
    char folder[300];
    train();
    train();
    take_snapshot(folder);
    Cairn__JobRemove remove = CAIRN__JOB_REMOVE__INIT;
    remove.name = (char *)(uintptr_t) "toy";
    remove.force = true;
    const uint32_t request = fake_request(&admin, CAIRN_MSG_JOB_REMOVE, &remove.base);
    cairn_message_free(fake_expect(&fake, &admin, CAIRN_MSG_JOB_REMOVED, request));
    fake_peer_close(&w);
    w = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "w0");
    job = fake_attach(&fake, &w, 11, 0, 1); // another one, from the beginning
    fake_init(&fake, &w, job);
    train();
    amend(0);
    lose_part(1);
    expect_rolled_back();
    fake_expect_error(&fake, &w, ask_open(), CAIRN_ERR_JOB_LOST, "finds no whole snapshot of it");
}
END_TEST

/* Those who came for more workers than the snapshot's job has, and those who wait for a lost one. */
START_TEST(it_keeps_how_many_workers_it_was_amended_to_have)
{
    char folder[300];
    take_snapshot(folder);
    amend(0);
    Cairn__JobAmend message = CAIRN__JOB_AMEND__INIT;
    message.job = job;
    message.key = 2;
    message.workers_min = 1;
    message.workers_max = 4;
    fake_expect_amended(&fake, &w, fake_request(&w, CAIRN_MSG_JOB_AMEND, &message.base), 2);
    lose_part(1);
    expect_rolled_back();
    fake_peer_close(&w);
    w = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "w0");
    struct cairn_job_spec_data spec = fake_spec(3);
    spec.workers_max = 3; // within the bounds
    const uint32_t request = fake_job_open(&w, &spec, 10, 0);
    cairn_spec_release(&spec);
    expect_attached(request, 2, 1);
    ck_assert_uint_eq(toy()->spec.workers_min, 1);
    ck_assert_uint_eq(toy()->spec.workers_max, 4);
    expect_attached(ask_open(), 2, 1); // as it was before the amendment
    train();
}
END_TEST

START_TEST(who_was_at_work_on_something_else_is_waited_for_afterwards_too)
{
    char folder[300];
    struct fake_peer other = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "w1");
    take_snapshot(folder);
    amend(0);
    struct cairn_job_spec_data spec = fake_spec(1);
    cairn_message_free(
        fake_expect(&fake, &other, CAIRN_MSG_ATTACHED, fake_job_open(&other, &spec, 11, 1)));
    cairn_spec_release(&spec);
    Cairn__JobAmend message = CAIRN__JOB_AMEND__INIT;
    message.job = job;
    message.key = 2;
    message.workers_min = message.workers_max = 2;
    fake_expect_amended(&fake, &w, fake_request(&w, CAIRN_MSG_JOB_AMEND, &message.base), 2);
    Cairn__Pause pause = CAIRN__PAUSE__INIT;
    pause.job = job;
    pause.at_most_ms = 60000;
    pause.what = (char *)(uintptr_t) "evaluating";
    cairn_message_free(fake_expect(&fake, &other, CAIRN_MSG_DONE,
                                   fake_request(&other, CAIRN_MSG_PAUSE, &pause.base)));
    lose_part(1);
    expect_rolled_back();
    fake_expect_error(&fake, &other, 0, CAIRN_ERR_ROLLED_BACK, "is restored by itself");
    expect_attached(ask_open(), 2, 1);
    Cairn__RoundBegin begin = CAIRN__ROUND_BEGIN__INIT;
    begin.job = job;
    const uint32_t begun = fake_request(&w, CAIRN_MSG_ROUND_BEGIN, &begin.base);
    Cairn__WhoIsAwaited who = CAIRN__WHO_IS_AWAITED__INIT;
    who.job = job;
    Cairn__Awaited *awaited = (Cairn__Awaited *)fake_expect(
        &fake, &w, CAIRN_MSG_AWAITED, fake_request(&w, CAIRN_MSG_WHO_IS_AWAITED, &who.base));
    ck_assert_msg(awaited->paused_ms > 0, "%s", awaited->text);
    ck_assert_msg(strstr(awaited->text, "1 more workers (1 of 2 attached)") != NULL &&
                      strstr(awaited->text, "evaluating") != NULL,
                  "%s", awaited->text);
    cairn_message_free(&awaited->base);
    fake_peer_close(&other);
    other = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "w1");
    spec = fake_spec(1);
    cairn_message_free(
        fake_expect(&fake, &other, CAIRN_MSG_ATTACHED, fake_job_open(&other, &spec, 11, 1)));
    cairn_spec_release(&spec);
    cairn_message_free(fake_expect(&fake, &w, CAIRN_MSG_ROUND_OPENED, begun));
    fake_peer_close(&other);
}
END_TEST

START_TEST(by_default_the_job_waits)
{
    char folder[300];
    take_snapshot(folder);
    lose_part(1);
    fake_expect_error(&fake, &w, 0, CAIRN_ERR_JOB_LOST, "restore a snapshot with");
    const uint32_t request = ask_open();
    fake_expect_error(&fake, &w, request, CAIRN_ERR_JOB_LOST, "lost: s1");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_recovery");
    TCase *tc = tcase_create("recovery");
    tcase_set_timeout(tc, 30);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, the_newest_snapshot_is_restored_and_workers_go_on_in_it);
    tcase_add_test(tc, a_shard_that_stays_away_is_given_up_for_one_that_is_there);
    tcase_add_test(tc, a_part_that_comes_back_first_ends_it);
    tcase_add_test(tc, a_damaged_one_is_passed_over_for_the_one_before);
    tcase_add_test(tc, without_a_snapshot_the_job_is_lost_and_says_so);
    tcase_add_test(tc, without_progress_it_ends_after_so_many);
    tcase_add_test(tc, no_snapshot_that_is_ahead_of_the_job_is_its_own);
    tcase_add_test(tc, it_keeps_how_many_workers_it_was_amended_to_have);
    tcase_add_test(tc, who_was_at_work_on_something_else_is_waited_for_afterwards_too);
    tcase_add_test(tc, by_default_the_job_waits);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
