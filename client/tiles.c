#include "client/tiles.h"

#include <stdlib.h>

#include "client/job.h"

void cairn_client_tiles_free(struct declared *declared)
{
    if (declared == NULL) return;
    cairn_tiles_release(&declared->tiles);
    cairn_packed_release(declared->packed);
    free(declared);
}

bool cairn_client_tiles_hold(const struct job *job)
{
    return job->tiles.declared != NULL && job->tiles.declared->world > 0;
}

struct piece cairn_client_tiles_own(struct job *job, size_t tensor)
{
    const struct cairn_shape *shape = &job->spec.tensors[tensor].shape;
    struct piece piece = { .box = cairn_box_of_shape(shape),
                           .whole = true,
                           .tile = CAIRN_TILE_WHOLE,
                           .table_hash = CAIRN_TABLE_HASH_WHOLE };
    pthread_mutex_lock(&job->session->lock);
    if (job->tiles.declared != NULL) {
        const struct cairn_box *box = cairn_tiles_find(&job->tiles.declared->tiles,
                                                       (uint32_t)tensor);
        piece.table_hash = job->tiles.declared->hash;
        if (box != NULL) {
            piece.box = *box;
            piece.whole = false;
            piece.tile = CAIRN_TILE_OWN;
        }
    }
    pthread_mutex_unlock(&job->session->lock);
    return piece;
}

Cairn__TilesDeclare cairn_client_tiles_message(const struct declared *declared)
{
    Cairn__TilesDeclare message = CAIRN__TILES_DECLARE__INIT;
    message.world = declared->world;
    message.tiles_bytes = declared->packed->size;
    return message;
}
