/* Snapshots and digests that cannot end: given up by themselves, or by an operator. Fake shards. */
#include <check.h>

#include "server/coordinator/job.h"
#include "server/coordinator/round.h"
#include "server/coordinator/snapshot.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static uint32_t ask_cancel(const char *id)
{
    return fake_ask(&admin, SnapshotCancel, .job = "toy", .id = wire_text(id));
}

static void expect_canceled(uint32_t request, const char *id, bool digest)
{
    Cairn__SnapshotCanceled *canceled = fake_hear(&admin, SnapshotCanceled, request);
    ck_assert_str_eq(canceled->job, "toy");
    ck_assert_str_eq(canceled->id, id);
    ck_assert_int_eq(canceled->digest, digest);
}

/* The cut has noticed for whom it waits; and that is a lease ago. */
static void let_a_lease_pass(void)
{
    fake_until(&fake, toy()->snapshots.running != NULL && toy()->snapshots.running->stuck_ms != 0);
    toy()->snapshots.running->stuck_ms -= (uint64_t)fake.options.lease_timeout_ms;
}

/* ---- by itself ---- */

TEST(a_snapshot_whose_shard_died_is_given_up_and_the_job_is_restored_without_that_shard)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    fake_shard_away(&fake, 1);
    const uint32_t request = ask_snapshot(&admin, true);
    fake_expect_error(&admin, ask_restore("", "", s->path), CAIRN_ERR_BUSY,
                      "waits for shard s1 (it is away); try again when it is done, or give it up: "
                      "`cairn snapshot cancel toy`");
    let_a_lease_pass();
    fake_expect_error(&admin, request, CAIRN_ERR_CLOSED, "s1: it is away for longer than");
    fake_shard_up(&fake, 2);
    expect_snapshot(ask_restore("", "", s->path));
}

TEST(a_shard_that_comes_back_within_the_lease_is_waited_for)
{
    fake_shard_away(&fake, 1);
    const uint32_t request = ask_snapshot(&admin, true);
    fake_until(&fake, toy()->snapshots.running != NULL && toy()->snapshots.running->stuck_ms != 0);
    fake_shard_up(&fake, 1);
    expect_snapshot(request);
}

TEST(what_was_given_up_is_not_taken_when_the_shard_is_back_and_another_one_is)
{
    fake_shard_away(&fake, 1);
    const uint32_t request = ask_digest(&admin);
    let_a_lease_pass();
    fake_expect_error(&admin, request, CAIRN_ERR_CLOSED, "s1");
    const uint32_t second = ask_snapshot(&admin, true);
    fake_shard_up(&fake, 1);
    expect_snapshot(second);
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_PIN], 1);
}

TEST(a_shard_that_comes_back_as_another_process_ends_the_cut_at_once)
{
    fake_shard_away(&fake, 1);
    const uint32_t request = ask_digest(&admin);
    fake_until(&fake, toy()->snapshots.running != NULL); // before what comes on another connection
    fake_shard_forget(&fake, 1);
    fake_shard_hello(&fake, 1);
    fake_expect_error(&admin, request, CAIRN_ERR_CLOSED, "s1: it restarted without its part");
}

TEST(a_part_that_fails_stops_the_other_shards)
{
    fake.shards[0].holds_part = true;
    fake.shards[1].fail_part = "no space left";
    fake_expect_error(&admin, ask_snapshot(&admin, true), CAIRN_ERR_NO_SPACE, "s1: no space left");
    ck_assert_uint_eq(fake.shards[0].told_to_stop, 1);
    ck_assert_uint_eq(snapshot_folders(), 0);
}

/* ---- by an operator ---- */

/* A heartbeat of a shard, of the cut that there is. */
static void tell_progress(uint32_t shard, uint64_t done, uint64_t total)
{
    const struct coord_snapshot *cut = coord_job_find(fake.cluster, "toy")->snapshots.running;
    Cairn__ShardStats stats = CAIRN__SHARD_STATS__INIT;
    Cairn__PinTold pin = CAIRN__PIN_TOLD__INIT, *pins = &pin;
    pin.job = cut->job->id;
    pin.snapshot = cut->number;
    pin.done_bytes = done;
    pin.total_bytes = total;
    pin.waited_ms = 7;
    fake_say(&fake.shards[shard].peer, 0, Heartbeat, .stats = &stats, .pins = &pins, .n_pins = 1);
    fake_until(&fake, cut->progress[shard].total_bytes > 0);
}

TEST(how_far_a_snapshot_is_is_what_its_shards_told_last)
{
    struct snapshot_progress progress;
    fake.shards[0].holds_part = fake.shards[1].holds_part = true;
    Cairn__SnapshotStatus *s = expect_snapshot(ask_snapshot(&admin, false));
    const struct coord_job *toy = coord_job_find(fake.cluster, "toy");
    ck_assert(!coord_snapshot_progress(toy, &progress)); // nobody has told
    tell_progress(0, 3000000, 4000000);
    tell_progress(1, UINT64_MAX, 6000000); // more than can be
    ck_assert(coord_snapshot_progress(toy, &progress));
    ck_assert_uint_eq(progress.done_bytes, 9000000);
    ck_assert_uint_eq(progress.total_bytes, 10000000);
    Cairn__JobStatus *now = show_job("toy");
    ck_assert_msg(strstr(now->saving, "; 9.0 of 10.0 MB, ") != NULL &&
                      strstr(now->saving, " s left, updates waited 7 ms") != NULL,
                  "%s", now->saving);
    expect_canceled(ask_cancel(s->id), s->id, false);
    ck_assert(!coord_snapshot_progress(toy, &progress));
}

