/* The next slice of a re-sharding, and how much is left: see reshard.h. */
#include "proto/plan/reshard.h"

#include <stdlib.h>

#include "proto/plan/moves.h"

/* A slice in the making. */
struct slicing {
    const struct cairn_slice_request *request; /* borrowed */
    struct plan_walk walk;
    uint32_t shard_count;

    /* owned */
    struct cairn_extent *table; /* [table_count], the next layout's */
    size_t table_count;
    /* borrowed: the extent that the table's last one lies in: of the current layout where it stays, of the
     * target where it comes */
    const struct cairn_extent *within;
    uint64_t *given, *taken; /* [shard_count], bytes so far */
    int64_t *above;          /* [shard_count], bytes that it has more than in the target */
    uint64_t moved_bytes;
};

static int request_is_sound(const struct cairn_slice_request *request)
{
    if (request->chunk_leaves == 0) return 0;
    if (request->current->tensor_count != request->tensor_count) return 0;
    return cairn_plan_same_tensors(request->current, request->target);
}

static uint32_t shards_of_larger(const struct cairn_slice_request *request)
{
    const uint32_t a = request->current->shard_count, b = request->target->shard_count;
    return a > b ? a : b;
}

/* A run is cut once at most, and there are at most as many runs as extents in both tables. */
static cairn_status open_slicing(struct slicing *s, const struct cairn_slice_request *request)
{
    *s = (struct slicing) {
        .request = request,
        .walk = { request->tensors, request->current, request->target, 0, 0 },
        .shard_count = shards_of_larger(request),
    };
    const size_t runs = request->current->extent_count + request->target->extent_count;
    s->table = calloc(2 * runs + 1, sizeof *s->table);
    s->given = calloc(s->shard_count, sizeof *s->given);
    s->taken = calloc(s->shard_count, sizeof *s->taken);
    s->above = calloc(s->shard_count, sizeof *s->above);
    if (s->table == NULL || s->given == NULL || s->taken == NULL || s->above == NULL)
        return CAIRN_ERR_NO_MEMORY;
    struct plan_walk walk = s->walk;
    struct plan_run run;
    while (cairn_plan_walk_next(&walk, &run)) {
        const int64_t bytes = (int64_t)cairn_plan_run_bytes(&walk, &run, run.first, run.count);
        s->above[run.extent->shard] += bytes;
        s->above[run.to] -= bytes;
    }
    return CAIRN_OK;
}

static void close_slicing(struct slicing *s)
{
    free(s->table);
    free(s->given);
    free(s->taken);
    free(s->above);
}

/* Joined with the last one where both stay, and lie in one extent of the current layout, or both come, to
 * one extent of the target. */
static void append(struct slicing *s, const struct plan_run *run, uint64_t first, uint64_t count,
                   uint32_t shard)
{
    const struct cairn_extent *within = shard == run->extent->shard ? run->extent : run->target;
    if (count == 0) return;
    if (s->within == within) {
        struct cairn_extent *last = &s->table[s->table_count - 1];
        if (last->shard == shard && last->first_quantum + last->quantum_count == first) {
            last->quantum_count += count;
            return;
        }
    }
    s->within = within;
    s->table[s->table_count++] = (struct cairn_extent) { run->extent->tensor, shard, first, count };
}

static uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* The bytes that both the giver and the taker may still move. */
static uint64_t room_of(const struct slicing *s, const struct plan_run *run)
{
    const uint64_t *limits = s->request->limit_bytes;
    if (limits == NULL) return UINT64_MAX;
    const uint32_t from = run->extent->shard, to = run->to;
    return lesser(minus(limits[from], s->given[from]), minus(limits[to], s->taken[to]));
}

/* The bytes that the taker may still take so that it has at most a slice more than in the target: a
 * shard that also gives does not take everything first. Some shard has no more than in the target
 * while anything is left to move, so something can always move. */
static uint64_t room_above_target(const struct slicing *s, const struct plan_run *run)
{
    const uint64_t *limits = s->request->limit_bytes;
    if (limits == NULL) return UINT64_MAX;
    const int64_t above = s->above[run->to] + (int64_t)s->taken[run->to] -
                          (int64_t)s->given[run->to];
    const uint64_t limit = limits[run->to] == 0 ? 1 : lesser(limits[run->to], INT64_MAX / 2);
    return above >= (int64_t)limit ? 0 : (uint64_t)((int64_t)limit - above);
}

