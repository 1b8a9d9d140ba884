/* How many workers a job has: who joins with which number in mind, who is one too many, and what an admin
 * amends while somebody waits. In this process, against scripted shards. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake_cluster.h"
#include "tests/support/suite.h"

static struct fake_cluster fake;
static struct fake_peer w, admin;
static uint64_t job;

static uint32_t open_as(struct fake_peer *peer, uint64_t session, uint32_t rank, uint32_t min,
                        uint32_t max)
{
    struct cairn_job_spec_data spec = fake_spec(min);
    spec.workers_max = max;
    const uint32_t request = fake_job_open(peer, &spec, session, rank);
    cairn_spec_release(&spec);
    return request;
}

/* A worker, of two that the job is to have. */
static void set_up(void)
{
    fake_open(&fake, 2);
    fake_shards_up(&fake, 2);
    w = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "w0");
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
    Cairn__Attached *attached = (Cairn__Attached *)fake_expect(&fake, &w, CAIRN_MSG_ATTACHED,
                                                               open_as(&w, 10, 0, 2, 2));
    job = attached->job;
    cairn_message_free(&attached->base);
    fake_init(&fake, &w, job);
}

static void tear_down(void)
{
    fake_peer_close(&w);
    fake_peer_close(&admin);
    fake_close(&fake);
}

static uint32_t amend(const char *name, uint32_t min, uint32_t max)
{
    static uint64_t key = 100;
    Cairn__JobAmend message = CAIRN__JOB_AMEND__INIT;
    message.name = (char *)(uintptr_t)name;
    message.key = ++key;
    message.workers_min = min;
    message.workers_max = max;
    return fake_request(&admin, CAIRN_MSG_JOB_AMEND, &message.base);
}

START_TEST(an_admin_lets_who_waits_for_a_lost_worker_go_on)
{
    Cairn__RoundBegin begin = CAIRN__ROUND_BEGIN__INIT;
    begin.job = job;
    const uint32_t request = fake_request(&w, CAIRN_MSG_ROUND_BEGIN, &begin.base);
    fake_expect_silence(&fake, &w, job);
    fake_expect_amended(&fake, &admin, amend("toy", 1, 4), 1);
    cairn_message_free(fake_expect(&fake, &w, CAIRN_MSG_ROUND_OPENED, request));
}
END_TEST

START_TEST(what_an_amendment_of_an_admin_cannot_do_is_said)
{
    fake_expect_error(&fake, &admin, amend("tox", 1, 4), CAIRN_ERR_NOT_FOUND, "cairn job list");
    fake_expect_error(&fake, &admin, amend("toy", 0, 0), CAIRN_ERR_INVALID, "changes nothing");
    fake_expect_error(&fake, &admin, amend("toy", 3, 2), CAIRN_ERR_INVALID, "workers_max is 2");
    fake_expect_error(&fake, &admin, amend("toy", 1, 70000), CAIRN_ERR_INVALID, "workers_max");
    fake_expect_amended(&fake, &admin, amend("toy", 1, 4), 1);
    struct fake_peer second = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "w1");
    cairn_message_free(
        fake_expect(&fake, &second, CAIRN_MSG_ATTACHED, open_as(&second, 11, 1, 1, 4)));
    fake_expect_error(&fake, &admin, amend("toy", 1, 1), CAIRN_ERR_BUSY, "has 2 workers");
    fake_peer_close(&second);
}
END_TEST

START_TEST(one_more_than_there_may_be_is_told_so)
{
    struct fake_peer more = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "w1");
    cairn_message_free(fake_expect(&fake, &more, CAIRN_MSG_ATTACHED, open_as(&more, 11, 1, 2, 2)));
    struct fake_peer third = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "w2");
    fake_expect_error(&fake, &third, open_as(&third, 12, 2, 2, 2), CAIRN_ERR_BUSY,
                      "`cairn job amend toy --workers MIN:MAX`");
    cairn_message_free( // in the place of another
        fake_expect(&fake, &third, CAIRN_MSG_ATTACHED, open_as(&third, 12, 1, 2, 2)));
    fake_peer_close(&more);
    fake_peer_close(&third);
}
END_TEST

START_TEST(another_number_of_workers_joins_where_the_bounds_allow_it)
{
    struct fake_peer other = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "w1");
    fake_expect_error(&fake, &other, open_as(&other, 11, 1, 3, 3), CAIRN_ERR_MISMATCH,
                      "workers_min 3 here, 2 on the servers");
    fake_expect_amended(&fake, &admin, amend("toy", 1, 4), 1);
    fake_expect_error(&fake, &other, open_as(&other, 11, 1, 5, 5), CAIRN_ERR_MISMATCH,
                      "workers_max 5 here, 4 on the servers");
    fake_expect_error(&fake, &other, open_as(&other, 11, 1, 1, 8), CAIRN_ERR_MISMATCH,
                      "workers_max 8 here, 4 on the servers");
    const uint32_t bounds[][2] = { { 3, 3 }, { 1, 4 }, { 2, 2 } }; // within, as it is, as it was
    for (uint64_t i = 0; i < 3; i++)
        cairn_message_free(fake_expect(&fake, &other, CAIRN_MSG_ATTACHED,
                                       open_as(&other, 11, 1, bounds[i][0], bounds[i][1])));
    fake_expect_amended(&fake, &w, fake_amend_freeze(&w, job, 7), 2);
    cairn_message_free(
        fake_expect(&fake, &other, CAIRN_MSG_ATTACHED, open_as(&other, 11, 1, 3, 3)));
    fake_peer_close(&other);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_workers");
    TCase *tcase = tcase_create("coordinator_workers");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, an_admin_lets_who_waits_for_a_lost_worker_go_on);
    tcase_add_test(tcase, what_an_amendment_of_an_admin_cannot_do_is_said);
    tcase_add_test(tcase, one_more_than_there_may_be_is_told_so);
    tcase_add_test(tcase, another_number_of_workers_joins_where_the_bounds_allow_it);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
