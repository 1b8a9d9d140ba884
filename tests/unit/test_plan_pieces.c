/* In how many pieces a job lies after 200 changes of its shards: never more than twice those of a fresh
 * layout of the same shards, nor twice its files; what moves for that is little beside what must move. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan.h"
#include "tests/support/plan_oracle.h"
#include "tests/support/suite.h"

enum { CHANGES = 200, ORACLE_EACH = 40, SHARDS_MAX = 8, NUMBERS_MAX = SHARDS_MAX + CHANGES };

/* A job whose shards come and go: numbers only grow, holes stay. */
struct story {
    struct job job;
    struct layout *layout;
    uint32_t numbers, present, shards; /* shards: the most that are present */
    double weights[NUMBERS_MAX];
    uint32_t counts[NUMBERS_MAX]; /* the same, for the planner */
    uint64_t total;
    uint64_t moved, least, moved_at_once;
    unsigned gathered;             /* re-shardings that moved more than the least */
    double pieces, files, extents; /* the most, in those of a fresh layout */
};

/* --- jobs ---------------------------------------------------------------------------------------- */

static struct job many_small(void)
{
    struct job job = job_open(400);
    for (uint32_t t = 0; t < 400; t++) job_set(&job, t, t / 8, vector_of(200 + t * 37 % 1800));
    return job;
}

static struct job few_large(void)
{
    struct job job = job_open(4);
    for (uint32_t t = 0; t < 4; t++) job_set(&job, t, t, matrix_of(1500 + t * 300, 512));
    return job;
}

static struct job one_of_all(void)
{
    struct job job = job_open(1);
    job_set(&job, 0, 0, matrix_of(3000, 700));
    return job;
}

static struct job mixed(void)
{
    struct job job = job_open(160);
    for (uint32_t t = 0; t < 160; t++)
        job_set(&job, t, t / 10,
                t % 40 == 0  ? matrix_of(2000, 300)
                : t % 5 == 0 ? matrix_of(64, 300)
                             : vector_of(300));
    return job;
}

static struct job blocks(void)
{
    return transformer(6, 192, 2000);
}

static const struct {
    const char *name;
    struct job (*make)(void);
    unsigned most; /* that moves in all, in what must move */
} models[] = { { "many small tensors", many_small, 1 },
               { "few large ones", few_large, 2 },
               { "one", one_of_all, 3 },
               { "large and small ones", mixed, 2 },
               { "a transformer", blocks, 2 } };

/* --- what a layout is in ------------------------------------------------------------------------- */

struct told {
    uint64_t pieces, files;
};

/* By the owner of each extent. */
static struct told count(const struct layout *layout)
{
    uint64_t here[NUMBERS_MAX], most[NUMBERS_MAX] = { 0 };
    uint32_t of[NUMBERS_MAX]; // the tensor that is counted in `here`
    struct told told = { 0, 0 };
    memset(of, 0xff, sizeof of);
    for (size_t e = 0; e < layout->extent_count; e++) {
        const struct extent *x = &layout->extents[e];
        const int goes_on = e > 0 && x[-1].tensor == x->tensor && x[-1].shard == x->shard;
        if (goes_on) continue;
        told.pieces++;
        if (of[x->shard] != x->tensor) here[x->shard] = 0;
        of[x->shard] = x->tensor;
        if (++here[x->shard] > most[x->shard]) most[x->shard]++;
    }
    for (uint32_t s = 0; s < layout->shard_count; s++) told.files += most[s];
    return told;
}

/* Of the heaviest unit that is on one shard, since it is too small to be cut. */
static uint64_t heaviest_uncut(const struct job *job)
{
    uint64_t heaviest = 0, bytes = 0;
    for (uint32_t t = 0; t < job->tensor_count; t++) {
        if (t > 0 && strcmp(job->tensors[t - 1].unit, job->tensors[t].unit) != 0) bytes = 0;
        bytes += geometry_of(&job->tensors[t].shape).elems * job->tensors[t].elem_bytes;
        if (bytes > heaviest && bytes <= CAIRN_SPREAD_PIECE_BYTES) heaviest = bytes;
    }
    return heaviest;
}

static struct plan_request asked(const struct story *s)
{
    struct plan_request request = ask(&s->job, s->numbers);
    request.weights = s->counts;
    return request;
}

/* --- changes ------------------------------------------------------------------------------------- */

static void weigh(struct story *s, uint32_t shard, uint32_t weight)
{
    s->weights[shard] = weight;
    s->counts[shard] = weight;
}

static void join(struct story *s)
{
    weigh(s, s->numbers++, 1);
    s->present++;
    s->layout = widened(&s->job, s->layout, s->numbers);
}

static void drain(struct story *s)
{
    uint32_t shard;
    do shard = (uint32_t)random_below(s->numbers);
    while (s->weights[shard] == 0);
    weigh(s, shard, 0);
    s->present--;
}

