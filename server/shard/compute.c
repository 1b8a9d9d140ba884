#include "server/shard/base.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "server/base/daemon.h"
#include "server/base/log.h"
#include "server/shard/shard.h"

/* The items of one list. The home does the works of a list together. */
struct list {
    struct pool_item *items; /* owned: [works_best] */
    bool *more;              /* owned: [works_best]; true: the item has a further stage */
    uint32_t count;
};

/* The works and lists that one thread uses alone. */
struct compute_lane {
    struct works works;
    struct list lists[CAIRN_WORKS_LISTS]; /* lists[i] has the items of works.lists[i] */
};

/* The lanes after those of the pool's threads (server/base/daemon.h). */
enum { LOOP_LANE, FILES_LANE, SNAPSHOTS_LANE, LANES_BESIDE };

static void works_send(struct works *works);
static cairn_status works_await(struct works *works, struct sentence *why);

/* ---- open and close ---- */

static uint32_t lists_max(const struct home *home)
{
    const uint32_t most = home_info(home)->lists_max;
    return most < CAIRN_WORKS_LISTS ? most : CAIRN_WORKS_LISTS;
}

static cairn_status open_lane(struct compute_lane *lane, struct home *home, uint32_t lists,
                              struct sentence *why)
{
    const uint32_t items = home_info(home)->works_best;
    for (uint32_t i = 0; i < lists; i++) {
        struct list *list = &lane->lists[i];
        list->items = calloc(items, sizeof *list->items);
        list->more = calloc(items, sizeof *list->more);
        if (list->items == NULL || list->more == NULL)
            return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for lists of work");
    }
    return works_open(&lane->works, home, items, lists, why);
}

static void close_lane(struct compute_lane *lane)
{
    works_close(&lane->works);
    for (uint32_t i = 0; i < CAIRN_WORKS_LISTS; i++) {
        free(lane->lists[i].items);
        free(lane->lists[i].more);
    }
}

/* Checks a thread's floating-point settings, because the bits of a sum must not depend on the
 * thread that makes it. */
static void assert_float_env(void)
{
    assert(float_env_ok());
}

/* Starts the threads on the device's NUMA node. The calling thread goes there first, because a new
 * thread runs where its creator runs. */
static cairn_status open_threads(struct compute *compute, uv_loop_t *loop, const char *name,
                                 uint32_t threads, struct sentence *why)
{
    const struct home_info *info = home_info(compute->home);
    struct numa_before before;
    if (!numa_go(info->numa_node, &before))
        log_warn("threads of %s run anywhere, and not on its NUMA node %d, so that copies "
                 "are slower: %s",
                 info->device, info->numa_node,
                 errno == ENOENT ? "this process may use none of that node's processors"
                                 : strerror(errno));
    const cairn_status status = pool_open(loop, name, threads, assert_float_env, &compute->pool,
                                          why);
    numa_return(&before);
    return status;
}

cairn_status compute_open(struct compute *compute, uv_loop_t *loop, struct home *home,
                          const char *name, uint32_t threads, struct sentence *why)
{
    *compute = (struct compute) { .home = home, .lane_count = threads + LANES_BESIDE };
    pthread_mutex_init(&compute->lock, NULL);
    compute->lanes = calloc(compute->lane_count, sizeof *compute->lanes);
    if (compute->lanes == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for threads");
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; i < compute->lane_count && status == CAIRN_OK; i++)
        status = open_lane(&compute->lanes[i], home, i < threads ? lists_max(home) : 1, why);
    for (uint32_t i = 0; i < compute->lane_count; i++) compute->lanes[i].works.lane = i;
    if (status != CAIRN_OK) return status;
    return open_threads(compute, loop, name, threads, why);
}

bool compute_stop(struct compute *compute, void (*on_closed)(void *context), void *context)
{
    if (compute->pool == NULL) return false;
    pool_close(compute->pool, on_closed, context);
    compute->pool = NULL;
    return true;
}

void compute_close(struct compute *compute)
{
    if (compute->home == NULL) return;
    for (uint32_t i = 0; compute->lanes != NULL && i < compute->lane_count; i++)
        close_lane(&compute->lanes[i]);
    free(compute->lanes);
    pthread_mutex_destroy(&compute->lock);
    home_close(compute->home);
    *compute = (struct compute) { 0 };
}

/* ---- on the threads ---- */

