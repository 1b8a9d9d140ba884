#include "server/shard/base.h"

#include <inttypes.h>
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "server/base/listener.h"
#include "server/base/log.h"
#include "server/shard/shard.h"

/* Items that are done together. */
struct list {
    struct pool_item *items; /* owned: [works_best] */
    bool *more;              /* owned, likewise: the item has a further stage */
    uint32_t count;
};

/* The works and lists that each thread has for itself. */
struct compute_lane {
    struct works works;
    struct list lists[CAIRN_WORKS_LISTS]; /* of the works' lists */
};

enum {
    LOOP_LANE,
    FILES_LANE,
    SNAPSHOTS_LANE,
    LANES_BESIDE
}; /* behind those of the threads, as server/base/daemon.h numbers them */

static void works_send(struct works *works);
static cairn_status works_await(struct works *works, struct sentence *why);
static cairn_status works_begin(struct works *works, struct sentence *why);

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

/* Sums have the same bits whichever thread makes them. */
static void assert_float_env(void)
{
    assert(float_env_ok());
}

/* Next to the device, as threads run where the one that starts them does. */
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

/* True if an item has a further stage. */
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

/* As far as its last stage, which is begun. */
static void begin_list_compute(struct compute_lane *lane, struct list *list)
{
    struct works *works = &lane->works;
    struct work_run *first = run_of(&list->items[0]);
    works->is_guarded = works->in_place && first->is_guarded; // then it is the only one
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
        pthread_mutex_lock(&compute->lock);
        compute->why = why;
        pthread_mutex_unlock(&compute->lock);
    }
    conclude_list(list, thread, status);
}

/* The next list, too, is begun before the one ahead is waited for, as long as more waits than other threads
 * take. */
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
    // One list for each thread, and an item that is being handed over.
    return pool_thread_count(compute->pool) * home_info(compute->home)->works_best + 1;
}

static bool is_begun(const struct compute_lane *lane)
{
    return atomic_load_explicit(&lane->works.is_begun, memory_order_relaxed);
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
    pthread_mutex_lock(&compute->lock);
    *why_out = compute->why;
    pthread_mutex_unlock(&compute->lock);
}

/* ==== works ==== */

#define WORKS_OF_AN_ITEM 4 /* rarely more: then the list is run in parts */

/* Maps pages for a scratch, because pinning pins whole pages: one of malloc's could hold a part of
 * another list's scratch, too. */
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

