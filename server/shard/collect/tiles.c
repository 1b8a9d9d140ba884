/* The parts of the tensors here that workers hold: proto/wire/tiles.h, at a shard.
 *
 * A tensor is tiled while some member does not hold all of it. Its different boxes are kept once,
 * however many members hold them, each with a mark for each chunk (tiles_pieces.c). The coordinator
 * has checked that no two boxes overlap without being equal, and that they make up the tensor
 * (cairn_tiles_cover). Boxes that nobody holds any more are kept until the job is idle: slots, puts
 * and folds may refer to them. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/lower_bound.h"
#include "server/shard/collect/tiles_held.h"
#include "server/shard/shard.h"

/* ---- geometry ---- */

static const struct cairn_shape *shape_of(const struct cairn_shard_job *job, uint32_t tensor)
{
    return &job->spec.tensors[tensor].shape;
}

static const struct cairn_shard_map *map_of(const struct cairn_shard_job *job)
{
    return &job->tiling.table->map;
}

/* The tensor's chunks here. */
static struct cairn_tensor_chunks chunks_of(const struct cairn_shard_job *job, uint32_t tensor)
{
    return cairn_chunk_table_tensor(job->tiling.table, tensor);
}

uint64_t cairn_tiles_common(const struct cairn_shard_job *job, const struct cairn_box *box,
                            const struct cairn_chunk_place *place, uint64_t *before_out)
{
    const struct cairn_shape *shape = shape_of(job, place->tensor);
    *before_out = cairn_box_before(box, shape, place->first_elem);
    return cairn_box_before(box, shape, place->first_elem + place->elem_count) - *before_out;
}

/* Fills in where a box has elements. */
static void find_chunks(const struct cairn_shard_job *job, const struct cairn_chunk_table *table,
                        uint32_t tensor, const struct cairn_box *box, struct cairn_held *out)
{
    const struct cairn_tensor_chunks all = cairn_chunk_table_tensor(table, tensor);
    *out = (struct cairn_held) { .box = *box, .first_chunk = all.first };
    for (uint64_t c = all.first; c < all.first + all.count; c++) {
        const struct cairn_chunk_place place = cairn_shard_map_chunk(&table->map, c);
        uint64_t before;
        if (cairn_tiles_common(job, box, &place, &before) == 0) continue;
        if (out->touched++ == 0) out->first_chunk = c;
        out->chunk_count = c + 1 - out->first_chunk;
    }
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

void cairn_held_free(struct cairn_shard_job *job, struct cairn_held *held)
{
    give(job, held, sizeof *held + (size_t)held->chunk_count);
}

struct cairn_held *cairn_held_open(struct cairn_shard_job *job,
                                   const struct cairn_chunk_table *table, uint32_t tensor,
                                   const struct cairn_box *box, struct cairn_sentence *why)
{
    struct cairn_held found;
    find_chunks(job, table, tensor, box, &found);
    struct cairn_held *held = take(job, sizeof *held + (size_t)found.chunk_count, why);
    if (held != NULL) *held = found;
    return held;
}

static struct cairn_tiled *tiled_open(struct cairn_shard_job *job, uint32_t tensor,
                                      struct cairn_sentence *why)
{
    const struct cairn_box whole = cairn_box_of_shape(shape_of(job, tensor));
    struct cairn_tiled *tiled = take(job, sizeof *tiled, why);
    if (tiled == NULL) return NULL;
    tiled->held = cairn_held_open(job, job->tiling.table, tensor, &whole, why);
    if (tiled->held == NULL) {
        give(job, tiled, sizeof *tiled);
        return NULL;
    }
    tiled->tensor = tensor;
    tiled->next = job->tiling.list;
    job->tiling.list = tiled;
    job->tiling.of[tensor] = tiled;
    return tiled;
}

bool cairn_tiles_rest(const struct cairn_shard_job *job)
{
    if (cairn_step_phase_of(job->collector.step) == CAIRN_STEP_COLLECTING ||
        cairn_step_slots_used(job->collector.step) > 0)
        return false;
    for (uint32_t i = 0; i < job->puts.max; i++)
        if (job->puts.list[i].job != NULL) return false;
    return true;
}

/* Frees what nobody holds, if nothing can refer to it. */
static void sweep(struct cairn_shard_job *job)
{
    if (cairn_step_phase_of(job->collector.step) != CAIRN_STEP_IDLE || !cairn_tiles_rest(job))
        return;
    struct cairn_tiled **link = &job->tiling.list;
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
            cairn_held_free(job, held);
        }
        if (tiled->held->next != NULL) {
            link = &tiled->next;
            continue;
        }
        *link = tiled->next;
        job->tiling.of[tiled->tensor] = NULL;
        cairn_held_free(job, tiled->held);
        give(job, tiled, sizeof *tiled);
    }
}

uint8_t *cairn_tiles_holds_open(const struct cairn_shard_job *job,
                                const struct cairn_chunk_table *table)
{
    const size_t members = job->collector.slot_count / job->landing.window;
    return malloc(members * CAIRN_STEP_HOLDS_BYTES(table->trained_count) + 1);
}

