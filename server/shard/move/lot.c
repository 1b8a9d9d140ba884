#include "server/shard/move/lot.h"

#include <stdlib.h>

#include "server/shard/memory/plane.h"

/* Leaves of a tensor. */
struct leaves {
    uint64_t first, end;
};

struct lister {
    const struct cairn_shard_view *next, *kept;
    const struct cairn_layout *before;
    struct cairn_lots *out;
    size_t capacity;
};

static struct leaves leaves_of(const struct cairn_layout *layout, const struct cairn_extent *extent)
{
    const struct cairn_geometry *geometry = &layout->geometry[extent->tensor];
    return (struct leaves) {
        cairn_quantum_first_leaf(geometry, extent->first_quantum),
        cairn_quantum_first_leaf(geometry, extent->first_quantum + extent->quantum_count),
    };
}

static cairn_status add(struct lister *lister, const struct cairn_lot *lot)
{
    struct cairn_lots *out = lister->out;
    const struct cairn_form *form = &lister->next->forms[lot->extent];
    if (out->count == lister->capacity) {
        const size_t capacity = lister->capacity * 2 + 64;
        struct cairn_lot *list = realloc(out->list, capacity * sizeof *list);
        if (list == NULL) return CAIRN_ERR_NO_MEMORY;
        out->list = list;
        lister->capacity = capacity;
    }
    const uint64_t bytes = cairn_form_bytes(form, lot->plane, lot->chunk_elems);
    if (!cairn_lot_is_whole(lot) && bytes > out->cut_bytes) out->cut_bytes = (size_t)bytes;
    if (bytes > out->chunk_bytes) out->chunk_bytes = (size_t)bytes;
    out->bytes += cairn_form_bytes(form, lot->plane, lot->elem_count);
    out->list[out->count++] = *lot;
    return CAIRN_OK;
}

/* A chunk of the giver's, of which the leaves come; in each plane. */
static cairn_status add_chunk(struct lister *lister, const struct cairn_geometry *geometry,
                              struct cairn_lot lot, struct leaves chunk, struct leaves come)
{
    cairn_status status = CAIRN_OK;
    if (come.first < chunk.first) come.first = chunk.first;
    if (come.end > chunk.end) come.end = chunk.end;
    lot.first_leaf = chunk.first;
    lot.leaf_count = (uint32_t)(chunk.end - chunk.first);
    lot.chunk_elem = cairn_leaf_first_elem(geometry, chunk.first);
    lot.chunk_elems = cairn_leaf_first_elem(geometry, chunk.end) - lot.chunk_elem;
    lot.first_elem = cairn_leaf_first_elem(geometry, come.first);
    lot.elem_count = cairn_leaf_first_elem(geometry, come.end) - lot.first_elem;
    for (int p = 0; p < CAIRN_PLANES && status == CAIRN_OK; p++) {
        if (!cairn_form_stores(&lister->next->forms[lot.extent], p)) continue;
        lot.plane = (enum cairn_plane)p;
        status = add(lister, &lot);
    }
    return status;
}

/* Adds the lots for a run of leaves that come from one extent of a giver. The giver's chunk grid
 * begins with its extent. */
static cairn_status add_run(struct lister *lister, const struct cairn_extent *given,
                            uint32_t extent, struct leaves come)
{
    const struct leaves all = leaves_of(lister->before, given);
    const uint64_t step = lister->next->table.map.chunk_leaves;
    const struct cairn_lot lot = { .giver = given->shard, .extent = extent };
    uint64_t at = all.first + (come.first - all.first) / step * step;
    cairn_status status = CAIRN_OK;
    for (; at < come.end && status == CAIRN_OK; at += step) {
        const struct leaves chunk = { at, at + step < all.end ? at + step : all.end };
        status = add_chunk(lister, &lister->before->geometry[given->tensor], lot, chunk, come);
    }
    return status;
}

/* The end of the run that begins with the leaf and is here already; the leaf: it is not. */
static uint64_t end_of_kept(const struct lister *lister, uint32_t tensor, uint64_t leaf)
{
    const struct cairn_local_extent *extent = NULL;
    if (lister->kept != NULL) extent = cairn_shard_map_find(&lister->kept->table.map, tensor, leaf);
    return extent != NULL ? extent->first_leaf + extent->leaf_count : leaf;
}

static cairn_status add_extent(struct lister *lister, uint32_t number)
{
    const struct cairn_shard_map *map = &lister->next->table.map;
    const struct cairn_local_extent *extent = &map->extents[number];
    const uint64_t end = extent->first_leaf + extent->leaf_count;
    uint64_t leaf = extent->first_leaf;
    cairn_status status = CAIRN_OK;
    while (leaf < end && status == CAIRN_OK) {
        const struct cairn_extent *was = cairn_layout_find(lister->before, extent->tensor, leaf);
        const struct leaves all = leaves_of(lister->before, was);
        const uint64_t kept_end = end_of_kept(lister, extent->tensor, leaf);
        uint64_t run_end = all.end < end ? all.end : end;
        if (kept_end > leaf && kept_end < run_end) run_end = kept_end;
        if (was->shard != map->shard && kept_end == leaf)
            status = add_run(lister, was, number, (struct leaves) { leaf, run_end });
        leaf = run_end;
    }
    return status;
}

static int by_giver(const void *left, const void *right)
{
    const struct cairn_lot *a = left, *b = right;
    if (a->giver != b->giver) return a->giver < b->giver ? -1 : 1;
    if (a->extent != b->extent) return a->extent < b->extent ? -1 : 1;
    if (a->first_leaf != b->first_leaf) return a->first_leaf < b->first_leaf ? -1 : 1;
    return (int)a->plane - (int)b->plane;
}

cairn_status cairn_lots_list(const struct cairn_shard_view *now,
                             const struct cairn_shard_view *next,
                             const struct cairn_shard_view *kept, struct cairn_lots *out)
{
    struct lister lister = { .next = next, .kept = kept, .before = now->layout, .out = out };
    cairn_status status = CAIRN_OK;
    *out = (struct cairn_lots) { .list = NULL };
    for (uint32_t i = 0; i < next->table.map.extent_count && status == CAIRN_OK; i++)
        status = add_extent(&lister, i);
    if (status != CAIRN_OK) {
        cairn_lots_release(out);
        return status;
    }
    if (out->count > 0) qsort(out->list, out->count, sizeof *out->list, by_giver);
    for (size_t i = 0; i < out->count; i++)
        out->giver_count += i == 0 || out->list[i].giver != out->list[i - 1].giver;
    return CAIRN_OK;
}

void cairn_lots_release(struct cairn_lots *lots)
{
    free(lots->list);
    *lots = (struct cairn_lots) { .list = NULL };
}
