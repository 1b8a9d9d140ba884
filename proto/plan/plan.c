#include "proto/plan/plan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan_cut.h"

uint64_t cairn_plan_scale(uint64_t a, uint64_t num, uint64_t den)
{
    return (uint64_t)((unsigned __int128)a * num / den);
}

uint64_t cairn_plan_bytes(const struct plan_cut *cut, uint32_t tensor, uint64_t first,
                          uint64_t count)
{
    const struct cairn_geometry *g = &cut->geometry[tensor];
    const uint64_t elems = cairn_quantum_first_elem(g, first + count) -
                           cairn_quantum_first_elem(g, first);
    return elems * cut->request->tensors[tensor].elem_bytes;
}

uint32_t cairn_plan_may_use(const struct plan_cut *cut, uint64_t bytes, uint32_t shard_count)
{
    const uint64_t pieces = bytes / CAIRN_SPREAD_PIECE_BYTES +
                            (bytes % CAIRN_SPREAD_PIECE_BYTES != 0);
    const uint32_t limit = cut->spread < shard_count ? cut->spread : shard_count;
    return pieces == 0 ? 1 : pieces < limit ? (uint32_t)pieces : limit;
}

uint64_t cairn_plan_part_bytes(const struct plan_cut *cut, uint32_t tensor)
{
    const uint64_t bytes = cut->unit_bytes[cut->unit_of[tensor]];
    return bytes / cairn_plan_may_use(cut, bytes, cut->able_count);
}

cairn_status cairn_plan_append(struct extent_list *list, struct cairn_extent extent)
{
    if (list->count > 0) {
        struct cairn_extent *last = &list->items[list->count - 1];
        if (last->tensor == extent.tensor && last->shard == extent.shard &&
            last->first_quantum + last->quantum_count == extent.first_quantum) {
            last->quantum_count += extent.quantum_count;
            return CAIRN_OK;
        }
    }
    if (list->count == list->limit) {
        const size_t limit = list->limit + list->limit / 2 + 64;
        struct cairn_extent *items = realloc(list->items, limit * sizeof *items);
        if (items == NULL) return CAIRN_ERR_NO_MEMORY;
        list->items = items;
        list->limit = limit;
    }
    list->items[list->count++] = extent;
    return CAIRN_OK;
}

/* --- what is asked ------------------------------------------------------------------------------ */

static cairn_status judge_tensors(const struct cairn_plan_request *request)
{
    uint64_t total_bytes = 0;
    for (uint32_t t = 0; t < request->tensor_count; t++) {
        const struct cairn_layout_tensor *tensor = &request->tensors[t];
        if (tensor->elem_bytes == 0 || cairn_shape_check(&tensor->shape) != CAIRN_OK)
            return CAIRN_ERR_INVALID;
        const uint64_t elems = cairn_geometry_of(&tensor->shape).elems;
        if (elems > (CAIRN_PLAN_BYTES_MAX - total_bytes) / tensor->elem_bytes)
            return CAIRN_ERR_INVALID;
        total_bytes += elems * tensor->elem_bytes;
    }
    return CAIRN_OK;
}

static cairn_status judge_request(const struct cairn_plan_request *request)
{
    if (request->tensor_count > CAIRN_LAYOUT_TENSORS_MAX) return CAIRN_ERR_INVALID;
    if (request->shard_count == 0 || request->shard_count > CAIRN_SHARDS_MAX)
        return CAIRN_ERR_INVALID;
    uint64_t weight = 0;
    for (uint32_t s = 0; s < request->shard_count; s++)
        weight += request->weights == NULL ? 1 : request->weights[s];
    if (weight == 0) return CAIRN_ERR_INVALID;
    const struct cairn_layout *previous = request->previous;
    if (previous != NULL && previous->tensor_count != request->tensor_count)
        return CAIRN_ERR_INVALID;
    return judge_tensors(request);
}

static int compare_tensors(const void *a, const void *b, void *tensors)
{
    const struct cairn_layout_tensor *list = tensors;
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const int by_unit = strcmp(list[i].unit, list[j].unit);
    return by_unit != 0 ? by_unit : strcmp(list[i].name, list[j].name);
}

/* Everything below goes by this order, so that the order of the list cannot matter. */
static void order_tensors(struct plan_cut *cut)
{
    const struct cairn_layout_tensor *tensors = cut->request->tensors;
    const uint32_t count = cut->request->tensor_count;
    for (uint32_t t = 0; t < count; t++) cut->order[t] = t;
    qsort_r(cut->order, count, sizeof *cut->order, compare_tensors, (void *)(uintptr_t)tensors);
    uint32_t unit = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t t = cut->order[i];
        if (i > 0 && strcmp(tensors[cut->order[i - 1]].unit, tensors[t].unit) != 0) unit++;
        cut->rank[t] = i;
        cut->unit_of[t] = unit;
        cut->unit_bytes[unit] += cairn_plan_bytes(cut, t, 0, cut->geometry[t].quantum_count);
    }
}

