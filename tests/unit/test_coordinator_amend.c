/* Amendments that make a new generation, in this process against scripted shards: both phases, and whoever
 * is lost in which. */
#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static bool both_staged(void)
{
    return fake.shards[0].staged != NULL && fake.shards[0].staged->has_job &&
           fake.shards[1].staged != NULL && fake.shards[1].staged->has_job;
}

TEST(all_shards_make_it_then_it_is_stored_then_they_switch_and_all_open_the_job_again)
{
    start_trained();
    struct fake_peer reader = fake_connect(&fake, CAIRN_ROLE_WIRE_READER, "r0");
    Cairn__JobOpen open = CAIRN__JOB_OPEN__INIT;
    open.name = "toy";
    open.role = CAIRN_ROLE_WIRE_READER;
    open.session = 5;
    fake_hear(&reader, Attached, fake_request(&reader, CAIRN_MSG_JOB_OPEN, &open.base));
    fake_expect_amended(&w, fake_amend_more(&w, job, 3), 1);
    fake_expect_error(&w, 0, CAIRN_ERR_REOPEN, "close it and open it again");
    fake_expect_error(&reader, 0, CAIRN_ERR_REOPEN, "close it and open it again");
    for (int i = 0; i < 2; i++) { // on connections of their own
        fake_until(&fake, fake.shards[i].seen[CAIRN_MSG_JOB_SWITCH] == 1);
        ck_assert_uint_eq(fake.shards[i].generation, 2);
    }
    fake_goes_on(&fake, 2, 3);
    fake_coordinator_restart(&fake);
    fake_shards_up(&fake, 2);
    fake_goes_on(&fake, 2, 3);
    fake_peer_close(&reader);
}

TEST(a_shard_without_room_refuses_it_and_the_others_drop_what_they_made)
{
    start_trained();
    fake.shards[1].refuse_create = "needs 12 GiB, has 8";
    fake_expect_error(&w, fake_amend_more(&w, job, 3), CAIRN_ERR_NO_MEMORY,
                      "s1: needs 12 GiB, has 8");
    fake.shards[1].refuse_create = NULL;
    fake_until(&fake, fake.shards[0].staged == NULL && fake.shards[1].staged == NULL);
    ck_assert_uint_eq(train(), 2); // still attached
    fake_goes_on(&fake, 1, 2);
}

TEST(a_shard_that_is_lost_while_it_makes_it_voids_it)
{
    start_trained();
    fake.shards[1].holds_create = true;
    const uint32_t request = fake_amend_more(&w, job, 3);
    fake_until(&fake, both_staged());
    fake_shard_away(&fake, 1);
    fake_expect_error(&w, request, CAIRN_ERR_NOT_READY, "s1: the connection was lost");
    fake_until(&fake, fake.shards[0].staged == NULL);
    fake.shards[1].holds_create = false;
    fake_shard_up(&fake, 1); // says that it holds two
    fake_until(&fake, fake.shards[1].staged == NULL);
    fake_expect_amended(&w, fake_amend_more(&w, job, 4), 1); // once more
    fake_goes_on(&fake, 2, 3);
}

TEST(a_shard_that_comes_back_while_others_make_it_voids_it)
{
    start_trained();
    fake.shards[1].holds_create = true;
    const uint32_t request = fake_amend_more(&w, job, 3);
    fake_until(&fake, both_staged());
    fake_shard_blink(&fake, 0); // is told to drop it
    fake_until(&fake, fake.shards[0].staged == NULL);
    fake_shard_release(&fake.shards[1]);
    fake_expect_error(&w, request, CAIRN_ERR_NOT_READY, "a shard went away");
    fake_until(&fake, fake.shards[1].staged == NULL);
    fake_goes_on(&fake, 1, 2);
}

TEST(a_coordinator_lost_before_it_is_stored_leaves_the_job_as_it_was)
{
    start_trained();
    fake.shards[1].holds_create = true;
    (void)fake_amend_more(&w, job, 3);
    fake_until(&fake, both_staged());
    fake_coordinator_stop(&fake);
    fake.shards[1].holds_create = false;
    fake_coordinator_start(&fake);
    fake_shards_up(&fake, 2);
    fake_until(&fake, fake.shards[0].staged == NULL && fake.shards[1].staged == NULL);
    fake_goes_on(&fake, 1, 2);
}

TEST(a_coordinator_lost_before_the_shards_switched_leaves_the_amended_job)
{
    start_trained();
    fake.shards[0].dies_at_switch = fake.shards[1].dies_at_switch = true;
    fake_expect_amended(&w, fake_amend_more(&w, job, 3), 1);
    fake_until(&fake, fake.shards[0].dead && fake.shards[1].dead);
    fake_coordinator_stop(&fake);
    fake.shards[0].dies_at_switch = fake.shards[1].dies_at_switch = false;
    fake_coordinator_start(&fake);
    fake_shards_up(&fake, 2);
    fake_goes_on(&fake, 2, 3);
}

TEST(a_shard_that_missed_the_switch_is_told_when_it_is_back)
{
    start_trained();
    fake.shards[1].dies_at_switch = true;
    fake_expect_amended(&w, fake_amend_more(&w, job, 3), 1);
    fake_until(&fake, fake.shards[1].dead);
    fake_shard_away(&fake, 1);
    fake.shards[1].dies_at_switch = false;
    fake_shard_up(&fake, 1);
    fake_goes_on(&fake, 2, 3);
}

static void expect_void(struct fake_peer *peer, uint64_t round)
{
    Cairn__RoundResult *result = fake_hear(peer, RoundResult, 0);
    ck_assert_uint_eq(result->round, round);
    ck_assert_int_eq(result->status, CAIRN_ERR_EPOCH_CHANGED);
    ck_assert_ptr_nonnull(strstr(result->text, "worker w0 (rank 0) amends the job"));
}

