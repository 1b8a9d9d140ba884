/* The planner against an oracle that asks for the owner of every single quantum. Figures are printed:
 * heaviest/mean, bytes moved against the bound, seconds. */
#include "proto/wire/plan.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SEEDS      200
#define SHARDS_MAX 256   /* of the oracle */
#define QUANTA_MAX 65536 /* likewise, of one tensor */

/* --- jobs ---------------------------------------------------------------------------------------- */

struct job {
    struct cairn_layout_tensor *tensors; /* owned, with their names */
    uint32_t tensor_count;
};

static uint64_t random_state;

/* splitmix64 */
static uint64_t random_next(void)
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t random_below(uint64_t limit)
{
    return random_next() % limit;
}

static char *text(const char *format, uint64_t number)
{
    char buffer[64];
    snprintf(buffer, sizeof buffer, format, (unsigned long long)number);
    return strdup(buffer);
}

static struct job job_open(uint32_t tensor_count)
{
    struct job job = { calloc((size_t)tensor_count + 1, sizeof *job.tensors), tensor_count };
    ck_assert_ptr_nonnull(job.tensors);
    return job;
}

static void job_close(struct job *job)
{
    for (uint32_t t = 0; t < job->tensor_count; t++) {
        free((void *)(uintptr_t)job->tensors[t].name);
        free((void *)(uintptr_t)job->tensors[t].unit);
    }
    free(job->tensors);
}

static void job_set(struct job *job, uint32_t t, uint64_t unit, struct cairn_shape shape)
{
    job->tensors[t] = (struct cairn_layout_tensor) {
        .name = text("tensor.%06llu", t),
        .unit = text("unit.%06llu", unit),
        .shape = shape,
        .elem_bytes = 4,
    };
}

static struct cairn_shape vector_of(uint64_t elems)
{
    return (struct cairn_shape) { .rank = 1, .dim = { elems } };
}

static struct cairn_shape matrix_of(uint64_t rows, uint64_t columns)
{
    return (struct cairn_shape) { .rank = 2, .dim = { rows, columns } };
}

/* 0 to 8 dimensions, now and then empty, from one element to `elems_max`. */
static struct cairn_shape random_shape(uint64_t elems_max)
{
    struct cairn_shape shape = { .rank = (uint32_t)random_below(9) };
    uint64_t left = 1 + random_below(random_below(3) == 0 ? 2000 : elems_max);
    for (uint32_t d = 0; d < shape.rank; d++) {
        shape.dim[d] = d + 1 == shape.rank ? left : 1 + random_below(left < 64 ? left : 64);
        left = left / shape.dim[d] == 0 ? 1 : left / shape.dim[d];
    }
    if (shape.rank > 0 && random_below(20) == 0) shape.dim[random_below(shape.rank)] = 0;
    return shape;
}

static struct job random_job(uint64_t elems_max)
{
    struct job job = job_open((uint32_t)random_below(60));
    const uint64_t units = 1 + random_below(20);
    for (uint32_t t = 0; t < job.tensor_count; t++) {
        job_set(&job, t, random_below(units), random_shape(elems_max));
        job.tensors[t].elem_bytes = (uint32_t)(1 + random_below(16));
    }
    return job;
}

/* Blocks of a transformer: 4 d*d of attention, 8 d*d of feed-forward, norms; embedding and head. */
static struct job transformer(uint32_t layers, uint64_t width, uint64_t vocabulary)
{
    struct job job = job_open(layers * 6 + 3);
    uint32_t t = 0;
    for (uint32_t l = 0; l < layers; l++) {
        job_set(&job, t++, l + 1, matrix_of(3 * width, width));
        job_set(&job, t++, l + 1, matrix_of(width, width));
        job_set(&job, t++, l + 1, matrix_of(4 * width, width));
        job_set(&job, t++, l + 1, matrix_of(width, 4 * width));
        job_set(&job, t++, l + 1, vector_of(width));
        job_set(&job, t++, l + 1, vector_of(width));
    }
    job_set(&job, t++, 0, matrix_of(vocabulary, width));
    job_set(&job, t++, layers + 1, vector_of(width));
    job_set(&job, t++, layers + 2, matrix_of(vocabulary, width));
    return job;
}

/* --- plans --------------------------------------------------------------------------------------- */