/* Shares by running prefix: they add up to the job exactly. */
static void share_bytes(struct plan_cut *cut)
{
    const uint32_t *weights = cut->request->weights;
    uint64_t weight_sum = 0, weight = 0, given = 0;
    for (uint32_t s = 0; s < cut->request->shard_count; s++) {
        cut->shards[s].weight = weights == NULL ? 1 : weights[s];
        weight_sum += cut->shards[s].weight;
        cut->able_count += cut->shards[s].weight > 0;
    }
    for (uint32_t s = 0; s < cut->request->shard_count; s++) {
        weight += cut->shards[s].weight;
        const uint64_t end = cairn_plan_scale(cut->total_bytes, weight, weight_sum);
        cut->shards[s].share = end - given;
        given = end;
    }
}

static cairn_status measure(struct plan_cut *cut)
{
    const struct cairn_plan_request *request = cut->request;
    for (uint32_t t = 0; t < request->tensor_count; t++) {
        cut->geometry[t] = cairn_geometry_of(&request->tensors[t].shape);
        cut->total_bytes += cut->geometry[t].elems * request->tensors[t].elem_bytes;
        const uint64_t quantum = cut->geometry[t].elems == 0 ? 0 : cairn_plan_bytes(cut, t, 0, 1);
        if (quantum > cut->quantum_bytes_max) cut->quantum_bytes_max = quantum;
        if (request->previous != NULL &&
            request->previous->geometry[t].quantum_count != cut->geometry[t].quantum_count)
            return CAIRN_ERR_INVALID;
    }
    return CAIRN_OK;
}

/* Every array has one item more than it needs, so that none is empty. */
static cairn_status open_cut(struct plan_cut *cut, const struct cairn_plan_request *request)
{
    const size_t tensors = (size_t)request->tensor_count + 1;
    *cut = (struct plan_cut) { .request = request };
    cut->spread = request->spread == 0 ? CAIRN_SPREAD_DEFAULT : request->spread;
    cut->geometry = calloc(tensors, sizeof *cut->geometry);
    cut->order = calloc(tensors, sizeof *cut->order);
    cut->rank = calloc(tensors, sizeof *cut->rank);
    cut->unit_of = calloc(tensors, sizeof *cut->unit_of);
    cut->unit_bytes = calloc(tensors, sizeof *cut->unit_bytes);
    cut->shards = calloc(request->shard_count, sizeof *cut->shards);
    cut->receivers = calloc(request->shard_count, sizeof *cut->receivers);
    if (cut->geometry == NULL || cut->order == NULL || cut->rank == NULL || cut->unit_of == NULL ||
        cut->shards == NULL || cut->receivers == NULL)
        return CAIRN_ERR_NO_MEMORY;
    return measure(cut);
}

static void close_cut(struct plan_cut *cut)
{
    free(cut->geometry);
    free(cut->order);
    free(cut->rank);
    free(cut->unit_of);
    free(cut->unit_bytes);
    free(cut->shards);
    free(cut->receivers);
    free(cut->free_runs.items);
    free(cut->table.items);
}

/* --- sorting ------------------------------------------------------------------------------------ */

static int compare_quanta(const void *a, const void *b)
{
    const struct cairn_extent *x = a, *y = b;
    return x->first_quantum < y->first_quantum ? -1 : x->first_quantum > y->first_quantum;
}

/* Most tensors were cut from front to back; only what a re-plan mixed needs sorting. */
static void sort_within_tensor(struct cairn_extent *extents, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        if (extents[i].first_quantum < extents[i - 1].first_quantum) {
            qsort(extents, count, sizeof *extents, compare_quanta);
            return;
        }
    }
}

