/* Workers that wish that the newest snapshot is restored, and those who come beside them without the wish. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

/* Two shards, a job at step 1, of which there is a snapshot. */
static void set_up(void)
{
    open_ticking();
    take_snapshot();
}
static void lose(void)
{
    fake_shard_renew(&fake, 1);
    fake_expect_error(&w, 0, CAIRN_ERR_JOB_LOST, "is lost: s1");
}

static void expect_attached(struct fake_peer *peer, uint32_t request)
{
    Cairn__Attached *attached = fake_hear(peer, Attached, request);
    ck_assert_uint_eq(attached->generation, 2);
    ck_assert_uint_eq(attached->step, 1);
}

TEST(who_comes_without_the_wish_begins_no_job_before_it_is_fulfilled)
{
    struct job_spec_data spec = fake_spec(1);
    struct fake_peer with = worker("with");
    struct fake_peer without = worker("without");
    drop();
    const uint32_t wish = fake_ask_resume(&with, &spec);
    fake_until(&fake,
               fake.cluster->under_way.resumes !=
                   NULL); // heard, before what comes on another connection
    const uint32_t plain = fake_ask_open(&without, 60, 1, 1);
    expect_attached(&with, wish);
    expect_attached(&without, plain);
    spec_release(&spec);
    fake_peer_close(&with);
    fake_peer_close(&without);
}

TEST(a_reader_has_nothing_restored)
{
    struct fake_peer reader = fake_connect(&fake, CAIRN_ROLE_WIRE_READER, "reader");
    lose();
    const uint32_t request = fake_ask(&reader, JobOpen, .name = "toy",
                                      .role = CAIRN_ROLE_WIRE_READER, .session = 40,
                                      .resume_latest = true);
    fake_expect_error(&reader, request, CAIRN_ERR_JOB_LOST, "is lost: s1");
    ck_assert_int_eq(toy()->state, CAIRN_CLUSTER_JOB_LOST);
    fake_peer_close(&reader);
}

TEST(a_lost_job_keeps_how_many_workers_it_was_amended_to_have)
{
    amend_job(1, "workers_min=1 workers_max=4");
    lose();
    come_again("again");
    struct job_spec_data spec = fake_spec(1);
    spec.workers_max = 4;
    expect_attached(&w, fake_ask_resume(&w, &spec));
    spec_release(&spec);
}

TEST(a_damaged_snapshot_is_passed_over)
{
    struct job_spec_data spec = fake_spec(1);
    fake.shards[0].nonfinite = 2;
    ck_assert_uint_eq(train(), 2);
    take_snapshot();
    drop();
    come_again("again");
    expect_attached(&w, fake_ask_resume(&w, &spec)); // at step 1
    Cairn__JobStatus *s = show_job("toy");
    ck_assert_msg(
        strstr(s->passed_over,
               "step-000000000002-g1, is damaged: it has a non-finite result in 2 elements") !=
            NULL,
        "%s", s->passed_over);
    spec_release(&spec);
}

/* "signed" takes the one before it; with snapshots.trust any the newest would be. */
TEST_EACH(a_snapshot_that_nobody_signed_is_passed_over_unless_the_setting_says_otherwise, 0, 2)
{
    struct job_spec_data spec = fake_spec(1);
    char path[4200];
    const bool takes_any = _i == 1;
    ck_assert_uint_eq(train(), 2);
    Cairn__SnapshotStatus *taken = take_snapshot();
    snprintf(path, sizeof path, "%s/manifest.json.minisig", taken->path);
    ck_assert_int_eq(unlink(path), 0);
    fake.options.snapshots_trust = wire_text(takes_any ? "any" : "signed");
    drop();
    come_again("again");
    ck_assert_uint_eq(fake_hear(&w, Attached, fake_ask_resume(&w, &spec))->step, takes_any ? 2 : 1);
    Cairn__JobStatus *s = show_job("toy");
    const char *said = strstr(s->passed_over, "step-000000000002-g1, is not trusted: its manifest");
    ck_assert_msg((said == NULL) == takes_any, "%s", s->passed_over);
    spec_release(&spec);
}

TEST(with_damaged_snapshots_alone_the_job_does_not_begin_anew)
{
    struct job_spec_data spec = fake_spec(1);
    Cairn__SnapshotList *listed = list_snapshots();
    fake.shards[0].nonfinite = 2;
    (void)train();
    take_snapshot();
    // By force: it may have been verified meanwhile, or not.
    fake_call(&admin, SnapshotRemoved, SnapshotRemove, .job = listed->snapshots[0]->job,
              .id = listed->snapshots[0]->id, .force = true);
    drop();
    come_again("again");
    fake_expect_error(&w, fake_ask_resume(&w, &spec), CAIRN_ERR_CORRUPT,
                      "that may be taken unasked; `cairn snapshot restore toy ID`");
    ck_assert_ptr_null(toy());
    spec_release(&spec);
}

TEST(who_comes_with_another_spec_has_nothing_restored)
{
    struct job_spec_data spec = fake_spec(1), other = fake_spec(1);
    struct fake_peer stray = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "stray");
    struct fake_peer with = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "with");
    other.clip_norm = 77;
    drop();
    const uint32_t created = fake.shards[0].seen[CAIRN_MSG_JOB_CREATE];
    fake_expect_error(&stray, fake_ask_resume(&stray, &other), CAIRN_ERR_MISMATCH, "clip_norm");
    ck_assert_ptr_null(toy());
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_JOB_CREATE], created);
    const uint32_t wrong = fake_ask_resume(&stray, &other); // beside one who is right
    const uint32_t right = fake_ask_resume(&with, &spec);
    fake_expect_error(&stray, wrong, CAIRN_ERR_MISMATCH, "clip_norm");
    expect_attached(&with, right);
    fake_peer_close(&with);
    spec_release(&spec);
    spec_release(&other);
    fake_peer_close(&stray);
}

/* The snapshots are whole: what is older would fail the same way. */
TEST(storage_that_is_not_mounted_at_a_shard_is_no_damage)
{
    struct job_spec_data spec = fake_spec(1);
    train();
    take_snapshot();
    drop();
    come_again("again");
    fake.shards[1].refuse_create = "there is no folder /snapshots/toy";
    fake.shards[1].refuse_create_status = CAIRN_ERR_NOT_FOUND;
    fake_expect_error(&w, fake_ask_resume(&w, &spec), CAIRN_ERR_IO,
                      "is the storage of the snapshots mounted at that shard?");
    ck_assert_ptr_null(toy());
    spec_release(&spec);
}

TEST(a_drained_shard_is_not_waited_for)
{
    struct job_spec_data spec = fake_spec(1);
    drain_shard(0);
    fake_shard_away(&fake, 0);
    Cairn__SnapshotStatus *saved = take_snapshot();
    lose();
    come_again("again");
    ck_assert_uint_eq(fake_hear(&w, Attached, fake_ask_resume(&w, &spec))->step, saved->step);
    spec_release(&spec);
}

SUITE(30, set_up, close_fake);
