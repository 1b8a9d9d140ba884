/* The last steps of workers and shards: medians, and who is marked. */
#include <check.h>
#include <string.h>

#include "server/coordinator/base.h"
#include "server/coordinator/job.h"
#include "tests/support/suite.h"

enum { WORKERS = 3, SHARDS = 2 };

static struct step_ring ring;

static void tell(struct step_ring *to, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    uint32_t us[] = { a, b, c, d };
    Cairn__StepTimes told = CAIRN__STEP_TIMES__INIT;
    told.us = us;
    told.n_us = 4;
    step_ring_take(to, &told);
}

static void set_up(void)
{
    memset(&ring, 0, sizeof ring);
}

TEST(medians_are_of_each_phase_and_of_the_whole_step)
{
    Cairn__StepTimes out;
    uint32_t us[CAIRN_TIMES_PHASES];
    ck_assert(!step_ring_medians(&ring, &out, us));
    ck_assert_uint_eq(out.steps, 0);
    tell(&ring, 10, 0, 100, 3);
    tell(&ring, 20, 0, 50, 3);
    tell(&ring, 90, 1, 1, 3);
    ck_assert(step_ring_medians(&ring, &out, us));
    ck_assert_uint_eq(out.steps, 3);
    ck_assert_uint_eq(us[0], 20);
    ck_assert_uint_eq(us[1], 0);
    ck_assert_uint_eq(us[2], 50);
    ck_assert_uint_eq(us[3], 3);
    ck_assert_uint_eq(out.step_us, 95); // of 113, 73 and 95
}

TEST(the_last_32_steps_count)
{
    Cairn__StepTimes out;
    uint32_t us[CAIRN_TIMES_PHASES];
    for (uint32_t i = 0; i < 100; i++) tell(&ring, 1000, 0, 0, 0);
    for (uint32_t i = 0; i < CAIRN_TIMES_STEPS; i++) tell(&ring, 7, 0, 0, 0);
    ck_assert(step_ring_medians(&ring, &out, us));
    ck_assert_uint_eq(out.steps, CAIRN_TIMES_STEPS);
    ck_assert_uint_eq(us[0], 7);
}

TEST(what_is_not_told_or_too_much_does_no_harm)
{
    uint32_t many[1000] = { UINT32_MAX, UINT32_MAX }, us[CAIRN_TIMES_PHASES];
    Cairn__StepTimes told = CAIRN__STEP_TIMES__INIT, out;
    step_ring_take(&ring, NULL);
    step_ring_take(&ring, &told);
    ck_assert_uint_eq(ring.count, 0);
    told.us = many;
    told.n_us = 1;
    step_ring_take(&ring, &told);
    told.n_us = 1000;
    step_ring_take(&ring, &told);
    ck_assert(step_ring_medians(&ring, &out, us));
    ck_assert_uint_eq(out.steps, 2);
    ck_assert_uint_eq(out.step_us, UINT32_MAX);
}

TEST(memory_is_what_was_told_last_or_nothing)
{
    uint32_t us[] = { 1 };
    Cairn__StepTimes told = CAIRN__STEP_TIMES__INIT;
    Cairn__WorkerMemory memory = CAIRN__WORKER_MEMORY__INIT;
    told.us = us;
    told.n_us = 1;
    told.memory = &memory;
    memory.shared = 5;
    step_ring_take(&ring, &told);
    memory.sums = 6;
    step_ring_take(&ring, &told);
    ck_assert(ring.has_memory);
    ck_assert_uint_eq(ring.memory.shared + ring.memory.sums, 11);
    told.memory = NULL; // an older version
    step_ring_take(&ring, &told);
    ck_assert(!ring.has_memory);
}

/* ---- who is marked ---- */

static struct coord_session session = { .name = (char[]) { "t" } };
static struct coord_member members[WORKERS];
static struct coord_shard_entry seats[SHARDS] = { { .name = (char[]) { "s0" } },
                                                  { .name = (char[]) { "s1" } } };
static struct coord_job_shard shards[SHARDS] = { { .entry = &seats[0] }, { .entry = &seats[1] } };
static struct layout layout = { .shard_count = SHARDS };
static struct coord_job job = {
    .layout = &layout, .shards = shards, .shard_count = SHARDS, .entry_count = SHARDS
};

/* Ranks descend along the list. */
static void attach(uint32_t worker_count)
{
    job.members.list = NULL;
    job.members.count = worker_count;
    for (uint32_t i = 0; i < worker_count; i++) {
        members[i] = (struct coord_member) { .session = &session,
                                             .phase = CAIRN_MEMBER_ATTACHED,
                                             .role = CAIRN_ROLE_WIRE_WORKER,
                                             .rank = i,
                                             .next_of_job = job.members.list };
        job.members.list = &members[i];
    }
}

/* Who is marked of the workers (or shards); -1: nobody. */
static int slowest(bool of_shard)
{
    Cairn__JobStatus status = CAIRN__JOB_STATUS__INIT;
    struct coord_answer answer = { 0 };
    int marked = -1;
    coord_times_show(&job, &answer, &status);
    ck_assert_uint_eq(status.n_times, job.members.count + SHARDS);
    for (size_t i = 0; i < status.n_times; i++) {
        const Cairn__StepTimes *t = status.times[i];
        ck_assert_uint_eq(t->number, i < job.members.count ? i : i - job.members.count);
        ck_assert_int_eq(t->of_shard, i >= job.members.count);
        if (t->n_us > 0) ck_assert_uint_le(t->us[0], t->step_us); // its own
        if (t->of_shard != of_shard || !t->slowest) continue;
        ck_assert_int_eq(marked, -1);
        marked = (int)t->number;
    }
    coord_answer_release(&answer);
    return marked;
}

TEST(who_computes_or_fetches_longer_is_marked_and_who_waits_is_not)
{
    attach(3);
    tell(&members[0].times, 10000, 500, 20000, 100);
    tell(&members[1].times, 30000, 500, 100, 100);
    tell(&members[2].times, 10000, 20000, 500, 100);
    ck_assert_int_eq(slowest(false), 1);
    tell(&members[2].times, 0, 0, 0, 0);
    memset(&members[2].times, 0, sizeof members[2].times);
    tell(&members[2].times, 10000, 500, 100, 90000);
    ck_assert_int_eq(slowest(false), 2);
}

TEST(alone_or_alike_nobody_is_marked)
{
    attach(1);
    tell(&members[0].times, 90000, 0, 0, 0);
    ck_assert_int_eq(slowest(false), -1);
    attach(3);
    ck_assert_int_eq(slowest(false), -1); // nothing is known yet
    tell(&members[0].times, 20000, 0, 0, 0);
    ck_assert_int_eq(slowest(false), -1);
    tell(&members[1].times, 21000, 0, 0, 0);
    tell(&members[2].times, 19000, 0, 0, 0);
    ck_assert_int_eq(slowest(false), -1);
    attach(2); // much, but of nothing
    tell(&members[0].times, 100, 0, 0, 0);
    tell(&members[1].times, 900, 0, 0, 0);
    ck_assert_int_eq(slowest(false), -1);
}

TEST(of_shards_it_is_what_they_do_that_counts)
{
    attach(0);
    memset(&shards[0].times, 0, sizeof ring);
    memset(&shards[1].times, 0, sizeof ring);
    tell(&shards[0].times, 90000, 1000, 2000, 100);
    tell(&shards[1].times, 20000, 1000, 9000, 100);
    ck_assert_int_eq(slowest(true), 1);
}

SUITE(30, set_up, NULL);
