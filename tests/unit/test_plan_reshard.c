/* Re-shardings against the oracle of plan_oracle.h, slice by slice. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan.h"
#include "tests/support/plan_oracle.h"
#include "tests/support/suite.h"

#define SEEDS      60
#define CHANGES    6
#define SHARDS_MAX 64 /* numbers, holes among them */

/* A job's shards through a history: numbers only grow, holes stay. */
struct history {
    struct job job;
    struct layout *layout;
    uint32_t shard_count, present; /* numbers; of those, not drained */
    uint8_t gone[SHARDS_MAX];
    uint32_t quarters[SHARDS_MAX]; /* weights in quarters */
    double weights[SHARDS_MAX];
    double worst;            /* moved over the least */
    unsigned slices, afresh; /* afresh: re-shardings that moved more, for fewer pieces */
};

static struct reshard_request reshard_of(const struct history *h)
{
    struct reshard_request request = { .plan = ask(&h->job, h->shard_count),
                                       .weights = h->weights };
    request.plan.held = h->layout;
    return request;
}

static struct slice_request slice_of(const struct history *h, const struct layout *target)
{
    return (struct slice_request) { .tensors = h->job.tensors,
                                    .tensor_count = h->job.tensor_count,
                                    .current = h->layout,
                                    .target = target,
                                    .chunk_leaves = 1 };
}

static struct layout *slice(const struct slice_request *request, uint64_t *moved)
{
    struct layout *next = NULL;
    ck_assert_int_eq(plan_slice(request, &next, moved), CAIRN_OK);
    return next;
}

static void replace(struct history *h, struct layout *layout)
{
    layout_close(h->layout);
    h->layout = layout;
}

static struct history begin(uint64_t seed)
{
    struct history h = { .worst = 0 };
    random_state = seed;
    h.job = random_job(seed % 4 == 0 ? 2000000 : 200000);
    h.shard_count = h.present = (uint32_t)(1 + random_below(8));
    struct plan_request request = ask(&h.job, h.shard_count);
    h.layout = plan(&request, NULL);
    return h;
}

static void end(struct history *h)
{
    layout_close(h->layout);
    job_close(&h->job);
}

/* 1 to 8 shards from 1 to 8 others: some leave, some come, some weigh more. */
static void change(struct history *h)
{
    for (uint32_t s = 0; s < h->shard_count; s++)
        if (!h->gone[s] && h->present > 1 && random_below(4) == 0) {
            h->gone[s] = 1;
            h->present--;
        }
    while (h->present < 8 && random_below(2) == 0) {
        h->shard_count++;
        h->present++;
    }
    for (uint32_t s = 0; s < h->shard_count; s++) {
        h->quarters[s] = h->gone[s] ? 0
                                    : (uint32_t)(random_below(3) == 0 ? 1 + random_below(8) : 4);
        h->weights[s] = h->quarters[s] / 4.0;
    }
    if (h->shard_count == h->layout->shard_count) return;
    const uint64_t version = h->layout->version;
    const size_t extent_count = h->layout->extent_count;
    h->layout = widened(&h->job, h->layout, h->shard_count);
    ck_assert_uint_eq(h->layout->shard_count, h->shard_count);
    ck_assert_uint_eq(h->layout->version, version + 1);
    ck_assert_uint_eq(h->layout->extent_count, extent_count);
}

/* What it says of the target is what the oracle counts quantum by quantum. */
static void judge_target(struct history *h, const struct layout *target,
                         const struct reshard_report *report)
{
    struct plan_request request = ask(&h->job, h->shard_count);
    request.held = h->layout;
    request.weights = h->quarters;
    const struct oracle *o = count_all(&request, target);
    uint64_t by_pair = 0;
    for (size_t p = 0; p < report->pair_count; p++) {
        by_pair += report->pairs[p].bytes;
        ck_assert_uint_ne(report->pairs[p].from, report->pairs[p].to);
    }
    ck_assert_uint_eq(report->plan.total_bytes, o->total);
    ck_assert_uint_eq(report->plan.moved_bytes, o->moved);
    ck_assert_uint_eq(by_pair, o->moved);
    const uint64_t off = report->plan.moved_bytes_bound > o->bound
                             ? report->plan.moved_bytes_bound - o->bound
                             : o->bound - report->plan.moved_bytes_bound;
    ck_assert_uint_le(off, SHARDS_MAX); // the weights are rounded anew
    if (report->plan.afresh_count == 0)
        ck_assert_double_le((double)o->moved, 1.05 * (double)report->plan.moved_bytes_bound);
    h->afresh += report->plan.afresh_count > 0;
    for (uint32_t s = 0; s < h->shard_count; s++)
        if (h->gone[s]) ck_assert_uint_eq(o->loads[s], 0);
    if (report->plan.moved_bytes_bound > 0 && report->plan.afresh_count == 0) {
        const double ratio = (double)o->moved / (double)report->plan.moved_bytes_bound;
        if (ratio > h->worst) h->worst = ratio;
    }
    // Balance: as a fresh table's, or one quantum off, give or take another.
    const double quanta = o->heaviest_quantum == 0
                              ? 0
                              : (double)o->off_share / (double)o->heaviest_quantum;
    request.free = CAIRN_FREE_ALL;
    struct plan_report fresh;
    layout_close(plan(&request, &fresh));
    ck_assert_double_le(quanta, 1.001 + (quanta_off(&fresh) > 1 ? quanta_off(&fresh) : 1));
}

