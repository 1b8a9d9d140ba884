/* Layouts that change while a job runs: which shares fit the shards, and how the quanta move to the
 * target. */
#include "proto/plan/plan.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan_private.h"

/* ==== the walk ==== */

/* The walk need not look at the tensors, because both tables have the same quanta in the same order. */
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
    const uint32_t tensor = run->extent->tensor;
    return plan_quanta_bytes(&walk->current->geometry[tensor], walk->tensors[tensor].elem_bytes,
                             first, count);
}

/* ==== reshard ==== */

/* The state of planning a target. */
struct aiming {
    const struct reshard_request *request; /* borrowed */
    struct sentence *why;                  /* borrowed */
    uint64_t total_bytes;
    uint64_t quantum_bytes_max; /* bytes of the heaviest quantum */

    /* owned: [shard_count] */
    uint64_t *before, *after; /* bytes that each shard owns */
    double *shares;           /* bytes that each shard should own; they add up to the total */
    uint32_t *weights;        /* weights for the planner */

    /* owned; on success the caller gets them */
    struct layout *target;
    struct reshard_pair *pairs;
    size_t pair_count, pair_limit;
};

void reshard_report_release(struct reshard_report *report)
{
    free(report->pairs);
    *report = (struct reshard_report) { 0 };
}

static double weight_of(const struct aiming *a, uint32_t shard)
{
    return a->request->weights == NULL ? 1 : a->request->weights[shard];
}

/* "shard w3" or "shard 3". */
struct label {
    char text[96];
};
static struct label label_of(const struct aiming *a, uint32_t shard)
{
    struct label label;
    if (a->request->names != NULL)
        snprintf(label.text, sizeof label.text, "shard %s", a->request->names[shard]);
    else
        snprintf(label.text, sizeof label.text, "shard %u", shard);
    return label;
}

static double mib(double bytes)
{
    return bytes / (1 << 20);
}

static cairn_status no_memory(const struct aiming *a)
{
    return fail_with(a->why, CAIRN_ERR_NO_MEMORY, "out of memory while planning");
}

/* --- what is asked -------------------------------------------------------------------------------- */

static cairn_status judge_weights(const struct aiming *a)
{
    double most = 0;
    for (uint32_t s = 0; s < a->request->plan.shard_count; s++) {
        const double weight = weight_of(a, s);
        if (!isfinite(weight) || weight < 0)
            return fail_with(a->why, CAIRN_ERR_INVALID,
                             "the weight of %s is %g: give a number, 0 (it gives up all) or above",
                             label_of(a, s).text, weight);
        if (weight > most) most = weight;
    }
    if (most > 0) return CAIRN_OK;
    return fail_with(a->why, CAIRN_ERR_INVALID,
                     "no shard is left that may own something: one needs a weight above 0");
}

static cairn_status judge_request(const struct aiming *a)
{
    const struct plan_request *request = &a->request->plan;
    if (request->shard_count == 0 || request->shard_count > CAIRN_SHARDS_MAX)
        return fail_with(a->why, CAIRN_ERR_INVALID, "%u shards: a job has 1 to %u",
                         request->shard_count, CAIRN_SHARDS_MAX);
    if (request->shard_count < request->held->shard_count)
        return fail_with(
            a->why, CAIRN_ERR_INVALID,
            "%u shards, but the job's table numbers %u: a shard that leaves keeps its number "
            "and gets the weight 0",
            request->shard_count, request->held->shard_count);
    if (request->held->tensor_count != request->tensor_count)
        return fail_with(a->why, CAIRN_ERR_INVALID, "the table is of %u tensors, the job has %u",
                         request->held->tensor_count, request->tensor_count);
    return judge_weights(a);
}

