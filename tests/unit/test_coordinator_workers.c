/* How many workers a job has: who joins with which number in mind, who is one too many, and what an admin
 * amends while somebody waits. In this process, against scripted shards. */
#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/core/round.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static uint32_t open_as(struct fake_peer *peer, uint64_t session, uint32_t rank, uint32_t min,
                        uint32_t max)
{
    struct job_spec_data spec = fake_spec(min);
    spec.workers_max = max;
    const uint32_t request = fake_job_open(peer, &spec, session, rank);
    spec_release(&spec);
    return request;
}

/* A worker, of two that the job is to have. */
static void set_up(void)
{
    open_fake();
    fake_shards_up(&fake, 2);
    w = worker("w0");
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
    Cairn__Attached *attached = fake_hear(&w, Attached, open_as(&w, 10, 0, 2, 2));
    job = attached->job;
    fake_init(&w, job);
}

static uint32_t amend(const char *name, uint32_t min, uint32_t max)
{
    static uint64_t key = 100;
    const Cairn__JobAmend message = { .name = wire_text(name), .key = ++key };
    return min > 0 ? fake_ask_amend(&admin, message, "workers_min=%" PRIu32 " workers_max=%" PRIu32,
                                    min, max)
                   : fake_ask_amend(&admin, message, "%s", "");
}

TEST(an_admin_lets_who_waits_for_a_lost_worker_go_on)
{
    const uint32_t request = fake_ask_begin(&w, job);
    fake_expect_silence(&w, job);
    fake_expect_amended(&admin, amend("toy", 1, 4), 1);
    fake_hear(&w, RoundOpened, request);
}

TEST(what_an_amendment_of_an_admin_cannot_do_is_said)
{
    fake_expect_error(&admin, amend("tox", 1, 4), CAIRN_ERR_NOT_FOUND, "cairn job list");
    fake_expect_error(&admin, amend("toy", 0, 0), CAIRN_ERR_INVALID, "changes nothing");
    fake_expect_error(&admin, amend("toy", 3, 2), CAIRN_ERR_INVALID, "workers_max is 2");
    fake_expect_error(&admin, amend("toy", 1, 70000), CAIRN_ERR_INVALID, "workers_max");
    fake_expect_amended(&admin, amend("toy", 1, 4), 1);
    struct fake_peer second = worker("w1");
    fake_hear(&second, Attached, open_as(&second, 11, 1, 1, 4));
    fake_expect_error(&admin, amend("toy", 1, 1), CAIRN_ERR_BUSY, "has 2 workers");
    fake_peer_close(&second);
}

TEST(one_more_than_there_may_be_is_told_so)
{
    struct fake_peer more = worker("w1");
    fake_hear(&more, Attached, open_as(&more, 11, 1, 2, 2));
    struct fake_peer third = worker("w2");
    fake_expect_error(&third, open_as(&third, 12, 2, 2, 2), CAIRN_ERR_BUSY,
                      "`cairn job amend toy --workers MIN:MAX`");
    fake_hear(&third, Attached, open_as(&third, 12, 1, 2, 2)); // in the place of another
    fake_peer_close(&more);
    fake_peer_close(&third);
}

TEST(another_number_of_workers_joins_where_the_bounds_allow_it)
{
    struct fake_peer other = worker("w1");
    fake_expect_error(&other, open_as(&other, 11, 1, 3, 3), CAIRN_ERR_MISMATCH,
                      "workers_min 3 here, 2 on the servers");
    fake_expect_amended(&admin, amend("toy", 1, 4), 1);
    fake_expect_error(&other, open_as(&other, 11, 1, 5, 5), CAIRN_ERR_MISMATCH,
                      "workers_max 5 here, 4 on the servers");
    fake_expect_error(&other, open_as(&other, 11, 1, 1, 8), CAIRN_ERR_MISMATCH,
                      "workers_max 8 here, 4 on the servers");
    const uint32_t bounds[][2] = { { 3, 3 }, { 1, 4 }, { 2, 2 } }; // within, as it is, as it was
    for (uint64_t i = 0; i < 3; i++)
        fake_hear(&other, Attached, open_as(&other, 11, 1, bounds[i][0], bounds[i][1]));
    fake_expect_amended(&w, fake_amend_freeze(&w, job, 7), 2);
    fake_hear(&other, Attached, open_as(&other, 11, 1, 3, 3));
    fake_peer_close(&other);
}

static struct fake_peer relapsing;

/* Rank 1, which fails as soon as it is in. */
static void relapse(uint64_t session)
{
    relapsing = worker("w1");
    fake_hear(&relapsing, Attached, open_as(&relapsing, session, 1, 1, 4));
    fake_peer_close(&relapsing);
    fake_until(&fake, toy()->members.count == 1);
}