static struct work_run *run_of(const struct pool_item *item)
{
    return (struct work_run *)item->task;
}

/* Adds the works of one stage of all items in the list. Returns true if any item has a further
 * stage. */
static bool describe(struct works *works, struct list *list, uint32_t stage)
{
    bool more = false;
    for (uint32_t i = 0; i < list->count; i++) {
        struct work_run *run = run_of(&list->items[i]);
        if (!list->more[i]) continue;
        list->more[i] = run->describe(run, run->item_first + list->items[i].item, stage, works);
        more = more || list->more[i];
    }
    return more;
}

static void conclude_list(const struct list *list, uint32_t thread, cairn_status status)
{
    for (uint32_t i = 0; i < list->count; i++) {
        struct work_run *run = run_of(&list->items[i]);
        if (status != CAIRN_OK)
            atomic_store(&run->status, status);
        else if (run->conclude != NULL)
            run->conclude(run, run->item_first + list->items[i].item, thread);
    }
}

/* Runs all stages of the list but the last, and begins the last stage without waiting for its
 * end. */
static void begin_list_compute(struct compute_lane *lane, struct list *list)
{
    struct works *works = &lane->works;
    struct work_run *first = run_of(&list->items[0]);
    works->is_guarded = works->in_place && first->is_guarded; // a guarded run is alone in its list
    for (uint32_t i = 0; i < list->count; i++) list->more[i] = true;
    for (uint32_t stage = 0; describe(works, list, stage); stage++) works_flush(works);
    if (works->is_guarded) {
        works_flush(works);
        first->failed_at = works_now(works)->failed_at;
    }
    works->is_guarded = false;
    works_send(works);
}

static void finish_list(struct compute *compute, struct compute_lane *lane, const struct list *list,
                        uint32_t thread)
{
    struct sentence why;
    const cairn_status status = works_await(&lane->works, &why);
    if (status != CAIRN_OK) {
        WITH_LOCK(&compute->lock, compute->why = why);
    }
    conclude_list(list, thread, status);
}

/* Runs lists until no items are left for this thread. If more items wait than other threads take,
 * the next list is begun before the current list has ended. */
static void run_lists(struct compute *compute, struct compute_lane *lane, uint32_t thread)
{
    const uint32_t most = lane->works.list_count > 1 ? home_info(compute->home)->works_best : 0;
    begin_list_compute(lane, &lane->lists[0]);
    for (uint32_t at = 0; lane->lists[at].count > 0; at = 1 - at) {
        struct list *list = &lane->lists[at], *next = &lane->lists[1 - at];
        next->count = pool_take_ahead(compute->pool, next->items, most);
        if (next->count > 0) begin_list_compute(lane, next);
        finish_list(compute, lane, list, thread);
        pool_end(compute->pool, list->items, list->count);
    }
}

static void run_items(struct task *task, uint32_t item, uint32_t thread)
{
    struct compute *compute = ((struct work_run *)task)->compute;
    struct compute_lane *lane = &compute->lanes[thread];
    struct list *list = &lane->lists[0];
    list->items[0] = (struct pool_item) { task, item };
    list->count = 1;
    if (task->ends_items) {
        list->count += pool_take(compute->pool, list->items + 1,
                                 home_info(compute->home)->works_best - 1);
        run_lists(compute, lane, thread);
    } else {
        begin_list_compute(lane, list);
        finish_list(compute, lane, list, thread);
    }
}

/* ---- the loop thread ---- */

static void run_done(struct task *task)
{
    struct work_run *run = (struct work_run *)task;
    run->done(run);
}

void compute_submit(struct work_run *run)
{
    const bool is_small = run->task.is_small;
    run->task = (struct task) { .run = run_items,
                                .done = run_done,
                                .item_count = run->item_count,
                                .is_small = is_small,
                                .ends_items = !is_small && !compute_is_host(run->compute) };
    atomic_store(&run->status, CAIRN_OK);
    run->failed_at = NULL;
    assert(!run->is_guarded || run->item_count == 1);
    pool_submit(run->compute->pool, &run->task);
}

uint32_t compute_lanes(const struct compute *compute)
{
    return compute->lane_count;
}

uint32_t compute_items_wanted(const struct compute *compute)
{
    // One list for each thread, and one more item that is being handed over.
    return pool_thread_count(compute->pool) * home_info(compute->home)->works_best + 1;
}

