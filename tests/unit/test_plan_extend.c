/* A layout that tensors are added to: nothing moves, and the least loaded shards fill up first. */
#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/plan_oracle.h"
#include "tests/support/suite.h"

#define SEEDS 100

static uint64_t bytes_on(const struct job *job, const struct layout *layout, uint32_t shard)
{
    uint64_t bytes = 0;
    for (size_t e = 0; e < layout->extent_count; e++) {
        const struct extent *x = &layout->extents[e];
        const struct geometry *g = &layout->geometry[x->tensor];
        if (x->shard != shard) continue;
        bytes += (quantum_first_elem(g, x->first_quantum + x->quantum_count) -
                  quantum_first_elem(g, x->first_quantum)) *
                 job->tensors[x->tensor].elem_bytes;
    }
    return bytes;
}

static bool same_table(const struct layout *a, uint32_t t, const struct layout *b, uint32_t u)
{
    size_t n, m;
    const struct extent *x = layout_tensor_extents(a, t, &n);
    const struct extent *y = layout_tensor_extents(b, u, &m);
    if (n != m) return false;
    for (size_t i = 0; i < n; i++)
        if (x[i].shard != y[i].shard || x[i].first_quantum != y[i].first_quantum ||
            x[i].quantum_count != y[i].quantum_count)
            return false;
    return true;
}

static cairn_status extend(const struct layout_tensor *tensors, uint32_t count,
                           const struct layout *old, const uint32_t *was, const uint32_t *weights,
                           struct layout **layout_out)
{
    const struct plan_request request = { .tensors = tensors,
                                          .tensor_count = count,
                                          .shard_count = old->shard_count,
                                          .weights = weights,
                                          .held = old,
                                          .free = CAIRN_FREE_NEW,
                                          .was = was };
    return plan_make(&request, layout_out, NULL);
}

/* The job of the first `kept` tensors is planned; the rest is added. */
TEST(nothing_that_stays_moves_and_what_is_added_has_one_owner)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        random_state = seed;
        struct job job = random_job(200000);
        const uint32_t shards = (uint32_t)(1 + random_below(12));
        const uint32_t kept = (uint32_t)random_below(job.tensor_count + 1);
        struct job before = { job.tensors, kept };
        uint32_t *was = calloc((size_t)job.tensor_count + 1, sizeof *was);
        const struct plan_request request = ask(&before, shards);
        struct layout *old = plan(&request, NULL), *layout;
        for (uint32_t t = 0; t < job.tensor_count; t++) was[t] = t < kept ? t : CAIRN_TENSOR_NEW;
        // It judges that every quantum has one owner.
        ck_assert_int_eq(extend(job.tensors, job.tensor_count, old, was, NULL, &layout), CAIRN_OK);
        ck_assert_uint_eq(layout->version, old->version + 1);
        for (uint32_t t = 0; t < kept; t++) ck_assert(same_table(old, t, layout, t));
        free(was);
        layout_close(layout);
        layout_close(old);
        job_close(&job);
    }
}

TEST(the_least_loaded_shards_fill_up_first)
{
    struct job job = job_open(3);
    uint32_t was[3] = { 0, CAIRN_TENSOR_NEW, CAIRN_TENSOR_NEW };
    job_set(&job, 0, 0, matrix_of(4000, 1000));
    job_set(&job, 1, 1, matrix_of(2000, 1000));
    job_set(&job, 2, 2, matrix_of(3000, 1000));
    struct job before = { job.tensors, 1 };
    struct plan_request request = ask(&before, 4);
    const uint32_t weights[4] = { 1, 0, 3, 0 };
    request.weights = weights;
    struct layout *old = plan(&request, NULL), *layout, *other;
    ck_assert_int_eq(extend(job.tensors, 3, old, was, NULL, &layout), CAIRN_OK);
    const uint64_t full = bytes_on(&job, old, 2);
    ck_assert_uint_eq(bytes_on(&job, layout, 2), full); // above the level of the others
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t s = 0; s < 4; s++) {
        if (s == 2) continue;
        const uint64_t bytes = bytes_on(&job, layout, s);
        least = bytes < least ? bytes : least;
        most = bytes > most ? bytes : most;
    }
    ck_assert_uint_lt(most - least, full / 100);
    // The order of the list does not matter.
    struct layout_tensor swapped[3] = { job.tensors[2], job.tensors[0], job.tensors[1] };
    const uint32_t swapped_was[3] = { CAIRN_TENSOR_NEW, 0, CAIRN_TENSOR_NEW };
    ck_assert_int_eq(extend(swapped, 3, old, swapped_was, NULL, &other), CAIRN_OK);
    ck_assert_mem_eq(layout->hash, other->hash, sizeof layout->hash);
    layout_close(other);
    layout_close(layout);
    layout_close(old);
    job_close(&job);
}

TEST(a_hole_gets_nothing)
{
    struct job job = job_open(2);
    const uint32_t was[2] = { 0, CAIRN_TENSOR_NEW };
    job_set(&job, 0, 0, matrix_of(1000, 1000));
    job_set(&job, 1, 1, matrix_of(3000, 1000));
    struct job before = { job.tensors, 1 };
    struct plan_request request = ask(&before, 4);
    request.weights = (const uint32_t[]) { 1, 0, 1, 0 };
    struct layout *old = plan(&request, NULL), *layout = NULL;
    const uint32_t holes[4] = { 1, 0, 1, 1 }, all[4] = { 0, 0, 0, 0 };
    ck_assert_int_eq(extend(job.tensors, 2, old, was, holes, &layout), CAIRN_OK);
    ck_assert_uint_eq(bytes_on(&job, layout, 1), 0);
    ck_assert_uint_gt(bytes_on(&job, layout, 3), 0);
    layout_close(layout);
    ck_assert_int_eq(extend(job.tensors, 2, old, was, all, &layout), CAIRN_ERR_INVALID);
    layout_close(old);
    job_close(&job);
}

TEST(a_tensor_of_another_shape_is_refused)
{
    struct job job = job_open(1);
    struct layout *layout;
    const uint32_t was = 0, beyond = 7;
    job_set(&job, 0, 0, matrix_of(400, 1000));
    const struct plan_request request = ask(&job, 2);
    struct layout *old = plan(&request, NULL);
    job.tensors[0].shape = matrix_of(800, 1000);
    ck_assert_int_eq(extend(job.tensors, 1, old, &was, NULL, &layout), CAIRN_ERR_INVALID);
    ck_assert_int_eq(extend(job.tensors, 1, old, &beyond, NULL, &layout), CAIRN_ERR_INVALID);
    layout_close(old);
    job_close(&job);
}

SUITE(60);
