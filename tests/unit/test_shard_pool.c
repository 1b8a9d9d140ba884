/* The shard's threads and its memory: daemon.h and memory.h. */
#include <check.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "server/base/daemon.h"
#include "server/shard/memory.h"
#include "tests/support/suite.h"

enum { TASKS = 20, ITEMS = 1000, THREADS = 4 };

struct counted {
    struct task task;
    atomic_uint ran[ITEMS];
    unsigned done;
};

static uv_loop_t loop;
static struct pool *pool;
static struct counted counted[TASKS];
static unsigned done_count;
static unsigned order[TASKS];

static void run_counted(struct task *task, uint32_t item, uint32_t thread)
{
    struct counted *c = (struct counted *)task;
    ck_assert(c->task.is_small ? thread == THREADS : thread < THREADS);
    atomic_fetch_add(&c->ran[item], 1);
}

static void on_done(struct task *task)
{
    struct counted *c = (struct counted *)task;
    c->done++;
    order[done_count++] = (unsigned)(c - counted);
}

static void set_up(void)
{
    struct sentence why;
    memset(counted, 0, sizeof counted);
    done_count = 0;
    uv_loop_init(&loop);
    ck_assert_int_eq(pool_open(&loop, "test", THREADS, NULL, &pool, &why), CAIRN_OK);
}

