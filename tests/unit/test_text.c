/* What is text, where it is not, and what is made of the rest. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/text.h"
#include "proto/wire/wire.h"
#include "tests/support/suite.h"

static const char *const texts[] = {
    "a",
    "w0 of rank 3, ~",
    "\xc2\xa0",           // U+00A0, the first behind the control characters
    "\xdf\xbf",           // U+07FF
    "\xe0\xa0\x80",       // U+0800
    "\xed\x9f\xbf",       // U+D7FF, the last before the surrogates
    "\xee\x80\x80",       // U+E000, the first behind them
    "\xef\xbf\xbf",       // U+FFFF
    "\xf0\x90\x80\x80",   // U+10000
    "x\xf4\x8f\xbf\xbfy", // U+10FFFF
    ("Gr\xc3\xb6\xc3\x9f"
     "e \xe6\xa2\xaf"),
};

TEST_EACH(text_is_text_and_is_left_alone, 0, sizeof texts / sizeof *texts)
{
    char copy[64];
    ck_assert(text_ok(texts[_i], strlen(texts[_i])));
    snprintf(copy, sizeof copy, "%s", texts[_i]);
    text_mend(copy, "");
    ck_assert_str_eq(copy, texts[_i]);
}

static const struct {
    const char *text, *says, *mended;
} faults[] = {
    { "", "it is empty", "" },
    { "a\n", "U+000A at byte 1", "a?" },
    { "\x01", "U+0001 at byte 0", "?" },
    { "\x1f", "U+001F at byte 0", "?" },
    { "\x7f", "U+007F at byte 0", "?" },
    { "\xc3\xb6\xc2\x80", "U+0080 at byte 2", "\xc3\xb6??" },
    { "\xc2\x9f", "U+009F at byte 0", "??" },
    { "a\x80", "0x80 at 1 is no UTF-8", "a?" }, // goes on with nothing
    { "\xbf", "0xbf at 0", "?" },
    { "\xc0\x80", "0xc0 at 0", "??" },           // overlong: U+0000
    { "\xc1\xbf", "0xc1 at 0", "??" },           // overlong: U+007F
    { "\xe0\x9f\xbf", "0xe0 at 0", "???" },      // overlong: U+07FF
    { "\xf0\x8f\xbf\xbf", "0xf0 at 0", "????" }, // overlong: U+FFFF
    { "\xed\xa0\x80", "0xed at 0", "???" },      // U+D800
    { "\xed\xbf\xbf", "0xed at 0", "???" },      // U+DFFF
    { "\xf4\x90\x80\x80", "0xf4 at 0", "????" }, // U+110000
    { "\xf5\x80\x80\x80", "0xf5 at 0", "????" },
    { "\xff", "0xff at 0", "?" },
    { "ab\xc3", "0xc3 at 2", "ab?" }, // cut
    { "\xe6\xa2", "0xe6 at 0", "??" },
    { "\xf0\x9f\x98", "0xf0 at 0", "???" },
    { "\xe6(\xaf", "0xe6 at 0", "?(?" },
    { "\xf0\x9f\x98 ", "0xf0 at 0", "??? " },
};

TEST_EACH(what_is_none_is_named_with_its_place_and_mended, 0, sizeof faults / sizeof *faults)
{
    struct sentence why = { "" };
    char copy[64];
    ck_assert(!text_ok(faults[_i].text, 63));
    ck_assert_int_eq(text_check("it", faults[_i].text, 63, &why), CAIRN_ERR_INVALID);
    ck_assert_msg(strstr(why.text, faults[_i].says) != NULL, "\"%s\" lacks \"%s\"", why.text,
                  faults[_i].says);
    ck_assert_ptr_nonnull(strstr(why.text, "1 to 63 bytes of UTF-8 without control characters"));
    snprintf(copy, sizeof copy, "%s", faults[_i].text);
    text_mend(copy, "");
    ck_assert_str_eq(copy, faults[_i].mended);
    ck_assert(copy[0] == '\0' || text_ok(copy, 63));
}

TEST(the_limit_is_in_bytes)
{
    struct sentence why = { "" };
    ck_assert(text_ok("\xc3\xb6\xc3\xb6", 4));
    ck_assert_int_eq(text_check("it", "\xc3\xb6\xc3\xb6", 3, &why), CAIRN_ERR_INVALID);
    ck_assert_str_eq(why.text,
                     "it is longer than allowed: 1 to 3 bytes of UTF-8 without control characters");
    ck_assert(!text_ok(NULL, 3));
}

/* As `cairn` does with every answer: in a table an escape is a command to the terminal, and a JSON writer
 * refuses what is no UTF-8. */
TEST(every_string_of_a_message_is_mended)
{
    char cluster[] = "c\xff", one[] = "w\x1b", two[] = "two\nlines", name[] = "j\xc3";
    char *frozen[] = { one, two };
    Cairn__JobStatus job = CAIRN__JOB_STATUS__INIT, *jobs[] = { &job };
    Cairn__JobList list = CAIRN__JOB_LIST__INIT;
    Cairn__ClusterStatus status = CAIRN__CLUSTER_STATUS__INIT;
    status.cluster = cluster;
    job.name = name;
    job.frozen_tensors = frozen;
    job.n_frozen_tensors = 2;
    list.jobs = jobs;
    list.n_jobs = 1;
    message_mend(&status.base);
    ck_assert_str_eq(cluster, "c?");
    message_mend(&list.base);
    ck_assert_str_eq(name, "j?");
    ck_assert_str_eq(one, "w?");
    ck_assert_str_eq(two, "two\nlines");
}

SUITE(30);
