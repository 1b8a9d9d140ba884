/* Which snapshots stay: by each rule, by what no rule overrules, and when the clock is wrong. */
#include <inttypes.h>
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "server/coordinator/snapshot.h"
#include "tests/support/suite.h"

#define NOW       1795230000
#define DAY       86400
#define TEN_YEARS (3653L * DAY)

/* "p1000v": of step 1000, an hour older than the one before it, of 100 bytes; p periodic, a asked for, o of
 * another job; behind the step v verified, t tagged, l latest, d damaged, b the base of a log, g taken for
 * a log, x turned away from, f from the future, F from ten years ahead, B from ten years back. */
static size_t parse(const char *text, struct retention_item items[16])
{
    size_t count = 0;
    char copy[256], *rest = copy;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL; count++) {
        struct retention_item *item = &items[count];
        char *flags;
        *item = (struct retention_item) { .created_unix_s = NOW - 3600 * (uint64_t)count,
                                          .step = strtoull(word + 1, &flags, 10),
                                          .bytes = 100,
                                          .is_periodic = word[0] == 'p',
                                          .is_others = word[0] == 'o' };
        item->is_verified = strchr(flags, 'v') != NULL;
        item->is_tagged = strchr(flags, 't') != NULL;
        item->is_latest = strchr(flags, 'l') != NULL;
        item->is_damaged = strchr(flags, 'd') != NULL;
        item->is_left = strchr(flags, 'x') != NULL;
        item->is_base = strchr(flags, 'b') != NULL;
        item->is_for_log = strchr(flags, 'g') != NULL;
        if (strchr(flags, 'f') != NULL) item->created_unix_s = NOW + 3600;
        if (strchr(flags, 'F') != NULL) item->created_unix_s += TEN_YEARS;
        if (strchr(flags, 'B') != NULL) item->created_unix_s -= TEN_YEARS;
    }
    return count;
}

static const struct {
    const char *name;
    struct retention_rules rules;
    const char *snapshots; /* the newest first */
    const char *gone;      /* steps */
} cases[] = {
    { "no rule", { 0 }, "p5v p4v p3v", "" },
    { "the newest two", { .keep_last = 2 }, "p5v p4v p3v p2v", "3 2" },
    { "asked ones do not count", { .keep_last = 2 }, "p5v a4v p3v p2v", "2" },
    { "and never go", { .keep_last = 1 }, "p5v a4v a3 p2v", "2" },
    { "a tag", { .keep_last = 1 }, "p5v p4vt p3v", "3" },
    { "a log stands on it", { .keep_last = 1 }, "p5v p4vb p3v", "3" },
    { "and there it cannot be too much", { .max_bytes = 1 }, "p5v p4vb p3v", "3" },
    { "taken for a log that left it, without a rule", { 0 }, "p5vg p4vgb p3vg p2v p1vg", "3 1" },
    { "and such a one counts for no rule", { .keep_last = 2 }, "p5vg p4v p3v p2v", "2" },
    { "taken for a log, and asked for", { 0 }, "p5v a4vg p3vg", "3" },
    { "another job's", { .keep_last = 1 }, "p5v o4v o3 p2v", "2" },
    { "nothing verified", { .keep_last = 1 }, "p5 p4 p3", "" },
    { "only what is older than a verified one", { .keep_last = 1 }, "p5 p4 p3v p2v p1", "2 1" },
    { "another job's verifies nothing", { .keep_last = 1 }, "p5 o4v p3 p2", "" },
    { "the word latest", { .keep_last = 1 }, "p5v p4vl p3v", "3" },
    { "a damaged one does not count", { .keep_last = 2 }, "p5v p4d p3v p2v", "4 2" },
    { "of all verified ones damaged, none stands in", { .keep_last = 1 }, "p5vd p4d p3v p2v", "2" },
    { "every 1000",
      { .keep_every = 1000 },
      "p3500v p3000v p2500v p2000v p1500v p500v",
      "2500 500" },
    { "every 1000, by time",
      { .keep_every = 1000 },
      "p3401v p2902v p2313v p1804v p995v",
      "2902 995" },
    { "every 1000, a step twice", { .keep_every = 1000 }, "p2500v p2000v p2000v p1000v", "2000" },
    { "within two hours", { .keep_within_s = 7201 }, "p5v p4v p3v p2v p1v", "2 1" },
    { "any rule keeps",
      { .keep_last = 1, .keep_every = 1000, .keep_within_s = 3601 },
      "p2600v p2500v p2400v p2000v p1900v p1000v",
      "2400 1900" },
    { "at most 250 bytes", { .max_bytes = 250 }, "p5v p4v p3v p2v", "3 2" },
    { "but those for good",
      { .keep_every = 2, .keep_last = 9, .max_bytes = 250 },
      "p9v p5v p4v p3v p2v",
      "5 3" },
    { "but the last one", { .max_bytes = 1 }, "p5v p4v", "4" },
    { "with what was asked for", { .max_bytes = 250 }, "p5v p4v a3v a2v", "4" },
    { "another job's bytes are its own", { .max_bytes = 250 }, "p5v o4v o3v p2v", "" },
    { "too much, and nothing verified", { .max_bytes = 1 }, "p5 p4 p3", "" },
    { "too much, but not before one is verified", { .max_bytes = 1 }, "p5 p4v p3v", "3" },
    { "rules of number ask no clock", { .keep_last = 1, .max_bytes = 1 }, "p5vf p4v p3v", "4 3" },
    { "another job's clock is its own", { .keep_last = 1 }, "o9f p5v p4v", "4" },
    { "what it turned away from does not count",
      { .keep_last = 2 },
      "p3v p5vx p4vx p2v p1v",
      "4 1" },
    { "and goes with the others", { .keep_last = 2 }, "p7v p6v p5vx p2v", "5 2" },
    { "and stands for none", { .keep_last = 1 }, "p5vx p2v p1v", "1" },
};

