/* on_shard_loss = restore-latest: a job whose shard has lost its part restores its newest snapshot. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/coordinator/base.h"
#include "server/coordinator/members.h"
#include "server/coordinator/restore.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static void amend(void)
{
    amend_job(1, "on_shard_loss=restore-latest");
}

static void amend_to_wait(uint32_t wait_s)
{
    amend_job(1, "on_shard_loss=restore-latest shard_loss_wait_s=%" PRIu32, wait_s);
}

static uint32_t ask_open(void)
{
    come_again("w0");
    return fake_ask_open(&w, 10, 0, 1);
}

static void expect_attached(uint32_t request, uint64_t generation, uint64_t step)
{
    Cairn__Attached *attached = fake_hear(&w, Attached, request);
    ck_assert_uint_eq(attached->generation, generation);
    ck_assert_uint_eq(attached->step, step);
    ck_assert_uint_eq(attached->job, job);
}

static void expect_rolled_back(void)
{
    fake_expect_error(&w, 0, CAIRN_ERR_ROLLED_BACK, "is restored by itself");
}

TEST(the_newest_snapshot_is_restored_and_workers_go_on_in_it)
{
    take_snapshot(); // without the amendment: the job keeps what it was amended to
    train();
    take_snapshot();
    amend();
    train();
    fake_shard_renew(&fake, 1);
    expect_rolled_back();
    expect_attached(ask_open(), 2, 2);
    ck_assert_int_eq(toy()->spec.policy.on_shard_loss, CAIRN_SHARD_LOSS_RESTORE_LATEST);
    train();
    fake_shard_renew(&fake, 0);
    expect_rolled_back();
    expect_attached(ask_open(), 3, 2);
    train();
}

TEST(a_shard_that_stays_away_is_given_up_for_one_that_is_there)
{
    fake_shard_up(&fake, 2);
    take_snapshot();
    amend_to_wait(1);
    fake_shard_away(&fake, 1);
    expect_rolled_back();
    expect_attached(ask_open(), 2, 1);
    ck_assert(fake.shards[0].has_job && fake.shards[2].has_job);
    train();
    fake_shard_up(&fake, 1); // with a part that is of no use now
    fake_until(&fake, !fake.shards[1].has_job);
    train();
}

TEST(fewer_shards_than_the_cluster_has_are_taken_when_it_has_waited_for_so_long)
{
    take_snapshot();
    amend_to_wait(1);
    fake_shard_away(&fake, 1); // for good
    expect_rolled_back();
    const uint32_t request = ask_open();
    fake_expect_silence(&w, 0);
    ck_assert_msg(strstr(toy()->loss.why.text, "once 2 shards are here, or cluster.shards_min "
                                               "allows fewer") != NULL,
                  "%s", toy()->loss.why.text);
    fake.options.shards_min = 1; // as the advice says
    fake.options.shards_wait_ms = 300;
    struct sentence advice;
    coord_recovery_advise(toy(), &advice);
    const uint64_t waited_ms = coord_now_ms(fake.cluster) + 1 - toy()->loss.recovery.lost_ms;
    if (waited_ms < 300)
        ck_assert_msg(strstr(advice.text, "over those that are here, 1 at least, when it has "
                                          "waited for cluster.shards_wait") != NULL,
                      "%s", advice.text);
    expect_attached(request, 2, 1);
    ck_assert_uint_eq(toy()->entry_count, 1);
    train();
    fake_shard_up(&fake, 1); // with a part that is of no use now
    fake_until(&fake, !fake.shards[1].has_job);
    train();
}

TEST(a_part_that_comes_back_first_ends_it)
{
    take_snapshot();
    train();
    amend_to_wait(1);
    fake_shard_away(&fake, 1); // and none is there in its place
    expect_rolled_back();
    const uint32_t request = ask_open(); // waits
    fake_expect_silence(&w, 0);
    ck_assert(coord_recovery_pending(toy()));
    fake_shard_up(&fake, 1);
    expect_attached(request, 1, 2);
    train();
}

/* Shard 1 comes anew without its part, and waits for the snapshot of its log. */
static void miss_awaited_part(void)
{
    toy()->spec.policy.durability = CAIRN_DURABILITY_LOG;
    fake.shards[1].awaits = job;
    fake_shard_renew(&fake, 1);
    fake_until(&fake, toy()->shards[1].missed_ms != 0);
    ck_assert_uint_eq(toy()->shards[1].patience_ms, 1000 * CAIRN_LOG_LOSS_WAIT_S);
}

