#include "server/base/daemon.h"

#include <assert.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/base/machine.h"

STAILQ_HEAD(task_list, task);

struct pool_thread {
    pthread_t id;
    struct pool *pool; /* borrowed */
    uint32_t number;
};

struct pool {
    /* owned */
    struct pool_thread threads[CAIRN_POOL_THREADS_MAX]; /* [thread_count] */
    uint32_t thread_count;
    uv_async_t wake; /* tells the loop that tasks have ended */
    char name[16];
    void (*begin)(void);

    pthread_mutex_t lock; /* guards the fields from here to threads_over */
    pthread_cond_t work;
    struct task_list waiting; /* tasks with items that no thread took yet */
    struct task_list ended;
    uint32_t threads_idle;
    bool closing;
    uint32_t threads_over; /* the number of threads that no longer use the pool */

    /* loop thread only */
    bool left; /* a thread hangs, so this memory is never freed */
    void (*on_closed)(void *context);
    void *context;
};

/* Takes the next item of the first task; NULL if there is none. The caller holds the lock. */
static struct task *take_item(struct pool *pool, uint32_t *item_out)
{
    struct task *task = STAILQ_FIRST(&pool->waiting);
    if (task == NULL) return NULL;
    *item_out = task->items_taken++;
    if (task->items_taken == task->item_count) STAILQ_REMOVE_HEAD(&pool->waiting, next);
    return task;
}

static void end_item(struct pool *pool, struct task *task)
{
    if (++task->items_ended < task->item_count) return;
    STAILQ_INSERT_TAIL(&pool->ended, task, next);
    uv_async_send(&pool->wake);
}

static void *thread_main(void *argument)
{
    struct pool_thread *thread = argument;
    struct pool *pool = thread->pool;
    pthread_setname_np(pthread_self(), pool->name);
    if (pool->begin != NULL) pool->begin();

    pthread_mutex_lock(&pool->lock);
    while (!pool->closing) {
        uint32_t item;
        struct task *task = take_item(pool, &item);
        if (task == NULL) {
            pool->threads_idle++;
            pthread_cond_wait(&pool->work, &pool->lock);
            pool->threads_idle--;
            continue;
        }
        pthread_mutex_unlock(&pool->lock);
        // read before, because the task may be over when run() returns
        const bool ends_items = task->ends_items;
        task->run(task, item, thread->number);
        pthread_mutex_lock(&pool->lock);
        if (!pool->closing && !ends_items) end_item(pool, task);
    }
    pool->threads_over++;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void on_wake(uv_async_t *wake)
{
    struct pool *pool = wake->data;
    for (;;) {
        pthread_mutex_lock(&pool->lock);
        struct task *task = pool->closing ? NULL : STAILQ_FIRST(&pool->ended);
        if (task != NULL) STAILQ_REMOVE_HEAD(&pool->ended, next);
        pthread_mutex_unlock(&pool->lock);
        if (task == NULL) return;
        task->done(task);
    }
}

cairn_status pool_open(uv_loop_t *loop, const char *name, uint32_t thread_count,
                       void (*begin)(void), struct pool **pool_out, struct sentence *why)
{
    assert(thread_count >= 1 && thread_count <= CAIRN_POOL_THREADS_MAX);
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for threads");
    strncpy(pool->name, name, sizeof pool->name - 1);
    pool->begin = begin;
    STAILQ_INIT(&pool->waiting);
    STAILQ_INIT(&pool->ended);
    if (uv_async_init(loop, &pool->wake, on_wake) != 0) {
        free(pool);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "libuv has no memory for a handle");
    }
    pool->wake.data = pool;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_condattr_t clock; // the monotonic clock
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->work, &clock);
    pthread_condattr_destroy(&clock);
    while (pool->thread_count < thread_count) {
        struct pool_thread *thread = &pool->threads[pool->thread_count];
        *thread = (struct pool_thread) { .pool = pool, .number = pool->thread_count };
        int failed = thread_start(&thread->id, thread_main, thread);
        if (failed != 0) {
            pool_close(pool, NULL, NULL);
            return fail_with(why, CAIRN_ERR_NO_MEMORY, "cannot start thread %u of %u: %s",
                             pool->thread_count + 1, thread_count, strerror(failed));
        }
        pool->thread_count++;
    }
    *pool_out = pool;
    return CAIRN_OK;
}

static void on_async_closed(uv_handle_t *handle)
{
    struct pool *pool = handle->data;
    void (*on_closed)(void *context) = pool->on_closed;
    void *context = pool->context;
    if (!pool->left) {
        pthread_cond_destroy(&pool->work);
        pthread_mutex_destroy(&pool->lock);
        free(pool);
    }
    if (on_closed != NULL) on_closed(context);
}