/* Takes what lists are staged in, so that none lacks it when it runs. As home_stream_begin. */
static cairn_status works_begin(struct works *works, struct sentence *why)
{
    const cairn_status status = home_stream_begin(works->stream, why);
    if (status == CAIRN_OK) atomic_store_explicit(&works->is_begun, true, memory_order_relaxed);
    return status;
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

/* Nothing more is begun of what has failed. */
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

/* The home finishes lists in their order. */
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

/* Begins the list; works that are added from now on go into the next one. A home takes only so many
 * lists: the caller awaits the first before it sends one more. */
static void works_send(struct works *works)
{
    assert(works->sent < works->list_count);
    begin_works(works);
    works->sent++;
}

/* Waits for the list that was sent first, and returns as works_run does. */
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

/* Runs of one length at one distance in the range; packed they follow each other. Offsets in bytes. */
struct runs {
    size_t range, packed, bytes;
    uint64_t count, stride; /* stride: 0 while there is one */
};

/* Adds the run if it goes on with them. */
static bool take_run(struct runs *runs, size_t range, size_t bytes)
{
    const size_t last = runs->range + (size_t)((runs->count - 1) * runs->stride);
    if (runs->count == 0 || bytes != runs->bytes) return false;
    if (runs->count > 1 && range - last != runs->stride) return false;
    runs->stride = range - last;
    runs->count++;
    return true;
}

/* The next of them; count 0: none is left. *at is where they begin in `packed`, and then where they end. */
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

/* Between a range of a plane, by strides, and what is packed: *packed or *range is written. */
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

/* Pins a scratch when it is first used: most threads never use theirs. */
static void pin_scratch(struct works *works, struct works_list *list)
{
    struct sentence why;
    list->is_pinned = true;
    if (home_pin(works->home, list->scratch, CAIRN_WORKS_SCRATCH_BYTES, &why) != CAIRN_OK)
        log_warn("%s", why.text);
}

static uint8_t *take_scratch(struct works *works, size_t bytes)
{
    struct works_list *list = current_list(works);
    if (!list->is_pinned) pin_scratch(works, list);
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
    return take_scratch(works, bytes); // the same: all of it was free
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

/* ==== bytes ==== */

/* ---- counting ---- */

enum bytes_path bytes_path_of(const char *path)
{
    if (strcmp(path, "mapped") == 0) return BYTES_PATH_SHARED;
    if (strcmp(path, "device") == 0) return BYTES_PATH_DEVICE;
    if (strcmp(path, CAIRN_FABRIC_PATH_DIRECT) == 0) return BYTES_PATH_DIRECT;
    return strcmp(path, "one-sided") == 0 ? BYTES_PATH_ONE_SIDED : BYTES_PATH_CARRIED;
}

static bool is_shared(enum bytes_path path)
{
    return path == BYTES_PATH_SHARED || path == BYTES_PATH_DEVICE;
}

static void add_pushed(struct bytes *to, uint64_t bytes, enum bytes_path path)
{
    *(is_shared(path) ? &to->pushed_shared : &to->pushed_carried) += bytes;
    if (path == BYTES_PATH_ONE_SIDED) to->pushed_one_sided += bytes;
    if (path == BYTES_PATH_DEVICE) to->pushed_device += bytes;
    if (path == BYTES_PATH_DIRECT) to->pushed_direct += bytes;
}

static void add_fetched(struct bytes *to, uint64_t bytes, enum bytes_path path)
{
    *(is_shared(path) ? &to->fetched_shared : &to->fetched_carried) += bytes;
    if (path == BYTES_PATH_ONE_SIDED) to->fetched_one_sided += bytes;
    if (path == BYTES_PATH_DEVICE) to->fetched_device += bytes;
    if (path == BYTES_PATH_DIRECT) to->fetched_direct += bytes;
}

void bytes_pushed(struct shard_job *job, uint64_t member, uint64_t bytes, enum bytes_path path)
{
    struct shard_member *m = member_find(job, member);
    job->shard->stats.pushed_bytes += bytes;
    add_pushed(&job->bytes, bytes, path);
    if (m != NULL) add_pushed(&m->bytes, bytes, path);
}

void bytes_fetched(struct shard_job *job, uint64_t member, uint64_t bytes, enum bytes_path path)
{
    struct shard_member *m = member_find(job, member);
    job->shard->stats.fetched_bytes += bytes;
    add_fetched(&job->bytes, bytes, path);
    if (m != NULL) add_fetched(&m->bytes, bytes, path);
}

void bytes_put(struct shard_job *job, uint64_t member, uint64_t bytes)
{
    struct shard_member *m = member_find(job, member);
    job->shard->stats.pushed_bytes += bytes;
    job->bytes.put += bytes;
    if (m != NULL) m->bytes.put += bytes;
}

/* ---- telling ---- */

static bool is_told(const struct shard_job *job)
{
    return !job->staged && job->state != CAIRN_JOB_LEAVING;
}

static Cairn__BytesTold *add_bytes(struct bytes_list *out, const struct shard_job *job,
                                   const struct bytes *bytes)
{
    Cairn__BytesTold *told = &out->told[out->count];
    out->pointers[out->count++] = told;
    cairn__bytes_told__init(told);
    told->job = job->number;
    told->steps = job->bytes.steps;
    told->pushed_shared = bytes->pushed_shared;
    told->pushed_carried = bytes->pushed_carried;
    told->fetched_shared = bytes->fetched_shared;
    told->fetched_carried = bytes->fetched_carried;
    told->put = bytes->put;
    told->pushed_one_sided = bytes->pushed_one_sided;
    told->fetched_one_sided = bytes->fetched_one_sided;
    told->pushed_device = bytes->pushed_device;
    told->fetched_device = bytes->fetched_device;
    told->pushed_direct = bytes->pushed_direct;
    told->fetched_direct = bytes->fetched_direct;
    return told;
}

static void add_workers(struct bytes_list *out, const struct shard_job *job)
{
    for (size_t i = 0; i < job->members.capacity && out->count < CAIRN_BYTES_TOLD_MAX; i++) {
        const struct shard_member *member = job->members.list[i];
        if (member == NULL || member->role != CAIRN_ROLE_WIRE_WORKER) continue;
        if (member->is_relay) continue; // what its workers gave it, it tells of them
        Cairn__BytesTold *told = add_bytes(out, job, &member->bytes);
        told->steps -= member->bytes.steps;
        told->of_worker = true;
        told->rank = member->rank;
    }
}

void bytes_list(const struct shard_daemon *shard, struct bytes_list *out)
{
    size_t most = 0;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        most += 1 + job->members.count;
    if (most > CAIRN_BYTES_TOLD_MAX) most = CAIRN_BYTES_TOLD_MAX; // there are fewer jobs
    *out = (struct bytes_list) { .told = calloc(most + 1, sizeof *out->told),
                                 .pointers = calloc(most + 1, sizeof *out->pointers) };
    if (out->told == NULL || out->pointers == NULL) return;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        if (is_told(job)) add_bytes(out, job, &job->bytes);
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        if (is_told(job)) add_workers(out, job);
}

_Static_assert(CAIRN_MEMORY_TOLD_JOBS == CAIRN_SHARD_JOBS_MAX, "a place each");

static Cairn__MemoryTold *memory_of(struct memory_list *out, uint64_t job)
{
    for (size_t i = 0; i < out->count; i++)
        if (out->told[i].job == job) return &out->told[i];
    Cairn__MemoryTold *told = &out->told[out->count];
    out->pointers[out->count++] = told;
    cairn__memory_told__init(told);
    told->job = job;
    return told;
}

void memory_list(const struct shard_daemon *shard, struct memory_list *out)
{
    out->count = 0;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next) {
        Cairn__MemoryTold *told = memory_of(out, job->number);
        told->state += job->memory.state;
        told->published += job->memory.published;
        told->landing += job->memory.landing;
        told->staging += job->memory.staging;
        told->tables += job->memory.tables;
        told->device += job->memory.device;
    }
}

void bytes_list_release(struct bytes_list *list)
{
    free(list->told);
    free(list->pointers);
}

/* ==== arriving ==== */

#define SMALL_BYTES 32768 /* of pages: prepared sooner than a thread is told */

static void arriving_free(struct arriving *arriving)
{
    if (arriving->made != NULL) arriving->kind->unmake(arriving->made);
    for (int i = 0; i < CAIRN_ARRIVING_PAGED; i++) paged_release(&arriving->paged[i]);
    message_free(arriving->message);
    free(arriving);
}

void arriving_drop(struct shard_daemon *shard, struct arriving *arriving)
{
    struct arriving **link = &shard->arriving;
    while (*link != arriving) link = &(*link)->next;
    *link = arriving->next;
    if (arriving->phase != CAIRN_ARRIVING_PREPARING) {
        arriving_free(arriving);
        return;
    }
    arriving->next = shard->arriving_dropped;
    shard->arriving_dropped = arriving;
}

/* One that was dropped, or all of them (NULL). */
static bool free_dropped(struct shard_daemon *shard, const struct arriving *which)
{
    bool any = false;
    for (struct arriving **link = &shard->arriving_dropped; *link != NULL;) {
        struct arriving *arriving = *link;
        if (which != NULL && arriving != which) {
            link = &arriving->next;
            continue;
        }
        *link = arriving->next;
        arriving_free(arriving);
        any = true;
    }
    return any;
}

bool arriving_lingers(const struct shard_daemon *shard, const struct arriving_kind *kind)
{
    const struct arriving *arriving = shard->arriving_dropped;
    while (arriving != NULL && arriving->kind != kind) arriving = arriving->next;
    return arriving != NULL;
}

void arriving_release(struct shard_daemon *shard)
{
    (void)free_dropped(shard, NULL);
}

void arriving_drop_all(struct shard_daemon *shard)
{
    while (shard->arriving != NULL) arriving_drop(shard, shard->arriving);
}

static void answer_arriving(struct shard_daemon *shard, const struct arriving_kind *kind,
                            uint32_t request, cairn_status status, const struct sentence *why)
{
    struct request answered = session_request(shard, request);
    if (status != CAIRN_OK) log_warn("%s was refused: %s", kind->name, why->text);
    session_answer(shard, &answered, status, why);
}

void arriving_end(struct shard_daemon *shard, struct arriving *arriving, cairn_status status,
                  const struct sentence *why)
{
    answer_arriving(shard, arriving->kind, arriving->request, status, why);
    arriving_drop(shard, arriving);
}

static bool pages_are_here(const struct arriving *arriving)
{
    for (int i = 0; i < CAIRN_ARRIVING_PAGED; i++)
        if (!paged_whole(&arriving->paged[i])) return false;
    return true;
}

bool arriving_whole(const struct arriving *arriving)
{
    return arriving->phase == CAIRN_ARRIVING_PREPARED;
}

void *arriving_made(const struct arriving *arriving)
{
    return arriving->made;
}

void *arriving_take(struct arriving *arriving)
{
    void *made = arriving->made;
    arriving->made = NULL;
    return made;
}

/* ---- on a thread ---- */

static void run_prepare(struct task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    struct arriving *arriving = (struct arriving *)task;
    arriving->status = arriving->kind->prepare(arriving, &arriving->made, &arriving->why);
}

static void run_make(struct task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    struct arriving *arriving = (struct arriving *)task;
    arriving->status = arriving->kind->make(arriving, arriving->made, &arriving->why);
}

static void on_through(struct task *task)
{
    struct arriving *arriving = (struct arriving *)task;
    struct shard_daemon *shard = arriving->shard;
    arriving->phase = CAIRN_ARRIVING_PREPARED;
    if (free_dropped(shard, arriving))
        shard->up->memory_back(shard); // others may have waited for what it had
    else if (arriving->status != CAIRN_OK)
        arriving_end(shard, arriving, arriving->status, &arriving->why);
    else
        arriving->kind->whole(shard, arriving);
}

static void begin_arriving(struct arriving *arriving,
                           void (*run)(struct task *task, uint32_t item, uint32_t thread))
{
    arriving->phase = CAIRN_ARRIVING_PREPARING;
    arriving->task = (struct task) {
        .run = run, .done = on_through, .item_count = 1, .is_small = arriving->is_small
    };
    pool_submit(arriving->shard->memory.pool, &arriving->task);
}

void arriving_make(struct arriving *arriving)
{
    begin_arriving(arriving, run_make);
}

/* All pages are here. */
static void go_on(struct shard_daemon *shard, struct arriving *arriving)
{
    uint64_t bytes = 0;
    for (int i = 0; i < CAIRN_ARRIVING_PAGED; i++) bytes += arriving->paged[i].have_bytes;
    arriving->is_small = bytes <= SMALL_BYTES;
    if (arriving->kind->prepare == NULL || bytes == 0) {
        arriving->phase = CAIRN_ARRIVING_PREPARED;
        arriving->kind->whole(shard, arriving);
        return;
    }
    begin_arriving(arriving, run_prepare);
}

static cairn_status judge_arriving(const struct shard_daemon *shard,
                                   const struct arriving_kind *kind, struct sentence *why)
{
    size_t count = 0;
    for (const struct arriving *a = shard->arriving; a != NULL; a = a->next)
        count += a->kind == kind;
    if (count < CAIRN_ARRIVING_MAX) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_BUSY, "%s: %zu are on their way already", kind->name, count);
}