/* It is given up when a shard that is away would be. */
TEST(a_part_that_waits_for_the_snapshot_of_its_log_is_waited_for)
{
    struct sentence waits;
    take_snapshot();
    train();
    amend();
    miss_awaited_part();
    coord_job_waiting(toy(), &waits);
    ck_assert_str_eq(waits.text, "the part of shard s1, which is made again from its log and waits "
                                 "for the snapshot on which the log stands");
    toy()->shards[1].patience_ms = 0; // as when that time is over
    expect_rolled_back();
    ck_assert_ptr_nonnull(strstr(toy()->loss.why.text, "for the snapshot of its log (the job goes "
                                                       "on when that is there)"));
    expect_attached(ask_open(), 2, 1);
}

/* Its log turned out to be unusable, as the shard says when it connects anew. */
TEST(a_part_that_its_shard_waits_for_no_more_is_missed_as_any_other)
{
    take_snapshot();
    amend();
    miss_awaited_part();
    fake.shards[1].awaits = 0;
    fake_shard_renew(&fake, 1);
    fake_until(&fake, toy()->shards[1].patience_ms < 1000 * CAIRN_LOG_LOSS_WAIT_S);
    expect_rolled_back();
    expect_attached(ask_open(), 2, 1);
}

static void damage(const char *folder)
{
    char file[400];
    snprintf(file, sizeof file, "%s/model/shard-00001-model-00001-of-00001.safetensors", folder);
    ck_assert_int_eq(truncate(file, 100), 0);
}

static void expect_passed_over(const char *text)
{
    Cairn__JobStatus *status = show_job("toy");
    const bool fits = *text == '\0' ? status->passed_over[0] == '\0'
                                    : strstr(status->passed_over, text) == status->passed_over;
    ck_assert_msg(fits, "%s", status->passed_over);
}

TEST(a_damaged_one_is_passed_over_for_the_one_before)
{
    take_snapshot();
    train();
    const char *folder = take_snapshot()->path;
    amend();
    damage(folder);
    fake_shard_renew(&fake, 1);
    expect_rolled_back();
    expect_attached(ask_open(), 2, 1);
    expect_passed_over("step-000000000001-g1 was restored; the newest snapshot, "
                       "step-000000000002-g1, is damaged: ");
    train();
    take_snapshot();
    expect_passed_over("");
}

static void unmount_at(uint32_t shard)
{
    fake.shards[shard].storage = "/snapshots is another folder here than the coordinator's";
    fake.shards[shard].refuse_create = "there is no folder /snapshots/toy";
    fake.shards[shard].refuse_create_status = CAIRN_ERR_NOT_FOUND;
}
static void mount_at(uint32_t shard)
{
    fake.shards[shard].storage = ""; // it says that it is right
    fake.shards[shard].refuse_create = NULL;
}

TEST(storage_that_is_not_mounted_at_a_shard_is_waited_for_however_long)
{
    take_snapshot();
    train();
    take_snapshot();
    amend();
    unmount_at(1);
    fake_shard_renew(&fake, 1);
    expect_rolled_back();
    const uint32_t request = ask_open();
    fake_until(&fake, strstr(toy()->loss.why.text, "once it is mounted at every shard") != NULL);
    ck_assert_ptr_nonnull(strstr(toy()->loss.why.text, "there is no folder /snapshots/toy"));
    fake_until(&fake, !toy()->loss.recovery.running);
    const uint32_t created = fake.shards[1].seen[CAIRN_MSG_JOB_CREATE];
    toy()->loss.recovery.retry_ms = 0; // as after a while
    fake_expect_silence(&w, 0);
    ck_assert(coord_recovery_pending(toy()));
    ck_assert_uint_eq(fake.shards[1].seen[CAIRN_MSG_JOB_CREATE], created);
    mount_at(1);
    expect_attached(request, 3, 2); // the newest
    train();
}

/* It said nothing when it joined, for then it was mounted. */
TEST(a_shard_that_does_not_say_that_its_storage_is_gone_is_tried_again_and_again)
{
    take_snapshot();
    amend();
    unmount_at(1);
    fake.shards[1].storage = NULL;
    // Read before the loss: the first try may have ended when ask_open() returns.
    uint32_t created = fake.shards[1].seen[CAIRN_MSG_JOB_CREATE];
    fake_shard_renew(&fake, 1);
    expect_rolled_back();
    const uint32_t request = ask_open();
    for (uint32_t i = 0; i <= CAIRN_RESTORES_MAX; i++) {
        fake_until(&fake, fake.shards[1].seen[CAIRN_MSG_JOB_CREATE] > created &&
                              !toy()->loss.recovery.running);
        ck_assert_msg(coord_recovery_pending(toy()), "%s", toy()->loss.why.text);
        created = fake.shards[1].seen[CAIRN_MSG_JOB_CREATE];
        toy()->loss.recovery.retry_ms = 0;
    }
    mount_at(1);
    fake_until(&fake, toy()->state == CAIRN_CLUSTER_JOB_RUNNING);
    expect_attached(request, toy()->generation, 1);
}