static void tell_threads(struct pool *pool)
{
    HOLD_LOCK(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->work);
}

static void close_wake(struct pool *pool, void (*on_closed)(void *context), void *context)
{
    pool->on_closed = on_closed;
    pool->context = context;
    uv_close((uv_handle_t *)&pool->wake, on_async_closed);
}

void pool_close(struct pool *pool, void (*on_closed)(void *context), void *context)
{
    tell_threads(pool);
    for (uint32_t i = 0; i < pool->thread_count; i++) pthread_join(pool->threads[i].id, NULL);
    close_wake(pool, on_closed, context);
}

bool pool_close_within(struct pool *pool, uint32_t most_ms, void (*on_closed)(void *context),
                       void *context)
{
    struct timespec until;
    assert(pool->thread_count == 1);
    clock_gettime(CLOCK_MONOTONIC, &until);
    const uint64_t ns = (uint64_t)until.tv_nsec + (uint64_t)most_ms * 1000000;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    tell_threads(pool);
    pthread_mutex_lock(&pool->lock);
    while (pool->threads_over == 0 &&
           pthread_cond_timedwait(&pool->work, &pool->lock, &until) == 0) {}
    pool->left = pool->threads_over == 0;
    pthread_mutex_unlock(&pool->lock);
    if (pool->left)
        pthread_detach(pool->threads[0].id);
    else
        pthread_join(pool->threads[0].id, NULL);
    const bool ended = !pool->left;
    close_wake(pool, on_closed, context);
    return ended;
}

void pool_submit(struct pool *pool, struct task *task)
{
    task->items_taken = 0;
    task->items_ended = 0;
    // A small task runs now. The loop still calls `done` later, so that the submitter is not called back from
    // within its own call.
    while (task->is_small && task->items_taken < task->item_count)
        task->run(task, task->items_taken++, pool->thread_count);
    HOLD_LOCK(&pool->lock);
    if (task->items_taken == task->item_count) {
        STAILQ_INSERT_TAIL(&pool->ended, task, next);
        uv_async_send(&pool->wake);
    } else {
        STAILQ_INSERT_TAIL(&pool->waiting, task, next);
        if (task->item_count == 1)
            pthread_cond_signal(&pool->work);
        else
            pthread_cond_broadcast(&pool->work);
    }
}

/* Takes up to `max` items, and stops early when there are no more items, or when at least `idle` threads
 * are idle. */
static uint32_t take_items(struct pool *pool, struct pool_item *items_out, uint32_t max,
                           uint32_t idle)
{
    uint32_t count = 0;
    if (max == 0) return 0;
    HOLD_LOCK(&pool->lock);
    while (count < max && !pool->closing && pool->threads_idle < idle &&
           (items_out[count].task = take_item(pool, &items_out[count].item)) != NULL)
        count++;
    return count;
}

uint32_t pool_take(struct pool *pool, struct pool_item *items_out, uint32_t max)
{
    return take_items(pool, items_out, max, UINT32_MAX);
}

uint32_t pool_take_ahead(struct pool *pool, struct pool_item *items_out, uint32_t max)
{
    return take_items(pool, items_out, max, 1);
}

void pool_end(struct pool *pool, const struct pool_item *items, uint32_t count)
{
    if (count == 0) return;
    HOLD_LOCK(&pool->lock);
    for (uint32_t i = 0; i < count && !pool->closing; i++) end_item(pool, items[i].task);
}

uint32_t pool_thread_count(const struct pool *pool)
{
    return pool->thread_count;
}

/* ==== guard ==== */

/* The place at which the thread's guard_run continues after a SIGBUS; NULL outside of guarded code. */
static _Thread_local sigjmp_buf *volatile way_out;
static _Thread_local const void *volatile failed_at;

static void on_bus(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (way_out != NULL) {
        failed_at = info->si_addr;
        siglongjmp(*way_out, 1);
    }
    signal(number, SIG_DFL); // the instruction will run again, and then its SIGBUS ends the process
}

cairn_status guard_install(void)
{
    struct sigaction action = { .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_NODEFER };
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, NULL) == 0 ? CAIRN_OK : CAIRN_ERR_INTERNAL;
}

const void *guard_run(void (*run)(void *arg), void *arg)
{
    sigjmp_buf here;
    assert(way_out == NULL);
    if (sigsetjmp(here, 0) != 0) { // with SA_NODEFER the handler does not change the signal mask
        way_out = NULL;
        return failed_at;
    }
    way_out = &here;
    run(arg);
    way_out = NULL;
    return NULL;
}
