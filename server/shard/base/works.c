#include "server/shard/base/works.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/guard.h"
#include "server/base/log.h"

#define WORKS_OF_AN_ITEM 4 /* rarely more: then the list is run in parts */

cairn_status cairn_works_open(struct cairn_works *works, struct cairn_home *home, uint32_t items,
                              struct cairn_sentence *why)
{
    *works = (struct cairn_works) { .home = home,
                                    .in_place = cairn_home_info(home)->is_host,
                                    .capacity = WORKS_OF_AN_ITEM * items };
    works->list = calloc(works->capacity, sizeof *works->list);
    works->sources = calloc(works->capacity, sizeof *works->sources);
    if (!works->in_place) works->scratch = malloc(CAIRN_WORKS_SCRATCH_BYTES);
    if (works->list == NULL || works->sources == NULL ||
        (works->scratch == NULL && !works->in_place))
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for lists of work");
    return cairn_home_stream_open(home, &works->stream, why);
}

void cairn_works_close(struct cairn_works *works)
{
    cairn_home_stream_close(works->stream);
    if (works->is_pinned) cairn_home_unpin(works->home, works->scratch, CAIRN_WORKS_SCRATCH_BYTES);
    free(works->list);
    free(works->sources);
    free(works->scratch);
    *works = (struct cairn_works) { 0 };
}

/* ---- running ---- */

static void run_list(void *arg)
{
    struct cairn_works *works = arg;
    atomic_store_explicit(&works->has_run, true, memory_order_relaxed);
    works->status = cairn_home_run(works->stream, works->list, works->count, &works->why);
}

void cairn_works_flush(struct cairn_works *works)
{
    if (works->count > 0 && works->status == CAIRN_OK && works->failed_at == NULL) {
        if (works->is_guarded)
            works->failed_at = cairn_guard_run(run_list, works);
        else
            run_list(works);
    }
    works->count = 0;
    works->scratch_used = 0;
}

cairn_status cairn_works_run(struct cairn_works *works, struct cairn_sentence *why)
{
    cairn_works_flush(works);
    const cairn_status status = works->status;
    if (status != CAIRN_OK && why != NULL) *why = works->why;
    works->status = CAIRN_OK;
    works->failed_at = NULL;
    return status;
}

/* ---- adding ---- */

struct cairn_work *cairn_works_add(struct cairn_works *works, enum cairn_work_kind kind)
{
    if (works->count == works->capacity) cairn_works_flush(works);
    struct cairn_work *work = &works->list[works->count++];
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

void cairn_works_fold(struct cairn_works *works, float *acc, const struct cairn_source *sources,
                      uint32_t count, bool first, size_t elems)
{
    struct cairn_work *work = cairn_works_add(works, CAIRN_WORK_FOLD);
    struct cairn_source *kept = works->sources[work - works->list];
    assert(count <= CAIRN_STEP_FOLD_MAX);
    memcpy(kept, sources, count * sizeof *sources);
    work->fold.acc = acc;
    work->fold.sources = kept;
    work->fold.source_count = count;
    work->fold.first = first;
    work->fold.elems = elems;
}

/* ---- by the host ---- */

/* Of most threads it is never used. */
static void pin_scratch(struct cairn_works *works)
{
    struct cairn_sentence why;
    works->is_pinned = true;
    if (cairn_home_pin(works->home, works->scratch, CAIRN_WORKS_SCRATCH_BYTES, &why) != CAIRN_OK)
        cairn_log_warn("%s", why.text);
}

static uint8_t *take_scratch(struct cairn_works *works, size_t bytes)
{
    if (!works->is_pinned) pin_scratch(works);
    assert(bytes <= CAIRN_WORKS_SCRATCH_BYTES);
    if (bytes > CAIRN_WORKS_SCRATCH_BYTES - works->scratch_used) cairn_works_flush(works);
    uint8_t *scratch = works->scratch + works->scratch_used;
    works->scratch_used += (bytes + 63) / 64 * 64;
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
    if (works->count == works->capacity) cairn_works_flush(works);
    return put_back(works, at, take_scratch(works, bytes), bytes);
}

void *cairn_works_edit(struct cairn_works *works, void *at, size_t bytes)
{
    if (works->in_place) {
        cairn_works_flush(works);
        return at;
    }
    return put_back(works, at, fetch(works, at, bytes), bytes);
}
