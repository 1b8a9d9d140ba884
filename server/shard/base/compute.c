#include "server/shard/base/compute.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/log.h"

/* Items that are done together. */
struct list {
    struct cairn_pool_item *items; /* owned: [works_best] */
    bool *more;                    /* owned, likewise: the item has a further stage */
    uint32_t count;
};

/* The works and lists that each thread has for itself. */
struct cairn_compute_lane {
    struct cairn_works works;
    struct list lists[CAIRN_WORKS_LISTS]; /* of the works' lists */
};

enum {
    LOOP_LANE,
    FILES_LANE,
    SNAPSHOTS_LANE,
    LANES_BESIDE
}; /* behind those of the threads, as pool.h numbers them */

/* ---- open and close ---- */

static uint32_t lists_max(const struct cairn_home *home)
{
    const uint32_t most = cairn_home_info(home)->lists_max;
    return most < CAIRN_WORKS_LISTS ? most : CAIRN_WORKS_LISTS;
}

static cairn_status open_lane(struct cairn_compute_lane *lane, struct cairn_home *home,
                              uint32_t lists, struct cairn_sentence *why)
{
    const uint32_t items = cairn_home_info(home)->works_best;
    for (uint32_t i = 0; i < lists; i++) {
        struct list *list = &lane->lists[i];
        list->items = calloc(items, sizeof *list->items);
        list->more = calloc(items, sizeof *list->more);
        if (list->items == NULL || list->more == NULL)
            return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for lists of work");
    }
    return cairn_works_open(&lane->works, home, items, lists, why);
}

static void close_lane(struct cairn_compute_lane *lane)
{
    cairn_works_close(&lane->works);
    for (uint32_t i = 0; i < CAIRN_WORKS_LISTS; i++) {
        free(lane->lists[i].items);
        free(lane->lists[i].more);
    }
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
        status = open_lane(&compute->lanes[i], home, i < threads ? lists_max(home) : 1, why);
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
    for (uint32_t i = 0; compute->lanes != NULL && i < compute->lane_count; i++)
        close_lane(&compute->lanes[i]);
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
static bool describe(struct cairn_works *works, struct list *list, uint32_t stage)
{
    bool more = false;
    for (uint32_t i = 0; i < list->count; i++) {
        struct cairn_run *run = run_of(&list->items[i]);
        if (!list->more[i]) continue;
        list->more[i] = run->describe(run, run->item_first + list->items[i].item, stage, works);
        more = more || list->more[i];
    }
    return more;
}

static void conclude(const struct list *list, uint32_t thread, cairn_status status)
{
    for (uint32_t i = 0; i < list->count; i++) {
        struct cairn_run *run = run_of(&list->items[i]);
        if (status != CAIRN_OK)
            atomic_store(&run->status, status);
        else if (run->conclude != NULL)
            run->conclude(run, run->item_first + list->items[i].item, thread);
    }
}

/* As far as its last stage, which is begun. */
static void begin_list(struct cairn_compute_lane *lane, struct list *list)
{
    struct cairn_works *works = &lane->works;
    struct cairn_run *first = run_of(&list->items[0]);
    works->is_guarded = works->in_place && first->is_guarded; // then it is the only one
    for (uint32_t i = 0; i < list->count; i++) list->more[i] = true;
    for (uint32_t stage = 0; describe(works, list, stage); stage++) cairn_works_flush(works);
    if (works->is_guarded) {
        cairn_works_flush(works);
        first->failed_at = cairn_works_now(works)->failed_at;
    }
    works->is_guarded = false;
    cairn_works_send(works);
}

static void finish_list(struct cairn_compute *compute, struct cairn_compute_lane *lane,
                        const struct list *list, uint32_t thread)
{
    struct cairn_sentence why;
    const cairn_status status = cairn_works_await(&lane->works, &why);
    if (status != CAIRN_OK) {
        pthread_mutex_lock(&compute->lock);
        compute->why = why;
        pthread_mutex_unlock(&compute->lock);
    }
    conclude(list, thread, status);
}

/* The next list, too, is begun before the one ahead is waited for, as long as more waits than other threads
 * take. */
static void run_lists(struct cairn_compute *compute, struct cairn_compute_lane *lane,
                      uint32_t thread)
{
    const uint32_t most = lane->works.list_count > 1 ? cairn_home_info(compute->home)->works_best
                                                     : 0;
    begin_list(lane, &lane->lists[0]);
    for (uint32_t at = 0; lane->lists[at].count > 0; at = 1 - at) {
        struct list *list = &lane->lists[at], *next = &lane->lists[1 - at];
        next->count = cairn_pool_take_ahead(compute->pool, next->items, most);
        if (next->count > 0) begin_list(lane, next);
        finish_list(compute, lane, list, thread);
        cairn_pool_end(compute->pool, list->items, list->count);
    }
}

static void run_items(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    struct cairn_compute *compute = ((struct cairn_run *)task)->compute;
    struct cairn_compute_lane *lane = &compute->lanes[thread];
    struct list *list = &lane->lists[0];
    list->items[0] = (struct cairn_pool_item) { task, item };
    list->count = 1;
    if (task->ends_items) {
        list->count += cairn_pool_take(compute->pool, list->items + 1,
                                       cairn_home_info(compute->home)->works_best - 1);
        run_lists(compute, lane, thread);
    } else {
        begin_list(lane, list);
        finish_list(compute, lane, list, thread);
    }
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
    run->task = (struct cairn_task) { .run = run_items,
                                      .done = run_done,
                                      .item_count = run->item_count,
                                      .is_small = is_small,
                                      .ends_items = !is_small &&
                                                    !cairn_compute_is_host(run->compute) };
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
