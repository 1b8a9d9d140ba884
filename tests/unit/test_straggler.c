/* Who holds rounds up: judged of medians, and of an open round that waits. */
#include <check.h>
#include <string.h>

#include "server/coordinator/base.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/job.h"
#include "server/coordinator/members.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

enum { MOST = 4 };

static const struct {
    const char *name;
    size_t count;
    uint32_t us[MOST][CAIRN_TIMES_PHASES]; /* compute, push, wait, fetch */
    bool is_found;
    uint32_t index;
    enum phase phase;
    uint32_t others_us;
    uint32_t micros[MOST]; /* 0: as 1 */
} cases[] = {
// clang-format off
#define SAMPLES(how_many, ...) .count = (how_many), .us = { __VA_ARGS__ }
#define SLOW(who, in, others) \
    .is_found = true, .index = (who), .phase = CAIRN_PHASE_##in, .others_us = (others)
    { "one computes for twice as long and more",
      SAMPLES(3, { 10000, 9000, 100, 50 }, { 25000, 100, 100, 50 }, { 11000, 8000, 100, 50 }),
      SLOW(1, COMPUTE, 11000) },
    { "it is less than twice as long",
      SAMPLES(3, { 10000, 9000, 100, 50 }, { 19000, 100, 100, 50 }, { 10000, 8000, 100, 50 }) },
    { "of two, one",
      SAMPLES(2, { 10000, 20100, 10, 5 }, { 30000, 100, 10, 5 }),
      SLOW(1, COMPUTE, 10000) },
    { "what takes no time matters to nobody",
      SAMPLES(3, { 100, 50, 50, 10 }, { 900, 50, 50, 10 }, { 100, 50, 50, 10 }) },
    { "it is less than a tenth of a step",
      SAMPLES(3, { 100000, 50, 50, 1000 }, { 100000, 50, 50, 9000 }, { 100000, 50, 50, 1000 }) },
    { "a fetch",
      SAMPLES(3, { 10000, 50, 9000, 1000 }, { 10000, 50, 50, 15000 }, { 10000, 50, 9000, 1000 }),
      SLOW(1, FETCH, 1000) },
    { "the worse of two phases is named",
      SAMPLES(3, { 10000, 50, 50, 1000 }, { 30000, 50, 50, 50000 }, { 10000, 50, 50, 1000 }),
      SLOW(1, FETCH, 1000) },
    { "a push whose end the others wait for",
      SAMPLES(3, { 10000, 1000, 20000, 50 }, { 10000, 21000, 100, 50 }, { 10000, 1000, 20000, 50 }),
      SLOW(1, PUSH, 1000) },
    { "a push that waits for others' contributions",
      SAMPLES(3, { 15000, 1000, 100, 50 }, { 10000, 9000, 100, 50 }, { 15000, 1000, 100, 50 }) },
    { "who was dealt two micro-batches, the others one each",
      SAMPLES(3, { 10000, 300, 11000, 50 }, { 11000, 400, 100, 50 }, { 10500, 300, 11000, 50 }),
      .micros = { 1, 2, 1 } },
    { "who takes longer for each of fewer micro-batches",
      SAMPLES(3, { 10000, 300, 9000, 50 }, { 50000, 400, 100, 50 }, { 10000, 300, 9000, 50 }),
      SLOW(1, COMPUTE, 10000),
      .micros = { 4, 1, 4 } },
    { "for one micro-batch it is less than a tenth of a step, for its eight it is not",
      SAMPLES(3, { 1000, 50, 50, 1000 }, { 2100, 50, 50, 1000 }, { 1000, 50, 50, 1000 }),
      SLOW(1, COMPUTE, 1000),
      .micros = { 8, 8, 8 } },
    { "alone",
      SAMPLES(1, { 90000, 1, 1, 1 }) },
    { "nobody",
      SAMPLES(0, { 0 }) },
    // clang-format on
};

