/* A shard's memory on its way back to the system, also where there is no memory to say so. malloc is this
 * file's (tests/CMakeLists.txt): it fails when it is told to. */
#include <check.h>
#include <string.h>

#include "server/shard/shard.h"
#include "tests/support/suite.h"

#define ARENA_BYTES ((uint64_t)64 << 20)

static uv_loop_t loop;
static struct cairn_shard shard;
static struct cairn_arena arena;
static bool malloc_fails;

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes)
{
    return malloc_fails ? NULL : __real_malloc(bytes);
}

static void set_up(void)
{
    struct cairn_sentence why;
    uv_loop_init(&loop);
    shard.loop = &loop;
    shard.budget = (struct cairn_budget) { .limit_bytes = ARENA_BYTES, .used_bytes = ARENA_BYTES };
    ck_assert_int_eq(cairn_pool_open(&loop, "release", 1, NULL, &shard.releaser, &why), CAIRN_OK);
    ck_assert_int_eq(cairn_arena_open_scratch("some", ARENA_BYTES, &arena, &why), CAIRN_OK);
    memset(arena.base, 1, ARENA_BYTES);
}

static void tear_down(void)
{
    cairn_pool_close(shard.releaser, NULL, NULL);
    cairn_release_close(&shard);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static void until_all_are_back(void)
{
    while (shard.releases != NULL) uv_run(&loop, UV_RUN_ONCE);
}

START_TEST(bytes_are_the_budgets_again_when_the_arenas_before_them_are_gone)
{
    cairn_release(&shard, &arena);
    ck_assert_ptr_null(arena.base);
    cairn_release_bytes(&shard, ARENA_BYTES, NULL);
    ck_assert_uint_eq(shard.budget.used_bytes, ARENA_BYTES);
    until_all_are_back();
    ck_assert_uint_eq(shard.budget.used_bytes, 0);
}
END_TEST

START_TEST(without_memory_they_go_with_the_newest_arena)
{
    cairn_release(&shard, &arena);
    malloc_fails = true;
    cairn_release_bytes(&shard, ARENA_BYTES, NULL);
    malloc_fails = false;
    ck_assert_uint_eq(shard.budget.used_bytes, ARENA_BYTES);
    until_all_are_back();
    ck_assert_uint_eq(shard.budget.used_bytes, 0);
}
END_TEST

START_TEST(without_memory_and_anything_on_its_way_all_is_done_at_once)
{
    malloc_fails = true;
    cairn_release(&shard, &arena);
    cairn_release_bytes(&shard, ARENA_BYTES, NULL);
    malloc_fails = false;
    ck_assert_ptr_null(arena.base);
    ck_assert_ptr_null(shard.releases);
    ck_assert_uint_eq(shard.budget.used_bytes, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("release");
    TCase *tc = tcase_create("release");
    tcase_set_timeout(tc, 30);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, bytes_are_the_budgets_again_when_the_arenas_before_them_are_gone);
    tcase_add_test(tc, without_memory_they_go_with_the_newest_arena);
    tcase_add_test(tc, without_memory_and_anything_on_its_way_all_is_done_at_once);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