/* In turn one of them is drained and comes back; or any that there is leaves, or one joins. */
static void change(struct story *s, int turn, bool in_turn)
{
    const bool leaves = in_turn
                            ? turn % 2 == 0
                            : s->present == s->shards || (s->present > 1 && random_below(2) == 0);
    if (leaves)
        drain(s);
    else
        join(s);
}

/* --- one re-sharding ------------------------------------------------------------------------------ */

static void weigh_loads(const struct story *s, const struct layout *layout, uint64_t *loads)
{
    memset(loads, 0, NUMBERS_MAX * sizeof *loads);
    for (size_t e = 0; e < layout->extent_count; e++) {
        const struct extent *x = &layout->extents[e];
        const struct geometry *g = &layout->geometry[x->tensor];
        loads[x->shard] += (quantum_first_elem(g, x->first_quantum + x->quantum_count) -
                            quantum_first_elem(g, x->first_quantum)) *
                           s->job.tensors[x->tensor].elem_bytes;
    }
}

/* In slices: none has a shard own more than before it, or than in the end and a slice. */
static void move(struct story *s, const struct layout *target, uint64_t quantum)
{
    static uint64_t before[NUMBERS_MAX], then[NUMBERS_MAX], end[NUMBERS_MAX], limits[NUMBERS_MAX];
    const uint64_t limit = s->total / 10;
    struct slice_request request = { .tensors = s->job.tensors,
                                     .tensor_count = s->job.tensor_count,
                                     .target = target,
                                     .limit_bytes = limits,
                                     .chunk_leaves = 2 };
    for (uint32_t n = 0; n < s->numbers; n++) limits[n] = limit;
    weigh_loads(s, target, end);
    for (unsigned slices = 0;; slices++) {
        struct layout *next = NULL;
        request.current = s->layout;
        ck_assert_int_eq(plan_slice(&request, &next, NULL), CAIRN_OK);
        if (next == NULL) return;
        weigh_loads(s, s->layout, before);
        weigh_loads(s, next, then);
        uint32_t full = 0;
        for (uint32_t n = 0; n < s->numbers; n++)
            full += then[n] > before[n] && then[n] > end[n] + limit + quantum;
        ck_assert_uint_eq(full, 0);
        ck_assert_uint_lt(slices, 200);
        layout_close(s->layout);
        s->layout = next;
    }
}

static void most(double *most, uint64_t count, uint64_t fresh)
{
    const double ratio = (double)count / (double)fresh;
    if (ratio > *most) *most = ratio;
}

/* Bytes that a shard is off its share. */
static double furthest(const struct story *s, const struct layout *layout)
{
    static uint64_t loads[NUMBERS_MAX];
    double furthest = 0;
    weigh_loads(s, layout, loads);
    for (uint32_t n = 0; n < s->numbers; n++) {
        const double share = (double)s->total * s->weights[n] / s->present;
        const double off = share > (double)loads[n] ? share - (double)loads[n]
                                                    : (double)loads[n] - share;
        if (off > furthest) furthest = off;
    }
    return furthest;
}

static void judge(struct story *s, int turn, const struct layout *target,
                  const struct reshard_report *report)
{
    struct plan_request request = asked(s);
    struct plan_report of_fresh;
    struct layout *fresh = plan(&request, &of_fresh);
    const struct told now = count(target), usual = count(fresh);
    ck_assert_uint_eq(report->plan.pieces, now.pieces);
    ck_assert_uint_eq(report->plan.files, now.files);
    ck_assert_uint_eq(report->plan.pieces_fresh, usual.pieces);
    ck_assert_uint_eq(report->plan.files_fresh, usual.files);
    ck_assert_uint_le(now.pieces, 2 * usual.pieces);
    ck_assert_uint_le(now.files, 2 * usual.files);
    if (turn % ORACLE_EACH == 0) {
        request.held = s->layout;
        const struct oracle *o = count_all(&request, target); // each quantum has one owner
        ck_assert_uint_eq(o->moved, report->plan.moved_bytes);
        ck_assert_uint_le(o->bound, report->plan.moved_bytes_bound + NUMBERS_MAX);
    }
    if (report->plan.afresh_count == 0)
        ck_assert_uint_le(report->plan.moved_bytes, report->plan.moved_bytes_bound);
    const double quanta = 1 + (quanta_off(&of_fresh) > 1 ? quanta_off(&of_fresh) : 1);
    const double uncut = (double)heaviest_uncut(&s->job);
    double allowed = quanta * (double)of_fresh.quantum_bytes_max;
    if (uncut > allowed) allowed = uncut;
    ck_assert_double_le(furthest(s, target), allowed + NUMBERS_MAX);
    s->gathered += report->plan.afresh_count > 0;
    s->moved += report->plan.moved_bytes;
    s->least += report->plan.moved_bytes_bound;
    if (report->plan.moved_bytes > s->moved_at_once) s->moved_at_once = report->plan.moved_bytes;
    move(s, target, of_fresh.quantum_bytes_max);
    ck_assert_uint_eq(layout_pieces(s->layout), now.pieces);
    most(&s->pieces, now.pieces, usual.pieces);
    most(&s->files, now.files, usual.files);
    most(&s->extents, s->layout->extent_count, usual.pieces);
    layout_close(fresh);
}

