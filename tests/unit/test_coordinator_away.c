/* What an operator is told of jobs whose shards are away; a shard that is gone for good is forgotten. */
#include <check.h>
#include <string.h>

#include "server/coordinator/base.h"
#include "server/coordinator/members.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static void expect_job(const char *state, bool version_unknown, uint64_t step)
{
    Cairn__JobStatus *status = show_job("toy");
    ck_assert_str_eq(status->state, state);
    ck_assert_int_eq(status->version_unknown, version_unknown);
    if (!version_unknown) ck_assert_uint_eq(status->step, step);
}

TEST(after_a_restart_a_job_waits_and_its_version_is_unknown_until_all_shards_have_told)
{
    restart_coordinator();
    expect_job("waiting", true, 0);
    fake_shard_up(&fake, 0);
    expect_job("waiting", true, 0);
    ck_assert_str_eq(show_job("toy")->awaited, "shard s1 (it is away)");
    fake_shard_up(&fake, 1);
    fake_until(&fake, toy()->rounds.heard);
    expect_job("running", false, 1);
    fake_shard_away(&fake, 1); // what was heard once is known
    expect_job("running", false, 1);
}

TEST(what_is_dropped_or_replaced_unheard_has_no_step)
{
    restart_coordinator();
    fake_shard_up(&fake, 0);
    const uint32_t request = ask_drop("toy", false);
    fake_expect_silence(&admin, 0); // a shard that lives is back within a lease
    fake.cluster->clock.started_ms -= (uint64_t)fake.cluster->options->lease_timeout_ms;
    ck_assert(fake_hear(&admin, JobRemoved, request)->version_unknown);
}

/* Before it was: "shard s1 is not here", and a plan without it. */
TEST(a_drain_that_is_asked_of_a_coordinator_that_has_just_started_waits_for_the_shards)
{
    restart_coordinator();
    const uint32_t request = fake_ask(&admin, MemberDrain, .name = fake.shards[1].name);
    fake_shard_up(&fake, 0);
    fake_expect_silence(&admin, 0);
    fake_shard_up(&fake, 1);
    fake_hear(&admin, Done, request);
    ck_assert(coord_shard_find(fake.cluster, "s1")->leaving);
}

/* ---- forgotten ---- */

static uint32_t ask_forget(const char *name)
{
    return fake_ask(&admin, ShardForget, .name = wire_text(name));
}

TEST(a_shard_that_is_here_or_has_a_part_of_a_job_is_not_forgotten)
{
    fake_expect_error(&admin, ask_forget("s7"), CAIRN_ERR_NOT_FOUND, "s7");
    fake_expect_error(&admin, ask_forget("s1"), CAIRN_ERR_BUSY, "s1 is connected from");
    fake_shard_away(&fake, 1);
    fake_expect_error(&admin, ask_forget("s1"), CAIRN_ERR_BUSY, "job toy has a part");
    fake_shard_up(&fake, 1);
    train();
}

TEST(a_shard_whose_jobs_were_dropped_is_forgotten_and_comes_back_as_a_new_one)
{
    fake_shard_away(&fake, 1);
    drop();
    ck_assert_ptr_nonnull(coord_shard_find(fake.cluster, "s1")); // status says: away
    fake_hear(&admin, Done, ask_forget("s1"));
    ck_assert_ptr_null(coord_shard_find(fake.cluster, "s1"));
    fake_shard_up(&fake, 1);
    fake_until(&fake, !fake.shards[1].has_job); // what was dropped stays so
    ck_assert_ptr_nonnull(coord_shard_find(fake.cluster, "s1"));
}

SUITE(30, open_trained, close_fake);