TEST(a_shard_that_sees_the_snapshots_is_taken_before_one_that_does_not)
{
    take_snapshot();
    amend();
    unmount_at(1);
    fake_shard_up(&fake, 2);
    fake_until(&fake, coord_shard_find(fake.cluster, "s1")->storage.text[0] != '\0');
    fake_shard_renew(&fake, 1);
    expect_rolled_back();
    expect_attached(ask_open(), 2, 1);
    ck_assert(fake.shards[0].has_job && fake.shards[2].has_job);
}

/* Its process serves other jobs still: else it would have ended. */
TEST(a_shard_whose_device_failed_gets_no_part)
{
    take_snapshot();
    amend();
    fake_shard_up(&fake, 2);
    fake.shards[1].failed = "a launch of fold failed on Emulated card 0";
    fake_shard_renew(&fake, 1);
    expect_rolled_back();
    expect_attached(ask_open(), 2, 1);
    ck_assert(fake.shards[0].has_job && fake.shards[2].has_job);
    ck_assert_uint_eq(fake.shards[1].seen[CAIRN_MSG_JOB_CREATE], 1);
    train();
}

TEST(one_that_is_removed_meanwhile_is_not_counted_twice)
{
    const char *newest = NULL;
    for (int i = 0; i < 3; i++) {
        if (i > 0) train();
        newest = take_snapshot()->path;
    }
    damage(newest);
    amend();
    uv_timer_stop(&fake.cluster->clock.tick); // it is tried by this test's word
    fake_shard_renew(&fake, 1);
    coord_job_lose(toy(), true, "s1 lost it");
    coord_recovery_tick(toy());
    ck_assert(toy()->loss.recovery.running);
    fake_until(&fake, !toy()->loss.recovery.running);
    Cairn__SnapshotRemove message = CAIRN__SNAPSHOT_REMOVE__INIT; // as its operator does
    message.job = "toy";
    message.id = strrchr(newest, '/') + 1;
    message.force = true; // it may have been verified meanwhile, or not
    fake_hear(&admin, SnapshotRemoved,
              fake_request(&admin, CAIRN_MSG_SNAPSHOT_REMOVE, &message.base));
    coord_recovery_tick(toy());
    fake_until(&fake, toy()->state == CAIRN_CLUSTER_JOB_RUNNING);
    expect_attached(ask_open(), 2, 2);
}

/* With another learning rate, which stays. */
static uint32_t ask_restore_with_lr(const char *folder)
{
    Cairn__Setting lr = { .key = "all.lr", .value = "0.25" }, *settings[] = { &lr };
    return fake_ask(&admin, SnapshotRestore, .path = wire_text(folder), .settings = settings,
                    .n_settings = 1);
}

/* The shard comes back empty, or another one is there in its place. */
TEST_EACH(a_restore_that_an_operator_began_and_a_shard_ended_is_tried_again, 0, 2)
{
    amend();
    const char *folder = take_snapshot()->path;
    train();
    fake.shards[1].holds_create = true;
    const uint32_t asked = ask_restore_with_lr(folder);
    fake_until(&fake, fake.shards[1].has_job &&
                          coord_stage(toy(), CAIRN_OPERATION_RESTORE) != CAIRN_STAGE_NONE);
    if (_i == 1) fake_shard_up(&fake, 2);
    fake_shard_away(&fake, 1);
    fake_shard_forget(&fake, 1);
    fake.shards[1].holds_create = false;
    fake_expect_error(&admin, asked, CAIRN_ERR_CLOSED, "");
    ck_assert_msg(coord_recovery_pending(toy()), "%s", toy()->loss.why.text);
    ck_assert_ptr_nonnull(strstr(toy()->loss.why.text, "is restored by itself"));
    if (_i == 0) fake_shard_up(&fake, 1);
    toy()->loss.recovery.retry_ms = 0;
    expect_attached(ask_open(), 3, 1);
    ck_assert(fake.shards[0].has_job && fake.shards[1 + _i].has_job);
    ck_assert_double_eq(toy()->spec.groups[0].lr, 0.25);
}

