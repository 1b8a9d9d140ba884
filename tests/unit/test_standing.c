/* Who a coordinator is to a shard, whether its store is an older copy, and what a rebuilt one begins with. */
#include <check.h>
#include <stdlib.h>

#include "server/core/round.h"
#include "server/core/standing.h"
#include "tests/support/suite.h"

static enum standing standing(uint64_t store, uint64_t incarnation, uint64_t process)
{
    const struct coordinator_id ours = { store, incarnation, process };
    const struct coordinator_id seen = { 7, 4, 100 };
    return standing_of(&ours, &seen);
}

TEST(only_the_same_store_and_no_older_coordinator_is_obeyed)
{
    const struct coordinator_id nothing = { 0, 9, 9 }, anyone = { 3, 1, 1 };
    ck_assert_int_eq(standing_of(&anyone, &nothing), CAIRN_STANDING_GOOD);
    ck_assert_int_eq(standing(7, 4, 100), CAIRN_STANDING_GOOD); // connected again
    ck_assert_int_eq(standing(7, 5, 101), CAIRN_STANDING_GOOD);
    ck_assert_int_eq(standing(8, 5, 101), CAIRN_STANDING_FOREIGN);
    ck_assert_int_eq(standing(7, 3, 100), CAIRN_STANDING_SUPERSEDED);
    ck_assert_int_eq(standing(7, 4, 101),
                     CAIRN_STANDING_SUPERSEDED); // a copy that was started, too
}

TEST(a_store_is_behind_in_whatever_it_has_less_of)
{
    const struct marks store = { 2, 5, 1, 4096 };
    struct marks seen = { 2, 5, 1, 4095 };
    ck_assert_ptr_null(marks_behind(&store, &seen));
    seen.round = 4096;
    ck_assert_str_eq(marks_behind(&store, &seen), "round");
    seen.revision = 2;
    ck_assert_str_eq(marks_behind(&store, &seen), "revision");
    seen.epoch = 6;
    ck_assert_str_eq(marks_behind(&store, &seen), "epoch");
    seen.generation = 3;
    ck_assert_str_eq(marks_behind(&store, &seen), "generation");
}

TEST(a_rebuilt_store_begins_above_what_any_shard_has_seen)
{
    const struct marks parts[] = { { 2, 9, 1, 100 }, { 3, 8, 2, 90 }, { 1, 10, 0, 120 } };
    struct marks all = { 0 };
    for (size_t i = 0; i < 3; i++) marks_add(&all, &parts[i]);
    marks_above(&all, CAIRN_ROUND_BLOCK);
    for (size_t i = 0; i < 3; i++) ck_assert_ptr_null(marks_behind(&all, &parts[i]));
    ck_assert_uint_eq(all.epoch, 10);
    ck_assert_uint_gt(all.round,
                      120 + CAIRN_ROUND_BLOCK - 1); // of a block that nobody heard the end of
}

SUITE(30);
