/* Boxes that members hold, as tiles.c makes them, for tiles_switch.c. Private to these two. */
#ifndef CAIRN_SHARD_COLLECT_TILES_HELD_H
#define CAIRN_SHARD_COLLECT_TILES_HELD_H

#include "server/shard/collect/chunk_table.h"
#include "server/shard/collect/tiles.h"

/* A box with its marks, by a table; counted. NULL: `why` says it. */
struct cairn_held *cairn_held_open(struct cairn_shard_job *job,
                                   const struct cairn_chunk_table *table, uint32_t tensor,
                                   const struct cairn_box *box, struct cairn_sentence *why);
void cairn_held_free(struct cairn_shard_job *job, struct cairn_held *held);
/* Memory for the answers of cairn_tiles_holds by this table, the caller's to free; NULL: no
 * memory. */
uint8_t *cairn_tiles_holds_open(const struct cairn_shard_job *job,
                                const struct cairn_chunk_table *table);
/* The member's `untouched`, by the table of the tiling. */
void cairn_tiles_count(struct cairn_member *member);

#endif
