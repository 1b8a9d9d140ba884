/* Threads of one worker that wait for the ends of rounds, at the coordinator: each has its answer. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "server/coordinator/members.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static void set_up(void)
{
    open_fake();
    start_job();
}

static void hold(bool held)
{
    for (uint32_t i = 0; i < 2; i++) fake.shards[i].holds_reduced = held;
    for (uint32_t i = 0; i < 2 && !held; i++) fake_shard_report_reduced(&fake.shards[i]);
}

/* What comes first for `request` is this end of the round. */
static void expect_end(uint32_t request, uint64_t round, cairn_status status)
{
    Cairn__RoundResult *result = fake_hear(&w, RoundResult, request);
    ck_assert_uint_eq(result->round, round);
    ck_assert_int_eq(result->status, status);
}

/* The step round that it ends is void: the write's, one higher. */
static uint64_t begin_write(uint64_t step_round)
{
    const uint32_t request = fake_ask(&w, WriteBegin, .job = job);
    expect_end(0, step_round, CAIRN_ERR_EPOCH_CHANGED);
    return fake_hear(&w, RoundOpened, request)->round;
}

/* Ends the round with these learning rates, of a job whose groups are driven. */
static uint32_t commit_driven(uint64_t round, double *driven, size_t count)
{
    return fake_ask(&w, RoundCommit, .job = job, .round = round, .driven = driven,
                    .n_driven = count);
}

TEST(a_bad_learning_rate_is_refused_with_its_group_and_the_round_waits_for_a_good_one)
{
    double bad[] = { NAN, -1e-3, INFINITY, 1e300, -0.5 }, good = 0.25;
    struct job_spec_data spec = fake_spec(1);
    spec.name[0] = 'T';
    spec.groups[0].schedule.kind = CAIRN_SCHEDULE_DRIVEN;
    struct fake_peer peer = worker("w1"), before = w;
    Cairn__Attached *attached = fake_hear(&peer, Attached, fake_job_open(&peer, &spec, 11, 0));
    w = peer;
    job = attached->job;
    spec_release(&spec);
    fake_init(&w, job);
    const uint64_t round = fake_begin(&w, job);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        fake_expect_error(&w, commit_driven(round, &bad[i], 1), CAIRN_ERR_INVALID,
                          "group all: the commit of round");
    fake_expect_error(&w, fake_ask_commit(&w, job, round), CAIRN_ERR_INVALID, "this one brings 0");
    expect_end(commit_driven(round, &good, 1), round, CAIRN_OK);
    fake_peer_close(&w);
    w = before;
}

TEST(a_late_commit_of_a_void_round_leaves_the_writers_commit_waiting)
{
    hold(true);
    const uint64_t step = fake_begin(&w, job), write = begin_write(step);
    const uint32_t of_write = fake_ask_commit(&w, job, write),
                   of_step = fake_ask_commit(&w, job, step);
    expect_end(of_step, step, CAIRN_ERR_EPOCH_CHANGED);
    hold(false);
    expect_end(of_write, write, CAIRN_OK);
}

TEST(a_void_round_is_laid_on_who_made_it_void_and_not_on_who_joined_since)
{
    hold(true);
    const uint64_t step = fake_begin(&w, job);
    (void)begin_write(step);
    struct fake_peer second = worker("w1");
    ck_assert_uint_eq(fake_attach(&second, 11, 1, 1), job);
    ck_assert_ptr_nonnull(strstr(fake_hear(&w, RoundResult, fake_ask_commit(&w, job, step))->text,
                                 "is void: worker w0 (rank 0) writes"));
    fake_peer_close(&second);
}

TEST(all_who_ask_for_the_end_of_one_round_hear_it)
{
    hold(true);
    const uint64_t round = fake_begin(&w, job);
    const uint32_t first = fake_ask_commit(&w, job, round),
                   second = fake_ask_commit(&w, job, round);
    hold(false);
    expect_end(first, round, CAIRN_OK);
    expect_end(second, round, CAIRN_OK);
}

TEST(one_call_too_many_is_told_so_and_the_others_are_answered)
{
    uint32_t requests[CAIRN_MEMBER_COMMITS_MAX + 1];
    hold(true);
    const uint64_t round = fake_begin(&w, job);
    for (int i = 0; i <= CAIRN_MEMBER_COMMITS_MAX; i++)
        requests[i] = fake_ask_commit(&w, job, round);
    fake_expect_error(&w, requests[0], CAIRN_ERR_BUSY, "more than 8 calls");
    hold(false);
    for (int i = 1; i <= CAIRN_MEMBER_COMMITS_MAX; i++) expect_end(requests[i], round, CAIRN_OK);
}

SUITE(60, set_up, close_fake);
