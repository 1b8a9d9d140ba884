/* A copy around the caches is a copy: every alignment, every length about a line, nothing beside it. */
#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/fabric/far_copy.h"

#define ROOM 1024

START_TEST(a_copy_around_the_caches_is_a_copy)
{
    static uint8_t from[ROOM], to[ROOM], expected[ROOM];
    for (size_t i = 0; i < ROOM; i++) from[i] = (uint8_t)(i * 7 + 3);
    for (size_t bytes = 0; bytes < 700; bytes += bytes < 140 ? 1 : 13)
        for (size_t at = 0; at < 66; at++) {
            const size_t source = (at * 29 + bytes) % 131;
            memset(to, 0xee, ROOM);
            memset(expected, 0xee, ROOM);
            memcpy(expected + at, from + source, bytes);
            cairn_far_copy(to + at, from + source, bytes);
            ck_assert_mem_eq(to, expected, ROOM);
        }
}
END_TEST

START_TEST(many_lines_are_copied_too)
{
    const size_t bytes = ((size_t)3 << 20) + 77;
    uint8_t *from = malloc(bytes), *to = malloc(bytes);
    ck_assert(from != NULL && to != NULL);
    for (size_t i = 0; i < bytes; i++) from[i] = (uint8_t)(i ^ i >> 11);
    cairn_far_copy(to, from, bytes);
    ck_assert_int_eq(memcmp(to, from, bytes), 0);
    free(from);
    free(to);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("far_copy");
    TCase *tests = tcase_create("far_copy");
    tcase_add_test(tests, a_copy_around_the_caches_is_a_copy);
    tcase_add_test(tests, many_lines_are_copied_too);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
