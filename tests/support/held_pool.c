#include "tests/support/held_pool.h"

#include <check.h>

static struct task held;
static uv_sem_t let_go;

static void wait_to_go(struct task *task, uint32_t item, uint32_t thread)
{
    (void)task, (void)item, (void)thread;
    uv_sem_wait(&let_go);
}

static void on_gone_on(struct task *task)
{
    (void)task;
}

void held_pool_hold(struct pool *pool, uint32_t threads)
{
    held = (struct task) { .run = wait_to_go, .done = on_gone_on, .item_count = threads };
    ck_assert_int_eq(uv_sem_init(&let_go, 0), 0);
    pool_submit(pool, &held);
}

void held_pool_let_go(void)
{
    for (uint32_t i = 0; i < held.item_count; i++) uv_sem_post(&let_go);
}
