/* What workers hold of the tensors here: proto/wire/tiles.h, at a shard.
 *
 * A tensor is tiled while some member declared a part of it. Its different boxes are kept once, however many
 * members hold them, each with a mark a chunk: whether the box was folded into the chunk's sum in this
 * round. So the first contribution of an element is copied and later ones are added to it, as in a tensor
 * that all hold: elements that nobody contributed are +0. That no two boxes overlap without being equal,
 * and that they make up the tensor, the coordinator has checked (cairn_tiles_cover).
 *
 * Marks are made and cleared between folds on the loop; a fold reads and writes those of its own chunk. Boxes
 * that nobody holds any more are kept until the job is idle: slots, puts and folds may refer to them. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/shard.h"

/* ---- geometry ---- */

static const struct cairn_shape *shape_of(const struct cairn_shard_job *job, uint32_t tensor)
{
    return &job->spec.tensors[tensor].shape;
}

/* The first extent of the tensor here; map.extent_count if there is none. */
static size_t first_extent(const struct cairn_shard_job *job, uint32_t tensor)
{
    size_t low = 0, high = job->map.extent_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (job->map.extents[middle].tensor < tensor)
            low = middle + 1;
        else
            high = middle;
    }
    const bool found = low < job->map.extent_count && job->map.extents[low].tensor == tensor;
    return found ? low : job->map.extent_count;
}

/* The tensor's chunks here: they follow each other. Returns how many, 0 if it is not here. */
static uint64_t chunks_of(const struct cairn_shard_job *job, uint32_t tensor, uint64_t *first_out)
{
    const struct cairn_shard_map *map = &job->map;
    uint64_t count = 0;
    size_t i = first_extent(job, tensor);
    *first_out = i < map->extent_count ? map->extents[i].first_chunk : 0;
    for (; i < map->extent_count && map->extents[i].tensor == tensor; i++)
        count += map->extents[i].chunk_count;
    return count;
}

/* Elements that the box has in common with the chunk, and how many come before them. */
static uint64_t common_elems(const struct cairn_shard_job *job, const struct cairn_box *box,
                             const struct cairn_chunk_place *place, uint64_t *before_out)
{
    const struct cairn_shape *shape = shape_of(job, place->tensor);
    *before_out = cairn_box_before(box, shape, place->first_elem);
    return cairn_box_before(box, shape, place->first_elem + place->elem_count) - *before_out;
}

/* Fills in where a box has elements. */
static void find_chunks(const struct cairn_shard_job *job, uint32_t tensor,
                        const struct cairn_box *box, struct cairn_held *out)
{
    uint64_t first;
    const uint64_t count = chunks_of(job, tensor, &first);
    *out = (struct cairn_held) { .box = *box, .first_chunk = first };
    for (uint64_t c = first; c < first + count; c++) {
        const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->map, c);
        uint64_t before;
        if (common_elems(job, box, &place, &before) == 0) continue;
        if (out->touched++ == 0) out->first_chunk = c;
        out->chunk_count = c + 1 - out->first_chunk;
    }
}

static uint8_t *mark_of(struct cairn_held *held, uint64_t chunk)
{
    const bool within = chunk >= held->first_chunk && chunk - held->first_chunk < held->chunk_count;
    return within ? &held->mark[chunk - held->first_chunk] : NULL;
}

/* ---- boxes and tensors ---- */

static void *take(struct cairn_shard_job *job, size_t bytes, struct cairn_sentence *why)
{
    if (cairn_shard_job_take(job, &job->memory.tables, bytes, "tiles", why) != CAIRN_OK)
        return NULL;
    void *memory = calloc(1, bytes);
    if (memory == NULL) {
        cairn_shard_job_give(job, &job->memory.tables, bytes);
        cairn_sentence_set(why, "no memory for tiles");
        return NULL;
    }
    return memory;
}

