/* What shards tell of their bytes, added up. */
#include <check.h>
#include <stdlib.h>

#include "server/coordinator/base.h"
#include "server/coordinator/job.h"
#include "tests/support/suite.h"

enum { SHARDS = 2, JOB = 7 };

static struct coord_shard_entry seats[SHARDS] = { { .name = (char[]) { "s0" } },
                                                  { .name = (char[]) { "s1" } } };
static struct coord_job_shard shards[SHARDS] = { { .entry = &seats[0] }, { .entry = &seats[1] } };
static struct layout layout = { .shard_count = SHARDS };
static struct coord_job job = {
    .id = JOB, .layout = &layout, .shards = shards, .shard_count = SHARDS, .entry_count = SHARDS
};
static struct bytes_view view;

static Cairn__BytesTold told_of(uint64_t number, uint64_t steps, uint64_t carried)
{
    Cairn__BytesTold told = CAIRN__BYTES_TOLD__INIT;
    told.job = number;
    told.steps = steps;
    told.pushed_carried = carried;
    return told;
}

static Cairn__BytesTold told_of_worker(uint32_t rank, uint64_t carried)
{
    Cairn__BytesTold told = told_of(JOB, 1, carried);
    told.of_worker = true;
    told.rank = rank;
    return told;
}

static void take(int shard, Cairn__BytesTold *told, size_t count)
{
    Cairn__Heartbeat beat = CAIRN__HEARTBEAT__INIT;
    beat.bytes = calloc(count + 1, sizeof *beat.bytes);
    for (size_t i = 0; i < count; i++) beat.bytes[i] = &told[i];
    beat.n_bytes = count;
    coord_bytes_take(&seats[shard], &beat);
    free(beat.bytes);
}

static void tear_down(void)
{
    for (int s = 0; s < SHARDS; s++) {
        free(seats[s].told.bytes);
        free(seats[s].told.memory);
    }
}

TEST(each_shard_is_divided_by_its_own_steps)
{
    Cairn__BytesTold first[] = { told_of(JOB, 4, 400), told_of(JOB + 1, 1, 5) };
    Cairn__BytesTold second = told_of(JOB, 5, 1000);
    take(0, first, 2);
    take(1, &second, 1);
    const Cairn__BytesTold *all = coord_bytes_of(&job, &view);
    ck_assert_uint_eq(view.count, 1);
    ck_assert_uint_eq(all->pushed_carried, 1400); // and nothing of the other job
    ck_assert_uint_eq(all->steps, 5);
    ck_assert_double_eq(all->pushed_a_step, 100 + 200);
    ck_assert_double_eq(all->fetched_a_step, 0);
}

TEST(workers_are_added_up_and_shown_by_rank_the_lowest_64)
{
    static struct coord_member members[100];
    Cairn__BytesTold down[100], up[100];
    for (uint32_t i = 0; i < 100; i++) {
        members[i] = (struct coord_member) { .role = CAIRN_ROLE_WIRE_WORKER, .rank = i };
        members[i].next_of_job = job.members.list;
        job.members.list = &members[i];
    }
    for (uint32_t i = 0; i < 100; i++) {
        down[i] = told_of_worker(99 - i, 1);
        up[i] = told_of_worker(i, i);
    }
    take(0, down, 100);
    take(1, up, 100);
    coord_bytes_of(&job, &view);
    ck_assert_uint_eq(view.count, 1 + CAIRN_BYTES_WORKERS_SHOWN);
    for (uint32_t i = 0; i < CAIRN_BYTES_WORKERS_SHOWN; i++) {
        ck_assert_uint_eq(view.list[1 + i]->rank, i);
        ck_assert(view.list[1 + i]->of_worker);
        ck_assert_uint_eq(view.list[1 + i]->pushed_carried, 1 + i);
    }
}

TEST(a_shard_that_tells_too_much_is_cut_short)
{
    static Cairn__BytesTold many[CAIRN_BYTES_TOLD_MAX + 10];
    for (uint32_t i = 0; i < CAIRN_BYTES_TOLD_MAX + 10; i++) many[i] = told_of(JOB, 0, 1);
    take(0, many, CAIRN_BYTES_TOLD_MAX + 10);
    const Cairn__BytesTold *all = coord_bytes_of(&job, &view);
    ck_assert_uint_eq(all->pushed_carried, CAIRN_BYTES_TOLD_MAX);
    ck_assert_double_eq(all->pushed_a_step, 0); // no steps yet
    take(0, many, 0);                           // it replaces what was told before
    ck_assert_uint_eq(coord_bytes_of(&job, &view)->pushed_carried, 0);
}

