/* The part that one shard owns, and the grid of chunks over it: see layout.h. */
#include "proto/geometry/layout.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

static struct cairn_local_extent localize(const struct cairn_shard_map *map,
                                          const struct cairn_extent *e)
{
    const struct cairn_geometry *g = &map->layout->geometry[e->tensor];
    const uint64_t end = e->first_quantum + e->quantum_count;
    struct cairn_local_extent local = {
        .tensor = e->tensor,
        .first_leaf = cairn_quantum_first_leaf(g, e->first_quantum),
        .first_elem = cairn_quantum_first_elem(g, e->first_quantum),
        .local_elem = map->elem_count,
        .first_chunk = map->chunk_count,
    };
    local.leaf_count = cairn_quantum_first_leaf(g, end) - local.first_leaf;
    local.elem_count = cairn_quantum_first_elem(g, end) - local.first_elem;
    local.chunk_count = (local.leaf_count - 1) / map->chunk_leaves + 1;
    return local;
}

cairn_status cairn_shard_map_init(struct cairn_shard_map *map, const struct cairn_layout *layout,
                                  uint32_t shard, uint32_t chunk_leaves)
{
    if (shard >= layout->shard_count || chunk_leaves == 0) return CAIRN_ERR_INVALID;
    const size_t first = layout->shard_extents[shard];
    const size_t count = layout->shard_extents[shard + 1] - first;
    struct cairn_local_extent *extents = calloc(count + 1, sizeof *extents);
    if (extents == NULL) return CAIRN_ERR_NO_MEMORY;

    *map = (struct cairn_shard_map) {
        .shard = shard,
        .chunk_leaves = chunk_leaves,
        .extent_count = count,
        .extents = extents,
        .layout = layout,
    };
    for (size_t i = 0; i < count; i++) {
        extents[i] = localize(map, &layout->extents[layout->by_shard[first + i]]);
        map->elem_count += extents[i].elem_count;
        map->leaf_count += extents[i].leaf_count;
        map->chunk_count += extents[i].chunk_count;
    }
    map->local_end = map->elem_count;
    return CAIRN_OK;
}

void cairn_shard_map_release(struct cairn_shard_map *map)
{
    free(map->extents);
    *map = (struct cairn_shard_map) { 0 };
}

/* How many extents begin at or before the leaf. */
static size_t extents_up_to(const struct cairn_shard_map *map, uint32_t tensor, uint64_t leaf)
{
    size_t low = 0, high = map->extent_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct cairn_local_extent *e = &map->extents[middle];
        if (e->tensor < tensor || (e->tensor == tensor && e->first_leaf <= leaf))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct cairn_local_extent *cairn_shard_map_find(const struct cairn_shard_map *map,
                                                      uint32_t tensor, uint64_t leaf)
{
    const size_t count = extents_up_to(map, tensor, leaf);
    if (count == 0) return NULL;
    const struct cairn_local_extent *e = &map->extents[count - 1];
    return e->tensor == tensor && leaf - e->first_leaf < e->leaf_count ? e : NULL;
}

/* Each extent has a chunk at least. So as many extents as chunks come before a chunk, but for the chunks that
 * extents have beyond their first: among many small tensors there is little to search. */
const struct cairn_local_extent *cairn_shard_map_extent(const struct cairn_shard_map *map,
                                                        uint64_t chunk)
{
    assert(chunk < map->chunk_count);
    const uint64_t beyond = map->chunk_count - map->extent_count;
    size_t low = (size_t)(chunk > beyond ? chunk - beyond : 0);
    size_t high = chunk < map->extent_count ? (size_t)chunk + 1 : map->extent_count;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (map->extents[middle].first_chunk <= chunk)
            low = middle;
        else
            high = middle;
    }
    return &map->extents[low];
}

/* Leaves of the chunk that begins `within` leaves into the extent. */
static uint64_t chunk_size(const struct cairn_shard_map *map, const struct cairn_local_extent *e,
                           uint64_t within)
{
    const uint64_t left = e->leaf_count - within;
    return left < map->chunk_leaves ? left : map->chunk_leaves;
}

struct cairn_chunk_place cairn_shard_map_chunk(const struct cairn_shard_map *map, uint64_t chunk)
{
    const struct cairn_local_extent *e = cairn_shard_map_extent(map, chunk);
    if (e->chunk_count == 1) // the extent says it all: a small tensor's geometry need not be read
        return (struct cairn_chunk_place) { .tensor = e->tensor,
                                            .first_leaf = e->first_leaf,
                                            .leaf_count = e->leaf_count,
                                            .first_elem = e->first_elem,
                                            .elem_count = e->elem_count,
                                            .local_elem = e->local_elem };
    const struct cairn_geometry *g = &map->layout->geometry[e->tensor];
    const uint64_t within = (chunk - e->first_chunk) * map->chunk_leaves;
    struct cairn_chunk_place place = {
        .tensor = e->tensor,
        .first_leaf = e->first_leaf + within,
        .leaf_count = chunk_size(map, e, within),
    };
    place.first_elem = cairn_leaf_first_elem(g, place.first_leaf);
    place.elem_count = cairn_leaf_first_elem(g, place.first_leaf + place.leaf_count) -
                       place.first_elem;
    place.local_elem = e->local_elem + (place.first_elem - e->first_elem);
    return place;
}