static struct cairn_plan_request ask(const struct job *job, uint32_t shard_count)
{
    return (struct cairn_plan_request) { .tensors = job->tensors,
                                         .tensor_count = job->tensor_count,
                                         .shard_count = shard_count };
}

static struct cairn_layout *plan(const struct cairn_plan_request *request,
                                 struct cairn_plan_report *report)
{
    struct cairn_layout *layout = NULL;
    ck_assert_int_eq(cairn_plan_make(request, &layout, report), CAIRN_OK);
    return layout;
}

/* --- the oracle ---------------------------------------------------------------------------------- */

static uint64_t quantum_bytes(const struct cairn_geometry *g, uint64_t quantum, uint32_t elem_bytes)
{
    const uint64_t begin = quantum * g->quantum_elems;
    const uint64_t end = begin + g->quantum_elems < g->elems ? begin + g->quantum_elems : g->elems;
    return (end - begin) * elem_bytes;
}

/* Owners by painting every extent quantum by quantum: each must be painted once. (One assertion a
 * tensor: an assertion of Check costs a write.) */
static void paint(const struct cairn_layout *layout, uint32_t tensor, uint64_t quantum_count,
                  uint32_t owners[QUANTA_MAX])
{
    ck_assert_uint_le(quantum_count, QUANTA_MAX);
    for (uint64_t q = 0; q < quantum_count; q++) owners[q] = UINT32_MAX;
    uint64_t painted = 0, wrong = 0;
    for (size_t e = 0; e < layout->extent_count; e++) {
        const struct cairn_extent *x = &layout->extents[e];
        if (x->tensor != tensor) continue;
        wrong += x->shard >= layout->shard_count;
        for (uint64_t q = x->first_quantum; q < x->first_quantum + x->quantum_count; q++) {
            if (q >= quantum_count || owners[q] != UINT32_MAX)
                wrong++;
            else
                owners[q] = x->shard, painted++;
        }
    }
    ck_assert_uint_eq(wrong, 0);
    ck_assert_uint_eq(painted, quantum_count);
}

struct oracle {
    uint64_t loads[SHARDS_MAX];     /* by new number */
    uint64_t old_loads[SHARDS_MAX]; /* by new number, of what is still there */
    uint64_t shares[SHARDS_MAX];
    uint64_t total, moved, bound, heaviest_quantum, off_share;
};

static uint32_t new_number(const struct cairn_plan_request *request, uint32_t old)
{
    if (request->renumbered != NULL) return request->renumbered[old];
    return old < request->shard_count ? old : CAIRN_SHARD_GONE;
}

static void count_tensor(const struct cairn_plan_request *request,
                         const struct cairn_layout *layout, uint32_t t, struct oracle *o)
{
    const struct cairn_geometry g = cairn_geometry_of(&request->tensors[t].shape);
    static uint32_t now[QUANTA_MAX], old[QUANTA_MAX];
    paint(layout, t, g.quantum_count, now);
    if (request->previous != NULL) paint(request->previous, t, g.quantum_count, old);
    for (uint64_t q = 0; q < g.quantum_count; q++) {
        const uint64_t bytes = quantum_bytes(&g, q, request->tensors[t].elem_bytes);
        o->loads[now[q]] += bytes;
        o->total += bytes;
        if (bytes > o->heaviest_quantum) o->heaviest_quantum = bytes;
        if (request->previous == NULL) continue;
        const uint32_t was = new_number(request, old[q]);
        if (was != CAIRN_SHARD_GONE) o->old_loads[was] += bytes;
        if (was != now[q]) o->moved += bytes;
    }
}

static struct oracle *count_all(const struct cairn_plan_request *request,
                                const struct cairn_layout *layout)
{
    static struct oracle oracle;
    struct oracle *o = &oracle;
    memset(o, 0, sizeof *o);
    ck_assert_uint_le(request->shard_count, SHARDS_MAX);
    for (uint32_t t = 0; t < request->tensor_count; t++) count_tensor(request, layout, t, o);
    uint64_t weights = 0, weight = 0, given = 0;
    for (uint32_t s = 0; s < request->shard_count; s++)
        weights += request->weights == NULL ? 1 : request->weights[s];
    for (uint32_t s = 0; s < request->shard_count; s++) {
        weight += request->weights == NULL ? 1 : request->weights[s];
        const uint64_t end = (uint64_t)((unsigned __int128)o->total * weight / weights);
        const uint64_t share = o->shares[s] = end - given;
        given = end;
        if (share > o->old_loads[s]) o->bound += share - o->old_loads[s];
        const uint64_t off = o->loads[s] > share ? o->loads[s] - share : share - o->loads[s];
        if (off > o->off_share) o->off_share = off;
    }
    return o;
}