TEST(without_a_snapshot_the_job_is_lost_and_says_so)
{
    amend();
    fake_shard_renew(&fake, 1);
    expect_rolled_back();
    fake_expect_error(&w, ask_open(), CAIRN_ERR_JOB_LOST,
                      "finds no whole snapshot of it: `cairn snapshot restore toy latest` tries "
                      "again");
    ck_assert_int_eq(toy()->state, CAIRN_CLUSTER_JOB_LOST);
}

TEST(with_one_alone_whose_results_are_not_finite_it_is_lost_and_says_how_to_take_that)
{
    fake.shards[0].nonfinite = 2;
    train();
    take_snapshot();
    amend();
    fake_shard_renew(&fake, 1);
    expect_rolled_back();
    fake_expect_error(&w, ask_open(), CAIRN_ERR_JOB_LOST, "`cairn snapshot restore toy ID`");
}

TEST(without_progress_it_ends_after_so_many)
{
    take_snapshot();
    amend();
    for (uint64_t i = 0; i < CAIRN_RESTORES_MAX; i++) {
        fake_shard_renew(&fake, 1);
        expect_rolled_back();
        expect_attached(ask_open(), 2 + i, 1);
    }
    fake_shard_renew(&fake, 1);
    fake_expect_error(&w, 0, CAIRN_ERR_JOB_LOST, "restored it 3 times without a step");
    ck_assert_int_eq(toy()->state, CAIRN_CLUSTER_JOB_LOST);
    fake_expect_error(&w, ask_open(), CAIRN_ERR_JOB_LOST, "waits now; restore a snapshot with");
}

TEST(no_snapshot_that_is_ahead_of_the_job_is_its_own)
{
    train();
    train();
    take_snapshot();
    drop();
    come_again("w0");
    job = fake_attach(&w, 11, 0, 1); // another one, from the beginning
    fake_init(&w, job);
    train();
    amend();
    fake_shard_renew(&fake, 1);
    expect_rolled_back();
    fake_expect_error(&w, ask_open(), CAIRN_ERR_JOB_LOST, "takes none of its snapshots unasked");
}

/* Those who came for more workers than the snapshot's job has, and those who wait for a lost one. */
TEST(it_keeps_how_many_workers_it_was_amended_to_have)
{
    take_snapshot();
    amend();
    amend_job(2, "workers_min=1 workers_max=4");
    fake_shard_renew(&fake, 1);
    expect_rolled_back();
    come_again("w0");
    struct job_spec_data spec = fake_spec(3);
    spec.workers_max = 3; // within the bounds
    const uint32_t request = fake_job_open(&w, &spec, 10, 0);
    spec_release(&spec);
    expect_attached(request, 2, 1);
    ck_assert_uint_eq(toy()->spec.workers_min, 1);
    ck_assert_uint_eq(toy()->spec.workers_max, 4);
    expect_attached(ask_open(), 2, 1); // as it was before the amendment
    train();
}

TEST(who_was_at_work_on_something_else_is_waited_for_afterwards_too)
{
    struct fake_peer other = worker("w1");
    take_snapshot();
    amend();
    struct job_spec_data spec = fake_spec(1);
    fake_hear(&other, Attached, fake_job_open(&other, &spec, 11, 1));
    spec_release(&spec);
    amend_job(2, "workers_min=2 workers_max=2");
    fake_call(&other, Done, Pause, .job = job, .at_most_ms = 60000, .what = "evaluating");
    fake_shard_renew(&fake, 1);
    expect_rolled_back();
    fake_expect_error(&other, 0, CAIRN_ERR_ROLLED_BACK, "is restored by itself");
    expect_attached(ask_open(), 2, 1);
    const uint32_t begun = fake_ask_begin(&w, job);
    Cairn__Awaited *awaited = fake_awaited(&w, job);
    ck_assert_msg(awaited->paused_ms > 0, "%s", awaited->text);
    ck_assert_msg(strstr(awaited->text, "1 more worker (1 of 2 attached)") != NULL &&
                      strstr(awaited->text, "evaluating") != NULL,
                  "%s", awaited->text);
    fake_peer_close(&other);
    other = worker("w1");
    spec = fake_spec(1);
    fake_hear(&other, Attached, fake_job_open(&other, &spec, 11, 1));
    spec_release(&spec);
    fake_hear(&w, RoundOpened, begun);
    fake_peer_close(&other);
}

TEST(by_default_the_job_waits)
{
    take_snapshot();
    fake_shard_renew(&fake, 1);
    fake_expect_error(&w, 0, CAIRN_ERR_JOB_LOST, "restore a snapshot with");
    fake_expect_error(&w, ask_open(), CAIRN_ERR_JOB_LOST, "is lost: s1");
}

SUITE(30, open_ticking, close_fake);
