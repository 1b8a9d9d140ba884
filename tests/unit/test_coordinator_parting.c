/* A shard that is stopped and cannot be emptied first: its jobs are saved, and it hears what comes of it. */
#include <check.h>
#include <string.h>

#include "server/coordinator/base.h"
#include "server/coordinator/job.h"
#include "server/coordinator/members.h"
#include "server/coordinator/snapshot.h"
#include "tests/support/fake_move.h"
#include "tests/support/fake_shard.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static void drain(uint32_t shard, uint32_t seconds)
{
    (void)fake_ask(&fake.shards[shard].peer, DrainMe, .seconds = seconds);
}

static void expect_told(uint32_t shard, const char *why, const char *outcome)
{
    const struct fake_shard *s = &fake.shards[shard];
    fake_until(&fake, s->error != 0);
    ck_assert_msg(strstr(s->error_text, why) != NULL, "%s", s->error_text);
    ck_assert_msg(strstr(s->error_text, outcome) != NULL, "%s", s->error_text);
}

/* So many there are; the newest. */
static void expect_snapshots(size_t count)
{
    ck_assert_uint_eq(list_snapshots()->n_snapshots, count);
}

static const char saved[] = "; job toy is saved as snapshot ",
                  lost[] = "; job toy has nothing durable left but older snapshots: ";

TEST(of_two_that_are_stopped_together_the_job_is_saved_once)
{
    fake.shards[1].move.holds_prepare = true;
    drain(0, 100);
    drain(1, 100);
    fake_until(&fake, fake.shards[1].error != 0);
    expect_told(0, "all shards are being stopped", saved);
    expect_told(1, "no shard that stays is here", saved);
    ck_assert_str_eq(strstr(fake.shards[0].error_text, saved),
                     strstr(fake.shards[1].error_text, saved));
    expect_snapshots(1);
}

TEST(when_three_quarters_of_the_time_are_over_the_job_is_saved)
{
    fake_shard_up(&fake, 2);
    fake.shards[1].move.holds_prepare = true;
    drain(0, 1);
    fake_until(&fake, fake.shards[1].move.next != NULL);
    expect_told(0, "its time is nearly over", saved);
    ck_assert(!toy()->reshard.running);
    expect_snapshots(1);
    train();
}

TEST(a_snapshot_that_fails_is_told)
{
    for (int i = 0; i < 2; i++) fake.shards[i].fail_part = "the disk is full";
    drain(0, 100);
    drain(1, 100);
    expect_told(0, "", lost);
    expect_told(0, "", "the disk is full");
    expect_told(1, "", lost);
    expect_snapshots(0);
}

TEST(a_snapshot_that_takes_too_long_is_told_in_time)
{
    fake.shards[0].holds_part = true;
    drain(0, 1);
    drain(1, 1);
    expect_told(0, "", lost);
    expect_told(1, "", "its snapshot was not done in time");
}

TEST(where_no_shard_can_save_nothing_is_begun)
{
    fake.shards[1].storage = "/snapshots: there is no such folder";
    fake_until(&fake, coord_shard_find(fake.cluster, "s1")->storage.text[0] != '\0');
    drain(0, 100);
    drain(1, 100);
    expect_told(0, lost, "shard s1 cannot save: /snapshots: there is no such folder");
}

TEST(the_last_one_is_of_now_and_waits_for_no_memory_as_others_do)
{
    (void)train(); // a job that rests prepares nothing
    take_snapshot();
    for (int i = 0; i < 2; i++) ck_assert_uint_eq(fake.shards[i].seen[CAIRN_MSG_PIN_PREPARE], 1);
    drain(0, 100);
    drain(1, 100);
    expect_told(0, "", saved);
    expect_told(1, "", saved);
    expect_snapshots(2);
    for (int i = 0; i < 2; i++) ck_assert_uint_eq(fake.shards[i].seen[CAIRN_MSG_PIN_PREPARE], 1);
}

TEST(one_that_is_being_taken_is_awaited_and_another_one_follows)
{
    fake.shards[0].holds_part = true;
    const uint32_t asked = ask_snapshot(&admin, true);
    fake_until(&fake, fake.shards[0].seen[CAIRN_MSG_PIN_FOLDER] == 1);
    drain(0, 100);
    drain(1, 100);
    fake_until(&fake, toy()->snapshots.parting.state == CAIRN_PARTING_WANTED);
    ck_assert_uint_eq(fake.shards[0].error, 0);
    fake.shards[0].holds_part = false;
    fake_shard_answer_pin(&fake.shards[0], toy()->snapshots.running->number,
                          toy()->snapshots.running->folder);
    expect_snapshot(asked);
    expect_told(0, "", saved);
    expect_snapshots(2);
}

SUITE(60, open_ticking, close_fake);
