/* Free units onto the receivers: the first and the third way of plan.h; plan_line.c has the second. */
#include "proto/plan/plan_cut.h"

#include <stdlib.h>

#define SINGLE_LAP_TRIES 8

/* --- cutting ------------------------------------------------------------------------------------ */

uint64_t cairn_plan_nearest(const struct plan_cut *cut, uint32_t tensor, uint64_t first,
                            uint64_t count, uint64_t room)
{
    if (room >= cairn_plan_bytes(cut, tensor, first, count)) return count;
    const uint64_t quantum_bytes = cut->geometry[tensor].quantum_elems *
                                   cut->request->tensors[tensor].elem_bytes;
    const uint64_t quanta = room / quantum_bytes;
    const uint64_t over = room - quanta * quantum_bytes;
    const uint64_t next = cairn_plan_bytes(cut, tensor, first + quanta, 1);
    return over >= next - over ? quanta + 1 : quanta;
}

uint64_t cairn_plan_take(struct placing *p, struct cursor *at, uint64_t end, uint32_t shard)
{
    struct plan_cut *cut = p->cut;
    const uint64_t begin = at->bytes;
    while (at->run < at->unit->run_count && at->bytes < end) {
        const struct cairn_extent *run = &cut->free_runs.items[at->unit->first_run + at->run];
        const uint64_t first = run->first_quantum + at->quantum;
        const uint64_t left = run->quantum_count - at->quantum;
        const uint64_t quanta = cairn_plan_nearest(cut, run->tensor, first, left, end - at->bytes);
        if (quanta == 0) break;
        const cairn_status status = cairn_plan_append(
            &cut->table, (struct cairn_extent) { run->tensor, shard, first, quanta });
        if (status != CAIRN_OK) p->status = status;
        at->bytes += cairn_plan_bytes(cut, run->tensor, first, quanta);
        at->quantum += quanta;
        if (quanta < left) break;
        at->run++;
        at->quantum = 0;
    }
    cut->shards[shard].load += at->bytes - begin;
    cut->free_bytes -= at->bytes - begin;
    return at->bytes - begin;
}

/* Cuts one unit over p->window in proportion to p->pieces (equally if all are 0). */
static void cut_over_window(struct placing *p, const struct free_unit *unit, uint32_t count)
{
    uint64_t sum = 0, passed = 0;
    for (uint32_t i = 0; i < count; i++) sum += p->pieces[i];
    struct cursor at = { .unit = unit };
    for (uint32_t i = 0; i < count; i++) {
        passed += sum == 0 ? 1 : p->pieces[i];
        const uint64_t end = cairn_plan_scale(unit->bytes, passed, sum == 0 ? count : sum);
        (void)cairn_plan_take(p, &at, end, p->window[i]);
    }
}

/* --- goals -------------------------------------------------------------------------------------- */

/* Sets what each receiver should get of the free bytes so that all end level by weight. Receivers
 * above the level get nothing, which lowers the level for the rest: until none is above. */
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
            if (shard->load <= cairn_plan_scale(pass_bytes, shard->weight, pass_weight)) continue;
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
        shard->want = p->settled[i] ? 0
                                    : cairn_plan_scale(bytes, shard->weight, weight) - shard->load;
        cut->wanted_bytes += shard->want;
    }
}

uint64_t cairn_plan_short(const struct plan_cut *cut, uint32_t s, uint64_t bytes)
{
    if (cut->wanted_bytes == 0) return 0;
    const struct cut_shard *shard = &cut->shards[s];
    const uint64_t placed = cut->levelled_bytes - cut->free_bytes + bytes;
    const uint64_t goal = shard->base + cairn_plan_scale(shard->want, placed, cut->wanted_bytes);
    return goal > shard->load ? goal - shard->load : 0;
}

/* --- 1. stiff units: the neediest shards, largest pieces first ----------------------------------- */

int64_t cairn_plan_need(const struct plan_cut *cut, uint32_t s)
{
    const struct cut_shard *shard = &cut->shards[s];
    return (int64_t)(shard->base + shard->want) - (int64_t)shard->load;
}

static int needier(const struct plan_cut *cut, uint32_t a, uint32_t b)
{
    const int64_t need_a = cairn_plan_need(cut, a), need_b = cairn_plan_need(cut, b);
    return need_a != need_b ? need_a > need_b : a < b;
}

