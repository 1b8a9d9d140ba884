#include "proto/plan/plan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan_private.h"
#include "proto/spec/spec.h"

static cairn_status plan_place(struct plan_cut *cut);
static void plan_order_line(struct free_unit **units, size_t count);
static size_t plan_find_stiff(struct placing *p, struct free_unit **units, size_t count);
static void plan_wind(struct placing *p, struct free_unit **units, size_t count);

uint64_t plan_scale(uint64_t a, uint64_t num, uint64_t den)
{
    return (uint64_t)((unsigned __int128)a * num / den);
}

uint64_t plan_bytes(const struct plan_cut *cut, uint32_t tensor, uint64_t first, uint64_t count)
{
    const struct geometry *g = &cut->geometry[tensor];
    const uint64_t elems = quantum_first_elem(g, first + count) - quantum_first_elem(g, first);
    return elems * cut->request->tensors[tensor].elem_bytes;
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

static cairn_status judge_tensors(const struct plan_request *request)
{
    uint64_t total_bytes = 0;
    for (uint32_t t = 0; t < request->tensor_count; t++) {
        const struct layout_tensor *tensor = &request->tensors[t];
        if (tensor->elem_bytes == 0 || shape_check(&tensor->shape) != CAIRN_OK)
            return CAIRN_ERR_INVALID;
        const uint64_t elems = geometry_of(&tensor->shape).elems;
        if (elems > (CAIRN_PLAN_BYTES_MAX - total_bytes) / tensor->elem_bytes)
            return CAIRN_ERR_INVALID;
        total_bytes += elems * tensor->elem_bytes;
    }
    return CAIRN_OK;
}

static cairn_status judge_request(const struct plan_request *request)
{
    if (request->tensor_count > CAIRN_LAYOUT_TENSORS_MAX) return CAIRN_ERR_INVALID;
    if (request->shard_count == 0 || request->shard_count > CAIRN_SHARDS_MAX)
        return CAIRN_ERR_INVALID;
    uint64_t weight = 0;
    for (uint32_t s = 0; s < request->shard_count; s++)
        weight += request->weights == NULL ? 1 : request->weights[s];
    if (weight == 0) return CAIRN_ERR_INVALID;
    const struct layout *previous = request->previous;
    if (previous != NULL && previous->tensor_count != request->tensor_count)
        return CAIRN_ERR_INVALID;
    return judge_tensors(request);
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
        if (request->previous != NULL &&
            request->previous->geometry[t].quantum_count != cut->geometry[t].quantum_count)
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
    cut->keeps = request->previous != NULL && !request->compact;
    cairn_status status = cut->keeps ? plan_keep(cut) : free_everything(cut);
    if (status == CAIRN_OK) status = plan_sort(&cut->free_runs, cut->rank, request->tensor_count);
    if (status == CAIRN_OK) status = plan_place(cut);
    if (status == CAIRN_OK) status = plan_sort(&cut->table, NULL, request->tensor_count);
    if (status == CAIRN_OK) plan_join(&cut->table);
    return status;
}

static cairn_status close_table(struct plan_cut *cut, struct layout **layout_out)
{
    const struct plan_request *request = cut->request;
    const uint64_t version = request->previous == NULL ? 1 : request->previous->version + 1;
    cairn_status status = layout_make(request->tensors, request->tensor_count, request->shard_count,
                                      version, cut->table.items, cut->table.count, layout_out);
    // the layout owns the table now
    if (status == CAIRN_OK) cut->table = (struct extent_list) { 0 };
    return status;
}

cairn_status plan_make_once(const struct plan_request *request, const uint8_t *afresh,
                            struct layout **layout_out, struct plan_report *report_out)
{
    struct plan_cut cut;
    struct layout *layout = NULL;
    cairn_status status = open_cut(&cut, request);
    cut.afresh = afresh;
    if (status == CAIRN_OK) status = fill_table(&cut);
    if (status == CAIRN_OK) status = close_table(&cut, &layout);
    if (status == CAIRN_OK) status = plan_describe(&cut, layout, report_out);
    close_cut(&cut);
    if (status != CAIRN_OK) {
        layout_close(layout);
        return status;
    }
    *layout_out = layout;
    return CAIRN_OK;
}

cairn_status plan_make(const struct plan_request *request, struct layout **layout_out,
                       struct plan_report *report_out)
{
    CAIRN_TRY(judge_request(request));
    struct plan_report report;
    struct layout *layout = NULL;
    cairn_status status = plan_make_once(request, NULL, &layout, &report);
    if (status == CAIRN_OK && request->previous != NULL && !request->compact && !request->least)
        status = plan_gather(request, &layout, &report);
    if (status != CAIRN_OK) {
        layout_close(layout);
        return status;
    }
    *layout_out = layout;
    if (report_out != NULL) *report_out = report;
    return CAIRN_OK;
}

/* ==== plan place ==== */

/* Places free units on the receivers, in ways 1 and 3 of a fresh table (plan.h). Way 2 is in the section
 * "plan line". */

#define SINGLE_LAP_TRIES 8

/* --- cutting ------------------------------------------------------------------------------------ */

uint64_t plan_nearest(const struct plan_cut *cut, uint32_t tensor, uint64_t first, uint64_t count,
                      uint64_t room)
{
    if (room >= plan_bytes(cut, tensor, first, count)) return count;
    const uint64_t quantum_bytes = cut->geometry[tensor].quantum_elems *
                                   cut->request->tensors[tensor].elem_bytes;
    const uint64_t quanta = room / quantum_bytes;
    const uint64_t over = room - quanta * quantum_bytes;
    const uint64_t next = plan_bytes(cut, tensor, first + quanta, 1);
    return over >= next - over ? quanta + 1 : quanta;
}

/* Gives the shard the next bytes of the unit, up to the edge of a quantum that is nearest to byte `end` of
 * the unit. Returns how many bytes it gave. A failure is stored in p->status. */
static uint64_t plan_take(struct placing *p, struct cursor *at, uint64_t end, uint32_t shard)
{
    struct plan_cut *cut = p->cut;
    const uint64_t begin = at->bytes;
    while (at->run < at->unit->run_count && at->bytes < end) {
        const struct extent *run = &cut->free_runs.items[at->unit->first_run + at->run];
        const uint64_t first = run->first_quantum + at->quantum;
        const uint64_t left = run->quantum_count - at->quantum;
        const uint64_t quanta = plan_nearest(cut, run->tensor, first, left, end - at->bytes);
        if (quanta == 0) break;
        const cairn_status status = plan_append(
            &cut->table, (struct extent) { run->tensor, shard, first, quanta });
        if (status != CAIRN_OK) p->status = status;
        at->bytes += plan_bytes(cut, run->tensor, first, quanta);
        at->quantum += quanta;
        if (quanta < left) break;
        at->run++;
        at->quantum = 0;
    }
    cut->shards[shard].load += at->bytes - begin;
    cut->free_bytes -= at->bytes - begin;
    return at->bytes - begin;
}

/* Cuts one unit over the shards of p->window, in proportion to p->pieces, or into equal parts if all pieces
 * are 0. */
static void cut_over_window(struct placing *p, const struct free_unit *unit, uint32_t count)
{
    uint64_t sum = 0, passed = 0;
    for (uint32_t i = 0; i < count; i++) sum += p->pieces[i];
    struct cursor at = { .unit = unit };
    for (uint32_t i = 0; i < count; i++) {
        passed += sum == 0 ? 1 : p->pieces[i];
        const uint64_t end = plan_scale(unit->bytes, passed, sum == 0 ? count : sum);
        (void)plan_take(p, &at, end, p->window[i]);
    }
}

/* --- goals -------------------------------------------------------------------------------------- */

/* Computes how many of the free bytes each receiver should get, so that in the end the load of all
 * receivers is in proportion to their weights. A receiver above this level gets nothing, which lowers the
 * level of the other receivers. This is repeated until no other receiver is above the level. */
static void level(struct placing *p)
{
    struct plan_cut *cut = p->cut;
    uint64_t bytes = cut->free_bytes, weight = 0;
    for (uint32_t i = 0; i < cut->receiver_count; i++) {
        bytes += cut->shards[cut->receivers[i]].load;
        weight += cut->shards[cut->receivers[i]].weight;
        p->settled[i] = 0;
    }
    for (int changed = 1; changed;) {
        const uint64_t pass_bytes = bytes, pass_weight = weight;
        changed = 0;
        for (uint32_t i = 0; i < cut->receiver_count; i++) {
            const struct cut_shard *shard = &cut->shards[cut->receivers[i]];
            if (p->settled[i]) continue;
            if (shard->load <= plan_scale(pass_bytes, shard->weight, pass_weight)) continue;
            p->settled[i] = 1;
            bytes -= shard->load;
            weight -= shard->weight;
            changed = 1;
        }
    }
    cut->levelled_bytes = cut->free_bytes;
    cut->wanted_bytes = 0;
    for (uint32_t i = 0; i < cut->receiver_count; i++) {
        struct cut_shard *shard = &cut->shards[cut->receivers[i]];
        shard->base = shard->load;
        shard->want = p->settled[i] ? 0 : plan_scale(bytes, shard->weight, weight) - shard->load;
        cut->wanted_bytes += shard->want;
    }
}

/* Returns how many bytes a shard will be below its goal after `bytes` more bytes have been placed. The goal
 * is computed from all bytes that have been placed, so rounding does not add up. */
static uint64_t plan_short(const struct plan_cut *cut, uint32_t s, uint64_t bytes)
{
    if (cut->wanted_bytes == 0) return 0;
    const struct cut_shard *shard = &cut->shards[s];
    const uint64_t placed = cut->levelled_bytes - cut->free_bytes + bytes;
    const uint64_t goal = shard->base + plan_scale(shard->want, placed, cut->wanted_bytes);
    return goal > shard->load ? goal - shard->load : 0;
}

/* --- 1. stiff units: the neediest shards, largest pieces first ----------------------------------- */

int64_t plan_need(const struct plan_cut *cut, uint32_t s)
{
    const struct cut_shard *shard = &cut->shards[s];
    return (int64_t)(shard->base + shard->want) - (int64_t)shard->load;
}

static int needier(const struct plan_cut *cut, uint32_t a, uint32_t b)
{
    const int64_t need_a = plan_need(cut, a), need_b = plan_need(cut, b);
    return need_a != need_b ? need_a > need_b : a < b;
}

void plan_heap_push(struct placing *p, uint32_t s)
{
    uint32_t i = p->heap_count++;
    for (; i > 0 && needier(p->cut, s, p->heap[(i - 1) / 2]); i = (i - 1) / 2)
        p->heap[i] = p->heap[(i - 1) / 2];
    p->heap[i] = s;
}

/* Puts the shard into place i of the heap, or further down if a shard there is needier. */
static void heap_sink(struct placing *p, uint32_t i, uint32_t s)
{
    for (uint32_t child = 2 * i + 1; child < p->heap_count; child = 2 * i + 1) {
        if (child + 1 < p->heap_count && needier(p->cut, p->heap[child + 1], p->heap[child]))
            child++;
        if (!needier(p->cut, p->heap[child], s)) break;
        p->heap[i] = p->heap[child];
        i = child;
    }
    p->heap[i] = s;
}

uint32_t plan_heap_pop(struct placing *p)
{
    const uint32_t top = p->heap[0], last = p->heap[--p->heap_count];
    heap_sink(p, 0, last);
    return top;
}

void plan_heap_sink(struct placing *p, uint32_t i)
{
    heap_sink(p, i, p->heap[i]);
}

static int compare_by_piece(const void *a, const void *b)
{
    const struct free_unit *x = *(struct free_unit *const *)a, *y = *(struct free_unit *const *)b;
    const uint64_t piece_x = x->bytes / x->may_use, piece_y = y->bytes / y->may_use;
    if (piece_x != piece_y) return piece_x > piece_y ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

static void place_stiff(struct placing *p, struct free_unit **units, size_t count)
{
    qsort(units, count, sizeof(struct free_unit *), compare_by_piece);
    p->heap_count = 0;
    for (uint32_t i = 0; i < p->cut->receiver_count; i++) plan_heap_push(p, p->cut->receivers[i]);
    for (size_t u = 0; u < count; u++) {
        const uint32_t may_use = units[u]->may_use;
        for (uint32_t i = 0; i < may_use; i++) {
            p->window[i] = plan_heap_pop(p);
            const int64_t need = plan_need(p->cut, p->window[i]);
            p->pieces[i] = need > 0 ? (uint64_t)need : 0;
        }
        cut_over_window(p, units[u], may_use);
        for (uint32_t i = 0; i < may_use; i++) plan_heap_push(p, p->window[i]);
    }
    level(p);
}

/* --- 3. whole units: over every receiver --------------------------------------------------------- */

static void place_whole(struct placing *p, const struct free_unit *unit, uint32_t start)
{
    const uint32_t count = p->cut->receiver_count;
    for (uint32_t i = 0; i < count; i++) {
        p->window[i] = p->cut->receivers[(start + i) % count];
        p->pieces[i] = plan_short(p->cut, p->window[i], unit->bytes);
    }
    cut_over_window(p, unit, count);
}

/* --- all ---------------------------------------------------------------------------------------- */

/* Groups the free runs by unit. The runs are in canonical order. */
static void find_units(struct placing *p)
{
    const struct plan_cut *cut = p->cut;
    for (size_t r = 0; r < cut->free_runs.count; r++) {
        const struct extent *run = &cut->free_runs.items[r];
        const uint32_t number = cut->unit_of[run->tensor];
        if (p->unit_count == 0 || p->units[p->unit_count - 1].number != number)
            p->units[p->unit_count++] = (struct free_unit) { .first_run = r, .number = number };
        struct free_unit *unit = &p->units[p->unit_count - 1];
        unit->run_count++;
        unit->bytes += plan_bytes(cut, run->tensor, run->first_quantum, run->quantum_count);
    }
    for (size_t u = 0; u < p->unit_count; u++)
        p->units[u].may_use = plan_may_use(cut, cut->unit_bytes[p->units[u].number],
                                           cut->receiver_count);
}

/* Places the units that may use only one shard, unless there is only one receiver. */
static void place_single(struct placing *p)
{
    size_t count = 0;
    for (size_t u = 0; u < p->unit_count; u++)
        if (p->units[u].may_use == 1 && p->cut->receiver_count > 1)
            p->sorted[count++] = &p->units[u];
    if (count > 0) place_stiff(p, p->sorted, count);
}

/* Places the units that may use several shards, but not all. A unit does not fit on the line if it is
 * longer than the shares of as many shards as it may use. Such units are placed first. The bytes that they
 * take may make other units too long, so this is tried again, a few times. More tries are not needed,
 * because the line itself keeps the limit: a unit that is found too late only makes the shards less
 * level. */
static void place_some(struct placing *p)
{
    size_t count = 0;
    for (size_t u = 0; u < p->unit_count; u++)
        if (p->units[u].may_use > 1 && p->units[u].may_use < p->cut->receiver_count)
            p->sorted[count++] = &p->units[u];
    plan_order_line(p->sorted, count);
    for (int tries = 0; tries < SINGLE_LAP_TRIES; tries++) {
        const size_t stiff = plan_find_stiff(p, p->sorted, count);
        if (stiff == 0) break;
        count -= stiff;
        place_stiff(p, p->sorted + count, stiff);
    }
    plan_wind(p, p->sorted, count);
}

static cairn_status open_placing(struct placing *p, struct plan_cut *cut)
{
    const size_t runs = cut->free_runs.count + 1, receivers = (size_t)cut->receiver_count + 1;
    *p = (struct placing) { .cut = cut };
    p->units = calloc(runs, sizeof *p->units);
    p->sorted = calloc(runs, sizeof *p->sorted);
    p->spare = calloc(runs, sizeof *p->spare);
    p->heap = calloc(receivers, sizeof *p->heap);
    p->window = calloc(receivers, sizeof *p->window);
    p->pieces = calloc(receivers, sizeof *p->pieces);
    p->settled = calloc(receivers, sizeof *p->settled);
    const int got_all = p->units != NULL && p->sorted != NULL && p->spare != NULL &&
                        p->heap != NULL && p->window != NULL && p->pieces != NULL &&
                        p->settled != NULL;
    return got_all ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

static void close_placing(struct placing *p)
{
    free(p->units);
    free(p->sorted);
    free(p->spare);
    free(p->heap);
    free(p->window);
    free(p->pieces);
    free(p->settled);
}

static void place_all(struct placing *p)
{
    find_units(p);
    level(p);
    if (p->cut->keeps && plan_fill(p)) return;
    place_single(p);
    place_some(p);
    uint32_t start = 0;
    for (size_t u = 0; u < p->unit_count; u++)
        if (p->units[u].may_use == p->cut->receiver_count)
            place_whole(p, &p->units[u], start++ % p->cut->receiver_count);
}

/* Places all free runs on the receivers. The runs are in canonical order. */
static cairn_status plan_place(struct plan_cut *cut)
{
    if (cut->free_runs.count == 0) return CAIRN_OK;
    struct placing p;
    cairn_status status = open_placing(&p, cut);
    if (status == CAIRN_OK) {
        place_all(&p);
        status = p.status;
    }
    close_placing(&p);
    return status;
}

/* ==== plan line ==== */

/* Way 2 of a fresh table (plan.h): the units lie one after another on a line, which is wound around the
 * receivers in laps. In a lap every receiver gets a piece in proportion to the bytes that it wants, less
 * the bytes by which it is ahead. The receivers are thus level after a lap of any length. A unit seldom
 * begins where a piece begins. To stay within its limit, a unit of b bytes therefore needs pieces of at
 * least b / (may_use - 1) bytes, which is called its step. */

struct line {
    struct placing *p;
    struct free_unit **units; /* [count], the unit with the smallest step first */
    size_t count;
    size_t next;      /* index of the unit that is being placed */
    struct cursor at; /* the position in that unit */
    /* bytes of the unit that were handed out, before they were rounded to quanta */
    uint64_t nominal;
    uint32_t used;         /* number of shards that the unit uses already */
    uint64_t longer, from; /* the unit's pieces are stretched by longer / from >= 1 */
};

static uint64_t step_of(const struct free_unit *unit)
{
    return (unit->bytes - 1) / (unit->may_use - 1) + 1;
}

static int compare_by_step(const void *a, const void *b)
{
    const struct free_unit *x = *(struct free_unit *const *)a, *y = *(struct free_unit *const *)b;
    const uint64_t step_x = step_of(x), step_y = step_of(y);
    if (step_x != step_y) return step_x < step_y ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

/* Sorts the units of a line, which all have 2 <= may_use < receiver_count. */
static void plan_order_line(struct free_unit **units, size_t count)
{
    qsort(units, count, sizeof(struct free_unit *), compare_by_step);
}

/* A walk along the bytes that the receivers want. */
struct walk {
    const struct plan_cut *cut;
    uint32_t next; /* the receiver after the current one */
    uint64_t room; /* bytes that the current receiver still wants */
};

/* Walks on by `bytes`. Returns how many receivers had room for some of them. */
static uint32_t walk_on(struct walk *walk, uint64_t bytes)
{
    uint32_t used = 0;
    for (;;) {
        if (walk->room > 0) {
            const uint64_t step = bytes < walk->room ? bytes : walk->room;
            bytes -= step;
            walk->room -= step;
            used++;
        }
        if (bytes == 0 || walk->next == walk->cut->receiver_count) return used;
        walk->room = walk->cut->shards[walk->cut->receivers[walk->next++]].want;
    }
}

/* Finds the units that would use more shards than they may if the line were wound in one lap. Moves them to
 * the end of the list, behind the others, and returns how many they are. */
static size_t plan_find_stiff(struct placing *p, struct free_unit **units, size_t count)
{
    if (count == 0 || step_of(units[count - 1]) <= p->cut->free_bytes / p->cut->receiver_count)
        return 0; // even the longest step fits an average share
    struct walk walk = { .cut = p->cut };
    size_t fit = 0, stiff = 0;
    for (size_t u = 0; u < count; u++) {
        if (walk_on(&walk, units[u]->bytes) > units[u]->may_use)
            p->spare[stiff++] = units[u];
        else
            units[fit++] = units[u];
    }
    memcpy(units + fit, p->spare, stiff * sizeof(struct free_unit *));
    return stiff;
}

/* Returns how many bytes the next lap has. Its pieces are on average as long as the longest step of the
 * units in the lap. If one more lap would be too short for the longest step of all units, the next lap has
 * all bytes that are left. */
static uint64_t lap_bytes(const struct line *line)
{
    const struct plan_cut *cut = line->p->cut;
    const uint64_t mean = cut->free_bytes / cut->receiver_count;
    uint64_t step = 0, covered = 0;
    for (size_t u = line->next; u < line->count && covered / cut->receiver_count <= step; u++) {
        if (step_of(line->units[u]) > step) step = step_of(line->units[u]);
        covered += line->units[u]->bytes;
    }
    if (step > mean || mean - step < step_of(line->units[line->count - 1])) return cut->free_bytes;
    return step * cut->receiver_count;
}

/* Computes how many bytes each receiver gets in this lap (p->pieces), of `bytes` in total. */
static void share_lap(struct placing *p, uint64_t bytes)
{
    const uint32_t count = p->cut->receiver_count;
    uint64_t sum = 0, passed = 0, given = 0;
    for (uint32_t i = 0; i < count; i++) {
        p->pieces[i] = plan_short(p->cut, p->cut->receivers[i], bytes);
        sum += p->pieces[i];
    }
    for (uint32_t i = 0; i < count; i++) {
        passed += sum == 0 ? 1 : p->pieces[i];
        const uint64_t end = plan_scale(bytes, passed, sum == 0 ? count : sum);
        p->pieces[i] = end - given;
        given = end;
    }
}

static void begin_unit(struct line *line)
{
    line->at = (struct cursor) { .unit = line->units[line->next] };
    line->nominal = 0;
    line->used = 0;
    line->longer = line->from = 0;
}

/* A unit may use only as many pieces of the lap as shards. If these pieces are too small for the unit,
 * stretches them, all by the same factor. `room` is the number of bytes that are left in piece i. */
static void stretch_unit(struct line *line, uint32_t i, uint64_t room)
{
    const struct free_unit *unit = line->at.unit;
    uint64_t sum = room;
    uint32_t pieces = 1;
    line->longer = line->from = 1;
    while (pieces < unit->may_use && sum < unit->bytes) {
        if (++i == line->p->cut->receiver_count) return; // the next lap is not known yet
        sum += line->p->pieces[i];
        pieces += line->p->pieces[i] > 0;
    }
    if (sum >= unit->bytes) return;
    line->longer = unit->bytes;
    line->from = sum;
}

/* Fills piece i from the line. */
static void fill_piece(struct line *line, uint32_t i)
{
    const uint32_t shard = line->p->cut->receivers[i];
    uint64_t room = line->p->pieces[i];
    while (room > 0 && line->next < line->count) {
        const struct free_unit *unit = line->at.unit;
        if (line->from == 0) stretch_unit(line, i, room);
        const uint64_t left = unit->bytes - line->nominal;
        const uint64_t bytes = plan_scale(room, line->longer, line->from);
        const int is_last = bytes >= left || line->used + 1 == unit->may_use;
        line->nominal = is_last ? unit->bytes : line->nominal + bytes;
        line->used += plan_take(line->p, &line->at, line->nominal, shard) > 0;
        if (line->at.bytes < unit->bytes) return; // the piece is full
        room = bytes < left ? 0 : room - plan_scale(left, line->from, line->longer);
        if (++line->next < line->count) begin_unit(line);
    }
}

/* Places the units, which plan_order_line has sorted, as a line. */
static void plan_wind(struct placing *p, struct free_unit **units, size_t count)
{
    if (count == 0) return;
    struct line line = { .p = p, .units = units, .count = count };
    begin_unit(&line);
    while (line.next < count) {
        share_lap(p, lap_bytes(&line));
        for (uint32_t i = 0; i < p->cut->receiver_count && line.next < count; i++)
            fill_piece(&line, i);
    }
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
    const cairn_status status = plan_widen(tensors, (uint32_t)spec->tensor_count, layout,
                                           shard_count, layout_out);
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