/* No extent of `next` that has something which its shard had before reaches over the edge of one of
 * `before`: what stays is not joined with what comes, nor with what else stays. */
static void nothing_straddles(const struct layout *before, const struct layout *next)
{
    unsigned wrong = 0;
    for (size_t e = 0; e < next->extent_count; e++) {
        const struct extent *x = &next->extents[e];
        const uint64_t end = x->first_quantum + x->quantum_count;
        for (uint64_t q = x->first_quantum; q < end;) {
            const struct extent *in = layout_find(
                before, x->tensor, quantum_first_leaf(&next->geometry[x->tensor], q));
            const uint64_t in_end = in->first_quantum + in->quantum_count;
            wrong += in->shard == x->shard && (q > x->first_quantum || end > in_end);
            q = in_end;
        }
    }
    ck_assert_uint_eq(wrong, 0);
}

static uint64_t moved_between(const struct history *h, const struct layout *target)
{
    const struct slice_request request = slice_of(h, target);
    struct slice_left left;
    ck_assert_int_eq(plan_slices_left(&request, &left), CAIRN_OK);
    return left.bytes;
}

/* What each shard gives and takes, counted quantum by quantum. */
static void judge_limits(const struct history *h, const struct layout *next, const uint64_t *limits)
{
    uint64_t given[SHARDS_MAX] = { 0 }, taken[SHARDS_MAX] = { 0 }, heaviest = 0;
    for (uint32_t t = 0; t < h->job.tensor_count; t++) {
        const struct geometry *g = &next->geometry[t];
        for (uint64_t q = 0; q < g->quantum_count; q++) {
            const uint64_t leaf = quantum_first_leaf(g, q);
            const uint32_t from = layout_find(h->layout, t, leaf)->shard;
            const uint32_t to = layout_find(next, t, leaf)->shard;
            const uint64_t bytes = (quantum_first_elem(g, q + 1) - quantum_first_elem(g, q)) *
                                   h->job.tensors[t].elem_bytes;
            if (bytes > heaviest) heaviest = bytes;
            if (from == to) continue;
            given[from] += bytes;
            taken[to] += bytes;
        }
    }
    for (uint32_t s = 0; s < h->shard_count; s++) {
        const uint64_t most = limits[s] > heaviest ? limits[s] : heaviest;
        // A pair that had not moved anything may have moved a quantum over the other end's limit.
        ck_assert_uint_le(given[s], most + heaviest);
        ck_assert_uint_le(taken[s], most + heaviest);
    }
}

/* A slice can be taken back: the owners before it, in extents that lie in its own. */
static void take_back(const struct history *h, struct layout *next)
{
    struct history there = *h;
    there.layout = next;
    struct slice_request request = slice_of(&there, h->layout);
    struct layout *back = slice(&request, NULL);
    nothing_straddles(next, back);
    nothing_straddles(h->layout, back); // where who gave it has it still
    ck_assert_uint_eq(back->version, h->layout->version + 2);
    ck_assert_uint_eq(moved_between(h, back), 0);
    layout_close(back);
}