static void report_is_true(const struct cairn_plan_report *report, const struct oracle *o)
{
    ck_assert_uint_eq(report->total_bytes, o->total);
    ck_assert_uint_eq(report->quantum_bytes_max, o->heaviest_quantum);
    ck_assert_uint_eq(report->off_share_bytes_max, o->off_share);
    ck_assert_uint_eq(report->moved_bytes, o->moved);
}

static uint32_t spread_limit(uint64_t bytes, uint32_t spread, uint32_t shard_count)
{
    uint64_t limit = (bytes + CAIRN_SPREAD_PIECE_BYTES - 1) / CAIRN_SPREAD_PIECE_BYTES;
    if (limit > spread) limit = spread;
    if (limit > shard_count) limit = shard_count;
    return limit == 0 ? 1 : (uint32_t)limit;
}

/* No unit uses more shards than it may. */
static void spread_is_kept(const struct job *job, const struct cairn_layout *layout,
                           uint32_t spread, uint32_t able)
{
    uint8_t *done = calloc((size_t)job->tensor_count + 1, 1);
    for (uint32_t first = 0; first < job->tensor_count; first++) {
        if (done[first]) continue;
        uint8_t *seen = calloc(layout->shard_count, 1);
        uint64_t bytes = 0;
        uint32_t used = 0;
        for (uint32_t t = first; t < job->tensor_count; t++) {
            if (strcmp(job->tensors[t].unit, job->tensors[first].unit) != 0) continue;
            done[t] = 1;
            bytes += cairn_geometry_of(&job->tensors[t].shape).elems * job->tensors[t].elem_bytes;
            size_t count = 0;
            const struct cairn_extent *e = cairn_layout_tensor_extents(layout, t, &count);
            for (size_t i = 0; i < count; i++) {
                used += !seen[e[i].shard];
                seen[e[i].shard] = 1;
            }
        }
        if (bytes > 0) ck_assert_uint_le(used, spread_limit(bytes, spread, able));
        free(seen);
    }
    free(done);
}

/* --- fresh tables --------------------------------------------------------------------------------- */

START_TEST(every_quantum_has_exactly_one_owner_and_no_unit_exceeds_its_spread)
{
    double worst = 1;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        random_state = seed;
        struct job job = random_job(seed % 4 == 0 ? 3000000 : 200000);
        uint32_t weights[40], able = 0;
        struct cairn_plan_request request = ask(&job, (uint32_t)(1 + random_below(40)));
        for (uint32_t s = 0; s < request.shard_count; s++)
            able += (weights[s] = s == 0 ? 1 : (uint32_t)random_below(4)) > 0;
        if (seed % 2 == 0) request.weights = weights;
        if (seed % 3 == 0) request.spread = (uint32_t)(1 + random_below(8));
        if (request.weights == NULL) able = request.shard_count;
        struct cairn_plan_report report;
        struct cairn_layout *layout = plan(&request, &report);
        report_is_true(&report, count_all(&request, layout));
        spread_is_kept(&job, layout, request.spread == 0 ? CAIRN_SPREAD_DEFAULT : request.spread,
                       able);
        for (uint32_t s = 0; s < request.shard_count && request.weights != NULL; s++)
            if (weights[s] == 0)
                ck_assert_uint_eq(layout->shard_extents[s + 1], layout->shard_extents[s]);
        if (report.heaviest_over_mean > worst) worst = report.heaviest_over_mean;
        cairn_layout_close(layout);
        job_close(&job);
    }
    printf("fresh, %d random jobs, the spread often too small: worst heaviest/mean %.3f\n", SEEDS,
           worst);
}
END_TEST

