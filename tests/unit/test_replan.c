/* Re-plans against the oracle of plan_oracle.h. Figures are printed: bytes moved against the bound,
 * balance against the fresh table's. */
#include <inttypes.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/plan_oracle.h"
#include "tests/support/suite.h"

#define SEEDS 200

/* --- re-plans ------------------------------------------------------------------------------------ */

struct replan_figures {
    double moved_over_bound, furthest_quanta, beyond_fresh;
    unsigned count, afresh;
};

static void check_replan(const struct plan_request *request, struct replan_figures *figures)
{
    struct plan_report report;
    struct layout *layout = plan(request, &report);
    const struct oracle *o = count_all(request, layout);
    report_is_true(&report, o);
    ck_assert_uint_eq(report.moved_bytes_bound, o->bound);
    ck_assert_uint_eq(layout->version, request->held->version + 1);
    // More only where it would lie in too many pieces.
    ck_assert_msg(o->moved <= o->bound || report.afresh_count > 0, "moved %" PRIu64 " of %" PRIu64,
                  o->moved, o->bound);
    figures->afresh += report.afresh_count > 0;
    const double quanta = quanta_off(&report);
    if (o->bound > 0 && report.afresh_count == 0 &&
        (double)o->moved / (double)o->bound > figures->moved_over_bound)
        figures->moved_over_bound = (double)o->moved / (double)o->bound;
    if (quanta > figures->furthest_quanta) figures->furthest_quanta = quanta;
    figures->count++;
    layout_close(layout);

    struct plan_request compact = *request;
    compact.free = CAIRN_FREE_ALL;
    struct plan_report fresh;
    layout_close(plan(&compact, &fresh));
    const double fresh_quanta = quanta_off(&fresh);
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

TEST(a_re_plan_moves_no_more_than_the_bound_whatever_changes)
{
    struct replan_figures figures = { 0 };
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        random_state = seed;
        struct job job = random_job(seed % 4 == 0 ? 2000000 : 300000);
        struct plan_request request = ask(&job, (uint32_t)(1 + random_below(20)));
        struct layout *layout = plan(&request, NULL);
        const uint32_t old_count = request.shard_count;
        request.held = layout;
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
        layout_close(layout);
        job_close(&job);
    }
    printf("re-plan, %u random changes of random jobs: moved/bound at most %.4f, furthest %.2f "
           "quanta, "
           "at most %.2f further than the fresh table; %u kept less, for fewer pieces\n",
           figures.count, figures.moved_over_bound, figures.furthest_quanta, figures.beyond_fresh,
           figures.afresh);
    ck_assert_uint_lt(figures.afresh, figures.count / 20);
}

TEST(growing_shrinking_and_reweighing_a_transformer_stays_level)
{
    const uint32_t steps[] = { 3, 5, 8, 9, 16, 15, 64, 63, 65, 100, 40, 1, 7 };
    struct job job = transformer(12, 768, 50257);
    struct plan_request request = ask(&job, 2);
    struct layout *layout = plan(&request, NULL);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        const uint32_t before = request.shard_count;
        request.held = layout;
        request.shard_count = steps[i];
        struct plan_report report;
        struct layout *next = plan(&request, &report);
        report_is_true(&report, count_all(&request, next));
        const double quanta = quanta_off(&report);
        printf("re-plan, %3u -> %3u shards: moved/bound %.5f, heaviest/mean %.5f, furthest %.2f "
               "quanta, "
               "unit spread %u, %.0f %% of possible, %zu extents (fresh: %" PRIu64 ")\n",
               before, steps[i], (double)report.moved_bytes / (double)report.moved_bytes_bound,
               report.heaviest_over_mean, quanta, report.unit_spread_max,
               100 * report.unit_spread_of_possible, next->extent_count, report.pieces_fresh);
        if (report.afresh_count == 0)
            ck_assert_uint_le(report.moved_bytes, report.moved_bytes_bound);
        ck_assert_uint_le(report.pieces, CAIRN_PLAN_PIECES_MOST * report.pieces_fresh);
        ck_assert_uint_le(report.files, CAIRN_PLAN_PIECES_MOST * report.files_fresh);
        layout_close(layout);
        layout = next;
    }
    layout_close(layout);
    job_close(&job);
}

TEST(compact_gives_exactly_the_fresh_table)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        random_state = seed;
        struct job job = random_job(300000);
        struct plan_request request = ask(&job, (uint32_t)(1 + random_below(20)));
        struct layout *first = plan(&request, NULL);
        request.shard_count = (uint32_t)(1 + random_below(20));
        struct layout *fresh = plan(&request, NULL);
        request.held = first;
        struct layout *kept = plan(&request, NULL);
        request.held = kept;
        request.free = CAIRN_FREE_ALL;
        struct layout *compact = plan(&request, NULL);
        ck_assert_mem_eq(compact->hash, fresh->hash, sizeof fresh->hash);
        ck_assert_uint_eq(compact->extent_count, fresh->extent_count);
        ck_assert_uint_eq(compact->version, 3);
        layout_close(first);
        layout_close(fresh);
        layout_close(kept);
        layout_close(compact);
        job_close(&job);
    }
}

TEST(nothing_moves_when_nothing_changes)
{
    struct job job = transformer(4, 512, 1000);
    struct plan_request request = ask(&job, 6);
    struct layout *layout = plan(&request, NULL);
    request.held = layout;
    struct plan_report report;
    struct layout *same = plan(&request, &report);
    ck_assert_uint_le(report.moved_bytes, report.moved_bytes_bound);
    ck_assert_uint_le(report.moved_bytes, 6 * report.quantum_bytes_max);
    printf("re-plan, nothing changed: moved %" PRIu64 " of %" PRIu64 " bytes\n", report.moved_bytes,
           report.total_bytes);
    layout_close(same);
    layout_close(layout);
    job_close(&job);
}

SUITE(60);
