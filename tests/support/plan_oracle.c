#include "tests/support/plan_oracle.h"

#include <inttypes.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- jobs ---------------------------------------------------------------------------------------- */

uint64_t random_state;

/* splitmix64 */
uint64_t random_next(void)
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t random_below(uint64_t limit)
{
    return random_next() % limit;
}

static char *text(const char *format, uint64_t number)
{
    char buffer[64];
    snprintf(buffer, sizeof buffer, format, number);
    return strdup(buffer);
}

struct job job_open(uint32_t tensor_count)
{
    struct job job = { calloc((size_t)tensor_count + 1, sizeof *job.tensors), tensor_count };
    ck_assert_ptr_nonnull(job.tensors);
    return job;
}

void job_close(struct job *job)
{
    for (uint32_t t = 0; t < job->tensor_count; t++) {
        free((void *)(uintptr_t)job->tensors[t].name);
        free((void *)(uintptr_t)job->tensors[t].unit);
    }
    free(job->tensors);
}

void job_set(struct job *job, uint32_t t, uint64_t unit, struct shape shape)
{
    job->tensors[t] = (struct layout_tensor) {
        .name = text("tensor.%06" PRIu64, t),
        .unit = text("unit.%06" PRIu64, unit),
        .shape = shape,
        .elem_bytes = 4,
    };
}

struct shape vector_of(uint64_t elems)
{
    return (struct shape) { .rank = 1, .dim = { elems } };
}

struct shape matrix_of(uint64_t rows, uint64_t columns)
{
    return (struct shape) { .rank = 2, .dim = { rows, columns } };
}

/* 0 to 8 dimensions, now and then empty, from one element to `elems_max`. */
static struct shape random_shape(uint64_t elems_max)
{
    struct shape shape = { .rank = (uint32_t)random_below(9) };
    uint64_t left = 1 + random_below(random_below(3) == 0 ? 2000 : elems_max);
    for (uint32_t d = 0; d < shape.rank; d++) {
        shape.dim[d] = d + 1 == shape.rank ? left : 1 + random_below(left < 64 ? left : 64);
        left = left / shape.dim[d] == 0 ? 1 : left / shape.dim[d];
    }
    if (shape.rank > 0 && random_below(20) == 0) shape.dim[random_below(shape.rank)] = 0;
    return shape;
}

struct job random_job(uint64_t elems_max)
{
    struct job job = job_open((uint32_t)random_below(60));
    const uint64_t units = 1 + random_below(20);
    for (uint32_t t = 0; t < job.tensor_count; t++) {
        job_set(&job, t, random_below(units), random_shape(elems_max));
        job.tensors[t].elem_bytes = (uint32_t)(1 + random_below(16));
    }
    return job;
}

struct job transformer(uint32_t layers, uint64_t width, uint64_t vocabulary)
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

struct plan_request ask(const struct job *job, uint32_t shard_count)
{
    return (struct plan_request) { .tensors = job->tensors,
                                   .tensor_count = job->tensor_count,
                                   .shard_count = shard_count };
}

struct layout *plan(const struct plan_request *request, struct plan_report *report)
{
    struct layout *layout = NULL;
    ck_assert_int_eq(plan_make(request, &layout, report), CAIRN_OK);
    return layout;
}

struct layout *widened(const struct job *job, struct layout *layout, uint32_t shard_count)
{
    struct plan_request request = ask(job, shard_count);
    request.held = layout;
    request.free = CAIRN_FREE_NEW;
    struct layout *wide = plan(&request, NULL);
    layout_close(layout);
    return wide;
}

/* --- the oracle ---------------------------------------------------------------------------------- */

static uint64_t quantum_bytes(const struct geometry *g, uint64_t quantum, uint32_t elem_bytes)
{
    const uint64_t begin = quantum * g->quantum_elems;
    const uint64_t end = begin + g->quantum_elems < g->elems ? begin + g->quantum_elems : g->elems;
    return (end - begin) * elem_bytes;
}

/* Owners by painting every extent quantum by quantum: each must be painted once. (One assertion a
 * tensor: an assertion of Check costs a write.) */
static void paint(const struct layout *layout, uint32_t tensor, uint64_t quantum_count,
                  uint32_t owners[ORACLE_QUANTA_MAX])
{
    ck_assert_uint_le(quantum_count, ORACLE_QUANTA_MAX);
    for (uint64_t q = 0; q < quantum_count; q++) owners[q] = UINT32_MAX;
    uint64_t painted = 0, wrong = 0;
    for (size_t e = 0; e < layout->extent_count; e++) {
        const struct extent *x = &layout->extents[e];
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

static uint32_t new_number(const struct plan_request *request, uint32_t old)
{
    if (request->renumbered != NULL) return request->renumbered[old];
    return old < request->shard_count ? old : CAIRN_SHARD_GONE;
}

static void count_tensor(const struct plan_request *request, const struct layout *layout,
                         uint32_t t, struct oracle *o)
{
    const struct geometry g = geometry_of(&request->tensors[t].shape);
    static uint32_t now[ORACLE_QUANTA_MAX], old[ORACLE_QUANTA_MAX];
    paint(layout, t, g.quantum_count, now);
    if (request->held != NULL) paint(request->held, t, g.quantum_count, old);
    for (uint64_t q = 0; q < g.quantum_count; q++) {
        const uint64_t bytes = quantum_bytes(&g, q, request->tensors[t].elem_bytes);
        o->loads[now[q]] += bytes;
        o->total += bytes;
        if (bytes > o->heaviest_quantum) o->heaviest_quantum = bytes;
        if (request->held == NULL) continue;
        const uint32_t was = new_number(request, old[q]);
        if (was != CAIRN_SHARD_GONE) o->old_loads[was] += bytes;
        if (was != now[q]) o->moved += bytes;
    }
}

const struct oracle *count_all(const struct plan_request *request, const struct layout *layout)
{
    static struct oracle oracle;
    struct oracle *o = &oracle;
    memset(o, 0, sizeof *o);
    ck_assert_uint_le(request->shard_count, ORACLE_SHARDS_MAX);
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

void report_is_true(const struct plan_report *report, const struct oracle *o)
{
    ck_assert_uint_eq(report->total_bytes, o->total);
    ck_assert_uint_eq(report->quantum_bytes_max, o->heaviest_quantum);
    ck_assert_uint_eq(report->off_share_bytes_max, o->off_share);
    ck_assert_uint_eq(report->moved_bytes, o->moved);
}

double quanta_off(const struct plan_report *report)
{
    if (report->quantum_bytes_max == 0) return 0;
    return (double)report->off_share_bytes_max / (double)report->quantum_bytes_max;
}
