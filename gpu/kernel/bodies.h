/* The bodies of all kernels: <name>_body(list, warp, warps) has a warp take the pieces warp, warp +
 * warps, ... of the list. Included once, by what makes kernels of them: gpu/cuda/kernels.cu and
 * gpu/kernel/host.c. */
#ifndef CAIRN_GPU_KERNEL_BODIES_H
#define CAIRN_GPU_KERNEL_BODIES_H

#include "gpu/kernel/copy.h"
#include "gpu/kernel/fold.h"
#include "gpu/kernel/fold_sums.h"
#include "gpu/kernel/hash.h"
#include "gpu/kernel/init.h"
#include "gpu/kernel/lanes.h"
#include "gpu/kernel/update.h"

/* The last item that begins at the piece or before it: the lanes look at 32 items at once. */
KERNEL_FN uint64_t item_of_piece(const struct kernel_list *list, uint64_t item_bytes,
                                 uint64_t piece)
{
    uint64_t from = 0, left = list->count;
    while (left > 1) {
        const uint64_t step = pieces_of(left, CAIRN_KERNEL_WARP);
        LANE_ARRAY(bool, begun);
        EACH_LANE(lane)
        {
            const uint64_t at = lane * step;
            begun[LANE(lane)] = at < left &&
                                *MEMORY_AT(const uint64_t,
                                           list->items + (from + at) * item_bytes) <= piece;
        }
        const uint64_t skipped = (lanes_count(begun) - 1) * step;
        from += skipped;
        left = least(left - skipped, step);
    }
    return from;
}

#define CAIRN_KERNEL_BODY(name, item_type, block)                                             \
    KERNEL_FN void name##_body(const struct kernel_list *list, uint64_t warp, uint64_t warps) \
    {                                                                                         \
        for (uint64_t piece = warp; piece < list->pieces; piece += warps) {                   \
            const uint64_t number = item_of_piece(list, sizeof(item_type), piece);            \
            const item_type item = *MEMORY_AT(const item_type,                                \
                                              list->items + number * sizeof(item_type));      \
            name##_piece(&item, piece - item.first_piece);                                    \
        }                                                                                     \
    }
CAIRN_KERNELS(CAIRN_KERNEL_BODY)
#undef CAIRN_KERNEL_BODY

#endif