/* Which go, and that each fate has words. */
static void list_gone(const struct retention_rules *rules, const struct retention_clock *clock,
                      const char *snapshots, char gone[64])
{
    struct retention_item items[16];
    const size_t count = parse(snapshots, items);
    gone[0] = '\0';
    retention_judge(rules, clock, items, count);
    for (size_t i = 0; i < count; i++) {
        ck_assert_str_ne(retention_reason(items[i].fate), "?");
        if (!retention_goes(items[i].fate)) continue;
        snprintf(gone + strlen(gone), 64 - strlen(gone), "%s%" PRIu64, gone[0] != '\0' ? " " : "",
                 items[i].step);
    }
}

TEST_EACH(each_rule_and_what_no_rule_overrules, 0, sizeof cases / sizeof cases[0])
{
    const struct retention_clock clock = { NOW, UINT64_MAX };
    char gone[64];
    list_gone(&cases[_i].rules, &clock, cases[_i].snapshots, gone);
    ck_assert_msg(strcmp(gone, cases[_i].gone) == 0, "%s: %s, not %s", cases[_i].name, gone,
                  cases[_i].gone);
}

static const struct {
    const char *name;
    struct retention_rules rules;
    const char *snapshots, *gone;
    int64_t ahead_s;  /* of the clock, now */
    uint64_t sound_s; /* since it jumped */
} clocks[] = {
    { "nor after ten years", { .keep_last = 2 }, "p5v p4v p3v", "3", TEN_YEARS, UINT64_MAX },
    { "nor before them",
      { .keep_last = 2, .keep_every = 4 },
      "p5v p4v p3v",
      "3",
      -TEN_YEARS,
      UINT64_MAX },
    { "a day ahead, just now", { .keep_within_s = 7201 }, "p5v p4v p3v", "", DAY, 1 },
    { "ten years ahead, just now", { .keep_within_s = 7201 }, "p5v p4v p3v", "", TEN_YEARS, 7200 },
    { "ten years that have passed",
      { .keep_within_s = 7201 },
      "p5v p4v p3v",
      "4 3",
      TEN_YEARS,
      UINT64_MAX },
    { "a jump that is old enough", { .keep_within_s = 7201 }, "p5v p4v p3v p2v", "2", 0, 7201 },
    { "ten years back, just now", { .keep_within_s = 7201 }, "p5v p4v p3v", "", -TEN_YEARS, 1 },
    { "taken ten years ahead: as the next newer one",
      { .keep_within_s = 7201 },
      "p6v p5v p4vF p3vF p2v",
      "2",
      0,
      UINT64_MAX },
    { "taken ten years back: not older than an older one",
      { .keep_within_s = 7201 },
      "p6v p5v p4vB p3v p2v",
      "3 2",
      0,
      UINT64_MAX },
    { "all from ten years ahead", { .keep_within_s = 1 }, "p6vF p5vF p4vF", "", 0, UINT64_MAX },
};

TEST_EACH(a_clock_that_jumps_removes_nothing, 0, sizeof clocks / sizeof clocks[0])
{
    const struct retention_clock clock = { (uint64_t)(NOW + clocks[_i].ahead_s),
                                           clocks[_i].sound_s };
    char gone[64];
    list_gone(&clocks[_i].rules, &clock, clocks[_i].snapshots, gone);
    ck_assert_msg(strcmp(gone, clocks[_i].gone) == 0, "%s: %s, not %s", clocks[_i].name, gone,
                  clocks[_i].gone);
}

/* Any rules, any snapshots: what no rule overrules holds. */
TEST(whatever_the_rules_are_a_newer_verified_one_stays_for_each_that_goes)
{
    uint64_t seed = 7;
    for (int round = 0; round < 20000; round++) {
        struct retention_item items[12];
        uint64_t bits[14];
        for (size_t i = 0; i < 14; i++)
            bits[i] = seed = seed * 6364136223846793005u + 1442695040888963407u;
        const struct retention_rules rules = { bits[12] >> 61, (bits[12] >> 50) % 5,
                                               (bits[13] >> 40) % 9000, (bits[13] >> 52) % 900 };
        for (size_t i = 0; i < 12; i++) {
            const uint64_t b = bits[i] >> 40;
            items[i] = (struct retention_item) {
                NOW - 600 * i,       20 - i,    b % 200,    b % 5 > 0, b % 11 == 0, b % 13 == 0,
                b % 17 == 0,         b % 3 > 0, b % 7 == 0, false,     false,       b % 19 == 0,
                CAIRN_RETENTION_GOES
            };
        }
        const struct retention_clock clock = { NOW, round % 3 == 0 ? 4000 : UINT64_MAX };
        retention_judge(&rules, &clock, items, 12);
        bool stands = false, any_stands = false;
        for (size_t i = 0; i < 12; i++) {
            const struct retention_item *item = &items[i];
            if (retention_goes(item->fate))
                ck_assert((item->is_left ? any_stands : stands) && item->is_periodic &&
                          !item->is_others && !item->is_tagged && !item->is_latest);
            else if (item->is_verified && !item->is_damaged && !item->is_others) {
                any_stands = true;
                stands = stands || !item->is_left;
            }
        }
    }
}

SUITE(10);
