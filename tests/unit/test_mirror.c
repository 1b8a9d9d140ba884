/* When a standby takes the place of the shard that it mirrors, and what waits for it. */
#include <check.h>

#include "server/core/standing.h"
#include "tests/support/suite.h"

static const struct {
    const char *what;
    struct mirror_view view;
    enum mirror_verdict verdict;
} cases[] = {
    { "both are there, and in step",
      { .is_stored = true, .takes_part = true, .has_standby = true, .has_owner = true },
      CAIRN_MIRROR_STAYS },
    { "the standby is being filled",
      { .takes_part = true, .has_standby = true, .has_owner = true },
      CAIRN_MIRROR_STAYS },
    { "the standby is lost",
      { .is_stored = true, .takes_part = true, .has_owner = true },
      CAIRN_MIRROR_ENDS },
    { "a new coordinator does not know what the standby has",
      { .is_stored = true, .has_standby = true, .has_owner = true },
      CAIRN_MIRROR_ENDS },
    { "the owner is lost while the standby is being filled",
      { .takes_part = true, .has_standby = true, .away_ms = 9, .patience_ms = 5 },
      CAIRN_MIRROR_ENDS },
    { "the owner may come back",
      { .is_stored = true,
        .takes_part = true,
        .has_standby = true,
        .away_ms = 4,
        .patience_ms = 5 },
      CAIRN_MIRROR_STAYS },
    { "the owner is lost",
      { .is_stored = true,
        .takes_part = true,
        .has_standby = true,
        .away_ms = 5,
        .patience_ms = 5 },
      CAIRN_MIRROR_TAKES },
    { "the owner came back without its part",
      { .is_stored = true,
        .takes_part = true,
        .has_standby = true,
        .owner_is_empty = true,
        .patience_ms = 5 },
      CAIRN_MIRROR_TAKES },
    { "the owner and the coordinator are lost",
      { .is_stored = true, .has_standby = true, .away_ms = 5, .patience_ms = 5 },
      CAIRN_MIRROR_TAKES },
    { "the owner is lost, and the standby is away",
      { .is_stored = true, .away_ms = 9, .patience_ms = 5 },
      CAIRN_MIRROR_STAYS },
};

TEST_EACH(a_standby_takes_the_place_only_when_it_is_in_step, 0, sizeof cases / sizeof *cases)
{
    ck_assert_msg(mirror_judge(&cases[_i].view) == cases[_i].verdict, "%s", cases[_i].what);
}

TEST(no_report_of_the_owner_counts_before_the_standbys)
{
    const struct mirror_view alone = { .has_owner = true };
    const struct mirror_view stored = { .is_stored = true, .has_owner = true };
    const struct mirror_view filled = { .takes_part = true, .has_owner = true };
    const struct mirror_report now = { 3, 7 }, before = { 3, 6 }, older = { 2, 7 }, none = { 0, 0 };
    ck_assert(mirror_passes(&alone, now, none));
    ck_assert(!mirror_passes(&stored, now, none));
    ck_assert(!mirror_passes(&stored, now, before));
    ck_assert(!mirror_passes(&stored, now, older));
    ck_assert(!mirror_passes(&filled, now, before));
    ck_assert(mirror_passes(&stored, now, now));
    ck_assert(mirror_passes(&filled, now, now));
}

SUITE(30);
