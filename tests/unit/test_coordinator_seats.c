/* Two processes under one shard's name, and parts that are missed: who has the seat, who ends, what
 * becomes of the jobs. Shards 2 and 3 of the fake cluster are second processes, under the name s1. */
#include <inttypes.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/base.h"
#include "server/coordinator/members.h"
#include "server/core/standing.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

/* A job of one worker over s0 and s1 that has made a step. */
static void set_up(void)
{
    open_fake();
    fake_coordinator_stop(&fake);
    fake.options.heartbeat_ms = 20;
    fake_coordinator_start(&fake);
    for (int i = 2; i < 4; i++) snprintf(fake.shards[i].name, sizeof fake.shards[i].name, "s1");
    start_trained();
}
static void expect_step(uint64_t step)
{
    ck_assert_uint_eq(train(), step);
}

/* Says Hello as shard `i` until it is told to end. */
static void expect_end(uint32_t i, const char *word)
{
    struct fake_shard *shard = &fake.shards[i];
    while (shard->error != CAIRN_ERR_FENCED) {
        const uint32_t errors = shard->seen[CAIRN_MSG_ERROR];
        fake_shard_hello(&fake, i);
        fake_until(&fake, shard->seen[CAIRN_MSG_ERROR] > errors);
        ck_assert(shard->error == CAIRN_ERR_FENCED || shard->error == CAIRN_ERR_BUSY);
    }
    ck_assert_msg(strstr(shard->error_text, word) != NULL, "%s", shard->error_text);
    ck_assert_uint_eq(shard->seen[CAIRN_MSG_WELCOME], 0);
}

static void expect_waiting(const char *word)
{
    struct sentence text;
    coord_job_waiting(toy(), &text);
    ck_assert_msg(strstr(text.text, word) != NULL, "\"%s\" has no \"%s\"", text.text, word);
}

/* The connection of a process that is stopped: it stays, and nobody answers. */
static void stop_s1(void)
{
    fake.shards[1].dead = true;
}

/* ---- who has the seat ---- */

TEST(a_newcomer_ends_while_the_shard_of_its_name_lives)
{
    const uint32_t fences = fake.shards[1].seen[CAIRN_MSG_FENCE];
    expect_end(2, "lives");
    ck_assert_uint_eq(fake.shards[1].seen[CAIRN_MSG_PROBE], 1);
    ck_assert_uint_eq(fake.shards[1].seen[CAIRN_MSG_ERROR], 0);
    ck_assert_uint_eq(fake.shards[1].seen[CAIRN_MSG_FENCE], fences); // no epoch since
    expect_step(2);
}

TEST(a_silent_shard_loses_its_seat_after_a_lease_and_not_before)
{
    fake_peer_close(&w);
    fake.options.lease_timeout_ms = 400;
    const struct coord_shard_entry *s1 = coord_shard_find(fake.cluster, "s1");
    stop_s1();
    const uint64_t heard_ms = s1->session->last_frame_ms; // it only speaks when it is asked
    while (fake.shards[2].seen[CAIRN_MSG_WELCOME] == 0) {
        const uint32_t heard = fake.shards[2].seen[CAIRN_MSG_ERROR];
        fake_shard_hello(&fake, 2);
        fake_until(&fake, fake.shards[2].seen[CAIRN_MSG_ERROR] > heard ||
                              fake.shards[2].seen[CAIRN_MSG_WELCOME] > 0);
        ck_assert(fake.shards[2].error == CAIRN_ERR_BUSY);
    }
    const uint64_t took_ms = uv_now(&fake.loop) - heard_ms;
    ck_assert_msg(took_ms >= 300 && took_ms < 10000, "it took %" PRIu64 " ms", took_ms);
    expect_waiting("the part of shard s1: the one at");
    ck_assert_int_eq(toy()->state, CAIRN_CLUSTER_JOB_RUNNING);
    ck_assert_uint_eq(fake.shards[1].seen[CAIRN_MSG_ERROR],
                      0); // it holds the part: it is not told to end
    // It wakes up, and finds its connection closed.
    fake_shard_up(&fake, 1);
    fake_expect_end(&fake.shards[2].peer);
    fake_until(&fake, round_stage_of(toy()->core) == CAIRN_ROUND_STEADY);
    w = worker("w0");
    ck_assert_uint_eq(fake_attach(&w, 11, 0, 1), job);
    expect_step(2);
}