/* Wherever each unit may use every shard, no shard is further than one quantum from its share. */
START_TEST(shards_are_within_one_quantum_of_their_share_where_the_spread_allows_it)
{
    double worst_quanta = 0, worst_ratio = 1;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        random_state = seed;
        const uint32_t shard_count = (uint32_t)(1 + random_below(12));
        const uint32_t units = (uint32_t)(1 + random_below(12));
        struct job job = job_open(units * 4);
        for (uint32_t t = 0; t < job.tensor_count; t++) {
            const uint64_t elems = t % 4 == 0 ? shard_count * (65536 + random_below(100000))
                                              : 1 + random_below(50000);
            const uint64_t columns = 1 + random_below(seed % 5 == 0 ? 60000 : 2000);
            job_set(&job, t, t / 4, matrix_of(elems / columns + 1, columns));
        }
        uint32_t weights[12];
        for (uint32_t s = 0; s < shard_count; s++) weights[s] = (uint32_t)(1 + random_below(3));
        struct cairn_plan_request request = ask(&job, shard_count);
        if (seed % 3 == 0) request.weights = weights;
        struct cairn_plan_report report;
        struct cairn_layout *layout = plan(&request, &report);
        report_is_true(&report, count_all(&request, layout));
        const double quanta = (double)report.off_share_bytes_max / (double)report.quantum_bytes_max;
        if (quanta > worst_quanta) worst_quanta = quanta;
        if (report.heaviest_over_mean > worst_ratio) worst_ratio = report.heaviest_over_mean;
        cairn_layout_close(layout);
        job_close(&job);
    }
    printf("fresh, spread allows it, %d jobs: furthest from share %.3f quanta, worst heaviest/mean "
           "%.4f\n",
           SEEDS, worst_quanta, worst_ratio);
    ck_assert_double_le(worst_quanta, 1.0);
}
END_TEST

START_TEST(transformers_are_level_and_widely_spread_over_few_and_many_shards)
{
    const struct {
        const char *name;
        uint32_t layers;
        uint64_t width, vocabulary;
        uint32_t shards;
    } table[] = {
        { "124 M", 12, 768, 50257, 3 },    { "124 M", 12, 768, 50257, 8 },
        { "124 M", 12, 768, 50257, 64 },   { "1.3 B", 24, 2048, 50257, 16 },
        { "7 B", 32, 4096, 32000, 64 },    { "7 B", 32, 4096, 32000, 100 },
        { "7 B", 32, 4096, 32000, 256 },   { "65 B", 80, 8192, 32000, 256 },
        { "65 B", 80, 8192, 32000, 1000 },
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct job job = transformer(table[i].layers, table[i].width, table[i].vocabulary);
        struct cairn_plan_request request = ask(&job, table[i].shards);
        struct cairn_plan_report report;
        struct cairn_layout *layout = plan(&request, &report);
        spread_is_kept(&job, layout, CAIRN_SPREAD_DEFAULT, table[i].shards);
        const double quanta = (double)report.off_share_bytes_max / (double)report.quantum_bytes_max;
        printf("fresh, %5s transformer on %4u shards: heaviest/mean %.5f, furthest %.2f quanta, "
               "unit spread %2u at most, %3.0f %% of possible, %zu extents\n",
               table[i].name, table[i].shards, report.heaviest_over_mean, quanta,
               report.unit_spread_max, 100 * report.unit_spread_of_possible, layout->extent_count);
        ck_assert_double_le(quanta, 1.0);
        cairn_layout_close(layout);
        job_close(&job);
    }
}
END_TEST

/* Where shards are more than the spread, cuts that level them exist at least if every unit fits the
 * shares of one shard less than it may use, wherever it begins. */