/* The most quanta at the end of the run that weigh `room` bytes or less. */
static uint64_t tail_that_fits(const struct slicing *s, const struct plan_run *run, uint64_t room)
{
    if (cairn_plan_run_bytes(&s->walk, run, run->first, run->count) <= room) return run->count;
    const uint64_t end = run->first + run->count;
    const struct cairn_geometry *g = &s->walk.current->geometry[run->extent->tensor];
    const uint64_t quantum_bytes = g->quantum_elems *
                                   s->request->tensors[run->extent->tensor].elem_bytes;
    uint64_t tail = room / quantum_bytes;
    // The tensor's last quantum may be short, and then one more fits.
    if (tail < run->count && cairn_plan_run_bytes(&s->walk, run, end - tail - 1, tail + 1) <= room)
        tail++;
    return lesser(tail, run->count);
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The tail, shortened so that it begins where a chunk of the giver's extent does; 0 if none does. */
static uint64_t tail_on_grid(const struct slicing *s, const struct plan_run *run, uint64_t tail)
{
    const uint64_t leaves = s->walk.current->geometry[run->extent->tensor].leaves_per_quantum;
    const uint64_t chunk = s->request->chunk_leaves;
    const uint64_t step = chunk / common_divisor(leaves, chunk); // quanta from edge to edge
    const uint64_t begin = run->first + run->count - tail - run->extent->first_quantum;
    const uint64_t late = (step - begin % step) % step;
    return minus(tail, late);
}

/* Quanta at the end of the run that move in this slice. */
static uint64_t moving_tail(const struct slicing *s, const struct plan_run *run)
{
    if (run->to == run->extent->shard) return 0;
    const uint64_t most = room_above_target(s, run);
    if (most == 0) return 0;
    const uint64_t tail = tail_that_fits(s, run, lesser(room_of(s, run), most));
    if (tail == run->count) return tail;
    const uint64_t on_grid = tail_on_grid(s, run, tail);
    if (on_grid > 0) return on_grid;
    const int idle = s->given[run->extent->shard] == 0 && s->taken[run->to] == 0;
    if (!idle) return 0; // the next slice begins with more room
    return tail > 0 ? tail : 1;
}

static void fill_table(struct slicing *s)
{
    struct plan_run run;
    while (cairn_plan_walk_next(&s->walk, &run)) {
        const uint64_t tail = moving_tail(s, &run), kept = run.count - tail;
        append(s, &run, run.first, kept, run.extent->shard);
        append(s, &run, run.first + kept, tail, run.to);
        const uint64_t bytes = cairn_plan_run_bytes(&s->walk, &run, run.first + kept, tail);
        s->given[run.extent->shard] += bytes;
        s->taken[run.to] += bytes;
        s->moved_bytes += bytes;
    }
}

static cairn_status close_table(struct slicing *s, struct cairn_layout **next_out)
{
    const struct cairn_slice_request *request = s->request;
    const cairn_status status = cairn_layout_make(request->tensors, request->tensor_count,
                                                  s->shard_count, request->current->version + 1,
                                                  s->table, s->table_count, next_out);
    if (status == CAIRN_OK) s->table = NULL; // the layout's now
    return status;
}

cairn_status cairn_plan_slice(const struct cairn_slice_request *request,
                              struct cairn_layout **next_out, uint64_t *moved_out)
{
    if (!request_is_sound(request)) return CAIRN_ERR_INVALID;
    struct slicing s;
    struct cairn_layout *next = NULL;
    cairn_status status = open_slicing(&s, request);
    if (status == CAIRN_OK) {
        fill_table(&s);
        if (s.moved_bytes > 0) status = close_table(&s, &next);
    }
    if (status == CAIRN_OK) {
        *next_out = next;
        if (moved_out != NULL) *moved_out = s.moved_bytes;
    }
    close_slicing(&s);
    return status;
}

/* --- how much is left ----------------------------------------------------------------------------- */

static void most_slices(const struct slicing *s, struct cairn_slice_left *left)
{
    for (uint32_t i = 0; i < s->shard_count; i++) {
        const uint64_t bytes = s->given[i] > s->taken[i] ? s->given[i] : s->taken[i];
        const uint64_t *limits = s->request->limit_bytes;
        const uint64_t limit = limits == NULL ? UINT64_MAX : limits[i] == 0 ? 1 : limits[i];
        const uint64_t slices = bytes / limit + (bytes % limit != 0);
        if (slices > left->slices) left->slices = (uint32_t)lesser(slices, UINT32_MAX);
    }
}

cairn_status cairn_plan_slices_left(const struct cairn_slice_request *request,
                                    struct cairn_slice_left *left_out)
{
    if (!request_is_sound(request)) return CAIRN_ERR_INVALID;
    struct slicing s;
    const cairn_status status = open_slicing(&s, request);
    if (status == CAIRN_OK) {
        struct cairn_slice_left left = { 0 };
        struct plan_run run;
        while (cairn_plan_walk_next(&s.walk, &run)) {
            if (run.to == run.extent->shard) continue;
            const uint64_t bytes = cairn_plan_run_bytes(&s.walk, &run, run.first, run.count);
            s.given[run.extent->shard] += bytes;
            s.taken[run.to] += bytes;
            left.bytes += bytes;
        }
        most_slices(&s, &left);
        *left_out = left;
    }
    close_slicing(&s);
    return status;
}

/* --- more shards ---------------------------------------------------------------------------------- */

cairn_status cairn_plan_widen(const struct cairn_layout_tensor *tensors, uint32_t tensor_count,
                              const struct cairn_layout *current, uint32_t shard_count,
                              struct cairn_layout **next_out)
{
    if (current->tensor_count != tensor_count || shard_count < current->shard_count)
        return CAIRN_ERR_INVALID;
    struct cairn_extent *table = calloc(current->extent_count + 1, sizeof *table);
    if (table == NULL) return CAIRN_ERR_NO_MEMORY;
    for (size_t e = 0; e < current->extent_count; e++) table[e] = current->extents[e];
    const cairn_status status = cairn_layout_make(tensors, tensor_count, shard_count,
                                                  current->version + 1, table,
                                                  current->extent_count, next_out);
    if (status != CAIRN_OK) free(table);
    return status;
}
