/* The tiles of a shard's tensors (proto/wire/wire.h). Tiles are the parts of tensors that workers
 * hold.
 *
 * A tensor is tiled while at least one member holds only a part of it. Each different box of the
 * tensor is kept once, however many members hold the box. A box has a mark for each of its chunks
 * (below). The coordinator has checked that two boxes are either equal or have no element in
 * common, and that all boxes together cover the tensor (tiles_cover). Boxes that nobody holds any
 * more are kept until the job is idle, because slots, puts and folds may refer to them. */
#include <inttypes.h>
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/text.h"
#include "server/shard/base.h"
#include "server/shard/collect.h"
#include "server/shard/shard.h"

/* ---- geometry ---- */

static const struct shape *shape_of(const struct shard_job *job, uint32_t tensor)
{
    return &job->spec.tensors[tensor].shape;
}

/* Returns the tensor's chunks in this part. */
static struct tensor_chunks chunks_of(const struct shard_job *job, uint32_t tensor)
{
    return chunk_table_tensor(job->tiling.table, tensor);
}

uint64_t tiles_common(const struct shard_job *job, const struct cairn_box *box,
                      const struct chunk_place *place, uint64_t *before_out)
{
    const struct shape *shape = shape_of(job, place->tensor);
    *before_out = box_before(box, shape, place->first_elem);
    return box_before(box, shape, place->first_elem + place->elem_count) - *before_out;
}

/* Finds the chunks of the table in which a box has elements. */
static void find_chunks(const struct shard_job *job, const struct chunk_table *table,
                        uint32_t tensor, const struct cairn_box *box, struct held_box *out)
{
    const struct tensor_chunks all = chunk_table_tensor(table, tensor);
    *out = (struct held_box) { .box = *box, .first_chunk = all.first };
    for (uint64_t c = all.first; c < all.first + all.count; c++) {
        const struct chunk_place place = shard_map_chunk(&table->map, c);
        uint64_t before;
        if (tiles_common(job, box, &place, &before) == 0) continue;
        if (out->touched++ == 0) out->first_chunk = c;
        out->chunk_count = c + 1 - out->first_chunk;
    }
}

/* ---- boxes and tensors ---- */

static void *take_tables(struct shard_job *job, size_t bytes, struct sentence *why)
{
    void *memory = counted_malloc(job, &job->memory.tables, bytes, "tiles", why);
    return memory != NULL ? memset(memory, 0, bytes) : NULL;
}

static void give_tables(struct shard_job *job, void *memory, size_t bytes)
{
    counted_free(job, &job->memory.tables, memory, bytes);
}

static void held_free(struct shard_job *job, struct held_box *held)
{
    give_tables(job, held, sizeof *held + (size_t)held->chunk_count);
}

/* Makes a box with marks for its chunks in a table, and takes its memory from the budget. Returns
 * NULL, with `why`, if there is no memory. */
static struct held_box *held_open(struct shard_job *job, const struct chunk_table *table,
                                  uint32_t tensor, const struct cairn_box *box,
                                  struct sentence *why)
{
    struct held_box found;
    find_chunks(job, table, tensor, box, &found);
    struct held_box *held = take_tables(job, sizeof *held + (size_t)found.chunk_count, why);
    if (held != NULL) *held = found;
    return held;
}

static struct tiled *tiled_open(struct shard_job *job, uint32_t tensor, struct sentence *why)
{
    const struct cairn_box whole = box_of_shape(shape_of(job, tensor));
    struct tiled *tiled = take_tables(job, sizeof *tiled, why);
    if (tiled == NULL) return NULL;
    tiled->held = held_open(job, job->tiling.table, tensor, &whole, why);
    if (tiled->held == NULL) {
        give_tables(job, tiled, sizeof *tiled);
        return NULL;
    }
    tiled->tensor = tensor;
    tiled->next = job->tiling.list;
    job->tiling.list = tiled;
    job->tiling.of[tensor] = tiled;
    return tiled;
}

