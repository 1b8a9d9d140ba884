/* How safe a job is, and what is refused. */
#include <check.h>
#include <string.h>

#include "server/core/safety.h"
#include "tests/support/suite.h"

#define HAS                                      \
    {                                            \
        .has = true, .may = true, .is_due = true \
    }
#define COMES                                          \
    {                                                  \
        .may = true, .is_due = true, .is_coming = true \
    }
#define NOTHING      \
    {                \
        .has = false \
    }
#define LOST                                                   \
    {                                                          \
        .is_due = true, .why = "the connection to it was lost" \
    }

/* The parts of two shards: process, peer, log. */
static const struct {
    const char *what;
    cairn_durability asked;
    struct safety_part parts[2];
    const char *has; /* what all have */
    uint32_t lacking;
    bool is_coming;
    const char *why;
} cases[] = {
    { "nothing is asked for, or offered",
      CAIRN_DURABILITY_DEFAULT,
      { { "a", { NOTHING, NOTHING, NOTHING } }, { "b", { NOTHING, NOTHING, NOTHING } } },
      "none",
      0,
      true,
      "" },
    { "nothing is asked for, and what is offered is there",
      CAIRN_DURABILITY_DEFAULT,
      { { "a", { HAS, HAS, NOTHING } }, { "b", { HAS, NOTHING, NOTHING } } },
      "process",
      0,
      true,
      "" },
    { "a standby was there before",
      CAIRN_DURABILITY_DEFAULT,
      { { "a", { HAS, LOST, NOTHING } }, { "b", { HAS, HAS, NOTHING } } },
      "process",
      1,
      false,
      "shard a is not mirrored: the connection to it was lost" },
    { "a keeper is not used for what is asked for explicitly",
      CAIRN_DURABILITY_PEER,
      { { "a", { NOTHING, HAS, NOTHING } }, { "b", { COMES, HAS, NOTHING } } },
      "peer",
      0,
      true,
      "" },
    { "both standbys are missing",
      CAIRN_DURABILITY_PEER,
      { { "a", { HAS, NOTHING, NOTHING } }, { "b", { HAS, NOTHING, NOTHING } } },
      "process",
      2,
      false,
      "shards a, b have no standby: " },
    { "a standby is being filled",
      CAIRN_DURABILITY_PEER,
      { { "a", { HAS, COMES, NOTHING } }, { "b", { HAS, HAS, NOTHING } } },
      "process",
      1,
      true,
      "shard a has no standby" },
    { "one is coming, the other is not",
      CAIRN_DURABILITY_PEER,
      { { "a", { HAS, COMES, NOTHING } }, { "b", { HAS, LOST, NOTHING } } },
      "process",
      2,
      false,
      "shard b is not mirrored: " },
    { "the log alone is asked for, and the loss of a standby is nothing to it",
      CAIRN_DURABILITY_LOG,
      { { "a", { NOTHING, LOST, HAS } }, { "b", { NOTHING, NOTHING, HAS } } },
      "log",
      0,
      true,
      "" },
    { "a log is missing",
      CAIRN_DURABILITY_LOG,
      { { "a", { HAS, NOTHING, HAS } }, { "b", { HAS, NOTHING, NOTHING } } },
      "process",
      1,
      false,
      "shard b has no folder for a log" },
    { "of both, the standby is lost",
      CAIRN_DURABILITY_LOG_PEER,
      { { "a", { HAS, HAS, HAS } }, { "b", { NOTHING, LOST, HAS } } },
      "log",
      1,
      false,
      "shard b is not mirrored" },
};

TEST_EACH(a_job_is_degraded_if_a_part_lacks_what_is_asked_for, 0, sizeof cases / sizeof *cases)
{
    const struct safety safety = safety_judge(cases[_i].asked, cases[_i].parts, 2);
    ck_assert_msg(strcmp(safety_text(safety.has), cases[_i].has) == 0, "%s: %s", cases[_i].what,
                  safety_text(safety.has));
    ck_assert_msg(safety.lacking == cases[_i].lacking, "%s: %u", cases[_i].what, safety.lacking);
    ck_assert_msg(safety.is_coming == cases[_i].is_coming, "%s", cases[_i].what);
    ck_assert_msg(strstr(safety.why.text, cases[_i].why) != NULL &&
                      (safety.why.text[0] == '\0') == (safety.lacking == 0),
                  "%s: %s", cases[_i].what, safety.why.text);
}

TEST(what_cannot_be_had_is_refused_and_each_shard_that_lacks_it_is_named)
{
    const struct safety_part parts[] = {
        { "a", { HAS, NOTHING, HAS } },
        { "b", { NOTHING, COMES, NOTHING } },
        { "c", { HAS, NOTHING, { .why = "cannot log: the disk is full" } } },
    };
    static const struct {
        cairn_durability asked;
        const char *text;
    } refused[] = {
        { CAIRN_DURABILITY_PROCESS,
          "durability process cannot be had: shard b loses its part when its process ends" },
        { CAIRN_DURABILITY_PEER, "durability peer cannot be had: shards a, c have no standby" },
        { CAIRN_DURABILITY_LOG, "durability log cannot be had: shard c cannot log: the disk is "
                                "full; shard b has no folder" },
        { CAIRN_DURABILITY_LOG_PEER, "durability log+peer cannot be had: shards a, c have no " },
    };
    struct sentence why;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ck_assert_int_eq(safety_may(refused[i].asked, parts, 3, &why), CAIRN_ERR_UNSUPPORTED);
        ck_assert_msg(strncmp(why.text, refused[i].text, strlen(refused[i].text)) == 0, "%s",
                      why.text);
    }
    ck_assert_int_eq(safety_may(CAIRN_DURABILITY_DEFAULT, parts, 3, &why), CAIRN_OK);
    ck_assert_int_eq(safety_may(CAIRN_DURABILITY_PROCESS, parts, 1, &why), CAIRN_OK);
    ck_assert_int_eq(safety_may(CAIRN_DURABILITY_PEER, &parts[1], 1, &why), CAIRN_OK);
}

TEST(many_shards_are_counted_and_not_all_named)
{
    struct safety_part parts[20];
    for (int i = 0; i < 20; i++) parts[i] = (struct safety_part) { .shard = "s" };
    const struct safety safety = safety_judge(CAIRN_DURABILITY_PEER, parts, 20);
    ck_assert_uint_eq(safety.lacking, 20);
    ck_assert_ptr_nonnull(strstr(safety.why.text, "s, s and 12 more have no standby"));
}

SUITE(30);