TEST(an_open_round_that_would_wait_for_the_caller_is_void)
{
    fake_shards_up(&fake, 2);
    fake.shards[0].holds_reduced = true;
    w = worker("w0");
    struct fake_peer other = worker("w1");
    job = fake_attach(&w, 10, 0, 1);
    fake_init(&w, job);
    ck_assert_uint_eq(fake_attach(&other, 11, 1, 1), job);
    Cairn__RoundOpened *opened = fake_hear(&other, RoundOpened, fake_ask_begin(&other, job));
    ck_assert_uint_eq(opened->world, 2);
    const uint64_t round = opened->round;
    const uint32_t request = fake_amend_more(&w, job, 3);
    expect_void(&w, round);
    expect_void(&other, round);
    fake_expect_amended(&w, request, 1);
    fake_expect_error(&other, 0, CAIRN_ERR_REOPEN, "open it again");
    fake.shards[0].holds_reduced = false;
    fake_goes_on(&fake, 2, 3);
    fake_peer_close(&other);
}

TEST(meanwhile_nobody_else_amends_saves_or_joins_and_the_same_request_is_answered_once)
{
    start_trained();
    struct fake_peer late = worker("late");
    fake.shards[1].holds_create = true;
    (void)fake_amend_more(&w, job, 3);
    fake_until(&fake, both_staged());
    fake_expect_error(&w, fake_amend_more(&w, job, 4), CAIRN_ERR_BUSY, "is being amended");
    fake_expect_error(&w, fake_ask(&w, SnapshotCreate, .job = "toy"), CAIRN_ERR_BUSY,
                      "is being amended");
    const uint32_t joins = fake_ask_open(&late, 12, 1, 1);
    const uint32_t again = fake_amend_more(&w, job, 3);
    const uint32_t begins = fake_ask_begin(&w, job);
    ck_assert_uint_eq(fake.shards[0].round, 0);
    Cairn__Awaited *awaited = fake_call(&w, Awaited, WhoIsAwaited, .job = job);
    ck_assert_str_eq(awaited->text, "the shards to amend the job");
    fake_shard_release(&fake.shards[1]);
    fake_expect_amended(&w, again, 1);
    fake_expect_error(&w, begins, CAIRN_ERR_REOPEN, "open it again");
    ck_assert_uint_eq(fake_hear(&late, Attached, joins)->generation, 2);
    fake_peer_close(&late);
}

/* It is in the store, and a shard does not have it yet. */
TEST(an_admin_who_waits_for_the_shards_of_a_job_that_is_lost_hears_of_it)
{
    start_trained();
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "admin");
    fake.shards[1].holds_terms = true;
    const uint32_t request = fake_ask_amend(&admin, (Cairn__JobAmend) { .name = "toy", .key = 9 },
                                            "clip_norm=2");
    fake_until(&fake, toy()->amends.revision != 0);
    tick_fast();
    fake_shard_renew(&fake, 1);
    fake_expect_error(&admin, request, CAIRN_ERR_JOB_LOST, "not on all shards, and the job");
}

/* ---- terms that take a new generation ---- */

static uint32_t ask_terms(struct fake_peer *peer, uint64_t of_job, uint64_t key)
{
    Cairn__Setting stage = CAIRN__SETTING__INIT, micro = CAIRN__SETTING__INIT;
    Cairn__Setting *list[] = { &stage, &micro };
    stage.key = "stage";
    stage.value = "3";
    micro.key = "micro_batches";
    micro.value = "1";
    return fake_ask(peer, JobAmend, .job = of_job, .name = "toy", .key = key, .settings = list,
                    .n_settings = 2);
}

static void expect_stage(uint32_t stage)
{
    ck_assert_uint_eq(show_job("toy")->spec->stage, stage);
}

/* By a worker or an admin; the store, its next coordinator and a worker with the spec as it was agree. */
TEST(terms_that_handles_have_make_a_generation_too_and_outlive_the_coordinator)
{
    start_trained();
    fake_expect_amended(&w, ask_terms(&w, job, 42), 1);
    fake_expect_error(&w, 0, CAIRN_ERR_REOPEN, "its tensors or terms have changed");
    fake_goes_on(&fake, 2, 2);
    fake_coordinator_restart(&fake);
    fake_shards_up(&fake, 2);
    fake_goes_on(&fake, 2, 2);
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN,
                         "admin"); // it is that already: no generation
    fake_expect_amended(&admin, ask_terms(&admin, 0, 43), 2);
    fake_goes_on(&fake, 2, 2);
    expect_stage(3);
}

TEST(an_admin_who_changes_such_terms_is_answered_or_hears_why_not)
{
    start_trained();
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "admin");
    fake.shards[1].refuse_create = "needs 12 GiB, has 8";
    uint32_t request = ask_terms(&admin, 0, 7);
    fake_expect_error(&admin, request, CAIRN_ERR_NO_MEMORY, "s1: needs 12 GiB, has 8");
    fake.shards[1].refuse_create = NULL;
    fake_until(&fake, fake.shards[0].staged == NULL && fake.shards[1].staged == NULL);
    ck_assert_uint_eq(train(), 2); // still attached
    fake.shards[1].holds_create = true;
    request = ask_terms(&admin, 0, 8);
    fake_until(&fake, both_staged());
    tick_fast();
    fake_shard_renew(&fake, 1);
    fake_expect_error(&admin, request, CAIRN_ERR_NOT_READY, "job toy was not amended");
}

SUITE(60, open_fake, close_fake);
