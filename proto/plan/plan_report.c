/* Measures a finished layout: balance, what moved, how far units are spread. */
#include "proto/plan/plan_cut.h"

#include <stdlib.h>

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static void weigh_shards(const struct plan_cut *cut, const struct cairn_layout *layout,
                         uint64_t *loads, struct cairn_plan_report *report)
{
    for (size_t e = 0; e < layout->extent_count; e++) {
        const struct cairn_extent *x = &layout->extents[e];
        loads[x->shard] += cairn_plan_bytes(cut, x->tensor, x->first_quantum, x->quantum_count);
    }
    report->heaviest_over_mean = 1;
    for (uint32_t s = 0; s < layout->shard_count; s++) {
        const uint64_t share = cut->shards[s].share;
        const uint64_t off = minus(loads[s], share) + minus(share, loads[s]);
        if (off > report->off_share_bytes_max) report->off_share_bytes_max = off;
        if (share == 0) continue;
        const double ratio = (double)loads[s] / (double)share;
        if (ratio > report->heaviest_over_mean) report->heaviest_over_mean = ratio;
    }
    report->quantum_bytes_max = cut->quantum_bytes_max;
}

/* Bytes of one tensor whose shard is another one now: both tables are walked side by side. */
static uint64_t moved_of_tensor(const struct plan_cut *cut, const struct cairn_layout *layout,
                                uint32_t tensor)
{
    const struct cairn_layout *previous = cut->request->previous;
    size_t old = previous->tensor_extents[tensor], now = layout->tensor_extents[tensor];
    uint64_t at = 0, moved = 0;
    while (at < cut->geometry[tensor].quantum_count) {
        const struct cairn_extent *a = &previous->extents[old], *b = &layout->extents[now];
        const uint64_t end_a = a->first_quantum + a->quantum_count;
        const uint64_t end_b = b->first_quantum + b->quantum_count;
        const uint64_t end = end_a < end_b ? end_a : end_b;
        if (cairn_plan_renumber(cut->request, a->shard) != b->shard)
            moved += cairn_plan_bytes(cut, tensor, at, end - at);
        old += end == end_a;
        now += end == end_b;
        at = end;
    }
    return moved;
}

static void weigh_moves(const struct plan_cut *cut, const struct cairn_layout *layout,
                        uint64_t *old_loads, struct cairn_plan_report *report)
{
    const struct cairn_layout *previous = cut->request->previous;
    if (previous == NULL) return;
    for (uint32_t t = 0; t < layout->tensor_count; t++)
        report->moved_bytes += moved_of_tensor(cut, layout, t);
    for (size_t e = 0; e < previous->extent_count; e++) {
        const struct cairn_extent *x = &previous->extents[e];
        const uint32_t s = cairn_plan_renumber(cut->request, x->shard);
        if (s == CAIRN_SHARD_GONE) continue;
        old_loads[s] += cairn_plan_bytes(cut, x->tensor, x->first_quantum, x->quantum_count);
    }
    for (uint32_t s = 0; s < layout->shard_count; s++)
        report->moved_bytes_bound += minus(cut->shards[s].share, old_loads[s]);
}

/* seen: [shard_count], zeros; the last unit, counted from 1, that has a piece on the shard. */
static void measure_spread(const struct plan_cut *cut, const struct cairn_layout *layout,
                           uint32_t *seen, struct cairn_plan_report *report)
{
    uint32_t able = 0, unit_count = 0;
    for (uint32_t s = 0; s < layout->shard_count; s++) able += cut->shards[s].weight > 0;
    double ratio_sum = 0;
    for (uint32_t i = 0; i < layout->tensor_count;) {
        const uint32_t unit = cut->unit_of[cut->order[i]];
        const uint64_t bytes = cut->unit_bytes[unit];
        uint32_t used = 0;
        for (; i < layout->tensor_count && cut->unit_of[cut->order[i]] == unit; i++) {
            const uint32_t t = cut->order[i];
            for (size_t e = layout->tensor_extents[t]; e < layout->tensor_extents[t + 1]; e++) {
                used += seen[layout->extents[e].shard] != unit + 1;
                seen[layout->extents[e].shard] = unit + 1;
            }
        }
        if (bytes == 0) continue;
        unit_count++;
        ratio_sum += (double)used / cairn_plan_may_use(cut, bytes, able);
        if (used > report->unit_spread_max) report->unit_spread_max = used;
    }
    report->unit_spread_of_possible = unit_count == 0 ? 1 : ratio_sum / unit_count;
}

cairn_status cairn_plan_describe(const struct plan_cut *cut, const struct cairn_layout *layout,
                                 struct cairn_plan_report *report_out)
{
    struct cairn_plan_report report = { .total_bytes = cut->total_bytes };
    uint64_t *loads = calloc(layout->shard_count, sizeof *loads);
    uint64_t *old_loads = calloc(layout->shard_count, sizeof *old_loads);
    uint32_t *seen = calloc(layout->shard_count, sizeof *seen);
    const int got_all = loads != NULL && old_loads != NULL && seen != NULL;
    if (got_all) {
        weigh_shards(cut, layout, loads, &report);
        weigh_moves(cut, layout, old_loads, &report);
        measure_spread(cut, layout, seen, &report);
        *report_out = report;
    }
    free(loads);
    free(old_loads);
    free(seen);
    return got_all ? cairn_plan_count(layout, report_out) : CAIRN_ERR_NO_MEMORY;
}