static cairn_status set_paged(struct arriving *arriving, const uint64_t *bytes,
                              struct sentence *why)
{
    const struct arriving_kind *kind = arriving->kind;
    for (int i = 0; i < CAIRN_ARRIVING_PAGED && kind->what[i] != 0; i++)
        if ((bytes[i] == 0 && !kind->may_be_empty) ||
            paged_init(&arriving->paged[i], bytes[i]) != CAIRN_OK)
            return fail_with(why, CAIRN_ERR_INVALID,
                             "%s with pages of %" PRIu64 " bytes: 1 to %" PRIu64, kind->name,
                             bytes[i], CAIRN_PAGED_BYTES_MAX);
    return CAIRN_OK;
}

void arriving_begin(struct shard_daemon *shard, const struct arriving_kind *kind, uint32_t request,
                    ProtobufCMessage *message, const uint64_t bytes[CAIRN_ARRIVING_PAGED])
{
    struct sentence why;
    cairn_status status = judge_arriving(shard, kind, &why);
    struct arriving *arriving = status == CAIRN_OK ? calloc(1, sizeof *arriving) : NULL;
    if (arriving == NULL) {
        if (status == CAIRN_OK) status = fail_with(&why, CAIRN_ERR_NO_MEMORY, "out of memory");
        answer_arriving(shard, kind, request, status, &why);
        message_free(message);
        return;
    }
    arriving->kind = kind;
    arriving->shard = shard;
    arriving->request = request;
    arriving->message = message;
    struct arriving **last = &shard->arriving;
    while (*last != NULL) last = &(*last)->next;
    *last = arriving;
    status = set_paged(arriving, bytes, &why);
    if (status != CAIRN_OK)
        arriving_end(shard, arriving, status, &why);
    else if (pages_are_here(arriving))
        go_on(shard, arriving);
}

