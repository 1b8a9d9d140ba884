/* A copy around the caches is a copy: every alignment, every length about a line, nothing beside it. */
#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/fabric/backend.h"
#include "tests/support/apart.h"
#include "tests/support/suite.h"

#define ROOM 1024

TEST(a_copy_around_the_caches_is_a_copy)
{
    static uint8_t from[ROOM], to[ROOM], expected[ROOM];
    for (size_t i = 0; i < ROOM; i++) from[i] = (uint8_t)(i * 7 + 3);
    for (size_t bytes = 0; bytes < 700; bytes += bytes < 140 ? 1 : 13)
        for (size_t at = 0; at < 66; at++) {
            const size_t source = (at * 29 + bytes) % 131;
            memset(to, 0xee, ROOM);
            memset(expected, 0xee, ROOM);
            memcpy(expected + at, from + source, bytes);
            far_copy(to + at, from + source, bytes);
            ck_assert_mem_eq(to, expected, ROOM);
        }
}

TEST(many_lines_are_copied_too)
{
    const size_t bytes = ((size_t)3 << 20) + 77;
    uint8_t *from = malloc(bytes), *to = malloc(bytes);
    ck_assert(from != NULL && to != NULL);
    for (size_t i = 0; i < bytes; i++) from[i] = (uint8_t)(i ^ i >> 11);
    far_copy(to, from, bytes);
    ck_assert_int_eq(memcmp(to, from, bytes), 0);
    free(from);
    free(to);
}

/* Where each of four streams stands, whatever the length: proto/fabric/backend.h. */
TEST(the_streams_of_a_copy_never_collide)
{
    const uint8_t *memory = (const uint8_t *)(uintptr_t)CAIRN_STAGGER_PAGE;
    for (size_t bytes = 0; bytes < (4 << 20); bytes += bytes / 7 + 1) {
        const size_t each = stagger_cut(bytes, 4);
        ck_assert_uint_eq(each % CAIRN_LINE_BYTES, 0);
        ck_assert_uint_le(4 * each, bytes);
        if (bytes >= (64 << 10)) ck_assert_uint_gt(4 * each, bytes * 3 / 4);
        for (size_t s = 1; each > 0 && s < 4; s++)
            for (size_t other = 0; other < s; other++)
                ck_assert_uint_ge(lines_apart(memory + s * each, memory + other * each), 12);
    }
}

TEST(streams_that_begin_apart_are_apart)
{
    const uint8_t *page = (const uint8_t *)(uintptr_t)(5 * CAIRN_STAGGER_PAGE);
    for (size_t i = 0; i < CAIRN_STREAMS; i++)
        for (size_t k = 0; k < i; k++)
            for (size_t far = 4096; far <= (size_t)1 << 40; far *= 2)
                ck_assert_uint_ge(
                    lines_apart(page + stagger_begin(i), page + far + stagger_begin(k)), 12);
    ck_assert_uint_eq(lines_apart(page, page + 4096 + 3 * 64), 3);
    ck_assert_uint_eq(lines_apart(page, page + 2 * 4096 - 3 * 64), 3);
    ck_assert_uint_eq(lines_apart(page, page + 256 * 4096), 0);
}

SUITE(30);