static bool is_begun(const struct compute_lane *lane)
{
    return atomic_load_explicit(&lane->works.is_begun, memory_order_relaxed);
}

/* Takes the stream's staging memory, so that no list lacks this memory when it runs. Returns the
 * statuses of home_stream_begin. */
static cairn_status works_begin(struct works *works, struct sentence *why)
{
    const cairn_status status = home_stream_begin(works->stream, why);
    if (status == CAIRN_OK) atomic_store_explicit(&works->is_begun, true, memory_order_relaxed);
    return status;
}

cairn_status compute_begin(struct compute *compute, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; i < compute->lane_count && status == CAIRN_OK; i++)
        if (!is_begun(&compute->lanes[i])) status = works_begin(&compute->lanes[i].works, why);
    return status;
}

uint64_t compute_staging_left(const struct compute *compute)
{
    uint64_t streams = 0;
    for (uint32_t i = 0; i < compute->lane_count; i++) streams += !is_begun(&compute->lanes[i]);
    return streams * home_info(compute->home)->stream_bytes;
}

static struct works *beside(const struct compute *compute, uint32_t lane)
{
    return &compute->lanes[compute->lane_count - LANES_BESIDE + lane].works;
}

struct works *compute_loop(const struct compute *compute)
{
    return beside(compute, LOOP_LANE);
}

struct works *compute_files(const struct compute *compute)
{
    return beside(compute, FILES_LANE);
}

struct works *compute_snapshots(const struct compute *compute)
{
    return beside(compute, SNAPSHOTS_LANE);
}

bool compute_is_host(const struct compute *compute)
{
    return home_info(compute->home)->is_host;
}

void compute_why(struct compute *compute, struct sentence *why_out)
{
    HOLD_LOCK(&compute->lock);
    *why_out = compute->why;
}

/* ==== works ==== */

#define WORKS_OF_AN_ITEM 4 /* an item rarely has more works; if it has, the list is run in parts */

/* Maps pages for scratch memory. Only complete pages can be pinned, and a page from malloc could be
 * shared by the scratch memory of two lists. */
