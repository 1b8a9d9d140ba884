#include "server/shard/base/compute.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/log.h"

/* What a thread has of its own. */
struct cairn_compute_lane {
    struct cairn_works works;
    /* owned: [works_best] of the list at hand */
    struct cairn_pool_item *items;
    bool *more; /* the item has a further stage */
};

enum {
    LOOP_LANE,
    FILES_LANE,
    SNAPSHOTS_LANE,
    LANES_BESIDE
}; /* behind those of the threads, as pool.h numbers them */

/* ---- open and close ---- */

static cairn_status open_lane(struct cairn_compute_lane *lane, struct cairn_home *home,
                              struct cairn_sentence *why)
{
    const uint32_t items = cairn_home_info(home)->works_best;
    lane->items = calloc(items, sizeof *lane->items);
    lane->more = calloc(items, sizeof *lane->more);
    if (lane->items == NULL || lane->more == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for lists of work");
    return cairn_works_open(&lane->works, home, items, why);
}

/* Sums have the same bits whichever thread makes them. */
static void assert_float_env(void)
{
    assert(cairn_float_env_ok());
}

/* Next to the device, as threads run where the one that starts them does. */
static cairn_status open_threads(struct cairn_compute *compute, uv_loop_t *loop, const char *name,
                                 uint32_t threads, struct cairn_sentence *why)
{
    const struct cairn_home_info *info = cairn_home_info(compute->home);
    struct cairn_numa_before before;
    if (!cairn_numa_go(info->numa_node, &before))
        cairn_log_warn("threads of %s run anywhere, and not on its NUMA node %d, so that copies "
                       "are slower: %s",
                       info->device, info->numa_node,
                       errno == ENOENT ? "this process may use none of that node's processors"
                                       : strerror(errno));
    const cairn_status status = cairn_pool_open(loop, name, threads, assert_float_env,
                                                &compute->pool, why);
    cairn_numa_return(&before);
    return status;
}

cairn_status cairn_compute_open(struct cairn_compute *compute, uv_loop_t *loop,
                                struct cairn_home *home, const char *name, uint32_t threads,
                                struct cairn_sentence *why)
{
    *compute = (struct cairn_compute) { .home = home, .lane_count = threads + LANES_BESIDE };
    pthread_mutex_init(&compute->lock, NULL);
    compute->lanes = calloc(compute->lane_count, sizeof *compute->lanes);
    if (compute->lanes == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for threads");
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; i < compute->lane_count && status == CAIRN_OK; i++)
        status = open_lane(&compute->lanes[i], home, why);
    if (status != CAIRN_OK) return status;
    return open_threads(compute, loop, name, threads, why);
}

bool cairn_compute_stop(struct cairn_compute *compute, void (*on_closed)(void *context),
                        void *context)
{
    if (compute->pool == NULL) return false;
    cairn_pool_close(compute->pool, on_closed, context);
    compute->pool = NULL;
    return true;
}

void cairn_compute_close(struct cairn_compute *compute)
{
    if (compute->home == NULL) return;
    for (uint32_t i = 0; compute->lanes != NULL && i < compute->lane_count; i++) {
        cairn_works_close(&compute->lanes[i].works);
        free(compute->lanes[i].items);
        free(compute->lanes[i].more);
    }
    free(compute->lanes);
    pthread_mutex_destroy(&compute->lock);
    cairn_home_close(compute->home);
    *compute = (struct cairn_compute) { 0 };
}

/* ---- on the threads ---- */

static struct cairn_run *run_of(const struct cairn_pool_item *item)
{
    return (struct cairn_run *)item->task;
}

/* True if an item has a further stage. */
static bool describe(struct cairn_compute_lane *lane, uint32_t count, uint32_t stage)
{
    bool more = false;
    for (uint32_t i = 0; i < count; i++) {
        struct cairn_run *run = run_of(&lane->items[i]);
        if (!lane->more[i]) continue;
        lane->more[i] = run->describe(run, run->item_first + lane->items[i].item, stage,
                                      &lane->works);
        more = more || lane->more[i];
    }
    return more;
}

static void conclude(const struct cairn_compute_lane *lane, uint32_t count, uint32_t thread,
                     cairn_status status)
{
    for (uint32_t i = 0; i < count; i++) {
        struct cairn_run *run = run_of(&lane->items[i]);
        if (status != CAIRN_OK)
            atomic_store(&run->status, status);
        else if (run->conclude != NULL)
            run->conclude(run, run->item_first + lane->items[i].item, thread);
    }
}

static void work_off(struct cairn_compute *compute, struct cairn_compute_lane *lane, uint32_t count,
                     uint32_t thread)
{
    struct cairn_works *works = &lane->works;
    struct cairn_run *first = run_of(&lane->items[0]);
    struct cairn_sentence why;
    works->is_guarded = works->in_place && first->is_guarded; // then it is the only one
    for (uint32_t i = 0; i < count; i++) lane->more[i] = true;
    for (uint32_t stage = 0; describe(lane, count, stage); stage++) cairn_works_flush(works);
    cairn_works_flush(works);
    if (works->is_guarded) first->failed_at = works->failed_at;
    works->is_guarded = false;
    const cairn_status status = cairn_works_run(works, &why);
    if (status != CAIRN_OK) {
        pthread_mutex_lock(&compute->lock);
        compute->why = why;
        pthread_mutex_unlock(&compute->lock);
    }
    conclude(lane, count, thread, status);
}

static void run_items(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    struct cairn_compute *compute = ((struct cairn_run *)task)->compute;
    struct cairn_compute_lane *lane = &compute->lanes[thread];
    const uint32_t most = task->is_small ? 1 : cairn_home_info(compute->home)->works_best;
    lane->items[0] = (struct cairn_pool_item) { task, item };
    const uint32_t more = cairn_pool_take(compute->pool, lane->items + 1, most - 1);
    work_off(compute, lane, 1 + more, thread);
    cairn_pool_end(compute->pool, lane->items + 1, more);
}

/* ---- the loop thread ---- */

static void run_done(struct cairn_task *task)
{
    struct cairn_run *run = (struct cairn_run *)task;
    run->done(run);
}

void cairn_compute_submit(struct cairn_run *run)
{
    const bool is_small = run->task.is_small;
    run->task = (struct cairn_task) {
        .run = run_items, .done = run_done, .item_count = run->item_count, .is_small = is_small
    };
    atomic_store(&run->status, CAIRN_OK);
    run->failed_at = NULL;
    assert(!run->is_guarded || run->item_count == 1);
    cairn_pool_submit(run->compute->pool, &run->task);
}

uint32_t cairn_compute_lanes(const struct cairn_compute *compute)
{
    return compute->lane_count;
}

uint32_t cairn_compute_items_wanted(const struct cairn_compute *compute)
{
    // One list for each thread, and an item that is being handed over.
    return cairn_pool_thread_count(compute->pool) * cairn_home_info(compute->home)->works_best + 1;
}

static bool is_begun(const struct cairn_compute_lane *lane)
{
    return atomic_load_explicit(&lane->works.is_begun, memory_order_relaxed);
}

cairn_status cairn_compute_begin(struct cairn_compute *compute, struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; i < compute->lane_count && status == CAIRN_OK; i++)
        if (!is_begun(&compute->lanes[i]))
            status = cairn_works_begin(&compute->lanes[i].works, why);
    return status;
}

uint64_t cairn_compute_staging_left(const struct cairn_compute *compute)
{
    uint64_t streams = 0;
    for (uint32_t i = 0; i < compute->lane_count; i++) streams += !is_begun(&compute->lanes[i]);
    return streams * cairn_home_info(compute->home)->stream_bytes;
}

static struct cairn_works *beside(const struct cairn_compute *compute, uint32_t lane)
{
    return &compute->lanes[compute->lane_count - LANES_BESIDE + lane].works;
}

struct cairn_works *cairn_compute_loop(const struct cairn_compute *compute)
{
    return beside(compute, LOOP_LANE);
}

struct cairn_works *cairn_compute_files(const struct cairn_compute *compute)
{
    return beside(compute, FILES_LANE);
}

struct cairn_works *cairn_compute_snapshots(const struct cairn_compute *compute)
{
    return beside(compute, SNAPSHOTS_LANE);
}

bool cairn_compute_is_host(const struct cairn_compute *compute)
{
    return cairn_home_info(compute->home)->is_host;
}

void cairn_compute_why(struct cairn_compute *compute, struct cairn_sentence *why_out)
{
    pthread_mutex_lock(&compute->lock);
    *why_out = compute->why;
    pthread_mutex_unlock(&compute->lock);
}