static void run_slices(struct history *h, const struct layout *target, uint64_t to_move)
{
    uint64_t limits[SHARDS_MAX], left = to_move;
    for (uint32_t s = 0; s < h->shard_count; s++) limits[s] = to_move / 6 + random_below(50000);
    struct slice_request request = slice_of(h, target);
    request.limit_bytes = limits;
    request.chunk_leaves = (uint32_t)(1 + random_below(8));
    struct slice_left first;
    ck_assert_int_eq(plan_slices_left(&request, &first), CAIRN_OK);
    ck_assert_uint_eq(first.bytes, to_move);
    unsigned count = 0;
    for (;; count++) {
        uint64_t moved = 0;
        request.current = h->layout;
        struct layout *next = slice(&request, &moved);
        if (next == NULL) break;
        ck_assert_uint_gt(moved, 0);
        ck_assert_uint_eq(next->version, h->layout->version + 1);
        nothing_straddles(h->layout, next);
        judge_limits(h, next, limits);
        take_back(h, next);
        replace(h, next);
        // Each step leads to the target: no quantum moves twice.
        ck_assert_uint_eq(moved_between(h, target), left - moved);
        left -= moved;
        ck_assert_uint_lt(count, 10000);
    }
    ck_assert_uint_eq(left, 0);
    ck_assert_uint_ge(count + to_move / 2, first.slices);
    h->slices += count;
}

TEST(every_history_of_shards_moves_the_least_and_ends_in_the_target)
{
    double worst = 0;
    unsigned slices = 0, afresh = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct history h = begin(seed);
        for (int c = 0; c < CHANGES; c++) {
            change(&h);
            const struct reshard_request request = reshard_of(&h);
            struct reshard_report report;
            struct sentence why;
            struct layout *target = NULL, *again = NULL;
            ck_assert_int_eq(plan_reshard(&request, &target, &report, &why), CAIRN_OK);
            ck_assert_int_eq(plan_reshard(&request, &again, NULL, NULL), CAIRN_OK);
            ck_assert_mem_eq(target->hash, again->hash, sizeof target->hash);
            judge_target(&h, target, &report);
            run_slices(&h, target, report.plan.moved_bytes);
            reshard_report_release(&report);
            layout_close(again);
            layout_close(target);
        }
        if (h.worst > worst) worst = h.worst;
        slices += h.slices;
        afresh += h.afresh;
        end(&h);
    }
    printf("%d histories of %d changes, 1 to 8 shards: moved / least %.4f at most, %u slices; %u "
           "moved "
           "more, for fewer pieces\n",
           SEEDS, CHANGES, worst, slices, afresh);
    ck_assert_uint_lt(afresh, SEEDS * CHANGES / 10);
}

TEST(what_comes_in_one_slice_is_one_extent_whoever_gives_it)
{
    struct history h = { .job = job_open(1), .shard_count = 3 };
    job_set(&h.job, 0, 0, matrix_of(900, 1024)); // a quantum is a row
    struct plan_request request = ask(&h.job, 3);
    request.weights = (const uint32_t[]) { 1, 1, 0 };
    h.layout = plan(&request, NULL);
    request.weights = (const uint32_t[]) { 0, 0, 1 };
    struct layout *target = plan(&request, NULL);
    const struct slice_request slicing = slice_of(&h, target);
    ck_assert_uint_eq(h.layout->extent_count, 2);
    struct layout *next = slice(&slicing, NULL);
    ck_assert_uint_eq(next->extent_count, 1);
    take_back(&h, next);
    layout_close(next);
    layout_close(target);
    end(&h);
}

/* --- slices --------------------------------------------------------------------------------------- */

TEST(a_run_is_cut_on_the_grid_of_its_givers_chunks)
{
    struct history h = { .job = job_open(1), .shard_count = 2 };
    job_set(&h.job, 0, 0, matrix_of(1000, 4096)); // a quantum is a row, and a leaf
    struct plan_request request = ask(&h.job, 2);
    request.weights = (const uint32_t[]) { 1, 0 };
    h.layout = plan(&request, NULL);
    request.weights = (const uint32_t[]) { 0, 1 };
    struct layout *target = plan(&request, NULL);
    struct slice_request slicing = slice_of(&h, target);
    slicing.chunk_leaves = 64;
    slicing.limit_bytes = (const uint64_t[]) { 100 * 4096 * 4, 100 * 4096 * 4 };
    // 1000 = 15 chunks of 64 and one of 40: the tail of 100 quanta begins at 900, the next edge is 960.
    struct layout *next = slice(&slicing, NULL);
    ck_assert_uint_eq(next->extent_count, 2);
    ck_assert_uint_eq(next->extents[1].first_quantum, 960);
    ck_assert_uint_eq(next->extents[1].shard, 1);
    replace(&h, next);
    slicing.current = h.layout;
    next = slice(&slicing, NULL);
    ck_assert_uint_eq(next->extent_count, 3); // not joined: it came later, to another place
    ck_assert_uint_eq(next->extents[1].first_quantum, 896);
    layout_close(next);

    // No edge within reach: a cut where a quantum ends.
    slicing.limit_bytes = (const uint64_t[]) { 10 * 4096 * 4, 10 * 4096 * 4 };
    next = slice(&slicing, NULL);
    ck_assert_uint_eq(next->extents[1].first_quantum, 950);
    layout_close(next);
    slicing.limit_bytes = (const uint64_t[]) { 1, 1 };
    next = slice(&slicing, NULL);
    ck_assert_uint_eq(next->extents[1].first_quantum, 959); // one at least
    layout_close(next);
    layout_close(target);
    end(&h);
}

