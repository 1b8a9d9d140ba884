/* Which snapshots a job's present state descends from, after it went back several times. */
#include <check.h>
#include <stdlib.h>

#include "server/coordinator/job.h"
#include "server/coordinator/snapshot.h"
#include "tests/support/suite.h"

#define V(...) ((struct cairn_version) { __VA_ARGS__ })

static struct coord_job line_of; /* only its origin and its turns are used */

static void begin(struct origin origin)
{
    line_of.origin = origin;
    line_of.turns = (struct turns) { 0 };
}

/* As amend.c does. */
static void go_back(uint64_t generation, struct cairn_version to)
{
    struct turns turns;
    line_turn(&line_of.origin, &line_of.turns, to, &turns);
    line_of.turns = turns;
    line_of.origin = (struct origin) { generation, to };
}

static struct found_snapshot saved(struct cairn_version version, struct origin origin)
{
    return (struct found_snapshot) { .place.version = version, .manifest.origin = origin };
}

/* Says of each of the `count` snapshots, the newest first, whether it is on the line: "+-". */
static void expect_line(struct found_snapshot *list, size_t count, const char *expected)
{
    struct coord_found found = { .list = list, .count = count };
    find_line(&found, &line_of.origin, &line_of.turns);
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(list[i].is_left == (expected[i] == '-'), "snapshot %zu of %s", i, expected);
}

TEST(a_generation_without_a_snapshot_hides_no_turn)
{
    struct found_snapshot list[] = { saved(V(1, 5), (struct origin) { 0 }),
                                     saved(V(1, 2), (struct origin) { 0 }) };
    begin((struct origin) { 0 });
    go_back(2, V(1, 3));
    expect_line(list, 2, "-+");
    go_back(3, V(2, 4));
    expect_line(list, 2, "-+");
    const struct origin one = line_as_one(&line_of.origin, &line_of.turns);
    begin(one); // what a manifest says
    expect_line(list, 2, "-+");
}

TEST(snapshots_of_the_generations_between_stay_on_the_line)
{
    struct found_snapshot list[] = { saved(V(6, 9), (struct origin) { 6, { 1, 4 } }),
                                     saved(V(4, 7), (struct origin) { 4, { 1, 4 } }),
                                     saved(V(4, 6), (struct origin) { 4, { 1, 4 } }),
                                     saved(V(1, 5), (struct origin) { 0 }),
                                     saved(V(1, 4), (struct origin) { 0 }) };
    begin((struct origin) { 4, { 1, 4 } }); // restored from 1.4
    go_back(5, V(4, 6));
    go_back(6, V(5, 8));
    ck_assert_uint_eq(line_of.turns.count, 2);
    expect_line(list, 5, "+-+-+");
    go_back(7, V(4, 6)); // behind a turn, which then says nothing any more
    ck_assert_uint_eq(line_of.turns.count, 1);
    expect_line(list, 5, "--+-+");
}

/* Restored from 2.6, whose job had gone back to 1.5. */
static void restore_given_up(bool is_known)
{
    const struct origin manifest = { 2, { 1, 5 } };
    struct turns turns;
    line_restore(is_known ? &line_of.origin : NULL, &line_of.turns, V(2, 6), &manifest, &turns);
    line_of.turns = turns;
    line_of.origin = (struct origin) { 4, { 2, 6 } };
}

TEST(a_snapshot_from_which_a_job_was_restored_may_be_removed)
{
    struct found_snapshot list[] = { saved(V(1, 8), (struct origin) { 0 }),
                                     saved(V(1, 4), (struct origin) { 0 }) };
    for (int is_known = 0; is_known < 2; is_known++) {
        begin((struct origin) { 0 });
        go_back(2, V(1, 5));
        go_back(3, V(1, 3)); // which gives 2.6 up
        restore_given_up(is_known != 0);
        expect_line(list, 2, "-+");
    }
}

TEST(more_turns_than_are_kept_leave_out_more_and_never_less)
{
    struct found_snapshot list[64];
    size_t count = 0;
    begin((struct origin) { 0 });
    for (uint64_t g = 2; g < 30; g++) go_back(g, V(g - 1, 10 * g));
    ck_assert_uint_eq(line_of.turns.count, CAIRN_TURNS_MAX);
    for (uint64_t g = 28; g >= 1;
         g--) { // in each generation one that was given up, and one that was not
        list[count++] = saved(V(g, 10 * g + 11), (struct origin) { g, { g - 1, 10 * g } });
        list[count++] = saved(V(g, 10 * g + 10), (struct origin) { g, { g - 1, 10 * g } });
    }
    struct coord_found found = { .list = list, .count = count };
    find_line(&found, &line_of.origin, &line_of.turns);
    for (size_t i = 0; i < count; i += 2) {
        const uint64_t g = list[i].place.version.generation;
        ck_assert(list[i].is_left);
        ck_assert_int_eq(list[i + 1].is_left, g > 1 && g < 29 - CAIRN_TURNS_MAX);
    }
}

SUITE(10);
