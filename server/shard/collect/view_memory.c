/* The pages of what is in one view and not in the one in force: made before it comes, given back when it
 * went. */
#include <stdlib.h>

#include "server/shard/shard.h"

/* ---- runs by their places ---- */

struct runs {
    struct cairn_shard_view_run *list; /* owned */
    size_t count, capacity;
    bool failed; /* no memory for one */
};

static void add_run(void *context, const struct cairn_shard_view_run *run)
{
    struct runs *runs = context;
    if (runs->count == runs->capacity) {
        const size_t capacity = runs->capacity * 2 + 16;
        void *list = realloc(runs->list, capacity * sizeof *runs->list);
        if (list == NULL) {
            runs->failed = true;
            return;
        }
        runs->list = list;
        runs->capacity = capacity;
    }
    runs->list[runs->count++] = *run;
}

static int compare_places(const void *a, const void *b)
{
    const struct cairn_shard_view_run *x = a, *y = b;
    return (x->local_elem > y->local_elem) - (x->local_elem < y->local_elem);
}

/* Lists the runs that `in` has and `beside` has not (NULL: all of `in`), by local element. */
static cairn_status list_runs(const struct cairn_shard_view *in,
                              const struct cairn_shard_view *beside, struct runs *out)
{
    *out = (struct runs) { .count = 0 };
    cairn_shard_view_beyond(in, beside, add_run, out);
    if (out->failed) {
        free(out->list);
        return CAIRN_ERR_NO_MEMORY;
    }
    if (out->count > 0) qsort(out->list, out->count, sizeof *out->list, compare_places);
    return CAIRN_OK;
}

/* ---- made ---- */

cairn_status cairn_shard_view_reserve(const struct cairn_shard_job *job,
                                      const struct cairn_shard_view *view,
                                      struct cairn_reserve *reserve)
{
    struct runs runs;
    if (job->planes.host_from > 0) return CAIRN_OK; // an area has them already
    cairn_status status = list_runs(view, job->view, &runs);
    if (status != CAIRN_OK) return status;
    for (enum cairn_plane p = 0; p < CAIRN_PLANES; p++) {
        for (size_t i = 0; i < runs.count && status == CAIRN_OK; i++) {
            const struct cairn_shard_view_run *run = &runs.list[i];
            status = cairn_planes_reserve_elems(&job->planes, p, &view->forms[run->extent],
                                                view->table.map.extents[run->extent].local_elem,
                                                run->local_elem, run->elem_count, reserve);
        }
    }
    free(runs.list);
    return status;
}

/* ---- given back ---- */

#define PAGE_BYTES ((uintptr_t)4096)

/* Local elements that nobody uses: between `from` and `to` nothing is in use. */
struct gap {
    uint64_t first, end, from, to;
};

/* The runs, those that touch as one, each with how far nothing of `kept` stands beside it. Gives their
 * number. */
static size_t list_gaps(const struct runs *gone, const struct runs *kept, struct gap *gaps)
{
    size_t count = 0, next = 0;
    for (size_t i = 0; i < gone->count; i++) {
        const uint64_t first = gone->list[i].local_elem, end = first + gone->list[i].elem_count;
        if (count > 0 && gaps[count - 1].end == first) {
            gaps[count - 1].end = end;
            continue;
        }
        gaps[count++] = (struct gap) { .first = first, .end = end, .to = UINT64_MAX / 8 };
    }
    for (size_t i = 0; i < count; i++) {
        while (next < kept->count && kept->list[next].local_elem < gaps[i].first) next++;
        if (next > 0)
            gaps[i].from = kept->list[next - 1].local_elem + kept->list[next - 1].elem_count;
        if (next < kept->count) gaps[i].to = kept->list[next].local_elem;
    }
    return count;
}

/* The pages of a plane that lie in the gap, or touch it and have nothing else. */
static struct cairn_span span_of(const struct cairn_arena *arena, const struct gap *gap)
{
    const uintptr_t base = (uintptr_t)arena->base, all_end = base + arena->bytes;
    uintptr_t at = (base + gap->first * sizeof(float)) / PAGE_BYTES * PAGE_BYTES;
    uintptr_t end = (base + gap->end * sizeof(float) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    if (gap->from > 0 && at < base + gap->from * sizeof(float)) at += PAGE_BYTES;
    if (gap->to < UINT64_MAX / 8 && end > base + gap->to * sizeof(float)) end -= PAGE_BYTES;
    if (end > all_end) end = (all_end + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    return (struct cairn_span) { (void *)at, end > at ? (size_t)(end - at) : 0 };
}

void cairn_shard_view_give(struct cairn_shard_job *job, const struct cairn_shard_view *view)
{
    struct runs gone, kept;
    if (list_runs(view, job->view, &gone) != CAIRN_OK) return; // it stays until the job goes
    if (list_runs(job->view, NULL, &kept) != CAIRN_OK) {
        free(gone.list);
        return;
    }
    struct gap *gaps = calloc(gone.count + 1, sizeof *gaps);
    struct cairn_span *spans = calloc((gone.count + 1) * CAIRN_PLANES, sizeof *spans);
    size_t count = 0;
    const size_t gap_count = gaps != NULL && spans != NULL ? list_gaps(&gone, &kept, gaps) : 0;
    for (size_t i = 0; i < gap_count; i++) {
        for (enum cairn_plane p = 0; p < CAIRN_PLANES; p++) {
            if (job->planes.host[p].bytes <= gaps[i].first * sizeof(float)) continue;
            spans[count] = span_of(&job->planes.host[p], &gaps[i]);
            count += spans[count].bytes > 0;
        }
    }
    free(gaps);
    free(gone.list);
    free(kept.list);
    cairn_reserve_give(job, spans, count);
}
