#include "server/shard/collect/chunk_table.h"

#include <stdlib.h>

#include "proto/base/lower_bound.h"

cairn_status cairn_chunk_table_number(struct cairn_chunk_table *table,
                                      const struct cairn_job_spec_data *spec)
{
    const struct cairn_shard_map *map = &table->map;
    if (map->chunk_count >= UINT32_MAX) return CAIRN_ERR_NO_MEMORY;
    table->extent_of = calloc((size_t)map->chunk_count + 1, sizeof *table->extent_of);
    table->first = calloc(map->extent_count + 1, sizeof *table->first);
    table->trained = calloc((size_t)map->chunk_count + 1, sizeof *table->trained);
    if (table->extent_of == NULL || table->first == NULL || table->trained == NULL)
        return CAIRN_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < map->extent_count; i++) {
        const struct cairn_local_extent *extent = &map->extents[i];
        const bool trained = spec->tensors[extent->tensor].kind == CAIRN_TRAINED;
        table->first[i] = table->trained_count;
        for (uint64_t c = extent->first_chunk; c < extent->first_chunk + extent->chunk_count; c++) {
            table->extent_of[c] = i;
            if (trained) table->trained[table->trained_count++] = (uint32_t)c;
        }
    }
    table->first[map->extent_count] = table->trained_count;
    return CAIRN_OK;
}

void cairn_chunk_table_close(struct cairn_chunk_table *table)
{
    free(table->extent_of);
    free(table->first);
    free(table->trained);
    cairn_shard_map_release(&table->map);
}

struct cairn_chunk_place cairn_chunk_table_place(const struct cairn_chunk_table *table,
                                                 uint32_t trained)
{
    return cairn_shard_map_chunk(&table->map, table->trained[trained]);
}

struct cairn_tensor_chunks cairn_chunk_table_tensor(const struct cairn_chunk_table *table,
                                                    uint32_t tensor)
{
    const struct cairn_shard_map *map = &table->map;
    size_t low = cairn_lower_bound(map->extents, map->extent_count, sizeof *map->extents,
                                   offsetof(struct cairn_local_extent, tensor), tensor);
    struct cairn_tensor_chunks chunks = { .first_extent = low };
    for (; low < map->extent_count && map->extents[low].tensor == tensor; low++) {
        if (chunks.extent_count++ == 0) chunks.first = map->extents[low].first_chunk;
        chunks.count += map->extents[low].chunk_count;
    }
    return chunks;
}
