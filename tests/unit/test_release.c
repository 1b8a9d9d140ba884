/* A shard's memory on its way back to the system, also where there is no memory to say so. malloc is this
 * file's (tests/CMakeLists.txt): it fails when it is told to. */
#include <check.h>
#include <string.h>

#include "server/shard/shard.h"
#include "tests/support/suite.h"

#define ARENA_BYTES ((uint64_t)64 << 20)

static uv_loop_t loop;
static struct shard_daemon shard;
static struct arena arena;
static bool malloc_fails;

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes)
{
    return malloc_fails ? NULL : __real_malloc(bytes);
}

static void no_one_waits(struct shard_daemon *one)
{
    (void)one;
}

static void set_up(void)
{
    struct sentence why;
    uv_loop_init(&loop);
    static const struct shard_up up = { .memory_back = no_one_waits };
    shard.loop = &loop;
    shard.up = &up;
    shard.memory.budget = (struct budget) { .limit_bytes = ARENA_BYTES, .used_bytes = ARENA_BYTES };
    ck_assert_int_eq(pool_open(&loop, "release", 1, NULL, &shard.memory.releaser, &why), CAIRN_OK);
    ck_assert_int_eq(arena_open_scratch("some", ARENA_BYTES, &arena, &why), CAIRN_OK);
    memset(arena.base, 1, ARENA_BYTES);
}

static void tear_down(void)
{
    pool_close(shard.memory.releaser, NULL, NULL);
    release_close(&shard);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static void until_all_are_back(void)
{
    while (!LIST_EMPTY(&shard.memory.releases)) uv_run(&loop, UV_RUN_ONCE);
}

TEST(bytes_are_the_budgets_again_when_the_arenas_before_them_are_gone)
{
    arena_release(&shard, &arena);
    ck_assert_ptr_null(arena.base);
    release_bytes(&shard, ARENA_BYTES, NULL);
    ck_assert_uint_eq(shard.memory.budget.used_bytes, ARENA_BYTES);
    until_all_are_back();
    ck_assert_uint_eq(shard.memory.budget.used_bytes, 0);
}

TEST(without_memory_they_go_with_the_newest_arena)
{
    arena_release(&shard, &arena);
    malloc_fails = true;
    release_bytes(&shard, ARENA_BYTES, NULL);
    malloc_fails = false;
    ck_assert_uint_eq(shard.memory.budget.used_bytes, ARENA_BYTES);
    until_all_are_back();
    ck_assert_uint_eq(shard.memory.budget.used_bytes, 0);
}

TEST(without_memory_and_anything_on_its_way_all_is_done_at_once)
{
    malloc_fails = true;
    arena_release(&shard, &arena);
    release_bytes(&shard, ARENA_BYTES, NULL);
    malloc_fails = false;
    ck_assert_ptr_null(arena.base);
    ck_assert(LIST_EMPTY(&shard.memory.releases));
    ck_assert_uint_eq(shard.memory.budget.used_bytes, 0);
}

SUITE(30, set_up, tear_down);