bool tiles_rest(const struct shard_job *job)
{
    if (step_phase_of(job->collector.step) == CAIRN_STEP_COLLECTING ||
        step_slots_used(job->collector.step) > 0)
        return false;
    for (uint32_t i = 0; i < job->puts.max; i++)
        if (job->puts.list[i].job != NULL) return false;
    return true;
}

/* If nothing can refer to boxes but members, frees the boxes that no member holds. */
static void sweep_held(struct shard_job *job)
{
    if (step_phase_of(job->collector.step) != CAIRN_STEP_IDLE || !tiles_rest(job)) return;
    struct tiled **link = &job->tiling.list;
    while (*link != NULL) {
        struct tiled *tiled = *link;
        // the first box, which is the whole tensor, stays
        struct held_box **at = &tiled->held->next;
        while (*at != NULL) {
            struct held_box *held = *at;
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
        job->tiling.of[tiled->tensor] = NULL;
        held_free(job, tiled->held);
        give_tables(job, tiled, sizeof *tiled);
    }
}

/* Returns memory for the result of tiles_holds with this table; the caller frees the memory.
 * Returns NULL if there is no memory. */
static uint8_t *tiles_holds_open(const struct shard_job *job, const struct chunk_table *table)
{
    const size_t members = job->collector.slot_count / job->landing.window;
    return malloc(members * CAIRN_STEP_HOLDS_BYTES(table->trained_count) + 1);
}

cairn_status tiles_open(struct shard_job *job, const struct chunk_table *table)
{
    job->tiling.table = table;
    job->tiling.holds = tiles_holds_open(job, table);
    job->tiling.of = calloc(job->spec.tensor_count + 1, sizeof *job->tiling.of);
    return job->tiling.holds != NULL && job->tiling.of != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

void tiles_close(struct shard_job *job)
{
    free(job->tiling.holds);
    free(job->tiling.of);
    while (job->tiling.list != NULL) {
        struct tiled *tiled = job->tiling.list;
        job->tiling.list = tiled->next;
        while (tiled->held != NULL) {
            struct held_box *held = tiled->held;
            tiled->held = held->next;
            held_free(job, held);
        }
        give_tables(job, tiled, sizeof *tiled);
    }
}

/* Finds a box of the tensor; makes the box if it does not exist. CAIRN_ERR_NO_MEMORY.
 * CAIRN_ERR_BUSY: a round is collecting, whose sums were begun without this box. */
static cairn_status held_get(struct shard_job *job, uint32_t tensor, const struct cairn_box *box,
                             struct held_box **held_out, struct sentence *why)
{
    struct tiled *tiled = job->tiling.of[tensor];
    struct held_box *held = tiled != NULL ? tiled->held : NULL;
    while (held != NULL && !box_equal(&held->box, box)) held = held->next;
    if (held == NULL && step_phase_of(job->collector.step) == CAIRN_STEP_COLLECTING)
        return fail_with(why, CAIRN_ERR_BUSY, "tiles change between rounds, and one is open");
    if (held == NULL) {
        if (tiled == NULL) tiled = tiled_open(job, tensor, why);
        if (tiled != NULL) held = held_open(job, job->tiling.table, tensor, box, why);
        if (held == NULL) return CAIRN_ERR_NO_MEMORY;
        held->next = tiled->held->next;
        tiled->held->next = held;
    }
    *held_out = held;
    return CAIRN_OK;
}

/* ---- members ---- */

/* Returns the part of the tensor that the member declared to hold; NULL if the member declared no
 * part. */
static const struct member_tile *tiles_of_member(const struct shard_member *member, uint32_t tensor)
{
    const size_t low = lower_bound(member->tiles, member->tile_count, sizeof *member->tiles,
                                   offsetof(struct member_tile, tensor), tensor);
    const bool found = low < member->tile_count && member->tiles[low].tensor == tensor;
    return found ? &member->tiles[low] : NULL;
}

static void let_go(const struct member_tile *tiles, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (tiles[i].held != NULL) tiles[i].held->holders--;
}

void tiles_forget(struct shard_member *member)
{
    let_go(member->tiles, member->tile_count);
    give_tables(member->job, member->tiles, member->tile_count * sizeof *member->tiles);
    member->tiles = NULL;
    member->tile_count = 0;
    member->untouched = 0;
    member->tiles_hash = CAIRN_TABLE_HASH_WHOLE;
}

void tiles_move(struct shard_member *from, struct shard_member *to)
{
    to->tiles = from->tiles;
    to->tile_count = from->tile_count;
    to->untouched = from->untouched;
    to->tiles_hash = from->tiles_hash;
    from->tiles = NULL;
    from->tile_count = 0;
}

uint64_t tiles_touched(const struct shard_member *member, uint32_t tensor)
{
    const struct member_tile *tile = tiles_of_member(member, tensor);
    if (tile == NULL || tile->held == NULL) return chunks_of(member->job, tensor).count;
    return tile->held->touched;
}

/* Sets the member's `untouched` to the present number of such chunks. */
static void tiles_count(struct shard_member *member)
{
    uint64_t untouched = 0;
    for (size_t i = 0; i < member->tile_count; i++) {
        const struct member_tile *tile = &member->tiles[i];
        if (member->job->spec.tensors[tile->tensor].kind != CAIRN_TRAINED) continue;
        untouched += chunks_of(member->job, tile->tensor).count -
                     tiles_touched(member, tile->tensor);
    }
    member->untouched = untouched;
}

/* Removes the chunks [first, end) of the map, which belong to one trained tensor, from a row of
 * tiling.holds. */
static void clear_chunks(const struct shard_job *job, uint64_t first, uint64_t end, uint8_t *row)
{
    const struct chunk_table *table = job->tiling.table;
    for (uint64_t c = first; c < end; c++) {
        const uint32_t extent = table->extent_of[c];
        const uint64_t number = table->first[extent] + (c - table->map.extents[extent].first_chunk);
        row[number / 8] &= (uint8_t) ~(1u << number % 8);
    }
}

/* Removes those chunks of a tensor in which the box has no element from a row of tiling.holds. */
static void clear_beside(const struct shard_job *job, uint32_t tensor, const struct held_box *held,
                         uint8_t *row)
{
    uint64_t before;
    const struct tensor_chunks all = chunks_of(job, tensor);
    const uint64_t end = held->first_chunk + held->chunk_count;
    clear_chunks(job, all.first, held->first_chunk, row);
    clear_chunks(job, end, all.first + all.count, row);
    if (held->touched == held->chunk_count) return;
    // the box has no element in some of these chunks
    for (uint64_t c = held->first_chunk; c < end; c++) {
        const struct chunk_place place = shard_map_chunk(&job->tiling.table->map, c);
        if (tiles_common(job, &held->box, &place, &before) == 0) clear_chunks(job, c, c + 1, row);
    }
}

static void fill_row(const struct shard_job *job, const struct shard_member *member, uint8_t *row)
{
    const size_t count = job->tiling.table->trained_count;
    memset(row, 0xff, CAIRN_STEP_HOLDS_BYTES(count));
    if (count % 8 != 0) row[count / 8] = (uint8_t)((1u << count % 8) - 1);
    for (size_t i = 0; member != NULL && i < member->tile_count; i++) {
        const struct member_tile *tile = &member->tiles[i];
        if (tile->held == NULL || job->spec.tensors[tile->tensor].kind != CAIRN_TRAINED) continue;
        clear_beside(job, tile->tensor, tile->held, row);
    }
}

const uint8_t *tiles_holds(struct shard_job *job, const uint64_t *members, uint32_t count)
{
    if (job->tiling.list == NULL || count > job->collector.slot_count / job->landing.window)
        return NULL;
    const size_t row = CAIRN_STEP_HOLDS_BYTES(job->tiling.table->trained_count);
    for (uint32_t i = 0; i < count; i++)
        fill_row(job, member_find(job, members[i]), job->tiling.holds + i * row);
    return job->tiling.holds;
}

/* Fills in tiles->count entries of the list, and counts the member as a holder of their boxes. On
 * failure it is not counted for any box. */
static cairn_status hold_tiles(struct shard_job *job, const struct tiles *tiles,
                               struct member_tile *list, struct sentence *why)
{
    size_t done = 0;
    for (size_t i = 0; i < tiles->count; i++) {
        const uint32_t tensor = tiles->list[i].tensor;
        const struct cairn_box *box = &tiles->list[i].box;
        struct held_box *held = NULL;
        cairn_status status = CAIRN_OK;
        if (!box_is_whole(box, shape_of(job, tensor)))
            status = held_get(job, tensor, box, &held, why);
        if (status != CAIRN_OK) {
            let_go(list, done);
            return status;
        }
        if (held != NULL) held->holders++;
        list[done++] = (struct member_tile) { tensor, held };
    }
    return CAIRN_OK;
}

cairn_status tiles_set_member(struct shard_member *member, const struct tiles *tiles,
                              struct sentence *why)
{
    struct shard_job *job = member->job;
    const size_t count = tiles->count;
    struct member_tile *list = NULL;
    if (count > 0) {
        list = take_tables(job, count * sizeof *list, why);
        if (list == NULL) return CAIRN_ERR_NO_MEMORY;
        cairn_status status = hold_tiles(job, tiles, list, why);
        if (status != CAIRN_OK) {
            give_tables(job, list, count * sizeof *list);
            return status;
        }
    }
    tiles_forget(member);
    member->tiles = list;
    member->tile_count = count;
    tiles_count(member);
    member->tiles_hash = tiles_digest(tiles);
    sweep_held(job);
    return CAIRN_OK;
}

/* ==== tiles pieces ==== */

/* This section puts and folds pieces. A piece is the part of a chunk that lies in a box that a
 * member holds.
 *
 * A box has a mark for each of its chunks, which says whether the box was folded into the chunk's
 * sum in this round. So the first contribution to an element is copied, and later contributions are
 * added, as in a tensor that all members hold completely. Elements to which nobody contributed are
 * +0. The loop clears the marks of a chunk between folds of the chunk. A fold reads and writes only
 * the marks of its own chunk. */

static uint8_t *mark_of(struct held_box *held, uint64_t chunk)
{
    const bool within = chunk >= held->first_chunk && chunk - held->first_chunk < held->chunk_count;
    return within ? &held->mark[chunk - held->first_chunk] : NULL;
}

/* Returns the boxes of the tensor to which the chunk belongs; NULL if every member holds the whole
 * tensor. */
static const struct tiled *tiled_of(const struct shard_job *job, uint64_t chunk)
{
    const struct chunk_table *table = job->tiling.table;
    return job->tiling.of[table->map.extents[table->extent_of[chunk]].tensor];
}

/* Finds the box that the header means. *held_out is NULL if the header means the whole of a tensor
 * that is not tiled. */
static cairn_status judge_tile(const struct shard_member *member, const struct chunk_header *header,
                               const struct tiled *tiled, struct held_box **held_out,
                               struct sentence *why)
{
    const char *name = member->job->spec.tensors[header->tensor].name;
    const struct member_tile *tile = tiles_of_member(member, header->tensor);
    const bool own = header->tile == CAIRN_TILE_OWN, push = header->kind == CAIRN_CHUNK_PUSH;
    if ((own || push) && header->table_hash != member->tiles_hash)
        return fail_with(why, CAIRN_ERR_MISMATCH,
                         "tensor %.80s: it is of tiles %016" PRIx64
                         ", its worker declared %016" PRIx64,
                         name, header->table_hash, member->tiles_hash);
    if (own && tile == NULL)
        return fail_with(why, CAIRN_ERR_MISMATCH, "tensor %.80s: its worker declared no tile of it",
                         name);
    if (push && !own && tile != NULL && tile->held != NULL)
        return fail_with(why, CAIRN_ERR_MISMATCH,
                         "tensor %.80s: a whole chunk, of a worker that holds a part", name);
    *held_out = tiled != NULL ? tiled->held : NULL;
    if (own && tile->held != NULL) *held_out = tile->held;
    return CAIRN_OK;
}

cairn_status tiles_piece(const struct shard_member *member, const struct chunk_header *header,
                         const struct chunk_place *place, struct chunk_piece *piece_out,
                         struct sentence *why)
{
    const struct shard_job *job = member->job;
    struct chunk_piece piece = { .count = place->elem_count };
    const struct tiled *tiled = job->tiling.of[place->tensor];
    CAIRN_TRY(judge_tile(member, header, tiled, &piece.held, why));
    if (piece.held != NULL) piece.count = tiles_common(job, &piece.held->box, place, &piece.first);
    if (piece.count == 0)
        return fail_with(why, CAIRN_ERR_MALFORMED, "tensor %.80s: its tile has no element there",
                         job->spec.tensors[header->tensor].name);
    *piece_out = piece;
    return CAIRN_OK;
}

void tiles_begin_chunk(struct shard_job *job, uint64_t chunk)
{
    const struct tiled *tiled = tiled_of(job, chunk);
    for (struct held_box *h = tiled != NULL ? tiled->held : NULL; h != NULL; h = h->next) {
        uint8_t *mark = mark_of(h, chunk);
        if (mark != NULL) *mark = 0;
    }
}

/* Folds the sources of one box, in their order. */
static void fold_box(struct works *works, const struct fold *fold, const struct chunk_piece *piece,
                     const struct fold_source *sources, uint32_t count, uint64_t chunk,
                     const struct chunk_place *place, float *acc)
{
    const struct shard_job *job = fold->collector->job;
    uint8_t *mark = mark_of(piece->held, chunk);
    assert(mark != NULL); // the box has elements in the chunk, so it has a mark there
    const bool first = *mark == 0;
    *mark = 1;
    struct box_runs runs;
    box_runs_begin(&runs, &piece->held->box, &job->spec.tensors[place->tensor].shape,
                   place->first_elem, place->elem_count);
    uint64_t elem, box_elem, run;
    while (box_runs_next(&runs, &elem, &box_elem, &run)) {
        struct fold_source at[CAIRN_STEP_FOLD_MAX];
        for (uint32_t i = 0; i < count; i++) {
            const size_t skip = (size_t)(box_elem - piece->first);
            const uint8_t *data = sources[i].data;
            at[i] = sources[i];
            at[i].data = data + skip * dtype_size((int)sources[i].dtype);
        }
        works_fold(works, acc + (elem - place->first_elem), at, count, first, (size_t)run);
    }
}

void tiles_fold(struct works *works, const struct fold *fold, uint64_t chunk,
                const struct chunk_place *place, float *acc)
{
    // Different boxes have no element in common, so each box is folded by itself.
    bool done[CAIRN_STEP_FOLD_MAX] = { false };
    for (uint32_t i = 0; i < fold->source_count; i++) {
        if (done[i]) continue;
        struct fold_source same[CAIRN_STEP_FOLD_MAX];
        uint32_t count = 0;
        for (uint32_t k = i; k < fold->source_count; k++) {
            if (fold->pieces[k].held != fold->pieces[i].held) continue;
            same[count++] = fold->sources[k];
            done[k] = true;
        }
        fold_box(works, fold, &fold->pieces[i], same, count, chunk, place, acc);
    }
}

void tiles_put(struct shard_job *job, uint64_t chunk, const struct chunk_piece *piece,
               const struct chunk_place *place, const float *values)
{
    const struct works_box of = { &piece->held->box, &job->spec.tensors[place->tensor].shape,
                                  place->first_elem, place->elem_count, sizeof *values };
    (void)works_unpack(compute_loop(job->compute), &of,
                       planes_at(&job->planes, CAIRN_PLANE_PARAM,
                                 job->tiling.table->extent_of[chunk], place->local_elem),
                       values);
    *mark_of(piece->held, chunk) = 1;
}

bool tiles_put_whole(const struct shard_job *job, uint64_t chunk)
{
    const struct tiled *tiled = tiled_of(job, chunk);
    if (tiled == NULL) return false;
    const struct chunk_place place = shard_map_chunk(&job->tiling.table->map, chunk);
    uint64_t elems = 0, before;
    for (struct held_box *h = tiled->held; h != NULL; h = h->next) {
        const uint8_t *mark = mark_of(h, chunk);
        if (h->holders > 0 && mark != NULL && *mark != 0)
            elems += tiles_common(job, &h->box, &place, &before);
    }
    return elems == place.elem_count;
}

/* ==== tiles switch ==== */

/* Converts tiles to another table. The members hold the same boxes, but the boxes lie in other
 * chunks. */

/* True if the tensor's extents are the same in both tables. The tensor's chunks may have other
 * numbers. */
static bool is_same(const struct chunk_table *a, const struct chunk_table *b, uint32_t tensor)
{
    const struct tensor_chunks in_a = chunk_table_tensor(a, tensor);
    const struct tensor_chunks in_b = chunk_table_tensor(b, tensor);
    if (in_a.extent_count != in_b.extent_count) return false;
    for (size_t i = 0; i < in_a.extent_count; i++) {
        const struct local_extent *x = &a->map.extents[in_a.first_extent + i];
        const struct local_extent *y = &b->map.extents[in_b.first_extent + i];
        if (x->first_leaf != y->first_leaf || x->leaf_count != y->leaf_count) return false;
    }
    return true;
}

static cairn_status ready_tensor(struct shard_job *job, const struct chunk_table *table,
                                 struct tiled *tiled, struct sentence *why)
{
    const bool same = is_same(job->tiling.table, table, tiled->tensor);
    const uint64_t was = chunk_table_tensor(job->tiling.table, tiled->tensor).first;
    const uint64_t is = chunk_table_tensor(table, tiled->tensor).first;
    for (struct held_box *held = tiled->held; held != NULL; held = held->next) {
        held->moved_first = is + (held->first_chunk - was);
        if (same) continue;
        held->moved = held_open(job, table, tiled->tensor, &held->box, why);
        if (held->moved == NULL) return CAIRN_ERR_NO_MEMORY;
    }
    return CAIRN_OK;
}

cairn_status tiles_ready(struct shard_job *job, const struct chunk_table *table,
                         uint8_t **holds_out, struct sentence *why)
{
    if (!tiles_rest(job))
        return fail_with(why, CAIRN_ERR_BUSY, "chunks of job %s are on their way", job->spec.name);
    uint8_t *holds = tiles_holds_open(job, table);
    if (holds == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the tiles of job %s",
                         job->spec.name);
    cairn_status status = CAIRN_OK;
    for (struct tiled *tiled = job->tiling.list; tiled != NULL && status == CAIRN_OK;
         tiled = tiled->next)
        status = ready_tensor(job, table, tiled, why);
    if (status == CAIRN_OK)
        *holds_out = holds;
    else
        tiles_unready(job, holds);
    return status;
}

void tiles_unready(struct shard_job *job, uint8_t *holds)
{
    free(holds);
    for (struct tiled *tiled = job->tiling.list; tiled != NULL; tiled = tiled->next) {
        for (struct held_box *held = tiled->held; held != NULL; held = held->next) {
            if (held->moved != NULL) held_free(job, held->moved);
            held->moved = NULL;
        }
    }
}

static void point_members(struct shard_job *job)
{
    for (size_t i = 0; i < job->members.capacity; i++) {
        struct shard_member *member = job->members.list[i];
        if (member == NULL) continue;
        for (size_t t = 0; t < member->tile_count; t++) {
            struct held_box *held = member->tiles[t].held;
            if (held != NULL && held->moved != NULL) member->tiles[t].held = held->moved;
        }
    }
}

/* Replaces the boxes of one tensor by those that ready_tensor made. The order of the boxes stays
 * the same. */
static void replace(struct shard_job *job, struct tiled *tiled)
{
    for (struct held_box **link = &tiled->held; *link != NULL; link = &(*link)->next) {
        struct held_box *held = *link, *moved = held->moved;
        held->first_chunk = held->moved_first;
        if (moved == NULL) continue;
        moved->holders = held->holders;
        moved->next = held->next;
        *link = moved;
        held_free(job, held);
    }
}

void tiles_switch(struct shard_job *job, const struct chunk_table *table, uint8_t *holds)
{
    point_members(job);
    for (struct tiled *tiled = job->tiling.list; tiled != NULL; tiled = tiled->next)
        replace(job, tiled);
    free(job->tiling.holds);
    job->tiling.holds = holds;
    job->tiling.table = table;
    for (size_t i = 0; i < job->members.capacity; i++)
        if (job->members.list[i] != NULL) tiles_count(job->members.list[i]);
}

/* ==== tiles told ==== */

/* Handles MemberTiles, the list of a member's tiles, which arrives in pages. */

static cairn_status judge_tiling(const struct shard_job *job, const struct arriving *tiling,
                                 struct tiles *tiles_out, struct sentence *why)
{
    const Cairn__MemberTiles *message = (const Cairn__MemberTiles *)tiling->message;
    struct tiles tiles;
    CAIRN_TRY(
        tiles_unpack(tiling->paged[0].bytes, tiling->paged[0].have_bytes, &job->spec, &tiles, why));
    if (tiles_digest(&tiles) != message->tiles_hash) {
        tiles_release(&tiles);
        return fail_with(why, CAIRN_ERR_MALFORMED, "the hash of the tiles is not the one given");
    }
    *tiles_out = tiles;
    return CAIRN_OK;
}

/* Takes a list of tiles whose pages have all been received. */
static cairn_status take_tiling(struct shard_daemon *shard, const struct arriving *tiling,
                                struct sentence *why)
{
    const Cairn__MemberTiles *message = (const Cairn__MemberTiles *)tiling->message;
    struct shard_job *job = shard_job_find(shard, message->job);
    struct shard_member *member = NULL;
    if (job != NULL && job->state != CAIRN_JOB_FAULTED) member = member_find(job, message->member);
    if (member == NULL)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "shard %s knows no such member of that job",
                         shard->name);
    struct tiles tiles;
    CAIRN_TRY(judge_tiling(job, tiling, &tiles, why));
    cairn_status status = tiles_set_member(member, &tiles, why);
    if (status == CAIRN_OK) {
        job->tiling.world = message->world;
        log_debug("%s of job %s holds tiles of %zu tensors", member->name, job->spec.name,
                  tiles.count);
    }
    tiles_release(&tiles);
    return status;
}

static void tiling_whole(struct shard_daemon *shard, struct arriving *tiling)
{
    struct sentence why = { "" };
    const cairn_status status = take_tiling(shard, tiling, &why);
    arriving_end(shard, tiling, status, &why);
}

static const struct arriving_kind kind = {
    .name = "a list of a member's tiles",
    .what = { CAIRN_PAGE_TILES },
    .bytes_at = { offsetof(Cairn__MemberTiles, tiles_bytes) },
    .may_be_empty = true,
    .whole = tiling_whole,
};

const struct shard_module tile_module = {
    .messages = (const struct shard_message[]) { { CAIRN_MSG_MEMBER_TILES, .pages = &kind },
                                                 { 0 } },
};
