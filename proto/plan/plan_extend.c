/* A layout to which tensors are added, and from which some are gone, while nothing moves. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan.h"
#include "proto/plan/plan_private.h"

#define WEIGHT_MAX ((uint64_t)1 << 20) /* of a shard, relative to others */

/* A plan in the making. Borrowed, but for what is said to be owned. */
struct extending {
    const struct layout_tensor *tensors; /* [tensor_count] */
    uint32_t tensor_count;
    const struct layout *previous;
    const uint32_t *was;  /* [tensor_count] */
    const uint8_t *holes; /* [shard_count], or NULL */
    uint32_t spread;

    struct layout_tensor *added; /* owned: [added_count] */
    uint32_t *place_of;          /* owned: [tensor_count], of a new one in `added` */
    uint32_t added_count;
    uint64_t added_bytes;
    uint64_t *loads;      /* owned: [shard_count] of what stays */
    uint32_t *weights;    /* owned: [shard_count] */
    struct layout *fresh; /* owned: of `added`; NULL if there are none */
};

static void release(struct extending *x)
{
    free(x->added);
    free(x->place_of);
    free(x->loads);
    free(x->weights);
    layout_close(x->fresh);
}

static cairn_status list_added(struct extending *x)
{
    x->added = calloc((size_t)x->tensor_count + 1, sizeof *x->added);
    x->place_of = calloc((size_t)x->tensor_count + 1, sizeof *x->place_of);
    if (x->added == NULL || x->place_of == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t t = 0; t < x->tensor_count; t++) {
        const struct layout_tensor *tensor = &x->tensors[t];
        if (x->was[t] != CAIRN_TENSOR_NEW) continue;
        if (tensor->elem_bytes == 0 || shape_check(&tensor->shape) != CAIRN_OK)
            return CAIRN_ERR_INVALID;
        const uint64_t elems = geometry_of(&tensor->shape).elems;
        if (elems > (CAIRN_PLAN_BYTES_MAX - x->added_bytes) / tensor->elem_bytes)
            return CAIRN_ERR_INVALID;
        x->added_bytes += elems * tensor->elem_bytes;
        x->place_of[t] = x->added_count;
        x->added[x->added_count++] = *tensor;
    }
    return CAIRN_OK;
}

static uint64_t extent_elems(const struct geometry *geometry, const struct extent *e)
{
    return quantum_first_elem(geometry, e->first_quantum + e->quantum_count) -
           quantum_first_elem(geometry, e->first_quantum);
}

static cairn_status weigh_kept(struct extending *x)
{
    x->loads = calloc(x->previous->shard_count, sizeof *x->loads);
    if (x->loads == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t t = 0; t < x->tensor_count; t++) {
        if (x->was[t] == CAIRN_TENSOR_NEW) continue;
        if (x->was[t] >= x->previous->tensor_count) return CAIRN_ERR_INVALID;
        const struct geometry *geometry = &x->previous->geometry[x->was[t]];
        size_t count;
        const struct extent *extents = layout_tensor_extents(x->previous, x->was[t], &count);
        for (size_t e = 0; e < count; e++)
            x->loads[extents[e].shard] += extent_elems(geometry, &extents[e]) *
                                          x->tensors[t].elem_bytes;
    }
    return CAIRN_OK;
}