TEST(a_slice_between_layouts_of_other_tensors_is_refused)
{
    struct history h = begin(3);
    struct job other = transformer(1, 64, 100);
    const struct plan_request request = ask(&other, 2);
    struct layout *layout = plan(&request, NULL), *next = NULL;
    struct slice_request slicing = slice_of(&h, layout);
    ck_assert_int_eq(plan_slice(&slicing, &next, NULL), CAIRN_ERR_INVALID);
    slicing = slice_of(&h, h.layout);
    ck_assert_int_eq(plan_slice(&slicing, &next, NULL), CAIRN_OK);
    ck_assert_ptr_null(next); // nothing is left to move
    slicing.chunk_leaves = 0;
    ck_assert_int_eq(plan_slice(&slicing, &next, NULL), CAIRN_ERR_INVALID);
    struct plan_request narrower = ask(&h.job, 0);
    narrower.held = h.layout;
    narrower.free = CAIRN_FREE_NEW;
    ck_assert_int_eq(plan_make(&narrower, &next, NULL), CAIRN_ERR_INVALID);
    layout_close(layout);
    job_close(&other);
    end(&h);
}

/* --- targets -------------------------------------------------------------------------------------- */

/* 64 MiB on two shards, a third one at hand. */
static struct history two_of_three(void)
{
    struct history h = { .job = job_open(1), .shard_count = 3, .weights = { 1, 1, 1 } };
    job_set(&h.job, 0, 0, matrix_of(4096, 4096));
    const struct plan_request request = ask(&h.job, 2);
    h.layout = plan(&request, NULL);
    return h;
}

TEST(a_third_shard_takes_a_third_half_of_it_from_each)
{
    struct history h = two_of_three();
    const struct reshard_request request = reshard_of(&h);
    struct reshard_report report;
    struct layout *target = NULL;
    ck_assert_int_eq(plan_reshard(&request, &target, &report, NULL), CAIRN_OK);
    ck_assert_double_eq_tol(report.heaviest_before, 1.5, 0.001);
    ck_assert_double_eq_tol(report.heaviest_after, 1.0, 0.001);
    ck_assert_uint_eq(report.pair_count, 2);
    for (uint32_t p = 0; p < 2; p++) {
        ck_assert_uint_eq(report.pairs[p].from, p);
        ck_assert_uint_eq(report.pairs[p].to, 2);
        ck_assert_double_eq_tol((double)report.pairs[p].bytes, (64 << 20) / 6.0, 32768);
    }
    reshard_report_release(&report);
    layout_close(target);
    end(&h);
}

TEST(a_shard_gets_no_more_than_it_has_room_for)
{
    struct history h = two_of_three();
    struct reshard_request request = reshard_of(&h);
    const uint64_t small[] = { 0, 0, 8 << 20 };
    struct layout *target = NULL;
    struct reshard_report report;
    request.capacity_bytes = small;
    ck_assert_int_eq(plan_reshard(&request, &target, &report, NULL), CAIRN_OK);
    ck_assert_uint_le(report.plan.moved_bytes, 8 << 20);
    ck_assert_uint_ge(report.plan.moved_bytes, (8 << 20) - 5 * 16384);
    reshard_report_release(&report);
    layout_close(target);
    end(&h);
}

