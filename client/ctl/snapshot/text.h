/* Words that the commands of snapshots share. */
#ifndef CAIRN_CTL_SNAPSHOT_TEXT_H
#define CAIRN_CTL_SNAPSHOT_TEXT_H

#include <inttypes.h>
#include <stdio.h>

#include "proto/geometry/tensor.h"

/* "[512, 784]", into `out`, which is returned. */
#define CTL_SHAPE_BYTES (CAIRN_RANK_MAX * 22 + 3)
static inline const char *cairn_ctl_shape(const struct cairn_shape *shape,
                                          char out[static CTL_SHAPE_BYTES])
{
    size_t used = (size_t)snprintf(out, CTL_SHAPE_BYTES, "[");
    for (uint32_t d = 0; d < shape->rank && used < CTL_SHAPE_BYTES; d++)
        used += (size_t)snprintf(out + used, CTL_SHAPE_BYTES - used, "%s%" PRIu64,
                                 d > 0 ? ", " : "", shape->dim[d]);
    if (used < CTL_SHAPE_BYTES) snprintf(out + used, CTL_SHAPE_BYTES - used, "]");
    return out;
}

#endif
