/* The piece of a tensor that a put, push or fetch is about. */
#ifndef CAIRN_CLIENT_BASE_PIECE_H
#define CAIRN_CLIENT_BASE_PIECE_H

#include "client/base/strides.h"
#include "proto/geometry/box.h"

struct piece {
    struct cairn_box box;
    bool whole;             /* the box is the tensor */
    uint8_t tile;           /* enum cairn_chunk_tile */
    uint64_t table_hash;    /* of the declaration of tiles that the piece was made by */
    struct strides strides; /* of the memory that it is put from, pushed from or fetched to */
};

#endif