/* A counting sort over tensors. */
cairn_status cairn_plan_sort(struct extent_list *list, const uint32_t *key, uint32_t tensor_count)
{
    size_t *starts = calloc((size_t)tensor_count + 1, sizeof *starts);
    struct cairn_extent *sorted = calloc(list->count + 1, sizeof *sorted);
    if (starts == NULL || sorted == NULL) {
        free(starts);
        free(sorted);
        return CAIRN_ERR_NO_MEMORY;
    }
    for (size_t e = 0; e < list->count; e++) {
        const uint32_t t = list->items[e].tensor;
        starts[key == NULL ? t : key[t]]++;
    }
    size_t end = 0;
    for (uint32_t k = 0; k < tensor_count; k++) starts[k] = end += starts[k];
    starts[tensor_count] = end;
    for (size_t e = list->count; e-- > 0;) {
        const uint32_t t = list->items[e].tensor;
        sorted[--starts[key == NULL ? t : key[t]]] = list->items[e];
    }
    for (uint32_t k = 0; k < tensor_count; k++)
        sort_within_tensor(sorted + starts[k], starts[k + 1] - starts[k]);
    free(starts);
    free(list->items);
    list->items = sorted;
    list->limit = list->count;
    return CAIRN_OK;
}

void cairn_plan_join(struct extent_list *list)
{
    const size_t count = list->count;
    list->count = 0; // reads run ahead of the appends, which therefore never grow the list
    for (size_t e = 0; e < count; e++) {
        const cairn_status status = cairn_plan_append(list, list->items[e]);
        assert(status == CAIRN_OK);
        (void)status;
    }
}

/* --- the course of a plan ----------------------------------------------------------------------- */

static cairn_status free_everything(struct plan_cut *cut)
{
    for (uint32_t t = 0; t < cut->request->tensor_count; t++) {
        if (cut->geometry[t].elems == 0) continue;
        cairn_status status = cairn_plan_append(
            &cut->free_runs, (struct cairn_extent) { t, 0, 0, cut->geometry[t].quantum_count });
        if (status != CAIRN_OK) return status;
    }
    cut->free_bytes = cut->total_bytes;
    for (uint32_t s = 0; s < cut->request->shard_count; s++)
        if (cut->shards[s].weight > 0) cut->receivers[cut->receiver_count++] = s;
    return CAIRN_OK;
}

static cairn_status fill_table(struct plan_cut *cut)
{
    const struct cairn_plan_request *request = cut->request;
    order_tensors(cut);
    share_bytes(cut);
    cut->keeps = request->previous != NULL && !request->compact;
    cairn_status status = cut->keeps ? cairn_plan_keep(cut) : free_everything(cut);
    if (status == CAIRN_OK)
        status = cairn_plan_sort(&cut->free_runs, cut->rank, request->tensor_count);
    if (status == CAIRN_OK) status = cairn_plan_place(cut);
    if (status == CAIRN_OK) status = cairn_plan_sort(&cut->table, NULL, request->tensor_count);
    if (status == CAIRN_OK) cairn_plan_join(&cut->table);
    return status;
}

static cairn_status close_table(struct plan_cut *cut, struct cairn_layout **layout_out)
{
    const struct cairn_plan_request *request = cut->request;
    const uint64_t version = request->previous == NULL ? 1 : request->previous->version + 1;
    cairn_status status = cairn_layout_make(request->tensors, request->tensor_count,
                                            request->shard_count, version, cut->table.items,
                                            cut->table.count, layout_out);
    if (status == CAIRN_OK) cut->table = (struct extent_list) { 0 }; // the layout's now
    return status;
}

cairn_status cairn_plan_make_once(const struct cairn_plan_request *request, const uint8_t *afresh,
                                  struct cairn_layout **layout_out,
                                  struct cairn_plan_report *report_out)
{
    struct plan_cut cut;
    struct cairn_layout *layout = NULL;
    cairn_status status = open_cut(&cut, request);
    cut.afresh = afresh;
    if (status == CAIRN_OK) status = fill_table(&cut);
    if (status == CAIRN_OK) status = close_table(&cut, &layout);
    if (status == CAIRN_OK) status = cairn_plan_describe(&cut, layout, report_out);
    close_cut(&cut);
    if (status != CAIRN_OK) {
        cairn_layout_close(layout);
        return status;
    }
    *layout_out = layout;
    return CAIRN_OK;
}

cairn_status cairn_plan_make(const struct cairn_plan_request *request,
                             struct cairn_layout **layout_out, struct cairn_plan_report *report_out)
{
    cairn_status status = judge_request(request);
    if (status != CAIRN_OK) return status;
    struct cairn_plan_report report;
    struct cairn_layout *layout = NULL;
    status = cairn_plan_make_once(request, NULL, &layout, &report);
    if (status == CAIRN_OK && request->previous != NULL && !request->compact && !request->least)
        status = cairn_plan_gather(request, &layout, &report);
    if (status != CAIRN_OK) {
        cairn_layout_close(layout);
        return status;
    }
    *layout_out = layout;
    if (report_out != NULL) *report_out = report;
    return CAIRN_OK;
}
