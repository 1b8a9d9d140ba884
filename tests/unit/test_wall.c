/* The wall clock beside one that does not jump: which steps of it are jumps, and what is said of them. */
#include <check.h>
#include <string.h>

#include "server/base/log.h"
#include "tests/support/suite.h"

#define NOW  1795230000
#define DAY  86400
#define YEAR 31557600

static const struct {
    int64_t by_s, jump_s;
    const char *text;
} jumps[] = {
    { 0, 0, NULL },
    { 60, 0, NULL }, // as NTP may set it
    { -60, 0, NULL },
    { 61, 61, "1 minute ahead" },
    { -61, -61, "1 minute back" },
    { DAY, DAY, "1 day ahead" },
    { -DAY, -DAY, "1 day back" },
    { 10 * (int64_t)YEAR, 10 * (int64_t)YEAR, "10 years ahead" },
    { -10 * (int64_t)YEAR, -10 * (int64_t)YEAR, "10 years back" },
    { -NOW - 5, -NOW - 5, "57 years back" },
};

TEST_EACH(a_jump_is_seen_once, 0, sizeof jumps / sizeof jumps[0])
{
    struct wall wall = { .begun = false };
    char text[CAIRN_WALL_JUMP_BYTES];
    ck_assert_int_eq(wall_look(&wall, NOW, 50), 0);
    ck_assert_int_eq(wall_look(&wall, NOW + 1000, 1050), 0);
    ck_assert_uint_eq(wall_sound_s(&wall), UINT64_MAX);
    const int64_t jump_s = wall_look(&wall, NOW + 1010 + jumps[_i].by_s, 1060);
    ck_assert_int_eq(jump_s, jumps[_i].jump_s);
    if (jump_s != 0) {
        wall_jump_text(jump_s, text);
        ck_assert_str_eq(text, jumps[_i].text);
    }
    ck_assert_int_eq(wall_look(&wall, NOW + 1110 + jumps[_i].by_s, 1160), 0);
    ck_assert_uint_eq(wall_sound_s(&wall), jump_s != 0 ? 100 : UINT64_MAX);
}

TEST(small_steps_do_not_add_up_to_a_jump)
{
    struct wall wall = { .begun = false };
    for (int i = 0; i < 1000; i++)
        ck_assert_int_eq(wall_look(&wall, NOW + 11 * (int64_t)i, 10 * (uint64_t)i), 0);
}

TEST(a_doubt_counts_as_a_jump)
{
    struct wall wall = { .begun = false };
    wall_look(&wall, NOW, 50);
    wall_doubt(&wall);
    ck_assert_uint_eq(wall_sound_s(&wall), 0);
    wall_look(&wall, NOW + 30, 80);
    ck_assert_uint_eq(wall_sound_s(&wall), 30);
}

SUITE(10);
