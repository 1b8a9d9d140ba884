/* Beside a run, over fake shards: a job of stage 0, which one shard has whole; amendments; a digest. */
#include <check.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "server/coordinator/base.h"
#include "server/coordinator/job.h"
#include "tests/support/fake_move.h"
#include "tests/support/reshard_toy.h"
#include "tests/support/suite.h"

static uint32_t ask_move(char *to, char *from)
{
    return ask_reshard(CAIRN_RESHARD_APPLY, RESHARD_ADD(to), RESHARD_DRAIN(from));
}

static void train_until_done(void)
{
    train_until_ended();
    ck_assert_int_eq(toy()->reshard.progress.state, CAIRN_RESHARD_DONE);
}

/* The name of the one shard that has all of it. */
static const char *owner(void)
{
    const struct layout *l = toy()->layout;
    const char *name = NULL;
    for (uint32_t i = 0; i < l->shard_count; i++) {
        if (!layout_owns(l, i)) continue;
        ck_assert_ptr_null(name);
        name = toy()->shards[i].entry->name;
    }
    ck_assert_ptr_nonnull(name);
    return name;
}

static void open_whole(void)
{
    struct job_spec_data spec = fake_spec(1);
    spec.stage = 0;
    open_fake();
    fake_shards_up(&fake, 2);
    w = worker("w0");
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
    Cairn__Attached *attached = fake_hear(&w, Attached, fake_job_open(&w, &spec, 10, 0));
    job = attached->job;
    spec_release(&spec);
    fake_init(&w, job);
    tick_fast();
}

TEST(a_job_of_stage_0_moves_whole_to_another_shard)
{
    const bool on_first = strcmp(owner(), "s0") == 0;
    char *const from = on_first ? s0 : s1, *const to = on_first ? s1 : s0;
    train();
    expect_told(ask_move(to, from));
    train_until_done();
    ck_assert_str_eq(owner(), to);
    ck_assert_uint_eq(toy()->entry_count, 1);
    train();
    expect_told(ask_move(from, to));
    train_until_done();
    ck_assert_str_eq(owner(), from);
    train();
}

TEST(a_job_of_stage_0_is_refused_more_than_one_shard)
{
    char *const other = strcmp(owner(), "s0") == 0 ? s1 : s0;
    const char *const why = "stage 0: one shard has all of its state, and it cannot be spread over "
                            "2; it can move to another one";
    train();
    fake_expect_error(&admin, ask_reshard(CAIRN_RESHARD_APPLY, .shards = 2), CAIRN_ERR_INVALID,
                      why);
    fake_expect_error(&admin, ask_reshard(CAIRN_RESHARD_APPLY, RESHARD_ADD(other)),
                      CAIRN_ERR_INVALID, why);
    ck_assert(!toy()->reshard.running);
    train();
}

TEST(a_drain_of_the_shard_that_has_a_job_of_stage_0_moves_it_whole)
{
    char *const from = strcmp(owner(), "s0") == 0 ? s0 : s1;
    train();
    fake_call(&admin, Done, MemberDrain, .name = from);
    train_until_done();
    ck_assert_str_ne(owner(), from);
    train();
}

SUITE(60, open_whole, close_fake);

/* ---- amendments, a digest ---- */

TEST(terms_that_are_amended_while_a_slice_is_prepared_or_moves_take_effect)
{
    begin_prepare(1);
    fake_expect_amended(&w, fake_amend_freeze(&w, job, 3), 1);
    fake.shards[2].move.holds_moved = true;
    end_prepare(1);
    fake_until(&fake, toy()->layout->version > 1);
    char *thaw[] = { (char[]) { "all" } };
    fake_expect_amended(
        &w, fake_ask(&w, JobAmend, .job = job, .key = 4, .unfreeze = thaw, .n_unfreeze = 1), 2);
    end_slice();
    train_until_done();
    for (int i = 0; i < 3; i++)
        fake_until(&fake, toy()->shards[i].revision == 2 && fake.shards[i].settled);
    train();
}

/* Both are on their way to the coordinator together. */
TEST(a_digest_that_is_asked_for_while_a_run_begins_comes_and_the_run_goes_on)
{
    const uint32_t asked = ask_reshard(CAIRN_RESHARD_APPLY, .shards = 3),
                   digest = ask_digest(&admin);
    expect_told(asked);
    fake_hear(&admin, JobDigest, digest);
    train_until_done();
    ck_assert(layout_owns(toy()->layout, 2));
}

SUITE(60, open_three, close_fake);