static void give(struct cairn_shard_job *job, void *memory, size_t bytes)
{
    if (memory == NULL) return;
    cairn_shard_job_give(job, &job->memory.tables, bytes);
    free(memory);
}

static void held_free(struct cairn_shard_job *job, struct cairn_held *held)
{
    give(job, held, sizeof *held + (size_t)held->chunk_count);
}

static struct cairn_held *held_open(struct cairn_shard_job *job, uint32_t tensor,
                                    const struct cairn_box *box, struct cairn_sentence *why)
{
    struct cairn_held found;
    find_chunks(job, tensor, box, &found);
    struct cairn_held *held = take(job, sizeof *held + (size_t)found.chunk_count, why);
    if (held != NULL) *held = found;
    return held;
}

static void point_parts(struct cairn_shard_job *job, uint32_t tensor, struct cairn_tiled *tiled)
{
    for (size_t i = first_extent(job, tensor);
         i < job->map.extent_count && job->map.extents[i].tensor == tensor; i++)
        job->parts[i].tiled = tiled;
}

static struct cairn_tiled *tiled_open(struct cairn_shard_job *job, uint32_t tensor,
                                      struct cairn_sentence *why)
{
    const struct cairn_box whole = cairn_box_of_shape(shape_of(job, tensor));
    struct cairn_tiled *tiled = take(job, sizeof *tiled, why);
    if (tiled == NULL) return NULL;
    tiled->held = held_open(job, tensor, &whole, why);
    if (tiled->held == NULL) {
        give(job, tiled, sizeof *tiled);
        return NULL;
    }
    tiled->tensor = tensor;
    tiled->next = job->tiled;
    job->tiled = tiled;
    point_parts(job, tensor, tiled);
    return tiled;
}

/* Frees what nobody holds, if nothing can refer to it. */
static void sweep(struct cairn_shard_job *job)
{
    if (cairn_step_phase_of(job->step) != CAIRN_STEP_IDLE) return;
    if (cairn_step_slots_used(job->step) > 0) return;
    for (uint32_t i = 0; i < job->put_max; i++)
        if (job->puts[i].job != NULL) return;
    struct cairn_tiled **link = &job->tiled;
    while (*link != NULL) {
        struct cairn_tiled *tiled = *link;
        struct cairn_held **at = &tiled->held->next; // the whole stays as long as the tensor
        while (*at != NULL) {
            struct cairn_held *held = *at;
            if (held->holders > 0) {
                at = &held->next;
                continue;
            }
            *at = held->next;
            held_free(job, held);
        }
        if (tiled->held->next != NULL) {
            link = &tiled->next;
            continue;
        }
        *link = tiled->next;
        point_parts(job, tiled->tensor, NULL);
        held_free(job, tiled->held);
        give(job, tiled, sizeof *tiled);
    }
}

void cairn_tiles_free(struct cairn_shard_job *job)
{
    while (job->tiled != NULL) {
        struct cairn_tiled *tiled = job->tiled;
        job->tiled = tiled->next;
        while (tiled->held != NULL) {
            struct cairn_held *held = tiled->held;
            tiled->held = held->next;
            held_free(job, held);
        }
        give(job, tiled, sizeof *tiled);
    }
}

/* The box of that tensor, made if need be. CAIRN_ERR_NO_MEMORY; CAIRN_ERR_BUSY: a round is collecting,
 * whose sums were begun without it. */
static cairn_status held_get(struct cairn_shard_job *job, uint32_t tensor,
                             const struct cairn_box *box, struct cairn_held **held_out,
                             struct cairn_sentence *why)
{
    struct cairn_tiled *tiled = job->parts[first_extent(job, tensor)].tiled;
    struct cairn_held *held = tiled != NULL ? tiled->held : NULL;
    while (held != NULL && !cairn_box_equal(&held->box, box)) held = held->next;
    if (held == NULL && cairn_step_phase_of(job->step) == CAIRN_STEP_COLLECTING)
        return cairn_fail(why, CAIRN_ERR_BUSY, "tiles change between rounds, and one is open");
    if (held == NULL) {
        if (tiled == NULL) tiled = tiled_open(job, tensor, why);
        if (tiled != NULL) held = held_open(job, tensor, box, why);
        if (held == NULL) return CAIRN_ERR_NO_MEMORY;
        held->next = tiled->held->next;
        tiled->held->next = held;
    }
    *held_out = held;
    return CAIRN_OK;
}

