/* Threads of one worker that wait for the ends of rounds, at the coordinator: each has its answer. */
#include <check.h>
#include <math.h>

#include "tests/support/fake_cluster.h"
#include "tests/support/suite.h"

static struct fake_cluster fake;
static struct fake_peer worker;
static uint64_t job;

static void set_up(void)
{
    fake_open(&fake, 2);
    fake_shards_up(&fake, 2);
    worker = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "w0");
    job = fake_attach(&fake, &worker, 10, 0, 1);
    fake_init(&fake, &worker, job);
}

static void tear_down(void)
{
    fake_peer_close(&worker);
    fake_close(&fake);
}

static void hold(bool held)
{
    for (uint32_t i = 0; i < 2; i++) fake.shards[i].holds_reduced = held;
    for (uint32_t i = 0; i < 2 && !held; i++) fake_shard_report_reduced(&fake.shards[i]);
}

static uint32_t ask_commit(uint64_t round)
{
    Cairn__RoundCommit commit = CAIRN__ROUND_COMMIT__INIT;
    commit.job = job;
    commit.round = round;
    return fake_request(&worker, CAIRN_MSG_ROUND_COMMIT, &commit.base);
}

/* What comes first for `request` is this end of the round. */
static void expect_end(uint32_t request, uint64_t round, cairn_status status)
{
    Cairn__RoundResult *result = (Cairn__RoundResult *)fake_expect(&fake, &worker,
                                                                   CAIRN_MSG_ROUND_RESULT, request);
    ck_assert_uint_eq(result->round, round);
    ck_assert_int_eq(result->status, status);
    cairn_message_free(&result->base);
}

/* The step round that it ends is void: the write's, one higher. */
static uint64_t begin_write(uint64_t step_round)
{
    Cairn__WriteBegin begin = CAIRN__WRITE_BEGIN__INIT;
    begin.job = job;
    const uint32_t request = fake_request(&worker, CAIRN_MSG_WRITE_BEGIN, &begin.base);
    expect_end(0, step_round, CAIRN_ERR_EPOCH_CHANGED);
    Cairn__RoundOpened *opened = (Cairn__RoundOpened *)fake_expect(&fake, &worker,
                                                                   CAIRN_MSG_ROUND_OPENED, request);
    const uint64_t round = opened->round;
    cairn_message_free(&opened->base);
    return round;
}

/* Ends the round with these learning rates, of a job whose groups are driven. */
static uint32_t commit_driven(uint64_t round, double *driven, size_t count)
{
    Cairn__RoundCommit commit = CAIRN__ROUND_COMMIT__INIT;
    commit.job = job;
    commit.round = round;
    commit.driven = driven;
    commit.n_driven = count;
    return fake_request(&worker, CAIRN_MSG_ROUND_COMMIT, &commit.base);
}

START_TEST(a_bad_learning_rate_is_refused_with_its_group_and_the_round_waits_for_a_good_one)
{
    double bad[] = { NAN, -1e-3, INFINITY, 1e300, -0.5 }, good = 0.25;
    struct cairn_job_spec_data spec = fake_spec(1);
    spec.name[0] = 'T';
    spec.groups[0].schedule.kind = CAIRN_SCHEDULE_DRIVEN;
    struct fake_peer peer = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "w1"), before = worker;
    const uint32_t opening = fake_job_open(&peer, &spec, 11, 0);
    Cairn__Attached *attached = (Cairn__Attached *)fake_expect(&fake, &peer, CAIRN_MSG_ATTACHED,
                                                               opening);
    worker = peer;
    job = attached->job;
    cairn_message_free(&attached->base);
    cairn_spec_release(&spec);
    fake_init(&fake, &worker, job);
    const uint64_t round = fake_begin(&fake, &worker, job);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        fake_expect_error(&fake, &worker, commit_driven(round, &bad[i], 1), CAIRN_ERR_INVALID,
                          "group all: the commit of round");
    fake_expect_error(&fake, &worker, ask_commit(round), CAIRN_ERR_INVALID, "this one brings 0");
    expect_end(commit_driven(round, &good, 1), round, CAIRN_OK);
    fake_peer_close(&worker);
    worker = before;
}
END_TEST

START_TEST(a_late_commit_of_a_void_round_leaves_the_writers_commit_waiting)
{
    hold(true);
    const uint64_t step = fake_begin(&fake, &worker, job), write = begin_write(step);
    const uint32_t of_write = ask_commit(write), of_step = ask_commit(step);
    expect_end(of_step, step, CAIRN_ERR_EPOCH_CHANGED);
    hold(false);
    expect_end(of_write, write, CAIRN_OK);
}
END_TEST

START_TEST(all_who_ask_for_the_end_of_one_round_hear_it)
{
    hold(true);
    const uint64_t round = fake_begin(&fake, &worker, job);
    const uint32_t first = ask_commit(round), second = ask_commit(round);
    hold(false);
    expect_end(first, round, CAIRN_OK);
    expect_end(second, round, CAIRN_OK);
}
END_TEST

START_TEST(one_call_too_many_is_told_so_and_the_others_are_answered)
{
    uint32_t requests[CAIRN_MEMBER_COMMITS_MAX + 1];
    hold(true);
    const uint64_t round = fake_begin(&fake, &worker, job);
    for (int i = 0; i <= CAIRN_MEMBER_COMMITS_MAX; i++) requests[i] = ask_commit(round);
    fake_expect_error(&fake, &worker, requests[0], CAIRN_ERR_BUSY, "more than 8 calls");
    hold(false);
    for (int i = 1; i <= CAIRN_MEMBER_COMMITS_MAX; i++) expect_end(requests[i], round, CAIRN_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_commits");
    TCase *tcase = tcase_create("coordinator_commits");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(
        tcase, a_bad_learning_rate_is_refused_with_its_group_and_the_round_waits_for_a_good_one);
    tcase_add_test(tcase, a_late_commit_of_a_void_round_leaves_the_writers_commit_waiting);
    tcase_add_test(tcase, all_who_ask_for_the_end_of_one_round_hear_it);
    tcase_add_test(tcase, one_call_too_many_is_told_so_and_the_others_are_answered);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