TEST_EACH(who_is_clearly_slow_is_found, 0, sizeof cases / sizeof *cases)
{
    struct straggler_sample samples[MOST];
    struct straggler_found found;
    uint32_t scratch[MOST];
    for (size_t i = 0; i < cases[_i].count; i++) {
        memcpy(samples[i].us, cases[_i].us[i], sizeof samples[i].us);
        samples[i].micros = cases[_i].micros[i] > 0 ? cases[_i].micros[i] : 1;
        samples[i].told = true;
    }
    const bool is_found = straggler_find(samples, cases[_i].count, scratch, &found);
    ck_assert_msg(is_found == cases[_i].is_found, "%s", cases[_i].name);
    if (!is_found) return;
    ck_assert_msg(found.index == cases[_i].index && found.phase == cases[_i].phase, "%s",
                  cases[_i].name);
    ck_assert_uint_eq(found.others_us, cases[_i].others_us);
}

TEST(who_has_not_told_enough_is_no_other)
{
    struct straggler_sample samples[3] = { { { 90000, 0, 0, 0 }, 1, true }, { .told = false } };
    struct straggler_found found;
    uint32_t scratch[3];
    ck_assert(!straggler_find(samples, 3, scratch, &found));
    samples[2] = (struct straggler_sample) { { 1000, 0, 0, 0 }, 1, true };
    ck_assert(straggler_find(samples, 3, scratch, &found));
}

TEST(the_last_steps_count_and_a_few_are_too_few)
{
    struct step_ring ring = { .count = 0 };
    uint32_t us[] = { 1000, 2, 3, 4 };
    Cairn__StepTimes told = CAIRN__STEP_TIMES__INIT;
    told.us = us;
    told.n_us = 4;
    for (int i = 0; i < 3; i++) step_ring_take(&ring, &told);
    ck_assert(!step_ring_recent(&ring, 8, us));
    for (int i = 0; i < 60; i++) step_ring_take(&ring, &told);
    us[0] = 7;
    for (int i = 0; i < 8; i++) step_ring_take(&ring, &told);
    us[0] = 0;
    ck_assert(step_ring_recent(&ring, 8, us));
    ck_assert_uint_eq(us[0], 7);
}

TEST(a_step_counts_for_one_of_the_micro_batches_that_were_dealt_in_it)
{
    struct step_ring ring = { .micros = 4 };
    uint32_t us[] = { 4000, 400, 30, 20 };
    Cairn__StepTimes told = CAIRN__STEP_TIMES__INIT;
    told.us = us;
    told.n_us = 4;
    for (int i = 0; i < 5; i++) step_ring_take(&ring, &told);
    ring.micros = 1; // others came
    us[0] = 1000;
    us[1] = 100;
    for (int i = 0; i < 3; i++) step_ring_take(&ring, &told);
    ck_assert(step_ring_recent(&ring, 8, us));
    ck_assert_uint_eq(us[0], 1000);
    ck_assert_uint_eq(us[1], 100);
    ck_assert_uint_eq(us[2], 30);
    ck_assert_uint_eq(us[3], 20);
    told.us = (uint32_t[]) { 1, 1, 1, 1 };
    ck_assert(step_ring_medians(&ring, &told, us)); // what is shown is of steps
    ck_assert_uint_eq(us[0], 4000);
}

SUITE(30, NULL, NULL);

/* ---- an open round ---- */

static struct fake_peer second;

/* Two workers, whose steps took 10 ms so far. */
static void open_two(void)
{
    uint32_t us[] = { 10000, 0, 0, 0 };
    Cairn__StepTimes told = CAIRN__STEP_TIMES__INIT;
    told.us = us;
    told.n_us = 4;
    open_ticking();
    second = worker("w1");
    fake_attach(&second, 11, 1, 1);
    for (int i = 0; i < 2; i++) fake.shards[i].holds_reduced = true; // the round stays open
    for (struct coord_member *m = toy()->members.list; m != NULL; m = m->next_of_job)
        for (int i = 0; i < 8; i++) step_ring_take(&m->times, &told);
}

