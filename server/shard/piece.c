/* The state that comes when one layout follows another: "piece" of move.h. */
#include <stdlib.h>

#include "server/shard/move.h"
#include "server/shard/shard.h"

void pieces_release(struct state_pieces *pieces)
{
    free(pieces->list);
    *pieces = (struct state_pieces) { .list = NULL };
}

/* A range of leaves of a tensor. */
struct leaves {
    uint64_t first, end;
};

struct lister {
    const struct shard_view *next, *retained;
    const struct layout *before;
    struct state_pieces *out;
    size_t capacity;
};

static struct leaves leaves_of(const struct layout *layout, const struct extent *extent)
{
    const struct geometry *geometry = &layout->geometry[extent->tensor];
    return (struct leaves) {
        quantum_first_leaf(geometry, extent->first_quantum),
        quantum_first_leaf(geometry, extent->first_quantum + extent->quantum_count),
    };
}

static cairn_status add_piece(struct lister *lister, const struct state_piece *piece)
{
    struct state_pieces *out = lister->out;
    const struct form *form = &lister->next->forms[piece->extent];
    if (out->count == lister->capacity) {
        const size_t capacity = lister->capacity * 2 + 64;
        struct state_piece *list = realloc(out->list, capacity * sizeof *list);
        if (list == NULL) return CAIRN_ERR_NO_MEMORY;
        out->list = list;
        lister->capacity = capacity;
    }
    const uint64_t bytes = form_bytes(form, piece->plane, piece->chunk_elems);
    if (!piece_is_whole(piece) && bytes > out->cut_bytes) out->cut_bytes = (size_t)bytes;
    if (bytes > out->chunk_bytes) out->chunk_bytes = (size_t)bytes;
    out->bytes += form_bytes(form, piece->plane, piece->elem_count);
    out->list[out->count++] = *piece;
    return CAIRN_OK;
}

/* Adds a piece for each plane of state: the part of the sender's chunk that lies in the leaves
 * `come`. */
static cairn_status add_chunk(struct lister *lister, const struct geometry *geometry,
                              struct state_piece piece, struct leaves chunk, struct leaves come)
{
    cairn_status status = CAIRN_OK;
    if (come.first < chunk.first) come.first = chunk.first;
    if (come.end > chunk.end) come.end = chunk.end;
    piece.first_leaf = chunk.first;
    piece.leaf_count = (uint32_t)(chunk.end - chunk.first);
    piece.chunk_elem = leaf_start(geometry, chunk.first);
    piece.chunk_elems = leaf_start(geometry, chunk.end) - piece.chunk_elem;
    piece.first_elem = leaf_start(geometry, come.first);
    piece.elem_count = leaf_start(geometry, come.end) - piece.first_elem;
    for (int p = 0; p < CAIRN_PLANES && status == CAIRN_OK; p++) {
        if (!form_stores(&lister->next->forms[piece.extent], p)) continue;
        piece.plane = (enum plane)p;
        status = add_piece(lister, &piece);
    }
    return status;
}

/* Adds the pieces for a run of leaves that this shard receives from one extent of a sender. The
 * sender's chunks begin at the beginning of this extent. */
static cairn_status add_run_pieces(struct lister *lister, const struct extent *given,
                                   uint32_t extent, struct leaves come)
{
    const struct leaves all = leaves_of(lister->before, given);
    const uint64_t step = lister->next->table.map.chunk_leaves;
    const struct state_piece piece = { .sender = given->shard, .extent = extent };
    uint64_t at = all.first + (come.first - all.first) / step * step;
    cairn_status status = CAIRN_OK;
    for (; at < come.end && status == CAIRN_OK; at += step) {
        const struct leaves chunk = { at, at + step < all.end ? at + step : all.end };
        status = add_chunk(lister, &lister->before->geometry[given->tensor], piece, chunk, come);
    }
    return status;
}

/* Returns the end of the run of leaves that begins with `leaf` and is on this shard by the view
 * `retained`. Returns `leaf` if that leaf is not here. */
static uint64_t end_of_retained(const struct lister *lister, uint32_t tensor, uint64_t leaf)
{
    const struct local_extent *extent = NULL;
    if (lister->retained != NULL)
        extent = shard_map_find(&lister->retained->table.map, tensor, leaf);
    return extent != NULL ? extent->first_leaf + extent->leaf_count : leaf;
}

static cairn_status add_extent(struct lister *lister, uint32_t number)
{
    const struct shard_map *map = &lister->next->table.map;
    const struct local_extent *extent = &map->extents[number];
    const uint64_t end = extent->first_leaf + extent->leaf_count;
    uint64_t leaf = extent->first_leaf;
    cairn_status status = CAIRN_OK;
    while (leaf < end && status == CAIRN_OK) {
        const struct extent *was = layout_find(lister->before, extent->tensor, leaf);
        const struct leaves all = leaves_of(lister->before, was);
        const uint64_t retained_end = end_of_retained(lister, extent->tensor, leaf);
        uint64_t run_end = all.end < end ? all.end : end;
        if (retained_end > leaf && retained_end < run_end) run_end = retained_end;
        if (was->shard != map->shard && retained_end == leaf)
            status = add_run_pieces(lister, was, number, (struct leaves) { leaf, run_end });
        leaf = run_end;
    }
    return status;
}

static int by_sender(const void *left, const void *right)
{
    const struct state_piece *a = left, *b = right;
    if (a->sender != b->sender) return a->sender < b->sender ? -1 : 1;
    if (a->extent != b->extent) return a->extent < b->extent ? -1 : 1;
    if (a->first_leaf != b->first_leaf) return a->first_leaf < b->first_leaf ? -1 : 1;
    return (int)a->plane - (int)b->plane;
}

cairn_status pieces_list(const struct shard_view *now, const struct shard_view *next,
                         const struct shard_view *retained, struct state_pieces *out)
{
    struct lister lister = {
        .next = next, .retained = retained, .before = now->layout, .out = out
    };
    cairn_status status = CAIRN_OK;
    *out = (struct state_pieces) { .list = NULL };
    for (uint32_t i = 0; i < next->table.map.extent_count && status == CAIRN_OK; i++)
        status = add_extent(&lister, i);
    if (status != CAIRN_OK) {
        pieces_release(out);
        return status;
    }
    if (out->count > 0) qsort(out->list, out->count, sizeof *out->list, by_sender);
    for (size_t i = 0; i < out->count; i++)
        out->sender_count += i == 0 || out->list[i].sender != out->list[i - 1].sender;
    return CAIRN_OK;
}
