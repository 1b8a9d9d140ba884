/* Pieces of chunks: what a chunk has in common with the box that a member holds; how it is put and folded.
 *
 * A box has a mark a chunk: whether it was folded into the chunk's sum in this round. So the first
 * contribution of an element is copied and later ones are added to it, as in a tensor that all hold: elements
 * that nobody contributed are +0. Marks are made and cleared between folds on the loop; a fold reads and
 * writes those of its own chunk. */
#include <assert.h>
#include <string.h>

#include "server/shard/shard.h"

static uint8_t *mark_of(struct cairn_held *held, uint64_t chunk)
{
    const bool within = chunk >= held->first_chunk && chunk - held->first_chunk < held->chunk_count;
    return within ? &held->mark[chunk - held->first_chunk] : NULL;
}

/* NULL: every member holds all of the chunk's tensor. */
static const struct cairn_tiled *tiled_of(const struct cairn_shard_job *job, uint64_t chunk)
{
    const struct cairn_chunk_table *table = job->tiling.table;
    return job->tiling.of[table->map.extents[table->extent_of[chunk]].tensor];
}

/* The box that the header means; *held_out NULL: all of the tensor, which is not tiled. */
static cairn_status judge_tile(const struct cairn_member *member,
                               const struct cairn_chunk_header *header,
                               const struct cairn_tiled *tiled, struct cairn_held **held_out,
                               struct cairn_sentence *why)
{
    const char *name = member->job->spec.tensors[header->tensor].name;
    const struct cairn_member_tile *tile = cairn_tiles_of_member(member, header->tensor);
    const bool own = header->tile == CAIRN_TILE_OWN, push = header->kind == CAIRN_CHUNK_PUSH;
    if ((own || push) && header->table_hash != member->tiles_hash)
        return cairn_fail(why, CAIRN_ERR_MISMATCH,
                          "tensor %.80s: it is of tiles %016llx, its worker declared %016llx", name,
                          (unsigned long long)header->table_hash,
                          (unsigned long long)member->tiles_hash);
    if (own && tile == NULL)
        return cairn_fail(why, CAIRN_ERR_MISMATCH,
                          "tensor %.80s: its worker declared no tile of it", name);
    if (push && !own && tile != NULL && tile->held != NULL)
        return cairn_fail(why, CAIRN_ERR_MISMATCH,
                          "tensor %.80s: a whole chunk, of a worker that holds a part", name);
    *held_out = tiled != NULL ? tiled->held : NULL;
    if (own && tile->held != NULL) *held_out = tile->held;
    return CAIRN_OK;
}

cairn_status cairn_tiles_piece(const struct cairn_member *member,
                               const struct cairn_chunk_header *header,
                               const struct cairn_chunk_place *place, struct cairn_piece *piece_out,
                               struct cairn_sentence *why)
{
    const struct cairn_shard_job *job = member->job;
    struct cairn_piece piece = { .count = place->elem_count };
    const struct cairn_tiled *tiled = job->tiling.of[place->tensor];
    cairn_status status = judge_tile(member, header, tiled, &piece.held, why);
    if (status != CAIRN_OK) return status;
    if (piece.held != NULL)
        piece.count = cairn_tiles_common(job, &piece.held->box, place, &piece.first);
    if (piece.count == 0)
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "tensor %.80s: its tile has no element there",
                          job->spec.tensors[header->tensor].name);
    *piece_out = piece;
    return CAIRN_OK;
}

void cairn_tiles_begin_chunk(struct cairn_shard_job *job, uint64_t chunk)
{
    const struct cairn_tiled *tiled = tiled_of(job, chunk);
    for (struct cairn_held *h = tiled != NULL ? tiled->held : NULL; h != NULL; h = h->next) {
        uint8_t *mark = mark_of(h, chunk);
        if (mark != NULL) *mark = 0;
    }
}

/* The sources of one box, in their order. */
static void fold_box(struct cairn_works *works, const struct cairn_fold *fold,
                     const struct cairn_piece *piece, const struct cairn_source *sources,
                     uint32_t count, uint64_t chunk, const struct cairn_chunk_place *place,
                     float *acc)
{
    const struct cairn_shard_job *job = fold->collector->job;
    uint8_t *mark = mark_of(piece->held, chunk);
    assert(mark != NULL); // it has elements there
    const bool first = *mark == 0;
    *mark = 1;
    struct cairn_box_runs runs;
    cairn_box_runs_begin(&runs, &piece->held->box, &job->spec.tensors[place->tensor].shape,
                         place->first_elem, place->elem_count);
    uint64_t elem, box_elem, run;
    while (cairn_box_runs_next(&runs, &elem, &box_elem, &run)) {
        struct cairn_source at[CAIRN_STEP_FOLD_MAX];
        for (uint32_t i = 0; i < count; i++) {
            const size_t skip = (size_t)(box_elem - piece->first);
            const uint8_t *data = sources[i].data;
            at[i] = sources[i];
            at[i].data = data + skip * cairn_dtype_bytes((int)sources[i].dtype);
        }
        cairn_works_fold(works, acc + (elem - place->first_elem), at, count, first, (size_t)run);
    }
}

void cairn_tiles_fold(struct cairn_works *works, const struct cairn_fold *fold, uint64_t chunk,
                      const struct cairn_chunk_place *place, float *acc)
{
    // Different boxes have no element in common: each is folded by itself.
    bool done[CAIRN_STEP_FOLD_MAX] = { false };
    for (uint32_t i = 0; i < fold->source_count; i++) {
        if (done[i]) continue;
        struct cairn_source same[CAIRN_STEP_FOLD_MAX];
        uint32_t count = 0;
        for (uint32_t k = i; k < fold->source_count; k++) {
            if (fold->pieces[k].held != fold->pieces[i].held) continue;
            same[count++] = fold->sources[k];
            done[k] = true;
        }
        fold_box(works, fold, &fold->pieces[i], same, count, chunk, place, acc);
    }
}

void cairn_tiles_put(struct cairn_shard_job *job, uint64_t chunk, const struct cairn_piece *piece,
                     const struct cairn_chunk_place *place, const float *values)
{
    const struct cairn_works_box of = { &piece->held->box, &job->spec.tensors[place->tensor].shape,
                                        place->first_elem, place->elem_count, sizeof *values };
    (void)cairn_works_unpack(cairn_compute_loop(job->compute), &of,
                             cairn_planes_at(&job->planes, CAIRN_PLANE_PARAM,
                                             job->tiling.table->extent_of[chunk],
                                             place->local_elem),
                             values);
    *mark_of(piece->held, chunk) = 1;
}

bool cairn_tiles_put_whole(const struct cairn_shard_job *job, uint64_t chunk)
{
    const struct cairn_tiled *tiled = tiled_of(job, chunk);
    if (tiled == NULL) return false;
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->tiling.table->map, chunk);
    uint64_t elems = 0, before;
    for (struct cairn_held *h = tiled->held; h != NULL; h = h->next) {
        const uint8_t *mark = mark_of(h, chunk);
        if (h->holders > 0 && mark != NULL && *mark != 0)
            elems += cairn_tiles_common(job, &h->box, &place, &before);
    }
    return elems == place.elem_count;
}
