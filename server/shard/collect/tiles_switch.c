/* Tiles by another table: the same boxes of the same members, in other chunks. */
#include <assert.h>
#include <stdlib.h>

#include "server/shard/collect/tiles_held.h"
#include "server/shard/shard.h"

/* The tensor's extents are the same in both: its chunks have other numbers at most. */
static bool is_same(const struct cairn_chunk_table *a, const struct cairn_chunk_table *b,
                    uint32_t tensor)
{
    const struct cairn_tensor_chunks in_a = cairn_chunk_table_tensor(a, tensor);
    const struct cairn_tensor_chunks in_b = cairn_chunk_table_tensor(b, tensor);
    if (in_a.extent_count != in_b.extent_count) return false;
    for (size_t i = 0; i < in_a.extent_count; i++) {
        const struct cairn_local_extent *x = &a->map.extents[in_a.first_extent + i];
        const struct cairn_local_extent *y = &b->map.extents[in_b.first_extent + i];
        if (x->first_leaf != y->first_leaf || x->leaf_count != y->leaf_count) return false;
    }
    return true;
}

static cairn_status ready_tensor(struct cairn_shard_job *job, const struct cairn_chunk_table *table,
                                 struct cairn_tiled *tiled, struct cairn_sentence *why)
{
    const bool same = is_same(job->tiling.table, table, tiled->tensor);
    const uint64_t was = cairn_chunk_table_tensor(job->tiling.table, tiled->tensor).first;
    const uint64_t is = cairn_chunk_table_tensor(table, tiled->tensor).first;
    for (struct cairn_held *held = tiled->held; held != NULL; held = held->next) {
        held->moved_first = is + (held->first_chunk - was);
        if (same) continue;
        held->moved = cairn_held_open(job, table, tiled->tensor, &held->box, why);
        if (held->moved == NULL) return CAIRN_ERR_NO_MEMORY;
    }
    return CAIRN_OK;
}

cairn_status cairn_tiles_ready(struct cairn_shard_job *job, const struct cairn_chunk_table *table,
                               uint8_t **holds_out, struct cairn_sentence *why)
{
    if (!cairn_tiles_rest(job))
        return cairn_fail(why, CAIRN_ERR_BUSY, "chunks of job %s are on their way", job->spec.name);
    uint8_t *holds = cairn_tiles_holds_open(job, table);
    if (holds == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the tiles of job %s",
                          job->spec.name);
    cairn_status status = CAIRN_OK;
    for (struct cairn_tiled *tiled = job->tiling.list; tiled != NULL && status == CAIRN_OK;
         tiled = tiled->next)
        status = ready_tensor(job, table, tiled, why);
    if (status == CAIRN_OK)
        *holds_out = holds;
    else
        cairn_tiles_unready(job, holds);
    return status;
}

void cairn_tiles_unready(struct cairn_shard_job *job, uint8_t *holds)
{
    free(holds);
    for (struct cairn_tiled *tiled = job->tiling.list; tiled != NULL; tiled = tiled->next) {
        for (struct cairn_held *held = tiled->held; held != NULL; held = held->next) {
            if (held->moved != NULL) cairn_held_free(job, held->moved);
            held->moved = NULL;
        }
    }
}

static void point_members(struct cairn_shard_job *job)
{
    for (size_t i = 0; i < job->members.capacity; i++) {
        struct cairn_member *member = job->members.list[i];
        if (member == NULL) continue;
        for (size_t t = 0; t < member->tile_count; t++) {
            struct cairn_held *held = member->tiles[t].held;
            if (held != NULL && held->moved != NULL) member->tiles[t].held = held->moved;
        }
    }
}

/* The boxes of one tensor, in the order in which they were. */
static void replace(struct cairn_shard_job *job, struct cairn_tiled *tiled)
{
    for (struct cairn_held **link = &tiled->held; *link != NULL; link = &(*link)->next) {
        struct cairn_held *held = *link, *moved = held->moved;
        held->first_chunk = held->moved_first;
        if (moved == NULL) continue;
        moved->holders = held->holders;
        moved->next = held->next;
        *link = moved;
        cairn_held_free(job, held);
    }
}

void cairn_tiles_switch(struct cairn_shard_job *job, const struct cairn_chunk_table *table,
                        uint8_t *holds)
{
    point_members(job);
    for (struct cairn_tiled *tiled = job->tiling.list; tiled != NULL; tiled = tiled->next)
        replace(job, tiled);
    free(job->tiling.holds);
    job->tiling.holds = holds;
    job->tiling.table = table;
    for (size_t i = 0; i < job->members.capacity; i++)
        if (job->members.list[i] != NULL) cairn_tiles_count(job->members.list[i]);
}
