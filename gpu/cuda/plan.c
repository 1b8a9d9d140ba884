#include "gpu/cuda/lower.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const size_t item_bytes[CAIRN_KERNEL_COUNT] = {
#define CAIRN_KERNEL_ITEM(name, item, warps) sizeof(item),
    CAIRN_KERNELS(CAIRN_KERNEL_ITEM)
#undef CAIRN_KERNEL_ITEM
};

static size_t round_up(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

cairn_status cairn_cuda_plan_init(struct cairn_cuda_plan *plan)
{
    bool ok = true;
    for (int i = 0; i < CAIRN_KERNEL_COUNT; i++) {
        plan->kernels[i].list = malloc(CAIRN_CUDA_PLAN_PARTS * item_bytes[i]);
        ok = ok && plan->kernels[i].list != NULL;
    }
    plan->copies_in = malloc(CAIRN_CUDA_PLAN_PARTS * sizeof *plan->copies_in);
    plan->copies_out = malloc(CAIRN_CUDA_PLAN_PARTS * sizeof *plan->copies_out);
    plan->ends = malloc(CAIRN_CUDA_PLAN_PARTS * sizeof *plan->ends);
    cairn_cuda_plan_clear(plan);
    return ok && plan->copies_in != NULL && plan->copies_out != NULL && plan->ends != NULL
               ? CAIRN_OK
               : CAIRN_ERR_NO_MEMORY;
}

void cairn_cuda_plan_release(struct cairn_cuda_plan *plan)
{
    for (int i = 0; i < CAIRN_KERNEL_COUNT; i++) free(plan->kernels[i].list);
    free(plan->copies_in);
    free(plan->copies_out);
    free(plan->ends);
    *plan = (struct cairn_cuda_plan) { 0 };
}

void cairn_cuda_plan_clear(struct cairn_cuda_plan *plan)
{
    for (int i = 0; i < CAIRN_KERNEL_COUNT; i++)
        plan->kernels[i].count = plan->kernels[i].pieces = 0;
    plan->in.used = plan->out.used = 0;
    plan->in.top = plan->out.top = plan->bytes;
    plan->item_bytes = plan->in_count = plan->out_count = plan->end_count = 0;
    plan->counts = false;
}

bool cairn_cuda_plan_is_empty(const struct cairn_cuda_plan *plan)
{
    return plan->item_bytes == 0 && plan->in_count == 0 && plan->out_count == 0;
}

/* ---- room ---- */

bool cairn_cuda_plan_has(const struct cairn_cuda_plan *plan, const void *address)
{
    return (uint64_t)(uintptr_t)address - plan->space.at < plan->space.bytes;
}

size_t cairn_cuda_plan_in_room(const struct cairn_cuda_plan *plan)
{
    const size_t taken = plan->in.used + plan->item_bytes + 16 * CAIRN_KERNEL_COUNT;
    return taken < plan->in.top ? plan->in.top - taken : 0;
}

size_t cairn_cuda_plan_out_room(const struct cairn_cuda_plan *plan)
{
    return plan->out.top - plan->out.used;
}

size_t cairn_cuda_plan_take(struct cairn_cuda_plan_side *side, size_t bytes)
{
    const size_t offset = side->used;
    side->used += round_up(bytes);
    assert(side->used <= side->top);
    return offset;
}

size_t cairn_cuda_plan_take_top(struct cairn_cuda_plan_side *side, size_t bytes)
{
    assert(round_up(bytes) <= side->top - side->used);
    side->top -= round_up(bytes);
    return side->top;
}

bool cairn_cuda_plan_has_parts(const struct cairn_cuda_plan *plan, enum cairn_kernel_number kernel)
{
    return plan->kernels[kernel].count < CAIRN_CUDA_PLAN_PARTS &&
           plan->end_count + 2 <= CAIRN_CUDA_PLAN_PARTS;
}

uint64_t cairn_cuda_plan_fit(const struct cairn_cuda_plan *plan, uint64_t left, size_t room,
                             size_t overhead, size_t each, uint64_t unit)
{
    if (room < overhead) return 0;
    if (each == 0 || left <= (room - overhead) / each) return left;
    const uint64_t most = (room - overhead) / each;
    if (most >= unit) return most - most % unit;
    if (!cairn_cuda_plan_is_empty(plan)) return 0;
    return most >= 8 ? most - most % 8 : most;
}

/* ---- parts ---- */

void cairn_cuda_plan_copy(struct cairn_cuda_plan_copy *copies, size_t *count, uint64_t device,
                          void *host, size_t bytes)
{
    assert(*count < CAIRN_CUDA_PLAN_PARTS);
    copies[(*count)++] = (struct cairn_cuda_plan_copy) { device, host, bytes };
}

struct cairn_cuda_plan_end *cairn_cuda_plan_new_end(struct cairn_cuda_plan *plan)
{
    assert(plan->end_count < CAIRN_CUDA_PLAN_PARTS);
    return &plan->ends[plan->end_count++];
}

void cairn_cuda_plan_item(struct cairn_cuda_plan *plan, enum cairn_kernel_number kernel, void *item,
                          uint64_t pieces)
{
    struct cairn_cuda_plan_items *items = &plan->kernels[kernel];
    const size_t bytes = item_bytes[kernel];
    if (pieces == 0) return;
    assert(items->count < CAIRN_CUDA_PLAN_PARTS);
    memcpy(item, &items->pieces, sizeof items->pieces); // first_piece is the first field of each
    memcpy(items->list + items->count * bytes, item, bytes);
    items->count++;
    items->pieces += pieces;
    plan->item_bytes += bytes;
}

uint64_t cairn_cuda_plan_bring(struct cairn_cuda_plan *plan, const void *data, size_t bytes)
{
    if (cairn_cuda_plan_has(plan, data)) return (uint64_t)(uintptr_t)data;
    if (plan->in_count < CAIRN_CUDA_PLAN_PARTS && plan->is_pinned(plan->cuda, data, bytes)) {
        const uint64_t device = plan->in.device + cairn_cuda_plan_take_top(&plan->in, bytes);
        cairn_cuda_plan_copy(plan->copies_in, &plan->in_count, device, (void *)(uintptr_t)data,
                             bytes);
        return device;
    }
    const size_t offset = cairn_cuda_plan_take(&plan->in, bytes);
    memcpy(plan->in.host + offset, data, bytes);
    return plan->in.device + offset;
}

uint64_t cairn_cuda_plan_give(struct cairn_cuda_plan *plan, void *to, size_t bytes)
{
    if (cairn_cuda_plan_has(plan, to)) return (uint64_t)(uintptr_t)to;
    if (plan->out_count < CAIRN_CUDA_PLAN_PARTS && plan->is_pinned(plan->cuda, to, bytes)) {
        const uint64_t device = plan->out.device + cairn_cuda_plan_take_top(&plan->out, bytes);
        cairn_cuda_plan_copy(plan->copies_out, &plan->out_count, device, to, bytes);
        return device;
    }
    const size_t offset = cairn_cuda_plan_take(&plan->out, bytes);
    *cairn_cuda_plan_new_end(plan) = (struct cairn_cuda_plan_end) {
        .kind = CAIRN_END_COPY, .to = to, .from = plan->out.host + offset, .count = bytes
    };
    return plan->out.device + offset;
}

/* ---- when all is in it, and when all is done ---- */

void cairn_cuda_plan_place(struct cairn_cuda_plan *plan,
                           struct cairn_kernel_list lists_out[CAIRN_KERNEL_COUNT])
{
    for (int i = 0; i < CAIRN_KERNEL_COUNT; i++) {
        const struct cairn_cuda_plan_items *items = &plan->kernels[i];
        const size_t bytes = (size_t)items->count * item_bytes[i];
        lists_out[i] = (struct cairn_kernel_list) { .count = items->count,
                                                    .pieces = items->pieces };
        if (items->count == 0) continue;
        const size_t offset = cairn_cuda_plan_take(&plan->in, bytes);
        memcpy(plan->in.host + offset, items->list, bytes);
        lists_out[i].items = plan->in.device + offset;
    }
}

static void add_sums(const struct cairn_cuda_plan_end *end)
{
    struct cairn_sums *sums = end->to;
    const double *squares = end->squares;
    const uint32_t *nonfinite = end->from;
    for (size_t i = 0; i < end->count; i++) {
        sums->nonfinite += nonfinite[i];
        if (nonfinite[i] > 0) continue;
        const cairn_status status = cairn_exact_add_double(&sums->sum_squares, squares[i]);
        assert(status == CAIRN_OK); // 2^74 of the largest leaves fit
        (void)status;
    }
}

void cairn_cuda_plan_end(const struct cairn_cuda_plan *plan)
{
    for (size_t i = 0; i < plan->end_count; i++) {
        const struct cairn_cuda_plan_end *end = &plan->ends[i];
        switch (end->kind) {
        case CAIRN_END_COPY: memcpy(end->to, end->from, end->count); break;
        case CAIRN_END_COUNT: *(uint64_t *)end->to += *(const uint64_t *)end->from; break;
        case CAIRN_END_SUMS: add_sums(end); break;
        }
    }
}