static void close_two(void)
{
    fake_peer_close(&second);
    close_fake();
}

/* The round has been open for that much longer. */
static void let_pass(uint64_t ms)
{
    toy()->rounds.straggler.opened_ms -= ms;
    fake_until(&fake, toy()->rounds.straggler.member != 0);
}

static void expect_shown(const char *phase, const char *word)
{
    Cairn__JobStatus *status = show_job("toy");
    ck_assert_ptr_nonnull(status->straggler);
    ck_assert_str_eq(status->straggler->name, "w1");
    ck_assert_str_eq(status->straggler->phase, phase);
    ck_assert_msg(strstr(status->straggler->text, word) != NULL, "%s", status->straggler->text);
    ck_assert_uint_ge(status->straggler->waited_ms, 5000);
}

/* A shard says that it lacks something of that worker's. */
static void say_lacked(uint64_t member, uint32_t flags)
{
    uint32_t micro = 0;
    Cairn__Lacks lacks = CAIRN__LACKS__INIT;
    lacks.round = toy()->rounds.straggler.round;
    lacks.members = &member;
    lacks.micros = &micro;
    lacks.flags = &flags;
    lacks.n_members = lacks.n_micros = lacks.n_flags = 1;
    coord_straggler_lacks(toy(), &lacks);
    toy()->rounds.straggler.member = 0;
}

TEST(who_does_not_begin_or_commit_a_round_holds_it_up)
{
    const uint64_t round = fake_begin(&w, job);
    fake_ask_commit(&w, job, round);
    let_pass(5000);
    expect_shown("fetch", "open round: it has not begun it yet (fetch");
    ck_assert_uint_eq(fake_begin(&second, job), round);
    toy()->rounds.straggler.member = 0;
    let_pass(0);
    expect_shown("compute", "it has pushed nothing yet (compute; the others take 10.0 ms)");
    say_lacked(toy()->rounds.straggler.member, CAIRN_LACK_ARRIVED);
    let_pass(0);
    expect_shown("push", "it has not pushed all of it (push");
    fake_ask_commit(&second, job, round);
    // the shards are asked again: nothing is on its way any more
    toy()->rounds.straggler.asked_ms = 0;
    fake_until(&fake, toy()->rounds.straggler.member == 0);
    ck_assert_ptr_null(show_job("toy")->straggler);
}

static void say_in_flight(uint32_t what)
{
    Cairn__InFlight one = CAIRN__IN_FLIGHT__INIT, *list[] = { &one };
    one.job = job;
    one.what = what;
    fake_say(&second, 0, Heartbeat, .in_flight = list, .n_in_flight = what != 0);
    toy()->rounds.straggler.member = 0;
}

/* The same silence at the shards: only the worker knows that it is not at work. */
TEST(who_waits_for_its_link_is_not_said_to_compute)
{
    const uint64_t round = fake_begin(&w, job);
    fake_ask_commit(&w, job, round);
    ck_assert_uint_eq(fake_begin(&second, job), round);
    toy()->rounds.straggler.opened_ms -= 5000;
    say_in_flight(CAIRN_FLIES_FETCH);
    fake_until(&fake, toy()->rounds.straggler.flies);
    expect_shown("fetch", "it fetches, and not all of it has arrived (fetch; the others take 0.0 ms"
                          "): look at its link to the shards");
    say_in_flight(CAIRN_FLIES_PUSH);
    fake_until(&fake, toy()->rounds.straggler.phase == CAIRN_PHASE_PUSH);
    expect_shown("push", "it has pushed, and nothing of it has arrived (push");
    say_in_flight(0);
    fake_until(&fake, toy()->rounds.straggler.member != 0 && !toy()->rounds.straggler.flies);
    expect_shown("compute", "it has pushed nothing yet (compute");
}

