#include "proto/plan/plan.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan_private.h"
#include "proto/spec/spec.h"

uint64_t plan_scale(uint64_t a, uint64_t num, uint64_t den)
{
    return (uint64_t)((unsigned __int128)a * num / den);
}

uint64_t plan_quanta_bytes(const struct geometry *geometry, uint32_t elem_bytes, uint64_t first,
                           uint64_t count)
{
    return (quantum_first_elem(geometry, first + count) - quantum_first_elem(geometry, first)) *
           elem_bytes;
}

uint64_t plan_bytes(const struct plan_cut *cut, uint32_t tensor, uint64_t first, uint64_t count)
{
    return plan_quanta_bytes(&cut->geometry[tensor], cut->request->tensors[tensor].elem_bytes,
                             first, count);
}

uint32_t plan_may_use(const struct plan_cut *cut, uint64_t bytes, uint32_t shard_count)
{
    const uint64_t pieces = bytes / CAIRN_SPREAD_PIECE_BYTES +
                            (bytes % CAIRN_SPREAD_PIECE_BYTES != 0);
    const uint32_t limit = cut->spread < shard_count ? cut->spread : shard_count;
    return pieces == 0 ? 1 : pieces < limit ? (uint32_t)pieces : limit;
}

uint64_t plan_part_bytes(const struct plan_cut *cut, uint32_t tensor)
{
    const uint64_t bytes = cut->unit_bytes[cut->unit_of[tensor]];
    return bytes / plan_may_use(cut, bytes, cut->able_count);
}

cairn_status plan_append(struct extent_list *list, struct extent extent)
{
    if (list->count > 0) {
        struct extent *last = &list->items[list->count - 1];
        if (last->tensor == extent.tensor && last->shard == extent.shard &&
            last->first_quantum + last->quantum_count == extent.first_quantum) {
            last->quantum_count += extent.quantum_count;
            return CAIRN_OK;
        }
    }
    CAIRN_TRY(array_reserve(&list->items, list->count, 1, &list->limit, sizeof *list->items));
    list->items[list->count++] = extent;
    return CAIRN_OK;
}

/* --- what is asked ------------------------------------------------------------------------------ */

static cairn_status judge_tensors(const struct layout_tensor *tensors, uint32_t count,
                                  uint64_t *bytes_out)
{
    uint64_t total_bytes = 0;
    for (uint32_t t = 0; t < count; t++) {
        if (tensors[t].elem_bytes == 0 || shape_check(&tensors[t].shape) != CAIRN_OK)
            return CAIRN_ERR_INVALID;
        const uint64_t elems = geometry_of(&tensors[t].shape).elems;
        if (elems > (CAIRN_PLAN_BYTES_MAX - total_bytes) / tensors[t].elem_bytes)
            return CAIRN_ERR_INVALID;
        total_bytes += elems * tensors[t].elem_bytes;
    }
    *bytes_out = total_bytes;
    return CAIRN_OK;
}

static cairn_status judge_request(const struct plan_request *request)
{
    if (request->tensor_count > CAIRN_LAYOUT_TENSORS_MAX) return CAIRN_ERR_INVALID;
    if (request->shard_count == 0 || request->shard_count > CAIRN_SHARDS_MAX)
        return CAIRN_ERR_INVALID;
    uint64_t weight = 0, bytes;
    for (uint32_t s = 0; s < request->shard_count; s++)
        weight += request->weights == NULL ? 1 : request->weights[s];
    if (weight == 0) return CAIRN_ERR_INVALID;
    const struct layout *held = request->held;
    if (held != NULL && held->tensor_count != request->tensor_count) return CAIRN_ERR_INVALID;
    return judge_tensors(request->tensors, request->tensor_count, &bytes);
}

static int compare_tensors(const void *a, const void *b, void *tensors)
{
    const struct layout_tensor *list = tensors;
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const int by_unit = strcmp(list[i].unit, list[j].unit);
    return by_unit != 0 ? by_unit : strcmp(list[i].name, list[j].name);
}