void cairn_plan_heap_push(struct placing *p, uint32_t s)
{
    uint32_t i = p->heap_count++;
    for (; i > 0 && needier(p->cut, s, p->heap[(i - 1) / 2]); i = (i - 1) / 2)
        p->heap[i] = p->heap[(i - 1) / 2];
    p->heap[i] = s;
}

/* The shard goes in place i of the heap, or further down. */
static void sink(struct placing *p, uint32_t i, uint32_t s)
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

uint32_t cairn_plan_heap_pop(struct placing *p)
{
    const uint32_t top = p->heap[0], last = p->heap[--p->heap_count];
    sink(p, 0, last);
    return top;
}

void cairn_plan_heap_sink(struct placing *p, uint32_t i)
{
    sink(p, i, p->heap[i]);
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
    for (uint32_t i = 0; i < p->cut->receiver_count; i++)
        cairn_plan_heap_push(p, p->cut->receivers[i]);
    for (size_t u = 0; u < count; u++) {
        const uint32_t may_use = units[u]->may_use;
        for (uint32_t i = 0; i < may_use; i++) {
            p->window[i] = cairn_plan_heap_pop(p);
            const int64_t need = cairn_plan_need(p->cut, p->window[i]);
            p->pieces[i] = need > 0 ? (uint64_t)need : 0;
        }
        cut_over_window(p, units[u], may_use);
        for (uint32_t i = 0; i < may_use; i++) cairn_plan_heap_push(p, p->window[i]);
    }
    level(p);
}

/* --- 3. whole units: over every receiver --------------------------------------------------------- */

static void place_whole(struct placing *p, const struct free_unit *unit, uint32_t start)
{
    const uint32_t count = p->cut->receiver_count;
    for (uint32_t i = 0; i < count; i++) {
        p->window[i] = p->cut->receivers[(start + i) % count];
        p->pieces[i] = cairn_plan_short(p->cut, p->window[i], unit->bytes);
    }
    cut_over_window(p, unit, count);
}

/* --- all ---------------------------------------------------------------------------------------- */

/* Groups the free runs, which stand in canonical order, by unit. */
static void find_units(struct placing *p)
{
    const struct plan_cut *cut = p->cut;
    for (size_t r = 0; r < cut->free_runs.count; r++) {
        const struct cairn_extent *run = &cut->free_runs.items[r];
        const uint32_t number = cut->unit_of[run->tensor];
        if (p->unit_count == 0 || p->units[p->unit_count - 1].number != number)
            p->units[p->unit_count++] = (struct free_unit) { .first_run = r, .number = number };
        struct free_unit *unit = &p->units[p->unit_count - 1];
        unit->run_count++;
        unit->bytes += cairn_plan_bytes(cut, run->tensor, run->first_quantum, run->quantum_count);
    }
    for (size_t u = 0; u < p->unit_count; u++)
        p->units[u].may_use = cairn_plan_may_use(cut, cut->unit_bytes[p->units[u].number],
                                                 cut->receiver_count);
}

/* Units that may use only one shard, but where there is only one. */
static void place_single(struct placing *p)
{
    size_t count = 0;
    for (size_t u = 0; u < p->unit_count; u++)
        if (p->units[u].may_use == 1 && p->cut->receiver_count > 1)
            p->sorted[count++] = &p->units[u];
    if (count > 0) place_stiff(p, p->sorted, count);
}

/* Units that may use some shards. A unit too long for the shares of the shards it may use would not
 * fit the line: it goes first, and what that leaves may make others too long. The tries are few: the
 * line itself holds to the limit, a late one costs balance only. */
static void place_some(struct placing *p)
{
    size_t count = 0;
    for (size_t u = 0; u < p->unit_count; u++)
        if (p->units[u].may_use > 1 && p->units[u].may_use < p->cut->receiver_count)
            p->sorted[count++] = &p->units[u];
    cairn_plan_order_line(p->sorted, count);
    for (int tries = 0; tries < SINGLE_LAP_TRIES; tries++) {
        const size_t stiff = cairn_plan_find_stiff(p, p->sorted, count);
        if (stiff == 0) break;
        count -= stiff;
        place_stiff(p, p->sorted + count, stiff);
    }
    cairn_plan_wind(p, p->sorted, count);
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
    if (p->cut->keeps && cairn_plan_fill(p)) return;
    place_single(p);
    place_some(p);
    uint32_t start = 0;
    for (size_t u = 0; u < p->unit_count; u++)
        if (p->units[u].may_use == p->cut->receiver_count)
            place_whole(p, &p->units[u], start++ % p->cut->receiver_count);
}

cairn_status cairn_plan_place(struct plan_cut *cut)
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
