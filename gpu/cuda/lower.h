/* How works are cut into what fits a plan: for lower.c, lower_fold.c and plan.c. */
#ifndef CAIRN_GPU_CUDA_LOWER_H
#define CAIRN_GPU_CUDA_LOWER_H

#include "gpu/cuda/plan.h"

/* More than an item takes, and the rounding of a buffer or two. */
#define CAIRN_CUDA_PLAN_ITEM_ROOM ((size_t)256)

struct cairn_cuda_plan_fold {
    float *acc;
    const struct cairn_source *sources;
    size_t source_count;
    bool first;
    uint64_t elems;
};

/* Each adds some of what is left of a work, and returns how much: 0 if nothing fits any more. */
uint64_t cairn_cuda_plan_add_fold(struct cairn_cuda_plan *plan,
                                  const struct cairn_cuda_plan_fold *fold, uint64_t done);
/* True: all is added. If one plan cannot hold all sources, the first plans fold, and later ones
 * make the sums from the result. */
bool cairn_cuda_plan_add_fold_sums(struct cairn_cuda_plan *plan, const struct cairn_leaf_fold *fold,
                                   struct cairn_cuda_plan_cursor *cursor);

/* An item of the kernel, and what goes with it, can be added, if there is room. */
bool cairn_cuda_plan_has_parts(const struct cairn_cuda_plan *plan, enum cairn_kernel_number kernel);
/* Returns how many of `left` units fit into `room` at `each` bytes (0: all do). Returns 0 rather
 * than a sliver at the end of a plan that holds something already. */
uint64_t cairn_cuda_plan_fit(const struct cairn_cuda_plan *plan, uint64_t left, size_t room,
                             size_t overhead, size_t each, uint64_t unit);

static inline uint64_t cairn_cuda_plan_address(const void *at)
{
    return (uint64_t)(uintptr_t)at;
}

static inline struct cairn_kernel_geometry
cairn_cuda_plan_geometry(const struct cairn_geometry *geometry)
{
    return (struct cairn_kernel_geometry) { geometry->elems, geometry->quantum_elems,
                                            geometry->leaves_per_quantum };
}

#endif