TEST(a_list_shows_the_snapshot_that_is_being_taken_apart_from_those_that_are)
{
    take_snapshot();
    fake.shards[0].holds_part = fake.shards[1].holds_part = true;
    Cairn__SnapshotStatus *s = expect_snapshot(ask_snapshot(&admin, false));
    Cairn__SnapshotList *list = list_snapshots();
    ck_assert_uint_eq(list->n_snapshots, 1);
    ck_assert_uint_eq(list->n_running, 1);
    ck_assert_str_eq(list->running[0]->id, s->id);
    ck_assert_str_eq(list->running[0]->job, "toy");
    ck_assert_str_eq(list->running[0]->state, "running");
    ck_assert_uint_eq(list->running[0]->step, s->step);
    ck_assert_uint_eq(list->running[0]->total_bytes, 0); // nobody has told
    tell_progress(0, 3000000, 4000000);
    tell_progress(1, 1000000, 6000000);
    list = list_snapshots();
    ck_assert_uint_eq(list->running[0]->done_bytes, 4000000);
    ck_assert_uint_eq(list->running[0]->total_bytes, 10000000);
    ck_assert_uint_gt(list->running[0]->bytes_per_s, 0);
    expect_canceled(ask_cancel(s->id), s->id, false);
    list = list_snapshots();
    ck_assert_uint_eq(list->n_snapshots, 1);
    ck_assert_uint_eq(list->n_running, 0);
}

TEST(an_operator_gives_a_snapshot_up_and_nothing_of_it_stays)
{
    fake.shards[0].holds_part = true;
    Cairn__SnapshotStatus *s = expect_snapshot(ask_snapshot(&admin, false));
    ck_assert_str_eq(s->state, "writing");
    Cairn__JobStatus *job_now = show_job("toy"); // of another operator, say
    ck_assert_msg(strstr(job_now->saving, s->id) != NULL &&
                      strstr(job_now->saving, " s; it waits for shard s0") != NULL,
                  "%s", job_now->saving);
    fake_expect_error(&admin, ask_cancel("step-000000000077-g1"), CAIRN_ERR_NOT_FOUND,
                      "step-000000000077-g1");
    expect_canceled(ask_cancel(s->id), s->id, false);
    ck_assert_uint_eq(fake.shards[0].told_to_stop, 1);
    ck_assert_uint_eq(snapshot_folders(), 0);
    fake_expect_error(&admin, ask_cancel(""), CAIRN_ERR_NOT_FOUND, "no snapshot or digest");
    fake.shards[0].holds_part = false;
    take_snapshot();
    job_now = show_job("toy");
    ck_assert_str_eq(job_now->saving, "");
    train();
}

TEST(who_waits_for_it_hears_that_it_was_given_up)
{
    fake_shard_away(&fake, 1);
    const uint32_t request = ask_digest(&admin), cancel = ask_cancel("");
    fake_expect_error(&admin, request, CAIRN_ERR_CANCELED, "an operator");
    expect_canceled(cancel, "", true);
}

TEST(a_shard_that_says_nothing_holds_the_end_up_for_a_lease_at_most)
{
    fake.shards[0].holds_part = fake.shards[0].ignores_stop = true;
    Cairn__SnapshotStatus *s = expect_snapshot(ask_snapshot(&admin, false));
    const uint32_t request = ask_cancel("");
    fake_expect_error(&admin, ask_restore("", "", s->path), CAIRN_ERR_NOT_FOUND, s->id);
    let_a_lease_pass();
    expect_canceled(request, s->id, false);
    ck_assert_uint_eq(snapshot_folders(), 0);
    train();
}

/* As the adoption of a job does it. */
static void free_job(void)
{
    struct coord_job *freed = toy();
    coord_snapshot_orphan(freed, "it was adopted");
    coord_job_unlink(freed);
    coord_job_free(freed);
}

TEST(a_job_that_is_freed_leaves_a_cut_at_work_to_its_thread)
{
    const uint32_t request = ask_snapshot(&admin, true);
    fake_until(&fake,
               toy()->snapshots.running != NULL &&
                   coord_steps_at(&toy()->snapshots.running->steps) == CAIRN_SNAPSHOT_COMMITS);
    free_job();
    fake_expect_error(&admin, request, CAIRN_ERR_CANCELED, "it was adopted");
    fake_until(&fake, fake.cluster->under_way.works == NULL);
}

TEST(a_job_that_is_freed_leaves_a_cut_that_makes_its_folder_to_the_thread)
{
    fake.shards[1].holds_part = true;
    // Else a tick may pin it, and the folder be there in the same turn of the loop.
    fake_until(&fake, !coord_pace_nears_step(toy()));
    const uint32_t request = ask_snapshot(&admin, false);
    fake_until(&fake,
               toy()->snapshots.running != NULL && toy()->snapshots.running->steps.has_thread);
    free_job();
    fake_expect_error(&admin, request, CAIRN_ERR_CANCELED, "it was adopted");
    fake_until(&fake, fake.cluster->under_way.works == NULL);
}

SUITE(30, open_trained, close_fake);