TEST(what_cannot_be_is_refused_with_the_shard_and_the_numbers)
{
    struct history h = two_of_three();
    const struct {
        double weights[3];
        uint64_t capacities[3];
        uint32_t shard_count;
        cairn_status status;
        const char *says;
    } table[] = {
        { { 1, NAN, 1 }, { 0 }, 3, CAIRN_ERR_INVALID, "the weight of shard b is nan" },
        { { 1, -1, 1 }, { 0 }, 3, CAIRN_ERR_INVALID, "the weight of shard b is -1" },
        { { 1, 1, INFINITY }, { 0 }, 3, CAIRN_ERR_INVALID, "the weight of shard c is inf" },
        { { 0, 0, 0 }, { 0 }, 3, CAIRN_ERR_INVALID, "no shard is left" },
        { { 1, 1, 1 }, { 0 }, 1, CAIRN_ERR_INVALID, "1 shards, but the job's table numbers 2" },
        { { 1, 1, 1 }, { 0 }, 0, CAIRN_ERR_INVALID, "0 shards" },
        { { 0, 0, 1 },
          { 0, 0, 9 << 20 },
          3,
          CAIRN_ERR_NO_MEMORY,
          "room for 9.0 MiB of the job's 64.0" },
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct reshard_request request = reshard_of(&h);
        const char *names[] = { "a", "b", "c" };
        struct layout *target = NULL;
        struct sentence why = { "" };
        request.names = names;
        request.weights = table[i].weights;
        request.capacity_bytes = table[i].capacities;
        request.plan.shard_count = table[i].shard_count;
        ck_assert_int_eq(plan_reshard(&request, &target, NULL, &why), table[i].status);
        ck_assert_msg(strstr(why.text, table[i].says) != NULL, "%zu: %s", i, why.text);
        ck_assert_ptr_null(target);
    }
    end(&h);
}

/* Room enough together, but a unit that may use one shard only does not fit any. */
TEST(a_shard_that_would_own_more_than_it_has_room_for_is_named)
{
    struct history h = two_of_three();
    struct plan_request fresh = ask(&h.job, 3);
    fresh.weights = (const uint32_t[]) { 1, 0, 0 };
    layout_close(h.layout);
    h.layout = plan(&fresh, NULL);
    struct reshard_request request = reshard_of(&h);
    request.weights = (const double[]) { 0, 1, 1 };
    request.capacity_bytes = (const uint64_t[]) { 0, 40 << 20, 40 << 20 };
    struct layout *target = NULL;
    struct sentence why = { "" };
    ck_assert_int_eq(plan_reshard(&request, &target, NULL, &why), CAIRN_OK);
    layout_close(target);
    target = NULL;
    request.plan.spread = 1;
    ck_assert_int_eq(plan_reshard(&request, &target, NULL, &why), CAIRN_ERR_NO_MEMORY);
    ck_assert_ptr_nonnull(
        strstr(why.text, "would own 64.0 MiB of the job and has room for 40.0 MiB"));
    ck_assert_ptr_null(target);
    end(&h);
}

/* 7 B parameters, 16 bytes each, in slices of 64 MiB. */
TEST(a_big_job_is_sliced_in_little_time)
{
    struct history h = { .job = transformer(32, 4096, 32000), .shard_count = 5 };
    for (uint32_t t = 0; t < h.job.tensor_count; t++) h.job.tensors[t].elem_bytes = 16;
    const struct plan_request fresh = ask(&h.job, 4);
    h.layout = plan(&fresh, NULL);
    struct reshard_request request = reshard_of(&h);
    request.weights = NULL;
    struct layout *target = NULL;
    struct reshard_report report;
    ck_assert_int_eq(plan_reshard(&request, &target, &report, NULL), CAIRN_OK);
    uint64_t limits[5];
    for (int s = 0; s < 5; s++) limits[s] = 512 << 20;
    struct slice_request slicing = slice_of(&h, target);
    slicing.limit_bytes = limits;
    slicing.chunk_leaves = 64;
    unsigned count = 0;
    for (struct layout *next; (next = slice(&slicing, NULL)) != NULL; count++) {
        replace(&h, next);
        slicing.current = next;
    }
    printf("7 B from 4 to 5 shards: %.2f GiB, moved / least %.4f, %u slices, %zu extents\n",
           (double)report.plan.moved_bytes / (1 << 30),
           (double)report.plan.moved_bytes / (double)report.plan.moved_bytes_bound, count,
           h.layout->extent_count);
    ck_assert_uint_lt(h.layout->extent_count, 20 * h.job.tensor_count);
    reshard_report_release(&report);
    layout_close(target);
    end(&h);
}

SUITE(60);
