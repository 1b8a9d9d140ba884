/* Which snapshots stay: by each rule, by what no rule overrules, and when the clock is wrong. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "server/coordinator/snapshot/retention.h"
#include "tests/support/suite.h"

#define NOW 1795230000

/* "p1000v": of step 1000, an hour older than the one before it, of 100 bytes; p periodic, a asked for, o of
 * another job; behind the step v verified, t tagged, l latest, d damaged, f from the future. */
static size_t parse(const char *text, struct cairn_retention_item items[16])
{
    size_t count = 0;
    char copy[256], *rest = copy;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL; count++) {
        struct cairn_retention_item *item = &items[count];
        char *flags;
        *item = (struct cairn_retention_item) { .created_unix_s = NOW - 3600 * (uint64_t)count,
                                                .step = strtoull(word + 1, &flags, 10),
                                                .bytes = 100,
                                                .is_periodic = word[0] == 'p',
                                                .is_others = word[0] == 'o' };
        item->is_verified = strchr(flags, 'v') != NULL;
        item->is_tagged = strchr(flags, 't') != NULL;
        item->is_latest = strchr(flags, 'l') != NULL;
        item->is_damaged = strchr(flags, 'd') != NULL;
        if (strchr(flags, 'f') != NULL) item->created_unix_s = NOW + 3600;
    }
    return count;
}

static const struct {
    const char *name;
    struct cairn_retention_rules rules;
    const char *snapshots; /* the newest first */
    const char *gone;      /* steps */
} cases[] = {
    { "no rule", { 0 }, "p5v p4v p3v", "" },
    { "the newest two", { .keep_last = 2 }, "p5v p4v p3v p2v", "3 2" },
    { "asked ones do not count", { .keep_last = 2 }, "p5v a4v p3v p2v", "2" },
    { "and never go", { .keep_last = 1 }, "p5v a4v a3 p2v", "2" },
    { "a tag", { .keep_last = 1 }, "p5v p4vt p3v", "3" },
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
    { "the clock went back", { .keep_last = 1, .max_bytes = 1 }, "p5vf p4v p3v", "" },
    { "another job's clock is its own", { .keep_last = 1 }, "o9f p5v p4v", "4" },
};

TEST_EACH(each_rule_and_what_no_rule_overrules, 0, sizeof cases / sizeof cases[0])
{
    struct cairn_retention_item items[16];
    char gone[64] = "";
    const size_t count = parse(cases[_i].snapshots, items);
    cairn_retention_judge(&cases[_i].rules, NOW, items, count);
    for (size_t i = 0; i < count; i++) {
        ck_assert_str_ne(cairn_retention_reason(items[i].fate), "?");
        if (!cairn_retention_goes(items[i].fate)) continue;
        snprintf(gone + strlen(gone), sizeof gone - strlen(gone), "%s%llu",
                 gone[0] != '\0' ? " " : "", (unsigned long long)items[i].step);
    }
    ck_assert_msg(strcmp(gone, cases[_i].gone) == 0, "%s: %s, not %s", cases[_i].name, gone,
                  cases[_i].gone);
}

/* Any rules, any snapshots: what no rule overrules holds. */
TEST(whatever_the_rules_are_a_newer_verified_one_stays_for_each_that_goes)
{
    uint64_t seed = 7;
    for (int round = 0; round < 20000; round++) {
        struct cairn_retention_item items[12];
        uint64_t bits[14];
        for (size_t i = 0; i < 14; i++)
            bits[i] = seed = seed * 6364136223846793005u + 1442695040888963407u;
        const struct cairn_retention_rules rules = { bits[12] >> 61, (bits[12] >> 50) % 5,
                                                     (bits[13] >> 40) % 9000,
                                                     (bits[13] >> 52) % 900 };
        for (size_t i = 0; i < 12; i++) {
            const uint64_t b = bits[i] >> 40;
            items[i] = (struct cairn_retention_item) {
                NOW - 600 * i, 20 - i,      b % 200,   b % 5 > 0,  b % 11 == 0,
                b % 13 == 0,   b % 17 == 0, b % 3 > 0, b % 7 == 0, CAIRN_RETENTION_GOES
            };
        }
        cairn_retention_judge(&rules, NOW, items, 12);
        bool stands = false;
        for (size_t i = 0; i < 12; i++) {
            const struct cairn_retention_item *item = &items[i];
            if (cairn_retention_goes(item->fate))
                ck_assert(stands && item->is_periodic && !item->is_others && !item->is_tagged &&
                          !item->is_latest);
            else if (item->is_verified && !item->is_damaged && !item->is_others)
                stands = true;
        }
    }
}

SUITE(10);