START_TEST(shards_beyond_the_spread_are_level_if_units_fit_their_shares)
{
    double worst_quanta = 0, spread = 0;
    unsigned count = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        random_state = seed;
        const uint32_t shard_count = (uint32_t)(20 + random_below(200));
        struct job job = job_open((uint32_t)(40 + random_below(200)));
        struct cairn_plan_request request = ask(&job, shard_count);
        request.spread = (uint32_t)(8 + random_below(40));
        uint64_t total = 0;
        for (uint32_t t = 0; t < job.tensor_count; t++) {
            const uint64_t rows = random_below(8) == 0 ? 4000 : 200 + random_below(1000);
            job_set(&job, t, t, matrix_of(rows, 1 + random_below(2000)));
            total += cairn_geometry_of(&job.tensors[t].shape).elems * 4;
        }
        int fits = 1;
        for (uint32_t t = 0; t < job.tensor_count; t++) {
            const uint64_t bytes = cairn_geometry_of(&job.tensors[t].shape).elems * 4;
            const uint32_t may_use = spread_limit(bytes, request.spread, shard_count);
            fits &= may_use == 1 || bytes <= (may_use - 1) * (total / shard_count);
        }
        if (fits) {
            struct cairn_plan_report report;
            struct cairn_layout *layout = plan(&request, &report);
            spread_is_kept(&job, layout, request.spread, shard_count);
            const double quanta = (double)report.off_share_bytes_max /
                                  (double)report.quantum_bytes_max;
            if (quanta > worst_quanta) worst_quanta = quanta;
            spread += report.unit_spread_of_possible;
            count++;
            cairn_layout_close(layout);
        }
        job_close(&job);
    }
    printf("fresh, more shards than the spread, %u jobs: furthest %.3f quanta, unit spread %.0f %% "
           "of possible\n",
           count, worst_quanta, 100 * spread / count);
    ck_assert_double_le(worst_quanta, 1.0);
}
END_TEST

START_TEST(the_spread_wins_over_balance_and_the_report_says_so)
{
    struct job job = job_open(1);
    job_set(&job, 0, 0, matrix_of(4096, 1024)); // 16 MiB
    struct cairn_plan_request request = ask(&job, 8);
    request.spread = 2;
    struct cairn_plan_report report;
    struct cairn_layout *layout = plan(&request, &report);
    ck_assert_uint_eq(report.unit_spread_max, 2);
    ck_assert_double_eq_tol(report.heaviest_over_mean, 4.0, 1e-9);
    cairn_layout_close(layout);
    job_close(&job);
}
END_TEST

START_TEST(fewer_rows_than_shards_scalars_and_empty_tensors_find_owners)
{
    struct job job = job_open(4);
    job_set(&job, 0, 0, matrix_of(3, 1000000));
    job_set(&job, 1, 0, (struct cairn_shape) { .rank = 0 });
    job_set(&job, 2, 1, matrix_of(0, 5));
    job_set(&job, 3, 2, matrix_of(2, 58000000)); // rows of 58 M are divided
    struct cairn_plan_request request = ask(&job, 50);
    struct cairn_plan_report report;
    struct cairn_layout *layout = plan(&request, &report);
    report_is_true(&report, count_all(&request, layout));
    ck_assert_uint_eq(layout->tensor_extents[2], layout->tensor_extents[3]);
    printf("fresh, 3 rows of 1 M, a scalar, 2 x 58 M on 50 shards: heaviest/mean %.4f\n",
           report.heaviest_over_mean);
    cairn_layout_close(layout);

    job.tensor_count = 0;
    request = ask(&job, 50);
    layout = plan(&request, &report);
    ck_assert_uint_eq(layout->extent_count, 0);
    ck_assert_double_eq(report.heaviest_over_mean, 1.0);
    cairn_layout_close(layout);
    job.tensor_count = 4;
    job_close(&job);
}
END_TEST