static void tear_down(void)
{
    if (pool != NULL) pool_close(pool, NULL, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

/* Gives the pool a task, and runs the loop until so many are done. */
static void submit(unsigned number, uint32_t item_count,
                   void (*run)(struct task *task, uint32_t item, uint32_t thread))
{
    counted[number].task = (struct task) { .run = run, .done = on_done, .item_count = item_count };
    pool_submit(pool, &counted[number].task);
}

static void await_done(unsigned count)
{
    while (done_count < count) uv_run(&loop, UV_RUN_ONCE);
}

static void check_each_item_runs_once(void (*run)(struct task *task, uint32_t item,
                                                  uint32_t thread))
{
    for (unsigned i = 0; i < TASKS; i++) submit(i, i * 50, run);
    await_done(TASKS);
    for (unsigned i = 0; i < TASKS; i++) {
        ck_assert_uint_eq(counted[i].done, 1);
        for (unsigned item = 0; item < ITEMS; item++)
            ck_assert_uint_eq(atomic_load(&counted[i].ran[item]), item < i * 50);
    }
}

TEST(every_item_of_every_task_runs_once)
{
    check_each_item_runs_once(run_counted);
}

TEST(a_task_without_items_is_done)
{
    submit(0, 0, run_counted);
    ck_assert_uint_eq(done_count, 0); // on the loop, never inside submit
    await_done(1);
}

TEST(a_small_task_runs_at_once_and_is_told_of_by_the_loop)
{
    counted[0].task =
        (struct task) { .run = run_counted, .done = on_done, .item_count = 3, .is_small = true };
    pool_submit(pool, &counted[0].task);
    for (unsigned item = 0; item < 3; item++)
        ck_assert_uint_eq(atomic_load(&counted[0].ran[item]), 1);
    ck_assert_uint_eq(done_count, 0);
    await_done(1);
    ck_assert_uint_eq(counted[0].done, 1);
}

/* A thread does what waits behind its item, of other tasks too, as one list. */
static void run_gathered(struct task *task, uint32_t item, uint32_t thread)
{
    struct pool_item more[64];
    const uint32_t count = pool_take(pool, more, 64);
    run_counted(task, item, thread);
    for (uint32_t i = 0; i < count; i++) run_counted(more[i].task, more[i].item, thread);
    pool_end(pool, more, count);
}

TEST(items_that_a_thread_takes_besides_its_own_end_their_tasks)
{
    check_each_item_runs_once(run_gathered);
}

static atomic_uint threads_in;
static atomic_bool may_go;

/* Ends its item itself, behind what it takes ahead: no thread is idle then. */
static void run_ahead(struct task *task, uint32_t item, uint32_t thread)
{
    const struct pool_item own = { task, item };
    struct pool_item more[64];
    run_counted(task, item, thread);
    atomic_fetch_add(&threads_in, 1);
    while (!atomic_load(&may_go)) continue;
    const uint32_t count = pool_take_ahead(pool, more, 64);
    for (uint32_t i = 0; i < count; i++) run_counted(more[i].task, more[i].item, thread);
    pool_end(pool, more, count);
    pool_end(pool, &own, 1);
}

static void run_behind(struct task *task, uint32_t item, uint32_t thread)
{
    (void)task, (void)item, (void)thread;
    ck_abort_msg("a thread that was at work has left the item");
}

TEST(what_waits_is_taken_ahead_while_no_thread_is_idle)
{
    counted[0].task = (struct task) {
        .run = run_ahead, .done = on_done, .item_count = THREADS, .ends_items = true
    };
    pool_submit(pool, &counted[0].task);
    while (atomic_load(&threads_in) < THREADS) continue;
    submit(1, 50, run_behind);
    atomic_store(&may_go, true);
    await_done(2);
    for (unsigned item = 0; item < 50; item++)
        ck_assert_uint_eq(atomic_load(&counted[1].ran[item]), 1);
    ck_assert_uint_eq(counted[0].done + counted[1].done, 2);
}

TEST(after_close_no_done_is_called)
{
    for (unsigned i = 0; i < TASKS; i++) submit(i, ITEMS, run_counted);
    pool_close(pool, NULL, NULL);
    pool = NULL;
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_uint_eq(done_count, 0);
}

static void look_at_signals(struct task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    atomic_store(&((struct counted *)task)->ran[0],
                 sigismember(&blocked, SIGTERM) && sigismember(&blocked, SIGINT));
}

TEST(signals_stay_with_the_loop)
{
    submit(0, 1, look_at_signals);
    await_done(1);
    ck_assert_uint_eq(atomic_load(&counted[0].ran[0]), 1);
}

/* ---- a thread that hangs ---- */

struct hanging {
    struct task task;
    sem_t begun, may_end;
};

static void run_hanging(struct task *task, uint32_t item, uint32_t thread)
{
    struct hanging *hanging = (struct hanging *)task;
    (void)item, (void)thread;
    sem_post(&hanging->begun);
    sem_wait(&hanging->may_end);
}

static void on_closed(void *context)
{
    *(bool *)context = true;
}

TEST(a_thread_that_hangs_is_left_behind)
{
    static struct hanging hanging = { .task = { .run = run_hanging, .item_count = 1 } };
    struct sentence why;
    static struct pool *one; // whose memory stays
    bool closed = false;
    sem_init(&hanging.begun, 0, 0);
    sem_init(&hanging.may_end, 0, 0);
    ck_assert_int_eq(pool_open(&loop, "hangs", 1, NULL, &one, &why), CAIRN_OK);
    pool_submit(one, &hanging.task);
    sem_wait(&hanging.begun);
    ck_assert(!pool_close_within(one, 10, on_closed, &closed));
    uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert(closed);
    sem_post(&hanging.may_end); // what it still does it does with memory that is there
}

TEST(a_thread_that_ends_in_time_is_not)
{
    struct sentence why;
    struct pool *one;
    bool closed = false;
    ck_assert_int_eq(pool_open(&loop, "ends", 1, NULL, &one, &why), CAIRN_OK);
    ck_assert(pool_close_within(one, 20000, on_closed, &closed));
    uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert(closed);
}

SUITE(30, set_up, tear_down);

TEST(an_arena_is_zero_and_backed_as_it_is_touched)
{
    struct arena arena;
    struct sentence why;
    unsigned char there[2];
    ck_assert_int_eq(arena_open_state("test", 1 << 30, 0, CAIRN_STREAM_WIRE, &arena, &why),
                     CAIRN_OK);
    ck_assert_uint_eq(arena.bytes, 1 << 30);
    arena.base[(1 << 30) - 1] = 1;
    ck_assert_uint_eq(arena.base[(1 << 30) - 4096], 0);
    ck_assert_int_eq(mincore(arena.base + (1 << 30) - 8192, 8192, there), 0);
    ck_assert_uint_eq(there[0] & 1, 0);
    ck_assert_uint_eq(there[1] & 1, 1);
    arena_close(&arena);
    arena_close(&arena);
    ck_assert_ptr_null(arena.base);

    ck_assert_int_eq(arena_open_scratch("test", 0, &arena, &why), CAIRN_OK);
    ck_assert_ptr_null(arena.base);
    arena_close(&arena);
}

TEST(a_budget_says_what_is_missing_and_takes_nothing)
{
    struct budget budget = { .limit_bytes = 1000 };
    struct sentence why;
    ck_assert_int_eq(budget_take(&budget, 600, "job a", &why), CAIRN_OK);
    ck_assert_int_eq(budget_take(&budget, 401, "job b", &why), CAIRN_ERR_NO_MEMORY);
    ck_assert_ptr_nonnull(
        strstr(why.text, "job b needs 401 bytes, and 400 of memory.limit = 1000"));
    ck_assert_int_eq(budget_take(&budget, UINT64_MAX, "job c", &why), CAIRN_ERR_NO_MEMORY);
    ck_assert_uint_eq(budget.used_bytes, 600);
    budget_give(&budget, 600);
    ck_assert_int_eq(budget_take(&budget, 1000, "job b", &why), CAIRN_OK);
}

SUITE(30);