/* Between two ticks, and then this process is stopped: the next tick comes late. */
TEST(a_shard_that_was_asked_just_before_the_coordinator_stood_still_keeps_its_seat)
{
    const struct coord_shard_entry *s1 = coord_shard_find(fake.cluster, "s1");
    stop_s1();
    fake_pump(&fake);
    uv_timer_stop(&fake.cluster->clock.tick);
    usleep(3000); // so that the question is later than the tick, by the clock
    fake_shard_hello(&fake, 2);
    fake_until(&fake, s1->claim.probe == CAIRN_SEAT_ASKED);
    usleep(100000);
    uv_timer_again(&fake.cluster->clock.tick);
    fake_until(&fake, fake.cluster->clock.stopped_ms > 0);
    ck_assert(s1->session != NULL && s1->claim.probe == CAIRN_SEAT_ASKED);
}

/* ---- a part that is missed ---- */

TEST(lost_ends_when_the_part_comes_back_and_the_empty_newcomer_ends)
{
    fake_shard_away(&fake, 1);
    fake_shard_up(&fake, 2);
    expect_waiting("came without it");
    fake_expect_error(&w, 0, CAIRN_ERR_JOB_LOST, "the job goes on when it is");
    fake_expect_end(&w);
    fake_peer_close(&w);
    ck_assert_int_eq(toy()->state, CAIRN_CLUSTER_JOB_LOST);
    fake_shard_away(&fake, 0); // a LOST job hears of its other shards
    fake_shard_up(&fake, 0);
    fake_shard_up(&fake, 1);
    fake_until(&fake, fake.shards[2].error == CAIRN_ERR_FENCED);
    ck_assert_ptr_nonnull(strstr(fake.shards[2].error_text, "this process none"));
    ck_assert_int_eq(toy()->state, CAIRN_CLUSTER_JOB_RUNNING);
    w = worker("w0");
    ck_assert_uint_eq(fake_attach(&w, 11, 0, 1), job);
    expect_step(2);
}

TEST(a_worker_that_joins_while_a_part_is_missed_joins_when_it_is_back)
{
    fake_shard_away(&fake, 1);
    fake.options.heartbeat_ms = 60000; // its patience
    fake_shard_up(&fake, 2);
    struct fake_peer other = worker("w1");
    const uint32_t request = fake_ask_open(&other, 20, 1, 1);
    fake_expect_silence(&other, 0);
    fake_shard_up(&fake, 1);
    fake_hear(&other, Attached, request);
    fake_peer_close(&other);
    fake_expect_silence(&w, job);
}

/* A job of other tensors, on s0 and the newcomer. */
static void make_other_job(struct fake_peer *peer)
{
    struct job_spec_data spec = fake_spec(1);
    spec.stage = 0;
    ck_assert_int_eq(spec_set_name(&spec, "other"), CAIRN_OK);
    fake_shard_away(&fake, 0); // so that it goes to the newcomer
    *peer = worker("w1");
    fake.options.shards = 1;
    fake_hear(peer, Attached, fake_job_open(peer, &spec, 20, 0));
    fake.options.shards = 2;
    spec_release(&spec);
    fake_shard_up(&fake, 0);
}