static void weigh_before(struct aiming *a)
{
    const struct layout *current = a->request->plan.held;
    struct plan_walk walk = { a->request->plan.tensors, current, current, 0, 0 };
    struct plan_run run;
    while (plan_walk_next(&walk, &run)) {
        const uint64_t bytes = plan_run_bytes(&walk, &run, run.first, run.count);
        const uint64_t quantum = plan_run_bytes(&walk, &run, run.first, 1);
        a->before[run.to] += bytes;
        a->total_bytes += bytes;
        if (quantum > a->quantum_bytes_max) a->quantum_bytes_max = quantum;
    }
}

/* --- shares that fit ------------------------------------------------------------------------------ */

/* Returns the greatest share that a shard may have. It is two quanta below the shard's capacity, because
 * the planner may miss a share by as much. */
static double ceiling_of(const struct aiming *a, uint32_t shard)
{
    const uint64_t *capacities = a->request->capacity_bytes;
    if (capacities == NULL || capacities[shard] == 0) return INFINITY;
    const uint64_t owned = a->before[shard];
    const uint64_t most = capacities[shard] > owned ? capacities[shard] : owned;
    const uint64_t slack = 2 * a->quantum_bytes_max;
    return most > slack ? (double)(most - slack) : 0;
}

/* Distributes the bytes that the full shards leave over all other shards, by weight. Returns how many of
 * these became full. `full`: [shard_count]. */
static uint32_t pour(struct aiming *a, uint8_t *full)
{
    double left = (double)a->total_bytes, weights = 0;
    uint32_t more = 0;
    for (uint32_t s = 0; s < a->request->plan.shard_count; s++) {
        if (full[s])
            left -= a->shares[s];
        else
            weights += weight_of(a, s);
    }
    for (uint32_t s = 0; s < a->request->plan.shard_count; s++) {
        if (full[s] || weight_of(a, s) == 0) continue;
        a->shares[s] = left * (weight_of(a, s) / weights);
        const double ceiling = ceiling_of(a, s);
        if (a->shares[s] <= ceiling) continue;
        a->shares[s] = ceiling;
        full[s] = 1;
        more++;
    }
    return more;
}

static cairn_status share_out(struct aiming *a)
{
    uint8_t *full = calloc(a->request->plan.shard_count, 1);
    if (full == NULL) return no_memory(a);
    while (pour(a, full) > 0) continue;
    free(full);
    double given = 0;
    for (uint32_t s = 0; s < a->request->plan.shard_count; s++) given += a->shares[s];
    if (given >= (double)a->total_bytes * (1 - 1e-9)) return CAIRN_OK;
    return fail_with(
        a->why, CAIRN_ERR_NO_MEMORY,
        "the shards have room for %.1f MiB of the job's %.1f MiB: add shards, or give them memory",
        mib(given), mib((double)a->total_bytes));
}

/* Turns the shares into weights for the planner, which are whole numbers. If the job has no bytes, the
 * weights of the request are taken as shares. */
static void scale_weights(struct aiming *a)
{
    double most = 0;
    for (uint32_t s = 0; s < a->request->plan.shard_count; s++) {
        if (a->total_bytes == 0) a->shares[s] = weight_of(a, s);
        if (a->shares[s] > most) most = a->shares[s];
    }
    for (uint32_t s = 0; s < a->request->plan.shard_count; s++) {
        const double scaled = a->shares[s] / most * UINT32_MAX;
        if (a->shares[s] > 0) a->weights[s] = scaled < 1 ? 1 : (uint32_t)scaled;
    }
}

/* --- what came of it ------------------------------------------------------------------------------ */

static int compare_pairs(const void *a, const void *b)
{
    const struct reshard_pair *x = a, *y = b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    return x->to < y->to ? -1 : x->to > y->to;
}

/* Sorts the pairs, and merges all pairs of the same two shards into one. */
static void merge_pairs(struct aiming *a)
{
    if (a->pair_count > 0) qsort(a->pairs, a->pair_count, sizeof *a->pairs, compare_pairs);
    size_t kept = 0;
    for (size_t i = 0; i < a->pair_count; i++) {
        if (kept > 0 && compare_pairs(&a->pairs[kept - 1], &a->pairs[i]) == 0)
            a->pairs[kept - 1].bytes += a->pairs[i].bytes;
        else
            a->pairs[kept++] = a->pairs[i];
    }
    a->pair_count = kept;
}