static uint8_t *map_scratch(void)
{
    void *scratch = mmap(NULL, CAIRN_WORKS_SCRATCH_BYTES, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return scratch == MAP_FAILED ? NULL : scratch;
}

static bool open_list(const struct works *works, struct works_list *list)
{
    list->works = calloc(works->capacity, sizeof *list->works);
    list->sources = calloc(works->capacity, sizeof *list->sources);
    if (!works->in_place) list->scratch = map_scratch();
    return list->works != NULL && list->sources != NULL &&
           (list->scratch != NULL || works->in_place);
}

cairn_status works_open(struct works *works, struct home *home, uint32_t items, uint32_t lists,
                        struct sentence *why)
{
    bool ok = true;
    assert(lists >= 1 && lists <= CAIRN_WORKS_LISTS);
    *works = (struct works) { .home = home,
                              .in_place = home_info(home)->is_host,
                              .list_count = lists,
                              .capacity = WORKS_OF_AN_ITEM * items };
    for (uint32_t i = 0; i < lists; i++) ok = open_list(works, &works->lists[i]) && ok;
    if (!ok) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for lists of work");
    return home_stream_open(home, &works->stream, why);
}

static void close_list(struct works *works, struct works_list *list)
{
    if (list->is_pinned) home_unpin(works->home, list->scratch, CAIRN_WORKS_SCRATCH_BYTES);
    free(list->works);
    free(list->sources);
    if (list->scratch != NULL) munmap(list->scratch, CAIRN_WORKS_SCRATCH_BYTES);
}

void works_close(struct works *works)
{
    home_stream_close(works->stream);
    for (uint32_t i = 0; i < CAIRN_WORKS_LISTS; i++) close_list(works, &works->lists[i]);
    *works = (struct works) { 0 };
}

/* ---- running ---- */

static uint32_t number_now(const struct works *works)
{
    return (works->first + works->sent) % works->list_count;
}

static struct works_list *current_list(struct works *works)
{
    return &works->lists[number_now(works)];
}

const struct works_list *works_now(const struct works *works)
{
    return &works->lists[number_now(works)];
}

static void begin_list_works(void *arg)
{
    struct works *works = arg;
    struct works_list *list = current_list(works);
    list->status = home_run_begin(works->stream, list->works, list->count, &list->why);
    list->is_under_way = list->status == CAIRN_OK;
}

/* Begins the current list, unless it is empty or has failed. */
static void begin_works(struct works *works)
{
    struct works_list *list = current_list(works);
    if (list->count == 0 || list->status != CAIRN_OK || list->failed_at != NULL) return;
    if (works->is_guarded)
        list->failed_at = guard_run(begin_list_works, works);
    else
        begin_list_works(works);
}

static void end_list(struct works *works, struct works_list *list)
{
    if (list->is_under_way) {
        list->status = home_run_finish(works->stream, &list->why);
        if (list->status == CAIRN_OK)
            atomic_store_explicit(&works->is_begun, true, memory_order_relaxed);
    }
    list->is_under_way = false;
    list->count = 0;
    list->scratch_used = 0;
}

/* Runs the current list. If a list was sent before, waits for that list first, because the home
 * finishes lists in their order. */
void works_flush(struct works *works)
{
    begin_works(works);
    if (works->sent > 0) end_list(works, &works->lists[works->first]);
    end_list(works, current_list(works));
}

static cairn_status list_result(struct works_list *list, struct sentence *why)
{
    const cairn_status status = list->status;
    if (status != CAIRN_OK && why != NULL) *why = list->why;
    list->status = CAIRN_OK;
    list->failed_at = NULL;
    return status;
}

cairn_status works_run(struct works *works, struct sentence *why)
{
    works_flush(works);
    return list_result(current_list(works), why);
}

/* Begins the current list; works that are added later belong to the next list. The home takes only
 * list_count lists at a time, so before sending one more the caller must await the list that was
 * sent first. */
static void works_send(struct works *works)
{
    assert(works->sent < works->list_count);
    begin_works(works);
    works->sent++;
}

/* Waits for the list that was sent first, and returns the status of that list, as works_run does
 * for the current list. */
static cairn_status works_await(struct works *works, struct sentence *why)
{
    struct works_list *list = &works->lists[works->first];
    assert(works->sent > 0);
    end_list(works, list);
    works->first = (works->first + 1) % works->list_count;
    works->sent--;
    return list_result(list, why);
}

/* ---- adding ---- */

struct home_work *works_add(struct works *works, enum work_kind kind)
{
    struct works_list *list = current_list(works);
    if (list->count == works->capacity) works_flush(works);
    struct home_work *work = &list->works[list->count++];
    *work = (struct home_work) { .kind = kind };
    return work;
}

void works_copy(struct works *works, void *to, const void *from, size_t bytes)
{
    struct home_work *work = works_add(works, CAIRN_WORK_COPY);
    work->copy.to = to;
    work->copy.from = from;
    work->copy.bytes = bytes;
}

/* Runs of bytes that have the same length and, in the range, the same distance from each other. In
 * packed form there are no gaps between the runs. All fields but `count` are in bytes. */
struct runs {
    size_t range, packed, bytes;
    uint64_t count, stride; /* stride is 0 while there is only one run */
};

/* Adds a run to `runs` if it has the same length and distance as the runs before it; else returns
 * false. */
static bool take_run(struct runs *runs, size_t range, size_t bytes)
{
    const size_t last = runs->range + (size_t)((runs->count - 1) * runs->stride);
    if (runs->count == 0 || bytes != runs->bytes) return false;
    if (runs->count > 1 && range - last != runs->stride) return false;
    runs->stride = range - last;
    runs->count++;
    return true;
}

/* Returns the next runs of the walk; their count is 0 if no runs are left. *at is the offset in
 * packed form at which these runs begin, and is set to the offset at which they end. *ahead is a
 * run that was read too far. */
static struct runs next_runs(struct box_runs *walk, const struct works_box *of, struct runs *ahead,
                             size_t *at)
{
    struct runs runs = *ahead;
    uint64_t elem, box_elem, count;
    *ahead = (struct runs) { 0 };
    while (box_runs_next(walk, &elem, &box_elem, &count)) {
        const size_t range = (size_t)(elem - of->first_elem) * of->elem_bytes,
                     bytes = (size_t)count * of->elem_bytes;
        if (take_run(&runs, range, bytes)) continue;
        *ahead = (struct runs) { .range = range, .bytes = bytes, .count = 1 };
        if (runs.count > 0) break;
        runs = *ahead;
        *ahead = (struct runs) { 0 };
    }
    runs.packed = *at;
    *at += (size_t)runs.count * runs.bytes;
    return runs;
}

static struct home_work *add_runs(struct works *works, const struct runs *runs)
{
    struct home_work *work = works_add(works, CAIRN_WORK_RUNS);
    work->runs.run_bytes = runs->bytes;
    work->runs.run_count = runs->count;
    work->runs.to_stride = work->runs.from_stride = runs->bytes;
    return work;
}

/* Adds copies between a range of a plane, where the box's elements have gaps between them, and the
 * packed elements. If `packs` is true, the copies write to `packed`, else to `range`. */
static size_t add_box(struct works *works, const struct works_box *of, bool packs,
                      const uint8_t *packed, const uint8_t *range)
{
    struct box_runs walk;
    struct runs ahead = { 0 }, runs;
    size_t at = 0;
    box_runs_begin(&walk, of->box, of->shape, of->first_elem, of->elem_count);
    while ((runs = next_runs(&walk, of, &ahead, &at)).count > 0) {
        struct home_work *work = add_runs(works, &runs);
        const uint8_t *dense = packed + runs.packed, *strided = range + runs.range;
        work->runs.to = (void *)(uintptr_t)(packs ? dense : strided);
        work->runs.from = packs ? strided : dense;
        *(packs ? &work->runs.from_stride : &work->runs.to_stride) = runs.stride;
    }
    return at;
}

size_t works_pack(struct works *works, const struct works_box *of, void *packed, const void *range)
{
    return add_box(works, of, true, packed, range);
}

size_t works_unpack(struct works *works, const struct works_box *of, void *range,
                    const void *packed)
{
    return add_box(works, of, false, packed, range);
}

void works_fold(struct works *works, float *acc, const struct fold_source *sources, uint32_t count,
                bool first, size_t elems)
{
    struct home_work *work = works_add(works, CAIRN_WORK_FOLD);
    const struct works_list *list = current_list(works);
    struct fold_source *kept = list->sources[work - list->works];
    assert(count <= CAIRN_STEP_FOLD_MAX);
    memcpy(kept, sources, count * sizeof *sources);
    work->fold.acc = acc;
    work->fold.sources = kept;
    work->fold.source_count = count;
    work->fold.first = first;
    work->fold.elems = elems;
}

/* ---- by the host ---- */

static uint8_t *take_scratch(struct works *works, size_t bytes)
{
    struct works_list *list = current_list(works);
    if (!list->is_pinned) { // only now, because most threads never use theirs
        struct sentence why;
        list->is_pinned = true;
        if (home_pin(works->home, list->scratch, CAIRN_WORKS_SCRATCH_BYTES, &why) != CAIRN_OK)
            log_warn("%s", why.text);
    }
    assert(bytes <= CAIRN_WORKS_SCRATCH_BYTES);
    if (bytes > CAIRN_WORKS_SCRATCH_BYTES - list->scratch_used) works_flush(works);
    uint8_t *scratch = list->scratch + list->scratch_used;
    list->scratch_used += (bytes + 63) / 64 * 64;
    return scratch;
}

static uint8_t *fetch(struct works *works, const void *at, size_t bytes)
{
    works_flush(works);
    uint8_t *scratch = take_scratch(works, bytes);
    works_copy(works, scratch, at, bytes);
    works_flush(works);
    return take_scratch(works, bytes); // the same address, because the scratch was empty again
}

const void *works_get(struct works *works, const void *at, size_t bytes)
{
    if (!works->in_place) return fetch(works, at, bytes);
    works_flush(works);
    return at;
}

static void *put_back(struct works *works, void *at, uint8_t *scratch, size_t bytes)
{
    works_copy(works, at, scratch, bytes);
    return scratch;
}

void *works_put(struct works *works, void *at, size_t bytes)
{
    if (works->in_place) return at;
    if (current_list(works)->count == works->capacity) works_flush(works);
    return put_back(works, at, take_scratch(works, bytes), bytes);
}

/* ---- the way to other hosts ---- */

bool device_goes_directly(const struct shard_daemon *shard, const char **why_out)
{
    *why_out = "no state of this shard lies on a card";
    if (shard->device.home == NULL) return false;
    *why_out = "the card has no memory that others may map (cuMemCreate with POSIX handles)";
    if (shard->links.imports.uuid_count == 0) return false;
    return fabric_takes_device(shard->fabric, why_out);
}
