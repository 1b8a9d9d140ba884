#include "client/stitch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/wire/published.h"

#define PAGE ((uint64_t)CAIRN_PUBLISHED_PAGE_BYTES)

struct stitch {
    struct stitch *next; /* the one used last is the first */
    uint32_t tensor;
    uint32_t uses; /* 0: it is kept */
    uint8_t *base; /* owned */
    size_t bytes;
    size_t part_count;
    struct stitch_part parts[]; /* [part_count] */
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
static bool copy_edge(uint8_t *base, const struct stitch_part *part, uint64_t from, uint64_t end)
{
    uint8_t *page = base + from / PAGE * PAGE;
    if (from == end) return true;
    if (mprotect(page, PAGE, PROT_READ | PROT_WRITE) != 0) return false;
    memcpy(base + from, part->copy->base + part->at + (from - part->from), (size_t)(end - from));
    return mprotect(page, PAGE, PROT_READ) == 0;
}

/* What shares a page with other parts, or with what is behind the tensor. */
static bool copy_edges(uint8_t *base, const struct stitch_part *part)
{
    const uint64_t first = page_up(part->from), last = part->end / PAGE * PAGE;
    if (first <= last)
        return copy_edge(base, part, part->from, first) && copy_edge(base, part, last, part->end);
    return copy_edge(base, part, part->from, part->end);
}

static bool map_pages(uint8_t *base, const struct stitch_part *part)
{
    const uint64_t first = page_up(part->from), last = part->end / PAGE * PAGE;
    assert(part->at % PAGE == part->from % PAGE);
    return first >= last ||
           mmap(base + first, (size_t)(last - first), PROT_READ, MAP_SHARED | MAP_FIXED,
                part->copy->fd, (off_t)(part->at + first - part->from)) != MAP_FAILED;
}

static struct stitch *make(uint32_t tensor, const struct stitch_part *parts, size_t count)
{
    struct stitch *stitch = calloc(1, sizeof *stitch + count * sizeof *parts);
    if (stitch == NULL) return NULL;
    stitch->tensor = tensor;
    stitch->part_count = count;
    memcpy(stitch->parts, parts, count * sizeof *parts);
    stitch->bytes = (size_t)page_up(parts[count - 1].end);
    uint8_t *base = mmap(NULL, stitch->bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool whole = base != MAP_FAILED;
    for (size_t i = 0; whole && i < count; i++)
        whole = map_pages(base, &parts[i]) && copy_edges(base, &parts[i]);
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
    job->stitch_parts -= stitch->part_count;
    for (size_t i = 0; i < stitch->part_count; i++) cairn_mapped_unuse(stitch->parts[i].copy);
    munmap(stitch->base, stitch->bytes);
    free(stitch);
}

static bool is_of(const struct stitch *stitch, uint32_t tensor, const struct stitch_part *parts,
                  size_t count)
{
    if (stitch->tensor != tensor || stitch->part_count != count) return false;
    for (size_t i = 0; i < count; i++)
        if (stitch->parts[i].copy != parts[i].copy) return false;
    return true;
}

static bool is_of_version(const struct stitch *stitch, const struct stitch_part *parts)
{
    for (size_t i = 0; i < stitch->part_count; i++)
        if (stitch->parts[i].sequence != parts[i].sequence) return false;
    return true;
}

/* Of the same pages, and of the version or nobody's. One that is in use at another version is left to
 * whoever reads it. NULL: there is none. */
static struct stitch *take(struct job *job, uint32_t tensor, const struct stitch_part *parts,
                           size_t count)
{
    struct stitch **link = &job->stitches;
    while (*link != NULL && !(is_of(*link, tensor, parts, count) &&
                              ((*link)->uses == 0 || is_of_version(*link, parts))))
        link = &(*link)->next;
    struct stitch *stitch = *link;
    if (stitch != NULL) *link = stitch->next;
    return stitch;
}

/* Brings it to the version. */
static bool renew(struct stitch *stitch, const struct stitch_part *parts)
{
    bool whole = true;
    if (is_of_version(stitch, parts)) return true;
    for (size_t i = 0; whole && i < stitch->part_count; i++)
        whole = copy_edges(stitch->base, &parts[i]);
    memcpy(stitch->parts, parts, stitch->part_count * sizeof *parts);
    return whole;
}

/* Puts out those that nobody uses, the one that was used longest ago first. */
static void keep_within_bound(struct job *job)
{
    while (job->stitch_parts > CAIRN_STITCH_PARTS_MAX) {
        struct stitch **oldest = NULL;
        for (struct stitch **link = &job->stitches; *link != NULL; link = &(*link)->next)
            if ((*link)->uses == 0) oldest = link;
        if (oldest == NULL) return;
        drop(job, oldest);
    }
}

struct stitch *cairn_stitch_get(struct job *job, uint32_t tensor, const struct stitch_part *parts,
                                size_t count)
{
    assert(count > 0);
    struct stitch *stitch = take(job, tensor, parts, count);
    if (stitch == NULL) {
        stitch = make(tensor, parts, count);
        if (stitch == NULL) return NULL;
        job->stitch_parts += count;
        for (size_t i = 0; i < count; i++) parts[i].copy->uses++;
    }
    stitch->next = job->stitches;
    job->stitches = stitch;
    if (!renew(stitch, parts)) { // nobody uses it, else it were of the version
        drop(job, &job->stitches);
        return NULL;
    }
    stitch->uses++;
    keep_within_bound(job);
    return stitch;
}

static bool has_gone(const struct stitch *stitch)
{
    bool gone = false;
    for (size_t i = 0; i < stitch->part_count; i++) gone = gone || stitch->parts[i].copy->gone;
    return gone;
}

void cairn_stitches_sweep(struct job *job)
{
    for (struct stitch **link = &job->stitches; *link != NULL;) {
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
    while (job->stitches != NULL) {
        assert(job->stitches->uses == 0);
        drop(job, &job->stitches);
    }
}
