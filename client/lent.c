#include "client/lent.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/mapped.h"
#include "proto/wire/published.h"

#define PAGE ((uint64_t)CAIRN_PUBLISHED_PAGE_BYTES)

/* A copy that something here is of. */
struct source {
    struct published *copy;
    uint64_t sequence;
};

/* Address space of our own in which a tensor of several shards was put together. */
struct stitch {
    uint8_t *base; /* NULL: none */
    size_t bytes;
};

struct lent {
    struct job *job; /* borrowed */
    struct cairn_version version;
    struct source *sources; /* owned: [shard_count]; copy NULL: nothing is of that shard */
    uint32_t shard_count;
    const uint8_t **at;      /* owned: [count] */
    struct stitch *stitches; /* owned: [count] */
    size_t count;
};

const uint8_t *cairn_lent_at(const struct lent *lent, size_t i)
{
    assert(i < lent->count);
    return lent->at[i];
}

bool cairn_lent_whole(const struct lent *lent)
{
    for (uint32_t i = 0; i < lent->shard_count; i++) {
        const struct source *source = &lent->sources[i];
        if (source->copy != NULL &&
            !cairn_published_read_end((const void *)source->copy->base, source->sequence))
            return false;
    }
    return true;
}

void cairn_lent_close(struct lent *lent)
{
    if (lent == NULL) return;
    for (size_t i = 0; i < lent->count; i++)
        if (lent->stitches[i].base != NULL) munmap(lent->stitches[i].base, lent->stitches[i].bytes);
    for (uint32_t i = 0; i < lent->shard_count; i++)
        if (lent->sources[i].copy != NULL) lent->sources[i].copy->uses--;
    free(lent->sources);
    free(lent->at);
    free(lent->stitches);
    free(lent);
}

/* The shard's copy; the same one for all that is lent here. */
static struct published *copy_of(struct lent *lent, uint32_t shard)
{
    struct source *source = &lent->sources[shard];
    if (source->copy == NULL) {
        source->copy = cairn_mapped_find(&lent->job->shards[shard], lent->version,
                                         &source->sequence);
        if (source->copy != NULL) source->copy->uses++;
    }
    return source->copy;
}

/* Where an extent of the layout lies in its shard's copy; NULL: it is not here. */
static struct published *locate(struct lent *lent, const struct cairn_extent *extent,
                                uint64_t *at_out, const struct cairn_local_extent **local_out)
{
    struct published *copy = copy_of(lent, extent->shard);
    if (copy == NULL) return NULL;
    const struct shard_link *link = &lent->job->shards[extent->shard];
    const struct cairn_geometry *g = &lent->job->layout->geometry[extent->tensor];
    const struct cairn_local_extent *local = cairn_shard_map_find(
        &link->map, extent->tensor, cairn_quantum_first_leaf(g, extent->first_quantum));
    assert(local != NULL); // map and extents are of one layout
    *at_out = link->published_at[local - link->map.extents];
    *local_out = local;
    return copy;
}

static uint64_t page_up(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* The bytes [from, end) of the tensor: whole pages of the copy, and copies of what shares its page. */
static bool lay(uint8_t *base, const struct published *copy, uint64_t at, uint64_t from,
                uint64_t end)
{
    const uint8_t *source = copy->base + at - from; // of the tensor's byte 0, as it were
    const uint64_t first = page_up(from), last = end / PAGE * PAGE;
    assert(at % PAGE == from % PAGE);
    if (first >= last) {
        memcpy(base + from, source + from, (size_t)(end - from));
        return true;
    }
    memcpy(base + from, source + from, (size_t)(first - from));
    memcpy(base + last, source + last, (size_t)(end - last));
    return mmap(base + first, (size_t)(last - first), PROT_READ, MAP_SHARED | MAP_FIXED, copy->fd,
                (off_t)(at + first - from)) != MAP_FAILED;
}

static bool stitch(struct lent *lent, size_t i, const struct cairn_extent *extents,
                   size_t extent_count, size_t elem_bytes)
{
    struct stitch *whole = &lent->stitches[i];
    const uint64_t elems = lent->job->layout->geometry[extents[0].tensor].elems;
    whole->bytes = (size_t)page_up(elems * elem_bytes);
    uint8_t *base = mmap(NULL, whole->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                         -1, 0);
    if (base == MAP_FAILED) return false;
    whole->base = base;
    for (size_t e = 0; e < extent_count; e++) {
        const struct cairn_local_extent *local;
        uint64_t at;
        const struct published *copy = locate(lent, &extents[e], &at, &local);
        if (copy == NULL || !lay(base, copy, at, local->first_elem * elem_bytes,
                                 (local->first_elem + local->elem_count) * elem_bytes))
            return false;
    }
    lent->at[i] = base;
    return mprotect(base, whole->bytes, PROT_READ) == 0;
}

static bool lend(struct lent *lent, size_t i, uint32_t tensor)
{
    static const uint8_t nothing[1] __attribute__((aligned(64)));
    size_t extent_count;
    const struct cairn_extent *extents = cairn_layout_tensor_extents(lent->job->layout, tensor,
                                                                     &extent_count);
    const size_t elem_bytes = cairn_dtype_bytes((int)lent->job->spec.tensors[tensor].wire);
    if (extent_count == 0) { // of no elements
        lent->at[i] = nothing;
        return true;
    }
    if (extent_count > 1) return stitch(lent, i, extents, extent_count, elem_bytes);
    const struct cairn_local_extent *local;
    uint64_t at;
    const struct published *copy = locate(lent, &extents[0], &at, &local);
    if (copy != NULL) lent->at[i] = copy->base + at;
    return copy != NULL;
}

struct lent *cairn_lent_open(struct job *job, struct cairn_version version, const uint32_t *tensors,
                             size_t count)
{
    if (job->session->published == NULL || job->layout == NULL) return NULL;
    struct lent *lent = calloc(1, sizeof *lent);
    if (lent == NULL) return NULL;
    lent->job = job;
    lent->version = version;
    lent->sources = calloc(job->shard_count, sizeof *lent->sources);
    lent->at = calloc(count + 1, sizeof *lent->at);
    lent->stitches = calloc(count + 1, sizeof *lent->stitches);
    bool all = lent->sources != NULL && lent->at != NULL && lent->stitches != NULL;
    if (all) lent->shard_count = job->shard_count;
    if (all) lent->count = count;
    for (size_t i = 0; all && i < count; i++) all = lend(lent, i, tensors[i]);
    if (all && cairn_lent_whole(lent)) return lent;
    cairn_lent_close(lent);
    return NULL;
}