static cairn_status add_pair(struct aiming *a, struct reshard_pair pair)
{
    if (a->pair_count == a->pair_limit) merge_pairs(a);
    if (a->pair_count > a->pair_limit / 2 || a->pair_limit == 0) {
        const size_t limit = 2 * a->pair_limit + 64;
        struct reshard_pair *pairs = realloc(a->pairs, limit * sizeof *pairs);
        if (pairs == NULL) return no_memory(a);
        a->pairs = pairs;
        a->pair_limit = limit;
    }
    a->pairs[a->pair_count++] = pair;
    return CAIRN_OK;
}

static cairn_status weigh_moves(struct aiming *a)
{
    struct plan_walk walk = { a->request->plan.tensors, a->request->plan.held, a->target, 0, 0 };
    struct plan_run run;
    cairn_status status = CAIRN_OK;
    while (status == CAIRN_OK && plan_walk_next(&walk, &run)) {
        const uint64_t bytes = plan_run_bytes(&walk, &run, run.first, run.count);
        a->after[run.to] += bytes;
        if (run.to == run.extent->shard) continue;
        status = add_pair(a, (struct reshard_pair) { run.extent->shard, run.to, bytes });
    }
    if (status == CAIRN_OK) merge_pairs(a);
    return status;
}

static cairn_status judge_capacities(const struct aiming *a)
{
    const uint64_t *capacities = a->request->capacity_bytes;
    for (uint32_t s = 0; s < a->request->plan.shard_count && capacities != NULL; s++) {
        if (capacities[s] == 0 || a->after[s] <= capacities[s] || a->after[s] <= a->before[s])
            continue;
        return fail_with(
            a->why, CAIRN_ERR_NO_MEMORY,
            "%s would own %.1f MiB of the job and has room for %.1f MiB: give it memory or a "
            "smaller weight, or add shards",
            label_of(a, s).text, mib((double)a->after[s]), mib((double)capacities[s]));
    }
    return CAIRN_OK;
}

/* Returns the largest load / fair load of a shard. If a shard that leaves still owns something, it counts
 * as an average shard. */
static double heaviest_of(const struct aiming *a, const uint64_t *loads)
{
    double weights = 0, heaviest = 1;
    uint32_t weighed = 0;
    for (uint32_t s = 0; s < a->request->plan.shard_count; s++) {
        weights += weight_of(a, s);
        weighed += weight_of(a, s) > 0;
    }
    const double average = weights / weighed;
    for (uint32_t s = 0; s < a->request->plan.shard_count; s++)
        if (weight_of(a, s) == 0 && loads[s] > 0) weights += average;
    for (uint32_t s = 0; s < a->request->plan.shard_count && a->total_bytes > 0; s++) {
        const double weight = weight_of(a, s) > 0 ? weight_of(a, s) : average;
        const double ratio = (double)loads[s] / ((double)a->total_bytes * (weight / weights));
        if (ratio > heaviest) heaviest = ratio;
    }
    return heaviest;
}

static struct reshard_report report_of(struct aiming *a, const struct plan_report *plan)
{
    struct reshard_report report = {
        .plan = *plan,
        .heaviest_before = heaviest_of(a, a->before),
        .heaviest_after = heaviest_of(a, a->after),
        .pairs = a->pairs,
        .pair_count = a->pair_count,
    };
    a->pairs = NULL; // the report owns them now
    return report;
}

/* --- the course of it ----------------------------------------------------------------------------- */

