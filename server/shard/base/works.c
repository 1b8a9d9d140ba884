#include "server/shard/base/works.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "server/base/guard.h"
#include "server/base/log.h"

#define WORKS_OF_AN_ITEM 4 /* rarely more: then the list is run in parts */

/* Maps pages for a scratch, because pinning pins whole pages: one of malloc's could hold a part of
 * another list's scratch, too. */
static uint8_t *map_scratch(void)
{
    void *scratch = mmap(NULL, CAIRN_WORKS_SCRATCH_BYTES, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return scratch == MAP_FAILED ? NULL : scratch;
}

static bool open_list(const struct cairn_works *works, struct cairn_works_list *list)
{
    list->works = calloc(works->capacity, sizeof *list->works);
    list->sources = calloc(works->capacity, sizeof *list->sources);
    if (!works->in_place) list->scratch = map_scratch();
    return list->works != NULL && list->sources != NULL &&
           (list->scratch != NULL || works->in_place);
}

cairn_status cairn_works_open(struct cairn_works *works, struct cairn_home *home, uint32_t items,
                              uint32_t lists, struct cairn_sentence *why)
{
    bool ok = true;
    assert(lists >= 1 && lists <= CAIRN_WORKS_LISTS);
    *works = (struct cairn_works) { .home = home,
                                    .in_place = cairn_home_info(home)->is_host,
                                    .list_count = lists,
                                    .capacity = WORKS_OF_AN_ITEM * items };
    for (uint32_t i = 0; i < lists; i++) ok = open_list(works, &works->lists[i]) && ok;
    if (!ok) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for lists of work");
    return cairn_home_stream_open(home, &works->stream, why);
}

cairn_status cairn_works_begin(struct cairn_works *works, struct cairn_sentence *why)
{
    const cairn_status status = cairn_home_stream_begin(works->stream, why);
    if (status == CAIRN_OK) atomic_store_explicit(&works->is_begun, true, memory_order_relaxed);
    return status;
}

static void close_list(struct cairn_works *works, struct cairn_works_list *list)
{
    if (list->is_pinned) cairn_home_unpin(works->home, list->scratch, CAIRN_WORKS_SCRATCH_BYTES);
    free(list->works);
    free(list->sources);
    if (list->scratch != NULL) munmap(list->scratch, CAIRN_WORKS_SCRATCH_BYTES);
}

void cairn_works_close(struct cairn_works *works)
{
    cairn_home_stream_close(works->stream);
    for (uint32_t i = 0; i < CAIRN_WORKS_LISTS; i++) close_list(works, &works->lists[i]);
    *works = (struct cairn_works) { 0 };
}

/* ---- running ---- */

static uint32_t number_now(const struct cairn_works *works)
{
    return (works->first + works->sent) % works->list_count;
}

static struct cairn_works_list *now(struct cairn_works *works)
{
    return &works->lists[number_now(works)];
}

const struct cairn_works_list *cairn_works_now(const struct cairn_works *works)
{
    return &works->lists[number_now(works)];
}

static void begin_list(void *arg)
{
    struct cairn_works *works = arg;
    struct cairn_works_list *list = now(works);
    list->status = cairn_home_run_begin(works->stream, list->works, list->count, &list->why);
    list->is_under_way = list->status == CAIRN_OK;
}

/* Nothing more is begun of what has failed. */
static void begin(struct cairn_works *works)
{
    struct cairn_works_list *list = now(works);
    if (list->count == 0 || list->status != CAIRN_OK || list->failed_at != NULL) return;
    if (works->is_guarded)
        list->failed_at = cairn_guard_run(begin_list, works);
    else
        begin_list(works);
}

static void finish(struct cairn_works *works, struct cairn_works_list *list)
{
    if (list->is_under_way) {
        list->status = cairn_home_run_finish(works->stream, &list->why);
        if (list->status == CAIRN_OK)
            atomic_store_explicit(&works->is_begun, true, memory_order_relaxed);
    }
    list->is_under_way = false;
    list->count = 0;
    list->scratch_used = 0;
}

/* The home finishes lists in their order. */
void cairn_works_flush(struct cairn_works *works)
{
    begin(works);
    if (works->sent > 0) finish(works, &works->lists[works->first]);
    finish(works, now(works));
}

static cairn_status tell(struct cairn_works_list *list, struct cairn_sentence *why)
{
    const cairn_status status = list->status;
    if (status != CAIRN_OK && why != NULL) *why = list->why;
    list->status = CAIRN_OK;
    list->failed_at = NULL;
    return status;
}

cairn_status cairn_works_run(struct cairn_works *works, struct cairn_sentence *why)
{
    cairn_works_flush(works);
    return tell(now(works), why);
}

void cairn_works_send(struct cairn_works *works)
{
    assert(works->sent < works->list_count);
    begin(works);
    works->sent++;
}

cairn_status cairn_works_await(struct cairn_works *works, struct cairn_sentence *why)
{
    struct cairn_works_list *list = &works->lists[works->first];
    assert(works->sent > 0);
    finish(works, list);
    works->first = (works->first + 1) % works->list_count;
    works->sent--;
    return tell(list, why);
}

/* ---- adding ---- */

struct cairn_work *cairn_works_add(struct cairn_works *works, enum cairn_work_kind kind)
{
    struct cairn_works_list *list = now(works);
    if (list->count == works->capacity) cairn_works_flush(works);
    struct cairn_work *work = &list->works[list->count++];
    *work = (struct cairn_work) { .kind = kind };
    return work;
}

void cairn_works_copy(struct cairn_works *works, void *to, const void *from, size_t bytes)
{
    struct cairn_work *work = cairn_works_add(works, CAIRN_WORK_COPY);
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
static struct runs next_runs(struct cairn_box_runs *walk, const struct cairn_works_box *of,
                             struct runs *ahead, size_t *at)
{
    struct runs runs = *ahead;
    uint64_t elem, box_elem, count;
    *ahead = (struct runs) { 0 };
    while (cairn_box_runs_next(walk, &elem, &box_elem, &count)) {
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

static struct cairn_work *add_runs(struct cairn_works *works, const struct runs *runs)
{
    struct cairn_work *work = cairn_works_add(works, CAIRN_WORK_RUNS);
    work->runs.run_bytes = runs->bytes;
    work->runs.run_count = runs->count;
    work->runs.to_stride = work->runs.from_stride = runs->bytes;
    return work;
}

/* Between a range of a plane, by strides, and what is packed: *packed or *range is written. */
static size_t add_box(struct cairn_works *works, const struct cairn_works_box *of, bool packs,
                      const uint8_t *packed, const uint8_t *range)
{
    struct cairn_box_runs walk;
    struct runs ahead = { 0 }, runs;
    size_t at = 0;
    cairn_box_runs_begin(&walk, of->box, of->shape, of->first_elem, of->elem_count);
    while ((runs = next_runs(&walk, of, &ahead, &at)).count > 0) {
        struct cairn_work *work = add_runs(works, &runs);
        const uint8_t *dense = packed + runs.packed, *strided = range + runs.range;
        work->runs.to = (void *)(uintptr_t)(packs ? dense : strided);
        work->runs.from = packs ? strided : dense;
        *(packs ? &work->runs.from_stride : &work->runs.to_stride) = runs.stride;
    }
    return at;
}

size_t cairn_works_pack(struct cairn_works *works, const struct cairn_works_box *of, void *packed,
                        const void *range)
{
    return add_box(works, of, true, packed, range);
}

size_t cairn_works_unpack(struct cairn_works *works, const struct cairn_works_box *of, void *range,
                          const void *packed)
{
    return add_box(works, of, false, packed, range);
}

void cairn_works_fold(struct cairn_works *works, float *acc, const struct cairn_source *sources,
                      uint32_t count, bool first, size_t elems)
{
    struct cairn_work *work = cairn_works_add(works, CAIRN_WORK_FOLD);
    const struct cairn_works_list *list = now(works);
    struct cairn_source *kept = list->sources[work - list->works];
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
static void pin_scratch(struct cairn_works *works, struct cairn_works_list *list)
{
    struct cairn_sentence why;
    list->is_pinned = true;
    if (cairn_home_pin(works->home, list->scratch, CAIRN_WORKS_SCRATCH_BYTES, &why) != CAIRN_OK)
        cairn_log_warn("%s", why.text);
}

static uint8_t *take_scratch(struct cairn_works *works, size_t bytes)
{
    struct cairn_works_list *list = now(works);
    if (!list->is_pinned) pin_scratch(works, list);
    assert(bytes <= CAIRN_WORKS_SCRATCH_BYTES);
    if (bytes > CAIRN_WORKS_SCRATCH_BYTES - list->scratch_used) cairn_works_flush(works);
    uint8_t *scratch = list->scratch + list->scratch_used;
    list->scratch_used += (bytes + 63) / 64 * 64;
    return scratch;
}

static uint8_t *fetch(struct cairn_works *works, const void *at, size_t bytes)
{
    cairn_works_flush(works);
    uint8_t *scratch = take_scratch(works, bytes);
    cairn_works_copy(works, scratch, at, bytes);
    cairn_works_flush(works);
    return take_scratch(works, bytes); // the same: all of it was free
}

const void *cairn_works_get(struct cairn_works *works, const void *at, size_t bytes)
{
    if (!works->in_place) return fetch(works, at, bytes);
    cairn_works_flush(works);
    return at;
}

static void *put_back(struct cairn_works *works, void *at, uint8_t *scratch, size_t bytes)
{
    cairn_works_copy(works, at, scratch, bytes);
    return scratch;
}

void *cairn_works_put(struct cairn_works *works, void *at, size_t bytes)
{
    if (works->in_place) return at;
    if (now(works)->count == works->capacity) cairn_works_flush(works);
    return put_back(works, at, take_scratch(works, bytes), bytes);
}
