/* Initial values of a tensor, made where they are kept: proto/spec/initializer_math.h, an element a lane. */
#ifndef CAIRN_GPU_KERNEL_INIT_H
#define CAIRN_GPU_KERNEL_INIT_H

#include "gpu/kernel/memory.h"

/* Each element makes its block by itself: integers cost nothing beside the logarithm. */
KERNEL_FN float init_one(const struct init_source *source, uint64_t elem)
{
    uint32_t words[4];
    if (source->is_uniform == 0 && source->is_normal == 0) return (float)source->a;
    init_words(source, elem / 2, words);
    return init_random(source, words, elem);
}

KERNEL_FN void init_piece(const struct init_item *item, uint64_t piece)
{
    const uint64_t from = piece * CAIRN_PIECE_ELEMS,
                   end = least(from + CAIRN_PIECE_ELEMS, item->elems);
    EACH_LANE(lane)
    {
        for (uint64_t i = from + lane; i < end; i += CAIRN_KERNEL_WARP)
            store_f32(item->out, i, init_one(&item->source, item->first_elem + i));
    }
}

#endif