void arriving_on_page(struct shard_daemon *shard, uint32_t request, const Cairn__Page *page)
{
    struct arriving *arriving = shard->arriving;
    while (arriving != NULL && arriving->request != request) arriving = arriving->next;
    if (arriving == NULL) return; // of one that was refused
    cairn_status status = CAIRN_ERR_PROTOCOL;
    for (int i = 0; i < CAIRN_ARRIVING_PAGED; i++)
        if (arriving->phase == CAIRN_ARRIVING_PAGES && page->what != 0 &&
            page->what == arriving->kind->what[i])
            status = paged_add(&arriving->paged[i], page);
    if (status != CAIRN_OK) {
        struct sentence why;
        sentence_set(&why, "%s: page at %" PRIu64 " of part %u does not follow those before",
                     arriving->kind->name, page->offset, page->what);
        arriving_end(shard, arriving, status, &why);
    } else if (pages_are_here(arriving)) {
        go_on(shard, arriving);
    }
}

/* ==== job ==== */

struct shard_job *shard_job_find(struct shard_daemon *shard, uint64_t number)
{
    struct shard_job *job = shard->jobs;
    while (job != NULL && (job->number != number || job->state == CAIRN_JOB_LEAVING || job->staged))
        job = job->next;
    return job;
}

size_t shard_payload_max(const struct shard_job *job)
{
    return CAIRN_PAYLOAD_MAX(job->spec.group_count, job->spec.tensor_count,
                             job->spec.client_state_max);
}