cairn_status cairn_tiles_open(struct cairn_shard_job *job, const struct cairn_chunk_table *table)
{
    job->tiling.table = table;
    job->tiling.holds = cairn_tiles_holds_open(job, table);
    job->tiling.of = calloc(job->spec.tensor_count + 1, sizeof *job->tiling.of);
    return job->tiling.holds != NULL && job->tiling.of != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

void cairn_tiles_close(struct cairn_shard_job *job)
{
    free(job->tiling.holds);
    free(job->tiling.of);
    while (job->tiling.list != NULL) {
        struct cairn_tiled *tiled = job->tiling.list;
        job->tiling.list = tiled->next;
        while (tiled->held != NULL) {
            struct cairn_held *held = tiled->held;
            tiled->held = held->next;
            cairn_held_free(job, held);
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
    struct cairn_tiled *tiled = job->tiling.of[tensor];
    struct cairn_held *held = tiled != NULL ? tiled->held : NULL;
    while (held != NULL && !cairn_box_equal(&held->box, box)) held = held->next;
    if (held == NULL && cairn_step_phase_of(job->collector.step) == CAIRN_STEP_COLLECTING)
        return cairn_fail(why, CAIRN_ERR_BUSY, "tiles change between rounds, and one is open");
    if (held == NULL) {
        if (tiled == NULL) tiled = tiled_open(job, tensor, why);
        if (tiled != NULL) held = cairn_held_open(job, job->tiling.table, tensor, box, why);
        if (held == NULL) return CAIRN_ERR_NO_MEMORY;
        held->next = tiled->held->next;
        tiled->held->next = held;
    }
    *held_out = held;
    return CAIRN_OK;
}

/* ---- members ---- */

const struct cairn_member_tile *cairn_tiles_of_member(const struct cairn_member *member,
                                                      uint32_t tensor)
{
    const size_t low = cairn_lower_bound(member->tiles, member->tile_count, sizeof *member->tiles,
                                         offsetof(struct cairn_member_tile, tensor), tensor);
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
    const struct cairn_member_tile *tile = cairn_tiles_of_member(member, tensor);
    if (tile == NULL || tile->held == NULL) return chunks_of(member->job, tensor).count;
    return tile->held->touched;
}

void cairn_tiles_count(struct cairn_member *member)
{
    uint64_t untouched = 0;
    for (size_t i = 0; i < member->tile_count; i++) {
        const struct cairn_member_tile *tile = &member->tiles[i];
        if (member->job->spec.tensors[tile->tensor].kind != CAIRN_TRAINED) continue;
        untouched += chunks_of(member->job, tile->tensor).count -
                     cairn_tiles_touched(member, tile->tensor);
    }
    member->untouched = untouched;
}

/* Takes the chunks [first, end) of the map, of one trained tensor, out of a row of holds. */
static void clear_chunks(const struct cairn_shard_job *job, uint64_t first, uint64_t end,
                         uint8_t *row)
{
    const struct cairn_chunk_table *table = job->tiling.table;
    for (uint64_t c = first; c < end; c++) {
        const uint32_t extent = table->extent_of[c];
        const uint64_t number = table->first[extent] + (c - table->map.extents[extent].first_chunk);
        row[number / 8] &= (uint8_t) ~(1u << number % 8);
    }
}

/* Takes the chunks of a tensor that the box has no element in out of a row of holds. */
static void clear_beside(const struct cairn_shard_job *job, uint32_t tensor,
                         const struct cairn_held *held, uint8_t *row)
{
    uint64_t before;
    const struct cairn_tensor_chunks all = chunks_of(job, tensor);
    const uint64_t end = held->first_chunk + held->chunk_count;
    clear_chunks(job, all.first, held->first_chunk, row);
    clear_chunks(job, end, all.first + all.count, row);
    if (held->touched == held->chunk_count) return;
    for (uint64_t c = held->first_chunk; c < end; c++) { // a box of short runs, far apart
        const struct cairn_chunk_place place = cairn_shard_map_chunk(map_of(job), c);
        if (cairn_tiles_common(job, &held->box, &place, &before) == 0)
            clear_chunks(job, c, c + 1, row);
    }
}

static void fill_row(const struct cairn_shard_job *job, const struct cairn_member *member,
                     uint8_t *row)
{
    const size_t count = job->tiling.table->trained_count;
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
    if (job->tiling.list == NULL || count > job->collector.slot_count / job->landing.window)
        return NULL;
    const size_t row = CAIRN_STEP_HOLDS_BYTES(job->tiling.table->trained_count);
    for (uint32_t i = 0; i < count; i++)
        fill_row(job, cairn_member_find(job, members[i]), job->tiling.holds + i * row);
    return job->tiling.holds;
}

/* Fills [tiles->count] entries; on failure it holds nothing. */
static cairn_status hold_tiles(struct cairn_shard_job *job, const struct cairn_tiles *tiles,
                               struct cairn_member_tile *list, struct cairn_sentence *why)
{
    size_t done = 0;
    for (size_t i = 0; i < tiles->count; i++) {
        const uint32_t tensor = tiles->list[i].tensor;
        const struct cairn_box *box = &tiles->list[i].box;
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
    const size_t count = tiles->count;
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
    cairn_tiles_count(member);
    member->tiles_hash = cairn_tiles_hash(tiles);
    sweep(job);
    return CAIRN_OK;
}