/* ---- members ---- */

static const struct cairn_member_tile *tile_of(const struct cairn_member *member, uint32_t tensor)
{
    size_t low = 0, high = member->tile_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (member->tiles[middle].tensor < tensor)
            low = middle + 1;
        else
            high = middle;
    }
    const bool found = low < member->tile_count && member->tiles[low].tensor == tensor;
    return found ? &member->tiles[low] : NULL;
}

static void let_go(const struct cairn_member_tile *tiles, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (tiles[i].held != NULL) tiles[i].held->holders--;
}

void cairn_tiles_forget(struct cairn_member *member)
{
    let_go(member->tiles, member->tile_count);
    give(member->job, member->tiles, member->tile_count * sizeof *member->tiles);
    member->tiles = NULL;
    member->tile_count = 0;
    member->untouched = 0;
    member->tiles_hash = CAIRN_TABLE_HASH_WHOLE;
}

void cairn_tiles_move(struct cairn_member *from, struct cairn_member *to)
{
    to->tiles = from->tiles;
    to->tile_count = from->tile_count;
    to->untouched = from->untouched;
    to->tiles_hash = from->tiles_hash;
    from->tiles = NULL;
    from->tile_count = 0;
}

uint64_t cairn_tiles_touched(const struct cairn_member *member, uint32_t tensor)
{
    const struct cairn_member_tile *tile = tile_of(member, tensor);
    uint64_t first;
    if (tile == NULL || tile->held == NULL) return chunks_of(member->job, tensor, &first);
    return tile->held->touched;
}

static uint64_t count_untouched(const struct cairn_member *member)
{
    uint64_t untouched = 0, first;
    for (size_t i = 0; i < member->tile_count; i++) {
        const struct cairn_member_tile *tile = &member->tiles[i];
        if (member->job->spec.tensors[tile->tensor].kind != CAIRN_TRAINED) continue;
        untouched += chunks_of(member->job, tile->tensor, &first) -
                     cairn_tiles_touched(member, tile->tensor);
    }
    return untouched;
}

/* Takes the chunks [first, end) of the map, of one trained tensor, out of a row of holds. */
static void clear_chunks(const struct cairn_shard_job *job, uint64_t first, uint64_t end,
                         uint8_t *row)
{
    for (uint64_t c = first; c < end; c++) {
        const uint32_t part = job->chunk_part[c];
        const uint64_t number = job->parts[part].grad_chunk +
                                (c - job->map.extents[part].first_chunk);
        row[number / 8] &= (uint8_t) ~(1u << number % 8);
    }
}

/* Takes the chunks of a tensor that the box has no element in out of a row of holds. */
static void clear_beside(const struct cairn_shard_job *job, uint32_t tensor,
                         const struct cairn_held *held, uint8_t *row)
{
    uint64_t first, before;
    const uint64_t count = chunks_of(job, tensor, &first);
    const uint64_t end = held->first_chunk + held->chunk_count;
    clear_chunks(job, first, held->first_chunk, row);
    clear_chunks(job, end, first + count, row);
    if (held->touched == held->chunk_count) return;
    for (uint64_t c = held->first_chunk; c < end; c++) { // a box of short runs, far apart
        const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->map, c);
        if (common_elems(job, &held->box, &place, &before) == 0) clear_chunks(job, c, c + 1, row);
    }
}