/* Sorts the tensors by unit, then by name. Everything below uses this order, so the order of the list does
 * not matter. */
static void order_tensors(struct plan_cut *cut)
{
    const struct layout_tensor *tensors = cut->request->tensors;
    const uint32_t count = cut->request->tensor_count;
    for (uint32_t t = 0; t < count; t++) cut->order[t] = t;
    qsort_r(cut->order, count, sizeof *cut->order, compare_tensors, (void *)(uintptr_t)tensors);
    uint32_t unit = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t t = cut->order[i];
        if (i > 0 && strcmp(tensors[cut->order[i - 1]].unit, tensors[t].unit) != 0) unit++;
        cut->rank[t] = i;
        cut->unit_of[t] = unit;
        cut->unit_bytes[unit] += plan_bytes(cut, t, 0, cut->geometry[t].quantum_count);
    }
}

/* Computes the shares as differences of running sums, so that they add up exactly to the job's bytes. */
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
        const uint64_t end = plan_scale(cut->total_bytes, weight, weight_sum);
        cut->shards[s].share = end - given;
        given = end;
    }
}

static cairn_status measure(struct plan_cut *cut)
{
    const struct plan_request *request = cut->request;
    for (uint32_t t = 0; t < request->tensor_count; t++) {
        cut->geometry[t] = geometry_of(&request->tensors[t].shape);
        cut->total_bytes += cut->geometry[t].elems * request->tensors[t].elem_bytes;
        const uint64_t quantum = cut->geometry[t].elems == 0 ? 0 : plan_bytes(cut, t, 0, 1);
        if (quantum > cut->quantum_bytes_max) cut->quantum_bytes_max = quantum;
        if (request->held != NULL &&
            request->held->geometry[t].quantum_count != cut->geometry[t].quantum_count)
            return CAIRN_ERR_INVALID;
    }
    return CAIRN_OK;
}

/* Arrays with an item for each tensor have one item more than needed, so that none is empty. */
static cairn_status open_cut(struct plan_cut *cut, const struct plan_request *request)
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
        cut->unit_bytes == NULL || cut->shards == NULL || cut->receivers == NULL)
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
    const struct extent *x = a, *y = b;
    return x->first_quantum < y->first_quantum ? -1 : x->first_quantum > y->first_quantum;
}

/* Sorts only if needed: most tensors were cut from front to back, and are sorted already, unless a re-plan
 * has mixed them up. */
static void sort_within_tensor(struct extent *extents, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        if (extents[i].first_quantum < extents[i - 1].first_quantum) {
            qsort(extents, count, sizeof *extents, compare_quanta);
            return;
        }
    }
}