struct compute *shard_job_home(const struct shard_job *job, uint64_t local_elem)
{
    const bool is_on_device = !job->planes.parked && local_elem < job->planes.host_from;
    return is_on_device ? &job->shard->device : &job->shard->host;
}

void shard_job_busy(struct shard_job *job)
{
    job->busy++;
}

void shard_job_idle(struct shard_job *job)
{
    assert(job->busy > 0);
    if (--job->busy == 0) job->shard->up->unused(job);
}

void shard_job_settle(struct shard_job *job)
{
    job->shard->up->settle(job);
}

void shard_job_fault(struct shard_job *job, const char *why)
{
    job->shard->up->fault(job, why);
}

bool shard_job_failed(struct shard_job *job, cairn_status status, const struct sentence *why)
{
    if (status == CAIRN_OK) return false;
    const bool all = home_has_failed(job->compute->home);
    for (struct shard_job *other = job->shard->jobs; other != NULL; other = other->next) {
        const bool is_hit = other == job || (all && other->compute == job->compute);
        if (is_hit && other->state != CAIRN_JOB_LOADING) shard_job_fault(other, why->text);
    }
    return true;
}

bool shard_job_run_failed(struct shard_job *job, const struct work_run *run)
{
    struct sentence why;
    if (run->status == CAIRN_OK) return false;
    compute_why(run->compute, &why);
    return shard_job_failed(job, run->status, &why);
}
