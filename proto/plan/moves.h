/* Inside the planner: two layouts of the same tensors walked side by side, by runs of quanta that lie within
 * one extent of each. */
#ifndef CAIRN_PLAN_MOVES_H
#define CAIRN_PLAN_MOVES_H

#include <stddef.h>
#include <stdint.h>

#include "proto/geometry/layout.h"

struct plan_run {
    const struct cairn_extent *extent; /* of the current layout: the run lies in it */
    const struct cairn_extent *target; /* of the target: likewise */
    uint64_t first, count;             /* quanta, at least 1 */
    uint32_t to;                       /* the owner in the target; extent->shard = it stays */
};

struct plan_walk {
    const struct cairn_layout_tensor *tensors; /* borrowed, as the layouts */
    const struct cairn_layout *current, *target;
    size_t at_current, at_target; /* extents */
};

/* Both are layouts of these tensors: as many, of as many quanta. */
int cairn_plan_same_tensors(const struct cairn_layout *a, const struct cairn_layout *b);
/* 0: that was the last one. */
int cairn_plan_walk_next(struct plan_walk *walk, struct plan_run *run_out);
/* Bytes of the quanta [first, first + count) of the tensor that the run is of. */
uint64_t cairn_plan_run_bytes(const struct plan_walk *walk, const struct plan_run *run,
                              uint64_t first, uint64_t count);

#endif
