/* What one shard owns, and the grid of chunks over it: see layout.h. */
#include "proto/geometry/layout.h"

#include <assert.h>
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
    return CAIRN_OK;
}

void cairn_shard_map_release(struct cairn_shard_map *map)
{
    free(map->extents);
    *map = (struct cairn_shard_map) { 0 };
}

const struct cairn_local_extent *cairn_shard_map_find(const struct cairn_shard_map *map,
                                                      uint32_t tensor, uint64_t leaf)
{
    size_t low = 0, high = map->extent_count; // extents before low begin at or before the leaf
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct cairn_local_extent *e = &map->extents[middle];
        if (e->tensor < tensor || (e->tensor == tensor && e->first_leaf <= leaf))
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0) return NULL;
    const struct cairn_local_extent *e = &map->extents[low - 1];
    return e->tensor == tensor && leaf - e->first_leaf < e->leaf_count ? e : NULL;
}

/* The extent with chunk < chunk_count. */
static const struct cairn_local_extent *extent_of_chunk(const struct cairn_shard_map *map,
                                                        uint64_t chunk)
{
    size_t low = 0, high = map->extent_count;
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
    assert(chunk < map->chunk_count);
    const struct cairn_local_extent *e = extent_of_chunk(map, chunk);
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