/* A shard that is away told of it, and says nothing any more. */
TEST(who_has_left_is_not_shown_and_what_it_pushed_stays_in_the_sum)
{
    struct coord_member stays = { .role = CAIRN_ROLE_WIRE_WORKER, .rank = 1 };
    Cairn__BytesTold told[] = { told_of(JOB, 4, 400), told_of_worker(0, 300),
                                told_of_worker(1, 100) };
    take(0, told, 3);
    job.members.list = &stays;
    const Cairn__BytesTold *all = coord_bytes_of(&job, &view);
    ck_assert_uint_eq(all->pushed_carried, 400);
    ck_assert_uint_eq(view.count, 2);
    ck_assert_uint_eq(view.list[1]->rank, 1);
}

TEST(what_members_read_by_themselves_is_added_and_stays_when_they_leave)
{
    struct coord_member reader = { .role = CAIRN_ROLE_WIRE_READER };
    struct coord_member member = { .role = CAIRN_ROLE_WIRE_WORKER,
                                   .rank = 3,
                                   .next_of_job = &reader };
    Cairn__BytesTold told[] = { told_of(JOB, 4, 400), told_of_worker(3, 100) };
    told[1].steps = 2;
    take(0, told, 2);
    coord_bytes_read(&member, 60);
    coord_bytes_read(&member, 20); // an old word
    coord_bytes_read(&reader, 8);
    job.members.list = &member;
    job.members.read_bytes = 12; // of those that have left
    const Cairn__BytesTold *all = coord_bytes_of(&job, &view);
    ck_assert_uint_eq(view.count, 2);
    ck_assert_uint_eq(view.list[1]->rank, 3);
    ck_assert_uint_eq(view.list[1]->fetched_shared, 60);
    ck_assert_double_eq(view.list[1]->fetched_a_step, 30);
    ck_assert_uint_eq(all->fetched_shared, 60 + 8 + 12);
    ck_assert_double_eq(all->fetched_a_step, 20);
}

TEST(memory_is_told_by_job_and_added_up_by_shard)
{
    Cairn__MemoryTold told[2], *list[] = { &told[0], &told[1] };
    Cairn__Heartbeat beat = CAIRN__HEARTBEAT__INIT;
    for (uint32_t i = 0; i < 2; i++) {
        cairn__memory_told__init(&told[i]);
        told[i].job = JOB + i;
        told[i].state = 100 + i;
        told[i].landing = 10;
    }
    beat.memory = list;
    beat.n_memory = 2;
    coord_bytes_take(&seats[0], &beat);
    struct coord_answer answer = { 0 };
    Cairn__JobStatus all = CAIRN__JOB_STATUS__INIT;
    coord_memory_show(&job, &answer, &all);
    ck_assert_uint_eq(all.n_memory, SHARDS);
    ck_assert_uint_eq(all.memory[0]->state, 100); // and nothing of the other job
    ck_assert_uint_eq(all.memory[1]->state, 0);   // it has told nothing
    ck_assert_int_eq(all.memory[0]->untold, false);
    ck_assert_int_eq(all.memory[1]->untold, true);
    ck_assert_uint_eq(all.memory[1]->shard_index, 1);
    ck_assert_uint_eq(all.state_bytes, 110);
    beat.n_memory = 0;
    coord_bytes_take(&seats[0], &beat); // it holds it no more
    cairn__job_status__init(&all);
    coord_memory_show(&job, &answer, &all);
    ck_assert_uint_eq(all.state_bytes, 0);
    coord_answer_release(&answer);
}

/* Of a newer version: an unknown field is in the message's memory, which is freed. */
TEST(what_a_newer_shard_tells_besides_is_not_kept)
{
    uint8_t extra[] = { 1 };
    ProtobufCMessageUnknownField unknown = { .tag = 999, .len = 1, .data = extra };
    Cairn__MemoryTold told = CAIRN__MEMORY_TOLD__INIT, *list[] = { &told };
    Cairn__Heartbeat beat = CAIRN__HEARTBEAT__INIT;
    told.base.unknown_fields = &unknown;
    told.base.n_unknown_fields = 1;
    told.shard = (char[]) { "another" };
    told.job = JOB;
    beat.memory = list;
    beat.n_memory = 1;
    coord_bytes_take(&seats[0], &beat);
    struct coord_answer answer = { 0 };
    Cairn__JobStatus all = CAIRN__JOB_STATUS__INIT;
    coord_memory_show(&job, &answer, &all);
    ck_assert_uint_eq(all.memory[0]->base.n_unknown_fields, 0);
    ck_assert_ptr_null(all.memory[0]->base.unknown_fields);
    ck_assert_str_eq(all.memory[0]->shard, "s0");
    coord_answer_release(&answer);
}

SUITE(30, NULL, tear_down);