START_TEST(the_table_is_the_same_for_any_order_of_the_tensor_list)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        random_state = seed;
        struct job job = random_job(400000);
        struct job other = { calloc((size_t)job.tensor_count + 1, sizeof *other.tensors),
                             job.tensor_count };
        uint32_t place[64];
        for (uint32_t t = 0; t < job.tensor_count; t++) place[t] = t;
        for (uint32_t i = job.tensor_count; i > 1; i--) {
            const uint32_t j = (uint32_t)random_below(i), swap = place[j];
            place[j] = place[i - 1];
            place[i - 1] = swap;
        }
        for (uint32_t t = 0; t < job.tensor_count; t++) other.tensors[place[t]] = job.tensors[t];

        const uint32_t shards = (uint32_t)(1 + random_below(20));
        struct cairn_plan_request request = ask(&job, shards), other_request = ask(&other, shards);
        request.spread = other_request.spread = (uint32_t)random_below(10);
        struct cairn_layout *layout = plan(&request, NULL), *same = plan(&other_request, NULL);
        ck_assert_mem_eq(layout->hash, same->hash, sizeof layout->hash);
        for (int again = 0; again < 2; again++) { // and so is a re-plan of it
            for (uint32_t t = 0; t < job.tensor_count; t++) {
                size_t count = 0, other_count = 0;
                const struct cairn_extent *a = cairn_layout_tensor_extents(layout, t, &count);
                const struct cairn_extent *b = cairn_layout_tensor_extents(same, place[t],
                                                                           &other_count);
                ck_assert_uint_eq(count, other_count);
                for (size_t i = 0; i < count; i++) {
                    ck_assert_uint_eq(a[i].shard, b[i].shard);
                    ck_assert_uint_eq(a[i].quantum_count, b[i].quantum_count);
                }
            }
            if (again) break;
            request.previous = layout;
            other_request.previous = same;
            request.shard_count = other_request.shard_count = (uint32_t)(1 + random_below(20));
            struct cairn_layout *next = plan(&request, NULL),
                                *next_same = plan(&other_request, NULL);
            cairn_layout_close(layout);
            cairn_layout_close(same);
            layout = next;
            same = next_same;
        }
        cairn_layout_close(layout);
        cairn_layout_close(same);
        free(other.tensors);
        job_close(&job);
    }
}
END_TEST

/* --- re-plans ------------------------------------------------------------------------------------ */

struct replan_figures {
    double moved_over_bound, furthest_quanta, beyond_fresh;
    unsigned count;
};

static void check_replan(const struct cairn_plan_request *request, struct replan_figures *figures)
{
    struct cairn_plan_report report;
    struct cairn_layout *layout = plan(request, &report);
    const struct oracle *o = count_all(request, layout);
    report_is_true(&report, o);
    ck_assert_uint_eq(report.moved_bytes_bound, o->bound);
    ck_assert_uint_eq(layout->version, request->previous->version + 1);
    ck_assert_msg(o->moved <= o->bound, "moved %llu of %llu", (unsigned long long)o->moved,
                  (unsigned long long)o->bound);
    const double quanta = o->heaviest_quantum == 0
                              ? 0
                              : (double)o->off_share / (double)o->heaviest_quantum;
    if (o->bound > 0 && (double)o->moved / (double)o->bound > figures->moved_over_bound)
        figures->moved_over_bound = (double)o->moved / (double)o->bound;
    if (quanta > figures->furthest_quanta) figures->furthest_quanta = quanta;
    figures->count++;
    cairn_layout_close(layout);

    struct cairn_plan_request compact = *request;
    compact.compact = 1;
    struct cairn_plan_report fresh;
    cairn_layout_close(plan(&compact, &fresh));
    const double fresh_quanta = fresh.quantum_bytes_max == 0 ? 0
                                                             : (double)fresh.off_share_bytes_max /
                                                                   (double)fresh.quantum_bytes_max;
    const double allowed = 1 + (fresh_quanta > 1 ? fresh_quanta : 1);
    ck_assert_double_le(quanta, allowed);
    if (quanta - fresh_quanta > figures->beyond_fresh)
        figures->beyond_fresh = quanta - fresh_quanta;
}

/* Numbers old shards anew: some stay, some are gone, in any order. */
static void random_renumbering(uint32_t *renumbered, uint32_t old_count, uint32_t new_count)
{
    uint8_t taken[64] = { 0 };
    for (uint32_t old = 0; old < old_count; old++) {
        const uint32_t s = (uint32_t)random_below(new_count + 1);
        renumbered[old] = s == new_count || taken[s] ? CAIRN_SHARD_GONE : s;
        if (renumbered[old] != CAIRN_SHARD_GONE) taken[s] = 1;
    }
}