static int compare_loads(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The level up to which the added bytes fill the shards that are below it. */
static uint64_t level_of(const uint64_t *sorted, uint32_t shard_count, uint64_t bytes)
{
    uint64_t below = 0; // bytes of the shards that are filled up
    for (uint32_t s = 0; s < shard_count; s++) {
        below += sorted[s];
        const uint64_t level = (below + bytes) / (s + 1);
        if (s + 1 == shard_count || level <= sorted[s + 1]) return level + 1;
    }
    return 0; // no shard
}

static bool is_hole(const struct extending *x, uint32_t shard)
{
    return x->holes != NULL && x->holes[shard];
}

static cairn_status weigh_shards_extend(struct extending *x)
{
    const uint32_t count = x->previous->shard_count;
    uint64_t *sorted = malloc(count * sizeof *sorted);
    x->weights = calloc(count, sizeof *x->weights);
    if (sorted == NULL || x->weights == NULL) {
        free(sorted);
        return CAIRN_ERR_NO_MEMORY;
    }
    uint32_t present = 0;
    for (uint32_t s = 0; s < count; s++)
        if (!is_hole(x, s)) sorted[present++] = x->loads[s];
    qsort(sorted, present, sizeof *sorted, compare_loads);
    const uint64_t level = level_of(sorted, present, x->added_bytes);
    const uint64_t most = present == 0 ? 0 : level - sorted[0];
    free(sorted);
    for (uint32_t s = 0; s < count; s++) {
        if (is_hole(x, s) || x->loads[s] >= level) continue;
        const unsigned __int128 scaled = (unsigned __int128)(level - x->loads[s]) * WEIGHT_MAX;
        x->weights[s] = (uint32_t)(scaled / most) + 1;
    }
    return CAIRN_OK;
}

static cairn_status plan_added(struct extending *x)
{
    if (x->added_count == 0) return CAIRN_OK;
    const struct plan_request request = { .tensors = x->added,
                                          .tensor_count = x->added_count,
                                          .shard_count = x->previous->shard_count,
                                          .weights = x->weights,
                                          .spread = x->spread };
    return plan_make(&request, &x->fresh, NULL);
}

/* Joins the kept and the fresh extents by tensor, the order that a table needs. */
static cairn_status join(const struct extending *x, struct layout **layout_out)
{
    const size_t fresh_count = x->fresh != NULL ? x->fresh->extent_count : 0;
    size_t count = 0;
    size_t room = fresh_count + 1;
    for (uint32_t t = 0; t < x->tensor_count; t++) {
        size_t some = 0;
        if (x->was[t] != CAIRN_TENSOR_NEW)
            (void)layout_tensor_extents(x->previous, x->was[t], &some);
        room += some;
    }
    struct extent *table = calloc(room, sizeof *table);
    if (table == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t t = 0; t < x->tensor_count; t++) {
        const bool is_new = x->was[t] == CAIRN_TENSOR_NEW;
        size_t some;
        const struct extent *from = layout_tensor_extents(
            is_new ? x->fresh : x->previous, is_new ? x->place_of[t] : x->was[t], &some);
        for (size_t e = 0; e < some; e++, count++) {
            table[count] = from[e];
            table[count].tensor = t;
        }
    }
    const cairn_status status = layout_make(x->tensors, x->tensor_count, x->previous->shard_count,
                                            x->previous->version + 1, table, count, layout_out);
    if (status != CAIRN_OK) free(table);
    return status;
}

cairn_status plan_extend(const struct layout_tensor *tensors, uint32_t tensor_count,
                         const struct layout *previous, const uint32_t *was, const uint8_t *holes,
                         uint32_t spread, struct layout **layout_out)
{
    struct extending x = { .tensors = tensors,
                           .tensor_count = tensor_count,
                           .previous = previous,
                           .was = was,
                           .holes = holes,
                           .spread = spread };
    cairn_status status = list_added(&x);
    if (status == CAIRN_OK) status = weigh_kept(&x);
    if (status == CAIRN_OK) status = weigh_shards_extend(&x);
    if (status == CAIRN_OK) status = plan_added(&x);
    if (status == CAIRN_OK) status = join(&x, layout_out);
    release(&x);
    return status;
}

/* ==== plan report ==== */

/* Measures a finished layout: balance, what moved, how far units are spread. */

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static void weigh_shards_report(const struct plan_cut *cut, const struct layout *layout,
                                uint64_t *loads, struct plan_report *report)
{
    for (size_t e = 0; e < layout->extent_count; e++) {
        const struct extent *x = &layout->extents[e];
        loads[x->shard] += plan_bytes(cut, x->tensor, x->first_quantum, x->quantum_count);
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
static uint64_t moved_of_tensor(const struct plan_cut *cut, const struct layout *layout,
                                uint32_t tensor)
{
    const struct layout *previous = cut->request->previous;
    size_t old = previous->tensor_extents[tensor], now = layout->tensor_extents[tensor];
    uint64_t at = 0, moved = 0;
    while (at < cut->geometry[tensor].quantum_count) {
        const struct extent *a = &previous->extents[old], *b = &layout->extents[now];
        const uint64_t end_a = a->first_quantum + a->quantum_count;
        const uint64_t end_b = b->first_quantum + b->quantum_count;
        const uint64_t end = end_a < end_b ? end_a : end_b;
        if (plan_renumber(cut->request, a->shard) != b->shard)
            moved += plan_bytes(cut, tensor, at, end - at);
        old += end == end_a;
        now += end == end_b;
        at = end;
    }
    return moved;
}

static void weigh_moves(const struct plan_cut *cut, const struct layout *layout,
                        uint64_t *old_loads, struct plan_report *report)
{
    const struct layout *previous = cut->request->previous;
    if (previous == NULL) return;
    for (uint32_t t = 0; t < layout->tensor_count; t++)
        report->moved_bytes += moved_of_tensor(cut, layout, t);
    for (size_t e = 0; e < previous->extent_count; e++) {
        const struct extent *x = &previous->extents[e];
        const uint32_t s = plan_renumber(cut->request, x->shard);
        if (s == CAIRN_SHARD_GONE) continue;
        old_loads[s] += plan_bytes(cut, x->tensor, x->first_quantum, x->quantum_count);
    }
    for (uint32_t s = 0; s < layout->shard_count; s++)
        report->moved_bytes_bound += minus(cut->shards[s].share, old_loads[s]);
}

/* seen: [shard_count], zeros; the last unit, counted from 1, that has a piece on the shard. */
static void measure_spread(const struct plan_cut *cut, const struct layout *layout, uint32_t *seen,
                           struct plan_report *report)
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
        ratio_sum += (double)used / plan_may_use(cut, bytes, able);
        if (used > report->unit_spread_max) report->unit_spread_max = used;
    }
    report->unit_spread_of_possible = unit_count == 0 ? 1 : ratio_sum / unit_count;
}

cairn_status plan_describe(const struct plan_cut *cut, const struct layout *layout,
                           struct plan_report *report_out)
{
    struct plan_report report = { .total_bytes = cut->total_bytes };
    uint64_t *loads = calloc(layout->shard_count, sizeof *loads);
    uint64_t *old_loads = calloc(layout->shard_count, sizeof *old_loads);
    uint32_t *seen = calloc(layout->shard_count, sizeof *seen);
    const int got_all = loads != NULL && old_loads != NULL && seen != NULL;
    if (got_all) {
        weigh_shards_report(cut, layout, loads, &report);
        weigh_moves(cut, layout, old_loads, &report);
        measure_spread(cut, layout, seen, &report);
        *report_out = report;
    }
    free(loads);
    free(old_loads);
    free(seen);
    return got_all ? plan_count(layout, report_out) : CAIRN_ERR_NO_MEMORY;
}

/* ==== moves ==== */

int plan_same_tensors(const struct layout *a, const struct layout *b)
{
    if (a->tensor_count != b->tensor_count) return 0;
    for (uint32_t t = 0; t < a->tensor_count; t++)
        if (a->geometry[t].quantum_count != b->geometry[t].quantum_count) return 0;
    return 1;
}

/* Both tables cover the same quanta in the same order, so the walk needs no look at the tensors. */
int plan_walk_next(struct plan_walk *walk, struct plan_run *run_out)
{
    if (walk->at_current == walk->current->extent_count) return 0;
    const struct extent *now = &walk->current->extents[walk->at_current];
    const struct extent *then = &walk->target->extents[walk->at_target];
    const uint64_t now_end = now->first_quantum + now->quantum_count;
    const uint64_t then_end = then->first_quantum + then->quantum_count;
    const uint64_t end = now_end < then_end ? now_end : then_end;
    const uint64_t first = now->first_quantum > then->first_quantum ? now->first_quantum
                                                                    : then->first_quantum;
    *run_out = (struct plan_run) { now, then, first, end - first, then->shard };
    walk->at_current += end == now_end;
    walk->at_target += end == then_end;
    return 1;
}

uint64_t plan_run_bytes(const struct plan_walk *walk, const struct plan_run *run, uint64_t first,
                        uint64_t count)
{
    const struct geometry *g = &walk->current->geometry[run->extent->tensor];
    const uint64_t elems = quantum_first_elem(g, first + count) - quantum_first_elem(g, first);
    return elems * walk->tensors[run->extent->tensor].elem_bytes;
}
