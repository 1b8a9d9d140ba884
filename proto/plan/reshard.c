#include "proto/plan/reshard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/plan/moves.h"
#include "proto/plan/plan.h"

/* A target in the making. */
struct aiming {
    const struct cairn_reshard_request *request; /* borrowed */
    struct cairn_sentence *why;                  /* borrowed */
    uint64_t total_bytes;
    uint64_t quantum_bytes_max; /* of the heaviest quantum */

    /* owned: [shard_count] */
    uint64_t *before, *after; /* bytes that a shard owns */
    double *shares;           /* bytes that it should own; they add up to the total */
    uint32_t *weights;        /* for the planner */

    /* owned, the caller's on success */
    struct cairn_layout *target;
    struct cairn_reshard_pair *pairs;
    size_t pair_count, pair_limit;
};

void cairn_reshard_report_release(struct cairn_reshard_report *report)
{
    free(report->pairs);
    *report = (struct cairn_reshard_report) { 0 };
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
    return cairn_fail(a->why, CAIRN_ERR_NO_MEMORY, "out of memory while planning");
}

/* --- what is asked -------------------------------------------------------------------------------- */

static cairn_status judge_weights(const struct aiming *a)
{
    double most = 0;
    for (uint32_t s = 0; s < a->request->shard_count; s++) {
        const double weight = weight_of(a, s);
        if (!isfinite(weight) || weight < 0)
            return cairn_fail(a->why, CAIRN_ERR_INVALID,
                              "the weight of %s is %g: give a number, 0 (it gives up all) or above",
                              label_of(a, s).text, weight);
        if (weight > most) most = weight;
    }
    if (most > 0) return CAIRN_OK;
    return cairn_fail(a->why, CAIRN_ERR_INVALID,
                      "no shard is left that may own something: one needs a weight above 0");
}

static cairn_status judge_request(const struct aiming *a)
{
    const struct cairn_reshard_request *request = a->request;
    if (request->shard_count == 0 || request->shard_count > CAIRN_SHARDS_MAX)
        return cairn_fail(a->why, CAIRN_ERR_INVALID, "%u shards: a job has 1 to %u",
                          request->shard_count, CAIRN_SHARDS_MAX);
    if (request->shard_count < request->current->shard_count)
        return cairn_fail(
            a->why, CAIRN_ERR_INVALID,
            "%u shards, but the job's table numbers %u: a shard that leaves keeps its number "
            "and gets the weight 0",
            request->shard_count, request->current->shard_count);
    if (request->current->tensor_count != request->tensor_count)
        return cairn_fail(a->why, CAIRN_ERR_INVALID, "the table is of %u tensors, the job has %u",
                          request->current->tensor_count, request->tensor_count);
    return judge_weights(a);
}

static void weigh_before(struct aiming *a)
{
    const struct cairn_layout *current = a->request->current;
    struct plan_walk walk = { a->request->tensors, current, current, 0, 0 };
    struct plan_run run;
    while (cairn_plan_walk_next(&walk, &run)) {
        const uint64_t bytes = cairn_plan_run_bytes(&walk, &run, run.first, run.count);
        const uint64_t quantum = cairn_plan_run_bytes(&walk, &run, run.first, 1);
        a->before[run.to] += bytes;
        a->total_bytes += bytes;
        if (quantum > a->quantum_bytes_max) a->quantum_bytes_max = quantum;
    }
}

/* --- shares that fit ------------------------------------------------------------------------------ */

/* The most that a share may be: two quanta below the bound, since the planner may miss a share by
 * as much. */
static double ceiling_of(const struct aiming *a, uint32_t shard)
{
    const uint64_t *capacities = a->request->capacity_bytes;
    if (capacities == NULL || capacities[shard] == 0) return INFINITY;
    const uint64_t owned = a->before[shard];
    const uint64_t most = capacities[shard] > owned ? capacities[shard] : owned;
    const uint64_t slack = 2 * a->quantum_bytes_max;
    return most > slack ? (double)(most - slack) : 0;
}

/* Gives every shard that is not full its part of what the full ones left, by weight; returns how many
 * are full now and were not. `full`: [shard_count]. */
