/* Folds, cut into what fits a plan. */
#include "gpu/cuda/lower.h"

/* Bytes that an element of each source takes on the way to the device. */
static size_t bytes_to_bring(const struct cairn_cuda_plan *plan, const struct cairn_source *sources,
                             size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        if (!cairn_cuda_plan_has(plan, sources[i].data))
            bytes += cairn_dtype_bytes((int)sources[i].dtype);
    return bytes;
}

/* The room that a fold needs besides its elements: the list of sources, and each source's rounding. */
static size_t fold_overhead(size_t source_count)
{
    return CAIRN_CUDA_PLAN_ITEM_ROOM + source_count * (sizeof(struct cairn_kernel_source) + 16);
}

/* The list of sources, from element `first` on; 0 if there are none. */
static uint64_t bring_sources(struct cairn_cuda_plan *plan, const struct cairn_source *sources,
                              size_t count, uint64_t first, uint64_t elems)
{
    if (count == 0) return 0;
    const size_t offset = cairn_cuda_plan_take(&plan->in,
                                               count * sizeof(struct cairn_kernel_source));
    struct cairn_kernel_source *list = (struct cairn_kernel_source *)(plan->in.host + offset);
    for (size_t i = 0; i < count; i++) {
        const size_t bytes = cairn_dtype_bytes((int)sources[i].dtype);
        list[i].data = cairn_cuda_plan_bring(plan, (const uint8_t *)sources[i].data + first * bytes,
                                             (size_t)elems * bytes);
        list[i].dtype = (uint64_t)sources[i].dtype;
    }
    return plan->in.device + offset;
}

uint64_t cairn_cuda_plan_add_fold(struct cairn_cuda_plan *plan,
                                  const struct cairn_cuda_plan_fold *fold, uint64_t done)
{
    if (!cairn_cuda_plan_has_parts(plan, CAIRN_KERNEL_fold)) return 0;
    const uint64_t elems = cairn_cuda_plan_fit(
        plan, fold->elems - done, cairn_cuda_plan_in_room(plan), fold_overhead(fold->source_count),
        bytes_to_bring(plan, fold->sources, fold->source_count), CAIRN_PIECE_ELEMS);
    if (elems == 0) return 0;
    struct cairn_fold_item item = {
        .acc = cairn_cuda_plan_address(fold->acc + done),
        .sources = bring_sources(plan, fold->sources, fold->source_count, done, elems),
        .source_count = (uint32_t)fold->source_count,
        .first = fold->first,
        .elems = elems,
    };
    cairn_cuda_plan_item(plan, CAIRN_KERNEL_fold, &item, cairn_fold_pieces(&item));
    return elems;
}

static uint64_t leaf_elems(const struct cairn_leaf_fold *fold)
{
    return cairn_leaf_first_elem(fold->geometry, fold->first_leaf + fold->leaf_count) -
           cairn_leaf_first_elem(fold->geometry, fold->first_leaf);
}

/* Where the kernel puts the leaves' sums: they are added up when the slice is over. */
static void take_sums(struct cairn_cuda_plan *plan, const struct cairn_leaf_fold *fold,
                      struct cairn_fold_sums_item *item)
{
    const size_t leaves = (size_t)item->leaf_count;
    const size_t squares = cairn_cuda_plan_take(&plan->out, leaves * sizeof(double));
    const size_t nonfinite = cairn_cuda_plan_take(&plan->out, leaves * sizeof(uint32_t));
    item->squares = plan->out.device + squares;
    item->nonfinite = plan->out.device + nonfinite;
    *cairn_cuda_plan_new_end(
        plan) = (struct cairn_cuda_plan_end) { .kind = CAIRN_END_SUMS,
                                               .to = fold->sums,
                                               .from = plan->out.host + nonfinite,
                                               .squares = plan->out.host + squares,
                                               .count = leaves };
}

static uint64_t add_leaves(struct cairn_cuda_plan *plan, const struct cairn_leaf_fold *fold,
                           size_t source_count, uint64_t done)
{
    if (!cairn_cuda_plan_has_parts(plan, CAIRN_KERNEL_fold_sums)) return 0;
    const size_t leaf_bytes = CAIRN_LEAF_ELEMS * bytes_to_bring(plan, fold->sources, source_count);
    uint64_t leaves = cairn_cuda_plan_fit(plan, fold->leaf_count - done,
                                          cairn_cuda_plan_out_room(plan), CAIRN_CUDA_PLAN_ITEM_ROOM,
                                          sizeof(double) + sizeof(uint32_t), 1);
    leaves = cairn_cuda_plan_fit(plan, leaves, cairn_cuda_plan_in_room(plan),
                                 fold_overhead(source_count), leaf_bytes, 1);
    if (leaves == 0) return 0;
    const uint64_t origin = cairn_leaf_first_elem(fold->geometry, fold->first_leaf);
    const uint64_t first = cairn_leaf_first_elem(fold->geometry, fold->first_leaf + done) - origin;
    const uint64_t end = cairn_leaf_first_elem(fold->geometry, fold->first_leaf + done + leaves) -
                         origin;
    struct cairn_fold_sums_item item = {
        .acc = cairn_cuda_plan_address(fold->acc + first),
        .sources = bring_sources(plan, fold->sources, source_count, first, end - first),
        .source_count = (uint32_t)source_count,
        .first = fold->first,
        .geometry = cairn_cuda_plan_geometry(fold->geometry),
        .first_leaf = fold->first_leaf + done,
        .leaf_count = leaves,
    };
    take_sums(plan, fold, &item);
    cairn_cuda_plan_item(plan, CAIRN_KERNEL_fold_sums, &item, cairn_fold_sums_pieces(&item));
    return leaves;
}

/* True if a leaf of all sources does not fit an empty plan. */
static bool has_too_many(const struct cairn_cuda_plan *plan, const struct cairn_leaf_fold *fold)
{
    const size_t each = bytes_to_bring(plan, fold->sources, fold->source_count);
    return fold_overhead(fold->source_count) + CAIRN_LEAF_ELEMS * each > plan->bytes - 1024;
}

bool cairn_cuda_plan_add_fold_sums(struct cairn_cuda_plan *plan, const struct cairn_leaf_fold *fold,
                                   struct cairn_cuda_plan_cursor *cursor)
{
    const bool apart = has_too_many(plan, fold);
    if (apart && !cursor->is_folded) {
        const struct cairn_cuda_plan_fold whole = { fold->acc, fold->sources, fold->source_count,
                                                    fold->first, leaf_elems(fold) };
        cursor->done += cairn_cuda_plan_add_fold(plan, &whole, cursor->done);
        if (cursor->done < whole.elems) return false;
        *cursor = (struct cairn_cuda_plan_cursor) { .is_folded = true };
        return false;
    }
    cursor->done += add_leaves(plan, fold, apart ? 0 : fold->source_count, cursor->done);
    return cursor->done == fold->leaf_count;
}