static cairn_status open_aiming(struct aiming *a, const struct reshard_request *request,
                                struct sentence *why)
{
    *a = (struct aiming) { .request = request, .why = why };
    CAIRN_TRY(judge_request(a));
    a->before = calloc(request->plan.shard_count, sizeof *a->before);
    a->after = calloc(request->plan.shard_count, sizeof *a->after);
    a->shares = calloc(request->plan.shard_count, sizeof *a->shares);
    a->weights = calloc(request->plan.shard_count, sizeof *a->weights);
    const int got_all = a->before != NULL && a->after != NULL && a->shares != NULL &&
                        a->weights != NULL;
    return got_all ? CAIRN_OK : no_memory(a);
}

static void close_aiming(struct aiming *a)
{
    free(a->before);
    free(a->after);
    free(a->shares);
    free(a->weights);
    free(a->pairs);
    layout_close(a->target);
}

static cairn_status plan_target(struct aiming *a, enum plan_free free, struct plan_report *report)
{
    struct plan_request request = a->request->plan;
    request.weights = a->weights;
    request.free = free;
    const cairn_status status = plan_make(&request, &a->target, report);
    if (status == CAIRN_ERR_INVALID)
        return fail_with(a->why, status, "the job's table is not one of these tensors");
    if (status != CAIRN_OK) return no_memory(a);
    return weigh_moves(a);
}

/* True if every shard has room for its bytes during the move, too. A shard that gives and takes may then
 * own one slice more than in the end. */
static int has_room_on_the_way(const struct aiming *a)
{
    const uint64_t *capacities = a->request->capacity_bytes;
    for (uint32_t s = 0; s < a->request->plan.shard_count && capacities != NULL; s++) {
        const uint64_t most = a->after[s] + a->request->slice_bytes;
        if (capacities[s] > 0 && (most > capacities[s] || a->before[s] > capacities[s])) return 0;
    }
    return 1;
}

static void drop_target(struct aiming *a)
{
    layout_close(a->target);
    a->target = NULL;
    a->pair_count = 0;
    for (uint32_t s = 0; s < a->request->plan.shard_count; s++) a->after[s] = 0;
}

static cairn_status plan_within_room(struct aiming *a, struct plan_report *report)
{
    cairn_status status = plan_target(a, a->request->plan.free, report);
    if (status != CAIRN_OK || report->afresh_count == 0 || has_room_on_the_way(a)) return status;
    const uint64_t pieces = report->pieces_fresh, files = report->files_fresh;
    drop_target(a);
    status = plan_target(a, CAIRN_FREE_LEAST, report);
    report->pieces_fresh = pieces;
    report->files_fresh = files;
    return status;
}

cairn_status plan_reshard(const struct reshard_request *request, struct layout **target_out,
                          struct reshard_report *report_out, struct sentence *why)
{
    struct aiming a;
    struct plan_report report;
    cairn_status status = open_aiming(&a, request, why);
    if (status == CAIRN_OK) {
        weigh_before(&a);
        status = share_out(&a);
    }
    if (status == CAIRN_OK) {
        scale_weights(&a);
        status = plan_within_room(&a, &report);
    }
    if (status == CAIRN_OK) status = judge_capacities(&a);
    if (status == CAIRN_OK) {
        if (report_out != NULL) *report_out = report_of(&a, &report);
        *target_out = a.target;
        a.target = NULL; // the caller owns it now
    }
    close_aiming(&a);
    return status;
}

/* ==== reshard slice ==== */

/* Makes the next slice of a re-sharding, and counts how much is left (plan.h). */

/* The state of making one slice. */
struct slicing {
    const struct slice_request *request; /* borrowed */
    struct plan_walk walk;
    uint32_t shard_count;

    /* owned */
    struct extent_list table; /* the table of the next layout */
    /* borrowed: the extent in which the table's last extent lies. If the last extent stays, this is an
     * extent of the current layout; if it moves, of the target */
    const struct extent *within;
    /* [shard_count]: bytes that each shard gives, and takes, in this slice */
    uint64_t *given, *taken;
    /* [shard_count]: bytes of each shard before the slice, less its bytes in the target */
    int64_t *above;
    uint64_t moved_bytes;
};