static void fill_row(const struct cairn_shard_job *job, const struct cairn_member *member,
                     uint8_t *row)
{
    const size_t count = job->grad_chunk_count;
    memset(row, 0xff, CAIRN_STEP_HOLDS_BYTES(count));
    if (count % 8 != 0) row[count / 8] = (uint8_t)((1u << count % 8) - 1);
    for (size_t i = 0; member != NULL && i < member->tile_count; i++) {
        const struct cairn_member_tile *tile = &member->tiles[i];
        if (tile->held == NULL || job->spec.tensors[tile->tensor].kind != CAIRN_TRAINED) continue;
        clear_beside(job, tile->tensor, tile->held, row);
    }
}

const uint8_t *cairn_tiles_holds(struct cairn_shard_job *job, const uint64_t *members,
                                 uint32_t count)
{
    if (job->tiled == NULL || count > job->slot_count / job->spec.window) return NULL;
    const size_t row = CAIRN_STEP_HOLDS_BYTES(job->grad_chunk_count);
    for (uint32_t i = 0; i < count; i++)
        fill_row(job, cairn_member_find(job, members[i]), job->holds + i * row);
    return job->holds;
}

/* Fills [count] entries of the tensors here; on failure it holds nothing. */
static cairn_status hold_tiles(struct cairn_shard_job *job, const struct cairn_tiles *tiles,
                               struct cairn_member_tile *list, struct cairn_sentence *why)
{
    size_t done = 0;
    for (size_t i = 0; i < tiles->count; i++) {
        const uint32_t tensor = tiles->list[i].tensor;
        const struct cairn_box *box = &tiles->list[i].box;
        if (first_extent(job, tensor) == job->map.extent_count) continue;
        struct cairn_held *held = NULL;
        cairn_status status = CAIRN_OK;
        if (!cairn_box_is_whole(box, shape_of(job, tensor)))
            status = held_get(job, tensor, box, &held, why);
        if (status != CAIRN_OK) {
            let_go(list, done);
            return status;
        }
        if (held != NULL) held->holders++;
        list[done++] = (struct cairn_member_tile) { tensor, held };
    }
    return CAIRN_OK;
}

cairn_status cairn_tiles_set_member(struct cairn_member *member, const struct cairn_tiles *tiles,
                                    struct cairn_sentence *why)
{
    struct cairn_shard_job *job = member->job;
    size_t count = 0;
    for (size_t i = 0; i < tiles->count; i++)
        count += first_extent(job, tiles->list[i].tensor) < job->map.extent_count;
    struct cairn_member_tile *list = NULL;
    if (count > 0) {
        list = take(job, count * sizeof *list, why);
        if (list == NULL) return CAIRN_ERR_NO_MEMORY;
        cairn_status status = hold_tiles(job, tiles, list, why);
        if (status != CAIRN_OK) {
            give(job, list, count * sizeof *list);
            return status;
        }
    }
    cairn_tiles_forget(member);
    member->tiles = list;
    member->tile_count = count;
    member->untouched = count_untouched(member);
    member->tiles_hash = cairn_tiles_hash(tiles);
    sweep(job);
    return CAIRN_OK;
}

/* ---- pieces of chunks ---- */

/* The box that the header means; *held_out NULL: all of the tensor, which is not tiled. */
static cairn_status judge_tile(const struct cairn_member *member,
                               const struct cairn_chunk_header *header, struct cairn_tiled *tiled,
                               struct cairn_held **held_out, struct cairn_sentence *why)
{
    const char *name = member->job->spec.tensors[header->tensor].name;
    const struct cairn_member_tile *tile = tile_of(member, header->tensor);
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
                               const struct cairn_chunk_header *header, uint64_t chunk,
                               const struct cairn_chunk_place *place, struct cairn_piece *piece_out,
                               struct cairn_sentence *why)
{
    const struct cairn_shard_job *job = member->job;
    struct cairn_piece piece = { .count = place->elem_count };
    struct cairn_tiled *tiled = job->parts[job->chunk_part[chunk]].tiled;
    cairn_status status = judge_tile(member, header, tiled, &piece.held, why);
    if (status != CAIRN_OK) return status;
    if (piece.held != NULL) piece.count = common_elems(job, &piece.held->box, place, &piece.first);
    if (piece.count == 0)
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "tensor %.80s: its tile has no element there",
                          job->spec.tensors[header->tensor].name);
    *piece_out = piece;
    return CAIRN_OK;
}