TEST(of_two_that_hold_parts_an_operator_chooses_and_status_says_how)
{
    struct fake_peer other;
    fake_shard_away(&fake, 1);
    fake_shard_up(&fake, 2);
    make_other_job(&other);
    while (strstr(fake.shards[1].error_text, "whose jobs you can do without") == NULL) {
        const uint32_t errors = fake.shards[1].seen[CAIRN_MSG_ERROR];
        fake_shard_hello(&fake, 1);
        fake_until(&fake, fake.shards[1].seen[CAIRN_MSG_ERROR] > errors);
        ck_assert_int_eq(fake.shards[1].error, CAIRN_ERR_BUSY); // it is never told to end
    }
    ck_assert_uint_eq(fake.shards[2].seen[CAIRN_MSG_PROBE], 1);
    fake_until(&fake, toy()->state == CAIRN_CLUSTER_JOB_LOST);
    toy()->state = CAIRN_CLUSTER_JOB_RUNNING; // what it says before
    expect_waiting("has it and waits for the name: end the one at pid=");
    toy()->state = CAIRN_CLUSTER_JOB_LOST;
    fake_peer_close(&other);
    fake_shard_away(&fake, 2); // the operator ended it
    fake_shard_up(&fake, 1);
    ck_assert_int_eq(toy()->state, CAIRN_CLUSTER_JOB_RUNNING);
}

/* ---- the judgement ---- */

TEST(every_claim_has_its_verdict)
{
    static const struct {
        struct seat_claim claim; // taken, same, newcomer_holds, sitter_holds, probe
        enum seat_verdict verdict;
    } rows[] = {
        { { false, false, false, false, CAIRN_SEAT_UNASKED }, CAIRN_SEAT_TAKES },
        { { true, true, false, true, CAIRN_SEAT_UNASKED }, CAIRN_SEAT_TAKES },
        { { true, true, true, true, CAIRN_SEAT_ASKED }, CAIRN_SEAT_TAKES },
        { { true, false, false, true, CAIRN_SEAT_UNASKED }, CAIRN_SEAT_PROBES },
        { { true, false, false, false, CAIRN_SEAT_UNASKED }, CAIRN_SEAT_PROBES },
        { { true, false, false, true, CAIRN_SEAT_ASKED }, CAIRN_SEAT_WAITS },
        { { true, false, false, true, CAIRN_SEAT_ANSWERED }, CAIRN_SEAT_ENDS },
        { { true, false, false, false, CAIRN_SEAT_ANSWERED }, CAIRN_SEAT_ENDS },
        { { true, false, false, true, CAIRN_SEAT_SILENT }, CAIRN_SEAT_TAKES },
        { { true, false, true, false, CAIRN_SEAT_UNASKED }, CAIRN_SEAT_RELIEVES },
        { { true, false, true, true, CAIRN_SEAT_UNASKED }, CAIRN_SEAT_PROBES },
        { { true, false, true, true, CAIRN_SEAT_ANSWERED }, CAIRN_SEAT_STANDS },
        { { true, false, true, true, CAIRN_SEAT_SILENT }, CAIRN_SEAT_TAKES },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        ck_assert_msg(seat_judge(&rows[i].claim) == rows[i].verdict, "row %zu", i);
}

TEST(a_part_is_there_if_job_generation_and_layout_are)
{
    const struct seat_part held[] = { { 1, 5, 70 }, { 1, 6, 71 }, { 2, 5, 72 } };
    struct seat_part part = { 1, 6, 71 };
    ck_assert(seat_has(&part, held, 3));
    ck_assert(!seat_has(&part, held, 1));
    ck_assert(!seat_has(&part, held, 0));
    part.layout_hash = 70;
    ck_assert(!seat_has(&part, held, 3));
    part = (struct seat_part) { 3, 6, 71 };
    ck_assert(!seat_has(&part, held, 3));
    const struct seat_part prepared[] = { { 1, 6, 70 }, { 1, 6, 71 } };
    part.job = 1;
    ck_assert(seat_has(&part, prepared, 2));
}

SUITE(60, set_up, close_fake);