/* A counting sort over tensors. */
cairn_status plan_sort(struct extent_list *list, const uint32_t *key, uint32_t tensor_count)
{
    size_t *starts = calloc((size_t)tensor_count + 1, sizeof *starts);
    struct extent *sorted = calloc(list->count + 1, sizeof *sorted);
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

void plan_join(struct extent_list *list)
{
    const size_t count = list->count;
    // an item is read before an append can overwrite it, and appends never grow the list
    list->count = 0;
    for (size_t e = 0; e < count; e++) {
        const cairn_status status = plan_append(list, list->items[e]);
        assert(status == CAIRN_OK);
        (void)status;
    }
}

/* --- the report --------------------------------------------------------------------------------- */

static void weigh_shards(const struct plan_cut *cut, const struct layout *layout, uint64_t *loads,
                         struct plan_report *report)
{
    for (size_t e = 0; e < layout->extent_count; e++) {
        const struct extent *x = &layout->extents[e];
        loads[x->shard] += plan_bytes(cut, x->tensor, x->first_quantum, x->quantum_count);
    }
    report->heaviest_over_mean = 1;
    for (uint32_t s = 0; s < layout->shard_count; s++) {
        const uint64_t share = cut->shards[s].share;
        const uint64_t off = plan_minus(loads[s], share) + plan_minus(share, loads[s]);
        if (off > report->off_share_bytes_max) report->off_share_bytes_max = off;
        if (share == 0) continue;
        const double ratio = (double)loads[s] / (double)share;
        if (ratio > report->heaviest_over_mean) report->heaviest_over_mean = ratio;
    }
    report->quantum_bytes_max = cut->quantum_bytes_max;
}

static void report_moves(const struct plan_cut *cut, const struct layout *layout,
                         uint64_t *old_loads, struct plan_report *report)
{
    const struct plan_request *request = cut->request;
    if (request->held == NULL) return;
    struct plan_walk walk = { request->tensors, request->held, layout, 0, 0 };
    struct plan_run run;
    while (plan_walk_next(&walk, &run)) {
        const uint32_t s = plan_renumber(request, run.extent->shard);
        const uint64_t bytes = plan_run_bytes(&walk, &run, run.first, run.count);
        if (s != run.to) report->moved_bytes += bytes;
        if (s != CAIRN_SHARD_GONE) old_loads[s] += bytes;
    }
    for (uint32_t s = 0; s < layout->shard_count; s++)
        report->moved_bytes_bound += plan_minus(cut->shards[s].share, old_loads[s]);
}

/* `seen`: [shard_count], all 0 at first: number + 1 of the last unit that was found to have a piece on the
 * shard. */
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

/* Measures a finished layout: how level it is, how many bytes move, and over how many shards units are
 * spread. */
static cairn_status describe(const struct plan_cut *cut, const struct layout *layout,
                             struct plan_report *report_out)
{
    struct plan_report report = { .total_bytes = cut->total_bytes };
    uint64_t *loads = calloc(layout->shard_count, sizeof *loads);
    uint64_t *old_loads = calloc(layout->shard_count, sizeof *old_loads);
    uint32_t *seen = calloc(layout->shard_count, sizeof *seen);
    const int got_all = loads != NULL && old_loads != NULL && seen != NULL;
    if (got_all) {
        weigh_shards(cut, layout, loads, &report);
        report_moves(cut, layout, old_loads, &report);
        measure_spread(cut, layout, seen, &report);
        *report_out = report;
    }
    free(loads);
    free(old_loads);
    free(seen);
    return got_all ? plan_count(layout, report_out) : CAIRN_ERR_NO_MEMORY;
}

/* --- the course of a plan ----------------------------------------------------------------------- */

static cairn_status free_everything(struct plan_cut *cut)
{
    for (uint32_t t = 0; t < cut->request->tensor_count; t++) {
        if (cut->geometry[t].elems == 0) continue;
        CAIRN_TRY(plan_append(&cut->free_runs,
                              (struct extent) { t, 0, 0, cut->geometry[t].quantum_count }));
    }
    cut->free_bytes = cut->total_bytes;
    for (uint32_t s = 0; s < cut->request->shard_count; s++)
        if (cut->shards[s].weight > 0) cut->receivers[cut->receiver_count++] = s;
    return CAIRN_OK;
}

static cairn_status fill_table(struct plan_cut *cut)
{
    const struct plan_request *request = cut->request;
    order_tensors(cut);
    share_bytes(cut);
    cut->keeps = request->held != NULL && request->free != CAIRN_FREE_ALL;
    cairn_status status = cut->keeps ? plan_keep(cut) : free_everything(cut);
    if (status == CAIRN_OK) status = plan_sort(&cut->free_runs, cut->rank, request->tensor_count);
    if (status == CAIRN_OK) status = plan_place(cut);
    if (status == CAIRN_OK) status = plan_sort(&cut->table, NULL, request->tensor_count);
    if (status == CAIRN_OK) plan_join(&cut->table);
    return status;
}

cairn_status plan_close_table(const struct layout_tensor *tensors, uint32_t tensor_count,
                              uint32_t shard_count, uint64_t version, struct extent_list *table,
                              struct layout **layout_out)
{
    CAIRN_TRY(layout_make(tensors, tensor_count, shard_count, version, table->items, table->count,
                          layout_out));
    *table = (struct extent_list) { 0 };
    return CAIRN_OK;
}

cairn_status plan_make_once(const struct plan_request *request, const uint8_t *afresh,
                            struct layout **layout_out, struct plan_report *report_out)
{
    const uint64_t version = request->held == NULL ? 1 : request->held->version + 1;
    struct plan_cut cut;
    struct layout *layout = NULL;
    cairn_status status = open_cut(&cut, request);
    cut.afresh = afresh;
    if (status == CAIRN_OK) status = fill_table(&cut);
    if (status == CAIRN_OK)
        status = plan_close_table(request->tensors, request->tensor_count, request->shard_count,
                                  version, &cut.table, &layout);
    if (status == CAIRN_OK) status = describe(&cut, layout, report_out);
    close_cut(&cut);
    if (status != CAIRN_OK) {
        layout_close(layout);
        return status;
    }
    *layout_out = layout;
    return CAIRN_OK;
}

/* ---- new tensors, beside what is held ---- */

#define WEIGHT_MAX ((uint64_t)1 << 20) /* the greatest weight of a shard */

/* The new tensors become a fresh table of their own. The weight of a shard is what it has less than the load
 * to which the new tensors fill up all shards with less. */
struct addition {
    const struct plan_request *request; /* borrowed */
    struct layout_tensor *tensors;      /* owned: [count]: the new tensors */
    uint32_t *place_of; /* owned: [request->tensor_count]: index in `tensors` of each new tensor */
    uint32_t count;
    uint64_t bytes;
    uint64_t *loads;      /* owned: [shard_count]: bytes of the kept tensors on each shard */
    uint32_t *weights;    /* owned: [shard_count] */
    struct layout *fresh; /* owned: the layout of `tensors`; NULL: no tensor is new */
};

static uint32_t held_as(const struct plan_request *request, uint32_t tensor)
{
    return request->was == NULL ? tensor : request->was[tensor];
}

static bool may_receive(const struct plan_request *request, uint32_t shard)
{
    return request->weights == NULL || request->weights[shard] > 0;
}

static cairn_status list_new(struct addition *x)
{
    const struct plan_request *request = x->request;
    x->tensors = calloc((size_t)request->tensor_count + 1, sizeof *x->tensors);
    x->place_of = calloc((size_t)request->tensor_count + 1, sizeof *x->place_of);
    if (x->tensors == NULL || x->place_of == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t t = 0; t < request->tensor_count; t++) {
        const uint32_t was = held_as(request, t);
        if (was != CAIRN_TENSOR_NEW && was >= request->held->tensor_count) return CAIRN_ERR_INVALID;
        if (was != CAIRN_TENSOR_NEW) continue;
        x->place_of[t] = x->count;
        x->tensors[x->count++] = request->tensors[t];
    }
    return judge_tensors(x->tensors, x->count, &x->bytes);
}

static void weigh_kept(struct addition *x)
{
    const struct layout *held = x->request->held;
    for (uint32_t t = 0; t < x->request->tensor_count; t++) {
        const uint32_t was = held_as(x->request, t);
        if (was == CAIRN_TENSOR_NEW) continue;
        for (size_t e = held->tensor_extents[was]; e < held->tensor_extents[was + 1]; e++)
            x->loads[held->extents[e].shard] += plan_quanta_bytes(
                &held->geometry[was], x->request->tensors[t].elem_bytes,
                held->extents[e].first_quantum, held->extents[e].quantum_count);
    }
}

static int compare_loads(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Returns the load that all shards with less load reach if they are filled up evenly with the new bytes.
 * `sorted`: [shard_count]: the loads, the least first. */
static uint64_t level_of(const uint64_t *sorted, uint32_t shard_count, uint64_t bytes)
{
    uint64_t below = 0; // load of the shards that are filled up
    for (uint32_t s = 0; s < shard_count; s++) {
        below += sorted[s];
        const uint64_t level = (below + bytes) / (s + 1);
        if (s + 1 == shard_count || level <= sorted[s + 1]) return level + 1;
    }
    return 0; // there is no shard
}

/* Weighs the shards by the room that they have below the level. `sorted`: [shard_count], scratch. */
static void weigh_room(struct addition *x, uint64_t *sorted)
{
    const uint32_t count = x->request->shard_count;
    uint32_t present = 0;
    for (uint32_t s = 0; s < count; s++)
        if (may_receive(x->request, s)) sorted[present++] = x->loads[s];
    qsort(sorted, present, sizeof *sorted, compare_loads);
    const uint64_t level = level_of(sorted, present, x->bytes);
    const uint64_t most = present == 0 ? 0 : level - sorted[0];
    for (uint32_t s = 0; s < count; s++) {
        if (!may_receive(x->request, s) || x->loads[s] >= level) continue;
        const unsigned __int128 scaled = (unsigned __int128)(level - x->loads[s]) * WEIGHT_MAX;
        x->weights[s] = (uint32_t)(scaled / most) + 1;
    }
}

static cairn_status plan_fresh(struct addition *x)
{
    const uint32_t shards = x->request->shard_count;
    x->loads = calloc(shards, sizeof *x->loads);
    x->weights = calloc(shards, sizeof *x->weights);
    uint64_t *sorted = calloc(shards, sizeof *sorted);
    const bool got_all = x->loads != NULL && x->weights != NULL && sorted != NULL;
    if (got_all) {
        weigh_kept(x);
        weigh_room(x, sorted);
    }
    free(sorted);
    const struct plan_request request = { .tensors = x->tensors,
                                          .tensor_count = x->count,
                                          .shard_count = shards,
                                          .weights = x->weights,
                                          .spread = x->request->spread };
    return got_all ? plan_make(&request, &x->fresh, NULL) : CAIRN_ERR_NO_MEMORY;
}

/* Joins the kept and the fresh extents into one table, in the order of the tensors. Extents of one shard
 * that are neighbours stay apart, so that each keeps its place in the shard's memory. */
static cairn_status join_tables(const struct addition *x, struct layout **layout_out)
{
    const struct plan_request *request = x->request;
    struct extent_list table = { 0 };
    cairn_status status = CAIRN_OK;
    for (uint32_t t = 0; t < request->tensor_count && status == CAIRN_OK; t++) {
        const uint32_t was = held_as(request, t);
        const bool is_new = was == CAIRN_TENSOR_NEW;
        size_t count;
        const struct extent *from = layout_tensor_extents(is_new ? x->fresh : request->held,
                                                          is_new ? x->place_of[t] : was, &count);
        status = array_reserve(&table.items, table.count, count, &table.limit, sizeof *table.items);
        for (size_t e = 0; e < count && status == CAIRN_OK; e++) {
            table.items[table.count] = from[e];
            table.items[table.count++].tensor = t;
        }
    }
    if (status == CAIRN_OK)
        status = plan_close_table(request->tensors, request->tensor_count, request->shard_count,
                                  request->held->version + 1, &table, layout_out);
    free(table.items);
    return status;
}

static cairn_status place_new(const struct plan_request *request, struct layout **layout_out)
{
    struct addition x = { .request = request };
    if (request->held == NULL || request->shard_count < request->held->shard_count)
        return CAIRN_ERR_INVALID;
    cairn_status status = list_new(&x);
    if (status == CAIRN_OK && x.count > 0) status = plan_fresh(&x);
    if (status == CAIRN_OK) status = join_tables(&x, layout_out);
    free(x.tensors);
    free(x.place_of);
    free(x.loads);
    free(x.weights);
    layout_close(x.fresh);
    return status;
}

cairn_status plan_make(const struct plan_request *request, struct layout **layout_out,
                       struct plan_report *report_out)
{
    if (request->free == CAIRN_FREE_NEW) return place_new(request, layout_out);
    CAIRN_TRY(judge_request(request));
    struct plan_report report;
    struct layout *layout = NULL;
    cairn_status status = plan_make_once(request, NULL, &layout, &report);
    if (status == CAIRN_OK && request->held != NULL && request->free == CAIRN_FREE_SURPLUS)
        status = plan_gather(request, &layout, &report);
    if (status != CAIRN_OK) {
        layout_close(layout);
        return status;
    }
    *layout_out = layout;
    if (report_out != NULL) *report_out = report;
    return CAIRN_OK;
}

/* ==== plan job ==== */

/* Returns how many bytes an element costs its shard: the master, two published versions and, if it is
 * trained, the sum and the planes of the optimizer. */
static uint32_t plan_elem_weight(const struct job_spec_data *spec, size_t tensor)
{
    const struct tensor_spec *t = &spec->tensors[tensor];
    uint32_t bytes = (uint32_t)(dtype_size((int)t->master) + 2 * dtype_size((int)t->wire));
    if (t->kind != CAIRN_TRAINED) return bytes;
    bytes += 4;
    const uint32_t planes = spec_planes(spec, tensor);
    for (int p = CAIRN_PLANE_EXP_AVG; p < CAIRN_PLANE_COUNT; p++) {
        if (planes & (1u << p)) bytes += 4;
    }
    return bytes;
}

/* Lists the spec's tensors with an element weight of 1. */
static struct layout_tensor *list_tensors(const struct job_spec_data *spec)
{
    struct layout_tensor *tensors = calloc(spec->tensor_count + 1, sizeof *tensors);
    for (size_t i = 0; tensors != NULL && i < spec->tensor_count; i++)
        tensors[i] = (struct layout_tensor) { .name = spec->tensors[i].name,
                                              .unit = spec->tensors[i].unit,
                                              .shape = spec->tensors[i].shape,
                                              .elem_bytes = 1 };
    return tensors;
}

struct layout_tensor *plan_tensors(const struct job_spec_data *spec)
{
    struct layout_tensor *tensors = list_tensors(spec);
    for (size_t i = 0; tensors != NULL && i < spec->tensor_count; i++)
        tensors[i].elem_bytes = plan_elem_weight(spec, i);
    return tensors;
}

uint64_t plan_extent_bytes(const struct job_spec_data *spec, const struct layout *layout,
                           const struct extent *extent)
{
    return extent->quantum_count * layout->geometry[extent->tensor].quantum_elems *
           plan_elem_weight(spec, extent->tensor);
}

cairn_status plan_job_decode(const struct job_spec_data *spec, const uint8_t *data, size_t bytes,
                             struct layout **layout_out)
{
    struct layout_tensor *tensors = list_tensors(spec);
    if (tensors == NULL) return CAIRN_ERR_NO_MEMORY;
    const cairn_status status = layout_decode(data, bytes, tensors, (uint32_t)spec->tensor_count,
                                              layout_out);
    free(tensors);
    return status;
}

cairn_status plan_job_widen(const struct job_spec_data *spec, const struct layout *layout,
                            uint32_t shard_count, struct layout **layout_out)
{
    struct layout_tensor *tensors = plan_tensors(spec);
    if (tensors == NULL) return CAIRN_ERR_NO_MEMORY;
    const struct plan_request request = { .tensors = tensors,
                                          .tensor_count = (uint32_t)spec->tensor_count,
                                          .shard_count = shard_count,
                                          .held = layout,
                                          .free = CAIRN_FREE_NEW };
    const cairn_status status = plan_make(&request, layout_out, NULL);
    free(tensors);
    return status;
}

uint32_t plan_job_shards(const struct job_spec_data *spec, uint32_t shard_count)
{
    return spec->stage == 0 ? 1 : shard_count; // stage 0: one shard holds all of the state
}

cairn_status plan_job(const struct job_spec_data *spec, uint32_t shard_count,
                      struct layout **layout_out, struct plan_report *report_out)
{
    struct layout_tensor *tensors = plan_tensors(spec);
    if (tensors == NULL) return CAIRN_ERR_NO_MEMORY;
    const struct plan_request request = { .tensors = tensors,
                                          .tensor_count = (uint32_t)spec->tensor_count,
                                          .shard_count = shard_count,
                                          .spread = spec->spread };
    const cairn_status status = plan_make(&request, layout_out, report_out);
    free(tensors);
    return status;
}
