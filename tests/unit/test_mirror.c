/* When a standby takes the place of the shard that it mirrors, and what waits for it. */
#include <check.h>

#include "server/core/mirror.h"
#include "tests/support/suite.h"

#define IN_STEP .stage = CAIRN_MIRROR_IN_STEP, .is_stored = true

static const struct {
    const char *what;
    struct mirror_state state;
    struct mirror_view view;
    enum mirror_verdict verdict;
} cases[] = {
    { "both are there, and in step",
      { IN_STEP },
      { .has_standby = true, .has_owner = true },
      CAIRN_MIRROR_STAYS },
    { "the standby is being filled",
      { .stage = CAIRN_MIRROR_FILLING },
      { .has_standby = true, .has_owner = true },
      CAIRN_MIRROR_STAYS },
    { "the standby is lost", { IN_STEP }, { .has_owner = true }, CAIRN_MIRROR_ENDS },
    { "a new coordinator does not know what the standby has",
      { .is_stored = true },
      { .has_standby = true, .has_owner = true },
      CAIRN_MIRROR_ENDS },
    { "the owner is lost while the standby is being filled",
      { .stage = CAIRN_MIRROR_FILLING },
      { .has_standby = true, .away_ms = 9, .patience_ms = 5 },
      CAIRN_MIRROR_ENDS },
    { "the owner may come back",
      { IN_STEP },
      { .has_standby = true, .away_ms = 4, .patience_ms = 5 },
      CAIRN_MIRROR_STAYS },
    { "the owner is lost",
      { IN_STEP },
      { .has_standby = true, .away_ms = 5, .patience_ms = 5 },
      CAIRN_MIRROR_TAKES },
    { "the owner came back without its part",
      { IN_STEP },
      { .has_standby = true, .owner_is_empty = true, .patience_ms = 5 },
      CAIRN_MIRROR_TAKES },
    { "the owner and the coordinator are lost",
      { .is_stored = true },
      { .has_standby = true, .away_ms = 5, .patience_ms = 5 },
      CAIRN_MIRROR_TAKES },
    { "the owner is lost, and the standby is away",
      { .is_stored = true },
      { .away_ms = 9, .patience_ms = 5 },
      CAIRN_MIRROR_STAYS },
    { "the other standby is getting the place",
      { IN_STEP },
      { .has_standby = true, .owner_comes = true },
      CAIRN_MIRROR_STAYS },
    { "the other standby got the place, and is lost",
      { IN_STEP },
      { .has_standby = true, .away_ms = 5, .patience_ms = 5 },
      CAIRN_MIRROR_TAKES },
};

TEST_EACH(a_standby_takes_the_place_only_when_it_is_in_step, 0, sizeof cases / sizeof *cases)
{
    ck_assert_msg(mirror_judge(&cases[_i].state, &cases[_i].view) == cases[_i].verdict, "%s",
                  cases[_i].what);
}

TEST(no_report_of_the_owner_counts_before_the_standbys)
{
    struct mirror_state alone = { .stage = CAIRN_MIRROR_NONE }, stored = { .is_stored = true },
                        filled = { .stage = CAIRN_MIRROR_FILLING };
    const struct mirror_report now = { 3, 7 }, before = { 3, 6 }, older = { 2, 7 };
    ck_assert(mirror_passes(&alone, CAIRN_MIRROR_REDUCED, now));
    ck_assert(!mirror_passes(&stored, CAIRN_MIRROR_REDUCED, now));
    mirror_hears(&stored, CAIRN_MIRROR_REDUCED, before);
    ck_assert(!mirror_passes(&stored, CAIRN_MIRROR_REDUCED, now));
    mirror_hears(&stored, CAIRN_MIRROR_REDUCED, older);
    ck_assert(!mirror_passes(&stored, CAIRN_MIRROR_REDUCED, now));
    mirror_hears(&stored, CAIRN_MIRROR_REDUCED, now);
    ck_assert(mirror_passes(&stored, CAIRN_MIRROR_REDUCED, now));
    ck_assert(!mirror_passes(&stored, CAIRN_MIRROR_PUBLISHED, now));
    mirror_hears(&filled, CAIRN_MIRROR_ANSWER, before);
    ck_assert(!mirror_passes(&filled, CAIRN_MIRROR_ANSWER, now));
}