static uint64_t member_named(const char *name)
{
    const struct coord_member *m = toy()->members.list;
    while (m != NULL && strcmp(m->session->name, name) != 0) m = m->next_of_job;
    ck_assert_ptr_nonnull(m);
    return m->id;
}

/* As one that is stopped between its commit and what it pushed. */
TEST(who_has_committed_and_whose_gradients_are_not_there_holds_it_up)
{
    const uint64_t round = fake_begin(&w, job);
    ck_assert_uint_eq(fake_begin(&second, job), round);
    fake_ask_commit(&w, job, round);
    fake_ask_commit(&second, job, round);
    toy()->rounds.straggler.opened_ms -= 5000;
    fake_until(&fake, toy()->rounds.straggler.asked_ms != 0 && toy()->rounds.straggler.answered);
    say_lacked(member_named("w1"), 0);
    let_pass(0);
    expect_shown("push", "it has not pushed all of it (push");
}

static uint64_t still_ms(void)
{
    Cairn__JobStatus *status = show_job("toy");
    return status->still_ms;
}

/* What `cairn job check` goes by. */
TEST(a_job_stands_still_since_somebody_is_there_who_could_step)
{
    ck_assert_uint_lt(still_ms(), 60000);
    for (struct coord_member *m = toy()->members.list; m != NULL; m = m->next_of_job)
        m->attached_ms -= m->rank == 0 ? 90000 : 10000;
    toy()->rounds.has_stepped = true;
    toy()->rounds.stepped_ms = toy()->members.list->attached_ms - 80000;
    ck_assert_uint_ge(still_ms(), 80000);
    toy()->rounds.has_stepped = false;
    ck_assert_uint_ge(still_ms(), 90000);
    toy()->park.opened_ms = toy()->cluster->clock.last_tick_ms;
    ck_assert_uint_lt(still_ms(), 60000);
    static const struct coord_step parked = { .kind = CAIRN_STEP_WAIT,
                                              .stage = CAIRN_STAGE_PARKED };
    static const struct coord_operation_plan plan = { .list = &parked };
    toy()->park = (struct coord_park) { .steps = { .plan = &plan, .at = &parked } };
    ck_assert_uint_eq(still_ms(), 0);
    toy()->park.steps.at = NULL;
}

TEST(while_both_are_at_work_nobody_does)
{
    const uint64_t round = fake_begin(&w, job);
    ck_assert_uint_eq(fake_begin(&second, job), round);
    toy()->rounds.straggler.opened_ms -= 60000;
    const uint64_t ticks = fake.cluster->clock.last_tick_ms;
    fake_until(&fake, fake.cluster->clock.last_tick_ms > ticks + 30);
    ck_assert_uint_eq(toy()->rounds.straggler.member, 0);
}

TEST(who_was_dealt_more_micro_batches_is_judged_by_each_of_them)
{
    struct coord_member *m;
    toy()->spec.global_batch = 3;
    const uint64_t round = fake_begin(&w, job);
    ck_assert_uint_eq(fake_begin(&second, job), round);
    for (m = toy()->members.list; m != NULL; m = m->next_of_job) {
        uint32_t us[] = { m->rank == 0 ? 20000 : 30000, 0, 0, 0 }; // for two, for one
        Cairn__StepTimes told = CAIRN__STEP_TIMES__INIT;
        told.us = us;
        told.n_us = 4;
        ck_assert_uint_eq(m->times.micros, m->rank == 0 ? 2 : 1);
        for (int i = 0; i < 8; i++) step_ring_take(&m->times, &told);
    }
    fake_until(&fake, toy()->rounds.straggler.member != 0);
    Cairn__JobStatus *status = show_job("toy");
    ck_assert_ptr_nonnull(status->straggler);
    ck_assert_str_eq(status->straggler->text,
                     "worker w1 (rank 1), by its compute: 30.0 ms a micro-batch, and the others "
                     "take 10.0 ms (medians of the last 8 steps)");
}

SUITE(60, open_two, close_two);
