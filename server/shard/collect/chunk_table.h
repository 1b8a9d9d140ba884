/* The chunks of a shard's part of a job, as a collector's core (server/core/step.h) numbers them: those of
 * trained tensors, in the map's order. The shard and every relay to it count alike. */
#ifndef CAIRN_SHARD_COLLECT_CHUNK_TABLE_H
#define CAIRN_SHARD_COLLECT_CHUNK_TABLE_H

#include <stdint.h>

#include "proto/base/status.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"

struct cairn_chunk_table {
    struct cairn_shard_map map; /* owned: all chunks of the part; it has the layout that it is of */
    uint32_t *extent_of;        /* owned: [map.chunk_count] the extent of a chunk */
    uint32_t *trained; /* owned: [trained_count] the map's number of a chunk, by the core's */
    /* owned: [map.extent_count + 1] the core's number of an extent's first chunk; as that of the next one, if
     * it is not trained */
    uint32_t *first;
    uint32_t trained_count;
};

/* Numbers the chunks of table->map, which the caller made. CAIRN_ERR_NO_MEMORY, if there are too many for a
 * core, too. */
CAIRN_MUST_CHECK cairn_status cairn_chunk_table_number(struct cairn_chunk_table *table,
                                                       const struct cairn_job_spec_data *spec);
void cairn_chunk_table_close(struct cairn_chunk_table *table);
/* A tensor's chunks in the part: they follow each other, as its extents do. extent_count 0: it is not
 * there. */
struct cairn_tensor_chunks {
    uint64_t first, count;             /* of table->map */
    size_t first_extent, extent_count; /* of table->map */
};
struct cairn_tensor_chunks cairn_chunk_table_tensor(const struct cairn_chunk_table *table,
                                                    uint32_t tensor);
/* The place of the chunk that the core knows by the number `trained`. */
struct cairn_chunk_place cairn_chunk_table_place(const struct cairn_chunk_table *table,
                                                 uint32_t trained);

#endif