static const struct mirror_view both = { .fits = true,
                                         .has_standby = true,
                                         .has_owner = true,
                                         .may_mirror = true,
                                         .may_take = true,
                                         .patience_ms = 5 };

static void fill(struct mirror_state *mirror)
{
    *mirror = (struct mirror_state) { .stage = CAIRN_MIRROR_NONE };
    mirror_on(mirror, CAIRN_MIRROR_ON_BEGIN, &both);
    ck_assert_int_eq(mirror_on(mirror, CAIRN_MIRROR_ON_MADE, &both), CAIRN_MIRROR_DO_PAIR);
    mirror_on(mirror, CAIRN_MIRROR_ON_PAIRED, &both);
    ck_assert_int_eq(mirror_on(mirror, CAIRN_MIRROR_ON_OPENS, &both), CAIRN_MIRROR_DO_JOIN);
    ck_assert_int_eq(mirror_on(mirror, CAIRN_MIRROR_ON_FILLED, &both), CAIRN_MIRROR_DO_STORE);
}

TEST(the_store_is_told_before_the_owner_goes_on_alone)
{
    struct mirror_state mirror;
    struct mirror_view lost = both;
    lost.has_standby = false;
    fill(&mirror);
    mirror_on(&mirror, CAIRN_MIRROR_ON_SAVED, &both);
    ck_assert_int_eq(mirror.stage, CAIRN_MIRROR_IN_STEP);
    ck_assert_int_eq(mirror_on(&mirror, CAIRN_MIRROR_ON_STANDBY_LOST, &lost),
                     CAIRN_MIRROR_DO_UNSTORE);
    ck_assert(!mirror_passes(&mirror, CAIRN_MIRROR_REDUCED, (struct mirror_report) { 1, 2 }));
    mirror_on(&mirror, CAIRN_MIRROR_ON_NOT_SAVED, &lost);
    ck_assert(!mirror_passes(&mirror, CAIRN_MIRROR_REDUCED, (struct mirror_report) { 1, 2 }));
    ck_assert_int_eq(mirror_on(&mirror, CAIRN_MIRROR_ON_TICK, &lost), CAIRN_MIRROR_DO_UNSTORE);
    ck_assert_int_eq(mirror_on(&mirror, CAIRN_MIRROR_ON_SAVED, &lost), CAIRN_MIRROR_DO_GO_ALONE);
    ck_assert(mirror_passes(&mirror, CAIRN_MIRROR_REDUCED, (struct mirror_report) { 1, 2 }));
}

TEST(a_row_that_is_being_written_counts_as_there)
{
    struct mirror_state mirror;
    fill(&mirror);
    ck_assert_int_eq(mirror.stage, CAIRN_MIRROR_STORING);
    ck_assert_int_eq(mirror_on(&mirror, CAIRN_MIRROR_ON_END, &both), CAIRN_MIRROR_DO_UNSTORE);
}

TEST(a_standby_that_is_filled_is_not_given_up_because_a_write_failed)
{
    struct mirror_state mirror;
    struct mirror_view alone = both;
    alone.has_owner = false;
    alone.away_ms = 9;
    fill(&mirror);
    ck_assert_int_eq(mirror_on(&mirror, CAIRN_MIRROR_ON_OWNER_LOST, &alone),
                     CAIRN_MIRROR_DO_NOTHING);
    ck_assert_int_eq(mirror_on(&mirror, CAIRN_MIRROR_ON_NOT_SAVED, &alone),
                     CAIRN_MIRROR_DO_NOTHING);
    ck_assert_int_eq(mirror_on(&mirror, CAIRN_MIRROR_ON_TICK, &alone), CAIRN_MIRROR_DO_TAKE);
    ck_assert(mirror_is_taking(&mirror));
    ck_assert_int_eq(mirror_on(&mirror, CAIRN_MIRROR_ON_END, &alone), CAIRN_MIRROR_DO_NOTHING);
    ck_assert_int_eq(mirror_on(&mirror, CAIRN_MIRROR_ON_NOT_SAVED, &alone),
                     CAIRN_MIRROR_DO_NOTHING);
    ck_assert_int_eq(mirror_on(&mirror, CAIRN_MIRROR_ON_TICK, &alone), CAIRN_MIRROR_DO_TAKE_AGAIN);
    ck_assert_int_eq(mirror_on(&mirror, CAIRN_MIRROR_ON_SAVED, &alone), CAIRN_MIRROR_DO_OWN);
}

