/* Tiles: what this worker holds of each tensor. A declaration is made by cairn_tiles, and holds from the
 * coordinator's word that those of all ranks fit together. */
#ifndef CAIRN_CLIENT_TILES_H
#define CAIRN_CLIENT_TILES_H

#include "client/base/piece.h"
#include "proto/wire/messages.h"
#include "proto/wire/tiles.h"

struct job;

/* Constant once made. */
struct declared {
    struct cairn_tiles tiles; /* without whole tensors: those are not listed */
    uint64_t hash;
    uint32_t world;
    struct cairn_packed *packed; /* held: the same */
};

struct held_tiles {
    /* lock */
    struct declared *declared;  /* owned; what holds. NULL, or of world 0: whole tensors */
    struct declared *declaring; /* of the cairn_tiles that waits for the other ranks; or NULL */
    bool declaring_holds;       /* `declaring` became `declared` */
    /* loop thread */
    uint32_t request; /* of the declaration told again after an attach; 0: none is unanswered */
};

/* Under the lock: the job has tiles. */
bool cairn_client_tiles_hold(const struct job *job);
/* Any thread, not under the lock: what this worker holds of a tensor. */
struct piece cairn_client_tiles_own(struct job *job, size_t tensor);
Cairn__TilesDeclare cairn_client_tiles_message(const struct declared *declared);
void cairn_client_tiles_free(struct declared *declared); /* NULL is fine */

#endif