static int request_is_sound(const struct slice_request *request)
{
    if (request->chunk_leaves == 0) return 0;
    const struct layout *current = request->current, *target = request->target;
    if (current->tensor_count != request->tensor_count) return 0;
    if (target->tensor_count != request->tensor_count) return 0;
    for (uint32_t t = 0; t < request->tensor_count; t++)
        if (current->geometry[t].quantum_count != target->geometry[t].quantum_count) return 0;
    return 1;
}

/* Makes room in the table for two extents per run, because a run is cut at most once. There are at most as
 * many runs as extents in both layouts. */
static cairn_status open_slicing(struct slicing *s, const struct slice_request *request)
{
    const uint32_t now = request->current->shard_count, then = request->target->shard_count;
    *s = (struct slicing) {
        .request = request,
        .walk = { request->tensors, request->current, request->target, 0, 0 },
        .shard_count = now > then ? now : then,
    };
    const size_t runs = request->current->extent_count + request->target->extent_count;
    s->table.items = calloc(2 * runs + 1, sizeof *s->table.items);
    s->given = calloc(s->shard_count, sizeof *s->given);
    s->taken = calloc(s->shard_count, sizeof *s->taken);
    s->above = calloc(s->shard_count, sizeof *s->above);
    if (s->table.items == NULL || s->given == NULL || s->taken == NULL || s->above == NULL)
        return CAIRN_ERR_NO_MEMORY;
    struct plan_walk walk = s->walk;
    struct plan_run run;
    while (plan_walk_next(&walk, &run)) {
        const int64_t bytes = (int64_t)plan_run_bytes(&walk, &run, run.first, run.count);
        s->above[run.extent->shard] += bytes;
        s->above[run.to] -= bytes;
    }
    return CAIRN_OK;
}

static void close_slicing(struct slicing *s)
{
    free(s->table.items);
    free(s->given);
    free(s->taken);
    free(s->above);
}

/* Adds quanta of the run to the table. Joins them with the table's last extent if both stay and lie in one
 * extent of the current layout, or both move and lie in one extent of the target. */
static void append(struct slicing *s, const struct plan_run *run, uint64_t first, uint64_t count,
                   uint32_t shard)
{
    const struct extent *within = shard == run->extent->shard ? run->extent : run->target;
    if (count == 0) return;
    if (s->within == within) {
        struct extent *last = &s->table.items[s->table.count - 1];
        if (last->shard == shard && last->first_quantum + last->quantum_count == first) {
            last->quantum_count += count;
            return;
        }
    }
    s->within = within;
    s->table.items[s->table.count++] = (struct extent) { run->extent->tensor, shard, first, count };
}

static uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Returns how many bytes may still move in this slice, by the limits of both the giver and the taker. */
static uint64_t room_of(const struct slicing *s, const struct plan_run *run)
{
    const uint64_t *limits = s->request->limit_bytes;
    if (limits == NULL) return UINT64_MAX;
    const uint32_t from = run->extent->shard, to = run->to;
    return lesser(plan_minus(limits[from], s->given[from]), plan_minus(limits[to], s->taken[to]));
}

/* Returns how many bytes the taker may still take without having more than its bytes in the target plus a
 * slice. A shard that also gives can thus not take everything first. Some bytes can always move: as long as
 * bytes are left to move, at least one shard that takes has no more bytes than in the target. */
static uint64_t room_above_target(const struct slicing *s, const struct plan_run *run)
{
    const uint64_t *limits = s->request->limit_bytes;
    if (limits == NULL) return UINT64_MAX;
    const int64_t above = s->above[run->to] + (int64_t)s->taken[run->to] -
                          (int64_t)s->given[run->to];
    const uint64_t limit = limits[run->to] == 0 ? 1 : lesser(limits[run->to], INT64_MAX / 2);
    return above >= (int64_t)limit ? 0 : (uint64_t)((int64_t)limit - above);
}