START_TEST(a_re_plan_moves_no_more_than_the_bound_whatever_changes)
{
    struct replan_figures figures = { 0 };
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        random_state = seed;
        struct job job = random_job(seed % 4 == 0 ? 2000000 : 300000);
        struct cairn_plan_request request = ask(&job, (uint32_t)(1 + random_below(20)));
        struct cairn_layout *layout = plan(&request, NULL);
        const uint32_t old_count = request.shard_count;
        request.previous = layout;
        request.shard_count = (uint32_t)(1 + random_below(20));
        check_replan(&request, &figures);

        uint32_t weights[20], renumbered[20];
        for (uint32_t s = 0; s < request.shard_count; s++)
            weights[s] = s == 0 ? 1 : (uint32_t)random_below(5);
        request.weights = weights;
        check_replan(&request, &figures);
        random_renumbering(renumbered, old_count, request.shard_count);
        request.renumbered = renumbered;
        check_replan(&request, &figures);
        cairn_layout_close(layout);
        job_close(&job);
    }
    printf("re-plan, %u random changes of random jobs: moved/bound at most %.4f, furthest %.2f "
           "quanta, "
           "at most %.2f further than the fresh table\n",
           figures.count, figures.moved_over_bound, figures.furthest_quanta, figures.beyond_fresh);
}
END_TEST

START_TEST(growing_shrinking_and_reweighing_a_transformer_stays_level)
{
    const uint32_t steps[] = { 3, 5, 8, 9, 16, 15, 64, 63, 65, 100, 40, 1, 7 };
    struct job job = transformer(12, 768, 50257);
    struct cairn_plan_request request = ask(&job, 2);
    struct cairn_layout *layout = plan(&request, NULL);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        const uint32_t before = request.shard_count;
        request.previous = layout;
        request.shard_count = steps[i];
        struct cairn_plan_report report;
        struct cairn_layout *next = plan(&request, &report);
        report_is_true(&report, count_all(&request, next));
        const double quanta = (double)report.off_share_bytes_max / (double)report.quantum_bytes_max;
        printf("re-plan, %3u -> %3u shards: moved/bound %.5f, heaviest/mean %.5f, furthest %.2f "
               "quanta, "
               "unit spread %u, %.0f %% of possible, %zu extents\n",
               before, steps[i], (double)report.moved_bytes / (double)report.moved_bytes_bound,
               report.heaviest_over_mean, quanta, report.unit_spread_max,
               100 * report.unit_spread_of_possible, next->extent_count);
        ck_assert_uint_le(report.moved_bytes, report.moved_bytes_bound);
        cairn_layout_close(layout);
        layout = next;
    }
    cairn_layout_close(layout);
    job_close(&job);
}
END_TEST

START_TEST(compact_gives_exactly_the_fresh_table)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        random_state = seed;
        struct job job = random_job(300000);
        struct cairn_plan_request request = ask(&job, (uint32_t)(1 + random_below(20)));
        struct cairn_layout *first = plan(&request, NULL);
        request.shard_count = (uint32_t)(1 + random_below(20));
        struct cairn_layout *fresh = plan(&request, NULL);
        request.previous = first;
        struct cairn_layout *kept = plan(&request, NULL);
        request.previous = kept;
        request.compact = 1;
        struct cairn_layout *compact = plan(&request, NULL);
        ck_assert_mem_eq(compact->hash, fresh->hash, sizeof fresh->hash);
        ck_assert_uint_eq(compact->extent_count, fresh->extent_count);
        ck_assert_uint_eq(compact->version, 3);
        cairn_layout_close(first);
        cairn_layout_close(fresh);
        cairn_layout_close(kept);
        cairn_layout_close(compact);
        job_close(&job);
    }
}
END_TEST

START_TEST(nothing_moves_when_nothing_changes)
{
    struct job job = transformer(4, 512, 1000);
    struct cairn_plan_request request = ask(&job, 6);
    struct cairn_layout *layout = plan(&request, NULL);
    request.previous = layout;
    struct cairn_plan_report report;
    struct cairn_layout *same = plan(&request, &report);
    ck_assert_uint_le(report.moved_bytes, report.moved_bytes_bound);
    ck_assert_uint_le(report.moved_bytes, 6 * report.quantum_bytes_max);
    printf("re-plan, nothing changed: moved %llu of %llu bytes\n",
           (unsigned long long)report.moved_bytes, (unsigned long long)report.total_bytes);
    cairn_layout_close(same);
    cairn_layout_close(layout);
    job_close(&job);
}
END_TEST

/* --- refusals and speed --------------------------------------------------------------------------- */

