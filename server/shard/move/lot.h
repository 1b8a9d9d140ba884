/* Lots: what comes to a shard when one layout follows another. A lot is the part that the shard
 * needs of one chunk of one plane, by the chunk grid of the chunk's owner, the giver. Pure; any
 * thread. */
#ifndef CAIRN_SHARD_MOVE_LOT_H
#define CAIRN_SHARD_MOVE_LOT_H

#include "server/shard/collect/view.h"

struct cairn_lot {
    uint32_t giver;  /* its index in the layouts */
    uint32_t extent; /* here, in the view that follows */
    enum cairn_plane plane;
    uint64_t first_leaf; /* of the giver's chunk, in the tensor */
    uint32_t leaf_count;
    uint64_t chunk_elem, chunk_elems; /* its elements in the tensor */
    uint64_t first_elem, elem_count;  /* of them, those that come */
};

struct cairn_lots {
    struct cairn_lot *list; /* owned: [count], by giver, then by extent, chunk and plane */
    size_t count;
    uint64_t bytes;       /* of what comes */
    size_t cut_bytes;     /* of the largest chunk that does not come whole; 0: all do */
    size_t chunk_bytes;   /* of the largest chunk */
    uint32_t giver_count; /* shards that give something */
};

/* The giver's chunk comes, nothing of it stays elsewhere. */
static inline bool cairn_lot_is_whole(const struct cairn_lot *lot)
{
    return lot->elem_count == lot->chunk_elems;
}

/* Lists lots for all that `next` has on this shard and `now` has on another one. State in `kept`,
 * the view before, is still here and does not come; `kept` may be NULL. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_lots_list(const struct cairn_shard_view *now,
                                              const struct cairn_shard_view *next,
                                              const struct cairn_shard_view *kept,
                                              struct cairn_lots *out);
void cairn_lots_release(struct cairn_lots *lots);

#endif