static uint32_t pour(struct aiming *a, uint8_t *full)
{
    double left = (double)a->total_bytes, weights = 0;
    uint32_t more = 0;
    for (uint32_t s = 0; s < a->request->shard_count; s++) {
        if (full[s])
            left -= a->shares[s];
        else
            weights += weight_of(a, s);
    }
    for (uint32_t s = 0; s < a->request->shard_count; s++) {
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
    uint8_t *full = calloc(a->request->shard_count, 1);
    if (full == NULL) return no_memory(a);
    while (pour(a, full) > 0) continue;
    free(full);
    double given = 0;
    for (uint32_t s = 0; s < a->request->shard_count; s++) given += a->shares[s];
    if (given >= (double)a->total_bytes * (1 - 1e-9)) return CAIRN_OK;
    return cairn_fail(
        a->why, CAIRN_ERR_NO_MEMORY,
        "the shards have room for %.1f MiB of the job's %.1f MiB: add shards, or give them memory",
        mib(given), mib((double)a->total_bytes));
}

/* The planner counts in whole numbers. A job of no bytes has no shares. */
static void scale_weights(struct aiming *a)
{
    double most = 0;
    for (uint32_t s = 0; s < a->request->shard_count; s++) {
        if (a->total_bytes == 0) a->shares[s] = weight_of(a, s);
        if (a->shares[s] > most) most = a->shares[s];
    }
    for (uint32_t s = 0; s < a->request->shard_count; s++) {
        const double scaled = a->shares[s] / most * UINT32_MAX;
        if (a->shares[s] > 0) a->weights[s] = scaled < 1 ? 1 : (uint32_t)scaled;
    }
}

/* --- what came of it ------------------------------------------------------------------------------ */

static int compare_pairs(const void *a, const void *b)
{
    const struct cairn_reshard_pair *x = a, *y = b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    return x->to < y->to ? -1 : x->to > y->to;
}

/* Sums pairs up that are the same; they are in any order before, and sorted after. */
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

static cairn_status add_pair(struct aiming *a, struct cairn_reshard_pair pair)
{
    if (a->pair_count == a->pair_limit) merge_pairs(a);
    if (a->pair_count > a->pair_limit / 2 || a->pair_limit == 0) {
        const size_t limit = 2 * a->pair_limit + 64;
        struct cairn_reshard_pair *pairs = realloc(a->pairs, limit * sizeof *pairs);
        if (pairs == NULL) return no_memory(a);
        a->pairs = pairs;
        a->pair_limit = limit;
    }
    a->pairs[a->pair_count++] = pair;
    return CAIRN_OK;
}

static cairn_status weigh_moves(struct aiming *a)
{
    struct plan_walk walk = { a->request->tensors, a->request->current, a->target, 0, 0 };
    struct plan_run run;
    cairn_status status = CAIRN_OK;
    while (status == CAIRN_OK && cairn_plan_walk_next(&walk, &run)) {
        const uint64_t bytes = cairn_plan_run_bytes(&walk, &run, run.first, run.count);
        a->after[run.to] += bytes;
        if (run.to == run.extent->shard) continue;
        status = add_pair(a, (struct cairn_reshard_pair) { run.extent->shard, run.to, bytes });
    }
    if (status == CAIRN_OK) merge_pairs(a);
    return status;
}

static cairn_status judge_capacities(const struct aiming *a)
{
    const uint64_t *capacities = a->request->capacity_bytes;
    for (uint32_t s = 0; s < a->request->shard_count && capacities != NULL; s++) {
        if (capacities[s] == 0 || a->after[s] <= capacities[s] || a->after[s] <= a->before[s])
            continue;
        return cairn_fail(
            a->why, CAIRN_ERR_NO_MEMORY,
            "%s would own %.1f MiB of the job and has room for %.1f MiB: give it memory or a "
            "smaller weight, or add shards",
            label_of(a, s).text, mib((double)a->after[s]), mib((double)capacities[s]));
    }
    return CAIRN_OK;
}

/* The largest load / fair load. Shards that leave are counted as average ones while they own something. */
static double heaviest_of(const struct aiming *a, const uint64_t *loads)
{
    double weights = 0, heaviest = 1;
    uint32_t weighed = 0;
    for (uint32_t s = 0; s < a->request->shard_count; s++) {
        weights += weight_of(a, s);
        weighed += weight_of(a, s) > 0;
    }
    const double average = weights / weighed;
    for (uint32_t s = 0; s < a->request->shard_count; s++)
        if (weight_of(a, s) == 0 && loads[s] > 0) weights += average;
    for (uint32_t s = 0; s < a->request->shard_count && a->total_bytes > 0; s++) {
        const double weight = weight_of(a, s) > 0 ? weight_of(a, s) : average;
        const double ratio = (double)loads[s] / ((double)a->total_bytes * (weight / weights));
        if (ratio > heaviest) heaviest = ratio;
    }
    return heaviest;
}

static struct cairn_reshard_report report_of(struct aiming *a, const struct cairn_plan_report *plan)
{
    struct cairn_reshard_report report = {
        .total_bytes = plan->total_bytes,
        .moved_bytes = plan->moved_bytes,
        .least_bytes = plan->moved_bytes_bound,
        .afresh_count = plan->afresh_count,
        .pieces = plan->pieces,
        .files = plan->files,
        .pieces_fresh = plan->pieces_fresh,
        .files_fresh = plan->files_fresh,
        .heaviest_before = heaviest_of(a, a->before),
        .heaviest_after = heaviest_of(a, a->after),
        .pairs = a->pairs,
        .pair_count = a->pair_count,
    };
    a->pairs = NULL; // the report's now
    return report;
}

/* --- the course of it ----------------------------------------------------------------------------- */

static cairn_status open_aiming(struct aiming *a, const struct cairn_reshard_request *request,
                                struct cairn_sentence *why)
{
    *a = (struct aiming) { .request = request, .why = why };
    cairn_status status = judge_request(a);
    if (status != CAIRN_OK) return status;
    a->before = calloc(request->shard_count, sizeof *a->before);
    a->after = calloc(request->shard_count, sizeof *a->after);
    a->shares = calloc(request->shard_count, sizeof *a->shares);
    a->weights = calloc(request->shard_count, sizeof *a->weights);
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
    cairn_layout_close(a->target);
}

static cairn_status plan_target(struct aiming *a, int least, struct cairn_plan_report *report)
{
    const struct cairn_plan_request request = {
        .tensors = a->request->tensors,
        .tensor_count = a->request->tensor_count,
        .shard_count = a->request->shard_count,
        .weights = a->weights,
        .spread = a->request->spread,
        .previous = a->request->current,
        .least = least,
    };
    const cairn_status status = cairn_plan_make(&request, &a->target, report);
    if (status == CAIRN_ERR_INVALID)
        return cairn_fail(a->why, status, "the job's table is not one of these tensors");
    if (status != CAIRN_OK) return no_memory(a);
    return weigh_moves(a);
}

/* A shard that gives and takes has up to a slice more on the way than in the end. */
static int has_room_on_the_way(const struct aiming *a)
{
    const uint64_t *capacities = a->request->capacity_bytes;
    for (uint32_t s = 0; s < a->request->shard_count && capacities != NULL; s++) {
        const uint64_t most = a->after[s] + a->request->slice_bytes;
        if (capacities[s] > 0 && (most > capacities[s] || a->before[s] > capacities[s])) return 0;
    }
    return 1;
}

static void drop_target(struct aiming *a)
{
    cairn_layout_close(a->target);
    a->target = NULL;
    a->pair_count = 0;
    for (uint32_t s = 0; s < a->request->shard_count; s++) a->after[s] = 0;
}

static cairn_status plan_within_room(struct aiming *a, struct cairn_plan_report *report)
{
    cairn_status status = plan_target(a, a->request->least, report);
    if (status != CAIRN_OK || report->afresh_count == 0 || has_room_on_the_way(a)) return status;
    const uint64_t pieces = report->pieces_fresh, files = report->files_fresh;
    drop_target(a);
    status = plan_target(a, 1, report);
    report->pieces_fresh = pieces;
    report->files_fresh = files;
    return status;
}

cairn_status cairn_plan_reshard(const struct cairn_reshard_request *request,
                                struct cairn_layout **target_out,
                                struct cairn_reshard_report *report_out, struct cairn_sentence *why)
{
    struct aiming a;
    struct cairn_plan_report report;
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
        a.target = NULL; // the caller's now
    }
    close_aiming(&a);
    return status;
}
