/* The byte ranges of items, written out apart from the bodies: what is said here and what they do are two
 * things, and tests/gpu/test_kernels.c holds one against the other. */
#include "tests/gpu/kernels/host.h"

struct noter {
    kernel_note_fn note;
    void *context;
};

static void reads(const struct noter *noter, uint64_t address, uint64_t bytes)
{
    if (bytes != 0) noter->note(noter->context, address, bytes, false);
}

static void writes(const struct noter *noter, uint64_t address, uint64_t bytes)
{
    if (bytes != 0) noter->note(noter->context, address, bytes, true);
}

static uint64_t dtype_bytes(uint64_t dtype)
{
    return dtype_size((int)dtype);
}

static void sources(const struct noter *noter, uint64_t at, uint32_t count, uint64_t elems)
{
    reads(noter, at, count * sizeof(struct kernel_source));
    for (uint32_t i = 0; i < count; i++) {
        const struct kernel_source *source = CAIRN_KERNEL_AT(const struct kernel_source,
                                                             at + i * sizeof(struct kernel_source));
        reads(noter, source->data, elems * dtype_bytes(source->dtype));
    }
}

static void fold_item(const struct noter *noter, const struct fold_item *item)
{
    if (item->source_count == 0 && item->first == 0) return;
    sources(noter, item->sources, item->source_count, item->elems);
    writes(noter, item->acc, item->elems * sizeof(float));
}

static uint64_t leaf_first_elem(const struct kernel_geometry *g, uint64_t leaf)
{
    const uint64_t elem = leaf / g->leaves_per_quantum * g->quantum_elems +
                          leaf % g->leaves_per_quantum * CAIRN_LEAF_ELEMS;
    return elem < g->elems ? elem : g->elems;
}

static uint64_t elems_of_leaves(const struct kernel_geometry *g, uint64_t first, uint64_t count)
{
    return count == 0 ? 0 : leaf_first_elem(g, first + count) - leaf_first_elem(g, first);
}

static void fold_sums_item(const struct noter *noter, const struct fold_sums_item *item)
{
    const uint64_t elems = elems_of_leaves(&item->geometry, item->first_leaf, item->leaf_count);
    sources(noter, item->sources, item->source_count, elems);
    if (item->source_count != 0)
        writes(noter, item->acc, elems * sizeof(float));
    else
        reads(noter, item->acc, elems * sizeof(float));
    writes(noter, item->squares, item->leaf_count * sizeof(double));
    writes(noter, item->nonfinite, item->leaf_count * sizeof(uint32_t));
}

static void update_item(const struct noter *noter, const struct update_item *item, bool has_m,
                        bool has_v)
{
    const uint64_t bytes = item->elems * sizeof(float);
    reads(noter, item->grad, bytes);
    writes(noter, item->param, bytes);
    if (has_m) writes(noter, item->exp_avg, bytes);
    if (has_v) writes(noter, item->exp_avg_sq, bytes);
    if (item->scalars.ema_weight != 0) writes(noter, item->ema, bytes);
    if (item->wire != 0) writes(noter, item->wire, item->elems * dtype_bytes(item->wire_dtype));
    if (item->elems != 0) writes(noter, item->nonfinite, sizeof(uint64_t));
}

static void update_adamw_item(const struct noter *noter, const struct update_item *item)
{
    update_item(noter, item, true, true);
}

static void update_adam_item(const struct noter *noter, const struct update_item *item)
{
    update_item(noter, item, true, true);
}

static void update_sgd_item(const struct noter *noter, const struct update_item *item)
{
    update_item(noter, item, (item->scalars.flags & CAIRN_SCALAR_MOMENTUM) != 0, false);
}

static void update_adamw_ema_item(const struct noter *noter, const struct update_item *item)
{
    update_item(noter, item, true, true);
}

static void update_adam_ema_item(const struct noter *noter, const struct update_item *item)
{
    update_item(noter, item, true, true);
}

static void update_sgd_ema_item(const struct noter *noter, const struct update_item *item)
{
    update_sgd_item(noter, item);
}

static void convert_item(const struct noter *noter, const struct convert_item *item)
{
    reads(noter, item->src, item->elems * dtype_bytes(item->src_dtype));
    writes(noter, item->dst, item->elems * dtype_bytes(item->dst_dtype));
}

static void copy_item(const struct noter *noter, const struct copy_item *item)
{
    for (uint64_t run = 0; run < item->run_count; run++) {
        reads(noter, item->from + run * item->from_stride, item->run_bytes);
        writes(noter, item->to + run * item->to_stride, item->run_bytes);
    }
}

static void zero_item(const struct noter *noter, const struct zero_item *item)
{
    writes(noter, item->at, item->bytes);
}

static void hash_item(const struct noter *noter, const struct hash_item *item)
{
    const uint64_t elems = elems_of_leaves(&item->geometry, item->first_leaf, item->leaf_count);
    reads(noter, item->plane, elems * dtype_bytes(item->dtype));
    writes(noter, item->hashes, item->leaf_count * 32);
}

static void init_item(const struct noter *noter, const struct init_item *item)
{
    writes(noter, item->out, item->elems * sizeof(float));
}

#define RANGES(name, item_type, block, size)                                                    \
    void ranges_##name(const struct kernel_list *list, kernel_note_fn note, void *context)      \
    {                                                                                           \
        const struct noter noter = { note, context };                                           \
        reads(&noter, list->items, list->count * sizeof(item_type));                            \
        for (uint64_t i = 0; i < list->count; i++)                                              \
            name##_item(&noter,                                                                 \
                        CAIRN_KERNEL_AT(const item_type, list->items + i * sizeof(item_type))); \
    }
CAIRN_KERNELS(RANGES)