/* An owner whose host has lost its power is missed when its lease ends. Until then its standby cannot fetch
 * the sums that it reported last. */
TEST(a_standby_is_not_late_because_its_owner_is_lost)
{
    ck_assert(!mirror_is_late(1000, 0, 1000));
    ck_assert(mirror_is_late(1001, 0, 1000));
    ck_assert(!mirror_is_late(1500, 900, 1000));
    ck_assert(!mirror_is_late(5000, UINT64_MAX / 2, 1000));
}

TEST(the_newer_one_of_two_decisions_counts)
{
    ck_assert(mirror_knows_more(8, 7));
    ck_assert(!mirror_knows_more(7, 7));
    ck_assert(!mirror_knows_more(6, 7));
}

/* The one of two standbys that did not take the place is in step with the one that did. */
TEST(a_standby_in_step_goes_on_with_the_next_owner)
{
    struct mirror_state mirror;
    struct mirror_view comes = both;
    comes.has_owner = false;
    comes.owner_comes = true;
    comes.patience_ms = 0;
    fill(&mirror);
    mirror_on(&mirror, CAIRN_MIRROR_ON_SAVED, &both);
    mirror_on(&mirror, CAIRN_MIRROR_ON_OWNER_LOST, &comes);
    ck_assert_int_eq(mirror_on(&mirror, CAIRN_MIRROR_ON_TICK, &comes), CAIRN_MIRROR_DO_NOTHING);
    ck_assert_int_eq(mirror_on(&mirror, CAIRN_MIRROR_ON_OWNER_BACK, &both), CAIRN_MIRROR_DO_PAIR);
    ck_assert_int_eq(mirror.stage, CAIRN_MIRROR_IN_STEP);
}

TEST(a_report_counts_when_all_standbys_have_reported_the_same)
{
    struct mirror_state one = { IN_STEP }, other = { IN_STEP }, none = { .is_stored = false };
    const struct mirror_state *const both_in_step[] = { &one, &other }, *const alone[] = { &one,
                                                                                           &none };
    const struct mirror_report now = { 3, 7 };
    ck_assert(!mirrors_pass(both_in_step, CAIRN_MIRROR_REDUCED, now));
    mirror_hears(&one, CAIRN_MIRROR_REDUCED, now);
    ck_assert(!mirrors_pass(both_in_step, CAIRN_MIRROR_REDUCED, now));
    ck_assert(mirrors_pass(alone, CAIRN_MIRROR_REDUCED, now));
    mirror_hears(&other, CAIRN_MIRROR_REDUCED, now);
    ck_assert(mirrors_pass(both_in_step, CAIRN_MIRROR_REDUCED, now));
}

static const struct {
    const char *what;
    uint64_t digests[3];
    int wrong;
} votes[] = {
    { "all are the same", { 5, 5, 5 }, -1 },
    { "the owner is alone", { 4, 5, 5 }, 0 },
    { "the first standby is", { 5, 4, 5 }, 1 },
    { "the second one is", { 5, 5, 4 }, 2 },
    { "each is alone", { 3, 4, 5 }, -1 },
    { "two copies do not tell", { 4, 5, 0 }, -1 },
    { "nor do two that are not owners", { 0, 4, 5 }, -1 },
    { "one alone is not wrong", { 4, 0, 0 }, -1 },
};

TEST_EACH(of_three_copies_the_one_that_is_unlike_the_others_is_wrong, 0,
          sizeof votes / sizeof *votes)
{
    ck_assert_msg(mirror_outvoted(votes[_i].digests, 3) == votes[_i].wrong, "%s", votes[_i].what);
}

SUITE(30);