cairn_status cairn_shard_map_chunk_number(const struct cairn_shard_map *map, uint32_t tensor,
                                          uint64_t first_leaf, uint64_t leaf_count,
                                          uint64_t *chunk_out)
{
    const struct cairn_local_extent *e = cairn_shard_map_find(map, tensor, first_leaf);
    if (e == NULL) return CAIRN_ERR_NOT_FOUND;
    const uint64_t within = first_leaf - e->first_leaf;
    if (within % map->chunk_leaves != 0) return CAIRN_ERR_INVALID;
    if (leaf_count != chunk_size(map, e, within)) return CAIRN_ERR_INVALID;
    *chunk_out = e->first_chunk + within / map->chunk_leaves;
    return CAIRN_OK;
}

/* ---- a map that follows another ---- */

/* Local elements. */
struct range {
    uint64_t first, end;
};

struct ranges {
    struct range *list; /* owned */
    size_t count;
};

static int compare_ranges(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

static void add_ranges(struct ranges *ranges, const struct cairn_shard_map *map)
{
    for (size_t i = 0; map != NULL && i < map->extent_count; i++) {
        const struct cairn_local_extent *e = &map->extents[i];
        ranges->list[ranges->count++] = (struct range) { e->local_elem,
                                                         e->local_elem + e->elem_count };
    }
}

/* The gaps between what two maps have; the last one has no end. */
static cairn_status find_gaps(const struct cairn_shard_map *before,
                              const struct cairn_shard_map *beside, struct ranges *gaps)
{
    const size_t most = before->extent_count + (beside != NULL ? beside->extent_count : 0);
    struct ranges taken = { .list = calloc(most + 1, sizeof *taken.list) };
    *gaps = (struct ranges) { .list = calloc(most + 1, sizeof *gaps->list) };
    if (taken.list == NULL || gaps->list == NULL) {
        free(taken.list);
        return CAIRN_ERR_NO_MEMORY;
    }
    add_ranges(&taken, before);
    add_ranges(&taken, beside);
    qsort(taken.list, taken.count, sizeof *taken.list, compare_ranges);
    uint64_t at = 0;
    for (size_t i = 0; i < taken.count; i++) {
        if (taken.list[i].first > at)
            gaps->list[gaps->count++] = (struct range) { at, taken.list[i].first };
        if (taken.list[i].end > at) at = taken.list[i].end;
    }
    gaps->list[gaps->count++] = (struct range) { at, UINT64_MAX };
    free(taken.list);
    return CAIRN_OK;
}

/* The extent of `before` that the extent lies in, in whole; NULL: none. CAIRN_ERR_INVALID: in part. */
static cairn_status find_before(const struct cairn_shard_map *before,
                                const struct cairn_local_extent *extent,
                                const struct cairn_local_extent **out)
{
    const uint64_t end = extent->first_leaf + extent->leaf_count;
    const struct cairn_local_extent *first = cairn_shard_map_find(before, extent->tensor,
                                                                  extent->first_leaf);
    *out = first;
    if (first != NULL)
        return end <= first->first_leaf + first->leaf_count ? CAIRN_OK : CAIRN_ERR_INVALID;
    const bool begins_later = extents_up_to(before, extent->tensor, end - 1) >
                              extents_up_to(before, extent->tensor, extent->first_leaf);
    return begins_later ? CAIRN_ERR_INVALID : CAIRN_OK;
}

static void place(struct ranges *gaps, struct cairn_local_extent *extent)
{
    struct range *gap = gaps->list;
    while (gap->end - gap->first < extent->elem_count) gap++; // the last one has room
    extent->local_elem = gap->first;
    gap->first += extent->elem_count;
}

cairn_status cairn_shard_map_init_from(struct cairn_shard_map *map,
                                       const struct cairn_layout *layout, uint32_t shard,
                                       uint32_t chunk_leaves, const struct cairn_shard_map *before,
                                       const struct cairn_shard_map *beside, const bool *dense)
{
    struct ranges gaps;
    cairn_status status = find_gaps(before, beside, &gaps);
    if (status == CAIRN_OK) status = cairn_shard_map_init(map, layout, shard, chunk_leaves);
    if (status != CAIRN_OK) {
        free(gaps.list);
        return status;
    }
    map->local_end = 0;
    for (size_t i = 0; i < map->extent_count && status == CAIRN_OK; i++) {
        struct cairn_local_extent *extent = &map->extents[i];
        const struct cairn_local_extent *was;
        status = find_before(before, extent, &was);
        const bool is_new = was == NULL || (dense != NULL && dense[extent->tensor] &&
                                            was->first_leaf != extent->first_leaf);
        if (status == CAIRN_OK && is_new)
            place(&gaps, extent);
        else if (status == CAIRN_OK)
            extent->local_elem = was->local_elem + (extent->first_elem - was->first_elem);
        const uint64_t end = extent->local_elem + extent->elem_count;
        if (end > map->local_end) map->local_end = end;
    }
    free(gaps.list);
    if (status != CAIRN_OK) cairn_shard_map_release(map);
    return status;
}