void cairn_tiles_begin_chunk(struct cairn_shard_job *job, uint64_t chunk)
{
    const struct cairn_tiled *tiled = job->parts[job->chunk_part[chunk]].tiled;
    for (struct cairn_held *h = tiled != NULL ? tiled->held : NULL; h != NULL; h = h->next) {
        uint8_t *mark = mark_of(h, chunk);
        if (mark != NULL) *mark = 0;
    }
}

/* The sources of one box, in their order. */
static void fold_box(const struct cairn_fold *fold, const struct cairn_piece *piece,
                     const struct cairn_source *sources, uint32_t count, uint64_t chunk,
                     const struct cairn_chunk_place *place, float *acc)
{
    const struct cairn_shard_job *job = fold->job;
    uint8_t *mark = mark_of(piece->held, chunk);
    assert(mark != NULL); // it has elements there
    const bool first = *mark == 0;
    *mark = 1;
    struct cairn_box_runs runs;
    cairn_box_runs_begin(&runs, &piece->held->box, shape_of(job, place->tensor), place->first_elem,
                         place->elem_count);
    uint64_t elem, box_elem, run;
    while (cairn_box_runs_next(&runs, &elem, &box_elem, &run)) {
        struct cairn_source at[CAIRN_STEP_FOLD_MAX];
        for (uint32_t i = 0; i < count; i++) {
            const size_t skip = (size_t)(box_elem - piece->first);
            const uint8_t *data = sources[i].data;
            at[i] = sources[i];
            at[i].data = data + skip * cairn_dtype_bytes((int)sources[i].dtype);
        }
        job->shard->backend->fold(acc + (elem - place->first_elem), at, count, first, (size_t)run);
    }
}

void cairn_tiles_fold(const struct cairn_fold *fold, uint64_t chunk,
                      const struct cairn_chunk_place *place, float *acc)
{
    if (fold->first) // what nobody contributes stays so
        memset(acc, 0, (size_t)place->elem_count * sizeof *acc);
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
        fold_box(fold, &fold->pieces[i], same, count, chunk, place, acc);
    }
}

void cairn_tiles_put(struct cairn_shard_job *job, uint64_t chunk, const struct cairn_piece *piece,
                     const struct cairn_chunk_place *place, const float *values)
{
    float *param = (float *)job->param.base + place->local_elem;
    struct cairn_box_runs runs;
    cairn_box_runs_begin(&runs, &piece->held->box, shape_of(job, place->tensor), place->first_elem,
                         place->elem_count);
    uint64_t elem, box_elem, run;
    while (cairn_box_runs_next(&runs, &elem, &box_elem, &run))
        memcpy(param + (elem - place->first_elem), values + (box_elem - piece->first),
               (size_t)run * sizeof *param);
    *mark_of(piece->held, chunk) = 1;
}

bool cairn_tiles_put_whole(const struct cairn_shard_job *job, uint64_t chunk)
{
    const struct cairn_tiled *tiled = job->parts[job->chunk_part[chunk]].tiled;
    if (tiled == NULL) return false;
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->map, chunk);
    uint64_t elems = 0, before;
    for (struct cairn_held *h = tiled->held; h != NULL; h = h->next) {
        const uint8_t *mark = mark_of(h, chunk);
        if (h->holders > 0 && mark != NULL && *mark != 0)
            elems += common_elems(job, &h->box, &place, &before);
    }
    return elems == place.elem_count;
}
