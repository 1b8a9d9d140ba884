#include "tests/support/reshard_toy.h"

#include <check.h>

#include "tests/support/fake_move.h"
#include "tests/support/held_pool.h"

char s0[] = "s0", s1[] = "s1", s2[] = "s2", toy_name[] = "toy";

Cairn__ReshardJob *expect_told(uint32_t request)
{
    const Cairn__ReshardTold *told = fake_hear(&admin, ReshardTold, request);
    ck_assert_uint_eq(told->n_jobs, 1);
    return told->jobs[0];
}

void apply_shards(uint32_t shards)
{
    expect_told(ask_reshard(CAIRN_RESHARD_APPLY, .shards = shards));
}

void cancel_reshard(void)
{
    expect_told(ask_reshard(CAIRN_RESHARD_CANCEL));
}

void expect_state(const char *state)
{
    ck_assert_str_eq(expect_told(ask_reshard(CAIRN_RESHARD_STATUS))->state, state);
}

void expect_text(const char *text)
{
    ck_assert_str_eq(expect_told(ask_reshard(CAIRN_RESHARD_STATUS))->text, text);
}

void begin_slice(void)
{
    fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    fake_until(&fake, toy()->layout->version == 2);
}

void end_move(uint32_t shard)
{
    fake.shards[shard].move.holds_moved = false;
    fake_move_release(&fake.shards[shard]);
}

void end_slice(void)
{
    end_move(2);
}

void begin_prepare(uint32_t shard)
{
    fake.shards[shard].move.holds_prepare = true;
    apply_shards(3);
    fake_until(&fake, fake.shards[shard].move.next != NULL);
}

void end_prepare(uint32_t shard)
{
    fake.shards[shard].move.holds_prepare = false;
    fake_move_prepared(&fake.shards[shard]);
}

void restart_with_three(void)
{
    restart_coordinator();
    tick_fast();
    fake_shards_up(&fake, 3);
    attach_again();
}

void hold_disk(void)
{
    held_pool_hold(toy()->cluster->saves.pool, 1);
}

void release_disk(void)
{
    held_pool_let_go();
}

bool owns(uint32_t shard)
{
    const struct layout *l = toy()->layout;
    return shard < l->shard_count && l->shard_extents[shard + 1] > l->shard_extents[shard];
}

uint32_t owners(void)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < toy()->layout->shard_count; i++) count += owns(i);
    return count;
}

bool ended(void)
{
    return !toy()->reshard.running;
}

void train_until_ended(void)
{
    train_until(ended());
}

void open_three(void)
{
    open_ticking();
    fake_shard_up(&fake, 2);
}
