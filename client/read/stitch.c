#include "client/read/stitch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/job.h"

#define PAGE ((uint64_t)CAIRN_PUBLISHED_PAGE_BYTES)

struct stitch {
    struct stitch *next; /* the one used last is the first */
    uint32_t tensor;
    uint32_t uses; /* 0: it is kept */
    uint8_t *base; /* owned */
    size_t bytes;
    size_t map_count;
    size_t run_count;
    struct stitch_run runs[]; /* [run_count] */
};

const uint8_t *cairn_stitch_base(const struct stitch *stitch)
{
    return stitch->base;
}

/* ---- making one ---- */

static uint64_t page_up(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Copies bytes [from, end) of the tensor, which lie on one page: an edge. */
static bool copy_edge(uint8_t *base, const struct stitch_run *run, uint64_t from, uint64_t end)
{
    uint8_t *page = base + from / PAGE * PAGE;
    if (from == end) return true;
    if (mprotect(page, PAGE, PROT_READ | PROT_WRITE) != 0) return false;
    memcpy(base + from, run->copy->base + run->at + (from - run->from), (size_t)(end - from));
    return mprotect(page, PAGE, PROT_READ) == 0;
}

/* Copies the edges of a run: there a page holds parts of other runs, too, or what lies behind the
 * tensor. */
static bool copy_edges(uint8_t *base, const struct stitch_run *run)
{
    const uint64_t first = page_up(run->from), last = run->end / PAGE * PAGE;
    if (first <= last)
        return copy_edge(base, run, run->from, first) && copy_edge(base, run, last, run->end);
    return copy_edge(base, run, run->from, run->end);
}

/* Maps pages of the copy once more, a segment at a time. */
static bool map_pages(uint8_t *base, const struct stitch_run *run)
{
    const uint64_t first = page_up(run->from), last = run->end / PAGE * PAGE;
    uint64_t at = run->at + first - run->from;
    bool whole = true;
    assert(run->at % PAGE == run->from % PAGE);
    for (uint64_t to = first, bytes; whole && to < last; to += bytes, at += bytes) {
        const uint64_t left = CAIRN_SEGMENT_BYTES - at % CAIRN_SEGMENT_BYTES;
        bytes = last - to < left ? last - to : left;
        whole = cairn_pages_double(base + to, run->copy->base + at, (size_t)bytes);
    }
    return whole;
}

/* How many maps it may be: one a run, and one more for each end of a segment in it. */
static size_t maps_of(const struct stitch_run *runs, size_t count)
{
    size_t maps = count;
    for (size_t i = 0; i < count; i++) maps += (size_t)cairn_segments(runs[i].end - runs[i].from);
    return maps;
}

static struct stitch *make(uint32_t tensor, const struct stitch_run *runs, size_t count)
{
    struct stitch *stitch = calloc(1, sizeof *stitch + count * sizeof *runs);
    if (stitch == NULL) return NULL;
    stitch->tensor = tensor;
    stitch->map_count = maps_of(runs, count);
    stitch->run_count = count;
    memcpy(stitch->runs, runs, count * sizeof *runs);
    stitch->bytes = (size_t)page_up(runs[count - 1].end);
    uint8_t *base = mmap(NULL, stitch->bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool whole = base != MAP_FAILED;
    for (size_t i = 0; whole && i < count; i++)
        whole = map_pages(base, &runs[i]) && copy_edges(base, &runs[i]);
    if (whole) {
        stitch->base = base;
        return stitch;
    }
    if (base != MAP_FAILED) munmap(base, stitch->bytes);
    free(stitch);
    return NULL;
}

/* ---- those of a job ---- */

static void drop(struct job *job, struct stitch **link)
{
    struct stitch *stitch = *link;
    *link = stitch->next;
    job->stitches.map_count -= stitch->map_count;
    for (size_t i = 0; i < stitch->run_count; i++) cairn_mapped_unuse(stitch->runs[i].copy);
    munmap(stitch->base, stitch->bytes);
    free(stitch);
}

static bool is_of(const struct stitch *stitch, uint32_t tensor, const struct stitch_run *runs,
                  size_t count)
{
    if (stitch->tensor != tensor || stitch->run_count != count) return false;
    for (size_t i = 0; i < count; i++)
        if (stitch->runs[i].copy != runs[i].copy || stitch->runs[i].at != runs[i].at ||
            stitch->runs[i].from != runs[i].from || stitch->runs[i].end != runs[i].end)
            return false;
    return true;
}

static bool is_of_version(const struct stitch *stitch, const struct stitch_run *runs)
{
    for (size_t i = 0; i < stitch->run_count; i++)
        if (stitch->runs[i].sequence != runs[i].sequence) return false;
    return true;
}

/* Takes a stitch of the same pages off the list, if it is of the wanted version or nobody uses it.
 * A stitch in use at another version is left to its readers. NULL: there is none. */
static struct stitch *take(struct job *job, uint32_t tensor, const struct stitch_run *runs,
                           size_t count)
{
    struct stitch **link = &job->stitches.first;
    while (*link != NULL && !(is_of(*link, tensor, runs, count) &&
                              ((*link)->uses == 0 || is_of_version(*link, runs))))
        link = &(*link)->next;
    struct stitch *stitch = *link;
    if (stitch != NULL) *link = stitch->next;
    return stitch;
}

/* Brings the stitch to the version of the runs: copies its edges anew. */
static bool renew(struct stitch *stitch, const struct stitch_run *runs)
{
    bool whole = true;
    if (is_of_version(stitch, runs)) return true;
    for (size_t i = 0; whole && i < stitch->run_count; i++)
        whole = copy_edges(stitch->base, &runs[i]);
    memcpy(stitch->runs, runs, stitch->run_count * sizeof *runs);
    return whole;
}

/* Puts out those that nobody uses, the one that was used longest ago first. */
static void keep_within_bound(struct job *job)
{
    while (job->stitches.map_count > CAIRN_STITCH_MAPS_MAX) {
        struct stitch **oldest = NULL;
        for (struct stitch **link = &job->stitches.first; *link != NULL; link = &(*link)->next)
            if ((*link)->uses == 0) oldest = link;
        if (oldest == NULL) return;
        drop(job, oldest);
    }
}

struct stitch *cairn_stitch_get(struct job *job, uint32_t tensor, const struct stitch_run *runs,
                                size_t count)
{
    assert(count > 0);
    struct stitch *stitch = take(job, tensor, runs, count);
    if (stitch == NULL) {
        stitch = make(tensor, runs, count);
        if (stitch == NULL) return NULL;
        job->stitches.map_count += stitch->map_count;
        for (size_t i = 0; i < count; i++) runs[i].copy->uses++;
    }
    stitch->next = job->stitches.first;
    job->stitches.first = stitch;
    if (!renew(stitch, runs)) { // nobody uses it, else it were of the version
        drop(job, &job->stitches.first);
        return NULL;
    }
    stitch->uses++;
    keep_within_bound(job);
    return stitch;
}

static bool has_gone(const struct stitch *stitch)
{
    bool gone = false;
    for (size_t i = 0; i < stitch->run_count; i++) gone = gone || stitch->runs[i].copy->gone;
    return gone;
}

void cairn_stitches_sweep(struct job *job)
{
    for (struct stitch **link = &job->stitches.first; *link != NULL;) {
        if ((*link)->uses == 0 && has_gone(*link))
            drop(job, link);
        else
            link = &(*link)->next;
    }
}

void cairn_stitch_put(struct job *job, struct stitch *stitch)
{
    if (stitch == NULL) return;
    assert(stitch->uses > 0);
    stitch->uses--;
    cairn_stitches_sweep(job);
    keep_within_bound(job);
}

void cairn_stitches_release(struct job *job)
{
    while (job->stitches.first != NULL) {
        assert(job->stitches.first->uses == 0);
        drop(job, &job->stitches.first);
    }
}
