/* --since: durations and times as people write them. */
#include <inttypes.h>
#include <check.h>

#include "client/ctl/ctl.h"
#include "tests/support/suite.h"

#define NOW 1700000000000u /* 2023-11-14T22:13:20Z */

static const struct {
    const char *text;
    uint64_t unix_ms; /* 0: refused */
} cases[] = {
    { "2h", NOW - 7200000 },
    { "1.5d", NOW - 129600000 },
    { "90s", NOW - 90000 },
    { "15m", NOW - 900000 },
    { "250ms", NOW - 250 },
    { "2023-11-14T22:13:20Z", NOW },
    { "2023-11-14T22:13:20.250z", NOW + 250 },
    { "2023-11-15T00:13:20+02:00", NOW },
    { "2023-11-14T17:43:20-04:30", NOW },
    { "2h ago", 0 },
    { "h", 0 },
    { "2", 0 },
    { "-2h", 0 },
    { "nan", 0 },
    { "", 0 },
    { "2023-11-14", 0 },
    { "2023-11-14T22:13:20", 0 },
    { "2023-11-14T22:13:20+25:00", 0 },
    { "2023-11-14T22:13:20Zulu", 0 },
    { "1960-01-01T00:00:00Z", 0 },
};

static void judge(int i)
{
    uint64_t unix_ms = 0;
    ck_assert_msg(ctl_since(cases[i].text, NOW, &unix_ms) == (cases[i].unix_ms != 0), "%s",
                  cases[i].text);
    ck_assert_msg(unix_ms == cases[i].unix_ms, "%s: %" PRIu64, cases[i].text, unix_ms);
}

TEST(a_duration_is_before_now_and_a_time_is_itself)
{
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) judge(i);
}

TEST(before_the_beginning_of_time_is_its_beginning)
{
    uint64_t unix_ms = 1;
    ck_assert(ctl_since("99999999d", NOW, &unix_ms));
    ck_assert_uint_eq(unix_ms, 0);
}

SUITE(30, NULL, NULL);