static struct reshard_request reshard_of(const struct story *s)
{
    struct reshard_request request = { .plan = ask(&s->job, s->numbers), .weights = s->weights };
    request.plan.held = s->layout;
    return request;
}

static void reshard(struct story *s, int turn)
{
    const struct reshard_request request = reshard_of(s);
    struct reshard_report report;
    struct layout *target = NULL;
    ck_assert_int_eq(plan_reshard(&request, &target, &report, NULL), CAIRN_OK);
    judge(s, turn, target, &report);
    reshard_report_release(&report);
    layout_close(target);
}

static struct story begin(int model, uint32_t shards)
{
    struct story s = { .job = models[model].make(), .numbers = shards };
    struct plan_report report;
    s.present = s.shards = shards;
    for (uint32_t n = 0; n < s.numbers; n++) weigh(&s, n, 1);
    const struct plan_request request = asked(&s);
    s.layout = plan(&request, &report);
    s.total = report.total_bytes;
    return s;
}

static void end(struct story *s)
{
    layout_close(s->layout);
    job_close(&s->job);
}

static void tell(int model, bool in_turn)
{
    static const uint32_t shards[] = { 2, 4, 8 };
    random_state = (uint64_t)model;
    for (size_t i = 0; i < sizeof shards / sizeof *shards; i++) {
        struct story s = begin(model, shards[i]);
        const size_t before = s.layout->extent_count;
        for (int turn = 0; turn < CHANGES; turn++) {
            change(&s, turn, in_turn);
            reshard(&s, turn);
        }
        printf(
            "%-20s up to %u shards, %s: %zu pieces, then %zu; at most %.2f of a fresh layout's, "
            "files "
            "%.2f, extents %.2f; moved / least %.3f over all, %u of %d moved more, at most %.0f %% "
            "of the job at once\n",
            models[model].name, s.shards, in_turn ? "in turn  " : "at random", before,
            layout_pieces(s.layout), s.pieces, s.files, s.extents,
            (double)s.moved / (double)s.least, s.gathered, CHANGES,
            100.0 * (double)s.moved_at_once / (double)s.total);
        ck_assert_uint_le(s.moved, models[model].most * s.least + s.least / 100);
        end(&s);
    }
}

TEST_EACH(two_hundred_drains_and_returns_keep_a_job_in_few_pieces, 0,
          sizeof models / sizeof *models)
{
    tell(_i, true);
}

TEST_EACH(two_hundred_random_changes_keep_a_job_in_few_pieces, 0, sizeof models / sizeof *models)
{
    tell(_i, false);
}

/* --- where it is the least all the same ----------------------------------------------------------- */

static void moves_the_least(const struct reshard_request *request)
{
    struct reshard_report report;
    struct layout *target = NULL;
    ck_assert_int_eq(plan_reshard(request, &target, &report, NULL), CAIRN_OK);
    ck_assert_uint_eq(report.plan.afresh_count, 0);
    ck_assert_uint_le(report.plan.moved_bytes, report.plan.moved_bytes_bound);
    reshard_report_release(&report);
    layout_close(target);
}

/* Eight shards with one tensor come and go until more is to move than the least. */
static struct story until_more_moves(void)
{
    struct story s = begin(2, SHARDS_MAX);
    random_state = 1;
    for (int turn = 0; turn < CHANGES; turn++) {
        struct reshard_report report;
        struct layout *target = NULL;
        change(&s, turn, true);
        const struct reshard_request request = reshard_of(&s);
        ck_assert_int_eq(plan_reshard(&request, &target, &report, NULL), CAIRN_OK);
        const bool is_more = report.plan.afresh_count > 0;
        reshard_report_release(&report);
        layout_close(target);
        if (is_more) return s;
        reshard(&s, turn);
    }
    ck_abort_msg("nothing moved more than the least");
}

TEST(a_plan_that_is_to_move_the_least_does_so_whatever_the_pieces)
{
    struct story s = until_more_moves();
    struct reshard_request request = reshard_of(&s);
    request.plan.free = CAIRN_FREE_LEAST;
    moves_the_least(&request);
    end(&s);
}

TEST(a_plan_moves_the_least_where_a_shard_has_no_room_for_a_slice_on_the_way)
{
    struct story s = until_more_moves();
    struct reshard_request request = reshard_of(&s);
    uint64_t capacities[NUMBERS_MAX];
    for (uint32_t n = 0; n < s.numbers; n++) capacities[n] = s.total / 5; // a share, and a little
    request.capacity_bytes = capacities;
    request.slice_bytes = s.total / 10;
    moves_the_least(&request);
    end(&s);
}

SUITE(60);
