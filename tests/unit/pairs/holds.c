#include <check.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/daemon.h"
#include "tests/support/fake_shard.h"
#include "tests/support/reshard_toy.h"
#include "tests/unit/pairs/pairs.h"

#define QUIET_TICKS 3

/* ---- libuv's threads ---- */

struct work {
    uv_work_t own;
    uv_work_t *theirs;
    uv_work_cb run;
    uv_after_work_cb after;
    bool is_held;
};
static sem_t work_gate;
static bool holds_work;     /* the next one */
static bool is_work_shut;   /* the gate */
static int works, shut_out; /* on their way; of these, behind the gate */
static uint64_t works_begun;

int __real_uv_queue_work(uv_loop_t *loop, uv_work_t *req, uv_work_cb run, uv_after_work_cb after);
int __wrap_uv_queue_work(uv_loop_t *loop, uv_work_t *req, uv_work_cb run, uv_after_work_cb after);

static void run_work(uv_work_t *own)
{
    const struct work *work = own->data;
    if (work->is_held) sem_wait(&work_gate);
    work->run(work->theirs);
}

static void after_work(uv_work_t *own, int status)
{
    struct work *work = own->data;
    works--;
    shut_out -= work->is_held;
    work->after(work->theirs, status);
    free(work);
}

int __wrap_uv_queue_work(uv_loop_t *loop, uv_work_t *req, uv_work_cb run, uv_after_work_cb after)
{
    struct work *work = calloc(1, sizeof *work);
    ck_assert_ptr_nonnull(work);
    *work = (struct work) { .theirs = req, .run = run, .after = after, .is_held = holds_work };
    work->own.data = work;
    holds_work = false;
    works_begun++;
    works++;
    shut_out += work->is_held;
    return __real_uv_queue_work(loop, &work->own, run_work, after_work);
}

uint64_t pairs_works_begun(void)
{
    return works_begun;
}

void pairs_hold_work(void)
{
    ck_assert_int_eq(sem_init(&work_gate, 0, 0), 0);
    holds_work = is_work_shut = true;
}

/* ---- the thread that reads snapshots again ---- */

static atomic_bool holds_scrub;
static sem_t scrub_gate;

ssize_t __real_pread(int fd, void *to, size_t count, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t count, off_t at);

ssize_t __wrap_pread(int fd, void *to, size_t count, off_t at)
{
    char name[16] = "";
    if (atomic_load(&holds_scrub) && pthread_getname_np(pthread_self(), name, sizeof name) == 0 &&
        strcmp(name, "cairn-scrub") == 0) {
        sem_wait(&scrub_gate);
        sem_post(&scrub_gate); // it is open from now on
    }
    return __real_pread(fd, to, count, at);
}

void pairs_hold_scrub(void)
{
    ck_assert_int_eq(sem_init(&scrub_gate, 0, 0), 0);
    atomic_store(&holds_scrub, true);
}

/* ---- the store's thread ---- */

static bool holds_store;

void pairs_hold_store(void)
{
    hold_disk();
    holds_store = true;
}

static bool is_flushed;

static void run_flush(struct task *task, uint32_t item, uint32_t thread)
{
    (void)task;
    (void)item;
    (void)thread;
}

static void on_flushed(struct task *task)
{
    (void)task;
    is_flushed = true;
}

/* Whatever was given to the store's thread is done. */
static void flush_store(void)
{
    static struct task task;
    if (holds_store) return;
    is_flushed = false;
    task = (struct task) { .run = run_flush, .done = on_flushed, .item_count = 1 };
    pool_submit(fake.cluster->saves.pool, &task);
    fake_until(&fake, is_flushed);
}

/* ---- all ---- */

void pairs_let_go(void)
{
    if (holds_store) release_disk();
    if (is_work_shut && shut_out > 0) sem_post(&work_gate);
    if (atomic_exchange(&holds_scrub, false)) sem_post(&scrub_gate);
    holds_store = holds_work = is_work_shut = false;
    for (uint32_t i = 0; i < fake.shard_count; i++) fake_shard_let_go(&fake.shards[i]);
}

static bool is_saving(void)
{
    return !holds_store && fake.cluster->saves.list != NULL;
}

/* By the shards, but for heartbeats, which come with every tick. */
static uint64_t frames_seen(void)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < fake.shard_count; i++)
        for (int type = 0; type <= CAIRN_MSG_MAX; type++)
            if (type != CAIRN_MSG_HEARTBEAT) count += fake.shards[i].seen[type];
    return count;
}

/* Nothing has come for some ticks, in which the coordinator looks at all that is under way. */
static void settle_once(const struct question *until)
{
    uint64_t tick_ms = fake.cluster->clock.last_tick_ms;
    uint64_t seen = 0;
    int quiet = 0;
    const uint64_t end_ms = uv_hrtime() / 1000000 + 10000;
    while (quiet < QUIET_TICKS && (until == NULL || !until->is_answered)) {
        if (uv_hrtime() / 1000000 > end_ms) ck_abort_msg("it does not come to rest");
        fake_pump(&fake);
        const uint64_t now = frames_seen();
        if (pairs_read() || now != seen || is_saving() || works > (is_work_shut ? shut_out : 0))
            quiet = 0;
        seen = now;
        if (fake.cluster->clock.last_tick_ms == tick_ms) continue;
        tick_ms = fake.cluster->clock.last_tick_ms;
        quiet++;
    }
}

void pairs_settle(const struct question *until)
{
    settle_once(until);
    if (until != NULL && until->is_answered) return;
    flush_store();
    settle_once(until);
}