TEST(a_worker_that_fails_after_each_attach_is_put_off_while_others_train)
{
    tick_fast();
    fake_expect_amended(&admin, amend("toy", 1, 4), 1);
    for (uint64_t i = 0; i < 3; i++) relapse(20 + i); // nobody trains: it harms nobody
    train();
    relapsing = worker("w1");
    const uint32_t request = open_as(&relapsing, 30, 1, 1, 4);
    Cairn__Awaited *awaited = fake_awaited(&relapsing, 0);
    ck_assert_msg(strstr(awaited->text, "rank 1 of job toy was lost 3 times in a row") != NULL,
                  "%s", awaited->text);
    for (int i = 0; i < 3; i++) train();
    // Another rank is in at once; and so is that one, when its time has come.
    struct fake_peer other = worker("w2");
    fake_hear(&other, Attached, open_as(&other, 40, 2, 1, 4));
    fake_hear(&relapsing, Attached, request);
    fake_peer_close(&other);
    fake_peer_close(&relapsing);
}

/* One of that host, which fails as soon as it is in. */
static void relapse_at(const char *host, uint32_t rank, uint64_t session)
{
    relapsing = fake_connect_at(&fake, CAIRN_ROLE_WIRE_WORKER, "w", host);
    fake_hear(&relapsing, Attached, open_as(&relapsing, session, rank, 1, 8));
    fake_peer_close(&relapsing);
    fake_until(&fake, toy()->members.count == 1);
}

/* It is in at once. */
static struct fake_peer join_at(const char *host, uint32_t rank, uint64_t session)
{
    struct fake_peer peer = fake_connect_at(&fake, CAIRN_ROLE_WIRE_WORKER, "w", host);
    fake_hear(&peer, Attached, open_as(&peer, session, rank, 1, 8));
    return peer;
}

static struct fake_peer expect_put_off(const char *host, uint32_t rank, uint64_t session,
                                       const char *text)
{
    struct fake_peer peer = fake_connect_at(&fake, CAIRN_ROLE_WIRE_WORKER, "w", host);
    (void)open_as(&peer, session, rank, 1, 8);
    Cairn__Awaited *awaited = fake_awaited(&peer, 0);
    ck_assert_msg(strstr(awaited->text, text) != NULL, "%s", awaited->text);
    return peer;
}

/* Its launcher numbers anew whoever comes; another host has done nothing. */
TEST(one_that_comes_back_as_another_rank_is_put_off_and_who_gets_its_rank_is_not)
{
    tick_fast();
    fake_expect_amended(&admin, amend("toy", 1, 8), 1);
    for (uint32_t i = 0; i < 3; i++) relapse_at("bad", 1 + i, 20 + i);
    train();
    struct fake_peer late = expect_put_off("bad", 4, 30,
                                           "workers of host bad of job toy were lost 3 times");
    struct fake_peer other = join_at("good", 1, 40);
    fake_peer_close(&other);
    fake_peer_close(&late);
}

/* It is what the rank reads, perhaps, and no host. */
TEST(a_rank_that_fails_on_several_hosts_is_put_off_on_any)
{
    static const char *const hosts[] = { "a", "b", "c" };
    tick_fast();
    fake_expect_amended(&admin, amend("toy", 1, 8), 1);
    for (uint32_t i = 0; i < 3; i++) relapse_at(hosts[i], 1, 20 + i);
    train();
    struct fake_peer late = expect_put_off("d", 1, 30, "rank 1 of job toy was lost 3 times");
    struct fake_peer other = join_at("d", 2, 40);
    fake_peer_close(&other);
    fake_peer_close(&late);
}

/* A node of three workers that ends is one loss. */
TEST(workers_of_a_host_that_are_lost_together_count_once)
{
    struct fake_peer all[3];
    tick_fast();
    fake_expect_amended(&admin, amend("toy", 1, 8), 1);
    for (uint32_t i = 0; i < 3; i++) all[i] = join_at("node", 1 + i, 20 + i);
    for (uint32_t i = 0; i < 3; i++) fake_peer_close(&all[i]);
    fake_until(&fake, toy()->members.count == 1);
    train();
    struct fake_peer again = join_at("node", 1, 30);
    fake_peer_close(&again);
}

/* What the coordinator logs while `count` rounds are made; the caller's to free. */
static char *log_of_rounds(uint32_t count)
{
    FILE *file = tmpfile();
    const int saved = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    log_init("test", CAIRN_LOG_INFO);
    for (uint32_t i = 0; i < count; i++) train();
    log_init("test", CAIRN_LOG_ERROR);
    dup2(saved, STDERR_FILENO);
    close(saved);
    const long size = ftell(file);
    char *text = calloc((size_t)size + 1, 1);
    rewind(file);
    ck_assert_uint_eq(fread(text, 1, (size_t)size, file), (size_t)size);
    fclose(file);
    return text;
}

TEST(a_new_block_of_round_numbers_is_not_laid_on_who_joined_last)
{
    fake_expect_amended(&admin, amend("toy", 1, 2), 1);
    free(log_of_rounds(1)); // the epoch of who joined
    char *text = log_of_rounds(CAIRN_ROUND_BLOCK);
    ck_assert_ptr_nonnull(strstr(text, ", because its round numbers are used up"));
    ck_assert_ptr_null(strstr(text, ", because worker"));
    free(text);
}

SUITE(60, set_up, close_fake);
