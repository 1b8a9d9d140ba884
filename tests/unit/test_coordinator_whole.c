/* Beside a run, over fake shards: a job of stage 0, which one shard has whole; amendments; a digest. */
#include <check.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "server/coordinator/base.h"
#include "server/coordinator/job.h"
#include "tests/support/fake_move.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static char s0[] = "s0", s1[] = "s1", toy_name[] = "toy";

static uint32_t ask(char *add, char *drain, uint32_t shards)
{
    char *adds[] = { add }, *drains[] = { drain };
    return fake_ask(&admin, ReshardAsk, .job = toy_name, .op = CAIRN_RESHARD_APPLY, .add = adds,
                    .n_add = add != NULL, .drain = drains, .n_drain = drain != NULL,
                    .shards = shards);
}

static void expect_begun(uint32_t request)
{
    fake_hear(&admin, ReshardTold, request);
}

static void train_until_ended(void)
{
    for (int i = 0; i < 50 && toy()->reshard.running; i++) {
        train();
        for (int k = 0; k < 20; k++) fake_pump(&fake);
    }
    fake_until(&fake, !toy()->reshard.running);
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
    expect_begun(ask(to, from, 0));
    train_until_ended();
    ck_assert_str_eq(owner(), to);
    ck_assert_uint_eq(toy()->entry_count, 1);
    train();
    expect_begun(ask(from, to, 0));
    train_until_ended();
    ck_assert_str_eq(owner(), from);
    train();
}

TEST(a_job_of_stage_0_is_refused_more_than_one_shard)
{
    char *const other = strcmp(owner(), "s0") == 0 ? s1 : s0;
    const char *const why = "stage 0: one shard has all of its state, and it cannot be spread over "
                            "2; it can move to another one";
    train();
    fake_expect_error(&admin, ask(NULL, NULL, 2), CAIRN_ERR_INVALID, why);
    fake_expect_error(&admin, ask(other, NULL, 0), CAIRN_ERR_INVALID, why);
    ck_assert(!toy()->reshard.running);
    train();
}

TEST(a_drain_of_the_shard_that_has_a_job_of_stage_0_moves_it_whole)
{
    char *const from = strcmp(owner(), "s0") == 0 ? s0 : s1;
    train();
    fake_hear(&admin, Done, fake_ask(&admin, MemberDrain, .name = from));
    train_until_ended();
    ck_assert_str_ne(owner(), from);
    train();
}

SUITE(60, open_whole, close_fake);

/* ---- amendments, a digest ---- */

static void open_three(void)
{
    open_ticking();
    fake_shard_up(&fake, 2);
}

TEST(terms_that_are_amended_while_a_slice_is_prepared_or_moves_take_effect)
{
    fake.shards[1].move.holds_prepare = true;
    expect_begun(ask(NULL, NULL, 3));
    fake_until(&fake, fake.shards[1].move.next != NULL);
    fake_expect_amended(&w, fake_amend_freeze(&w, job, 3), 1);
    fake.shards[2].move.holds_moved = true;
    fake.shards[1].move.holds_prepare = false;
    fake_move_prepared(&fake.shards[1]);
    fake_until(&fake, toy()->layout->version > 1);
    char *thaw[] = { (char[]) { "all" } };
    fake_expect_amended(
        &w, fake_ask(&w, JobAmend, .job = job, .key = 4, .unfreeze = thaw, .n_unfreeze = 1), 2);
    fake.shards[2].move.holds_moved = false;
    fake_move_release(&fake.shards[2]);
    train_until_ended();
    for (int i = 0; i < 3; i++)
        fake_until(&fake, toy()->shards[i].revision == 2 && fake.shards[i].settled);
    train();
}

/* Both are on their way to the coordinator together. */
TEST(a_digest_that_is_asked_for_while_a_run_begins_comes_and_the_run_goes_on)
{
    const uint32_t asked = ask(NULL, NULL, 3), digest = ask_digest(&admin);
    expect_begun(asked);
    fake_hear(&admin, JobDigest, digest);
    train_until_ended();
    ck_assert(layout_owns(toy()->layout, 2));
}

SUITE(60, open_three, close_fake);