/* Returns how many quanta at the end of the run fit into `room` bytes. */
static uint64_t tail_that_fits(const struct slicing *s, const struct plan_run *run, uint64_t room)
{
    if (plan_run_bytes(&s->walk, run, run->first, run->count) <= room) return run->count;
    const uint64_t end = run->first + run->count;
    const struct geometry *g = &s->walk.current->geometry[run->extent->tensor];
    const uint64_t quantum_bytes = g->quantum_elems *
                                   s->request->tensors[run->extent->tensor].elem_bytes;
    uint64_t tail = room / quantum_bytes;
    // The tensor's last quantum may be short, and then one more quantum fits.
    if (tail < run->count && plan_run_bytes(&s->walk, run, end - tail - 1, tail + 1) <= room)
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

/* Returns the length of the tail, shortened so that the tail begins where a chunk of the giver's extent
 * begins. Returns 0 if no chunk begins in the tail. */
static uint64_t tail_on_grid(const struct slicing *s, const struct plan_run *run, uint64_t tail)
{
    const uint64_t leaves = s->walk.current->geometry[run->extent->tensor].leaves_per_quantum;
    const uint64_t chunk = s->request->chunk_leaves;
    // quanta between two edges at which a chunk begins
    const uint64_t step = chunk / common_divisor(leaves, chunk);
    const uint64_t begin = run->first + run->count - tail - run->extent->first_quantum;
    const uint64_t late = (step - begin % step) % step;
    return plan_minus(tail, late);
}

/* Returns how many quanta at the end of the run move in this slice. */
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
    while (plan_walk_next(&s->walk, &run)) {
        const uint64_t tail = moving_tail(s, &run), kept = run.count - tail;
        append(s, &run, run.first, kept, run.extent->shard);
        append(s, &run, run.first + kept, tail, run.to);
        const uint64_t bytes = plan_run_bytes(&s->walk, &run, run.first + kept, tail);
        s->given[run.extent->shard] += bytes;
        s->taken[run.to] += bytes;
        s->moved_bytes += bytes;
    }
}

cairn_status plan_slice(const struct slice_request *request, struct layout **next_out,
                        uint64_t *moved_out)
{
    if (!request_is_sound(request)) return CAIRN_ERR_INVALID;
    struct slicing s;
    struct layout *next = NULL;
    cairn_status status = open_slicing(&s, request);
    if (status == CAIRN_OK) {
        fill_table(&s);
        if (s.moved_bytes > 0)
            status = plan_close_table(request->tensors, request->tensor_count, s.shard_count,
                                      request->current->version + 1, &s.table, &next);
    }
    if (status == CAIRN_OK) {
        *next_out = next;
        if (moved_out != NULL) *moved_out = s.moved_bytes;
    }
    close_slicing(&s);
    return status;
}

/* --- how much is left ----------------------------------------------------------------------------- */

static void most_slices(const struct slicing *s, struct slice_left *left)
{
    for (uint32_t i = 0; i < s->shard_count; i++) {
        const uint64_t bytes = s->given[i] > s->taken[i] ? s->given[i] : s->taken[i];
        const uint64_t *limits = s->request->limit_bytes;
        const uint64_t limit = limits == NULL ? UINT64_MAX : limits[i] == 0 ? 1 : limits[i];
        const uint64_t slices = bytes / limit + (bytes % limit != 0);
        if (slices > left->slices) left->slices = (uint32_t)lesser(slices, UINT32_MAX);
    }
}

cairn_status plan_slices_left(const struct slice_request *request, struct slice_left *left_out)
{
    if (!request_is_sound(request)) return CAIRN_ERR_INVALID;
    struct slicing s;
    const cairn_status status = open_slicing(&s, request);
    if (status == CAIRN_OK) {
        struct slice_left left = { 0 };
        struct plan_run run;
        while (plan_walk_next(&s.walk, &run)) {
            if (run.to == run.extent->shard) continue;
            const uint64_t bytes = plan_run_bytes(&s.walk, &run, run.first, run.count);
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