START_TEST(a_request_that_makes_no_sense_is_refused)
{
    struct job job = transformer(1, 64, 100), other = transformer(1, 128, 100);
    struct cairn_plan_request request = ask(&job, 2);
    struct cairn_layout *layout = plan(&request, NULL), *none = NULL;
    const uint32_t no_weight[2] = { 0, 0 }, twice[2] = { 1, 1 }, far[2] = { 0, 7 };
    struct cairn_plan_request bad[7];
    for (int i = 0; i < 7; i++) bad[i] = request;
    bad[0].shard_count = 0;
    bad[1].shard_count = CAIRN_SHARDS_MAX + 1;
    bad[2].weights = no_weight;
    bad[3].previous = layout, bad[3].renumbered = twice;
    bad[4].previous = layout, bad[4].renumbered = far;
    bad[5].previous = layout, bad[5].tensors = other.tensors;
    bad[6].previous = layout, bad[6].tensor_count--;
    for (int i = 0; i < 7; i++)
        ck_assert_msg(cairn_plan_make(&bad[i], &none, NULL) == CAIRN_ERR_INVALID, "case %d", i);
    ck_assert_ptr_null(none);
    job.tensors[0].elem_bytes = 0;
    ck_assert_int_eq(cairn_plan_make(&request, &none, NULL), CAIRN_ERR_INVALID);
    cairn_layout_close(layout);
    job_close(&job);
    job_close(&other);
}
END_TEST

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* 100,000 tensors of 10 M parameters or fewer, ten to a unit. */
START_TEST(a_thousand_shards_and_a_hundred_thousand_tensors_take_well_under_a_second)
{
    struct job job = job_open(100000);
    random_state = 1;
    for (uint32_t t = 0; t < job.tensor_count; t++)
        job_set(&job, t, t / 10,
                t % 5 == 4 ? vector_of(4096) : matrix_of(1 + random_below(4000), 4096));
    struct cairn_plan_request request = ask(&job, 1000);
    struct cairn_plan_report report;
    double before = seconds_now();
    struct cairn_layout *layout = plan(&request, &report);
    const double fresh = seconds_now() - before;
    printf("1,000 shards x 100,000 tensors, %.2f T parameters: fresh %.3f s, %zu extents, "
           "heaviest/mean %.6f, furthest %.2f quanta, unit spread %.0f %% of possible\n",
           (double)report.total_bytes / 4e12, fresh, layout->extent_count,
           report.heaviest_over_mean,
           (double)report.off_share_bytes_max / (double)report.quantum_bytes_max,
           100 * report.unit_spread_of_possible);
    request.previous = layout;
    request.shard_count = 1100;
    before = seconds_now();
    struct cairn_layout *next = plan(&request, &report);
    const double again = seconds_now() - before;
    printf("re-plan to 1,100: %.3f s, %zu extents, moved/bound %.5f, heaviest/mean %.6f\n", again,
           next->extent_count, (double)report.moved_bytes / (double)report.moved_bytes_bound,
           report.heaviest_over_mean);
    ck_assert_double_lt(fresh, 20); // printed above; this only catches an algorithm gone wrong
    ck_assert_double_lt(again, 20);
    cairn_layout_close(layout);
    cairn_layout_close(next);
    job_close(&job);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("plan");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, every_quantum_has_exactly_one_owner_and_no_unit_exceeds_its_spread);
    tcase_add_test(tests, shards_are_within_one_quantum_of_their_share_where_the_spread_allows_it);
    tcase_add_test(tests, transformers_are_level_and_widely_spread_over_few_and_many_shards);
    tcase_add_test(tests, shards_beyond_the_spread_are_level_if_units_fit_their_shares);
    tcase_add_test(tests, the_spread_wins_over_balance_and_the_report_says_so);
    tcase_add_test(tests, fewer_rows_than_shards_scalars_and_empty_tensors_find_owners);
    tcase_add_test(tests, the_table_is_the_same_for_any_order_of_the_tensor_list);
    tcase_add_test(tests, a_re_plan_moves_no_more_than_the_bound_whatever_changes);
    tcase_add_test(tests, growing_shrinking_and_reweighing_a_transformer_stays_level);
    tcase_add_test(tests, compact_gives_exactly_the_fresh_table);
    tcase_add_test(tests, nothing_moves_when_nothing_changes);
    tcase_add_test(tests, a_request_that_makes_no_sense_is_refused);
    tcase_add_test(tests,
                   a_thousand_shards_and_a_hundred_thousand_tensors_take_well_under_a_second);
    Suite *suite = suite_create("plan");
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
